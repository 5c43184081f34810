/*
 * world.h - the worlds that can be simulated, and the faults that happen there.
 */
#ifndef IDEM_SIM_WORLD_H
#define IDEM_SIM_WORLD_H

#include "load.h"

#include "../../src/engine/engine.h"

enum fault {
    FAULT_KILL,   /* an engine's process, as kill -9 */
    FAULT_PAUSE,  /* it, as SIGSTOP */
    FAULT_FREEZE, /* it, and its clocks stand still meanwhile */
    FAULT_CLOCK,  /* its wall clock is set by hours, and back */
    FAULT_DRIFT,  /* its clocks run by a thousandth too fast or too slow */
    FAULT_CUT,
    FAULT_RESTART,
    FAULT_FAILOVER,
    FAULT_SERVER_CLOCK,
    FAULT_LOSE,
    FAULT_POWER,
    FAULT_FULL,
    FAULT_SLOW,
    FAULT_EIO,
    FAULT_ROT,
    FAULT_RESET,
    FAULT_HALF_OPEN,
    FAULT_SERVER_PAUSE,
    FAULT_GO_BACK,
    FAULTS,
};
extern const char *const fault_names[];
#define FAULT(name) (1u << FAULT_##name)
#define FAULTS_COMMON                                                          \
    (FAULT(KILL) | FAULT(PAUSE) | FAULT(FREEZE) | FAULT(CLOCK) | FAULT(DRIFT))

struct world {
    const char *name;
    unsigned faults; /* that happen here */
    int engines;     /* the most */
    int keys;        /* the most */
    bool alone;      /* nobody else can open what an engine has open */
    bool keeps_time; /* an engine may start under a wrong clock */
    void (*make)(void);
    /* An engine for the process that calls this. */
    enum idem_status (*open)(const struct idem_options *options,
                             struct idem_engine **engine,
                             struct idem_error *err);
    void (*killed)(struct sim_process *process); /* may be NULL */
    /* One of its own faults, to this engine's process; may take its time. */
    void (*fault)(enum fault fault, struct sim_process *process);
    void (*set_clock)(int64_t by_ns); /* of its server; NULL: it has none */
    void (*repair)(void);
    void (*end)(void); /* of the run; may be NULL */
};

/* server.c: an engine's store is a simulated server. */
extern const struct world world_single, world_replica, world_no_clock;
/* machine.c: it is a journal on a simulated disk. */
extern const struct world world_journal;
/* remote.c: it is a server, with one of these, behind a simulated network. */
extern const struct world world_remote;
/* backup.c: it is a simulated server that goes back to an old backup. */
extern const struct world world_backup;

extern const struct world *const worlds[];
extern const char *const world_names[];
extern const int world_count;

struct setup {
    uint64_t seed;
    int world; /* -1: the seed says */
    unsigned without;
};

/* In a process of its own: 0 good; a broken promise ends the process. */
int world_run(const struct setup *setup);

/* For a world's own faults. */
void world_kill(struct sim_process *process);
/* Kill it, if an engine may start now; false: it lives. Then start it again. */
bool world_kill_now(struct sim_process *process);
struct sim_process *world_start_again(struct sim_process *process);
int64_t world_lease_ns(void);
int64_t world_until(void); /* clients begin nothing after that */
int world_engine_count(void);
struct truth_key *world_key(int key); /* NULL: there are no more */

#endif
