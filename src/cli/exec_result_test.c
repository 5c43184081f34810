/*
 * exec_result_test.c - encode and decode the outcome of a command.
 */
#include "exec.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static void
what_was_written_is_read(void **state)
{
    struct exec_outcome outcome;
    struct exec_stored stored;
    struct idem_buf bytes;

    (void)state;
    exec_outcome_init(&outcome);
    idem_buf_init(&bytes, 4096);
    outcome.code = 3;
    outcome.dropped = 7;
    idem_buf_add(&outcome.out, "o\0\n", 3);
    idem_buf_add(&outcome.err, "dropped 9\n", 10);
    assert_true(exec_encode(&outcome, &bytes));
    assert_true(
        exec_decode((struct idem_bytes){bytes.data, bytes.len}, &stored));
    assert_int_equal(stored.code, 3);
    assert_false(stored.signalled);
    assert_int_equal(stored.dropped, 7);
    assert_int_equal(stored.out.len, 3);
    assert_memory_equal(stored.out.data, "o\0\n", 3);
    assert_true(idem__bytes_is(stored.err, "dropped 9\n"));
    idem_buf_clear(&bytes);
    exec_outcome_clear(&outcome);
}

static void
the_documented_example_is_read(void **state)
{
    struct exec_stored stored;

    (void)state;
    assert_true(
        exec_decode(idem_text("exit 0\nstdout 12\n\nhello world\n"), &stored));
    assert_true(idem__bytes_is(stored.out, "hello world\n"));
    assert_int_equal(stored.err.len, 0);
    assert_true(exec_decode(idem_text("signal 9\nstdout 0\n\n"), &stored));
    assert_true(stored.signalled);
    assert_int_equal(stored.code, 9);
}

static void
anything_else_is_not_an_exec_result(void **state)
{
    static const char *const bad[] = {
        "",
        "exit 0",
        "exit 0\n",
        "exit 0\nstdout 0\n",
        "exit\nstdout 0\n\n",
        "exit 256\nstdout 0\n\n",
        "exit -1\nstdout 0\n\n",
        "exit 0 \nstdout 0\n\n",
        "exit 0\nstdout 1\n\n",
        "exit 0\nstdout 99999999999999999999\n\n",
        "exit 0\nstderr 0\n\n",
        "signal 99999\nstdout 0\n\n",
        "exit 0\nstdout 0\ndropped x\n\n",
    };

    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct exec_stored stored;

        if (exec_decode(idem_text(bad[i]), &stored))
            fail_msg("accepted: %s", bad[i]);
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_was_written_is_read),
        cmocka_unit_test(the_documented_example_is_read),
        cmocka_unit_test(anything_else_is_not_an_exec_result),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
