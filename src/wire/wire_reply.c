/*
 * wire_reply.c - replies: cutting them out of what was read, what they say, and
 * putting the short answer.
 *
 * A reply that is not whole is read again from its start when more has arrived:
 * strings are jumped over by their length, and a short one costs little.
 */
#include "wire.h"

#include "../base/hex.h"

#include <stddef.h>
#include <string.h>

/* ---- a reply --------------------------------------------------------- */

/* Step over one reply. */
static enum idem__wire_got
skip(struct idem__wire_reader *in, size_t *missing)
{
    struct idem__wire_value value = {.number = 0};
    int64_t left = 1;

    *missing = 1;
    while (left > 0) {
        enum idem__wire_got got = idem__wire_read(in, &value);

        if (got == IDEM__WIRE_MORE && value.kind == IDEM__WIRE_BYTES)
            *missing = (size_t)value.number + 2 - (size_t)(in->end - in->at);
        if (got != IDEM__WIRE_DONE)
            return got;
        left--;
        if (value.kind == IDEM__WIRE_ARRAY)
            left += value.number;
        if (left > IDEM__WIRE_VALUES_MAX)
            return IDEM__WIRE_BAD;
    }
    return IDEM__WIRE_DONE;
}

static bool
is(const struct idem__wire_value *value, const char *word)
{
    return value->kind == IDEM__WIRE_BYTES &&
           value->bytes.len == strlen(word) &&
           memcmp(value->bytes.data, word, value->bytes.len) == 0;
}

/* "WORD text" */
static void
split_error(struct idem__wire_reply *reply, struct idem_bytes line)
{
    const uint8_t *start = line.data;
    const uint8_t *space = line.len ? memchr(start, ' ', line.len) : NULL;
    size_t len = space ? (size_t)(space - start) : line.len;

    reply->error = true;
    reply->values = 0;
    reply->word = (struct idem_bytes){start, len};
    if (space)
        reply->text = (struct idem_bytes){space + 1, line.len - len - 1};
}

/* Take ["tag", n, ...] off, and ["error", word, text]. The reply is whole. */
static enum idem__wire_got
open_array(struct idem__wire_reply *reply)
{
    struct idem__wire_reader ahead = reply->reader;
    struct idem__wire_value value = {.number = 0};

    if (reply->values < 3)
        return IDEM__WIRE_DONE;
    (void)idem__wire_read(&ahead, &value);
    if (is(&value, "tag")) {
        (void)idem__wire_read(&ahead, &value);
        if (value.kind != IDEM__WIRE_NUMBER || value.number < 0)
            return IDEM__WIRE_BAD;
        reply->tagged = true;
        reply->tag = value.number;
        reply->values -= 2;
        reply->reader = ahead;
        if (reply->values != 3)
            return IDEM__WIRE_DONE;
        (void)idem__wire_read(&ahead, &value);
    }
    if (!is(&value, "error"))
        return IDEM__WIRE_DONE;
    (void)idem__wire_read(&ahead, &value);
    reply->word = value.bytes;
    (void)idem__wire_read(&ahead, &value);
    reply->text = value.bytes;
    reply->error = true;
    reply->values = 0;
    return IDEM__WIRE_DONE;
}

enum idem__wire_got
idem__wire_reply(struct idem_bytes in, size_t longest,
                 struct idem__wire_reply *reply, size_t *used)
{
    const uint8_t *start = in.data;
    struct idem__wire_reader whole = {start, start + in.len, longest};
    struct idem__wire_value value;
    enum idem__wire_got got;
    size_t missing;

    *used = in.len + 1;
    if (in.len == 0)
        return IDEM__WIRE_MORE;
    *reply = (struct idem__wire_reply){.reader = whole};
    got = skip(&whole, &missing);
    *used =
        got == IDEM__WIRE_DONE ? (size_t)(whole.at - start) : in.len + missing;
    if (got != IDEM__WIRE_DONE)
        return got;
    reply->reader.end = whole.at;
    reply->values = 1;
    if (*start == '-') {
        (void)idem__wire_read(&reply->reader, &value);
        split_error(reply, value.bytes);
    } else if (*start == '*') {
        (void)idem__wire_read(&reply->reader, &value);
        reply->values = (size_t)value.number;
        return open_array(reply);
    }
    return IDEM__WIRE_DONE;
}

/* ---- answers, read --------------------------------------------------- */

/* A word that is no status of ours (NOAUTH, NOPERM ...) is part of the text. */
enum idem_status
idem__wire_error(const struct idem__wire_reply *reply, struct idem_error *err)
{
    enum idem_status status;
    bool plain;

    if (!idem__status_parse(reply->word, &status) || status == IDEM_OK)
        status = IDEM_ERR_INVALID;
    plain = status != IDEM_ERR_INVALID || idem__bytes_is(reply->word, "ERR");
    return idem__fail(err, status, "%.*s%s%.*s",
                      plain ? 0 : (int)reply->word.len,
                      (const char *)reply->word.data, plain ? "" : " ",
                      (int)(reply->text.len < 240 ? reply->text.len : 240),
                      reply->text.len ? (const char *)reply->text.data : "");
}

enum idem_status
idem__wire_unexpected(struct idem_error *err)
{
    return idem__fail(err, IDEM_ERR_UNSUPPORTED,
                      "unexpected reply: is this an idem server of this "
                      "version?");
}

bool
idem__wire_take(struct idem__wire_reply *reply, enum idem__wire_kind kind,
                struct idem__wire_value *value)
{
    if (reply->values == 0 ||
        idem__wire_read(&reply->reader, value) != IDEM__WIRE_DONE)
        return false;
    reply->values--;
    return value->kind == kind;
}

bool
idem__wire_take_number(struct idem__wire_reply *reply, int64_t *number)
{
    struct idem__wire_value value;
    bool taken = idem__wire_take(reply, IDEM__WIRE_NUMBER, &value);

    if (taken)
        *number = value.number;
    return taken;
}

bool
idem__wire_take_bytes(struct idem__wire_reply *reply, struct idem_bytes *bytes)
{
    struct idem__wire_value value = {.kind = IDEM__WIRE_ERROR};
    bool taken = idem__wire_take(reply, IDEM__WIRE_BYTES, &value);

    if (taken)
        *bytes = value.bytes;
    return taken || value.kind == IDEM__WIRE_NULL;
}

enum idem_status
idem__wire_verdict(struct idem__wire_reply *reply, enum idem_verdict *verdict,
                   struct idem_error *err)
{
    struct idem__wire_value value;

    if (reply->error)
        return idem__wire_error(reply, err);
    if (!idem__wire_take(reply, IDEM__WIRE_BYTES, &value) ||
        !idem__verdict_parse(value.bytes, verdict))
        return idem__wire_unexpected(err);
    return IDEM_OK;
}

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

/* A record as names and values, in any order. */
static bool
take_record(struct idem__wire_reply *reply, struct idem__wire_brief *brief)
{
    bool ok = true;

    while (ok && reply->values > 1) {
        struct idem__wire_value name, value;

        ok = idem__wire_take(reply, IDEM__WIRE_BYTES, &name);
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

/* What follows the verdict; idem__wire_put_brief puts it. */
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

/* ---- answers, put ---------------------------------------------------- */

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
    SHAPE_FLAG,   /* 1 if it is set */
    SHAPE_NOFLAG, /* 1 if it is not */
};

#define AT(member) offsetof(struct idem_record, member)

/* A record as names and values, but for its result. */
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
/* A name and its value, if that is not bytes: each a line and a short word. */
#define FIELD_ROOM (2 * (IDEM__WIRE_LINE_MAX + 16))
/* A tagged verdict with its numbers and words. */
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

/* What follows the verdict; take_rest takes it. */
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
