
/*
 * ngx_http_idem_gate.c - may this request run?
 *
 * The handler stands in the PRECONTENT phase, so that everything that guards
 * access has run, for a replay as for a first request. It reads the body, makes
 * key, scope and fingerprint, asks the engine, and lets the request go on to
 * the content phase only if the answer was "started".
 */


#include "ngx_http_idem.h"


static void ngx_http_idem_cleanup(void *data);
static void ngx_http_idem_body_handler(ngx_http_request_t *r);
static ngx_int_t ngx_http_idem_page(ngx_http_request_t *r,
    ngx_http_idem_loc_conf_t *conf);
static ngx_int_t ngx_http_idem_tell_service(ngx_http_request_t *r,
    const char *name, const char *lowcase, ngx_str_t *value);
static ngx_int_t ngx_http_idem_again(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx);
static void ngx_http_idem_refuse(ngx_http_idem_ctx_t *ctx,
    const ngx_http_idem_problem_t *problem, const char *detail,
    ngx_uint_t retry_after);


/* leave out the request's headers that match; none of this copies a value */

static ngx_int_t
ngx_http_idem_strip(ngx_http_request_t *r,
    ngx_uint_t (*matches)(ngx_table_elt_t *h))
{
    ngx_list_t        kept;
    ngx_uint_t        i, found;
    ngx_list_part_t  *part;
    ngx_table_elt_t  *h, *copy;

    found = 0;

again:

    part = &r->headers_in.headers.part;
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

        if (matches(&h[i])) {
            if (found) {
                continue;
            }

            found = 1;

            if (ngx_list_init(&kept, r->pool, 20, sizeof(ngx_table_elt_t))
                != NGX_OK)
            {
                return NGX_ERROR;
            }

            goto again;
        }

        if (!found) {
            continue;
        }

        copy = ngx_list_push(&kept);
        if (copy == NULL) {
            return NGX_ERROR;
        }

        *copy = h[i];
    }

    if (found) {
        r->headers_in.headers = kept;

        /* the list's own first part moved with it */

        if (r->headers_in.headers.last == &kept.part) {
            r->headers_in.headers.last = &r->headers_in.headers.part;
        }
    }

    return NGX_OK;
}


static ngx_uint_t
ngx_http_idem_is_ours(ngx_table_elt_t *h)
{
    return h->key.len > 4 && ngx_strncmp(h->lowcase_key, "idem", 4) == 0
           && (h->lowcase_key[4] == '-' || h->lowcase_key[4] == '_');
}


static ngx_uint_t
ngx_http_idem_is_upgrade(ngx_table_elt_t *h)
{
    return h->key.len == 7 && ngx_strncmp(h->lowcase_key, "upgrade", 7) == 0;
}


static ngx_uint_t
ngx_http_idem_is_odd_upgrade(ngx_table_elt_t *h)
{
    return ngx_http_idem_is_upgrade(h)
           && (h->value.len != 9
               || ngx_strncasecmp(h->value.data, (u_char *) "websocket", 9)
                  != 0);
}


/* Idem-* tells the service what idem decided: nobody else may say it */

ngx_int_t
ngx_http_idem_strip_handler(ngx_http_request_t *r)
{
    return ngx_http_idem_strip(r, ngx_http_idem_is_ours) == NGX_OK
           ? NGX_DECLINED : NGX_HTTP_INTERNAL_SERVER_ERROR;
}


/*
 * Another protocol is a tunnel to the service, through which requests would
 * pass this gate unseen (h2c).  A WebSocket carries no requests.  nginx only
 * switches protocols if it knows of an Upgrade.
 */

static ngx_int_t
ngx_http_idem_strip_upgrade(ngx_http_request_t *r)
{
    ngx_str_t         name = ngx_string("upgrade");
    ngx_uint_t        i;
    ngx_list_part_t  *part;

    if (r->headers_in.upgrade == NULL) {
        return NGX_OK;
    }

    if (ngx_http_idem_strip(r, ngx_http_idem_is_odd_upgrade) != NGX_OK) {
        return NGX_ERROR;
    }

    i = 0;
    part = &r->headers_in.headers.part;
    r->headers_in.upgrade = ngx_http_idem_next_header(&part, &i, &name);

    return NGX_OK;
}


/*
 * Whoever repeats the request gets the same answer, so it is a whole one: no
 * range of it, and no "not modified", which only this client understands.  The
 * service still sees what the client asked for.
 */

static void
ngx_http_idem_forget_wishes(ngx_http_request_t *r)
{
    r->headers_in.range = NULL;
    r->headers_in.if_range = NULL;
    r->headers_in.if_match = NULL;
    r->headers_in.if_none_match = NULL;
    r->headers_in.if_modified_since = NULL;
    r->headers_in.if_unmodified_since = NULL;
}


ngx_http_idem_ctx_t *
ngx_http_idem_create_ctx(ngx_http_request_t *r, ngx_http_idem_loc_conf_t *conf)
{
    ngx_pool_cleanup_t   *cln;
    ngx_http_idem_ctx_t  *ctx;

    cln = ngx_pool_cleanup_add(r->pool, sizeof(ngx_http_idem_ctx_t));
    if (cln == NULL) {
        return NULL;
    }

    ctx = cln->data;
    ngx_memzero(ctx, sizeof(ngx_http_idem_ctx_t));
    cln->handler = ngx_http_idem_cleanup;

    ctx->request = r;
    ctx->conf = conf;
    ctx->method = r->method;
    ctx->http_version = r->http_version;
    ctx->held_last = &ctx->held;

    ngx_http_set_ctx(r, ctx, ngx_http_idem_module);

    return ctx;
}


/* an internal redirect forgets the context; the pool does not */

ngx_http_idem_ctx_t *
ngx_http_idem_get_ctx(ngx_http_request_t *r)
{
    ngx_pool_cleanup_t   *cln;
    ngx_http_idem_ctx_t  *ctx;

    ctx = ngx_http_get_module_ctx(r, ngx_http_idem_module);

    if (ctx || (!r->internal && !r->filter_finalize)) {
        return ctx;
    }

    for (cln = r->pool->cleanup; cln; cln = cln->next) {
        if (cln->handler == ngx_http_idem_cleanup) {
            ctx = cln->data;
            ngx_http_set_ctx(r, ctx, ngx_http_idem_module);
            return ctx;
        }
    }

    return NULL;
}


/* was anything sent to a service, on any attempt? did one answer? */

void
ngx_http_idem_attempts(ngx_http_request_t *r, ngx_uint_t *sent,
    ngx_uint_t *answered)
{
    ngx_uint_t                  i;
    ngx_http_upstream_state_t  *state;

    *sent = 0;
    *answered = 0;

    if (r->upstream && r->upstream->request_sent) {
        *sent = 1;
    }

    if (r->upstream_states == NULL) {
        return;
    }

    state = r->upstream_states->elts;

    for (i = 0; i < r->upstream_states->nelts; i++) {
        if (state[i].peer == NULL) {
            continue;
        }

        if (state[i].bytes_sent > 0) {
            *sent = 1;
        }

        if (state[i].header_time != (ngx_msec_t) -1) {
            *sent = 1;
            *answered = 1;
        }
    }
}


/* no service has this location: what nginx does with it, it does itself */

ngx_int_t
ngx_http_idem_local_handler(ngx_http_request_t *r)
{
    ngx_http_idem_ctx_t  *ctx;

    ctx = ngx_http_get_module_ctx(r, ngx_http_idem_module);

    if (ctx && r == r->main) {
        ctx->local = 1;
    }

    return NGX_DECLINED;
}


static void
ngx_http_idem_cleanup(void *data)
{
    ngx_uint_t              sent, answered;
    ngx_http_idem_ctx_t    *ctx = data;
    ngx_http_idem_claim_t  *claim;

    ngx_http_idem_clear_deadline(ctx);

    if (ctx->hold.posted) {
        ngx_delete_posted_event(&ctx->hold);
    }

    if (ctx->in_waiting) {
        ngx_queue_remove(&ctx->waiting);
    }

    claim = ctx->claim;

    if (claim == NULL) {
        return;
    }

    if (claim->state == NGX_HTTP_IDEM_EXECUTING) {

        /* it ended in no answer at all */

        ngx_http_idem_attempts(ctx->request, &sent, &answered);

        if (ctx->elsewhere) {
            (void) ngx_http_idem_conclude(ctx);

        } else if (!sent && !ctx->local
                   && ctx->state <= NGX_HTTP_IDEM_RUNNING)
        {
            (void) ngx_http_idem_claim_release(claim);

        } else {
            ngx_http_idem_claim_leave(claim, ctx->conf->mode
                                             == NGX_HTTP_IDEM_STRICT);
        }
    }

    ngx_http_idem_claim_detach(claim);
}


/*
 * The key and the scope, as far as they are not digests.  NGX_DECLINED: the
 * problem says which of them is missing; NGX_ABORT: which of them is wrong.
 */

static ngx_int_t
ngx_http_idem_name(ngx_http_idem_ctx_t *ctx, ngx_str_t *body,
    const ngx_http_idem_problem_t **problem, const char **flaw)
{
    ngx_int_t  rc;

    rc = ngx_http_idem_key(ctx, body, flaw);

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


/* a key without a scope is nobody's, and as good as none; NGX_ABORT: a request
 * without them is refused here, NGX_OK: it passes unrecorded */

static ngx_int_t
ngx_http_idem_unnamed(ngx_http_idem_ctx_t *ctx,
    const ngx_http_idem_problem_t *problem)
{
    if (ctx->conf->required
        || (problem == &ngx_http_idem_scope_missing
            && ctx->conf->anonymous == 0))
    {
        return NGX_ABORT;
    }

    if (problem == &ngx_http_idem_scope_missing) {
        ngx_str_set(&ctx->verdict, "no-scope");
    }

    ctx->state = NGX_HTTP_IDEM_PASSING;
    return NGX_OK;
}


ngx_int_t
ngx_http_idem_handler(ngx_http_request_t *r)
{
    ngx_int_t                       rc;
    const char                     *flaw;
    ngx_http_idem_ctx_t            *ctx;
    ngx_http_idem_loc_conf_t       *conf;
    const ngx_http_idem_problem_t  *problem;

    if (r != r->main) {
        return NGX_DECLINED;
    }

    ctx = ngx_http_idem_get_ctx(r);

    if (ctx) {
        return ngx_http_idem_again(r, ctx);
    }

    conf = ngx_http_get_module_loc_conf(r, ngx_http_idem_module);

    if (!conf->enable) {
        return NGX_DECLINED;
    }

    if (ngx_http_idem_strip_upgrade(r) != NGX_OK) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    if (!(r->method & conf->methods)) {
        return conf->page_token && (r->method & NGX_HTTP_GET)
               ? ngx_http_idem_page(r, conf) : NGX_DECLINED;
    }

    ctx = ngx_http_idem_create_ctx(r, conf);
    if (ctx == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
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
        if (ngx_http_idem_unnamed(ctx, problem) == NGX_ABORT) {
            ngx_http_idem_refuse(ctx, problem, NULL, 0);
            return NGX_DONE;
        }

        return NGX_DECLINED;
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


/* a service that renders a form gets a token for it, where there is one */

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


/* the handler once more: resumed, or redirected inside of nginx */

static ngx_int_t
ngx_http_idem_again(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx)
{
    ngx_uint_t  sent, answered;

    switch (ctx->state) {

    case NGX_HTTP_IDEM_READING:

        /* nginx could not read the body, and the operator has a page for it */

        ctx->state = NGX_HTTP_IDEM_PASSING;
        return NGX_DECLINED;

    case NGX_HTTP_IDEM_ASKING:
        return NGX_DONE;

    case NGX_HTTP_IDEM_RUNNING:
    case NGX_HTTP_IDEM_HOLDING:
        break;

    default:
        return NGX_DECLINED;
    }

    ctx->local = 0;

    if (r->content_handler == NULL) {
        return NGX_DECLINED;
    }

    /*
     * An error page or the like.  It must not ask a service once more, and
     * what another service says about the error is not the outcome.
     */

    ngx_http_idem_attempts(r, &sent, &answered);

    if (!sent && !(r->method & (NGX_HTTP_GET|NGX_HTTP_HEAD)
                   && !(ctx->method & (NGX_HTTP_GET|NGX_HTTP_HEAD))))
    {
        if (ngx_http_idem_location_is_safe(r, ctx->method)) {
            return NGX_DECLINED;
        }

        ctx->no_page = 1;

        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    ngx_log_error(NGX_LOG_ERR, r->connection->log, 0,
                  "idem: an error page would have asked a service once more");

    /* the header filter sees what was sent and says that it is unknown */

    ctx->no_page = 1;

    return NGX_HTTP_BAD_GATEWAY;
}


static void
ngx_http_idem_refuse(ngx_http_idem_ctx_t *ctx,
    const ngx_http_idem_problem_t *problem, const char *detail,
    ngx_uint_t retry_after)
{
    ngx_http_request_t  *r = ctx->request;

    ctx->state = NGX_HTTP_IDEM_PASSING;

    ngx_http_finalize_request(r,
                              ngx_http_idem_send_problem(r, ctx->conf, problem,
                                                         detail, retry_after));
}


static void
ngx_http_idem_resume(ngx_http_idem_ctx_t *ctx)
{
    ngx_http_request_t  *r = ctx->request;

    r->read_event_handler = ngx_http_block_reading;
    r->write_event_handler = ngx_http_core_run_phases;
    ngx_http_core_run_phases(r);
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

    /* another module may have read it before us */

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
            if (ngx_http_idem_unnamed(ctx, problem) == NGX_ABORT) {
                ngx_http_idem_refuse(ctx, problem, NULL, 0);
                return;
            }

            ngx_http_idem_resume(ctx);
            return;
        }
    }

    ngx_http_idem_ask(ctx);
}


/* the engine does not answer: nothing was sent to the service */

static void
ngx_http_idem_away(ngx_http_idem_ctx_t *ctx)
{
    ngx_http_idem_claim_t  *claim;

    ngx_str_set(&ctx->verdict, "away");

    claim = ctx->claim;

    if (claim) {
        ctx->claim = NULL;
        ngx_http_idem_claim_detach(claim);
    }

    if (ctx->page) {
        ctx->state = NGX_HTTP_IDEM_PASSING;
        ngx_http_idem_resume(ctx);
        return;
    }

    if (ctx->conf->fail_open && !ctx->conf->issues && !ctx->token) {
        ngx_str_set(&ctx->verdict, "open");
        ctx->state = NGX_HTTP_IDEM_PASSING;
        ngx_http_idem_resume(ctx);
        return;
    }

    ngx_http_idem_refuse(ctx, &ngx_http_idem_not_executed, NULL, 1);
}


void
ngx_http_idem_set_deadline(ngx_http_idem_ctx_t *ctx, ngx_msec_t time)
{
    ngx_http_idem_engine_t  *e = ngx_http_idem_engine();

    if (ctx->timed) {
        return;
    }

    ctx->timed = 1;
    ctx->deadline = ngx_current_msec + time;
    ngx_queue_insert_tail(&e->timed, &ctx->queue);
    ngx_http_idem_tick_start(e);
}


void
ngx_http_idem_clear_deadline(ngx_http_idem_ctx_t *ctx)
{
    if (ctx->timed) {
        ngx_queue_remove(&ctx->queue);
        ctx->timed = 0;
    }
}


void
ngx_http_idem_deadline(ngx_http_idem_ctx_t *ctx)
{
    ngx_connection_t  *c;

    c = ctx->request->connection;

    ngx_http_idem_clear_deadline(ctx);

    if (ctx->in_waiting) {
        ngx_queue_remove(&ctx->waiting);
        ctx->in_waiting = 0;
    }

    if (ctx->state == NGX_HTTP_IDEM_ASKING) {
        ngx_http_idem_away(ctx);

    } else {

        /* FINISH stays under way, but this client has waited enough */

        ngx_http_idem_kept(ctx, NULL);
    }

    ngx_http_run_posted_requests(c);
}


/* ask the engine; also called again when the digest key has come */

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
        ngx_queue_insert_tail(&e->waiting, &ctx->waiting);
        ctx->in_waiting = 1;
        return;
    }

    if (ctx->conf->scope == NULL) {
        rc = ngx_http_idem_scope(r, ctx->conf, NULL, &ctx->scope);

        if (rc == NGX_DECLINED && ctx->page) {
            ngx_http_idem_clear_deadline(ctx);
            ctx->state = NGX_HTTP_IDEM_PASSING;
            ngx_http_idem_resume(ctx);
            return;
        }

        if (rc == NGX_DECLINED) {
            ngx_http_idem_refuse(ctx, &ngx_http_idem_anonymous, NULL, 0);
            return;
        }

        if (rc != NGX_OK) {
            ngx_http_finalize_request(r, NGX_HTTP_INTERNAL_SERVER_ERROR);
            return;
        }
    }

    if ((ctx->page || (ctx->token && ctx->conf->next_token))
        && !ctx->next_asked)
    {
        if (ngx_http_idem_next_token(ctx) != NGX_OK) {
            ngx_http_finalize_request(r, NGX_HTTP_INTERNAL_SERVER_ERROR);
        }

        return;
    }

    if (ctx->page) {
        ngx_http_idem_clear_deadline(ctx);
        ctx->state = NGX_HTTP_IDEM_PASSING;

        if (ctx->next.len) {
            ngx_str_set(&ctx->verdict, "issued");
            (void) ngx_http_idem_tell_service(r, "Idem-Token", "idem-token",
                                              &ctx->next);
        }

        ngx_http_idem_resume(ctx);
        return;
    }

    if (ctx->conf->fingerprint != NGX_HTTP_IDEM_FP_OFF) {
        if (ngx_http_idem_body_fingerprint(ctx, e->digest_key) != NGX_OK) {
            ngx_http_finalize_request(r, NGX_HTTP_INTERNAL_SERVER_ERROR);
            return;
        }
    }

    ctx->claim = ngx_http_idem_claim_create(&ctx->scope, &ctx->id,
                                            ctx->conf->lease);
    if (ctx->claim == NULL) {
        ngx_http_finalize_request(r, NGX_HTTP_INTERNAL_SERVER_ERROR);
        return;
    }

    ctx->claim->ctx = ctx;
    ctx->claim->type = ctx->token ? IDEM_TYPE_TOKEN : IDEM_TYPE_REQUEST;

    ngx_http_idem_step("asking");

    ngx_http_idem_claim_begin(ctx);
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


static ngx_int_t
ngx_http_idem_tell_service(ngx_http_request_t *r, const char *name,
    const char *lowcase, ngx_str_t *value)
{
    ngx_table_elt_t  *h;

    h = ngx_list_push(&r->headers_in.headers);
    if (h == NULL) {
        return NGX_ERROR;
    }

    h->key.data = (u_char *) name;
    h->key.len = ngx_strlen(name);
    h->lowcase_key = (u_char *) lowcase;
    h->hash = ngx_hash_key(h->lowcase_key, h->key.len);
    h->value = *value;

    return NGX_OK;
}


static void
ngx_http_idem_started(ngx_http_idem_ctx_t *ctx)
{
    ngx_str_t            fence;
    ngx_http_request_t  *r = ctx->request;

    fence.data = ngx_pnalloc(r->pool, NGX_INT64_LEN);

    if (fence.data) {
        fence.len = ngx_sprintf(fence.data, "%uL", ctx->claim->fence)
                    - fence.data;
    }

    r->headers_in.upgrade = NULL;
    ngx_http_idem_forget_wishes(r);

    if (fence.data == NULL
        || ngx_http_idem_strip(r, ngx_http_idem_is_upgrade) != NGX_OK
        || ngx_http_idem_tell_service(r, "Idem-Scope", "idem-scope",
                                      &ctx->scope) != NGX_OK
        || ngx_http_idem_tell_service(r, "Idem-Id", "idem-id", &ctx->id)
           != NGX_OK
        || ngx_http_idem_tell_service(r, "Idem-Fence", "idem-fence", &fence)
           != NGX_OK)
    {
        ngx_http_finalize_request(r, NGX_HTTP_INTERNAL_SERVER_ERROR);
        return;
    }

    ctx->state = NGX_HTTP_IDEM_RUNNING;
    ngx_http_idem_step("started");
    ngx_http_idem_resume(ctx);
}


/* a repeat gets the text that was agreed on, done or still running */

static void
ngx_http_idem_agreed(ngx_http_idem_ctx_t *ctx)
{
    ngx_http_request_t  *r = ctx->request;

    ngx_str_set(&ctx->verdict, "duplicate");
    ctx->state = NGX_HTTP_IDEM_PASSING;

    ngx_http_finalize_request(r, ngx_http_idem_send_fixed(r, ctx->conf));
}


static void
ngx_http_idem_replay(ngx_http_idem_ctx_t *ctx, struct idem__wire_brief *brief)
{
    ngx_int_t            rc;
    ngx_str_t            stored;
    ngx_uint_t           http, kept;
    ngx_http_request_t  *r = ctx->request;

    ctx->state = NGX_HTTP_IDEM_PASSING;
    ctx->expires = brief->expires;

    http = (brief->kind == IDEM_KIND_HTTP);
    kept = (brief->bytes.data != NULL);

    /* no client is to take a failure for "done before" */

    if (brief->state == IDEM_STATE_FAILED
        && (ctx->conf->duplicate != NGX_HTTP_IDEM_REPLAY || !kept || !http))
    {
        ngx_http_idem_refuse(ctx, http ? &ngx_http_idem_failed
                                       : &ngx_http_idem_settled, NULL, 0);
        return;
    }

    switch (ctx->conf->duplicate) {

    case NGX_HTTP_IDEM_REFUSE:
        ngx_str_set(&ctx->verdict, "duplicate");
        ngx_http_idem_refuse(ctx, &ngx_http_idem_duplicate, NULL, 0);
        return;

    case NGX_HTTP_IDEM_FIXED:
        ngx_http_idem_agreed(ctx);
        return;
    }

    if (!kept) {
        ngx_http_idem_refuse(ctx, &ngx_http_idem_not_replayable, NULL, 0);
        return;
    }

    if (ngx_http_idem_stored(r, ngx_http_idem_engine(), &brief->bytes, &stored)
        != NGX_OK)
    {
        ngx_http_finalize_request(r, NGX_HTTP_INTERNAL_SERVER_ERROR);
        return;
    }

    rc = http ? ngx_http_idem_send_replay(r, ctx, &stored, ctx->expires, 1)
              : ngx_http_idem_send_raw(r, &stored, ctx->expires);

    ngx_http_finalize_request(r, rc);
}


/* another request with this key runs or has run: the agreed text, or this */

static void
ngx_http_idem_repeated(ngx_http_idem_ctx_t *ctx,
    const ngx_http_idem_problem_t *problem, ngx_uint_t retry_after)
{
    if (ctx->conf->duplicate == NGX_HTTP_IDEM_FIXED) {
        ngx_http_idem_agreed(ctx);

    } else {
        ngx_http_idem_refuse(ctx, problem, NULL, retry_after);
    }
}


/* what the engine said to BEGIN; NULL: it said nothing */

void
ngx_http_idem_begun(ngx_http_idem_ctx_t *ctx, ngx_http_idem_reply_t *reply)
{
    ngx_connection_t   *c;
    enum idem_verdict   verdict;

    c = ctx->request->connection;

    ngx_http_idem_clear_deadline(ctx);

    verdict = ngx_http_idem_verdict(reply);

    if (verdict != IDEM__VERDICT_COUNT) {
        ctx->verdict.data = (u_char *) idem_verdict_name(verdict);
        ctx->verdict.len = ngx_strlen(ctx->verdict.data);

    } else if (reply) {
        ngx_log_error(NGX_LOG_ERR, c->log, 0, "idem engine: %s",
                      reply->err.text);
    }

    switch (verdict) {

    case IDEM_V_STARTED:
        ngx_http_idem_started(ctx);
        break;

    case IDEM_V_REPLAY:
        ngx_http_idem_replay(ctx, &reply->brief);
        break;

    case IDEM_V_BUSY:
        ngx_http_idem_repeated(ctx, &ngx_http_idem_in_progress,
                         ngx_max((reply->brief.retry_after_ms + 999) / 1000,
                                 1));
        break;

    case IDEM_V_DOUBT:
        ngx_http_idem_refuse(ctx, &ngx_http_idem_doubt, NULL, 0);
        break;

    case IDEM_V_MISMATCH:
        ngx_http_idem_refuse(ctx, &ngx_http_idem_mismatch, NULL, 0);
        break;

    case IDEM_V_DUPLICATE:
        ngx_http_idem_repeated(ctx, &ngx_http_idem_duplicate, 0);
        break;

    case IDEM_V_UNKNOWN:
        ngx_http_idem_refuse(ctx, &ngx_http_idem_token_unknown, NULL, 0);
        break;

    default:
        ngx_http_idem_away(ctx);
    }

    ngx_http_run_posted_requests(c);
}
