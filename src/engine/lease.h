/*
 * lease.h - computes when to renew a lease and when it is over.
 *
 *   asked      + a third                        + its length
 *     ├────────────┼─────────────────────────────────┤
 *   granted      ask again; without success        over
 *                again after a twelfth
 *
 * The time is counted from before the request was sent, on a clock that cannot
 * be set. So the lease ends here before it ends in the store, however long the
 * reply took.
 */
#ifndef IDEM__LEASE_H
#define IDEM__LEASE_H

#include <stdbool.h>
#include <stdint.h>

struct idem__lease {
    int64_t length_us;
    int64_t asked_us; /* when it was last requested */
    int64_t until_us; /* when it ends, as granted; 0: not granted yet */
};

/* The time after which to ask again, in the unit of the lease. */
static inline int64_t
idem__lease_third(int64_t length)
{
    return length < 3 ? 1 : length / 3;
}

static inline void
idem__lease_granted(struct idem__lease *lease)
{
    lease->until_us = lease->asked_us + lease->length_us;
}

/* When to request it again. */
static inline int64_t
idem__lease_due_us(const struct idem__lease *lease)
{
    int64_t third_us = idem__lease_third(lease->length_us);
    int64_t due_us = lease->until_us - lease->length_us + third_us;
    int64_t again_us = lease->asked_us + (third_us + 3) / 4;

    return due_us > again_us ? due_us : again_us;
}

static inline bool
idem__lease_ended(const struct idem__lease *lease, int64_t now_us)
{
    return now_us >= lease->until_us;
}

#endif
