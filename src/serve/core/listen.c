/*
 * listen.c - parse addresses as people write them, and open sockets that listen
 * on them.
 */
#include "listen.h"

#include "../../base/address.h"
#include "systemd.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define BACKLOG 1024

bool
server_is_loopback(const char *host)
{
    struct in_addr v4;
    struct in6_addr v6;

    if (inet_pton(AF_INET, host, &v4) == 1)
        return (ntohl(v4.s_addr) >> 24) == 127;
    if (inet_pton(AF_INET6, host, &v6) == 1)
        return IN6_IS_ADDR_LOOPBACK(&v6);
    return strcasecmp(host, "localhost") == 0;
}

static bool
read_address(const char *text, size_t len, struct server_address *address)
{
    struct idem__address read;

    if (idem__address_read(text, len, &read) || read.port == 0 ||
        read.host.len >= sizeof(address->host) ||
        memchr(read.host.data, ' ', read.host.len))
        return false;
    if (read.host.len == 0)
        read.host = idem_text("127.0.0.1");
    memcpy(address->host, read.host.data, read.host.len);
    address->host[read.host.len] = '\0';
    snprintf(address->port, sizeof(address->port), "%d", read.port);
    address->loopback = server_is_loopback(address->host);
    return true;
}

bool
server_address_next(const char **list, struct server_address *address,
                    struct idem_error *err)
{
    size_t len;

    *list += strspn(*list, ", ");
    len = strcspn(*list, ",");
    while (len > 0 && (*list)[len - 1] == ' ')
        len--;
    if (len == 0)
        return false;
    if (!read_address(*list, len, address)) {
        idem__fail(err, IDEM_ERR_INVALID,
                   "\"%.*s\" is not an address: give HOST:PORT, for instance "
                   "127.0.0.1:6390 or [::1]:6390",
                   (int)(len > 80 ? 80 : len), *list);
        return false;
    }
    *list += len;
    return true;
}

/* A socket that is bound to the address, or -1 with errno. */
static int
bind_one(const struct addrinfo *info)
{
    int one = 1, saved;
    int fd = socket(info->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC,
                    info->ai_protocol);

    if (fd < 0)
        return -1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    if (info->ai_family == AF_INET6)
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &one, sizeof(one));
    if (bind(fd, info->ai_addr, info->ai_addrlen) == 0)
        return fd;
    saved = errno;
    close(fd);
    errno = saved;
    return -1;
}

static int
open_one(const struct addrinfo *info)
{
    int fd = systemd_socket_take(info->ai_addr), saved;

    if (fd >= 0)
        return fd;
    fd = bind_one(info);
    if (fd < 0 || listen(fd, BACKLOG) == 0)
        return fd;
    saved = errno;
    close(fd);
    errno = saved;
    return -1;
}

static const char *
advice_for(int error)
{
    switch (error) {
    case EADDRINUSE:
        return "; stop the program that listens there, or choose another port";
    case EADDRNOTAVAIL:
        return "; this machine does not have that address";
    case EACCES:
        return "; a port below 1024 needs root or CAP_NET_BIND_SERVICE";
    default:
        return "";
    }
}

enum idem_status
server_listen_tcp(const struct server_address *address, int *fds, size_t *count,
                  struct idem_error *err)
{
    struct addrinfo hints = {.ai_family = AF_UNSPEC,
                             .ai_socktype = SOCK_STREAM,
                             .ai_flags = AI_PASSIVE};
    struct addrinfo *found;
    const char *host = strcmp(address->host, "*") == 0 ? NULL : address->host;
    size_t opened = 0;
    int failed = 0;
    int code = getaddrinfo(host, address->port, &hints, &found);

    if (code != 0)
        return idem__fail(err, IDEM_ERR_UNAVAILABLE, "cannot listen on %s: %s",
                          address->host, gai_strerror(code));
    for (struct addrinfo *i = found; i; i = i->ai_next) {
        int fd;

        if (*count == SERVER_LISTEN_MAX) {
            freeaddrinfo(found);
            return idem__fail(err, IDEM_ERR_INVALID,
                              "cannot listen on %s:%s: more than %d addresses; "
                              "give fewer, or * for all of this machine",
                              address->host, address->port, SERVER_LISTEN_MAX);
        }
        fd = open_one(i);
        if (fd >= 0) {
            fds[(*count)++] = fd;
            opened++;
        } else if (errno != EAFNOSUPPORT && errno != EADDRNOTAVAIL) {
            failed = errno;
        } else if (!failed) {
            failed = opened ? 0 : errno;
        }
    }
    freeaddrinfo(found);
    if (opened > 0 && failed != EADDRINUSE)
        return IDEM_OK;
    return idem__fail(err, IDEM_ERR_UNAVAILABLE, "cannot listen on %s:%s: %s%s",
                      address->host, address->port, strerror(failed),
                      advice_for(failed));
}

/* With SO_REUSEADDR, a bind fails only if another socket listens there. Other
 * errors are left to server_listen_tcp, which knows how to judge them. */
static bool
is_in_use(const struct server_address *address)
{
    struct addrinfo hints = {.ai_family = AF_UNSPEC,
                             .ai_socktype = SOCK_STREAM,
                             .ai_flags = AI_PASSIVE};
    struct addrinfo *found = NULL;
    const char *host = strcmp(address->host, "*") == 0 ? NULL : address->host;
    bool in_use = false;

    if (getaddrinfo(host, address->port, &hints, &found) != 0)
        return false;
    for (struct addrinfo *i = found; i && !in_use; i = i->ai_next) {
        int fd;

        if (systemd_socket_waits(i->ai_addr))
            continue;
        fd = bind_one(i);
        in_use = fd < 0 && errno == EADDRINUSE;
        if (fd >= 0)
            close(fd);
    }
    freeaddrinfo(found);
    return in_use;
}

enum idem_status
server_listen_try(const char *list, struct idem_error *err)
{
    struct server_address address;

    while (list && server_address_next(&list, &address, NULL)) {
        if (is_in_use(&address))
            return idem__fail(err, IDEM_ERR_UNAVAILABLE,
                              "cannot listen on %s:%s: %s%s", address.host,
                              address.port, strerror(EADDRINUSE),
                              advice_for(EADDRINUSE));
    }
    return IDEM_OK;
}

/* What connecting to it says: 0, or the error. */
static int
knock(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), error;

    if (fd < 0)
        return errno;
    if (strlen(path) < sizeof(address.sun_path))
        memcpy(address.sun_path, path, strlen(path) + 1);
    error = connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0
                ? 0
                : errno;
    close(fd);
    return error;
}

bool
server_socket_is_abandoned(const char *path)
{
    int error = knock(path);

    return error == ECONNREFUSED || error == ENOENT;
}

bool
server_socket_is_taken(const char *path)
{
    int error = knock(path);

    return error == 0 || error == EAGAIN || error == EACCES;
}

static enum idem_status
fail_taken(const char *path, struct idem_error *err)
{
    return idem__fail(err, IDEM_ERR_UNAVAILABLE,
                      "another server listens on %s: stop it, or give another "
                      "path with --socket",
                      path);
}

enum idem_status
server_socket_make_way(const char *path, struct idem_error *err)
{
    struct stat stat;

    if (lstat(path, &stat) != 0)
        return IDEM_OK;
    if (!S_ISSOCK(stat.st_mode) && !S_ISLNK(stat.st_mode))
        return idem__fail(
            err, IDEM_ERR_INVALID,
            "%s exists and is not a socket; remove it, or give another path",
            path);
    if (!server_socket_is_abandoned(path))
        return fail_taken(path, err);
    (void)unlink(path);
    return IDEM_OK;
}

enum idem_status
server_socket_try(const char *path, struct idem_error *err)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};

    if (strlen(path) >= sizeof(address.sun_path))
        return IDEM_OK; /* server_listen_unix refuses it */
    memcpy(address.sun_path, path, strlen(path) + 1);
    return systemd_socket_waits((struct sockaddr *)&address) ||
                   !server_socket_is_taken(path)
               ? IDEM_OK
               : fail_taken(path, err);
}

static bool
set_access(const char *path, unsigned mode, const char *group)
{
    struct group *found;

    if (group) {
        found = getgrnam(group); /* server_config_check has checked it */
        if (!found || chown(path, (uid_t)-1, found->gr_gid) != 0)
            return false;
    }
    return chmod(path, mode) == 0;
}

enum idem_status
server_listen_unix(const char *path, unsigned mode, const char *group, int *fd,
                   bool *made, struct idem_error *err)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    enum idem_status status;
    mode_t mask;
    bool bound;

    if (strlen(path) >= sizeof(address.sun_path))
        return idem__fail(err, IDEM_ERR_INVALID,
                          "the socket's path %s is longer than %zu bytes", path,
                          sizeof(address.sun_path) - 1);
    memcpy(address.sun_path, path, strlen(path) + 1);
    *fd = systemd_socket_take((struct sockaddr *)&address);
    *made = *fd < 0;
    if (!*made)
        return IDEM_OK;
    status = server_socket_make_way(path, err);
    if (status != IDEM_OK)
        return status;
    *fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (*fd < 0)
        return idem__fail(err, IDEM_ERR_UNAVAILABLE, "socket: %s",
                          strerror(errno));
    /* The umask keeps others out between bind and chmod. */
    mask = umask(0177);
    bound = bind(*fd, (struct sockaddr *)&address, sizeof(address)) == 0;
    umask(mask);
    if (bound && set_access(path, mode, group) && listen(*fd, BACKLOG) == 0)
        return IDEM_OK;
    idem__fail(err, IDEM_ERR_UNAVAILABLE, "cannot listen on %s: %s",
               address.sun_path, strerror(errno));
    if (bound)
        unlink(path);
    close(*fd);
    return IDEM_ERR_UNAVAILABLE;
}
