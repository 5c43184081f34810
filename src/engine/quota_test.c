/*
 * quota_test.c - tests the count of a scope's records: when the store cannot be
 * scanned, while it is scanned, and what counts.
 */
#include "../../tests/support/rig.h"
#include "inner.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Let time pass, so that the engine has work and time for a look. */
static void
pass(struct rig *rig, int seconds)
{
    struct idem_op op = op_get("x");

    for (int i = 0; i < seconds; i++) {
        test_clocks_pass(&rig->clocks, 1000);
        (void)ask(rig->engine, &op);
        turn(rig->engine);
    }
}

static struct reply
begin(struct rig *rig, const char *id)
{
    struct idem_op op = op_begin(id);

    op.ttl_ms = 10000;
    return ask(rig->engine, &op);
}

static struct idem_op
loose_lock(int number)
{
    static char name[16];

    snprintf(name, sizeof(name), "lock-%d", number);
    return op_lock(name, "me", 0);
}

static void
open_with_quota(struct rig *rig)
{
    rig_open(rig, FAULTY_REMOTE, NULL);
    rig->engine->inner.scope_records = 2;
    assert_int_equal(idem__quota_open(rig->engine, NULL), IDEM_OK);
    pass(rig, 120);
}

static void
a_store_that_is_away_for_a_moment_changes_no_count(void **state)
{
    struct idem__stats stats;
    struct rig rig;

    (void)state;
    open_with_quota(&rig);
    assert_verdict(begin(&rig, "a"), IDEM_V_STARTED);
    assert_verdict(begin(&rig, "b"), IDEM_V_STARTED);
    assert_status(begin(&rig, "c"), IDEM_ERR_OVERLOADED);
    atomic_store(&rig.store->scan_fails, IDEM_ERR_UNAVAILABLE);
    pass(&rig, 300);
    assert_status(begin(&rig, "c"), IDEM_ERR_OVERLOADED);
    idem__stats(rig.engine, &stats);
    assert_int_equal(stats.over_quota, 2);
    rig_close(&rig);
}

/* The engine first guesses that the record is absent, which the quota would
 * refuse. */
static void
a_scope_that_is_full_is_replayed(void **state)
{
    struct idem_op op;
    struct reply start;
    struct rig rig;

    (void)state;
    open_with_quota(&rig);
    start = begin(&rig, "a");
    op = op_finish("a", start.fence, "R");
    assert_verdict(ask(rig.engine, &op), IDEM_V_OK);
    assert_verdict(begin(&rig, "b"), IDEM_V_STARTED);
    assert_status(begin(&rig, "c"), IDEM_ERR_OVERLOADED);
    assert_verdict(begin(&rig, "a"), IDEM_V_REPLAY);
    rig_close(&rig);
}

static void
a_record_that_cannot_be_read_locks_nobody_out(void **state)
{
    struct rig rig;

    (void)state;
    open_with_quota(&rig);
    assert_verdict(begin(&rig, "a"), IDEM_V_STARTED);
    assert_verdict(begin(&rig, "b"), IDEM_V_STARTED);
    atomic_store(&rig.store->scan_fails, IDEM_ERR_CORRUPT);
    pass(&rig, 120);
    assert_true(rig.logged > 0);
    assert_verdict(begin(&rig, "c"), IDEM_V_STARTED);

    atomic_store(&rig.store->scan_fails, IDEM_OK);
    pass(&rig, 120);
    assert_status(begin(&rig, "d"), IDEM_ERR_OVERLOADED);
    rig_close(&rig);
}

static void
put_records(struct rig *rig, int from, int to)
{
    for (int i = from; i < to; i++) {
        struct idem_op op = loose_lock(i);

        assert_verdict(ask(rig->engine, &op), IDEM_V_STARTED);
    }
}

/* A look takes several parts; meanwhile records come and change. */
static void
what_is_written_during_a_look_counts_once(void **state)
{
    struct idem_op op;
    struct reply start;
    struct rig rig;

    (void)state;
    rig_open(&rig, FAULTY_REMOTE, NULL);
    rig.engine->inner.scope_records = 60;
    rig.engine->inner.scope_bytes = INT64_C(1) << 40;
    assert_int_equal(idem__quota_open(rig.engine, NULL), IDEM_OK);
    op = op_begin("old");
    start = ask(rig.engine, &op);
    put_records(&rig, 0, 40);
    for (int i = 0; i < 200 && !rig.engine->quota.looking; i++) {
        test_clocks_pass(&rig.clocks, 1000);
        turn(rig.engine);
    }
    assert_true(rig.engine->quota.looking); /* it needs another part */
    put_records(&rig, 40, 50);              /* they are new ... */
    put_records(&rig, 40, 50);              /* ... and change */
    op = op_finish("old", start.fence, "R");
    assert_verdict(ask(rig.engine, &op), IDEM_V_OK);
    for (int i = 0; i < 200 && rig.engine->quota.looking; i++) {
        test_clocks_pass(&rig.clocks, 100);
        turn(rig.engine);
    }
    assert_false(rig.engine->quota.looking);
    put_records(&rig, 50, 59); /* 51 records were there */
    op = loose_lock(59);
    assert_status(ask(rig.engine, &op), IDEM_ERR_OVERLOADED);
    rig_close(&rig);
}

static void
the_limit_of_bytes_alone_refuses_and_says_so(void **state)
{
    struct idem_op op = op_begin("a");
    struct reply start, refused;
    struct rig rig;

    (void)state;
    rig_open(&rig, FAULTY_REMOTE, NULL);
    rig.engine->inner.scope_bytes = 1000;
    assert_int_equal(idem__quota_open(rig.engine, NULL), IDEM_OK);
    start = ask(rig.engine, &op);
    assert_verdict(start, IDEM_V_STARTED);
    op = op_begin("b"); /* the claim of "a" reserves room for its result */
    refused = ask(rig.engine, &op);
    assert_status(refused, IDEM_ERR_OVERLOADED);
    assert_non_null(strstr(refused.text, "its limit is 1000"));
    op = op_finish("a", start.fence, "R"); /* the end of a claim never is */
    assert_verdict(ask(rig.engine, &op), IDEM_V_OK);
    op = op_begin("b");
    assert_verdict(ask(rig.engine, &op), IDEM_V_STARTED);
    rig_close(&rig);
}

/* After that time nobody expects a result of this claim. */
static void
a_claim_that_was_given_up_reserves_no_room(void **state)
{
    struct idem_op op = op_begin("a");
    struct rig rig;

    (void)state;
    rig_open(&rig, FAULTY_REMOTE, NULL);
    rig.engine->inner.scope_bytes = 1000;
    assert_int_equal(idem__quota_open(rig.engine, NULL), IDEM_OK);
    assert_verdict(ask(rig.engine, &op), IDEM_V_STARTED);
    op = op_begin("b");
    assert_status(ask(rig.engine, &op), IDEM_ERR_OVERLOADED);
    test_clocks_pass(&rig.clocks, IDEM__CLAIM_RESERVE_MS + 1000);
    pass(&rig, 120);
    assert_verdict(ask(rig.engine, &op), IDEM_V_STARTED);
    rig_close(&rig);
}

static void
workers_and_the_decisions_of_operators_are_not_counted(void **state)
{
    struct idem_op op;
    struct rig rig;

    (void)state;
    open_with_quota(&rig);
    op = op_lock("worker-1", "me", 0);
    op.type = IDEM_TYPE_WORKER;
    assert_verdict(ask(rig.engine, &op), IDEM_V_STARTED);
    pass(&rig, 120);
    assert_verdict(begin(&rig, "a"), IDEM_V_STARTED);
    assert_verdict(begin(&rig, "b"), IDEM_V_STARTED);
    assert_status(begin(&rig, "c"), IDEM_ERR_OVERLOADED);
    op.id = idem_text("worker-2");
    assert_verdict(ask(rig.engine, &op), IDEM_V_STARTED);
    op = op_begin("c");
    op.verb = IDEM_SETTLE;
    op.outcome = IDEM_STATE_SUCCEEDED;
    assert_verdict(ask(rig.engine, &op), IDEM_V_SETTLED);
    rig_close(&rig);
}

/* They were created while a clock was ahead, before this engine started. */
static void
records_from_a_clock_that_was_ahead_count(void **state)
{
    struct rig rig;

    (void)state;
    rig_open(&rig, FAULTY_REMOTE, NULL);
    atomic_store(&rig.store->clock_us, 1800 * INT64_C(1000000));
    pass(&rig, 2);
    put_records(&rig, 0, 2);
    idem_close(rig.engine);
    rig.engine = rig_engine(&rig, FAULTY_REMOTE, NULL, &rig.store);
    rig.engine->inner.scope_records = 2;
    assert_int_equal(idem__quota_open(rig.engine, NULL), IDEM_OK);
    pass(&rig, 120);
    {
        struct idem_op op = loose_lock(2);

        assert_status(ask(rig.engine, &op), IDEM_ERR_OVERLOADED);
    }
    rig_close(&rig);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(records_from_a_clock_that_was_ahead_count),
        cmocka_unit_test(a_store_that_is_away_for_a_moment_changes_no_count),
        cmocka_unit_test(a_scope_that_is_full_is_replayed),
        cmocka_unit_test(a_record_that_cannot_be_read_locks_nobody_out),
        cmocka_unit_test(what_is_written_during_a_look_counts_once),
        cmocka_unit_test(the_limit_of_bytes_alone_refuses_and_says_so),
        cmocka_unit_test(a_claim_that_was_given_up_reserves_no_room),
        cmocka_unit_test(
            workers_and_the_decisions_of_operators_are_not_counted),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
