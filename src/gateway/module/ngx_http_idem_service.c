
/*
 * ngx_http_idem_service.c - what the service's response, or the lack of one,
 * means for the record: is it done, free for the next request, or unknown?
 */


#include "ngx_http_idem.h"


static void ngx_http_idem_upstream_finalize(ngx_http_request_t *r,
    ngx_int_t rc);


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


/* is it ambiguous where the response ends? */

static ngx_int_t
ngx_http_idem_ambiguous(ngx_http_request_t *r)
{
    ngx_uint_t        i, lengths;
    ngx_list_part_t  *part;
    ngx_table_elt_t  *h;

    i = 0;
    lengths = 0;
    part = &r->upstream->headers_in.headers.part;

    while ((h = ngx_http_idem_next_header(&part, &i, NULL)) != NULL) {

        if ((h->key.len == 14
             && ngx_strncasecmp(h->key.data, (u_char *) "Content-Length", 14)
                == 0)
            || (h->key.len == 17
                && ngx_strncasecmp(h->key.data,
                                   (u_char *) "Transfer-Encoding", 17)
                   == 0))
        {
            lengths++;
        }
    }

    return lengths > 1;
}


/* the service is still connected but its response does not count: stop reading
 * it, or the client's connection would wait for its end */

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
 * The service succeeded, but another response is about to be sent.  If the
 * service named that response itself (X-Accel-Redirect), or an error page
 * replaces its response, the request is done.  Otherwise nginx could not
 * process the service's response.
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


/* did the service respond? then *status is its status */

static ngx_uint_t
ngx_http_idem_has_answered(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx,
    ngx_uint_t *sent, ngx_uint_t *status)
{
    ngx_uint_t  answered;

    ngx_http_idem_attempts(r, sent, &answered);

    *status = r->headers_out.status;

    if (r->http_version < NGX_HTTP_VERSION_10
        && ctx->http_version >= NGX_HTTP_VERSION_10)
    {
        /* the service did not send HTTP; nginx takes it for a body */

        r->http_version = ctx->http_version;
        return 0;
    }

    if (answered && r->upstream->cleanup && ngx_http_idem_ambiguous(r)) {
        r->keepalive = 0;
        return 0;
    }

    if (answered && r->upstream && r->upstream->headers_in.status_n) {
        *status = r->upstream->headers_in.status_n;
    }

    return answered && !ngx_http_idem_replaced(r, ctx, *status);
}


/* nothing reached a service: the next request may try */

static ngx_int_t
ngx_http_idem_unreached(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx,
    ngx_uint_t status)
{
    ngx_str_set(&ctx->verdict, "released");

    if (ngx_http_idem_claim_release(ctx->claim) != NGX_OK) {
        return NGX_ERROR;
    }

    ctx->ended = 1;

    if (!r->error_page) {
        ctx->problem = &ngx_http_idem_unreachable;
        ctx->problem_status = status == 504 ? 504 : 502;
    }

    return NGX_OK;
}


/* from now on the response is collected, up to its end */

static ngx_int_t
ngx_http_idem_hold_answer(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx)
{
    ctx->state = NGX_HTTP_IDEM_HOLDING;

    r->filter_need_in_memory = 1;
    r->allow_ranges = 0;

    /* the first response and its replays must have the same Location: nginx
     * would make a path absolute, but only in the first */

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


/* the header filter: a response is about to be sent to the client */

ngx_int_t
ngx_http_idem_answered(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx)
{
    ngx_uint_t  sent, answered, status;

    answered = ngx_http_idem_has_answered(r, ctx, &sent, &status);

    if ((sent && !answered) || status < 200 || status > 599) {

        ngx_http_idem_hang_up(r, ctx);
        return ngx_http_idem_outcome_unknown(ctx, 1);
    }

    ngx_http_idem_failpoint("answered");

    /* an error page may have any status, and nginx does not always mark it */

    if (!sent && !ctx->local && !ctx->ended
        && (status >= 500 || r->error_page || r->upstream)
        && ngx_http_idem_unreached(r, ctx, status) != NGX_OK)
    {
        return NGX_ERROR;
    }

    if (ctx->elsewhere && r->headers_out.status >= 400
        && !ngx_http_idem_releases(ctx->conf, status))
    {
        /*
         * the service has executed it; nginx's own response is not the outcome
         */

        if (ngx_http_idem_conclude(ctx) != NGX_OK) {
            return NGX_ERROR;
        }

        ctx->problem = &ngx_http_idem_not_served;
    }

    return ngx_http_idem_hold_answer(r, ctx);
}


/* does the response itself say where it ends, and is this the end? */

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


/* the service's side has ended; a response that was cut does not count */

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

        /* it is done, whatever its client does from now on */

        if (ctx->state == NGX_HTTP_IDEM_STREAMING
            && ngx_http_idem_conclude(ctx) != NGX_OK)
        {
            ctx->cut = 1;
        }

        return;
    }

    if (rc == NGX_OK) {
        ngx_log_error(NGX_LOG_ERR, r->connection->log, 0,
                      "idem: the service's response has no Content-Length and "
                      "ends with the connection, so it may be incomplete; "
                      "make the service send a length, use "
                      "\"proxy_http_version 1.1\", or accept such responses "
                      "with \"idem_close_delimited on\" (idem gateway: "
                      "--close-delimited)");

    } else {
        ngx_log_error(NGX_LOG_ERR, r->connection->log, 0,
                      "idem: the service's response was cut, rc %i", rc);
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


/* decide about the record of a request to which the service has responded */

ngx_int_t
ngx_http_idem_conclude(ngx_http_idem_ctx_t *ctx)
{
    ngx_uint_t           status;
    ngx_http_request_t  *r = ctx->request;

    status = r->headers_out.status;

    if (r->upstream && r->upstream->headers_in.status_n) {
        status = r->upstream->headers_in.status_n;
    }

    ngx_http_idem_failpoint("finishing");

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
