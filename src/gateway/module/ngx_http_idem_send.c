
/*
 * ngx_http_idem_send.c - send commands to the engine, many with one send().
 */


#include "ngx_http_idem.h"


#define NGX_HTTP_IDEM_OUT             (256 * 1024)
#define NGX_HTTP_IDEM_GATHER          64
#define NGX_HTTP_IDEM_LONG            (16 * 1024)


ngx_int_t
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


/* a command without a tag, before all others */

ngx_int_t
ngx_http_idem_tell(ngx_http_idem_engine_t *e, const char *name, ngx_str_t *arg,
    ngx_str_t *second)
{
    size_t                  len;
    struct idem__wire_args  args;

    args.count = args.used = 0;
    idem__wire_add(&args, idem_text(name));

    if (arg) {
        idem__wire_add(&args, (struct idem_bytes) { arg->data, arg->len });
    }

    if (second) {
        idem__wire_add(&args,
                       (struct idem_bytes) { second->data, second->len });
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


/* copy the bytes of a command from this offset on; then it is in flight */

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


/* send short commands together, a long one by itself; out is empty before */

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

        if (op->len >= NGX_HTTP_IDEM_LONG && e->ssl == NULL) {

            /*
             * Copy only what the socket does not take at once.  Not with TLS:
             * it has to get the same bytes again after a short write, although
             * the request may be gone by then.
             */

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
 * While requests keep coming, their BEGINs wait for each other, because the
 * engine reads, decides and answers many together at a far lower cost.  A
 * FINISH is sent at the end of its turn, because a response waits until it is
 * on disk.
 */

void
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


/*
 * Whenever the engine reads from a unix socket, the kernel says that it can be
 * written, although nobody waits for that.  So that the worker does not wake up
 * for it, the event is watched only while something is left to send.
 */

static ngx_int_t
ngx_http_idem_watch(ngx_http_idem_engine_t *e)
{
    ngx_event_t  *wev;

    wev = e->connection->write;

    if (wev->ready && wev->active && e->ssl == NULL
        && (ngx_event_flags & NGX_USE_EPOLL_EVENT))
    {
        return ngx_del_event(wev, NGX_WRITE_EVENT, NGX_CLEAR_EVENT);
    }

    return ngx_handle_write_event(wev, 0);
}


void
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

    if (ngx_http_idem_watch(e) != NGX_OK) {
        ngx_http_idem_disconnect(e, "cannot wait for the socket");
    }
}
