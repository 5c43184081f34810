/*
 * engine.h - the functions of the engine that idem's own surfaces and tests use
 * in addition to the public idem/engine.h.
 *
 * An engine normally has a thread of its own. A surface with an event loop can
 * drive it instead. The surface calls idem__engine_turn on the loop's thread,
 * and callbacks run inside that call. The engine calls `wake` when another
 * thread has submitted something; `wake` must be quick, like a write to an
 * eventfd, and must not call the engine. Driving saves two thread switches per
 * operation. It is meant for local stores, whose swap does not wait for a
 * network.
 */
#ifndef IDEM__ENGINE_H
#define IDEM__ENGINE_H

#include "../store/store.h"

struct idem__engine_inner {
    struct idem_store *store;         /* an open store, which the engine then
                                       * owns; NULL: open the URL */
    const struct idem_clocks *clocks; /* NULL: the system's clocks */
    bool driven;                      /* no thread: idem__engine_turn runs it */
    bool hasty; /* tests: a lost swap is sent again without a pause */
    /* Limits on the records, and on their bytes, of one scope in the store; 0:
     * no limit. See quota.c. */
    int64_t scope_records, scope_bytes;
    /* Detect a store that went back in time; see epoch.c. */
    const char *epoch_file; /* NULL: no detection */
    bool accept_rollback;   /* go on; claims known to be lost come into doubt */
    void (*wake)(void *arg);
    void *wake_arg;
};

/* As idem_open, with inner options; `url` may be NULL if a store is given. */
enum idem_status idem__engine_open(const char *url,
                                   const struct idem_options *options,
                                   const struct idem__engine_inner *inner,
                                   struct idem_engine **engine,
                                   struct idem_error *err);

/* How the engine's own refusals begin. They have the statuses of a store that
 * failed, but no store failed, and they say what to do. */
#define IDEM__STORE_WENT_BACK "the store went back to an older state"
#define IDEM__THIS_RECORD_IS "this record is "
bool idem__refused_by_engine(const char *text);

/* Is the store local, so that driving the engine makes sense? */
bool idem__engine_is_local(const struct idem_engine *engine);

/* Driven engines: take the waiting operations as one batch, commit it and call
 * back. Returns true if more operations are already waiting. */
bool idem__engine_turn(struct idem_engine *engine);

/* The number of turns so far; inside a callback it identifies the current
 * turn. */
uint64_t idem__engine_turns(const struct idem_engine *engine);

/* Driven engines: milliseconds until the next turn is due although nothing was
 * submitted (a wait ends, a lease ends, the store has background work); -1:
 * never. */
int64_t idem__engine_due_ms(struct idem_engine *engine);

/*
 * idem_run in separate parts, for a surface that does not wait for the end of
 * the run.
 *
 * idem__run_begin sets *run if the verdict is STARTED, else to NULL; the lease
 * is then kept alive until the run is ended. The outcome is what an
 * idem_work_fn returns. idem__run_end waits like idem_run and frees the run,
 * whatever it returns. idem__run_submit_end does not wait. If it returns
 * IDEM_OK, `done` is called once; if `done` gets IDEM_OK and a verdict other
 * than BUSY, the run is freed. In all other cases the run still exists: end it
 * with idem__run_end, which retries, and do so outside of `done`.
 */
struct idem__run;
enum idem_status idem__run_begin(struct idem_engine *engine,
                                 const struct idem_op *op,
                                 struct idem__run **run,
                                 struct idem_answer *answer,
                                 struct idem_error *err);
/* How long idem__run_end tries to record the outcome; the default is one
 * lease. */
void idem__run_patience(struct idem__run *run, int64_t ms);
enum idem_status idem__run_end(struct idem__run *run, enum idem_state outcome,
                               struct idem_bytes result,
                               struct idem_answer *answer,
                               struct idem_error *err);
enum idem_status idem__run_submit_end(struct idem__run *run,
                                      enum idem_state outcome,
                                      struct idem_bytes result,
                                      idem_done_fn *done, void *arg,
                                      struct idem_error *err);

/*
 * Like idem_submit and idem_do, for people and protocols that name a record by
 * scope and id. Verbs that need several operations are carried out here, in the
 * same way for every surface, and only the last answer is reported:
 *
 *   - an op without a type finds a request or, where there is none, a token;
 *   - SETTLE without a type first looks for the record, so that it does not
 *     write a tombstone for a request when a token has that name;
 *   - REDEEM with `next` issues a fresh token to the same subject, which lives
 *     as long as the first one did. REDEEMED then shows the fresh one's record,
 *     or none (an empty id) if it could not be issued.
 */
enum idem_status idem__submit_verb(struct idem_engine *engine,
                                   const struct idem_op *op, bool next,
                                   idem_done_fn *done, void *arg,
                                   uint64_t *ticket, struct idem_error *err);
enum idem_status idem__do_verb(struct idem_engine *engine,
                               const struct idem_op *op, bool next,
                               struct idem_answer *answer,
                               struct idem_error *err);

/* Like idem_scan, but calls back once, with all records of this call. */
typedef void idem__scan_done_fn(void *arg, enum idem_status status,
                                const struct idem_record *records, size_t count,
                                const struct idem_cursor *next,
                                const struct idem_error *err);
enum idem_status idem__scan_submit(struct idem_engine *engine,
                                   const struct idem_filter *filter,
                                   const struct idem_cursor *cursor,
                                   size_t count, idem__scan_done_fn *done,
                                   void *arg, struct idem_error *err);

/* The same for the operations that wait for a lock in this engine; those of one
 * lock are in their order. Set are: scope, id, subject (the owner it would
 * have), and when the wait began (created) and will end (expires), in the
 * store's ms. */
enum idem_status idem__waiters_submit(struct idem_engine *engine, size_t count,
                                      idem__scan_done_fn *done, void *arg,
                                      struct idem_error *err);

#define IDEM__BATCH_SIZES 12

/* Counters of the engine, and its current load. */
struct idem__stats {
    uint64_t verdicts[IDEM__VERDICT_COUNT];
    uint64_t errors[IDEM__STATUS_COUNT];
    uint64_t batches; /* commits */
    uint64_t batched; /* writes in them; divide for the mean size */
    /* batch_sizes[0] counts batches of 1 write, then of 2, of up to 4, 8, ...;
     * the last one counts all larger batches. */
    uint64_t batch_sizes[IDEM__BATCH_SIZES];
    uint64_t store_errors; /* batches that the store failed to write */
    uint64_t queued, parked;
    uint64_t locks_waiting; /* of those parked: waiting for a lock */
    size_t max_result;      /* the longest result that is kept, in bytes */
    int64_t now_ms;         /* the store's time */
    bool clock_alarm;       /* the wall clock jumped */
    /* Claims of this engine whose lease is alive but which a shared store no
     * longer has, because it lost records. */
    uint64_t vanished;
    bool rolled_back;    /* the store went back, and nobody has accepted it */
    uint64_t rollbacks;  /* how often the store went back */
    uint64_t over_quota; /* claims that the quota of a scope refused */
};

void idem__stats(struct idem_engine *engine, struct idem__stats *stats);

/* Go on although the store went back in time. Returns false if it did not go
 * back. May be called from any thread. */
bool idem__accept_rollback(struct idem_engine *engine);

/* The store's own figures ("journal_bytes", "journal_segments", ...). */
void idem__store_figures(struct idem_engine *engine, idem_figure_fn *each,
                         void *arg);
/* The same without waiting for the engine: the values of the previous call, and
 * none at the first call. */
void idem__store_figures_kept(struct idem_engine *engine, idem_figure_fn *each,
                              void *arg);

#endif
