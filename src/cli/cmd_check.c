/*
 * cmd_check.c - idem check: send many repeated requests to an HTTP interface
 * and report whether it is idempotent, with the evidence.
 *
 * Without --effect-url the effects are not visible. Then equal responses are
 * evidence, but only if the responses to different keys differ or the service
 * marks replays; otherwise the verdict is "cannot tell".
 */
#include "check.h"

#include <curl/curl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define CANNOT_TELL 3 /* exit code */

static const char *const result_names[] = {"ok", "weak", "open", "FAILED"};

/* ---- the verdict --------------------------------------------------------- */

struct verdict {
    int code;
    const char *word;
    char why[400];
};

/* Do equal responses under one key prove anything? */
static bool
answers_tell(const struct check *check)
{
    const struct check_tally *one = &check->rounds[1].tally;
    const struct check_tally *many = &check->rounds[2].tally;

    return many->distinct * 2 > many->succeeded ||
           one->replayed + 1 >= one->succeeded || one->succeeded == 1;
}

static struct verdict
decide(const struct check *check)
{
    struct verdict v = {CLI_OK, "idempotent", ""};
    const struct check_round *rounds = check->rounds;

    for (size_t i = 0; i < check->round_count; i++) {
        if (rounds[i].result == CHECK_BAD) {
            v = (struct verdict){CLI_FAILED, "not idempotent", ""};
            snprintf(v.why, sizeof(v.why), "%s: %s", rounds[i].name,
                     rounds[i].why);
            return v;
        }
    }
    for (size_t i = 0; i < check->round_count && i < 3; i++) {
        if (rounds[i].result == CHECK_OPEN) {
            v = (struct verdict){CANNOT_TELL, "cannot tell", ""};
            snprintf(v.why, sizeof(v.why), "%s", rounds[i].why);
            return v;
        }
    }
    if (check->effect_url) {
        snprintf(v.why, sizeof(v.why),
                 "the effects were counted at --effect-url: one for each key");
    } else if (answers_tell(check)) {
        snprintf(
            v.why, sizeof(v.why),
            "judged by the responses only: duplicates of a key got the same "
            "response, or were refused or marked as replays; give "
            "--effect-url to count the effects, too");
    } else {
        v = (struct verdict){CANNOT_TELL, "cannot tell", ""};
        snprintf(
            v.why, sizeof(v.why),
            "the service gives the same response to different keys, so equal "
            "responses prove nothing; give --effect-url to count the effects");
    }
    return v;
}

/* ---- printing it --------------------------------------------------------- */

static void
describe(const struct check *check, const struct check_round *round,
         struct idem_buf *out)
{
    const struct check_tally *t = &round->tally;
    bool first = true;

    for (size_t s = 100; s < 600; s++) {
        if (t->statuses[s] == 0)
            continue;
        idem_buf_printf(out, "%s%zu x %zu", first ? "" : ", ", t->statuses[s],
                        s);
        first = false;
    }
    if (t->silent + t->cut > 0)
        idem_buf_printf(out, "%s%zu without a response", first ? "" : ", ",
                        t->silent + t->cut);
    if (t->succeeded > 1 && t->distinct == 1)
        idem_buf_printf(out, "; equal responses");
    if (t->distinct > 1)
        idem_buf_printf(out, "; %zu different responses: %s and %s",
                        t->distinct, t->samples[0], t->samples[1]);
    if (t->replayed > 0)
        idem_buf_printf(out, "; %zu marked as replays", t->replayed);
    if (check->effect_url && !check_same(check->one, 0) &&
        check_same(round->change / check->one,
                   rint(round->change / check->one)))
        idem_buf_printf(out, "; effects: %.0f", round->change / check->one);
    else if (check->effect_url)
        idem_buf_printf(out, "; the number changed by %g", round->change);
}

static void
print_round(const struct check *check, const struct check_round *round)
{
    static const enum cli_colour colours[] = {CLI_GREEN, CLI_YELLOW, CLI_YELLOW,
                                              CLI_RED};
    struct idem_buf text;

    idem_buf_init(&text, 4096);
    describe(check, round, &text);
    printf("%s%-6s%s  %s: ", cli_colour(colours[round->result]),
           result_names[round->result], cli_colour(CLI_PLAIN), round->name);
    cli_print_safe(stdout, (struct idem_bytes){text.data, text.len});
    printf("\n");
    if (round->why[0])
        printf("        %s\n", round->why);
    idem_buf_clear(&text);
}

static json_t *
round_json(const struct check *check, const struct check_round *round)
{
    const struct check_tally *t = &round->tally;
    json_t *statuses = json_object(), *object;
    char name[8];

    for (unsigned s = 100; s < 600; s++) {
        snprintf(name, sizeof(name), "%u", s);
        if (t->statuses[s])
            json_object_set_new(statuses, name,
                                json_integer((json_int_t)t->statuses[s]));
    }
    object = json_pack(
        "{s:s,s:s,s:s,s:I,s:o,s:I,s:I,s:I,s:I}", "round", round->name, "result",
        round->result == CHECK_BAD ? "failed" : result_names[round->result],
        "why", round->why, "requests", (json_int_t)t->asked, "statuses",
        statuses, "succeeded", (json_int_t)t->succeeded, "different_answers",
        (json_int_t)t->distinct, "replayed", (json_int_t)t->replayed,
        "no_answer", (json_int_t)(t->silent + t->cut));
    if (check->effect_url && !check_same(check->one, 0))
        json_object_set_new(object, "effects",
                            json_real(round->change / check->one));
    return object;
}

static int
report(const struct check *check)
{
    struct verdict v = decide(check);
    json_t *rounds;

    cli_progress(NULL);
    if (cli_json) {
        rounds = json_array();
        for (size_t i = 0; i < check->round_count; i++)
            json_array_append_new(rounds, round_json(check, &check->rounds[i]));
        cli_json_print(json_pack("{s:s,s:s,s:s,s:s,s:o}", "verdict", v.word,
                                 "why", v.why, "url", check->target.url,
                                 "method", check->target.method, "rounds",
                                 rounds));
        return v.code;
    }
    for (size_t i = 0; i < check->round_count; i++)
        print_round(check, &check->rounds[i]);
    printf("\n%s%s%s: ",
           cli_colour(v.code == CLI_OK       ? CLI_GREEN
                      : v.code == CLI_FAILED ? CLI_RED
                                             : CLI_YELLOW),
           v.word, cli_colour(CLI_PLAIN));
    cli_print_safe(stdout, idem_text(v.why));
    printf("\n");
    return v.code;
}

/* ---- the command line ---------------------------------------------------- */

/* The same JSON with its first number increased by one, or with one more
 * member; any other text gets one more form field. */
static bool
make_other_body(struct check *check)
{
    json_t *json =
        json_loadb((const char *)check->body.data, check->body.len, 0, NULL);
    const char *name, *changed = NULL;
    json_t *member;
    char *text;
    bool fine;

    idem_buf_init(&check->other_body, IDEM_RESULT_MAX);
    if (check->body.len == 0)
        return true;
    json_object_foreach(json, name, member)
    {
        if (json_is_integer(member) && !changed) {
            changed = name;
            json_integer_set(member, json_integer_value(member) + 1);
        }
    }
    if (!json_is_object(json)) {
        json_decref(json);
        return idem_buf_add(&check->other_body, check->body.data,
                            check->body.len) &&
               idem_buf_add_text(&check->other_body, "&idem_check=1");
    }
    if (!changed)
        json_object_set_new(json, "idem_check", json_integer(1));
    text = json_dumps(json, JSON_COMPACT);
    fine = text && idem_buf_add_text(&check->other_body, text);
    free(text);
    json_decref(json);
    return fine;
}

static bool
has_mark(const struct check *check)
{
    bool found =
        strstr(check->target.url, CHECK_KEY_MARK) ||
        (check->body.len > 0 && memmem(check->body.data, check->body.len,
                                       CHECK_KEY_MARK, strlen(CHECK_KEY_MARK)));

    for (size_t i = 0; i < check->headers.count; i++)
        found = found || strstr(check->headers.items[i], CHECK_KEY_MARK);
    return found;
}

static int
check_usage(const struct check *check)
{
    if (strncmp(check->target.url, "http://", 7) != 0 &&
        strncmp(check->target.url, "https://", 8) != 0)
        return cli_usage_error("\"%s\" is not an http:// or https:// URL",
                               check->target.url);
    if (check->parallel < 2 || check->parallel > CHECK_PARALLEL_MAX)
        return cli_usage_error("--parallel is 2 to %d", CHECK_PARALLEL_MAX);
    if (check->target.timeout_ms < 1)
        return cli_usage_error("--timeout 0 is too short; give at least 1ms");
    for (size_t i = 0; i < check->headers.count; i++) {
        if (!strchr(check->headers.items[i], ':') ||
            strpbrk(check->headers.items[i], "\r\n"))
            return cli_usage_error("--header \"%s\" is not a header: give "
                                   "'Name: value'",
                                   check->headers.items[i]);
    }
    return -1;
}

static int
run(struct check *check)
{
    bool fine = check_play(check);

    cli_progress(NULL);
    return fine ? report(check) : cli_fail(&check->err);
}

/* What the options set. */
static struct check check = {.target = {.method = "POST",
                                        .headers = &check.headers,
                                        .timeout_ms = 10000},
                             .parallel = 50};
static const char *body = "", *other;

static const struct cli_option options[] = {
    {"method", 'X', CLI_TEXT, &check.target.method, "METHOD",
     "of the request (POST)"},
    {"body", 'd', CLI_TEXT, &body, "VALUE",
     "of the request: itself, @FILE, or - for standard input"},
    {"other-body", 0, CLI_TEXT, &other, "VALUE",
     "another valid request, sent under the same key (default: --body with "
     "its first number one higher)"},
    {"header", 'H', CLI_LIST, &check.headers, "LINE",
     "'Name: value', may be repeated (Content-Type: application/json "
     "unless given)"},
    {"key-header", 0, CLI_TEXT, &check.target.key_header, "NAME",
     "the header for the key (Idempotency-Key, unless {key} is used "
     "elsewhere)"},
    {"parallel", 'c', CLI_NUMBER, &check.parallel, "N",
     "requests at the same time, 2 to 1000 (50)"},
    {"effect-url", 0, CLI_TEXT, &check.effect_url, "URL",
     "GET this to count effects: a number, a JSON array, or an object with "
     "one of these"},
    {"effect-field", 0, CLI_TEXT, &check.effect_field, "NAME",
     "the field of that JSON (the first that is a number or an array)"},
    {"timeout", 0, CLI_MS, &check.target.timeout_ms, "TIME",
     "for each request (10s)"},
    {0},
};

int
cli_check(int argc, char **argv)
{
    const struct cli_syntax syntax = {
        .usage = "check URL --body VALUE [options]",
        .about =
            "Send many repeated requests to an HTTP interface and report "
            "whether it is idempotent: one key many times at once, different "
            "keys, two bodies under one key, retries after cut connections. It "
            "works on any service, with or without idem. {key} in the URL, a "
            "header or the body is replaced by the key.\n"
            "\n"
            "The requests are real, about 3 x --parallel of them; an "
            "idempotent service executes --parallel + 5. Use a test system "
            "that nobody else uses meanwhile.\n"
            "\n"
            "Exit code: 0 idempotent, 1 not idempotent, 3 cannot tell, 20 no "
            "response.",
        .options = options,
        .min_args = 1,
        .max_args = 1,
    };
    char **args;
    int code = cli_parse(&syntax, argc, argv, &args, NULL);

    if (code >= 0)
        return code;
    check.target.url = args[0];
    code = check_usage(&check);
    if (code >= 0)
        return code;
    curl_global_init(CURL_GLOBAL_DEFAULT);
    if (cli_read_value(body, &check.body, &check.err) != IDEM_OK ||
        (other &&
         cli_read_value(other, &check.other_body, &check.err) != IDEM_OK))
        code = cli_fail(&check.err);
    else if (!other && !make_other_body(&check))
        code = cli_error(IDEM_ERR_MEMORY, "out of memory");
    if (!check.target.key_header && !has_mark(&check))
        check.target.key_header = "Idempotency-Key";
    if (code < 0)
        code = run(&check);
    check_clear(&check);
    return code;
}
