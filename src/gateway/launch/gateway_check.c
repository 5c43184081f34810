/*
 * gateway_check.c - check the options of a gateway together, and fill in what
 * they leave open.
 */
#include "gateway.h"

#include "../../base/address.h"
#include "../../serve/http/problem_page.h"
#include "nginx_conf.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

/* HOST:PORT, :PORT or unix:PATH. A port alone is none: nginx would take it for
 * all interfaces, other programs for loopback. */
static enum idem_status
check_address(const char *text, size_t len, struct idem_error *err)
{
    struct idem__address address;
    int port = idem__port_read(text, len);

    if (len > 5 && strncmp(text, "unix:", 5) == 0)
        return IDEM_OK;
    if (port > 0)
        return idem__fail(err, IDEM_ERR_INVALID,
                          "listen: \"%d\" is not an address: write "
                          "127.0.0.1:%d, or *:%d for all interfaces",
                          port, port, port);
    if (idem__address_read(text, len, &address) || address.port == 0 ||
        memchr(text, ' ', len))
        return idem__fail(err, IDEM_ERR_INVALID,
                          "listen: \"%.*s\" is not an address: give HOST:PORT, "
                          "for instance 127.0.0.1:8080",
                          (int)(len > 80 ? 80 : len), text);
    return IDEM_OK;
}

/* Write the list as nginx takes it: without spaces beside the commas, and :PORT
 * with the host that `idem serve` takes for it. */
static enum idem_status
write_listen(char **listen, struct idem_error *err)
{
    struct idem_buf out;
    const char *at = *listen;
    bool good = true;
    enum idem_status status;

    idem_buf_init(&out, 1024 * 1024);
    for (;; at++) {
        size_t len;

        at += strspn(at, " ");
        len = strcspn(at, ",");
        while (len > 0 && at[len - 1] == ' ')
            len--;
        if (len > 0 && at[0] == ':')
            good = good && idem_buf_add_text(&out, "127.0.0.1");
        good = good && idem_buf_add(&out, at, len);
        at += strcspn(at, ",");
        if (*at == '\0')
            break;
        good = good && idem_buf_add(&out, ",", 1);
    }
    status = good && idem_buf_add(&out, "", 1)
                 ? idem__text_set(listen, (const char *)out.data, err)
                 : idem__fail(err, IDEM_ERR_MEMORY, "out of memory");
    idem_buf_clear(&out);
    return status;
}

/* Is the address, which is `len` bytes long, in the list before it? */
static bool
is_repeated(const char *list, const char *address, size_t len)
{
    for (; list < address; list += strcspn(list, ",") + 1)
        if (strcspn(list, ",") == len && memcmp(list, address, len) == 0)
            return true;
    return false;
}

static enum idem_status
check_listen(const char *listen, struct idem_error *err)
{
    const char *all = listen;

    for (;;) {
        size_t len = strcspn(listen, ",");
        enum idem_status status;

        if (is_repeated(all, listen, len))
            return idem__fail(err, IDEM_ERR_INVALID,
                              "listen: \"%.*s\" is given twice; remove one of "
                              "them",
                              (int)len, listen);
        status = check_address(listen, len, err);
        if (status != IDEM_OK || listen[len] == '\0')
            return status;
        listen += len + 1;
    }
}

const char *
gateway_value(const struct gateway_config *config,
              const struct gateway_route *route, const char *name)
{
    size_t i = 0;

    while (strcmp(gateway_options[i].name, name) != 0)
        i++;
    return route->values[i] ? route->values[i] : config->base.values[i];
}

/* Without a ttl, two equal orders on one day would count as one. */
static enum idem_status
check_content(const struct gateway_config *config,
              const struct gateway_route *route, struct idem_error *err)
{
    const char *keys = gateway_value(config, route, "key");
    char word[GATEWAY_WORD_MAX];

    while (keys && gateway_word_next(&keys, word)) {
        if (strcmp(word, "content") == 0 &&
            !gateway_value(config, route, "ttl"))
            return idem__fail(
                err, IDEM_ERR_INVALID,
                "the route %s: --key content needs --ttl TIME, the time within "
                "which two equal requests count as one, for instance 10s",
                route->path);
    }
    return IDEM_OK;
}

/* A store that may forget records refuses strict requests; report that now and
 * not for each request. */
static enum idem_status
check_mode(const struct gateway_config *config,
           const struct gateway_route *route, struct idem_error *err)
{
    const char *value = gateway_value(config, route, "mode");
    const char *unsafe =
        config->store ? strstr(config->store, "unsafe=") : NULL;

    if (!unsafe || !strstr(unsafe, "forget") ||
        (value && strcmp(value, "loose") == 0))
        return IDEM_OK;
    return idem__fail(
        err, IDEM_ERR_INVALID,
        "the route %s is strict, which a store with unsafe=forget cannot "
        "guarantee; give --mode loose, or use a store without unsafe=forget",
        route->path);
}

static enum idem_status
check_fail_open(const struct gateway_config *config,
                const struct gateway_route *route, struct idem_error *err)
{
    const char *open = gateway_value(config, route, "fail-open");
    const char *mode = gateway_value(config, route, "mode");
    const char *gated = gateway_value(config, route, "gated");

    if (!open || strcmp(open, "on") != 0 ||
        (gated && strcmp(gated, "off") == 0) ||
        (mode && strcmp(mode, "loose") == 0))
        return IDEM_OK;
    return idem__fail(err, IDEM_ERR_INVALID,
                      "the route %s: --fail-open needs --mode loose, because a "
                      "strict request never runs unrecorded",
                      route->path);
}

static enum idem_status
check_verify(const struct gateway_config *config,
             const struct gateway_route *route, struct idem_error *err)
{
    const char *verify = gateway_value(config, route, "verify");
    const char *url = route->upstream ? route->upstream : config->base.upstream;
    const char *auth = gateway_auth_of(config, route);

    if (!verify || strcmp(verify, "on") != 0 ||
        gateway_value(config, route, "ca") ||
        (strncmp(url, "https:", 6) != 0 &&
         (!auth || strncmp(auth, "https:", 6) != 0)))
        return IDEM_OK;
    return idem__fail(err, IDEM_ERR_INVALID,
                      "the route %s: --verify needs --ca FILE, for instance "
                      "/etc/ssl/certs/ca-certificates.crt",
                      route->path);
}

/* 50r/s or 30r/m */
static enum idem_status
check_rate(const char *name, const char *rate, struct idem_error *err)
{
    size_t digits = rate ? strspn(rate, "0123456789") : 0;

    if (!rate || (digits > 0 && digits < 7 && strtol(rate, NULL, 10) > 0 &&
                  (strcmp(rate + digits, "r/s") == 0 ||
                   strcmp(rate + digits, "r/m") == 0)))
        return IDEM_OK;
    return idem__fail(err, IDEM_ERR_INVALID,
                      "%s: \"%s\" is not a rate such as 50r/s or 30r/m", name,
                      rate);
}

static bool
is_host(struct idem_bytes host, const char *name)
{
    return host.len == strlen(name) &&
           strncasecmp(host.data, name, host.len) == 0;
}

/* Is a connection to `host` one to a socket that listens on `own`? Names are
 * not resolved; localhost has both loopback addresses. */
static bool
reaches(struct idem_bytes host, struct idem_bytes own)
{
    static const char *const pairs[][2] = {
        {"localhost", "127.0.0.1"}, {"localhost", "::1"},
        {"127.0.0.1", "localhost"}, {"::1", "localhost"},
        {"localhost", "0.0.0.0"},   {"127.0.0.1", "0.0.0.0"},
        {"localhost", "*"},         {"127.0.0.1", "*"},
        {"localhost", "::"},        {"::1", "::"},
    };

    if (host.len == own.len && strncasecmp(host.data, own.data, own.len) == 0)
        return true;
    for (size_t i = 0; i < sizeof(pairs) / sizeof(pairs[0]); i++)
        if (is_host(host, pairs[i][0]) && is_host(own, pairs[i][1]))
            return true;
    return false;
}

/* Each request would come back to the gateway until it has no connections. */
static enum idem_status
check_loop(const struct gateway_config *config,
           const struct gateway_route *route, struct idem_error *err)
{
    const char *url = route->upstream ? route->upstream : config->base.upstream;
    char text[GATEWAY_HOST_MAX];
    struct idem__address to, own;
    enum idem_status status = gateway_upstream_host(url, text, err);

    if (status != IDEM_OK)
        return status;
    for (const char *at = config->listen;; at++) {
        size_t len = strcspn(at, ",");
        bool same = strlen(text) == len && memcmp(at, text, len) == 0;

        if (!same && strncmp(at, "unix:", 5) != 0 &&
            !idem__address_read(text, strlen(text), &to)) {
            (void)idem__address_read(at, len, &own);
            same = to.port == own.port && reaches(to.host, own.host);
        }
        if (same)
            return idem__fail(err, IDEM_ERR_INVALID,
                              "the route %s: the gateway itself listens on "
                              "the address of the upstream \"%s\"; give the "
                              "address of your service",
                              route->path, url);
        at += len;
        if (*at == '\0')
            return IDEM_OK;
    }
}

static enum idem_status
check_routes(struct gateway_config *config, struct idem_error *err)
{
    for (size_t i = 0; i < config->route_count; i++) {
        struct gateway_route *route = &config->routes[i];
        enum idem_status status;

        if (!route->upstream && !config->base.upstream)
            return idem__fail(
                err, IDEM_ERR_INVALID,
                "the route %s has no service; give it an upstream",
                route->path);
        status = gateway_upstream_check(
            route->upstream ? route->upstream : config->base.upstream, err);
        if (status == IDEM_OK)
            status = check_loop(config, route, err);
        if (status == IDEM_OK)
            status = check_content(config, route, err);
        if (status == IDEM_OK)
            status = check_mode(config, route, err);
        if (status == IDEM_OK)
            status = check_fail_open(config, route, err);
        if (status == IDEM_OK)
            status = check_verify(config, route, err);
        if (status != IDEM_OK)
            return status;
    }
    return IDEM_OK;
}

/* nginx would resolve a relative path in its own folder, not in ours. */
static enum idem_status
make_absolute(char **path, struct idem_error *err)
{
    char folder[PATH_MAX];
    char *whole;

    if (!*path || (*path)[0] == '/')
        return IDEM_OK;
    if (!getcwd(folder, sizeof(folder)) ||
        asprintf(&whole, "%s/%s", folder, *path) < 0)
        return idem__fail(err, IDEM_ERR_INVALID, "%s: %s", *path,
                          strerror(errno));
    free(*path);
    *path = whole;
    return IDEM_OK;
}

static enum idem_status
make_paths_absolute(struct gateway_config *config, struct idem_error *err)
{
    char **paths[] = {&config->tls_cert, &config->tls_key, &config->access_log,
                      &config->module, &config->nginx};
    enum idem_status status = IDEM_OK;

    for (size_t i = 0;
         status == IDEM_OK && i < sizeof(paths) / sizeof(paths[0]); i++)
        status = make_absolute(paths[i], err);
    return status;
}

/* The engine reads the environment variable itself. */
bool
gateway_has_credentials(const struct gateway_config *config)
{
    const char *file = getenv("IDEM_CREDENTIALS");

    return config->credentials || (file && *file);
}

/* idem serve says "none", so take both. */
static void
none_is_off(char *value)
{
    if (value && strcmp(value, "none") == 0)
        memcpy(value, "off", sizeof("off"));
}

/* The paths that the gateway serves itself. */
static enum idem_status
check_own_paths(const struct gateway_config *config, struct idem_error *err)
{
    const char *const paths[][2] = {
        {"token path", config->token_path},
        {"status path", config->status_path},
        {"path of the page script", config->page_script},
        {"policy path", config->policy_path},
    };

    for (size_t i = 0; i < sizeof(paths) / sizeof(paths[0]); i++) {
        if (paths[i][1] && paths[i][1][0] != '/')
            return idem__fail(err, IDEM_ERR_INVALID,
                              "the %s does not begin with a /", paths[i][0]);
    }
    return IDEM_OK;
}

enum idem_status
gateway_config_check(struct gateway_config *config, struct idem_error *err)
{
    enum idem_status status;

    none_is_off(config->socket);
    none_is_off(config->http);
    if (config->route_count == 0) {
        if (!config->base.upstream)
            return idem__fail(err, IDEM_ERR_INVALID,
                              "no service is given; give --upstream URL, for "
                              "instance --upstream http://127.0.0.1:3000");
        config->route_count = 1;
        status = idem__text_set(&config->routes[0].path, "/", err);
        if (status != IDEM_OK)
            return status;
    }
    if (!config->tls_cert != !config->tls_key)
        return idem__fail(err, IDEM_ERR_INVALID,
                          "TLS needs both a certificate and its key");
    status = check_own_paths(config, err);
    if (status != IDEM_OK)
        return status;
    if (config->problem_base &&
        !problem_base_ok(idem_text(config->problem_base)))
        return idem__fail(err, IDEM_ERR_INVALID,
                          "problem-base: \"%s\" is not a URL that ends with / "
                          "or #, for instance "
                          "https://docs.example.com/problems/",
                          config->problem_base);
    if (config->console && !gateway_has_credentials(config))
        return idem__fail(err, IDEM_ERR_INVALID,
                          "the console shows requests and results, so it needs "
                          "a login; give --credentials FILE, too");
    if (config->console && config->http && strcmp(config->http, "off") == 0)
        return idem__fail(err, IDEM_ERR_INVALID,
                          "the console needs HTTP; leave out --http off");
    status = config->engine ? gateway_engine_check(config, err) : IDEM_OK;
    if (status != IDEM_OK)
        return status;
    if (config->workers > 1024)
        return idem__fail(err, IDEM_ERR_INVALID,
                          "workers: at most 1024 are allowed");
    if (!config->listen) {
        status = idem__text_set(&config->listen, "127.0.0.1:8080", err);
        if (status != IDEM_OK)
            return status;
    }
    status = write_listen(&config->listen, err);
    if (status == IDEM_OK)
        status = check_listen(config->listen, err);
    if (status == IDEM_OK)
        status = check_rate("token-rate", config->token_rate, err);
    if (status == IDEM_OK)
        status = check_rate("status-rate", config->status_rate, err);
    if (status == IDEM_OK)
        status = make_paths_absolute(config, err);
    return status == IDEM_OK ? check_routes(config, err) : status;
}
