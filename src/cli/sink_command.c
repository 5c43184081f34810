/*
 * sink_command.c - hands a message to a command, on its standard input.
 */
#include "sink.h"

#include "../engine/engine.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define EXIT_NOT_HANDLED 75
#define EXIT_POISON 65

static void
set_number(const char *name, unsigned long long value)
{
    char text[32];

    snprintf(text, sizeof(text), "%llu", value);
    setenv(name, text, 1);
}

/* In the child, which has one thread: the environment is its own. What comes
 * out of `trouble` tells the parent that the command did not begin. */
static void
become(const struct command_sink *sink, const struct idem_message *m, int input,
       int trouble)
{
    char id[IDEM_ID_MAX + 1] = "", scope[IDEM_SCOPE_MAX + 1] = "";
    int why;

    memcpy(id, m->id.data, m->id.len);
    memcpy(scope, m->scope.data, m->scope.len);
    setenv("IDEM_ID", id, 1);
    setenv("IDEM_SCOPE", scope, 1);
    set_number("IDEM_FENCE", m->fence);
    set_number("IDEM_ATTEMPT", m->attempt);
    setpgid(0, 0);
    /* The connections to the broker and the store are not the command's. */
    (void)close_range(STDERR_FILENO + 1, ~0u, CLOSE_RANGE_CLOEXEC);
    dup2(input, STDIN_FILENO);
    signal(SIGPIPE, SIG_DFL); /* idem itself ignores it */
    execvp(sink->argv[0], sink->argv);
    why = errno;
    _exit(write(trouble, &why, sizeof(why)) == sizeof(why) ? 127 : 126);
}

/* Write the message and wait for the end; past the deadline, kill it. Returns
 * false if it had to be killed. */
static bool
feed_and_wait(const struct command_sink *sink, const struct idem_message *m,
              pid_t child, int output, int *status)
{
    int64_t deadline_us =
        idem__system_clocks.boot_us(NULL) + sink->timeout_ms * 1000;
    const char *at = m->body.data;
    size_t left = m->body.len;
    bool killed = false;

    for (;;) {
        pid_t ended = waitpid(child, status, WNOHANG);

        if (ended == child || (ended < 0 && errno != EINTR)) {
            if (output >= 0)
                close(output);
            return !killed;
        }
        if (!killed && idem__system_clocks.boot_us(NULL) >= deadline_us) {
            kill(-child, SIGKILL);
            kill(child, SIGKILL);
            killed = true;
        }
        if (output >= 0) {
            struct pollfd wait = {.fd = output, .events = POLLOUT};
            ssize_t n = 0;

            if (left > 0 && poll(&wait, 1, 5) > 0)
                n = write(output, at, left);
            if (n > 0) {
                at += n;
                left -= (size_t)n;
            }
            if (left == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) {
                close(output); /* a command may stop reading: its exit tells */
                output = -1;
            }
        } else {
            usleep(1000);
        }
    }
}

static enum idem_handled
by_exit(int status, bool in_time, struct idem_error *err)
{
    if (!in_time || WIFSIGNALED(status)) {
        idem__fail(err, IDEM_ERR_TIMEOUT, "the command %s",
                   in_time ? "was ended by a signal" : "took too long");
        return IDEM_UNCLEAR;
    }
    if (WEXITSTATUS(status) == 0)
        return IDEM_HANDLED;
    idem__fail(err, IDEM_ERR_INVALID, "the command exited with %d",
               WEXITSTATUS(status));
    return WEXITSTATUS(status) == EXIT_NOT_HANDLED ? IDEM_NOT_HANDLED
           : WEXITSTATUS(status) == EXIT_POISON    ? IDEM_POISON
                                                   : IDEM_FAILED_ONCE;
}

static enum idem_handled
not_begun(const char *what, int why, struct idem_error *err)
{
    idem__fail(err, IDEM_ERR_UNAVAILABLE, "cannot run %s: %s", what,
               strerror(why));
    return IDEM_AWAY;
}

static void
close_pipe(const int ends[2])
{
    close(ends[0]);
    close(ends[1]);
}

enum idem_handled
command_sink_handle(void *arg, const struct idem_message *m,
                    struct idem_error *err)
{
    const struct command_sink *sink = arg;
    int input[2], trouble[2], status = 0, why = 0;
    bool in_time;
    ssize_t told;
    pid_t child;

    if (pipe2(input, O_CLOEXEC) != 0)
        return not_begun(sink->argv[0], errno, err);
    if (pipe2(trouble, O_CLOEXEC) != 0) {
        why = errno;
        close_pipe(input);
        return not_begun(sink->argv[0], why, err);
    }
    child = fork();
    if (child == 0)
        become(sink, m, input[0], trouble[1]);
    if (child < 0) {
        why = errno;
        close_pipe(input);
        close_pipe(trouble);
        return not_begun(sink->argv[0], why, err);
    }
    close(input[0]);
    close(trouble[1]);
    do
        told = read(trouble[0], &why, sizeof(why));
    while (told < 0 && errno == EINTR);
    close(trouble[0]);
    fcntl(input[1], F_SETFL, O_NONBLOCK);
    in_time = feed_and_wait(sink, m, child, input[1], &status);
    return told == sizeof(why) ? not_begun(sink->argv[0], why, err)
                               : by_exit(status, in_time, err);
}
