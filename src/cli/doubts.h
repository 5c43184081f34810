/*
 * doubts.h - what is in doubt, oldest first: listed, and settled together.
 */
#ifndef IDEM__CLI_DOUBTS_H
#define IDEM__CLI_DOUBTS_H

#include "verb.h"

struct cli_doubts {
    const char *scope; /* NULL: every one */
    int64_t older_ms;  /* in doubt for at least this long */
    bool all;          /* --all: without any of the above */
    bool dry_run, yes;
};

/* Settle every doubt that is asked for with this op, whose scope, id and type
 * are filled in; returns the exit code. */
int cli_settle_doubts(const struct cli_verb *verb,
                      const struct cli_doubts *wanted, struct idem_op *op);

#endif
