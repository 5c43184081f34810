/*
 * id.h - numbers and texts that no other request has.
 *
 *   snowflake   1 + 41 + 10 + 12 bits: milliseconds, worker, sequence
 *   uid         configurable bits: seconds, worker, sequence (28 + 22 + 13)
 *   segment     plain numbers of a named row, ranges taken from the store
 *   uuid4 uuid7 texts, no store needed
 *
 * Snowflake and uid lease a worker number from the store, so two generators on
 * one store never share one. Before ids of some time are given out, that time
 * is written to the worker's record: a clock that goes back, also across a
 * restart or a crash, gives neither a duplicate nor a stall. A generator whose
 * lease cannot be renewed stops in time.
 *
 * Threads: share one struct idem_ids. It must be closed before its engine. For
 * the rest see the head of record.h. The UUIDs need no handle and work after a
 * fork, where no other thread was making a uuid7 at that moment.
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

/* All zero is fine. Generators on one store must agree on epochs and bits:
 * the store keeps those of the first one, and another's are refused. */
struct idem_ids_options {
    int64_t snowflake_epoch_ms; /* 0: 2024-01-01 */
    int64_t uid_epoch_s;        /* 0: 2026-01-01 */
    int uid_seconds_bits;       /* 0: 28; the three add up to 63 */
    int uid_worker_bits;        /* 0: 22 */
    int uid_sequence_bits;      /* 0: 13 */
    int64_t lease_ms;           /* of a worker number; 0: 30 s */
    uint64_t segment_step;      /* the first range; 0: 1000; it adapts; 1: take
                                   what is asked for, nothing ahead */
    uint64_t segment_step_max;  /* 0: 2^30, or segment_step if that is more */
    uint64_t worker_first;      /* this generator's pool of worker numbers: */
    uint64_t worker_count;      /* from the first on; 0: all */
    int64_t wait_ms;            /* longest wait for the store; 0: 5 s */
    void (*grew)(void *arg);    /* on another thread: idem_ids_try may work */
    void *grew_arg;
    idem_log_fn *log;
    void *log_arg;
    uint64_t room[8];
};

/* Start a generator. Options may be NULL. It asks the store for worker numbers
 * and ranges when the first id is asked for. */
IDEM_API enum idem_status idem_ids_open(struct idem_engine *engine,
                                        const struct idem_ids_options *options,
                                        struct idem_ids **ids,
                                        struct idem_error *err);

/* Give the worker numbers back. NULL is fine. */
IDEM_API void idem_ids_close(struct idem_ids *ids);

/*
 * The next `count` numbers of a kind (snowflake, uid or segment; `name` is the
 * segment's, 1 to 200 bytes, else ignored).
 *
 * IDEM_ERR_UNAVAILABLE: no worker number or range could be had in time, so no
 *     id was made: try again.
 * IDEM_ERR_INVALID: a kind or name that cannot be, or the 1025th name.
 */
IDEM_API enum idem_status idem_ids_next(struct idem_ids *ids,
                                        enum idem_id_kind kind,
                                        struct idem_bytes name, uint64_t *out,
                                        size_t count, struct idem_error *err);

/* The same, from what is at hand: IDEM_ERR_OVERLOADED where idem_ids_next
 * would have to wait (it has been asked for: try again soon). */
IDEM_API enum idem_status idem_ids_try(struct idem_ids *ids,
                                       enum idem_id_kind kind,
                                       struct idem_bytes name, uint64_t *out,
                                       size_t count, struct idem_error *err);

/* Random (version 4), and time-ordered and increasing in this process (7). */
IDEM_API void idem_uuid4(char out[IDEM_UUID_LEN + 1]);
IDEM_API void idem_uuid7(char out[IDEM_UUID_LEN + 1]);

/* What an id is made of. */
struct idem_id_parts {
    int64_t time_ms; /* since 1970; -1: this kind has no time */
    uint64_t worker;
    uint64_t sequence;
    int64_t ends_ms; /* when the epoch's bits are used up */
    uint64_t room[4];
};

/* `options` as the generator had them; NULL: the defaults. IDEM_ERR_INVALID:
 * it cannot be of that kind. */
IDEM_API enum idem_status
idem_id_explain(enum idem_id_kind kind, uint64_t id,
                const struct idem_ids_options *options,
                struct idem_id_parts *parts, struct idem_error *err);

/* *version is 0 to 15; *time_ms is -1 unless it is 7. IDEM_ERR_INVALID: that is
 * not a UUID. */
IDEM_API enum idem_status idem_uuid_explain(const char *text, int *version,
                                            int64_t *time_ms,
                                            struct idem_error *err);

/* "snowflake", "uid" ...; "?" for a kind that does not exist. */
IDEM_API const char *idem_id_kind_name(enum idem_id_kind kind);

#ifdef __cplusplus
}
#endif

#endif
