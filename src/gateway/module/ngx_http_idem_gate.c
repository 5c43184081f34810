
/*
 * ngx_http_idem_gate.c - may this request run?
 *
 * The handler runs in the PRECONTENT phase, so that all access checks have run
 * before it, for a replay as well as for a first request.  It reads the body,
 * makes key, scope and fingerprint, and sends BEGIN to the engine.  The request
 * goes on to the content phase only if the verdict is "started".
 */


#include "ngx_http_idem.h"


static void ngx_http_idem_body_handler(ngx_http_request_t *r);
static ngx_int_t ngx_http_idem_page(ngx_http_request_t *r,
    ngx_http_idem_loc_conf_t *conf);
static ngx_int_t ngx_http_idem_again(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx);


/*
 * The key and the scope, as far as they are not digests.  NGX_DECLINED: one is
 * missing, and the problem says which; NGX_ABORT: one is wrong.
 */

static ngx_int_t
ngx_http_idem_name(ngx_http_idem_ctx_t *ctx, ngx_str_t *body,
    const ngx_http_idem_problem_t **problem, const char **flaw)
{
    ngx_int_t  rc;

    rc = ngx_http_idem_key(ctx, body, flaw);

    if ((rc == NGX_OK
         || (rc == NGX_DECLINED && (body || !ctx->conf->needs_body)))
        && ngx_http_idem_first_sent(ctx, rc == NGX_OK, problem, flaw)
           != NGX_OK)
    {
        return NGX_ABORT;
    }

    if (rc != NGX_OK) {
        *problem = rc == NGX_ABORT ? &ngx_http_idem_key_malformed
                                   : &ngx_http_idem_key_missing;
        return rc;
    }

    if (ctx->conf->scope == NULL) {
        return NGX_OK;
    }

    rc = ngx_http_idem_scope(ctx->request, ctx->conf, body, &ctx->scope);

    *problem = rc == NGX_ABORT ? &ngx_http_idem_scope_refused
                               : &ngx_http_idem_scope_missing;
    return rc;
}


/* a key without a scope belongs to nobody and counts as no key: the request is
 * refused here, or passes unrecorded (NGX_DECLINED) */

static ngx_int_t
ngx_http_idem_unnamed(ngx_http_idem_ctx_t *ctx,
    const ngx_http_idem_problem_t *problem)
{
    if (ctx->conf->required
        || (problem == &ngx_http_idem_scope_missing
            && ctx->conf->anonymous == 0))
    {
        ngx_http_idem_refuse(ctx, problem, NULL, 0);
        return NGX_DONE;
    }

    if (problem == &ngx_http_idem_scope_missing) {
        ngx_str_set(&ctx->verdict, "no-scope");
    }

    ctx->gated = 0;
    ctx->state = NGX_HTTP_IDEM_PASSING;
    return NGX_DECLINED;
}


/* a request with a gated method, or one that asks in vain to be gated */

static ngx_int_t
ngx_http_idem_gated(ngx_http_request_t *r, ngx_http_idem_loc_conf_t *conf)
{
    ngx_int_t                       rc;
    const char                     *flaw;
    ngx_http_idem_ctx_t            *ctx;
    const ngx_http_idem_problem_t  *problem;

    ctx = ngx_http_idem_create_ctx(r, conf);
    if (ctx == NULL) {
        return NGX_ERROR;        /* no error page, which would not be gated */
    }

    ctx->gated = 1;

    if (!(r->method & conf->methods)) {
        ngx_http_idem_refuse(ctx, &ngx_http_idem_not_repeatable, NULL, 0);
        return NGX_DONE;
    }

    flaw = NULL;
    rc = ngx_http_idem_name(ctx, NULL, &problem, &flaw);

    if (rc == NGX_ERROR) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    if (rc == NGX_ABORT) {
        ngx_http_idem_refuse(ctx, problem, flaw, 0);
        return NGX_DONE;
    }

    if (rc == NGX_DECLINED && !conf->needs_body) {
        return ngx_http_idem_unnamed(ctx, problem);
    }

    if (r->headers_in.content_length_n > (off_t) conf->max_body) {
        ngx_http_idem_refuse(ctx, &ngx_http_idem_body_too_large, NULL, 0);
        return NGX_DONE;
    }

    rc = ngx_http_read_client_request_body(r, ngx_http_idem_body_handler);

    if (rc >= NGX_HTTP_SPECIAL_RESPONSE) {
        return rc;
    }

    ngx_http_finalize_request(r, NGX_DONE);
    return NGX_DONE;
}


ngx_int_t
ngx_http_idem_handler(ngx_http_request_t *r)
{
    ngx_http_idem_ctx_t       *ctx;
    ngx_http_idem_loc_conf_t  *conf;

    if (r != r->main) {
        return NGX_DECLINED;
    }

    ctx = ngx_http_idem_get_ctx(r);

    if (ctx) {
        return ngx_http_idem_again(r, ctx);
    }

    conf = ngx_http_get_module_loc_conf(r, ngx_http_idem_module);

    if (!conf->enable || conf->issues) {
        return NGX_DECLINED;     /* a token is issued without a claim */
    }

    if (ngx_http_idem_strip_upgrade(r) != NGX_OK) {
        return NGX_ERROR;        /* no error page, which would not be gated */
    }

    if ((r->method & conf->methods) || ngx_http_idem_cannot_repeat(r, conf)) {
        return ngx_http_idem_gated(r, conf);
    }

    return ngx_http_idem_wants_page(r, conf) ? ngx_http_idem_page(r, conf)
                                             : NGX_DECLINED;
}


/* get a token for the form that a service renders, if possible */

static ngx_int_t
ngx_http_idem_page(ngx_http_request_t *r, ngx_http_idem_loc_conf_t *conf)
{
    ngx_http_idem_ctx_t  *ctx;

    ctx = ngx_http_idem_create_ctx(r, conf);
    if (ctx == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    if (conf->scope
        && ngx_http_idem_scope(r, conf, NULL, &ctx->scope) != NGX_OK)
    {
        ctx->state = NGX_HTTP_IDEM_PASSING;
        return NGX_DECLINED;
    }

    ctx->page = 1;
    ngx_http_idem_ask(ctx);

    return NGX_DONE;
}


/* an error page does not have the request's method, unless nginx is told to
 * keep it, or it is GET or HEAD */

static ngx_uint_t
ngx_http_idem_is_page(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx)
{
    return (r->method & (NGX_HTTP_GET|NGX_HTTP_HEAD))
           && !(ctx->method & (NGX_HTTP_GET|NGX_HTTP_HEAD));
}


/*
 * nginx could not read the body, or not send idem's own response, and shows the
 * operator's error page.  A service must not get the request in this way: it
 * has no record, or it is a duplicate.
 */

static ngx_int_t
ngx_http_idem_unclaimed(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx)
{
    if (ctx->gated && r->content_handler && !ngx_http_idem_is_page(r, ctx)) {
        ngx_log_error(NGX_LOG_ERR, r->connection->log, 0,
                      "idem: an error page or post_action would have sent a "
                      "gated request to a service without a claim");
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    ctx->state = NGX_HTTP_IDEM_PASSING;

    return NGX_DECLINED;
}


/* a request that has its claim goes to a location, perhaps not to its first */

static ngx_int_t
ngx_http_idem_claimed(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx)
{
    ngx_uint_t  sent, answered;

    if (r->content_handler == NULL) {
        return NGX_DECLINED;
    }

    ctx->local = 0;

    /*
     * An error page or similar.  It must not send a request to a service again,
     * and what another service says about the error is not the outcome.  Nor is
     * a post_action, to which nginx turns if the client has left.
     */

    ngx_http_idem_attempts(r, &sent, &answered);

    if (!sent && !ctx->ended && !r->post_action
        && !ngx_http_idem_is_page(r, ctx))
    {
        if (ngx_http_idem_location_is_safe(r, ctx->method)) {
            return NGX_DECLINED;
        }

        ctx->no_page = 1;

        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    ngx_log_error(NGX_LOG_ERR, r->connection->log, 0,
                  "idem: an error page or post_action would have asked a "
                  "service once more");

    /* the header filter sees that something was sent and reports an unknown
     * outcome */

    ctx->no_page = 1;

    return NGX_HTTP_BAD_GATEWAY;
}


/* the handler runs again: the request was resumed, or redirected inside of
 * nginx */

static ngx_int_t
ngx_http_idem_again(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx)
{
    switch (ctx->state) {

    case NGX_HTTP_IDEM_READING:
    case NGX_HTTP_IDEM_PASSING:
        return ngx_http_idem_unclaimed(r, ctx);

    case NGX_HTTP_IDEM_ASKING:

        if (!r->post_action) {
            return NGX_DONE;
        }

        /* the client left while it waited for the verdict */

        ngx_http_idem_stop_asking(ctx);
        return ngx_http_idem_unclaimed(r, ctx);

    case NGX_HTTP_IDEM_RUNNING:
    case NGX_HTTP_IDEM_HOLDING:
        return ngx_http_idem_claimed(r, ctx);

    default:

        /* it was answered: only a post_action comes here */

        if (r->content_handler == NULL) {
            return NGX_DECLINED;
        }

        ngx_log_error(NGX_LOG_ERR, r->connection->log, 0,
                      "idem: a post_action would have sent a gated request to "
                      "a service once more");

        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }
}


static void
ngx_http_idem_body_handler(ngx_http_request_t *r)
{
    ngx_int_t                       rc;
    ngx_str_t                       body;
    const char                     *flaw;
    ngx_http_idem_ctx_t            *ctx;
    const ngx_http_idem_problem_t  *problem;

    ctx = ngx_http_get_module_ctx(r, ngx_http_idem_module);

    r->preserve_body = 1;

    /* another module may have read the body before us */

    if (ngx_http_idem_body_size(r) > (off_t) ctx->conf->max_body) {
        ngx_http_idem_refuse(ctx, &ngx_http_idem_body_too_large, NULL, 0);
        return;
    }

    if (ctx->id.len == 0 || (ctx->conf->scope && ctx->scope.len == 0)) {
        flaw = NULL;
        problem = NULL;
        rc = ngx_http_idem_body_text(r, &body);

        if (rc == NGX_OK) {
            rc = ngx_http_idem_name(ctx, &body, &problem, &flaw);
        }

        if (rc == NGX_ERROR) {
            ngx_http_finalize_request(r, NGX_HTTP_INTERNAL_SERVER_ERROR);
            return;
        }

        if (rc == NGX_ABORT) {
            ngx_http_idem_refuse(ctx, problem, flaw, 0);
            return;
        }

        if (rc == NGX_DECLINED) {
            if (ngx_http_idem_unnamed(ctx, problem) == NGX_DECLINED) {
                ngx_http_idem_resume(ctx);
            }

            return;
        }
    }

    ngx_http_idem_ask(ctx);
}


/* send a page's request to the service, with a token for its form if there is
 * one */

static void
ngx_http_idem_ask_page(ngx_http_idem_ctx_t *ctx)
{
    ngx_http_request_t  *r = ctx->request;

    static ngx_http_idem_header_name_t  token =
        ngx_http_idem_header_name("Idem-Token", "idem-token");

    ngx_http_idem_clear_deadline(ctx);
    ctx->state = NGX_HTTP_IDEM_PASSING;

    if (ctx->next.len) {
        ngx_str_set(&ctx->verdict, "issued");

        if ((ctx->conf->page_token
             && ngx_http_idem_tell_service(r, &token, &ctx->next)
                != NGX_OK)
            || (ctx->conf->inject.len
                && ngx_http_idem_inject_request(r) != NGX_OK))
        {
            ngx_http_finalize_request(r, NGX_HTTP_INTERNAL_SERVER_ERROR);
            return;
        }
    }

    ngx_http_idem_resume(ctx);
}


/* the scope from a digest; NGX_DONE: the request was answered or goes on */

static ngx_int_t
ngx_http_idem_ask_scope(ngx_http_idem_ctx_t *ctx)
{
    ngx_int_t  rc;

    rc = ngx_http_idem_scope(ctx->request, ctx->conf, NULL, &ctx->scope);

    if (rc != NGX_DECLINED) {
        return rc;
    }

    if (ctx->page) {
        ngx_http_idem_ask_page(ctx);

    } else {
        ngx_http_idem_refuse(ctx, &ngx_http_idem_anonymous, NULL, 0);
    }

    return NGX_DONE;
}


/* the digests that tell this request from others */

static ngx_int_t
ngx_http_idem_ask_digests(ngx_http_idem_ctx_t *ctx)
{
    ngx_uint_t  what;

    what = ctx->conf->fingerprint;

    if ((ctx->by_content || ctx->conf->dedupe)
        && ngx_http_idem_body_digest(ctx, 1, ctx->content) != NGX_OK)
    {
        return NGX_ERROR;
    }

    if (ctx->by_content) {
        ngx_memcpy(ctx->fingerprint, ctx->content, IDEM_FINGERPRINT_LEN);
        return ngx_http_idem_content_id(ctx, &ctx->id);
    }

    if (what == NGX_HTTP_IDEM_FP_OFF) {
        return NGX_OK;
    }

    return ngx_http_idem_body_digest(ctx, what == NGX_HTTP_IDEM_FP_JSON,
                                     ctx->fingerprint);
}


/* ask the engine, first for a token, then for a claim */

static ngx_int_t
ngx_http_idem_ask_engine(ngx_http_idem_ctx_t *ctx)
{
    if ((ctx->page || (ctx->token && ctx->conf->next_token))
        && !ctx->next_asked)
    {
        return ngx_http_idem_next_token(ctx);
    }

    if (ctx->page) {
        ngx_http_idem_ask_page(ctx);
        return NGX_OK;
    }

    if (ngx_http_idem_ask_digests(ctx) != NGX_OK) {
        return NGX_ERROR;
    }

    ctx->claim = ngx_http_idem_claim_create(&ctx->scope, &ctx->id,
                                            ctx->conf->lease);
    if (ctx->claim == NULL) {
        return NGX_ERROR;
    }

    ctx->claim->ctx = ctx;
    ctx->claim->type = ctx->token ? IDEM_TYPE_TOKEN : IDEM_TYPE_REQUEST;

    ngx_http_idem_failpoint("asking");

    ngx_http_idem_claim_begin(ctx);

    return NGX_OK;
}


/* ask the engine; called again when the digest key or a token has arrived */

void
ngx_http_idem_ask(ngx_http_idem_ctx_t *ctx)
{
    ngx_int_t                rc;
    ngx_http_request_t      *r = ctx->request;
    ngx_http_idem_engine_t  *e = ngx_http_idem_engine();

    ctx->state = NGX_HTTP_IDEM_ASKING;

    if (ngx_http_idem_engine_away(e)) {
        ngx_http_idem_away(ctx);
        return;
    }

    r->write_event_handler = ngx_http_request_empty_handler;
    r->read_event_handler = ctx->conf->wait ? ngx_http_test_reading
                                            : ngx_http_block_reading;

    ngx_http_idem_set_deadline(ctx, ctx->conf->wait + e->timeout);

    if (!e->digest_known) {
        ngx_http_idem_digest_await(ctx);
        return;
    }

    rc = ctx->conf->scope ? NGX_OK : ngx_http_idem_ask_scope(ctx);

    if (rc == NGX_OK) {
        rc = ngx_http_idem_ask_engine(ctx);
    }

    if (rc != NGX_OK && rc != NGX_DONE) {
        ngx_http_idem_fail(ctx);
    }
}


void
ngx_http_idem_go_on(ngx_http_idem_ctx_t *ctx)
{
    ngx_connection_t  *c;

    c = ctx->request->connection;

    if (ctx->conf->issues) {
        (void) ngx_http_idem_token_handler(ctx->request);

    } else if (ctx->conf->tells) {
        (void) ngx_http_idem_status_handler(ctx->request);

    } else {
        ngx_http_idem_ask(ctx);
    }

    ngx_http_run_posted_requests(c);
}


void
ngx_http_idem_resume(ngx_http_idem_ctx_t *ctx)
{
    ngx_http_request_t  *r = ctx->request;

    r->read_event_handler = ngx_http_block_reading;
    r->write_event_handler = ngx_http_core_run_phases;
    ngx_http_core_run_phases(r);
}
