/*
 * sweeper.h - removes expired records in the background, on a connection and a
 * thread of its own.
 *
 *   tend ──▶ every half second: the first connection removes one small batch
 *              │ the batch was full, so there is more
 *              ▼
 *            the sweeper's thread removes batch after batch until one is not
 *            full; between two it rests at least twice as long as the last one
 *            took
 *
 * While the owner stores many new records, the thread rests longer and removes
 * a tenth more than they are, so that it keeps up and takes no more of the
 * database than that needs. If it is still not done after a minute, because
 * there is an old backlog, it goes twice as fast, and so on.
 *
 * So a quiet service has neither the thread nor the connection, claims never
 * wait for more than one small batch, and what expires goes as quickly as it
 * came.
 */
#ifndef IDEM__SWEEPER_H
#define IDEM__SWEEPER_H

#include "store.h"

#include <stdatomic.h>

struct idem__sweeper {
    const struct idem_store_type *type;
    const char *url;                          /* the owner's */
    const struct idem_store_options *options; /* the owner's */
    struct idem_store *first;                 /* the owner's */
    struct idem_store *store;                 /* the thread's; NULL: not open */
    atomic_uint_fast64_t made; /* new records that the owner stored */
    pthread_t thread;
    bool running;
    pthread_mutex_t lock; /* guards all below */
    pthread_cond_t turn;
    bool closing;
    int64_t drop_ms;     /* 0: the thread has nothing to do */
    int64_t rest_end_us; /* the thread could not connect; until then the first
                          * connection sweeps alone */
    int64_t swept_at_us; /* by the first connection */
};

void idem__sweeper_open(struct idem__sweeper *sweeper,
                        const struct idem_store_type *type, const char *url,
                        const struct idem_store_options *options,
                        struct idem_store *first);
void idem__sweeper_close(struct idem__sweeper *sweeper);

/* How long the thread rests after a full batch that took `took_us`, if the
 * owner makes so many records in a second, and it has removed batch after batch
 * for `busy_us`. */
int64_t idem__sweeper_rest_us(int64_t took_us, double per_second,
                              int64_t busy_us);

/* On the engine's thread. alone: no further connection may be opened. */
void idem__sweeper_tend(struct idem__sweeper *sweeper, int64_t drop_ms,
                        bool alone);

#endif
