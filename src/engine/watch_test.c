/*
 * watch_test.c - tests waiting duplicates on a store that reports changes: when
 * the engine asks for reports, what it does with one, and how often it looks
 * when there are none.
 *
 * The store is the rig's remote one, with a watch method that notes what it is
 * asked. The test sends the reports.
 */
#include "../../tests/support/rig.h"
#include "inner.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define POLL_MS 50
#define LONG_MS 3600000

struct notes {
    int asked, ended; /* watch(on), watch(off) */
    bool refuses;     /* the store cannot report now */
    uint8_t key[IDEM_KEY_LEN];
};

static struct notes notes;
static struct idem_store_type watching;

static bool
note_watch(struct idem_store *store, const uint8_t *key, bool on)
{
    (void)store;
    if (on && notes.refuses)
        return false;
    if (on)
        notes.asked++;
    else
        notes.ended++;
    memcpy(notes.key, key, IDEM_KEY_LEN);
    return true;
}

static void
open_watching(struct rig *rig, const struct idem_options *options)
{
    rig_open(rig, FAULTY_REMOTE, options);
    notes = (struct notes){0};
    watching = *rig->store->base.type;
    watching.watch = note_watch;
    rig->store->base.type = &watching;
}

static void
report(struct rig *rig, enum idem_news news, const uint8_t *key)
{
    rig->store->base.news(rig->store->base.news_arg, news, key);
    turn(rig->engine);
    /* The driver of an engine that has something to do now takes a turn. */
    if (idem__engine_due_ms(rig->engine) == 0)
        turn(rig->engine);
}

/* One request is executing for an hour, and a duplicate waits for it. */
static uint64_t
start_and_wait(struct rig *rig, const char *id, struct reply *waiting)
{
    struct idem_op op = op_begin(id);
    struct reply start;

    op.lease_ms = LONG_MS;
    start = ask(rig->engine, &op);
    assert_verdict(start, IDEM_V_STARTED);
    op = op_wait(id, LONG_MS);
    put(rig->engine, &op, waiting);
    turn(rig->engine);
    assert_false(waiting->done);
    return start.fence;
}

/* Another engine on the same store finishes the request. */
static void
finish_elsewhere(struct rig *rig, const char *id, uint64_t fence)
{
    struct idem_engine *other = rig_engine(rig, FAULTY_REMOTE, NULL, NULL);
    struct idem_op op = op_finish(id, fence, "R");

    assert_verdict(ask(other, &op), IDEM_V_OK);
    idem_close(other);
}

static int
loads_during(struct rig *rig, int64_t ms)
{
    int before = rig->store->loads;

    for (int64_t i = 0; i < ms; i += 5) {
        test_clocks_pass(&rig->clocks, 5);
        turn(rig->engine);
    }
    return rig->store->loads - before;
}

static void
a_report_ends_the_wait_at_once(void **state)
{
    struct idem_op op = op_wait("a", LONG_MS);
    uint8_t key[IDEM_KEY_LEN];
    struct reply waiting;
    struct rig rig;
    uint64_t fence;

    (void)state;
    open_watching(&rig, NULL);
    idem__key(IDEM_TYPE_REQUEST, op.scope, op.id, key);
    fence = start_and_wait(&rig, "a", &waiting);
    assert_int_equal(notes.asked, 1);
    assert_memory_equal(notes.key, key, IDEM_KEY_LEN);
    report(&rig, IDEM_NEWS_WATCHED, key);
    assert_false(waiting.done);
    finish_elsewhere(&rig, "a", fence);
    turn(rig.engine);
    assert_false(waiting.done); /* no time has passed, and no report came */
    report(&rig, IDEM_NEWS_CHANGED, key);
    assert_verdict(waiting, IDEM_V_REPLAY);
    assert_string_equal(waiting.result, "R");
    assert_int_equal(notes.asked, 1);
    assert_int_equal(notes.ended, 1);
    assert_memory_equal(notes.key, key, IDEM_KEY_LEN);
    rig_close(&rig);
}

static void
a_change_before_the_watch_began_is_found_when_it_begins(void **state)
{
    uint8_t key[IDEM_KEY_LEN];
    struct reply waiting;
    struct rig rig;
    uint64_t fence;

    (void)state;
    open_watching(&rig, NULL);
    fence = start_and_wait(&rig, "a", &waiting);
    memcpy(key, notes.key, sizeof(key));
    finish_elsewhere(&rig, "a", fence);
    report(&rig, IDEM_NEWS_WATCHED, key);
    assert_verdict(waiting, IDEM_V_REPLAY);
    rig_close(&rig);
}

static void
a_report_about_another_key_changes_nothing(void **state)
{
    const uint8_t other[IDEM_KEY_LEN] = {7};
    struct reply waiting;
    struct rig rig;
    uint64_t fence;
    int loads;

    (void)state;
    open_watching(&rig, NULL);
    fence = start_and_wait(&rig, "a", &waiting);
    finish_elsewhere(&rig, "a", fence);
    loads = rig.store->loads;
    report(&rig, IDEM_NEWS_CHANGED, other);
    assert_false(waiting.done);
    assert_int_equal(rig.store->loads, loads);
    (void)loads_during(&rig, POLL_MS);
    assert_verdict(waiting, IDEM_V_REPLAY);
    rig_close(&rig);
}

static void
while_changes_are_reported_the_engine_looks_less_and_less(void **state)
{
    uint8_t key[IDEM_KEY_LEN];
    struct reply waiting;
    struct rig rig;
    uint64_t fence;
    int quiet;

    (void)state;
    open_watching(&rig, NULL);
    fence = start_and_wait(&rig, "a", &waiting);
    memcpy(key, notes.key, sizeof(key));
    /* Until the store confirms the watch, each interval has a look. */
    assert_in_range(loads_during(&rig, 20 * POLL_MS), 18, 22);
    report(&rig, IDEM_NEWS_WATCHED, key);
    quiet = loads_during(&rig, 20 * POLL_MS);
    assert_in_range(quiet, 1, 5);
    /* But it always looks again: a report may get lost. */
    finish_elsewhere(&rig, "a", fence);
    for (int i = 0; i < 100 && !waiting.done; i++)
        (void)loads_during(&rig, 20 * POLL_MS);
    assert_verdict(waiting, IDEM_V_REPLAY);
    rig_close(&rig);
}

static void
the_longest_time_between_two_looks_has_a_limit(void **state)
{
    uint8_t key[IDEM_KEY_LEN];
    struct reply waiting;
    struct rig rig;
    uint64_t fence;
    int early, late;

    (void)state;
    open_watching(&rig, NULL);
    fence = start_and_wait(&rig, "a", &waiting);
    memcpy(key, notes.key, sizeof(key));
    report(&rig, IDEM_NEWS_WATCHED, key);
    (void)loads_during(&rig, 60000);
    early = loads_during(&rig, 60000);
    late = loads_during(&rig, 60000);
    assert_true(late >= 1);
    assert_in_range(late - early + 1, 0, 2); /* it does not grow any more */
    finish_elsewhere(&rig, "a", fence);
    report(&rig, IDEM_NEWS_CHANGED, key);
    assert_verdict(waiting, IDEM_V_REPLAY);
    rig_close(&rig);
}

static void
when_reports_end_the_engine_polls_and_asks_for_them_again(void **state)
{
    uint8_t key[IDEM_KEY_LEN];
    struct reply waiting;
    struct rig rig;
    uint64_t fence;

    (void)state;
    open_watching(&rig, NULL);
    fence = start_and_wait(&rig, "a", &waiting);
    memcpy(key, notes.key, sizeof(key));
    report(&rig, IDEM_NEWS_WATCHED, key);
    (void)loads_during(&rig, 100 * POLL_MS);
    notes.refuses = true;
    report(&rig, IDEM_NEWS_UNWATCHED, key);
    assert_int_equal(notes.ended, 1);
    assert_in_range(loads_during(&rig, 20 * POLL_MS), 18, 22);
    assert_int_equal(notes.asked, 1);
    notes.refuses = false;
    (void)loads_during(&rig, 2 * POLL_MS);
    assert_int_equal(notes.asked, 2);
    finish_elsewhere(&rig, "a", fence);
    report(&rig, IDEM_NEWS_CHANGED, key);
    assert_verdict(waiting, IDEM_V_REPLAY);
    assert_int_equal(notes.ended, 2);
    rig_close(&rig);
}

/* The connection that reports is gone. */
static void
a_report_without_a_key_is_about_all(void **state)
{
    struct reply waiting[2];
    uint64_t fences[2];
    struct rig rig;

    (void)state;
    open_watching(&rig, NULL);
    fences[0] = start_and_wait(&rig, "a", &waiting[0]);
    fences[1] = start_and_wait(&rig, "b", &waiting[1]);
    assert_int_equal(notes.asked, 2);
    report(&rig, IDEM_NEWS_WATCHED, NULL);
    (void)loads_during(&rig, 100 * POLL_MS);
    finish_elsewhere(&rig, "a", fences[0]);
    finish_elsewhere(&rig, "b", fences[1]);
    report(&rig, IDEM_NEWS_UNWATCHED, NULL);
    assert_int_equal(notes.ended, 2);
    assert_false(waiting[0].done || waiting[1].done);
    (void)loads_during(&rig, POLL_MS + 5);
    assert_verdict(waiting[0], IDEM_V_REPLAY);
    assert_verdict(waiting[1], IDEM_V_REPLAY);
    rig_close(&rig);
}

/* A store that sends reports faster than the engine takes them must not fill
 * the memory. A report that is dropped costs one interval. */
static void
reports_that_come_too_fast_are_dropped(void **state)
{
    struct idem_options options = {.max_parked = 3};
    const uint8_t other[IDEM_KEY_LEN] = {7};
    uint8_t key[IDEM_KEY_LEN];
    struct reply waiting;
    struct rig rig;
    uint64_t fence;

    (void)state;
    open_watching(&rig, &options);
    fence = start_and_wait(&rig, "a", &waiting);
    memcpy(key, notes.key, sizeof(key));
    finish_elsewhere(&rig, "a", fence);
    for (int i = 0; i < 3; i++)
        rig.store->base.news(rig.engine, IDEM_NEWS_CHANGED, other);
    report(&rig, IDEM_NEWS_CHANGED, key); /* the fourth */
    assert_false(waiting.done);
    report(&rig, IDEM_NEWS_CHANGED, key);
    assert_verdict(waiting, IDEM_V_REPLAY);
    rig_close(&rig);
}

static void
the_end_of_the_reports_does_not_put_off_a_look_that_is_due_sooner(void **state)
{
    uint8_t key[IDEM_KEY_LEN];
    struct reply waiting;
    struct rig rig;
    uint64_t fence;

    (void)state;
    open_watching(&rig, NULL);
    fence = start_and_wait(&rig, "a", &waiting);
    memcpy(key, notes.key, sizeof(key));
    finish_elsewhere(&rig, "a", fence);
    (void)loads_during(&rig, POLL_MS - 10);
    assert_false(waiting.done);
    report(&rig, IDEM_NEWS_UNWATCHED, key);
    assert_false(waiting.done);
    (void)loads_during(&rig, 15);
    assert_verdict(waiting, IDEM_V_REPLAY);
    rig_close(&rig);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_report_ends_the_wait_at_once),
        cmocka_unit_test(
            a_change_before_the_watch_began_is_found_when_it_begins),
        cmocka_unit_test(a_report_about_another_key_changes_nothing),
        cmocka_unit_test(
            while_changes_are_reported_the_engine_looks_less_and_less),
        cmocka_unit_test(the_longest_time_between_two_looks_has_a_limit),
        cmocka_unit_test(
            when_reports_end_the_engine_polls_and_asks_for_them_again),
        cmocka_unit_test(a_report_without_a_key_is_about_all),
        cmocka_unit_test(reports_that_come_too_fast_are_dropped),
        cmocka_unit_test(
            the_end_of_the_reports_does_not_put_off_a_look_that_is_due_sooner),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
