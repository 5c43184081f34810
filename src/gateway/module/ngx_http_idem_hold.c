
/*
 * ngx_http_idem_hold.c - the filters that hold a service's response until its
 * record is durable.
 *
 *   RUNNING --header--> HOLDING --last buffer--> KEEPING --acknowledged-->
 *   PASSING, and the response goes to the client
 *
 * A response that grows over the limit is passed on unheld (STREAMING), except
 * for its last byte.  That byte waits until the response is complete and
 * recorded as done, without its content (KEEPING, PASSING).  If the outcome is
 * unknown, or nothing was sent at all, a problem replaces the response
 * (DROPPING).
 */


#include "ngx_http_idem.h"


static ngx_int_t ngx_http_idem_overflow(ngx_http_idem_ctx_t *ctx);
static ngx_int_t ngx_http_idem_stream(ngx_http_idem_ctx_t *ctx,
    ngx_chain_t *in);


ngx_http_output_header_filter_pt  ngx_http_idem_next_header_filter;
ngx_http_output_body_filter_pt    ngx_http_idem_next_body_filter;


/* send a problem now, instead of whatever was about to be sent */

ngx_int_t
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

    rc = ngx_http_idem_next_header_filter(r);

    if (rc == NGX_ERROR || rc > NGX_OK || r->header_only) {
        return rc;
    }

    return ngx_http_idem_next_body_filter(r, out);
}


ngx_int_t
ngx_http_idem_outcome_unknown(ngx_http_idem_ctx_t *ctx, ngx_uint_t pages)
{
    ngx_http_request_t  *r = ctx->request;

    ngx_str_set(&ctx->verdict, "outcome-unknown");

    ngx_http_idem_claim_leave(ctx->claim,
                              ctx->conf->mode == NGX_HTTP_IDEM_STRICT);

    if (pages && r->error_page && !ctx->no_page) {

        /* the operator has an error page for this */

        ctx->state = NGX_HTTP_IDEM_PASSING;
        return ngx_http_idem_next_header_filter(r);
    }

    return ngx_http_idem_replace(ctx, &ngx_http_idem_unknown, 0, 0);
}


/* pass on the header of a response that is not held */

static ngx_int_t
ngx_http_idem_header_passes(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx)
{
    ngx_http_idem_loc_conf_t  *conf;

    if (ctx && (ngx_http_idem_add_next(ctx) != NGX_OK
                || ngx_http_idem_inject_header(ctx) != NGX_OK
                || (ctx->claim && !ctx->page
                    && ngx_http_idem_add_result(ctx, 1) != NGX_OK)))
    {
        return NGX_ERROR;
    }

    if (ctx && ctx->problem && !r->error_page) {
        return ngx_http_idem_replace(ctx, ctx->problem, 0, 0);
    }

    /* events must be sent at once, not when a buffer is full */

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

    return ngx_http_idem_next_header_filter(r);
}


static ngx_int_t
ngx_http_idem_header_filter(ngx_http_request_t *r)
{
    ngx_http_idem_ctx_t  *ctx;

    if (r != r->main) {
        return ngx_http_idem_next_header_filter(r);
    }

    if (r->upstream
        && r->upstream->headers_in.status_n == NGX_HTTP_NO_CONTENT
        && r->upstream->headers_in.content_length_n > 0)
    {
        /* a 204 must have no body: do not reuse the connection */

        r->upstream->headers_in.connection_close = 1;
    }

    ctx = ngx_http_idem_get_ctx(r);

    if (ctx == NULL || ctx->state == NGX_HTTP_IDEM_PASSING) {
        return ngx_http_idem_header_passes(r, ctx);
    }

    switch (ctx->state) {

    case NGX_HTTP_IDEM_RUNNING:
        return ngx_http_idem_answered(r, ctx);

    case NGX_HTTP_IDEM_HOLDING:

        /* nginx dropped the first response and made another */

        ctx->held = NULL;
        ctx->held_last = &ctx->held;
        ctx->held_tail = NULL;
        ctx->held_size = 0;
        return ngx_http_idem_answered(r, ctx);

    case NGX_HTTP_IDEM_DROPPING:
        return NGX_OK;

    default:
        return ngx_http_idem_next_header_filter(r);
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

            /* we asked for buffers in memory; half a response must not look
             * complete */

            ngx_log_error(NGX_LOG_ALERT, r->connection->log, 0,
                          "idem: a part of the response is not in memory");
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

        rc = ngx_http_idem_next_body_filter(r, out);
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
        return ngx_http_idem_next_body_filter(r, in);
    }

    ctx = ngx_http_get_module_ctx(r, ngx_http_idem_module);

    if (ctx == NULL) {
        return ngx_http_idem_next_body_filter(r, in);
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
        return ngx_http_idem_next_body_filter(r, NULL);

    default:
        return ctx->inject ? ngx_http_idem_inject_body(ctx, in)
                           : ngx_http_idem_next_body_filter(r, in);
    }
}


/* too large to keep: from now on it is sent to the client as it arrives */

static ngx_int_t
ngx_http_idem_overflow(ngx_http_idem_ctx_t *ctx)
{
    ngx_int_t            rc;
    ngx_chain_t         *held;
    ngx_http_request_t  *r = ctx->request;

    ctx->streamed = 1;
    ctx->state = NGX_HTTP_IDEM_STREAMING;

    if (ngx_http_idem_add_next(ctx) != NGX_OK
        || ngx_http_idem_add_result(ctx, 1) != NGX_OK)
    {
        return NGX_ERROR;
    }

    rc = ngx_http_idem_next_header_filter(r);

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


ngx_int_t
ngx_http_idem_hold_init(ngx_conf_t *cf)
{
    ngx_http_idem_next_header_filter = ngx_http_top_header_filter;
    ngx_http_top_header_filter = ngx_http_idem_header_filter;

    ngx_http_idem_next_body_filter = ngx_http_top_body_filter;
    ngx_http_top_body_filter = ngx_http_idem_body_filter;

    return NGX_OK;
}
