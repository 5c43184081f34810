/*
 * base_calls_test.c - lets system calls and allocations fail where a command is
 * started, and where a server asks who is at the other end of a socket.
 */
#include "../../tests/support/failing_calls.h"

#include "buf.h"
#include "peer.h"
#include "spawn.h"
#include "url.h"

#include <pwd.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/wait.h>

#include <cmocka.h>

/* ---- commands --------------------------------------------------------------
 */

static size_t
open_files(void)
{
    DIR *folder = opendir("/proc/self/fd");
    size_t count = 0;

    while (readdir(folder))
        count++;
    closedir(folder);
    return count;
}

static void
a_command_starts_or_the_reason_is_told(void **state)
{
    static const struct idem_setting settings[] = {{"IDEM_TEST_ONE", "1"}};
    char *const argv[] = {"sh", "-c", "exit $((6 + IDEM_TEST_ONE))", NULL};
    struct idem_spawn how = {.argv = argv,
                             .settings = settings,
                             .setting_count = 1,
                             .in = -1,
                             .out = -1,
                             .err = -1};
    size_t files = open_files(), n = 0, started = 0;

    (void)state;
    do {
        struct idem_child child = {.pid = -1, .fd = -1};
        int status = 0, why;

        arm(NULL, ++n, 0);
        why = idem__spawn(&how, &child);
        disarm();
        if (why != 0) {
            assert_true(why == ENOMEM || why == EMFILE);
        } else {
            started++;
            while (!idem__child_wait(&child, -1, &status))
                ;
            assert_true(WIFEXITED(status));
            assert_int_equal(WEXITSTATUS(status), 7);
        }
        assert_int_equal(open_files(), files);
    } while (fault.fired);
    assert_true(n > 3 && started > 1); /* it works without a pidfd */
}

static void
a_signal_while_a_command_starts_is_not_noticed(void **state)
{
    char *const argv[] = {"/nowhere/idem-test", NULL};
    struct idem_spawn how = {.argv = argv, .in = -1, .out = -1, .err = -1};
    struct idem_child child;

    (void)state;
    arm("read", 1, EINTR);
    assert_int_equal(idem__spawn(&how, &child), ENOENT);
    disarm();
    assert_non_null(fault.fired);
}

/* ---- memory ----------------------------------------------------------------
 */

static void
a_text_is_kept_if_there_is_no_memory_for_the_next(void **state)
{
    struct idem_error err = {IDEM_OK, ""};
    char *text = NULL;

    (void)state;
    assert_int_equal(idem__text_set(&text, "one", &err), IDEM_OK);
    arm("alloc", 1, 0);
    assert_int_equal(idem__text_set(&text, "two", &err), IDEM_ERR_MEMORY);
    disarm();
    arm("alloc", 1, 0);
    assert_null(idem__url_escape("redis://a:b@c"));
    disarm();
    assert_int_equal(err.status, IDEM_ERR_MEMORY);
    assert_string_equal(text, "one");
    assert_int_equal(idem__text_set(&text, "two", &err), IDEM_OK);
    assert_string_equal(text, "two");
    free(text);
}

/* ---- who is at the other end ----------------------------------------------
 */

struct ends {
    int unix_fd[2], tcp;
};

static int
setup(void **state)
{
    struct ends *ends = calloc(1, sizeof(*ends));

    assert_int_equal(
        socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends->unix_fd), 0);
    ends->tcp = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(ends->tcp >= 0);
    *state = ends;
    return 0;
}

static int
teardown(void **state)
{
    struct ends *ends = *state;

    close(ends->unix_fd[0]);
    close(ends->unix_fd[1]);
    close(ends->tcp);
    free(ends);
    return 0;
}

static void
the_process_at_the_other_end_is_known(void **state)
{
    struct ends *ends = *state;

    assert_int_equal(idem__peer_pid(ends->unix_fd[0]), getpid());
    assert_true(idem__peer_is_ours(ends->unix_fd[0]));
    assert_int_equal(idem__peer_pid(-1), -1);
    arm("getsockopt", 1, 0);
    assert_int_equal(idem__peer_pid(ends->unix_fd[0]), -1);
    disarm();
    arm("getsockopt", 1, 0);
    assert_false(idem__peer_is_ours(ends->unix_fd[0]));
    disarm();
    assert_false(idem__peer_is_ours(ends->tcp)); /* TCP names no user */
    /* Without the file, "nobody" has its usual number. */
    arm("fopen64", 1, 0);
    assert_true(idem__peer_is_ours(ends->unix_fd[0]));
    disarm();
    assert_non_null(fault.fired);
}

static void
a_secret_goes_only_to_a_server_that_is_known(void **state)
{
    struct ends *ends = *state;
    struct idem_error err = {IDEM_OK, ""};

    assert_int_equal(idem__peer_trusted(ends->unix_fd[0], "sock", &err),
                     IDEM_OK);
    assert_int_equal(idem__peer_trusted(ends->tcp, "tcp", &err), IDEM_OK);
    arm("getsockopt", 2, 0); /* the first asks for the domain */
    fault.for_good = true;
    assert_int_equal(idem__peer_trusted(ends->unix_fd[0], "sock", &err),
                     IDEM_ERR_UNAVAILABLE);
    disarm();
    assert_non_null(strstr(err.text, "sock: cannot tell which user"));
}

/* IDEM_SERVER_USER names the user that may listen there. */
static void
a_server_of_another_user_must_be_named(void **state)
{
    bool root = geteuid() == 0;
    uid_t user = root ? 1 : geteuid(); /* 1: there is one on every system */
    const struct passwd *named = getpwuid(user);
    struct idem_error err = {IDEM_OK, ""};
    int ends[2];

    (void)state;
    assert_non_null(named);
    if (root)
        assert_int_equal(seteuid(user), 0);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends),
                     0);
    if (root)
        assert_int_equal(seteuid(0), 0);
    for (int set = 0; set < 3; set++) {
        if (set == 0)
            unsetenv("IDEM_SERVER_USER");
        else
            setenv("IDEM_SERVER_USER", set == 1 ? "root" : named->pw_name, 1);
        if (!root)
            arm("geteuid", 1, 1);
        assert_int_equal(idem__peer_trusted(ends[0], "sock", &err),
                         set == 2 ? IDEM_OK : IDEM_ERR_INVALID);
        disarm();
    }
    assert_non_null(strstr(err.text, "set IDEM_SERVER_USER"));
    unsetenv("IDEM_SERVER_USER");
    close(ends[0]);
    close(ends[1]);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        cmocka_unit_test(a_command_starts_or_the_reason_is_told),
        cmocka_unit_test(a_signal_while_a_command_starts_is_not_noticed),
        cmocka_unit_test(a_text_is_kept_if_there_is_no_memory_for_the_next),
        T(the_process_at_the_other_end_is_known),
        cmocka_unit_test(a_server_of_another_user_must_be_named),
        T(a_secret_goes_only_to_a_server_that_is_known),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
