/*
 * mysql.c - mysql://: records in table idem_record of MariaDB (or MySQL).
 *
 * A batch is two round trips and one transaction, however many swaps it has:
 *
 *   1  start transaction; lock the rows that are to change and that nobody
 * holds (skip locked); read every row of the batch 2  one INSERT of what is
 * absent, one of what is replaced (on duplicate key: those rows are ours by
 * then), one DELETE; commit
 *
 * The INSERT is a plain one: 1062 says that somebody was faster, and the batch
 * is looked at again; 1205 says that somebody has inserted the key and not
 * committed it, and the batch is halved until that key stands alone and is
 * LOCKED; a deadlock (1213) is tried again. Values travel as hex literals, so
 * there is nothing to quote.
 *
 * READ COMMITTED: no gap locks, and each statement sees what is committed.
 */
#include "mysql.h"

#include <mysqld_error.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHUNK_ROWS 1024
#define CHUNK_BYTES ((size_t)2 * 1024 * 1024)
#define QUERY_MAX ((size_t)1024 * 1024 * 1024)
#define TRIES 5
#define QUICK_US 200000
#define SWEEP_ROWS 500
#define SWEEP_EVERY_US 500000
#define CHECK_EVERY_US 10000000

/* What is known of one swap between the two round trips. */
struct look {
    bool held; /* the row is locked by this transaction */
};

/* ---- writing queries ------------------------------------------------- */

static void
add_hex(struct idem_buf *query, const void *data, size_t len)
{
    static const char digits[] = "0123456789abcdef";
    const uint8_t *in = data;
    uint8_t *out = idem_buf_room(query, 2 * len + 3);

    if (!out) {
        query->cap = 0; /* seen by send_query */
        return;
    }
    *out++ = 'x';
    *out++ = '\'';
    for (size_t i = 0; i < len; i++) {
        *out++ = (uint8_t)digits[in[i] >> 4];
        *out++ = (uint8_t)digits[in[i] & 15];
    }
    *out = '\'';
    query->len += 2 * len + 3;
}

static void
add_text(struct idem_buf *query, const char *text)
{
    if (!idem_buf_add_text(query, text))
        query->cap = 0;
}

static void
add_row(struct idem_buf *query, const struct idem_swap *swap)
{
    struct idem_cell cells[IDEM_COLUMN_COUNT];

    idem__record_to_cells(swap->key, swap->record, cells);
    for (int i = 0; i < IDEM_COLUMN_COUNT; i++) {
        add_text(query, i == 0 ? "(" : ",");
        if (cells[i].null)
            add_text(query, "null");
        else if (idem__column_types[i] == IDEM_COLUMN_BYTES)
            add_hex(query, cells[i].bytes.data, cells[i].bytes.len);
        else if (!idem_buf_printf(query, "%lld", (long long)cells[i].number))
            query->cap = 0;
    }
    add_text(query, ")");
}

static bool
send_query(struct mysql_store *self)
{
    bool whole = self->query.cap != 0;

    self->query.cap = QUERY_MAX;
    return whole && mysql_real_query(self->conn, (const char *)self->query.data,
                                     (unsigned long)self->query.len) == 0;
}

/* Go on to the next statement's result. False: there is none, or it failed. */
static bool
next_result(struct mysql_store *self, bool *failed)
{
    int more = mysql_next_result(self->conn);

    *failed = more > 0;
    return more == 0;
}

/* Skip what is left of a query's results; false if a statement failed. */
static bool
skip_results(struct mysql_store *self)
{
    bool failed = false;

    do {
        MYSQL_RES *rows = mysql_store_result(self->conn);

        if (rows)
            mysql_free_result(rows);
    } while (next_result(self, &failed));
    return !failed;
}

static void
rollback(struct mysql_store *self)
{
    if (self->conn && mysql_query(self->conn, "rollback") != 0)
        idem__mysql_disconnect(self);
}

/* ---- reading rows ---------------------------------------------------- */

static void
read_cells(MYSQL_RES *rows, MYSQL_ROW row, int columns,
           struct idem_cell cells[IDEM_COLUMN_COUNT])
{
    unsigned long *lengths = mysql_fetch_lengths(rows);

    memset(cells, 0, IDEM_COLUMN_COUNT * sizeof(*cells));
    for (int i = 0; i < columns; i++) {
        cells[i].null = row[i] == NULL;
        if (cells[i].null)
            continue;
        if (idem__column_types[i] == IDEM_COLUMN_BYTES)
            cells[i].bytes = (struct idem_bytes){row[i], lengths[i]};
        else
            cells[i].number = strtoll(row[i], NULL, 10);
    }
}

/* Keys are sorted, in a batch. */
static size_t
find_key(const struct idem_swap *swaps, size_t count, const void *key)
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

/* False: it failed while the rows were coming. */
static bool
mark_held(struct mysql_store *self, const struct idem_swap *swaps, size_t count,
          struct look *looks)
{
    MYSQL_RES *rows = mysql_store_result(self->conn);
    MYSQL_ROW row;

    if (!rows)
        return false;
    while ((row = mysql_fetch_row(rows))) {
        size_t at = find_key(swaps, count, row[0]);

        if (at < count)
            looks[at].held = true;
    }
    mysql_free_result(rows);
    return true;
}

static enum idem_status
read_found(struct mysql_store *self, struct idem_swap *swaps, size_t count,
           struct idem_arena *arena, struct idem_error *err)
{
    MYSQL_RES *rows = mysql_store_result(self->conn);
    struct idem_cell cells[IDEM_COLUMN_COUNT];
    enum idem_status status = IDEM_OK;
    struct idem_record r;
    MYSQL_ROW row;

    if (!rows)
        return idem__mysql_fail(self, err);
    while (status == IDEM_OK && (row = mysql_fetch_row(rows))) {
        size_t at = find_key(swaps, count, row[0]);

        read_cells(rows, row, IDEM_COLUMN_COUNT, cells);
        status = idem__cells_to_record(cells, &r, err);
        if (status == IDEM_OK && at < count &&
            !idem_arena_record(arena, &r, &swaps[at].found))
            status = idem__fail(err, IDEM_ERR_MEMORY, "mysql: out of memory");
    }
    mysql_free_result(rows);
    return status;
}

/* ---- the first round trip -------------------------------------------- */

static size_t
add_keys(struct idem_buf *query, const struct idem_swap *swaps, size_t count,
         bool only_changes)
{
    size_t n = 0;

    for (size_t i = 0; i < count; i++) {
        if (only_changes && swaps[i].expected == 0)
            continue;
        add_text(query, n++ == 0 ? "" : ",");
        add_hex(query, swaps[i].key, IDEM_KEY_LEN);
    }
    return n;
}

static bool
has_changes(const struct idem_swap *swaps, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (swaps[i].expected != 0)
            return true;
    }
    return false;
}

static enum idem_status
look_at(struct mysql_store *self, struct idem_swap *swaps, size_t count,
        struct look *looks, struct idem_arena *arena, struct idem_error *err)
{
    bool changes = has_changes(swaps, count), failed = false;
    struct idem_buf *query = &self->query;
    enum idem_status status;

    for (size_t i = 0; i < count; i++) {
        looks[i].held = false;
        swaps[i].found.state = IDEM_STATE_ABSENT;
        swaps[i].found.rev = 0;
    }
    idem_buf_reset(query);
    add_text(query, "start transaction;");
    if (changes) {
        add_text(query, "select key_hash from idem_record where key_hash in (");
        add_keys(query, swaps, count, true);
        add_text(query, ") for update skip locked;");
    }
    add_text(query, "select ");
    add_text(query, idem__columns_all);
    add_text(query, " from idem_record where key_hash in (");
    add_keys(query, swaps, count, false);
    add_text(query, ")");

    if (!send_query(self))
        return idem__mysql_fail(self, err);
    if (next_result(self, &failed) && changes) {
        failed = !mark_held(self, swaps, count, looks);
        if (!failed)
            next_result(self, &failed);
    }
    if (failed)
        return idem__mysql_fail(self, err);
    status = read_found(self, swaps, count, arena, err);
    if (!skip_results(self) && status == IDEM_OK)
        status = idem__mysql_fail(self, err);
    return status;
}

/* ---- the second round trip ------------------------------------------- */

/* Decide by what was seen; true if something is left to write. */
static bool
decide(struct idem_swap *swaps, const struct look *looks, size_t count)
{
    bool writes = false;

    for (size_t i = 0; i < count; i++) {
        struct idem_swap *swap = &swaps[i];

        if (swap->record && swap->found.rev == swap->record->rev)
            swap->outcome = IDEM_SWAP_STORED;
        else if (swap->found.rev != swap->expected)
            swap->outcome = IDEM_SWAP_REFUSED;
        else if (swap->expected != 0 && !looks[i].held)
            swap->outcome = IDEM_SWAP_LOCKED;
        else
            swap->outcome = IDEM_SWAP_NOT_STORED; /* to be written */
        writes |= swap->outcome == IDEM_SWAP_NOT_STORED;
    }
    return writes;
}

static const char on_duplicate[] =
    " on duplicate key update state = values(state), mode = values(mode), "
    "kind = values(kind), flags = values(flags), attempt = values(attempt), "
    "fence = values(fence), rev = values(rev), created = values(created), "
    "updated = values(updated), lease_until = values(lease_until), "
    "expires = values(expires), nonce = values(nonce), "
    "fingerprint = values(fingerprint), subject = values(subject), "
    "result = values(result)";

/* One INSERT of either the new rows or the changed ones. */
static int
add_insert(struct idem_buf *query, const struct idem_swap *swaps, size_t count,
           bool changed)
{
    size_t n = 0;

    for (size_t i = 0; i < count; i++) {
        if (swaps[i].outcome != IDEM_SWAP_NOT_STORED || !swaps[i].record ||
            (swaps[i].expected != 0) != changed)
            continue;
        if (n == 0) {
            add_text(query, "insert into idem_record (");
            add_text(query, idem__columns_all);
        }
        add_text(query, n++ == 0 ? ") values " : ",");
        add_row(query, &swaps[i]);
    }
    if (n > 0 && changed)
        add_text(query, on_duplicate);
    if (n > 0)
        add_text(query, ";");
    return n > 0;
}

static int
add_delete(struct idem_buf *query, const struct idem_swap *swaps, size_t count)
{
    size_t n = 0;

    for (size_t i = 0; i < count; i++) {
        if (swaps[i].outcome != IDEM_SWAP_NOT_STORED || swaps[i].record)
            continue;
        add_text(query, n++ == 0 ? "delete from idem_record where key_hash in ("
                                 : ",");
        add_hex(query, swaps[i].key, IDEM_KEY_LEN);
    }
    if (n > 0)
        add_text(query, ");");
    return n > 0;
}

/* What became of the writes: done, to be tried again, to be halved, failed, or
 * nobody knows. */
enum written { DONE, AGAIN, HALVE, FAILED, LOST };

static enum written
judge_error(struct mysql_store *self, bool in_commit)
{
    unsigned code = mysql_errno(self->conn);

    if (idem__mysql_is_gone(self) || in_commit)
        return LOST;
    if (code == ER_DUP_ENTRY || code == ER_LOCK_DEADLOCK)
        return AGAIN;
    return code == ER_LOCK_WAIT_TIMEOUT ? HALVE : FAILED;
}

static enum written
write_all(struct mysql_store *self, struct idem_swap *swaps, size_t count,
          struct idem_error *err)
{
    struct idem_buf *query = &self->query;
    int statements, at = 0;
    enum written written;
    bool failed = false;

    idem_buf_reset(query);
    statements = add_insert(query, swaps, count, false);
    statements += add_insert(query, swaps, count, true);
    statements += add_delete(query, swaps, count);
    add_text(query, "commit");
    if (query->cap == 0) {
        query->cap = QUERY_MAX;
        idem__fail(err, IDEM_ERR_MEMORY, "mysql: out of memory");
        return FAILED;
    }
    if (send_query(self)) {
        while (next_result(self, &failed))
            at++;
        if (!failed)
            return DONE;
    }
    /* A failed statement ends the query, so `at` of them worked before it. */
    written = judge_error(self, failed && at + 1 == statements);
    idem__mysql_fail(self, err);
    return written;
}

static void
set_outcomes(struct idem_swap *swaps, size_t count, enum idem_outcome from,
             enum idem_outcome to)
{
    for (size_t i = 0; i < count; i++) {
        if (swaps[i].outcome == from)
            swaps[i].outcome = to;
    }
}

/* ---- a batch --------------------------------------------------------- */

/* A connection that died while nobody looked is replaced, once; one that gave
 * no answer in time is not: the next would not either. */
static enum idem_status
look_again(struct mysql_store *self, struct idem_swap *swaps, size_t count,
           struct look *looks, struct idem_arena *arena, struct idem_error *err)
{
    int64_t start_us = self->clocks->boot_us(self->clocks->arg);
    enum idem_status status = look_at(self, swaps, count, looks, arena, err);

    if (status == IDEM_OK || !idem__mysql_is_gone(self) ||
        self->clocks->boot_us(self->clocks->arg) - start_us > QUICK_US)
        return status;
    idem__mysql_disconnect(self);
    status = idem__mysql_connect(self, err);
    if (status != IDEM_OK)
        return status;
    return look_at(self, swaps, count, looks, arena, err);
}

/* Another transaction on these rows ended just now, and the server could not
 * make sense of what it was reading (MariaDB reports some of these as an error
 * of the commit): nothing was written, so it is simply done again. */
static bool
was_disturbed(struct mysql_store *self)
{
    unsigned code = mysql_errno(self->conn);

    return code == ER_ERROR_DURING_COMMIT || code == ER_CHECKREAD ||
           code == ER_LOCK_DEADLOCK || code == ER_LOCK_WAIT_TIMEOUT;
}

static enum idem_status
look_failed(struct mysql_store *self, struct idem_swap *swaps, size_t count,
            enum idem_status status)
{
    /* No commit was sent, so nothing can have been stored. */
    for (size_t i = 0; i < count; i++)
        swaps[i].outcome = IDEM_SWAP_NOT_STORED;
    if (self->conn && idem__mysql_is_gone(self))
        idem__mysql_disconnect(self);
    else
        rollback(self);
    return status;
}

static enum idem_status
swap_once(struct mysql_store *self, struct idem_swap *swaps, size_t count,
          struct look *looks, struct idem_arena *arena, enum written *written,
          struct idem_error *err)
{
    enum idem_status status = idem__mysql_connect(self, err);

    *written = FAILED;
    if (status != IDEM_OK)
        return status;
    status = look_again(self, swaps, count, looks, arena, err);
    if (status != IDEM_OK) {
        if (self->conn && was_disturbed(self))
            *written = AGAIN;
        return look_failed(self, swaps, count, status);
    }
    if (!decide(swaps, looks, count)) {
        *written = DONE;
        rollback(self);
        return IDEM_OK;
    }
    *written = write_all(self, swaps, count, err);
    if (*written == DONE) {
        set_outcomes(swaps, count, IDEM_SWAP_NOT_STORED, IDEM_SWAP_STORED);
        return IDEM_OK;
    }
    if (*written == LOST) {
        idem__mysql_disconnect(self);
        set_outcomes(swaps, count, IDEM_SWAP_NOT_STORED, IDEM_SWAP_LOST);
        return idem__fail(err, IDEM_ERR_LOST,
                          "mysql: the connection was lost, or the server gave "
                          "no answer in time, during a commit");
    }
    status = err ? err->status : IDEM_ERR_UNAVAILABLE;
    rollback(self);
    return status;
}

static enum idem_status
swap_range(struct mysql_store *self, struct idem_swap *swaps, size_t count,
           struct look *looks, struct idem_arena *arena, struct idem_error *err)
{
    enum idem_status status = IDEM_OK, rest;
    enum written written = AGAIN;

    for (int i = 0; i < TRIES && written == AGAIN; i++)
        status = swap_once(self, swaps, count, looks, arena, &written, err);
    if (written == DONE || written == FAILED || written == LOST)
        return status;
    if (count == 1) {
        swaps[0].outcome = IDEM_SWAP_LOCKED;
        return IDEM_OK;
    }
    self->splits++;
    status = swap_range(self, swaps, count / 2, looks, arena, err);
    rest = swap_range(self, swaps + count / 2, count - count / 2, looks, arena,
                      status == IDEM_OK ? err : NULL);
    return status == IDEM_OK ? rest : status;
}

/* How many swaps fit into one query. */
static size_t
chunk_len(const struct idem_swap *swaps, size_t count)
{
    size_t bytes = 0, n = 0;

    while (n < count && n < CHUNK_ROWS) {
        bytes += swaps[n].record ? idem__encoded_len(swaps[n].record) : 0;
        if (n > 0 && bytes > CHUNK_BYTES)
            break;
        n++;
    }
    return n;
}

static enum idem_status
swap_batch(struct idem_store *store, struct idem_swap *swaps, size_t count,
           struct idem_arena *arena, struct idem_error *err)
{
    struct mysql_store *self = (struct mysql_store *)store;
    struct look *looks = calloc(count ? count : 1, sizeof(*looks));
    enum idem_status status = IDEM_OK;
    struct idem_error own = {0};
    size_t len;

    for (size_t i = 0; i < count; i++)
        swaps[i].outcome = IDEM_SWAP_NOT_STORED;
    if (!looks)
        return idem__fail(err, IDEM_ERR_MEMORY, "mysql: out of memory");
    for (size_t at = 0; at < count && status == IDEM_OK; at += len) {
        len = chunk_len(swaps + at, count - at);
        status = swap_range(self, swaps + at, len, looks, arena, &own);
    }
    if (err && status != IDEM_OK)
        *err = own;
    free(looks);
    return status;
}

/* ---- load, scan, clock ----------------------------------------------- */

/* Run what is in self->query; its one row set, or NULL with the error told. */
static MYSQL_RES *
ask(struct mysql_store *self, enum idem_status *status, struct idem_error *err)
{
    MYSQL_RES *rows = NULL;

    *status = IDEM_OK;
    if (send_query(self))
        rows = mysql_store_result(self->conn);
    if (!rows) {
        *status = idem__mysql_fail(self, err);
        if (idem__mysql_is_gone(self))
            idem__mysql_disconnect(self);
    }
    return rows;
}

static enum idem_status
read_load(MYSQL_RES *rows, struct idem_load *loads, size_t count,
          struct idem_arena *arena, struct idem_error *err)
{
    struct idem_cell cells[IDEM_COLUMN_COUNT];
    enum idem_status status = IDEM_OK;
    struct idem_record r;
    MYSQL_ROW row;

    while (status == IDEM_OK && (row = mysql_fetch_row(rows))) {
        read_cells(rows, row, IDEM_COLUMN_COUNT, cells);
        status = idem__cells_to_record(cells, &r, err);
        for (size_t i = 0; i < count && status == IDEM_OK; i++) {
            struct idem_record copy = r;

            if (memcmp(loads[i].key, row[0], IDEM_KEY_LEN) != 0)
                continue;
            if (!loads[i].with_result)
                copy.result = (struct idem_bytes){NULL, 0};
            if (!idem_arena_record(arena, &copy, &loads[i].record))
                status =
                    idem__fail(err, IDEM_ERR_MEMORY, "mysql: out of memory");
        }
    }
    return status;
}

static enum idem_status
load_batch(struct idem_store *store, struct idem_load *loads, size_t count,
           struct idem_arena *arena, struct idem_error *err)
{
    struct mysql_store *self = (struct mysql_store *)store;
    enum idem_status status = idem__mysql_connect(self, err);
    MYSQL_RES *rows;

    if (status != IDEM_OK || count == 0)
        return status;
    idem_buf_reset(&self->query);
    add_text(&self->query, "select ");
    add_text(&self->query, idem__columns_all);
    add_text(&self->query, " from idem_record where key_hash in (");
    for (size_t i = 0; i < count; i++) {
        add_text(&self->query, i == 0 ? "" : ",");
        add_hex(&self->query, loads[i].key, IDEM_KEY_LEN);
    }
    add_text(&self->query, ")");
    rows = ask(self, &status, err);
    if (!rows)
        return status;
    for (size_t i = 0; i < count; i++)
        loads[i].record.state = IDEM_STATE_ABSENT;
    status = read_load(rows, loads, count, arena, err);
    mysql_free_result(rows);
    return status;
}

static enum idem_status
give_rows(MYSQL_RES *rows, const struct idem_filter *filter,
          const struct idem_now *now, struct idem_cursor *cursor, size_t count,
          size_t limit, idem_each_fn *each, void *arg, struct idem_error *err)
{
    struct idem_cell cells[IDEM_COLUMN_COUNT];
    size_t seen = 0, given = 0;
    uint8_t last[IDEM_KEY_LEN];
    struct idem_record r;
    MYSQL_ROW row;

    while ((row = mysql_fetch_row(rows))) {
        enum idem_status status;

        read_cells(rows, row, IDEM_COLUMN_RESULT, cells);
        memcpy(last, row[0], IDEM_KEY_LEN);
        seen++;
        status = idem__cells_to_record(cells, &r, err);
        if (status != IDEM_OK)
            return status;
        if (!idem__filter_match(filter, &r, now))
            continue;
        if (!each(arg, &r) || ++given >= count) {
            idem__cursor_set(cursor, last);
            return IDEM_OK;
        }
    }
    idem__cursor_set(cursor, seen < limit ? NULL : last);
    return IDEM_OK;
}

static enum idem_status
scan_records(struct idem_store *store, const struct idem_filter *filter,
             const struct idem_now *now, struct idem_cursor *cursor,
             size_t count, idem_each_fn *each, void *arg,
             struct idem_error *err)
{
    struct mysql_store *self = (struct mysql_store *)store;
    bool executing = filter->doubt || filter->state == IDEM_STATE_EXECUTING;
    size_t limit = idem__scan_rows(count);
    uint8_t last[IDEM_KEY_LEN];
    enum idem_status status;
    MYSQL_RES *rows;
    bool start;

    status = idem__cursor_key(cursor, last, &start, err);
    if (status == IDEM_OK)
        status = idem__mysql_connect(self, err);
    if (status != IDEM_OK)
        return status;
    idem_buf_reset(&self->query);
    add_text(&self->query, "select ");
    add_text(&self->query, idem__columns_but_result);
    add_text(&self->query, " from idem_record where key_hash > ");
    add_hex(&self->query, last, start ? 0 : IDEM_KEY_LEN);
    if (executing)
        add_text(&self->query, " and state = 2");
    idem_buf_printf(&self->query, " order by key_hash limit %zu", limit);
    rows = ask(self, &status, err);
    if (!rows)
        return status;
    status = give_rows(rows, filter, now, cursor, count, limit, each, arg, err);
    mysql_free_result(rows);
    return status;
}

static enum idem_status
read_clock(struct idem_store *store, int64_t *now_us, struct idem_error *err)
{
    struct mysql_store *self = (struct mysql_store *)store;
    enum idem_status status = idem__mysql_connect(self, err);
    MYSQL_RES *rows;
    MYSQL_ROW row;

    if (status != IDEM_OK)
        return status;
    idem_buf_reset(&self->query);
    add_text(&self->query,
             "select cast(unix_timestamp(now(6)) * 1000000 as signed)");
    rows = ask(self, &status, err);
    if (!rows)
        return status;
    row = mysql_fetch_row(rows);
    if (row && row[0])
        *now_us = strtoll(row[0], NULL, 10);
    else
        status = idem__fail(err, IDEM_ERR_UNAVAILABLE,
                            "mysql: the server did not tell the time");
    mysql_free_result(rows);
    return status;
}

/* ---- tend ------------------------------------------------------------ */

static void
sweep(struct mysql_store *self, int64_t now_us)
{
    char query[200];

    if (now_us - self->swept_at_us < SWEEP_EVERY_US)
        return;
    self->swept_at_us = now_us;
    snprintf(query, sizeof(query),
             "delete from idem_record where state in (1, 3, 4, 5) and expires "
             "between 1 and floor(unix_timestamp(now(6)) * 1000) - 1 limit %d",
             SWEEP_ROWS);
    if (mysql_query(self->conn, query) != 0 && idem__mysql_is_gone(self))
        idem__mysql_disconnect(self);
}

/* A server can be reconfigured, or become a replica, under our feet. */
static void
check(struct mysql_store *self, int64_t now_us)
{
    struct idem_error err;

    if (now_us - self->checked_at_us < CHECK_EVERY_US)
        return;
    self->checked_at_us = now_us;
    if (idem__mysql_check(self, &err) != IDEM_OK) {
        idem__log(&self->options, IDEM_LOG_ALARM, "%s", err.text);
        idem__mysql_disconnect(self);
    }
}

static void
tend(struct idem_store *store)
{
    struct mysql_store *self = (struct mysql_store *)store;
    int64_t now_us = self->clocks->boot_us(self->clocks->arg);

    if (self->conn)
        sweep(self, now_us);
    if (self->conn)
        check(self, now_us);
}

static void
figures(struct idem_store *store, idem_figure_fn *each, void *arg)
{
    struct mysql_store *self = (struct mysql_store *)store;

    each(arg, "mysql_connected", self->conn ? 1 : 0);
    each(arg, "mysql_connects", (double)self->connects);
    each(arg, "mysql_splits", (double)self->splits);
}

/* ---- open and close -------------------------------------------------- */

static void
close_store(struct idem_store *store)
{
    struct mysql_store *self = (struct mysql_store *)store;

    if (!self)
        return;
    idem__mysql_disconnect(self);
    idem_buf_clear(&self->query);
    free(self->host);
    free(self->user);
    free(self->password);
    free(self->database);
    free(self->socket);
    free(self);
}

static enum idem_status
make_store(const char *url, const struct idem_store_options *options,
           struct mysql_store **made, struct idem_error *err)
{
    struct mysql_store *self = calloc(1, sizeof(*self));
    enum idem_status status;

    if (!self)
        return idem__fail(err, IDEM_ERR_MEMORY, "mysql: out of memory");
    self->base.type = &idem__mysql_store;
    self->options = *options;
    self->clocks = options->clocks ? options->clocks : &idem__system_clocks;
    idem_buf_init(&self->query, QUERY_MAX);
    status = idem__mysql_parse(self, url, err);
    if (status != IDEM_OK) {
        close_store(&self->base);
        return status;
    }
    *made = self;
    return IDEM_OK;
}

/* A record travels as hex in one packet, beside its column names. */
static size_t
max_record(size_t packet_max)
{
    size_t most = idem__encoded_max(IDEM_RESULT_MAX);
    size_t fits = packet_max > 65536 ? (packet_max - 65536) / 2 : 1024;

    return fits < most ? fits : most;
}

static enum idem_status
open_store(const char *url, const struct idem_store_options *options,
           struct idem_store **store, struct idem_error *err)
{
    struct mysql_store *self;
    enum idem_status status = make_store(url, options, &self, err);

    if (status != IDEM_OK)
        return status;
    status = idem__mysql_connect(self, err);
    if (status != IDEM_OK) {
        close_store(&self->base);
        return status;
    }
    self->base.max_record = max_record(self->packet_max);
    if (self->unsafe[0])
        idem__log(options, IDEM_LOG_WARNING,
                  "mysql: unsafe=%s: a power cut or a failover may undo what "
                  "was answered",
                  self->unsafe);
    *store = &self->base;
    return IDEM_OK;
}

/* Run a script as the mariadb client would: DELIMITER lines are the client's
 * own, a statement ends where a line ends in the delimiter. */
static enum idem_status
run_script(struct mysql_store *self, const char *script, struct idem_error *err)
{
    enum idem_status status = IDEM_OK;
    char delimiter[8] = ";";

    idem_buf_reset(&self->query);
    while (*script && status == IDEM_OK) {
        size_t len = strcspn(script, "\n");
        size_t end = strlen(delimiter);

        if (strncasecmp(script, "delimiter ", 10) == 0) {
            snprintf(delimiter, sizeof(delimiter), "%.*s", (int)(len - 10),
                     script + 10);
        } else if (strncmp(script, "--", 2) != 0) {
            bool ends =
                len >= end && strncmp(script + len - end, delimiter, end) == 0;

            idem_buf_add(&self->query, script, ends ? len - end : len);
            idem_buf_add(&self->query, "\n", 1);
            if (ends) {
                if (!send_query(self) || !skip_results(self))
                    status = idem__mysql_fail(self, err);
                idem_buf_reset(&self->query);
            }
        }
        script += len + (script[len] == '\n');
    }
    return status;
}

static enum idem_status
init_store(const char *url, struct idem_error *err)
{
    struct idem_store_options options = {0};
    struct mysql_store *self;
    enum idem_status status = make_store(url, &options, &self, err);

    if (status != IDEM_OK)
        return status;
    self->timeout_s = 60;
    status = idem__mysql_connect_bare(self, err);
    if (status == IDEM_OK)
        status = run_script(self, idem__mysql_script, err);
    close_store(&self->base);
    return status;
}

const struct idem_store_type idem__mysql_store = {
    .scheme = "mysql",
    .open = open_store,
    .swap = swap_batch,
    .load = load_batch,
    .scan = scan_records,
    .now = read_clock,
    .tend = tend,
    .figures = figures,
    .close = close_store,
    .init = init_store,
};
