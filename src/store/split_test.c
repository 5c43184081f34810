/*
 * split_test.c - tests batches that are split into shares: every swap gets its
 * outcome, and the failure of one connection does not affect the others.
 *
 * The stores behind it follow a script. Each has a number, in the order in
 * which they were opened (0: the first connection), and returns it as the rev
 * of the records that it found.
 */
#include "store.h"
#include "sweeper.h"

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#define STORES 8
#define SWAPS 100

struct within {
    struct idem_store base;
    int number;
    bool opened;
};

/* What each store does, and what it got. */
static struct {
    enum idem_outcome outcome;
    enum idem_status status;
    size_t swaps, batches;
    bool signals_blocked;
    pthread_t thread;
} script[STORES];
static atomic_int opened, closed, tended;
static bool refuse_to_open;
static int64_t boot_now_us;
static int warnings;

static int64_t
read_boot(void *arg)
{
    (void)arg;
    return boot_now_us;
}

static const struct idem_clocks test_clocks = {.wall_us = read_boot,
                                               .boot_us = read_boot};

static void
count_warning(void *arg, enum idem_log_level level, const char *text)
{
    (void)arg;
    (void)text;
    warnings += level == IDEM_LOG_WARNING;
}

static enum idem_status
within_swap(struct idem_store *store, struct idem_swap *swaps, size_t count,
            struct idem_arena *arena, struct idem_error *err)
{
    int number = ((struct within *)store)->number;
    char text[] = {(char)('1' + script[number].batches)}; /* batch number */
    struct idem_record found = {.state = IDEM_STATE_SUCCEEDED,
                                .rev = (uint64_t)number + 1,
                                .scope = {text, 1}};
    sigset_t blocked;

    pthread_sigmask(SIG_SETMASK, NULL, &blocked);
    script[number].signals_blocked = sigismember(&blocked, SIGTERM) == 1;
    script[number].thread = pthread_self();
    script[number].swaps += count;
    script[number].batches++;
    for (size_t i = 0; i < count; i++) {
        swaps[i].outcome = script[number].outcome;
        swaps[i].found.state = IDEM_STATE_ABSENT;
        if (swaps[i].outcome == IDEM_SWAP_REFUSED)
            assert_true(idem_arena_record(arena, &found, &swaps[i].found));
    }
    return script[number].status == IDEM_OK
               ? IDEM_OK
               : idem__fail(err, script[number].status, "store %d", number);
}

static enum idem_status
within_load(struct idem_store *store, struct idem_load *loads, size_t count,
            struct idem_arena *arena, struct idem_error *err)
{
    (void)loads;
    (void)count;
    (void)arena;
    (void)err;
    assert_int_equal(((struct within *)store)->number, 0);
    return IDEM_OK;
}

static enum idem_status
within_now(struct idem_store *store, int64_t *now_us, struct idem_error *err)
{
    (void)err;
    assert_int_equal(((struct within *)store)->number, 0);
    *now_us = 7;
    return IDEM_OK;
}

static void
within_tend(struct idem_store *store, int64_t drop_ms)
{
    (void)store;
    assert_true(drop_ms == 42 || drop_ms == 0);
    atomic_fetch_add(&tended, 1);
}

/* A store has this many expired records. */
static atomic_int expired, sweeps[STORES];
static atomic_bool sweep_fails;

static bool
within_sweep(struct idem_store *store, int64_t drop_ms, size_t most,
             size_t *gone)
{
    int left = atomic_load(&expired);
    int take = left < (int)most ? left : (int)most;

    assert_int_equal(drop_ms, 42);
    atomic_fetch_add(&sweeps[((struct within *)store)->number], 1);
    if (atomic_load(&sweep_fails) && ((struct within *)store)->number > 0)
        return false;
    atomic_fetch_sub(&expired, take);
    *gone = (size_t)take;
    return true;
}

static void
within_figures(struct idem_store *store, idem_figure_fn *each, void *arg)
{
    (void)store;
    (void)each;
    (void)arg;
}

static enum idem_status
within_open(struct idem_store *store, const char *url, struct idem_error *err)
{
    struct within *self = (struct within *)store;

    assert_null(strstr(url, "connections"));
    assert_null(strstr(url, "share"));
    if (refuse_to_open)
        return idem__fail(err, IDEM_ERR_UNAVAILABLE, "too many connections");
    self->base.max_record = 12345;
    self->number = atomic_fetch_add(&opened, 1);
    self->opened = true;
    return IDEM_OK;
}

static void
within_close(struct idem_store *store)
{
    closed += ((struct within *)store)->opened;
}

static enum idem_status
within_init(struct idem_store *store, const char *url, struct idem_error *err)
{
    (void)store;
    (void)err;
    assert_string_equal(url, "within://host/db?x=y");
    return IDEM_OK;
}

static const struct idem_store_type within_type = {
    .scheme = "within",
    .size = sizeof(struct within),
    .share = 10,
    .open = within_open,
    .swap = within_swap,
    .load = within_load,
    .now = within_now,
    .tend = within_tend,
    .sweep = within_sweep,
    .figures = within_figures,
    .close = within_close,
    .init = within_init,
};

/* ---- a batch ------------------------------------------------------------ */

static struct idem_swap swaps[SWAPS];
static struct idem_arena arena;
static struct idem_error err;

static struct idem_store *
open_split(const char *url)
{
    struct idem_store_options options = {.clocks = &test_clocks,
                                         .log = count_warning};
    struct idem_store *store = NULL;

    memset(script, 0, sizeof(script));
    for (int i = 0; i < STORES; i++)
        script[i].outcome = IDEM_SWAP_STORED;
    atomic_store(&opened, 0);
    atomic_store(&closed, 0);
    atomic_store(&tended, 0);
    atomic_store(&expired, 0);
    atomic_store(&sweep_fails, false);
    for (int i = 0; i < STORES; i++)
        atomic_store(&sweeps[i], 0);
    refuse_to_open = false;
    boot_now_us = 1000;
    warnings = 0;
    if (idem__split_open(&within_type, url, &options, &store, &err) != IDEM_OK)
        fail_msg("%s", err.text);
    assert_int_equal(store->max_record, 12345);
    return store;
}

static void
close_split(struct idem_store *store)
{
    idem__store_close(store);
    idem_arena_clear(&arena);
    assert_int_equal(atomic_load(&closed), atomic_load(&opened));
}

static enum idem_status
swap(struct idem_store *store, size_t count)
{
    memset(swaps, 0, sizeof(swaps));
    err = (struct idem_error){IDEM_OK, ""};
    for (size_t i = 0; i < count; i++) {
        swaps[i].key[0] = (uint8_t)i;
        swaps[i].outcome = (enum idem_outcome)99;
    }
    return store->type->swap(store, swaps, count, &arena, &err);
}

static void
assert_outcomes(size_t from, size_t to, enum idem_outcome outcome)
{
    for (size_t i = from; i < to; i++)
        assert_int_equal(swaps[i].outcome, outcome);
}

static double connections_figure, cuts_figure;

static void
note_figure(void *arg, const char *name, double value)
{
    (void)arg;
    if (strcmp(name, "store_connections") == 0)
        connections_figure = value;
    if (strcmp(name, "store_batches_cut_total") == 0)
        cuts_figure = value;
}

/* ---- tests -------------------------------------------------------------- */

static void
a_small_batch_stays_whole_and_opens_no_connection(void **state)
{
    struct idem_store *store = open_split("within://host/db?share=10");

    (void)state;
    assert_int_equal(swap(store, 0), IDEM_OK);
    assert_int_equal(swap(store, 19), IDEM_OK);
    assert_outcomes(0, 19, IDEM_SWAP_STORED);
    assert_int_equal(atomic_load(&opened), 1);
    store->type->figures(store, note_figure, NULL);
    assert_true(connections_figure == 1 && cuts_figure == 0);
    close_split(store);
}

static void
a_large_batch_is_cut_into_a_share_for_each_connection(void **state)
{
    struct idem_store *store = open_split("within://host/db?connections=3");
    size_t sum = 0;

    (void)state;
    for (int round = 1; round <= 50; round++) {
        assert_int_equal(swap(store, SWAPS), IDEM_OK);
        assert_outcomes(0, SWAPS, IDEM_SWAP_STORED);
    }
    assert_int_equal(atomic_load(&opened), 3);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(script[i].batches, 50);
        assert_in_range(script[i].swaps, 33 * 50, 34 * 50);
        sum += script[i].swaps;
        assert_int_equal(script[i].signals_blocked, i > 0);
        for (int k = 0; k < i; k++)
            assert_false(pthread_equal(script[i].thread, script[k].thread));
    }
    assert_int_equal(sum, SWAPS * 50);
    /* Two shares are enough for twenty. */
    assert_int_equal(swap(store, 20), IDEM_OK);
    assert_int_equal(script[0].batches + script[1].batches + script[2].batches,
                     152);
    store->type->figures(store, note_figure, NULL);
    assert_true(connections_figure == 3 && cuts_figure == 51);
    store->type->tend(store, 42);
    assert_int_equal(atomic_load(&tended), 3);
    close_split(store);
}

static void
one_connection_is_one_connection(void **state)
{
    struct idem_store *store = open_split("within://host/db?connections=1");

    (void)state;
    assert_int_equal(swap(store, SWAPS), IDEM_OK);
    assert_int_equal(script[0].swaps, SWAPS);
    assert_int_equal(atomic_load(&opened), 1);
    close_split(store);
}

static void
what_a_helper_found_outlives_its_next_share(void **state)
{
    struct idem_store *store = open_split("within://host/db");
    struct idem_record kept;

    (void)state;
    script[1].outcome = IDEM_SWAP_REFUSED;
    assert_int_equal(swap(store, SWAPS), IDEM_OK);
    assert_outcomes(0, 50, IDEM_SWAP_STORED);
    assert_outcomes(50, SWAPS, IDEM_SWAP_REFUSED);
    kept = swaps[SWAPS - 1].found;
    assert_int_equal(swap(store, SWAPS), IDEM_OK);
    assert_int_equal(kept.rev, 2); /* of the second store */
    assert_true(idem__bytes_equal(kept.scope, idem_text("1")));
    close_split(store);
}

static void
a_share_whose_connection_is_away_is_done_by_the_first(void **state)
{
    struct idem_store *store = open_split("within://host/db");

    (void)state;
    refuse_to_open = true;
    assert_int_equal(swap(store, SWAPS), IDEM_OK);
    assert_outcomes(0, SWAPS, IDEM_SWAP_STORED);
    assert_int_equal(script[0].batches, 2);
    assert_int_equal(warnings, 1);
    /* For a moment there is no new attempt, and it is logged once. */
    assert_int_equal(swap(store, SWAPS), IDEM_OK);
    assert_int_equal(script[0].batches, 3);
    boot_now_us += 2000000;
    assert_int_equal(swap(store, SWAPS), IDEM_OK);
    assert_int_equal(script[0].batches, 5);
    assert_int_equal(warnings, 1);
    /* Then it works again. */
    refuse_to_open = false;
    boot_now_us += 2000000;
    assert_int_equal(swap(store, SWAPS), IDEM_OK);
    assert_int_equal(script[1].swaps, 50);
    script[1].outcome = IDEM_SWAP_NOT_STORED;
    script[1].status = IDEM_ERR_UNAVAILABLE;
    assert_int_equal(swap(store, SWAPS), IDEM_OK);
    assert_outcomes(0, SWAPS, IDEM_SWAP_STORED);
    assert_int_equal(warnings, 2);
    close_split(store);
}

static void
what_a_helper_lost_is_lost_and_nothing_else(void **state)
{
    struct idem_store *store = open_split("within://host/db");

    (void)state;
    script[1].outcome = IDEM_SWAP_LOST;
    script[1].status = IDEM_ERR_LOST;
    assert_int_equal(swap(store, SWAPS), IDEM_ERR_LOST);
    assert_string_equal(err.text, "store 1");
    assert_outcomes(0, 50, IDEM_SWAP_STORED);
    assert_outcomes(50, SWAPS, IDEM_SWAP_LOST);
    assert_int_equal(script[0].swaps, 50); /* it was not sent again here */
    close_split(store);
}

static void
the_first_connection_fails_alone(void **state)
{
    struct idem_store *store = open_split("within://host/db");

    (void)state;
    script[0].outcome = IDEM_SWAP_NOT_STORED;
    script[0].status = IDEM_ERR_UNAVAILABLE;
    assert_int_equal(swap(store, SWAPS), IDEM_ERR_UNAVAILABLE);
    assert_string_equal(err.text, "store 0");
    assert_outcomes(0, 50, IDEM_SWAP_NOT_STORED);
    assert_outcomes(50, SWAPS, IDEM_SWAP_STORED);
    /* If both fail, neither does the other's share, and the first error is
     * returned. */
    script[1].outcome = IDEM_SWAP_NOT_STORED;
    script[1].status = IDEM_ERR_FULL;
    assert_int_equal(swap(store, SWAPS), IDEM_ERR_UNAVAILABLE);
    assert_string_equal(err.text, "store 0");
    assert_outcomes(0, SWAPS, IDEM_SWAP_NOT_STORED);
    assert_int_equal(script[0].batches, 2);
    assert_int_equal(warnings, 0);
    close_split(store);
}

/* Wait until this many records are left, or fewer. */
static void
await_expired(int left)
{
    for (int i = 0; i < 6000 && atomic_load(&expired) > left; i++)
        nanosleep(&(struct timespec){0, 10000000}, NULL);
    assert_true(atomic_load(&expired) <= left);
}

static void
many_expired_records_go_on_a_connection_of_their_own(void **state)
{
    struct idem_store *store = open_split("within://host/db");

    (void)state;
    atomic_store(&expired, 499);
    store->type->tend(store, 42);
    assert_int_equal(atomic_load(&expired), 0);
    assert_int_equal(atomic_load(&opened), 1);

    atomic_store(&expired, 20000);
    nanosleep(&(struct timespec){0, 600000000}, NULL);
    store->type->tend(store, 0); /* nothing may be removed */
    assert_int_equal(atomic_load(&expired), 20000);
    store->type->tend(store, 42);
    assert_int_equal(atomic_load(&sweeps[0]), 2);
    await_expired(0);
    assert_int_equal(atomic_load(&opened), 2);
    assert_true(atomic_load(&sweeps[1]) >= 39);
    close_split(store);
}

static void
a_sweep_keeps_up_with_new_records_and_no_more(void **state)
{
    const int64_t minute_us = 60000000;

    (void)state;
    /* Nobody writes: twice as long as the batch took. */
    assert_int_equal(idem__sweeper_rest_us(2000, 0, 0), 4000);
    /* 20,000 new records a second: 500 of 22,000 every 22.7 ms. */
    assert_in_range(idem__sweeper_rest_us(2000, 20000, 0), 20000, 21000);
    /* A slow batch rests at least twice its time. */
    assert_int_equal(idem__sweeper_rest_us(20000, 20000, 0), 40000);
    /* Few new records: the database has time. */
    assert_int_equal(idem__sweeper_rest_us(2000, 5000, 0), 4000);
    /* A backlog that does not end goes twice as fast every minute. */
    assert_in_range(idem__sweeper_rest_us(2000, 20000, minute_us), 10000,
                    10500);
    assert_int_equal(idem__sweeper_rest_us(2000, 20000, 600 * minute_us), 4000);
}

static void
one_connection_sweeps_if_no_other_may_or_can(void **state)
{
    struct idem_store *store = open_split("within://host/db?connections=1");

    (void)state;
    atomic_store(&expired, 2000);
    store->type->tend(store, 42);
    assert_int_equal(atomic_load(&expired), 1500);
    assert_int_equal(atomic_load(&opened), 1);
    close_split(store);

    store = open_split("within://host/db");
    atomic_store(&sweep_fails, true);
    atomic_store(&expired, 2000);
    for (int i = 0; i < 6000 && atomic_load(&expired) > 0; i++) {
        store->type->tend(store, 42);
        nanosleep(&(struct timespec){0, 10000000}, NULL);
    }
    assert_int_equal(atomic_load(&expired), 0);
    assert_int_equal(atomic_load(&sweeps[1]), 1); /* then it rests */
    assert_int_equal(atomic_load(&closed), 1);
    close_split(store);
}

static void
everything_else_is_the_first_connections(void **state)
{
    struct idem_store *store = open_split("within://host/db");
    int64_t now_us = 0;

    (void)state;
    assert_int_equal(swap(store, SWAPS), IDEM_OK);
    assert_int_equal(store->type->load(store, NULL, 0, &arena, &err), IDEM_OK);
    assert_int_equal(store->type->now(store, &now_us, &err), IDEM_OK);
    assert_int_equal(now_us, 7);
    close_split(store);
}

static void
parameters_are_numbers_within_their_limits(void **state)
{
    static const char *const bad[] = {
        "connections=0", "connections=9", "connections=-1", "connections=two",
        "connections=",  "share=0",       "share=1000001",  "share=1x",
    };
    struct idem_store_options options = {0};
    struct idem_store *store = NULL;
    char url[100];

    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        snprintf(url, sizeof(url), "within://u:secret@host/db?%s", bad[i]);
        assert_int_equal(
            idem__split_open(&within_type, url, &options, &store, &err),
            IDEM_ERR_INVALID);
        assert_non_null(strstr(err.text, "is a number from 1 to"));
        assert_null(strstr(err.text, "secret"));
        assert_int_equal(idem__split_init(&within_type, url, &err),
                         IDEM_ERR_INVALID);
    }
    assert_int_equal(
        idem__split_init(&within_type,
                         "within://host/db?connections=8&x=y&share=3", &err),
        IDEM_OK);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_small_batch_stays_whole_and_opens_no_connection),
        cmocka_unit_test(a_large_batch_is_cut_into_a_share_for_each_connection),
        cmocka_unit_test(one_connection_is_one_connection),
        cmocka_unit_test(what_a_helper_found_outlives_its_next_share),
        cmocka_unit_test(a_share_whose_connection_is_away_is_done_by_the_first),
        cmocka_unit_test(what_a_helper_lost_is_lost_and_nothing_else),
        cmocka_unit_test(the_first_connection_fails_alone),
        cmocka_unit_test(everything_else_is_the_first_connections),
        cmocka_unit_test(many_expired_records_go_on_a_connection_of_their_own),
        cmocka_unit_test(a_sweep_keeps_up_with_new_records_and_no_more),
        cmocka_unit_test(one_connection_sweeps_if_no_other_may_or_can),
        cmocka_unit_test(parameters_are_numbers_within_their_limits),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
