/*
 * index.c - the index: a hash table with linear probing, in shards.
 */
#include "index.h"

#include <assert.h>
#include <endian.h>
#include <stdlib.h>
#include <string.h>

#define FIRST_ROOM 8

/* A shard is at most three quarters full and grows by a third, so that a
 * record takes between 42 and 57 bytes. */
static bool
crowded(uint32_t used, uint32_t room)
{
    return (uint64_t)used * 4 > (uint64_t)room * 3;
}

static struct shard *
shard_of(const struct journal_index *index, uint64_t tag)
{
    return (struct shard *)&index->shards[tag >> (64 - INDEX_SHARD_BITS)];
}

static uint32_t
home(const struct journal_index *index, const struct shard *shard, uint64_t tag)
{
    uint64_t mixed = (tag ^ index->secret) * UINT64_C(0x9E3779B97F4A7C15);

    mixed ^= mixed >> 32;
    return (uint32_t)(((mixed & UINT32_MAX) * shard->room) >> 32);
}

void
idem__index_init(struct journal_index *index, uint64_t secret,
                 uint64_t tag_mask)
{
    memset(index, 0, sizeof(*index));
    index->secret = secret;
    index->tag_mask = tag_mask;
}

void
idem__index_clear(struct journal_index *index)
{
    for (size_t i = 0; i < INDEX_SHARDS; i++)
        free(index->shards[i].slots);
    idem__index_init(index, index->secret, index->tag_mask);
}

uint64_t
idem__index_full_tag(const uint8_t *key)
{
    uint64_t tag;

    memcpy(&tag, key, sizeof(tag));
    return be64toh(tag);
}

uint64_t
idem__index_tag(const struct journal_index *index, const uint8_t *key)
{
    return idem__index_full_tag(key) & index->tag_mask;
}

void
idem__index_prefetch(const struct journal_index *index, uint64_t tag)
{
    const struct shard *shard = shard_of(index, tag);

    if (shard->room > 0)
        __builtin_prefetch(&shard->slots[home(index, shard, tag)]);
}

static struct slot *
probe(const struct shard *shard, uint32_t at, uint64_t tag)
{
    for (; shard->slots[at].rev != 0; at = at + 1 < shard->room ? at + 1 : 0) {
        if (shard->slots[at].tag == tag)
            return &shard->slots[at];
    }
    return NULL;
}

struct slot *
idem__index_first(const struct journal_index *index, uint64_t tag)
{
    const struct shard *shard = shard_of(index, tag);

    return shard->room ? probe(shard, home(index, shard, tag), tag) : NULL;
}

struct slot *
idem__index_next(const struct journal_index *index, const struct slot *slot)
{
    const struct shard *shard = shard_of(index, slot->tag);
    uint32_t at = (uint32_t)(slot - shard->slots) + 1;

    return probe(shard, at < shard->room ? at : 0, slot->tag);
}

struct slot *
idem__index_rev(const struct journal_index *index, struct slot *slot,
                uint64_t rev)
{
    while (slot && slot->rev != rev)
        slot = idem__index_next(index, slot);
    return slot;
}

static void
put(const struct journal_index *index, struct shard *shard,
    const struct slot *slot)
{
    uint32_t at = home(index, shard, slot->tag);

    while (shard->slots[at].rev != 0)
        at = at + 1 < shard->room ? at + 1 : 0;
    shard->slots[at] = *slot;
}

static bool
resize(struct journal_index *index, struct shard *shard, uint32_t room)
{
    struct shard old = *shard;
    struct slot *slots = calloc(room, sizeof(*slots));

    if (!slots)
        return false;
    shard->slots = slots;
    shard->room = room;
    for (uint32_t i = 0; i < old.room; i++) {
        if (old.slots[i].rev != 0)
            put(index, shard, &old.slots[i]);
    }
    index->bytes += room * sizeof(*slots);
    index->bytes -= old.room * sizeof(*slots);
    free(old.slots);
    return true;
}

void
idem__index_shrink(struct journal_index *index, uint32_t number)
{
    struct shard *shard = &index->shards[number];
    uint32_t wanted = (shard->used + shard->promised) * 2;

    if (wanted < FIRST_ROOM)
        wanted = FIRST_ROOM;
    if (wanted < shard->room / 2)
        (void)resize(index, shard, wanted);
}

void
idem__index_expect(struct journal_index *index, uint64_t count)
{
    uint64_t room = count / INDEX_SHARDS;

    if (room < FIRST_ROOM * 4 || room > UINT32_MAX / 2)
        return;
    for (size_t i = 0; i < INDEX_SHARDS; i++) {
        struct shard *shard = &index->shards[i];

        if (shard->room < room && !resize(index, shard, (uint32_t)room))
            return;
    }
}

bool
idem__index_promise(struct journal_index *index, uint64_t tag)
{
    struct shard *shard = shard_of(index, tag);

    while (crowded(shard->used + shard->promised + 1, shard->room)) {
        uint32_t room =
            shard->room ? shard->room + shard->room / 3 : FIRST_ROOM;

        if (!resize(index, shard, room))
            return false;
    }
    shard->promised++;
    return true;
}

void
idem__index_take_back(struct journal_index *index, uint64_t tag)
{
    struct shard *shard = shard_of(index, tag);

    assert(shard->promised > 0);
    shard->promised--;
}

static void
count_claim(struct journal_index *index, const struct slot *slot, int by)
{
    if (slot->size & SLOT_EXECUTING)
        index->executing += (size_t)by;
    if (slot->size & SLOT_IDLE)
        index->idle += (size_t)by;
}

void
idem__index_add(struct journal_index *index, const struct slot *slot)
{
    struct shard *shard = shard_of(index, slot->tag);

    assert(shard->promised > 0 && slot->rev != 0);
    shard->promised--;
    shard->used++;
    index->count++;
    count_claim(index, slot, 1);
    put(index, shard, slot);
}

void
idem__index_set(struct journal_index *index, struct slot *slot,
                const struct slot *value)
{
    assert(slot->tag == value->tag && value->rev != 0);
    count_claim(index, slot, -1);
    count_claim(index, value, 1);
    *slot = *value;
}

/* Move the following slots up into the hole, but none of them before its
 * home. */
void
idem__index_remove(struct journal_index *index, struct slot *slot)
{
    struct shard *shard = shard_of(index, slot->tag);
    uint32_t hole = (uint32_t)(slot - shard->slots), at = hole;

    index->count--;
    count_claim(index, slot, -1);
    shard->used--;
    for (;;) {
        uint32_t from;

        at = at + 1 < shard->room ? at + 1 : 0;
        if (shard->slots[at].rev == 0)
            break;
        from = home(index, shard, shard->slots[at].tag);
        if (hole <= at ? hole < from && from <= at : hole < from || from <= at)
            continue;
        shard->slots[hole] = shard->slots[at];
        hole = at;
    }
    memset(&shard->slots[hole], 0, sizeof(*slot));
}
