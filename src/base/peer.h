/*
 * peer.h - which user is at the other end of a unix socket.
 */
#ifndef IDEM__PEER_H
#define IDEM__PEER_H

#include <idem/engine.h>
#include <stdbool.h>
#include <sys/types.h>

/* The user who connected, or who listens; false if this is no unix socket, or
 * if that user cannot be told from others. */
bool idem__peer_user(int fd, uid_t *user);

/* Is it this process's own user, or root, who may do everything anyway? */
bool idem__peer_is_ours(int fd);

/*
 * May a secret be sent here? A socket in a folder that many can write to may be
 * anybody's: only a server of this user, of root, or of the user that
 * IDEM_SERVER_USER names gets one.
 */
enum idem_status idem__peer_trusted(int fd, const char *address,
                                    struct idem_error *err);

#endif
