/*
 * redis.c - redis:// and redis+cluster://: records in Redis.
 *
 *   redis://[user[:password]@]host[:port][,host[:port]...][/db][?options]
 *   redis+cluster://[user[:password]@]host[:port][,...][?options]
 *   redis+sentinel://[user[:password]@]host[:port][,...]/name[/db][?options]
 *   rediss://, rediss+cluster://, rediss+sentinel://: encrypted (base/tls.c)
 *
 *   replicas=N      replicas that must have a write before it counts; default:
 *                   1 with Sentinels, with several hosts, or if there is a
 *                   replica at start, else 0
 *   sentinel_password=...  for the Sentinels; user and password in the URL are
 *                          for the servers
 *   wait_ms=500     how long a write may take to reach the replicas
 *   prefix=idem:    the beginning of every name
 *   connect_ms=1000, timeout_ms=2000
 *   unsafe=everysec accept the loss of up to 2 s of answers at a power cut
 *   unsafe=forget   accept the loss of all records at a restart; no strict mode
 *   unsafe=unseen   appendfsync cannot be read; the operator vouches for it
 *
 * A record is one string, named by its key in hex. Redis drops it by itself,
 * IDEM__DROP_MARGIN_MS after it expired, and never while it is executing.
 * docs/stores.md says what this store promises.
 */
#include "redis.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_PORT 6379
#define SENTINEL_PORT 26379

/* SHA-1 of idem__redis_script; a test compares it with that of a server. */
const char *const idem__redis_script_sha =
    "ab1ff4ee0a7aad067a42ef714ed65d9315eb331f";

static enum idem_status
swap_batch(struct idem_store *store, struct idem_swap *swaps, size_t count,
           struct idem_arena *arena, struct idem_error *err)
{
    return idem__redis_swap_batch((struct redis_store *)store, swaps, count,
                                  arena, err);
}

static enum idem_status
load_batch(struct idem_store *store, struct idem_load *loads, size_t count,
           struct idem_arena *arena, struct idem_error *err)
{
    return idem__redis_load_batch((struct redis_store *)store, loads, count,
                                  arena, err);
}

int64_t
idem__redis_deadline(const struct redis_store *self)
{
    return idem__mono_us() + self->settings.timeout_ms * 1000;
}

/* ---- the clock ------------------------------------------------------- */

static void
on_time(void *arg, struct redis_link *link, uint32_t tag,
        const redisReply *reply, bool sent)
{
    int64_t *now_us = arg;

    (void)link;
    (void)tag;
    (void)sent;
    if (reply && reply->type == REDIS_REPLY_ARRAY && reply->elements == 2 &&
        reply->element[0]->str && reply->element[1]->str)
        *now_us = strtoll(reply->element[0]->str, NULL, 10) * 1000000 +
                  strtoll(reply->element[1]->str, NULL, 10);
}

static enum idem_status
read_clock(struct idem_store *store, int64_t *now_us, struct idem_error *err)
{
    struct redis_store *self = (struct redis_store *)store;
    int64_t until_us = idem__redis_deadline(self), read_us = 0;
    struct idem_error why;
    struct redis_link *link = idem__redis_route_clock(self, until_us, &why);

    if (!link)
        return idem__fail(err, IDEM_ERR_UNAVAILABLE, "%s", why.text);
    if (idem__redis_link_add_text(link, 0, "TIME"))
        idem__redis_links_run(&link, 1, until_us, on_time, &read_us);
    if (read_us == 0)
        return idem__fail(err, IDEM_ERR_UNAVAILABLE,
                          "redis %s:%d: no reply to TIME", link->host,
                          link->port);
    *now_us = read_us;
    return IDEM_OK;
}

/* ---- tend ------------------------------------------------------------ */

static void
say_if_full(struct redis_store *self, struct redis_link *link)
{
    bool full = idem__redis_facts_full(&link->facts);

    if (full && !link->said_full)
        idem__log(&self->base.options, IDEM_LOG_WARNING,
                  "redis %s:%d: %lld of maxmemory's %lld bytes are used; new "
                  "requests are refused (FULL) until there is room, requests "
                  "that are executing can still finish",
                  link->host, link->port, (long long)link->facts.used_memory,
                  (long long)link->facts.max_memory);
    link->said_full = full;
}

static void
tend(struct idem_store *store, int64_t drop_ms)
{
    struct redis_store *self = (struct redis_store *)store;
    int64_t until_us = idem__redis_deadline(self);
    struct idem_error err;

    (void)drop_ms;
    idem__watcher_tend(
        &self->watcher,
        "redis: this account may not publish and subscribe, so callers that "
        "wait for another engine's request poll every 50 ms: give it +spublish "
        "+ssubscribe +sunsubscribe and the channels of its prefix");
    if (self->slots && self->map_stale &&
        idem__mono_us() - self->map_us > 1000000)
        (void)idem__redis_route_refresh(self, until_us, &err);
    for (size_t i = 0; i < self->link_count; i++) {
        struct redis_link *link = self->links[i];

        if (link->context && link->judged &&
            !idem__redis_link_ready(link, until_us))
            idem__log(&self->base.options, IDEM_LOG_ALARM, "%s",
                      link->why.text);
        if (link->judged)
            say_if_full(self, link);
    }
}

static void
figures(struct idem_store *store, idem_figure_fn *each, void *arg)
{
    struct redis_store *self = (struct redis_store *)store;
    double open = 0, full = 0;

    for (size_t i = 0; i < self->link_count; i++) {
        open += self->links[i]->context != NULL;
        full += idem__redis_facts_full(&self->links[i]->facts);
    }
    each(arg, "redis_connections", open);
    each(arg, "redis_full", full);
    each(arg, "redis_may_forget", self->settings.accept_forget);
    each(arg, "redis_connects_total", (double)self->connects);
    each(arg, "redis_swaps_total", (double)self->swaps);
    each(arg, "redis_refused_total", (double)self->refused);
    each(arg, "redis_lost_total", (double)self->lost);
    each(arg, "redis_redirected_total", (double)self->redirected);
    each(arg, "redis_wait_short_total", (double)self->wait_short);
    each(arg, "redis_replicas_required", (double)idem__redis_replicas(self));
}

/* ---- open and close -------------------------------------------------- */

static void
close_store(struct idem_store *store)
{
    struct redis_store *self = (struct redis_store *)store;

    idem__watcher_close(&self->watcher);
    for (size_t i = 0; i < self->link_count; i++)
        idem__redis_link_delete(self->links[i]);
    for (size_t i = 0; i < self->sentinel_count; i++)
        idem__redis_link_delete(self->sentinels[i]);
    idem__tls_close(self->settings.tls);
    idem__url_clear(&self->settings.url);
    free(self->slots);
}

static enum idem_status
read_unsafe(struct redis_settings *settings, struct idem_error *err)
{
    const char *unsafe = idem__url_option(&settings->url, "unsafe");

    while (unsafe && *unsafe) {
        size_t len = strcspn(unsafe, ",");

        if (len == 8 && strncmp(unsafe, "everysec", len) == 0)
            settings->accept_everysec = true;
        else if (len == 6 && strncmp(unsafe, "unseen", len) == 0)
            settings->accept_unseen = true;
        else if (len == 6 && strncmp(unsafe, "forget", len) == 0)
            settings->accept_forget = true;
        else
            return idem__fail(err, IDEM_ERR_INVALID,
                              "redis: unsafe is everysec, forget or unseen");
        unsafe += len + (unsafe[len] == ',');
    }
    return IDEM_OK;
}

/* "/name" or "/name/db": removes the name and leaves the database. */
static enum idem_status
read_primary_name(struct redis_settings *settings, const char **db,
                  struct idem_error *err)
{
    const char *name = settings->url.path ? settings->url.path : "";
    size_t len = strcspn(name, "/");

    if (len == 0 || len >= sizeof(settings->primary_name) ||
        strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                     "0123456789._-") < len)
        return idem__fail(err, IDEM_ERR_INVALID,
                          "redis: name the primary as the Sentinels do: "
                          "redis+sentinel://host,host,host/mymaster");
    memcpy(settings->primary_name, name, len);
    *db = name[len] == '/' ? name + len + 1 : NULL;
    if (settings->url.host_count > REDIS_SENTINELS_MAX)
        return idem__fail(err, IDEM_ERR_INVALID,
                          "redis: name at most %d Sentinels",
                          REDIS_SENTINELS_MAX);
    if (settings->replicas == 0)
        return idem__fail(
            err, IDEM_ERR_INVALID,
            "redis: replicas=0 with Sentinels: a failover would "
            "forget records and run requests twice; set replicas= to the "
            "number of replicas");
    return IDEM_OK;
}

static enum idem_status
read_names(struct redis_settings *settings, struct idem_error *err)
{
    const char *prefix = idem__url_option(&settings->url, "prefix");
    const char *db = settings->url.path;
    enum idem_status status = IDEM_OK;
    char *end = NULL;

    if (settings->sentinel)
        status = read_primary_name(settings, &db, err);
    if (status != IDEM_OK)
        return status;
    prefix = prefix ? prefix : "idem:";
    if (strlen(prefix) >= sizeof(settings->prefix) ||
        strspn(prefix, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                       "0123456789:._-") != strlen(prefix))
        return idem__fail(err, IDEM_ERR_INVALID,
                          "redis: a prefix is up to 64 letters, digits, "
                          "\":\", \".\", \"_\" and \"-\"");
    snprintf(settings->prefix, sizeof(settings->prefix), "%s", prefix);
    if (!db)
        return IDEM_OK;
    settings->db = (int)strtol(db, &end, 10);
    if (settings->cluster || !isdigit((unsigned char)*db) || *end != 0)
        return idem__fail(err, IDEM_ERR_INVALID,
                          settings->cluster
                              ? "redis: a cluster has no numbered databases"
                              : "redis: \"/%s\" is not a database number",
                          db);
    return IDEM_OK;
}

/* mysql:// and etcd:// have this option. */
static bool
is_about_tls(const struct idem_error *err)
{
    return strstr(err->text, "\": there is no option \"tls\"");
}

static enum idem_status
read_settings(const char *url, struct redis_settings *settings,
              struct idem_error *err)
{
    static const char *const known[] = {
        "replicas", "wait_ms", "prefix", "connect_ms", "timeout_ms",
        "unsafe",   "ca",      "cert",   "key",        "sentinel_password",
        NULL};
    bool tls = strncmp(url, "rediss", 6) == 0;
    int64_t replicas = -1;
    const struct idem__url_range numbers[] = {
        {"replicas", 0, 10, -1, &replicas},
        {"wait_ms", 1, 10000, 500, &settings->wait_ms},
        {"connect_ms", 1, 60000, 1000, &settings->connect_ms},
        {"timeout_ms", 1, 60000, 2000, &settings->timeout_ms},
        {0}};
    enum idem_status status;

    settings->sentinel = strncmp(url + 5 + tls, "+sentinel:", 10) == 0;
    status =
        idem__url_parse(url, settings->sentinel ? SENTINEL_PORT : DEFAULT_PORT,
                        known, &settings->url, err);
    if (status == IDEM_OK)
        status = idem__url_numbers(&settings->url, numbers, err);
    else if (status == IDEM_ERR_INVALID && err && is_about_tls(err))
        status = idem__fail(err, IDEM_ERR_INVALID,
                            "redis: for TLS write rediss%.*s://, without the "
                            "option tls",
                            (int)strcspn(url + 5 + tls, ":"), url + 5 + tls);
    /* Several hosts are given for a failover, which loses what no replica
     * has. */
    if (replicas < 0 && !settings->cluster &&
        (settings->sentinel || settings->url.host_count > 1))
        replicas = 1;
    settings->replicas = (int)replicas;
    if (status == IDEM_OK)
        status = read_names(settings, err);
    if (status == IDEM_OK)
        status = read_unsafe(settings, err);
    if (status == IDEM_OK && tls)
        status = idem__tls_open_client("rediss: ", &settings->url,
                                       &settings->tls, err);
    else if (status == IDEM_OK && (idem__url_option(&settings->url, "ca") ||
                                   idem__url_option(&settings->url, "cert") ||
                                   idem__url_option(&settings->url, "key")))
        status = idem__fail(err, IDEM_ERR_INVALID,
                            "redis: ca, cert and key are for rediss://, "
                            "rediss+cluster:// and rediss+sentinel://");
    return status;
}

/* Check every server that will hold records before the first record is
 * written. */
static enum idem_status
first_look(struct redis_store *self, struct idem_error *err)
{
    enum idem_status status;
    struct idem_error why = {0};
    unsigned slot = 0, next;
    int most = 0;

    if (!self->slots) {
        struct redis_link *link =
            idem__redis_route_clock(self, idem__redis_deadline(self), &why);

        if (err)
            *err = why;
        if (!link)
            return why.status;
        most = link->facts.replicas;
        slot = REDIS_SLOTS;
    } else {
        status =
            idem__redis_route_refresh(self, idem__redis_deadline(self), err);
        if (status != IDEM_OK)
            return status;
    }
    for (; slot < REDIS_SLOTS; slot = next) {
        struct redis_link *link = idem__redis_route_slot(self, slot, &next);

        if (link && !idem__redis_link_ready(link, idem__redis_deadline(self))) {
            if (err)
                *err = link->why;
            return link->why.status;
        }
        if (link && link->facts.replicas > most)
            most = link->facts.replicas;
    }
    if (self->settings.replicas < 0)
        self->settings.replicas = most > 0 ? 1 : 0;
    return IDEM_OK;
}

/* Said once, for all nodes. */
static void
warn_of_moves(const struct redis_store *self)
{
    const struct redis_link *first = NULL;
    char more[32] = "";
    unsigned count = 0;

    for (size_t i = 0; self->slots && i < self->link_count; i++) {
        if (!self->links[i]->facts.moves)
            continue;
        first = first ? first : self->links[i];
        count++;
    }
    if (!first)
        return;
    if (count > 1)
        snprintf(more, sizeof(more), " and %u more node%s", count - 1,
                 count == 2 ? "" : "s");
    idem__log(&self->base.options, IDEM_LOG_WARNING,
              "redis: cluster-allow-replica-migration is yes on %s:%d%s: the "
              "cluster can move replicas between shards, and a shard then has "
              "more or fewer than replicas= says; set it to no on every node "
              "(docs/stores.md)",
              first->host, first->port, more);
}

static void
say_what_is_given_up(const struct redis_store *self)
{
    if (self->settings.accept_everysec)
        idem__log(&self->base.options, IDEM_LOG_WARNING,
                  "redis: unsafe=everysec: a power cut may forget up to 2 s of "
                  "finished requests, which then run again");
    if (self->settings.accept_forget)
        idem__log(&self->base.options, IDEM_LOG_WARNING,
                  "redis: unsafe=forget: a restart of Redis may forget all "
                  "records, and repeated requests then run again; strict "
                  "requests, SETTLE and ids are refused on this store");
    if (self->settings.accept_unseen)
        idem__log(&self->base.options, IDEM_LOG_WARNING,
                  "redis: unsafe=unseen: appendfsync is not checked");
    idem__log(&self->base.options, IDEM_LOG_INFO,
              "redis: %d replica(s) must confirm every write",
              idem__redis_replicas(self));
    for (size_t i = 0; i < self->link_count; i++) {
        if (self->links[i]->judged)
            idem__redis_link_warn(self->links[i]);
    }
    warn_of_moves(self);
}

/* The servers in the URL: Sentinels, or those that hold records. */
static enum idem_status
add_hosts(struct redis_store *self, struct idem_error *err)
{
    const struct idem__url *url = &self->settings.url;

    for (size_t i = 0; i < url->host_count; i++) {
        const struct idem__host *host = &url->hosts[i];
        struct redis_link *link =
            self->settings.sentinel
                ? idem__redis_link_new(&self->settings, host->name, host->port)
                : idem__redis_route_node(self, host->name, host->port);

        if (!link)
            return idem__fail(err, IDEM_ERR_MEMORY, "redis: out of memory");
        if (self->settings.sentinel) {
            link->sentinel = true;
            self->sentinels[self->sentinel_count++] = link;
        }
    }
    return IDEM_OK;
}

static enum idem_status
parse_store(struct idem_store *store, const char *url, struct idem_error *err)
{
    struct redis_store *self = (struct redis_store *)store;

    self->settings.options = &self->base.options;
    self->settings.cluster = store->type == &idem__redis_cluster_store;
    self->settings.link = &self->base.link;
    return read_settings(url, &self->settings, err);
}

static enum idem_status
open_store(struct idem_store *store, const char *url, struct idem_error *err)
{
    struct redis_store *self = (struct redis_store *)store;
    bool cluster = store->type == &idem__redis_cluster_store;
    enum idem_status status;

    idem__watcher_open(&self->watcher, &self->base, REDIS_WATCHED_MAX,
                       idem__redis_listen);
    if (cluster)
        self->slots = malloc(REDIS_SLOTS * sizeof(*self->slots));
    if (cluster && !self->slots)
        return idem__fail(err, IDEM_ERR_MEMORY, "redis: out of memory");
    self->settings.opening = true;
    for (size_t i = 0; cluster && i < REDIS_SLOTS; i++)
        self->slots[i] = REDIS_NO_NODE;
    status = parse_store(store, url, err);
    if (status == IDEM_OK)
        status = add_hosts(self, err);
    if (status == IDEM_OK)
        status = first_look(self, err);
    self->settings.opening = false;
    self->base.forgets = self->settings.accept_forget;
    if (status == IDEM_OK)
        say_what_is_given_up(self);
    return status;
}

#define METHODS                                                                \
    .size = sizeof(struct redis_store), .parse = parse_store,                  \
    .open = open_store, .swap = swap_batch, .load = load_batch,                \
    .scan = idem__redis_scan, .now = read_clock, .tend = tend,                 \
    .watch = idem__redis_watch, .figures = figures, .close = close_store

const struct idem_store_type idem__redis_store = {
    .scheme = "redis",
    METHODS,
};

const struct idem_store_type idem__redis_cluster_store = {
    .scheme = "redis+cluster",
    .partial = true,
    METHODS,
};
