/*
 * driver.h - what the schemes need of a database: run a statement with bound
 * values, know whether a transaction is open, and a few words of its dialect.
 *
 * Statements are written once, with ? for values; idem__sql_text puts them
 * together and quotes names. A driver is one constant of struct sql_driver, in
 * postgres.c, mysql.c and sqlite.c.
 */
#ifndef IDEM__SQL_DRIVER_H
#define IDEM__SQL_DRIVER_H

#include <idem/sql.h>

#include "../store/columns.h"

#define SQL_VALUES_MAX 64
#define SQL_PREPARED_MAX 48
#define SQL_CALLS_MAX 16
#define SQL_CHECKED_MAX 64 /* tables whose engine, or unique key, is known */
#define SQL_NOT_ONE "idem: a statement did not change exactly one row"

/* What a statement brought: rows of `columns` values each. */
struct sql_rows {
    size_t columns, rows;
    const char **names;
    struct idem_sql_value *values;
    int64_t affected;
};

/* One of several statements that go in one round trip. */
struct sql_call {
    const char *sql;
    const struct idem_sql_value *values;
    size_t count;
};

enum sql_inside { SQL_OUTSIDE, SQL_INSIDE, SQL_ABORTED };

struct sql_driver {
    const char *name;
    const char *begin;          /* starts a transaction that will write */
    const char *begin_as_usual; /* the same, at the session's own isolation */
    const char *table;          /* idem_record, qualified where it has to be */
    const char *skip_locked; /* after a select: hold the rows that are free */
    const char *now_us;      /* an expression; NULL: this machine's clock */
    const char *insert;      /* "insert into", not waiting where it can */
    const char *insert_once; /* after it: do nothing if the key is there */
    const char *try_lock;    /* a condition that takes the key's lock, by its
                                number, until the transaction ends; or NULL */
    const char *isolated;    /* with try_lock: the isolation is as it must be */
    const char *isolation;   /* a query: its name, then its value; or NULL */
    const char *only_one;    /* in run_many: fails unless the statement before
                                it changed one row */
    const char *one_head, *one_tail; /* in run_many: around a statement, failing
                                        unless it changes one row */
    const char *need_lock; /* in run_many: fails unless it takes the key's
                              lock; with try_lock */
    const char *confirm;   /* read with a record, and nothing that has a value:
                              makes the commit wait for a standby; or NULL */
    const char *same;      /* an operator: equal, or both null */
    const char *exactly;   /* a text to compare, whatever the collation is */
    char quote;
    bool keeps_lock; /* a refused insert leaves a lock on the row that is there
                        until the transaction ends: do not wait then */
    const char *latest; /* after a select of that row: as it is now, not as the
                           transaction's snapshot has it */

    /* Learn what there is to know of db->conn; false: it is not open. */
    bool (*attach)(struct idem_sql *db);
    /* Rows go into db->rows and db->arena. On failure db->fault is set. */
    bool (*run)(struct idem_sql *db, const char *sql,
                const struct idem_sql_value *values, size_t count);
    /* All of them in one round trip, stopping at the first that fails; how many
     * rows they changed is added up. Asked only where db->in_one_go. */
    bool (*run_many)(struct idem_sql *db, const struct sql_call *calls,
                     size_t count);
    enum sql_inside (*inside)(struct idem_sql *db);
    /* Does a primary key or unique index lie within these columns? */
    bool (*is_unique)(struct idem_sql *db, const struct idem_sql_place *place,
                      bool *unique);
    void (*forget)(struct idem_sql *db, void *prepared);
    /* What engine a table has, if that can be one without transactions; NULL:
     * there is no such thing here. The answer is one row, or none. */
    bool (*engine_of)(struct idem_sql *db, const char *table);
};

/* A statement that the database has prepared. */
struct sql_prepared {
    char *sql;
    void *handle;
};

struct idem_sql {
    const struct sql_driver *driver;
    void *conn;
    bool mariadb;
    bool refuses_newer; /* MariaDB does not lock what is newer than the
                           transaction's snapshot unless it is asked to */
    bool in_one_go;  /* run_many works */
    bool says_level; /* the session's own isolation will not do */
    uint8_t checked[SQL_CHECKED_MAX][16]; /* hashes of what was found good */
    size_t checked_count;
    struct idem_sql_fault fault;
    struct idem_arena arena; /* of one public call */
    struct sql_rows rows;
    struct idem_buf text;
    struct sql_prepared prepared[SQL_PREPARED_MAX];
    size_t prepared_count, prepared_next;
    uint64_t prefix; /* in names of prepared statements */

    bool clock_known; /* the database's clock, by ours */
    int64_t clock_offset_us, clock_read_us;
    int64_t early_offset_us; /* the same for what is judged; see sql.c */

    /* What this adapter wrote last: a guess that saves a read. Its rev tells
     * whether it is still true. */
    bool held;
    uint8_t held_key[IDEM_KEY_LEN];
    struct idem_record held_record;
    struct idem_arena held_arena;
};

extern IDEM__MODULE const struct sql_driver idem__sql_postgres;
extern IDEM__MODULE const struct sql_driver idem__sql_mysql;
extern IDEM__MODULE const struct sql_driver idem__sql_sqlite;

/* ---- helpers (sql.c) -------------------------------------------------- */

struct idem_sql *idem__sql_make(const struct sql_driver *driver, void *conn);

/* Start a public call: what the last one brought is gone, and the answer, if it
 * gives one, is empty until it is known. */
void idem__sql_start(struct idem_sql *db, struct idem_answer *answer);

/*
 * Put a statement together: %s is text as it is, %i a name to quote
 * ("schema.table" is two), anything else stands for itself. The text lives
 * until the next one; NULL: a name is bad, or no memory.
 */
const char *idem__sql_text(struct idem_sql *db, const char *format, ...);
/* The same, added to the statement that is being put together. */
bool idem__sql_add(struct idem_sql *db, const char *format, ...);
const char *idem__sql_whole(struct idem_sql *db);

/* Find or remember a prepared statement. */
struct sql_prepared *idem__sql_prepared(struct idem_sql *db, const char *sql);
struct sql_prepared *idem__sql_remember(struct idem_sql *db, const char *sql,
                                        void *handle);

/* Fill in the fault; returns false, for `return idem__sql_fault(...)`. */
bool idem__sql_fault(struct idem_sql *db, enum idem_sql_cause cause, int code,
                     const char *state, const char *text);
/* The fault as a status, told in err. */
enum idem_status idem__sql_fail(struct idem_sql *db, struct idem_error *err);

/* Make room for rows * columns values, in the arena. */
bool idem__sql_room(struct idem_sql *db, size_t rows, size_t columns);
/* Copy bytes into the arena, with a NUL behind them. */
const void *idem__sql_copy(struct idem_sql *db, const void *data, size_t len);

/* Can these be bound? If not, the fault says why. */
bool idem__sql_plain(struct idem_sql *db, const struct idem_sql_value *values,
                     size_t count);
/* Run what idem__sql_text made. */
bool idem__sql_run(struct idem_sql *db, const char *sql,
                   const struct idem_sql_value *values, size_t count);

/* Is a transaction open, as it has to be? */
enum idem_status idem__sql_need_transaction(struct idem_sql *db,
                                            struct idem_error *err);

/* Refuse a table that would keep what is rolled back. Asked once a table. */
enum idem_status idem__sql_need_engine(struct idem_sql *db, const char *table,
                                       struct idem_error *err);
/* Refuse columns that may name several rows. Asked once a table and columns. */
enum idem_status idem__sql_need_unique(struct idem_sql *db,
                                       const struct idem_sql_place *place,
                                       struct idem_error *err);

enum idem_status idem__sql_now(struct idem_sql *db, struct idem_now *now,
                               struct idem_error *err);

/* ---- records (record.c) ----------------------------------------------- */

/* The statements below are a call with its text in the arena and its values,
 * which live as long as the record and the key. The text is NULL: no memory. */
#define SQL_RECORD_VALUES (IDEM_COLUMN_COUNT + 1)

/* Insert a new record; an error if the key is there. */
struct sql_call idem__sql_insert(struct idem_sql *db, const uint8_t *key,
                                 const struct idem_record *record,
                                 struct idem_sql_value *values);
/* Write what has changed in a record that is as `from`, by its rev. */
struct sql_call idem__sql_update(struct idem_sql *db, const uint8_t *key,
                                 const struct idem_record *from,
                                 const struct idem_record *to,
                                 struct idem_sql_value *values);
/* A row if the key's lock could be had, or else none, or if it is needed, an
 * error; where the driver has locks. */
struct sql_call idem__sql_lock(struct idem_sql *db, const uint8_t *key,
                               bool needed, struct idem_sql_value *values);
/* A row if there is no record, and the isolation is as it must be. */
struct sql_call idem__sql_absent(struct idem_sql *db, const uint8_t *key,
                                 struct idem_sql_value *values);
/* idem_sql_claim; guess: that nothing is there. */
enum idem_status idem__sql_claim(struct idem_sql *db, const struct idem_op *op,
                                 bool guess, struct idem_answer *answer,
                                 struct idem_error *err);
/* Remember what was written, give it to the caller. */
bool idem__sql_hold(struct idem_sql *db, const uint8_t *key,
                    const struct idem_record *record);
enum idem_status idem__sql_answer(struct idem_answer *answer,
                                  enum idem_verdict verdict,
                                  const struct idem_record *record,
                                  const struct idem_now *now,
                                  struct idem_error *err);

#endif
