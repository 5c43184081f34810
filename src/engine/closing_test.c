/*
 * closing_test.c - tests what an engine that is being closed does with new
 * calls of its own callbacks, and its timing: pauses, turns that are due, and
 * more waiting keys than one batch has room for.
 */
#include "../../tests/support/rig.h"
#include "inner.h"

#include <idem/token.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

/* ---- calls of a callback while the engine closes ------------------------- */

struct caller {
    struct rig *rig;
    int answers;
    enum idem_status submit, scan;
    char submit_text[128], scan_text[128];
};

static void
never_called(void *arg, enum idem_status status,
             const struct idem_answer *answer, const struct idem_error *err)
{
    (void)arg;
    (void)status;
    (void)answer;
    (void)err;
    fail_msg("an operation that was refused is answered");
}

static void
never_scanned(void *arg, enum idem_status status,
              const struct idem_record *records, size_t count,
              const struct idem_cursor *next, const struct idem_error *err)
{
    (void)arg;
    (void)status;
    (void)records;
    (void)count;
    (void)next;
    (void)err;
    fail_msg("a scan that was refused is answered");
}

static void
call_again(void *arg, enum idem_status status, const struct idem_answer *answer,
           const struct idem_error *err)
{
    const struct idem_cursor start = {"0"};
    struct idem_op op = op_begin("another");
    struct caller *caller = arg;
    struct idem_engine *engine = caller->rig->engine;
    struct idem_error why = {IDEM_OK, ""};
    uint64_t ticket = 0;

    (void)answer;
    (void)err;
    assert_int_equal(status, IDEM_OK);
    caller->answers++;
    caller->submit =
        idem_submit(engine, &op, never_called, NULL, &ticket, &why);
    snprintf(caller->submit_text, sizeof(caller->submit_text), "%.100s",
             why.text);
    caller->scan =
        idem__scan_submit(engine, NULL, &start, 10, never_scanned, NULL, &why);
    snprintf(caller->scan_text, sizeof(caller->scan_text), "%.100s", why.text);
    idem_cancel(engine, 1);
    idem__take_news(engine, IDEM_NEWS_CHANGED, NULL);
}

static void
a_callback_cannot_give_a_closing_engine_more_to_do(void **state)
{
    struct idem_op op = op_begin("a");
    struct caller caller = {0};
    struct rig rig;

    (void)state;
    rig_open(&rig, FAULTY_REMOTE, NULL);
    caller.rig = &rig;
    assert_int_equal(
        idem_submit(rig.engine, &op, call_again, &caller, NULL, NULL), IDEM_OK);
    rig_close(&rig);
    assert_int_equal(caller.answers, 1);
    assert_int_equal(caller.submit, IDEM_ERR_CLOSED);
    assert_string_equal(caller.submit_text, "the engine is shutting down");
    assert_int_equal(caller.scan, IDEM_ERR_CLOSED);
    assert_string_equal(caller.scan_text, "the engine is shutting down");
}

struct last {
    int times;
    enum idem_status status;
    enum idem_verdict verdict;
    enum idem_state state;
};

static void
note_last(void *arg, enum idem_status status, const struct idem_answer *answer,
          const struct idem_error *err)
{
    struct last *last = arg;

    last->times++;
    last->status = status;
    if (status == IDEM_OK) {
        last->verdict = answer->verdict;
        last->state = (enum idem_state)answer->record->state;
    } else {
        assert_string_equal(err->text, "the engine is shutting down");
    }
}

/* Verbs that need several operations stop between two of them. */
static void
a_verb_that_is_half_done_when_the_engine_closes_is_answered(void **state)
{
    static const enum idem_verb verbs[] = {IDEM_SETTLE, IDEM_GET, IDEM_FORGET};
    struct rig rig;

    (void)state;
    for (int i = 0; i < 3; i++) {
        struct idem_op op = op_begin("none");
        struct last last = {0};

        op.verb = verbs[i];
        rig_open(&rig, FAULTY_REMOTE, NULL);
        assert_int_equal(idem__submit_verb(rig.engine, &op, false, note_last,
                                           &last, NULL, NULL),
                         IDEM_OK);
        rig_close(&rig);
        assert_int_equal(last.times, 1);
        assert_int_equal(last.status, IDEM_ERR_CLOSED);
    }
}

static void
a_token_is_redeemed_although_no_new_one_can_be_issued(void **state)
{
    struct idem_op op = op_begin("token");
    struct last last = {0};
    struct rig rig;

    (void)state;
    rig_open(&rig, FAULTY_REMOTE, NULL);
    op.verb = IDEM_ISSUE;
    assert_verdict(ask(rig.engine, &op), IDEM_V_ISSUED);
    op.verb = IDEM_REDEEM;
    assert_int_equal(
        idem__submit_verb(rig.engine, &op, true, note_last, &last, NULL, NULL),
        IDEM_OK);
    rig_close(&rig);
    assert_int_equal(last.times, 1);
    assert_int_equal(last.status, IDEM_OK);
    assert_int_equal(last.verdict, IDEM_V_REDEEMED);
    assert_int_equal(last.state, IDEM_STATE_ABSENT); /* no new token */
}

/* ---- figures --------------------------------------------------------------
 */

static struct idem_store_type with_figures;
static double next_value;

static void
many_figures(struct idem_store *store, idem_figure_fn *each, void *arg)
{
    char name[16];

    (void)store;
    for (int i = 0; i < IDEM__FIGURES_KEPT + 8; i++) {
        snprintf(name, sizeof(name), "figure_%d", i);
        each(arg, name, next_value + i);
    }
}

struct seen_figures {
    int count;
    double first, last;
};

static void
see_figure(void *arg, const char *name, double value)
{
    struct seen_figures *seen = arg;
    char expected[16];

    snprintf(expected, sizeof(expected), "figure_%d", seen->count);
    assert_string_equal(name, expected);
    if (seen->count++ == 0)
        seen->first = value;
    seen->last = value;
}

/* A caller that must not wait gets the figures of the last time it asked. */
static void
kept_figures_are_those_of_the_call_before(void **state)
{
    struct seen_figures seen = {0};
    struct rig rig;

    (void)state;
    rig_open(&rig, FAULTY_REMOTE, NULL);
    with_figures = *rig.store->base.type;
    with_figures.figures = many_figures;
    rig.store->base.type = &with_figures;
    next_value = 100;
    idem__store_figures_kept(rig.engine, see_figure, &seen);
    assert_int_equal(seen.count, 0);
    idem__store_figures_kept(rig.engine, see_figure, &seen); /* asked already */
    assert_int_equal(seen.count, 0);
    turn(rig.engine);
    next_value = 200;
    idem__store_figures_kept(rig.engine, see_figure, &seen);
    assert_int_equal(seen.count, IDEM__FIGURES_KEPT);
    assert_true(seen.first == 100);
    assert_true(seen.last == 100 + IDEM__FIGURES_KEPT - 1);
    turn(rig.engine);
    seen = (struct seen_figures){0};
    idem__store_figures_kept(rig.engine, see_figure, &seen);
    assert_true(seen.first == 200);
    turn(rig.engine);
    seen = (struct seen_figures){0};
    turn(rig.engine);
    idem__store_figures(rig.engine, see_figure, &seen);
    assert_int_equal(seen.count, IDEM__FIGURES_KEPT + 8); /* all, at once */
    rig_close(&rig);
}

/* ---- timing ---------------------------------------------------------------
 */

static int64_t
real_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* A connection that broke needs a moment before it can be made again. */
static void
a_lost_write_is_sent_again_after_longer_and_longer_pauses(void **state)
{
    struct idem_op op = op_begin("a");
    struct rig rig;
    int64_t began;
    int swaps;

    (void)state;
    rig_open(&rig, FAULTY_REMOTE, NULL);
    rig.engine->inner.hasty = false;
    swaps = rig.store->swaps;
    faulty_plan(rig.store, FAULT_LOST_NOT, 0, 100);
    began = real_ms();
    assert_status(ask(rig.engine, &op), IDEM_ERR_LOST);
    assert_int_equal(rig.store->swaps - swaps, 6);
    assert_true(real_ms() - began >= 1 + 10 + 50 + 200 + 500);
    faulty_plan(rig.store, FAULT_NONE, 0, 0);
    rig_close(&rig);
}

#define KEYS 9

static void
more_waiting_keys_than_a_batch_has_room_for_are_all_answered(void **state)
{
    struct idem_options options = {.max_batch = 4};
    struct reply waiting[KEYS];
    char id[KEYS][8];
    struct rig rig;

    (void)state;
    rig_open(&rig, FAULTY_LOCAL, &options);
    for (int i = 0; i < KEYS; i++) {
        struct idem_op op;

        snprintf(id[i], sizeof(id[i]), "key-%d", i);
        op = op_begin(id[i]);
        op.lease_ms = 10000;
        assert_verdict(ask(rig.engine, &op), IDEM_V_STARTED);
        op = op_wait(id[i], 60000);
        put(rig.engine, &op, &waiting[i]);
        turn(rig.engine);
        assert_false(waiting[i].done);
    }
    test_clocks_pass(&rig.clocks, 10100); /* all leases are over */
    assert_true(idem__engine_turn(rig.engine));
    turn(rig.engine);
    for (int i = 0; i < KEYS; i++) {
        assert_verdict(waiting[i], IDEM_V_DOUBT);
        assert_int_equal(waiting[i].times, 1);
    }
    rig_close(&rig);
}

/* Nothing waits, but the engine counts the records of scopes now and then. */
static void
a_driver_is_told_when_the_quota_is_due(void **state)
{
    struct rig rig;

    (void)state;
    rig_open(&rig, FAULTY_REMOTE, NULL);
    assert_int_equal(idem__engine_due_ms(rig.engine), -1);
    rig.engine->inner.scope_records = 2;
    assert_int_equal(idem__quota_open(rig.engine, NULL), IDEM_OK);
    assert_true(idem__engine_due_ms(rig.engine) >= 0);
    turn(rig.engine);
    for (int i = 0; i < 5; i++) {
        int64_t due_ms = idem__engine_due_ms(rig.engine);
        int64_t due_us = rig.engine->quota.due_us;

        assert_true(due_ms >= 0);
        test_clocks_pass(&rig.clocks, due_ms);
        turn(rig.engine);
        assert_true(rig.engine->quota.due_us > due_us);
    }
    rig_close(&rig);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_callback_cannot_give_a_closing_engine_more_to_do),
        cmocka_unit_test(
            a_verb_that_is_half_done_when_the_engine_closes_is_answered),
        cmocka_unit_test(a_token_is_redeemed_although_no_new_one_can_be_issued),
        cmocka_unit_test(kept_figures_are_those_of_the_call_before),
        cmocka_unit_test(
            a_lost_write_is_sent_again_after_longer_and_longer_pauses),
        cmocka_unit_test(
            more_waiting_keys_than_a_batch_has_room_for_are_all_answered),
        cmocka_unit_test(a_driver_is_told_when_the_quota_is_due),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
