/*
 * tail.c - the end of the log: how a batch reaches the disk, and the last bytes
 * of the log in memory.
 *
 * A batch is written past the page cache (O_DIRECT), in whole blocks: what the
 * last block already has, the new entries, and zeros up to the block's end. The
 * bytes of the file are the same as with an ordinary write of the entries,
 * which would write whole pages, too; only it takes longer. Where O_DIRECT is
 * not possible, the entries are written in the ordinary way.
 *
 * Bytes that are written in this way are not in the page cache. The last ones
 * are kept here, so a record that was just written is read from memory. When an
 * older record is read for the first time, the whole stretch of the file around
 * it is read ahead, because requests that were sent at the same time are often
 * repeated at the same time.
 */
#include "journal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define BLOCK JOURNAL_BLOCK
#define TAIL_LEN (UINT64_C(2) << 20)
#define STRETCH (UINT64_C(128) << 10) /* the kernel reads no more at once */

static uint64_t
block_of(uint64_t at)
{
    return at & ~(BLOCK - 1);
}

static uint64_t
block_end(uint64_t at)
{
    return block_of(at + BLOCK - 1);
}

void
idem__tail_drop(struct journal *self)
{
    struct tail *tail = &self->tail;

    if (!tail->bytes)
        return;
    idem__io_close(self->io, tail->fd);
    free(tail->memory);
    tail->memory = tail->bytes = NULL;
}

/* Open the segment's file a second time. A failure only costs speed. */
static int
open_direct(const struct journal *self, const struct segment *segment)
{
    struct journal_name name = idem__segment_name(segment->head.id, "seg");
    struct stat one, two;
    int fd = -1;

    if (idem__io_open(self->io, self->dir_fd, name.text, O_WRONLY | O_DIRECT,
                      &fd) != 0)
        return -1;
    if (fstat(fd, &one) == 0 && fstat(segment->fd, &two) == 0 &&
        one.st_dev == two.st_dev && one.st_ino == two.st_ino)
        return fd;
    idem__io_close(self->io, fd);
    return -1;
}

void
idem__tail_start(struct journal *self, struct segment *segment)
{
    uint64_t len = self->tuning.tail_len ? self->tuning.tail_len : TAIL_LEN;
    uint64_t all = block_end(segment->file_len);
    struct tail *tail = &self->tail;

    idem__tail_drop(self);
    if (self->buffered)
        return;
    if (len > all)
        len = all;
    tail->memory = malloc((size_t)(len + BLOCK));
    tail->fd = tail->memory ? open_direct(self, segment) : -1;
    if (tail->fd < 0) {
        free(tail->memory);
        tail->memory = NULL;
        return;
    }
    tail->bytes = tail->memory + (BLOCK - (uintptr_t)tail->memory % BLOCK);
    tail->room = len;
    tail->from = 0;
    idem__segment_head_put(&segment->head, tail->bytes);
    segment->cold = calloc(1, (size_t)(all / STRETCH / 8 + 1));
}

/* Forget the older half. */
static void
slide(struct tail *tail, uint64_t end)
{
    uint64_t from = block_of(end - tail->room / 2);

    memmove(tail->bytes, tail->bytes + (from - tail->from),
            (size_t)(end - from));
    tail->from = from;
}

static int
write_direct(struct journal *self, const struct segment *segment,
             const uint8_t *data, size_t len)
{
    struct tail *tail = &self->tail;
    uint64_t at = segment->end;
    int error = 0;

    while (len > 0 && !error) {
        uint64_t start = block_of(at), part, stop;

        if (at - tail->from == tail->room)
            slide(tail, at);
        part = tail->room - (at - tail->from);
        if (part > len)
            part = len;
        memcpy(tail->bytes + (at - tail->from), data, (size_t)part);
        stop = block_end(at + part);
        memset(tail->bytes + (at + part - tail->from), 0,
               (size_t)(stop - at - part));
        error = idem__io_write(self->io, tail->fd,
                               tail->bytes + (start - tail->from),
                               (size_t)(stop - start), start);
        at += part;
        data += part;
        len -= (size_t)part;
    }
    return error;
}

static void
set_cold(struct segment *segment, uint64_t from, uint64_t to)
{
    for (uint64_t n = from / STRETCH; segment->cold && n * STRETCH < to; n++)
        segment->cold[n / 8] |= (uint8_t)(1u << n % 8);
}

int
idem__tail_write(struct journal *self, struct segment *segment,
                 const uint8_t *data, size_t len)
{
    int error = EINVAL;

    if (self->tail.bytes && block_end(segment->end + len) <= segment->file_len)
        error = write_direct(self, segment, data, len);
    else
        idem__tail_drop(self);
    if (error != EINVAL) {
        set_cold(segment, segment->end, segment->end + len);
        return error;
    }
    if (self->tail.bytes) {
        /* This file system wants other blocks, or no O_DIRECT at all. */
        self->buffered = true;
        idem__tail_drop(self);
    }
    return idem__io_write(self->io, segment->fd, data, len, segment->end);
}

/* Ask the kernel for a stretch that was written past its cache. */
static void
warm(struct segment *segment, uint64_t at)
{
    uint64_t n = at / STRETCH;
    uint8_t bit = (uint8_t)(1u << n % 8);

    if (!segment->cold || !(segment->cold[n / 8] & bit))
        return;
    segment->cold[n / 8] &= (uint8_t)~bit;
    (void)posix_fadvise(segment->fd, (off_t)(n * STRETCH), (off_t)STRETCH,
                        POSIX_FADV_WILLNEED);
}

int
idem__tail_read(struct journal *self, struct segment *segment, uint8_t *out,
                size_t len, uint64_t at, size_t *got)
{
    const struct tail *tail = &self->tail;
    bool last = segment == &self->segments[self->segment_count - 1];

    if (last && tail->bytes && at >= tail->from) {
        *got = segment->end - at < len ? (size_t)(segment->end - at) : len;
        memcpy(out, tail->bytes + (at - tail->from), *got);
        return 0;
    }
    warm(segment, at);
    return idem__io_read(self->io, segment->fd, out, len, at, got);
}
