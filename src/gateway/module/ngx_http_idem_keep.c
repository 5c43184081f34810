
/*
 * ngx_http_idem_keep.c - keep a complete response until its record is durable,
 * then send it to the client.
 */


#include "ngx_http_idem.h"


static ngx_int_t ngx_http_idem_pass(ngx_http_idem_ctx_t *ctx);
static void ngx_http_idem_hold_handler(ngx_event_t *ev);


/* wait for the engine; the request does not change until then */

static ngx_int_t
ngx_http_idem_wait(ngx_http_idem_ctx_t *ctx)
{
    ngx_http_request_t  *r = ctx->request;

    ctx->state = NGX_HTTP_IDEM_KEEPING;
    r->buffered |= NGX_HTTP_IDEM_BUFFERED;

    ngx_http_idem_set_deadline(ctx, ngx_http_idem_engine()->timeout);

    ctx->hold.handler = ngx_http_idem_hold_handler;
    ctx->hold.data = ctx;
    ctx->hold.log = r->connection->log;

    ngx_post_event(&ctx->hold, &ngx_posted_events);

    return NGX_AGAIN;
}


/* nginx acts as if it waited for a slow client, with a timeout and a check
 * whether the client has left.  But here the module waits, and a client that
 * has sent its whole request may close its side */

static void
ngx_http_idem_hold_handler(ngx_event_t *ev)
{
    ngx_http_idem_ctx_t  *ctx = ev->data;
    ngx_http_request_t   *r;

    r = ctx->request;

    if (ctx->state != NGX_HTTP_IDEM_KEEPING
        || r->write_event_handler == ngx_http_request_empty_handler)
    {
        return;
    }

    r->write_event_handler = ngx_http_request_empty_handler;
    r->read_event_handler = ngx_http_block_reading;

    /* a delay of limit_rate goes on: only its timer ends it */

    if (r->connection->write->timer_set && !r->connection->write->delayed) {
        ngx_del_timer(r->connection->write);
    }
}


/* the response is complete */

ngx_int_t
ngx_http_idem_keep(ngx_http_idem_ctx_t *ctx)
{
    if (!ctx->ended && ngx_http_idem_conclude(ctx) != NGX_OK) {
        return NGX_ERROR;
    }

    /* it may have been sent before, and even be acknowledged */

    if (ctx->claim->state == NGX_HTTP_IDEM_ENDING) {
        return ngx_http_idem_wait(ctx);
    }

    return ngx_http_idem_pass(ctx);
}


/* send the held response, or the problem that replaces it, to the client */

static ngx_int_t
ngx_http_idem_pass(ngx_http_idem_ctx_t *ctx)
{
    ngx_int_t            rc;
    ngx_buf_t           *b;
    ngx_chain_t         *out;
    ngx_http_request_t  *r = ctx->request;

    if (ctx->problem) {
        return ngx_http_idem_replace(ctx, ctx->problem, ctx->problem_status,
                                     ctx->problem
                                     == &ngx_http_idem_unreachable);
    }

    if (ctx->streamed) {
        ctx->state = NGX_HTTP_IDEM_PASSING;

        out = ctx->cut ? NULL : ngx_http_idem_stream_end(ctx);

        return out ? ngx_http_idem_next_body_filter(r, out) : NGX_ERROR;
    }

    if (ngx_http_idem_add_expires(r, ctx->expires) != NGX_OK
        || ngx_http_idem_add_next(ctx) != NGX_OK
        || ngx_http_idem_add_result(ctx, 1) != NGX_OK)
    {
        return NGX_ERROR;
    }

    ctx->state = NGX_HTTP_IDEM_PASSING;

    rc = ngx_http_idem_next_header_filter(r);

    if (rc == NGX_ERROR || rc > NGX_OK || r->header_only) {
        return rc;
    }

    out = ctx->held;

    if (ctx->complete) {
        b = ngx_calloc_buf(r->pool);
        if (b == NULL) {
            return NGX_ERROR;
        }

        b->last_buf = 1;
        b->last_in_chain = 1;

        *ctx->held_last = ngx_alloc_chain_link(r->pool);
        if (*ctx->held_last == NULL) {
            return NGX_ERROR;
        }

        (*ctx->held_last)->buf = b;
        (*ctx->held_last)->next = NULL;
        out = ctx->held;
    }

    return ngx_http_idem_next_body_filter(r, out);
}


/* the service wrote the response to the store itself, in a transaction */

static ngx_int_t
ngx_http_idem_pass_stored(ngx_http_idem_ctx_t *ctx, struct idem_bytes *bytes)
{
    ngx_str_t            stored;
    ngx_http_request_t  *r = ctx->request;

    if (ngx_http_idem_stored(r, ngx_http_idem_engine(), bytes, &stored)
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    ctx->state = NGX_HTTP_IDEM_PASSING;

    return ngx_http_idem_send_replay(r, ctx, &stored, ctx->expires, 0);
}


/* FINISH or RELEASE was acknowledged; NULL: it was not, and the time is up */

void
ngx_http_idem_kept(ngx_http_idem_ctx_t *ctx, ngx_http_idem_reply_t *reply)
{
    ngx_int_t            rc;
    ngx_uint_t           unknown;
    ngx_connection_t    *c;
    ngx_http_request_t  *r = ctx->request;
    enum idem_verdict    verdict;

    c = r->connection;

    verdict = ngx_http_idem_verdict(reply);
    unknown = (!ctx->claim->released
               && (reply == NULL || verdict == IDEM_V_STALE));

    if (unknown && ctx->streamed) {

        /* the header was sent: we can only show that the response is
         * incomplete */

        ngx_str_set(&ctx->verdict, "outcome-unknown");
        ctx->cut = 1;
    }

    if (ctx->state != NGX_HTTP_IDEM_KEEPING) {
        return;
    }

    ngx_http_idem_clear_deadline(ctx);

    if (ctx->hold.posted) {
        ngx_delete_posted_event(&ctx->hold);
    }

    r->buffered &= ~NGX_HTTP_IDEM_BUFFERED;

    if (verdict == IDEM_V_OK || verdict == IDEM_V_FINISHED) {
        ctx->expires = reply->brief.expires;
    }

    if (unknown && !ctx->streamed) {
        ngx_str_set(&ctx->verdict, "outcome-unknown");
        rc = ngx_http_idem_replace(ctx, &ngx_http_idem_unknown, 0, 0);

    } else if (verdict == IDEM_V_FINISHED && !ctx->streamed
               && reply->brief.kind == IDEM_KIND_HTTP
               && reply->brief.bytes.data)
    {
        rc = ngx_http_idem_pass_stored(ctx, &reply->brief.bytes);

    } else {
        rc = ngx_http_idem_pass(ctx);
    }

    ngx_http_finalize_request(r, rc);
    ngx_http_run_posted_requests(c);
}
