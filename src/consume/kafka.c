/*
 * kafka.c - messages from a Kafka topic (experimental: tested with librdkafka's
 * mock cluster, not yet with a real broker).
 *
 * Kafka has no acknowledgement of a single message, only the offset that a
 * group has reached in a partition. So each partition keeps the offsets that it
 * handed out, in order, and commits the first one that is not concluded yet. A
 * delivery that is put back rewinds the partition to it; later messages that
 * come again are recognised by their records.
 */
#include "consume.h"

#include "../base/address.h"

#include <librdkafka/rdkafka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SEND_MS 10000
#define REWIND_MS 2000
#define LAG_MS 5000
#define PAUSE_AFTER_US 1000000
#define SESSION_MAX_MS 3600000 /* librdkafka's limit */
#define TELL_EVERY_US 5000000

struct handed_out {
    int64_t offset;
    bool concluded;
};

struct partition {
    struct partition *next;
    int32_t number;
    struct handed_out *out; /* in the order of their offsets */
    size_t count, room;
};

struct kafka_source {
    struct source base;
    char servers[IDEM__ADDRESS_LEN];
    char session_ms[16], heartbeat_ms[24]; /* "": librdkafka's default */
    rd_kafka_t *consumer, *producer;
    struct partition *partitions;
    bool paused;
    int64_t pause_at_us; /* when to pause if no more is wanted; 0: more is */
    rd_kafka_resp_err_t letter; /* the outcome of the last letter */
    int64_t told_us;            /* when a problem was last logged */
};

static enum idem_status
fail(struct kafka_source *self, struct idem_error *err, const char *what,
     const char *text)
{
    return idem__fail(err, IDEM_ERR_UNAVAILABLE, "kafka %s: %s: %s",
                      self->servers, what, text);
}

static void
forget_partitions(struct kafka_source *self)
{
    while (self->partitions) {
        struct partition *p = self->partitions;

        self->partitions = p->next;
        free(p->out);
        free(p);
    }
}

/* After a rebalance the offsets that were handed out belong to other
 * members. */
static void
rebalance(rd_kafka_t *kafka, rd_kafka_resp_err_t code,
          rd_kafka_topic_partition_list_t *list, void *opaque)
{
    struct kafka_source *self = opaque;

    forget_partitions(self);
    self->paused = false;
    self->base.joining =
        code != RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS || list->cnt > 0;
    rd_kafka_assign(kafka,
                    code == RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS ? list : NULL);
}

static void
disconnect(struct kafka_source *self)
{
    if (self->consumer) {
        rd_kafka_consumer_close(self->consumer);
        rd_kafka_destroy(self->consumer);
    }
    if (self->producer) {
        rd_kafka_flush(self->producer, 1000);
        rd_kafka_destroy(self->producer);
    }
    self->consumer = self->producer = NULL;
    forget_partitions(self);
}

/* The broker's reply to a letter; called while write_letter waits for it. */
static void
delivered(rd_kafka_t *kafka, const rd_kafka_message_t *message, void *opaque)
{
    struct kafka_source *self = opaque;

    (void)kafka;
    self->letter = message->err;
}

struct kafka_setting {
    const char *name, *value; /* "": keep the default */
};

static bool
set_all(rd_kafka_conf_t *conf, const struct kafka_setting *settings, char *text,
        size_t text_len)
{
    bool set = true;

    for (; set && settings->name; settings++) {
        if (settings->value[0])
            set = rd_kafka_conf_set(conf, settings->name, settings->value, text,
                                    text_len) == RD_KAFKA_CONF_OK;
    }
    return set;
}

/* An option of the URL, or "". */
static const char *
said(const struct kafka_source *self, const char *option)
{
    const char *value = idem__url_option(&self->base.url, option);

    return value ? value : "";
}

/* Use TLS if tls=1 or one of its files is set, and log in if the URL has a
 * user. */
static bool
set_security(struct kafka_source *self, rd_kafka_conf_t *conf, char *text,
             size_t text_len)
{
    bool tls =
        said(self, "tls")[0] || said(self, "ca")[0] || said(self, "cert")[0];
    bool sasl = self->base.url.user != NULL;
    const struct kafka_setting settings[] = {
        {"security.protocol", tls && sasl ? "sasl_ssl"
                              : tls       ? "ssl"
                              : sasl      ? "sasl_plaintext"
                                          : ""},
        {"ssl.ca.location", said(self, "ca")},
        {"ssl.certificate.location", said(self, "cert")},
        {"ssl.key.location", said(self, "key")},
        {"sasl.mechanism", !sasl                   ? ""
                           : said(self, "sasl")[0] ? said(self, "sasl")
                                                   : "PLAIN"},
        {"sasl.username", sasl ? self->base.url.user : ""},
        {"sasl.password",
         sasl && self->base.url.password ? self->base.url.password : ""},
        {NULL, NULL}};

    return set_all(conf, settings, text, text_len);
}

static rd_kafka_t *
make_client(struct kafka_source *self, rd_kafka_type_t type,
            struct idem_error *err)
{
    const struct kafka_setting consumer[] = {
        {"bootstrap.servers", self->servers},
        {"group.id", self->base.group},
        {"enable.auto.commit", "false"},
        {"enable.partition.eof", "true"},
        {"auto.offset.reset", "earliest"},
        {"session.timeout.ms", self->session_ms},
        {"heartbeat.interval.ms", self->heartbeat_ms},
        {NULL, NULL}};
    const struct kafka_setting producer[] = {
        {"bootstrap.servers", self->servers},
        {"enable.idempotence", "true"},
        {NULL, NULL}};
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    char text[200] = "";
    rd_kafka_t *client = NULL;

    rd_kafka_conf_set_opaque(conf, self);
    if (type == RD_KAFKA_CONSUMER)
        rd_kafka_conf_set_rebalance_cb(conf, rebalance);
    else
        rd_kafka_conf_set_dr_msg_cb(conf, delivered);
    if (set_all(conf, type == RD_KAFKA_CONSUMER ? consumer : producer, text,
                sizeof(text)) &&
        set_security(self, conf, text, sizeof(text)))
        client = rd_kafka_new(type, conf, text, sizeof(text));
    if (!client) {
        rd_kafka_conf_destroy(conf);
        fail(self, err, "cannot start", text);
    }
    return client;
}

static enum idem_status
connect_source(struct source *source, struct idem_error *err)
{
    struct kafka_source *self = (struct kafka_source *)source;
    rd_kafka_topic_partition_list_t *topics;
    rd_kafka_resp_err_t code;

    disconnect(self);
    self->consumer = make_client(self, RD_KAFKA_CONSUMER, err);
    if (!self->consumer)
        return IDEM_ERR_UNAVAILABLE;
    rd_kafka_poll_set_consumer(self->consumer);
    self->base.joining = true;
    topics = rd_kafka_topic_partition_list_new(1);
    rd_kafka_topic_partition_list_add(topics, self->base.name,
                                      RD_KAFKA_PARTITION_UA);
    code = rd_kafka_subscribe(self->consumer, topics);
    rd_kafka_topic_partition_list_destroy(topics);
    return code ? fail(self, err, "cannot subscribe", rd_kafka_err2str(code))
                : IDEM_OK;
}

static struct partition *
find_partition(struct kafka_source *self, int32_t number, bool make)
{
    struct partition *p = self->partitions;

    while (p && p->number != number)
        p = p->next;
    if (p || !make)
        return p;
    p = calloc(1, sizeof(*p));
    if (!p)
        return NULL;
    p->number = number;
    p->next = self->partitions;
    self->partitions = p;
    return p;
}

static bool
hand_out(struct kafka_source *self, int32_t number, int64_t offset)
{
    struct partition *p = find_partition(self, number, true);
    struct handed_out *out =
        p ? idem__grow(p->out, p->count, &p->room, sizeof(*out)) : NULL;

    if (!out)
        return false;
    p->out = out;
    p->out[p->count++] = (struct handed_out){offset, false};
    return true;
}

static bool
copy_headers(struct delivery *d, const rd_kafka_message_t *message)
{
    rd_kafka_headers_t *headers;
    const char *name;
    const void *value;
    size_t len;

    if (rd_kafka_message_headers(message, &headers) !=
        RD_KAFKA_RESP_ERR_NO_ERROR)
        return true;
    for (size_t i = 0;
         rd_kafka_header_get_all(headers, i, &name, &value, &len) == 0; i++) {
        if (!idem__delivery_header(d, idem_text(name),
                                   (struct idem_bytes){value, len}))
            return false;
    }
    return true;
}

/* The identity of a message is a header or a field; its key is for ordering. */
static struct delivery *
to_delivery(const rd_kafka_message_t *message)
{
    struct delivery *d = idem__delivery_make();

    if (!d)
        return NULL;
    d->tag = (uint64_t)message->offset;
    snprintf(d->place, sizeof(d->place), "%d:%lld", (int)message->partition,
             (long long)message->offset);
    if (idem__delivery_copy(d, message->payload, message->len, &d->body) &&
        copy_headers(d, message) &&
        (!message->key ||
         idem__delivery_header(
             d, idem_text("kafka-key"),
             (struct idem_bytes){message->key, message->key_len})))
        return d;
    idem__delivery_drop(d);
    return NULL;
}

static void
set_paused(struct kafka_source *self, bool paused)
{
    rd_kafka_topic_partition_list_t *all;

    if (self->paused == paused ||
        rd_kafka_assignment(self->consumer, &all) != RD_KAFKA_RESP_ERR_NO_ERROR)
        return;
    if (paused)
        rd_kafka_pause_partitions(self->consumer, all);
    else
        rd_kafka_resume_partitions(self->consumer, all);
    rd_kafka_topic_partition_list_destroy(all);
    self->paused = paused;
}

/* A member of the group must keep polling even if it wants no messages for a
 * long time. Pausing discards what was fetched, so it does not pause at once.
 * False: do not poll now. */
static bool
may_poll(struct kafka_source *self, bool more)
{
    int64_t now_us = idem__system_clocks.boot_us(NULL);

    if (more) {
        self->pause_at_us = 0;
        set_paused(self, false);
        return true;
    }
    if (!self->pause_at_us)
        self->pause_at_us = now_us + PAUSE_AFTER_US;
    if (now_us < self->pause_at_us)
        return false;
    set_paused(self, true);
    return true;
}

/* librdkafka reconnects by itself; only errors that it calls fatal are
 * returned. */
static enum idem_status
see_trouble(struct kafka_source *self, const rd_kafka_message_t *message,
            struct idem_error *err)
{
    int64_t now_us = idem__system_clocks.boot_us(NULL);

    if (rd_kafka_fatal_error(self->consumer, NULL, 0))
        return fail(self, err, "lost", rd_kafka_message_errstr(message));
    if (message->err == RD_KAFKA_RESP_ERR__PARTITION_EOF ||
        (self->told_us && now_us - self->told_us < TELL_EVERY_US))
        return IDEM_OK;
    self->told_us = now_us;
    idem__log(self->base.log, IDEM_LOG_WARNING, "kafka %s: %s", self->servers,
              rd_kafka_message_errstr(message));
    return IDEM_OK;
}

static enum idem_status
take(struct source *source, int wait_ms, bool more, struct delivery **delivery,
     struct idem_error *err)
{
    struct kafka_source *self = (struct kafka_source *)source;
    rd_kafka_message_t *message;
    enum idem_status status = IDEM_OK;

    *delivery = NULL;
    if (!may_poll(self, more))
        return IDEM_OK;
    message = rd_kafka_consumer_poll(self->consumer, wait_ms);
    if (!message)
        return IDEM_OK;
    /* The first message, or the end of a partition. */
    if (!message->err || message->err == RD_KAFKA_RESP_ERR__PARTITION_EOF)
        self->base.joining = false;
    if (message->err) {
        status = see_trouble(self, message, err);
    } else {
        *delivery = to_delivery(message);
        if (!*delivery || !hand_out(self, message->partition, message->offset))
            status = idem__fail(err, IDEM_ERR_MEMORY, "kafka: out of memory");
        if (status != IDEM_OK) {
            idem__delivery_drop(*delivery);
            *delivery = NULL;
        }
    }
    rd_kafka_message_destroy(message);
    return status;
}

static enum idem_status
write_letter(struct kafka_source *self, const struct delivery *d,
             struct idem_error *err)
{
    const char *topic = idem__delivery_place(d, &self->base);
    struct idem_bytes key = {NULL, 0};
    rd_kafka_headers_t *headers;
    rd_kafka_resp_err_t code;

    if (!self->producer)
        self->producer = make_client(self, RD_KAFKA_PRODUCER, err);
    if (!self->producer)
        return IDEM_ERR_UNAVAILABLE;
    headers = rd_kafka_headers_new(d->header_count + 1);
    rd_kafka_header_add(headers, "idem-reason", -1, d->reason, -1);
    for (size_t i = 0; i < d->header_count; i++) {
        const struct idem_header *header = &d->headers[i];

        if (idem__bytes_is(header->name, "kafka-key"))
            key = header->value;
        else if (idem__delivery_header_is_own(header))
            rd_kafka_header_add(headers, header->name.data,
                                (ssize_t)header->name.len, header->value.data,
                                (ssize_t)header->value.len);
    }
    self->letter = RD_KAFKA_RESP_ERR__TIMED_OUT; /* until it is confirmed */
    code =
        rd_kafka_producev(self->producer, RD_KAFKA_V_TOPIC(topic),
                          RD_KAFKA_V_MSGFLAGS(RD_KAFKA_MSG_F_COPY),
                          RD_KAFKA_V_KEY((void *)key.data, key.len),
                          RD_KAFKA_V_VALUE((void *)d->body.data, d->body.len),
                          RD_KAFKA_V_HEADERS(headers), RD_KAFKA_V_END);
    if (code)
        rd_kafka_headers_destroy(headers);
    else
        rd_kafka_flush(self->producer, SEND_MS);
    code = code ? code : self->letter;
    return code ? fail(self, err, "cannot write a letter",
                       rd_kafka_err2str(code))
                : IDEM_OK;
}

/* The group is about to rebalance: messages that are not committed go to their
 * new owner, whose records recognise them. */
static bool
is_regrouping(rd_kafka_resp_err_t code)
{
    return code == RD_KAFKA_RESP_ERR_REBALANCE_IN_PROGRESS ||
           code == RD_KAFKA_RESP_ERR_ILLEGAL_GENERATION ||
           code == RD_KAFKA_RESP_ERR_UNKNOWN_MEMBER_ID;
}

static enum idem_status
commit(struct kafka_source *self, const struct partition *p, int64_t offset,
       struct idem_error *err)
{
    rd_kafka_topic_partition_list_t *list =
        rd_kafka_topic_partition_list_new(1);
    rd_kafka_resp_err_t code;

    rd_kafka_topic_partition_list_add(list, self->base.name, p->number)
        ->offset = offset;
    code = rd_kafka_commit(self->consumer, list, 0);
    rd_kafka_topic_partition_list_destroy(list);
    return code && !is_regrouping(code)
               ? fail(self, err, "cannot commit", rd_kafka_err2str(code))
               : IDEM_OK;
}

/* Commit up to the first offset that is not concluded. */
static enum idem_status
advance(struct kafka_source *self, struct partition *p, struct idem_error *err)
{
    size_t done = 0;
    int64_t next;

    while (done < p->count && p->out[done].concluded)
        done++;
    if (done == 0)
        return IDEM_OK;
    next = p->out[done - 1].offset + 1;
    memmove(p->out, p->out + done, (p->count - done) * sizeof(*p->out));
    p->count -= done;
    return commit(self, p, next, err);
}

static enum idem_status
rewind_to(struct kafka_source *self, struct partition *p, size_t at,
          struct idem_error *err)
{
    rd_kafka_topic_partition_list_t *list =
        rd_kafka_topic_partition_list_new(1);
    rd_kafka_error_t *trouble;
    enum idem_status status = IDEM_OK;

    rd_kafka_topic_partition_list_add(list, self->base.name, p->number)
        ->offset = p->out[at].offset;
    p->count = at;
    trouble = rd_kafka_seek_partitions(self->consumer, list, REWIND_MS);
    if (trouble) {
        status =
            fail(self, err, "cannot rewind", rd_kafka_error_string(trouble));
        rd_kafka_error_destroy(trouble);
    }
    rd_kafka_topic_partition_list_destroy(list);
    return status;
}

static enum idem_status
conclude_one(struct kafka_source *self, const struct delivery *d,
             struct idem_error *err)
{
    struct partition *p =
        find_partition(self, (int32_t)strtol(d->place, NULL, 10), false);
    enum idem_status status = IDEM_OK;
    size_t at = 0;

    if (idem__delivery_is_letter(d))
        status = write_letter(self, d, err);
    if (status != IDEM_OK || !p)
        return status;
    while (at < p->count && p->out[at].offset != (int64_t)d->tag)
        at++;
    if (at == p->count)
        return IDEM_OK; /* rewound or reassigned: it is delivered again */
    if (d->fate == FATE_PUT_BACK)
        return rewind_to(self, p, at, err);
    p->out[at].concluded = true;
    return IDEM_OK;
}

static enum idem_status
conclude(struct source *source, struct delivery *deliveries,
         struct idem_error *err)
{
    struct kafka_source *self = (struct kafka_source *)source;
    enum idem_status status = IDEM_OK;

    for (struct delivery *d = deliveries; d && status == IDEM_OK; d = d->next)
        status = conclude_one(self, d, err);
    for (struct partition *p = self->partitions; p && status == IDEM_OK;
         p = p->next)
        status = advance(self, p, err);
    return status;
}

/* All partitions of the topic; an empty list if *code is an error. */
static rd_kafka_topic_partition_list_t *
list_partitions(struct kafka_source *self, rd_kafka_resp_err_t *code)
{
    rd_kafka_topic_partition_list_t *list =
        rd_kafka_topic_partition_list_new(8);
    rd_kafka_topic_t *topic =
        rd_kafka_topic_new(self->consumer, self->base.name, NULL);
    const struct rd_kafka_metadata *about = NULL;

    *code = topic ? rd_kafka_metadata(self->consumer, 0, topic, &about, LAG_MS)
                  : rd_kafka_last_error();
    if (!*code) /* a topic that is not there has no partitions */
        *code = about->topic_cnt > 0 ? about->topics[0].err
                                     : RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART;
    for (int i = 0; !*code && i < about->topics[0].partition_cnt; i++)
        rd_kafka_topic_partition_list_add(list, self->base.name,
                                          about->topics[0].partitions[i].id);
    if (about)
        rd_kafka_metadata_destroy(about);
    if (topic)
        rd_kafka_topic_destroy(topic);
    return list;
}

/* The lag of the group: messages in each partition after the committed
 * offset. */
static enum idem_status
lag(struct source *source, int64_t *messages, struct idem_error *err)
{
    struct kafka_source *self = (struct kafka_source *)source;
    rd_kafka_topic_partition_list_t *list;
    rd_kafka_resp_err_t code;
    int64_t sum = 0;

    if (!self->consumer)
        self->consumer = make_client(self, RD_KAFKA_CONSUMER, err);
    if (!self->consumer)
        return IDEM_ERR_UNAVAILABLE;
    list = list_partitions(self, &code);
    if (!code)
        code = rd_kafka_committed(self->consumer, list, LAG_MS);
    for (int i = 0; !code && i < list->cnt; i++) {
        int64_t low = 0, high = 0, done = list->elems[i].offset;

        code = rd_kafka_query_watermark_offsets(self->consumer, self->base.name,
                                                list->elems[i].partition, &low,
                                                &high, LAG_MS);
        if (!code)
            sum += high - (done > low ? done : low);
    }
    rd_kafka_topic_partition_list_destroy(list);
    if (code)
        return fail(self, err, "cannot look at the topic",
                    rd_kafka_err2str(code));
    *messages = sum;
    return IDEM_OK;
}

static void
close_source(struct source *source)
{
    struct kafka_source *self = (struct kafka_source *)source;

    disconnect(self);
}

static const char *const known[] = {"topic", "group", "session_ms", "tls", "ca",
                                    "cert",  "key",   "sasl",       NULL};
#define EXAMPLE "kafka://host:9092?topic=orders&group=mail"

static void
keep_numbers(struct kafka_source *self, const struct idem__url *url,
             int64_t session_ms)
{
    if (session_ms) {
        snprintf(self->session_ms, sizeof(self->session_ms), "%lld",
                 (long long)session_ms);
        snprintf(self->heartbeat_ms, sizeof(self->heartbeat_ms), "%lld",
                 (long long)(session_ms + 2) / 3);
    }
    idem__address_write(url->hosts[0].name, url->hosts[0].port, self->servers);
}

static enum idem_status
open_source(struct source *source, const char *text, struct idem_error *err)
{
    struct kafka_source *self = (struct kafka_source *)source;
    const struct idem__url *url = &source->url;
    const struct source_name names[] = {
        {"topic", NULL, source->name}, {"group", NULL, source->group}, {0}};
    enum idem_status status = idem__source_names(source, names, EXAMPLE, err);
    int64_t session_ms;

    (void)text;
    if (status == IDEM_OK)
        status = idem__url_number(url, "session_ms", 1, SESSION_MAX_MS, 0,
                                  &session_ms, err);
    if (status == IDEM_OK && url->path)
        status = idem__fail(err, IDEM_ERR_INVALID,
                            "kafka: there is no path: write " EXAMPLE);
    if (status == IDEM_OK && idem__url_option(url, "sasl") && !url->user)
        status = idem__fail(err, IDEM_ERR_INVALID,
                            "kafka: sasl= needs a user and a password: "
                            "kafka://user:password@host:9093?...");
    if (status == IDEM_OK)
        keep_numbers(self, url, session_ms);
    return status;
}

const struct source_type idem__kafka_source = {
    .scheme = "kafka",
    .known = known,
    .size = sizeof(struct kafka_source),
    .open = open_source,
    .connect = connect_source,
    .take = take,
    .conclude = conclude,
    .lag = lag,
    .close = close_source,
};
