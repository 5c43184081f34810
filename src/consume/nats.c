/*
 * nats.c - messages from a NATS JetStream stream, through a durable pull
 * consumer.
 *
 * A message stays pending until it is acknowledged; if nobody acknowledges it
 * for ack_ms, it is delivered again. This process reports the messages that it
 * has in hand as work in progress every third of that time. An acknowledgement
 * is a message to the delivery's reply subject, so a delivery holds no object
 * of the library.
 *
 * One request for messages is at the server at a time: it delivers what there
 * is and what comes within ASK_MS, up to the number that was asked for, and
 * says when it is over. (The library's fetch sends a request at each call, even
 * if the one before is not over: more messages come than the consumer takes,
 * and an idle consumer asks without a pause.)
 *
 * Letters are published to subjects of their own, each in a stream that is
 * created if it is missing, and count as written when JetStream has stored
 * them.
 */
#include "consume.h"

#include "../base/address.h"

#include <nats/nats.h>
#include <search.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PATIENCE_MS 5000
#define ACK_DEFAULT_MS 30000
#define ACK_MAX_MS 86400000
#define PUT_BACK_MS 500
#define ASK_COUNT 64
#define ASK_MS 250

struct nats_source {
    struct source base;
    char subject[SOURCE_NAME_MAX + 1];
    int64_t ack_ms, alive_at_us;
    natsConnection *connection;
    jsCtx *js;
    natsInbox *inbox;
    natsSubscription *subscription;
    int owed; /* messages that the request at the server may still bring */
    int64_t asked_us;
    bool answered; /* on this connection */
    struct ahead ahead;
};

static enum idem_status
fail(struct nats_source *self, struct idem_error *err, const char *what,
     natsStatus status)
{
    const char *last = nats_GetLastError(NULL);

    return idem__fail(err, IDEM_ERR_UNAVAILABLE, "nats %s:%d: %s: %s%s%.120s",
                      self->base.url.hosts[0].name,
                      self->base.url.hosts[0].port, what,
                      natsStatus_GetText(status), last && *last ? ": " : "",
                      last ? last : "");
}

static int
by_reply(const void *a, const void *b)
{
    return strcmp(((const struct delivery *)a)->original,
                  ((const struct delivery *)b)->original);
}

static void
disconnect(struct nats_source *self)
{
    idem__ahead_forget(&self->ahead);
    natsSubscription_Destroy(self->subscription);
    natsInbox_Destroy(self->inbox);
    jsCtx_Destroy(self->js);
    natsConnection_Destroy(self->connection);
    self->owed = 0;
    self->answered = false;
    self->subscription = NULL;
    self->inbox = NULL;
    self->js = NULL;
    self->connection = NULL;
}

/* ---- connecting --------------------------------------------------------- */

static natsStatus
set_security(struct nats_source *self, natsOptions *options)
{
    const char *ca = idem__url_option(&self->base.url, "ca"),
               *cert = idem__url_option(&self->base.url, "cert"),
               *key = idem__url_option(&self->base.url, "key"),
               *creds = idem__url_option(&self->base.url, "creds");
    natsStatus s = NATS_OK;

    if (self->base.url.user)
        s = natsOptions_SetUserInfo(
            options, self->base.url.user,
            self->base.url.password ? self->base.url.password : "");
    if (s == NATS_OK && creds)
        s = natsOptions_SetUserCredentialsFromFiles(options, creds, NULL);
    if (s == NATS_OK &&
        (ca || cert || idem__url_option(&self->base.url, "tls")))
        s = natsOptions_SetSecure(options, true);
    if (s == NATS_OK && ca)
        s = natsOptions_LoadCATrustedCertificates(options, ca);
    if (s == NATS_OK && cert)
        s = natsOptions_LoadCertificatesChain(options, cert, key);
    return s;
}

static natsStatus
set_servers(struct nats_source *self, natsOptions *options)
{
    char text[IDEM__URL_HOSTS_MAX][IDEM__ADDRESS_LEN + 8];
    const char *servers[IDEM__URL_HOSTS_MAX];

    for (size_t i = 0; i < self->base.url.host_count; i++) {
        const struct idem__host *host = &self->base.url.hosts[i];
        char address[IDEM__ADDRESS_LEN];

        snprintf(text[i], sizeof(text[i]), "nats://%s",
                 idem__address_write(host->name, host->port, address));
        servers[i] = text[i];
    }
    return natsOptions_SetServers(options, servers,
                                  (int)self->base.url.host_count);
}

/* The consumer reconnects by itself, so the library must not. */
static enum idem_status
dial(struct nats_source *self, struct idem_error *err)
{
    natsOptions *options = NULL;
    natsStatus s = natsOptions_Create(&options);

    if (s == NATS_OK)
        s = set_servers(self, options);
    if (s == NATS_OK)
        s = set_security(self, options);
    if (s == NATS_OK)
        s = natsOptions_SetAllowReconnect(options, false);
    if (s == NATS_OK)
        s = natsOptions_SetTimeout(options, PATIENCE_MS);
    if (s == NATS_OK)
        s = natsOptions_SetPingInterval(options, PATIENCE_MS);
    if (s == NATS_OK)
        s = natsOptions_SetName(options, "idem");
    if (s == NATS_OK)
        s = natsConnection_Connect(&self->connection, options);
    natsOptions_Destroy(options);
    if (s == NATS_OK)
        s = natsConnection_JetStream(&self->js, self->connection, NULL);
    return s == NATS_OK ? IDEM_OK : fail(self, err, "cannot connect", s);
}

/* Does a subject match a stream's pattern, as in "orders.>"? */
static bool
matches(const char *pattern, const char *subject)
{
    for (;;) {
        size_t p = strcspn(pattern, "."), s = strcspn(subject, ".");

        if (p == 1 && pattern[0] == '>')
            return s > 0;
        if (!(p == 1 && pattern[0] == '*') &&
            (p != s || strncmp(pattern, subject, p) != 0))
            return false;
        if (!pattern[p] || !subject[s])
            return !pattern[p] && !subject[s];
        pattern += p + 1;
        subject += s + 1;
    }
}

/* The stream must not keep the letters itself, because they would come back as
 * messages. */
static enum idem_status
check_letters(struct nats_source *self, const jsStreamConfig *stream,
              struct idem_error *err)
{
    const char *const places[] = {self->base.dead_letter, self->base.doubt};

    for (int i = 0; i < stream->SubjectsLen; i++) {
        for (size_t k = 0; k < 2; k++) {
            if (matches(stream->Subjects[i], places[k]))
                return idem__fail(err, IDEM_ERR_INVALID,
                                  "nats: the stream %s keeps %s, so the letter "
                                  "place %s would come back to this consumer: "
                                  "name others with --dead-letter and --doubt",
                                  self->base.name, stream->Subjects[i],
                                  places[k]);
        }
    }
    return IDEM_OK;
}

static enum idem_status
look_at_stream(struct nats_source *self, struct idem_error *err)
{
    jsStreamInfo *info = NULL;
    natsStatus s =
        js_GetStreamInfo(&info, self->js, self->base.name, NULL, NULL);
    enum idem_status status;

    if (s == NATS_NOT_FOUND)
        return idem__fail(err, IDEM_ERR_UNAVAILABLE,
                          "nats %s:%d: there is no stream %s: create it first",
                          self->base.url.hosts[0].name,
                          self->base.url.hosts[0].port, self->base.name);
    if (s != NATS_OK)
        return fail(self, err, "cannot look at the stream", s);
    status = check_letters(self, info->Config, err);
    jsStreamInfo_Destroy(info);
    return status;
}

/* Create a stream for one subject, with the same name except that "_" replaces
 * characters that a stream's name may not have. If another stream keeps the
 * subject already, that one is used. */
static enum idem_status
make_place(struct nats_source *self, const char *subject,
           struct idem_error *err)
{
    char name[LETTER_PLACE_MAX];
    jsStreamConfig config;
    jsErrCode code = 0;
    natsStatus s;

    snprintf(name, sizeof(name), "%s", subject);
    for (char *at = name; *at; at++) {
        if (strchr(".*>/\\ ", *at))
            *at = '_';
    }
    jsStreamConfig_Init(&config);
    config.Name = name;
    config.Subjects = &subject;
    config.SubjectsLen = 1;
    s = js_AddStream(NULL, self->js, &config, NULL, &code);
    if (s == NATS_OK || code == JSStreamNameExistErr ||
        code == JSStreamSubjectOverlapErr)
        return IDEM_OK;
    return fail(self, err, "cannot make the stream for letters", s);
}

static enum idem_status
make_consumer(struct nats_source *self, struct idem_error *err)
{
    jsConsumerConfig config;
    natsStatus s;

    jsConsumerConfig_Init(&config);
    config.Durable = self->base.group;
    config.AckPolicy = js_AckExplicit;
    config.AckWait = self->ack_ms * 1000000;
    config.MaxAckPending = -1;
    config.FilterSubject = self->subject[0] ? self->subject : NULL;
    s = js_AddConsumer(NULL, self->js, self->base.name, &config, NULL, NULL);
    return s == NATS_OK ? IDEM_OK
                        : fail(self, err, "cannot make a consumer", s);
}

/* An existing consumer is used as it is, if it waits for acknowledgements. */
static enum idem_status
look_at_consumer(struct nats_source *self, struct idem_error *err)
{
    jsConsumerInfo *info = NULL;
    natsStatus s = js_GetConsumerInfo(&info, self->js, self->base.name,
                                      self->base.group, NULL, NULL);
    enum idem_status status = IDEM_OK;

    if (s == NATS_NOT_FOUND)
        return make_consumer(self, err);
    if (s != NATS_OK)
        return fail(self, err, "cannot look at the consumer", s);
    if (info->Config->AckPolicy != js_AckExplicit ||
        info->Config->DeliverSubject)
        status =
            idem__fail(err, IDEM_ERR_INVALID,
                       "nats: the durable consumer %s of the stream %s is "
                       "not a pull consumer with explicit acknowledgement: "
                       "name another one, idem makes it",
                       self->base.group, self->base.name);
    else if (info->Config->AckWait >= 1000000)
        self->ack_ms = info->Config->AckWait / 1000000;
    jsConsumerInfo_Destroy(info);
    return status;
}

static enum idem_status
subscribe(struct nats_source *self, struct idem_error *err)
{
    enum idem_status status = look_at_consumer(self, err);
    natsStatus s;

    if (status != IDEM_OK)
        return status;
    s = natsInbox_Create(&self->inbox);
    if (s == NATS_OK)
        s = natsConnection_SubscribeSync(&self->subscription, self->connection,
                                         self->inbox);
    return s == NATS_OK ? IDEM_OK : fail(self, err, "cannot consume", s);
}

static enum idem_status
connect_source(struct source *source, struct idem_error *err)
{
    struct nats_source *self = (struct nats_source *)source;
    enum idem_status status;

    disconnect(self);
    status = dial(self, err);
    if (status == IDEM_OK)
        status = look_at_stream(self, err);
    if (status == IDEM_OK)
        status = make_place(self, self->base.dead_letter, err);
    if (status == IDEM_OK)
        status = make_place(self, self->base.doubt, err);
    if (status == IDEM_OK)
        status = subscribe(self, err);
    self->alive_at_us = 0;
    return status;
}

/* ---- taking ------------------------------------------------------------- */

static bool
copy_headers(struct delivery *d, natsMsg *message)
{
    const char **names = NULL;
    int count = 0;
    bool copied = true;

    if (natsMsgHeader_Keys(message, &names, &count) != NATS_OK)
        return true; /* it has none */
    for (int i = 0; copied && i < count; i++) {
        const char *value = NULL;

        if (natsMsgHeader_Get(message, names[i], &value) != NATS_OK)
            continue;
        copied =
            idem__delivery_header(d, idem_text(names[i]), idem_text(value));
        if (copied && strcmp(names[i], "Nats-Msg-Id") == 0)
            copied =
                idem__delivery_copy(d, value, strlen(value), &d->message_id);
    }
    free(names);
    return copied;
}

/* False: out of memory. */
static bool
add_message(struct nats_source *self, natsMsg *message)
{
    struct delivery *d = idem__delivery_make();
    jsMsgMetaData *about = NULL;
    bool copied;

    if (!d)
        return false;
    if (natsMsg_GetMetaData(&about, message) == NATS_OK)
        snprintf(d->place, sizeof(d->place), "%llu",
                 (unsigned long long)about->Sequence.Stream);
    jsMsgMetaData_Destroy(about);
    d->original = strdup(natsMsg_GetReply(message));
    d->drop_original = free;
    copied =
        d->original && d->place[0] && copy_headers(d, message) &&
        idem__delivery_copy(d, natsMsg_GetData(message),
                            (size_t)natsMsg_GetDataLength(message), &d->body);
    if (copied)
        return idem__ahead_add(&self->ahead, d);
    idem__delivery_drop(d);
    return false;
}

/* Ask the server for messages. */
static natsStatus
ask(struct nats_source *self)
{
    int count =
        self->base.prefetch < ASK_COUNT ? self->base.prefetch : ASK_COUNT;
    char subject[2 * SOURCE_NAME_MAX + 40], request[80];
    natsStatus s;

    snprintf(subject, sizeof(subject), "$JS.API.CONSUMER.MSG.NEXT.%s.%s",
             self->base.name, self->base.group);
    snprintf(request, sizeof(request), "{\"batch\": %d, \"expires\": %lld}",
             count, ASK_MS * 1000000LL);
    s = natsConnection_PublishRequestString(self->connection, subject,
                                            self->inbox, request);
    if (s == NATS_OK) {
        self->owed = count;
        self->asked_us = idem__system_clocks.boot_us(NULL);
    }
    return s;
}

/* A message of the server about a request has no reply subject. It says that
 * the request is over (404, 408), or reports an error. */
static enum idem_status
hear(struct nats_source *self, natsMsg *message, struct idem_error *err)
{
    const char *code = "", *text = "";

    (void)natsMsgHeader_Get(message, "Status", &code);
    (void)natsMsgHeader_Get(message, "Description", &text);
    if (strcmp(code, "404") != 0 && strcmp(code, "408") != 0)
        return idem__fail(err, IDEM_ERR_UNAVAILABLE,
                          "nats %s:%d: cannot read: the server says %.10s "
                          "%.120s",
                          self->base.url.hosts[0].name,
                          self->base.url.hosts[0].port, code, text);
    self->owed = 0;
    self->answered = true;
    return IDEM_OK;
}

static enum idem_status
receive(struct nats_source *self, natsMsg *message, struct idem_error *err)
{
    const char *reply = natsMsg_GetReply(message);

    if (!reply || !*reply)
        return hear(self, message, err);
    if (self->owed > 0)
        self->owed--;
    self->answered = true;
    return add_message(self, message)
               ? IDEM_OK
               : idem__fail(err, IDEM_ERR_MEMORY, "nats: out of memory");
}

/* Take in what has come; wait for the first of it. A server that is late with
 * its answer is not idle. */
static enum idem_status
read_new(struct nats_source *self, int wait_ms, struct idem_error *err)
{
    enum idem_status status = IDEM_OK;
    natsMsg *message = NULL;
    int64_t late_us;
    natsStatus s;

    while (status == IDEM_OK &&
           (s = natsSubscription_NextMsg(&message, self->subscription,
                                         wait_ms)) == NATS_OK) {
        status = receive(self, message, err);
        natsMsg_Destroy(message);
        wait_ms = 0;
    }
    if (status != IDEM_OK)
        return status;
    late_us = self->owed > 0 ? idem__system_clocks.boot_us(NULL) -
                                   self->asked_us - ASK_MS * 1000
                             : 0;
    self->base.joining = !self->answered || late_us > ASK_MS * 1000;
    if (s == NATS_TIMEOUT && late_us < PATIENCE_MS * 1000)
        return IDEM_OK;
    return fail(self, err, "cannot read", s);
}

static void
report_work(const void *node, VISIT visit, void *connection)
{
    const struct delivery *d = *(struct delivery *const *)node;

    if (visit == postorder || visit == leaf)
        (void)natsConnection_PublishString(connection, d->original, "+WPI");
}

/* Tell the server that the messages in hand are still being processed. */
static void
keep_alive(struct nats_source *self)
{
    int64_t now_us = idem__system_clocks.boot_us(NULL);

    if (now_us < self->alive_at_us)
        return;
    if (self->alive_at_us > 0)
        twalk_r(self->ahead.in_hand, report_work, self->connection);
    self->alive_at_us = now_us + self->ack_ms * 1000 / 3;
}

static enum idem_status
take(struct source *source, int wait_ms, bool more, struct delivery **delivery,
     struct idem_error *err)
{
    struct nats_source *self = (struct nats_source *)source;
    enum idem_status status = IDEM_OK;

    *delivery = NULL;
    keep_alive(self);
    if (more && !self->ahead.first && self->owed == 0) {
        natsStatus s = ask(self);

        if (s != NATS_OK)
            return fail(self, err, "cannot ask for messages", s);
    }
    status = read_new(self, self->ahead.first ? 0 : wait_ms, err);
    if (status == IDEM_OK && more)
        *delivery = idem__ahead_take(&self->ahead);
    return status;
}

/* ---- concluding --------------------------------------------------------- */

/* Header values must not have line ends. */
static natsStatus
set_header(natsMsg *letter, const char *name, const char *value)
{
    char text[512];

    if (!strpbrk(value, "\r\n"))
        return natsMsgHeader_Set(letter, name, value);
    snprintf(text, sizeof(text), "%s", value);
    for (char *at = text; *at; at++) {
        if (*at == '\r' || *at == '\n')
            *at = ' ';
    }
    return natsMsgHeader_Set(letter, name, text);
}

/* Headers that the server interprets (Nats-...) are left out; the message's id
 * is added as "message-id". */
static natsStatus
copy_letter_headers(natsMsg *letter, const struct delivery *d)
{
    natsStatus s = NATS_OK;

    if (d->message_id.len > 0)
        s = set_header(letter, "message-id", d->message_id.data);
    for (size_t i = 0; s == NATS_OK && i < d->header_count; i++) {
        const struct idem_header *header = &d->headers[i];

        if (idem__delivery_header_is_own(header) &&
            strncmp(header->name.data, "Nats-", 5) != 0)
            s = set_header(letter, header->name.data, header->value.data);
    }
    if (s == NATS_OK)
        s = set_header(letter, "idem-reason", d->reason);
    return s == NATS_OK ? set_header(letter, "idem-position", d->place) : s;
}

static enum idem_status
write_letter(struct nats_source *self, const struct delivery *d,
             struct idem_error *err)
{
    const char *subject = idem__delivery_place(d, &self->base);
    natsMsg *letter = NULL;
    natsStatus s =
        natsMsg_Create(&letter, subject, NULL, d->body.data, (int)d->body.len);

    if (s == NATS_OK)
        s = copy_letter_headers(letter, d);
    if (s == NATS_OK)
        s = js_PublishMsg(NULL, self->js, letter, NULL, NULL);
    natsMsg_Destroy(letter);
    return s == NATS_OK ? IDEM_OK : fail(self, err, "cannot write a letter", s);
}

static natsStatus
tell_fate(struct nats_source *self, const struct delivery *d)
{
    char text[64] = "+ACK";

    if (d->fate == FATE_PUT_BACK)
        snprintf(text, sizeof(text), "-NAK {\"delay\": %lld}",
                 (long long)PUT_BACK_MS * 1000000);
    return natsConnection_PublishString(self->connection, d->original, text);
}

static enum idem_status
conclude(struct source *source, struct delivery *deliveries,
         struct idem_error *err)
{
    struct nats_source *self = (struct nats_source *)source;
    enum idem_status status = IDEM_OK;
    natsStatus s = NATS_OK;

    for (struct delivery *d = deliveries; d; d = d->next)
        idem__ahead_concluded(&self->ahead, d);
    for (struct delivery *d = deliveries; d && s == NATS_OK; d = d->next) {
        if (idem__delivery_is_letter(d))
            status = write_letter(self, d, err);
        if (status != IDEM_OK)
            break;
        s = tell_fate(self, d);
    }
    if (s == NATS_OK && deliveries)
        s = natsConnection_FlushTimeout(self->connection, PATIENCE_MS);
    if (status != IDEM_OK)
        return status;
    return s == NATS_OK ? IDEM_OK : fail(self, err, "cannot acknowledge", s);
}

static enum idem_status
stop(struct source *source, struct idem_error *err)
{
    struct nats_source *self = (struct nats_source *)source;
    int64_t until_us = idem__system_clocks.boot_us(NULL) + 2 * ASK_MS * 1000;
    enum idem_status status = IDEM_OK;

    /* The request at the server may bring more. */
    while (status == IDEM_OK && self->owed > 0 &&
           idem__system_clocks.boot_us(NULL) < until_us)
        status = read_new(self, ASK_MS / 5, err);
    return status == IDEM_OK ? idem__ahead_put_back(&self->ahead, source, err)
                             : status;
}

static enum idem_status
lag(struct source *source, int64_t *messages, struct idem_error *err)
{
    struct nats_source *self = (struct nats_source *)source;
    enum idem_status status = self->connection ? IDEM_OK : dial(self, err);
    jsConsumerInfo *info = NULL;
    natsStatus s;

    if (status != IDEM_OK)
        return status;
    s = js_GetConsumerInfo(&info, self->js, self->base.name, self->base.group,
                           NULL, NULL);
    if (s != NATS_OK)
        return fail(self, err, "cannot look at the consumer", s);
    *messages = (int64_t)info->NumPending;
    jsConsumerInfo_Destroy(info);
    return IDEM_OK;
}

static void
close_source(struct source *source)
{
    struct nats_source *self = (struct nats_source *)source;

    disconnect(self);
}

/* ---- the URL ------------------------------------------------------------ */

static const char *const known[] = {"stream", "durable", "subject", "ack_ms",
                                    "tls",    "ca",      "cert",    "key",
                                    "creds",  NULL};
#define EXAMPLE "nats://host?stream=ORDERS&durable=mail"

static enum idem_status
open_source(struct source *source, const char *text, struct idem_error *err)
{
    struct nats_source *self = (struct nats_source *)source;
    const struct idem__url *url = &source->url;
    const struct source_name names[] = {{"stream", NULL, source->name},
                                        {"durable", NULL, source->group},
                                        {"subject", "", self->subject},
                                        {0}};
    enum idem_status status = idem__source_names(source, names, EXAMPLE, err);

    (void)text;
    idem__ahead_init(&self->ahead, by_reply);
    if (status == IDEM_OK)
        status = idem__url_number(url, "ack_ms", 1000, ACK_MAX_MS,
                                  ACK_DEFAULT_MS, &self->ack_ms, err);
    if (status == IDEM_OK &&
        !idem__url_option(url, "cert") != !idem__url_option(url, "key"))
        status = idem__fail(err, IDEM_ERR_INVALID,
                            "nats: cert= and key= belong together");
    return status;
}

const struct source_type idem__nats_source = {
    .scheme = "nats",
    .known = known,
    .size = sizeof(struct nats_source),
    .open = open_source,
    .connect = connect_source,
    .take = take,
    .conclude = conclude,
    .stop = stop,
    .lag = lag,
    .close = close_source,
};
