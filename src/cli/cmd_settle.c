/*
 * cmd_settle.c - idem settle: query for compensation, and an operator's word on
 * what is in doubt.
 */
#include "verb.h"

struct settle {
    struct cli_verb verb;
    const char *as, *result, *kind, *reason;
    int64_t ttl;
};

/* Without an outcome of its own the reason is the result, so that a tombstone
 * says why; otherwise it is the record's label. */
static void
place_reason(const struct settle *s, struct idem_op *op)
{
    if (s->reason && s->as)
        op->subject = idem_text(s->reason);
    else if (s->reason)
        op->result = idem_text(s->reason);
}

static int
run(struct settle *s, char **args)
{
    struct idem_op op = {.verb = IDEM_SETTLE,
                         .scope = idem_text(args[0]),
                         .id = idem_text(args[1]),
                         .ttl_ms = cli_ms_or_default(s->ttl)};
    struct idem_error err = {0};
    struct idem_buf result;
    int code = -1;

    if (s->result && !s->as)
        return cli_usage_error("--result needs --as succeeded or --as failed");
    if (s->as)
        code = cli_read_outcome(s->as, &op.outcome);
    if (code < 0)
        code = cli_read_kind(s->kind, &op.kind);
    if (code < 0)
        code = cli_check_time("--ttl", &s->ttl);
    if (code >= 0)
        return code;
    if (cli_read_value(s->result ? s->result : "", &result, &err) != IDEM_OK) {
        code = cli_fail(&err);
    } else {
        op.result = (struct idem_bytes){result.data, result.len};
        place_reason(s, &op);
        code = cli_run_verb(&s->verb, &op);
    }
    idem_buf_clear(&result);
    return code;
}

int
cli_settle(int argc, char **argv)
{
    struct settle s = {.ttl = CLI_UNSET_MS};
    const struct cli_option options[] = {
        CLI_VERB_OPTIONS(&s.verb),
        CLI_TYPE_OPTION(&s.verb),
        {"as", 'a', CLI_TEXT, &s.as, "OUTCOME",
         "succeeded or failed: fix what is in doubt"},
        {"result", 'r', CLI_TEXT, &s.result, "VALUE",
         "with --as: the result to replay; @FILE and - work"},
        {"kind", 'k', CLI_TEXT, &s.kind, "KIND",
         "how to read the result: raw (default), http, exec"},
        {"reason", 0, CLI_TEXT, &s.reason, "TEXT", "why, for people"},
        {"wait", 'w', CLI_MS, &s.verb.patience_ms, "TIME",
         "while it is busy, ask again for this long; a lease\n"
         "that is over by the clock is still watched for as\n"
         "long as it lasts before it counts as over"},
        {"ttl", 0, CLI_MS, &s.ttl, "TIME",
         "how long the outcome is kept; default 24h"},
        {0},
    };
    const struct cli_syntax syntax = {
        .usage = "settle SCOPE ID [options]",
        .about =
            "Ask what became of a request, for good: if it never began, it is "
            "failed now\nand a late begin cannot run it any more. What is at "
            "work stays \"busy\" (11).\nWhat is in \"doubt\" (12) stays so "
            "unless --as says how it ended, which is an\noperator's right.",
        .options = options,
        .min_args = 2,
        .max_args = 2,
    };
    char **args;
    size_t count;
    int code = cli_parse(&syntax, argc, argv, &args, &count);

    return code >= 0 ? code : run(&s, args);
}
