/*
 * lock.h - one holder at a time, on every store.
 *
 * A lock is a lease: it is renewed in the background while it is held and ends
 * by itself when its holder is gone. Every acquisition has a fence, larger than
 * all before it. A paused or cut-off holder can believe it still holds a lock
 * that ended: let the resource that you protect refuse a fence lower than the
 * highest it has seen (docs/locks.md).
 *
 * Threads: a lock may be asked about from any thread while it is held. One
 * thread gives it back, once. For the rest see the head of record.h.
 */
#ifndef IDEM_LOCK_H
#define IDEM_LOCK_H

#include <idem/engine.h>
#include <signal.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The scope of every lock's record, on every surface. */
#define IDEM_LOCK_SCOPE "locks"

struct idem_lock;

/* Called once, on another thread, at once when the lock is known to be lost or
 * can no longer be known to be held. Stop the work. */
typedef void idem_lock_lost_fn(void *arg, struct idem_lock *lock);

struct idem_lock_options {
    /* NULL: a random one. The same owner may take it again: in one process
     * that is counted, the lock is free when it was given back as often. */
    const char *owner;
    int64_t lease_ms; /* 0: 30 s; renewed every third of it */
    int64_t wait_ms;  /* 0: do not wait */
    idem_lock_lost_fn *lost;
    void *lost_arg;
    /* NULL, or a number that a signal handler or another thread sets to stop
     * the wait: then nothing is taken, IDEM_ERR_CLOSED. */
    const volatile sig_atomic_t *stop;
    /* Serve those who wait in the order in which they came, in all processes
     * that share the store and ask for it too. Costs six to ten writes instead
     * of two (docs/locks.md). */
    bool fair;
    uint64_t room[2];
};

/*
 * Take a lock. Options may be NULL. IDEM_OK: it is held until idem_lock_give.
 * IDEM_ERR_TIMEOUT: somebody else held it until the wait was over. Other errors
 * as idem_do's; after IDEM_ERR_LOST the lock may be held for one lease under
 * the owner's name.
 */
IDEM_API enum idem_status
idem_lock_take(struct idem_engine *engine, const char *name,
               const struct idem_lock_options *options, struct idem_lock **lock,
               struct idem_error *err);

/* Hand this to the resource with every write. */
IDEM_API uint64_t idem_lock_fence(const struct idem_lock *lock);

/* False once it is lost. True is an opinion, not a guarantee: see above. */
IDEM_API bool idem_lock_held(struct idem_lock *lock);

/*
 * Give it back and forget it; the handle is gone whatever this returns. IDEM_OK
 * with *lost (which may be NULL): it had been lost before, and what was done
 * last was not under the lock. A NULL lock is fine.
 */
IDEM_API enum idem_status idem_lock_give(struct idem_lock *lock, bool *lost,
                                         struct idem_error *err);

/* ---- several at once, permits, readers and a writer -------------------- */

#define IDEM_LOCKS_MAX 64

enum idem_lock_mode {
    IDEM_LOCK_ALL,    /* every lock of the list */
    IDEM_LOCK_PERMIT, /* a semaphore: at most `permits` holders at once */
    IDEM_LOCK_READ,   /* together with at most permits - 1 other readers */
    IDEM_LOCK_WRITE,  /* alone; readers that come later wait */
};

struct idem_locks;

/*
 * Take them, within options->wait_ms altogether. Everybody who names a lock
 * with permits, readers or a writer must say the same number; other modes than
 * IDEM_LOCK_ALL have one name. Otherwise as idem_lock_take; after an error
 * nothing is held and *locks is NULL. options->lost is called once, with the
 * part that was lost.
 */
IDEM_API enum idem_status
idem_locks_take(struct idem_engine *engine, enum idem_lock_mode mode,
                const char *const *names, size_t count, uint32_t permits,
                const struct idem_lock_options *options,
                struct idem_locks **locks, struct idem_error *err);

/* Of the last lock of the list; of a writer: larger than that of every writer
 * before it. */
IDEM_API uint64_t idem_locks_fence(const struct idem_locks *locks);

/* Are all of them held? As idem_lock_held. */
IDEM_API bool idem_locks_held(struct idem_locks *locks);

/* Give all of them back, as idem_lock_give. */
IDEM_API enum idem_status idem_locks_give(struct idem_locks *locks, bool *lost,
                                          struct idem_error *err);

#ifdef __cplusplus
}
#endif

#endif
