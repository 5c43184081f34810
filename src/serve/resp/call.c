/*
 * call.c - commands that wait for the engine, and the order of their answers.
 *
 *   call_new --> call_submit --> engine --> answered() --> call_done --> out
 *                                                             |
 *                                               no room: quick, ready
 *
 * A finished reply waits in its call until the output has room for it. A client
 * that does not read gets no more replies, and the server stops reading from it
 * (back-pressure), but does not close it for that. Short tagged replies are
 * sent before long ones, and only one long reply is sent at a time, so that
 * users of a shared connection do not wait behind each other's large replies.
 *
 * A BEGIN without a NONCE whose `started` did not reach its client is released,
 * because nobody else can know of it. With a NONCE the client can send the
 * BEGIN again and get its claim back, and so can the owner of a lock; releasing
 * those would take away what a second connection may hold already. "Reached"
 * means that the kernel took the bytes. If a client dies later, its record
 * stays held until the lease ends.
 */
#include "loop.h"

#include <stdlib.h>
#include <string.h>

#define POOL_MAX 4096
#define REPLY_KEPT 1024 /* largest reply buffer of a pooled call */

/* ---- the pool -------------------------------------------------------- */

static struct call *
take(struct loop *loop)
{
    struct call *call = loop->pool;
    struct resp_out reply = {.buf = {.cap = 0}};

    if (call) {
        loop->pool = call->link;
        loop->pool_count--;
        reply = call->reply;
    } else {
        call = malloc(sizeof(*call));
        if (!call)
            return NULL;
    }
    memset(call, 0, offsetof(struct call, audit));
    idem_buf_reset(&reply.buf);
    reply.failed = false;
    reply.buf.cap = (size_t)loop->config->max_output;
    call->reply = reply;
    call->loop = loop;
    loop->calls++;
    return call;
}

/* Put a call that nothing refers to any more back into the pool. */
static void
call_put(struct call *call)
{
    struct loop *loop = call->loop;

    loop->calls--;
    free(call->issue);
    result_put(call->result);
    if (call->reply.buf.room > REPLY_KEPT)
        idem_buf_clear(&call->reply.buf);
    if (loop->pool_count >= POOL_MAX) {
        idem_buf_clear(&call->reply.buf);
        free(call);
        return;
    }
    call->link = loop->pool;
    loop->pool = call;
    loop->pool_count++;
}

void
calls_clear_pool(struct loop *loop)
{
    while (loop->pool) {
        struct call *call = loop->pool;

        loop->pool = call->link;
        idem_buf_clear(&call->reply.buf);
        free(call);
    }
    loop->pool_count = 0;
}

/* ---- a client's calls ------------------------------------------------ */

static void
enlist(struct call *call, struct client *client)
{
    call->client = client;
    LIST_INSERT_HEAD(&client->calls, call, in_client);
    client->call_count++;
    client->wait_count += call->tag.set && call->waits;
    if (call->tag.set)
        return;
    call->ordered = true;
    if (client->last)
        client->last->next_in_order = call;
    else
        client->first = call;
    client->last = call;
}

static void
delist(struct call *call)
{
    struct client *client = call->client;

    LIST_REMOVE(call, in_client);
    client->call_count--;
    client->wait_count -= call->tag.set && call->waits;
}

static uint8_t *
keep_name(uint8_t *at, struct idem_bytes *bytes)
{
    if (bytes->len == 0)
        return at;
    memcpy(at, bytes->data, bytes->len);
    bytes->data = at;
    return at + bytes->len;
}

/* The engine makes its own copy of the operation; this one keeps the names,
 * which are needed for the answer. */
static void
keep_op(struct call *call, const struct idem_op *op)
{
    uint8_t *at = call->names;

    call->returns = op->verb == IDEM_BEGIN && !op->nonce;
    call->op = *op;
    call->op.result = (struct idem_bytes){NULL, 0};
    call->op.nonce = call->op.fingerprint = NULL;
    if (op->scope.len > IDEM_SCOPE_MAX || op->id.len > IDEM_ID_MAX ||
        op->subject.len > IDEM_SUBJECT_MAX)
        return; /* the engine refuses it */
    at = keep_name(at, &call->op.scope);
    at = keep_name(at, &call->op.id);
    keep_name(at, &call->op.subject);
}

struct call *
call_new(struct client *client, const struct command *command)
{
    struct loop *loop = client->loop;
    struct call *call = take(loop);

    if (!call)
        return NULL;
    call->since_us = loop->now_us;
    if (command) {
        call->kind = command->kind;
        call->tag =
            (struct answer_tag){command->wire.tagged, command->wire.tag};
        call->count = (size_t)command->wire.count;
        call->waits = command->wire.op.wait_ms > 0;
        call->full = command->wire.full;
        call->fresh = command->wire.next;
        keep_op(call, &command->wire.op);
    }
    enlist(call, client);
    return call;
}

/* ---- answers --------------------------------------------------------- */

static bool
may_give_back(const struct call *call)
{
    return call->started && call->returns;
}

/* The answer is in the client's output. A start is kept in a list until its
 * answer was sent. */
static void
retire(struct client *client, struct call *call)
{
    delist(call);
    if (!may_give_back(call)) {
        call_put(call);
        return;
    }
    call->ends_at = client->out_before + client->out.buf.len;
    call->link = NULL;
    if (client->last_start)
        client->last_start->link = call;
    else
        client->first_start = call;
    client->last_start = call;
}

/* Append the reply to the output. */
static void
append(struct client *client, struct call *call)
{
    if (call->reply.failed)
        client->out.failed = true;
    if (call->reply.buf.len > 0)
        resp_add_raw(&client->out, call->reply.buf.data, call->reply.buf.len);
    if (call->close_after)
        client->closing = true;
    if (!call->result) {
        retire(client, call);
        return;
    }
    client->long_call = call;
    client->long_at = client->out.buf.len;
    client->long_sent = 0;
    resp_add_raw(&client->out, "\r\n", 2);
}

void
calls_long_sent(struct client *client)
{
    struct call *call = client->long_call;

    client->long_call = NULL;
    delist(call);
    call_put(call);
}

static size_t
owed(const struct call *call)
{
    return call->result && !call->waits ? call->result->len : 0;
}

/* The memory of a waiting reply, without its shared result. */
static size_t
room_of(const struct call *call)
{
    return sizeof(*call) + call->reply.buf.room;
}

static void
push(struct client *client, struct call *call)
{
    struct call_list *list =
        call->ordered || call->result ? &client->ready : &client->quick;

    call->link = NULL;
    if (list->last)
        list->last->link = call;
    else
        list->first = call;
    list->last = call;
    client->ordered_ready += call->ordered;
    client->reply_room += room_of(call);
    client->owed += owed(call);
}

static struct call *
pop(struct client *client, struct call_list *list)
{
    struct call *call = list->first;

    list->first = call->link;
    if (!list->first)
        list->last = NULL;
    client->ordered_ready -= call->ordered;
    client->reply_room -= room_of(call);
    client->owed -= owed(call);
    return call;
}

void
calls_fill(struct client *client)
{
    while (client_has_room(client)) {
        struct call_list *list = &client->quick;

        if (!list->first)
            list = &client->ready;
        if (!list->first || (list->first->result && client->long_call))
            return;
        append(client, pop(client, list));
    }
}

/* The reply is in the output already, or has to wait for room there. */
static void
leave(struct client *client, struct call *call)
{
    if (call->reply.buf.len == 0 && !call->reply.failed)
        retire(client, call);
    else
        push(client, call);
}

/* Nobody will ever finish this claim, so release it for the next client. */
static void
give_back(struct call *call)
{
    if (server_give_back(call->loop->server, &call->op, call->fence))
        call->loop->submitted = true;
}

void
call_done(struct call *call)
{
    struct client *client = call->client;

    if (!client) {
        if (may_give_back(call))
            give_back(call);
        call_put(call);
        return;
    }
    call->done = true;
    client_touch(client);
    if (!call->ordered)
        leave(client, call);
    while (client->first && client->first->done) {
        struct call *first = client->first;

        client->first = first->next_in_order;
        if (!client->first)
            client->last = NULL;
        leave(client, first);
    }
    if (client->quick.first || client->ready.first) {
        calls_fill(client);
        client_account(client);
    }
}

void
calls_sent(struct client *client)
{
    uint64_t sent = client->out_before + client->sent;

    while (client->first_start && client->first_start->ends_at <= sent) {
        struct call *call = client->first_start;

        client->first_start = call->link;
        if (!client->first_start)
            client->last_start = NULL;
        call_put(call);
    }
}

void
calls_leave(struct client *client)
{
    struct loop *loop = client->loop;

    calls_sent(client);
    while (client->first_start) {
        struct call *call = client->first_start;

        client->first_start = call->link;
        give_back(call);
        call_put(call);
    }
    client->last_start = NULL;
    while (!LIST_EMPTY(&client->calls)) {
        struct call *call = LIST_FIRST(&client->calls);

        delist(call);
        call->client = NULL;
        if (call->done)
            call_done(call);
        else if (call->waits && call->ticket)
            idem_cancel(loop->engine, call->ticket);
        if (loop->driven)
            loop->submitted = true; /* the engine must process the cancel */
    }
    client->first = client->last = NULL;
    client->quick = client->ready = (struct call_list){NULL, NULL};
    client->long_call = NULL;
    client->reply_room = client->owed = client->ordered_ready = 0;
}
