/*
 * wire_reply.c - replies: cutting them out of what was read, answers in both
 * directions.
 *
 * A reply that is not whole is read again from its start when more has arrived:
 * strings are jumped over by their length, and a short one costs little.
 */
#include "wire.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

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

static enum idem_status
status_of(struct idem_bytes word)
{
    for (int i = 1; i < IDEM__STATUS_COUNT; i++) {
        if (idem__bytes_is(word, idem_status_name((enum idem_status)i)))
            return (enum idem_status)i;
    }
    return IDEM_ERR_INVALID;
}

/* A word that is no status of ours (NOAUTH, NOPERM ...) is part of the text. */
enum idem_status
idem__wire_error(const struct idem__wire_reply *reply, struct idem_error *err)
{
    enum idem_status status = status_of(reply->word);
    bool plain =
        status != IDEM_ERR_INVALID || idem__bytes_is(reply->word, "ERR");

    return idem__fail(err, status, "%.*s%s%.*s",
                      plain ? 0 : (int)reply->word.len,
                      (const char *)reply->word.data, plain ? "" : " ",
                      (int)(reply->text.len < 240 ? reply->text.len : 240),
                      reply->text.len ? (const char *)reply->text.data : "");
}

static enum idem_status
not_ours(struct idem_error *err)
{
    return idem__fail(err, IDEM_ERR_UNSUPPORTED,
                      "unexpected reply: is this an idem server of this "
                      "version?");
}

/* The next value of a reply; false if it has none of that kind. */
static bool
take(struct idem__wire_reply *reply, enum idem__wire_kind kind,
     struct idem__wire_value *value)
{
    if (reply->values == 0 ||
        idem__wire_read(&reply->reader, value) != IDEM__WIRE_DONE)
        return false;
    reply->values--;
    return value->kind == kind;
}

static bool
verdict_of(struct idem_bytes word, enum idem_verdict *verdict)
{
    for (int i = 0; i < IDEM__VERDICT_COUNT; i++) {
        if (idem__bytes_is(word, idem_verdict_name((enum idem_verdict)i))) {
            *verdict = (enum idem_verdict)i;
            return true;
        }
    }
    return false;
}

enum idem_status
idem__wire_answer(struct idem__wire_reply *reply, struct idem_answer *answer,
                  struct idem_record *record, struct idem_error *err)
{
    struct idem__wire_value value;
    enum idem_status status;

    memset(record, 0, sizeof(*record));
    *answer = (struct idem_answer){.record = record};
    if (reply->error)
        return idem__wire_error(reply, err);
    if (reply->values != 4 || !take(reply, IDEM__WIRE_BYTES, &value) ||
        !verdict_of(value.bytes, &answer->verdict) ||
        !take(reply, IDEM__WIRE_NUMBER, &value))
        return not_ours(err);
    answer->retry_after_ms = value.number;
    if (take(reply, IDEM__WIRE_BYTES, &value)) {
        status = idem__decode(value.bytes, record, err);
        if (status != IDEM_OK)
            return status;
    } else if (value.kind != IDEM__WIRE_NULL) {
        return not_ours(err);
    }
    if (take(reply, IDEM__WIRE_BYTES, &value))
        record->result = value.bytes;
    else if (value.kind != IDEM__WIRE_NULL)
        return not_ours(err);
    return IDEM_OK;
}

enum idem_status
idem__wire_scanned(struct idem__wire_reply *reply, struct idem_cursor *next,
                   struct idem_error *err)
{
    struct idem__wire_value value;

    if (reply->error)
        return idem__wire_error(reply, err);
    if (!take(reply, IDEM__WIRE_BYTES, &value) || !is(&value, "records") ||
        !take(reply, IDEM__WIRE_BYTES, &value) || value.bytes.len == 0 ||
        value.bytes.len >= sizeof(next->text))
        return not_ours(err);
    memcpy(next->text, value.bytes.data, value.bytes.len);
    next->text[value.bytes.len] = '\0';
    return IDEM_OK;
}

enum idem_status
idem__wire_record(struct idem__wire_reply *reply, struct idem_record *record,
                  struct idem_error *err)
{
    struct idem__wire_value value;

    if (!take(reply, IDEM__WIRE_BYTES, &value))
        return not_ours(err);
    return idem__decode(value.bytes, record, err);
}

/* ---- answers, written ------------------------------------------------ */

#define NUMBER_ROOM 24

size_t
idem__wire_record_len(const struct idem_record *record)
{
    return NUMBER_ROOM + idem__encoded_len(record) - record->result.len + 2;
}

/* Who knows a nonce could pass for the one who began: it stays here. */
char *
idem__wire_put_record(const struct idem_record *record, char *out)
{
    struct idem_record shown = *record;
    size_t len;

    memset(shown.nonce, 0, sizeof(shown.nonce));
    shown.result = (struct idem_bytes){NULL, 0};
    len = idem__encoded_len(&shown);
    out += snprintf(out, NUMBER_ROOM, "$%zu\r\n", len);
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
    return 64 + NUMBER_ROOM +
           (has_record(answer) ? idem__wire_record_len(answer->record) : 8);
}

char *
idem__wire_put_full(const struct idem_answer *answer, char *out)
{
    const char *word = idem_verdict_name(answer->verdict);

    assert(!has_record(answer) || !idem__record_flaw(answer->record));
    out += snprintf(out, 64 + NUMBER_ROOM, "$%zu\r\n%s\r\n:%lld\r\n",
                    strlen(word), word, (long long)answer->retry_after_ms);
    if (has_record(answer))
        return idem__wire_put_record(answer->record, out);
    memcpy(out, "$-1\r\n", 5);
    return out + 5;
}
