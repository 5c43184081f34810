
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
    struct gateway_reply *reply);
static void ngx_http_idem_claim_ended(ngx_http_idem_op_t *op,
    struct gateway_reply *reply);
static void ngx_http_idem_claim_renewed(ngx_http_idem_op_t *op,
    struct gateway_reply *reply);
static void ngx_http_idem_renew_stop(ngx_http_idem_claim_t *claim);
static ngx_int_t ngx_http_idem_claim_finish_large(ngx_http_idem_claim_t *claim,
    ngx_uint_t failed);


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


/*
 * Room for a command on this claim.  Its head is written: how many arguments
 * it has with TAG and its number, and its name.  So are scope and id.
 */

static ngx_http_idem_op_t *
ngx_http_idem_claim_op(ngx_http_idem_claim_t *claim, ngx_str_t *head,
    size_t more, ngx_http_idem_reply_pt handler, u_char **p)
{
    ngx_http_idem_op_t      *op;
    ngx_http_idem_engine_t  *e = ngx_http_idem_engine();

    op = ngx_http_idem_op_create(e, head->len + claim->scope.len
                                    + claim->id.len + more
                                    + 2 * NGX_HTTP_IDEM_ARG,
                                 handler, claim);
    if (op == NULL) {
        return NULL;
    }

    claim->refs++;

    *p = ngx_cpymem(op->cmd, head->data, head->len);
    *p = ngx_http_idem_put(*p, claim->scope.data, claim->scope.len);
    *p = ngx_http_idem_put(*p, claim->id.data, claim->id.len);

    return op;
}


/*
 * What every BEGIN of a location has in common is written when the
 * configuration is read.  The engine's own values are not said.
 */

ngx_int_t
ngx_http_idem_claim_prepare(ngx_conf_t *cf, ngx_http_idem_loc_conf_t *conf)
{
    u_char      *p;
    ngx_uint_t   args;

    p = ngx_pnalloc(cf->pool, 8 * NGX_HTTP_IDEM_ARG);
    if (p == NULL) {
        return NGX_ERROR;
    }

    conf->begin.data = p;
    args = 3 + 2 + 2;                        /* NONCE, TAG */

    if (conf->mode == NGX_HTTP_IDEM_LOOSE) {
        p = ngx_http_idem_put_raw(p, "$5\r\nLOOSE\r\n");
        args++;
    }

    if (conf->lease != (ngx_msec_t) IDEM_LEASE_DEFAULT_MS) {
        p = ngx_http_idem_put_raw(p, "$5\r\nLEASE\r\n");
        p = ngx_http_idem_put_number(p, conf->lease);
        args += 2;
    }

    if (conf->ttl != (ngx_msec_t) IDEM_TTL_DEFAULT_MS) {
        p = ngx_http_idem_put_raw(p, "$3\r\nTTL\r\n");
        p = ngx_http_idem_put_number(p, conf->ttl);
        args += 2;
    }

    /* who gets an agreed text does not wait for another answer */

    if (conf->wait && conf->duplicate != NGX_HTTP_IDEM_FIXED) {
        p = ngx_http_idem_put_raw(p, "$4\r\nWAIT\r\n");
        p = ngx_http_idem_put_number(p, conf->wait);
        args += 2;
    }

    conf->begin.len = p - conf->begin.data;

    if (conf->fingerprint != NGX_HTTP_IDEM_FP_OFF) {
        args += 2;
    }

    conf->begin_head.data = p;
    p = ngx_http_idem_put_line(p, '*', args);
    p = ngx_http_idem_put_raw(p, "$5\r\nBEGIN\r\n");
    conf->begin_head.len = p - conf->begin_head.data;

    conf->begin_token_head.data = p;
    p = ngx_http_idem_put_line(p, '*', args + 1);
    p = ngx_http_idem_put_raw(p, "$5\r\nBEGIN\r\n");
    conf->begin_token_head.len = p - conf->begin_token_head.data;

    return NGX_OK;
}


void
ngx_http_idem_claim_begin(ngx_http_idem_ctx_t *ctx)
{
    u_char                    *p;
    ngx_http_idem_op_t        *op;
    ngx_http_idem_claim_t     *claim;
    ngx_http_idem_engine_t    *e = ngx_http_idem_engine();
    ngx_http_idem_loc_conf_t  *conf;

    conf = ctx->conf;
    claim = ctx->claim;

    op = ngx_http_idem_claim_op(claim, ctx->token ? &conf->begin_token_head
                                                  : &conf->begin_head,
                                conf->begin.len + 2 * IDEM_FINGERPRINT_LEN
                                + 5 * NGX_HTTP_IDEM_ARG,
                                ngx_http_idem_claim_begun, &p);
    if (op == NULL) {
        ngx_http_idem_begun(ctx, NULL);
        return;
    }

    claim->begin = op;

    p = ngx_cpymem(p, conf->begin.data, conf->begin.len);
    p = ngx_http_idem_put_nonce(p, ngx_http_idem_nonce(e));

    if (ctx->token) {
        p = ngx_http_idem_put_raw(p, "$5\r\nTOKEN\r\n");
    }

    if (conf->fingerprint != NGX_HTTP_IDEM_FP_OFF) {
        p = ngx_http_idem_put_raw(p, "$2\r\nFP\r\n$64\r\n");
        p = ngx_hex_dump(p, ctx->fingerprint, IDEM_FINGERPRINT_LEN);
        p = ngx_http_idem_put_raw(p, "\r\n");
    }

    op->until += conf->wait;

    ngx_http_idem_op_send(e, op, p);
}


/*
 * An answer to it was lost, so it may be stored: the same nonce finds out.  An
 * error says nothing about that, and "busy" may be somebody's row lock, behind
 * which the record is ours.  Who waits is told "busy" at once.
 */

static ngx_int_t
ngx_http_idem_claim_unsure(ngx_http_idem_op_t *op, struct gateway_reply *reply)
{
    ngx_uint_t              busy;
    ngx_http_idem_ctx_t    *ctx;
    ngx_http_idem_claim_t  *claim = op->data;

    if (gateway_reply_is(reply, 0, "error")
        && gateway_reply_is(reply, 1, "LOST"))
    {
        op->unsure = 1;
    }

    busy = gateway_reply_is(reply, 0, "busy");

    if (!op->unsure || !(busy || gateway_reply_is(reply, 0, "error"))) {
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
ngx_http_idem_claim_begun(ngx_http_idem_op_t *op, struct gateway_reply *reply)
{
    ngx_http_idem_claim_t   *claim = op->data;
    ngx_http_idem_engine_t  *e = ngx_http_idem_engine();

    if (reply && ngx_http_idem_claim_unsure(op, reply)) {
        return;
    }

    claim->begin = NULL;

    if (reply && gateway_reply_is(reply, 0, "started") && reply->count > 1) {
        claim->state = NGX_HTTP_IDEM_EXECUTING;
        claim->fence = reply->values[1].number;

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


/* every third of the lease, until FINISH or RELEASE is acknowledged */

void
ngx_http_idem_claim_renew(ngx_http_idem_claim_t *claim)
{
    u_char              *p;
    ngx_http_idem_op_t  *op;

    static ngx_str_t  head = ngx_string("*7\r\n$5\r\nRENEW\r\n");

    claim->renew_at = ngx_current_msec + claim->lease / 3;

    if (claim->renewal) {
        return;
    }

    op = ngx_http_idem_claim_op(claim, &head, 2 * NGX_HTTP_IDEM_ARG,
                                ngx_http_idem_claim_renewed, &p);
    if (op == NULL) {
        return;
    }

    claim->renewal = op;

    p = ngx_http_idem_put_number(p, claim->fence);
    p = ngx_http_idem_put_number(p, claim->lease);
    ngx_http_idem_op_send(ngx_http_idem_engine(), op, p);
}


static void
ngx_http_idem_claim_renewed(ngx_http_idem_op_t *op,
    struct gateway_reply *reply)
{
    ngx_http_idem_claim_t  *claim = op->data;

    claim->renewal = NULL;

    if (reply && gateway_reply_is(reply, 0, "stale")
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


/* the fence, and how it ended */

static u_char *
ngx_http_idem_put_held(u_char *p, ngx_http_idem_claim_t *claim,
    ngx_uint_t failed)
{
    p = ngx_http_idem_put_number(p, claim->fence);

    return failed ? ngx_http_idem_put_raw(p, "$6\r\nFAILED\r\n")
                  : ngx_http_idem_put_raw(p, "$9\r\nSUCCEEDED\r\n");
}


/* FINISH with the held answer, or without one that is too large to keep */

ngx_int_t
ngx_http_idem_claim_finish(ngx_http_idem_ctx_t *ctx, ngx_uint_t failed,
    ngx_uint_t replayable)
{
    u_char                 *p;
    size_t                  head;
    ngx_chain_t            *cl;
    ngx_http_idem_op_t     *op;
    ngx_http_idem_claim_t  *claim;
    struct gateway_result   result;

    static ngx_str_t  finish = ngx_string("*10\r\n$6\r\nFINISH\r\n");

    claim = ctx->claim;
    head = 0;

    if (replayable) {
        if (ngx_http_idem_gather(ctx, &result) == NGX_OK) {
            head = gateway_result_head_len(&result);
        }

        if (head == 0 || head + ctx->held_size > ctx->conf->max_answer) {
            replayable = 0;
        }
    }

    if (!replayable) {
        return ngx_http_idem_claim_finish_large(claim, failed);
    }

    op = ngx_http_idem_claim_op(claim, &finish, head + ctx->held_size
                                                + 5 * NGX_HTTP_IDEM_ARG,
                                ngx_http_idem_claim_ended, &p);
    if (op == NULL) {
        return NGX_ERROR;
    }

    p = ngx_http_idem_put_held(p, claim, failed);
    p = ngx_http_idem_put_line(p, '$', head + ctx->held_size);
    gateway_result_head(&result, p);
    p += head;

    for (cl = ctx->held; cl; cl = cl->next) {
        p = ngx_cpymem(p, cl->buf->pos, cl->buf->last - cl->buf->pos);
    }

    p = ngx_http_idem_put_raw(p, "\r\n$4\r\nKIND\r\n$4\r\nhttp\r\n");

    claim->state = NGX_HTTP_IDEM_ENDING;
    op->hurry = 1;

    ngx_http_idem_op_send(ngx_http_idem_engine(), op, p);

    return NGX_OK;
}


static ngx_int_t
ngx_http_idem_claim_finish_large(ngx_http_idem_claim_t *claim,
    ngx_uint_t failed)
{
    u_char              *p;
    ngx_http_idem_op_t  *op;

    static ngx_str_t  head = ngx_string("*11\r\n$6\r\nFINISH\r\n");

    op = ngx_http_idem_claim_op(claim, &head, 6 * NGX_HTTP_IDEM_ARG,
                                ngx_http_idem_claim_ended, &p);
    if (op == NULL) {
        return NGX_ERROR;
    }

    p = ngx_http_idem_put_held(p, claim, failed);
    p = ngx_http_idem_put_raw(p, "$0\r\n\r\n$4\r\nKIND\r\n$4\r\nhttp\r\n"
                                 "$8\r\nNOREPLAY\r\n");

    claim->state = NGX_HTTP_IDEM_ENDING;
    op->hurry = 1;

    ngx_http_idem_op_send(ngx_http_idem_engine(), op, p);

    return NGX_OK;
}


ngx_int_t
ngx_http_idem_claim_release(ngx_http_idem_claim_t *claim)
{
    u_char              *p;
    ngx_http_idem_op_t  *op;

    static ngx_str_t  head = ngx_string("*6\r\n$7\r\nRELEASE\r\n");

    op = ngx_http_idem_claim_op(claim, &head, NGX_HTTP_IDEM_ARG,
                                ngx_http_idem_claim_ended, &p);
    if (op == NULL) {
        return NGX_ERROR;
    }

    p = ngx_http_idem_put_number(p, claim->fence);

    claim->state = NGX_HTTP_IDEM_ENDING;
    op->hurry = 1;

    ngx_http_idem_op_send(ngx_http_idem_engine(), op, p);

    return NGX_OK;
}


static void
ngx_http_idem_claim_ended(ngx_http_idem_op_t *op, struct gateway_reply *reply)
{
    ngx_http_idem_claim_t   *claim = op->data;
    ngx_http_idem_engine_t  *e = ngx_http_idem_engine();

    if (reply && gateway_reply_is(reply, 0, "error")) {

        if (gateway_reply_is(reply, 1, "ERR")
            && op->len > IDEM_SCOPE_MAX + IDEM_ID_MAX + 512
            && claim->state == NGX_HTTP_IDEM_ENDING)
        {
            /* more than this engine keeps; it still is done */

            ngx_log_error(NGX_LOG_WARN, e->log, 0,
                          "idem: the engine refused an answer: %*s",
                          reply->values[2].bytes.len,
                          reply->values[2].bytes.data);

            if (ngx_http_idem_claim_finish_large(claim,
                         ngx_strnstr(op->cmd, "$6\r\nFAILED\r\n",
                                     ngx_min(op->len, 700)) != NULL)
                == NGX_OK)
            {
                ngx_http_idem_claim_unref(claim);
                return;
            }
        }

        ngx_http_idem_op_again(e, op);
        return;
    }

    if (reply && gateway_reply_is(reply, 0, "busy")) {

        /* somebody's transaction locks the row: nothing was recorded yet */

        ngx_http_idem_op_again(e, op);
        return;
    }

    ngx_http_idem_renew_stop(claim);

    claim->state = NGX_HTTP_IDEM_ENDED;

    if (reply && gateway_reply_is(reply, 0, "stale")) {
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
    u_char              *p;
    ngx_http_idem_op_t  *op;

    static ngx_str_t  head = ngx_string("*8\r\n$5\r\nRENEW\r\n");

    ngx_http_idem_renew_stop(claim);

    if (claim->state != NGX_HTTP_IDEM_EXECUTING) {
        return;
    }

    claim->state = NGX_HTTP_IDEM_ENDED;

    if (!strict) {
        return;
    }

    op = ngx_http_idem_claim_op(claim, &head, 3 * NGX_HTTP_IDEM_ARG,
                                ngx_http_idem_claim_renewed, &p);
    if (op == NULL) {
        return;                              /* then its lease runs out */
    }

    p = ngx_http_idem_put_number(p, claim->fence);
    p = ngx_http_idem_put_number(p, claim->lease);
    p = ngx_http_idem_put_raw(p, "$4\r\nLOST\r\n");
    ngx_http_idem_op_send(ngx_http_idem_engine(), op, p);
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
