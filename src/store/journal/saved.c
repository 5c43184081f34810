/*
 * saved.c - reads and writes saved index files, from which a segment's part of
 * the index can be loaded without reading its entries.
 *
 *   head, 88 bytes; a table of the slices, 16 bytes each; rows of 28 bytes
 *
 * A slice has the rows whose tags begin with the same bits, in the order of
 * their entries, and a checksum of its own. So a part of the index can be
 * loaded without the rest of it (load.c).
 *
 * While a segment is written, its rows are written to the file in the order of
 * the entries, a few thousand at a time. When the segment is complete, the
 * helper sorts them into slices. The head is written at last: until then it is
 * zeros, and the file is not used.
 *
 * A row says which entry its entry replaced. So when the rows of a slice are
 * loaded in their order, no key has to be read to find the slot to change.
 *
 * A saved index only saves time. If it is missing, torn, of another segment or
 * of another end, it is not used, and the segment itself is read. So it need
 * not be synced.
 */
#include "journal.h"

#include "../../base/le.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <xxhash.h>

static const char magic[8] = {'i', 'd', 'e', 'm', 'i', 'd', 'x', '\n'};

#define HEAD_SUM_AT 80
#define ROWS_KEPT 16384 /* in memory */
#define SLICE_ROWS 16   /* in a slice, unless there are very many */
#define CHUNK_ROWS 4096

void
idem__saved_put_row(const struct row *row, uint8_t *out)
{
    idem__put64(out, row->tag);
    idem__put32(out + 8, row->place);
    idem__put32(out + 12, row->size);
    idem__put32(out + 16, row->drop_s);
    idem__put32(out + 20, row->old_back);
    idem__put32(out + 24, row->old_place);
}

static void
put_head(const struct saved_head *head, uint8_t *out)
{
    memset(out, 0, SAVED_HEAD_LEN);
    memcpy(out, magic, sizeof(magic));
    idem__put32(out + 8, SAVED_VERSION);
    idem__put32(out + 12, SAVED_ROW_LEN);
    idem__put64(out + 16, head->id);
    idem__put64(out + 24, head->salt);
    idem__put64(out + 32, head->end);
    idem__put64(out + 40, head->next_batch);
    idem__put64(out + 48, (uint64_t)head->time_us);
    idem__put64(out + 56, head->rows);
    idem__put64(out + 64, head->sum);
    idem__put32(out + 72, head->bits);
    idem__put64(out + HEAD_SUM_AT,
                XXH3_64bits_withSeed(out, HEAD_SUM_AT, head->salt));
}

/* ---- sorting rows into slices ---- */

struct rows_in {
    const struct idem_io *io;
    const uint8_t *rows; /* NULL: read them from the file */
    int fd;
    uint8_t *chunk;
};

/* Get `count` rows from `first` on. */
static int
get_rows(struct rows_in *in, uint64_t first, uint64_t count,
         const uint8_t **rows)
{
    size_t len = (size_t)count * SAVED_ROW_LEN, got = 0;
    int error;

    if (in->rows) {
        *rows = in->rows + first * SAVED_ROW_LEN;
        return 0;
    }
    *rows = in->chunk;
    error = idem__io_read(in->io, in->fd, in->chunk, len,
                          SAVED_HEAD_LEN + first * SAVED_ROW_LEN, &got);
    return error ? error : got == len ? 0 : EIO;
}

static uint64_t
chunk_len(const struct saved_head *head, uint64_t first)
{
    return head->rows - first < CHUNK_ROWS ? head->rows - first : CHUNK_ROWS;
}

/* Count the rows of each slice: slice n has counts[n + 1] - counts[n]. */
static int
count_rows(struct rows_in *in, const struct saved_head *head, uint64_t *counts)
{
    const uint8_t *rows;
    int error = 0;

    for (uint64_t at = 0; at < head->rows && !error; at += CHUNK_ROWS) {
        uint64_t count = chunk_len(head, at);

        error = get_rows(in, at, count, &rows);
        for (uint64_t i = 0; i < count && !error; i++)
            counts[tag_slice(idem__get64(rows + i * SAVED_ROW_LEN),
                             head->bits) +
                   1]++;
    }
    for (uint64_t n = 0; n < UINT64_C(1) << head->bits; n++)
        counts[n + 1] += counts[n];
    return error;
}

/* Copy each row to its slice. next[n] is the place of slice n's next row. */
static int
spread_rows(struct rows_in *in, const struct saved_head *head, uint64_t *next,
            uint8_t *out)
{
    const uint8_t *rows;
    int error = 0;

    for (uint64_t at = 0; at < head->rows && !error; at += CHUNK_ROWS) {
        uint64_t count = chunk_len(head, at);

        error = get_rows(in, at, count, &rows);
        for (uint64_t i = 0; i < count && !error; i++) {
            const uint8_t *row = rows + i * SAVED_ROW_LEN;
            uint64_t slice = tag_slice(idem__get64(row), head->bits);

            if (next[slice] >= head->rows)
                return EIO; /* the file has changed since it was counted */
            memcpy(out + next[slice]++ * SAVED_ROW_LEN, row, SAVED_ROW_LEN);
        }
    }
    return error;
}

static void
put_table(struct saved_head *head, const uint64_t *firsts, uint8_t *bytes)
{
    uint8_t *table = bytes + SAVED_HEAD_LEN;
    const uint8_t *rows = bytes + saved_rows_at(head);

    for (uint64_t n = 0; n < UINT64_C(1) << head->bits; n++) {
        uint64_t count = firsts[n + 1] - firsts[n];

        idem__put64(table + n * SAVED_SLICE_LEN, firsts[n]);
        idem__put64(table + n * SAVED_SLICE_LEN + 8,
                    XXH3_64bits_withSeed(rows + firsts[n] * SAVED_ROW_LEN,
                                         count * SAVED_ROW_LEN, head->salt));
    }
    head->sum = XXH3_64bits_withSeed(
        table, (size_t)SAVED_SLICE_LEN << head->bits, head->salt);
}

size_t
idem__saved_plan(struct saved_head *head)
{
    head->bits = 0;
    while (head->bits < SAVED_MAX_BITS && head->rows >> head->bits > SLICE_ROWS)
        head->bits++;
    return (size_t)(saved_rows_at(head) + head->rows * SAVED_ROW_LEN);
}

int
idem__saved_make(const struct idem_io *io, struct saved_head *head,
                 const uint8_t *rows, int fd, uint8_t *out)
{
    struct rows_in in = {.io = io, .rows = rows, .fd = fd};
    size_t slices = (size_t)1 << head->bits;
    uint64_t *firsts = calloc(slices + 1, sizeof(*firsts));
    uint64_t *next = malloc(slices * sizeof(*next));
    int error = ENOMEM;

    if (!rows)
        in.chunk = malloc((size_t)CHUNK_ROWS * SAVED_ROW_LEN);
    if (firsts && next && (rows || in.chunk))
        error = count_rows(&in, head, firsts);
    if (!error) {
        memcpy(next, firsts, slices * sizeof(*next));
        error = spread_rows(&in, head, next, out + saved_rows_at(head));
    }
    if (!error) {
        put_table(head, firsts, out);
        put_head(head, out);
    }
    free(in.chunk);
    free(next);
    free(firsts);
    return error;
}

int
idem__saved_write(const struct idem_io *io, int fd,
                  const struct saved_head *head, const uint8_t *bytes)
{
    size_t len = (size_t)(saved_rows_at(head) + head->rows * SAVED_ROW_LEN);
    int error = idem__io_write(io, fd, bytes + SAVED_HEAD_LEN,
                               len - SAVED_HEAD_LEN, SAVED_HEAD_LEN);

    return error ? error : idem__io_write(io, fd, bytes, SAVED_HEAD_LEN, 0);
}

/* The memory is mapped, so that it is given back at once. */
static int
sort_file(const struct idem_io *io, struct saved_job *job)
{
    size_t len = idem__saved_plan(&job->head);
    uint8_t *bytes = mmap(NULL, len, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    int error;

    if (bytes == MAP_FAILED)
        return ENOMEM;
    error = idem__saved_make(io, &job->head, NULL, job->fd, bytes);
    if (!error)
        error = idem__saved_write(io, job->fd, &job->head, bytes);
    munmap(bytes, len);
    return error;
}

void
idem__saved_do(const struct idem_io *io, int dir_fd, struct saved_job *job)
{
    struct journal_name name = idem__segment_name(job->head.id, "idx");

    if (sort_file(io, job))
        (void)idem__io_unlink(io, dir_fd, name.text);
    idem__io_close(io, job->fd);
    free(job);
}

/* ---- the rows of the segment that is being written ---- */

/* Close the file and delete it, if there is one. */
static void
drop_file(struct journal *self)
{
    struct row_log *log = &self->row_log;
    struct journal_name name = idem__segment_name(log->id, "idx");

    if (log->open) {
        idem__io_close(self->io, log->fd);
        (void)idem__io_unlink(self->io, self->dir_fd, name.text);
    }
    log->open = false;
    log->written = log->count = 0;
}

void
idem__saved_start(struct journal *self, const struct segment *segment)
{
    drop_file(self);
    self->row_log.id = segment->head.id;
    self->row_log.broken = false;
}

void
idem__saved_clear(struct journal *self)
{
    drop_file(self);
    free(self->row_log.rows);
    memset(&self->row_log, 0, sizeof(self->row_log));
}

/* Nothing is saved for this segment. */
static void
break_log(struct journal *self)
{
    drop_file(self);
    self->row_log.broken = true;
}

static int
start_file(struct journal *self)
{
    struct row_log *log = &self->row_log;
    struct journal_name name = idem__segment_name(log->id, "idx");
    int error = idem__io_open(self->io, self->dir_fd, name.text,
                              O_RDWR | O_CREAT | O_TRUNC, &log->fd);

    log->open = !error;
    return error;
}

/* Write the first rows, and remove them from memory. */
static void
write_rows(struct journal *self, size_t count)
{
    struct row_log *log = &self->row_log;
    uint64_t at = SAVED_HEAD_LEN + log->written * SAVED_ROW_LEN;
    size_t len = count * SAVED_ROW_LEN;
    uint8_t *bytes = malloc(len + 1);
    int error = bytes ? 0 : ENOMEM;

    if (!error && !log->open)
        error = start_file(self);
    if (!error) {
        for (size_t i = 0; i < count; i++)
            idem__saved_put_row(&log->rows[i], bytes + i * SAVED_ROW_LEN);
        error = idem__io_write(self->io, log->fd, bytes, len, at);
    }
    free(bytes);
    if (error) {
        break_log(self);
        return;
    }
    log->written += count;
    log->count -= count;
    if (log->count > 0)
        memmove(log->rows, log->rows + count, log->count * sizeof(*log->rows));
}

/* Remove the rows that were replaced. */
static void
pack_rows(struct row_log *log)
{
    size_t kept = 0;

    for (size_t i = 0; i < log->count; i++) {
        if (log->rows[i].size != 0)
            log->rows[kept++] = log->rows[i];
    }
    log->count = kept;
}

static bool
make_room(struct journal *self)
{
    struct row_log *log = &self->row_log;
    size_t room = log->room ? log->room * 2 : 1024;
    struct row *more;

    if (log->room == ROWS_KEPT) {
        pack_rows(log);
        if (log->count > ROWS_KEPT / 2)
            write_rows(self, ROWS_KEPT / 2);
        return !log->broken;
    }
    more = realloc(log->rows, room * sizeof(*more));
    if (!more) {
        break_log(self);
        return false;
    }
    log->rows = more;
    log->room = room;
    return true;
}

/* The row of the entry at this place; NULL: it is not in memory. */
static struct row *
find_row(struct row_log *log, uint32_t place)
{
    size_t low = 0, high = log->count;

    while (low < high) {
        size_t middle = low + (high - low) / 2;

        if (log->rows[middle].place < place)
            low = middle + 1;
        else
            high = middle;
    }
    return low < log->count && log->rows[low].place == place ? &log->rows[low]
                                                             : NULL;
}

void
idem__saved_add(struct journal *self, const struct row *given)
{
    struct row_log *log = &self->row_log;
    struct row row = *given, *old;

    if (log->broken || (log->count == log->room && !make_room(self)))
        return;
    old = row.old_back == 0 ? find_row(log, row.old_place) : NULL;
    if (old) { /* the row of what that one replaced stays */
        row.old_back = old->old_back;
        row.old_place = old->old_place;
        old->size = 0;
    }
    log->rows[log->count++] = row;
}

void
idem__saved_finish(struct journal *self, struct segment *segment)
{
    struct row_log *log = &self->row_log;
    struct saved_job *job;

    if (log->id != segment->head.id)
        return; /* it is already saved */
    pack_rows(log);
    if (!log->broken)
        write_rows(self, log->count);
    job = log->broken ? NULL : calloc(1, sizeof(*job));
    if (!log->broken && !job)
        break_log(self);
    if (job) {
        job->fd = log->fd;
        job->head = (struct saved_head){.id = segment->head.id,
                                        .salt = segment->head.salt,
                                        .end = segment->end,
                                        .next_batch = self->next_batch,
                                        .time_us = self->persisted_us,
                                        .rows = log->written};
        segment->saved_len = idem__saved_plan(&job->head);
        log->open = false;
        log->written = 0;
        idem__helper_save(self, job);
    }
    log->id = 0;
}

/* ---- reading ---- */

bool
idem__saved_head(const uint8_t *bytes, uint64_t file_len,
                 const struct segment *segment, struct saved_head *head)
{
    if (file_len < SAVED_HEAD_LEN || file_len >= SEGMENT_MAX_LEN ||
        memcmp(bytes, magic, sizeof(magic)) != 0 ||
        idem__get32(bytes + 8) != SAVED_VERSION ||
        idem__get32(bytes + 12) != SAVED_ROW_LEN)
        return false;
    head->id = idem__get64(bytes + 16);
    head->salt = idem__get64(bytes + 24);
    head->end = idem__get64(bytes + 32);
    head->next_batch = idem__get64(bytes + 40);
    head->time_us = (int64_t)idem__get64(bytes + 48);
    head->rows = idem__get64(bytes + 56);
    head->sum = idem__get64(bytes + 64);
    head->bits = idem__get32(bytes + 72);
    return head->id == segment->head.id && head->salt == segment->head.salt &&
           head->end >= SEGMENT_HEAD_LEN && head->end <= segment->file_len &&
           head->bits <= SAVED_MAX_BITS && idem__get32(bytes + 76) == 0 &&
           head->rows < SEGMENT_MAX_LEN / SAVED_ROW_LEN &&
           file_len == saved_rows_at(head) + head->rows * SAVED_ROW_LEN &&
           XXH3_64bits_withSeed(bytes, HEAD_SUM_AT, head->salt) ==
               idem__get64(bytes + HEAD_SUM_AT);
}

uint64_t
idem__saved_first(const uint8_t *bytes, const struct saved_head *head,
                  uint64_t slice)
{
    return slice >> head->bits
               ? head->rows
               : idem__get64(bytes + SAVED_HEAD_LEN + slice * SAVED_SLICE_LEN);
}

bool
idem__saved_table(const uint8_t *bytes, const struct saved_head *head)
{
    uint64_t slices = UINT64_C(1) << head->bits;

    if (XXH3_64bits_withSeed(bytes + SAVED_HEAD_LEN,
                             (size_t)slices * SAVED_SLICE_LEN,
                             head->salt) != head->sum ||
        idem__saved_first(bytes, head, 0) != 0)
        return false;
    for (uint64_t n = 0; n < slices; n++) {
        if (idem__saved_first(bytes, head, n) >
            idem__saved_first(bytes, head, n + 1))
            return false;
    }
    return true;
}

bool
idem__saved_row(const uint8_t *in, const struct saved_head *head,
                struct row *row)
{
    uint64_t at, len;

    row->tag = idem__get64(in);
    row->place = idem__get32(in + 8);
    row->size = idem__get32(in + 12);
    row->drop_s = idem__get32(in + 16);
    row->old_back = idem__get32(in + 20);
    row->old_place = idem__get32(in + 24);
    at = (uint64_t)row->place * ENTRY_ALIGN;
    len = (uint64_t)(row->size & ~ROW_FLAGS) * 8;
    return (row->size & ROW_FLAGS) != ROW_FLAGS && at >= SEGMENT_HEAD_LEN &&
           len >= ENTRY_HEAD_LEN && at + len <= head->end;
}

bool
idem__saved_slice(const uint8_t *bytes, const struct saved_head *head,
                  uint64_t slice, const uint8_t *rows)
{
    uint64_t count = idem__saved_first(bytes, head, slice + 1) -
                     idem__saved_first(bytes, head, slice);
    const uint8_t *place = bytes + SAVED_HEAD_LEN + slice * SAVED_SLICE_LEN;
    struct row row;

    if (XXH3_64bits_withSeed(rows, count * SAVED_ROW_LEN, head->salt) !=
        idem__get64(place + 8))
        return false;
    for (uint64_t i = 0; i < count; i++) {
        if (!idem__saved_row(rows + i * SAVED_ROW_LEN, head, &row) ||
            tag_slice(row.tag, head->bits) != slice)
            return false;
    }
    return true;
}

bool
idem__saved_check(const uint8_t *bytes, size_t len,
                  const struct segment *segment, struct saved_head *head)
{
    bool right = len >= SAVED_HEAD_LEN &&
                 idem__saved_head(bytes, len, segment, head) &&
                 idem__saved_table(bytes, head);

    for (uint64_t n = 0; right && n < UINT64_C(1) << head->bits; n++)
        right = idem__saved_slice(bytes, head, n,
                                  bytes + saved_rows_at(head) +
                                      idem__saved_first(bytes, head, n) *
                                          SAVED_ROW_LEN);
    return right;
}
