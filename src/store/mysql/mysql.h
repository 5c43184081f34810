/*
 * mysql.h - the parts of mysql:// : the connection (mysql_connect.c), queries
 * (query.c), swap (mysql_batch.c), its guess (bulk.c), the store itself
 * (mysql.c).
 */
#ifndef IDEM__MYSQL_H
#define IDEM__MYSQL_H

#include "../columns.h"

#include <mysql.h>

struct mysql_store {
    struct idem_store base;
    char *host, *user, *password, *database, *socket;
    unsigned port;
    bool tls;
    char *ca, *cert, *key; /* for TLS; or NULL */
    char unsafe[128];      /* ?unsafe=: guarantees that the operator gave up */
    unsigned timeout_s;
    MYSQL *conn;             /* NULL: to be opened again; autocommit is off */
    struct mysql_bulk *bulk; /* NULL: no guesses on this connection */
    struct idem_retry retry;
    bool waits;         /* the server cannot fail at once on a lock (MySQL) */
    bool galera;        /* a node of a cluster */
    bool durable_reads; /* a commit is on the disk before others see it */
    size_t packet_max;
    struct idem_buf query;
    int wary; /* see columns.h */
    int64_t checked_at_us;
    long said_replicas; /* so many were connected at the last warning */
    uint64_t connects, splits;
};

enum idem_status idem__mysql_parse(struct mysql_store *self, const char *url,
                                   struct idem_error *err);
enum idem_status idem__mysql_connect(struct mysql_store *self,
                                     struct idem_error *err);
enum idem_status idem__mysql_connect_bare(struct mysql_store *self,
                                          struct idem_error *err);
void idem__mysql_disconnect(struct mysql_store *self);

/* Check that the server (still) keeps what it commits. */
enum idem_status idem__mysql_check(struct mysql_store *self,
                                   struct idem_error *err);

/* Set err to why the last statement failed. */
enum idem_status idem__mysql_fail(struct mysql_store *self,
                                  struct idem_error *err);
/* The connection is gone, or the server did not answer in time. */
bool idem__mysql_is_gone(const struct mysql_store *self);

/* ---- queries (query.c) ------------------------------------------------ */

#define IDEM__MYSQL_QUERY_MAX ((size_t)1024 * 1024 * 1024)

/* Append to the query. If that fails its cap becomes 0, and sending it
 * fails. */
void idem__mysql_add_hex(struct idem_buf *query, const void *data, size_t len);
void idem__mysql_add_text(struct idem_buf *query, const char *text);
bool idem__mysql_send_query(struct mysql_store *self);
bool idem__mysql_next_result(struct mysql_store *self, bool *failed);
bool idem__mysql_skip_results(struct mysql_store *self);
/* Commit only after all that this connection has seen is on the disk; see
 * query.c. False: not known; the connection is rolled back or closed. */
bool idem__mysql_confirm(struct mysql_store *self, enum idem_status *status,
                         struct idem_error *err);
/* Roll back. If that fails the connection is closed, which also rolls back. */
void idem__mysql_rollback(struct mysql_store *self);
void idem__mysql_read_cells(MYSQL_RES *rows, MYSQL_ROW row, int columns,
                            struct idem_cell cells[IDEM_COLUMN_COUNT]);

/* ---- a guess (bulk.c) ------------------------------------------------- */

/* The columns that "on duplicate key update" sets, without the rev. */
#define IDEM__MYSQL_SET_BUT_REV                                                \
    "state = values(state), mode = values(mode), kind = values(kind), "        \
    "flags = values(flags), attempt = values(attempt), "                       \
    "fence = values(fence), created = values(created), "                       \
    "updated = values(updated), lease_until = values(lease_until), "           \
    "expires = values(expires), nonce = values(nonce), "                       \
    "fingerprint = values(fingerprint), subject = values(subject), "           \
    "result = values(result)"

/* Prepare the statement of a guess; NULL: this server does not support it. */
struct mysql_bulk *idem__mysql_bulk_open(MYSQL *conn);
void idem__mysql_bulk_close(struct mysql_bulk *bulk);
/* Write a batch without deletes. True: all revs were as expected, and the batch
 * is stored once it is committed. False: roll back; mysql_errno may say
 * more. */
bool idem__mysql_bulk_write(struct mysql_bulk *bulk,
                            const struct idem_swap *swaps, size_t count);

/* Compare and swap a batch (mysql_batch.c). */
enum idem_status idem__mysql_swap(struct idem_store *store,
                                  struct idem_swap *swaps, size_t count,
                                  struct idem_arena *arena,
                                  struct idem_error *err);

#endif
