/*
 * batch.c - fills a batch, and sorts and groups its operations by key.
 *
 * A store expects sorted keys without repeats, so all operations on one key
 * form one group. commit.c decides and commits the groups.
 */
#include "inner.h"

#include <endian.h>
#include <stdlib.h>
#include <string.h>

#define MAX_BATCH_BYTES ((size_t)16 * 1024 * 1024)
#define FIRST_BATCH 256
#define SMALLEST_BATCH 16

bool
idem__batch_open(struct idem_engine *engine)
{
    struct idem__batch *batch = &engine->batch;
    size_t max = engine->options.max_batch;

    batch->entries = calloc(max, sizeof(*batch->entries));
    batch->sorted = calloc(max, sizeof(*batch->sorted));
    batch->groups = calloc(max, sizeof(*batch->groups));
    batch->swapping = calloc(max, sizeof(*batch->swapping));
    batch->swaps = calloc(max, sizeof(*batch->swaps));
    batch->loads = calloc(max, sizeof(*batch->loads));
    batch->limit = max < FIRST_BATCH ? max : FIRST_BATCH;
    return batch->entries && batch->sorted && batch->groups &&
           batch->swapping && batch->swaps && batch->loads;
}

void
idem__batch_close(struct idem_engine *engine)
{
    struct idem__batch *batch = &engine->batch;

    idem_arena_clear(&batch->arena);
    free(batch->entries);
    free(batch->sorted);
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
    return be64toh(prefix);
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
    *entry = (struct idem__entry){key, job, crowd};
    batch->sorted[batch->entry_count++] =
        (struct idem__sorted){prefix_of(key), entry};
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
    /* Crowds go into the batch before the queue; the other half of the batch is
     * left for the queue. */
    if (engine->batch.entry_count >= (engine->batch.limit + 1) / 2 ||
        !add_entry(engine, crowd->key, NULL, crowd))
        return false;
    crowd->looks = true;
    return true;
}

static int
compare(const void *a, const void *b)
{
    const struct idem__sorted *x = a, *y = b;
    int order;

    if (x->prefix != y->prefix)
        return x->prefix < y->prefix ? -1 : 1;
    order = memcmp(x->entry->key, y->entry->key, IDEM_KEY_LEN);
    if (order != 0)
        return order;
    return x->entry < y->entry ? -1 : 1;
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

/* A record that this engine wrote a moment ago is not read again. For other
 * keys on a remote store, guess that the key is absent if the operation would
 * write then: if the guess is right, this saves one round trip. */
static void
guess(struct idem_engine *engine, struct idem__group *group,
      const struct idem__job *job)
{
    bool local = engine->store->type->local;
    const struct idem_record *recent =
        job || local ? idem__recent_find(engine, group->key) : NULL;

    if (recent)
        group->stored = *recent;
    else if (local || group->crowd || !job || !writes_when_absent(job) ||
             (engine->epoch.on && idem__claim_known(engine, group->key)))
        return; /* this engine has claimed the key: read it */
    group->stage = IDEM__STAGE_STEP;
    group->guessed = !local;
}

static struct idem__group *
new_group(struct idem_engine *engine, const struct idem__entry *entry)
{
    struct idem__batch *batch = &engine->batch;
    struct idem__group *group = &batch->groups[batch->group_count++];

    memset(group, 0, offsetof(struct idem__group, stored));
    group->stored.state = IDEM_STATE_ABSENT;
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
        qsort(batch->sorted, batch->entry_count, sizeof(*batch->sorted),
              compare);
    batch->group_count = 0;
    for (size_t i = 0; i < batch->entry_count; i++) {
        const struct idem__entry *entry = batch->sorted[i].entry;

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

/* The number of entries limits what goes into a batch, but not how many bytes
 * it reads. If this batch read large results, make the next one smaller. */
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

    if (batch->entry_count == 0)
        return;
    form_groups(engine);
    idem__groups_commit(engine);
    adapt_limit(engine);
    batch->entry_count = batch->bytes = 0;
    idem_arena_reset(&batch->arena);
    idem__recents_batch_over(&engine->recents);
}
