/*
 * redis_watch.c - receives changes: each record has a channel with its name.
 *
 * The engine that ends a record publishes on its channel, after the swap and
 * the WAIT of the same pipeline (redis_batch.c). An engine that waits for the
 * record subscribes, on a separate connection to the server that holds the
 * record. The channels are sharded: a cluster keeps a channel with the slot of
 * the record's name instead of informing every server, and moves it together
 * with the slot.
 */
#include "redis.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>

/* Exists once, on the watcher's own thread. */
struct ears {
    struct redis_store *self;
    struct redis_link *links[REDIS_NODES_MAX]; /* in the store's order */
    size_t unsubscribing; /* number of confirmations still to come */
};

/* The account may not use these commands or channels, or the server does not
 * have them. Messages are then not received. */
static bool
is_refusal(const char *text)
{
    return strncmp(text, "NOPERM", 6) == 0 ||
           strstr(text, "unknown command") != NULL;
}

void
idem__redis_on_publish(struct redis_store *self, const redisReply *reply)
{
    if (reply && reply->type == REDIS_REPLY_ERROR && is_refusal(reply->str))
        atomic_store(&self->watcher.refused, true);
}

static void
on_probe(void *arg, struct redis_link *link, uint32_t tag,
         const redisReply *reply, bool sent)
{
    (void)link;
    (void)tag;
    (void)sent;
    idem__redis_on_publish(arg, reply);
}

static bool
add(struct redis_link *link, const char *command, struct idem_bytes channel)
{
    return idem__redis_link_add(
        link, REDIS_TAG_NONE, 2,
        (struct idem_bytes[]){idem_text(command), channel});
}

/* Connect, and test whether this account may publish, before subscribing: a
 * subscriber no longer can. */
static bool
is_ready(struct ears *ears, struct redis_link *link, struct idem_bytes channel)
{
    struct redis_store *self = ears->self;
    int64_t until_us = idem__redis_deadline(self);
    struct idem_bytes probe[3] = {{"SPUBLISH", 8}, channel, {"", 0}};

    if (link->context)
        return true;
    if (!idem__redis_link_ready(link, until_us))
        return false;
    if (idem__redis_link_add(link, REDIS_TAG_NONE, 3, probe))
        idem__redis_links_run(&link, 1, until_us, on_probe, self);
    return link->context && !atomic_load(&self->watcher.refused);
}

static void
carry_out(struct ears *ears, const struct idem__watch_order *order)
{
    struct redis_store *self = ears->self;
    struct redis_link **link = &ears->links[order->where];
    const struct redis_link *like = self->links[order->where];
    char name[REDIS_NAME_MAX];
    struct idem_bytes channel = {name,
                                 idem__redis_name(self, order->key, name)};
    bool ok;

    if (!*link)
        *link = idem__redis_link_new(&self->settings, like->host, like->port);
    if (*link)
        (*link)->listens = true;
    if (!order->on) {
        if (*link && (*link)->context && add(*link, "SUNSUBSCRIBE", channel))
            ears->unsubscribing++;
        return;
    }
    ok = *link && is_ready(ears, *link, channel) &&
         add(*link, "SSUBSCRIBE", channel);
    if (!ok)
        idem__watcher_tell(&self->watcher, IDEM_NEWS_UNWATCHED, order->key);
}

/* ---- messages --------------------------------------------------------- */

static void
hear(struct ears *ears, const redisReply *reply)
{
    struct redis_store *self = ears->self;
    size_t prefix = strlen(self->settings.prefix);
    const char *word, *channel;
    uint8_t key[IDEM_KEY_LEN];

    if (reply->type == REDIS_REPLY_ERROR) {
        /* The error (for example MOVED) does not say for which channel. */
        idem__redis_on_publish(self, reply);
        idem__watcher_tell(&self->watcher, IDEM_NEWS_UNWATCHED, NULL);
        return;
    }
    if (reply->type != REDIS_REPLY_ARRAY || reply->elements != 3 ||
        reply->element[0]->type != REDIS_REPLY_STRING ||
        reply->element[1]->type != REDIS_REPLY_STRING)
        return;
    word = reply->element[0]->str;
    channel = reply->element[1]->str;
    if (reply->element[1]->len < prefix ||
        !idem__key_from_hex(channel + prefix, reply->element[1]->len - prefix,
                            key))
        return;
    if (strcmp(word, "smessage") == 0)
        idem__watcher_tell(&self->watcher, IDEM_NEWS_CHANGED, key);
    else if (strcmp(word, "ssubscribe") == 0)
        idem__watcher_tell(&self->watcher, IDEM_NEWS_WATCHED, key);
    else if (ears->unsubscribing > 0)
        ears->unsubscribing--;
    else /* the slot moved to another server */
        idem__watcher_tell(&self->watcher, IDEM_NEWS_UNWATCHED, key);
}

static void
hear_all(struct ears *ears, struct redis_link *link, short ready)
{
    void *reply = NULL;

    idem__redis_link_move(link, ready);
    while (link->context &&
           redisReaderGetReply(link->context->reader, &reply) == REDIS_OK &&
           reply) {
        hear(ears, reply);
        freeReplyObject(reply);
    }
    if (link->context && link->context->reader->err)
        idem__redis_link_drop(link, "unexpected reply");
    if (link->context)
        return;
    ears->unsubscribing = 0;
    idem__watcher_tell(&ears->self->watcher, IDEM_NEWS_UNWATCHED, NULL);
}

/* Sleep until an order or a message comes; false: none came for a long time. */
static bool
listen_once(struct ears *ears)
{
    struct pollfd polls[1 + REDIS_NODES_MAX];
    struct redis_link *open[1 + REDIS_NODES_MAX];
    nfds_t count = 1;
    int events;

    polls[0] = (struct pollfd){ears->self->watcher.bell, POLLIN, 0};
    for (size_t i = 0; i < REDIS_NODES_MAX; i++) {
        struct redis_link *link = ears->links[i];
        short want = POLLIN;

        if (!link || !link->context)
            continue;
        if (link->written < link->out.len)
            want |= POLLOUT;
        open[count] = link;
        polls[count++] = (struct pollfd){link->context->fd, want, 0};
    }
    events = poll(polls, count, IDEM__WATCH_IDLE_MS);
    for (nfds_t i = 1; events > 0 && i < count; i++) {
        if (polls[i].revents != 0)
            hear_all(ears, open[i], polls[i].revents);
    }
    return events != 0;
}

static void
close_ears(struct ears *ears)
{
    for (size_t i = 0; i < REDIS_NODES_MAX; i++) {
        idem__redis_link_delete(ears->links[i]);
        ears->links[i] = NULL;
    }
    ears->unsubscribing = 0;
}

void
idem__redis_listen(struct idem__watcher *watcher)
{
    struct ears ears = {.self = (struct redis_store *)watcher->store};
    struct idem_buf orders;
    size_t keys;

    idem_buf_init(&orders, watcher->orders.cap);
    while (idem__watcher_take(watcher, &orders, &keys)) {
        const struct idem__watch_order *order = (const void *)orders.data;

        for (size_t i = 0; i < orders.len / sizeof(*order); i++)
            carry_out(&ears, &order[i]);
        if (!listen_once(&ears) && keys == 0)
            close_ears(&ears);
    }
    close_ears(&ears);
    idem_buf_clear(&orders);
}

bool
idem__redis_watch(struct idem_store *store, const uint8_t key[IDEM_KEY_LEN],
                  bool on)
{
    struct redis_store *self = (struct redis_store *)store;
    size_t where = idem__redis_place(self, key);

    return where != REDIS_NO_NODE &&
           idem__watcher_order(&self->watcher, key, on, where);
}
