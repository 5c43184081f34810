/*
 * peer.c - which user is at the other end of a unix socket.
 */
#include "peer.h"

#include "error.h"

#include <pwd.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

bool
idem__peer_user(int fd, uid_t *user)
{
    struct ucred peer;
    socklen_t len = sizeof(peer);

    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &len) != 0 ||
        len != sizeof(peer) || peer.uid == (uid_t)-1)
        return false;
    *user = peer.uid;
    return true;
}

bool
idem__peer_is_ours(int fd)
{
    uid_t user;

    return idem__peer_user(fd, &user) && (user == 0 || user == geteuid());
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
    if (!idem__peer_user(fd, &user))
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
