
/*
 * ngx_http_idem_digest.c - the key of the credential digests.
 *
 * It lives in the store, made once by whoever comes first. It is asked for
 * after every connect: a store that was emptied is given the key that the
 * running workers share. Requests that come before it is known wait for it.
 */


#include "ngx_http_idem.h"
#include <sodium.h>


static void ngx_http_idem_digest_again_handler(ngx_event_t *ev);


#define NGX_HTTP_IDEM_DIGEST_RECORD                                           \
    "$12\r\nidem.gateway\r\n$10\r\ndigest-key\r\n"


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
    struct gateway_reply *reply)
{
    ngx_http_idem_engine_t  *e = op->data;

    if (reply && gateway_reply_is(reply, 0, "ok")) {
        e->digest_asked = 0;
        ngx_http_idem_digest_ready(e, e->digest_offer);
        return;
    }

    ngx_http_idem_digest_later(e);
}


static void
ngx_http_idem_digest_began(ngx_http_idem_op_t *op, struct gateway_reply *reply)
{
    u_char                  *p, hex[2 * NGX_HTTP_IDEM_DIGEST_LEN];
    u_char                   key[NGX_HTTP_IDEM_DIGEST_LEN];
    size_t                   len;
    ngx_http_idem_op_t      *finish;
    ngx_http_idem_engine_t  *e = op->data;

    if (reply && gateway_reply_is(reply, 0, "replay") && reply->count > 4
        && reply->values[4].bytes.len == 2 * NGX_HTTP_IDEM_DIGEST_LEN
        && sodium_hex2bin(key, sizeof(key), reply->values[4].bytes.data,
                          reply->values[4].bytes.len, NULL, &len, NULL) == 0
        && len == NGX_HTTP_IDEM_DIGEST_LEN)
    {
        e->digest_asked = 0;
        ngx_http_idem_digest_ready(e, key);
        return;
    }

    if (reply == NULL || !gateway_reply_is(reply, 0, "started")
        || reply->count < 2)
    {
        if (reply && gateway_reply_is(reply, 0, "error")) {
            ngx_log_error(NGX_LOG_ERR, e->log, 0,
                          "idem engine \"%V\": no digest key: %*s", &e->name,
                          reply->values[1].bytes.len,
                          reply->values[1].bytes.data);
        }

        ngx_http_idem_digest_later(e);
        return;
    }

    finish = ngx_http_idem_op_create(e, 512, ngx_http_idem_digest_finished, e);
    if (finish == NULL) {
        ngx_http_idem_digest_later(e);
        return;
    }

    finish->resend = 0;

    (void) ngx_hex_dump(hex, e->digest_offer, NGX_HTTP_IDEM_DIGEST_LEN);

    p = ngx_http_idem_put_raw(finish->cmd, "*8\r\n$6\r\nFINISH\r\n"
                                           NGX_HTTP_IDEM_DIGEST_RECORD);
    p = ngx_http_idem_put_number(p, reply->values[1].number);
    p = ngx_http_idem_put_raw(p, "$9\r\nSUCCEEDED\r\n");
    p = ngx_http_idem_put(p, hex, sizeof(hex));
    ngx_http_idem_op_send(e, finish, p);
}


void
ngx_http_idem_digest_ask(ngx_http_idem_engine_t *e)
{
    u_char              *p;
    ngx_http_idem_op_t  *op;

    if (e->digest_asked) {
        return;
    }

    op = ngx_http_idem_op_create(e, 512, ngx_http_idem_digest_began, e);
    if (op == NULL) {
        return;
    }

    op->resend = 0;
    e->digest_asked = 1;

    p = ngx_http_idem_put_raw(op->cmd, "*12\r\n$5\r\nBEGIN\r\n"
                                       NGX_HTTP_IDEM_DIGEST_RECORD
                                       "$5\r\nLOOSE\r\n"
                                       "$5\r\nLEASE\r\n$4\r\n1000\r\n"
                                       "$3\r\nTTL\r\n");
    p = ngx_http_idem_put_number(p, IDEM_TTL_MAX_MS);
    p = ngx_http_idem_put_nonce(p, ngx_http_idem_nonce(e));
    ngx_http_idem_op_send(e, op, p);
}
