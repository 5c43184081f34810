/*
 * history_test.c - sixteen threads of clients on one engine, their history
 * checked; and the checker itself, on histories and stores that lie.
 */
#include "../support/faulty_store.h"
#include "../support/history.h"
#include "../support/stores.h"

#include "../../src/engine/engine.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#define THREADS HISTORY_THREADS

static size_t
load_ops(void)
{
    const char *sanitized = getenv("IDEM_SANITIZED");

    return sanitized && *sanitized ? 3000 : 100000;
}

static int
check_store(const char *url)
{
    struct history_load load = {.ops = load_ops()};
    struct idem_error err;
    struct idem__stats stats;
    char text[300] = "";
    unsigned broken;

    if (idem_open(url, NULL, &load.engine, &err) != IDEM_OK)
        fail_msg("%s: %s", url, err.text);
    broken = history_load(&load, text, sizeof(text));
    idem__stats(load.engine, &stats);
    print_message("%s: %zu operations, %llu started, %llu replayed, %llu busy, "
                  "%.1f writes a commit\n",
                  url, THREADS * load.ops,
                  (unsigned long long)stats.verdicts[IDEM_V_STARTED],
                  (unsigned long long)stats.verdicts[IDEM_V_REPLAY],
                  (unsigned long long)stats.verdicts[IDEM_V_BUSY],
                  (double)stats.batched / (double)stats.batches);
    assert_string_equal(text, "");
    assert_int_equal(broken, 0);
    /* It was a history worth checking. */
    assert_true(stats.verdicts[IDEM_V_STARTED] > load.ops / 10);
    assert_true(stats.verdicts[IDEM_V_REPLAY] > load.ops / 10);
    assert_true(stats.verdicts[IDEM_V_BUSY] > 0);
    assert_int_equal(stats.store_errors, 0);
    idem_close(load.engine);
    free(load.events);
    return 0;
}

static void
the_history_on_memory_can_be_true(void **state)
{
    int rounds = getenv("IDEM_SOAK") ? 10 : 1;

    (void)state;
    for (int i = 0; i < rounds; i++)
        check_store("memory:");
}

static void
the_history_on_a_journal_can_be_true(void **state)
{
    int rounds = getenv("IDEM_SOAK") ? 10 : 1;
    char folder[200], url[300];

    (void)state;
    for (int i = 0; i < rounds; i++) {
        make_folder(folder, sizeof(folder));
        snprintf(url, sizeof(url), "journal:%s/journal", folder);
        check_store(url);
        remove_folder(folder);
    }
}

static struct idem_engine *
engine_on(struct idem_store *memory, pthread_mutex_t *lock, int chaos)
{
    struct faulty_store *store = faulty_open(FAULTY_REMOTE, memory, lock);
    struct idem__engine_inner inner = {.store = &store->base, .hasty = true};
    struct idem_options options = {.poll_ms = 2};
    struct idem_engine *engine;

    faulty_chaos(store, chaos);
    assert_int_equal(idem__engine_open(NULL, &options, &inner, &engine, NULL),
                     IDEM_OK);
    return engine;
}

static void
the_history_of_two_engines_on_one_failing_store_can_be_true(void **state)
{
    pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    struct history_load load = {.ops = load_ops() / 5};
    struct idem_store *memory;
    struct idem__stats stats;
    char text[300] = "";
    unsigned broken;

    (void)state;
    assert_int_equal(idem__store_open("memory:", NULL, &memory, NULL), IDEM_OK);
    load.engine = engine_on(memory, &lock, 3);
    load.second = engine_on(memory, &lock, 3);
    broken = history_load(&load, text, sizeof(text));
    idem__stats(load.engine, &stats);
    print_message("two engines: %zu operations, %llu lost, %llu full, %llu "
                  "batches failed\n",
                  THREADS * load.ops,
                  (unsigned long long)stats.errors[IDEM_ERR_LOST],
                  (unsigned long long)stats.errors[IDEM_ERR_FULL],
                  (unsigned long long)stats.store_errors);
    assert_string_equal(text, "");
    assert_int_equal(broken, 0);
    assert_true(stats.errors[IDEM_ERR_FULL] > 0);
    assert_true(stats.verdicts[IDEM_V_STARTED] > load.ops / 20);
    idem_close(load.engine);
    idem_close(load.second);
    idem__store_close(memory);
    free(load.events);
}

/* ---- the checker on planted histories ---------------------------------------
 */

/* A short and true one. */
static const struct event truth[] = {
    {.start_ns = 1,
     .end_ns = 2,
     .verb = IDEM_BEGIN,
     .nonce = 1,
     .fence = 10,
     .verdict = IDEM_V_STARTED,
     .state = IDEM_STATE_EXECUTING},
    {.start_ns = 3,
     .end_ns = 4,
     .verb = IDEM_BEGIN,
     .nonce = 2,
     .fence = 10,
     .verdict = IDEM_V_BUSY,
     .state = IDEM_STATE_EXECUTING},
    {.start_ns = 5,
     .end_ns = 6,
     .verb = IDEM_RELEASE,
     .given = 10,
     .fence = 10,
     .verdict = IDEM_V_OK,
     .state = IDEM_STATE_FREE},
    {.start_ns = 7,
     .end_ns = 8,
     .verb = IDEM_BEGIN,
     .nonce = 3,
     .fence = 11,
     .verdict = IDEM_V_STARTED,
     .state = IDEM_STATE_EXECUTING},
    {.start_ns = 9,
     .end_ns = 12,
     .verb = IDEM_FINISH,
     .given = 11,
     .sent = 77,
     .fence = 11,
     .got = 77,
     .outcome = IDEM_STATE_SUCCEEDED,
     .verdict = IDEM_V_OK,
     .state = IDEM_STATE_SUCCEEDED},
    {.start_ns = 10,
     .end_ns = 13,
     .verb = IDEM_BEGIN,
     .nonce = 4,
     .fence = 11,
     .got = 77,
     .verdict = IDEM_V_REPLAY,
     .state = IDEM_STATE_SUCCEEDED},
    {.start_ns = 14,
     .end_ns = 15,
     .verb = IDEM_GET,
     .fence = 11,
     .got = 77,
     .verdict = IDEM_V_RECORD,
     .state = IDEM_STATE_SUCCEEDED},
};

#define TRUTHS (sizeof(truth) / sizeof(truth[0]))

static unsigned
with_change(size_t at, struct event changed)
{
    struct event events[TRUTHS];
    char text[200];

    memcpy(events, truth, sizeof(truth));
    events[at] = changed;
    return history_check(events, TRUTHS, text, sizeof(text));
}

static void
the_checker_accepts_the_truth(void **state)
{
    (void)state;
    assert_int_equal(with_change(0, truth[0]), 0);
}

static void
the_checker_catches_a_second_execution(void **state)
{
    struct event e = truth[2];

    (void)state;
    e.verdict = IDEM_V_STALE; /* nobody freed the first */
    assert_true(with_change(2, e) & RULE_ONE_EXECUTION);
    e = truth[1];
    e.verdict = IDEM_V_STARTED; /* two at once, one fence */
    assert_true(with_change(1, e) & RULE_ONE_EXECUTION);
    e = truth[5];
    e.verdict = IDEM_V_STARTED; /* after it was finished */
    e.state = IDEM_STATE_EXECUTING;
    e.fence = 12;
    assert_true(with_change(5, e) & RULE_ONE_EXECUTION);
}

static void
the_checker_catches_a_wrong_replay(void **state)
{
    struct event e = truth[5];

    (void)state;
    e.got = 78;
    assert_int_equal(with_change(5, e), RULE_REPLAY);
    e = truth[5];
    e.state = IDEM_STATE_FAILED;
    assert_int_equal(with_change(5, e), RULE_REPLAY);
    e = truth[5];
    e.start_ns = 7, e.end_ns = 8; /* before anybody finished it */
    assert_true(with_change(5, e) & RULE_REPLAY);
}

static void
the_checker_catches_what_was_seen_and_is_gone(void **state)
{
    struct event e = truth[6];

    (void)state;
    e.verdict = IDEM_V_ABSENT;
    e.fence = 0;
    assert_int_equal(with_change(6, e), RULE_UNSEEN);
    e = truth[6];
    e.state = IDEM_STATE_EXECUTING;
    assert_int_equal(with_change(6, e), RULE_UNSEEN);
}

static void
the_checker_catches_a_fence_that_does_not_grow(void **state)
{
    struct event e = truth[3];

    (void)state;
    e.fence = 9;
    assert_true(with_change(3, e) & RULE_FENCES);
    e.fence = 10;
    assert_true(with_change(3, e) & RULE_FENCES);
}

/* ---- the checker on stores that lie
 * ------------------------------------------ */

static unsigned
load_on_liar(enum lie lie)
{
    struct history_load load = {.ops = 3000};
    struct idem_store *memory;
    struct faulty_store *liar;
    struct idem__engine_inner inner = {.driven = false};
    struct idem_options options = {.max_batch = 64};
    char text[300] = "";
    unsigned broken;

    assert_int_equal(idem__store_open("memory:", NULL, &memory, NULL), IDEM_OK);
    liar = faulty_open(FAULTY_LOCAL, memory, NULL);
    liar->lie = lie;
    inner.store = &liar->base;
    assert_int_equal(
        idem__engine_open(NULL, &options, &inner, &load.engine, NULL), IDEM_OK);
    broken = history_load(&load, text, sizeof(text));
    print_message("%s\n", text);
    idem_close(load.engine);
    free(load.events);
    return broken;
}

static void
the_checker_catches_a_store_that_lies(void **state)
{
    (void)state;
    assert_int_equal(load_on_liar(LIE_NONE), 0);
    assert_true(load_on_liar(LIE_FORGETS_WRITES) & RULE_UNSEEN);
    assert_true(load_on_liar(LIE_SHOWS_NOTHING) != 0);
    assert_true(load_on_liar(LIE_CHANGES_RESULTS) & RULE_REPLAY);
}

int
main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_checker_accepts_the_truth),
        cmocka_unit_test(the_checker_catches_a_second_execution),
        cmocka_unit_test(the_checker_catches_a_wrong_replay),
        cmocka_unit_test(the_checker_catches_what_was_seen_and_is_gone),
        cmocka_unit_test(the_checker_catches_a_fence_that_does_not_grow),
        cmocka_unit_test(the_checker_catches_a_store_that_lies),
        cmocka_unit_test(
            the_history_of_two_engines_on_one_failing_store_can_be_true),
        cmocka_unit_test(the_history_on_memory_can_be_true),
        cmocka_unit_test(the_history_on_a_journal_can_be_true),
    };

    if (argc > 1) /* only those whose names look like this: "the_history*" */
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
