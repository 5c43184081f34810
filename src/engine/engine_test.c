/*
 * engine_test.c - tests limits, cancelling, closing, threads, drivers and
 * scans.
 */
#include "../../tests/support/rig.h"
#include "inner.h"

#include <idem/idem.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- limits ------------------------------------------------------------- */

static void
a_full_crowd_answers_busy_at_once(void **state)
{
    struct idem_options options = {.max_parked = 3};
    struct idem_op op = op_begin("a");
    struct reply start, replies[5];
    struct rig rig;

    (void)state;
    rig_open(&rig, FAULTY_LOCAL, &options);
    start = ask(rig.engine, &op);
    op = op_wait("a", 60000);
    for (int i = 0; i < 5; i++)
        put(rig.engine, &op, &replies[i]);
    turn(rig.engine);
    assert_false(replies[0].done || replies[1].done || replies[2].done);
    assert_verdict(replies[3], IDEM_V_BUSY);
    assert_verdict(replies[4], IDEM_V_BUSY);
    op = op_finish("a", start.fence, "R");
    ask(rig.engine, &op);
    assert_verdict(replies[2], IDEM_V_REPLAY);
    rig_close(&rig);
}

/* Waiters for one key, or in one scope, do not use the room of others. */
static void
a_crowded_key_and_a_crowded_scope_are_busy_at_once(void **state)
{
    struct idem_options options = {.max_parked_key = 2, .max_parked_scope = 3};
    struct reply start[3], replies[3], key, scope, elsewhere, last;
    struct idem_op op;
    struct rig rig;

    (void)state;
    rig_open(&rig, FAULTY_LOCAL, &options);
    op = op_begin("a");
    start[0] = ask(rig.engine, &op);
    op = op_begin("b");
    start[1] = ask(rig.engine, &op);
    op.scope = idem_text("another");
    start[2] = ask(rig.engine, &op);
    op = op_wait("a", 60000);
    put(rig.engine, &op, &replies[0]);
    put(rig.engine, &op, &replies[1]);
    put(rig.engine, &op, &key);
    turn(rig.engine);
    op = op_wait("b", 60000);
    put(rig.engine, &op, &replies[2]);
    put(rig.engine, &op, &scope);
    op.scope = idem_text("another");
    put(rig.engine, &op, &elsewhere);
    turn(rig.engine);
    assert_false(replies[0].done || replies[1].done || replies[2].done);
    assert_verdict(key, IDEM_V_BUSY);
    assert_verdict(scope, IDEM_V_BUSY);
    assert_false(elsewhere.done);

    /* The next operation takes a place that became free. */
    op = op_finish("a", start[0].fence, "R");
    ask(rig.engine, &op);
    assert_verdict(replies[1], IDEM_V_REPLAY);
    op = op_wait("b", 60000);
    put(rig.engine, &op, &last);
    turn(rig.engine);
    assert_false(last.done);
    op = op_finish("b", start[1].fence, "R");
    ask(rig.engine, &op);
    assert_verdict(last, IDEM_V_REPLAY);
    assert_false(elsewhere.done);
    rig_close(&rig);
    assert_status(elsewhere, IDEM_ERR_CLOSED);
}

static void
a_full_queue_refuses_at_the_door(void **state)
{
    struct idem_options options = {.max_queue = 4, .max_batch = 2};
    struct reply replies[6];
    struct idem__stats stats;
    struct idem_op op = op_begin("a");
    struct rig rig;

    (void)state;
    rig_open(&rig, FAULTY_LOCAL, &options);
    for (int i = 0; i < 6; i++)
        put(rig.engine, &op, &replies[i]);
    assert_false(replies[3].done);
    assert_status(replies[4], IDEM_ERR_OVERLOADED);
    assert_status(replies[5], IDEM_ERR_OVERLOADED);
    assert_true(strlen(replies[5].text) > 0);
    assert_true(idem__engine_turn(rig.engine)); /* two of four */
    assert_true(replies[1].done);
    assert_false(replies[2].done);
    turn(rig.engine);
    assert_verdict(replies[3], IDEM_V_BUSY);
    assert_verdict(ask(rig.engine, &op), IDEM_V_BUSY);
    idem__stats(rig.engine, &stats);
    assert_int_equal(stats.errors[IDEM_ERR_OVERLOADED], 2);
    rig_close(&rig);
}

static void
absurd_options_are_refused(void **state)
{
    struct idem_options bad[] = {
        {.max_batch = 1000000},
        {.max_result = (size_t)IDEM_RESULT_MAX + 1},
        {.poll_ms = -1},
        {.poll_ms = 1000000},
    };
    struct idem_engine *engine = NULL;
    struct idem_error err;

    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        assert_int_equal(idem_open("memory:", &bad[i], &engine, &err),
                         IDEM_ERR_INVALID);
        assert_non_null(strstr(err.text, "out of range"));
    }
    assert_int_equal(idem_open("nosuch:", NULL, &engine, &err),
                     IDEM_ERR_INVALID);
    assert_int_equal(idem_open(NULL, NULL, &engine, &err), IDEM_ERR_INVALID);
    assert_null(engine);
    idem_close(NULL);
}

static void
a_wrong_op_is_refused_at_the_door(void **state)
{
    struct rig *rig = *state;
    struct idem_op op = op_begin("");

    assert_status(ask(rig->engine, &op), IDEM_ERR_INVALID);
    op = op_finish("a", 0, "R");
    assert_status(ask(rig->engine, &op), IDEM_ERR_INVALID);
    op = op_begin("a");
    op.lease_ms = -5;
    assert_status(ask(rig->engine, &op), IDEM_ERR_INVALID);
    assert_int_equal(rig->store->calls, 0);
}

/* ---- cancelling and closing --------------------------------------------- */

static void
a_cancelled_wait_is_answered_and_the_others_wait_on(void **state)
{
    struct rig *rig = *state;
    struct idem_op op = op_begin("a");
    struct reply start, gone, early, other;
    struct idem__stats stats;

    start = ask(rig->engine, &op);
    op = op_wait("a", 60000);
    put(rig->engine, &op, &gone);
    put(rig->engine, &op, &other);
    turn(rig->engine);
    idem_cancel(rig->engine, gone.ticket);
    idem_cancel(rig->engine, 999999);
    turn(rig->engine);
    assert_status(gone, IDEM_ERR_CLOSED);
    assert_false(other.done);
    /* Cancel it while it is still in the queue. */
    put(rig->engine, &op, &early);
    idem_cancel(rig->engine, early.ticket);
    turn(rig->engine);
    assert_status(early, IDEM_ERR_CLOSED);
    op = op_finish("a", start.fence, "R");
    ask(rig->engine, &op);
    assert_verdict(other, IDEM_V_REPLAY);
    idem_cancel(rig->engine, other.ticket); /* too late: no effect */
    turn(rig->engine);
    assert_int_equal(other.times, 1);
    idem__stats(rig->engine, &stats);
    assert_int_equal(stats.parked, 0);
}

static void
closing_commits_what_was_accepted_and_answers_everybody(void **state)
{
    struct rig *rig = *state;
    struct idem_op op = op_begin("a");
    struct reply waiting[3], accepted, seen;
    struct idem_engine *engine;

    engine = rig_engine(rig, FAULTY_LOCAL, NULL, NULL);
    ask(engine, &op);
    op = op_wait("a", 60000);
    for (int i = 0; i < 3; i++)
        put(engine, &op, &waiting[i]);
    turn(engine);
    op = op_begin("b");
    put(engine, &op, &accepted);
    op = op_wait("a", 60000);
    put(engine, &op, &waiting[2 - 2]); /* in the queue when it closes */
    idem_close(engine);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(waiting[i].times, i == 0 ? 2 : 1);
        assert_status(waiting[i], IDEM_ERR_CLOSED);
    }
    assert_verdict(accepted, IDEM_V_STARTED);
    op = op_get("b");
    seen = ask(rig->engine, &op);
    assert_verdict(seen, IDEM_V_RECORD);
    assert_int_equal(seen.fence, accepted.fence);
}

static void *
wait_in_thread(void *engine)
{
    struct idem_op op = op_wait("a", 60000);
    struct idem_answer answer;

    return (void *)(intptr_t)idem_do(engine, &op, &answer, NULL);
}

static void
closing_answers_threads_that_wait(void **state)
{
    struct idem_op op = op_begin("a");
    struct idem_engine *engine;
    struct idem_answer answer;
    struct idem__stats stats;
    pthread_t threads[8];
    void *status;

    (void)state;
    assert_int_equal(idem_open("memory:", NULL, &engine, NULL), IDEM_OK);
    assert_int_equal(idem_do(engine, &op, &answer, NULL), IDEM_OK);
    idem_answer_clear(&answer);
    for (int i = 0; i < 8; i++)
        assert_int_equal(
            pthread_create(&threads[i], NULL, wait_in_thread, engine), 0);
    do
        idem__stats(engine, &stats);
    while (stats.parked < 8);
    idem_close(engine);
    for (int i = 0; i < 8; i++) {
        pthread_join(threads[i], &status);
        assert_int_equal((intptr_t)status, IDEM_ERR_CLOSED);
    }
}

/* ---- many threads ------------------------------------------------------- */

struct party {
    struct idem_engine *engine;
    atomic_int started, replayed, other;
    pthread_barrier_t gate;
};

static void *
one_of_many(void *arg)
{
    struct party *party = arg;
    struct idem_op op = op_wait("a", 60000);
    struct idem_answer answer;
    uint64_t fence;

    pthread_barrier_wait(&party->gate);
    if (idem_do(party->engine, &op, &answer, NULL) != IDEM_OK) {
        atomic_fetch_add(&party->other, 1);
        return NULL;
    }
    fence = answer.record->fence;
    if (answer.verdict == IDEM_V_STARTED) {
        atomic_fetch_add(&party->started, 1);
        idem_answer_clear(&answer);
        op = op_finish("a", fence, "the answer");
        if (idem_do(party->engine, &op, &answer, NULL) != IDEM_OK)
            abort();
    } else if (answer.verdict == IDEM_V_REPLAY &&
               idem__bytes_is(answer.record->result, "the answer")) {
        atomic_fetch_add(&party->replayed, 1);
    } else {
        atomic_fetch_add(&party->other, 1);
    }
    idem_answer_clear(&answer);
    return NULL;
}

static void
a_thousand_duplicates_at_once_are_one_execution(void **state)
{
    int count =
        getenv("IDEM_SANITIZED") && *getenv("IDEM_SANITIZED") ? 200 : 1000;
    pthread_t *threads = calloc((size_t)count, sizeof(*threads));
    pthread_attr_t small;
    struct party party = {.started = 0};

    (void)state;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 256 * 1024);
    assert_int_equal(idem_open("memory:", NULL, &party.engine, NULL), IDEM_OK);
    pthread_barrier_init(&party.gate, NULL, (unsigned)count);
    for (int i = 0; i < count; i++)
        assert_int_equal(
            pthread_create(&threads[i], &small, one_of_many, &party), 0);
    for (int i = 0; i < count; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(party.started, 1);
    assert_int_equal(party.replayed, count - 1);
    assert_int_equal(party.other, 0);
    idem_close(party.engine);
    pthread_barrier_destroy(&party.gate);
    pthread_attr_destroy(&small);
    free(threads);
}

struct nested {
    struct idem_engine *engine;
    enum idem_status do_status, scan_status;
    atomic_int done;
};

static bool
never(void *arg, const struct idem_record *record)
{
    (void)arg;
    (void)record;
    return true;
}

static void
call_from_callback(void *arg, enum idem_status status,
                   const struct idem_answer *answer,
                   const struct idem_error *err)
{
    struct nested *nested = arg;
    struct idem_op op = op_get("a");
    struct idem_cursor cursor = {"0"};
    struct idem_answer inner;

    (void)status;
    (void)answer;
    (void)err;
    nested->do_status = idem_do(nested->engine, &op, &inner, NULL);
    nested->scan_status =
        idem_scan(nested->engine, NULL, &cursor, 10, never, NULL, NULL);
    idem__word_set(&nested->done);
}

static void
a_callback_that_would_wait_gets_an_error_instead(void **state)
{
    struct nested nested = {.do_status = IDEM_OK};
    struct idem_op op = op_begin("a");

    (void)state;
    assert_int_equal(idem_open("memory:", NULL, &nested.engine, NULL), IDEM_OK);
    assert_int_equal(idem_submit(nested.engine, &op, call_from_callback,
                                 &nested, NULL, NULL),
                     IDEM_OK);
    idem__word_wait(&nested.done);
    assert_int_equal(nested.do_status, IDEM_ERR_INVALID);
    assert_int_equal(nested.scan_status, IDEM_ERR_INVALID);
    idem_close(nested.engine);
}

/* ---- driven engines ----------------------------------------------------- */

static void
count_wakes(void *arg)
{
    atomic_fetch_add((atomic_int *)arg, 1);
}

static void *
submit_elsewhere(void *engine)
{
    static struct reply reply;
    struct idem_op op = op_begin("elsewhere");

    put(engine, &op, &reply);
    return &reply;
}

static void
a_driver_is_woken_for_what_comes_from_elsewhere_only(void **state)
{
    atomic_int wakes = 0;
    struct idem__engine_inner inner = {
        .driven = true, .wake = count_wakes, .wake_arg = &wakes};
    struct idem_op op = op_begin("a");
    struct idem_engine *engine;
    struct idem_answer answer;
    struct reply reply;
    pthread_t thread;
    void *theirs;

    (void)state;
    assert_int_equal(idem__engine_open("memory:", NULL, &inner, &engine, NULL),
                     IDEM_OK);
    assert_true(idem__engine_is_local(engine));
    turn(engine);
    put(engine, &op, &reply);
    assert_int_equal(wakes, 0);
    turn(engine);
    assert_verdict(reply, IDEM_V_STARTED);
    pthread_create(&thread, NULL, submit_elsewhere, engine);
    pthread_join(thread, &theirs);
    assert_int_equal(wakes, 1);
    turn(engine);
    assert_verdict(*(struct reply *)theirs, IDEM_V_STARTED);
    /* The driver may also wait: it takes the turns itself. */
    assert_int_equal(idem_do(engine, &op, &answer, NULL), IDEM_OK);
    assert_int_equal(answer.verdict, IDEM_V_BUSY);
    idem_answer_clear(&answer);
    idem_close(engine);
}

/* ---- scans and figures -------------------------------------------------- */

struct listing {
    int seen, stop_after;
};

static bool
count_record(void *arg, const struct idem_record *record)
{
    struct listing *listing = arg;

    assert_int_equal(record->result.len, 0);
    return ++listing->seen != listing->stop_after;
}

static void
a_scan_lists_what_the_filter_lets_through(void **state)
{
    struct idem_filter filter = {.state = IDEM_STATE_SUCCEEDED};
    struct idem_cursor cursor = {"0"};
    struct listing all = {0, 0}, done = {0, 0}, stopped = {0, 1};
    struct idem_error err;
    struct idem_engine *engine;
    struct idem_answer answer;

    (void)state;
    assert_int_equal(idem_open("memory:", NULL, &engine, NULL), IDEM_OK);
    for (int i = 0; i < 300; i++) {
        char id[16];
        struct idem_op op;

        snprintf(id, sizeof(id), "k%d", i);
        op = op_begin(id);
        assert_int_equal(idem_do(engine, &op, &answer, NULL), IDEM_OK);
        op = op_finish(id, answer.record->fence, "a result");
        idem_answer_clear(&answer);
        if (i % 3 != 0)
            continue;
        assert_int_equal(idem_do(engine, &op, &answer, NULL), IDEM_OK);
        idem_answer_clear(&answer);
    }
    do
        assert_int_equal(
            idem_scan(engine, NULL, &cursor, 40, count_record, &all, NULL),
            IDEM_OK);
    while (strcmp(cursor.text, "0") != 0);
    assert_int_equal(all.seen, 300);
    do
        assert_int_equal(
            idem_scan(engine, &filter, &cursor, 40, count_record, &done, NULL),
            IDEM_OK);
    while (strcmp(cursor.text, "0") != 0);
    assert_int_equal(done.seen, 100);
    assert_int_equal(
        idem_scan(engine, NULL, &cursor, 40, count_record, &stopped, NULL),
        IDEM_OK);
    assert_int_equal(stopped.seen, 1);
    snprintf(cursor.text, sizeof(cursor.text), "nonsense");
    assert_int_equal(
        idem_scan(engine, NULL, &cursor, 40, count_record, &all, &err),
        IDEM_ERR_INVALID);
    idem_close(engine);
}

static void
note_figure(void *arg, const char *name, double value)
{
    if (strcmp(name, "memory_records") == 0)
        *(double *)arg = value;
}

static void
figures_come_from_the_store(void **state)
{
    struct idem_op op = op_begin("a");
    struct idem_engine *engine;
    struct idem_answer answer;
    double records = 0;

    (void)state;
    assert_int_equal(idem_open("memory:", NULL, &engine, NULL), IDEM_OK);
    assert_int_equal(idem_do(engine, &op, &answer, NULL), IDEM_OK);
    idem_answer_clear(&answer);
    idem__store_figures(engine, note_figure, &records);
    assert_true(records == 1);
    idem_close(engine);
}

/* ---- what is refused at the door ------------------------------------------
 */

static void
a_scope_may_require_fingerprints(void **state)
{
    static const uint8_t print[IDEM_FINGERPRINT_LEN] = {1};
    static const struct {
        const char *scope;
        bool required;
    } cases[] = {{"shop", true},  {"pay-card", true}, {"pay-", true},
                 {"pay", false},  {"sho", false},     {"shops", false},
                 {"mail", false}, {"z", true}};
    struct idem_options options = {.require_fingerprint = "shop, pay-*,,z "};
    struct idem_op op;
    struct reply reply;
    struct rig rig;

    (void)state;
    rig_open(&rig, FAULTY_LOCAL, &options);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        op = op_begin("a");
        op.scope = idem_text(cases[i].scope);
        reply = ask(rig.engine, &op);
        if (!cases[i].required) {
            assert_verdict(reply, IDEM_V_STARTED);
            continue;
        }
        assert_status(reply, IDEM_ERR_INVALID);
        assert_non_null(strstr(reply.text, "requires a fingerprint"));
        op.verb = IDEM_GET; /* only a start needs one */
        assert_verdict(ask(rig.engine, &op), IDEM_V_ABSENT);
        op.verb = IDEM_BEGIN;
        op.fingerprint = print;
        assert_verdict(ask(rig.engine, &op), IDEM_V_STARTED);
    }
    rig_close(&rig);
}

static void
a_store_that_may_forget_refuses_what_never_runs_twice(void **state)
{
    struct idem_op op = op_begin("a");
    struct reply reply;
    struct rig rig;

    (void)state;
    rig_open(&rig, FAULTY_REMOTE, NULL);
    rig.store->base.forgets = true;
    reply = ask(rig.engine, &op);
    assert_status(reply, IDEM_ERR_UNSUPPORTED);
    assert_non_null(strstr(reply.text, "strict requests: make them loose"));
    op.mode = IDEM_LOOSE;
    assert_verdict(ask(rig.engine, &op), IDEM_V_STARTED);
    op = op_begin("b");
    op.verb = IDEM_SETTLE;
    reply = ask(rig.engine, &op);
    assert_status(reply, IDEM_ERR_UNSUPPORTED);
    assert_non_null(strstr(reply.text, "refuses SETTLE: use a store"));
    op = op_lock("w", "me", 0);
    assert_verdict(ask(rig.engine, &op), IDEM_V_STARTED);
    op.type = IDEM_TYPE_WORKER;
    reply = ask(rig.engine, &op);
    assert_status(reply, IDEM_ERR_UNSUPPORTED);
    assert_non_null(strstr(reply.text, "refuses ids: use a store"));
    rig_close(&rig);
}

static void
a_result_that_is_too_large_is_dropped_and_a_note_refused(void **state)
{
    static char large[3000];
    struct idem_options options = {.max_result = 2000};
    struct idem_op op = op_begin("a");
    struct reply reply;
    struct rig rig;

    (void)state;
    rig_open(&rig, FAULTY_LOCAL, &options);
    memset(large, 'x', sizeof(large));
    op.verb = IDEM_SETTLE;
    op.outcome = IDEM_STATE_SUCCEEDED;
    op.result = (struct idem_bytes){large, sizeof(large)};
    assert_verdict(ask(rig.engine, &op), IDEM_V_SETTLED);
    op = op_begin("a");
    reply = ask(rig.engine, &op);
    assert_verdict(reply, IDEM_V_REPLAY);
    assert_string_equal(reply.result, "");
    op = op_lock("l", "me", 0);
    op.result = (struct idem_bytes){large, sizeof(large)};
    reply = ask(rig.engine, &op);
    assert_status(reply, IDEM_ERR_INVALID);
    assert_non_null(strstr(reply.text, "a note of 3000 bytes is too large"));
    rig_close(&rig);
}

static void
a_server_cannot_be_driven(void **state)
{
    struct idem__engine_inner inner = {.driven = true};
    struct idem_engine *engine = NULL;
    struct idem_error err;

    (void)state;
    assert_int_equal(
        idem__engine_open("idem+unix:/nowhere", NULL, &inner, &engine, &err),
        IDEM_ERR_INVALID);
    assert_non_null(strstr(err.text, "cannot be driven"));
    assert_null(engine);
}

/* ---- drivers that wait ----------------------------------------------------
 */

static void
a_driver_that_waits_takes_turns_until_its_wait_is_over(void **state)
{
    struct idem__engine_inner inner = {.driven = true};
    struct idem_op op = op_begin("a");
    struct idem_engine *engine;
    struct idem_answer answer;
    int64_t began_us = idem__system_boot_us();

    (void)state;
    assert_int_equal(idem__engine_open("memory:", NULL, &inner, &engine, NULL),
                     IDEM_OK);
    turn(engine);
    assert_int_equal(idem_do(engine, &op, &answer, NULL), IDEM_OK);
    idem_answer_clear(&answer);
    op = op_wait("a", 30);
    assert_int_equal(idem_do(engine, &op, &answer, NULL), IDEM_OK);
    assert_int_equal(answer.verdict, IDEM_V_BUSY);
    assert_true(idem__system_boot_us() - began_us >= 30000);
    idem_answer_clear(&answer);
    idem_close(engine);
}

struct rude {
    struct idem_engine *engine;
    enum idem_status done, scanned;
};

static void
wait_in_a_callback(void *arg, enum idem_status status,
                   const struct idem_answer *answer,
                   const struct idem_error *err)
{
    struct rude *rude = arg;
    struct idem_cursor cursor = {"0"};
    struct listing none = {0, 0};
    struct idem_op op = op_get("b");
    struct idem_answer mine;

    (void)answer;
    (void)err;
    assert_int_equal(status, IDEM_OK);
    rude->done = idem_do(rude->engine, &op, &mine, NULL);
    rude->scanned =
        idem_scan(rude->engine, NULL, &cursor, 10, count_record, &none, NULL);
}

static void
a_callback_of_a_driver_must_not_wait_either(void **state)
{
    struct rude rude = {.done = IDEM_OK};
    struct idem_op op = op_begin("a");
    struct rig rig;

    (void)state;
    rig_open(&rig, FAULTY_LOCAL, NULL);
    turn(rig.engine);
    rude.engine = rig.engine;
    assert_int_equal(
        idem_submit(rig.engine, &op, wait_in_a_callback, &rude, NULL, NULL),
        IDEM_OK);
    turn(rig.engine);
    assert_int_equal(rude.done, IDEM_ERR_INVALID);
    assert_int_equal(rude.scanned, IDEM_ERR_INVALID);
    rig_close(&rig);
}

/* ---- lists ----------------------------------------------------------------
 */

struct waiters {
    enum idem_status status;
    size_t count;
    char owners[8][8];
    int64_t began_ms, waits_ms;
};

static void
note_waiters(void *arg, enum idem_status status,
             const struct idem_record *records, size_t count,
             const struct idem_cursor *next, const struct idem_error *err)
{
    struct waiters *waiters = arg;

    (void)err;
    waiters->status = status;
    waiters->count = count;
    assert_string_equal(next->text, "0");
    for (size_t i = 0; i < count; i++) {
        snprintf(waiters->owners[i], sizeof(waiters->owners[i]), "%.*s",
                 (int)records[i].subject.len,
                 (const char *)records[i].subject.data);
        assert_memory_equal(records[i].id.data, "l", 1);
        waiters->began_ms = records[i].created;
        waiters->waits_ms = records[i].expires - records[i].created;
    }
}

static void
those_who_wait_for_a_lock_are_listed_in_their_order(void **state)
{
    static const char *const owners[] = {"o1", "o2", "o3"};
    struct reply replies[4];
    struct waiters waiters;
    struct idem__stats stats;
    struct idem_op op;
    struct rig rig;

    (void)state;
    rig_open(&rig, FAULTY_LOCAL, NULL);
    op = op_lock("l", "holder", 0);
    assert_verdict(ask(rig.engine, &op), IDEM_V_STARTED);
    op = op_begin("a");
    assert_verdict(ask(rig.engine, &op), IDEM_V_STARTED);
    op = op_wait("a", 60000); /* waits, but not for a lock */
    put(rig.engine, &op, &replies[3]);
    for (int i = 0; i < 3; i++) {
        op = op_lock("l", owners[i], 60000);
        put(rig.engine, &op, &replies[i]);
    }
    turn(rig.engine);
    idem__stats(rig.engine, &stats);
    assert_int_equal(stats.locks_waiting, 3);
    test_clocks_pass(&rig.clocks, 5000);
    for (size_t most = 1; most <= 10; most += 1) {
        memset(&waiters, 0, sizeof(waiters));
        assert_int_equal(idem__waiters_submit(rig.engine, most, note_waiters,
                                              &waiters, NULL),
                         IDEM_OK);
        turn(rig.engine);
        assert_int_equal(waiters.status, IDEM_OK);
        assert_int_equal(waiters.count, most < 3 ? most : 3);
        for (size_t i = 0; i < waiters.count; i++)
            assert_string_equal(waiters.owners[i], owners[i]);
        assert_int_equal(waiters.waits_ms, 60000);
        idem__stats(rig.engine, &stats);
        assert_int_equal(stats.now_ms - waiters.began_ms, 5000);
    }
    rig_close(&rig);
}

static void
a_scan_without_a_cursor_begins_at_the_start(void **state)
{
    struct idem_filter wrong = {0};
    struct idem_cursor cursor = {""};
    struct listing all = {0, 0};
    struct idem_op op = op_begin("a");
    struct rig rig;

    (void)state;
    rig_open(&rig, FAULTY_LOCAL, NULL);
    turn(rig.engine);
    assert_verdict(ask(rig.engine, &op), IDEM_V_STARTED);
    assert_int_equal(
        idem_scan(rig.engine, NULL, &cursor, 1000000, count_record, &all, NULL),
        IDEM_OK);
    assert_int_equal(all.seen, 1);
    assert_string_equal(cursor.text, "0");
    wrong.room[0] = 1; /* a member that a newer program knows */
    assert_int_equal(
        idem_scan(rig.engine, &wrong, &cursor, 10, count_record, &all, NULL),
        IDEM_ERR_UNSUPPORTED);
    rig_close(&rig);
}

struct figures {
    double started, invalid, batches, writes, now_ms, records;
    int count;
};

static void
note_all_figures(void *arg, const char *name, double value)
{
    struct figures *figures = arg;
    struct {
        const char *name;
        double *to;
    } wanted[] = {{"verdict_started", &figures->started},
                  {"error_invalid", &figures->invalid},
                  {"batches", &figures->batches},
                  {"batched_writes", &figures->writes},
                  {"now_ms", &figures->now_ms},
                  {"memory_records", &figures->records}};

    figures->count++;
    for (size_t i = 0; i < sizeof(wanted) / sizeof(wanted[0]); i++) {
        if (strcmp(name, wanted[i].name) == 0)
            *wanted[i].to = value;
    }
}

static void
figures_count_verdicts_errors_and_batches(void **state)
{
    struct figures figures = {0};
    struct idem_op op = op_begin("a");
    struct idem_engine *engine;
    struct idem_answer answer;

    (void)state;
    assert_int_equal(idem_version_number(), IDEM_VERSION_NUMBER);
    assert_string_equal(idem_version(), IDEM_VERSION);
    assert_int_equal(idem_open("memory:", NULL, &engine, NULL), IDEM_OK);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(idem_do(engine, &op, &answer, NULL), IDEM_OK);
        idem_answer_clear(&answer);
        op = op_begin("b");
    }
    op.id.len = 0;
    assert_int_equal(idem_do(engine, &op, &answer, NULL), IDEM_ERR_INVALID);
    idem_figures(engine, note_all_figures, &figures);
    assert_true(figures.started == 2 && figures.invalid == 1);
    assert_true(figures.batches == 2 && figures.writes == 2);
    assert_true(figures.records == 2);
    assert_true(figures.now_ms > 1.6e12);
    assert_true(figures.count >= IDEM__VERDICT_COUNT + IDEM__STATUS_COUNT);
    idem_close(engine);
}

static void
a_store_whose_records_are_too_short_for_a_result_keeps_none(void **state)
{
    struct idem__stats stats;
    struct idem_op op = op_begin("a");
    struct reply got;
    struct rig rig;

    (void)state;
    rig_open(&rig, FAULTY_LOCAL, NULL);
    rig.store->base.max_record = 10;
    idem__stats(rig.engine, &stats);
    assert_int_equal(stats.max_result, 0);
    got = ask(rig.engine, &op);
    op = op_finish("a", got.fence, "R");
    assert_verdict(ask(rig.engine, &op), IDEM_V_OK);
    op = op_begin("a");
    got = ask(rig.engine, &op);
    assert_verdict(got, IDEM_V_REPLAY);
    assert_string_equal(got.result, "");
    rig_close(&rig);
}

static void
a_store_without_figures_tells_none(void **state)
{
    struct figures figures = {0};
    struct idem_op op = op_begin("a");
    struct rig rig;

    (void)state;
    rig_open(&rig, FAULTY_LOCAL, NULL);
    assert_verdict(ask(rig.engine, &op), IDEM_V_STARTED);
    idem_figures(rig.engine, note_all_figures, &figures);
    assert_true(figures.started == 1);
    assert_true(figures.records == 0);
    figures.count = 0;
    idem__store_figures(rig.engine, note_all_figures, &figures);
    assert_int_equal(figures.count, 0);
    rig_close(&rig);
}

static void
what_was_accepted_is_done_before_the_engine_closes(void **state)
{
    enum { COUNT = 50 };
    struct idem_options options = {.max_batch = 4};
    static struct reply replies[COUNT];
    static char ids[COUNT][8];
    struct idem_op op;
    struct rig rig;

    (void)state;
    rig_open(&rig, FAULTY_LOCAL, &options);
    for (int i = 0; i < COUNT; i++) {
        snprintf(ids[i], sizeof(ids[i]), "k%d", i);
        op = op_begin(ids[i]);
        put(rig.engine, &op, &replies[i]);
        assert_false(replies[i].done);
    }
    rig_close(&rig);
    for (int i = 0; i < COUNT; i++)
        assert_verdict(replies[i], IDEM_V_STARTED);
}

static void
only_an_engine_with_a_store_knows_who_waits(void **state)
{
    static struct idem_engine behind_a_server;
    struct idem_error err;

    (void)state;
    assert_int_equal(
        idem__waiters_submit(&behind_a_server, 10, NULL, NULL, &err),
        IDEM_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "only the server"));
}

static void
the_queue_has_a_limit_of_bytes(void **state)
{
    struct idem_op op = op_begin("a");
    struct reply refused;
    struct rig rig;

    (void)state;
    rig_open(&rig, FAULTY_LOCAL, NULL);
    /* As if large results waited. */
    rig.engine->queue.bytes += (size_t)256 * 1024 * 1024 + 1;
    refused = ask(rig.engine, &op);
    assert_status(refused, IDEM_ERR_OVERLOADED);
    assert_non_null(strstr(refused.text, "too many operations"));
    rig.engine->queue.bytes -= (size_t)256 * 1024 * 1024 + 1;
    assert_verdict(ask(rig.engine, &op), IDEM_V_STARTED);
    rig_close(&rig);
}

static void
a_scan_of_no_or_very_many_records_has_a_sensible_size(void **state)
{
    static const size_t counts[] = {0, 1, 100000};
    static const int seen[] = {1, 1, 3};
    struct rig rig;

    (void)state;
    rig_open(&rig, FAULTY_LOCAL, NULL);
    for (int i = 0; i < 3; i++) {
        struct idem_op op = op_begin(i == 0 ? "a" : i == 1 ? "b" : "c");

        assert_verdict(ask(rig.engine, &op), IDEM_V_STARTED);
    }
    for (int i = 0; i < 3; i++) {
        struct idem_cursor cursor = {"0"};
        struct listing listing = {0, 0};

        assert_int_equal(idem_scan(rig.engine, NULL, &cursor, counts[i],
                                   count_record, &listing, NULL),
                         IDEM_OK);
        assert_in_range(listing.seen, 1, seen[i]);
        assert_true(i < 2 || listing.seen == 3);
    }
    rig_close(&rig);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_scope_may_require_fingerprints),
        cmocka_unit_test(a_store_that_may_forget_refuses_what_never_runs_twice),
        cmocka_unit_test(
            a_result_that_is_too_large_is_dropped_and_a_note_refused),
        cmocka_unit_test(a_server_cannot_be_driven),
        cmocka_unit_test(
            a_driver_that_waits_takes_turns_until_its_wait_is_over),
        cmocka_unit_test(a_callback_of_a_driver_must_not_wait_either),
        cmocka_unit_test(those_who_wait_for_a_lock_are_listed_in_their_order),
        cmocka_unit_test(a_scan_without_a_cursor_begins_at_the_start),
        cmocka_unit_test(figures_count_verdicts_errors_and_batches),
        cmocka_unit_test(a_full_crowd_answers_busy_at_once),
        cmocka_unit_test(a_crowded_key_and_a_crowded_scope_are_busy_at_once),
        cmocka_unit_test(a_full_queue_refuses_at_the_door),
        cmocka_unit_test(absurd_options_are_refused),
        rig_test(a_wrong_op_is_refused_at_the_door, FAULTY_LOCAL),
        rig_test(a_cancelled_wait_is_answered_and_the_others_wait_on,
                 FAULTY_LOCAL),
        rig_test(closing_commits_what_was_accepted_and_answers_everybody,
                 FAULTY_LOCAL),
        cmocka_unit_test(closing_answers_threads_that_wait),
        cmocka_unit_test(a_thousand_duplicates_at_once_are_one_execution),
        cmocka_unit_test(a_callback_that_would_wait_gets_an_error_instead),
        cmocka_unit_test(a_driver_is_woken_for_what_comes_from_elsewhere_only),
        cmocka_unit_test(a_scan_lists_what_the_filter_lets_through),
        cmocka_unit_test(figures_come_from_the_store),
        cmocka_unit_test(
            a_store_whose_records_are_too_short_for_a_result_keeps_none),
        cmocka_unit_test(a_store_without_figures_tells_none),
        cmocka_unit_test(what_was_accepted_is_done_before_the_engine_closes),
        cmocka_unit_test(only_an_engine_with_a_store_knows_who_waits),
        cmocka_unit_test(the_queue_has_a_limit_of_bytes),
        cmocka_unit_test(a_scan_of_no_or_very_many_records_has_a_sensible_size),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
