/*
 * group_test.c - tests the operations of one key: what an answer says about the
 * record, when the waiting ones look again, and what becomes of them when a
 * write fails, is lost, or meets a locked row.
 */
#include "../../tests/support/rig.h"
#include "inner.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

struct was {
    bool done, in_doubt;
    enum idem_state state;
};

static void
note_was(void *arg, enum idem_status status, const struct idem_answer *answer,
         const struct idem_error *err)
{
    struct was *was = arg;

    (void)err;
    assert_int_equal(status, IDEM_OK);
    was->done = true;
    was->state = (enum idem_state)answer->was;
    was->in_doubt = answer->was_in_doubt;
}

static void
assert_was(struct rig *rig, struct idem_op op, enum idem_state state,
           bool in_doubt)
{
    struct was was = {.done = false};

    assert_int_equal(idem_submit(rig->engine, &op, note_was, &was, NULL, NULL),
                     IDEM_OK);
    turn(rig->engine);
    assert_true(was.done);
    assert_int_equal(was.state, state);
    assert_int_equal(was.in_doubt, in_doubt);
}

static void
an_answer_says_what_was_there_before(void **state)
{
    struct rig *rig = *state;
    struct idem_op op = op_begin("a");
    struct reply start;

    op.lease_ms = 5000;
    op.ttl_ms = 60000;
    assert_was(rig, op_get("a"), IDEM_STATE_ABSENT, false);
    start = ask(rig->engine, &op);
    assert_verdict(start, IDEM_V_STARTED);
    assert_was(rig, op_get("a"), IDEM_STATE_EXECUTING, false);
    test_clocks_pass(&rig->clocks, 6000);
    assert_was(rig, op_get("a"), IDEM_STATE_EXECUTING, true);
    assert_was(rig, op_finish("a", start.fence, "R"), IDEM_STATE_EXECUTING,
               true);
    assert_was(rig, op_get("a"), IDEM_STATE_SUCCEEDED, false);
    /* An expired record does not count. */
    test_clocks_pass(&rig->clocks, INT64_C(400) * 24 * 3600 * 1000);
    assert_was(rig, op_begin("a"), IDEM_STATE_ABSENT, false);
}

static void
the_operations_of_one_batch_see_each_others_records(void **state)
{
    struct rig *rig = *state;
    struct idem_op begin = op_begin("a"), get = op_get("a");
    struct was first = {0}, second = {0};

    assert_int_equal(
        idem_submit(rig->engine, &begin, note_was, &first, NULL, NULL),
        IDEM_OK);
    assert_int_equal(
        idem_submit(rig->engine, &get, note_was, &second, NULL, NULL), IDEM_OK);
    turn(rig->engine);
    assert_true(first.done && second.done);
    assert_int_equal(first.state, IDEM_STATE_ABSENT);
    assert_int_equal(second.state, IDEM_STATE_EXECUTING);
}

static void
several_writes_of_one_key_leave_the_other_keys_of_the_batch_alone(void **state)
{
    static const char *const names[] = {"one", "two", "three"};
    struct rig *rig = *state;
    struct reply first[3], second[3];

    for (int i = 0; i < 3; i++) {
        struct idem_op op = op_lock(names[i], "me", 0);

        put(rig->engine, &op, &first[i]);
        op.lease_ms = 60000; /* the same owner asks again */
        put(rig->engine, &op, &second[i]);
    }
    turn(rig->engine);
    for (int i = 0; i < 3; i++) {
        assert_verdict(first[i], IDEM_V_STARTED);
        assert_verdict(second[i], IDEM_V_STARTED);
        assert_int_equal(first[i].fence, second[i].fence);
    }
    assert_int_equal(rig->store->swaps, 1);
}

static void
a_busy_answer_says_how_long_the_lease_lasts(void **state)
{
    struct rig *rig = *state;
    struct idem_op op = op_begin("a");

    test_clocks_pass(&rig->clocks, 100000);
    op.lease_ms = 5000;
    assert_verdict(ask(rig->engine, &op), IDEM_V_STARTED);
    assert_int_equal(ask(rig->engine, &op).retry_after_ms, 1000);
    test_clocks_pass(&rig->clocks, 4001);
    assert_int_equal(ask(rig->engine, &op).retry_after_ms, 999);
    test_clocks_pass(&rig->clocks, 998);
    assert_int_equal(ask(rig->engine, &op).retry_after_ms, 1);
    test_clocks_pass(&rig->clocks, 1);
    assert_verdict(ask(rig->engine, &op), IDEM_V_DOUBT);
}

/* ---- the end of a wait -----------------------------------------------------
 */

struct shown {
    bool done;
    char scope[16], id[16];
    struct idem_record record;
};

static void
copy_text(char *text, size_t room, struct idem_bytes bytes)
{
    assert_true(bytes.len < room);
    if (bytes.len > 0)
        memcpy(text, bytes.data, bytes.len);
    text[bytes.len] = '\0';
}

static void
note_shown(void *arg, enum idem_status status, const struct idem_answer *answer,
           const struct idem_error *err)
{
    struct shown *shown = arg;

    (void)err;
    assert_int_equal(status, IDEM_OK);
    assert_int_equal(answer->verdict, IDEM_V_BUSY);
    shown->done = true;
    shown->record = *answer->record;
    copy_text(shown->scope, sizeof(shown->scope), answer->record->scope);
    copy_text(shown->id, sizeof(shown->id), answer->record->id);
}

/* The memory of the batch in which the wait began is used again. */
static void
the_end_of_a_wait_shows_the_record_without_subject_and_result(void **state)
{
    struct rig *rig = *state;
    struct idem_op op = op_lock("door", "ann", 0), other;
    struct shown shown = {.done = false};
    uint64_t fence;

    op.result = idem_text("a note");
    fence = ask(rig->engine, &op).fence;
    op = op_lock("door", "eve", 1000);
    assert_int_equal(
        idem_submit(rig->engine, &op, note_shown, &shown, NULL, NULL), IDEM_OK);
    turn(rig->engine);
    other = op_lock("gate", "bob", 0);
    other.scope = idem_text("rest");
    assert_verdict(ask(rig->engine, &other), IDEM_V_STARTED);
    other.verb = IDEM_GET;
    other.type = IDEM_TYPE_LOCK;
    idem__recent_forget(rig->engine, rig->engine->batch.groups[0].key);
    assert_verdict(ask(rig->engine, &other), IDEM_V_RECORD);
    assert_false(shown.done);
    test_clocks_pass(&rig->clocks, 1000);
    turn(rig->engine);
    assert_true(shown.done);
    assert_string_equal(shown.scope, "test");
    assert_string_equal(shown.id, "door");
    assert_int_equal(shown.record.fence, fence);
    assert_int_equal(shown.record.subject.len, 0);
    assert_null(shown.record.subject.data);
    assert_int_equal(shown.record.result.len, 0);
    assert_null(shown.record.result.data);
}

static void
a_wait_that_is_over_when_its_turn_comes_is_busy_at_once(void **state)
{
    struct rig *rig = *state;
    struct idem_op op = op_begin("a"), wait = op_wait("a", 5);
    struct reply reply;

    assert_verdict(ask(rig->engine, &op), IDEM_V_STARTED);
    put(rig->engine, &wait, &reply);
    test_clocks_pass(&rig->clocks, 5);
    turn(rig->engine);
    assert_verdict(reply, IDEM_V_BUSY);
}

/* ---- locked rows -----------------------------------------------------------
 */

static void
a_locked_row_is_looked_at_again_after_four_milliseconds(void **state)
{
    struct rig *rig = *state;
    struct idem_op op = op_begin("a");
    struct reply reply;

    faulty_plan(rig->store, FAULT_LOCKED, 0, 1);
    put(rig->engine, &op, &reply);
    turn(rig->engine);
    test_clocks_pass(&rig->clocks, 3);
    turn(rig->engine);
    assert_false(reply.done);
    test_clocks_pass(&rig->clocks, 1);
    turn(rig->engine);
    assert_verdict(reply, IDEM_V_STARTED);
}

static void
a_locked_row_is_busy_after_forty_milliseconds(void **state)
{
    struct rig *rig = *state;
    struct idem_op op = op_begin("a");
    struct reply reply;

    faulty_plan(rig->store, FAULT_LOCKED, 0, 1000);
    put(rig->engine, &op, &reply);
    turn(rig->engine);
    for (int ms = 1; ms < 40; ms++) {
        test_clocks_pass(&rig->clocks, 1);
        turn(rig->engine);
        assert_false(reply.done);
    }
    test_clocks_pass(&rig->clocks, 1);
    turn(rig->engine);
    assert_verdict(reply, IDEM_V_BUSY);
    assert_int_equal(reply.retry_after_ms, 100);
    assert_int_equal(reply.fence, 0);
    assert_int_equal(reply.state, IDEM_STATE_ABSENT);
}

/* The engine does not look meanwhile: the row may be free, or not. */
static void
a_locked_row_is_not_said_to_be_started_when_the_time_is_over(void **state)
{
    struct rig *rig = *state;
    struct idem_op op = op_begin("a");
    struct reply reply;
    uint8_t key[IDEM_KEY_LEN];
    struct idem__crowd *crowd;

    idem__key(IDEM_TYPE_REQUEST, op.scope, op.id, key);
    faulty_plan(rig->store, FAULT_LOCKED, 0, 1000);
    put(rig->engine, &op, &reply);
    turn(rig->engine);
    crowd = idem__crowd_find(rig->engine, key);
    assert_non_null(crowd);
    assert_int_equal(crowd->first->answer.verdict, IDEM_V_BUSY);
    assert_int_equal(crowd->first->answer.record->fence, 0);
    test_clocks_pass(&rig->clocks, 100);
    turn(rig->engine);
    assert_verdict(reply, IDEM_V_BUSY);
}

static void
a_wait_that_ends_at_a_locked_row_lasts_a_moment_longer(void **state)
{
    struct rig *rig = *state;
    struct idem_op op = op_wait("a", 5);
    struct reply reply;

    faulty_plan(rig->store, FAULT_LOCKED, 0, 1);
    put(rig->engine, &op, &reply);
    test_clocks_pass(&rig->clocks, 5);
    turn(rig->engine);
    assert_false(reply.done);
    test_clocks_pass(&rig->clocks, 4);
    turn(rig->engine);
    assert_verdict(reply, IDEM_V_STARTED);
}

static void
a_longer_wait_is_not_cut_by_a_locked_row(void **state)
{
    struct rig *rig = *state;
    struct idem_op op = op_wait("a", 1000);
    struct reply reply;

    faulty_plan(rig->store, FAULT_LOCKED, 0, 1000);
    put(rig->engine, &op, &reply);
    for (int ms = 0; ms < 1000; ms += 4) {
        turn(rig->engine);
        assert_false(reply.done);
        test_clocks_pass(&rig->clocks, 4);
    }
    turn(rig->engine);
    assert_verdict(reply, IDEM_V_BUSY);
    assert_int_equal(reply.retry_after_ms, 100);
}

static void
a_locked_row_is_busy_at_once_if_no_more_operations_may_wait(void **state)
{
    struct idem_options options = {.max_parked = 1};
    struct idem_op op = op_begin("a"), wait = op_wait("a", 60000);
    struct reply start, waiting, reply;
    struct rig rig;

    (void)state;
    rig_open(&rig, FAULTY_REMOTE, &options);
    start = ask(rig.engine, &op);
    put(rig.engine, &wait, &waiting);
    turn(rig.engine);
    faulty_plan(rig.store, FAULT_LOCKED, 0, 1);
    op = op_begin("b");
    put(rig.engine, &op, &reply);
    turn(rig.engine);
    assert_verdict(reply, IDEM_V_BUSY);
    assert_int_equal(reply.retry_after_ms, 100);
    assert_int_equal(reply.fence, 0);
    op = op_finish("a", start.fence, "R");
    assert_verdict(ask(rig.engine, &op), IDEM_V_OK);
    assert_verdict(waiting, IDEM_V_REPLAY);
    rig_close(&rig);
}

/* A read that comes before a write that meets a locked row. */
static void
get_and_renew(struct rig *rig, bool forgotten, struct reply *got,
              struct reply *renewed)
{
    struct idem_op op = op_begin("a"), get = op_get("a"), renew;
    struct reply start = ask(rig->engine, &op);

    if (forgotten)
        idem__recent_forget(rig->engine, rig->engine->batch.groups[0].key);
    faulty_plan(rig->store, FAULT_LOCKED, 0, 1);
    renew = op_renew("a", start.fence, 60000);
    put(rig->engine, &get, got);
    put(rig->engine, &renew, renewed);
    turn(rig->engine);
    assert_false(renewed->done);
}

static void
what_was_read_is_answered_although_the_row_is_locked(void **state)
{
    struct rig *rig = *state;
    struct reply got, renewed;

    get_and_renew(rig, true, &got, &renewed);
    assert_verdict(got, IDEM_V_RECORD);
    test_clocks_pass(&rig->clocks, 4);
    turn(rig->engine);
    assert_verdict(renewed, IDEM_V_OK);
}

/* Another engine may have changed the record since. */
static void
what_was_guessed_is_not_answered_while_the_row_is_locked(void **state)
{
    struct rig *rig = *state;
    struct reply got, renewed;

    get_and_renew(rig, false, &got, &renewed);
    assert_false(got.done);
    test_clocks_pass(&rig->clocks, 4);
    turn(rig->engine);
    assert_verdict(got, IDEM_V_RECORD);
    assert_verdict(renewed, IDEM_V_OK);
}

/* ---- writes that fail ------------------------------------------------------
 */

/* Begins "a" with a lease of 10 s, and two clients wait for it. */
static struct reply
start_and_wait(struct rig *rig, struct reply *first, struct reply *second)
{
    struct idem_op op = op_begin("a"), wait = op_wait("a", 60000);
    struct reply start;

    op.lease_ms = 10000;
    start = ask(rig->engine, &op);
    assert_verdict(start, IDEM_V_STARTED);
    put(rig->engine, &wait, first);
    turn(rig->engine);
    put(rig->engine, &wait, second);
    turn(rig->engine);
    assert_false(first->done || second->done);
    return start;
}

/* In how many ms the crowd of "a" looks at its record. */
static int64_t
looks_in_ms(struct rig *rig)
{
    struct idem_op op = op_begin("a");
    uint8_t key[IDEM_KEY_LEN];
    struct idem__crowd *crowd;

    idem__key(IDEM_TYPE_REQUEST, op.scope, op.id, key);
    crowd = idem__crowd_find(rig->engine, key);
    assert_non_null(crowd);
    return (crowd->timer.due_us - idem__boot_us(rig->engine)) / 1000;
}

static void
after_a_write_that_failed_the_crowd_looks_when_the_lease_ends(void **state)
{
    struct rig *rig = *state;
    struct reply first, second, start = start_and_wait(rig, &first, &second);
    struct idem_op op = op_finish("a", start.fence, "R");

    assert_int_equal(looks_in_ms(rig), 10001);
    test_clocks_pass(&rig->clocks, 1000);
    faulty_plan(rig->store, FAULT_FULL, 0, 1);
    assert_status(ask(rig->engine, &op), IDEM_ERR_FULL);
    assert_false(first.done || second.done);
    assert_int_equal(looks_in_ms(rig), 9001);
    /* If the write may have been stored, it looks soon. */
    faulty_plan(rig->store, FAULT_LOST_NOT, 0, 1000);
    assert_status(ask(rig->engine, &op), IDEM_ERR_LOST);
    assert_false(first.done || second.done);
    assert_int_equal(looks_in_ms(rig), rig->engine->options.poll_ms);
    faulty_plan(rig->store, FAULT_NONE, 0, 0);
    assert_verdict(ask(rig->engine, &op), IDEM_V_OK);
    assert_verdict(first, IDEM_V_REPLAY);
    assert_verdict(second, IDEM_V_REPLAY);
}

/* The crowd does not know the record then. */
static void
after_a_read_that_failed_the_crowd_looks_soon(void **state)
{
    struct rig *rig = *state;
    struct reply first, second, start = start_and_wait(rig, &first, &second);
    struct idem_op op = op_finish("a", start.fence, "R");

    idem__recent_forget(rig->engine, rig->engine->batch.groups[0].key);
    faulty_plan(rig->store, FAULT_UNAVAILABLE, 0, 1);
    assert_status(ask(rig->engine, &op), IDEM_ERR_UNAVAILABLE);
    assert_int_equal(looks_in_ms(rig), rig->engine->options.poll_ms);
    assert_verdict(ask(rig->engine, &op), IDEM_V_OK);
    assert_verdict(first, IDEM_V_REPLAY);
    assert_verdict(second, IDEM_V_REPLAY);
}

/* The failed write did not change what it saw: the record is busy. */
static void
a_wait_that_looked_before_a_failed_write_shows_what_it_saw(void **state)
{
    struct rig *rig = *state;
    struct idem_op op = op_begin("a"), wait = op_wait("a", 1000);
    struct idem_engine *owner = rig_engine(rig, FAULTY_REMOTE, NULL, NULL);
    struct reply start = ask(owner, &op), waiting, failed;

    put(rig->engine, &wait, &waiting);
    turn(rig->engine);
    op = op_renew("a", start.fence, 60000);
    assert_verdict(ask(owner, &op), IDEM_V_OK);
    /* It looks at the renewed record in the batch of the next renewal. */
    faulty_plan(rig->store, FAULT_FULL, 0, 1);
    failed = ask(rig->engine, &op);
    assert_status(failed, IDEM_ERR_FULL);
    assert_false(waiting.done);
    test_clocks_pass(&rig->clocks, 1000);
    faulty_plan(rig->store, FAULT_UNAVAILABLE, 0, 1);
    turn(rig->engine);
    assert_verdict(waiting, IDEM_V_BUSY);
    assert_int_equal(waiting.fence, start.fence);
    assert_int_equal(waiting.state, IDEM_STATE_EXECUTING);
    assert_int_equal(waiting.retry_after_ms, 1000);
    idem_close(owner);
}

/* It does not depend on the write, so it is not an error. */
static void
an_operation_that_may_not_wait_is_busy_although_a_write_failed(void **state)
{
    struct idem_options options = {.max_parked_key = 2};
    struct idem_op wait = op_wait("a", 60000), renew, op;
    struct reply first, second, start, third, renewed;
    struct rig rig;

    (void)state;
    rig_open(&rig, FAULTY_LOCAL, &options);
    start = start_and_wait(&rig, &first, &second);
    faulty_plan(rig.store, FAULT_FULL, 0, 1);
    renew = op_renew("a", start.fence, 20000);
    put(rig.engine, &wait, &third);
    put(rig.engine, &renew, &renewed);
    turn(rig.engine);
    assert_verdict(third, IDEM_V_BUSY);
    assert_status(renewed, IDEM_ERR_FULL);
    op = op_finish("a", start.fence, "R");
    assert_verdict(ask(rig.engine, &op), IDEM_V_OK);
    assert_true(first.done && second.done);
    rig_close(&rig);
}

/* Both were decided from the finish that is lost, but wrote nothing. */
static void
those_that_wrote_nothing_go_on_waiting_after_a_loss(void **state)
{
    struct rig *rig = *state;
    struct reply first, second, start = start_and_wait(rig, &first, &second);
    struct idem_op op = op_finish("a", start.fence, "R");

    faulty_plan(rig->store, FAULT_LOST_NOT, 0, 1000);
    assert_status(ask(rig->engine, &op), IDEM_ERR_LOST);
    assert_false(first.done || second.done);
    faulty_plan(rig->store, FAULT_NONE, 0, 0);
    test_clocks_pass(&rig->clocks, 1100);
    assert_verdict(ask(rig->engine, &op), IDEM_V_OK);
    assert_verdict(first, IDEM_V_REPLAY);
    assert_verdict(second, IDEM_V_REPLAY);
    assert_int_equal(first.retry_after_ms, 0); /* it was busy before */
}

/* The first one may own the record, so it must not go on waiting. An engine
 * keeps the memory of jobs that are over, but not if it is built for a tool
 * that detects the use of freed memory. */
static void
the_memory_of_those_that_were_lost_is_used_again(void **state)
{
    struct rig *rig = *state;
    struct idem_op get = op_get("x"), op;
    struct reply first, second, start = ask(rig->engine, &get);
    size_t kept = rig->engine->spare_count > 0, spare;

    start = start_and_wait(rig, &first, &second);
    spare = rig->engine->spare_count;
    op = op_release("a", start.fence);
    faulty_plan(rig->store, FAULT_LOST_NOT, 0, 1000);
    assert_status(ask(rig->engine, &op), IDEM_ERR_LOST);
    assert_status(first, IDEM_ERR_LOST);
    /* Two jobs are over: the release and the first wait. */
    assert_int_equal(rig->engine->spare_count, spare + 2 * kept);
    assert_false(second.done);
    faulty_plan(rig->store, FAULT_NONE, 0, 0);
    test_clocks_pass(&rig->clocks, 1100);
    assert_verdict(ask(rig->engine, &op), IDEM_V_OK);
    assert_verdict(second, IDEM_V_STARTED);
    assert_int_equal(rig->engine->spare_count, spare + 3 * kept);
}

struct meddler {
    struct idem_engine *engine;
    struct idem_op op;
    int swaps;
};

/* The first write meets a locked row, the second one is lost, and before the
 * third one somebody else writes. */
static void
meddle(void *arg, struct faulty_store *store)
{
    struct meddler *meddler = arg;

    meddler->swaps++;
    if (meddler->swaps == 2)
        faulty_plan(store, FAULT_LOST_NOT, 0, 1);
    if (meddler->swaps == 3)
        assert_verdict(ask(meddler->engine, &meddler->op), IDEM_V_OK);
}

/* "stale" would mean that the finish was not stored, which is not known. */
static void
a_finish_that_waited_and_was_lost_and_overtaken_stays_lost(void **state)
{
    struct rig *rig = *state;
    struct idem_op op = op_begin("a");
    struct reply start = ask(rig->engine, &op), reply;
    struct meddler meddler = {.op = op_release("a", start.fence)};

    meddler.engine = rig_engine(rig, FAULTY_REMOTE, NULL, NULL);
    rig->store->before_swap = meddle;
    rig->store->before_swap_arg = &meddler;
    faulty_plan(rig->store, FAULT_LOCKED, 0, 1);
    op = op_finish("a", start.fence, "R");
    put(rig->engine, &op, &reply);
    turn(rig->engine);
    assert_false(reply.done); /* it waits for the row */
    test_clocks_pass(&rig->clocks, 4);
    turn(rig->engine);
    assert_status(reply, IDEM_ERR_LOST);
    assert_non_null(strstr(reply.text, "somebody else wrote since"));
    assert_int_equal(meddler.swaps, 3);
    idem_close(meddler.engine);
}

/* The first write is lost. Before it is sent again, somebody else releases and
 * starts the record. */
static void
take_over(void *arg, struct faulty_store *store)
{
    struct meddler *meddler = arg;
    struct idem_op op = op_begin("a");

    meddler->swaps++;
    if (meddler->swaps == 1)
        faulty_plan(store, FAULT_LOST_NOT, 0, 1);
    if (meddler->swaps != 2)
        return;
    assert_verdict(ask(meddler->engine, &meddler->op), IDEM_V_OK);
    assert_verdict(ask(meddler->engine, &op), IDEM_V_STARTED);
}

static void
a_wait_whose_start_was_lost_and_overtaken_ends_at_the_next_loss(void **state)
{
    struct rig *rig = *state;
    struct reply first, second, start = start_and_wait(rig, &first, &second);
    struct meddler meddler = {.op = op_release("a", start.fence)};
    struct idem_op op = meddler.op, get = op_get("a");

    meddler.engine = rig_engine(rig, FAULTY_REMOTE, NULL, NULL);
    rig->store->before_swap = take_over;
    rig->store->before_swap_arg = &meddler;
    assert_status(ask(rig->engine, &op), IDEM_ERR_LOST);
    assert_false(first.done || second.done); /* it is busy again */
    rig->store->before_swap = NULL;

    op = op_finish("a", ask(rig->engine, &get).fence, "R");
    faulty_plan(rig->store, FAULT_LOST_NOT, 0, 1000);
    assert_status(ask(rig->engine, &op), IDEM_ERR_LOST);
    assert_status(first, IDEM_ERR_LOST);
    assert_false(second.done);
    faulty_plan(rig->store, FAULT_NONE, 0, 0);
    test_clocks_pass(&rig->clocks, 1100);
    assert_verdict(ask(rig->engine, &op), IDEM_V_OK);
    assert_verdict(second, IDEM_V_REPLAY);
    idem_close(meddler.engine);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        rig_test(an_answer_says_what_was_there_before, FAULTY_LOCAL),
        rig_test(the_operations_of_one_batch_see_each_others_records,
                 FAULTY_LOCAL),
        rig_test(
            several_writes_of_one_key_leave_the_other_keys_of_the_batch_alone,
            FAULTY_REMOTE),
        rig_test(a_busy_answer_says_how_long_the_lease_lasts, FAULTY_LOCAL),
        rig_test(the_end_of_a_wait_shows_the_record_without_subject_and_result,
                 FAULTY_REMOTE),
        rig_test(a_wait_that_is_over_when_its_turn_comes_is_busy_at_once,
                 FAULTY_LOCAL),
        rig_test(a_locked_row_is_looked_at_again_after_four_milliseconds,
                 FAULTY_REMOTE),
        rig_test(a_locked_row_is_busy_after_forty_milliseconds, FAULTY_REMOTE),
        rig_test(a_locked_row_is_not_said_to_be_started_when_the_time_is_over,
                 FAULTY_REMOTE),
        rig_test(a_wait_that_ends_at_a_locked_row_lasts_a_moment_longer,
                 FAULTY_REMOTE),
        rig_test(a_longer_wait_is_not_cut_by_a_locked_row, FAULTY_REMOTE),
        cmocka_unit_test(
            a_locked_row_is_busy_at_once_if_no_more_operations_may_wait),
        rig_test(what_was_read_is_answered_although_the_row_is_locked,
                 FAULTY_REMOTE),
        rig_test(what_was_guessed_is_not_answered_while_the_row_is_locked,
                 FAULTY_REMOTE),
        rig_test(after_a_write_that_failed_the_crowd_looks_when_the_lease_ends,
                 FAULTY_LOCAL),
        rig_test(after_a_read_that_failed_the_crowd_looks_soon, FAULTY_LOCAL),
        rig_test(a_wait_that_looked_before_a_failed_write_shows_what_it_saw,
                 FAULTY_REMOTE),
        cmocka_unit_test(
            an_operation_that_may_not_wait_is_busy_although_a_write_failed),
        rig_test(those_that_wrote_nothing_go_on_waiting_after_a_loss,
                 FAULTY_REMOTE),
        rig_test(the_memory_of_those_that_were_lost_is_used_again,
                 FAULTY_REMOTE),
        rig_test(
            a_wait_whose_start_was_lost_and_overtaken_ends_at_the_next_loss,
            FAULTY_REMOTE),
        rig_test(a_finish_that_waited_and_was_lost_and_overtaken_stays_lost,
                 FAULTY_REMOTE),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
