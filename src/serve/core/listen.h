/*
 * listen.h - sockets that listen.
 */
#ifndef SERVER_LISTEN_H
#define SERVER_LISTEN_H

#include "server.h"

#include "../../record/record.h"

#define SERVER_LISTEN_MAX 16

/* All addresses that the host name stands for; adds to fds and *count. Sockets
 * that systemd opened are used where they are bound to what is asked for. */
enum idem_status server_listen_tcp(const struct server_address *address,
                                   int *fds, size_t *count,
                                   struct idem_error *err);

/* Takes the place of a socket file that nobody answers on. *made: the file is
 * ours; else systemd made it, with the mode and the group of its own unit. */
enum idem_status server_listen_unix(const char *path, unsigned mode,
                                    const char *group, int *fd, bool *made,
                                    struct idem_error *err);

/* A socket that nobody answers on, or a link to none: left from a process that
 * died. */
bool server_socket_is_abandoned(const char *path);
/* Remove such a socket; an error if anything else is there. */
enum idem_status server_socket_make_way(const char *path,
                                        struct idem_error *err);

#endif
