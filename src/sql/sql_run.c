/*
 * sql_run.c - idem_sql_run: claim, business and finish in one transaction.
 *
 *   begin; claim; savepoint
 *     fn
 *       succeeded -> finish; commit
 *       failed    -> strict: back to the savepoint, finish as failed, commit
 *                    loose:  roll back everything
 *
 * There are two ways to begin and to end: in one round trip, if the database
 * can do that and the guess that there is no record is right; and one statement
 * after the other, which always works.
 *
 * idem_sql_run_statements needs no savepoint and no second write: begin, the
 * final record, the statements and commit go in one round trip.
 */
#include "driver.h"

#include <sodium.h>
#include <string.h>
#include <strings.h>

#define SAVEPOINT "savepoint idem_run"
#define BACK "rollback to savepoint idem_run"

struct run {
    struct idem_op op;
    uint8_t nonce[IDEM_NONCE_LEN];
    uint8_t key[IDEM_KEY_LEN];
    struct idem_now now;
    struct idem_record claim;
    bool claimed;
};

/* Twice if necessary: a rollback that had no memory for its statement must not
 * leave the transaction open. */
static void
roll_back(struct idem_sql *db)
{
    struct idem_sql_fault kept = db->fault;

    db->held = false;
    for (int i = 0; i < 2 && db->driver->inside(db) != SQL_OUTSIDE; i++)
        idem__sql_run(db, "rollback", NULL, 0);
    db->fault = kept; /* report the first error */
}

static bool
run_batch(struct idem_sql *db, const struct sql_batch *batch)
{
    for (size_t i = 0; i < batch->count; i++) {
        if (!batch->calls[i].sql)
            return false;
    }
    return db->driver->at_once->run(db, batch->calls, batch->count);
}

static void
add_text(struct sql_batch *batch, const char *sql)
{
    batch->calls[batch->count++].sql = sql;
}

static enum idem_status
prepare(struct idem_sql *db, const struct idem_op *op, struct run *run,
        struct idem_error *err)
{
    enum idem_status status;

    memset(run, 0, sizeof(*run));
    run->op = *op;
    run->op.verb = IDEM_BEGIN;
    status = idem__op_check(&run->op, err);
    if (status != IDEM_OK)
        return status;
    if (!run->op.nonce) {
        randombytes_buf(run->nonce, sizeof(run->nonce));
        run->nonce[0] |= 1;
        run->op.nonce = run->nonce;
    }
    if (db->driver->inside(db) != SQL_OUTSIDE)
        return idem__fail(err, IDEM_ERR_INVALID,
                          "%s: a transaction is open already: idem_sql_run "
                          "begins its own; inside yours use idem_sql_claim and "
                          "idem_sql_finish",
                          db->driver->name);
    idem__key(run->op.type, run->op.scope, run->op.id, run->key);
    status = idem__sql_need_engine(db, db->driver->table, err);
    return status == IDEM_OK ? idem__sql_now(db, &run->now, err) : status;
}

/* A token was issued before, so there is a record and no guess is possible. */
static bool
goes_at_once(const struct idem_sql *db, const struct run *run)
{
    return db->in_one_go && run->op.type != IDEM_TYPE_TOKEN;
}

/* For an open transaction. guess: assume that there is no record. */
static enum idem_status
claim_one_by_one(struct idem_sql *db, struct run *run, bool guess,
                 struct idem_answer *answer, struct idem_error *err)
{
    enum idem_status status = idem__sql_claim(db, &run->op, guess, answer, err);

    if (status != IDEM_OK || answer->verdict != IDEM_V_STARTED)
        return status;
    run->claimed = true;
    if (!idem__sql_run(db, SAVEPOINT, NULL, 0))
        return idem__sql_fail(db, err);
    return IDEM_OK;
}

static enum idem_status
start_one_by_one(struct idem_sql *db, struct run *run, bool guess,
                 struct idem_answer *answer, struct idem_error *err)
{
    if (idem__sql_run(db, db->driver->begin, NULL, 0))
        return claim_one_by_one(db, run, guess, answer, err);
    if (db->fault.cause == IDEM_SQL_LOCK_TIMEOUT)
        return idem__sql_answer(answer, IDEM_V_BUSY, NULL, &run->now, err);
    return idem__sql_fail(db, err);
}

/* If the guess is wrong, start_one_by_one finds out what the record is. */
static enum idem_status
start_at_once(struct idem_sql *db, struct run *run, struct idem_answer *answer,
              struct idem_error *err)
{
    struct sql_batch batch = {.count = 0};
    enum idem_status status;
    int64_t rows;
    bool begun;

    idem__step(NULL, &run->op, &run->now, &run->claim);
    run->claim.rev = idem__new_rev();
    rows = db->driver->at_once->claim(db, run->key, &run->claim, &batch);
    add_text(&batch, SAVEPOINT);
    begun = run_batch(db, &batch);
    run->claimed = begun && db->rows.affected == rows;
    if (run->claimed)
        return idem__sql_answer(answer, IDEM_V_STARTED, &run->claim, &run->now,
                                err);
    run->claim = (struct idem_record){0};
    if (!begun && db->in_one_go && db->fault.cause != IDEM_SQL_DUPLICATE_KEY &&
        db->fault.cause != IDEM_SQL_LOCK_TIMEOUT)
        return idem__sql_fail(db, err);
    if (!begun)
        return start_one_by_one(db, run, false, answer, err);
    status = claim_one_by_one(db, run, false, answer, err);
    if (status != IDEM_ERR_INVALID || db->says_level)
        return status;
    db->says_level = true; /* the session's isolation level is not sufficient */
    roll_back(db);
    return start_one_by_one(db, run, false, answer, err);
}

/* ---- the end ---------------------------------------------------------- */

static enum idem_status
commit_failed(struct idem_sql *db, struct idem_error *err)
{
    bool lost = db->fault.cause == IDEM_SQL_CONNECTION_LOST;
    enum idem_status status = idem__sql_fail(db, err);

    db->held = false;
    if (!lost)
        roll_back(db);
    if (lost)
        return idem__fail(err, IDEM_ERR_LOST,
                          "%s: the connection was lost during the commit: run "
                          "the same request again on a new connection",
                          db->driver->name);
    return status == IDEM_ERR_INVALID ? IDEM_ERR_UNAVAILABLE : status;
}

static enum idem_status
undone(struct idem_sql *db, struct idem_error *err)
{
    return idem__fail(err, IDEM_ERR_UNAVAILABLE,
                      "%s: the transaction was undone by the database, or "
                      "ended by the work itself; nothing was recorded",
                      db->driver->name);
}

/* Write the record and commit in one round trip. The commit is not reached
 * unless the row is as this transaction left it. */
static enum idem_status
end_at_once(struct idem_sql *db, struct run *run, const struct idem_op *op,
            struct idem_answer *answer, struct idem_error *err)
{
    struct sql_batch batch = {.count = 0};
    struct idem_op checked = *op;
    struct idem_record next;
    struct idem_answer done;
    enum idem_status status = idem__op_check(&checked, err);

    if (status == IDEM_OK) {
        idem__step(&run->claim, &checked, &run->now, &next);
        next.rev = run->claim.rev; /* no other transaction saw the claim */
        /* Before the commit, because afterwards no memory may be missing. */
        status = idem__sql_answer(&done, IDEM_V_STARTED, &next, &run->now, err);
    }
    if (status != IDEM_OK) {
        roll_back(db);
        return status;
    }
    /* This fails if the work has ended the transaction, because the savepoint
     * is gone then. */
    add_text(&batch, "release savepoint idem_run");
    db->driver->at_once->finish(db, run->key, &run->claim, &next, &batch);
    add_text(&batch, "commit");
    if (!run_batch(db, &batch)) {
        idem_answer_clear(&done);
        return db->driver->at_once->was_undone(&db->fault)
                   ? undone(db, err)
                   : commit_failed(db, err);
    }
    idem_answer_clear(answer);
    *answer = done;
    return IDEM_OK;
}

static struct idem_op
finish_op(const struct run *run, uint64_t fence, enum idem_state outcome,
          struct idem_bytes result)
{
    return (struct idem_op){.verb = IDEM_FINISH,
                            .type = run->op.type,
                            .scope = run->op.scope,
                            .id = run->op.id,
                            .fence = fence,
                            .outcome = outcome,
                            .kind = run->op.kind,
                            .result = result,
                            .ttl_ms = run->op.ttl_ms};
}

/* This transaction holds the row, so the rev is right unless the database has
 * rolled the transaction back. */
static enum idem_status
end_one_by_one(struct idem_sql *db, const struct idem_op *op,
               struct idem_answer *answer, struct idem_error *err)
{
    struct idem_answer done;
    enum idem_status status = idem_sql_do(db, op, &done, err);

    if (status != IDEM_OK) {
        roll_back(db);
        return status;
    }
    if (done.verdict != IDEM_V_OK) {
        idem_answer_clear(&done);
        return undone(db, err);
    }
    if (!idem__sql_run(db, "commit", NULL, 0)) {
        idem_answer_clear(&done);
        return commit_failed(db, err);
    }
    idem_answer_clear(answer);
    *answer = done;
    answer->verdict = IDEM_V_STARTED;
    return IDEM_OK;
}

/* Finish what this transaction has claimed. */
static enum idem_status
finish_and_commit(struct idem_sql *db, struct run *run, enum idem_state outcome,
                  struct idem_bytes result, struct idem_answer *answer,
                  struct idem_error *err)
{
    struct idem_op op = finish_op(run, answer->record->fence, outcome, result);

    return db->in_one_go && run->claim.fence == op.fence
               ? end_at_once(db, run, &op, answer, err)
               : end_one_by_one(db, &op, answer, err);
}

/* Loose mode: roll back, as if the request had never come. */
static enum idem_status
give_up(struct idem_sql *db, struct idem_bytes result,
        struct idem_answer *answer, const struct run *run,
        struct idem_error *err)
{
    struct idem_record failed = *answer->record;

    roll_back(db);
    failed.state = IDEM_STATE_FAILED;
    failed.result = result;
    failed.kind = (uint8_t)run->op.kind;
    answer->verdict = IDEM_V_STARTED;
    return idem__answer_keep(answer, &failed)
               ? IDEM_OK
               : idem__fail(err, IDEM_ERR_MEMORY, "out of memory");
}

static enum idem_status
end(struct idem_sql *db, struct run *run, enum idem_state outcome,
    struct idem_bytes result, struct idem_answer *answer,
    struct idem_error *err)
{
    if (outcome == IDEM_STATE_SUCCEEDED)
        return finish_and_commit(db, run, outcome, result, answer, err);
    if (outcome == IDEM_STATE_FAILED && run->op.mode == IDEM_LOOSE)
        return give_up(db, result, answer, run, err);
    if (outcome == IDEM_STATE_FAILED) {
        if (idem__sql_run(db, BACK, NULL, 0))
            return finish_and_commit(db, run, outcome, result, answer, err);
        /* Without the savepoint the whole transaction is gone. */
        idem__sql_fail(db, err);
        roll_back(db);
        return IDEM_ERR_UNAVAILABLE;
    }
    roll_back(db);
    return idem__fail(err, IDEM_ERR_UNAVAILABLE,
                      "%s: the work could not be tried; nothing was recorded",
                      db->driver->name);
}

/* Answer with the record that was found. With a synchronous standby, the commit
 * waits until the standby has it. */
static enum idem_status
end_unclaimed(struct idem_sql *db, struct idem_error *err)
{
    if (!db->driver->confirms) {
        roll_back(db);
        return IDEM_OK;
    }
    db->held = false;
    if (idem__sql_run(db, "commit", NULL, 0))
        return IDEM_OK;
    roll_back(db);
    return idem__sql_fail(db, err);
}

enum idem_status
idem_sql_run(struct idem_sql *db, const struct idem_op *op,
             idem_sql_work_fn *fn, void *arg, struct idem_answer *answer,
             struct idem_error *err)
{
    struct idem_bytes result = {NULL, 0};
    enum idem_state outcome;
    enum idem_status status;
    struct run run;

    idem__sql_start(db, answer);
    status = prepare(db, op, &run, err);
    if (status != IDEM_OK)
        return status;
    status = goes_at_once(db, &run)
                 ? start_at_once(db, &run, answer, err)
                 : start_one_by_one(db, &run, true, answer, err);
    if (status == IDEM_OK && !run.claimed)
        status = end_unclaimed(db, err);
    else if (status != IDEM_OK)
        roll_back(db);
    if (status != IDEM_OK)
        idem_answer_clear(answer);
    if (status != IDEM_OK || !run.claimed)
        return status;
    outcome = fn(arg, db, answer->record->fence, &result);
    status = end(db, &run, outcome, result, answer, err);
    if (status != IDEM_OK)
        idem_answer_clear(answer);
    return status;
}

/* ---- statements that are given in advance ------------------------------ */

struct statements {
    const struct idem_sql_statement *list;
    size_t count;
    struct idem_bytes result;
    bool failed; /* db->fault says why */
};

/* Other statements might end the transaction. */
static bool
changes_rows(const char *sql)
{
    static const char *const words[] = {"insert", "update", "delete"};

    sql += strspn(sql, " \t\r\n");
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        if (strncasecmp(sql, words[i], 6) == 0)
            return true;
    }
    return false;
}

static enum idem_status
check_statements(struct idem_sql *db, const struct statements *work,
                 struct idem_error *err)
{
    size_t values = 0;
    bool good = work->count > 0 && work->count <= IDEM_SQL_STATEMENTS_MAX;

    for (size_t i = 0; i < work->count && good; i++) {
        good = changes_rows(work->list[i].sql);
        values += work->list[i].count;
        if (good &&
            !idem__sql_plain(db, work->list[i].values, work->list[i].count))
            return idem__sql_fail(db, err);
    }
    if (good && values <= IDEM_SQL_STATEMENT_VALUES)
        return IDEM_OK;
    return idem__fail(err, IDEM_ERR_INVALID,
                      "%s: give 1 to %d statements, each an insert, update or "
                      "delete, with %d values in all",
                      db->driver->name, IDEM_SQL_STATEMENTS_MAX,
                      IDEM_SQL_STATEMENT_VALUES);
}

/* Run one statement at a time, as the work of idem_sql_run. */
static enum idem_state
do_statements(void *arg, struct idem_sql *db, uint64_t fence,
              struct idem_bytes *result)
{
    struct statements *work = arg;

    (void)fence;
    for (size_t i = 0; i < work->count && !work->failed; i++) {
        const struct idem_sql_statement *s = &work->list[i];

        work->failed =
            !idem__sql_run(db, s->sql, s->values, s->count) ||
            (db->rows.affected != 1 &&
             !idem__sql_fault(db, IDEM_SQL_OTHER, 0, "", SQL_NOT_ONE));
    }
    *result = work->result;
    return work->failed ? IDEM_STATE_ABSENT : IDEM_STATE_SUCCEEDED;
}

/* begin; the final record; the statements; commit. The record comes first, so
 * that a duplicate changes nothing. False: nothing was done. */
static bool
do_at_once(struct idem_sql *db, struct run *run, const struct statements *work,
           const struct idem_record *record)
{
    const struct sql_at_once *at_once = db->driver->at_once;
    struct sql_batch batch = {.count = 0};

    at_once->record(db, run->key, record, &batch);
    for (size_t i = 0; i < work->count; i++) {
        const struct idem_sql_statement *s = &work->list[i];

        batch.calls[batch.count++] = idem__sql_call(
            db, at_once->change_one(db, s->sql), s->values, s->count);
    }
    add_text(&batch, "commit");
    return run_batch(db, &batch);
}

enum idem_status
idem_sql_run_statements(struct idem_sql *db, const struct idem_op *op,
                        const struct idem_sql_statement *statements,
                        size_t count, struct idem_bytes result,
                        struct idem_answer *answer, struct idem_error *err)
{
    struct statements work = {statements, count, result, false};
    enum idem_status status;
    struct run run;

    idem__sql_start(db, answer);
    status = check_statements(db, &work, err);
    if (status == IDEM_OK)
        status = prepare(db, op, &run, err);
    if (status != IDEM_OK)
        return status;
    if (goes_at_once(db, &run)) {
        struct idem_record record;
        struct idem_op finish;

        idem__step(NULL, &run.op, &run.now, &run.claim);
        finish = finish_op(&run, run.claim.fence, IDEM_STATE_SUCCEEDED, result);
        status = idem__op_check(&finish, err);
        if (status != IDEM_OK)
            return status;
        idem__step(&run.claim, &finish, &run.now, &record);
        record.rev = idem__new_rev();
        status =
            idem__sql_answer(answer, IDEM_V_STARTED, &record, &run.now, err);
        if (status != IDEM_OK || do_at_once(db, &run, &work, &record))
            return status;
        idem_answer_clear(answer);
        if (db->fault.cause == IDEM_SQL_CONNECTION_LOST)
            return commit_failed(db, err);
    }
    /* It did not work; single statements find out why. */
    roll_back(db);
    status = idem_sql_run(db, op, do_statements, &work, answer, err);
    if (work.failed) {
        idem__sql_fail(db, err);
        return IDEM_ERR_UNAVAILABLE;
    }
    return status;
}
