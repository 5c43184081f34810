/*
 * group.c - all operations of one batch on one key.
 *
 * They go through step() one after the other in memory and produce one write.
 * An operation that finds the record busy and may wait joins the key's crowd.
 * When the record changes its owner or ends, the crowd looks at it before any
 * operation that came later. The engine answers only after the write is stored;
 * if the store refuses the write, all operations are decided again from the
 * record that the store has.
 */
#include "inner.h"

#include <assert.h>
#include <string.h>

#define BUSY_MOST_MS 1000
#define LOCKED_RETRY_MS 100
#define LOST_TTL_MS (INT64_C(24) * 3600 * 1000)
#define LOCKED_PATIENCE_US 40000

/* How long the caller of a busy record should wait before it retries. */
static int64_t
retry_after_ms(const struct idem_record *record, const struct idem_now *now)
{
    int64_t left_ms = record->lease_until - now->early_ms;
    int64_t watch_ms = record->lease_until - record->updated - now->up_ms;

    if (left_ms < watch_ms)
        left_ms = watch_ms;
    if (left_ms > BUSY_MOST_MS)
        return BUSY_MOST_MS;
    return left_ms < 1 ? 1 : left_ms;
}

/* With these verdicts the caller must not see another caller's record. */
static bool
shows_record(enum idem_verdict verdict)
{
    return verdict != IDEM_V_MISMATCH && verdict != IDEM_V_ABSENT &&
           verdict != IDEM_V_UNKNOWN && verdict != IDEM_V_DUPLICATE;
}

static void
fill_answer(struct idem__job *job, enum idem_verdict verdict,
            const struct idem_record *record, const struct idem_now *now)
{
    struct idem_answer *answer = &job->answer;

    answer->verdict = verdict;
    answer->memory = NULL;
    answer->retry_after_ms = 0;
    if (record && verdict == IDEM_V_BUSY)
        answer->retry_after_ms = retry_after_ms(record, now);
    if (record && shows_record(verdict) && !idem__record_expired(record, now))
        job->told = *record;
    else
        job->told = idem__no_record;
    answer->record = &job->told;
}

static void
tell_what_was(struct idem_answer *answer, const struct idem_record *before,
              const struct idem_now *now)
{
    bool counts = before && !idem__record_expired(before, now);

    answer->was = (uint8_t)(counts ? before->state : IDEM_STATE_ABSENT);
    answer->was_in_doubt = counts && before->state == IDEM_STATE_EXECUTING &&
                           idem__lease_over(before, now);
}

/* The answer of a parked operation must outlive the batch. */
static void
keep_answer(struct idem__job *job)
{
    struct idem_record *record = &job->told;

    if (record->state != IDEM_STATE_ABSENT) {
        record->scope = job->op.scope;
        record->id = job->op.id;
    }
    record->subject = (struct idem_bytes){NULL, 0};
    record->result = (struct idem_bytes){NULL, 0};
}

/* Take back a write that must not be made. If there is already a record, the
 * quota does not refuse: replays and the end of a claim are always allowed. */
static void
refuse(struct idem_engine *engine, struct idem__job *job,
       enum idem_verdict verdict, const struct idem_record *before,
       const struct idem_now *now, struct idem_record *next)
{
    job->over_quota = job->unsafe = false;
    if (next->state == IDEM_STATE_ABSENT) {
        /* The op found its own earlier write. That may have been the first
         * write to a store that had gone back, before this was noticed. */
        job->unsafe =
            (verdict == IDEM_V_STARTED || verdict == IDEM_V_REDEEMED) &&
            idem__epoch_refuses(engine, &job->op, before);
        job->maybe_stored |= job->unsafe;
        return;
    }
    job->unsafe = idem__epoch_refuses(engine, &job->op, next);
    job->over_quota = !job->maybe_stored &&
                      (!before || idem__record_expired(before, now)) &&
                      idem__quota_used_up(engine, &job->op);
    if (job->unsafe || job->over_quota)
        next->state = IDEM_STATE_ABSENT;
}

/* Run one op on the group's record. Returns false if the record is busy and the
 * op could wait. */
static bool
decide(struct idem_engine *engine, struct idem__group *group,
       struct idem__job *job)
{
    const struct idem_record *before = group->record;
    struct idem_record *next =
        &group->chain[before == &group->chain[0] ? 1 : 0];
    struct idem_now now = idem__time_for(engine, before);
    enum idem_verdict verdict = idem__step(before, &job->op, &now, next);

    /* A FORGET whose reply was lost may have been done, and the record that is
     * here now may have been started since. Do not forget that one as well. */
    if (job->maybe_stored && job->op.verb == IDEM_FORGET &&
        next->state != IDEM_STATE_ABSENT) {
        next->state = IDEM_STATE_ABSENT;
        verdict = IDEM_V_STALE;
    }
    refuse(engine, job, verdict, before, &now, next);
    if (group->withheld && job->op.verb != IDEM_GET) {
        next->state = IDEM_STATE_ABSENT;
        job->unsafe = true;
    }
    job->shut =
        idem__sealed_refuses(group, &job->op, &now) ? group->shut : NULL;
    if (job->shut)
        next->state = IDEM_STATE_ABSENT;
    job->wrote = next->state != IDEM_STATE_ABSENT;
    if (job->wrote) {
        if (!before || before->fence != next->fence ||
            before->state != next->state)
            group->changed = true;
        next->rev = group->rev;
        group->record = next;
        group->writes = true;
    }
    job->depends = group->writes;
    fill_answer(job, verdict, group->record, &now);
    tell_what_was(&job->answer, before, &now);
    job->decided = verdict != IDEM_V_BUSY || job->shut ||
                   job->wait_end_us == 0 ||
                   job->wait_end_us <= engine->boot_now_us;
    if (!job->decided)
        keep_answer(job);
    return job->decided;
}

static void
sweep(struct idem_engine *engine, struct idem__group *group)
{
    group->changed = false;
    if (!group->crowd)
        return;
    group->swept = true;
    for (struct idem__job *job = group->crowd->first; job; job = job->next) {
        if (!job->decided)
            (void)decide(engine, group, job);
    }
    group->changed = false;
}

static void
join_crowd(struct idem_engine *engine, struct idem__group *group,
           struct idem__job *job)
{
    struct idem__crowd *crowd = idem__crowd_add(engine, job);

    if (!crowd) {
        job->decided = true; /* the crowd is full: answer busy */
        return;
    }
    job->fresh = true;
    group->crowd = crowd;
    crowd->group = group;
}

/* The write was not stored, so its decision is void. If the wait ends now, the
 * answer is busy. */
static void
undo_decision(struct idem_engine *engine, struct idem__job *job)
{
    if (!job->decided && !job->depends)
        return;
    job->decided = job->depends = false;
    fill_answer(job, IDEM_V_BUSY, NULL, &engine->now);
    job->answer.retry_after_ms = LOCKED_RETRY_MS;
}

/* Restore the crowd as it was before this batch. */
static void
undo_crowd(struct idem_engine *engine, struct idem__group *group)
{
    struct idem__crowd *crowd = group->crowd;

    if (!crowd)
        return;
    while (crowd->last && crowd->last->fresh) {
        crowd->last->fresh = false;
        idem__crowd_take(engine, crowd->last);
    }
    if (group->swept) {
        for (struct idem__job *job = crowd->first; job; job = job->next)
            undo_decision(engine, job);
    }
    group->swept = false;
}

/* True if the crowd has already seen this record; a large crowd is not checked
 * again every time an operation looks at the record. Otherwise the crowd comes
 * before operations that came later, also if another engine changed the
 * record. */
static bool
nothing_new(struct idem_engine *engine, const struct idem__group *group)
{
    const struct idem_record *record = group->record;
    struct idem_now now = idem__time_for(engine, record);

    return record && record->rev == group->crowd->rev &&
           record->state == IDEM_STATE_EXECUTING &&
           !idem__lease_over(record, &now);
}

/* An operation of this batch, or of the crowd, that is not a GET; or NULL. */
static const struct idem__job *
who_acts(const struct idem__group *group)
{
    const struct idem__item *item = group->first;

    while (item && ((const struct idem__job *)item)->op.verb == IDEM_GET)
        item = item->next;
    if (item)
        return (const struct idem__job *)item;
    return group->crowd ? group->crowd->first : NULL;
}

/* The store went back in time and lost a claim of this engine. Write the claim
 * again, with its lease over: nobody can start it, and the client that works on
 * it may still finish. Before the loss is accepted, only an operator who knows
 * the outcome may do something with it. */
static void
bring_back(struct idem_engine *engine, struct idem__group *group)
{
    struct idem_record *record = &group->chain[0];
    const struct idem__job *job = who_acts(group);
    const struct idem_op *op;
    uint64_t fence, mark;
    bool known, accepted;

    group->withheld = false;
    if (!job || group->guessed)
        return;
    fence = idem__claim_lost(engine, group->key, &group->stored, &mark);
    if (fence == 0)
        return;
    /* This may be the first sign that the store went back. If the mark cannot
     * tell now, nothing is done. */
    known = idem__epoch_check(engine, true);
    accepted = !atomic_load(&engine->rolled_back);
    op = &job->op;
    group->withheld =
        !known || (!accepted && (op->verb != IDEM_SETTLE || op->outcome == 0));
    if (group->withheld || (accepted && (engine->epoch.lost_to == 0 ||
                                         mark < engine->epoch.lost_from ||
                                         mark > engine->epoch.lost_to)))
        return;
    *record = (struct idem_record){
        .type = op->type,
        .state = IDEM_STATE_EXECUTING,
        .mode = IDEM_STRICT,
        .scope = op->scope,
        .id = op->id,
        .fence = fence,
        .rev = group->rev,
        .attempt = 1,
        .created = engine->now.late_ms,
        .updated = engine->now.late_ms,
        .lease_until = engine->now.early_ms < engine->now.late_ms
                           ? engine->now.early_ms
                           : engine->now.late_ms,
        .expires = engine->now.late_ms + LOST_TTL_MS,
    };
    group->record = record;
    group->writes = true;
}

void
idem__group_step(struct idem_engine *engine, struct idem__group *group)
{
    undo_crowd(engine, group);
    group->record =
        group->stored.state != IDEM_STATE_ABSENT ? &group->stored : NULL;
    group->rev = idem__new_rev();
    group->sealed = NULL;
    group->writes = group->changed = false;
    if (engine->epoch.on)
        bring_back(engine, group);
    if (group->crowd && !nothing_new(engine, group))
        sweep(engine, group);
    for (struct idem__item *item = group->first; item; item = item->next) {
        struct idem__job *job = (struct idem__job *)item;

        if (!decide(engine, group, job))
            join_crowd(engine, group, job);
        if (group->changed)
            sweep(engine, group);
    }
}

/* Take the parked operations that now have their answer. */
static struct idem__item *
take_decided(struct idem_engine *engine, struct idem__crowd *crowd)
{
    struct idem__item *woken = NULL, **last = &woken;
    struct idem__job *next;

    for (struct idem__job *job = crowd->first; job; job = next) {
        next = job->next;
        if (!job->decided)
            continue;
        idem__crowd_take(engine, job);
        if (!job->fresh) {
            *last = &job->item;
            last = &job->item.next;
        }
    }
    *last = NULL;
    return woken;
}

/* Set the timers of the operations that start to wait now. */
static void
keep_fresh(struct idem_engine *engine, struct idem__crowd *crowd)
{
    struct idem__job *job = crowd->last;

    while (job && job->fresh) {
        struct idem__job *prev = job->prev;

        job->fresh = false;
        if (!idem__crowd_keep(engine, job))
            idem__crowd_take(engine, job);
        job = prev;
    }
}

static void
leave_crowd(struct idem_engine *engine, struct idem__group *group,
            const struct idem_record *record)
{
    if (!group->crowd)
        return;
    group->crowd->group = NULL;
    group->crowd->rev = record ? record->rev : 0;
    idem__crowd_plan(engine, group->crowd, record);
    group->crowd = NULL;
}

static void
drop_jobs(struct idem_engine *engine, struct idem__item *item)
{
    while (item) {
        struct idem__item *next = item->next;

        if (!((struct idem__job *)item)->crowd)
            idem__job_drop(engine, (struct idem__job *)item);
        item = next;
    }
}

/* A write of this op was lost once, and the stored record does not show whether
 * it took effect, so "stale" would be a guess. */
static bool
cannot_tell(const struct idem__job *job)
{
    return job->maybe_stored && job->answer.verdict == IDEM_V_STALE;
}

static void
answer_stored(struct idem_engine *engine, struct idem__job *job)
{
    struct idem_error err;

    if (job->unsafe) {
        idem__job_answer(engine, job,
                         idem__epoch_refuse(job->maybe_stored, &err), &err);
        return;
    }
    if (job->shut) {
        idem__fail(&err, job->maybe_stored ? IDEM_ERR_LOST : job->shut->status,
                   "%s", job->shut->text);
        idem__job_answer(engine, job, err.status, &err);
        return;
    }
    if (job->over_quota) {
        atomic_fetch_add_explicit(&engine->over_quota, 1, memory_order_relaxed);
        idem__job_answer(engine, job,
                         idem__quota_refuse(engine, &job->op, &err), &err);
        return;
    }
    if (!cannot_tell(job)) {
        idem__job_answer(engine, job, IDEM_OK, NULL);
        return;
    }
    idem__fail(&err, IDEM_ERR_LOST,
               "the store's reply was lost and somebody else wrote since: "
               "ask with get");
    idem__job_answer(engine, job, IDEM_ERR_LOST, &err);
}

/* The decision is final: answer. Answers may point to the bytes of other ops of
 * the group, so no op is freed before the last one is answered. */
void
idem__group_stored(struct idem_engine *engine, struct idem__group *group)
{
    struct idem__item *woken = NULL;

    if (group->crowd) {
        if (group->swept)
            woken = take_decided(engine, group->crowd);
        keep_fresh(engine, group->crowd);
        leave_crowd(engine, group, group->record);
    }
    for (struct idem__item *item = group->first; item; item = item->next) {
        struct idem__job *job = (struct idem__job *)item;

        if (!job->crowd)
            answer_stored(engine, job);
    }
    for (struct idem__item *item = woken; item; item = item->next)
        answer_stored(engine, (struct idem__job *)item);
    if (group->writes) {
        idem__recent_note(engine, group->key, group->record);
        if (group->record)
            idem__time_wrote(engine, group->record);
    } else if (!group->shut) {
        idem__recent_read(engine, group->key, &group->stored);
    }
    drop_jobs(engine, group->first);
    drop_jobs(engine, woken);
    group->stage = IDEM__STAGE_DONE;
}

/* A parked operation that wrote in a lost batch cannot go on waiting: it may
 * already own the record. */
static struct idem__item *
take_lost(struct idem_engine *engine, struct idem__crowd *crowd)
{
    struct idem__item *lost = NULL, **last = &lost;
    struct idem__job *next;

    for (struct idem__job *job = crowd->first; job; job = next) {
        next = job->next;
        if (job->fresh || !((job->decided && job->wrote) || job->maybe_stored))
            continue;
        idem__crowd_take(engine, job);
        *last = &job->item;
        last = &job->item.next;
    }
    *last = NULL;
    return lost;
}

void
idem__group_failed(struct idem_engine *engine, struct idem__group *group,
                   enum idem_status status, const struct idem_error *err)
{
    struct idem__item *lost = NULL;
    struct idem_error lost_err;
    bool known = group->stored.state != IDEM_STATE_ABSENT &&
                 group->stage != IDEM__STAGE_LOAD && status != IDEM_ERR_LOST;

    idem__fail(&lost_err, IDEM_ERR_LOST, "%s", err->text);
    idem__recent_forget(engine, group->key);
    if (group->crowd) {
        if (status == IDEM_ERR_LOST)
            lost = take_lost(engine, group->crowd);
        undo_crowd(engine, group);
        leave_crowd(engine, group, known ? &group->stored : NULL);
    }
    for (struct idem__item *item = group->first; item; item = item->next) {
        struct idem__job *job = (struct idem__job *)item;

        /* A decision that was made from a guess is not certain. */
        if (job->decided && !job->depends && !group->guessed)
            answer_stored(engine, job);
        else if (job->maybe_stored)
            idem__job_answer(engine, job, IDEM_ERR_LOST, &lost_err);
        else
            idem__job_answer(engine, job, status, err);
    }
    for (struct idem__item *item = lost; item; item = item->next)
        idem__job_answer(engine, (struct idem__job *)item, IDEM_ERR_LOST,
                         &lost_err);
    drop_jobs(engine, group->first);
    drop_jobs(engine, lost);
    group->stage = IDEM__STAGE_DONE;
}

/*
 * Another client's open transaction holds the row. An engine's transaction is
 * short, so all operations of this group are parked for a moment and look
 * again, while other groups go on. A service's transaction may take longer; in
 * that case the answer is busy.
 */
void
idem__group_locked(struct idem_engine *engine, struct idem__group *group)
{
    undo_crowd(engine, group);
    idem__recent_forget(engine, group->key);
    group->writes = false;
    for (struct idem__item *item = group->first; item; item = item->next) {
        struct idem__job *job = (struct idem__job *)item;

        if (job->decided && !job->depends && !group->guessed)
            continue;
        fill_answer(job, IDEM_V_BUSY, NULL, &engine->now);
        job->answer.retry_after_ms = LOCKED_RETRY_MS;
        if (!job->met_lock && job->wait_end_us <= engine->boot_now_us)
            job->wait_end_us = engine->boot_now_us + LOCKED_PATIENCE_US;
        job->met_lock = true;
        job->decided = job->wait_end_us <= engine->boot_now_us;
        if (!job->decided)
            join_crowd(engine, group, job);
    }
    group->record = NULL;
    if (group->crowd)
        group->crowd->locked = true;
    idem__group_stored(engine, group);
}

/* The store's reply is lost: the write may or may not have taken effect. */
void
idem__group_lost(struct idem__group *group)
{
    for (struct idem__item *item = group->first; item; item = item->next) {
        struct idem__job *job = (struct idem__job *)item;

        job->maybe_stored = job->maybe_stored || job->wrote;
    }
    if (!group->crowd || !group->swept)
        return;
    for (struct idem__job *job = group->crowd->first; job; job = job->next) {
        if (job->decided && job->wrote)
            job->maybe_stored = true;
    }
}
