
/*
 * ngx_http_idem_status.c - a location that reports to a caller on one of its
 * own keys (GET), or makes sure that the key's request will not run any more
 * (POST: the compensation query, which stores a failure if there is no record).
 */


#include "ngx_http_idem.h"


static void ngx_http_idem_status_told(ngx_http_idem_op_t *op,
    ngx_http_idem_reply_t *reply);
static void ngx_http_idem_status_ask(ngx_http_idem_ctx_t *ctx);


/* called again when the digest key has arrived */

ngx_int_t
ngx_http_idem_status_handler(ngx_http_request_t *r)
{
    ngx_int_t                  rc;
    const char                *flaw;
    ngx_http_idem_ctx_t       *ctx;
    ngx_http_idem_loc_conf_t  *conf;

    conf = ngx_http_get_module_loc_conf(r, ngx_http_idem_module);

    ctx = ngx_http_get_module_ctx(r, ngx_http_idem_module);

    if (ctx) {
        if (ctx->state != NGX_HTTP_IDEM_ASKING) {
            return NGX_HTTP_INTERNAL_SERVER_ERROR;   /* redirected to here */
        }

        ngx_http_idem_status_ask(ctx);
        return NGX_DONE;
    }

    if (!(r->method & (NGX_HTTP_GET|NGX_HTTP_POST))) {
        return NGX_HTTP_NOT_ALLOWED;
    }

    rc = ngx_http_discard_request_body(r);
    if (rc != NGX_OK) {
        return rc;
    }

    ctx = ngx_http_idem_create_ctx(r, conf);
    if (ctx == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    flaw = NULL;
    rc = ngx_http_idem_key(ctx, NULL, &flaw);

    if (rc == NGX_ERROR) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    r->main->count++;

    if (rc == NGX_OK) {
        ngx_http_idem_status_ask(ctx);

    } else {
        ngx_http_idem_refuse(ctx, rc == NGX_ABORT
                                         ? &ngx_http_idem_key_malformed
                                         : &ngx_http_idem_key_missing, flaw, 0);
    }

    return NGX_DONE;
}


static ngx_int_t
ngx_http_idem_status_send(ngx_http_idem_ctx_t *ctx)
{
    struct idem_op  what;

    ngx_memzero(&what, sizeof(what));
    what.verb = ctx->method == NGX_HTTP_GET ? IDEM_GET : IDEM_SETTLE;
    what.type = ctx->token ? IDEM_TYPE_TOKEN : 0;

    return ngx_http_idem_claim_ask(ctx, &what, &ctx->id,
                                   ngx_http_idem_status_told);
}


static void
ngx_http_idem_status_ask(ngx_http_idem_ctx_t *ctx)
{
    ngx_int_t                rc;
    ngx_http_request_t      *r = ctx->request;
    ngx_http_idem_engine_t  *e = ngx_http_idem_engine();

    ctx->state = NGX_HTTP_IDEM_ASKING;

    if (ngx_http_idem_engine_away(e)) {
        ngx_http_idem_refuse_away(ctx);
        return;
    }

    ngx_http_idem_set_deadline(ctx, e->timeout);

    if (ctx->conf->scope == NULL && !e->digest_known) {
        ngx_http_idem_digest_await(ctx);
        return;
    }

    rc = ngx_http_idem_scope(r, ctx->conf, NULL, &ctx->scope);

    if (rc == NGX_DECLINED || rc == NGX_ABORT) {
        ngx_http_idem_clear_deadline(ctx);
        ngx_http_idem_refuse(ctx, rc == NGX_ABORT
                                         ? &ngx_http_idem_scope_refused
                                         : ctx->conf->scope
                                           ? &ngx_http_idem_scope_missing
                                           : &ngx_http_idem_anonymous, NULL, 0);
        return;
    }

    if (rc != NGX_OK || ngx_http_idem_status_send(ctx) != NGX_OK) {
        ngx_http_idem_fail(ctx);
    }
}


/*
 * The response is what a duplicate of the request would get, without the risk
 * that the request is not a duplicate and runs.  This machine's clock decides
 * when a lease ends.
 */

static enum idem_verdict
ngx_http_idem_status_read(struct idem__wire_brief *record)
{
    int64_t      left;
    ngx_time_t  *now;

    switch (record->state) {

    case IDEM_STATE_EXECUTING:
        now = ngx_timeofday();
        left = record->lease_until - ((int64_t) now->sec * 1000 + now->msec);

        /* it may be done long before its lease ends */

        record->retry_after_ms = ngx_min(left, 1000);

        return left > 0 ? IDEM_V_BUSY : IDEM_V_DOUBT;

    case IDEM_STATE_SUCCEEDED:
    case IDEM_STATE_FAILED:
        return record->redeemed ? IDEM_V_DUPLICATE : IDEM_V_REPLAY;

    default:
        return IDEM_V_ABSENT;                /* issued, free */
    }
}


static void
ngx_http_idem_status_told(ngx_http_idem_op_t *op, ngx_http_idem_reply_t *reply)
{
    ngx_connection_t       *c;
    ngx_http_request_t     *r;
    enum idem_verdict       verdict;
    ngx_http_idem_ctx_t    *ctx;
    ngx_http_idem_claim_t  *claim = op->data;

    static ngx_str_t  type = ngx_string("application/json");
    static ngx_str_t  settled = ngx_string("{\"settled\":\"failed\"}\n");

    ctx = claim->ctx;
    claim->begin = NULL;

    if (ctx == NULL) {
        ngx_http_idem_claim_unref(claim);
        return;
    }

    r = ctx->request;
    c = r->connection;
    verdict = ngx_http_idem_verdict(reply);

    if (verdict == IDEM_V_RECORD) {
        verdict = ngx_http_idem_status_read(&reply->brief);
        reply->brief.verdict = verdict;
    }

    if (verdict != IDEM_V_ABSENT && verdict != IDEM_V_SETTLED) {
        ngx_http_idem_begun(ctx, reply);
        ngx_http_idem_claim_unref(claim);
        return;
    }

    ngx_http_idem_clear_deadline(ctx);

    if (verdict == IDEM_V_SETTLED) {
        ngx_str_set(&ctx->verdict, "settled");
        ctx->state = NGX_HTTP_IDEM_PASSING;
        ngx_http_finalize_request(r, ngx_http_idem_send_text(r, NGX_HTTP_OK,
                                                             &type, &settled));
    } else {
        ngx_str_set(&ctx->verdict, "absent");
        ngx_http_idem_refuse(ctx, &ngx_http_idem_key_unused, NULL, 0);
    }

    ngx_http_run_posted_requests(c);
    ngx_http_idem_claim_unref(claim);
}
