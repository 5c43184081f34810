/*
 * watch.h - the thread on which a shared store receives changes while
 * operations wait for them. The engine's thread gives it orders; the thread
 * starts with the first order.
 */
#ifndef IDEM__WATCH_H
#define IDEM__WATCH_H

#include "store.h"

#include <pthread.h>
#include <stdatomic.h>

/* If nothing is watched for this long, connections are closed. */
#define IDEM__WATCH_IDLE_MS 30000

struct idem__watch_order {
    uint8_t key[IDEM_KEY_LEN];
    bool on;
    size_t where; /* which of several servers has the key */
};

struct idem__watcher {
    struct idem_store *store;
    void (*run)(struct idem__watcher *watcher); /* the thread's work */
    pthread_mutex_t lock;
    pthread_t thread;
    int bell; /* readable when orders are waiting */
    bool running, closing;
    struct idem_buf orders;
    size_t keys, most;   /* watched keys, as the engine knows; their maximum */
    atomic_bool refused; /* the server does not allow it for this account */
    bool said;           /* that was logged */
};

/* most: the maximum number of watched keys. */
void idem__watcher_open(struct idem__watcher *watcher, struct idem_store *store,
                        size_t most,
                        void (*run)(struct idem__watcher *watcher));
void idem__watcher_close(struct idem__watcher *watcher);

/* On the engine's thread: start or stop watching a key. False: not possible. */
bool idem__watcher_order(struct idem__watcher *watcher, const uint8_t *key,
                         bool on, size_t where);
/* On the engine's thread: log a warning once if the server has refused. */
void idem__watcher_tend(struct idem__watcher *watcher, const char *text);

/* On the watcher's thread: replace `orders` by all waiting orders, an array of
 * the above. *keys is the number of watched keys after they are carried out.
 * False: the store closes. */
bool idem__watcher_take(struct idem__watcher *watcher, struct idem_buf *orders,
                        size_t *keys);
/* On the watcher's thread: notify the engine; a key of NULL means all keys. */
void idem__watcher_tell(struct idem__watcher *watcher, enum idem_news news,
                        const uint8_t *key);

#endif
