/*
 * peer.c - finds the user and the process at the other end of a unix socket.
 */
#include "peer.h"

#include "error.h"

#include <pwd.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#define OVERFLOW_USER 65534 /* used if the file cannot be read */

/* Read the first numbers of a file in /proc; returns how many there were. */
static int
read_numbers(const char *path, unsigned long numbers[3])
{
    FILE *file = fopen(path, "re");
    int got =
        file ? fscanf(file, "%lu %lu %lu", numbers, numbers + 1, numbers + 2)
             : 0;

    if (file)
        fclose(file);
    return got;
}

/* In a container with its own user namespace, the kernel shows all outside
 * users as one user ("nobody"), which may also be a user inside. */
static bool
is_anybody(uid_t user)
{
    unsigned long overflow[3], map[3];

    if (read_numbers("/proc/sys/kernel/overflowuid", overflow) < 1)
        overflow[0] = OVERFLOW_USER;
    if (user != overflow[0] || read_numbers("/proc/self/uid_map", map) < 3)
        return false;
    return map[0] != 0 || map[2] < UINT32_MAX;
}

/* The user that connected, or that listens. False if this is not a unix socket,
 * or if the kernel shows several users as this one. */
static bool
read_user(int fd, uid_t *user)
{
    struct ucred peer;
    socklen_t len = sizeof(peer);

    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &len) != 0 ||
        len != sizeof(peer) || peer.uid == (uid_t)-1 || is_anybody(peer.uid))
        return false;
    *user = peer.uid;
    return true;
}

pid_t
idem__peer_pid(int fd)
{
    struct ucred peer;
    socklen_t len = sizeof(peer);

    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &len) == 0 ? peer.pid
                                                                     : -1;
}

bool
idem__peer_is_ours(int fd)
{
    uid_t user;

    return read_user(fd, &user) && (user == 0 || user == geteuid());
}

enum idem_status
idem__peer_trusted(int fd, const char *address, struct idem_error *err)
{
    const char *name = getenv("IDEM_SERVER_USER");
    const struct passwd *named = name && *name ? getpwnam(name) : NULL;
    int domain = AF_UNIX;
    socklen_t len = sizeof(domain);
    uid_t user;

    (void)getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &len);
    if (domain != AF_UNIX || idem__peer_is_ours(fd))
        return IDEM_OK;
    if (!read_user(fd, &user))
        return idem__fail(err, IDEM_ERR_UNAVAILABLE,
                          "%s: cannot tell which user listens there, so the "
                          "secret was not sent",
                          address);
    if (named && named->pw_uid == user)
        return IDEM_OK;
    return idem__fail(err, IDEM_ERR_INVALID,
                      "%s: the server there runs as user %u, neither you nor "
                      "root, so the secret was not sent; if it is the right "
                      "server, set IDEM_SERVER_USER to that user's name",
                      address, (unsigned)user);
}
