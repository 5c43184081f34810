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

static bool
read_number(struct idem_bytes text, int64_t *number)
{
    const uint8_t *at = text.data;
    bool minus = text.len > 0 && at[0] == '-';
    int64_t sum = 0;

    if (text.len == (size_t)minus || text.len > 18)
        return false;
    for (size_t i = minus; i < text.len; i++) {
        if (at[i] < '0' || at[i] > '9')
            return false;
        sum = sum * 10 + (at[i] - '0');
    }
    *number = minus ? -sum : sum;
    return true;
}

static enum gateway_read
read_value(struct reader *in, size_t longest, struct gateway_value *value)
{
    struct idem_bytes line;
    enum gateway_read got = read_line(in, &line);
    struct idem_bytes rest;
    uint8_t type;

    if (got != GATEWAY_READ_DONE)
        return got;
    if (line.len == 0)
        return GATEWAY_READ_BAD;
    type = *(const uint8_t *)line.data;
    rest = (struct idem_bytes){(const uint8_t *)line.data + 1, line.len - 1};
    memset(value, 0, sizeof(*value));
    if (type == '+' || type == '-') {
        value->bytes = rest;
        return GATEWAY_READ_DONE;
    }
    if (!read_number(rest, &value->number))
        return GATEWAY_READ_BAD;
    if (type == ':') {
        value->bytes = rest;
        value->is_number = true;
        return GATEWAY_READ_DONE;
    }
    if (type != '$' || value->number < -1 ||
        (value->number > 0 && (uint64_t)value->number > longest))
        return GATEWAY_READ_BAD;
    if (value->number == -1) {
        value->number = 0;
        return GATEWAY_READ_DONE;
    }
    if ((size_t)(in->end - in->at) < (size_t)value->number + 2)
        return GATEWAY_READ_MORE;
    value->bytes = (struct idem_bytes){in->at, (size_t)value->number};
    in->at += value->number;
    if (in->at[0] != '\r' || in->at[1] != '\n')
        return GATEWAY_READ_BAD;
    in->at += 2;
    value->number = 0;
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
    struct idem_bytes line;
    enum gateway_read got = read_line(in, &line);
    int64_t count;
    size_t skip = 0;

    if (got != GATEWAY_READ_DONE)
        return got;
    line = (struct idem_bytes){(const uint8_t *)line.data + 1, line.len - 1};
    if (!read_number(line, &count) || count < 1 ||
        count > GATEWAY_VALUES_MAX + 2)
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

bool
gateway_reply_is(const struct gateway_reply *reply, size_t i, const char *word)
{
    size_t len = strlen(word);

    return i < reply->count && !reply->values[i].is_number &&
           reply->values[i].bytes.len == len &&
           memcmp(reply->values[i].bytes.data, word, len) == 0;
}
