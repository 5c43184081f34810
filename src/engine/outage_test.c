/*
 * outage_test.c - tests what the log says when the store fails and works again.
 */
#include "../../tests/support/rig.h"
#include "inner.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define FAILS "the store fails: "

/* The store fails all calls, or none. */
static void
set_away(struct rig *rig, bool away)
{
    faulty_plan(rig->store, away ? FAULT_UNAVAILABLE : FAULT_NONE, 0, 1000000);
}

/* Ask once, after the breaker's longest wait. */
static void
ask_later(struct rig *rig, const struct idem_op *op, enum idem_status wanted)
{
    test_clocks_pass(&rig->clocks, 1100);
    assert_status(ask(rig->engine, op), wanted);
}

static void
an_outage_has_a_line_at_its_begin_and_one_at_its_end(void **state)
{
    struct rig *rig = *state;
    struct idem_op op = op_begin("a");
    struct reply reply;

    ask_later(rig, &op, IDEM_OK);
    set_away(rig, true);
    op = op_begin("b");
    reply = ask(rig->engine, &op);
    assert_status(reply, IDEM_ERR_UNAVAILABLE);
    assert_int_equal(rig->logged, 1);
    assert_ptr_equal(strstr(rig->said, FAILS), rig->said);
    assert_string_equal(rig->said + strlen(FAILS), reply.text);
    for (int i = 0; i < 4; i++)
        ask_later(rig, &op, IDEM_ERR_UNAVAILABLE);
    assert_int_equal(rig->logged, 1);
    set_away(rig, false);
    for (int i = 0; i < 3; i++) {
        op = op_begin(i == 0 ? "c" : i == 1 ? "d" : "e");
        ask_later(rig, &op, IDEM_OK);
        assert_int_equal(rig->logged, 2);
    }
    assert_string_equal(rig->said, "the store works again after 5.5 s");
}

static void
a_store_that_fails_in_turns_is_logged_once_a_second(void **state)
{
    struct rig *rig = *state;
    char id[2] = "A";

    for (int i = 0; i < 40; i++, id[0]++) {
        struct idem_op op = op_begin(id);

        set_away(rig, true);
        assert_status(ask(rig->engine, &op), IDEM_ERR_UNAVAILABLE);
        set_away(rig, false);
        test_clocks_pass(&rig->clocks, 50);
        assert_verdict(ask(rig->engine, &op), IDEM_V_STARTED);
    }
    assert_int_equal(rig->logged, 4); /* two pairs in two seconds */
}

/* One of the pairs is left out, but an outage that lasts is logged. */
static void
an_outage_soon_after_another_is_logged_when_it_lasts(void **state)
{
    struct rig *rig = *state;
    struct idem_op op = op_begin("a");

    set_away(rig, true);
    assert_status(ask(rig->engine, &op), IDEM_ERR_UNAVAILABLE);
    set_away(rig, false);
    test_clocks_pass(&rig->clocks, 50);
    assert_verdict(ask(rig->engine, &op), IDEM_V_STARTED);
    assert_int_equal(rig->logged, 2);
    set_away(rig, true);
    op = op_begin("b");
    assert_status(ask(rig->engine, &op), IDEM_ERR_UNAVAILABLE);
    assert_int_equal(rig->logged, 2);
    ask_later(rig, &op, IDEM_ERR_UNAVAILABLE);
    assert_int_equal(rig->logged, 3);
    set_away(rig, false);
    ask_later(rig, &op, IDEM_OK);
    assert_int_equal(rig->logged, 4);
    assert_string_equal(rig->said, "the store works again after 2.2 s");
}

/* A Redis that lacks a replica answers reads and stores no write. */
static void
reads_do_not_end_an_outage_of_writes(void **state)
{
    struct rig *rig = *state;
    struct idem_op begin = op_begin("a"), get = op_get("a");

    faulty_plan(rig->store, FAULT_LOST_NOT, 0, 1000000);
    assert_status(ask(rig->engine, &begin), IDEM_ERR_LOST);
    assert_int_equal(rig->logged, 1);
    ask_later(rig, &get, IDEM_OK);
    assert_int_equal(rig->logged, 1);
    set_away(rig, false);
    ask_later(rig, &begin, IDEM_OK);
    assert_int_equal(rig->logged, 2);
}

static void
an_outage_of_reads_is_logged_too(void **state)
{
    struct rig *rig = *state;
    struct idem_op get = op_get("a");

    atomic_store(&rig->store->load_fails, IDEM_ERR_UNAVAILABLE);
    ask_later(rig, &get, IDEM_ERR_UNAVAILABLE);
    assert_int_equal(rig->logged, 1);
    atomic_store(&rig->store->load_fails, IDEM_OK);
    ask_later(rig, &get, IDEM_OK);
    assert_string_equal(rig->said, "the store works again after 1.1 s");
}

/* While one part of the store fails, the other parts answer. */
static void
parts_that_work_do_not_end_the_outage_of_one(void **state)
{
    struct rig *rig = *state;
    struct idem_op op = op_begin("a");
    char id[2] = "A";

    for (int i = 0; i < 20; i++, id[0]++) {
        set_away(rig, true);
        ask_later(rig, &op, IDEM_ERR_UNAVAILABLE);
        set_away(rig, false);
        op = op_begin(id);
        assert_verdict(ask(rig->engine, &op), IDEM_V_STARTED);
        op = op_begin("a");
        assert_int_equal(rig->logged, 1);
    }
    for (int i = 0; i < 11; i++, id[0]++) {
        op = op_begin(id);
        assert_int_equal(rig->logged, i < 10 ? 1 : 2);
        ask_later(rig, &op, IDEM_OK);
    }
    assert_string_equal(rig->said, "the store works again after 20.9 s");
}

/* At first the server refuses connections, then it lacks a replica. */
static void
another_cause_is_logged_but_not_every_time(void **state)
{
    struct rig *rig = *state;
    struct idem_op op = op_begin("a");
    int64_t passed_ms = 0;

    set_away(rig, true);
    ask_later(rig, &op, IDEM_ERR_UNAVAILABLE);
    faulty_plan(rig->store, FAULT_LOST_NOT, 0, 1000000);
    for (; passed_ms < 9900; passed_ms += 1100) {
        ask_later(rig, &op, IDEM_ERR_LOST);
        assert_int_equal(rig->logged, passed_ms < 8800 ? 1 : rig->logged);
    }
    ask_later(rig, &op, IDEM_ERR_LOST);
    assert_int_equal(rig->logged, 2);
    assert_non_null(strstr(rig->said, "the store still fails: planned: lost"));
    for (int i = 0; i < 20; i++)
        ask_later(rig, &op, IDEM_ERR_LOST);
    assert_int_equal(rig->logged, 2);
    set_away(rig, false);
    ask_later(rig, &op, IDEM_OK);
    assert_int_equal(rig->logged, 3);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        rig_test(an_outage_has_a_line_at_its_begin_and_one_at_its_end,
                 FAULTY_REMOTE),
        rig_test(an_outage_has_a_line_at_its_begin_and_one_at_its_end,
                 FAULTY_LOCAL),
        rig_test(a_store_that_fails_in_turns_is_logged_once_a_second,
                 FAULTY_REMOTE),
        rig_test(an_outage_soon_after_another_is_logged_when_it_lasts,
                 FAULTY_REMOTE),
        rig_test(reads_do_not_end_an_outage_of_writes, FAULTY_REMOTE),
        rig_test(an_outage_of_reads_is_logged_too, FAULTY_REMOTE),
        rig_test(another_cause_is_logged_but_not_every_time, FAULTY_REMOTE),
        rig_test(parts_that_work_do_not_end_the_outage_of_one, FAULTY_PARTIAL),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
