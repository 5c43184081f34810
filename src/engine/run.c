/*
 * run.c - work done once: begin, keep the lease alive, finish.
 *
 * The engine itself renews the leases of all runs, every third of a lease,
 * until the finish is acknowledged: no thread a run, and a run whose process
 * dies stops renewing with it.
 */
#include "inner.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#define BEGIN_TRIES 10
#define LONGEST_PAUSE_MS 1000

/* ---- leases of runs, on the engine's thread ----------------------------- */

static void
drop_watch(struct idem__watch *watch)
{
    idem__timer_stop(&watch->engine->timers, &watch->timer);
    *watch->prev = watch->next;
    if (watch->next)
        watch->next->prev = watch->prev;
    free(watch);
}

void
idem__watch_add(struct idem_engine *engine, struct idem__watch *watch)
{
    watch->next = engine->watches;
    watch->prev = &engine->watches;
    if (watch->next)
        watch->next->prev = &watch->next;
    engine->watches = watch;
    (void)idem__timer_set(&engine->timers, &watch->timer,
                          engine->boot_now_us + watch->every_us);
}

static void
renewed(void *arg, enum idem_status status, const struct idem_answer *answer,
        const struct idem_error *err)
{
    struct idem__watch *watch = arg;
    int64_t next_us = watch->every_us;

    (void)err;
    watch->in_flight = false;
    if (watch->over) {
        drop_watch(watch);
        return;
    }
    if (status == IDEM_OK && answer->verdict == IDEM_V_STALE)
        return; /* finished or taken over: nothing left to renew */
    if (status != IDEM_OK || answer->verdict != IDEM_V_OK_DONE)
        next_us /= 4;
    (void)idem__timer_set(&watch->engine->timers, &watch->timer,
                          watch->engine->boot_now_us + next_us);
}

void
idem__watch_due(struct idem__watch *watch)
{
    struct idem_engine *engine = watch->engine;

    if (idem_submit(engine, &watch->renew, renewed, watch, NULL, NULL) ==
        IDEM_OK)
        watch->in_flight = true;
    else
        (void)idem__timer_set(&engine->timers, &watch->timer,
                              engine->boot_now_us + watch->every_us / 4);
}

void
idem__watch_end(struct idem__watch *watch)
{
    watch->over = true;
    if (!watch->in_flight)
        drop_watch(watch);
}

void
idem__watch_drop_all(struct idem_engine *engine)
{
    while (engine->watches)
        drop_watch(engine->watches);
}

/* ---- the run, on the caller's thread ------------------------------------ */

static struct idem__watch *
make_watch(struct idem_engine *engine, const struct idem_op *op)
{
    struct idem__watch *watch =
        calloc(1, sizeof(*watch) + op->scope.len + op->id.len);
    uint8_t *at = (uint8_t *)(watch + 1);

    if (!watch)
        return NULL;
    watch->engine = engine;
    watch->watch.kind = IDEM__ITEM_WATCH;
    watch->unwatch.kind = IDEM__ITEM_UNWATCH;
    watch->timer.kind = IDEM__TIMER_RENEW;
    watch->renew.verb = IDEM_RENEW;
    watch->renew.type = op->type;
    watch->renew.lease_ms = op->lease_ms;
    watch->renew.scope.data = memcpy(at, op->scope.data, op->scope.len);
    watch->renew.scope.len = op->scope.len;
    at += op->scope.len;
    watch->renew.id.data = memcpy(at, op->id.data, op->id.len);
    watch->renew.id.len = op->id.len;
    watch->every_us = op->lease_ms < 3 ? 1000 : op->lease_ms * 1000 / 3;
    return watch;
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
        return answer->verdict == IDEM_V_BUSY; /* somebody's row lock */
    return status == IDEM_ERR_LOST || status == IDEM_ERR_UNAVAILABLE ||
           status == IDEM_ERR_OVERLOADED || status == IDEM_ERR_MEMORY ||
           status == IDEM_ERR_FULL;
}

/* A begin whose answer was lost is sent again with the same nonce, so that it
 * finds itself; from then on "unavailable" is no answer any more, and "busy" only
 * in the end: a lost commit may still hold its row. */
static enum idem_status
begin(struct idem_engine *engine, const struct idem_op *op,
      struct idem_answer *answer, struct idem_error *err)
{
    enum idem_status status = idem_do(engine, op, answer, err);
    bool lost = status == IDEM_ERR_LOST;

    for (int i = 0; i < BEGIN_TRIES && lost && worth_another(status, answer);
         i++) {
        if (status == IDEM_OK)
            idem_answer_clear(answer);
        pause_ms(10 << i < LONGEST_PAUSE_MS ? 10 << i : LONGEST_PAUSE_MS);
        status = idem_do(engine, op, answer, err);
    }
    if (lost && status != IDEM_OK)
        return idem__fail(err, IDEM_ERR_LOST,
                          "cannot tell whether it was begun, nothing was run: "
                          "ask with get");
    return status;
}

/* Finishing is idempotent: what could not be told is told again, for as long
 * as the lease would hold without being renewed. */
static enum idem_status
finish(struct idem_engine *engine, const struct idem_op *op,
       struct idem_answer *answer, struct idem_error *err)
{
    int64_t end_us = idem__boot_us(engine) + op->lease_ms * 1000;
    enum idem_status status = idem_do(engine, op, answer, err);
    bool lost = status == IDEM_ERR_LOST;

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

/* A failure of a loose run leaves the record free; here the caller is told how
 * its own run went. */
static enum idem_status
tell_failure(const struct idem_op *op, struct idem_answer *answer)
{
    struct idem_record *record = &answer->record;
    size_t name_len = record->scope.len + record->id.len;
    uint8_t *memory = malloc(name_len + op->result.len + 1);

    record->state = IDEM_STATE_FAILED;
    record->kind = (uint8_t)op->kind;
    if (!memory)
        return IDEM_OK; /* the outcome at least */
    memcpy(memory, record->scope.data, record->scope.len);
    memcpy(memory + record->scope.len, record->id.data, record->id.len);
    if (op->result.len > 0)
        memcpy(memory + name_len, op->result.data, op->result.len);
    record->scope.data = memory;
    record->id.data = memory + record->scope.len;
    record->subject = (struct idem_bytes){NULL, 0};
    record->result = (struct idem_bytes){
        op->result.len > 0 ? memory + name_len : NULL, op->result.len};
    free(answer->memory);
    answer->memory = memory;
    return IDEM_OK;
}

static enum idem_status
work_and_finish(struct idem_engine *engine, const struct idem_op *op,
                idem_work_fn *fn, void *arg, struct idem_answer *answer,
                struct idem_error *err)
{
    struct idem_op end = {.verb = IDEM_FINISH,
                          .type = op->type,
                          .scope = op->scope,
                          .id = op->id};
    enum idem_state outcome;
    enum idem_status status;

    end.fence = answer->record.fence;
    end.kind = op->kind;
    end.lease_ms = op->lease_ms;
    outcome = fn(arg, end.fence, &end.result);
    if (outcome == IDEM_STATE_EXECUTING)
        return IDEM_OK; /* the claim stays; its lease is renewed no more */
    if (outcome == IDEM_STATE_FREE)
        end.verb = IDEM_RELEASE;
    else
        end.outcome = outcome == IDEM_STATE_SUCCEEDED ? IDEM_STATE_SUCCEEDED
                                                      : IDEM_STATE_FAILED;
    idem_answer_clear(answer);
    status = finish(engine, &end, answer, err);
    if (status != IDEM_OK || answer->verdict == IDEM_V_STALE)
        return status;
    answer->verdict = IDEM_V_STARTED;
    if (end.outcome && answer->record.state == IDEM_STATE_FREE)
        return tell_failure(&end, answer);
    return IDEM_OK;
}

enum idem_status
idem_run(struct idem_engine *engine, const struct idem_op *op, idem_work_fn *fn,
         void *arg, struct idem_answer *answer, struct idem_error *err)
{
    struct idem_op start = *op;
    uint64_t random = idem__new_rev();
    uint8_t nonce[IDEM_NONCE_LEN];
    struct idem__watch *watch;
    enum idem_status status;
    bool watched;

    start.verb = IDEM_BEGIN;
    start.fence = 0;
    if (!start.nonce) {
        memcpy(nonce, &random, sizeof(nonce));
        start.nonce = nonce;
    }
    status = idem__op_check(&start, err);
    if (status != IDEM_OK)
        return status;
    watch = make_watch(engine, &start);
    if (!watch)
        return idem__fail(err, IDEM_ERR_MEMORY, "out of memory");

    status = begin(engine, &start, answer, err);
    if (status != IDEM_OK || answer->verdict != IDEM_V_STARTED) {
        free(watch);
        return status;
    }
    watch->renew.fence = answer->record.fence;
    watched = idem__queue_put(engine, &watch->watch);
    status = work_and_finish(engine, &start, fn, arg, answer, err);
    if (!watched)
        free(watch);
    else
        (void)idem__queue_put(engine, &watch->unwatch);
    return status;
}
