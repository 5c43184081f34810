/*
 * wire_brief.c - reads and writes the short answer: the verdict and its values,
 * as listed in the table of docs/protocol.md.
 */
#include "wire_digits.h"

#include "../base/hex.h"

#include <stddef.h>
#include <string.h>

/* ---- reading --------------------------------------------------------- */

static bool
take_state(struct idem__wire_reply *reply, enum idem_state *state)
{
    struct idem__wire_value value;

    return idem__wire_take(reply, IDEM__WIRE_BYTES, &value) &&
           idem__state_parse(value.bytes, state);
}

static bool
take_kind(struct idem__wire_reply *reply, enum idem_kind *kind)
{
    struct idem__wire_value value;

    return idem__wire_take(reply, IDEM__WIRE_BYTES, &value) &&
           idem__kind_parse(value.bytes, kind);
}

/* Read a record given as names and values, in any order. */
static bool
take_record(struct idem__wire_reply *reply, struct idem__wire_brief *brief)
{
    bool ok = true;

    while (ok && reply->values > 1) {
        struct idem__wire_value name, value;

        if (!idem__wire_take(reply, IDEM__WIRE_BYTES, &name))
            return false;
        (void)idem__wire_take(reply, IDEM__WIRE_BYTES, &value);
        if (idem__bytes_is(name.bytes, "state"))
            ok = idem__state_parse(value.bytes, &brief->state);
        else if (idem__bytes_is(name.bytes, "kind"))
            ok = idem__kind_parse(value.bytes, &brief->kind);
        else if (idem__bytes_is(name.bytes, "fence"))
            brief->fence = value.number;
        else if (idem__bytes_is(name.bytes, "lease_until"))
            brief->lease_until = value.number;
        else if (idem__bytes_is(name.bytes, "expires"))
            brief->expires = value.number;
        else if (idem__bytes_is(name.bytes, "redeemed"))
            brief->redeemed = value.number;
        else if (idem__bytes_is(name.bytes, "result"))
            brief->bytes = value.bytes;
    }
    return ok && reply->values == 0;
}

/* Read the values after the verdict; the counterpart of
 * idem__wire_put_brief. */
static bool
take_rest(struct idem__wire_reply *reply, struct idem__wire_brief *brief)
{
    switch (brief->verdict) {
    case IDEM_V_STARTED:
        return idem__wire_take_number(reply, &brief->fence) &&
               idem__wire_take_number(reply, &brief->lease_until) &&
               idem__wire_take_number(reply, &brief->expires);
    case IDEM_V_REPLAY:
    case IDEM_V_FINISHED:
        return take_state(reply, &brief->state) &&
               take_kind(reply, &brief->kind) &&
               idem__wire_take_number(reply, &brief->expires) &&
               idem__wire_take_bytes(reply, &brief->bytes);
    case IDEM_V_RECORD:
        return take_record(reply, brief);
    case IDEM_V_BUSY:
        return idem__wire_take_number(reply, &brief->retry_after_ms);
    case IDEM_V_DOUBT:
        return idem__wire_take_number(reply, &brief->lease_until);
    case IDEM_V_SETTLED:
        return take_state(reply, &brief->state) &&
               idem__wire_take_number(reply, &brief->expires);
    case IDEM_V_OK:
        return reply->values == 0 ||
               idem__wire_take_number(reply, &brief->expires);
    case IDEM_V_ISSUED:
        return idem__wire_take_bytes(reply, &brief->bytes) && brief->bytes.data;
    default:
        return true;
    }
}

enum idem_status
idem__wire_brief(struct idem__wire_reply *reply, struct idem__wire_brief *brief,
                 struct idem_error *err)
{
    enum idem_status status;

    memset(brief, 0, sizeof(*brief));
    status = idem__wire_verdict(reply, &brief->verdict, err);
    if (status == IDEM_OK && !take_rest(reply, brief))
        status = idem__wire_unexpected(err);
    return status;
}

/* ---- reading the usual answers in one pass ----------------------------- */

#define SKIP(in, text) skip(in, text, sizeof(text) - 1)

static inline bool
skip(struct idem__wire_reader *in, const char *text, size_t len)
{
    if ((size_t)(in->end - in->at) < len || memcmp(in->at, text, len) != 0)
        return false;
    in->at += len;
    return true;
}

static inline bool
read_number(struct idem__wire_reader *in, int64_t *number)
{
    return idem__wire_read_digits(in, number) == IDEM__WIRE_DONE;
}

/* BEGIN, for a first request */
static bool
usual_started(struct idem__wire_reader *in, struct idem__wire_brief *brief)
{
    brief->verdict = IDEM_V_STARTED;
    return SKIP(in, "$7\r\nstarted\r\n:") && read_number(in, &brief->fence) &&
           SKIP(in, ":") && read_number(in, &brief->lease_until) &&
           SKIP(in, ":") && read_number(in, &brief->expires);
}

/* FINISH */
static bool
usual_ok(struct idem__wire_reader *in, struct idem__wire_brief *brief)
{
    brief->verdict = IDEM_V_OK;
    return SKIP(in, "$2\r\nok\r\n:") && read_number(in, &brief->expires);
}

/* BEGIN, for a duplicate of a request whose answer was kept */
static bool
usual_replay(struct idem__wire_reader *in, struct idem__wire_brief *brief)
{
    struct idem__wire_value value;

    brief->verdict = IDEM_V_REPLAY;
    brief->state = IDEM_STATE_SUCCEEDED;
    brief->kind = IDEM_KIND_HTTP;
    if (!SKIP(in, "$6\r\nreplay\r\n$9\r\nsucceeded\r\n$4\r\nhttp\r\n:") ||
        !read_number(in, &brief->expires) ||
        idem__wire_read(in, &value) != IDEM__WIRE_DONE ||
        value.kind != IDEM__WIRE_BYTES)
        return false;
    brief->bytes = value.bytes;
    return true;
}

bool
idem__wire_usual(struct idem_bytes in, size_t longest, int64_t *tag,
                 struct idem__wire_brief *brief, size_t *used)
{
    const uint8_t *start = in.data;
    struct idem__wire_reader reader = {start + 2, start + in.len, longest};
    bool read;

    if (in.len < 2 || start[0] != '*' || !SKIP(&reader, "\r\n$3\r\ntag\r\n:") ||
        !read_number(&reader, tag) || *tag < 0)
        return false;
    memset(brief, 0, sizeof(*brief));
    switch (start[1]) { /* the number of values, with the tag's two */
    case '6':
        read = usual_started(&reader, brief);
        break;
    case '4':
        read = usual_ok(&reader, brief);
        break;
    case '7':
        read = usual_replay(&reader, brief);
        break;
    default:
        return false;
    }
    *used = (size_t)(reader.at - start);
    return read;
}

/* ---- writing --------------------------------------------------------- */

enum shape {
    SHAPE_TYPE,
    SHAPE_STATE,
    SHAPE_MODE,
    SHAPE_KIND,
    SHAPE_BYTES,
    SHAPE_FENCE,
    SHAPE_ATTEMPT,
    SHAPE_TIME,
    SHAPE_FINGERPRINT,
    SHAPE_FLAG,   /* 1 if the flag is set */
    SHAPE_NOFLAG, /* 1 if the flag is not set */
};

#define AT(member) offsetof(struct idem_record, member)

/* A record as names and values, without its result. */
static const struct shown {
    const char *name;
    enum shape shape;
    size_t at; /* or the flag */
} shown[] = {
    {"type", SHAPE_TYPE, 0},
    {"scope", SHAPE_BYTES, AT(scope)},
    {"id", SHAPE_BYTES, AT(id)},
    {"state", SHAPE_STATE, 0},
    {"mode", SHAPE_MODE, 0},
    {"kind", SHAPE_KIND, 0},
    {"fence", SHAPE_FENCE, 0},
    {"attempt", SHAPE_ATTEMPT, 0},
    {"created", SHAPE_TIME, AT(created)},
    {"updated", SHAPE_TIME, AT(updated)},
    {"lease_until", SHAPE_TIME, AT(lease_until)},
    {"expires", SHAPE_TIME, AT(expires)},
    {"subject", SHAPE_BYTES, AT(subject)},
    {"fingerprint", SHAPE_FINGERPRINT, 0},
    {"replayable", SHAPE_NOFLAG, IDEM_FLAG_NOT_REPLAYABLE},
    {"settled", SHAPE_FLAG, IDEM_FLAG_SETTLED},
    {"redeemed", SHAPE_FLAG, IDEM_FLAG_REDEEMED},
};

#define SHOWN (sizeof(shown) / sizeof(shown[0]))
/* Room for a name and a value that is not bytes: a line and a short word
 * each. */
#define FIELD_ROOM (2 * (IDEM__WIRE_LINE_MAX + 16))
/* Room for a tagged verdict with its numbers and words. */
#define BRIEF_ROOM (10 * IDEM__WIRE_LINE_MAX + 64)

size_t
idem__wire_fields(void)
{
    return 2 * SHOWN;
}

size_t
idem__wire_fields_len(const struct idem_record *record)
{
    return SHOWN * FIELD_ROOM + record->scope.len + record->id.len +
           record->subject.len + 2 * sizeof(record->fingerprint);
}

static char *
put_shown(char *out, const struct shown *field, const struct idem_record *r)
{
    const void *from = (const char *)r + field->at;
    char hex[2 * IDEM_FINGERPRINT_LEN];
    bool marked = r->flags & IDEM_FLAG_FINGERPRINT;

    switch (field->shape) {
    case SHAPE_TYPE:
        return idem__wire_put_text(out, idem_type_name(r->type));
    case SHAPE_STATE:
        return idem__wire_put_text(out, idem_state_name(r->state));
    case SHAPE_MODE:
        return idem__wire_put_text(out, idem_mode_name(r->mode));
    case SHAPE_KIND:
        return idem__wire_put_text(out, idem_kind_name(r->kind));
    case SHAPE_BYTES:
        return idem__wire_put_bytes(out, *(const struct idem_bytes *)from);
    case SHAPE_FENCE:
        return idem__wire_put_line(out, ':', (int64_t)r->fence);
    case SHAPE_ATTEMPT:
        return idem__wire_put_line(out, ':', r->attempt);
    case SHAPE_TIME:
        return idem__wire_put_line(out, ':', *(const int64_t *)from);
    case SHAPE_FINGERPRINT:
        idem__hex_write(r->fingerprint, IDEM_FINGERPRINT_LEN, hex);
        return idem__wire_put_bytes(
            out, (struct idem_bytes){hex, marked ? sizeof(hex) : 0});
    case SHAPE_FLAG:
        return idem__wire_put_line(out, ':', !!(r->flags & field->at));
    case SHAPE_NOFLAG:
        return idem__wire_put_line(out, ':', !(r->flags & field->at));
    }
    return out;
}

char *
idem__wire_put_fields(char *out, const struct idem_record *record)
{
    for (size_t i = 0; i < SHOWN; i++) {
        out = idem__wire_put_text(out, shown[i].name);
        out = put_shown(out, &shown[i], record);
    }
    return out;
}

char *
idem__wire_put_result(char *out, const struct idem_record *record,
                      size_t longest)
{
    if (record->flags & IDEM_FLAG_NOT_REPLAYABLE)
        return idem__wire_put_null(out);
    if (record->result.len > longest)
        return idem__wire_put_line(out, '$', (int64_t)record->result.len);
    return idem__wire_put_bytes(out, record->result);
}

static size_t
count_values(enum idem_verb verb, enum idem_verdict verdict)
{
    switch (verdict) {
    case IDEM_V_STARTED:
        return 4;
    case IDEM_V_REPLAY:
    case IDEM_V_FINISHED:
        return 5;
    case IDEM_V_RECORD:
        return 1 + 2 * SHOWN + 2;
    case IDEM_V_SETTLED:
        return 3;
    case IDEM_V_BUSY:
    case IDEM_V_DOUBT:
    case IDEM_V_ISSUED:
        return 2;
    case IDEM_V_OK:
        return verb == IDEM_FINISH || verb == IDEM_RENEW ? 2 : 1;
    default:
        return 1;
    }
}

/* Write the values after the verdict; the counterpart of take_rest. */
static char *
put_rest(char *out, enum idem_verb verb, const struct idem_answer *answer,
         size_t longest)
{
    const struct idem_record *record = answer->record;

    switch (answer->verdict) {
    case IDEM_V_STARTED:
        out = idem__wire_put_line(out, ':', (int64_t)record->fence);
        out = idem__wire_put_line(out, ':', record->lease_until);
        return idem__wire_put_line(out, ':', record->expires);
    case IDEM_V_REPLAY:
    case IDEM_V_FINISHED:
        out = idem__wire_put_text(out, idem_state_name(record->state));
        out = idem__wire_put_text(out, idem_kind_name(record->kind));
        out = idem__wire_put_line(out, ':', record->expires);
        return idem__wire_put_result(out, record, longest);
    case IDEM_V_RECORD:
        out = idem__wire_put_fields(out, record);
        out = idem__wire_put_text(out, "result");
        return idem__wire_put_result(out, record, longest);
    case IDEM_V_BUSY:
        return idem__wire_put_line(out, ':', answer->retry_after_ms);
    case IDEM_V_DOUBT:
        return idem__wire_put_line(out, ':', record->lease_until);
    case IDEM_V_SETTLED:
        out = idem__wire_put_text(out, idem_state_name(record->state));
        return idem__wire_put_line(out, ':', record->expires);
    case IDEM_V_OK:
        if (verb == IDEM_RENEW)
            return idem__wire_put_line(out, ':', record->lease_until);
        return verb == IDEM_FINISH
                   ? idem__wire_put_line(out, ':', record->expires)
                   : out;
    case IDEM_V_ISSUED:
        return idem__wire_put_bytes(out, record->id);
    default:
        return out;
    }
}

size_t
idem__wire_brief_len(const struct idem_answer *answer, size_t longest)
{
    const struct idem_record *record = answer->record;
    size_t len = BRIEF_ROOM;

    if (answer->verdict == IDEM_V_RECORD)
        len += idem__wire_fields_len(record);
    else if (answer->verdict == IDEM_V_ISSUED)
        len += record->id.len;
    return record->result.len > longest ? len : len + record->result.len;
}

char *
idem__wire_put_brief(char *out, bool tagged, int64_t tag, enum idem_verb verb,
                     const struct idem_answer *answer, size_t longest)
{
    out = idem__wire_put_head(out, tagged, tag,
                              count_values(verb, answer->verdict));
    out = idem__wire_put_text(out, idem_verdict_name(answer->verdict));
    return put_rest(out, verb, answer, longest);
}
