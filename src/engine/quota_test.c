/*
 * quota_test.c - tests the count of a scope's records when the store cannot be
 * scanned.
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
    struct rig rig;

    (void)state;
    open_with_quota(&rig);
    assert_verdict(begin(&rig, "a"), IDEM_V_STARTED);
    assert_verdict(begin(&rig, "b"), IDEM_V_STARTED);
    assert_status(begin(&rig, "c"), IDEM_ERR_OVERLOADED);
    atomic_store(&rig.store->scan_fails, IDEM_ERR_UNAVAILABLE);
    pass(&rig, 300);
    assert_status(begin(&rig, "c"), IDEM_ERR_OVERLOADED);
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

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_store_that_is_away_for_a_moment_changes_no_count),
        cmocka_unit_test(a_record_that_cannot_be_read_locks_nobody_out),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
