/*
 * journal_fuzz.c - fuzzes the reading of segments and saved indexes.
 *
 * The first byte selects which one, and whether checksums are corrected first,
 * so that the code behind them is reached too. The reader must never read
 * outside the file, never go backwards, and never trust more than it has
 * checked.
 */
#include "journal.h"

#include "../../base/le.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

struct file {
    const uint8_t *data;
    size_t len;
};

static ssize_t
file_pread(void *arg, int fd, void *data, size_t len, off_t at)
{
    const struct file *file = arg;

    (void)fd;
    if ((size_t)at >= file->len)
        return 0;
    if (len > file->len - (size_t)at)
        len = file->len - (size_t)at;
    memcpy(data, file->data + at, len);
    return (ssize_t)len;
}

/* Correct the checksums of entries, as far as their lengths allow. */
static void
fix_entries(uint8_t *bytes, size_t len, uint64_t salt)
{
    size_t at = SEGMENT_HEAD_LEN;

    while (at + ENTRY_HEAD_LEN <= len) {
        uint32_t body_len = idem__get32(bytes + at + 8);
        struct entry_head head = {.body_len = body_len};

        if (body_len > len || entry_len(body_len) > len - at)
            return;
        head.kind = (uint8_t)(1 + bytes[at + 12] % 3);
        head.flags = bytes[at + 13] & ENTRY_ALL_FLAGS;
        head.batch = idem__get64(bytes + at + 16);
        head.time_us = (int64_t)idem__get64(bytes + at + 24);
        head.rev = head.kind == ENTRY_RECORD ? idem__get64(bytes + at + 32) : 0;
        head.prev = idem__get64(bytes + at + 40);
        head.drop_at = (int64_t)idem__get64(bytes + at + 48);
        memcpy(head.key, bytes + at + 56, IDEM_KEY_LEN);
        idem__entry_put(&head, salt, bytes + at);
        at += (size_t)entry_len(body_len);
    }
}

static void
read_segment(uint8_t *bytes, size_t len, bool fix)
{
    struct file file = {bytes, len};
    struct idem_io io = idem__system_io;
    struct segment_head head = {.id = 1, .salt = 7};
    struct segment_walk walk;
    bool found = true;

    if (len < SEGMENT_HEAD_LEN)
        return;
    if (fix) {
        head.first_batch = idem__get64(bytes + 48);
        idem__segment_head_put(&head, bytes);
        fix_entries(bytes, len, head.salt);
    }
    if (idem__segment_head_get(bytes, &head, NULL) != IDEM_OK)
        return;
    io.pread = file_pread;
    io.arg = &file;
    idem__walk_init(&walk, &io, 0, &head, len);
    while (found) {
        struct entry_head entry;
        struct idem_record record;
        const uint8_t *body;
        uint64_t at = walk.at;

        if (idem__walk_next(&walk, &entry, &body) == WALK_ENTRY) {
            if (walk.at <= at || walk.at > len ||
                entry_len(entry.body_len) != walk.at - at)
                abort();
            (void)idem__decode(
                (struct idem_bytes){body + ENTRY_HEAD_LEN, entry.body_len},
                &record, NULL);
            continue;
        }
        if (idem__walk_find(&walk, 0, &found) != 0)
            abort();
        if (found && walk.at == at) /* the batch did not fit: skip it */
            walk.at += ENTRY_ALIGN;
        if (walk.at > len)
            break;
    }
    idem__walk_clear(&walk);
}

/* Make the checksums of a saved index right, so that more of it is read. */
static void
fix_saved(uint8_t *bytes, size_t len, uint64_t salt)
{
    struct saved_head head = {.bits = idem__get32(bytes + 72) % 6};
    uint64_t rows_at = saved_rows_at(&head);

    idem__put32(bytes + 72, head.bits);
    idem__put32(bytes + 76, 0);
    if (len >= rows_at) {
        uint8_t *table = bytes + SAVED_HEAD_LEN;

        head.rows = (len - rows_at) / SAVED_ROW_LEN;
        idem__put64(bytes + 56, head.rows);
        for (uint64_t n = 0; n < UINT64_C(1) << head.bits; n++) {
            uint64_t from = idem__saved_first(bytes, &head, n);
            uint64_t to = idem__saved_first(bytes, &head, n + 1);

            if (from <= to && to <= head.rows)
                idem__put64(
                    table + n * SAVED_SLICE_LEN + 8,
                    XXH3_64bits_withSeed(bytes + rows_at + from * SAVED_ROW_LEN,
                                         (to - from) * SAVED_ROW_LEN, salt));
        }
        idem__put64(bytes + 64,
                    XXH3_64bits_withSeed(
                        table, (size_t)SAVED_SLICE_LEN << head.bits, salt));
    }
    idem__put64(bytes + 80, XXH3_64bits_withSeed(bytes, 80, salt));
}

static void
read_saved(uint8_t *bytes, size_t len, bool fix)
{
    struct segment segment = {.file_len = UINT64_C(1) << 20};
    struct saved_head head;

    if (len < SAVED_HEAD_LEN)
        return;
    segment.head.id = idem__get64(bytes + 16);
    segment.head.salt = idem__get64(bytes + 24);
    if (fix)
        fix_saved(bytes, len, segment.head.salt);
    if (!idem__saved_check(bytes, len, &segment, &head))
        return;
    for (uint64_t i = 0; i < head.rows; i++) {
        struct row row;

        if (!idem__saved_row(bytes + saved_rows_at(&head) + i * SAVED_ROW_LEN,
                             &head, &row) ||
            (uint64_t)row.place * 8 > head.end)
            abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    uint8_t *bytes;

    if (len < 2)
        return 0;
    bytes = malloc(len - 1);
    memcpy(bytes, data + 1, len - 1);
    if (data[0] & 2)
        read_saved(bytes, len - 1, data[0] & 1);
    else
        read_segment(bytes, len - 1, data[0] & 1);
    free(bytes);
    return 0;
}
