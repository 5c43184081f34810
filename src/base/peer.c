/*
 * peer.c - which user is at the other end of a unix socket.
 */
#include "peer.h"

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
