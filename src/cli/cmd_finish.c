/*
 * cmd_finish.c - idem finish: record the outcome of a claimed request.
 */
#include "verb.h"

struct finish {
    struct cli_verb verb;
    const char *kind;
    int64_t ttl;
    bool not_replayable;
};

static int
run(struct finish *f, char **args, size_t count)
{
    struct idem_op op = {.verb = IDEM_FINISH,
                         .scope = idem_text(args[0]),
                         .id = idem_text(args[1]),
                         .ttl_ms = cli_ms_or_default(f->ttl),
                         .not_replayable = f->not_replayable};
    struct idem_error err = {0};
    struct idem_buf result;
    int code;

    if ((code = cli_read_fence(args[2], &op.fence)) >= 0 ||
        (code = cli_read_outcome(args[3], &op.outcome)) >= 0 ||
        (code = cli_read_kind(f->kind, &op.kind)) >= 0 ||
        (code = cli_check_time("--ttl", &f->ttl)) >= 0)
        return code;
    if (cli_read_value(count > 4 ? args[4] : "", &result, &err) != IDEM_OK) {
        code = cli_fail(&err);
    } else {
        op.result = (struct idem_bytes){result.data, result.len};
        code = cli_run_verb(&f->verb, &op);
    }
    idem_buf_clear(&result);
    return code;
}

int
cli_finish(int argc, char **argv)
{
    struct finish f = {.ttl = CLI_UNSET_MS};
    const struct cli_option options[] = {
        CLI_VERB_OPTIONS(&f.verb),
        CLI_TYPE_OPTION(&f.verb),
        CLI_KIND_OPTION(&f.kind),
        {"ttl", 0, CLI_MS, &f.ttl, "TIME",
         "how long the outcome is kept; default: that of begin"},
        {"no-replay", 0, CLI_FLAG, &f.not_replayable, NULL,
         "done, but the result is not kept"},
        {0},
    };
    const struct cli_syntax syntax = {
        .usage = "finish SCOPE ID FENCE succeeded|failed [RESULT] [options]",
        .about = "Store the outcome of a request that begin started; every "
                 "later begin gets it. "
                 "RESULT is the value itself, @FILE, or - for standard input; "
                 "any bytes. "
                 "Sending the same finish again is ok. \"finished\" (14): this "
                 "fence "
                 "finished it before with "
                 "another outcome. \"stale\" (15): the record is not held "
                 "under this fence.",
        .options = options,
        .min_args = 4,
        .max_args = 5,
    };
    char **args;
    size_t count;
    int code = cli_parse(&syntax, argc, argv, &args, &count);

    return code >= 0 ? code : run(&f, args, count);
}
