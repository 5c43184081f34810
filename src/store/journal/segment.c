/*
 * segment.c - creates, names and removes segments.
 *
 * A segment is prepared under the name "spare" (see helper.c): its room is
 * allocated, its head written and synced. Only then it gets its name, and the
 * folder is synced. A file with a segment's name therefore has a good head.
 *
 * A second file, "reserve", keeps room for a full disk. When there is no space
 * for a next segment, new claims are refused, and existing claims are finished
 * in the rest of this segment and then in the reserve.
 */
#include "journal.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define SEGMENT_MIN_LEN (UINT64_C(8) << 20)
#define SEGMENT_FAST_LEN (UINT64_C(16) << 20)
#define SEGMENT_MOST_LEN (UINT64_C(64) << 20)
#define SEGMENT_LIMIT (UINT64_C(512) << 20)
#define SEGMENTS_MANY 128
#define SEGMENT_LEAST_LEN (UINT64_C(64) << 10)
#define FAST_US INT64_C(2000000)

/* Find positions for a segment: behind those of the last one, or from 0 on
 * again. The revs noted for what was there before are forgotten. */
static bool
find_base(struct journal *self, struct segment *segment)
{
    const struct segment *first = self->segments;
    const struct segment *last = first + self->segment_count - 1;
    uint64_t span = segment->span;

    if (self->segment_count == 0) {
        segment->base = self->tuning.first_base;
        return true;
    }
    segment->base = last->base + last->span;
    if (last->base >= first->base && segment->base + span <= INDEX_AT_END)
        return true;
    if (last->base >= first->base) {
        segment->base = 0;
        memset(self->rev_notes, 0, sizeof(self->rev_notes));
    }
    return segment->base + span <= first->base;
}

bool
idem__segment_push(struct journal *self, const struct segment *segment)
{
    struct segment most = {.span = SEGMENT_MAX_LEN / ENTRY_ALIGN};
    struct segment *more = idem__grow(self->segments, self->segment_count,
                                      &self->segment_room, sizeof(*more));

    if (!more)
        return false;
    self->segments = more;
    if (!segment)
        return find_base(self, &most);
    most = *segment;
    most.span = most.file_len / ENTRY_ALIGN;
    if (most.file_len > SEGMENT_MAX_LEN || !find_base(self, &most))
        return false;
    self->segments[self->segment_count++] = most;
    return true;
}

void
idem__segment_close(struct journal *self, struct segment *segment)
{
    idem__io_close(self->io, segment->fd);
    segment->fd = -1;
    free(segment->cold);
    segment->cold = NULL;
}

enum idem_status
idem__segment_open(const struct journal *self, uint64_t id, int flags,
                   struct segment *segment, struct idem_error *err)
{
    struct journal_name name = idem__segment_name(id, "seg");
    const struct idem_io *io = self->io;
    uint8_t bytes[SEGMENT_HEAD_LEN];
    struct idem_error why;
    struct stat info;
    size_t got = 0;
    int error;
    enum idem_status status;

    memset(segment, 0, sizeof(*segment));
    segment->fd = -1;
    error = idem__io_open(io, self->dir_fd, name.text, flags, &segment->fd);
    if (!error)
        error = idem__io_read(io, segment->fd, bytes, sizeof(bytes), 0, &got);
    if (!error && fstat(segment->fd, &info) != 0)
        error = errno;
    if (error) {
        idem__io_close(io, segment->fd);
        return idem__fail(err, idem__journal_status(error),
                          "journal: %.120s/%s: %s", self->dir, name.text,
                          idem__io_text(error));
    }
    status = got < sizeof(bytes)
                 ? idem__fail(&why, IDEM_ERR_CORRUPT, "it has no head")
                 : idem__segment_head_get(bytes, &segment->head, &why);
    if (status == IDEM_OK && segment->head.id != id)
        status = idem__fail(&why, IDEM_ERR_CORRUPT,
                            "it says that it is segment %016" PRIx64,
                            segment->head.id);
    if (status != IDEM_OK) {
        idem__io_close(io, segment->fd);
        return idem__fail(err, status, "journal: %.80s/%s: %.120s", self->dir,
                          name.text, why.text);
    }
    segment->file_len = (uint64_t)info.st_size;
    segment->end = SEGMENT_HEAD_LEN;
    return IDEM_OK;
}

void
idem__segment_totals(const struct journal *self, uint64_t *used, uint64_t *live)
{
    *used = *live = 0;
    for (size_t i = 0; i < self->segment_count; i++) {
        *used += self->segments[i].end + self->segments[i].saved_len;
        *live += self->segments[i].live;
    }
}

uint64_t
idem__segment_usual_len(const struct journal *self)
{
    uint64_t used, live, most, len;

    if (self->tuning.segment_len)
        return self->tuning.segment_len;
    idem__segment_totals(self, &used, &live);
    if (self->loader)
        live = used / 2; /* it is not known yet */
    most = used / SEGMENTS_MANY;
    if (most < SEGMENT_MOST_LEN)
        most = SEGMENT_MOST_LEN;
    len = live / 16;
    if (len > most)
        len = most;
    if (len < SEGMENT_MIN_LEN)
        len = SEGMENT_MIN_LEN;
    return len < SEGMENT_LIMIT ? len : SEGMENT_LIMIT;
}

/* The length of the next segment. At most twice the length of the last one:
 * opening a journal waits until its first file is filled with zeros, and the
 * helper needs time for the larger ones. If the last one was filled very
 * quickly, twice its length. */
static uint64_t
next_len(const struct journal *self)
{
    uint64_t len = idem__segment_usual_len(self);
    uint64_t twice = self->seg_len * 2;

    if (self->tuning.segment_len)
        return self->tuning.segment_len;
    if (len > twice ||
        (self->seg_len < SEGMENT_FAST_LEN &&
         idem__journal_now_us(self) - self->last_add_us < FAST_US))
        len = twice;
    if (len < SEGMENT_MIN_LEN)
        len = SEGMENT_MIN_LEN;
    return (len + 4095) & ~UINT64_C(4095);
}

/* Create a file right now, smaller if the disk has no more space. */
static int
make_now(struct journal *self, uint64_t min_len, struct fresh *fresh)
{
    uint64_t least = self->tuning.segment_len ? 0 : SEGMENT_LEAST_LEN;
    int error;

    if (least < min_len)
        least = min_len;
    fresh->fd = -1;
    fresh->name = "spare";
    fresh->len = next_len(self);
    if (fresh->len < least)
        fresh->len = least;
    fresh->len = (fresh->len + 4095) & ~UINT64_C(4095);
    error = idem__io_open(self->io, self->dir_fd, fresh->name,
                          O_RDWR | O_CREAT | O_TRUNC, &fresh->fd);
    if (error)
        return error;
    for (;;) {
        error = idem__io_allocate(self->io, fresh->fd, fresh->len);
        if (idem__journal_status(error) != IDEM_ERR_FULL ||
            fresh->len / 2 < least)
            break;
        fresh->len /= 2;
        (void)idem__io_truncate(self->io, fresh->fd, 0);
    }
    if (error == EOPNOTSUPP)
        error = 0;
    if (error) {
        idem__io_close(self->io, fresh->fd);
        (void)idem__io_unlink(self->io, self->dir_fd, fresh->name);
    }
    return error;
}

static int
take_reserve(struct journal *self, uint64_t min_len, struct fresh *fresh)
{
    int error;

    if (self->reserve_len < min_len)
        return ENOSPC;
    fresh->fd = -1;
    fresh->name = "reserve";
    fresh->len = self->reserve_len;
    error =
        idem__io_open(self->io, self->dir_fd, fresh->name, O_RDWR, &fresh->fd);
    if (!error)
        self->reserve_len = 0;
    return error;
}

static int
get_fresh(struct journal *self, uint64_t min_len, bool use_reserve,
          struct fresh *fresh)
{
    int error;

    if (!self->opened && !self->tuning.no_thread)
        idem__helper_ask(self, next_len(self));
    if (idem__helper_take(self, min_len, fresh))
        return 0;
    error = make_now(self, min_len, fresh);
    if (idem__journal_status(error) == IDEM_ERR_FULL) {
        self->full = true;
        if (use_reserve)
            error = take_reserve(self, min_len, fresh);
    }
    return error;
}

/* Write the head and give the file its name. From the moment the name may
 * exist, the segment before it is complete and nothing may be added to it. */
static int
name_fresh(struct journal *self, const struct fresh *fresh,
           const struct segment_head *head)
{
    struct journal_name to = idem__segment_name(head->id, "seg");
    uint8_t bytes[SEGMENT_HEAD_LEN];
    int error;

    idem__segment_head_put(head, bytes);
    error = idem__io_write(self->io, fresh->fd, bytes, sizeof(bytes), 0);
    if (!error)
        error = idem__io_sync(self->io, fresh->fd);
    if (error)
        return error;
    error = idem__io_rename(self->io, self->dir_fd, fresh->name, to.text);
    if (!error)
        error = idem__io_sync(self->io, self->dir_fd);
    if (error)
        idem__journal_poison(self, "naming a segment", error);
    return error;
}

/* The last segment gets no more entries: save its index and truncate the file
 * to its end. */
static void
seal_last(struct journal *self)
{
    struct segment *last = &self->segments[self->segment_count - 1];

    idem__saved_finish(self, last);
    if (last->file_len > last->end &&
        idem__io_truncate(self->io, last->fd, last->end) == 0)
        last->file_len = last->end;
}

enum idem_status
idem__segment_add(struct journal *self, uint64_t min_len, bool use_reserve,
                  struct idem_error *err)
{
    const struct segment *last =
        self->segment_count ? &self->segments[self->segment_count - 1] : NULL;
    struct segment next = {.fd = -1, .end = SEGMENT_HEAD_LEN};
    struct fresh fresh;
    int error = 0;

    next.head.id = last             ? last->head.id + 1
                   : self->first_id ? self->first_id
                                    : 1;
    next.head.salt = idem__new_rev();
    next.head.prev_end = last ? last->end : 0;
    next.head.time_us = idem__journal_now_us(self);
    next.head.first_batch = self->next_batch;
    if (!idem__segment_push(self, NULL)) /* room for it, before it exists */
        error = ENOMEM;
    if (!error)
        error =
            get_fresh(self, min_len + SEGMENT_HEAD_LEN, use_reserve, &fresh);
    if (!error) {
        error = name_fresh(self, &fresh, &next.head);
        if (error)
            idem__io_close(self->io, fresh.fd);
    }
    if (error)
        return idem__fail(err, idem__journal_status(error),
                          "journal: %.120s: cannot make a segment: %s",
                          self->dir, strerror(error));
    if (last)
        seal_last(self);
    next.fd = fresh.fd;
    next.file_len = fresh.len;
    idem__segment_push(self, &next);
    idem__saved_start(self, &self->segments[self->segment_count - 1]);
    idem__tail_start(self, &self->segments[self->segment_count - 1]);
    self->persisted_us = next.head.time_us;
    self->last_batch_us = self->last_add_us = next.head.time_us;
    self->seg_len = fresh.len;
    self->marked = true;
    if (self->opened && !self->tuning.no_thread)
        idem__helper_ask(self, next_len(self)); /* prepare the next one */
    return IDEM_OK;
}

/* Delete the file or, if there is no spare, keep it as the next spare. The next
 * segment may be removed only after this is durable, so it is retried until
 * then. */
bool
idem__segment_drop_oldest(struct journal *self)
{
    struct segment *oldest = &self->segments[0];
    uint64_t id = oldest->head.id;
    struct journal_name name = idem__segment_name(id, "seg");
    struct journal_name index = idem__segment_name(id, "idx");
    int error;

    if (idem__helper_has(self) || self->full)
        error = idem__io_unlink(self->io, self->dir_fd, name.text);
    else
        error = idem__io_rename(self->io, self->dir_fd, name.text, "spare");
    if (!error || error == ENOENT)
        error = idem__io_sync(self->io, self->dir_fd);
    if (error) {
        idem__log(&self->base.options, IDEM_LOG_WARNING,
                  "journal: %s/%s: cannot be taken away: %s", self->dir,
                  name.text, strerror(error));
        return false;
    }
    (void)idem__io_unlink(self->io, self->dir_fd, index.text);
    idem__segment_close(self, oldest);
    self->segment_count--;
    memmove(self->segments, self->segments + 1,
            self->segment_count * sizeof(*self->segments));
    return true;
}

/* Keep a reserve of at least this length, and less than twice that. Returns 0
 * or an errno. */
static int
keep_reserve(struct journal *self, uint64_t len)
{
    struct stat info = {0};
    int fd = -1, error;

    len = (len + 4095) & ~UINT64_C(4095);
    if (self->reserve_len >= len && self->reserve_len < 2 * len)
        return 0;
    error =
        idem__io_open(self->io, self->dir_fd, "reserve", O_RDWR | O_CREAT, &fd);
    if (!error && fstat(fd, &info) != 0)
        error = errno;
    if (!error && (uint64_t)info.st_size < len)
        error = idem__io_allocate(self->io, fd, len);
    else if (!error && (uint64_t)info.st_size >= 2 * len &&
             idem__io_truncate(self->io, fd, len) == 0)
        info.st_size = (off_t)len;
    if (!error)
        self->reserve_len =
            (uint64_t)info.st_size < len ? len : (uint64_t)info.st_size;
    idem__io_close(self->io, fd);
    if (error == EOPNOTSUPP)
        return 0; /* this file system cannot reserve room */
    if (error && self->reserve_len == 0)
        (void)idem__io_unlink(self->io, self->dir_fd, "reserve");
    return error;
}

void
idem__segment_reserve(struct journal *self)
{
    if (self->reserve_len == 0)
        self->reserve_len = idem__folder_file_len(self, "reserve");
}

void
idem__segment_prepare(struct journal *self)
{
    uint64_t reserve =
        self->tuning.segment_len ? self->tuning.segment_len : SEGMENT_MIN_LEN;
    uint64_t claims = (self->index.executing - self->index.idle) *
                      (uint64_t)IDEM__CLAIM_RESERVE;
    int error;

    if (reserve < claims)
        reserve = claims;
    /* While the index is loaded, not all claims are counted. */
    if (self->loader && reserve < self->reserve_len)
        reserve = self->reserve_len;
    error = keep_reserve(self, reserve);
    if (idem__journal_status(error) != IDEM_ERR_FULL) {
        idem__helper_ask(self, next_len(self));
        error = idem__helper_error(self);
    }
    if (idem__journal_status(error) == IDEM_ERR_FULL && !self->full) {
        self->full = true;
        idem__log(&self->base.options, IDEM_LOG_ALARM,
                  "journal: %s: the disk is full: new claims are refused, "
                  "replays go on, claimed requests can be finished. Make room; "
                  "a restart is not necessary",
                  self->dir);
    } else if (!error && self->full && idem__helper_ready(self)) {
        self->full = false;
        idem__log(&self->base.options, IDEM_LOG_WARNING,
                  "journal: %s: there is room again, claims are taken",
                  self->dir);
    }
}
