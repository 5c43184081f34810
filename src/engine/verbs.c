/*
 * verbs.c - carries out verbs that need several operations in sequence.
 *
 *   FIND ── no such request ──▶ the same among tokens
 *   LOOK ──▶ LOOK among tokens ──▶ SETTLE where it was found
 *   USE ─── redeemed ─────────▶ FRESH: issue the next token
 *
 * Each operation is a job of its own. The answer to an operation that is not
 * the last comes to this file, which submits the next one, on the thread that
 * takes the turns.
 */
#include "inner.h"

#include <idem/token.h>

enum idem__part
idem__verb_part(const struct idem_op *op, bool next)
{
    if (op->verb == IDEM_REDEEM && next)
        return IDEM__PART_USE;
    if (op->type != 0)
        return IDEM__PART_LAST;
    switch (op->verb) {
    case IDEM_SETTLE:
        return IDEM__PART_LOOK;
    case IDEM_FINISH:
    case IDEM_RELEASE:
    case IDEM_RENEW:
    case IDEM_GET:
    case IDEM_FORGET:
        return IDEM__PART_FIND;
    default:
        return IDEM__PART_LAST;
    }
}

enum idem_status
idem__submit_verb(struct idem_engine *engine, const struct idem_op *op,
                  bool next, idem_done_fn *done, void *arg, uint64_t *ticket,
                  struct idem_error *err)
{
    return idem__submit(engine, op, idem__verb_part(op, next), done, arg,
                        ticket, err);
}

/* Prepare the next operation. Returns false if there is none; the answer is
 * then passed to the caller. */
static bool
next_op(const struct idem__job *job, char token[IDEM_TOKEN_LEN + 1],
        struct idem_op *op, enum idem__part *part)
{
    const struct idem_answer *answer = &job->answer;
    const struct idem_record *record = answer->record;
    bool nothing =
        record->state == IDEM_STATE_ABSENT &&
        (answer->verdict == IDEM_V_STALE || answer->verdict == IDEM_V_ABSENT);

    *op = job->op;
    *part = IDEM__PART_LAST;
    switch (job->part) {
    case IDEM__PART_FIND:
        op->type = IDEM_TYPE_TOKEN;
        return nothing;
    case IDEM__PART_LOOK:
        op->verb = IDEM_SETTLE;
        if (nothing && op->type == IDEM_TYPE_REQUEST) {
            op->type = IDEM_TYPE_TOKEN;
            *part = IDEM__PART_LOOK;
        } else if (nothing) {
            op->type = IDEM_TYPE_REQUEST;
        }
        return true;
    case IDEM__PART_USE:
        *part = IDEM__PART_FRESH;
        idem_token_make(token);
        *op = (struct idem_op){
            .verb = IDEM_ISSUE, .scope = job->op.scope, .id = idem_text(token)};
        if (record->expires > record->updated)
            op->ttl_ms = record->expires - record->updated;
        return answer->verdict == IDEM_V_REDEEMED;
    case IDEM__PART_FRESH:
    case IDEM__PART_LAST:
        break;
    }
    return false;
}

/* Report the first token as redeemed, whether or not the new one was issued. */
static void
tell_redeemed(struct idem__job *job, bool issued)
{
    if (!issued)
        job->told = idem__no_record;
    job->answer =
        (struct idem_answer){.verdict = IDEM_V_REDEEMED, .record = &job->told};
    job->done(job->arg, IDEM_OK, &job->answer, NULL);
}

void
idem__verb_answer(struct idem_engine *engine, struct idem__job *job,
                  enum idem_status status, const struct idem_error *err)
{
    char token[IDEM_TOKEN_LEN + 1];
    struct idem_error trouble;
    struct idem_op op;
    enum idem__part part;

    if (job->part == IDEM__PART_FRESH) {
        tell_redeemed(job, status == IDEM_OK &&
                               job->answer.verdict == IDEM_V_ISSUED);
        return;
    }
    if (status == IDEM_OK && !next_op(job, token, &op, &part)) {
        job->done(job->arg, IDEM_OK, &job->answer, NULL);
        return;
    }
    if (status == IDEM_OK) {
        status = idem__submit(engine, &op, part, job->done, job->arg, NULL,
                              &trouble);
        err = &trouble;
        if (status == IDEM_OK)
            return;
        if (part == IDEM__PART_FRESH) {
            tell_redeemed(job, false);
            return;
        }
    }
    job->done(job->arg, status, NULL, err);
}
