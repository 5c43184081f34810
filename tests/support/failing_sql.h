/*
 * failing_sql.h - the calls of SQLite, libpq and MariaDB Connector/C that run
 * statements, one of which gets into trouble when the test wants.
 *
 * For tests that are linked with --wrap for these calls (see the Makefile). The
 * test defines sql_trouble.
 */
#ifndef IDEM_TESTS_FAILING_SQL_H
#define IDEM_TESTS_FAILING_SQL_H

#include <libpq-fe.h>
#include <mysql.h>
#include <sqlite3.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

enum trouble {
    FINE,
    REFUSED, /* the database refuses the statement */
    BROKEN,  /* the connection breaks before the call */
    UNHEARD, /* the statement arrives; the connection breaks before its reply */
    KILLED,  /* the server ends the session */
    TROUBLES
};

/* What happens to the next call. */
static enum trouble sql_trouble(void);
/* Why a statement is refused; sql_trouble sets it. */
static const struct refusal {
    const char *state; /* PostgreSQL's and MariaDB's */
    unsigned code;     /* MariaDB's */
    int rc;            /* SQLite's */
} * refusal;

/* ---- PostgreSQL --------------------------------------------------------- */

#define REPLACES(type, name, ...)                                              \
    type __real_##name(__VA_ARGS__);                                           \
    type __wrap_##name(__VA_ARGS__);                                           \
    type __wrap_##name(__VA_ARGS__)

/* The connection is broken, or will be when somebody reads from it. */
static bool sql_is_broken;

static void
break_off(int fd, enum trouble t)
{
    if (t == BROKEN || t == UNHEARD || t == KILLED)
        sql_is_broken = true;
    if (t == BROKEN || t == UNHEARD)
        shutdown(fd, t == BROKEN ? SHUT_RDWR : SHUT_RD);
}

/* Must something else be sent? */
static enum trouble
pq_trouble(PGconn *conn)
{
    enum trouble t = sql_trouble();

    break_off(PQsocket(conn), t);
    return t == REFUSED || t == KILLED ? t : FINE;
}

static const char *
pq_instead(enum trouble t)
{
    static char text[120];

    if (t == KILLED)
        return "select pg_terminate_backend(pg_backend_pid())";
    snprintf(text, sizeof(text),
             "do $$ begin raise exception 'refused' using errcode = '%s'; end "
             "$$",
             refusal->state);
    return text;
}

REPLACES(PGresult *, PQprepare, PGconn *conn, const char *name, const char *sql,
         int count, const Oid *types)
{
    enum trouble t = pq_trouble(conn);

    return t ? PQexec(conn, pq_instead(t))
             : __real_PQprepare(conn, name, sql, count, types);
}

REPLACES(PGresult *, PQexecPrepared, PGconn *conn, const char *name, int count,
         const char *const *values, const int *lengths, const int *formats,
         int format)
{
    enum trouble t = pq_trouble(conn);

    return t ? PQexec(conn, pq_instead(t))
             : __real_PQexecPrepared(conn, name, count, values, lengths,
                                     formats, format);
}

REPLACES(PGresult *, PQexecParams, PGconn *conn, const char *sql, int count,
         const Oid *types, const char *const *values, const int *lengths,
         const int *formats, int format)
{
    enum trouble t = pq_trouble(conn);

    return t ? PQexec(conn, pq_instead(t))
             : __real_PQexecParams(conn, sql, count, types, values, lengths,
                                   formats, format);
}

REPLACES(int, PQsendQueryPrepared, PGconn *conn, const char *name, int count,
         const char *const *values, const int *lengths, const int *formats,
         int format)
{
    enum trouble t = pq_trouble(conn);

    return t ? PQsendQueryParams(conn, pq_instead(t), 0, NULL, NULL, NULL, NULL,
                                 0)
             : __real_PQsendQueryPrepared(conn, name, count, values, lengths,
                                          formats, format);
}

/* It fails if the caller has left a query unread. */
REPLACES(int, PQenterPipelineMode, PGconn *conn)
{
    return pq_trouble(conn) ? 0 : __real_PQenterPipelineMode(conn);
}

/* These send no statement, so the connection breaks if there is trouble. */
REPLACES(int, PQpipelineSync, PGconn *conn)
{
    if (pq_trouble(conn))
        break_off(PQsocket(conn), BROKEN);
    return __real_PQpipelineSync(conn);
}

REPLACES(PGresult *, PQgetResult, PGconn *conn)
{
    if (pq_trouble(conn))
        break_off(PQsocket(conn), BROKEN);
    return __real_PQgetResult(conn);
}

/* ---- MariaDB ------------------------------------------------------------ */

/* The statement or the connection that was refused. The server did not get the
 * statement, and a deadlock ends the transaction. */
static const void *mysql_refused;

int __real_mysql_query(MYSQL *conn, const char *sql);

static bool
mysql_is_refused(MYSQL *conn, const void *what)
{
    enum trouble t = sql_trouble();

    mysql_refused = NULL;
    break_off(mysql_get_socket(conn), t);
    if (t == KILLED) {
        char kill[40];

        snprintf(kill, sizeof(kill), "kill %lu", mysql_thread_id(conn));
        __real_mysql_query(conn, kill);
    }
    if (t != REFUSED)
        return false;
    if (refusal->code == 1213)
        __real_mysql_query(conn, "rollback");
    mysql_refused = what;
    return true;
}

REPLACES(int, mysql_query, MYSQL *conn, const char *sql)
{
    return mysql_is_refused(conn, conn) ? 1 : __real_mysql_query(conn, sql);
}

REPLACES(int, mysql_stmt_prepare, MYSQL_STMT *s, const char *sql,
         unsigned long len)
{
    return mysql_is_refused(s->mysql, s)
               ? 1
               : __real_mysql_stmt_prepare(s, sql, len);
}

REPLACES(int, mysql_stmt_execute, MYSQL_STMT *s)
{
    return mysql_is_refused(s->mysql, s) ? 1 : __real_mysql_stmt_execute(s);
}

REPLACES(int, mysql_stmt_next_result, MYSQL_STMT *s)
{
    return mysql_is_refused(s->mysql, s) ? 1 : __real_mysql_stmt_next_result(s);
}

/* The replies of short statements are in the library's buffer already, so the
 * connection cannot break here for real. */
#define READS(name)                                                            \
    REPLACES(int, name, MYSQL_STMT *s)                                         \
    {                                                                          \
        static const struct refusal gone = {"HY000", 2013, 0};                 \
                                                                               \
        mysql_refused = NULL;                                                  \
        if (sql_trouble() == FINE)                                             \
            return __real_##name(s);                                           \
        refusal = &gone;                                                       \
        mysql_refused = s;                                                     \
        break_off(mysql_get_socket(s->mysql), BROKEN);                         \
        return 1;                                                              \
    }

READS(mysql_stmt_store_result)
READS(mysql_stmt_fetch)

#define TELLS(type, name, handle, fake)                                        \
    REPLACES(type, name, handle *h)                                            \
    {                                                                          \
        return mysql_refused == h ? fake : __real_##name(h);                   \
    }

TELLS(unsigned, mysql_errno, MYSQL, refusal->code)
TELLS(const char *, mysql_error, MYSQL, "refused")
TELLS(const char *, mysql_sqlstate, MYSQL, refusal->state)
TELLS(unsigned, mysql_stmt_errno, MYSQL_STMT, refusal->code)
TELLS(const char *, mysql_stmt_error, MYSQL_STMT, "refused")
TELLS(const char *, mysql_stmt_sqlstate, MYSQL_STMT, refusal->state)

/* ---- SQLite ------------------------------------------------------------- */

static int sqlite_refused;

static int
interrupt(void *arg)
{
    (void)arg;
    return 1;
}

REPLACES(int, sqlite3_prepare_v2, sqlite3 *conn, const char *sql, int len,
         sqlite3_stmt **s, const char **rest)
{
    sqlite_refused = sql_trouble() == REFUSED ? refusal->rc : 0;
    return sqlite_refused ? sqlite_refused & 0xff
                          : __real_sqlite3_prepare_v2(conn, sql, len, s, rest);
}

/* An interrupt is a real one, which undoes a transaction that writes. */
REPLACES(int, sqlite3_step, sqlite3_stmt *s)
{
    sqlite3 *conn = sqlite3_db_handle(s);
    int rc;

    sqlite_refused = sql_trouble() == REFUSED ? refusal->rc : 0;
    if (sqlite_refused && sqlite_refused != SQLITE_INTERRUPT)
        return sqlite_refused & 0xff;
    if (sqlite_refused)
        sqlite3_progress_handler(conn, 1, interrupt, NULL);
    rc = __real_sqlite3_step(s);
    sqlite3_progress_handler(conn, 0, NULL, NULL);
    sqlite_refused = 0;
    return rc;
}

REPLACES(int, sqlite3_extended_errcode, sqlite3 *conn)
{
    return sqlite_refused ? sqlite_refused
                          : __real_sqlite3_extended_errcode(conn);
}

#endif
