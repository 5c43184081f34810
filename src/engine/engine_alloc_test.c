/*
 * engine_alloc_test.c - lets each allocation of an engine fail once, in turn.
 * Nothing may leak or be half done, and the engine must go on.
 */
#include "../../tests/support/failing_alloc.h"
#include "../../tests/support/rig.h"
#include "inner.h"

#include <fcntl.h>
#include <limits.h>
#include <malloc.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static long countdown; /* 0: no failure; 1: the next allocation fails */
static bool failed;
static atomic_int no_cancels; /* this many cancels fail */

static bool
alloc_fails(size_t calloc_len)
{
    if (calloc_len == sizeof(struct idem__cancel) &&
        atomic_load(&no_cancels) > 0) {
        atomic_fetch_sub(&no_cancels, 1);
        return true;
    }
    if (countdown == 0 || --countdown > 0)
        return false;
    failed = true;
    return true;
}

static void
may_lack_memory(enum idem_status status)
{
    if (status != IDEM_OK)
        assert_true(failed &&
                    (status == IDEM_ERR_MEMORY || status == IDEM_ERR_LOST));
}

static struct reply
try(struct idem_engine *engine, const struct idem_op *op)
{
    struct reply reply = ask(engine, op);

    may_lack_memory(reply.status);
    if (reply.status == IDEM_ERR_MEMORY)
        assert_non_null(strstr(reply.text, "memory"));
    return reply;
}

#define CROWD 70 /* more than the first sizes of heap and maps */

static void
live_with_a_crowd(struct idem_engine *engine)
{
    static struct reply crowd[CROWD];
    struct idem_op op = op_begin("a");
    struct reply start = try(engine, &op);

    if (start.status != IDEM_OK)
        start = ask(engine, &op);
    assert_verdict(start, IDEM_V_STARTED);
    op = op_wait("a", 60000);
    for (int i = 0; i < CROWD; i++)
        put(engine, &op, &crowd[i]);
    turn(engine);
    idem_cancel(engine, crowd[3].ticket);
    turn(engine);
    op = op_finish("a", start.fence, "R");
    if (try(engine, &op).status != IDEM_OK)
        assert_verdict(ask(engine, &op), IDEM_V_OK);
    idem_close(engine); /* also answers those that could not be woken */
    for (int i = 0; i < CROWD; i++) {
        assert_true(crowd[i].done && crowd[i].times <= 1);
        if (crowd[i].status == IDEM_OK)
            assert_true(crowd[i].verdict == IDEM_V_REPLAY ||
                        (failed && crowd[i].verdict == IDEM_V_BUSY));
        else if (crowd[i].status != IDEM_ERR_CLOSED)
            may_lack_memory(crowd[i].status);
        else
            assert_true(i == 3 || failed);
    }
}

static bool
seen(void *arg, const struct idem_record *record)
{
    (void)record;
    ++*(int *)arg;
    return true;
}

static enum idem_state
work(void *arg, uint64_t fence, struct idem_bytes *result)
{
    (void)fence;
    ++*(int *)arg;
    *result = idem_text("done");
    return IDEM_STATE_SUCCEEDED;
}

static void
live_with_calls(struct idem_engine *engine)
{
    struct idem_op op = op_begin("run");
    struct idem_cursor cursor = {"0"};
    struct idem_answer answer = {0};
    enum idem_status status;
    int runs = 0, records = 0;

    turn(engine); /* this thread drives it */
    status = idem_run(engine, &op, work, &runs, &answer, NULL);
    may_lack_memory(status);
    if (status == IDEM_OK) {
        assert_int_equal(answer.verdict, IDEM_V_STARTED);
        idem_answer_clear(&answer);
    }
    assert_true(runs <= 1);
    op = op_lock("l", "me", 0);
    status = idem_do(engine, &op, &answer, NULL);
    may_lack_memory(status);
    if (status == IDEM_OK)
        idem_answer_clear(&answer);
    status = idem_scan(engine, NULL, &cursor, 10000, seen, &records, NULL);
    may_lack_memory(status);
    assert_true(failed || records == 2);
    turn(engine);
}

static struct idem_engine *
open_engine(void)
{
    struct idem__engine_inner inner = {.driven = true, .hasty = true};
    struct idem_engine *engine = NULL;

    may_lack_memory(idem__engine_open("memory:", NULL, &inner, &engine, NULL));
    return engine;
}

static void
live(void)
{
    struct idem_engine *engine = open_engine();

    if (!engine) {
        assert_true(failed);
        return;
    }
    live_with_calls(engine);
    live_with_a_crowd(engine); /* closes it */
}

static void
fail_each(void (*scenario)(void), long least)
{
    long n = 0;

    do {
        failed = false;
        countdown = ++n;
        scenario();
        countdown = 0;
    } while (failed);
    print_message("%ld allocations\n", n - 1);
    assert_true(n > least);
}

static void
every_allocation_may_fail(void **state)
{
    (void)state;
    fail_each(live, 100);
}

/* A wait whose end cannot be watched is answered at once. */
static void
live_until_all_waits_end(void)
{
    static struct reply crowd[CROWD];
    struct idem_op op = op_begin("a");
    long later = countdown;
    struct rig rig;

    countdown = 0; /* only what waits counts */
    rig_open(&rig, FAULTY_LOCAL, NULL);
    assert_verdict(ask(rig.engine, &op), IDEM_V_STARTED);
    op = op_wait("a", 1000);
    countdown = later;
    for (int i = 0; i < CROWD; i++)
        put(rig.engine, &op, &crowd[i]);
    turn(rig.engine);
    countdown = 0;
    test_clocks_pass(&rig.clocks, 1000);
    turn(rig.engine);
    for (int i = 0; i < CROWD; i++) {
        assert_true(crowd[i].done);
        may_lack_memory(crowd[i].status);
    }
    rig_close(&rig);
}

static void
every_wait_ends_although_memory_is_short(void **state)
{
    (void)state;
    fail_each(live_until_all_waits_end, CROWD);
}

/* ---- a store without a clock, a quota, keys, another engine's news --------
 */

static struct idem_store *memory; /* of all engines of a scenario */
static char key_path[300];

static void
note_waiters(void *arg, enum idem_status status,
             const struct idem_record *records, size_t count,
             const struct idem_cursor *next, const struct idem_error *err)
{
    (void)records;
    (void)next;
    (void)err;
    may_lack_memory(status);
    *(size_t *)arg = count;
}

static void
live_with_sealed_bytes(struct idem_engine *engine)
{
    static char large[65536]; /* sealed in memory of its own */
    struct idem_op op = op_begin("sealed");
    struct reply start, waits, again;
    size_t waiters = 0;

    memset(large, 's', sizeof(large));
    memcpy(large, "secret", 6);
    op.subject = (struct idem_bytes){large, IDEM__SEALED_SUBJECT_MAX};
    start = try(engine, &op);
    if (start.status != IDEM_OK)
        start = ask(engine, &op); /* without a nonce it may be its own */
    if (start.status != IDEM_OK || start.verdict != IDEM_V_STARTED)
        return;
    op = op_finish("sealed", start.fence, "");
    op.result = (struct idem_bytes){large, sizeof(large)};
    if (try(engine, &op).status != IDEM_OK)
        assert_verdict(ask(engine, &op), IDEM_V_OK);
    op = op_begin("sealed");
    again = try(engine, &op);
    if (again.status == IDEM_OK)
        assert_memory_equal(again.result, "secret", 6);
    op = op_lock("l", "me", 0);
    (void)try(engine, &op);
    op = op_lock("l", "you", 60000);
    put(engine, &op, &waits);
    turn(engine);
    may_lack_memory(
        idem__waiters_submit(engine, 10, note_waiters, &waiters, NULL));
    turn(engine);
    assert_true(failed || waiters == 1);
    idem__take_news(engine, IDEM_NEWS_CHANGED, NULL);
    turn(engine);
    idem_close(engine);
    assert_true(waits.done);
}

static void
live_far_away(void)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    struct idem_options options = {.seal_key = key_path};
    struct idem__engine_inner inner = {
        .driven = true, .hasty = true, .scope_records = 100};
    struct idem_engine *engine = NULL;
    struct faulty_store *store;
    long later = countdown;

    countdown = 0; /* the store of the test does not count */
    assert_int_equal(idem__store_open("memory:", NULL, &memory, NULL), IDEM_OK);
    store = faulty_open(FAULTY_CLOCKLESS, memory, &lock);
    inner.store = &store->base;
    countdown = later;
    may_lack_memory(idem__engine_open(NULL, &options, &inner, &engine, NULL));
    if (engine) {
        /* Without it leases would end by a clock that the store does not
         * have. */
        assert_non_null(engine->time.seen);
        live_with_sealed_bytes(engine);
    } else {
        assert_true(failed);
    }
    countdown = 0;
    idem__store_close(memory);
}

static void
every_allocation_may_fail_with_keys_and_a_quota(void **state)
{
    static const char key[] = "000102030405060708090a0b0c0d0e0f"
                              "101112131415161718191a1b1c1d1e1f\n";
    char folder[200];
    int fd;

    (void)state;
    make_folder(folder, sizeof(folder));
    snprintf(key_path, sizeof(key_path), "%s/key", folder);
    fd = open(key_path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    assert_int_equal(write(fd, key, strlen(key)), (ssize_t)strlen(key));
    close(fd);
    fail_each(live_far_away, 20);
    remove_folder(folder);
}

static void
who_is_told_to_stop_waiting_does_although_memory_is_short(void **state)
{
    const volatile sig_atomic_t stop = 1;
    struct idem_op op = op_begin("stopped");
    struct idem_engine *engine = NULL;
    struct idem_answer answer = {0};

    (void)state;
    assert_int_equal(idem_open("memory:", NULL, &engine, NULL), IDEM_OK);
    assert_int_equal(idem_do(engine, &op, &answer, NULL), IDEM_OK);
    idem_answer_clear(&answer);
    op = op_wait("stopped", 10000);
    atomic_store(&no_cancels, INT_MAX);
    assert_int_equal(idem__do_until(engine, &op, NULL, &stop, &answer, NULL),
                     IDEM_ERR_CLOSED);
    atomic_store(&no_cancels, 0);
    idem_answer_clear(&answer);
    idem_close(engine);
}

static void
a_wait_is_cancelled_without_memory(void **state)
{
    static struct reply crowd[IDEM__SPARE_CANCELS + 1];
    struct idem_op op = op_begin("a");
    struct rig rig;

    (void)state;
    rig_open(&rig, FAULTY_LOCAL, NULL);
    assert_verdict(ask(rig.engine, &op), IDEM_V_STARTED);
    op = op_wait("a", 60000);
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i <= IDEM__SPARE_CANCELS; i++)
            put(rig.engine, &op, &crowd[i]);
        turn(rig.engine);
        atomic_store(&no_cancels, INT_MAX);
        for (int i = 0; i <= IDEM__SPARE_CANCELS; i++)
            idem_cancel(rig.engine, crowd[i].ticket);
        turn(rig.engine);
        for (int i = 0; i < IDEM__SPARE_CANCELS; i++)
            assert_status(crowd[i], IDEM_ERR_CLOSED);
        /* There were no more spare ones; now there are again. */
        assert_false(crowd[IDEM__SPARE_CANCELS].done);
        idem_cancel(rig.engine, crowd[IDEM__SPARE_CANCELS].ticket);
        turn(rig.engine);
        assert_status(crowd[IDEM__SPARE_CANCELS], IDEM_ERR_CLOSED);
        atomic_store(&no_cancels, 0);
    }
    rig_close(&rig);
}

static void
closing_an_engine_gives_all_memory_back(void **state)
{
    struct idem_op op = op_begin("a"), look = op_get("a");
    size_t before = 0;

    (void)state;
    for (int i = 0; i < 22; i++) {
        struct rig rig;

        if (i == 2)
            before = mallinfo2().uordblks + mallinfo2().hblkhd;
        rig_open(&rig, FAULTY_REMOTE, NULL);
        assert_verdict(ask(rig.engine, &op), IDEM_V_STARTED);
        idem__recent_forget(rig.engine, rig.engine->batch.groups[0].key);
        assert_verdict(ask(rig.engine, &look), IDEM_V_RECORD); /* read */
        rig_close(&rig);
    }
    /* glibc counts small blocks that it keeps for the next malloc. */
    assert_true(mallinfo2().uordblks + mallinfo2().hblkhd < before + 16384);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_allocation_may_fail),
        cmocka_unit_test(every_wait_ends_although_memory_is_short),
        cmocka_unit_test(a_wait_is_cancelled_without_memory),
        cmocka_unit_test(closing_an_engine_gives_all_memory_back),
        cmocka_unit_test(every_allocation_may_fail_with_keys_and_a_quota),
        cmocka_unit_test(
            who_is_told_to_stop_waiting_does_although_memory_is_short),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
