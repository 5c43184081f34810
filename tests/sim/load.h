/*
 * load.h - clients of the simulated world: they begin, work, finish, die and
 * try again, and report everything to truth.c.
 */
#ifndef IDEM_SIM_LOAD_H
#define IDEM_SIM_LOAD_H

#include "truth.h"

struct sim_load {
    struct truth_key keys[TRUTH_KEYS];
    int key_count;
    int64_t lease_ms;     /* the usual one */
    int64_t until;        /* clients begin nothing after that */
    bool clock_was_ahead; /* a lease of that time lasts until then */
};

void load_init(struct sim_load *load, int key_count, int64_t length);
/* One client: a loop that ends at `until`. */
void load_client(struct sim_load *load, struct idem_engine *engine);
/* Everything is repaired: every key has to answer within a lease. */
void load_look(struct sim_load *load, struct idem_engine *engine);

#endif
