/*
 * recover.c - opens the files of a journal.
 *
 * Every segment needs a saved index, from which load.c fills the index. Where
 * it is missing or invalid, as for the newest segment of a killed process, it
 * is made from the entries. Each segment's head says where the one before it
 * ends; the newest ends where its last valid entry does. If the writer died
 * during its last batch, the incomplete batch is cut off; it was never
 * acknowledged. Anything else that is not valid is damage. It is reported with
 * its place, and the journal does not open unless the operator accepts the loss
 * of the damaged entries.
 */
#include "journal.h"

#include "../../base/le.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define ROW_SIZE_AT 12

static enum idem_status
out_of_memory(struct idem_error *err)
{
    return idem__fail(err, IDEM_ERR_MEMORY, "journal: out of memory");
}

enum idem_status
idem__recover_error(const struct journal *self, int error,
                    struct idem_error *err)
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

/* The rows of a segment that is read, in the order of its entries. */
struct walked {
    uint8_t *rows;
    uint64_t count, room;
    struct rev_row {
        uint64_t rev, tag, row;
    } * revs; /* rows by their revs, the last ones */
};

#define REV_ROWS 65536

static struct rev_row *
rev_row(const struct walked *walked, uint64_t rev)
{
    return &walked->revs[(rev * UINT64_C(0x9E3779B97F4A7C15) >> 32) % REV_ROWS];
}

/* The row of this segment that has this rev and tag; NULL: it is not known. A
 * rev is 64 random bits, so it is of the same key. */
static uint8_t *
row_of_rev(const struct walked *walked, uint64_t rev, uint64_t tag)
{
    const struct rev_row *found = rev_row(walked, rev);

    return rev && found->rev == rev && found->tag == tag
               ? walked->rows + found->row * SAVED_ROW_LEN
               : NULL;
}

/* Add the row of an entry. If it replaces an entry of the same segment that is
 * known, that one needs no row. If it replaces another, its key shows which. */
static int
add_row(struct walked *walked, const struct entry_head *head, uint64_t at)
{
    struct row row = idem__entry_row(head, at);
    uint8_t *old;

    row.old_back = ROW_NEW;
    if (walked->count == walked->room) {
        uint64_t room = walked->room ? walked->room * 2 : 1024;
        uint8_t *more = realloc(walked->rows, (size_t)room * SAVED_ROW_LEN);

        if (!more)
            return ENOMEM;
        walked->rows = more;
        walked->room = room;
    }
    old = row_of_rev(walked, head->prev, row.tag);
    if (!old)
        old = row_of_rev(walked, head->rev, row.tag); /* it was moved */
    if (old)
        idem__put32(old + ROW_SIZE_AT, 0);
    if (head->rev)
        *rev_row(walked, head->rev) =
            (struct rev_row){head->rev, row.tag, walked->count};
    idem__saved_put_row(&row, walked->rows + walked->count++ * SAVED_ROW_LEN);
    return 0;
}

/* Remove the rows that were replaced. */
static void
pack_rows(struct walked *walked)
{
    uint64_t kept = 0;

    for (uint64_t i = 0; i < walked->count; i++) {
        uint8_t *row = walked->rows + i * SAVED_ROW_LEN;

        if (idem__get32(row + ROW_SIZE_AT) == 0)
            continue;
        if (kept < i)
            memcpy(walked->rows + kept * SAVED_ROW_LEN, row, SAVED_ROW_LEN);
        kept++;
    }
    walked->count = kept;
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
    if (!error && newest && *go_on) {
        /* The next valid entry may be of the same batch. */
        walk->at = at;
        error = idem__walk_find(walk, 0, go_on);
    }
    if (error)
        return idem__recover_error(self, error, err);
    if (newest && !*go_on)
        return IDEM_OK;
    status = damage(self, id, at, err);
    if (status == IDEM_OK && !*go_on)
        walk->at = walk->limit; /* there is no valid entry before the end */
    return status;
}

static enum idem_status
walk_segment(struct journal *self, struct segment *segment, uint64_t end,
             struct walked *walked, struct idem_error *err)
{
    uint64_t id = segment->head.id;
    struct segment_walk walk;
    enum idem_status status = IDEM_OK;
    bool newest = end == 0, go_on = true;
    int error = 0;

    idem__walk_init(&walk, self->io, segment->fd, &segment->head,
                    newest ? segment->file_len : end);
    while (go_on && status == IDEM_OK) {
        struct entry_head head;
        const uint8_t *bytes;
        uint64_t at = walk.at;

        switch (idem__walk_next(&walk, &head, &bytes)) {
        case WALK_ENTRY:
            error = head.kind == ENTRY_MARK ? 0 : add_row(walked, &head, at);
            break;
        case WALK_ERROR:
            error = errno;
            break;
        case WALK_STOP:
            status = stopped(self, &walk, id, newest, &go_on, err);
            break;
        }
        if (error)
            status = idem__recover_error(self, error, err);
    }
    segment->end = walk.at;
    if (walk.time_us > self->persisted_us)
        self->persisted_us = walk.time_us;
    if (walk.batch + 1 > self->next_batch)
        self->next_batch = walk.batch + 1;
    idem__walk_clear(&walk);
    return status;
}

enum idem_status
idem__recover_rows(struct journal *self, struct segment *segment, uint64_t end,
                   struct saved_head *head, uint8_t **bytes,
                   struct idem_error *err)
{
    struct walked walked = {0};
    enum idem_status status;

    walked.revs = calloc(REV_ROWS, sizeof(*walked.revs));
    status = walked.revs ? walk_segment(self, segment, end, &walked, err)
                         : out_of_memory(err);
    if (status == IDEM_OK) {
        pack_rows(&walked);
        *head = (struct saved_head){.id = segment->head.id,
                                    .salt = segment->head.salt,
                                    .end = segment->end,
                                    .next_batch = self->next_batch,
                                    .time_us = self->persisted_us,
                                    .rows = walked.count};
        *bytes = malloc(idem__saved_plan(head));
        if (!*bytes ||
            idem__saved_make(self->io, head, walked.rows, -1, *bytes)) {
            free(*bytes);
            status = out_of_memory(err);
        }
    }
    free(walked.rows);
    free(walked.revs);
    return status;
}

/* Use a segment's saved index if that is valid, otherwise make it from the
 * entries. The newest segment has a valid one only if the journal was closed;
 * then the file ends where its entries do. */
static enum idem_status
read_segment(struct journal *self, size_t number, struct idem_error *err)
{
    struct segment *segment = &self->segments[number];
    bool newest = number + 1 == self->segment_count, used = false;
    uint64_t end =
        newest ? segment->file_len : self->segments[number + 1].head.prev_end;
    struct saved_head head;
    enum idem_status status;
    uint8_t *bytes;
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
    error = idem__load_file(self, segment, end, &used);
    if (error)
        return idem__recover_error(self, error, err);
    if (used)
        return IDEM_OK;
    status =
        idem__recover_rows(self, segment, newest ? 0 : end, &head, &bytes, err);
    if (status != IDEM_OK)
        return status;
    error = idem__load_bytes(self, segment, &head, bytes);
    return error ? idem__recover_error(self, error, err) : IDEM_OK;
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
    bool is_new = self->segment_count == 0;
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
            return idem__recover_error(self, error, err);
        /* After a failed sync the page cache may differ from the disk. */
        (void)posix_fadvise(newest->fd, 0, 0, POSIX_FADV_DONTNEED);
    }
    if (!idem__load_start(self))
        return out_of_memory(err);
    for (size_t i = 0; i < self->segment_count; i++) {
        status = read_segment(self, i, err);
        if (status != IDEM_OK)
            return status;
    }
    if (self->segment_count > 0) {
        cut_tail(self);
        newest = &self->segments[self->segment_count - 1];
        if (newest->end == SEGMENT_HEAD_LEN) {
            /* The segment is empty: the new one takes its number and the
             * place of its file, also if it is the only one. */
            struct journal_name name =
                idem__segment_name(newest->head.id, "idx");

            (void)idem__io_unlink(self->io, self->dir_fd, name.text);
            idem__segment_close(self, newest);
            self->segment_count--;
            self->first_id = newest->head.id;
        }
    }
    idem__journal_clock_start(self);
    status = idem__load_begin(self, err);
    if (status == IDEM_OK)
        status = idem__segment_add(self, 0, true, err);
    if (status == IDEM_OK && is_new)
        /* A gateway's engine logs warnings only. Without a log a warning would
         * go to standard error, at the first start of every program. */
        idem__log(&self->base.options,
                  self->base.options.log ? IDEM_LOG_WARNING : IDEM_LOG_INFO,
                  "journal: %s: a new, empty journal was created; if there was "
                  "one before, correct the path, or its requests run again",
                  self->dir);
    return status;
}
