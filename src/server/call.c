/*
 * call.c - commands that wait for the engine, and the order of their answers.
 *
 *   call_new --> call_submit --> engine --> answered() --> call_done --> out
 *                     ^                        |
 *                     '---- calls_go_on <------'  a second look is needed
 *
 * A BEGIN without a NONCE whose `started` did not reach its client is released
 * again: nobody else can know of it. With a NONCE the client can ask again and
 * find itself, as can the owner of a lock; giving those back would take away
 * what a second connection may hold already. "Reached" means that the kernel
 * took the bytes; a client that dies later holds its record for the lease.
 */
#include "loop.h"

#include <stdlib.h>
#include <string.h>

#define POOL_MAX 4096
#define REPLY_KEPT 1024 /* a pooled call keeps a reply buffer up to this */

static void answered(void *arg, enum idem_status status,
                     const struct idem_answer *answer,
                     const struct idem_error *err);

/* ---- the pool -------------------------------------------------------- */

static struct call *
take(struct loop *loop)
{
    struct call *call = loop->pool;
    struct resp_out reply = {.buf = {NULL, 0, 0, 0}};

    if (call) {
        loop->pool = call->link;
        loop->pool_count--;
        reply = call->reply;
    } else {
        call = malloc(sizeof(*call));
        if (!call)
            return NULL;
    }
    memset(call, 0, offsetof(struct call, names));
    idem_buf_reset(&reply.buf);
    reply.failed = false;
    reply.buf.cap = (size_t)loop->config->max_output;
    call->reply = reply;
    call->loop = loop;
    loop->calls++;
    return call;
}

void
call_put(struct call *call)
{
    struct loop *loop = call->loop;

    loop->calls--;
    free(call->kept);
    free(call->tokens);
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
    call->next = client->calls;
    if (call->next)
        call->next->prev = call;
    client->calls = call;
    client->call_count++;
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

    if (call->prev)
        call->prev->next = call->next;
    else
        client->calls = call->next;
    if (call->next)
        call->next->prev = call->prev;
    client->call_count--;
    call->prev = call->next = NULL;
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

/* Copy the op, so that it can be sent a second time. */
static bool
keep_op(struct call *call, const struct command *command)
{
    const struct idem_op *op = &command->op;
    uint8_t *at = call->names;

    call->op = *op;
    if (op->scope.len > IDEM_SCOPE_MAX || op->id.len > IDEM_ID_MAX ||
        op->subject.len > IDEM_SUBJECT_MAX)
        return true; /* the engine refuses it: it is sent only once */
    at = keep_name(at, &call->op.scope);
    at = keep_name(at, &call->op.id);
    keep_name(at, &call->op.subject);
    if (op->result.len > 0 && command->kind != COMMAND_OP) {
        call->kept = malloc(op->result.len);
        if (!call->kept)
            return false;
        memcpy(call->kept, op->result.data, op->result.len);
        call->op.result.data = call->kept;
    }
    if (op->nonce) {
        memcpy(call->nonce, op->nonce, IDEM_NONCE_LEN);
        call->op.nonce = call->nonce;
    }
    if (op->fingerprint) {
        memcpy(call->fingerprint, op->fingerprint, IDEM_FINGERPRINT_LEN);
        call->op.fingerprint = call->fingerprint;
    }
    return true;
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
        call->tag = (struct answer_tag){command->tagged, command->tag};
        call->count = command->count;
        call->waits = command->op.wait_ms > 0;
        if (!keep_op(call, command)) {
            call_put(call);
            return NULL;
        }
    }
    enlist(call, client);
    return call;
}

/* ---- answers --------------------------------------------------------- */

/* Where the reply may go at once: nothing untagged stands before it. */
static struct resp_out *
out_of(struct call *call)
{
    struct client *client = call->client;

    if (!call->loop->driven || !client ||
        (call->ordered && client->first != call))
        return &call->reply;
    return &client->out;
}

static void
append(struct client *client, struct call *call)
{
    if (call->reply.failed)
        client->out.failed = true;
    if (call->reply.buf.len > 0)
        resp_add_raw(&client->out, call->reply.buf.data, call->reply.buf.len);
    if (call->close_after)
        client->closing = true;
}

static bool
may_give_back(const struct call *call)
{
    return call->started && call->op.verb == IDEM_BEGIN && !call->op.nonce;
}

/* The answer is in the client's output: what remains is to know it was sent. */
static void
settle_down(struct client *client, struct call *call)
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

static void
ignore(void *arg, enum idem_status status, const struct idem_answer *answer,
       const struct idem_error *err)
{
    (void)arg;
    (void)status;
    (void)answer;
    (void)err;
}

/* Nobody will ever finish this: free it for the next who asks. */
static void
give_back(struct call *call)
{
    struct loop *loop = call->loop;
    struct idem_op op = {.verb = IDEM_RELEASE,
                         .type = call->op.type,
                         .scope = call->op.scope,
                         .id = call->op.id,
                         .fence = call->fence};

    if (idem_submit(loop->engine, &op, ignore, NULL, NULL, NULL) == IDEM_OK) {
        metrics_add(&loop->server->metrics->returned, 1);
        loop->submitted = true;
    }
    server_log(loop->log, LOG_INFO, "returned", LOG_KEY(op.scope, op.id),
               LOG_NUMBER("fence", op.fence));
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
    if (!call->ordered) {
        append(client, call);
        settle_down(client, call);
        return;
    }
    while (client->first && client->first->done) {
        struct call *first = client->first;

        client->first = first->next_in_order;
        if (!client->first)
            client->last = NULL;
        append(client, first);
        settle_down(client, first);
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
    while (client->calls) {
        struct call *call = client->calls;

        delist(call);
        call->client = NULL;
        if (call->done)
            call_done(call);
        else if (call->waits && call->ticket)
            idem_cancel(loop->engine, call->ticket);
        if (loop->driven)
            loop->submitted = true; /* the cancel is work for a turn */
    }
    client->first = client->last = NULL;
}

/* ---- the engine's answers -------------------------------------------- */

static void
add_tokens(struct call *call, struct resp_out *out, const char *word)
{
    answer_add_array(out, call->tag, 1 + call->count);
    resp_add_text(out, word);
    for (size_t i = 0; i < call->count; i++) {
        if (call->failed)
            resp_add_null(out);
        else
            resp_add_text(out, call->tokens + i * (SERVER_TOKEN_LEN + 1));
    }
}

/* Does this answer call for a second operation? */
static enum call_step
next_step(const struct call *call, const struct idem_answer *answer)
{
    bool nothing = answer->record.state == IDEM_STATE_ABSENT &&
                   (answer->verdict == IDEM_V_STALE ||
                    answer->verdict == IDEM_V_ABSENT_NOW);

    switch (call->kind) {
    case COMMAND_LOOKUP:
        return nothing && call->step == CALL_LAST ? CALL_TRY_TOKEN : CALL_LAST;
    case COMMAND_SETTLE:
        if (call->step == CALL_SETTLE)
            return CALL_LAST;
        return nothing && call->step == CALL_LAST ? CALL_FIND_TOKEN
                                                  : CALL_SETTLE;
    case COMMAND_REDEEM:
        return answer->verdict == IDEM_V_REDEEMED && call->count > 0 &&
                       call->step == CALL_LAST
                   ? CALL_ISSUE_FRESH
                   : CALL_LAST;
    default:
        return CALL_LAST;
    }
}

/* ISSUE: one of its tokens was answered; true with the last of them. */
static bool
count_token(struct call *call, enum idem_status status,
            const struct idem_answer *answer)
{
    if (status == IDEM_OK && answer->verdict != IDEM_V_ISSUED_NOW)
        status = IDEM_ERR_INTERNAL;
    if (status != IDEM_OK)
        call->failed = status;
    return --call->left == 0;
}

/* Write the reply; false if another operation comes first. */
static bool
take_answer(struct call *call, struct resp_out *out, enum idem_status status,
            const struct idem_answer *answer, const struct idem_error *err)
{
    bool fresh = call->kind == COMMAND_REDEEM && call->step == CALL_ISSUE_FRESH;

    if (call->kind == COMMAND_ISSUE) {
        if (call->failed)
            answer_add_status(out, call->tag, call->failed, err);
        else
            add_tokens(call, out, "issued");
    } else if (fresh) {
        /* It is redeemed, whatever became of the fresh one. */
        call->failed = status;
        add_tokens(call, out, "redeemed");
    } else if (status != IDEM_OK) {
        answer_add_status(out, call->tag, status, err);
    } else {
        enum call_step step = next_step(call, answer);

        if (step != CALL_LAST) {
            /* What is found decides where SETTLE works. */
            if (call->kind == COMMAND_SETTLE && step == CALL_SETTLE)
                call->op.type = call->step == CALL_FIND_TOKEN &&
                                        answer->verdict == IDEM_V_RECORD
                                    ? IDEM_TYPE_TOKEN
                                    : IDEM_TYPE_REQUEST;
            call->step = step;
            return false;
        }
        call->started = answer->verdict == IDEM_V_STARTED;
        call->fence = answer->record.fence;
        answer_add(out, call->tag, call->op.verb, answer);
    }
    return true;
}

static void
observe(struct call *call)
{
    struct loop *loop = call->loop;

    if (call->kind == COMMAND_SCAN)
        return;
    if (loop->answered_us == 0)
        loop->answered_us = metrics_now_us();
    metrics_observe(loop->server->metrics, call->op.verb,
                    loop->answered_us - call->since_us);
}

/* Hand a call over from the engine's own thread. */
static void
leave_finished(struct call *call)
{
    struct loop *loop = call->loop;

    pthread_mutex_lock(&loop->mutex);
    call->link = loop->finished;
    loop->finished = call;
    pthread_mutex_unlock(&loop->mutex);
    loop_wake(loop);
}

static bool
last_of_tokens(struct call *call, enum idem_status status,
               const struct idem_answer *answer)
{
    struct loop *loop = call->loop;
    bool last;

    if (loop->driven)
        return count_token(call, status, answer);
    pthread_mutex_lock(&loop->mutex);
    last = count_token(call, status, answer);
    pthread_mutex_unlock(&loop->mutex);
    return last;
}

/* An idem_done_fn: on the loop's thread if it drives, else on the engine's. */
static void
answered(void *arg, enum idem_status status, const struct idem_answer *answer,
         const struct idem_error *err)
{
    struct call *call = arg;
    struct loop *loop = call->loop;

    if (call->kind == COMMAND_ISSUE && !last_of_tokens(call, status, answer))
        return;
    call->whole = take_answer(call, out_of(call), status, answer, err);
    if (!loop->driven) {
        leave_finished(call);
    } else if (call->whole) {
        observe(call);
        call_done(call);
    } else {
        call->link = loop->again;
        loop->again = call;
    }
}

void
calls_collect(struct loop *loop)
{
    struct call *list, *in_order = NULL;

    pthread_mutex_lock(&loop->mutex);
    list = loop->finished;
    loop->finished = NULL;
    pthread_mutex_unlock(&loop->mutex);
    while (list) {
        struct call *call = list;

        list = call->link;
        call->link = in_order;
        in_order = call;
    }
    while (in_order) {
        struct call *call = in_order;

        in_order = call->link;
        if (call->whole) {
            observe(call);
            call_done(call);
        } else {
            call->link = loop->again;
            loop->again = call;
        }
    }
}

/* ---- sending to the engine ------------------------------------------- */

static void
submit_op(struct call *call, const struct idem_op *op)
{
    struct loop *loop = call->loop;
    struct idem_error err = {0};
    enum idem_status status;

    status = idem_submit(loop->engine, op, answered, call, &call->ticket, &err);
    loop->submitted = true;
    if (status == IDEM_OK)
        return;
    answer_add_status(&call->reply, call->tag, status, &err);
    call_done(call);
}

static bool
make_tokens(struct call *call)
{
    call->tokens = malloc(call->count * (SERVER_TOKEN_LEN + 1));
    for (size_t i = 0; call->tokens && i < call->count; i++)
        server_new_token(call->tokens + i * (SERVER_TOKEN_LEN + 1));
    return call->tokens != NULL;
}

/* Several operations, one answer: the last of them gives it. */
static void
submit_tokens(struct call *call)
{
    struct loop *loop = call->loop;
    struct idem_error err = {0};
    size_t count = call->count;

    if (!make_tokens(call)) {
        answer_add_status(&call->reply, call->tag, IDEM_ERR_MEMORY, NULL);
        call_done(call);
        return;
    }
    call->left = count + 1; /* one for this function */
    for (size_t i = 0; i < count; i++) {
        struct idem_op op = call->op;
        enum idem_status status;

        op.verb = IDEM_ISSUE;
        op.id = idem_text(call->tokens + i * (SERVER_TOKEN_LEN + 1));
        status = idem_submit(loop->engine, &op, answered, call, NULL, &err);
        if (status != IDEM_OK)
            (void)last_of_tokens(call, status, NULL);
    }
    loop->submitted = true;
    if (last_of_tokens(call, IDEM_OK,
                       &(struct idem_answer){.verdict = IDEM_V_ISSUED_NOW})) {
        take_answer(call, &call->reply, call->failed, NULL, &err);
        call_done(call);
    }
}

static void
submit_fresh(struct call *call)
{
    struct idem_op op = {.verb = IDEM_ISSUE, .scope = call->op.scope};

    if (!make_tokens(call)) {
        call->failed = IDEM_ERR_MEMORY;
        add_tokens(call, &call->reply, "redeemed");
        call_done(call);
        return;
    }
    op.id = idem_text(call->tokens);
    submit_op(call, &op);
}

void
call_submit(struct call *call)
{
    struct idem_op op = call->op;

    struct client *client = call->client;
    struct loop *loop = call->loop;

    metrics_add(&loop->server->metrics->operations[METRICS_RESP], 1);
    if (client->round != loop->round) {
        if (client->round + 1 == loop->round && loop->missing > 0)
            loop->missing--;
        client->round = loop->round;
    }
    if (call->kind == COMMAND_ISSUE) {
        submit_tokens(call);
        return;
    }
    if (call->kind == COMMAND_SETTLE) {
        op = (struct idem_op){.verb = IDEM_GET, .scope = op.scope, .id = op.id};
        submit_op(call, &op);
        return;
    }
    submit_op(call, &call->op);
}

bool
calls_go_on(struct loop *loop)
{
    struct call *list = loop->again;

    loop->again = NULL;
    if (!list)
        return false;
    while (list) {
        struct call *call = list;
        struct idem_op op = call->op;

        list = call->link;
        if (call->step == CALL_ISSUE_FRESH) {
            submit_fresh(call);
            continue;
        }
        if (call->step == CALL_FIND_TOKEN)
            op = (struct idem_op){
                .verb = IDEM_GET, .scope = op.scope, .id = op.id};
        if (call->step != CALL_SETTLE)
            op.type = IDEM_TYPE_TOKEN;
        submit_op(call, &op);
    }
    return true;
}
