/*
 * spawn_test.c - tests that commands inherit only what they are given, and that
 * their end is noticed.
 */
#include "spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

/* Run a shell script; returns its status as waitpid does, and its output. */
static int
shell(const char *script, struct idem_spawn how, char *out, size_t out_len)
{
    char *argv[] = {"sh", "-c", (char *)script, NULL};
    struct idem_child child;
    size_t len = 0;
    ssize_t got;
    int pipes[2], status;

    assert_int_equal(pipe2(pipes, O_CLOEXEC), 0);
    how.argv = argv;
    how.in = how.err = -1;
    how.out = pipes[1];
    assert_int_equal(idem__spawn(&how, &child), 0);
    close(pipes[1]);
    while ((got = read(pipes[0], out + len, out_len - 1 - len)) > 0)
        len += (size_t)got;
    out[len] = 0;
    close(pipes[0]);
    assert_true(idem__child_wait(&child, -1, &status));
    assert_int_equal(child.fd, -1);
    return status;
}

static void
a_command_gets_its_settings_over_ours(void **state)
{
    const struct idem_setting settings[] = {{"IDEM_A", "new"},
                                            {"IDEM_B", "a=b c"}};
    struct idem_spawn how = {.settings = settings, .setting_count = 2};
    char out[200];

    (void)state;
    setenv("IDEM_A", "old", 1);
    setenv("IDEM_AB", "kept", 1);
    assert_int_equal(shell("echo $IDEM_A,$IDEM_B,$IDEM_AB; env | grep -c "
                           "^IDEM_A=; exit 3",
                           how, out, sizeof(out)),
                     3 << 8);
    assert_string_equal(out, "new,a=b c,kept\n1\n");
}

static unsigned long long
ignored_signals(void)
{
    FILE *status = fopen("/proc/self/status", "re");
    unsigned long long mask = 0;
    char line[200];

    assert_non_null(status);
    while (fgets(line, sizeof(line), status)) {
        if (strncmp(line, "SigIgn:", 7) == 0)
            mask = strtoull(line + 7, NULL, 16);
    }
    fclose(status);
    return mask;
}

static void
a_command_gets_no_files_handlers_or_blocked_signals_of_ours(void **state)
{
    int fd = open("/dev/null", O_RDONLY); /* without O_CLOEXEC */
    char out[400], link[200], wanted[100];
    sigset_t set;

    (void)state;
    /* Signals that were ignored when this program started stay ignored, as
     * nohup needs. */
    snprintf(wanted, sizeof(wanted), "0000000000000000\n%016llx\n",
             (unsigned long long)ignored_signals() &
                 ~(1ULL << (SIGPIPE - 1) | 1ULL << (SIGXFSZ - 1)));
    snprintf(link, sizeof(link),
             "[ -e /proc/self/fd/%d ] && echo open; "
             "grep -E 'SigBlk|SigIgn' /proc/self/status | "
             "cut -f2",
             fd);
    (void)signal(SIGPIPE, SIG_IGN);
    (void)signal(SIGXFSZ, SIG_IGN);
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    shell(link, (struct idem_spawn){0}, out, sizeof(out));
    pthread_sigmask(SIG_UNBLOCK, &set, NULL);
    (void)signal(SIGPIPE, SIG_DFL);
    (void)signal(SIGXFSZ, SIG_DFL);
    close(fd);
    assert_string_equal(out, wanted);
}

static void
a_command_that_cannot_be_run_is_an_error(void **state)
{
    char *missing[] = {"/no/such/command", NULL};
    char *folder[] = {"/tmp", NULL};
    struct idem_spawn how = {.argv = missing, .in = -1, .out = -1, .err = -1};
    struct idem_child child;

    (void)state;
    assert_int_equal(idem__spawn(&how, &child), ENOENT);
    how.argv = folder;
    assert_int_equal(idem__spawn(&how, &child), EACCES);
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1); /* no child is left */
    assert_int_equal(errno, ECHILD);
}

/* From here on this process has no pidfd_open, as in an old container. */
static void
lose_pidfds(void)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_pidfd_open, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    struct sock_fprog program = {sizeof(code) / sizeof(code[0]), code};

    assert_int_equal(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
    assert_int_equal(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), 0);
    assert_int_equal(pidfd_open(getpid(), 0), -1);
}

/* This test must be the last one, because the change cannot be undone. */
static void
a_command_that_runs_is_no_error_without_pidfds(void **state)
{
    char *argv[] = {"sleep", "100", NULL};
    struct idem_spawn how = {.argv = argv, .in = -1, .out = -1, .err = -1};
    struct idem_child child;
    char out[20];
    int status;

    (void)state;
    lose_pidfds();
    assert_int_equal(shell("echo ran; exit 3", how, out, sizeof(out)), 3 << 8);
    assert_string_equal(out, "ran\n");
    assert_int_equal(idem__spawn(&how, &child), 0);
    assert_false(idem__child_wait(&child, 25, &status));
    assert_int_equal(idem__child_patience(&child, 0), 0);
    assert_true(idem__child_patience(&child, -1) > 0);
    assert_int_equal(kill(child.pid, SIGKILL), 0);
    assert_true(idem__child_wait(&child, -1, &status));
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

static void
a_session_of_its_own_is_nobody_elses(void **state)
{
    char *argv[] = {"sleep", "100", NULL};
    struct idem_spawn how = {
        .argv = argv, .in = -1, .out = -1, .err = -1, .own_session = true};
    struct idem_child child;
    int status;

    (void)state;
    assert_int_equal(idem__spawn(&how, &child), 0);
    assert_int_equal(getsid(child.pid), child.pid);
    assert_int_equal(getpgid(child.pid), child.pid);
    assert_int_equal(kill(-child.pid, SIGKILL), 0);
    assert_true(idem__child_wait(&child, -1, &status));
}

static void
a_group_ends_together_and_the_wait_has_a_limit(void **state)
{
    char *argv[] = {"sh", "-c", "sleep 100 & sleep 100", NULL};
    struct idem_spawn how = {
        .argv = argv, .in = -1, .out = -1, .err = -1, .own_group = true};
    struct idem_child child;
    int status = 0;
    pid_t group;

    (void)state;
    assert_int_equal(idem__spawn(&how, &child), 0);
    assert_false(idem__child_wait(&child, 10, &status));
    group = child.pid;
    assert_int_equal(getpgid(group), group);
    assert_int_equal(kill(-group, SIGKILL), 0);
    assert_true(idem__child_wait(&child, -1, &status));
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

int
main(void)
{
#define T(name) cmocka_unit_test(name)
    const struct CMUnitTest tests[] = {
        T(a_command_gets_its_settings_over_ours),
        T(a_command_gets_no_files_handlers_or_blocked_signals_of_ours),
        T(a_command_that_cannot_be_run_is_an_error),
        T(a_session_of_its_own_is_nobody_elses),
        T(a_group_ends_together_and_the_wait_has_a_limit),
        T(a_command_that_runs_is_no_error_without_pidfds),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
