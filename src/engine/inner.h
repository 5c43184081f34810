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

#include "engine.h"
#include "lease.h"
#include "seal.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/queue.h>

/* ---- timers ---------------------------------------------------------- */

enum idem__timer_kind {
    IDEM__TIMER_WAIT,  /* in a job: its wait ends */
    IDEM__TIMER_LOOK,  /* in a crowd: look at the record again */
    IDEM__TIMER_RENEW, /* in a keeper: renew its lease */
};

struct idem__timer {
    int64_t due_us; /* on the boot clock */
    size_t place;   /* in the heap, from 1; 0: not set */
    enum idem__timer_kind kind;
};

struct idem__timers {
    struct idem__timer **heap; /* heap[1] is due first */
    size_t count, room;
};

/* Set or change the timer. False: out of memory, the timer is unchanged. */
bool idem__timer_set(struct idem__timers *timers, struct idem__timer *timer,
                     int64_t due_us);
void idem__timer_stop(struct idem__timers *timers, struct idem__timer *timer);
struct idem__timer *idem__timer_first(const struct idem__timers *timers);
void idem__timers_clear(struct idem__timers *timers);

/* ---- a hash table of structs that embed a link ----------------------- */

struct idem__link {
    struct idem__link *next;
    uint64_t hash;
};

struct idem__map {
    struct idem__link **chains;
    size_t room; /* 0 or a power of two */
    size_t count;
};

bool idem__map_add(struct idem__map *map, struct idem__link *link,
                   uint64_t hash);
void idem__map_remove(struct idem__map *map, struct idem__link *link);
/* The things with this hash, one after the other; NULL: no more. */
struct idem__link *idem__map_find(const struct idem__map *map, uint64_t hash);
struct idem__link *idem__map_next(const struct idem__link *link);
void idem__map_clear(struct idem__map *map);

/* Keys are hashes already. */
static inline uint64_t
idem__key_hash(const uint8_t *key)
{
    uint64_t hash;

    memcpy(&hash, key, sizeof(hash));
    return hash;
}

/* ---- items of the queue ---------------------------------------------- */

enum idem__item_kind {
    IDEM__ITEM_JOB,
    IDEM__ITEM_CANCEL,
    IDEM__ITEM_SCAN,
    IDEM__ITEM_FIGURES,
    IDEM__ITEM_KEPT, /* a lease is no longer kept alive */
    IDEM__ITEM_NEWS, /* the store notifies a change of a watched record */
};

struct idem__item {
    struct idem__item *next;
    enum idem__item_kind kind;
    size_t bytes; /* for the queue's limit */
};

/* Which operation of a verb a job is; see verbs.c. */
enum idem__step {
    IDEM__STEP_LAST,  /* pass its answer to the caller */
    IDEM__STEP_FIND,  /* among requests; a token may be found next */
    IDEM__STEP_LOOK,  /* SETTLE, as a GET: find the record to settle */
    IDEM__STEP_USE,   /* REDEEM, before a new token is issued */
    IDEM__STEP_FRESH, /* the ISSUE of that token */
};

struct idem__crowd;
struct idem__parked_scope;

/* One operation, in one allocation: its bytes follow the struct. */
struct idem__job {
    struct idem__item item;        /* in the queue, then in its group */
    struct idem__job *next, *prev; /* in its crowd */
    struct idem__link ticket_link; /* while parked, if it has a ticket */
    struct idem__timer timer;      /* while parked */
    struct idem__crowd *crowd;     /* NULL: not parked */
    uint8_t key[IDEM_KEY_LEN];
    struct idem_op op;
    enum idem__step step;
    idem_done_fn *done;
    void *arg;
    uint64_t ticket;     /* 0: none was asked for */
    int64_t wait_end_us; /* on the boot clock; 0: it does not wait */
    bool met_lock;       /* it has already waited a moment for a row lock */
    bool fresh;          /* joined its crowd in this batch */
    bool decided;        /* the answer is known if the swap is stored */
    bool depends;        /* the answer depends on a write of its group */
    bool wrote;          /* the op itself writes */
    bool maybe_stored;   /* the reply to its write was lost once */
    bool over_quota;     /* refused by the quota: it wrote nothing */
    bool unsafe;         /* the store went back in time: it wrote nothing */
    const struct idem_error *shut; /* why it does not open: nothing written */
    struct idem_answer answer;     /* points to `told` */
    struct idem_record told;
    uint8_t nonce[IDEM_NONCE_LEN];
    uint8_t fingerprint[IDEM_FINGERPRINT_LEN];
};

struct idem__cancel {
    struct idem__item item;
    uint64_t ticket;
};

struct idem__news {
    struct idem__item item;
    enum idem_news news;
    bool of_all; /* about all keys, not only this one */
    uint8_t key[IDEM_KEY_LEN];
};

struct idem__scan {
    struct idem__item item;
    struct idem_filter filter; /* its scope follows the struct */
    struct idem_cursor cursor;
    size_t count;
    bool waiters; /* list the waiters for locks, not the stored records */
    idem__scan_done_fn *done;
    void *arg;
};

struct idem__figures {
    struct idem__item item;
    idem_figure_fn *each;
    void *arg;
    atomic_int *woken; /* NULL: nobody waits, the figures are kept for later */
};

/* The store's figures at the time of the last request for them. */
#define IDEM__FIGURES_KEPT 32

struct idem__kept_figures {
    pthread_mutex_t lock;
    struct idem__figures asks; /* in the queue, if `asked` */
    bool asked;
    size_t count;
    struct {
        char name[48];
        double value;
    } all[IDEM__FIGURES_KEPT];
};

/* ---- leases that are kept alive (keep.c) ------------------------------ */

struct idem__keeper;

enum idem__kept {
    IDEM__KEPT,
    IDEM__KEPT_UNSURE, /* not renewed, but the reason may pass: tries again */
    IDEM__KEPT_LOST,   /* somebody else has the record: does not try again */
};

/* The outcome of a renewal; err, which may be NULL, says why it is UNSURE.
 * Returns whether to go on. This callback and the next one run on the thread
 * that takes the turns. */
typedef bool idem__kept_fn(struct idem__keeper *keeper, enum idem__kept kept,
                           const struct idem_error *err);
/* The engine no longer uses the keeper: free the struct that contains it. */
typedef void idem__keeper_gone_fn(struct idem__keeper *keeper);

/* Keeps the lease of one record alive. It is part of its owner, which must live
 * until `gone` is called. */
struct idem__keeper {
    struct idem__item end;
    LIST_ENTRY(idem__keeper) in_engine;
    struct idem_engine *engine;
    struct idem__timer timer;
    struct idem__lease lease;
    struct idem_op renew;
    bool in_flight, over;
    idem__kept_fn *kept;
    idem__keeper_gone_fn *gone;
};

/* The owner keeps the bytes of `renew` alive. */
void idem__keeper_init(struct idem__keeper *keeper, struct idem_engine *engine,
                       const struct idem_op *renew, idem__kept_fn *kept,
                       idem__keeper_gone_fn *gone);
/* Stop renewing. Any thread may call it, but only after the keeper was
 * started. */
void idem__keeper_end(struct idem__keeper *keeper);

/* Like idem_do. If this BEGIN or LOCK gets STARTED, the keeper (or NULL) keeps
 * its lease alive from then on. */
enum idem_status idem__do_kept(struct idem_engine *engine,
                               const struct idem_op *op,
                               struct idem__keeper *keeper,
                               struct idem_answer *answer,
                               struct idem_error *err);

/* Signal handlers and other threads set the flag. */
static inline bool
idem__is_set(const volatile sig_atomic_t *stop)
{
    return stop && __atomic_load_n(stop, __ATOMIC_RELAXED) != 0;
}

/* The same, but the wait is cancelled soon after *stop becomes nonzero. The
 * keeper and stop may be NULL. */
enum idem_status
idem__do_until(struct idem_engine *engine, const struct idem_op *op,
               struct idem__keeper *keeper, const volatile sig_atomic_t *stop,
               struct idem_answer *answer, struct idem_error *err);

/* For the engine itself; called on the thread that takes the turns. */
void idem__keeper_start(struct idem__keeper *keeper, uint64_t fence);
void idem__keeper_due(struct idem__keeper *keeper);
void idem__keeper_over(struct idem__keeper *keeper);
void idem__keepers_close(struct idem_engine *engine);

/* ---- the queue --------------------------------------------------------- */

struct idem__queue {
    pthread_mutex_t lock;
    pthread_cond_t wake;
    struct idem__item *first, **last;
    struct idem__item *inbox; /* taken from the queue; only the thread that
                               * takes turns uses it */
    size_t count, bytes;      /* waiting jobs, including those in the inbox */
    uint64_t tickets;
    size_t news; /* number of waiting news */
    bool closing;
    bool asleep; /* the engine's thread waits for `wake` */
};

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

/* ---- recently written records (recent.c) ----------------------------- */

struct idem__place {
    uint64_t hash, at; /* at: bytes ever appended before it; 0: nothing */
};

struct idem__recents {
    uint8_t *ring; /* NULL: nothing is kept yet */
    struct idem__place *places;
    uint64_t last, end; /* positions of the last record and of its end */
    uint64_t batch_start;
};

void idem__recents_batch_over(struct idem__recents *recents);
void idem__recents_close(struct idem__recents *recents);
const struct idem_record *idem__recent_find(struct idem_engine *engine,
                                            const uint8_t *key);
/* The store now has this record under the key. It is kept while it is
 * executing. */
void idem__recent_note(struct idem_engine *engine, const uint8_t *key,
                       const struct idem_record *record);
void idem__recent_forget(struct idem_engine *engine, const uint8_t *key);

/* ---- claims that the store must have (claims.c) ----------------------- */

struct idem__claim;

struct idem__claims {
    struct idem__claim *places; /* NULL: nothing written yet */
    int64_t said_us;            /* time of the last alarm; 0: none */
};

/* This engine has stored this record under the key; NULL: the key is now
 * absent. */
void idem__claim_wrote(struct idem_engine *engine, const uint8_t *key,
                       const struct idem_record *record);
/* The store has this record under the key (state ABSENT: none). Raises an alarm
 * if that shows a loss. */
void idem__claim_found(struct idem_engine *engine, const uint8_t *key,
                       const struct idem_record *stored);
/* Must it not run a second time? */
bool idem__happens_once(const struct idem_record *record);
/* Has this engine claimed the key, as far as it remembers? */
bool idem__claim_known(struct idem_engine *engine, const uint8_t *key);
/* True if this record shows that the store has lost a claim. */
bool idem__claim_cannot_be(struct idem_engine *engine, const uint8_t *key,
                           const struct idem_record *stored);
/* The fence of a claim of this engine that must run only once and that a store
 * which went back in time no longer has; 0: none. */
uint64_t idem__claim_lost(struct idem_engine *engine, const uint8_t *key,
                          const struct idem_record *stored);
void idem__claims_close(struct idem__claims *claims);

/* ---- a store that went back in time (epoch.c) -------------------------- */

#define IDEM__EPOCH_ID_LEN 32

struct idem__mark {
    uint64_t fence, rev; /* 0: no mark */
    int64_t written_ms;
};

/* The last strict record or token that was written after the mark. */
struct idem__newest {
    uint8_t key[IDEM_KEY_LEN];
    uint64_t fence; /* 0: none */
    uint64_t mark;  /* the fence of the mark before it */
    int64_t expires;
    bool ended;
};

struct idem__epoch {
    bool on;
    char id[IDEM__EPOCH_ID_LEN + 1]; /* of our mark */
    struct idem__mark mark;          /* the last mark that is surely stored */
    struct idem__newest newest;
    uint64_t found_fence,
        found_rev;     /* what the store had instead, when it went back */
    int64_t marked_us; /* boot clock */
    bool dirty;        /* something was written since */
    uint64_t link;     /* the store's connection that the mark went through */
    bool unsure;       /* the store has failed since */
    uint64_t lost_from, lost_to; /* fences that an accepted loss covers */
    atomic_bool accepted;        /* set by another thread, not yet handled */
    struct idem_error err;       /* why the store did not take a mark */
    int fd;                      /* the file; -1: none */
    bool file_failed;
};

enum idem_status idem__epoch_open(struct idem_engine *engine,
                                  struct idem_error *err);
void idem__epoch_close(struct idem__epoch *epoch);
/* Check before a batch that the store did not go back in time; `now`: also if
 * it was checked a moment ago. False: the store does not answer. */
bool idem__epoch_check(struct idem_engine *engine, bool now);
/* This engine has stored this record (NULL: none) under the key. */
void idem__epoch_wrote(struct idem_engine *engine, const uint8_t *key,
                       const struct idem_record *record);
void idem__epoch_tend(struct idem_engine *engine);
int64_t idem__epoch_due_us(const struct idem_engine *engine);
/* True if this op must not write `next`, because the request could then run
 * twice. idem__epoch_refuse sets the error. */
bool idem__epoch_refuses(struct idem_engine *engine, const struct idem_op *op,
                         const struct idem_record *next);
enum idem_status idem__epoch_refuse(bool maybe_stored, struct idem_error *err);

/* ---- limits of one scope (quota.c) ------------------------------------- */

struct idem__scope_use;

struct idem__quota {
    struct idem__scope_use *uses; /* NULL: no quota is set */
    uint8_t hash_key[16];
    /* The look, a scan of the whole store. */
    bool looking;
    bool blind;        /* the look cannot be done, so there are no counts */
    int64_t since_ms;  /* when the look began, in the store's time */
    int64_t due_us;    /* the next part of the look, on the boot clock */
    int64_t looked_us; /* when the last complete look ended */
    size_t part;       /* records in the next part */
    struct idem_cursor cursor;
};

enum idem_status idem__quota_open(struct idem_engine *engine,
                                  struct idem_error *err);
void idem__quota_close(struct idem__quota *quota);
/* True if this op's scope may have no further record. idem__quota_refuse sets
 * the error. */
bool idem__quota_used_up(struct idem_engine *engine, const struct idem_op *op);
enum idem_status idem__quota_refuse(struct idem_engine *engine,
                                    const struct idem_op *op,
                                    struct idem_error *err);
/* This engine stored `after` in the place of `before`; state ABSENT: there was
 * none. */
void idem__quota_wrote(struct idem_engine *engine,
                       const struct idem_record *before,
                       const struct idem_record *after);
void idem__quota_tend(struct idem_engine *engine);

/* ---- sealed records (sealed.c) ----------------------------------------- */

struct idem__group;

/* Read the keys if the options name a file. `has_store`: the engine has a store
 * and not a server. */
enum idem_status idem__sealed_start(struct idem_engine *engine, bool has_store,
                                    struct idem_error *err);
/* Is there room for this op's subject after it is sealed? */
enum idem_status idem__sealed_fits(const struct idem_engine *engine,
                                   const struct idem_op *op,
                                   struct idem_error *err);
/* Open the loaded record; if it does not open, group->shut says why. */
void idem__sealed_open_group(struct idem_engine *engine,
                             struct idem__group *group);
/* The record to write for the group; NULL: out of memory. */
const struct idem_record *idem__sealed_write(struct idem_engine *engine,
                                             struct idem__group *group);
/* True if the group's record does not open and this op may not change it. */
bool idem__sealed_refuses(const struct idem__group *group,
                          const struct idem_op *op, const struct idem_now *now);
/* Open a record that a scan found, which has no result. If it does not open,
 * its subject is empty. */
void idem__sealed_open_scanned(struct idem_engine *engine,
                               struct idem_record *record,
                               struct idem_arena *arena);

/* ---- time ------------------------------------------------------------ */

struct idem__seen { /* on a store without a clock: a rev that has not changed */
    uint64_t rev;
    int64_t since_us, used_us;
};

struct idem__time {
    const struct idem_clocks *clocks;
    int64_t open_us;           /* boot clock */
    bool known;                /* there was a sample */
    int64_t sample_us;         /* the store's time in the last sample, ... */
    int64_t asked_us, told_us; /* ... taken between these two boot times */
    int64_t tried_us;          /* time of the last attempt to sample */
    int64_t judged_us;         /* lower bound in use ... */
    int64_t judged_at_us;      /* ... at this boot time; 0: not yet */
    bool doubted;              /* the store was far ahead at the start */
    uint64_t fence_floor_us;
    int64_t pace_us; /* the latest store time, advanced by the boot clock */
    int64_t wall_offset_us; /* wall clock minus boot clock, at open */
    int64_t wall_checked_us;
    atomic_bool alarm;
    struct idem__seen *seen; /* NULL: the store has a clock */
};

bool idem__time_open(struct idem_engine *engine);
/* Compute engine->now for the next batch. */
enum idem_status idem__time_update(struct idem_engine *engine,
                                   struct idem_error *err);
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

    _Atomic uint64_t verdicts[IDEM__VERDICT_COUNT];
    _Atomic uint64_t errors[IDEM__STATUS_COUNT];
    _Atomic uint64_t batch_sizes[IDEM__BATCH_SIZES];
    _Atomic uint64_t batches, batched, store_errors, parked_now, locks_waiting,
        vanished, over_quota, rollbacks;
    atomic_bool rolled_back; /* and no operator has accepted it */
    _Atomic int64_t stats_now_ms;
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

/* queue.c: like idem_submit; `step` says which operation of a verb it is. */
enum idem_status idem__submit(struct idem_engine *engine,
                              const struct idem_op *op, enum idem__step step,
                              idem_done_fn *done, void *arg, uint64_t *ticket,
                              struct idem_error *err);
/* verbs.c: a step was answered. Submit the next one, or call back. */
void idem__verb_answer(struct idem_engine *engine, struct idem__job *job,
                       enum idem_status status, const struct idem_error *err);
enum idem__step idem__verb_step(const struct idem_op *op, bool next);

/* How long the caller of a busy record should wait before it retries. */
int64_t idem__retry_after_ms(const struct idem_record *record,
                             const struct idem_now *now);

/* Append an item to the queue, ignoring the limits; false: closing. */
bool idem__queue_put(struct idem_engine *engine, struct idem__item *item);
bool idem__on_own_thread(const struct idem_engine *engine);
/* Move the waiting items to the inbox, unless the inbox has enough for a
 * batch. */
void idem__queue_take(struct idem__queue *queue);
/* This many jobs are finished. True if more items are waiting. */
bool idem__queue_done(struct idem__queue *queue, size_t count, size_t bytes);

/* The struct that contains this member. */
#define IDEM__OF(pointer, type, member)                                        \
    ((type *)((char *)(pointer)-offsetof(type, member)))

void idem__scan_run(struct idem_engine *engine, struct idem__scan *scan);

/* Wait until *word is not 0; idem__word_set wakes the waiters. */
void idem__word_wait(atomic_int *word);
/* The same with a timeout; false: *word is still 0. */
bool idem__word_wait_for(atomic_int *word, int64_t ms);
void idem__word_set(atomic_int *word);

#endif
