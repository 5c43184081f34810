
/*
 * ngx_http_idem_token.c - one-time tokens, issued to the caller's scope: by a
 * location of their own, with every response for the next request, and for a
 * page that a service renders.
 */


#include "ngx_http_idem.h"


static void ngx_http_idem_issued(ngx_http_idem_op_t *op,
    ngx_http_idem_reply_t *reply);
static ngx_int_t ngx_http_idem_issue(ngx_http_idem_ctx_t *ctx,
    ngx_http_idem_reply_pt handler);
static void ngx_http_idem_token_body(ngx_http_request_t *r);
static void ngx_http_idem_token_ask(ngx_http_idem_ctx_t *ctx, ngx_str_t *body);


/* called again when the digest key has arrived */

ngx_int_t
ngx_http_idem_token_handler(ngx_http_request_t *r)
{
    ngx_int_t                  rc;
    ngx_http_idem_ctx_t       *ctx;
    ngx_http_idem_loc_conf_t  *conf;

    conf = ngx_http_get_module_loc_conf(r, ngx_http_idem_module);

    ctx = ngx_http_get_module_ctx(r, ngx_http_idem_module);

    if (ctx) {
        if (ctx->state != NGX_HTTP_IDEM_ASKING) {
            return NGX_HTTP_INTERNAL_SERVER_ERROR;   /* redirected to here */
        }

        ngx_http_idem_token_ask(ctx, NULL);
        return NGX_DONE;
    }

    if (!(r->method & (NGX_HTTP_GET|NGX_HTTP_POST))) {
        return NGX_HTTP_NOT_ALLOWED;
    }

    if (!conf->scope_needs_body) {
        rc = ngx_http_discard_request_body(r);
        if (rc != NGX_OK) {
            return rc;
        }
    }

    ctx = ngx_http_idem_create_ctx(r, conf);
    if (ctx == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    if (!conf->scope_needs_body) {
        r->main->count++;
        ngx_http_idem_token_ask(ctx, NULL);
        return NGX_DONE;
    }

    if (r->headers_in.content_length_n > (off_t) conf->max_body) {
        r->main->count++;
        ngx_http_idem_refuse(ctx, &ngx_http_idem_body_too_large, NULL, 0);
        return NGX_DONE;
    }

    rc = ngx_http_read_client_request_body(r, ngx_http_idem_token_body);

    return rc >= NGX_HTTP_SPECIAL_RESPONSE ? rc : NGX_DONE;
}


static void
ngx_http_idem_token_body(ngx_http_request_t *r)
{
    ngx_str_t             body;
    ngx_http_idem_ctx_t  *ctx;

    ctx = ngx_http_get_module_ctx(r, ngx_http_idem_module);

    if (ngx_http_idem_body_size(r) > (off_t) ctx->conf->max_body) {
        ngx_http_idem_refuse(ctx, &ngx_http_idem_body_too_large, NULL, 0);
        return;
    }

    if (ngx_http_idem_body_text(r, &body) != NGX_OK) {
        ngx_http_finalize_request(r, NGX_HTTP_INTERNAL_SERVER_ERROR);
        return;
    }

    ngx_http_idem_token_ask(ctx, &body);
}


static void
ngx_http_idem_token_ask(ngx_http_idem_ctx_t *ctx, ngx_str_t *body)
{
    ngx_int_t                rc;
    ngx_http_request_t      *r = ctx->request;
    ngx_http_idem_engine_t  *e = ngx_http_idem_engine();

    ctx->state = NGX_HTTP_IDEM_ASKING;

    if (ngx_http_idem_engine_away(e)) {
        ngx_http_idem_refuse_away(ctx);
        return;
    }

    rc = NGX_OK;

    if (ctx->scope.len == 0 && (ctx->conf->scope || e->digest_known)) {
        rc = ngx_http_idem_scope(r, ctx->conf, body, &ctx->scope);
    }

    if (rc == NGX_DECLINED) {
        ngx_http_idem_refuse(ctx, ctx->conf->scope
                                        ? &ngx_http_idem_scope_missing
                                        : &ngx_http_idem_anonymous, NULL, 0);
        return;
    }

    if (rc == NGX_ABORT) {
        ngx_http_idem_refuse(ctx, &ngx_http_idem_scope_refused, NULL, 0);
        return;
    }

    ngx_http_idem_set_deadline(ctx, e->timeout);

    if (rc == NGX_OK && ctx->scope.len == 0) {
        ngx_http_idem_digest_await(ctx);
        return;
    }

    if (rc != NGX_OK || ngx_http_idem_issue(ctx, ngx_http_idem_issued) != NGX_OK)
    {
        ngx_http_idem_fail(ctx);
    }
}


/* a token that was issued and never sent does no harm */

static ngx_int_t
ngx_http_idem_issue(ngx_http_idem_ctx_t *ctx, ngx_http_idem_reply_pt handler)
{
    struct idem_op  what;

    static ngx_str_t  none = ngx_string("");

    ngx_memzero(&what, sizeof(what));
    what.verb = IDEM_ISSUE;
    what.type = IDEM_TYPE_TOKEN;
    what.ttl_ms = ctx->conf->token_ttl;

    return ngx_http_idem_claim_ask(ctx, &what, &none, handler);
}


static ngx_int_t
ngx_http_idem_send_token(ngx_http_idem_ctx_t *ctx, struct idem_bytes *token)
{
    u_char              *p;
    ngx_str_t            body, value;
    ngx_http_request_t  *r = ctx->request;

    static ngx_str_t  type = ngx_string("application/json");

    value.len = token->len;
    value.data = ngx_pnalloc(r->pool, value.len);
    body.data = ngx_pnalloc(r->pool, value.len + 64);

    if (value.data == NULL || body.data == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    ngx_memcpy(value.data, token->data, value.len);

    p = ngx_sprintf(body.data, "{\"token\":\"%V\",\"expires_in\":%M}\n",
                    &value, ctx->conf->token_ttl / 1000);
    body.len = p - body.data;

    if (ngx_http_idem_add_header(r, "Idempotency-Token", &value) != NGX_OK
        || ngx_http_idem_add_no_store(r) != NGX_OK)
    {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    return ngx_http_idem_send_text(r, NGX_HTTP_OK, &type, &body);
}


static void
ngx_http_idem_issued(ngx_http_idem_op_t *op, ngx_http_idem_reply_t *reply)
{
    ngx_uint_t              retry;
    ngx_connection_t       *c;
    ngx_http_idem_ctx_t    *ctx;
    ngx_http_idem_claim_t  *claim = op->data;

    ctx = claim->ctx;
    claim->begin = NULL;

    if (ctx) {
        c = ctx->request->connection;

        ngx_http_idem_clear_deadline(ctx);

        if (ngx_http_idem_verdict(reply) == IDEM_V_ISSUED) {
            ngx_str_set(&ctx->verdict, "issued");
            ctx->state = NGX_HTTP_IDEM_PASSING;
            ngx_http_finalize_request(ctx->request,
                                      ngx_http_idem_send_token(ctx,
                                                        &reply->brief.bytes));

        } else if (reply && (retry = idem__quota_retry_s(reply->err.text))) {
            ngx_str_set(&ctx->verdict, "over-quota");
            ngx_http_idem_refuse(ctx, &ngx_http_idem_over_quota,
                                 reply->err.text, retry);

        } else {
            ngx_http_idem_refuse_away(ctx);
        }

        ngx_http_run_posted_requests(c);
    }

    ngx_http_idem_claim_unref(claim);
}


/* without a token the request goes on, too: the next one asks for it */

static void
ngx_http_idem_next_issued(ngx_http_idem_op_t *op, ngx_http_idem_reply_t *reply)
{
    ngx_connection_t       *c;
    ngx_http_idem_ctx_t    *ctx;
    ngx_http_idem_claim_t  *claim = op->data;

    ctx = claim->ctx;
    claim->begin = NULL;

    if (ctx) {
        c = ctx->request->connection;

        if (ngx_http_idem_verdict(reply) == IDEM_V_ISSUED) {
            ctx->next.data = ngx_pnalloc(ctx->request->pool,
                                         reply->brief.bytes.len);

            if (ctx->next.data) {
                ctx->next.len = reply->brief.bytes.len;
                ngx_memcpy(ctx->next.data, reply->brief.bytes.data,
                           ctx->next.len);
            }
        }

        ctx->claim = NULL;
        ngx_http_idem_claim_detach(claim);

        ngx_http_idem_ask(ctx);
        ngx_http_run_posted_requests(c);
    }

    ngx_http_idem_claim_unref(claim);
}


ngx_int_t
ngx_http_idem_next_token(ngx_http_idem_ctx_t *ctx)
{
    ctx->next_asked = 1;

    return ngx_http_idem_issue(ctx, ngx_http_idem_next_issued);
}


ngx_int_t
ngx_http_idem_add_next(ngx_http_idem_ctx_t *ctx)
{
    static ngx_str_t  name = ngx_string("Idempotency-Token");

    if (ctx->next.len == 0 || ctx->page) {
        return NGX_OK;
    }

    if (ngx_http_idem_set_header(ctx->request, &name, &ctx->next) != NGX_OK) {
        return NGX_ERROR;
    }

    ctx->next.len = 0;
    return NGX_OK;
}
