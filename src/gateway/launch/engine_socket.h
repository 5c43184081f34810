/*
 * engine_socket.h - the socket by which idem's commands reach the gateway's
 * engine.
 */
#ifndef IDEM__GATEWAY_ENGINE_SOCKET_H
#define IDEM__GATEWAY_ENGINE_SOCKET_H

#include "../../base/error.h"

#include <stddef.h>

/*
 * Make `wanted` a link to the engine's socket; NULL: this user's default
 * socket, if no other server has it; "off": no link. `path` gets the link, or
 * is empty. It can fail only for a path that was configured.
 */
enum idem_status gateway_socket_take(const char *wanted, const char *engine,
                                     char *path, size_t path_len,
                                     struct idem_error *err);
/* Can a configured socket be made? It may belong to a gateway that runs. */
enum idem_status gateway_socket_check(const char *wanted,
                                      struct idem_error *err);
void gateway_socket_drop(const char *path, const char *engine);

#endif
