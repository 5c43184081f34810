/*
 * consumer.c - the source's thread: take deliveries, dispatch them to handlers,
 * conclude them, reconnect.
 */
#include "consume.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <xxhash.h>

#define TAKE_MS 100
#define TAKE_BUSY_MS 5
#define CONCLUDE_AT_ONCE 64
#define HELD_MAX 4 /* limit after reconnects, in multiples of the prefetch */
#define TELL_EVERY_US 5000000
#define RECONNECT_FIRST_MS 100
#define RECONNECT_MAX_MS 5000

static const struct {
    const char *scheme, *module, *symbol;
    uint16_t port;
} brokers[] = {
    {"amqp", "rabbitmq", "idem__rabbitmq_source", 5672},
    {"amqps", "rabbitmq", "idem__rabbitmq_source", 5671},
    {"redis-stream", "redis", "idem__redis_stream_source", 6379},
    {"rediss-stream", "redis", "idem__redis_stream_source", 6379},
    {"kafka", "kafka", "idem__kafka_source", 9092},
    {"nats", "nats", "idem__nats_source", 4222},
};

static enum idem_status
find_type(const char *url, const struct source_type **type, uint16_t *port,
          struct idem_error *err)
{
    for (size_t i = 0; i < sizeof(brokers) / sizeof(brokers[0]); i++) {
        size_t len = strlen(brokers[i].scheme);

        if (strncmp(url, brokers[i].scheme, len) == 0 &&
            strncmp(url + len, "://", 3) == 0) {
            *port = brokers[i].port;
            return idem__module_symbol(brokers[i].module, brokers[i].symbol,
                                       (const void **)type, err);
        }
    }
    return idem__fail(err, IDEM_ERR_INVALID,
                      "the source is not the URL of a broker: use amqp://, "
                      "redis-stream://, kafka:// or nats://");
}

enum idem_status
idem__source_names(const struct source *source, const struct source_name *names,
                   const char *example, struct idem_error *err)
{
    for (; names->option; names++) {
        const char *value = idem__url_option(&source->url, names->option);

        if (!value)
            value = names->otherwise;
        if (!value)
            return idem__fail(err, IDEM_ERR_INVALID,
                              "the source's URL does not name its %s: write %s",
                              names->option, example);
        if (strlen(value) > SOURCE_NAME_MAX)
            return idem__fail(err, IDEM_ERR_INVALID,
                              "%s= in the source's URL has more than %d bytes",
                              names->option, SOURCE_NAME_MAX);
        memcpy(names->into, value, strlen(value) + 1);
    }
    return IDEM_OK;
}

static enum idem_status
name_place(const struct source *source, const char *name, const char *ending,
           char place[LETTER_PLACE_MAX], struct idem_error *err)
{
    int len = snprintf(place, LETTER_PLACE_MAX, "%s%s",
                       name ? name : source->name, name ? "" : ending);

    if (len < 1 || len >= LETTER_PLACE_MAX)
        return idem__fail(err, IDEM_ERR_INVALID,
                          "a place for letters has a name of 1 to %d bytes",
                          LETTER_PLACE_MAX - 1);
    if (strcmp(place, source->name) == 0)
        return idem__fail(err, IDEM_ERR_INVALID,
                          "dead letters and doubts cannot go to \"%s\", "
                          "because the messages come from there",
                          place);
    return IDEM_OK;
}

static enum idem_status
name_letters(struct source *source, const struct idem_consume_options *options,
             struct idem_error *err)
{
    enum idem_status status = name_place(source, options->dead_letter, ".dead",
                                         source->dead_letter, err);

    return status == IDEM_OK ? name_place(source, options->doubt, ".doubt",
                                          source->doubt, err)
                             : status;
}

static enum idem_status
set_options(struct idem_consumer *c, const struct idem_consume_options *options,
            struct idem_error *err)
{
    struct idem_consume_options *o = &c->options;
    enum idem_status status;

    *o = *options;
    if (IDEM__ROOM_CHECK(o, err) != IDEM_OK)
        return IDEM_ERR_UNSUPPORTED;
    if (!o->concurrency)
        o->concurrency = 4;
    if (!o->max_attempts)
        o->max_attempts = 5;
    if (!o->backoff_ms)
        o->backoff_ms = 200;
    if (o->concurrency < 1 || o->concurrency > 1024)
        return idem__fail(err, IDEM_ERR_INVALID,
                          "a concurrency of %d is out of range: give 1 to 1024",
                          o->concurrency);
    if (o->prefetch < 0 || o->prefetch > 60000 || o->max_attempts < 1 ||
        o->backoff_ms < 1)
        return idem__fail(
            err, IDEM_ERR_INVALID,
            "prefetch must be at most 60000, attempts and back-off at least 1");
    if (!o->source || !o->handle)
        return idem__fail(err, IDEM_ERR_INVALID,
                          "a consumer needs a source and a handler");
    if (!c->engine && !o->own_record)
        return idem__fail(
            err, IDEM_ERR_INVALID,
            "a consumer needs an engine, unless its handler keeps "
            "the record itself");
    c->prefetch = o->prefetch ? o->prefetch : 16 * o->concurrency;
    c->worth_concluding = 1;
    if (c->prefetch > o->concurrency)
        c->worth_concluding += (size_t)(c->prefetch - o->concurrency) / 8;
    if (c->worth_concluding > CONCLUDE_AT_ONCE)
        c->worth_concluding = CONCLUDE_AT_ONCE;
    c->log = (struct idem_store_options){.log = o->log, .log_arg = o->log_arg};
    status = idem__identity_parse(o->identity, &c->identity, err);
    if (status == IDEM_OK)
        status = idem__identity_parse(o->order_by ? o->order_by : o->identity,
                                      &c->order_by, err);
    return status;
}

void
idem__source_close(struct source *source)
{
    if (!source)
        return;
    source->type->close(source);
    idem__url_clear(&source->url);
    free(source);
}

enum idem_status
idem__source_open(const struct idem_consumer *c, struct source **source,
                  struct idem_error *err)
{
    const struct source_type *type;
    uint16_t port = 0;
    enum idem_status status = find_type(c->options.source, &type, &port, err);
    struct source *made;

    if (status != IDEM_OK)
        return status;
    made = calloc(1, type->size);
    if (!made)
        return idem__fail(err, IDEM_ERR_MEMORY, "consumer: out of memory");
    made->type = type;
    made->prefetch = c->prefetch;
    made->log = &c->log;
    status =
        idem__url_parse(c->options.source, port, type->known, &made->url, err);
    if (status != IDEM_OK) {
        free(made);
        return status;
    }
    status = type->open(made, c->options.source, err);
    if (status == IDEM_OK)
        status = name_letters(made, &c->options, err);
    if (status == IDEM_OK)
        *source = made;
    else
        idem__source_close(made);
    return status;
}

static enum idem_status
open_source(struct idem_consumer *c, struct idem_error *err)
{
    enum idem_status status = idem__source_open(c, &c->source, err);
    const char *consumer;

    if (status != IDEM_OK)
        return status;
    consumer = c->options.consumer   ? c->options.consumer
               : c->source->group[0] ? c->source->group
                                     : "default";
    /* A consumer's name has no slash, so the last slash of a scope ends the
     * source's name, and no two pairs of names make the same scope. */
    if (strchr(consumer, '/'))
        return idem__fail(err, IDEM_ERR_INVALID,
                          "a consumer's name has no slash in it: \"%s\"",
                          consumer);
    if (snprintf(c->scope, sizeof(c->scope), "%s/%s", c->source->name,
                 consumer) >= (int)sizeof(c->scope))
        return idem__fail(err, IDEM_ERR_INVALID,
                          "the names of source and consumer have more than %d "
                          "bytes together",
                          IDEM_SCOPE_MAX - 1);
    return IDEM_OK;
}

/* Report an error now that would make every claim fail. */
static enum idem_status
check_claims(const struct idem_consumer *c, struct idem_error *err)
{
    struct idem_op op = {.verb = IDEM_BEGIN,
                         .scope = idem_text(c->scope),
                         .id = idem_text("probe"),
                         .mode = c->options.mode,
                         .lease_ms = c->options.lease_ms,
                         .ttl_ms = c->options.ttl_ms};

    return idem__op_check(&op, err);
}

static void
drop(struct idem_consumer *c)
{
    idem__source_close(c->source);
    idem__source_close(c->lag_source);
    pthread_mutex_destroy(&c->mutex);
    pthread_cond_destroy(&c->concluded);
    free(c->handlers);
    free(c);
}

enum idem_status
idem_consume_open(struct idem_engine *engine,
                  const struct idem_consume_options *options,
                  struct idem_consumer **consumer, struct idem_error *err)
{
    struct idem_consumer *c = calloc(1, sizeof(*c));
    enum idem_status status;

    if (!c)
        return idem__fail(err, IDEM_ERR_MEMORY, "consumer: out of memory");
    c->engine = engine;
    pthread_mutex_init(&c->mutex, NULL);
    idem__cond_init(&c->concluded);
    status = set_options(c, options, err);
    if (status == IDEM_OK)
        status = open_source(c, err);
    if (status == IDEM_OK)
        status = check_claims(c, err);
    if (status == IDEM_OK) {
        c->handlers =
            calloc((size_t)c->options.concurrency, sizeof(*c->handlers));
        if (!c->handlers)
            status =
                idem__fail(err, IDEM_ERR_MEMORY, "consumer: out of memory");
    }
    if (status != IDEM_OK) {
        drop(c);
        return status;
    }
    *consumer = c;
    return IDEM_OK;
}

static enum idem_status
start_handlers(struct idem_consumer *c, struct idem_error *err)
{
    for (int i = 0; i < c->options.concurrency; i++) {
        struct handler *h = &c->handlers[i];

        h->consumer = c;
        h->last = &h->first;
        pthread_cond_init(&h->wake, NULL);
        if (pthread_create(&h->thread, NULL, idem__consumer_handle, h) != 0) {
            pthread_cond_destroy(&h->wake);
            return idem__fail(err, IDEM_ERR_MEMORY,
                              "consumer: cannot start a thread");
        }
        c->handler_count++;
    }
    return IDEM_OK;
}

static void
end_handlers(struct idem_consumer *c)
{
    pthread_mutex_lock(&c->mutex);
    c->no_more = true;
    for (int i = 0; i < c->handler_count; i++)
        pthread_cond_signal(&c->handlers[i].wake);
    pthread_mutex_unlock(&c->mutex);
    for (int i = 0; i < c->handler_count; i++) {
        pthread_join(c->handlers[i].thread, NULL);
        pthread_cond_destroy(&c->handlers[i].wake);
    }
    c->handler_count = 0;
    c->no_more = false;
}

/* The same ordering key always goes to the same handler. */
static void
dispatch(struct idem_consumer *c, struct delivery *d)
{
    char key[IDEM_ID_MAX + 1];
    size_t len = 0;
    uint64_t hash;
    struct handler *h;

    if (!idem__identity_of(&c->order_by, d, key, &len, NULL))
        len = 0;
    hash = XXH3_64bits(key, len);
    h = &c->handlers[hash % (uint64_t)c->handler_count];
    CONSUMER_COUNT(c, received);
    pthread_mutex_lock(&c->mutex);
    d->handler = h;
    d->next = NULL;
    *h->last = d;
    h->last = &d->next;
    c->in_flight++;
    pthread_cond_signal(&h->wake);
    pthread_mutex_unlock(&c->mutex);
}

/* Wait until so many deliveries were returned. The mutex is held. */
static void
wait_for(struct idem_consumer *c, size_t count, int wait_ms)
{
    struct timespec until = idem__deadline((int64_t)wait_ms * 1000);

    while (c->done_count < count) {
        if (pthread_cond_timedwait(&c->concluded, &c->mutex, &until) != 0)
            return;
    }
}

/* How many deliveries the handlers have returned. Waits up to wait_ms if there
 * are none, and then a short time for more. */
static size_t
wait_for_done(struct idem_consumer *c, int wait_ms)
{
    size_t count;

    pthread_mutex_lock(&c->mutex);
    if (wait_ms > 0) {
        wait_for(c, 1, wait_ms);
        if (c->done_count > 0)
            wait_for(c, c->worth_concluding, TAKE_BUSY_MS);
    }
    count = c->done_count;
    pthread_mutex_unlock(&c->mutex);
    return count;
}

static struct delivery *
take_done(struct idem_consumer *c)
{
    struct delivery *done;

    pthread_mutex_lock(&c->mutex);
    done = c->done;
    c->in_flight -= c->done_count;
    c->done = NULL;
    c->done_count = 0;
    pthread_mutex_unlock(&c->mutex);
    return done;
}

/* Log the reason of a letter, but not of every letter. */
static void
tell_letter(struct idem_consumer *c, const struct delivery *d)
{
    int64_t now_us = idem__system_clocks.boot_us(NULL);
    char reason[sizeof(d->reason)], others[80], name[96] = "";
    size_t i;

    if (c->told_us && now_us - c->told_us < TELL_EVERY_US) {
        c->untold++;
        return;
    }
    for (i = 0; d->reason[i]; i++)
        reason[i] = (unsigned char)d->reason[i] < 0x20 || d->reason[i] == 0x7f
                        ? '?'
                        : d->reason[i];
    reason[i] = 0;
    snprintf(others, sizeof(others),
             " (%llu messages before it were not logged)",
             (unsigned long long)c->untold);
    if (d->message_id.len > 0)
        snprintf(name, sizeof(name), " with the id \"%.*s\"",
                 d->message_id.len < 64 ? (int)d->message_id.len : 64,
                 (const char *)d->message_id.data);
    else if (d->place[0])
        snprintf(name, sizeof(name), " at %s", d->place);
    for (i = 0; name[i]; i++)
        name[i] = name[i] >= 0x20 && name[i] < 0x7f ? name[i] : '?';
    idem__log(&c->log, IDEM_LOG_WARNING, "a message%s goes to %s: %s%s", name,
              idem__delivery_place(d, c->source), reason,
              c->untold > 0 ? others : "");
    c->told_us = now_us;
    c->untold = 0;
}

/* Carry out the fates at the broker. Deliveries of an older connection are
 * dropped: the broker delivers them again, and their records give the
 * answer. */
static enum idem_status
conclude(struct idem_consumer *c, struct delivery *done, bool connected,
         struct idem_error *err)
{
    struct delivery *now = NULL, *letters = NULL, **end = &now;
    enum idem_status status = IDEM_OK;

    while (done) {
        struct delivery *d = done;

        done = d->next;
        if (!connected || d->connection != c->source->connection) {
            idem__delivery_drop(d);
        } else if (idem__delivery_is_letter(d)) {
            tell_letter(c, d);
            d->next = letters;
            letters = d;
        } else {
            d->next = now;
            now = d;
        }
    }
    while (*end)
        end = &(*end)->next;
    *end = letters;
    if (now)
        status = c->source->type->conclude(c->source, now, err);
    while (now) {
        struct delivery *d = now;

        now = d->next;
        idem__delivery_drop(d);
    }
    return status;
}

/* Has the source been idle for stop_when_idle_ms? */
static bool
idle_enough(const struct idem_consumer *c, int64_t idle_since_us)
{
    return c->options.stop_when_idle_ms &&
           idem__system_clocks.boot_us(NULL) - idle_since_us >=
               c->options.stop_when_idle_ms * 1000;
}

/* Connect at once the first time, then after a pause that doubles each time,
 * until a connection worked. False: stopped. */
static bool
pause_before_connecting(struct idem_consumer *c)
{
    int64_t next_ms = c->pause_ms ? c->pause_ms * 2 : RECONNECT_FIRST_MS;
    bool goes_on = idem__consumer_pause(c, c->pause_ms);

    c->pause_ms = next_ms < RECONNECT_MAX_MS ? next_ms : RECONNECT_MAX_MS;
    return goes_on;
}

/* False: the consumer was stopped or, with an error, the broker could not be
 * reached for stop_when_idle_ms. */
static bool
connect_source(struct idem_consumer *c, struct idem_error *err)
{
    int64_t since_us = idem__system_clocks.boot_us(NULL);

    while (pause_before_connecting(c)) {
        c->source->connection++;
        if (c->source->type->connect(c->source, err) == IDEM_OK)
            return true;
        if (idle_enough(c, since_us))
            return false;
        idem__log(&c->log, IDEM_LOG_WARNING, "%s; trying again in %lld ms",
                  err->text, (long long)c->pause_ms);
    }
    err->status = IDEM_OK;
    return false;
}

/* One turn of the source's thread. *idle: nothing came, nothing is in flight
 * and nothing was concluded, which may have taken long. Available deliveries
 * are taken first, so that the returned ones are concluded in larger batches.
 */
static enum idem_status
turn(struct idem_consumer *c, bool *idle, struct idem_error *err)
{
    const struct source_type *type = c->source->type;
    bool full = c->in_flight >= (uint64_t)c->prefetch;
    size_t done = wait_for_done(c, full ? TAKE_MS : 0);
    int wait_ms = done > 0 || full   ? 0
                  : c->in_flight > 0 ? TAKE_BUSY_MS
                                     : TAKE_MS;
    enum idem_status status = IDEM_OK;
    struct delivery *d = NULL;
    bool conclude_now;

    if (c->in_flight < (uint64_t)c->prefetch * HELD_MAX)
        status = type->take(c->source, wait_ms, !full, &d, err);
    if (status == IDEM_OK && d) {
        d->connection = c->source->connection;
        dispatch(c, d);
    }
    conclude_now = done > 0 && (!d || done >= CONCLUDE_AT_ONCE);
    if (status == IDEM_OK && conclude_now)
        status = conclude(c, take_done(c), true, err);
    *idle = !d && !conclude_now && c->in_flight == 0 && !c->source->joining;
    if (status == IDEM_OK && (conclude_now || *idle))
        c->pause_ms = 0;
    return status;
}

/* Put back a delivery that came although the consumer is stopping. */
static enum idem_status
refuse_more(struct idem_consumer *c, struct idem_error *err)
{
    struct delivery *d = NULL;
    enum idem_status status =
        c->source->type->take(c->source, 0, false, &d, err);

    if (status != IDEM_OK || !d)
        return status;
    CONSUMER_COUNT(c, received);
    CONSUMER_COUNT(c, put_back);
    d->connection = c->source->connection;
    d->fate = FATE_PUT_BACK;
    d->next = NULL;
    return conclude(c, d, true, err);
}

/* Put back the waiting deliveries at once. Wait for those that are being
 * handled, and keep the connection alive meanwhile. */
static void
wind_up(struct idem_consumer *c, bool connected)
{
    const struct source_type *type = c->source->type;
    enum idem_status status = IDEM_OK;
    struct idem_error err;

    if (connected && type->stop)
        status = type->stop(c->source, &err);
    idem__consumer_put_back_waiting(c);
    while (c->in_flight > 0) {
        wait_for_done(c, TAKE_MS);
        if (connected && status == IDEM_OK)
            status = refuse_more(c, &err);
        if (status == IDEM_OK)
            status = conclude(c, take_done(c), connected, &err);
        if (status != IDEM_OK && connected) {
            idem__log(&c->log, IDEM_LOG_WARNING,
                      "%s; messages that were handled are acknowledged when "
                      "the broker delivers them again",
                      err.text);
            connected = false;
            status = IDEM_OK;
        }
    }
    end_handlers(c);
}

/* The source was idle for long enough: is it, or does the broker stand still?
 * After the broker has answered, *asked is true, and one more turn must be
 * idle. */
static enum idem_status
ask_source(struct idem_consumer *c, bool *asked, bool *idle,
           struct idem_error *err)
{
    const struct source_type *type = c->source->type;
    bool waiting = false;
    enum idem_status status = IDEM_OK;

    if (*asked || !type->ask) {
        idem_consume_stop(c);
        return IDEM_OK;
    }
    status = type->ask(c->source, &waiting, err);
    *asked = status == IDEM_OK && !waiting;
    *idle = *asked;
    return status;
}

static enum idem_status
consume(struct idem_consumer *c, struct idem_error *err)
{
    bool connected = connect_source(c, err), asked = false;
    int64_t idle_since_us = idem__system_clocks.boot_us(NULL);
    int64_t failing_since_us = 0;

    while (connected && !idem__consumer_stopping(c)) {
        bool idle;
        enum idem_status status = turn(c, &idle, err);

        if (status == IDEM_OK && idle && idle_enough(c, idle_since_us))
            status = ask_source(c, &asked, &idle, err);
        if (status != IDEM_OK) {
            idem__log(&c->log, IDEM_LOG_WARNING, "%s", err->text);
            CONSUMER_COUNT(c, reconnects);
            connected = !failing_since_us || !idle_enough(c, failing_since_us);
            if (!failing_since_us)
                failing_since_us = idem__system_clocks.boot_us(NULL);
            if (connected)
                connected = connect_source(c, err);
            idle = false;
        } else if (c->pause_ms == 0) {
            failing_since_us = 0;
        }
        if (!idle) {
            idle_since_us = idem__system_clocks.boot_us(NULL);
            asked = false;
        }
    }
    idem_consume_stop(c);
    wind_up(c, connected);
    return connected ? IDEM_OK : err->status;
}

enum idem_status
idem_consume_run(struct idem_consumer *c, struct idem_error *err)
{
    struct idem_error own;
    enum idem_status status;

    err = err ? err : &own;
    status = start_handlers(c, err);
    if (status == IDEM_OK)
        return consume(c, err);
    end_handlers(c);
    return status;
}

void
idem_consume_stop(struct idem_consumer *c)
{
    __atomic_store_n(&c->stop, true, __ATOMIC_RELEASE);
}

void
idem_consume_stats(struct idem_consumer *c, struct idem_consume_stats *stats)
{
    const uint64_t *from = (const uint64_t *)&c->stats;
    uint64_t *to = (uint64_t *)stats;

    for (size_t i = 0; i < sizeof(*stats) / sizeof(*to); i++)
        to[i] = __atomic_load_n(&from[i], __ATOMIC_RELAXED);
    pthread_mutex_lock(&c->mutex);
    stats->in_flight = c->in_flight;
    pthread_mutex_unlock(&c->mutex);
}

void
idem_consume_close(struct idem_consumer *c)
{
    if (c)
        drop(c);
}
