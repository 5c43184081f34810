/*
 * park_test.c - tests waiting for a busy record, and what ends a wait.
 */
#include "../../tests/support/rig.h"
#include "inner.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

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
    struct rig *rig = *state;
    struct idem_op op = op_begin("a"), rest = op_wait("a", 30000);
    struct idem__stats stats;
    struct reply start, done;

    start = park_crowd(rig, &op, &rest);
    idem__stats(rig->engine, &stats);
    assert_int_equal(stats.parked, CROWD);
    op = op_finish("a", start.fence, "R");
    put(rig->engine, &op, &done);
    idem__engine_turn(rig->engine);
    assert_verdict(done, IDEM_V_OK);
    assert_int_equal(crowd_count(IDEM_V_REPLAY), CROWD);
    for (int i = 0; i < CROWD; i++)
        assert_string_equal(crowd[i].result, "R");
    idem__stats(rig->engine, &stats);
    assert_int_equal(stats.parked, 0);
}

static void
a_release_starts_exactly_the_first_of_the_crowd(void **state)
{
    struct rig *rig = *state;
    struct idem_op op = op_begin("a"), rest = op_wait("a", 30000);
    struct reply start;

    start = park_crowd(rig, &op, &rest);
    op = op_release("a", start.fence);
    assert_verdict(ask(rig->engine, &op), IDEM_V_OK);
    assert_verdict(crowd[0], IDEM_V_STARTED);
    assert_true(crowd[0].fence > start.fence);
    assert_int_equal(crowd_waiting(), CROWD - 1);
    op = op_finish("a", crowd[0].fence, "second");
    assert_verdict(ask(rig->engine, &op), IDEM_V_OK);
    assert_int_equal(crowd_count(IDEM_V_REPLAY), CROWD - 1);
}

static void
locks_are_handed_on_in_the_order_they_were_asked_for(void **state)
{
    struct rig *rig = *state;
    struct reply replies[20], held;
    char owners[20][8];
    struct idem_op op = op_lock("l", "first", 0);

    held = ask(rig->engine, &op);
    for (int i = 0; i < 20; i++) {
        snprintf(owners[i], sizeof(owners[i]), "o%d", i);
        op = op_lock("l", owners[i], 60000);
        put(rig->engine, &op, &replies[i]);
    }
    turn(rig->engine);
    for (int i = 0; i < 20; i++) {
        struct reply late;

        /* A caller that comes with the unlock is behind those that already
         * wait. */
        op = op_unlock("l", held.fence);
        put(rig->engine, &op, &held);
        op = op_lock("l", "late", 0);
        put(rig->engine, &op, &late);
        turn(rig->engine);
        assert_verdict(held, IDEM_V_OK);
        assert_verdict(late, IDEM_V_BUSY);
        assert_verdict(replies[i], IDEM_V_STARTED);
        assert_true(i == 19 || !replies[i + 1].done);
        held = replies[i];
    }
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
    struct rig *rig = *state;
    struct idem_op op = op_begin("a"), rest = op_wait("a", 60000);

    op.lease_ms = 5000;
    park_crowd(rig, &op, &rest);
    assert_in_range(idem__engine_due_ms(rig->engine), 4990, 5010);
    test_clocks_pass(&rig->clocks, 4990);
    turn(rig->engine);
    assert_int_equal(crowd_waiting(), CROWD);
    test_clocks_pass(&rig->clocks, 20);
    turn(rig->engine);
    assert_int_equal(crowd_count(IDEM_V_DOUBT), CROWD);
}

static void
a_loose_lease_that_ends_starts_one_of_the_crowd(void **state)
{
    struct rig *rig = *state;
    struct idem_op op = op_begin("a"), rest = op_wait("a", 60000);
    struct reply start;

    op.lease_ms = rest.lease_ms = 5000;
    op.mode = rest.mode = IDEM_LOOSE;
    start = park_crowd(rig, &op, &rest);
    test_clocks_pass(&rig->clocks, 5010);
    turn(rig->engine);
    assert_verdict(crowd[0], IDEM_V_STARTED);
    assert_true(crowd[0].fence > start.fence);
    assert_int_equal(crowd_waiting(), CROWD - 1);
    /* The client that lost the claim changes nothing. */
    op = op_finish("a", start.fence, "late");
    assert_verdict(ask(rig->engine, &op), IDEM_V_STALE);
    test_clocks_pass(&rig->clocks, 5010);
    turn(rig->engine);
    assert_verdict(crowd[1], IDEM_V_STARTED);
    assert_int_equal(crowd_waiting(), CROWD - 2);
    op = op_finish("a", crowd[1].fence, "second");
    assert_verdict(ask(rig->engine, &op), IDEM_V_OK);
    assert_int_equal(crowd_waiting(), 0);
}

static void
a_renewed_lease_keeps_the_crowd_waiting(void **state)
{
    struct rig *rig = *state;
    struct idem_op op = op_begin("a"), rest = op_wait("a", 60000);
    struct reply start;

    op.lease_ms = 5000;
    start = park_crowd(rig, &op, &rest);
    for (int i = 0; i < 5; i++) {
        test_clocks_pass(&rig->clocks, 3000);
        op = op_renew("a", start.fence, 5000);
        assert_verdict(ask(rig->engine, &op), IDEM_V_OK);
        assert_int_equal(crowd_waiting(), CROWD);
    }
    test_clocks_pass(&rig->clocks, 5010);
    turn(rig->engine);
    assert_int_equal(crowd_count(IDEM_V_DOUBT), CROWD);
}

static void
a_parked_one_with_another_request_is_told_so(void **state)
{
    struct rig *rig = *state;
    static const uint8_t prints[2][IDEM_FINGERPRINT_LEN] = {{1}, {2}};
    struct idem_op op = op_begin("a");
    struct reply start, same, other;

    start = ask(rig->engine, &op); /* without a fingerprint */
    op = op_wait("a", 60000);
    op.fingerprint = prints[0];
    put(rig->engine, &op, &same);
    op.fingerprint = prints[1];
    put(rig->engine, &op, &other);
    turn(rig->engine);
    assert_false(same.done || other.done);
    op = op_release("a", start.fence);
    ask(rig->engine, &op);
    assert_verdict(same, IDEM_V_STARTED);
    assert_verdict(other, IDEM_V_MISMATCH);
    assert_int_equal(other.fence, 0);
}

static void
a_wait_and_the_finish_may_share_a_batch(void **state)
{
    struct rig *rig = *state;
    struct idem_op op = op_begin("a");
    struct reply start, waiting, done;

    start = ask(rig->engine, &op);
    op = op_wait("a", 60000);
    put(rig->engine, &op, &waiting);
    op = op_finish("a", start.fence, "R");
    put(rig->engine, &op, &done);
    idem__engine_turn(rig->engine);
    assert_verdict(done, IDEM_V_OK);
    assert_verdict(waiting, IDEM_V_REPLAY);
    assert_string_equal(waiting.result, "R");
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
    struct rig *rig = *state;
    struct idem_engine *other;
    struct idem_op op = op_lock("l", "holder", 0);
    struct reply held, waiting, late;

    other = rig_engine(rig, FAULTY_REMOTE, NULL, NULL);
    held = ask(other, &op);
    op = op_lock("l", "waits", 60000);
    put(rig->engine, &op, &waiting);
    turn(rig->engine);
    op = op_unlock("l", held.fence);
    assert_verdict(ask(other, &op), IDEM_V_OK);
    op = op_lock("l", "late", 0);
    late = ask(rig->engine, &op);
    assert_verdict(late, IDEM_V_BUSY);
    assert_verdict(waiting, IDEM_V_STARTED);
    idem_close(other);
}

static void
a_young_wait_on_a_store_that_cannot_notify_is_polled_soon(void **state)
{
    struct rig *rig = *state;
    struct idem_engine *other;
    struct idem_op op = op_begin("a");
    struct reply start, waiting;

    other = rig_engine(rig, FAULTY_REMOTE, NULL, NULL);
    op.lease_ms = 60000;
    start = ask(other, &op);
    op = op_wait("a", 60000);
    put(rig->engine, &op, &waiting);
    turn(rig->engine);
    op = op_finish("a", start.fence, "R");
    ask(other, &op);
    test_clocks_pass(&rig->clocks, 6);
    turn(rig->engine);
    assert_verdict(waiting, IDEM_V_REPLAY);

    op = op_begin("b");
    op.lease_ms = 60000;
    start = ask(other, &op);
    op = op_wait("b", 60000);
    put(rig->engine, &op, &waiting);
    turn(rig->engine);
    for (int i = 0; i < 40; i++) {
        test_clocks_pass(&rig->clocks, 50);
        turn(rig->engine);
    }
    op = op_finish("b", start.fence, "R");
    ask(other, &op);
    test_clocks_pass(&rig->clocks, 20);
    turn(rig->engine);
    assert_false(waiting.done); /* for long, so at the usual interval */
    test_clocks_pass(&rig->clocks, 31);
    turn(rig->engine);
    assert_verdict(waiting, IDEM_V_REPLAY);
    idem_close(other);
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
    struct rig *rig = *state;
    enum { LARGE = 1000 * 1000, COUNT = 40 };
    static struct reply replies[COUNT];
    char *bytes = calloc(1, LARGE);
    struct idem_op op = op_begin("large");
    struct reply start;
    char id[16];

    memset(bytes, 'x', LARGE);
    for (int i = 0; i < COUNT; i++) {
        snprintf(id, sizeof(id), "large%d", i);
        op = op_begin(id);
        start = ask(rig->engine, &op);
        op = op_finish(id, start.fence, "");
        op.result = (struct idem_bytes){bytes, LARGE};
        assert_verdict(ask(rig->engine, &op), IDEM_V_OK);
    }
    for (int round = 0; round < 10; round++) {
        for (int i = 0; i < COUNT; i++) {
            snprintf(id, sizeof(id), "large%d", i);
            op = op_begin(id);
            put(rig->engine, &op, &replies[i]);
        }
        turn(rig->engine);
        for (int i = 0; i < COUNT; i++)
            assert_verdict(replies[i], IDEM_V_REPLAY);
    }
    assert_in_range(rig->engine->batch.limit, 16, 64);
    op = op_get("small");
    for (int i = 0; i < 10; i++)
        ask(rig->engine, &op);
    assert_int_equal(rig->engine->batch.limit, 1024);
    free(bytes);
}
static void
a_scope_at_its_limit_starts_no_wait_on_another_key(void **state)
{
    struct idem_options options = {.max_parked_scope = 1};
    struct idem_op op = op_begin("a");
    struct reply first, start;
    struct rig rig;

    (void)state;
    rig_open(&rig, FAULTY_LOCAL, &options);
    start = ask(rig.engine, &op);
    op = op_begin("b");
    assert_verdict(ask(rig.engine, &op), IDEM_V_STARTED);
    op = op_wait("a", 60000);
    put(rig.engine, &op, &first);
    turn(rig.engine);
    assert_false(first.done);
    op = op_wait("b", 60000);
    assert_verdict(ask(rig.engine, &op), IDEM_V_BUSY);
    op = op_finish("a", start.fence, "R");
    assert_verdict(ask(rig.engine, &op), IDEM_V_OK);
    assert_verdict(first, IDEM_V_REPLAY);
    rig_close(&rig);
}

static void
with_many_keys_to_poll_each_is_polled_at_the_usual_interval(void **state)
{
    enum { KEYS = 65 };
    static struct reply waiting[KEYS];
    static char ids[KEYS][8];
    struct rig *rig = *state;
    struct idem_engine *other;
    struct reply starts[KEYS];
    struct idem_op op;

    other = rig_engine(rig, FAULTY_REMOTE, NULL, NULL);
    for (int i = 0; i < KEYS; i++) {
        snprintf(ids[i], sizeof(ids[i]), "k%d", i);
        op = op_begin(ids[i]);
        op.lease_ms = 600000;
        starts[i] = ask(other, &op);
        op = op_wait(ids[i], 600000);
        put(rig->engine, &op, &waiting[i]);
        turn(rig->engine);
    }
    for (int i = 0; i < KEYS; i++) {
        op = op_finish(ids[i], starts[i].fence, "R");
        assert_verdict(ask(other, &op), IDEM_V_OK);
    }
    test_clocks_pass(&rig->clocks, 6);
    turn(rig->engine);
    assert_verdict(waiting[0], IDEM_V_REPLAY); /* there were few then */
    assert_false(waiting[KEYS - 1].done);
    test_clocks_pass(&rig->clocks, 45);
    turn(rig->engine);
    for (int i = 0; i < KEYS; i++)
        assert_verdict(waiting[i], IDEM_V_REPLAY);
    idem_close(other);
}

static void
a_wait_that_begins_just_before_the_lease_ends_takes_few_turns(void **state)
{
    struct idem_op op;
    struct reply waiting;
    struct rig rig;
    int turns;

    (void)state;
    for (int64_t us = 4990000; us < 5004000; us += 200) {
        rig_open(&rig, FAULTY_LOCAL, NULL);
        op = op_begin("a");
        op.lease_ms = 5000;
        assert_verdict(ask(rig.engine, &op), IDEM_V_STARTED);
        atomic_fetch_add(&rig.clocks.wall_us, us);
        atomic_fetch_add(&rig.clocks.boot_us, us);
        op = op_wait("a", 60000);
        put(rig.engine, &op, &waiting);
        for (turns = 0; !waiting.done && turns < 100; turns++) {
            turn(rig.engine);
            atomic_fetch_add(&rig.clocks.wall_us, 100);
            atomic_fetch_add(&rig.clocks.boot_us, 100);
            if (!waiting.done && idem__engine_due_ms(rig.engine) > 0)
                test_clocks_pass(&rig.clocks, idem__engine_due_ms(rig.engine));
        }
        assert_verdict(waiting, IDEM_V_DOUBT);
        assert_true(turns < 20);
        rig_close(&rig);
    }
}

static bool
count_waiter(void *arg, const struct idem_record *waiter)
{
    assert_int_equal(waiter->type, IDEM_TYPE_LOCK);
    ++*(size_t *)arg;
    return true;
}

static void
a_list_of_waiters_has_no_more_than_was_asked_for(void **state)
{
    enum { KEYS = 100 };
    static struct reply waiting[KEYS];
    static char names[KEYS][8];
    struct idem_op op;
    struct rig rig;
    size_t listed;

    (void)state;
    rig_open(&rig, FAULTY_LOCAL, NULL);
    for (int i = 0; i < KEYS; i++) {
        snprintf(names[i], sizeof(names[i]), "l%d", i);
        op = op_lock(names[i], "holder", 0);
        assert_verdict(ask(rig.engine, &op), IDEM_V_STARTED);
        op = op_lock(names[i], "waits", 600000);
        put(rig.engine, &op, &waiting[i]);
        turn(rig.engine);
    }
    for (size_t most = 0; most < KEYS + 10; most++) {
        listed = 0;
        idem__park_list(rig.engine, most, count_waiter, &listed);
        assert_int_equal(listed, most < KEYS ? most : KEYS);
    }
    rig_close(&rig);
    for (int i = 0; i < KEYS; i++)
        assert_status(waiting[i], IDEM_ERR_CLOSED);
}

/* As if the digests of all keys began with the same eight bytes. */
static void
put_alike(struct idem_engine *engine, struct idem_op op, uint8_t number,
          struct reply *reply)
{
    struct idem__job *job;

    put(engine, &op, reply);
    job = (struct idem__job *)engine->queue.first;
    assert_non_null(job);
    while (job->item.next)
        job = (struct idem__job *)job->item.next;
    memset(job->key, 7, IDEM_KEY_LEN);
    job->key[IDEM_KEY_LEN - 1] = number;
}

static void
keys_that_begin_alike_are_told_apart(void **state)
{
    enum { KEYS = 8 };
    static const char *const ids[KEYS] = {"a", "b", "c", "d",
                                          "e", "f", "g", "h"};
    struct reply starts[KEYS], waits[KEYS], done[KEYS];
    struct rig *rig = *state;

    for (int i = KEYS - 1; i >= 0; i--)
        put_alike(rig->engine, op_begin(ids[i]), (uint8_t)i, &starts[i]);
    turn(rig->engine);
    for (int i = 0; i < KEYS; i++) {
        assert_verdict(starts[i], IDEM_V_STARTED);
        put_alike(rig->engine, op_wait(ids[i], 60000), (uint8_t)i, &waits[i]);
    }
    turn(rig->engine);
    for (int i = 0; i < KEYS; i++) {
        assert_false(waits[i].done);
        put_alike(rig->engine, op_finish(ids[i], starts[i].fence, ids[i]),
                  (uint8_t)i, &done[i]);
        turn(rig->engine);
        assert_verdict(done[i], IDEM_V_OK);
        for (int k = 0; k < KEYS; k++)
            assert_true(waits[k].done == (k <= i));
        assert_verdict(waits[i], IDEM_V_REPLAY);
        assert_string_equal(waits[i].result, ids[i]);
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        rig_test(a_finish_wakes_the_whole_crowd_in_its_own_turn, FAULTY_LOCAL),
        rig_test(a_release_starts_exactly_the_first_of_the_crowd, FAULTY_LOCAL),
        rig_test(locks_are_handed_on_in_the_order_they_were_asked_for,
                 FAULTY_LOCAL),
        cmocka_unit_test(a_wait_that_is_over_is_busy),
        rig_test(a_strict_lease_that_ends_leaves_the_crowd_in_doubt,
                 FAULTY_LOCAL),
        rig_test(a_loose_lease_that_ends_starts_one_of_the_crowd, FAULTY_LOCAL),
        rig_test(a_renewed_lease_keeps_the_crowd_waiting, FAULTY_LOCAL),
        rig_test(a_parked_one_with_another_request_is_told_so, FAULTY_LOCAL),
        rig_test(a_wait_and_the_finish_may_share_a_batch, FAULTY_LOCAL),
        cmocka_unit_test(a_wait_and_a_lease_may_end_at_once),
        rig_test(who_waits_comes_before_who_arrives_when_another_engine_frees,
                 FAULTY_REMOTE),
        rig_test(a_young_wait_on_a_store_that_cannot_notify_is_polled_soon,
                 FAULTY_REMOTE),
        cmocka_unit_test(waits_end_also_when_the_queue_is_never_empty),
        rig_test(large_replays_make_smaller_batches, FAULTY_LOCAL),
        cmocka_unit_test(a_scope_at_its_limit_starts_no_wait_on_another_key),
        rig_test(with_many_keys_to_poll_each_is_polled_at_the_usual_interval,
                 FAULTY_REMOTE),
        cmocka_unit_test(
            a_wait_that_begins_just_before_the_lease_ends_takes_few_turns),
        cmocka_unit_test(a_list_of_waiters_has_no_more_than_was_asked_for),
        rig_test(keys_that_begin_alike_are_told_apart, FAULTY_REMOTE),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
