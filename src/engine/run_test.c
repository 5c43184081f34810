/*
 * run_test.c - tests that idem_run runs work once, whatever fails around it.
 * Waits more than it works.
 */
#include "../../tests/support/rig.h"
#include "../../tests/support/stores.h"
#include "inner.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

static void
sleep_ms(long ms)
{
    nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000}, NULL);
}

/* A threaded engine on a store that can be made to fail. */
struct stage {
    struct faulty_store *store;
    struct idem_engine *engine;
};

static void
open_stage(struct stage *stage, enum faulty_kind kind)
{
    struct idem__engine_inner inner = {.hasty = true};
    struct idem_store *memory;

    assert_int_equal(idem__store_open("memory:", NULL, &memory, NULL), IDEM_OK);
    stage->store = faulty_open(kind, memory, NULL);
    inner.store = &stage->store->base;
    assert_int_equal(
        idem__engine_open(NULL, NULL, &inner, &stage->engine, NULL), IDEM_OK);
}

static int
stage_setup(void **state)
{
    struct stage *stage = malloc(sizeof(*stage));

    if (!stage)
        return -1;
    open_stage(stage, FAULTY_LOCAL);
    *state = stage;
    return 0;
}

static int
stage_teardown(void **state)
{
    struct stage *stage = *state;

    idem_close(stage->engine);
    free(stage);
    return 0;
}

#define stage_test(test)                                                       \
    cmocka_unit_test_setup_teardown(test, stage_setup, stage_teardown)

struct work {
    struct stage *stage;
    int runs;
    pthread_t *visitor; /* the work lasts until this thread has its answer */
    enum idem_state outcome;
    const char *result;
    /* How the store fails while the work runs. */
    enum fault fault;
    int fault_count;
    struct idem_op meddle;
};

static enum idem_state
do_work(void *arg, uint64_t fence, struct idem_bytes *result)
{
    struct work *work = arg;
    struct idem_answer answer;

    assert_true(fence > 0);
    work->runs++;
    if (work->visitor)
        pthread_join(*work->visitor, NULL);
    if (work->fault != FAULT_NONE)
        faulty_plan(work->stage->store, work->fault, 0, work->fault_count);
    if (work->meddle.scope.len > 0) {
        assert_int_equal(
            idem_do(work->stage->engine, &work->meddle, &answer, NULL),
            IDEM_OK);
        idem_answer_clear(&answer);
    }
    *result = idem_text(work->result);
    return work->outcome;
}

static enum idem_status
run(struct stage *stage, struct work *work, enum idem_mode mode,
    int64_t lease_ms, struct reply *reply)
{
    struct idem_op op = op_begin("job");
    struct idem_answer answer = {0};
    struct idem_error err = {IDEM_OK, ""};

    op.mode = mode;
    op.lease_ms = lease_ms;
    work->stage = stage;
    memset(reply, 0, sizeof(*reply));
    reply->status = idem_run(stage->engine, &op, do_work, work, &answer, &err);
    reply->done = true;
    snprintf(reply->text, sizeof(reply->text), "%s", err.text);
    if (reply->status != IDEM_OK)
        return reply->status;
    reply->verdict = answer.verdict;
    reply->state = answer.record->state;
    reply->fence = answer.record->fence;
    snprintf(reply->result, sizeof(reply->result), "%.*s",
             (int)answer.record->result.len,
             (const char *)answer.record->result.data);
    idem_answer_clear(&answer);
    return IDEM_OK;
}

static void
a_run_happens_once_and_is_replayed(void **state)
{
    struct stage *stage = *state;
    struct work work = {.outcome = IDEM_STATE_SUCCEEDED, .result = "done"};
    struct reply reply;

    run(stage, &work, IDEM_STRICT, 0, &reply);
    assert_verdict(reply, IDEM_V_STARTED);
    assert_int_equal(reply.state, IDEM_STATE_SUCCEEDED);
    assert_string_equal(reply.result, "done");
    for (int i = 0; i < 3; i++) {
        run(stage, &work, IDEM_STRICT, 0, &reply);
        assert_verdict(reply, IDEM_V_REPLAY);
        assert_string_equal(reply.result, "done");
    }
    assert_int_equal(work.runs, 1);
}

static void
a_strict_failure_is_an_answer_and_replayed(void **state)
{
    struct stage *stage = *state;
    struct work work = {.outcome = IDEM_STATE_FAILED, .result = "no money"};
    struct reply reply;

    run(stage, &work, IDEM_STRICT, 0, &reply);
    assert_verdict(reply, IDEM_V_STARTED);
    assert_int_equal(reply.state, IDEM_STATE_FAILED);
    run(stage, &work, IDEM_STRICT, 0, &reply);
    assert_verdict(reply, IDEM_V_REPLAY);
    assert_int_equal(reply.state, IDEM_STATE_FAILED);
    assert_string_equal(reply.result, "no money");
    assert_int_equal(work.runs, 1);
}

static void
a_loose_failure_may_be_tried_again(void **state)
{
    struct stage *stage = *state;
    struct work work = {.outcome = IDEM_STATE_FAILED, .result = "no money"};
    struct reply first, second;

    run(stage, &work, IDEM_LOOSE, 0, &first);
    assert_verdict(first, IDEM_V_STARTED);
    assert_int_equal(first.state, IDEM_STATE_FAILED);
    assert_string_equal(first.result, "no money");
    work.outcome = IDEM_STATE_SUCCEEDED;
    work.result = "paid";
    run(stage, &work, IDEM_LOOSE, 0, &second);
    assert_verdict(second, IDEM_V_STARTED);
    assert_string_equal(second.result, "paid");
    assert_true(second.fence > first.fence);
    run(stage, &work, IDEM_LOOSE, 0, &second);
    assert_verdict(second, IDEM_V_REPLAY);
    assert_int_equal(work.runs, 2);
}

static void
work_that_did_not_happen_frees_the_record_in_both_modes(void **state)
{
    (void)state;
    for (int mode = IDEM_STRICT; mode <= IDEM_LOOSE; mode++) {
        struct work work = {.outcome = IDEM_STATE_FREE, .result = ""};
        struct stage stage;
        struct reply reply;

        open_stage(&stage, FAULTY_LOCAL);
        run(&stage, &work, (enum idem_mode)mode, 0, &reply);
        assert_verdict(reply, IDEM_V_STARTED);
        assert_int_equal(reply.state, IDEM_STATE_FREE);
        run(&stage, &work, (enum idem_mode)mode, 0, &reply);
        assert_int_equal(work.runs, 2);
        idem_close(stage.engine);
    }
}

struct visitor {
    struct idem_engine *engine;
    long after_ms;
    int64_t wait_ms;
    struct idem_answer answer;
    enum idem_status status;
};

static void *
visit(void *arg)
{
    struct visitor *visitor = arg;
    struct idem_op op = op_wait("job", visitor->wait_ms);

    sleep_ms(visitor->after_ms);
    visitor->status = idem_do(visitor->engine, &op, &visitor->answer, NULL);
    return NULL;
}

static void
long_work_keeps_its_lease_alive(void **state)
{
    struct stage *stage = *state;
    struct work work = {.outcome = IDEM_STATE_SUCCEEDED, .result = "done"};
    struct visitor busy = {.after_ms = 6000},
                   patient = {.after_ms = 300, .wait_ms = 60000};
    pthread_t one, two;
    struct reply reply;

    busy.engine = patient.engine = stage->engine;
    pthread_create(&one, NULL, visit, &busy);
    pthread_create(&two, NULL, visit, &patient);
    work.visitor = &one;
    /* Longer than the lease, which is long enough for a machine that stalls. */
    run(stage, &work, IDEM_STRICT, 5000, &reply);
    pthread_join(two, NULL);
    assert_verdict(reply, IDEM_V_STARTED);
    assert_int_equal(busy.status, IDEM_OK);
    assert_int_equal(busy.answer.verdict, IDEM_V_BUSY);
    assert_int_equal(patient.status, IDEM_OK);
    assert_int_equal(patient.answer.verdict, IDEM_V_REPLAY);
    idem_answer_clear(&busy.answer);
    idem_answer_clear(&patient.answer);
}

static void
a_begin_whose_answer_is_lost_runs_once_all_the_same(void **state)
{
    static const enum fault faults[] = {FAULT_LOST_APPLIED, FAULT_LOST_NOT};

    (void)state;
    for (int i = 0; i < 2; i++) {
        struct work work = {.outcome = IDEM_STATE_SUCCEEDED, .result = "done"};
        struct stage stage;
        struct reply reply;

        open_stage(&stage, FAULTY_LOCAL);
        faulty_plan(stage.store, faults[i], 0, 8); /* more than are retried */
        run(&stage, &work, IDEM_STRICT, 0, &reply);
        assert_verdict(reply, IDEM_V_STARTED);
        run(&stage, &work, IDEM_STRICT, 0, &reply);
        assert_verdict(reply, IDEM_V_REPLAY);
        assert_int_equal(work.runs, 1);
        idem_close(stage.engine);
    }
}

/* The first eight replies are lost, then the row is locked for longer than an
 * op waits for that. */
static void
lost_and_then_locked(void *arg, struct faulty_store *store)
{
    (void)arg;
    if (atomic_load(&store->swaps) == 9)
        faulty_plan(store, FAULT_LOCKED, 0, 16);
}

static void
a_lost_begin_whose_row_is_still_held_runs_all_the_same(void **state)
{
    struct stage *stage = *state;
    struct work work = {.outcome = IDEM_STATE_SUCCEEDED, .result = "done"};
    struct reply reply;

    faulty_plan(stage->store, FAULT_LOST_NOT, 0, 8);
    stage->store->before_swap = lost_and_then_locked;
    run(stage, &work, IDEM_STRICT, 0, &reply);
    assert_verdict(reply, IDEM_V_STARTED);
    assert_int_equal(work.runs, 1);
}

static void
a_store_that_is_away_at_the_start_runs_nothing(void **state)
{
    struct stage *stage = *state;
    struct work work = {.outcome = IDEM_STATE_SUCCEEDED, .result = "done"};
    struct reply reply;

    faulty_plan(stage->store, FAULT_UNAVAILABLE, 0, 1);
    assert_int_equal(run(stage, &work, IDEM_STRICT, 0, &reply),
                     IDEM_ERR_UNAVAILABLE);
    assert_int_equal(work.runs, 0);
}

static void
a_finish_is_sent_until_it_is_taken(void **state)
{
    static const enum fault faults[] = {FAULT_UNAVAILABLE, FAULT_FULL,
                                        FAULT_LOST_APPLIED, FAULT_LOST_NOT,
                                        FAULT_LOCKED};

    (void)state;
    for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++) {
        struct work work = {.outcome = IDEM_STATE_SUCCEEDED,
                            .result = "done",
                            .fault = faults[i],
                            .fault_count = 7};
        struct stage stage;
        struct reply reply;

        open_stage(&stage, FAULTY_LOCAL);
        run(&stage, &work, IDEM_STRICT, 20000, &reply);
        assert_verdict(reply, IDEM_V_STARTED);
        assert_string_equal(reply.result, "done");
        run(&stage, &work, IDEM_STRICT, 0, &reply);
        assert_verdict(reply, IDEM_V_REPLAY);
        assert_int_equal(work.runs, 1);
        idem_close(stage.engine);
    }
}

static void
an_outcome_that_cannot_be_recorded_is_said_to_be_lost(void **state)
{
    struct stage *stage = *state;
    struct work work = {.outcome = IDEM_STATE_SUCCEEDED,
                        .result = "done",
                        .fault = FAULT_UNAVAILABLE,
                        .fault_count = 1000000};
    struct reply reply;

    assert_int_equal(run(stage, &work, IDEM_STRICT, 300, &reply),
                     IDEM_ERR_LOST);
    assert_non_null(strstr(reply.text, "the work was done"));
    faulty_plan(stage->store, FAULT_NONE, 0, 0);
    sleep_ms(400);
    run(stage, &work, IDEM_STRICT, 300, &reply);
    assert_verdict(reply, IDEM_V_DOUBT);
    assert_int_equal(work.runs, 1);
}

/* "is not" only if no try was lost. */
static void
the_reason_says_whether_the_outcome_may_be_recorded(void **state)
{
    static const struct {
        enum fault fault;
        const char *text;
    } cases[] = {
        {FAULT_LOCKED, "but is not recorded"},
        {FAULT_FULL, "but is not recorded"},
        {FAULT_LOST_NOT, "but may not be recorded"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct work work = {.outcome = IDEM_STATE_SUCCEEDED,
                            .result = "done",
                            .fault = cases[i].fault,
                            .fault_count = 1000000};
        struct stage stage;
        struct reply reply;

        open_stage(&stage, FAULTY_LOCAL);
        assert_int_equal(run(&stage, &work, IDEM_STRICT, 1000, &reply),
                         IDEM_ERR_LOST);
        if (!strstr(reply.text, cases[i].text))
            fail_msg("%s", reply.text);
        assert_int_equal(work.runs, 1);
        faulty_plan(stage.store, FAULT_NONE, 0, 0);
        idem_close(stage.engine);
    }
}

static void
a_begin_that_stays_lost_runs_nothing(void **state)
{
    struct stage *stage = *state;
    struct work work = {.outcome = IDEM_STATE_SUCCEEDED, .result = "done"};
    struct reply reply;

    faulty_plan(stage->store, FAULT_LOST_NOT, 0, 1000000);
    assert_int_equal(run(stage, &work, IDEM_STRICT, 0, &reply), IDEM_ERR_LOST);
    assert_non_null(strstr(reply.text, "nothing was run"));
    assert_int_equal(work.runs, 0);
    faulty_plan(stage->store, FAULT_NONE, 0, 0);
    run(stage, &work, IDEM_STRICT, 0, &reply);
    assert_verdict(reply, IDEM_V_STARTED);
    assert_int_equal(work.runs, 1);
}

/* The lease of the claim is no longer renewed. */
static void
work_that_cannot_tell_its_outcome_leaves_its_claim(void **state)
{
    struct stage *stage = *state;
    struct work work = {.outcome = IDEM_STATE_EXECUTING, .result = ""};
    struct reply reply;

    run(stage, &work, IDEM_STRICT, 500, &reply);
    assert_verdict(reply, IDEM_V_STARTED);
    assert_int_equal(reply.state, IDEM_STATE_EXECUTING);
    sleep_ms(700);
    run(stage, &work, IDEM_STRICT, 500, &reply);
    assert_verdict(reply, IDEM_V_DOUBT);
    assert_int_equal(work.runs, 1);
}

/* A caller that sends a nonce recognises its own claim with it. */
static void
a_run_keeps_the_nonce_of_its_caller(void **state)
{
    static const uint8_t nonce[IDEM_NONCE_LEN] = {1, 2, 3};
    struct stage *stage = *state;
    struct work work = {
        .outcome = IDEM_STATE_EXECUTING, .result = "", .stage = stage};
    struct idem_op op = op_begin("job");
    struct idem_answer answer = {0};
    uint64_t fence;

    op.nonce = nonce;
    op.lease_ms = 60000;
    assert_int_equal(
        idem_run(stage->engine, &op, do_work, &work, &answer, NULL), IDEM_OK);
    assert_int_equal(answer.verdict, IDEM_V_STARTED);
    fence = answer.record->fence;
    idem_answer_clear(&answer);
    assert_int_equal(idem_do(stage->engine, &op, &answer, NULL), IDEM_OK);
    assert_int_equal(answer.verdict, IDEM_V_STARTED); /* its own */
    assert_int_equal(answer.record->fence, fence);
    idem_answer_clear(&answer);
    op.nonce = NULL;
    assert_int_equal(idem_do(stage->engine, &op, &answer, NULL), IDEM_OK);
    assert_int_equal(answer.verdict, IDEM_V_BUSY);
    idem_answer_clear(&answer);
}

static void
a_run_that_was_taken_over_is_told(void **state)
{
    struct stage *stage = *state;
    struct work work = {.outcome = IDEM_STATE_SUCCEEDED, .result = "done"};
    struct reply reply;

    work.meddle = op_get("job");
    work.meddle.verb = IDEM_FORGET;
    run(stage, &work, IDEM_LOOSE, 0, &reply);
    assert_verdict(reply, IDEM_V_STALE);
}

struct ending {
    atomic_int calls;
    enum idem_status status;
    enum idem_verdict verdict;
};

static void
note_end(void *arg, enum idem_status status, const struct idem_answer *answer,
         const struct idem_error *err)
{
    struct ending *ending = arg;

    (void)err;
    ending->status = status;
    ending->verdict = status == IDEM_OK ? answer->verdict : IDEM_V_BUSY;
    atomic_fetch_add(&ending->calls, 1);
}

/* The run lasts longer than its lease, which is long enough for a machine that
 * stalls. */
#define END_LEASE_MS 4000

static struct idem__run *
begin_run(struct stage *stage)
{
    struct idem_op op = op_begin("job");
    struct idem_answer answer = {0};
    struct idem__run *run;

    op.lease_ms = END_LEASE_MS;
    assert_int_equal(idem__run_begin(stage->engine, &op, &run, &answer, NULL),
                     IDEM_OK);
    assert_non_null(run);
    idem_answer_clear(&answer);
    return run;
}

/* Submit the end of the run, and wait for the callback. */
static void
submit_end(struct stage *stage, struct idem__run *run, enum fault fault,
           struct ending *ending)
{
    faulty_plan(stage->store, fault, 0, 1000);
    assert_int_equal(idem__run_submit_end(run, IDEM_STATE_SUCCEEDED,
                                          idem_text("done"), note_end, ending,
                                          NULL),
                     IDEM_OK);
    while (!atomic_load(&ending->calls))
        sleep_ms(1);
    faulty_plan(stage->store, FAULT_NONE, 0, 0);
}

static void
an_end_that_is_not_waited_for_is_told(void **state)
{
    struct stage *stage = *state;
    struct ending ending = {0};
    struct work work = {.outcome = IDEM_STATE_SUCCEEDED, .result = "again"};
    struct idem__run *begun;
    struct reply reply;

    begun = begin_run(stage);
    sleep_ms(END_LEASE_MS + 300);
    submit_end(stage, begun, FAULT_NONE, &ending);
    assert_int_equal(ending.status, IDEM_OK);
    assert_int_equal(ending.verdict, IDEM_V_OK);
    run(stage, &work, IDEM_STRICT, 0, &reply);
    assert_verdict(reply, IDEM_V_REPLAY);
    assert_string_equal(reply.result, "done");
    assert_int_equal(ending.calls, 1);
}

static void
an_end_that_failed_can_be_told_again(void **state)
{
    static const enum fault faults[] = {FAULT_UNAVAILABLE, FAULT_LOST_NOT,
                                        FAULT_LOCKED};
    enum { COUNT = sizeof(faults) / sizeof(faults[0]) };
    struct stage stages[COUNT];
    struct idem__run *begun[COUNT];

    (void)state;
    for (size_t i = 0; i < COUNT; i++) {
        open_stage(&stages[i], FAULTY_LOCAL);
        begun[i] = begin_run(&stages[i]);
    }
    sleep_ms(END_LEASE_MS + 300);
    for (size_t i = 0; i < COUNT; i++) {
        struct ending ending = {0};

        submit_end(&stages[i], begun[i], faults[i], &ending);
        assert_true(ending.status != IDEM_OK || ending.verdict == IDEM_V_BUSY);
    }
    sleep_ms(END_LEASE_MS + 300); /* their leases are still kept alive */
    for (size_t i = 0; i < COUNT; i++) {
        struct work work = {.outcome = IDEM_STATE_SUCCEEDED, .result = "no"};
        struct idem_answer answer = {0};
        struct reply reply;

        run(&stages[i], &work, IDEM_STRICT, 0, &reply);
        assert_verdict(reply, IDEM_V_BUSY);
        assert_int_equal(idem__run_end(begun[i], IDEM_STATE_SUCCEEDED,
                                       idem_text("done"), &answer, NULL),
                         IDEM_OK);
        assert_int_equal(answer.verdict, IDEM_V_STARTED);
        idem_answer_clear(&answer);
        run(&stages[i], &work, IDEM_STRICT, 0, &reply);
        assert_verdict(reply, IDEM_V_REPLAY);
        assert_int_equal(work.runs, 0);
        idem_close(stages[i].engine);
    }
}

static void
a_wrong_op_runs_nothing(void **state)
{
    struct stage *stage = *state;
    struct work work = {.outcome = IDEM_STATE_SUCCEEDED, .result = "done"};
    struct idem_op op = op_begin("");
    struct idem_answer answer;

    assert_int_equal(
        idem_run(stage->engine, &op, do_work, &work, &answer, NULL),
        IDEM_ERR_INVALID);
    assert_int_equal(work.runs, 0);
}

/* ---- a process that dies in the middle ------------------------------------
 */

static enum idem_state
die(void *arg, uint64_t fence, struct idem_bytes *result)
{
    (void)arg;
    (void)fence;
    (void)result;
    _exit(7);
}

static enum idem_state
count_run(void *arg, uint64_t fence, struct idem_bytes *result)
{
    (void)fence;
    ++*(int *)arg;
    *result = idem_text("second");
    return IDEM_STATE_SUCCEEDED;
}

static void
crash_in(const char *url, struct idem_op *op)
{
    pid_t child = fork();
    int how = 0;

    if (child == 0) {
        struct idem_engine *engine;
        struct idem_answer answer;

        if (idem_open(url, NULL, &engine, NULL) != IDEM_OK)
            _exit(1);
        idem_run(engine, op, die, NULL, &answer, NULL);
        _exit(2);
    }
    assert_true(child > 0);
    assert_int_equal(waitpid(child, &how, 0), child);
    assert_true(WIFEXITED(how));
    assert_int_equal(WEXITSTATUS(how), 7);
}

static void
a_process_that_dies_leaves_doubt_or_a_second_run(void **state)
{
    (void)state;
    for (int mode = IDEM_STRICT; mode <= IDEM_LOOSE; mode++) {
        struct idem_op op = op_begin("job");
        struct idem_engine *engine;
        struct idem_answer answer;
        char folder[200], url[300];
        int runs = 0;

        make_folder(folder, sizeof(folder));
        snprintf(url, sizeof(url), "journal:%s/journal", folder);
        op.mode = (enum idem_mode)mode;
        op.lease_ms = 4000;
        crash_in(url, &op);
        assert_int_equal(idem_open(url, NULL, &engine, NULL), IDEM_OK);
        sleep_ms(100);
        assert_int_equal(idem_run(engine, &op, count_run, &runs, &answer, NULL),
                         IDEM_OK);
        assert_int_equal(answer.verdict, IDEM_V_BUSY);
        idem_answer_clear(&answer);
        op.wait_ms = 60000; /* until the lease of the dead process is over */
        assert_int_equal(idem_run(engine, &op, count_run, &runs, &answer, NULL),
                         IDEM_OK);
        assert_int_equal(answer.verdict,
                         mode == IDEM_STRICT ? IDEM_V_DOUBT : IDEM_V_STARTED);
        assert_int_equal(runs, mode == IDEM_STRICT ? 0 : 1);
        idem_answer_clear(&answer);
        idem_close(engine);
        remove_folder(folder);
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_process_that_dies_leaves_doubt_or_a_second_run),
        stage_test(a_run_happens_once_and_is_replayed),
        stage_test(a_strict_failure_is_an_answer_and_replayed),
        stage_test(a_loose_failure_may_be_tried_again),
        cmocka_unit_test(
            work_that_did_not_happen_frees_the_record_in_both_modes),
        stage_test(long_work_keeps_its_lease_alive),
        cmocka_unit_test(a_begin_whose_answer_is_lost_runs_once_all_the_same),
        stage_test(a_lost_begin_whose_row_is_still_held_runs_all_the_same),
        stage_test(a_store_that_is_away_at_the_start_runs_nothing),
        cmocka_unit_test(a_finish_is_sent_until_it_is_taken),
        stage_test(an_outcome_that_cannot_be_recorded_is_said_to_be_lost),
        cmocka_unit_test(the_reason_says_whether_the_outcome_may_be_recorded),
        stage_test(a_begin_that_stays_lost_runs_nothing),
        stage_test(work_that_cannot_tell_its_outcome_leaves_its_claim),
        stage_test(a_run_keeps_the_nonce_of_its_caller),
        stage_test(a_run_that_was_taken_over_is_told),
        stage_test(an_end_that_is_not_waited_for_is_told),
        cmocka_unit_test(an_end_that_failed_can_be_told_again),
        stage_test(a_wrong_op_runs_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
