/*
 * batch.c - entries gathered, written with one write and one fdatasync.
 *
 * The bodies are put down while the swaps are decided; heads and checksums are
 * added when it is known which segment the batch goes to. The index learns of
 * an entry only after the sync.
 */
#include "journal.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

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
        size_t room = self->pending_room ? self->pending_room * 2 : 64;
        struct pending *more =
            realloc(self->pending, room * sizeof(*self->pending));

        if (!more)
            return false;
        self->pending = more;
        self->pending_room = room;
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

static void
tell(struct journal *self, enum idem_outcome outcome)
{
    for (size_t i = 0; i < self->pending_count; i++) {
        struct pending *item = &self->pending[i];

        if (item->swap)
            item->swap->outcome = outcome;
        if (outcome != IDEM_SWAP_STORED && item->head.kind == ENTRY_RECORD &&
            item->head.prev == 0 && item->moved.rev == 0)
            idem__index_take_back(&self->index, item->tag);
    }
    self->pending_count = 0;
    idem_buf_reset(&self->batch);
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
    self->persisted_us = now_us;
}

enum idem_status
idem__batch_commit(struct journal *self, struct idem_error *err)
{
    struct segment *segment = &self->segments[self->segment_count - 1];
    enum idem_status status;
    int error;

    if (self->pending_count == 0)
        return IDEM_OK;
    if (self->batch.len > segment->file_len - segment->end) {
        status = idem__segment_add(self, self->batch.len, err);
        if (status != IDEM_OK) {
            tell(self, IDEM_SWAP_NOT_STORED);
            return status;
        }
        segment = &self->segments[self->segment_count - 1];
    }
    seal_heads(self, segment);
    error = idem__io_write(self->io, segment->fd, self->batch.data,
                           self->batch.len, segment->end);
    if (!error)
        error = idem__io_datasync(self->io, segment->fd);
    if (error) {
        tell(self, IDEM_SWAP_LOST);
        return idem__fail(err, IDEM_ERR_LOST, "journal: %.120s: %s", self->dir,
                          strerror(error));
    }
    for (size_t i = 0; i < self->pending_count; i++)
        idem__journal_apply(self, &self->pending[i], segment,
                            segment->end + self->pending[i].at);
    segment->end += self->batch.len;
    self->next_batch++;
    tell(self, IDEM_SWAP_STORED);
    return IDEM_OK;
}

/* The slot that an entry replaces: its key had the rev `prev`. */
static struct slot *
find(struct journal *self, uint64_t tag, uint64_t rev)
{
    struct slot *slot = rev ? idem__index_first(&self->index, tag) : NULL;

    while (slot && slot->rev != rev)
        slot = idem__index_next(&self->index, slot);
    return slot;
}

void
idem__journal_apply(struct journal *self, const struct pending *pending,
                    struct segment *segment, uint64_t at)
{
    const struct entry_head *head = &pending->head;
    uint64_t len = entry_len(head->body_len);
    struct slot *old;
    struct slot slot = {
        .tag = pending->tag,
        .rev = head->rev,
        .seg = (uint32_t)segment->head.id,
        .place = (uint32_t)(at / ENTRY_ALIGN),
        .drop_s = idem__drop_seconds(head->drop_at),
        .size = (uint32_t)(len / 8) |
                (head->flags & ENTRY_EXECUTING ? SLOT_EXECUTING : 0),
    };

    if (head->kind == ENTRY_MARK)
        return;
    old = find(self, pending->tag,
               pending->moved.rev ? pending->moved.rev : head->prev);
    if (old)
        idem__journal_segment(self, old->seg)->live -= slot_len(old);
    if (head->kind == ENTRY_DELETE) {
        if (old)
            idem__index_remove(&self->index, old);
        return;
    }
    segment->live += len;
    if (old)
        idem__index_set(&self->index, old, &slot);
    else
        idem__index_add(&self->index, &slot);
}
