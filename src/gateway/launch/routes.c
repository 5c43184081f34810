/*
 * routes.c - write the settings of each route as JSON, a file that the engine
 * reads for the console (idem serve --gateway-routes).
 */
#include "launch.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool
is(const char *value, const char *word)
{
    return value && strcmp(value, word) == 0;
}

/* nginx takes any bytes; those that are not UTF-8 are shown as "?". NULL: out
 * of memory. */
static json_t *
text_json(const char *text)
{
    json_t *json = json_string(text);
    char *copy = json ? NULL : strdup(text);

    for (char *at = copy; at && *at; at++) {
        if ((unsigned char)*at >= 0x80)
            *at = '?';
    }
    if (copy)
        json = json_string(copy);
    free(copy);
    return json;
}

/* Takes the value. `all` is freed and NULL if there is no memory for it,
 * because the console would show a list that lacks something as the whole list.
 */
static void
append(json_t **all, json_t *value)
{
    if (json_array_append_new(*all, value) != 0) {
        json_decref(*all);
        *all = NULL;
    }
}

/* Warnings for an operator; the console has a sentence for each. NULL: out of
 * memory. */
static json_t *
warnings_of(const struct gateway_config *config,
            const struct gateway_route *route)
{
    json_t *all = json_array();

    if (is(gateway_effective(config, route, "gated"), "off"))
        return all;
    if (!gateway_value(config, route, "scope")) {
        append(&all, json_string("credential-scope"));
        if (!is(gateway_value(config, route, "anonymous"), "off"))
            append(&all, json_string("anonymous-scope"));
    }
    if (is(gateway_effective(config, route, "fingerprint"), "off"))
        append(&all, json_string("no-fingerprint"));
    if (is(gateway_value(config, route, "fail-open"), "on"))
        append(&all, json_string("fail-open"));
    return all;
}

/* NULL: out of memory. */
static json_t *
route_json(const struct gateway_config *config,
           const struct gateway_route *route)
{
    const char *upstream =
        route->upstream ? route->upstream : config->base.upstream;
    json_t *options = json_object();

    for (size_t i = 0; options && i < GATEWAY_OPTIONS; i++) {
        const char *name = gateway_options[i].name;
        const char *value = gateway_effective(config, route, name);

        if (value &&
            json_object_set_new(options, name, text_json(value)) != 0) {
            json_decref(options);
            options = NULL;
        }
    }
    return json_pack("{s:o, s:o, s:o, s:o, s:o}", "route",
                     text_json(route->path), "host",
                     text_json(route->host ? route->host : ""), "upstream",
                     text_json(upstream), "options", options, "warnings",
                     warnings_of(config, route));
}

/* Replace the file atomically, because the engine may be reading it. */
enum idem_status
launch_routes_write(const struct launch *self, struct idem_error *err)
{
    const struct gateway_config *config = self->config;
    char path[PATH_MAX + 16], fresh[PATH_MAX + 16];
    json_t *all = json_array();
    int fd, bad;

    for (size_t i = 0; i < config->route_count; i++)
        append(&all, route_json(config, &config->routes[i]));
    if (!all)
        return idem__fail(err, IDEM_ERR_MEMORY, "out of memory");
    snprintf(path, sizeof(path), "%s/" GATEWAY_ROUTES, self->folder);
    snprintf(fresh, sizeof(fresh), "%s/" GATEWAY_ROUTES ".new", self->folder);
    (void)unlink(fresh); /* a link there must not be followed */
    fd = open(fresh, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    bad = fd < 0 || json_dumpfd(all, fd, JSON_COMPACT) != 0;
    if (fd >= 0)
        close(fd);
    bad = bad || rename(fresh, path) != 0;
    json_decref(all);
    return bad ? idem__fail(err, IDEM_ERR_INVALID, "%s: %s", path,
                            strerror(errno))
               : IDEM_OK;
}
