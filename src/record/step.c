/*
 * step.c - the state machine: what one operation does to one record.
 *
 *              BEGIN, LOCK            FINISH
 *   absent ───────────────▶ executing ───────▶ succeeded · failed
 *     │  ▲                    │    ▲                  │
 *     │  └─ expires ─ free ◀──┘    └─ BEGIN, token    └─ expires ─▶ absent
 *     │ ISSUE     RELEASE, UNLOCK    │
 *     └──────────▶ issued ───────────┘  REDEEM ─▶ succeeded
 *
 * All surfaces and all stores use this code for every decision. The rest of
 * idem relies on these rules:
 *
 *   - the fence of a key only grows;
 *   - executing never expires, and strict executing is never started again;
 *   - a client that does not hold the current fence changes nothing.
 */
#include "record.h"

#include <assert.h>
#include <string.h>

/* A freed record is kept this long, with its fence and nonce, so that a late
 * duplicate of the freed request is recognised. */
#define FREE_MS (INT64_C(3600) * 1000)
#define FREE_LOCK_MS (INT64_C(30) * 24 * 3600 * 1000)

static int64_t
later(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

bool
idem__record_expired(const struct idem_record *record,
                     const struct idem_now *now)
{
    return record->state != IDEM_STATE_EXECUTING && record->expires != 0 &&
           record->expires <= now->early_ms;
}

bool
idem__lease_over(const struct idem_record *record, const struct idem_now *now)
{
    return record->state == IDEM_STATE_EXECUTING &&
           record->lease_until <= now->early_ms &&
           record->lease_until - record->updated <= now->up_ms;
}

/* If a clock was ahead, the fence may be later than the expiry. The next fence
 * must be larger, and after the record is gone it comes from the clock alone,
 * so the record stays until the clock has passed the fence. */
int64_t
idem__record_drop_at(const struct idem_record *record)
{
    int64_t fence_ms = (int64_t)(record->fence / 1000) + 1;

    if (record->state == IDEM_STATE_EXECUTING || record->expires == 0)
        return 0;
    return later(record->expires, fence_ms);
}

bool
idem__may_come_into_doubt(const struct idem_record *r)
{
    return r->state == IDEM_STATE_EXECUTING && r->mode == IDEM_STRICT &&
           (r->type == IDEM_TYPE_REQUEST || r->type == IDEM_TYPE_TOKEN);
}

bool
idem__filter_match(const struct idem_filter *filter,
                   const struct idem_record *record, const struct idem_now *now)
{
    if (idem__record_expired(record, now))
        return false;
    if (filter->type != 0 && filter->type != record->type)
        return false;
    if (filter->state != 0 && filter->state != record->state)
        return false;
    if (filter->scope.len > 0 &&
        !idem__bytes_equal(filter->scope, record->scope))
        return false;
    if (filter->id.len > 0 && !idem__bytes_equal(filter->id, record->id))
        return false;
    if (filter->updated_before != 0 &&
        record->updated >= filter->updated_before)
        return false;
    return !filter->doubt ||
           (idem__may_come_into_doubt(record) && idem__lease_over(record, now));
}

static bool
finished(const struct idem_record *r)
{
    return r->state == IDEM_STATE_SUCCEEDED || r->state == IDEM_STATE_FAILED;
}

static bool
holds(const struct idem_record *r, const struct idem_op *op)
{
    return r->state == IDEM_STATE_EXECUTING && r->fence == op->fence;
}

static bool
same_nonce(const struct idem_record *r, const struct idem_op *op)
{
    return op->nonce && memcmp(r->nonce, op->nonce, IDEM_NONCE_LEN) == 0;
}

static bool
other_request(const struct idem_record *r, const struct idem_op *op)
{
    return op->fingerprint && (r->flags & IDEM_FLAG_FINGERPRINT) &&
           memcmp(r->fingerprint, op->fingerprint, IDEM_FINGERPRINT_LEN) != 0;
}

static uint64_t
next_fence(const struct idem_record *last, const struct idem_now *now)
{
    uint64_t fence = last ? last->fence + 1 : 1;

    return fence > now->late_us ? fence : now->late_us;
}

/* How long an outcome is kept if the op does not say: as long as the start
 * asked for. A record that was written without an expiry gets the default. */
static int64_t
kept_ttl(const struct idem_record *r)
{
    return r->expires > r->created ? r->expires - r->created
                                   : IDEM_TTL_DEFAULT_MS;
}

/* Locks and workers pass a note from holder to holder. */
static bool
has_note(const struct idem_record *r)
{
    return r->type == IDEM_TYPE_LOCK || r->type == IDEM_TYPE_WORKER;
}

/*
 * Start a new record for this key. The fence continues from the stored record
 * (`last`, may be NULL), so that fences only grow. The number of attempts
 * continues only from a record that has not expired (`r`, may be NULL). The
 * time at which the store removes an expired record must make no visible
 * difference.
 */
static void
new_life(struct idem_record *next, const struct idem_record *r,
         const struct idem_record *last, const struct idem_op *op,
         const struct idem_now *now)
{
    memset(next, 0, sizeof(*next));
    next->type = (uint8_t)op->type;
    next->mode = (uint8_t)op->mode;
    next->fence = next_fence(last, now);
    next->attempt = r ? r->attempt : 0;
    next->created = now->late_ms;
    next->updated = now->late_ms;
    next->expires = now->late_ms + op->ttl_ms;
    next->scope = op->scope;
    next->id = op->id;
    next->subject = op->subject;
    if (op->nonce)
        memcpy(next->nonce, op->nonce, IDEM_NONCE_LEN);
}

/* The end of a lease that begins now. */
static int64_t
lease_end(const struct idem_op *op, const struct idem_now *now)
{
    return later(now->late_ms, now->steady_ms) + op->lease_ms;
}

/* Set the state to executing, owned by the caller. */
static enum idem_verdict
start(struct idem_record *next, const struct idem_record *r,
      const struct idem_record *last, const struct idem_op *op,
      const struct idem_now *now)
{
    new_life(next, r, last, op, now);
    next->state = IDEM_STATE_EXECUTING;
    next->attempt++;
    next->lease_until = lease_end(op, now);
    if (op->fingerprint) {
        next->flags |= IDEM_FLAG_FINGERPRINT;
        memcpy(next->fingerprint, op->fingerprint, IDEM_FINGERPRINT_LEN);
    }
    return IDEM_V_STARTED;
}

/* Another caller takes over an executing record. It keeps the time of creation
 * and, if the op has none, the fingerprint. */
static enum idem_verdict
take_over(struct idem_record *next, const struct idem_record *r,
          const struct idem_op *op, const struct idem_now *now)
{
    start(next, r, r, op, now);
    next->created = r->created;
    next->expires = r->created + op->ttl_ms;
    if (!op->fingerprint && (r->flags & IDEM_FLAG_FINGERPRINT)) {
        next->flags |= IDEM_FLAG_FINGERPRINT;
        memcpy(next->fingerprint, r->fingerprint, IDEM_FINGERPRINT_LEN);
    }
    return IDEM_V_STARTED;
}

/* Free the record. The fence and the nonce stay, the answer does not. */
static enum idem_verdict
set_free(struct idem_record *next, const struct idem_record *r,
         const struct idem_op *op, const struct idem_now *now)
{
    *next = *r;
    next->state = IDEM_STATE_FREE;
    next->flags = 0;
    next->updated = now->late_ms;
    next->lease_until = 0;
    next->kind = IDEM_KIND_RAW;
    next->subject = (struct idem_bytes){NULL, 0};
    if (!has_note(r))
        next->result = (struct idem_bytes){NULL, 0};
    else if (op->result.data)
        next->result = op->result;
    next->expires = r->type == IDEM_TYPE_WORKER
                        ? 0
                        : now->late_ms + now->behind_ms +
                              (has_note(r) ? FREE_LOCK_MS : FREE_MS);
    memset(next->fingerprint, 0, sizeof(next->fingerprint));
    return IDEM_V_OK;
}

static void
set_outcome(struct idem_record *next, const struct idem_op *op,
            enum idem_state outcome, int64_t ttl_ms, const struct idem_now *now)
{
    next->state = (uint8_t)outcome;
    next->kind = (uint8_t)op->kind;
    next->result = op->result;
    next->updated = now->late_ms;
    next->lease_until = 0;
    next->expires = now->late_ms + now->behind_ms + ttl_ms;
    if (op->not_replayable) {
        next->flags |= IDEM_FLAG_NOT_REPLAYABLE;
        next->result = (struct idem_bytes){NULL, 0};
    }
}

/* The verdict for a caller that meets an executing record. */
static enum idem_verdict
busy_or_doubt(const struct idem_record *r, const struct idem_now *now)
{
    return idem__lease_over(r, now) ? IDEM_V_DOUBT : IDEM_V_BUSY;
}

static enum idem_verdict
begin(const struct idem_record *r, const struct idem_record *last,
      const struct idem_op *op, const struct idem_now *now,
      struct idem_record *next)
{
    bool token = op->type == IDEM_TYPE_TOKEN;

    if (!r)
        return token ? IDEM_V_UNKNOWN : start(next, NULL, last, op, now);
    if (other_request(r, op))
        return IDEM_V_MISMATCH;

    switch ((enum idem_state)r->state) {
    case IDEM_STATE_FREE:
        /* A token that was begun and released may be tried again. A token that
         * was forgotten before anybody began it is gone. */
        if (token && r->attempt == 0)
            return IDEM_V_UNKNOWN;
        return same_nonce(r, op) ? IDEM_V_STALE : start(next, r, r, op, now);
    case IDEM_STATE_ISSUED:
        return token ? start(next, r, r, op, now) : IDEM_V_UNKNOWN;
    case IDEM_STATE_EXECUTING:
        if (same_nonce(r, op))
            return IDEM_V_STARTED;
        if (r->mode == IDEM_LOOSE && idem__lease_over(r, now))
            return take_over(next, r, op, now);
        return busy_or_doubt(r, now);
    case IDEM_STATE_SUCCEEDED:
    case IDEM_STATE_FAILED:
        return r->flags & IDEM_FLAG_REDEEMED ? IDEM_V_DUPLICATE : IDEM_V_REPLAY;
    case IDEM_STATE_ABSENT:
        break;
    }
    assert(!"a stored record is never absent");
    return IDEM_V_BUSY;
}

static bool
same_outcome(const struct idem_record *r, const struct idem_op *op)
{
    if (r->state != op->outcome || r->kind != op->kind)
        return false;
    if (r->flags & IDEM_FLAG_NOT_REPLAYABLE)
        return op->not_replayable;
    return !op->not_replayable && idem__bytes_equal(r->result, op->result);
}

static enum idem_verdict
finish(const struct idem_record *r, const struct idem_op *op,
       const struct idem_now *now, struct idem_record *next)
{
    bool frees;

    if (!r || r->fence != op->fence)
        return IDEM_V_STALE;

    /* Loose mode: only success counts; a failure frees the record for a
     * retry. */
    frees = r->mode == IDEM_LOOSE && op->outcome == IDEM_STATE_FAILED;
    if (holds(r, op)) {
        if (frees)
            return set_free(next, r, op, now);
        *next = *r;
        set_outcome(next, op, op->outcome,
                    op->ttl_ms ? op->ttl_ms : kept_ttl(r), now);
        return IDEM_V_OK;
    }
    if (frees && r->state == IDEM_STATE_FREE)
        return IDEM_V_OK;
    if (!finished(r))
        return IDEM_V_STALE;
    return same_outcome(r, op) ? IDEM_V_OK : IDEM_V_FINISHED;
}

static enum idem_verdict
renew(const struct idem_record *r, const struct idem_op *op,
      const struct idem_now *now, struct idem_record *next)
{
    if (!r || !holds(r, op))
        return IDEM_V_STALE;
    *next = *r;
    next->lease_until = later(r->lease_until, lease_end(op, now));
    next->updated = now->late_ms;
    /* The holder will never learn the outcome, so nobody needs to wait for
     * it. */
    if (op->lost)
        next->lease_until = now->late_ms;
    if (op->result.data && has_note(r))
        next->result = op->result;
    return IDEM_V_OK;
}

/* True if the operator named another execution than this one, by its fence. */
static bool
means_another(const struct idem_record *r, const struct idem_op *op)
{
    return op->fence != 0 && (!r || r->fence != op->fence);
}

static enum idem_verdict
settle(const struct idem_record *r, const struct idem_record *last,
       const struct idem_op *op, const struct idem_now *now,
       struct idem_record *next)
{
    enum idem_state outcome = op->outcome ? op->outcome : IDEM_STATE_FAILED;

    if (r && finished(r))
        return IDEM_V_REPLAY;
    if (means_another(r, op))
        return IDEM_V_STALE;
    if (r && r->state == IDEM_STATE_EXECUTING) {
        if (!op->outcome || !idem__lease_over(r, now))
            return busy_or_doubt(r, now);
        *next = *r;
        next->fence = next_fence(r, now);
        if (op->subject.len > 0)
            next->subject = op->subject;
    } else {
        new_life(next, r, last, op, now);
    }
    next->flags |= IDEM_FLAG_SETTLED;
    set_outcome(next, op, outcome, op->ttl_ms, now);
    return IDEM_V_SETTLED;
}

static enum idem_verdict
issue(const struct idem_record *r, const struct idem_record *last,
      const struct idem_op *op, const struct idem_now *now,
      struct idem_record *next)
{
    if (r && r->state != IDEM_STATE_FREE)
        return IDEM_V_DUPLICATE;
    new_life(next, NULL, last, op, now);
    next->state = IDEM_STATE_ISSUED;
    next->expires += now->behind_ms;
    return IDEM_V_ISSUED;
}

static enum idem_verdict
redeem(const struct idem_record *r, const struct idem_op *op,
       const struct idem_now *now, struct idem_record *next)
{
    if (!r || r->state == IDEM_STATE_FREE)
        return IDEM_V_UNKNOWN;
    if (r->state == IDEM_STATE_ISSUED) {
        *next = *r;
        next->fence = next_fence(r, now);
        next->flags |= IDEM_FLAG_REDEEMED;
        if (op->nonce)
            memcpy(next->nonce, op->nonce, IDEM_NONCE_LEN);
        set_outcome(next, op, IDEM_STATE_SUCCEEDED,
                    op->ttl_ms ? op->ttl_ms : kept_ttl(r), now);
        return IDEM_V_REDEEMED;
    }
    if ((r->flags & IDEM_FLAG_REDEEMED) && same_nonce(r, op))
        return IDEM_V_REDEEMED;
    return IDEM_V_DUPLICATE;
}

static enum idem_verdict
lock(const struct idem_record *r, const struct idem_record *last,
     const struct idem_op *op, const struct idem_now *now,
     struct idem_record *next)
{
    bool held =
        r && r->state == IDEM_STATE_EXECUTING && !idem__lease_over(r, now);

    if (held && !idem__bytes_equal(r->subject, op->subject))
        return IDEM_V_BUSY;
    if (held) {
        *next = *r;
        next->lease_until = later(r->lease_until, lease_end(op, now));
        next->updated = now->late_ms;
    } else {
        start(next, r, last, op, now);
        if (r)
            next->result = r->result;
    }
    if (op->result.data)
        next->result = op->result;
    return IDEM_V_STARTED;
}

/* `last` is the stored record; `r` is the same, or NULL if it has expired. */
static enum idem_verdict
decide(const struct idem_record *r, const struct idem_record *last,
       const struct idem_op *op, const struct idem_now *now,
       struct idem_record *next)
{
    switch (op->verb) {
    case IDEM_BEGIN:
        return begin(r, last, op, now, next);
    case IDEM_FINISH:
        return finish(r, op, now, next);
    case IDEM_RELEASE:
    case IDEM_UNLOCK:
        return r && holds(r, op) ? set_free(next, r, op, now) : IDEM_V_STALE;
    case IDEM_RENEW:
        return renew(r, op, now, next);
    case IDEM_SETTLE:
        return settle(r, last, op, now, next);
    case IDEM_GET:
        return r ? IDEM_V_RECORD : IDEM_V_ABSENT;
    case IDEM_FORGET:
        if (!r || r->state == IDEM_STATE_FREE)
            return r ? IDEM_V_OK : IDEM_V_ABSENT;
        if (means_another(r, op))
            return IDEM_V_STALE;
        return set_free(next, r, op, now);
    case IDEM_ISSUE:
        return issue(r, last, op, now, next);
    case IDEM_REDEEM:
        return redeem(r, op, now, next);
    case IDEM_LOCK:
        return lock(r, last, op, now, next);
        break;
    }
    assert(!"op was checked");
    return IDEM_V_BUSY;
}

enum idem_verdict
idem__step(const struct idem_record *current, const struct idem_op *op,
           const struct idem_now *now, struct idem_record *next)
{
    bool counts = current && !idem__record_expired(current, now);
    enum idem_verdict verdict;

    next->state = IDEM_STATE_ABSENT;
    verdict = decide(counts ? current : NULL, current, op, now, next);
    next->rev = 0;
    return verdict;
}
