/*
 * journal_scan.c - lists records in the order of their tags, a few at a time.
 *
 * The cursor is the next tag. It stays valid while the table grows, and when
 * the journal is opened again.
 *
 * The index knows which records are executing. So a scan for these, such as the
 * server's search for doubts, reads no other entries.
 */
#include "journal.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define SLOTS_A_READ 64 /* looking at so many slots takes as long as a read */

static bool
only_executing(const struct idem_query *query)
{
    const struct idem_filter *filter = query->filter;

    return filter && (filter->doubt || filter->state == IDEM_STATE_EXECUTING);
}

static int
by_tag(const void *a, const void *b)
{
    uint64_t x = ((const struct slot *)a)->tag;
    uint64_t y = ((const struct slot *)b)->tag;

    return (x > y) - (x < y);
}

/* A part of the tags, within one shard. */
struct part {
    uint64_t last;
    struct slot *slots; /* in the order of their tags */
    size_t count;
};

/* Read a part with about `wanted` slots or more, or all slots of the shard that
 * are executing. */
static bool
read_part(struct journal *self, uint64_t from, size_t wanted, bool executing,
          struct part *part)
{
    uint32_t shard = (uint32_t)(from >> (64 - INDEX_SHARD_BITS));
    uint32_t used = self->index.shards[shard].used;
    uint64_t tags = UINT64_C(1) << (64 - INDEX_SHARD_BITS);
    uint64_t end = from | (tags - 1); /* the shard's last tag */
    struct spot spot;

    *part = (struct part){.last = end};
    if (!executing && wanted < used / 4 &&
        tags / used * 2 * wanted < end - from)
        part->last =
            (from + tags / used * 2 * wanted) | UINT64_MAX >> INDEX_TAG_BITS;
    part->slots = malloc((used + 1) * sizeof(*part->slots));
    if (!part->slots)
        return false;
    for (uint32_t i = 0; i < idem__index_room(&self->index, shard); i++) {
        if (idem__index_look(&self->index, shard, i, &spot) &&
            spot.slot.tag >= from && spot.slot.tag <= part->last &&
            (!executing || slot_executing(&spot.slot)))
            part->slots[part->count++] = spot.slot;
    }
    qsort(part->slots, part->count, sizeof(*part->slots), by_tag);
    return true;
}

static enum idem_status
show(struct journal *self, const struct slot *slot,
     const struct idem_query *query, bool *go_on, struct idem_error *err)
{
    struct entry_head head;
    struct idem_record record;
    enum idem_status status;
    uint8_t *bytes;

    idem_buf_reset(&self->scratch);
    bytes = idem_buf_room(&self->scratch, (size_t)slot_room(slot));
    if (!bytes)
        return idem__fail(err, IDEM_ERR_MEMORY, "journal: out of memory");
    status = idem__journal_read(self, slot, bytes, &head, err);
    if (status == IDEM_OK)
        status = idem__decode(
            (struct idem_bytes){bytes + ENTRY_HEAD_LEN, head.body_len}, &record,
            err);
    if (status == IDEM_OK)
        *go_on = idem__query_give(query, &record);
    return status;
}

enum idem_status
idem__journal_scan(struct idem_store *store, const struct idem_query *query,
                   struct idem_error *err)
{
    struct journal *self = (struct journal *)store;
    char *end;
    uint64_t from = strtoull(query->cursor->text, &end, 10);
    size_t seen = 0;
    bool go_on = true, executing = only_executing(query);

    if (*end != 0 || end == query->cursor->text ||
        query->cursor->text[0] == '-')
        return idem__query_bad_cursor(query, err);
    if (idem__journal_heal(self, err) != IDEM_OK)
        return IDEM_ERR_UNAVAILABLE;
    from &= UINT64_MAX << (64 - INDEX_TAG_BITS); /* before 0.9 it had more */
    while (seen < query->count && go_on) {
        uint32_t shard = (uint32_t)(from >> (64 - INDEX_SHARD_BITS));
        enum idem_status status = idem__load_shard(self, shard, err);
        struct part part;
        size_t i;

        if (status != IDEM_OK)
            return status;
        if (!read_part(self, from, query->count - seen, executing, &part))
            return idem__fail(err, IDEM_ERR_MEMORY, "journal: out of memory");
        for (i = 0; i < part.count && go_on; i++) {
            const struct slot *slot = &part.slots[i];

            /* All records with the same tag belong to the same call. */
            if (seen >= query->count && slot->tag != slot[-1].tag)
                break;
            status = show(self, slot, query, &go_on, err);
            if (status != IDEM_OK) {
                free(part.slots);
                return status;
            }
            seen++;
        }
        if (executing)
            seen += idem__index_room(&self->index, shard) / SLOTS_A_READ;
        from = i < part.count ? part.slots[i].tag : part.last + 1;
        free(part.slots);
        if (from == 0)
            break; /* after the last shard */
    }
    if (go_on)
        snprintf(query->cursor->text, sizeof(query->cursor->text), "%" PRIu64,
                 from);
    return IDEM_OK;
}
