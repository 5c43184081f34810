/*
 * http_answer.c - write verdicts as JSON.
 */
#include "../core/json_record.h"
#include "../core/server.h"
#include "http.h"

#include <stdlib.h>
#include <string.h>

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

static bool
put_result(json_t *object, const struct idem_record *record)
{
    bool kept = !(record->flags & IDEM_FLAG_NOT_REPLAYABLE);

    if (!server_json_put(object, "kind",
                         json_string(idem_kind_name(record->kind))) ||
        !server_json_put(object, "replayable", json_boolean(kept)))
        return false;
    if (!kept)
        return server_json_put(object, "result", json_null());
    return server_json_put_bytes(object, "result", record->result, true);
}

static bool
put_outcome(json_t *object, const struct idem_record *record)
{
    return server_json_put(object, "state",
                           json_string(idem_state_name(record->state))) &&
           server_json_put_number(object, "expires", record->expires) &&
           put_result(object, record);
}

json_t *
http_explain(const struct server *server, struct idem_bytes kind,
             struct idem_bytes id, struct idem_error *err)
{
    struct idem_id_parts parts = {.time_ms = -1, .ends_ms = -1};
    int version = -1;
    json_t *json = json_object();

    if (server_id_explain(server, kind, id, &version, &parts, err) == IDEM_OK &&
        server_json_put(json, "verdict", json_string("explained")) &&
        server_json_put(json, "kind", http_text(kind)) &&
        server_json_put_number(json, "time", parts.time_ms) &&
        server_json_put_number(json, "worker",
                               version < 0 ? (int64_t)parts.worker : -1) &&
        server_json_put_number(json, "sequence",
                               version < 0 ? (int64_t)parts.sequence : -1) &&
        server_json_put_number(json, "ends", parts.ends_ms) &&
        server_json_put_number(json, "version", version))
        return json;
    json_decref(json);
    return NULL;
}

static bool
put_whole_record(json_t *object, const struct idem_record *record)
{
    json_t *inner = server_json_record(record);

    return server_json_put(object, "record", inner) &&
           put_result(inner, record);
}

static bool
put_values(json_t *object, const struct idem_answer *answer,
           enum idem_verb verb)
{
    const struct idem_record *record = answer->record;

    switch (answer->verdict) {
    case IDEM_V_STARTED:
        return server_json_put_number(object, "fence",
                                      (int64_t)record->fence) &&
               server_json_put_number(object, "lease_until",
                                      record->lease_until) &&
               server_json_put_number(object, "expires", record->expires) &&
               server_json_put_number(object, "attempt", record->attempt);
    case IDEM_V_REPLAY:
    case IDEM_V_FINISHED:
        return put_outcome(object, record);
    case IDEM_V_BUSY:
        return server_json_put_number(object, "retry_after_ms",
                                      answer->retry_after_ms);
    case IDEM_V_DOUBT:
        return server_json_put_number(object, "since", record->lease_until);
    case IDEM_V_OK:
        if (verb == IDEM_FINISH)
            return server_json_put_number(object, "expires", record->expires);
        if (verb == IDEM_RENEW)
            return server_json_put_number(object, "lease_until",
                                          record->lease_until);
        return true;
    case IDEM_V_SETTLED:
        return server_json_put(object, "state",
                               json_string(idem_state_name(record->state))) &&
               server_json_put_number(object, "expires", record->expires);
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
        server_json_put(object, "verdict",
                        json_string(idem_verdict_name(answer->verdict))) &&
        put_values(object, answer, verb))
        return object;
    json_decref(object);
    return NULL;
}
