/*
 * key_header.c - parse a key as a structured-field string or without quotes.
 */
#include "key_header.h"

#include <string.h>

static bool
is_space(uint8_t c)
{
    return c == ' ' || c == '\t';
}

/* Printable ASCII except the space, the quote and the comma: this is what keys
 * are made of. */
static bool
is_plain(uint8_t c)
{
    return c > '"' && c <= 0x7e && c != ',';
}

static struct idem_bytes
trim(struct idem_bytes in)
{
    const uint8_t *at = in.data;

    while (in.len > 0 && is_space(at[0])) {
        at++;
        in.len--;
    }
    while (in.len > 0 && is_space(at[in.len - 1]))
        in.len--;
    in.data = at;
    return in;
}

/* The clients' middleware says the same sentences. */
static const char empty[] = "The key is empty: send a value that is unique for "
                            "this request, for instance a UUID.";
static const char too_long[] = "The key is longer than 255 bytes: send a "
                               "shorter one, for instance a UUID.";

static const char *
check(const uint8_t *key, size_t len)
{
    if (len == 0)
        return empty;
    if (key[0] == ' ' || key[len - 1] == ' ')
        return "The key begins or ends with a space: remove the space.";
    return NULL;
}

/* "..." with \" and \\; nothing may follow the closing quote. */
static const char *
parse_quoted(const uint8_t *at, size_t len, uint8_t *out, size_t *out_len)
{
    size_t n = 0;
    size_t i;

    for (i = 1; i < len && at[i] != '"'; i++) {
        if (at[i] < 0x20 || at[i] > 0x7e)
            return "The key has a character that is not printable ASCII: send "
                   "another key, for instance a UUID.";
        if (at[i] == '\\') {
            if (++i == len || (at[i] != '"' && at[i] != '\\'))
                return "The key has an escape that is neither \\\" nor "
                       "\\\\.";
        }
        if (n == IDEM_ID_MAX)
            return too_long;
        out[n++] = at[i];
    }
    if (i >= len)
        return "The key's closing quote is missing: add it, or send the key "
               "without quotes.";
    if (i + 1 != len)
        return "Something follows the key's closing quote: remove it.";
    *out_len = n;
    return check(out, n);
}

const char *
gateway_key_parse(struct idem_bytes in, bool quoted_only, bool loose_bytes,
                  uint8_t *out, size_t *out_len)
{
    const uint8_t *at;

    in = trim(in);
    at = in.data;
    if (in.len == 0)
        return empty;
    if (at[0] == '"')
        return parse_quoted(at, in.len, out, out_len);
    if (quoted_only)
        return "The key is not a structured-field string: put it in double "
               "quotes.";
    if (in.len > IDEM_ID_MAX)
        return too_long;
    for (size_t i = 0; i < in.len; i++) {
        if (is_plain(at[i]))
            continue;
        if (at[i] < 0x20 || at[i] == 0x7f)
            return "The key has a control character: send printable ASCII.";
        if (!loose_bytes && (at[i] == ' ' || at[i] > 0x7e || at[i] == '"'))
            return "The key has a character that needs quotes, or that is not "
                   "ASCII: send printable ASCII, in double quotes if it has a "
                   "space, comma or quote.";
        /* A proxy joins two lines of a header with a comma. */
        if (!loose_bytes && at[i] == ',')
            return "The key has a comma, as if the header had been sent "
                   "twice: send it once, or put it in double quotes if it is "
                   "one key.";
    }
    memcpy(out, at, in.len);
    *out_len = in.len;
    return check(out, in.len);
}
