/*
 * record.c - a record's verbs inside the caller's transaction.
 *
 * It works as the engine does: guess the current record, let step() decide,
 * write only if the guess was right, otherwise read the record and decide
 * again.
 *
 *   BEGIN, SETTLE   guess that there is no record: one INSERT
 *   FINISH ...      guess what this adapter wrote last: one UPDATE
 *
 * It never waits inside the database for a row that another transaction holds.
 * If the caller wants to wait, it looks again every few milliseconds.
 */
#include "driver.h"

#include <assert.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define LOOK_AGAIN_MS 4
#define LOOK_AGAIN_MAX_MS 32
#define LOCKED_RETRY_MS 100

/* ---- statements ------------------------------------------------------- */

static void
record_values(const uint8_t *key, const struct idem_record *record,
              struct idem_sql_value *values)
{
    struct idem_cell cells[IDEM_COLUMN_COUNT];

    idem__record_to_cells(key, record, cells);
    for (int i = 0; i < IDEM_COLUMN_COUNT; i++) {
        if (cells[i].null)
            values[i] = (struct idem_sql_value){.type = IDEM_SQL_NULL};
        else if (idem__column_types[i] == IDEM_COLUMN_BYTES)
            values[i] = idem_sql_blob(cells[i].bytes.data, cells[i].bytes.len);
        else
            values[i] = idem_sql_int(cells[i].number);
    }
}

#define MARKS "?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?"

struct sql_call
idem__sql_call(struct idem_sql *db, const char *text,
               const struct idem_sql_value *values, size_t count)
{
    return (struct sql_call){
        text ? idem__sql_copy(db, text, strlen(text)) : NULL, values, count};
}

struct sql_call
idem__sql_insert(struct idem_sql *db, const char *format, const uint8_t *key,
                 const struct idem_record *record,
                 struct idem_sql_value *values)
{
    record_values(key, record, values);
    return idem__sql_call(
        db,
        idem__sql_text(db, format, db->driver->table, idem__columns_all, MARKS),
        values, IDEM_COLUMN_COUNT);
}

static bool
same_value(const struct idem_sql_value *a, const struct idem_sql_value *b)
{
    return a->type == b->type && a->number == b->number &&
           idem__bytes_equal(a->bytes, b->bytes);
}

struct sql_call
idem__sql_update(struct idem_sql *db, const uint8_t *key,
                 const struct idem_record *from, const struct idem_record *to,
                 struct idem_sql_value *values)
{
    struct idem_sql_value old[IDEM_COLUMN_COUNT], new[IDEM_COLUMN_COUNT];
    size_t n = 0;
    bool good;

    record_values(key, from, old);
    record_values(key, to, new);
    idem_buf_reset(&db->text);
    good = idem__sql_add(db, "update %s set", db->driver->table);
    for (size_t i = IDEM_COLUMN_STATE; i < IDEM_COLUMN_COUNT && good; i++) {
        if (same_value(&old[i], &new[i]))
            continue;
        good = idem__sql_add(db, n == 0 ? " %s = ?" : ", %s = ?",
                             idem__column_names[i]);
        values[n++] = new[i];
    }
    good = good && idem__sql_add(db, " where key_hash = ? and rev = ?");
    values[n++] = new[IDEM_COLUMN_KEY];
    values[n++] = old[IDEM_COLUMN_REV];
    return idem__sql_call(db, good ? idem__sql_whole(db) : NULL, values, n);
}

/* ---- reading ---------------------------------------------------------- */

static bool
row_record(struct idem_sql *db, struct idem_record *record)
{
    struct idem_cell cells[IDEM_COLUMN_COUNT] = {{0}};
    struct idem_error err;

    for (size_t i = 0; i < IDEM_COLUMN_COUNT; i++) {
        const struct idem_sql_value *v = &db->rows.values[i];

        cells[i].null = v->type == IDEM_SQL_NULL;
        cells[i].number = v->number;
        cells[i].bytes = v->bytes;
    }
    if (idem__cells_to_record(cells, record, &err) == IDEM_OK)
        return true;
    return idem__sql_fault(db, IDEM_SQL_OTHER, 0, "", err.text);
}

const char *
idem__sql_select(struct idem_sql *db, const char *more, const char *suffix)
{
    return idem__sql_text(db, "select %s%s from %s where key_hash = ?%s",
                          idem__columns_all, more, db->driver->table, suffix);
}

/* Read the record as committed, or as written by this transaction. *there: it
 * exists. */
static bool
look(struct idem_sql *db, const uint8_t *key, const char *suffix,
     struct idem_record *record, bool *there)
{
    struct idem_sql_value value = idem_sql_blob(key, IDEM_KEY_LEN);

    if (!idem__sql_run(db, db->driver->select(db, suffix), &value, 1))
        return false;
    *there = db->rows.rows > 0;
    return !*there || row_record(db, record);
}

/* ---- answers ---------------------------------------------------------- */

#define SEALED (IDEM_FLAG_SEALED_SUBJECT | IDEM_FLAG_SEALED_RESULT)

/* A record that a server has sealed with a seal-key cannot be opened here.
 * That does not matter for a subject, but it is an error for a result or an
 * owner. */
static enum idem_status
need_open(const struct idem_record *r, const struct idem_now *now,
          struct idem_error *err)
{
    bool lock = r && (r->type == IDEM_TYPE_LOCK || r->type == IDEM_TYPE_WORKER);

    if (!r || !(r->flags & (lock ? SEALED : IDEM_FLAG_SEALED_RESULT)) ||
        idem__record_expired(r, now))
        return IDEM_OK;
    return idem__fail(err, IDEM_ERR_UNSUPPORTED,
                      "this record is sealed (seal-key) and does not open in "
                      "the database: ask the idem server that sealed it");
}

enum idem_status
idem__sql_answer(struct idem_answer *answer, enum idem_verdict verdict,
                 const struct idem_record *record, const struct idem_now *now,
                 struct idem_error *err)
{
    bool silent = verdict == IDEM_V_MISMATCH || verdict == IDEM_V_ABSENT ||
                  verdict == IDEM_V_UNKNOWN || verdict == IDEM_V_DUPLICATE ||
                  !record;
    struct idem_record shown = silent ? idem__no_record : *record;

    if (shown.flags & IDEM_FLAG_SEALED_SUBJECT)
        shown.subject = (struct idem_bytes){NULL, 0};
    shown.flags &= (uint8_t)~SEALED;
    *answer = (struct idem_answer){.record = &idem__no_record};
    answer->verdict = verdict;
    if (verdict == IDEM_V_BUSY)
        answer->retry_after_ms = record && record->lease_until > now->late_ms
                                     ? record->lease_until - now->late_ms
                                     : LOCKED_RETRY_MS;
    if (answer->retry_after_ms > 1000)
        answer->retry_after_ms = 1000;
    return idem__answer_keep(answer, &shown)
               ? IDEM_OK
               : idem__fail(err, IDEM_ERR_MEMORY, "out of memory");
}

static bool
hold_record(struct idem_sql *db, const uint8_t *key,
            const struct idem_record *record)
{
    struct idem_record copy = *record;

    /* The record may point into what was held before. */
    if (!idem_arena_record(&db->arena, &copy, &copy))
        return false;
    idem_arena_reset(&db->held_arena);
    memcpy(db->held_key, key, IDEM_KEY_LEN);
    db->held = idem_arena_record(&db->held_arena, &copy, &db->held_record);
    return true;
}

/* ---- deciding --------------------------------------------------------- */

/* One op in progress. */
struct task {
    struct idem_op op;
    uint8_t key[IDEM_KEY_LEN];
    uint8_t nonce[IDEM_NONCE_LEN];
    struct idem_now now;
    const struct idem_record *current; /* NULL: there is no record */
    struct idem_record found;
    bool looked;    /* `current` was read, not guessed */
    bool duplicate; /* the last insert found an existing row */
    int64_t deadline_us;
    int pause_ms;
};

/* True: some time has passed, so look again. False: the caller's wait is
 * over. */
static bool
wait_a_little(struct task *task)
{
    struct timespec pause = {0, task->pause_ms * 1000000L};

    if (idem__system_boot_us() >= task->deadline_us)
        return false;
    nanosleep(&pause, NULL);
    if (task->pause_ms < LOOK_AGAIN_MAX_MS)
        task->pause_ms *= 2;
    return true;
}

/* Is the fault one that another transaction's claim explains? */
static bool
is_contention(const struct idem_sql *db)
{
    return db->fault.cause == IDEM_SQL_DUPLICATE_KEY ||
           db->fault.cause == IDEM_SQL_LOCK_TIMEOUT;
}

/* Lock the row, if its rev did not change. */
static bool
hold_row(struct idem_sql *db, const struct task *task, uint64_t rev, bool *held)
{
    struct idem_record record;

    *held = true;
    if (!db->driver->row_locks ||
        (db->held && db->held_record.rev == rev &&
         memcmp(db->held_key, task->key, IDEM_KEY_LEN) == 0))
        return true; /* locked already, or the update itself checks it */
    if (!look(db, task->key, idem__sql_if_free(db), &record, held))
        return false;
    *held = *held && record.rev == rev;
    return true;
}

/* Write the record that step() made. *written: it was written. False: an
 * error. */
static bool
write_record(struct idem_sql *db, struct task *task,
             const struct idem_record *next, bool *written)
{
    struct idem_sql_value values[SQL_RECORD_VALUES];
    struct sql_call call;

    *written = false;
    if (!task->current) {
        call = db->driver->insert_once(db, task->key, next, values);
    } else {
        bool held;

        if (!hold_row(db, task, task->current->rev, &held))
            return false;
        if (!held)
            return true;
        call = idem__sql_update(db, task->key, task->current, next, values);
    }
    if (!idem__sql_run(db, call.sql, call.values, call.count)) {
        task->duplicate = db->fault.cause == IDEM_SQL_DUPLICATE_KEY;
        return is_contention(db) && db->driver->inside(db) == SQL_INSIDE;
    }
    *written = db->rows.affected == 1;
    return true;
}

static enum idem_status
check_isolation(struct idem_sql *db, bool claims, struct idem_error *err)
{
    return db->driver->check_isolation
               ? db->driver->check_isolation(db, claims, err)
               : IDEM_OK;
}

enum idem_status
idem__sql_bad_isolation(struct idem_sql *db, const char *level, const char *why,
                        struct idem_error *err)
{
    return idem__fail(err, IDEM_ERR_INVALID,
                      "%s: the transaction is %s, which %s: use read committed",
                      db->driver->name, level, why);
}

/* Read the current record and the time. */
static enum idem_status
look_again(struct idem_sql *db, struct task *task, struct idem_error *err)
{
    enum idem_status status = IDEM_OK;
    bool there = false;

    if (!task->looked)
        status = check_isolation(db, true, err);
    if (status != IDEM_OK)
        return status;
    idem_arena_reset(&db->arena);
    if (!look(db, task->key, task->duplicate ? idem__sql_latest(db) : "",
              &task->found, &there) &&
        (!is_contention(db) || db->driver->inside(db) != SQL_INSIDE))
        return idem__sql_fail(db, err);
    task->looked = true;
    task->current = there ? &task->found : NULL;
    return idem__sql_now(db, &task->now, err);
}

static enum idem_status
decide(struct idem_sql *db, struct task *task, struct idem_answer *answer,
       struct idem_error *err)
{
    enum idem_status status = need_open(task->current, &task->now, err);

    while (status == IDEM_OK) {
        struct idem_record next;
        enum idem_verdict verdict =
            idem__step(task->current, &task->op, &task->now, &next);
        bool writes = next.state != IDEM_STATE_ABSENT, written = false;
        /* Waiting with a lock on the row would keep the other transaction from
         * finishing. */
        bool final =
            verdict != IDEM_V_BUSY || (db->driver->keeps_lock && task->current);

        next.rev = idem__new_rev();
        if (task->current && next.subject.data != task->current->subject.data)
            next.flags &= (uint8_t)~IDEM_FLAG_SEALED_SUBJECT;
        if (writes && !write_record(db, task, &next, &written))
            return idem__sql_fail(db, err);
        if (written) {
            hold_record(db, task->key, &next);
            return idem__sql_answer(answer, verdict, &next, &task->now, err);
        }
        if (task->looked && !writes && (final || !wait_a_little(task)))
            return idem__sql_answer(answer, verdict, task->current, &task->now,
                                    err);
        if (task->looked && writes && !wait_a_little(task))
            return idem__sql_answer(answer, IDEM_V_BUSY, NULL, &task->now, err);
        status = look_again(db, task, err);
        if (status == IDEM_OK)
            status = need_open(task->current, &task->now, err);
    }
    return status;
}

static enum idem_status
start_task(struct idem_sql *db, const struct idem_op *op, struct task *task,
           struct idem_error *err)
{
    enum idem_status status;

    memset(task, 0, sizeof(*task));
    task->op = *op;
    /* The record that this transaction claimed may be a token. */
    if (op->type == 0 && op->verb != IDEM_BEGIN && db->held &&
        idem__bytes_equal(op->scope, db->held_record.scope) &&
        idem__bytes_equal(op->id, db->held_record.id))
        task->op.type = db->held_record.type;
    status = idem__op_check(&task->op, err);
    if (status == IDEM_OK && op->verb != IDEM_GET)
        status = idem__sql_need_transaction(db, err);
    if (status == IDEM_OK)
        status = idem__sql_need_engine(db, db->driver->table, err);
    if (status == IDEM_OK)
        status = idem__sql_now(db, &task->now, err);
    if (status != IDEM_OK)
        return status;
    if (!task->op.nonce) {
        randombytes_buf(task->nonce, sizeof(task->nonce));
        task->nonce[0] |= 1;
        task->op.nonce = task->nonce;
    }
    idem__key(task->op.type, task->op.scope, task->op.id, task->key);
    task->deadline_us = idem__system_boot_us() + op->wait_ms * 1000;
    task->pause_ms = LOOK_AGAIN_MS;
    return IDEM_OK;
}

static enum idem_status
look_first(struct idem_sql *db, struct task *task, struct idem_error *err)
{
    bool there;

    if (db->held && task->op.verb != IDEM_GET &&
        memcmp(db->held_key, task->key, IDEM_KEY_LEN) == 0) {
        task->current = &db->held_record;
        return IDEM_OK;
    }
    if (!look(db, task->key, "", &task->found, &there))
        return idem__sql_fail(db, err);
    task->current = there ? &task->found : NULL;
    task->looked = true;
    return IDEM_OK;
}

/* ---- the public half -------------------------------------------------- */

enum idem_status
idem_sql_claim(struct idem_sql *db, const struct idem_op *op,
               struct idem_answer *answer, struct idem_error *err)
{
    return idem__sql_claim(db, op, true, answer, err);
}

enum idem_status
idem__sql_claim(struct idem_sql *db, const struct idem_op *op, bool guess,
                struct idem_answer *answer, struct idem_error *err)
{
    struct idem_op begin = *op;
    struct task task;
    enum idem_status status;

    begin.verb = IDEM_BEGIN;
    idem__sql_start(db, answer);
    status = start_task(db, &begin, &task, err);
    /* A token was issued before, so read its record instead of guessing. */
    if (status == IDEM_OK && task.op.type == IDEM_TYPE_TOKEN)
        status = look_first(db, &task, err);
    else if (status == IDEM_OK && !guess)
        status = look_again(db, &task, err);
    if (status != IDEM_OK)
        return status;
    return decide(db, &task, answer, err);
}

enum idem_status
idem_sql_do(struct idem_sql *db, const struct idem_op *op,
            struct idem_answer *answer, struct idem_error *err)
{
    struct task task;
    enum idem_status status;

    if (op->verb == IDEM_BEGIN)
        return idem_sql_claim(db, op, answer, err);
    idem__sql_start(db, answer);
    status = start_task(db, op, &task, err);
    if (status == IDEM_OK && op->verb == IDEM_GET)
        status = check_isolation(db, false, err);
    if (status == IDEM_OK && op->verb != IDEM_SETTLE)
        status = look_first(db, &task, err);
    if (status == IDEM_OK)
        status = decide(db, &task, answer, err);
    if (status == IDEM_OK && op->verb == IDEM_FINISH &&
        answer->verdict != IDEM_V_OK) {
        db->held = false;
        if (!idem__sql_run(db, "rollback", NULL, 0)) {
            idem_answer_clear(answer);
            return idem__sql_fail(db, err);
        }
    }
    return status;
}

static enum idem_status
join_once(struct idem_sql *db, const struct task *task, uint64_t fence,
          bool *there, struct idem_answer *answer, struct idem_error *err)
{
    struct idem_record r;
    enum idem_status status;

    if (!look(db, task->key, idem__sql_if_free(db), &r, there))
        return idem__sql_fail(db, err);
    if (!*there) {
        /* Another transaction holds it, or it does not exist. */
        if (!look(db, task->key, "", &r, there))
            return idem__sql_fail(db, err);
        return idem__sql_answer(answer, *there ? IDEM_V_BUSY : IDEM_V_STALE,
                                NULL, &task->now, err);
    }
    if (r.fence != fence || idem__record_expired(&r, &task->now))
        return idem__sql_answer(answer, IDEM_V_STALE, NULL, &task->now, err);
    status = need_open(&r, &task->now, err);
    if (status != IDEM_OK)
        return status;
    if (r.state == IDEM_STATE_SUCCEEDED || r.state == IDEM_STATE_FAILED)
        return idem__sql_answer(answer, IDEM_V_REPLAY, &r, &task->now, err);
    if (r.state != IDEM_STATE_EXECUTING)
        return idem__sql_answer(answer, IDEM_V_STALE, NULL, &task->now, err);
    if (!hold_record(db, task->key, &r))
        return idem__fail(err, IDEM_ERR_MEMORY, "out of memory");
    return idem__sql_answer(answer, IDEM_V_STARTED, &r, &task->now, err);
}

enum idem_status
idem_sql_join(struct idem_sql *db, struct idem_bytes scope,
              struct idem_bytes id, uint64_t fence, int64_t wait_ms,
              struct idem_answer *answer, struct idem_error *err)
{
    struct idem_op op = {.verb = IDEM_RENEW,
                         .scope = scope,
                         .id = id,
                         .fence = fence,
                         .wait_ms = wait_ms};
    enum idem_status status;
    struct task task;
    bool there;

    idem__sql_start(db, answer);
    status = start_task(db, &op, &task, err);
    if (status != IDEM_OK)
        return status;
    do {
        /* A request with this name, or else a token with this name. */
        for (op.type = IDEM_TYPE_REQUEST; op.type <= IDEM_TYPE_TOKEN;
             op.type++) {
            idem__key(op.type, scope, id, task.key);
            status = join_once(db, &task, fence, &there, answer, err);
            if (status != IDEM_OK || there)
                break;
        }
    } while (status == IDEM_OK && answer->verdict == IDEM_V_BUSY &&
             wait_a_little(&task));
    return status;
}

enum idem_status
idem_sql_finish(struct idem_sql *db, const struct idem_op *op,
                struct idem_answer *answer, struct idem_error *err)
{
    struct idem_op finish = *op;

    finish.verb = IDEM_FINISH;
    return idem_sql_do(db, &finish, answer, err);
}
