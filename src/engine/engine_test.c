/*
 * engine_test.c - batches, parked duplicates, limits, cancelling, closing.
 */
#include "../../tests/rig.h"
#include "inner.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static bool
sanitized(void)
{
    const char *word = getenv("IDEM_SANITIZED");

    return word && *word;
}

/* ---- batches ------------------------------------------------------------ */

static void
one_batch_of_duplicates_starts_once_and_writes_once(void **state)
{
    struct reply replies[10];
    struct idem_op begin = op_begin("a");
    struct rig rig;
    int started = 0, busy = 0;

    (void)state;
    rig_open(&rig, FAULTY_LOCAL, NULL);
    for (int i = 0; i < 10; i++)
        put(rig.engine, &begin, &replies[i]);
    turn(rig.engine);
    for (int i = 0; i < 10; i++) {
        assert_int_equal(replies[i].times, 1);
        assert_int_equal(replies[i].status, IDEM_OK);
        started += replies[i].verdict == IDEM_V_STARTED;
        busy += replies[i].verdict == IDEM_V_BUSY;
    }
    assert_int_equal(started, 1);
    assert_int_equal(busy, 9);
    assert_verdict(replies[0], IDEM_V_STARTED);
    assert_int_equal(rig.store->swaps, 1);
    rig_close(&rig);
}

static void
many_keys_share_one_commit(void **state)
{
    struct reply replies[100];
    char ids[100][8];
    struct idem_stats stats;
    struct rig rig;

    (void)state;
    rig_open(&rig, FAULTY_LOCAL, NULL);
    for (int i = 0; i < 100; i++) {
        struct idem_op op;

        snprintf(ids[i], sizeof(ids[i]), "k%d", i);
        op = op_begin(ids[i]);
        put(rig.engine, &op, &replies[i]);
    }
    turn(rig.engine);
    for (int i = 0; i < 100; i++)
        assert_verdict(replies[i], IDEM_V_STARTED);
    idem_stats(rig.engine, &stats);
    assert_int_equal(stats.batches, 1);
    assert_int_equal(stats.batched, 100);
    assert_int_equal(stats.verdicts[IDEM_V_STARTED], 100);
    assert_int_equal(stats.queued, 0);
    rig_close(&rig);
}

static void
operations_on_one_key_chain_in_order(void **state)
{
    struct idem_op op = op_begin("a");
    struct reply start, renew, finish, get, again, stale;
    struct rig rig;

    (void)state;
    rig_open(&rig, FAULTY_LOCAL, NULL);
    start = ask(rig.engine, &op);
    op = op_renew("a", start.fence, 60000);
    put(rig.engine, &op, &renew);
    op = op_finish("a", start.fence, "R");
    put(rig.engine, &op, &finish);
    op = op_get("a");
    put(rig.engine, &op, &get);
    op = op_begin("a");
    put(rig.engine, &op, &again);
    op = op_finish("a", start.fence + 1, "S");
    put(rig.engine, &op, &stale);
    turn(rig.engine);
    assert_verdict(renew, IDEM_V_OK_DONE);
    assert_verdict(finish, IDEM_V_OK_DONE);
    assert_verdict(get, IDEM_V_RECORD);
    assert_string_equal(get.result, "R");
    assert_verdict(again, IDEM_V_REPLAY);
    assert_string_equal(again.result, "R");
    assert_verdict(stale, IDEM_V_STALE);
    assert_int_equal(rig.store->swaps, 2);
    rig_close(&rig);
}

struct at_swap {
    struct reply *reply;
    bool seen;
};

static void
look_at_swap(void *arg, struct faulty_store *store)
{
    struct at_swap *at = arg;

    (void)store;
    at->seen = at->reply->done;
}

static void
a_replay_does_not_wait_for_the_writes_of_its_batch(void **state)
{
    struct idem_op op = op_begin("done");
    struct reply start, replay, other;
    struct at_swap at = {&replay, false};
    struct rig rig;

    (void)state;
    rig_open(&rig, FAULTY_LOCAL, NULL);
    start = ask(rig.engine, &op);
    op = op_finish("done", start.fence, "R");
    ask(rig.engine, &op);
    op = op_begin("other");
    put(rig.engine, &op, &other);
    op = op_begin("done");
    put(rig.engine, &op, &replay);
    rig.store->before_swap = look_at_swap;
    rig.store->before_swap_arg = &at;
    turn(rig.engine);
    assert_verdict(other, IDEM_V_STARTED);
    assert_verdict(replay, IDEM_V_REPLAY);
    assert_true(at.seen);
    rig_close(&rig);
}

static void
a_result_over_the_limit_is_done_but_not_kept(void **state)
{
    struct idem_options options = {.max_result = 4};
    struct idem_op op = op_begin("a");
    struct reply start, got;
    struct rig rig;

    (void)state;
    rig_open(&rig, FAULTY_LOCAL, &options);
    start = ask(rig.engine, &op);
    op = op_finish("a", start.fence, "12345");
    assert_verdict(ask(rig.engine, &op), IDEM_V_OK_DONE);
    assert_verdict(ask(rig.engine, &op), IDEM_V_OK_DONE);
    op = op_begin("a");
    got = ask(rig.engine, &op);
    assert_verdict(got, IDEM_V_REPLAY);
    assert_string_equal(got.result, "");
    op = op_finish("a", start.fence, "1234");
    assert_verdict(ask(rig.engine, &op), IDEM_V_FINISHED);
    op = op_lock("l", "me", 0);
    op.result = idem_text("12345");
    assert_status(ask(rig.engine, &op), IDEM_ERR_INVALID);
    rig_close(&rig);
}

static void
a_result_that_the_store_cannot_hold_is_not_kept_either(void **state)
{
    struct idem_op op = op_begin("a");
    struct reply start;
    struct rig rig;

    (void)state;
    rig_open(&rig, FAULTY_LOCAL, NULL);
    rig.store->base.max_record = idem__encoded_max(10);
    start = ask(rig.engine, &op);
    op = op_finish("a", start.fence, "more than ten bytes");
    assert_verdict(ask(rig.engine, &op), IDEM_V_OK_DONE);
    op = op_begin("a");
    assert_string_equal(ask(rig.engine, &op).result, "");
    rig_close(&rig);
}

/* ---- a store far away --------------------------------------------------- */

static void
a_first_begin_far_away_takes_one_round_trip(void **state)
{
    struct idem_op op = op_begin("a");
    struct reply start;
    struct rig rig;

    (void)state;
    rig_open(&rig, FAULTY_REMOTE, NULL);
    start = ask(rig.engine, &op);
    assert_verdict(start, IDEM_V_STARTED);
    assert_int_equal(rig.store->swaps, 1);
    assert_int_equal(rig.store->loads, 0);
    op = op_finish("a", start.fence, "R");
    assert_verdict(ask(rig.engine, &op), IDEM_V_OK_DONE);
    /* A replay is a refused guess. */
    op = op_begin("a");
    assert_verdict(ask(rig.engine, &op), IDEM_V_REPLAY);
    rig_close(&rig);
}

static void
a_finish_of_ones_own_takes_one_round_trip_too(void **state)
{
    struct idem_op op = op_begin("a");
    struct reply start;
    struct rig rig;

    (void)state;
    rig_open(&rig, FAULTY_REMOTE, NULL);
    start = ask(rig.engine, &op);
    op = op_renew("a", start.fence, 50000);
    assert_verdict(ask(rig.engine, &op), IDEM_V_OK_DONE);
    op = op_finish("a", start.fence, "R");
    assert_verdict(ask(rig.engine, &op), IDEM_V_OK_DONE);
    assert_int_equal(rig.store->swaps, 3);
    assert_int_equal(rig.store->loads, 0);
    rig_close(&rig);
}

static void
what_was_written_here_may_have_changed_elsewhere(void **state)
{
    struct idem_engine *other;
    struct idem_op op = op_begin("a");
    struct reply start, again;
    struct rig rig;

    (void)state;
    rig_open(&rig, FAULTY_REMOTE, NULL);
    other = rig_engine(&rig, FAULTY_REMOTE, NULL, NULL);
    start = ask(rig.engine, &op);
    op = op_renew("a", start.fence, 70000);
    assert_verdict(ask(other, &op), IDEM_V_OK_DONE);
    op = op_renew("a", start.fence, 80000);
    assert_verdict(ask(rig.engine, &op), IDEM_V_OK_DONE);
    /* Released elsewhere: who asks here must not hear "busy". */
    op = op_release("a", start.fence);
    assert_verdict(ask(other, &op), IDEM_V_OK_DONE);
    op = op_begin("a");
    again = ask(rig.engine, &op);
    assert_verdict(again, IDEM_V_STARTED);
    assert_true(again.fence > start.fence);
    op = op_finish("a", again.fence, "R");
    assert_verdict(ask(other, &op), IDEM_V_OK_DONE);
    assert_verdict(ask(rig.engine, &op), IDEM_V_OK_DONE);
    op = op_get("a");
    assert_verdict(ask(rig.engine, &op), IDEM_V_RECORD);
    idem_close(other);
    rig_close(&rig);
}

static void
more_starts_than_are_kept_in_mind_are_finished_all_the_same(void **state)
{
    static uint64_t fences[70000];
    int count = sanitized() ? 3000 : 70000;
    struct rig rig;
    char id[16];

    (void)state;
    rig_open(&rig, FAULTY_LOCAL, NULL);
    for (int i = 0; i < count; i++) {
        struct idem_op op;

        snprintf(id, sizeof(id), "k%d", i);
        op = op_begin(id);
        fences[i] = ask(rig.engine, &op).fence;
    }
    for (int i = 0; i < count; i++) {
        struct idem_op op;

        snprintf(id, sizeof(id), "k%d", i);
        op = op_finish(id, fences[i], "R");
        assert_verdict(ask(rig.engine, &op), IDEM_V_OK_DONE);
    }
    rig_close(&rig);
}

static void
a_duplicate_behind_another_engine_is_woken_by_looking_again(void **state)
{
    struct faulty_store *other_store;
    struct idem_engine *other;
    struct idem_op op = op_begin("a");
    struct reply start, waiting[50], done;
    struct rig rig;
    int loads;

    (void)state;
    rig_open(&rig, FAULTY_REMOTE, NULL);
    other = rig_engine(&rig, FAULTY_REMOTE, NULL, &other_store);
    start = ask(rig.engine, &op);
    op = op_wait("a", 10000);
    for (int i = 0; i < 50; i++)
        put(other, &op, &waiting[i]);
    turn(other);
    loads = other_store->loads + other_store->swaps;
    test_clocks_pass(&rig.clocks, 60);
    turn(other);
    /* One look for all fifty. */
    assert_int_equal(other_store->loads + other_store->swaps, loads + 1);
    assert_false(waiting[0].done);
    op = op_finish("a", start.fence, "R");
    done = ask(rig.engine, &op);
    assert_verdict(done, IDEM_V_OK_DONE);
    test_clocks_pass(&rig.clocks, 60);
    turn(other);
    for (int i = 0; i < 50; i++) {
        assert_verdict(waiting[i], IDEM_V_REPLAY);
        assert_string_equal(waiting[i].result, "R");
    }
    idem_close(other);
    rig_close(&rig);
}

static void
a_row_that_is_locked_for_a_moment_is_waited_for(void **state)
{
    struct idem_op op = op_begin("a");
    struct reply reply;
    struct rig rig;

    (void)state;
    rig_open(&rig, FAULTY_REMOTE, NULL);
    faulty_plan(rig.store, FAULT_LOCKED, 0, 3);
    put(rig.engine, &op, &reply);
    for (int i = 0; i < 4; i++) {
        turn(rig.engine);
        test_clocks_pass(&rig.clocks, 5);
    }
    assert_verdict(reply, IDEM_V_STARTED);
    rig_close(&rig);
}

static void
a_row_that_somebody_locked_is_busy(void **state)
{
    struct idem_op op = op_begin("a");
    struct reply reply;
    struct rig rig;

    (void)state;
    rig_open(&rig, FAULTY_REMOTE, NULL);
    faulty_plan(rig.store, FAULT_LOCKED, 0, 1000);
    put(rig.engine, &op, &reply);
    for (int i = 0; i < 20 && !reply.done; i++) {
        turn(rig.engine);
        test_clocks_pass(&rig.clocks, 5);
    }
    assert_verdict(reply, IDEM_V_BUSY);
    assert_true(reply.retry_after_ms > 0);
    faulty_plan(rig.store, FAULT_LOCKED, 0, 1);
    op = op_wait("a", 1000);
    put(rig.engine, &op, &reply);
    turn(rig.engine);
    assert_false(reply.done);
    test_clocks_pass(&rig.clocks, 60);
    turn(rig.engine);
    assert_verdict(reply, IDEM_V_STARTED);
    rig_close(&rig);
}

/* ---- parking ------------------------------------------------------------ */

#define CROWD 1000

static struct reply crowd[CROWD];

static struct reply
park_crowd(struct rig *rig, const struct idem_op *first,
           const struct idem_op *rest)
{
    struct reply start = ask(rig->engine, first);

    assert_verdict(start, IDEM_V_STARTED);
    for (int i = 0; i < CROWD; i++)
        put(rig->engine, rest, &crowd[i]);
    turn(rig->engine);
    for (int i = 0; i < CROWD; i++)
        assert_false(crowd[i].done);
    return start;
}

static int
crowd_count(enum idem_verdict verdict)
{
    int count = 0;

    for (int i = 0; i < CROWD; i++) {
        assert_true(crowd[i].times <= 1);
        count += crowd[i].done && crowd[i].status == IDEM_OK &&
                 crowd[i].verdict == verdict;
    }
    return count;
}

static int
crowd_waiting(void)
{
    int count = 0;

    for (int i = 0; i < CROWD; i++)
        count += !crowd[i].done;
    return count;
}

static void
a_finish_wakes_the_whole_crowd_in_its_own_turn(void **state)
{
    struct idem_op op = op_begin("a"), rest = op_wait("a", 30000);
    struct idem_stats stats;
    struct reply start, done;
    struct rig rig;

    (void)state;
    rig_open(&rig, FAULTY_LOCAL, NULL);
    start = park_crowd(&rig, &op, &rest);
    idem_stats(rig.engine, &stats);
    assert_int_equal(stats.parked, CROWD);
    op = op_finish("a", start.fence, "R");
    put(rig.engine, &op, &done);
    idem__engine_turn(rig.engine);
    assert_verdict(done, IDEM_V_OK_DONE);
    assert_int_equal(crowd_count(IDEM_V_REPLAY), CROWD);
    for (int i = 0; i < CROWD; i++)
        assert_string_equal(crowd[i].result, "R");
    idem_stats(rig.engine, &stats);
    assert_int_equal(stats.parked, 0);
    rig_close(&rig);
}

static void
a_release_starts_exactly_the_first_of_the_crowd(void **state)
{
    struct idem_op op = op_begin("a"), rest = op_wait("a", 30000);
    struct reply start;
    struct rig rig;

    (void)state;
    rig_open(&rig, FAULTY_LOCAL, NULL);
    start = park_crowd(&rig, &op, &rest);
    op = op_release("a", start.fence);
    assert_verdict(ask(rig.engine, &op), IDEM_V_OK_DONE);
    assert_verdict(crowd[0], IDEM_V_STARTED);
    assert_true(crowd[0].fence > start.fence);
    assert_int_equal(crowd_waiting(), CROWD - 1);
    op = op_finish("a", crowd[0].fence, "second");
    assert_verdict(ask(rig.engine, &op), IDEM_V_OK_DONE);
    assert_int_equal(crowd_count(IDEM_V_REPLAY), CROWD - 1);
    rig_close(&rig);
}

static void
locks_are_handed_on_in_the_order_they_were_asked_for(void **state)
{
    struct reply replies[20], held;
    char owners[20][8];
    struct idem_op op = op_lock("l", "first", 0);
    struct rig rig;

    (void)state;
    rig_open(&rig, FAULTY_LOCAL, NULL);
    held = ask(rig.engine, &op);
    for (int i = 0; i < 20; i++) {
        snprintf(owners[i], sizeof(owners[i]), "o%d", i);
        op = op_lock("l", owners[i], 60000);
        put(rig.engine, &op, &replies[i]);
    }
    turn(rig.engine);
    for (int i = 0; i < 20; i++) {
        struct reply late;

        /* One who comes with the unlock stands behind those who wait. */
        op = op_unlock("l", held.fence);
        put(rig.engine, &op, &held);
        op = op_lock("l", "late", 0);
        put(rig.engine, &op, &late);
        turn(rig.engine);
        assert_verdict(held, IDEM_V_OK_DONE);
        assert_verdict(late, IDEM_V_BUSY);
        assert_verdict(replies[i], IDEM_V_STARTED);
        assert_true(i == 19 || !replies[i + 1].done);
        held = replies[i];
    }
    rig_close(&rig);
}

static void
a_wait_that_is_over_is_busy(void **state)
{
    struct idem_op op = op_begin("a");
    struct reply start, brief, patient;
    struct rig rig;

    (void)state;
    rig_open(&rig, FAULTY_LOCAL, NULL);
    start = ask(rig.engine, &op);
    op = op_wait("a", 100);
    put(rig.engine, &op, &brief);
    op = op_wait("a", 1000);
    put(rig.engine, &op, &patient);
    turn(rig.engine);
    assert_in_range(idem__engine_due_ms(rig.engine), 99, 101);
    test_clocks_pass(&rig.clocks, 99);
    turn(rig.engine);
    assert_false(brief.done);
    test_clocks_pass(&rig.clocks, 1);
    turn(rig.engine);
    assert_verdict(brief, IDEM_V_BUSY);
    assert_true(brief.retry_after_ms > 0);
    assert_int_equal(brief.fence, start.fence);
    assert_false(patient.done);
    rig_close(&rig);
    assert_status(patient, IDEM_ERR_CLOSED);
}

static void
a_strict_lease_that_ends_leaves_the_crowd_in_doubt(void **state)
{
    struct idem_op op = op_begin("a"), rest = op_wait("a", 60000);
    struct rig rig;

    (void)state;
    rig_open(&rig, FAULTY_LOCAL, NULL);
    op.lease_ms = 5000;
    park_crowd(&rig, &op, &rest);
    assert_in_range(idem__engine_due_ms(rig.engine), 4990, 5010);
    test_clocks_pass(&rig.clocks, 4990);
    turn(rig.engine);
    assert_int_equal(crowd_waiting(), CROWD);
    test_clocks_pass(&rig.clocks, 20);
    turn(rig.engine);
    assert_int_equal(crowd_count(IDEM_V_DOUBT), CROWD);
    rig_close(&rig);
}

static void
a_loose_lease_that_ends_starts_one_of_the_crowd(void **state)
{
    struct idem_op op = op_begin("a"), rest = op_wait("a", 60000);
    struct reply start;
    struct rig rig;

    (void)state;
    rig_open(&rig, FAULTY_LOCAL, NULL);
    op.lease_ms = rest.lease_ms = 5000;
    op.mode = rest.mode = IDEM_LOOSE;
    start = park_crowd(&rig, &op, &rest);
    test_clocks_pass(&rig.clocks, 5010);
    turn(rig.engine);
    assert_verdict(crowd[0], IDEM_V_STARTED);
    assert_true(crowd[0].fence > start.fence);
    assert_int_equal(crowd_waiting(), CROWD - 1);
    /* The one who lost it changes nothing. */
    op = op_finish("a", start.fence, "late");
    assert_verdict(ask(rig.engine, &op), IDEM_V_STALE);
    test_clocks_pass(&rig.clocks, 5010);
    turn(rig.engine);
    assert_verdict(crowd[1], IDEM_V_STARTED);
    assert_int_equal(crowd_waiting(), CROWD - 2);
    rig_close(&rig);
}

static void
a_renewed_lease_keeps_the_crowd_waiting(void **state)
{
    struct idem_op op = op_begin("a"), rest = op_wait("a", 60000);
    struct reply start;
    struct rig rig;

    (void)state;
    rig_open(&rig, FAULTY_LOCAL, NULL);
    op.lease_ms = 5000;
    start = park_crowd(&rig, &op, &rest);
    for (int i = 0; i < 5; i++) {
        test_clocks_pass(&rig.clocks, 3000);
        op = op_renew("a", start.fence, 5000);
        assert_verdict(ask(rig.engine, &op), IDEM_V_OK_DONE);
        assert_int_equal(crowd_waiting(), CROWD);
    }
    test_clocks_pass(&rig.clocks, 5010);
    turn(rig.engine);
    assert_int_equal(crowd_count(IDEM_V_DOUBT), CROWD);
    rig_close(&rig);
}

static void
a_parked_one_with_another_request_is_told_so(void **state)
{
    static const uint8_t prints[2][IDEM_FINGERPRINT_LEN] = {{1}, {2}};
    struct idem_op op = op_begin("a");
    struct reply start, same, other;
    struct rig rig;

    (void)state;
    rig_open(&rig, FAULTY_LOCAL, NULL);
    start = ask(rig.engine, &op); /* without a fingerprint */
    op = op_wait("a", 60000);
    op.fingerprint = prints[0];
    put(rig.engine, &op, &same);
    op.fingerprint = prints[1];
    put(rig.engine, &op, &other);
    turn(rig.engine);
    assert_false(same.done || other.done);
    op = op_release("a", start.fence);
    ask(rig.engine, &op);
    assert_verdict(same, IDEM_V_STARTED);
    assert_verdict(other, IDEM_V_MISMATCH);
    assert_int_equal(other.fence, 0);
    rig_close(&rig);
}

static void
a_wait_and_the_finish_may_share_a_batch(void **state)
{
    struct idem_op op = op_begin("a");
    struct reply start, waiting, done;
    struct rig rig;

    (void)state;
    rig_open(&rig, FAULTY_LOCAL, NULL);
    start = ask(rig.engine, &op);
    op = op_wait("a", 60000);
    put(rig.engine, &op, &waiting);
    op = op_finish("a", start.fence, "R");
    put(rig.engine, &op, &done);
    idem__engine_turn(rig.engine);
    assert_verdict(done, IDEM_V_OK_DONE);
    assert_verdict(waiting, IDEM_V_REPLAY);
    assert_string_equal(waiting.result, "R");
    rig_close(&rig);
}

static void
a_wait_and_a_lease_may_end_at_once(void **state)
{
    (void)state;
    for (int wait = 4997; wait < 5005; wait++) {
        for (int step = 4996; step < 5006; step++) {
            struct idem_op op = op_begin("a");
            struct reply one, two;
            struct rig rig;

            rig_open(&rig, FAULTY_LOCAL, NULL);
            op.lease_ms = 5000;
            ask(rig.engine, &op);
            op = op_wait("a", wait);
            put(rig.engine, &op, &one);
            turn(rig.engine);
            put(rig.engine, &op, &two);
            turn(rig.engine);
            test_clocks_pass(&rig.clocks, step);
            turn(rig.engine);
            test_clocks_pass(&rig.clocks, 10);
            turn(rig.engine);
            assert_int_equal(one.times, 1);
            assert_int_equal(two.times, 1);
            assert_int_equal(one.verdict, two.verdict);
            assert_true(one.verdict == IDEM_V_BUSY ||
                        one.verdict == IDEM_V_DOUBT);
            rig_close(&rig);
        }
    }
}

static void
who_waits_comes_before_who_arrives_when_another_engine_frees(void **state)
{
    struct idem_engine *other;
    struct idem_op op = op_lock("l", "holder", 0);
    struct reply held, waiting, late;
    struct rig rig;

    (void)state;
    rig_open(&rig, FAULTY_REMOTE, NULL);
    other = rig_engine(&rig, FAULTY_REMOTE, NULL, NULL);
    held = ask(other, &op);
    op = op_lock("l", "waits", 60000);
    put(rig.engine, &op, &waiting);
    turn(rig.engine);
    op = op_unlock("l", held.fence);
    assert_verdict(ask(other, &op), IDEM_V_OK_DONE);
    op = op_lock("l", "late", 0);
    late = ask(rig.engine, &op);
    assert_verdict(late, IDEM_V_BUSY);
    assert_verdict(waiting, IDEM_V_STARTED);
    idem_close(other);
    rig_close(&rig);
}

static void
waits_end_also_when_the_queue_is_never_empty(void **state)
{
    struct idem_options options = {.max_batch = 4};
    struct idem_op op = op_begin("a");
    struct reply brief, doubtful, noise[8];
    struct rig rig;

    (void)state;
    rig_open(&rig, FAULTY_LOCAL, &options);
    op.lease_ms = 1000;
    ask(rig.engine, &op);
    op = op_wait("a", 500);
    put(rig.engine, &op, &brief);
    op = op_wait("a", 60000);
    put(rig.engine, &op, &doubtful);
    turn(rig.engine);
    for (int i = 0; i < 20; i++) {
        op = op_get("noise");
        for (int k = 0; k < 8; k++)
            put(rig.engine, &op, &noise[k]);
        test_clocks_pass(&rig.clocks, 100);
        assert_true(idem__engine_turn(rig.engine)); /* there is always more */
        idem__engine_turn(rig.engine);
        assert_int_equal(brief.done, i >= 4);
    }
    assert_verdict(brief, IDEM_V_BUSY);
    assert_verdict(doubtful, IDEM_V_DOUBT);
    rig_close(&rig);
}

static void
large_replays_make_smaller_batches(void **state)
{
    enum { LARGE = 1000 * 1000, COUNT = 40 };
    static struct reply replies[COUNT];
    char *bytes = calloc(1, LARGE);
    struct idem_op op = op_begin("large");
    struct reply start;
    struct rig rig;
    char id[16];

    (void)state;
    rig_open(&rig, FAULTY_LOCAL, NULL);
    memset(bytes, 'x', LARGE);
    for (int i = 0; i < COUNT; i++) {
        snprintf(id, sizeof(id), "large%d", i);
        op = op_begin(id);
        start = ask(rig.engine, &op);
        op = op_finish(id, start.fence, "");
        op.result = (struct idem_bytes){bytes, LARGE};
        assert_verdict(ask(rig.engine, &op), IDEM_V_OK_DONE);
    }
    for (int round = 0; round < 10; round++) {
        for (int i = 0; i < COUNT; i++) {
            snprintf(id, sizeof(id), "large%d", i);
            op = op_begin(id);
            put(rig.engine, &op, &replies[i]);
        }
        turn(rig.engine);
        for (int i = 0; i < COUNT; i++)
            assert_verdict(replies[i], IDEM_V_REPLAY);
    }
    assert_in_range(rig.engine->batch.limit, 16, 64);
    op = op_get("small");
    for (int i = 0; i < 10; i++)
        ask(rig.engine, &op);
    assert_int_equal(rig.engine->batch.limit, 1024);
    free(bytes);
    rig_close(&rig);
}

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

static void
a_full_queue_refuses_at_the_door(void **state)
{
    struct idem_options options = {.max_queue = 4, .max_batch = 2};
    struct reply replies[6];
    struct idem_stats stats;
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
    idem_stats(rig.engine, &stats);
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
    struct idem_op op = op_begin("");
    struct rig rig;

    (void)state;
    rig_open(&rig, FAULTY_LOCAL, NULL);
    assert_status(ask(rig.engine, &op), IDEM_ERR_INVALID);
    op = op_finish("a", 0, "R");
    assert_status(ask(rig.engine, &op), IDEM_ERR_INVALID);
    op = op_begin("a");
    op.lease_ms = -5;
    assert_status(ask(rig.engine, &op), IDEM_ERR_INVALID);
    assert_int_equal(rig.store->calls, 0);
    rig_close(&rig);
}

/* ---- cancelling and closing --------------------------------------------- */

static void
a_cancelled_wait_is_answered_and_the_others_wait_on(void **state)
{
    struct idem_op op = op_begin("a");
    struct reply start, gone, early, other;
    struct idem_stats stats;
    struct rig rig;

    (void)state;
    rig_open(&rig, FAULTY_LOCAL, NULL);
    start = ask(rig.engine, &op);
    op = op_wait("a", 60000);
    put(rig.engine, &op, &gone);
    put(rig.engine, &op, &other);
    turn(rig.engine);
    idem_cancel(rig.engine, gone.ticket);
    idem_cancel(rig.engine, 999999);
    turn(rig.engine);
    assert_status(gone, IDEM_ERR_CLOSED);
    assert_false(other.done);
    /* Cancelled while it is still in the queue. */
    put(rig.engine, &op, &early);
    idem_cancel(rig.engine, early.ticket);
    turn(rig.engine);
    assert_status(early, IDEM_ERR_CLOSED);
    op = op_finish("a", start.fence, "R");
    ask(rig.engine, &op);
    assert_verdict(other, IDEM_V_REPLAY);
    idem_cancel(rig.engine, other.ticket); /* too late: nothing happens */
    turn(rig.engine);
    assert_int_equal(other.times, 1);
    idem_stats(rig.engine, &stats);
    assert_int_equal(stats.parked, 0);
    rig_close(&rig);
}

static void
closing_commits_what_was_accepted_and_answers_everybody(void **state)
{
    struct idem_op op = op_begin("a");
    struct reply waiting[3], accepted, seen;
    struct idem_engine *engine;
    struct rig rig;

    (void)state;
    rig_open(&rig, FAULTY_LOCAL, NULL);
    engine = rig_engine(&rig, FAULTY_LOCAL, NULL, NULL);
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
    seen = ask(rig.engine, &op);
    assert_verdict(seen, IDEM_V_RECORD);
    assert_int_equal(seen.fence, accepted.fence);
    rig_close(&rig);
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
    struct idem_stats stats;
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
        idem_stats(engine, &stats);
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
    fence = answer.record.fence;
    if (answer.verdict == IDEM_V_STARTED) {
        atomic_fetch_add(&party->started, 1);
        idem_answer_clear(&answer);
        op = op_finish("a", fence, "the answer");
        if (idem_do(party->engine, &op, &answer, NULL) != IDEM_OK)
            abort();
    } else if (answer.verdict == IDEM_V_REPLAY &&
               idem__bytes_is(answer.record.result, "the answer")) {
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
        op = op_finish(id, answer.record.fence, "a result");
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
    idem_store_figures(engine, note_figure, &records);
    assert_true(records == 1);
    idem_close(engine);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_batch_of_duplicates_starts_once_and_writes_once),
        cmocka_unit_test(many_keys_share_one_commit),
        cmocka_unit_test(operations_on_one_key_chain_in_order),
        cmocka_unit_test(a_replay_does_not_wait_for_the_writes_of_its_batch),
        cmocka_unit_test(a_result_over_the_limit_is_done_but_not_kept),
        cmocka_unit_test(
            a_result_that_the_store_cannot_hold_is_not_kept_either),
        cmocka_unit_test(a_first_begin_far_away_takes_one_round_trip),
        cmocka_unit_test(a_finish_of_ones_own_takes_one_round_trip_too),
        cmocka_unit_test(what_was_written_here_may_have_changed_elsewhere),
        cmocka_unit_test(
            more_starts_than_are_kept_in_mind_are_finished_all_the_same),
        cmocka_unit_test(
            a_duplicate_behind_another_engine_is_woken_by_looking_again),
        cmocka_unit_test(a_row_that_is_locked_for_a_moment_is_waited_for),
        cmocka_unit_test(a_row_that_somebody_locked_is_busy),
        cmocka_unit_test(a_finish_wakes_the_whole_crowd_in_its_own_turn),
        cmocka_unit_test(a_release_starts_exactly_the_first_of_the_crowd),
        cmocka_unit_test(locks_are_handed_on_in_the_order_they_were_asked_for),
        cmocka_unit_test(a_wait_that_is_over_is_busy),
        cmocka_unit_test(a_strict_lease_that_ends_leaves_the_crowd_in_doubt),
        cmocka_unit_test(a_loose_lease_that_ends_starts_one_of_the_crowd),
        cmocka_unit_test(a_renewed_lease_keeps_the_crowd_waiting),
        cmocka_unit_test(a_parked_one_with_another_request_is_told_so),
        cmocka_unit_test(a_wait_and_the_finish_may_share_a_batch),
        cmocka_unit_test(a_wait_and_a_lease_may_end_at_once),
        cmocka_unit_test(
            who_waits_comes_before_who_arrives_when_another_engine_frees),
        cmocka_unit_test(waits_end_also_when_the_queue_is_never_empty),
        cmocka_unit_test(large_replays_make_smaller_batches),
        cmocka_unit_test(a_full_crowd_answers_busy_at_once),
        cmocka_unit_test(a_full_queue_refuses_at_the_door),
        cmocka_unit_test(absurd_options_are_refused),
        cmocka_unit_test(a_wrong_op_is_refused_at_the_door),
        cmocka_unit_test(a_cancelled_wait_is_answered_and_the_others_wait_on),
        cmocka_unit_test(
            closing_commits_what_was_accepted_and_answers_everybody),
        cmocka_unit_test(closing_answers_threads_that_wait),
        cmocka_unit_test(a_thousand_duplicates_at_once_are_one_execution),
        cmocka_unit_test(a_callback_that_would_wait_gets_an_error_instead),
        cmocka_unit_test(a_driver_is_woken_for_what_comes_from_elsewhere_only),
        cmocka_unit_test(a_scan_lists_what_the_filter_lets_through),
        cmocka_unit_test(figures_come_from_the_store),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
