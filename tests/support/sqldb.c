/*
 * sqldb.c - connections for tests of idem/sql.h.
 */
#include "sqldb.h"

#include "../../src/store/store.h"
#include "stores.h"

#include <libpq-fe.h>
#include <limits.h>
#include <mysql.h>
#include <sqlite3.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char url[PATH_MAX + 16], folder[PATH_MAX];

const char *
sqldb_url(void)
{
    const char *given = getenv("IDEM_TEST_SQL");
    struct idem_error err;

    if (url[0])
        return url;
    if (given) {
        snprintf(url, sizeof(url), "%s", given);
    } else {
        /* In memory where that can be: what is tested is not the disk. */
        if (!getenv("TMPDIR") && access("/dev/shm", W_OK) == 0)
            setenv("TMPDIR", "/dev/shm", 1);
        make_folder(folder, sizeof(folder));
        snprintf(url, sizeof(url), "sqlite:%s/db", folder);
    }
    if (idem__store_init(url, &err) != IDEM_OK) {
        fprintf(stderr, "%s\n", err.text);
        abort();
    }
    return url;
}

void
sqldb_done(void)
{
    if (folder[0])
        remove_folder(folder);
}

static void
must(bool good, const char *what, const char *why)
{
    if (good)
        return;
    fprintf(stderr, "%s: %s\n", what, why);
    abort();
}

/* mysql://user:password@host:port/database */
static MYSQL *
connect_mysql(const char *from)
{
    char user[64], password[64], host[64], database[64];
    MYSQL *conn = mysql_init(NULL);
    int port;

    must(sscanf(from, "mysql://%63[^:]:%63[^@]@%63[^:]:%d/%63s", user, password,
                host, &port, database) == 5,
         from, "not understood");
    must(mysql_real_connect(conn, host, user, password, database,
                            (unsigned)port, NULL, CLIENT_MULTI_STATEMENTS),
         "mysql", mysql_error(conn));
    return conn;
}

static void
quiet(void *arg, const PGresult *result)
{
    (void)arg;
    (void)result;
}

void
sqldb_open(struct sqldb *s)
{
    const char *from = sqldb_url();
    struct idem_error err = {0};
    enum idem_status status;

    memset(s, 0, sizeof(*s));
    if (strncmp(from, "postgres", 8) == 0) {
        s->postgres = PQconnectdb(from);
        must(PQstatus(s->postgres) == CONNECTION_OK, "postgres",
             PQerrorMessage(s->postgres));
        PQsetNoticeReceiver(s->postgres, quiet, NULL);
        s->session = PQbackendPID(s->postgres);
        status = idem_sql_postgres(s->postgres, &s->db, &err);
    } else if (strncmp(from, "mysql", 5) == 0) {
        s->mysql = connect_mysql(from);
        s->session = (long long)mysql_thread_id(s->mysql);
        status = idem_sql_mysql(s->mysql, &s->db, &err);
    } else {
        must(sqlite3_open(from + strlen("sqlite:"), &s->sqlite) == SQLITE_OK,
             from, "cannot be opened");
        sqlite3_busy_timeout(s->sqlite, 20000);
        status = idem_sql_sqlite(s->sqlite, &s->db, &err);
    }
    must(status == IDEM_OK, from, err.text);
}

void
sqldb_close(struct sqldb *s)
{
    idem_sql_close(s->db);
    PQfinish(s->postgres);
    if (s->mysql)
        mysql_close(s->mysql);
    sqlite3_close(s->sqlite);
    memset(s, 0, sizeof(*s));
}

static bool
skip_mysql(MYSQL *conn)
{
    int more;

    do {
        MYSQL_RES *rows = mysql_store_result(conn);

        if (rows)
            mysql_free_result(rows);
        more = mysql_next_result(conn);
    } while (more == 0);
    return more < 0;
}

static bool
run_text(struct sqldb *s, const char *sql)
{
    if (s->postgres) {
        PGresult *result = PQexec(s->postgres, sql);
        bool good = PQresultStatus(result) == PGRES_COMMAND_OK ||
                    PQresultStatus(result) == PGRES_TUPLES_OK;

        PQclear(result);
        return good;
    }
    if (s->mysql)
        return mysql_query(s->mysql, sql) == 0 && skip_mysql(s->mysql);
    return sqlite3_exec(s->sqlite, sql, NULL, NULL, NULL) == SQLITE_OK;
}

static const char *
why(struct sqldb *s)
{
    return s->postgres ? PQerrorMessage(s->postgres)
           : s->mysql  ? mysql_error(s->mysql)
                       : sqlite3_errmsg(s->sqlite);
}

bool
sqldb_try(struct sqldb *s, const char *format, ...)
{
    char sql[4096];
    va_list args;

    va_start(args, format);
    vsnprintf(sql, sizeof(sql), format, args);
    va_end(args);
    return run_text(s, sql);
}

void
sqldb_run(struct sqldb *s, const char *format, ...)
{
    char sql[4096];
    va_list args;

    va_start(args, format);
    vsnprintf(sql, sizeof(sql), format, args);
    va_end(args);
    must(run_text(s, sql), sql, why(s));
}

static int
keep_number(void *arg, int columns, char **values, char **names)
{
    (void)columns;
    (void)names;
    *(long long *)arg = values[0] ? strtoll(values[0], NULL, 10) : 0;
    return 0;
}

long long
sqldb_number(struct sqldb *s, const char *format, ...)
{
    long long number = -1;
    char sql[4096];
    va_list args;

    va_start(args, format);
    vsnprintf(sql, sizeof(sql), format, args);
    va_end(args);
    if (s->postgres) {
        PGresult *result = PQexec(s->postgres, sql);

        must(PQntuples(result) == 1, sql, why(s));
        number = strtoll(PQgetvalue(result, 0, 0), NULL, 10);
        PQclear(result);
    } else if (s->mysql) {
        MYSQL_RES *rows;
        MYSQL_ROW row;

        must(mysql_query(s->mysql, sql) == 0, sql, why(s));
        rows = mysql_store_result(s->mysql);
        row = rows ? mysql_fetch_row(rows) : NULL;
        must(row != NULL, sql, "no row");
        number = row[0] ? strtoll(row[0], NULL, 10) : 0;
        mysql_free_result(rows);
    } else {
        must(sqlite3_exec(s->sqlite, sql, keep_number, &number, NULL) ==
                 SQLITE_OK,
             sql, why(s));
    }
    return number;
}

static int
keep_text(void *arg, int columns, char **values, char **names)
{
    (void)columns;
    (void)names;
    snprintf(arg, 256, "%s", values[0] ? values[0] : "");
    return 0;
}

const char *
sqldb_text(struct sqldb *s, const char *format, ...)
{
    static _Thread_local char text[256];
    char sql[4096];
    va_list args;

    va_start(args, format);
    vsnprintf(sql, sizeof(sql), format, args);
    va_end(args);
    text[0] = 0;
    if (s->postgres) {
        PGresult *result = PQexec(s->postgres, sql);

        must(PQresultStatus(result) == PGRES_TUPLES_OK, sql, why(s));
        if (PQntuples(result) > 0)
            snprintf(text, sizeof(text), "%s", PQgetvalue(result, 0, 0));
        PQclear(result);
    } else if (s->mysql) {
        MYSQL_RES *rows;
        MYSQL_ROW row;

        must(mysql_query(s->mysql, sql) == 0, sql, why(s));
        rows = mysql_store_result(s->mysql);
        row = rows ? mysql_fetch_row(rows) : NULL;
        snprintf(text, sizeof(text), "%s", row && row[0] ? row[0] : "");
        mysql_free_result(rows);
    } else {
        must(sqlite3_exec(s->sqlite, sql, keep_text, text, NULL) == SQLITE_OK,
             sql, why(s));
    }
    return text;
}

void
sqldb_patience(struct sqldb *s, int ms)
{
    if (s->sqlite)
        sqlite3_busy_timeout(s->sqlite, ms);
}

void
sqldb_kill(struct sqldb *s, struct sqldb *victim)
{
    if (s->postgres)
        sqldb_run(s, "select pg_terminate_backend(%d)",
                  PQbackendPID(victim->postgres));
    else if (s->mysql)
        sqldb_run(s, "kill %lu", mysql_thread_id(victim->mysql));
    else
        sqldb_run(victim, "rollback");
}

void
sqldb_begin(struct sqldb *s)
{
    sqldb_run(s, s->sqlite ? "begin immediate" : "start transaction");
}

enum sqldb_inside
sqldb_inside(struct sqldb *s)
{
    if (s->postgres) {
        PGTransactionStatusType is = PQtransactionStatus(s->postgres);

        return is == PQTRANS_INTRANS   ? SQLDB_INSIDE
               : is == PQTRANS_INERROR ? SQLDB_FAILED
                                       : SQLDB_OUTSIDE;
    }
    if (s->mysql)
        return s->mysql->server_status & SERVER_STATUS_IN_TRANS ? SQLDB_INSIDE
                                                                : SQLDB_OUTSIDE;
    return sqlite3_get_autocommit(s->sqlite) ? SQLDB_OUTSIDE : SQLDB_INSIDE;
}

void
sqldb_reopen(struct sqldb *s, struct sqldb *other)
{
    long long session = s->session;
    const char *from = s->postgres ? "pg_stat_activity where pid"
                                   : "information_schema.processlist where id";

    sqldb_close(s);
    while (session && sqldb_number(other, "select count(*) from %s = %lld",
                                   from, session) > 0)
        usleep(2000);
    sqldb_open(s);
}
