
/*
 * ngx_http_idem_replay.c - send a stored response to a duplicate.
 */


#include "ngx_http_idem.h"
#include "json.h"


/* nginx finds some headers by a pointer and does not search the list */

static void
ngx_http_idem_known_header(ngx_http_request_t *r, ngx_table_elt_t *h)
{
    ngx_uint_t          i;
    ngx_table_elt_t   **to;

    static const struct {
        ngx_str_t       name;
        size_t          offset;
    } known[] = {
        { ngx_string("content-encoding"),
          offsetof(ngx_http_headers_out_t, content_encoding) },
        { ngx_string("etag"), offsetof(ngx_http_headers_out_t, etag) },
        { ngx_string("last-modified"),
          offsetof(ngx_http_headers_out_t, last_modified) },
        { ngx_string("refresh"), offsetof(ngx_http_headers_out_t, refresh) },
        { ngx_string("content-range"),
          offsetof(ngx_http_headers_out_t, content_range) },
        { ngx_string("accept-ranges"),
          offsetof(ngx_http_headers_out_t, accept_ranges) },
        { ngx_string("www-authenticate"),
          offsetof(ngx_http_headers_out_t, www_authenticate) },
        { ngx_string("expires"), offsetof(ngx_http_headers_out_t, expires) },
        { ngx_null_string, 0 }
    };

    for (i = 0; known[i].name.len; i++) {
        if (known[i].name.len == h->key.len
            && ngx_strncasecmp(known[i].name.data, h->key.data, h->key.len)
               == 0)
        {
            to = (ngx_table_elt_t **) ((char *) &r->headers_out
                                       + known[i].offset);
            *to = h;
            return;
        }
    }
}


#define ngx_http_idem_header_is(h, text)                                      \
    ((h)->name.len == sizeof(text) - 1                                        \
     && ngx_strncasecmp((u_char *) (h)->name.data, (u_char *) text,           \
                        sizeof(text) - 1) == 0)


static void
ngx_http_idem_set_type(ngx_http_request_t *r, struct gateway_header *h)
{
    u_char  *p, *last;

    r->headers_out.content_type.data = (u_char *) h->value.data;
    r->headers_out.content_type.len = h->value.len;
    r->headers_out.content_type_len = h->value.len;
    r->headers_out.content_type_lowcase = NULL;

    /* if the type has a charset, no filter may add one */

    p = (u_char *) h->value.data;
    last = ngx_strlchr(p, p + h->value.len, ';');

    if (last && ngx_strlcasestrn(last, p + h->value.len,
                                 (u_char *) "charset=", 8 - 1))
    {
        r->headers_out.content_type_len = last - p;
    }
}


static ngx_int_t
ngx_http_idem_add_replayed(ngx_http_request_t *r)
{
    ngx_str_t            *name;
    ngx_uint_t            i;
    ngx_array_t          *more;
    ngx_http_idem_ctx_t  *ctx;

    static ngx_str_t  value = ngx_string("true");

    if (ngx_http_idem_add_header(r, "Idempotent-Replayed", &value) != NGX_OK) {
        return NGX_ERROR;
    }

    ctx = ngx_http_idem_get_ctx(r);
    more = ctx->conf->replayed;

    for (i = 0; more && i < more->nelts; i++) {
        name = more->elts;

        if (ngx_http_idem_add_header(r, (char *) name[i].data, &value)
            != NGX_OK)
        {
            return NGX_ERROR;
        }
    }

    return ngx_http_idem_add_no_store(r);
}


/* the stored headers, except that the replay gets its own caching headers */

static ngx_int_t
ngx_http_idem_stored_headers(ngx_http_request_t *r,
    struct gateway_result *result, ngx_uint_t replayed)
{
    ngx_uint_t              i;
    ngx_table_elt_t        *h;
    struct gateway_header  *header;

    for (i = 0; i < result->header_count; i++) {
        header = &result->headers[i];

        if (ngx_http_idem_header_is(header, "content-type")) {
            ngx_http_idem_set_type(r, header);
            continue;
        }

        if (replayed && (ngx_http_idem_header_is(header, "cache-control")
                         || ngx_http_idem_header_is(header, "expires")))
        {
            continue;
        }

        h = ngx_http_idem_push_header(&r->headers_out.headers);
        if (h == NULL) {
            return NGX_ERROR;
        }

        h->hash = 1;
        h->key.data = (u_char *) header->name.data;
        h->key.len = header->name.len;
        h->value.data = (u_char *) header->value.data;
        h->value.len = header->value.len;

        ngx_http_idem_known_header(r, h);
    }

    return NGX_OK;
}


/* the stored bytes live as long as the request */

ngx_int_t
ngx_http_idem_send_replay(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx,
    ngx_str_t *stored, int64_t expires, ngx_uint_t replayed)
{
    u_char                 *body;
    const char             *flaw;
    struct idem_bytes       bytes;
    struct gateway_result   result;

    bytes.data = stored->data;
    bytes.len = stored->len;

    flaw = gateway_result_read(bytes, &result);

    if (flaw) {
        ngx_log_error(NGX_LOG_ERR, r->connection->log, 0,
                      "idem: a stored response cannot be replayed: %s", flaw);
        return ngx_http_idem_send_problem(r, ctx->conf,
                                          &ngx_http_idem_not_replayable,
                                          "The request was done before. Its "
                                          "stored result is not an HTTP "
                                          "response.",
                                          0);
    }

    ngx_http_clean_header(r);

    r->headers_out.status = result.status;
    r->headers_out.content_length_n = result.body.len;

    /* the length of a body that was not sent is not known any more */

    if (r->method == NGX_HTTP_HEAD || result.status == NGX_HTTP_NOT_MODIFIED) {
        r->headers_out.content_length_n = -1;
    }

    if (ngx_http_idem_stored_headers(r, &result, replayed) != NGX_OK
        || (replayed && ngx_http_idem_add_replayed(r) != NGX_OK)
        || ngx_http_idem_add_expires(r, expires) != NGX_OK)
    {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    body = (u_char *) result.body.data;

    return ngx_http_idem_send(r, ngx_http_idem_body(r, body,
                                                    body + result.body.len));
}


/* larger results are not parsed for every replay */
#define NGX_HTTP_IDEM_LOOK_MAX  65536


/* NGX_DECLINED: it is not JSON */

static ngx_int_t
ngx_http_idem_is_json(ngx_http_request_t *r, ngx_str_t *stored)
{
    size_t              len;
    uint8_t            *out;
    struct idem_bytes   in, all;
    enum gateway_field  got;

    in.data = stored->data;
    in.len = stored->len;
    all.data = NULL;
    all.len = 0;

    if (stored->data[0] != '{' && stored->data[0] != '[') {
        return NGX_DECLINED;
    }

    out = ngx_pnalloc(r->pool, gateway_json_canonical_max(stored->len));
    if (out == NULL) {
        return NGX_ERROR;
    }

    got = gateway_json_canonical(in, all, out, &len);

    return got == GATEWAY_FIELD_FOUND ? NGX_OK
           : got == GATEWAY_FIELD_NONE ? NGX_DECLINED : NGX_ERROR;
}


static ngx_uint_t
ngx_http_idem_is_text(ngx_str_t *stored)
{
    u_char    *p, *last;
    uint32_t   c;

    p = stored->data;
    last = p + stored->len;

    while (p < last) {
        c = *p;

        if (c < 0x20 && c != '\t' && c != CR && c != LF) {
            return 0;
        }

        if (c < 0x80) {
            p++;

        } else if (ngx_utf8_decode(&p, last - p) > 0x10ffff) {
            return 0;
        }
    }

    return 1;
}


/*
 * The record succeeded without an HTTP response: an operator settled it, or a
 * service finished it itself.
 */

ngx_int_t
ngx_http_idem_send_raw(ngx_http_request_t *r, ngx_str_t *stored,
    int64_t expires)
{
    ngx_int_t   rc;
    ngx_str_t  *type;
    ngx_uint_t  look;

    static ngx_str_t  none = ngx_null_string;
    static ngx_str_t  json = ngx_string("application/json");
    static ngx_str_t  text = ngx_string("text/plain; charset=utf-8");
    static ngx_str_t  bytes = ngx_string("application/octet-stream");

    if (ngx_http_idem_add_replayed(r) != NGX_OK
        || ngx_http_idem_add_expires(r, expires) != NGX_OK)
    {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    if (stored->len == 0) {
        return ngx_http_idem_send_text(r, NGX_HTTP_NO_CONTENT, &none, stored);
    }

    look = stored->len <= NGX_HTTP_IDEM_LOOK_MAX;
    rc = look ? ngx_http_idem_is_json(r, stored) : NGX_DECLINED;

    if (rc == NGX_ERROR) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    if (rc == NGX_OK) {
        type = &json;

    } else if (look && ngx_http_idem_is_text(stored)) {
        type = &text;

    } else {
        type = &bytes;
    }

    return ngx_http_idem_send_text(r, NGX_HTTP_OK, type, stored);
}
