
/*
 * ngx_http_idem_status.c - a location that tells a caller what became of a key
 * of its own (GET), or makes sure that nothing more will become of it (POST:
 * the query for compensation, which plants a failure where there is nothing).
 */


#include "ngx_http_idem.h"


static void ngx_http_idem_status_told(ngx_http_idem_op_t *op,
    struct gateway_reply *reply);
static void ngx_http_idem_status_ask(ngx_http_idem_ctx_t *ctx);


static void
ngx_http_idem_status_refuse(ngx_http_idem_ctx_t *ctx,
    const ngx_http_idem_problem_t *problem, const char *detail,
    ngx_uint_t retry_after)
{
    ctx->state = NGX_HTTP_IDEM_PASSING;

    ngx_http_finalize_request(ctx->request,
                              ngx_http_idem_send_problem(ctx->request,
                                                         ctx->conf, problem,
                                                         detail, retry_after));
}


/* also called again when the digest key has come */

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
        ngx_http_idem_status_refuse(ctx, rc == NGX_ABORT
                                         ? &ngx_http_idem_key_malformed
                                         : &ngx_http_idem_key_missing, flaw, 0);
    }

    return NGX_DONE;
}


static ngx_int_t
ngx_http_idem_status_send(ngx_http_idem_ctx_t *ctx)
{
    u_char                  *p;
    ngx_uint_t               args;
    ngx_http_idem_op_t      *op;
    ngx_http_idem_engine_t  *e = ngx_http_idem_engine();

    /* as for a token: the claim only knows whether the request is there */

    ctx->claim = ngx_http_idem_claim_create(&ctx->scope, &ctx->id, 0);
    if (ctx->claim == NULL) {
        return NGX_ERROR;
    }

    ctx->claim->ctx = ctx;
    ctx->claim->state = NGX_HTTP_IDEM_ENDED;

    op = ngx_http_idem_op_create(e, ctx->scope.len + ctx->id.len
                                    + 6 * NGX_HTTP_IDEM_ARG,
                                 ngx_http_idem_status_told, ctx->claim);
    if (op == NULL) {
        return NGX_ERROR;
    }

    ctx->claim->refs++;

    args = 3 + 2 + (ctx->token ? 2 : 0);     /* TAG, TYPE */

    p = ngx_http_idem_put_line(op->cmd, '*', args);
    p = ctx->method == NGX_HTTP_GET
        ? ngx_http_idem_put_raw(p, "$3\r\nGET\r\n")
        : ngx_http_idem_put_raw(p, "$6\r\nSETTLE\r\n");
    p = ngx_http_idem_put(p, ctx->scope.data, ctx->scope.len);
    p = ngx_http_idem_put(p, ctx->id.data, ctx->id.len);

    if (ctx->token) {
        p = ngx_http_idem_put_raw(p, "$4\r\nTYPE\r\n$5\r\ntoken\r\n");
    }

    ngx_http_idem_op_send(e, op, p);

    return NGX_OK;
}


static void
ngx_http_idem_status_ask(ngx_http_idem_ctx_t *ctx)
{
    ngx_int_t                rc;
    ngx_http_request_t      *r = ctx->request;
    ngx_http_idem_engine_t  *e = ngx_http_idem_engine();

    ctx->state = NGX_HTTP_IDEM_ASKING;

    if (ngx_http_idem_engine_away(e)) {
        ngx_http_idem_status_refuse(ctx, &ngx_http_idem_not_executed, NULL, 1);
        return;
    }

    ngx_http_idem_set_deadline(ctx, e->timeout);

    if (ctx->conf->scope == NULL && !e->digest_known) {
        ngx_queue_insert_tail(&e->waiting, &ctx->waiting);
        ctx->in_waiting = 1;
        return;
    }

    rc = ngx_http_idem_scope(r, ctx->conf, NULL, &ctx->scope);

    if (rc == NGX_DECLINED || rc == NGX_ABORT) {
        ngx_http_idem_clear_deadline(ctx);
        ngx_http_idem_status_refuse(ctx, rc == NGX_ABORT
                                         ? &ngx_http_idem_scope_refused
                                         : ctx->conf->scope
                                           ? &ngx_http_idem_scope_missing
                                           : &ngx_http_idem_anonymous, NULL, 0);
        return;
    }

    if (rc != NGX_OK || ngx_http_idem_status_send(ctx) != NGX_OK) {
        ctx->state = NGX_HTTP_IDEM_PASSING;
        ngx_http_finalize_request(r, NGX_HTTP_INTERNAL_SERVER_ERROR);
    }
}


/* a record is told as names and values */

static struct gateway_value *
ngx_http_idem_status_field(struct gateway_reply *reply, const char *name)
{
    size_t  i;

    static struct gateway_value  none;

    for (i = 1; i + 1 < reply->count; i += 2) {
        if (gateway_reply_is(reply, i, name)) {
            return &reply->values[i + 1];
        }
    }

    return &none;
}


static ngx_int_t
ngx_http_idem_status_is(struct gateway_value *value, const char *word)
{
    return value->bytes.len == ngx_strlen(word)
           && ngx_memcmp(value->bytes.data, word, value->bytes.len) == 0;
}


static void
ngx_http_idem_status_word(struct gateway_value *value, const char *word)
{
    value->is_number = 0;
    value->bytes.data = (const uint8_t *) word;
    value->bytes.len = ngx_strlen(word);
}


/*
 * The answer is what a repeat of the request would get, without the risk that
 * it is not a repeat.  When a lease ends is judged by this machine's clock.
 */

static ngx_int_t
ngx_http_idem_status_read(struct gateway_reply *reply,
    struct gateway_reply *as)
{
    int64_t                left;
    ngx_time_t            *now;
    struct gateway_value  *state;

    state = ngx_http_idem_status_field(reply, "state");

    if (ngx_http_idem_status_is(state, "executing")) {
        now = ngx_timeofday();
        left = ngx_http_idem_status_field(reply, "lease_until")->number
               - ((int64_t) now->sec * 1000 + now->msec);

        ngx_http_idem_status_word(&as->values[0], left > 0 ? "busy" : "doubt");
        as->values[1].is_number = 1;
        as->values[1].number = left;
        as->count = 2;
        return NGX_OK;
    }

    if (ngx_http_idem_status_is(state, "succeeded")
        || ngx_http_idem_status_is(state, "failed"))
    {
        ngx_http_idem_status_word(&as->values[0],
                         ngx_http_idem_status_field(reply, "redeemed")->number
                         ? "duplicate" : "replay");
        as->values[1] = *state;
        as->values[2] = *ngx_http_idem_status_field(reply, "kind");
        as->values[3] = *ngx_http_idem_status_field(reply, "expires");
        as->values[4] = *ngx_http_idem_status_field(reply, "result");
        as->count = 5;
        return NGX_OK;
    }

    return NGX_DECLINED;                     /* issued, free */
}


static void
ngx_http_idem_status_told(ngx_http_idem_op_t *op, struct gateway_reply *reply)
{
    ngx_int_t               rc;
    ngx_connection_t       *c;
    ngx_http_request_t     *r;
    ngx_http_idem_ctx_t    *ctx;
    struct gateway_reply    as;
    ngx_http_idem_claim_t  *claim = op->data;

    static ngx_str_t  type = ngx_string("application/json");
    static ngx_str_t  settled = ngx_string("{\"settled\":\"failed\"}\n");

    ctx = claim->ctx;

    if (ctx == NULL) {
        ngx_http_idem_claim_unref(claim);
        return;
    }

    r = ctx->request;
    c = r->connection;
    rc = NGX_DECLINED;

    if (reply && gateway_reply_is(reply, 0, "record")) {
        rc = ngx_http_idem_status_read(reply, &as);

    } else if (reply && !gateway_reply_is(reply, 0, "absent")
               && !gateway_reply_is(reply, 0, "settled"))
    {
        as = *reply;
        rc = NGX_OK;
    }

    if (reply == NULL || rc == NGX_OK) {
        ngx_http_idem_begun(ctx, reply ? &as : NULL);
        ngx_http_idem_claim_unref(claim);
        return;
    }

    ngx_http_idem_clear_deadline(ctx);

    if (gateway_reply_is(reply, 0, "settled")) {
        ngx_str_set(&ctx->verdict, "settled");
        ctx->state = NGX_HTTP_IDEM_PASSING;
        ngx_http_finalize_request(r, ngx_http_idem_send_text(r, NGX_HTTP_OK,
                                                             &type, &settled));
    } else {
        ngx_str_set(&ctx->verdict, "absent");
        ngx_http_idem_status_refuse(ctx, &ngx_http_idem_key_unused, NULL, 0);
    }

    ngx_http_run_posted_requests(c);
    ngx_http_idem_claim_unref(claim);
}
