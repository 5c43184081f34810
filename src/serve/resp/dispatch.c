/*
 * dispatch.c - from a parsed command to a call of the engine, if the client
 * may ask it.
 */
#include "loop.h"

#include <stdlib.h>
#include <string.h>

struct resp_out *
client_reply(struct client *client, struct answer_tag tag, struct call **call)
{
    *call = NULL;
    client_touch(client);
    if (tag.set || (!client->first && client->ordered_ready == 0))
        return &client->out;
    *call = call_new(client, NULL);
    if (*call)
        return &(*call)->reply;
    client->out.failed = true; /* an answer is missing: no way to go on */
    return NULL;
}

void
client_error(struct client *client, struct answer_tag tag, const char *word,
             const char *text, bool close)
{
    struct call *call;
    struct resp_out *out = client_reply(client, tag, &call);

    if (!out)
        return;
    answer_add_error(out, tag, word, text);
    if (call) {
        call->close_after = close;
        client->held = client->held || close;
        call_done(call);
    } else if (close) {
        client->closing = true;
    }
}

/* ---- SCAN ------------------------------------------------------------ */

static void
add_records(struct call *call, struct resp_out *out,
            const struct idem_record *records, size_t count,
            const struct idem_cursor *next)
{
    answer_add_array(out, call->tag, 2 + count);
    resp_add_text(out, "records");
    resp_add_text(out, next->text);
    for (size_t i = 0; i < count; i++) {
        if (call->full) {
            answer_add_record(out, &records[i]);
            continue;
        }
        resp_add_array(out, answer_field_count(false));
        answer_add_fields(out, &records[i], false);
    }
}

static void
scanned(void *arg, enum idem_status status, const struct idem_record *records,
        size_t count, const struct idem_cursor *next,
        const struct idem_error *err)
{
    struct call *call = arg;
    struct loop *loop = call->loop;

    if (status == IDEM_OK)
        add_records(call, &call->reply, records, count, next);
    if (status == IDEM_OK &&
        !results_room(&loop->server->results, call->reply.buf.len)) {
        idem_buf_clear(&call->reply.buf);
        answer_add_error(&call->reply, call->tag, "OVERLOADED",
                         "too many replies wait to be read: ask again later");
    } else if (status != IDEM_OK)
        answer_add_status(&call->reply, call->tag, status, err);
    call->whole = true;
    if (loop->driven) {
        call_done(call);
        return;
    }
    pthread_mutex_lock(&loop->mutex);
    call->link = loop->finished;
    loop->finished = call;
    pthread_mutex_unlock(&loop->mutex);
    loop_wake(loop);
}

static void
submit_scan(struct client *client, const struct command *command)
{
    struct loop *loop = client->loop;
    struct idem_error err = {0};
    struct call *call = call_new(client, command);
    enum idem_status status;

    if (!call) {
        client->out.failed = true;
        return;
    }
    status = idem__scan_submit(
        loop->engine, &command->wire.filter, &command->wire.cursor,
        (size_t)command->wire.count, scanned, call, &err);
    loop->submitted = true;
    if (status != IDEM_OK) {
        answer_add_status(&call->reply, call->tag, status, &err);
        call_done(call);
    }
}

/* ---- rights ---------------------------------------------------------- */

static bool
is_engine_command(enum command_kind kind)
{
    return kind <= COMMAND_SCAN;
}

/* Say no, if it is no. */
static bool
refused(struct client *client, const struct command *command)
{
    struct answer_tag tag = {command->wire.tagged, command->wire.tag};
    struct idem_bytes scope = command->kind == COMMAND_SCAN
                                  ? command->wire.filter.scope
                                  : command->wire.op.scope;

    if (command->kind == COMMAND_AUTH || command->kind == COMMAND_HELLO ||
        command->kind == COMMAND_QUIT || command->kind == COMMAND_RESET)
        return false;
    if (!client->principal || !principal_valid(client->principal)) {
        client_error(client, tag, "NOAUTH", "authentication required: AUTH",
                     false);
        return true;
    }
    if (command->kind == COMMAND_ID)
        scope = server_ids_scope(command->words[0]);
    else if (!is_engine_command(command->kind))
        return false;
    if ((command->kind == COMMAND_ID && scope.len == 0) ||
        principal_may(client->principal, command->right, scope))
        return false;
    client_error(
        client, tag, "NOPERM",
        !principal_may(client->principal, SERVER_USE, scope)
            ? "this credential may not touch that scope"
        : credentials_needed(client->loop->server->credentials)
            ? "this takes the right to operate"
            : "this takes the right to operate: " SERVER_HOW_TO_OPERATE,
        false);
    return true;
}

/* ---- commands -------------------------------------------------------- */

void
client_command(struct client *client, const struct resp_command *in)
{
    struct loop *loop = client->loop;
    struct idem_error err;
    struct command command;
    struct call *call;

    metrics_add(&loop->server->metrics->commands, 1);
    if (command_parse(in, &command, &err) != IDEM_OK) {
        client_error(client,
                     (struct answer_tag){command.wire.tagged, command.wire.tag},
                     "ERR", err.text, false);
        return;
    }
    if (refused(client, &command))
        return;
    if (!is_engine_command(command.kind)) {
        admin_command(client, &command);
        return;
    }
    if (command.kind == COMMAND_SCAN) {
        submit_scan(client, &command);
        return;
    }
    if (command.wire.op.verb == IDEM_ISSUE &&
        server_token_allowed(loop->server, command.wire.op.scope,
                             (size_t)command.wire.count, &err) != IDEM_OK) {
        client_error(client,
                     (struct answer_tag){command.wire.tagged, command.wire.tag},
                     "OVERLOADED", err.text, false);
        return;
    }
    if (command.kind == COMMAND_REDEEM)
        command.wire.count = command.wire.next ? 1 : 0;
    call = call_new(client, &command);
    if (call && command.right == SERVER_OPERATE)
        audit_note(&call->audit, principal_name(client->principal),
                   client->source.fd);
    if (call)
        call_submit(call);
    else
        client->out.failed = true;
}
