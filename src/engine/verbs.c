/*
 * verbs.c - verbs that are several operations, waited for.
 */
#include "engine.h"

static bool
is_nothing(const struct idem_answer *answer)
{
    return answer->record->state == IDEM_STATE_ABSENT &&
           (answer->verdict == IDEM_V_STALE ||
            answer->verdict == IDEM_V_ABSENT);
}

/* Among requests and, where there is none, among tokens. */
static enum idem_status
look_up(struct idem_engine *engine, struct idem_op *op,
        struct idem_answer *answer, struct idem_error *err)
{
    enum idem_status status = idem_do(engine, op, answer, err);

    if (status != IDEM_OK || !is_nothing(answer))
        return status;
    idem_answer_clear(answer);
    op->type = IDEM_TYPE_TOKEN;
    return idem_do(engine, op, answer, err);
}

/* SETTLE writes where nothing is, so it looks first. */
static enum idem_status
settle(struct idem_engine *engine, struct idem_op *op,
       struct idem_answer *answer, struct idem_error *err)
{
    struct idem_op get = {.verb = IDEM_GET, .scope = op->scope, .id = op->id};
    enum idem_status status = look_up(engine, &get, answer, err);

    if (status != IDEM_OK)
        return status;
    if (!is_nothing(answer))
        op->type = get.type;
    idem_answer_clear(answer);
    return idem_do(engine, op, answer, err);
}

enum idem_status
idem__do_found(struct idem_engine *engine, const struct idem_op *op,
               struct idem_answer *answer, struct idem_error *err)
{
    struct idem_op copy = *op;

    if (op->type != 0)
        return idem_do(engine, op, answer, err);
    switch (op->verb) {
    case IDEM_SETTLE:
        return settle(engine, &copy, answer, err);
    case IDEM_FINISH:
    case IDEM_RELEASE:
    case IDEM_RENEW:
    case IDEM_GET:
    case IDEM_FORGET:
        return look_up(engine, &copy, answer, err);
    default:
        return idem_do(engine, op, answer, err);
    }
}
