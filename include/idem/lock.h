/*
 * lock.h - one holder at a time, on every store.
 *
 * A lock is a lease. The library renews it in the background while you hold it,
 * and it ends by itself when the process that holds it is gone. Every time a
 * lock is taken, it gets a fence that is larger than all fences before. A
 * process that was paused or cut off may still believe that it holds a lock
 * whose lease has ended. So pass the fence with every write, and let the
 * resource refuse a fence that is lower than the highest one it has seen
 * (docs/locks.md).
 *
 * Threads: any thread may call idem_lock_fence and idem_lock_held while the
 * lock is held. One thread gives it back, once. Everything else: see the head
 * of record.h.
 */
#ifndef IDEM_LOCK_H
#define IDEM_LOCK_H

#include <idem/engine.h>
#include <signal.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The scope of the records of all locks. */
#define IDEM_LOCK_SCOPE "locks"

struct idem_lock;

/* Called at most once, on another thread, as soon as the lock is lost or it is
 * no longer certain that it is held. Stop the work then. */
typedef void idem_lock_lost_fn(void *arg, struct idem_lock *lock);

struct idem_lock_options {
    /* NULL: a random name. The same owner may take the lock several times. One
     * process counts that: the lock is free when it was given back as often. */
    const char *owner;
    int64_t lease_ms; /* 0: 30 s; renewed every third of it */
    int64_t wait_ms;  /* 0: do not wait */
    idem_lock_lost_fn *lost;
    void *lost_arg;
    /* NULL, or a number that a signal handler or another thread sets to another
     * value than 0. Then the wait ends with IDEM_ERR_CLOSED, without a lock. */
    const volatile sig_atomic_t *stop;
    /* Callers that wait get the lock in the order in which they came, in all
     * processes that share the store and set this, too. It costs six to ten
     * writes instead of two (docs/locks.md). */
    bool fair;
    uint64_t room[2];
};

/*
 * Take a lock. `options` may be NULL. IDEM_OK: you hold it until
 * idem_lock_give. IDEM_ERR_TIMEOUT: another owner held it during the whole
 * wait. Other errors are those of idem_do. After IDEM_ERR_LOST the lock may be
 * taken under this owner's name until its lease ends.
 */
IDEM_API enum idem_status
idem_lock_take(struct idem_engine *engine, const char *name,
               const struct idem_lock_options *options, struct idem_lock **lock,
               struct idem_error *err);

/* The fence of this lock. Pass it to the resource with every write. */
IDEM_API uint64_t idem_lock_fence(const struct idem_lock *lock);

/* False as soon as the lock is lost. True is not a guarantee, because the lease
 * may end right after this call; only the fence protects the resource. */
IDEM_API bool idem_lock_held(struct idem_lock *lock);

/*
 * Give a lock back. The handle is freed whatever this returns. IDEM_OK with
 * *lost true: the lock was lost before, so a part of the work was not
 * protected. `lost` may be NULL. A NULL lock does nothing.
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

/* Several locks that are taken and given back together. */
struct idem_locks;

/*
 * Take `count` locks, within options->wait_ms for all of them. IDEM_LOCK_ALL
 * takes up to IDEM_LOCKS_MAX names; the other modes take one name, and all
 * callers that use this name must pass the same `permits`. The rest is as in
 * idem_lock_take. After an error nothing is held and *locks is NULL.
 * options->lost is called at most once, with the lock that was lost.
 */
IDEM_API enum idem_status
idem_locks_take(struct idem_engine *engine, enum idem_lock_mode mode,
                const char *const *names, size_t count, uint32_t permits,
                const struct idem_lock_options *options,
                struct idem_locks **locks, struct idem_error *err);

/* The fence of the last lock of the list. The fence of a writer is larger than
 * the fences of all writers before it. */
IDEM_API uint64_t idem_locks_fence(const struct idem_locks *locks);

/* True if idem_lock_held is true for all of them. */
IDEM_API bool idem_locks_held(struct idem_locks *locks);

/* Give all of them back and free the handle, as idem_lock_give does. */
IDEM_API enum idem_status idem_locks_give(struct idem_locks *locks, bool *lost,
                                          struct idem_error *err);

#ifdef __cplusplus
}
#endif

#endif
