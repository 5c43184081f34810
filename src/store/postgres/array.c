/*
 * array.c - many rows in one statement: each parameter is an array, in the
 * binary form that PostgreSQL's array_recv reads.
 *
 *   dimensions (1), has nulls, element type, length, lower bound (1)
 *   then for each element: its length (-1: null) and its bytes
 *
 * All numbers are 4 bytes, big-endian. The length is filled in when sending.
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

static void
add(struct postgres_params *params, size_t at, enum postgres_type type,
    const void *data, uint32_t len, bool null)
{
    struct idem_buf *buf = &params->arrays[at];
    uint8_t head[HEAD_LEN], prefix[4];

    if (buf->len == 0) {
        put32(head, 1);
        put32(head + 4, 1);
        put32(head + 8, (uint32_t)type);
        put32(head + 12, 0);
        put32(head + 16, 1);
        params->failed |= !idem_buf_add(buf, head, sizeof(head));
    }
    put32(prefix, null ? UINT32_MAX : len);
    params->failed |= !idem_buf_add(buf, prefix, sizeof(prefix));
    if (!null && len > 0)
        params->failed |= !idem_buf_add(buf, data, len);
}

void
idem__postgres_add_number(struct postgres_params *params, size_t at,
                          enum postgres_type type, int64_t value)
{
    uint32_t len = type == POSTGRES_INT2 ? 2 : 8;
    uint8_t bytes[8];

    for (uint32_t i = 0; i < len; i++)
        bytes[i] = (uint8_t)((uint64_t)value >> (8 * (len - 1 - i)));
    add(params, at, type, bytes, len, false);
}

void
idem__postgres_add_bytes(struct postgres_params *params, size_t at,
                         const struct idem_cell *cell)
{
    add(params, at, POSTGRES_BYTEA, cell->bytes.data, (uint32_t)cell->bytes.len,
        cell->null);
}

void
idem__postgres_add_record(struct postgres_params *params, const uint8_t *key,
                          const struct idem_record *record)
{
    struct idem_cell cells[IDEM_COLUMN_COUNT];

    idem__record_to_cells(key, record, cells);
    for (size_t i = 0; i < IDEM_COLUMN_COUNT; i++) {
        if (idem__column_types[i] == IDEM_COLUMN_BYTES)
            idem__postgres_add_bytes(params, i, &cells[i]);
        else
            idem__postgres_add_number(params, i,
                                      idem__column_types[i] == IDEM_COLUMN_SMALL
                                          ? POSTGRES_INT2
                                          : POSTGRES_INT8,
                                      cells[i].number);
    }
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
