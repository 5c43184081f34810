/*
 * exec.h - run a command, pass its output on while keeping a copy, and write
 * down how it went (docs/results.md, `exec`).
 */
#ifndef IDEM__CLI_EXEC_H
#define IDEM__CLI_EXEC_H

#include "../base/spawn.h"
#include "cli.h"

#include <signal.h>
#include <sys/types.h>

/* How a command went. */
struct exec_outcome {
    bool signalled; /* `code` is the signal's number, else the exit status */
    int code;
    struct idem_buf out, err; /* kept, at most `limit` bytes together */
    uint64_t dropped;         /* bytes that were not kept */
};

void exec_outcome_init(struct exec_outcome *outcome);
void exec_outcome_clear(struct exec_outcome *outcome);

/* What a shell would say: the status, or 128 + the signal. */
int exec_exit_code(const struct exec_outcome *outcome);

/* As it is stored. False: out of memory. */
bool exec_encode(const struct exec_outcome *outcome, struct idem_buf *into);

/* A stored outcome; out and err are views into `stored`. */
struct exec_stored {
    bool signalled;
    int code;
    uint64_t dropped;
    struct idem_bytes out, err;
};

/* False: these bytes are not an exec result. */
bool exec_decode(struct idem_bytes stored, struct exec_stored *result);

/* Threads that are started while signals are held never get them. `before`,
 * which may be NULL, is what the command will have. */
void exec_hold_signals(sigset_t *before);
void exec_let_signals(const sigset_t *before);

/*
 * Run a command until it ends; signals are held. Those that come go on to it.
 * It is told to stop (SIGTERM) when this process is killed.
 *
 * IDEM_ERR_INVALID: it could not be started, nothing ran; err says why and
 *     outcome->code is 126 or 127, as a shell has it.
 */
enum idem_status exec_run(char **command, const struct idem_setting *settings,
                          size_t setting_count, size_t limit,
                          const sigset_t *before, struct exec_outcome *outcome,
                          struct idem_error *err);

#endif
