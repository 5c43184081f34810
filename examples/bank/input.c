/*
 * input.c - checks the requests, and writes the responses as HTTP and JSON.
 */
#include "bank.h"

#include <openssl/sha.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define AMOUNT_MAX INT64_C(1000000000000)
#define TEXT_MAX_LEN 64

void
say(struct reply *reply, unsigned status, const char *format, ...)
{
    va_list args;

    reply->status = status;
    va_start(args, format);
    vsnprintf(reply->text, sizeof(reply->text), format, args);
    va_end(args);
    reply->json = reply->text[0] == '{';
}

/* ---- what was asked ---------------------------------------------------- */

static json_t *
field(const struct request *request, const char *name)
{
    json_t *value = json_object_get(request->body, name);

    return value ? value : json_object_get(request->query, name);
}

bool
read_number(const struct request *request, const char *name, int64_t *number,
            struct reply *reply)
{
    json_t *value = field(request, name);
    const char *text = json_string_value(value);
    char *end = NULL;

    *number = text ? strtoll(text, &end, 10) : json_integer_value(value);
    if ((text ? *text && !*end : json_is_integer(value)) && *number >= 1 &&
        *number <= AMOUNT_MAX)
        return true;
    say(reply, 400,
        "{\"error\":\"%s: a whole number from 1 is needed, in the body or "
        "behind ?\",\"retryable\":false}",
        name);
    return false;
}

const char *
text_or(const struct request *request, const char *name, const char *otherwise)
{
    const char *text = json_string_value(field(request, name));

    return text && *text && strlen(text) <= TEXT_MAX_LEN ? text : otherwise;
}

bool
read_text(const struct request *request, const char *name, const char **text,
          struct reply *reply)
{
    *text = text_or(request, name, NULL);
    if (*text)
        return true;
    say(reply, 400,
        "{\"error\":\"%s: a text of 1 to %d bytes is needed\","
        "\"retryable\":false}",
        name, TEXT_MAX_LEN);
    return false;
}

void
fingerprint(uint8_t into[IDEM_FINGERPRINT_LEN], const char *format, ...)
{
    char text[512];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    SHA256((const unsigned char *)text, strlen(text), into);
}

/* ---- what is answered -------------------------------------------------- */

void
say_error(struct reply *reply, const struct idem_error *err)
{
    bool lost = err->status == IDEM_ERR_LOST;
    bool wrong = err->status == IDEM_ERR_INVALID;

    fprintf(stderr, "bank: %s\n", err->text);
    say(reply,
        lost    ? 504
        : wrong ? 400
                : 503,
        "{\"error\":\"%s\",\"retryable\":%s}", idem_status_name(err->status),
        lost || wrong ? "false" : "true");
}

void
say_answer(struct reply *reply, const struct idem_answer *answer)
{
    const struct idem_record *record = answer->record;

    switch (answer->verdict) {
    case IDEM_V_STARTED:
    case IDEM_V_REPLAY:
        if (record->result.len == 0)
            say(reply, record->state == IDEM_STATE_SUCCEEDED ? 200 : 409,
                "{\"settled\":\"%s\"}",
                idem_state_name((enum idem_state)record->state));
        else
            say(reply, record->state == IDEM_STATE_SUCCEEDED ? 200 : 409,
                "%.*s", (int)record->result.len,
                (const char *)record->result.data);
        break;
    case IDEM_V_SETTLED:
        say(reply, 200, "{\"settled\":\"%s\"}",
            idem_state_name((enum idem_state)record->state));
        break;
    case IDEM_V_UNKNOWN:
        say(reply, 403, "{\"error\":\"no such ticket\"}");
        break;
    case IDEM_V_MISMATCH:
        say(reply, 422, "{\"error\":\"mismatch\",\"retryable\":false}");
        break;
    default: /* busy, doubt */
        say(reply, 409, "{\"error\":\"%s\"}",
            idem_verdict_name(answer->verdict));
    }
}

/* A number that JavaScript would round is a text. */
static json_t *
value_json(const struct idem_sql_value *value)
{
    char digits[24];

    if (value->type == IDEM_SQL_NULL)
        return json_null();
    if (value->type != IDEM_SQL_INT)
        return json_stringn(value->bytes.data, value->bytes.len);
    if (value->number < INT64_C(1) << 53)
        return json_integer(value->number);
    snprintf(digits, sizeof(digits), "%lld", (long long)value->number);
    return json_string(digits);
}

static json_t *
row_json(const struct idem_sql_row *row)
{
    json_t *object = json_object();

    for (size_t i = 0; i < row->count; i++)
        json_object_set_new(object, row->columns[i],
                            value_json(&row->values[i]));
    return object;
}

static void
say_json(struct reply *reply, unsigned status, json_t *object)
{
    char *text = json_dumps(object, JSON_COMPACT);

    say(reply, status, "%s", text ? text : "{}");
    free(text);
    json_decref(object);
}

void
say_row(struct reply *reply, const struct idem_sql_row *row)
{
    if (row->count == 0)
        say(reply, 404, "{\"error\":\"no such thing\"}");
    else
        say_json(reply, 200, row_json(row));
}

void
say_verdict(struct reply *reply, enum idem_sql_verdict verdict,
            const struct idem_sql_row *row)
{
    bool good = verdict == IDEM_SQL_IS_FIRST ||
                verdict == IDEM_SQL_IS_DUPLICATE ||
                verdict == IDEM_SQL_IS_EMPTY;
    json_t *object = json_object();

    json_object_set_new(object, "verdict",
                        json_string(idem_sql_verdict_name(verdict)));
    if (row && row->count > 0 && verdict != IDEM_SQL_IS_FIRST)
        json_object_set_new(object, "is", row_json(row));
    say_json(reply, good ? 200 : 409, object);
}
