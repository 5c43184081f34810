/*
 * spawn.h - start a command, safely in a program with threads.
 *
 * All that needs memory is prepared before the process is split; the child only
 * makes system calls until it becomes the command. A command that cannot be
 * started is an error of the call: nothing has run then. The program must not
 * ignore SIGCHLD, or the end of its children goes unnoticed.
 *
 * The command gets SIGTERM when the thread that started it ends, however that
 * comes about (kill -9 of the process too). Let the thread that starts a
 * command wait for it.
 */
#ifndef IDEM__SPAWN_H
#define IDEM__SPAWN_H

#include <idem/engine.h>

#include <signal.h>
#include <sys/types.h>

struct idem_setting {
    const char *name, *value; /* an environment variable */
};

struct idem_spawn {
    char *const *argv; /* [0] is looked for in PATH */
    const struct idem_setting *settings;
    size_t setting_count;
    int in, out, err;     /* its standard streams; -1: ours */
    const sigset_t *mask; /* its blocked signals; NULL: none */
    bool own_group;       /* leads a process group: kill(-pid) reaches all */
    bool own_session;     /* and a session: a terminal's Ctrl-C does not
                             reach it */
    void (*files)(void);  /* marks what it shall not have as close-on-exec,
                             by system calls only; NULL: all but its
                             standard streams */
};

struct idem_child {
    pid_t pid;
    int fd; /* a pidfd: readable when the child has ended; -1: none was to be
               had, so look for its end now and then */
};

/* 0, or the errno that says why it cannot be run. */
int idem__spawn(const struct idem_spawn *how, struct idem_child *child);

/* For a caller that polls child->fd itself: how long to wait before the next
 * idem__child_wait, where it would have waited for timeout_ms (-1: for ever).
 */
int idem__child_patience(const struct idem_child *child, int timeout_ms);

/* Wait up to timeout_ms (-1: for ever) for its end. True: *status is as of
 * waitpid, and the child is cleared. A signal may end the wait early. */
bool idem__child_wait(struct idem_child *child, int timeout_ms, int *status);

#endif
