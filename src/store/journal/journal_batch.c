/*
 * journal_batch.c - collects entries and writes them with one write and one
 * fdatasync.
 *
 * The bodies are written to memory while the swaps are decided; heads and
 * checksums are added when it is known which segment the batch goes to. The
 * index is updated only after the sync.
 */
#include "journal.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define KEPT_LEN ((size_t)16 << 20)

bool
idem__batch_add(struct journal *self, const struct pending *pending,
                const struct idem_record *record, const uint8_t *body)
{
    uint64_t len = entry_len(pending->head.body_len);
    uint8_t *at = idem_buf_room(&self->batch, (size_t)len);
    struct pending *item;

    if (!at)
        return false;
    if (self->pending_count == self->pending_room) {
        struct pending *more = idem__grow(self->pending, self->pending_count,
                                          &self->pending_room, sizeof(*more));

        if (!more)
            return false;
        self->pending = more;
    }
    item = &self->pending[self->pending_count++];
    *item = *pending;
    item->at = self->batch.len;
    if (record)
        idem__encode(record, at + ENTRY_HEAD_LEN);
    else if (body)
        memcpy(at + ENTRY_HEAD_LEN, body, pending->head.body_len);
    self->batch.len += (size_t)len;
    return true;
}

/* Remove an entry from the batch and set its swap's outcome. */
static void
tell(struct journal *self, struct pending *item, enum idem_outcome outcome)
{
    bool promised =
        item->head.kind == ENTRY_RECORD && item->head.prev == 0 && !item->moved;

    if (item->swap)
        item->swap->outcome = outcome;
    if (outcome == IDEM_SWAP_STORED)
        return;
    if (promised)
        idem__index_take_back(&self->index, item->tag);
    if (item->moved)
        idem__clean_restart(self);
}

static void
tell_all(struct journal *self, enum idem_outcome outcome)
{
    for (size_t i = 0; i < self->pending_count; i++)
        tell(self, &self->pending[i], outcome);
    self->pending_count = 0;
    idem_buf_reset(&self->batch);
    if (self->batch.room > KEPT_LEN)
        idem_buf_clear(&self->batch); /* large results are rare */
}

/* On a full disk only the finish of a claim may use the remaining room. */
static void
leave_out_claims(struct journal *self)
{
    size_t kept = 0, len = 0;

    for (size_t i = 0; i < self->pending_count; i++) {
        struct pending *item = &self->pending[i];
        size_t item_len = (size_t)entry_len(item->head.body_len);

        if (item->claim || item->moved) {
            tell(self, item, IDEM_SWAP_NOT_STORED);
            continue;
        }
        memmove(self->batch.data + len, self->batch.data + item->at, item_len);
        item->at = len;
        len += item_len;
        self->pending[kept++] = *item;
    }
    self->pending_count = kept;
    self->batch.len = len;
}

/* Make sure that a segment has room for the batch. If claims had to be left out
 * of the batch, the status says so. */
static enum idem_status
make_room(struct journal *self, struct idem_error *err)
{
    struct segment *segment = &self->segments[self->segment_count - 1];
    size_t before = self->pending_count;
    enum idem_status status;

    if (self->batch.len <= segment->file_len - segment->end)
        return IDEM_OK;
    status = idem__segment_add(self, self->batch.len, false, err);
    if (status != IDEM_ERR_FULL)
        return status;
    /* The new segment may already have its name, and its head says where this
     * one ends. Nothing may be added behind that. */
    if (self->poisoned)
        return IDEM_ERR_UNAVAILABLE;
    leave_out_claims(self);
    if (self->pending_count == 0)
        return status;
    segment = &self->segments[self->segment_count - 1];
    if (self->batch.len > segment->file_len - segment->end) {
        status = idem__segment_add(self, self->batch.len, true, err);
        if (status != IDEM_OK)
            return status;
    }
    return self->pending_count < before ? IDEM_ERR_FULL : IDEM_OK;
}

static void
seal_heads(struct journal *self, const struct segment *segment)
{
    int64_t now_us = idem__journal_now_us(self);

    for (size_t i = 0; i < self->pending_count; i++) {
        struct pending *item = &self->pending[i];

        item->head.batch = self->next_batch;
        item->head.time_us = now_us;
        if (i + 1 == self->pending_count)
            item->head.flags |= ENTRY_LAST;
        idem__entry_put(&item->head, segment->head.salt,
                        self->batch.data + item->at);
    }
    self->last_batch_us = now_us;
}

/* Find the slot that an entry replaces. If this batch has moved that slot's
 * record too, the slot already points to the moved one. */
static bool
find_old(struct journal *self, const struct pending *item,
         const struct segment *segment, struct spot *old)
{
    const struct pending *moved = self->pending;

    if (item->old == 0)
        return false;
    if (idem__index_find(&self->index, item->tag, item->old, old))
        return true;
    while (moved < item && (!moved->moved || moved->old != item->old))
        moved++;
    return moved < item &&
           idem__index_find(
               &self->index, item->tag,
               segment->base + (segment->end + moved->at) / ENTRY_ALIGN, old);
}

struct row
idem__entry_row(const struct entry_head *head, uint64_t at)
{
    return (struct row){
        .tag = idem__index_full_tag(head->key),
        .place = (uint32_t)(at / ENTRY_ALIGN),
        .size = (uint32_t)(entry_len(head->body_len) / 8) |
                (head->flags & ENTRY_EXECUTING ? ROW_EXECUTING : 0) |
                (head->kind == ENTRY_DELETE ? ROW_DELETE : 0),
        .drop_s = idem__drop_seconds(head->drop_at),
    };
}

static void
apply(struct journal *self, const struct pending *item, struct segment *segment)
{
    uint64_t at = segment->end + item->at;
    struct row row = idem__entry_row(&item->head, at);
    struct spot old;
    bool found;

    if (item->head.kind == ENTRY_MARK)
        return;
    found = find_old(self, item, segment, &old);
    assert(found == (item->old != 0));
    idem__journal_put(self, segment, &row, found ? &old : NULL, item->idle);
    if (item->head.flags & ENTRY_EXECUTING)
        idem__journal_note_rev(self, segment->base + at / ENTRY_ALIGN,
                               item->head.rev);
}

enum idem_status
idem__batch_commit(struct journal *self, struct idem_error *err)
{
    struct segment *segment;
    enum idem_status status;
    int error;

    if (self->pending_count == 0)
        return IDEM_OK;
    status = self->poisoned ? IDEM_ERR_UNAVAILABLE : make_room(self, err);
    if (self->pending_count == 0)
        return status;
    if (status != IDEM_OK && status != IDEM_ERR_FULL) {
        tell_all(self, IDEM_SWAP_NOT_STORED);
        return status;
    }
    segment = &self->segments[self->segment_count - 1];
    if (self->batch.len > segment->file_len - segment->end) {
        tell_all(self, IDEM_SWAP_NOT_STORED);
        return status;
    }
    seal_heads(self, segment);
    error = idem__tail_write(self, segment, self->batch.data, self->batch.len);
    if (!error)
        error = idem__io_datasync(self->io, segment->fd);
    if (error) {
        idem__journal_poison(self, "writing a batch", error);
        tell_all(self, IDEM_SWAP_LOST);
        return idem__fail(err, IDEM_ERR_LOST,
                          "journal: %.120s: writing a batch failed: %s",
                          self->dir, strerror(error));
    }
    for (size_t i = 0; i < self->pending_count; i++)
        apply(self, &self->pending[i], segment);
    segment->end += self->batch.len;
    self->next_batch++;
    self->persisted_us = self->last_batch_us;
    self->marked = false;
    tell_all(self, IDEM_SWAP_STORED);
    return status;
}

void
idem__batch_mark(struct journal *self)
{
    struct pending item = {.head = {.kind = ENTRY_MARK}};
    struct segment *segment = &self->segments[self->segment_count - 1];

    assert(self->pending_count == 0);
    /* A mark is not worth a new segment. */
    if (self->poisoned || segment->file_len - segment->end < ENTRY_HEAD_LEN)
        return;
    if (idem__batch_add(self, &item, NULL, NULL) &&
        idem__batch_commit(self, NULL) == IDEM_OK)
        self->marked = true;
}
