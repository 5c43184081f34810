/*
 * commit_test.c - tests how a batch is committed: how often and when the store
 * is called, what is counted, and that nothing behind the batch is touched.
 * engine_fault_test.c has the answers to each fault, epoch_test.c the stores
 * that go back in time.
 *
 * The program has a nanosleep of its own, which notes the pause and returns.
 */
#include "../../tests/support/rig.h"
#include "inner.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#define MANY 2100
#define FIRST_WAIT_US 50000
#define MOST_WAIT_US 1000000

static int64_t pauses_ns[64];
static size_t pause_count;

/* Visible also where the code under test is a shared object (make mutate). */
__attribute__((visibility("default"))) int
nanosleep(const struct timespec *wanted, struct timespec *left)
{
    (void)left;
    if (pause_count < 64)
        pauses_ns[pause_count++] =
            (int64_t)wanted->tv_sec * 1000000000 + wanted->tv_nsec;
    return 0;
}

static void
assert_pauses(size_t count)
{
    static const int64_t wanted_ms[] = {1, 10, 50, 200, 500};

    assert_int_equal(pause_count, count);
    for (size_t i = 0; i < count; i++)
        assert_int_equal(pauses_ns[i], wanted_ms[i] * 1000000);
}

/* From now on the engine pauses as it does outside of tests. */
static void
be_patient(struct rig *rig)
{
    rig->engine->inner.hasty = false;
    pause_count = 0;
}

static struct idem__stats
stats_of(struct rig *rig)
{
    struct idem__stats stats;

    idem__stats(rig->engine, &stats);
    return stats;
}

static void
key_of(const char *id, uint8_t *key)
{
    struct idem_op op = op_begin(id);

    idem__key(IDEM_TYPE_REQUEST, op.scope, op.id, key);
}

/* Two ids whose keys are in this order. */
static void
ordered_ids(const char **first, const char **second)
{
    uint8_t a[IDEM_KEY_LEN], b[IDEM_KEY_LEN];

    key_of("a", a);
    key_of("b", b);
    *first = memcmp(a, b, IDEM_KEY_LEN) < 0 ? "a" : "b";
    *second = memcmp(a, b, IDEM_KEY_LEN) < 0 ? "b" : "a";
}

/* ---- lost writes --------------------------------------------------------- */

static void
a_lost_write_is_sent_again_after_longer_and_longer_pauses(void **state)
{
    struct rig *rig = *state;
    struct idem_op op = op_begin("a");

    be_patient(rig);
    faulty_plan(rig->store, FAULT_LOST_NOT, 0, 1000);
    assert_status(ask(rig->engine, &op), IDEM_ERR_LOST);
    assert_int_equal(rig->store->swaps, 6);
    assert_pauses(5);
}

static void
a_write_that_is_stored_at_last_is_not_followed_by_a_pause(void **state)
{
    struct rig *rig = *state;
    struct idem_op op = op_begin("a");
    struct reply start;

    be_patient(rig);
    start = ask(rig->engine, &op);
    assert_verdict(start, IDEM_V_STARTED);
    assert_pauses(0);
    faulty_plan(rig->store, FAULT_LOST_NOT, 0, 2);
    op = op_renew("a", start.fence, 60000);
    assert_verdict(ask(rig->engine, &op), IDEM_V_OK);
    assert_pauses(2);
    assert_int_equal(rig->store->swaps, 4);
}

static void
a_release_that_is_there_counts_although_its_repetition_is_refused(void **state)
{
    struct rig *rig = *state;
    struct idem_op op = op_begin("a");
    struct reply start = ask(rig->engine, &op);

    be_patient(rig);
    rig->store->refuses_again = true;
    faulty_plan(rig->store, FAULT_LOST_APPLIED, 0, 1);
    op = op_release("a", start.fence);
    assert_verdict(ask(rig->engine, &op), IDEM_V_OK);
    assert_pauses(1);
}

/* What a second client, or the store, does before the swap of this number. */
struct script {
    struct idem_engine *engine;
    struct idem_op op;
    int write_at, lose_at, swaps;
    enum fault fault;
    int64_t pass_ms;
};

static void
play(void *arg, struct faulty_store *store)
{
    struct script *script = arg;

    script->swaps++;
    if (script->swaps == script->write_at) {
        (void)ask(script->engine, &script->op);
        test_clocks_pass(script->engine->inner.clocks->arg, script->pass_ms);
    }
    if (script->swaps == script->lose_at)
        faulty_plan(store, script->fault, 0, 1000);
}

static void
start_script(struct rig *rig, struct script *script)
{
    script->engine = rig_engine(rig, FAULTY_REMOTE, NULL, NULL);
    rig->store->before_swap = play;
    rig->store->before_swap_arg = script;
}

static void
end_script(struct rig *rig, struct script *script)
{
    rig->store->before_swap = NULL;
    faulty_plan(rig->store, FAULT_NONE, 0, 0);
    idem_close(script->engine);
}

static void
lost_and_then_refused_for_sure_is_sent_until_it_is_known(void **state)
{
    static const enum fault after[] = {FAULT_LOCKED, FAULT_FULL};
    struct rig rig;

    (void)state;
    for (int i = 0; i < 2; i++) {
        struct script script = {.lose_at = 2, .fault = after[i]};
        struct idem_op op = op_begin("a");

        rig_open(&rig, FAULTY_REMOTE, NULL);
        be_patient(&rig);
        start_script(&rig, &script);
        faulty_plan(rig.store, FAULT_LOST_NOT, 0, 1);
        assert_status(ask(rig.engine, &op), IDEM_ERR_LOST);
        assert_int_equal(rig.store->swaps, 6);
        assert_pauses(5);
        end_script(&rig, &script);
        rig_close(&rig);
    }
}

/* A new decision is a new write, which may be lost as often as the first. */
static void
losses_are_counted_from_zero_after_a_refusal(void **state)
{
    struct rig *rig = *state;
    struct script script = {
        .write_at = 2, .lose_at = 3, .fault = FAULT_LOST_NOT};
    struct idem_op op = op_begin("a");
    struct reply start = ask(rig->engine, &op);
    int swaps = rig->store->swaps;

    script.op = op_renew("a", start.fence, 50000);
    start_script(rig, &script);
    faulty_plan(rig->store, FAULT_LOST_NOT, 0, 1);
    op = op_renew("a", start.fence, 60000);
    assert_status(ask(rig->engine, &op), IDEM_ERR_LOST);
    assert_int_equal(rig->store->swaps - swaps, 8);
    end_script(rig, &script);
}

/* ---- refused writes ------------------------------------------------------ */

static void
renew_too(void *arg, struct faulty_store *store)
{
    struct script *script = arg;

    (void)store;
    script->swaps++;
    (void)ask(script->engine, &script->op);
}

static void
a_write_is_given_up_at_its_51st_refusal(void **state)
{
    struct rig *rig = *state;
    struct script script = {.swaps = 0};
    struct idem_op op = op_begin("a");
    struct reply start = ask(rig->engine, &op), reply;

    script.op = op_renew("a", start.fence, 50000);
    start_script(rig, &script);
    rig->store->before_swap = renew_too;
    op = op_finish("a", start.fence, "R");
    reply = ask(rig->engine, &op);
    assert_status(reply, IDEM_ERR_UNAVAILABLE);
    assert_non_null(strstr(reply.text, "written by others all the time"));
    assert_int_equal(script.swaps, 51);
    end_script(rig, &script);
}

static void
a_guess_that_was_refused_is_not_made_again(void **state)
{
    struct rig *rig = *state;
    struct idem_engine *other = rig_engine(rig, FAULTY_REMOTE, NULL, NULL);
    struct idem_op op = op_begin("a");
    struct reply start = ask(rig->engine, &op);
    int swaps;

    op = op_finish("a", start.fence, "R");
    assert_verdict(ask(other, &op), IDEM_V_OK);
    assert_verdict(ask(rig->engine, &op), IDEM_V_OK);
    swaps = rig->store->swaps;
    assert_verdict(ask(rig->engine, &op), IDEM_V_OK);
    assert_int_equal(rig->store->swaps, swaps);
    idem_close(other);
}

static void
what_is_decided_again_is_decided_by_the_time_of_then(void **state)
{
    struct rig *rig = *state;
    struct script script = {.write_at = 1, .pass_ms = 60000};
    struct idem_op op = op_begin("a");

    op.mode = IDEM_LOOSE;
    op.lease_ms = 5000;
    script.op = op;
    start_script(rig, &script);
    /* The other client's lease ended while the store was asked. */
    assert_verdict(ask(rig->engine, &op), IDEM_V_STARTED);
    assert_int_equal(script.swaps, 2);
    end_script(rig, &script);
}

/* ---- damage -------------------------------------------------------------- */

static void
a_damaged_record_is_read_apart_from_the_others(void **state)
{
    static const char *const ids[] = {"a", "b", "c", "d"};
    struct rig *rig = *state;
    struct reply replies[4];
    uint8_t key[IDEM_KEY_LEN];
    int loads = rig->store->loads;

    key_of("b", key);
    rig->store->damaged = key;
    for (int i = 0; i < 4; i++) {
        struct idem_op op = op_get(ids[i]);

        put(rig->engine, &op, &replies[i]);
    }
    turn(rig->engine);
    for (int i = 0; i < 4; i++) {
        if (i == 1)
            assert_status(replies[i], IDEM_ERR_CORRUPT);
        else
            assert_verdict(replies[i], IDEM_V_ABSENT);
    }
    assert_int_equal(rig->store->loads - loads, 5);
    assert_int_equal(stats_of(rig).store_errors, 1);
}

/* Two writes; one finds damage, and the reply to the other one is lost once. */
static void
write_beside_damage(const char *bad, const char *good)
{
    struct idem_op one = op_begin(bad), two = op_begin(good);
    struct reply first, second;
    uint8_t key[IDEM_KEY_LEN];
    struct rig rig;
    int nows;

    rig_open(&rig, FAULTY_LOCAL, NULL);
    be_patient(&rig);
    key_of(bad, key);
    rig.store->unwritable = key;
    nows = rig.store->nows;
    put(rig.engine, &one, &first);
    put(rig.engine, &two, &second);
    turn(rig.engine);
    assert_status(first, IDEM_ERR_CORRUPT);
    assert_verdict(second, IDEM_V_STARTED);
    /* Both, then each of them, in one round. */
    assert_int_equal(rig.store->swaps, 3);
    assert_int_equal(rig.store->nows - nows, 2);
    assert_pauses(0);

    one = op_begin(bad);
    two = op_renew(good, second.fence, 60000);
    faulty_plan(rig.store, FAULT_LOST_NOT, 0, 1);
    put(rig.engine, &one, &first);
    put(rig.engine, &two, &second);
    turn(rig.engine);
    assert_status(first, IDEM_ERR_CORRUPT);
    assert_verdict(second, IDEM_V_OK);
    assert_int_equal(rig.store->swaps, 3 + 4);
    assert_int_equal(rig.store->nows - nows, 2 + 3);
    assert_pauses(1);
    rig_close(&rig);
}

static void
writes_beside_damage_are_made_in_one_round(void **state)
{
    const char *first, *second;

    (void)state;
    ordered_ids(&first, &second);
    write_beside_damage(first, second);
    write_beside_damage(second, first);
}

/* ---- the breaker --------------------------------------------------------- */

static int64_t
wait_of_breaker(struct rig *rig)
{
    return rig->engine->breaker_until_us - atomic_load(&rig->clocks.boot_us);
}

static void
pass_us(struct rig *rig, int64_t us)
{
    atomic_fetch_add(&rig->clocks.boot_us, us);
    atomic_fetch_add(&rig->clocks.wall_us, us);
}

static void
the_breaker_waits_twice_as_long_each_time_and_at_most_a_second(void **state)
{
    struct rig *rig = *state;
    struct idem_op op = op_begin("a");
    int64_t wait_us = FIRST_WAIT_US, most_us = 0;

    faulty_plan(rig->store, FAULT_UNAVAILABLE, 0, 1000000);
    for (int i = 0; i < 100; i++) {
        assert_status(ask(rig->engine, &op), IDEM_ERR_UNAVAILABLE);
        assert_int_equal(rig->engine->breaker_wait_us, wait_us);
        assert_in_range(wait_of_breaker(rig), wait_us / 2, wait_us);
        if (wait_us == MOST_WAIT_US && wait_of_breaker(rig) > most_us)
            most_us = wait_of_breaker(rig);
        wait_us = wait_us * 2 < MOST_WAIT_US ? wait_us * 2 : MOST_WAIT_US;
        pass_us(rig, wait_of_breaker(rig));
    }
    /* It is random, so that engines do not come back together. */
    assert_in_range(most_us, MOST_WAIT_US * 9 / 10, MOST_WAIT_US);
    faulty_plan(rig->store, FAULT_NONE, 0, 0);
    assert_verdict(ask(rig->engine, &op), IDEM_V_STARTED);
    /* It answers, so the next failure begins with the shortest wait. */
    faulty_plan(rig->store, FAULT_UNAVAILABLE, 0, 1000000);
    op = op_begin("b");
    assert_status(ask(rig->engine, &op), IDEM_ERR_UNAVAILABLE);
    assert_int_equal(rig->engine->breaker_wait_us, FIRST_WAIT_US);
}

static void
the_store_is_not_called_until_the_breakers_wait_is_over(void **state)
{
    struct rig *rig = *state;
    struct idem_op op = op_get("a");
    int loads, nows;

    pass_us(rig, 900000);
    rig->engine->breaker_wait_us = MOST_WAIT_US;
    atomic_store(&rig->store->load_fails, IDEM_ERR_UNAVAILABLE);
    assert_status(ask(rig->engine, &op), IDEM_ERR_UNAVAILABLE);
    atomic_store(&rig->store->load_fails, IDEM_OK);
    assert_int_equal(stats_of(rig).store_errors, 1);
    loads = rig->store->loads;
    nows = rig->store->nows;
    pass_us(rig, 400000); /* the clock is due, but not read either */
    assert_status(ask(rig->engine, &op), IDEM_ERR_UNAVAILABLE);
    pass_us(rig, wait_of_breaker(rig) - 1);
    assert_status(ask(rig->engine, &op), IDEM_ERR_UNAVAILABLE);
    assert_int_equal(rig->store->loads, loads);
    assert_int_equal(rig->store->nows, nows);
    pass_us(rig, 1);
    assert_verdict(ask(rig->engine, &op), IDEM_V_ABSENT);
}

struct told {
    enum idem_status status, in_error;
};

static void
note_status(void *arg, enum idem_status status,
            const struct idem_answer *answer, const struct idem_error *err)
{
    struct told *told = arg;

    (void)answer;
    told->status = status;
    told->in_error = err ? err->status : IDEM_OK;
}

static void
the_breakers_error_says_unavailable_after_a_loss_too(void **state)
{
    struct rig *rig = *state;
    struct idem_op op = op_begin("a");
    struct told told = {0};

    faulty_plan(rig->store, FAULT_LOST_NOT, 0, 1000);
    assert_status(ask(rig->engine, &op), IDEM_ERR_LOST);
    assert_int_equal(
        idem_submit(rig->engine, &op, note_status, &told, NULL, NULL), IDEM_OK);
    turn(rig->engine);
    assert_int_equal(told.status, IDEM_ERR_UNAVAILABLE);
    assert_int_equal(told.in_error, IDEM_ERR_UNAVAILABLE);
}

/* ---- counters ------------------------------------------------------------ */

/* So many writes in one commit. */
static void
write_many(struct rig *rig, size_t count)
{
    struct reply *replies = calloc(count, sizeof(*replies));
    static char ids[MANY][48];

    assert_non_null(replies);
    rig->engine->batch.limit = rig->engine->options.max_batch;
    for (size_t i = 0; i < count; i++) {
        struct idem_op op;

        snprintf(ids[i], sizeof(ids[i]), "%zu-%zu", count, i);
        op = op_begin(ids[i]);
        put(rig->engine, &op, &replies[i]);
    }
    turn(rig->engine);
    for (size_t i = 0; i < count; i++)
        assert_verdict(replies[i], IDEM_V_STARTED);
    free(replies);
}

static void
batches_are_counted_by_their_sizes(void **state)
{
    static const struct {
        size_t count, class;
    } all[] = {{1, 0}, {2, 1},     {3, 2},     {4, 2},     {5, 3},    {8, 3},
               {9, 4}, {1024, 10}, {1025, 11}, {2048, 11}, {MANY, 11}};
    uint64_t wanted[IDEM__BATCH_SIZES] = {0}, batched = 0;
    struct idem_options options = {.max_batch = 4096};
    struct rig rig;

    (void)state;
    rig_open(&rig, FAULTY_LOCAL, &options);
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        struct idem__stats stats;

        write_many(&rig, all[i].count);
        wanted[all[i].class]++;
        batched += all[i].count;
        stats = stats_of(&rig);
        assert_memory_equal(stats.batch_sizes, wanted, sizeof(wanted));
        assert_int_equal(stats.batches, i + 1);
        assert_int_equal(stats.batched, batched);
    }
    rig_close(&rig);
}

static void
a_commit_that_the_store_fails_is_counted_once(void **state)
{
    struct rig *rig = *state;
    struct idem_op op = op_begin("a");

    assert_verdict(ask(rig->engine, &op), IDEM_V_STARTED);
    assert_int_equal(stats_of(rig).store_errors, 0);
    faulty_plan(rig->store, FAULT_FULL, 0, 1);
    op = op_begin("b");
    assert_status(ask(rig->engine, &op), IDEM_ERR_FULL);
    assert_int_equal(stats_of(rig).store_errors, 1);
}

static void
a_claim_that_the_store_has_lost_is_counted(void **state)
{
    struct rig *rig = *state;
    struct idem_store_options options = {.clocks = &rig->clocks.clocks};
    struct idem_op op = op_begin("a");
    struct idem_store *empty;

    assert_verdict(ask(rig->engine, &op), IDEM_V_STARTED);
    assert_int_equal(idem__store_open("memory:", &options, &empty, NULL),
                     IDEM_OK);
    rig->store->inner = empty;
    op = op_get("a");
    assert_verdict(ask(rig->engine, &op), IDEM_V_ABSENT);
    assert_int_equal(stats_of(rig).vanished, 1);
    rig->store->inner = rig->memory;
    idem__store_close(empty);
}

static void
a_small_result_that_was_read_lets_the_batches_grow(void **state)
{
    struct rig *rig = *state;
    struct idem_op op = op_begin("a");
    struct reply start = ask(rig->engine, &op);
    size_t limit;

    op = op_finish("a", start.fence, "R");
    assert_verdict(ask(rig->engine, &op), IDEM_V_OK);
    limit = rig->engine->batch.limit = 64;
    op = op_get("a");
    assert_string_equal(ask(rig->engine, &op).result, "R");
    assert_int_equal(rig->engine->batch.limit, 2 * limit);
}

/* ---- nothing behind the batch is touched --------------------------------- */

static struct idem_store_type spied;
static const struct idem_store_type *plain;
static bool outcomes_were_lost;

static enum idem_status
spy_on_swap(struct idem_store *store, struct idem_swap *swaps, size_t count,
            struct idem_arena *arena, struct idem_error *err)
{
    for (size_t i = 0; i < count; i++)
        outcomes_were_lost =
            outcomes_were_lost && swaps[i].outcome == IDEM_SWAP_LOST;
    return plain->swap(store, swaps, count, arena, err);
}

/* A store that fails to set an outcome must not seem to have stored. */
static void
an_outcome_that_the_store_does_not_set_is_lost(void **state)
{
    struct rig *rig = *state;
    struct idem_op op = op_begin("a");

    plain = rig->store->base.type;
    spied = *plain;
    spied.swap = spy_on_swap;
    rig->store->base.type = &spied;
    outcomes_were_lost = true;
    assert_verdict(ask(rig->engine, &op), IDEM_V_STARTED);
    op = op_begin("b");
    assert_verdict(ask(rig->engine, &op), IDEM_V_STARTED);
    assert_true(outcomes_were_lost);
    rig->store->base.type = plain;
}

/* The places behind the last group seem to be at work, too. */
static void
the_places_behind_the_last_group_stay_as_they_are(void **state)
{
    static const enum fault faults[] = {FAULT_NONE, FAULT_LOST_NOT,
                                        FAULT_UNAVAILABLE};
    struct idem__group before;
    struct rig rig;

    (void)state;
    for (int stage = IDEM__STAGE_LOAD; stage < IDEM__STAGE_DONE; stage++) {
        for (int i = 0; i < 3; i++) {
            struct idem_op one = op_begin("a"), two = op_get("b");
            struct idem__group *behind;
            struct reply replies[3];

            rig_open(&rig, FAULTY_REMOTE, NULL);
            behind = &rig.engine->batch.groups[2];
            memset(behind->key, 0xFF, sizeof(behind->key));
            behind->stage = (enum idem__stage)stage;
            behind->record = &behind->stored;
            before = *behind;
            faulty_plan(rig.store, faults[i], 0, 2);
            put(rig.engine, &one, &replies[0]);
            put(rig.engine, &two, &replies[1]);
            turn(rig.engine);
            assert_true(replies[0].done && replies[1].done);
            assert_memory_equal(behind, &before, sizeof(before));
            one = op_begin("c"); /* for the open breaker, too */
            two = op_begin("d");
            put(rig.engine, &one, &replies[0]);
            put(rig.engine, &two, &replies[1]);
            turn(rig.engine);
            assert_memory_equal(behind, &before, sizeof(before));
            rig_close(&rig);
        }
    }
}

/* ---- stores that say too little ------------------------------------------ */

static struct idem_store_type curt;
static enum idem_status curt_status;
static enum idem_outcome curt_outcome;
static int curt_swaps;

static enum idem_status
swap_curtly(struct idem_store *store, struct idem_swap *swaps, size_t count,
            struct idem_arena *arena, struct idem_error *err)
{
    (void)store;
    (void)arena;
    curt_swaps++;
    for (size_t i = 0; i < count; i++)
        swaps[i].outcome = curt_outcome;
    if (curt_status != IDEM_OK)
        err->status = curt_status;
    return curt_status;
}

static void
make_curt(struct rig *rig, enum idem_status status, enum idem_outcome outcome)
{
    curt = *rig->store->base.type;
    curt.swap = swap_curtly;
    curt_status = status;
    curt_outcome = outcome;
    curt_swaps = 0;
    rig->store->base.type = &curt;
}

static void
a_write_that_is_not_stored_is_no_success_whatever_the_call_says(void **state)
{
    struct rig *rig = *state;
    struct idem_op op = op_begin("a");
    static const enum idem_status statuses[] = {IDEM_OK, IDEM_ERR_LOST};

    for (int i = 0; i < 2; i++) {
        const struct idem_store_type *type = rig->store->base.type;

        make_curt(rig, statuses[i], IDEM_SWAP_NOT_STORED);
        assert_status(ask(rig->engine, &op), IDEM_ERR_UNAVAILABLE);
        assert_int_equal(curt_swaps, 1);
        /* The store has failed, so it is left alone for a moment. */
        assert_status(ask(rig->engine, &op), IDEM_ERR_UNAVAILABLE);
        assert_int_equal(curt_swaps, 1);
        rig->store->base.type = type;
        test_clocks_pass(&rig->clocks, 2000);
        (void)ask(rig->engine, &(struct idem_op){.verb = IDEM_GET,
                                                 .scope = idem_text("test"),
                                                 .id = idem_text("b")});
    }
    assert_verdict(ask(rig->engine, &op), IDEM_V_STARTED);
}

static void
an_outage_without_a_reason_is_logged_as_that(void **state)
{
    struct rig *rig = *state;
    struct idem_op op = op_begin("a");

    make_curt(rig, IDEM_ERR_UNAVAILABLE, IDEM_SWAP_NOT_STORED);
    assert_status(ask(rig->engine, &op), IDEM_ERR_UNAVAILABLE);
    assert_int_equal(rig->logged, 1);
    assert_string_equal(rig->said, "the store fails: it did not say why");
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        rig_test(a_lost_write_is_sent_again_after_longer_and_longer_pauses,
                 FAULTY_REMOTE),
        rig_test(a_write_that_is_stored_at_last_is_not_followed_by_a_pause,
                 FAULTY_REMOTE),
        rig_test(
            a_release_that_is_there_counts_although_its_repetition_is_refused,
            FAULTY_REMOTE),
        cmocka_unit_test(
            lost_and_then_refused_for_sure_is_sent_until_it_is_known),
        rig_test(losses_are_counted_from_zero_after_a_refusal, FAULTY_REMOTE),
        rig_test(a_write_is_given_up_at_its_51st_refusal, FAULTY_REMOTE),
        rig_test(a_guess_that_was_refused_is_not_made_again, FAULTY_REMOTE),
        rig_test(what_is_decided_again_is_decided_by_the_time_of_then,
                 FAULTY_REMOTE),
        rig_test(a_damaged_record_is_read_apart_from_the_others, FAULTY_LOCAL),
        cmocka_unit_test(writes_beside_damage_are_made_in_one_round),
        rig_test(the_breaker_waits_twice_as_long_each_time_and_at_most_a_second,
                 FAULTY_REMOTE),
        rig_test(the_store_is_not_called_until_the_breakers_wait_is_over,
                 FAULTY_REMOTE),
        rig_test(the_breakers_error_says_unavailable_after_a_loss_too,
                 FAULTY_REMOTE),
        cmocka_unit_test(batches_are_counted_by_their_sizes),
        rig_test(a_commit_that_the_store_fails_is_counted_once, FAULTY_LOCAL),
        rig_test(a_claim_that_the_store_has_lost_is_counted, FAULTY_REMOTE),
        rig_test(a_small_result_that_was_read_lets_the_batches_grow,
                 FAULTY_LOCAL),
        rig_test(an_outcome_that_the_store_does_not_set_is_lost, FAULTY_REMOTE),
        cmocka_unit_test(the_places_behind_the_last_group_stay_as_they_are),
        rig_test(
            a_write_that_is_not_stored_is_no_success_whatever_the_call_says,
            FAULTY_REMOTE),
        rig_test(an_outage_without_a_reason_is_logged_as_that, FAULTY_REMOTE),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
