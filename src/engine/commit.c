/*
 * commit.c - loads, decides and writes the groups of a batch, and answers.
 *
 *           guess or load        step()          swap
 *   LOAD ───────────────▶ STEP ─────────▶ SWAP ─────────▶ DONE
 *                          ▲                │ │ ▲
 *                          └──── refused ───┘ └─┘ lost: sent again
 *
 * Operations that write nothing are answered before the swap, so that replays
 * do not wait for a disk.
 *
 * If the store's reply to a swap is lost, the engine sends the identical swap
 * again. If that is stored, or refused because its own rev is already there,
 * the write took effect exactly once. If the store has another rev, either the
 * first swap never took effect or somebody wrote after it; the first swap can
 * no longer take effect, since the rev it expects is gone. So step() decides
 * again from the stored record; it recognises its own start by the nonce and
 * its own finish by fence and result. Only if step() then says "stale" the
 * engine cannot know what happened, and answers "lost".
 */
#include "inner.h"

#include <assert.h>
#include <string.h>
#include <time.h>

#define MAX_ROUNDS 50 /* how often somebody else's write may refuse ours */
#define BREAKER_FIRST_US 50000
#define BREAKER_MOST_US 1000000

/* Pauses before a lost swap is sent again. */
static const int lost_wait_ms[] = {1, 10, 50, 200, 500};
#define MAX_LOSSES (sizeof(lost_wait_ms) / sizeof(lost_wait_ms[0]))

/* ---- the breaker ------------------------------------------------------ */

/* After an error, do not call the store for a moment, so that only the first
 * operations wait for a timeout. */
static void
break_circuit(struct idem_engine *engine, const struct idem_error *err,
              bool write)
{
    int64_t wait_us = engine->breaker_wait_us * 2;

    idem__outage_failed(engine, err, write);
    engine->epoch.unsure = true;
    if (engine->store->type->local || engine->store->type->partial)
        return;
    if (wait_us < BREAKER_FIRST_US)
        wait_us = BREAKER_FIRST_US;
    if (wait_us > BREAKER_MOST_US)
        wait_us = BREAKER_MOST_US;
    engine->breaker_wait_us = wait_us;
    engine->breaker_until_us =
        idem__boot_us(engine) + wait_us / 2 +
        (int64_t)(idem__new_rev() % (uint64_t)(wait_us / 2 + 1));
    engine->breaker_error = *err;
    engine->breaker_error.status = IDEM_ERR_UNAVAILABLE;
}

static bool
circuit_broken(struct idem_engine *engine)
{
    return engine->breaker_until_us > engine->boot_now_us;
}

static void
fail_batch(struct idem_engine *engine, enum idem_status status,
           const struct idem_error *err)
{
    for (size_t i = 0; i < engine->batch.group_count; i++) {
        struct idem__group *group = &engine->batch.groups[i];

        assert(group->stage != IDEM__STAGE_DONE); /* none has begun */
        idem__group_failed(engine, group, status, err);
    }
}

/* ---- load ------------------------------------------------------------- */

static void
loaded(struct idem_engine *engine, struct idem__group *group,
       const struct idem_record *record)
{
    idem__outage_worked(engine, false);
    group->shut = NULL;
    if (record->state == IDEM_STATE_ABSENT) {
        group->stored.state = IDEM_STATE_ABSENT;
    } else {
        group->stored = *record;
        engine->batch.loaded += record->result.len;
        idem__sealed_open_group(engine, group);
    }
    group->guessed = false;
    group->stage = IDEM__STAGE_STEP;
}

static void
load_failed(struct idem_engine *engine, struct idem__group *group,
            enum idem_status status, struct idem_error *err)
{
    atomic_fetch_add_explicit(&engine->store_errors, 1, memory_order_relaxed);
    /* A read changes nothing, so its lost reply is an ordinary failure. */
    if (status == IDEM_ERR_LOST)
        status = err->status = IDEM_ERR_UNAVAILABLE;
    if (status == IDEM_ERR_UNAVAILABLE)
        break_circuit(engine, err, false);
    idem__group_failed(engine, group, status, err);
}

/* The record cannot be read: it is damaged, or of a newer version. */
static bool
is_damage(enum idem_status status)
{
    return status == IDEM_ERR_CORRUPT || status == IDEM_ERR_UNSUPPORTED;
}

/* One damaged record must not fail the other records of its batch. */
static void
load_one_by_one(struct idem_engine *engine, size_t count)
{
    struct idem__batch *batch = &engine->batch;

    for (size_t i = 0; i < count; i++) {
        struct idem__group *group = batch->swapping[i];
        struct idem_error err = {IDEM_OK, ""};
        enum idem_status status = engine->store->type->load(
            engine->store, &batch->loads[i], 1, &batch->arena, &err);

        if (status == IDEM_OK)
            loaded(engine, group, &batch->loads[i].record);
        else
            load_failed(engine, group, status, &err);
    }
}

static void
load_groups(struct idem_engine *engine)
{
    struct idem__batch *batch = &engine->batch;
    struct idem_error err = {IDEM_OK, ""};
    enum idem_status status;
    size_t count = 0;

    for (size_t i = 0; i < batch->group_count; i++) {
        struct idem__group *group = &batch->groups[i];

        if (group->stage != IDEM__STAGE_LOAD)
            continue;
        memcpy(batch->loads[count].key, group->key, IDEM_KEY_LEN);
        batch->loads[count].with_result = true;
        batch->swapping[count++] = group;
    }
    if (count == 0)
        return;
    status = engine->store->type->load(engine->store, batch->loads, count,
                                       &batch->arena, &err);
    if (is_damage(status)) {
        load_one_by_one(engine, count);
        return;
    }
    for (size_t i = 0; i < count; i++) {
        if (status == IDEM_OK)
            loaded(engine, batch->swapping[i], &batch->loads[i].record);
        else
            load_failed(engine, batch->swapping[i], status, &err);
    }
}

/* ---- step -------------------------------------------------------------- */

/* The decision, which was made from `stored`, is now final. That also proves
 * that the store had `stored`. */
static void
stored(struct idem_engine *engine, struct idem__group *group)
{
    idem__claim_found(engine, group->key, &group->stored);
    if (group->writes) {
        idem__claim_wrote(engine, group->key, group->record);
        idem__quota_wrote(engine, &group->stored, group->record);
        idem__epoch_wrote(engine, group->key, &group->stored, group->record);
    }
    idem__group_stored(engine, group);
}

/* Returns true if a group was guessed and must be read after all. */
static bool
step_groups(struct idem_engine *engine)
{
    struct idem__batch *batch = &engine->batch;
    bool again = false;

    for (size_t i = 0; i < batch->group_count; i++) {
        struct idem__group *group = &batch->groups[i];

        if (group->stage != IDEM__STAGE_STEP)
            continue;
        idem__group_step(engine, group);
        if (group->writes) {
            group->stage = IDEM__STAGE_SWAP;
        } else if (group->guessed) {
            group->stage = IDEM__STAGE_LOAD;
            again = true;
        } else {
            stored(engine, group);
        }
    }
    return again;
}

/* ---- swap -------------------------------------------------------------- */

static size_t
fill_swaps(struct idem_engine *engine)
{
    struct idem__batch *batch = &engine->batch;
    size_t count = 0;

    for (size_t i = 0; i < batch->group_count; i++) {
        struct idem__group *group = &batch->groups[i];
        struct idem_swap *swap = &batch->swaps[count];

        if (group->stage != IDEM__STAGE_SWAP)
            continue;
        swap->record = idem__sealed_write(engine, group);
        if (!swap->record) {
            struct idem_error err;

            idem__fail(&err, IDEM_ERR_MEMORY, "out of memory");
            idem__group_failed(engine, group, IDEM_ERR_MEMORY, &err);
            continue;
        }
        memcpy(swap->key, group->key, IDEM_KEY_LEN);
        swap->expected =
            group->stored.state == IDEM_STATE_ABSENT ? 0 : group->stored.rev;
        swap->outcome = IDEM_SWAP_LOST; /* unless the store says otherwise */
        swap->maybe_before = false;
        batch->swapping[count++] = group;
    }
    return count;
}

static void
refused(struct idem_engine *engine, struct idem__group *group,
        const struct idem_swap *swap)
{
    struct idem_error err;

    idem__recent_forget(engine, group->key);
    if (group->losses > 0 || swap->maybe_before)
        idem__group_lost(group);
    group->losses = 0;
    if (group->rounds++ >= MAX_ROUNDS) {
        idem__fail(&err, IDEM_ERR_UNAVAILABLE,
                   IDEM__THIS_RECORD_IS
                   "written by others all the time: try again");
        idem__group_failed(engine, group, IDEM_ERR_UNAVAILABLE, &err);
        return;
    }
    loaded(engine, group, &swap->found);
}

/* Returns true if the identical swap is to be sent again. */
static bool
lost(struct idem_engine *engine, struct idem__group *group,
     const struct idem_error *err)
{
    struct idem_error why = *err, lost_err;

    engine->epoch.unsure = true;
    if (group->losses < MAX_LOSSES) {
        group->losses++;
        return true;
    }
    idem__group_lost(group);
    if (!why.text[0])
        idem__fail(&why, IDEM_ERR_UNAVAILABLE, "the store did not say");
    idem__fail(&lost_err, IDEM_ERR_LOST,
               "cannot tell whether it was stored: %s", why.text);
    /* Later writes are not sent, so they are not lost. */
    break_circuit(engine, &why, true);
    idem__group_failed(engine, group, IDEM_ERR_LOST, &lost_err);
    return false;
}

static void
not_stored(struct idem_engine *engine, struct idem__group *group,
           enum idem_status status, const struct idem_error *err)
{
    struct idem_error why = *err;

    if (status == IDEM_OK || status == IDEM_ERR_LOST)
        status = why.status = IDEM_ERR_UNAVAILABLE;
    if (status == IDEM_ERR_UNAVAILABLE)
        break_circuit(engine, &why, true);
    idem__group_failed(engine, group, status, &why);
}

/* Returns true if the swap was lost and is to be sent again. */
static bool
one_outcome(struct idem_engine *engine, struct idem__group *group,
            const struct idem_swap *swap, enum idem_status status,
            const struct idem_error *err)
{
    switch (swap->outcome) {
    case IDEM_SWAP_STORED:
        engine->breaker_wait_us = 0;
        idem__outage_worked(engine, true);
        stored(engine, group);
        return false;
    case IDEM_SWAP_REFUSED:
        if (swap->found.state != IDEM_STATE_ABSENT &&
            swap->found.rev == group->rev)
            stored(engine, group);
        else
            refused(engine, group, swap);
        return false;
    case IDEM_SWAP_LOCKED:
        if (group->losses > 0)
            return lost(engine, group, err);
        idem__group_locked(engine, group);
        return false;
    case IDEM_SWAP_NOT_STORED:
        /* This one was not, but was the one before it? */
        if (group->losses > 0)
            return lost(engine, group, err);
        not_stored(engine, group, status, err);
        return false;
    case IDEM_SWAP_LOST:
        break;
    }
    return lost(engine, group, err);
}

static void
sleep_ms(int ms)
{
    struct timespec time = {ms / 1000, (long)(ms % 1000) * 1000000};

    nanosleep(&time, NULL);
}

/* The index in the stats' batch_sizes for a batch of this many writes. */
static size_t
size_class(size_t count)
{
    size_t i = 0;

    while (i < IDEM__BATCH_SIZES - 1 && (size_t)1 << i < count)
        i++;
    return i;
}

/* The swaps went through a new connection, perhaps to a store that went back in
 * time. Do not report the outcome as if it were the old store's. */
static enum idem_status
nobody_knows(struct idem_swap *swaps, size_t count, struct idem_error *err)
{
    for (size_t i = 0; i < count; i++)
        swaps[i].outcome = IDEM_SWAP_LOST;
    return idem__fail(
        err, IDEM_ERR_LOST,
        "the store was connected to again and may have gone back");
}

/* These swaps are sent again, whatever the store has done with them. */
static void
count_as_lost(struct idem__batch *batch, size_t first, size_t count)
{
    for (size_t i = first; i < first + count; i++) {
        const struct idem_swap *swap = &batch->swaps[i];

        if (batch->swapping[i]->losses == 0 &&
            (swap->outcome == IDEM_SWAP_STORED ||
             swap->outcome == IDEM_SWAP_LOST || swap->maybe_before))
            batch->swapping[i]->losses = 1;
    }
}

/*
 * Write part of the batch. Returns the highest loss count of the swaps that are
 * to be sent again.
 *
 * One damaged record must not fail the others, so it is searched by halving.
 * The store may have written some of the others already. They count as lost,
 * because somebody else may write before they are sent again.
 */
static uint8_t
swap_range(struct idem_engine *engine, size_t first, size_t count)
{
    struct idem__batch *batch = &engine->batch;
    struct idem_error err = {IDEM_OK, ""};
    enum idem_status status;
    uint8_t losses = 0;
    bool was_back = atomic_load(&engine->rolled_back);

    status = engine->store->type->swap(engine->store, batch->swaps + first,
                                       count, &batch->arena, &err);
    if (!was_back && engine->store->link != engine->epoch.link &&
        engine->epoch.on &&
        (!idem__epoch_check(engine, true) || atomic_load(&engine->rolled_back)))
        status = nobody_knows(batch->swaps + first, count, &err);
    atomic_fetch_add_explicit(&engine->batch_sizes[size_class(count)], 1,
                              memory_order_relaxed);
    atomic_fetch_add_explicit(&engine->batches, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&engine->batched, count, memory_order_relaxed);
    if (status != IDEM_OK)
        atomic_fetch_add_explicit(&engine->store_errors, 1,
                                  memory_order_relaxed);
    if (is_damage(status) && count > 1) {
        uint8_t left;

        count_as_lost(batch, first, count);
        left = swap_range(engine, first, count / 2);
        losses = swap_range(engine, first + count / 2, count - count / 2);
        return left > losses ? left : losses;
    }
    for (size_t i = first; i < first + count; i++) {
        struct idem__group *group = batch->swapping[i];

        if (one_outcome(engine, group, &batch->swaps[i], status, &err) &&
            group->losses > losses)
            losses = group->losses;
    }
    return losses;
}

/* Returns false if nothing is left to swap. */
static bool
swap_groups(struct idem_engine *engine)
{
    size_t count = fill_swaps(engine);
    uint8_t losses = count > 0 ? swap_range(engine, 0, count) : 0;

    if (count == 0)
        return false;
    if (losses > 0 && !engine->inner.hasty)
        sleep_ms(lost_wait_ms[losses - 1]);
    return true;
}

/* Called before a lost swap is sent again. If the store was replaced by an
 * older state since the decision, the swap must not be stored there. */
static void
check_epoch(struct idem_engine *engine)
{
    struct idem__batch *batch = &engine->batch;
    struct idem_error err;

    if (!engine->epoch.unsure)
        return;
    (void)idem__epoch_check(engine, true);
    if (!atomic_load(&engine->rolled_back))
        return;
    idem__fail(&err, IDEM_ERR_LOST,
               "cannot tell whether it was stored: the store went back to an "
               "older state");
    for (size_t i = 0; i < batch->group_count; i++) {
        if (batch->groups[i].stage != IDEM__STAGE_SWAP)
            continue;
        idem__group_lost(&batch->groups[i]);
        idem__group_failed(engine, &batch->groups[i], IDEM_ERR_LOST, &err);
    }
}

/* A group of this batch has shown that the store went back. The groups before
 * it were decided without that knowledge, so decide them again. */
static bool
decide_again(struct idem_engine *engine)
{
    struct idem__batch *batch = &engine->batch;
    bool again = false;

    for (size_t i = 0; i < batch->group_count; i++) {
        struct idem__group *group = &batch->groups[i];

        if (group->stage != IDEM__STAGE_SWAP)
            continue;
        if (group->losses > 0)
            idem__group_lost(group);
        group->losses = 0;
        group->stage = IDEM__STAGE_STEP;
        again = true;
    }
    return again;
}

void
idem__groups_commit(struct idem_engine *engine)
{
    struct idem_error err;
    bool was_back;

    if (circuit_broken(engine)) {
        fail_batch(engine, IDEM_ERR_UNAVAILABLE, &engine->breaker_error);
        return;
    }
    idem__time_update(engine);
    if (!idem__epoch_check(engine, false)) {
        idem__fail(&err, IDEM_ERR_UNAVAILABLE, "%s",
                   engine->epoch.err.text[0] ? engine->epoch.err.text
                                             : "the store does not respond");
        break_circuit(engine, &err, false); /* a read follows a good mark */
        fail_batch(engine, IDEM_ERR_UNAVAILABLE, &err);
        return;
    }
    for (;;) {
        was_back = atomic_load(&engine->rolled_back);
        load_groups(engine);
        while (step_groups(engine))
            load_groups(engine);
        if (!was_back && atomic_load(&engine->rolled_back) &&
            decide_again(engine))
            continue;
        if (!swap_groups(engine))
            return;
        idem__time_update(engine);
        check_epoch(engine);
    }
}
