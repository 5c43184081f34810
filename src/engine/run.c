/*
 * run.c - idem_run: runs work once. It begins, keeps the lease alive and
 * finishes.
 *
 * The engine itself renews the leases of all runs (keep.c) until the finish is
 * acknowledged.
 *
 * idem_run has three parts: begin, work, end. A caller that does not want to
 * wait for the end submits it, and calls idem__run_end only if that failed.
 */
#include "inner.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#define BEGIN_TRIES 10
#define LONGEST_PAUSE_MS 1000

/* A run that was begun. It lives until its lease need not be kept any
 * longer. */
struct idem__run {
    struct idem__keeper keeper; /* its scope and id follow the struct */
    int64_t patience_ms;        /* how long to try to record the outcome */
    bool lost;                  /* the reply to a submitted FINISH was lost */
    enum idem_kind kind;        /* of its result */
    idem_done_fn *done;         /* of idem__run_submit_end */
    void *arg;
};

static void
free_run(struct idem__keeper *keeper)
{
    free(IDEM__OF(keeper, struct idem__run, keeper));
}

/* Renewals that fail are logged once for all runs of an engine. */
static bool
note_renewal(struct idem__keeper *keeper, enum idem__kept kept,
             const struct idem_error *err)
{
    struct idem_engine *engine = keeper->engine;

    if (kept == IDEM__KEPT_LOST)
        idem__log(&engine->store_options, IDEM_LOG_WARNING,
                  "run with fence %llu: its claim is lost: somebody settled it "
                  "or took it over; the work goes on, its outcome will not "
                  "count",
                  (unsigned long long)keeper->renew.fence);
    else if (kept == IDEM__KEPT_UNSURE && err && !engine->renewals_fail)
        idem__log(&engine->store_options, IDEM_LOG_WARNING,
                  "claims of runs cannot be renewed (%s); trying on",
                  err->text);
    engine->renewals_fail = kept == IDEM__KEPT_UNSURE && err;
    return true;
}

static struct idem__run *
make_run(struct idem_engine *engine, const struct idem_op *op)
{
    struct idem__run *run =
        calloc(1, sizeof(*run) + op->scope.len + op->id.len);
    uint8_t *at = (uint8_t *)(run + 1);
    struct idem_op renew = {.type = op->type, .lease_ms = op->lease_ms};

    if (!run)
        return NULL;
    renew.scope.data = memcpy(at, op->scope.data, op->scope.len);
    renew.scope.len = op->scope.len;
    at += op->scope.len;
    renew.id.data = memcpy(at, op->id.data, op->id.len);
    renew.id.len = op->id.len;
    idem__keeper_init(&run->keeper, engine, &renew, note_renewal, free_run);
    run->kind = op->kind;
    run->patience_ms = op->lease_ms;
    return run;
}

void
idem__run_patience(struct idem__run *run, int64_t ms)
{
    run->patience_ms = ms;
}

static void
pause_ms(int64_t ms)
{
    struct timespec time = {ms / 1000, (long)(ms % 1000) * 1000000};

    nanosleep(&time, NULL);
}

static bool
worth_another(enum idem_status status, const struct idem_answer *answer)
{
    if (status == IDEM_OK)
        return answer->verdict == IDEM_V_BUSY; /* the row is locked */
    return status == IDEM_ERR_LOST || status == IDEM_ERR_UNAVAILABLE ||
           status == IDEM_ERR_OVERLOADED || status == IDEM_ERR_MEMORY ||
           status == IDEM_ERR_FULL;
}

/* If the reply to a BEGIN was lost, send it again with the same nonce, so that
 * it recognises its own record. After a loss "unavailable" is no longer a safe
 * answer, since the BEGIN may have been stored; and "busy" is retried, because
 * a lost commit may still hold the row. */
static enum idem_status
begin(struct idem__run *run, const struct idem_op *op,
      struct idem_answer *answer, struct idem_error *err)
{
    struct idem_engine *engine = run->keeper.engine;
    enum idem_status status =
        idem__do_kept(engine, op, &run->keeper, answer, err);
    bool lost = status == IDEM_ERR_LOST;

    for (int i = 0; i < BEGIN_TRIES && lost && worth_another(status, answer);
         i++) {
        if (status == IDEM_OK)
            idem_answer_clear(answer);
        pause_ms(10 << i < LONGEST_PAUSE_MS ? 10 << i : LONGEST_PAUSE_MS);
        status = idem__do_kept(engine, op, &run->keeper, answer, err);
    }
    if (lost && status != IDEM_OK)
        return idem__fail(err, IDEM_ERR_LOST,
                          "cannot tell whether it was begun, nothing was run: "
                          "ask with get");
    return status;
}

/* FINISH is idempotent, so it is retried for as long as the lease would last
 * without renewal, or for the time that the caller set. */
static enum idem_status
finish(struct idem__run *run, const struct idem_op *op,
       struct idem_answer *answer, struct idem_error *err)
{
    struct idem_engine *engine = run->keeper.engine;
    int64_t end_us = idem__boot_us(engine) + run->patience_ms * 1000;
    enum idem_status status = idem_do(engine, op, answer, err);
    bool lost = run->lost || status == IDEM_ERR_LOST;

    for (int64_t ms = 10; worth_another(status, answer) &&
                          idem__boot_us(engine) + ms * 1000 < end_us;) {
        if (status == IDEM_OK)
            idem_answer_clear(answer);
        pause_ms(ms);
        ms = ms * 2 < LONGEST_PAUSE_MS ? ms * 2 : LONGEST_PAUSE_MS;
        status = idem_do(engine, op, answer, err);
        lost = lost || status == IDEM_ERR_LOST;
    }
    if (status == IDEM_OK && answer->verdict != IDEM_V_BUSY)
        return IDEM_OK;
    if (status == IDEM_OK)
        idem_answer_clear(answer);
    return idem__fail(err, IDEM_ERR_LOST,
                      "the work was done but %s recorded: ask with get",
                      lost ? "may not be" : "is not");
}

/* A failed run in loose mode leaves the record free, but this caller gets the
 * outcome of its own run. */
static void
tell_failure(const struct idem_op *op, struct idem_answer *answer)
{
    struct idem_record failed = *answer->record;

    failed.state = IDEM_STATE_FAILED;
    failed.kind = (uint8_t)op->kind;
    failed.subject = (struct idem_bytes){NULL, 0};
    failed.result = op->result;
    if (idem__answer_keep(answer, &failed))
        return;
    failed.result = (struct idem_bytes){NULL, 0}; /* at least the outcome */
    (void)idem__answer_keep(answer, &failed);
}

enum idem_status
idem__run_begin(struct idem_engine *engine, const struct idem_op *op,
                struct idem__run **out, struct idem_answer *answer,
                struct idem_error *err)
{
    struct idem_op start = *op;
    uint64_t random = idem__new_rev();
    uint8_t nonce[IDEM_NONCE_LEN];
    struct idem__run *run;
    enum idem_status status;

    *out = NULL;
    *answer = (struct idem_answer){.record = &idem__no_record};
    start.verb = IDEM_BEGIN;
    start.fence = 0;
    if (!start.nonce) {
        memcpy(nonce, &random, sizeof(nonce));
        start.nonce = nonce;
    }
    status = idem__op_check(&start, err);
    if (status != IDEM_OK)
        return status;
    run = make_run(engine, &start);
    if (!run)
        return idem__fail(err, IDEM_ERR_MEMORY, "out of memory");

    status = begin(run, &start, answer, err);
    if (status == IDEM_OK && answer->verdict == IDEM_V_STARTED)
        *out = run;
    else
        free(run);
    return status;
}

/* The operation that records the outcome. */
static struct idem_op
end_op(const struct idem__run *run, enum idem_state outcome,
       struct idem_bytes result)
{
    struct idem_op op = run->keeper.renew;

    op.verb = outcome == IDEM_STATE_FREE ? IDEM_RELEASE : IDEM_FINISH;
    if (op.verb == IDEM_FINISH)
        op.outcome = outcome == IDEM_STATE_SUCCEEDED ? IDEM_STATE_SUCCEEDED
                                                     : IDEM_STATE_FAILED;
    op.kind = run->kind;
    op.result = result;
    return op;
}

enum idem_status
idem__run_end(struct idem__run *run, enum idem_state outcome,
              struct idem_bytes result, struct idem_answer *answer,
              struct idem_error *err)
{
    struct idem_op op = end_op(run, outcome, result);
    enum idem_status status = IDEM_OK;

    /* If the outcome is not known, the claim stays. */
    if (outcome != IDEM_STATE_EXECUTING) {
        idem_answer_clear(answer);
        status = finish(run, &op, answer, err);
        if (status == IDEM_OK && answer->verdict != IDEM_V_STALE) {
            answer->verdict = IDEM_V_STARTED;
            if (op.outcome && answer->record->state == IDEM_STATE_FREE)
                tell_failure(&op, answer);
        }
    }
    idem__keeper_end(&run->keeper);
    return status;
}

static void
ended(void *arg, enum idem_status status, const struct idem_answer *answer,
      const struct idem_error *err)
{
    struct idem__run *run = arg;
    idem_done_fn *done = run->done;
    void *done_arg = run->arg;

    run->lost = status == IDEM_ERR_LOST;
    if (status == IDEM_OK && answer->verdict != IDEM_V_BUSY)
        idem__keeper_over(&run->keeper);
    done(done_arg, status, answer, err);
}

enum idem_status
idem__run_submit_end(struct idem__run *run, enum idem_state outcome,
                     struct idem_bytes result, idem_done_fn *done, void *arg,
                     struct idem_error *err)
{
    struct idem_op op = end_op(run, outcome, result);

    run->done = done;
    run->arg = arg;
    return idem_submit(run->keeper.engine, &op, ended, run, NULL, err);
}

enum idem_status
idem_run(struct idem_engine *engine, const struct idem_op *op, idem_work_fn *fn,
         void *arg, struct idem_answer *answer, struct idem_error *err)
{
    struct idem_bytes result = {NULL, 0};
    struct idem__run *run;
    enum idem_state outcome;
    enum idem_status status = idem__run_begin(engine, op, &run, answer, err);

    if (!run)
        return status;
    outcome = fn(arg, answer->record->fence, &result);
    return idem__run_end(run, outcome, result, answer, err);
}
