/*
 * print_answer.c - print the answer to a verb: for people, as JSON, or one
 * field.
 */
#include "verb.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* A result on a terminal is cut at this length; --print result prints all of
 * it. */
#define SHOWN_MAX 4096

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
answer_json(const struct idem_answer *answer, const struct cli_more *more)
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
    if (more->doubt_ms >= 0)
        json_object_set_new(object, "doubt_ms", json_integer(more->doubt_ms));
    if (answer->verdict == IDEM_V_SETTLED)
        json_object_set_new(object, "was_absent",
                            json_boolean(more->was_absent));
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
print_readable(const struct idem_answer *answer, const struct cli_more *more)
{
    const struct idem_record *r = answer->record;
    char time[CLI_TIME_LEN], age[CLI_AGE_LEN];

    printf("%s\n", idem_verdict_name(answer->verdict));
    if (answer->verdict == IDEM_V_BUSY)
        printf("retry after: %" PRId64 " ms\n", answer->retry_after_ms);
    if (answer->verdict == IDEM_V_DOUBT)
        printf("since: %s\n", cli_time(r->lease_until, time));
    if (cli_is_terminal() && cli_advice(answer->verdict))
        printf("(%s)\n", cli_advice(answer->verdict));
    if (!shows_record(answer->verdict))
        return;
    if (answer->verdict == IDEM_V_RECORD)
        print_record(r);
    if (r->fence)
        printf("fence: %" PRIu64 "\n", r->fence);
    if (answer->verdict != IDEM_V_STARTED && r->state)
        printf("state: %s\n", idem_state_name(r->state));
    if (more->doubt_ms >= 0)
        printf("%sDOUBT%s: the lease ended %s ago, and the outcome is "
               "unknown\n",
               cli_colour(CLI_RED), cli_colour(CLI_PLAIN),
               cli_age(more->doubt_ms, age));
    if (r->lease_until)
        printf("lease until: %s\n", cli_time(r->lease_until, time));
    if (r->state == IDEM_STATE_EXECUTING)
        printf("expires: never while it is in progress%s\n",
               idem__may_come_into_doubt(r) ? " or in doubt" : "");
    else if (r->expires)
        printf("expires: %s\n", cli_time(r->expires, time));
    if (shows_result(answer)) {
        printf("kind: %s\n", idem_kind_name(r->kind));
        print_result(r);
    }
}

/* Print one field alone, for scripts: fence=$(idem begin ... --print fence) */
static void
print_field(const struct idem_answer *answer, const struct cli_more *more,
            const char *field)
{
    json_t *object, *value;

    if (strcmp(field, "result") == 0) {
        fwrite(answer->record->result.data, 1, answer->record->result.len,
               stdout);
        return;
    }
    object = answer_json(answer, more);
    value = cli_json_whole() ? json_object_get(object, field) : NULL;
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
bool
cli_is_field(const char *field)
{
    static const char *const fields[] = {
        "verdict",  "type",        "state",   "mode",           "kind",
        "fence",    "attempt",     "created", "updated",        "lease_until",
        "expires",  "replayable",  "settled", "scope",          "id",
        "subject",  "fingerprint", "result",  "retry_after_ms", "since",
        "doubt_ms", "was_absent",
    };

    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
        if (strcmp(fields[i], field) == 0)
            return true;
    }
    return false;
}

void
cli_print_answer(const struct idem_answer *answer, const struct cli_more *more,
                 const char *field)
{
    static const struct cli_more nothing = {.doubt_ms = -1};

    if (!more)
        more = &nothing;
    if (field)
        print_field(answer, more, field);
    else if (cli_json)
        cli_json_print(answer_json(answer, more));
    else
        print_readable(answer, more);
    if ((answer->verdict == IDEM_V_STALE ||
         answer->verdict == IDEM_V_MISMATCH) &&
        !field && !cli_json && !cli_is_terminal())
        fprintf(stderr, "idem: %s\n", cli_advice(answer->verdict));
}
