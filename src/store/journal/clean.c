/*
 * clean.c - removes expired records, and segments that are mostly dead.
 *
 * Only the oldest segment is ever removed. Its live entries are first written
 * again at the end of the log, as part of a batch, so that needs no extra sync.
 * An older entry of a key always has an older place in the log, so it is gone
 * before the newer one can be. So no old record comes back, and a delete need
 * not be kept once its segment is the oldest.
 *
 * Cleaning starts when the log is nearly twice as large as its live entries. To
 * free D dead bytes at most L live bytes are written again, and D >= 0.95 L by
 * then, so at worst a record is written about twice in its life. Under load
 * every batch carries as many moved bytes as the batch before it had, and 64
 * KiB more, so the cleaner never falls behind.
 */
#include "journal.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#define SWEEP_SLOTS 16384
#define SCAN_MAX (UINT64_C(4) << 20) /* dead bytes skipped at once */
#define SMALL_SEGMENTS 64

static bool
is_due(const struct journal *self)
{
    uint64_t used, live, slack;

    /* While the index is loaded, it is not known what is live. */
    if (self->segment_count < 2 || self->clean_stuck || self->loader)
        return false;
    if (self->segments[0].live == 0)
        return true;
    idem__segment_totals(self, &used, &live);
    slack = self->segments[self->segment_count - 1].file_len;
    if (self->segment_count > SMALL_SEGMENTS &&
        used / self->segment_count < idem__segment_usual_len(self) / 4)
        return true; /* many short segments, from many restarts */
    return used - live > live / 20 * 19 + slack;
}

void
idem__clean_restart(struct journal *self)
{
    if (self->cleaning)
        idem__walk_clear(&self->cleaner);
    self->cleaning = false;
}

static void
stuck(struct journal *self, const char *why)
{
    self->clean_stuck = true;
    idem__clean_restart(self);
    idem__log(&self->base.options, IDEM_LOG_ALARM,
              "journal: %s: segment %016" PRIx64 " cannot be cleaned: %s; run "
              "idem journal check",
              self->dir, self->segments[0].head.id, why);
}

static void
drop_spot(struct journal *self, const struct spot *spot)
{
    idem__journal_segment(self, &spot->slot)->live -= slot_len(&spot->slot);
    idem__index_remove(&self->index, spot);
}

static bool
expired(const struct journal *self, const struct slot *slot)
{
    return slot->drop != DROP_NEVER && !slot_executing(slot) &&
           (int64_t)slot->drop * DROP_UNIT_S < self->drop_s;
}

/* True if this claim has not been written for so long that no room is reserved
 * for its finish. All entries of a segment were written before the next segment
 * was created. */
static bool
in_idle_segment(const struct journal *self, const struct slot *slot)
{
    int64_t now_us = idem__journal_now_us(self);
    const struct segment *next = idem__journal_segment(self, slot) + 1;

    return next < self->segments + self->segment_count &&
           now_us - next->head.time_us > IDEM__CLAIM_RESERVE_MS * 1000;
}

static bool
is_idle(const struct journal *self, const struct entry_head *head,
        const uint8_t *bytes)
{
    struct idem_record record;

    return (head->flags & ENTRY_EXECUTING) &&
           idem__decode(
               (struct idem_bytes){bytes + ENTRY_HEAD_LEN, head->body_len},
               &record, NULL) == IDEM_OK &&
           idem__journal_now_us(self) / 1000 - record.updated >
               IDEM__CLAIM_RESERVE_MS;
}

/* Handle one entry of the oldest segment. False: out of memory, try it
 * again. */
static bool
move_entry(struct journal *self, const struct entry_head *head,
           const uint8_t *bytes, uint64_t at)
{
    struct pending item = {
        .head = *head,
        .moved = true,
        .old = self->segments[0].base + at / ENTRY_ALIGN,
        .tag = idem__index_tag(&self->index, head->key),
    };
    struct spot spot;

    if (head->kind != ENTRY_RECORD ||
        !idem__index_find(&self->index, item.tag, item.old, &spot))
        return true;
    if (expired(self, &spot.slot)) {
        drop_spot(self, &spot);
        return true;
    }
    item.head.flags &= ENTRY_EXECUTING;
    item.idle = spot.slot.drop == DROP_IDLE || is_idle(self, head, bytes);
    self->moved_bytes += entry_len(head->body_len);
    return idem__batch_add(self, &item, NULL, bytes + ENTRY_HEAD_LEN);
}

void
idem__clean_into_batch(struct journal *self, uint64_t budget)
{
    struct segment *oldest = &self->segments[0];
    uint64_t until = self->batch.len + budget, start;

    if (!is_due(self) || self->full)
        return;
    if (self->cleaning && self->cleaner.at >= oldest->end)
        idem__clean_restart(self); /* something was left: start again */
    if (!self->cleaning) {
        idem__walk_init(&self->cleaner, self->io, oldest->fd, &oldest->head,
                        oldest->end);
        self->cleaning = true;
    }
    start = self->cleaner.at;
    while (self->batch.len < until && self->cleaner.at - start < SCAN_MAX &&
           oldest->live > 0) {
        uint64_t at = self->cleaner.at;
        struct entry_head head;
        const uint8_t *bytes;
        bool found;

        switch (idem__walk_next(&self->cleaner, &head, &bytes)) {
        case WALK_ENTRY:
            if (!move_entry(self, &head, bytes, at)) {
                idem__clean_restart(self);
                return;
            }
            break;
        case WALK_ERROR:
            idem__clean_restart(self);
            return;
        case WALK_STOP:
            if (at >= oldest->end)
                return;
            if (self->accept_damage &&
                idem__walk_find(&self->cleaner, 0, &found) == 0 && found)
                break;
            stuck(self, "it is damaged");
            return;
        }
    }
}

void
idem__clean_after_commit(struct journal *self)
{
    while (self->segment_count > 1 && self->segments[0].live == 0 &&
           !self->poisoned && !self->loader) {
        idem__clean_restart(self);
        if (!idem__segment_drop_oldest(self))
            return;
        self->clean_stuck = false;
    }
}

void
idem__clean_sweep(struct journal *self)
{
    uint32_t looked = 0;
    struct spot spot = {0};

    if (self->loader)
        return;
    for (uint32_t n = 0; n < INDEX_SHARDS && looked < SWEEP_SLOTS; n++) {
        uint32_t shard = self->sweep_shard++ % INDEX_SHARDS;
        uint32_t room = idem__index_room(&self->index, shard);

        /* A removal moves a later slot to this place: look at it again. */
        for (uint32_t i = 0; i < room;) {
            bool used = idem__index_look(&self->index, shard, i, &spot);
            struct slot idle = spot.slot;

            if (used && expired(self, &spot.slot)) {
                drop_spot(self, &spot);
                continue;
            }
            if (used && spot.slot.drop == DROP_CLAIM &&
                in_idle_segment(self, &spot.slot)) {
                idle.drop = DROP_IDLE;
                idem__index_set(&self->index, &spot, &idle);
            }
            i++;
        }
        looked += room;
        idem__index_shrink(&self->index, shard);
    }
}
