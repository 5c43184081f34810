/*
 * serve_ids.c - tokens and ids for RESP and HTTP.
 */
#include "../../id/id.h"
#include "../../record/record.h"
#include "server.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define SEGMENT "segment:"

static bool
parse_kind(struct idem_bytes text, enum idem_id_kind *kind,
           struct idem_bytes *name)
{
    size_t prefix = strlen(SEGMENT);

    if (text.len > prefix && strncasecmp(text.data, SEGMENT, prefix) == 0) {
        *kind = IDEM_ID_SEGMENT;
        *name = (struct idem_bytes){(const char *)text.data + prefix,
                                    text.len - prefix};
        return true;
    }
    if (idem__bytes_is(text, "uuidv4") || idem__bytes_is(text, "uuidv7")) {
        *kind =
            ((const char *)text.data)[5] == '4' ? IDEM_ID_UUID4 : IDEM_ID_UUID7;
        return true;
    }
    for (int i = 0; i < IDEM__ID_KIND_COUNT; i++) {
        *kind = (enum idem_id_kind)i;
        if (*kind != IDEM_ID_SEGMENT &&
            idem__bytes_is(text, idem_id_kind_name(*kind)))
            return true;
    }
    return false;
}

struct idem_bytes
server_ids_scope(struct idem_bytes text)
{
    struct idem_bytes name = {NULL, 0};
    enum idem_id_kind kind;

    return parse_kind(text, &kind, &name) ? name : (struct idem_bytes){NULL, 0};
}

static void
make_uuids(enum idem_id_kind kind, size_t count,
           void (*each)(void *arg, struct idem_bytes id), void *arg)
{
    char text[IDEM_UUID_LEN + 1];

    for (size_t i = 0; i < count; i++) {
        if (kind == IDEM_ID_UUID4)
            idem_uuid4(text);
        else
            idem_uuid7(text);
        each(arg, idem_text(text));
    }
}

enum idem_status
server_ids(struct server *server, struct idem_bytes text, size_t count,
           bool may_wait, void (*each)(void *arg, struct idem_bytes id),
           void *arg, struct idem_error *err)
{
    uint64_t ids[SERVER_COUNT_MAX];
    enum idem_id_kind kind;
    struct idem_bytes name = {NULL, 0};
    enum idem_status status;

    if (!parse_kind(text, &kind, &name))
        return idem__fail(err, IDEM_ERR_INVALID,
                          "there are no ids of the kind \"%.*s\": use "
                          "snowflake, uid, segment:NAME, uuid4 or uuid7",
                          (int)(text.len > 40 ? 40 : text.len),
                          (const char *)text.data);
    if (kind == IDEM_ID_UUID4 || kind == IDEM_ID_UUID7) {
        make_uuids(kind, count, each, arg);
        return IDEM_OK;
    }
    status = may_wait ? idem_ids_next(server->ids, kind, name, ids, count, err)
                      : idem_ids_try(server->ids, kind, name, ids, count, err);
    for (size_t i = 0; status == IDEM_OK && i < count; i++) {
        char number[24];

        snprintf(number, sizeof(number), "%" PRIu64, ids[i]);
        each(arg, idem_text(number));
    }
    return status;
}

enum idem_status
server_id_explain(const struct server *server, struct idem_bytes text,
                  struct idem_bytes id, int *version,
                  struct idem_id_parts *parts, struct idem_error *err)
{
    struct idem_bytes name = {NULL, 0};
    enum idem_id_kind kind;
    char digits[64], *end;
    uint64_t number;

    if (!parse_kind(text, &kind, &name) || kind == IDEM_ID_SEGMENT)
        return idem__fail(err, IDEM_ERR_INVALID,
                          "kind: give one of: snowflake uid uuid4 uuid7");
    snprintf(digits, sizeof(digits), "%.*s", (int)id.len,
             (const char *)id.data);
    if (kind == IDEM_ID_UUID4 || kind == IDEM_ID_UUID7)
        return idem_uuid_explain(digits, version, &parts->time_ms, err);
    errno = 0;
    number = strtoull(digits, &end, 10);
    if (errno || *end || digits[0] < '0' || digits[0] > '9' || id.len > 20)
        return idem__fail(err, IDEM_ERR_INVALID, "id: not a whole number");
    return idem_id_explain(kind, number, &server->config->ids, parts, err);
}
