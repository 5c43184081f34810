/*
 * saved.c - reads and writes saved index files, from which a segment's part of
 * the index can be loaded without reading its entries.
 *
 *   head, 64 bytes; a row of 40 bytes for each entry that no later entry of
 *   the same segment replaced; XXH3-64 of all that, seeded with the salt
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

#define SUM_LEN 8
#define PART_ROWS 8192

void
idem__rows_add(struct row_log *log, const struct row *row)
{
    if (log->broken)
        return;
    if (log->count == log->room) {
        size_t room = log->room ? log->room * 2 : 1024;
        struct row *more = realloc(log->rows, room * sizeof(*more));

        if (!more) {
            log->broken = true;
            return;
        }
        log->rows = more;
        log->room = room;
    }
    log->rows[log->count++] = *row;
}

void
idem__rows_replaced(struct row_log *log, uint32_t place)
{
    size_t at = place / 8;

    if (log->broken)
        return;
    if (at >= log->replaced_len) {
        size_t len = log->replaced_len ? log->replaced_len : 4096;
        uint8_t *more;

        while (len <= at)
            len *= 2;
        more = realloc(log->replaced, len);
        if (!more) {
            log->broken = true;
            return;
        }
        memset(more + log->replaced_len, 0, len - log->replaced_len);
        log->replaced = more;
        log->replaced_len = len;
    }
    log->replaced[at] |= (uint8_t)(1 << place % 8);
    log->replaced_count++;
}

static bool
was_replaced(const struct row_log *log, uint32_t place)
{
    size_t at = place / 8;

    return at < log->replaced_len && (log->replaced[at] >> place % 8 & 1);
}

void
idem__rows_reset(struct row_log *log)
{
    log->count = log->replaced_count = 0;
    log->broken = false;
    if (log->replaced)
        memset(log->replaced, 0, log->replaced_len);
}

void
idem__rows_clear(struct row_log *log)
{
    free(log->rows);
    free(log->replaced);
    memset(log, 0, sizeof(*log));
}

static void
put_row(const struct row *row, uint8_t *out)
{
    idem__put64(out, row->tag);
    idem__put64(out + 8, row->rev);
    idem__put64(out + 16, row->prev);
    idem__put32(out + 24, row->place);
    idem__put32(out + 28, row->size);
    idem__put32(out + 32, row->drop_s);
    idem__put32(out + 36, row->kind);
}

static void
put_head(const struct saved_head *head, uint8_t *out)
{
    memset(out, 0, SAVED_HEAD_LEN);
    memcpy(out, magic, sizeof(magic));
    idem__put32(out + 8, JOURNAL_VERSION);
    idem__put32(out + 12, SAVED_ROW_LEN);
    idem__put64(out + 16, head->id);
    idem__put64(out + 24, head->salt);
    idem__put64(out + 32, head->end);
    idem__put64(out + 40, head->next_batch);
    idem__put64(out + 48, (uint64_t)head->time_us);
    idem__put64(out + 56, head->rows);
}

/* Write the rows in parts, through one buffer and with one running checksum. */
static int
write_all(const struct idem_io *io, int fd, const struct saved_head *head,
          const struct row_log *log, uint8_t *part, XXH3_state_t *sum)
{
    uint64_t at = SAVED_HEAD_LEN;
    size_t i = 0;
    int error;

    put_head(head, part);
    XXH3_64bits_reset_withSeed(sum, head->salt);
    XXH3_64bits_update(sum, part, SAVED_HEAD_LEN);
    error = idem__io_write(io, fd, part, SAVED_HEAD_LEN, 0);
    while (!error && i < log->count) {
        size_t len = 0;

        for (; i < log->count && len < PART_ROWS * SAVED_ROW_LEN; i++) {
            if (was_replaced(log, log->rows[i].place))
                continue;
            put_row(&log->rows[i], part + len);
            len += SAVED_ROW_LEN;
        }
        XXH3_64bits_update(sum, part, len);
        error = idem__io_write(io, fd, part, len, at);
        at += len;
    }
    if (error)
        return error;
    idem__put64(part, XXH3_64bits_digest(sum));
    return idem__io_write(io, fd, part, SUM_LEN, at);
}

void
idem__saved_write(const struct idem_io *io, int dir_fd,
                  const struct saved_head *given, const struct row_log *log)
{
    struct journal_name name = idem__segment_name(given->id, "idx");
    struct saved_head head = *given;
    uint8_t *part = malloc(PART_ROWS * SAVED_ROW_LEN);
    XXH3_state_t *sum = XXH3_createState();
    int fd = -1, error = ENOMEM;

    head.rows = 0;
    for (size_t i = 0; i < log->count; i++)
        head.rows += !was_replaced(log, log->rows[i].place);
    if (part && sum && !log->broken)
        error = idem__io_open(io, dir_fd, name.text, O_RDWR | O_CREAT | O_TRUNC,
                              &fd);
    if (!error)
        error = write_all(io, fd, &head, log, part, sum);
    idem__io_close(io, fd);
    if (error && fd >= 0)
        (void)idem__io_unlink(io, dir_fd, name.text);
    XXH3_freeState(sum);
    free(part);
}

bool
idem__saved_check(const uint8_t *bytes, size_t len,
                  const struct segment *segment, struct saved_head *head)
{
    size_t body = len - SAVED_HEAD_LEN - SUM_LEN;

    if (len < SAVED_HEAD_LEN + SUM_LEN ||
        memcmp(bytes, magic, sizeof(magic)) != 0 ||
        idem__get32(bytes + 8) != JOURNAL_VERSION ||
        idem__get32(bytes + 12) != SAVED_ROW_LEN)
        return false;
    head->id = idem__get64(bytes + 16);
    head->salt = idem__get64(bytes + 24);
    head->end = idem__get64(bytes + 32);
    head->next_batch = idem__get64(bytes + 40);
    head->time_us = (int64_t)idem__get64(bytes + 48);
    head->rows = idem__get64(bytes + 56);
    if (head->id != segment->head.id || head->salt != segment->head.salt ||
        head->end < SEGMENT_HEAD_LEN || head->end > segment->file_len ||
        body % SAVED_ROW_LEN != 0 || head->rows != body / SAVED_ROW_LEN)
        return false;
    return XXH3_64bits_withSeed(bytes, len - SUM_LEN, head->salt) ==
           idem__get64(bytes + len - SUM_LEN);
}

bool
idem__saved_row(const uint8_t *in, const struct saved_head *head,
                struct row *row)
{
    uint64_t at, len;

    row->tag = idem__get64(in);
    row->rev = idem__get64(in + 8);
    row->prev = idem__get64(in + 16);
    row->place = idem__get32(in + 24);
    row->size = idem__get32(in + 28);
    row->drop_s = idem__get32(in + 32);
    row->kind = idem__get32(in + 36);
    at = (uint64_t)row->place * ENTRY_ALIGN;
    len = (uint64_t)(row->size & ~SLOT_EXECUTING) * 8;
    return (row->kind == ENTRY_RECORD ? row->rev != 0
                                      : row->kind == ENTRY_DELETE) &&
           at >= SEGMENT_HEAD_LEN && len >= ENTRY_HEAD_LEN &&
           at + len <= head->end;
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

static int
replay_rows(struct journal *self, struct segment *segment,
            const struct saved_head *head, const uint8_t *rows)
{
    for (uint64_t i = 0; i < head->rows; i++) {
        struct replay entry = {0};
        struct row row;
        int error;

        if (i + AHEAD < head->rows)
            idem__index_prefetch(
                &self->index, idem__get64(rows + (i + AHEAD) * SAVED_ROW_LEN) &
                                  self->index.tag_mask);
        idem__saved_row(rows + i * SAVED_ROW_LEN, head, &row);
        entry.kind = (uint8_t)row.kind;
        entry.prev = row.prev;
        entry.slot = (struct slot){
            .tag = row.tag & self->index.tag_mask,
            .rev = row.rev,
            .seg = (uint32_t)segment->head.id,
            .place = row.place,
            .drop_s = row.drop_s,
            .size = row.size,
        };
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
