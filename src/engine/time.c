/*
 * time.c - computes the store's time, as a lower and an upper bound.
 *
 * Times that are written count from the upper bound; judgements (is a lease
 * over, has a record expired) use the lower bound. A local store is asked for
 * every batch. A remote one is asked once a second. If it was asked at boot
 * time a and its reply t arrived at boot time b, then at boot time n >= b
 *
 *     t + (n - b) - drift  <=  the store's time  <=  t + (n - a) + drift
 *
 * The judged time follows the lower bound at once when it goes back, but gains
 * on this machine's boot clock by no more than one part in a thousand, which is
 * twice what honest clocks differ. So if somebody sets a clock forward, here or
 * at the store, no lease and no record ends early. It raises an alarm, and
 * during the alarm nothing is removed from the store.
 *
 * An engine that has just started has no earlier sample to compare with, so it
 * compares the store with this machine's wall clock. If the store is more than
 * an hour ahead, the engine judges by the wall clock until the two agree.
 *
 * If the store has no clock, times are written from this machine's wall clock.
 * A lease is then over when this engine has seen the same rev for as long as
 * the lease, on its boot clock; if this engine wrote the record, it counts from
 * that write. Other records expire a minute late, by a wall clock that may not
 * gain on the boot clock either.
 */
#include "inner.h"

#include <stdlib.h>

#define SAMPLE_EVERY_US 1000000
#define ALARM_US 5000000
#define ALARM_OVER_US 1000000
#define AHEAD_US INT64_C(3600000000)
#define SKEW_US 60000000 /* between engines, on a store without a clock */
/* The year 2200. Fences follow the clock; they fit until 2255. */
#define CLOCK_MOST_US INT64_C(7258118400000000)
#define SEEN_SETS 4096
#define SEEN_WAYS 4
/* An entry of this engine's own writes that nobody waits for is replaced before
 * one that somebody waits for. */
#define OWN_US INT64_C(3600000000)

int64_t
idem__boot_us(struct idem_engine *engine)
{
    const struct idem_clocks *clocks = engine->time.clocks;

    return clocks->boot_us(clocks->arg);
}

static int64_t
wall_us(struct idem_engine *engine)
{
    const struct idem_clocks *clocks = engine->time.clocks;

    return clocks->wall_us(clocks->arg);
}

static void
set_alarm(struct idem_engine *engine, int64_t ahead_us)
{
    struct idem__time *time = &engine->time;
    bool alarm = atomic_load(&time->alarm);

    if (!alarm && (ahead_us > ALARM_US || ahead_us < -ALARM_US)) {
        atomic_store(&time->alarm, true);
        idem__log(&engine->store_options, IDEM_LOG_ALARM,
                  "the clock jumped by %+.1f s: nothing expires early because "
                  "of it, leases may last longer; check what sets the clock",
                  (double)ahead_us / 1e6);
    } else if (alarm && ahead_us < ALARM_OVER_US && ahead_us > -ALARM_OVER_US) {
        atomic_store(&time->alarm, false);
    }
}

/* A local store's time is counted by the boot clock, so only this check detects
 * a jump of the wall clock. */
static void
check_wall(struct idem_engine *engine, int64_t boot_us)
{
    struct idem__time *time = &engine->time;

    if (boot_us - time->wall_checked_us < SAMPLE_EVERY_US)
        return;
    time->wall_checked_us = boot_us;
    set_alarm(engine, wall_us(engine) - boot_us - time->wall_offset_us);
}

static enum idem_status
sample(struct idem_engine *engine, int64_t boot_us, struct idem_error *err)
{
    struct idem__time *time = &engine->time;
    const struct idem_store_type *type = engine->store->type;
    enum idem_status status;
    int64_t store_us, told_us = boot_us;

    time->tried_us = boot_us;
    if (!type->now) {
        store_us = wall_us(engine);
        status = IDEM_OK;
    } else {
        status = type->now(engine->store, &store_us, err);
        if (!type->local)
            told_us = idem__boot_us(engine);
    }
    if (status == IDEM_OK && (store_us <= 0 || store_us > CLOCK_MOST_US))
        status = idem__fail(err, IDEM_ERR_UNAVAILABLE,
                            "the store's clock is at %lld s since 1970, which "
                            "cannot be: set it right",
                            (long long)store_us / 1000000);
    if (status != IDEM_OK)
        return status;
    time->sample_us = store_us;
    time->asked_us = boot_us;
    time->told_us = told_us;
    return IDEM_OK;
}

/* True if the store's time is not trusted: it was too far ahead of this machine
 * when this engine started, and still is. */
static bool
doubt(struct idem_engine *engine, int64_t early_us)
{
    struct idem__time *time = &engine->time;
    int64_t ahead_us = early_us - wall_us(engine);

    if (!time->doubted && time->judged_at_us == 0 && ahead_us > AHEAD_US) {
        time->doubted = true;
        atomic_store(&time->alarm, true);
        idem__log(&engine->store_options, IDEM_LOG_ALARM,
                  "the store's clock is %.1f hours ahead of this machine's: "
                  "nothing expires until they agree; set right the one that "
                  "is wrong",
                  (double)ahead_us / 3.6e9);
    } else if (time->doubted && ahead_us <= AHEAD_US) {
        time->doubted = false;
        time->judged_at_us = 0;
    }
    return time->doubted;
}

static void
judge(struct idem_engine *engine, int64_t boot_us, int64_t early_us)
{
    struct idem__time *time = &engine->time;
    bool doubted = !engine->store->type->local && doubt(engine, early_us);
    int64_t passed = boot_us - time->judged_at_us;
    int64_t most = time->judged_us + passed + passed / 1000;

    if (doubted && time->judged_at_us == 0)
        early_us = wall_us(engine);
    else if (time->judged_at_us != 0 && early_us > most) {
        if (!engine->store->type->local)
            set_alarm(engine, early_us - most);
        early_us = most;
    } else if (!engine->store->type->local) {
        set_alarm(engine, 0);
    }
    if (time->judged_at_us != 0)
        time->steady_us += passed - passed / 1000;
    if (early_us > time->steady_us)
        time->steady_us = early_us;
    time->judged_us = early_us;
    time->judged_at_us = boot_us;
}

void
idem__time_update(struct idem_engine *engine)
{
    struct idem__time *time = &engine->time;
    const struct idem_store_type *type = engine->store->type;
    int64_t boot_us = idem__boot_us(engine);
    int64_t drift_us, late_us, passed_us;

    if (type->local || !type->now ||
        boot_us - time->tried_us >= SAMPLE_EVERY_US) {
        (void)sample(engine, boot_us, NULL); /* else the last one is good */
        if (!type->local)
            boot_us = idem__boot_us(engine);
    }
    if (type->local)
        check_wall(engine, boot_us);

    drift_us = (boot_us - time->told_us) / 1000;
    passed_us = time->judged_at_us != 0 ? boot_us - time->judged_at_us : 0;
    judge(engine, boot_us,
          time->sample_us + (boot_us - time->told_us) - drift_us);
    late_us = time->sample_us + (boot_us - time->asked_us) + drift_us;
    /* If a clock is set back and later corrected, records written in between
     * would expire early. `pace_us` prevents that. */
    time->pace_us += passed_us - passed_us / 1000;
    if (late_us > time->pace_us)
        time->pace_us = late_us;
    /* After a record is gone, its key must not get an old fence again. So the
     * floor rises with every batch, whatever the clock does. */
    time->fence_floor_us++;
    if (late_us > 0 && (uint64_t)late_us > time->fence_floor_us)
        time->fence_floor_us = (uint64_t)late_us;
    /* Written times are never earlier than the last fence. So a record that
     * has expired and was removed never had a fence at or above the next
     * one. */
    late_us = (int64_t)time->fence_floor_us;

    engine->boot_now_us = boot_us;
    engine->now.early_ms = time->judged_us / 1000;
    engine->now.late_ms = late_us / 1000;
    if (engine->now.late_ms * 1000 < late_us && !type->local)
        engine->now.late_ms++;
    engine->now.behind_ms =
        time->pace_us > late_us ? (time->pace_us - late_us) / 1000 : 0;
    if (engine->now.behind_ms < engine->store->behind_us / 1000)
        engine->now.behind_ms = engine->store->behind_us / 1000;
    /* Without a clock only the length of a lease counts. */
    engine->now.steady_ms =
        time->seen ? 0 : time->steady_us / 1000 + !type->local;
    engine->now.up_ms = (boot_us - time->open_us) / 1000;
    engine->now.late_us = time->fence_floor_us;
    atomic_store_explicit(&engine->ahead_ms, (late_us - boot_us) / 1000,
                          memory_order_relaxed);
}

enum idem_status
idem__time_open(struct idem_engine *engine, struct idem_error *err)
{
    struct idem__time *time = &engine->time;
    enum idem_status status;

    time->open_us = idem__boot_us(engine);
    time->wall_offset_us = wall_us(engine) - time->open_us;
    time->wall_checked_us = time->open_us;
    if (!engine->store->type->now) {
        time->seen = calloc(SEEN_SETS * SEEN_WAYS, sizeof(*time->seen));
        if (!time->seen)
            return idem__fail(err, IDEM_ERR_MEMORY, "out of memory");
    }
    status = sample(engine, time->open_us, err);
    if (status == IDEM_OK)
        idem__time_update(engine);
    return status;
}

/* The entry of this rev, or the oldest entry of its set, to be replaced. */
static struct idem__seen *
seen_at(struct idem_engine *engine, uint64_t rev)
{
    struct idem__seen *set = &engine->time.seen[(rev % SEEN_SETS) * SEEN_WAYS];
    struct idem__seen *oldest = set;

    for (size_t i = 0; i < SEEN_WAYS; i++) {
        if (set[i].rev == rev)
            return &set[i];
        if (set[i].used_us < oldest->used_us)
            oldest = &set[i];
    }
    return oldest;
}

/* Since when the store has had this rev unchanged, as far as this engine
 * knows. */
static int64_t
seen_since(struct idem_engine *engine, uint64_t rev)
{
    struct idem__seen *seen = seen_at(engine, rev);

    if (seen->rev != rev) {
        seen->rev = rev;
        seen->since_us = engine->boot_now_us;
    }
    seen->used_us = engine->boot_now_us;
    return seen->since_us;
}

void
idem__time_wrote(struct idem_engine *engine, const struct idem_record *record)
{
    struct idem__seen *seen;

    if (!engine->time.seen || record->state != IDEM_STATE_EXECUTING)
        return;
    seen = seen_at(engine, record->rev);
    seen->rev = record->rev;
    seen->since_us = idem__boot_us(engine);
    seen->used_us = seen->since_us - OWN_US;
}

struct idem_now
idem__time_for(struct idem_engine *engine, const struct idem_record *record)
{
    struct idem_now now = engine->now;

    if (!engine->time.seen || !record)
        return now;
    if (record->state == IDEM_STATE_EXECUTING) {
        int64_t since_us = seen_since(engine, record->rev);

        now.early_ms =
            record->updated + (engine->boot_now_us - since_us) / 1000;
        now.up_ms = (engine->boot_now_us - since_us) / 1000;
    } else {
        now.early_ms -= SKEW_US / 1000;
    }
    return now;
}

/* Between batches nobody asks the store, so the last judgement is extrapolated.
 * A local store's time is counted by the boot clock and needs no alarm. */
int64_t
idem__time_drop_ms(struct idem_engine *engine)
{
    struct idem__time *time = &engine->time;
    const struct idem_store_type *type = engine->store->type;
    int64_t passed_us = idem__boot_us(engine) - time->judged_at_us;
    int64_t early_us = time->judged_us + passed_us - passed_us / 1000;

    if (time->judged_at_us == 0 || (!type->local && atomic_load(&time->alarm)))
        return 0;
    if (!type->now)
        early_us -= SKEW_US;
    return early_us / 1000 - IDEM__DROP_MARGIN_MS;
}

int64_t
idem__time_lease_end_us(struct idem_engine *engine,
                        const struct idem_record *record)
{
    struct idem_now now = idem__time_for(engine, record);
    int64_t left_ms = record->lease_until - now.early_ms;
    int64_t watch_ms = record->lease_until - record->updated - now.up_ms;

    if (watch_ms > left_ms)
        left_ms = watch_ms;
    return engine->boot_now_us + (left_ms < 0 ? 0 : left_ms) * 1000 + 1000;
}
