/*
 * postgres.h - the parts of postgres:// : the connection (postgres_connect.c),
 * arrays of parameters (array.c), swap (postgres_batch.c), the store itself
 * (postgres.c).
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
    POSTGRES_TABLE,    /* reads its row type, columns and version */
    POSTGRES_STANDBYS, /* what a commit waits for; how many standbys there are,
                        * have its commits, and must have them */
    POSTGRES_INSERT,
    POSTGRES_UPDATE,
    POSTGRES_PATIENCE,    /* wait longer for locks in this transaction */
    POSTGRES_UPDATE_FREE, /* only rows that nobody has locked */
    POSTGRES_DELETE,
    POSTGRES_NOTIFY, /* wake those who wait for what was just written */
    POSTGRES_TRUTH,  /* read what is there instead of what was not stored */
    POSTGRES_LOAD,
    POSTGRES_SCAN,
    POSTGRES_SCAN_EXECUTING,
    POSTGRES_SCAN_ID,
    POSTGRES_SWEEP,
    POSTGRES_CLOCK,
    POSTGRES_PLANS,   /* plan all statements again */
    POSTGRES_CONFIRM, /* when this commits, what was read is on the standby */
    POSTGRES_STATEMENTS
};

struct postgres_store {
    struct idem_store base;
    char *url;        /* without idem's own parameters */
    char unsafe[128]; /* ?unsafe=: guarantees that the operator gave up */
    int64_t timeout_us;
    PGconn *conn;    /* NULL: to be opened again */
    int host, hosts; /* the one of the URL's hosts to try first; how many */
    struct idem_retry retry;
    uint32_t row_type; /* of idem.idem_record */
    int wary;          /* see columns.h */
    int careful;       /* see postgres_batch.c */
    bool warned;       /* the server has sent a WARNING since reset */
    int stuck; /* pid of the last backend that did not answer; 0: none */
    int said_standbys; /* at the last warning: so many were connected that no
                        * commit waits for; negative: so many were missing */
    int64_t checked_at_us;
    int64_t planned_at_us, plan_after_us; /* see tend */
    uint64_t written;                     /* rows since then */
    int64_t sweep_from; /* the expiry where the next sweep begins */
    uint64_t connects, splits;
    struct idem__watcher watcher;
};

extern const char *const idem__postgres_names[POSTGRES_STATEMENTS];
extern const char *const idem__postgres_texts[POSTGRES_STATEMENTS];

/* Connect if necessary, and check the server. Fails at once shortly after a
 * failure. */
enum idem_status idem__postgres_connect(struct postgres_store *self,
                                        struct idem_error *err);
void idem__postgres_disconnect(struct postgres_store *self);
/* The same, after the server has not answered in time. */
void idem__postgres_abandon(struct postgres_store *self);

/* Begin the next connection with the next host of the URL. */
void idem__postgres_next_host(struct postgres_store *self);

/* Connect for setting up the tables: no checks, no prepared statements. */
enum idem_status idem__postgres_connect_bare(struct postgres_store *self,
                                             struct idem_error *err);

/* Queue the check statement. */
bool idem__postgres_send_check(struct postgres_store *self);
/* Judge the answer to the check statement. */
enum idem_status idem__postgres_judge(struct postgres_store *self,
                                      const PGresult *row,
                                      struct idem_error *err);

int64_t idem__postgres_deadline(const struct postgres_store *self);

/* The next result of a pipeline; NULL between two statements. *lost is set if
 * the connection is broken or the deadline has passed. */
PGresult *idem__postgres_result(struct postgres_store *self,
                                int64_t deadline_us, bool *lost);
/* Send everything that was queued. */
bool idem__postgres_flush(struct postgres_store *self, int64_t deadline_us);

/* Queue the statement that makes a commit wait for the standby, after those
 * that read. */
bool idem__postgres_send_confirm(struct postgres_store *self);

/* Wait for the end of what was queued; `sent` false: queueing failed. The
 * first rows are kept. */
enum idem_status idem__postgres_one(struct postgres_store *self, bool sent,
                                    PGresult **rows, struct idem_error *err);

/* Why a statement failed, as a status, with the text in err. */
enum idem_status idem__postgres_fail(struct postgres_store *self,
                                     const PGresult *result,
                                     struct idem_error *err);

/* Compare and swap a batch (postgres_batch.c). */
enum idem_status idem__postgres_swap(struct idem_store *store,
                                     struct idem_swap *swaps, size_t count,
                                     struct idem_arena *arena,
                                     struct idem_error *err);

/* ---- watching (postgres_watch.c) -------------------------------------- */

void idem__postgres_listen(struct idem__watcher *watcher);
idem_watch_fn idem__postgres_watch;

/* The advisory lock that waiters for a key hold. It differs from the lock of a
 * claim. */
static inline int64_t
idem__postgres_wake_lock(const uint8_t *key)
{
    return idem__key_lock(key + 8);
}

/* ---- arrays (array.c) ------------------------------------------------ */

#define POSTGRES_PARAMS_MAX 2

/* The parameters of one statement. Each is an array with one value per row. */
struct postgres_params {
    struct idem_buf arrays[POSTGRES_PARAMS_MAX];
    size_t count; /* number of arrays */
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
/* Append a row of idem.idem_record to the first array. */
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
