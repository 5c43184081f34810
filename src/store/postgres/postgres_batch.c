/*
 * postgres_batch.c - compares and swaps a batch in one pipeline: one round
 * trip, one transaction.
 *
 *   insert  rows that should be absent (on conflict do nothing)
 *   update  rows that have the expected rev
 *   delete  the same, of rows that nobody has locked (skip locked)
 *   notify  the waiters for ended records, if there are any
 *           (postgres_watch.c)
 *   truth   read the rows, only if a guess was wrong not long ago
 *   confirm only with truth: makes sure that the standby has what it read
 *   sync    commits
 *
 * Each of the first three returns the keys that it wrote: those are stored. The
 * guess is that these are all keys. Otherwise a second round trip reads the
 * rows of the remaining keys ("truth"). A row with the new rev was stored
 * before (and is not sent back); a row that still has the expected rev is
 * locked by another open transaction; any other row refuses the swap.
 *
 * Nothing here waits long for a lock that a service holds. That no row is
 * locked is a guess too. If lock_timeout (2 ms) shows that it was wrong, this
 * batch and the next ones are careful: they skip locked rows (skip locked),
 * which costs one more read of each row. A row that another client has inserted
 * but not committed cannot be seen. A service that claims through idem's SQL
 * holds an advisory lock on the key meanwhile, and that lock is tested instead.
 * Inserts of other programs lead to a lock_timeout (20 ms when careful, so that
 * another engine can commit); the batch is then halved until the locked key is
 * alone.
 *
 * With a synchronous standby a commit waits for it. But a commit of another
 * client may become visible before it is on the standby: after a restart of the
 * server, or if that client's wait was cancelled. So a transaction that reads
 * the truth also writes a little (confirm), and nothing is reported before its
 * commit has waited for the standby. A cancelled wait shows as a warning;
 * confirm is then tried once more, alone, and if that wait is cancelled too,
 * the batch is LOST.
 *
 * This needs READ COMMITTED, and always runs with it.
 */
#include "postgres.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define CHUNK_ROWS 1024
#define CHUNK_BYTES ((size_t)8 * 1024 * 1024)
#define CAREFUL_BATCHES 1000

struct postgres_batch {
    struct postgres_params insert, update, drop, notify, truth;
    struct idem_swap *rest[CHUNK_ROWS]; /* the swaps that truth reads */
    bool split; /* a lock of another client, or too many own locks: halve it */
};

static void
gather(struct postgres_batch *batch, uint32_t row_type,
       const struct idem_swap *swaps, size_t count)
{
    idem__postgres_params_start(&batch->insert, 2);
    idem__postgres_params_start(&batch->update, 2);
    idem__postgres_params_start(&batch->drop, 2);
    idem__postgres_params_start(&batch->notify, 2);
    for (size_t i = 0; i < count; i++) {
        const struct idem_swap *swap = &swaps[i];

        if (idem__swap_wakes(swap)) {
            idem__postgres_add_key(&batch->notify, 0, swap->key);
            idem__postgres_add_number(&batch->notify, 1, POSTGRES_INT8,
                                      idem__postgres_wake_lock(swap->key));
            batch->notify.rows++;
        }
        if (!swap->record) {
            idem__postgres_add_key(&batch->drop, 0, swap->key);
            idem__postgres_add_number(&batch->drop, 1, POSTGRES_INT8,
                                      (int64_t)swap->expected);
            batch->drop.rows++;
        } else if (swap->expected == 0) {
            idem__postgres_add_number(&batch->insert, 1, POSTGRES_INT8,
                                      idem__key_lock(swap->key));
            idem__postgres_add_record(&batch->insert, row_type, swap->key,
                                      swap->record);
        } else {
            idem__postgres_add_number(&batch->update, 1, POSTGRES_INT8,
                                      (int64_t)swap->expected);
            idem__postgres_add_record(&batch->update, row_type, swap->key,
                                      swap->record);
        }
    }
}

/* Read the rows of all swaps that are not known to be stored. */
static void
gather_truth(struct postgres_batch *batch, struct idem_swap *swaps,
             size_t count)
{
    struct postgres_params *truth = &batch->truth;

    idem__postgres_params_start(truth, 2);
    for (size_t i = 0; i < count; i++) {
        const struct idem_record *record = swaps[i].record;

        if (swaps[i].outcome == IDEM_SWAP_STORED)
            continue;
        idem__postgres_add_key(truth, 0, swaps[i].key);
        idem__postgres_add_number(truth, 1, POSTGRES_INT8,
                                  record ? (int64_t)record->rev : 0);
        batch->rest[truth->rows++] = &swaps[i];
    }
}

static bool
send_batch(struct postgres_store *self, struct postgres_batch *batch)
{
    bool careful = self->careful > 0;

    return (!careful || PQsendQueryPrepared(
                            self->conn, idem__postgres_names[POSTGRES_PATIENCE],
                            0, NULL, NULL, NULL, 1)) &&
           (!batch->insert.rows ||
            idem__postgres_send(self, POSTGRES_INSERT, &batch->insert)) &&
           (!batch->update.rows ||
            idem__postgres_send(
                self, careful ? POSTGRES_UPDATE_FREE : POSTGRES_UPDATE,
                &batch->update)) &&
           (!batch->drop.rows ||
            idem__postgres_send(self, POSTGRES_DELETE, &batch->drop)) &&
           (!batch->notify.rows ||
            idem__postgres_send(self, POSTGRES_NOTIFY, &batch->notify)) &&
           (!batch->truth.rows ||
            (idem__postgres_send(self, POSTGRES_TRUTH, &batch->truth) &&
             idem__postgres_send_confirm(self))) &&
           PQpipelineSync(self->conn);
}

static void
mark_stored(const PGresult *rows, struct idem_swap *swaps, size_t count)
{
    for (int row = 0; row < PQntuples(rows); row++) {
        size_t at = idem__swap_find(swaps, count, PQgetvalue(rows, row, 0));

        if (at < count)
            swaps[at].outcome = IDEM_SWAP_STORED;
    }
}

/* ---- swaps that were not stored ---------------------------------------- */

/* The outcome of a swap whose new rev is not there. */
static enum idem_status
resolve_one(const PGresult *rows, int row, struct idem_swap *swap,
            struct idem_arena *arena, struct idem_error *err)
{
    struct idem_cell cells[IDEM_COLUMN_COUNT];
    enum idem_status status;
    struct idem_record r;

    if (PQgetisnull(rows, row, 1 + IDEM_COLUMN_REV)) {
        /* Not inserted and not visible: another client has not committed it. */
        swap->outcome = swap->expected == 0 && swap->record ? IDEM_SWAP_LOCKED
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
resolve_rest(const PGresult *rows, struct idem_swap **rest, size_t count,
             struct idem_arena *arena, struct idem_error *err)
{
    enum idem_status status = IDEM_OK;

    for (size_t i = 0; i < count; i++) {
        if (rest[i]->outcome != IDEM_SWAP_STORED)
            rest[i]->outcome = IDEM_SWAP_LOST; /* unless a row says otherwise */
    }
    for (int row = 0; row < PQntuples(rows); row++) {
        size_t at = (size_t)idem__postgres_number(rows, row, 0) - 1;
        enum idem_status one;

        assert(at < count);
        if (rest[at]->outcome == IDEM_SWAP_STORED)
            continue; /* deleted */
        one = resolve_one(rows, row, rest[at], arena, err);
        if (one != IDEM_OK)
            rest[at]->outcome = IDEM_SWAP_NOT_STORED;
        if (status == IDEM_OK)
            status = one;
    }
    for (size_t i = 0; i < count; i++) {
        if (rest[i]->outcome == IDEM_SWAP_LOST)
            rest[i]->outcome = IDEM_SWAP_STORED; /* its rev was there before */
    }
    return status;
}

/* Find out about the swaps that this committed batch did not store: from the
 * truth that came with it, or with a second round trip. */
static enum idem_status
resolve(struct postgres_store *self, struct postgres_batch *batch,
        PGresult *rows, struct idem_swap *swaps, size_t count,
        struct idem_arena *arena, struct idem_error *err)
{
    struct postgres_params *truth = &batch->truth;
    enum idem_status status = IDEM_OK;

    if (rows) {
        self->wary--;
    } else {
        gather_truth(batch, swaps, count);
        if (truth->rows == 0)
            return IDEM_OK;
        self->wary = IDEM_WARY_BATCHES;
        status = idem__postgres_one(
            self,
            idem__postgres_send(self, POSTGRES_TRUTH, truth) &&
                idem__postgres_send_confirm(self),
            &rows, err);
    }
    if (status == IDEM_OK)
        status = resolve_rest(rows, batch->rest, truth->rows, arena, err);
    PQclear(rows);
    return status;
}

/* ---- a batch ------------------------------------------------------------ */

/* A lock of another client, a deadlock, or no room left for locks. */
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
    idem__postgres_abandon(self);
    idem__swaps_set(swaps, count, IDEM_SWAP_LOST);
    return idem__fail(err, IDEM_ERR_LOST,
                      "postgres: the connection was lost, or the server gave "
                      "no reply in time, during a commit");
}

/* The wait for the standby was cancelled: does the standby have the commit? */
static bool
confirmed(struct postgres_store *self, struct idem_error *err)
{
    PGresult *rows;
    enum idem_status status =
        idem__postgres_one(self, idem__postgres_send_confirm(self), &rows, err);

    PQclear(rows);
    return status == IDEM_OK;
}

/* Read the answers of one batch. Until the sync, nothing is committed. */
static enum idem_status
read_batch(struct postgres_store *self, struct postgres_batch *batch,
           struct idem_swap *swaps, size_t count, struct idem_arena *arena,
           struct idem_error *err)
{
    int64_t deadline = idem__postgres_deadline(self);
    enum idem_status status = IDEM_OK;
    bool lost = false, failed = false;
    PGresult *truth = NULL;

    idem__swaps_set(swaps, count, IDEM_SWAP_NOT_STORED);
    for (size_t i = 0; i < count; i++)
        swaps[i].found.state = IDEM_STATE_ABSENT;
    for (;;) {
        PGresult *result = idem__postgres_result(self, deadline, &lost);
        ExecStatusType is = PQresultStatus(result);

        if (lost) {
            PQclear(result);
            PQclear(truth);
            return lose(self, swaps, count, err);
        }
        if (!result)
            continue;
        if (is == PGRES_FATAL_ERROR && !failed) {
            failed = true;
            batch->split = worth_halving(result);
            status = idem__postgres_fail(self, result, err);
        } else if (is == PGRES_TUPLES_OK && PQnfields(result) == 1) {
            mark_stored(result, swaps, count);
        } else if (is == PGRES_TUPLES_OK &&
                   PQnfields(result) == 1 + IDEM_COLUMN_COUNT) {
            truth = result;
            continue;
        }
        PQclear(result);
        if (is == PGRES_PIPELINE_SYNC)
            break;
    }
    if (!failed && self->warned && !confirmed(self, err)) {
        PQclear(truth);
        return lose(self, swaps, count, err);
    }
    if (!failed)
        return resolve(self, batch, truth, swaps, count, arena, err);
    PQclear(truth);
    idem__swaps_set(swaps, count, IDEM_SWAP_NOT_STORED);
    /* The table may have been replaced: a new connection checks it. */
    if (!batch->split)
        idem__postgres_disconnect(self);
    return status;
}

static enum idem_status
swap_range(struct postgres_store *self, struct postgres_batch *batch,
           struct idem_swap *swaps, size_t count, struct idem_arena *arena,
           struct idem_error *err)
{
    enum idem_status status = idem__postgres_connect(self, err), rest;
    bool careful = self->careful > 0;

    if (status != IDEM_OK)
        return status;
    gather(batch, self->row_type, swaps, count);
    batch->truth.rows = 0;
    if (self->wary > 0)
        gather_truth(batch, swaps, count);
    batch->split = false;
    self->warned = false;
    if (!send_batch(self, batch)) {
        /* Without the sync nothing can have been committed. */
        idem__postgres_disconnect(self);
        return idem__fail(err, IDEM_ERR_UNAVAILABLE,
                          "postgres: a batch could not be sent");
    }
    if (!idem__postgres_flush(self, idem__postgres_deadline(self)))
        return lose(self, swaps, count, err);
    status = read_batch(self, batch, swaps, count, arena, err);
    if (careful)
        self->careful--;
    if (!batch->split)
        return status;

    if (!careful) {
        self->careful = CAREFUL_BATCHES;
        return swap_range(self, batch, swaps, count, arena, err);
    }
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

enum idem_status
idem__postgres_swap(struct idem_store *store, struct idem_swap *swaps,
                    size_t count, struct idem_arena *arena,
                    struct idem_error *err)
{
    struct postgres_store *self = (struct postgres_store *)store;
    struct postgres_batch *batch = calloc(1, sizeof(*batch));
    enum idem_status status = IDEM_OK;
    size_t len;

    idem__swaps_set(swaps, count, IDEM_SWAP_NOT_STORED);
    self->written += count;
    if (!batch)
        return idem__fail(err, IDEM_ERR_MEMORY, "postgres: out of memory");
    for (size_t at = 0; at < count && status == IDEM_OK; at += len) {
        len = idem__swap_chunk(swaps + at, count - at, CHUNK_ROWS, CHUNK_BYTES);
        status = swap_range(self, batch, swaps + at, len, arena, err);
    }
    idem__postgres_params_clear(&batch->insert);
    idem__postgres_params_clear(&batch->update);
    idem__postgres_params_clear(&batch->drop);
    idem__postgres_params_clear(&batch->notify);
    idem__postgres_params_clear(&batch->truth);
    free(batch);
    return status;
}
