/*
 * recent.c - records that this engine started and that are not finished yet,
 * locks that it gave back, and answers that it replayed.
 *
 * A finish nearly always meets the record that this engine itself wrote a
 * moment ago, so the written record is kept here and need not be read again. On
 * a local store, which nobody else writes, it is the stored record. On a remote
 * store it is a guess, like the guess that a new request is absent: only a swap
 * that the store accepts confirms it, and no answer is given from it alone. A
 * record whose write did not end in "stored" is forgotten.
 *
 * On a remote store a record that was released or unlocked is kept, too: the
 * next LOCK writes at once, where the guess that it is absent would be refused.
 * A local store may sweep such a record, and reading it there costs nothing.
 *
 * A finished record of a local store is kept when it was read, because a client
 * that asks again often does so more than once. Not when it is written: most
 * answers are never asked for again.
 *
 * Records are appended to a ring, and a table says where the last record of a
 * key is. Newer entries overwrite older ones. Answers of a batch may point into
 * the ring until the batch ends, so a search finds only the newer half of the
 * ring, and a batch writes at most half a ring.
 */
#include "inner.h"

#include <stdlib.h>
#include <string.h>

#define RING_LEN ((uint64_t)8 * 1024 * 1024)
#define RING_HALF (RING_LEN / 2)
#define PLACES ((size_t)8192)
#define MAX_RECORD 4096 /* a lock's note may be larger; it is read again */

struct recent {
    uint8_t key[IDEM_KEY_LEN];
    struct idem_record record; /* its bytes follow the struct */
};

static struct recent *
recent_at(const struct idem__recents *recents, uint64_t at)
{
    return (struct recent *)(void *)(recents->ring + at % RING_LEN);
}

/* The place of the key's record in the table, or NULL. */
static struct idem__place *
find(const struct idem__recents *recents, const uint8_t *key)
{
    uint64_t hash = idem__key_hash(key);
    struct idem__place *place;

    if (!recents->ring)
        return NULL;
    place = &recents->places[hash % PLACES];
    if (place->hash != hash || place->at == 0 ||
        recents->end - place->at > RING_HALF ||
        memcmp(recent_at(recents, place->at)->key, key, IDEM_KEY_LEN) != 0)
        return NULL;
    return place;
}

static bool
is_finished(const struct idem_record *record)
{
    return record->state == IDEM_STATE_SUCCEEDED ||
           record->state == IDEM_STATE_FAILED;
}

const struct idem_record *
idem__recent_find(struct idem_engine *engine, const uint8_t *key)
{
    struct idem__place *place = find(&engine->recents, key);
    const struct idem_record *record =
        place ? &recent_at(&engine->recents, place->at)->record : NULL;

    if (record && is_finished(record) &&
        record->expires <= engine->recents.swept_ms)
        return NULL; /* the store may no longer have it */
    return record;
}

void
idem__recent_forget(struct idem_engine *engine, const uint8_t *key)
{
    struct idem__place *place = find(&engine->recents, key);

    if (place)
        place->at = 0;
}

/* Room behind the last record, in one piece. NULL: this batch has already used
 * its half of the ring. */
static struct recent *
room_for(struct idem__recents *recents, size_t len)
{
    uint64_t at = recents->end;

    len = (len + 7) & ~(size_t)7;
    if (at % RING_LEN + len > RING_LEN)
        at += RING_LEN - at % RING_LEN;
    if (at + len - recents->batch_start > RING_HALF)
        return NULL;
    recents->last = at;
    recents->end = at + len;
    return recent_at(recents, at);
}

/* If memory runs out, nothing is kept and every record is read. */
static bool
open_ring(struct idem__recents *recents)
{
    if (recents->ring)
        return true;
    recents->ring = malloc(RING_LEN);
    recents->places = calloc(PLACES, sizeof(*recents->places));
    if (!recents->ring || !recents->places)
        idem__recents_close(recents);
    recents->end = recents->batch_start = RING_LEN; /* 0: no record */
    return recents->ring != NULL;
}

static bool
is_kept(const struct idem_engine *engine, const struct idem_record *record)
{
    return record->state == IDEM_STATE_EXECUTING ||
           (record->state == IDEM_STATE_FREE && !engine->store->type->local);
}

static void
keep(struct idem__recents *recents, const uint8_t *key,
     const struct idem_record *record)
{
    size_t len = idem__record_bytes(record);
    struct recent *recent;

    if (len > MAX_RECORD || !open_ring(recents))
        return;
    recent = room_for(recents, sizeof(*recent) + len);
    if (!recent)
        return;
    memcpy(recent->key, key, IDEM_KEY_LEN);
    idem__record_copy(&recent->record, record, recent + 1);
    recents->places[idem__key_hash(key) % PLACES] =
        (struct idem__place){idem__key_hash(key), recents->last};
}

void
idem__recent_note(struct idem_engine *engine, const uint8_t *key,
                  const struct idem_record *record)
{
    idem__recent_forget(engine, key);
    if (is_kept(engine, record))
        keep(&engine->recents, key, record);
}

void
idem__recent_read(struct idem_engine *engine, const uint8_t *key,
                  const struct idem_record *record)
{
    if (is_finished(record) && engine->store->type->local &&
        !find(&engine->recents, key))
        keep(&engine->recents, key, record);
}

void
idem__recents_batch_over(struct idem__recents *recents)
{
    recents->batch_start = recents->end;
}

void
idem__recents_close(struct idem__recents *recents)
{
    free(recents->ring);
    free(recents->places);
    *recents = (struct idem__recents){0};
}
