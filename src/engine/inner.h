/*
 * inner.h - the engine's own parts, seen outside this folder only by a carrier
 * (../remote) and by an owner of a lease that is kept alive (../lock).
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

/* ---- timers ---------------------------------------------------------- */

enum idem__timer_kind {
    IDEM__TIMER_WAIT,  /* in a job: its wait ends */
    IDEM__TIMER_LOOK,  /* in a crowd: look at the record again */
    IDEM__TIMER_RENEW, /* in a keeper: its lease wants renewing */
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

/* Set, or set anew. False: out of memory, the timer is as it was. */
bool idem__timer_set(struct idem__timers *timers, struct idem__timer *timer,
                     int64_t due_us);
void idem__timer_stop(struct idem__timers *timers, struct idem__timer *timer);
struct idem__timer *idem__timer_first(const struct idem__timers *timers);
void idem__timers_clear(struct idem__timers *timers);

/* ---- a hash table of things that embed a link ------------------------ */

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
/* Those with this hash, one after the other; NULL: no more. */
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

/* ---- what waits in the queue ----------------------------------------- */

enum idem__item_kind {
    IDEM__ITEM_JOB,
    IDEM__ITEM_CANCEL,
    IDEM__ITEM_SCAN,
    IDEM__ITEM_FIGURES,
    IDEM__ITEM_KEPT, /* a lease need not be kept any longer */
    IDEM__ITEM_NEWS, /* of a record that somebody waits for */
};

struct idem__item {
    struct idem__item *next;
    enum idem__item_kind kind;
    size_t bytes; /* for the queue's limit */
};

/* Which operation of a verb a job is; see verbs.c. */
enum idem__step {
    IDEM__STEP_LAST,  /* tell its answer */
    IDEM__STEP_FIND,  /* among requests; a token may be found next */
    IDEM__STEP_LOOK,  /* SETTLE, as a GET: what is there to settle? */
    IDEM__STEP_USE,   /* REDEEM, before a fresh token is issued */
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
    bool met_lock;       /* has been given a moment for somebody's row lock */
    bool fresh;          /* came to its crowd in this batch */
    bool decided;        /* has its answer, if the swap is stored */
    bool depends;        /* on a write of its group */
    bool wrote;          /* one of its own */
    bool maybe_stored;   /* such a write was lost once */
    bool over_quota;     /* it wrote nothing */
    bool unsafe;         /* the store went back: it wrote nothing */
    const struct idem_error *shut; /* the record does not open: it wrote
                                      nothing */
    struct idem_answer answer;     /* shows `told` */
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
    bool of_all; /* and not of this key */
    uint8_t key[IDEM_KEY_LEN];
};

struct idem__scan {
    struct idem__item item;
    struct idem_filter filter; /* its scope follows the struct */
    struct idem_cursor cursor;
    size_t count;
    bool waiters; /* those who wait for a lock, and not what is stored */
    idem__scan_done_fn *done;
    void *arg;
};

struct idem__figures {
    struct idem__item item;
    idem_figure_fn *each;
    void *arg;
    atomic_int *woken; /* NULL: nobody waits; they are kept */
};

/* The store's figures as they were when somebody last asked for them. */
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
    IDEM__KEPT_UNSURE, /* not renewed, for a reason that may pass: asks again */
    IDEM__KEPT_LOST,   /* somebody else has the record: asks no more */
};

/* What became of a renewal; err, which may be NULL, says why it is UNSURE.
 * Returns whether to go on. Called, as the next one, on the thread that takes
 * turns. */
typedef bool idem__kept_fn(struct idem__keeper *keeper, enum idem__kept kept,
                           const struct idem_error *err);
/* Nobody uses the keeper any more: free what it is part of. */
typedef void idem__keeper_gone_fn(struct idem__keeper *keeper);

/* Keeps the lease of one record; part of its owner, which lives until `gone`
 * is called. */
struct idem__keeper {
    struct idem__item end;
    struct idem__keeper *next, **prev; /* all of an engine's */
    struct idem_engine *engine;
    struct idem__timer timer;
    struct idem__lease lease;
    struct idem_op renew;
    bool in_flight, over;
    idem__kept_fn *kept;
    idem__keeper_gone_fn *gone;
};

/* The bytes of `renew` stay the owner's. */
void idem__keeper_init(struct idem__keeper *keeper, struct idem_engine *engine,
                       const struct idem_op *renew, idem__kept_fn *kept,
                       idem__keeper_gone_fn *gone);
/* Any thread, and only once it was started: keep it no longer. */
void idem__keeper_end(struct idem__keeper *keeper);

/* As idem_do; if this BEGIN or LOCK is STARTED, the keeper (or NULL) keeps its
 * lease from then on. */
enum idem_status idem__do_kept(struct idem_engine *engine,
                               const struct idem_op *op,
                               struct idem__keeper *keeper,
                               struct idem_answer *answer,
                               struct idem_error *err);

/* Signal handlers and other threads set it. */
static inline bool
idem__is_set(const volatile sig_atomic_t *stop)
{
    return stop && __atomic_load_n(stop, __ATOMIC_RELAXED) != 0;
}

/* The same; the wait is cancelled soon after *stop is no longer 0. The keeper
 * and stop may be NULL. */
enum idem_status
idem__do_until(struct idem_engine *engine, const struct idem_op *op,
               struct idem__keeper *keeper, const volatile sig_atomic_t *stop,
               struct idem_answer *answer, struct idem_error *err);

/* The engine's own: as above, on the thread that takes turns. */
void idem__keeper_start(struct idem__keeper *keeper, uint64_t fence);
void idem__keeper_due(struct idem__keeper *keeper);
void idem__keeper_over(struct idem__keeper *keeper);
void idem__keepers_close(struct idem_engine *engine);

/* ---- the queue --------------------------------------------------------- */

struct idem__queue {
    pthread_mutex_t lock;
    pthread_cond_t wake;
    struct idem__item *first, **last;
    struct idem__item *inbox; /* taken, of the thread that takes turns */
    size_t count, bytes;      /* jobs waiting, with the inbox */
    uint64_t tickets;
    size_t news; /* waiting */
    bool closing;
    bool asleep; /* the engine's thread waits for `wake` */
};

/* ---- parked ones ----------------------------------------------------- */

/* Those who wait for one key, first come first. */
struct idem__crowd {
    struct idem__link link;
    uint8_t key[IDEM_KEY_LEN];
    struct idem__job *first, *last;
    size_t count;
    struct idem__parked_scope *scope;
    struct idem__timer timer;
    uint64_t rev; /* what all of them have looked at; 0: not known */
    struct idem__group *group; /* in the batch at work, or NULL */
    bool looks;                /* stands in the batch that is being filled */
    bool locked;               /* the row was: look again very soon */
    bool watched;              /* the store was asked to tell of changes ... */
    bool told;                 /* ... and does */
    int64_t look_times;        /* the next look is after so many intervals */
};

/* How many wait in all crowds of one scope; found by a digest of its name. */
struct idem__parked_scope {
    struct idem__link link;
    uint8_t key[IDEM_KEY_LEN];
    size_t count, crowds;
};

struct idem__parked {
    struct idem__map crowds, tickets, scopes;
    size_t count, locks; /* all, and those who wait for a lock */
};

struct idem__crowd *idem__crowd_find(struct idem_engine *engine,
                                     const uint8_t *key);
/* Put a job at the end of its key's crowd. NULL: a limit is reached (of all, of
 * its key or of its scope), or memory. */
struct idem__crowd *idem__crowd_add(struct idem_engine *engine,
                                    struct idem__job *job);
/* Make it stay after its batch: timer and ticket. False: out of memory. */
bool idem__crowd_keep(struct idem_engine *engine, struct idem__job *job);
void idem__crowd_take(struct idem_engine *engine, struct idem__job *job);
/* Those who wait for a lock, at most so many, as idem__waiters_submit has it;
 * until `each` says no. */
void idem__park_list(struct idem_engine *engine, size_t most,
                     bool (*each)(void *arg, const struct idem_record *waiter),
                     void *arg);
/* When to look again at a record that is (or was) busy; drops an empty crowd */
void idem__crowd_plan(struct idem_engine *engine, struct idem__crowd *crowd,
                      const struct idem_record *record);
/* The store tells something of a key, or of all (park.c); its news_fn. */
void idem__park_news(struct idem_engine *engine, const struct idem__news *news);
void idem__take_news(void *arg, enum idem_news news, const uint8_t *key);
void idem__park_cancel(struct idem_engine *engine, uint64_t ticket);
void idem__park_close(struct idem_engine *engine);

/* ---- what was just written ------------------------------------------- */

struct idem__place {
    uint64_t hash, at; /* at: all bytes put down before it, ever; 0: nothing */
};

struct idem__recents {
    uint8_t *ring; /* NULL: nothing was kept yet */
    struct idem__place *places;
    uint64_t last, end; /* of what was put down: the last one, its end */
    uint64_t batch_start;
};

void idem__recents_batch_over(struct idem__recents *recents);
void idem__recents_close(struct idem__recents *recents);
const struct idem_record *idem__recent_find(struct idem_engine *engine,
                                            const uint8_t *key);
/* This is stored under the key now; kept while it is executing. */
void idem__recent_note(struct idem_engine *engine, const uint8_t *key,
                       const struct idem_record *record);
void idem__recent_forget(struct idem_engine *engine, const uint8_t *key);

/* ---- what the store must still have ----------------------------------- */

struct idem__claim;

struct idem__claims {
    struct idem__claim *places; /* NULL: nothing was written yet */
    int64_t said_us;            /* the last alarm; 0: none */
};

/* This is stored under the key now, by us; NULL: nothing is. */
void idem__claim_wrote(struct idem_engine *engine, const uint8_t *key,
                       const struct idem_record *record);
/* The store has this under the key (state ABSENT: nothing): can that be? */
void idem__claim_found(struct idem_engine *engine, const uint8_t *key,
                       const struct idem_record *stored);
/* Have we claimed this key, as far as we remember? */
bool idem__claim_known(struct idem_engine *engine, const uint8_t *key);
/* Would claim_found say so? */
bool idem__claim_cannot_be(struct idem_engine *engine, const uint8_t *key,
                           const struct idem_record *stored);
/* The fence of what we claimed, for once, under this key, and what a store that
 * went back does not have; 0: nothing. */
uint64_t idem__claim_lost(struct idem_engine *engine, const uint8_t *key,
                          const struct idem_record *stored);
void idem__claims_close(struct idem__claims *claims);

/* ---- a store that went back (epoch.c) ---------------------------------- */

#define IDEM__EPOCH_ID_LEN 32

struct idem__mark {
    uint64_t fence, rev; /* 0: there is none */
    int64_t written_ms;
};

struct idem__epoch {
    bool on;
    char id[IDEM__EPOCH_ID_LEN + 1]; /* of our mark */
    struct idem__mark mark;          /* the last that is surely stored */
    uint64_t found_fence,
        found_rev;     /* in its place, when the store went back */
    int64_t marked_us; /* boot clock */
    bool dirty;        /* something was written since */
    uint64_t link;     /* the store's connection that it went through */
    bool unsure;       /* the store failed since */
    uint64_t lost_from, lost_to; /* fences that an accepted loss is about */
    atomic_bool accepted;        /* by another thread, and not yet noticed */
    struct idem_error err;       /* why the store did not take a mark */
    int fd;                      /* the file; -1: none */
    bool file_failed;
};

enum idem_status idem__epoch_open(struct idem_engine *engine,
                                  struct idem_error *err);
void idem__epoch_close(struct idem__epoch *epoch);
/* Is the store where we left it? Asked before a batch; now: although it was
 * asked a moment ago. False: it does not answer. */
bool idem__epoch_check(struct idem_engine *engine, bool now);
void idem__epoch_tend(struct idem_engine *engine);
int64_t idem__epoch_due_us(const struct idem_engine *engine);
/* May this op not write `next`, for it could happen twice? Then say why. */
bool idem__epoch_refuses(struct idem_engine *engine, const struct idem_op *op,
                         const struct idem_record *next);
enum idem_status idem__epoch_refuse(bool maybe_stored, struct idem_error *err);

/* ---- what one scope may have in the store (quota.c) -------------------- */

struct idem__scope_use;

struct idem__quota {
    struct idem__scope_use *uses; /* NULL: there is no quota */
    uint8_t hash_key[16];
    /* The look through the store. */
    bool looking;
    bool blind;        /* it cannot be done: there are no counts to judge by */
    int64_t since_ms;  /* when it began, in the store's time */
    int64_t due_us;    /* the next part of it, on the boot clock */
    int64_t looked_us; /* when the last whole one ended */
    size_t part;       /* records in it */
    struct idem_cursor cursor;
};

enum idem_status idem__quota_open(struct idem_engine *engine,
                                  struct idem_error *err);
void idem__quota_close(struct idem__quota *quota);
/* May this op's scope have no further record? Then say which limit it is. */
bool idem__quota_used_up(struct idem_engine *engine, const struct idem_op *op);
enum idem_status idem__quota_refuse(struct idem_engine *engine,
                                    const struct idem_op *op,
                                    struct idem_error *err);
/* We stored a record in the place of another; state ABSENT: of none. */
void idem__quota_wrote(struct idem_engine *engine,
                       const struct idem_record *before,
                       const struct idem_record *after);
void idem__quota_tend(struct idem_engine *engine);

/* ---- what is sealed at rest (sealed.c) --------------------------------- */

struct idem__group;

/* Read the keys, if the options name a file; `has_store`: and no server. */
enum idem_status idem__sealed_start(struct idem_engine *engine, bool has_store,
                                    struct idem_error *err);
/* Is there room for this op's subject, once it is sealed? */
enum idem_status idem__sealed_fits(const struct idem_engine *engine,
                                   const struct idem_op *op,
                                   struct idem_error *err);
/* Open what was loaded; group->shut says why it does not. */
void idem__sealed_open_group(struct idem_engine *engine,
                             struct idem__group *group);
/* What to write of the group's record; NULL: out of memory. */
const struct idem_record *idem__sealed_write(struct idem_engine *engine,
                                             struct idem__group *group);
/* Must this op keep off the group's record, which does not open? */
bool idem__sealed_refuses(const struct idem__group *group,
                          const struct idem_op *op, const struct idem_now *now);
/* Open a record that a scan found, which has no result; or show no subject. */
void idem__sealed_open_scanned(struct idem_engine *engine,
                               struct idem_record *record,
                               struct idem_arena *arena);

/* ---- time ------------------------------------------------------------ */

struct idem__seen { /* an unchanged rev, on a store without a clock */
    uint64_t rev;
    int64_t since_us, used_us;
};

struct idem__time {
    const struct idem_clocks *clocks;
    int64_t open_us;           /* boot clock */
    bool known;                /* there was a sample */
    int64_t sample_us;         /* the store said so ... */
    int64_t asked_us, told_us; /* ... between these, on the boot clock */
    int64_t tried_us;          /* the last attempt to sample */
    int64_t judged_us;         /* lower bound in use ... */
    int64_t judged_at_us;      /* ... at this boot time; 0: not yet */
    bool doubted;              /* the store was far ahead at the start */
    uint64_t fence_floor_us;
    int64_t pace_us; /* the store's time by our own clock since it was latest */
    int64_t wall_offset_us; /* wall clock minus boot clock, at open */
    int64_t wall_checked_us;
    atomic_bool alarm;
    struct idem__seen *seen; /* NULL: the store has a clock */
};

bool idem__time_open(struct idem_engine *engine);
/* Make engine->now for the next batch. */
enum idem_status idem__time_update(struct idem_engine *engine,
                                   struct idem_error *err);
/* The same as seen by one record, which may be NULL. */
struct idem_now idem__time_for(struct idem_engine *engine,
                               const struct idem_record *record);
/* This record is stored now, by us. */
void idem__time_wrote(struct idem_engine *engine,
                      const struct idem_record *record);
/* What may be dropped before this time may leave the store now; 0: nothing. */
int64_t idem__time_drop_ms(struct idem_engine *engine);
/* Boot time at which the lease of this executing record is over, as far as can
 * be told now. */
int64_t idem__time_lease_end_us(struct idem_engine *engine,
                                const struct idem_record *record);

/* ---- the batch at work ----------------------------------------------- */

struct idem__entry {
    const uint8_t *key;
    struct idem__job *job; /* NULL: a crowd is to look again */
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
    bool withheld; /* the store has lost it, and nobody has accepted that */
    bool guessed;  /* and not read */
    bool swept;    /* some of the crowd were decided */
    bool writes;
    bool changed; /* since the crowd has looked */
    uint8_t rounds, losses;
    const struct idem_error *shut;    /* why `stored` does not open, or NULL */
    bool shut_result;                 /* its result is what does not open */
    const struct idem_record *sealed; /* what is written, once it is sealed */
    uint64_t rev;                     /* of the write */
    const struct idem_record *record; /* NULL: none; else one of these */
    struct idem_record stored;        /* what is there, or ABSENT */
    struct idem_record chain[2];      /* what the operations make of it */
};

/* Decide all of them, from what is stored. */
void idem__group_step(struct idem_engine *engine, struct idem__group *group);
/* The four ways in which that ends: told as decided, with an error, as busy
 * with somebody's transaction, or (nothing is told yet) not known. */
void idem__group_stored(struct idem_engine *engine, struct idem__group *group);
void idem__group_failed(struct idem_engine *engine, struct idem__group *group,
                        enum idem_status status, const struct idem_error *err);
void idem__group_locked(struct idem_engine *engine, struct idem__group *group);
void idem__group_lost(struct idem__group *group);

struct idem__batch {
    struct idem_arena arena;
    struct idem__entry *entries; /* in the order they came */
    struct idem__sorted *sorted;
    struct idem__group *groups;
    struct idem__group **swapping;
    struct idem_swap *swaps;
    struct idem_load *loads;
    size_t entry_count, group_count, bytes;
    size_t limit;  /* entries in the next batch */
    size_t loaded; /* bytes of results read for this one */
};

bool idem__batch_open(struct idem_engine *engine);
void idem__batch_close(struct idem_engine *engine);
bool idem__batch_add_job(struct idem_engine *engine, struct idem__job *job);
bool idem__batch_add_crowd(struct idem_engine *engine,
                           struct idem__crowd *crowd);
/* Decide, commit and answer the groups. */
void idem__groups_commit(struct idem_engine *engine);
/* Form the groups of what was added, and commit them. */
void idem__batch_run(struct idem_engine *engine);

/* ---- the engine ------------------------------------------------------ */

/*
 * What carries the operations of an engine out: a store, here, or a server
 * (../remote). Everything in front of it, from idem_submit to the queue, and
 * idem_do, idem_run and idem_scan, is the same for both.
 */
struct idem__carrier {
    enum idem_status (*open)(struct idem_engine *engine, const char *url,
                             struct idem_error *err);
    /* Take what waits and go as far as possible; true if more waits already. */
    bool (*turn)(struct idem_engine *engine);
    /* When the next turn is due, on the boot clock; INT64_MAX: never. */
    int64_t (*due_us)(struct idem_engine *engine);
    /* The engine's own thread: sleep, at most so long, until `wake` is called;
     * `wake` is called with the queue's lock held. */
    void (*sleep)(struct idem_engine *engine, int64_t ms);
    void (*wake)(struct idem_engine *engine);
    size_t (*max_result)(const struct idem_engine *engine);
    void (*figures)(struct idem_engine *engine, idem_figure_fn *each,
                    void *arg);
    /* No more turns: answer everybody who is left. */
    void (*finish)(struct idem_engine *engine);
    void (*close)(struct idem_engine *engine); /* also after a failed open */
};

/* remote.c: does this URL name a server? */
bool idem__remote_url(const char *url);
extern const struct idem__carrier idem__server_carrier;
struct idem__remote;

struct idem_engine {
    const struct idem__carrier *carrier;
    struct idem__remote *remote; /* of the server's carrier */
    struct idem_options options;
    struct idem_store_options store_options;
    struct idem_store *store;
    struct idem__engine_inner inner;
    struct idem__queue queue;
    pthread_t thread;                 /* its own, if it is not driven */
    _Atomic pthread_t turner;         /* who took the last turn */
    _Atomic bool has_turner, in_turn; /* in_turn: of its turner's alone */
    struct idem__keeper *keepers;
    bool renewals_fail; /* and that was said */
    struct idem__timers timers;
    struct idem__parked parked;
    struct idem__recents recents;
    struct idem__claims claims;
    struct idem__epoch epoch;
    struct idem__quota quota;
    struct idem__kept_figures figures;
    struct idem__seal *seal;  /* NULL: nothing is sealed */
    struct idem_error closed; /* why a record did not open, as last logged */
    int64_t closed_us;        /* and when; 0: never */
    struct idem__item *spare_jobs; /* of the turner's alone */
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
    atomic_bool rolled_back; /* and nobody has accepted that */
    _Atomic int64_t stats_now_ms;
};

int64_t idem__boot_us(struct idem_engine *engine);

/* The most bytes of a result that are kept. */
size_t idem__max_result(const struct idem_engine *engine);

/* Call back with the answer in the job, or with an error. */
void idem__job_answer(struct idem_engine *engine, struct idem__job *job,
                      enum idem_status status, const struct idem_error *err);
void idem__job_drop(struct idem_engine *engine, struct idem__job *job);
void idem__jobs_close(struct idem_engine *engine);
/* Answer and drop. */
void idem__job_fail(struct idem_engine *engine, struct idem__job *job,
                    enum idem_status status, const struct idem_error *err);

/* queue.c: as idem_submit; the steps after this one are verbs.c's. */
enum idem_status idem__submit(struct idem_engine *engine,
                              const struct idem_op *op, enum idem__step step,
                              idem_done_fn *done, void *arg, uint64_t *ticket,
                              struct idem_error *err);
/* verbs.c: a step was answered. Take the next one, or call back. */
void idem__verb_answer(struct idem_engine *engine, struct idem__job *job,
                       enum idem_status status, const struct idem_error *err);
enum idem__step idem__verb_step(const struct idem_op *op, bool next);

/* How long a busy caller should stay away. */
int64_t idem__retry_after_ms(const struct idem_record *record,
                             const struct idem_now *now);

/* Put an item at the end of the queue, whatever the limits; false: closing. */
bool idem__queue_put(struct idem_engine *engine, struct idem__item *item);
bool idem__on_own_thread(const struct idem_engine *engine);
/* Move what waits to the inbox, unless a batch's worth is there already. */
void idem__queue_take(struct idem__queue *queue);
/* So many jobs are done with. True if something waits. */
bool idem__queue_done(struct idem__queue *queue, size_t count, size_t bytes);

/* The container of a member. */
#define IDEM__OF(pointer, type, member)                                        \
    ((type *)((char *)(pointer)-offsetof(type, member)))

void idem__scan_run(struct idem_engine *engine, struct idem__scan *scan);

/* Wait until *word is not 0; wake who waits. */
void idem__word_wait(atomic_int *word);
/* False: so long it was not set. */
bool idem__word_wait_for(atomic_int *word, int64_t ms);
void idem__word_set(atomic_int *word);

#endif
