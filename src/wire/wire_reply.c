/*
 * wire_reply.c - replies: cutting them out of what was read, and what they say.
 *
 * A reply that is not whole is read again from its start when more has arrived:
 * strings are jumped over by their length, and a short one costs little.
 */
#include "wire.h"

#include <string.h>

#define LINE_MAX_LEN 4096 /* of a simple string or an error */
#define VALUES_MAX (64 * 1024)

/* ---- values ---------------------------------------------------------- */

static enum idem__wire_got
read_line(struct idem__wire_reader *in, struct idem_bytes *line)
{
    size_t len = (size_t)(in->end - in->at);
    const uint8_t *lf = len ? memchr(in->at, '\n', len) : NULL;

    if (!lf)
        return len > LINE_MAX_LEN ? IDEM__WIRE_BAD : IDEM__WIRE_MORE;
    if (lf == in->at || lf[-1] != '\r')
        return IDEM__WIRE_BAD;
    *line = (struct idem_bytes){in->at, (size_t)(lf - 1 - in->at)};
    in->at = lf + 1;
    return IDEM__WIRE_DONE;
}

/* Digits up to CR LF, in one go: an answer is mostly numbers. */
static enum idem__wire_got
read_digits(struct idem__wire_reader *in, int64_t *number)
{
    bool minus = in->at < in->end && *in->at == '-';
    const uint8_t *at = in->at + minus, *first = at;
    const uint8_t *last = in->end - at > 18 ? at + 18 : in->end;
    uint64_t sum = 0;
    unsigned digit;

    while (at < last && (digit = *at - (unsigned)'0') < 10) {
        sum = sum * 10 + digit;
        at++;
    }
    if (at == in->end)
        return IDEM__WIRE_MORE;
    if (at == first || *at != '\r')
        return IDEM__WIRE_BAD;
    if (at + 1 == in->end)
        return IDEM__WIRE_MORE;
    if (at[1] != '\n')
        return IDEM__WIRE_BAD;
    *number = minus ? -(int64_t)sum : (int64_t)sum;
    in->at = at + 2;
    return IDEM__WIRE_DONE;
}

static enum idem__wire_got
read_string(struct idem__wire_reader *in, int64_t len,
            struct idem__wire_value *value)
{
    if (len < -1 || (len > 0 && (uint64_t)len > in->longest))
        return IDEM__WIRE_BAD;
    if (len == -1) {
        value->kind = IDEM__WIRE_NULL;
        return IDEM__WIRE_DONE;
    }
    value->kind = IDEM__WIRE_BYTES;
    value->number = len; /* also when it is not whole */
    if ((size_t)(in->end - in->at) < (size_t)len + 2)
        return IDEM__WIRE_MORE;
    value->bytes = (struct idem_bytes){in->at, (size_t)len};
    in->at += len;
    if (in->at[0] != '\r' || in->at[1] != '\n')
        return IDEM__WIRE_BAD;
    in->at += 2;
    return IDEM__WIRE_DONE;
}

enum idem__wire_got
idem__wire_read(struct idem__wire_reader *in, struct idem__wire_value *value)
{
    enum idem__wire_got got;
    uint8_t mark;

    *value = (struct idem__wire_value){.kind = IDEM__WIRE_NULL};
    if (in->at == in->end)
        return IDEM__WIRE_MORE;
    mark = *in->at++;
    if (mark == '+' || mark == '-') {
        value->kind = mark == '+' ? IDEM__WIRE_LINE : IDEM__WIRE_ERROR;
        return read_line(in, &value->bytes);
    }
    if (mark != ':' && mark != '$' && mark != '*')
        return IDEM__WIRE_BAD;
    got = read_digits(in, &value->number);
    if (got != IDEM__WIRE_DONE)
        return got;
    if (mark == '$')
        return read_string(in, value->number, value);
    value->kind = mark == ':' ? IDEM__WIRE_NUMBER : IDEM__WIRE_ARRAY;
    if (mark == '*' && (value->number < 0 || value->number > VALUES_MAX))
        return IDEM__WIRE_BAD;
    return IDEM__WIRE_DONE;
}

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
        if (left > VALUES_MAX)
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

/* What follows the verdict; see answer_add in the server. */
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
