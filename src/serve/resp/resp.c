/*
 * resp.c - see resp.h.
 */
#include "resp.h"

#include <stdio.h>
#include <string.h>

/* A length line has at most this many bytes: "$", 19 digits, CRLF. */
#define LENGTH_LINE_MAX 22

static const struct wrong {
    const char *bulk_length, *array_length, *end, *too_big, *too_many;
} wrong = {
    .bulk_length = "Protocol error: invalid bulk length",
    .array_length = "Protocol error: invalid multibulk length",
    .end = "Protocol error: a bulk string does not end in CRLF",
    .too_big = "Protocol error: the command is longer than the limit",
    .too_many = "Protocol error: more than 64 arguments",
};

bool
resp_read_number(struct idem_bytes text, int64_t *number)
{
    const uint8_t *bytes = text.data;
    size_t i = text.len > 1 && bytes[0] == '-';
    bool negative = i == 1;
    int64_t value = 0;

    if (text.len == 0 || text.len - i > 18)
        return false;
    for (; i < text.len; i++) {
        if (bytes[i] < '0' || bytes[i] > '9')
            return false;
        value = value * 10 + (bytes[i] - '0');
    }
    *number = negative ? -value : value;
    return true;
}

/* "*3\r\n" or "$5\r\n" at `at`, without its first byte. */
static enum resp_result
read_length(const char **at, const char *end, int64_t *number, const char *flaw,
            const char **error)
{
    size_t room = (size_t)(end - *at);
    size_t look = room < LENGTH_LINE_MAX ? room : LENGTH_LINE_MAX;
    const char *cr = memchr(*at, '\r', look);
    struct idem_bytes text;

    *error = flaw;
    if (!cr)
        return room < LENGTH_LINE_MAX ? RESP_MORE : RESP_WRONG;
    if (cr + 1 == end)
        return RESP_MORE;
    text = (struct idem_bytes){*at, (size_t)(cr - *at)};
    if (cr[1] != '\n' || !resp_read_number(text, number))
        return RESP_WRONG;
    *at = cr + 2;
    return RESP_COMMAND;
}

static enum resp_result
read_bulk(const char *start, const char **at, const char *end, size_t max,
          struct idem_bytes *bulk, size_t *used, const char **error)
{
    static _Thread_local char unexpected[48];
    enum resp_result result;
    int64_t len;

    if (*at == end)
        return RESP_MORE;
    if (**at != '$') {
        char got = **at;

        snprintf(unexpected, sizeof(unexpected),
                 "Protocol error: expected '$', got ' '");
        if (got > 0x20 && got < 0x7f)
            unexpected[strlen(unexpected) - 2] = got;
        *error = unexpected;
        return RESP_WRONG;
    }
    (*at)++;
    result = read_length(at, end, &len, wrong.bulk_length, error);
    if (result != RESP_COMMAND)
        return result;
    if (len < 0)
        return RESP_WRONG;
    if ((uint64_t)len > max || (size_t)(*at - start) + (size_t)len + 2 > max) {
        *error = wrong.too_big;
        return RESP_WRONG;
    }
    if ((size_t)(end - *at) < (size_t)len + 2) {
        *used = (size_t)(*at - start) + (size_t)len + 2;
        return RESP_MORE;
    }
    if ((*at)[len] != '\r' || (*at)[len + 1] != '\n') {
        *error = wrong.end;
        return RESP_WRONG;
    }
    *bulk = (struct idem_bytes){*at, (size_t)len};
    *at += len + 2;
    return RESP_COMMAND;
}

static enum resp_result
parse_array(struct idem_bytes in, size_t max, struct resp_command *command,
            size_t *used, const char **error)
{
    const char *start = in.data, *end = start + in.len, *at = start + 1;
    enum resp_result result;
    int64_t count;

    result = read_length(&at, end, &count, wrong.array_length, error);
    if (result != RESP_COMMAND)
        return result;
    if (count > RESP_ARGS_MAX) {
        *error = count > 1024 * 1024 ? wrong.array_length : wrong.too_many;
        return RESP_WRONG;
    }
    command->count = count > 0 ? (size_t)count : 0;
    for (size_t i = 0; i < command->count; i++) {
        result =
            read_bulk(start, &at, end, max, &command->args[i], used, error);
        if (result != RESP_COMMAND)
            return result;
    }
    *used = (size_t)(at - start);
    return RESP_COMMAND;
}

static bool
is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\r';
}

static const char *
split_words(const char *at, const char *end, struct resp_command *command)
{
    for (;;) {
        const char *start;

        while (at < end && is_space(*at))
            at++;
        if (at == end)
            return NULL;
        if (command->count == RESP_ARGS_MAX)
            return wrong.too_many;
        start = at;
        if (*at == '"') {
            start = ++at;
            at = memchr(at, '"', (size_t)(end - at));
            if (!at || (at + 1 < end && !is_space(at[1])))
                return "Protocol error: unbalanced quotes in request";
        } else {
            while (at < end && !is_space(*at))
                at++;
        }
        command->args[command->count++] =
            (struct idem_bytes){start, (size_t)(at - start)};
        if (at < end)
            at++; /* the quote or the space */
    }
}

/* A web page can make its reader's browser send HTTP to any port of this
 * machine. The lines of such a request are no commands, above all not those of
 * its body: its first line ends the conversation. */
static bool
is_http(const struct resp_command *command)
{
    struct idem_bytes last = {NULL, 0};

    if (command->count > 2)
        last = command->args[command->count - 1];
    return last.len > 5 && memcmp(last.data, "HTTP/", 5) == 0;
}

static enum resp_result
parse_inline(struct idem_bytes in, size_t max, struct resp_command *command,
             size_t *used, const char **error)
{
    size_t most = max < RESP_INLINE_MAX ? max : RESP_INLINE_MAX;
    size_t look = in.len < most ? in.len : most;
    const char *start = in.data, *newline = memchr(start, '\n', look);

    if (!newline) {
        *error = "Protocol error: too big inline request";
        return in.len < most ? RESP_MORE : RESP_WRONG;
    }
    *error = split_words(start, newline, command);
    if (!*error && is_http(command))
        *error = "Protocol error: this is HTTP, which idem serve --http takes";
    *used = (size_t)(newline + 1 - start);
    return *error ? RESP_WRONG : RESP_COMMAND;
}

enum resp_result
resp_parse(struct idem_bytes in, size_t max, struct resp_command *command,
           size_t *used, const char **error)
{
    command->count = 0;
    *used = in.len + 1;
    if (in.len == 0)
        return RESP_MORE;
    if (*(const char *)in.data == '*')
        return parse_array(in, max, command, used, error);
    return parse_inline(in, max, command, used, error);
}

/* ---- replies --------------------------------------------------------- */

size_t
resp_digits(int64_t number, char *out)
{
    static const char pairs[] =
        "00010203040506070809101112131415161718192021222324"
        "25262728293031323334353637383940414243444546474849"
        "50515253545556575859606162636465666768697071727374"
        "75767778798081828384858687888990919293949596979899";
    char digits[RESP_DIGITS_MAX];
    uint64_t left = number < 0 ? -(uint64_t)number : (uint64_t)number;
    size_t at = sizeof(digits), len;

    while (left >= 10000) {
        uint32_t four = (uint32_t)(left % 10000);

        at -= 4;
        memcpy(digits + at, pairs + 2 * (four / 100), 2);
        memcpy(digits + at + 2, pairs + 2 * (four % 100), 2);
        left /= 10000;
    }
    while (left >= 10) {
        at -= 2;
        memcpy(digits + at, pairs + 2 * (left % 100), 2);
        left /= 100;
    }
    if (left > 0 || at == sizeof(digits))
        digits[--at] = (char)('0' + left);
    if (number < 0)
        digits[--at] = '-';
    len = sizeof(digits) - at;
    memcpy(out, digits + at, len);
    return len;
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
resp_add_raw(struct resp_out *out, const void *bytes, size_t len)
{
    char *at = room(out, len);

    if (at) {
        memcpy(at, bytes, len);
        out->buf.len += len;
    }
}

/* A mark, a number, CRLF. */
static void
add_line(struct resp_out *out, char mark, int64_t number)
{
    char *at = room(out, RESP_DIGITS_MAX + 3);
    size_t len = 1;

    if (!at)
        return;
    at[0] = mark;
    len += resp_digits(number, at + 1);
    at[len++] = '\r';
    at[len++] = '\n';
    out->buf.len += len;
}

void
resp_add_array(struct resp_out *out, size_t count)
{
    add_line(out, '*', (int64_t)count);
}

void
resp_add_number(struct resp_out *out, int64_t number)
{
    add_line(out, ':', number);
}

void
resp_add_length(struct resp_out *out, size_t len)
{
    add_line(out, '$', (int64_t)len);
}

void
resp_add_bytes(struct resp_out *out, struct idem_bytes bytes)
{
    resp_add_length(out, bytes.len);
    if (bytes.len > 0)
        resp_add_raw(out, bytes.data, bytes.len);
    resp_add_raw(out, "\r\n", 2);
}

void
resp_add_text(struct resp_out *out, const char *text)
{
    resp_add_bytes(out, idem_text(text));
}

void
resp_add_null(struct resp_out *out)
{
    resp_add_raw(out, "$-1\r\n", 5);
}

void
resp_add_simple(struct resp_out *out, const char *text)
{
    resp_add_raw(out, "+", 1);
    resp_add_raw(out, text, strlen(text));
    resp_add_raw(out, "\r\n", 2);
}

void
resp_add_error(struct resp_out *out, const char *word, const char *text)
{
    size_t word_len = strlen(word), len = strlen(text);
    char *at = room(out, word_len + len + 4);

    if (!at)
        return;
    *at++ = '-';
    memcpy(at, word, word_len);
    at += word_len;
    *at++ = ' ';
    for (size_t i = 0; i < len; i++)
        at[i] =
            (unsigned char)text[i] < 0x20 || text[i] == 0x7f ? '?' : text[i];
    memcpy(at + len, "\r\n", 2);
    out->buf.len += word_len + len + 4;
}
