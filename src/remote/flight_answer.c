/*
 * flight_answer.c - reads the server's replies and decides what to report to
 * the caller.
 */
#include "flight.h"

#include <stdio.h>
#include <stdlib.h>

static bool
frees(enum idem_verb verb)
{
    return verb == IDEM_RELEASE || verb == IDEM_UNLOCK;
}

/* The operation was sent twice. True if this answer shows what the first one
 * did; the answer is then changed to what the first one would have said. */
static bool
tells_both(const struct idem_op *op, struct idem_answer *answer)
{
    const struct idem_record *record = answer->record;

    if (answer->verdict == IDEM_V_STALE && frees(op->verb) &&
        record->state == IDEM_STATE_FREE && record->fence == op->fence)
        answer->verdict = IDEM_V_OK;
    if (answer->verdict == IDEM_V_REPLAY && op->verb == IDEM_SETTLE &&
        (record->flags & IDEM_FLAG_SETTLED) &&
        record->state == (op->outcome ? op->outcome : IDEM_STATE_FAILED))
        answer->verdict = IDEM_V_SETTLED;
    if (answer->verdict == IDEM_V_STALE)
        return op->verb == IDEM_RENEW;
    /* The server may read the first one later, when the key is free. */
    if (op->verb == IDEM_SETTLE &&
        (answer->verdict == IDEM_V_BUSY || answer->verdict == IDEM_V_DOUBT))
        return false;
    return answer->verdict != IDEM_V_DUPLICATE || op->verb != IDEM_ISSUE;
}

/* "Connection refused" could be about this server. */
static void
say_whose_store(const struct idem__wire_reply *reply, enum idem_status status,
                struct idem_error *err)
{
    char text[sizeof(err->text)];

    if (!reply->error || idem__refused_by_engine(err->text) ||
        (status != IDEM_ERR_UNAVAILABLE && status != IDEM_ERR_LOST))
        return;
    snprintf(text, sizeof(text), "%s", err->text);
    idem__fail(err, status, IDEM__REMOTE_STORE_FAILED "%s", text);
}

/* Decide what to report to the caller. */
static enum idem_status
judge(const struct flight *flight, enum idem_status status,
      struct idem_answer *answer, struct idem_error *err)
{
    const struct idem_op *op = &idem__flight_job(flight)->op;

    if (flight->resent && op->verb != IDEM_GET &&
        (status == IDEM_OK ? !tells_both(op, answer) : true))
        return idem__fail(err, IDEM_ERR_LOST,
                          "the connection broke before the reply came, and "
                          "the second one does not tell: ask with get");
    if (status == IDEM_ERR_CLOSED && !flight->cancelled)
        return idem__fail(err, IDEM_ERR_UNAVAILABLE,
                          "the server is shutting down");
    return status;
}

/* A server does not send a large result back to the client that wrote it, so
 * add it here. */
static void
add_own_result(struct idem__job *job)
{
    const struct idem_op *op = &job->op;
    const struct idem_answer *answer = &job->answer;
    struct idem_record *record = &job->told;

    if (!record->result.data && !(record->flags & IDEM_FLAG_NOT_REPLAYABLE) &&
        (record->state == IDEM_STATE_SUCCEEDED ||
         record->state == IDEM_STATE_FAILED) &&
        (answer->verdict == IDEM_V_OK || answer->verdict == IDEM_V_SETTLED))
        record->result = op->result;
}

static void
answer_job(struct idem_engine *engine, struct flight *flight,
           struct idem__wire_reply *reply)
{
    struct idem__remote *remote = engine->remote;
    struct idem__job *job = idem__flight_job(flight);
    struct idem_error err = {IDEM_OK, ""};
    enum idem_status status =
        idem__wire_answer(reply, &job->answer, &job->told, &err);

    say_whose_store(reply, status, &err);
    status = judge(flight, status, &job->answer, &err);
    if (status == IDEM_OK)
        add_own_result(job);
    idem__flight_drop(engine, flight);
    remote->done++;
    remote->done_bytes += job->item.bytes;
    err.status = status;
    idem__job_answer(engine, job, status, &err);
    idem__job_drop(engine, job);
}

static void
answer_scan(struct idem_engine *engine, struct flight *flight,
            struct idem__wire_reply *reply)
{
    struct idem__scan *scan = (struct idem__scan *)flight->item;
    struct idem_error err = {IDEM_OK, ""};
    struct idem_cursor next;
    enum idem_status status = idem__wire_scanned(reply, &next, &err);
    size_t count = status == IDEM_OK ? reply->values : 0;
    struct idem_record *records = calloc(count + 1, sizeof(*records));

    say_whose_store(reply, status, &err);
    idem__flight_drop(engine, flight);
    if (!records)
        status = idem__fail(&err, IDEM_ERR_MEMORY, "out of memory");
    for (size_t i = 0; i < count && status == IDEM_OK; i++)
        status = idem__wire_record(reply, &records[i], &err);
    if (status == IDEM_OK) {
        scan->done(scan->arg, IDEM_OK, records, count, &next, NULL);
        free(scan);
    } else {
        err.status = status;
        idem__flight_fail_scan(scan, status, &err);
    }
    free(records);
}

static void
take_reply(struct idem_engine *engine, struct idem__wire_reply *reply)
{
    struct idem__remote *remote = engine->remote;
    struct idem__link *link =
        reply->tagged ? idem__map_find(&remote->tags, (uint64_t)reply->tag)
                      : NULL;
    struct flight *flight = link ? IDEM__OF(link, struct flight, link) : NULL;

    remote->pause_us = 0;
    remote->broken = 0;
    if (!flight)
        return; /* reply to a CANCEL, or to an operation that is already over */
    if (idem__flight_job(flight))
        answer_job(engine, flight, reply);
    else
        answer_scan(engine, flight, reply);
}

bool
idem__flights_answer(struct idem_engine *engine)
{
    struct idem__remote *remote = engine->remote;
    struct idem_buf *in = &remote->in;
    size_t at = 0;

    while (at < in->len) {
        struct idem_bytes rest = {in->data + at, in->len - at};
        struct idem__wire_reply reply;
        size_t used;
        enum idem__wire_got got =
            idem__wire_reply(rest, in->cap, &reply, &used);

        if (got == IDEM__WIRE_BAD)
            return false;
        remote->needed = used;
        if (got == IDEM__WIRE_MORE)
            break;
        at += used;
        remote->needed = 0;
        take_reply(engine, &reply);
    }
    idem_buf_shift(in, at);
    return true;
}
