/*
 * multipart.c - read a field of a multipart/form-data body, which forms with
 * files send. The first line is the boundary, which also precedes every next
 * part and, with two more dashes, follows the last.
 */
#include "fields.h"

#include <string.h>
#include <strings.h>

struct text {
    const uint8_t *at, *end;
};

/* The first occurrence of `what`, or NULL. */
static const uint8_t *
find(struct text in, const void *what, size_t len)
{
    return in.at < in.end ? memmem(in.at, (size_t)(in.end - in.at), what, len)
                          : NULL;
}

static bool
starts(struct text in, const char *what)
{
    size_t len = strlen(what);

    return (size_t)(in.end - in.at) >= len &&
           strncasecmp((const char *)in.at, what, len) == 0;
}

/* Does the line have a parameter of this name? Gets its value, without
 * quotes. */
static bool
parameter(struct text line, const char *name, struct text *value)
{
    bool quoted = false;

    for (; line.at < line.end; line.at++) {
        if (*line.at == '"')
            quoted = !quoted;
        if (quoted || *line.at != ';')
            continue;
        do
            line.at++;
        while (line.at < line.end && (*line.at == ' ' || *line.at == '\t'));
        if (starts(line, name) && line.at + strlen(name) < line.end &&
            line.at[strlen(name)] == '=') {
            const uint8_t *stop;

            value->at = line.at + strlen(name) + 1;
            quoted = value->at < line.end && *value->at == '"';
            value->at += quoted;
            value->end = line.end;
            stop = find(*value, quoted ? "\"" : ";", 1);
            if (stop)
                value->end = stop;
            return true;
        }
        line.at--;
    }
    return false;
}

/* Do these headers name the field? `file`: the field is sent as a file. */
static bool
names(struct text head, struct idem_bytes name, bool *file)
{
    struct text line, value;

    for (line.at = head.at; line.at < head.end; line.at = line.end + 2) {
        struct text rest = {line.at, head.end};
        const uint8_t *stop = find(rest, "\r\n", 2);

        line.end = stop ? stop : head.end;
        if (!starts(line, "content-disposition:"))
            continue;
        *file = parameter(line, "filename", &value);
        return parameter(line, "name", &value) &&
               (size_t)(value.end - value.at) == name.len &&
               memcmp(value.at, name.data, name.len) == 0;
    }
    return false;
}

enum gateway_field
gateway_multipart_field(struct idem_bytes in, struct idem_bytes name,
                        uint8_t *out, size_t *out_len)
{
    struct text rest = {in.data, (const uint8_t *)in.data + in.len};
    const uint8_t *first = find(rest, "\r\n", 2);
    struct text found = {NULL, NULL};
    size_t boundary;
    char delimiter[2 + 2 + 70]; /* the maximum length of a boundary */

    if (!first || (size_t)(first - rest.at) > sizeof(delimiter) - 2)
        return GATEWAY_FIELD_BAD;
    boundary = (size_t)(first - rest.at);
    memcpy(delimiter, "\r\n", 2);
    memcpy(delimiter + 2, rest.at, boundary);
    rest.at = first;
    while (!starts(rest, "--")) {
        const uint8_t *body = find(rest, "\r\n\r\n", 4);
        struct text part = {body ? body + 4 : rest.end, rest.end};
        const uint8_t *stop = find(part, delimiter, boundary + 2);
        struct text head = {rest.at + 2, body};
        bool file = false;

        if (!body || !stop || !starts(rest, "\r\n"))
            return GATEWAY_FIELD_BAD;
        part.end = stop;
        if (body > rest.at && names(head, name, &file)) {
            if (found.at || file)
                return GATEWAY_FIELD_BAD;
            found = part;
        }
        rest.at = stop + boundary + 2;
    }
    if (found.at == found.end)
        return GATEWAY_FIELD_NONE;
    *out_len = (size_t)(found.end - found.at);
    if (*out_len > GATEWAY_FIELD_MAX)
        return GATEWAY_FIELD_BAD;
    memcpy(out, found.at, *out_len);
    return GATEWAY_FIELD_FOUND;
}
