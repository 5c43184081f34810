/*
 * redis_scan.c - lists the records of one Redis server, or of all nodes of a
 * cluster.
 *
 * It asks a server for some names and then for the records under them. Servers
 * are visited in the order of their first slots.
 */
#include "redis.h"

#include <stdlib.h>
#include <string.h>

#define AT_A_TIME 16

/* The cursor is "slot.server.place": the first slot of the current server, the
 * start of its run id, and Redis's own cursor. Redis's cursor is valid only on
 * the same server; if another one took over, its part is read again from the
 * start. */
struct place {
    unsigned slot;
    char run_id[9];
    char redis[24];
};

struct scan {
    struct redis_store *self;
    struct place *place;
    const redisReply *names;
    const struct idem_query *query;
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

static bool
is_record(const redisReply *reply)
{
    return reply->type == REDIS_REPLY_STRING;
}

/* The record is gone, or moved since its name was read; its new server will
 * list it. Any other error must not make a scan leave a record out. */
static bool
is_gone(const redisReply *reply)
{
    return reply->type == REDIS_REPLY_NIL ||
           (reply->type == REDIS_REPLY_ERROR &&
            (strncmp(reply->str, "MOVED ", 6) == 0 ||
             strncmp(reply->str, "ASK ", 4) == 0));
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
    if (!reply || !is_record(reply)) {
        scan->ok = scan->ok && reply && is_gone(reply);
        return;
    }
    if (scan->stopped)
        return;
    status = idem__value_read(scan->keys[tag],
                              (struct idem_bytes){reply->str, reply->len}, NULL,
                              &record, scan->err);
    if (status != IDEM_OK) {
        scan->status = status;
        return;
    }
    scan->stopped = !idem__query_give(scan->query, &record);
}

static bool
ask_names(struct scan *scan, struct redis_link *link, size_t count)
{
    char match[80], number[24];

    snprintf(match, sizeof(match), "%s*", scan->self->settings.prefix);
    snprintf(number, sizeof(number), "%zu", count ? count : 10);
    return idem__redis_link_add(
        link, 0, 6,
        (struct idem_bytes[]){{"SCAN", 4},
                              idem_text(scan->place->redis),
                              {"MATCH", 5},
                              idem_text(match),
                              {"COUNT", 5},
                              idem_text(number)});
}

static bool
ask_record(struct scan *scan, struct redis_link *link, size_t i)
{
    char name[sizeof(scan->self->settings.prefix) + IDEM__HEX_LEN];
    size_t skip = strlen(scan->self->settings.prefix);

    memcpy(name, scan->self->settings.prefix, skip);
    idem__key_hex(scan->keys[i], name + skip);
    return idem__redis_link_add(
        link, (uint32_t)i, 2,
        (struct idem_bytes[]){{"GET", 3}, {name, skip + IDEM__HEX_LEN}});
}

/* Read a few at a time, because their results may be large and are read too. */
static void
read_records(struct scan *scan, struct redis_link *link)
{
    for (size_t i = 0; i < scan->count && scan->ok && !scan->stopped;) {
        for (size_t end = i + AT_A_TIME; i < end && i < scan->count; i++)
            scan->ok = scan->ok && ask_record(scan, link, i);
        idem__redis_links_run(&link, 1, idem__redis_deadline(scan->self),
                              on_record, scan);
    }
}

static enum idem_status
scan_server(struct scan *scan, struct redis_link *link, size_t count)
{
    int64_t until_us = idem__redis_deadline(scan->self);

    if (!idem__redis_link_ready(link, until_us))
        return idem__fail(scan->err, IDEM_ERR_UNAVAILABLE, "%s",
                          link->why.text);
    if (strcmp(scan->place->run_id, link->facts.run_id) != 0)
        snprintf(scan->place->redis, sizeof(scan->place->redis), "0");
    if (ask_names(scan, link, count))
        idem__redis_links_run(&link, 1, until_us, on_names, scan);
    if (scan->ok)
        read_records(scan, link);
    if (!scan->ok)
        return idem__fail(scan->err, IDEM_ERR_UNAVAILABLE,
                          "redis %s:%d: no reply to SCAN", link->host,
                          link->port);
    return scan->status;
}

enum idem_status
idem__redis_scan(struct idem_store *store, const struct idem_query *query,
                 struct idem_error *err)
{
    struct redis_store *self = (struct redis_store *)store;
    struct place place;
    struct scan scan = {
        .self = self, .place = &place, .query = query, .err = err};
    struct redis_link *link;
    struct idem_error why;
    enum idem_status status;
    unsigned next;

    if (!parse_place(query->cursor->text, &place))
        return idem__query_bad_cursor(query, err);
    link =
        self->slots
            ? idem__redis_route_slot(self, place.slot, &next)
            : idem__redis_route_clock(self, idem__redis_deadline(self), &why);
    if (!link && self->slots)
        idem__fail(&why, IDEM_ERR_UNAVAILABLE, "redis: no node owns slot %u",
                   place.slot);
    if (!link)
        return idem__fail(err, IDEM_ERR_UNAVAILABLE, "%s", why.text);
    if (!self->slots)
        next = REDIS_SLOTS;
    status = scan_server(&scan, link, query->count);
    free(scan.keys);
    if (status != IDEM_OK || scan.stopped)
        return status;
    if (strcmp(place.redis, "0") != 0)
        snprintf(query->cursor->text, sizeof(query->cursor->text), "%u.%s.%s",
                 place.slot, link->facts.run_id, place.redis);
    else if (next < REDIS_SLOTS)
        snprintf(query->cursor->text, sizeof(query->cursor->text),
                 "%u.00000000.0", next);
    else
        snprintf(query->cursor->text, sizeof(query->cursor->text), "0");
    return IDEM_OK;
}
