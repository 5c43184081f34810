
/*
 * ngx_http_idem_claim.c - one record that this worker claimed, from BEGIN to
 * the acknowledged FINISH or RELEASE.
 *
 * A claim is not in its request's pool: the client may leave and nginx may end
 * the request, but the claim still has to be renewed and ended. It counts its
 * references: the request, and each command in flight.
 */


#include "ngx_http_idem.h"


#define NGX_HTTP_IDEM_TRIES           4


static void ngx_http_idem_claim_begun(ngx_http_idem_op_t *op,
    ngx_http_idem_reply_t *reply);
static void ngx_http_idem_claim_ended(ngx_http_idem_op_t *op,
    ngx_http_idem_reply_t *reply);
static void ngx_http_idem_claim_renewed(ngx_http_idem_op_t *op,
    ngx_http_idem_reply_t *reply);
static void ngx_http_idem_renew_stop(ngx_http_idem_claim_t *claim);


ngx_http_idem_claim_t *
ngx_http_idem_claim_create(ngx_str_t *scope, ngx_str_t *id, ngx_msec_t lease)
{
    u_char                 *p;
    ngx_http_idem_claim_t  *claim;

    claim = ngx_http_idem_alloc(ngx_http_idem_engine(),
                                sizeof(ngx_http_idem_claim_t)
                                + scope->len + id->len);
    if (claim == NULL) {
        return NULL;
    }

    ngx_memzero(claim, sizeof(ngx_http_idem_claim_t));

    p = (u_char *) claim + sizeof(ngx_http_idem_claim_t);

    claim->scope.data = p;
    claim->scope.len = scope->len;
    p = ngx_cpymem(p, scope->data, scope->len);

    claim->id.data = p;
    claim->id.len = id->len;
    ngx_memcpy(p, id->data, id->len);

    claim->lease = lease;
    claim->refs = 1;

    return claim;
}


void
ngx_http_idem_claim_unref(ngx_http_idem_claim_t *claim)
{
    if (--claim->refs) {
        return;
    }

    ngx_http_idem_renew_stop(claim);

    if (claim->content) {
        claim->content->main = NULL;
        ngx_http_idem_claim_unref(claim->content);
    }

    ngx_http_idem_free(ngx_http_idem_engine(), claim,
                       sizeof(ngx_http_idem_claim_t) + claim->scope.len
                       + claim->id.len);
}


/* a command on this claim */

ngx_http_idem_op_t *
ngx_http_idem_claim_op(ngx_http_idem_claim_t *claim, struct idem_op *what,
    ngx_http_idem_reply_pt handler)
{
    ngx_http_idem_op_t  *op;

    what->type = claim->type;
    what->scope.data = claim->scope.data;
    what->scope.len = claim->scope.len;
    what->id.data = claim->id.data;
    what->id.len = claim->id.len;
    what->fence = claim->fence;

    op = ngx_http_idem_op_create(ngx_http_idem_engine(), what, handler, claim);

    if (op) {
        claim->refs++;
    }

    return op;
}


/* a command that begins nothing; its claim only shows whether the request still
 * exists */

ngx_int_t
ngx_http_idem_claim_ask(ngx_http_idem_ctx_t *ctx, struct idem_op *what,
    ngx_str_t *id, ngx_http_idem_reply_pt handler)
{
    ngx_http_idem_op_t  *op;

    ctx->claim = ngx_http_idem_claim_create(&ctx->scope, id, 0);
    if (ctx->claim == NULL) {
        return NGX_ERROR;
    }

    ctx->claim->ctx = ctx;
    ctx->claim->state = NGX_HTTP_IDEM_ENDED;
    ctx->claim->type = what->type;

    op = ngx_http_idem_claim_op(ctx->claim, what, handler);
    if (op == NULL) {
        return NGX_ERROR;
    }

    /* an ISSUE that is sent twice issues two tokens */

    op->resend = (what->verb != IDEM_ISSUE);
    ctx->claim->begin = op;

    ngx_http_idem_op_send(ngx_http_idem_engine(), op);

    return NGX_OK;
}


/* what all BEGINs of a location have in common, without the engine's
 * defaults */

void
ngx_http_idem_claim_prepare(ngx_http_idem_loc_conf_t *conf)
{
    struct idem_op  *op;

    op = &conf->begin;

    op->verb = IDEM_BEGIN;
    op->mode = conf->mode == NGX_HTTP_IDEM_LOOSE ? IDEM_LOOSE : IDEM_STRICT;

    if (conf->lease != (ngx_msec_t) IDEM_LEASE_DEFAULT_MS) {
        op->lease_ms = conf->lease;
    }

    if (conf->ttl != NGX_CONF_UNSET_MSEC) {
        op->ttl_ms = conf->ttl;
    }

    /* duplicates that get a fixed text do not wait for the response */

    if (conf->duplicate != NGX_HTTP_IDEM_FIXED) {
        op->wait_ms = conf->wait;
    }
}


/*
 * The path as the client sent it, without the query, which may have secrets.
 * Only printable ASCII and no space, so that the label has as many words for
 * any client.  A path that is too long ends in "...".
 */

static u_char *
ngx_http_idem_claim_path(ngx_http_request_t *r, u_char *p, size_t room)
{
    u_char  *c, *end, *last, *cut;

    static const u_char  hex[] = "0123456789ABCDEF";

    c = r->unparsed_uri.data;
    end = c + r->unparsed_uri.len;
    last = p + room;
    cut = p;

    for (/* void */; c < end && *c != '?' && *c != '#'; c++) {

        if (last - p >= 3) {
            cut = p;
        }

        if (*c > 0x20 && *c < 0x7f && p < last) {
            *p++ = *c;

        } else if ((*c <= 0x20 || *c >= 0x7f) && last - p >= 3) {
            *p++ = '%';
            *p++ = hex[*c >> 4];
            *p++ = hex[*c & 15];

        } else {
            return last - cut >= 3 ? ngx_cpymem(cut, "...", 3) : cut;
        }
    }

    return p;
}


/*
 * The record's label, for people who look at a doubt: the method, the path, and
 * the trace if there is one.
 */

static size_t
ngx_http_idem_claim_label(ngx_http_idem_ctx_t *ctx, u_char *label)
{
    size_t               len, room;
    u_char              *p;
    ngx_http_request_t  *r;

    r = ctx->request;

    ngx_http_idem_find_trace(r, &ctx->trace);

    room = IDEM__SEALED_SUBJECT_MAX - (ctx->trace.len ? ctx->trace.len + 1 : 0);
    len = ngx_min(r->method_name.len, room - 1);
    p = ngx_cpymem(label, r->method_name.data, len);
    *p++ = ' ';
    p = ngx_http_idem_claim_path(r, p, room - len - 1);

    if (ctx->trace.len) {
        *p++ = ' ';
        p = ngx_cpymem(p, ctx->trace.data, ctx->trace.len);
    }

    return p - label;
}


void
ngx_http_idem_claim_begin(ngx_http_idem_ctx_t *ctx)
{
    u_char                   label[IDEM__SEALED_SUBJECT_MAX];
    uint64_t                 nonce;
    struct idem_op           what;
    ngx_http_idem_op_t      *op;
    ngx_http_idem_engine_t  *e = ngx_http_idem_engine();

    nonce = ngx_http_idem_nonce(e);

    what = ctx->conf->begin;
    what.nonce = (u_char *) &nonce;

    if (ctx->conf->fingerprint != NGX_HTTP_IDEM_FP_OFF || ctx->by_content) {
        what.fingerprint = ctx->fingerprint;
    }

    what.subject.data = label;
    what.subject.len = ngx_http_idem_claim_label(ctx, label);

    op = ngx_http_idem_claim_op(ctx->claim, &what, ngx_http_idem_claim_begun);
    if (op == NULL) {
        ngx_http_idem_begun(ctx, NULL);
        return;
    }

    ctx->claim->begin = op;
    ctx->claim->route = ctx->conf->route;
    ctx->asked = ngx_current_msec;
    op->until += ctx->conf->wait;

    ngx_http_idem_op_send(e, op);
}


/*
 * A reply to this BEGIN was lost, so the claim may be stored; sending the same
 * nonce again finds out.  An error says nothing about that, and "busy" may come
 * from another transaction's row lock, behind which the record is ours.  A
 * waiting request gets "busy" at once, or after a few tries that the store is
 * unavailable.  An exiting worker then stops trying, because nothing ran.
 */

static ngx_int_t
ngx_http_idem_claim_unsure(ngx_http_idem_op_t *op, ngx_http_idem_reply_t *reply)
{
    ngx_uint_t              busy, away;
    ngx_http_idem_ctx_t    *ctx;
    ngx_http_idem_claim_t  *claim = op->data;

    if (reply->status == IDEM_ERR_LOST) {
        op->unsure = 1;
    }

    busy = (ngx_http_idem_verdict(reply) == IDEM_V_BUSY);

    if (!op->unsure || !(busy || reply->status != IDEM_OK)) {
        return 0;
    }

    ctx = claim->ctx;

    away = !busy && op->tries >= NGX_HTTP_IDEM_TRIES;

    if (away && ctx == NULL && ngx_exiting) {
        ngx_log_error(NGX_LOG_ERR, ngx_cycle->log, 0,
                      "idem: this worker ends and cannot tell whether a claim "
                      "was stored: %s; if it was, its record will be in doubt "
                      "although nothing ran", reply->err.text);
        return 0;
    }

    ngx_http_idem_op_again(ngx_http_idem_engine(), op);

    if (ctx && (busy || away)) {
        ctx->claim = NULL;
        ngx_http_idem_claim_detach(claim);
        ngx_http_idem_begun(ctx, reply);
    }

    return 1;
}


static void
ngx_http_idem_claim_begun(ngx_http_idem_op_t *op, ngx_http_idem_reply_t *reply)
{
    ngx_http_idem_claim_t  *claim = op->data;

    if (reply && ngx_http_idem_claim_unsure(op, reply)) {
        return;
    }

    claim->begin = NULL;

    if (ngx_http_idem_verdict(reply) == IDEM_V_STARTED) {
        claim->state = NGX_HTTP_IDEM_EXECUTING;
        claim->fence = reply->brief.fence;
        claim->begun = ngx_current_msec;

        ngx_http_idem_failpoint("begun");

        if (claim->ctx == NULL) {

            /* the request is gone, and nothing was sent to the service */

            (void) ngx_http_idem_claim_release(claim);

        } else {
            ngx_http_idem_renew_start(claim);
        }

    } else {
        claim->state = NGX_HTTP_IDEM_ENDED;
    }

    if (claim->ctx) {
        ngx_http_idem_begun(claim->ctx, reply);
    }

    ngx_http_idem_claim_unref(claim);
}


void
ngx_http_idem_renew_start(ngx_http_idem_claim_t *claim)
{
    ngx_http_idem_engine_t  *e = ngx_http_idem_engine();

    claim->renew_at = ngx_current_msec + idem__lease_third(claim->lease);
    claim->renewing = 1;
    ngx_queue_insert_tail(&e->claims, &claim->queue);
    ngx_http_idem_tick_start(e);
}


static void
ngx_http_idem_renew_stop(ngx_http_idem_claim_t *claim)
{
    if (claim->renewing) {
        ngx_queue_remove(&claim->queue);
        claim->renewing = 0;
    }
}


static ngx_http_idem_op_t *
ngx_http_idem_send_renew(ngx_http_idem_claim_t *claim, ngx_uint_t lost)
{
    struct idem_op       what;
    ngx_http_idem_op_t  *op;

    ngx_memzero(&what, sizeof(what));
    what.verb = IDEM_RENEW;
    what.lease_ms = claim->lease;
    what.lost = lost;

    op = ngx_http_idem_claim_op(claim, &what, ngx_http_idem_claim_renewed);

    if (op) {
        ngx_http_idem_op_send(ngx_http_idem_engine(), op);
    }

    return op;
}


/* renew every third of the lease, until FINISH or RELEASE is acknowledged */

void
ngx_http_idem_claim_renew(ngx_http_idem_claim_t *claim)
{
    claim->renew_at = ngx_current_msec + idem__lease_third(claim->lease);

    if (claim->renewal == NULL) {
        claim->renewal = ngx_http_idem_send_renew(claim, 0);
    }
}


static void
ngx_http_idem_claim_renewed(ngx_http_idem_op_t *op,
    ngx_http_idem_reply_t *reply)
{
    ngx_http_idem_claim_t  *claim = op->data;

    claim->renewal = NULL;

    if (ngx_http_idem_verdict(reply) == IDEM_V_STALE
        && claim->state == NGX_HTTP_IDEM_EXECUTING)
    {
        ngx_log_error(NGX_LOG_WARN, ngx_cycle->log, 0,
                      "idem: the record of a running request is no longer "
                      "ours, fence %uL", claim->fence);

        ngx_http_idem_renew_stop(claim);
    }

    ngx_http_idem_claim_unref(claim);
}


/* FINISH or RELEASE; it is sent at the end of this turn, so that the caller can
 * still fill its room */

ngx_http_idem_op_t *
ngx_http_idem_claim_end(ngx_http_idem_claim_t *claim, struct idem_op *what)
{
    ngx_http_idem_op_t  *op;

    op = ngx_http_idem_claim_op(claim, what, ngx_http_idem_claim_ended);

    if (op) {
        claim->state = NGX_HTTP_IDEM_ENDING;
        op->hurry = 1;
        ngx_http_idem_op_send(ngx_http_idem_engine(), op);
    }

    return op;
}


ngx_int_t
ngx_http_idem_claim_release(ngx_http_idem_claim_t *claim)
{
    struct idem_op  what;

    ngx_http_idem_dedupe_end(claim, 0);

    ngx_memzero(&what, sizeof(what));
    what.verb = IDEM_RELEASE;

    claim->released = 1;

    return ngx_http_idem_claim_end(claim, &what) ? NGX_OK : NGX_ERROR;
}


static void
ngx_http_idem_claim_ended(ngx_http_idem_op_t *op, ngx_http_idem_reply_t *reply)
{
    enum idem_verdict        verdict;
    ngx_http_idem_claim_t   *claim = op->data;
    ngx_http_idem_engine_t  *e = ngx_http_idem_engine();

    verdict = ngx_http_idem_verdict(reply);

    /* busy: another transaction locks the row, and nothing was recorded yet */

    if (reply && (reply->status != IDEM_OK || verdict == IDEM_V_BUSY)) {
        ngx_http_idem_op_again(e, op);
        return;
    }

    ngx_http_idem_renew_stop(claim);

    claim->state = NGX_HTTP_IDEM_ENDED;

    if (claim->begun && !claim->released
        && (verdict == IDEM_V_OK || verdict == IDEM_V_FINISHED))
    {
        ngx_http_idem_figures_time(claim->route, IDEM__FIGURES_CLAIM,
                                   ngx_current_msec - claim->begun);
    }

    if (verdict == IDEM_V_STALE) {
        ngx_log_error(NGX_LOG_WARN, e->log, 0,
                      "idem: a record was settled or taken over while its "
                      "request ran, fence %uL", claim->fence);
    }

    if (claim->main) {
        ngx_http_idem_dedupe_ended(claim);

    } else {
        ngx_http_idem_failpoint("kept");
    }

    if (claim->ctx) {
        ngx_http_idem_kept(claim->ctx, reply);
    }

    ngx_http_idem_claim_unref(claim);
}


/*
 * The outcome is unknown and will stay so.  A strict record should say that at
 * once, without waiting for the end of its lease.  A loose one may run again
 * after its lease, and the service may still be working until then.
 */

void
ngx_http_idem_claim_leave(ngx_http_idem_claim_t *claim, ngx_uint_t strict)
{
    ngx_http_idem_renew_stop(claim);

    if (claim->state != NGX_HTTP_IDEM_EXECUTING) {
        return;
    }

    ngx_http_idem_dedupe_end(claim, 1);

    claim->state = NGX_HTTP_IDEM_ENDED;

    if (strict) {
        (void) ngx_http_idem_send_renew(claim, 1); /* else its lease ends */
    }
}


/*
 * Cancel a command that was not sent yet, or a command that claims nothing (see
 * ngx_http_idem_claim_ask) and whose reply is no longer needed.  Otherwise an
 * exiting worker would wait for the reply.
 */

static void
ngx_http_idem_claim_withdraw(ngx_http_idem_claim_t *claim)
{
    if (claim->begin
        && (!claim->begin->sent || claim->state == NGX_HTTP_IDEM_ENDED))
    {
        ngx_http_idem_op_cancel(ngx_http_idem_engine(), claim->begin);
        claim->begin = NULL;
        claim->state = NGX_HTTP_IDEM_ENDED;
        ngx_http_idem_claim_unref(claim);
    }
}


/* the request ends */

void
ngx_http_idem_claim_detach(ngx_http_idem_claim_t *claim)
{
    claim->ctx = NULL;

    ngx_http_idem_claim_withdraw(claim);

    if (claim->content) {
        ngx_http_idem_claim_withdraw(claim->content);
    }

    ngx_http_idem_claim_unref(claim);
}
