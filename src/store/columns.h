/*
 * columns.h - a record as columns of the table idem_record, for the SQL stores
 * and for claims in a service's own transaction.
 *
 * The definitions that people install are sql/postgres.sql, sql/mysql.sql and
 * sql/sqlite.sql; the list here has the same columns in the same order. A rev
 * is kept as a signed 64-bit number with the same bits.
 */
#ifndef IDEM__COLUMNS_H
#define IDEM__COLUMNS_H

#include "store.h"

/* The result comes last, so that a query can leave it out. */
#define IDEM_COLUMN_MAP(X)                                                     \
    X(KEY, "key_hash", BYTES)                                                  \
    X(TYPE, "type", SMALL)                                                     \
    X(STATE, "state", SMALL)                                                   \
    X(MODE, "mode", SMALL)                                                     \
    X(KIND, "kind", SMALL)                                                     \
    X(FLAGS, "flags", SMALL)                                                   \
    X(ATTEMPT, "attempt", BIG)                                                 \
    X(FENCE, "fence", BIG)                                                     \
    X(REV, "rev", BIG)                                                         \
    X(CREATED, "created", BIG)                                                 \
    X(UPDATED, "updated", BIG)                                                 \
    X(LEASE_UNTIL, "lease_until", BIG)                                         \
    X(EXPIRES, "expires", BIG)                                                 \
    X(NONCE, "nonce", BYTES)                                                   \
    X(FINGERPRINT, "fingerprint", BYTES) /* NULL: none */                      \
    X(SCOPE, "scope", BYTES)                                                   \
    X(ID, "id", BYTES)                                                         \
    X(SUBJECT, "subject", BYTES)                                               \
    X(RESULT, "result", BYTES)

enum idem_column {
#define X(name, word, type) IDEM_COLUMN_##name,
    IDEM_COLUMN_MAP(X)
#undef X
        IDEM_COLUMN_COUNT
};

enum idem_column_type { IDEM_COLUMN_SMALL, IDEM_COLUMN_BIG, IDEM_COLUMN_BYTES };

extern const char *const idem__column_names[IDEM_COLUMN_COUNT];
extern const enum idem_column_type idem__column_types[IDEM_COLUMN_COUNT];

/* "key_hash, type, ..., subject" and the same with result. */
extern const char idem__columns_but_result[];
extern const char idem__columns_all[];

/* One value of a row. */
struct idem_cell {
    bool null;
    int64_t number;          /* SMALL, BIG */
    struct idem_bytes bytes; /* BYTES; a view */
};

void idem__record_to_cells(const uint8_t *key, const struct idem_record *record,
                           struct idem_cell cells[IDEM_COLUMN_COUNT]);

/* IDEM_ERR_CORRUPT for a row that idem cannot have written. The record's bytes
 * are views of the cells'. */
enum idem_status
idem__cells_to_record(const struct idem_cell cells[IDEM_COLUMN_COUNT],
                      struct idem_record *record, struct idem_error *err);

/*
 * The state of a scan, which reads rows in the order of their keys. One SELECT
 * reads `limit` rows after the key `last`, which has last_len bytes. The cursor
 * is the last key seen, in hex; "0" means the beginning and the end.
 */
struct idem_rows {
    const struct idem_query *query;
    bool executing; /* other states need not be selected */
    size_t limit, seen, given, last_len;
    uint8_t last[IDEM_KEY_LEN];
    bool over; /* the caller wants no more */
};

enum idem_status idem__rows_start(struct idem_rows *rows,
                                  const struct idem_query *query,
                                  struct idem_error *err);
/* Pass on a row without its result, which has this many bytes. */
enum idem_status idem__rows_give(struct idem_rows *rows,
                                 struct idem_cell cells[IDEM_COLUMN_COUNT],
                                 int64_t result_len, struct idem_error *err);
void idem__rows_end(struct idem_rows *rows);

/* When to try an unreachable server again, and the last error. */
struct idem_retry {
    int64_t at_us, pause_us;
    struct idem_error why;
};

/* Connect. If it is too early to try again, return the last error. */
enum idem_status idem__retry_connect(
    struct idem_retry *retry, struct idem_store *store,
    enum idem_status (*connect)(struct idem_store *, struct idem_error *),
    struct idem_error *err);

/*
 * A store first assumes that it can write a batch without reading it, which
 * saves a read. After a swap was refused, the next batches are read first (wary
 * counts them), so that a load with many refusals does not pay for wrong
 * guesses.
 */
#define IDEM_WARY_BATCHES 16

/* The version that the scripts of sql/ install. */
#define IDEM_SCHEMA_VERSION 1

/* The index of a key in a batch, whose keys are sorted; `count` if it is not
 * there. */
size_t idem__swap_find(const struct idem_swap *swaps, size_t count,
                       const void *key);

/* How many of these swaps fit into one request with these limits on rows and
 * bytes; at least 1. */
size_t idem__swap_chunk(const struct idem_swap *swaps, size_t count,
                        size_t max_rows, size_t max_bytes);

void idem__swaps_set(struct idem_swap *swaps, size_t count,
                     enum idem_outcome outcome);

/* The number of the advisory lock that a claim in a PostgreSQL transaction
 * holds: the key's first 8 bytes, as sql/postgres.sql has it. */
int64_t idem__key_lock(const uint8_t *key);

/* Is `word` in this comma-separated list? */
bool idem__word_in(const char *list, const char *word);

/* Check that this program supports a table of this version. */
enum idem_status idem__schema_judge(const char *store, int64_t version,
                                    struct idem_error *err);

/* The SQL scripts of sql/, as an operator installs them. */
extern const char idem__postgres_script[];
extern const char idem__mysql_script[];
extern const char idem__sqlite_script[];

#endif
