/*
 * batch.c - swap: a batch is one transaction, and one or two round trips
 * however many swaps it has:
 *
 *   hold    start transaction; lock the rows that are to change and that
 *           nobody holds (skip locked), and see their revs; left out where
 *           nothing is to change
 *   write   one INSERT of what is absent, one of what is replaced (on duplicate
 *           key: those rows are ours by then), one DELETE; commit
 *
 * That is where everything is as expected, and most is. Otherwise it is begun
 * again with a look instead of the hold, which also reads every row of the
 * batch, and then writes what is left to write.
 *
 * The INSERT is a plain one: 1062 says that somebody was faster, and the batch
 * is looked at; 1205 says that somebody has inserted the key and not
 * committed it, and the batch is halved until that key stands alone and is
 * LOCKED; a deadlock (1213) is tried again. Values travel as hex literals, so
 * there is nothing to quote.
 *
 * READ COMMITTED: no gap locks, and each statement sees what is committed.
 */
#include "mysql.h"

#include <mysqld_error.h>
#include <stdlib.h>
#include <string.h>

#define CHUNK_ROWS 1024
#define CHUNK_BYTES ((size_t)2 * 1024 * 1024)
#define TRIES 5

/* What is known of one swap between the two round trips. */
struct look {
    bool held; /* the row is locked by this transaction */
};

static void
rollback(struct mysql_store *self)
{
    if (self->conn && mysql_query(self->conn, "rollback") != 0)
        idem__mysql_disconnect(self);
}

static void
add_row(struct idem_buf *query, const struct idem_swap *swap)
{
    struct idem_cell cells[IDEM_COLUMN_COUNT];

    idem__record_to_cells(swap->key, swap->record, cells);
    for (int i = 0; i < IDEM_COLUMN_COUNT; i++) {
        idem__mysql_add_text(query, i == 0 ? "(" : ",");
        if (cells[i].null)
            idem__mysql_add_text(query, "null");
        else if (idem__column_types[i] == IDEM_COLUMN_BYTES)
            idem__mysql_add_hex(query, cells[i].bytes.data, cells[i].bytes.len);
        else if (!idem_buf_printf(query, "%lld", (long long)cells[i].number))
            query->cap = 0;
    }
    idem__mysql_add_text(query, ")");
}

/* False: it failed while the rows were coming. */
static bool
mark_held(struct mysql_store *self, struct idem_swap *swaps, size_t count,
          struct look *looks)
{
    MYSQL_RES *rows = mysql_store_result(self->conn);
    MYSQL_ROW row;

    if (!rows)
        return false;
    while ((row = mysql_fetch_row(rows))) {
        size_t at = idem__swap_find(swaps, count, row[0]);

        if (at == count)
            continue;
        looks[at].held = true;
        swaps[at].found.rev = (uint64_t)strtoll(row[1], NULL, 10);
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
        size_t at = idem__swap_find(swaps, count, row[0]);

        idem__mysql_read_cells(rows, row, IDEM_COLUMN_COUNT, cells);
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
        idem__mysql_add_text(query, n++ == 0 ? "" : ",");
        idem__mysql_add_hex(query, swaps[i].key, IDEM_KEY_LEN);
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

/* Begin a query that starts the transaction and holds what is to change. */
static void
add_hold(struct mysql_store *self, struct idem_swap *swaps, size_t count,
         struct look *looks, bool changes)
{
    struct idem_buf *query = &self->query;

    for (size_t i = 0; i < count; i++) {
        looks[i].held = false;
        swaps[i].found.state = IDEM_STATE_ABSENT;
        swaps[i].found.rev = 0;
    }
    idem_buf_reset(query);
    idem__mysql_add_text(query, "start transaction;");
    if (changes) {
        idem__mysql_add_text(
            query, "select key_hash, rev from idem_record where key_hash in (");
        add_keys(query, swaps, count, true);
        idem__mysql_add_text(query, ") for update skip locked;");
    }
}

/* Only hold; *ready: all that is to change is held and as expected. */
static enum idem_status
hold(struct mysql_store *self, struct idem_swap *swaps, size_t count,
     struct look *looks, bool *ready, struct idem_error *err)
{
    bool failed = false;

    add_hold(self, swaps, count, looks, true);
    if (!idem__mysql_send_query(self))
        return idem__mysql_fail(self, err);
    if (!idem__mysql_next_result(self, &failed) ||
        !mark_held(self, swaps, count, looks) ||
        !idem__mysql_skip_results(self))
        return idem__mysql_fail(self, err);
    *ready = true;
    for (size_t i = 0; i < count; i++)
        *ready = *ready && swaps[i].found.rev == swaps[i].expected;
    return IDEM_OK;
}

static enum idem_status
look_at(struct mysql_store *self, struct idem_swap *swaps, size_t count,
        struct look *looks, struct idem_arena *arena, struct idem_error *err)
{
    bool changes = has_changes(swaps, count), failed = false;
    struct idem_buf *query = &self->query;
    enum idem_status status;

    add_hold(self, swaps, count, looks, changes);
    idem__mysql_add_text(query, "select ");
    idem__mysql_add_text(query, idem__columns_all);
    idem__mysql_add_text(query, " from idem_record where key_hash in (");
    add_keys(query, swaps, count, false);
    idem__mysql_add_text(query, ")");

    if (!idem__mysql_send_query(self))
        return idem__mysql_fail(self, err);
    if (idem__mysql_next_result(self, &failed) && changes) {
        failed = !mark_held(self, swaps, count, looks);
        if (!failed)
            idem__mysql_next_result(self, &failed);
    }
    if (failed)
        return idem__mysql_fail(self, err);
    status = read_found(self, swaps, count, arena, err);
    if (!idem__mysql_skip_results(self) && status == IDEM_OK)
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
            idem__mysql_add_text(query, "insert into idem_record (");
            idem__mysql_add_text(query, idem__columns_all);
        }
        idem__mysql_add_text(query, n++ == 0 ? ") values " : ",");
        add_row(query, &swaps[i]);
    }
    if (n > 0 && changed)
        idem__mysql_add_text(query, on_duplicate);
    if (n > 0)
        idem__mysql_add_text(query, ";");
    return n > 0;
}

static int
add_delete(struct idem_buf *query, const struct idem_swap *swaps, size_t count)
{
    size_t n = 0;

    for (size_t i = 0; i < count; i++) {
        if (swaps[i].outcome != IDEM_SWAP_NOT_STORED || swaps[i].record)
            continue;
        idem__mysql_add_text(
            query,
            n++ == 0 ? "delete from idem_record where key_hash in (" : ",");
        idem__mysql_add_hex(query, swaps[i].key, IDEM_KEY_LEN);
    }
    if (n > 0)
        idem__mysql_add_text(query, ");");
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

/* Everything that is to be written, in a transaction that is open already, or
 * else is started first. */
static enum written
write_all(struct mysql_store *self, struct idem_swap *swaps, size_t count,
          bool open, struct idem_error *err)
{
    struct idem_buf *query = &self->query;
    int statements = !open, at = 0;
    enum written written;
    bool failed = false;

    idem_buf_reset(query);
    if (!open)
        idem__mysql_add_text(query, "start transaction;");
    statements += add_insert(query, swaps, count, false);
    statements += add_insert(query, swaps, count, true);
    statements += add_delete(query, swaps, count);
    idem__mysql_add_text(query, "commit");
    if (query->cap == 0) {
        query->cap = IDEM__MYSQL_QUERY_MAX;
        idem__fail(err, IDEM_ERR_MEMORY, "mysql: out of memory");
        return FAILED;
    }
    if (idem__mysql_send_query(self)) {
        while (idem__mysql_next_result(self, &failed))
            at++;
        if (!failed)
            return DONE;
    }
    /* A failed statement ends the query, so `at` of them worked before it. */
    written = judge_error(self, failed && at + 1 == statements);
    idem__mysql_fail(self, err);
    return written;
}

/* What became of what was to be written. */
static void
set_written(struct idem_swap *swaps, size_t count, enum idem_outcome outcome)
{
    for (size_t i = 0; i < count; i++) {
        if (swaps[i].outcome == IDEM_SWAP_NOT_STORED)
            swaps[i].outcome = outcome;
    }
}

/* ---- a batch --------------------------------------------------------- */

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
    idem__swaps_set(swaps, count, IDEM_SWAP_NOT_STORED);
    if (self->conn && idem__mysql_is_gone(self))
        idem__mysql_disconnect(self);
    else
        rollback(self);
    return status;
}

/* Look, or, `guessing` that all is as expected, only hold: *written is AGAIN if
 * that was wrong. */
static enum idem_status
prepare(struct mysql_store *self, struct idem_swap *swaps, size_t count,
        struct look *looks, struct idem_arena *arena, bool guessing,
        enum written *written, struct idem_error *err)
{
    enum idem_status status;
    bool ready = true;

    status = guessing ? hold(self, swaps, count, looks, &ready, err)
                      : look_at(self, swaps, count, looks, arena, err);
    if (status == IDEM_OK && ready)
        return IDEM_OK;
    if (status == IDEM_OK || (self->conn && was_disturbed(self)))
        *written = AGAIN;
    return look_failed(self, swaps, count,
                       status == IDEM_OK ? IDEM_ERR_UNAVAILABLE : status);
}

static enum idem_status
swap_once(struct mysql_store *self, struct idem_swap *swaps, size_t count,
          struct look *looks, struct idem_arena *arena, bool guessing,
          enum written *written, struct idem_error *err)
{
    enum idem_status status = idem__mysql_connect(self, err);
    bool open = !guessing || has_changes(swaps, count);

    *written = FAILED;
    idem__swaps_set(swaps, count, IDEM_SWAP_NOT_STORED);
    if (status != IDEM_OK)
        return status;
    if (open)
        status =
            prepare(self, swaps, count, looks, arena, guessing, written, err);
    if (status != IDEM_OK)
        return status;
    if (!guessing && !decide(swaps, looks, count)) {
        *written = DONE;
        rollback(self);
        return IDEM_OK;
    }
    *written = write_all(self, swaps, count, open, err);
    if (*written == DONE) {
        set_written(swaps, count, IDEM_SWAP_STORED);
        return IDEM_OK;
    }
    if (*written == LOST) {
        idem__mysql_disconnect(self);
        set_written(swaps, count, IDEM_SWAP_LOST);
        return idem__fail(err, IDEM_ERR_LOST,
                          "mysql: the connection was lost, or the server gave "
                          "no answer in time, during a commit");
    }
    status = err ? err->status : IDEM_ERR_UNAVAILABLE;
    rollback(self);
    return status;
}

/* A delete is done by key alone: what it expects has to be seen first. */
static bool
may_guess(const struct mysql_store *self, const struct idem_swap *swaps,
          size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (!swaps[i].record && swaps[i].expected == 0)
            return false;
    }
    return self->wary == 0;
}

static enum idem_status
swap_range(struct mysql_store *self, struct idem_swap *swaps, size_t count,
           struct look *looks, struct idem_arena *arena, struct idem_error *err)
{
    enum idem_status status = IDEM_OK, rest;
    enum written written = AGAIN;

    for (int i = 0; i < TRIES && written == AGAIN; i++) {
        bool guessing = i == 0 && may_guess(self, swaps, count);

        status = swap_once(self, swaps, count, looks, arena, guessing, &written,
                           err);
        if (guessing && written == AGAIN)
            self->wary = IDEM_WARY_BATCHES;
        else if (i == 0 && self->wary > 0)
            self->wary--;
    }
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

enum idem_status
idem__mysql_swap(struct idem_store *store, struct idem_swap *swaps,
                 size_t count, struct idem_arena *arena, struct idem_error *err)
{
    struct mysql_store *self = (struct mysql_store *)store;
    struct look *looks = calloc(count ? count : 1, sizeof(*looks));
    enum idem_status status = IDEM_OK;
    struct idem_error own = {0};
    size_t len;

    idem__swaps_set(swaps, count, IDEM_SWAP_NOT_STORED);
    if (!looks)
        return idem__fail(err, IDEM_ERR_MEMORY, "mysql: out of memory");
    for (size_t at = 0; at < count && status == IDEM_OK; at += len) {
        len = idem__swap_chunk(swaps + at, count - at, CHUNK_ROWS, CHUNK_BYTES);
        status = swap_range(self, swaps + at, len, looks, arena, &own);
    }
    if (err && status != IDEM_OK)
        *err = own;
    free(looks);
    return status;
}
