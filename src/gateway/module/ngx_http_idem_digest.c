
/*
 * ngx_http_idem_digest.c - the key of the credential digests.
 *
 * The key is in the store; the first worker that needs it creates it.  Workers
 * ask for it after every connect, so a store that was emptied gets the key that
 * the running workers share.  Requests that arrive before it is known wait for
 * it.
 */


#include "ngx_http_idem.h"
#include "../../base/hex.h"
#include <sodium.h>


static void ngx_http_idem_digest_again_handler(ngx_event_t *ev);


/* a command on the key's record */

static ngx_http_idem_op_t *
ngx_http_idem_digest_op(ngx_http_idem_engine_t *e, struct idem_op *what,
    ngx_http_idem_reply_pt handler)
{
    ngx_http_idem_op_t  *op;

    what->type = IDEM_TYPE_REQUEST;
    what->scope = idem_text("idem.gateway");
    what->id = idem_text("digest-key");

    op = ngx_http_idem_op_create(e, what, handler, e);

    if (op) {
        op->resend = 0;
        op->once = 1;
        ngx_http_idem_op_send(e, op);
    }

    return op;
}


void
ngx_http_idem_digest_init(ngx_http_idem_engine_t *e)
{
    ngx_queue_init(&e->waiting);

    e->digest_again.handler = ngx_http_idem_digest_again_handler;
    e->digest_again.data = e;
    e->digest_again.log = e->log;
    e->digest_again.cancelable = 1;

    randombytes_buf(e->digest_offer, sizeof(e->digest_offer));
}


/* ngx_http_idem_go_on() is called when the key has arrived */

void
ngx_http_idem_digest_await(ngx_http_idem_ctx_t *ctx)
{
    ngx_queue_insert_tail(&ngx_http_idem_engine()->waiting, &ctx->waiting);
    ctx->in_waiting = 1;
}


static void
ngx_http_idem_digest_ready(ngx_http_idem_engine_t *e, u_char *key)
{
    ngx_queue_t          *q;
    ngx_http_idem_ctx_t  *ctx;

    ngx_memcpy(e->digest_key, key, NGX_HTTP_IDEM_DIGEST_LEN);
    ngx_memcpy(e->digest_offer, key, NGX_HTTP_IDEM_DIGEST_LEN);
    e->digest_known = 1;

    while (!ngx_queue_empty(&e->waiting)) {
        q = ngx_queue_head(&e->waiting);
        ctx = ngx_queue_data(q, ngx_http_idem_ctx_t, waiting);

        ngx_queue_remove(q);
        ctx->in_waiting = 0;

        ngx_http_idem_go_on(ctx);
    }
}


/* the worker asks 20 times a second, and would fill the log */

static void
ngx_http_idem_digest_complain(ngx_http_idem_engine_t *e, const char *why)
{
    if (e->digest_complained
        && ngx_current_msec - e->digest_complained_at < 60000)
    {
        return;
    }

    e->digest_complained = 1;
    e->digest_complained_at = ngx_current_msec;

    ngx_log_error(NGX_LOG_ERR, e->log, 0,
                  "idem engine \"%V\": cannot get the record \"digest-key\" "
                  "of the scope \"idem.gateway\": %s; protected requests are "
                  "refused until it is there (logged at most once a minute)",
                  &e->name, why);
}


static void
ngx_http_idem_digest_later(ngx_http_idem_engine_t *e)
{
    e->digest_asked = 0;

    if (!e->digest_again.timer_set) {
        ngx_add_timer(&e->digest_again, 50);
    }
}


static void
ngx_http_idem_digest_again_handler(ngx_event_t *ev)
{
    ngx_http_idem_engine_t  *e = ev->data;

    if (e->up) {
        ngx_http_idem_digest_ask(e);
    }
}


static void
ngx_http_idem_digest_finished(ngx_http_idem_op_t *op,
    ngx_http_idem_reply_t *reply)
{
    ngx_http_idem_engine_t  *e = op->data;

    if (ngx_http_idem_verdict(reply) == IDEM_V_OK) {
        e->digest_asked = 0;
        ngx_http_idem_digest_ready(e, e->digest_offer);
        return;
    }

    ngx_http_idem_digest_later(e);
}


static void
ngx_http_idem_digest_began(ngx_http_idem_op_t *op, ngx_http_idem_reply_t *reply)
{
    u_char                   hex[2 * NGX_HTTP_IDEM_DIGEST_LEN];
    u_char                   key[NGX_HTTP_IDEM_DIGEST_LEN];
    struct idem_op           what;
    ngx_http_idem_engine_t  *e = op->data;

    if (ngx_http_idem_verdict(reply) == IDEM_V_REPLAY
        && idem__hex_read(reply->brief.bytes.data, reply->brief.bytes.len,
                          key, NGX_HTTP_IDEM_DIGEST_LEN))
    {
        e->digest_asked = 0;
        ngx_http_idem_digest_ready(e, key);
        return;
    }

    if (ngx_http_idem_verdict(reply) != IDEM_V_STARTED) {
        if (reply && reply->status != IDEM_OK) {
            ngx_http_idem_digest_complain(e, reply->err.text);
        }

        ngx_http_idem_digest_later(e);
        return;
    }

    (void) ngx_hex_dump(hex, e->digest_offer, NGX_HTTP_IDEM_DIGEST_LEN);

    ngx_memzero(&what, sizeof(what));
    what.verb = IDEM_FINISH;
    what.fence = reply->brief.fence;
    what.outcome = IDEM_STATE_SUCCEEDED;
    what.result.data = hex;
    what.result.len = sizeof(hex);

    if (ngx_http_idem_digest_op(e, &what, ngx_http_idem_digest_finished)
        == NULL)
    {
        ngx_http_idem_digest_later(e);
    }
}


void
ngx_http_idem_digest_ask(ngx_http_idem_engine_t *e)
{
    uint64_t        nonce;
    struct idem_op  what;

    if (e->digest_asked) {
        return;
    }

    nonce = ngx_http_idem_nonce(e);

    ngx_memzero(&what, sizeof(what));
    what.verb = IDEM_BEGIN;
    what.mode = IDEM_LOOSE;
    what.lease_ms = 1000;
    what.ttl_ms = IDEM_TTL_MAX_MS;
    what.nonce = (u_char *) &nonce;

    e->digest_asked = (ngx_http_idem_digest_op(e, &what,
                                               ngx_http_idem_digest_began)
                       != NULL);
}
