/*
 * restart_test.c - locks that are held while their store goes down and comes
 * back.
 *
 * Runs until its standard input ends; whoever started it kills and restarts the
 * store meanwhile (tests/system/test_services.py), once every lock has a
 * holder, which is said with the line "held"; or nobody does. IDEM_TEST_DOWN=1
 * says that the store was down for longer than BRIEF_MS. IDEM_TEST_SEED repeats
 * how long each of the crowd stays.
 */
#include "../support/stores.h"

#include <idem/lock.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#include "../../src/engine/engine.h"

#define CROWD 6
#define BRIEF_MS 600
#define LONG_MS 60000
#define TENURES_MAX 100000

/* A holder believed in its lock at least from `from_us` to `to_us`. */
struct tenure {
    uint64_t fence;
    int64_t from_us, to_us;
};

static const char *url;
static char lasting[32], brief[32], crowded[32];
static uint64_t seed;
static atomic_bool over;
static struct tenure tenures[TENURES_MAX];
static atomic_int tenure_count;

static int64_t
now_us(void)
{
    return idem__system_clocks.boot_us(NULL);
}

static struct idem_engine *
open_engine(void)
{
    struct idem_engine *engine = NULL;
    struct idem_error err = {0};

    if (idem_open(url, NULL, &engine, &err) != IDEM_OK) {
        print_error("%s\n", err.text);
        fail();
    }
    return engine;
}

static void
count_up(void *arg, struct idem_lock *lock)
{
    (void)lock;
    atomic_fetch_add((atomic_int *)arg, 1);
}

/* Take it however often the store fails meanwhile; NULL when all is over. */
static struct idem_lock *
insist(struct idem_engine *engine, const char *name, int64_t lease_ms,
       atomic_int *lost)
{
    const struct idem_lock_options o = {.lease_ms = lease_ms,
                                        .wait_ms = 300,
                                        .lost = count_up,
                                        .lost_arg = lost};
    struct idem_lock *lock = NULL;

    while (idem_lock_take(engine, name, &o, &lock, NULL) != IDEM_OK) {
        if (over)
            return NULL;
        usleep(10000);
    }
    return lock;
}

/* Stay in for a while, or until it is lost. */
static struct tenure
stay(struct idem_lock *lock, int64_t us)
{
    struct tenure tenure = {idem_lock_fence(lock), now_us(), 0};
    int64_t end_us = tenure.from_us + us;

    while (tenure.to_us < end_us) {
        int64_t at_us = now_us();

        if (!idem_lock_held(lock))
            break;
        tenure.to_us = at_us; /* held a moment later, so held then too */
        usleep(2000);
    }
    return tenure;
}

static void *
jostle(void *engine)
{
    static atomic_int number;
    struct dice dice = {seed + (uint64_t)atomic_fetch_add(&number, 1) * 7919};
    atomic_int lost = 0;

    while (!over) {
        struct idem_lock *lock = insist(engine, crowded, BRIEF_MS, &lost);
        int at = atomic_fetch_add(&tenure_count, 1);

        if (!lock || at >= TENURES_MAX) {
            atomic_fetch_sub(&tenure_count, 1);
            idem_lock_give(lock, NULL, NULL);
            break;
        }
        tenures[at] = stay(lock, dice_roll(&dice, 8) ? 20000 : 1500000);
        idem_lock_give(lock, NULL, NULL);
    }
    return NULL;
}

static int
by_fence(const void *a, const void *b)
{
    const struct tenure *x = a, *y = b;

    return x->fence < y->fence ? -1 : x->fence > y->fence;
}

static void
check_tenures(void)
{
    int count = tenure_count;

    assert_true(count > 2);
    qsort(tenures, (size_t)count, sizeof(tenures[0]), by_fence);
    for (int i = 1; i < count; i++) {
        assert_true(tenures[i].fence > tenures[i - 1].fence);
        assert_true(tenures[i].from_us > tenures[i - 1].to_us);
    }
}

/* Hold it until it is told that it is lost (who asks idem_lock_held() may see
 * it a moment earlier), then take it again, until all is over. */
static void
hold_brief(struct idem_engine *engine, atomic_int *lost)
{
    uint64_t fence = 0;
    struct idem_lock *lock;
    int told = 0;

    while (!over && (lock = insist(engine, brief, BRIEF_MS, lost))) {
        assert_true(idem_lock_fence(lock) > fence);
        if (fence == 0) {
            puts("held");
            fflush(stdout);
        }
        fence = idem_lock_fence(lock);
        while (!over && *lost == told)
            usleep(5000);
        assert_true(over || !idem_lock_held(lock));
        told = *lost;
        idem_lock_give(lock, NULL, NULL);
    }
}

static void *
wait_for_end(void *arg)
{
    char text[64];
    int enough;

    (void)arg;
    while (read(STDIN_FILENO, text, sizeof(text)) > 0)
        continue;
    /* Until the store is there again for both engines. */
    enough = tenure_count + CROWD;
    for (int i = 0; i < 6000 && tenure_count < enough; i++)
        usleep(10000);
    over = true;
    return NULL;
}

/* Whoever comes later gets it, with a higher fence than all before. */
static void
come_later(const char *name, uint64_t high)
{
    const struct idem_lock_options o = {.wait_ms = 30000};
    struct idem_engine *engine = open_engine();
    struct idem_lock *lock = NULL;
    struct idem_error err = {0};

    if (idem_lock_take(engine, name, &o, &lock, &err) != IDEM_OK)
        print_error("%s\n", err.text);
    assert_non_null(lock);
    assert_true(idem_lock_fence(lock) > high);
    assert_int_equal(idem_lock_give(lock, NULL, &err), IDEM_OK);
    idem_close(engine);
}

/* On a busy machine it may still be starting when the load has ended. */
static void
wait_for_store(struct idem_engine *engine)
{
    struct idem_op op = {
        .verb = IDEM_GET, .scope = idem_text("s"), .id = idem_text("none")};
    struct idem_answer answer = {0};
    enum idem_status status = IDEM_ERR_UNAVAILABLE;

    for (int i = 0; i < 600 && status != IDEM_OK; i++) {
        status = idem_do(engine, &op, &answer, NULL);
        idem_answer_clear(&answer);
        if (status != IDEM_OK)
            usleep(100000);
    }
    assert_int_equal(status, IDEM_OK);
}

static void
locks_outlive_their_store(void **state)
{
    struct idem_engine *engines[2] = {open_engine(), NULL};
    struct idem_lock *kept;
    atomic_int lost_kept = 0, lost_brief = 0;
    pthread_t crowd[CROWD], ending;

    (void)state;
    engines[1] = idem__engine_is_local(engines[0]) ? engines[0] : open_engine();
    over = false;
    tenure_count = 0;
    kept = insist(engines[0], lasting, LONG_MS, &lost_kept);
    assert_non_null(kept);
    for (int i = 0; i < CROWD; i++)
        pthread_create(&crowd[i], NULL, jostle, engines[i % 2]);
    pthread_create(&ending, NULL, wait_for_end, NULL);
    hold_brief(engines[1], &lost_brief);
    pthread_join(ending, NULL);
    for (int i = 0; i < CROWD; i++)
        pthread_join(crowd[i], NULL);

    assert_true(idem_lock_held(kept));
    assert_int_equal(lost_kept, 0);
    wait_for_store(engines[0]);
    assert_int_equal(idem_lock_give(kept, NULL, NULL), IDEM_OK);
    if (number_from_env("IDEM_TEST_DOWN", 0))
        assert_true(lost_brief > 0); /* the holder was told */
    check_tenures();
    if (engines[1] != engines[0])
        idem_close(engines[1]);
    if (!idem__engine_is_local(engines[0]))
        come_later(crowded, tenures[tenure_count - 1].fence);
    idem_close(engines[0]);
}

static int
run_on(const char *store)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(locks_outlive_their_store),
    };
    unsigned long long run = idem__new_rev();

    url = store;
    seed = number_from_env("IDEM_TEST_SEED", run >> 32);
    print_message("IDEM_TEST_SEED=%llu\n", (unsigned long long)seed);
    snprintf(lasting, sizeof(lasting), "lasting-%llx", run);
    snprintf(brief, sizeof(brief), "brief-%llx", run);
    snprintf(crowded, sizeof(crowded), "crowded-%llx", run);
    return cmocka_run_group_tests_name(store, tests, NULL, NULL);
}

int
main(void)
{
    return for_each_store(run_on);
}
