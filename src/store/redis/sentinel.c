/*
 * sentinel.c - redis+sentinel://: asks Sentinels which server is the primary.
 *
 * The hosts of the URL are Sentinels. A server counts as the primary if more
 * than half of them name it, so an old primary that came back, or one isolated
 * Sentinel, is not enough. The store asks them before every new connection to a
 * primary, when a write did not reach a replica, and every few seconds. The
 * connections to Sentinels stay open in between.
 */
#include "redis.h"

#include <stdlib.h>
#include <string.h>

#define ASK_AGAIN_US 5000000
#define REFRESH_US 200000 /* at most this often */

struct vote {
    struct redis_link *link;
    char host[256];
    int port;          /* 0: no answer */
    bool unknown;      /* it does not know a primary of this name */
    char refused[120]; /* what it said instead */
};

struct votes {
    struct vote list[REDIS_SENTINELS_MAX];
    size_t count;
};

static struct vote *
vote_of(struct votes *votes, const struct redis_link *link)
{
    for (size_t i = 0; i < votes->count; i++) {
        if (votes->list[i].link == link)
            return &votes->list[i];
    }
    return NULL;
}

static void
on_name(void *arg, struct redis_link *link, uint32_t tag,
        const redisReply *reply, bool sent)
{
    struct vote *vote = vote_of(arg, link);

    (void)tag;
    (void)sent;
    if (!vote || !reply)
        return;
    if (reply->type == REDIS_REPLY_ERROR) {
        snprintf(vote->refused, sizeof(vote->refused), "%.110s", reply->str);
    } else if (reply->type == REDIS_REPLY_NIL ||
               (reply->type == REDIS_REPLY_ARRAY && reply->elements == 0)) {
        vote->unknown = true;
    } else if (reply->type == REDIS_REPLY_ARRAY && reply->elements == 2 &&
               reply->element[0]->str && reply->element[1]->str) {
        snprintf(vote->host, sizeof(vote->host), "%s", reply->element[0]->str);
        vote->port = (int)strtol(reply->element[1]->str, NULL, 10);
    }
}

static void
ask_all(struct redis_store *self, int64_t deadline_us, struct votes *votes)
{
    struct idem_bytes words[3] = {{"SENTINEL", 8},
                                  {"get-master-addr-by-name", 23},
                                  idem_text(self->settings.primary_name)};
    struct redis_link *asked[REDIS_SENTINELS_MAX];

    for (size_t i = 0; i < self->sentinel_count; i++) {
        struct redis_link *link = self->sentinels[i];

        if (!idem__redis_link_ready(link, deadline_us) ||
            !idem__redis_link_add(link, 0, 3, words))
            continue;
        votes->list[votes->count] = (struct vote){.link = link};
        asked[votes->count++] = link;
    }
    idem__redis_links_run(asked, votes->count, deadline_us, on_name, votes);
}

/* The address that more than half of all Sentinels name, or NULL. */
static const struct vote *
elect(const struct redis_store *self, const struct votes *votes)
{
    for (size_t i = 0; i < votes->count; i++) {
        const struct vote *a = &votes->list[i];
        size_t same = 0;

        for (size_t j = 0; j < votes->count; j++) {
            const struct vote *b = &votes->list[j];

            same += a->port == b->port && strcmp(a->host, b->host) == 0;
        }
        if (a->port > 0 && same * 2 > self->sentinel_count)
            return a;
    }
    return NULL;
}

static bool
has_answered(const struct votes *votes, const struct redis_link *link)
{
    for (size_t i = 0; i < votes->count; i++) {
        const struct vote *vote = &votes->list[i];

        if (vote->link == link)
            return vote->port > 0 || vote->unknown || vote->refused[0];
    }
    return false;
}

/* "HOST:PORT: Connection refused": why a Sentinel did not answer. */
static const char *
cause_of(const struct redis_link *link)
{
    const char *text = link->why.text;

    return strncmp(text, "redis ", 6) == 0 ? text + 6 : text;
}

/* The error if there is no majority; a cause that an operator must fix comes
 * first. */
static enum idem_status
explain(const struct redis_store *self, const struct votes *votes,
        struct idem_error *err)
{
    size_t named = 0;
    const char *why = "";

    for (size_t i = 0; i < self->sentinel_count && !*why; i++) {
        if (!has_answered(votes, self->sentinels[i]))
            why = cause_of(self->sentinels[i]);
    }
    for (size_t i = 0; i < votes->count; i++) {
        const struct vote *vote = &votes->list[i];
        const struct redis_link *link = vote->link;

        if (vote->unknown)
            return idem__fail(err, IDEM_ERR_UNSUPPORTED,
                              "redis %s:%d: this Sentinel monitors no primary "
                              "named \"%s\": name it as in its configuration",
                              link->host, link->port,
                              self->settings.primary_name);
        if (strstr(vote->refused, "unknown command"))
            return idem__fail(err, IDEM_ERR_UNSUPPORTED,
                              "redis %s:%d: this is not a Sentinel: name the "
                              "Sentinels' port (often 26379), or use redis://",
                              link->host, link->port);
        if (vote->refused[0])
            return idem__fail(err, IDEM_ERR_UNAVAILABLE, "redis %s:%d: %s",
                              link->host, link->port, vote->refused);
        named += vote->port > 0;
    }
    if (*why && named == 0 && idem__store_refuses_login(why))
        return idem__fail(err, IDEM_ERR_UNAVAILABLE, "redis %s", why);
    if (*why && named == 0)
        return idem__fail(err, IDEM_ERR_UNAVAILABLE,
                          "redis: none of the %zu Sentinels could be reached "
                          "(%.110s); start them, or correct the addresses in "
                          "the store's URL",
                          self->sentinel_count, why);
    return idem__fail(err, IDEM_ERR_UNAVAILABLE,
                      "redis: %zu of %zu Sentinels name a primary \"%.40s\", "
                      "and more than half must name the same one%s%.70s%s",
                      named, self->sentinel_count, self->settings.primary_name,
                      *why ? "; start the others (" : "; wait until they agree",
                      why, *why ? ")" : "");
}

static bool
ask(struct redis_store *self, int64_t deadline_us, struct idem_error *err)
{
    struct votes votes = {.count = 0};
    const struct vote *elected;
    struct redis_link *link;

    self->map_us = idem__mono_us();
    self->map_stale = true;
    self->no_primary.text[0] = 0;
    ask_all(self, deadline_us, &votes);
    elected = elect(self, &votes);
    if (!elected) {
        explain(self, &votes, &self->no_primary);
        if (err)
            *err = self->no_primary;
        return false;
    }
    link = idem__redis_route_node(self, elected->host, elected->port);
    if (!link) {
        idem__fail(err, IDEM_ERR_MEMORY, "redis: out of memory");
        return false;
    }
    for (size_t i = 0; i < self->link_count; i++) {
        if (self->links[i] == link)
            self->primary = i;
        else
            idem__redis_link_drop(self->links[i], NULL);
    }
    self->map_stale = false;
    return true;
}

struct redis_link *
idem__redis_sentinel_primary(struct redis_store *self, int64_t deadline_us,
                             struct idem_error *err)
{
    struct redis_link *link =
        self->link_count > 0 ? self->links[self->primary] : NULL;
    int64_t age_us = idem__mono_us() - self->map_us;

    if (!link || !link->context || self->map_stale || age_us > ASK_AGAIN_US) {
        if (self->map_us != 0 && self->map_stale && age_us < REFRESH_US) {
            if (self->no_primary.text[0])
                idem__fail(err, IDEM_ERR_UNAVAILABLE, "%s",
                           self->no_primary.text);
            else
                idem__fail(err, IDEM_ERR_UNAVAILABLE,
                           "redis: no primary \"%s\" was found a moment ago",
                           self->settings.primary_name);
            return NULL;
        }
        if (!ask(self, deadline_us, err))
            return NULL;
        link = self->links[self->primary];
    }
    return link;
}
