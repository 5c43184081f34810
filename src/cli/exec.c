/*
 * exec.c - run a child process, pass its output on and keep a copy.
 *
 * One loop waits for its output, for its end, and for signals to forward. A
 * terminal sends its signals to both processes by itself; those are not
 * forwarded.
 */
#include "exec.h"

#include "../base/wait.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* A background process of the command may keep its output open. The output is
 * read for this long after the command has ended. */
#define LINGER_MS 1000

struct exec_stream {
    int from, to;
    struct idem_buf *keep;
};

struct child {
    struct idem_child process;
    int signals; /* a signalfd */
    const sigset_t *before;
    struct exec_stream streams[2];
    size_t limit;
    struct exec_outcome *outcome;
    bool ended;
    int status;
};

static const int forwarded[] = {SIGTERM, SIGINT,  SIGHUP,
                                SIGQUIT, SIGUSR1, SIGUSR2};

/* ---- starting ----------------------------------------------------------- */

static enum idem_status
start(struct child *child, char **command, const struct idem_setting *settings,
      size_t count, struct idem_error *err)
{
    int pipes[2][2] = {{-1, -1}, {-1, -1}};
    struct idem_spawn how = {.argv = command,
                             .settings = settings,
                             .setting_count = count,
                             .in = -1,
                             .mask = child->before,
                             .files = cli_files_leave};
    int why = 0;

    for (int i = 0; i < 2 && !why; i++)
        why = pipe2(pipes[i], O_CLOEXEC) == 0 ? 0 : errno;
    how.out = pipes[0][1];
    how.err = pipes[1][1];
    if (!why)
        why = idem__spawn(&how, &child->process);
    for (int i = 0; i < 2; i++)
        if (pipes[i][1] >= 0)
            close(pipes[i][1]);
    child->streams[0].from = pipes[0][0];
    child->streams[1].from = pipes[1][0];
    if (!why)
        return IDEM_OK;
    child->outcome->code = why == ENOENT ? 127 : 126;
    return idem__fail(err, IDEM_ERR_INVALID, "cannot run %s: %s", command[0],
                      strerror(why));
}

/* ---- while it runs ------------------------------------------------------- */

/* False: it cannot be written; errno says why. */
static bool
pass_on(int to, const char *data, size_t len)
{
    while (len > 0) {
        ssize_t wrote = write(to, data, len);

        if (wrote < 0 && errno == EINTR)
            continue;
        if (wrote < 0 && errno == EAGAIN) {
            struct pollfd room = {to, POLLOUT, 0};

            poll(&room, 1, -1);
            continue;
        }
        if (wrote < 0)
            return false;
        data += wrote;
        len -= (size_t)wrote;
    }
    return true;
}

/* If the output cannot be passed on, it is still kept. That does not guarantee
 * that a repeat prints it: it may be too long, and a loose command that failed
 * is run again. A message reports the error, except when the reader has closed
 * the pipe, because it then wants no more output. */
static void
pass_on_or_tell(struct exec_stream *stream, const char *data, size_t len)
{
    if (stream->to < 0 || pass_on(stream->to, data, len))
        return;
    if (errno != EPIPE)
        fprintf(stderr, "idem: cannot pass on the output of the command: %s\n",
                strerror(errno));
    stream->to = -1;
}

/* Sets `from` to -1 at the end of the stream. */
static void
read_stream(struct child *child, struct exec_stream *stream)
{
    struct exec_outcome *outcome = child->outcome;
    size_t kept = outcome->out.len + outcome->err.len;
    size_t room = kept < child->limit ? child->limit - kept : 0;
    char data[65536];
    ssize_t got = read(stream->from, data, sizeof(data));

    if (got < 0 && (errno == EINTR || errno == EAGAIN))
        return;
    if (got < 0)
        fprintf(stderr, "idem: cannot read the output of the command: %s\n",
                strerror(errno));
    if (got <= 0) {
        close(stream->from);
        stream->from = -1;
        return;
    }
    pass_on_or_tell(stream, data, (size_t)got);
    if (room > (size_t)got)
        room = (size_t)got;
    if (outcome->dropped > 0 || !idem_buf_add(stream->keep, data, room))
        room = 0; /* nothing is kept after the first dropped byte */
    outcome->dropped += (uint64_t)got - room;
}

static void
read_signal(struct child *child)
{
    struct signalfd_siginfo info;

    if (read(child->signals, &info, sizeof(info)) != (ssize_t)sizeof(info))
        return;
    if (info.ssi_pid != 0 && !child->ended)
        kill(child->process.pid, (int)info.ssi_signo);
}

static void
follow(struct child *child)
{
    int64_t until = 0;

    for (;;) {
        struct pollfd fds[4] = {
            {child->signals, POLLIN, 0},
            {child->streams[0].from, POLLIN, 0},
            {child->streams[1].from, POLLIN, 0},
            {child->process.fd, POLLIN, 0},
        };
        int64_t left;

        if (child->ended && until == 0)
            until = idem__mono_us() / 1000 + LINGER_MS;
        if (child->ended && fds[1].fd < 0 && fds[2].fd < 0)
            return;
        left = until - idem__mono_us() / 1000;
        if (child->ended && left <= 0)
            return;
        poll(fds, 4,
             child->ended ? (int)left
                          : idem__child_patience(&child->process, -1));
        for (int i = 0; i < 2; i++)
            if (fds[i + 1].revents)
                read_stream(child, &child->streams[i]);
        if (fds[0].revents)
            read_signal(child);
        if (!child->ended)
            child->ended = idem__child_wait(&child->process, 0, &child->status);
    }
}

static void
held_signals(sigset_t *set)
{
    sigemptyset(set);
    for (size_t i = 0; i < sizeof(forwarded) / sizeof(forwarded[0]); i++)
        sigaddset(set, forwarded[i]);
}

void
exec_hold_signals(sigset_t *before)
{
    sigset_t set;

    held_signals(&set);
    pthread_sigmask(SIG_BLOCK, &set, before);
}

void
exec_let_signals(const sigset_t *before)
{
    pthread_sigmask(SIG_SETMASK, before, NULL);
}

static void
close_child(struct child *child)
{
    for (int i = 0; i < 2; i++)
        if (child->streams[i].from >= 0)
            close(child->streams[i].from);
    close(child->signals);
}

enum idem_status
exec_run(char **command, const struct idem_setting *settings,
         size_t setting_count, size_t limit, const sigset_t *before,
         struct exec_outcome *outcome, struct idem_error *err)
{
    struct child child = {
        .before = before,
        .process = {.pid = -1, .fd = -1},
        .limit = limit,
        .outcome = outcome,
        .streams = {{-1, STDOUT_FILENO, &outcome->out},
                    {-1, STDERR_FILENO, &outcome->err}},
    };
    enum idem_status status;
    sigset_t set;

    fflush(stdout);
    fflush(stderr);
    held_signals(&set);
    child.signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    status = start(&child, command, settings, setting_count, err);
    if (status == IDEM_OK) {
        follow(&child);
        outcome->signalled = WIFSIGNALED(child.status);
        outcome->code = outcome->signalled ? WTERMSIG(child.status)
                                           : WEXITSTATUS(child.status);
    }
    close_child(&child);
    return status;
}
