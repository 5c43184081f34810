/*
 * json.c - a strict JSON parser that writes the canonical form while it reads.
 *
 * An object's members are written in the order of the text and then sorted in
 * place, so no tree is built: each written member begins with its name, and the
 * members of one object are contiguous.
 */
#include "json.h"

#include "../../base/utf8.h"

#include <stdlib.h>
#include <string.h>

struct reader {
    const uint8_t *at, *end;
    unsigned depth;
    uint8_t *out; /* NULL: parse only */
    size_t out_len;
    bool lacks; /* out of memory: this says nothing of the text */
};

/* One written member: name and value, and the length of its name. */
struct member {
    size_t start, len, name;
};

static bool value(struct reader *in);

static void
put(struct reader *in, uint8_t c)
{
    if (in->out)
        in->out[in->out_len++] = c;
}

static void
spaces(struct reader *in)
{
    while (in->at < in->end && (*in->at == ' ' || *in->at == '\t' ||
                                *in->at == '\r' || *in->at == '\n'))
        in->at++;
}

static bool
word(struct reader *in, const char *text)
{
    size_t len = strlen(text);

    if ((size_t)(in->end - in->at) < len || memcmp(in->at, text, len) != 0)
        return false;
    for (size_t i = 0; i < len; i++)
        put(in, (uint8_t)text[i]);
    in->at += len;
    return true;
}

static bool
digits(struct reader *in)
{
    const uint8_t *start = in->at;

    while (in->at < in->end && *in->at >= '0' && *in->at <= '9')
        put(in, *in->at++);
    return in->at > start;
}

static bool
number(struct reader *in)
{
    if (in->at < in->end && *in->at == '-')
        put(in, *in->at++);
    if (in->at < in->end && *in->at == '0')
        put(in, *in->at++);
    else if (!digits(in))
        return false;
    if (in->at < in->end && *in->at == '.') {
        put(in, *in->at++);
        if (!digits(in))
            return false;
    }
    if (in->at < in->end && (*in->at == 'e' || *in->at == 'E')) {
        put(in, 'e');
        in->at++;
        if (in->at < in->end && (*in->at == '+' || *in->at == '-'))
            put(in, *in->at++);
        if (!digits(in))
            return false;
    }
    return true;
}

static bool
hex4(struct reader *in, uint32_t *code)
{
    *code = 0;
    if (in->end - in->at < 4)
        return false;
    for (int i = 0; i < 4; i++) {
        uint8_t c = *in->at++;
        uint32_t digit = c >= '0' && c <= '9'   ? (uint32_t)(c - '0')
                         : c >= 'a' && c <= 'f' ? (uint32_t)(c - 'a' + 10)
                         : c >= 'A' && c <= 'F' ? (uint32_t)(c - 'A' + 10)
                                                : 16;
        if (digit == 16)
            return false;
        *code = *code * 16 + digit;
    }
    return true;
}

static void
put_escaped(struct reader *in, uint32_t c)
{
    static const char digit[] = "0123456789abcdef";
    uint8_t bytes[4];

    if (c == '"' || c == '\\') {
        put(in, '\\');
        put(in, (uint8_t)c);
    } else if (c < 0x20) {
        put(in, '\\');
        put(in, 'u');
        put(in, '0');
        put(in, '0');
        put(in, (uint8_t)digit[c >> 4]);
        put(in, (uint8_t)digit[c & 15]);
    } else {
        size_t len = idem__utf8_write(c, bytes);

        for (size_t i = 0; i < len; i++)
            put(in, bytes[i]);
    }
}

/* after the backslash and its 'u' */
static bool
unicode_escape(struct reader *in)
{
    uint32_t code, low;

    if (!hex4(in, &code))
        return false;
    if (code >= 0xdc00 && code <= 0xdfff)
        return false;
    if (code >= 0xd800 && code <= 0xdbff) {
        if (in->end - in->at < 6 || in->at[0] != '\\' || in->at[1] != 'u')
            return false;
        in->at += 2;
        if (!hex4(in, &low) || low < 0xdc00 || low > 0xdfff)
            return false;
        code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
    }
    put_escaped(in, code);
    return true;
}

static bool
escape(struct reader *in)
{
    static const char from[] = "\"\\/bfnrt";
    static const char to[] = "\"\\/\b\f\n\r\t";
    const char *known;
    uint8_t c;

    if (in->at >= in->end)
        return false;
    c = *in->at++;
    if (c == 'u')
        return unicode_escape(in);
    known = c ? strchr(from, c) : NULL;
    if (!known)
        return false;
    put_escaped(in, (uint8_t)to[known - from]);
    return true;
}

static bool
string(struct reader *in)
{
    if (in->at >= in->end || *in->at != '"')
        return false;
    put(in, *in->at++);
    while (in->at < in->end && *in->at != '"') {
        uint8_t c = *in->at++;

        if (c < 0x20)
            return false;
        if (c == '\\') {
            if (!escape(in))
                return false;
        } else {
            put(in, c);
        }
    }
    if (in->at >= in->end)
        return false;
    put(in, *in->at++);
    return true;
}

static int
by_name(const void *a, const void *b, void *arg)
{
    const struct member *x = a, *y = b;
    const uint8_t *base = arg;
    size_t len = x->name < y->name ? x->name : y->name;
    int order = memcmp(base + x->start, base + y->start, len);

    return order ? order : (x->name > y->name) - (x->name < y->name);
}

/* Sort the members written from `start` on by their names, with commas between.
 * False if a name is repeated. */
static bool
sort_members(struct reader *in, size_t start, struct member *members,
             size_t count)
{
    size_t len = in->out_len - start;
    uint8_t *copy;
    uint8_t *at = in->out + start;

    qsort_r(members, count, sizeof(*members), by_name, in->out);
    for (size_t i = 1; i < count; i++) {
        if (by_name(&members[i - 1], &members[i], in->out) == 0)
            return false;
    }
    copy = malloc(len);
    if (!copy) {
        in->lacks = true;
        return false;
    }
    memcpy(copy, at, len);
    for (size_t i = 0; i < count; i++) {
        if (i > 0)
            *at++ = ',';
        memcpy(at, copy + (members[i].start - start), members[i].len);
        at += members[i].len;
    }
    in->out_len = (size_t)(at - in->out);
    free(copy);
    return true;
}

static bool
member(struct reader *in, struct member *m)
{
    m->start = in->out_len;
    spaces(in);
    if (!string(in))
        return false;
    m->name = in->out_len - m->start;
    spaces(in);
    if (in->at >= in->end || *in->at++ != ':')
        return false;
    put(in, ':');
    if (!value(in))
        return false;
    m->len = in->out_len - m->start;
    return true;
}

static bool
members(struct reader *in, size_t start)
{
    struct member *list = NULL, one;
    size_t count = 0, room = 0;
    bool good = false;

    for (;;) {
        if (in->out && count == room) {
            struct member *more;

            room = room ? room * 2 : 16;
            more = realloc(list, room * sizeof(*list));
            if (!more) {
                in->lacks = true;
                break;
            }
            list = more;
        }
        if (!member(in, in->out ? &list[count++] : &one))
            break;
        spaces(in);
        if (in->at >= in->end || (*in->at != ',' && *in->at != '}'))
            break;
        if (*in->at++ == '}') {
            good = !in->out || sort_members(in, start, list, count);
            break;
        }
    }
    free(list);
    return good;
}

static bool
object(struct reader *in)
{
    in->at++;
    put(in, '{');
    spaces(in);
    if (in->at < in->end && *in->at == '}') {
        in->at++;
    } else if (!members(in, in->out_len)) {
        return false;
    }
    put(in, '}');
    return true;
}

static bool
array(struct reader *in)
{
    put(in, *in->at++);
    spaces(in);
    if (in->at < in->end && *in->at == ']') {
        put(in, *in->at++);
        return true;
    }
    for (;;) {
        if (!value(in))
            return false;
        spaces(in);
        if (in->at >= in->end || (*in->at != ',' && *in->at != ']'))
            return false;
        put(in, *in->at);
        if (*in->at++ == ']')
            return true;
    }
}

static bool
value(struct reader *in)
{
    bool good;

    spaces(in);
    if (in->at >= in->end || in->depth == GATEWAY_JSON_DEPTH)
        return false;
    in->depth++;
    switch (*in->at) {
    case '{':
        good = object(in);
        break;
    case '[':
        good = array(in);
        break;
    case '"':
        good = string(in);
        break;
    case 't':
        good = word(in, "true");
        break;
    case 'f':
        good = word(in, "false");
        break;
    case 'n':
        good = word(in, "null");
        break;
    default:
        good = number(in);
        break;
    }
    in->depth--;
    return good;
}

size_t
gateway_json_canonical_max(size_t len)
{
    return len * 6 + 16; /* a control character becomes \u00XX */
}

/* The whole text, with nothing after it. */
static bool
whole(struct reader *in)
{
    if (!value(in))
        return false;
    spaces(in);
    return in->at == in->end;
}

/* ---- paths, on canonical text ------------------------------------------ */

/* Skip one value; the text is known to be JSON. */
static const uint8_t *
skip(const uint8_t *at, const uint8_t *end)
{
    struct reader in = {.at = at, .end = end};

    return value(&in) ? in.at : NULL;
}

/* Is the canonical string this name? Names with escapes never match. */
static bool
same_name(const uint8_t *at, const uint8_t *end, struct idem_bytes name)
{
    return (size_t)(end - at) == name.len + 2 &&
           memcmp(at + 1, name.data, name.len) == 0;
}

static const uint8_t *
find_member(const uint8_t *at, const uint8_t *end, struct idem_bytes name)
{
    at++;
    while (at < end && *at == '"') {
        const uint8_t *stop = skip(at, end);
        bool wanted = stop && same_name(at, stop, name);

        if (!stop)
            return NULL;
        at = stop + 1;
        if (wanted)
            return at;
        at = skip(at, end);
        if (!at)
            return NULL;
        at += at < end && *at == ',';
    }
    return NULL;
}

static const uint8_t *
find_item(const uint8_t *at, const uint8_t *end, struct idem_bytes name)
{
    const uint8_t *digit = name.data;
    size_t wanted = 0;

    if (name.len == 0 || name.len > 6)
        return NULL;
    for (size_t i = 0; i < name.len; i++) {
        if (digit[i] < '0' || digit[i] > '9')
            return NULL;
        wanted = wanted * 10 + (size_t)(digit[i] - '0');
    }
    at++;
    while (at && at < end && *at != ']') {
        if (wanted-- == 0)
            return at;
        at = skip(at, end);
        if (at && at < end && *at == ',')
            at++;
    }
    return NULL;
}

static const uint8_t *
follow(const uint8_t *at, const uint8_t *end, struct idem_bytes path)
{
    const uint8_t *name_at = path.data;
    const uint8_t *stop = name_at + path.len;

    while (at && name_at < stop) {
        const uint8_t *dot = memchr(name_at, '.', (size_t)(stop - name_at));
        struct idem_bytes name = {name_at,
                                  (size_t)((dot ? dot : stop) - name_at)};

        if (*at == '{')
            at = find_member(at, end, name);
        else if (*at == '[')
            at = find_item(at, end, name);
        else
            return NULL;
        name_at = dot ? dot + 1 : stop;
    }
    return at;
}

/* Reduce canonical text to what is at this path. */
static bool
cut(uint8_t *text, size_t *len, struct idem_bytes path)
{
    const uint8_t *at, *stop;

    if (path.len == 0)
        return true;
    at = follow(text, text + *len, path);
    stop = at ? skip(at, text + *len) : NULL;
    if (!stop)
        return false;
    *len = (size_t)(stop - at);
    memmove(text, at, *len);
    return true;
}

enum gateway_field
gateway_json_canonical(struct idem_bytes in, struct idem_bytes path,
                       uint8_t *out, size_t *out_len)
{
    struct reader reader = {.at = in.data, .out = out};

    if (!in.data)
        return GATEWAY_FIELD_NONE;
    reader.end = reader.at + in.len;
    if (in.len >= 3 && memcmp(in.data, "\xef\xbb\xbf", 3) == 0)
        reader.at += 3;
    if (!whole(&reader))
        return reader.lacks ? GATEWAY_FIELD_MEMORY : GATEWAY_FIELD_NONE;
    *out_len = reader.out_len;
    return cut(out, out_len, path) ? GATEWAY_FIELD_FOUND : GATEWAY_FIELD_NONE;
}

/* Does the body begin like an object or a list? */
static bool
begins_as_json(struct idem_bytes in)
{
    const uint8_t *end = (const uint8_t *)in.data + in.len;
    const uint8_t *at = gateway_body_start(in);

    return at < end && (*at == '{' || *at == '[');
}

/* Copy a canonical value; null and "" are none. */
static enum gateway_field
copy_value(const uint8_t *text, size_t len, uint8_t *out, size_t *out_len)
{
    bool quoted = text[0] == '"';
    size_t n = quoted ? len - 2 : len;

    if (n == 0 || memcmp(text, "null", len < 4 ? len : 4) == 0)
        return GATEWAY_FIELD_NONE;
    /* A value that needs an escape cannot be a key. */
    if (text[0] == '{' || text[0] == '[' || n > GATEWAY_FIELD_MAX ||
        memchr(text, '\\', len))
        return GATEWAY_FIELD_BAD;
    memcpy(out, text + quoted, n);
    *out_len = n;
    return GATEWAY_FIELD_FOUND;
}

enum gateway_field
gateway_json_field(struct idem_bytes in, struct idem_bytes path, uint8_t *out,
                   size_t *out_len)
{
    static const struct idem_bytes all = {NULL, 0};
    uint8_t *text = malloc(gateway_json_canonical_max(in.len));
    enum gateway_field got = GATEWAY_FIELD_MEMORY;
    size_t len;

    if (text)
        got = gateway_json_canonical(in, all, text, &len);
    if (got == GATEWAY_FIELD_FOUND)
        got = cut(text, &len, path) ? copy_value(text, len, out, out_len)
                                    : GATEWAY_FIELD_NONE;
    else if (got == GATEWAY_FIELD_NONE && begins_as_json(in))
        got = GATEWAY_FIELD_BAD;
    free(text);
    return got;
}
