/*
 * cmd_forget.c - idem forget: make a record free.
 */
#include "verb.h"

int
cli_forget(int argc, char **argv)
{
    struct cli_verb verb = {0};
    const char *reason = NULL;
    const struct cli_option options[] = {CLI_VERB_OPTIONS(&verb),
                                         CLI_TYPE_OPTION(&verb),
                                         CLI_REASON_OPTION(&reason),
                                         {0}};
    const struct cli_syntax syntax = {
        .usage = "forget SCOPE ID [options]",
        .about = "An operator's right: forget what is known of a request, so "
                 "that it may run\nagain. Its fence stays: who holds the old "
                 "one can change nothing.",
        .options = options,
        .min_args = 2,
        .max_args = 2,
    };
    struct idem_op op = {.verb = IDEM_FORGET};
    char **args;
    int code = cli_parse_key(&syntax, argc, argv, &args, &op);

    op.subject = idem_text(reason);
    return code >= 0 ? code : cli_run_verb(&verb, &op);
}
