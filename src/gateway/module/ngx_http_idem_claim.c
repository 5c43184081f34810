
/*
 * ngx_http_idem_claim.c - one record that this worker began, from BEGIN to the
 * acknowledged FINISH or RELEASE.
 *
 * A claim lives outside of its request's pool: the client may leave, nginx may
 * end the request, and what was begun still has to be renewed and ended. It
 * counts who refers to it: the request, and each command on the way.
 */


#include "ngx_http_idem.h"


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
    ngx_http_idem_free(ngx_http_idem_engine(), claim,
                       sizeof(ngx_http_idem_claim_t) + claim->scope.len
                       + claim->id.len);
}


/* a command on this claim */

static ngx_http_idem_op_t *
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


/* what all BEGINs of a location say; the engine's own defaults are left out */

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

    if (conf->ttl != (ngx_msec_t) IDEM_TTL_DEFAULT_MS) {
        op->ttl_ms = conf->ttl;
    }

    /* who gets an agreed text does not wait for another answer */

    if (conf->duplicate != NGX_HTTP_IDEM_FIXED) {
        op->wait_ms = conf->wait;
    }
}


void
ngx_http_idem_claim_begin(ngx_http_idem_ctx_t *ctx)
{
    uint64_t                 nonce;
    struct idem_op           what;
    ngx_http_idem_op_t      *op;
    ngx_http_idem_engine_t  *e = ngx_http_idem_engine();

    nonce = ngx_http_idem_nonce(e);

    what = ctx->conf->begin;
    what.nonce = (u_char *) &nonce;

    if (ctx->conf->fingerprint != NGX_HTTP_IDEM_FP_OFF) {
        what.fingerprint = ctx->fingerprint;
    }

    op = ngx_http_idem_claim_op(ctx->claim, &what, ngx_http_idem_claim_begun);
    if (op == NULL) {
        ngx_http_idem_begun(ctx, NULL);
        return;
    }

    ctx->claim->begin = op;
    op->until += ctx->conf->wait;

    ngx_http_idem_op_send(e, op);
}


/*
 * An answer to it was lost, so it may be stored: the same nonce finds out.  An
 * error says nothing about that, and "busy" may be somebody's row lock, behind
 * which the record is ours.  Who waits is told "busy" at once.
 */

static ngx_int_t
ngx_http_idem_claim_unsure(ngx_http_idem_op_t *op, ngx_http_idem_reply_t *reply)
{
    ngx_uint_t              busy;
    ngx_http_idem_ctx_t    *ctx;
    ngx_http_idem_claim_t  *claim = op->data;

    if (reply->status == IDEM_ERR_LOST) {
        op->unsure = 1;
    }

    busy = (ngx_http_idem_verdict(reply) == IDEM_V_BUSY);

    if (!op->unsure || !(busy || reply->status != IDEM_OK)) {
        return 0;
    }

    ngx_http_idem_op_again(ngx_http_idem_engine(), op);

    ctx = claim->ctx;

    if (busy && ctx) {
        ctx->claim = NULL;
        ngx_http_idem_claim_detach(claim);
        ngx_http_idem_begun(ctx, reply);
    }

    return 1;
}


static void
ngx_http_idem_claim_begun(ngx_http_idem_op_t *op, ngx_http_idem_reply_t *reply)
{
    ngx_http_idem_claim_t   *claim = op->data;
    ngx_http_idem_engine_t  *e = ngx_http_idem_engine();

    if (reply && ngx_http_idem_claim_unsure(op, reply)) {
        return;
    }

    claim->begin = NULL;

    if (ngx_http_idem_verdict(reply) == IDEM_V_STARTED) {
        claim->state = NGX_HTTP_IDEM_EXECUTING;
        claim->fence = reply->brief.fence;

        ngx_http_idem_step("begun");

        if (claim->ctx == NULL) {

            /* nobody is here any more, and nothing was sent */

            (void) ngx_http_idem_claim_release(claim);

        } else {
            claim->renew_at = ngx_current_msec + claim->lease / 3;
            claim->renewing = 1;
            ngx_queue_insert_tail(&e->claims, &claim->queue);
            ngx_http_idem_tick_start(e);
        }

    } else {
        claim->state = NGX_HTTP_IDEM_ENDED;
    }

    if (claim->ctx) {
        ngx_http_idem_begun(claim->ctx, reply);
    }

    ngx_http_idem_claim_unref(claim);
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


/* every third of the lease, until FINISH or RELEASE is acknowledged */

void
ngx_http_idem_claim_renew(ngx_http_idem_claim_t *claim)
{
    claim->renew_at = ngx_current_msec + claim->lease / 3;

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


/* which headers are kept is decided here; the rest of an answer is its body */

static ngx_int_t
ngx_http_idem_listed(ngx_array_t *list, ngx_str_t *name)
{
    ngx_str_t   *s;
    ngx_uint_t   i;

    s = list->elts;

    for (i = 0; i < list->nelts; i++) {
        if (s[i].len == name->len
            && ngx_strncasecmp(s[i].data, name->data, name->len) == 0)
        {
            return 1;
        }
    }

    return 0;
}


static ngx_int_t
ngx_http_idem_keeps(ngx_http_idem_loc_conf_t *conf, ngx_str_t *name)
{
    ngx_uint_t         i;
    struct idem_bytes  bytes;

    static const ngx_str_t  never[] = {
        ngx_string("age"),
        ngx_string("date"),
        ngx_string("server"),
        ngx_string("set-cookie"),
        ngx_string("set-cookie2"),
        ngx_string("www-authenticate"),
        ngx_string("idempotent-replayed"),
        ngx_string("idempotency-expires"),
        ngx_null_string
    };

    bytes.data = name->data;
    bytes.len = name->len;

    if (gateway_header_is_hop(bytes)) {
        return 0;
    }

    if (conf->keep && ngx_http_idem_listed(conf->keep, name)) {
        return 1;
    }

    for (i = 0; never[i].len; i++) {
        if (never[i].len == name->len
            && ngx_strncasecmp(never[i].data, name->data, name->len) == 0)
        {
            return 0;
        }
    }

    return conf->drop == NULL || !ngx_http_idem_listed(conf->drop, name);
}


static ngx_int_t
ngx_http_idem_gather(ngx_http_idem_ctx_t *ctx, struct gateway_result *result)
{
    ngx_uint_t           i;
    ngx_list_part_t     *part;
    ngx_table_elt_t     *h;
    ngx_http_request_t  *r;

    static ngx_str_t  type = ngx_string("Content-Type");

    r = ctx->request;

    result->status = r->headers_out.status;
    result->header_count = 0;

    if (r->headers_out.content_type.len
        && ngx_http_idem_keeps(ctx->conf, &type))
    {
        result->headers[0].name.data = type.data;
        result->headers[0].name.len = type.len;
        result->headers[0].value.data = r->headers_out.content_type.data;
        result->headers[0].value.len = r->headers_out.content_type.len;
        result->header_count = 1;
    }

    part = &r->headers_out.headers.part;
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

        if (h[i].hash == 0 || !ngx_http_idem_keeps(ctx->conf, &h[i].key)) {
            continue;
        }

        if (result->header_count == GATEWAY_HEADERS_MAX) {
            return NGX_DECLINED;
        }

        result->headers[result->header_count].name.data = h[i].key.data;
        result->headers[result->header_count].name.len = h[i].key.len;
        result->headers[result->header_count].value.data = h[i].value.data;
        result->headers[result->header_count].value.len = h[i].value.len;
        result->header_count++;
    }

    return NGX_OK;
}


/* FINISH or RELEASE; it leaves at the end of this turn, so that its room can
 * still be filled */

static ngx_http_idem_op_t *
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


/* FINISH with the held answer, or without one that is too large to keep */

ngx_int_t
ngx_http_idem_claim_finish(ngx_http_idem_ctx_t *ctx, ngx_uint_t failed,
    ngx_uint_t replayable)
{
    u_char                 *p;
    size_t                  head;
    ngx_chain_t            *cl;
    struct idem_op          what;
    ngx_http_idem_op_t     *op;
    struct gateway_result   result;

    head = 0;

    ngx_memzero(&what, sizeof(what));
    what.verb = IDEM_FINISH;
    what.outcome = failed ? IDEM_STATE_FAILED : IDEM_STATE_SUCCEEDED;
    what.kind = IDEM_KIND_HTTP;

    if (replayable && ngx_http_idem_gather(ctx, &result) == NGX_OK) {
        head = gateway_result_head_len(&result);
    }

    if (head && head + ctx->held_size
                <= ngx_min(ctx->conf->max_answer,
                           ngx_http_idem_engine()->max_result))
    {
        what.result.len = head + ctx->held_size;

    } else {
        what.not_replayable = 1;
    }

    op = ngx_http_idem_claim_end(ctx->claim, &what);
    if (op == NULL) {
        return NGX_ERROR;
    }

    if (op->room) {
        gateway_result_head(&result, op->room);
        p = op->room + head;

        for (cl = ctx->held; cl; cl = cl->next) {
            p = ngx_cpymem(p, cl->buf->pos, cl->buf->last - cl->buf->pos);
        }
    }

    return NGX_OK;
}


ngx_int_t
ngx_http_idem_claim_release(ngx_http_idem_claim_t *claim)
{
    struct idem_op  what;

    ngx_memzero(&what, sizeof(what));
    what.verb = IDEM_RELEASE;

    claim->released = 1;

    return ngx_http_idem_claim_end(claim, &what) ? NGX_OK : NGX_ERROR;
}


static void
ngx_http_idem_claim_ended(ngx_http_idem_op_t *op, ngx_http_idem_reply_t *reply)
{
    ngx_http_idem_claim_t   *claim = op->data;
    ngx_http_idem_engine_t  *e = ngx_http_idem_engine();

    /* busy: somebody's transaction locks the row, nothing was recorded yet */

    if (reply && (reply->status != IDEM_OK
                  || reply->brief.verdict == IDEM_V_BUSY))
    {
        ngx_http_idem_op_again(e, op);
        return;
    }

    ngx_http_idem_renew_stop(claim);

    claim->state = NGX_HTTP_IDEM_ENDED;

    if (ngx_http_idem_verdict(reply) == IDEM_V_STALE) {
        ngx_log_error(NGX_LOG_WARN, e->log, 0,
                      "idem: a record was settled or taken over while its "
                      "request ran, fence %uL", claim->fence);
    }

    ngx_http_idem_step("kept");

    if (claim->ctx) {
        ngx_http_idem_kept(claim->ctx, reply);
    }

    ngx_http_idem_claim_unref(claim);
}


/*
 * The outcome is unknown, and nobody will ever tell it: a strict record need
 * not wait for the end of its lease to say so.  A loose one may run again after
 * its lease, and the service may still be at work until then.
 */

void
ngx_http_idem_claim_leave(ngx_http_idem_claim_t *claim, ngx_uint_t strict)
{
    ngx_http_idem_renew_stop(claim);

    if (claim->state != NGX_HTTP_IDEM_EXECUTING) {
        return;
    }

    claim->state = NGX_HTTP_IDEM_ENDED;

    if (strict) {
        (void) ngx_http_idem_send_renew(claim, 1); /* else its lease runs out */
    }
}


/* the request goes away */

void
ngx_http_idem_claim_detach(ngx_http_idem_claim_t *claim)
{
    claim->ctx = NULL;

    if (claim->begin && !claim->begin->sent) {
        ngx_http_idem_op_cancel(ngx_http_idem_engine(), claim->begin);
        claim->begin = NULL;
        claim->state = NGX_HTTP_IDEM_ENDED;
        ngx_http_idem_claim_unref(claim);
    }

    ngx_http_idem_claim_unref(claim);
}
