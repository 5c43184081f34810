/*
 * watch.h - the thread on which a store of other people's hears of changes
 * while somebody waits for them. The engine's thread gives it orders; it starts
 * with the first one.
 */
#ifndef IDEM__WATCH_H
#define IDEM__WATCH_H

#include "store.h"

#include <pthread.h>
#include <stdatomic.h>

/* With nobody waiting, connections are closed after this long. */
#define IDEM__WATCH_IDLE_MS 30000

struct idem__watch_order {
    uint8_t key[IDEM_KEY_LEN];
    bool on;
    size_t where; /* which of several servers has the key */
};

struct idem__watcher {
    struct idem_store *store;
    void (*run)(struct idem__watcher *watcher); /* all of the thread's work */
    pthread_mutex_t lock;
    pthread_t thread;
    int bell; /* readable when there is something to take */
    bool running, closing;
    struct idem_buf orders;
    size_t keys, most;   /* that are watched, as the engine knows it */
    atomic_bool refused; /* the server does not let this account */
    bool said;           /* and the log says so */
};

/* most: so many keys can be watched. */
void idem__watcher_open(struct idem__watcher *watcher, struct idem_store *store,
                        size_t most,
                        void (*run)(struct idem__watcher *watcher));
void idem__watcher_close(struct idem__watcher *watcher);

/* The engine's thread: watch a key, or no longer. False: that cannot be. */
bool idem__watcher_order(struct idem__watcher *watcher, const uint8_t *key,
                         bool on, size_t where);
/* The engine's thread: warn once if the server has refused. */
void idem__watcher_tend(struct idem__watcher *watcher, const char *text);

/* Its own thread: replace `orders` by all that wait, an array of the above; how
 * many keys are watched when they are carried out. False: the store closes. */
bool idem__watcher_take(struct idem__watcher *watcher, struct idem_buf *orders,
                        size_t *keys);
/* Its own thread: tell the engine; a key of NULL is all. */
void idem__watcher_tell(struct idem__watcher *watcher, enum idem_news news,
                        const uint8_t *key);

#endif
