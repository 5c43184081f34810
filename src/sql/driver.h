/*
 * driver.h - what the schemes need from a database: run a statement with bound
 * values, know whether a transaction is open, and the differences of its
 * dialect and its locks.
 *
 * Statements are written once, with ? for values; idem__sql_text assembles them
 * and quotes names. A driver is one constant of struct sql_driver, in
 * sql_postgres.c, sql_mysql.c and sql_sqlite.c.
 */
#ifndef IDEM__SQL_DRIVER_H
#define IDEM__SQL_DRIVER_H

#include <idem/sql.h>

#include "../store/columns.h"

#define SQL_VALUES_MAX 64
#define SQL_PREPARED_MAX 48
#define SQL_CALLS_MAX 16
#define SQL_CHECKED_MAX 64 /* tables whose engine or unique key was checked */
#define SQL_NOT_ONE "idem: a statement did not change exactly one row"

/* The result of a statement: rows of `columns` values each. */
struct sql_rows {
    size_t columns, rows;
    const char **names;
    struct idem_sql_value *values;
    int64_t affected;
};

/* A statement with its values. If the text is NULL, memory ran out or a name is
 * bad. */
struct sql_call {
    const char *sql;
    const struct idem_sql_value *values;
    size_t count;
};

/* A record's columns and one more value. */
#define SQL_RECORD_VALUES (IDEM_COLUMN_COUNT + 1)

/* Statements for one round trip, and values of the first ones. */
struct sql_batch {
    struct sql_call calls[SQL_CALLS_MAX];
    size_t count;
    struct idem_sql_value values[SQL_RECORD_VALUES];
};

enum sql_inside { SQL_OUTSIDE, SQL_INSIDE, SQL_ABORTED };

struct sql_driver {
    const char *name;
    const char *table; /* idem_record, qualified if necessary */
    const char *begin; /* starts a transaction that will write */
    char quote;
    bool row_locks;   /* "for update skip locked"; otherwise a write locks the
                         whole database */
    bool on_conflict; /* "on conflict do nothing"; otherwise an existing key
                       * is the fault DUPLICATE_KEY */
    bool keeps_lock;  /* a refused insert keeps a lock on the existing row
                       * until the transaction ends: do not wait then, and
                       * read the current row with that lock */
    bool confirms; /* the commit after reading a record waits for a standby */

    /* Find out what is needed about db->conn; false: it is not open. */
    bool (*attach)(struct idem_sql *db);
    /* Rows go into db->rows and db->arena. On failure db->fault is set. */
    bool (*run)(struct idem_sql *db, const char *sql,
                const struct idem_sql_value *values, size_t count);
    enum sql_inside (*inside)(struct idem_sql *db);
    void (*forget)(struct idem_sql *db, void *prepared);
    /* Is there a primary key or unique index on a subset of these columns? */
    bool (*is_unique)(struct idem_sql *db, const struct idem_sql_place *place,
                      bool *unique);
    /* The engine of a table, as one row or none. NULL: all tables of this
     * database have transactions. */
    bool (*engine_of)(struct idem_sql *db, const char *table);
    /* The database's time in microseconds since 1970, in one row; NULL: this
     * machine's clock is used. */
    bool (*read_clock)(struct idem_sql *db);
    /* Refuse a transaction whose isolation level does not protect a claim, or a
     * query. NULL: all levels do. */
    enum idem_status (*check_isolation)(struct idem_sql *db, bool claims,
                                        struct idem_error *err);

    /* The text that selects a record by its key; see idem__sql_select. */
    const char *(*select)(struct idem_sql *db, const char *suffix);
    /* The statement that inserts a record unless the key exists or another
     * transaction is about to insert it. */
    struct sql_call (*insert_once)(struct idem_sql *db, const uint8_t *key,
                                   const struct idem_record *record,
                                   struct idem_sql_value *values);
    /* The SQL that compares a column with a value: true if they are equal or
     * both null, independent of the collation. */
    const char *(*equals)(enum idem_sql_type type);
    /* Does the fault say that these values cannot be compared? NULL: all
     * can. */
    bool (*is_incomparable)(const struct idem_sql_fault *fault);

    const struct sql_at_once *at_once; /* may be NULL; see db->in_one_go */
};

/* Functions of a driver that can send several statements in one round trip. */
struct sql_at_once {
    /* Run all of them and stop at the first that fails, after which the
     * transaction is rolled back. db->rows.affected is the sum of all rows
     * (MariaDB: 1). */
    bool (*run)(struct idem_sql *db, const struct sql_call *calls,
                size_t count);
    /* begin, and claim the key, guessing that there is no record. Returns the
     * value of db->rows.affected if the guess is right. */
    int64_t (*claim)(struct idem_sql *db, const uint8_t *key,
                     const struct idem_record *record, struct sql_batch *batch);
    /* Write the outcome of that claim. It fails unless the row is as this
     * transaction left it. */
    void (*finish)(struct idem_sql *db, const uint8_t *key,
                   const struct idem_record *claim,
                   const struct idem_record *next, struct sql_batch *batch);
    /* begin, and write a record in its final state, without a claim before. */
    void (*record)(struct idem_sql *db, const uint8_t *key,
                   const struct idem_record *record, struct sql_batch *batch);
    /* Wraps a statement of the caller, so that it fails unless it changes one
     * row. */
    const char *(*change_one)(struct idem_sql *db, const char *sql);
    /* Did the transaction end before the finish? */
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
    bool mariadb;       /* this and the next: for sql_mysql.c */
    bool refuses_newer; /* MariaDB refuses to lock rows newer than the
                         * transaction's snapshot unless it is told to */
    bool in_one_go;     /* the driver's at_once can be used */
    bool says_level;    /* begin must set the isolation level */
    uint8_t checked[SQL_CHECKED_MAX][16]; /* hashes of what passed its check */
    size_t checked_count;
    struct idem_sql_fault fault;
    struct idem_arena arena; /* memory of one public call */
    struct sql_rows rows;
    struct idem_buf text;
    struct sql_prepared prepared[SQL_PREPARED_MAX];
    size_t prepared_count, prepared_next;
    uint64_t prefix; /* in names of prepared statements */

    bool clock_known; /* offset of the database's clock to ours */
    int64_t clock_offset_us, clock_read_us;
    int64_t early_offset_us; /* the same, for judging leases; see sql.c */

    /* The record that this adapter wrote last, a guess that saves a read. Its
     * rev tells whether the guess is still right. */
    bool held;
    uint8_t held_key[IDEM_KEY_LEN];
    struct idem_record held_record;
    struct idem_arena held_arena;
};

extern IDEM__MODULE const struct sql_driver idem__sql_postgres;
extern IDEM__MODULE const struct sql_driver idem__sql_mysql;
extern IDEM__MODULE const struct sql_driver idem__sql_sqlite;

/* ---- helpers (sql.c) -------------------------------------------------- */

/* Start a public call: clear the results of the last one, and the answer, if
 * the call gives one. */
void idem__sql_start(struct idem_sql *db, struct idem_answer *answer);

/*
 * Assemble a statement: %s is text, %i a name to quote ("schema.table" is two
 * names); everything else is copied. The text is valid until the next one;
 * NULL: a name is bad, or out of memory.
 */
const char *idem__sql_text(struct idem_sql *db, const char *format, ...);
/* The same, appended to the statement that is being assembled. */
bool idem__sql_add(struct idem_sql *db, const char *format, ...);
const char *idem__sql_whole(struct idem_sql *db);

/* Find or store a prepared statement. */
struct sql_prepared *idem__sql_prepared(struct idem_sql *db, const char *sql);
bool idem__sql_remember(struct idem_sql *db, const char *sql, void *handle);

/* Fill in the fault; returns false, for `return idem__sql_fault(...)`. */
bool idem__sql_fault(struct idem_sql *db, enum idem_sql_cause cause, int code,
                     const char *state, const char *text);
/* Turn the fault into a status and a message in err. */
enum idem_status idem__sql_fail(struct idem_sql *db, struct idem_error *err);

/* Make room for rows * columns values in the arena. Without columns it cannot
 * fail. */
bool idem__sql_room(struct idem_sql *db, size_t rows, size_t columns);
/* Copy bytes into the arena and append a NUL. */
const void *idem__sql_copy(struct idem_sql *db, const void *data, size_t len);

/* Can these values be bound? If not, the fault says why. */
bool idem__sql_plain(struct idem_sql *db, const struct idem_sql_value *values,
                     size_t count);
/* Run a statement from idem__sql_text. */
bool idem__sql_run(struct idem_sql *db, const char *sql,
                   const struct idem_sql_value *values, size_t count);

/* An error if no transaction is open. */
enum idem_status idem__sql_need_transaction(struct idem_sql *db,
                                            struct idem_error *err);

/* Refuse a table without transactions. Checked once per table. */
enum idem_status idem__sql_need_engine(struct idem_sql *db, const char *table,
                                       struct idem_error *err);
/* Refuse columns that may match several rows. Checked once per table and
 * columns. */
enum idem_status idem__sql_need_unique(struct idem_sql *db,
                                       const struct idem_sql_place *place,
                                       struct idem_error *err);

enum idem_status idem__sql_now(struct idem_sql *db, struct idem_now *now,
                               struct idem_error *err);

/* The rows are pairs of an index's name and a column, sorted. Is there an index
 * whose columns are all in the place? `compare` compares names as the database
 * does. */
bool idem__sql_has_index(const struct idem_sql *db,
                         const struct idem_sql_place *place,
                         int (*compare)(const char *, const char *));
/* Split "schema.table" into two values; the first is null if there is no
 * schema. */
void idem__sql_split(const char *table, struct idem_sql_value names[2]);
/* Suffixes of a select: lock the rows that are not locked; read the current
 * rows. */
const char *idem__sql_if_free(const struct idem_sql *db);
const char *idem__sql_latest(const struct idem_sql *db);
/* The first row of db->rows, which has one. */
void idem__sql_first_row(const struct idem_sql *db, struct idem_sql_row *row);

/* ---- records (record.c) ----------------------------------------------- */

/* A statement whose text is copied into the arena. Its values are not
 * copied. */
struct sql_call idem__sql_call(struct idem_sql *db, const char *text,
                               const struct idem_sql_value *values,
                               size_t count);
/* Select a record by its key, with more columns. */
const char *idem__sql_select(struct idem_sql *db, const char *more,
                             const char *suffix);
/* Insert a new record. The format has three %s: the table, its columns, and a ?
 * for each value. */
struct sql_call idem__sql_insert(struct idem_sql *db, const char *format,
                                 const uint8_t *key,
                                 const struct idem_record *record,
                                 struct idem_sql_value *values);
/* Write the changes of a record, if its rev is still that of `from`. */
struct sql_call idem__sql_update(struct idem_sql *db, const uint8_t *key,
                                 const struct idem_record *from,
                                 const struct idem_record *to,
                                 struct idem_sql_value *values);
/* Report that the isolation level is not sufficient. */
enum idem_status idem__sql_bad_isolation(struct idem_sql *db, const char *level,
                                         const char *why,
                                         struct idem_error *err);
/* idem_sql_claim; guess: assume that there is no record. */
enum idem_status idem__sql_claim(struct idem_sql *db, const struct idem_op *op,
                                 bool guess, struct idem_answer *answer,
                                 struct idem_error *err);
enum idem_status idem__sql_answer(struct idem_answer *answer,
                                  enum idem_verdict verdict,
                                  const struct idem_record *record,
                                  const struct idem_now *now,
                                  struct idem_error *err);

#endif
