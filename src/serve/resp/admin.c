/*
 * admin.c - commands about the connection or the server: AUTH, INFO, and the
 * commands that Redis clients send when they connect.
 */
#include "loop.h"

#include "../../base/peer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define AUTH_TRIES 5
#define AUTH_DELAY_MS 200 /* doubles with every wrong one */

static struct answer_tag
tag_of(const struct command *command)
{
    return (struct answer_tag){command->wire.tagged, command->wire.tag};
}

/* Begin a reply of one value. Returns NULL if memory ran out. */
static struct resp_out *
reply_begin(struct client *client, const struct command *command,
            struct call **call)
{
    struct resp_out *out = client_reply(client, tag_of(command), call);

    if (out)
        answer_add_one(out, tag_of(command));
    return out;
}

static void
reply_end(struct call *call)
{
    if (call)
        call_done(call);
}

static void
reply_simple(struct client *client, const struct command *command,
             const char *text)
{
    struct call *call;
    struct resp_out *out = reply_begin(client, command, &call);

    if (!out)
        return;
    resp_add_simple(out, text);
    reply_end(call);
}

static void
reply_bytes(struct client *client, const struct command *command,
            struct idem_bytes bytes)
{
    struct call *call;
    struct resp_out *out = reply_begin(client, command, &call);

    if (!out)
        return;
    resp_add_bytes(out, bytes);
    reply_end(call);
}

static void
reply_error(struct client *client, const struct command *command,
            const char *word, const char *text)
{
    client_error(client, tag_of(command), word, text, false);
}

/* ---- ROLLBACK --------------------------------------------------------- */

/* ROLLBACK ACCEPT [REASON text] */
static void
do_rollback(struct client *client, const struct command *command)
{
    struct server *server = client->loop->server;
    const struct idem_bytes *words = command->words;
    struct audit_source source;
    struct audit_rollback event = {.source = &source,
                                   .surface = "resp",
                                   .reason = command_reason(command)};
    struct idem_error err;

    if (!idem__bytes_is(words[0], "ACCEPT") ||
        (command->word_count > 1 && event.reason.len == 0)) {
        reply_error(client, command, "ERR",
                    "give ROLLBACK ACCEPT [REASON text]");
        return;
    }
    audit_note(&source, principal_name(client->principal), client->source.fd);
    if (server_accept_rollback(server, &event, &err) == IDEM_OK)
        reply_simple(client, command, "OK");
    else
        reply_error(client, command, "ERR", err.text);
}

/* ---- AUTH ------------------------------------------------------------ */

void
admin_greet(struct client *client)
{
    struct server *server = client->loop->server;
    bool ours = client->local && idem__peer_is_ours(client->source.fd);
    char common_name[256];

    principal_put(client->principal);
    client->principal = NULL;
    if (!credentials_needed(server->credentials) ||
        (client->local && server->config->trust_socket))
        client->principal = credentials_anyone(
            server->credentials, ours ? SERVER_OPERATE : SERVER_USE);
    else if (client->tls && server->config->tls_client_ca &&
             idem__tls_peer(client->tls, common_name, sizeof(common_name)))
        client->principal =
            credentials_certificate(server->credentials, common_name);
}

/* The reply to a wrong secret is delayed, and the client has to wait for it.
 * The fifth wrong secret closes the connection. */
static void
reply_wrong_auth(struct client *client, const struct command *command)
{
    struct loop *loop = client->loop;
    struct call *call = call_new(client, command);
    struct audit_source source;

    audit_note(&source, "", client->source.fd);
    server_log_wrong_secret(loop->server, &source, "resp");
    if (!call) {
        client->out.failed = true;
        return;
    }
    answer_add_error(&call->reply, call->tag, "WRONGPASS",
                     "the name or the secret is wrong: compare them with the "
                     "server's credentials file");
    call->due_ms = loop->now_ms +
                   credentials_late_ms(loop->server->credentials, loop->now_ms,
                                       AUTH_DELAY_MS << client->auth_failures);
    call->close_after = ++client->auth_failures >= AUTH_TRIES;
    call->link = loop->delayed;
    loop->delayed = call;
    client->held = true;
}

void
admin_delayed(struct loop *loop)
{
    struct call **at = &loop->delayed;

    while (*at) {
        struct call *call = *at;
        struct client *client = call->client;

        if (client && call->due_ms > loop->now_ms) {
            at = &call->link;
            continue;
        }
        *at = call->link;
        if (client)
            client->held = call->close_after;
        call_done(call);
        if (client && !client->held)
            client_go_on(client);
    }
}

static bool
log_in(struct client *client, struct idem_bytes name, struct idem_bytes secret)
{
    struct credentials *credentials = client->loop->server->credentials;
    struct principal *principal = credentials_login(credentials, name, secret);

    if (!principal)
        return false;
    principal_put(client->principal);
    client->principal = principal;
    client->auth_failures = 0;
    return true;
}

static void
do_auth(struct client *client, const struct command *command)
{
    bool named = command->word_count == 2;
    struct idem_bytes name = {NULL, 0};

    if (!credentials_needed(client->loop->server->credentials)) {
        reply_error(client, command, "ERR",
                    "AUTH is not needed: no credentials are set");
        return;
    }
    if (named)
        name = command->words[0];
    if (log_in(client, name, command->words[named ? 1 : 0]))
        reply_simple(client, command, "OK");
    else
        reply_wrong_auth(client, command);
}

/* ---- HELLO ----------------------------------------------------------- */

static void
add_hello(struct client *client, struct resp_out *out)
{
    resp_add_array(out, 14);
    resp_add_text(out, "server");
    resp_add_text(out, "idem");
    resp_add_text(out, "version");
    resp_add_text(out, IDEM_VERSION);
    resp_add_text(out, "proto");
    resp_add_number(out, 2);
    resp_add_text(out, "id");
    resp_add_number(out, (int64_t)client->id);
    resp_add_text(out, "mode");
    resp_add_text(out, "standalone");
    resp_add_text(out, "role");
    resp_add_text(out, "master");
    resp_add_text(out, "modules");
    resp_add_array(out, 0);
}

/* HELLO [2 [AUTH name secret] [SETNAME name]] */
static void
do_hello(struct client *client, const struct command *command)
{
    const struct idem_bytes *words = command->words;
    struct resp_out *out;
    struct call *call;

    if (command->word_count > 0 && !idem__bytes_is(words[0], "2")) {
        reply_error(client, command, "NOPROTO",
                    "unsupported protocol version: idem speaks RESP2; set your "
                    "client to RESP2 (RESP: 2, protocol=2)");
        return;
    }
    for (size_t i = 1; i < command->word_count; i++) {
        if (idem__bytes_is(words[i], "AUTH") && i + 2 < command->word_count) {
            if (credentials_needed(client->loop->server->credentials) &&
                !log_in(client, words[i + 1], words[i + 2])) {
                reply_wrong_auth(client, command);
                return;
            }
            i += 2;
        } else if (idem__bytes_is(words[i], "SETNAME") &&
                   i + 1 < command->word_count) {
            i += 1;
        } else {
            reply_error(client, command, "ERR", "syntax error in HELLO");
            return;
        }
    }
    if (!client->principal) {
        reply_error(client, command, "NOAUTH",
                    "credentials are needed: send HELLO 2 AUTH name secret");
        return;
    }
    out = reply_begin(client, command, &call);
    if (!out)
        return;
    add_hello(client, out);
    reply_end(call);
}

/* ---- commands of Redis clients --------------------------------------- */

static void
add_commands(struct resp_out *out)
{
    const char *const *names;
    size_t count = command_names(&names);

    resp_add_array(out, count);
    for (size_t i = 0; i < count; i++) {
        resp_add_array(out, 6);
        resp_add_text(out, names[i]);
        resp_add_number(out, -1);
        resp_add_array(out, 0);
        resp_add_number(out, 0);
        resp_add_number(out, 0);
        resp_add_number(out, 0);
    }
}

static void
do_command(struct client *client, const struct command *command)
{
    const char *const *names;
    struct call *call;
    struct resp_out *out = reply_begin(client, command, &call);

    if (!out)
        return;
    if (command->word_count == 0)
        add_commands(out);
    else if (idem__bytes_is(command->words[0], "COUNT"))
        resp_add_number(out, (int64_t)command_names(&names));
    else
        resp_add_array(out, 0); /* DOCS, INFO, LIST: an empty reply */
    reply_end(call);
}

static void
do_client(struct client *client, const struct command *command)
{
    struct idem_bytes what = command->words[0];
    char number[3 + IDEM__WIRE_DIGITS_MAX + 1];

    if (idem__bytes_is(what, "ID")) {
        struct call *call;
        struct resp_out *out = reply_begin(client, command, &call);

        if (!out)
            return;
        resp_add_number(out, (int64_t)client->id);
        reply_end(call);
    } else if (idem__bytes_is(what, "SETNAME") ||
               idem__bytes_is(what, "SETINFO") ||
               idem__bytes_is(what, "NO-EVICT") ||
               idem__bytes_is(what, "NO-TOUCH")) {
        reply_simple(client, command, "OK");
    } else if (idem__bytes_is(what, "GETNAME")) {
        reply_bytes(client, command, (struct idem_bytes){NULL, 0});
    } else if (idem__bytes_is(what, "INFO")) {
        snprintf(number, sizeof(number), "id=%llu",
                 (unsigned long long)client->id);
        reply_bytes(client, command, idem_text(number));
    } else {
        reply_error(client, command, "ERR",
                    "CLIENT knows ID, INFO, GETNAME, SETNAME and SETINFO");
    }
}

/* redis-benchmark asks CONFIG GET save and appendonly. */
static void
do_config(struct client *client, const struct command *command)
{
    struct call *call;
    struct resp_out *out;
    bool appendonly;

    if (!idem__bytes_is(command->words[0], "GET") || command->word_count < 2) {
        reply_error(client, command, "ERR",
                    "only CONFIG GET is supported; set options with idem "
                    "serve");
        return;
    }
    appendonly = idem__bytes_is(command->words[1], "appendonly");
    out = reply_begin(client, command, &call);
    if (!out)
        return;
    resp_add_array(out, 2);
    resp_add_bytes(out, command->words[1]);
    resp_add_text(out, appendonly ? "yes" : "");
    reply_end(call);
}

static void
do_info(struct client *client, const struct command *command)
{
    struct resp_out text = {.buf = {.cap = 65536}};

    info_add(client->loop, &text);
    if (text.buf.lacks)
        reply_error(client, command, "MEMORY", "out of memory");
    else
        reply_bytes(client, command,
                    (struct idem_bytes){text.buf.data, text.buf.len});
    idem_buf_clear(&text.buf);
}

/* ---- ids ------------------------------------------------------------- */

#define IDS_WAIT_MS 5000

struct ids {
    struct resp_out out;
};

static void
add_id(void *arg, struct idem_bytes id)
{
    resp_add_bytes(&((struct ids *)arg)->out, id);
}

static void
answer_ids(struct resp_out *out, struct answer_tag tag, size_t count,
           const struct ids *ids, enum idem_status status,
           struct idem_error *err)
{
    if (status == IDEM_OK && ids->out.failed)
        status = idem__fail(err, IDEM_ERR_MEMORY, "out of memory");
    if (status != IDEM_OK) {
        answer_add_status(out, tag, status, err);
        return;
    }
    answer_add_array(out, tag, 1 + count);
    resp_add_text(out, "ids");
    resp_add_raw(out, ids->out.buf.data, ids->out.buf.len);
}

/* Ask again for ids that commands wait for. The generator wakes the loop when
 * it has more. */
void
admin_ids(struct loop *loop)
{
    struct call **at = &loop->id_waits;

    while (*at) {
        struct call *call = *at;
        struct ids ids = {.out = {.buf = {.cap = 1024 * 1024}}};
        struct idem_error err = {0};
        enum idem_status status =
            loop->draining
                ? idem__fail(&err, IDEM_ERR_CLOSED, "the server is stopping")
                : server_ids(loop->server, call->op.scope, call->count, false,
                             add_id, &ids, &err);

        if (call->client && status == IDEM_ERR_OVERLOADED &&
            loop->now_ms < call->due_ms) {
            at = &call->link;
        } else {
            *at = call->link;
            if (status == IDEM_ERR_OVERLOADED)
                status = IDEM_ERR_UNAVAILABLE;
            answer_ids(&call->reply, call->tag, call->count, &ids, status,
                       &err);
            call_done(call);
        }
        idem_buf_clear(&ids.out.buf);
    }
}

static void
wait_for_ids(struct client *client, const struct command *command, size_t count)
{
    struct idem_bytes kind = command->words[0];
    struct call *call = call_new(client, command);

    if (!call || kind.len > sizeof(call->names)) {
        client->out.failed = true;
        return;
    }
    memcpy(call->names, kind.data, kind.len);
    call->op.scope = (struct idem_bytes){call->names, kind.len};
    call->count = count;
    call->due_ms = client->loop->now_ms + IDS_WAIT_MS;
    call->link = client->loop->id_waits;
    client->loop->id_waits = call;
}

static void
do_id(struct client *client, const struct command *command)
{
    struct ids ids = {.out = {.buf = {.cap = 1024 * 1024}}};
    struct idem_error err = {0};
    struct resp_out *out;
    struct call *call;
    int64_t count = 1;
    enum idem_status status;

    if (command->word_count == 2 &&
        (!idem__wire_number(command->words[1], &count) || count < 1 ||
         count > SERVER_COUNT_MAX)) {
        reply_error(client, command, "ERR", "the count is 1 to 1000");
        return;
    }
    if (client->loop->draining) {
        reply_error(client, command, "CLOSED", "the server is stopping");
        return;
    }
    status = server_ids(client->loop->server, command->words[0], (size_t)count,
                        false, add_id, &ids, &err);
    if (status == IDEM_ERR_OVERLOADED) {
        wait_for_ids(client, command, (size_t)count);
    } else {
        out = client_reply(client, tag_of(command), &call);
        if (out)
            answer_ids(out, tag_of(command), (size_t)count, &ids, status, &err);
        reply_end(call);
    }
    idem_buf_clear(&ids.out.buf);
}

/* ---- AUDIT ----------------------------------------------------------- */

struct entries {
    struct resp_out out;
    size_t count;
};

static void
add_entry(void *arg, const json_t *entry)
{
    struct entries *entries = arg;
    char *text = json_dumps(entry, JSON_COMPACT);

    if (!text)
        return;
    resp_add_text(&entries->out, text);
    entries->count++;
    free(text);
}

/* AUDIT [SCOPE s] [ID i] [COUNT n] */
static bool
read_audit(const struct command *command, struct audit_filter *filter)
{
    struct idem_bytes count = command_word(command, "COUNT");
    int64_t number = 100;

    filter->scope = command_word(command, "SCOPE");
    filter->id = command_word(command, "ID");
    for (size_t i = 0; i < command->word_count; i += 2) {
        if (i + 1 == command->word_count ||
            (!idem__bytes_is(command->words[i], "SCOPE") &&
             !idem__bytes_is(command->words[i], "ID") &&
             !idem__bytes_is(command->words[i], "COUNT")))
            return false;
    }
    if (count.data && (!idem__wire_number(count, &number) || number < 1 ||
                       number > AUDIT_KEPT))
        return false;
    filter->count = (size_t)number;
    return true;
}

static void
do_audit(struct client *client, const struct command *command)
{
    struct entries entries = {
        .out = {.buf = {.cap = (size_t)client->loop->config->max_output}}};
    struct audit_filter filter;
    struct resp_out *out;
    struct call *call;
    bool whole;

    if (!read_audit(command, &filter)) {
        reply_error(client, command, "ERR",
                    "syntax error: AUDIT [SCOPE s] [ID i] [COUNT 1 to 1000]");
        return;
    }
    whole =
        audit_list(client->loop->server->audit, &filter, add_entry, &entries);
    out = client_reply(client, tag_of(command), &call);
    if (out && !whole) {
        answer_add_status(out, tag_of(command), IDEM_ERR_MEMORY, NULL);
    } else if (out) {
        answer_add_array(out, tag_of(command), 1 + entries.count);
        resp_add_text(out, "entries");
        if (entries.count > 0)
            resp_add_raw(out, entries.out.buf.data, entries.out.buf.len);
        out->failed = out->failed || entries.out.failed;
    }
    reply_end(call);
    idem_buf_clear(&entries.out.buf);
}

/* ---- the rest -------------------------------------------------------- */

static void
do_reset(struct client *client, const struct command *command)
{
    admin_greet(client);
    reply_simple(client, command, "RESET");
}

static void
do_quit(struct client *client, const struct command *command)
{
    struct call *call;
    struct resp_out *out = reply_begin(client, command, &call);

    if (!out)
        return;
    resp_add_simple(out, "OK");
    client->held = true; /* nothing after QUIT is read */
    if (call) {
        call->close_after = true;
        call_done(call);
    } else {
        client->closing = true;
    }
}

/* Cancel the wait of the command with this tag, which is then answered at
 * once. */
static void
do_cancel(struct client *client, const struct command *command)
{
    struct loop *loop = client->loop;
    struct call *call;
    int64_t tag;

    if (!idem__wire_number(command->words[0], &tag)) {
        reply_error(client, command, "ERR", "CANCEL needs a tag: a number");
        return;
    }
    LIST_FOREACH(call, &client->calls, in_client)
    {
        if (call->tag.set && call->tag.number == tag && call->ticket)
            idem_cancel(loop->engine, call->ticket);
    }
    loop->submitted = true;
    reply_simple(client, command, "OK");
}

void
admin_command(struct client *client, const struct command *command)
{
    switch (command->kind) {
    case COMMAND_CANCEL:
        do_cancel(client, command);
        break;
    case COMMAND_AUDIT:
        do_audit(client, command);
        break;
    case COMMAND_ROLLBACK:
        do_rollback(client, command);
        break;
    case COMMAND_PING:
        if (command->word_count == 0)
            reply_simple(client, command, "PONG");
        else
            reply_bytes(client, command, command->words[0]);
        break;
    case COMMAND_ECHO:
        reply_bytes(client, command, command->words[0]);
        break;
    case COMMAND_AUTH:
        do_auth(client, command);
        break;
    case COMMAND_HELLO:
        do_hello(client, command);
        break;
    case COMMAND_COMMAND:
        do_command(client, command);
        break;
    case COMMAND_CLIENT:
        do_client(client, command);
        break;
    case COMMAND_SELECT:
        if (idem__bytes_is(command->words[0], "0"))
            reply_simple(client, command, "OK");
        else
            reply_error(client, command, "ERR", "there is only database 0");
        break;
    case COMMAND_CONFIG:
        do_config(client, command);
        break;
    case COMMAND_INFO:
        do_info(client, command);
        break;
    case COMMAND_ID:
        do_id(client, command);
        break;
    case COMMAND_RESET:
        do_reset(client, command);
        break;
    case COMMAND_QUIT:
        do_quit(client, command);
        break;
    default:
        break;
    }
}
