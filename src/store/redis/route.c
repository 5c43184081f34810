/*
 * route.c - finds the server that holds a key.
 *
 * Without a cluster it is the primary: the first host of the URL that says it
 * is one, or the server that Sentinels name. With a cluster it is the owner of
 * the key's slot according to CLUSTER SLOTS; every MOVED reply corrects that
 * map.
 */
#include "redis.h"

#include <stdlib.h>
#include <string.h>

#define REFRESH_US 200000 /* at most this often */

/* A server whose clock is ahead must not drop a record early. */
#define CLOCK_SKEW_MAX_US (IDEM__DROP_MARGIN_MS * 1000 / 2)

/* CRC16 as specified for Redis Cluster: polynomial 1021, initial value 0. */
static uint16_t
crc16(const char *text, size_t len)
{
    uint16_t crc = 0;

    for (size_t i = 0; i < len; i++) {
        crc = (uint16_t)(crc ^ (uint8_t)text[i] << 8);
        for (int bit = 0; bit < 8; bit++)
            crc = (uint16_t)(crc & 0x8000 ? crc << 1 ^ 0x1021 : crc << 1);
    }
    return crc;
}

size_t
idem__redis_name(const struct redis_store *self, const uint8_t *key,
                 char name[REDIS_NAME_MAX])
{
    size_t len = strlen(self->settings.prefix);

    memcpy(name, self->settings.prefix, len);
    idem__key_hex(key, name + len);
    return len + IDEM__HEX_LEN;
}

/* Neither the prefix nor hex contains a brace, so the whole name is hashed. */
static unsigned
slot_of(const struct redis_store *self, const uint8_t *key)
{
    char name[REDIS_NAME_MAX];

    return crc16(name, idem__redis_name(self, key, name)) % REDIS_SLOTS;
}

size_t
idem__redis_place(const struct redis_store *self, const uint8_t *key)
{
    if (self->slots)
        return self->slots[slot_of(self, key)];
    return self->link_count > 0 ? self->primary : REDIS_NO_NODE;
}

int
idem__redis_replicas(const struct redis_store *self)
{
    return self->settings.replicas > 0 ? self->settings.replicas : 0;
}

struct redis_link *
idem__redis_route_node(struct redis_store *self, const char *host, int port)
{
    struct redis_link *link;

    for (size_t i = 0; i < self->link_count; i++) {
        link = self->links[i];
        if (link->port == port && strcmp(link->host, host) == 0)
            return link;
    }
    if (self->link_count == REDIS_NODES_MAX)
        return NULL;
    link = idem__redis_link_new(&self->settings, host, port);
    if (link)
        self->links[self->link_count++] = link;
    return link;
}

static size_t
index_of(const struct redis_store *self, const struct redis_link *link)
{
    size_t i = 0;

    while (self->links[i] != link)
        i++;
    return i;
}

static bool
ready(struct redis_store *self, struct redis_link *link, int64_t deadline_us)
{
    bool was_open = link->context != NULL;
    bool ok = idem__redis_link_ready(link, deadline_us);

    self->connects += ok && !was_open;
    return ok;
}

/* While the store is opened, each server gets the full timeout, so that a
 * silent one leaves time for the next. */
static int64_t
time_for_one(const struct redis_store *self, int64_t deadline_us)
{
    return self->settings.opening ? idem__redis_deadline(self) : deadline_us;
}

/* ---- one primary ----------------------------------------------------- */

static struct redis_link *
find_primary(struct redis_store *self, int64_t deadline_us,
             struct idem_error *err)
{
    struct redis_link *last;

    if (self->settings.sentinel) {
        last = idem__redis_sentinel_primary(
            self, time_for_one(self, deadline_us), err);
        if (last && ready(self, last, time_for_one(self, deadline_us)))
            return last;
        if (last) {
            self->no_primary = last->why;
            if (err)
                *err = last->why;
        }
        self->map_stale = true;
        return NULL;
    }
    last = self->links[self->primary];
    for (size_t i = 0; i < self->link_count; i++) {
        size_t at = (self->primary + i) % self->link_count;

        if (ready(self, self->links[at], time_for_one(self, deadline_us))) {
            self->primary = at;
            return self->links[at];
        }
        /* After a failover, the old primary is not the one to look at. */
        if (self->links[at]->unfit)
            last = self->links[at];
    }
    if (err)
        *err = last->why;
    return NULL;
}

/* ---- the slot map ---------------------------------------------------- */

struct reading {
    struct redis_store *self;
    bool ok;
    struct idem_error refused; /* a node does not let this user read it */
};

static void
note_range(struct redis_store *self, struct redis_link *from,
           const redisReply *range, bool *whole)
{
    const redisReply *node = range->elements >= 3 ? range->element[2] : NULL;
    struct redis_link *link;
    const char *host;

    *whole = false;
    if (!node || node->type != REDIS_REPLY_ARRAY || node->elements < 2 ||
        range->element[0]->integer < 0 ||
        range->element[1]->integer >= REDIS_SLOTS)
        return;
    host = node->element[0]->str;
    if (!host || !*host || strcmp(host, "?") == 0)
        host = from->host; /* the server does not know its own host name */
    link = idem__redis_route_node(self, host, (int)node->element[1]->integer);
    if (!link)
        return;
    for (long long slot = range->element[0]->integer;
         slot <= range->element[1]->integer; slot++)
        self->slots[slot] = (uint16_t)index_of(self, link);
    *whole = true;
}

static void
on_slots(void *arg, struct redis_link *link, uint32_t tag,
         const redisReply *reply, bool sent)
{
    struct reading *reading = arg;

    (void)tag;
    (void)sent;
    if (reply && reply->type == REDIS_REPLY_ERROR &&
        strncmp(reply->str, "NOPERM", 6) == 0)
        idem__fail(&reading->refused, IDEM_ERR_UNAVAILABLE,
                   "redis %s:%d: %.120s; give this user +cluster|slots and "
                   "+asking on every node (docs/stores.md, Rights)",
                   link->host, link->port, reply->str);
    if (!reply || reply->type != REDIS_REPLY_ARRAY || reply->elements == 0)
        return;
    for (size_t i = 0; i < REDIS_SLOTS; i++)
        reading->self->slots[i] = REDIS_NO_NODE;
    reading->ok = true;
    for (size_t i = 0; i < reply->elements; i++) {
        bool whole;

        note_range(reading->self, link, reply->element[i], &whole);
        reading->ok &= whole;
    }
}

enum idem_status
idem__redis_route_refresh(struct redis_store *self, int64_t deadline_us,
                          struct idem_error *err)
{
    struct reading reading = {.self = self};
    size_t count = self->link_count; /* servers may be added during the loop */

    self->map_us = idem__mono_us();
    for (size_t i = 0; i < count && !reading.ok; i++) {
        struct redis_link *link = self->links[i];
        int64_t until_us = time_for_one(self, deadline_us);

        /* A replica cannot hold records, but it knows the map. */
        (void)ready(self, link, until_us);
        if (!link->context ||
            !idem__redis_link_add_text(link, 0, "CLUSTER SLOTS"))
            continue;
        idem__redis_links_run(&link, 1, until_us, on_slots, &reading);
    }
    self->map_stale = !reading.ok;
    if (reading.ok)
        return IDEM_OK;
    if (reading.refused.status != IDEM_OK) {
        if (err)
            *err = reading.refused;
        return reading.refused.status;
    }
    if (count > 0 && self->links[0]->why.status != IDEM_OK) {
        if (err)
            *err = self->links[0]->why;
        return self->links[0]->why.status;
    }
    return idem__fail(err, IDEM_ERR_UNAVAILABLE,
                      "redis: no node returned the slots of the cluster; "
                      "are the nodes running?");
}

struct redis_link *
idem__redis_route_redirect(struct redis_store *self, struct redis_link *from,
                           const char *text, bool moved)
{
    struct redis_link *link;
    char host[256];
    unsigned slot;
    const char *space, *colon;
    size_t len;

    space = strchr(text, ' ');
    space = space ? strchr(space + 1, ' ') : NULL;
    colon = space ? strrchr(space, ':') : NULL;
    if (!colon || sscanf(text, "%*s %u", &slot) != 1 || slot >= REDIS_SLOTS)
        return NULL;
    len = (size_t)(colon - space - 1);
    if (len >= sizeof(host))
        return NULL;
    memcpy(host, space + 1, len);
    host[len] = 0;
    link = idem__redis_route_node(self, len > 0 ? host : from->host,
                                  (int)strtol(colon + 1, NULL, 10));
    if (link && moved && self->slots) {
        self->slots[slot] = (uint16_t)index_of(self, link);
        self->map_stale = true; /* more may have moved: read it all soon */
    }
    return link;
}

struct redis_link *
idem__redis_route_slot(struct redis_store *self, unsigned slot, unsigned *next)
{
    bool seen[REDIS_NODES_MAX] = {false};
    uint16_t owner;

    *next = REDIS_SLOTS;
    if (!self->slots)
        return self->links[self->primary];
    owner = self->slots[slot];
    for (unsigned at = 0; at < REDIS_SLOTS; at++) {
        uint16_t here = self->slots[at];

        if (here == REDIS_NO_NODE || seen[here])
            continue;
        seen[here] = true;
        if (at > slot && here != owner) {
            *next = at;
            break;
        }
    }
    return owner == REDIS_NO_NODE ? NULL : self->links[owner];
}

static struct redis_link *
find_owner(struct redis_store *self, unsigned slot, int64_t deadline_us,
           struct idem_error *err)
{
    struct redis_link *link, *clock;

    if (self->map_stale && idem__mono_us() - self->map_us > REFRESH_US)
        (void)idem__redis_route_refresh(self, deadline_us, err);
    if (self->slots[slot] == REDIS_NO_NODE) {
        self->map_stale = true;
        idem__fail(err, IDEM_ERR_UNAVAILABLE,
                   "redis: no node owns slot %u of the cluster", slot);
        return NULL;
    }
    link = self->links[self->slots[slot]];
    if (!ready(self, link, deadline_us)) {
        self->map_stale = true; /* perhaps a replica took over */
        if (err)
            *err = link->why;
        return NULL;
    }
    clock =
        self->slots[0] == REDIS_NO_NODE ? link : self->links[self->slots[0]];
    if (clock->facts.known && llabs(clock->facts.ahead_us -
                                    link->facts.ahead_us) > CLOCK_SKEW_MAX_US) {
        idem__fail(err, IDEM_ERR_UNAVAILABLE,
                   "redis: the clocks of %s:%d and %s:%d differ by more than "
                   "%d s: records would be dropped early",
                   link->host, link->port, clock->host, clock->port,
                   (int)(CLOCK_SKEW_MAX_US / 1000000));
        return NULL;
    }
    return link;
}

struct redis_link *
idem__redis_route(struct redis_store *self, const uint8_t key[IDEM_KEY_LEN],
                  int64_t deadline_us, struct idem_error *err)
{
    if (!self->slots)
        return find_primary(self, deadline_us, err);
    return find_owner(self, slot_of(self, key), deadline_us, err);
}

struct redis_link *
idem__redis_route_clock(struct redis_store *self, int64_t deadline_us,
                        struct idem_error *err)
{
    if (!self->slots)
        return find_primary(self, deadline_us, err);
    return find_owner(self, 0, deadline_us, err);
}
