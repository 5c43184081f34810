/*
 * time_bounds_test.c - tests the figures of time.c to the millisecond: the
 * bounds of the store's time, the limits at which an alarm begins and ends, and
 * how long a rev has been watched. time_test.c tests what follows from them.
 *
 * The store's clock is a number of these tests; the boot clock counts from
 * another one. The tests move both and let the engine look.
 */
#include "../../tests/support/rig.h"
#include "inner.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define SECOND_US INT64_C(1000000)
#define HOUR_US (3600 * SECOND_US)
#define ALARM_US (5 * SECOND_US)
#define SKEW_MS 60000
#define SETS 4096 /* of the table of revs; a set has four places */

static void
pass_us(struct rig *rig, int64_t us)
{
    atomic_fetch_add(&rig->clocks.wall_us, us);
    atomic_fetch_add(&rig->clocks.boot_us, us);
}

static const struct idem_now *
look(struct rig *rig)
{
    idem__time_update(rig->engine);
    return &rig->engine->now;
}

/* The bounds after so much time. */
static const struct idem_now *
look_after(struct rig *rig, int64_t us)
{
    pass_us(rig, us);
    return look(rig);
}

/* From now on the store's clock cannot be read. */
static void
hide_clock(struct rig *rig)
{
    rig->store->faulty_now = true;
    faulty_plan(rig->store, FAULT_UNAVAILABLE, 0, 1000000);
}

static bool
alarm_on(struct rig *rig)
{
    return atomic_load(&rig->engine->time.alarm);
}

/* ---- the bounds -----------------------------------------------------------
 */

static void
a_remote_clock_is_one_part_in_a_thousand_less_certain_with_time(void **state)
{
    struct rig *rig = *state;
    int64_t start_us = atomic_load(&rig->clocks.wall_us);
    const struct idem_now *now = look_after(rig, SECOND_US);

    /* It was read just now. */
    assert_int_equal(now->late_us, start_us + SECOND_US);
    assert_int_equal(now->late_ms, start_us / 1000 + 1000);
    assert_int_equal(now->early_ms, start_us / 1000 + 1000);
    assert_int_equal(now->up_ms, 1000);
    assert_int_equal(now->behind_ms, 0);
    /* It was read 999 ms ago. Times that are written are rounded up. */
    now = look_after(rig, 999000);
    assert_int_equal(now->late_us, start_us + SECOND_US + 999999);
    assert_int_equal(now->late_ms, start_us / 1000 + 2000);
    assert_int_equal(now->early_ms, start_us / 1000 + 1998);
    assert_int_equal(now->up_ms, 1999);
    /* It was read 20,000 seconds ago. */
    (void)look_after(rig, 1000);
    hide_clock(rig);
    now = look_after(rig, 20000 * SECOND_US);
    assert_int_equal(now->late_us, start_us + 20022 * SECOND_US);
    assert_int_equal(now->early_ms, start_us / 1000 + 20002000 - 20000);
    assert_int_equal(now->up_ms, 20002000);
    assert_int_equal(now->behind_ms, 0);
}

static void
a_remote_clock_is_read_again_after_exactly_a_second(void **state)
{
    struct rig *rig = *state;

    (void)look_after(rig, 10 * SECOND_US);
    assert_int_equal(rig->store->nows, 2); /* the first time at the start */
    (void)look_after(rig, SECOND_US - 1);
    assert_int_equal(rig->store->nows, 2);
    (void)look_after(rig, 1);
    assert_int_equal(rig->store->nows, 3);
    /* An attempt that failed counts as well. */
    hide_clock(rig);
    (void)look_after(rig, SECOND_US);
    assert_int_equal(rig->store->nows, 4);
    (void)look_after(rig, SECOND_US - 1);
    assert_int_equal(rig->store->nows, 4);
    (void)look_after(rig, 1);
    assert_int_equal(rig->store->nows, 5);
}

static void
two_seconds_pass(void *arg)
{
    test_clocks_pass(arg, 2000);
}

/* Its clock is a local call, so the time of the batch is that of its start. */
static void
a_local_clock_is_exact_for_every_batch(void **state)
{
    struct rig *rig = *state;
    int64_t start_us = atomic_load(&rig->clocks.wall_us);
    int64_t boot_us = atomic_load(&rig->clocks.boot_us);
    int nows = atomic_load(&rig->store->nows);
    const struct idem_now *now = look_after(rig, 1700);

    assert_int_equal(rig->store->nows, nows + 1);
    assert_int_equal(now->early_ms, start_us / 1000 + 1);
    assert_int_equal(now->late_ms, start_us / 1000 + 1);
    assert_int_equal(now->late_us, start_us + 1700);
    assert_int_equal(now->up_ms, 1);
    assert_int_equal(now->steady_ms, start_us / 1000 + 1);
    assert_int_equal(rig->engine->boot_now_us, boot_us + 1700);

    rig->store->during_now = two_seconds_pass;
    rig->store->during_now_arg = &rig->clocks;
    now = look(rig);
    assert_int_equal(now->late_us, start_us + 1701);
    assert_int_equal(rig->engine->boot_now_us, boot_us + 1700);
}

static void
a_slow_answer_about_the_time_makes_the_bounds_wider(void **state)
{
    struct rig *rig = *state;
    int64_t start_us = atomic_load(&rig->clocks.wall_us);
    int64_t boot_us = atomic_load(&rig->clocks.boot_us);
    const struct idem_now *now;

    rig->store->during_now = two_seconds_pass;
    rig->store->during_now_arg = &rig->clocks;
    now = look_after(rig, 10 * SECOND_US);
    assert_int_equal(now->early_ms, start_us / 1000 + 10000);
    assert_int_equal(now->late_us, start_us + 12 * SECOND_US);
    assert_int_equal(rig->engine->boot_now_us, boot_us + 12 * SECOND_US);
}

static void
the_judged_time_gains_one_part_in_a_thousand_on_the_boot_clock(void **state)
{
    struct rig *rig = *state;
    int64_t early_ms = look_after(rig, SECOND_US)->early_ms;

    atomic_store(&rig->store->clock_us, HOUR_US);
    assert_int_equal(look_after(rig, 20000 * SECOND_US)->early_ms,
                     early_ms + 20000000 + 20000);
    assert_true(alarm_on(rig));
    assert_non_null(strstr(rig->said, " +3580.0 s"));
    /* What is written counts from the new time at once. */
    assert_int_equal(rig->engine->now.late_ms, early_ms + 20000000 + 3600000);
}

static void
the_judged_time_goes_back_at_once(void **state)
{
    struct rig *rig = *state;
    const struct idem_now *now = look_after(rig, SECOND_US);
    int64_t early_ms = now->early_ms, steady_ms = now->steady_ms;
    uint64_t late_us = now->late_us;

    assert_int_equal(steady_ms, early_ms + 1);
    atomic_store(&rig->store->clock_us, -20 * HOUR_US);
    now = look_after(rig, 20000 * SECOND_US);
    assert_int_equal(now->early_ms, early_ms + 20000000 - 72000000);
    assert_false(alarm_on(rig));
    /* Leases count from the latest time that was ever judged by, advanced by
     * the boot clock less one part in a thousand. */
    assert_int_equal(now->steady_ms, steady_ms + 20000000 - 20000);
    /* Fences do not go back. Expiry makes up for that. */
    assert_int_equal(now->late_us, late_us + 1);
    assert_int_equal(now->behind_ms, 20000000 - 20000 - 1);
    now = look_after(rig, 20000 * SECOND_US);
    assert_int_equal(now->steady_ms, steady_ms + 2 * (20000000 - 20000));
    assert_int_equal(now->behind_ms, 2 * (20000000 - 20000) - 1);
}

static void
every_batch_has_a_later_fence(void **state)
{
    struct rig *rig = *state;
    uint64_t late_us = look(rig)->late_us;

    for (int i = 0; i < 5; i++)
        assert_int_equal(look(rig)->late_us, ++late_us);
}

/* Its time may go forward by so much when it is opened again. */
static void
a_store_can_say_that_its_clock_is_behind(void **state)
{
    struct rig *rig = *state;
    int64_t behind_ms;

    rig->store->base.behind_us = 20000 * SECOND_US;
    assert_int_equal(look(rig)->behind_ms, 20000000);
    /* It counts if it is more than what this engine has seen itself. */
    atomic_store(&rig->store->clock_us, -10 * HOUR_US);
    assert_int_equal(look_after(rig, 10000 * SECOND_US)->behind_ms, 20000000);
    rig->store->base.behind_us = 0;
    behind_ms = look_after(rig, 20000 * SECOND_US)->behind_ms;
    assert_int_equal(behind_ms, 30000000 - 30000 - 1);
    rig->store->base.behind_us = (behind_ms - 2) * 1000;
    assert_int_equal(look(rig)->behind_ms, behind_ms);
    rig->store->base.behind_us = (behind_ms + 2) * 1000;
    assert_int_equal(look(rig)->behind_ms, behind_ms + 2);
}

/* A machine without a battery starts in 1970, so its boot clock may be ahead of
 * its wall clock. */
static void
a_clock_that_starts_in_1970_is_judged_by_itself(void **state)
{
    static const enum faulty_kind kinds[] = {FAULTY_LOCAL, FAULTY_REMOTE};

    (void)state;
    for (int i = 0; i < 2; i++) {
        const struct idem_now *now;
        struct faulty_store *store;
        struct idem_engine *early;
        struct rig rig;

        rig_open(&rig, kinds[i], NULL);
        atomic_store(&rig.clocks.wall_us, 1000 * SECOND_US);
        idem_close(rig.engine);
        idem__store_close(rig.memory);
        assert_int_equal(idem__store_open("memory:",
                                          &(struct idem_store_options){
                                              .clocks = &rig.clocks.clocks},
                                          &rig.memory, NULL),
                         IDEM_OK);
        early = rig_engine(&rig, kinds[i], NULL, &store);
        now = &early->now;
        assert_int_equal(now->early_ms, 1000000);
        assert_int_equal(now->late_ms, 1000000);
        assert_int_equal(now->behind_ms, 0);
        assert_int_equal(now->steady_ms, 1000000 + (kinds[i] != FAULTY_LOCAL));
        rig.engine = early;
        rig_close(&rig);
    }
}

static void
the_time_of_the_figures_is_the_written_time(void **state)
{
    struct rig *rig = *state;
    struct idem__stats stats;
    int64_t late_ms = look_after(rig, SECOND_US)->late_ms;

    idem__stats(rig->engine, &stats);
    assert_int_equal(stats.now_ms, late_ms);
    pass_us(rig, 20000 * SECOND_US);
    idem__stats(rig->engine, &stats);
    assert_int_equal(stats.now_ms, late_ms + 20000000);
}

static void
a_clock_is_right_from_the_first_microsecond_to_the_year_2200(void **state)
{
    static const int64_t most_us = INT64_C(7258118400000000);
    const struct {
        int64_t us;
        bool right;
    } cases[] = {{0, false},
                 {-1, false},
                 {1, true},
                 {most_us, true},
                 {most_us + 1, false}};
    struct rig rig;

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        int64_t asked_us;

        rig_open(&rig, FAULTY_REMOTE, NULL);
        asked_us = rig.engine->time.asked_us;
        pass_us(&rig, SECOND_US);
        atomic_store(&rig.store->clock_us,
                     cases[i].us - atomic_load(&rig.clocks.wall_us));
        (void)look(&rig);
        assert_int_equal(rig.engine->time.asked_us - asked_us,
                         cases[i].right ? SECOND_US : 0);
        rig_close(&rig);
    }
}

static void
a_lease_ends_after_the_engine_has_run_for_as_long(void **state)
{
    struct rig *rig = *state;
    int64_t early_ms = look_after(rig, SECOND_US)->early_ms;
    struct idem_record record = {.state = IDEM_STATE_EXECUTING,
                                 .updated = early_ms - 20000,
                                 .lease_until = early_ms - 10000};

    /* A lease of 10 s, and it has run for one. */
    assert_int_equal(idem__time_lease_end_us(rig->engine, &record),
                     rig->engine->boot_now_us + 9 * SECOND_US + 1000);
    record.lease_until = early_ms + 10000;
    record.updated = early_ms + 9000;
    assert_int_equal(idem__time_lease_end_us(rig->engine, &record),
                     rig->engine->boot_now_us + 10 * SECOND_US + 1000);
}

static void
between_batches_the_dropped_time_follows_the_boot_clock(void **state)
{
    struct rig *rig = *state;
    int64_t early_ms = look_after(rig, SECOND_US)->early_ms;

    pass_us(rig, 20000 * SECOND_US);
    assert_int_equal(idem__time_drop_ms(rig->engine),
                     early_ms + 20000000 - 20000 - IDEM__DROP_MARGIN_MS);
}

/* ---- alarms ----------------------------------------------------------------
 */

static void
a_jump_of_more_than_five_seconds_is_an_alarm(void **state)
{
    static const struct {
        int64_t jump_us;
        bool alarm;
        const char *said;
    } cases[] = {{ALARM_US, false, ""},
                 {-ALARM_US, false, ""},
                 {ALARM_US + 1, true, "jumped by +5.0 s"},
                 {-ALARM_US - 1, true, "jumped by -5.0 s"}};

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct rig rig;

        rig_open(&rig, FAULTY_LOCAL, NULL);
        atomic_fetch_add(&rig.clocks.wall_us, cases[i].jump_us);
        (void)look_after(&rig, SECOND_US);
        assert_int_equal(alarm_on(&rig), cases[i].alarm);
        assert_int_equal(rig.logged, cases[i].alarm);
        assert_non_null(strstr(rig.said, cases[i].said));
        (void)look_after(&rig, SECOND_US);
        assert_int_equal(rig.logged, cases[i].alarm); /* once */
        rig_close(&rig);
    }
}

static void
an_alarm_is_over_when_less_than_a_second_is_left(void **state)
{
    static const int64_t signs[] = {1, -1};

    (void)state;
    for (int i = 0; i < 2; i++) {
        struct rig rig;
        int64_t wall_us;

        rig_open(&rig, FAULTY_LOCAL, NULL);
        wall_us = atomic_load(&rig.clocks.wall_us);
        atomic_store(&rig.clocks.wall_us, wall_us + signs[i] * HOUR_US);
        (void)look_after(&rig, SECOND_US);
        assert_true(alarm_on(&rig));
        atomic_store(&rig.clocks.wall_us,
                     wall_us + SECOND_US + signs[i] * SECOND_US);
        (void)look_after(&rig, SECOND_US);
        assert_true(alarm_on(&rig));
        atomic_store(&rig.clocks.wall_us,
                     wall_us + 2 * SECOND_US + signs[i] * (SECOND_US - 1));
        (void)look_after(&rig, SECOND_US);
        assert_false(alarm_on(&rig));
        rig_close(&rig);
    }
}

static void
the_wall_clock_is_checked_once_a_second(void **state)
{
    struct rig *rig = *state;

    (void)look_after(rig, 10 * SECOND_US);
    atomic_fetch_add(&rig->clocks.wall_us, HOUR_US);
    (void)look_after(rig, SECOND_US - 1);
    assert_false(alarm_on(rig));
    (void)look_after(rig, 1);
    assert_true(alarm_on(rig));
    atomic_fetch_sub(&rig->clocks.wall_us, HOUR_US);
    (void)look_after(rig, SECOND_US - 1);
    assert_true(alarm_on(rig));
    (void)look_after(rig, 1);
    assert_false(alarm_on(rig));
}

static void
a_wall_clock_does_not_concern_a_store_far_away(void **state)
{
    struct rig *rig = *state;

    atomic_fetch_add(&rig->clocks.wall_us, 30 * 60 * SECOND_US);
    (void)look_after(rig, 10 * SECOND_US);
    assert_false(alarm_on(rig));
    assert_int_equal(rig->logged, 0);
}

/* An engine that starts while the store is ahead of this machine by so much. */
static struct idem_engine *
start_behind(struct rig *rig, int64_t ahead_us)
{
    struct idem_engine *engine;

    atomic_fetch_sub(&rig->clocks.wall_us, ahead_us);
    rig->logged = 0;
    engine = rig_engine(rig, FAULTY_REMOTE, NULL, NULL);
    assert_int_equal(atomic_load(&engine->time.alarm), rig->logged);
    return engine;
}

static void
a_store_that_is_an_hour_ahead_at_the_start_is_believed(void **state)
{
    struct rig *rig = *state;
    int64_t store_us = atomic_load(&rig->clocks.wall_us);
    struct idem_engine *young = start_behind(rig, HOUR_US);

    assert_int_equal(rig->logged, 0);
    assert_int_equal(young->now.early_ms, store_us / 1000);
    idem_close(young);
}

static void
a_store_that_is_further_ahead_is_believed_when_an_hour_is_left(void **state)
{
    struct rig *rig = *state;
    int64_t store_us = atomic_load(&rig->clocks.wall_us);
    struct idem_engine *young = start_behind(rig, HOUR_US + 1000);
    int64_t wall_us = store_us - HOUR_US - 1000;

    assert_int_equal(rig->logged, 1);
    assert_non_null(strstr(rig->said, " 1.0 hours ahead"));
    /* It judges by the wall clock, which goes on. */
    assert_int_equal(young->now.early_ms, wall_us / 1000);
    pass_us(rig, 20000 * SECOND_US);
    idem__time_update(young);
    assert_int_equal(young->now.early_ms, wall_us / 1000 + 20000000 + 20000);
    assert_int_equal(rig->logged, 1);
    assert_true(atomic_load(&young->time.alarm));
    assert_int_equal(idem__time_drop_ms(young), 0);
    idem_close(young);

    young = start_behind(rig, 24 * HOUR_US); /* 25 hours in all */
    assert_non_null(strstr(rig->said, " 25.0 hours ahead"));
    atomic_fetch_add(&rig->clocks.wall_us, 24 * HOUR_US + 1000);
    pass_us(rig, SECOND_US);
    idem__time_update(young);
    assert_int_equal(young->now.early_ms, store_us / 1000 + 20001000);
    assert_false(atomic_load(&young->time.alarm));
    assert_true(idem__time_drop_ms(young) > 0);
    idem_close(young);
}

/* ---- a store without a clock -----------------------------------------------
 */

/* An executing record with this rev, whose lease is 10 s. */
static struct idem_record
claim(uint64_t rev)
{
    return (struct idem_record){.state = IDEM_STATE_EXECUTING,
                                .rev = rev,
                                .updated = 1000000,
                                .lease_until = 1010000};
}

/* For how long the engine has seen this rev; 0: it is new. */
static int64_t
watched_ms(struct rig *rig, uint64_t rev)
{
    struct idem_record record = claim(rev);
    struct idem_now now = idem__time_for(rig->engine, &record);

    assert_int_equal(now.early_ms, record.updated + now.up_ms);
    return now.up_ms;
}

static void
without_a_clock_a_rev_is_watched_by_the_boot_clock(void **state)
{
    struct rig *rig = *state;
    struct idem_record record = claim(7);
    struct idem_now now;

    assert_int_equal(watched_ms(rig, 7), 0);
    (void)look_after(rig, 20000 * SECOND_US);
    assert_int_equal(watched_ms(rig, 7), 20000000);
    assert_int_equal(watched_ms(rig, 8), 0);
    /* A record that is not executing expires a minute late. */
    record.state = IDEM_STATE_SUCCEEDED;
    now = idem__time_for(rig->engine, &record);
    assert_int_equal(now.early_ms, rig->engine->now.early_ms - SKEW_MS);
    assert_int_equal(now.up_ms, rig->engine->now.up_ms);
    now = idem__time_for(rig->engine, NULL);
    assert_int_equal(now.early_ms, rig->engine->now.early_ms);
}

static void
with_a_clock_all_records_are_judged_by_it(void **state)
{
    struct rig *rig = *state;
    struct idem_record record = claim(7);
    struct idem_now now;

    (void)look_after(rig, 20000 * SECOND_US);
    now = idem__time_for(rig->engine, &record);
    assert_int_equal(now.early_ms, rig->engine->now.early_ms);
    assert_int_equal(now.up_ms, rig->engine->now.up_ms);
    record.state = IDEM_STATE_SUCCEEDED;
    now = idem__time_for(rig->engine, &record);
    assert_int_equal(now.early_ms, rig->engine->now.early_ms);
}

/* Watches the four revs of a set, a second after each other. */
static void
watch_set(struct rig *rig, uint64_t set)
{
    for (uint64_t i = 0; i < 4; i++) {
        assert_int_equal(watched_ms(rig, set + i * SETS), 0);
        (void)look_after(rig, SECOND_US);
    }
}

static void
a_new_rev_takes_the_place_of_the_one_that_was_used_longest_ago(void **state)
{
    struct rig *rig = *state;

    watch_set(rig, 9);
    watch_set(rig, 8);
    watch_set(rig, 7);
    assert_int_equal(watched_ms(rig, 8), 8000);
    (void)look_after(rig, SECOND_US);
    /* The second one of its set is now the one that was used longest ago. In
     * the next set there are some that were not used for longer. */
    assert_int_equal(watched_ms(rig, 8 + 4 * SETS), 0);
    (void)look_after(rig, SECOND_US);
    for (uint64_t set = 7; set <= 9; set++) {
        for (int64_t i = 0; i < 4; i++) {
            if (set == 8 && i == 1)
                continue;
            assert_int_equal(watched_ms(rig, set + (uint64_t)i * SETS),
                             6000 + (int64_t)(set - 7) * 4000 - i * 1000);
        }
    }
    assert_int_equal(watched_ms(rig, 8 + 4 * SETS), 1000);
    assert_int_equal(watched_ms(rig, 8 + SETS), 0);
}

static void
ones_own_write_gives_way_to_what_others_wait_for(void **state)
{
    struct rig *rig = *state;
    struct idem_record own = claim(7 + 3 * SETS), done = claim(20);

    for (uint64_t i = 0; i < 3; i++)
        assert_int_equal(watched_ms(rig, 7 + i * SETS), 0);
    (void)look_after(rig, SECOND_US);
    /* It is watched from its write, which is later than the start of this
     * batch. */
    pass_us(rig, SECOND_US);
    idem__time_wrote(rig->engine, &own);
    (void)look_after(rig, SECOND_US);
    assert_int_equal(watched_ms(rig, own.rev), 1000);
    idem__time_wrote(rig->engine, &own);
    assert_int_equal(watched_ms(rig, own.rev), 0);

    /* Somebody asked for it, so it stays. The first one was used before. */
    (void)look_after(rig, SECOND_US);
    assert_int_equal(watched_ms(rig, 7), 4000);
    assert_int_equal(watched_ms(rig, 7 + SETS), 4000);
    assert_int_equal(watched_ms(rig, 7 + 2 * SETS), 4000);
    idem__time_wrote(rig->engine, &own);
    (void)look_after(rig, SECOND_US);
    assert_int_equal(watched_ms(rig, 7 + 4 * SETS), 0);
    for (uint64_t i = 0; i < 3; i++)
        assert_int_equal(watched_ms(rig, 7 + i * SETS), 5000);

    /* The end of a claim is not watched. */
    done.state = IDEM_STATE_SUCCEEDED;
    idem__time_wrote(rig->engine, &done);
    (void)look_after(rig, SECOND_US);
    assert_int_equal(watched_ms(rig, 20), 0);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        rig_test(
            a_remote_clock_is_one_part_in_a_thousand_less_certain_with_time,
            FAULTY_REMOTE),
        rig_test(a_remote_clock_is_read_again_after_exactly_a_second,
                 FAULTY_REMOTE),
        rig_test(a_local_clock_is_exact_for_every_batch, FAULTY_LOCAL),
        rig_test(a_slow_answer_about_the_time_makes_the_bounds_wider,
                 FAULTY_REMOTE),
        rig_test(the_judged_time_gains_one_part_in_a_thousand_on_the_boot_clock,
                 FAULTY_REMOTE),
        rig_test(the_judged_time_goes_back_at_once, FAULTY_REMOTE),
        rig_test(every_batch_has_a_later_fence, FAULTY_REMOTE),
        rig_test(a_store_can_say_that_its_clock_is_behind, FAULTY_REMOTE),
        cmocka_unit_test(a_clock_that_starts_in_1970_is_judged_by_itself),
        rig_test(the_time_of_the_figures_is_the_written_time, FAULTY_REMOTE),
        cmocka_unit_test(
            a_clock_is_right_from_the_first_microsecond_to_the_year_2200),
        rig_test(a_lease_ends_after_the_engine_has_run_for_as_long,
                 FAULTY_LOCAL),
        rig_test(between_batches_the_dropped_time_follows_the_boot_clock,
                 FAULTY_REMOTE),
        cmocka_unit_test(a_jump_of_more_than_five_seconds_is_an_alarm),
        cmocka_unit_test(an_alarm_is_over_when_less_than_a_second_is_left),
        rig_test(the_wall_clock_is_checked_once_a_second, FAULTY_LOCAL),
        rig_test(a_wall_clock_does_not_concern_a_store_far_away, FAULTY_REMOTE),
        rig_test(a_store_that_is_an_hour_ahead_at_the_start_is_believed,
                 FAULTY_REMOTE),
        rig_test(a_store_that_is_further_ahead_is_believed_when_an_hour_is_left,
                 FAULTY_REMOTE),
        rig_test(without_a_clock_a_rev_is_watched_by_the_boot_clock,
                 FAULTY_CLOCKLESS),
        rig_test(with_a_clock_all_records_are_judged_by_it, FAULTY_REMOTE),
        rig_test(a_new_rev_takes_the_place_of_the_one_that_was_used_longest_ago,
                 FAULTY_CLOCKLESS),
        rig_test(ones_own_write_gives_way_to_what_others_wait_for,
                 FAULTY_CLOCKLESS),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
