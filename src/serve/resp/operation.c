/*
 * operation.c - submit a call's operations to the engine, and turn its answers
 * into the call's reply. ISSUE is one operation per token (core/issue.h).
 */
#include "loop.h"

#include <stdlib.h>
#include <string.h>

/* ---- answers --------------------------------------------------------- */

/* Where the reply goes: directly into the output if there is room, the reply is
 * short and no untagged call is before it. */
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

/* The answer of the last operation. If there is no room for a long result, the
 * client gets an error. An answer with a result wrote nothing, so the client
 * can ask again. */
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
add_tokens(struct call *call, struct resp_out *out)
{
    answer_add_array(out, call->tag, 1 + call->count);
    resp_add_text(out, "issued");
    for (size_t i = 0; i < call->count; i++)
        resp_add_text(out, server_issue_token(call->issue, i));
}

/* The reply of REDEEM NEXT. */
static void
add_next(struct call *call, struct resp_out *out, struct idem_bytes token)
{
    answer_add_array(out, call->tag, 2);
    resp_add_text(out, "redeemed");
    if (token.len > 0)
        resp_add_bytes(out, token);
    else
        resp_add_null(out);
}

static void
add_reply(struct call *call, struct resp_out *out, enum idem_status status,
          const struct idem_answer *answer, const struct idem_error *err)
{
    if (status != IDEM_OK)
        answer_add_status(out, call->tag, status, err);
    else if (call->issue)
        add_tokens(call, out);
    else if (call->fresh && answer->verdict == IDEM_V_REDEEMED)
        add_next(call, out, answer->record->id);
    else
        add_answer(call, out, answer);
}

static void
observe(struct call *call)
{
    struct loop *loop = call->loop;

    if (call->kind == COMMAND_SCAN)
        return;
    if (loop->answered_us == 0)
        loop->answered_us = idem__mono_us();
    metrics_observe(loop->server->metrics, call->op.verb,
                    loop->answered_us - call->since_us);
}

void
call_answered(struct call *call)
{
    struct loop *loop = call->loop;

    if (loop->driven) {
        observe(call);
        call_done(call);
        return;
    }
    pthread_mutex_lock(&loop->mutex);
    call->link = loop->finished;
    loop->finished = call;
    pthread_mutex_unlock(&loop->mutex);
    loop_wake(loop);
}

/* An idem_done_fn. Called on the loop's thread if that drives the engine, else
 * on the engine's thread. */
static void
answered(void *arg, enum idem_status status, const struct idem_answer *answer,
         const struct idem_error *err)
{
    struct call *call = arg;
    struct loop *loop = call->loop;

    add_reply(call, out_of(call, answer), status, answer, err);
    if (call->audited)
        audit_add(loop->server->audit, loop->log,
                  &(struct audit_event){&call->audit, "resp", &call->op, status,
                                        answer});
    call_answered(call);
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
        observe(call);
        call_done(call);
    }
}

/* ---- submitting to the engine ---------------------------------------- */

static void
submit_tokens(struct call *call, const struct idem_op *op)
{
    struct loop *loop = call->loop;

    call->issue = server_issue_new(call->count);
    if (!call->issue) {
        answer_add_status(&call->reply, call->tag, IDEM_ERR_MEMORY, NULL);
        call_done(call);
        return;
    }
    loop->submitted = true;
    server_issue_submit(call->issue, loop->engine, op, answered, call);
}

void
call_submit(struct call *call, const struct idem_op *op)
{
    struct client *client = call->client;
    struct loop *loop = call->loop;
    struct idem_error err;
    enum idem_status status;

    err.text[0] = '\0';
    metrics_add(&loop->server->metrics->operations[METRICS_RESP], 1);
    if (client->round != loop->round) {
        if (client->round + 1 == loop->round && loop->missing > 0)
            loop->missing--;
        client->round = loop->round;
    }
    if (call->kind == COMMAND_ISSUE) {
        submit_tokens(call, op);
        return;
    }
    status = idem__submit_verb(loop->engine, op, call->fresh, answered, call,
                               &call->ticket, &err);
    loop->submitted = true;
    if (status == IDEM_OK)
        return;
    answer_add_status(&call->reply, call->tag, status, &err);
    call_done(call);
}
