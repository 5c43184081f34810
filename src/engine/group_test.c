/*
 * group_test.c - tests what the answer to one operation says about the record
 * that was there before it.
 */
#include "../../tests/support/rig.h"
#include "inner.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

struct was {
    bool done, in_doubt;
    enum idem_state state;
};

static void
note_was(void *arg, enum idem_status status, const struct idem_answer *answer,
         const struct idem_error *err)
{
    struct was *was = arg;

    (void)err;
    assert_int_equal(status, IDEM_OK);
    was->done = true;
    was->state = (enum idem_state)answer->was;
    was->in_doubt = answer->was_in_doubt;
}

static void
assert_was(struct rig *rig, struct idem_op op, enum idem_state state,
           bool in_doubt)
{
    struct was was = {.done = false};

    assert_int_equal(idem_submit(rig->engine, &op, note_was, &was, NULL, NULL),
                     IDEM_OK);
    turn(rig->engine);
    assert_true(was.done);
    assert_int_equal(was.state, state);
    assert_int_equal(was.in_doubt, in_doubt);
}

static void
an_answer_says_what_was_there_before(void **state)
{
    struct rig *rig = *state;
    struct idem_op op = op_begin("a");
    struct reply start;

    op.lease_ms = 5000;
    op.ttl_ms = 60000;
    assert_was(rig, op_get("a"), IDEM_STATE_ABSENT, false);
    start = ask(rig->engine, &op);
    assert_verdict(start, IDEM_V_STARTED);
    assert_was(rig, op_get("a"), IDEM_STATE_EXECUTING, false);
    test_clocks_pass(&rig->clocks, 6000);
    assert_was(rig, op_get("a"), IDEM_STATE_EXECUTING, true);
    assert_was(rig, op_finish("a", start.fence, "R"), IDEM_STATE_EXECUTING,
               true);
    assert_was(rig, op_get("a"), IDEM_STATE_SUCCEEDED, false);
    /* An expired record does not count. */
    test_clocks_pass(&rig->clocks, INT64_C(400) * 24 * 3600 * 1000);
    assert_was(rig, op_begin("a"), IDEM_STATE_ABSENT, false);
}

static void
the_operations_of_one_batch_see_each_others_records(void **state)
{
    struct rig *rig = *state;
    struct idem_op begin = op_begin("a"), get = op_get("a");
    struct was first = {0}, second = {0};

    assert_int_equal(
        idem_submit(rig->engine, &begin, note_was, &first, NULL, NULL),
        IDEM_OK);
    assert_int_equal(
        idem_submit(rig->engine, &get, note_was, &second, NULL, NULL), IDEM_OK);
    turn(rig->engine);
    assert_true(first.done && second.done);
    assert_int_equal(first.state, IDEM_STATE_ABSENT);
    assert_int_equal(second.state, IDEM_STATE_EXECUTING);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        rig_test(an_answer_says_what_was_there_before, FAULTY_LOCAL),
        rig_test(the_operations_of_one_batch_see_each_others_records,
                 FAULTY_LOCAL),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
