
/*
 * ngx_http_idem_answer.c - send idem's own responses to a client.
 */


#include "ngx_http_idem.h"


/* a body of one buffer, which is the last */

ngx_chain_t *
ngx_http_idem_body(ngx_http_request_t *r, u_char *pos, u_char *last)
{
    ngx_buf_t    *b;
    ngx_chain_t  *out;

    out = ngx_alloc_chain_link(r->pool);
    b = ngx_calloc_buf(r->pool);

    if (out == NULL || b == NULL) {
        return NULL;
    }

    b->pos = pos;
    b->last = last;
    b->memory = (pos != last);
    b->last_buf = 1;
    b->last_in_chain = 1;

    out->buf = b;
    out->next = NULL;

    return out;
}


ngx_int_t
ngx_http_idem_send(ngx_http_request_t *r, ngx_chain_t *out)
{
    ngx_int_t  rc;

    /* a client that waits for "100 Continue" need not send the body */

    r->expect_tested = 1;

    if (out == NULL || ngx_http_discard_request_body(r) != NGX_OK) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    r->disable_not_modified = 1;
    r->allow_ranges = 0;

    rc = ngx_http_send_header(r);

    if (rc == NGX_ERROR || rc > NGX_OK || r->header_only) {
        return rc;
    }

    return ngx_http_output_filter(r, out);
}


ngx_int_t
ngx_http_idem_send_text(ngx_http_request_t *r, ngx_uint_t status,
    ngx_str_t *type, ngx_str_t *body)
{
    ngx_chain_t  *out;

    r->headers_out.status = status;
    r->headers_out.content_type = *type;
    r->headers_out.content_type_len = type->len;
    r->headers_out.content_type_lowcase = NULL;
    r->headers_out.content_length_n = body->len;

    out = ngx_http_idem_body(r, body->data, body->data + body->len);

    return ngx_http_idem_send(r, out);
}


ngx_int_t
ngx_http_idem_send_fixed(ngx_http_request_t *r, ngx_http_idem_loc_conf_t *conf)
{
    ngx_http_idem_ctx_t  *ctx;

    static ngx_str_t  type = ngx_string("text/plain; charset=utf-8");

    ctx = ngx_http_idem_get_ctx(r);

    if (ngx_http_idem_add_no_store(r) != NGX_OK
        || ngx_http_idem_add_expires(r, ctx->expires) != NGX_OK)
    {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    return ngx_http_idem_send_text(r, conf->duplicate_status, &type,
                                   &conf->duplicate_text);
}
