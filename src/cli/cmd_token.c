/*
 * cmd_token.c - idem issue and idem redeem: issue and redeem one-time tokens.
 */
#include "verb.h"

#include <idem/token.h>
#include <string.h>

#define COUNT_MAX 1000

/* ---- issue --------------------------------------------------------------- */

struct issue {
    struct cli_where where;
    int64_t ttl, count;
};

static enum idem_status
issue_one(struct idem_engine *engine, const struct issue *issue,
          const char *subject, struct idem_answer *answer,
          struct idem_error *err)
{
    char token[IDEM_TOKEN_LEN + 1];
    struct idem_op op = {.verb = IDEM_ISSUE,
                         .scope = idem_text(subject),
                         .ttl_ms = cli_ms_or_default(issue->ttl)};

    idem_token_make(token);
    op.id = idem_text(token);
    err->status = idem_do(engine, &op, answer, err);
    if (err->status != IDEM_OK)
        cli_advise_on_store(&issue->where, &op, err);
    return err->status;
}

static int
issue_all(const struct issue *issue, struct idem_engine *engine,
          const char *subject)
{
    json_t *tokens = json_array();
    int code = CLI_OK;

    for (int64_t i = 0; i < issue->count && code == CLI_OK; i++) {
        struct idem_answer answer = {0};
        struct idem_error err = {0};

        if (issue_one(engine, issue, subject, &answer, &err) != IDEM_OK) {
            code = cli_fail(&err);
        } else if (cli_json) {
            json_array_append_new(tokens, json_stringn(answer.record->id.data,
                                                       answer.record->id.len));
        } else {
            cli_print_safe(stdout, answer.record->id);
            putchar('\n');
        }
        idem_answer_clear(&answer);
    }
    if (cli_json && code == CLI_OK)
        cli_json_print(
            json_pack("{s:s, s:O}", "verdict", "issued", "tokens", tokens));
    json_decref(tokens);
    return code;
}

int
cli_issue(int argc, char **argv)
{
    struct issue issue = {.ttl = CLI_UNSET_MS, .count = 1};
    const struct cli_option options[] = {
        CLI_WHERE_OPTIONS(&issue.where),
        {"ttl", 0, CLI_MS, &issue.ttl, "TIME",
         "how long a token can be used; default 5m"},
        {"count", 'n', CLI_NUMBER, &issue.count, "N",
         "how many tokens; one per line"},
        {0},
    };
    const struct cli_syntax syntax = {
        .usage = "issue SUBJECT [options]",
        .about = "Issue tokens to a subject: a user, a session, a form. Each "
                 "can be used once,\nby redeem or by begin --token, and by "
                 "this subject only.",
        .options = options,
        .min_args = 1,
        .max_args = 1,
    };
    struct idem_engine *engine = NULL;
    struct idem_error err = {0};
    char **args;
    int code = cli_parse(&syntax, argc, argv, &args, NULL);

    if (code >= 0 || (code = cli_check_time("--ttl", &issue.ttl)) >= 0)
        return code;
    if (issue.count < 1 || issue.count > COUNT_MAX)
        return cli_usage_error("--count must be 1 to %d", COUNT_MAX);
    err.status = cli_engine_open(&issue.where, &engine, &err);
    if (err.status != IDEM_OK)
        return cli_fail(&err);
    code = issue_all(&issue, engine, args[0]);
    idem_close(engine);
    return code;
}

/* ---- redeem -------------------------------------------------------------- */

static void
print_next(const struct cli_verb *verb, struct idem_bytes token)
{
    if (verb->print && strcmp(verb->print, "token") == 0)
        printf("%.*s\n", (int)token.len, (const char *)token.data);
    else if (verb->print && strcmp(verb->print, "verdict") == 0)
        printf("redeemed\n");
    else if (cli_json)
        cli_json_print(json_pack("{s:s, s:o}", "verdict", "redeemed", "token",
                                 json_stringn(token.data, token.len)));
    else
        printf("redeemed\ntoken: %.*s\n", (int)token.len,
               (const char *)token.data);
}

static int
redeem_next(const struct cli_verb *verb, const struct idem_op *op)
{
    struct idem_engine *engine = NULL;
    struct idem_answer answer = {0};
    struct idem_error err = {0};
    int code;

    err.status = cli_engine_open(&verb->where, &engine, &err);
    if (err.status == IDEM_OK) {
        err.status = idem__do_verb(engine, op, true, &answer, &err);
        if (err.status != IDEM_OK)
            cli_advise_on_store(&verb->where, op, &err);
    }
    if (err.status != IDEM_OK) {
        code = cli_fail(&err);
    } else if (answer.verdict != IDEM_V_REDEEMED) {
        code = cli_exit_verdict(answer.verdict);
        cli_print_answer(&answer, NULL, verb->print);
    } else if (answer.record->id.len == 0) {
        /* Not "unavailable", which says that nothing was stored. */
        (void)cli_error(IDEM_ERR_LOST, "the token was used, but no new token "
                                       "could be issued; run idem issue");
        code = CLI_FAILED;
    } else {
        code = cli_exit_verdict(answer.verdict);
        print_next(verb, answer.record->id);
    }
    idem_answer_clear(&answer);
    idem_close(engine);
    return code;
}

int
cli_redeem(int argc, char **argv)
{
    struct cli_verb verb = {0};
    const char *nonce = NULL;
    bool next = false;
    uint8_t nonce_bytes[IDEM_NONCE_LEN];
    const struct cli_option options[] = {
        CLI_VERB_OPTIONS(&verb),
        {"nonce", 'n', CLI_TEXT, &nonce, "HEX",
         "16 random hex digits; a redeem that is sent again "
         "with the same nonce gets \"redeemed\" again"},
        {"next", 0, CLI_FLAG, &next, NULL,
         "also issue a new token to this subject; --print token "
         "prints only that"},
        {0},
    };
    const struct cli_syntax syntax = {
        .usage = "redeem TOKEN SUBJECT [options]",
        .about = "Use a token. \"redeemed\" (exit code 0): it was valid, and "
                 "this call used it; "
                 "\"duplicate\" (17): it was used before; \"unknown\" (18): "
                 "there is no such token "
                 "of this subject, or it has expired.",
        .options = options,
        .min_args = 2,
        .max_args = 2,
    };
    struct idem_op op = {.verb = IDEM_REDEEM, .type = IDEM_TYPE_TOKEN};
    char **args;
    int code = cli_parse(&syntax, argc, argv, &args, NULL);

    if (code < 0)
        code = cli_read_hex("a nonce", nonce, nonce_bytes, IDEM_NONCE_LEN);
    if (code >= 0)
        return code;
    op.nonce = nonce ? nonce_bytes : NULL;
    op.id = idem_text(args[0]);
    op.scope = idem_text(args[1]);
    return next ? redeem_next(&verb, &op) : cli_run_verb(&verb, &op);
}
