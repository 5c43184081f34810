/*
 * form_url.c - does the action of a form lead to the page's own site?
 *
 * It reads the URL as browsers do: character references are decoded, a
 * backslash is a slash, tabs and line breaks are left out. If it is not
 * certain, the action counts as foreign, because a token must not be sent to
 * another site.
 */
#include "form_tag.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define UNSURE ((char)0x80) /* an unknown character reference */
#define OTHER ((char)0x81)  /* a character beyond ASCII */

static const struct {
    const char *name;
    char c;
} references[] = {
    {"amp;", '&'},    {"sol;", '/'},      {"bsol;", '\\'},  {"colon;", ':'},
    {"Tab;", '\t'},   {"NewLine;", '\n'}, {"quest;", '?'},  {"num;", '#'},
    {"period;", '.'}, {"commat;", '@'},   {"lowbar;", '_'}, {"percnt;", '%'},
};

/* The character of "#47;" or "sol;", and its length in bytes; 0 bytes: the & is
 * a plain &. */
static char
read_reference(const char *at, size_t *len)
{
    char *end;
    unsigned long code;

    *len = 0;
    if (*at == '#') {
        bool hex = at[1] == 'x' || at[1] == 'X';
        const char *digits = at + (hex ? 2 : 1);

        if (!(hex ? isxdigit((uint8_t)*digits) : isdigit((uint8_t)*digits)))
            return '&';
        code = strtoul(digits, &end, hex ? 16 : 10);
        *len = (size_t)(end - at) + (*end == ';');
        return code > 0 && code < 127 ? (char)code : OTHER;
    }
    for (size_t i = 0; i < sizeof(references) / sizeof(references[0]); i++) {
        size_t name_len = strlen(references[i].name);

        if (strncmp(at, references[i].name, name_len) == 0) {
            *len = name_len;
            return references[i].c;
        }
    }
    return isalpha((uint8_t)*at) ? UNSURE : '&';
}

/* The URL as a browser reads it, in lower case. */
static void
decode(const char *value, char *out)
{
    char *start = out;

    for (size_t len = 0; *value; value += len + 1) {
        char c = *value;

        len = 0;
        if (c == '&')
            c = read_reference(value + 1, &len);
        else if ((uint8_t)c > 126)
            c = OTHER;
        if (c == '\t' || c == '\n' || c == '\r' ||
            (out == start && (uint8_t)c <= ' '))
            continue;
        *out++ = c == '\\' ? '/' : (char)tolower((uint8_t)c);
    }
    *out = 0;
}

static bool
is_host(const char *url, struct idem_bytes host)
{
    size_t len = strcspn(url, "/?#");

    return len == host.len && len > 0 &&
           strncasecmp(url, (const char *)host.data, len) == 0;
}

bool
gateway_form_url_is_own(const char *value, bool cut, struct idem_bytes host,
                        bool foreign_base)
{
    char url[GATEWAY_FORM_VALUE_MAX + 1];
    size_t word, decided;

    decode(value, url);
    decided = strcspn(url, "/?#");
    if (strncmp(url, "//", 2) == 0 || strncmp(url, "http://", 7) == 0 ||
        strncmp(url, "https://", 8) == 0) {
        const char *rest = strstr(url, "//") + 2;

        return (!cut || strcspn(rest, "/?#") < strlen(rest)) &&
               is_host(rest, host);
    }
    if (cut && url[decided] == 0)
        return false;
    word = strcspn(url, ":/?#");
    if (url[word] == ':' || memchr(url, UNSURE, decided) ||
        (url[0] == '/' && url[1] == UNSURE))
        return false;
    return url[0] == 0 || !foreign_base;
}
