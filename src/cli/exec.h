/*
 * exec.h - run a command, pass its output on while keeping a copy, and encode
 * the outcome (docs/results.md, `exec`).
 */
#ifndef IDEM__CLI_EXEC_H
#define IDEM__CLI_EXEC_H

#include "../base/spawn.h"
#include "cli.h"

#include <signal.h>
#include <sys/types.h>

/* The outcome of a command. */
struct exec_outcome {
    bool signalled; /* `code` is the signal's number, else the exit status */
    int code;
    struct idem_buf out, err; /* kept copies, together at most `limit` bytes */
    uint64_t dropped;         /* bytes that were not kept */
};

void exec_outcome_init(struct exec_outcome *outcome);
void exec_outcome_clear(struct exec_outcome *outcome);

/* The exit code that a shell would report: the status, or 128 + the signal. */
int exec_exit_code(const struct exec_outcome *outcome);

/* Encode it for the store. False: out of memory. */
bool exec_encode(const struct exec_outcome *outcome, struct idem_buf *into);

/* A stored outcome; out and err point into `stored`. */
struct exec_stored {
    bool signalled;
    int code;
    uint64_t dropped;
    struct idem_bytes out, err;
};

/* False: these bytes are not an exec result. */
bool exec_decode(struct idem_bytes stored, struct exec_stored *result);

/* Block signals; threads that are started meanwhile never get them. `before`,
 * which may be NULL, gets the mask that the command will have. */
void exec_hold_signals(sigset_t *before);
void exec_let_signals(const sigset_t *before);

/*
 * Run a command until it ends; signals must be blocked, and are forwarded to
 * it. It gets SIGTERM when this process is killed.
 *
 * IDEM_ERR_INVALID: it could not be started, nothing ran; err says why and
 *     outcome->code is 126 or 127, as in a shell.
 */
enum idem_status exec_run(char **command, const struct idem_setting *settings,
                          size_t setting_count, size_t limit,
                          const sigset_t *before, struct exec_outcome *outcome,
                          struct idem_error *err);

#endif
