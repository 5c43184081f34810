/*
 * dispatch.c - check a client's rights, and turn a parsed command into a call
 * of the engine.
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
    client->out.failed = true; /* a reply would be missing: close the client */
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
    for (size_t i = 0; i < count; i++)
        answer_add_record(out, &records[i], call->full);
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
    call_answered(call);
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

/* What the command asks for; false: every client that is logged in may do
 * it. */
static bool
wish_of(const struct command *command, struct server_wish *wish)
{
    wish->scope = (struct idem_bytes){NULL, 0};
    switch (command->kind) {
    case COMMAND_INFO:
        wish->what = ASKS_FIGURES;
        return true;
    case COMMAND_SCAN:
        wish->what = ASKS_LIST;
        wish->list = "scan";
        wish->scope = command->wire.filter.scope;
        return true;
    case COMMAND_AUDIT:
        wish->what = ASKS_LIST;
        wish->list = "audit";
        wish->scope = command_word(command, "SCOPE");
        return true;
    case COMMAND_ROLLBACK:
        wish->what = ASKS_ROLLBACK; /* for all scopes */
        wish->reason = command_reason(command);
        return true;
    case COMMAND_ID:
        wish->what = ASKS_IDS;
        wish->scope = server_ids_scope(command->words[0]);
        return true;
    default:
        wish->what = ASKS_OP;
        wish->op = &command->wire.op;
        wish->tokens = (size_t)command->wire.count;
        return is_engine_command(command->kind);
    }
}

/* If the client may not do this, reply with an error and return true. */
static bool
refused(struct client *client, const struct command *command,
        char first[AUDIT_WHO_MAX])
{
    static const char *const words[] = {
        [PERMIT_NEEDS_LOGIN] = "NOAUTH",  [PERMIT_NEEDS_RIGHT] = "NOPERM",
        [PERMIT_NEEDS_MORE] = "ERR",      [PERMIT_OVER_QUOTA] = "OVERLOADED",
        [PERMIT_NEEDS_SECOND] = "NOPERM", [PERMIT_NO_MEMORY] = "MEMORY",
    };
    struct answer_tag tag = {command->wire.tagged, command->wire.tag};
    struct audit_source source;
    struct server_wish wish = {.first = first};
    struct idem_error err;
    enum server_permit permit;

    if (command->kind == COMMAND_AUTH || command->kind == COMMAND_HELLO ||
        command->kind == COMMAND_QUIT || command->kind == COMMAND_RESET)
        return false;
    if (!wish_of(command, &wish) && client->principal &&
        principal_valid(client->principal))
        return false;
    permit =
        server_permit(client->loop->server, client->principal, &wish, &err);
    if (permit == PERMIT_GIVEN)
        return false;
    if (permit != PERMIT_OVER_QUOTA) {
        audit_note(&source,
                   client->principal ? principal_name(client->principal) : "",
                   client->source.fd);
        server_log_refusal(client->loop->server, &wish, &source, "resp",
                           err.text);
    }
    client_error(client, tag, words[permit], err.text, false);
    return true;
}

/* ---- commands -------------------------------------------------------- */

void
client_command(struct client *client, const struct idem__wire_request *in)
{
    struct loop *loop = client->loop;
    struct idem_error err;
    struct command command;
    struct call *call;
    char first[AUDIT_WHO_MAX];

    metrics_add(&loop->server->metrics->commands, 1);
    if (command_parse(in, &command, &err) != IDEM_OK) {
        client_error(client,
                     (struct answer_tag){command.wire.tagged, command.wire.tag},
                     "ERR", err.text, false);
        return;
    }
    first[0] = '\0';
    if (refused(client, &command, first))
        return;
    if (!is_engine_command(command.kind)) {
        admin_command(client, &command);
        return;
    }
    if (command.kind == COMMAND_SCAN) {
        submit_scan(client, &command);
        return;
    }
    call = call_new(client, &command);
    if (!call) {
        client->out.failed = true;
        return;
    }
    call->blind = !principal_has(client->principal, SERVER_MAY_USE);
    call->audited = server_op_operates(&command.wire.op);
    if (call->audited) {
        audit_note(&call->audit, principal_name(client->principal),
                   client->source.fd);
        memcpy(call->audit.first, first, strlen(first) + 1);
    }
    call_submit(call, &command.wire.op);
}
