/*
 * claims.c - detects that a store has lost claims which this engine wrote.
 *
 * Executing never expires (I3) and a fence only grows (I1). So while the lease
 * of a claim that this engine wrote is alive, its key holds that fence or a
 * higher one, whoever finished, released or forgot it since. If the store has
 * nothing under that key, or a lower fence, it has lost records: it was emptied
 * or restored from an old file or backup, or somebody deleted them. Requests
 * that are already done may then run again, so the engine raises an alarm for
 * the operator.
 *
 * There is one harmless cause: another engine finished the claim with a shorter
 * TTL than it was begun with, and the record expired. A claim is therefore not
 * watched for longer than its own TTL, nor than a released record stays.
 *
 * The table has a fixed size and a key has four places in it. Newer claims
 * overwrite older ones, so some claims are not watched; one lost claim is
 * enough to raise the alarm.
 *
 * A claim stays in the table after it has ended, until its place is needed.
 * When a store has gone back in time (epoch.c), the table says which requests
 * must not run again.
 */
#include "inner.h"

#include <stdlib.h>

#define SETS ((size_t)32768)
#define WAYS 4
#define WATCH_MOST_MS (INT64_C(30) * 60 * 1000)
#define SAY_EVERY_US (INT64_C(60) * 1000000)

struct idem__claim {
    uint64_t hash, fence; /* fence 0: the place is empty */
    int64_t until_us;     /* boot clock; 0: this engine has ended the claim */
    uint64_t mark;        /* the fence of the mark before it (epoch.c) */
    int64_t expires_ms;   /* 0: never */
    bool once;            /* the request must not run a second time */
};

static struct idem__claim *
find(struct idem_engine *engine, const uint8_t *key)
{
    uint64_t hash = idem__key_hash(key);
    struct idem__claim *set = engine->claims.places;

    if (!set)
        return NULL;
    set += hash % SETS * WAYS;
    for (size_t i = 0; i < WAYS; i++) {
        if (set[i].fence != 0 && set[i].hash == hash)
            return &set[i];
    }
    return NULL;
}

/* Return the key's place, or the place of the oldest claim of its set. Fences
 * follow the clock, so the lowest fence is the oldest claim. */
static struct idem__claim *
place_for(struct idem_engine *engine, const uint8_t *key)
{
    struct idem__claim *found = find(engine, key), *set, *oldest;

    if (found)
        return found;
    set = engine->claims.places + idem__key_hash(key) % SETS * WAYS;
    oldest = set;
    for (size_t i = 1; i < WAYS; i++) {
        if (set[i].fence < oldest->fence)
            oldest = &set[i];
    }
    *oldest = (struct idem__claim){.hash = idem__key_hash(key)};
    return oldest;
}

static int64_t
watch_ms(const struct idem_record *record)
{
    int64_t ms = record->lease_until - record->updated;
    int64_t ttl_ms = record->expires - record->created;

    if (record->expires != 0 && ttl_ms < ms)
        ms = ttl_ms;
    return ms < WATCH_MOST_MS ? ms : WATCH_MOST_MS;
}

bool
idem__happens_once(const struct idem_record *record)
{
    return record->type == IDEM_TYPE_TOKEN ||
           (record->type == IDEM_TYPE_REQUEST && record->mode == IDEM_STRICT);
}

void
idem__claim_wrote(struct idem_engine *engine, const uint8_t *key,
                  const struct idem_record *record)
{
    struct idem__claims *claims = &engine->claims;
    struct idem__claim *claim;

    if (engine->store->type->local)
        return;
    /* If memory runs out, no claim is watched. */
    if (!claims->places &&
        !(claims->places = calloc(SETS * WAYS, sizeof(*claims->places))))
        return;
    if (!record || record->state == IDEM_STATE_FREE ||
        record->state == IDEM_STATE_ISSUED) {
        claim = find(engine, key);
        if (claim)
            claim->fence = 0;
        return;
    }
    if (record->state != IDEM_STATE_EXECUTING && !idem__happens_once(record) &&
        !find(engine, key))
        return;
    claim = place_for(engine, key);
    claim->fence = record->fence;
    claim->mark = engine->epoch.mark.fence;
    claim->once = idem__happens_once(record);
    /* An executing record does not expire. */
    claim->expires_ms =
        record->state == IDEM_STATE_EXECUTING ? 0 : record->expires;
    claim->until_us = record->state == IDEM_STATE_EXECUTING
                          ? engine->boot_now_us + watch_ms(record) * 1000
                          : 0;
}

/* Find this engine's claim of the key if the store no longer has it. */
static struct idem__claim *
missing(struct idem_engine *engine, const uint8_t *key,
        const struct idem_record *stored)
{
    struct idem__claim *claim = find(engine, key);

    return claim && (stored->state == IDEM_STATE_ABSENT ||
                     stored->fence < claim->fence)
               ? claim
               : NULL;
}

bool
idem__claim_known(struct idem_engine *engine, const uint8_t *key)
{
    return find(engine, key) != NULL;
}

/* True if this record shows that the store has lost a claim. */
static bool
shows_loss(struct idem_engine *engine, const uint8_t *key,
           const struct idem_record *stored)
{
    const struct idem__claim *claim = missing(engine, key, stored);

    return claim && claim->until_us > engine->boot_now_us;
}

uint64_t
idem__claim_lost(struct idem_engine *engine, const uint8_t *key,
                 const struct idem_record *stored, uint64_t *mark)
{
    const struct idem__claim *claim = missing(engine, key, stored);

    if (!claim || !claim->once ||
        (claim->expires_ms != 0 && claim->expires_ms <= engine->now.early_ms))
        return 0;
    *mark = claim->mark;
    return claim->fence;
}

void
idem__claim_found(struct idem_engine *engine, const uint8_t *key,
                  const struct idem_record *stored)
{
    struct idem__claims *claims = &engine->claims;
    struct idem__claim *claim;
    uint64_t fence;

    if (!shows_loss(engine, key, stored))
        return;
    claim = find(engine, key);
    fence = claim->fence;
    claim->until_us = 0; /* raise the alarm once per claim */
    atomic_fetch_add_explicit(&engine->vanished, 1, memory_order_relaxed);
    if (claims->said_us != 0 &&
        engine->boot_now_us - claims->said_us < SAY_EVERY_US)
        return;
    claims->said_us = engine->boot_now_us;
    idem__log(
        &engine->store_options, IDEM_LOG_ALARM,
        "the store has lost a record: the claim with fence %llu, which "
        "this engine wrote and whose lease is alive, is %s; did the store "
        "come back empty or from an old file? Requests that it forgot "
        "run again: stop the work and restore the store",
        (unsigned long long)fence,
        stored->state == IDEM_STATE_ABSENT ? "gone" : "older there");
}

void
idem__claims_close(struct idem__claims *claims)
{
    free(claims->places);
    claims->places = NULL;
}
