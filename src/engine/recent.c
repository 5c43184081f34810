/*
 * recent.c - records that this engine started and that are not finished yet.
 *
 * A finish nearly always meets the record that this engine itself wrote a
 * moment ago, so what was written is kept here and need not be read again. On
 * a local store, which nobody else writes, it is the record. On a store far
 * away it is a guess, like the guess that a new request is absent: only a swap
 * that the store accepts makes it true, and no answer is given from it alone.
 *
 * Whatever did not end in "stored" is forgotten. What is forgotten during a
 * batch stays in memory until its end, for answers may point into it.
 */
#include "inner.h"

#include <stdlib.h>
#include <string.h>

#define MAX_COUNT 8192
#define MAX_BYTES ((size_t)64 * 1024 * 1024)
#define MAX_RECORD 4096 /* a lock's note may be large; that one is read */

static uint64_t
hash_of(const uint8_t *key)
{
    uint64_t hash;

    memcpy(&hash, key, sizeof(hash));
    return hash;
}

static struct idem__recent *
recent_at(struct idem__link *link)
{
    return (struct idem__recent *)((char *)link -
                                   offsetof(struct idem__recent, link));
}

static struct idem__recent *
find(struct idem__recents *recents, const uint8_t *key)
{
    struct idem__link *link = idem__map_find(&recents->map, hash_of(key));

    while (link && memcmp(recent_at(link)->key, key, IDEM_KEY_LEN) != 0)
        link = idem__map_next(link);
    return link ? recent_at(link) : NULL;
}

const struct idem_record *
idem__recent_find(struct idem_engine *engine, const uint8_t *key)
{
    struct idem__recent *recent = find(&engine->recents, key);

    return recent ? &recent->record : NULL;
}

static void
forget(struct idem__recents *recents, struct idem__recent *recent)
{
    idem__map_remove(&recents->map, &recent->link);
    *recent->older = recent->newer;
    if (recent->newer)
        recent->newer->older = recent->older;
    else
        recents->newest = recent->older;
    recents->bytes -= recent->bytes;
    recent->newer = recents->dead;
    recents->dead = recent;
}

void
idem__recent_forget(struct idem_engine *engine, const uint8_t *key)
{
    struct idem__recent *recent = find(&engine->recents, key);

    if (recent)
        forget(&engine->recents, recent);
}

static uint8_t *
copy_bytes(uint8_t *at, struct idem_bytes *bytes)
{
    if (bytes->len > 0)
        memcpy(at, bytes->data, bytes->len);
    bytes->data = bytes->len > 0 ? at : NULL;
    return at + bytes->len;
}

static struct idem__recent *
make(const uint8_t *key, const struct idem_record *record, size_t len)
{
    struct idem__recent *recent = malloc(sizeof(*recent) + len);
    uint8_t *at = (uint8_t *)(recent + 1);

    if (!recent)
        return NULL;
    memcpy(recent->key, key, IDEM_KEY_LEN);
    recent->bytes = sizeof(*recent) + len;
    recent->record = *record;
    at = copy_bytes(at, &recent->record.scope);
    at = copy_bytes(at, &recent->record.id);
    at = copy_bytes(at, &recent->record.subject);
    copy_bytes(at, &recent->record.result);
    return recent;
}

void
idem__recent_note(struct idem_engine *engine, const uint8_t *key,
                  const struct idem_record *record)
{
    struct idem__recents *recents = &engine->recents;
    size_t len = record->scope.len + record->id.len + record->subject.len +
                 record->result.len;
    struct idem__recent *recent;

    idem__recent_forget(engine, key);
    if (record->state != IDEM_STATE_EXECUTING || len > MAX_RECORD)
        return;
    recent = make(key, record, len);
    if (!recent)
        return; /* it is read again, then */
    if (!idem__map_add(&recents->map, &recent->link, hash_of(key))) {
        free(recent);
        return;
    }
    recent->newer = NULL;
    recent->older = recents->newest;
    *recents->newest = recent;
    recents->newest = &recent->newer;
    recents->bytes += recent->bytes;
    while (recents->map.count > MAX_COUNT || recents->bytes > MAX_BYTES)
        forget(recents, recents->oldest);
}

void
idem__recents_open(struct idem__recents *recents)
{
    recents->newest = &recents->oldest;
}

void
idem__recents_sweep(struct idem__recents *recents)
{
    while (recents->dead) {
        struct idem__recent *recent = recents->dead;

        recents->dead = recent->newer;
        free(recent);
    }
}

void
idem__recents_close(struct idem__recents *recents)
{
    while (recents->oldest)
        forget(recents, recents->oldest);
    idem__recents_sweep(recents);
    idem__map_clear(&recents->map);
}
