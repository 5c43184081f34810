/*
 * index.h - the index in memory: the place of each record, 32 bytes per slot.
 *
 * The table is split into shards by the first bits of the tag, so that growing
 * never takes long. The tag is the first 8 bytes of the key, which is a
 * SHA-256. Two keys with the same tag are very rare but possible, so a slot
 * found by its tag is only a candidate. The caller verifies it by the rev (64
 * random bits) or by the whole key in the entry.
 */
#ifndef IDEM__JOURNAL_INDEX_H
#define IDEM__JOURNAL_INDEX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define INDEX_SHARD_BITS 12
#define INDEX_SHARDS (1u << INDEX_SHARD_BITS)
#define SLOT_EXECUTING (UINT32_C(1) << 31)
#define SLOT_IDLE (UINT32_C(1) << 30) /* executing, and no room is reserved */

struct slot {
    uint64_t tag;
    uint64_t rev;    /* 0: the slot is empty */
    uint32_t seg;    /* the low 32 bits of the segment's id */
    uint32_t place;  /* offset of the entry, divided by 8 */
    uint32_t drop_s; /* seconds, rounded up; 0: never */
    uint32_t size;   /* of the entry, divided by 8; the high bits are flags */
};

struct shard {
    struct slot *slots;
    uint32_t room, used, promised;
};

struct journal_index {
    struct shard shards[INDEX_SHARDS];
    uint64_t secret; /* so that nobody can aim keys at one place of a shard */
    uint64_t tag_mask;
    size_t count, executing, idle;
    size_t bytes; /* of all slots, used or not */
};

static inline uint32_t
slot_len(const struct slot *slot)
{
    return (slot->size & ~(SLOT_EXECUTING | SLOT_IDLE)) * 8;
}

static inline uint64_t
slot_at(const struct slot *slot)
{
    return (uint64_t)slot->place * 8;
}

/* A drop time in a slot's seconds, rounded up so that it is never early. */
static inline uint32_t
idem__drop_seconds(int64_t drop_at_ms)
{
    if (drop_at_ms <= 0)
        return 0;
    if (drop_at_ms / 1000 >= UINT32_MAX - 1)
        return UINT32_MAX;
    return (uint32_t)(drop_at_ms / 1000 + 1);
}

void idem__index_init(struct journal_index *index, uint64_t secret,
                      uint64_t tag_mask);
void idem__index_clear(struct journal_index *index);

/* All bits of a key's tag, and the bits that this index uses. */
uint64_t idem__index_full_tag(const uint8_t *key);
uint64_t idem__index_tag(const struct journal_index *index, const uint8_t *key);

/* Prefetch the tag's place into the processor's cache. */
void idem__index_prefetch(const struct journal_index *index, uint64_t tag);

/* The first slot with this tag, and the next one after `slot`; NULL: no more.
 * Valid until something is added or removed. */
struct slot *idem__index_first(const struct journal_index *index, uint64_t tag);
struct slot *idem__index_next(const struct journal_index *index,
                              const struct slot *slot);
/* The first slot from this one on with this rev. A rev is 64 random bits, so
 * the slot's key is the key that had that rev. */
struct slot *idem__index_rev(const struct journal_index *index,
                             struct slot *slot, uint64_t rev);

/* About this many records will be added: make room for most of them at once,
 * which saves moving them. Without memory for that nothing is lost. */
void idem__index_expect(struct journal_index *index, uint64_t count);

/* Guarantee that one more idem__index_add of this tag cannot fail. False: out
 * of memory. The guarantee ends with that add, or is taken back. */
bool idem__index_promise(struct journal_index *index, uint64_t tag);
void idem__index_take_back(struct journal_index *index, uint64_t tag);

/* Add a slot, after a promise. */
void idem__index_add(struct journal_index *index, const struct slot *slot);
/* Change a slot of the same key. */
void idem__index_set(struct journal_index *index, struct slot *slot,
                     const struct slot *value);
void idem__index_remove(struct journal_index *index, struct slot *slot);
/* Free memory of a shard that is mostly empty. */
void idem__index_shrink(struct journal_index *index, uint32_t shard);

#endif
