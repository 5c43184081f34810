/*
 * consume_test.c - identities, URLs, and Kafka on librdkafka's mock cluster.
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
    assert_string_equal(identity("position", d, id), "12-0");
    idem__delivery_copy(d, "p1", 2, &d->message_id);
    assert_string_equal(identity("id", d, id), "p1");

    text = malloc(1000); /* too long for an id: a digest replaces it */
    memset(text, 'x', 1000);
    idem__delivery_copy(d, text, 1000, &d->message_id);
    assert_int_equal(strlen(identity("id", d, id)), 7 + 64);
    free(text);
    idem__delivery_drop(d);
}

static void
an_unknown_identity_is_refused(void **state)
{
    struct identity identity;
    struct idem_error err;

    (void)state;
    assert_int_equal(idem__identity_parse("smell", &identity, &err),
                     IDEM_ERR_INVALID);
    assert_int_equal(idem__identity_parse("header:", &identity, &err),
                     IDEM_ERR_INVALID);
    assert_int_equal(idem__identity_parse("json:", &identity, &err),
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

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_identity_comes_from_where_it_was_asked_for),
        cmocka_unit_test(an_unknown_identity_is_refused),
        cmocka_unit_test(a_scope_is_the_whole_of_both_names),
        cmocka_unit_test(
            only_a_handler_with_its_own_record_does_without_an_engine),
        cmocka_unit_test(kafka_messages_are_handled_once_and_committed),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
