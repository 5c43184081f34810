/*
 * cmd_unlock.c - idem unlock: release a lock.
 */
#include "verb.h"

#include <idem/lock.h>

int
cli_unlock(int argc, char **argv)
{
    struct cli_verb verb = {0};
    const char *reason = NULL;
    const struct cli_option options[] = {
        CLI_VERB_OPTIONS(&verb), CLI_REASON_OPTION(&reason), {0}};
    const struct cli_syntax syntax = {
        .usage = "unlock NAME FENCE [options]",
        .about = "Release a lock. \"stale\" (15): the lock is not held under "
                 "this fence. To release the lock of another owner, give a "
                 "--reason; this needs the right to operate and is written to "
                 "the audit trail. idem scan --type lock lists the locks.",
        .options = options,
        .min_args = 2,
        .max_args = 2,
    };
    struct idem_op op = {.verb = IDEM_UNLOCK,
                         .type = IDEM_TYPE_LOCK,
                         .scope = idem_text(IDEM_LOCK_SCOPE)};
    char **args;
    int code = cli_parse(&syntax, argc, argv, &args, NULL);

    if (code < 0)
        code = cli_read_fence(args[1], &op.fence);
    if (code >= 0)
        return code;
    op.id = idem_text(args[0]);
    op.subject = idem_text(reason);
    return cli_run_verb(&verb, &op);
}
