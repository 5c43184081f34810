/*
 * sandbox_sqlite.c - the sandbox with SQLite's memdb: all connections that open
 * the same name share one database, with the locks that a file would have.
 */
#include "sandbox.h"

#include <sqlite3.h>
#include <stdio.h>

static struct sqlite3 *
open_sandbox(const char *name, int wait_ms)
{
    char uri[128];
    sqlite3 *conn = NULL;

    snprintf(uri, sizeof(uri), "file:/%s?vfs=memdb", name);
    if (sqlite3_open_v2(uri, &conn,
                        SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE |
                            SQLITE_OPEN_URI | SQLITE_OPEN_NOMUTEX,
                        NULL) == SQLITE_OK &&
        sqlite3_busy_timeout(conn, wait_ms) == SQLITE_OK)
        return conn;
    sqlite3_close(conn);
    return NULL;
}

static void
close_sandbox(struct sqlite3 *conn)
{
    sqlite3_close(conn);
}

static bool
run(struct sqlite3 *conn, const char *sql, sandbox_row_fn *row, void *arg,
    int *changed, char *why, size_t why_len)
{
    int rc = sqlite3_exec(conn, sql, row, arg, NULL);

    *changed = sqlite3_changes(conn);
    if (rc != SQLITE_OK)
        snprintf(why, why_len, "%s", sqlite3_errmsg(conn));
    return rc == SQLITE_OK;
}

const struct sandbox_type idem__sandbox_sqlite = {
    .open = open_sandbox,
    .close = close_sandbox,
    .run = run,
};
