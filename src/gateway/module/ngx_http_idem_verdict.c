
/*
 * ngx_http_idem_verdict.c - act on the engine's verdict on BEGIN: let the
 * request go on, or answer it here.
 */


#include "ngx_http_idem.h"


void
ngx_http_idem_refuse(ngx_http_idem_ctx_t *ctx,
    const ngx_http_idem_problem_t *problem, const char *detail,
    ngx_uint_t retry_after)
{
    ngx_http_request_t  *r = ctx->request;

    ngx_http_idem_clear_deadline(ctx);
    ctx->state = NGX_HTTP_IDEM_PASSING;

    ngx_http_finalize_request(r,
                              ngx_http_idem_send_problem(r, ctx->conf, problem,
                                                         detail, retry_after));
}


/* nothing was sent to the service: release what was claimed */

static void
ngx_http_idem_drop_claim(ngx_http_idem_ctx_t *ctx)
{
    ngx_http_idem_claim_t  *claim;

    claim = ctx->claim;

    if (claim) {
        if (claim->state == NGX_HTTP_IDEM_EXECUTING) {
            (void) ngx_http_idem_claim_release(claim);
        }

        ctx->claim = NULL;
        ngx_http_idem_claim_detach(claim);
    }
}


/* nobody waits for the engine's verdict any more */

void
ngx_http_idem_stop_asking(ngx_http_idem_ctx_t *ctx)
{
    ngx_http_idem_clear_deadline(ctx);

    if (ctx->in_waiting) {
        ngx_queue_remove(&ctx->waiting);
        ctx->in_waiting = 0;
    }

    ngx_http_idem_drop_claim(ctx);
}


/* there is no memory, and nothing was sent to the service; an error page that
 * the operator has for this can be shown */

void
ngx_http_idem_fail(ngx_http_idem_ctx_t *ctx)
{
    ngx_http_idem_clear_deadline(ctx);
    ngx_http_idem_drop_claim(ctx);
    ctx->state = NGX_HTTP_IDEM_PASSING;

    ngx_http_finalize_request(ctx->request, NGX_HTTP_INTERNAL_SERVER_ERROR);
}


/* only a request for the service has a key that may have been used before */

void
ngx_http_idem_refuse_away(ngx_http_idem_ctx_t *ctx)
{
    const char  *detail;

    detail = ctx->conf->issues ? "idem could not store a token. Ask for one "
                                 "again."
             : ctx->conf->tells ? "idem could not look up the key. Ask again."
             : NULL;

    ngx_http_idem_refuse(ctx, &ngx_http_idem_not_executed, detail, 1);
}


/* the engine does not reply: nothing was sent to the service */

void
ngx_http_idem_away(ngx_http_idem_ctx_t *ctx)
{
    ngx_str_set(&ctx->verdict, "away");

    ngx_http_idem_clear_deadline(ctx);
    ngx_http_idem_drop_claim(ctx);

    if (ctx->page) {
        ctx->state = NGX_HTTP_IDEM_PASSING;
        ngx_http_idem_resume(ctx);
        return;
    }

    if (ctx->conf->fail_open && !ctx->conf->issues && !ctx->conf->tells
        && !ctx->token)
    {
        ngx_str_set(&ctx->verdict, "open");
        ctx->gated = 0;
        ctx->state = NGX_HTTP_IDEM_PASSING;
        ngx_http_idem_resume(ctx);
        return;
    }

    ngx_http_idem_refuse_away(ctx);
}


/*
 * The engine gave no verdict, or did not reply.  A caller over its quota is
 * refused even if requests may pass while the engine is unavailable.
 */

void
ngx_http_idem_no_verdict(ngx_http_idem_ctx_t *ctx,
    const ngx_http_idem_reply_t *reply)
{
    ngx_uint_t  retry;

    retry = reply ? idem__quota_retry_s(reply->err.text) : 0;

    if (retry == 0) {
        ngx_http_idem_away(ctx);
        return;
    }

    ngx_str_set(&ctx->verdict, "over-quota");

    ngx_http_idem_drop_claim(ctx);
    ngx_http_idem_refuse(ctx, &ngx_http_idem_over_quota, reply->err.text,
                         retry);
}


void
ngx_http_idem_started(ngx_http_idem_ctx_t *ctx)
{
    ngx_str_t            fence;
    ngx_http_request_t  *r = ctx->request;

    static ngx_http_idem_header_name_t  names[] = {
        ngx_http_idem_header_name("Idem-Scope", "idem-scope"),
        ngx_http_idem_header_name("Idem-Id", "idem-id"),
        ngx_http_idem_header_name("Idem-Fence", "idem-fence")
    };

    fence.data = ngx_pnalloc(r->pool, IDEM__WIRE_DIGITS_MAX);

    if (fence.data) {
        fence.len = idem__wire_digits(ctx->claim->fence, (char *) fence.data);
    }

    if (fence.data == NULL
        || ngx_http_idem_forget_wishes(r) != NGX_OK
        || ngx_http_idem_tell_service(r, &names[0], &ctx->scope) != NGX_OK
        || ngx_http_idem_tell_service(r, &names[1], &ctx->id) != NGX_OK
        || ngx_http_idem_tell_service(r, &names[2], &fence) != NGX_OK)
    {
        ngx_http_idem_fail(ctx);
        return;
    }

    ctx->state = NGX_HTTP_IDEM_RUNNING;
    ngx_http_idem_failpoint("started");
    ngx_http_idem_resume(ctx);
}


/* a duplicate gets the configured text, whether the first is done or running */

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

    /* no client may take a failure for "done before" */

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


/* another request with this key runs or has run: send the configured text, or
 * this */

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


/* the verdict for the log and the figures */

static void
ngx_http_idem_note_verdict(ngx_http_idem_ctx_t *ctx,
    const ngx_http_idem_reply_t *reply, enum idem_verdict verdict)
{
    if (verdict != IDEM__VERDICT_COUNT) {
        ctx->verdict.data = (u_char *) idem_verdict_name(verdict);
        ctx->verdict.len = ngx_strlen(ctx->verdict.data);

    } else if (reply) {
        ngx_log_error(NGX_LOG_ERR, ctx->request->connection->log, 0, "idem engine: %s",
                      reply->err.text);
    }

    if (ctx->asked && verdict != IDEM_V_STARTED
        && verdict != IDEM__VERDICT_COUNT)
    {
        ngx_http_idem_figures_time(ctx->conf->route, IDEM__FIGURES_HOLD,
                                   ngx_current_msec - ctx->asked);
    }
}


/* the engine's reply to BEGIN; NULL: there was none */

void
ngx_http_idem_begun(ngx_http_idem_ctx_t *ctx, ngx_http_idem_reply_t *reply)
{
    ngx_connection_t   *c;
    enum idem_verdict   verdict;

    c = ctx->request->connection;

    ngx_http_idem_clear_deadline(ctx);

    verdict = ngx_http_idem_verdict(reply);

    ngx_http_idem_note_verdict(ctx, reply, verdict);

    switch (verdict) {

    case IDEM_V_STARTED:
        if (ctx->conf->dedupe && !ctx->by_content) {
            ngx_http_idem_dedupe(ctx);

        } else {
            ngx_http_idem_started(ctx);
        }

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
        ngx_http_idem_refuse(ctx, ctx->by_content ? &ngx_http_idem_same_content
                                                  : &ngx_http_idem_mismatch,
                             NULL, 0);
        break;

    case IDEM_V_DUPLICATE:
        ngx_http_idem_repeated(ctx, &ngx_http_idem_duplicate, 0);
        break;

    case IDEM_V_UNKNOWN:
        ngx_http_idem_refuse(ctx, &ngx_http_idem_token_unknown, NULL, 0);
        break;

    default:
        ngx_http_idem_no_verdict(ctx, reply);
    }

    ngx_http_run_posted_requests(c);
}
