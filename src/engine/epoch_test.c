/*
 * epoch_test.c - tests that an engine notices a store that went back in time,
 * refuses what could run twice, and goes on when an operator accepts the loss.
 *
 * The store is a memory store behind one that is far away. A copy of it is a
 * backup: to go back, the engine gets the copy instead.
 */
#include "../../tests/support/rig.h"
#include "inner.h"

#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>

#define SECOND_MS 1000
#define DAY_MS (INT64_C(24) * 3600 * 1000)
#define WENT_BACK "went back to an older state"

struct world {
    struct test_clocks clocks;
    char folder[200], file[256];
    struct idem_store *stores[4]; /* the first one, and its copies */
    size_t count;
    struct faulty_store *store;
    struct idem_engine *engine;
    int alarms, warnings;
    char said[512]; /* the last alarm or warning */
};

static void
note_log(void *arg, enum idem_log_level level, const char *text)
{
    struct world *world = arg;

    /* A claim that is missing has an alarm of its own (claims_test.c). */
    world->alarms +=
        level == IDEM_LOG_ALARM && strstr(text, "the store went back") != NULL;
    world->warnings += level == IDEM_LOG_WARNING;
    if (level != IDEM_LOG_INFO)
        snprintf(world->said, sizeof(world->said), "%s", text);
}

static struct idem_store *
empty_store(struct world *world)
{
    struct idem_store_options options = {.clocks = &world->clocks.clocks};
    struct idem_store *store;

    assert_true(world->count < 4);
    assert_int_equal(idem__store_open("memory:", &options, &store, NULL),
                     IDEM_OK);
    world->stores[world->count++] = store;
    return store;
}

static bool
copy_record(void *arg, const struct idem_record *record)
{
    struct idem_store *to = arg;
    struct idem_swap swap = {.record = record};
    struct idem_arena arena = {NULL, 0};

    idem__key(record->type, record->scope, record->id, swap.key);
    assert_int_equal(to->type->swap(to, &swap, 1, &arena, NULL), IDEM_OK);
    assert_int_equal(swap.outcome, IDEM_SWAP_STORED);
    idem_arena_clear(&arena);
    return true;
}

/* What the store has now. */
static struct idem_store *
backup(struct world *world)
{
    struct idem_store *copy = empty_store(world);
    struct idem_store *from = world->store->inner;
    struct idem_filter all = {0};
    struct idem_now now = {0};
    struct idem_cursor cursor = {"0"};
    struct idem_query query = {.filter = &all,
                               .now = &now,
                               .cursor = &cursor,
                               .count = 1000,
                               .each = copy_record,
                               .arg = copy};

    assert_int_equal(from->type->scan(from, &query, NULL), IDEM_OK);
    assert_string_equal(cursor.text, "0");
    return copy;
}

static enum idem_status
open_engine(struct world *world, bool accepts, struct idem_error *err)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    struct idem_options options = {.log = note_log, .log_arg = world};
    struct idem__engine_inner inner = {.clocks = &world->clocks.clocks,
                                       .driven = true,
                                       .hasty = true,
                                       .epoch_file = world->file,
                                       .accept_rollback = accepts};

    /* With a lock it leaves the inner store open. */
    world->store =
        faulty_open(FAULTY_REMOTE, world->stores[world->count - 1], &lock);
    inner.store = &world->store->base;
    return idem__engine_open(NULL, &options, &inner, &world->engine, err);
}

static void
open_world(struct world *world)
{
    memset(world, 0, sizeof(*world));
    test_clocks_init(&world->clocks);
    make_folder(world->folder, sizeof(world->folder));
    snprintf(world->file, sizeof(world->file), "%s/epoch", world->folder);
    (void)empty_store(world);
    assert_int_equal(open_engine(world, false, NULL), IDEM_OK);
}

static void
close_world(struct world *world)
{
    idem_close(world->engine);
    for (size_t i = 0; i < world->count; i++)
        idem__store_close(world->stores[i]);
    remove_folder(world->folder);
}

static struct reply
ask_later(struct world *world, int64_t ms, struct idem_op op)
{
    test_clocks_pass(&world->clocks, ms);
    return ask(world->engine, &op);
}

static struct reply
ask_now(struct world *world, struct idem_op op)
{
    return ask_later(world, 0, op);
}

static struct idem_op
loose(struct idem_op op)
{
    op.mode = IDEM_LOOSE;
    return op;
}

static struct idem_op
as(struct idem_op op, enum idem_verb verb, enum idem_type type)
{
    op.verb = verb;
    op.type = type;
    return op;
}

#define assert_refused_as(what, status)                                        \
    do {                                                                       \
        struct reply refused_ = (what);                                        \
        assert_status(refused_, status);                                       \
        assert_non_null(strstr(refused_.text, WENT_BACK));                     \
        assert_true(idem__refused_by_engine(refused_.text));                   \
    } while (0)
#define assert_refused(what) assert_refused_as(what, IDEM_ERR_UNAVAILABLE)

/* ---- it is noticed ------------------------------------------------------- */

static void
an_empty_store_refuses_what_could_run_twice(void **state)
{
    struct world world;
    struct idem_op op;

    (void)state;
    open_world(&world);
    assert_false(idem__accept_rollback(world.engine));
    assert_verdict(ask_now(&world, op_begin("a")), IDEM_V_STARTED);
    world.store->inner = empty_store(&world);
    assert_refused(ask_later(&world, 2 * SECOND_MS, op_begin("b")));
    assert_int_equal(world.alarms, 1);
    assert_non_null(strstr(world.said, "left there is gone"));
    /* A tombstone would say that a request failed which may have been done. */
    assert_refused(ask_now(&world, as(op_begin("c"), IDEM_SETTLE, 0)));
    op = as(op_begin("c"), IDEM_SETTLE, 0);
    op.outcome = IDEM_STATE_SUCCEEDED;
    assert_verdict(ask_now(&world, op), IDEM_V_SETTLED);
    assert_refused(ask_now(
        &world, as(op_lock("w", "me", 0), IDEM_LOCK, IDEM_TYPE_WORKER)));
    /* Nothing of this happens only once. */
    assert_verdict(ask_now(&world, op_lock("l", "me", 0)), IDEM_V_STARTED);
    assert_verdict(ask_now(&world, loose(op_begin("d"))), IDEM_V_STARTED);
    assert_verdict(ask_now(&world, op_get("a")), IDEM_V_ABSENT);
    assert_int_equal(world.alarms, 1);
    close_world(&world);
}

static void
a_token_that_was_issued_since_is_refused_too(void **state)
{
    struct idem_op issue = as(op_begin("t"), IDEM_ISSUE, IDEM_TYPE_TOKEN);
    struct world world;

    (void)state;
    open_world(&world);
    world.store->inner = empty_store(&world);
    assert_refused(ask_later(&world, 2 * SECOND_MS, op_begin("b")));
    assert_verdict(ask_now(&world, issue), IDEM_V_ISSUED);
    assert_refused(
        ask_now(&world, as(op_begin("t"), IDEM_REDEEM, IDEM_TYPE_TOKEN)));
    assert_refused(
        ask_now(&world, loose(as(op_begin("t"), IDEM_BEGIN, IDEM_TYPE_TOKEN))));
    close_world(&world);
}

static void
an_older_copy_of_the_store_is_noticed_by_its_mark(void **state)
{
    struct idem_store *old;
    struct world world;

    (void)state;
    open_world(&world);
    old = backup(&world);
    assert_verdict(ask_later(&world, 3 * SECOND_MS, op_begin("a")),
                   IDEM_V_STARTED);
    world.store->inner = old;
    assert_refused(ask_later(&world, 2 * SECOND_MS, op_begin("b")));
    assert_non_null(strstr(world.said, "is 3.0 s older"));
    close_world(&world);
}

static void
the_loss_of_the_last_write_is_noticed_although_the_mark_is_there(void **state)
{
    struct idem_store *old;
    struct world world;

    (void)state;
    open_world(&world);
    old = backup(&world); /* it has the newest mark */
    assert_verdict(ask_later(&world, 500, op_begin("a")), IDEM_V_STARTED);
    world.store->inner = old;
    assert_refused(ask_later(&world, 2 * SECOND_MS, op_begin("b")));
    assert_non_null(strstr(world.said, "wrote last is gone"));
    close_world(&world);
}

static void
the_loss_of_an_outcome_is_noticed_although_its_claim_is_there(void **state)
{
    struct idem_store *old;
    struct reply start;
    struct world world;

    (void)state;
    open_world(&world);
    start = ask_now(&world, op_begin("a"));
    old = backup(&world);
    assert_verdict(ask_now(&world, op_finish("a", start.fence, "R")),
                   IDEM_V_OK);
    world.store->inner = old;
    assert_refused(ask_later(&world, 2 * SECOND_MS, op_begin("b")));
    assert_non_null(strstr(world.said, "wrote last is gone"));
    close_world(&world);
}

/* The simulator found these three. */
static void
a_renewal_does_not_hide_the_loss_of_a_claim(void **state)
{
    struct idem_store *old;
    struct reply start;
    struct world world;

    (void)state;
    open_world(&world);
    start = ask_now(&world, op_begin("a"));
    old = backup(&world);
    assert_verdict(ask_later(&world, 200, op_begin("b")), IDEM_V_STARTED);
    assert_verdict(ask_now(&world, op_renew("a", start.fence, 60000)),
                   IDEM_V_OK);
    world.store->inner = old;
    assert_refused(ask_later(&world, 2 * SECOND_MS, op_begin("c")));
    assert_non_null(strstr(world.said, "wrote last is gone"));
    close_world(&world);
}

static void
a_noticed_loss_is_not_forgotten_by_a_restart(void **state)
{
    struct world world;

    (void)state;
    open_world(&world);
    (void)backup(&world);
    assert_verdict(ask_later(&world, 500, op_begin("a")), IDEM_V_STARTED);
    world.store->inner = world.stores[1];
    assert_refused(ask_later(&world, 2 * SECOND_MS, op_begin("b")));
    for (int i = 2; i < 4; i++) {
        idem_close(world.engine);
        assert_int_equal(open_engine(&world, false, NULL), IDEM_OK);
        assert_int_equal(world.alarms, i);
        assert_refused(ask_later(&world, 2 * SECOND_MS, op_begin("a")));
    }
    assert_true(idem__accept_rollback(world.engine));
    assert_verdict(ask_now(&world, op_begin("a")), IDEM_V_STARTED);
    idem_close(world.engine);
    assert_int_equal(open_engine(&world, false, NULL), IDEM_OK);
    assert_int_equal(world.alarms, 3);
    close_world(&world);
}

static void
a_noticed_loss_is_not_forgotten_by_an_empty_store(void **state)
{
    struct world world;

    (void)state;
    open_world(&world);
    (void)backup(&world);
    assert_verdict(ask_later(&world, 500, op_begin("a")), IDEM_V_STARTED);
    world.store->inner = world.stores[1];
    assert_refused(ask_later(&world, 2 * SECOND_MS, op_begin("b")));
    idem_close(world.engine);
    (void)empty_store(&world); /* the next engine opens this one */
    assert_int_equal(open_engine(&world, false, NULL), IDEM_OK);
    assert_int_equal(world.alarms, 2);
    assert_refused(ask_now(&world, op_begin("a")));
    close_world(&world);
}

static void
an_outcome_that_is_still_there_is_no_loss(void **state)
{
    struct reply start;
    struct world world;

    (void)state;
    open_world(&world);
    start = ask_now(&world, op_begin("a"));
    assert_verdict(ask_now(&world, op_finish("a", start.fence, "R")),
                   IDEM_V_OK);
    world.store->inner = backup(&world);
    assert_verdict(ask_later(&world, 2 * SECOND_MS, op_begin("b")),
                   IDEM_V_STARTED);
    assert_int_equal(world.alarms, 0);
    close_world(&world);
}

static void
an_outcome_that_may_have_expired_is_not_missed(void **state)
{
    static const int64_t ttls_ms[] = {30 * SECOND_MS, 120 * SECOND_MS};
    struct idem_store *old;
    struct reply start;
    struct idem_op op;
    struct world world;

    (void)state;
    for (int i = 0; i < 2; i++) {
        open_world(&world);
        start = ask_now(&world, op_begin("a"));
        (void)ask_later(&world, 2 * SECOND_MS, op_get("a"));
        old = backup(&world);
        op = op_finish("a", start.fence, "R");
        op.ttl_ms = ttls_ms[i];
        assert_verdict(ask_now(&world, op), IDEM_V_OK);
        world.store->inner = old;
        /* Nobody took a turn meanwhile, so there was no mark. */
        assert_verdict(ask_later(&world, 121 * SECOND_MS, op_begin("b")),
                       IDEM_V_STARTED);
        assert_int_equal(world.alarms, 0);
        close_world(&world);
    }
}

static void
a_mark_that_may_have_expired_proves_nothing(void **state)
{
    struct world world;

    (void)state;
    open_world(&world);
    world.store->inner = empty_store(&world);
    assert_verdict(ask_later(&world, 16 * DAY_MS, op_begin("b")),
                   IDEM_V_STARTED);
    assert_int_equal(world.alarms, 0);
    close_world(&world);
}

/* Within the second after a mark, the claim itself is the first sign. */
static void
a_claim_that_is_missing_is_noticed_at_once(void **state)
{
    struct idem_op begin = op_begin("a"), get = op_get("a");
    struct reply again, seen;
    struct idem_store *old;
    struct world world;

    (void)state;
    open_world(&world);
    old = backup(&world);
    assert_verdict(ask_later(&world, 2 * SECOND_MS, op_begin("a")),
                   IDEM_V_STARTED);
    world.store->inner = old;
    put(world.engine, &get, &seen);
    put(world.engine, &begin, &again);
    turn(world.engine);
    assert_refused(again);
    assert_verdict(seen, IDEM_V_ABSENT); /* reading is allowed */
    assert_int_equal(world.alarms, 1);
    close_world(&world);
}

static void
a_store_that_went_back_and_then_fails_serves_replays_again(void **state)
{
    struct idem_store *old;
    struct reply start;
    struct world world;

    (void)state;
    open_world(&world);
    start = ask_now(&world, op_begin("a"));
    assert_verdict(ask_now(&world, op_finish("a", start.fence, "R")),
                   IDEM_V_OK);
    old = backup(&world);
    assert_verdict(ask_later(&world, 2 * SECOND_MS, op_begin("b")),
                   IDEM_V_STARTED);
    world.store->inner = old;
    assert_refused(ask_later(&world, 2 * SECOND_MS, op_begin("c")));
    faulty_plan(world.store, FAULT_UNAVAILABLE, 0, 1);
    assert_status(ask_now(&world, op_get("a")), IDEM_ERR_UNAVAILABLE);
    assert_verdict(ask_later(&world, 2 * SECOND_MS, op_begin("a")),
                   IDEM_V_REPLAY);
    assert_verdict(ask_now(&world, loose(op_begin("d"))), IDEM_V_STARTED);
    assert_refused(ask_now(&world, op_begin("c")));
    close_world(&world);
}

/* ---- a new connection ---------------------------------------------------- */

struct failover {
    struct world *world;
    struct idem_store *to;
    int swaps;
};

static void
fail_over(void *arg, struct faulty_store *store)
{
    struct failover *failover = arg;

    if (!failover->to)
        return;
    store->inner = failover->to;
    store->base.link++;
    failover->to = NULL;
}

static void
a_write_through_a_new_connection_to_an_older_store_is_lost(void **state)
{
    struct failover failover;
    struct reply reply;
    struct world world;

    (void)state;
    open_world(&world);
    failover = (struct failover){&world, backup(&world), 0};
    assert_verdict(ask_later(&world, 2 * SECOND_MS, op_begin("a")),
                   IDEM_V_STARTED);
    world.store->before_swap = fail_over;
    world.store->before_swap_arg = &failover;
    reply = ask_now(&world, op_begin("b"));
    assert_status(reply, IDEM_ERR_LOST);
    assert_non_null(strstr(reply.text, "went back to an older state"));
    assert_int_equal(world.alarms, 1);
    assert_refused(ask_later(&world, 2 * SECOND_MS, op_begin("c")));
    close_world(&world);
}

/* Its claim is in the older store, and the client sends the BEGIN again. */
static void
a_claim_that_was_written_to_an_older_store_does_not_start(void **state)
{
    struct idem_op op = op_begin("b");
    struct failover failover;
    struct world world;

    (void)state;
    op.nonce = (const uint8_t *)"sixteen bytes...";
    open_world(&world);
    failover = (struct failover){&world, backup(&world), 0};
    assert_verdict(ask_later(&world, 2 * SECOND_MS, op_begin("a")),
                   IDEM_V_STARTED);
    world.store->before_swap = fail_over;
    world.store->before_swap_arg = &failover;
    assert_status(ask_now(&world, op), IDEM_ERR_LOST);
    assert_refused_as(ask_now(&world, op), IDEM_ERR_LOST);
    assert_true(idem__accept_rollback(world.engine));
    assert_verdict(ask_now(&world, op), IDEM_V_STARTED);
    close_world(&world);
}

/* The same for a token: it may have been redeemed in the lost time. */
static void
a_token_that_was_redeemed_in_an_older_store_is_not_redeemed(void **state)
{
    struct idem_op op = as(op_begin("t"), IDEM_REDEEM, IDEM_TYPE_TOKEN);
    struct idem_op issue = as(op_begin("t"), IDEM_ISSUE, IDEM_TYPE_TOKEN);
    struct failover failover;
    struct world world;

    (void)state;
    op.nonce = (const uint8_t *)"sixteen bytes...";
    open_world(&world);
    assert_verdict(ask_now(&world, issue), IDEM_V_ISSUED);
    failover = (struct failover){&world, backup(&world), 0};
    assert_verdict(ask_later(&world, 2 * SECOND_MS, op_begin("a")),
                   IDEM_V_STARTED);
    world.store->before_swap = fail_over;
    world.store->before_swap_arg = &failover;
    assert_status(ask_now(&world, op), IDEM_ERR_LOST);
    assert_refused_as(ask_now(&world, op), IDEM_ERR_LOST);
    close_world(&world);
}

static void
a_write_through_a_new_connection_to_the_same_store_counts(void **state)
{
    struct failover failover;
    struct world world;

    (void)state;
    open_world(&world);
    failover = (struct failover){&world, world.store->inner, 0};
    world.store->before_swap = fail_over;
    world.store->before_swap_arg = &failover;
    assert_verdict(ask_now(&world, op_begin("b")), IDEM_V_STARTED);
    assert_int_equal(world.alarms, 0);
    close_world(&world);
}

/* Three writes of one batch; what they get. */
static void
write_three(struct world *world, struct reply *replies)
{
    static const char *const ids[] = {"x", "y", "z"};

    for (int i = 0; i < 3; i++) {
        struct idem_op op = op_begin(ids[i]);

        put(world->engine, &op, &replies[i]);
    }
    turn(world->engine);
}

static uint64_t
store_errors(struct world *world)
{
    struct idem__stats stats;

    idem__stats(world->engine, &stats);
    return stats.store_errors;
}

static void
all_writes_through_a_new_connection_to_an_older_store_are_lost(void **state)
{
    struct failover failover;
    struct reply replies[3];
    struct world world;
    struct idem_swap *behind;

    (void)state;
    open_world(&world);
    failover = (struct failover){&world, backup(&world), 0};
    assert_verdict(ask_later(&world, 2 * SECOND_MS, op_begin("a")),
                   IDEM_V_STARTED);
    behind = &world.engine->batch.swaps[3];
    behind->outcome = IDEM_SWAP_STORED;
    world.store->before_swap = fail_over;
    world.store->before_swap_arg = &failover;
    write_three(&world, replies);
    for (int i = 0; i < 3; i++)
        assert_status(replies[i], IDEM_ERR_LOST);
    assert_int_equal(behind->outcome, IDEM_SWAP_STORED);
    assert_int_equal(store_errors(&world), 1);
    close_world(&world);
}

static void
a_new_connection_to_the_same_store_costs_one_mark(void **state)
{
    struct failover failover;
    struct reply replies[3];
    struct world world;
    int swaps;

    (void)state;
    open_world(&world);
    failover = (struct failover){&world, world.store->inner, 0};
    world.store->before_swap = fail_over;
    world.store->before_swap_arg = &failover;
    swaps = world.store->swaps;
    write_three(&world, replies);
    for (int i = 0; i < 3; i++)
        assert_verdict(replies[i], IDEM_V_STARTED);
    assert_int_equal(store_errors(&world), 0);
    assert_int_equal(world.store->swaps - swaps, 2);
    close_world(&world);
}

/* As fail_over, at the third swap. */
static void
fail_over_third(void *arg, struct faulty_store *store)
{
    struct failover *failover = arg;

    if (++failover->swaps == 3)
        fail_over(failover, store);
}

static void
a_write_beside_damage_that_goes_to_an_older_store_is_lost(void **state)
{
    struct idem_op one = op_begin("x"), two = op_begin("y"), *bad, *good;
    uint8_t a[IDEM_KEY_LEN], b[IDEM_KEY_LEN];
    struct reply first, second;
    struct failover failover;
    struct world world;

    (void)state;
    open_world(&world);
    failover = (struct failover){&world, backup(&world), 0};
    assert_verdict(ask_later(&world, 2 * SECOND_MS, op_begin("a")),
                   IDEM_V_STARTED);
    idem__key(IDEM_TYPE_REQUEST, one.scope, one.id, a);
    idem__key(IDEM_TYPE_REQUEST, two.scope, two.id, b);
    bad = memcmp(a, b, IDEM_KEY_LEN) < 0 ? &one : &two;
    good = bad == &one ? &two : &one;
    world.store->unwritable = bad == &one ? a : b;
    world.store->before_swap = fail_over_third;
    world.store->before_swap_arg = &failover;
    put(world.engine, bad, &first);
    put(world.engine, good, &second);
    turn(world.engine);
    assert_status(first, IDEM_ERR_CORRUPT);
    assert_status(second, IDEM_ERR_LOST);
    close_world(&world);
}

/* The first swap is lost, and an older state takes the store's place. */
static void
lose_and_go_back(void *arg, struct faulty_store *store)
{
    struct failover *failover = arg;

    if (!failover->to)
        return;
    store->inner = failover->to;
    failover->to = NULL;
    faulty_plan(store, FAULT_LOST_NOT, 0, 1);
}

static void
a_lost_write_is_not_sent_again_to_an_older_store(void **state)
{
    struct failover failover;
    struct idem__group *behind;
    struct reply replies[3];
    struct world world;

    (void)state;
    open_world(&world);
    failover = (struct failover){&world, backup(&world), 0};
    assert_verdict(ask_later(&world, 2 * SECOND_MS, op_begin("a")),
                   IDEM_V_STARTED);
    behind = &world.engine->batch.groups[3];
    behind->stage = IDEM__STAGE_SWAP;
    world.store->before_swap = lose_and_go_back;
    world.store->before_swap_arg = &failover;
    write_three(&world, replies);
    for (int i = 0; i < 3; i++) {
        assert_status(replies[i], IDEM_ERR_LOST);
        assert_non_null(strstr(replies[i].text, WENT_BACK));
    }
    assert_int_equal(behind->stage, IDEM__STAGE_SWAP);
    assert_verdict(ask_now(&world, op_get("x")), IDEM_V_ABSENT);
    assert_verdict(ask_now(&world, op_get("z")), IDEM_V_ABSENT);
    close_world(&world);
}

static void
after_a_failure_the_mark_is_written_before_the_next_batch(void **state)
{
    struct world world;
    int swaps;

    (void)state;
    open_world(&world);
    assert_verdict(ask_now(&world, op_begin("a")), IDEM_V_STARTED);
    swaps = world.store->swaps;
    assert_verdict(ask_now(&world, op_begin("b")), IDEM_V_STARTED);
    assert_int_equal(world.store->swaps - swaps, 1);
    atomic_store(&world.store->load_fails, IDEM_ERR_UNAVAILABLE);
    assert_status(ask_now(&world, op_get("c")), IDEM_ERR_UNAVAILABLE);
    atomic_store(&world.store->load_fails, IDEM_OK);
    swaps = world.store->swaps;
    assert_verdict(ask_later(&world, 60, op_begin("c")), IDEM_V_STARTED);
    assert_int_equal(world.store->swaps - swaps, 2);
    close_world(&world);
}

static void
a_mark_that_fails_keeps_the_next_batches_away_from_the_store(void **state)
{
    struct world world;
    int swaps;

    (void)state;
    open_world(&world);
    faulty_plan(world.store, FAULT_UNAVAILABLE, 0, 1000);
    assert_status(ask_later(&world, 2 * SECOND_MS, op_begin("a")),
                  IDEM_ERR_UNAVAILABLE);
    swaps = world.store->swaps;
    assert_status(ask_now(&world, op_begin("a")), IDEM_ERR_UNAVAILABLE);
    assert_int_equal(world.store->swaps, swaps);
    close_world(&world);
}

/* ---- other stores, other engines ----------------------------------------- */

/* Its TTL is twice as long as the engine trusts it. */
static void
a_mark_that_is_still_there_after_a_long_pause_is_taken_up(void **state)
{
    struct world world;

    (void)state;
    open_world(&world);
    assert_verdict(ask_later(&world, 16 * DAY_MS, op_begin("a")),
                   IDEM_V_STARTED);
    assert_int_equal(world.alarms, 0);
    world.store->inner = empty_store(&world);
    assert_refused(ask_later(&world, 2 * SECOND_MS, op_begin("b")));
    close_world(&world);
}

static void
an_earlier_claim_of_the_same_key_does_not_hide_the_loss_of_the_last(
    void **state)
{
    struct idem_store *old;
    struct reply start;
    struct world world;

    (void)state;
    open_world(&world);
    start = ask_now(&world, op_begin("a"));
    assert_verdict(ask_now(&world, op_release("a", start.fence)), IDEM_V_OK);
    (void)ask_later(&world, 2 * SECOND_MS, op_get("a"));
    old = backup(&world);
    assert_verdict(ask_later(&world, 500, op_begin("a")), IDEM_V_STARTED);
    world.store->inner = old;
    assert_refused(ask_later(&world, 2 * SECOND_MS, op_begin("b")));
    assert_non_null(strstr(world.said, "wrote last is gone"));
    close_world(&world);
}

static void
a_strict_claim_in_place_of_a_loose_one_is_missed_too(void **state)
{
    struct idem_op op = loose(op_begin("a"));
    struct idem_store *old;
    struct world world;

    (void)state;
    open_world(&world);
    op.lease_ms = SECOND_MS;
    assert_verdict(ask_now(&world, op), IDEM_V_STARTED);
    (void)ask_later(&world, 5 * SECOND_MS, op_get("a"));
    old = backup(&world);
    assert_verdict(ask_later(&world, 200, op_begin("a")), IDEM_V_STARTED);
    world.store->inner = old;
    assert_refused(ask_later(&world, 2 * SECOND_MS, op_begin("b")));
    assert_non_null(strstr(world.said, "wrote last is gone"));
    close_world(&world);
}

/* Somebody else writes the record: its fence grows by so much. */
static void
overwrite(struct world *world, enum idem_type type, const char *scope,
          const char *id, uint64_t more)
{
    struct idem_store *store = world->store->inner;
    struct idem_load load = {.with_result = true};
    struct idem_swap swap = {.record = &load.record};
    struct idem_arena arena = {NULL, 0};

    idem__key(type, idem_text(scope), idem_text(id), load.key);
    assert_int_equal(store->type->load(store, &load, 1, &arena, NULL), IDEM_OK);
    assert_int_not_equal(load.record.state, IDEM_STATE_ABSENT);
    memcpy(swap.key, load.key, IDEM_KEY_LEN);
    swap.expected = load.record.rev;
    load.record.rev = idem__new_rev();
    load.record.fence += more;
    assert_int_equal(store->type->swap(store, &swap, 1, &arena, NULL), IDEM_OK);
    assert_int_equal(swap.outcome, IDEM_SWAP_STORED);
    idem_arena_clear(&arena);
}

static void
a_claim_that_another_engine_has_started_again_is_no_loss(void **state)
{
    struct world world;

    (void)state;
    open_world(&world);
    assert_verdict(ask_now(&world, op_begin("a")), IDEM_V_STARTED);
    overwrite(&world, IDEM_TYPE_REQUEST, "test", "a", 1000);
    assert_verdict(ask_later(&world, 2 * SECOND_MS, op_begin("b")),
                   IDEM_V_STARTED);
    assert_int_equal(world.alarms, 0);
    close_world(&world);
}

static void
a_last_write_that_this_program_cannot_read_is_there(void **state)
{
    struct world world;

    (void)state;
    open_world(&world);
    assert_verdict(ask_now(&world, op_begin("a")), IDEM_V_STARTED);
    atomic_store(&world.store->load_fails, IDEM_ERR_UNSUPPORTED);
    assert_verdict(ask_later(&world, 2 * SECOND_MS, op_begin("b")),
                   IDEM_V_STARTED);
    assert_int_equal(world.alarms, 0);
    close_world(&world);
}

static int overwrites;

static void
overwrite_mark(void *arg, struct faulty_store *store)
{
    struct world *world = arg;

    (void)store;
    if (overwrites-- > 0)
        overwrite(world, IDEM_TYPE_WORKER, "epoch", world->engine->epoch.id, 1);
}

/* As with a copy of the epoch-file on another machine. */
static void
a_mark_that_somebody_else_writes_too_is_no_rollback(void **state)
{
    struct reply reply;
    struct world world;

    (void)state;
    open_world(&world);
    world.store->before_swap = overwrite_mark;
    world.store->before_swap_arg = &world;
    overwrites = 2;
    reply = ask_later(&world, 2 * SECOND_MS, op_begin("a"));
    assert_status(reply, IDEM_ERR_UNAVAILABLE);
    assert_non_null(strstr(reply.text, "does not respond"));
    /* Not before the mark is written, although the second is not over. */
    test_clocks_pass(&world.clocks, 100);
    assert_verdict(ask_now(&world, op_begin("a")), IDEM_V_STARTED);
    assert_int_equal(world.alarms, 0);
    close_world(&world);
}

/* One of its parts may fail while the others go on. */
static void
a_store_of_several_parts_goes_on_without_a_mark(void **state)
{
    struct idem_store_type parts;
    struct world world;

    (void)state;
    open_world(&world);
    parts = *world.store->base.type;
    parts.partial = true;
    world.store->base.type = &parts;
    faulty_plan(world.store, FAULT_UNAVAILABLE, 0, 1);
    assert_verdict(ask_later(&world, 2 * SECOND_MS, op_begin("a")),
                   IDEM_V_STARTED);
    assert_int_equal(world.alarms, 0);
    close_world(&world);
}

static void
a_store_that_goes_back_further_later_has_lost_more(void **state)
{
    struct idem_store *older, *old;
    struct world world;

    (void)state;
    open_world(&world);
    older = backup(&world);
    assert_verdict(ask_later(&world, 3 * SECOND_MS, op_begin("first")),
                   IDEM_V_STARTED);
    (void)ask_later(&world, 2 * SECOND_MS, op_get("first"));
    old = backup(&world);
    assert_verdict(ask_later(&world, 2 * SECOND_MS, op_begin("second")),
                   IDEM_V_STARTED);
    world.store->inner = old;
    assert_refused(ask_later(&world, 2 * SECOND_MS, op_begin("x")));
    assert_true(idem__accept_rollback(world.engine));
    assert_verdict(ask_now(&world, op_begin("first")), IDEM_V_BUSY);
    assert_verdict(ask_now(&world, op_begin("second")), IDEM_V_DOUBT);
    world.store->inner = older;
    assert_refused(ask_later(&world, 2 * SECOND_MS, op_begin("x")));
    assert_true(idem__accept_rollback(world.engine));
    assert_verdict(ask_now(&world, op_begin("first")), IDEM_V_DOUBT);
    assert_verdict(ask_now(&world, op_begin("second")), IDEM_V_DOUBT);
    assert_int_equal(world.alarms, 2);
    close_world(&world);
}

/* ---- the mark cannot be written ------------------------------------------ */

static void
without_a_mark_nothing_is_done_on_a_store_that_does_not_answer(void **state)
{
    struct reply reply;
    struct world world;

    (void)state;
    open_world(&world);
    faulty_plan(world.store, FAULT_UNAVAILABLE, 0, 1);
    reply = ask_later(&world, 2 * SECOND_MS, op_begin("a"));
    assert_status(reply, IDEM_ERR_UNAVAILABLE);
    assert_non_null(strstr(reply.text, "planned: unavailable"));
    assert_verdict(ask_later(&world, 2 * SECOND_MS, op_begin("a")),
                   IDEM_V_STARTED);
    assert_int_equal(world.alarms, 0);
    close_world(&world);
}

static void
a_mark_whose_reply_was_lost_is_recognised(void **state)
{
    struct world world;

    (void)state;
    open_world(&world);
    faulty_plan(world.store, FAULT_LOST_APPLIED, 0, 1);
    assert_status(ask_later(&world, 2 * SECOND_MS, op_begin("a")),
                  IDEM_ERR_UNAVAILABLE);
    assert_verdict(ask_later(&world, 2 * SECOND_MS, op_begin("a")),
                   IDEM_V_STARTED);
    assert_int_equal(world.alarms, 0);
    close_world(&world);
}

static void
a_full_store_or_a_locked_mark_does_not_stop_replays(void **state)
{
    static const enum fault faults[] = {FAULT_FULL, FAULT_LOCKED};
    struct reply start, again;
    struct world world;

    (void)state;
    for (int i = 0; i < 2; i++) {
        open_world(&world);
        start = ask_now(&world, op_begin("a"));
        assert_verdict(ask_now(&world, op_finish("a", start.fence, "R")),
                       IDEM_V_OK);
        faulty_plan(world.store, faults[i], 0, 100);
        again = ask_later(&world, 2 * SECOND_MS, op_begin("a"));
        assert_verdict(again, IDEM_V_REPLAY);
        assert_string_equal(again.result, "R");
        close_world(&world);
    }
}

static void
nothing_is_done_while_the_last_write_cannot_be_looked_for(void **state)
{
    struct world world;

    (void)state;
    open_world(&world);
    assert_verdict(ask_later(&world, 2 * SECOND_MS, op_begin("a")),
                   IDEM_V_STARTED);
    faulty_plan(world.store, FAULT_UNAVAILABLE, 1, 1); /* after the mark */
    assert_status(ask_later(&world, 2 * SECOND_MS, op_begin("b")),
                  IDEM_ERR_UNAVAILABLE);
    assert_verdict(ask_later(&world, 2 * SECOND_MS, op_begin("b")),
                   IDEM_V_STARTED);
    assert_int_equal(world.alarms, 0);
    close_world(&world);
}

static void
a_last_write_that_is_damaged_is_there(void **state)
{
    uint8_t key[IDEM_KEY_LEN];
    struct idem_op op = op_begin("a");
    struct world world;

    (void)state;
    open_world(&world);
    idem__key(IDEM_TYPE_REQUEST, op.scope, op.id, key);
    assert_verdict(ask_later(&world, 2 * SECOND_MS, op), IDEM_V_STARTED);
    world.store->damaged = key;
    assert_verdict(ask_later(&world, 2 * SECOND_MS, op_begin("b")),
                   IDEM_V_STARTED);
    assert_int_equal(world.alarms, 0);
    close_world(&world);
}

/* ---- the loss is accepted ------------------------------------------------ */

static void
an_accepted_loss_brings_lost_claims_into_doubt(void **state)
{
    struct reply start;
    struct world world;

    (void)state;
    open_world(&world);
    start = ask_later(&world, 2 * SECOND_MS, op_begin("a"));
    world.store->inner = empty_store(&world);
    assert_refused(ask_later(&world, 2 * SECOND_MS, op_begin("b")));
    assert_true(idem__accept_rollback(world.engine));
    assert_verdict(ask_now(&world, op_begin("b")), IDEM_V_STARTED);
    assert_verdict(ask_now(&world, op_begin("a")), IDEM_V_DOUBT);
    /* The client that works on it may still finish. */
    assert_verdict(ask_now(&world, op_finish("a", start.fence, "R")),
                   IDEM_V_OK);
    assert_verdict(ask_now(&world, op_begin("a")), IDEM_V_REPLAY);
    assert_false(idem__accept_rollback(world.engine));
    close_world(&world);
}

static void
note_record(void *arg, enum idem_status status,
            const struct idem_answer *answer, const struct idem_error *err)
{
    (void)err;
    assert_int_equal(status, IDEM_OK);
    assert_int_equal(answer->verdict, IDEM_V_RECORD);
    assert_true(idem__bytes_equal(answer->record->scope, idem_text("test")));
    assert_true(idem__bytes_equal(answer->record->id, idem_text("a")));
    *(struct idem_record *)arg = *answer->record;
}

/* Begins "a" on a store that then comes back empty, which is accepted. */
static struct reply
lose_a_claim(struct world *world)
{
    struct reply start;

    open_world(world);
    start = ask_later(world, 2 * SECOND_MS, op_begin("a"));
    assert_verdict(start, IDEM_V_STARTED);
    world->store->inner = empty_store(world);
    assert_refused(ask_later(world, 2 * SECOND_MS, op_begin("b")));
    assert_true(idem__accept_rollback(world->engine));
    assert_verdict(ask_now(world, op_begin("b")), IDEM_V_STARTED);
    return start;
}

static void
a_lost_claim_is_written_again_as_it_was_but_with_its_lease_over(void **state)
{
    struct idem_op get = op_get("a");
    struct idem_record record = {0};
    const struct idem_now *now;
    struct reply start;
    struct world world;

    (void)state;
    start = lose_a_claim(&world);
    /* The bounds of the store's time differ: its clock was read before. */
    assert_verdict(ask_later(&world, 500, op_begin("a")), IDEM_V_DOUBT);
    now = &world.engine->now;
    assert_true(now->early_ms < now->late_ms);
    assert_int_equal(
        idem_submit(world.engine, &get, note_record, &record, NULL, NULL),
        IDEM_OK);
    turn(world.engine);
    assert_int_equal(record.type, IDEM_TYPE_REQUEST);
    assert_int_equal(record.state, IDEM_STATE_EXECUTING);
    assert_int_equal(record.mode, IDEM_STRICT);
    assert_int_equal(record.attempt, 1);
    assert_int_equal(record.fence, start.fence);
    assert_int_equal(record.created, now->late_ms);
    assert_int_equal(record.updated, now->late_ms);
    assert_int_equal(record.lease_until, now->early_ms);
    assert_int_equal(record.expires, now->late_ms + DAY_MS);
    close_world(&world);
}

static void
a_lost_claim_that_somebody_only_reads_is_absent(void **state)
{
    struct idem_op get = op_get("a"), begin = op_begin("a");
    struct reply got, begun;
    struct world world;

    (void)state;
    (void)lose_a_claim(&world);
    assert_verdict(ask_now(&world, get), IDEM_V_ABSENT);
    /* In one batch with an operation that acts it is written first. */
    put(world.engine, &get, &got);
    put(world.engine, &begin, &begun);
    turn(world.engine);
    assert_verdict(got, IDEM_V_RECORD);
    assert_verdict(begun, IDEM_V_DOUBT);
    close_world(&world);
}

/* Whatever a client does with it; and nothing is written meanwhile. */
static void
a_lost_claim_is_not_touched_before_the_loss_is_accepted(void **state)
{
    struct reply start;
    struct world world;

    (void)state;
    start = lose_a_claim(&world);
    world.store->inner = empty_store(&world); /* a second time */
    assert_refused(ask_later(&world, 2 * SECOND_MS, op_begin("c")));
    assert_refused(ask_now(&world, op_begin("a")));
    assert_refused(ask_now(&world, loose(op_begin("a"))));
    assert_refused(ask_now(&world, op_finish("a", start.fence, "R")));
    assert_refused(ask_now(&world, op_release("a", start.fence)));
    assert_verdict(ask_now(&world, op_get("a")), IDEM_V_ABSENT);
    assert_true(idem__accept_rollback(world.engine));
    assert_verdict(ask_now(&world, op_finish("a", start.fence, "R")),
                   IDEM_V_OK);
    close_world(&world);
}

/* The operator has found out what became of it. */
static void
a_lost_claim_can_be_settled_before_the_loss_is_accepted(void **state)
{
    struct idem_op settle = as(op_begin("a"), IDEM_SETTLE, IDEM_TYPE_REQUEST);
    struct reply start, settled, got;
    struct world world;

    (void)state;
    open_world(&world);
    start = ask_later(&world, 2 * SECOND_MS, op_begin("a"));
    world.store->inner = empty_store(&world);
    assert_refused(ask_later(&world, 2 * SECOND_MS, op_begin("b")));
    assert_refused(ask_now(&world, settle)); /* without an outcome */
    settle.outcome = IDEM_STATE_SUCCEEDED;
    settle.result = idem_text("R");
    settled = ask_now(&world, settle);
    assert_verdict(settled, IDEM_V_SETTLED);
    assert_verdict(ask_now(&world, op_begin("a")), IDEM_V_REPLAY);
    assert_verdict(ask_now(&world, op_finish("a", start.fence, "S")),
                   IDEM_V_STALE);
    got = ask_now(&world, op_get("a"));
    assert_true(got.fence > start.fence);
    assert_refused(ask_now(&world, op_begin("b")));
    assert_true(idem__accept_rollback(world.engine));
    assert_verdict(ask_now(&world, op_begin("a")), IDEM_V_REPLAY);
    close_world(&world);
}

/* Nobody knows whether the store went back. */
static void
a_lost_claim_is_not_settled_while_the_mark_fails(void **state)
{
    struct idem_op settle = as(op_begin("a"), IDEM_SETTLE, IDEM_TYPE_REQUEST);
    struct world world;

    (void)state;
    open_world(&world);
    assert_verdict(ask_later(&world, 2 * SECOND_MS, op_begin("a")),
                   IDEM_V_STARTED);
    world.store->inner = empty_store(&world);
    faulty_plan(world.store, FAULT_UNAVAILABLE, 0, 1000);
    settle.outcome = IDEM_STATE_SUCCEEDED;
    assert_status(ask_later(&world, 2 * SECOND_MS, settle),
                  IDEM_ERR_UNAVAILABLE);
    faulty_plan(world.store, FAULT_NONE, 0, 0);
    assert_verdict(ask_later(&world, 30 * SECOND_MS, op_get("a")),
                   IDEM_V_ABSENT);
    close_world(&world);
}

/* Somebody deleted it, before the loss or after it. */
static void
only_a_claim_of_the_lost_time_comes_into_doubt(void **state)
{
    static const struct {
        int from, to;
        enum idem_verdict verdict;
    } cases[] = {
        {0, 0, IDEM_V_DOUBT}, {1, 1, IDEM_V_STARTED}, {-1, -1, IDEM_V_STARTED}};
    struct world world;

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        uint64_t mark;

        (void)lose_a_claim(&world);
        mark = world.engine->epoch.lost_to; /* the one before the claim */
        world.engine->epoch.lost_from = mark + (uint64_t)cases[i].from;
        world.engine->epoch.lost_to = mark + (uint64_t)cases[i].to;
        assert_verdict(ask_now(&world, op_begin("a")), cases[i].verdict);
        close_world(&world);
    }
}

static void
a_client_that_waits_for_a_lost_claim_finds_it_in_doubt(void **state)
{
    struct idem_op wait = op_wait("a", 60 * SECOND_MS);
    struct reply waiting;
    struct world world;

    (void)state;
    open_world(&world);
    idem_close(world.engine);
    assert_int_equal(open_engine(&world, true, NULL), IDEM_OK);
    assert_verdict(ask_later(&world, 2 * SECOND_MS, op_begin("a")),
                   IDEM_V_STARTED);
    put(world.engine, &wait, &waiting);
    turn(world.engine);
    assert_false(waiting.done);
    world.store->inner = empty_store(&world);
    for (int i = 0; i < 40 && !waiting.done; i++) {
        test_clocks_pass(&world.clocks, 200);
        turn(world.engine);
    }
    assert_verdict(waiting, IDEM_V_DOUBT);
    assert_int_equal(world.alarms, 1);
    close_world(&world);
}

static void
a_store_may_go_back_a_second_time(void **state)
{
    struct idem_store *old;
    struct world world;

    (void)state;
    open_world(&world);
    assert_verdict(ask_now(&world, op_begin("before")), IDEM_V_STARTED);
    test_clocks_pass(&world.clocks, 2 * SECOND_MS);
    turn(world.engine);
    world.store->inner = empty_store(&world);
    assert_refused(ask_later(&world, 2 * SECOND_MS, op_begin("x")));
    assert_true(idem__accept_rollback(world.engine));
    assert_verdict(ask_now(&world, op_begin("y")), IDEM_V_STARTED);
    old = backup(&world);
    assert_verdict(ask_later(&world, 2 * SECOND_MS, op_begin("after")),
                   IDEM_V_STARTED);
    /* It goes back a second time, by less. */
    world.store->inner = old;
    assert_refused(ask_later(&world, 2 * SECOND_MS, op_begin("z")));
    assert_true(idem__accept_rollback(world.engine));
    assert_verdict(ask_now(&world, op_begin("after")), IDEM_V_DOUBT);
    assert_verdict(ask_now(&world, op_begin("before")), IDEM_V_DOUBT);
    assert_verdict(ask_now(&world, op_begin("z")), IDEM_V_STARTED);
    assert_int_equal(world.alarms, 2);
    close_world(&world);
}

static void
a_client_that_waits_for_a_lost_claim_is_refused(void **state)
{
    struct idem_op wait = op_wait("a", 60 * SECOND_MS);
    struct reply waiting;
    struct world world;

    (void)state;
    open_world(&world);
    assert_verdict(ask_later(&world, 2 * SECOND_MS, op_begin("a")),
                   IDEM_V_STARTED);
    put(world.engine, &wait, &waiting);
    turn(world.engine);
    assert_false(waiting.done);
    world.store->inner = empty_store(&world);
    for (int i = 0; i < 40 && !waiting.done; i++) {
        test_clocks_pass(&world.clocks, 200);
        turn(world.engine);
    }
    assert_refused(waiting);
    assert_true(idem__accept_rollback(world.engine));
    assert_verdict(ask_now(&world, op_begin("a")), IDEM_V_DOUBT);
    close_world(&world);
}

static void
an_outcome_that_has_expired_anyway_is_not_in_doubt(void **state)
{
    struct idem_store *old;
    struct reply start;
    struct idem_op op;
    struct world world;

    (void)state;
    open_world(&world);
    old = backup(&world);
    start = ask_later(&world, 2 * SECOND_MS, op_begin("a"));
    op = op_finish("a", start.fence, "R");
    op.ttl_ms = 10 * SECOND_MS;
    assert_verdict(ask_now(&world, op), IDEM_V_OK);
    world.store->inner = old;
    assert_refused(ask_later(&world, 2 * SECOND_MS, op_begin("b")));
    assert_true(idem__accept_rollback(world.engine));
    assert_verdict(ask_later(&world, 30 * SECOND_MS, op_begin("a")),
                   IDEM_V_STARTED);
    close_world(&world);
}

static void
an_engine_that_accepts_losses_goes_on_by_itself(void **state)
{
    struct world world;

    (void)state;
    open_world(&world);
    idem_close(world.engine);
    (void)empty_store(&world);
    test_clocks_pass(&world.clocks, 2 * SECOND_MS);
    assert_int_equal(open_engine(&world, true, NULL), IDEM_OK);
    assert_int_equal(world.alarms, 1);
    assert_int_equal(world.warnings, 1);
    assert_verdict(ask_now(&world, op_begin("a")), IDEM_V_STARTED);
    close_world(&world);
}

/* ---- the file ------------------------------------------------------------ */

static void
the_mark_is_kept_over_a_restart(void **state)
{
    struct world world;

    (void)state;
    open_world(&world);
    assert_verdict(ask_later(&world, 2 * SECOND_MS, op_begin("a")),
                   IDEM_V_STARTED);
    idem_close(world.engine);
    test_clocks_pass(&world.clocks, 2 * SECOND_MS);
    assert_int_equal(open_engine(&world, false, NULL), IDEM_OK);
    assert_int_equal(world.alarms, 0); /* the same store */
    assert_verdict(ask_now(&world, op_begin("a")), IDEM_V_BUSY);
    idem_close(world.engine);
    (void)empty_store(&world);
    assert_int_equal(open_engine(&world, false, NULL), IDEM_OK);
    assert_int_equal(world.alarms, 1);
    assert_refused(ask_now(&world, op_begin("a")));
    close_world(&world);
}

static void
put_file(const struct world *world, const char *text)
{
    FILE *f = fopen(world->file, "w");

    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

static void
a_file_that_is_not_a_mark_is_refused(void **state)
{
    static const char *const texts[] = {
        "hello\n",
        "0123456789abcdef 1 2 3\n", /* its id is too short */
        "0123456789abcdef0123456789abcdef 1 2\n",
    };
    struct idem_error err;
    struct world world;

    (void)state;
    open_world(&world);
    for (int i = 0; i < 3; i++) {
        idem_close(world.engine);
        world.engine = NULL;
        put_file(&world, texts[i]);
        assert_int_equal(open_engine(&world, false, &err), IDEM_ERR_CORRUPT);
        assert_non_null(strstr(err.text, world.file));
    }
    close_world(&world);
}

static void
a_file_that_another_engine_uses_or_nobody_can_open_is_refused(void **state)
{
    struct idem_engine *first;
    struct idem_error err;
    struct world world;

    (void)state;
    open_world(&world);
    first = world.engine;
    assert_int_equal(open_engine(&world, false, &err), IDEM_ERR_INVALID);
    assert_non_null(strstr(err.text, "another server uses it"));
    snprintf(world.file, sizeof(world.file), "%s/no/such", world.folder);
    assert_int_equal(open_engine(&world, false, &err), IDEM_ERR_INVALID);
    assert_non_null(strstr(err.text, "No such file"));
    world.engine = first;
    close_world(&world);
}

static void
a_file_that_cannot_be_written_is_reported_once(void **state)
{
    struct rlimit before, none;
    struct world world;

    (void)state;
    open_world(&world);
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    none = before;
    none.rlim_cur = 0;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &none), 0);
    for (int i = 0; i < 3; i++)
        (void)ask_later(&world, 2 * SECOND_MS, op_get("a"));
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_int_equal(world.warnings, 1);
    assert_non_null(strstr(world.said, "epoch-file cannot be written"));
    close_world(&world);
}

static void
a_store_that_may_forget_needs_no_epoch_file(void **state)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    struct idem__engine_inner inner = {.driven = true};
    struct faulty_store *store;
    struct idem_engine *engine;
    struct idem_error err;
    struct world world;

    (void)state;
    open_world(&world);
    store = faulty_open(FAULTY_REMOTE, world.stores[0], &lock);
    store->base.forgets = true;
    inner.store = &store->base;
    inner.clocks = &world.clocks.clocks;
    inner.epoch_file = world.file;
    assert_int_equal(idem__engine_open(NULL, NULL, &inner, &engine, &err),
                     IDEM_ERR_INVALID);
    assert_non_null(strstr(err.text, "leave the option out"));
    close_world(&world);
}

/* A key that this engine has claimed is read, because the store may have lost
 * it. For other keys the engine guesses that there is no record. */
static void
only_a_key_that_was_claimed_is_read_before_a_begin(void **state)
{
    uint8_t key[IDEM_KEY_LEN];
    struct idem_op op = op_begin("a");
    struct world world;
    int loads;

    (void)state;
    open_world(&world);
    assert_verdict(ask_now(&world, op_get("x")), IDEM_V_ABSENT);
    loads = atomic_load(&world.store->loads);
    assert_verdict(ask_now(&world, op), IDEM_V_STARTED);
    assert_verdict(ask_now(&world, op_begin("b")), IDEM_V_STARTED);
    assert_int_equal(atomic_load(&world.store->loads), loads);
    idem__key(IDEM_TYPE_REQUEST, op.scope, op.id, key);
    idem__recent_forget(world.engine, key);
    assert_verdict(ask_now(&world, op), IDEM_V_BUSY);
    assert_int_equal(atomic_load(&world.store->loads), loads + 1);
    assert_int_equal(atomic_load(&world.store->swaps), 3);
    close_world(&world);
}

/* ---- what could hide or forget a loss ------------------------------------ */

/* Another key of the same batch shows the loss; some keys were decided before
 * it. */
static void
a_loss_that_a_batch_notices_holds_for_the_whole_batch(void **state)
{
    static const char *const ids[] = {"k", "l", "m", "n", "o", "p", "q", "r"};
    struct idem_op begin = op_begin("a");
    struct reply again, others[8];
    struct idem_store *old;
    struct world world;

    (void)state;
    open_world(&world);
    old = backup(&world);
    assert_verdict(ask_later(&world, 2 * SECOND_MS, op_begin("a")),
                   IDEM_V_STARTED);
    world.store->inner = old;
    for (int i = 0; i < 8; i++) {
        struct idem_op op = op_begin(ids[i]);

        put(world.engine, &op, &others[i]);
    }
    put(world.engine, &begin, &again);
    turn(world.engine);
    assert_refused(again);
    assert_int_equal(world.alarms, 1);
    for (int i = 0; i < 8; i++)
        assert_refused(others[i]);
    close_world(&world);
}

/* The mark that would tell cannot be written at that moment. */
static void
a_claim_that_is_missing_does_not_start_while_the_mark_fails(void **state)
{
    static const enum fault faults[] = {FAULT_UNAVAILABLE, FAULT_LOST_NOT};
    struct idem_store *old;
    struct reply reply;
    struct world world;

    (void)state;
    for (int i = 0; i < 2; i++) {
        open_world(&world);
        old = backup(&world);
        assert_verdict(ask_later(&world, 2 * SECOND_MS, op_begin("a")),
                       IDEM_V_STARTED);
        idem__recents_close(&world.engine->recents);
        world.store->inner = old;
        faulty_plan(world.store, faults[i], faults[i] == FAULT_UNAVAILABLE, 1);
        reply = ask_now(&world, op_begin("a"));
        assert_status(reply, IDEM_ERR_UNAVAILABLE);
        close_world(&world);
    }
}

/* A run with a clock that was ahead left a mark with a high fence. */
static void
a_mark_from_a_clock_that_was_ahead_does_not_hide_lost_claims(void **state)
{
    struct idem_store *old;
    struct world world;

    (void)state;
    open_world(&world);
    atomic_store(&world.store->clock_us, 1800 * INT64_C(1000000));
    (void)ask_later(&world, 2 * SECOND_MS, op_get("x"));
    idem_close(world.engine);
    assert_int_equal(open_engine(&world, false, NULL), IDEM_OK);
    old = backup(&world);
    assert_verdict(ask_later(&world, 2 * SECOND_MS, op_begin("a")),
                   IDEM_V_STARTED);
    world.store->inner = old;
    assert_refused(ask_later(&world, 2 * SECOND_MS, op_begin("b")));
    assert_true(idem__accept_rollback(world.engine));
    assert_verdict(ask_later(&world, 2 * SECOND_MS, op_begin("a")),
                   IDEM_V_DOUBT);
    close_world(&world);
}

/* The record had a fence that is ahead of this engine's clock. */
static void
a_lost_claim_whose_fence_is_ahead_comes_into_doubt(void **state)
{
    struct idem_op issue = as(op_begin("t"), IDEM_ISSUE, IDEM_TYPE_TOKEN);
    struct idem_op redeem = as(op_begin("t"), IDEM_REDEEM, IDEM_TYPE_TOKEN);
    struct idem_store *old;
    struct world world;

    (void)state;
    open_world(&world);
    atomic_store(&world.store->clock_us, 30 * INT64_C(1000000));
    assert_verdict(ask_later(&world, 2 * SECOND_MS, issue), IDEM_V_ISSUED);
    idem_close(world.engine);
    remove(world.file); /* it was another engine */
    assert_int_equal(open_engine(&world, true, NULL), IDEM_OK);
    world.store->inner = world.stores[0];
    old = backup(&world);
    assert_verdict(ask_later(&world, 2 * SECOND_MS, redeem), IDEM_V_REDEEMED);
    world.store->inner = old;
    assert_verdict(ask_later(&world, 2 * SECOND_MS, redeem), IDEM_V_DUPLICATE);
    close_world(&world);
}

static void
a_noticed_loss_is_not_forgotten_with_time(void **state)
{
    struct world world;

    (void)state;
    open_world(&world);
    assert_verdict(ask_later(&world, 2 * SECOND_MS, op_begin("a")),
                   IDEM_V_STARTED);
    world.store->inner = empty_store(&world);
    for (int day = 0; day < 16; day++)
        assert_refused(ask_later(&world, DAY_MS, op_begin("a")));
    idem_close(world.engine);
    assert_int_equal(open_engine(&world, false, NULL), IDEM_OK);
    assert_refused(ask_later(&world, 2 * SECOND_MS, op_begin("a")));
    close_world(&world);
}

/* Two operators accept at the same moment; the second store to `accepted`
 * comes after the engine has handled the first. */
static void
an_acceptance_does_not_count_for_a_later_loss(void **state)
{
    struct world world;

    (void)state;
    (void)lose_a_claim(&world);
    atomic_store(&world.engine->epoch.accepted, true);
    world.store->inner = empty_store(&world);
    assert_refused(ask_later(&world, 2 * SECOND_MS, op_begin("c")));
    close_world(&world);
}

static void
a_mark_of_the_version_before_is_not_forgotten(void **state)
{
    struct world world;
    char line[128];

    (void)state;
    open_world(&world);
    idem_close(world.engine);
    snprintf(line, sizeof(line),
             "0123456789abcdef0123456789abcdef %20llu %20u %20lld\n",
             1700000000000001ULL, 0u, 1700000000000LL);
    put_file(&world, line);
    (void)empty_store(&world);
    assert_int_equal(open_engine(&world, false, NULL), IDEM_OK);
    assert_refused(ask_now(&world, op_begin("a")));
    close_world(&world);
}

static void
drop_record(struct idem_store *store, const char *id)
{
    struct idem_op op = op_begin(id);
    struct idem_load load = {.with_result = false};
    struct idem_arena arena = {NULL, 0};
    struct idem_swap swap = {.record = NULL};

    idem__key(IDEM_TYPE_REQUEST, op.scope, op.id, load.key);
    assert_int_equal(store->type->load(store, &load, 1, &arena, NULL), IDEM_OK);
    memcpy(swap.key, load.key, IDEM_KEY_LEN);
    swap.expected = load.record.rev;
    assert_int_equal(store->type->swap(store, &swap, 1, &arena, NULL), IDEM_OK);
    assert_int_equal(swap.outcome, IDEM_SWAP_STORED);
    idem_arena_clear(&arena);
}

/* Begun and finished within one second, by this server. */
static void
a_short_result_of_this_server_that_has_expired_is_not_missed(void **state)
{
    struct reply start;
    struct idem_op op;
    struct world world;

    (void)state;
    open_world(&world);
    start = ask_now(&world, op_begin("a"));
    op = op_finish("a", start.fence, "R");
    op.ttl_ms = 1 * SECOND_MS;
    assert_verdict(ask_now(&world, op), IDEM_V_OK);
    drop_record(world.store->inner, "a"); /* it expired, and was swept */
    assert_verdict(ask_later(&world, 121 * SECOND_MS, op_begin("b")),
                   IDEM_V_STARTED);
    assert_int_equal(world.alarms, 0);
    close_world(&world);
}

static int
test_files_and_other_stores(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(
            a_mark_that_is_still_there_after_a_long_pause_is_taken_up),
        cmocka_unit_test(
            an_earlier_claim_of_the_same_key_does_not_hide_the_loss_of_the_last),
        cmocka_unit_test(a_strict_claim_in_place_of_a_loose_one_is_missed_too),
        cmocka_unit_test(
            a_claim_that_another_engine_has_started_again_is_no_loss),
        cmocka_unit_test(a_last_write_that_this_program_cannot_read_is_there),
        cmocka_unit_test(a_mark_that_somebody_else_writes_too_is_no_rollback),
        cmocka_unit_test(a_store_of_several_parts_goes_on_without_a_mark),
        cmocka_unit_test(a_store_may_go_back_a_second_time),
        cmocka_unit_test(a_renewal_does_not_hide_the_loss_of_a_claim),
        cmocka_unit_test(an_engine_that_accepts_losses_goes_on_by_itself),
        cmocka_unit_test(a_store_that_goes_back_further_later_has_lost_more),
        cmocka_unit_test(the_mark_is_kept_over_a_restart),
        cmocka_unit_test(a_file_that_is_not_a_mark_is_refused),
        cmocka_unit_test(
            a_file_that_another_engine_uses_or_nobody_can_open_is_refused),
        cmocka_unit_test(a_file_that_cannot_be_written_is_reported_once),
        cmocka_unit_test(a_store_that_may_forget_needs_no_epoch_file),
        cmocka_unit_test(only_a_key_that_was_claimed_is_read_before_a_begin),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_loss_that_a_batch_notices_holds_for_the_whole_batch),
        cmocka_unit_test(
            a_claim_that_is_missing_does_not_start_while_the_mark_fails),
        cmocka_unit_test(
            a_mark_from_a_clock_that_was_ahead_does_not_hide_lost_claims),
        cmocka_unit_test(a_lost_claim_whose_fence_is_ahead_comes_into_doubt),
        cmocka_unit_test(a_noticed_loss_is_not_forgotten_with_time),
        cmocka_unit_test(an_acceptance_does_not_count_for_a_later_loss),
        cmocka_unit_test(a_mark_of_the_version_before_is_not_forgotten),
        cmocka_unit_test(
            a_short_result_of_this_server_that_has_expired_is_not_missed),
        cmocka_unit_test(an_empty_store_refuses_what_could_run_twice),
        cmocka_unit_test(a_token_that_was_issued_since_is_refused_too),
        cmocka_unit_test(an_older_copy_of_the_store_is_noticed_by_its_mark),
        cmocka_unit_test(
            the_loss_of_the_last_write_is_noticed_although_the_mark_is_there),
        cmocka_unit_test(
            the_loss_of_an_outcome_is_noticed_although_its_claim_is_there),
        cmocka_unit_test(a_noticed_loss_is_not_forgotten_by_a_restart),
        cmocka_unit_test(a_noticed_loss_is_not_forgotten_by_an_empty_store),
        cmocka_unit_test(an_outcome_that_is_still_there_is_no_loss),
        cmocka_unit_test(an_outcome_that_may_have_expired_is_not_missed),
        cmocka_unit_test(a_mark_that_may_have_expired_proves_nothing),
        cmocka_unit_test(a_claim_that_is_missing_is_noticed_at_once),
        cmocka_unit_test(
            a_store_that_went_back_and_then_fails_serves_replays_again),
        cmocka_unit_test(
            a_write_through_a_new_connection_to_an_older_store_is_lost),
        cmocka_unit_test(
            a_claim_that_was_written_to_an_older_store_does_not_start),
        cmocka_unit_test(
            a_token_that_was_redeemed_in_an_older_store_is_not_redeemed),
        cmocka_unit_test(
            a_write_through_a_new_connection_to_the_same_store_counts),
        cmocka_unit_test(
            all_writes_through_a_new_connection_to_an_older_store_are_lost),
        cmocka_unit_test(a_new_connection_to_the_same_store_costs_one_mark),
        cmocka_unit_test(
            a_write_beside_damage_that_goes_to_an_older_store_is_lost),
        cmocka_unit_test(a_lost_write_is_not_sent_again_to_an_older_store),
        cmocka_unit_test(
            after_a_failure_the_mark_is_written_before_the_next_batch),
        cmocka_unit_test(
            a_mark_that_fails_keeps_the_next_batches_away_from_the_store),
        cmocka_unit_test(
            without_a_mark_nothing_is_done_on_a_store_that_does_not_answer),
        cmocka_unit_test(a_mark_whose_reply_was_lost_is_recognised),
        cmocka_unit_test(a_full_store_or_a_locked_mark_does_not_stop_replays),
        cmocka_unit_test(
            nothing_is_done_while_the_last_write_cannot_be_looked_for),
        cmocka_unit_test(a_last_write_that_is_damaged_is_there),
        cmocka_unit_test(an_accepted_loss_brings_lost_claims_into_doubt),
        cmocka_unit_test(
            a_lost_claim_is_written_again_as_it_was_but_with_its_lease_over),
        cmocka_unit_test(a_lost_claim_that_somebody_only_reads_is_absent),
        cmocka_unit_test(
            a_lost_claim_is_not_touched_before_the_loss_is_accepted),
        cmocka_unit_test(
            a_lost_claim_can_be_settled_before_the_loss_is_accepted),
        cmocka_unit_test(a_lost_claim_is_not_settled_while_the_mark_fails),
        cmocka_unit_test(only_a_claim_of_the_lost_time_comes_into_doubt),
        cmocka_unit_test(
            a_client_that_waits_for_a_lost_claim_finds_it_in_doubt),
        cmocka_unit_test(a_client_that_waits_for_a_lost_claim_is_refused),
        cmocka_unit_test(an_outcome_that_has_expired_anyway_is_not_in_doubt),
    };

    return cmocka_run_group_tests(tests, NULL, NULL) +
           test_files_and_other_stores();
}
