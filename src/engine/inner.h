/*
 * inner.h - the engine's internal structs and functions. Outside this folder
 * only ../remote, which is a carrier, and ../lock, whose leases are kept alive,
 * use it.
 *
 *   submit ──▶ queue ──▶ turn: batch ──▶ step() ──▶ store.swap ──▶ answer
 *    any thread            │    ▲
 *                          ▼    │ the record changed, a lease or a wait ended
 *                        parked in a crowd, one crowd a key
 *
 * Everything but the queue belongs to the thread that takes the turns: the
 * engine's own, or its driver's. So there is one lock, and it guards the queue.
 */
#ifndef IDEM__ENGINE_INNER_H
#define IDEM__ENGINE_INNER_H

#include "job.h"
#include "known.h"

/* ---- parked operations ----------------------------------------------- */

/* The operations that wait for one key, in order of arrival. */
struct idem__crowd {
    struct idem__link link;
    uint8_t key[IDEM_KEY_LEN];
    struct idem__job *first, *last;
    size_t count;
    struct idem__parked_scope *scope;
    struct idem__timer timer;
    uint64_t rev; /* the rev that all of them have seen; 0: not known */
    struct idem__group *group; /* its group in the current batch, or NULL */
    bool looks;                /* is in the batch that is being filled */
    bool locked;               /* the row was locked: look again very soon */
    bool watched;              /* the store was asked to notify changes ... */
    bool told;                 /* ... and does */
    int64_t look_times;        /* poll intervals until the next look */
    int64_t since_us;          /* when the first of them came */
};

/* The number of waiting operations of one scope; found by a digest of its
 * name. */
struct idem__parked_scope {
    struct idem__link link;
    uint8_t key[IDEM_KEY_LEN];
    size_t count, crowds;
};

struct idem__parked {
    struct idem__map crowds, tickets, scopes;
    size_t count, locks; /* all, and those that wait for a lock */
};

struct idem__crowd *idem__crowd_find(struct idem_engine *engine,
                                     const uint8_t *key);
/* Put a job at the end of its key's crowd. NULL: a limit is reached (the total,
 * or that of its key or scope), or out of memory. */
struct idem__crowd *idem__crowd_add(struct idem_engine *engine,
                                    struct idem__job *job);
/* Keep the job parked after its batch: set its timer and ticket. False: out of
 * memory. */
bool idem__crowd_keep(struct idem_engine *engine, struct idem__job *job);
void idem__crowd_take(struct idem_engine *engine, struct idem__job *job);
/* List the operations that wait for a lock, at most `most`, as described at
 * idem__waiters_submit; stops when `each` returns false. */
void idem__park_list(struct idem_engine *engine, size_t most,
                     bool (*each)(void *arg, const struct idem_record *waiter),
                     void *arg);
/* Set when to look again at a record that is or was busy; frees an empty
 * crowd. */
void idem__crowd_plan(struct idem_engine *engine, struct idem__crowd *crowd,
                      const struct idem_record *record);
/* Handle a notification of the store about one key or all keys (park.c). */
void idem__park_news(struct idem_engine *engine, const struct idem__news *news);
void idem__take_news(void *arg, enum idem_news news, const uint8_t *key);
void idem__park_cancel(struct idem_engine *engine, uint64_t ticket);
void idem__park_close(struct idem_engine *engine);

/* ---- time ------------------------------------------------------------ */

struct idem__seen { /* on a store without a clock: a rev that has not changed */
    uint64_t rev;
    int64_t since_us, used_us;
};

struct idem__time {
    const struct idem_clocks *clocks;
    int64_t open_us;           /* boot clock */
    int64_t sample_us;         /* the store's time in the last sample, ... */
    int64_t asked_us, told_us; /* ... taken between these two boot times */
    int64_t tried_us;          /* time of the last attempt to sample */
    int64_t judged_us;         /* lower bound in use ... */
    int64_t judged_at_us;      /* ... at this boot time; 0: not yet */
    int64_t steady_us; /* the latest such bound, advanced by the boot clock */
    bool doubted;      /* the store was far ahead at the start */
    uint64_t fence_floor_us;
    int64_t pace_us; /* the latest store time, advanced by the boot clock */
    int64_t wall_offset_us; /* wall clock minus boot clock, at open */
    int64_t wall_checked_us;
    atomic_bool alarm;
    struct idem__seen *seen; /* NULL: the store has a clock */
};

/* Fails if the store's clock cannot be read, or cannot be right. */
enum idem_status idem__time_open(struct idem_engine *engine,
                                 struct idem_error *err);
/* Compute engine->now for the next batch. If the store's clock cannot be read
 * now, this machine's goes on from its last reading. */
void idem__time_update(struct idem_engine *engine);
/* The time to judge this record by; the record may be NULL. */
struct idem_now idem__time_for(struct idem_engine *engine,
                               const struct idem_record *record);
/* This engine has just stored this record. */
void idem__time_wrote(struct idem_engine *engine,
                      const struct idem_record *record);
/* Records that may be dropped before this time may be removed from the store
 * now; 0: none. */
int64_t idem__time_drop_ms(struct idem_engine *engine);
/* The boot time at which the lease of this executing record is over, according
 * to what is known now. */
int64_t idem__time_lease_end_us(struct idem_engine *engine,
                                const struct idem_record *record);

/* ---- the current batch ----------------------------------------------- */

struct idem__entry {
    const uint8_t *key;
    struct idem__job *job; /* NULL: a crowd looks again */
    struct idem__crowd *crowd;
};

struct idem__sorted {
    uint64_t prefix; /* of the key, big-endian */
    const struct idem__entry *entry;
};

enum idem__stage {
    IDEM__STAGE_LOAD, /* the record is to be read */
    IDEM__STAGE_STEP, /* `current` is known or guessed */
    IDEM__STAGE_SWAP, /* a write is on its way */
    IDEM__STAGE_DONE,
};

/* All operations of a batch on one key. */
struct idem__group {
    uint8_t key[IDEM_KEY_LEN];
    struct idem__item *first, **last; /* its jobs, in order */
    struct idem__crowd *crowd;
    enum idem__stage stage;
    bool withheld; /* lost by the store, and nobody has accepted that */
    bool guessed;  /* `stored` is a guess, it was not read */
    bool swept;    /* some jobs of the crowd were decided */
    bool writes;
    bool changed; /* since the crowd last looked */
    uint8_t rounds, losses;
    const struct idem_error *shut;    /* why `stored` does not open, or NULL */
    bool shut_result;                 /* it is the result that does not open */
    const struct idem_record *sealed; /* the sealed record to write, or NULL */
    uint64_t rev;                     /* of the write */
    const struct idem_record *record; /* NULL, or one of the next two */
    struct idem_record stored;        /* the stored record, or ABSENT */
    struct idem_record chain[2];      /* what the operations produce */
};

/* Decide all operations of the group from the stored record. */
void idem__group_step(struct idem_engine *engine, struct idem__group *group);
/* The four ways in which a group ends: answered as decided, answered with an
 * error, answered as busy because of another transaction, or lost (not answered
 * yet). */
void idem__group_stored(struct idem_engine *engine, struct idem__group *group);
void idem__group_failed(struct idem_engine *engine, struct idem__group *group,
                        enum idem_status status, const struct idem_error *err);
void idem__group_locked(struct idem_engine *engine, struct idem__group *group);
void idem__group_lost(struct idem__group *group);

struct idem__batch {
    struct idem_arena arena;
    struct idem__entry *entries; /* in order of arrival */
    struct idem__sorted *sorted;
    struct idem__group *groups;
    struct idem__group **swapping;
    struct idem_swap *swaps;
    struct idem_load *loads;
    size_t entry_count, group_count, bytes;
    size_t limit;  /* maximum number of entries in the next batch */
    size_t loaded; /* bytes of results that this batch has read */
};

bool idem__batch_open(struct idem_engine *engine);
void idem__batch_close(struct idem_engine *engine);
bool idem__batch_add_job(struct idem_engine *engine, struct idem__job *job);
bool idem__batch_add_crowd(struct idem_engine *engine,
                           struct idem__crowd *crowd);
/* Decide, commit and answer the groups. */
void idem__groups_commit(struct idem_engine *engine);
/* Group the added operations by key and commit the groups. */
void idem__batch_run(struct idem_engine *engine);

/* ---- outages of the store -------------------------------------------- */

struct idem__outage {
    bool on;     /* calls of the store fail ... */
    bool said;   /* ... and that was logged */
    bool writes; /* writes fail: a read does not prove that it is over */
    /* Boot times: of the first and the last failure, of the first success after
     * that one (0: none), and of the last line in the log (0: none). */
    int64_t since_us, failed_us, worked_us, said_us;
    char why[sizeof(((struct idem_error *)NULL)->text)]; /* the logged cause */
};

/* A call of the store, which wrote or only read, failed with this error or
 * succeeded (outage.c). */
void idem__outage_failed(struct idem_engine *engine,
                         const struct idem_error *err, bool write);
void idem__outage_worked(struct idem_engine *engine, bool write);

/* ---- the engine ------------------------------------------------------ */

/*
 * A carrier executes the operations of an engine: on a store (in this folder)
 * or through a server (../remote). All code in front of it is the same for
 * both: idem_submit and the queue, idem_do, idem_run and idem_scan.
 */
struct idem__carrier {
    enum idem_status (*open)(struct idem_engine *engine, const char *url,
                             struct idem_error *err);
    /* Handle the waiting items as far as possible; true if more wait
     * already. */
    bool (*turn)(struct idem_engine *engine);
    /* When the next turn is due, on the boot clock; INT64_MAX: never. */
    int64_t (*due_us)(struct idem_engine *engine);
    /* On the engine's own thread: sleep at most this long, until `wake` is
     * called. The caller of `wake` holds the queue's lock. */
    void (*sleep)(struct idem_engine *engine, int64_t ms);
    void (*wake)(struct idem_engine *engine);
    size_t (*max_result)(const struct idem_engine *engine);
    void (*figures)(struct idem_engine *engine, idem_figure_fn *each,
                    void *arg);
    /* There are no more turns: answer all remaining operations. */
    void (*finish)(struct idem_engine *engine);
    void (*close)(struct idem_engine *engine); /* also after a failed open */
};

/* remote.c: does this URL name a server? */
bool idem__remote_url(const char *url);
extern const struct idem__carrier idem__server_carrier;
struct idem__remote;

struct idem_engine {
    const struct idem__carrier *carrier;
    struct idem__remote *remote; /* state of the carrier to a server */
    struct idem_options options;
    struct idem_store_options store_options;
    struct idem_store *store;
    struct idem__engine_inner inner;
    struct idem__queue queue;
    pthread_t thread;                 /* if the engine is not driven */
    _Atomic pthread_t turner;         /* the thread that took the last turn */
    _Atomic bool has_turner, in_turn; /* only the turner uses in_turn */
    LIST_HEAD(, idem__keeper) keepers;
    bool renewals_fail; /* and that was logged */
    struct idem__timers timers;
    struct idem__parked parked;
    struct idem__recents recents;
    struct idem__claims claims;
    struct idem__epoch epoch;
    struct idem__quota quota;
    struct idem__kept_figures figures;
    struct idem__seal *seal;  /* NULL: sealing is off */
    struct idem_error closed; /* why a record did not open, as last logged */
    int64_t closed_us;        /* when that was logged; 0: never */
    struct idem__item *spare_jobs; /* only the turner uses them */
    size_t spare_count;
    struct idem__time time;
    struct idem_now now;
    uint64_t turns;
    int64_t boot_now_us; /* read once a turn */
    struct idem__batch batch;
    int64_t tended_us;
    int64_t breaker_until_us, breaker_wait_us;
    struct idem_error breaker_error;
    struct idem__outage outage;

    _Atomic uint64_t verdicts[IDEM__VERDICT_COUNT];
    _Atomic uint64_t errors[IDEM__STATUS_COUNT];
    _Atomic uint64_t batch_sizes[IDEM__BATCH_SIZES];
    _Atomic uint64_t batches, batched, store_errors, parked_now, locks_waiting,
        vanished, over_quota, rollbacks;
    atomic_bool rolled_back; /* and no operator has accepted it */
    /* The store's time minus the boot clock's; 0: not known. An idle engine's
     * time goes on that way, for those that only ask for figures. */
    _Atomic int64_t ahead_ms;
};

int64_t idem__boot_us(struct idem_engine *engine);

/* The maximum number of bytes of a result that is kept. */
size_t idem__max_result(const struct idem_engine *engine);

/* Call back with the answer in the job, or with an error. */
void idem__job_answer(struct idem_engine *engine, struct idem__job *job,
                      enum idem_status status, const struct idem_error *err);
void idem__job_drop(struct idem_engine *engine, struct idem__job *job);
void idem__jobs_close(struct idem_engine *engine);
/* Answer and free the job. */
void idem__job_fail(struct idem_engine *engine, struct idem__job *job,
                    enum idem_status status, const struct idem_error *err);

/* queue.c: like idem_submit; `part` says which operation of a verb it is. */
enum idem_status idem__submit(struct idem_engine *engine,
                              const struct idem_op *op, enum idem__part part,
                              idem_done_fn *done, void *arg, uint64_t *ticket,
                              struct idem_error *err);
/* verbs.c: a part was answered. Submit the next one, or call back. */
void idem__verb_answer(struct idem_engine *engine, struct idem__job *job,
                       enum idem_status status, const struct idem_error *err);
enum idem__part idem__verb_part(const struct idem_op *op, bool next);

/* Append an item to the queue, ignoring the limits; false: closing. */
bool idem__queue_put(struct idem_engine *engine, struct idem__item *item);
bool idem__on_own_thread(const struct idem_engine *engine);
/* Move the waiting items to the inbox, unless the inbox has enough for a
 * batch. */
void idem__queue_take(struct idem__queue *queue);
/* Give back the memory of a cancel that was taken from the queue. */
void idem__cancel_drop(struct idem__queue *queue, struct idem__cancel *cancel);
/* This many jobs are finished. True if more items are waiting. */
bool idem__queue_done(struct idem__queue *queue, size_t count, size_t bytes);

/* The struct that contains this member. */
#define IDEM__OF(pointer, type, member)                                        \
    ((type *)((char *)(pointer)-offsetof(type, member)))

void idem__scan_run(struct idem_engine *engine, struct idem__scan *scan);

/* Wait until *word is not 0; idem__word_set wakes the waiters. */
void idem__word_wait(atomic_int *word);
void idem__word_set(atomic_int *word);

#endif
