/*
 * peer.h - finds the user and the process at the other end of a unix socket.
 */
#ifndef IDEM__PEER_H
#define IDEM__PEER_H

#include <idem/engine.h>
#include <stdbool.h>
#include <sys/types.h>

/* The process that listens on the other end, or -1. */
pid_t idem__peer_pid(int fd);

/* Is it this process's own user or root? */
bool idem__peer_is_ours(int fd);

/*
 * May a secret be sent to this socket? In a folder that many users can write
 * to, any of them may have created it. So only a server of this user, of root,
 * or of the user named by IDEM_SERVER_USER gets the secret.
 */
enum idem_status idem__peer_trusted(int fd, const char *address,
                                    struct idem_error *err);

#endif
