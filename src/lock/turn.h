/*
 * turn.h - a place in the queue of a lock; and what all locks do.
 */
#ifndef IDEM__TURN_H
#define IDEM__TURN_H

#include "../engine/inner.h"

#include <idem/lock.h>

struct idem__turn;

/* UNLOCK, again and again for a lease while the row is locked: somebody's
 * transaction holds it, and lets it go in a moment. */
enum idem_status idem__unlock(struct idem_engine *engine,
                              const struct idem_op *op, int64_t lease_ms,
                              struct idem_answer *answer,
                              struct idem_error *err);

/*
 * Wait until everybody who came before has had his turn, until end_us on the
 * boot clock at the most: IDEM_ERR_TIMEOUT. Who comes later waits until
 * idem__turn_give. The owner, if it has a name and holds the lock `held` (may
 * be NULL) already, waits for nobody: then *turn is NULL.
 */
enum idem_status idem__turn_take(struct idem_engine *engine, const char *name,
                                 const char *held,
                                 const struct idem_lock_options *options,
                                 int64_t end_us, struct idem__turn **turn,
                                 struct idem_error *err);
void idem__turn_give(struct idem__turn *turn); /* NULL is fine */

#endif
