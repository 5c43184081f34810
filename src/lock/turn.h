/*
 * turn.h - a place in the queue of a lock, and functions that all locks use.
 */
#ifndef IDEM__TURN_H
#define IDEM__TURN_H

#include "../engine/inner.h"

#include <idem/lock.h>

struct idem__turn;

/* UNLOCK, retried for up to a lease while the row is locked by another
 * transaction, which usually ends in a moment. */
enum idem_status idem__unlock(struct idem_engine *engine,
                              const struct idem_op *op, int64_t lease_ms,
                              struct idem_answer *answer,
                              struct idem_error *err);

/* The rest of a wait that ends at this time of the boot clock. */
int64_t idem__wait_left_ms(struct idem_engine *engine, int64_t end_us);
enum idem_status idem__wait_cancelled(struct idem_error *err);

/*
 * Wait until all clients that came before have had their turn; after end_us on
 * the boot clock returns IDEM_ERR_TIMEOUT. Later clients wait until
 * idem__turn_give. An owner that has a name and already holds the lock `held`
 * (may be NULL) does not wait; *turn is then NULL.
 */
enum idem_status idem__turn_take(struct idem_engine *engine, const char *name,
                                 const char *held,
                                 const struct idem_lock_options *options,
                                 int64_t end_us, struct idem__turn **turn,
                                 struct idem_error *err);
void idem__turn_give(struct idem__turn *turn); /* NULL is fine */

#endif
