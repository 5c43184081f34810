
/*
 * ngx_http_idem_engine.c - the worker's engine: start and stop, what the log
 * says while it is away, and the timers of its commands, requests and claims.
 */


#include "ngx_http_idem.h"
#include <sodium.h>


#define NGX_HTTP_IDEM_TICK            25
#define NGX_HTTP_IDEM_MAX_OPS         65536
#define NGX_HTTP_IDEM_SAY_EVERY       60000


static void ngx_http_idem_sweep_handler(ngx_event_t *ev);
static void ngx_http_idem_tick_handler(ngx_event_t *ev);


ngx_int_t
ngx_http_idem_engine_start(ngx_http_idem_engine_t *e, ngx_cycle_t *cycle)
{
    if (sodium_init() < 0) {
        return NGX_ERROR;
    }

    e->log = cycle->log;

    ngx_queue_init(&e->pending);
    ngx_queue_init(&e->inflight);

    e->flush.handler = ngx_http_idem_flush_handler;
    e->flush.data = e;
    e->flush.log = cycle->log;

    e->reconnect.handler = ngx_http_idem_reconnect_handler;
    e->reconnect.data = e;
    e->reconnect.log = cycle->log;
    e->reconnect.cancelable = 1;

    e->sweep.handler = ngx_http_idem_sweep_handler;
    e->sweep.data = e;
    e->sweep.log = cycle->log;
    e->sweep.cancelable = 1;

    e->tick.handler = ngx_http_idem_tick_handler;
    e->tick.data = e;
    e->tick.log = cycle->log;

    ngx_queue_init(&e->timed);
    ngx_queue_init(&e->claims);

    randombytes_buf(&e->nonce, sizeof(e->nonce));
    ngx_http_idem_digest_init(e);

    e->backoff = NGX_HTTP_IDEM_BACKOFF_MIN;
    e->max_result = IDEM_RESULT_DEFAULT_MAX;
    e->down_since = ngx_current_msec;
    e->free_slot = NGX_CONF_UNSET_UINT;
    e->started = 1;

    ngx_http_idem_connect(e);

    return NGX_OK;
}


void
ngx_http_idem_engine_stop(ngx_http_idem_engine_t *e)
{
    if (e->connection) {
        ngx_http_idem_link_close(e->connection);
        e->connection = NULL;
        e->up = 0;
    }
}


/*
 * A worker tries to connect about once a second.  The log has the first reason
 * of an outage, the next one if it is another (the connection was lost, and
 * then refused), and one line a minute.
 */

void
ngx_http_idem_complain(ngx_http_idem_engine_t *e, ngx_err_t err,
    const char *why)
{
    ngx_uint_t  another;

    another = e->said == 1
              && (err != e->said_err || ngx_strcmp(why, e->said_why) != 0);

    if (e->said && !another
        && ngx_current_msec - e->said_at < NGX_HTTP_IDEM_SAY_EVERY)
    {
        return;
    }

    if (e->said == 0) {
        e->said_first = ngx_current_msec;
    }

    if (e->said < 2) {
        e->said++;
    }

    e->said_at = ngx_current_msec;
    e->said_err = err;
    e->said_why = why;

    ngx_log_error(NGX_LOG_WARN, e->log, err, "idem engine \"%V\": %s", &e->name,
                  why);
}


/* it has answered; a connection alone could be that of a load balancer */

void
ngx_http_idem_works_again(ngx_http_idem_engine_t *e)
{
    if (e->said == 0) {
        return;
    }

    e->said = 0;

    ngx_log_error(NGX_LOG_WARN, e->log, 0,
                  "idem engine \"%V\": connected again after %.1f s", &e->name,
                  (double) (ngx_current_msec - e->said_first) / 1000);
}


/*
 * There has been no connection for longer than a request waits for one.  An
 * engine that is only restarting is back before that.
 */

static ngx_int_t
ngx_http_idem_engine_down(ngx_http_idem_engine_t *e)
{
    return !e->up
           && ngx_current_msec - e->down_since
              >= ngx_min(e->patience, e->timeout);
}


ngx_int_t
ngx_http_idem_engine_away(ngx_http_idem_engine_t *e)
{
    if (!e->started) {
        return 1;
    }

    if (e->ops >= NGX_HTTP_IDEM_MAX_OPS || e->bytes > e->max_buffered) {
        return 1;
    }

    return ngx_http_idem_engine_down(e);
}


/* give up commands that could not be delivered for long, and free buffers after
 * large responses */

static void
ngx_http_idem_sweep_handler(ngx_event_t *ev)
{
    ngx_uint_t               i;
    ngx_http_idem_op_t      *op;
    ngx_http_idem_engine_t  *e = ev->data;

    for (i = 0; i < e->nslots; i++) {
        op = e->slots[i];

        if (((uintptr_t) op & 1)
            || (ngx_msec_int_t) (op->until - ngx_current_msec) > 0)
        {
            continue;
        }

        ngx_log_error(NGX_LOG_ERR, e->log, 0,
                      "idem engine \"%V\": gave up a command after %ui tries",
                      &e->name, op->tries + 1);

        op->handler(op, NULL);
        ngx_http_idem_op_cancel(e, op);
    }

    if (e->in_size > 1024 * 1024 && e->in_pos == e->in_len) {
        ngx_free(e->in);
        e->in = NULL;
        e->in_size = e->in_pos = e->in_len = 0;
    }

    if (e->out_size > 1024 * 1024 && e->out_pos == e->out_len) {
        ngx_free(e->out);
        e->out = NULL;
        e->out_size = e->out_pos = e->out_len = 0;
    }

    if (e->ops || e->in_size || e->out_size) {
        ngx_add_timer(&e->sweep, NGX_HTTP_IDEM_SWEEP);
    }
}


/*
 * Most requests end before any of their time limits, so one timer that checks
 * all of them at intervals costs less than three timers per request.
 */

void
ngx_http_idem_tick_start(ngx_http_idem_engine_t *e)
{
    if (!e->tick.timer_set) {
        ngx_add_timer(&e->tick, NGX_HTTP_IDEM_TICK);
    }
}


static void
ngx_http_idem_tick_handler(ngx_event_t *ev)
{
    ngx_int_t                down;
    ngx_queue_t             *q;
    ngx_http_idem_ctx_t     *ctx;
    ngx_http_idem_claim_t   *claim;
    ngx_http_idem_engine_t  *e = ev->data;

    down = ngx_http_idem_engine_down(e);

again:

    for (q = ngx_queue_head(&e->timed);
         q != ngx_queue_sentinel(&e->timed);
         q = ngx_queue_next(q))
    {
        ctx = ngx_queue_data(q, ngx_http_idem_ctx_t, queue);

        if ((ngx_msec_int_t) (ctx->deadline - ngx_current_msec) <= 0
            || (down && ctx->state == NGX_HTTP_IDEM_ASKING))
        {
            /* this removes it from the queue, and perhaps others, too */

            ngx_http_idem_deadline(ctx);
            goto again;
        }
    }

    for (q = ngx_queue_head(&e->claims);
         q != ngx_queue_sentinel(&e->claims);
         q = ngx_queue_next(q))
    {
        claim = ngx_queue_data(q, ngx_http_idem_claim_t, queue);

        if ((ngx_msec_int_t) (claim->renew_at - ngx_current_msec) <= 0) {
            ngx_http_idem_claim_renew(claim);
        }
    }

    if (!ngx_queue_empty(&e->timed) || !ngx_queue_empty(&e->claims)) {
        ngx_http_idem_tick_start(e);
    }
}
