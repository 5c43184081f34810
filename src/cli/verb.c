/*
 * verb.c - run one op and print its answer.
 */
#include "verb.h"

#include "../base/hex.h"
#include "../base/units.h"
#include "../serve/core/rights.h"

#include <inttypes.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A result on a terminal is cut at this length; --print result prints all of
 * it. */
#define SHOWN_MAX 4096
/* Without a server, SETTLE watches an ended lease for at most this long, and a
 * little longer than the lease. */
#define WATCH_MOST_MS 61000
#define WATCH_MORE_MS 1000

/* ---- reading arguments ------------------------------------------------ */

int
cli_parse_key(const struct cli_syntax *syntax, int argc, char **argv,
              char ***args, struct idem_op *op)
{
    size_t count;
    int code = cli_parse(syntax, argc, argv, args, &count);

    if (code < 0) {
        op->scope = idem_text((*args)[0]);
        op->id = idem_text((*args)[1]);
    }
    return code;
}

int
cli_read_fence(const char *text, uint64_t *fence)
{
    char *end;

    *fence = strtoull(text, &end, 10);
    if (text[0] < '0' || text[0] > '9' || *end != 0 || *fence == 0 ||
        *fence > IDEM_FENCE_MAX)
        return cli_usage_error("\"%s\" is not a fence: give the number that "
                               "the start printed",
                               text);
    return -1;
}

int
cli_read_outcome(const char *text, enum idem_state *outcome)
{
    if (idem__state_parse(idem_text(text), outcome) &&
        (*outcome == IDEM_STATE_SUCCEEDED || *outcome == IDEM_STATE_FAILED))
        return -1;
    return cli_usage_error("\"%s\" is not an outcome: succeeded or failed",
                           text);
}

int
cli_read_hex(const char *what, const char *text, uint8_t *out, size_t len)
{
    return !text || idem__hex_read(text, strlen(text), out, len)
               ? -1
               : cli_usage_error("%s is %zu hex digits", what, 2 * len);
}

int
cli_read_kind(const char *text, enum idem_kind *kind)
{
    if (!text || idem__kind_parse(idem_text(text), kind))
        return -1;
    return cli_usage_error("\"%s\" is not a kind: raw, http or exec", text);
}

static int
read_type(const char *text, enum idem_type *type)
{
    if (!text || idem__type_parse(idem_text(text), type))
        return -1;
    return cli_usage_error("\"%s\" is not a type: request, token, lock or "
                           "worker",
                           text);
}

int
cli_check_time(const char *option, const int64_t *ms)
{
    return *ms == 0 ? cli_usage_error("%s 0 makes no sense: give at least 1ms",
                                      option)
                    : -1;
}

/* ---- printing --------------------------------------------------------- */

static bool
shows_record(enum idem_verdict verdict)
{
    return verdict != IDEM_V_MISMATCH && verdict != IDEM_V_STALE &&
           verdict != IDEM_V_ABSENT && verdict != IDEM_V_DUPLICATE &&
           verdict != IDEM_V_UNKNOWN && verdict != IDEM_V_BUSY &&
           verdict != IDEM_V_DOUBT;
}

static bool
shows_result(const struct idem_answer *answer)
{
    return answer->verdict == IDEM_V_REPLAY ||
           answer->verdict == IDEM_V_FINISHED ||
           answer->verdict == IDEM_V_RECORD;
}

static json_t *
answer_json(const struct idem_answer *answer)
{
    const struct idem_record *r = answer->record;
    json_t *object = shows_record(answer->verdict)
                         ? cli_json_record(r, answer->verdict == IDEM_V_RECORD,
                                           shows_result(answer))
                         : json_object();

    json_object_set_new(object, "verdict",
                        json_string(idem_verdict_name(answer->verdict)));
    if (answer->verdict == IDEM_V_BUSY)
        json_object_set_new(object, "retry_after_ms",
                            json_integer(answer->retry_after_ms));
    if (answer->verdict == IDEM_V_DOUBT)
        json_object_set_new(object, "since", json_integer(r->lease_until));
    return object;
}

static void
print_result(const struct idem_record *r)
{
    size_t shown = r->result.len < SHOWN_MAX ? r->result.len : SHOWN_MAX;

    if (r->flags & IDEM_FLAG_NOT_REPLAYABLE) {
        printf("result: was too large to keep\n");
        return;
    }
    if (r->result.len == 0)
        return;
    printf("result: ");
    cli_print_safe(stdout, (struct idem_bytes){r->result.data, shown});
    if (shown < r->result.len)
        printf("... (%zu bytes; --print result writes them all)",
               r->result.len);
    putchar('\n');
}

static void
print_record(const struct idem_record *r)
{
    char time[CLI_TIME_LEN];

    printf("type: %s\nscope: ", idem_type_name(r->type));
    cli_print_safe(stdout, r->scope);
    printf("\nid: ");
    cli_print_safe(stdout, r->id);
    printf("\nmode: %s\n", idem_mode_name(r->mode));
    if (r->subject.len > 0) {
        printf("subject: ");
        cli_print_safe(stdout, r->subject);
        putchar('\n');
    }
    printf("attempt: %" PRIu32 "\n", r->attempt);
    printf("created: %s\n", cli_time(r->created, time));
    printf("updated: %s\n", cli_time(r->updated, time));
    if (r->flags & IDEM_FLAG_SETTLED)
        printf("settled: yes\n");
}

static void
print_readable(const struct idem_answer *answer)
{
    const struct idem_record *r = answer->record;
    char time[CLI_TIME_LEN];

    printf("%s\n", idem_verdict_name(answer->verdict));
    if (answer->verdict == IDEM_V_BUSY)
        printf("retry after: %" PRId64 " ms\n", answer->retry_after_ms);
    if (answer->verdict == IDEM_V_DOUBT)
        printf("since: %s\n", cli_time(r->lease_until, time));
    if (!shows_record(answer->verdict))
        return;
    if (answer->verdict == IDEM_V_RECORD)
        print_record(r);
    if (r->fence)
        printf("fence: %" PRIu64 "\n", r->fence);
    if (answer->verdict != IDEM_V_STARTED && r->state)
        printf("state: %s\n", idem_state_name(r->state));
    if (r->lease_until)
        printf("lease until: %s\n", cli_time(r->lease_until, time));
    if (r->expires)
        printf("expires: %s\n", cli_time(r->expires, time));
    if (shows_result(answer)) {
        printf("kind: %s\n", idem_kind_name(r->kind));
        print_result(r);
    }
}

/* Print one field alone, for scripts: fence=$(idem begin ... --print fence) */
static void
print_field(const struct idem_answer *answer, const char *field)
{
    json_t *object, *value;

    if (strcmp(field, "result") == 0) {
        fwrite(answer->record->result.data, 1, answer->record->result.len,
               stdout);
        return;
    }
    object = answer_json(answer);
    value = json_object_get(object, field);
    if (json_is_string(value))
        printf("%s\n", json_string_value(value));
    else if (json_is_integer(value))
        printf("%" JSON_INTEGER_FORMAT "\n", json_integer_value(value));
    else if (json_is_boolean(value))
        printf("%s\n", json_is_true(value) ? "true" : "false");
    json_decref(object);
}

/* A field that this verdict does not have prints nothing; the exit code shows
 * the verdict. A field that no verdict has is an error. */
static bool
is_field(const char *field)
{
    static const char *const fields[] = {
        "verdict", "type",        "state",   "mode",           "kind",
        "fence",   "attempt",     "created", "updated",        "lease_until",
        "expires", "replayable",  "settled", "scope",          "id",
        "subject", "fingerprint", "result",  "retry_after_ms", "since",
    };

    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
        if (strcmp(fields[i], field) == 0)
            return true;
    }
    return false;
}

void
cli_print_answer(const struct idem_answer *answer, const char *field)
{
    if (field)
        print_field(answer, field);
    else if (cli_json)
        cli_json_print(answer_json(answer));
    else
        print_readable(answer);
}

/* ---- running ---------------------------------------------------------- */

/* An engine does not treat a lease as ended before it has watched it for its
 * full length, and the engine of this process has just started. If the record
 * is busy for that reason, returns how long it takes in ms; 0 if somebody holds
 * a running lease. */
static int64_t
watch_ms(struct idem_engine *engine, const struct idem_op *op)
{
    struct idem_op get = {
        .verb = IDEM_GET, .type = op->type, .scope = op->scope, .id = op->id};
    struct idem_answer answer = {0};
    struct idem__stats stats;
    int64_t ms = 0;

    if (idem__do_verb(engine, &get, false, &answer, NULL) == IDEM_OK &&
        answer.verdict == IDEM_V_RECORD) {
        const struct idem_record *r = answer.record;

        idem__stats(engine, &stats);
        if (r->lease_until > 0 && r->lease_until <= stats.now_ms)
            ms = r->lease_until - r->updated + WATCH_MORE_MS;
    }
    idem_answer_clear(&answer);
    return ms;
}

/* How much longer to wait. SETTLE is for records that nobody works on any more,
 * so it waits without --wait. */
static int64_t
patience_for_lease(const struct cli_verb *verb, struct idem_engine *engine,
                   const struct idem_op *op)
{
    int64_t ms = 0;
    bool waits;

    if (verb->patience_ms == 0 && op->wait_ms == 0 &&
        cli_store_url(&verb->where))
        ms = watch_ms(engine, op);
    waits = op->verb == IDEM_SETTLE && ms <= WATCH_MOST_MS;
    if (ms > 0 && waits)
        fprintf(stderr,
                "idem: the lease is over by the clock; without a server it is "
                "watched for %lld s before that counts\n",
                (long long)(ms + 999) / 1000);
    else if (ms > 0)
        fprintf(stderr,
                "idem: the lease is over by the clock, but this process has to "
                "watch it for as long as it lasts: give --wait %llds, or ask a "
                "server\n",
                (long long)(ms + 999) / 1000);
    return waits ? ms : 0;
}

/* Run the op once, or until it is no longer busy or the wait is over. */
static enum idem_status
run_patiently(const struct cli_verb *verb, struct idem_engine *engine,
              const struct idem_op *op, struct idem_answer *answer,
              struct idem_error *err)
{
    int64_t until = idem__mono_ms() + verb->patience_ms;
    enum idem_status status;
    bool looked = false;

    for (;;) {
        int64_t left = until - idem__mono_ms(), pause;
        struct timespec t;

        status = idem__do_verb(engine, op, false, answer, err);
        if (status == IDEM_OK && answer->verdict == IDEM_V_BUSY && !looked) {
            looked = true;
            until += patience_for_lease(verb, engine, op);
            left = until - idem__mono_ms();
        }
        if (status != IDEM_OK || answer->verdict != IDEM_V_BUSY || left <= 0)
            return status;
        pause = answer->retry_after_ms < left ? answer->retry_after_ms : left;
        pause = pause < 10 ? 10 : pause;
        t = (struct timespec){pause / 1000, pause % 1000 * 1000000};
        nanosleep(&t, NULL);
        idem_answer_clear(answer);
    }
}

/* A server keeps its own audit trail. Without a server this process writes it,
 * if the store is a journal, which has a place for it. */
static void
audit(const char *store, const struct idem_op *op, enum idem_status status,
      const struct idem_answer *answer)
{
    const struct passwd *user = getpwuid(getuid());
    struct audit_source source = {0};
    struct audit *trail = NULL;
    struct idem_error err;
    char file[4096] = "";

    if (store)
        audit_default_file(store, file, sizeof(file));
    if (!file[0])
        return;
    snprintf(source.who, sizeof(source.who), "%s",
             user ? user->pw_name : "unknown");
    snprintf(source.from, sizeof(source.from), "uid=%u pid=%d",
             (unsigned)getuid(), (int)getpid());
    if (audit_open(file, INT64_MAX, &trail, &err) == IDEM_OK)
        audit_add(trail, NULL,
                  &(struct audit_event){&source, "cli", op, status, answer});
    else
        fprintf(stderr, "idem: %s\n", err.text);
    audit_close(trail);
}

enum idem_status
cli_do_verb(const struct cli_verb *verb, struct idem_engine *engine,
            const struct idem_op *op, struct idem_answer *answer,
            struct idem_error *err)
{
    enum idem_status status = run_patiently(verb, engine, op, answer, err);

    if (server_op_operates(op))
        audit(cli_store_url(&verb->where), op, status, answer);
    return status;
}

int
cli_run_verb(const struct cli_verb *verb, struct idem_op *op)
{
    struct idem_engine *engine = NULL;
    struct idem_answer answer = {0};
    struct idem_error err = {0};
    enum idem_status status;
    int code;

    if (verb->print && !is_field(verb->print))
        return cli_usage_error("--print \"%s\" is not a field of an answer",
                               verb->print);
    if (op->type == 0) {
        code = read_type(verb->type, &op->type);
        if (code >= 0)
            return code;
    }
    status = cli_engine_open(&verb->where, &engine, &err);
    if (status == IDEM_OK)
        status = cli_do_verb(verb, engine, op, &answer, &err);
    if (status != IDEM_OK) {
        err.status = status;
        code = cli_fail(&err);
    } else {
        code = cli_exit_verdict(answer.verdict);
        cli_print_answer(&answer, verb->print);
    }
    idem_answer_clear(&answer);
    idem_close(engine);
    return code;
}

/* ---- verbs without options of their own ---------------------------------- */

static int
read_lease(const char *text, int64_t *lease_ms)
{
    char flaw[IDEM__TIME_FLAW_LEN];

    if (!idem__units_parse(IDEM__UNIT_TIME, text, lease_ms))
        return cli_usage_error("the lease \"%s\" %s", text,
                               idem__time_flaw(text, flaw));
    return *lease_ms > 0 ? -1 : cli_usage_error("a lease is at least 1ms");
}

int
cli_plain_verb(enum idem_verb which, const char *usage, const char *about,
               int argc, char **argv)
{
    struct cli_verb verb = {0};
    const char *reason = NULL, *fence = NULL;
    struct cli_option options[] = {CLI_VERB_OPTIONS(&verb),
                                   CLI_TYPE_OPTION(&verb),
                                   CLI_REASON_OPTION(&reason),
                                   CLI_FENCE_OPTION(&fence),
                                   {0}};
    size_t wanted = which == IDEM_RENEW ? 4 : which == IDEM_RELEASE ? 3 : 2;
    const struct cli_syntax syntax = {.usage = usage,
                                      .about = about,
                                      .options = options,
                                      .min_args = wanted,
                                      .max_args = wanted};
    struct idem_op op = {.verb = which};
    char **args;
    int code;

    if (which != IDEM_FORGET) /* only FORGET is an operator's verb */
        options[sizeof(options) / sizeof(options[0]) - 3] =
            (struct cli_option){0};
    code = cli_parse_key(&syntax, argc, argv, &args, &op);
    if (code < 0 && wanted > 2)
        code = cli_read_fence(args[2], &op.fence);
    if (code < 0 && fence)
        code = cli_read_fence(fence, &op.fence);
    if (code < 0 && wanted > 3)
        code = read_lease(args[3], &op.lease_ms);
    op.subject = idem_text(reason);
    return code >= 0 ? code : cli_run_verb(&verb, &op);
}
