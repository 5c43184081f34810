/*
 * redis.c - redis:// and redis+cluster://: records in Redis.
 *
 *   redis://[user[:password]@]host[:port][,host[:port]...][/db][?options]
 *   redis+cluster://[user[:password]@]host[:port][,...][?options]
 *
 *   replicas=N      that must have a write before it counts; if it is not
 *                   given: 1 if there is a replica at start, else 0
 *   wait_ms=500     how long a write may take to reach them
 *   prefix=idem:    what every name begins with
 *   connect_ms=1000, timeout_ms=2000
 *   unsafe=everysec accept to lose up to 2 s of answers at a power cut
 *   unsafe=unseen   appendfsync cannot be read here; the operator vouches
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

/* SHA-1 of redis_script; tests check it against the server. */
const char *const redis_script_sha = "b39a268694698d7f6bdb8db769f7c9c0de11663b";

static enum idem_status
swap_batch(struct idem_store *store, struct idem_swap *swaps, size_t count,
           struct idem_arena *arena, struct idem_error *err)
{
    return redis_swap_batch((struct redis_store *)store, swaps, count, arena,
                            err);
}

static enum idem_status
load_batch(struct idem_store *store, struct idem_load *loads, size_t count,
           struct idem_arena *arena, struct idem_error *err)
{
    return redis_load_batch((struct redis_store *)store, loads, count, arena,
                            err);
}

static int64_t
deadline(const struct redis_store *self)
{
    return redis_now_us() + self->settings.timeout_ms * 1000;
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
    if (reply && reply->type == REDIS_REPLY_ARRAY && reply->elements == 2)
        *now_us = strtoll(reply->element[0]->str, NULL, 10) * 1000000 +
                  strtoll(reply->element[1]->str, NULL, 10);
}

static enum idem_status
read_clock(struct idem_store *store, int64_t *now_us, struct idem_error *err)
{
    struct redis_store *self = (struct redis_store *)store;
    int64_t until_us = deadline(self), read_us = 0;
    struct redis_link *link = redis_route_clock(self, until_us, err);

    if (!link)
        return IDEM_ERR_UNAVAILABLE;
    if (redis_link_add_text(link, 0, "TIME"))
        redis_links_run(&link, 1, until_us, on_time, &read_us);
    if (read_us == 0)
        return idem__fail(err, IDEM_ERR_UNAVAILABLE,
                          "redis %s:%d: TIME was not answered", link->host,
                          link->port);
    *now_us = read_us;
    return IDEM_OK;
}

/* ---- scan ------------------------------------------------------------ */

/* The cursor is "slot.server.place": the first slot of the server that is being
 * read, the start of its run id, and Redis's own cursor, which means nothing to
 * another server: if that took over, its part starts anew. */
struct place {
    unsigned slot;
    char run_id[9];
    char redis[24];
};

struct scan {
    struct redis_store *self;
    struct place *place;
    const redisReply *names;
    const struct idem_filter *filter;
    const struct idem_now *now;
    idem_each_fn *each;
    void *each_arg;
    bool ok, stopped;
    enum idem_status status;
    struct idem_error *err;
    uint8_t (*keys)[IDEM_KEY_LEN];
    size_t count;
};

static bool
parse_place(const char *text, struct place *place)
{
    int used = 0;

    if (strcmp(text, "0") == 0) {
        *place = (struct place){.redis = "0"};
        return true;
    }
    return sscanf(text, "%u.%8[0-9a-f].%20[0-9]%n", &place->slot, place->run_id,
                  place->redis, &used) == 3 &&
           text[used] == 0 && place->slot < REDIS_SLOTS;
}

static void
note_names(struct scan *scan, const redisReply *names)
{
    size_t skip = strlen(scan->self->settings.prefix);

    scan->keys = calloc(names->elements + 1, sizeof(*scan->keys));
    for (size_t i = 0; i < names->elements && scan->keys; i++) {
        const redisReply *name = names->element[i];

        if (name->type == REDIS_REPLY_STRING && name->len > skip &&
            idem__key_from_hex(name->str + skip, name->len - skip,
                               scan->keys[scan->count]))
            scan->count++;
    }
}

static void
on_names(void *arg, struct redis_link *link, uint32_t tag,
         const redisReply *reply, bool sent)
{
    struct scan *scan = arg;

    (void)link;
    (void)tag;
    (void)sent;
    if (!reply || reply->type != REDIS_REPLY_ARRAY || reply->elements != 2 ||
        reply->element[0]->type != REDIS_REPLY_STRING ||
        reply->element[1]->type != REDIS_REPLY_ARRAY)
        return;
    snprintf(scan->place->redis, sizeof(scan->place->redis), "%s",
             reply->element[0]->str);
    note_names(scan, reply->element[1]);
    scan->ok = scan->keys != NULL;
}

static void
on_record(void *arg, struct redis_link *link, uint32_t tag,
          const redisReply *reply, bool sent)
{
    struct scan *scan = arg;
    struct idem_record record;
    enum idem_status status;

    (void)link;
    (void)sent;
    if (!reply) {
        scan->ok = false;
        return;
    }
    /* Gone or moved since its name was read: whoever has it now shows it. */
    if (reply->type != REDIS_REPLY_STRING || scan->stopped)
        return;
    status = idem__value_read(scan->keys[tag],
                              (struct idem_bytes){reply->str, reply->len}, NULL,
                              &record, scan->err);
    if (status != IDEM_OK) {
        scan->status = status;
        return;
    }
    record.result = (struct idem_bytes){NULL, 0};
    if (idem__filter_match(scan->filter, &record, scan->now))
        scan->stopped = !scan->each(scan->each_arg, &record);
}

static bool
ask_names(struct scan *scan, struct redis_link *link, size_t count)
{
    char match[80], number[24];

    snprintf(match, sizeof(match), "%s*", scan->self->settings.prefix);
    snprintf(number, sizeof(number), "%zu", count ? count : 10);
    return redis_link_add(link, 0, 6,
                          (struct idem_bytes[]){{"SCAN", 4},
                                                idem_text(scan->place->redis),
                                                {"MATCH", 5},
                                                idem_text(match),
                                                {"COUNT", 5},
                                                idem_text(number)});
}

static bool
ask_records(struct scan *scan, struct redis_link *link)
{
    char name[sizeof(scan->self->settings.prefix) + IDEM__HEX_LEN];
    size_t skip = strlen(scan->self->settings.prefix);

    memcpy(name, scan->self->settings.prefix, skip);
    for (size_t i = 0; i < scan->count; i++) {
        idem__key_hex(scan->keys[i], name + skip);
        if (!redis_link_add(link, (uint32_t)i, 2,
                            (struct idem_bytes[]){
                                {"GET", 3}, {name, skip + IDEM__HEX_LEN}}))
            return false;
    }
    return true;
}

static enum idem_status
scan_server(struct scan *scan, struct redis_link *link, size_t count)
{
    int64_t until_us = deadline(scan->self);

    if (!redis_link_ready(link, until_us)) {
        if (scan->err)
            *scan->err = link->why;
        return IDEM_ERR_UNAVAILABLE;
    }
    if (strcmp(scan->place->run_id, link->facts.run_id) != 0)
        snprintf(scan->place->redis, sizeof(scan->place->redis), "0");
    if (ask_names(scan, link, count))
        redis_links_run(&link, 1, until_us, on_names, scan);
    if (scan->ok && ask_records(scan, link))
        redis_links_run(&link, 1, until_us, on_record, scan);
    if (!scan->ok)
        return idem__fail(scan->err, IDEM_ERR_UNAVAILABLE,
                          "redis %s:%d: SCAN was not answered", link->host,
                          link->port);
    return scan->status;
}

static enum idem_status
scan_records(struct idem_store *store, const struct idem_filter *filter,
             const struct idem_now *now, struct idem_cursor *cursor,
             size_t count, idem_each_fn *each, void *arg,
             struct idem_error *err)
{
    struct redis_store *self = (struct redis_store *)store;
    struct place place;
    struct scan scan = {.self = self,
                        .place = &place,
                        .filter = filter,
                        .now = now,
                        .each = each,
                        .each_arg = arg,
                        .err = err};
    struct redis_link *link;
    enum idem_status status;
    unsigned next;

    if (!parse_place(cursor->text, &place))
        return idem__fail(err, IDEM_ERR_INVALID,
                          "\"%s\" is not a cursor: start with 0", cursor->text);
    link = self->slots ? redis_route_slot(self, place.slot, &next)
                       : redis_route_clock(self, deadline(self), err);
    if (!link)
        return self->slots
                   ? idem__fail(err, IDEM_ERR_UNAVAILABLE,
                                "redis: no node owns slot %u", place.slot)
                   : IDEM_ERR_UNAVAILABLE;
    if (!self->slots)
        next = REDIS_SLOTS;
    status = scan_server(&scan, link, count);
    free(scan.keys);
    if (status != IDEM_OK || scan.stopped)
        return status;
    if (strcmp(place.redis, "0") != 0)
        snprintf(cursor->text, sizeof(cursor->text), "%u.%s.%s", place.slot,
                 link->facts.run_id, place.redis);
    else if (next < REDIS_SLOTS)
        snprintf(cursor->text, sizeof(cursor->text), "%u.00000000.0", next);
    else
        snprintf(cursor->text, sizeof(cursor->text), "0");
    return IDEM_OK;
}

/* ---- now and then ---------------------------------------------------- */

static void
tend(struct idem_store *store)
{
    struct redis_store *self = (struct redis_store *)store;
    int64_t until_us = deadline(self);
    struct idem_error err;

    if (self->map_stale && redis_now_us() - self->map_us > 1000000)
        (void)redis_route_refresh(self, until_us, &err);
    for (size_t i = 0; i < self->link_count; i++) {
        struct redis_link *link = self->links[i];

        if (link->context && link->judged && !redis_link_ready(link, until_us))
            idem__log(&self->options, IDEM_LOG_ALARM, "%s", link->why.text);
    }
}

static void
figures(struct idem_store *store, idem_figure_fn *each, void *arg)
{
    struct redis_store *self = (struct redis_store *)store;
    double open = 0;

    for (size_t i = 0; i < self->link_count; i++)
        open += self->links[i]->context != NULL;
    each(arg, "redis_connections", open);
    each(arg, "redis_connects_total", (double)self->connects);
    each(arg, "redis_swaps_total", (double)self->swaps);
    each(arg, "redis_refused_total", (double)self->refused);
    each(arg, "redis_lost_total", (double)self->lost);
    each(arg, "redis_redirected_total", (double)self->redirected);
    each(arg, "redis_wait_short_total", (double)self->wait_short);
    each(arg, "redis_replicas_required", (double)redis_replicas(self));
}

/* ---- open and close -------------------------------------------------- */

static void
close_store(struct idem_store *store)
{
    struct redis_store *self = (struct redis_store *)store;

    if (!self)
        return;
    for (size_t i = 0; i < self->link_count; i++)
        redis_link_delete(self->links[i]);
    idem__url_clear(&self->settings.url);
    free(self->slots);
    free(self);
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
        else
            return idem__fail(err, IDEM_ERR_INVALID,
                              "redis: unsafe is everysec or unseen");
        unsafe += len + (unsafe[len] == ',');
    }
    return IDEM_OK;
}

static enum idem_status
read_names(struct redis_settings *settings, struct idem_error *err)
{
    const char *prefix = idem__url_option(&settings->url, "prefix");
    const char *db = settings->url.path;
    char *end = NULL;

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

static enum idem_status
read_settings(const char *url, struct redis_settings *settings,
              struct idem_error *err)
{
    static const char *const known[] = {"replicas",   "wait_ms",    "prefix",
                                        "connect_ms", "timeout_ms", "unsafe",
                                        NULL};
    int64_t replicas = -1;
    enum idem_status status;

    status = idem__url_parse(url, DEFAULT_PORT, known, &settings->url, err);
    if (status == IDEM_OK)
        status = idem__url_number(&settings->url, "replicas", 0, 10, -1,
                                  &replicas, err);
    if (status == IDEM_OK)
        status = idem__url_number(&settings->url, "wait_ms", 1, 10000, 500,
                                  &settings->wait_ms, err);
    if (status == IDEM_OK)
        status = idem__url_number(&settings->url, "connect_ms", 1, 60000, 1000,
                                  &settings->connect_ms, err);
    if (status == IDEM_OK)
        status = idem__url_number(&settings->url, "timeout_ms", 1, 60000, 2000,
                                  &settings->timeout_ms, err);
    settings->replicas = (int)replicas;
    if (status == IDEM_OK)
        status = read_names(settings, err);
    return status == IDEM_OK ? read_unsafe(settings, err) : status;
}

/* Every server that will hold records is looked at before the first one is
 * written. */
static enum idem_status
first_look(struct redis_store *self, struct idem_error *err)
{
    enum idem_status status;
    unsigned slot = 0, next;
    int most = 0;

    if (!self->slots) {
        struct redis_link *link = redis_route_clock(self, deadline(self), err);

        if (!link)
            return self->links[self->primary]->why.status;
        most = link->facts.replicas;
        slot = REDIS_SLOTS;
    } else {
        status = redis_route_refresh(self, deadline(self), err);
        if (status != IDEM_OK)
            return status;
    }
    for (; slot < REDIS_SLOTS; slot = next) {
        struct redis_link *link = redis_route_slot(self, slot, &next);

        if (link && !redis_link_ready(link, deadline(self))) {
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

static void
say_what_is_given_up(const struct redis_store *self)
{
    if (self->settings.accept_everysec)
        idem__log(&self->options, IDEM_LOG_WARNING,
                  "redis: unsafe=everysec: a power cut may forget up to 2 s of "
                  "answered requests, which then run again");
    if (self->settings.accept_unseen)
        idem__log(&self->options, IDEM_LOG_WARNING,
                  "redis: unsafe=unseen: appendfsync is not checked");
    idem__log(&self->options, IDEM_LOG_INFO,
              "redis: %d replica(s) must confirm every write",
              redis_replicas(self));
}

static enum idem_status
open_any(const char *url, const struct idem_store_options *options,
         bool cluster, struct idem_store **store, struct idem_error *err)
{
    struct redis_store *self;
    enum idem_status status;

    if (strncmp(url, "rediss", 6) == 0)
        return idem__fail(err, IDEM_ERR_UNSUPPORTED,
                          "rediss: TLS is not in the hiredis that idem is "
                          "built with (0.14): use redis:// through a TLS "
                          "tunnel, such as stunnel, on this machine");
    self = calloc(1, sizeof(*self));
    if (self && cluster)
        self->slots = malloc(REDIS_SLOTS * sizeof(*self->slots));
    if (!self || (cluster && !self->slots)) {
        free(self);
        return idem__fail(err, IDEM_ERR_MEMORY, "redis: out of memory");
    }
    self->base.type = cluster ? &idem__redis_cluster_store : &idem__redis_store;
    self->base.max_record = idem__encoded_max(IDEM_RESULT_MAX);
    self->options = *options;
    self->settings.options = &self->options;
    self->settings.cluster = cluster;
    for (size_t i = 0; cluster && i < REDIS_SLOTS; i++)
        self->slots[i] = REDIS_NO_NODE;
    status = read_settings(url, &self->settings, err);
    for (size_t i = 0; status == IDEM_OK && i < self->settings.url.host_count;
         i++) {
        if (!redis_route_node(self, self->settings.url.hosts[i].name,
                              self->settings.url.hosts[i].port))
            status = idem__fail(err, IDEM_ERR_MEMORY, "redis: out of memory");
    }
    if (status == IDEM_OK)
        status = first_look(self, err);
    if (status != IDEM_OK) {
        close_store(&self->base);
        return status;
    }
    say_what_is_given_up(self);
    *store = &self->base;
    return IDEM_OK;
}

static enum idem_status
open_single(const char *url, const struct idem_store_options *options,
            struct idem_store **store, struct idem_error *err)
{
    return open_any(url, options, false, store, err);
}

static enum idem_status
open_cluster(const char *url, const struct idem_store_options *options,
             struct idem_store **store, struct idem_error *err)
{
    return open_any(url, options, true, store, err);
}

const struct idem_store_type idem__redis_store = {
    .scheme = "redis",
    .open = open_single,
    .swap = swap_batch,
    .load = load_batch,
    .scan = scan_records,
    .now = read_clock,
    .tend = tend,
    .figures = figures,
    .close = close_store,
};

const struct idem_store_type idem__redis_cluster_store = {
    .scheme = "redis+cluster",
    .open = open_cluster,
    .swap = swap_batch,
    .load = load_batch,
    .scan = scan_records,
    .now = read_clock,
    .tend = tend,
    .figures = figures,
    .close = close_store,
};
