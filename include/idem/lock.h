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
    /* NULL: a random one. The same owner may take it again. */
    const char *owner;
    int64_t lease_ms; /* 0: 30 s; renewed every third of it */
    int64_t wait_ms;  /* 0: do not wait */
    idem_lock_lost_fn *lost;
    void *lost_arg;
    uint64_t room[4];
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

#ifdef __cplusplus
}
#endif

#endif
