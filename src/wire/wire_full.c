/*
 * wire_full.c - reads and writes answers with FULL, which contain the record as
 * codec.c encodes it.
 *
 * This is separate from wire_reply.c, so that the nginx module does not need
 * the codec.
 */
#include "wire.h"

#include <assert.h>
#include <string.h>

enum idem_status
idem__wire_answer(struct idem__wire_reply *reply, struct idem_answer *answer,
                  struct idem_record *record, struct idem_error *err)
{
    struct idem__wire_value value;
    enum idem_status status;

    memset(record, 0, sizeof(*record));
    *answer = (struct idem_answer){.record = record};
    status = idem__wire_verdict(reply, &answer->verdict, err);
    if (status != IDEM_OK)
        return status;
    if (reply->values != 3 ||
        !idem__wire_take_number(reply, &answer->retry_after_ms))
        return idem__wire_unexpected(err);
    if (idem__wire_take(reply, IDEM__WIRE_BYTES, &value)) {
        status = idem__decode(value.bytes, record, err);
        if (status != IDEM_OK)
            return status;
    } else if (value.kind != IDEM__WIRE_NULL) {
        return idem__wire_unexpected(err);
    }
    return idem__wire_take_bytes(reply, &record->result)
               ? IDEM_OK
               : idem__wire_unexpected(err);
}

enum idem_status
idem__wire_scanned(struct idem__wire_reply *reply, struct idem_cursor *next,
                   struct idem_error *err)
{
    struct idem__wire_value value;

    if (reply->error)
        return idem__wire_error(reply, err);
    if (!idem__wire_take(reply, IDEM__WIRE_BYTES, &value) ||
        !idem__bytes_is(value.bytes, "records") ||
        !idem__wire_take(reply, IDEM__WIRE_BYTES, &value) ||
        value.bytes.len == 0 || value.bytes.len >= sizeof(next->text))
        return idem__wire_unexpected(err);
    memcpy(next->text, value.bytes.data, value.bytes.len);
    next->text[value.bytes.len] = '\0';
    return IDEM_OK;
}

enum idem_status
idem__wire_record(struct idem__wire_reply *reply, struct idem_record *record,
                  struct idem_error *err)
{
    struct idem__wire_value value;

    if (!idem__wire_take(reply, IDEM__WIRE_BYTES, &value))
        return idem__wire_unexpected(err);
    return idem__decode(value.bytes, record, err);
}

/* ---- writing answers ------------------------------------------------- */

size_t
idem__wire_record_len(const struct idem_record *record)
{
    return IDEM__WIRE_LINE_MAX + idem__encoded_len(record) -
           record->result.len + 2;
}

/* The nonce is left out: a client that knows it could pass for the client that
 * began the request. */
char *
idem__wire_put_record(char *out, const struct idem_record *record)
{
    struct idem_record shown = *record;
    size_t len;

    memset(shown.nonce, 0, sizeof(shown.nonce));
    shown.result = (struct idem_bytes){NULL, 0};
    len = idem__encoded_len(&shown);
    out = idem__wire_put_line(out, '$', (int64_t)len);
    idem__encode(&shown, (uint8_t *)out);
    memcpy(out + len, "\r\n", 2);
    return out + len + 2;
}

static bool
has_record(const struct idem_answer *answer)
{
    return answer->record->state != IDEM_STATE_ABSENT;
}

size_t
idem__wire_full_len(const struct idem_answer *answer)
{
    return IDEM__WIRE_HEAD_MAX + 2 * IDEM__WIRE_LINE_MAX + 64 +
           (has_record(answer) ? idem__wire_record_len(answer->record) : 8);
}

char *
idem__wire_put_full(char *out, bool tagged, int64_t tag,
                    const struct idem_answer *answer)
{
    assert(!has_record(answer) || !idem__record_flaw(answer->record));
    out = idem__wire_put_head(out, tagged, tag, 4);
    out = idem__wire_put_text(out, idem_verdict_name(answer->verdict));
    out = idem__wire_put_line(out, ':', answer->retry_after_ms);
    return has_record(answer) ? idem__wire_put_record(out, answer->record)
                              : idem__wire_put_null(out);
}
