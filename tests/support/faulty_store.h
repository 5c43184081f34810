/*
 * faulty_store.h - a store around another store, which can be made to fail, to
 * be far away, to have a clock of its own or none; and clocks for tests.
 */
#ifndef IDEM_TESTS_FAULTY_STORE_H
#define IDEM_TESTS_FAULTY_STORE_H

#include "../../src/store/store.h"
#include "stores.h"
#include <pthread.h>
#include <stdatomic.h>

/* What a failing call does. */
enum fault {
    FAULT_NONE,
    FAULT_UNAVAILABLE,  /* nothing happens, and it says so */
    FAULT_FULL,         /* the same for swaps, but full */
    FAULT_LOST_APPLIED, /* a swap happens, its answer is lost */
    FAULT_LOST_NOT,     /* a swap does not happen, its answer is lost */
    FAULT_LOST_PARTLY,  /* every second swap of the batch happens; all lost */
    FAULT_LOCKED,       /* somebody's transaction holds the rows */
    FAULT_SOME_LOST,    /* every second swap is lost, the others are not stored;
                         * the call says "lost" */
    FAULT_COUNT,
};

/* What a store does wrong now and then without saying so. */
enum lie {
    LIE_NONE,
    LIE_FORGETS_WRITES,  /* says "stored" and stores nothing */
    LIE_SHOWS_NOTHING,   /* loads a record as absent, and takes the swap */
    LIE_CHANGES_RESULTS, /* loads a record with another result */
};

/* The other swaps of a batch that has an unwritable one. */
enum beside {
    BESIDE_NOT_STORED,
    BESIDE_STORED,
    BESIDE_LOST, /* stored, but the store says that it does not know */
};

/* Clocks that stand still until they are moved. */
struct test_clocks {
    struct idem_clocks clocks;
    atomic_llong wall_us, boot_us;
};

void test_clocks_init(struct test_clocks *clocks);
/* Time passes, on both. */
void test_clocks_pass(struct test_clocks *clocks, int64_t ms);

struct faulty_store {
    struct idem_store base;
    struct idem_store *inner; /* may be shared with other faulty stores ... */
    pthread_mutex_t *lock;    /* ... under this lock; NULL: its own */

    /* The calls number `from` to `from + count - 1` fail, counted from 1 over
     * the calls of swap, and for FAULT_UNAVAILABLE of load too (and of now,
     * where `faulty_now`). */
    _Atomic enum fault fault;
    atomic_int from, count;
    bool faulty_now;
    atomic_int calls, swaps, loads, nows;

    int chaos; /* see faulty_chaos() */
    struct dice dice;
    enum lie lie;            /* one call in a hundred */
    const uint8_t *damaged;  /* loading this key is IDEM_ERR_CORRUPT */
    const uint8_t *held_key; /* so many swaps that would free this key ... */
    atomic_int held;         /* ... find its row locked */
    const uint8_t
        *unwritable;    /* a batch with this key is IDEM_ERR_CORRUPT ... */
    enum beside beside; /* ... and this becomes of its other swaps */
    bool refuses_again; /* a swap that was stored before is refused */
    _Atomic enum idem_status scan_fails; /* IDEM_OK: it does not */
    _Atomic enum idem_status load_fails; /* IDEM_OK: it does not */

    atomic_llong clock_us;         /* added to the inner store's clock */
    void (*during_now)(void *arg); /* time passes while the clock is read */
    void *during_now_arg;
    /* Called before each swap, if set: somebody else's turn. */
    void (*before_swap)(void *arg, struct faulty_store *store);
    void *before_swap_arg;
};

enum faulty_kind {
    FAULTY_LOCAL,
    FAULTY_REMOTE,
    FAULTY_CLOCKLESS,
    FAULTY_PARTIAL, /* as FAULTY_REMOTE, but parts of it fail separately */
};

/* Wraps `inner`, which it closes too unless `lock` is given. */
struct faulty_store *faulty_open(enum faulty_kind kind,
                                 struct idem_store *inner,
                                 pthread_mutex_t *lock);

/* The calls from now on: `skip` go well, then `count` fail. */
void faulty_plan(struct faulty_store *store, enum fault fault, int skip,
                 int count);

/* From now on one swap in so many fails, in any way but UNAVAILABLE; the seed
 * is printed, or IDEM_TEST_SEED. */
void faulty_chaos(struct faulty_store *store, int one_in);

#endif
