/*
 * lease_test.c - tests when a lease is renewed and when it is over.
 */
#include "lease.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static void
it_is_asked_for_again_after_a_third_counted_from_the_question(void **state)
{
    struct idem__lease lease = {.length_us = 30000, .asked_us = 1000};

    (void)state;
    assert_true(idem__lease_ended(&lease, 1000)); /* not granted yet */
    idem__lease_granted(&lease);
    assert_int_equal(idem__lease_due_us(&lease), 11000);
    assert_false(idem__lease_ended(&lease, 30999));
    assert_true(idem__lease_ended(&lease, 31000));
}

static void
a_question_without_success_is_repeated_soon_and_moves_no_end(void **state)
{
    struct idem__lease lease = {.length_us = 30000, .asked_us = 1000};
    int tries = 0;

    (void)state;
    idem__lease_granted(&lease);
    while (idem__lease_due_us(&lease) < 31000) {
        lease.asked_us = idem__lease_due_us(&lease);
        tries++;
    }
    assert_int_equal(tries, 8); /* after 12/36, 15/36, ... of it */
    assert_true(idem__lease_ended(&lease, 31000));
    idem__lease_granted(&lease);
    assert_int_equal(idem__lease_due_us(&lease), lease.asked_us + 10000);
}

static void
the_shortest_lease_is_not_asked_for_all_the_time(void **state)
{
    struct idem__lease lease = {.length_us = 1, .asked_us = 5};

    (void)state;
    assert_int_equal(idem__lease_third(0), 1);
    assert_int_equal(idem__lease_third(2), 1);
    assert_int_equal(idem__lease_due_us(&lease), 6);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(
            it_is_asked_for_again_after_a_third_counted_from_the_question),
        cmocka_unit_test(
            a_question_without_success_is_repeated_soon_and_moves_no_end),
        cmocka_unit_test(the_shortest_lease_is_not_asked_for_all_the_time),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
