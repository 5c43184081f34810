
/*
 * ngx_http_idem_link.c - the worker's one connection to the engine.
 *
 * Commands are collected in "pending" and sent with one send() when a turn of
 * the event loop has brought no further one.  Each has a TAG, so replies may
 * arrive in any order.  When the connection breaks, commands that may be sent
 * again go back to the head of "pending": BEGIN has a nonce, and FINISH, RENEW
 * and RELEASE have a fence, so sending them twice is the same as once.
 */


#include "ngx_http_idem.h"


#define NGX_HTTP_IDEM_READ            (1024 * 1024)
#define NGX_HTTP_IDEM_SEND            (4 * 1024 * 1024)
#define NGX_HTTP_IDEM_LONGEST         (IDEM_RESULT_MAX + GATEWAY_HEAD_MAX)


static void ngx_http_idem_widen(ngx_http_idem_engine_t *e);
static void ngx_http_idem_established(ngx_http_idem_engine_t *e);
static void ngx_http_idem_write_handler(ngx_event_t *wev);
static void ngx_http_idem_read_handler(ngx_event_t *rev);


void
ngx_http_idem_connect(ngx_http_idem_engine_t *e)
{
    ngx_int_t          rc;
    ngx_log_t          quiet;
    ngx_connection_t  *c;

    /* nginx would log each attempt that fails at once */

    quiet = *e->log;
    quiet.log_level = NGX_LOG_STDERR;

    ngx_memzero(&e->peer, sizeof(ngx_peer_connection_t));

    e->peer.sockaddr = e->addr.sockaddr;
    e->peer.socklen = e->addr.socklen;
    e->peer.name = &e->addr.name;
    e->peer.get = ngx_event_get_peer;
    e->peer.log = &quiet;
    e->peer.log_error = NGX_ERROR_ERR;

    ngx_set_errno(0);
    rc = ngx_event_connect_peer(&e->peer);
    e->peer.log = e->log;

    if (rc == NGX_ERROR || rc == NGX_BUSY || rc == NGX_DECLINED) {
        ngx_http_idem_complain(e, ngx_socket_errno, "cannot connect");

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

    ngx_http_idem_widen(e);

    e->connection = c;
    e->in_pos = e->in_len = 0;
    e->out_pos = e->out_len = 0;

    if (rc == NGX_OK) {
        ngx_http_idem_established(e);
        return;
    }

    /* rc == NGX_AGAIN */

    ngx_add_timer(c->write, 2000);
}


/*
 * A unix socket holds some 200 KB unless told otherwise.  With large responses
 * the engine would find only one or two of them there for each commit.  The
 * kernel cuts the size to its own limit (net.core.wmem_max).
 */

static void
ngx_http_idem_widen(ngx_http_idem_engine_t *e)
{
    int  size = NGX_HTTP_IDEM_SEND;

    if (e->addr.sockaddr->sa_family == AF_UNIX) {
        (void) setsockopt(e->peer.connection->fd, SOL_SOCKET, SO_SNDBUF, &size,
                          sizeof(int));
    }
}


/* the engine listens; TLS comes first, if it is wanted */

static void
ngx_http_idem_established(ngx_http_idem_engine_t *e)
{
    if (e->ssl) {
        ngx_http_idem_tls_start(e);

    } else {
        ngx_http_idem_connected(e);
    }
}


/* commands can be sent */

void
ngx_http_idem_connected(ngx_http_idem_engine_t *e)
{
    ngx_connection_t  *c;

    c = e->connection;

    if (c->write->timer_set) {
        ngx_del_timer(c->write);
    }

    /* a handshake has put its own ones there */

    c->read->handler = ngx_http_idem_read_handler;
    c->write->handler = ngx_http_idem_write_handler;

    e->up = 1;
    e->backoff = NGX_HTTP_IDEM_BACKOFF_MIN;

    if ((e->password.len
         && ngx_http_idem_tell(e, "AUTH",
                               e->user.len ? &e->user : &e->password,
                               e->user.len ? &e->password : NULL)
            != NGX_OK)
        || ngx_http_idem_tell(e, "INFO", NULL, NULL) != NGX_OK)
    {
        ngx_http_idem_disconnect(e, "out of memory");
        return;
    }

    ngx_http_idem_digest_ask(e);

    e->hurry = 1;
    ngx_post_event(&e->flush, &ngx_posted_events);
}


/* commands in flight are not lost: they are sent again, in the same order */

void
ngx_http_idem_disconnect(ngx_http_idem_engine_t *e, const char *why)
{
    ngx_queue_t         *q, *next;
    ngx_http_idem_op_t  *op;

    if (why) {
        ngx_http_idem_complain(e, 0, why);
    }

    if (e->connection) {
        ngx_http_idem_link_close(e->connection);
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

    for (q = ngx_queue_head(&e->pending);
         q != ngx_queue_sentinel(&e->pending);
         q = next)
    {
        next = ngx_queue_next(q);
        op = ngx_queue_data(q, ngx_http_idem_op_t, queue);

        if (op->once) {
            op->handler(op, NULL);
            ngx_http_idem_op_cancel(e, op);
        }
    }

    /* after the reconnect it may be another store */

    e->digest_asked = 0;
    e->digest_known = 0;

    if (!e->reconnect.timer_set && !ngx_terminate) {
        e->reconnect.cancelable = (e->ops == 0);
        ngx_add_timer(&e->reconnect, e->backoff + e->backoff * (ngx_random()
                                                                % 8) / 16);
        e->backoff = ngx_min(e->backoff * 2, NGX_HTTP_IDEM_BACKOFF_MAX);
    }
}


void
ngx_http_idem_reconnect_handler(ngx_event_t *ev)
{
    ngx_http_idem_connect(ev->data);
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

    if (wev->timedout) {
        err = NGX_ETIMEDOUT;

    } else if (getsockopt(c->fd, SOL_SOCKET, SO_ERROR, (void *) &err, &len)
               == -1)
    {
        err = ngx_socket_errno;
    }

    if (err) {
        ngx_http_idem_complain(e, err, "cannot connect");
        ngx_http_idem_disconnect(e, NULL);
        return;
    }

    ngx_http_idem_established(e);
}


/* the number on a line "name:number" of INFO; 0 if there is none */

static ngx_int_t
ngx_http_idem_info_number(struct idem_bytes *info, const char *name)
{
    u_char  *p, *end, *last;
    size_t   len;

    p = (u_char *) info->data;
    last = p + info->len;
    len = ngx_strlen(name);

    while (p < last) {
        end = ngx_strlchr(p, last, CR);

        if (end == NULL) {
            return 0;
        }

        if ((size_t) (end - p) > len && ngx_strncmp(p, name, len) == 0
            && p[len] == ':')
        {
            p += len + 1;
            return ngx_max(ngx_atoi(p, end - p), 0);
        }

        p = end + sizeof(CRLF) - 1;
    }

    return 0;
}


/*
 * The reply to AUTH or INFO.  The engine closes the connection after a command
 * that is too long for it, which hits everybody who waits on it; so no FINISH
 * may be too long.
 */

static void
ngx_http_idem_told(ngx_http_idem_engine_t *e, struct idem__wire_reply *wire)
{
    ngx_int_t                 n;
    struct idem_error         err;
    struct idem__wire_value   info;

    if (wire->error) {
        (void) idem__wire_error(wire, &err);
        ngx_log_error(NGX_LOG_ERR, e->log, 0,
                      "idem engine \"%V\" refused: %s", &e->name, err.text);
        return;
    }

    if (!idem__wire_take(wire, IDEM__WIRE_BYTES, &info)) {
        return;
    }

    ngx_http_idem_works_again(e);

    n = ngx_http_idem_info_number(&info.bytes, "max_result");

    if (n > 0) {
        e->max_result = n;
    }
}


static void
ngx_http_idem_dispatch(ngx_http_idem_engine_t *e, int64_t tag,
    ngx_http_idem_reply_t *reply)
{
    ngx_http_idem_op_t  *op;

    op = ngx_http_idem_op_find(e, tag);

    if (op == NULL || !op->queued) {
        return;
    }

    ngx_queue_remove(&op->queue);
    op->queued = 0;

    op->handler(op, reply);

    /* unless it will be sent again */

    if (!op->again.timer_set) {
        ngx_http_idem_op_cancel(e, op);
    }
}


/* make room for more input, reusing the space of parsed input */

static ngx_int_t
ngx_http_idem_read_room(ngx_http_idem_engine_t *e)
{
    if (e->in_pos && e->in_pos == e->in_len) {
        e->in_pos = e->in_len = 0;
    }

    if (e->in_size - e->in_len >= 16384) {
        return NGX_OK;
    }

    if (e->in_pos) {
        ngx_memmove(e->in, e->in + e->in_pos, e->in_len - e->in_pos);
        e->in_len -= e->in_pos;
        e->in_pos = 0;
    }

    return ngx_http_idem_grow(&e->in, &e->in_size, e->in_len,
                              e->in_len + 65536, e->log);
}


/* one reply of any kind */

static enum idem__wire_got
ngx_http_idem_read_any(ngx_http_idem_engine_t *e, struct idem_bytes bytes)
{
    size_t                   used;
    enum idem__wire_got      got;
    ngx_http_idem_reply_t    reply;
    struct idem__wire_reply  wire;

    got = idem__wire_reply(bytes, NGX_HTTP_IDEM_LONGEST, &wire, &used);

    if (got != IDEM__WIRE_DONE) {
        return got;
    }

    e->in_pos += used;

    if (wire.tagged) {
        reply.status = idem__wire_brief(&wire, &reply.brief, &reply.err);
        ngx_http_idem_dispatch(e, wire.tag, &reply);

    } else {
        ngx_http_idem_told(e, &wire);
    }

    return got;
}


/* handle every complete reply; NGX_ABORT: the connection is closed */

static ngx_int_t
ngx_http_idem_read_replies(ngx_http_idem_engine_t *e, ngx_connection_t *c)
{
    size_t                 used;
    int64_t                tag;
    struct idem_bytes      bytes;
    enum idem__wire_got    got;
    ngx_http_idem_reply_t  reply;

    while (e->in_pos < e->in_len) {
        bytes.data = e->in + e->in_pos;
        bytes.len = e->in_len - e->in_pos;

        if (idem__wire_usual(bytes, NGX_HTTP_IDEM_LONGEST, &tag, &reply.brief,
                             &used))
        {
            e->in_pos += used;
            reply.status = IDEM_OK;
            ngx_http_idem_dispatch(e, tag, &reply);
            got = IDEM__WIRE_DONE;

        } else {
            got = ngx_http_idem_read_any(e, bytes);
        }

        if (got == IDEM__WIRE_MORE) {
            break;
        }

        if (got == IDEM__WIRE_BAD) {
            ngx_http_idem_disconnect(e, "it does not speak our protocol");
            return NGX_ABORT;
        }

        if (e->connection != c) {
            return NGX_ABORT;
        }
    }

    return NGX_OK;
}


static void
ngx_http_idem_read_handler(ngx_event_t *rev)
{
    size_t                   total;
    ssize_t                  n;
    ngx_connection_t        *c = rev->data;
    ngx_http_idem_engine_t  *e = c->data;

    if (!e->up) {
        return;
    }

    for (total = 0; /* void */ ; total += n) {

        /* after many large replies, let the worker's other connections run
         * first */

        if (total > NGX_HTTP_IDEM_READ) {
            ngx_post_event(rev, &ngx_posted_next_events);
            break;
        }

        if (ngx_http_idem_read_room(e) != NGX_OK) {
            ngx_http_idem_disconnect(e, "out of memory");
            return;
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

        if (ngx_http_idem_read_replies(e, c) != NGX_OK) {
            return;
        }
    }

    if (ngx_handle_read_event(rev, 0) != NGX_OK) {
        ngx_http_idem_disconnect(e, "cannot wait for the socket");
    }
}
