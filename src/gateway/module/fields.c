/*
 * fields.c - read one field of a form or of XML; see fields.h.
 */
#include "fields.h"

#include "../../base/hex.h"
#include "../../base/utf8.h"

#include <string.h>

struct out {
    uint8_t *data;
    size_t len;
    bool full;
};

static void
out_add(struct out *out, uint8_t c)
{
    if (out->len == GATEWAY_FIELD_MAX)
        out->full = true;
    else
        out->data[out->len++] = c;
}

const uint8_t *
gateway_body_start(struct idem_bytes in)
{
    const uint8_t *at = in.data;
    const uint8_t *end = at + in.len;

    while (at < end && memchr("\xef\xbb\xbf \t\r\n", *at, 7))
        at++;
    return at;
}

static void
form_decode(const uint8_t *at, const uint8_t *end, struct out *out)
{
    out->len = 0;
    out->full = false;
    while (at < end) {
        if (*at == '%' && end - at > 2 && idem__hex_byte(at + 1) >= 0) {
            out_add(out, (uint8_t)idem__hex_byte(at + 1));
            at += 3;
        } else {
            out_add(out, *at == '+' ? ' ' : *at);
            at++;
        }
    }
}

enum gateway_field
gateway_form_field(struct idem_bytes in, struct idem_bytes name, uint8_t *out,
                   size_t *out_len)
{
    const uint8_t *at = in.data;
    const uint8_t *end = at + in.len;
    const uint8_t *found = NULL, *found_end = NULL;
    struct out value = {out, 0, false};

    if (in.len > 2 && memcmp(at, "--", 2) == 0)
        return gateway_multipart_field(in, name, out, out_len);
    while (at < end) {
        const uint8_t *stop = memchr(at, '&', (size_t)(end - at));
        const uint8_t *equals;

        stop = stop ? stop : end;
        equals = memchr(at, '=', (size_t)(stop - at));
        equals = equals ? equals : stop;
        form_decode(at, equals, &value);
        if (!value.full && value.len == name.len &&
            memcmp(out, name.data, name.len) == 0) {
            if (found)
                return GATEWAY_FIELD_BAD;
            found = equals < stop ? equals + 1 : stop;
            found_end = stop;
        }
        at = stop + 1;
    }
    if (!found)
        return GATEWAY_FIELD_NONE;
    form_decode(found, found_end, &value);
    if (value.full)
        return GATEWAY_FIELD_BAD;
    *out_len = value.len;
    return value.len ? GATEWAY_FIELD_FOUND : GATEWAY_FIELD_NONE;
}

/* ---- XML --------------------------------------------------------------- */

static bool
starts(const uint8_t *at, const uint8_t *end, const char *text)
{
    size_t len = strlen(text);

    return (size_t)(end - at) >= len && memcmp(at, text, len) == 0;
}

/* The position after `text`, or NULL. */
static const uint8_t *
skip_past(const uint8_t *at, const uint8_t *end, const char *text)
{
    const uint8_t *hit =
        at < end ? memmem(at, (size_t)(end - at), text, strlen(text)) : NULL;

    return hit ? hit + strlen(text) : NULL;
}

static void
add_utf8(struct out *out, uint32_t c)
{
    uint8_t bytes[4];
    size_t len = idem__utf8_write(c, bytes);

    for (size_t i = 0; i < len; i++)
        out_add(out, bytes[i]);
}

/* Reads &amp; &#65; &#x41;. Returns the position after it, or NULL if it is
 * none of these. */
static const uint8_t *
entity(const uint8_t *at, const uint8_t *end, struct out *out)
{
    static const struct {
        const char *text;
        uint8_t c;
    } known[] = {{"&amp;", '&'},
                 {"&lt;", '<'},
                 {"&gt;", '>'},
                 {"&quot;", '"'},
                 {"&apos;", '\''}};
    uint32_t sum = 0;
    bool hex;

    for (size_t i = 0; i < 5; i++) {
        if (starts(at, end, known[i].text)) {
            out_add(out, known[i].c);
            return at + strlen(known[i].text);
        }
    }
    if (!starts(at, end, "&#"))
        return NULL;
    at += 2;
    hex = at < end && *at == 'x';
    at += hex;
    for (; at < end && *at != ';'; at++) {
        int digit = idem__hex_digit(*at);

        if (digit < 0 || (!hex && digit > 9))
            return NULL;
        sum = sum * (hex ? 16 : 10) + (uint32_t)digit;
        if (sum > 0x10ffff)
            return NULL;
    }
    if (at >= end || sum == 0)
        return NULL;
    add_utf8(out, sum);
    return at + 1;
}

/* The text up to the end tag. */
static bool
xml_text(const uint8_t *at, const uint8_t *end, struct out *out)
{
    while (at < end && !starts(at, end, "</")) {
        if (starts(at, end, "<![CDATA[")) {
            const uint8_t *stop = skip_past(at + 9, end, "]]>");

            if (!stop)
                return false;
            for (at += 9; at < stop - 3; at++)
                out_add(out, *at);
            at = stop;
        } else if (starts(at, end, "<!--")) {
            at = skip_past(at + 4, end, "-->");
            if (!at)
                return false;
        } else if (*at == '&') {
            at = entity(at, end, out);
            if (!at)
                return false;
        } else if (*at == '<') {
            return false;
        } else {
            out_add(out, *at++);
        }
        if (out->full)
            return false;
    }
    return at < end;
}

/* The end of a tag: the position after its '>', ignoring one in quotes. */
static const uint8_t *
tag_end(const uint8_t *at, const uint8_t *end, bool *empty)
{
    uint8_t quote = 0;
    uint8_t before = 0;

    for (; at < end; at++) {
        if (quote) {
            quote = *at == quote ? 0 : quote;
        } else if (*at == '"' || *at == '\'') {
            quote = *at;
        } else if (*at == '>') {
            *empty = before == '/';
            return at + 1;
        }
        before = *at;
    }
    return NULL;
}

static bool
name_ends(uint8_t c)
{
    return c == '>' || c == '/' || c == ' ' || c == '\t' || c == '\r' ||
           c == '\n';
}

/* Is the tag that begins at `at` (after its '<') an element of this name? */
static bool
tag_is(const uint8_t *at, const uint8_t *end, struct idem_bytes name)
{
    const uint8_t *stop = at;
    const uint8_t *local = at;

    while (stop < end && !name_ends(*stop)) {
        if (*stop == ':')
            local = stop + 1;
        stop++;
    }
    return (size_t)(stop - local) == name.len &&
           memcmp(local, name.data, name.len) == 0;
}

static void
trim(struct out *out)
{
    size_t skip = 0;

    while (out->len > 0 && out->data[out->len - 1] <= ' ')
        out->len--;
    while (skip < out->len && out->data[skip] <= ' ')
        skip++;
    out->len -= skip;
    memmove(out->data, out->data + skip, out->len);
}

enum gateway_field
gateway_xml_field(struct idem_bytes in, struct idem_bytes name, uint8_t *out,
                  size_t *out_len)
{
    const uint8_t *at = gateway_body_start(in);
    const uint8_t *end = (const uint8_t *)in.data + in.len;
    struct out value = {out, 0, false};

    if (at == end || *at != '<')
        return GATEWAY_FIELD_NONE;
    while (at && at < end) {
        bool empty = false;
        bool wanted;

        at = memchr(at, '<', (size_t)(end - at));
        if (!at)
            break;
        if (starts(at, end, "<!--")) {
            at = skip_past(at + 4, end, "-->");
        } else if (starts(at, end, "<![CDATA[")) {
            at = skip_past(at + 9, end, "]]>");
        } else if (starts(at, end, "<?")) {
            at = skip_past(at + 2, end, "?>");
        } else if (starts(at, end, "<!")) {
            return GATEWAY_FIELD_BAD; /* it can redefine all */
        } else {
            wanted = tag_is(at + 1, end, name);
            at = tag_end(at + 1, end, &empty);
            if (!at || !wanted)
                continue;
            if (empty)
                return GATEWAY_FIELD_NONE;
            if (!xml_text(at, end, &value))
                return GATEWAY_FIELD_BAD;
            trim(&value);
            *out_len = value.len;
            return value.len ? GATEWAY_FIELD_FOUND : GATEWAY_FIELD_NONE;
        }
    }
    return GATEWAY_FIELD_NONE;
}
