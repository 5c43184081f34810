/*
 * sweep_test.c - a store gets rid of what expired long ago, and of nothing
 * else.
 *
 *   IDEM_TEST_STORE=zookeeper://127.0.0.1:2181 build/tests/c/sweep_test
 *
 * Without the variable it runs on memory:.
 */
#include "../../src/store/store.h"
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
            store->type->tend(store);
        usleep(10000);
    }
    assert_int_equal(count_left(store, 1), 0);
    assert_int_equal(count_left(store, 0), RECORDS / 3); /* executing */
    assert_int_equal(count_left(store, 2), RECORDS / 3); /* not expired */
    idem__store_close(store);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_expired_long_ago_goes_and_nothing_else),
    };

    store_url = getenv("IDEM_TEST_STORE");
    if (!store_url || !*store_url)
        store_url = "memory:";
    return cmocka_run_group_tests(tests, NULL, NULL);
}
