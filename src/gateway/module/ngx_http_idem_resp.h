
/*
 * ngx_http_idem_resp.h - writes commands for the engine (docs/protocol.md).
 *
 * Inline, and in one pass: two commands with some twenty arguments are written
 * for every gated request, and calls would be felt.
 */


#ifndef _NGX_HTTP_IDEM_RESP_H_INCLUDED_
#define _NGX_HTTP_IDEM_RESP_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>


/* room that an argument takes beside its own bytes */
#define NGX_HTTP_IDEM_ARG          32


/* bytes of the protocol as they are; a literal */

#define ngx_http_idem_put_raw(p, literal)                                     \
    ngx_cpymem(p, literal, sizeof(literal) - 1)


static ngx_inline u_char *
ngx_http_idem_put_digits(u_char *p, uint64_t n)
{
    u_char  *d, buf[NGX_INT64_LEN];

    if (n < 10) {
        *p++ = (u_char) ('0' + n);
        return p;
    }

    d = buf + NGX_INT64_LEN;

    do {
        *--d = (u_char) ('0' + n % 10);
        n /= 10;
    } while (n);

    return ngx_cpymem(p, d, buf + NGX_INT64_LEN - d);
}


/* "*3" or "$5", a line */

static ngx_inline u_char *
ngx_http_idem_put_line(u_char *p, u_char mark, uint64_t n)
{
    *p++ = mark;
    p = ngx_http_idem_put_digits(p, n);
    *p++ = CR;
    *p++ = LF;

    return p;
}


static ngx_inline u_char *
ngx_http_idem_put(u_char *p, const u_char *data, size_t len)
{
    p = ngx_http_idem_put_line(p, '$', len);
    p = ngx_cpymem(p, data, len);
    *p++ = CR;
    *p++ = LF;

    return p;
}


static ngx_inline u_char *
ngx_http_idem_put_number(u_char *p, uint64_t n)
{
    u_char  *last, buf[NGX_INT64_LEN];

    last = ngx_http_idem_put_digits(buf, n);

    return ngx_http_idem_put(p, buf, last - buf);
}


/* a number of eight bytes as hex digits */

static ngx_inline u_char *
ngx_http_idem_put_nonce(u_char *p, uint64_t nonce)
{
    p = ngx_http_idem_put_raw(p, "$5\r\nNONCE\r\n$16\r\n");
    p = ngx_hex_dump(p, (u_char *) &nonce, sizeof(nonce));

    return ngx_http_idem_put_raw(p, "\r\n");
}


#endif /* _NGX_HTTP_IDEM_RESP_H_INCLUDED_ */
