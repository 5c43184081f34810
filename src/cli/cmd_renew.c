/*
 * cmd_renew.c - idem renew: more time for what was begun.
 */
#include "verb.h"

#include "../base/units.h"

int
cli_renew(int argc, char **argv)
{
    struct cli_verb verb = {0};
    const struct cli_option options[] = {
        CLI_VERB_OPTIONS(&verb), CLI_TYPE_OPTION(&verb), {0}};
    const struct cli_syntax syntax = {
        .usage = "renew SCOPE ID FENCE LEASE [options]",
        .about = "Extend the lease of what begin started, counted from now; "
                 "LEASE is a time\nlike 30s. A lease never becomes shorter.",
        .options = options,
        .min_args = 4,
        .max_args = 4,
    };
    struct idem_op op = {.verb = IDEM_RENEW};
    char flaw[IDEM__TIME_FLAW_LEN];
    char **args;
    int code = cli_parse_key(&syntax, argc, argv, &args, &op);

    if (code < 0)
        code = cli_read_fence(args[2], &op.fence);
    if (code < 0 && !cli_ms_parse(args[3], &op.lease_ms))
        code = cli_usage_error("the lease \"%s\" %s", args[3],
                               idem__time_flaw(args[3], flaw));
    else if (code < 0 && op.lease_ms == 0)
        code = cli_usage_error("a lease is at least 1ms");
    return code >= 0 ? code : cli_run_verb(&verb, &op);
}
