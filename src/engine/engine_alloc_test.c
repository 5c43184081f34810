/*
 * engine_alloc_test.c - lets each allocation of an engine fail once, in turn.
 * Nothing may leak or be half done, and the engine must go on.
 */
#include "../../tests/support/rig.h"
#include "inner.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* The linker calls these instead of the real functions (see the Makefile). */
void *__real_malloc(size_t len);
void *__real_calloc(size_t count, size_t len);
void *__real_realloc(void *old, size_t len);
void *__wrap_malloc(size_t len);
void *__wrap_calloc(size_t count, size_t len);
void *__wrap_realloc(void *old, size_t len);

static long countdown; /* 0: no failure; 1: the next allocation fails */
static bool failed;
static atomic_int no_cancels; /* this many cancels fail */

static bool
fails_now(void)
{
    if (countdown == 0 || --countdown > 0)
        return false;
    failed = true;
    return true;
}

void *
__wrap_malloc(size_t len)
{
    return fails_now() ? NULL : __real_malloc(len);
}

void *
__wrap_calloc(size_t count, size_t len)
{
    if (len == sizeof(struct idem__cancel) && atomic_load(&no_cancels) > 0) {
        atomic_fetch_sub(&no_cancels, 1);
        return NULL;
    }
    return fails_now() ? NULL : __real_calloc(count, len);
}

void *
__wrap_realloc(void *old, size_t len)
{
    return fails_now() ? NULL : __real_realloc(old, len);
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
every_allocation_may_fail(void **state)
{
    long n = 0;

    (void)state;
    do {
        failed = false;
        countdown = ++n;
        live();
        countdown = 0;
    } while (failed);
    print_message("%ld allocations\n", n - 1);
    assert_true(n > 100);
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
    atomic_store(&no_cancels, 2);
    assert_int_equal(idem__do_until(engine, &op, NULL, &stop, &answer, NULL),
                     IDEM_ERR_CLOSED);
    assert_int_equal(atomic_load(&no_cancels), 0);
    idem_answer_clear(&answer);
    idem_close(engine);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_allocation_may_fail),
        cmocka_unit_test(
            who_is_told_to_stop_waiting_does_although_memory_is_short),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
