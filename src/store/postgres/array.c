/*
 * array.c - sends many rows in one statement: each parameter is an array, in
 * the binary format of PostgreSQL's array_recv.
 *
 *   dimensions (1), has nulls, element type, length, lower bound (1)
 *   then for each element: its length (-1: null) and its bytes
 *
 * A record is one element, a row of idem.idem_record, as record_recv reads it:
 *
 *   number of columns, then for each: its type, its length (-1: null), its
 * bytes
 *
 * (With one array per column the server needs twice as much work per row.) All
 * numbers in these headers are 4 bytes, big-endian. The length is filled in
 * when sending.
 */
#include "postgres.h"

#include <string.h>

#define HEAD_LEN 20
#define ARRAY_MAX ((size_t)1000 * 1000 * 1000)

static void
put32(uint8_t *at, uint32_t value)
{
    for (int i = 0; i < 4; i++)
        at[i] = (uint8_t)(value >> (24 - 8 * i));
}

void
idem__postgres_params_start(struct postgres_params *params, size_t count)
{
    params->count = count;
    params->rows = 0;
    params->failed = false;
    for (size_t i = 0; i < count; i++) {
        if (!params->arrays[i].cap)
            idem_buf_init(&params->arrays[i], ARRAY_MAX);
        idem_buf_reset(&params->arrays[i]);
    }
}

static bool
add32(struct idem_buf *buf, uint32_t value)
{
    uint8_t bytes[4];

    put32(bytes, value);
    return idem_buf_add(buf, bytes, sizeof(bytes));
}

/* The array, with its header written if this is the first element. */
static struct idem_buf *
array_of(struct postgres_params *params, size_t at, uint32_t type)
{
    struct idem_buf *buf = &params->arrays[at];
    uint8_t head[HEAD_LEN];

    if (buf->len == 0) {
        put32(head, 1);
        put32(head + 4, 0);
        put32(head + 8, type);
        put32(head + 12, 0);
        put32(head + 16, 1);
        params->failed |= !idem_buf_add(buf, head, sizeof(head));
    }
    return buf;
}

static bool
add_number(struct idem_buf *buf, uint32_t type, int64_t value)
{
    uint32_t len = type == POSTGRES_INT2 ? 2 : 8;
    uint8_t bytes[4 + 8];

    put32(bytes, len);
    for (uint32_t i = 0; i < len; i++)
        bytes[4 + i] = (uint8_t)((uint64_t)value >> (8 * (len - 1 - i)));
    return idem_buf_add(buf, bytes, 4 + len);
}

static bool
add_bytes(struct idem_buf *buf, const struct idem_bytes *bytes)
{
    return add32(buf, (uint32_t)bytes->len) &&
           (bytes->len == 0 || idem_buf_add(buf, bytes->data, bytes->len));
}

void
idem__postgres_add_number(struct postgres_params *params, size_t at,
                          enum postgres_type type, int64_t value)
{
    params->failed |= !add_number(array_of(params, at, type), type, value);
}

void
idem__postgres_add_key(struct postgres_params *params, size_t at,
                       const uint8_t *key)
{
    struct idem_bytes bytes = {key, IDEM_KEY_LEN};

    params->failed |= !add_bytes(array_of(params, at, POSTGRES_BYTEA), &bytes);
}

static bool
add_cell(struct idem_buf *buf, enum idem_column_type is,
         const struct idem_cell *cell)
{
    static const uint32_t types[] = {[IDEM_COLUMN_SMALL] = POSTGRES_INT2,
                                     [IDEM_COLUMN_BIG] = POSTGRES_INT8,
                                     [IDEM_COLUMN_BYTES] = POSTGRES_BYTEA};

    if (!add32(buf, types[is]))
        return false;
    if (cell->null)
        return add32(buf, UINT32_MAX);
    return is == IDEM_COLUMN_BYTES ? add_bytes(buf, &cell->bytes)
                                   : add_number(buf, types[is], cell->number);
}

void
idem__postgres_add_record(struct postgres_params *params, uint32_t row_type,
                          const uint8_t *key, const struct idem_record *record)
{
    struct idem_buf *buf = array_of(params, 0, row_type);
    struct idem_cell cells[IDEM_COLUMN_COUNT];
    size_t start = buf->len;
    bool added = add32(buf, 0) && add32(buf, IDEM_COLUMN_COUNT);

    idem__record_to_cells(key, record, cells);
    for (size_t i = 0; i < IDEM_COLUMN_COUNT && added; i++)
        added = add_cell(buf, idem__column_types[i], &cells[i]);
    params->failed |= !added;
    if (added)
        put32(buf->data + start, (uint32_t)(buf->len - start - 4));
    params->rows++;
}

bool
idem__postgres_send(struct postgres_store *self,
                    enum postgres_statement statement,
                    struct postgres_params *params)
{
    const char *values[POSTGRES_PARAMS_MAX];
    int lengths[POSTGRES_PARAMS_MAX], formats[POSTGRES_PARAMS_MAX];

    if (params->failed)
        return false;
    for (size_t i = 0; i < params->count; i++) {
        struct idem_buf *buf = &params->arrays[i];

        put32(buf->data + 12, (uint32_t)params->rows);
        values[i] = (const char *)buf->data;
        lengths[i] = (int)buf->len;
        formats[i] = 1;
    }
    return PQsendQueryPrepared(self->conn, idem__postgres_names[statement],
                               (int)params->count, values, lengths, formats,
                               1) == 1;
}

void
idem__postgres_params_clear(struct postgres_params *params)
{
    for (size_t i = 0; i < POSTGRES_PARAMS_MAX; i++)
        idem_buf_clear(&params->arrays[i]);
}

int64_t
idem__postgres_number(const PGresult *result, int row, int column)
{
    const uint8_t *at = (const uint8_t *)PQgetvalue(result, row, column);
    int len = PQgetlength(result, row, column);
    uint64_t value = 0;

    for (int i = 0; i < len && i < 8; i++)
        value = value << 8 | at[i];
    return len == 2 ? (int16_t)value : (int64_t)value;
}

void
idem__postgres_cells(const PGresult *result, int row, int first_column,
                     int columns, struct idem_cell cells[IDEM_COLUMN_COUNT])
{
    memset(cells, 0, IDEM_COLUMN_COUNT * sizeof(*cells));
    for (int i = 0; i < columns; i++) {
        int at = first_column + i;

        cells[i].null = PQgetisnull(result, row, at);
        if (idem__column_types[i] == IDEM_COLUMN_BYTES) {
            cells[i].bytes.data = PQgetvalue(result, row, at);
            cells[i].bytes.len = (size_t)PQgetlength(result, row, at);
        } else {
            cells[i].number = idem__postgres_number(result, row, at);
        }
    }
}
