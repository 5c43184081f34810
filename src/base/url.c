/*
 * url.c - the URL of a store on the network, taken apart.
 */
#include "url.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static int
hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    return -1;
}

/* Decode in place; false for a broken escape or a NUL. */
static bool
decode(char *text)
{
    char *to = text;

    for (; *text; text++) {
        if (*text != '%') {
            *to++ = *text;
            continue;
        }
        if (hex_digit(text[1]) < 0 || hex_digit(text[2]) < 0)
            return false;
        *to = (char)(hex_digit(text[1]) * 16 + hex_digit(text[2]));
        if (*to++ == 0)
            return false;
        text += 2;
    }
    *to = 0;
    return true;
}

/* Cut `text` at `separator` and give what follows, or NULL. */
static char *
cut(char *text, char separator)
{
    char *at = text ? strchr(text, separator) : NULL;

    if (at)
        *at++ = 0;
    return at;
}

static const char *
parse_port(const char *text, int *port)
{
    char *end;
    long value;

    errno = 0;
    value = strtol(text, &end, 10);
    if (errno != 0 || end == text || *end != 0 || value < 1 || value > 65535)
        return "a port is a number from 1 to 65535";
    *port = (int)value;
    return NULL;
}

static const char *
parse_host(char *text, int default_port, struct idem__host *host)
{
    char *port;

    host->port = default_port;
    if (*text == '[') {
        host->name = text + 1;
        text = cut(text, ']');
        if (!text || (*text != 0 && *text != ':'))
            return "an IPv6 address ends with \"]\"";
        port = *text == ':' ? text + 1 : NULL;
    } else {
        host->name = text;
        port = cut(text, ':');
    }
    if (*host->name == 0)
        return "a host name is missing";
    return port ? parse_port(port, &host->port) : NULL;
}

static const char *
parse_hosts(char *text, int default_port, struct idem__url *url)
{
    while (text) {
        char *next = cut(text, ',');
        const char *flaw;

        if (url->host_count == IDEM__URL_HOSTS_MAX)
            return "too many hosts";
        flaw = parse_host(text, default_port, &url->hosts[url->host_count++]);
        if (flaw)
            return flaw;
        text = next;
    }
    return NULL;
}

static bool
is_known(const char *const *known, const char *name)
{
    for (; *known; known++) {
        if (strcmp(*known, name) == 0)
            return true;
    }
    return false;
}

static const char *
parse_options(char *text, const char *const *known, struct idem__url *url)
{
    while (text && *text) {
        char *next = cut(text, '&');
        char *value = cut(text, '=');

        if (!value || !decode(value))
            return "an option is name=value";
        if (!is_known(known, text))
            return "this store has no such option";
        if (url->option_count == IDEM__URL_OPTIONS_MAX)
            return "too many options";
        url->options[url->option_count].name = text;
        url->options[url->option_count++].value = value;
        text = next;
    }
    return NULL;
}

static const char *
parse(char *text, int default_port, const char *const *known,
      struct idem__url *url)
{
    char *options = cut(text, '?');
    char *hosts = strstr(text, "://");
    char *path, *at, *password;
    const char *flaw;

    if (!hosts)
        return "\"//\" and a host follow the scheme";
    hosts += 3;
    at = strrchr(hosts, '@'); /* before "/": a password may hold one */
    path = cut(at ? at : hosts, '/');
    if (at) {
        *at = 0;
        password = cut(hosts, ':');
        if (!decode(hosts) || (password && !decode(password)))
            return "a broken % escape in the user or password";
        url->user = *hosts ? hosts : NULL;
        url->password = password;
        hosts = at + 1;
    }
    if (path && *path) {
        if (!decode(path))
            return "a broken % escape in the path";
        url->path = path;
    }
    flaw = parse_hosts(hosts, default_port, url);
    return flaw ? flaw : parse_options(options, known, url);
}

enum idem_status
idem__url_parse(const char *text, int default_port, const char *const *known,
                struct idem__url *url, struct idem_error *err)
{
    const char *flaw;
    char shown[160];

    memset(url, 0, sizeof(*url));
    url->memory = strdup(text);
    if (!url->memory)
        return idem__fail(err, IDEM_ERR_MEMORY, "out of memory");
    flaw = parse(url->memory, default_port, known, url);
    if (!flaw)
        return IDEM_OK;
    idem__url_clear(url);
    idem__url_redact(text, shown, sizeof(shown));
    return idem__fail(err, IDEM_ERR_INVALID, "\"%s\": %s", shown, flaw);
}

void
idem__url_clear(struct idem__url *url)
{
    free(url->memory);
    memset(url, 0, sizeof(*url));
}

const char *
idem__url_option(const struct idem__url *url, const char *name)
{
    for (size_t i = 0; i < url->option_count; i++) {
        if (strcmp(url->options[i].name, name) == 0)
            return url->options[i].value;
    }
    return NULL;
}

enum idem_status
idem__url_number(const struct idem__url *url, const char *name, int64_t min,
                 int64_t max, int64_t otherwise, int64_t *out,
                 struct idem_error *err)
{
    const char *text = idem__url_option(url, name);
    char *end;
    long long value;

    if (!text) {
        *out = otherwise;
        return IDEM_OK;
    }
    errno = 0;
    value = strtoll(text, &end, 10);
    if (errno != 0 || end == text || *end != 0 || value < min || value > max)
        return idem__fail(err, IDEM_ERR_INVALID,
                          "option %s is a number from %lld to %lld", name,
                          (long long)min, (long long)max);
    *out = value;
    return IDEM_OK;
}
