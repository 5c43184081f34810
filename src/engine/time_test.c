/*
 * time_test.c - tests leases and expiry while clocks jump, engines restart, and
 * stores have another clock or none.
 */
#include "../../tests/support/rig.h"
#include "inner.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define HOUR INT64_C(3600000)

static struct idem_op
strict(const char *id, int64_t lease_ms)
{
    struct idem_op op = op_begin(id);

    op.lease_ms = lease_ms;
    return op;
}

/* Let the engine run for a while, so that leases can end. */
static void
age(struct rig *rig)
{
    struct idem_op op = op_get("x");

    for (int i = 0; i < 120; i++) {
        test_clocks_pass(&rig->clocks, 1000);
        ask(rig->engine, &op);
    }
}

static int
aged_setup(void **state)
{
    int failed = rig_setup(state);

    if (!failed)
        age(*state);
    return failed;
}

#define aged_test(test, kind)                                                  \
    rig_test_with(test, aged_setup, (void *)(uintptr_t)(kind))

static bool
alarm_on(struct rig *rig)
{
    struct idem__stats stats;

    idem__stats(rig->engine, &stats);
    return stats.clock_alarm;
}

/* The time, in steps, until a strict claim comes into doubt. */
static int64_t
doubt_after_ms(struct rig *rig, const char *id, int64_t step_ms, int64_t most)
{
    struct idem_op op = op_begin(id);

    for (int64_t ms = 0; ms <= most; ms += step_ms) {
        struct reply reply = ask(rig->engine, &op);

        if (reply.verdict == IDEM_V_DOUBT)
            return ms;
        assert_verdict(reply, IDEM_V_BUSY);
        test_clocks_pass(&rig->clocks, step_ms);
    }
    return -1;
}

static void
a_lease_lasts_as_long_as_it_says(void **state)
{
    static const enum faulty_kind kinds[] = {FAULTY_LOCAL, FAULTY_REMOTE,
                                             FAULTY_CLOCKLESS};

    (void)state;
    for (int i = 0; i < 3; i++) {
        struct rig rig;
        struct idem_op op = strict("a", 10000);

        rig_open(&rig, kinds[i], NULL);
        age(&rig);
        assert_verdict(ask(rig.engine, &op), IDEM_V_STARTED);
        assert_in_range(doubt_after_ms(&rig, "a", 50, 20000), 10000, 10150);
        assert_false(alarm_on(&rig));
        rig_close(&rig);
    }
}

static void
an_engine_that_has_just_started_says_when_it_will_know(void **state)
{
    struct rig *rig = *state;
    struct idem_op op = strict("a", 500);
    struct faulty_store *store;
    struct idem_engine *young;
    struct reply reply;

    assert_verdict(ask(rig->engine, &op), IDEM_V_STARTED);
    test_clocks_pass(&rig->clocks, 600);
    young = rig_engine(rig, FAULTY_LOCAL, NULL, &store);
    reply = ask(young, &op);
    assert_verdict(reply, IDEM_V_BUSY); /* it has run for less than the lease */
    assert_in_range(reply.retry_after_ms, 450, 500);
    test_clocks_pass(&rig->clocks, reply.retry_after_ms);
    assert_verdict(ask(young, &op), IDEM_V_DOUBT);
    idem_close(young);
}

static void
a_clock_that_cannot_be_is_an_error_not_a_fence(void **state)
{
    struct idem_op op = strict("a", 10000);
    struct idem__engine_inner inner = {.driven = true};
    struct idem_engine *engine = NULL;
    struct idem_error err = {0};
    struct test_clocks absurd;
    struct rig rig;

    (void)state;
    test_clocks_init(&absurd);
    atomic_store(&absurd.wall_us, HOUR * 24 * 365 * 300 * 1000);
    inner.clocks = &absurd.clocks;
    assert_int_equal(idem__engine_open("memory:", NULL, &inner, &engine, &err),
                     IDEM_ERR_UNAVAILABLE);
    assert_non_null(strstr(err.text, "clock"));
    assert_non_null(strstr(err.text, " 9460800000 s since 1970"));
    assert_null(engine);

    /* A clock that becomes wrong later is not trusted. */
    rig_open(&rig, FAULTY_REMOTE, NULL);
    assert_verdict(ask(rig.engine, &op), IDEM_V_STARTED);
    atomic_store(&rig.store->clock_us, HOUR * 24 * 365 * 300 * 1000);
    test_clocks_pass(&rig.clocks, 2000);
    assert_verdict(ask(rig.engine, &op), IDEM_V_BUSY);
    op = strict("b", 10000);
    assert_verdict(ask(rig.engine, &op), IDEM_V_STARTED);
    rig_close(&rig);
}

static void
a_store_clock_set_forward_ends_no_lease(void **state)
{
    struct rig *rig = *state;
    struct idem_op op = strict("a", 10000);

    assert_verdict(ask(rig->engine, &op), IDEM_V_STARTED);
    test_clocks_pass(&rig->clocks, 2000);
    ask(rig->engine, &op);
    atomic_store(&rig->store->clock_us, HOUR * 1000);
    assert_in_range(doubt_after_ms(rig, "a", 50, 20000), 7950, 8200);
    assert_true(alarm_on(rig));
    assert_int_equal(rig->logged, 1);
}

static void
what_is_written_after_a_jump_counts_in_the_stores_time(void **state)
{
    struct rig *rig = *state;
    struct idem_op op = op_get("x");
    struct faulty_store *late_store;
    struct idem_engine *late;

    atomic_store(&rig->store->clock_us, HOUR * 1000);
    late = rig_engine(rig, FAULTY_REMOTE, NULL, &late_store);
    atomic_store(&late_store->clock_us, HOUR * 1000);
    for (int i = 0; i < 60; i++) {
        test_clocks_pass(&rig->clocks, 1000);
        ask(rig->engine, &op);
        ask(late, &op);
    }
    /* An engine that has seen only the new time must respect the claim. */
    op = strict("a", 10000);
    assert_verdict(ask(rig->engine, &op), IDEM_V_STARTED);
    for (int i = 0; i < 19; i++) {
        test_clocks_pass(&rig->clocks, 500);
        op = op_begin("a");
        assert_verdict(ask(late, &op), IDEM_V_BUSY);
    }
    idem_close(late);
}

static void
a_store_clock_set_back_ends_no_lease_either(void **state)
{
    struct rig *rig = *state;
    struct idem_op op = strict("a", 10000);

    assert_verdict(ask(rig->engine, &op), IDEM_V_STARTED);
    atomic_store(&rig->store->clock_us, -HOUR * 1000);
    assert_int_equal(doubt_after_ms(rig, "a", 500, 60000), -1);
    /* A claim from now on is written with the time before the jump, because of
     * the fences. Then the clock is corrected, which is a jump forward: the
     * lease ends neither early nor late. */
    op = strict("b", 10000);
    assert_verdict(ask(rig->engine, &op), IDEM_V_STARTED);
    atomic_store(&rig->store->clock_us, 0);
    assert_in_range(doubt_after_ms(rig, "b", 1000, 2 * HOUR), 10000,
                    HOUR + 20000);
}

/* Found by the simulator: the expiry counted from the wrong time, so the record
 * expired early for everybody who saw the corrected clock. */
static void
what_is_finished_under_a_clock_set_back_does_not_expire_early(void **state)
{
    struct rig *rig = *state;
    struct idem_op begin = strict("a", HOUR * 8), finish;
    struct faulty_store *second_store;
    struct idem_engine *second;
    struct reply reply;

    reply = ask(rig->engine, &begin);
    assert_verdict(reply, IDEM_V_STARTED);

    atomic_fetch_sub(&rig->store->clock_us, 9 * HOUR * 1000);
    for (int i = 0; i < 2 * 3600; i++) { /* two hours pass meanwhile */
        test_clocks_pass(&rig->clocks, 1000);
        assert_verdict(ask(rig->engine, &begin), IDEM_V_BUSY);
    }
    finish = op_finish("a", reply.fence, "done");
    finish.ttl_ms = 3 * HOUR;
    assert_verdict(ask(rig->engine, &finish), IDEM_V_OK);

    atomic_fetch_add(&rig->store->clock_us, 9 * HOUR * 1000);
    test_clocks_pass(&rig->clocks, 3 * HOUR - 60000);
    second = rig_engine(rig, FAULTY_REMOTE, NULL, &second_store);
    assert_verdict(ask(second, &begin), IDEM_V_REPLAY);
    idem_close(second);
}

static void
fences_grow_even_when_the_clock_goes_back(void **state)
{
    struct rig *rig = *state;
    struct idem_op op = strict("a", 1000);
    struct reply first, second;

    op.ttl_ms = 1000;
    first = ask(rig->engine, &op);
    op = op_release("a", first.fence);
    ask(rig->engine, &op);
    atomic_store(&rig->store->clock_us, -HOUR * 1000);
    test_clocks_pass(&rig->clocks, 2000);
    op = op_begin("other");
    second = ask(rig->engine, &op);
    assert_true(second.fence > first.fence);
}

static void
a_wall_clock_that_jumps_here_ends_nothing_and_is_told(void **state)
{
    static const int64_t jumps[] = {HOUR, -HOUR};

    (void)state;
    for (int i = 0; i < 2; i++) {
        struct idem_op op = strict("a", 10000);
        struct rig rig;

        rig_open(&rig, FAULTY_LOCAL, NULL);
        age(&rig);
        assert_verdict(ask(rig.engine, &op), IDEM_V_STARTED);
        atomic_fetch_add(&rig.clocks.wall_us, jumps[i] * 1000);
        assert_in_range(doubt_after_ms(&rig, "a", 50, 20000), 10000, 10150);
        assert_true(alarm_on(&rig));
        assert_int_equal(rig.logged, 1);
        atomic_fetch_sub(&rig.clocks.wall_us, jumps[i] * 1000);
        test_clocks_pass(&rig.clocks, 2000);
        ask(rig.engine, &op);
        assert_false(alarm_on(&rig));
        rig_close(&rig);
    }
}

static void
no_lease_ends_sooner_than_one_lease_after_a_restart(void **state)
{
    static const enum faulty_kind kinds[] = {FAULTY_LOCAL, FAULTY_REMOTE,
                                             FAULTY_CLOCKLESS};

    (void)state;
    for (int i = 0; i < 3; i++) {
        struct idem_op op = strict("a", 10000);
        struct rig rig;

        rig_open(&rig, kinds[i], NULL);
        age(&rig);
        assert_verdict(ask(rig.engine, &op), IDEM_V_STARTED);
        idem_close(rig.engine);
        test_clocks_pass(&rig.clocks, HOUR);
        rig.engine = rig_engine(&rig, kinds[i], NULL, &rig.store);
        assert_in_range(doubt_after_ms(&rig, "a", 50, 20000), 10000, 10150);
        rig_close(&rig);
    }
}

static void
a_record_expires_after_its_ttl(void **state)
{
    static const enum faulty_kind kinds[] = {FAULTY_LOCAL, FAULTY_REMOTE,
                                             FAULTY_CLOCKLESS};

    (void)state;
    for (int i = 0; i < 3; i++) {
        struct idem_op op = op_begin("a");
        struct reply start, again;
        struct rig rig;

        rig_open(&rig, kinds[i], NULL);
        age(&rig);
        op.ttl_ms = 20000;
        start = ask(rig.engine, &op);
        op = op_finish("a", start.fence, "R");
        assert_verdict(ask(rig.engine, &op), IDEM_V_OK);
        op = op_begin("a");
        for (int s = 0; s < 19; s++) {
            test_clocks_pass(&rig.clocks, 1000);
            assert_verdict(ask(rig.engine, &op), IDEM_V_REPLAY);
        }
        /* On a store without a clock it takes a minute longer. */
        test_clocks_pass(&rig.clocks,
                         kinds[i] == FAULTY_CLOCKLESS ? 62000 : 2000);
        again = ask(rig.engine, &op);
        assert_verdict(again, IDEM_V_STARTED);
        assert_true(again.fence > start.fence);
        rig_close(&rig);
    }
}

static void
a_jump_forward_expires_no_record(void **state)
{
    static const enum faulty_kind kinds[] = {FAULTY_LOCAL, FAULTY_REMOTE,
                                             FAULTY_CLOCKLESS};

    (void)state;
    for (int i = 0; i < 3; i++) {
        struct idem_op op = op_begin("a");
        struct reply start;
        struct rig rig;

        rig_open(&rig, kinds[i], NULL);
        age(&rig);
        start = ask(rig.engine, &op);
        op = op_finish("a", start.fence, "R");
        assert_verdict(ask(rig.engine, &op), IDEM_V_OK);
        atomic_fetch_add(&rig.clocks.wall_us, 1000 * HOUR * 1000);
        atomic_store(&rig.store->clock_us,
                     kinds[i] == FAULTY_REMOTE ? 1000 * HOUR * 1000 : 0);
        test_clocks_pass(&rig.clocks, 5000);
        op = op_begin("a");
        assert_verdict(ask(rig.engine, &op), IDEM_V_REPLAY);
        rig_close(&rig);
    }
}

static void
a_store_that_is_ahead_at_the_start_is_not_believed(void **state)
{
    struct rig *rig = *state;
    struct idem_op op = op_begin("a");
    struct idem_engine *young;
    struct reply start;

    start = ask(rig->engine, &op);
    op = op_finish("a", start.fence, "R");
    assert_verdict(ask(rig->engine, &op), IDEM_V_OK);
    /* The store's time is counted by the boot clock here: it is now 25 hours
     * ahead. */
    atomic_fetch_add(&rig->clocks.boot_us, 25 * HOUR * 1000);
    young = rig_engine(rig, FAULTY_REMOTE, NULL, NULL);
    assert_int_equal(rig->logged, 1);
    op = op_begin("a");
    for (int i = 0; i < 10; i++) {
        assert_verdict(ask(young, &op), IDEM_V_REPLAY);
        test_clocks_pass(&rig->clocks, 1000);
    }
    /* This machine's clock was wrong, and is corrected. */
    atomic_fetch_add(&rig->clocks.wall_us, 25 * HOUR * 1000);
    test_clocks_pass(&rig->clocks, 1000);
    assert_verdict(ask(young, &op), IDEM_V_STARTED);
    idem_close(young);
}

static void
a_remote_clock_is_read_once_a_second(void **state)
{
    struct rig *rig = *state;
    struct idem_op op = op_get("x");

    for (int i = 0; i < 1000; i++) {
        test_clocks_pass(&rig->clocks, 10);
        ask(rig->engine, &op);
    }
    assert_in_range(rig->store->nows, 10, 12);
}

static void
time_passes(void *arg)
{
    test_clocks_pass(arg, 800);
}

static void
a_slow_reading_of_the_clock_widens_the_bounds(void **state)
{
    struct rig *rig = *state;
    struct idem_op op = op_get("x");
    int64_t store_ms;

    rig->store->during_now = time_passes;
    rig->store->during_now_arg = &rig->clocks;
    test_clocks_pass(&rig->clocks, 5000);
    ask(rig->engine, &op);
    store_ms = atomic_load(&rig->clocks.wall_us) / 1000;
    assert_in_range(rig->engine->now.late_ms, store_ms, store_ms + 10);
    assert_in_range(rig->engine->now.early_ms, store_ms - 810, store_ms - 790);
}

static void
an_honest_difference_of_clocks_is_made_up_for(void **state)
{
    struct idem_op op = op_get("x");
    struct rig rig;

    (void)state;
    /* The store's clock is faster by 100 parts in a million. */
    rig_open(&rig, FAULTY_REMOTE, NULL);
    age(&rig);
    for (int i = 0; i < 5000; i++) {
        test_clocks_pass(&rig.clocks, 10000);
        atomic_fetch_add(&rig.store->clock_us, 1000);
        ask(rig.engine, &op);
    }
    assert_false(alarm_on(&rig));
    assert_true(rig.engine->now.late_ms - rig.engine->now.early_ms < 20);
    rig_close(&rig);
}

static void
without_a_clock_a_renewal_elsewhere_is_seen(void **state)
{
    struct rig *rig = *state;
    struct idem_engine *owner;
    struct idem_op op = strict("a", 10000);
    struct reply start;

    owner = rig_engine(rig, FAULTY_CLOCKLESS, NULL, NULL);
    start = ask(owner, &op);
    for (int i = 0; i < 20; i++) {
        test_clocks_pass(&rig->clocks, 4000);
        op = op_renew("a", start.fence, 10000);
        assert_verdict(ask(owner, &op), IDEM_V_OK);
        op = op_begin("a");
        assert_verdict(ask(rig->engine, &op), IDEM_V_BUSY);
    }
    /* A wall clock that is off by hours makes no difference. */
    atomic_fetch_add(&rig->clocks.wall_us, 10 * HOUR * 1000);
    assert_in_range(doubt_after_ms(rig, "a", 100, 20000), 10000, 10300);
    idem_close(owner);
}

/* The simulator found it. */
static void
without_a_clock_a_wall_clock_set_back_lengthens_no_lease(void **state)
{
    struct rig *rig = *state;
    struct idem_engine *owner;
    struct idem_op op = strict("a", 10000);

    owner = rig_engine(rig, FAULTY_CLOCKLESS, NULL, NULL);
    atomic_fetch_sub(&rig->clocks.wall_us, 10 * HOUR * 1000);
    for (int i = 0; i < 60; i++) {
        struct idem_op look = op_get("a");

        test_clocks_pass(&rig->clocks, 1000);
        assert_verdict(ask(owner, &look), IDEM_V_ABSENT);
    }
    assert_verdict(ask(owner, &op), IDEM_V_STARTED);
    assert_in_range(doubt_after_ms(rig, "a", 100, 90000), 10000, 10300);
    idem_close(owner);
}

static void
a_parked_one_without_a_clock_sees_the_lease_end(void **state)
{
    struct rig *rig = *state;
    struct idem_engine *owner;
    struct idem_op op = strict("a", 5000);
    struct reply waiting;

    owner = rig_engine(rig, FAULTY_CLOCKLESS, NULL, NULL);
    assert_verdict(ask(owner, &op), IDEM_V_STARTED);
    op = op_wait("a", 60000);
    put(rig->engine, &op, &waiting);
    turn(rig->engine);
    for (int i = 0; i < 98; i++) {
        test_clocks_pass(&rig->clocks, 50);
        turn(rig->engine);
        assert_false(waiting.done);
    }
    for (int i = 0; i < 10; i++) {
        test_clocks_pass(&rig->clocks, 50);
        turn(rig->engine);
    }
    assert_verdict(waiting, IDEM_V_DOUBT);
    idem_close(owner);
}

static void
without_a_clock_ones_own_claim_is_watched_from_the_start(void **state)
{
    struct idem_op op = strict("a", 5000);
    struct rig rig;

    (void)state;
    rig_open(&rig, FAULTY_CLOCKLESS, NULL);
    age(&rig);
    assert_verdict(ask(rig.engine, &op), IDEM_V_STARTED);
    test_clocks_pass(&rig.clocks, 4900);
    op = op_begin("a");
    assert_verdict(ask(rig.engine, &op), IDEM_V_BUSY);
    rig_close(&rig);

    rig_open(&rig, FAULTY_CLOCKLESS, NULL);
    age(&rig);
    op = strict("a", 5000);
    assert_verdict(ask(rig.engine, &op), IDEM_V_STARTED);
    /* Nobody asks for this record meanwhile, while others come and go. */
    for (int i = 0; i < 1000; i++) {
        char id[16];

        snprintf(id, sizeof(id), "%d", i);
        op = op_begin(id);
        assert_verdict(ask(rig.engine, &op), IDEM_V_STARTED);
    }
    test_clocks_pass(&rig.clocks, 5100);
    op = op_begin("a");
    assert_verdict(ask(rig.engine, &op), IDEM_V_DOUBT);
    rig_close(&rig);
}

/* What the store is told to drop lies behind the judged time by a margin, and
 * on a store without a clock by what clocks may differ. */
static void
a_store_drops_what_expired_before_the_judged_time(void **state)
{
    static const struct {
        enum faulty_kind kind;
        int64_t skew_ms;
    } cases[] = {
        {FAULTY_LOCAL, 0}, {FAULTY_REMOTE, 0}, {FAULTY_CLOCKLESS, 60000}};

    (void)state;
    for (int i = 0; i < 3; i++) {
        int64_t behind_ms = IDEM__DROP_MARGIN_MS + cases[i].skew_ms;
        struct idem_op op = op_get("x");
        int64_t drop_ms;
        struct rig rig;

        rig_open(&rig, cases[i].kind, NULL);
        age(&rig);
        ask(rig.engine, &op);
        drop_ms = idem__time_drop_ms(rig.engine);
        assert_int_equal(drop_ms, rig.engine->now.early_ms - behind_ms);
        test_clocks_pass(&rig.clocks, 10000); /* between batches: a bit less */
        assert_in_range(idem__time_drop_ms(rig.engine), drop_ms + 9989,
                        drop_ms + 9990);
        rig_close(&rig);
    }
}

static void
a_store_drops_nothing_while_its_clock_is_in_doubt(void **state)
{
    struct rig *rig = *state;
    struct idem_op op = op_get("x");

    atomic_store(&rig->store->clock_us, HOUR * 1000);
    test_clocks_pass(&rig->clocks, 2000);
    ask(rig->engine, &op);
    assert_true(alarm_on(rig));
    assert_int_equal(idem__time_drop_ms(rig->engine), 0);
    atomic_store(&rig->store->clock_us, 0);
    test_clocks_pass(&rig->clocks, 2000);
    ask(rig->engine, &op);
    assert_false(alarm_on(rig));
    assert_true(idem__time_drop_ms(rig->engine) > 0);
}

static void
while_written_times_stand_still_records_are_kept_longer(void **state)
{
    struct rig *rig = *state;
    struct idem_op op = op_get("x");

    ask(rig->engine, &op);
    assert_in_range(rig->engine->now.behind_ms, 0, 1);
    atomic_store(&rig->store->clock_us, -HOUR * 1000);
    test_clocks_pass(&rig->clocks, 2000);
    ask(rig->engine, &op);
    /* Written times do not go back: they stand still. What has passed since
     * is made up for, less a thousandth. */
    assert_in_range(rig->engine->now.behind_ms, 1996, 2000);
}

static void
a_lease_that_is_over_is_looked_at_in_a_millisecond(void **state)
{
    struct rig *rig = *state;
    struct idem_record record = {.state = IDEM_STATE_EXECUTING};

    record.updated = rig->engine->now.early_ms - 20000;
    record.lease_until = rig->engine->now.early_ms - 10000;
    assert_int_equal(idem__time_lease_end_us(rig->engine, &record),
                     rig->engine->boot_now_us + 1000);
    record.lease_until = rig->engine->now.early_ms + 5;
    assert_int_equal(idem__time_lease_end_us(rig->engine, &record),
                     rig->engine->boot_now_us + 6000);
    /* The engine has to watch for as long as the lease. */
    record.lease_until += HOUR;
    record.updated = rig->engine->now.early_ms;
    assert_int_equal(idem__time_lease_end_us(rig->engine, &record),
                     rig->engine->boot_now_us + (HOUR + 6) * 1000);
}

/* The command line judges by it how long a record has been in doubt. */
static void
the_time_of_an_idle_engine_goes_on(void **state)
{
    static const enum faulty_kind kinds[] = {FAULTY_LOCAL, FAULTY_REMOTE,
                                             FAULTY_CLOCKLESS};

    (void)state;
    for (int i = 0; i < 3; i++) {
        struct idem__stats before, after;
        struct rig rig;

        rig_open(&rig, kinds[i], NULL);
        idem__stats(rig.engine, &before);
        test_clocks_pass(&rig.clocks, 90000);
        idem__stats(rig.engine, &after);
        assert_in_range(after.now_ms - before.now_ms, 89999, 90001);
        rig_close(&rig);
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_time_of_an_idle_engine_goes_on),
        cmocka_unit_test(a_lease_lasts_as_long_as_it_says),
        aged_test(an_engine_that_has_just_started_says_when_it_will_know,
                  FAULTY_LOCAL),
        cmocka_unit_test(a_clock_that_cannot_be_is_an_error_not_a_fence),
        aged_test(a_store_clock_set_forward_ends_no_lease, FAULTY_REMOTE),
        aged_test(what_is_written_after_a_jump_counts_in_the_stores_time,
                  FAULTY_REMOTE),
        aged_test(a_store_clock_set_back_ends_no_lease_either, FAULTY_REMOTE),
        aged_test(what_is_finished_under_a_clock_set_back_does_not_expire_early,
                  FAULTY_REMOTE),
        aged_test(fences_grow_even_when_the_clock_goes_back, FAULTY_REMOTE),
        cmocka_unit_test(a_wall_clock_that_jumps_here_ends_nothing_and_is_told),
        cmocka_unit_test(no_lease_ends_sooner_than_one_lease_after_a_restart),
        cmocka_unit_test(a_record_expires_after_its_ttl),
        cmocka_unit_test(a_jump_forward_expires_no_record),
        aged_test(a_store_that_is_ahead_at_the_start_is_not_believed,
                  FAULTY_REMOTE),
        rig_test(a_remote_clock_is_read_once_a_second, FAULTY_REMOTE),
        rig_test(a_slow_reading_of_the_clock_widens_the_bounds, FAULTY_REMOTE),
        cmocka_unit_test(an_honest_difference_of_clocks_is_made_up_for),
        aged_test(without_a_clock_a_renewal_elsewhere_is_seen,
                  FAULTY_CLOCKLESS),
        aged_test(without_a_clock_a_wall_clock_set_back_lengthens_no_lease,
                  FAULTY_CLOCKLESS),
        aged_test(a_parked_one_without_a_clock_sees_the_lease_end,
                  FAULTY_CLOCKLESS),
        cmocka_unit_test(
            without_a_clock_ones_own_claim_is_watched_from_the_start),
        cmocka_unit_test(a_store_drops_what_expired_before_the_judged_time),
        aged_test(a_store_drops_nothing_while_its_clock_is_in_doubt,
                  FAULTY_REMOTE),
        aged_test(while_written_times_stand_still_records_are_kept_longer,
                  FAULTY_REMOTE),
        aged_test(a_lease_that_is_over_is_looked_at_in_a_millisecond,
                  FAULTY_LOCAL),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
