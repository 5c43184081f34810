/*
 * lock_alloc_test.c - lets each allocation fail once, in turn, while locks are
 * taken and given back. A lock that was not taken must be free afterwards, and
 * one that was taken must be held.
 */
#include "../../tests/support/failing_alloc.h"
#include "../engine/engine.h"

#include <idem/lock.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define WAIT_MS 10

static atomic_long countdown; /* 1: the next allocation fails; 0: none does */
static atomic_bool failed;
static struct idem_engine *engine;

static bool
alloc_fails(size_t calloc_len)
{
    long left = atomic_load(&countdown);

    (void)calloc_len;
    while (left > 0 &&
           !atomic_compare_exchange_weak(&countdown, &left, left - 1))
        ;
    if (left != 1)
        return false;
    atomic_store(&failed, true);
    return true;
}

static void
not_lost(void *arg, struct idem_lock *lock)
{
    (void)arg;
    (void)lock;
    fail_msg("a lock was lost");
}

/* One way to take locks. */
struct way {
    enum idem_lock_mode mode;
    const char *names[3];
    size_t count;
    uint32_t permits;
    bool fair, full; /* full: others hold all of it, so it waits in vain */
};

static const struct way ways[] = {
    {IDEM_LOCK_ALL, {"b", "a", "c"}, 3, 0, false, false},
    {IDEM_LOCK_ALL, {"in turn", NULL, NULL}, 1, 0, true, false},
    {IDEM_LOCK_PERMIT, {"printer", NULL, NULL}, 1, 2, false, false},
    {IDEM_LOCK_READ, {"book", NULL, NULL}, 1, 3, false, false},
    {IDEM_LOCK_WRITE, {"diary", NULL, NULL}, 1, 3, false, false},
    {IDEM_LOCK_WRITE, {"fair diary", NULL, NULL}, 1, 3, true, false},
    {IDEM_LOCK_PERMIT, {"full", NULL, NULL}, 1, 2, false, true},
    {IDEM_LOCK_ALL, {"kept", NULL, NULL}, 1, 0, true, true},
};

/* The names of try n, unless somebody holds them; after IDEM_ERR_LOST a lock
 * may stay taken until its lease ends. */
static enum idem_status
take(const struct way *way, long n, struct idem_locks **locks,
     struct idem_error *err)
{
    char texts[3][40];
    const char *names[3];
    const struct idem_lock_options options = {.lease_ms = 60000,
                                              .wait_ms = WAIT_MS,
                                              .fair = way->fair,
                                              .lost = not_lost};

    for (size_t i = 0; i < way->count; i++) {
        snprintf(texts[i], sizeof(texts[i]), "%s %ld", way->names[i],
                 way->full ? 0 : n);
        names[i] = texts[i];
    }
    return idem_locks_take(engine, way->mode, names, way->count, way->permits,
                           &options, locks, err);
}

static void
give(struct idem_locks *locks)
{
    bool lost = true;

    assert_int_equal(idem_locks_give(locks, &lost, NULL), IDEM_OK);
    assert_false(lost);
}

/* Without faults: what is free can be taken, what is full cannot. */
static void
check(const struct way *way, long n)
{
    struct idem_locks *locks = NULL;
    enum idem_status status = take(way, n, &locks, NULL);

    assert_int_equal(status, way->full ? IDEM_ERR_TIMEOUT : IDEM_OK);
    if (locks)
        give(locks);
}

/* True: an allocation failed. */
static bool
try_way(const struct way *way, long n)
{
    struct idem_locks *locks = NULL;
    struct idem_error err = {IDEM_OK, ""};
    enum idem_status status;

    atomic_store(&failed, false);
    atomic_store(&countdown, n);
    status = take(way, n, &locks, &err);
    if (!failed && way->full)
        assert_int_equal(status, IDEM_ERR_TIMEOUT);
    else if (!failed)
        assert_int_equal(status, IDEM_OK);
    assert_true((status == IDEM_OK) == (locks != NULL));
    if (status != IDEM_OK)
        assert_true(err.status == status && err.text[0] != 0);
    if (locks) {
        assert_false(way->full);
        assert_true(idem_locks_held(locks) && idem_locks_fence(locks) != 0);
        atomic_store(&countdown, 0);
        give(locks);
    } else if (!way->full) {
        assert_true(status == IDEM_ERR_MEMORY || status == IDEM_ERR_TIMEOUT ||
                    status == IDEM_ERR_LOST);
    }
    atomic_store(&countdown, 0);
    /* A place in the queue, or a reader's gate, that could not be given back
     * stays taken until its lease ends, too. */
    if (status != IDEM_ERR_LOST &&
        !(failed && (way->fair || way->mode == IDEM_LOCK_READ)))
        check(way, n);
    return failed;
}

static void
open_engine(struct idem_locks *held[3])
{
    static const struct way others[] = {
        {IDEM_LOCK_PERMIT, {"full", NULL, NULL}, 1, 2, false, false},
        {IDEM_LOCK_PERMIT, {"full", NULL, NULL}, 1, 2, false, false},
        {IDEM_LOCK_ALL, {"kept", NULL, NULL}, 1, 0, false, false},
    };

    assert_int_equal(idem_open("memory:", NULL, &engine, NULL), IDEM_OK);
    for (int i = 0; i < 3; i++)
        assert_int_equal(take(&others[i], 0, &held[i], NULL), IDEM_OK);
}

static void
a_lock_is_held_or_free_although_memory_is_short(void **state)
{
    struct idem_locks *held[3];
    long all = 0;

    (void)state;
    open_engine(held);
    for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
        long n = 1;

        check(&ways[i], 0); /* the engine's first allocations do not count */
        while (try_way(&ways[i], n))
            n++;
        all += n - 1;
    }
    for (int i = 0; i < 3; i++)
        give(held[i]);
    idem_close(engine);
    print_message("%ld allocations\n", all);
    assert_true(all > 30);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_lock_is_held_or_free_although_memory_is_short),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
