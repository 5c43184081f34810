/*
 * services_test.c - tokens, locks and ids under a crowd, on any store.
 *
 * Stores that others may write to get two engines, as two servers would be.
 * IDEM_TEST_FILTER=*lock* runs what it names; IDEM_TEST_ROUNDS sets how often
 * each contender takes the lock.
 */
#include "../support/stores.h"

#include <idem/id.h>
#include <idem/lock.h>
#include <idem/token.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "../../src/engine/engine.h"

#define ENGINES 2
#define THREADS_MAX 200

static const char *url;
static char run_name[24]; /* so that a store may be used twice */

static bool
is_set(const char *name)
{
    const char *value = getenv(name);

    return value && *value;
}

/* How much of it: plain, with a sanitizer, or at full size. */
static int
size(int plain, int sanitized, int soak)
{
    return is_set("IDEM_SOAK")        ? soak
           : is_set("IDEM_SANITIZED") ? sanitized
                                      : plain;
}

static void
open_engines(struct idem_engine *engines[ENGINES])
{
    struct idem_error err = {0};

    for (int i = 0; i < ENGINES; i++) {
        if (i > 0 && idem__engine_is_local(engines[0])) {
            engines[i] = engines[0];
        } else if (idem_open(url, NULL, &engines[i], &err) != IDEM_OK) {
            print_error("%s\n", err.text);
            fail();
        }
    }
}

static void
close_engines(struct idem_engine *engines[ENGINES])
{
    for (int i = ENGINES - 1; i >= 0; i--) {
        if (i == 0 || engines[i] != engines[0])
            idem_close(engines[i]);
    }
}

/* ---- tokens ------------------------------------------------------------ */

struct racer {
    struct idem_engine *engine;
    pthread_barrier_t *gate;
    const char *token;
    int rounds;
    int *redeemed, *refused; /* atomics */
};

static void *
race(void *arg)
{
    struct racer *r = arg;

    for (int i = 0; i < r->rounds; i++) {
        enum idem_verdict verdict = IDEM_V_UNKNOWN;
        struct idem_error err = {0};

        pthread_barrier_wait(r->gate);
        /* BUSY: another engine holds the row or the file; a disk may be slow */
        for (int tries = 0; tries < 1000; tries++) {
            if (idem_token_redeem(r->engine, idem_text("ann"), r->token,
                                  &verdict, &err) != IDEM_OK)
                fprintf(stderr, "redeem: %s\n", err.text);
            if (verdict != IDEM_V_BUSY)
                break;
            usleep(10000);
        }
        if (verdict != IDEM_V_REDEEMED && verdict != IDEM_V_DUPLICATE)
            fprintf(stderr, "redeem: %s\n", idem_verdict_name(verdict));
        if (verdict == IDEM_V_REDEEMED)
            __atomic_fetch_add(r->redeemed, 1, __ATOMIC_RELAXED);
        if (verdict == IDEM_V_DUPLICATE)
            __atomic_fetch_add(r->refused, 1, __ATOMIC_RELAXED);
        pthread_barrier_wait(r->gate);
    }
    return NULL;
}

static void
of_many_redeems_at_once_exactly_one_works(void **state)
{
    int rounds = size(5, 3, 1000), threads = size(100, 30, THREADS_MAX);
    struct idem_engine *engines[ENGINES];
    char token[IDEM_TOKEN_LEN + 1];
    pthread_barrier_t gate;
    pthread_t thread[THREADS_MAX];
    struct racer racer[THREADS_MAX];
    int redeemed = 0, refused = 0;

    (void)state;
    open_engines(engines);
    pthread_barrier_init(&gate, NULL, (unsigned)threads + 1);
    for (int i = 0; i < threads; i++) {
        racer[i] = (struct racer){
            engines[i % ENGINES], &gate, token, rounds, &redeemed, &refused};
        pthread_create(&thread[i], NULL, race, &racer[i]);
    }
    for (int i = 0; i < rounds; i++) {
        assert_int_equal(
            idem_token_issue(engines[0], idem_text("ann"), 60000, token, NULL),
            IDEM_OK);
        pthread_barrier_wait(&gate);
        pthread_barrier_wait(&gate);
        assert_int_equal(__atomic_load_n(&redeemed, __ATOMIC_RELAXED), i + 1);
        assert_int_equal(__atomic_load_n(&refused, __ATOMIC_RELAXED),
                         (i + 1) * (threads - 1));
    }
    for (int i = 0; i < threads; i++)
        pthread_join(thread[i], NULL);
    pthread_barrier_destroy(&gate);
    close_engines(engines);
}

/* ---- locks ------------------------------------------------------------- */

struct contender {
    struct idem_engine *engine;
    const char *name;
    int rounds;
    long *counter;  /* guarded by nothing but the lock */
    uint64_t *high; /* likewise: the highest fence */
    int *wrong;
};

static void *
contend(void *arg)
{
    struct contender *c = arg;
    const struct idem_lock_options o = {.wait_ms = 120000, .lease_ms = 20000};

    for (int i = 0; i < c->rounds; i++) {
        struct idem_lock *lock = NULL;
        struct idem_error err = {0};
        bool lost;
        long seen;

        if (idem_lock_take(c->engine, c->name, &o, &lock, &err) != IDEM_OK) {
            fprintf(stderr, "lock: %s\n", err.text);
            __atomic_fetch_add(c->wrong, 1, __ATOMIC_RELAXED);
            continue;
        }
        if (idem_lock_fence(lock) <= __atomic_load_n(c->high, __ATOMIC_RELAXED))
            __atomic_fetch_add(c->wrong, 1, __ATOMIC_RELAXED);
        __atomic_store_n(c->high, idem_lock_fence(lock), __ATOMIC_RELAXED);
        seen = __atomic_load_n(c->counter, __ATOMIC_RELAXED);
        usleep(20);
        __atomic_store_n(c->counter, seen + 1, __ATOMIC_RELAXED);
        if (idem_lock_give(lock, &lost, &err) != IDEM_OK || lost)
            __atomic_fetch_add(c->wrong, 1, __ATOMIC_RELAXED);
    }
    return NULL;
}

static void
a_counter_behind_a_lock_is_exact(void **state)
{
    enum { CONTENDERS = 32 };
    int rounds =
        (int)number_from_env("IDEM_TEST_ROUNDS", (uint64_t)size(20, 8, 10000));
    struct idem_engine *engines[ENGINES];
    struct contender contender[CONTENDERS];
    pthread_t thread[CONTENDERS];
    uint64_t high = 0;
    long counter = 0;
    int wrong = 0;

    (void)state;
    open_engines(engines);
    for (int i = 0; i < CONTENDERS; i++) {
        contender[i] = (struct contender){
            engines[i % ENGINES], run_name, rounds, &counter, &high, &wrong};
        pthread_create(&thread[i], NULL, contend, &contender[i]);
    }
    for (int i = 0; i < CONTENDERS; i++)
        pthread_join(thread[i], NULL);
    assert_int_equal(wrong, 0);
    assert_int_equal(counter, (long)CONTENDERS * rounds);
    close_engines(engines);
}

/* ---- ids ---------------------------------------------------------------- */

struct asker {
    struct idem_ids *ids;
    enum idem_id_kind kind;
    uint64_t *out;
    size_t count;
    int *wrong;
};

static void *
ask(void *arg)
{
    struct asker *a = arg;
    struct idem_error err = {0};

    for (size_t i = 0; i < a->count; i++) {
        if (idem_ids_next(a->ids, a->kind, idem_text(run_name), &a->out[i], 1,
                          &err) != IDEM_OK) {
            fprintf(stderr, "ids: %s\n", err.text);
            __atomic_fetch_add(a->wrong, 1, __ATOMIC_RELAXED);
        }
    }
    return NULL;
}

static int
compare(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return x < y ? -1 : x > y;
}

static void
crowd(struct idem_engine *engines[ENGINES], enum idem_id_kind kind,
      uint64_t *all, size_t each)
{
    enum { THREADS = 8 };
    const struct idem_ids_options patient = {.wait_ms = 30000};
    struct idem_ids *ids[ENGINES] = {NULL};
    struct asker asker[THREADS];
    pthread_t thread[THREADS];
    int wrong = 0;

    for (int i = 0; i < ENGINES; i++)
        assert_int_equal(idem_ids_open(engines[i], &patient, &ids[i], NULL),
                         IDEM_OK);
    for (size_t i = 0; i < THREADS; i++) {
        asker[i] = (struct asker){ids[i % ENGINES], kind, all + i * each, each,
                                  &wrong};
        pthread_create(&thread[i], NULL, ask, &asker[i]);
    }
    for (size_t i = 0; i < THREADS; i++)
        pthread_join(thread[i], NULL);
    assert_int_equal(wrong, 0);
    qsort(all, each * THREADS, sizeof(*all), compare);
    for (size_t i = 1; i < each * THREADS; i++)
        assert_true(all[i] > all[i - 1]);
    for (int i = 0; i < ENGINES; i++)
        idem_ids_close(ids[i]);
}

static void
a_crowd_gets_no_id_twice(void **state)
{
    size_t each = (size_t)size(20000, 2000, 5000000);
    uint64_t *all = calloc(each * 8, sizeof(*all));
    struct idem_engine *engines[ENGINES];

    (void)state;
    assert_non_null(all);
    open_engines(engines);
    crowd(engines, IDEM_ID_SNOWFLAKE, all, each);
    crowd(engines, IDEM_ID_UID, all, each);
    crowd(engines, IDEM_ID_SEGMENT, all, each);
    close_engines(engines);
    free(all);
}

static int
run_on(const char *store)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(of_many_redeems_at_once_exactly_one_works),
        cmocka_unit_test(a_counter_behind_a_lock_is_exact),
        cmocka_unit_test(a_crowd_gets_no_id_twice),
    };

    url = store;
    snprintf(run_name, sizeof(run_name), "run-%llx",
             (unsigned long long)idem__new_rev());
    return cmocka_run_group_tests_name(store, tests, NULL, NULL);
}

int
main(void)
{
    cmocka_set_test_filter(getenv("IDEM_TEST_FILTER"));
    return for_each_store(run_on);
}
