/*
 * cmd_release.c - idem release: give back what was begun and not done.
 */
#include "verb.h"

int
cli_release(int argc, char **argv)
{
    struct cli_verb verb = {0};
    const struct cli_option options[] = {
        CLI_VERB_OPTIONS(&verb), CLI_TYPE_OPTION(&verb), {0}};
    const struct cli_syntax syntax = {
        .usage = "release SCOPE ID FENCE [options]",
        .about = "Give back what begin started and nobody did: the next begin "
                 "may start it.",
        .options = options,
        .min_args = 3,
        .max_args = 3,
    };
    struct idem_op op = {.verb = IDEM_RELEASE};
    char **args;
    int code = cli_parse_key(&syntax, argc, argv, &args, &op);

    if (code < 0)
        code = cli_read_fence(args[2], &op.fence);
    return code >= 0 ? code : cli_run_verb(&verb, &op);
}
