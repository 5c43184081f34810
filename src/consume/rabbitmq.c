/*
 * rabbitmq.c - messages from a RabbitMQ queue.
 *
 * One connection consumes with a prefetch limit and manual acknowledgements. A
 * second one, opened for the first letter, publishes dead letters and doubts
 * with publisher confirms. A delivery is acknowledged only after its letter was
 * confirmed, so a crash in between may repeat a letter but never loses one. The
 * second connection has no heartbeat, because nothing serves it between two
 * letters.
 */
#include "consume.h"

#if __has_include(<rabbitmq-c/amqp.h>) /* from version 0.12 on */
#include <rabbitmq-c/amqp.h>
#include <rabbitmq-c/framing.h>
#include <rabbitmq-c/ssl_socket.h>
#include <rabbitmq-c/tcp_socket.h>
#else
#include <amqp.h>
#include <amqp_framing.h>
#include <amqp_ssl_socket.h>
#include <amqp_tcp_socket.h>
#endif
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHANNEL 1
#define CONSUMER "idem"
#define HEARTBEAT_DEFAULT_S 10
#define HEARTBEAT_MAX_S 3600
#define FRAME_MAX 131072
#define CONNECT_S 5
#define SYSTEM_CA "/etc/ssl/certs/ca-certificates.crt"

struct rabbitmq_source {
    struct source base;
    int heartbeat_s;
    bool tls;
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
        return idem__fail(
            err, IDEM_ERR_UNAVAILABLE, "rabbitmq %s:%d: %s: %.*s",
            self->base.url.hosts[0].name, self->base.url.hosts[0].port, what,
            told.len < 150 ? (int)told.len : 150, (const char *)told.bytes);
    return idem__fail(err, IDEM_ERR_UNAVAILABLE, "rabbitmq %s:%d: %s: %s",
                      self->base.url.hosts[0].name,
                      self->base.url.hosts[0].port, what, text);
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

/* The broker reports that a queue was deleted or moved only to clients that
 * announce this capability. */
static amqp_rpc_reply_t
log_in(struct rabbitmq_source *self, amqp_connection_state_t connection,
       int heartbeat_s)
{
    amqp_table_entry_t hears = {
        .key = amqp_cstring_bytes("consumer_cancel_notify"),
        .value = {.kind = AMQP_FIELD_KIND_BOOLEAN, .value.boolean = 1}};
    amqp_table_entry_t can = {
        .key = amqp_cstring_bytes("capabilities"),
        .value = {.kind = AMQP_FIELD_KIND_TABLE, .value.table = {1, &hears}}};
    const amqp_table_t properties = {1, &can};

    return amqp_login_with_properties(
        connection, self->base.url.path ? self->base.url.path : "/", 0,
        FRAME_MAX, heartbeat_s, &properties, AMQP_SASL_METHOD_PLAIN,
        self->base.url.user ? self->base.url.user : "guest",
        self->base.url.user && self->base.url.password ? self->base.url.password
        : self->base.url.user                          ? ""
                                                       : "guest");
}

static enum idem_status
open_channel(struct rabbitmq_source *self, amqp_connection_state_t connection,
             struct idem_error *err)
{
    amqp_rpc_reply_t reply;

    amqp_channel_open(connection, CHANNEL);
    reply = amqp_get_rpc_reply(connection);
    return went_well(reply) ? IDEM_OK
                            : fail(self, err, "cannot open a channel", reply);
}

/* The socket belongs to the connection. NULL: out of memory, or a file cannot
 * be read; err says which. */
static amqp_socket_t *
make_socket(struct rabbitmq_source *self, amqp_connection_state_t connection,
            struct idem_error *err)
{
    const char *ca = idem__url_option(&self->base.url, "ca"),
               *cert = idem__url_option(&self->base.url, "cert"),
               *key = idem__url_option(&self->base.url, "key");
    amqp_socket_t *socket = self->tls ? amqp_ssl_socket_new(connection)
                                      : amqp_tcp_socket_new(connection);
    int rc = AMQP_STATUS_OK;

    if (!socket || !self->tls)
        return socket;
    amqp_ssl_socket_set_verify_peer(socket, 1);
    amqp_ssl_socket_set_verify_hostname(socket, 1);
    amqp_ssl_socket_set_ssl_versions(socket, AMQP_TLSv1_2, AMQP_TLSvLATEST);
    rc = amqp_ssl_socket_set_cacert(socket, ca ? ca : SYSTEM_CA);
    if (rc == AMQP_STATUS_OK && cert)
        rc = amqp_ssl_socket_set_key(socket, cert, key);
    if (rc == AMQP_STATUS_OK)
        return socket;
    idem__fail(err, IDEM_ERR_INVALID,
               "rabbitmq: the files of ca=, cert= or key= cannot be used: %s",
               amqp_error_string2(rc));
    return NULL;
}

static enum idem_status
dial(struct rabbitmq_source *self, amqp_connection_state_t *connection,
     int heartbeat_s, struct idem_error *err)
{
    struct timeval patience = {CONNECT_S, 0};
    amqp_socket_t *socket;
    amqp_rpc_reply_t reply;
    int rc;

    disconnect(connection);
    *connection = amqp_new_connection();
    idem__fail(err, IDEM_ERR_MEMORY, "rabbitmq: out of memory");
    socket = *connection ? make_socket(self, *connection, err) : NULL;
    if (!socket)
        return err->status;
    amqp_set_handshake_timeout(*connection, &patience);
    amqp_set_rpc_timeout(*connection, &patience);
    rc = amqp_socket_open_noblock(socket, self->base.url.hosts[0].name,
                                  self->base.url.hosts[0].port, &patience);
    if (rc != AMQP_STATUS_OK)
        return idem__fail(err, IDEM_ERR_UNAVAILABLE,
                          "rabbitmq %s:%d: cannot connect: %s%s",
                          self->base.url.hosts[0].name,
                          self->base.url.hosts[0].port, amqp_error_string2(rc),
                          rc == AMQP_STATUS_SOCKET_ERROR
                              ? " (refused, or no route): is the broker "
                                "running at this host and port?"
                              : "");
    reply = log_in(self, *connection, heartbeat_s);
    return went_well(reply) ? open_channel(self, *connection, err)
                            : fail(self, err, "cannot log in", reply);
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

/* Create a queue for letters only if it is missing; an existing one is used
 * as it is. If a client asks for a missing queue, the broker closes its
 * channel. */
static enum idem_status
make_queue(struct rabbitmq_source *self, const char *queue,
           struct idem_error *err)
{
    amqp_channel_close_ok_t ok = {0};
    enum idem_status status = declare(self, queue, true, err);

    if (status == IDEM_OK)
        return IDEM_OK;
    amqp_send_method(self->consuming, CHANNEL, AMQP_CHANNEL_CLOSE_OK_METHOD,
                     &ok);
    status = open_channel(self, self->consuming, err);
    return status == IDEM_OK ? declare(self, queue, false, err) : status;
}

static enum idem_status
connect_source(struct source *source, struct idem_error *err)
{
    struct rabbitmq_source *self = (struct rabbitmq_source *)source;
    enum idem_status status =
        dial(self, &self->consuming, self->heartbeat_s, err);
    amqp_rpc_reply_t reply;

    disconnect(&self->publishing);
    if (status == IDEM_OK)
        status = declare(self, self->base.name, true, err);
    if (status == IDEM_OK)
        status = make_queue(self, self->base.dead_letter, err);
    if (status == IDEM_OK)
        status = make_queue(self, self->base.doubt, err);
    if (status != IDEM_OK)
        return status;
    amqp_basic_qos(self->consuming, CHANNEL, 0, (uint16_t)self->base.prefetch,
                   0);
    reply = amqp_get_rpc_reply(self->consuming);
    if (!went_well(reply))
        return fail(self, err, "cannot set the prefetch", reply);
    amqp_basic_consume(self->consuming, CHANNEL,
                       amqp_cstring_bytes(self->base.name),
                       amqp_cstring_bytes(CONSUMER), 0, 0, 0, amqp_empty_table);
    reply = amqp_get_rpc_reply(self->consuming);
    return went_well(reply) ? IDEM_OK
                            : fail(self, err, "cannot consume", reply);
}

/* Producers encode an integer in as few bytes as it needs. */
static bool
whole_number(const amqp_field_value_t *field, char *text, size_t text_len)
{
    int64_t number;

    switch (field->kind) {
    case AMQP_FIELD_KIND_I8:
        number = field->value.i8;
        break;
    case AMQP_FIELD_KIND_U8:
        number = field->value.u8;
        break;
    case AMQP_FIELD_KIND_I16:
        number = field->value.i16;
        break;
    case AMQP_FIELD_KIND_U16:
        number = field->value.u16;
        break;
    case AMQP_FIELD_KIND_I32:
        number = field->value.i32;
        break;
    case AMQP_FIELD_KIND_U32:
        number = field->value.u32;
        break;
    case AMQP_FIELD_KIND_I64:
    case AMQP_FIELD_KIND_U64: /* signed, as in RabbitMQ */
    case AMQP_FIELD_KIND_TIMESTAMP:
        number = field->value.i64;
        break;
    default:
        return false;
    }
    snprintf(text, text_len, "%lld", (long long)number);
    return true;
}

static bool
copy_headers(struct delivery *d, const amqp_table_t *table)
{
    for (int i = 0; i < table->num_entries; i++) {
        const amqp_table_entry_t *entry = &table->entries[i];
        const amqp_field_value_t *field = &entry->value;
        struct idem_bytes name = {entry->key.bytes, entry->key.len}, value;
        char number[32];

        if (field->kind == AMQP_FIELD_KIND_UTF8 ||
            field->kind == AMQP_FIELD_KIND_BYTES)
            value = (struct idem_bytes){field->value.bytes.bytes,
                                        field->value.bytes.len};
        else if (whole_number(field, number, sizeof(number)))
            value = idem_text(number);
        else
            continue; /* tables and lists cannot be an identity */
        if (!idem__delivery_header(d, name, value))
            return false;
    }
    return true;
}

static void
drop_message(void *message)
{
    amqp_destroy_message(message);
    free(message);
}

/* Moves the message from the envelope into the delivery; the body is copied. */
static struct delivery *
to_delivery(amqp_envelope_t *envelope)
{
    amqp_message_t *message = malloc(sizeof(*message));
    const amqp_basic_properties_t *properties = &envelope->message.properties;
    struct delivery *d = idem__delivery_make();
    bool copied;

    if (!d || !message) {
        idem__delivery_drop(d);
        free(message);
        return NULL;
    }
    d->tag = envelope->delivery_tag;
    snprintf(d->place, sizeof(d->place), "%llu", (unsigned long long)d->tag);
    copied = idem__delivery_copy(d, envelope->message.body.bytes,
                                 envelope->message.body.len, &d->body);
    if (copied && properties->_flags & AMQP_BASIC_MESSAGE_ID_FLAG)
        copied =
            idem__delivery_copy(d, properties->message_id.bytes,
                                properties->message_id.len, &d->message_id);
    if (copied && properties->_flags & AMQP_BASIC_CONTENT_TYPE_FLAG)
        copied = idem__delivery_header(
            d, idem_text("content-type"),
            (struct idem_bytes){properties->content_type.bytes,
                                properties->content_type.len});
    if (copied && properties->_flags & AMQP_BASIC_HEADERS_FLAG)
        copied = copy_headers(d, &properties->headers);
    if (!copied) {
        idem__delivery_drop(d);
        free(message);
        return NULL;
    }
    amqp_bytes_free(envelope->message.body);
    envelope->message.body = amqp_empty_bytes;
    *message = envelope->message;
    memset(&envelope->message, 0, sizeof(envelope->message));
    d->original = message;
    d->drop_original = drop_message;
    return d;
}

static enum idem_status
take(struct source *source, int wait_ms, bool more, struct delivery **delivery,
     struct idem_error *err)
{
    struct rabbitmq_source *self = (struct rabbitmq_source *)source;
    struct timeval wait = {wait_ms / 1000, wait_ms % 1000 * 1000};
    amqp_envelope_t envelope;
    amqp_rpc_reply_t reply;

    (void)more; /* the prefetch limits it; heartbeats must go on */
    *delivery = NULL;
    amqp_maybe_release_buffers(self->consuming);
    reply = amqp_consume_message(self->consuming, &envelope, &wait, 0);
    if (reply.reply_type == AMQP_RESPONSE_LIBRARY_EXCEPTION &&
        reply.library_error == AMQP_STATUS_TIMEOUT)
        return IDEM_OK;
    if (reply.reply_type == AMQP_RESPONSE_LIBRARY_EXCEPTION &&
        reply.library_error == AMQP_STATUS_UNEXPECTED_STATE)
        return idem__fail(err, IDEM_ERR_UNAVAILABLE,
                          "rabbitmq %s:%d: the broker delivers no more: the "
                          "queue was deleted, or its channel closed",
                          self->base.url.hosts[0].name,
                          self->base.url.hosts[0].port);
    if (!went_well(reply))
        return fail(self, err, "lost the connection", reply);
    *delivery = to_delivery(&envelope);
    amqp_destroy_envelope(&envelope);
    return *delivery
               ? IDEM_OK
               : idem__fail(err, IDEM_ERR_MEMORY, "rabbitmq: out of memory");
}

/* Wait for the broker's confirm of the letter that was just published. */
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
    enum idem_status status = dial(self, &self->publishing, 0, err);
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

/* Is the header copied into a letter? Not the reason of an earlier letter, nor
 * headers that make the broker deliver the letter to other queues, too. */
static bool
goes_into_letter(const amqp_table_entry_t *entry)
{
    struct idem_bytes name = {entry->key.bytes, entry->key.len};

    return !idem__bytes_is(name, "x-idem-reason") &&
           !idem__bytes_is(name, "CC") && !idem__bytes_is(name, "BCC");
}

/* The original message and the reason. The letter does not expire, and it has
 * no user id, because this process sends it and not the original producer. */
static bool
describe_letter(const struct delivery *d, amqp_basic_properties_t *properties)
{
    const amqp_basic_properties_t *from =
        &((const amqp_message_t *)d->original)->properties;
    bool headed = from->_flags & AMQP_BASIC_HEADERS_FLAG;
    int from_count = headed ? from->headers.num_entries : 0, count = 1;
    amqp_table_entry_t *entries =
        calloc((size_t)from_count + 1, sizeof(*entries));

    if (!entries)
        return false;
    entries[0] = (amqp_table_entry_t){
        .key = amqp_cstring_bytes("x-idem-reason"),
        .value = {.kind = AMQP_FIELD_KIND_UTF8,
                  .value.bytes = amqp_cstring_bytes(d->reason)}};
    for (int i = 0; i < from_count; i++) {
        if (goes_into_letter(&from->headers.entries[i]))
            entries[count++] = from->headers.entries[i];
    }
    *properties = *from;
    properties->_flags &=
        ~(amqp_flags_t)(AMQP_BASIC_EXPIRATION_FLAG | AMQP_BASIC_USER_ID_FLAG |
                        AMQP_BASIC_CLUSTER_ID_FLAG);
    properties->_flags |=
        AMQP_BASIC_DELIVERY_MODE_FLAG | AMQP_BASIC_HEADERS_FLAG;
    properties->delivery_mode = 2;
    properties->headers = (amqp_table_t){count, entries};
    return true;
}

static enum idem_status
write_letter(struct rabbitmq_source *self, const struct delivery *d,
             struct idem_error *err)
{
    const char *queue = idem__delivery_place(d, &self->base);
    amqp_basic_properties_t properties;
    enum idem_status status;
    int rc;

    if (!self->publishing) {
        status = open_publishing(self, err);
        if (status != IDEM_OK)
            return status;
    }
    if (!describe_letter(d, &properties))
        return idem__fail(err, IDEM_ERR_MEMORY, "rabbitmq: out of memory");
    /* Mandatory: if the queue was deleted, the letter is returned instead of
     * being confirmed and dropped. */
    rc = amqp_basic_publish(self->publishing, CHANNEL, amqp_empty_bytes,
                            amqp_cstring_bytes(queue), 1, 0, &properties,
                            amqp_bytes_of(d->body));
    free(properties.headers.entries);
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

    if (idem__delivery_is_letter(d))
        status = write_letter(self, d, err);
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

static enum idem_status
stop(struct source *source, struct idem_error *err)
{
    struct rabbitmq_source *self = (struct rabbitmq_source *)source;
    amqp_rpc_reply_t reply;

    amqp_basic_cancel(self->consuming, CHANNEL, amqp_cstring_bytes(CONSUMER));
    reply = amqp_get_rpc_reply(self->consuming);
    return went_well(reply) ? IDEM_OK : fail(self, err, "cannot stop", reply);
}

/* Ready messages; those that a consumer holds do not count. */
static enum idem_status
count_ready(struct rabbitmq_source *self, int64_t *messages,
            struct idem_error *err)
{
    amqp_queue_declare_ok_t *told;

    amqp_maybe_release_buffers(self->consuming);
    told = amqp_queue_declare(self->consuming, CHANNEL,
                              amqp_cstring_bytes(self->base.name), 1, 1, 0, 0,
                              amqp_empty_table);
    if (!told)
        return fail(self, err, "cannot look at the queue",
                    amqp_get_rpc_reply(self->consuming));
    *messages = told->message_count;
    return IDEM_OK;
}

static enum idem_status
lag(struct source *source, int64_t *messages, struct idem_error *err)
{
    struct rabbitmq_source *self = (struct rabbitmq_source *)source;
    enum idem_status status =
        self->consuming ? IDEM_OK : dial(self, &self->consuming, 0, err);

    return status == IDEM_OK ? count_ready(self, messages, err) : status;
}

/* The reply comes on the channel that delivers, behind the messages that the
 * queue had sent before it. */
static enum idem_status
ask(struct source *source, bool *waiting, struct idem_error *err)
{
    struct rabbitmq_source *self = (struct rabbitmq_source *)source;
    int64_t messages = 0;
    enum idem_status status = count_ready(self, &messages, err);

    *waiting = messages > 0;
    return status;
}

static void
close_source(struct source *source)
{
    struct rabbitmq_source *self = (struct rabbitmq_source *)source;

    /* Close properly, so that the last acknowledgements are not lost. */
    if (self->consuming)
        amqp_connection_close(self->consuming, AMQP_REPLY_SUCCESS);
    disconnect(&self->consuming);
    disconnect(&self->publishing);
}

static const char *const known[] = {"queue", "heartbeat", "ca",
                                    "cert",  "key",       NULL};

static enum idem_status
open_source(struct source *source, const char *text, struct idem_error *err)
{
    struct rabbitmq_source *self = (struct rabbitmq_source *)source;
    const struct idem__url *url = &source->url;
    const struct source_name names[] = {{"queue", NULL, source->name}, {0}};
    enum idem_status status = IDEM_OK;
    int64_t heartbeat_s = 0;

    self->tls = strncmp(text, "amqps:", 6) == 0;
    if (!idem__url_option(url, "cert") != !idem__url_option(url, "key"))
        status = idem__fail(err, IDEM_ERR_INVALID,
                            "rabbitmq: cert= and key= belong together");
    if (status == IDEM_OK && !self->tls && idem__url_option(url, "ca"))
        status = idem__fail(err, IDEM_ERR_INVALID,
                            "rabbitmq: ca= is for TLS: write amqps://");
    if (status == IDEM_OK)
        status =
            idem__source_names(source, names, "amqp://host?queue=orders", err);
    if (status == IDEM_OK)
        status = idem__url_number(url, "heartbeat", 1, HEARTBEAT_MAX_S,
                                  HEARTBEAT_DEFAULT_S, &heartbeat_s, err);
    self->heartbeat_s = (int)heartbeat_s;
    return status;
}

const struct source_type idem__rabbitmq_source = {
    .scheme = "amqp",
    .known = known,
    .size = sizeof(struct rabbitmq_source),
    .open = open_source,
    .connect = connect_source,
    .take = take,
    .conclude = conclude,
    .stop = stop,
    .lag = lag,
    .ask = ask,
    .close = close_source,
};
