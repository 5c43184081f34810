/*
 * store_fault_test.c - lets calls of a store's client fail once, in turn: every
 * call that connects, reads, writes, waits or starts a thread, in idem and in
 * the library of the store.
 *
 *   LD_PRELOAD=build/tests/faults.so IDEM_FAULTS=FILE \
 *   IDEM_TEST_STORE=postgres://... build/tests/c/store_fault_test
 *
 * FILE has 64 zeros; tests/faults/faults.c says what is in it. Without it the
 * turns run without a fault. IDEM_TEST_KINDS names the kinds of faults, by
 * their numbers there, and IDEM_TEST_RUNS=100 is how many of each kind are
 * tried. Every answer must be right or an error, and after each run the store
 * must have what it acknowledged.
 */
#include "../support/rounds.h"

#include <fcntl.h>
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#define TURNS 3

/* As in faults.c. */
struct fault {
    _Atomic int32_t kind, left;
    _Atomic int64_t seen;
    char fired[32];
};

static const char *store_url;
static enum idem_status also; /* an error that is fine as well */
static struct fault nobody, *fault = &nobody;

static void
open_faults(void)
{
    const char *path = getenv("IDEM_FAULTS");
    int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    void *at;

    if (fd < 0)
        return;
    at = mmap(NULL, sizeof(*fault), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (at != MAP_FAILED)
        fault = at;
}

/* The n-th call of this kind fails from now on. */
static void
arm(int kind, int n)
{
    memset(fault->fired, 0, sizeof(fault->fired));
    atomic_store(&fault->seen, 0);
    atomic_store(&fault->left, n);
    atomic_store(&fault->kind, kind);
}

static struct idem_store *
open_store(void)
{
    struct idem_error err = {IDEM_OK, ""};
    struct idem_store *store = NULL;
    enum idem_status status = idem__store_open(store_url, NULL, &store, &err);

    if (status != IDEM_OK && !is_trouble(status) && status != also)
        fail_msg("open: %s: %s", idem_status_name(status), err.text);
    assert_true((status == IDEM_OK) == (store != NULL));
    return store;
}

/* Returns how many calls there were. */
static int64_t
run(struct idem_store *truth, int kind, int n)
{
    struct idem_store *store = NULL;
    struct rounds rounds;

    rounds_init(&rounds, (uint64_t)n);
    rounds.also = also;
    arm(kind, n);
    for (int i = 0; i < TURNS; i++) {
        if (!store)
            store = open_store();
        if (store && !rounds_turn(&rounds, store))
            usleep(25000); /* some stores rest after an error */
    }
    idem__store_close(store);
    atomic_store(&fault->kind, 0);
    rounds_check(&rounds, truth);
    return atomic_load(&fault->seen);
}

static void
fail_each(int kind)
{
    int64_t runs = (int64_t)number_from_env("IDEM_TEST_RUNS", 100), all, step;
    struct idem_store *truth = open_store();
    size_t fired = 0;

    assert_non_null(truth);
    all = run(truth, kind, INT_MAX);
    step = all / runs + 1;
    for (int64_t n = 1; n <= all; n += step) {
        (void)run(truth, kind, (int)n);
        fired += fault->fired[0] != 0;
    }
    idem__store_close(truth);
    print_message("kind %d: %zu of %lld calls failed\n", kind, fired,
                  (long long)all);
    assert_true(fault == &nobody || fired > 0);
}

static void
a_call_that_fails_loses_nothing(void **state)
{
    const char *kinds = getenv("IDEM_TEST_KINDS");

    (void)state;
    for (kinds = kinds ? kinds : "234"; *kinds; kinds++)
        fail_each(*kinds - '0');
}

static int
run_on(const char *url)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_call_that_fails_loses_nothing),
    };

    if (strncmp(url, "memory:", 7) == 0 || strncmp(url, "journal:", 8) == 0)
        return 0; /* journal_fault_test.c; a second one cannot look at it */
    /* SQLite calls it a malformed file if a read fails with EIO. */
    also = strncmp(url, "sqlite:", 7) == 0 ? IDEM_ERR_CORRUPT : IDEM_OK;
    store_url = url;
    print_message("%s\n", url);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

int
main(void)
{
    open_faults();
    return for_each_store(run_on) ? 1 : 0;
}
