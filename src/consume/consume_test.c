/*
 * consume_test.c - identities, URLs, and Kafka on librdkafka's mock cluster.
 * Waits more than it works.
 */
#include "consume.h"

#include <librdkafka/rdkafka.h>
#include <librdkafka/rdkafka_mock.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* ---- identities ---------------------------------------------- */

static const char *
identity(const char *by, const struct delivery *d, char id[IDEM_ID_MAX + 1])
{
    struct identity identity;
    struct idem_error err;
    size_t len;

    assert_int_equal(idem__identity_parse(by, &identity, &err), IDEM_OK);
    return idem__identity_of(&identity, d, id, &len, &err) ? id : NULL;
}

static void
an_identity_comes_from_where_it_was_asked_for(void **state)
{
    struct delivery *d = idem__delivery_make();
    char id[IDEM_ID_MAX + 1], *text;
    struct idem_bytes body =
        idem_text("{\"order\": {\"no\": 7, \"key\": \"k\"}}");

    (void)state;
    snprintf(d->place, sizeof(d->place), "12-0");
    idem__delivery_copy(d, body.data, body.len, &d->body);
    assert_null(identity("id", d, id));
    idem__delivery_header(d, idem_text("Message-Id"), idem_text("m1"));
    idem__delivery_header(d, idem_text("x-key"), idem_text("h1"));
    assert_string_equal(identity(NULL, d, id), "m1");
    assert_string_equal(identity("header:X-Key", d, id), "h1");
    assert_string_equal(identity("json:order.no", d, id), "7");
    assert_string_equal(identity("json:order.key", d, id), "k");
    assert_null(identity("json:order.none", d, id));
    assert_null(identity("json:order", d, id)); /* not a value */
    assert_string_equal(identity("position", d, id), "12-0");
    idem__delivery_copy(d, "p1", 2, &d->message_id);
    assert_string_equal(identity("id", d, id), "p1");

    text = malloc(1000); /* too long for an id: a digest replaces it */
    memset(text, 'x', 1000);
    idem__delivery_copy(d, text, 1000, &d->message_id);
    assert_int_equal(strlen(identity("id", d, id)), 7 + 64);
    free(text);
    /* Ids end at a NUL in some stores. */
    idem__delivery_copy(d, "p\0one", 5, &d->message_id);
    assert_int_equal(strlen(identity("id", d, id)), 7 + 64);
    d->place[0] = 0;
    assert_null(identity("position", d, id));
    idem__delivery_drop(d);
}

static void
an_unknown_identity_is_refused(void **state)
{
    struct identity identity;
    char longest[sizeof(identity.name) + 8];
    struct idem_error err;

    (void)state;
    assert_int_equal(idem__identity_parse("smell", &identity, &err),
                     IDEM_ERR_INVALID);
    assert_int_equal(idem__identity_parse("header:", &identity, &err),
                     IDEM_ERR_INVALID);
    assert_int_equal(idem__identity_parse("json:", &identity, &err),
                     IDEM_ERR_INVALID);
    assert_int_equal(idem__identity_parse("smell:x", &identity, &err),
                     IDEM_ERR_INVALID);
    memset(longest, 'x', sizeof(longest));
    memcpy(longest, "header:", 7);
    longest[sizeof(longest) - 1] = 0;
    assert_int_equal(idem__identity_parse(longest, &identity, &err),
                     IDEM_ERR_INVALID);
}

static enum idem_handled
handle_nothing(void *arg, const struct idem_message *message,
               struct idem_error *err)
{
    (void)arg;
    (void)message;
    (void)err;
    return IDEM_HANDLED;
}

/* Two queues whose long names differ only at the end have two scopes. */
static void
a_scope_is_the_whole_of_both_names(void **state)
{
    char url[256], scopes[2][IDEM_SCOPE_MAX + 1];
    struct idem_consume_options options = {.source = url,
                                           .consumer = "mail",
                                           .handle = handle_nothing,
                                           .own_record = true};
    struct idem_consumer *c;
    struct idem_error err;

    (void)state;
    for (int i = 0; i < 2; i++) {
        snprintf(url, sizeof(url), "redis-stream://h?stream=%0150d&group=g", i);
        assert_int_equal(idem_consume_open(NULL, &options, &c, &err), IDEM_OK);
        memcpy(scopes[i], c->scope, sizeof(c->scope));
        idem_consume_close(c);
    }
    assert_int_equal(strlen(scopes[0]), 150 + strlen("/mail"));
    assert_string_not_equal(scopes[0], scopes[1]);
    snprintf(url, sizeof(url), "redis-stream://h?stream=%0199d&group=g", 0);
    assert_int_equal(idem_consume_open(NULL, &options, &c, &err),
                     IDEM_ERR_INVALID);
    assert_non_null(strstr(err.text, "more than 199 bytes"));
}

static void
only_a_handler_with_its_own_record_does_without_an_engine(void **state)
{
    struct idem_consume_options options = {
        .source = "redis-stream://h?stream=s&group=g",
        .handle = handle_nothing};
    struct idem_consumer *c;
    struct idem_error err;

    (void)state;
    assert_int_equal(idem_consume_open(NULL, &options, &c, &err),
                     IDEM_ERR_INVALID);
    options.own_record = true;
    assert_int_equal(idem_consume_open(NULL, &options, &c, &err), IDEM_OK);
    idem_consume_close(c);
}

/* What a program, unlike the command line, can ask for. */
static void
options_out_of_range_are_refused(void **state)
{
    const struct idem_consume_options fine = {
        .source = "redis-stream://h?stream=s&group=g",
        .handle = handle_nothing,
        .own_record = true};
    struct idem_consume_options wrong[9];
    struct idem_consumer *c = NULL;
    struct idem_error err;

    (void)state;
    for (size_t i = 0; i < 9; i++)
        wrong[i] = fine;
    wrong[0].concurrency = -1;
    wrong[1].prefetch = -1;
    wrong[2].prefetch = 60001;
    wrong[3].max_attempts = -1;
    wrong[4].backoff_ms = -1;
    wrong[5].source = NULL;
    wrong[6].handle = NULL;
    wrong[7].dead_letter = "";
    wrong[8].room[7] = 1;
    for (size_t i = 0; i < 9; i++) {
        assert_int_equal(idem_consume_open(NULL, &wrong[i], &c, &err),
                         i == 8 ? IDEM_ERR_UNSUPPORTED : IDEM_ERR_INVALID);
        assert_null(c);
        assert_true(err.text[0] != 0);
    }
    wrong[0].concurrency = 1;
    wrong[0].prefetch = 60000;
    assert_int_equal(idem_consume_open(NULL, &wrong[0], &c, &err), IDEM_OK);
    idem_consume_close(c);
}

/* ---- Kafka ------------------------------------------------------------- */

struct cluster {
    rd_kafka_t *client; /* hosts the mock, and produces */
    rd_kafka_mock_cluster_t *mock;
    char source[256];
    int effects[1000]; /* by message number; atomics */
    int fail_first;    /* these report "nothing happened" once */
    int asked[1000];
};

static void
open_cluster(struct cluster *c)
{
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    char text[200];
    const char *servers;

    memset(c, 0, sizeof(*c));
    c->client = rd_kafka_new(RD_KAFKA_PRODUCER, conf, text, sizeof(text));
    assert_non_null(c->client);
    c->mock = rd_kafka_mock_cluster_new(c->client, 1);
    assert_non_null(c->mock);
    servers = rd_kafka_mock_cluster_bootstraps(c->mock);
    rd_kafka_mock_topic_create(c->mock, "orders", 3, 1);
    snprintf(c->source, sizeof(c->source), "kafka://%s?topic=orders&group=g",
             servers);
}

static void
close_cluster(struct cluster *c)
{
    rd_kafka_mock_cluster_destroy(c->mock);
    rd_kafka_destroy(c->client);
}

static void
publish(struct cluster *c, int first, int count, int times)
{
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    char text[200];
    rd_kafka_t *producer;

    assert_int_equal(
        rd_kafka_conf_set(conf, "bootstrap.servers",
                          rd_kafka_mock_cluster_bootstraps(c->mock), text,
                          sizeof(text)),
        RD_KAFKA_CONF_OK);
    producer = rd_kafka_new(RD_KAFKA_PRODUCER, conf, text, sizeof(text));
    assert_non_null(producer);
    for (int i = first; i < first + count * times; i++) {
        char id[32];
        int number = first + (i - first) % count;

        snprintf(id, sizeof(id), "m%d", number);
        assert_int_equal(
            rd_kafka_producev(producer, RD_KAFKA_V_TOPIC("orders"),
                              RD_KAFKA_V_MSGFLAGS(RD_KAFKA_MSG_F_COPY),
                              RD_KAFKA_V_KEY(id, strlen(id)),
                              RD_KAFKA_V_VALUE(id, strlen(id)),
                              RD_KAFKA_V_HEADER("id", id, (ssize_t)strlen(id)),
                              RD_KAFKA_V_END),
            0);
    }
    assert_int_equal(rd_kafka_flush(producer, 30000), 0);
    rd_kafka_destroy(producer);
}

static enum idem_handled
count_effect(void *arg, const struct idem_message *message,
             struct idem_error *err)
{
    struct cluster *c = arg;
    int number = (int)strtol((const char *)message->id.data + 1, NULL, 10);

    (void)err;
    if (__atomic_fetch_add(&c->asked[number], 1, __ATOMIC_RELAXED) == 0 &&
        number < c->fail_first)
        return IDEM_NOT_HANDLED;
    __atomic_fetch_add(&c->effects[number], 1, __ATOMIC_RELAXED);
    return IDEM_HANDLED;
}

struct watcher {
    struct idem_consumer *consumer;
    uint64_t expected;
};

/* Stop when all expected messages have arrived, or after two minutes. */
static void *
stop_when_done(void *arg)
{
    struct watcher *w = arg;
    struct idem_consume_stats stats;
    int ticks = 0;

    do {
        usleep(20000);
        idem_consume_stats(w->consumer, &stats);
    } while (stats.handled + stats.duplicates < w->expected && ++ticks < 6000);
    idem_consume_stop(w->consumer);
    return NULL;
}

static void
consume(struct cluster *c, struct idem_engine *engine, uint64_t expected,
        struct idem_consume_stats *stats)
{
    const struct idem_consume_options options = {.source = c->source,
                                                 .consumer = "mail",
                                                 .handle = count_effect,
                                                 .arg = c,
                                                 .backoff_ms = 5};
    struct watcher watcher = {.expected = expected};
    struct idem_error err = {0};
    pthread_t thread;

    assert_int_equal(
        idem_consume_open(engine, &options, &watcher.consumer, &err), IDEM_OK);
    assert_int_equal(pthread_create(&thread, NULL, stop_when_done, &watcher),
                     0);
    assert_int_equal(idem_consume_run(watcher.consumer, &err), IDEM_OK);
    pthread_join(thread, NULL);
    idem_consume_stats(watcher.consumer, stats);
    idem_consume_close(watcher.consumer);
}

/* The sum of the group's committed offsets over all partitions. */
static int64_t
committed(struct cluster *c)
{
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    rd_kafka_topic_partition_list_t *list =
        rd_kafka_topic_partition_list_new(3);
    rd_kafka_t *client;
    int64_t sum = 0;
    char text[200];

    rd_kafka_conf_set(conf, "bootstrap.servers",
                      rd_kafka_mock_cluster_bootstraps(c->mock), text,
                      sizeof(text));
    rd_kafka_conf_set(conf, "group.id", "g", text, sizeof(text));
    client = rd_kafka_new(RD_KAFKA_CONSUMER, conf, text, sizeof(text));
    assert_non_null(client);
    for (int i = 0; i < 3; i++)
        rd_kafka_topic_partition_list_add(list, "orders", i);
    assert_int_equal(rd_kafka_committed(client, list, 20000), 0);
    for (int i = 0; i < 3; i++)
        sum += list->elems[i].offset > 0 ? list->elems[i].offset : 0;
    rd_kafka_topic_partition_list_destroy(list);
    rd_kafka_destroy(client);
    return sum;
}

static void
kafka_messages_are_handled_once_and_committed(void **state)
{
    struct cluster c;
    struct idem_engine *engine = NULL;
    struct idem_consume_stats stats;

    (void)state;
    open_cluster(&c);
    c.fail_first = 5;
    assert_int_equal(idem_open("memory:", NULL, &engine, NULL), IDEM_OK);
    publish(&c, 0, 200, 2);
    consume(&c, engine, 400, &stats);
    for (int i = 0; i < 200; i++)
        assert_int_equal(c.effects[i], 1);
    assert_int_equal(stats.duplicates, 200);
    assert_int_equal(stats.retries, 5);
    assert_int_equal(committed(&c), 400);

    /* All messages again, as after lost offsets: another group at the broker,
     * but the same consumer name in idem. */
    snprintf(c.source + strlen(c.source), 16, "2");
    consume(&c, engine, 400, &stats);
    assert_int_equal(stats.received, 400);
    assert_int_equal(stats.duplicates, 400);
    for (int i = 0; i < 200; i++)
        assert_int_equal(c.effects[i], 1);
    idem_close(engine);
    close_cluster(&c);
}

/* ---- Kafka refuses ------------------------------------------------------ */

/* What a consumer said, and how it handles: bad messages are poison. */
struct trial {
    struct cluster cluster;
    struct idem_engine *engine;
    char log[4000]; /* the mutex protects it */
    pthread_mutex_t mutex;
    int slow_ms;
    int64_t commits; /* do not stop before so many are committed */
};

static void
keep_log(void *arg, enum idem_log_level level, const char *text)
{
    struct trial *t = arg;
    size_t len;

    (void)level;
    pthread_mutex_lock(&t->mutex);
    len = strlen(t->log);
    snprintf(t->log + len, sizeof(t->log) - len, "%s\n", text);
    pthread_mutex_unlock(&t->mutex);
}

static enum idem_handled
handle_or_refuse(void *arg, const struct idem_message *message,
                 struct idem_error *err)
{
    struct trial *t = arg;

    if (((const char *)message->id.data)[0] == 'm') {
        usleep((useconds_t)t->slow_ms * 1000);
        return count_effect(&t->cluster, message, err);
    }
    idem__fail(err, IDEM_ERR_INVALID, "never");
    return IDEM_POISON;
}

static void
open_trial(struct trial *t)
{
    size_t len;

    memset(t, 0, sizeof(*t));
    pthread_mutex_init(&t->mutex, NULL);
    open_cluster(&t->cluster);
    len = strlen(t->cluster.source);
    snprintf(t->cluster.source + len, sizeof(t->cluster.source) - len,
             "&session_ms=4000");
    assert_int_equal(idem_open("memory:", NULL, &t->engine, NULL), IDEM_OK);
}

static void
close_trial(struct trial *t)
{
    idem_close(t->engine);
    close_cluster(&t->cluster);
    pthread_mutex_destroy(&t->mutex);
}

struct patience {
    struct trial *trial;
    struct idem_consumer *consumer;
    uint64_t expected;
};

static bool
has_log(struct trial *t)
{
    bool has;

    pthread_mutex_lock(&t->mutex);
    has = t->log[0] != 0;
    pthread_mutex_unlock(&t->mutex);
    return has;
}

/* Stop when so many deliveries are concluded or, if none is expected, something
 * was logged; or after two minutes. */
static void *
stop_at_last(void *arg)
{
    struct patience *p = arg;
    struct idem_consume_stats s = {0};

    for (int ticks = 0; ticks < 6000; ticks++) {
        usleep(20000);
        idem_consume_stats(p->consumer, &s);
        if (p->expected
                ? s.handled + s.duplicates + s.dead_letters >= p->expected &&
                      committed(&p->trial->cluster) >= p->trial->commits
                : has_log(p->trial))
            break;
    }
    idem_consume_stop(p->consumer);
    return NULL;
}

static void
consume_some(struct trial *t, const char *identity_by, int prefetch,
             uint64_t expected, struct idem_consume_stats *stats)
{
    const struct idem_consume_options options = {.source = t->cluster.source,
                                                 .consumer = "mail",
                                                 .identity = identity_by,
                                                 .concurrency = 1,
                                                 .prefetch = prefetch,
                                                 .handle = handle_or_refuse,
                                                 .arg = t,
                                                 .backoff_ms = 5,
                                                 .log = keep_log,
                                                 .log_arg = t};
    struct patience patience = {.trial = t, .expected = expected};
    struct idem_error err = {0};
    pthread_t thread;

    assert_int_equal(
        idem_consume_open(t->engine, &options, &patience.consumer, &err),
        IDEM_OK);
    assert_int_equal(pthread_create(&thread, NULL, stop_at_last, &patience), 0);
    assert_int_equal(idem_consume_run(patience.consumer, &err), IDEM_OK);
    pthread_join(thread, NULL);
    idem_consume_stats(patience.consumer, stats);
    idem_consume_close(patience.consumer);
}

static void
assert_handled_once(const struct trial *t, int count)
{
    for (int i = 0; i < count; i++)
        assert_int_equal(t->cluster.effects[i], 1);
}

enum { PRODUCE = 0, OFFSET_COMMIT = 8 };

/* The next request of this kind is refused, which librdkafka does not try
 * again. */
static void
refuse(struct trial *t, int16_t kind)
{
    rd_kafka_mock_push_request_errors(
        t->cluster.mock, kind, 1,
        kind == OFFSET_COMMIT ? RD_KAFKA_RESP_ERR_GROUP_AUTHORIZATION_FAILED
                              : RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED);
}

static void
a_commit_that_kafka_refuses_repeats_nothing(void **state)
{
    struct idem_consume_stats stats;
    struct trial t;

    (void)state;
    open_trial(&t);
    publish(&t.cluster, 0, 5, 1);
    refuse(&t, OFFSET_COMMIT);
    t.commits = 5; /* how many of them come twice is not known */
    consume_some(&t, NULL, 0, 6, &stats);
    assert_handled_once(&t, 5);
    assert_true(stats.reconnects >= 1 && stats.duplicates >= 1);
    assert_non_null(strstr(t.log, "cannot commit"));
    assert_int_equal(committed(&t.cluster), 5);
    close_trial(&t);
}

static void
publish_bare(struct cluster *c, const char *topic, const char *id)
{
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    char text[200];
    rd_kafka_t *producer;

    rd_kafka_conf_set(conf, "bootstrap.servers",
                      rd_kafka_mock_cluster_bootstraps(c->mock), text,
                      sizeof(text));
    producer = rd_kafka_new(RD_KAFKA_PRODUCER, conf, text, sizeof(text));
    assert_non_null(producer);
    if (id)
        assert_int_equal(
            rd_kafka_producev(producer, RD_KAFKA_V_TOPIC(topic),
                              RD_KAFKA_V_MSGFLAGS(RD_KAFKA_MSG_F_COPY),
                              RD_KAFKA_V_KEY("k", 1), RD_KAFKA_V_VALUE("x", 1),
                              RD_KAFKA_V_HEADER("id", id, (ssize_t)strlen(id)),
                              RD_KAFKA_V_HEADER("idem-reason", "old", 3),
                              RD_KAFKA_V_END),
            0);
    else
        assert_int_equal(
            rd_kafka_producev(producer, RD_KAFKA_V_TOPIC(topic),
                              RD_KAFKA_V_MSGFLAGS(RD_KAFKA_MSG_F_COPY),
                              RD_KAFKA_V_VALUE("", 0), RD_KAFKA_V_END),
            0);
    assert_int_equal(rd_kafka_flush(producer, 30000), 0);
    rd_kafka_destroy(producer);
}

static void
a_letter_that_kafka_refuses_is_written_later(void **state)
{
    struct idem_consume_stats stats;
    struct trial t;

    (void)state;
    open_trial(&t);
    publish(&t.cluster, 0, 3, 1);
    publish_bare(&t.cluster, "orders", "poison");
    refuse(&t, PRODUCE);
    consume_some(&t, NULL, 0, 3 + 2, &stats);
    assert_handled_once(&t, 3);
    assert_non_null(strstr(t.log, "cannot write a letter"));
    assert_int_equal(stats.dead_letters, 2);
    /* One letter, which says why in the only reason that it has. */
    snprintf(strstr(t.cluster.source, "orders"), 40, "orders.dead&group=d");
    consume_some(&t, "header:idem-reason", 0, 1, &stats);
    assert_int_equal(stats.received, 1);
    assert_non_null(strstr(t.log, "goes to orders.dead: never"));
    close_trial(&t);
}

/* It has no header and no key, so it has no identity but its position. */
static void
a_bare_kafka_message_is_known_by_its_position(void **state)
{
    struct idem_consume_stats stats;
    struct trial t;

    (void)state;
    open_trial(&t);
    publish_bare(&t.cluster, "orders", NULL);
    consume_some(&t, "position", 0, 1, &stats);
    assert_int_equal(stats.received, 1);
    assert_int_equal(stats.dead_letters, 1); /* its place begins with no m */
    assert_non_null(strstr(t.log, "never"));
    close_trial(&t);
}

static void
a_fetch_that_kafka_refuses_is_told_and_tried_again(void **state)
{
    struct idem_consume_stats stats;
    struct trial t;

    (void)state;
    open_trial(&t);
    rd_kafka_mock_topic_set_error(t.cluster.mock, "other",
                                  RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED);
    snprintf(strstr(t.cluster.source, "orders"), 40, "other&group=g");
    consume_some(&t, NULL, 0, 0, &stats);
    assert_non_null(strstr(t.log, "other"));
    close_trial(&t);
}

/* The member keeps polling, and takes no more than it may. */
static void
a_slow_handler_of_kafka_messages_gets_each_once(void **state)
{
    struct idem_consume_stats stats;
    struct trial t;

    (void)state;
    open_trial(&t);
    t.slow_ms = 1300;
    publish(&t.cluster, 0, 2, 1);
    consume_some(&t, NULL, 1, 2, &stats);
    assert_handled_once(&t, 2);
    assert_int_equal(stats.reconnects, 0);
    assert_int_equal(committed(&t.cluster), 2);
    close_trial(&t);
}

static void
settings_that_kafka_refuses_are_an_error(void **state)
{
    static const char *const wrong[] = {
        "kafka://h?topic=t&group=g&ca=/no/such/file",
        "kafka://h?topic=t&group=g&cert=/no/such/file",
        "kafka://h?topic=t&group=g&tls=1&key=/no/such/file",
        "kafka://ann@h?topic=t&group=g&sasl=NONE",
        "kafka://ann:pw@h?topic=t&group=g&tls=1&sasl=NONE"};
    struct idem_consume_options options = {
        .handle = handle_nothing, .own_record = true, .stop_when_idle_ms = 1};
    struct idem_consumer *consumer;
    struct idem_error err = {0};
    int64_t lag = -1;

    (void)state;
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        options.source = wrong[i];
        assert_int_equal(idem_consume_open(NULL, &options, &consumer, &err),
                         IDEM_OK);
        assert_int_equal(idem_consume_lag(consumer, &lag, &err),
                         IDEM_ERR_UNAVAILABLE);
        assert_int_equal(idem_consume_run(consumer, &err),
                         IDEM_ERR_UNAVAILABLE);
        assert_non_null(strstr(err.text, "cannot start"));
        idem_consume_close(consumer);
    }
}

/* An error is never a number. */
static void
a_lag_that_kafka_does_not_tell_is_an_error(void **state)
{
    struct idem_consume_options options = {.handle = handle_nothing,
                                           .own_record = true};
    struct idem_consumer *consumer;
    struct idem_error err = {0};
    struct trial t;
    int64_t lag = -1;

    (void)state;
    open_trial(&t);
    options.source = t.cluster.source;
    publish(&t.cluster, 0, 4, 1);
    assert_int_equal(idem_consume_open(NULL, &options, &consumer, &err),
                     IDEM_OK);
    assert_int_equal(idem_consume_lag(consumer, &lag, NULL), IDEM_OK);
    assert_int_equal(lag, 4);
    idem_consume_close(consumer);

    rd_kafka_mock_topic_set_error(t.cluster.mock, "other",
                                  RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED);
    snprintf(strstr(t.cluster.source, "orders"), 40, "other&group=g");
    assert_int_equal(idem_consume_open(NULL, &options, &consumer, &err),
                     IDEM_OK);
    assert_int_equal(idem_consume_lag(consumer, &lag, &err),
                     IDEM_ERR_UNAVAILABLE);
    assert_non_null(strstr(err.text, "cannot look at the topic"));
    assert_int_equal(lag, 4);
    idem_consume_close(consumer);
    close_trial(&t);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_identity_comes_from_where_it_was_asked_for),
        cmocka_unit_test(an_unknown_identity_is_refused),
        cmocka_unit_test(a_scope_is_the_whole_of_both_names),
        cmocka_unit_test(
            only_a_handler_with_its_own_record_does_without_an_engine),
        cmocka_unit_test(options_out_of_range_are_refused),
        cmocka_unit_test(kafka_messages_are_handled_once_and_committed),
        cmocka_unit_test(a_commit_that_kafka_refuses_repeats_nothing),
        cmocka_unit_test(a_letter_that_kafka_refuses_is_written_later),
        cmocka_unit_test(a_bare_kafka_message_is_known_by_its_position),
        cmocka_unit_test(a_fetch_that_kafka_refuses_is_told_and_tried_again),
        cmocka_unit_test(a_slow_handler_of_kafka_messages_gets_each_once),
        cmocka_unit_test(settings_that_kafka_refuses_are_an_error),
        cmocka_unit_test(a_lag_that_kafka_does_not_tell_is_an_error),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
