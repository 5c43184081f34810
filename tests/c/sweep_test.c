/*
 * sweep_test.c - a store gets rid of what expired long ago, and of nothing
 * else, whatever the clock does.
 *
 *   IDEM_TEST_STORE=zookeeper://127.0.0.1:2181 build/tests/c/sweep_test
 *
 * Without the variable it runs on every store of this machine, and there also
 * with clocks that the test moves.
 */
#include "../support/rig.h"
#include "../support/stores.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define RECORDS 60
#define LONG_AGO_MS INT64_C(180000) /* more than any store's margin */
#define STEPS_MAX 6000              /* of 10 ms: a minute */

static const char *store_url;

static struct idem_record
record_of(unsigned number, char *id, int64_t now_ms)
{
    struct idem_record r = {
        .type = IDEM_TYPE_REQUEST,
        .state = number % 3 == 0 ? IDEM_STATE_EXECUTING : IDEM_STATE_SUCCEEDED,
        .attempt = 1,
        .fence = 1 + number,
        .rev = idem__new_rev(),
        .created = now_ms,
        .updated = now_ms,
        .scope = idem_text("sweep"),
    };

    snprintf(id, 16, "id-%u", number);
    r.id = idem_text(id);
    r.expires = number % 3 == 2 ? now_ms + LONG_AGO_MS : now_ms - LONG_AGO_MS;
    if (r.state == IDEM_STATE_EXECUTING)
        r.lease_until = now_ms - LONG_AGO_MS;
    return r;
}

static int
compare_keys(const void *a, const void *b)
{
    return memcmp(((const struct idem_swap *)a)->key,
                  ((const struct idem_swap *)b)->key, IDEM_KEY_LEN);
}

/* How many of the records are there whose number leaves this remainder. */
static unsigned
count_left(struct idem_store *store, unsigned remainder)
{
    struct idem_arena arena = {NULL, 0};
    unsigned left = 0;

    for (unsigned i = remainder; i < RECORDS; i += 3) {
        struct idem_load load = {.with_result = true};
        char id[16];

        snprintf(id, sizeof(id), "id-%u", i);
        idem__key(IDEM_TYPE_REQUEST, idem_text("sweep"), idem_text(id),
                  load.key);
        assert_int_equal(store->type->load(store, &load, 1, &arena, NULL),
                         IDEM_OK);
        left += load.record.state != IDEM_STATE_ABSENT;
    }
    idem_arena_clear(&arena);
    return left;
}

static void
fill(struct idem_store *store, int64_t now_ms)
{
    struct idem_swap swaps[RECORDS];
    struct idem_record records[RECORDS];
    char ids[RECORDS][16];
    struct idem_arena arena = {NULL, 0};

    memset(swaps, 0, sizeof(swaps));
    for (unsigned i = 0; i < RECORDS; i++) {
        records[i] = record_of(i, ids[i], now_ms);
        idem__key(IDEM_TYPE_REQUEST, records[i].scope, records[i].id,
                  swaps[i].key);
        swaps[i].record = &records[i];
    }
    qsort(swaps, RECORDS, sizeof(swaps[0]), compare_keys);
    assert_int_equal(store->type->swap(store, swaps, RECORDS, &arena, NULL),
                     IDEM_OK);
    for (unsigned i = 0; i < RECORDS; i++)
        assert_int_equal(swaps[i].outcome, IDEM_SWAP_STORED);
    idem_arena_clear(&arena);
}

static void
what_expired_long_ago_goes_and_nothing_else(void **state)
{
    struct idem_store *store = NULL;
    struct idem_error err = {IDEM_OK, ""};
    int64_t now_us = idem__system_clocks.wall_us(NULL);

    (void)state;
    if (idem__store_open(store_url, NULL, &store, &err) != IDEM_OK)
        fail_msg("%s: %s", store_url, err.text);
    if (store->type->now)
        assert_int_equal(store->type->now(store, &now_us, &err), IDEM_OK);
    fill(store, now_us / 1000);
    for (int step = 0; step < STEPS_MAX && count_left(store, 1) > 0; step++) {
        if (store->type->now) /* as the engine does */
            assert_int_equal(store->type->now(store, &now_us, &err), IDEM_OK);
        if (store->type->tend)
            store->type->tend(store, now_us / 1000);
        usleep(10000);
    }
    assert_int_equal(count_left(store, 1), 0);
    assert_int_equal(count_left(store, 0), RECORDS / 3); /* executing */
    assert_int_equal(count_left(store, 2), RECORDS / 3); /* not expired */
    idem__store_close(store);
}

/* ---- clocks that the test moves --------------------------------------- */

#define HOUR_MS INT64_C(3600000)

static struct idem_engine *
open_engine(struct test_clocks *clocks)
{
    struct idem__engine_inner inner = {.clocks = &clocks->clocks,
                                       .driven = true};
    struct idem_engine *engine = NULL;
    struct idem_error err = {IDEM_OK, ""};

    if (idem__engine_open(store_url, NULL, &inner, &engine, &err) != IDEM_OK)
        fail_msg("%s: %s", store_url, err.text);
    return engine;
}

/* Time passes in steps; the engine takes its turns, and so does the sweep. */
static void
pass(struct idem_engine *engine, struct test_clocks *clocks, int64_t ms)
{
    struct idem_op op = op_get("somebody else's");

    for (int i = 0; i < 100; i++) {
        test_clocks_pass(clocks, ms / 100);
        ask(engine, &op);
    }
}

static void
a_clock_that_jumps_ahead_takes_nothing_away(void **state)
{
    struct idem_op op = op_begin("jump");
    struct test_clocks clocks;
    struct idem_engine *engine;
    struct reply first;

    (void)state;
    test_clocks_init(&clocks);
    engine = open_engine(&clocks);
    first = ask(engine, &op);
    assert_verdict(first, IDEM_V_STARTED);
    op = op_finish("jump", first.fence, "R");
    assert_verdict(ask(engine, &op), IDEM_V_OK);
    pass(engine, &clocks, 60000);
    atomic_fetch_add(&clocks.wall_us, 25 * HOUR_MS * 1000);
    pass(engine, &clocks, 60000);
    op = op_begin("jump");
    assert_verdict(ask(engine, &op), IDEM_V_REPLAY);
    /* Nor does it keep what has really expired, once the clock is right. */
    atomic_fetch_sub(&clocks.wall_us, 25 * HOUR_MS * 1000);
    pass(engine, &clocks, 25 * HOUR_MS);
    assert_verdict(ask(engine, &op), IDEM_V_STARTED);
    idem_close(engine);
}

/* I1, after BEGIN under a clock that was 30 days ahead. */
static void
a_fence_from_a_clock_that_was_ahead_outlives_its_record(void **state)
{
    const int64_t ahead_us = 30 * 24 * HOUR_MS * 1000;
    struct idem_op op;
    struct test_clocks clocks;
    struct idem_engine *engine;
    struct reply first, second;

    (void)state;
    if (!store_is_durable(store_url))
        return; /* its time and its records end with the process */
    for (int how = 0; how < 3; how++) {
        const char *id = (const char *[]){"release", "finish", "forget"}[how];

        test_clocks_init(&clocks);
        atomic_fetch_add(&clocks.wall_us, ahead_us);
        engine = open_engine(&clocks);
        op = op_begin(id);
        first = ask(engine, &op);
        assert_verdict(first, IDEM_V_STARTED);
        idem_close(engine);

        atomic_fetch_sub(&clocks.wall_us, ahead_us);
        engine = open_engine(&clocks);
        op = how == 0 ? op_release(id, first.fence)
                      : op_finish(id, first.fence, "R");
        op.ttl_ms = how == 0 ? 0 : HOUR_MS;
        assert_verdict(ask(engine, &op), IDEM_V_OK);
        if (how == 2) {
            op = op_get(id);
            op.verb = IDEM_FORGET;
            assert_verdict(ask(engine, &op), IDEM_V_OK);
        }
        /* A journal keeps what it writes a week longer while the wall clock
         * is far behind its own. */
        pass(engine, &clocks, (8 * 24 + 2) * HOUR_MS);
        op = op_begin(id);
        second = ask(engine, &op);
        assert_verdict(second, IDEM_V_STARTED);
        assert_true(second.fence > first.fence);
        idem_close(engine);
    }
}

static int
run_on(const char *url)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_clock_that_jumps_ahead_takes_nothing_away),
        cmocka_unit_test(
            a_fence_from_a_clock_that_was_ahead_outlives_its_record),
        cmocka_unit_test(what_expired_long_ago_goes_and_nothing_else),
    };
    bool ours = !getenv("IDEM_TEST_STORE"); /* it lives by our clocks */

    store_url = url;
    print_message("%s\n", url);
    return _cmocka_run_group_tests("sweep", ours ? tests : tests + 2,
                                   ours ? 3 : 1, NULL, NULL);
}

int
main(void)
{
    return for_each_store(run_on);
}
