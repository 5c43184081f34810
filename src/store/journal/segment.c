/*
 * segment.c - segments are made whole, named when ready, and dropped whole.
 *
 * A segment is prepared under the name "spare": its room allocated, filled with
 * zeros (so that a later fdatasync has no metadata to write), its head written
 * and synced. Only then it gets its name, and the folder is synced. A file with
 * a segment's name therefore always has a good head.
 */
#include "journal.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define SEGMENT_MIN_LEN (UINT64_C(8) << 20)
#define SEGMENT_LIMIT (UINT64_C(512) << 20)

bool
idem__segment_push(struct journal *self, const struct segment *segment)
{
    if (self->segment_count == self->segment_room) {
        size_t room = self->segment_room ? self->segment_room * 2 : 16;
        struct segment *more =
            realloc(self->segments, room * sizeof(*self->segments));

        if (!more)
            return false;
        self->segments = more;
        self->segment_room = room;
    }
    self->segments[self->segment_count++] = *segment;
    return true;
}

void
idem__segment_close(struct journal *self, struct segment *segment)
{
    idem__io_close(self->io, segment->fd);
    segment->fd = -1;
}

enum idem_status
idem__segment_open(struct journal *self, uint64_t id, struct segment *segment,
                   struct idem_error *err)
{
    struct journal_path path = idem__segment_path(self->dir, id, "seg");
    uint8_t bytes[SEGMENT_HEAD_LEN];
    struct idem_error why;
    struct stat info;
    size_t got = 0;
    int error;
    enum idem_status status;

    memset(segment, 0, sizeof(*segment));
    segment->fd = -1;
    error = idem__io_open(self->io, path.text, O_RDWR, &segment->fd);
    if (!error)
        error =
            idem__io_read(self->io, segment->fd, bytes, sizeof(bytes), 0, &got);
    if (!error && fstat(segment->fd, &info) != 0)
        error = errno;
    if (error) {
        idem__segment_close(self, segment);
        return idem__fail(err, idem__journal_status(error),
                          "journal: %.150s: %s", path.text, strerror(error));
    }
    status = got < sizeof(bytes)
                 ? idem__fail(&why, IDEM_ERR_CORRUPT, "it has no head")
                 : idem__segment_head_get(bytes, &segment->head, &why);
    if (status == IDEM_OK && segment->head.id != id)
        status = idem__fail(&why, IDEM_ERR_CORRUPT,
                            "it says that it is segment %016" PRIx64,
                            segment->head.id);
    if (status != IDEM_OK) {
        idem__segment_close(self, segment);
        return idem__fail(err, status, "journal: %.100s: %.140s", path.text,
                          why.text);
    }
    segment->file_len = (uint64_t)info.st_size;
    segment->end = SEGMENT_HEAD_LEN;
    return IDEM_OK;
}

/* How long the next segment shall be. */
static uint64_t
next_len(const struct journal *self, uint64_t min_len)
{
    uint64_t live = 0, len;

    for (size_t i = 0; i < self->segment_count; i++)
        live += self->segments[i].live;
    len = self->tuning.segment_len ? self->tuning.segment_len : live / 16;
    if (!self->tuning.segment_len && len < SEGMENT_MIN_LEN)
        len = SEGMENT_MIN_LEN;
    if (len > SEGMENT_LIMIT)
        len = SEGMENT_LIMIT;
    if (len < min_len + SEGMENT_HEAD_LEN)
        len = min_len + SEGMENT_HEAD_LEN;
    return (len + 4095) & ~UINT64_C(4095);
}

enum idem_status
idem__segment_add(struct journal *self, uint64_t min_len,
                  struct idem_error *err)
{
    struct segment *last =
        self->segment_count ? &self->segments[self->segment_count - 1] : NULL;
    struct journal_path spare = idem__folder_path(self->dir, "spare");
    struct journal_path path;
    struct segment next = {.fd = -1};
    uint8_t bytes[SEGMENT_HEAD_LEN];
    int error;

    next.head.id = last ? last->head.id + 1 : 1;
    next.head.salt = idem__new_rev();
    next.head.prev_end = last ? last->end : 0;
    next.head.time_us = idem__journal_now_us(self);
    next.head.first_batch = self->next_batch;
    next.end = SEGMENT_HEAD_LEN;
    next.file_len = next_len(self, min_len);
    path = idem__segment_path(self->dir, next.head.id, "seg");
    idem__segment_head_put(&next.head, bytes);

    error = idem__io_open(self->io, spare.text, O_RDWR | O_CREAT | O_TRUNC,
                          &next.fd);
    if (!error)
        error = idem__io_allocate(self->io, next.fd, next.file_len);
    if (!error)
        error = idem__io_write(self->io, next.fd, bytes, sizeof(bytes), 0);
    if (!error)
        error = idem__io_sync(self->io, next.fd);
    if (!error)
        error = idem__io_rename(self->io, spare.text, path.text);
    if (!error)
        error = idem__io_sync(self->io, self->dir_fd);
    if (!error && !idem__segment_push(self, &next))
        error = ENOMEM;
    if (error) {
        idem__io_close(self->io, next.fd);
        return idem__fail(err, idem__journal_status(error),
                          "journal: %.120s: cannot make a segment: %s",
                          self->dir, strerror(error));
    }
    self->persisted_us = next.head.time_us;
    return IDEM_OK;
}
