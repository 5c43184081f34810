/*
 * db.c - the bank's connections: SQLite, PostgreSQL or MariaDB, by URL.
 */
#include "bank.h"

#include <libpq-fe.h>
#include <mysql.h>
#include <pthread.h>
#include <sqlite3.h>
#include <stdio.h>
#include <string.h>

#define CONNECTIONS 8

static struct db pool[CONNECTIONS];
static bool taken[CONNECTIONS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t freed = PTHREAD_COND_INITIALIZER;

static void
quiet(void *arg, const PGresult *result)
{
    (void)arg;
    (void)result;
}

/* mysql://user:password@host:port/database */
static MYSQL *
open_mysql(const char *url)
{
    char user[64], password[64], host[64], database[64];
    MYSQL *conn = mysql_init(NULL);
    int port;

    if (sscanf(url, "mysql://%63[^:]:%63[^@]@%63[^:]:%d/%63s", user, password,
               host, &port, database) == 5 &&
        mysql_real_connect(conn, host, user, password, database, (unsigned)port,
                           NULL, 0) &&
        mysql_query(conn, "set session transaction isolation level "
                          "read committed") == 0)
        return conn;
    fprintf(stderr, "bank: mysql: %s\n", mysql_error(conn));
    mysql_close(conn);
    return NULL;
}

static bool
open_one(struct db *db, const char *url)
{
    struct idem_error err = {.text = "it cannot be opened"};
    enum idem_status status = IDEM_ERR_INVALID;

    if (strncmp(url, "postgres", 8) == 0) {
        db->postgres = PQconnectdb(url);
        PQsetNoticeReceiver(db->postgres, quiet, NULL);
        status = idem_sql_postgres(db->postgres, &db->idem, &err);
    } else if (strncmp(url, "mysql:", 6) == 0) {
        db->mysql = open_mysql(url);
        status = idem_sql_mysql(db->mysql, &db->idem, &err);
    } else if (strncmp(url, "sqlite:", 7) == 0 &&
               sqlite3_open(url + 7, &db->sqlite) == SQLITE_OK) {
        sqlite3_busy_timeout(db->sqlite, 5000);
        status = idem_sql_sqlite(db->sqlite, &db->idem, &err);
    }
    if (status != IDEM_OK)
        fprintf(stderr, "bank: the database: %s\n", err.text);
    return status == IDEM_OK;
}

static bool
run(struct db *db, const char *sql)
{
    if (db->postgres) {
        PGresult *result = PQexec(db->postgres, sql);
        bool good = PQresultStatus(result) == PGRES_COMMAND_OK;

        PQclear(result);
        return good;
    }
    if (db->mysql)
        return mysql_query(db->mysql, sql) == 0;
    return sqlite3_exec(db->sqlite, sql, NULL, NULL, NULL) == SQLITE_OK;
}

bool
db_begin(struct db *db)
{
    return run(db, db->sqlite ? "begin immediate" : "start transaction");
}

bool
db_commit(struct db *db)
{
    return run(db, "commit");
}

void
db_rollback(struct db *db)
{
    run(db, "rollback");
}

struct db *
db_take(void)
{
    pthread_mutex_lock(&lock);
    for (;;) {
        for (int i = 0; i < CONNECTIONS; i++) {
            if (!taken[i]) {
                taken[i] = true;
                pthread_mutex_unlock(&lock);
                return &pool[i];
            }
        }
        pthread_cond_wait(&freed, &lock);
    }
}

void
db_give_back(struct db *db)
{
    pthread_mutex_lock(&lock);
    taken[db - pool] = false;
    pthread_cond_signal(&freed);
    pthread_mutex_unlock(&lock);
}

bool
db_setup(const char *url)
{
    static const char *const tables[] = {
        "create table if not exists account (id varchar(64) not null primary "
        "key, balance bigint not null)",
        "create table if not exists bank_order (no bigint not null primary "
        "key, item varchar(64) not null, state varchar(20) not null)",
        "create table if not exists item (id varchar(64) not null primary key, "
        "price bigint not null, version bigint not null, stock bigint not "
        "null)",
        "create table if not exists flow (seq varchar(64) not null primary "
        "key, amount bigint not null)",
        "create table if not exists vote (person varchar(64) not null primary "
        "key, choice varchar(64) not null)",
    };
    static const char *const rows[] = {
        "insert into account values ('ann', 1000)",
        "insert into account values ('bob', 1000)",
        "insert into item values ('phone', 1000, 10, 100)",
    };

    for (int i = 0; i < CONNECTIONS; i++) {
        if (!open_one(&pool[i], url))
            return false;
    }
    for (size_t i = 0; i < sizeof(tables) / sizeof(tables[0]); i++) {
        if (!run(&pool[0], tables[i]))
            return false;
    }
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        run(&pool[0], rows[i]); /* there since the last start: fine */
    return true;
}
