/*
 * sink_command.c - pass a message to a command, on its standard input.
 *
 * The command leads its own process group, so that a timeout also ends the
 * processes that it started. It gets SIGTERM when the consumer is killed.
 */
#include "sink.h"

#include "../base/spawn.h"
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
#define WAIT_MAX_MS 60000

/* Write as much as the command reads. Close the pipe at the end, or when the
 * command stops reading; its exit status is the outcome. */
static void
feed(struct idem_bytes *body, int *output)
{
    ssize_t n = write(*output, body->data, body->len);

    if (n > 0) {
        body->data = (const char *)body->data + n;
        body->len -= (size_t)n;
    }
    if (body->len == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) {
        close(*output);
        *output = -1;
    }
}

/* Write the message and wait for the command to end; kill it after the
 * deadline. Returns false if it was killed. */
static bool
feed_and_wait(const struct command_sink *sink, const struct idem_message *m,
              struct idem_child *child, int output, int *status)
{
    int64_t deadline_us =
        idem__system_clocks.boot_us(NULL) + sink->timeout_ms * 1000;
    struct idem_bytes body = m->body;
    bool killed = false;

    feed(&body, &output);
    for (;;) {
        int64_t left_ms =
            (deadline_us - idem__system_clocks.boot_us(NULL) + 999) / 1000;
        struct pollfd wait[2] = {{.fd = child->fd, .events = POLLIN},
                                 {.fd = output, .events = POLLOUT}};

        if (!killed && left_ms <= 0) {
            kill(-child->pid, SIGKILL);
            killed = true;
        }
        if (killed || left_ms > WAIT_MAX_MS)
            left_ms = WAIT_MAX_MS;
        poll(wait, 2, idem__child_patience(child, (int)left_ms));
        if (idem__child_wait(child, 0, status)) {
            if (output >= 0)
                close(output);
            return !killed;
        }
        if (output >= 0 && wait[1].revents)
            feed(&body, &output);
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

/* Start it with the message's names in its environment. Returns 0, or an
 * errno. */
static int
start(const struct command_sink *sink, const struct idem_message *m, int input,
      struct idem_child *child)
{
    char id[IDEM_ID_MAX + 1] = "", scope[IDEM_SCOPE_MAX + 1] = "";
    char fence[32], attempt[32];
    const struct idem_setting settings[] = {{"IDEM_ID", id},
                                            {"IDEM_SCOPE", scope},
                                            {"IDEM_FENCE", fence},
                                            {"IDEM_ATTEMPT", attempt}};
    const struct idem_spawn how = {.argv = sink->argv,
                                   .settings = settings,
                                   .setting_count = 4,
                                   .in = input,
                                   .out = -1,
                                   .err = -1,
                                   .own_group = true};

    memcpy(id, m->id.data, m->id.len);
    memcpy(scope, m->scope.data, m->scope.len);
    snprintf(fence, sizeof(fence), "%llu", (unsigned long long)m->fence);
    snprintf(attempt, sizeof(attempt), "%u", (unsigned)m->attempt);
    return idem__spawn(&how, child);
}

enum idem_handled
command_sink_handle(void *arg, const struct idem_message *m,
                    struct idem_error *err)
{
    const struct command_sink *sink = arg;
    struct idem_child child;
    int input[2], status = 0, why;
    bool in_time;

    if (pipe2(input, O_CLOEXEC) != 0)
        return not_begun(sink->argv[0], errno, err);
    why = start(sink, m, input[0], &child);
    close(input[0]);
    if (why) {
        close(input[1]);
        return not_begun(sink->argv[0], why, err);
    }
    fcntl(input[1], F_SETFL, O_NONBLOCK);
    in_time = feed_and_wait(sink, m, &child, input[1], &status);
    return by_exit(status, in_time, err);
}
