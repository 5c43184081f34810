/*
 * http_answer.c - write verdicts and records as JSON.
 *
 * Bytes have two forms: "name_base64", which is always present, and "name", the
 * same bytes as text, if they are valid UTF-8.
 */
#include "../core/server.h"
#include "http.h"

#include <sodium.h>
#include <stdlib.h>
#include <string.h>

static json_t *
base64(struct idem_bytes bytes)
{
    size_t room =
        sodium_base64_encoded_len(bytes.len, sodium_base64_VARIANT_ORIGINAL);
    char *text = malloc(room);
    json_t *json = NULL;

    if (!text)
        return NULL;
    sodium_bin2base64(text, room, bytes.data, bytes.len,
                      sodium_base64_VARIANT_ORIGINAL);
    json = json_stringn_nocheck(text, room - 1);
    free(text);
    return json;
}

static json_t *
hex(const uint8_t *bytes, size_t len)
{
    char text[2 * IDEM_FINGERPRINT_LEN + 1];

    return json_string(sodium_bin2hex(text, sizeof(text), bytes, len));
}

json_t *
http_text(struct idem_bytes text)
{
    json_t *json =
        json_stringn(text.len > 0 ? (const char *)text.data : "", text.len);
    char *copy;

    if (json || !(copy = malloc(text.len + 1)))
        return json;
    for (size_t i = 0; i < text.len; i++) {
        char c = ((const char *)text.data)[i];

        copy[i] = (unsigned char)c < 0x80 ? c : '?';
    }
    json = json_stringn(copy, text.len);
    free(copy);
    return json;
}

bool
http_put_bytes(json_t *object, const char *name, struct idem_bytes bytes,
               bool always_base64)
{
    json_t *text =
        json_stringn(bytes.len > 0 ? (const char *)bytes.data : "", bytes.len);
    char coded[64];

    if (text && json_object_set_new(object, name, text) != 0)
        return false;
    if (text && !always_base64)
        return true;
    snprintf(coded, sizeof(coded), "%s_base64", name);
    return json_object_set_new(object, coded, base64(bytes)) == 0;
}

static bool
put(json_t *object, const char *name, json_t *value)
{
    return json_object_set_new(object, name, value) == 0;
}

static bool
put_number(json_t *object, const char *name, int64_t number)
{
    return put(object, name, json_integer((json_int_t)number));
}

static bool
put_result(json_t *object, const struct idem_record *record)
{
    bool kept = !(record->flags & IDEM_FLAG_NOT_REPLAYABLE);

    if (!put(object, "kind", json_string(idem_kind_name(record->kind))) ||
        !put(object, "replayable", json_boolean(kept)))
        return false;
    if (!kept)
        return put(object, "result", json_null());
    return http_put_bytes(object, "result", record->result, true);
}

static bool
put_outcome(json_t *object, const struct idem_record *record)
{
    return put(object, "state", json_string(idem_state_name(record->state))) &&
           put_number(object, "expires", record->expires) &&
           put_result(object, record);
}

static bool
put_record(json_t *object, const struct idem_record *r)
{
    bool ok =
        put(object, "type", json_string(idem_type_name(r->type))) &&
        http_put_bytes(object, "scope", r->scope, false) &&
        http_put_bytes(object, "id", r->id, false) &&
        put(object, "state", json_string(idem_state_name(r->state))) &&
        put(object, "mode", json_string(idem_mode_name(r->mode))) &&
        put_number(object, "fence", (int64_t)r->fence) &&
        put_number(object, "attempt", r->attempt) &&
        put_number(object, "created", r->created) &&
        put_number(object, "updated", r->updated) &&
        put_number(object, "lease_until", r->lease_until) &&
        put_number(object, "expires", r->expires) &&
        put(object, "settled", json_boolean(r->flags & IDEM_FLAG_SETTLED)) &&
        put(object, "redeemed", json_boolean(r->flags & IDEM_FLAG_REDEEMED)) &&
        http_put_bytes(object, "subject", r->subject, false);

    if (ok && (r->flags & IDEM_FLAG_FINGERPRINT))
        ok = put(object, "fingerprint",
                 hex(r->fingerprint, IDEM_FINGERPRINT_LEN));
    return ok;
}

json_t *
http_record(const struct idem_record *record)
{
    json_t *object = json_object();

    if (object && put_record(object, record))
        return object;
    json_decref(object);
    return NULL;
}

json_t *
http_explain(const struct server *server, struct idem_bytes kind,
             struct idem_bytes id, struct idem_error *err)
{
    struct idem_id_parts parts = {.time_ms = -1, .ends_ms = -1};
    int version = -1;
    json_t *json = json_object();

    if (server_id_explain(server, kind, id, &version, &parts, err) == IDEM_OK &&
        put(json, "verdict", json_string("explained")) &&
        put(json, "kind", http_text(kind)) &&
        put_number(json, "time", parts.time_ms) &&
        put_number(json, "worker", version < 0 ? (int64_t)parts.worker : -1) &&
        put_number(json, "sequence",
                   version < 0 ? (int64_t)parts.sequence : -1) &&
        put_number(json, "ends", parts.ends_ms) &&
        put_number(json, "version", version))
        return json;
    json_decref(json);
    return NULL;
}

static bool
put_whole_record(json_t *object, const struct idem_record *record)
{
    json_t *inner = http_record(record);

    return put(object, "record", inner) && put_result(inner, record);
}

static bool
put_values(json_t *object, const struct idem_answer *answer,
           enum idem_verb verb)
{
    const struct idem_record *record = answer->record;

    switch (answer->verdict) {
    case IDEM_V_STARTED:
        return put_number(object, "fence", (int64_t)record->fence) &&
               put_number(object, "lease_until", record->lease_until) &&
               put_number(object, "expires", record->expires) &&
               put_number(object, "attempt", record->attempt);
    case IDEM_V_REPLAY:
    case IDEM_V_FINISHED:
        return put_outcome(object, record);
    case IDEM_V_BUSY:
        return put_number(object, "retry_after_ms", answer->retry_after_ms);
    case IDEM_V_DOUBT:
        return put_number(object, "since", record->lease_until);
    case IDEM_V_OK:
        if (verb == IDEM_FINISH)
            return put_number(object, "expires", record->expires);
        if (verb == IDEM_RENEW)
            return put_number(object, "lease_until", record->lease_until);
        return true;
    case IDEM_V_SETTLED:
        return put(object, "state",
                   json_string(idem_state_name(record->state))) &&
               put_number(object, "expires", record->expires);
    case IDEM_V_RECORD:
        return put_whole_record(object, record);
    default:
        return true;
    }
}

json_t *
http_answer(const struct idem_answer *answer, enum idem_verb verb)
{
    json_t *object = json_object();

    if (object &&
        put(object, "verdict",
            json_string(idem_verdict_name(answer->verdict))) &&
        put_values(object, answer, verb))
        return object;
    json_decref(object);
    return NULL;
}
