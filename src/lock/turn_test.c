/*
 * turn_test.c - tests fair locks: the order of waiters in one process.
 * tests/system/test_locks.py tests the order across processes.
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

struct waiter {
    pthread_t thread;
    const char *name, *owner;
    enum idem_lock_mode mode;
    volatile sig_atomic_t stop;
    enum idem_status status;
};

static void *
wait_in_line(void *arg)
{
    struct waiter *waiter = arg;
    const struct idem_lock_options options = {.owner = waiter->owner,
                                              .wait_ms = 60000,
                                              .lease_ms = 60000,
                                              .stop = &waiter->stop,
                                              .fair = true};
    struct idem_locks *locks = NULL;

    waiter->status = idem_locks_take(engine, waiter->mode, &waiter->name, 1, 1,
                                     &options, &locks, NULL);
    if (waiter->status == IDEM_OK)
        idem_locks_give(locks, NULL, NULL);
    return NULL;
}

static void
start(struct waiter *waiter)
{
    struct idem__stats stats;
    uint64_t before;

    idem__stats(engine, &stats);
    before = stats.parked;
    assert_int_equal(
        pthread_create(&waiter->thread, NULL, wait_in_line, waiter), 0);
    do {
        usleep(1000);
        idem__stats(engine, &stats);
    } while (stats.parked == before);
}

static void
a_wait_can_be_stopped_and_then_nothing_is_held(void **state)
{
    static const enum idem_lock_mode modes[] = {
        IDEM_LOCK_ALL, IDEM_LOCK_PERMIT, IDEM_LOCK_READ, IDEM_LOCK_WRITE};

    (void)state;
    for (size_t i = 0; i < 4; i++) {
        struct waiter first = {.name = "stop", .mode = modes[i]}, second;
        const struct idem_lock_options options = {.lease_ms = 60000};
        struct idem_locks *held = NULL, *again = NULL;

        second = first;
        assert_int_equal(idem_locks_take(engine, modes[i], &first.name, 1, 1,
                                         &options, &held, NULL),
                         IDEM_OK);
        start(&first);
        start(&second);
        __atomic_store_n(&first.stop, 1, __ATOMIC_RELAXED);
        __atomic_store_n(&second.stop, 1, __ATOMIC_RELAXED);
        pthread_join(first.thread, NULL);
        pthread_join(second.thread, NULL);
        assert_int_equal(first.status, IDEM_ERR_CLOSED);
        assert_int_equal(second.status, IDEM_ERR_CLOSED);
        idem_locks_give(held, NULL, NULL);
        assert_int_equal(idem_locks_take(engine, IDEM_LOCK_WRITE, &first.name,
                                         1, 1, &options, &again, NULL),
                         IDEM_OK);
        idem_locks_give(again, NULL, NULL);
    }
}

static void
its_owner_takes_a_lock_again_however_many_are_in_line(void **state)
{
    static const enum idem_lock_mode modes[] = {IDEM_LOCK_ALL, IDEM_LOCK_WRITE};

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        struct waiter waiter = {.name = "again", .mode = modes[i]};
        const struct idem_lock_options options = {.owner = "ann", .fair = true};
        struct idem_locks *first = NULL, *second = NULL;

        assert_int_equal(idem_locks_take(engine, modes[i], &waiter.name, 1, 1,
                                         &options, &first, NULL),
                         IDEM_OK);
        start(&waiter);
        assert_int_equal(idem_locks_take(engine, modes[i], &waiter.name, 1, 1,
                                         &options, &second, NULL),
                         IDEM_OK);
        idem_locks_give(second, NULL, NULL);
        idem_locks_give(first, NULL, NULL);
        pthread_join(waiter.thread, NULL);
        assert_int_equal(waiter.status, IDEM_OK);
    }
}

static atomic_int inside, most, done;

/* Every third thread has a short timeout. */
static void *
come_and_go(void *arg)
{
    for (int i = 0; i < 30; i++) {
        const struct idem_lock_options options = {
            .wait_ms = i % 3 ? 60000 : i % 9, .lease_ms = 60000, .fair = true};
        struct idem_lock *lock = NULL;
        enum idem_status status =
            idem_lock_take(engine, "storm", &options, &lock, NULL);

        if (status != IDEM_OK) {
            if (status != IDEM_ERR_TIMEOUT || i % 3)
                return "failed";
            continue;
        }
        if (atomic_fetch_add(&inside, 1) >= 1)
            atomic_store(&most, 2);
        atomic_fetch_add(&done, 1);
        atomic_fetch_sub(&inside, 1);
        if (idem_lock_give(lock, NULL, NULL) != IDEM_OK)
            return "failed";
    }
    return arg;
}

static void
many_come_and_give_up_and_the_line_moves_on(void **state)
{
    pthread_t threads[8];

    (void)state;
    for (int i = 0; i < 8; i++)
        pthread_create(&threads[i], NULL, come_and_go, NULL);
    for (int i = 0; i < 8; i++) {
        void *failed;

        pthread_join(threads[i], &failed);
        assert_null(failed);
    }
    assert_int_equal(most, 0);
    assert_true(done >= 8 * 20);
}

/* A lock of another program may have the name of a list, and any note. */
static void
a_note_that_is_no_list_does_no_harm(void **state)
{
    uint8_t junk[300] = {0, 200, 5, 5, 1};
    const struct idem_op op = {.verb = IDEM_LOCK,
                               .type = IDEM_TYPE_LOCK,
                               .scope = idem_text(IDEM_LOCK_SCOPE),
                               .id = idem_text("junk!queue"),
                               .subject = idem_text("ann"),
                               .lease_ms = 1,
                               .result = {junk, sizeof(junk)}};
    const struct idem_lock_options options = {.fair = true, .wait_ms = 60000};
    struct idem_answer answer = {0};
    struct idem_lock *lock = NULL;

    (void)state;
    for (size_t i = 5; i < sizeof(junk); i++)
        junk[i] = (uint8_t)i;
    assert_int_equal(idem_do(engine, &op, &answer, NULL), IDEM_OK);
    idem_answer_clear(&answer);
    assert_int_equal(idem_lock_take(engine, "junk", &options, &lock, NULL),
                     IDEM_OK);
    assert_int_equal(idem_lock_give(lock, NULL, NULL), IDEM_OK);
}

static bool
is_free(const char *name)
{
    const struct idem_op op = {.verb = IDEM_GET,
                               .type = IDEM_TYPE_LOCK,
                               .scope = idem_text(IDEM_LOCK_SCOPE),
                               .id = idem_text(name)};
    struct idem_answer answer = {0};
    bool is_free;

    assert_int_equal(idem_do(engine, &op, &answer, NULL), IDEM_OK);
    is_free = answer.record->state == IDEM_STATE_FREE;
    idem_answer_clear(&answer);
    return is_free;
}

/* On SQL stores another engine's transaction may lock a row for a moment. A
 * place that is not released because of that would stop everybody else for the
 * rest of its lease. */
static void
what_is_held_for_a_moment_is_let_go_although_its_row_is_locked(void **state)
{
    static const char *const held[] = {"moment!queue", "moment!queue1"};
    const struct idem_lock_options options = {.lease_ms = 60000, .fair = true};
    struct idem_engine *before = engine;

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        struct waiter first = {.name = "moment"}, second = {.name = "moment"};
        struct idem__engine_inner inner = {0};
        struct idem_store *memory = NULL;
        struct faulty_store *store;
        struct idem_lock *lock = NULL;
        uint8_t key[IDEM_KEY_LEN];

        assert_int_equal(idem__store_open("memory:", NULL, &memory, NULL),
                         IDEM_OK);
        store = faulty_open(FAULTY_REMOTE, memory, NULL);
        inner.store = &store->base;
        assert_int_equal(idem__engine_open(NULL, NULL, &inner, &engine, NULL),
                         IDEM_OK);
        assert_int_equal(
            idem_lock_take(engine, "moment", &options, &lock, NULL), IDEM_OK);
        start(&first);
        start(&second);
        idem__key(IDEM_TYPE_LOCK, idem_text(IDEM_LOCK_SCOPE),
                  idem_text(held[i]), key);
        store->held_key = key;
        atomic_store(&store->held, 40);
        assert_int_equal(idem_lock_give(lock, NULL, NULL), IDEM_OK);
        pthread_join(first.thread, NULL);
        pthread_join(second.thread, NULL);
        assert_int_equal(first.status, IDEM_OK);
        assert_int_equal(second.status, IDEM_OK);
        assert_int_equal(atomic_load(&store->held), 0);
        assert_true(is_free(held[i]));
        idem_close(engine);
    }
    engine = before;
}

static void
a_name_that_leaves_no_room_for_the_queue_is_refused(void **state)
{
    const struct idem_lock_options options = {.fair = true};
    char longest[IDEM_ID_MAX + 1] = {0};
    struct idem_lock *lock = NULL;
    struct idem_error err;

    (void)state;
    memset(longest, 'x', IDEM_ID_MAX - 8);
    assert_int_equal(idem_lock_take(engine, longest, &options, &lock, &err),
                     IDEM_ERR_INVALID);
    assert_non_null(strstr(err.text, "fair lock"));
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_wait_can_be_stopped_and_then_nothing_is_held),
        cmocka_unit_test(its_owner_takes_a_lock_again_however_many_are_in_line),
        cmocka_unit_test(many_come_and_give_up_and_the_line_moves_on),
        cmocka_unit_test(a_note_that_is_no_list_does_no_harm),
        cmocka_unit_test(a_name_that_leaves_no_room_for_the_queue_is_refused),
        cmocka_unit_test(
            what_is_held_for_a_moment_is_let_go_although_its_row_is_locked),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
