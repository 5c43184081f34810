/*
 * nginx_conf.c - write the nginx configuration of a gateway.
 *
 * Every value is written in double quotes, with its own quotes and backslashes
 * escaped, so that no value can become a directive. A dollar sign keeps its
 * meaning, because keys and scopes are made of nginx's variables.
 */
#include "nginx_conf.h"

#include "../../base/problem.h"
#include "../module/profile.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

struct url {
    bool tls;
    char host[GATEWAY_HOST_MAX]; /* host:port, or unix:/path */
    const char *path;
};

bool
gateway_add_quoted(struct idem_buf *out, const char *value)
{
    bool good = idem_buf_add(out, "\"", 1);

    for (; good && *value; value++) {
        if (*value == '"' || *value == '\\')
            good = idem_buf_add(out, "\\", 1);
        good = good && idem_buf_add(out, value, 1);
    }
    return good && idem_buf_add(out, "\"", 1);
}

bool
gateway_add_words(struct idem_buf *out, const char *text)
{
    char word[GATEWAY_WORD_MAX];
    bool good = true;

    while (good && gateway_word_next(&text, word))
        good = idem_buf_add(out, " ", 1) && gateway_add_quoted(out, word);
    return good;
}

/* Characters that would end a path in nginx.conf. */
#define ODD_IN_PATH " \"'\\;{}$#"

static enum idem_status
parse_url(const char *text, struct url *url, struct idem_error *err)
{
    const char *rest, *slash, *port;
    size_t len;

    if (strncmp(text, "http://", 7) == 0)
        rest = text + 7;
    else if (strncmp(text, "https://", 8) == 0)
        rest = text + 8;
    else
        return idem__fail(err, IDEM_ERR_INVALID,
                          "the upstream \"%s\" does not begin with http:// or "
                          "https://: write, for instance, "
                          "http://127.0.0.1:3000",
                          text);
    url->tls = text[4] == 's';
    slash = strncmp(rest, "unix:", 5) == 0 ? NULL : strchr(rest, '/');
    len = slash ? (size_t)(slash - rest) : strlen(rest);
    url->path = slash && slash[1] ? slash : "";
    if (len == 0 || len >= sizeof(url->host) - 8 ||
        strcspn(rest, " \"'\\;{}$#?@") < len)
        return idem__fail(err, IDEM_ERR_INVALID,
                          "the upstream \"%s\" names no host", text);
    if (strpbrk(url->path, ODD_IN_PATH))
        return idem__fail(err, IDEM_ERR_INVALID,
                          "the path of the upstream \"%s\" has a character "
                          "that is not allowed there",
                          text);
    memcpy(url->host, rest, len);
    url->host[len] = '\0';
    /* Without a port, a name or [::1] gets the scheme's default port. */
    port = url->host[0] == '[' ? strchr(url->host, ']') : url->host;
    if (!port)
        return idem__fail(err, IDEM_ERR_INVALID,
                          "the upstream \"%s\" names no host", text);
    if (strncmp(url->host, "unix:", 5) != 0 && !strchr(port, ':'))
        snprintf(url->host + len, sizeof(url->host) - len, "%s",
                 url->tls ? ":443" : ":80");
    return IDEM_OK;
}

enum idem_status
gateway_upstream_check(const char *text, struct idem_error *err)
{
    struct url url;

    return parse_url(text, &url, err);
}

enum idem_status
gateway_upstream_host(const char *text, char host[GATEWAY_HOST_MAX],
                      struct idem_error *err)
{
    struct url url;
    enum idem_status status = parse_url(text, &url, err);

    if (status == IDEM_OK)
        memcpy(host, url.host, GATEWAY_HOST_MAX);
    return status;
}

static const char *
upstream_of(const struct gateway_config *config,
            const struct gateway_route *route)
{
    return route->upstream ? route->upstream : config->base.upstream;
}

/* Each request needs two: one to the client and one to the service. */
static long
connections(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
        return 512;
    return limit.rlim_cur > 16384 ? 16384 : (long)limit.rlim_cur;
}

static bool
add_head(const struct gateway_config *config, const struct gateway_place *place,
         struct idem_buf *out)
{
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    long workers = config->workers ? (long)config->workers
                   : cores > 2     ? cores / 2
                                   : 1;
    bool good = idem_buf_printf(out,
                                "# Written by idem gateway.\n"
                                "load_module \"%s\";\n"
                                "worker_processes %ld;\n"
                                "daemon off;\n"
                                "error_log stderr warn;\n"
                                "pid \"%s/nginx.pid\";\n",
                                place->module, workers, place->folder);

    if (place->user)
        good = good && idem_buf_printf(out, "user %s;\n", place->user);
    return good && idem_buf_printf(out,
                                   "\nevents {\n"
                                   "    worker_connections %ld;\n"
                                   "}\n\n",
                                   connections());
}

static bool
add_access_log(const struct gateway_config *config, struct idem_buf *out)
{
    if (!config->access_log)
        return idem_buf_add_text(out, "    access_log off;\n");
    return idem_buf_printf(
               out,
               "    log_format idem '$remote_addr [$time_iso8601] "
               "\"$request\" $status $bytes_sent $request_time "
               "idem=$idem_verdict %s fence=$idem_fence "
               "upstream=$upstream_response_time "
               "instance=$idem_instance trace=\"$http_traceparent\" "
               "first-trace=$sent_http_idem_first_trace';\n"
               "    access_log ",
               config->log_keys ? "scope=\"$idem_scope\" id=\"$idem_id\""
                                : "key=$idem_key") &&
           gateway_add_quoted(out, config->access_log) &&
           idem_buf_add_text(out, " idem buffer=64k flush=1s;\n");
}

/* A rate limit per client address, if the gateway has that path. */
static bool
add_limit_zone(const char *path, const char *name, const char *rate,
               struct idem_buf *out)
{
    return !path || idem_buf_printf(out,
                                    "    limit_req_zone $binary_remote_addr "
                                    "zone=%s:1m rate=%s;\n",
                                    name, rate);
}

static bool
add_http(const struct gateway_config *config, const struct gateway_place *place,
         struct idem_buf *out)
{
    static const char *const temp[] = {"client_body", "proxy", "fastcgi",
                                       "uwsgi", "scgi"};
    bool good = idem_buf_add_text(out, "http {\n");

    for (size_t i = 0; i < 5; i++)
        good = good && idem_buf_printf(out, "    %s_temp_path \"%s/%s\";\n",
                                       temp[i], place->folder, temp[i]);
    good = good && add_access_log(config, out);
    if (!config->engine) /* which nobody else would read */
        good = good && idem_buf_printf(out, "    idem_figures \"%s/%s\";\n",
                                       place->folder, GATEWAY_FIGURES);
    if (config->problem_base)
        good = good && idem_buf_printf(out, "    idem_problem_base \"%s\";\n",
                                       config->problem_base);
    good = good &&
           idem_buf_printf(out,
                           "    idem_end_with_master %lldms;\n"
                           "    idem_unbuffer_events on;\n\n"
                           "    server_tokens off;\n"
                           "    log_not_found off;\n"
                           "    keepalive_requests 1000000;\n"
                           "    client_max_body_size 0;\n"
                           "    client_body_buffer_size 64k;\n"
                           "    # Unprotected requests may have any size: "
                           "nginx passes them on without storing them.\n"
                           "    proxy_request_buffering off;\n"
                           "    proxy_buffer_size 16k;\n"
                           "    proxy_buffers 8 16k;\n"
                           "    proxy_http_version 1.1;\n"
                           "    proxy_connect_timeout 5s;\n"
                           "    # Send a request once, and finish it even if "
                           "the client leaves.\n"
                           "    proxy_next_upstream off;\n"
                           "    proxy_ignore_client_abort on;\n"
                           "    proxy_set_header Host $http_host;\n"
                           "    # Another protocol could send requests that "
                           "are not protected.\n"
                           "    proxy_set_header Upgrade $idem_upgrade;\n"
                           "    proxy_set_header Connection $idem_connection;\n",
                           config->drain_ms > 0 ? (long long)config->drain_ms
                                                : 1LL);
    if (config->forwarded)
        good = good &&
               idem_buf_add_text(
                   out, "    proxy_set_header X-Forwarded-For "
                        "$proxy_add_x_forwarded_for;\n"
                        "    proxy_set_header X-Forwarded-Proto $scheme;\n");
    return good &&
           add_limit_zone(config->token_path, "idem_token",
                          config->token_rate ? config->token_rate : "50r/s",
                          out) &&
           add_limit_zone(config->status_path, "idem_status",
                          config->status_rate ? config->status_rate : "20r/s",
                          out);
}

static enum idem_status
add_engine(const struct gateway_config *config,
           const struct gateway_place *place, struct idem_buf *out,
           struct idem_error *err)
{
    if (config->engine)
        return gateway_engine_conf(config, place->secret, out, err);
    if (!idem_buf_printf(out, "    idem_engine \"unix:%s\";\n", place->socket))
        return idem__fail(err, IDEM_ERR_MEMORY, "out of memory");
    return IDEM_OK;
}

/* One upstream block per URL. Idle connections are closed early, because the
 * outcome is unknown if the service closes one just when it is used. */
static enum idem_status
add_upstream(const char *text, const char *name, size_t number,
             struct idem_buf *out, struct idem_error *err)
{
    struct url url;
    enum idem_status status = parse_url(text, &url, err);

    if (status != IDEM_OK)
        return status;
    if (!idem_buf_printf(out,
                         "\n    upstream %s_%zu {\n"
                         "        server \"%s\" max_fails=0;\n"
                         "        keepalive 256;\n"
                         "        keepalive_requests 1000000;\n"
                         "        keepalive_timeout 2s;\n"
                         "    }\n",
                         name, number, url.host))
        return idem__fail(err, IDEM_ERR_MEMORY, "out of memory");
    return IDEM_OK;
}

/* The URL that decides whether a request may pass; NULL: none. */
const char *
gateway_auth_of(const struct gateway_config *config,
                const struct gateway_route *route)
{
    const char *auth = route->auth ? route->auth : config->base.auth;

    return auth && strcmp(auth, "off") != 0 ? auth : NULL;
}

static enum idem_status
add_upstreams(const struct gateway_config *config, struct idem_buf *out,
              struct idem_error *err)
{
    enum idem_status status = IDEM_OK;
    const char *auth = gateway_auth_of(config, &config->base);

    for (size_t i = 0; status == IDEM_OK && i < config->route_count; i++) {
        const struct gateway_route *route = &config->routes[i];
        const char *own = gateway_auth_of(config, route);

        status = add_upstream(upstream_of(config, route), "idem", i, out, err);
        if (status == IDEM_OK && own)
            status = add_upstream(own, "idem_auth", i, out, err);
    }
    if (status == IDEM_OK && auth && config->token_path)
        status = add_upstream(auth, "idem_auth", config->route_count, out, err);
    return status;
}

/* The default source of the key. */
const char *
gateway_default_key(const struct gateway_config *config,
                    const struct gateway_route *route)
{
    const char *name = gateway_value(config, route, "profile");
    size_t i = GATEWAY_IETF;

    while (name && strcmp(gateway_profiles[i].name, name) != 0)
        i++;
    return gateway_profiles[i].keys;
}

bool
gateway_add_option(struct idem_buf *out, size_t i, const char *value)
{
    const struct gateway_option *option = &gateway_options[i];
    bool good = idem_buf_printf(out, "            %s", option->directive);

    if (option->kind == GATEWAY_WORDS)
        good = good && gateway_add_words(out, value);
    else
        good =
            good && idem_buf_add(out, " ", 1) && gateway_add_quoted(out, value);
    return good && idem_buf_add(out, ";\n", 2);
}

size_t
gateway_option_number(const char *name)
{
    size_t i = 0;

    while (strcmp(gateway_options[i].name, name) != 0)
        i++;
    return i;
}

static bool
add_options(const struct gateway_config *config,
            const struct gateway_route *route, struct idem_buf *out)
{
    bool good = true;

    if (!gateway_value(config, route, "gated"))
        good = idem_buf_add_text(out, "            idem on;\n");
    if (config->token_path && !gateway_value(config, route, "token"))
        good = good && gateway_add_option(out, gateway_option_number("token"),
                                          GATEWAY_TOKEN_SOURCES);
    for (size_t i = 0; good && i < GATEWAY_OPTIONS; i++) {
        const char *value =
            route->values[i] ? route->values[i] : config->base.values[i];

        if (value)
            good = gateway_add_option(out, i, value);
    }
    return good;
}

/* A name may have several addresses ("localhost" has two) of which the service
 * uses only one, so a refused connection may be retried at the next address.
 * nginx never sends a POST or PATCH twice for that; other methods it would. */
static bool
may_try_next(const struct gateway_config *config,
             const struct gateway_route *route, const struct url *url)
{
    const char *methods = gateway_value(config, route, "methods");

    if (strncmp(url->host, "localhost:", 10) != 0)
        return false;
    return !methods || strcmp(methods, "POST") == 0 ||
           strcmp(methods, "PATCH") == 0 || strcmp(methods, "POST PATCH") == 0;
}

/* The upstream's path is put before the path of every request. nginx replaces
 * the location's path by it, so the location's path is appended here. */
static bool
add_base(struct idem_buf *out, const struct url *url, const char *location)
{
    size_t len = strlen(url->path);

    while (len > 0 && url->path[len - 1] == '/')
        len--;
    return len == 0 || (idem_buf_add(out, url->path, len) &&
                        idem_buf_add_text(out, location));
}

static bool
add_tls_name(struct idem_buf *out, const struct url *url)
{
    return !url->tls ||
           idem_buf_printf(out,
                           "            proxy_ssl_server_name on;\n"
                           "            proxy_ssl_name \"%.*s\";\n",
                           (int)strcspn(url->host, ":"), url->host);
}

/* nginx asks the auth URL before it asks idem, so that replays are checked,
 * too. The subrequest has the request's headers and no body. It may be sent
 * again, because it changes nothing. */
static enum idem_status
add_auth(const struct gateway_config *config, const struct gateway_route *route,
         size_t number, struct idem_buf *out, struct idem_error *err)
{
    struct url url;
    enum idem_status status =
        parse_url(gateway_auth_of(config, route), &url, err);
    bool good;

    if (status != IDEM_OK)
        return status;
    good = idem_buf_printf(
               out,
               "\n        location = /.idem/auth/%zu {\n"
               "            internal;\n"
               "            proxy_next_upstream error;\n"
               "            proxy_pass_request_body off;\n"
               "            proxy_set_header Content-Length \"\";\n"
               "            proxy_set_header Connection \"\";\n"
               "            proxy_set_header Host $http_host;\n"
               "            proxy_set_header X-Original-URI $request_uri;\n"
               "            proxy_set_header X-Original-Method "
               "$request_method;\n",
               number) &&
           add_tls_name(out, &url);
    for (size_t i = 0; good && i < GATEWAY_OPTIONS; i++) {
        const char *value =
            route->values[i] ? route->values[i] : config->base.values[i];

        if (value && strncmp(gateway_options[i].directive, "proxy_", 6) == 0)
            good = gateway_add_option(out, i, value);
    }
    good =
        good && idem_buf_printf(out,
                                "            proxy_pass %s://idem_auth_%zu%s;\n"
                                "        }\n",
                                url.tls ? "https" : "http", number,
                                url.path[0] ? url.path : "/");
    return good ? IDEM_OK : idem__fail(err, IDEM_ERR_MEMORY, "out of memory");
}

bool
gateway_add_auth_request(size_t number, struct idem_buf *out)
{
    return idem_buf_printf(out, "            auth_request /.idem/auth/%zu;\n",
                           number);
}

static enum idem_status
add_route(const struct gateway_config *config, size_t i, struct idem_buf *out,
          struct idem_error *err)
{
    const struct gateway_route *route = &config->routes[i];
    bool exact = strncmp(route->path, "= ", 2) == 0;
    struct url url;
    enum idem_status status = parse_url(upstream_of(config, route), &url, err);
    bool good;

    if (status != IDEM_OK)
        return status;
    if (url.path[0] && strpbrk(route->path + (exact ? 2 : 0), ODD_IN_PATH))
        return idem__fail(err, IDEM_ERR_INVALID,
                          "the route %s has a character that cannot be "
                          "combined with an upstream that has a path",
                          route->path);
    good = idem_buf_printf(out, "\n        location %s", exact ? "= " : "") &&
           gateway_add_quoted(out, route->path + (exact ? 2 : 0)) &&
           idem_buf_add_text(out, " {\n") && add_options(config, route, out);
    if (gateway_auth_of(config, route))
        good = good && gateway_add_auth_request(i, out);
    if (may_try_next(config, route, &url))
        good = good && idem_buf_add_text(
                           out, "            proxy_next_upstream error;\n");
    good = good && add_tls_name(out, &url) &&
           idem_buf_printf(out, "            proxy_pass %s://idem_%zu",
                           url.tls ? "https" : "http", i) &&
           add_base(out, &url, route->path + (exact ? 2 : 0)) &&
           idem_buf_add_text(out, ";\n        }\n");
    if (!good)
        return idem__fail(err, IDEM_ERR_MEMORY, "out of memory");
    return gateway_auth_of(config, route) ? add_auth(config, route, i, out, err)
                                          : IDEM_OK;
}

static bool
add_listen(const struct gateway_config *config, bool first,
           struct idem_buf *out)
{
    char *copy = strdup(config->listen);
    char *rest = copy;
    char *address;
    bool good = copy != NULL;

    while (good && (address = strsep(&rest, ",")))
        good = idem_buf_add_text(out, "        listen ") &&
               gateway_add_quoted(out, address) &&
               idem_buf_printf(out, "%s%s;\n",
                               first ? " default_server backlog=4096" : "",
                               config->tls_cert ? " ssl http2" : "");
    free(copy);
    if (good && config->tls_cert)
        good = idem_buf_add_text(out, "        ssl_certificate ") &&
               gateway_add_quoted(out, config->tls_cert) &&
               idem_buf_add_text(out, ";\n        ssl_certificate_key ") &&
               gateway_add_quoted(out, config->tls_key) &&
               idem_buf_add_text(out,
                                 ";\n        ssl_protocols TLSv1.2 TLSv1.3;\n");
    return good;
}

static bool
same_host(const char *a, const char *b)
{
    return (!a && !b) || (a && b && strcmp(a, b) == 0);
}

static enum idem_status
add_server(const struct gateway_config *config,
           const struct gateway_place *place, const char *host, bool first,
           struct idem_buf *out, struct idem_error *err)
{
    bool good = idem_buf_add_text(out, "\n    server {\n") &&
                add_listen(config, first, out);

    if (host)
        good = good && idem_buf_add_text(out, "        server_name ") &&
               gateway_add_quoted(out, host) && idem_buf_add_text(out, ";\n");
    good = good && gateway_add_own_paths(config, place, out);
    if (!good)
        return idem__fail(err, IDEM_ERR_MEMORY, "out of memory");
    if ((config->token_path || config->status_path) &&
        gateway_auth_of(config, &config->base)) {
        enum idem_status status =
            add_auth(config, &config->base, config->route_count, out, err);

        if (status != IDEM_OK)
            return status;
    }
    for (size_t i = 0; i < config->route_count; i++) {
        enum idem_status status;

        if (!same_host(config->routes[i].host, host))
            continue;
        status = add_route(config, i, out, err);
        if (status != IDEM_OK)
            return status;
    }
    good = idem_buf_add_text(out, "    }\n");
    return good ? IDEM_OK : idem__fail(err, IDEM_ERR_MEMORY, "out of memory");
}

enum idem_status
gateway_nginx_conf(const struct gateway_config *config,
                   const struct gateway_place *place, struct idem_buf *out,
                   struct idem_error *err)
{
    enum idem_status status;
    bool any = false;

    if (!add_head(config, place, out) || !add_http(config, place, out))
        return idem__fail(err, IDEM_ERR_MEMORY, "out of memory");
    status = add_engine(config, place, out, err);
    if (status == IDEM_OK)
        status = add_upstreams(config, out, err);

    /* The server for all hosts comes first, because it is the default. */
    for (size_t i = 0; i < config->route_count; i++)
        any = any || !config->routes[i].host;
    if (status == IDEM_OK && any)
        status = add_server(config, place, NULL, true, out, err);
    for (size_t i = 0; status == IDEM_OK && i < config->route_count; i++) {
        const char *host = config->routes[i].host;
        bool seen = !host;

        for (size_t j = 0; j < i; j++)
            seen = seen || same_host(config->routes[j].host, host);
        if (!seen) {
            status = add_server(config, place, host, !any, out, err);
            any = true;
        }
    }
    if (status == IDEM_OK && !idem_buf_add_text(out, "}\n"))
        status = idem__fail(err, IDEM_ERR_MEMORY, "out of memory");
    return status;
}
