
/*
 * ngx_http_idem_dedupe.c - a second record, for the content of a request.
 *
 * With "idem_dedupe_content" a request that has claimed its key also claims its
 * content, before anything is sent to the service: the record "content-DIGEST"
 * in the same scope, whose fingerprint is made of the key.
 *
 *   absent, free             ours: it is renewed and ended with the request
 *   the same fingerprint     an earlier try of the same key has it
 *   another fingerprint      another key: refused, unless its lease is over
 *
 * A record whose lease is over was left by a worker that died.  BEGIN reports a
 * mismatch before it looks at the lease, so the record is first claimed without
 * a fingerprint and released.
 */


#include "ngx_http_idem.h"
#include <sodium.h>


/* for the same key: the lease of its earlier try ends about now */
#define NGX_HTTP_IDEM_CONTENT_WAIT  1000

/* if a worker dies before it releases the probe, the content is blocked this
 * long */
#define NGX_HTTP_IDEM_PROBE_LEASE   500


static void ngx_http_idem_dedupe_begun(ngx_http_idem_op_t *op,
    ngx_http_idem_reply_t *reply);


ngx_int_t
ngx_http_idem_content_id(ngx_http_idem_ctx_t *ctx, ngx_str_t *id)
{
    u_char  *p;

    id->len = sizeof("content-") - 1 + 40;
    id->data = ngx_pnalloc(ctx->request->pool, id->len);
    if (id->data == NULL) {
        id->len = 0;                 /* the log may read it */
        return NGX_ERROR;
    }

    p = ngx_cpymem(id->data, "content-", sizeof("content-") - 1);
    (void) ngx_hex_dump(p, ctx->content, 20);

    return NGX_OK;
}


static ngx_int_t
ngx_http_idem_dedupe_begin(ngx_http_idem_claim_t *content, ngx_uint_t named)
{
    u_char                   key[IDEM_FINGERPRINT_LEN];
    uint64_t                 nonce;
    struct idem_op           what;
    ngx_http_idem_op_t      *op;
    ngx_http_idem_engine_t  *e = ngx_http_idem_engine();
    ngx_http_idem_claim_t   *claim = content->main;

    nonce = ngx_http_idem_nonce(e);

    ngx_memzero(&what, sizeof(what));
    what.verb = IDEM_BEGIN;
    what.mode = IDEM_LOOSE;
    what.lease_ms = named ? content->lease : NGX_HTTP_IDEM_PROBE_LEASE;
    what.ttl_ms = claim->ctx->conf->dedupe;
    what.nonce = (u_char *) &nonce;

    if (named) {
        crypto_generichash(key, sizeof(key), claim->id.data, claim->id.len,
                           e->digest_key, NGX_HTTP_IDEM_DIGEST_LEN);
        what.fingerprint = key;
        what.wait_ms = NGX_HTTP_IDEM_CONTENT_WAIT;
    }

    op = ngx_http_idem_claim_op(content, &what, ngx_http_idem_dedupe_begun);
    if (op == NULL) {
        return NGX_ERROR;
    }

    content->state = NGX_HTTP_IDEM_BEGINNING;
    content->taken = !named;
    content->begin = op;
    op->hurry = 1;

    ngx_http_idem_op_send(e, op);

    return NGX_OK;
}


void
ngx_http_idem_dedupe(ngx_http_idem_ctx_t *ctx)
{
    ngx_str_t               id;
    ngx_http_idem_claim_t  *content;

    if (ngx_http_idem_content_id(ctx, &id) != NGX_OK) {
        ngx_http_idem_away(ctx);
        return;
    }

    content = ngx_http_idem_claim_create(&ctx->scope, &id, ctx->conf->lease);
    if (content == NULL) {
        ngx_http_idem_away(ctx);
        return;
    }

    content->type = IDEM_TYPE_REQUEST;
    content->main = ctx->claim;
    ctx->claim->content = content;

    ngx_http_idem_set_deadline(ctx, NGX_HTTP_IDEM_CONTENT_WAIT
                                    + ngx_http_idem_engine()->timeout);

    if (ngx_http_idem_dedupe_begin(content, 1) != NGX_OK) {
        ngx_http_idem_clear_deadline(ctx);
        ngx_http_idem_away(ctx);
    }
}


/* nothing was sent to the service, so the key is free for another try */

static void
ngx_http_idem_dedupe_refuse(ngx_http_idem_ctx_t *ctx)
{
    ngx_str_set(&ctx->verdict, "same-content");

    if (ngx_http_idem_claim_release(ctx->claim) != NGX_OK) {
        ngx_http_idem_away(ctx);
        return;
    }

    ngx_http_idem_refuse(ctx, &ngx_http_idem_same_content, NULL, 0);
}


static void
ngx_http_idem_dedupe_told(ngx_http_idem_ctx_t *ctx,
    ngx_http_idem_claim_t *content, enum idem_verdict verdict)
{
    ngx_connection_t  *c;

    c = ctx->request->connection;

    if (verdict == IDEM_V_STARTED && content->taken) {

        /* nobody held it: release it, then claim it as if for the first time */

        ngx_http_idem_failpoint("probed");
        ngx_http_idem_dedupe_end(content->main, 0);
        return;
    }

    if (verdict == IDEM_V_MISMATCH
        && ngx_http_idem_dedupe_begin(content, 0) == NGX_OK)
    {
        return;
    }

    ngx_http_idem_clear_deadline(ctx);

    if (verdict == IDEM__VERDICT_COUNT) {
        ngx_http_idem_away(ctx);

    } else if (content->taken || verdict == IDEM_V_MISMATCH) {
        ngx_http_idem_dedupe_refuse(ctx);

    } else {
        ngx_http_idem_started(ctx);
    }

    ngx_http_run_posted_requests(c);
}


static void
ngx_http_idem_dedupe_begun(ngx_http_idem_op_t *op,
    ngx_http_idem_reply_t *reply)
{
    ngx_uint_t               quota;
    ngx_connection_t        *c;
    enum idem_verdict        verdict;
    ngx_http_idem_ctx_t     *ctx;
    ngx_http_idem_claim_t   *content = op->data;
    ngx_http_idem_engine_t  *e = ngx_http_idem_engine();

    verdict = ngx_http_idem_verdict(reply);

    quota = reply && reply->status == IDEM_ERR_OVERLOADED && !op->unsure
            && idem__quota_retry_s(reply->err.text);

    /* it may be stored nevertheless; sending the same nonce again finds out */

    if (reply && !quota
              && (reply->status != IDEM_OK
                  || (op->unsure && verdict == IDEM_V_BUSY)))
    {
        ngx_http_idem_op_again(e, op);
        return;
    }

    ctx = content->main ? content->main->ctx : NULL;
    content->begin = NULL;
    content->state = NGX_HTTP_IDEM_ENDED;

    if (verdict == IDEM_V_STARTED) {
        content->state = NGX_HTTP_IDEM_EXECUTING;
        content->fence = reply->brief.fence;
        ngx_http_idem_renew_start(content);
    }

    if (ctx && quota) {
        c = ctx->request->connection;

        ngx_http_idem_clear_deadline(ctx);
        ngx_http_idem_no_verdict(ctx, reply);
        ngx_http_run_posted_requests(c);

    } else if (ctx) {
        ngx_http_idem_dedupe_told(ctx, content, verdict);

    } else if (verdict == IDEM_V_STARTED) {
        (void) ngx_http_idem_claim_release(content);
    }

    ngx_http_idem_claim_unref(content);
}


void
ngx_http_idem_dedupe_end(ngx_http_idem_claim_t *claim, ngx_uint_t done)
{
    struct idem_op          what;
    ngx_http_idem_claim_t  *content = claim->content;

    if (content == NULL || content->state != NGX_HTTP_IDEM_EXECUTING) {
        return;
    }

    ngx_memzero(&what, sizeof(what));
    what.verb = done ? IDEM_FINISH : IDEM_RELEASE;
    what.outcome = done ? IDEM_STATE_SUCCEEDED : 0;

    (void) ngx_http_idem_claim_end(content, &what); /* else its lease ends */
}


/* FINISH or RELEASE of a content was acknowledged or given up */

void
ngx_http_idem_dedupe_ended(ngx_http_idem_claim_t *content)
{
    ngx_http_idem_ctx_t  *ctx = content->main->ctx;

    if (ctx && content->taken
        && ngx_http_idem_dedupe_begin(content, 1) != NGX_OK)
    {
        ngx_http_idem_clear_deadline(ctx);
        ngx_http_idem_away(ctx);
    }
}
