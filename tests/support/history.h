/*
 * history.h - what many clients asked and were told, and whether it can be
 * true.
 *
 * Every operation is noted with the time before it was sent and the time after
 * its answer came. The checker knows nothing of engines and stores; it takes
 * the answers of one key and asks, in real time:
 *
 *   one execution   every life of a record is started once: between two starts
 *                   somebody freed it, and nobody finished it
 *   replay          what is replayed is what was finished under that fence
 *   unseen          what an answer has shown, no later operation misses
 *   fences          who starts later has the larger fence
 *
 * Leases and TTLs are taken to outlast the history.
 */
#ifndef IDEM_TESTS_HISTORY_H
#define IDEM_TESTS_HISTORY_H

#include <idem/engine.h>

#include <stdatomic.h>

enum {
    RULE_ONE_EXECUTION = 1,
    RULE_REPLAY = 2,
    RULE_UNSEEN = 4,
    RULE_FENCES = 8,
};

struct event {
    uint64_t start_ns, end_ns;
    uint64_t given; /* the fence that the op named */
    uint64_t nonce; /* of a BEGIN */
    uint64_t sent;  /* the result that a FINISH brought, as a number */
    uint64_t fence; /* of the record in the answer */
    uint64_t got;   /* its result, as a number */
    uint32_t key;
    uint8_t verb, outcome; /* outcome: of a FINISH */
    uint8_t status, verdict, state, mode;
};

/* The rules that are violated; `text`, of len bytes, tells the first case. The
 * events are sorted in place. */
unsigned history_check(struct event *events, size_t count, char *text,
                       size_t len);

/* ---- history_load.c: clients that make a history ----------------------- */

#define HISTORY_THREADS 16

struct history_load {
    struct idem_engine *engine;
    struct idem_engine *second; /* for every other client, if there is one */
    size_t ops;                 /* a thread */
    struct event *events;       /* set; free it */
    atomic_uint front; /* keys move on, so that old ones stay as they are */
};

/* Run it, and check its history. */
unsigned history_load(struct history_load *load, char *text, size_t len);

#endif
