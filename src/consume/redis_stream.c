/*
 * redis_stream.c - messages from a Redis stream, through a consumer group.
 *
 * Entries that were taken and not acknowledged stay in the group's list of
 * pending entries. At intervals this source claims the entries that have been
 * idle for a while, whichever consumer had them: those of a consumer that died,
 * and deliveries that were put back, which are marked as idle for long enough.
 * If the handler of such an entry is in fact still working, the record says so.
 * Entries that this process still has in hand are not handled twice; claiming
 * them again only keeps other consumers from claiming them for a while.
 *
 * All consumers of a group use one consumer name unless they are given others.
 * Nothing depends on the name, and one name per process would stay in the group
 * after the process has ended.
 *
 * An entry's fields are the message's headers. The field `body` (another with
 * ?body=NAME) is its body; the body of an entry without it is a JSON object of
 * all its fields.
 */
#include "../store/redis/redis.h"
#include "consume.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define PATIENCE_S 5
#define CLAIM_DEFAULT_MS 10000
#define CLAIM_MAX_MS 86400000
#define READ_COUNT 64
#define OUT_MAX (256 << 20)

struct redis_source {
    struct source base;
    char member[SOURCE_NAME_MAX + 1], body_field[SOURCE_NAME_MAX + 1];
    int64_t claim_ms, claim_at_us;
    char claim_from[64];
    redisContext *context;     /* used for its socket and its reader */
    struct idem__tls *tls;     /* NULL: not encrypted */
    struct idem__tls_end *end; /* this connection's */
    struct idem_buf out;
    const char *flaw; /* why the connection is unusable */
    struct ahead ahead;
};

static int
by_place(const void *a, const void *b)
{
    return strcmp(((const struct delivery *)a)->place,
                  ((const struct delivery *)b)->place);
}

static enum idem_status
fail(struct redis_source *self, struct idem_error *err, const redisReply *reply)
{
    const char *text = reply && reply->type == REDIS_REPLY_ERROR ? reply->str
                       : self->context && self->context->err
                           ? self->context->errstr
                       : self->flaw ? self->flaw
                                    : "unexpected reply";

    return idem__fail(err, IDEM_ERR_UNAVAILABLE, "redis %s:%d: %.180s",
                      self->base.url.hosts[0].name,
                      self->base.url.hosts[0].port, text);
}

/* ---- commands and replies, encrypted or not ----------------------------- */

static bool
broke(struct redis_source *self, ssize_t n)
{
    self->flaw = n == 0 ? "the server closed the connection"
                 : errno == EAGAIN || errno == EWOULDBLOCK ? "no reply in time"
                 : self->end                               ? idem__tls_flaw()
                                                           : strerror(errno);
    return false;
}

static bool
flush(struct redis_source *self)
{
    const char *data = (const char *)self->out.data;
    size_t sent = 0;

    while (sent < self->out.len) {
        size_t left = self->out.len - sent;
        ssize_t n = self->end ? idem__tls_send(self->end, data + sent, left)
                              : send(self->context->fd, data + sent, left,
                                     MSG_NOSIGNAL);

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return broke(self, n);
        sent += (size_t)n;
    }
    self->out.len = 0;
    return true;
}

/* Send everything and return the next reply; NULL: the connection broke. */
static redisReply *
get_reply(struct redis_source *self)
{
    redisReader *reader = self->context->reader;
    char room[16384];
    void *reply = NULL;

    if (self->flaw || !flush(self))
        return NULL;
    for (;;) {
        ssize_t n;

        if (redisReaderGetReply(reader, &reply) != REDIS_OK) {
            self->flaw = reader->errstr;
            return NULL;
        }
        if (reply)
            return reply;
        n = self->end ? idem__tls_recv(self->end, room, sizeof(room))
                      : recv(self->context->fd, room, sizeof(room), 0);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0 || redisReaderFeed(reader, room, (size_t)n) != REDIS_OK) {
            broke(self, n);
            return NULL;
        }
    }
}

/* Commands are buffered and sent together before a reply is read. */
static void
append_bytes(struct redis_source *self, char *text, int len)
{
    if (len < 0 || !idem_buf_add(&self->out, text, (size_t)len))
        self->flaw = "out of memory";
    if (len >= 0)
        redisFreeCommand(text);
}

static void
append_argv(struct redis_source *self, int argc, const char **argv,
            const size_t *lens)
{
    char *text = NULL;
    int len = redisFormatCommandArgv(&text, argc, argv, lens);

    append_bytes(self, text, len);
}

static void
append(struct redis_source *self, const char *format, ...)
{
    char *text = NULL;
    va_list args;
    int len;

    va_start(args, format);
    len = redisvFormatCommand(&text, format, args);
    va_end(args);
    append_bytes(self, text, len);
}

/* Run a command whose reply must not be an error; NULL: err says why it
 * failed. */
static redisReply *
run(struct redis_source *self, struct idem_error *err, int argc,
    const char **argv, const size_t *lens)
{
    redisReply *reply;

    append_argv(self, argc, argv, lens);
    reply = get_reply(self);
    if (reply && reply->type != REDIS_REPLY_ERROR)
        return reply;
    fail(self, err, reply);
    freeReplyObject(reply);
    return NULL;
}

static enum idem_status
log_in(struct redis_source *self, struct idem_error *err)
{
    const char *with_user[] = {"AUTH", self->base.url.user,
                               self->base.url.password};
    const char *select[] = {"SELECT", self->base.url.path};
    redisReply *reply;

    if (self->base.url.password) {
        bool user = self->base.url.user != NULL;
        const char *plain[] = {"AUTH", self->base.url.password};

        reply = run(self, err, user ? 3 : 2, user ? with_user : plain, NULL);
        if (!reply)
            return IDEM_ERR_UNAVAILABLE;
        freeReplyObject(reply);
    }
    if (self->base.url.path) {
        reply = run(self, err, 2, select, NULL);
        if (!reply)
            return IDEM_ERR_UNAVAILABLE;
        freeReplyObject(reply);
    }
    return IDEM_OK;
}

/* Create the group, which reads from the beginning of the stream. An existing
 * group is fine. */
static enum idem_status
make_group(struct redis_source *self, struct idem_error *err)
{
    redisReply *reply;
    enum idem_status status = IDEM_OK;

    append(self, "XGROUP CREATE %s %s 0 MKSTREAM", self->base.name,
           self->base.group);
    reply = get_reply(self);
    if (!reply || (reply->type == REDIS_REPLY_ERROR &&
                   strncmp(reply->str, "BUSYGROUP", 9) != 0))
        status = fail(self, err, reply);
    freeReplyObject(reply);
    return status;
}

static void
hang_up(struct redis_source *self)
{
    idem__tls_end(self->end);
    self->end = NULL;
    if (self->context)
        redisFree(self->context);
    self->context = NULL;
    self->out.len = 0;
    self->flaw = NULL;
}

static enum idem_status
start_tls(struct redis_source *self, struct idem_error *err)
{
    char why[160];

    if (!self->tls)
        return IDEM_OK;
    self->end = idem__tls_start(self->tls, self->context->fd,
                                self->base.url.hosts[0].name);
    if (idem__tls_finish(self->end, idem__mono_us() + PATIENCE_S * 1000000, why,
                         sizeof(why)))
        return IDEM_OK;
    return idem__fail(err, IDEM_ERR_UNAVAILABLE, "redis %s:%d: %s",
                      self->base.url.hosts[0].name,
                      self->base.url.hosts[0].port, why);
}

static enum idem_status
dial(struct redis_source *self, struct idem_error *err)
{
    struct timeval patience = {PATIENCE_S, 0};
    enum idem_status status;

    hang_up(self);
    self->context = redisConnectWithTimeout(
        self->base.url.hosts[0].name, self->base.url.hosts[0].port, patience);
    if (!self->context || self->context->err)
        return fail(self, err, NULL);
    redisSetTimeout(self->context, patience);
    status = start_tls(self, err);
    return status == IDEM_OK ? log_in(self, err) : status;
}

static enum idem_status
connect_source(struct source *source, struct idem_error *err)
{
    struct redis_source *self = (struct redis_source *)source;
    enum idem_status status;

    idem__ahead_forget(&self->ahead);
    self->claim_at_us = 0;
    snprintf(self->claim_from, sizeof(self->claim_from), "0-0");
    status = dial(self, err);
    return status == IDEM_OK ? make_group(self, err) : status;
}

/* Make one JSON object of all fields of an entry. An entry with a field that
 * JSON cannot represent is unfit, because no field may be left out. */
static bool
body_from_fields(struct delivery *d)
{
    json_t *object = json_object();
    char *text;
    bool copied;

    for (size_t i = 0; i < d->header_count; i++) {
        const struct idem_header *field = &d->headers[i];

        if (json_object_setn_new(
                object, field->name.data, field->name.len,
                json_stringn(field->value.data, field->value.len)) != 0)
            d->unfit = "an entry without a body is handed over as JSON, and a "
                       "field of this one is not UTF-8: name the field that "
                       "is the body";
    }
    text = json_dumps(object, JSON_COMPACT);
    json_decref(object);
    copied = text && idem__delivery_copy(d, text, strlen(text), &d->body);
    free(text);
    return copied;
}

/* An entry is [position, [name, value, ...]]; if it was deleted meanwhile, its
 * fields are nil. */
static bool
add_entry(struct redis_source *self, const redisReply *entry)
{
    const redisReply *fields;
    struct delivery *d;
    bool copied = true;

    if (entry->type != REDIS_REPLY_ARRAY || entry->elements != 2 ||
        entry->element[1]->type != REDIS_REPLY_ARRAY)
        return true;
    d = idem__delivery_make();
    if (!d)
        return false;
    snprintf(d->place, sizeof(d->place), "%s", entry->element[0]->str);
    fields = entry->element[1];
    for (size_t i = 0; copied && i + 1 < fields->elements; i += 2) {
        struct idem_bytes name = {fields->element[i]->str,
                                  fields->element[i]->len};
        struct idem_bytes value = {fields->element[i + 1]->str,
                                   fields->element[i + 1]->len};

        if (idem__bytes_is(name, self->body_field))
            copied = idem__delivery_copy(d, value.data, value.len, &d->body);
        else
            copied = idem__delivery_header(d, name, value);
    }
    if (copied && !d->body.data)
        copied = body_from_fields(d);
    if (copied)
        return idem__ahead_add(&self->ahead, d);
    idem__delivery_drop(d);
    return false;
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

/* Claim entries that have been idle for a while, one page at a time. */
static enum idem_status
claim_pending(struct redis_source *self, struct idem_error *err)
{
    redisReply *reply;
    enum idem_status status;

    append(self, "XAUTOCLAIM %s %s %s %lld %s COUNT %d", self->base.name,
           self->base.group, self->member, (long long)self->claim_ms,
           self->claim_from, READ_COUNT);
    reply = get_reply(self);
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
    int count =
        self->base.prefetch < READ_COUNT ? self->base.prefetch : READ_COUNT;
    redisReply *reply;
    enum idem_status status = IDEM_OK;

    if (wait_ms > 0)
        append(self, "XREADGROUP GROUP %s %s COUNT %d BLOCK %d STREAMS %s >",
               self->base.group, self->member, count, wait_ms, self->base.name);
    else
        append(self, "XREADGROUP GROUP %s %s COUNT %d STREAMS %s >",
               self->base.group, self->member, count, self->base.name);
    reply = get_reply(self);
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
    if (!self->ahead.first &&
        idem__system_clocks.boot_us(NULL) >= self->claim_at_us)
        status = claim_pending(self, err);
    if (status == IDEM_OK && !self->ahead.first)
        status = read_new(self, wait_ms, err);
    if (status == IDEM_OK)
        *delivery = idem__ahead_take(&self->ahead);
    return status;
}

/* The words of a command. */
struct words {
    const char **text;
    size_t *lens;
    int count;
};

static void
add_word(struct words *words, struct idem_bytes word)
{
    words->text[words->count] = word.data;
    words->lens[words->count++] = word.len;
}

static void
name_letter(struct redis_source *self, const struct delivery *d,
            const char *stream, struct words *words)
{
    const char *const first[] = {"XADD",        stream,    "*",
                                 "idem-reason", d->reason, "idem-position",
                                 d->place};

    for (size_t i = 0; i < sizeof(first) / sizeof(first[0]); i++)
        add_word(words, idem_text(first[i]));
    for (size_t i = 0; i < d->header_count; i++) {
        if (idem__delivery_header_is_own(&d->headers[i])) {
            add_word(words, d->headers[i].name);
            add_word(words, d->headers[i].value);
        }
    }
    if (!d->unfit) {
        add_word(words, idem_text(self->body_field));
        add_word(words, d->body);
    }
}

/* False: out of memory. */
static bool
append_letter(struct redis_source *self, const struct delivery *d)
{
    size_t room = 9 + 2 * d->header_count;
    struct words words = {.text = calloc(room, sizeof(*words.text)),
                          .lens = calloc(room, sizeof(*words.lens))};
    bool fits = words.text && words.lens;

    if (fits) {
        name_letter(self, d, idem__delivery_place(d, &self->base), &words);
        append_argv(self, words.count, words.text, words.lens);
    }
    free(words.text);
    free(words.lens);
    return fits;
}

static void
append_fate(struct redis_source *self, const struct delivery *d)
{
    if (d->fate == FATE_PUT_BACK) /* the next to look may claim it */
        append(self, "XCLAIM %s %s %s 0 %s IDLE %lld JUSTID", self->base.name,
               self->base.group, self->member, d->place,
               (long long)self->claim_ms);
    else
        append(self, "XACK %s %s %s", self->base.name, self->base.group,
               d->place);
}

/* Read so many replies, none of which may be an error. */
static enum idem_status
read_replies(struct redis_source *self, int count, struct idem_error *err)
{
    enum idem_status status = IDEM_OK;

    while (count-- > 0) {
        redisReply *reply = get_reply(self);

        if (!reply)
            return fail(self, err, NULL);
        if (reply->type == REDIS_REPLY_ERROR && status == IDEM_OK)
            status = fail(self, err, reply);
        freeReplyObject(reply);
    }
    return status;
}

/* Acknowledge a letter's delivery after the letter is stored. A transaction
 * would not help, because Redis runs its other commands even if one fails. */
static enum idem_status
conclude(struct source *source, struct delivery *deliveries,
         struct idem_error *err)
{
    struct redis_source *self = (struct redis_source *)source;
    enum idem_status status;
    int letters = 0, all = 0;

    for (struct delivery *d = deliveries; d; d = d->next) {
        idem__ahead_concluded(&self->ahead, d);
        all++;
        if (!idem__delivery_is_letter(d))
            append_fate(self, d);
        else if (!append_letter(self, d))
            return idem__fail(err, IDEM_ERR_MEMORY, "redis: out of memory");
        letters += idem__delivery_is_letter(d);
    }
    status = read_replies(self, all, err);
    if (status != IDEM_OK)
        return status;
    for (struct delivery *d = deliveries; d; d = d->next)
        if (idem__delivery_is_letter(d))
            append_fate(self, d);
    return read_replies(self, letters, err);
}

static enum idem_status
stop(struct source *source, struct idem_error *err)
{
    struct redis_source *self = (struct redis_source *)source;

    return idem__ahead_put_back(&self->ahead, source, err);
}

/* The value of a name in a map (an array of names and values), or NULL. */
static const redisReply *
look_up(const redisReply *map, const char *name)
{
    for (size_t i = 0; i + 1 < map->elements; i += 2) {
        if (map->element[i]->str && strcmp(map->element[i]->str, name) == 0)
            return map->element[i + 1];
    }
    return NULL;
}

static enum idem_status
lag(struct source *source, int64_t *messages, struct idem_error *err)
{
    struct redis_source *self = (struct redis_source *)source;
    enum idem_status status = self->context ? IDEM_OK : dial(self, err);
    const char *ask[] = {"XINFO", "GROUPS", self->base.name};
    const redisReply *found = NULL;
    redisReply *reply;

    if (status != IDEM_OK)
        return status;
    reply = run(self, err, 3, ask, NULL);
    if (!reply)
        return IDEM_ERR_UNAVAILABLE;
    for (size_t i = 0; !found && i < reply->elements; i++) {
        const redisReply *name = look_up(reply->element[i], "name");

        if (name && name->str && strcmp(name->str, self->base.group) == 0)
            found = look_up(reply->element[i], "lag");
    }
    if (found && found->type == REDIS_REPLY_INTEGER)
        *messages = found->integer;
    else
        status = idem__fail(err, IDEM_ERR_UNSUPPORTED,
                            "redis %s:%d: does not know the lag of group %s",
                            self->base.url.hosts[0].name,
                            self->base.url.hosts[0].port, self->base.group);
    freeReplyObject(reply);
    return status;
}

static void
close_source(struct source *source)
{
    struct redis_source *self = (struct redis_source *)source;

    idem__ahead_forget(&self->ahead);
    hang_up(self);
    idem__tls_close(self->tls);
    idem_buf_clear(&self->out);
}

static const char *const known[] = {
    "stream", "group", "body", "member", "claim_ms", "ca", "cert", "key", NULL};
#define EXAMPLE "redis-stream://host?stream=orders&group=mail"

static enum idem_status
open_source(struct source *source, const char *text, struct idem_error *err)
{
    struct redis_source *self = (struct redis_source *)source;
    const struct idem__url *url = &source->url;
    const struct source_name names[] = {{"stream", NULL, source->name},
                                        {"group", NULL, source->group},
                                        {"member", "idem", self->member},
                                        {"body", "body", self->body_field},
                                        {0}};
    enum idem_status status = idem__source_names(source, names, EXAMPLE, err);

    idem__ahead_init(&self->ahead, by_place);
    idem_buf_init(&self->out, OUT_MAX);
    if (status == IDEM_OK)
        status = idem__url_number(url, "claim_ms", 1, CLAIM_MAX_MS,
                                  CLAIM_DEFAULT_MS, &self->claim_ms, err);
    if (status == IDEM_OK && url->path &&
        url->path[strspn(url->path, "0123456789")])
        status = idem__fail(err, IDEM_ERR_INVALID,
                            "redis-stream: a database is a number, as in "
                            "redis-stream://host:6379/0");
    if (status == IDEM_OK && strncmp(text, "rediss-", 7) == 0)
        status = idem__tls_open_client("rediss-stream: ", url, &self->tls, err);
    else if (status == IDEM_OK &&
             (idem__url_option(url, "ca") || idem__url_option(url, "cert") ||
              idem__url_option(url, "key")))
        status = idem__fail(err, IDEM_ERR_INVALID,
                            "redis-stream: ca, cert and key are for "
                            "rediss-stream://");
    return status;
}

const struct source_type idem__redis_stream_source = {
    .scheme = "redis-stream",
    .known = known,
    .size = sizeof(struct redis_source),
    .open = open_source,
    .connect = connect_source,
    .take = take,
    .conclude = conclude,
    .stop = stop,
    .lag = lag,
    .close = close_source,
};
