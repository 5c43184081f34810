/*
 * store.h - the contract: a store compares and swaps records, in batches.
 *
 *   swap(batch): for each {key, expected rev (0: absent), new record}
 *       -> stored, refused (with the stored record), locked,
 *          not stored, or lost (not known)
 *
 * A store is one constant of struct idem_store_type; registry.c lists them.
 * The engine calls a store from one thread at a time. To embed a store, put
 * `struct idem_store base` first in your own struct.
 */
#ifndef IDEM__STORE_H
#define IDEM__STORE_H

#include "../base/buf.h"
#include "../base/module.h"
#include "../base/url.h"
#include "../base/wait.h"
#include "../record/record.h"

struct idem_store_type;
struct idem_store;

/* What a store reports about a watched key; see idem_watch_fn. */
enum idem_news {
    IDEM_NEWS_WATCHED,   /* changes are reported from now on: look once more */
    IDEM_NEWS_CHANGED,   /* the wait may be over: look at the record */
    IDEM_NEWS_UNWATCHED, /* changes are no longer reported; no key: of none */
};

/* Called from a thread of the store. */
typedef void idem_news_fn(void *arg, enum idem_news news, const uint8_t *key);

/* The outcome of one swap. */
enum idem_outcome {
    IDEM_SWAP_NOT_STORED, /* certainly not: unavailable, full, too large */
    IDEM_SWAP_STORED,     /* durable as this store defines durable */
    IDEM_SWAP_REFUSED,    /* the store has another rev: see `found` */
    IDEM_SWAP_LOCKED,     /* another open transaction holds the row */
    IDEM_SWAP_LOST,       /* not known; the identical swap may be sent again */
};

struct idem_swap {
    uint8_t key[IDEM_KEY_LEN];
    uint64_t expected;                /* rev; 0: absent */
    const struct idem_record *record; /* what to write; NULL: delete */
    enum idem_outcome outcome;        /* set by the store, for every swap */
    struct idem_record found; /* when refused; state ABSENT: nothing is there */
    /* When refused: an earlier try of this call may have stored the record,
     * and somebody else has written since. The engine sets it to false. */
    bool maybe_before;
};

struct idem_load {
    uint8_t key[IDEM_KEY_LEN];
    bool with_result;          /* false: the result may be left out */
    struct idem_record record; /* set by the store; state ABSENT: none */
};

#define IDEM__BOOT_ID_LEN 128

/* Clocks of this machine, replaceable in tests. Microseconds. */
struct idem_clocks {
    int64_t (*wall_us)(void *arg); /* CLOCK_REALTIME */
    int64_t (*boot_us)(void *arg); /* CLOCK_BOOTTIME: never set, never stops */
    void *arg;
    /* Identifies the boot that boot_us counts from. False, or no function: not
     * known. */
    bool (*boot_id)(void *arg, char id[IDEM__BOOT_ID_LEN]);
    /* Does the kernel say that the wall clock is synchronised? NULL: it does
     * not. */
    bool (*synced)(void *arg);
};

extern const struct idem_clocks idem__system_clocks;
int64_t idem__system_boot_us(void);

struct idem_store_options {
    const struct idem_clocks *clocks; /* NULL: the system's clocks */
    size_t max_result;                /* 0: IDEM_RESULT_DEFAULT_MAX */
    idem_log_fn *log;                 /* NULL: standard error */
    void *log_arg;
};

struct idem_store {
    const struct idem_store_type *type;
    size_t max_record; /* maximum size of an encoded record in bytes */
    bool forgets; /* it may lose records, which the operator has accepted: the
                   * engine refuses requests that must never run twice */
    struct idem_store_options options;
    const struct idem_clocks *clocks; /* the options', or the system's */
    int64_t behind_us; /* its time may go forward by this much when it is opened
                        * again, so written records are kept that much longer */
    uint64_t link;     /* changes with every new connection: the server may have
                        * been replaced by another one */
    idem_news_fn *news; /* set by the caller of watch */
    void *news_arg;
};

/* Open the store of the URL, whose scheme is this store's. `store` is zeroed
 * memory whose base is filled in; it is closed after an error. An error never
 * contains a password. */
typedef enum idem_status idem_open_fn(struct idem_store *store, const char *url,
                                      struct idem_error *err);

/* The part of `open` that reads the URL and the files that it names. It opens
 * no store and connects to no server. The store is closed afterwards. */
typedef enum idem_status idem_parse_fn(struct idem_store *store,
                                       const char *url, struct idem_error *err);

/*
 * Compare and swap a batch. Its keys are sorted and distinct. Every swap's
 * outcome is set, whatever is returned; the status and err say why some are
 * NOT_STORED or LOST (IDEM_OK if none is). The records `found` live in `arena`.
 * An expired record that is still there refuses a swap like any other record;
 * the engine decides whether it counts. A swap whose record->rev is already
 * there counts as STORED.
 */
typedef enum idem_status idem_swap_fn(struct idem_store *store,
                                      struct idem_swap *swaps, size_t count,
                                      struct idem_arena *arena,
                                      struct idem_error *err);

/* Read records in their durable state. On error no record is set. */
typedef enum idem_status idem_load_fn(struct idem_store *store,
                                      struct idem_load *loads, size_t count,
                                      struct idem_arena *arena,
                                      struct idem_error *err);

/* The parameters of idem_scan in idem/engine.h. */
struct idem_query {
    const struct idem_filter *filter;
    const struct idem_now *now; /* for the filter */
    struct idem_cursor *cursor;
    size_t count;
    idem_each_fn *each;
    void *arg;
    bool sizes; /* report the length of each result */
};

/* Results may be left out of the records. They are then empty or, with `sizes`,
 * a length without data. */
typedef enum idem_status idem_scan_fn(struct idem_store *store,
                                      const struct idem_query *query,
                                      struct idem_error *err);

/* The store's own clock, in microseconds since 1970. */
typedef enum idem_status idem_now_fn(struct idem_store *store, int64_t *now_us,
                                     struct idem_error *err);

/* The message about a journal that another process has open: folder, in use by,
 * pid, advice. A command that can ask a server replaces the advice. */
#define IDEM__JOURNAL_IN_USE " is in use by process "
#define IDEM__JOURNAL_STOP_IT ": stop it, or name another folder"

/* Bytes that are reserved for the finish of a claim, until the claim has not
 * been touched for two weeks. A lease lasts at most one week, so it has then
 * been over for at least a week. */
#define IDEM__CLAIM_RESERVE 2048
#define IDEM__CLAIM_RESERVE_MS (2 * IDEM_LEASE_MAX_MS)

/* A record is removed from a store this long after it may be, so that engines
 * whose clocks differ by less see the same. */
#define IDEM__DROP_MARGIN_MS INT64_C(60000)

/* Background work of at most a few milliseconds. The engine calls it between
 * batches when it is idle, and about every 100 ms otherwise. The store may
 * remove records whose idem__record_drop_at() is before `drop_ms`; the engine
 * has computed that time, and the store must not use a clock for it. 0: none
 * may be removed. */
typedef void idem_tend_fn(struct idem_store *store, int64_t drop_ms);

/* For a store with a `share`: remove at most `most` records, as tend may, in a
 * transaction of its own. False: the connection is not usable. */
typedef bool idem_sweep_fn(struct idem_store *store, int64_t drop_ms,
                           size_t most, size_t *gone);

/*
 * Start or stop to report when an executing record under this key ends or is
 * released, by any engine. A report is a hint and may get lost, so the engine
 * also polls from time to time. False: the store cannot report it now.
 */
typedef bool idem_watch_fn(struct idem_store *store,
                           const uint8_t key[IDEM_KEY_LEN], bool on);

typedef void idem_figures_fn(struct idem_store *store, idem_figure_fn *each,
                             void *arg);

/* Free everything that the store holds, also if it could not be opened. The
 * caller frees the store itself. */
typedef void idem_close_fn(struct idem_store *store);

/* Create what the store needs before it can be opened (tables), or bring it up
 * to date. Calling it twice is harmless. The store is closed afterwards. */
typedef enum idem_status idem_init_fn(struct idem_store *store, const char *url,
                                      struct idem_error *err);

struct idem_store_type {
    const char *scheme;       /* "postgres" serves postgres:// URLs */
    size_t size;              /* of the struct that begins with the base */
    bool local;               /* load and now only read memory: the engine loads
                               * first instead of guessing, and nobody else
                               * writes */
    bool partial;             /* parts of it fail separately and quickly: the
                               * engine uses no circuit breaker */
    size_t share;             /* a batch may use several connections to this
                               * store at once, in shares of at least this many
                               * swaps (split.c); 0: it may not */
    idem_parse_fn *parse;     /* required */
    idem_open_fn *open;       /* required */
    idem_swap_fn *swap;       /* required */
    idem_load_fn *load;       /* required */
    idem_scan_fn *scan;       /* required */
    idem_now_fn *now;         /* NULL: this store has no clock (see time.c) */
    idem_tend_fn *tend;       /* may be NULL */
    idem_sweep_fn *sweep;     /* NULL: tend does it, or the server */
    idem_watch_fn *watch;     /* NULL: this store cannot report changes */
    idem_figures_fn *figures; /* may be NULL */
    idem_close_fn *close;     /* required */
    idem_init_fn *init;       /* NULL: nothing to create beforehand */
};

/* Every store; all but the first two are in modules. */
extern const struct idem_store_type idem__memory_store;
extern const struct idem_store_type idem__journal_store;
extern IDEM__MODULE const struct idem_store_type idem__sqlite_store;
extern IDEM__MODULE const struct idem_store_type idem__redis_store;
extern IDEM__MODULE const struct idem_store_type idem__redis_cluster_store;
extern IDEM__MODULE const struct idem_store_type idem__postgres_store;
extern IDEM__MODULE const struct idem_store_type idem__mysql_store;
extern IDEM__MODULE const struct idem_store_type idem__zookeeper_store;
extern IDEM__MODULE const struct idem_store_type idem__etcd_store;

/* Does this build have a store for the URL? */
enum idem_status idem__store_known(const char *url, struct idem_error *err);

/* Would this build take the URL? Opens no store and connects to no server. */
enum idem_status idem__store_parse(const char *url, struct idem_error *err);

/* Open a store by URL; its type is found by the scheme. The error distinguishes
 * a store that was left out of the build from one that does not exist. */
enum idem_status idem__store_open(const char *url,
                                  const struct idem_store_options *options,
                                  struct idem_store **store,
                                  struct idem_error *err);
void idem__store_close(struct idem_store *store); /* NULL is fine */

/* The same for a known type: allocate memory, then call its `parse`, `open` or
 * `init`. */
enum idem_status idem__store_parse_as(const struct idem_store_type *type,
                                      const char *url, struct idem_error *err);
enum idem_status idem__store_open_as(const struct idem_store_type *type,
                                     const char *url,
                                     const struct idem_store_options *options,
                                     struct idem_store **store,
                                     struct idem_error *err);
enum idem_status idem__store_init_as(const struct idem_store_type *type,
                                     const char *url, struct idem_error *err);

/* True if this error of a store's server refuses the user or the password. */
bool idem__store_refuses_login(const char *text);

/* The same for a type with a `share`: a store that splits large batches,
 * controlled by the URL's parameters `connections` and `share` (split.c). */
enum idem_status idem__split_open(const struct idem_store_type *type,
                                  const char *url,
                                  const struct idem_store_options *options,
                                  struct idem_store **store,
                                  struct idem_error *err);
enum idem_status idem__split_parse(const struct idem_store_type *type,
                                   const char *url, struct idem_error *err);
enum idem_status idem__split_init(const struct idem_store_type *type,
                                  const char *url, struct idem_error *err);

/* The command `idem store init URL`. */
enum idem_status idem__store_init(const char *url, struct idem_error *err);

/* The result of `idem store copy`. */
struct idem_store_copied {
    uint64_t records; /* records that the second store has now */
    uint64_t others;  /* keys with another record there: not changed */
};

typedef void idem_store_progress_fn(void *arg,
                                    const struct idem_store_copied *now);

/* Copy every record of one store into another (store_copy.c). */
enum idem_status idem__store_copy(const char *from, const char *to,
                                  idem_store_progress_fn *progress, void *arg,
                                  struct idem_store_copied *copied,
                                  struct idem_error *err);

/* Allocate zeroed memory that begins with a store's base, and fill in the base.
 * NULL: out of memory, err says so. */
void *idem__store_make(const struct idem_store_type *type,
                       const struct idem_store_options *options,
                       struct idem_error *err);
/* Called after `open`: hand out the store, or close it after an error. Returns
 * the status. */
enum idem_status idem__store_opened(struct idem_store *made,
                                    enum idem_status status,
                                    struct idem_store **store);
int64_t idem__store_boot_us(const struct idem_store *store);
/* Pass a record to the caller of a scan if it matches. False: the caller wants
 * no more. */
bool idem__query_give(const struct idem_query *query,
                      const struct idem_record *record);
enum idem_status idem__query_bad_cursor(const struct idem_query *query,
                                        struct idem_error *err);

/* Can another engine's operation be waiting for the effect of this swap? */
static inline bool
idem__swap_wakes(const struct idem_swap *swap)
{
    return swap->expected != 0 &&
           (!swap->record || swap->record->state != IDEM_STATE_EXECUTING);
}

/* Log a message for the operator, through the log of the options. */
void idem__log(const struct idem_store_options *options,
               enum idem_log_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* A new rev: 64 random bits, never 0. */
uint64_t idem__new_rev(void);

#endif
