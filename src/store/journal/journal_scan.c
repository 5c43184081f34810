/*
 * journal_scan.c - lists records in the order of their tags, a few at a time.
 *
 * The cursor is the next tag. It stays valid while the table grows, and when
 * the journal is opened again.
 */
#include "journal.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

static int
by_tag(const void *a, const void *b)
{
    uint64_t x = ((const struct slot *)a)->tag;
    uint64_t y = ((const struct slot *)b)->tag;

    return (x > y) - (x < y);
}

/* The slots of one shard from a tag on, in the order of their tags. */
static struct slot *
sorted_shard(struct journal *self, uint64_t from, size_t *count)
{
    const struct shard *shard =
        &self->index.shards[from >> (64 - INDEX_SHARD_BITS)];
    struct slot *slots = malloc((shard->used + 1) * sizeof(*slots));
    size_t n = 0;

    if (!slots)
        return NULL;
    for (uint32_t i = 0; i < shard->room; i++) {
        if (shard->slots[i].rev != 0 && shard->slots[i].tag >= from)
            slots[n++] = shard->slots[i];
    }
    qsort(slots, n, sizeof(*slots), by_tag);
    *count = n;
    return slots;
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
    bytes = idem_buf_room(&self->scratch, slot_len(slot));
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
    bool go_on = true;

    if (*end != 0 || end == query->cursor->text ||
        query->cursor->text[0] == '-')
        return idem__query_bad_cursor(query, err);
    if (idem__journal_heal(self, err) != IDEM_OK)
        return IDEM_ERR_UNAVAILABLE;
    while (seen < query->count && go_on) {
        size_t n, i;
        struct slot *slots = sorted_shard(self, from, &n);

        if (!slots)
            return idem__fail(err, IDEM_ERR_MEMORY, "journal: out of memory");
        for (i = 0; i < n && go_on; i++) {
            enum idem_status status;

            /* All records with the same tag belong to the same call. */
            if (seen >= query->count && slots[i].tag != slots[i - 1].tag)
                break;
            status = show(self, &slots[i], query, &go_on, err);
            if (status != IDEM_OK) {
                free(slots);
                return status;
            }
            seen++;
        }
        if (i < n)
            from = slots[i].tag;
        else
            from = ((from >> (64 - INDEX_SHARD_BITS)) + 1)
                   << (64 - INDEX_SHARD_BITS);
        free(slots);
        if (from == 0)
            break; /* after the last shard */
    }
    if (go_on)
        snprintf(query->cursor->text, sizeof(query->cursor->text), "%" PRIu64,
                 from);
    return IDEM_OK;
}
