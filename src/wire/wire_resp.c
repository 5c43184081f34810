/*
 * wire_resp.c - RESP2, the Redis protocol: reads and writes numbers and values,
 * and reads the requests of clients.
 *
 * A request is an array of bulk strings, "*2\r\n$4\r\nPING\r\n$2\r\nhi\r\n", or
 * an inline line of words, "PING hi\r\n" (a word in double quotes may hold
 * spaces). Everything is read in place and without state: an incomplete request
 * is read again from its start when more bytes have arrived.
 */
#include "wire_digits.h"

#include <string.h>

#define LINE_MAX_LEN 4096 /* of a simple string or an error */
#define INLINE_MAX 16384
#define TLS_HANDSHAKE 0x16 /* first byte from a client that uses TLS */

/* ---- numbers --------------------------------------------------------- */

bool
idem__wire_number(struct idem_bytes text, int64_t *number)
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

/* 1 for zero. */
static size_t
count_digits(uint64_t number)
{
    static const uint64_t powers[] = {UINT64_C(0),
                                      UINT64_C(10),
                                      UINT64_C(100),
                                      UINT64_C(1000),
                                      UINT64_C(10000),
                                      UINT64_C(100000),
                                      UINT64_C(1000000),
                                      UINT64_C(10000000),
                                      UINT64_C(100000000),
                                      UINT64_C(1000000000),
                                      UINT64_C(10000000000),
                                      UINT64_C(100000000000),
                                      UINT64_C(1000000000000),
                                      UINT64_C(10000000000000),
                                      UINT64_C(100000000000000),
                                      UINT64_C(1000000000000000),
                                      UINT64_C(10000000000000000),
                                      UINT64_C(100000000000000000),
                                      UINT64_C(1000000000000000000),
                                      UINT64_C(10000000000000000000)};
    /* 1233 / 4096 is a little less than log10(2) */
    size_t bits = 64 - (size_t)__builtin_clzll(number | 1);
    size_t guess = bits * 1233 >> 12;

    return guess + (number >= powers[guess]);
}

static const char pairs[] =
    "00010203040506070809101112131415161718192021222324"
    "25262728293031323334353637383940414243444546474849"
    "50515253545556575859606162636465666768697071727374"
    "75767778798081828384858687888990919293949596979899";

size_t
idem__wire_digits(int64_t number, char *out)
{
    uint64_t left = number < 0 ? -(uint64_t)number : (uint64_t)number;
    size_t len = count_digits(left);
    char *at;

    if (number < 0)
        *out++ = '-';
    at = out + len;
    while (left >= 10000) {
        uint32_t four = (uint32_t)(left % 10000);

        at -= 4;
        memcpy(at, pairs + 2 * (four / 100), 2);
        memcpy(at + 2, pairs + 2 * (four % 100), 2);
        left /= 10000;
    }
    if (left >= 100) {
        at -= 2;
        memcpy(at, pairs + 2 * (left % 100), 2);
        left /= 100;
    }
    if (left >= 10)
        memcpy(out, pairs + 2 * left, 2);
    else if (at > out)
        *out = (char)('0' + left);
    return len + (number < 0);
}

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

static enum idem__wire_got
read_string(struct idem__wire_reader *in, int64_t len,
            struct idem__wire_value *value)
{
    if (len == -1)
        return IDEM__WIRE_DONE;
    value->kind = IDEM__WIRE_BYTES; /* also if it is incomplete */
    if (len < 0 || (uint64_t)len > in->longest)
        return IDEM__WIRE_BAD;
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
    got = idem__wire_read_digits(in, &value->number);
    if (got != IDEM__WIRE_DONE)
        return got;
    if (mark == '$')
        return read_string(in, value->number, value);
    value->kind = mark == ':' ? IDEM__WIRE_NUMBER : IDEM__WIRE_ARRAY;
    if (mark == '*' &&
        (value->number < 0 || value->number > IDEM__WIRE_VALUES_MAX))
        return IDEM__WIRE_BAD;
    return IDEM__WIRE_DONE;
}

/* ---- writing --------------------------------------------------------- */

char *
idem__wire_put_line(char *out, char mark, int64_t number)
{
    *out++ = mark;
    if ((uint64_t)number < 10) {
        *out++ = (char)('0' + number);
    } else if ((uint64_t)number < 100) {
        memcpy(out, pairs + 2 * number, 2);
        out += 2;
    } else {
        out += idem__wire_digits(number, out);
    }
    memcpy(out, "\r\n", 2);
    return out + 2;
}

char *
idem__wire_put_bytes(char *out, struct idem_bytes bytes)
{
    out = idem__wire_put_line(out, '$', (int64_t)bytes.len);
    if (bytes.len > 0)
        memcpy(out, bytes.data, bytes.len);
    memcpy(out + bytes.len, "\r\n", 2);
    return out + bytes.len + 2;
}

char *
idem__wire_put_text(char *out, const char *text)
{
    return idem__wire_put_bytes(out, idem_text(text));
}

char *
idem__wire_put_null(char *out)
{
    memcpy(out, "$-1\r\n", 5);
    return out + 5;
}

static char *
put_safe(char *out, const char *text)
{
    for (; *text; text++)
        *out++ = (unsigned char)*text < 0x20 || *text == 0x7f ? '?' : *text;
    return out;
}

char *
idem__wire_put_simple(char *out, const char *text)
{
    *out = '+';
    out = put_safe(out + 1, text);
    memcpy(out, "\r\n", 2);
    return out + 2;
}

char *
idem__wire_put_error(char *out, const char *word, const char *text)
{
    *out = '-';
    out = put_safe(out + 1, word);
    *out = ' ';
    out = put_safe(out + 1, text);
    memcpy(out, "\r\n", 2);
    return out + 2;
}

char *
idem__wire_put_head(char *out, bool tagged, int64_t tag, size_t count)
{
    out = idem__wire_put_line(out, '*', (int64_t)count + (tagged ? 2 : 0));
    if (!tagged)
        return out;
    out = idem__wire_put_text(out, "tag");
    return idem__wire_put_line(out, ':', tag);
}

/* ---- requests -------------------------------------------------------- */

static const char too_many[] = "Protocol error: more than 64 arguments";

_Static_assert(IDEM__WIRE_REQUEST_MAX == 64, "too_many says so");

static enum idem__wire_got
wrong(struct idem_error *err, const char *text)
{
    (void)idem__fail(err, IDEM_ERR_INVALID, "%s", text);
    return IDEM__WIRE_BAD;
}

static enum idem__wire_got
wrong_mark(struct idem_error *err, uint8_t mark)
{
    (void)idem__fail(err, IDEM_ERR_INVALID,
                     "Protocol error: expected '$', got '%c'",
                     mark > 0x20 && mark < 0x7f ? mark : ' ');
    return IDEM__WIRE_BAD;
}

/* Read one argument of a request that starts at `start`. MORE: *used bytes from
 * there are needed, if its length is known. */
static enum idem__wire_got
read_arg(const uint8_t *start, struct idem__wire_reader *in,
         struct idem_bytes *arg, size_t *used, struct idem_error *err)
{
    enum idem__wire_got got;
    const uint8_t *crlf;
    int64_t len = 0;
    size_t end;

    if (in->at == in->end)
        return IDEM__WIRE_MORE;
    if (*in->at++ != '$')
        return wrong_mark(err, in->at[-1]);
    got = idem__wire_read_digits(in, &len);
    if (got == IDEM__WIRE_MORE)
        return got;
    if (got == IDEM__WIRE_BAD || len < 0)
        return wrong(err, "Protocol error: invalid bulk length");
    end = (size_t)(in->at - start) + (size_t)len + 2;
    if (end > in->longest)
        return wrong(err,
                     "Protocol error: the command is longer than the limit");
    if (end > (size_t)(in->end - start)) {
        *used = end;
        return IDEM__WIRE_MORE;
    }
    *arg = (struct idem_bytes){in->at, (size_t)len};
    in->at = start + end;
    crlf = in->at - 2;
    return crlf[0] == '\r' && crlf[1] == '\n'
               ? IDEM__WIRE_DONE
               : wrong(err,
                       "Protocol error: a bulk string does not end in CRLF");
}

static enum idem__wire_got
read_array(const uint8_t *start, struct idem__wire_reader *in,
           struct idem__wire_request *request, size_t *used,
           struct idem_error *err)
{
    struct idem__wire_value value;
    enum idem__wire_got got = idem__wire_read(in, &value);

    if (got == IDEM__WIRE_MORE)
        return got;
    if (value.kind != IDEM__WIRE_ARRAY || value.number > 1024 * 1024)
        return wrong(err, "Protocol error: invalid multibulk length");
    if (value.number > IDEM__WIRE_REQUEST_MAX)
        return wrong(err, too_many);
    request->count = value.number > 0 ? (size_t)value.number : 0;
    for (size_t i = 0; i < request->count; i++) {
        got = read_arg(start, in, &request->args[i], used, err);
        if (got != IDEM__WIRE_DONE)
            return got;
    }
    *used = (size_t)(in->at - start);
    return IDEM__WIRE_DONE;
}

static bool
is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\r';
}

static const char *
split_words(const char *at, const char *end, struct idem__wire_request *request)
{
    for (;;) {
        const char *start;

        while (at < end && is_space(*at))
            at++;
        if (at == end)
            return NULL;
        if (request->count == IDEM__WIRE_REQUEST_MAX)
            return too_many;
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
        request->args[request->count++] =
            (struct idem_bytes){start, (size_t)(at - start)};
        if (at < end)
            at++; /* the quote or the space */
    }
}

/* A web page can make a browser send HTTP to any port of this machine. The
 * lines of such a request, above all of its body, must not be read as commands,
 * so the connection is closed after its first line. */
static bool
is_http(const struct idem__wire_request *request)
{
    struct idem_bytes last = {NULL, 0};

    if (request->count > 2)
        last = request->args[request->count - 1];
    return last.len > 5 && memcmp(last.data, "HTTP/", 5) == 0;
}

static enum idem__wire_got
read_inline(struct idem_bytes in, size_t max,
            struct idem__wire_request *request, size_t *used,
            struct idem_error *err)
{
    size_t most = max < INLINE_MAX ? max : INLINE_MAX;
    size_t look = in.len < most ? in.len : most;
    const char *start = in.data, *newline = memchr(start, '\n', look);
    const char *flaw;

    if (!newline)
        return in.len < most
                   ? IDEM__WIRE_MORE
                   : wrong(err, "Protocol error: too big inline request");
    flaw = split_words(start, newline, request);
    if (!flaw && is_http(request))
        flaw = IDEM__WIRE_IS_HTTP;
    *used = (size_t)(newline + 1 - start);
    return flaw ? wrong(err, flaw) : IDEM__WIRE_DONE;
}

enum idem__wire_got
idem__wire_request(struct idem_bytes in, size_t max,
                   struct idem__wire_request *request, size_t *used,
                   struct idem_error *err)
{
    const uint8_t *start = in.data;
    struct idem__wire_reader reader = {start, start + in.len, max};

    request->count = 0;
    *used = in.len + 1;
    if (in.len == 0)
        return IDEM__WIRE_MORE;
    if (*start == TLS_HANDSHAKE)
        return wrong(err, "Protocol error: this port does not speak TLS");
    return *start == '*' ? read_array(start, &reader, request, used, err)
                         : read_inline(in, max, request, used, err);
}
