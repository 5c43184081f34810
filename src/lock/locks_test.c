/*
 * locks_test.c - several locks as one: lists, permits, readers and a writer.
 */
#include "../../tests/support/faulty_store.h"
#include "../engine/engine.h"

#include <idem/lock.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static struct idem_engine *engine;

static int
setup(void **state)
{
    (void)state;
    return idem_open("memory:", NULL, &engine, NULL) == IDEM_OK ? 0 : -1;
}

static int
teardown(void **state)
{
    (void)state;
    idem_close(engine);
    return 0;
}

static enum idem_status
take(enum idem_lock_mode mode, const char *name, uint32_t permits,
     int64_t wait_ms, struct idem_locks **locks)
{
    const struct idem_lock_options options = {.wait_ms = wait_ms,
                                              .lease_ms = 5000};

    return idem_locks_take(engine, mode, &name, 1, permits, &options, locks,
                           NULL);
}

static void
a_semaphore_has_so_many_places_and_no_more(void **state)
{
    struct idem_locks *held[3], *more = NULL;
    struct idem_error err;
    const char *name = "printer";

    (void)state;
    for (int i = 0; i < 3; i++)
        assert_int_equal(take(IDEM_LOCK_PERMIT, name, 3, 0, &held[i]), IDEM_OK);
    assert_int_equal(idem_locks_take(engine, IDEM_LOCK_PERMIT, &name, 1, 3,
                                     NULL, &more, &err),
                     IDEM_ERR_TIMEOUT);
    assert_non_null(strstr(err.text, "all 3 places"));
    assert_null(more);
    assert_int_equal(idem_locks_give(held[1], NULL, NULL), IDEM_OK);
    assert_int_equal(take(IDEM_LOCK_PERMIT, name, 3, 0, &held[1]), IDEM_OK);
    for (int i = 0; i < 3; i++)
        assert_int_equal(idem_locks_give(held[i], NULL, NULL), IDEM_OK);
}

static void
refused(enum idem_lock_mode mode, const char *const *names, size_t count,
        const char *owner, enum idem_status want)
{
    const struct idem_lock_options options = {.owner = owner};
    struct idem_locks *locks = NULL;
    struct idem_error err = {IDEM_OK, ""};

    assert_int_equal(
        idem_locks_take(engine, mode, names, count, 2, &options, &locks, &err),
        want);
    assert_null(locks);
    assert_true(err.status == want && err.text[0] != 0);
}

static void
names_owners_and_modes_that_cannot_be_are_refused(void **state)
{
    static char name[IDEM_ID_MAX + 2], owner[IDEM_SUBJECT_MAX + 2];
    const char *names[IDEM_LOCKS_MAX + 1];
    const struct idem_lock_options options = {.owner = owner};
    struct idem_lock *lock = NULL;

    (void)state;
    memset(name, 'n', sizeof(name) - 1);
    memset(owner, 'o', sizeof(owner) - 1);
    for (size_t i = 0; i < IDEM_LOCKS_MAX + 1; i++)
        names[i] = "door";
    refused(IDEM_LOCK_ALL, names, 0, NULL, IDEM_ERR_INVALID);
    refused(IDEM_LOCK_ALL, names, IDEM_LOCKS_MAX + 1, NULL, IDEM_ERR_INVALID);
    refused(IDEM_LOCK_ALL, names, 1, owner, IDEM_ERR_INVALID);
    refused((enum idem_lock_mode)99, names, 1, NULL, IDEM_ERR_UNSUPPORTED);
    names[0] = name;
    refused(IDEM_LOCK_ALL, names, 1, NULL, IDEM_ERR_INVALID);
    refused(IDEM_LOCK_PERMIT, names, 1, NULL, IDEM_ERR_INVALID);
    refused(IDEM_LOCK_READ, names, 1, NULL, IDEM_ERR_INVALID);
    refused(IDEM_LOCK_WRITE, names, 1, NULL, IDEM_ERR_INVALID);
    assert_int_equal(idem_lock_take(engine, name, NULL, &lock, NULL),
                     IDEM_ERR_INVALID);
    assert_int_equal(idem_lock_take(engine, "door", &options, &lock, NULL),
                     IDEM_ERR_INVALID);
    assert_null(lock);
}

struct storm {
    atomic_int inside, most, done, failed;
    enum idem_lock_mode mode;
    uint32_t permits;
};

static void *
come_and_go(void *arg)
{
    struct storm *storm = arg;

    for (int i = 0; i < 30; i++) {
        struct idem_locks *locks = NULL;
        bool lost = true;
        int now, most;

        if (take(storm->mode, "room", storm->permits, 60000, &locks) !=
            IDEM_OK) {
            storm->failed++;
            return NULL;
        }
        now = ++storm->inside;
        most = storm->most;
        while (now > most &&
               !atomic_compare_exchange_weak(&storm->most, &most, now)) {
        }
        usleep(200);
        storm->inside--;
        if (idem_locks_give(locks, &lost, NULL) != IDEM_OK || lost)
            storm->failed++;
        storm->done++;
    }
    return NULL;
}

static void
run_storm(struct storm *storm)
{
    pthread_t threads[8];

    for (size_t i = 0; i < 8; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, come_and_go, storm),
                         0);
    for (size_t i = 0; i < 8; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(storm->failed, 0);
    assert_int_equal(storm->done, 240);
}

static void
a_storm_never_finds_more_inside_than_permits(void **state)
{
    struct storm storm = {.mode = IDEM_LOCK_PERMIT, .permits = 3};

    (void)state;
    run_storm(&storm);
    assert_true(storm.most >= 2 && storm.most <= 3);
}

static void
writers_are_alone(void **state)
{
    struct storm storm = {.mode = IDEM_LOCK_WRITE, .permits = 4};

    (void)state;
    run_storm(&storm);
    assert_int_equal(storm.most, 1);
}

static void
readers_share_and_a_writer_waits_for_them(void **state)
{
    struct idem_locks *one, *two, *writer = NULL;
    uint64_t fence;

    (void)state;
    assert_int_equal(take(IDEM_LOCK_READ, "r", 4, 0, &one), IDEM_OK);
    assert_int_equal(take(IDEM_LOCK_READ, "r", 4, 0, &two), IDEM_OK);
    assert_int_equal(take(IDEM_LOCK_WRITE, "r", 4, 50, &writer),
                     IDEM_ERR_TIMEOUT);
    assert_true(idem_locks_held(one) && idem_locks_held(two));
    idem_locks_give(one, NULL, NULL);
    idem_locks_give(two, NULL, NULL);
    assert_int_equal(take(IDEM_LOCK_WRITE, "r", 4, 0, &writer), IDEM_OK);
    fence = idem_locks_fence(writer);
    assert_int_equal(take(IDEM_LOCK_READ, "r", 4, 50, &one), IDEM_ERR_TIMEOUT);
    assert_null(one);
    idem_locks_give(writer, NULL, NULL);
    assert_int_equal(take(IDEM_LOCK_WRITE, "r", 4, 0, &writer), IDEM_OK);
    assert_true(idem_locks_fence(writer) > fence);
    idem_locks_give(writer, NULL, NULL);
}

static void *
take_both(void *arg)
{
    const char *const *names = arg;
    const struct idem_lock_options options = {.wait_ms = 60000};

    for (int i = 0; i < 100; i++) {
        struct idem_locks *locks = NULL;

        if (idem_locks_take(engine, IDEM_LOCK_ALL, names, 2, 0, &options,
                            &locks, NULL) != IDEM_OK)
            return (void *)"it waited in vain";
        idem_locks_give(locks, NULL, NULL);
    }
    return NULL;
}

static void
two_who_name_the_same_locks_in_another_order_never_wait_for_each_other(
    void **state)
{
    const char *const there[] = {"a", "b"}, *const back[] = {"b", "a"};
    pthread_t one, two;
    void *said = NULL;

    (void)state;
    pthread_create(&one, NULL, take_both, (void *)there);
    pthread_create(&two, NULL, take_both, (void *)back);
    pthread_join(one, &said);
    assert_null(said);
    pthread_join(two, &said);
    assert_null(said);
}

static void
nothing_is_held_when_one_of_them_is_not_to_be_had(void **state)
{
    const char *const names[] = {"x", "y", "x"}; /* twice does no harm */
    struct idem_locks *all = NULL;
    struct idem_lock *y = NULL, *x = NULL;
    bool lost = true;

    (void)state;
    assert_int_equal(idem_lock_take(engine, "y", NULL, &y, NULL), IDEM_OK);
    assert_int_equal(
        idem_locks_take(engine, IDEM_LOCK_ALL, names, 3, 0, NULL, &all, NULL),
        IDEM_ERR_TIMEOUT);
    assert_int_equal(idem_lock_take(engine, "x", NULL, &x, NULL), IDEM_OK);
    idem_lock_give(x, NULL, NULL);
    idem_lock_give(y, NULL, NULL);
    assert_int_equal(
        idem_locks_take(engine, IDEM_LOCK_ALL, names, 3, 0, NULL, &all, NULL),
        IDEM_OK);
    assert_true(idem_locks_held(all));
    assert_int_equal(idem_locks_give(all, &lost, NULL), IDEM_OK);
    assert_false(lost);
}

/* ---- a store that fails in the middle ----------------------------------- */

struct waiter {
    struct idem_engine *engine;
    struct idem_locks *locks;
    enum idem_status status;
};

static void *
wait_for_a_place(void *arg)
{
    const struct idem_lock_options options = {.wait_ms = 60000,
                                              .lease_ms = 60000};
    const char *name = "place";
    struct waiter *self = arg;

    self->status = idem_locks_take(self->engine, IDEM_LOCK_PERMIT, &name, 1, 1,
                                   &options, &self->locks, NULL);
    return NULL;
}

/* The place is given back and taken in the first call; whichever call fails
 * then, nobody holds a place that its owner was not told of. */
static void
a_place_is_not_held_by_nobody_when_the_store_fails(void **state)
{
    const char *name = "place";

    (void)state;
    for (int skip = 1; skip < 4; skip++) {
        struct idem_store *memory = NULL;
        struct idem__engine_inner inner = {0};
        struct waiter waiter = {0};
        struct faulty_store *store;
        struct idem_locks *held = NULL;
        pthread_t thread;
        struct idem__stats stats;

        assert_int_equal(idem__store_open("memory:", NULL, &memory, NULL),
                         IDEM_OK);
        store = faulty_open(FAULTY_LOCAL, memory, NULL);
        inner.store = &store->base;
        assert_int_equal(
            idem__engine_open(NULL, NULL, &inner, &waiter.engine, NULL),
            IDEM_OK);
        assert_int_equal(idem_locks_take(waiter.engine, IDEM_LOCK_PERMIT, &name,
                                         1, 1, NULL, &held, NULL),
                         IDEM_OK);
        pthread_create(&thread, NULL, wait_for_a_place, &waiter);
        do {
            usleep(1000);
            idem__stats(waiter.engine, &stats);
        } while (stats.parked == 0);
        faulty_plan(store, FAULT_UNAVAILABLE, skip, 1);
        assert_int_equal(idem_locks_give(held, NULL, NULL), IDEM_OK);
        pthread_join(thread, NULL);
        faulty_plan(store, FAULT_NONE, 0, 0);
        assert_int_equal(waiter.status, IDEM_OK);
        assert_true(idem_locks_held(waiter.locks));
        idem_locks_give(waiter.locks, NULL, NULL);
        idem_close(waiter.engine);
    }
}

static void
what_cannot_be_right_is_refused(void **state)
{
    const char *two[] = {"a", "b"};
    char longest[IDEM_ID_MAX + 1];
    const char *name = longest;
    struct idem_locks *locks;

    (void)state;
    memset(longest, 'x', IDEM_ID_MAX);
    longest[IDEM_ID_MAX] = 0;
    assert_int_equal(
        idem_locks_take(engine, IDEM_LOCK_ALL, two, 0, 0, NULL, &locks, NULL),
        IDEM_ERR_INVALID);
    assert_int_equal(
        idem_locks_take(engine, IDEM_LOCK_READ, two, 2, 2, NULL, &locks, NULL),
        IDEM_ERR_INVALID);
    assert_int_equal(take(IDEM_LOCK_PERMIT, "a", 0, 0, &locks),
                     IDEM_ERR_INVALID);
    assert_int_equal(take(IDEM_LOCK_PERMIT, "a", 65, 0, &locks),
                     IDEM_ERR_INVALID);
    assert_int_equal(take(IDEM_LOCK_WRITE, name, 2, 0, &locks),
                     IDEM_ERR_INVALID);
    assert_int_equal(take(IDEM_LOCK_ALL, name, 0, 0, &locks), IDEM_OK);
    idem_locks_give(locks, NULL, NULL);
    assert_int_equal(idem_locks_give(NULL, NULL, NULL), IDEM_OK);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_owners_and_modes_that_cannot_be_are_refused),
        cmocka_unit_test(a_semaphore_has_so_many_places_and_no_more),
        cmocka_unit_test(a_storm_never_finds_more_inside_than_permits),
        cmocka_unit_test(writers_are_alone),
        cmocka_unit_test(readers_share_and_a_writer_waits_for_them),
        cmocka_unit_test(
            two_who_name_the_same_locks_in_another_order_never_wait_for_each_other),
        cmocka_unit_test(nothing_is_held_when_one_of_them_is_not_to_be_had),
        cmocka_unit_test(a_place_is_not_held_by_nobody_when_the_store_fails),
        cmocka_unit_test(what_cannot_be_right_is_refused),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
