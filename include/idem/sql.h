/*
 * sql.h - keep the record in your own database transaction; and schemes that
 * make statements on your own tables idempotent.
 *
 * The record commits or rolls back together with the business data, so the two
 * always agree. Everything runs on a connection that your program opened: a
 * PGconn, MYSQL or sqlite3. idem opens no connection of its own, changes no
 * setting of the session, and leaves nothing behind but prepared statements.
 *
 *   begin                                       the caller's transaction
 *     idem_sql_claim(db, &op, &answer, &err)    go on if it is STARTED
 *     op.fence = answer.record->fence
 *     update account set ...                    the business part
 *     op.outcome = IDEM_STATE_SUCCEEDED; op.result = idem_text("paid")
 *     idem_answer_clear(&answer)
 *     idem_sql_finish(db, &op, &answer, &err)   duplicates will get "paid"
 *   commit
 *
 * idem_sql_run does all of this around a function. The table is the one of the
 * postgres://, mysql:// and sqlite: stores (`idem store init URL` creates it),
 * so a server, a gateway and the command line see the same records.
 *
 * Errors: with IDEM_OK the verdict is set. After any other status, roll the
 * transaction back; idem_sql_fault has the error of the database and its kind.
 * IDEM_ERR_LOST: the connection broke during a commit. Open a new connection
 * and GET the record with idem_sql_do: if it has an outcome, the commit
 * succeeded. If it is ABSENT, that proves nothing, because the old session may
 * still be committing. Then claim or settle the same key; the verdict is BUSY
 * until the old session has ended.
 *
 * PostgreSQL with a synchronous standby: commit before you answer your client,
 * also after a REPLAY, because the commit waits for the standby. The session's
 * synchronous_commit must be `on` or `remote_apply`. idem_sql_run does this.
 *
 * MariaDB or MySQL without a binary log: a REPLAY may come from a commit that
 * is not on the disk yet, and the commit of a transaction that only read does
 * not wait for it: see docs/sql/README.md. With innodb_rollback_on_timeout a
 * claim of a row that another transaction holds fails as a deadlock does.
 *
 * Names of tables and columns come from your program; they are quoted as
 * identifiers. Values are always bound as parameters.
 *
 * Threads: an adapter may be used by one thread at a time, like its connection.
 * Fork: the same rules as for the connection. Everything else: see the head of
 * record.h. The functions of the schemes write to `verdict` and `row`; the
 * strings and values that you pass stay yours.
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

/* Make an adapter for an open connection. Close it with idem_sql_close.
 * IDEM_ERR_UNSUPPORTED: this libidem was built without that database. */
IDEM_API enum idem_status idem_sql_postgres(struct pg_conn *conn,
                                            struct idem_sql **db,
                                            struct idem_error *err);
IDEM_API enum idem_status idem_sql_mysql(struct st_mysql *conn,
                                         struct idem_sql **db,
                                         struct idem_error *err);
IDEM_API enum idem_status idem_sql_sqlite(struct sqlite3 *conn,
                                          struct idem_sql **db,
                                          struct idem_error *err);

/* Free the adapter; the connection stays open. Close the adapter before the
 * connection. NULL does nothing. */
IDEM_API void idem_sql_close(struct idem_sql *db);

/* The kinds of errors that a database gives. */
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

/* An error of the database. */
struct idem_sql_fault {
    enum idem_sql_cause cause;
    int code;      /* MariaDB's or SQLite's error number; 0 on PostgreSQL */
    char state[6]; /* SQLSTATE; "" on SQLite */
    char text[240];
};

/* The error of the last call that failed. Valid until the next call on this
 * adapter. */
IDEM_API const struct idem_sql_fault *idem_sql_fault(const struct idem_sql *db);
/* "deadlock", "duplicate key" and so on; a constant. */
IDEM_API const char *idem_sql_cause_name(enum idem_sql_cause cause);

/* ---- the record, in the caller's open transaction --------------------- */

/*
 * Claim a request (`op` is a BEGIN) inside of your open transaction. If another
 * transaction has claimed the same key and not committed yet, this waits for
 * it, up to op->wait_ms.
 *
 * STARTED: do the work; answer->record->fence is the fence. REPLAY: done
 * before, and the record has the result. BUSY: another transaction or service
 * works on it. DOUBT, MISMATCH: as in record.h. Only STARTED changes the
 * database.
 */
IDEM_API enum idem_status idem_sql_claim(struct idem_sql *db,
                                         const struct idem_op *op,
                                         struct idem_answer *answer,
                                         struct idem_error *err);

/*
 * For a service behind the gateway: lock the record that the gateway claimed
 * for this request (headers Idem-Scope, Idem-Id, Idem-Fence) before the work.
 *
 * STARTED: the claim is still valid, and no other caller can get it until the
 * transaction ends. REPLAY: the request was finished under this fence before.
 * STALE: another caller has the claim now; do not do the work. BUSY: another
 * transaction locked the record for longer than wait_ms.
 */
IDEM_API enum idem_status
idem_sql_join(struct idem_sql *db, struct idem_bytes scope,
              struct idem_bytes id, uint64_t fence, int64_t wait_ms,
              struct idem_answer *answer, struct idem_error *err);

/*
 * Run another operation on a record: FINISH, RELEASE, RENEW, SETTLE or GET. The
 * type of the op may be IDEM_TYPE_TOKEN for a token that was begun.
 *
 * If a FINISH gets STALE or FINISHED, its transaction must not be committed, so
 * this function has rolled it back when it returns.
 */
IDEM_API enum idem_status idem_sql_do(struct idem_sql *db,
                                      const struct idem_op *op,
                                      struct idem_answer *answer,
                                      struct idem_error *err);

/*
 * FINISH. `op` is the op of the claim with three members set: the fence of the
 * claim, the outcome, and the result that duplicates will get.
 */
IDEM_API enum idem_status idem_sql_finish(struct idem_sql *db,
                                          const struct idem_op *op,
                                          struct idem_answer *answer,
                                          struct idem_error *err);

/*
 * The work of idem_sql_run, on the same connection. It sets *result to the
 * bytes to store, which must stay valid until idem_sql_run returns, and returns
 *   IDEM_STATE_SUCCEEDED: commit the work together with the result.
 *   IDEM_STATE_FAILED: undo the work. Strict mode stores the failure; loose
 *       mode stores nothing.
 *   IDEM_STATE_ABSENT: the work could not be tried (deadlock, lock timeout).
 *       Undo everything and store nothing, so that a retry may run.
 */
typedef enum idem_state idem_sql_work_fn(void *arg, struct idem_sql *db,
                                         uint64_t fence,
                                         struct idem_bytes *result);

/*
 * Run `fn` at most once for the scope and id of this op, in one transaction
 * that this function begins and ends. The connection must not be in a
 * transaction.
 *
 * STARTED: fn ran; answer->record has its state and result. REPLAY, BUSY,
 * DOUBT, MISMATCH: fn did not run here. IDEM_ERR_UNAVAILABLE: nothing happened
 * (fn returned IDEM_STATE_ABSENT, or the database rolled the transaction back).
 * IDEM_ERR_LOST: the reply to the commit was lost; call this again with the
 * same key.
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
    IDEM_SQL_TEXT, /* decimals, dates and other types are read as text */
    IDEM_SQL_BLOB,
    IDEM_SQL_ADD, /* the current value of the column plus `number` */
};

struct idem_sql_value {
    enum idem_sql_type type;
    int64_t number;
    struct idem_bytes bytes;
};

/* Make a value to bind. The bytes are not copied and must stay valid. */
IDEM_API struct idem_sql_value idem_sql_int(int64_t number);
IDEM_API struct idem_sql_value idem_sql_text(const char *text);
IDEM_API struct idem_sql_value idem_sql_blob(const void *data, size_t len);
/* column = column + number; only idem_sql_update_versioned accepts this. */
IDEM_API struct idem_sql_value idem_sql_add(int64_t number);

/* An INSERT, UPDATE or DELETE of your program, without RETURNING and without a
 * semicolon at its end. Write ? for each value, on PostgreSQL, too. The text
 * must not contain any other question mark. */
struct idem_sql_statement {
    const char *sql;
    const struct idem_sql_value *values;
    size_t count;
};

#define IDEM_SQL_STATEMENTS_MAX 8
#define IDEM_SQL_STATEMENT_VALUES 40 /* in all statements together */

/*
 * As idem_sql_run, for work that is known in advance: these statements, of
 * which each must change exactly one row, and the answer `result`. On
 * PostgreSQL and MariaDB everything takes one round trip. For that, it assumes
 * that this is the first request; if it is not, the transaction is rolled back,
 * and PostgreSQL logs an error.
 *
 * STARTED: done, and stored as succeeded. Other verdicts and errors: as
 * idem_sql_run. If a statement fails, or changes no row or several rows,
 * everything is undone: IDEM_ERR_UNAVAILABLE, nothing is stored, and a retry
 * may run. (MariaDB does not count a row that already had the new values.)
 */
IDEM_API enum idem_status
idem_sql_run_statements(struct idem_sql *db, const struct idem_op *op,
                        const struct idem_sql_statement *statements,
                        size_t count, struct idem_bytes result,
                        struct idem_answer *answer, struct idem_error *err);

/* column = value */
struct idem_sql_pair {
    const char *column;
    struct idem_sql_value value;
};

/* A row of a table; count 0: there is no row. Valid until the next call on the
 * same adapter. */
struct idem_sql_row {
    size_t count;
    const char *const *columns;
    const struct idem_sql_value *values;
};

/* The value of a column. If the row has no such column, its type is
 * IDEM_SQL_NULL. */
IDEM_API struct idem_sql_value idem_sql_column(const struct idem_sql_row *row,
                                               const char *column);

/* The decision of a scheme. */
enum idem_sql_verdict {
    IDEM_SQL_IS_FIRST,     /* this call made the change */
    IDEM_SQL_IS_DUPLICATE, /* the change was made before; see the row */
    IDEM_SQL_IS_CONFLICT,  /* another transaction changed it; read it again */
    IDEM_SQL_IS_REFUSED,   /* not allowed, or not enough; nothing was changed */
    IDEM_SQL_IS_EMPTY,     /* barrier: nothing to undo; report success */
};

/* "first", "duplicate", "conflict", "refused", "empty". */
IDEM_API const char *idem_sql_verdict_name(enum idem_sql_verdict verdict);

/*
 * How to find one row. The columns must include all columns of a primary key or
 * of a unique index, and no value may be null. Otherwise a duplicate could not
 * be recognised, and several rows could be changed or locked. Every scheme
 * checks this once for each table, set of columns and adapter, and returns
 * IDEM_ERR_INVALID with the name of the table.
 */
struct idem_sql_place {
    const char *table;                /* may be "schema.table" */
    const struct idem_sql_pair *keys; /* column = value, joined with AND */
    size_t key_count;
};

/*
 * Insert a row once; place->keys and `values` are its columns. FIRST: inserted.
 * DUPLICATE: a row with this key exists, and *row is that row. CONFLICT:
 * another unique index, not this key, refused the row.
 */
IDEM_API enum idem_status
idem_sql_insert_once(struct idem_sql *db, const struct idem_sql_place *place,
                     const struct idem_sql_pair *values, size_t count,
                     enum idem_sql_verdict *verdict, struct idem_sql_row *row,
                     struct idem_error *err);

/* The same, but it selects before it inserts, so that duplicates do not fill
 * the database's log with unique key errors. If two callers insert at the same
 * time, the unique key decides. */
IDEM_API enum idem_status
idem_sql_select_insert(struct idem_sql *db, const struct idem_sql_place *place,
                       const struct idem_sql_pair *values, size_t count,
                       enum idem_sql_verdict *verdict, struct idem_sql_row *row,
                       struct idem_error *err);

/* Insert a row (FIRST), or, if it exists, update it to `values` (DUPLICATE).
 * *row is the row as it was before. */
IDEM_API enum idem_status
idem_sql_upsert(struct idem_sql *db, const struct idem_sql_place *place,
                const struct idem_sql_pair *values, size_t count,
                enum idem_sql_verdict *verdict, struct idem_sql_row *row,
                struct idem_error *err);

/*
 * Optimistic lock: set `values` and increase the version if it is still
 * `version`. FIRST: done. DUPLICATE: the row has these values and the next
 * version, so this update was done before. CONFLICT: another update changed the
 * row (*row). REFUSED: there is no such row.
 *
 * With idem_sql_add among the values (price = price + 50), a duplicate is a
 * CONFLICT, too, because the new value does not show which update made it.
 */
IDEM_API enum idem_status
idem_sql_update_versioned(struct idem_sql *db,
                          const struct idem_sql_place *place,
                          const char *version_column, int64_t version,
                          const struct idem_sql_pair *values, size_t count,
                          enum idem_sql_verdict *verdict,
                          struct idem_sql_row *row, struct idem_error *err);

/* Conditional update: column = column - amount, if at least 0 remains. FIRST:
 * deducted. REFUSED: the column has less than `amount` (see *row), or there is
 * no such row (row->count is 0). A second call deducts again: claim the request
 * in the same transaction. */
IDEM_API enum idem_status idem_sql_deduct(struct idem_sql *db,
                                          const struct idem_sql_place *place,
                                          const char *column, int64_t amount,
                                          enum idem_sql_verdict *verdict,
                                          struct idem_sql_row *row,
                                          struct idem_error *err);

/*
 * Pessimistic lock: lock the row until the transaction ends; wait up to wait_ms
 * for other transactions. FIRST: locked, and *row is its newest state.
 * CONFLICT: another transaction still has the lock. REFUSED: there is no such
 * row.
 */
IDEM_API enum idem_status
idem_sql_lock_row(struct idem_sql *db, const struct idem_sql_place *place,
                  int64_t wait_ms, enum idem_sql_verdict *verdict,
                  struct idem_sql_row *row, struct idem_error *err);

/* A state machine: the allowed moves, and the table and columns that keep the
 * state. */
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
 * Move a row from one state to another. FIRST: this call moved it. DUPLICATE:
 * the row is in state `to`, or in a state that it can only reach through this
 * move. REFUSED: this move is not declared, or the row is in another state
 * (*row), or there is no such row.
 *
 * How DUPLICATE is decided: a row may begin in every state that no move leads
 * to, and in every state of a cycle that no move leads to. The current state
 * proves the move `from` -> `to` if it cannot be reached from any of these
 * states by the other declared moves. Example: with new -> paid -> done, `done`
 * proves that the row was paid. If new -> done is declared as well, it does
 * not.
 *
 * If a row has come back to `from`, it moves again (FIRST).
 */
IDEM_API enum idem_status
idem_sql_move(struct idem_sql *db, const struct idem_sql_machine *machine,
              struct idem_sql_value key, struct idem_sql_value from,
              struct idem_sql_value to, enum idem_sql_verdict *verdict,
              struct idem_sql_row *row, struct idem_error *err);

/* The phases of one branch of a distributed transaction (TCC). */
enum idem_sql_phase { IDEM_SQL_TRY, IDEM_SQL_CONFIRM, IDEM_SQL_CANCEL };

/*
 * Barrier: ask whether this phase of this branch may do its work in this
 * transaction. FIRST: yes. DUPLICATE: it did its work before. EMPTY: a cancel
 * whose try never came; do nothing and report success. REFUSED: a try after its
 * cancel, a confirm without its try, a confirm after a cancel, or a cancel
 * after a confirm.
 */
IDEM_API enum idem_status
idem_sql_barrier(struct idem_sql *db, struct idem_bytes transaction,
                 struct idem_bytes branch, enum idem_sql_phase phase,
                 enum idem_sql_verdict *verdict, struct idem_error *err);

#ifdef __cplusplus
}
#endif

#endif
