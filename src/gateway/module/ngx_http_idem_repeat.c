
/*
 * ngx_http_idem_repeat.c - Repeatable Requests 1.0 of OASIS (idem_profile
 * oasis).
 *
 * A request says when it was first sent, so that one whose record may have
 * expired is refused instead of run again, and every response says whether the
 * request was accepted as repeatable.
 */


#include "ngx_http_idem.h"


static ngx_str_t  ngx_http_idem_request_id =
    ngx_string("repeatability-request-id");


ngx_int_t
ngx_http_idem_first_sent(ngx_http_idem_ctx_t *ctx, ngx_uint_t found,
    const ngx_http_idem_problem_t **problem, const char **flaw)
{
    time_t      sent;
    int64_t     ttl;
    ngx_str_t   value;
    ngx_uint_t  ids, times;

    static ngx_str_t  name = ngx_string("repeatability-first-sent");

    if (ctx->conf->profile != GATEWAY_OASIS || ctx->token) {
        return NGX_OK;
    }

    *problem = &ngx_http_idem_key_malformed;

    (void) ngx_http_idem_find_header(ctx->request, &ngx_http_idem_request_id,
                                     &value, &ids);

    if (ids > 1) {
        *flaw = "Repeatability-Request-ID was sent more than once: send it "
                "once.";
        return NGX_ABORT;
    }

    (void) ngx_http_idem_find_header(ctx->request, &name, &value, &times);

    if (!found) {
        *flaw = "Repeatability-First-Sent needs a Repeatability-Request-ID.";
        return times ? NGX_ABORT : NGX_OK;
    }

    if (times != 1) {
        *flaw = "Send one Repeatability-First-Sent with the request.";
        return NGX_ABORT;
    }

    sent = ngx_parse_http_time(value.data, value.len);

    if (sent == NGX_ERROR) {
        *flaw = "Repeatability-First-Sent is not a date such as \"Sun, 06 Nov "
                "1994 08:49:37 GMT\".";
        return NGX_ABORT;
    }

    ttl = ctx->conf->ttl == NGX_CONF_UNSET_MSEC ? IDEM_TTL_DEFAULT_MS
                                                : (int64_t) ctx->conf->ttl;

    if ((int64_t) (ngx_time() - sent) * 1000 > ttl) {
        *problem = &ngx_http_idem_first_sent_expired;
        return NGX_ABORT;
    }

    return NGX_OK;
}


ngx_uint_t
ngx_http_idem_cannot_repeat(ngx_http_request_t *r,
    ngx_http_idem_loc_conf_t *conf)
{
    ngx_str_t   value;
    ngx_uint_t  count;

    return conf->profile == GATEWAY_OASIS
           && !(r->method & (NGX_HTTP_GET|NGX_HTTP_HEAD|NGX_HTTP_OPTIONS))
           && ngx_http_idem_find_header(r, &ngx_http_idem_request_id, &value,
                                        &count) == NGX_OK;
}


ngx_int_t
ngx_http_idem_add_result(ngx_http_idem_ctx_t *ctx, ngx_uint_t accepted)
{
    static ngx_str_t  name = ngx_string("Repeatability-Result");
    static ngx_str_t  yes = ngx_string("accepted");
    static ngx_str_t  no = ngx_string("rejected");

    if (ctx->conf->profile != GATEWAY_OASIS || ctx->result_told) {
        return NGX_OK;
    }

    ctx->result_told = 1;

    return ngx_http_idem_set_header(ctx->request, &name,
                                    accepted ? &yes : &no);
}
