/*
 * store_alloc_test.c - lets allocations of a store fail once, in turn.
 *
 *   IDEM_TEST_STORE=etcd://127.0.0.1:2379 build/tests/c/store_alloc_test
 *
 * In run n the n-th allocation fails, until a run makes fewer than that. Every
 * answer must be right or an error, and after each run the store must have
 * what it acknowledged.
 *
 * The allocations of idem's own code and those of jansson and SQLite,
 * which let us replace malloc, are counted apart. There are at most
 * IDEM_TEST_RUNS=150 runs for each of the two, spread over all of them.
 */
#include "../support/failing_alloc.h"
#include "../support/failing_library.h"
#include "../support/rounds.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define TURNS 3
#define LEAST 4 /* allocations of a run, of our own */

enum owner { OURS, LIBRARY, OWNERS };

static const char *store_url;
static atomic_size_t allocations[OWNERS], fail_at[OWNERS];
static atomic_bool counting;

static bool
fails(enum owner owner)
{
    return atomic_load(&counting) &&
           atomic_fetch_add(&allocations[owner], 1) + 1 ==
               atomic_load(&fail_at[owner]);
}

static bool
alloc_fails(size_t calloc_len)
{
    (void)calloc_len;
    return fails(OURS);
}

static bool
library_alloc_fails(void)
{
    return fails(LIBRARY);
}

static struct idem_store *
open_store(void)
{
    struct idem_error err = {IDEM_OK, ""};
    struct idem_store *store = NULL;
    enum idem_status status = idem__store_open(store_url, NULL, &store, &err);

    if (status != IDEM_OK && !is_trouble(status))
        fail_msg("%s: %s: %s", store_url, idem_status_name(status), err.text);
    assert_true((status == IDEM_OK) == (store != NULL));
    return store;
}

/* Returns how many allocations there were. */
static size_t
run(struct idem_store *truth, enum owner owner, size_t n)
{
    struct idem_store *store = NULL;
    struct rounds rounds;

    rounds_init(&rounds, n);
    for (int i = 0; i < OWNERS; i++) {
        atomic_store(&allocations[i], 0);
        atomic_store(&fail_at[i], i == (int)owner ? n : 0);
    }
    atomic_store(&counting, true);
    for (int i = 0; i < TURNS; i++) {
        if (!store)
            store = open_store();
        if (store && !rounds_turn(&rounds, store))
            usleep(25000); /* some stores rest after an error */
    }
    idem__store_close(store);
    atomic_store(&counting, false);
    rounds_check(&rounds, truth);
    return atomic_load(&allocations[owner]);
}

static void
fail_each(enum owner owner, size_t least)
{
    struct idem_store *truth = open_store();
    size_t runs = number_from_env("IDEM_TEST_RUNS", 150);
    size_t all, step, n;

    assert_non_null(truth);
    all = run(truth, owner, 0);
    step = all / runs + 1;
    for (n = 1; n <= all; n += step)
        (void)run(truth, owner, n);
    idem__store_close(truth);
    print_message("%zu of %zu allocations failed\n", all / step, all);
    assert_true(all >= least);
}

static void
an_allocation_that_fails_loses_nothing(void **state)
{
    (void)state;
    fail_each(OURS, LEAST);
}

static void
an_allocation_of_a_library_that_fails_loses_nothing(void **state)
{
    (void)state;
    fail_each(LIBRARY, 0);
}

static int
run_on(const char *url)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_allocation_that_fails_loses_nothing),
        cmocka_unit_test(an_allocation_of_a_library_that_fails_loses_nothing),
    };

    if (strncmp(url, "memory:", 7) == 0 || strncmp(url, "journal:", 8) == 0)
        return 0; /* journal_alloc_test.c; a second one cannot look at it */
    store_url = url;
    print_message("%s\n", url);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

int
main(void)
{
    fail_in_libraries();
    return for_each_store(run_on) ? 1 : 0;
}
