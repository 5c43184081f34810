/*
 * result.c - write and read the `http` encoding of a response.
 *
 *   201 LF  Name: value LF ...  LF  body
 */
#include "result.h"

#include <string.h>
#include <strings.h>

/* A bit for each byte that is allowed in an HTTP token. */
static const uint32_t token_bytes[8] = {0, 0x03ff6cfa, 0xc7fffffe, 0x57ffffff,
                                        0, 0,          0,          0};

bool
gateway_header_name_ok(struct idem_bytes name)
{
    const uint8_t *at = name.data;

    for (size_t i = 0; i < name.len; i++) {
        if (!(token_bytes[at[i] >> 5] >> (at[i] & 31) & 1))
            return false;
    }
    return name.len > 0;
}

bool
gateway_header_value_ok(struct idem_bytes value)
{
    const uint8_t *at = value.data;

    for (size_t i = 0; i < value.len; i++) {
        if (at[i] <= '\r' && (at[i] == '\r' || at[i] == '\n' || at[i] == '\0'))
            return false;
    }
    return true;
}

/* This runs for every header of every response, so compare the length first. */
bool
gateway_header_is_hop(struct idem_bytes name)
{
    const char *hop;

    switch (name.len) {
    case 2:
        hop = "te";
        break;
    case 7:
        return strncasecmp(name.data, "trailer", 7) == 0 ||
               strncasecmp(name.data, "upgrade", 7) == 0;
    case 10:
        return strncasecmp(name.data, "connection", 10) == 0 ||
               strncasecmp(name.data, "keep-alive", 10) == 0;
    case 14:
        hop = "content-length";
        break;
    case 16:
        hop = "proxy-connection";
        break;
    case 17:
        hop = "transfer-encoding";
        break;
    case 18:
        hop = "proxy-authenticate";
        break;
    case 19:
        hop = "proxy-authorization";
        break;
    default:
        return false;
    }
    return strncasecmp(name.data, hop, name.len) == 0;
}

size_t
gateway_result_head_len(const struct gateway_result *result)
{
    size_t len = 4 + 1; /* the status line and the empty line */

    if (result->status < 200 || result->status > 599 ||
        result->header_count > GATEWAY_HEADERS_MAX)
        return 0;
    for (size_t i = 0; i < result->header_count; i++) {
        const struct gateway_header *header = &result->headers[i];

        if (!gateway_header_name_ok(header->name) ||
            !gateway_header_value_ok(header->value))
            return 0;
        len += header->name.len + 2 + header->value.len + 1;
    }
    return len <= GATEWAY_HEAD_MAX ? len : 0;
}

static uint8_t *
put(uint8_t *out, struct idem_bytes bytes)
{
    if (bytes.len > 0)
        memcpy(out, bytes.data, bytes.len);
    return out + bytes.len;
}

void
gateway_result_head(const struct gateway_result *result, uint8_t *out)
{
    *out++ = (uint8_t)('0' + result->status / 100);
    *out++ = (uint8_t)('0' + result->status / 10 % 10);
    *out++ = (uint8_t)('0' + result->status % 10);
    *out++ = '\n';
    for (size_t i = 0; i < result->header_count; i++) {
        out = put(out, result->headers[i].name);
        *out++ = ':';
        *out++ = ' ';
        out = put(out, result->headers[i].value);
        *out++ = '\n';
    }
    *out = '\n';
}

/* The next line, without its LF; false if there is none. */
static bool
next_line(struct idem_bytes *in, struct idem_bytes *line)
{
    const uint8_t *lf = in->len ? memchr(in->data, '\n', in->len) : NULL;

    if (!lf)
        return false;
    line->data = in->data;
    line->len = (size_t)(lf - (const uint8_t *)in->data);
    in->data = lf + 1;
    in->len -= line->len + 1;
    return true;
}

static bool
read_status(struct idem_bytes line, unsigned *status)
{
    const uint8_t *at = line.data;

    if (line.len != 3 || at[0] < '2' || at[0] > '5' || at[1] < '0' ||
        at[1] > '9' || at[2] < '0' || at[2] > '9')
        return false;
    *status =
        (unsigned)((at[0] - '0') * 100 + (at[1] - '0') * 10 + (at[2] - '0'));
    return true;
}

static const char *
read_header(struct idem_bytes line, struct gateway_header *header)
{
    const uint8_t *at = line.data;
    const uint8_t *colon = memchr(at, ':', line.len);
    size_t name;

    if (!colon)
        return "a header line has no colon";
    name = (size_t)(colon - at);
    if (name + 1 >= line.len || colon[1] != ' ')
        return "a header has no space after its colon";
    header->name = (struct idem_bytes){at, name};
    header->value = (struct idem_bytes){colon + 2, line.len - name - 2};
    if (!gateway_header_name_ok(header->name))
        return "a header's name is not a token";
    if (!gateway_header_value_ok(header->value))
        return "a header's value holds CR, LF or NUL";
    return NULL;
}

const char *
gateway_result_read(struct idem_bytes in, struct gateway_result *result)
{
    const uint8_t *start = in.data;
    struct idem_bytes line;

    result->header_count = 0;
    if (!next_line(&in, &line) || !read_status(line, &result->status))
        return "the first line is not a status from 200 to 599";
    for (;;) {
        struct gateway_header header;
        const char *flaw;

        if (!next_line(&in, &line))
            return "the empty line after the headers is missing";
        if (line.len == 0)
            break;
        if ((size_t)((const uint8_t *)in.data - start) > GATEWAY_HEAD_MAX)
            return "the headers are longer than 64 KiB";
        flaw = read_header(line, &header);
        if (flaw)
            return flaw;
        if (gateway_header_is_hop(header.name))
            continue;
        if (result->header_count == GATEWAY_HEADERS_MAX)
            return "there are more than 100 headers";
        result->headers[result->header_count++] = header;
    }
    result->body = in;
    return NULL;
}
