/*
 * recover.c - builds the index from the files when a journal is opened.
 *
 * Segments are read in order and the later entry of a key wins. Each segment's
 * head says where the one before it ends; the newest ends where its last valid
 * entry does. If the writer died during its last batch, the incomplete batch is
 * cut off; it was never acknowledged. Anything else that is not valid is
 * damage. It is reported with its place, and the journal does not open unless
 * the operator accepts the loss of the damaged entries.
 */
#include "journal.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define GUESSED_ENTRY_LEN 512

static enum idem_status
out_of_memory(struct idem_error *err)
{
    return idem__fail(err, IDEM_ERR_MEMORY, "journal: out of memory");
}

static enum idem_status
read_error(const struct journal *self, int error, struct idem_error *err)
{
    if (error == EBADMSG)
        return idem__fail(err, IDEM_ERR_CORRUPT,
                          "journal: %.80s is damaged: run idem journal check; "
                          "restore a copy, or open it with ?damage=accept to "
                          "go on without the damaged entries",
                          self->dir);
    return idem__fail(err, idem__journal_status(error),
                      "journal: %.120s: cannot be read: %s", self->dir,
                      strerror(error));
}

static enum idem_status
damage(const struct journal *self, uint64_t id, uint64_t at,
       struct idem_error *err)
{
    if (self->accept_damage) {
        idem__log(&self->base.options, IDEM_LOG_ALARM,
                  "journal: %s: segment %016" PRIx64
                  " is damaged at offset %" PRIu64
                  "; going on without what stood there, as damage=accept says",
                  self->dir, id, at);
        return IDEM_OK;
    }
    return idem__fail(err, IDEM_ERR_CORRUPT,
                      "journal: %.60s: segment %016" PRIx64
                      " is damaged at offset %" PRIu64
                      ": restore a copy, or open it with ?damage=accept to go "
                      "on without the damaged entries",
                      self->dir, id, at);
}

/* Read the key of the entry that a slot points to. The whole entry is checked:
 * with a flipped bit the key would be taken for another key, and an older
 * record of the right key for its newest. Returns 0 or an errno; EBADMSG: it is
 * damaged. */
static int
read_key(struct journal *self, const struct slot *slot, uint8_t *key)
{
    uint8_t *bytes = malloc((size_t)slot_room(slot));
    struct entry_head head;
    enum idem_status status;

    if (!bytes)
        return ENOMEM;
    status = idem__journal_read(self, slot, bytes, &head, NULL);
    free(bytes);
    if (status == IDEM_OK)
        memcpy(key, head.key, IDEM_KEY_LEN);
    else if (status == IDEM_ERR_CORRUPT && self->accept_damage)
        memset(key, 0, IDEM_KEY_LEN); /* no key: the entry is lost */
    else
        return status == IDEM_ERR_CORRUPT ? EBADMSG : EIO;
    return 0;
}

/* The position of the entry that a row of a saved index replaced; 0: there was
 * none, or it is gone. */
static uint64_t
old_position(const struct journal *self, const struct segment *segment,
             const struct row *row)
{
    size_t number = (size_t)(segment - self->segments);
    uint64_t id = segment->head.id - row->old_back;

    if (row->old_back == ROW_NEW)
        return 0;
    /* Numbers have gaps only if damage was accepted. */
    number = row->old_back < number ? number - row->old_back : 0;
    while (self->segments[number].head.id < id)
        number++;
    return self->segments[number].head.id == id
               ? self->segments[number].base + row->old_place
               : 0;
}

/* Find the slot of the same key without reading: by its place, or by the revs
 * that are noted. */
static bool
find_known(const struct journal *self, const struct segment *segment,
           const struct replay *entry, struct spot *spot)
{
    uint64_t tag = idem__index_short_tag(&self->index, entry->row.tag);
    uint64_t old = entry->key ? 0 : old_position(self, segment, &entry->row);
    bool more = idem__index_first(&self->index, tag, spot);

    for (; more; more = idem__index_next(&self->index, spot)) {
        uint64_t rev = entry->key ? idem__journal_rev(self, spot->slot.at) : 0;

        if (spot->slot.at == old ||
            (rev && (rev == entry->prev || rev == entry->rev)))
            return true;
    }
    return false;
}

/* Find it by the whole key. Returns 0 or an errno. */
static int
find_key(struct journal *self, const struct segment *segment,
         const struct replay *entry, struct spot *spot, bool *found)
{
    uint64_t tag = idem__index_short_tag(&self->index, entry->row.tag);
    struct slot own = {.tag = tag, .at = segment->base + entry->row.place};
    uint8_t key[IDEM_KEY_LEN], there[IDEM_KEY_LEN];
    bool more = idem__index_first(&self->index, tag, spot);
    int error = 0;

    *found = false;
    if (!more)
        return 0;
    own.size = idem__slot_size((uint64_t)(entry->row.size & ~ROW_FLAGS) * 8);
    if (entry->key)
        memcpy(key, entry->key, sizeof(key));
    else
        error = read_key(self, &own, key);
    for (; more && !error && !*found;
         more = *found || idem__index_next(&self->index, spot)) {
        error = read_key(self, &spot->slot, there);
        *found = !error && memcmp(key, there, sizeof(key)) == 0;
    }
    return error;
}

int
idem__journal_replay(struct journal *self, struct segment *segment,
                     const struct replay *entry)
{
    uint64_t tag = idem__index_short_tag(&self->index, entry->row.tag);
    struct row row = entry->row;
    struct spot old;
    bool found = find_known(self, segment, entry, &old);
    int error = found ? 0 : find_key(self, segment, entry, &old, &found);

    if (error)
        return error;
    if (!found && !(row.size & ROW_DELETE) &&
        !idem__index_promise(&self->index, tag))
        return ENOMEM;
    idem__journal_put(self, segment, &row, found ? &old : NULL, false);
    if (entry->rev)
        idem__journal_note_rev(self, segment->base + row.place, entry->rev);
    return 0;
}

/* Entries on the way from a walk to the index. While they wait here, their
 * places in the index are prefetched into the processor's cache. */
#define WAITING 32

struct queue {
    struct replay entries[WAITING];
    uint8_t keys[WAITING][IDEM_KEY_LEN];
    size_t count;
};

static int
drain(struct journal *self, struct segment *segment, struct queue *queue)
{
    int error = 0;

    for (size_t i = 0; i < queue->count && !error; i++)
        error = idem__journal_replay(self, segment, &queue->entries[i]);
    queue->count = 0;
    return error;
}

static int
replay_walked(struct journal *self, struct segment *segment,
              struct queue *queue, const struct entry_head *head, uint64_t at)
{
    struct replay entry = {.rev = head->rev, .prev = head->prev};

    if (head->kind == ENTRY_MARK)
        return 0;
    entry.row = idem__entry_row(head, at);
    entry.key = queue->keys[queue->count];
    memcpy(queue->keys[queue->count], head->key, IDEM_KEY_LEN);
    idem__index_prefetch(&self->index, idem__index_tag(&self->index, head->key),
                         INDEX_CELLS);
    queue->entries[queue->count++] = entry;
    return queue->count == WAITING ? drain(self, segment, queue) : 0;
}

/* Judge why a walk stopped: at the end, at a torn batch, or at damage that was
 * accepted and skipped (*go_on). */
static enum idem_status
stopped(struct journal *self, struct segment_walk *walk, uint64_t id,
        bool newest, bool *go_on, struct idem_error *err)
{
    uint64_t at = walk->at;
    enum idem_status status;
    int error;

    *go_on = false;
    if (!newest && at == walk->limit)
        return IDEM_OK;
    error = idem__walk_find(walk, newest ? walk->batch + 1 : 0, go_on);
    if (error)
        return read_error(self, error, err);
    if (newest && !*go_on)
        return IDEM_OK;
    status = damage(self, id, at, err);
    if (status == IDEM_OK && !*go_on)
        walk->at = walk->limit; /* there is no valid entry before the end */
    return status;
}

static enum idem_status
walk_segment(struct journal *self, struct segment *segment, uint64_t end,
             struct idem_error *err)
{
    uint64_t id = segment->head.id;
    struct segment_walk walk;
    enum idem_status status = IDEM_OK;
    bool newest = end == 0, go_on = true;
    struct queue queue = {.count = 0};
    int error = 0;

    idem__walk_init(&walk, self->io, segment->fd, &segment->head,
                    newest ? segment->file_len : end);
    idem__saved_start(self, segment);
    while (go_on && status == IDEM_OK) {
        struct entry_head head;
        const uint8_t *bytes;
        uint64_t at = walk.at;

        switch (idem__walk_next(&walk, &head, &bytes)) {
        case WALK_ENTRY:
            error = replay_walked(self, segment, &queue, &head, at);
            break;
        case WALK_ERROR:
            error = errno;
            break;
        case WALK_STOP:
            status = stopped(self, &walk, id, newest, &go_on, err);
            break;
        }
        if (error)
            status = read_error(self, error, err);
    }
    error = status == IDEM_OK ? drain(self, segment, &queue) : 0;
    if (error)
        status = read_error(self, error, err);
    segment->end = walk.at;
    if (walk.time_us > self->persisted_us)
        self->persisted_us = walk.time_us;
    if (walk.batch + 1 > self->next_batch)
        self->next_batch = walk.batch + 1;
    idem__walk_clear(&walk);
    return status;
}

/* Load a segment from its saved index if that is valid, otherwise from its
 * entries. The newest segment has a valid one only if the journal was closed;
 * then the file ends where its entries do. */
static enum idem_status
read_segment(struct journal *self, size_t number, struct idem_error *err)
{
    struct segment *segment = &self->segments[number];
    bool newest = number + 1 == self->segment_count, used = false;
    uint64_t end =
        newest ? segment->file_len : self->segments[number + 1].head.prev_end;
    enum idem_status status;
    int error;

    if (!newest && self->segments[number + 1].head.id != segment->head.id + 1)
        end = segment->file_len; /* the next is missing, and accepted */
    if (segment->file_len < end || end < SEGMENT_HEAD_LEN) {
        status = damage(self, segment->head.id,
                        segment->file_len < end ? segment->file_len : 0, err);
        if (status != IDEM_OK)
            return status;
        end = segment->file_len;
    }
    error = idem__saved_load(self, segment, end, &used);
    if (error)
        return read_error(self, error, err);
    if (used)
        return IDEM_OK;
    status = walk_segment(self, segment, newest ? 0 : end, err);
    if (status == IDEM_OK && !newest)
        idem__saved_finish(self, segment);
    return status;
}

/* Make room in the index for most of the records: three quarters of the known
 * rows, because some rows have the same key. */
static void
expect_records(struct journal *self)
{
    uint64_t rows = 0;

    for (size_t i = 0; i < self->segment_count; i++) {
        const struct segment *segment = &self->segments[i];
        uint64_t claim = idem__saved_claim(self, segment->head.id);

        rows += claim ? claim : segment->file_len / GUESSED_ENTRY_LEN;
    }
    idem__index_expect(&self->index, rows / 4 * 3);
}

/* Open all segments before any is read, because a head describes the segment
 * before it. */
static enum idem_status
open_all(struct journal *self, struct idem_error *err)
{
    enum idem_status status;
    uint64_t *ids = NULL;
    size_t count = 0;

    status = idem__folder_list(self, &ids, &count, err);
    for (size_t i = 0; status == IDEM_OK && i < count; i++) {
        struct segment segment;

        if (i > 0 && ids[i] != ids[i - 1] + 1 && !self->accept_damage)
            status = idem__fail(err, IDEM_ERR_CORRUPT,
                                "journal: %.80s: segment %016" PRIx64
                                " is missing: restore it from a copy, or open "
                                "with ?damage=accept to go on without it",
                                self->dir, ids[i - 1] + 1);
        if (status == IDEM_OK)
            status = idem__segment_open(self, ids[i], O_RDWR, &segment, err);
        if (status == IDEM_OK && !idem__segment_push(self, &segment)) {
            idem__segment_close(self, &segment);
            status = out_of_memory(err);
        }
    }
    if (status == IDEM_OK)
        idem__folder_tidy(self, count ? ids[0] : 0, count ? ids[count - 1] : 0);
    free(ids);
    return status;
}

/* Cut off what is behind the newest segment's end: at most a torn batch. */
static void
cut_tail(struct journal *self)
{
    struct segment *newest = &self->segments[self->segment_count - 1];

    if (newest->file_len > newest->end &&
        idem__io_truncate(self->io, newest->fd, newest->end) == 0)
        newest->file_len = newest->end;
}

enum idem_status
idem__journal_recover(struct journal *self, struct idem_error *err)
{
    enum idem_status status = open_all(self, err);
    struct segment *newest;
    int error;

    if (status != IDEM_OK)
        return status;
    self->next_batch = 1;
    if (self->segment_count > 0) {
        /* The entries of a killed writer may not be on the disk yet. Make them
         * durable before anybody reads them. */
        newest = &self->segments[self->segment_count - 1];
        error = idem__io_sync(self->io, newest->fd);
        if (!error)
            error = idem__io_sync(self->io, self->dir_fd);
        if (error)
            return read_error(self, error, err);
        /* After a failed sync the page cache may differ from the disk. */
        (void)posix_fadvise(newest->fd, 0, 0, POSIX_FADV_DONTNEED);
    }
    expect_records(self);
    for (size_t i = 0; i < self->segment_count; i++) {
        status = read_segment(self, i, err);
        if (status != IDEM_OK)
            return status;
    }
    if (self->segment_count > 0) {
        cut_tail(self);
        newest = &self->segments[self->segment_count - 1];
        if (newest->end == SEGMENT_HEAD_LEN) {
            /* The segment is empty: the new one takes its number. */
            idem__segment_close(self, newest);
            self->segment_count--;
            self->row_log.id = 0;
        }
    }
    idem__journal_clock_start(self);
    return idem__segment_add(self, 0, true, err);
}
