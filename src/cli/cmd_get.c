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
    int code = cli_parse_key(&syntax, argc, argv, &args, &op);

    return code >= 0 ? code : cli_run_verb(&verb, &op);
}
