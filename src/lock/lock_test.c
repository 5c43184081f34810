/*
 * lock_test.c - tests that a lock has one holder at a time, and that its loss
 * is reported. Waits more than it works.
 */
#include "../../tests/support/faulty_store.h"
#include "../engine/engine.h"

#include <idem/lock.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static struct idem_engine *
open_engine(void)
{
    struct idem_engine *engine = NULL;

    assert_int_equal(idem_open("memory:", NULL, &engine, NULL), IDEM_OK);
    return engine;
}

static struct idem_lock *
take(struct idem_engine *engine, const char *owner, int64_t lease_ms)
{
    const struct idem_lock_options o = {.owner = owner, .lease_ms = lease_ms};
    struct idem_lock *lock = NULL;

    assert_int_equal(idem_lock_take(engine, "job", &o, &lock, NULL), IDEM_OK);
    return lock;
}

static void
another_owner_is_kept_out_until_it_is_given_back(void **state)
{
    const struct idem_lock_options b = {.owner = "b"};
    struct idem_engine *engine = open_engine();
    struct idem_lock *first = take(engine, "a", 0), *second = NULL;
    struct idem_error err;
    uint64_t fence = idem_lock_fence(first);

    (void)state;
    assert_true(idem_lock_held(first));
    assert_int_equal(idem_lock_take(engine, "job", &b, &second, &err),
                     IDEM_ERR_TIMEOUT);
    assert_non_null(strstr(err.text, "held by another"));
    assert_int_equal(idem_lock_give(first, NULL, &err), IDEM_OK);
    assert_int_equal(idem_lock_take(engine, "job", &b, &second, &err), IDEM_OK);
    assert_true(idem_lock_fence(second) > fence);
    idem_lock_give(second, NULL, NULL);
    idem_close(engine);
}

static void
the_same_owner_may_take_it_again(void **state)
{
    struct idem_engine *engine = open_engine();
    const struct idem_lock_options b = {.owner = "b"};
    struct idem_lock *first = take(engine, "a", 0);
    struct idem_lock *again = take(engine, "a", 0), *other = NULL;
    bool was_lost = true;

    (void)state;
    assert_true(idem_lock_fence(first) == idem_lock_fence(again));
    assert_int_equal(idem_lock_give(again, &was_lost, NULL), IDEM_OK);
    assert_false(was_lost);
    assert_true(idem_lock_held(first)); /* taken twice, given back once */
    assert_int_equal(idem_lock_take(engine, "job", &b, &other, NULL),
                     IDEM_ERR_TIMEOUT);
    assert_int_equal(idem_lock_give(first, &was_lost, NULL), IDEM_OK);
    assert_false(was_lost);
    assert_int_equal(idem_lock_take(engine, "job", &b, &other, NULL), IDEM_OK);
    idem_lock_give(other, NULL, NULL);
    idem_close(engine);
}

static void
the_watchdog_keeps_it_beyond_its_lease(void **state)
{
    const struct idem_lock_options b = {.owner = "b"};
    struct idem_engine *engine = open_engine();
    struct idem_lock *lock = take(engine, "a", 4500), *other = NULL;

    (void)state;
    for (int i = 0; i < 50; i++) {
        usleep(100000);
        assert_true(idem_lock_held(lock));
        assert_int_equal(idem_lock_take(engine, "job", &b, &other, NULL),
                         IDEM_ERR_TIMEOUT);
    }
    assert_int_equal(idem_lock_give(lock, NULL, NULL), IDEM_OK);
    idem_close(engine);
}

static void
tell(void *arg, struct idem_lock *lock)
{
    (void)lock;
    __atomic_store_n((int *)arg, 1, __ATOMIC_RELEASE);
}

static void
who_lost_it_is_told_at_once(void **state)
{
    bool was_lost = false;
    int lost = 0;
    const struct idem_lock_options o = {
        .owner = "a", .lease_ms = 600, .lost = tell, .lost_arg = &lost};
    struct idem_engine *engine = open_engine();
    struct idem_lock *lock = NULL;
    struct idem_answer answer;

    (void)state;
    assert_int_equal(idem_lock_take(engine, "job", &o, &lock, NULL), IDEM_OK);
    /* an operator takes it away */
    assert_int_equal(idem_do(engine,
                             &(struct idem_op){.verb = IDEM_FORGET,
                                               .type = IDEM_TYPE_LOCK,
                                               .scope = idem_text("locks"),
                                               .id = idem_text("job")},
                             &answer, NULL),
                     IDEM_OK);
    idem_answer_clear(&answer);
    for (int i = 0; i < 300 && !__atomic_load_n(&lost, __ATOMIC_ACQUIRE); i++)
        usleep(50000);
    assert_int_equal(__atomic_load_n(&lost, __ATOMIC_ACQUIRE), 1);
    assert_false(idem_lock_held(lock));
    assert_int_equal(idem_lock_give(lock, &was_lost, NULL), IDEM_OK);
    assert_true(was_lost);
    idem_close(engine);
}

/* ---- a store that hangs, or whose rows are locked ----------------------- */

struct slow {
    struct faulty_store *store;
    struct idem_engine *engine;
    pthread_mutex_t door; /* while it is held, every write hangs */
};

static void
stand_at_the_door(void *arg, struct faulty_store *store)
{
    struct slow *slow = arg;

    (void)store;
    pthread_mutex_lock(&slow->door);
    pthread_mutex_unlock(&slow->door);
}

static void
open_slow(struct slow *slow)
{
    struct idem_store *memory = NULL;
    struct idem__engine_inner inner = {0};

    assert_int_equal(idem__store_open("memory:", NULL, &memory, NULL), IDEM_OK);
    slow->store = faulty_open(FAULTY_REMOTE, memory, NULL);
    pthread_mutex_init(&slow->door, NULL);
    slow->store->before_swap = stand_at_the_door;
    slow->store->before_swap_arg = slow;
    inner.store = &slow->store->base;
    assert_int_equal(idem__engine_open(NULL, NULL, &inner, &slow->engine, NULL),
                     IDEM_OK);
}

static void
close_slow(struct slow *slow)
{
    idem_close(slow->engine);
    pthread_mutex_destroy(&slow->door);
}

static int64_t
ms_until(const int *flag, int64_t at_most_ms)
{
    int64_t start_us = idem__system_clocks.boot_us(NULL), ms = 0;

    while (!__atomic_load_n(flag, __ATOMIC_ACQUIRE) && ms < at_most_ms) {
        usleep(2000);
        ms = (idem__system_clocks.boot_us(NULL) - start_us) / 1000;
    }
    return ms;
}

/* With and without a callback. A renewal that is answered after the end of its
 * lease does not make the lock held again. */
static void
a_hanging_store_does_not_keep_the_holder_from_knowing(void **state)
{
    for (int told = 0; told < 2; told++) {
        int lost = 0;
        const struct idem_lock_options o = {
            .lease_ms = 2500, .lost = told ? tell : NULL, .lost_arg = &lost};
        struct idem_lock *lock = NULL;
        struct slow slow;

        (void)state;
        open_slow(&slow);
        assert_int_equal(idem_lock_take(slow.engine, "job", &o, &lock, NULL),
                         IDEM_OK);
        pthread_mutex_lock(&slow.door);
        if (told)
            assert_in_range(ms_until(&lost, 30000), 200, 20000);
        else
            usleep(3000000);
        pthread_mutex_unlock(&slow.door);
        usleep(200000);
        assert_false(idem_lock_held(lock));
        idem_lock_give(lock, NULL, NULL);
        close_slow(&slow);
    }
}

static void
a_row_that_is_locked_for_a_moment_is_not_a_lost_lock(void **state)
{
    int lost = 0;
    const struct idem_lock_options o = {
        .lease_ms = 5000, .lost = tell, .lost_arg = &lost};
    struct idem_lock *lock = NULL;
    struct idem_error err = {0};
    struct slow slow;

    (void)state;
    open_slow(&slow);
    assert_int_equal(idem_lock_take(slow.engine, "job", &o, &lock, NULL),
                     IDEM_OK);
    faulty_plan(slow.store, FAULT_LOCKED, 0, 1000000);
    usleep(2000000); /* a renewal happens during this time */
    faulty_plan(slow.store, FAULT_NONE, 0, 0);
    usleep(3500000);
    assert_int_equal(__atomic_load_n(&lost, __ATOMIC_ACQUIRE), 0);
    assert_true(idem_lock_held(lock));
    faulty_plan(slow.store, FAULT_LOCKED, 0, 5);
    assert_int_equal(idem_lock_give(lock, NULL, &err), IDEM_OK);
    close_slow(&slow);
}

static void *
give_later(void *lock)
{
    usleep(5000000);
    assert_int_equal(idem_lock_give(lock, NULL, NULL), IDEM_OK);
    return NULL;
}

static void
a_wait_longer_than_the_lease_still_ends_in_a_whole_lease(void **state)
{
    const struct idem_lock_options b = {
        .owner = "b", .lease_ms = 4500, .wait_ms = 60000};
    struct idem_engine *engine = open_engine();
    struct idem_lock *first = take(engine, "a", 4500), *second = NULL;
    pthread_t thread;

    (void)state;
    pthread_create(&thread, NULL, give_later, first);
    assert_int_equal(idem_lock_take(engine, "job", &b, &second, NULL), IDEM_OK);
    assert_true(idem_lock_held(second));
    pthread_join(thread, NULL);
    usleep(5000000);
    assert_true(idem_lock_held(second));
    assert_int_equal(idem_lock_give(second, NULL, NULL), IDEM_OK);
    idem_close(engine);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(another_owner_is_kept_out_until_it_is_given_back),
        cmocka_unit_test(the_same_owner_may_take_it_again),
        cmocka_unit_test(the_watchdog_keeps_it_beyond_its_lease),
        cmocka_unit_test(who_lost_it_is_told_at_once),
        cmocka_unit_test(a_hanging_store_does_not_keep_the_holder_from_knowing),
        cmocka_unit_test(a_row_that_is_locked_for_a_moment_is_not_a_lost_lock),
        cmocka_unit_test(
            a_wait_longer_than_the_lease_still_ends_in_a_whole_lease),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
