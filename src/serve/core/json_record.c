/*
 * json_record.c - write bytes and records as JSON; see json_record.h.
 */
#include "json_record.h"

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

bool
server_json_put_bytes(json_t *object, const char *name, struct idem_bytes bytes,
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

bool
server_json_put(json_t *object, const char *name, json_t *value)
{
    return json_object_set_new(object, name, value) == 0;
}

bool
server_json_put_number(json_t *object, const char *name, int64_t number)
{
    return server_json_put(object, name, json_integer((json_int_t)number));
}

static bool
put_record(json_t *object, const struct idem_record *r)
{
    bool ok =
        server_json_put(object, "type", json_string(idem_type_name(r->type))) &&
        server_json_put_bytes(object, "scope", r->scope, false) &&
        server_json_put_bytes(object, "id", r->id, false) &&
        server_json_put(object, "state",
                        json_string(idem_state_name(r->state))) &&
        server_json_put(object, "mode", json_string(idem_mode_name(r->mode))) &&
        server_json_put_number(object, "fence", (int64_t)r->fence) &&
        server_json_put_number(object, "attempt", r->attempt) &&
        server_json_put_number(object, "created", r->created) &&
        server_json_put_number(object, "updated", r->updated) &&
        server_json_put_number(object, "lease_until", r->lease_until) &&
        server_json_put_number(object, "expires", r->expires) &&
        server_json_put(object, "settled",
                        json_boolean(r->flags & IDEM_FLAG_SETTLED)) &&
        server_json_put(object, "redeemed",
                        json_boolean(r->flags & IDEM_FLAG_REDEEMED)) &&
        server_json_put_bytes(object, "subject", r->subject, false);

    if (ok && (r->flags & IDEM_FLAG_FINGERPRINT))
        ok = server_json_put(object, "fingerprint",
                             hex(r->fingerprint, IDEM_FINGERPRINT_LEN));
    return ok;
}

json_t *
server_json_record(const struct idem_record *record)
{
    json_t *object = json_object();

    if (object && put_record(object, record))
        return object;
    json_decref(object);
    return NULL;
}
