/*
 * http_openapi.c - /openapi.json, made from the tables of routes and fields.
 *
 * If memory runs out, a function returns NULL, and json_object_set_new and
 * similar functions refuse it. `failed` records that, so the code needs no
 * other checks.
 */
#include "http.h"

#include <idem/idem.h>
#include <string.h>

struct maker {
    bool failed;
};

static json_t *
set(struct maker *make, json_t *object, const char *name, json_t *value)
{
    if (json_object_set_new(object, name, value) != 0)
        make->failed = true;
    return object;
}

static json_t *
text(struct maker *make, const char *name, const char *value)
{
    return set(make, json_object(), name, json_string(value));
}

static void
append(struct maker *make, json_t *array, json_t *value)
{
    if (json_array_append_new(array, value) != 0)
        make->failed = true;
}

static json_t *
words(struct maker *make, const char *list)
{
    json_t *array = json_array();

    while (*list) {
        size_t len = strcspn(list, " ");

        append(make, array, json_stringn(list, len));
        list += len + (list[len] == ' ');
    }
    return array;
}

/* ---- schemas --------------------------------------------------------- */

static json_t *
field_schema(struct maker *make, const struct http_field_type *field)
{
    json_t *schema = json_object();

    switch (field->form) {
    case HTTP_INTEGER:
        set(make, schema, "type", json_string("integer"));
        set(make, schema, "format", json_string("int64"));
        set(make, schema, "minimum", json_integer(field->min));
        set(make, schema, "maximum", json_integer(field->max));
        break;
    case HTTP_FLAG:
        set(make, schema, "type", json_string("boolean"));
        break;
    case HTTP_WORD:
        set(make, schema, "type", json_string("string"));
        set(make, schema, "enum", words(make, field->words));
        break;
    case HTTP_HEX:
        set(make, schema, "type", json_string("string"));
        set(make, schema, "pattern",
            json_sprintf("^[0-9a-fA-F]{%d}$", (int)(2 * field->max)));
        break;
    case HTTP_BASE64:
        set(make, schema, "type", json_string("string"));
        set(make, schema, "format", json_string("byte"));
        break;
    case HTTP_TEXT:
        set(make, schema, "type", json_string("string"));
        set(make, schema, "minLength", json_integer(field->min > 0));
        set(make, schema, "maxLength", json_integer(field->max));
        break;
    }
    return set(make, schema, "description", json_string(field->about));
}

/* The values of each verdict: "name:type"; a capital letter means an array, a
 * question mark an optional value. */
#define OUTCOME_VALUES                                                         \
    "state:s kind:s expires:i replayable:b result:s? result_base64:s? "        \
    "masked_bytes:i?"

static const struct {
    const char *verdict, *values, *about;
} verdicts[] = {
    {"started", "fence:i lease_until:i expires:i attempt:i",
     "do the work now, then finish it with this fence"},
    {"replay", OUTCOME_VALUES, "done before: here is the stored result"},
    {"busy", "retry_after_ms:i",
     "another caller is working on it; try again later"},
    {"doubt", "since:i", "the lease is over, the outcome unknown"},
    {"mismatch", "", "this id was used for a different request"},
    {"ok", "expires:i? lease_until:i?",
     "finished, released, renewed, forgotten"},
    {"finished", OUTCOME_VALUES, "this fence already finished differently"},
    {"stale", "", "this fence does not hold the record"},
    {"settled", "state:s expires:i", "the outcome is fixed now"},
    {"record", "record:r", "the record"},
    {"absent", "", "there is no such record"},
    {"issued", "token:s tokens:S expires:i", "the tokens exist now"},
    {"redeemed", "token:s?",
     "this call used the token; token is the new one, with next"},
    {"duplicate", "", "redeemed before"},
    {"unknown", "", "no such token"},
    {"ids", "ids:S", "new ids"},
    {"records", "cursor:s records:R", "a part of the listing"},
    {"entries", "entries:E", "actions of operators, oldest first"},
    {"doubts", "count:i looked:b records:R",
     "the oldest doubts, and how many there are; looked is false until the "
     "first scan of the store has ended"},
    {"proposals", "proposals:O",
     "actions that wait for a second operator, oldest first; without results "
     "if the credential may not read them"},
    {"explained", "kind:s time:i worker:i sequence:i ends:i version:i",
     "the parts of the id; -1: an id of this kind does not have this part"},
    {"stats", "names:S samples:N facts:o",
     "names has the name of each number in a row of samples; null: unknown"},
    {"routes", "routes:O figures:O",
     "the policy of each route, and the gateway's counters by route"},
    {"consumers", "watched:b consumers:O",
     "the last report of each consumer; watched is false if the server was "
     "started without --consumers"},
    {"waiters", "count:i waiters:O",
     "the waiting callers of each lock, in their order; count is the number of "
     "all"},
    {"segments", "segments:O",
     "left: ids of the current range; spare: ids of the next range; both need "
     "no store. given: ids since this name is in memory"},
    {"schemes", "schemes:O",
     "schemes of the playground. actions: the actions of a client; breaks: "
     "those with which the unprotected scheme fails"},
    {"played",
     "scheme:s action:s protected:b actors:S messages:O replies:o tables:O "
     "records:R effects:i wanted:i wrong:b",
     "the events in the sandbox; wrong: the work was not done as often as "
     "wanted"},
    {"session",
     "login:b name:s cookie:b rights:S reason:b playground:b version:s",
     "login: credentials are required; name is empty if no user is logged in"},
};

#define RECORD_VALUES                                                          \
    "type:s scope:s? scope_base64:s? id:s? id_base64:s? state:s mode:s "       \
    "fence:i attempt:i created:i updated:i lease_until:i expires:i settled:b " \
    "redeemed:b subject:s? subject_base64:s? fingerprint:s? kind:s? "          \
    "replayable:b? result:s? result_base64:s? masked_bytes:i?"

#define ENTRY_VALUES                                                           \
    "time:s who:s proposed_by:s? from:s surface:s verb:s outcome:s verdict:s " \
    "before:s "                                                                \
    "after:s scope:s? scope_base64:s? id:s? id_base64:s? reason:s? "           \
    "reason_base64:s?"

static json_t *
ref(struct maker *make, const char *name)
{
    return set(make, json_object(), "$ref",
               json_sprintf("#/components/schemas/%s", name));
}

static json_t *object_schema(struct maker *make, const char *values);

static json_t *
value_schema(struct maker *make, char type)
{
    json_t *schema;

    switch (type) {
    case 'i':
        schema = text(make, "type", "integer");
        return set(make, schema, "format", json_string("int64"));
    case 'b':
        return text(make, "type", "boolean");
    case 'r':
        return ref(make, "Record");
    case 'R':
        schema = text(make, "type", "array");
        return set(make, schema, "items", ref(make, "Record"));
    case 'E':
        schema = text(make, "type", "array");
        return set(make, schema, "items", object_schema(make, ENTRY_VALUES));
    case 'o':
        return text(make, "type", "object");
    case 'O':
        schema = text(make, "type", "array");
        return set(make, schema, "items", text(make, "type", "object"));
    case 'N':
        schema = set(
            make, text(make, "type", "array"), "items",
            set(make, text(make, "type", "number"), "nullable", json_true()));
        return set(make, text(make, "type", "array"), "items", schema);
    case 'S':
        schema = text(make, "type", "array");
        return set(make, schema, "items", text(make, "type", "string"));
    default:
        return text(make, "type", "string");
    }
}

/* An object with these values. Only `result` can be null, if it was too large
 * to keep. */
static json_t *
object_schema(struct maker *make, const char *values)
{
    json_t *object = json_object(), *required = json_array();
    json_t *whole = text(make, "type", "object");

    while (*values) {
        size_t len = strcspn(values, ":");
        char name[32];
        json_t *schema;

        memcpy(name, values, len);
        name[len] = 0;
        schema = value_schema(make, values[len + 1]);
        if (strcmp(name, "result") == 0)
            set(make, schema, "nullable", json_true());
        set(make, object, name, schema);
        values += len + 2;
        if (*values == '?')
            values++;
        else
            append(make, required, json_string(name));
        values += *values == ' ';
    }
    set(make, whole, "properties", object);
    return set(make, whole, "required", required);
}

static json_t *
verdict_schema(struct maker *make, size_t i)
{
    json_t *schema = object_schema(make, verdicts[i].values);
    json_t *verdict = text(make, "type", "string");

    set(make, verdict, "enum", words(make, verdicts[i].verdict));
    set(make, json_object_get(schema, "properties"), "verdict", verdict);
    append(make, json_object_get(schema, "required"), json_string("verdict"));
    return set(make, schema, "description", json_string(verdicts[i].about));
}

static json_t *
problem_schema(struct maker *make, const char *base)
{
    json_t *schema = text(make, "type", "object");
    json_t *values = json_object();
    json_t *types = json_array();
    json_t *type = text(make, "type", "string");
    json_t *classes = json_array();

    for (int i = 0; i < IDEM_PROBLEM_SERVER_COUNT; i++)
        append(make, types,
               json_sprintf("%s%s", base, idem__problem_type(i)->name));
    set(make, type, "enum", types);
    set(make, type, "format", json_string("uri-reference"));
    set(make, values, "type", type);
    set(make, values, "title", text(make, "type", "string"));
    set(make, values, "status", text(make, "type", "integer"));
    set(make, values, "detail", text(make, "type", "string"));
    set(make, values, "retryable", text(make, "type", "boolean"));
    for (int i = 0; i < IDEM_CLASS_COUNT; i++)
        append(make, classes, json_string(idem__class_name(i)));
    set(make, values, "class",
        set(make, text(make, "type", "string"), "enum", classes));
    set(make, schema, "required",
        words(make, "type title status retryable class"));
    return set(make, schema, "properties", values);
}

static json_t *
content(struct maker *make, const char *media, json_t *schema)
{
    return set(make, json_object(), "content",
               set(make, json_object(), media,
                   set(make, json_object(), "schema", schema)));
}

/* The header Retry-After, which some answers have. */
static void
retry_after(struct maker *make, json_t *response)
{
    json_t *header =
        set(make, json_object(), "schema", text(make, "type", "integer"));

    set(make, header, "description",
        json_string("seconds after which to ask again, where that may help"));
    set(make, response, "headers",
        set(make, json_object(), "Retry-After", header));
}

static json_t *
problem_response(struct maker *make)
{
    json_t *problem =
        content(make, "application/problem+json", ref(make, "Problem"));

    retry_after(make, problem);
    return set(make, problem, "description",
               json_string("see docs/problems.md"));
}

static json_t *
components(struct maker *make, const char *base)
{
    json_t *schemas = json_object();
    json_t *object = json_object();
    json_t *security = json_object();
    json_t *basic = text(make, "type", "http");
    json_t *bearer = text(make, "type", "http");

    for (size_t i = 0; i < sizeof(verdicts) / sizeof(verdicts[0]); i++)
        set(make, schemas, verdicts[i].verdict, verdict_schema(make, i));
    set(make, schemas, "Record", object_schema(make, RECORD_VALUES));
    set(make, schemas, "Problem", problem_schema(make, base));
    set(make, basic, "scheme", json_string("basic"));
    set(make, bearer, "scheme", json_string("bearer"));
    set(make, bearer, "bearerFormat", json_string("name:secret"));
    set(make, security, "basic", basic);
    set(make, security, "bearer", bearer);
    set(make, object, "schemas", schemas);
    set(make, object, "responses",
        set(make, json_object(), "Problem", problem_response(make)));
    return set(make, object, "securitySchemes", security);
}

/* ---- operations ------------------------------------------------------ */

static json_t *
answer_schema(struct maker *make, const struct http_route *route)
{
    const char *list = route->answers;
    json_t *any;

    if (strcmp(list, "application/json") == 0)
        return text(make, "type", "object");
    any = json_array();
    while (*list) {
        size_t len = strcspn(list, " ");
        char word[32];

        memcpy(word, list, len);
        word[len] = 0;
        append(make, any, ref(make, word));
        list += len + (list[len] == ' ');
    }
    return set(make,
               set(make, json_object(), "discriminator",
                   text(make, "propertyName", "verdict")),
               "oneOf", any);
}

/* Can a request to this route get this problem? */
static bool
may_end_in(const struct http_route *route, enum idem__problem problem)
{
    bool open = http_is_open(route->action);

    switch (problem) {
    case IDEM_PROBLEM_NOT_FOUND:
    case IDEM_PROBLEM_METHOD:
        return false; /* a listed route exists and has this method */
    case IDEM_PROBLEM_UNAUTHORIZED:
    case IDEM_PROBLEM_FORBIDDEN:
        return !open;
    case IDEM_PROBLEM_INVALID:
    case IDEM_PROBLEM_ORIGIN:
    case IDEM_PROBLEM_HOST:
    case IDEM_PROBLEM_TOO_LARGE:
    case IDEM_PROBLEM_MEDIA_TYPE:
    case IDEM_PROBLEM_CLOSED:
        return true;
    default:
        return route->action != HTTP_HEALTH && route->action != HTTP_OPENAPI &&
               route->action != HTTP_PROBLEM && route->action != HTTP_PAGE;
    }
}

static json_t *
problem_ref(struct maker *make)
{
    return text(make, "$ref", "#/components/responses/Problem");
}

static json_t *
responses(struct maker *make, const struct http_route *route)
{
    bool plain = strncmp(route->answers, "text/", 5) == 0;
    json_t *answer =
        plain ? content(make, route->answers, text(make, "type", "string"))
              : content(make, "application/json", answer_schema(make, route));
    json_t *object = json_object();

    set(make, answer, "description", json_string(route->about));
    if (strstr(route->answers, "busy"))
        retry_after(make, answer);
    set(make, object, "200", answer);
    for (int i = 0; i < IDEM_PROBLEM_SERVER_COUNT; i++) {
        char status[8];

        snprintf(status, sizeof(status), "%u", idem__problem_type(i)->status);
        if (may_end_in(route, (enum idem__problem)i))
            set(make, object, status, problem_ref(make));
    }
    return set(make, object, "default", problem_ref(make));
}

static json_t *
parameter(struct maker *make, const char *name, const char *in, bool required,
          json_t *schema)
{
    json_t *object = text(make, "in", in);

    set(make, object, "name", json_string(name));
    set(make, object, "required", json_boolean(required));
    return set(make, object, "schema", schema);
}

static void
path_parameters(struct maker *make, const char *path, json_t *array)
{
    const char *from;

    while ((from = strchr(path, '{'))) {
        size_t len = strcspn(++from, "}");
        json_t *schema = text(make, "type", "string");
        char name[32];

        memcpy(name, from, len);
        name[len] = 0;
        set(make, schema, "minLength", json_integer(1));
        append(make, array, parameter(make, name, "path", true, schema));
        path = from + len;
    }
}

static void
fields(struct maker *make, const struct http_route *route, json_t *parameters,
       json_t *body, json_t *required)
{
    for (int i = 0; i < HTTP_FIELD_COUNT; i++) {
        const struct http_field_type *field = &http_fields[i];
        bool needed = route->needs >> i & 1;

        if (!(route->takes >> i & 1))
            continue;
        if (!route->body) {
            append(make, parameters,
                   parameter(make, field->name, "query", needed,
                             field_schema(make, field)));
            continue;
        }
        set(make, body, field->name, field_schema(make, field));
        if (needed)
            append(make, required, json_string(field->name));
    }
}

static json_t *
request_body(struct maker *make, json_t *body, json_t *required)
{
    json_t *schema = text(make, "type", "object");
    bool needed = json_array_size(required) > 0;
    json_t *object;

    set(make, schema, "properties", body);
    set(make, schema, "additionalProperties", json_false());
    if (needed)
        set(make, schema, "required", required);
    else
        json_decref(required);
    object = content(make, "application/json", schema);
    return set(make, object, "required", json_boolean(needed));
}

static json_t *
operation(struct maker *make, const struct http_route *route)
{
    json_t *object = text(make, "operationId", route->name);
    json_t *parameters = json_array();
    json_t *body = json_object(), *required = json_array();

    set(make, object, "summary", json_string(route->about));
    path_parameters(make, route->path, parameters);
    fields(make, route, parameters, body, required);
    set(make, object, "parameters", parameters);
    if (route->body) {
        set(make, object, "requestBody", request_body(make, body, required));
    } else {
        json_decref(body);
        json_decref(required);
    }
    return set(make, object, "responses", responses(make, route));
}

static json_t *
paths(struct maker *make, bool console)
{
    json_t *object = json_object();

    for (size_t i = 0; i < http_route_count; i++) {
        const struct http_route *route = &http_routes[i];
        json_t *item = json_object_get(object, route->path);
        char method[8];
        size_t len = 0;

        if (http_of_console(route->action) && !console)
            continue;
        if (!item) {
            set(make, object, route->path, json_object());
            item = json_object_get(object, route->path);
        }
        for (; route->method[len]; len++)
            method[len] = (char)(route->method[len] | 0x20);
        method[len] = 0;
        set(make, item, method, operation(make, route));
    }
    return object;
}

json_t *
http_openapi(const char *base, bool console)
{
    struct maker make = {false};
    json_t *object = text(&make, "openapi", "3.0.3");
    json_t *info = text(&make, "title", "idem");
    json_t *security = json_array();

    set(&make, info, "version", json_string(IDEM_VERSION));
    set(&make, info, "description",
        json_string("Run each request once, however often it arrives; every "
                    "duplicate gets the same response."));
    append(&make, security, json_object()); /* without a login */
    append(&make, security, set(&make, json_object(), "basic", json_array()));
    append(&make, security, set(&make, json_object(), "bearer", json_array()));
    set(&make, object, "info", info);
    set(&make, object, "security", security);
    set(&make, object, "paths", paths(&make, console));
    set(&make, object, "components", components(&make, base));
    if (!make.failed)
        return object;
    json_decref(object);
    return NULL;
}
