/*
 * answer.c - see answer.h.
 */
#include "answer.h"

#include "../../wire/wire.h"

#include <ctype.h>
#include <string.h>

void
answer_add_array(struct resp_out *out, struct answer_tag tag, size_t count)
{
    resp_add_array(out, tag.set ? count + 2 : count);
    if (tag.set) {
        resp_add_raw(out, "$3\r\ntag\r\n", 9);
        resp_add_number(out, tag.number);
    }
}

void
answer_add_one(struct resp_out *out, struct answer_tag tag)
{
    if (tag.set)
        answer_add_array(out, tag, 1);
}

void
answer_add_error(struct resp_out *out, struct answer_tag tag, const char *word,
                 const char *text)
{
    if (!tag.set) {
        resp_add_error(out, word, text);
        return;
    }
    answer_add_array(out, tag, 3);
    resp_add_text(out, "error");
    resp_add_text(out, word);
    resp_add_text(out, text);
}

void
answer_add_status(struct resp_out *out, struct answer_tag tag,
                  enum idem_status status, const struct idem_error *err)
{
    const char *name =
        status == IDEM_ERR_INVALID ? "ERR" : idem_status_name(status);
    const char *text =
        err && err->text[0] ? err->text : idem_status_text(status);
    char word[24];
    size_t len = 0;

    for (; name[len] && len < sizeof(word) - 1; len++)
        word[len] = (char)toupper((unsigned char)name[len]);
    word[len] = '\0';
    answer_add_error(out, tag, word, text);
}

static void
add_result(struct resp_out *out, const struct idem_record *record)
{
    if (record->flags & IDEM_FLAG_NOT_REPLAYABLE)
        resp_add_null(out);
    else if (record->result.len < RESULT_LONG)
        resp_add_bytes(out, record->result);
    else
        resp_add_length(out, record->result.len);
}

bool
answer_is_long(const struct idem_answer *answer)
{
    const struct idem_record *record = answer->record;

    return record->result.len >= RESULT_LONG &&
           !(record->flags & IDEM_FLAG_NOT_REPLAYABLE) &&
           (answer->verdict == IDEM_V_REPLAY ||
            answer->verdict == IDEM_V_FINISHED ||
            answer->verdict == IDEM_V_RECORD);
}

/* The commonest answer is put together in one piece. */
static void
add_started(struct resp_out *out, const struct idem_record *record)
{
    static const char head[] = "$7\r\nstarted\r\n:";
    char text[sizeof(head) + 3 * (RESP_DIGITS_MAX + 3)];
    size_t len = sizeof(head) - 1;

    memcpy(text, head, len);
    len += resp_digits((int64_t)record->fence, text + len);
    memcpy(text + len, "\r\n:", 3);
    len += 3;
    len += resp_digits(record->lease_until, text + len);
    memcpy(text + len, "\r\n:", 3);
    len += 3;
    len += resp_digits(record->expires, text + len);
    memcpy(text + len, "\r\n", 2);
    resp_add_raw(out, text, len + 2);
}

static void
add_outcome(struct resp_out *out, enum idem_verdict verdict,
            const struct idem_record *record)
{
    resp_add_text(out, idem_verdict_name(verdict));
    resp_add_text(out, idem_state_name(record->state));
    resp_add_text(out, idem_kind_name(record->kind));
    resp_add_number(out, record->expires);
    add_result(out, record);
}

static void
add_hex(struct resp_out *out, const uint8_t *bytes, size_t len)
{
    static const char digits[] = "0123456789abcdef";
    char text[2 * IDEM_FINGERPRINT_LEN];

    for (size_t i = 0; i < len; i++) {
        text[2 * i] = digits[bytes[i] >> 4];
        text[2 * i + 1] = digits[bytes[i] & 15];
    }
    resp_add_bytes(out, (struct idem_bytes){text, 2 * len});
}

size_t
answer_field_count(bool with_result)
{
    return with_result ? 36 : 34;
}

static void
add_number_field(struct resp_out *out, const char *name, int64_t value)
{
    resp_add_text(out, name);
    resp_add_number(out, value);
}

static void
add_bytes_field(struct resp_out *out, const char *name, struct idem_bytes value)
{
    resp_add_text(out, name);
    resp_add_bytes(out, value);
}

void
answer_add_fields(struct resp_out *out, const struct idem_record *record,
                  bool with_result)
{
    bool marked = record->flags & IDEM_FLAG_FINGERPRINT;

    add_bytes_field(out, "type", idem_text(idem_type_name(record->type)));
    add_bytes_field(out, "scope", record->scope);
    add_bytes_field(out, "id", record->id);
    add_bytes_field(out, "state", idem_text(idem_state_name(record->state)));
    add_bytes_field(out, "mode", idem_text(idem_mode_name(record->mode)));
    add_bytes_field(out, "kind", idem_text(idem_kind_name(record->kind)));
    add_number_field(out, "fence", (int64_t)record->fence);
    add_number_field(out, "attempt", record->attempt);
    add_number_field(out, "created", record->created);
    add_number_field(out, "updated", record->updated);
    add_number_field(out, "lease_until", record->lease_until);
    add_number_field(out, "expires", record->expires);
    add_bytes_field(out, "subject", record->subject);
    resp_add_text(out, "fingerprint");
    add_hex(out, record->fingerprint, marked ? IDEM_FINGERPRINT_LEN : 0);
    add_number_field(out, "replayable",
                     !(record->flags & IDEM_FLAG_NOT_REPLAYABLE));
    add_number_field(out, "settled", !!(record->flags & IDEM_FLAG_SETTLED));
    add_number_field(out, "redeemed", !!(record->flags & IDEM_FLAG_REDEEMED));
    if (with_result) {
        resp_add_text(out, "result");
        add_result(out, record);
    }
}

static void
add_ok(struct resp_out *out, struct answer_tag tag, enum idem_verb verb,
       const struct idem_record *record)
{
    bool valued = verb == IDEM_FINISH || verb == IDEM_RENEW;

    answer_add_array(out, tag, valued ? 2 : 1);
    resp_add_raw(out, "$2\r\nok\r\n", 8);
    if (valued)
        resp_add_number(out, verb == IDEM_RENEW ? record->lease_until
                                                : record->expires);
}

static void
add_pair(struct resp_out *out, struct answer_tag tag, const char *word,
         int64_t number)
{
    answer_add_array(out, tag, 2);
    resp_add_text(out, word);
    resp_add_number(out, number);
}

void
answer_add(struct resp_out *out, struct answer_tag tag, enum idem_verb verb,
           const struct idem_answer *answer)
{
    const struct idem_record *record = answer->record;
    const char *word = idem_verdict_name(answer->verdict);

    switch (answer->verdict) {
    case IDEM_V_STARTED:
        answer_add_array(out, tag, 4);
        add_started(out, record);
        break;
    case IDEM_V_REPLAY:
    case IDEM_V_FINISHED:
        answer_add_array(out, tag, 5);
        add_outcome(out, answer->verdict, record);
        break;
    case IDEM_V_BUSY:
        add_pair(out, tag, word, answer->retry_after_ms);
        break;
    case IDEM_V_DOUBT:
        add_pair(out, tag, word, record->lease_until);
        break;
    case IDEM_V_OK:
        add_ok(out, tag, verb, record);
        break;
    case IDEM_V_SETTLED:
        answer_add_array(out, tag, 3);
        resp_add_text(out, word);
        resp_add_text(out, idem_state_name(record->state));
        resp_add_number(out, record->expires);
        break;
    case IDEM_V_RECORD:
        answer_add_array(out, tag, 1 + answer_field_count(true));
        resp_add_text(out, word);
        answer_add_fields(out, record, true);
        break;
    case IDEM_V_ISSUED:
        answer_add_array(out, tag, 2);
        resp_add_text(out, word);
        resp_add_bytes(out, record->id);
        break;
    case IDEM_V_MISMATCH:
    case IDEM_V_STALE:
    case IDEM_V_ABSENT:
    case IDEM_V_REDEEMED:
    case IDEM_V_DUPLICATE:
    case IDEM_V_UNKNOWN:
        answer_add_array(out, tag, 1);
        resp_add_text(out, word);
        break;
    }
}

static char *
room(struct resp_out *out, size_t len)
{
    char *at = out->failed ? NULL : (char *)idem_buf_room(&out->buf, len);

    if (!at)
        out->failed = true;
    return at;
}

void
answer_add_full(struct resp_out *out, struct answer_tag tag,
                const struct idem_answer *answer)
{
    char *at;

    answer_add_array(out, tag, 4);
    at = room(out, idem__wire_full_len(answer));
    if (at)
        out->buf.len += (size_t)(idem__wire_put_full(answer, at) - at);
    if (answer->record->result.len < RESULT_LONG || answer_is_long(answer))
        add_result(out, answer->record);
    else
        resp_add_null(out); /* who wrote it has it */
}

void
answer_add_record(struct resp_out *out, const struct idem_record *record)
{
    char *at = room(out, idem__wire_record_len(record));

    if (at)
        out->buf.len += (size_t)(idem__wire_put_record(record, at) - at);
}
