/*
 * postgres.h - the parts of postgres:// : the connection (connect.c), arrays of
 * parameters (array.c), swap (batch.c), the store itself (postgres.c).
 */
#ifndef IDEM__POSTGRES_H
#define IDEM__POSTGRES_H

#include "../columns.h"
#include "../value.h"
#include "../watch.h"

#include <libpq-fe.h>

/* Statements prepared on every connection. */
enum postgres_statement {
    POSTGRES_CHECK,
    POSTGRES_TABLE, /* its row type, its columns, its version */
    POSTGRES_INSERT,
    POSTGRES_UPDATE,
    POSTGRES_PATIENCE,    /* wait longer for a lock, in this transaction */
    POSTGRES_UPDATE_FREE, /* of rows that nobody holds */
    POSTGRES_DELETE,
    POSTGRES_NOTIFY, /* who waits for what was just written */
    POSTGRES_TRUTH,  /* what is there in place of what was not stored */
    POSTGRES_LOAD,
    POSTGRES_SCAN,
    POSTGRES_SCAN_EXECUTING,
    POSTGRES_SCAN_ID,
    POSTGRES_SWEEP,
    POSTGRES_CLOCK,
    POSTGRES_CONFIRM, /* what was read is on the standby once this commits */
    POSTGRES_STATEMENTS
};

struct postgres_store {
    struct idem_store base;
    char *url;        /* without our own parameters */
    char unsafe[128]; /* what the operator gave up, in so many words */
    int64_t timeout_us;
    PGconn *conn; /* NULL: to be opened again */
    struct idem_retry retry;
    uint32_t row_type; /* of idem.idem_record */
    int wary;          /* see columns.h */
    int careful;       /* see batch.c */
    bool warned;       /* the server has sent a WARNING since reset */
    int stuck; /* the last backend that gave no answer in time; 0: none */
    int64_t swept_at_us, checked_at_us;
    uint64_t connects, splits;
    struct idem__watcher watcher;
};

extern const char *const idem__postgres_names[POSTGRES_STATEMENTS];
extern const char *const idem__postgres_texts[POSTGRES_STATEMENTS];

/* Be connected, and certain that the server is what it should be. Fails at once
 * while a recent failure is fresh. */
enum idem_status idem__postgres_connect(struct postgres_store *self,
                                        struct idem_error *err);
void idem__postgres_disconnect(struct postgres_store *self);
/* The same, where the server has not answered in time. */
void idem__postgres_abandon(struct postgres_store *self);

/* Connect for setting up: no checks, no statements. */
enum idem_status idem__postgres_connect_bare(struct postgres_store *self,
                                             struct idem_error *err);

/* Queue the check statement. */
bool idem__postgres_send_check(struct postgres_store *self);
/* Is what it answered good enough? */
enum idem_status idem__postgres_judge(struct postgres_store *self,
                                      const PGresult *row,
                                      struct idem_error *err);

int64_t idem__postgres_deadline(const struct postgres_store *self);

/* The next result of a pipeline, or NULL between two statements. *lost is set
 * when the connection is gone or the deadline has passed. */
PGresult *idem__postgres_result(struct postgres_store *self,
                                int64_t deadline_us, bool *lost);
/* Push out what was queued. */
bool idem__postgres_flush(struct postgres_store *self, int64_t deadline_us);

/* Queue the statement that makes a commit wait for the standby, behind those
 * that read. */
bool idem__postgres_send_confirm(struct postgres_store *self);

/* Wait for the end of what was queued, or was not. The first rows are kept. */
enum idem_status idem__postgres_one(struct postgres_store *self, bool sent,
                                    PGresult **rows, struct idem_error *err);

/* Why a statement failed, as a status, with the text in err. */
enum idem_status idem__postgres_fail(struct postgres_store *self,
                                     const PGresult *result,
                                     struct idem_error *err);

/* Compare and swap a batch (batch.c). */
enum idem_status idem__postgres_swap(struct idem_store *store,
                                     struct idem_swap *swaps, size_t count,
                                     struct idem_arena *arena,
                                     struct idem_error *err);

/* ---- waking (postgres_watch.c) ---------------------------------------- */

void idem__postgres_listen(struct idem__watcher *watcher);
idem_watch_fn idem__postgres_watch;

/* The advisory lock that those who wait for a key hold; another one than that
 * of a claim. */
static inline int64_t
idem__postgres_wake_lock(const uint8_t *key)
{
    return idem__key_lock(key + 8);
}

/* ---- arrays (array.c) ------------------------------------------------ */

#define POSTGRES_PARAMS_MAX 2

/* The parameters of one statement, each an array with a value a row. */
struct postgres_params {
    struct idem_buf arrays[POSTGRES_PARAMS_MAX];
    size_t count; /* of arrays */
    size_t rows;
    bool failed; /* out of memory */
};

enum postgres_type {
    POSTGRES_INT2 = 21,
    POSTGRES_INT8 = 20,
    POSTGRES_BYTEA = 17
};

void idem__postgres_params_start(struct postgres_params *params, size_t count);
void idem__postgres_add_number(struct postgres_params *params, size_t at,
                               enum postgres_type type, int64_t value);
void idem__postgres_add_key(struct postgres_params *params, size_t at,
                            const uint8_t *key);
/* A row of idem.idem_record, into the first array. */
void idem__postgres_add_record(struct postgres_params *params,
                               uint32_t row_type, const uint8_t *key,
                               const struct idem_record *record);
/* Queue a statement with these arrays. */
bool idem__postgres_send(struct postgres_store *self,
                         enum postgres_statement statement,
                         struct postgres_params *params);
void idem__postgres_params_clear(struct postgres_params *params);

/* Numbers and bytes of a result in binary format. */
int64_t idem__postgres_number(const PGresult *result, int row, int column);
void idem__postgres_cells(const PGresult *result, int row, int first_column,
                          int columns,
                          struct idem_cell cells[IDEM_COLUMN_COUNT]);

#endif
