
/*
 * ngx_http_idem_hold.c - the filters that hold a service's answer until its
 * record is durable.
 *
 *   RUNNING --header--> HOLDING --last buffer--> KEEPING --acknowledged-->
 *   PASSING, and the answer goes to the client
 *
 * An answer that grows over the limit goes on unheld (STREAMING) but for its
 * last byte, which waits until the answer has ended well and is recorded as
 * done, without what it said (KEEPING, PASSING). Where the outcome is unknown,
 * or nothing was sent at all, a problem takes the answer's place (DROPPING).
 */


#include "ngx_http_idem.h"


static void ngx_http_idem_upstream_finalize(ngx_http_request_t *r,
    ngx_int_t rc);
static ngx_int_t ngx_http_idem_keep(ngx_http_idem_ctx_t *ctx);
static ngx_int_t ngx_http_idem_overflow(ngx_http_idem_ctx_t *ctx);
static ngx_int_t ngx_http_idem_stream(ngx_http_idem_ctx_t *ctx,
    ngx_chain_t *in);
static ngx_int_t ngx_http_idem_pass(ngx_http_idem_ctx_t *ctx);
static void ngx_http_idem_hold_handler(ngx_event_t *ev);


static ngx_http_output_header_filter_pt  ngx_http_next_header_filter;
static ngx_http_output_body_filter_pt    ngx_http_next_body_filter;


/* send a problem in place of whatever was about to be sent; now */

static ngx_int_t
ngx_http_idem_replace(ngx_http_idem_ctx_t *ctx,
    const ngx_http_idem_problem_t *problem, ngx_uint_t status,
    ngx_uint_t retry_after)
{
    ngx_int_t            rc;
    ngx_chain_t         *out;
    ngx_http_request_t  *r = ctx->request;

    ctx->state = NGX_HTTP_IDEM_DROPPING;

    out = ngx_http_idem_problem_answer(r, ctx->conf, problem, status, NULL,
                                       retry_after);
    if (out == NULL) {
        return NGX_ERROR;
    }

    rc = ngx_http_next_header_filter(r);

    if (rc == NGX_ERROR || rc > NGX_OK || r->header_only) {
        return rc;
    }

    return ngx_http_next_body_filter(r, out);
}


static ngx_int_t
ngx_http_idem_outcome_unknown(ngx_http_idem_ctx_t *ctx, ngx_uint_t pages)
{
    ngx_http_request_t  *r = ctx->request;

    ngx_str_set(&ctx->verdict, "outcome-unknown");

    ngx_http_idem_claim_leave(ctx->claim,
                              ctx->conf->mode == NGX_HTTP_IDEM_STRICT);

    if (pages && r->error_page && !ctx->no_page) {

        /* the operator has a page for this */

        ctx->state = NGX_HTTP_IDEM_PASSING;
        return ngx_http_next_header_filter(r);
    }

    return ngx_http_idem_replace(ctx, &ngx_http_idem_unknown, 0, 0);
}


static ngx_int_t
ngx_http_idem_releases(ngx_http_idem_loc_conf_t *conf, ngx_uint_t status)
{
    ngx_uint_t              i;
    ngx_http_idem_range_t  *range;

    if (conf->release == NULL) {
        return conf->mode == NGX_HTTP_IDEM_LOOSE ? status >= 400
                                                 : status == 425
                                                   || status == 429;
    }

    range = conf->release->elts;

    for (i = 0; i < conf->release->nelts; i++) {
        if (status >= range[i].first && status <= range[i].last) {
            return 1;
        }
    }

    return 0;
}


/* wait for the engine; the request stays as it is until then */

static ngx_int_t
ngx_http_idem_wait(ngx_http_idem_ctx_t *ctx, ngx_http_idem_state_e state)
{
    ngx_http_request_t  *r = ctx->request;

    ctx->state = state;
    r->buffered |= NGX_HTTP_IDEM_BUFFERED;

    ngx_http_idem_set_deadline(ctx, ngx_http_idem_engine()->timeout);

    if (state == NGX_HTTP_IDEM_KEEPING) {
        ctx->hold.handler = ngx_http_idem_hold_handler;
        ctx->hold.data = ctx;
        ctx->hold.log = r->connection->log;

        ngx_post_event(&ctx->hold, &ngx_posted_events);
    }

    return NGX_AGAIN;
}


/* nginx waits for a client that reads slowly, with a time limit and a look
 * whether it is still there; but it is we who wait, and a client that has sent
 * all it had to say may close its side */

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

    if (r->connection->write->timer_set) {
        ngx_del_timer(r->connection->write);
    }
}


/* does the answer say in one voice where it ends? */

static ngx_int_t
ngx_http_idem_ambiguous(ngx_http_request_t *r)
{
    ngx_uint_t        i, lengths;
    ngx_list_part_t  *part;
    ngx_table_elt_t  *h;

    lengths = 0;

    part = &r->upstream->headers_in.headers.part;
    h = part->elts;

    for (i = 0; /* void */ ; i++) {

        if (i >= part->nelts) {
            if (part->next == NULL) {
                break;
            }

            part = part->next;
            h = part->elts;
            i = 0;
        }

        if ((h[i].key.len == 14
             && ngx_strncasecmp(h[i].key.data, (u_char *) "Content-Length", 14)
                == 0)
            || (h[i].key.len == 17
                && ngx_strncasecmp(h[i].key.data,
                                   (u_char *) "Transfer-Encoding", 17) == 0))
        {
            lengths++;
        }
    }

    return lengths > 1;
}


/* a service that is still there said nothing that counts: no more of it is
 * read, or the client's connection would wait for the end of it */

static void
ngx_http_idem_hang_up(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx)
{
    ngx_http_upstream_t  *u = r->upstream;

    if (u == NULL || u->cleanup == NULL) {
        return;
    }

    ctx->no_page = 1;

    u->upgrade = 0;
    u->headers_in.chunked = 0;
    u->headers_in.content_length_n = 0;
    u->headers_in.connection_close = 1;
}


/*
 * The service succeeded, and what is about to be sent is not its answer.  If it
 * named the answer itself (X-Accel-Redirect), or an error page took its place,
 * it needs to say no more.  Otherwise nginx could not go on with its answer.
 */

static ngx_uint_t
ngx_http_idem_replaced(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx,
    ngx_uint_t status)
{
    ngx_http_upstream_t  *u = r->upstream;

    if (u == NULL || u->cleanup || status >= 400) {
        return 0;
    }

    ctx->elsewhere = (u->headers_in.x_accel_redirect != NULL
                      || status >= NGX_HTTP_SPECIAL_RESPONSE);

    return !ctx->elsewhere && r->headers_out.status >= 400;
}


static ngx_int_t
ngx_http_idem_answered(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx)
{
    ngx_uint_t  sent, answered, status;

    ngx_http_idem_attempts(r, &sent, &answered);

    status = r->headers_out.status;

    if (r->http_version < NGX_HTTP_VERSION_10
        && ctx->http_version >= NGX_HTTP_VERSION_10)
    {
        /* what the service sent was no HTTP; nginx takes it for a body */

        r->http_version = ctx->http_version;
        answered = 0;
    }

    if (answered && r->upstream->cleanup && ngx_http_idem_ambiguous(r)) {
        answered = 0;
        r->keepalive = 0;
    }

    if (answered && r->upstream && r->upstream->headers_in.status_n) {
        status = r->upstream->headers_in.status_n;
    }

    if (answered && ngx_http_idem_replaced(r, ctx, status)) {
        answered = 0;
    }

    if ((sent && !answered) || status < 200 || status > 599) {

        ngx_http_idem_hang_up(r, ctx);
        return ngx_http_idem_outcome_unknown(ctx, 1);
    }

    ngx_http_idem_step("answered");

    if (!sent && !ctx->local && status >= 500) {

        /* nothing reached a service: the next one may try */

        ngx_str_set(&ctx->verdict, "released");

        if (ngx_http_idem_claim_release(ctx->claim) != NGX_OK) {
            return NGX_ERROR;
        }

        ctx->ended = 1;

        if (!r->error_page) {
            ctx->problem = &ngx_http_idem_unreachable;
            ctx->problem_status = status == 504 ? 504 : 502;
        }
    }

    if (ctx->elsewhere && r->headers_out.status >= 400
        && !ngx_http_idem_releases(ctx->conf, status))
    {
        /* the service has done it; what nginx says instead is no outcome */

        if (ngx_http_idem_conclude(ctx) != NGX_OK) {
            return NGX_ERROR;
        }

        ctx->problem = &ngx_http_idem_not_served;
    }

    ctx->state = NGX_HTTP_IDEM_HOLDING;

    r->filter_need_in_memory = 1;
    r->allow_ranges = 0;

    /* the first answer and its replays have the same Location: nginx would
     * make a path absolute, but only for the first */

    if (r->headers_out.location && r->headers_out.location->value.len
        && r->headers_out.location->value.data[0] == '/')
    {
        r->headers_out.location = NULL;
    }

    if (r->upstream && r->upstream->cleanup
        && r->upstream->finalize_request != ngx_http_idem_upstream_finalize)
    {
        ctx->finalize = r->upstream->finalize_request;
        r->upstream->finalize_request = ngx_http_idem_upstream_finalize;
    }

    if (r->header_only) {
        ctx->complete = 1;
        return ngx_http_idem_keep(ctx) == NGX_ERROR ? NGX_ERROR : NGX_OK;
    }

    return NGX_OK;
}


static ngx_int_t
ngx_http_idem_header_filter(ngx_http_request_t *r)
{
    ngx_http_idem_ctx_t       *ctx;
    ngx_http_idem_loc_conf_t  *conf;

    if (r != r->main) {
        return ngx_http_next_header_filter(r);
    }

    if (r->upstream
        && r->upstream->headers_in.status_n == NGX_HTTP_NO_CONTENT
        && r->upstream->headers_in.content_length_n > 0)
    {
        /* bytes that must not come will come: they are nobody's answer */

        r->upstream->headers_in.connection_close = 1;
    }

    ctx = ngx_http_idem_get_ctx(r);

    if (ctx == NULL || ctx->state == NGX_HTTP_IDEM_PASSING) {

        if (ctx && ngx_http_idem_add_next(ctx) != NGX_OK) {
            return NGX_ERROR;
        }

        if (ctx && ctx->problem && !r->error_page) {
            return ngx_http_idem_replace(ctx, ctx->problem, 0, 0);
        }

        /* events are for now, not for when a buffer is full */

        if (r->upstream && r->upstream->buffering
            && r->headers_out.content_type_len >= 17
            && ngx_strncasecmp(r->headers_out.content_type.data,
                               (u_char *) "text/event-stream", 17) == 0)
        {
            conf = ngx_http_get_module_loc_conf(r, ngx_http_idem_module);

            if (conf->unbuffer_events) {
                r->upstream->buffering = 0;
            }
        }

        return ngx_http_next_header_filter(r);
    }

    switch (ctx->state) {

    case NGX_HTTP_IDEM_RUNNING:
        return ngx_http_idem_answered(r, ctx);

    case NGX_HTTP_IDEM_HOLDING:

        /* nginx gave up the first answer and made another */

        ctx->held = NULL;
        ctx->held_last = &ctx->held;
        ctx->held_tail = NULL;
        ctx->held_size = 0;
        return ngx_http_idem_answered(r, ctx);

    case NGX_HTTP_IDEM_DROPPING:
        return NGX_OK;

    default:
        return ngx_http_next_header_filter(r);
    }
}


/* does the answer itself say where it ends, and is this the end? */

static ngx_uint_t
ngx_http_idem_ends_well(ngx_http_idem_ctx_t *ctx)
{
    ngx_http_request_t   *r = ctx->request;
    ngx_http_upstream_t  *u = r->upstream;

    if (ctx->conf->close_delimited || r->method == NGX_HTTP_HEAD
        || ngx_http_idem_releases(ctx->conf, u->headers_in.status_n))
    {
        return 1;
    }

#if (NGX_HTTP_CACHE)

    if (r->cached) {
        return 1;
    }

#endif

    return u->buffering ? u->pipe->upstream_done : u->length == 0;
}


/* the service's side has ended: an answer that was cut is no answer */

static void
ngx_http_idem_upstream_finalize(ngx_http_request_t *r, ngx_int_t rc)
{
    ngx_int_t             good;
    ngx_http_idem_ctx_t  *ctx;

    ctx = ngx_http_idem_get_ctx(r);

    if (ctx == NULL || ctx->finalize == NULL) {
        return;
    }

    good = (rc == NGX_OK && ngx_http_idem_ends_well(ctx));

    ctx->finalize(r, rc);

    if (rc == NGX_DECLINED || ctx->ended
        || (ctx->state != NGX_HTTP_IDEM_HOLDING
            && ctx->state != NGX_HTTP_IDEM_STREAMING))
    {
        return;
    }

    if (good) {

        /* whatever its client does from now on, it is done */

        if (ctx->state == NGX_HTTP_IDEM_STREAMING
            && ngx_http_idem_conclude(ctx) != NGX_OK)
        {
            ctx->cut = 1;
        }

        return;
    }

    if (rc == NGX_OK) {
        ngx_log_error(NGX_LOG_ERR, r->connection->log, 0,
                      "idem: the service's answer has neither Content-Length "
                      "nor another end than that of the connection, so nobody "
                      "knows whether it is whole; have the service say it, "
                      "use \"proxy_http_version 1.1\", or allow it with "
                      "\"idem_close_delimited on\"");

    } else {
        ngx_log_error(NGX_LOG_ERR, r->connection->log, 0,
                      "idem: the service's answer was cut, rc %i", rc);
    }

    ctx->held = NULL;

    if (ctx->state == NGX_HTTP_IDEM_STREAMING) {
        ngx_str_set(&ctx->verdict, "outcome-unknown");
        ngx_http_idem_claim_leave(ctx->claim,
                              ctx->conf->mode == NGX_HTTP_IDEM_STRICT);
        ctx->cut = 1;
        return;
    }

    if (ngx_http_idem_outcome_unknown(ctx, 0) == NGX_ERROR) {
        r->connection->error = 1;
    }
}


static ngx_int_t
ngx_http_idem_hold(ngx_http_idem_ctx_t *ctx, ngx_chain_t *in)
{
    size_t               size;
    ngx_buf_t           *b;
    ngx_chain_t         *cl;
    ngx_http_request_t  *r = ctx->request;

    for ( /* void */ ; in; in = in->next) {
        b = in->buf;

        if (b->last_buf) {
            ctx->complete = 1;
        }

        if (!ngx_buf_in_memory(b)) {
            if (ngx_buf_size(b) == 0) {
                continue;
            }

            /* we asked for memory; half an answer must not look whole */

            ngx_log_error(NGX_LOG_ALERT, r->connection->log, 0,
                          "idem: a part of the answer is not in memory");
            return NGX_ERROR;
        }

        size = b->last - b->pos;

        if (size == 0) {
            continue;
        }

        cl = ctx->held_tail;

        if (cl == NULL || (size_t) (cl->buf->end - cl->buf->last) < size) {
            cl = ngx_alloc_chain_link(r->pool);
            if (cl == NULL) {
                return NGX_ERROR;
            }

            cl->buf = ngx_create_temp_buf(r->pool, ctx->held_size
                                                   ? ngx_max(size, 16384)
                                                   : size);
            if (cl->buf == NULL) {
                return NGX_ERROR;
            }

            cl->next = NULL;
            *ctx->held_last = cl;
            ctx->held_last = &cl->next;
            ctx->held_tail = cl;
        }

        cl->buf->last = ngx_cpymem(cl->buf->last, b->pos, size);
        ctx->held_size += size;
        b->pos = b->last;
    }

    return NGX_OK;
}


static void
ngx_http_idem_drop(ngx_chain_t *in, ngx_http_idem_ctx_t *ctx)
{
    for ( /* void */ ; in; in = in->next) {
        if (in->buf->last_buf) {
            ctx->complete = 1;
        }

        in->buf->pos = in->buf->last;
        in->buf->file_pos = in->buf->file_last;
    }
}


static ngx_int_t
ngx_http_idem_stream(ngx_http_idem_ctx_t *ctx, ngx_chain_t *in)
{
    ngx_int_t            rc;
    ngx_chain_t         *out;
    ngx_http_request_t  *r = ctx->request;

    if (ctx->cut) {
        ngx_http_idem_drop(in, ctx);
        return NGX_ERROR;
    }

    rc = NGX_OK;

    if (!ctx->left) {
        if (ngx_http_idem_stream_take(ctx, in, &out) != NGX_OK) {
            return NGX_ERROR;
        }

        rc = ngx_http_next_body_filter(r, out);
        ngx_http_idem_stream_taken(ctx, out);
    }

    if (rc == NGX_ERROR) {
        ngx_http_idem_stream_left(ctx);
        rc = NGX_OK;
    }

    if (ctx->left) {
        ngx_http_idem_drop(in, ctx);
    }

    return ctx->complete ? ngx_http_idem_keep(ctx) : rc;
}


static ngx_int_t
ngx_http_idem_body_filter(ngx_http_request_t *r, ngx_chain_t *in)
{
    ngx_http_idem_ctx_t  *ctx;

    if (r != r->main) {
        return ngx_http_next_body_filter(r, in);
    }

    ctx = ngx_http_get_module_ctx(r, ngx_http_idem_module);

    if (ctx == NULL) {
        return ngx_http_next_body_filter(r, in);
    }

    switch (ctx->state) {

    case NGX_HTTP_IDEM_HOLDING:

        if (ctx->problem) {
            ngx_http_idem_drop(in, ctx);

        } else if (ngx_http_idem_hold(ctx, in) != NGX_OK) {
            return NGX_ERROR;
        }

        if (ctx->complete) {
            return ngx_http_idem_keep(ctx);
        }

        if (ctx->held_size > ctx->conf->max_answer && !ctx->ended) {
            return ngx_http_idem_overflow(ctx);
        }

        return NGX_OK;

    case NGX_HTTP_IDEM_KEEPING:
        ngx_http_idem_drop(in, ctx);
        return NGX_AGAIN;

    case NGX_HTTP_IDEM_STREAMING:
        return ngx_http_idem_stream(ctx, in);

    case NGX_HTTP_IDEM_DROPPING:
        ngx_http_idem_drop(in, ctx);
        return ngx_http_next_body_filter(r, NULL);

    default:
        return ngx_http_next_body_filter(r, in);
    }
}


/* what becomes of the record of a request that the service has answered */

ngx_int_t
ngx_http_idem_conclude(ngx_http_idem_ctx_t *ctx)
{
    ngx_uint_t           status;
    ngx_http_request_t  *r = ctx->request;

    status = r->headers_out.status;

    if (r->upstream && r->upstream->headers_in.status_n) {
        status = r->upstream->headers_in.status_n;
    }

    ngx_http_idem_step("finishing");

    if (ngx_http_idem_releases(ctx->conf, status)) {
        ngx_str_set(&ctx->verdict, "released");

        if (ngx_http_idem_claim_release(ctx->claim) != NGX_OK) {
            return NGX_ERROR;
        }

    } else if (ngx_http_idem_claim_finish(ctx, status >= 400,
                                          ctx->complete && !ctx->streamed)
               != NGX_OK)
    {
        return NGX_ERROR;
    }

    ctx->ended = 1;

    return NGX_OK;
}


/* the answer is complete */

static ngx_int_t
ngx_http_idem_keep(ngx_http_idem_ctx_t *ctx)
{
    if (!ctx->ended && ngx_http_idem_conclude(ctx) != NGX_OK) {
        return NGX_ERROR;
    }

    /* it may have been told before, and even be acknowledged */

    if (ctx->claim->state == NGX_HTTP_IDEM_ENDING) {
        return ngx_http_idem_wait(ctx, NGX_HTTP_IDEM_KEEPING);
    }

    return ngx_http_idem_pass(ctx);
}


/* more than is kept: from now on the client gets it as it comes */

static ngx_int_t
ngx_http_idem_overflow(ngx_http_idem_ctx_t *ctx)
{
    ngx_int_t            rc;
    ngx_chain_t         *held;
    ngx_http_request_t  *r = ctx->request;

    ctx->streamed = 1;
    ctx->state = NGX_HTTP_IDEM_STREAMING;

    if (ngx_http_idem_add_next(ctx) != NGX_OK) {
        return NGX_ERROR;
    }

    rc = ngx_http_next_header_filter(r);

    if (rc > NGX_OK || r->header_only) {
        return rc;
    }

    if (rc == NGX_ERROR) {
        ngx_http_idem_stream_left(ctx);
    }

    held = ctx->held;
    ctx->held = NULL;

    return ngx_http_idem_stream(ctx, held);
}


/* the held answer, or the problem that took its place, to the client */

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

        return out ? ngx_http_next_body_filter(r, out) : NGX_ERROR;
    }

    if (ngx_http_idem_add_expires(r, ctx->expires) != NGX_OK
        || ngx_http_idem_add_next(ctx) != NGX_OK)
    {
        return NGX_ERROR;
    }

    ctx->state = NGX_HTTP_IDEM_PASSING;

    rc = ngx_http_next_header_filter(r);

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

    return ngx_http_next_body_filter(r, out);
}


/* the service wrote the answer itself, in its own transaction */

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


/* FINISH or RELEASE was acknowledged; NULL: it was not, and time is up */

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

        /* the header is out: all that is left to say is that it is not whole */

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


ngx_int_t
ngx_http_idem_hold_init(ngx_conf_t *cf)
{
    ngx_http_next_header_filter = ngx_http_top_header_filter;
    ngx_http_top_header_filter = ngx_http_idem_header_filter;

    ngx_http_next_body_filter = ngx_http_top_body_filter;
    ngx_http_top_body_filter = ngx_http_idem_body_filter;

    return NGX_OK;
}
