/*
 * cmd_get.c - idem get: look at a record.
 */
#include "verb.h"

int
cli_get(int argc, char **argv)
{
    struct cli_verb verb = {0};
    const struct cli_option options[] = {
        CLI_VERB_OPTIONS(&verb), CLI_TYPE_OPTION(&verb), {0}};
    const struct cli_syntax syntax = {
        .usage = "get SCOPE ID [options]",
        .about = "Look at a record and its result; nothing changes.",
        .options = options,
        .min_args = 2,
        .max_args = 2,
    };
    struct idem_op op = {.verb = IDEM_GET};
    char **args;
    size_t count;
    int code = cli_parse(&syntax, argc, argv, &args, &count);

    if (code >= 0)
        return code;
    op.scope = idem_text(args[0]);
    op.id = idem_text(args[1]);
    return cli_run_verb(&verb, &op);
}
