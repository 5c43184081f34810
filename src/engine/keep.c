/*
 * keep.c - keeps leases alive, on the thread that takes the engine's turns.
 *
 * There is no thread per lease, and when the process dies, its renewals stop. A
 * lease is renewed until its owner ends it, or until the store says that
 * somebody else has the record.
 */
#include "inner.h"

static void
drop_keeper(struct idem__keeper *keeper)
{
    idem__timer_stop(&keeper->engine->timers, &keeper->timer);
    LIST_REMOVE(keeper, in_engine);
    keeper->gone(keeper);
}

static void
plan(struct idem__keeper *keeper)
{
    (void)idem__timer_set(&keeper->engine->timers, &keeper->timer,
                          idem__lease_due_us(&keeper->lease));
}

void
idem__keeper_init(struct idem__keeper *keeper, struct idem_engine *engine,
                  const struct idem_op *renew, idem__kept_fn *kept,
                  idem__keeper_gone_fn *gone)
{
    *keeper = (struct idem__keeper){
        .end = {.kind = IDEM__ITEM_KEPT},
        .timer = {.kind = IDEM__TIMER_RENEW},
        .lease = {.length_us = renew->lease_ms * 1000},
        .engine = engine,
        .renew = *renew,
        .kept = kept,
        .gone = gone,
    };
    keeper->renew.verb = IDEM_RENEW;
}

void
idem__keeper_start(struct idem__keeper *keeper, uint64_t fence)
{
    struct idem_engine *engine = keeper->engine;

    keeper->renew.fence = fence;
    LIST_INSERT_HEAD(&engine->keepers, keeper, in_engine);
    idem__lease_granted(&keeper->lease);
    plan(keeper);
}

static void
renewed(void *arg, enum idem_status status, const struct idem_answer *answer,
        const struct idem_error *err)
{
    struct idem__keeper *keeper = arg;
    enum idem__kept kept = IDEM__KEPT_UNSURE;

    keeper->in_flight = false;
    if (keeper->over) {
        drop_keeper(keeper);
        return;
    }
    /* An error, or a row that is locked for a moment, does not mean that
     * somebody else has the record. */
    if (status == IDEM_OK && answer->verdict == IDEM_V_OK)
        kept = IDEM__KEPT;
    else if (status == IDEM_OK && answer->verdict == IDEM_V_STALE)
        kept = IDEM__KEPT_LOST;
    if (kept == IDEM__KEPT)
        idem__lease_granted(&keeper->lease);
    if (keeper->kept(keeper, kept, err) && kept != IDEM__KEPT_LOST)
        plan(keeper);
}

void
idem__keeper_due(struct idem__keeper *keeper)
{
    struct idem_engine *engine = keeper->engine;

    keeper->lease.asked_us = engine->boot_now_us;
    if (idem_submit(engine, &keeper->renew, renewed, keeper, NULL, NULL) ==
        IDEM_OK)
        keeper->in_flight = true;
    else
        plan(keeper);
}

void
idem__keeper_over(struct idem__keeper *keeper)
{
    keeper->over = true;
    if (!keeper->in_flight)
        drop_keeper(keeper);
}

void
idem__keeper_end(struct idem__keeper *keeper)
{
    /* If the engine is closing, it drops the keeper by itself. */
    (void)idem__queue_put(keeper->engine, &keeper->end);
}

void
idem__keepers_close(struct idem_engine *engine)
{
    while (!LIST_EMPTY(&engine->keepers))
        drop_keeper(LIST_FIRST(&engine->keepers));
}
