/*
 * batch_test.c - tests batches: grouping by key, one commit for all, few round
 * trips.
 */
#include "../../tests/support/rig.h"
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
    struct idem__stats stats;
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
    idem__stats(rig.engine, &stats);
    assert_int_equal(stats.batches, 1);
    assert_int_equal(stats.batched, 100);
    assert_int_equal(stats.batch_sizes[7], 1); /* up to 128 */
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
    assert_verdict(renew, IDEM_V_OK);
    assert_verdict(finish, IDEM_V_OK);
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
    assert_verdict(ask(rig.engine, &op), IDEM_V_OK);
    assert_verdict(ask(rig.engine, &op), IDEM_V_OK);
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
    assert_verdict(ask(rig.engine, &op), IDEM_V_OK);
    op = op_begin("a");
    assert_string_equal(ask(rig.engine, &op).result, "");
    rig_close(&rig);
}

/* ---- a remote store ----------------------------------------------------- */

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
    assert_verdict(ask(rig.engine, &op), IDEM_V_OK);
    /* A replay begins with a wrong guess, which the store refuses. */
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
    assert_verdict(ask(rig.engine, &op), IDEM_V_OK);
    op = op_finish("a", start.fence, "R");
    assert_verdict(ask(rig.engine, &op), IDEM_V_OK);
    assert_int_equal(rig.store->swaps, 3);
    assert_int_equal(rig.store->loads, 0);
    rig_close(&rig);
}

static void
a_lock_that_was_given_back_here_takes_one_round_trip(void **state)
{
    struct reply held;
    struct idem_op op;
    struct rig rig;

    (void)state;
    rig_open(&rig, FAULTY_REMOTE, NULL);
    for (int i = 1; i <= 3; i++) {
        op = op_lock("l", "ann", 0);
        held = ask(rig.engine, &op);
        assert_verdict(held, IDEM_V_STARTED);
        op = op_unlock("l", held.fence);
        assert_verdict(ask(rig.engine, &op), IDEM_V_OK);
        assert_int_equal(rig.store->swaps, 2 * i);
        assert_int_equal(rig.store->loads, 0);
    }
    rig_close(&rig);
}

static void
a_lock_that_was_given_back_here_may_be_held_elsewhere(void **state)
{
    struct idem_engine *other;
    struct reply first, second, third;
    struct idem_op op, lock = op_lock("l", "ann", 0);
    struct idem_op bobs = op_lock("l", "bob", 0);
    struct rig rig;

    (void)state;
    rig_open(&rig, FAULTY_REMOTE, NULL);
    other = rig_engine(&rig, FAULTY_REMOTE, NULL, NULL);
    first = ask(rig.engine, &lock);
    op = op_unlock("l", first.fence);
    assert_verdict(ask(rig.engine, &op), IDEM_V_OK);
    second = ask(other, &bobs);
    assert_verdict(second, IDEM_V_STARTED);
    assert_true(second.fence > first.fence);
    assert_verdict(ask(rig.engine, &lock), IDEM_V_BUSY);
    op = op_unlock("l", second.fence);
    assert_verdict(ask(other, &op), IDEM_V_OK);
    third = ask(rig.engine, &lock);
    assert_verdict(third, IDEM_V_STARTED);
    assert_true(third.fence > second.fence);
    /* Nor is an answer given from what is only remembered here. */
    op = op_unlock("l", third.fence);
    assert_verdict(ask(rig.engine, &op), IDEM_V_OK);
    second = ask(other, &bobs);
    op = op_unlock("l", second.fence);
    assert_verdict(ask(rig.engine, &op), IDEM_V_OK);
    idem_close(other);
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
    assert_verdict(ask(other, &op), IDEM_V_OK);
    op = op_renew("a", start.fence, 80000);
    assert_verdict(ask(rig.engine, &op), IDEM_V_OK);
    /* Released by another engine: the answer here must not be "busy". */
    op = op_release("a", start.fence);
    assert_verdict(ask(other, &op), IDEM_V_OK);
    op = op_begin("a");
    again = ask(rig.engine, &op);
    assert_verdict(again, IDEM_V_STARTED);
    assert_true(again.fence > start.fence);
    op = op_finish("a", again.fence, "R");
    assert_verdict(ask(other, &op), IDEM_V_OK);
    assert_verdict(ask(rig.engine, &op), IDEM_V_OK);
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
        assert_verdict(ask(rig.engine, &op), IDEM_V_OK);
    }
    rig_close(&rig);
}

/* The notes together are larger than the ring of recent.c, and answers of a
 * batch are reported while its writes are still being noted. */
static void
a_large_batch_of_renewals_tells_everyone_their_own_note(void **state)
{
    enum { COUNT = 2400, NOTE_LEN = 3900 };
    static struct reply replies[COUNT];
    static uint64_t fences[COUNT];
    struct idem_options options = {.max_batch = 4096};
    char note[NOTE_LEN + 1], name[16];
    struct rig rig;

    (void)state;
    rig_open(&rig, FAULTY_LOCAL, &options);
    for (int i = 0; i < COUNT; i++) {
        struct idem_op op;

        snprintf(name, sizeof(name), "lock%d", i);
        snprintf(note, sizeof(note), "%-*d", NOTE_LEN, i);
        op = op_lock(name, "me", 0);
        op.result = (struct idem_bytes){(const uint8_t *)note, NOTE_LEN};
        fences[i] = ask(rig.engine, &op).fence;
    }
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < COUNT; i++) {
            struct idem_op op;

            snprintf(name, sizeof(name), "lock%d", i);
            op = op_renew(name, fences[i], 60000);
            op.type = IDEM_TYPE_LOCK;
            put(rig.engine, &op, &replies[i]);
        }
        turn(rig.engine);
        for (int i = 0; i < COUNT; i++) {
            assert_verdict(replies[i], IDEM_V_OK);
            assert_int_equal(strtol(replies[i].result, NULL, 10), i);
        }
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
    /* One read for all fifty. */
    assert_int_equal(other_store->loads + other_store->swaps, loads + 1);
    assert_false(waiting[0].done);
    op = op_finish("a", start.fence, "R");
    done = ask(rig.engine, &op);
    assert_verdict(done, IDEM_V_OK);
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

/* ---- what goes into a batch ------------------------------------------- */

/* How many crowds a batch of `limit` takes, and how many jobs after them. */
static void
fill(size_t limit, size_t *crowds, size_t *jobs)
{
    static struct idem_engine engine;
    static struct idem__crowd crowd[32];
    static struct idem__job job[32];

    memset(&engine, 0, sizeof(engine));
    memset(crowd, 0, sizeof(crowd));
    memset(job, 0, sizeof(job));
    engine.options.max_batch = (uint32_t)limit;
    assert_true(idem__batch_open(&engine));
    for (*crowds = 0; idem__batch_add_crowd(&engine, &crowd[*crowds]);)
        assert_true(crowd[(*crowds)++].looks);
    assert_false(crowd[*crowds].looks);
    for (*jobs = 0; idem__batch_add_job(&engine, &job[*jobs]);)
        ++*jobs;
    assert_int_equal(engine.batch.entry_count, *crowds + *jobs);
    idem__batch_close(&engine);
}

static void
who_waits_takes_half_of_a_batch_at_most(void **state)
{
    size_t crowds, jobs;

    (void)state;
    for (size_t limit = 1; limit <= 24; limit++) {
        fill(limit, &crowds, &jobs);
        assert_int_equal(crowds, limit - limit / 2);
        assert_int_equal(jobs, limit / 2);
    }
}

static void
a_batch_takes_no_more_once_it_has_over_16_mib(void **state)
{
    static struct idem_engine engine;
    struct idem__job large = {0}, byte = {0}, more = {0};

    (void)state;
    engine.options.max_batch = 8;
    assert_true(idem__batch_open(&engine));
    large.item.bytes = (size_t)16 << 20;
    byte.item.bytes = 1;
    assert_true(idem__batch_add_job(&engine, &large));
    assert_true(idem__batch_add_job(&engine, &byte));
    assert_false(idem__batch_add_job(&engine, &more));
    idem__batch_close(&engine);
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
        cmocka_unit_test(a_lock_that_was_given_back_here_takes_one_round_trip),
        cmocka_unit_test(a_lock_that_was_given_back_here_may_be_held_elsewhere),
        cmocka_unit_test(what_was_written_here_may_have_changed_elsewhere),
        cmocka_unit_test(
            more_starts_than_are_kept_in_mind_are_finished_all_the_same),
        cmocka_unit_test(
            a_large_batch_of_renewals_tells_everyone_their_own_note),
        cmocka_unit_test(
            a_duplicate_behind_another_engine_is_woken_by_looking_again),
        cmocka_unit_test(a_row_that_is_locked_for_a_moment_is_waited_for),
        cmocka_unit_test(a_row_that_somebody_locked_is_busy),
        cmocka_unit_test(who_waits_takes_half_of_a_batch_at_most),
        cmocka_unit_test(a_batch_takes_no_more_once_it_has_over_16_mib),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
