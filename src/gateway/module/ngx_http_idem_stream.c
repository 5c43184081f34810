
/*
 * ngx_http_idem_stream.c - a response that is too large to be held.
 *
 * It is sent to the client as it arrives, except for its last byte, which
 * waits until the response is known to be complete and its record is durable.
 * So no client gets a complete response that is not recorded, and a response
 * that the service did not finish is incomplete for its client, too.
 */


#include "ngx_http_idem.h"


static ngx_chain_t *
ngx_http_idem_stream_byte(ngx_http_idem_ctx_t *ctx)
{
    ngx_buf_t           *b;
    ngx_chain_t         *cl;
    ngx_http_request_t  *r = ctx->request;

    cl = ngx_chain_get_free_buf(r->pool, &ctx->free);
    if (cl == NULL) {
        return NULL;
    }

    b = cl->buf;

    if (b->start == NULL) {
        b->start = ngx_pnalloc(r->pool, 1);
        if (b->start == NULL) {
            return NULL;
        }

        b->end = b->start + 1;
        b->temporary = 1;
        b->tag = (ngx_buf_tag_t) &ngx_http_idem_module;
    }

    b->pos = b->start;
    b->last = b->end;
    *b->pos = ctx->tail;

    cl->next = NULL;

    return cl;
}


/* what may be sent now: the byte that waited and all of this but its last
 * byte */

ngx_int_t
ngx_http_idem_stream_take(ngx_http_idem_ctx_t *ctx, ngx_chain_t *in,
    ngx_chain_t **out)
{
    ngx_buf_t           *b, *end;
    ngx_chain_t         *cl, **last;
    ngx_http_request_t  *r = ctx->request;

    *out = NULL;
    last = out;
    end = NULL;

    for (cl = in; cl; cl = cl->next) {
        if (ngx_buf_size(cl->buf)) {
            end = cl->buf;
        }
    }

    if (end && ctx->has_tail) {
        cl = ngx_http_idem_stream_byte(ctx);
        if (cl == NULL) {
            return NGX_ERROR;
        }

        *last = cl;
        last = &cl->next;
    }

    for ( /* void */ ; in; in = in->next) {
        b = in->buf;

        if (b->last_buf) {
            ctx->complete = 1;
            b->last_buf = 0;
            b->last_in_chain = 0;
        }

        if (!ngx_buf_in_memory(b) && ngx_buf_size(b)) {
            ngx_log_error(NGX_LOG_ALERT, r->connection->log, 0,
                          "idem: a part of the response is not in memory");
            return NGX_ERROR;
        }

        if (b == end) {
            ctx->tail = *--b->last;
            ctx->has_tail = 1;
            b->in_file = 0;      /* sendfile() would send the byte, too */
        }

        if (ngx_buf_size(b) == 0 && !ngx_buf_special(b)) {
            continue;
        }

        cl = ngx_alloc_chain_link(r->pool);
        if (cl == NULL) {
            return NGX_ERROR;
        }

        cl->buf = b;
        cl->next = NULL;
        *last = cl;
        last = &cl->next;
    }

    return NGX_OK;
}


/* the next filter has it or has sent it; reuse what was sent */

void
ngx_http_idem_stream_taken(ngx_http_idem_ctx_t *ctx, ngx_chain_t *out)
{
    ngx_chain_t  *cl, **last;

    for (last = &ctx->busy; *last; last = &(*last)->next) { /* void */ }

    *last = out;
    last = &ctx->busy;

    while (*last) {
        cl = *last;

        if (ngx_buf_size(cl->buf)) {
            last = &cl->next;
            continue;
        }

        *last = cl->next;

        if (cl->buf->tag == (ngx_buf_tag_t) &ngx_http_idem_module) {
            cl->next = ctx->free;
            ctx->free = cl;

        } else {
            ngx_free_chain(ctx->request->pool, cl);
        }
    }
}


/*
 * The client has left, but the service's response must be read to its end:
 * mark the unsent buffers as sent, or there would be no buffer to read into.
 */

void
ngx_http_idem_stream_left(ngx_http_idem_ctx_t *ctx)
{
    ngx_chain_t  *cl;

    for (cl = ctx->busy; cl; cl = cl->next) {
        cl->buf->pos = cl->buf->last;
    }

    ctx->left = 1;
}


/* send the byte that waited, and the end */

ngx_chain_t *
ngx_http_idem_stream_end(ngx_http_idem_ctx_t *ctx)
{
    ngx_buf_t           *b;
    ngx_chain_t         *out, *cl;
    ngx_http_request_t  *r = ctx->request;

    b = ngx_calloc_buf(r->pool);
    cl = ngx_alloc_chain_link(r->pool);

    if (b == NULL || cl == NULL) {
        return NULL;
    }

    b->last_buf = 1;
    b->last_in_chain = 1;

    cl->buf = b;
    cl->next = NULL;

    if (!ctx->has_tail) {
        return cl;
    }

    out = ngx_http_idem_stream_byte(ctx);
    if (out == NULL) {
        return NULL;
    }

    out->next = cl;

    return out;
}
