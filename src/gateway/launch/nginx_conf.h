/*
 * nginx_conf.h - what nginx_conf.c and nginx_paths.c use of each other.
 */
#ifndef IDEM__NGINX_CONF_H
#define IDEM__NGINX_CONF_H

#include "gateway.h"

#define GATEWAY_TOKEN_SOURCES                                                  \
    "$http_token $http_idempotency_token $cookie_idempotency_token"

#define GATEWAY_HOST_MAX 256

/* HOST:PORT of a service's URL, or unix:/PATH. */
enum idem_status gateway_upstream_host(const char *text,
                                       char host[GATEWAY_HOST_MAX],
                                       struct idem_error *err);
/* Add words, each in quotes. */
bool gateway_add_words(struct idem_buf *out, const char *text);
/* Add the directive of the option with this number. */
bool gateway_add_option(struct idem_buf *out, size_t i, const char *value);
size_t gateway_option_number(const char *name);
/* The default source of the key. */
const char *gateway_default_key(const struct gateway_config *config,
                                const struct gateway_route *route);

/* The URL that authenticates callers of the route; NULL: none. */
const char *gateway_auth_of(const struct gateway_config *config,
                            const struct gateway_route *route);
bool gateway_add_auth_request(size_t number, struct idem_buf *out);

/* nginx_paths.c: the locations that the gateway answers itself. */
bool gateway_add_own_paths(const struct gateway_config *config,
                           const struct gateway_place *place,
                           struct idem_buf *out);

#endif
