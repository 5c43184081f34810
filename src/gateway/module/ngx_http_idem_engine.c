
/*
 * ngx_http_idem_engine.c - the worker's one connection to the engine.
 *
 * Commands gather in "pending" and leave with one send() when a turn of the
 * event loop has brought no further one; each carries a TAG, so answers may
 * come in any order. When the connection breaks, what may be sent again goes
 * back to the head of "pending": BEGIN carries a nonce, FINISH, RENEW and
 * RELEASE a fence, so that twice is the same as once.
 */


#include "ngx_http_idem.h"
#include <sodium.h>


#define NGX_HTTP_IDEM_BACKOFF_MIN     20
#define NGX_HTTP_IDEM_BACKOFF_MAX     1000
#define NGX_HTTP_IDEM_TICK            25
#define NGX_HTTP_IDEM_MAX_OPS         65536
#define NGX_HTTP_IDEM_OUT             (256 * 1024)
#define NGX_HTTP_IDEM_GATHER          64
#define NGX_HTTP_IDEM_LONG            (16 * 1024)
#define NGX_HTTP_IDEM_READ            (1024 * 1024)
#define NGX_HTTP_IDEM_LONGEST         (IDEM_RESULT_MAX + GATEWAY_HEAD_MAX)


static void ngx_http_idem_connect(ngx_http_idem_engine_t *e);
static void ngx_http_idem_connected(ngx_http_idem_engine_t *e);
static void ngx_http_idem_disconnect(ngx_http_idem_engine_t *e,
    const char *why);
static void ngx_http_idem_write_handler(ngx_event_t *wev);
static void ngx_http_idem_read_handler(ngx_event_t *rev);
static void ngx_http_idem_flush_handler(ngx_event_t *ev);
static void ngx_http_idem_flush(ngx_http_idem_engine_t *e);
static void ngx_http_idem_reconnect_handler(ngx_event_t *ev);
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
        ngx_close_connection(e->connection);
        e->connection = NULL;
        e->up = 0;
    }
}


/* for longer than a request would wait for it? then say so at once */

ngx_int_t
ngx_http_idem_engine_away(ngx_http_idem_engine_t *e)
{
    if (!e->started) {
        return 1;
    }

    if (e->ops >= NGX_HTTP_IDEM_MAX_OPS || e->bytes > e->max_buffered) {
        return 1;
    }

    return !e->up && ngx_current_msec - e->down_since > e->timeout;
}


static void
ngx_http_idem_connect(ngx_http_idem_engine_t *e)
{
    ngx_int_t          rc;
    ngx_connection_t  *c;

    ngx_memzero(&e->peer, sizeof(ngx_peer_connection_t));

    e->peer.sockaddr = e->addr.sockaddr;
    e->peer.socklen = e->addr.socklen;
    e->peer.name = &e->addr.name;
    e->peer.get = ngx_event_get_peer;
    e->peer.log = e->log;
    e->peer.log_error = NGX_ERROR_ERR;

    rc = ngx_event_connect_peer(&e->peer);

    if (rc == NGX_ERROR || rc == NGX_BUSY || rc == NGX_DECLINED) {
        if (e->peer.connection) {
            ngx_close_connection(e->peer.connection);
            e->peer.connection = NULL;
        }

        ngx_http_idem_disconnect(e, NULL);
        return;
    }

    c = e->peer.connection;
    c->data = e;
    c->log = e->log;
    c->read->log = c->log;
    c->write->log = c->log;
    c->read->handler = ngx_http_idem_read_handler;
    c->write->handler = ngx_http_idem_write_handler;
    c->read->cancelable = 1;
    c->write->cancelable = 1;

    e->connection = c;
    e->in_pos = e->in_len = 0;
    e->out_pos = e->out_len = 0;

    if (rc == NGX_OK) {
        ngx_http_idem_connected(e);
        return;
    }

    /* rc == NGX_AGAIN */

    ngx_add_timer(c->write, 2000);
}


static ngx_int_t
ngx_http_idem_grow(u_char **buf, size_t *size, size_t len, size_t need,
    ngx_log_t *log)
{
    u_char  *p;
    size_t   n;

    if (need <= *size) {
        return NGX_OK;
    }

    n = *size ? *size : 16384;

    while (n < need) {
        n *= 2;
    }

    p = ngx_alloc(n, log);
    if (p == NULL) {
        return NGX_ERROR;
    }

    if (*buf) {
        ngx_memcpy(p, *buf, len);
        ngx_free(*buf);
    }

    *buf = p;
    *size = n;

    return NGX_OK;
}


/* a command without a tag, in front of all others */

static ngx_int_t
ngx_http_idem_tell(ngx_http_idem_engine_t *e, const char *name, ngx_str_t *arg)
{
    size_t                  len;
    struct idem__wire_args  args;

    args.count = args.used = 0;
    idem__wire_add(&args, idem_text(name));

    if (arg) {
        idem__wire_add(&args, (struct idem_bytes) { arg->data, arg->len });
    }

    len = e->out_len + idem__wire_len(&args);

    if (ngx_http_idem_grow(&e->out, &e->out_size, e->out_len, len, e->log)
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    (void) idem__wire_put(&args, e->out + e->out_len);
    e->out_len = len;

    return NGX_OK;
}


static void
ngx_http_idem_connected(ngx_http_idem_engine_t *e)
{
    if (e->connection->write->timer_set) {
        ngx_del_timer(e->connection->write);
    }

    e->up = 1;
    e->backoff = NGX_HTTP_IDEM_BACKOFF_MIN;

    if ((e->password.len
         && ngx_http_idem_tell(e, "AUTH", &e->password) != NGX_OK)
        || ngx_http_idem_tell(e, "INFO", NULL) != NGX_OK)
    {
        ngx_http_idem_disconnect(e, "out of memory");
        return;
    }

    ngx_http_idem_digest_ask(e);

    e->hurry = 1;
    ngx_post_event(&e->flush, &ngx_posted_events);
}


/* what is in flight is not lost: it goes out again, in its old order */

static void
ngx_http_idem_disconnect(ngx_http_idem_engine_t *e, const char *why)
{
    ngx_queue_t         *q, *next;
    ngx_http_idem_op_t  *op;

    if (why) {
        ngx_log_error(NGX_LOG_WARN, e->log, 0,
                      "idem engine \"%V\": %s", &e->name, why);
    }

    if (e->connection) {
        ngx_close_connection(e->connection);
        e->connection = NULL;
    }

    if (e->up) {
        e->up = 0;
        e->down_since = ngx_current_msec;
    }

    for (q = ngx_queue_last(&e->inflight);
         q != ngx_queue_sentinel(&e->inflight);
         q = next)
    {
        next = ngx_queue_prev(q);
        op = ngx_queue_data(q, ngx_http_idem_op_t, queue);

        ngx_queue_remove(q);

        if (op->resend) {
            op->unsure = 1;
            ngx_queue_insert_head(&e->pending, q);
            continue;
        }

        op->queued = 0;
        op->handler(op, NULL);
        ngx_http_idem_op_cancel(e, op);
    }

    /* the store may be another one when we are back */

    e->digest_asked = 0;
    e->digest_known = 0;

    if (!e->reconnect.timer_set && !ngx_terminate) {
        e->reconnect.cancelable = (e->ops == 0);
        ngx_add_timer(&e->reconnect, e->backoff + e->backoff * (ngx_random()
                                                                % 8) / 16);
        e->backoff = ngx_min(e->backoff * 2, NGX_HTTP_IDEM_BACKOFF_MAX);
    }
}


static void
ngx_http_idem_reconnect_handler(ngx_event_t *ev)
{
    ngx_http_idem_connect(ev->data);
}


/* the bytes of a command from this one on; then it is in flight */

static ngx_int_t
ngx_http_idem_take(ngx_http_idem_engine_t *e, ngx_http_idem_op_t *op,
    size_t from)
{
    size_t  len;

    len = op->len - from;

    if (ngx_http_idem_grow(&e->out, &e->out_size, e->out_len, e->out_len + len,
                           e->log)
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    ngx_memcpy(e->out + e->out_len, op->cmd + from, len);
    e->out_len += len;
    op->sent = 1;

    ngx_queue_remove(&op->queue);
    ngx_queue_insert_tail(&e->inflight, &op->queue);

    return NGX_OK;
}


/* short commands together, a long one by itself; out has nothing yet */

static ngx_int_t
ngx_http_idem_fill(ngx_http_idem_engine_t *e)
{
    ssize_t              n;
    ngx_connection_t    *c;
    ngx_http_idem_op_t  *op;

    c = e->connection;

    while (!ngx_queue_empty(&e->pending) && e->out_len < NGX_HTTP_IDEM_OUT) {
        op = ngx_queue_data(ngx_queue_head(&e->pending), ngx_http_idem_op_t,
                            queue);
        n = 0;

        if (op->len >= NGX_HTTP_IDEM_LONG) {

            /* only what the socket does not take at once is copied */

            if (e->out_len || !c->write->ready) {
                break;
            }

            n = c->send(c, op->cmd, op->len);

            if (n == NGX_ERROR) {
                return NGX_ERROR;
            }

            if (n == NGX_AGAIN) {
                break;
            }
        }

        if (ngx_http_idem_take(e, op, n) != NGX_OK) {
            return NGX_ERROR;
        }
    }

    return NGX_OK;
}


/*
 * While requests keep coming, their BEGINs wait for each other: many that the
 * engine reads, decides and answers together cost it and us far less. A FINISH
 * leaves at the end of its turn, for an answer waits until it is on disk.
 */

static void
ngx_http_idem_flush_handler(ngx_event_t *ev)
{
    ngx_http_idem_engine_t  *e = ev->data;

    if (!e->hurry && e->gathered != e->gathered_before
        && e->gathered < NGX_HTTP_IDEM_GATHER)
    {
        e->gathered_before = e->gathered;
        ngx_post_event(ev, &ngx_posted_next_events);
        return;
    }

    ngx_http_idem_flush(e);
}


static void
ngx_http_idem_flush(ngx_http_idem_engine_t *e)
{
    ssize_t            n;
    ngx_connection_t  *c;

    c = e->connection;

    if (!e->up || c == NULL) {
        return;
    }

    e->gathered = 0;
    e->gathered_before = 0;
    e->hurry = 0;

    for ( ;; ) {
        if (e->out_pos == e->out_len) {
            e->out_pos = e->out_len = 0;

            if (ngx_http_idem_fill(e) != NGX_OK) {
                ngx_http_idem_disconnect(e, "cannot send");
                return;
            }

            if (e->out_len == 0) {
                break;
            }
        }

        if (!c->write->ready) {
            break;
        }

        n = c->send(c, e->out + e->out_pos, e->out_len - e->out_pos);

        if (n == NGX_ERROR) {
            ngx_http_idem_disconnect(e, "connection lost while sending");
            return;
        }

        if (n == NGX_AGAIN) {
            break;
        }

        e->out_pos += n;
    }

    if (ngx_handle_write_event(c->write, 0) != NGX_OK) {
        ngx_http_idem_disconnect(e, "cannot wait for the socket");
    }
}


static void
ngx_http_idem_write_handler(ngx_event_t *wev)
{
    int                      err;
    socklen_t                len;
    ngx_connection_t        *c = wev->data;
    ngx_http_idem_engine_t  *e = c->data;

    if (e->up) {
        ngx_http_idem_flush(e);
        return;
    }

    err = 0;
    len = sizeof(int);

    if (wev->timedout
        || getsockopt(c->fd, SOL_SOCKET, SO_ERROR, (void *) &err, &len) == -1
        || err)
    {
        ngx_http_idem_disconnect(e, "cannot connect");
        return;
    }

    ngx_http_idem_connected(e);
}


/*
 * The reply to AUTH or INFO.  The engine closes the connection on a command
 * that is too long for it, whoever else waits on it: no FINISH may be that.
 */

static void
ngx_http_idem_told(ngx_http_idem_engine_t *e, struct idem__wire_reply *wire)
{
    u_char                   *p, *last;
    ngx_int_t                 n;
    struct idem_error         err;
    struct idem__wire_value   info;

    static const char  name[] = "max_result:";

    if (wire->error) {
        (void) idem__wire_error(wire, &err);
        ngx_log_error(NGX_LOG_ERR, e->log, 0,
                      "idem engine \"%V\" refused: %s", &e->name, err.text);
        return;
    }

    if (!idem__wire_take(wire, IDEM__WIRE_BYTES, &info)) {
        return;
    }

    last = (u_char *) info.bytes.data + info.bytes.len;
    p = ngx_strnstr((u_char *) info.bytes.data, (char *) name, info.bytes.len);

    if (p) {
        p += sizeof(name) - 1;
        last = ngx_strlchr(p, last, CR);
        n = last ? ngx_atoi(p, last - p) : NGX_ERROR;

        if (n > 0) {
            e->max_result = n;
        }
    }
}


static void
ngx_http_idem_dispatch(ngx_http_idem_engine_t *e,
    struct idem__wire_reply *wire)
{
    ngx_http_idem_op_t     *op;
    ngx_http_idem_reply_t   reply;

    if (!wire->tagged) {
        ngx_http_idem_told(e, wire);
        return;
    }

    op = ngx_http_idem_op_find(e, wire->tag);

    if (op == NULL || !op->queued) {
        return;
    }

    ngx_queue_remove(&op->queue);
    op->queued = 0;

    reply.status = idem__wire_brief(wire, &reply.brief, &reply.err);

    op->handler(op, &reply);

    /* unless it is to be sent again */

    if (!op->again.timer_set) {
        ngx_http_idem_op_cancel(e, op);
    }
}


static void
ngx_http_idem_read_handler(ngx_event_t *rev)
{
    size_t                   used, total;
    ssize_t                  n;
    ngx_connection_t        *c = rev->data;
    struct idem_bytes        bytes;
    enum idem__wire_got      got;
    ngx_http_idem_engine_t  *e = c->data;
    struct idem__wire_reply  reply;

    if (!e->up) {
        return;
    }

    total = 0;

    for ( ;; ) {

        /* many large answers: the worker's other connections come between */

        if (total > NGX_HTTP_IDEM_READ) {
            ngx_post_event(rev, &ngx_posted_next_events);
            break;
        }

        if (e->in_pos && e->in_pos == e->in_len) {
            e->in_pos = e->in_len = 0;
        }

        if (e->in_size - e->in_len < 16384) {
            if (e->in_pos) {
                ngx_memmove(e->in, e->in + e->in_pos, e->in_len - e->in_pos);
                e->in_len -= e->in_pos;
                e->in_pos = 0;
            }

            if (ngx_http_idem_grow(&e->in, &e->in_size, e->in_len,
                                   e->in_len + 65536, e->log)
                != NGX_OK)
            {
                ngx_http_idem_disconnect(e, "out of memory");
                return;
            }
        }

        n = c->recv(c, e->in + e->in_len, e->in_size - e->in_len);

        if (n == NGX_AGAIN) {
            break;
        }

        if (n == NGX_ERROR || n == 0) {
            ngx_http_idem_disconnect(e, "connection lost");
            return;
        }

        e->in_len += n;
        total += n;

        while (e->in_pos < e->in_len) {
            bytes.data = e->in + e->in_pos;
            bytes.len = e->in_len - e->in_pos;

            got = idem__wire_reply(bytes, NGX_HTTP_IDEM_LONGEST, &reply,
                                   &used);

            if (got == IDEM__WIRE_MORE) {
                break;
            }

            if (got == IDEM__WIRE_BAD) {
                ngx_http_idem_disconnect(e, "it does not speak our protocol");
                return;
            }

            e->in_pos += used;
            ngx_http_idem_dispatch(e, &reply);

            if (e->connection != c) {
                return;
            }
        }
    }

    if (ngx_handle_read_event(rev, 0) != NGX_OK) {
        ngx_http_idem_disconnect(e, "cannot wait for the socket");
    }
}


/* give up what nobody could deliver for long, and shrink after large answers */

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

        /* a worker that leaves stays until what it owes is acknowledged */

        e->sweep.cancelable = (e->ops == 0);
        ngx_add_timer(&e->sweep, ngx_exiting ? 100 : NGX_HTTP_IDEM_SWEEP);
    }
}


/*
 * Most requests are done before any of their limits: one timer that looks
 * through them now and then costs less than three timers a request.
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
    ngx_queue_t             *q;
    ngx_http_idem_ctx_t     *ctx;
    ngx_http_idem_claim_t   *claim;
    ngx_http_idem_engine_t  *e = ev->data;

again:

    for (q = ngx_queue_head(&e->timed);
         q != ngx_queue_sentinel(&e->timed);
         q = ngx_queue_next(q))
    {
        ctx = ngx_queue_data(q, ngx_http_idem_ctx_t, queue);

        if ((ngx_msec_int_t) (ctx->deadline - ngx_current_msec) <= 0) {

            /* it leaves the queue, and may take others with it */

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
