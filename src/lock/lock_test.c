/*
 * lock_test.c - one holder at a time, and who lost it is told.
 */
#include "../engine/engine.h"

#include <idem/lock.h>
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
    assert_int_equal(idem_lock_give(first, &err), IDEM_OK);
    assert_int_equal(idem_lock_take(engine, "job", &b, &second, &err), IDEM_OK);
    assert_true(idem_lock_fence(second) > fence);
    idem_lock_give(second, NULL);
    idem_close(engine);
}

static void
the_same_owner_may_take_it_again(void **state)
{
    struct idem_engine *engine = open_engine();
    struct idem_lock *first = take(engine, "a", 0);
    struct idem_lock *again = take(engine, "a", 0);

    (void)state;
    assert_true(idem_lock_fence(first) == idem_lock_fence(again));
    assert_int_equal(idem_lock_give(again, NULL), IDEM_OK);
    assert_int_equal(idem_lock_give(first, NULL), IDEM_ERR_TIMEOUT);
    idem_close(engine);
}

static void
the_watchdog_keeps_it_beyond_its_lease(void **state)
{
    const struct idem_lock_options b = {.owner = "b"};
    struct idem_engine *engine = open_engine();
    struct idem_lock *lock = take(engine, "a", 300), *other = NULL;

    (void)state;
    for (int i = 0; i < 8; i++) {
        usleep(100000);
        assert_true(idem_lock_held(lock));
        assert_int_equal(idem_lock_take(engine, "job", &b, &other, NULL),
                         IDEM_ERR_TIMEOUT);
    }
    assert_int_equal(idem_lock_give(lock, NULL), IDEM_OK);
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
    for (int i = 0; i < 30 && !__atomic_load_n(&lost, __ATOMIC_ACQUIRE); i++)
        usleep(50000);
    assert_int_equal(__atomic_load_n(&lost, __ATOMIC_ACQUIRE), 1);
    assert_false(idem_lock_held(lock));
    assert_int_equal(idem_lock_give(lock, NULL), IDEM_ERR_TIMEOUT);
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
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
