/*
 * index.h - the index in memory: the place of each record, 14 bytes per cell.
 *
 * The table is split into shards by the first bits of the tag, so that growing
 * never takes long. A shard is a list of small blocks, all of the same size, so
 * that memory is not lost between them when it grows. The tag is the first 43
 * bits of the key, which is a SHA-256. A cell has no key and no rev: a slot
 * found by its tag is only a candidate. The caller verifies it by the whole key
 * in the entry, or by the rev of that entry if it knows it (journal.h).
 */
#ifndef IDEM__JOURNAL_INDEX_H
#define IDEM__JOURNAL_INDEX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define INDEX_SHARD_BITS 11
#define INDEX_SHARDS (1u << INDEX_SHARD_BITS)
#define INDEX_TAG_BITS (INDEX_SHARD_BITS + 32)
#define INDEX_BLOCK 64 /* cells */

/* A position in the log, in units of 8 bytes; see struct segment. */
#define INDEX_AT_BITS 42
#define INDEX_AT_END (UINT64_C(1) << INDEX_AT_BITS)

/* Drop times are in units of 32 seconds, with these exceptions. */
#define DROP_UNIT_S 32
#define DROP_NEVER 0
#define DROP_CLAIM ((UINT32_C(1) << 27) - 1) /* executing: never */
#define DROP_IDLE (DROP_CLAIM - 1) /* executing, and no room is reserved */

struct slot {
    uint64_t tag;
    uint64_t at;   /* position of the entry; never 0 */
    uint32_t size; /* of the entry, as idem__slot_size encodes it */
    uint32_t drop; /* as idem__slot_drop encodes it */
};

/* A slot as it is kept. */
struct __attribute__((packed)) cell {
    uint32_t order;     /* the tag without the shard's bits, scrambled */
    uint64_t where;     /* at: 42 bits, size: 11, drop: the low 11; 0: empty */
    uint16_t drop_high; /* 16 bits */
};

struct shard {
    struct cell **blocks;
    uint32_t count; /* of blocks */
    uint32_t used, promised;
};

struct journal_index {
    struct shard shards[INDEX_SHARDS];
    /* The secret: so that nobody can aim keys at one place of a shard. */
    uint32_t mask, first, second, undo_first, undo_second;
    uint64_t tag_mask;
    size_t count, executing, idle;
    size_t bytes; /* of all cells, used or not, and of what holds them */
};

/* A slot and where it was found. Valid until something is added or removed. */
struct spot {
    struct slot slot;
    struct shard *shard;
    uint32_t number; /* of the cell in its shard */
};

/* A size has 6 significant bits above 1 KiB: the entry is not shorter than
 * slot_len and not longer than slot_room. */
static inline uint32_t
idem__slot_size(uint64_t len)
{
    uint64_t units = len / 8;
    uint32_t shift = 0;

    while (units >> shift >= 128)
        shift++;
    return shift == 0 && units < 64
               ? (uint32_t)units
               : (uint32_t)((shift + 1) << 6 | (units >> shift & 63));
}

static inline uint64_t
slot_len(const struct slot *slot)
{
    uint32_t exponent = slot->size >> 6, low = slot->size & 63;

    return exponent ? (uint64_t)(64 + low) << (exponent - 1) << 3
                    : (uint64_t)low << 3;
}

static inline uint64_t
slot_room(const struct slot *slot)
{
    uint32_t exponent = slot->size >> 6;

    return slot_len(slot) +
           (exponent ? ((UINT64_C(1) << (exponent - 1)) - 1) * 8 : 0);
}

static inline bool
slot_executing(const struct slot *slot)
{
    return slot->drop >= DROP_IDLE;
}

/* A drop time in seconds, rounded up so that it is never early; 0: never. */
static inline uint32_t
idem__drop_seconds(int64_t drop_at_ms)
{
    if (drop_at_ms <= 0 || drop_at_ms / 1000 >= UINT32_MAX - 1)
        return 0;
    return (uint32_t)(drop_at_ms / 1000 + 1);
}

static inline uint32_t
idem__slot_drop(uint32_t drop_s, bool executing)
{
    uint64_t units = ((uint64_t)drop_s + DROP_UNIT_S - 1) / DROP_UNIT_S;

    if (executing)
        return DROP_CLAIM;
    return units < DROP_IDLE ? (uint32_t)units : DROP_NEVER;
}

void idem__index_init(struct journal_index *index, uint64_t secret,
                      uint64_t tag_mask);
void idem__index_clear(struct journal_index *index);

/* The first 64 bits of a key, and of these the ones that this index uses. */
uint64_t idem__index_full_tag(const uint8_t *key);
uint64_t idem__index_short_tag(const struct journal_index *index,
                               uint64_t full_tag);
uint64_t idem__index_tag(const struct journal_index *index, const uint8_t *key);

/* Prefetch what a search for this tag reads: first the block's address, and
 * some time later the cells. */
enum index_part { INDEX_BLOCKS, INDEX_CELLS };
void idem__index_prefetch(const struct journal_index *index, uint64_t tag,
                          enum index_part part);

/* The first slot with this tag, and the next one. False: no more. */
bool idem__index_first(const struct journal_index *index, uint64_t tag,
                       struct spot *spot);
bool idem__index_next(const struct journal_index *index, struct spot *spot);
/* The slot with this tag that points to this position. */
bool idem__index_find(const struct journal_index *index, uint64_t tag,
                      uint64_t at, struct spot *spot);

/* The number of cells of a shard, and one of them. False: it is empty. */
uint32_t idem__index_room(const struct journal_index *index, uint32_t shard);
bool idem__index_look(const struct journal_index *index, uint32_t shard,
                      uint32_t number, struct spot *spot);

/* A shard will have about this many records: make room for them at once, which
 * saves moving them. Without memory for that nothing is lost. */
void idem__index_expect(struct journal_index *index, uint32_t shard,
                        uint64_t count);

/* Guarantee that one more idem__index_add of this tag cannot fail. False: out
 * of memory. The guarantee ends with that add, or is taken back. */
bool idem__index_promise(struct journal_index *index, uint64_t tag);
void idem__index_take_back(struct journal_index *index, uint64_t tag);

/* Add a slot, after a promise. */
void idem__index_add(struct journal_index *index, const struct slot *slot);
/* Change a slot of the same key. */
void idem__index_set(struct journal_index *index, const struct spot *spot,
                     const struct slot *value);
void idem__index_remove(struct journal_index *index, const struct spot *spot);
/* Free memory of a shard that has much empty room. */
void idem__index_shrink(struct journal_index *index, uint32_t shard);

#endif
