/*
 * net.h - sockets of the simulated world.
 *
 * Programs call socket, connect, send, recv, poll, epoll and eventfd as always;
 * those calls are bound to this network when the simulator is linked. A
 * connection delivers its bytes in order, in pieces, late, or not at all;
 * different connections know nothing of each other. What was sent before a
 * close or a kill may still arrive.
 */
#ifndef IDEM_SIM_NET_H
#define IDEM_SIM_NET_H

#include "sim.h"

/* Listen under a name; -1 and errno. */
int net_listen(const char *name);

/* The kernel closes what a killed process had open; or, if its machine died
 * with it, says nothing to anybody. */
void net_killed(struct sim_process *process, bool silently);

/* Nothing that this process sends or is sent arrives for so long; then all of
 * it does. */
void net_hold(struct sim_process *process, int64_t ns);
/* Its connections break; what is on its way is lost. */
void net_reset(struct sim_process *process);
/* Its connections are half-open: what is sent is lost, and nobody is told. */
void net_lose(struct sim_process *process);
/* All is well from now on. */
void net_repair(void);

#endif
