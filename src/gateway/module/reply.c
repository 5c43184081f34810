/*
 * reply.c - a RESP reader for flat answers, one whole answer at a time.
 *
 * An answer that is not complete is read again from its start when more has
 * arrived: it has few values, and a long one is jumped over by its length.
 */
#include "reply.h"

#include <string.h>

struct reader {
    const uint8_t *at, *end;
};

/* A line up to CR LF; lines are short, so a long one is no answer. */
static enum gateway_read
read_line(struct reader *in, struct idem_bytes *line)
{
    size_t len = (size_t)(in->end - in->at);
    const uint8_t *lf = len ? memchr(in->at, '\n', len) : NULL;

    if (!lf)
        return len > 4096 ? GATEWAY_READ_BAD : GATEWAY_READ_MORE;
    if (lf == in->at || lf[-1] != '\r')
        return GATEWAY_READ_BAD;
    *line = (struct idem_bytes){in->at, (size_t)(lf - 1 - in->at)};
    in->at = lf + 1;
    return GATEWAY_READ_DONE;
}

/* A 64-bit number up to CR LF, in one go: an answer is mostly numbers. */
static enum gateway_read
read_number(struct reader *in, struct idem_bytes *digits, int64_t *number)
{
    bool minus = in->at < in->end && *in->at == '-';
    const uint8_t *at = in->at + minus, *first = at;
    const uint8_t *last = in->end - at > 19 ? at + 19 : in->end;
    uint64_t sum = 0;
    unsigned digit;

    while (at < last && (digit = *at - (unsigned)'0') < 10) {
        sum = sum * 10 + digit;
        at++;
    }
    if (at == in->end)
        return GATEWAY_READ_MORE;
    if (at == first || *at != '\r' || sum > (uint64_t)INT64_MAX + minus)
        return GATEWAY_READ_BAD;
    if (at + 1 == in->end)
        return GATEWAY_READ_MORE;
    if (at[1] != '\n')
        return GATEWAY_READ_BAD;
    *digits = (struct idem_bytes){in->at, (size_t)(at - in->at)};
    *number = (int64_t)(minus ? 0 - sum : sum);
    in->at = at + 2;
    return GATEWAY_READ_DONE;
}

static enum gateway_read
read_string(struct reader *in, size_t longest, int64_t len,
            struct idem_bytes *bytes)
{
    if (len < -1 || (len > 0 && (uint64_t)len > longest))
        return GATEWAY_READ_BAD;
    if (len == -1)
        return GATEWAY_READ_DONE;
    if ((size_t)(in->end - in->at) < (size_t)len + 2)
        return GATEWAY_READ_MORE;
    *bytes = (struct idem_bytes){in->at, (size_t)len};
    in->at += len;
    if (in->at[0] != '\r' || in->at[1] != '\n')
        return GATEWAY_READ_BAD;
    in->at += 2;
    return GATEWAY_READ_DONE;
}

static enum gateway_read
read_value(struct reader *in, size_t longest, struct gateway_value *value)
{
    struct idem_bytes digits;
    enum gateway_read got;
    int64_t number;
    uint8_t type;

    if (in->at == in->end)
        return GATEWAY_READ_MORE;
    type = *in->at++;
    *value = (struct gateway_value){0};
    if (type == '+' || type == '-')
        return read_line(in, &value->bytes);
    if (type != ':' && type != '$')
        return GATEWAY_READ_BAD;
    got = read_number(in, &digits, &number);
    if (got != GATEWAY_READ_DONE)
        return got;
    if (type == '$')
        return read_string(in, longest, number, &value->bytes);
    *value = (struct gateway_value){digits, number, true};
    return GATEWAY_READ_DONE;
}

/* "-WORD text" becomes "error", WORD, text, as it comes under a tag. */
static void
split_error(struct gateway_reply *reply)
{
    struct idem_bytes line = reply->values[0].bytes;
    const uint8_t *space = line.len ? memchr(line.data, ' ', line.len) : NULL;
    size_t word =
        space ? (size_t)(space - (const uint8_t *)line.data) : line.len;

    memset(reply->values, 0, sizeof(reply->values[0]) * 3);
    reply->values[0].bytes = (struct idem_bytes){"error", 5};
    reply->values[1].bytes = (struct idem_bytes){line.data, word};
    if (space)
        reply->values[2].bytes =
            (struct idem_bytes){space + 1, line.len - word - 1};
    reply->count = 3;
}

static enum gateway_read
read_array(struct reader *in, size_t longest, struct gateway_reply *reply)
{
    struct idem_bytes digits;
    enum gateway_read got;
    int64_t count;
    size_t skip = 0;

    in->at++; /* the star */
    got = read_number(in, &digits, &count);
    if (got != GATEWAY_READ_DONE)
        return got;
    if (count < 1 || count > GATEWAY_VALUES_MAX + 2)
        return GATEWAY_READ_BAD;
    for (int64_t i = 0; i < count; i++) {
        struct gateway_value value;

        got = read_value(in, longest, &value);
        if (got != GATEWAY_READ_DONE)
            return got;
        if (i == 0 && count > 2 && value.bytes.len == 3 &&
            memcmp(value.bytes.data, "tag", 3) == 0) {
            skip = 2;
        } else if (i == 1 && skip) {
            if (!value.is_number || value.number < 0)
                return GATEWAY_READ_BAD;
            reply->tagged = true;
            reply->tag = (uint64_t)value.number;
        } else {
            if (reply->count == GATEWAY_VALUES_MAX)
                return GATEWAY_READ_BAD;
            reply->values[reply->count++] = value;
        }
    }
    return GATEWAY_READ_DONE;
}

enum gateway_read
gateway_reply_read(struct idem_bytes in, size_t longest,
                   struct gateway_reply *reply, size_t *used)
{
    struct reader reader = {in.data, (const uint8_t *)in.data + in.len};
    enum gateway_read got;

    if (in.len == 0)
        return GATEWAY_READ_MORE;
    reply->tagged = false;
    reply->tag = 0;
    reply->count = 0;
    if (*reader.at == '*') {
        got = read_array(&reader, longest, reply);
    } else {
        got = read_value(&reader, longest, &reply->values[0]);
        reply->count = 1;
        if (got == GATEWAY_READ_DONE && *(const uint8_t *)in.data == '-')
            split_error(reply);
    }
    if (got == GATEWAY_READ_DONE)
        *used = (size_t)(reader.at - (const uint8_t *)in.data);
    return got;
}
