/*
 * claims.c - notices a store that no longer has what this engine wrote.
 *
 * Executing never expires (I3) and a fence only grows (I1). So while the lease
 * of a claim that this engine wrote is alive, its key holds that fence or a
 * higher one, whoever finished, released or forgot it since. Where the store
 * has nothing under that key, or a lower fence, it has lost records: it came
 * back empty, from an old file or backup, or somebody deleted them. Requests
 * that were done before may then run again, and an operator must know.
 *
 * One more way leads there: another engine finished the claim with a shorter
 * TTL than it was begun with, and the record expired. A claim is therefore not
 * watched for longer than its own TTL, nor than a released record stays.
 *
 * The table has a fixed size and a key has one place in it: newer claims
 * overwrite older ones, so a claim may go unwatched. One is enough to notice.
 */
#include "inner.h"

#include <stdlib.h>

#define PLACES ((size_t)8192)
#define WATCH_MOST_MS (INT64_C(30) * 60 * 1000)
#define SAY_EVERY_US (INT64_C(60) * 1000000)

struct idem__claim {
    uint64_t hash, fence; /* fence 0: nothing is here */
    int64_t until_us;     /* boot clock */
};

static struct idem__claim *
place_of(struct idem_engine *engine, const uint8_t *key)
{
    return &engine->claims.places[idem__key_hash(key) % PLACES];
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

void
idem__claim_wrote(struct idem_engine *engine, const uint8_t *key,
                  const struct idem_record *record)
{
    struct idem__claims *claims = &engine->claims;
    struct idem__claim *claim;

    if (engine->store->type->local)
        return;
    /* Without memory nothing is watched. */
    if (!claims->places &&
        !(claims->places = calloc(PLACES, sizeof(*claims->places))))
        return;
    claim = place_of(engine, key);
    if (record && record->state == IDEM_STATE_EXECUTING)
        *claim =
            (struct idem__claim){idem__key_hash(key), record->fence,
                                 engine->boot_now_us + watch_ms(record) * 1000};
    else if (claim->hash == idem__key_hash(key))
        claim->fence = 0;
}

void
idem__claim_found(struct idem_engine *engine, const uint8_t *key,
                  const struct idem_record *stored)
{
    struct idem__claims *claims = &engine->claims;
    struct idem__claim *claim;
    uint64_t fence;

    if (!claims->places)
        return;
    claim = place_of(engine, key);
    fence = claim->fence;
    if (fence == 0 || claim->hash != idem__key_hash(key) ||
        claim->until_us <= engine->boot_now_us ||
        (stored->state != IDEM_STATE_ABSENT && stored->fence >= fence))
        return;
    claim->fence = 0;
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
