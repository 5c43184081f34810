/*
 * broker_url.c - reading a broker's URL: scheme://user:password@host:port/path?query
 */
#include "consume.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

static int
hex(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c = (char)tolower((unsigned char)c);
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Percent-decode [from, to) into out. False: it does not fit or is malformed */
static bool
decode(const char *from, const char *to, char *out, size_t out_len)
{
    size_t len = 0;

    for (; from < to; from++) {
        int c = (unsigned char)*from;

        if (c == '%') {
            if (to - from < 3 || hex(from[1]) < 0 || hex(from[2]) < 0)
                return false;
            c = hex(from[1]) << 4 | hex(from[2]);
            from += 2;
        }
        if (c == 0 || len + 1 >= out_len)
            return false;
        out[len++] = (char)c;
    }
    out[len] = 0;
    return true;
}

static bool
parse_host(const char *from, const char *to, struct broker_url *out)
{
    const char *end = to;
    const char *colon = NULL;

    if (from < to && *from == '[') {
        end = memchr(from, ']', (size_t)(to - from));
        if (!end || !decode(from + 1, end, out->host, sizeof(out->host)))
            return false;
        colon = end + 1 < to ? end + 1 : NULL;
        if (colon && *colon != ':')
            return false;
    } else {
        colon = memchr(from, ':', (size_t)(to - from));
        end = colon ? colon : to;
        if (!decode(from, end, out->host, sizeof(out->host)))
            return false;
    }
    if (colon) {
        char *rest;
        long port = strtol(colon + 1, &rest, 10);

        if (rest != to || port < 1 || port > 65535)
            return false;
        out->port = (int)port;
    }
    return out->host[0] != 0;
}

static bool
parse_user(const char *from, const char *to, struct broker_url *out)
{
    const char *colon = memchr(from, ':', (size_t)(to - from));

    return decode(from, colon ? colon : to, out->user, sizeof(out->user)) &&
           (!colon ||
            decode(colon + 1, to, out->password, sizeof(out->password)));
}

enum idem_status
broker_url_parse(const char *url, struct broker_url *out,
                 struct idem_error *err)
{
    const char *at = strstr(url, "://");
    const char *end, *query, *path, *user_end;
    bool fine;

    memset(out, 0, sizeof(*out));
    if (!at)
        return idem__fail(err, IDEM_ERR_INVALID,
                          "a source is a URL such as "
                          "amqp://localhost?queue=orders");
    at += 3;
    query = strchr(at, '?');
    end = query ? query : at + strlen(at);
    path = memchr(at, '/', (size_t)(end - at));
    user_end = NULL;
    for (const char *p = at; p < (path ? path : end); p++)
        user_end = *p == '@' ? p : user_end;
    fine = (!user_end || parse_user(at, user_end, out)) &&
           parse_host(user_end ? user_end + 1 : at, path ? path : end, out) &&
           (!path || decode(path + 1, end, out->path, sizeof(out->path)));
    if (fine && query) {
        fine = strlen(query + 1) < sizeof(out->query);
        if (fine)
            memcpy(out->query, query + 1, strlen(query + 1) + 1);
    }
    if (!fine)
        return idem__fail(err, IDEM_ERR_INVALID,
                          "the source's URL is malformed: expected "
                          "scheme://user:password@host:port/path?name=value");
    return IDEM_OK;
}

enum idem_status
broker_url_check(const struct broker_url *url, const char *names,
                 struct idem_error *err)
{
    char value[BROKER_URL_VALUE_MAX + 1];
    const char *at = url->query;

    while (*at) {
        size_t len = strcspn(at, "=&");
        const char *name = names, *end;

        while (*name &&
               (strcspn(name, " ") != len || strncmp(name, at, len) != 0)) {
            name += strcspn(name, " ");
            name += *name == ' ';
        }
        if (!*name)
            return idem__fail(err, IDEM_ERR_INVALID,
                              "the source's URL has no parameter \"%.*s\": "
                              "there are %s",
                              len < 100 ? (int)len : 100, at, names);
        end = at + strcspn(at, "&");
        if (at + len == end || at + len + 1 == end ||
            !decode(at + len + 1, end, value, sizeof(value)))
            return idem__fail(err, IDEM_ERR_INVALID,
                              "%.*s= in the source's URL: give 1 to %d bytes",
                              (int)len, at, BROKER_URL_VALUE_MAX);
        at = end;
        at += *at == '&';
    }
    return IDEM_OK;
}

enum idem_status
broker_url_number(const struct broker_url *url, const char *name, int64_t max,
                  int64_t *value, struct idem_error *err)
{
    char text[64], *rest;
    int64_t number;

    if (!broker_url_param(url, name, text, sizeof(text)))
        return IDEM_OK;
    number = strtoll(text, &rest, 10);
    if (*rest || !isdigit((unsigned char)text[0]) || number < 1 || number > max)
        return idem__fail(err, IDEM_ERR_INVALID,
                          "%s=%s in the source's URL: give a number from 1 to "
                          "%lld",
                          name, text, (long long)max);
    *value = number;
    return IDEM_OK;
}

bool
broker_url_param(const struct broker_url *url, const char *name, char *value,
                 size_t value_len)
{
    size_t name_len = strlen(name);
    const char *at = url->query;

    while (*at) {
        const char *end = at + strcspn(at, "&");

        if (strncmp(at, name, name_len) == 0 && at[name_len] == '=')
            return decode(at + name_len + 1, end, value, value_len) &&
                   value[0] != 0;
        at = *end ? end + 1 : end;
    }
    return false;
}
