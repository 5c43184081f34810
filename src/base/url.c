/*
 * url.c - parses the URL of a store on the network.
 */
#include "url.h"

#include "address.h"
#include "guess.h"
#include "hex.h"

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SAID_LEN 240

/* Decode in place; false for an invalid escape or a NUL. */
static bool
decode(char *text)
{
    ptrdiff_t len = idem__percent_read(text, strlen(text), false, text);

    if (len < 0 || memchr(text, 0, (size_t)len))
        return false;
    text[len] = 0;
    return true;
}

/* Cut `text` at `separator` and return what follows, or NULL. */
static char *
cut(char *text, char separator)
{
    char *at = text ? strchr(text, separator) : NULL;

    if (at)
        *at++ = 0;
    return at;
}

static const char *
parse_host(char *text, int default_port, struct idem__host *host)
{
    struct idem__address address;
    const char *flaw = idem__address_read(text, strlen(text), &address);

    if (flaw || address.host.len == 0)
        return flaw ? flaw : "a host name is missing";
    text += (const char *)address.host.data - text;
    text[address.host.len] = 0;
    host->name = text;
    host->port = address.port ? address.port : default_port;
    return NULL;
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
tell_known(const char *name, const char *const *known, char said[SAID_LEN])
{
    struct idem__guess guess = {name, strlen(name), NULL, 0};
    int n;

    for (size_t i = 0; known[i]; i++)
        idem__guess(&guess, known[i]);
    if (guess.name) {
        snprintf(said, SAID_LEN,
                 "there is no option \"%.40s\"; did you mean \"%s\"?", name,
                 guess.name);
        return said;
    }
    n = snprintf(said, SAID_LEN, "there is no option \"%.20s\", only", name);
    for (; *known && n < SAID_LEN; known++)
        n += snprintf(said + n, (size_t)(SAID_LEN - n), " %s%s", *known,
                      known[1] ? "," : "");
    return said;
}

static const char *
parse_options(char *text, const char *const *known, struct idem__url *url,
              char said[SAID_LEN])
{
    while (text && *text) {
        char *next = cut(text, '&');
        char *value = cut(text, '=');

        if (!value && strchr(text, '@')) /* do not show a part of a secret */
            return "write a ? in a user or a password as %3F";
        if (!value || !*value || !decode(value)) {
            snprintf(said, SAID_LEN, "option \"%.40s\" needs a value", text);
            return said;
        }
        if (!is_known(known, text))
            return tell_known(text, known, said);
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
      struct idem__url *url, char said[SAID_LEN])
{
    char *options = cut(text, '?');
    char *hosts = strstr(text, "://");
    char *path, *at, *password;
    const char *flaw;

    if (!hosts)
        return "write // and a host after the scheme, for instance "
               "redis://127.0.0.1:6379";
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
    return flaw ? flaw : parse_options(options, known, url, said);
}

enum idem_status
idem__url_parse(const char *text, int default_port, const char *const *known,
                struct idem__url *url, struct idem_error *err)
{
    const char *flaw;
    char shown[160], said[SAID_LEN];

    memset(url, 0, sizeof(*url));
    url->memory = strdup(text);
    if (!url->memory)
        return idem__fail(err, IDEM_ERR_MEMORY, "out of memory");
    flaw = parse(url->memory, default_port, known, url, said);
    if (!flaw)
        return IDEM_OK;
    idem__url_clear(url);
    if (strstr(text, "://"))
        idem__url_redact(text, shown, sizeof(shown));
    else
        idem__url_redact_user(text, shown, sizeof(shown));
    /* Cut the URL rather than what is said about it. */
    return idem__fail(err, IDEM_ERR_INVALID, "\"%.*s\": %s",
                      (int)(SAID_LEN - strnlen(flaw, SAID_LEN)), shown, flaw);
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

static bool
read_number(const char *text, int64_t min, int64_t max, int64_t *out)
{
    char *end;
    long long value;

    errno = 0;
    value = strtoll(text, &end, 10);
    if (errno != 0 || end == text || *end != 0 || value < min || value > max)
        return false;
    *out = value;
    return true;
}

enum idem_status
idem__url_number(const struct idem__url *url, const char *name, int64_t min,
                 int64_t max, int64_t otherwise, int64_t *out,
                 struct idem_error *err)
{
    const char *text = idem__url_option(url, name);

    *out = otherwise;
    if (text && !read_number(text, min, max, out))
        return idem__fail(err, IDEM_ERR_INVALID,
                          "option %s=%.40s: give a number from %lld to %lld",
                          name, text, (long long)min, (long long)max);
    return IDEM_OK;
}

enum idem_status
idem__url_numbers(const struct idem__url *url,
                  const struct idem__url_range *ranges, struct idem_error *err)
{
    enum idem_status status = IDEM_OK;

    for (; ranges->name && status == IDEM_OK; ranges++)
        status = idem__url_number(url, ranges->name, ranges->min, ranges->max,
                                  ranges->otherwise, ranges->out, err);
    return status;
}

bool
idem__url_take(char *url, const char *name, char *value, size_t value_len)
{
    char *query = strchr(url, '?');
    size_t name_len = strlen(name);

    for (char *at = query; at; at = strchr(at + 1, '&')) {
        char *end = at + 1 + strcspn(at + 1, "&");

        if (strncmp(at + 1, name, name_len) != 0 || at[1 + name_len] != '=')
            continue;
        snprintf(value, value_len, "%.*s", (int)(end - at - 2 - (int)name_len),
                 at + 2 + name_len);
        if (*at == '?' && *end == '&') /* the next becomes the first */
            memmove(at + 1, end + 1, strlen(end + 1) + 1);
        else
            memmove(at, end, strlen(end) + 1);
        return true;
    }
    return false;
}

bool
idem__url_take_number(char *url, const char *name, int64_t min, int64_t max,
                      int64_t *number)
{
    char text[24];

    return !idem__url_take(url, name, text, sizeof(text)) ||
           read_number(text, min, max, number);
}

char *
idem__url_escape(const char *url)
{
    const char *user = strstr(url, "://");
    const char *at = user ? memrchr(user, '@', strcspn(user, "?")) : NULL;
    char *copy = malloc(3 * strlen(url) + 1), *to = copy;

    if (!copy)
        return NULL;
    for (; *url; url++) {
        if (at && url >= user + 3 && url < at && strchr("/@", *url))
            to = idem__percent_write(*url, to);
        else
            *to++ = *url;
    }
    *to = 0;
    return copy;
}

/* Does a URL, whose scheme ends at `end`, often have a secret alone before its
 * host? Other schemes have the name of a user there. */
static bool
user_may_be_secret(const char *url, const char *end)
{
    static const char *const schemes[] = {
        "idem",         "idems",          "nats",
        "redis",        "redis+cluster",  "redis+sentinel",
        "rediss",       "rediss+cluster", "rediss+sentinel",
        "redis-stream", "rediss-stream"};
    const char *scheme = end;

    while (scheme > url &&
           (isalnum((unsigned char)scheme[-1]) || strchr("+-", scheme[-1])))
        scheme--;
    for (size_t i = 0; i < sizeof(schemes) / sizeof(schemes[0]); i++)
        if (strlen(schemes[i]) == (size_t)(end - scheme) &&
            memcmp(schemes[i], scheme, strlen(schemes[i])) == 0)
            return true;
    return false;
}

/* The user before `at` if there is no password; `colon` is NULL, or before an
 * empty password. */
static struct idem_bytes
lone_user(const char *url, const char *host, const char *colon, const char *at)
{
    size_t len = (size_t)((colon ? colon : at) - host - 3);

    /* An "@" in the value of an option does not end a user. */
    if (memchr(host + 3, '=', len) || !user_may_be_secret(url, host))
        len = 0;
    return (struct idem_bytes){host + 3, len};
}

struct idem_bytes
idem__url_secret(const char *url, const char *from)
{
    static const char name[] = "password="; /* sslpassword too */
    const char *host = strstr(url, "://");
    const char *option = host ? strstr(from, name) : NULL;
    const char *at = host ? memrchr(host, '@', strcspn(host, "?")) : NULL;
    const char *colon;
    struct idem_bytes user;

    if (host && !at) /* a password with a raw question mark */
        at = memrchr(host, '@',
                     option > host ? (size_t)(option - host) : strlen(host));
    colon = at ? memchr(host + 3, ':', (size_t)(at - host - 3)) : NULL;
    if (colon && colon + 1 >= from && at > colon + 1)
        return (struct idem_bytes){colon + 1, (size_t)(at - colon - 1)};
    if (at && host + 3 >= from && (!colon || colon + 1 == at)) {
        user = lone_user(url, host, colon, at);
        if (user.len > 0)
            return user;
    }
    if (!option)
        return (struct idem_bytes){NULL, 0};
    option += sizeof(name) - 1;
    return (struct idem_bytes){option, strcspn(option, "&")};
}

void
idem__url_redact(const char *url, char *out, size_t out_len)
{
    const char *from = url;
    size_t n = 0;

    for (;;) {
        struct idem_bytes secret = idem__url_secret(url, from);
        const char *end = secret.data;
        int used =
            snprintf(out + n, out_len - n, "%.*s%s",
                     end ? (int)(end - from) : INT_MAX, from, end ? "***" : "");

        n += (size_t)used;
        if (!end || n >= out_len)
            return;
        from = end + secret.len;
    }
}

void
idem__url_redact_user(const char *url, char *out, size_t out_len)
{
    const char *scheme = strstr(url, "://");
    const char *user = scheme ? scheme + 3 : url;
    const char *at = strrchr(user, '@');

    snprintf(out, out_len, "%.*s%s%s", (int)(user - url), url, at ? "***" : "",
             at ? at : user);
}
