/*
 * turn.h - a place in the queue of a lock.
 */
#ifndef IDEM__TURN_H
#define IDEM__TURN_H

#include "../engine/inner.h"

#include <idem/lock.h>

struct idem__turn;

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
