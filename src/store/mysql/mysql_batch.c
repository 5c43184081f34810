/*
 * mysql_batch.c - compares and swaps a batch in one transaction and two round
 * trips, however many swaps it has. It first guesses that all revs are as
 * expected, which is usually right:
 *
 *   guess   one statement that fails, or counts other rows, if it is wrong
 *           (bulk.c)
 *   commit
 *
 * If the guess is wrong, the batch has deletes, or the server has no bulk
 * execution, the rows are read first:
 *
 *   look    lock the rows to change, except those that others have locked
 *           (skip locked), and read every row of the batch
 *   write   one INSERT of the new rows, one of the replaced rows (on duplicate
 *           key; this transaction has locked them), one DELETE; commit
 *
 * The first INSERT is a plain one. 1062 means that another client inserted the
 * key first; the rows are read again. 1205 means that another client has
 * inserted the key and not committed; the batch is halved until that key is
 * alone and is LOCKED. A deadlock (1213) is retried. MySQL would wait a second
 * before 1205, so on MySQL a probe that fails at once (3572) is sent before the
 * INSERT. Values are sent as hex literals, so nothing needs quoting.
 *
 * On a Galera cluster the commit itself may be refused (1213), because another
 * node has committed a change of one of these rows; the rows are read again. In
 * wsrep's code that error can also follow from a lost connection between the
 * nodes, so only reading the rows shows what happened. It does not show it if
 * somebody else has written the row since; then `maybe_before` is set. The
 * guess is not used on Galera, because when another node's transaction breaks a
 * bulk statement half-way, the server goes on with the remaining rows, and
 * reports all of them as written although the first ones were rolled back.
 *
 * A commit of another client may be visible before it is on the disk (query.c).
 * A commit of own writes also waits for what was read before it. A batch that
 * found records and wrote nothing is confirmed before they are reported; if
 * that fails, a rev that is there already is LOST.
 *
 * READ COMMITTED: no gap locks, and each statement sees what is committed.
 * Autocommit is off: the first statement starts the transaction.
 */
#include "mysql.h"

#include <mysqld_error.h>
#include <stdlib.h>
#include <string.h>

#define CHUNK_ROWS 1024
#define CHUNK_BYTES ((size_t)2 * 1024 * 1024)
#define TRIES 5
#define LOCK_NOWAIT 3572 /* MySQL's; MariaDB's header has no name for it */

/* What is known about one swap between the two round trips. */
struct look {
    bool held;  /* the row is locked by this transaction */
    bool doubt; /* Galera refused a commit that had this swap */
};

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

/* False: reading the rows failed. */
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

/* ---- look ------------------------------------------------------------ */

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

/* Begin a query that locks the rows to change. */
static void
add_hold(struct mysql_store *self, struct idem_swap *swaps, size_t count)
{
    struct idem_buf *query = &self->query;

    idem__mysql_add_text(
        query, "select key_hash, rev from idem_record where key_hash in (");
    add_keys(query, swaps, count, true);
    idem__mysql_add_text(query, ") for update skip locked;");
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
    if (changes)
        add_hold(self, swaps, count);
    idem__mysql_add_text(query, "select ");
    idem__mysql_add_text(query, idem__columns_all);
    idem__mysql_add_text(query, " from idem_record where key_hash in (");
    add_keys(query, swaps, count, false);
    idem__mysql_add_text(query, ")");

    if (!idem__mysql_send_query(self))
        return idem__mysql_fail(self, err);
    if (changes) {
        failed = !mark_held(self, swaps, count, looks);
        if (!failed)
            idem__mysql_next_result(self, &failed);
    }
    if (failed)
        return idem__mysql_fail(self, err);
    status = read_found(self, swaps, count, arena, err);
    /* Not after an error, because that would clear its number. */
    if (status == IDEM_OK && !idem__mysql_skip_results(self))
        status = idem__mysql_fail(self, err);
    return status;
}

/* ---- write ----------------------------------------------------------- */

/* Decide by the rows that were read; true if something is left to write. */
static bool
decide(struct idem_swap *swaps, const struct look *looks, size_t count)
{
    bool writes = false;

    for (size_t i = 0; i < count; i++) {
        struct idem_swap *swap = &swaps[i];

        swap->maybe_before = false;
        if (swap->record && swap->found.rev == swap->record->rev) {
            swap->outcome = IDEM_SWAP_STORED;
        } else if (swap->found.rev != swap->expected) {
            swap->outcome = IDEM_SWAP_REFUSED;
            swap->maybe_before = looks[i].doubt;
        } else if (swap->expected != 0 && !looks[i].held) {
            swap->outcome = looks[i].doubt ? IDEM_SWAP_LOST : IDEM_SWAP_LOCKED;
        } else {
            swap->outcome = IDEM_SWAP_NOT_STORED; /* still to be written */
        }
        writes |= swap->outcome == IDEM_SWAP_NOT_STORED;
    }
    return writes;
}

static const char on_duplicate[] =
    " on duplicate key update rev = values(rev), " IDEM__MYSQL_SET_BUT_REV;

/* One INSERT, either of the new rows or of the changed ones. */
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

/* The outcome of the writes: done; to be retried; to be retried after a commit
 * that Galera refused; to be halved; failed; or not known. */
enum written { DONE, AGAIN, CONFLICT, HALVE, FAILED, LOST };

static enum written
judge_error(struct mysql_store *self, bool in_commit)
{
    unsigned code = mysql_errno(self->conn);

    if (in_commit && code == ER_LOCK_DEADLOCK)
        return CONFLICT;
    if (idem__mysql_is_gone(self) || in_commit)
        return LOST;
    if (code == ER_DUP_ENTRY || code == ER_LOCK_DEADLOCK)
        return AGAIN;
    return code == ER_LOCK_WAIT_TIMEOUT || code == LOCK_NOWAIT ? HALVE : FAILED;
}

/* Fail at once if another client has inserted one of the new keys and not
 * committed. This is a join, because for an IN MySQL may read a whole small
 * table, and meet other clients' locked rows there. */
static int
add_probe(struct idem_buf *query, const struct idem_swap *swaps, size_t count)
{
    size_t n = 0;

    for (size_t i = 0; i < count; i++) {
        if (swaps[i].outcome != IDEM_SWAP_NOT_STORED || swaps[i].expected != 0)
            continue;
        idem__mysql_add_text(query,
                             n++ == 0 ? "do (select count(*) from (values row("
                                      : "),row(");
        idem__mysql_add_hex(query, swaps[i].key, IDEM_KEY_LEN);
    }
    if (n > 0)
        idem__mysql_add_text(query,
                             ")) new(k) straight_join idem_record r "
                             "on r.key_hash = k for share of r nowait);");
    return n > 0;
}

/* Write everything. */
static enum written
write_all(struct mysql_store *self, struct idem_swap *swaps, size_t count,
          struct idem_error *err)
{
    struct idem_buf *query = &self->query;
    int statements = 0, at = 0;
    enum written written;
    bool failed = false;

    idem_buf_reset(query);
    if (self->waits)
        statements += add_probe(query, swaps, count);
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

/* Set the outcome of the swaps that were to be written. */
static void
set_written(struct idem_swap *swaps, size_t count, enum idem_outcome outcome)
{
    for (size_t i = 0; i < count; i++) {
        if (swaps[i].outcome == IDEM_SWAP_NOT_STORED)
            swaps[i].outcome = outcome;
    }
}

/* ---- a batch --------------------------------------------------------- */

/* Another transaction on these rows has just ended, and the server could not
 * read them consistently (MariaDB reports some of these cases as an error of
 * the commit). Nothing was written, so it is retried. */
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
        idem__mysql_rollback(self);
    return status;
}

/* Set the outcomes of the batch and return the status. */
static enum idem_status
conclude(struct mysql_store *self, struct idem_swap *swaps, size_t count,
         enum written written, struct idem_error *err)
{
    enum idem_status status = err ? err->status : IDEM_ERR_UNAVAILABLE;

    if (written == DONE) {
        set_written(swaps, count, IDEM_SWAP_STORED);
        return IDEM_OK;
    }
    if (written == LOST) {
        idem__mysql_disconnect(self);
        set_written(swaps, count, IDEM_SWAP_LOST);
        return idem__fail(err, IDEM_ERR_LOST,
                          "mysql: the connection was lost, or the server gave "
                          "no reply in time, during a commit");
    }
    idem__mysql_rollback(self);
    return status;
}

/* If the server crashes, it may lose records that were found but not
 * confirmed. So they must not be reported. */
static void
forget_found(struct idem_swap *swaps, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (swaps[i].outcome == IDEM_SWAP_STORED)
            swaps[i].outcome = IDEM_SWAP_LOST;
        else if (swaps[i].outcome == IDEM_SWAP_REFUSED)
            swaps[i].outcome =
                swaps[i].maybe_before ? IDEM_SWAP_LOST : IDEM_SWAP_NOT_STORED;
    }
}

/* Nothing was written: confirm what was found. */
static enum idem_status
confirm_found(struct mysql_store *self, struct idem_swap *swaps, size_t count,
              struct idem_error *err)
{
    enum idem_status status = IDEM_OK;
    bool some = false;

    for (size_t i = 0; i < count; i++)
        some |= swaps[i].outcome == IDEM_SWAP_STORED ||
                swaps[i].outcome == IDEM_SWAP_REFUSED;
    if (!some || self->durable_reads) {
        idem__mysql_rollback(self);
        return IDEM_OK;
    }
    if (!idem__mysql_confirm(self, &status, err))
        forget_found(swaps, count);
    return status;
}

/* The writes failed. The records that were found may still be reported. */
static void
keep_found(struct mysql_store *self, struct idem_swap *swaps, size_t count,
           enum written written)
{
    if (self->durable_reads || written == DONE)
        return;
    if (written != FAILED || !self->conn ||
        confirm_found(self, swaps, count, NULL) != IDEM_OK)
        forget_found(swaps, count);
}

static enum written
guess(struct mysql_store *self, const struct idem_swap *swaps, size_t count,
      struct idem_error *err)
{
    if (idem__mysql_bulk_write(self->bulk, swaps, count))
        return mysql_query(self->conn, "commit") == 0 ? DONE : LOST;
    if (!idem__mysql_is_gone(self))
        return AGAIN; /* reading the rows will show the reason */
    /* No commit was sent, so nothing can have been stored. */
    idem__mysql_fail(self, err);
    idem__mysql_disconnect(self);
    return FAILED;
}

static enum idem_status
look_and_write(struct mysql_store *self, struct idem_swap *swaps, size_t count,
               struct look *looks, struct idem_arena *arena,
               enum written *written, struct idem_error *err)
{
    enum idem_status status = look_at(self, swaps, count, looks, arena, err);

    if (status != IDEM_OK) {
        *written = was_disturbed(self) ? AGAIN : FAILED;
        return look_failed(self, swaps, count, status);
    }
    if (!decide(swaps, looks, count)) {
        status = confirm_found(self, swaps, count, err);
        *written = status == IDEM_OK ? DONE : FAILED;
        return status;
    }
    *written = write_all(self, swaps, count, err);
    for (size_t i = 0; *written == CONFLICT && i < count; i++)
        looks[i].doubt |= swaps[i].outcome == IDEM_SWAP_NOT_STORED;
    status = conclude(self, swaps, count, *written, err);
    keep_found(self, swaps, count, *written);
    return status;
}

/* A delete uses only the key, so its expected rev must be read first. */
static bool
may_guess(const struct mysql_store *self, const struct idem_swap *swaps,
          size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (!swaps[i].record)
            return false;
    }
    return self->bulk && self->wary == 0;
}

/* Try a batch until its outcome is known, or until it must be halved. */
static enum written
try_batch(struct mysql_store *self, struct idem_swap *swaps, size_t count,
          struct look *looks, struct idem_arena *arena, bool *doubt,
          enum idem_status *status, struct idem_error *err)
{
    enum written written = AGAIN;

    for (int i = 0; i < TRIES && (written == AGAIN || written == CONFLICT);
         i++) {
        idem__swaps_set(swaps, count, IDEM_SWAP_NOT_STORED);
        *status = idem__mysql_connect(self, err);
        if (*status != IDEM_OK)
            return FAILED;
        if (i == 0 && may_guess(self, swaps, count)) {
            written = guess(self, swaps, count, err);
            *status = conclude(self, swaps, count, written, err);
            if (written == AGAIN)
                self->wary = IDEM_WARY_BATCHES;
            continue;
        }
        if (i == 0 && self->wary > 0)
            self->wary--;
        *status =
            look_and_write(self, swaps, count, looks, arena, &written, err);
        *doubt |= written == CONFLICT;
    }
    return written;
}

static enum idem_status
swap_range(struct mysql_store *self, struct idem_swap *swaps, size_t count,
           struct look *looks, struct idem_arena *arena, bool doubt,
           struct idem_error *err)
{
    enum idem_status status = IDEM_OK, rest;
    enum written written =
        try_batch(self, swaps, count, looks, arena, &doubt, &status, err);

    if (written == DONE || written == LOST)
        return status;
    if (doubt && (written == FAILED || count == 1)) {
        idem__swaps_set(swaps, count, IDEM_SWAP_LOST);
        return idem__fail(err, IDEM_ERR_LOST,
                          "mysql: Galera refused a commit, and the server did "
                          "not tell afterwards whether it has the rows");
    }
    if (written == FAILED)
        return status;
    if (count == 1) {
        swaps[0].outcome = IDEM_SWAP_LOCKED;
        return IDEM_OK;
    }
    self->splits++;
    status = swap_range(self, swaps, count / 2, looks, arena, doubt, err);
    rest = swap_range(self, swaps + count / 2, count - count / 2,
                      looks + count / 2, arena, doubt,
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
        status =
            swap_range(self, swaps + at, len, looks + at, arena, false, &own);
    }
    if (err && status != IDEM_OK)
        *err = own;
    free(looks);
    return status;
}
