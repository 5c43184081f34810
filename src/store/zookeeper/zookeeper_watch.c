/*
 * zookeeper_watch.c - receives changes with a watch on the record's node.
 *
 * ZooKeeper fires a watch only once. After that the key is no longer watched,
 * and the engine watches it again if an operation still waits after the look.
 * The watch is set by EXISTS, which needs no permission to read. It belongs to
 * the session of the store's requests and ends with it.
 */
#include "zookeeper.h"

#include <stdlib.h>
#include <string.h>

/* The key that an answer to EXISTS is about. */
struct question {
    struct zk_store *self;
    uint8_t key[IDEM_KEY_LEN];
};

static void
tell(struct zk_store *self, enum idem_news news, const uint8_t *key)
{
    self->base.news(self->base.news_arg, news, key);
}

void
idem__zk_unwatched(struct zk_store *self)
{
    if (atomic_load(&self->watches))
        tell(self, IDEM_NEWS_UNWATCHED, NULL);
}

static void
on_change(zhandle_t *zh, int type, int state, const char *path, void *arg)
{
    struct zk_store *self = arg;
    const char *name = path ? strrchr(path, '/') : NULL;
    uint8_t key[IDEM_KEY_LEN];

    (void)zh;
    (void)state;
    if (type == ZOO_SESSION_EVENT || !name ||
        !idem__key_from_hex(name + 1, strlen(name + 1), key))
        return;
    tell(self, IDEM_NEWS_UNWATCHED, key);
    tell(self, IDEM_NEWS_CHANGED, key);
}

static void
on_watched(int rc, const struct Stat *stat, const void *arg)
{
    struct question *question = (struct question *)arg;

    (void)stat;
    tell(question->self,
         rc == ZOK || rc == ZNONODE ? IDEM_NEWS_WATCHED : IDEM_NEWS_UNWATCHED,
         question->key);
    free(question);
}

static void
ignore(int rc, const void *arg)
{
    (void)rc;
    (void)arg;
}

static bool
ask(struct zk_store *self, const char *path, const uint8_t *key)
{
    struct question *question = malloc(sizeof(*question));

    if (!question)
        return false;
    question->self = self;
    memcpy(question->key, key, IDEM_KEY_LEN);
    if (zoo_awexists(self->zh, path, on_change, self, on_watched, question) ==
        ZOK)
        return true;
    free(question);
    return false;
}

bool
idem__zk_watch(struct idem_store *store, const uint8_t key[IDEM_KEY_LEN],
               bool on)
{
    struct zk_store *self = (struct zk_store *)store;
    char path[ZK_PATH_MAX];

    if (!self->zh || !idem__zk_is_connected(self))
        return false;
    atomic_store(&self->watches, true);
    idem__zk_record_path(self, key, path);
    if (on)
        return ask(self, path, key);
    /* If the watch has already fired, the library has forgotten it and sends
     * nothing. The library declares the parameter as a pointer to the function
     * type but expects the function itself. */
    return zoo_aremove_watches(self->zh, path, ZWATCHTYPE_DATA, on_change, self,
                               0, (void_completion_t *)ignore, NULL) == ZOK;
}
