/*
 * op.c - checks every operation of every surface, once, before it is carried
 * out.
 */
#include "record.h"

#include <string.h>

static enum idem_status
check_name(const char *what, struct idem_bytes name, size_t max,
           struct idem_error *err)
{
    if (name.len == 0)
        return idem__fail(err, IDEM_ERR_INVALID,
                          "%s is empty: give 1 to %zu bytes", what, max);
    if (name.len > max)
        return idem__fail(err, IDEM_ERR_INVALID,
                          "%s has %zu bytes, the limit is %zu: hash it or "
                          "shorten it",
                          what, name.len, max);
    if (memchr(name.data, 0, name.len))
        return idem__fail(err, IDEM_ERR_INVALID,
                          "%s contains a NUL byte: any other byte is fine",
                          what);
    return IDEM_OK;
}

static enum idem_status
check_time(const char *what, int64_t *value, int64_t otherwise, int64_t max,
           struct idem_error *err)
{
    if (*value == 0)
        *value = otherwise;
    if (*value < 0 || *value > max)
        return idem__fail(err, IDEM_ERR_INVALID,
                          "%s of %lld ms is out of range: give 1 to %lld ms, "
                          "or 0 for the default",
                          what, (long long)*value, (long long)max);
    return IDEM_OK;
}

static bool
needs_fence(enum idem_verb verb)
{
    return verb == IDEM_FINISH || verb == IDEM_RELEASE || verb == IDEM_RENEW ||
           verb == IDEM_UNLOCK;
}

static enum idem_type
implied_type(enum idem_verb verb)
{
    if (verb == IDEM_ISSUE || verb == IDEM_REDEEM)
        return IDEM_TYPE_TOKEN;
    if (verb == IDEM_LOCK || verb == IDEM_UNLOCK)
        return IDEM_TYPE_LOCK;
    return IDEM_TYPE_REQUEST;
}

/* Locks and workers are locked, tokens are issued and redeemed. Only requests
 * and tokens have an outcome, so that the note of a lock is never taken for
 * one. */
static bool
verb_fits(enum idem_verb verb, enum idem_type type)
{
    bool note = type == IDEM_TYPE_LOCK || type == IDEM_TYPE_WORKER;

    switch (verb) {
    case IDEM_BEGIN:
    case IDEM_FINISH:
    case IDEM_SETTLE:
        return !note;
    case IDEM_ISSUE:
    case IDEM_REDEEM:
        return type == IDEM_TYPE_TOKEN;
    case IDEM_LOCK:
    case IDEM_UNLOCK:
        return note;
    default:
        return true;
    }
}

static enum idem_status
check_nonce(const struct idem_op *op, struct idem_error *err)
{
    static const uint8_t zeros[IDEM_NONCE_LEN];

    /* Two operations with the same nonce count as the same caller. */
    if (op->nonce && memcmp(op->nonce, zeros, IDEM_NONCE_LEN) == 0)
        return idem__fail(err, IDEM_ERR_INVALID,
                          "a nonce of zeros does not tell callers apart: give "
                          "%d random bytes, or none",
                          IDEM_NONCE_LEN);
    return IDEM_OK;
}

static enum idem_status
check_outcome(const struct idem_op *op, struct idem_error *err)
{
    bool named =
        op->outcome == IDEM_STATE_SUCCEEDED || op->outcome == IDEM_STATE_FAILED;

    if (op->verb == IDEM_FINISH && !named)
        return idem__fail(err, IDEM_ERR_INVALID,
                          "finish needs an outcome: succeeded or failed");
    if (op->verb == IDEM_SETTLE && op->outcome != 0 && !named)
        return idem__fail(err, IDEM_ERR_INVALID,
                          "settle takes the outcome succeeded or failed, "
                          "or none");
    return IDEM_OK;
}

static enum idem_status
check_numbers(struct idem_op *op, struct idem_error *err)
{
    /* FINISH without a TTL keeps the one that BEGIN gave; REDEEM the one that
     * ISSUE gave. */
    bool keeps_ttl = op->verb == IDEM_FINISH || op->verb == IDEM_REDEEM;
    int64_t ttl = op->verb == IDEM_ISSUE ? IDEM_TOKEN_TTL_DEFAULT_MS
                  : keeps_ttl            ? 0
                                         : IDEM_TTL_DEFAULT_MS;
    enum idem_status status;

    status = check_time("a lease", &op->lease_ms, IDEM_LEASE_DEFAULT_MS,
                        IDEM_LEASE_MAX_MS, err);
    if (status == IDEM_OK)
        status = check_time("a TTL", &op->ttl_ms, ttl, IDEM_TTL_MAX_MS, err);
    if (status == IDEM_OK)
        status = check_time("a wait", &op->wait_ms, 0, IDEM_WAIT_MAX_MS, err);
    if (status != IDEM_OK)
        return status;

    if (needs_fence(op->verb) && (op->fence == 0 || op->fence > IDEM_FENCE_MAX))
        return idem__fail(err, IDEM_ERR_INVALID,
                          "%s needs the fence that the start gave: a number "
                          "from 1 to 2^53 - 1",
                          idem_verb_name(op->verb));
    if (op->fence > IDEM_FENCE_MAX)
        return idem__fail(err, IDEM_ERR_INVALID,
                          "a fence is a number from 1 to 2^53 - 1");
    if (op->result.len > IDEM_RESULT_MAX)
        return idem__fail(err, IDEM_ERR_INVALID,
                          "a result of %zu bytes is over the limit of %d: "
                          "store it elsewhere and keep a pointer to it",
                          op->result.len, IDEM_RESULT_MAX);
    return IDEM_OK;
}

enum idem_status
idem__op_check(struct idem_op *op, struct idem_error *err)
{
    enum idem_status status;

    if (IDEM__ROOM_CHECK(op, err) != IDEM_OK)
        return IDEM_ERR_UNSUPPORTED;
    if ((unsigned)op->verb >= IDEM__VERB_COUNT)
        return idem__fail(err, IDEM_ERR_INVALID, "there is no verb number %u",
                          (unsigned)op->verb);
    if (op->type == 0)
        op->type = implied_type(op->verb);
    if ((unsigned)op->type > IDEM_TYPE_WORKER)
        return idem__fail(err, IDEM_ERR_INVALID,
                          "there is no record type number %u",
                          (unsigned)op->type);
    if (!verb_fits(op->verb, op->type))
        return idem__fail(err, IDEM_ERR_INVALID, "%s does not work on a %s",
                          idem_verb_name(op->verb), idem_type_name(op->type));
    if ((unsigned)op->mode > IDEM_LOOSE)
        return idem__fail(err, IDEM_ERR_INVALID,
                          "a mode is strict or loose, not number %u",
                          (unsigned)op->mode);
    if ((unsigned)op->kind > IDEM_KIND_EXEC)
        return idem__fail(err, IDEM_ERR_INVALID,
                          "a kind is raw, http or exec, not number %u",
                          (unsigned)op->kind);

    status = check_name("the scope", op->scope, IDEM_SCOPE_MAX, err);
    if (status == IDEM_OK)
        status = check_name("the id (key)", op->id, IDEM_ID_MAX, err);
    if (status == IDEM_OK && (op->verb == IDEM_LOCK || op->subject.len > 0))
        status = check_name(op->verb == IDEM_LOCK ? "the owner" : "the subject",
                            op->subject, IDEM_SUBJECT_MAX, err);
    if (status == IDEM_OK)
        status = check_nonce(op, err);
    if (status == IDEM_OK)
        status = check_outcome(op, err);
    if (status == IDEM_OK)
        status = check_numbers(op, err);
    return status;
}
