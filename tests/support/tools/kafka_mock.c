/*
 * kafka_mock.c - librdkafka's mock cluster as a process of its own, so that
 * consumers can be killed and the broker can be away.
 *
 * Prints where it listens, then obeys lines on standard input (fields with a
 * tab between them) and answers each with what it found and a line ".":
 *
 *   send TOPIC BODY [NAME VALUE]...     with headers
 *   flush                               everything sent has arrived
 *   read TOPIC                          BODY [NAME VALUE]... a line
 *   down, up                            the broker goes away, comes back
 */
#include <librdkafka/rdkafka.h>
#include <librdkafka/rdkafka_mock.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PARTITIONS 3
#define FIELDS_MAX 64

static rd_kafka_mock_cluster_t *cluster;
static rd_kafka_t *producer;

static void
die(const char *what, const char *why)
{
    fprintf(stderr, "kafka_mock: %s: %s\n", what, why);
    exit(1);
}

static rd_kafka_t *
make_client(rd_kafka_type_t type)
{
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    char text[200] = "";
    rd_kafka_t *client;

    if (cluster)
        rd_kafka_conf_set(conf, "bootstrap.servers",
                          rd_kafka_mock_cluster_bootstraps(cluster), text,
                          sizeof(text));
    if (type == RD_KAFKA_CONSUMER) {
        rd_kafka_conf_set(conf, "group.id", "reader", text, sizeof(text));
        rd_kafka_conf_set(conf, "enable.partition.eof", "true", text,
                          sizeof(text));
    }
    client = rd_kafka_new(type, conf, text, sizeof(text));
    if (!client)
        die("client", text);
    return client;
}

static void
send_message(char **field, int count)
{
    rd_kafka_headers_t *headers = rd_kafka_headers_new(8);
    rd_kafka_resp_err_t code;

    for (int i = 3; i + 1 < count; i += 2)
        rd_kafka_header_add(headers, field[i], -1, field[i + 1], -1);
    do {
        code = rd_kafka_producev(producer, RD_KAFKA_V_TOPIC(field[1]),
                                 RD_KAFKA_V_MSGFLAGS(RD_KAFKA_MSG_F_COPY),
                                 RD_KAFKA_V_VALUE(field[2], strlen(field[2])),
                                 RD_KAFKA_V_HEADERS(headers), RD_KAFKA_V_END);
        rd_kafka_poll(producer, code ? 50 : 0);
    } while (code == RD_KAFKA_RESP_ERR__QUEUE_FULL);
    if (code)
        die("send", rd_kafka_err2str(code));
}

static void
print_message(const rd_kafka_message_t *message)
{
    rd_kafka_headers_t *headers;
    const char *name;
    const void *value;
    size_t len;

    printf("%.*s", (int)message->len, (const char *)message->payload);
    if (rd_kafka_message_headers(message, &headers) == 0) {
        for (size_t i = 0;
             rd_kafka_header_get_all(headers, i, &name, &value, &len) == 0; i++)
            printf("\t%s\t%.*s", name, (int)len, (const char *)value);
    }
    printf("\n");
}

static void
read_topic(const char *topic)
{
    rd_kafka_topic_partition_list_t *list =
        rd_kafka_topic_partition_list_new(PARTITIONS);
    rd_kafka_t *consumer = make_client(RD_KAFKA_CONSUMER);
    int ended = 0;

    for (int i = 0; i < PARTITIONS; i++)
        rd_kafka_topic_partition_list_add(list, topic, i)->offset =
            RD_KAFKA_OFFSET_BEGINNING;
    rd_kafka_assign(consumer, list);
    while (ended < PARTITIONS) {
        rd_kafka_message_t *message = rd_kafka_consumer_poll(consumer, 100);

        if (message && !message->err)
            print_message(message);
        else if (message && message->err == RD_KAFKA_RESP_ERR__PARTITION_EOF)
            ended++;
        if (message)
            rd_kafka_message_destroy(message);
    }
    rd_kafka_topic_partition_list_destroy(list);
    rd_kafka_consumer_close(consumer);
    rd_kafka_destroy(consumer);
}

static void
obey(char *line)
{
    char *field[FIELDS_MAX], *rest;
    int count = 0;

    for (char *at = strtok_r(line, "\t\n", &rest); at && count < FIELDS_MAX;
         at = strtok_r(NULL, "\t\n", &rest))
        field[count++] = at;
    if (count >= 3 && strcmp(field[0], "send") == 0) {
        send_message(field, count);
        return;
    }
    if (count == 2 && strcmp(field[0], "read") == 0)
        read_topic(field[1]);
    else if (count == 1 && strcmp(field[0], "flush") == 0)
        rd_kafka_flush(producer, 60000);
    else if (count == 1 && strcmp(field[0], "down") == 0)
        rd_kafka_mock_broker_set_down(cluster, 1);
    else if (count == 1 && strcmp(field[0], "up") == 0)
        rd_kafka_mock_broker_set_up(cluster, 1);
    else
        die("no such command", line);
    printf(".\n");
    fflush(stdout);
}

int
main(void)
{
    rd_kafka_t *host = make_client(RD_KAFKA_PRODUCER);
    char *line = NULL;
    size_t room = 0;

    cluster = rd_kafka_mock_cluster_new(host, 1);
    if (!cluster)
        die("mock cluster", "cannot start");
    rd_kafka_mock_topic_create(cluster, "orders", PARTITIONS, 1);
    rd_kafka_mock_topic_create(cluster, "orders.dead", PARTITIONS, 1);
    rd_kafka_mock_topic_create(cluster, "orders.doubt", PARTITIONS, 1);
    producer = make_client(RD_KAFKA_PRODUCER);
    printf("%s\n", rd_kafka_mock_cluster_bootstraps(cluster));
    fflush(stdout);
    while (getline(&line, &room, stdin) > 0)
        obey(line);
    free(line);
    rd_kafka_destroy(producer);
    rd_kafka_mock_cluster_destroy(cluster);
    rd_kafka_destroy(host);
    return 0;
}
