/*
 * spawn.h - starts a command, safely in a program with threads.
 *
 * Everything that needs memory is prepared before the vfork; after it the child
 * makes only system calls until exec. If the command cannot be started, the
 * call returns an error and nothing has run. The program must not ignore
 * SIGCHLD, because the end of a child is then not reported.
 *
 * The command gets SIGTERM when the thread that started it ends, also if the
 * process is killed with SIGKILL. So the thread that starts a command should
 * also wait for it.
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
    int in, out, err;     /* its standard streams; -1: this process's */
    const sigset_t *mask; /* its blocked signals; NULL: none */
    bool own_group;       /* leads a process group: kill(-pid) reaches all */
    bool own_session;     /* also leads a session: Ctrl-C in the terminal does
                           * not reach it */
    void (*files)(void);  /* sets close-on-exec on the files that the command
                           * must not inherit, with system calls only; NULL: all
                           * but its standard streams */
};

struct idem_child {
    pid_t pid;
    int fd; /* a pidfd, readable when the child has ended; -1: not available, so
             * check for the end from time to time */
};

/* Returns 0, or the errno that says why the command cannot be run. */
int idem__spawn(const struct idem_spawn *how, struct idem_child *child);

/* For a caller that polls child->fd itself and would wait for timeout_ms (-1:
 * forever): how long to wait before it calls idem__child_wait again. */
int idem__child_patience(const struct idem_child *child, int timeout_ms);

/* Wait up to timeout_ms (-1: forever) for the end of the child. True: *status
 * is that of waitpid, and the child is cleared. A signal may end the wait
 * early. */
bool idem__child_wait(struct idem_child *child, int timeout_ms, int *status);

#endif
