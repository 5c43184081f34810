/*
 * id.h - the internals of the id generators.
 *
 * One keeper thread does everything that touches the store: it leases worker
 * numbers, renews them together with the mark up to which ids may be given out,
 * and fetches ranges. A caller that asks for ids only takes them from a window
 * in memory.
 *
 *   caller --> take from window [next, limit)        (mutex, no I/O)
 *   keeper --> LOCK, RENEW with a note, UNLOCK  -->  window grows
 */
#ifndef IDEM__ID_H
#define IDEM__ID_H

#include "../engine/lease.h"
#include "../store/store.h"

#include <idem/id.h>
#include <pthread.h>

#define IDEM__ID_KIND_COUNT (IDEM_ID_UUID7 + 1)

#define SNOWFLAKE_EPOCH_MS INT64_C(1704067200000)
#define SNOWFLAKE_WORKER_BITS 10
#define SNOWFLAKE_SEQUENCE_BITS 12
#define SNOWFLAKE_TIME_BITS 41
#define UID_EPOCH_S INT64_C(1767225600)
#define SEGMENT_STEP_MAX (UINT64_C(1) << 30)
#define SEGMENTS_MAX 1024 /* names that one generator keeps in memory */

/* Where the bits of a kind are; time is in `tick_ms` since `epoch_ms`. */
struct layout {
    int time_bits, worker_bits, sequence_bits;
    int64_t epoch_ms;
    int64_t tick_ms;
};

/* Fill in the defaults and check the options. */
enum idem_status idem__ids_options_check(struct idem_ids_options *options,
                                         struct idem_error *err);
/* Set one option from text: uid-bits, uid-epoch, snowflake-epoch, segment-step,
 * segment-step-max or worker-numbers. */
bool idem__ids_option_known(const char *name);
enum idem_status idem__ids_option_set(struct idem_ids_options *options,
                                      const char *name, const char *value,
                                      struct idem_error *err);

struct layout idem__id_layout(enum idem_id_kind kind,
                              const struct idem_ids_options *options);

/* The text of a layout as it is stored, like "28,22,13 from 1767225600 s". */
#define IDEM__LAYOUT_LEN 80
void idem__id_layout_text(const struct layout *layout,
                          char text[IDEM__LAYOUT_LEN]);

/*
 * A source of numbers. A number is tick << sequence_bits | sequence; for a
 * segment it is the id itself.
 */
struct id_source {
    struct id_source *next_source;
    enum idem_id_kind kind;
    struct layout layout;
    char name[IDEM_SCOPE_MAX + 1]; /* segment */
    size_t name_len;

    uint64_t next, limit;             /* numbers that may be given out */
    uint64_t spare_next, spare_limit; /* segment: the next range */
    bool wanted;                      /* the keeper should look at it */
    int64_t not_before_us;            /* after an error: wait until then */
    struct idem_error trouble;        /* why the last attempt failed */

    /* snowflake, uid */
    bool agreed; /* the store has the same layout */
    bool leased;
    uint64_t worker, fence;
    struct idem__lease lease;   /* on the boot clock; no ids after its end */
    int64_t tick, tick_ends_us; /* this source's clock; boot time */
    uint64_t ahead;             /* uid: ticks to reserve at a time */
    bool warned_epoch;

    /* segment */
    uint64_t given; /* since the segment is in memory */
    uint64_t step;
    uint64_t missing; /* of the ids that a caller asked for */
    int64_t fetched_at_us;
    uint64_t last_use; /* in units of ids->uses */
    unsigned pins;     /* threads that use it without holding the mutex */
};

struct idem_ids {
    struct idem_engine *engine;
    struct idem_ids_options options;
    struct idem_store_options log_options;
    const struct idem_clocks *clocks;
    char owner[33];
    pthread_mutex_t mutex; /* guards everything below, and the sources */
    pthread_cond_t keeper_wanted, window_grew;
    pthread_t keeper;
    bool closing;
    struct id_source *sources;
    size_t segment_count;
    uint64_t uses; /* number of requests for segments so far */
    uint64_t given[IDEM__ID_KIND_COUNT];
    uint64_t ranges; /* fetched for segments */
};

/* The state of the generators, for metrics. */
struct idem__ids_figures {
    uint64_t given[IDEM__ID_KIND_COUNT];
    uint64_t reserved[IDEM__ID_KIND_COUNT]; /* usable without the store */
    int64_t worker[IDEM__ID_KIND_COUNT];    /* -1: none */
    int64_t ahead_ms[IDEM__ID_KIND_COUNT];  /* of the wall clock */
    uint64_t names, ranges, step;           /* segments; the longest step */
};
void idem__ids_figures(struct idem_ids *ids, struct idem__ids_figures *out);

/* One segment in memory. `left` ids of the current range and `spare` ids of the
 * next one can be given out without the store. */
struct idem__segment_figures {
    struct idem_bytes name;
    uint64_t given, next, step, left, spare;
};
/* Calls `each` with the generator's mutex held, so `each` must be quick. */
void idem__ids_segments(struct idem_ids *ids,
                        void (*each)(void *arg,
                                     const struct idem__segment_figures *),
                        void *arg);

/* Like idem_ids_open, with other clocks. */
enum idem_status idem__ids_open(struct idem_engine *engine,
                                const struct idem_ids_options *options,
                                const struct idem_clocks *clocks,
                                struct idem_ids **ids, struct idem_error *err);

/* keeper.c: the thread, and its work for one source. Called with the mutex
 * held, which is unlocked during store operations. */
void *idem__ids_keeper(void *arg);
/* Does the last error stay until an operator changes something? */
bool idem__source_hopeless(const struct id_source *source);

/* Update the clock of a leased source. It counts ticks since its epoch on the
 * boot clock, so it never goes back and never waits. */
void idem__source_tick(const struct idem_ids *ids, struct id_source *source,
                       int64_t boot_us);

int64_t idem__ids_boot_us(const struct idem_ids *ids);

#endif
