/*
 * job.h - what waits in an engine's queue, and leases that are kept alive.
 *
 * Any thread puts items into the queue; the thread that takes the turns takes
 * them out.
 */
#ifndef IDEM__ENGINE_JOB_H
#define IDEM__ENGINE_JOB_H

#include "engine.h"
#include "lease.h"
#include "map.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/queue.h>

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
enum idem__part {
    IDEM__PART_LAST,  /* pass its answer to the caller */
    IDEM__PART_FIND,  /* among requests; a token may be found next */
    IDEM__PART_LOOK,  /* SETTLE, as a GET: find the record to settle */
    IDEM__PART_USE,   /* REDEEM, before a new token is issued */
    IDEM__PART_FRESH, /* the ISSUE of that token */
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
    enum idem__part part;
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

struct idem__asked_figures {
    struct idem__item item;
    idem_figure_fn *each;
    void *arg;
    atomic_int *woken; /* NULL: nobody waits, the figures are kept for later */
};

/* The store's figures at the time of the last request for them. */
#define IDEM__FIGURES_KEPT 32

struct idem__kept_figures {
    pthread_mutex_t lock;
    struct idem__asked_figures asks; /* in the queue, if `asked` */
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

#define IDEM__SPARE_CANCELS 64

struct idem__queue {
    pthread_mutex_t lock;
    pthread_cond_t wake;
    struct idem__item *first, **last;
    struct idem__item *inbox; /* taken from the queue; only the thread that
                               * takes turns uses it */
    size_t count, bytes;      /* waiting jobs, including those in the inbox */
    uint64_t tickets;
    size_t news; /* number of waiting news */
    /* For cancels when memory runs out; a bit of `spares_used` for each. */
    struct idem__cancel spares[IDEM__SPARE_CANCELS];
    uint64_t spares_used;
    bool closing;
    bool asleep; /* the engine's thread waits for `wake` */
};

#endif
