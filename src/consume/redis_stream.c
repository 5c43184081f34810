/*
 * redis_stream.c - messages from a Redis stream, through a consumer group.
 *
 * What was taken and not acknowledged stays in the group's list of pending
 * entries. Every so often the entries that nobody acknowledged for a while are
 * claimed, whoever had them: a consumer that died, or a delivery that was put
 * back. If its handler is in fact still working, the record says so. What this
 * very process still has in hand is left alone; that it is claimed anew keeps
 * it from the others for a while.
 *
 * All consumers of a group go by one name there unless they are given others:
 * nothing depends on it, and a name for each process would stay in the group
 * when the process is gone.
 *
 * An entry's fields are the message's headers; the field `body` (another with
 * ?body=NAME) is its body, and an entry without it is handed over as a JSON
 * object of all its fields.
 */
#ifdef IDEM_WITH_REDIS

#include "consume.h"

#include <hiredis/hiredis.h>
#include <jansson.h>
#include <search.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PATIENCE_S 5
#define CLAIM_DEFAULT_MS 10000
#define READ_COUNT 64

struct redis_source {
    struct source base;
    struct broker_url url;
    int prefetch;
    char group[200], member[128], body_field[128];
    int64_t claim_ms, claim_at_us;
    char claim_from[64];
    redisContext *context;
    struct delivery *ready, **ready_last; /* read but not taken yet */
    void *in_hand; /* read and not concluded: a tree, by place */
};

static int
by_place(const void *a, const void *b)
{
    return strcmp(((const struct delivery *)a)->place,
                  ((const struct delivery *)b)->place);
}

static void
keep(void *delivery)
{
    (void)delivery; /* the tree owns nothing */
}

static enum idem_status
fail(struct redis_source *self, struct idem_error *err, const redisReply *reply)
{
    const char *text = reply && reply->type == REDIS_REPLY_ERROR ? reply->str
                       : self->context && self->context->err
                           ? self->context->errstr
                           : "unexpected reply";

    return idem__fail(err, IDEM_ERR_UNAVAILABLE, "redis %s:%d: %.180s",
                      self->url.host, self->url.port, text);
}

/* Run a command whose reply must not be an error; NULL after telling why. */
static redisReply *
run(struct redis_source *self, struct idem_error *err, int argc,
    const char **argv, const size_t *lens)
{
    redisReply *reply = redisCommandArgv(self->context, argc, argv, lens);

    if (reply && reply->type != REDIS_REPLY_ERROR)
        return reply;
    fail(self, err, reply);
    freeReplyObject(reply);
    return NULL;
}

static enum idem_status
log_in(struct redis_source *self, struct idem_error *err)
{
    const char *with_user[] = {"AUTH", self->url.user, self->url.password};
    const char *select[] = {"SELECT", self->url.path};
    redisReply *reply;

    if (self->url.password[0]) {
        bool user = self->url.user[0] != 0;
        const char *plain[] = {"AUTH", self->url.password};

        reply = run(self, err, user ? 3 : 2, user ? with_user : plain, NULL);
        if (!reply)
            return IDEM_ERR_UNAVAILABLE;
        freeReplyObject(reply);
    }
    if (self->url.path[0]) {
        reply = run(self, err, 2, select, NULL);
        if (!reply)
            return IDEM_ERR_UNAVAILABLE;
        freeReplyObject(reply);
    }
    return IDEM_OK;
}

/* The group reads from the stream's beginning; one that exists is fine. */
static enum idem_status
make_group(struct redis_source *self, struct idem_error *err)
{
    redisReply *reply =
        redisCommand(self->context, "XGROUP CREATE %s %s 0 MKSTREAM",
                     self->base.name, self->group);
    bool fine = reply && (reply->type != REDIS_REPLY_ERROR ||
                          strncmp(reply->str, "BUSYGROUP", 9) == 0);
    enum idem_status status = fine ? IDEM_OK : fail(self, err, reply);

    freeReplyObject(reply);
    return status;
}

/* What the handlers still have is of an older connection from now on. */
static void
drop_ready(struct redis_source *self)
{
    tdestroy(self->in_hand, keep);
    self->in_hand = NULL;
    while (self->ready) {
        struct delivery *d = self->ready;

        self->ready = d->next;
        delivery_drop(d);
    }
    self->ready_last = &self->ready;
}

static enum idem_status
connect_source(struct source *source, struct idem_error *err)
{
    struct redis_source *self = (struct redis_source *)source;
    struct timeval patience = {PATIENCE_S, 0};
    enum idem_status status;

    drop_ready(self);
    redisFree(self->context);
    self->context =
        redisConnectWithTimeout(self->url.host, self->url.port, patience);
    if (!self->context || self->context->err)
        return fail(self, err, NULL);
    redisSetTimeout(self->context, patience);
    self->claim_at_us = 0;
    snprintf(self->claim_from, sizeof(self->claim_from), "0-0");
    status = log_in(self, err);
    return status == IDEM_OK ? make_group(self, err) : status;
}

/* All fields of an entry as one JSON object. */
static bool
body_from_fields(struct delivery *d)
{
    json_t *object = json_object();
    char *text;
    bool copied;

    for (size_t i = 0; i < d->header_count; i++)
        json_object_set_new(
            object, d->headers[i].name.data,
            json_stringn(d->headers[i].value.data, d->headers[i].value.len));
    text = json_dumps(object, JSON_COMPACT);
    json_decref(object);
    copied = text && delivery_copy(d, text, strlen(text), &d->body);
    free(text);
    return copied;
}

/* An entry is [position, [name, value, ...]]; the fields of one that was
 * deleted meanwhile are nil. */
static bool
add_entry(struct redis_source *self, const redisReply *entry)
{
    const redisReply *fields;
    struct delivery *d, **found;
    bool copied = true;

    if (entry->type != REDIS_REPLY_ARRAY || entry->elements != 2 ||
        entry->element[1]->type != REDIS_REPLY_ARRAY)
        return true;
    d = delivery_make();
    if (!d)
        return false;
    snprintf(d->place, sizeof(d->place), "%s", entry->element[0]->str);
    found = tsearch(d, &self->in_hand, by_place);
    if (!found || *found != d) {
        delivery_drop(d);
        return found != NULL; /* it is in hand already, or out of memory */
    }
    fields = entry->element[1];
    for (size_t i = 0; copied && i + 1 < fields->elements; i += 2) {
        struct idem_bytes name = {fields->element[i]->str,
                                  fields->element[i]->len};
        struct idem_bytes value = {fields->element[i + 1]->str,
                                   fields->element[i + 1]->len};

        if (idem__bytes_is(name, self->body_field))
            copied = delivery_copy(d, value.data, value.len, &d->body);
        else
            copied = delivery_header(d, name, value);
    }
    if (copied && !d->body.data)
        copied = body_from_fields(d);
    if (!copied) {
        tdelete(d, &self->in_hand, by_place);
        delivery_drop(d);
        return false;
    }
    d->next = NULL;
    *self->ready_last = d;
    self->ready_last = &d->next;
    return true;
}

static enum idem_status
add_entries(struct redis_source *self, const redisReply *entries,
            struct idem_error *err)
{
    if (entries->type != REDIS_REPLY_ARRAY)
        return IDEM_OK;
    for (size_t i = 0; i < entries->elements; i++) {
        if (!add_entry(self, entries->element[i]))
            return idem__fail(err, IDEM_ERR_MEMORY, "redis: out of memory");
    }
    return IDEM_OK;
}

/* Claim what nobody acknowledged for a while, a page at a time. */
static enum idem_status
claim_pending(struct redis_source *self, struct idem_error *err)
{
    redisReply *reply =
        redisCommand(self->context, "XAUTOCLAIM %s %s %s %lld %s COUNT %d",
                     self->base.name, self->group, self->member,
                     (long long)self->claim_ms, self->claim_from, READ_COUNT);
    enum idem_status status;

    if (!reply || reply->type != REDIS_REPLY_ARRAY || reply->elements < 2) {
        status = fail(self, err, reply);
        freeReplyObject(reply);
        return status;
    }
    snprintf(self->claim_from, sizeof(self->claim_from), "%s",
             reply->element[0]->str);
    status = add_entries(self, reply->element[1], err);
    if (strcmp(self->claim_from, "0-0") == 0)
        self->claim_at_us =
            idem__system_clocks.boot_us(NULL) + self->claim_ms * 1000 / 2;
    freeReplyObject(reply);
    return status;
}

static enum idem_status
read_new(struct redis_source *self, int wait_ms, struct idem_error *err)
{
    int count = self->prefetch < READ_COUNT ? self->prefetch : READ_COUNT;
    redisReply *reply =
        wait_ms > 0
            ? redisCommand(
                  self->context,
                  "XREADGROUP GROUP %s %s COUNT %d BLOCK %d STREAMS %s >",
                  self->group, self->member, count, wait_ms, self->base.name)
            : redisCommand(self->context,
                           "XREADGROUP GROUP %s %s COUNT %d STREAMS %s >",
                           self->group, self->member, count, self->base.name);
    enum idem_status status = IDEM_OK;

    if (reply && reply->type == REDIS_REPLY_ERROR &&
        strncmp(reply->str, "NOGROUP", 7) == 0) {
        freeReplyObject(reply);
        return make_group(self, err);
    }
    if (!reply || reply->type == REDIS_REPLY_ERROR)
        status = fail(self, err, reply);
    else if (reply->type == REDIS_REPLY_ARRAY && reply->elements == 1 &&
             reply->element[0]->elements == 2)
        status = add_entries(self, reply->element[0]->element[1], err);
    freeReplyObject(reply);
    return status;
}

static enum idem_status
take(struct source *source, int wait_ms, bool more, struct delivery **delivery,
     struct idem_error *err)
{
    struct redis_source *self = (struct redis_source *)source;
    enum idem_status status = IDEM_OK;

    *delivery = NULL;
    if (!more)
        return IDEM_OK;
    if (!self->ready && idem__system_clocks.boot_us(NULL) >= self->claim_at_us)
        status = claim_pending(self, err);
    if (status == IDEM_OK && !self->ready)
        status = read_new(self, wait_ms, err);
    if (status != IDEM_OK || !self->ready)
        return status;
    *delivery = self->ready;
    self->ready = self->ready->next;
    if (!self->ready)
        self->ready_last = &self->ready;
    return IDEM_OK;
}

/* The letter is written and the entry acknowledged in one transaction. */
static int
append_letter(struct redis_source *self, const struct delivery *d,
              const char *stream)
{
    const char *argv[8 + 2 * HEADERS_MAX] = {
        "XADD",    stream,          "*",     "idem-reason",
        d->reason, "idem-position", d->place};
    size_t lens[8 + 2 * HEADERS_MAX];
    int argc = 7;

    for (int i = 0; i < argc; i++)
        lens[i] = strlen(argv[i]);
    for (size_t i = 0; i < d->header_count; i++) {
        if (!delivery_header_is_own(&d->headers[i]))
            continue;
        argv[argc] = d->headers[i].name.data;
        lens[argc++] = d->headers[i].name.len;
        argv[argc] = d->headers[i].value.data;
        lens[argc++] = d->headers[i].value.len;
    }
    if (argc + 2 <= (int)(sizeof(argv) / sizeof(argv[0]))) {
        argv[argc] = self->body_field;
        lens[argc++] = strlen(self->body_field);
        argv[argc] = d->body.data;
        lens[argc++] = d->body.len;
    }
    redisAppendCommand(self->context, "MULTI");
    redisAppendCommandArgv(self->context, argc, argv, lens);
    redisAppendCommand(self->context, "XACK %s %s %s", self->base.name,
                       self->group, d->place);
    redisAppendCommand(self->context, "EXEC");
    return 4;
}

static enum idem_status
conclude(struct source *source, struct delivery *deliveries,
         struct idem_error *err)
{
    struct redis_source *self = (struct redis_source *)source;
    enum idem_status status = IDEM_OK;
    int replies = 0;

    for (struct delivery *d = deliveries; d; d = d->next) {
        tdelete(d, &self->in_hand, by_place);
        if (d->fate == FATE_DEAD_LETTER || d->fate == FATE_DOUBT) {
            replies +=
                append_letter(self, d,
                              d->fate == FATE_DOUBT ? self->base.doubt
                                                    : self->base.dead_letter);
        } else if (d->fate == FATE_ACKNOWLEDGE) {
            redisAppendCommand(self->context, "XACK %s %s %s", self->base.name,
                               self->group, d->place);
            replies++;
        } /* put back: it stays pending and is claimed again later */
    }
    while (replies-- > 0) {
        redisReply *reply = NULL;

        if (redisGetReply(self->context, (void **)&reply) != REDIS_OK || !reply)
            return fail(self, err, NULL);
        if (reply->type == REDIS_REPLY_ERROR && status == IDEM_OK)
            status = fail(self, err, reply);
        freeReplyObject(reply);
    }
    return status;
}

static void
close_source(struct source *source)
{
    struct redis_source *self = (struct redis_source *)source;

    if (!self)
        return;
    drop_ready(self);
    if (self->context)
        redisFree(self->context);
    free(self);
}

static void
set_names(struct redis_source *self, const struct source_settings *settings)
{
    char claim[32];

    if (!broker_url_param(&self->url, "member", self->member,
                          sizeof(self->member)) ||
        !self->member[0])
        snprintf(self->member, sizeof(self->member), "idem");
    if (!broker_url_param(&self->url, "body", self->body_field,
                          sizeof(self->body_field)))
        snprintf(self->body_field, sizeof(self->body_field), "body");
    self->claim_ms = CLAIM_DEFAULT_MS;
    if (broker_url_param(&self->url, "claim_ms", claim, sizeof(claim)) &&
        strtoll(claim, NULL, 10) > 0)
        self->claim_ms = strtoll(claim, NULL, 10);
    source_name_letters(&self->base, settings);
}

static enum idem_status
open_source(const struct source_settings *settings, struct source **source,
            struct idem_error *err)
{
    struct redis_source *self = calloc(1, sizeof(*self));
    enum idem_status status;

    if (!self)
        return idem__fail(err, IDEM_ERR_MEMORY, "redis: out of memory");
    self->base.type = &idem__redis_stream_source;
    self->prefetch = settings->prefetch;
    self->ready_last = &self->ready;
    status = broker_url_parse(settings->url, &self->url, err);
    if (status == IDEM_OK &&
        (!broker_url_param(&self->url, "stream", self->base.name,
                           sizeof(self->base.name)) ||
         !broker_url_param(&self->url, "group", self->group,
                           sizeof(self->group))))
        status = idem__fail(err, IDEM_ERR_INVALID,
                            "redis-stream: name the stream and the group: "
                            "redis-stream://host?stream=orders&group=mail");
    if (status != IDEM_OK) {
        free(self);
        return status;
    }
    if (!self->url.port)
        self->url.port = 6379;
    snprintf(self->base.default_consumer, sizeof(self->base.default_consumer),
             "%s", self->group);
    set_names(self, settings);
    *source = &self->base;
    return IDEM_OK;
}

const struct source_type idem__redis_stream_source = {
    .scheme = "redis-stream",
    .open = open_source,
    .connect = connect_source,
    .take = take,
    .conclude = conclude,
    .close = close_source,
};

#endif
