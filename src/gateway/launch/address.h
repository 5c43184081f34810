/*
 * address.h - where idem's commands reach the gateway's engine.
 */
#ifndef IDEM__GATEWAY_ADDRESS_H
#define IDEM__GATEWAY_ADDRESS_H

#include "../../base/error.h"

#include <stddef.h>

/*
 * Let `wanted` lead to the engine's socket; NULL: this user's default socket,
 * if no other server has it; "off": nothing. `path` is what was taken, or
 * empty. Only a path that was asked for can fail.
 */
enum idem_status gateway_address_take(const char *wanted, const char *engine,
                                      char *path, size_t path_len,
                                      struct idem_error *err);
void gateway_address_drop(const char *path, const char *engine);

#endif
