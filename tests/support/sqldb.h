/*
 * sqldb.h - a database of the caller's own, for tests of idem/sql.h: the same
 * test text runs on SQLite, PostgreSQL and MariaDB.
 */
#ifndef SQLDB_H
#define SQLDB_H

#include <idem/sql.h>

struct sqldb {
    struct idem_sql *db;
    struct pg_conn *postgres;
    struct st_mysql *mysql;
    struct sqlite3 *sqlite;
    long long session; /* its number at the server; 0: there is no server */
};

/* Which one: IDEM_TEST_SQL, or a file in a folder of its own. */
const char *sqldb_url(void);
/* Remove the folder, if there is one. */
void sqldb_done(void);

/* Connect; aborts on failure. The table of idem is there (idem store init). */
void sqldb_open(struct sqldb *s);
void sqldb_close(struct sqldb *s);

/* Run statements; false if one fails. */
bool sqldb_try(struct sqldb *s, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* The same, but failing is the end of the test program. */
void sqldb_run(struct sqldb *s, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* The one number that a query gives. */
long long sqldb_number(struct sqldb *s, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* The one text that a query gives; "" for null. It lives until the next. */
const char *sqldb_text(struct sqldb *s, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* How long SQLite waits for its file; the others do not need it. */
void sqldb_patience(struct sqldb *s, int ms);

/* The server ends the connection of `victim`; SQLite has no server, so there
 * the transaction is undone. */
void sqldb_kill(struct sqldb *s, struct sqldb *victim);

/* Is the connection in a transaction? One that has failed can only be rolled
 * back. */
enum sqldb_inside { SQLDB_OUTSIDE, SQLDB_INSIDE, SQLDB_FAILED };
enum sqldb_inside sqldb_inside(struct sqldb *s);
/* Connect again, when the server has ended the session that was there. */
void sqldb_reopen(struct sqldb *s, struct sqldb *other);

/* begin, ready to write */
void sqldb_begin(struct sqldb *s);

#endif
