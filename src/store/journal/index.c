/*
 * index.c - the index: a hash table with linear probing, in shards.
 *
 * Cells are kept in the order of their homes (Robin Hood hashing). So a search
 * ends where a cell is nearer to its home than the searched one would be, and
 * stays short in a table that is nearly full.
 */
#include "index.h"

#include <assert.h>
#include <endian.h>
#include <stdlib.h>
#include <string.h>

/* Of 64 cells at most 55 are used. A shard grows by an eighth, so that with 9
 * blocks or more a record takes 17 to 19 bytes. */
#define MOST 55
#define USUAL 51
#define LEAST 46 /* fewer: the shard shrinks */
#define BLOCK_LEN (INDEX_BLOCK * sizeof(struct cell))
#define MALLOC_LEN 16 /* what malloc needs for itself */
#define TAG_SHIFT (64 - INDEX_TAG_BITS)
#define AT_MASK (INDEX_AT_END - 1)

static uint32_t
room_of(const struct shard *shard)
{
    return shard->count * INDEX_BLOCK;
}

static struct cell *
cell_of(const struct shard *shard, uint32_t number)
{
    return &shard->blocks[number / INDEX_BLOCK][number % INDEX_BLOCK];
}

static uint32_t
after(const struct shard *shard, uint32_t number)
{
    return number + 1 < room_of(shard) ? number + 1 : 0;
}

static uint32_t
before(const struct shard *shard, uint32_t number)
{
    return (number ? number : room_of(shard)) - 1;
}

static uint32_t
home(const struct shard *shard, uint32_t order)
{
    return (uint32_t)(((uint64_t)order * room_of(shard)) >> 32);
}

/* How far a cell is behind its home. */
static uint32_t
distance(const struct shard *shard, uint32_t number)
{
    uint32_t from = home(shard, cell_of(shard, number)->order);

    return number >= from ? number - from : number + room_of(shard) - from;
}

static struct shard *
shard_of(const struct journal_index *index, uint64_t tag)
{
    return (struct shard *)&index->shards[tag >> (64 - INDEX_SHARD_BITS)];
}

/* One-to-one: cells have the same order if and only if their tags are the
 * same. */
static uint32_t
order_of(const struct journal_index *index, uint64_t tag)
{
    uint32_t x = ((uint32_t)(tag >> TAG_SHIFT) ^ index->mask) * index->first;

    x = (x ^ x >> 16) * index->second;
    return x ^ x >> 16;
}

static uint64_t
tag_of(const struct journal_index *index, const struct shard *shard,
       uint32_t order)
{
    uint32_t x = (order ^ order >> 16) * index->undo_second;

    x = ((x ^ x >> 16) * index->undo_first) ^ index->mask;
    return (uint64_t)(shard - index->shards) << (64 - INDEX_SHARD_BITS) |
           (uint64_t)x << TAG_SHIFT;
}

/* The number whose product with this odd one is 1, modulo 2^32. */
static uint32_t
inverse(uint32_t odd)
{
    uint32_t x = odd;

    for (int i = 0; i < 5; i++) /* each round doubles the right bits */
        x *= 2 - odd * x;
    return x;
}

void
idem__index_init(struct journal_index *index, uint64_t secret,
                 uint64_t tag_mask)
{
    memset(index, 0, sizeof(*index));
    index->mask = (uint32_t)secret;
    index->first = (uint32_t)(secret >> 32) | 1;
    index->second = ((uint32_t)(secret >> 11) ^ UINT32_C(0x9E3779B9)) | 1;
    index->undo_first = inverse(index->first);
    index->undo_second = inverse(index->second);
    index->tag_mask = tag_mask & UINT64_MAX << TAG_SHIFT;
}

static void
free_blocks(struct cell **blocks, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        free(blocks[i]);
    free(blocks);
}

void
idem__index_clear(struct journal_index *index)
{
    for (size_t i = 0; i < INDEX_SHARDS; i++)
        free_blocks(index->shards[i].blocks, index->shards[i].count);
    memset(index->shards, 0, sizeof(index->shards));
    index->count = index->executing = index->idle = index->bytes = 0;
}

uint64_t
idem__index_full_tag(const uint8_t *key)
{
    uint64_t tag;

    memcpy(&tag, key, sizeof(tag));
    return be64toh(tag);
}

uint64_t
idem__index_short_tag(const struct journal_index *index, uint64_t full_tag)
{
    return full_tag & index->tag_mask;
}

uint64_t
idem__index_tag(const struct journal_index *index, const uint8_t *key)
{
    return idem__index_short_tag(index, idem__index_full_tag(key));
}

void
idem__index_prefetch(const struct journal_index *index, uint64_t tag,
                     enum index_part part)
{
    const struct shard *shard = shard_of(index, tag);
    uint32_t number = home(shard, order_of(index, tag));

    if (shard->count == 0)
        return;
    if (part == INDEX_BLOCKS) {
        __builtin_prefetch(&shard->blocks[number / INDEX_BLOCK]);
        return;
    }
    __builtin_prefetch(cell_of(shard, number), 1);
    __builtin_prefetch(cell_of(shard, number) + 5, 1); /* the next 64 bytes */
}

static void
unpack(const struct journal_index *index, struct spot *spot)
{
    const struct cell *cell = cell_of(spot->shard, spot->number);

    spot->slot = (struct slot){
        .tag = tag_of(index, spot->shard, cell->order),
        .at = cell->where & AT_MASK,
        .size = cell->where >> INDEX_AT_BITS & 0x7FF,
        .drop = (uint32_t)(cell->where >> 53) | (uint32_t)cell->drop_high << 11,
    };
}

static struct cell
pack(const struct journal_index *index, const struct slot *slot)
{
    assert(slot->at != 0 && slot->at < INDEX_AT_END && slot->size < 0x800);
    return (struct cell){
        .order = order_of(index, slot->tag),
        .where = slot->at | (uint64_t)slot->size << INDEX_AT_BITS |
                 (uint64_t)slot->drop << 53,
        .drop_high = (uint16_t)(slot->drop >> 11),
    };
}

/* Search from this cell on, which would be `far` behind the home. */
static bool
probe(const struct journal_index *index, struct spot *spot, uint32_t order,
      uint32_t far)
{
    const struct shard *shard = spot->shard;

    for (; far < room_of(shard); far++) {
        const struct cell *cell = cell_of(shard, spot->number);

        if (cell->where == 0)
            return false;
        if (cell->order == order) {
            unpack(index, spot);
            return true;
        }
        if (distance(shard, spot->number) < far)
            return false;
        spot->number = after(shard, spot->number);
    }
    return false;
}

bool
idem__index_first(const struct journal_index *index, uint64_t tag,
                  struct spot *spot)
{
    uint32_t order = order_of(index, tag);

    spot->shard = shard_of(index, tag);
    spot->number = home(spot->shard, order);
    return probe(index, spot, order, 0);
}

bool
idem__index_next(const struct journal_index *index, struct spot *spot)
{
    uint32_t order = cell_of(spot->shard, spot->number)->order;
    uint32_t far = distance(spot->shard, spot->number) + 1;

    spot->number = after(spot->shard, spot->number);
    return probe(index, spot, order, far);
}

bool
idem__index_find(const struct journal_index *index, uint64_t tag, uint64_t at,
                 struct spot *spot)
{
    bool found = idem__index_first(index, tag, spot);

    while (found && spot->slot.at != at)
        found = idem__index_next(index, spot);
    return found;
}

uint32_t
idem__index_room(const struct journal_index *index, uint32_t shard)
{
    return room_of(&index->shards[shard]);
}

bool
idem__index_look(const struct journal_index *index, uint32_t shard,
                 uint32_t number, struct spot *spot)
{
    spot->shard = (struct shard *)&index->shards[shard];
    spot->number = number;
    if (cell_of(spot->shard, number)->where == 0)
        return false;
    unpack(index, spot);
    return true;
}

/* Move the cells from `number` on by one, up to an empty cell. */
static void
make_gap(struct shard *shard, uint32_t number)
{
    uint32_t to = number;

    while (cell_of(shard, to)->where != 0)
        to = after(shard, to);
    while (to != number) {
        uint32_t run = to % INDEX_BLOCK, from = before(shard, to);

        if (run == 0) { /* the first of a block */
            *cell_of(shard, to) = *cell_of(shard, from);
            to = from;
            continue;
        }
        if (to > number && to - number < run)
            run = to - number;
        memmove(cell_of(shard, to - run) + 1, cell_of(shard, to - run),
                run * sizeof(struct cell));
        to -= run;
    }
}

static void
put(struct shard *shard, const struct cell *cell)
{
    uint32_t number = home(shard, cell->order);

    for (uint32_t far = 0; cell_of(shard, number)->where != 0; far++) {
        if (distance(shard, number) < far) {
            make_gap(shard, number);
            break;
        }
        number = after(shard, number);
    }
    *cell_of(shard, number) = *cell;
}

static bool
resize(struct journal_index *index, struct shard *shard, uint32_t count)
{
    struct shard old = *shard;
    struct cell **blocks = count ? malloc(count * sizeof(*blocks)) : NULL;

    for (uint32_t i = 0; i < count; i++) {
        if (blocks)
            blocks[i] = calloc(1, BLOCK_LEN);
        if (!blocks || !blocks[i]) {
            free_blocks(blocks, blocks ? i : 0);
            return false;
        }
    }
    shard->blocks = blocks;
    shard->count = count;
    for (uint32_t i = 0; i < room_of(&old); i++) {
        if (cell_of(&old, i)->where != 0)
            put(shard, cell_of(&old, i));
    }
    index->bytes += count * (BLOCK_LEN + MALLOC_LEN + sizeof(*blocks));
    index->bytes -= old.count * (BLOCK_LEN + MALLOC_LEN + sizeof(*blocks));
    free_blocks(old.blocks, old.count);
    return true;
}

static uint32_t
blocks_for(uint64_t cells)
{
    return (uint32_t)((cells + USUAL - 1) / USUAL);
}

void
idem__index_shrink(struct journal_index *index, uint32_t number)
{
    struct shard *shard = &index->shards[number];
    uint32_t cells = shard->used + shard->promised;
    uint32_t wanted = blocks_for(cells);

    if (wanted < shard->count && cells < shard->count * LEAST)
        (void)resize(index, shard, wanted);
}

void
idem__index_expect(struct journal_index *index, uint32_t number, uint64_t count)
{
    struct shard *shard = &index->shards[number];

    if (count / USUAL < UINT32_MAX / INDEX_BLOCK / 2 &&
        shard->count < count / USUAL)
        (void)resize(index, shard, (uint32_t)(count / USUAL));
}

bool
idem__index_promise(struct journal_index *index, uint64_t tag)
{
    struct shard *shard = shard_of(index, tag);
    uint64_t cells = (uint64_t)shard->used + shard->promised + 1;

    while (cells > (uint64_t)shard->count * MOST) {
        uint32_t more = shard->count / 8;

        if (!resize(index, shard, shard->count + (more ? more : 1)))
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
    if (slot_executing(slot))
        index->executing += (size_t)by;
    if (slot->drop == DROP_IDLE)
        index->idle += (size_t)by;
}

void
idem__index_add(struct journal_index *index, const struct slot *slot)
{
    struct shard *shard = shard_of(index, slot->tag);
    struct cell cell = pack(index, slot);

    assert(shard->promised > 0);
    shard->promised--;
    shard->used++;
    index->count++;
    count_claim(index, slot, 1);
    put(shard, &cell);
}

void
idem__index_set(struct journal_index *index, const struct spot *spot,
                const struct slot *value)
{
    assert(spot->slot.tag == value->tag);
    count_claim(index, &spot->slot, -1);
    count_claim(index, value, 1);
    *cell_of(spot->shard, spot->number) = pack(index, value);
}

/* Move the following cells back by one, but none of them before its home. */
void
idem__index_remove(struct journal_index *index, const struct spot *spot)
{
    struct shard *shard = spot->shard;
    uint32_t hole = spot->number, next = after(shard, hole);

    index->count--;
    count_claim(index, &spot->slot, -1);
    shard->used--;
    while (cell_of(shard, next)->where != 0 && distance(shard, next) > 0) {
        *cell_of(shard, hole) = *cell_of(shard, next);
        hole = next;
        next = after(shard, next);
    }
    memset(cell_of(shard, hole), 0, sizeof(struct cell));
}
