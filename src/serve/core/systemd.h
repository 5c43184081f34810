/*
 * systemd.h - sockets from systemd, and messages to it. Without its variables
 * in the environment nothing here does anything.
 */
#ifndef SERVER_SYSTEMD_H
#define SERVER_SYSTEMD_H

#include "../../base/error.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

struct idem_engine;

/* ---- sockets that systemd opened (LISTEN_FDS) ------------------------- */

/* Called at the start, while there is only one thread: record the sockets. An
 * address of the configuration is then served on the socket that is bound to
 * it. An error if there are more sockets than SOCKETS_MAX. */
enum idem_status systemd_sockets_note(struct idem_error *err);

/* The socket bound to this address, or -1; the caller owns it. */
int systemd_socket_take(const struct sockaddr *address);
/* Is there one that nobody has taken? */
bool systemd_socket_waits(const struct sockaddr *address);

/* An error if a socket was not used, because its clients would wait forever. */
enum idem_status systemd_sockets_taken(struct idem_error *err);

/* ---- messages to systemd (NOTIFY_SOCKET) ------------------------------ */

void systemd_notify(const char *state);

/* Call them before and after the settings are read again. */
void systemd_notify_reloading(void);

/* ---- watchdog (WATCHDOG_USEC) ----------------------------------------- */

/*
 * A watchdog message says that the engine answers, not only that a timer runs.
 * It is sent if the engine has answered something since the last message, with
 * any status. If no client asks anything, the watchdog submits a probe.
 * Messages continue while the store is unavailable.
 */
struct systemd_watchdog {
    int64_t every_ms; /* 0: systemd wants no messages */
    int64_t next_ms;
    uint64_t answers; /* the engine's count at the last message */
    bool asked;       /* a probe was submitted since then */
};

void systemd_watchdog_init(struct systemd_watchdog *watchdog);

/* Call it in every tick of the loop's thread; true: the engine has work. */
bool systemd_watchdog_tick(struct systemd_watchdog *watchdog,
                           struct idem_engine *engine, int64_t now_ms);

#endif
