/*
 * step_test.c - compares the state machine with a table that a person can read.
 *
 * `table` in tests/support/step_table.h says what each verb does on each state.
 * The generator makes every combination of state, verb, lease, expiry,
 * fingerprint, mode, fence, nonce, type and so on, finds the one row that
 * applies (none or two is an error of the table), and compares it with what
 * step() did. In addition it checks the invariants I1 to I5, and rules for
 * everything that is written.
 */
#include "record.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "../../tests/support/step_table.h"

/* ---- one situation ---------------------------------------------------- */

#define EARLY_MS INT64_C(1000000)
#define LATE_MS (EARLY_MS + 7)
#define LATE_US ((uint64_t)LATE_MS * 1000)
#define AHEAD_US (UINT64_C(30) * 24 * 3600 * 1000000)
#define LEASE_MS 500 /* of the start of the record */
#define BEHIND_MS 4000
#define STEADY_MS (LATE_MS + 3000)
#define FREE_MS INT64_C(3600000)
#define FREE_LOCK_MS (30 * 24 * FREE_MS)

enum { LEASE_ALIVE, LEASE_OVER, LEASE_OVER_BUT_ENGINE_YOUNG, LEASES };
enum { NOT_YET, EXPIRED, NEVER, EXPIRIES };
enum { FENCE_SAME, FENCE_OLDER, FENCE_NEWER, FENCE_NONE, FENCES };

/* The dimensions; each counts from 0 to below its size in `sizes`. Those of the
 * op come first, then those of the record. */
struct point {
    int verb, op_mode, op_fp, nonce, fence, outcome, result, not_replayable,
        owner;
    int state, type, lease, expiry, record_mode, record_fp, fence_ahead,
        redeemed, attempt, kept;
};

#define OP_DIMENSIONS (offsetof(struct point, state) / sizeof(int))

static const struct point sizes = {
    .verb = 11,          /* as enum idem_verb */
    .op_mode = 2,        /* */
    .op_fp = 3,          /* none, A, B */
    .nonce = 2,          /* another than the record's, the same */
    .fence = FENCES,     /* */
    .outcome = 3,        /* none, succeeded, failed */
    .result = 2,         /* another than the record's, the same */
    .not_replayable = 2, /* the op says so */
    .owner = 2,          /* another than the record's, the same */
    .state = 6,          /* as enum idem_state */
    .type = 4,           /* as enum idem_type, less 1 */
    .lease = LEASES,     /* */
    .expiry = EXPIRIES,  /* */
    .record_mode = 2,    /* */
    .record_fp = 2,      /* none, A */
    .fence_ahead = 2,    /* the record's fence lies before, after the clock */
    .redeemed = 2,       /* */
    .attempt = 2,        /* 0, 1 */
    .kept = 2,           /* the result was kept, was too large */
};

#define DIMENSIONS (sizeof(struct point) / sizeof(int))

static const uint8_t print_a[IDEM_FINGERPRINT_LEN] = {1};
static const uint8_t print_b[IDEM_FINGERPRINT_LEN] = {2};
static const uint8_t nonce_a[IDEM_NONCE_LEN] = {1};
static const uint8_t nonce_b[IDEM_NONCE_LEN] = {2};

/* Is such a record possible? Dimensions without effect here are not varied. */
static bool
record_makes_sense(const struct point *p)
{
    bool executing = p->state == IDEM_STATE_EXECUTING;
    bool done =
        p->state == IDEM_STATE_SUCCEEDED || p->state == IDEM_STATE_FAILED;
    bool token = p->type + 1 == IDEM_TYPE_TOKEN;
    bool note = p->type + 1 >= IDEM_TYPE_LOCK;

    if (p->state == IDEM_STATE_ABSENT &&
        (p->expiry || p->record_mode || p->fence_ahead || p->attempt))
        return false;
    if (!executing && p->lease != LEASE_ALIVE)
        return false;
    if (p->record_fp && !executing && !done)
        return false; /* a free or only issued record has no fingerprint */
    if (p->redeemed &&
        !(token && p->state == IDEM_STATE_SUCCEEDED && !p->record_fp))
        return false;
    if (p->kept && !done)
        return false;
    if (p->state == IDEM_STATE_ISSUED && (!token || p->attempt))
        return false;
    return !note || !(done || p->record_fp);
}

static bool
may_name_fence(int verb)
{
    return verb == IDEM_SETTLE || verb == IDEM_FORGET;
}

static bool
op_makes_sense(const struct point *p)
{
    bool finishes = p->verb == IDEM_FINISH || p->verb == IDEM_SETTLE;

    if (p->fence == FENCE_NONE && !may_name_fence(p->verb))
        return false;
    if (p->state == IDEM_STATE_ABSENT &&
        (p->nonce || (p->fence && p->fence != FENCE_NONE)))
        return false;
    if (p->owner && !(p->verb == IDEM_LOCK && p->state == IDEM_STATE_EXECUTING))
        return false;
    if (p->op_fp && p->verb != IDEM_BEGIN)
        return false;
    if (p->op_mode && p->verb != IDEM_BEGIN && p->verb != IDEM_SETTLE)
        return false;
    if (!finishes && (p->outcome || p->result || p->not_replayable))
        return false;
    return p->verb != IDEM_SETTLE || !p->result;
}

static void
make_record(const struct point *p, struct idem_record *r)
{
    memset(r, 0, sizeof(*r));
    r->state = (uint8_t)p->state;
    r->type = (uint8_t)(p->type + 1);
    r->mode = (uint8_t)p->record_mode;
    r->attempt = (uint32_t)p->attempt;
    r->fence = p->fence_ahead ? LATE_US + AHEAD_US : LATE_US - 77;
    r->rev = 9;
    r->created = EARLY_MS - 5000;
    r->updated = EARLY_MS - LEASE_MS - 10;
    r->expires = p->expiry == NEVER     ? 0
                 : p->expiry == EXPIRED ? EARLY_MS
                                        : EARLY_MS + 1;
    if (p->state == IDEM_STATE_EXECUTING)
        r->lease_until = p->lease == LEASE_ALIVE ? EARLY_MS + 1 : EARLY_MS;
    memcpy(r->nonce, nonce_a, sizeof(nonce_a));
    if (p->record_fp) {
        r->flags |= IDEM_FLAG_FINGERPRINT;
        memcpy(r->fingerprint, print_a, sizeof(print_a));
    }
    if (p->redeemed)
        r->flags |= IDEM_FLAG_REDEEMED;
    if (p->kept)
        r->flags |= IDEM_FLAG_NOT_REPLAYABLE;
    r->scope = idem_text("scope");
    r->id = idem_text("id");
    r->subject = idem_text("holder");
    if (!p->kept)
        r->result = idem_text("stored");
    if (p->state == IDEM_STATE_SUCCEEDED || p->state == IDEM_STATE_FAILED)
        r->kind = IDEM_KIND_EXEC;
}

static void
make_op(const struct point *p, const struct idem_record *r, struct idem_op *op)
{
    static const enum idem_state outcomes[] = {0, IDEM_STATE_SUCCEEDED,
                                               IDEM_STATE_FAILED};
    static const uint8_t *const prints[] = {NULL, print_a, print_b};

    *op = (struct idem_op){
        .verb = (enum idem_verb)p->verb,
        .type = (enum idem_type)(p->type + 1),
        .scope = idem_text("scope"),
        .id = idem_text("id"),
        .mode = (enum idem_mode)p->op_mode,
        .fence = p->fence == FENCE_SAME    ? r->fence
                 : p->fence == FENCE_OLDER ? r->fence - 1
                 : p->fence == FENCE_NEWER ? r->fence + 1
                                           : 0,
        .fingerprint = prints[p->op_fp],
        .nonce = p->nonce ? nonce_a : nonce_b,
        .outcome = outcomes[p->outcome],
        .not_replayable = p->not_replayable,
        .subject = idem_text(p->owner ? "holder" : "other"),
    };
    if (p->verb == IDEM_FINISH || p->verb == IDEM_SETTLE) {
        op->result = idem_text(p->result ? "stored" : "new");
        op->kind = IDEM_KIND_EXEC;
    }
}

static int
facts_of(const struct point *p, const struct idem_record *r,
         const struct idem_op *op)
{
    int facts = 0;
    bool same_result = op->not_replayable ? p->kept : !p->kept && p->result;

    facts |= p->lease == LEASE_OVER ? OVER : 0;
    facts |= p->record_mode == IDEM_LOOSE ? LOOSE : 0;
    facts |= p->fence == FENCE_SAME ? MINE : 0;
    facts |= p->nonce ? NONCE : 0;
    facts |= p->record_fp && p->op_fp == 2 ? OTHER : 0;
    facts |= r->type == IDEM_TYPE_TOKEN ? TOKEN : 0;
    facts |= p->redeemed ? REDEEMED : 0;
    facts |= p->attempt == 0 ? UNSTARTED : 0;
    facts |= op->outcome == r->state && same_result ? SAME : 0;
    facts |= p->owner ? OWNER : 0;
    facts |= op->outcome ? AS : 0;
    facts |= op->outcome == IDEM_STATE_FAILED ? FAIL : 0;
    return facts;
}

/* ---- the written record ----------------------------------------------- */

#define MUST(condition)                                                        \
    do {                                                                       \
        if (!(condition))                                                      \
            return #condition;                                                 \
    } while (0)

static bool
has_note(const struct idem_record *r)
{
    return r->type == IDEM_TYPE_LOCK || r->type == IDEM_TYPE_WORKER;
}

static bool
same_bytes(struct idem_bytes a, struct idem_bytes b)
{
    return idem__bytes_equal(a, b);
}

/* Not `(counts ? r->attempt : 0) + 1`: gcc 14.2 reads r->attempt before it
 * checks the condition, and r may be NULL. */
static uint32_t
attempts_of(const struct idem_record *r)
{
    return r ? r->attempt : 0;
}

static const char *
check_start(const struct idem_record *r, bool counts, const struct idem_op *op,
            const struct idem_record *next, bool same_life)
{
    bool keeps_print = same_life && !op->fingerprint && r &&
                       (r->flags & IDEM_FLAG_FINGERPRINT);
    const uint8_t *print = keeps_print ? r->fingerprint : op->fingerprint;

    MUST(next->state == IDEM_STATE_EXECUTING);
    MUST(!r || next->fence > r->fence);
    MUST(next->fence >= LATE_US);
    MUST(next->attempt == attempts_of(counts ? r : NULL) + 1);
    MUST(next->created == (same_life ? r->created : LATE_MS));
    MUST(next->expires == next->created + op->ttl_ms);
    MUST(next->lease_until == STEADY_MS + op->lease_ms);
    MUST(next->mode == op->mode);
    MUST(memcmp(next->nonce, op->nonce, IDEM_NONCE_LEN) == 0);
    MUST(same_bytes(next->subject, op->subject));
    MUST(!(next->flags & IDEM_FLAG_FINGERPRINT) == !print);
    MUST(!print || memcmp(next->fingerprint, print, sizeof(print_a)) == 0);
    MUST(!(next->flags & ~IDEM_FLAG_FINGERPRINT));
    MUST(same_bytes(next->result, counts && has_note(next)
                                      ? r->result
                                      : (struct idem_bytes){NULL, 0}));
    return NULL;
}

static const char *
check_outcome(const struct idem_op *op, const struct idem_record *next,
              enum idem_state outcome, int64_t ttl)
{
    MUST(next->state == outcome);
    MUST(next->lease_until == 0);
    MUST(next->expires == LATE_MS + BEHIND_MS + ttl);
    MUST(next->kind == op->kind);
    MUST(!(next->flags & IDEM_FLAG_NOT_REPLAYABLE) == !op->not_replayable);
    MUST(same_bytes(next->result, op->not_replayable
                                      ? (struct idem_bytes){NULL, 0}
                                      : op->result));
    return NULL;
}

static const char *
check_same_life(const struct idem_record *r, const struct idem_record *next)
{
    MUST(next->created == r->created);
    MUST(next->attempt == r->attempt);
    MUST(next->mode == r->mode);
    return NULL;
}

static const char *
check_freed(const struct idem_record *r, const struct idem_record *next)
{
    static const uint8_t no_print[IDEM_FINGERPRINT_LEN];

    MUST(next->state == IDEM_STATE_FREE);
    MUST(next->fence == r->fence);
    MUST(memcmp(next->nonce, r->nonce, IDEM_NONCE_LEN) == 0);
    MUST(next->flags == 0 && next->lease_until == 0 && next->subject.len == 0);
    MUST(next->kind == IDEM_KIND_RAW);
    MUST(memcmp(next->fingerprint, no_print, sizeof(no_print)) == 0);
    MUST(next->expires ==
         (r->type == IDEM_TYPE_WORKER
              ? 0
              : LATE_MS + BEHIND_MS + (has_note(r) ? FREE_LOCK_MS : FREE_MS)));
    MUST(same_bytes(next->result,
                    has_note(r) ? r->result : (struct idem_bytes){NULL, 0}));
    return check_same_life(r, next);
}

static const char *
check_lease(const struct idem_record *r, const struct idem_op *op,
            const struct idem_record *next)
{
    struct idem_record back = *next;

    MUST(next->lease_until >= r->lease_until);
    MUST(next->lease_until >= STEADY_MS + op->lease_ms);
    back.lease_until = r->lease_until;
    back.updated = r->updated;
    back.rev = r->rev;
    MUST(memcmp(&back, r, sizeof(back)) == 0);
    return NULL;
}

static int64_t
kept_ttl(const struct idem_record *r)
{
    return r->expires ? r->expires - r->created : IDEM_TTL_DEFAULT_MS;
}

/* `r` is the stored record (NULL: none), `counts` says whether it has not
 * expired. */
static const char *
check_change(enum change change, const struct idem_record *r, bool counts,
             const struct idem_op *op, const struct idem_record *next)
{
    const char *flaw;

    switch (change) {
    case NOTHING:
        MUST(next->state == IDEM_STATE_ABSENT);
        return NULL;
    case NEW_LIFE:
        return check_start(r, counts, op, next, false);
    case TAKE_OVER:
        return check_start(r, counts, op, next, true);
    case OUTCOME:
        MUST(next->fence == r->fence);
        MUST(!(next->flags & IDEM_FLAG_SETTLED));
        flaw = check_same_life(r, next);
        return flaw ? flaw
                    : check_outcome(op, next, op->outcome,
                                    op->ttl_ms ? op->ttl_ms : kept_ttl(r));
    case FREED:
        return check_freed(r, next);
    case LEASE:
        return check_lease(r, op, next);
    case PLANTED:
        MUST(next->created == LATE_MS && next->fence >= LATE_US);
        MUST(!r || next->fence > r->fence);
        MUST(!(next->flags & IDEM_FLAG_FINGERPRINT));
        MUST(next->flags & IDEM_FLAG_SETTLED);
        return check_outcome(op, next,
                             op->outcome ? op->outcome : IDEM_STATE_FAILED,
                             op->ttl_ms);
    case SETTLED:
        MUST(next->fence > r->fence);
        MUST(same_bytes(next->subject, op->subject));
        MUST(next->flags & IDEM_FLAG_SETTLED);
        flaw = check_same_life(r, next);
        return flaw ? flaw : check_outcome(op, next, op->outcome, op->ttl_ms);
    case ISSUED:
        MUST(next->state == IDEM_STATE_ISSUED && next->attempt == 0);
        MUST(next->expires == LATE_MS + BEHIND_MS + op->ttl_ms);
        MUST(next->flags == 0);
        MUST(next->result.len == 0 && next->lease_until == 0);
        return NULL;
    case USED:
        MUST(next->fence > r->fence && (next->flags & IDEM_FLAG_REDEEMED));
        MUST(memcmp(next->nonce, op->nonce, IDEM_NONCE_LEN) == 0);
        flaw = check_same_life(r, next);
        return flaw ? flaw
                    : check_outcome(op, next, IDEM_STATE_SUCCEEDED,
                                    op->ttl_ms ? op->ttl_ms : kept_ttl(r));
    }
    return "a change without a check";
}

/* ---- invariants ------------------------------------------------------- */

static bool
needs_fence(enum idem_verb verb)
{
    return verb == IDEM_FINISH || verb == IDEM_RELEASE || verb == IDEM_RENEW ||
           verb == IDEM_UNLOCK;
}

static const char *
check_invariants(const struct idem_record *r, const struct idem_op *op,
                 enum idem_verdict verdict, const struct idem_record *next)
{
    bool wrote = next->state != IDEM_STATE_ABSENT;
    bool executing = r && r->state == IDEM_STATE_EXECUTING;
    struct idem_record filled = *next;
    int64_t drop_at;

    /* I2: a refusal or a question writes nothing. */
    MUST(!wrote || verdict == IDEM_V_STARTED || verdict == IDEM_V_OK ||
         verdict == IDEM_V_SETTLED || verdict == IDEM_V_ISSUED ||
         verdict == IDEM_V_REDEEMED);
    /* I3: executing never expires, so no operation finds it absent or writes a
     * tombstone. */
    MUST(!executing || (verdict != IDEM_V_ABSENT && verdict != IDEM_V_UNKNOWN));
    /* I4: strict executing is never started again. */
    MUST(!(executing && r->mode == IDEM_STRICT && op->verb == IDEM_BEGIN) ||
         !wrote);
    /* I5: a client that does not hold the fence changes nothing. */
    MUST(!needs_fence(op->verb) || !wrote || (r && r->fence == op->fence));
    MUST(!may_name_fence(op->verb) || op->fence == 0 || !wrote ||
         (r && r->fence == op->fence));
    if (!wrote)
        return NULL;

    /* I1: the fence of a key only grows, and every start has its own. */
    MUST(!r || next->fence >= r->fence);
    /* I1, I9: after the record is gone, a fence from the clock alone is
     * larger. */
    drop_at = (int64_t)(next->fence / 1000) + 1;
    if (drop_at < next->expires)
        drop_at = next->expires;
    if (next->state == IDEM_STATE_EXECUTING || next->expires == 0)
        drop_at = 0;
    MUST(idem__record_drop_at(next) == drop_at);
    MUST(next->rev == 0);
    filled.rev = 1;
    MUST(idem__record_flaw(&filled) == NULL);
    MUST(next->type == op->type);
    MUST(same_bytes(next->scope, op->scope) && same_bytes(next->id, op->id));
    MUST(next->updated == LATE_MS);
    MUST((next->state == IDEM_STATE_EXECUTING) == (next->lease_until > 0));
    MUST(next->expires > LATE_MS - 10000 ||
         (next->type == IDEM_TYPE_WORKER && next->expires == 0) ||
         (executing && next->state == IDEM_STATE_EXECUTING));
    return NULL;
}

/* The same op again, because its reply was lost: nothing happens twice. */
static const char *
check_resent(const struct idem_op *op, const struct idem_now *now,
             enum idem_verdict verdict, const struct idem_record *next)
{
    struct idem_record stored = *next, again;
    enum idem_verdict second;

    if (next->state == IDEM_STATE_ABSENT)
        return NULL;
    stored.rev = 1;
    second = idem__step(&stored, op, now, &again);
    if (op->verb == IDEM_LOCK || op->verb == IDEM_RENEW) {
        MUST(second == verdict && again.fence == stored.fence);
        return NULL;
    }
    MUST(again.state == IDEM_STATE_ABSENT);
    switch (op->verb) {
    case IDEM_RELEASE:
    case IDEM_UNLOCK:
        MUST(second == IDEM_V_STALE);
        break;
    case IDEM_SETTLE:
        MUST(second == IDEM_V_REPLAY);
        break;
    case IDEM_ISSUE:
        MUST(second == IDEM_V_DUPLICATE);
        break;
    default:
        MUST(second == verdict);
    }
    return NULL;
}

/* ---- the generator ---------------------------------------------------- */

static size_t tried, hits[ROWS];

static void
complain(const struct point *p, const char *what, enum idem_verdict verdict)
{
    fail_msg("%s on %s %s: got %s; does not hold: %s (lease %d expiry %d modes "
             "%d/%d prints %d/%d nonce %d fence %d/%d redeemed %d attempt %d "
             "kept %d outcome %d result %d too large %d owner %d)",
             idem_verb_name(p->verb), idem_state_name(p->state),
             idem_type_name(p->type + 1), idem_verdict_name(verdict), what,
             p->lease, p->expiry, p->record_mode, p->op_mode, p->record_fp,
             p->op_fp, p->nonce, p->fence, p->fence_ahead, p->redeemed,
             p->attempt, p->kept, p->outcome, p->result, p->not_replayable,
             p->owner);
}

static void
try_point(const struct point *p)
{
    struct idem_now now = {EARLY_MS, LATE_MS,   LEASE_MS + 10,
                           LATE_US,  BEHIND_MS, STEADY_MS};
    struct idem_record r, next;
    struct idem_op op;
    const struct row *row;
    enum idem_verdict verdict;
    enum idem_state effective = (enum idem_state)p->state;
    const struct idem_record *held = NULL;
    const char *flaw;
    int facts;

    make_record(p, &r);
    make_op(p, &r, &op);
    if (idem__op_check(&op, NULL) != IDEM_OK)
        return;
    if (p->lease == LEASE_OVER_BUT_ENGINE_YOUNG)
        now.up_ms = LEASE_MS + 9;
    if (p->expiry == EXPIRED && effective != IDEM_STATE_EXECUTING)
        effective = IDEM_STATE_ABSENT;
    if (p->state != IDEM_STATE_ABSENT)
        held = &r;

    memset(&next, 0xa5, sizeof(next));
    verdict = idem__step(held, &op, &now, &next);
    facts = facts_of(p, &r, &op);
    if (may_name_fence(p->verb) && op.fence != 0 &&
        (effective == IDEM_STATE_ABSENT || p->fence != FENCE_SAME))
        facts |= ELSE;
    row = find_row(op.verb, effective, facts);
    hits[row - table]++;
    tried++;
    if (verdict != row->verdict)
        complain(p, idem_verdict_name(row->verdict), verdict);
    flaw = check_change(row->change, held, effective != IDEM_STATE_ABSENT, &op,
                        &next);
    if (!flaw)
        flaw = check_invariants(held, &op, verdict, &next);
    if (!flaw)
        flaw = check_resent(&op, &now, verdict, &next);
    if (flaw)
        complain(p, flaw, verdict);
}

/* Count through some dimensions like an odometer. */
static bool
advance(struct point *p, size_t from, size_t to)
{
    int *digits = (int *)p;
    const int *limits = (const int *)&sizes;

    for (size_t i = from; i < to; i++) {
        if (++digits[i] < limits[i])
            return true;
        digits[i] = 0;
    }
    return false;
}

static void
step_does_what_the_table_says_in_every_situation(void **state)
{
    struct point p = {0};

    (void)state;
    do {
        if (!record_makes_sense(&p))
            continue;
        do {
            if (op_makes_sense(&p))
                try_point(&p);
        } while (advance(&p, 0, OP_DIMENSIONS));
    } while (advance(&p, OP_DIMENSIONS, DIMENSIONS));
    for (size_t i = 0; i < ROWS; i++) {
        if (hits[i] == 0)
            fail_msg("no situation reaches row %zu: %s", i,
                     idem_verb_name(table[i].verb));
    }
    print_message("%zu situations, %zu rows\n", tried, ROWS);
    assert_true(tried > 50000);
}

/* ---- what a scan finds ------------------------------------------------- */

static void
a_scan_filter_finds_doubts_and_never_the_expired(void **state)
{
    struct idem_now now = {EARLY_MS, LATE_MS, INT64_MAX, LATE_US, 0, 0};
    struct point p = {.state = IDEM_STATE_EXECUTING, .lease = LEASE_OVER};
    struct idem_filter filter = {.doubt = true};
    struct idem_record r;

    (void)state;
    make_record(&p, &r);
    assert_true(idem__filter_match(&filter, &r, &now));
    r.mode = IDEM_LOOSE; /* the next caller may start it */
    assert_false(idem__filter_match(&filter, &r, &now));
    r.mode = IDEM_STRICT;
    r.type = IDEM_TYPE_LOCK; /* the next caller gets it */
    assert_false(idem__filter_match(&filter, &r, &now));
    r.type = IDEM_TYPE_WORKER;
    assert_false(idem__filter_match(&filter, &r, &now));
    r.type = IDEM_TYPE_TOKEN;
    assert_true(idem__filter_match(&filter, &r, &now));
    r.type = IDEM_TYPE_REQUEST;
    r.lease_until = EARLY_MS + 1;
    assert_false(idem__filter_match(&filter, &r, &now));
    filter = (struct idem_filter){0};
    assert_true(idem__filter_match(&filter, &r, &now));
    r.state = IDEM_STATE_SUCCEEDED;
    r.expires = EARLY_MS;
    assert_false(idem__filter_match(&filter, &r, &now));
}

static void
a_scan_filter_compares_each_member_that_is_set(void **state)
{
    struct idem_now now = {EARLY_MS, LATE_MS, INT64_MAX, LATE_US, 0, 0};
    struct point p = {.state = IDEM_STATE_EXECUTING, .lease = LEASE_OVER};
    struct idem_filter filter = {0};
    struct idem_record r;

    (void)state;
    make_record(&p, &r);
    r.id = idem_text("i");
    assert_true(idem__filter_match(&filter, &r, &now));
    for (int type = IDEM_TYPE_REQUEST; type <= IDEM_TYPE_WORKER; type++) {
        filter = (struct idem_filter){.type = (enum idem_type)type};
        for (int other = IDEM_TYPE_REQUEST; other <= IDEM_TYPE_WORKER;
             other++) {
            r.type = (uint8_t)other;
            assert_int_equal(idem__filter_match(&filter, &r, &now),
                             type == other);
        }
    }
    r.expires = 0;
    for (int one = IDEM_STATE_ISSUED; one <= IDEM_STATE_FREE; one++) {
        filter = (struct idem_filter){.state = (enum idem_state)one};
        for (int other = IDEM_STATE_ISSUED; other <= IDEM_STATE_FREE; other++) {
            r.state = (uint8_t)other;
            assert_int_equal(idem__filter_match(&filter, &r, &now),
                             one == other);
        }
    }
    filter = (struct idem_filter){.scope = idem_text("scope")};
    assert_true(idem__filter_match(&filter, &r, &now));
    filter.scope = idem_text("scop");
    assert_false(idem__filter_match(&filter, &r, &now));
    filter.scope = idem_text("s");
    assert_false(idem__filter_match(&filter, &r, &now));
    filter = (struct idem_filter){.id = idem_text("i")};
    assert_true(idem__filter_match(&filter, &r, &now));
    filter.id = idem_text("j");
    assert_false(idem__filter_match(&filter, &r, &now));
    filter = (struct idem_filter){.updated_before = r.updated};
    assert_false(idem__filter_match(&filter, &r, &now));
    filter.updated_before = r.updated + 1;
    assert_true(idem__filter_match(&filter, &r, &now));
}

/* ---- records that step() never writes ----------------------------------- */

static void
only_executing_has_a_lease_that_ends(void **state)
{
    struct idem_now now = {EARLY_MS, LATE_MS, INT64_MAX, LATE_US, 0, 0};
    struct point p = {.state = IDEM_STATE_EXECUTING, .lease = LEASE_OVER};
    struct idem_record r;

    (void)state;
    make_record(&p, &r);
    assert_true(idem__lease_over(&r, &now));
    for (int other = IDEM_STATE_ISSUED; other <= IDEM_STATE_FREE; other++) {
        r.state = (uint8_t)other;
        assert_int_equal(idem__lease_over(&r, &now),
                         other == IDEM_STATE_EXECUTING);
    }
}

/* Another program may have written it into a table. */
static void
a_request_that_says_it_was_issued_is_not_started(void **state)
{
    struct idem_now now = {EARLY_MS, LATE_MS, INT64_MAX, LATE_US, 0, 0};
    struct point p = {.state = IDEM_STATE_ISSUED};
    struct idem_record r, next;
    struct idem_op op;

    (void)state;
    make_record(&p, &r);
    make_op(&p, &r, &op);
    assert_int_equal(idem__op_check(&op, NULL), IDEM_OK);
    assert_int_equal(r.type, IDEM_TYPE_REQUEST);
    assert_int_equal(idem__step(&r, &op, &now, &next), IDEM_V_UNKNOWN);
    assert_int_equal(next.state, IDEM_STATE_ABSENT);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(step_does_what_the_table_says_in_every_situation),
        cmocka_unit_test(a_scan_filter_finds_doubts_and_never_the_expired),
        cmocka_unit_test(a_scan_filter_compares_each_member_that_is_set),
        cmocka_unit_test(only_executing_has_a_lease_that_ends),
        cmocka_unit_test(a_request_that_says_it_was_issued_is_not_started),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
