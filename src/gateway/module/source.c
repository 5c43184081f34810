/*
 * source.c - parse a source of keys and scopes; see source.h.
 */
#include "source.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#define SHOWN_MAX 32 /* the message must fit into struct idem_error */

enum gateway_source
gateway_source_kind(struct idem_bytes text, struct idem_bytes *rest)
{
    static const char *const prefixes[] = {"",
                                           "json:", "form:", "xml:", "const:"};

    for (int i = GATEWAY_SOURCE_JSON; i <= GATEWAY_SOURCE_CONST; i++) {
        size_t len = strlen(prefixes[i]);

        if (text.len > len && memcmp(text.data, prefixes[i], len) == 0) {
            rest->data = (const char *)text.data + len;
            rest->len = text.len - len;
            return (enum gateway_source)i;
        }
    }
    *rest = text;
    return text.len == 7 && memcmp(text.data, "content", 7) == 0
               ? GATEWAY_SOURCE_CONTENT
               : GATEWAY_SOURCE_VARIABLE;
}

static bool
begins(const char *text, size_t len, const char *prefix)
{
    size_t n = strlen(prefix);

    return len >= n && memcmp(text, prefix, n) == 0;
}

/* Is the word one of nginx's variables without its dollar sign? */
static bool
is_variable_name(const char *text, size_t len)
{
    static const char *const prefixes[] = {
        "http_",   "arg_",       "cookie_",    "remote_",
        "ssl_",    "jwt_",       "request_id", "proxy_protocol_",
        "server_", "binary_rem", "uri",        "host"};

    for (size_t i = 0; i < sizeof(prefixes) / sizeof(prefixes[0]); i++) {
        if (begins(text, len, prefixes[i]))
            return true;
    }
    return false;
}

/* A guess at what a plain word was meant to be; empty if there is none. */
static void
guess(const char *text, size_t len, char *out, size_t room)
{
    char header[SHOWN_MAX + 1];
    bool dash = false;

    out[0] = '\0';
    if (len == 0 || len > SHOWN_MAX)
        return;
    for (size_t i = 0; i < len; i++) {
        unsigned char c = (unsigned char)text[i];

        if (!isalnum(c) && c != '_' && c != '-')
            return;
        dash = dash || c == '-';
        header[i] = (char)(c == '-' ? '_' : tolower(c));
    }
    header[len] = '\0';
    if (!dash && is_variable_name(header, len))
        snprintf(out, room, "; did you mean \"$%s\"?", header);
    else if (dash)
        snprintf(out, room, "; did you mean \"$http_%s\"?", header);
    else
        snprintf(out, room, "; did you mean \"$http_%s\" or \"json:%.*s\"?",
                 header, (int)len, text);
}

/* A variable like $1 can be empty without our noticing it. */
static bool
has_unnamed_part(const char *text, size_t len)
{
    for (size_t i = 0; i + 1 < len; i++) {
        if (text[i] == '$' && isdigit((unsigned char)text[i + 1]))
            return len > 2;
    }
    return false;
}

static size_t
name_len(const char *text, size_t len)
{
    size_t n = 0;

    while (n < len && (isalnum((unsigned char)text[n]) || text[n] == '_'))
        n++;
    return n;
}

/* nginx ends the name of a variable at a dash: $http_x-id is $http_x, which no
 * request has, and the text "-id". Nearly always the header X-Id was meant. */
static bool
has_cut_name(const char *text, size_t len, char flaw[GATEWAY_SOURCE_FLAW_MAX])
{
    static const char *const kinds[] = {"$http_", "$arg_", "$cookie_"};

    for (size_t i = 0; i < len; i++) {
        char meant[48];
        const char *at = text + i;
        size_t left = len - i, end, n = 0;
        size_t kind = 0;

        while (kind < 3 && !begins(at, left, kinds[kind]))
            kind++;
        end = kind < 3 ? 1 + name_len(at + 1, left - 1) : 0;
        if (end == 0 || end + 1 >= left || at[end] != '-' ||
            !isalnum((unsigned char)at[end + 1]))
            continue;
        for (; n < left && n + 1 < sizeof(meant) &&
               (n == 0 || at[n] == '-' || name_len(at + n, 1) == 1);
             n++)
            meant[n] = (char)(at[n] == '-' ? '_' : at[n]);
        meant[n] = '\0';
        snprintf(flaw, GATEWAY_SOURCE_FLAW_MAX,
                 "\"%.*s\": nginx ends the name of a variable at \"-\"%s%s%s "
                 "(if the text after it is meant, write ${%.*s})",
                 (int)(len > SHOWN_MAX ? SHOWN_MAX : len), text,
                 kind == 0 ? "; did you mean \"" : "", kind == 0 ? meant : "",
                 kind == 0 ? "\"?" : "",
                 (int)(end > SHOWN_MAX ? SHOWN_MAX : end) - 1, at + 1);
        return true;
    }
    return false;
}

bool
gateway_source_check(struct idem_bytes text, enum gateway_source_use use,
                     char flaw[GATEWAY_SOURCE_FLAW_MAX])
{
    const char *word = text.data;
    bool scope = use == GATEWAY_FOR_SCOPE;
    int shown = (int)(text.len > SHOWN_MAX ? SHOWN_MAX : text.len);
    struct idem_bytes rest;
    enum gateway_source kind = gateway_source_kind(text, &rest);
    char meant[128];

    if (kind == GATEWAY_SOURCE_CONST && !scope) {
        snprintf(flaw, GATEWAY_SOURCE_FLAW_MAX,
                 "\"%.*s\": const: is for scopes only, every request would "
                 "have the same key",
                 shown, word);
        return false;
    }
    if (kind == GATEWAY_SOURCE_CONST && memchr(rest.data, '$', rest.len)) {
        snprintf(flaw, GATEWAY_SOURCE_FLAW_MAX,
                 "\"%.*s\": const: takes a fixed text; leave const: out to use "
                 "a $variable",
                 shown, word);
        return false;
    }
    if (kind == GATEWAY_SOURCE_CONTENT && use != GATEWAY_FOR_KEY) {
        snprintf(flaw, GATEWAY_SOURCE_FLAW_MAX,
                 "\"content\" is for keys only; did you mean "
                 "\"$http_content\" or \"json:content\"?");
        return false;
    }
    if (kind != GATEWAY_SOURCE_VARIABLE)
        return true;
    if (has_unnamed_part(word, text.len)) {
        snprintf(flaw, GATEWAY_SOURCE_FLAW_MAX,
                 "\"%.*s\": use a named capture, (?<name>...) and $name, "
                 "beside other parts: an empty $1 would not be noticed",
                 shown, word);
        return false;
    }
    if (has_cut_name(word, text.len, flaw))
        return false;
    if (memchr(word, '$', text.len))
        return true;
    guess(word, text.len, meant, sizeof(meant));
    snprintf(flaw, GATEWAY_SOURCE_FLAW_MAX,
             "\"%.*s\" has no $variable in it and is not json:PATH, "
             "form:NAME or xml:ELEMENT%s%s",
             shown, word, meant,
             scope ? " (const:NAME is one scope for all callers)" : "");
    return false;
}
