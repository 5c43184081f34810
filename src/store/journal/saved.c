/*
 * saved.c - reads and writes saved index files, from which a segment's part of
 * the index can be loaded without reading its entries.
 *
 *   head, 80 bytes; a row of 28 bytes for each entry, in their order
 *
 * The rows are written while the segment is, a few thousand at a time, and the
 * head at last: until then it is zeros, and the file is not used. A row says
 * which entry its entry replaced. So when the rows are loaded in their order,
 * no key has to be read to find the slot to change.
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
#include <sys/stat.h>
#include <xxhash.h>

static const char magic[8] = {'i', 'd', 'e', 'm', 'i', 'd', 'x', '\n'};

#define HEAD_SUM_AT 72
#define ROWS_KEPT 16384 /* in memory */

static void
put_row(const struct row *row, uint8_t *out)
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
    idem__put64(out + HEAD_SUM_AT,
                XXH3_64bits_withSeed(out, HEAD_SUM_AT, head->salt));
}

/* Close the file; without `keep` it is deleted. */
static void
end_file(struct journal *self, bool keep)
{
    struct row_log *log = &self->row_log;
    struct journal_name name = idem__segment_name(log->id, "idx");

    if (log->sum) {
        idem__io_close(self->io, log->fd);
        if (!keep)
            (void)idem__io_unlink(self->io, self->dir_fd, name.text);
    }
    XXH3_freeState(log->sum);
    log->sum = NULL;
    log->written = log->count = 0;
}

void
idem__saved_start(struct journal *self, const struct segment *segment)
{
    end_file(self, false); /* of a segment that was not read to its end */
    self->row_log.id = segment->head.id;
    self->row_log.salt = segment->head.salt;
    self->row_log.broken = false;
}

void
idem__saved_clear(struct journal *self)
{
    end_file(self, false);
    free(self->row_log.rows);
    memset(&self->row_log, 0, sizeof(self->row_log));
}

/* Nothing is saved for this segment. */
static void
break_log(struct journal *self)
{
    end_file(self, false);
    self->row_log.broken = true;
}

static int
start_file(struct journal *self)
{
    struct row_log *log = &self->row_log;
    struct journal_name name = idem__segment_name(log->id, "idx");
    struct XXH3_state_s *sum = XXH3_createState();
    int error = sum ? idem__io_open(self->io, self->dir_fd, name.text,
                                    O_RDWR | O_CREAT | O_TRUNC, &log->fd)
                    : ENOMEM;

    if (error) {
        XXH3_freeState(sum);
        return error;
    }
    XXH3_64bits_reset_withSeed(sum, log->salt);
    log->sum = sum;
    return 0;
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

    if (!error && !log->sum)
        error = start_file(self);
    if (!error) {
        for (size_t i = 0; i < count; i++)
            put_row(&log->rows[i], bytes + i * SAVED_ROW_LEN);
        XXH3_64bits_update(log->sum, bytes, len);
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
    struct saved_head head = {.id = segment->head.id,
                              .salt = segment->head.salt,
                              .end = segment->end,
                              .next_batch = self->next_batch,
                              .time_us = self->persisted_us};
    uint8_t bytes[SAVED_HEAD_LEN];

    if (log->id != segment->head.id)
        return; /* it is already saved */
    pack_rows(log);
    if (!log->broken)
        write_rows(self, log->count);
    if (!log->broken) {
        bool kept;

        head.rows = log->written;
        head.sum = XXH3_64bits_digest(log->sum);
        put_head(&head, bytes);
        kept = idem__io_write(self->io, log->fd, bytes, sizeof(bytes), 0) == 0;
        if (kept)
            segment->saved_len = SAVED_HEAD_LEN + head.rows * SAVED_ROW_LEN;
        end_file(self, kept);
    }
    log->id = 0;
}

bool
idem__saved_check(const uint8_t *bytes, size_t len,
                  const struct segment *segment, struct saved_head *head)
{
    size_t body = len - SAVED_HEAD_LEN;

    if (len < SAVED_HEAD_LEN || memcmp(bytes, magic, sizeof(magic)) != 0 ||
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
    if (head->id != segment->head.id || head->salt != segment->head.salt ||
        head->end < SEGMENT_HEAD_LEN || head->end > segment->file_len ||
        body % SAVED_ROW_LEN != 0 || head->rows != body / SAVED_ROW_LEN)
        return false;
    return XXH3_64bits_withSeed(bytes, HEAD_SUM_AT, head->salt) ==
               idem__get64(bytes + HEAD_SUM_AT) &&
           XXH3_64bits_withSeed(bytes + SAVED_HEAD_LEN, body, head->salt) ==
               head->sum;
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

/* Read the whole file; NULL on failure. */
static uint8_t *
read_file(struct journal *self, uint64_t id, size_t *len)
{
    struct journal_name name = idem__segment_name(id, "idx");
    uint8_t *bytes = NULL;
    struct stat info;
    int fd = -1;

    if (idem__io_open(self->io, self->dir_fd, name.text, O_RDONLY, &fd))
        return NULL;
    if (fstat(fd, &info) == 0 && info.st_size > 0 &&
        (uint64_t)info.st_size < SEGMENT_MAX_LEN)
        bytes = malloc((size_t)info.st_size);
    if (bytes &&
        (idem__io_read(self->io, fd, bytes, (size_t)info.st_size, 0, len) ||
         *len != (size_t)info.st_size)) {
        free(bytes);
        bytes = NULL;
    }
    idem__io_close(self->io, fd);
    return bytes;
}

uint64_t
idem__saved_claim(struct journal *self, uint64_t id)
{
    struct journal_name name = idem__segment_name(id, "idx");
    uint64_t len = idem__folder_file_len(self, name.text);

    return len > SAVED_HEAD_LEN ? len / SAVED_ROW_LEN : 0;
}

#define AHEAD 16

static void
prefetch(const struct journal *self, const uint8_t *rows, uint64_t count,
         uint64_t row, enum index_step step)
{
    const struct journal_index *index = &self->index;

    if (row < count)
        idem__index_prefetch(
            index,
            idem__index_short_tag(index,
                                  idem__get64(rows + row * SAVED_ROW_LEN)),
            step);
}

static int
replay_rows(struct journal *self, struct segment *segment,
            const struct saved_head *head, const uint8_t *rows)
{
    for (uint64_t i = 0; i < head->rows; i++) {
        struct replay entry = {0};
        int error;

        prefetch(self, rows, head->rows, i + 2 * AHEAD, INDEX_BLOCKS);
        prefetch(self, rows, head->rows, i + AHEAD, INDEX_CELLS);
        idem__saved_row(rows + i * SAVED_ROW_LEN, head, &entry.row);
        error = idem__journal_replay(self, segment, &entry);
        if (error)
            return error;
    }
    return 0;
}

int
idem__saved_load(struct journal *self, struct segment *segment, uint64_t end,
                 bool *used)
{
    size_t len = 0;
    uint8_t *bytes = read_file(self, segment->head.id, &len);
    struct saved_head head;
    struct row row;
    int error = 0;

    *used = bytes && idem__saved_check(bytes, len, segment, &head) &&
            head.end == end;
    for (uint64_t i = 0; *used && i < head.rows; i++)
        *used = idem__saved_row(bytes + SAVED_HEAD_LEN + i * SAVED_ROW_LEN,
                                &head, &row);
    if (*used) {
        error = replay_rows(self, segment, &head, bytes + SAVED_HEAD_LEN);
        segment->end = end;
        segment->saved_len = len;
        if (head.time_us > self->persisted_us)
            self->persisted_us = head.time_us;
        if (head.next_batch > self->next_batch)
            self->next_batch = head.next_batch;
    }
    free(bytes);
    return error;
}
