/*
 * listen.h - open the sockets that the server listens on.
 */
#ifndef SERVER_LISTEN_H
#define SERVER_LISTEN_H

#include "server.h"

#include "../../record/record.h"

#define SERVER_LISTEN_MAX 16

/* 127.x.y.z, ::1 or localhost */
bool server_is_loopback(const char *host);

/* Listen on all addresses of the host name; adds to fds and *count. If systemd
 * opened a socket for one of these addresses, that socket is used. */
enum idem_status server_listen_tcp(const struct server_address *address,
                                   int *fds, size_t *count,
                                   struct idem_error *err);

/* Fails if another program listens on an address of this list, or of the host
 * name in it. Nothing listens afterwards. */
enum idem_status server_listen_try(const char *list, struct idem_error *err);
/* The same for a unix socket. */
enum idem_status server_socket_try(const char *path, struct idem_error *err);

/* Replaces a socket file that no process listens on. *made: this process
 * created the file; else systemd created it, with the mode and the group of its
 * unit. */
enum idem_status server_listen_unix(const char *path, unsigned mode,
                                    const char *group, int *fd, bool *made,
                                    struct idem_error *err);

/* True for a socket file that no process listens on, or a dangling link: a
 * process that died left it behind. */
bool server_socket_is_abandoned(const char *path);
/* True for a socket on which another process listens. Both are false if this
 * process cannot find it out. */
bool server_socket_is_taken(const char *path);
/* Remove an abandoned socket file; an error if the path is anything else. */
enum idem_status server_socket_make_way(const char *path,
                                        struct idem_error *err);

#endif
