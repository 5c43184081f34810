/*
 * journal.c - journal:DIR, the embedded store: a log in a folder.
 *
 * Once a key's slice is loaded (load.c), the index alone can say that the key
 * is absent. A record that may be the key's is read, unless its rev is noted:
 * the engine reads a record before it replaces it, and this read notes the rev.
 * See journal.h for the other files of the journal and docs/journal-format.md
 * for the file format.
 */
#include "journal.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHUNK_LEN (UINT64_C(8) << 20) /* a larger batch is written in parts */
#define BATCH_CAP (UINT64_C(256) << 20)
#define CLEAN_LEAST (UINT64_C(64) << 10) /* per batch, plus its size */
#define CLEAN_STEP (UINT64_C(512) << 10) /* moved in one tend */
#define LOAD_CALL 4096 /* rows of saved indexes, while serving */
#define LOAD_TEND 262144
#define MARK_SOON_US INT64_C(1000000)
#define MARK_IDLE_US INT64_C(600000000)

/* Positions behind the first segment's base; they go round at the end. */
static uint64_t
behind(const struct journal *self, uint64_t at)
{
    return (at - self->segments[0].base) & (INDEX_AT_END - 1);
}

struct segment *
idem__journal_segment(const struct journal *self, const struct slot *slot)
{
    uint64_t at = behind(self, slot->at);
    size_t low = 0, high = self->segment_count;

    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;

        if (behind(self, self->segments[middle].base) <= at)
            low = middle;
        else
            high = middle;
    }
    assert(slot->at - self->segments[low].base < self->segments[low].span);
    return &self->segments[low];
}

uint64_t
idem__journal_offset(const struct journal *self, const struct slot *slot)
{
    return (slot->at - idem__journal_segment(self, slot)->base) * ENTRY_ALIGN;
}

static size_t
note_of(uint64_t at)
{
    return (at * UINT64_C(0x9E3779B97F4A7C15) >> 32) % REV_NOTES;
}

void
idem__journal_note_rev(struct journal *self, uint64_t at, uint64_t rev)
{
    self->rev_notes[note_of(at)] = (struct rev_note){at, rev};
}

uint64_t
idem__journal_rev(const struct journal *self, uint64_t at)
{
    const struct rev_note *note = &self->rev_notes[note_of(at)];

    return note->at == at ? note->rev : 0;
}

void
idem__journal_put(struct journal *self, struct segment *segment,
                  struct row *row, const struct spot *old, bool idle)
{
    bool executing = row->size & ROW_EXECUTING;
    struct slot slot = {
        .tag = idem__index_short_tag(&self->index, row->tag),
        .at = segment->base + row->place,
        .size = idem__slot_size((uint64_t)(row->size & ~ROW_FLAGS) * 8),
        .drop = executing && idle ? DROP_IDLE
                                  : idem__slot_drop(row->drop_s, executing),
    };

    row->old_back = ROW_NEW;
    row->old_place = 0;
    if (old) {
        struct segment *before = idem__journal_segment(self, &old->slot);

        before->live -= slot_len(&old->slot);
        row->old_back = (uint32_t)(segment->head.id - before->head.id);
        row->old_place = (uint32_t)(old->slot.at - before->base);
    }
    if (self->row_log.id == segment->head.id)
        idem__saved_add(self, row);
    if (row->size & ROW_DELETE) {
        if (old)
            idem__index_remove(&self->index, old);
        return;
    }
    segment->live += slot_len(&slot);
    if (old)
        idem__index_set(&self->index, old, &slot);
    else
        idem__index_add(&self->index, &slot);
}

enum idem_status
idem__journal_read(struct journal *self, const struct slot *slot, uint8_t *out,
                   struct entry_head *head, struct idem_error *err)
{
    struct segment *segment = idem__journal_segment(self, slot);
    uint64_t at = (slot->at - segment->base) * ENTRY_ALIGN, need;
    size_t got = 0;
    int error =
        idem__tail_read(self, segment, out, (size_t)slot_room(slot), at, &got);

    if (error)
        return idem__fail(err, IDEM_ERR_UNAVAILABLE,
                          "journal: %.120s: cannot be read: %s", self->dir,
                          strerror(error));
    if (idem__entry_get(out, got, segment->head.salt, head, &need) ==
            ENTRY_FINE &&
        head->kind != ENTRY_MARK &&
        idem__index_tag(&self->index, head->key) == slot->tag) {
        idem__journal_note_rev(self, slot->at, head->rev);
        return IDEM_OK;
    }
    return idem__fail(err, IDEM_ERR_CORRUPT,
                      "journal: %.80s: segment %016" PRIx64
                      " is damaged at offset %" PRIu64
                      ": run idem journal check",
                      self->dir, segment->head.id, at);
}

/* Read the record of a slot, if the slot is this key's; its bytes live in the
 * arena. */
static enum idem_status
read_record(struct journal *self, const struct slot *slot, const uint8_t *key,
            struct idem_arena *arena, struct idem_record *record, bool *same,
            struct idem_error *err)
{
    uint8_t *bytes = idem_arena_take(arena, (size_t)slot_room(slot));
    struct entry_head head;
    enum idem_status status;

    if (!bytes)
        return idem__fail(err, IDEM_ERR_MEMORY, "journal: out of memory");
    status = idem__journal_read(self, slot, bytes, &head, err);
    if (status != IDEM_OK)
        return status;
    *same = memcmp(head.key, key, IDEM_KEY_LEN) == 0;
    if (!*same)
        return IDEM_OK;
    return idem__decode(
        (struct idem_bytes){bytes + ENTRY_HEAD_LEN, head.body_len}, record,
        err);
}

/* Find the key's record, and its spot in the index; *record is ABSENT if there
 * is none. */
static enum idem_status
look_up(struct journal *self, uint64_t tag, const uint8_t *key,
        struct idem_arena *arena, struct idem_record *record, struct spot *spot,
        struct idem_error *err)
{
    bool more = idem__index_first(&self->index, tag, spot);

    for (; more; more = idem__index_next(&self->index, spot)) {
        bool same = false;
        enum idem_status status =
            read_record(self, &spot->slot, key, arena, record, &same, err);

        if (status != IDEM_OK || same)
            return status;
    }
    *record = (struct idem_record){.state = IDEM_STATE_ABSENT};
    return IDEM_OK;
}

/* Find the slot of the key that has or had this rev, if that rev is noted. A
 * rev is 64 random bits, so no other key has it. */
static bool
find_rev(const struct journal *self, uint64_t tag, uint64_t rev,
         struct spot *spot)
{
    bool more = rev && idem__index_first(&self->index, tag, spot);

    while (more && idem__journal_rev(self, spot->slot.at) != rev)
        more = idem__index_next(&self->index, spot);
    return more;
}

/* True if this swap creates a record, or starts or issues one that was not
 * executing. A full disk refuses these. */
static bool
is_claim(const struct idem_swap *swap, const struct slot *slot)
{
    if (!swap->record)
        return false;
    if (!slot)
        return true;
    return (swap->record->state == IDEM_STATE_EXECUTING ||
            swap->record->state == IDEM_STATE_ISSUED) &&
           !slot_executing(slot);
}

static enum idem_status
add_entry(struct journal *self, struct idem_swap *swap, uint64_t tag,
          const struct slot *slot, struct idem_error *err)
{
    const struct idem_record *record = swap->record;
    struct pending item = {
        .swap = swap, .tag = tag, .old = slot ? slot->at : 0};
    bool inserts = record && swap->expected == 0;

    item.claim = is_claim(swap, slot);
    if (item.claim && self->full)
        return idem__fail(
            err, IDEM_ERR_FULL,
            "journal: %.100s: the disk is full: only requests that were "
            "claimed before can be finished. Make room there",
            self->dir);
    item.head.kind = record ? ENTRY_RECORD : ENTRY_DELETE;
    item.head.prev = swap->expected;
    memcpy(item.head.key, swap->key, IDEM_KEY_LEN);
    if (record) {
        size_t len = idem__encoded_len(record);

        if (len > self->base.max_record)
            return idem__fail(err, IDEM_ERR_INVALID,
                              "journal: a record of %zu bytes is too large",
                              len);
        item.head.body_len = (uint32_t)len;
        item.head.rev = record->rev;
        item.head.drop_at = idem__record_drop_at(record);
        if (record->state == IDEM_STATE_EXECUTING)
            item.head.flags |= ENTRY_EXECUTING;
    }
    if (inserts && !idem__index_promise(&self->index, tag))
        return idem__fail(err, IDEM_ERR_MEMORY, "journal: out of memory");
    if (!idem__batch_add(self, &item, record, NULL)) {
        if (inserts)
            idem__index_take_back(&self->index, tag);
        return idem__fail(err, IDEM_ERR_MEMORY, "journal: out of memory");
    }
    return IDEM_OK;
}

static enum idem_status
swap_one(struct journal *self, struct idem_swap *swap, struct idem_arena *arena,
         struct idem_error *err)
{
    uint64_t tag = idem__index_tag(&self->index, swap->key);
    struct idem_record there;
    enum idem_status status;
    struct spot spot;

    swap->outcome = IDEM_SWAP_NOT_STORED;
    if (self->poisoned) /* by an earlier part of this batch */
        return idem__fail(err, IDEM_ERR_UNAVAILABLE,
                          "journal: %.120s: a write failed", self->dir);
    status = idem__load_tag(self, idem__index_full_tag(swap->key), err);
    if (status != IDEM_OK)
        return status;
    if (find_rev(self, tag, swap->expected, &spot))
        return add_entry(self, swap, tag, &spot.slot, err);
    status = look_up(self, tag, swap->key, arena, &there, &spot, err);
    if (status != IDEM_OK)
        return status;
    if (there.state == IDEM_STATE_ABSENT && swap->expected == 0) {
        if (swap->record)
            return add_entry(self, swap, tag, NULL, err);
        swap->outcome = IDEM_SWAP_STORED; /* delete a key that is absent */
        return IDEM_OK;
    }
    if (there.state != IDEM_STATE_ABSENT && swap->record &&
        there.rev == swap->record->rev) {
        swap->outcome = IDEM_SWAP_STORED;
        return IDEM_OK;
    }
    if (there.state != IDEM_STATE_ABSENT && there.rev == swap->expected)
        return add_entry(self, swap, tag, &spot.slot, err);
    swap->found = there;
    swap->outcome = IDEM_SWAP_REFUSED;
    return IDEM_OK;
}

static void
keep_first(enum idem_status *status, enum idem_status one)
{
    if (*status == IDEM_OK)
        *status = one;
}

static enum idem_status
commit(struct journal *self, struct idem_error *err)
{
    self->last_len += self->batch.len;
    return idem__batch_commit(self, err);
}

static void
prefetch(const struct journal *self, const uint8_t *key, enum index_part part)
{
    idem__index_prefetch(&self->index, idem__index_tag(&self->index, key),
                         part);
}

static enum idem_status
swap_batch(struct idem_store *store, struct idem_swap *swaps, size_t count,
           struct idem_arena *arena, struct idem_error *err)
{
    struct journal *self = (struct journal *)store;
    enum idem_status status = idem__journal_heal(self, err);

    for (size_t i = 0; i < count; i++) {
        swaps[i].outcome = IDEM_SWAP_NOT_STORED;
        prefetch(self, swaps[i].key, INDEX_BLOCKS);
    }
    for (size_t i = 0; i < count; i++)
        prefetch(self, swaps[i].key, INDEX_CELLS);
    if (status != IDEM_OK)
        return status;
    idem__clean_into_batch(self, CLEAN_LEAST + (self->last_len < CHUNK_LEN
                                                    ? self->last_len
                                                    : CHUNK_LEN));
    self->last_len = 0;
    for (size_t i = 0; i < count; i++) {
        struct idem_error *first = status == IDEM_OK ? err : NULL;

        keep_first(&status, swap_one(self, &swaps[i], arena, first));
        if (self->batch.len >= CHUNK_LEN)
            keep_first(&status, commit(self, first));
    }
    keep_first(&status, commit(self, status == IDEM_OK ? err : NULL));
    idem__clean_after_commit(self);
    idem__load_some(self, LOAD_CALL);
    return status;
}

static enum idem_status
load_batch(struct idem_store *store, struct idem_load *loads, size_t count,
           struct idem_arena *arena, struct idem_error *err)
{
    struct journal *self = (struct journal *)store;
    enum idem_status status = idem__journal_heal(self, err);

    for (size_t i = 0; i < count; i++)
        prefetch(self, loads[i].key, INDEX_BLOCKS);
    for (size_t i = 0; i < count; i++)
        prefetch(self, loads[i].key, INDEX_CELLS);
    for (size_t i = 0; i < count && status == IDEM_OK; i++) {
        struct spot spot;

        status = idem__load_tag(self, idem__index_full_tag(loads[i].key), err);
        if (status == IDEM_OK)
            status = look_up(self, idem__index_tag(&self->index, loads[i].key),
                             loads[i].key, arena, &loads[i].record, &spot, err);
    }
    idem__load_some(self, LOAD_CALL);
    return status;
}

static enum idem_status
read_clock(struct idem_store *store, int64_t *now_us, struct idem_error *err)
{
    (void)err;
    *now_us = idem__journal_now_us((struct journal *)store);
    return IDEM_OK;
}

/* Write a mark after the last batch. It records the time, and later damage to
 * that batch can be distinguished from a torn write. */
static void
mark(struct journal *self)
{
    int64_t since_us = idem__journal_now_us(self) - self->last_batch_us;

    if (since_us > (self->marked ? MARK_IDLE_US : MARK_SOON_US))
        idem__batch_mark(self);
}

static void
tend(struct idem_store *store, int64_t drop_ms)
{
    struct journal *self = (struct journal *)store;

    self->drop_s = drop_ms / 1000;
    if (idem__journal_heal(self, NULL) != IDEM_OK)
        return;
    idem__load_some(self, LOAD_TEND);
    idem__clean_sweep(self);
    idem__segment_prepare(self);
    idem__clean_into_batch(self, CLEAN_STEP);
    (void)idem__batch_commit(self, NULL);
    idem__clean_after_commit(self);
    mark(self);
}

static void
figures(struct idem_store *store, idem_figure_fn *each, void *arg)
{
    struct journal *self = (struct journal *)store;
    uint64_t live, used;

    idem__segment_totals(self, &used, &live);
    each(arg, "journal_records", (double)self->index.count);
    each(arg, "journal_executing", (double)self->index.executing);
    each(arg, "journal_index_bytes", (double)self->index.bytes);
    each(arg, "journal_index_loading", (double)idem__load_left(self));
    each(arg, "journal_segments", (double)self->segment_count);
    each(arg, "journal_live_bytes", (double)live);
    each(arg, "journal_used_bytes", (double)used);
    each(arg, "journal_reserve_bytes", (double)self->reserve_len);
    each(arg, "journal_moved_bytes_total", (double)self->moved_bytes);
    each(arg, "journal_full", self->full);
    each(arg, "journal_poisoned", self->poisoned);
    each(arg, "journal_rereads_total", (double)self->heals);
}

/* Close cleanly: write a mark after the last batch, save the index, and
 * truncate the file to the end of its entries. */
static void
leave(struct journal *self)
{
    struct segment *last;

    if (self->segment_count == 0 || self->poisoned || !self->opened)
        return;
    if (!self->marked)
        idem__batch_mark(self);
    last = &self->segments[self->segment_count - 1];
    if (self->poisoned || last->end == SEGMENT_HEAD_LEN)
        return;
    idem__saved_finish(self, last);
    (void)idem__io_truncate(self->io, last->fd, last->end);
}

static void
close_store(struct idem_store *store)
{
    struct journal *self = (struct journal *)store;

    leave(self);
    idem__helper_stop(self);
    idem__load_stop(self);
    idem__clean_restart(self);
    idem__tail_drop(self);
    for (size_t i = 0; i < self->segment_count; i++)
        idem__segment_close(self, &self->segments[i]);
    idem__saved_clear(self); /* may remove a file of the folder */
    idem__folder_close(self);
    idem__index_clear(&self->index);
    idem_buf_clear(&self->batch);
    idem_buf_clear(&self->scratch);
    free(self->segments);
    free(self->pending);
    free(self->dir);
}

/* journal:DIR[?clock=trust][&damage=accept] */
static enum idem_status
read_url(struct journal *self, const char *url, struct idem_error *err)
{
    const char *dir = url + strlen("journal:");
    const char *options = strrchr(dir, '?');
    size_t len = options ? (size_t)(options - dir) : strlen(dir);

    if (strncmp(url, "journal:", 8) != 0 || len == 0)
        return idem__fail(err, IDEM_ERR_INVALID,
                          "\"%.100s\" names no folder: write journal:DIR", url);
    if (len > 3900)
        return idem__fail(err, IDEM_ERR_INVALID,
                          "journal: the folder's name is too long");
    self->dir = strndup(dir, len);
    if (!self->dir)
        return idem__fail(err, IDEM_ERR_MEMORY, "journal: out of memory");
    while (options && *options) {
        size_t n = strcspn(++options, "&");

        if (n == 11 && strncmp(options, "clock=trust", n) == 0)
            self->trust_clock = true;
        else if (n == 13 && strncmp(options, "damage=accept", n) == 0)
            self->accept_damage = true;
        else
            return idem__fail(err, IDEM_ERR_INVALID,
                              "journal: unknown option \"%.*s\"; the options "
                              "are clock=trust and damage=accept",
                              (int)(n < 60 ? n : 60), options);
        options += n;
    }
    return IDEM_OK;
}

static enum idem_status
parse_tuned(struct journal *self, const char *url,
            const struct journal_tuning *tuning, struct idem_error *err)
{
    self->tuning = *tuning;
    self->io = tuning->io ? tuning->io : &idem__system_io;
    self->dir_fd = self->lock_fd = -1;
    idem_buf_init(&self->batch, BATCH_CAP);
    idem_buf_init(&self->scratch, BATCH_CAP);
    idem__index_init(&self->index, idem__new_rev(),
                     tuning->tag_mask ? tuning->tag_mask : UINT64_MAX);
    return read_url(self, url, err);
}

static enum idem_status
parse_store(struct idem_store *store, const char *url, struct idem_error *err)
{
    static const struct journal_tuning real;

    return parse_tuned((struct journal *)store, url, &real, err);
}

static enum idem_status
open_tuned(struct journal *self, const char *url,
           const struct journal_tuning *tuning, struct idem_error *err)
{
    enum idem_status status = parse_tuned(self, url, tuning, err);

    if (status == IDEM_OK)
        status = idem__folder_open(self, err);
    if (status == IDEM_OK && !idem__helper_start(self))
        status = idem__fail(err, IDEM_ERR_MEMORY, "journal: out of memory");
    if (status == IDEM_OK) {
        idem__segment_reserve(self);
        status = idem__journal_recover(self, err);
    }
    self->opened = status == IDEM_OK;
    return status;
}

static enum idem_status
open_store(struct idem_store *store, const char *url, struct idem_error *err)
{
    static const struct journal_tuning real;

    return open_tuned((struct journal *)store, url, &real, err);
}

enum idem_status
idem__journal_open(const char *url, const struct idem_store_options *options,
                   const struct journal_tuning *tuning,
                   struct idem_store **store, struct idem_error *err)
{
    struct journal *self = idem__store_make(&idem__journal_store, options, err);

    return self ? idem__store_opened(&self->base,
                                     open_tuned(self, url, tuning, err), store)
                : IDEM_ERR_MEMORY;
}

const struct idem_store_type idem__journal_store = {
    .scheme = "journal",
    .size = sizeof(struct journal),
    .local = true,
    .parse = parse_store,
    .open = open_store,
    .swap = swap_batch,
    .load = load_batch,
    .scan = idem__journal_scan,
    .now = read_clock,
    .tend = tend,
    .figures = figures,
    .close = close_store,
};
