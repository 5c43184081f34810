/*
 * resp.c - see resp.h.
 */
#include "resp.h"

#include <string.h>

char *
resp_room(struct resp_out *out, size_t len)
{
    char *at = out->failed ? NULL : (char *)idem_buf_room(&out->buf, len);

    if (!at)
        out->failed = true;
    return at;
}

void
resp_put(struct resp_out *out, const char *end)
{
    out->buf.len = (size_t)(end - (char *)out->buf.data);
}

void
resp_add_raw(struct resp_out *out, const void *bytes, size_t len)
{
    char *at = resp_room(out, len);

    if (at)
        resp_put(out, (char *)memcpy(at, bytes, len) + len);
}

static void
add_line(struct resp_out *out, char mark, int64_t number)
{
    char *at = resp_room(out, IDEM__WIRE_LINE_MAX);

    if (at)
        resp_put(out, idem__wire_put_line(at, mark, number));
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
resp_add_bytes(struct resp_out *out, struct idem_bytes bytes)
{
    char *at = resp_room(out, IDEM__WIRE_LINE_MAX + bytes.len + 2);

    if (at)
        resp_put(out, idem__wire_put_bytes(at, bytes));
}

void
resp_add_text(struct resp_out *out, const char *text)
{
    resp_add_bytes(out, idem_text(text));
}

void
resp_add_null(struct resp_out *out)
{
    add_line(out, '$', -1);
}

void
resp_add_simple(struct resp_out *out, const char *text)
{
    char *at = resp_room(out, strlen(text) + 3);

    if (at)
        resp_put(out, idem__wire_put_simple(at, text));
}

void
resp_add_error(struct resp_out *out, const char *word, const char *text)
{
    char *at = resp_room(out, strlen(word) + strlen(text) + 4);

    if (at)
        resp_put(out, idem__wire_put_error(at, word, text));
}
