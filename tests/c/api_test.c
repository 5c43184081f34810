/*
 * api_test.c - what the head of idem/record.h promises of every function:
 * handles and answers after an error, and what stands in `room`.
 */
#include <idem/consume.h>
#include <idem/id.h>
#include <idem/idem.h>
#include <idem/lock.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#define MARK ((void *)0x5a5a)

static struct idem_engine *engine;
static struct idem_error err;

static int
set_up(void **state)
{
    (void)state;
    return idem_open("memory:", NULL, &engine, &err) == IDEM_OK ? 0 : -1;
}

static int
tear_down(void **state)
{
    (void)state;
    idem_close(engine);
    return 0;
}

static enum idem_handled
handle(void *arg, const struct idem_message *message, struct idem_error *e)
{
    (void)arg;
    (void)message;
    (void)e;
    return IDEM_HANDLED;
}

static bool
each(void *arg, const struct idem_record *record)
{
    (void)arg;
    (void)record;
    return true;
}

static enum idem_state
work(void *arg, uint64_t fence, struct idem_bytes *result)
{
    (void)arg;
    (void)fence;
    *result = idem_text("done");
    return IDEM_STATE_SUCCEEDED;
}

static void
an_error_leaves_a_handle_as_it_was(void **state)
{
    struct idem_engine *none = MARK;
    struct idem_ids *ids = MARK;
    struct idem_lock *lock = MARK, *held;
    struct idem_consumer *consumer = MARK;

    (void)state;
    assert_int_equal(idem_open("nothing:", NULL, &none, &err),
                     IDEM_ERR_INVALID);
    assert_int_equal(idem_open("memory:", &(struct idem_options){.poll_ms = -1},
                               &none, &err),
                     IDEM_ERR_INVALID);
    assert_ptr_equal(none, MARK);
    assert_int_equal(idem_ids_open(engine,
                                   &(struct idem_ids_options){.lease_ms = 1},
                                   &ids, &err),
                     IDEM_ERR_INVALID);
    assert_ptr_equal(ids, MARK);
    assert_int_equal(idem_lock_take(engine, "one", NULL, &held, &err), IDEM_OK);
    assert_int_equal(idem_lock_take(engine, "one", NULL, &lock, &err),
                     IDEM_ERR_TIMEOUT);
    assert_ptr_equal(lock, MARK);
    assert_int_equal(idem_lock_give(held, NULL, &err), IDEM_OK);
    assert_int_equal(
        idem_consume_open(engine,
                          &(struct idem_consume_options){.source = "nothing://",
                                                         .handle = handle},
                          &consumer, &err),
        IDEM_ERR_INVALID);
    assert_ptr_equal(consumer, MARK);
}

static void
an_error_leaves_an_answer_empty(void **state)
{
    const struct idem_op op = {.scope = idem_text("s")}; /* it has no id */
    struct idem_answer answer;

    (void)state;
    memset(&answer, 0x5a, sizeof(answer));
    assert_int_equal(idem_do(engine, &op, &answer, &err), IDEM_ERR_INVALID);
    assert_int_equal(answer.record->state, IDEM_STATE_ABSENT);
    idem_answer_clear(&answer);
    memset(&answer, 0x5a, sizeof(answer));
    assert_int_equal(idem_run(engine, &op, work, NULL, &answer, &err),
                     IDEM_ERR_INVALID);
    assert_int_equal(answer.record->state, IDEM_STATE_ABSENT);
    idem_answer_clear(&answer);
}

/* The last word of each room. */
#define LAST(type) (sizeof((struct type){0}.room) / sizeof(uint64_t) - 1)
#define FULL(type, ...) (&(struct type){.room[LAST(type)] = 1, ##__VA_ARGS__})

static void
what_a_newer_header_has_is_unsupported(void **state)
{
    struct idem_cursor cursor = {"0"};
    struct idem_answer answer;
    struct idem_engine *none;
    struct idem_ids *ids;
    struct idem_lock *lock;
    struct idem_consumer *consumer;

    (void)state;
    assert_int_equal(idem_open("memory:", FULL(idem_options), &none, &err),
                     IDEM_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "newer version"));
    assert_int_equal(
        idem_do(engine,
                FULL(idem_op, .scope = idem_text("s"), .id = idem_text("i")),
                &answer, &err),
        IDEM_ERR_UNSUPPORTED);
    assert_int_equal(
        idem_scan(engine, FULL(idem_filter), &cursor, 10, each, NULL, &err),
        IDEM_ERR_UNSUPPORTED);
    assert_int_equal(
        idem_lock_take(engine, "two", FULL(idem_lock_options), &lock, &err),
        IDEM_ERR_UNSUPPORTED);
    assert_int_equal(idem_ids_open(engine, FULL(idem_ids_options), &ids, &err),
                     IDEM_ERR_UNSUPPORTED);
    assert_int_equal(
        idem_consume_open(engine, FULL(idem_consume_options), &consumer, &err),
        IDEM_ERR_UNSUPPORTED);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_error_leaves_a_handle_as_it_was),
        cmocka_unit_test(an_error_leaves_an_answer_empty),
        cmocka_unit_test(what_a_newer_header_has_is_unsupported),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
