/*
 * spawn.c - starts a command with vfork and exec.
 *
 * The child of a vfork borrows the parent's memory, so starting a command costs
 * the same however large this process is. It must not change that memory, call
 * malloc or run a signal handler: signals stay blocked until exec.
 */
#include "spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define LOOK_MS 10 /* poll interval for a child without a pidfd */

static bool
is_set(const struct idem_spawn *how, const char *line)
{
    for (size_t i = 0; i < how->setting_count; i++) {
        size_t len = strlen(how->settings[i].name);

        if (strncmp(line, how->settings[i].name, len) == 0 && line[len] == '=')
            return true;
    }
    return false;
}

/* This process's environment plus the settings, in one allocation; NULL: out of
 * memory. */
static char **
make_environment(const struct idem_spawn *how)
{
    size_t count = how->setting_count + 1, len = 0, n = 0;
    char **env, *text, *end;

    for (char **line = environ; *line; line++)
        count++;
    for (size_t i = 0; i < how->setting_count; i++)
        len +=
            strlen(how->settings[i].name) + strlen(how->settings[i].value) + 2;
    env = malloc(count * sizeof(*env) + len);
    if (!env)
        return NULL;
    text = (char *)(env + count);
    end = text + len;
    for (char **line = environ; *line; line++)
        if (!is_set(how, *line))
            env[n++] = *line;
    for (size_t i = 0; i < how->setting_count; i++) {
        env[n++] = text;
        text += snprintf(text, (size_t)(end - text), "%s=%s",
                         how->settings[i].name, how->settings[i].value) +
                1;
    }
    env[n] = NULL;
    return env;
}

static void
put_stream(int from, int to)
{
    if (from == to)
        (void)fcntl(to, F_SETFD, 0);
    else if (from >= 0)
        (void)dup2(from, to);
}

/* Reset signal handlers: one of them would run in the parent's memory, which
 * the child shares until exec. */
static void
drop_handlers(void)
{
    struct sigaction action, usual = {.sa_handler = SIG_DFL};

    for (int number = 1; number < NSIG; number++)
        if (sigaction(number, NULL, &action) == 0 &&
            action.sa_handler != SIG_DFL &&
            (action.sa_handler != SIG_IGN || number == SIGPIPE ||
             number == SIGXFSZ))
            (void)sigaction(number, &usual, NULL);
}

/* In the child: run the command, or report why it cannot be run. */
static void
become(const struct idem_spawn *how, char **env, pid_t parent, int trouble)
{
    sigset_t none;
    int why;

    (void)prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent)
        _exit(127);
    if (how->own_session)
        (void)setsid();
    else if (how->own_group)
        (void)setpgid(0, 0);
    if (how->files)
        how->files();
    else
        (void)close_range(STDERR_FILENO + 1, ~0u, CLOSE_RANGE_CLOEXEC);
    put_stream(how->in, STDIN_FILENO);
    put_stream(how->out, STDOUT_FILENO);
    put_stream(how->err, STDERR_FILENO);
    drop_handlers(); /* also restores SIGPIPE and SIGXFSZ, which idem ignores */
    sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, how->mask ? how->mask : &none, NULL);
    execvpe(how->argv[0], how->argv, env);
    why = errno;
    _exit(write(trouble, &why, sizeof(why)) == sizeof(why) ? 127 : 126);
}

/* Signals are blocked here, so that the child handles none before exec. */
static pid_t
split(const struct idem_spawn *how, char **env, int trouble)
{
    pid_t parent = getpid(), pid = vfork();

    if (pid == 0)
        become(how, env, parent, trouble);
    return pid;
}

static int
start(const struct idem_spawn *how, char **env, int trouble[2],
      struct idem_child *child)
{
    sigset_t all, before;
    ssize_t told;
    int why = 0;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    child->pid = split(how, env, trouble[1]);
    if (child->pid < 0)
        why = errno;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (child->pid < 0)
        return why;
    close(trouble[1]);
    trouble[1] = -1;
    do
        told = read(trouble[0], &why, sizeof(why));
    while (told < 0 && errno == EINTR);
    if (told == (ssize_t)sizeof(why)) {
        (void)waitpid(child->pid, NULL, 0);
        return why;
    }
    /* The command is running, so a failure from here on is not an error. */
    child->fd = pidfd_open(child->pid, 0);
    return 0;
}

int
idem__spawn(const struct idem_spawn *how, struct idem_child *child)
{
    char **env = make_environment(how);
    int trouble[2], why;

    if (!env)
        return ENOMEM;
    why = pipe2(trouble, O_CLOEXEC) == 0 ? 0 : errno;
    if (!why) {
        why = start(how, env, trouble, child);
        close(trouble[0]);
        if (trouble[1] >= 0)
            close(trouble[1]);
    }
    free(env);
    return why;
}

int
idem__child_patience(const struct idem_child *child, int timeout_ms)
{
    bool is_short = timeout_ms >= 0 && timeout_ms < LOOK_MS;

    return child->pid < 0 || child->fd >= 0 || is_short ? timeout_ms : LOOK_MS;
}

bool
idem__child_wait(struct idem_child *child, int timeout_ms, int *status)
{
    struct pollfd end = {.fd = child->fd, .events = POLLIN};

    while (waitpid(child->pid, status, WNOHANG) != child->pid) {
        int ms = idem__child_patience(child, timeout_ms);

        if (ms == 0 || poll(&end, 1, ms) < 0)
            return false;
        if (timeout_ms > 0)
            timeout_ms -= ms;
    }
    if (child->fd >= 0)
        close(child->fd);
    *child = (struct idem_child){.pid = -1, .fd = -1};
    return true;
}
