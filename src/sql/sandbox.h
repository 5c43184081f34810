/*
 * sandbox.h - an SQLite database in memory with a name, so that several
 * connections of this process can use it. It is gone with its last connection.
 * It holds the playground's business tables.
 */
#ifndef IDEM__SQL_SANDBOX_H
#define IDEM__SQL_SANDBOX_H

#include "../base/module.h"

struct sqlite3;

/* A row of a query's result: texts, NULL for null. Return 0 to go on. */
typedef int sandbox_row_fn(void *arg, int columns, char **values, char **names);

struct sandbox_type {
    /* Open a connection that waits up to wait_ms for locks. NULL: it failed. */
    struct sqlite3 *(*open)(const char *name, int wait_ms);
    /* Close it and roll back what is not committed. NULL is fine. */
    void (*close)(struct sqlite3 *conn);
    /* Run statements; *changed is how many rows the last one changed. False:
     * `why` has the database's message. */
    bool (*run)(struct sqlite3 *conn, const char *sql, sandbox_row_fn *row,
                void *arg, int *changed, char *why, size_t why_len);
};

extern IDEM__MODULE const struct sandbox_type idem__sandbox_sqlite;

#endif
