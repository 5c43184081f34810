/*
 * sweeper.h - removes expired records in the background, on a connection and a
 * thread of its own.
 *
 *   tend ──▶ every half second: the first connection removes one small batch
 *              │ the batch was full, so there is more
 *              ▼
 *            the sweeper's thread removes batch after batch until one is not
 *            full, and rests between two for twice the time of the last
 *
 * So a quiet service has neither the thread nor the connection, claims never
 * wait for more than one small batch, and what expires goes as quickly as it
 * came.
 */
#ifndef IDEM__SWEEPER_H
#define IDEM__SWEEPER_H

#include "store.h"

struct idem__sweeper {
    const struct idem_store_type *type;
    const char *url;                          /* the owner's */
    const struct idem_store_options *options; /* the owner's */
    struct idem_store *first;                 /* the owner's */
    struct idem_store *store;                 /* the thread's; NULL: not open */
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

/* On the engine's thread. alone: no further connection may be opened. */
void idem__sweeper_tend(struct idem__sweeper *sweeper, int64_t drop_ms,
                        bool alone);

#endif
