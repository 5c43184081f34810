/*
 * url.h - the URL of a store or a broker on the network, taken apart.
 *
 *   scheme://[user[:password]@]host[:port][,host[:port]...][/path][?name=value]
 *
 * User, password, path and values are percent-decoded. A host may be an IPv6
 * address in brackets. Errors never show the password.
 */
#ifndef IDEM__URL_H
#define IDEM__URL_H

#include "error.h"

#define IDEM__URL_HOSTS_MAX 32
#define IDEM__URL_OPTIONS_MAX 16

struct idem__host {
    const char *name;
    int port;
};

struct idem__url {
    char *memory;                       /* everything below points into it */
    const char *user, *password, *path; /* NULL: not there; path without "/" */
    struct idem__host hosts[IDEM__URL_HOSTS_MAX];
    size_t host_count; /* at least 1 */
    struct {
        const char *name, *value;
    } options[IDEM__URL_OPTIONS_MAX];
    size_t option_count;
};

/* `known` names the options there are, ended by NULL; any other one is an
 * error, so that a misspelt safety switch cannot go unnoticed. Options without
 * a value are an error too. */
enum idem_status idem__url_parse(const char *text, int default_port,
                                 const char *const *known,
                                 struct idem__url *url, struct idem_error *err);
void idem__url_clear(struct idem__url *url);

/* NULL: it was not given. */
const char *idem__url_option(const struct idem__url *url, const char *name);

/* A number between min and max, or `otherwise` if it was not given. */
enum idem_status idem__url_number(const struct idem__url *url, const char *name,
                                  int64_t min, int64_t max, int64_t otherwise,
                                  int64_t *out, struct idem_error *err);

/* The next secret in a URL from `from` on: its password, or an option of that
 * name; data is NULL: there is none. */
struct idem_bytes idem__url_secret(const char *url, const char *from);

/* A URL with its password replaced by "***", for messages and logs. */
void idem__url_redact(const char *url, char *out, size_t out_len);

#endif
