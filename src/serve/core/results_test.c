/*
 * results_test.c - long results are kept once, and their bytes are bounded.
 */
#include "results.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static uint8_t bytes[5000];

static struct idem_record
record_of(uint64_t rev, size_t at, size_t len)
{
    return (struct idem_record){.rev = rev, .result = {bytes + at, len}};
}

static void
callbacks_of_one_turn_share_a_result_even_if_another_thread_rests(void **state)
{
    struct idem_record record = record_of(7, 0, 3000);
    struct results results;
    struct result *first, *second;

    (void)state;
    results_open(&results, 1 << 20);
    memset(bytes, 'a', sizeof(bytes));
    first = results_take(&results, 1, &record);
    results_rest(&results);
    second = results_take(&results, 1, &record);
    assert_ptr_equal(first, second);
    assert_int_equal(atomic_load(&results.bytes), 3000);
    result_put(first);
    assert_memory_equal(second->bytes, bytes, 3000);
    result_put(second);
    results_rest(&results);
    assert_int_equal(atomic_load(&results.bytes), 0);
    results_close(&results);
}

/* In another turn the same address may hold other bytes. */
static void
another_turn_rev_or_place_is_another_result(void **state)
{
    struct idem_record records[] = {
        record_of(7, 0, 2000), record_of(7, 0, 2000), record_of(8, 0, 2000),
        record_of(8, 1, 2000)};
    uint64_t turns[] = {1, 2, 2, 2};
    struct result *taken[4];
    struct results results;

    (void)state;
    results_open(&results, 1 << 20);
    for (int i = 0; i < 4; i++) {
        memset(bytes, 'a' + i, sizeof(bytes));
        taken[i] = results_take(&results, turns[i], &records[i]);
    }
    for (int i = 0; i < 4; i++) {
        assert_int_equal(taken[i]->bytes[1999], 'a' + i);
        result_put(taken[i]);
    }
    results_rest(&results);
    assert_int_equal(atomic_load(&results.bytes), 0);
    results_close(&results);
}

static void
results_take_half_of_the_limit_and_only_what_buffers_leave(void **state)
{
    struct idem_record record = record_of(1, 0, 4000);
    struct result *first, *second;
    struct results results;

    (void)state;
    results_open(&results, 16000);
    first = results_take(&results, 1, &record);
    second = results_take(&results, 2, &record);
    assert_non_null(first);
    assert_non_null(second);
    assert_null(results_take(&results, 3, &record));
    assert_int_equal(results_refused(&results), 1);
    result_put(second);

    results_count(&results, 0, 11000);
    assert_false(results_room(&results, 4000));
    assert_null(results_take(&results, 4, &record));
    results_count(&results, 11000, 2000);
    second = results_take(&results, 5, &record);
    assert_non_null(second);
    result_put(first);
    result_put(second);
    results_rest(&results);

    /* If nothing else is held, the limit does not apply. */
    results.max = 10;
    first = results_take(&results, 6, &record);
    assert_non_null(first);
    result_put(first);
    results_close(&results);
    assert_int_equal(atomic_load(&results.bytes), 0);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(
            callbacks_of_one_turn_share_a_result_even_if_another_thread_rests),
        cmocka_unit_test(another_turn_rev_or_place_is_another_result),
        cmocka_unit_test(
            results_take_half_of_the_limit_and_only_what_buffers_leave),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
