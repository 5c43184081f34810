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
    struct rig *rig = *state;
    struct reply replies[10];
    struct idem_op begin = op_begin("a");
    int started = 0, busy = 0;

    for (int i = 0; i < 10; i++)
        put(rig->engine, &begin, &replies[i]);
    turn(rig->engine);
    for (int i = 0; i < 10; i++) {
        assert_int_equal(replies[i].times, 1);
        assert_int_equal(replies[i].status, IDEM_OK);
        started += replies[i].verdict == IDEM_V_STARTED;
        busy += replies[i].verdict == IDEM_V_BUSY;
    }
    assert_int_equal(started, 1);
    assert_int_equal(busy, 9);
    assert_verdict(replies[0], IDEM_V_STARTED);
    assert_int_equal(rig->store->swaps, 1);
}

static void
many_keys_share_one_commit(void **state)
{
    struct rig *rig = *state;
    struct reply replies[100];
    char ids[100][8];
    struct idem__stats stats;

    for (int i = 0; i < 100; i++) {
        struct idem_op op;

        snprintf(ids[i], sizeof(ids[i]), "k%d", i);
        op = op_begin(ids[i]);
        put(rig->engine, &op, &replies[i]);
    }
    turn(rig->engine);
    for (int i = 0; i < 100; i++)
        assert_verdict(replies[i], IDEM_V_STARTED);
    idem__stats(rig->engine, &stats);
    assert_int_equal(stats.batches, 1);
    assert_int_equal(stats.batched, 100);
    assert_int_equal(stats.batch_sizes[7], 1); /* up to 128 */
    assert_int_equal(stats.verdicts[IDEM_V_STARTED], 100);
    assert_int_equal(stats.queued, 0);
}

static void
operations_on_one_key_chain_in_order(void **state)
{
    struct rig *rig = *state;
    struct idem_op op = op_begin("a");
    struct reply start, renew, finish, get, again, stale;

    start = ask(rig->engine, &op);
    op = op_renew("a", start.fence, 60000);
    put(rig->engine, &op, &renew);
    op = op_finish("a", start.fence, "R");
    put(rig->engine, &op, &finish);
    op = op_get("a");
    put(rig->engine, &op, &get);
    op = op_begin("a");
    put(rig->engine, &op, &again);
    op = op_finish("a", start.fence + 1, "S");
    put(rig->engine, &op, &stale);
    turn(rig->engine);
    assert_verdict(renew, IDEM_V_OK);
    assert_verdict(finish, IDEM_V_OK);
    assert_verdict(get, IDEM_V_RECORD);
    assert_string_equal(get.result, "R");
    assert_verdict(again, IDEM_V_REPLAY);
    assert_string_equal(again.result, "R");
    assert_verdict(stale, IDEM_V_STALE);
    assert_int_equal(rig->store->swaps, 2);
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
    struct rig *rig = *state;
    struct idem_op op = op_begin("done");
    struct reply start, replay, other;
    struct at_swap at = {&replay, false};

    start = ask(rig->engine, &op);
    op = op_finish("done", start.fence, "R");
    ask(rig->engine, &op);
    op = op_begin("other");
    put(rig->engine, &op, &other);
    op = op_begin("done");
    put(rig->engine, &op, &replay);
    rig->store->before_swap = look_at_swap;
    rig->store->before_swap_arg = &at;
    turn(rig->engine);
    assert_verdict(other, IDEM_V_STARTED);
    assert_verdict(replay, IDEM_V_REPLAY);
    assert_true(at.seen);
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
    struct rig *rig = *state;
    struct idem_op op = op_begin("a");
    struct reply start;

    rig->store->base.max_record = idem__encoded_max(10);
    start = ask(rig->engine, &op);
    op = op_finish("a", start.fence, "more than ten bytes");
    assert_verdict(ask(rig->engine, &op), IDEM_V_OK);
    op = op_begin("a");
    assert_string_equal(ask(rig->engine, &op).result, "");
}

/* ---- a remote store ----------------------------------------------------- */

static void
a_first_begin_far_away_takes_one_round_trip(void **state)
{
    struct rig *rig = *state;
    struct idem_op op = op_begin("a");
    struct reply start;

    start = ask(rig->engine, &op);
    assert_verdict(start, IDEM_V_STARTED);
    assert_int_equal(rig->store->swaps, 1);
    assert_int_equal(rig->store->loads, 0);
    op = op_finish("a", start.fence, "R");
    assert_verdict(ask(rig->engine, &op), IDEM_V_OK);
    /* A replay begins with a wrong guess, which the store refuses. */
    op = op_begin("a");
    assert_verdict(ask(rig->engine, &op), IDEM_V_REPLAY);
}

static void
a_finish_of_ones_own_takes_one_round_trip_too(void **state)
{
    struct rig *rig = *state;
    struct idem_op op = op_begin("a");
    struct reply start;

    start = ask(rig->engine, &op);
    op = op_renew("a", start.fence, 50000);
    assert_verdict(ask(rig->engine, &op), IDEM_V_OK);
    op = op_finish("a", start.fence, "R");
    assert_verdict(ask(rig->engine, &op), IDEM_V_OK);
    assert_int_equal(rig->store->swaps, 3);
    assert_int_equal(rig->store->loads, 0);
}

static void
a_lock_that_was_given_back_here_takes_one_round_trip(void **state)
{
    struct rig *rig = *state;
    struct reply held;
    struct idem_op op;

    for (int i = 1; i <= 3; i++) {
        op = op_lock("l", "ann", 0);
        held = ask(rig->engine, &op);
        assert_verdict(held, IDEM_V_STARTED);
        op = op_unlock("l", held.fence);
        assert_verdict(ask(rig->engine, &op), IDEM_V_OK);
        assert_int_equal(rig->store->swaps, 2 * i);
        assert_int_equal(rig->store->loads, 0);
    }
}

static void
a_lock_that_was_given_back_here_may_be_held_elsewhere(void **state)
{
    struct rig *rig = *state;
    struct idem_engine *other;
    struct reply first, second, third;
    struct idem_op op, lock = op_lock("l", "ann", 0);
    struct idem_op bobs = op_lock("l", "bob", 0);

    other = rig_engine(rig, FAULTY_REMOTE, NULL, NULL);
    first = ask(rig->engine, &lock);
    op = op_unlock("l", first.fence);
    assert_verdict(ask(rig->engine, &op), IDEM_V_OK);
    second = ask(other, &bobs);
    assert_verdict(second, IDEM_V_STARTED);
    assert_true(second.fence > first.fence);
    assert_verdict(ask(rig->engine, &lock), IDEM_V_BUSY);
    op = op_unlock("l", second.fence);
    assert_verdict(ask(other, &op), IDEM_V_OK);
    third = ask(rig->engine, &lock);
    assert_verdict(third, IDEM_V_STARTED);
    assert_true(third.fence > second.fence);
    /* Nor is an answer given from what is only remembered here. */
    op = op_unlock("l", third.fence);
    assert_verdict(ask(rig->engine, &op), IDEM_V_OK);
    second = ask(other, &bobs);
    op = op_unlock("l", second.fence);
    assert_verdict(ask(rig->engine, &op), IDEM_V_OK);
    idem_close(other);
}

static void
what_was_written_here_may_have_changed_elsewhere(void **state)
{
    struct rig *rig = *state;
    struct idem_engine *other;
    struct idem_op op = op_begin("a");
    struct reply start, again;

    other = rig_engine(rig, FAULTY_REMOTE, NULL, NULL);
    start = ask(rig->engine, &op);
    op = op_renew("a", start.fence, 70000);
    assert_verdict(ask(other, &op), IDEM_V_OK);
    op = op_renew("a", start.fence, 80000);
    assert_verdict(ask(rig->engine, &op), IDEM_V_OK);
    /* Released by another engine: the answer here must not be "busy". */
    op = op_release("a", start.fence);
    assert_verdict(ask(other, &op), IDEM_V_OK);
    op = op_begin("a");
    again = ask(rig->engine, &op);
    assert_verdict(again, IDEM_V_STARTED);
    assert_true(again.fence > start.fence);
    op = op_finish("a", again.fence, "R");
    assert_verdict(ask(other, &op), IDEM_V_OK);
    assert_verdict(ask(rig->engine, &op), IDEM_V_OK);
    op = op_get("a");
    assert_verdict(ask(rig->engine, &op), IDEM_V_RECORD);
    idem_close(other);
}

static void
more_starts_than_are_kept_in_mind_are_finished_all_the_same(void **state)
{
    struct rig *rig = *state;
    static uint64_t fences[70000];
    int count = sanitized() ? 3000 : 70000;
    char id[16];

    for (int i = 0; i < count; i++) {
        struct idem_op op;

        snprintf(id, sizeof(id), "k%d", i);
        op = op_begin(id);
        fences[i] = ask(rig->engine, &op).fence;
    }
    for (int i = 0; i < count; i++) {
        struct idem_op op;

        snprintf(id, sizeof(id), "k%d", i);
        op = op_finish(id, fences[i], "R");
        assert_verdict(ask(rig->engine, &op), IDEM_V_OK);
    }
}

/* An expired answer that is still remembered starts anew, and a forgotten one
 * is not replayed. */
/* Together they are larger than the memory for them, which is used again. */
static void
a_record_of_ones_own_is_not_read_however_many_came_before(void **state)
{
    static char note[3500];
    struct rig *rig = *state;
    struct idem_op op;

    memset(note, 'n', sizeof(note));
    for (int i = 0; i < 1500; i++) {
        char name[16];

        snprintf(name, sizeof(name), "%d", i);
        op = op_lock(name, "me", 0);
        op.result = (struct idem_bytes){note, sizeof(note)};
        op = op_unlock(name, ask(rig->engine, &op).fence);
        assert_verdict(ask(rig->engine, &op), IDEM_V_OK);
    }
    assert_int_equal(rig->store->loads, 0);
}

static void
an_answer_that_is_replayed_again_and_again_is_read_once(void **state)
{
    struct idem_op begin = op_begin("a"), op;
    struct reply start, again;
    struct rig rig;

    (void)state;
    rig_open(&rig, FAULTY_LOCAL, NULL);
    start = ask(rig.engine, &begin);
    op = op_finish("a", start.fence, "R");
    assert_verdict(ask(rig.engine, &op), IDEM_V_OK);
    rig.store->loads = 0;
    for (int i = 0; i < 5; i++) {
        again = ask(rig.engine, &begin);
        assert_verdict(again, IDEM_V_REPLAY);
        assert_string_equal(again.result, "R");
    }
    assert_int_equal(rig.store->loads, 1);
    test_clocks_pass(&rig.clocks, IDEM_TTL_DEFAULT_MS + 60000);
    start = ask(rig.engine, &begin);
    assert_verdict(start, IDEM_V_STARTED);
    op = op_finish("a", start.fence, "S");
    assert_verdict(ask(rig.engine, &op), IDEM_V_OK);
    for (int i = 0; i < 2; i++)
        assert_string_equal(ask(rig.engine, &begin).result, "S");
    op = op_get("a");
    op.verb = IDEM_FORGET;
    assert_verdict(ask(rig.engine, &op), IDEM_V_OK);
    assert_verdict(ask(rig.engine, &begin), IDEM_V_STARTED);
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
    struct rig *rig = *state;
    struct faulty_store *other_store;
    struct idem_engine *other;
    struct idem_op op = op_begin("a");
    struct reply start, waiting[50], done;
    int loads;

    other = rig_engine(rig, FAULTY_REMOTE, NULL, &other_store);
    start = ask(rig->engine, &op);
    op = op_wait("a", 10000);
    for (int i = 0; i < 50; i++)
        put(other, &op, &waiting[i]);
    turn(other);
    loads = other_store->loads + other_store->swaps;
    test_clocks_pass(&rig->clocks, 60);
    turn(other);
    /* One read for all fifty. */
    assert_int_equal(other_store->loads + other_store->swaps, loads + 1);
    assert_false(waiting[0].done);
    op = op_finish("a", start.fence, "R");
    done = ask(rig->engine, &op);
    assert_verdict(done, IDEM_V_OK);
    test_clocks_pass(&rig->clocks, 60);
    turn(other);
    for (int i = 0; i < 50; i++) {
        assert_verdict(waiting[i], IDEM_V_REPLAY);
        assert_string_equal(waiting[i].result, "R");
    }
    idem_close(other);
}

/* Otherwise it would be kept, and read from the store, until its next look. */
static void
a_crowd_is_gone_when_its_last_wait_ends(void **state)
{
    struct rig *rig = *state;
    struct idem_op op = op_begin("a"), wait = op_wait("a", 12);
    struct reply waiting;
    int loads;

    assert_verdict(ask(rig->engine, &op), IDEM_V_STARTED);
    put(rig->engine, &wait, &waiting);
    turn(rig->engine);
    loads = atomic_load(&rig->store->loads);
    for (int i = 1; i <= 2; i++) { /* it looks at the record every 5 ms */
        test_clocks_pass(&rig->clocks, 5);
        turn(rig->engine);
        assert_int_equal(rig->store->loads, loads + i);
    }
    test_clocks_pass(&rig->clocks, 2);
    turn(rig->engine);
    assert_verdict(waiting, IDEM_V_BUSY);
    assert_int_equal(rig->engine->parked.crowds.count, 0);
    test_clocks_pass(&rig->clocks, 10);
    turn(rig->engine);
    assert_int_equal(rig->store->loads, loads + 2);
}

static void
a_row_that_is_locked_for_a_moment_is_waited_for(void **state)
{
    struct rig *rig = *state;
    struct idem_op op = op_begin("a");
    struct reply reply;

    faulty_plan(rig->store, FAULT_LOCKED, 0, 3);
    put(rig->engine, &op, &reply);
    for (int i = 0; i < 4; i++) {
        turn(rig->engine);
        test_clocks_pass(&rig->clocks, 5);
    }
    assert_verdict(reply, IDEM_V_STARTED);
}

static void
a_row_that_somebody_locked_is_busy(void **state)
{
    struct rig *rig = *state;
    struct idem_op op = op_begin("a");
    struct reply reply;

    faulty_plan(rig->store, FAULT_LOCKED, 0, 1000);
    put(rig->engine, &op, &reply);
    for (int i = 0; i < 20 && !reply.done; i++) {
        turn(rig->engine);
        test_clocks_pass(&rig->clocks, 5);
    }
    assert_verdict(reply, IDEM_V_BUSY);
    assert_true(reply.retry_after_ms > 0);
    faulty_plan(rig->store, FAULT_LOCKED, 0, 1);
    op = op_wait("a", 1000);
    put(rig->engine, &op, &reply);
    turn(rig->engine);
    assert_false(reply.done);
    test_clocks_pass(&rig->clocks, 60);
    turn(rig->engine);
    assert_verdict(reply, IDEM_V_STARTED);
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

/* ---- the size of a batch ------------------------------------------------ */

#define MIB ((size_t)1024 * 1024)

/* Run a batch that read so many bytes; returns how many entries the next one
 * may have. */
static size_t
limit_after(struct rig *rig, size_t limit, size_t loaded)
{
    struct idem_op op = op_get("x");

    rig->engine->batch.limit = limit;
    rig->engine->batch.loaded = loaded;
    ask(rig->engine, &op);
    assert_int_equal(rig->engine->batch.loaded, 0);
    return rig->engine->batch.limit;
}

static void
a_batch_that_read_much_makes_the_next_one_smaller(void **state)
{
    const struct idem_options options = {.max_batch = 1000};
    struct rig rig;

    (void)state;
    rig_open(&rig, FAULTY_LOCAL, &options);
    assert_int_equal(rig.engine->batch.limit, 256);
    assert_int_equal(limit_after(&rig, 256, 16 * MIB + 1), 128);
    assert_int_equal(limit_after(&rig, 17, 16 * MIB + 1), 8);
    assert_int_equal(limit_after(&rig, 16, 16 * MIB + 1), 16);
    /* In between it stays. */
    assert_int_equal(limit_after(&rig, 256, 16 * MIB), 256);
    assert_int_equal(limit_after(&rig, 256, 8 * MIB + 1), 256);
    /* Small batches let it grow, to the limit of the options. */
    assert_int_equal(limit_after(&rig, 16, 8 * MIB), 32);
    assert_int_equal(limit_after(&rig, 256, 0), 512);
    assert_int_equal(limit_after(&rig, 340, 0), 680);
    assert_int_equal(limit_after(&rig, 500, 0), 1000);
    assert_int_equal(limit_after(&rig, 512, 0), 1000);
    assert_int_equal(limit_after(&rig, 1000, 0), 1000);
    assert_int_equal(limit_after(&rig, 1000, 16 * MIB + 1), 500);
    rig_close(&rig);
}

static void
a_small_batch_of_the_options_is_the_first_limit(void **state)
{
    const struct idem_options options = {.max_batch = 40};
    struct rig rig;

    (void)state;
    rig_open(&rig, FAULTY_LOCAL, &options);
    assert_int_equal(rig.engine->batch.limit, 40);
    rig_close(&rig);
}

/* ---- guesses ------------------------------------------------------------ */

/* The calls of load that one operation on a remote store needs. */
static int
loads_of(struct rig *rig, const struct idem_op *op, enum idem_verdict wanted)
{
    int before = atomic_load(&rig->store->loads);

    assert_verdict(ask(rig->engine, op), wanted);
    return atomic_load(&rig->store->loads) - before;
}

static void
an_operation_that_starts_a_record_does_not_read_first(void **state)
{
    struct idem_op op = op_begin("a");
    struct rig rig;

    (void)state;
    rig_open(&rig, FAULTY_REMOTE, NULL);
    assert_int_equal(loads_of(&rig, &op, IDEM_V_STARTED), 0);
    op = op_lock("l", "me", 0);
    assert_int_equal(loads_of(&rig, &op, IDEM_V_STARTED), 0);
    op = op_begin("t");
    op.verb = IDEM_ISSUE;
    op.type = IDEM_TYPE_TOKEN;
    op.lease_ms = 0;
    op.mode = 0;
    assert_int_equal(loads_of(&rig, &op, IDEM_V_ISSUED), 0);
    op = op_get("b");
    assert_int_equal(loads_of(&rig, &op, IDEM_V_ABSENT), 1);
    op = op_finish("c", 7, "R");
    assert_int_equal(loads_of(&rig, &op, IDEM_V_STALE), 1);
    rig_close(&rig);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        rig_test(one_batch_of_duplicates_starts_once_and_writes_once,
                 FAULTY_LOCAL),
        rig_test(many_keys_share_one_commit, FAULTY_LOCAL),
        rig_test(operations_on_one_key_chain_in_order, FAULTY_LOCAL),
        rig_test(a_replay_does_not_wait_for_the_writes_of_its_batch,
                 FAULTY_LOCAL),
        cmocka_unit_test(a_result_over_the_limit_is_done_but_not_kept),
        rig_test(a_result_that_the_store_cannot_hold_is_not_kept_either,
                 FAULTY_LOCAL),
        rig_test(a_first_begin_far_away_takes_one_round_trip, FAULTY_REMOTE),
        rig_test(a_finish_of_ones_own_takes_one_round_trip_too, FAULTY_REMOTE),
        rig_test(a_lock_that_was_given_back_here_takes_one_round_trip,
                 FAULTY_REMOTE),
        rig_test(a_lock_that_was_given_back_here_may_be_held_elsewhere,
                 FAULTY_REMOTE),
        rig_test(what_was_written_here_may_have_changed_elsewhere,
                 FAULTY_REMOTE),
        rig_test(more_starts_than_are_kept_in_mind_are_finished_all_the_same,
                 FAULTY_LOCAL),
        rig_test(a_record_of_ones_own_is_not_read_however_many_came_before,
                 FAULTY_REMOTE),
        cmocka_unit_test(
            an_answer_that_is_replayed_again_and_again_is_read_once),
        cmocka_unit_test(
            a_large_batch_of_renewals_tells_everyone_their_own_note),
        rig_test(a_duplicate_behind_another_engine_is_woken_by_looking_again,
                 FAULTY_REMOTE),
        rig_test(a_crowd_is_gone_when_its_last_wait_ends, FAULTY_REMOTE),
        rig_test(a_row_that_is_locked_for_a_moment_is_waited_for,
                 FAULTY_REMOTE),
        rig_test(a_row_that_somebody_locked_is_busy, FAULTY_REMOTE),
        cmocka_unit_test(who_waits_takes_half_of_a_batch_at_most),
        cmocka_unit_test(a_batch_takes_no_more_once_it_has_over_16_mib),
        cmocka_unit_test(a_batch_that_read_much_makes_the_next_one_smaller),
        cmocka_unit_test(a_small_batch_of_the_options_is_the_first_limit),
        cmocka_unit_test(an_operation_that_starts_a_record_does_not_read_first),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
