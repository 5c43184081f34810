/*
 * rounds.h - random calls of every function of a store that may fail, and what
 * must be true of their answers.
 *
 * For every key the rounds know which revs may be there: one after an answer,
 * several after an outcome that was lost. Every later answer must be one of
 * them, and in the end one of them must be there, intact.
 */
#ifndef IDEM_TESTS_ROUNDS_H
#define IDEM_TESTS_ROUNDS_H

#include "stores.h"

#include <stdatomic.h>

#define ROUND_KEYS 40
#define ROUND_MAYBE 16

struct round_key {
    char id[16];
    uint8_t key[IDEM_KEY_LEN];
    uint64_t revs[ROUND_MAYBE]; /* may be there; 0: absent */
    size_t count;
    bool watched, shown;
};

struct rounds {
    char scope[40];
    int64_t now_ms;
    struct dice dice;
    struct round_key keys[ROUND_KEYS]; /* sorted by key */
    size_t turns, stored, refused, not_stored, lost, errors;
    atomic_size_t news;
    enum idem_status also; /* an error that is fine as well */
    bool lies; /* the server may say that there are no records */
};

void rounds_init(struct rounds *rounds, uint64_t seed);

/* One call of each function: swap a batch, read, scan, ask for the time, tend,
 * watch. Fails the test for an answer that cannot be right, and for an error
 * other than UNAVAILABLE, LOST, FULL and MEMORY. False: there was an error. */
bool rounds_turn(struct rounds *rounds, struct idem_store *store);

/* Without faults: every key has one of its revs and can be deleted, which this
 * does. */
void rounds_check(struct rounds *rounds, struct idem_store *store);

/* An error that a store in trouble may give. */
bool is_trouble(enum idem_status status);

#endif
