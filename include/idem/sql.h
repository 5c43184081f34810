/*
 * sql.h - the schemes inside the caller's own database transaction.
 *
 * The record commits or rolls back with the business data, so that the two can
 * never disagree. Everything runs on a connection that the caller opened and
 * keeps: PGconn, MYSQL or sqlite3. idem opens none of its own, changes no
 * session setting, and leaves nothing behind but prepared statements.
 *
 *   begin                                       the caller's transaction
 *     idem_sql_claim(db, &op, &answer, &err)    STARTED: go on; else answer it
 *     op.fence = answer.record->fence
 *     update account set ...                    the business part
 *     op.outcome = IDEM_STATE_SUCCEEDED; op.result = idem_text("paid")
 *     idem_answer_clear(&answer)
 *     idem_sql_finish(db, &op, &answer, &err)   the answer, for every repeat
 *   commit
 *
 * idem_sql_run does all of that around a function. The table is the one that
 * the postgres://, mysql:// and sqlite: stores use (idem store init URL), so a
 * server, a gateway and the command line see the same records.
 *
 * Statuses. IDEM_OK: the verdict is set. Anything else: roll the transaction
 * back; idem_sql_fault says what the database said, and which kind of error it
 * was. IDEM_ERR_LOST: the connection broke during a commit. On a new connection
 * a GET by idem_sql_do tells the outcome if the commit is done. "absent" proves
 * nothing, since the old session may still be committing. Claim or settle the
 * same key again: that is BUSY until the old session has ended.
 *
 * PostgreSQL with a synchronous standby: commit before you answer your client,
 * also after a REPLAY. The commit then waits for the standby (the session's
 * synchronous_commit has to be on or remote_apply). idem_sql_run does it.
 *
 * Names of tables and columns are the program's own; they are quoted, never
 * pasted. Values are always bound.
 *
 * Threads: an adapter belongs to its connection: one thread at a time. Fork: as
 * for the connection. For the rest see the head of record.h. The verdict and
 * the row of a scheme are outputs; its strings and values are the caller's.
 */
#ifndef IDEM_SQL_H
#define IDEM_SQL_H

#include <idem/engine.h>

#ifdef __cplusplus
extern "C" {
#endif

struct pg_conn;  /* PGconn of libpq */
struct st_mysql; /* MYSQL of MariaDB Connector/C */
struct sqlite3;
struct idem_sql;

/* ---- the adapter ------------------------------------------------------ */

/* Put an adapter on an open connection; close it with idem_sql_close.
 * IDEM_ERR_UNSUPPORTED: this build of idem was made without that database. */
IDEM_API enum idem_status idem_sql_postgres(struct pg_conn *conn,
                                            struct idem_sql **db,
                                            struct idem_error *err);
IDEM_API enum idem_status idem_sql_mysql(struct st_mysql *conn,
                                         struct idem_sql **db,
                                         struct idem_error *err);
IDEM_API enum idem_status idem_sql_sqlite(struct sqlite3 *conn,
                                          struct idem_sql **db,
                                          struct idem_error *err);

/* Give back what the adapter holds; the connection stays as it is. Close the
 * adapter before the connection. NULL is fine. */
IDEM_API void idem_sql_close(struct idem_sql *db);

/* What kind of error the database gave last. */
enum idem_sql_cause {
    IDEM_SQL_NONE,
    IDEM_SQL_DUPLICATE_KEY,
    IDEM_SQL_LOCK_TIMEOUT,
    IDEM_SQL_DEADLOCK,
    IDEM_SQL_SERIALIZATION,
    IDEM_SQL_CONNECTION_LOST,
    IDEM_SQL_MISSING_TABLE,
    IDEM_SQL_OTHER,
};

struct idem_sql_fault {
    enum idem_sql_cause cause;
    int code;      /* MariaDB's or SQLite's error number; 0 on PostgreSQL */
    char state[6]; /* SQLSTATE; "" on SQLite */
    char text[240];
};

/* Of the last call that failed; valid until the next call. */
IDEM_API const struct idem_sql_fault *idem_sql_fault(const struct idem_sql *db);
/* "deadlock", "duplicate key" ... */
IDEM_API const char *idem_sql_cause_name(enum idem_sql_cause cause);

/* ---- the record, in the caller's open transaction --------------------- */

/*
 * Claim a request (a BEGIN op). A concurrent claim of the same key that has not
 * committed is waited for, up to op->wait_ms.
 *
 * STARTED: yours; answer->record->fence is its fence. REPLAY: done before, the
 * result is there. BUSY: another transaction or another service is at work.
 * DOUBT, MISMATCH: as everywhere. Only STARTED changed something.
 */
IDEM_API enum idem_status idem_sql_claim(struct idem_sql *db,
                                         const struct idem_op *op,
                                         struct idem_answer *answer,
                                         struct idem_error *err);

/*
 * Behind the gateway: lock the claim that it made for this request (Idem-Scope,
 * Idem-Id, Idem-Fence) before the business part.
 *
 * STARTED: it is still this fence's, and nobody can take it until the
 * transaction ends. REPLAY: this fence finished it before. STALE: it is
 * somebody else's by now: do nothing. BUSY: locked by another transaction for
 * longer than wait_ms.
 */
IDEM_API enum idem_status
idem_sql_join(struct idem_sql *db, struct idem_bytes scope,
              struct idem_bytes id, uint64_t fence, int64_t wait_ms,
              struct idem_answer *answer, struct idem_error *err);

/*
 * Any other verb on a record: FINISH, RELEASE, RENEW, SETTLE, GET. The op's
 * type may be IDEM_TYPE_TOKEN for a token that was begun.
 *
 * A FINISH that is STALE or FINISHED must not be committed: the transaction has
 * been rolled back before this returns.
 */
IDEM_API enum idem_status idem_sql_do(struct idem_sql *db,
                                      const struct idem_op *op,
                                      struct idem_answer *answer,
                                      struct idem_error *err);

/*
 * FINISH: the op of the claim, with the fence that the claim got, the outcome,
 * and the result that every repeat gets.
 */
IDEM_API enum idem_status idem_sql_finish(struct idem_sql *db,
                                          const struct idem_op *op,
                                          struct idem_answer *answer,
                                          struct idem_error *err);

/*
 * The business part. Use the connection; put the answer's bytes into *result
 * (valid until idem_sql_run returns); say how it went:
 *   SUCCEEDED  commit it, with the result
 *   FAILED     undo it; strict records the failure, loose forgets the attempt
 *   ABSENT     it could not be tried (a deadlock, a lock time-out): undo
 *              everything and record nothing, so that a retry may run
 */
typedef enum idem_state idem_sql_work_fn(void *arg, struct idem_sql *db,
                                         uint64_t fence,
                                         struct idem_bytes *result);

/*
 * Run `fn` once for this op's scope and id, in one transaction that this call
 * begins and ends; the connection must not be in one.
 *
 * STARTED: fn ran and this is its outcome (answer->record.state, result).
 * REPLAY, BUSY, DOUBT, MISMATCH: it did not run here. IDEM_ERR_UNAVAILABLE:
 * nothing happened (fn said ABSENT, or the database undid the transaction).
 * IDEM_ERR_LOST: the commit's reply was lost: run it again with the same key.
 */
IDEM_API enum idem_status idem_sql_run(struct idem_sql *db,
                                       const struct idem_op *op,
                                       idem_sql_work_fn *fn, void *arg,
                                       struct idem_answer *answer,
                                       struct idem_error *err);

/* ---- the schemes on the caller's own tables --------------------------- */

enum idem_sql_type {
    IDEM_SQL_NULL,
    IDEM_SQL_INT,
    IDEM_SQL_TEXT, /* numbers that are no integers, dates ... come as text */
    IDEM_SQL_BLOB,
    IDEM_SQL_ADD, /* the column's own value plus number */
};

struct idem_sql_value {
    enum idem_sql_type type;
    int64_t number;
    struct idem_bytes bytes;
};

/* Values to bind: views of what they are given. */
IDEM_API struct idem_sql_value idem_sql_int(int64_t number);
IDEM_API struct idem_sql_value idem_sql_text(const char *text);
IDEM_API struct idem_sql_value idem_sql_blob(const void *data, size_t len);
/* column = column + number: a value of idem_sql_update_versioned alone. */
IDEM_API struct idem_sql_value idem_sql_add(int64_t number);

/* An INSERT, UPDATE or DELETE of the program's own, without RETURNING and
 * without a semicolon at its end. ? stands for a value, on PostgreSQL too;
 * there is no other question mark in it. */
struct idem_sql_statement {
    const char *sql;
    const struct idem_sql_value *values;
    size_t count;
};

#define IDEM_SQL_STATEMENTS_MAX 8
#define IDEM_SQL_STATEMENT_VALUES 40 /* in all of them */

/*
 * As idem_sql_run, where the work is known beforehand: these statements, each
 * of which changes exactly one row, and the answer `result`. Everything goes in
 * one round trip where the database can (PostgreSQL, MariaDB), guessing that
 * this is the first request; a wrong guess is undone, and PostgreSQL's log
 * tells of it.
 *
 * STARTED: done, and recorded as succeeded. REPLAY, BUSY, DOUBT, MISMATCH and
 * errors as there. A statement that fails, or changes none or several rows
 * (MariaDB does not count a row that has the new values already), undoes
 * everything: IDEM_ERR_UNAVAILABLE, nothing is recorded, a retry may run.
 */
IDEM_API enum idem_status
idem_sql_run_statements(struct idem_sql *db, const struct idem_op *op,
                        const struct idem_sql_statement *statements,
                        size_t count, struct idem_bytes result,
                        struct idem_answer *answer, struct idem_error *err);

struct idem_sql_pair {
    const char *column;
    struct idem_sql_value value;
};

/* A row that is there; count 0: none is. It lives until the next call on the
 * same adapter. */
struct idem_sql_row {
    size_t count;
    const char *const *columns;
    const struct idem_sql_value *values;
};

/* The value of a column; a NULL value if the row has no such column. */
IDEM_API struct idem_sql_value idem_sql_column(const struct idem_sql_row *row,
                                               const char *column);

/* What a scheme answers. */
enum idem_sql_verdict {
    IDEM_SQL_IS_FIRST,     /* done, now, by this call */
    IDEM_SQL_IS_DUPLICATE, /* done before: see the row that is there */
    IDEM_SQL_IS_CONFLICT,  /* somebody else was there: look again */
    IDEM_SQL_IS_REFUSED,   /* not allowed, or not covered; nothing done */
    IDEM_SQL_IS_EMPTY,     /* barrier: nothing to undo; that is success */
};

/* "first", "duplicate", "conflict", "refused", "empty". */
IDEM_API const char *idem_sql_verdict_name(enum idem_sql_verdict verdict);

/*
 * Where a row is found. A primary key or a unique index must lie within these
 * columns, and none of the values is null: otherwise a repeat could not be
 * recognised, and several rows could be changed or locked. Every scheme looks
 * that up once for each table and columns (and adapter), and refuses with
 * IDEM_ERR_INVALID, naming the table.
 */
struct idem_sql_place {
    const char *table;                /* may be "schema.table" */
    const struct idem_sql_pair *keys; /* column = value, all of them */
    size_t key_count;
};

/*
 * Insert once: place->keys and `values` make a row.
 * FIRST: inserted. DUPLICATE: the key is there, *row is that row. CONFLICT: not
 * this key but another unique index stood in the way.
 */
IDEM_API enum idem_status
idem_sql_insert_once(struct idem_sql *db, const struct idem_sql_place *place,
                     const struct idem_sql_pair *values, size_t count,
                     enum idem_sql_verdict *verdict, struct idem_sql_row *row,
                     struct idem_error *err);

/* Look first, then insert: friendlier where repeats are rare and conflicts must
 * not fill the log. The unique key still decides a race. Answers as above. */
IDEM_API enum idem_status
idem_sql_select_insert(struct idem_sql *db, const struct idem_sql_place *place,
                       const struct idem_sql_pair *values, size_t count,
                       enum idem_sql_verdict *verdict, struct idem_sql_row *row,
                       struct idem_error *err);

/* There: update it to `values` (DUPLICATE); not there: insert it (FIRST). *row
 * is what was there before. */
IDEM_API enum idem_status
idem_sql_upsert(struct idem_sql *db, const struct idem_sql_place *place,
                const struct idem_sql_pair *values, size_t count,
                enum idem_sql_verdict *verdict, struct idem_sql_row *row,
                struct idem_error *err);

/*
 * Optimistic lock: set `values` and version + 1 where the version is still
 * `version`. FIRST: done. DUPLICATE: the row has these values and the next
 * version: this very update was done before. CONFLICT: somebody else changed
 * it (*row). REFUSED: there is no such row.
 *
 * With idem_sql_add among the values (price = price + 50) a repeat is a
 * CONFLICT, too: what the row has now does not tell who made it so.
 */
IDEM_API enum idem_status
idem_sql_update_versioned(struct idem_sql *db,
                          const struct idem_sql_place *place,
                          const char *version_column, int64_t version,
                          const struct idem_sql_pair *values, size_t count,
                          enum idem_sql_verdict *verdict,
                          struct idem_sql_row *row, struct idem_error *err);

/* Conditional update: column = column - amount while that leaves at least 0.
 * FIRST: deducted. REFUSED: it does not suffice (*row says what is there), or
 * there is no such row (row->count is 0). */
IDEM_API enum idem_status idem_sql_deduct(struct idem_sql *db,
                                          const struct idem_sql_place *place,
                                          const char *column, int64_t amount,
                                          enum idem_sql_verdict *verdict,
                                          struct idem_sql_row *row,
                                          struct idem_error *err);

/*
 * Pessimistic lock: hold the row until the transaction ends, waiting for others
 * up to wait_ms. FIRST: held, *row is its newest state. CONFLICT: somebody else
 * still holds it. REFUSED: there is no such row.
 */
IDEM_API enum idem_status
idem_sql_lock_row(struct idem_sql *db, const struct idem_sql_place *place,
                  int64_t wait_ms, enum idem_sql_verdict *verdict,
                  struct idem_sql_row *row, struct idem_error *err);

/* A state machine: which moves there are, and where the state is kept. */
struct idem_sql_move {
    struct idem_sql_value from, to;
};

struct idem_sql_machine {
    const char *table;
    const char *key_column;
    const char *state_column;
    const struct idem_sql_move *moves;
    size_t move_count;
};

/*
 * FIRST: moved, now. DUPLICATE: the row is in state `to`, or in a state that it
 * can only be in after this move. REFUSED: no such move was declared, or the
 * row is in another state (*row), or there is none.
 *
 * Only the declared moves prove that a move has happened. A row may begin in
 * every state into which no move leads, and in every state of a circle into
 * which no move leads. The row's state proves the move `from` -> `to` if no
 * declared moves without this one lead there from a state where a row may
 * begin. new -> paid -> done: done proves that it was paid. With new -> done
 * declared as well it does not.
 *
 * A row that has come back to `from` moves again: FIRST.
 */
IDEM_API enum idem_status
idem_sql_move(struct idem_sql *db, const struct idem_sql_machine *machine,
              struct idem_sql_value key, struct idem_sql_value from,
              struct idem_sql_value to, enum idem_sql_verdict *verdict,
              struct idem_sql_row *row, struct idem_error *err);

/* The phases of a distributed transaction's branch. */
enum idem_sql_phase { IDEM_SQL_TRY, IDEM_SQL_CONFIRM, IDEM_SQL_CANCEL };

/*
 * Barrier: may this phase of this branch do its work in this transaction?
 * FIRST: yes. DUPLICATE: it did before. EMPTY: a cancel whose try never came:
 * answer success, do nothing. REFUSED: a try after its cancel, a confirm
 * without its try, a confirm after a cancel or the other way round.
 */
IDEM_API enum idem_status
idem_sql_barrier(struct idem_sql *db, struct idem_bytes transaction,
                 struct idem_bytes branch, enum idem_sql_phase phase,
                 enum idem_sql_verdict *verdict, struct idem_error *err);

#ifdef __cplusplus
}
#endif

#endif
