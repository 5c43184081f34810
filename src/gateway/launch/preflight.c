/*
 * preflight.c - find what nginx would refuse at its start, and say what it
 * would warn of. Its messages name directives and lines of a file that the user
 * did not write; these name the gateway's own options.
 */
#include "launch.h"

#include "../../base/address.h"
#include "engine_socket.h"
#include "nginx_conf.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* Another gateway that is about to end may still have the port. */
#define BIND_TRIES 6
#define BIND_PAUSE_MS 500

/* The host of HOST:PORT. Returns the port. */
static int
split(const char *text, char host[GATEWAY_HOST_MAX])
{
    struct idem__address address;

    (void)idem__address_read(text, strlen(text), &address);
    snprintf(host, GATEWAY_HOST_MAX, "%.*s", (int)address.host.len,
             (const char *)address.host.data);
    return address.port;
}

static bool
is_taken(const struct addrinfo *info)
{
    int fd = socket(info->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;
    bool taken;

    if (fd < 0)
        return false;
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    if (info->ai_family == AF_INET6)
        (void)setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &one, sizeof(one));
    taken =
        bind(fd, info->ai_addr, info->ai_addrlen) != 0 && errno == EADDRINUSE;
    close(fd);
    return taken;
}

/* Look up an address of --listen; 0, or a code of getaddrinfo. */
static int
look_up(const char *address, char host[GATEWAY_HOST_MAX],
        struct addrinfo **found)
{
    const struct addrinfo hints = {.ai_family = AF_UNSPEC,
                                   .ai_socktype = SOCK_STREAM,
                                   .ai_flags = AI_PASSIVE};
    char port[8];

    snprintf(port, sizeof(port), "%d", split(address, host));
    if (strcmp(host, "*") == 0)
        snprintf(host, GATEWAY_HOST_MAX, "0.0.0.0");
    return getaddrinfo(host, port, &hints, found);
}

/* Copy the next address of the list "A,B,C"; false: there is none. */
static bool
next_address(const char **list, char *address, size_t room)
{
    size_t len = strcspn(*list, ",");

    if (len == 0)
        return false;
    snprintf(address, room, "%.*s", (int)len, *list);
    *list += len + ((*list)[len] == ',');
    return true;
}

/* Is it an address of this list, however it is written there? */
static bool
is_known(const struct addrinfo *info, const char *list)
{
    char address[IDEM__ADDRESS_LEN], host[GATEWAY_HOST_MAX];
    struct addrinfo *found;
    bool known = false;

    while (!known && next_address(&list, address, sizeof(address))) {
        if (strncmp(address, "unix:", 5) == 0 ||
            look_up(address, host, &found) != 0)
            continue;
        for (struct addrinfo *i = found; i; i = i->ai_next)
            known = known ||
                    (i->ai_addrlen == info->ai_addrlen &&
                     memcmp(i->ai_addr, info->ai_addr, i->ai_addrlen) == 0);
        freeaddrinfo(found);
    }
    return known;
}

/* nginx reports every other flaw of an address itself, in one line. */
static enum idem_status
check_listen(const char *address, const char *known, bool *taken,
             struct idem_error *err)
{
    char host[GATEWAY_HOST_MAX];
    struct addrinfo *found;
    int code = look_up(address, host, &found);

    if (code != 0)
        return idem__fail(err, IDEM_ERR_INVALID,
                          "--listen %s: the host \"%s\" cannot be found (%s)",
                          address, host, gai_strerror(code));
    for (struct addrinfo *i = found; i; i = i->ai_next)
        *taken = *taken || (is_taken(i) && !is_known(i, known));
    freeaddrinfo(found);
    return *taken ? idem__fail(err, IDEM_ERR_UNAVAILABLE,
                               "%s is in use: stop the other program or choose "
                               "another --listen",
                               address)
                  : IDEM_OK;
}

/* This gateway itself may use the addresses in the list `known`. */
static enum idem_status
check_listens(const struct gateway_config *config, const char *known,
              bool *taken, struct idem_error *err)
{
    const char *list = config->listen;
    enum idem_status status = IDEM_OK;
    char address[IDEM__ADDRESS_LEN];

    *taken = false;
    while (status == IDEM_OK && next_address(&list, address, sizeof(address))) {
        if (strncmp(address, "unix:", 5) != 0)
            status = check_listen(address, known, taken, err);
    }
    return status;
}

enum idem_status
launch_listen_check(struct launch *self, struct idem_error *err)
{
    enum idem_status status = IDEM_OK;
    bool taken = true;

    for (int i = 0; taken && i < BIND_TRIES && self->stops == 0; i++) {
        if (i > 0)
            launch_take_signals(self, BIND_PAUSE_MS);
        status = check_listens(self->config, "", &taken, err);
    }
    return self->stops > 0 ? IDEM_OK : status;
}

enum idem_status
launch_listen_check_new(const struct gateway_config *old,
                        const struct gateway_config *fresh,
                        struct idem_error *err)
{
    bool taken;

    return check_listens(fresh, old->listen, &taken, err);
}

static enum idem_status
check_host(const char *option, const char *url, struct idem_error *err)
{
    struct addrinfo hints = {.ai_family = AF_UNSPEC,
                             .ai_socktype = SOCK_STREAM};
    struct addrinfo *found;
    char text[GATEWAY_HOST_MAX], host[GATEWAY_HOST_MAX];
    enum idem_status status = gateway_upstream_host(url, text, err);
    int code;

    if (status != IDEM_OK || strncmp(text, "unix:", 5) == 0)
        return status;
    (void)split(text, host);
    code = getaddrinfo(host, NULL, &hints, &found);
    if (code != 0)
        return idem__fail(err, IDEM_ERR_INVALID,
                          "--%s %s: the host \"%s\" cannot be found (%s): "
                          "correct its name, or give its address",
                          option, url, host, gai_strerror(code));
    freeaddrinfo(found);
    return IDEM_OK;
}

enum idem_status
launch_hosts_check(const struct gateway_config *config, struct idem_error *err)
{
    enum idem_status status = IDEM_OK;

    for (size_t i = 0; status == IDEM_OK && i < config->route_count; i++) {
        const struct gateway_route *route = &config->routes[i];
        const char *auth = gateway_auth_of(config, route);

        status = check_host(
            "upstream",
            route->upstream ? route->upstream : config->base.upstream, err);
        if (status == IDEM_OK && auth)
            status = check_host("auth-request", auth, err);
    }
    return status;
}

static bool
is_set(const char *value, const char *word)
{
    return value && strcmp(value, word) == 0;
}

/* The module says the same of an nginx.conf that a user wrote. */
void
launch_say_sharing(const struct gateway_config *config)
{
    bool said_shared = false, said_passes = false, all_paths = false;

    for (size_t i = 0; i < config->route_count; i++) {
        const struct gateway_route *route = &config->routes[i];
        const char *scope = gateway_value(config, route, "scope");
        const char *anonymous = gateway_value(config, route, "anonymous");
        bool shared = is_set(anonymous, "on") || (!anonymous && !scope);
        bool passes = scope && !anonymous &&
                      !is_set(gateway_value(config, route, "required"), "on");

        all_paths = all_paths || strcmp(route->path, "/") == 0;
        if (is_set(gateway_value(config, route, "gated"), "off") ||
            (scope && strncmp(scope, "const:", 6) == 0))
            continue;
        if (shared && !said_shared)
            launch_say("the route %s: callers without a %s share the scope "
                       "\"anonymous\": they can get each other's responses by "
                       "using each other's keys; --anonymous off refuses them",
                       route->path, scope ? "scope" : "credential");
        if (passes && !said_passes)
            launch_say("the route %s: requests without a scope (an empty "
                       "--scope) pass as if they had no key: a repeat runs "
                       "again; --required refuses them",
                       route->path);
        said_shared = said_shared || shared;
        said_passes = said_passes || passes;
    }
    if (!all_paths)
        launch_say("there is no route /: a path that no route names gets 404; "
                   "add a section [route /] to pass such paths to the service");
}

static enum idem_status
try_engine(struct launch *self, struct idem_error *err)
{
    enum idem_status status = gateway_socket_check(self->config->socket, err);

    launch_http_choose(self);
    return status == IDEM_OK ? launch_engine_test(self, err) : status;
}

/* In a folder of its own, because a running gateway may use the configured one.
 */
enum idem_status
gateway_try(struct gateway_config *config, struct idem_error *err)
{
    static struct launch launch = {.engine = {-1, -1}, .nginx = {-1, -1}};
    char *folder = config->folder, path[PATH_MAX];
    enum idem_status status =
        folder ? launch_folder_find(config, path, err) : IDEM_OK;

    config->folder = NULL;
    launch.config = config;
    if (status == IDEM_OK)
        status = launch_hosts_check(config, err);
    if (status == IDEM_OK)
        status = launch_find(&launch, err);
    if (status == IDEM_OK)
        status = launch_folder_make(&launch, err);
    if (status == IDEM_OK && !config->engine)
        status = try_engine(&launch, err);
    if (status == IDEM_OK)
        status = launch_conf_write(&launch, err);
    if (status == IDEM_OK)
        status = launch_nginx_test(&launch, err);
    launch_folder_remove(&launch);
    config->folder = folder;
    return status;
}
