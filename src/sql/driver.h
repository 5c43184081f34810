/*
 * driver.h - what the schemes need of a database: run a statement with bound
 * values, know whether a transaction is open, and what its dialect and its
 * locks make different.
 *
 * Statements are written once, with ? for values; idem__sql_text puts them
 * together and quotes names. A driver is one constant of struct sql_driver, in
 * sql_postgres.c, sql_mysql.c and sql_sqlite.c.
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

/* A statement with its values. The text is NULL: no memory, or a bad name. */
struct sql_call {
    const char *sql;
    const struct idem_sql_value *values;
    size_t count;
};

/* A record's columns and one more. */
#define SQL_RECORD_VALUES (IDEM_COLUMN_COUNT + 1)

/* Statements that go in one round trip, and values of the first ones. */
struct sql_batch {
    struct sql_call calls[SQL_CALLS_MAX];
    size_t count;
    struct idem_sql_value values[SQL_RECORD_VALUES];
};

enum sql_inside { SQL_OUTSIDE, SQL_INSIDE, SQL_ABORTED };

struct sql_driver {
    const char *name;
    const char *table; /* idem_record, qualified where it has to be */
    const char *begin; /* starts a transaction that will write */
    char quote;
    bool row_locks;   /* "for update skip locked"; otherwise a write locks the
                         whole database */
    bool on_conflict; /* "on conflict do nothing"; otherwise a key that is there
                         is the fault DUPLICATE_KEY */
    bool keeps_lock;  /* a refused insert leaves a lock on the row that is there
                         until the transaction ends: do not wait then, and read
                         it with that lock, as it is now */
    bool confirms; /* the commit after reading a record waits for a standby */

    /* Learn what there is to know of db->conn; false: it is not open. */
    bool (*attach)(struct idem_sql *db);
    /* Rows go into db->rows and db->arena. On failure db->fault is set. */
    bool (*run)(struct idem_sql *db, const char *sql,
                const struct idem_sql_value *values, size_t count);
    enum sql_inside (*inside)(struct idem_sql *db);
    void (*forget)(struct idem_sql *db, void *prepared);
    /* Does a primary key or unique index lie within these columns? */
    bool (*is_unique)(struct idem_sql *db, const struct idem_sql_place *place,
                      bool *unique);
    /* What engine a table has, if that can be one without transactions; NULL:
     * there is no such thing here. The answer is one row, or none. */
    bool (*engine_of)(struct idem_sql *db, const char *table);
    /* The database's microseconds since 1970, in one row; NULL: this machine's
     * clock is the database's. */
    bool (*read_clock)(struct idem_sql *db);
    /* Refuse a transaction at an isolation that does not protect a claim, or a
     * question. NULL: every one does. */
    enum idem_status (*check_isolation)(struct idem_sql *db, bool claims,
                                        struct idem_error *err);

    /* The text that selects a record by its key; see idem__sql_select. */
    const char *(*select)(struct idem_sql *db, const char *suffix);
    /* The statement that inserts a record unless the key is there, or another
     * transaction is about to insert it. */
    struct sql_call (*insert_once)(struct idem_sql *db, const uint8_t *key,
                                   const struct idem_record *record,
                                   struct idem_sql_value *values);
    /* The words that compare a column with a value: equal, or both null,
     * whatever the collation is. */
    const char *(*equals)(enum idem_sql_type type);

    const struct sql_at_once *at_once; /* or NULL; db->in_one_go says whether */
};

/* What a driver has that can send several statements in one round trip. */
struct sql_at_once {
    /* Run them all, stopping at the first that fails; how many rows they
     * changed is added up. After a failure the transaction is rolled back. */
    bool (*run)(struct idem_sql *db, const struct sql_call *calls,
                size_t count);
    /* begin, and claim the key, guessing that nothing is there: how many rows
     * that brings if it is right. */
    int64_t (*claim)(struct idem_sql *db, const uint8_t *key,
                     const struct idem_record *record, struct sql_batch *batch);
    /* Write what has become of that claim. It fails unless the row is as this
     * transaction left it. */
    void (*finish)(struct idem_sql *db, const uint8_t *key,
                   const struct idem_record *claim,
                   const struct idem_record *next, struct sql_batch *batch);
    /* begin, and write a record that was never seen as claimed. */
    void (*record)(struct idem_sql *db, const uint8_t *key,
                   const struct idem_record *record, struct sql_batch *batch);
    /* A statement of the caller's, which fails unless it changes one row. */
    const char *(*change_one)(struct idem_sql *db, const char *sql);
    /* Has the transaction ended before the finish came? */
    bool (*was_undone)(const struct idem_sql_fault *fault);
};

/* A statement that the database has prepared. */
struct sql_prepared {
    char *sql;
    void *handle;
};

struct idem_sql {
    const struct sql_driver *driver;
    void *conn;
    bool mariadb;       /* of sql_mysql.c, as the next */
    bool refuses_newer; /* MariaDB does not lock what is newer than the
                           transaction's snapshot unless it is asked to */
    bool in_one_go;     /* the driver's at_once works here */
    bool says_level;    /* the session's own isolation will not do */
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

/* Do rows of an index's name and a column, sorted, name an index that lies
 * within the place's columns? They are compared as the database does. */
bool idem__sql_has_index(const struct idem_sql *db,
                         const struct idem_sql_place *place,
                         int (*compare)(const char *, const char *));
/* "schema.table" as two values; the first is null where there is no schema. */
void idem__sql_split(const char *table, struct idem_sql_value names[2]);
/* After a select: hold the rows that are free; as they are now. */
const char *idem__sql_if_free(const struct idem_sql *db);
const char *idem__sql_latest(const struct idem_sql *db);

/* ---- records (record.c) ----------------------------------------------- */

/* A text that was put together, kept in the arena, and its values, which live
 * as long as what they were made of. */
struct sql_call idem__sql_call(struct idem_sql *db, const char *text,
                               const struct idem_sql_value *values,
                               size_t count);
/* Select a record by its key, and more columns. */
const char *idem__sql_select(struct idem_sql *db, const char *more,
                             const char *suffix);
/* Insert a new record. The format has three %s: the table, its columns, and a
 * mark for each value. */
struct sql_call idem__sql_insert(struct idem_sql *db, const char *format,
                                 const uint8_t *key,
                                 const struct idem_record *record,
                                 struct idem_sql_value *values);
/* Write what has changed in a record that is as `from`, by its rev. */
struct sql_call idem__sql_update(struct idem_sql *db, const uint8_t *key,
                                 const struct idem_record *from,
                                 const struct idem_record *to,
                                 struct idem_sql_value *values);
/* Tell that the isolation will not do. */
enum idem_status idem__sql_bad_isolation(struct idem_sql *db, const char *level,
                                         const char *why,
                                         struct idem_error *err);
/* idem_sql_claim; guess: that nothing is there. */
enum idem_status idem__sql_claim(struct idem_sql *db, const struct idem_op *op,
                                 bool guess, struct idem_answer *answer,
                                 struct idem_error *err);
enum idem_status idem__sql_answer(struct idem_answer *answer,
                                  enum idem_verdict verdict,
                                  const struct idem_record *record,
                                  const struct idem_now *now,
                                  struct idem_error *err);

#endif
