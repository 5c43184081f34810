/*
 * quota_look_test.c - tests the looks through the store that count the records
 * of scopes, and the table of scopes when many of them collide.
 */
#include "../../tests/support/rig.h"
#include "inner.h"

#include <setjmp.h>
#include <sodium.h>
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
    static char name[20];

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
put_records(struct rig *rig, int from, int to)
{
    for (int i = from; i < to; i++) {
        struct idem_op op = loose_lock(i);

        assert_verdict(ask(rig->engine, &op), IDEM_V_STARTED);
    }
}

static void
a_store_that_cannot_be_scanned_locks_nobody_out(void **state)
{
    struct rig rig;

    (void)state;
    open_with_quota(&rig);
    assert_verdict(begin(&rig, "a"), IDEM_V_STARTED);
    assert_verdict(begin(&rig, "b"), IDEM_V_STARTED);
    assert_status(begin(&rig, "c"), IDEM_ERR_OVERLOADED);
    atomic_store(&rig.store->scan_fails, IDEM_ERR_UNSUPPORTED);
    pass(&rig, 120);
    assert_verdict(begin(&rig, "c"), IDEM_V_STARTED);
    assert_non_null(strstr(rig.said, "have no effect"));
    rig_close(&rig);
}

/* The engine cannot tell whether the look has seen the expired one. */
static void
a_record_in_place_of_an_expired_one_counts_twice_until_a_look(void **state)
{
    struct idem_op op;
    struct reply start;
    struct rig rig;

    (void)state;
    open_with_quota(&rig);
    while (rig.engine->quota.due_us <
           idem__boot_us(rig.engine) + INT64_C(30000000))
        pass(&rig, 1); /* until the next look is far away */
    start = begin(&rig, "a");
    op = op_finish("a", start.fence, "R");
    op.ttl_ms = 1000;
    assert_verdict(ask(rig.engine, &op), IDEM_V_OK);
    test_clocks_pass(&rig.clocks, 3000);
    assert_verdict(begin(&rig, "a"), IDEM_V_STARTED);
    assert_status(begin(&rig, "b"), IDEM_ERR_OVERLOADED);
    pass(&rig, 120);
    assert_verdict(begin(&rig, "b"), IDEM_V_STARTED);
    assert_status(begin(&rig, "c"), IDEM_ERR_OVERLOADED);
    rig_close(&rig);
}

static struct idem_store_type slow;
static struct test_clocks *slow_clocks;
static const struct idem_store_type *usual;
static size_t largest_part;
static int parts;

static enum idem_status
scan_slowly(struct idem_store *store, const struct idem_query *query,
            struct idem_error *err)
{
    if (parts++ > 2)
        test_clocks_pass(slow_clocks, 100);
    if (query->count > largest_part)
        largest_part = query->count;
    return usual->scan(store, query, err);
}

static void
a_look_takes_small_parts_of_a_slow_store(void **state)
{
    struct rig rig;

    (void)state;
    rig_open(&rig, FAULTY_REMOTE, NULL);
    slow_clocks = &rig.clocks;
    usual = rig.store->base.type;
    slow = *usual;
    slow.scan = scan_slowly;
    parts = 0;
    largest_part = 0;
    rig.store->base.type = &slow;
    rig.engine->inner.scope_records = 300;
    assert_int_equal(idem__quota_open(rig.engine, NULL), IDEM_OK);
    put_records(&rig, 0, 299);
    for (int i = 0; i < 400; i++) {
        test_clocks_pass(&rig.clocks, 2000);
        turn(rig.engine);
    }
    assert_true(parts > 20);
    /* They grew while the store was quick. */
    assert_in_range(largest_part, 32, 64);
    assert_int_equal(rig.engine->quota.part, 8);
    put_records(&rig, 299, 300);
    assert_status(begin(&rig, "c"), IDEM_ERR_OVERLOADED);
    rig_close(&rig);
}

/* A scope whose first place in the table is this one. */
static void
scope_at(const struct rig *rig, uint64_t place, int number, char name[16])
{
    uint64_t hash;

    for (int i = 0;; i++) {
        snprintf(name, 16, "%d-%d", number, i);
        crypto_shorthash((uint8_t *)&hash, (const uint8_t *)name, strlen(name),
                         rig->engine->quota.hash_key);
        if (hash % 65536 == place)
            return;
    }
}

static enum idem_status
lock_in(struct rig *rig, const char *scope, int number)
{
    struct idem_op op = loose_lock(number);

    op.scope = idem_text(scope);
    return ask(rig->engine, &op).status;
}

static void
where_scopes_collide_the_one_with_fewest_records_is_forgotten(void **state)
{
    char names[9][16];
    struct rig rig;

    (void)state;
    rig_open(&rig, FAULTY_REMOTE, NULL);
    rig.engine->inner.scope_records = 3;
    assert_int_equal(idem__quota_open(rig.engine, NULL), IDEM_OK);
    for (int i = 0; i < 9; i++)
        scope_at(&rig, 77, i, names[i]);
    for (int i = 0; i < 8; i++) {
        for (int k = 0; k < (i == 5 ? 2 : 3); k++)
            assert_int_equal(lock_in(&rig, names[i], k), IDEM_OK);
    }
    assert_int_equal(lock_in(&rig, names[8], 0), IDEM_OK);
    for (int i = 0; i < 8; i++) {
        if (i != 5)
            assert_int_equal(lock_in(&rig, names[i], 4), IDEM_ERR_OVERLOADED);
    }
    for (int k = 1; k < 3; k++)
        assert_int_equal(lock_in(&rig, names[8], k), IDEM_OK);
    assert_int_equal(lock_in(&rig, names[8], 4), IDEM_ERR_OVERLOADED);
    rig_close(&rig);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_store_that_cannot_be_scanned_locks_nobody_out),
        cmocka_unit_test(
            a_record_in_place_of_an_expired_one_counts_twice_until_a_look),
        cmocka_unit_test(a_look_takes_small_parts_of_a_slow_store),
        cmocka_unit_test(
            where_scopes_collide_the_one_with_fewest_records_is_forgotten),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
