
/*
 * ngx_http_idem_finish.c - FINISH: encode the held response for the store.
 */


#include "ngx_http_idem.h"


/* decides which headers are kept; the rest of a response is its body */

static ngx_int_t
ngx_http_idem_listed(ngx_array_t *list, ngx_str_t *name)
{
    ngx_str_t   *s;
    ngx_uint_t   i;

    s = list->elts;

    for (i = 0; i < list->nelts; i++) {
        if (s[i].len == name->len
            && ngx_strncasecmp(s[i].data, name->data, name->len) == 0)
        {
            return 1;
        }
    }

    return 0;
}


static ngx_int_t
ngx_http_idem_keeps(ngx_http_idem_loc_conf_t *conf, ngx_str_t *name)
{
    ngx_uint_t         i;
    struct idem_bytes  bytes;

    static const ngx_str_t  never[] = {
        ngx_string("age"),
        ngx_string("date"),
        ngx_string("server"),
        ngx_string("set-cookie"),
        ngx_string("set-cookie2"),
        ngx_string("www-authenticate"),
        ngx_string("idempotent-replayed"),
        ngx_string("idempotency-expires"),
        ngx_string("idem-first-trace"),
        ngx_null_string
    };

    bytes.data = name->data;
    bytes.len = name->len;

    if (gateway_header_is_hop(bytes)) {
        return 0;
    }

    if (conf->keep && ngx_http_idem_listed(conf->keep, name)) {
        return 1;
    }

    for (i = 0; never[i].len; i++) {
        if (never[i].len == name->len
            && ngx_strncasecmp(never[i].data, name->data, name->len) == 0)
        {
            return 0;
        }
    }

    if (conf->replayed && ngx_http_idem_listed(conf->replayed, name)) {
        return 0;
    }

    return conf->drop == NULL || !ngx_http_idem_listed(conf->drop, name);
}


static ngx_int_t
ngx_http_idem_put_header(struct gateway_result *result, ngx_str_t *name,
    ngx_str_t *value)
{
    struct gateway_header  *header;

    if (result->header_count == GATEWAY_HEADERS_MAX) {
        return NGX_DECLINED;
    }

    header = &result->headers[result->header_count++];
    header->name.data = name->data;
    header->name.len = name->len;
    header->value.data = value->data;
    header->value.len = value->len;

    return NGX_OK;
}


static ngx_int_t
ngx_http_idem_gather(ngx_http_idem_ctx_t *ctx, struct gateway_result *result)
{
    ngx_uint_t           i;
    ngx_list_part_t     *part;
    ngx_table_elt_t     *h;
    ngx_http_request_t  *r;

    static ngx_str_t  type = ngx_string("Content-Type");
    static ngx_str_t  trace = ngx_string("Idem-First-Trace");

    r = ctx->request;

    result->status = r->headers_out.status;
    result->header_count = 0;

    if (r->headers_out.content_type.len
        && ngx_http_idem_keeps(ctx->conf, &type))
    {
        (void) ngx_http_idem_put_header(result, &type,
                                        &r->headers_out.content_type);
    }

    i = 0;
    part = &r->headers_out.headers.part;

    while ((h = ngx_http_idem_next_header(&part, &i, NULL)) != NULL) {

        if (h->hash == 0 || !ngx_http_idem_keeps(ctx->conf, &h->key)) {
            continue;
        }

        if (ngx_http_idem_put_header(result, &h->key, &h->value) != NGX_OK) {
            return NGX_DECLINED;
        }
    }

    /* replays show which execution the response comes from */

    if (ctx->trace.len) {
        (void) ngx_http_idem_put_header(result, &trace, &ctx->trace);
    }

    return NGX_OK;
}


/* FINISH with the held response, or without it if it is too large to keep */

ngx_int_t
ngx_http_idem_claim_finish(ngx_http_idem_ctx_t *ctx, ngx_uint_t failed,
    ngx_uint_t replayable)
{
    u_char                 *p;
    size_t                  head;
    ngx_chain_t            *cl;
    struct idem_op          what;
    ngx_http_idem_op_t     *op;
    struct gateway_result   result;

    head = 0;

    ngx_memzero(&what, sizeof(what));
    what.verb = IDEM_FINISH;
    what.outcome = failed ? IDEM_STATE_FAILED : IDEM_STATE_SUCCEEDED;
    what.kind = IDEM_KIND_HTTP;

    if (replayable && ngx_http_idem_gather(ctx, &result) == NGX_OK) {
        head = gateway_result_head_len(&result);
    }

    if (head && head + ctx->held_size
                <= ngx_min(ctx->conf->max_answer,
                           ngx_http_idem_engine()->max_result))
    {
        what.result.len = head + ctx->held_size;

    } else {
        what.not_replayable = 1;
    }

    /* a failed request was not done, so another key may try the same content */

    ngx_http_idem_dedupe_end(ctx->claim, !failed);

    op = ngx_http_idem_claim_end(ctx->claim, &what);
    if (op == NULL) {
        return NGX_ERROR;
    }

    if (op->room) {
        gateway_result_head(&result, op->room);
        p = op->room + head;

        for (cl = ctx->held; cl; cl = cl->next) {
            p = ngx_cpymem(p, cl->buf->pos, cl->buf->last - cl->buf->pos);
        }
    }

    return NGX_OK;
}
