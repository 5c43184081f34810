/*
 * server.h - a database server of the simulated world, and the store by which
 * an engine reaches it.
 *
 * The server keeps records as `memory:` does, has a clock of its own, may have
 * a replica, and answers over a network that delays, drops and cuts. What it
 * promises is what the real servers promise with the settings that idem insists
 * on: a swap that was answered "stored" is on the server's disk, and on the
 * replica if there is one that may take over. Anything that was not answered
 * may have happened, or may still happen later.
 */
#ifndef IDEM_SIM_SERVER_H
#define IDEM_SIM_SERVER_H

#include "../../src/store/store.h"
#include "sim.h"

struct sim_server;

enum sim_kind {
    SIM_SINGLE,   /* one server */
    SIM_REPLICA,  /* a replica confirms every write; failovers happen */
    SIM_NO_CLOCK, /* one server that tells no time, as etcd */
};

struct sim_server *sim_server_new(enum sim_kind kind);

/* A store for an engine of the process that calls this. */
struct idem_store *sim_server_open(struct sim_server *server);

/* Faults. */
void sim_server_cut(struct sim_server *server, struct sim_process *from,
                    int64_t ns); /* no message passes for so long */
void sim_server_restart(struct sim_server *server, int64_t ns);
void sim_server_fail_over(struct sim_server *server);
void sim_server_set_clock(struct sim_server *server, int64_t by_ns);
/* The next replies are lost after their swap was done, one in so many; 0: as
 * the network likes. */
void sim_server_lose(struct sim_server *server, uint64_t one_in);

/* A copy of all that it has, or of such a copy (NULL: what it has). */
struct idem_store *sim_server_copy(struct sim_server *server,
                                   struct idem_store *from);
/* It comes back after so long with what this copy has; NULL: empty. */
void sim_server_go_back(struct sim_server *server, struct idem_store *copy,
                        int64_t ns);

/* Everything is as it should be, but for its clock. */
void sim_server_repair(struct sim_server *server);

#endif
