/*
 * http_call.c - parse a request's path, query and body into an op.
 *
 * Unknown fields are refused. A misspelled field would otherwise silently get
 * its default, and the caller who named it wanted another lease or mode than
 * the default.
 */
#include "../core/server.h"
#include "http.h"

#include <assert.h>
#include <errno.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#define SCAN_COUNT 100

static enum idem_status
wrong(struct idem_error *err, const char *name, const char *what)
{
    return idem__fail(err, IDEM_ERR_INVALID, "%s: %s", name, what);
}

/* ---- one value ------------------------------------------------------- */

/* The parsed value of a field. */
struct value {
    int64_t number;
    struct idem_bytes bytes;
    bool flag;
};

static enum idem_status
read_base64(struct http_call *call, const char *name, struct value *value,
            struct idem_error *err)
{
    size_t room = value->bytes.len / 4 * 3 + 3, len;
    uint8_t *out = idem_arena_take(&call->memory, room);
    const char *end;

    if (!out)
        return idem__fail(err, IDEM_ERR_MEMORY, "out of memory");
    if (sodium_base642bin(out, room, value->bytes.data, value->bytes.len, NULL,
                          &len, &end, sodium_base64_VARIANT_ORIGINAL) != 0 ||
        end != (const char *)value->bytes.data + value->bytes.len)
        return wrong(err, name,
                     "not base64 (the ordinary alphabet, with padding)");
    value->bytes = (struct idem_bytes){out, len};
    return IDEM_OK;
}

static enum idem_status
read_hex(struct http_call *call, const struct http_field_type *type,
         struct value *value, struct idem_error *err)
{
    size_t want = (size_t)type->max, len = 0;
    uint8_t *out = idem_arena_take(&call->memory, want);

    if (!out)
        return idem__fail(err, IDEM_ERR_MEMORY, "out of memory");
    if (value->bytes.len != 2 * want ||
        sodium_hex2bin(out, want, value->bytes.data, value->bytes.len, NULL,
                       &len, NULL) != 0 ||
        len != want)
        return idem__fail(err, IDEM_ERR_INVALID, "%s: give %zu hex digits",
                          type->name, 2 * want);
    value->bytes = (struct idem_bytes){out, want};
    return IDEM_OK;
}

static enum idem_status
read_word(const struct http_field_type *type, struct value *value,
          struct idem_error *err)
{
    const char *word = type->words;

    while (*word) {
        size_t len = strcspn(word, " ");

        if (idem__bytes_equal(value->bytes, (struct idem_bytes){word, len}))
            return IDEM_OK;
        word += len + (word[len] == ' ');
    }
    return idem__fail(err, IDEM_ERR_INVALID, "%s: give one of: %s", type->name,
                      type->words);
}

static enum idem_status
check_value(struct http_call *call, const struct http_field_type *type,
            struct value *value, struct idem_error *err)
{
    enum idem_status status = IDEM_OK;

    switch (type->form) {
    case HTTP_INTEGER:
        if (value->number < type->min || value->number > type->max)
            return idem__fail(err, IDEM_ERR_INVALID,
                              "%s: give a whole number from %lld to %lld",
                              type->name, (long long)type->min,
                              (long long)type->max);
        return IDEM_OK;
    case HTTP_FLAG:
        return IDEM_OK;
    case HTTP_HEX:
        return read_hex(call, type, value, err);
    case HTTP_WORD:
        return read_word(type, value, err);
    case HTTP_BASE64:
        status = read_base64(call, type->name, value, err);
        break;
    case HTTP_TEXT:
        break;
    }
    if (status == IDEM_OK && (value->bytes.len < (size_t)type->min ||
                              value->bytes.len > (size_t)type->max))
        return idem__fail(err, IDEM_ERR_INVALID,
                          "%s: has %zu bytes, give %lld to %lld", type->name,
                          value->bytes.len, (long long)type->min,
                          (long long)type->max);
    return status;
}

/* Where fields are kept that are taken as they are; 0: set_field sets it. */
#define AT(member) offsetof(struct http_call, member)
static const size_t places[HTTP_FIELD_COUNT] = {
    [HTTP_FENCE_FIELD] = AT(op.fence),
    [HTTP_SEEN_FIELD] = AT(op.fence),
    [HTTP_RESULT_FIELD] = AT(op.result),
    [HTTP_RESULT_BASE64_FIELD] = AT(op.result),
    [HTTP_LEASE_FIELD] = AT(op.lease_ms),
    [HTTP_TTL_FIELD] = AT(op.ttl_ms),
    [HTTP_WAIT_FIELD] = AT(op.wait_ms),
    [HTTP_LABEL_FIELD] = AT(op.subject),
    [HTTP_REASON_FIELD] = AT(op.subject),
    [HTTP_WHY_FIELD] = AT(op.subject),
    [HTTP_OWNER_FIELD] = AT(op.subject),
    [HTTP_SUBJECT_FIELD] = AT(op.scope),
    [HTTP_PROTECTED_FIELD] = AT(protect),
    [HTTP_NEXT_FIELD] = AT(next),
    [HTTP_IN_SCOPE_FIELD] = AT(filter.scope),
    [HTTP_WITH_ID_FIELD] = AT(filter.id),
    [HTTP_DOUBT_FIELD] = AT(filter.doubt),
    [HTTP_BEFORE_FIELD] = AT(filter.updated_before),
    [HTTP_NAME_FIELD] = AT(name),
    [HTTP_SECRET_FIELD] = AT(secret),
};

static void
put_value(void *at, enum http_form form, const struct value *value)
{
    if (form == HTTP_INTEGER)
        memcpy(at, &value->number, sizeof(value->number)); /* or unsigned */
    else if (form == HTTP_FLAG)
        *(bool *)at = value->flag;
    else
        *(struct idem_bytes *)at = value->bytes;
}

static void
set_field(struct http_call *call, enum http_field field,
          const struct value *value)
{
    struct idem_op *op = &call->op;

    switch (field) {
    case HTTP_OUTCOME_FIELD:
        idem__state_parse(value->bytes, &op->outcome);
        break;
    case HTTP_KIND_FIELD:
        idem__kind_parse(value->bytes, &op->kind);
        break;
    case HTTP_REPLAYABLE_FIELD:
        op->not_replayable = !value->flag;
        break;
    case HTTP_MODE_FIELD:
        idem__mode_parse(value->bytes, &op->mode);
        break;
    case HTTP_TOKEN_FIELD:
        op->type = value->flag ? IDEM_TYPE_TOKEN : op->type;
        break;
    case HTTP_NONCE_FIELD:
        memcpy(call->nonce, value->bytes.data, IDEM_NONCE_LEN);
        op->nonce = call->nonce;
        break;
    case HTTP_FINGERPRINT_FIELD:
        memcpy(call->fingerprint, value->bytes.data, IDEM_FINGERPRINT_LEN);
        op->fingerprint = call->fingerprint;
        break;
    case HTTP_TOKENS_FIELD:
    case HTTP_IDS_FIELD:
    case HTTP_COUNT_FIELD:
    case HTTP_SECONDS_FIELD:
        call->count = (size_t)value->number;
        break;
    case HTTP_CURSOR_FIELD:
        memcpy(call->cursor.text, value->bytes.data, value->bytes.len);
        call->cursor.text[value->bytes.len] = 0;
        break;
    case HTTP_IN_STATE_FIELD:
        idem__state_parse(value->bytes, &call->filter.state);
        break;
    case HTTP_OF_TYPE_FIELD:
        idem__type_parse(value->bytes, &call->filter.type);
        break;
    default:
        assert(places[field] > 0);
        put_value((char *)call + places[field], http_fields[field].form, value);
        break;
    }
}

static enum idem_status
take_field(struct http_call *call, enum http_field field, struct value *value,
           struct idem_error *err)
{
    enum idem_status status =
        check_value(call, &http_fields[field], value, err);
    const uint64_t results = HTTP_HAS(RESULT) | HTTP_HAS(RESULT_BASE64);
    const uint64_t this = UINT64_C(1) << field;

    if (status == IDEM_OK && (this & results) && (call->given & results))
        status = wrong(err, "result_base64", "give this or result, not both");
    if (status == IDEM_OK)
        set_field(call, field, value);
    call->given |= this;
    return status;
}

/* ---- fields of a route ----------------------------------------------- */

static enum http_field
find_field(const struct http_route *route, struct idem_bytes name)
{
    for (int i = 0; i < HTTP_FIELD_COUNT; i++) {
        if ((route->takes >> i & 1) &&
            idem__bytes_equal(name, idem_text(http_fields[i].name)))
            return (enum http_field)i;
    }
    return HTTP_FIELD_COUNT;
}

static enum idem_status
unknown_field(const struct http_route *route, const char *where,
              struct idem_bytes name, struct idem_error *err)
{
    return idem__fail(err, IDEM_ERR_INVALID,
                      "%.*s: %s has no such %s field; /openapi.json has a "
                      "list",
                      (int)(name.len > 60 ? 60 : name.len),
                      (const char *)name.data, route->name, where);
}

static enum idem_status
json_value(const struct http_field_type *type, const json_t *json,
           struct value *value, struct idem_error *err)
{
    *value = (struct value){0};
    if (type->form == HTTP_INTEGER) {
        if (!json_is_integer(json))
            return wrong(err, type->name, "not a whole number");
        value->number = json_integer_value(json);
    } else if (type->form == HTTP_FLAG) {
        if (!json_is_boolean(json))
            return wrong(err, type->name, "give true or false");
        value->flag = json_is_true(json);
    } else {
        if (!json_is_string(json))
            return wrong(err, type->name, "not a string");
        value->bytes = (struct idem_bytes){json_string_value(json),
                                           json_string_length(json)};
    }
    return IDEM_OK;
}

static enum idem_status
read_body(struct http_call *call, struct idem_bytes body,
          struct idem_error *err)
{
    const size_t flags = JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL;
    enum idem_status status = IDEM_OK;
    json_error_t what;
    const char *name;
    json_t *json;

    if (body.len == 0)
        return IDEM_OK;
    idem__json_begin();
    call->body = json_loadb(body.data, body.len, flags, &what);
    if (idem__json_starved())
        return idem__fail(err, IDEM_ERR_MEMORY, "out of memory");
    if (!call->body)
        return idem__fail(err, IDEM_ERR_INVALID,
                          "the body is not JSON: line %d, column %d: %s",
                          what.line, what.column, what.text);
    if (!json_is_object(call->body))
        return idem__fail(err, IDEM_ERR_INVALID,
                          "the body is not a JSON object: {...}");
    json_object_foreach(call->body, name, json)
    {
        enum http_field field = find_field(call->route, idem_text(name));
        struct value value;

        if (field == HTTP_FIELD_COUNT)
            return unknown_field(call->route, "body", idem_text(name), err);
        status = json_value(&http_fields[field], json, &value, err);
        if (status == IDEM_OK)
            status = take_field(call, field, &value, err);
        if (status != IDEM_OK)
            break;
    }
    return status;
}

/* Values in a query are text. */
static enum idem_status
query_value(const struct http_field_type *type, struct idem_bytes text,
            struct value *value, struct idem_error *err)
{
    *value = (struct value){.bytes = text};
    if (type->form == HTTP_FLAG) {
        value->flag = idem__bytes_is(text, "true");
        if (!value->flag && !idem__bytes_is(text, "false"))
            return wrong(err, type->name, "give true or false");
    } else if (type->form == HTTP_INTEGER) {
        const char *digits = text.data;
        char *end;

        errno = 0;
        value->number = strtoll(digits, &end, 10);
        if (errno || end != digits + text.len || *digits < '0' || *digits > '9')
            return wrong(err, type->name, "not a whole number");
    }
    return IDEM_OK;
}

static enum idem_status
read_pair(struct http_call *call, struct idem_bytes pair,
          struct idem_error *err)
{
    const char *equals = memchr(pair.data, '=', pair.len);
    struct idem_bytes name = pair, text = {"", 0};
    enum http_field field = HTTP_FIELD_COUNT;
    enum idem_status status;
    struct value value;

    if (equals) {
        name.len = (size_t)(equals - (const char *)pair.data);
        text = (struct idem_bytes){equals + 1, pair.len - name.len - 1};
    }
    status = http_decode(name, true, &call->memory, &name, err);
    if (status == IDEM_OK)
        status = http_decode(text, true, &call->memory, &text, err);
    if (status != IDEM_OK)
        return status;
    if (!call->route->body)
        field = find_field(call->route, name);
    if (field == HTTP_FIELD_COUNT)
        return unknown_field(call->route, "query", name, err);
    if (call->given >> field & 1)
        return wrong(err, http_fields[field].name, "given twice");
    status = query_value(&http_fields[field], text, &value, err);
    return status == IDEM_OK ? take_field(call, field, &value, err) : status;
}

static enum idem_status
read_query(struct http_call *call, struct idem_bytes query,
           struct idem_error *err)
{
    const char *at = query.data, *end = at + query.len;

    while (query.len > 0 && at < end) {
        const char *next = memchr(at, '&', (size_t)(end - at));
        struct idem_bytes pair = {at, (size_t)((next ? next : end) - at)};
        enum idem_status status =
            pair.len > 0 ? read_pair(call, pair, err) : IDEM_OK;

        if (status != IDEM_OK)
            return status;
        at = next ? next + 1 : end;
    }
    return IDEM_OK;
}

/* {scope} and similar parameters get their part of the path. */
static void
read_parameters(struct http_call *call, const struct http_path *path)
{
    const char *pattern = call->route->path;

    for (size_t i = 0; i < path->count; i++) {
        size_t len = strcspn(++pattern, "/");
        struct idem_bytes name = {pattern, len};

        if (idem__bytes_is(name, "{scope}"))
            call->op.scope = path->parts[i];
        else if (idem__bytes_is(name, "{kind}") ||
                 idem__bytes_is(name, "{scheme}"))
            call->id_kind = path->parts[i];
        else if (idem__bytes_is(name, "{file}") ||
                 idem__bytes_is(name, "{problem}"))
            call->file = path->parts[i];
        else if (*pattern == '{')
            call->op.id = path->parts[i];
        pattern += len;
    }
}

static enum idem_status
check_needs(const struct http_call *call, struct idem_error *err)
{
    uint64_t missing = call->route->needs & ~call->given;

    for (int i = 0; i < HTTP_FIELD_COUNT; i++)
        if (missing >> i & 1)
            return idem__fail(err, IDEM_ERR_INVALID, "%s: is missing: %s",
                              http_fields[i].name, http_fields[i].about);
    if (call->op.not_replayable && call->op.result.len > 0)
        return wrong(err, "replayable",
                     "is false, but a result was given: leave out one of them");
    return IDEM_OK;
}

/* In a tombstone, the reason is the result; an outcome has a result of its
 * own. */
static enum idem_status
place_reason(struct http_call *call, struct idem_error *err)
{
    struct idem_op *op = &call->op;

    if (op->verb != IDEM_SETTLE || op->outcome)
        return IDEM_OK;
    if (call->given & (HTTP_HAS(RESULT) | HTTP_HAS(RESULT_BASE64)))
        return wrong(err, "result", "needs the field outcome, too");
    op->result = op->subject;
    op->subject = (struct idem_bytes){NULL, 0};
    return IDEM_OK;
}

static size_t
default_count(enum http_action action)
{
    switch (action) {
    case HTTP_SCAN:
    case HTTP_AUDIT:
    case HTTP_DOUBTS:
    case HTTP_WAITERS:
        return SCAN_COUNT;
    case HTTP_STATS:
        return (size_t)http_fields[HTTP_SECONDS_FIELD].max;
    default:
        return 1;
    }
}

enum idem_status
http_call_read(struct http_call *call, const struct http_route *route,
               const struct http_path *path, struct idem_bytes query,
               struct idem_bytes body, struct idem_error *err)
{
    enum idem_status status;
    struct idem_op checked;

    *call =
        (struct http_call){.route = route, .cursor = {"0"}, .file = {"", 0}};
    call->op.verb = route->verb;
    call->op.type = route->type;
    call->count = default_count(route->action);
    read_parameters(call, path);
    if (route->verb == IDEM_LOCK || route->verb == IDEM_UNLOCK ||
        route->type == IDEM_TYPE_LOCK)
        call->op.scope = idem_text(SERVER_LOCK_SCOPE);

    if (!route->body && body.len > 0)
        return idem__fail(err, IDEM_ERR_INVALID, "%s takes no body",
                          route->name);
    status = read_query(call, query, err);
    if (status == IDEM_OK)
        status = read_body(call, body, err);
    if (status == IDEM_OK)
        status = check_needs(call, err);
    if (status == IDEM_OK)
        status = place_reason(call, err);
    if (status != IDEM_OK || route->action != HTTP_OP)
        return status;
    checked = call->op;
    return idem__op_check(&checked, err);
}

void
http_call_clear(struct http_call *call)
{
    idem_arena_clear(&call->memory);
    json_decref(call->body);
    call->body = NULL;
}
