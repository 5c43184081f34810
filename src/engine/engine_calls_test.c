/*
 * engine_calls_test.c - lets each system call and allocation fail once while an
 * engine with threads and keys is opened and closed.
 */
#include "../../tests/support/failing_calls.h"

#include "../../tests/support/rig.h"
#include "inner.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

static void
an_engine_opens_and_works_or_says_why_not(void **state)
{
    struct idem_options options = {0};
    struct idem_op op = op_begin("a");
    size_t n = 0, refused = 0;

    (void)state;
    do {
        struct idem_engine *engine = NULL;
        struct idem_answer answer = {0};
        struct idem_error err = {IDEM_OK, ""};

        arm(NULL, ++n, 0);
        (void)idem_open("memory:", &options, &engine, &err);
        disarm();
        if (!engine) {
            refused++;
            assert_int_equal(err.status, IDEM_ERR_MEMORY);
            assert_true(strcmp(fault.fired, "pthread_create") != 0 ||
                        strstr(err.text, "cannot start a thread"));
            continue;
        }
        assert_int_equal(idem_do(engine, &op, &answer, NULL), IDEM_OK);
        assert_int_equal(answer.verdict, IDEM_V_STARTED);
        idem_answer_clear(&answer);
        idem_close(engine);
    } while (fault.fired);
    print_message("%zu calls failed in turn\n", n);
    assert_true(refused > 3);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_engine_opens_and_works_or_says_why_not),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
