
/*
 * ngx_http_idem_ctx.c - the context of a gated request, from its creation to
 * the end of its claim if the request ends without a response.
 */


#include "ngx_http_idem.h"


static void ngx_http_idem_cleanup(void *data);


ngx_http_idem_ctx_t *
ngx_http_idem_create_ctx(ngx_http_request_t *r, ngx_http_idem_loc_conf_t *conf)
{
    ngx_pool_cleanup_t   *cln;
    ngx_http_idem_ctx_t  *ctx;

    cln = ngx_pool_cleanup_add(r->pool, sizeof(ngx_http_idem_ctx_t));
    if (cln == NULL) {
        return NULL;
    }

    ctx = cln->data;
    ngx_memzero(ctx, sizeof(ngx_http_idem_ctx_t));
    cln->handler = ngx_http_idem_cleanup;

    ctx->request = r;
    ctx->conf = conf;
    ctx->method = r->method;
    ctx->http_version = r->http_version;
    ctx->held_last = &ctx->held;

    ngx_http_set_ctx(r, ctx, ngx_http_idem_module);

    return ctx;
}


/* an internal redirect clears the context, but it is still in the pool */

ngx_http_idem_ctx_t *
ngx_http_idem_get_ctx(ngx_http_request_t *r)
{
    ngx_pool_cleanup_t   *cln;
    ngx_http_idem_ctx_t  *ctx;

    ctx = ngx_http_get_module_ctx(r, ngx_http_idem_module);

    if (ctx || (!r->internal && !r->filter_finalize)) {
        return ctx;
    }

    for (cln = r->pool->cleanup; cln; cln = cln->next) {
        if (cln->handler == ngx_http_idem_cleanup) {
            ctx = cln->data;
            ngx_http_set_ctx(r, ctx, ngx_http_idem_module);
            return ctx;
        }
    }

    return NULL;
}


/* was anything sent to a service, in any attempt? did one respond? */

void
ngx_http_idem_attempts(ngx_http_request_t *r, ngx_uint_t *sent,
    ngx_uint_t *answered)
{
    ngx_uint_t                  i;
    ngx_http_upstream_state_t  *state;

    *sent = 0;
    *answered = 0;

    if (r->upstream && r->upstream->request_sent) {
        *sent = 1;
    }

    if (r->upstream_states == NULL) {
        return;
    }

    state = r->upstream_states->elts;

    for (i = 0; i < r->upstream_states->nelts; i++) {
        if (state[i].peer == NULL) {
            continue;
        }

        if (state[i].bytes_sent > 0) {
            *sent = 1;
        }

        if (state[i].header_time != (ngx_msec_t) -1) {
            *sent = 1;
            *answered = 1;
        }
    }
}


/* no service handles this location; nginx itself does */

ngx_int_t
ngx_http_idem_local_handler(ngx_http_request_t *r)
{
    ngx_http_idem_ctx_t  *ctx;

    ctx = ngx_http_get_module_ctx(r, ngx_http_idem_module);

    /* GET and HEAD only read a page: no work was done; a post_action is
     * none either */

    if (ctx && r == r->main && !r->post_action
        && !(r->method & (NGX_HTTP_GET|NGX_HTTP_HEAD)))
    {
        ctx->local = 1;
    }

    return NGX_DECLINED;
}


static void
ngx_http_idem_cleanup(void *data)
{
    ngx_uint_t              sent, answered;
    ngx_http_idem_ctx_t    *ctx = data;
    ngx_http_idem_claim_t  *claim;

    ngx_http_idem_clear_deadline(ctx);
    ngx_http_idem_figures_count(ctx);

    if (ctx->hold.posted) {
        ngx_delete_posted_event(&ctx->hold);
    }

    if (ctx->in_waiting) {
        ngx_queue_remove(&ctx->waiting);
    }

    claim = ctx->claim;

    if (claim == NULL) {
        return;
    }

    if (claim->state == NGX_HTTP_IDEM_EXECUTING) {

        /* the request ended without any response */

        ngx_http_idem_attempts(ctx->request, &sent, &answered);

        if (ctx->elsewhere) {
            (void) ngx_http_idem_conclude(ctx);

        } else if (!sent && !ctx->local
                   && ctx->state <= NGX_HTTP_IDEM_RUNNING)
        {
            (void) ngx_http_idem_claim_release(claim);

        } else {
            ngx_http_idem_claim_leave(claim, ctx->conf->mode
                                             == NGX_HTTP_IDEM_STRICT);
        }
    }

    ngx_http_idem_claim_detach(claim);
}


void
ngx_http_idem_set_deadline(ngx_http_idem_ctx_t *ctx, ngx_msec_t time)
{
    ngx_http_idem_engine_t  *e = ngx_http_idem_engine();

    if (ctx->timed) {
        return;
    }

    ctx->timed = 1;
    ctx->deadline = ngx_current_msec + time;
    ngx_queue_insert_tail(&e->timed, &ctx->queue);
    ngx_http_idem_tick_start(e);
}


void
ngx_http_idem_clear_deadline(ngx_http_idem_ctx_t *ctx)
{
    if (ctx->timed) {
        ngx_queue_remove(&ctx->queue);
        ctx->timed = 0;
    }
}


void
ngx_http_idem_deadline(ngx_http_idem_ctx_t *ctx)
{
    ngx_connection_t  *c;

    c = ctx->request->connection;

    ngx_http_idem_clear_deadline(ctx);

    if (ctx->in_waiting) {
        ngx_queue_remove(&ctx->waiting);
        ctx->in_waiting = 0;
    }

    if (ctx->state == NGX_HTTP_IDEM_ASKING) {
        ngx_http_idem_away(ctx);

    } else if (ctx->claim) {

        /* FINISH is still in flight, but this client has waited long enough */

        ngx_http_idem_kept(ctx, NULL);
    }

    ngx_http_run_posted_requests(c);
}
