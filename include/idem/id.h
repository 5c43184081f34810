/*
 * id.h - unique ids: numbers and UUIDs.
 *
 *   snowflake   1 + 41 + 10 + 12 bits: milliseconds, worker, sequence
 *   uid         configurable bits: seconds, worker, sequence (28 + 22 + 13)
 *   segment     numbers of a named sequence, fetched from the store in ranges
 *   uuid4 uuid7   texts; they need no store
 *
 * For snowflake and uid, a generator leases a worker number from the store, so
 * two generators on one store never have the same number. Before it gives out
 * ids of some point in time, it writes that time to the worker's record.
 * Therefore a clock that goes back causes neither duplicates nor a stall, also
 * after a restart or a crash. If the lease cannot be renewed, the generator
 * stops before another one can get the same number.
 *
 * Threads: several threads may share one struct idem_ids. Close it before its
 * engine. Everything else: see the head of record.h. The UUID functions need no
 * handle. A child process may use them after fork, except idem_uuid7 if another
 * thread of the parent was inside of idem_uuid7 during the fork.
 */
#ifndef IDEM_ID_H
#define IDEM_ID_H

#include <idem/engine.h>

#ifdef __cplusplus
extern "C" {
#endif

enum idem_id_kind {
    IDEM_ID_SNOWFLAKE,
    IDEM_ID_UID,
    IDEM_ID_SEGMENT,
    IDEM_ID_UUID4,
    IDEM_ID_UUID7,
};

#define IDEM_UUID_LEN 36

struct idem_ids;

/* Options of a generator; zero means the default. All generators on one store
 * must use the same epochs and bits. The store keeps those of the first
 * generator, and later generators with others get IDEM_ERR_INVALID. */
struct idem_ids_options {
    int64_t snowflake_epoch_ms; /* 0: 2024-01-01 */
    int64_t uid_epoch_s;        /* 0: 2026-01-01 */
    int uid_seconds_bits;       /* 0: 28; the three add up to 63 */
    int uid_worker_bits;        /* 0: 22 */
    int uid_sequence_bits;      /* 0: 13 */
    int64_t lease_ms;           /* of a worker number; 0: 30 s */
    uint64_t segment_step;      /* size of the first range (default 1000); it
                                   adapts; 1: take no ids ahead */
    uint64_t segment_step_max;  /* 0: 2^30, or segment_step if that is more */
    uint64_t worker_first;   /* lease only worker numbers from this one ... */
    uint64_t worker_count;   /* ... and this many; 0: all */
    int64_t wait_ms;         /* longest wait for the store; 0: 5 s */
    void (*grew)(void *arg); /* called on another thread when idem_ids_try
                                may succeed again */
    void *grew_arg;          /* its argument */
    idem_log_fn *log;
    void *log_arg;
    uint64_t room[8];
};

/* Start a generator. `options` may be NULL. It leases a worker number, or takes
 * a range, when you ask for the first id. */
IDEM_API enum idem_status idem_ids_open(struct idem_engine *engine,
                                        const struct idem_ids_options *options,
                                        struct idem_ids **ids,
                                        struct idem_error *err);

/* Release the worker numbers and free the handle. NULL does nothing. */
IDEM_API void idem_ids_close(struct idem_ids *ids);

/*
 * Write the next `count` numbers of a kind (snowflake, uid or segment) to
 * `out`. `name` is the name of a segment, 1 to 200 bytes; other kinds ignore
 * it.
 *
 * IDEM_ERR_UNAVAILABLE: the store gave no worker number or range within
 * wait_ms. No id was made; try again. IDEM_ERR_INVALID: the kind or the name is
 * wrong, or this generator has 1024 names already.
 */
IDEM_API enum idem_status idem_ids_next(struct idem_ids *ids,
                                        enum idem_id_kind kind,
                                        struct idem_bytes name, uint64_t *out,
                                        size_t count, struct idem_error *err);

/* The same without waiting. Where idem_ids_next would have to wait for the
 * store, this returns IDEM_ERR_OVERLOADED and asks the store in the background;
 * try again soon, or when `grew` is called. */
IDEM_API enum idem_status idem_ids_try(struct idem_ids *ids,
                                       enum idem_id_kind kind,
                                       struct idem_bytes name, uint64_t *out,
                                       size_t count, struct idem_error *err);

/* Version 4: random. Version 7: ordered by time, and strictly increasing within
 * this process. */
IDEM_API void idem_uuid4(char out[IDEM_UUID_LEN + 1]);
IDEM_API void idem_uuid7(char out[IDEM_UUID_LEN + 1]);

/* The parts of an id. */
struct idem_id_parts {
    int64_t time_ms; /* since 1970; -1: this kind has no time */
    uint64_t worker;
    uint64_t sequence;
    int64_t ends_ms; /* after this time the bits for time overflow */
    uint64_t room[4];
};

/* Take an id apart. `options` are those of the generator; NULL: the defaults.
 * IDEM_ERR_INVALID: no id of this kind has this value. */
IDEM_API enum idem_status
idem_id_explain(enum idem_id_kind kind, uint64_t id,
                const struct idem_ids_options *options,
                struct idem_id_parts *parts, struct idem_error *err);

/* Take a UUID apart: *version is 0 to 15, and *time_ms is -1 unless the version
 * is 7. IDEM_ERR_INVALID: the text is not a UUID. */
IDEM_API enum idem_status idem_uuid_explain(const char *text, int *version,
                                            int64_t *time_ms,
                                            struct idem_error *err);

/* "snowflake", "uid" ...; "?" for a kind that does not exist. */
IDEM_API const char *idem_id_kind_name(enum idem_id_kind kind);

#ifdef __cplusplus
}
#endif

#endif
