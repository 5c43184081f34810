/*
 * systemd.h - what systemd hands to a service and hears from it. Without its
 * variables in the environment nothing here does anything.
 */
#ifndef SERVER_SYSTEMD_H
#define SERVER_SYSTEMD_H

#include "../../base/error.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

struct idem_engine;

/* ---- sockets that it opened (LISTEN_FDS) ------------------------------ */

/* At the start, by the only thread: take note of them. An address of the
 * configuration is then served on the socket that is bound to it. An error if
 * there are more than we take. */
enum idem_status systemd_sockets_note(struct idem_error *err);

/* The socket bound to this address, or -1; it is the caller's. */
int systemd_socket_take(const struct sockaddr *address);

/* An error if one was not taken: clients would wait on it for ever. */
enum idem_status systemd_sockets_taken(struct idem_error *err);

/* ---- what it hears (NOTIFY_SOCKET) ------------------------------------ */

void systemd_notify(const char *state);

/* Before and after settings are read again. */
void systemd_notify_reloading(void);

/* ---- signs of life (WATCHDOG_USEC) ------------------------------------ */

/*
 * A sign says that the engine answers, not only that a timer runs: it is sent
 * when the engine has answered something since the last one, with whatever
 * status. If nobody asks, we do. A store that is away stops no signs.
 */
struct systemd_watchdog {
    int64_t every_ms; /* 0: nobody asked for signs */
    int64_t next_ms;
    uint64_t answers; /* that the engine had given at the last sign */
    bool asked;       /* since then */
};

void systemd_watchdog_init(struct systemd_watchdog *watchdog);

/* In every tick of the loop's thread; true: the engine has work. */
bool systemd_watchdog_tick(struct systemd_watchdog *watchdog,
                           struct idem_engine *engine, int64_t now_ms);

#endif
