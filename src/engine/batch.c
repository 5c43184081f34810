/*
 * batch.c - one batch: sorted, grouped by key, loaded, decided, swapped.
 *
 *           guess or load        step()          swap
 *   LOAD ───────────────▶ STEP ─────────▶ SWAP ─────────▶ DONE
 *                          ▲                │ │ ▲
 *                          └──── refused ───┘ └─┘ lost: the identical swap
 * again
 *
 * Whatever needs no write is answered before the swap, so that replays do not
 * wait for a disk.
 *
 * After a lost swap the identical one is sent again. If it is then stored, or
 * its own rev is there, it is stored, once. If another rev is there, either the
 * first one never took effect or somebody wrote after it; the lost swap itself
 * can no longer take effect, since the rev it expects is gone. So step()
 * decides again from what is there, and recognises a start by its nonce and a
 * finish by its fence and result. Only where it says "stale" the truth is
 * hidden, and the answer is "lost".
 */
#include "inner.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MAX_BATCH_BYTES ((size_t)16 * 1024 * 1024)
#define FIRST_BATCH 256
#define SMALLEST_BATCH 16
#define MAX_ROUNDS 50 /* of being refused by somebody else's write */
#define BREAKER_FIRST_US 50000
#define BREAKER_MOST_US 1000000

/* How long to wait before a lost swap is sent again. */
static const int lost_wait_ms[] = {1, 10, 50, 200, 500};
#define MAX_LOSSES (sizeof(lost_wait_ms) / sizeof(lost_wait_ms[0]))

bool
idem__batch_open(struct idem_engine *engine)
{
    struct idem__batch *batch = &engine->batch;
    size_t max = engine->options.max_batch;

    batch->entries = calloc(max, sizeof(*batch->entries));
    batch->groups = calloc(max, sizeof(*batch->groups));
    batch->swapping = calloc(max, sizeof(*batch->swapping));
    batch->swaps = calloc(max, sizeof(*batch->swaps));
    batch->loads = calloc(max, sizeof(*batch->loads));
    batch->limit = max < FIRST_BATCH ? max : FIRST_BATCH;
    return batch->entries && batch->groups && batch->swapping && batch->swaps &&
           batch->loads;
}

void
idem__batch_close(struct idem_engine *engine)
{
    struct idem__batch *batch = &engine->batch;

    idem_arena_clear(&batch->arena);
    free(batch->entries);
    free(batch->groups);
    free(batch->swapping);
    free(batch->swaps);
    free(batch->loads);
}

static uint64_t
prefix_of(const uint8_t *key)
{
    uint64_t prefix;

    memcpy(&prefix, key, sizeof(prefix));
    return __builtin_bswap64(prefix);
}

static bool
add_entry(struct idem_engine *engine, const uint8_t *key, struct idem__job *job,
          struct idem__crowd *crowd)
{
    struct idem__batch *batch = &engine->batch;
    struct idem__entry *entry;

    if (batch->entry_count == batch->limit || batch->bytes > MAX_BATCH_BYTES)
        return false;
    entry = &batch->entries[batch->entry_count];
    entry->prefix = prefix_of(key);
    entry->key = key;
    entry->job = job;
    entry->crowd = crowd;
    entry->order = batch->entry_count++;
    return true;
}

bool
idem__batch_add_job(struct idem_engine *engine, struct idem__job *job)
{
    if (!add_entry(engine, job->key, job, NULL))
        return false;
    engine->batch.bytes += job->item.bytes;
    return true;
}

bool
idem__batch_add_crowd(struct idem_engine *engine, struct idem__crowd *crowd)
{
    /* They come before what waits in the queue, but leave room for it. */
    if (engine->batch.entry_count >= (engine->batch.limit + 1) / 2 ||
        !add_entry(engine, crowd->key, NULL, crowd))
        return false;
    crowd->looks = true;
    return true;
}

static int
compare(const void *a, const void *b)
{
    const struct idem__entry *x = a, *y = b;
    int order;

    if (x->prefix != y->prefix)
        return x->prefix < y->prefix ? -1 : 1;
    order = memcmp(x->key, y->key, IDEM_KEY_LEN);
    if (order != 0)
        return order;
    return x->order < y->order ? -1 : 1;
}

static bool
writes_when_absent(const struct idem__job *job)
{
    enum idem_verb verb = job->op.verb;

    return (verb == IDEM_BEGIN && job->op.type != IDEM_TYPE_TOKEN) ||
           verb == IDEM_LOCK || verb == IDEM_ISSUE || verb == IDEM_SETTLE;
}

static void
enter_crowd(struct idem__group *group, struct idem__crowd *crowd)
{
    group->crowd = crowd;
    crowd->group = group;
    crowd->looks = false;
}

/* What was written a moment ago need not be read. Otherwise, on a store far
 * away, the first answer comes sooner from a guess that there is none. */
static void
guess(struct idem_engine *engine, struct idem__group *group,
      const struct idem__job *job)
{
    bool local = engine->store->type->local;
    const struct idem_record *recent =
        job || local ? idem__recent_find(engine, group->key) : NULL;

    if (recent)
        group->stored = *recent;
    else if (local || group->crowd || !job || !writes_when_absent(job))
        return;
    group->stage = IDEM__STAGE_STEP;
    group->guessed = !local;
}

static struct idem__group *
new_group(struct idem_engine *engine, const struct idem__entry *entry)
{
    struct idem__batch *batch = &engine->batch;
    struct idem__group *group = &batch->groups[batch->group_count++];

    memset(group, 0, offsetof(struct idem__group, chain));
    memcpy(group->key, entry->key, IDEM_KEY_LEN);
    group->last = &group->first;
    group->crowd = entry->crowd;
    if (!group->crowd && engine->parked.count > 0)
        group->crowd = idem__crowd_find(engine, entry->key);
    if (group->crowd)
        enter_crowd(group, group->crowd);
    guess(engine, group, entry->job);
    return group;
}

static void
form_groups(struct idem_engine *engine)
{
    struct idem__batch *batch = &engine->batch;
    struct idem__group *group = NULL;

    if (batch->entry_count > 1)
        qsort(batch->entries, batch->entry_count, sizeof(*batch->entries),
              compare);
    batch->group_count = 0;
    for (size_t i = 0; i < batch->entry_count; i++) {
        struct idem__entry *entry = &batch->entries[i];

        if (!group || memcmp(group->key, entry->key, IDEM_KEY_LEN) != 0)
            group = new_group(engine, entry);
        if (entry->job) {
            entry->job->item.next = NULL;
            *group->last = &entry->job->item;
            group->last = &entry->job->item.next;
        } else {
            enter_crowd(group, entry->crowd);
        }
    }
}

/* ---- the breaker ------------------------------------------------------ */

/* A store that is away is left alone for a moment, so that nobody waits for a
 * time-out after the first. */
static void
break_circuit(struct idem_engine *engine, const struct idem_error *err)
{
    int64_t wait_us = engine->breaker_wait_us * 2;

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

        if (group->stage != IDEM__STAGE_DONE)
            idem__group_failed(engine, group, status, err);
    }
}

/* ---- load ------------------------------------------------------------- */

static void
loaded(struct idem_engine *engine, struct idem__group *group,
       const struct idem_record *record)
{
    engine->batch.loaded += record->result.len;
    group->stored = *record;
    group->guessed = false;
    group->stage = IDEM__STAGE_STEP;
}

static void
load_failed(struct idem_engine *engine, struct idem__group *group,
            enum idem_status status, struct idem_error *err)
{
    atomic_fetch_add_explicit(&engine->store_errors, 1, memory_order_relaxed);
    /* Reading changes nothing, so nothing can be lost by it. */
    if (status == IDEM_ERR_LOST)
        status = err->status = IDEM_ERR_UNAVAILABLE;
    if (status == IDEM_ERR_UNAVAILABLE)
        break_circuit(engine, err);
    idem__group_failed(engine, group, status, err);
}

/* One damaged record must not take the others of its batch along. */
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
    if (status == IDEM_ERR_CORRUPT || status == IDEM_ERR_UNSUPPORTED) {
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

/* True if some group must be read after all. */
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
            idem__group_stored(engine, group);
        }
    }
    return again;
}

/* ---- swap -------------------------------------------------------------- */

static size_t
fill_swaps(struct idem__batch *batch)
{
    size_t count = 0;

    for (size_t i = 0; i < batch->group_count; i++) {
        struct idem__group *group = &batch->groups[i];
        struct idem_swap *swap = &batch->swaps[count];

        if (group->stage != IDEM__STAGE_SWAP)
            continue;
        memcpy(swap->key, group->key, IDEM_KEY_LEN);
        swap->expected =
            group->stored.state == IDEM_STATE_ABSENT ? 0 : group->stored.rev;
        swap->record = group->record;
        swap->outcome = IDEM_SWAP_LOST; /* until the store says better */
        batch->swapping[count++] = group;
    }
    return count;
}

static void
refused(struct idem_engine *engine, struct idem__group *group,
        const struct idem_record *found)
{
    struct idem_error err;

    idem__recent_forget(engine, group->key);
    if (group->losses > 0)
        idem__group_lost(group);
    group->losses = 0;
    if (group->rounds++ >= MAX_ROUNDS) {
        idem__fail(&err, IDEM_ERR_UNAVAILABLE,
                   "this record is written by others all the time: try again");
        idem__group_failed(engine, group, IDEM_ERR_UNAVAILABLE, &err);
        return;
    }
    loaded(engine, group, found);
}

/* True if the identical swap is to be sent again. */
static bool
lost(struct idem_engine *engine, struct idem__group *group,
     const struct idem_error *err)
{
    struct idem_error lost_err;

    if (group->losses < MAX_LOSSES) {
        group->losses++;
        return true;
    }
    idem__group_lost(group);
    idem__fail(&lost_err, IDEM_ERR_LOST,
               "cannot tell whether it was stored: %s",
               err->text[0] ? err->text : "the store did not say");
    break_circuit(engine, &lost_err);
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
        break_circuit(engine, &why);
    idem__group_failed(engine, group, status, &why);
}

/* True if it was lost and is to be sent again. */
static bool
one_outcome(struct idem_engine *engine, struct idem__group *group,
            const struct idem_swap *swap, enum idem_status status,
            const struct idem_error *err)
{
    switch (swap->outcome) {
    case IDEM_SWAP_STORED:
        engine->breaker_wait_us = 0;
        idem__group_stored(engine, group);
        return false;
    case IDEM_SWAP_REFUSED:
        if (swap->found.state != IDEM_STATE_ABSENT &&
            swap->found.rev == group->rev)
            idem__group_stored(engine, group);
        else
            refused(engine, group, &swap->found);
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

/* False: nothing is left to swap. */
static bool
swap_groups(struct idem_engine *engine)
{
    struct idem__batch *batch = &engine->batch;
    size_t count = fill_swaps(batch);
    struct idem_error err = {IDEM_OK, ""};
    enum idem_status status;
    uint8_t losses = 0;

    if (count == 0)
        return false;
    status = engine->store->type->swap(engine->store, batch->swaps, count,
                                       &batch->arena, &err);
    atomic_fetch_add_explicit(&engine->batches, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&engine->batched, count, memory_order_relaxed);
    if (status != IDEM_OK)
        atomic_fetch_add_explicit(&engine->store_errors, 1,
                                  memory_order_relaxed);
    for (size_t i = 0; i < count; i++) {
        struct idem__group *group = batch->swapping[i];

        if (one_outcome(engine, group, &batch->swaps[i], status, &err) &&
            group->losses > losses)
            losses = group->losses;
    }
    if (losses > 0 && !engine->inner.hasty)
        sleep_ms(lost_wait_ms[losses - 1]);
    return true;
}

/* What a batch brings in is bounded by its entries, not its reads: where large
 * results are replayed, the next batch is smaller. */
static void
adapt_limit(struct idem_engine *engine)
{
    struct idem__batch *batch = &engine->batch;
    size_t max = engine->options.max_batch;

    if (batch->loaded > MAX_BATCH_BYTES && batch->limit > SMALLEST_BATCH)
        batch->limit /= 2;
    else if (batch->loaded <= MAX_BATCH_BYTES / 2 && batch->limit < max)
        batch->limit = batch->limit * 2 < max ? batch->limit * 2 : max;
    batch->loaded = 0;
}

void
idem__batch_run(struct idem_engine *engine)
{
    struct idem__batch *batch = &engine->batch;
    struct idem_error err = {IDEM_OK, ""};
    enum idem_status status;

    if (batch->entry_count == 0)
        return;
    form_groups(engine);
    if (circuit_broken(engine)) {
        fail_batch(engine, IDEM_ERR_UNAVAILABLE, &engine->breaker_error);
    } else if ((status = idem__time_update(engine, &err)) != IDEM_OK) {
        break_circuit(engine, &err);
        fail_batch(engine, status, &err);
    } else {
        do {
            load_groups(engine);
            while (step_groups(engine))
                load_groups(engine);
        } while (swap_groups(engine) &&
                 idem__time_update(engine, &err) == IDEM_OK);
    }
    adapt_limit(engine);
    batch->entry_count = batch->bytes = 0;
    idem_arena_reset(&batch->arena);
    idem__recents_sweep(&engine->recents);
}
