/*
 * url.h - parses the URL of a store or a broker on the network.
 *
 *   scheme://[user[:password]@]host[:port][,host[:port]...][/path][?name=value]
 *
 * User, password, path and values are percent-decoded. A host may be an IPv6
 * address in brackets. Errors never show a secret.
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
    const char *user, *password, *path; /* NULL: not given; path without "/" */
    struct idem__host hosts[IDEM__URL_HOSTS_MAX];
    size_t host_count; /* at least 1 */
    struct {
        const char *name, *value;
    } options[IDEM__URL_OPTIONS_MAX];
    size_t option_count;
};

/* `known` lists the valid options, ended by NULL. Any other option is an error,
 * so that a misspelt safety option is noticed. An option without a value is an
 * error too. */
enum idem_status idem__url_parse(const char *text, int default_port,
                                 const char *const *known,
                                 struct idem__url *url, struct idem_error *err);
void idem__url_clear(struct idem__url *url);

/* Returns NULL if the option was not given. */
const char *idem__url_option(const struct idem__url *url, const char *name);

/* A number between min and max, or `otherwise` if the option was not given. */
enum idem_status idem__url_number(const struct idem__url *url, const char *name,
                                  int64_t min, int64_t max, int64_t otherwise,
                                  int64_t *out, struct idem_error *err);

/* The same for several; {0} ends the list. */
struct idem__url_range {
    const char *name;
    int64_t min, max, otherwise, *out;
};
enum idem_status idem__url_numbers(const struct idem__url *url,
                                   const struct idem__url_range *ranges,
                                   struct idem_error *err);

/* For a library that parses the URL itself. */

/*
 * Remove "name=value" from a URL's query. Returns true if it was there, with
 * the value as it is written in the URL. The rest is still a valid URL.
 */
bool idem__url_take(char *url, const char *name, char *value, size_t value_len);

/* The same for a number, which is unchanged if the parameter is not there.
 * False: the value is not a number from min to max. */
bool idem__url_take_number(char *url, const char *name, int64_t min,
                           int64_t max, int64_t *number);

/* A copy in which "/" and "@" in the user and the password are escaped, so that
 * every library finds the end of the password where idem__url_parse does. NULL:
 * out of memory. */
char *idem__url_escape(const char *url);

/* The next secret in a URL at or after `from`: its password, the value of a
 * password option or, for idem://, redis:// and nats:// and their kin, a user
 * without a password. data is NULL if there is none. */
struct idem_bytes idem__url_secret(const char *url, const char *from);

/* A URL with its secrets replaced by "***", for messages and logs. */
void idem__url_redact(const char *url, char *out, size_t out_len);

/* The same for a text of which it is not known whose URL it is, if it is one:
 * all that is before its host is replaced by "***". */
void idem__url_redact_user(const char *url, char *out, size_t out_len);

#endif
