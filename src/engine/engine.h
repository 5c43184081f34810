/*
 * engine.h - what surfaces and tests inside idem may ask of the engine beyond
 * the public idem/engine.h.
 *
 * An engine normally has a thread of its own. A surface with an event loop can
 * drive it instead: it is then run by idem__engine_turn on the loop's thread,
 * callbacks run inside that call, and `wake` is called when another thread than
 * the one that turns submitted something (it must be quick, like a write to an
 * eventfd, and must not call the engine). That saves two thread switches an
 * operation; it is meant for local stores, whose swap does not wait for a
 * network.
 */
#ifndef IDEM__ENGINE_H
#define IDEM__ENGINE_H

#include "../store/store.h"

struct idem__engine_inner {
    struct idem_store *store;         /* already open (moves to the engine);
                                         NULL: open the URL */
    const struct idem_clocks *clocks; /* NULL: the system's */
    bool driven;                      /* no thread: idem__engine_turn runs it */
    bool hasty; /* tests: a lost swap is sent again without a pause */
    /* The most records, and bytes of them, that one scope may have in the
     * store; 0: any number. See quota.c. */
    int64_t scope_records, scope_bytes;
    /* Notice a store that went back in time; see epoch.c. */
    const char *epoch_file; /* NULL: do not */
    bool accept_rollback;   /* go on, what is known to be lost is in doubt */
    void (*wake)(void *arg);
    void *wake_arg;
};

/* As idem_open, with inner options; `url` may be NULL if a store is given. */
enum idem_status idem__engine_open(const char *url,
                                   const struct idem_options *options,
                                   const struct idem__engine_inner *inner,
                                   struct idem_engine **engine,
                                   struct idem_error *err);

/* Is the store local, so that driving the engine makes sense? */
bool idem__engine_is_local(const struct idem_engine *engine);

/* Driven engines: take what waits as one batch, commit it, call back. True if
 * more waits already. */
bool idem__engine_turn(struct idem_engine *engine);

/* How many turns were taken; asked in callbacks, it names the turn at work. */
uint64_t idem__engine_turns(const struct idem_engine *engine);

/* Driven engines: milliseconds until the next turn is due although nothing was
 * submitted (a wait ends, a lease ends, the store wants tending); -1: never. */
int64_t idem__engine_due_ms(struct idem_engine *engine);

/*
 * A run in pieces (see idem_run), for a surface that does not wait for its end.
 *
 * idem__run_begin sets *run if the verdict is STARTED, else to NULL; the lease
 * is then kept alive until the run is ended. The outcome is what an
 * idem_work_fn returns. idem__run_end waits, and the run is gone then, whatever
 * it answers: as idem_run does. idem__run_submit_end does not: `done` is called
 * once if it returns IDEM_OK, and the run is gone if `done` is told IDEM_OK
 * with another verdict than BUSY. Otherwise it still lives: end it with
 * idem__run_end, which is patient, and not inside `done`.
 */
struct idem__run;
enum idem_status idem__run_begin(struct idem_engine *engine,
                                 const struct idem_op *op,
                                 struct idem__run **run,
                                 struct idem_answer *answer,
                                 struct idem_error *err);
/* How long idem__run_end tries to record the outcome; else for one lease. */
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
 * As idem_submit and idem_do, for people and protocols that name a record by
 * scope and id. What takes several operations is done here, the same for every
 * surface, and only the last answer is told:
 *
 *   - an op without a type finds a request or, where there is none, a token;
 *   - SETTLE without a type looks before it decides, so that it plants no
 *     tombstone beside a token;
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

/* As idem_scan, but called back, once, with all records of this call. */
typedef void idem__scan_done_fn(void *arg, enum idem_status status,
                                const struct idem_record *records, size_t count,
                                const struct idem_cursor *next,
                                const struct idem_error *err);
enum idem_status idem__scan_submit(struct idem_engine *engine,
                                   const struct idem_filter *filter,
                                   const struct idem_cursor *cursor,
                                   size_t count, idem__scan_done_fn *done,
                                   void *arg, struct idem_error *err);

/* The same with those who wait for a lock in this engine, those of one lock in
 * their order: scope, id and subject (who would be its owner) are set, and when
 * the wait began (created) and will end (expires), in the store's ms. */
enum idem_status idem__waiters_submit(struct idem_engine *engine, size_t count,
                                      idem__scan_done_fn *done, void *arg,
                                      struct idem_error *err);

#define IDEM__BATCH_SIZES 12

/* What the engine has done and has to do now. */
struct idem__stats {
    uint64_t verdicts[IDEM__VERDICT_COUNT];
    uint64_t errors[IDEM__STATUS_COUNT];
    uint64_t batches; /* commits */
    uint64_t batched; /* writes in them; divide for the mean size */
    /* Those of one write, of 2, of up to 4, 8, ...; the last: of any more. */
    uint64_t batch_sizes[IDEM__BATCH_SIZES];
    uint64_t store_errors; /* batches that the store did not take */
    uint64_t queued, parked;
    uint64_t locks_waiting; /* of those parked: who wait for a lock */
    size_t max_result;      /* bytes of one result that are kept here */
    int64_t now_ms;         /* the store's time */
    bool clock_alarm;       /* the wall clock jumped */
    /* Claims that this engine wrote, whose lease is alive, and that a shared
     * store no longer has: it lost records. */
    uint64_t vanished;
    bool rolled_back;    /* the store went back, and nobody has accepted that */
    uint64_t rollbacks;  /* how often it did */
    uint64_t over_quota; /* claims that scope_records or scope_bytes refused */
};

void idem__stats(struct idem_engine *engine, struct idem__stats *stats);

/* Go on although the store went back; false: it did not. Any thread. */
bool idem__accept_rollback(struct idem_engine *engine);

/* The store's own figures ("journal_bytes", "journal_segments", ...). */
void idem__store_figures(struct idem_engine *engine, idem_figure_fn *each,
                         void *arg);
/* The same without waiting for the engine: as they were when this was last
 * called, and none the first time. */
void idem__store_figures_kept(struct idem_engine *engine, idem_figure_fn *each,
                              void *arg);

#endif
