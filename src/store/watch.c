/*
 * watch.c - starts, instructs and stops the thread of watch.h.
 */
#include "watch.h"

#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define ORDERS_MAX ((size_t)1 << 24)

void
idem__watcher_open(struct idem__watcher *watcher, struct idem_store *store,
                   size_t most, void (*run)(struct idem__watcher *watcher))
{
    watcher->store = store;
    watcher->most = most;
    watcher->run = run;
    watcher->bell = -1;
    pthread_mutex_init(&watcher->lock, NULL);
    idem_buf_init(&watcher->orders, ORDERS_MAX);
}

static void *
run_thread(void *arg)
{
    struct idem__watcher *watcher = arg;

    watcher->run(watcher);
    return NULL;
}

static bool
start(struct idem__watcher *watcher)
{
    if (watcher->running)
        return true;
    if (watcher->bell < 0)
        watcher->bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (watcher->bell < 0)
        return false;
    watcher->running =
        idem__thread_start(&watcher->thread, "idem-watch", run_thread, watcher);
    return watcher->running;
}

bool
idem__watcher_order(struct idem__watcher *watcher, const uint8_t *key, bool on,
                    size_t where)
{
    struct idem__watch_order order = {.on = on, .where = where};
    bool taken;

    if (atomic_load(&watcher->refused) || !start(watcher))
        return false;
    memcpy(order.key, key, IDEM_KEY_LEN);
    pthread_mutex_lock(&watcher->lock);
    taken = (!on || watcher->keys < watcher->most) &&
            idem_buf_add(&watcher->orders, &order, sizeof(order));
    if (on && taken)
        watcher->keys++;
    else if (!on)
        watcher->keys--;
    pthread_mutex_unlock(&watcher->lock);
    (void)eventfd_write(watcher->bell, 1);
    return taken;
}

void
idem__watcher_tend(struct idem__watcher *watcher, const char *text)
{
    if (watcher->said || !atomic_load(&watcher->refused))
        return;
    watcher->said = true;
    idem__log(&watcher->store->options, IDEM_LOG_WARNING, "%s", text);
}

bool
idem__watcher_take(struct idem__watcher *watcher, struct idem_buf *orders,
                   size_t *keys)
{
    struct idem_buf taken;
    eventfd_t rings;
    bool open;

    (void)eventfd_read(watcher->bell, &rings);
    idem_buf_reset(orders);
    pthread_mutex_lock(&watcher->lock);
    taken = watcher->orders;
    watcher->orders = *orders;
    *orders = taken;
    *keys = watcher->keys;
    open = !watcher->closing;
    pthread_mutex_unlock(&watcher->lock);
    return open;
}

void
idem__watcher_tell(struct idem__watcher *watcher, enum idem_news news,
                   const uint8_t *key)
{
    watcher->store->news(watcher->store->news_arg, news, key);
}

void
idem__watcher_close(struct idem__watcher *watcher)
{
    if (!watcher->run)
        return;
    pthread_mutex_lock(&watcher->lock);
    watcher->closing = true;
    pthread_mutex_unlock(&watcher->lock);
    if (watcher->running) {
        (void)eventfd_write(watcher->bell, 1);
        pthread_join(watcher->thread, NULL);
    }
    if (watcher->bell >= 0)
        close(watcher->bell);
    idem_buf_clear(&watcher->orders);
    pthread_mutex_destroy(&watcher->lock);
}
