/*
 * cmd_settle.c - idem settle: the compensation query, and an operator's
 * decision about a doubt.
 */
#include "verb.h"

#include "../gateway/module/result.h"

#include <stdlib.h>
#include <string.h>

struct settle {
    struct cli_verb verb;
    const char *as, *result, *kind, *reason, *fence;
    const char *body;
    struct cli_list headers;
    int64_t ttl, http;
    bool absent;
    struct cli_doubts doubts;
};

/* A header as people write it: "Content-Type: application/json". */
static bool
read_header(const char *text, struct gateway_header *header)
{
    const char *colon = strchr(text, ':');

    if (!colon)
        return false;
    header->name = (struct idem_bytes){text, (size_t)(colon - text)};
    colon += 1 + strspn(colon + 1, " \t");
    header->value = idem_text(colon);
    return gateway_header_name_ok(header->name) && header->value.len > 0 &&
           gateway_header_value_ok(header->value);
}

/* Many clients read a body as JSON only if its header says so. */
static void
note_json(const struct gateway_result *answer, const struct idem_buf *body)
{
    json_t *json = json_loadb((const char *)body->data, body->len, 0, NULL);
    bool typed = false;

    for (size_t i = 0; i < answer->header_count; i++)
        typed =
            typed || idem__bytes_is(answer->headers[i].name, "Content-Type");
    if (json && !typed)
        fputs("idem: the body looks like JSON, and no --header 'Content-Type: "
              "application/json' is given: clients get it without a type\n",
              stderr);
    json_decref(json);
}

/* Put the status and the headers before the body, in the format of
 * docs/results.md. Returns -1 to continue, else the exit code. */
static int
compose(const struct settle *s, struct idem_buf *result)
{
    static struct gateway_result answer;
    struct idem_error err = {0};
    struct idem_buf body;
    size_t len;
    int code = -1;

    answer.status = (unsigned)(s->http > 999 ? 0 : s->http);
    answer.header_count = s->headers.count;
    for (size_t i = 0; i < s->headers.count; i++) {
        if (!read_header(s->headers.items[i], &answer.headers[i]))
            return cli_usage_error("--header \"%s\" is not a header: give "
                                   "'Name: value'",
                                   s->headers.items[i]);
        if (gateway_header_is_hop(answer.headers[i].name))
            return cli_usage_error("--header \"%s\": idem sends this header "
                                   "itself",
                                   s->headers.items[i]);
    }
    len = gateway_result_head_len(&answer);
    if (len == 0)
        return cli_usage_error("--http %lld is not a status: give one from 200 "
                               "to 599",
                               (long long)s->http);
    if (cli_read_value(s->body ? s->body : "", &body, &err) != IDEM_OK) {
        code = cli_fail(&err);
    } else {
        uint8_t *head = malloc(len);

        note_json(&answer, &body);
        idem_buf_init(result, IDEM_RESULT_MAX);
        if (head)
            gateway_result_head(&answer, head);
        if (!head || !idem_buf_add(result, head, len) ||
            !idem_buf_add(result, body.data, body.len))
            code =
                cli_error(IDEM_ERR_INVALID,
                          "the response is longer than the limit for a result");
        free(head);
    }
    idem_buf_clear(&body);
    return code;
}

static int
check_usage(const struct settle *s, char **words, size_t count)
{
    const struct cli_doubts *d = &s->doubts;

    if (count == 1)
        return cli_usage_error("one request needs SCOPE and ID: idem find "
                               "%.100s searches all scopes for this id",
                               words[0]);
    if (count == 0 && (s->fence || s->absent))
        return cli_usage_error("--%s is for one request: give SCOPE ID",
                               s->fence ? "fence" : "absent");
    if (s->absent && !s->as)
        return cli_usage_error("--absent needs --as succeeded or --as failed");
    if (s->absent && s->fence)
        return cli_usage_error("--fence is of a record: leave out --absent");
    if (count == 2 &&
        (d->scope || d->older_ms || d->all || d->dry_run || d->yes))
        return cli_usage_error("--scope, --older, --all, --dry-run and --yes "
                               "settle many doubts: leave out SCOPE ID");
    if ((s->result || s->http || s->body || s->headers.count) && !s->as)
        return cli_usage_error("--%s needs --as succeeded or --as failed",
                               s->result ? "result" : "http");
    if (s->http && (s->result || s->kind))
        return cli_usage_error(
            "--http sets the result: leave out --result and --kind");
    if (s->body && *s->body &&
        (s->http == 204 || s->http == 205 || s->http == 304))
        return cli_usage_error("--http %lld has no body: leave out --body",
                               (long long)s->http);
    if (!s->http && (s->body || s->headers.count))
        return cli_usage_error("--header and --body need --http STATUS");
    return -1;
}

/* The result to replay: bytes as they are, or an HTTP response. */
static int
read_result(const struct settle *s, struct idem_op *op, struct idem_buf *result)
{
    struct idem_error err = {0};
    int code = -1;

    if (s->http) {
        op->kind = IDEM_KIND_HTTP;
        code = compose(s, result);
    } else if (cli_read_value(s->result ? s->result : "", result, &err) !=
               IDEM_OK) {
        code = cli_fail(&err);
    }
    op->result = (struct idem_bytes){result->data, result->len};
    return code;
}

/* Without an outcome the reason becomes the result, so that a tombstone says
 * why it exists; otherwise the reason becomes the record's subject. */
static void
place_reason(const struct settle *s, struct idem_op *op)
{
    if (s->reason && s->as)
        op->subject = idem_text(s->reason);
    else if (s->reason)
        op->result = idem_text(s->reason);
}

static int
run(struct settle *s, char **args, size_t count)
{
    struct idem_op op = {.verb = IDEM_SETTLE,
                         .scope = idem_text(count == 2 ? args[0] : NULL),
                         .id = idem_text(count == 2 ? args[1] : NULL),
                         .ttl_ms = cli_ms_or_default(s->ttl)};
    struct idem_buf result = {0};
    int code = check_usage(s, args, count);

    if (code < 0 && s->fence)
        code = cli_read_fence(s->fence, &op.fence);
    if (code < 0 && s->as)
        code = cli_read_outcome(s->as, &op.outcome);
    if (code < 0)
        code = cli_read_kind(s->kind, &op.kind);
    if (code < 0)
        code = cli_check_time("--ttl", &s->ttl);
    if (code >= 0)
        return code;
    code = read_result(s, &op, &result);
    if (code < 0) {
        place_reason(s, &op);
        /* The store itself compares a fence with the record. */
        s->verb.must_exist = s->as && !s->absent && !s->fence;
        s->verb.bare_result = s->result && *s->result && !s->kind;
        code = count == 2 ? cli_run_verb(&s->verb, &op)
                          : cli_settle_doubts(&s->verb, &s->doubts, &op);
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
         "the outcome of a record in doubt: succeeded or failed"},
        {"result", 'r', CLI_TEXT, &s.result, "VALUE",
         "with --as: the result for duplicates, @FILE, or - for "
         "standard input; a gateway's request needs --http, or --kind raw"},
        CLI_KIND_OPTION(&s.kind),
        {"http", 0, CLI_NUMBER, &s.http, "STATUS",
         "with --as: the result is an HTTP response with this "
         "status, for clients of a gateway"},
        {"header", 'H', CLI_LIST, &s.headers, "LINE",
         "with --http: a header of the response, 'Name: value'"},
        {"body", 0, CLI_TEXT, &s.body, "VALUE",
         "with --http: the body, @FILE, or - for standard input"},
        {"absent", 0, CLI_FLAG, &s.absent, NULL,
         "with --as: store the outcome also if there is no record of this "
         "request"},
        CLI_REASON_OPTION(&s.reason),
        CLI_FENCE_OPTION(&s.fence),
        {"wait", 'w', CLI_MS, &s.verb.patience_ms, "TIME",
         "while it is busy, ask again for this long. Default "
         "with --store: if the clock says that the lease is "
         "over, wait as long as this lease was, up to a minute"},
        CLI_TTL_OPTION(&s.ttl),
        {"scope", 0, CLI_FILTER, &s.doubts.scope, "SCOPE",
         "without SCOPE ID: all doubts of this scope"},
        {"older", 0, CLI_MS, &s.doubts.older_ms, "TIME",
         "without SCOPE ID: doubts that are at least this old"},
        {"all", 0, CLI_FLAG, &s.doubts.all, NULL,
         "without SCOPE ID: all doubts"},
        {"dry-run", 0, CLI_FLAG, &s.doubts.dry_run, NULL,
         "list the doubts, and settle nothing"},
        {"yes", 'y', CLI_FLAG, &s.doubts.yes, NULL,
         "do not ask; required without a terminal"},
        {0},
    };
    const struct cli_syntax syntax = {
        .usage = "settle SCOPE ID [options]\n"
                 "settle --as OUTCOME --scope SCOPE | --older TIME | --all "
                 "[options]",
        .about =
            "Decide the outcome of a request for good. If it was never "
            "started, \"failed\" is stored for it, so that a late begin cannot "
            "run it; a note on standard error says so, and --fence prevents "
            "it. With --as, a request that has no record is refused: "
            "\"absent\" (16), unless you give --absent. If it is running, "
            "nothing changes: \"busy\" (11). If it "
            "is in \"doubt\" (12), --as succeeded or --as failed decides it, "
            "which needs the right to operate. If it was done, its result is "
            "printed. Without SCOPE ID, it asks you, then settles all doubts "
            "that match --scope, --older or --all; idem doubts lists them.",
        .options = options,
        .min_args = 0,
        .max_args = 2,
    };
    char **args;
    size_t count;
    int code = cli_parse(&syntax, argc, argv, &args, &count);

    return code >= 0 ? code : run(&s, args, count);
}
