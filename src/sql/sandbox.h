/*
 * sandbox.h - an SQLite database that lives in memory and has a name, so that
 * several connections of this process can work on it. It is gone with its last
 * connection. The playground's business tables are there.
 */
#ifndef IDEM__SQL_SANDBOX_H
#define IDEM__SQL_SANDBOX_H

#include "../base/module.h"

struct sqlite3;

/* A row of a question: texts, NULL for null. Return 0 to go on. */
typedef int sandbox_row_fn(void *arg, int columns, char **values, char **names);

struct sandbox_type {
    /* A connection that waits up to wait_ms for others. NULL: it failed. */
    struct sqlite3 *(*open)(const char *name, int wait_ms);
    /* What is not committed is undone. NULL is fine. */
    void (*close)(struct sqlite3 *conn);
    /* Statements; *changed is how many rows the last one changed. False:
     * `why` says what the database said. */
    bool (*run)(struct sqlite3 *conn, const char *sql, sandbox_row_fn *row,
                void *arg, int *changed, char *why, size_t why_len);
};

extern IDEM__MODULE const struct sandbox_type idem__sandbox_sqlite;

#endif
