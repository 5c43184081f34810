/*
 * columns.c - converts records to rows and back, and other code that the SQL
 * stores share.
 */
#include "columns.h"

#include "value.h"

#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RETRY_FIRST_US 50000
#define RETRY_MAX_US 1000000

const char *const idem__column_names[IDEM_COLUMN_COUNT] = {
#define X(name, word, type) word,
    IDEM_COLUMN_MAP(X)
#undef X
};

const enum idem_column_type idem__column_types[IDEM_COLUMN_COUNT] = {
#define X(name, word, type) IDEM_COLUMN_##type,
    IDEM_COLUMN_MAP(X)
#undef X
};

#define BUT_RESULT                                                             \
    "key_hash, type, state, mode, kind, flags, attempt, fence, rev, created, " \
    "updated, lease_until, expires, nonce, fingerprint, scope, id, subject"

const char idem__columns_but_result[] = BUT_RESULT;
const char idem__columns_all[] = BUT_RESULT ", result";

/* The files of sql/ are included in the library unchanged. */
#define SCRIPT(name, file)                                                     \
    __asm__(".pushsection .rodata\n"                                           \
            ".global " #name "\n.hidden " #name "\n" #name ":\n"               \
            ".incbin \"" file "\"\n.byte 0\n"                                  \
            ".popsection\n")

SCRIPT(idem__postgres_script, "sql/postgres.sql");
SCRIPT(idem__mysql_script, "sql/mysql.sql");
SCRIPT(idem__sqlite_script, "sql/sqlite.sql");

static struct idem_cell
number(int64_t value)
{
    return (struct idem_cell){.number = value};
}

static struct idem_cell
bytes(const void *data, size_t len)
{
    return (struct idem_cell){.bytes = {len > 0 ? data : "", len}};
}

void
idem__record_to_cells(const uint8_t *key, const struct idem_record *r,
                      struct idem_cell cells[IDEM_COLUMN_COUNT])
{
    cells[IDEM_COLUMN_KEY] = bytes(key, IDEM_KEY_LEN);
    cells[IDEM_COLUMN_TYPE] = number(r->type);
    cells[IDEM_COLUMN_STATE] = number(r->state);
    cells[IDEM_COLUMN_MODE] = number(r->mode);
    cells[IDEM_COLUMN_KIND] = number(r->kind);
    cells[IDEM_COLUMN_FLAGS] = number(r->flags);
    cells[IDEM_COLUMN_ATTEMPT] = number(r->attempt);
    cells[IDEM_COLUMN_FENCE] = number((int64_t)r->fence);
    cells[IDEM_COLUMN_REV] = number((int64_t)r->rev);
    cells[IDEM_COLUMN_CREATED] = number(r->created);
    cells[IDEM_COLUMN_UPDATED] = number(r->updated);
    cells[IDEM_COLUMN_LEASE_UNTIL] = number(r->lease_until);
    cells[IDEM_COLUMN_EXPIRES] = number(r->expires);
    cells[IDEM_COLUMN_NONCE] = bytes(r->nonce, IDEM_NONCE_LEN);
    cells[IDEM_COLUMN_FINGERPRINT] =
        r->flags & IDEM_FLAG_FINGERPRINT
            ? bytes(r->fingerprint, IDEM_FINGERPRINT_LEN)
            : (struct idem_cell){.null = true};
    cells[IDEM_COLUMN_SCOPE] = bytes(r->scope.data, r->scope.len);
    cells[IDEM_COLUMN_ID] = bytes(r->id.data, r->id.len);
    cells[IDEM_COLUMN_SUBJECT] = bytes(r->subject.data, r->subject.len);
    cells[IDEM_COLUMN_RESULT] = bytes(r->result.data, r->result.len);
}

static bool
copy_fixed(const struct idem_cell *cell, void *to, size_t len)
{
    if (cell->null || cell->bytes.len != len)
        return false;
    memcpy(to, cell->bytes.data, len);
    return true;
}

static struct idem_bytes
view(const struct idem_cell *cell)
{
    if (cell->null || cell->bytes.len == 0)
        return (struct idem_bytes){NULL, 0};
    return cell->bytes;
}

/* Check the range of small numbers, so that none is silently truncated. */
static bool
small_enough(const struct idem_cell *cells)
{
    for (int i = IDEM_COLUMN_TYPE; i <= IDEM_COLUMN_FLAGS; i++) {
        if (cells[i].null || cells[i].number < 0 || cells[i].number > 255)
            return false;
    }
    return cells[IDEM_COLUMN_ATTEMPT].number >= 0 &&
           cells[IDEM_COLUMN_ATTEMPT].number <= UINT32_MAX;
}

/* The error contains the key, so that the operator can find the row. */
static enum idem_status
damaged(const struct idem_cell *key, const char *flaw, struct idem_error *err)
{
    char hex[2 * IDEM_KEY_LEN + 1];
    size_t len = key->null ? 0 : key->bytes.len;

    sodium_bin2hex(hex, sizeof(hex), key->bytes.data,
                   len < IDEM_KEY_LEN ? len : IDEM_KEY_LEN);
    return idem__fail(err, IDEM_ERR_CORRUPT,
                      "damaged row in idem_record: %s; key_hash %s", flaw, hex);
}

enum idem_status
idem__cells_to_record(const struct idem_cell cells[IDEM_COLUMN_COUNT],
                      struct idem_record *record, struct idem_error *err)
{
    const struct idem_cell *print = &cells[IDEM_COLUMN_FINGERPRINT];
    struct idem_record r = {0};
    const char *flaw = NULL;

    if (!small_enough(cells))
        return damaged(&cells[IDEM_COLUMN_KEY], "a number is out of range",
                       err);
    r.type = (uint8_t)cells[IDEM_COLUMN_TYPE].number;
    r.state = (uint8_t)cells[IDEM_COLUMN_STATE].number;
    r.mode = (uint8_t)cells[IDEM_COLUMN_MODE].number;
    r.kind = (uint8_t)cells[IDEM_COLUMN_KIND].number;
    r.flags = (uint8_t)cells[IDEM_COLUMN_FLAGS].number;
    r.attempt = (uint32_t)cells[IDEM_COLUMN_ATTEMPT].number;
    r.fence = (uint64_t)cells[IDEM_COLUMN_FENCE].number;
    r.rev = (uint64_t)cells[IDEM_COLUMN_REV].number;
    r.created = cells[IDEM_COLUMN_CREATED].number;
    r.updated = cells[IDEM_COLUMN_UPDATED].number;
    r.lease_until = cells[IDEM_COLUMN_LEASE_UNTIL].number;
    r.expires = cells[IDEM_COLUMN_EXPIRES].number;
    r.scope = view(&cells[IDEM_COLUMN_SCOPE]);
    r.id = view(&cells[IDEM_COLUMN_ID]);
    r.subject = view(&cells[IDEM_COLUMN_SUBJECT]);
    r.result = view(&cells[IDEM_COLUMN_RESULT]);
    if (!copy_fixed(&cells[IDEM_COLUMN_NONCE], r.nonce, sizeof(r.nonce)))
        flaw = "the nonce is not 8 bytes";
    if ((r.flags & IDEM_FLAG_FINGERPRINT) &&
        !copy_fixed(print, r.fingerprint, sizeof(r.fingerprint)))
        flaw = "the fingerprint is not 32 bytes";
    if (!flaw)
        flaw = idem__record_flaw(&r);
    if (flaw)
        return damaged(&cells[IDEM_COLUMN_KEY], flaw, err);
    *record = r;
    return IDEM_OK;
}

enum idem_status
idem__rows_start(struct idem_rows *rows, const struct idem_query *query,
                 struct idem_error *err)
{
    const struct idem_filter *filter = query->filter;
    const char *text = query->cursor->text;
    size_t count = query->count;

    *rows = (struct idem_rows){.query = query};
    rows->executing = filter->doubt || filter->state == IDEM_STATE_EXECUTING;
    rows->limit = count < 256 ? 256 : count > 4096 ? 4096 : count;
    if (strcmp(text, "0") == 0)
        return IDEM_OK;
    rows->last_len = IDEM_KEY_LEN;
    return idem__key_from_hex(text, strnlen(text, sizeof(query->cursor->text)),
                              rows->last)
               ? IDEM_OK
               : idem__query_bad_cursor(query, err);
}

enum idem_status
idem__rows_give(struct idem_rows *rows,
                struct idem_cell cells[IDEM_COLUMN_COUNT], int64_t result_len,
                struct idem_error *err)
{
    const struct idem_query *query = rows->query;
    enum idem_status status;
    struct idem_record r;

    if (query->sizes && result_len > 0)
        cells[IDEM_COLUMN_RESULT].bytes.len = (size_t)result_len;
    status = idem__cells_to_record(cells, &r, err);
    if (status != IDEM_OK)
        return status;
    memcpy(rows->last, cells[IDEM_COLUMN_KEY].bytes.data, IDEM_KEY_LEN);
    rows->seen++;
    if (idem__filter_match(query->filter, &r, query->now))
        rows->over =
            !query->each(query->arg, &r) || ++rows->given >= query->count;
    return IDEM_OK;
}

void
idem__rows_end(struct idem_rows *rows)
{
    struct idem_cursor *cursor = rows->query->cursor;

    if (rows->over || rows->seen >= rows->limit)
        sodium_bin2hex(cursor->text, sizeof(cursor->text), rows->last,
                       IDEM_KEY_LEN);
    else
        memcpy(cursor->text, "0", 2);
}

enum idem_status
idem__retry_connect(struct idem_retry *retry, struct idem_store *store,
                    enum idem_status (*connect)(struct idem_store *,
                                                struct idem_error *),
                    struct idem_error *err)
{
    enum idem_status status = retry->why.status;

    if (idem__store_boot_us(store) >= retry->at_us) {
        status = connect(store, &retry->why);
        retry->pause_us = status == IDEM_OK ? 0
                          : retry->pause_us ? retry->pause_us * 2
                                            : RETRY_FIRST_US;
        if (retry->pause_us > RETRY_MAX_US)
            retry->pause_us = RETRY_MAX_US;
        retry->at_us = idem__store_boot_us(store) + retry->pause_us;
    }
    if (status != IDEM_OK && err)
        *err = retry->why;
    return status;
}

size_t
idem__swap_find(const struct idem_swap *swaps, size_t count, const void *key)
{
    size_t low = 0, high = count;

    while (low < high) {
        size_t middle = (low + high) / 2;
        int order = memcmp(swaps[middle].key, key, IDEM_KEY_LEN);

        if (order == 0)
            return middle;
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return count;
}

size_t
idem__swap_chunk(const struct idem_swap *swaps, size_t count, size_t max_rows,
                 size_t max_bytes)
{
    size_t bytes = 0, n = 0;

    while (n < count && n < max_rows) {
        bytes += swaps[n].record ? idem__encoded_len(swaps[n].record) : 0;
        if (n > 0 && bytes > max_bytes)
            break;
        n++;
    }
    return n;
}

void
idem__swaps_set(struct idem_swap *swaps, size_t count,
                enum idem_outcome outcome)
{
    for (size_t i = 0; i < count; i++)
        swaps[i].outcome = outcome;
}

int64_t
idem__key_lock(const uint8_t *key)
{
    uint64_t lock = 0;

    for (int i = 0; i < 8; i++)
        lock = lock << 8 | key[i];
    return (int64_t)lock;
}

bool
idem__word_in(const char *list, const char *word)
{
    size_t len = strlen(word);

    for (const char *at = list; at; at = strchr(at, ',')) {
        if (*at == ',')
            at++;
        if (strncmp(at, word, len) == 0 && (at[len] == 0 || at[len] == ','))
            return true;
    }
    return false;
}

enum idem_status
idem__schema_judge(const char *store, int64_t version, struct idem_error *err)
{
    if (version <= IDEM_SCHEMA_VERSION)
        return IDEM_OK;
    return idem__fail(
        err, IDEM_ERR_UNSUPPORTED,
        "%s: the tables of idem have version %lld here, newer than "
        "the %d that this idem knows: use a newer idem",
        store, (long long)version, IDEM_SCHEMA_VERSION);
}
