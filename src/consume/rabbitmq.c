/*
 * rabbitmq.c - messages from a RabbitMQ queue.
 *
 * One connection consumes with a prefetch limit and acknowledges by hand. A
 * second one, opened when the first letter is written, publishes dead letters
 * and doubts with publisher confirms: only a confirmed letter lets its delivery
 * be acknowledged, so a crash in between may repeat a letter but never loses
 * one.
 */
#ifdef IDEM_WITH_RABBITMQ

#include "consume.h"

#include <amqp.h>
#include <amqp_framing.h>
#include <amqp_tcp_socket.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHANNEL 1
#define HEARTBEAT_DEFAULT_S 10
#define FRAME_MAX 131072
#define CONNECT_S 5

struct rabbitmq_source {
    struct source base;
    struct broker_url url;
    const struct idem_store_options *log;
    int prefetch, heartbeat_s;
    amqp_connection_state_t consuming, publishing;
};

static enum idem_status
fail(struct rabbitmq_source *self, struct idem_error *err, const char *what,
     amqp_rpc_reply_t reply)
{
    const char *text = "the connection was closed";
    amqp_bytes_t told = {0, NULL};

    if (reply.reply_type == AMQP_RESPONSE_LIBRARY_EXCEPTION)
        text = amqp_error_string2(reply.library_error);
    if (reply.reply_type == AMQP_RESPONSE_SERVER_EXCEPTION &&
        reply.reply.id == AMQP_CHANNEL_CLOSE_METHOD)
        told = ((amqp_channel_close_t *)reply.reply.decoded)->reply_text;
    if (reply.reply_type == AMQP_RESPONSE_SERVER_EXCEPTION &&
        reply.reply.id == AMQP_CONNECTION_CLOSE_METHOD)
        told = ((amqp_connection_close_t *)reply.reply.decoded)->reply_text;
    if (told.len > 0)
        return idem__fail(err, IDEM_ERR_UNAVAILABLE, "rabbitmq %s:%d: %s: %.*s",
                          self->url.host, self->url.port, what,
                          told.len < 150 ? (int)told.len : 150,
                          (const char *)told.bytes);
    return idem__fail(err, IDEM_ERR_UNAVAILABLE, "rabbitmq %s:%d: %s: %s",
                      self->url.host, self->url.port, what, text);
}

static bool
went_well(amqp_rpc_reply_t reply)
{
    return reply.reply_type == AMQP_RESPONSE_NORMAL;
}

static void
disconnect(amqp_connection_state_t *connection)
{
    if (*connection)
        amqp_destroy_connection(*connection);
    *connection = NULL;
}

static enum idem_status
dial(struct rabbitmq_source *self, amqp_connection_state_t *connection,
     struct idem_error *err)
{
    struct timeval patience = {CONNECT_S, 0};
    amqp_socket_t *socket;
    amqp_rpc_reply_t reply;
    int rc;

    disconnect(connection);
    *connection = amqp_new_connection();
    socket = *connection ? amqp_tcp_socket_new(*connection) : NULL;
    if (!socket)
        return idem__fail(err, IDEM_ERR_MEMORY, "rabbitmq: out of memory");
    amqp_set_handshake_timeout(*connection, &patience);
    amqp_set_rpc_timeout(*connection, &patience);
    rc = amqp_socket_open_noblock(socket, self->url.host, self->url.port,
                                  &patience);
    if (rc != AMQP_STATUS_OK)
        return idem__fail(err, IDEM_ERR_UNAVAILABLE,
                          "rabbitmq %s:%d: cannot connect: %s", self->url.host,
                          self->url.port, amqp_error_string2(rc));
    reply = amqp_login(*connection, self->url.path[0] ? self->url.path : "/", 0,
                       FRAME_MAX, self->heartbeat_s, AMQP_SASL_METHOD_PLAIN,
                       self->url.user, self->url.password);
    if (!went_well(reply))
        return fail(self, err, "cannot log in", reply);
    amqp_channel_open(*connection, CHANNEL);
    reply = amqp_get_rpc_reply(*connection);
    return went_well(reply) ? IDEM_OK
                            : fail(self, err, "cannot open a channel", reply);
}

static enum idem_status
declare(struct rabbitmq_source *self, const char *queue, bool passive,
        struct idem_error *err)
{
    amqp_rpc_reply_t reply;

    amqp_queue_declare(self->consuming, CHANNEL, amqp_cstring_bytes(queue),
                       passive, 1, 0, 0, amqp_empty_table);
    reply = amqp_get_rpc_reply(self->consuming);
    return went_well(reply)
               ? IDEM_OK
               : fail(self, err,
                      passive ? "no such queue (create it first)"
                              : "cannot create the queue for letters",
                      reply);
}

static enum idem_status
connect_source(struct source *source, struct idem_error *err)
{
    struct rabbitmq_source *self = (struct rabbitmq_source *)source;
    enum idem_status status = dial(self, &self->consuming, err);
    amqp_rpc_reply_t reply;

    disconnect(&self->publishing);
    if (status == IDEM_OK)
        status = declare(self, self->base.name, true, err);
    if (status == IDEM_OK)
        status = declare(self, self->base.dead_letter, false, err);
    if (status == IDEM_OK)
        status = declare(self, self->base.doubt, false, err);
    if (status != IDEM_OK)
        return status;
    amqp_basic_qos(self->consuming, CHANNEL, 0, (uint16_t)self->prefetch, 0);
    reply = amqp_get_rpc_reply(self->consuming);
    if (!went_well(reply))
        return fail(self, err, "cannot set the prefetch", reply);
    amqp_basic_consume(self->consuming, CHANNEL,
                       amqp_cstring_bytes(self->base.name), amqp_empty_bytes, 0,
                       0, 0, amqp_empty_table);
    reply = amqp_get_rpc_reply(self->consuming);
    return went_well(reply) ? IDEM_OK
                            : fail(self, err, "cannot consume", reply);
}

static bool
copy_headers(struct delivery *d, const amqp_table_t *table)
{
    for (int i = 0; i < table->num_entries; i++) {
        const amqp_table_entry_t *entry = &table->entries[i];
        struct idem_bytes name = {entry->key.bytes, entry->key.len}, value;
        char number[32];

        switch (entry->value.kind) {
        case AMQP_FIELD_KIND_UTF8:
        case AMQP_FIELD_KIND_BYTES:
            value = (struct idem_bytes){entry->value.value.bytes.bytes,
                                        entry->value.value.bytes.len};
            break;
        case AMQP_FIELD_KIND_I32:
            snprintf(number, sizeof(number), "%d", entry->value.value.i32);
            value = idem_text(number);
            break;
        case AMQP_FIELD_KIND_I64:
            snprintf(number, sizeof(number), "%lld",
                     (long long)entry->value.value.i64);
            value = idem_text(number);
            break;
        default:
            continue; /* tables and lists are nobody's identity */
        }
        if (!delivery_header(d, name, value))
            return false;
    }
    return true;
}

static struct delivery *
to_delivery(const amqp_envelope_t *envelope)
{
    const amqp_message_t *message = &envelope->message;
    const amqp_basic_properties_t *properties = &message->properties;
    struct delivery *d = delivery_make();
    bool copied;

    if (!d)
        return NULL;
    d->tag = envelope->delivery_tag;
    snprintf(d->place, sizeof(d->place), "%llu", (unsigned long long)d->tag);
    copied = delivery_copy(d, message->body.bytes, message->body.len, &d->body);
    if (copied && properties->_flags & AMQP_BASIC_MESSAGE_ID_FLAG)
        copied = delivery_copy(d, properties->message_id.bytes,
                               properties->message_id.len, &d->message_id);
    if (copied && properties->_flags & AMQP_BASIC_CONTENT_TYPE_FLAG)
        copied =
            delivery_header(d, idem_text("content-type"),
                            (struct idem_bytes){properties->content_type.bytes,
                                                properties->content_type.len});
    if (copied && properties->_flags & AMQP_BASIC_HEADERS_FLAG)
        copied = copy_headers(d, &properties->headers);
    if (copied)
        return d;
    delivery_drop(d);
    return NULL;
}

static enum idem_status
take(struct source *source, int wait_ms, bool more, struct delivery **delivery,
     struct idem_error *err)
{
    struct rabbitmq_source *self = (struct rabbitmq_source *)source;
    struct timeval wait = {wait_ms / 1000, wait_ms % 1000 * 1000};
    amqp_envelope_t envelope;
    amqp_rpc_reply_t reply;

    (void)more; /* the broker keeps to the prefetch; heartbeats must go on */
    *delivery = NULL;
    amqp_maybe_release_buffers(self->consuming);
    reply = amqp_consume_message(self->consuming, &envelope, &wait, 0);
    if (reply.reply_type == AMQP_RESPONSE_LIBRARY_EXCEPTION &&
        reply.library_error == AMQP_STATUS_TIMEOUT)
        return IDEM_OK;
    if (!went_well(reply))
        return fail(self, err, "lost the connection", reply);
    *delivery = to_delivery(&envelope);
    amqp_destroy_envelope(&envelope);
    return *delivery
               ? IDEM_OK
               : idem__fail(err, IDEM_ERR_MEMORY, "rabbitmq: out of memory");
}

/* Wait for the broker's word on the letter that was just published. */
static enum idem_status
await_confirm(struct rabbitmq_source *self, struct idem_error *err)
{
    struct timeval patience = {CONNECT_S, 0};
    amqp_frame_t frame;
    int rc;

    do {
        rc =
            amqp_simple_wait_frame_noblock(self->publishing, &frame, &patience);
        if (rc != AMQP_STATUS_OK)
            return idem__fail(err, IDEM_ERR_UNAVAILABLE,
                              "rabbitmq: a letter was not confirmed: %s",
                              amqp_error_string2(rc));
    } while (frame.frame_type != AMQP_FRAME_METHOD);
    if (frame.payload.method.id != AMQP_BASIC_ACK_METHOD)
        return idem__fail(err, IDEM_ERR_UNAVAILABLE,
                          "rabbitmq: the broker refused a letter");
    return IDEM_OK;
}

static enum idem_status
open_publishing(struct rabbitmq_source *self, struct idem_error *err)
{
    enum idem_status status = dial(self, &self->publishing, err);
    amqp_rpc_reply_t reply;

    if (status != IDEM_OK)
        return status;
    amqp_confirm_select(self->publishing, CHANNEL);
    reply = amqp_get_rpc_reply(self->publishing);
    return went_well(reply) ? IDEM_OK
                            : fail(self, err, "cannot ask for confirms", reply);
}

static amqp_bytes_t
amqp_bytes_of(struct idem_bytes bytes)
{
    return (amqp_bytes_t){bytes.len, (void *)bytes.data};
}

static amqp_table_entry_t
text_entry(amqp_bytes_t name, amqp_bytes_t value)
{
    return (amqp_table_entry_t){
        .key = name,
        .value = {.kind = AMQP_FIELD_KIND_UTF8, .value.bytes = value}};
}

/* The message as it came (its headers as text), and the reason. */
static void
describe_letter(const struct delivery *d, amqp_table_entry_t *entries,
                amqp_basic_properties_t *properties)
{
    int count = 1;

    entries[0] = text_entry(amqp_cstring_bytes("x-idem-reason"),
                            amqp_cstring_bytes(d->reason));
    properties->_flags =
        AMQP_BASIC_DELIVERY_MODE_FLAG | AMQP_BASIC_HEADERS_FLAG;
    properties->delivery_mode = 2;
    for (size_t i = 0; i < d->header_count; i++) {
        const struct idem_header *header = &d->headers[i];

        if (idem__bytes_is(header->name, "content-type")) {
            properties->_flags |= AMQP_BASIC_CONTENT_TYPE_FLAG;
            properties->content_type = amqp_bytes_of(header->value);
        } else if (delivery_header_is_own(header)) {
            entries[count++] = text_entry(amqp_bytes_of(header->name),
                                          amqp_bytes_of(header->value));
        }
    }
    properties->headers = (amqp_table_t){count, entries};
    if (d->message_id.len > 0) {
        properties->_flags |= AMQP_BASIC_MESSAGE_ID_FLAG;
        properties->message_id = amqp_bytes_of(d->message_id);
    }
}

static enum idem_status
write_letter(struct rabbitmq_source *self, const struct delivery *d,
             const char *queue, struct idem_error *err)
{
    amqp_table_entry_t entries[HEADERS_MAX + 1];
    amqp_basic_properties_t properties = {0};
    enum idem_status status;
    int rc;

    if (!self->publishing) {
        status = open_publishing(self, err);
        if (status != IDEM_OK)
            return status;
    }
    describe_letter(d, entries, &properties);
    /* Mandatory: a letter for a queue that somebody deleted comes back instead
     * of being confirmed and dropped. */
    rc = amqp_basic_publish(self->publishing, CHANNEL, amqp_empty_bytes,
                            amqp_cstring_bytes(queue), 1, 0, &properties,
                            amqp_bytes_of(d->body));
    if (rc != AMQP_STATUS_OK)
        return idem__fail(err, IDEM_ERR_UNAVAILABLE,
                          "rabbitmq: cannot write a letter: %s",
                          amqp_error_string2(rc));
    return await_confirm(self, err);
}

static enum idem_status
conclude_one(struct rabbitmq_source *self, const struct delivery *d,
             struct idem_error *err)
{
    enum idem_status status = IDEM_OK;
    int rc;

    if (d->fate == FATE_DEAD_LETTER)
        status = write_letter(self, d, self->base.dead_letter, err);
    else if (d->fate == FATE_DOUBT)
        status = write_letter(self, d, self->base.doubt, err);
    if (status != IDEM_OK)
        return status;
    rc = d->fate == FATE_PUT_BACK
             ? amqp_basic_nack(self->consuming, CHANNEL, d->tag, 0, 1)
             : amqp_basic_ack(self->consuming, CHANNEL, d->tag, 0);
    if (rc != AMQP_STATUS_OK)
        return idem__fail(err, IDEM_ERR_UNAVAILABLE,
                          "rabbitmq: cannot acknowledge: %s",
                          amqp_error_string2(rc));
    return IDEM_OK;
}

static enum idem_status
conclude(struct source *source, struct delivery *deliveries,
         struct idem_error *err)
{
    struct rabbitmq_source *self = (struct rabbitmq_source *)source;
    enum idem_status status = IDEM_OK;

    for (struct delivery *d = deliveries; d && status == IDEM_OK; d = d->next)
        status = conclude_one(self, d, err);
    return status;
}

static void
close_source(struct source *source)
{
    struct rabbitmq_source *self = (struct rabbitmq_source *)source;

    if (!self)
        return;
    disconnect(&self->consuming);
    disconnect(&self->publishing);
    free(self);
}

static enum idem_status
open_source(const struct source_settings *settings, struct source **source,
            struct idem_error *err)
{
    struct rabbitmq_source *self = calloc(1, sizeof(*self));
    enum idem_status status;
    char heartbeat[8];

    if (!self)
        return idem__fail(err, IDEM_ERR_MEMORY, "rabbitmq: out of memory");
    self->base.type = &idem__rabbitmq_source;
    self->log = settings->log;
    self->prefetch = settings->prefetch;
    status = broker_url_parse(settings->url, &self->url, err);
    if (status == IDEM_OK &&
        !broker_url_param(&self->url, "queue", self->base.name,
                          sizeof(self->base.name)))
        status = idem__fail(err, IDEM_ERR_INVALID,
                            "amqp: name the queue: amqp://host?queue=orders");
    if (status != IDEM_OK) {
        free(self);
        return status;
    }
    self->heartbeat_s = HEARTBEAT_DEFAULT_S;
    if (broker_url_param(&self->url, "heartbeat", heartbeat,
                         sizeof(heartbeat)) &&
        strtol(heartbeat, NULL, 10) > 0)
        self->heartbeat_s = (int)strtol(heartbeat, NULL, 10);
    if (!self->url.port)
        self->url.port = 5672;
    if (!self->url.user[0]) {
        snprintf(self->url.user, sizeof(self->url.user), "guest");
        snprintf(self->url.password, sizeof(self->url.password), "guest");
    }
    source_name_letters(&self->base, settings);
    *source = &self->base;
    return IDEM_OK;
}

const struct source_type idem__rabbitmq_source = {
    .scheme = "amqp",
    .open = open_source,
    .connect = connect_source,
    .take = take,
    .conclude = conclude,
    .close = close_source,
};

#endif
