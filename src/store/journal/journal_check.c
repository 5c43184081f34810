/*
 * journal_check.c - reads every byte of a journal and reports what is there.
 *
 * There are two passes. The first reads every entry and builds an index, which
 * shows the live entries; the second reports the entries, if the caller asked
 * for them.
 */
#include "journal_check.h"

#include "journal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define LOOKS 3 /* tries where a running journal may be writing */

struct checker {
    struct journal journal; /* only its segments and its index are used */
    journal_sight_fn *sight;
    journal_damage_fn *damage;
    void *arg;
    struct journal_report *report;
    struct idem_error *err;
    bool stop;
};

static enum idem_status
read_error(struct checker *self, int error)
{
    return idem__fail(self->err, idem__journal_status(error),
                      "journal: %.150s: %s", self->journal.dir,
                      strerror(error));
}

static void
damaged(struct checker *self, uint64_t segment, uint64_t at, const char *what)
{
    self->report->damaged++;
    if (self->damage)
        self->damage(self->arg, segment, at, what);
}

/* Was the segment removed? Only a name that does not exist says so. */
static bool
gone(const struct journal *journal, uint64_t id)
{
    struct journal_name name = idem__segment_name(id, "seg");

    return faccessat(journal->dir_fd, name.text, F_OK, 0) != 0 &&
           errno == ENOENT;
}

/* Does the descriptor still refer to the segment with that number? */
static enum idem_status
still_there(struct checker *self, const struct segment *segment, bool *there)
{
    struct segment now;
    enum idem_status status = idem__segment_open(
        &self->journal, segment->head.id, O_RDONLY, &now, self->err);

    *there = true;
    if (status == IDEM_OK) {
        idem__io_close(self->journal.io, now.fd);
        *there = now.head.salt == segment->head.salt;
        return IDEM_OK;
    }
    if (gone(&self->journal, segment->head.id))
        *there = false;
    else if (status != IDEM_ERR_CORRUPT)
        return status;
    return IDEM_OK;
}

/* What is wrong with an entry whose checksum is right; NULL: nothing. */
static const char *
entry_flaw(const struct entry_head *head, const uint8_t *bytes,
           struct idem_record *record)
{
    uint8_t key[IDEM_KEY_LEN];
    int64_t drop_at;

    if (head->kind != ENTRY_RECORD)
        return NULL;
    if (idem__decode(
            (struct idem_bytes){bytes + ENTRY_HEAD_LEN, head->body_len}, record,
            NULL) != IDEM_OK)
        return "the record cannot be read";
    idem__key(record->type, record->scope, record->id, key);
    if (memcmp(key, head->key, sizeof(key)) != 0)
        return "the record is not of its key";
    drop_at = idem__record_drop_at(record);
    if (record->rev != head->rev ||
        /* Before 0.9 the drop time did not depend on the fence. */
        (head->drop_at != drop_at &&
         (drop_at == 0 || head->drop_at != record->expires)) ||
        (record->state == IDEM_STATE_EXECUTING) !=
            ((head->flags & ENTRY_EXECUTING) != 0))
        return "the record and its entry disagree";
    return NULL;
}

/* ---- the index of the checker ---- */

/* Read the key of the entry that a slot points to. Returns 0 or an errno. */
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
    if (status != IDEM_OK)
        return status == IDEM_ERR_CORRUPT ? EBADMSG : EIO;
    memcpy(key, head.key, IDEM_KEY_LEN);
    return 0;
}

/* Find the slot of an entry's key: by a rev that is noted, which needs no read,
 * or by the whole key. Returns 0 or an errno. */
static int
find_key(struct journal *self, const struct entry_head *head, struct spot *spot,
         bool *found)
{
    uint64_t tag = idem__index_tag(&self->index, head->key);
    uint8_t there[IDEM_KEY_LEN];
    bool more = idem__index_first(&self->index, tag, spot);
    int error = 0;

    *found = false;
    for (; more; more = idem__index_next(&self->index, spot)) {
        uint64_t rev = idem__journal_rev(self, spot->slot.at);

        if (rev && (rev == head->prev || rev == head->rev)) {
            *found = true;
            return 0;
        }
    }
    more = idem__index_first(&self->index, tag, spot);
    while (more && !error && !*found) {
        error = read_key(self, &spot->slot, there);
        *found = !error && memcmp(head->key, there, sizeof(there)) == 0;
        more = *found || idem__index_next(&self->index, spot);
    }
    return error;
}

static int
replay(struct journal *self, struct segment *segment,
       const struct entry_head *head, uint64_t at)
{
    struct row row = idem__entry_row(head, at);
    struct spot old;
    bool found;
    int error = find_key(self, head, &old, &found);

    if (error)
        return error;
    if (!found && !(row.size & ROW_DELETE) &&
        !idem__index_promise(&self->index,
                             idem__index_tag(&self->index, head->key)))
        return ENOMEM;
    idem__journal_put(self, segment, &row, found ? &old : NULL, false);
    if (head->rev)
        idem__journal_note_rev(self, segment->base + row.place, head->rev);
    return 0;
}

static int
count_entry(struct checker *self, struct segment *segment,
            const struct entry_head *head, const uint8_t *bytes, uint64_t at)
{
    struct idem_record record;
    const char *flaw = entry_flaw(head, bytes, &record);

    self->report->entries++;
    self->report->records += head->kind == ENTRY_RECORD;
    self->report->deletes += head->kind == ENTRY_DELETE;
    self->report->marks += head->kind == ENTRY_MARK;
    if (flaw)
        damaged(self, segment->head.id, at, flaw);
    if (head->kind == ENTRY_MARK)
        return 0;
    return replay(&self->journal, segment, head, at);
}

/* The walk stopped before the limit. A running journal may be writing there, so
 * try several times before it is reported as damage. */
static enum idem_status
judge_stop(struct checker *self, const struct segment *segment,
           struct segment_walk *walk, bool newest, bool *go_on)
{
    uint64_t at = walk->at, batch = walk->batch;
    struct entry_head head;
    const uint8_t *bytes;
    enum idem_status status;
    bool there;
    int error;

    *go_on = false;
    if (walk->at >= walk->limit)
        return IDEM_OK;
    for (int look = 0; look < LOOKS; look++) {
        error = idem__walk_find(walk, newest ? batch + 1 : 0, go_on);
        if (error)
            return read_error(self, error);
        if (newest && !*go_on) {
            error = idem__walk_find(walk, batch, &self->report->torn);
            return error ? read_error(self, error) : IDEM_OK;
        }
        walk->at = at;
        walk->batch = batch;
        walk->filled = 0; /* read the file again */
        if (idem__walk_next(walk, &head, &bytes) == WALK_ENTRY) {
            walk->at = at;
            walk->batch = batch;
            *go_on = true;
            return IDEM_OK;
        }
    }
    status = still_there(self, segment, &there);
    if (status != IDEM_OK || !there) {
        *go_on = false;
        return status;
    }
    damaged(self, segment->head.id, at, "no valid entry starts here");
    error = idem__walk_find(walk, 0, go_on);
    return error ? read_error(self, error) : IDEM_OK;
}

static enum idem_status
read_segment(struct checker *self, struct segment *segment, uint64_t end)
{
    bool newest = end == 0, go_on = true;
    enum idem_status status = IDEM_OK;
    struct segment_walk walk;

    idem__walk_init(&walk, self->journal.io, segment->fd, &segment->head,
                    newest ? segment->file_len : end);
    while (go_on && status == IDEM_OK) {
        struct entry_head head;
        const uint8_t *bytes;
        uint64_t at = walk.at;
        int error = 0;

        switch (idem__walk_next(&walk, &head, &bytes)) {
        case WALK_ENTRY:
            error = count_entry(self, segment, &head, bytes, at);
            segment->end = walk.at;
            break;
        case WALK_ERROR:
            error = errno;
            break;
        case WALK_STOP:
            status = judge_stop(self, segment, &walk, newest, &go_on);
            break;
        }
        if (error)
            status = read_error(self, error);
    }
    if (walk.time_us > self->report->time_us)
        self->report->time_us = walk.time_us;
    idem__walk_clear(&walk);
    return status;
}

/* Open the segments; the first ones may be removed meanwhile. */
static enum idem_status
open_segments(struct checker *self)
{
    struct journal *journal = &self->journal;
    uint64_t *ids = NULL;
    size_t count = 0;
    enum idem_status status =
        idem__folder_list(journal, &ids, &count, self->err);

    if (status == IDEM_OK && count == 0)
        status =
            idem__fail(self->err, IDEM_ERR_INVALID,
                       "journal: there is no journal in %.150s", journal->dir);
    for (size_t i = 0; status == IDEM_OK && i < count; i++) {
        struct segment segment;

        status =
            idem__segment_open(journal, ids[i], O_RDONLY, &segment, self->err);
        if (status == IDEM_ERR_CORRUPT) {
            damaged(self, ids[i], 0, self->err->text);
            status = IDEM_OK;
            continue;
        }
        if (status == IDEM_ERR_UNAVAILABLE && journal->segment_count == 0 &&
            gone(journal, ids[i])) {
            status = IDEM_OK; /* the cleaner removed it */
            continue;
        }
        if (status == IDEM_OK && !idem__segment_push(journal, &segment)) {
            idem__io_close(journal->io, segment.fd);
            status = read_error(self, ENOMEM);
        }
    }
    free(ids);
    return status;
}

/* A saved index that does not belong to its segment or is incomplete is never
 * used, but it is reported. */
static void
check_saved(struct checker *self, const struct segment *segment)
{
    struct journal_name name = idem__segment_name(segment->head.id, "idx");
    const struct idem_io *io = self->journal.io;
    struct saved_head head;
    struct stat info;
    uint8_t *bytes = NULL;
    size_t len = 0;
    int fd = -1;

    if (idem__io_open(io, self->journal.dir_fd, name.text, O_RDONLY, &fd))
        return;
    if (fstat(fd, &info) == 0 && info.st_size > 0 &&
        (uint64_t)info.st_size < SEGMENT_MAX_LEN)
        bytes = malloc((size_t)info.st_size);
    if (bytes && !idem__io_read(io, fd, bytes, (size_t)info.st_size, 0, &len) &&
        idem__saved_check(bytes, len, segment, &head))
        self->report->saved++;
    else if (!bytes || len == 0 || bytes[0] != 0)
        self->report->saved_wrong++; /* with a 0 it is being written */
    free(bytes);
    idem__io_close(io, fd);
}

static bool
lives(struct checker *self, const struct segment *segment,
      const struct entry_head *head, uint64_t at)
{
    const struct journal_index *index = &self->journal.index;
    struct spot spot;

    return head->kind == ENTRY_RECORD &&
           idem__index_find(index, idem__index_tag(index, head->key),
                            segment->base + at / ENTRY_ALIGN, &spot);
}

/* The second pass. Places that were damaged in the first pass are skipped. */
static enum idem_status
show_segment(struct checker *self, const struct segment *segment)
{
    struct segment_walk walk;
    bool found = true;
    int error = 0;

    idem__walk_init(&walk, self->journal.io, segment->fd, &segment->head,
                    segment->end);
    while (found && !error && !self->stop) {
        struct entry_head head;
        struct idem_record record;
        const uint8_t *bytes;
        uint64_t at = walk.at;
        struct journal_sight sight = {
            .segment = segment->head.id, .at = at, .head = &head};
        enum walk_found next = idem__walk_next(&walk, &head, &bytes);

        if (next == WALK_ERROR)
            error = errno;
        else if (next == WALK_STOP)
            error = idem__walk_find(&walk, 0, &found);
        if (next != WALK_ENTRY)
            continue;
        if (head.kind == ENTRY_RECORD &&
            idem__decode(
                (struct idem_bytes){bytes + ENTRY_HEAD_LEN, head.body_len},
                &record, NULL) == IDEM_OK)
            sight.record = &record;
        sight.live = lives(self, segment, &head, at);
        self->stop = !self->sight(self->arg, &sight);
    }
    idem__walk_clear(&walk);
    return error ? read_error(self, error) : IDEM_OK;
}

static enum idem_status
check_all(struct checker *self)
{
    struct journal *journal = &self->journal;
    struct journal_report *report = self->report;
    enum idem_status status = open_segments(self);

    for (size_t i = 0; status == IDEM_OK && i < journal->segment_count; i++) {
        struct segment *segment = &journal->segments[i];
        bool newest = i + 1 == journal->segment_count;
        uint64_t end = newest ? 0 : segment[1].head.prev_end;

        if (!newest && segment[1].head.id != segment->head.id + 1) {
            damaged(self, segment->head.id + 1, 0, "the segment is missing");
            end = segment->file_len;
        }
        status = read_segment(self, segment, end);
        check_saved(self, segment);
        report->used_bytes += segment->end;
    }
    if (status != IDEM_OK)
        return status;
    for (size_t i = 0; i < journal->segment_count; i++) {
        report->live_bytes += journal->segments[i].live;
        if (self->sight && !self->stop && status == IDEM_OK)
            status = show_segment(self, &journal->segments[i]);
    }
    report->segments = journal->segment_count;
    if (journal->segment_count > 0) {
        report->first_segment = journal->segments[0].head.id;
        report->last_segment =
            journal->segments[journal->segment_count - 1].head.id;
    }
    report->live = journal->index.count;
    report->executing = journal->index.executing;
    return status;
}

enum idem_status
idem__journal_check(const char *dir, const struct idem_io *io,
                    journal_sight_fn *sight, journal_damage_fn *damage,
                    void *arg, struct journal_report *report,
                    struct idem_error *err)
{
    struct checker *self = calloc(1, sizeof(*self));
    struct idem_error ignored;
    enum idem_status status;

    if (!self)
        return idem__fail(err, IDEM_ERR_MEMORY, "journal: out of memory");
    memset(report, 0, sizeof(*report));
    self->sight = sight;
    self->damage = damage;
    self->arg = arg;
    self->report = report;
    self->err = err ? err : &ignored;
    self->journal.io = io ? io : &idem__system_io;
    self->journal.dir = (char *)dir;
    self->journal.dir_fd = self->journal.lock_fd = -1;
    idem__index_init(&self->journal.index, 0, UINT64_MAX);
    status = idem__folder_look(&self->journal, self->err);
    if (status == IDEM_OK)
        status = check_all(self);
    for (size_t i = 0; i < self->journal.segment_count; i++)
        idem__io_close(self->journal.io, self->journal.segments[i].fd);
    idem__folder_close(&self->journal);
    idem__index_clear(&self->journal.index);
    free(self->journal.segments);
    free(self);
    return status;
}
