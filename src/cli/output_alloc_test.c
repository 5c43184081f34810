/*
 * output_alloc_test.c - lets each allocation fail once while a text is printed
 * as JSON: all of it is printed, or the command knows that it was not.
 */
#include "../../tests/support/alloc_countdown.h"
#include "../base/json_memory.h"
#include "cli.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define WHOLE "{\"help\":\"a text\"}\n"

/* Like idem help --json. Exits with 0 if all was printed, 1 if it says that
 * this is not so; plus 2 if an allocation failed. */
static void
print_as_command(int out, long n)
{
    dup2(out, STDOUT_FILENO);
    cli_json = true;
    idem__json_watch();
    countdown = n;
    cli_text_begin();
    printf("a text");
    cli_text_end("help");
    countdown = 0;
    fflush(stdout);
    _exit((cli_output_incomplete() ? 1 : 0) + (failed ? 2 : 0));
}

/* The exit code; its output is in `got`. */
static int
run_command(long n, char *got, size_t len)
{
    int ends[2], status;
    ssize_t used;
    pid_t child;

    assert_int_equal(pipe(ends), 0);
    fflush(stdout);
    child = fork();
    assert_true(child >= 0);
    if (child == 0)
        print_as_command(ends[1], n);
    close(ends[1]);
    used = read(ends[0], got, len - 1);
    got[used > 0 ? used : 0] = 0;
    close(ends[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void
a_text_in_json_is_whole_or_missing_and_told(void **state)
{
    char got[100];
    long n = 0, missing = 0;
    int code;

    (void)state;
    do {
        code = run_command(++n, got, sizeof(got));
        missing += code & 1;
        if (strcmp(got, code & 1 ? "" : WHOLE) != 0)
            fail_msg("allocation %ld, code %d: %s", n, code, got);
    } while (code & 2);
    assert_int_equal(code, 0);
    assert_true(missing >= 3);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_text_in_json_is_whole_or_missing_and_told),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
