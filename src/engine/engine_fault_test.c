/*
 * engine_fault_test.c - tests the engine on a store whose calls fail, each in
 * turn and in every way.
 *
 * Whatever the store does, an operation gets exactly one answer. "unavailable"
 * means that nothing was stored, "lost" that it may have been; a client that
 * sends a lost operation again learns its outcome.
 */
#include "../../tests/support/rig.h"
#include "inner.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const uint8_t nonce_a[8] = "nonce-a", nonce_b[8] = "nonce-b";

/* ---- every call fails in turn -------------------------------------------- */

/* A careful client: sends the same op again until it gets a verdict. `lost` is
 * set if any attempt was lost. */
static struct reply
insist(struct rig *rig, const struct idem_op *op, bool *lost)
{
    struct reply reply;

    for (int i = 0; i < 20; i++) {
        reply = ask(rig->engine, op);
        *lost = *lost || reply.status == IDEM_ERR_LOST;
        if (reply.status == IDEM_OK && reply.verdict != IDEM_V_BUSY)
            return reply;
        if (reply.status != IDEM_OK)
            assert_true(reply.status == IDEM_ERR_LOST ||
                        reply.status == IDEM_ERR_UNAVAILABLE ||
                        reply.status == IDEM_ERR_FULL);
        test_clocks_pass(&rig->clocks, 1100); /* the breaker's longest wait */
    }
    fail_msg("no verdict: %s %s", idem_status_name(reply.status), reply.text);
    return reply;
}

static void
live_a_request(struct rig *rig)
{
    struct idem_op op = op_begin("request");
    struct reply start, again, waiting;
    bool lost = false;

    op.nonce = nonce_a;
    start = insist(rig, &op, &lost);
    assert_verdict(start, IDEM_V_STARTED);
    again = insist(rig, &op, &lost);
    assert_verdict(again, IDEM_V_STARTED);
    assert_int_equal(again.fence, start.fence);

    op = op_wait("request", 3000000);
    put(rig->engine, &op, &waiting);
    turn(rig->engine);
    op = op_renew("request", start.fence, 300000);
    assert_verdict(insist(rig, &op, &lost), IDEM_V_OK);
    op = op_finish("request", start.fence, "R");
    assert_verdict(insist(rig, &op, &lost), IDEM_V_OK);
    assert_verdict(insist(rig, &op, &lost), IDEM_V_OK);
    for (int i = 0; i < 40 && !waiting.done; i++) {
        test_clocks_pass(&rig->clocks, 1100);
        turn(rig->engine);
    }
    assert_int_equal(waiting.times, 1);
    if (waiting.status == IDEM_OK) {
        /* Only a row lock can be found at the start of the wait. */
        assert_verdict(waiting, IDEM_V_REPLAY);
        assert_string_equal(waiting.result, "R");
    }
    op = op_begin("request");
    again = insist(rig, &op, &lost);
    assert_verdict(again, IDEM_V_REPLAY);
    assert_string_equal(again.result, "R");
    assert_int_equal(again.fence, start.fence);
}

static void
live_a_release(struct rig *rig)
{
    struct idem_op op = op_begin("freed");
    struct reply first, second, freed;
    bool lost = false, release_lost = false;

    op.nonce = nonce_a;
    first = insist(rig, &op, &lost);
    assert_verdict(first, IDEM_V_STARTED);
    op = op_release("freed", first.fence);
    freed = insist(rig, &op, &release_lost);
    if (!release_lost)
        assert_verdict(freed, IDEM_V_OK);
    op = op_begin("freed");
    op.nonce = nonce_a;
    assert_verdict(insist(rig, &op, &lost), IDEM_V_STALE);
    op.nonce = nonce_b;
    second = insist(rig, &op, &lost);
    assert_verdict(second, IDEM_V_STARTED);
    assert_true(second.fence > first.fence);
}

static void
live_a_token_and_a_lock(struct rig *rig)
{
    struct idem_op op = op_begin("token");
    struct reply got;
    bool lost = false;

    op.verb = IDEM_ISSUE;
    got = insist(rig, &op, &lost);
    if (!lost)
        assert_verdict(got, IDEM_V_ISSUED);
    op.verb = IDEM_REDEEM;
    op.nonce = nonce_a;
    assert_verdict(insist(rig, &op, &lost), IDEM_V_REDEEMED);
    assert_verdict(insist(rig, &op, &lost), IDEM_V_REDEEMED);
    op.nonce = nonce_b;
    assert_verdict(insist(rig, &op, &lost), IDEM_V_DUPLICATE);

    op = op_lock("lock", "me", 0);
    got = insist(rig, &op, &lost);
    assert_verdict(got, IDEM_V_STARTED);
    assert_int_equal(insist(rig, &op, &lost).fence, got.fence);
    op = op_begin("settled");
    op.verb = IDEM_SETTLE;
    lost = false;
    got = insist(rig, &op, &lost);
    if (!lost)
        assert_verdict(got, IDEM_V_SETTLED);
    op = op_begin("settled");
    got = insist(rig, &op, &lost);
    assert_verdict(got, IDEM_V_REPLAY);
    assert_int_equal(got.state, IDEM_STATE_FAILED);
}

static int
live_with(enum faulty_kind kind, enum fault fault, int skip, int count)
{
    struct rig rig;
    int calls;

    rig_open(&rig, kind, NULL);
    rig.store->faulty_now = true;
    faulty_plan(rig.store, fault, skip, count);
    live_a_request(&rig);
    live_a_release(&rig);
    live_a_token_and_a_lock(&rig);
    calls = rig.store->calls;
    rig_close(&rig);
    return calls;
}

static void
every_call_may_fail_in_every_way(void **state)
{
    static const enum faulty_kind kinds[] = {FAULTY_LOCAL, FAULTY_REMOTE,
                                             FAULTY_CLOCKLESS};
    static const int counts[] = {1, 2, 6, 9};
    int runs = 0;

    (void)state;
    for (int k = 0; k < 3; k++) {
        for (int f = FAULT_UNAVAILABLE; f < FAULT_COUNT; f++) {
            for (int c = 0; c < 4; c++) {
                int skip = 0;

                while (live_with(kinds[k], (enum fault)f, skip, counts[c]) >
                       skip) {
                    skip++;
                    runs++;
                }
                assert_true(skip >= 9);
            }
        }
    }
    print_message("%d runs\n", runs);
}

/* ---- lost -----------------------------------------------------------------
 */

static void
a_lost_write_is_sent_again_and_counts_once(void **state)
{
    static const enum fault faults[] = {FAULT_LOST_APPLIED, FAULT_LOST_NOT};
    struct rig rig;

    (void)state;
    for (int i = 0; i < 2; i++) {
        struct idem_op op = op_begin("a");
        struct reply start;

        rig_open(&rig, FAULTY_REMOTE, NULL);
        faulty_plan(rig.store, faults[i], 0, 3);
        start = ask(rig.engine, &op);
        assert_verdict(start, IDEM_V_STARTED);
        assert_int_equal(rig.store->swaps, 4);
        op = op_finish("a", start.fence, "R");
        assert_verdict(ask(rig.engine, &op), IDEM_V_OK);
        rig_close(&rig);
    }
}

static void
what_stays_lost_is_lost_for_all_who_depended_on_it(void **state)
{
    struct rig *rig = *state;
    struct idem_op op = op_begin("a");
    struct reply first, second, waiting, other, again;

    op.nonce = nonce_a;
    put(rig->engine, &op, &first);
    op.nonce = NULL;
    put(rig->engine, &op, &second);
    op = op_wait("a", 5000);
    put(rig->engine, &op, &waiting);
    op = op_get("nothing there");
    put(rig->engine, &op, &other);
    faulty_plan(rig->store, FAULT_LOST_APPLIED, 0, 100);
    turn(rig->engine);
    assert_status(first, IDEM_ERR_LOST);
    assert_status(second, IDEM_ERR_LOST);
    assert_status(waiting, IDEM_ERR_LOST);
    assert_verdict(other, IDEM_V_ABSENT);
    /* It was stored, and is recognised by its own nonce. */
    faulty_plan(rig->store, FAULT_NONE, 0, 0);
    op = op_begin("a");
    assert_verdict(ask(rig->engine, &op), IDEM_V_BUSY);
    op.nonce = nonce_a;
    again = ask(rig->engine, &op);
    assert_verdict(again, IDEM_V_STARTED);
}

/* A write of another client between two attempts of a lost swap. */
struct meddler {
    struct idem_engine *engine;
    struct idem_op op;
    int at_swap, swaps;
    enum fault fault_after; /* how the store fails after that */
    struct reply reply;
};

static void
meddle(void *arg, struct faulty_store *store)
{
    struct meddler *meddler = arg;

    if (++meddler->swaps != meddler->at_swap)
        return;
    if (meddler->op.scope.len > 0)
        meddler->reply = ask(meddler->engine, &meddler->op);
    if (meddler->fault_after != FAULT_NONE)
        faulty_plan(store, meddler->fault_after, 0, 100);
}

/* Run `op` on an engine whose first swap fails in this way, while another
 * client writes before the second attempt. */
static struct reply
lose_to(struct rig *rig, const struct idem_op *op, enum fault fault,
        const struct idem_op *theirs, enum fault fault_after)
{
    struct meddler meddler = {.at_swap = 2, .fault_after = fault_after};
    struct reply reply;

    meddler.engine = rig_engine(rig, FAULTY_REMOTE, NULL, NULL);
    if (theirs)
        meddler.op = *theirs;
    rig->store->before_swap = meddle;
    rig->store->before_swap_arg = &meddler;
    faulty_plan(rig->store, fault, 0, 1);
    reply = ask(rig->engine, op);
    rig->store->before_swap = NULL;
    faulty_plan(rig->store, FAULT_NONE, 0, 0);
    idem_close(meddler.engine);
    return reply;
}

static void
a_lost_forget_spares_what_was_started_since(void **state)
{
    struct rig *rig = *state;
    struct idem_op op = op_begin("a"), get = op_get("a"),
                   theirs = op_begin("a");

    assert_verdict(ask(rig->engine, &op), IDEM_V_STARTED);
    op.verb = IDEM_FORGET;
    assert_status(lose_to(rig, &op, FAULT_LOST_APPLIED, &theirs, FAULT_NONE),
                  IDEM_ERR_LOST);
    assert_int_equal(ask(rig->engine, &get).state, IDEM_STATE_EXECUTING);
}

static void
lost_and_then_refused_for_sure_is_still_lost(void **state)
{
    static const enum fault after[] = {FAULT_UNAVAILABLE, FAULT_FULL,
                                       FAULT_LOCKED};
    struct rig rig;

    (void)state;
    for (int i = 0; i < 3; i++) {
        struct idem_op op = op_begin("a");

        rig_open(&rig, FAULTY_REMOTE, NULL);
        assert_status(lose_to(&rig, &op, FAULT_LOST_APPLIED, NULL, after[i]),
                      IDEM_ERR_LOST);
        rig_close(&rig);
    }
}

static void
a_begin_that_was_lost_and_overtaken_is_decided_anew(void **state)
{
    struct rig *rig = *state;
    struct idem_op op = op_begin("a"), theirs = op_begin("a");

    theirs.nonce = nonce_b;
    assert_verdict(lose_to(rig, &op, FAULT_LOST_NOT, &theirs, FAULT_NONE),
                   IDEM_V_BUSY);
}

static void
a_finish_that_was_lost_is_found_by_its_fence(void **state)
{
    struct rig *rig = *state;
    struct idem_op op = op_begin("a"), theirs;
    struct reply start;

    start = ask(rig->engine, &op);
    op = op_finish("a", start.fence, "R");
    theirs = op_renew("a", start.fence, 60000);
    assert_verdict(lose_to(rig, &op, FAULT_LOST_NOT, &theirs, FAULT_NONE),
                   IDEM_V_OK);
    op = op_begin("a");
    assert_verdict(ask(rig->engine, &op), IDEM_V_REPLAY);
}

static void
a_release_that_was_lost_and_overtaken_stays_lost(void **state)
{
    struct rig *rig = *state;
    struct idem_op op = op_begin("a"), theirs = op_begin("a");
    struct reply start;

    start = ask(rig->engine, &op);
    op = op_release("a", start.fence);
    /* "stale" would mean that the claim was lost before, which it was not. */
    assert_status(lose_to(rig, &op, FAULT_LOST_APPLIED, &theirs, FAULT_NONE),
                  IDEM_ERR_LOST);
}

/* ---- parked operations ------------------------------------------------- */

static void
parked_ones_outlast_a_store_that_is_away(void **state)
{
    struct rig *rig = *state;
    struct idem_op op = op_begin("a");
    struct reply start, waiting, finish;

    start = ask(rig->engine, &op);
    op = op_wait("a", 60000);
    put(rig->engine, &op, &waiting);
    turn(rig->engine);
    faulty_plan(rig->store, FAULT_UNAVAILABLE, 0, 1000);
    for (int i = 0; i < 20; i++) {
        test_clocks_pass(&rig->clocks, 500);
        turn(rig->engine);
    }
    assert_false(waiting.done);
    op = op_finish("a", start.fence, "R");
    assert_status(ask(rig->engine, &op), IDEM_ERR_UNAVAILABLE);
    assert_false(waiting.done);
    faulty_plan(rig->store, FAULT_NONE, 0, 0);
    test_clocks_pass(&rig->clocks, 1100);
    finish = ask(rig->engine, &op);
    assert_verdict(finish, IDEM_V_OK);
    assert_verdict(waiting, IDEM_V_REPLAY);
}

static void
a_parked_one_whose_own_start_was_lost_is_told(void **state)
{
    struct rig *rig = *state;
    struct idem_op op = op_begin("a");
    struct reply start, first, second, freed;

    start = ask(rig->engine, &op);
    op = op_wait("a", 60000);
    op.nonce = nonce_a;
    put(rig->engine, &op, &first);
    op.nonce = nonce_b;
    put(rig->engine, &op, &second);
    turn(rig->engine);
    faulty_plan(rig->store, FAULT_LOST_APPLIED, 0, 100);
    op = op_release("a", start.fence);
    freed = ask(rig->engine, &op);
    assert_status(freed, IDEM_ERR_LOST);
    assert_status(first, IDEM_ERR_LOST);
    assert_false(second.done);
    faulty_plan(rig->store, FAULT_NONE, 0, 0);
    op = op_begin("a");
    op.nonce = nonce_a;
    first = ask(rig->engine, &op);
    assert_verdict(first, IDEM_V_STARTED);
    op = op_finish("a", first.fence, "R");
    assert_verdict(ask(rig->engine, &op), IDEM_V_OK);
    assert_verdict(second, IDEM_V_REPLAY);
}

static void
nobody_is_shown_a_fence_that_was_not_stored(void **state)
{
    struct rig *rig = *state;
    struct idem_op op = op_begin("a");
    struct reply start, first, second;

    op.mode = IDEM_LOOSE;
    op.lease_ms = 5000;
    start = ask(rig->engine, &op);
    op = op_wait("a", 60000);
    put(rig->engine, &op, &first);
    op = op_wait("a", 5010);
    put(rig->engine, &op, &second);
    turn(rig->engine);
    /* The lease ends and the first waiter would take over, but nothing is
     * stored. */
    faulty_plan(rig->store, FAULT_FULL, 0, 1000);
    test_clocks_pass(&rig->clocks, 5005);
    turn(rig->engine);
    assert_false(first.done || second.done);
    test_clocks_pass(&rig->clocks, 5);
    turn(rig->engine);
    assert_verdict(second, IDEM_V_BUSY);
    assert_true(second.fence == 0 || second.fence == start.fence);
    assert_false(first.done);
    faulty_plan(rig->store, FAULT_NONE, 0, 0);
    test_clocks_pass(&rig->clocks, 100);
    turn(rig->engine);
    assert_verdict(first, IDEM_V_STARTED);
}

/* ---- full, damaged, contended, unavailable ----------------------------- */

static void
a_full_store_still_replays(void **state)
{
    struct rig *rig = *state;
    struct idem_op op = op_begin("done");
    struct reply start, replay, claim;

    start = ask(rig->engine, &op);
    op = op_finish("done", start.fence, "R");
    ask(rig->engine, &op);
    faulty_plan(rig->store, FAULT_FULL, 0, 1000);
    op = op_begin("new");
    put(rig->engine, &op, &claim);
    op = op_begin("done");
    put(rig->engine, &op, &replay);
    turn(rig->engine);
    assert_status(claim, IDEM_ERR_FULL);
    assert_verdict(replay, IDEM_V_REPLAY);
}

static void
who_needed_no_write_is_answered_although_the_write_failed(void **state)
{
    struct rig *rig = *state;
    struct idem_op op = op_begin("a");
    struct reply start, get, renew, after;

    start = ask(rig->engine, &op);
    op = op_get("a");
    put(rig->engine, &op, &get);
    op = op_renew("a", start.fence, 60000);
    put(rig->engine, &op, &renew);
    op = op_get("a");
    put(rig->engine, &op, &after);
    faulty_plan(rig->store, FAULT_FULL, 0, 1);
    turn(rig->engine);
    assert_verdict(get, IDEM_V_RECORD);
    assert_status(renew, IDEM_ERR_FULL);
    assert_status(after, IDEM_ERR_FULL);
}

static void
a_damaged_record_takes_no_other_along(void **state)
{
    struct rig *rig = *state;
    uint8_t key[IDEM_KEY_LEN];
    struct reply replies[3];
    const char *ids[] = {"one", "damaged", "three"};

    idem__key(IDEM_TYPE_REQUEST, idem_text("test"), idem_text("damaged"), key);
    rig->store->damaged = key;
    for (int i = 0; i < 3; i++) {
        struct idem_op op = op_begin(ids[i]);

        put(rig->engine, &op, &replies[i]);
    }
    turn(rig->engine);
    assert_verdict(replies[0], IDEM_V_STARTED);
    assert_status(replies[1], IDEM_ERR_CORRUPT);
    assert_verdict(replies[2], IDEM_V_STARTED);
}

static void
renew_always(void *arg, struct faulty_store *store)
{
    struct meddler *meddler = arg;

    (void)store;
    meddler->swaps++;
    ask(meddler->engine, &meddler->op);
}

static void
a_record_that_others_always_write_is_given_up(void **state)
{
    struct rig *rig = *state;
    struct meddler meddler = {.swaps = 0};
    struct idem_op op = op_begin("a");
    struct reply start, reply;

    meddler.engine = rig_engine(rig, FAULTY_REMOTE, NULL, NULL);
    start = ask(rig->engine, &op);
    meddler.op = op_renew("a", start.fence, 50000);
    rig->store->before_swap = renew_always;
    rig->store->before_swap_arg = &meddler;
    op = op_finish("a", start.fence, "R");
    reply = ask(rig->engine, &op);
    assert_status(reply, IDEM_ERR_UNAVAILABLE);
    assert_in_range(meddler.swaps, 10, 100);
    rig->store->before_swap = NULL;
    assert_verdict(ask(rig->engine, &op), IDEM_V_OK);
    idem_close(meddler.engine);
}

static void
a_store_that_is_away_is_not_asked_for_every_op(void **state)
{
    struct rig *rig = *state;
    struct idem_op op = op_begin("a");
    struct reply reply;
    int calls;

    faulty_plan(rig->store, FAULT_UNAVAILABLE, 0, 1000000);
    assert_status(ask(rig->engine, &op), IDEM_ERR_UNAVAILABLE);
    calls = rig->store->calls;
    for (int i = 0; i < 100; i++) {
        reply = ask(rig->engine, &op);
        assert_status(reply, IDEM_ERR_UNAVAILABLE);
        assert_non_null(strstr(reply.text, "planned"));
    }
    assert_int_equal(rig->store->calls, calls);
    /* The store is tried again less and less often, but at least once a
     * second. */
    for (int i = 0; i < 100; i++) {
        test_clocks_pass(&rig->clocks, 100);
        ask(rig->engine, &op);
    }
    assert_in_range(rig->store->calls - calls, 9, 30);
    faulty_plan(rig->store, FAULT_NONE, 0, 0);
    test_clocks_pass(&rig->clocks, 1001);
    assert_verdict(ask(rig->engine, &op), IDEM_V_STARTED);
}

static void
what_was_not_sent_after_a_loss_is_not_said_to_be_lost(void **state)
{
    struct rig *rig = *state;
    struct idem_op lost = op_begin("lost"), later = op_begin("later");
    struct reply reply;

    faulty_plan(rig->store, FAULT_LOST_NOT, 0, 1000000);
    reply = ask(rig->engine, &lost);
    assert_status(reply, IDEM_ERR_LOST);
    assert_non_null(strstr(reply.text, "cannot tell"));
    reply = ask(rig->engine, &later);
    assert_status(reply, IDEM_ERR_UNAVAILABLE);
    assert_null(strstr(reply.text, "cannot tell"));
}

static void
a_store_that_gives_no_reason_is_said_to_give_none(void **state)
{
    struct rig *rig = *state;
    struct idem_op lost = op_begin("lost"), later = op_begin("later");
    struct reply reply;

    reply = lose_to(rig, &lost, FAULT_LOST_NOT, NULL, FAULT_LOCKED);
    assert_status(reply, IDEM_ERR_LOST);
    assert_non_null(strstr(reply.text, "did not say"));
    reply = ask(rig->engine, &later);
    assert_status(reply, IDEM_ERR_UNAVAILABLE);
    assert_non_null(strstr(reply.text, "did not say"));
}

/* ---- what a store says wrongly, or only in part ---------------------------
 */

static void
a_load_whose_reply_is_lost_changed_nothing(void **state)
{
    struct rig *rig = *state;
    struct idem_op op = op_get("a");

    atomic_store(&rig->store->load_fails, IDEM_ERR_LOST);
    assert_status(ask(rig->engine, &op), IDEM_ERR_UNAVAILABLE);
    atomic_store(&rig->store->load_fails, IDEM_OK);
    test_clocks_pass(&rig->clocks, 1100);
    assert_verdict(ask(rig->engine, &op), IDEM_V_ABSENT);
}

static void
a_record_of_a_newer_version_takes_no_other_along(void **state)
{
    struct rig *rig = *state;
    struct idem_op op = op_get("a");

    atomic_store(&rig->store->load_fails, IDEM_ERR_UNSUPPORTED);
    assert_status(ask(rig->engine, &op), IDEM_ERR_UNSUPPORTED);
    /* The store answers, so the next one is not kept away from it. */
    atomic_store(&rig->store->load_fails, IDEM_OK);
    assert_verdict(ask(rig->engine, &op), IDEM_V_ABSENT);
}

static void
a_record_that_cannot_be_written_takes_no_other_along(void **state)
{
    struct rig *rig = *state;
    static const char *const ids[] = {"a", "b", "c", "d", "e"};
    struct reply replies[5];
    uint8_t key[IDEM_KEY_LEN];
    struct idem_op op = op_begin("c");

    idem__key(IDEM_TYPE_REQUEST, op.scope, op.id, key);
    rig->store->unwritable = key;
    for (int i = 0; i < 5; i++) {
        op = op_begin(ids[i]);
        put(rig->engine, &op, &replies[i]);
    }
    turn(rig->engine);
    for (int i = 0; i < 5; i++) {
        if (i == 2)
            assert_status(replies[i], IDEM_ERR_CORRUPT);
        else
            assert_verdict(replies[i], IDEM_V_STARTED);
    }
}

/* An operation on "a" and one that cannot be written, in one batch. Redis and
 * etcd write each record by itself, so the first one may be stored. Before it
 * is sent again, another client writes or the store fails. */
static struct reply
write_beside_damage(struct rig *rig, const struct idem_op *op,
                    enum beside beside, struct meddler *meddler)
{
    struct idem_op bad = op_begin("damaged");
    uint8_t key[IDEM_KEY_LEN];
    struct reply reply, damaged;

    idem__key(IDEM_TYPE_REQUEST, bad.scope, bad.id, key);
    meddler->at_swap = 2;
    rig->store->unwritable = key;
    rig->store->beside = beside;
    rig->store->before_swap = meddle;
    rig->store->before_swap_arg = meddler;
    put(rig->engine, op, &reply);
    put(rig->engine, &bad, &damaged);
    turn(rig->engine);
    rig->store->before_swap = NULL;
    rig->store->unwritable = NULL;
    faulty_plan(rig->store, FAULT_NONE, 0, 0);
    return reply;
}

static void
a_forget_that_was_stored_beside_damage_spares_what_was_started_since(
    void **state)
{
    struct rig *rig = *state;
    struct idem_op op = op_begin("a"), forget = op_begin("a");
    struct meddler meddler = {.op = op_begin("a")};
    struct reply reply;

    assert_verdict(ask(rig->engine, &op), IDEM_V_STARTED);
    forget.verb = IDEM_FORGET;
    meddler.engine = rig_engine(rig, FAULTY_REMOTE, NULL, NULL);
    reply = write_beside_damage(rig, &forget, BESIDE_STORED, &meddler);
    assert_verdict(meddler.reply, IDEM_V_STARTED);
    assert_status(reply, IDEM_ERR_LOST);
    assert_verdict(ask(rig->engine, &op), IDEM_V_BUSY);
    idem_close(meddler.engine);
}

static void
a_claim_that_was_stored_beside_damage_is_never_not_stored(void **state)
{
    static const enum beside beside[] = {BESIDE_STORED, BESIDE_LOST};
    struct rig rig;

    (void)state;
    for (int i = 0; i < 2; i++) {
        struct idem_op op = op_begin("a"), get = op_get("a");
        struct meddler meddler = {.fault_after = FAULT_UNAVAILABLE};

        rig_open(&rig, FAULTY_REMOTE, NULL);
        assert_status(write_beside_damage(&rig, &op, beside[i], &meddler),
                      IDEM_ERR_LOST);
        test_clocks_pass(&rig.clocks, 2000);
        assert_int_equal(ask(rig.engine, &get).state, IDEM_STATE_EXECUTING);
        rig_close(&rig);
    }
}

/* The store's contract says that such a swap counts as stored. */
static void
a_write_that_is_there_counts_although_its_repetition_is_refused(void **state)
{
    struct rig *rig = *state;
    struct idem_op op = op_begin("a");
    struct reply start;

    rig->store->refuses_again = true;
    faulty_plan(rig->store, FAULT_LOST_APPLIED, 0, 1);
    start = ask(rig->engine, &op);
    assert_verdict(start, IDEM_V_STARTED);
    rig->store->refuses_again = false;
    op = op_finish("a", start.fence, "R");
    assert_verdict(ask(rig->engine, &op), IDEM_V_OK);
}

static void
a_write_that_was_not_stored_is_not_said_to_be_lost(void **state)
{
    struct rig *rig = *state;
    struct idem_op first = op_begin("a"), second = op_begin("b");
    struct reply one, two;

    faulty_plan(rig->store, FAULT_SOME_LOST, 0, 1);
    put(rig->engine, &first, &one);
    put(rig->engine, &second, &two);
    turn(rig->engine);
    /* One was not stored; the other was lost, sent again, and then stored. */
    if (one.status == IDEM_OK) {
        assert_verdict(one, IDEM_V_STARTED);
        assert_status(two, IDEM_ERR_UNAVAILABLE);
    } else {
        assert_status(one, IDEM_ERR_UNAVAILABLE);
        assert_verdict(two, IDEM_V_STARTED);
    }
}

/* Redis Cluster: another part may answer. */
static void
a_store_whose_parts_fail_separately_is_asked_for_every_op(void **state)
{
    struct rig *rig = *state;
    struct idem_op op = op_begin("a");

    faulty_plan(rig->store, FAULT_UNAVAILABLE, 0, 1);
    assert_status(ask(rig->engine, &op), IDEM_ERR_UNAVAILABLE);
    assert_verdict(ask(rig->engine, &op), IDEM_V_STARTED);
}

static void
a_store_whose_clock_cannot_be_read_is_not_opened(void **state)
{
    struct rig *rig = *state;
    struct idem__engine_inner inner = {.driven = true};
    struct faulty_store *store;
    struct idem_engine *engine = NULL;
    struct idem_error err;

    store = faulty_open(FAULTY_REMOTE, rig->memory, &rig->lock);
    store->faulty_now = true;
    faulty_plan(store, FAULT_UNAVAILABLE, 0, 1);
    inner.store = &store->base;
    inner.clocks = &rig->clocks.clocks;
    assert_int_equal(idem__engine_open(NULL, NULL, &inner, &engine, &err),
                     IDEM_ERR_UNAVAILABLE);
    assert_string_equal(err.text, "planned: no clock");
    assert_null(engine);
}

/* REDEEM with a new token makes two writes, and only the second one fails. */
static void
what_is_redeemed_is_told_without_a_fresh_token_too(void **state)
{
    struct rig *rig = *state;
    struct idem_op op = op_begin("token");
    struct idem_answer answer = {0};

    op.verb = IDEM_ISSUE;
    assert_verdict(ask(rig->engine, &op), IDEM_V_ISSUED);
    op.verb = IDEM_REDEEM;
    faulty_plan(rig->store, FAULT_FULL, 1, 1000000);
    assert_int_equal(idem__do_verb(rig->engine, &op, true, &answer, NULL),
                     IDEM_OK);
    assert_int_equal(answer.verdict, IDEM_V_REDEEMED);
    assert_int_equal(answer.record->id.len, 0);
    idem_answer_clear(&answer);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_call_may_fail_in_every_way),
        cmocka_unit_test(a_lost_write_is_sent_again_and_counts_once),
        rig_test(what_stays_lost_is_lost_for_all_who_depended_on_it,
                 FAULTY_LOCAL),
        rig_test(a_lost_forget_spares_what_was_started_since, FAULTY_REMOTE),
        cmocka_unit_test(lost_and_then_refused_for_sure_is_still_lost),
        rig_test(a_begin_that_was_lost_and_overtaken_is_decided_anew,
                 FAULTY_REMOTE),
        rig_test(a_finish_that_was_lost_is_found_by_its_fence, FAULTY_REMOTE),
        rig_test(a_release_that_was_lost_and_overtaken_stays_lost,
                 FAULTY_REMOTE),
        rig_test(parked_ones_outlast_a_store_that_is_away, FAULTY_REMOTE),
        rig_test(a_parked_one_whose_own_start_was_lost_is_told, FAULTY_LOCAL),
        rig_test(nobody_is_shown_a_fence_that_was_not_stored, FAULTY_LOCAL),
        rig_test(a_full_store_still_replays, FAULTY_LOCAL),
        rig_test(who_needed_no_write_is_answered_although_the_write_failed,
                 FAULTY_LOCAL),
        rig_test(a_damaged_record_takes_no_other_along, FAULTY_LOCAL),
        rig_test(a_record_that_others_always_write_is_given_up, FAULTY_REMOTE),
        rig_test(a_store_that_is_away_is_not_asked_for_every_op, FAULTY_REMOTE),
        rig_test(what_was_not_sent_after_a_loss_is_not_said_to_be_lost,
                 FAULTY_REMOTE),
        rig_test(a_store_that_gives_no_reason_is_said_to_give_none,
                 FAULTY_REMOTE),
        rig_test(a_load_whose_reply_is_lost_changed_nothing, FAULTY_REMOTE),
        rig_test(a_record_of_a_newer_version_takes_no_other_along,
                 FAULTY_REMOTE),
        rig_test(
            a_forget_that_was_stored_beside_damage_spares_what_was_started_since,
            FAULTY_REMOTE),
        cmocka_unit_test(
            a_claim_that_was_stored_beside_damage_is_never_not_stored),
        rig_test(a_record_that_cannot_be_written_takes_no_other_along,
                 FAULTY_REMOTE),
        rig_test(
            a_write_that_is_there_counts_although_its_repetition_is_refused,
            FAULTY_REMOTE),
        rig_test(a_write_that_was_not_stored_is_not_said_to_be_lost,
                 FAULTY_REMOTE),
        rig_test(a_store_whose_parts_fail_separately_is_asked_for_every_op,
                 FAULTY_PARTIAL),
        rig_test(a_store_whose_clock_cannot_be_read_is_not_opened,
                 FAULTY_REMOTE),
        rig_test(what_is_redeemed_is_told_without_a_fresh_token_too,
                 FAULTY_LOCAL),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
