/*
 * postgres.c - postgres://: records in table idem.idem_record of PostgreSQL.
 *
 * A batch is one pipeline: one round trip, one transaction.
 *
 *   insert  what should be absent   on conflict do nothing
 *   update  what has the rev expected, of rows that nobody holds (skip locked)
 *   delete  likewise
 *   truth   the rows, as they are now, of everything that was not stored
 *   sync    commits
 *
 * What became of a swap is read from the truth alone: a row with the new rev is
 * stored (and not even sent back); one that still has the expected rev is held
 * by somebody's open transaction; any other is refused with what is there.
 *
 * Nothing here waits for a lock that a service holds. Rows that exist are
 * passed over. A row that somebody has inserted but not committed cannot be
 * seen; who claims through idem's SQL holds an advisory lock on the key
 * meanwhile, and that is tested instead. Other people's inserts run into
 * lock_timeout (20 ms): then the batch is halved until the culprit stands
 * alone.
 *
 * READ COMMITTED is all this needs, and all it is ever run under.
 */
#include "postgres.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TIMEOUT_MS 2000
#define CHUNK_ROWS 1024
#define CHUNK_BYTES ((size_t)8 * 1024 * 1024)
#define SWEEP_ROWS 500
#define SWEEP_EVERY_US 500000
#define CHECK_EVERY_US 10000000

#define COLUMNS                                                                \
    "key_hash, type, state, mode, kind, flags, attempt, fence, rev, created, " \
    "updated, lease_until, expires, nonce, fingerprint, scope, id, subject, "  \
    "result"
#define R_COLUMNS                                                              \
    "r.key_hash, r.type, r.state, r.mode, r.kind, r.flags, r.attempt, "        \
    "r.fence, r.rev, r.created, r.updated, r.lease_until, r.expires, "         \
    "r.nonce, r.fingerprint, r.scope, r.id, r.subject"
#define ARRAYS                                                                 \
    "$1::bytea[], $2::int2[], $3::int2[], $4::int2[], $5::int2[], "            \
    "$6::int2[], $7::int8[], $8::int8[], $9::int8[], $10::int8[], "            \
    "$11::int8[], $12::int8[], $13::int8[], $14::bytea[], $15::bytea[], "      \
    "$16::bytea[], $17::bytea[], $18::bytea[], $19::bytea[], $20::int8[]"
#define TABLE "idem.idem_record"

const char *const idem__postgres_names[POSTGRES_STATEMENTS] = {
    "idem_check", "idem_insert", "idem_update", "idem_delete",
    "idem_truth", "idem_load",   "idem_scan",   "idem_scan_executing",
    "idem_sweep", "idem_clock",
};

const char *const idem__postgres_texts[POSTGRES_STATEMENTS] = {
    [POSTGRES_CHECK] =
        "select case when pg_is_in_recovery() then 'standby' else '' end, "
        "current_setting('fsync'), current_setting('full_page_writes'), "
        "current_setting('synchronous_commit')",
    [POSTGRES_INSERT] =
        "insert into " TABLE " as r (" COLUMNS ") select " COLUMNS
        " from unnest(" ARRAYS ") as n(" COLUMNS ", lock) "
        "where not exists "
        "(select 1 from " TABLE " o where o.key_hash = n.key_hash) "
        "and pg_try_advisory_xact_lock_shared(n.lock) "
        "on conflict (key_hash) do nothing",
    [POSTGRES_UPDATE] =
        "with got as (select n.* from unnest(" ARRAYS ") as n(" COLUMNS
        ", expected) join " TABLE " o on o.key_hash = n.key_hash "
        "and o.rev = n.expected for update of o skip locked) "
        "update " TABLE " r set state = got.state, mode = got.mode, "
        "kind = got.kind, flags = got.flags, attempt = got.attempt, "
        "fence = got.fence, rev = got.rev, created = got.created, "
        "updated = got.updated, lease_until = got.lease_until, "
        "expires = got.expires, nonce = got.nonce, "
        "fingerprint = got.fingerprint, subject = got.subject, "
        "result = got.result from got where r.key_hash = got.key_hash",
    [POSTGRES_DELETE] =
        "with got as (select o.key_hash from "
        "unnest($1::bytea[], $2::int8[]) as n(key_hash, expected) "
        "join " TABLE " o on o.key_hash = n.key_hash and o.rev = n.expected "
        "for update of o skip locked) "
        "delete from " TABLE " r using got where r.key_hash = got.key_hash "
        "returning r.key_hash",
    [POSTGRES_TRUTH] =
        "select n.at, " R_COLUMNS ", r.result from "
        "unnest($1::bytea[], $2::int8[]) with ordinality "
        "as n(key_hash, rev, at) left join " TABLE " r "
        "on r.key_hash = n.key_hash where r.rev is distinct from n.rev",
    [POSTGRES_LOAD] =
        "select n.at, " R_COLUMNS ", "
        "case when n.whole = 1 then r.result else ''::bytea end from "
        "unnest($1::bytea[], $2::int2[]) with ordinality "
        "as n(key_hash, whole, at) join " TABLE " r "
        "on r.key_hash = n.key_hash",
    [POSTGRES_SCAN] = "select " R_COLUMNS " from " TABLE " r "
                      "where r.key_hash > $1::bytea "
                      "order by r.key_hash limit $2::int8",
    [POSTGRES_SCAN_EXECUTING] = "select " R_COLUMNS " from " TABLE " r "
                                "where r.state = 2 and r.key_hash > $1::bytea "
                                "order by r.key_hash limit $2::int8",
    [POSTGRES_SWEEP] =
        "with dead as (select key_hash from " TABLE " where state <> 2 "
        "and expires > 0 and expires < "
        "(extract(epoch from clock_timestamp()) * 1000)::int8 "
        "order by expires limit $1::int8 for update skip locked) "
        "delete from " TABLE " r using dead where r.key_hash = dead.key_hash",
    [POSTGRES_CLOCK] =
        "select (extract(epoch from clock_timestamp()) * 1000000)::int8",
};

/* ---- swap ------------------------------------------------------------ */

struct batch {
    struct postgres_params insert, update, drop, truth;
    bool split; /* somebody's lock, or too many of ours: halve it */
};

static void
set_outcomes(struct idem_swap *swaps, size_t count, enum idem_outcome outcome)
{
    for (size_t i = 0; i < count; i++)
        swaps[i].outcome = outcome;
}

/* The advisory lock that a claim in idem's SQL holds: the key's first 8 bytes.
 */
static int64_t
lock_of(const uint8_t *key)
{
    uint64_t lock = 0;

    for (int i = 0; i < 8; i++)
        lock = lock << 8 | key[i];
    return (int64_t)lock;
}

static void
gather(struct batch *batch, const struct idem_swap *swaps, size_t count)
{
    const size_t last = IDEM_COLUMN_COUNT;

    idem__postgres_params_start(&batch->insert, last + 1);
    idem__postgres_params_start(&batch->update, last + 1);
    idem__postgres_params_start(&batch->drop, 2);
    idem__postgres_params_start(&batch->truth, 2);
    for (size_t i = 0; i < count; i++) {
        const struct idem_swap *swap = &swaps[i];
        struct idem_cell key = {.bytes = {swap->key, IDEM_KEY_LEN}};

        if (!swap->record) {
            idem__postgres_add_bytes(&batch->drop, 0, &key);
            idem__postgres_add_number(&batch->drop, 1, POSTGRES_INT8,
                                      (int64_t)swap->expected);
            batch->drop.rows++;
        } else if (swap->expected == 0) {
            idem__postgres_add_number(&batch->insert, last, POSTGRES_INT8,
                                      lock_of(swap->key));
            idem__postgres_add_record(&batch->insert, swap->key, swap->record);
        } else {
            idem__postgres_add_number(&batch->update, last, POSTGRES_INT8,
                                      (int64_t)swap->expected);
            idem__postgres_add_record(&batch->update, swap->key, swap->record);
        }
        idem__postgres_add_bytes(&batch->truth, 0, &key);
        idem__postgres_add_number(&batch->truth, 1, POSTGRES_INT8,
                                  swap->record ? (int64_t)swap->record->rev
                                               : 0);
        batch->truth.rows++;
    }
}

static bool
send_batch(struct postgres_store *self, struct batch *batch)
{
    return (!batch->insert.rows ||
            idem__postgres_send(self, POSTGRES_INSERT, &batch->insert)) &&
           (!batch->update.rows ||
            idem__postgres_send(self, POSTGRES_UPDATE, &batch->update)) &&
           (!batch->drop.rows ||
            idem__postgres_send(self, POSTGRES_DELETE, &batch->drop)) &&
           idem__postgres_send(self, POSTGRES_TRUTH, &batch->truth) &&
           PQpipelineSync(self->conn);
}

/* Deleted keys come back in no particular order. */
static void
mark_deleted(const PGresult *rows, struct idem_swap *swaps, size_t count)
{
    for (int row = 0; row < PQntuples(rows); row++) {
        for (size_t i = 0; i < count; i++) {
            if (memcmp(swaps[i].key, PQgetvalue(rows, row, 0), IDEM_KEY_LEN) ==
                0)
                swaps[i].found.state = IDEM_STATE_FREE; /* see settle_one */
        }
    }
}

/* What became of a swap whose new rev is not there. */
static enum idem_status
settle_one(const PGresult *rows, int row, struct idem_swap *swap,
           struct idem_arena *arena, struct idem_error *err)
{
    struct idem_cell cells[IDEM_COLUMN_COUNT];
    bool deleted = !swap->record && swap->found.state == IDEM_STATE_FREE;
    enum idem_status status;
    struct idem_record r;

    swap->found.state = IDEM_STATE_ABSENT;
    if (PQgetisnull(rows, row, 1 + IDEM_COLUMN_REV)) {
        /* Not inserted and nothing to see: somebody has not committed it. */
        swap->outcome = deleted ? IDEM_SWAP_STORED
                        : swap->expected == 0 && swap->record
                            ? IDEM_SWAP_LOCKED
                            : IDEM_SWAP_REFUSED;
        return IDEM_OK;
    }
    idem__postgres_cells(rows, row, 1, IDEM_COLUMN_COUNT, cells);
    status = idem__cells_to_record(cells, &r, err);
    if (status != IDEM_OK)
        return status;
    if (r.rev == swap->expected) {
        swap->outcome = IDEM_SWAP_LOCKED;
        return IDEM_OK;
    }
    if (!idem_arena_record(arena, &r, &swap->found))
        return idem__fail(err, IDEM_ERR_MEMORY, "postgres: out of memory");
    swap->outcome = IDEM_SWAP_REFUSED;
    return IDEM_OK;
}

static enum idem_status
read_truth(const PGresult *rows, struct idem_swap *swaps, size_t count,
           struct idem_arena *arena, struct idem_error *err)
{
    enum idem_status status = IDEM_OK;

    for (int row = 0; row < PQntuples(rows); row++) {
        size_t at = (size_t)idem__postgres_number(rows, row, 0) - 1;
        enum idem_status one;

        assert(at < count);
        one = settle_one(rows, row, &swaps[at], arena, err);
        if (one != IDEM_OK)
            swaps[at].outcome = IDEM_SWAP_NOT_STORED;
        if (status == IDEM_OK)
            status = one;
    }
    return status;
}

/* Somebody else's lock, a deadlock, or no room left for locks. */
static bool
worth_halving(const PGresult *result)
{
    const char *state = PQresultErrorField(result, PG_DIAG_SQLSTATE);

    return state &&
           (strcmp(state, "55P03") == 0 || strcmp(state, "40P01") == 0 ||
            strcmp(state, "53200") == 0);
}

static enum idem_status
lose(struct postgres_store *self, struct idem_swap *swaps, size_t count,
     struct idem_error *err)
{
    idem__postgres_disconnect(self);
    set_outcomes(swaps, count, IDEM_SWAP_LOST);
    return idem__fail(err, IDEM_ERR_LOST,
                      "postgres: the connection was lost, or the server gave "
                      "no answer in time, during a commit");
}

/* Read the answers of one batch. Until the sync, nothing is committed. */
static enum idem_status
read_batch(struct postgres_store *self, struct batch *batch,
           struct idem_swap *swaps, size_t count, struct idem_arena *arena,
           struct idem_error *err)
{
    int64_t deadline = idem__postgres_deadline(self);
    enum idem_status status = IDEM_OK;
    bool lost = false, failed = false;

    set_outcomes(swaps, count, IDEM_SWAP_STORED);
    for (size_t i = 0; i < count; i++)
        swaps[i].found.state = IDEM_STATE_ABSENT;
    for (;;) {
        PGresult *result = idem__postgres_result(self, deadline, &lost);
        ExecStatusType is = PQresultStatus(result);

        if (lost) {
            PQclear(result);
            return lose(self, swaps, count, err);
        }
        if (!result)
            continue;
        if (is == PGRES_FATAL_ERROR && !failed) {
            failed = true;
            batch->split = worth_halving(result);
            status = idem__postgres_fail(self, result, err);
        } else if (is == PGRES_TUPLES_OK && PQnfields(result) == 1) {
            mark_deleted(result, swaps, count);
        } else if (is == PGRES_TUPLES_OK) {
            status = read_truth(result, swaps, count, arena, err);
        }
        PQclear(result);
        if (is == PGRES_PIPELINE_SYNC)
            break;
    }
    if (failed)
        set_outcomes(swaps, count, IDEM_SWAP_NOT_STORED);
    return status;
}

static enum idem_status
swap_range(struct postgres_store *self, struct batch *batch,
           struct idem_swap *swaps, size_t count, struct idem_arena *arena,
           struct idem_error *err)
{
    enum idem_status status = idem__postgres_connect(self, err), rest;

    if (status != IDEM_OK)
        return status;
    gather(batch, swaps, count);
    batch->split = false;
    if (!send_batch(self, batch)) {
        /* Without the sync nothing can have been committed. */
        idem__postgres_disconnect(self);
        return idem__fail(err, IDEM_ERR_UNAVAILABLE,
                          "postgres: a batch could not be sent");
    }
    if (!idem__postgres_flush(self, idem__postgres_deadline(self)))
        return lose(self, swaps, count, err);
    status = read_batch(self, batch, swaps, count, arena, err);
    if (!batch->split)
        return status;

    self->splits++;
    if (count == 1) {
        swaps[0].outcome = IDEM_SWAP_LOCKED;
        return IDEM_OK;
    }
    status = swap_range(self, batch, swaps, count / 2, arena, err);
    rest = swap_range(self, batch, swaps + count / 2, count - count / 2, arena,
                      status == IDEM_OK ? err : NULL);
    return status == IDEM_OK ? rest : status;
}

/* How many swaps fit into one pipeline. */
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
    struct postgres_store *self = (struct postgres_store *)store;
    struct batch *batch = calloc(1, sizeof(*batch));
    enum idem_status status = IDEM_OK;
    size_t len;

    set_outcomes(swaps, count, IDEM_SWAP_NOT_STORED);
    if (!batch)
        return idem__fail(err, IDEM_ERR_MEMORY, "postgres: out of memory");
    for (size_t at = 0; at < count && status == IDEM_OK; at += len) {
        len = chunk_len(swaps + at, count - at);
        status = swap_range(self, batch, swaps + at, len, arena, err);
    }
    idem__postgres_params_clear(&batch->insert);
    idem__postgres_params_clear(&batch->update);
    idem__postgres_params_clear(&batch->drop);
    idem__postgres_params_clear(&batch->truth);
    free(batch);
    return status;
}

/* ---- one statement --------------------------------------------------- */

/* Send is done by the caller; wait for its one result. */
static enum idem_status
finish_one(struct postgres_store *self, bool sent, PGresult **rows,
           struct idem_error *err)
{
    int64_t deadline = idem__postgres_deadline(self);
    enum idem_status status = IDEM_OK;
    bool lost = false;

    *rows = NULL;
    if (!sent || !PQpipelineSync(self->conn) ||
        !idem__postgres_flush(self, deadline))
        lost = true;
    while (!lost) {
        PGresult *result = idem__postgres_result(self, deadline, &lost);
        ExecStatusType is = PQresultStatus(result);

        if (!result || lost) {
            PQclear(result);
            continue;
        }
        if (is == PGRES_FATAL_ERROR && status == IDEM_OK)
            status = idem__postgres_fail(self, result, err);
        if (is == PGRES_TUPLES_OK)
            *rows = result;
        else
            PQclear(result);
        if (is == PGRES_PIPELINE_SYNC)
            break;
    }
    if (lost) {
        PQclear(*rows);
        *rows = NULL;
        idem__postgres_disconnect(self);
        return idem__fail(err, IDEM_ERR_UNAVAILABLE,
                          "postgres: the connection was lost, or the server "
                          "gave no answer in time");
    }
    return status;
}

static bool
send_plain(struct postgres_store *self, enum postgres_statement statement,
           int count, const char *const *values, const int *lengths)
{
    static const int binary[2] = {1, 1};

    return PQsendQueryPrepared(self->conn, idem__postgres_names[statement],
                               count, values, lengths, binary,
                               statement != POSTGRES_CHECK) == 1;
}

static void
put_count(uint8_t out[8], uint64_t value)
{
    for (int i = 0; i < 8; i++)
        out[i] = (uint8_t)(value >> (56 - 8 * i));
}

/* ---- load, scan, clock ----------------------------------------------- */

static enum idem_status
load_batch(struct idem_store *store, struct idem_load *loads, size_t count,
           struct idem_arena *arena, struct idem_error *err)
{
    struct postgres_store *self = (struct postgres_store *)store;
    enum idem_status status = idem__postgres_connect(self, err);
    struct postgres_params params = {0};
    struct idem_cell cells[IDEM_COLUMN_COUNT];
    PGresult *rows = NULL;

    if (status != IDEM_OK || count == 0)
        return status;
    idem__postgres_params_start(&params, 2);
    for (size_t i = 0; i < count; i++) {
        struct idem_cell key = {.bytes = {loads[i].key, IDEM_KEY_LEN}};

        idem__postgres_add_bytes(&params, 0, &key);
        idem__postgres_add_number(&params, 1, POSTGRES_INT2,
                                  loads[i].with_result);
        params.rows++;
    }
    status = finish_one(self, idem__postgres_send(self, POSTGRES_LOAD, &params),
                        &rows, err);
    idem__postgres_params_clear(&params);
    if (status == IDEM_OK) {
        for (size_t i = 0; i < count; i++)
            loads[i].record.state = IDEM_STATE_ABSENT;
    }
    for (int row = 0; status == IDEM_OK && row < PQntuples(rows); row++) {
        size_t at = (size_t)idem__postgres_number(rows, row, 0) - 1;
        struct idem_record r;

        idem__postgres_cells(rows, row, 1, IDEM_COLUMN_COUNT, cells);
        status = idem__cells_to_record(cells, &r, err);
        if (status == IDEM_OK &&
            !idem_arena_record(arena, &r, &loads[at].record))
            status =
                idem__fail(err, IDEM_ERR_MEMORY, "postgres: out of memory");
    }
    PQclear(rows);
    return status;
}

static enum idem_status
give_rows(const PGresult *rows, const struct idem_filter *filter,
          const struct idem_now *now, struct idem_cursor *cursor, size_t count,
          size_t limit, idem_each_fn *each, void *arg, struct idem_error *err)
{
    struct idem_cell cells[IDEM_COLUMN_COUNT];
    size_t given = 0;
    struct idem_record r;

    for (int row = 0; row < PQntuples(rows); row++) {
        enum idem_status status;

        idem__postgres_cells(rows, row, 0, IDEM_COLUMN_RESULT, cells);
        status = idem__cells_to_record(cells, &r, err);
        if (status != IDEM_OK)
            return status;
        if (!idem__filter_match(filter, &r, now))
            continue;
        if (!each(arg, &r) || ++given >= count) {
            idem__cursor_set(cursor, cells[IDEM_COLUMN_KEY].bytes.data);
            return IDEM_OK;
        }
    }
    idem__cursor_set(cursor, (size_t)PQntuples(rows) < limit
                                 ? NULL
                                 : cells[IDEM_COLUMN_KEY].bytes.data);
    return IDEM_OK;
}

static enum idem_status
scan_records(struct idem_store *store, const struct idem_filter *filter,
             const struct idem_now *now, struct idem_cursor *cursor,
             size_t count, idem_each_fn *each, void *arg,
             struct idem_error *err)
{
    struct postgres_store *self = (struct postgres_store *)store;
    bool executing = filter->doubt || filter->state == IDEM_STATE_EXECUTING;
    size_t limit = idem__scan_rows(count);
    uint8_t last[IDEM_KEY_LEN], limit_bytes[8];
    const char *values[2] = {(const char *)last, (const char *)limit_bytes};
    int lengths[2] = {IDEM_KEY_LEN, 8};
    PGresult *rows = NULL;
    enum idem_status status;
    bool start, sent;

    status = idem__cursor_key(cursor, last, &start, err);
    if (status == IDEM_OK)
        status = idem__postgres_connect(self, err);
    if (status != IDEM_OK)
        return status;
    if (start)
        lengths[0] = 0;
    put_count(limit_bytes, limit);
    sent = send_plain(self, executing ? POSTGRES_SCAN_EXECUTING : POSTGRES_SCAN,
                      2, values, lengths);
    status = finish_one(self, sent, &rows, err);
    if (status == IDEM_OK)
        status =
            give_rows(rows, filter, now, cursor, count, limit, each, arg, err);
    PQclear(rows);
    return status;
}

static enum idem_status
read_clock(struct idem_store *store, int64_t *now_us, struct idem_error *err)
{
    struct postgres_store *self = (struct postgres_store *)store;
    enum idem_status status = idem__postgres_connect(self, err);
    PGresult *rows = NULL;

    if (status != IDEM_OK)
        return status;
    status = finish_one(self, send_plain(self, POSTGRES_CLOCK, 0, NULL, NULL),
                        &rows, err);
    if (status == IDEM_OK)
        *now_us = idem__postgres_number(rows, 0, 0);
    PQclear(rows);
    return status;
}

/* ---- tend ------------------------------------------------------------ */

static void
sweep(struct postgres_store *self, int64_t now_us)
{
    uint8_t limit[8];
    const char *values[1] = {(const char *)limit};
    int lengths[1] = {8};
    PGresult *rows;

    if (now_us - self->swept_at_us < SWEEP_EVERY_US)
        return;
    self->swept_at_us = now_us;
    put_count(limit, SWEEP_ROWS);
    finish_one(self, send_plain(self, POSTGRES_SWEEP, 1, values, lengths),
               &rows, NULL);
    PQclear(rows);
}

/* A server can be reconfigured, or become a standby, under our feet. */
static void
check(struct postgres_store *self, int64_t now_us)
{
    struct idem_error err;
    PGresult *rows;

    if (now_us - self->checked_at_us < CHECK_EVERY_US)
        return;
    self->checked_at_us = now_us;
    if (finish_one(self, send_plain(self, POSTGRES_CHECK, 0, NULL, NULL), &rows,
                   NULL) == IDEM_OK &&
        idem__postgres_judge(self, rows, &err) != IDEM_OK) {
        idem__log(&self->options, IDEM_LOG_ALARM, "%s", err.text);
        idem__postgres_disconnect(self);
    }
    PQclear(rows);
}

static void
tend(struct idem_store *store)
{
    struct postgres_store *self = (struct postgres_store *)store;
    int64_t now_us = self->clocks->boot_us(self->clocks->arg);

    if (!self->conn)
        return;
    sweep(self, now_us);
    if (self->conn)
        check(self, now_us);
}

static void
figures(struct idem_store *store, idem_figure_fn *each, void *arg)
{
    struct postgres_store *self = (struct postgres_store *)store;

    each(arg, "postgres_connected", self->conn ? 1 : 0);
    each(arg, "postgres_connects", (double)self->connects);
    each(arg, "postgres_splits", (double)self->splits);
}

/* ---- open and close -------------------------------------------------- */

static void
close_store(struct idem_store *store)
{
    struct postgres_store *self = (struct postgres_store *)store;

    if (!self)
        return;
    idem__postgres_disconnect(self);
    free(self->url);
    free(self);
}

static enum idem_status
parse(struct postgres_store *self, const char *url, struct idem_error *err)
{
    char timeout[24] = "", shown[200];
    PQconninfoOption *parsed;
    char *why = NULL;

    self->timeout_us = INT64_C(1000) * TIMEOUT_MS;
    self->url = strdup(url);
    if (!self->url)
        return idem__fail(err, IDEM_ERR_MEMORY, "postgres: out of memory");
    idem__url_take(self->url, "unsafe", self->unsafe, sizeof(self->unsafe));
    if (idem__url_take(self->url, "timeout_ms", timeout, sizeof(timeout)))
        self->timeout_us = strtoll(timeout, NULL, 10) * 1000;
    parsed = PQconninfoParse(self->url, &why);
    /* libpq's own words may quote the password. */
    PQfreemem(why);
    if (!parsed || self->timeout_us < 10000 || self->timeout_us > 600000000) {
        PQconninfoFree(parsed);
        idem__url_redact(url, shown, sizeof(shown));
        return idem__fail(err, IDEM_ERR_INVALID,
                          "\"%s\" is not a URL that PostgreSQL takes: write "
                          "postgres://user:password@host:5432/database",
                          shown);
    }
    PQconninfoFree(parsed);
    return IDEM_OK;
}

static enum idem_status
make_store(const char *url, const struct idem_store_options *options,
           struct postgres_store **made, struct idem_error *err)
{
    struct postgres_store *self = calloc(1, sizeof(*self));
    enum idem_status status;

    if (!self)
        return idem__fail(err, IDEM_ERR_MEMORY, "postgres: out of memory");
    self->base.type = &idem__postgres_store;
    self->base.max_record = idem__encoded_max(IDEM_RESULT_MAX);
    self->options = *options;
    self->clocks = options->clocks ? options->clocks : &idem__system_clocks;
    status = parse(self, url, err);
    if (status != IDEM_OK) {
        close_store(&self->base);
        return status;
    }
    *made = self;
    return IDEM_OK;
}

static enum idem_status
open_store(const char *url, const struct idem_store_options *options,
           struct idem_store **store, struct idem_error *err)
{
    struct postgres_store *self;
    enum idem_status status = make_store(url, options, &self, err);

    if (status != IDEM_OK)
        return status;
    status = idem__postgres_connect(self, err);
    if (status != IDEM_OK) {
        close_store(&self->base);
        return status;
    }
    if (self->unsafe[0])
        idem__log(options, IDEM_LOG_WARNING,
                  "postgres: unsafe=%s: a power cut may undo what was answered",
                  self->unsafe);
    *store = &self->base;
    return IDEM_OK;
}

static enum idem_status
init_store(const char *url, struct idem_error *err)
{
    struct idem_store_options options = {0};
    struct postgres_store *self;
    enum idem_status status = make_store(url, &options, &self, err);
    PGresult *result;

    if (status != IDEM_OK)
        return status;
    status = idem__postgres_connect_bare(self, err);
    if (status == IDEM_OK) {
        result = PQexec(self->conn, idem__postgres_script);
        if (PQresultStatus(result) == PGRES_FATAL_ERROR)
            status = idem__postgres_fail(self, result, err);
        PQclear(result);
    }
    close_store(&self->base);
    return status;
}

const struct idem_store_type idem__postgres_store = {
    .scheme = "postgres",
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
