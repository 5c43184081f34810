/*
 * columns_fuzz.c - fuzzes the reading of rows. Any row must be refused, or be a
 * record that converts back to the same row and that every other store can
 * keep.
 */
#include "columns.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

/* The next bytes of the input; fewer at the end. */
static struct idem_bytes
take(const uint8_t **data, size_t *len, size_t want)
{
    struct idem_bytes bytes = {*data, want < *len ? want : *len};

    *data += bytes.len;
    *len -= bytes.len;
    return bytes;
}

static int64_t
take_number(const uint8_t **data, size_t *len)
{
    struct idem_bytes width = take(data, len, 1);
    struct idem_bytes bytes =
        take(data, len, width.len ? *(const uint8_t *)width.data % 9 : 0);
    int64_t number = 0;

    memcpy(&number, bytes.data, bytes.len);
    return number;
}

static void
check(const struct idem_cell *cells, const struct idem_record *record)
{
    struct idem_cell again[IDEM_COLUMN_COUNT];
    struct idem_record decoded;
    size_t len = idem__encoded_len(record);
    uint8_t *bytes = malloc(len);

    if (!bytes)
        return;
    idem__encode(record, bytes);
    if (idem__decode((struct idem_bytes){bytes, len}, &decoded, NULL) !=
        IDEM_OK)
        abort();
    free(bytes);
    idem__record_to_cells(cells[IDEM_COLUMN_KEY].bytes.data, record, again);
    for (int i = IDEM_COLUMN_TYPE; i < IDEM_COLUMN_COUNT; i++) {
        if (idem__column_types[i] != IDEM_COLUMN_BYTES &&
            again[i].number != cells[i].number)
            abort();
    }
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    static const uint8_t key[IDEM_KEY_LEN];
    struct idem_cell cells[IDEM_COLUMN_COUNT] = {
        [IDEM_COLUMN_KEY] = {.bytes = {key, sizeof(key)}}};
    struct idem_record record;
    struct idem_error err;

    for (int i = IDEM_COLUMN_TYPE; i < IDEM_COLUMN_COUNT; i++) {
        if (idem__column_types[i] == IDEM_COLUMN_BYTES)
            cells[i].bytes =
                take(&data, &len, (size_t)take_number(&data, &len) % 300);
        else
            cells[i].number = take_number(&data, &len);
        cells[i].null = len > 0 && *data == 0xff;
    }
    if (idem__cells_to_record(cells, &record, &err) == IDEM_OK)
        check(cells, &record);
    return 0;
}
