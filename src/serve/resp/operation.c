/*
 * operation.c - a call's operations: handing them to the engine, and what its
 * answers mean for the call.
 *
 * Most commands are one operation. FINISH and its like look among requests and,
 * where there is none, among tokens; SETTLE looks before it decides; ISSUE is
 * one operation a token; REDEEM NEXT issues after it redeemed. What comes
 * second is done by calls_go_on, on the loop's thread.
 */
#include "loop.h"

#include <stdlib.h>
#include <string.h>

/* ---- answers --------------------------------------------------------- */

/* Where the reply goes: at once into the output if there is room, it is short
 * and nothing untagged stands before it. */
static struct resp_out *
out_of(struct call *call, const struct idem_answer *answer)
{
    struct client *client = call->client;

    if (!call->loop->driven || !client || !client_has_room(client) ||
        (call->ordered && (client->first != call || client->ordered_ready)) ||
        (answer && answer_is_long(answer)))
        return &call->reply;
    return &client->out;
}

/* The answer of the last operation. A long result that finds no room is not
 * told; an answer that has one wrote nothing, so it can be asked for again. */
static void
add_answer(struct call *call, struct resp_out *out,
           const struct idem_answer *answer)
{
    struct loop *loop = call->loop;
    struct idem_record record;
    struct idem_answer copy;

    if (call->blind)
        answer = server_without_result(answer, &copy, &record);
    call->started = answer->verdict == IDEM_V_STARTED;
    call->fence = answer->record->fence;
    if (answer_is_long(answer)) {
        call->result =
            results_take(&loop->server->results,
                         idem__engine_turns(loop->engine), answer->record);
        if (!call->result) {
            answer_add_error(out, call->tag, "OVERLOADED",
                             "too many large replies wait to be read: ask "
                             "again later");
            return;
        }
    }
    if (call->full)
        answer_add_full(out, call->tag, answer);
    else
        answer_add(out, call->tag, call->op.verb, answer);
}

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
    bool nothing =
        answer->record->state == IDEM_STATE_ABSENT &&
        (answer->verdict == IDEM_V_STALE || answer->verdict == IDEM_V_ABSENT);

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
    if (status == IDEM_OK && answer->verdict != IDEM_V_ISSUED)
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
            /* A fresh token lives as long as the first one did. */
            if (step == CALL_ISSUE_FRESH)
                call->op.ttl_ms =
                    answer->record->expires > answer->record->updated
                        ? answer->record->expires - answer->record->updated
                        : 0;
            call->step = step;
            return false;
        }
        add_answer(call, out, answer);
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
    call->whole = take_answer(call, out_of(call, answer), status, answer, err);
    if (call->whole && call->audit.who[0])
        audit_log(loop->log, &call->audit, "resp", &call->op, status, answer);
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
                       &(struct idem_answer){.verdict = IDEM_V_ISSUED})) {
        take_answer(call, &call->reply, call->failed, NULL, &err);
        call_done(call);
    }
}

static void
submit_fresh(struct call *call)
{
    struct idem_op op = {
        .verb = IDEM_ISSUE, .scope = call->op.scope, .ttl_ms = call->op.ttl_ms};

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
