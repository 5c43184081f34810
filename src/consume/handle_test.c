/*
 * handle_test.c - claim, handle, finish, acknowledge: with a source of the test
 * and a store that fails on demand. A handler does not wait for the FINISH of a
 * message, but the acknowledgement does.
 */
#include "../../tests/support/faulty_store.h"
#include "consume.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define MESSAGES_MAX 400

/* A broker with some messages; number n has the ordering key n % keys. A
 * message that is put back is delivered again. */
struct broker {
    struct source base;
    struct faulty_store *store;
    struct idem_engine *engine;
    struct idem_consumer *consumer;
    int count, keys;
    int waiting[MESSAGES_MAX * 2], first, last; /* a ring of numbers */
    int fates[MESSAGES_MAX][FATE_DOUBT + 1];
    int open; /* neither acknowledged nor a letter */
    int handled[MESSAGES_MAX];
    int last_of_key[MESSAGES_MAX];
    int out_of_order, unrecorded; /* events that must not happen */
    enum fault fault;             /* begins when number 0 is handled */
    int fault_count;
    bool heals;   /* the fault ends when a message is put back */
    int stop_at;  /* handling this shuts the gate and stops all; -1: none */
    int gate;     /* swaps wait while it is 1 (atomic) */
    int returned; /* idem_consume_run has returned (atomic) */
};

static enum idem_status
connect_broker(struct source *source, struct idem_error *err)
{
    (void)source;
    (void)err;
    return IDEM_OK;
}

static enum idem_status
take(struct source *source, int wait_ms, bool more, struct delivery **delivery,
     struct idem_error *err)
{
    struct broker *b = (struct broker *)source;
    char text[32];
    int number;

    (void)err;
    *delivery = NULL;
    if (!more || b->first == b->last) {
        usleep(wait_ms > 0 ? 1000 : 0);
        return IDEM_OK;
    }
    number = b->waiting[b->first++ % (MESSAGES_MAX * 2)];
    *delivery = idem__delivery_make();
    assert_non_null(*delivery);
    (*delivery)->tag = (uint64_t)number;
    snprintf(text, sizeof(text), "m%d", number);
    idem__delivery_header(*delivery, idem_text("id"), idem_text(text));
    idem__delivery_copy(*delivery, text, strlen(text), &(*delivery)->body);
    snprintf(text, sizeof(text), "%d", number % b->keys);
    idem__delivery_header(*delivery, idem_text("key"), idem_text(text));
    return IDEM_OK;
}

/* A message that is acknowledged must be in its record. */
static void
check_recorded(struct broker *b, uint64_t number)
{
    char id[32];
    struct idem_op op = {.verb = IDEM_GET,
                         .scope = idem_text(b->consumer->scope)};
    struct idem_answer answer = {0};

    snprintf(id, sizeof(id), "m%llu", (unsigned long long)number);
    op.id = idem_text(id);
    if (idem_do(b->engine, &op, &answer, NULL) == IDEM_OK &&
        answer.record->state != IDEM_STATE_SUCCEEDED)
        b->unrecorded++;
    idem_answer_clear(&answer);
}

static enum idem_status
conclude(struct source *source, struct delivery *deliveries,
         struct idem_error *err)
{
    struct broker *b = (struct broker *)source;

    (void)err;
    for (struct delivery *d = deliveries; d; d = d->next) {
        b->fates[d->tag][d->fate]++;
        if (d->fate == FATE_ACKNOWLEDGE)
            check_recorded(b, d->tag);
        if (d->fate == FATE_PUT_BACK && b->heals)
            faulty_plan(b->store, FAULT_NONE, 0, 0);
        if (d->fate == FATE_PUT_BACK)
            b->waiting[b->last++ % (MESSAGES_MAX * 2)] = (int)d->tag;
        else if (--b->open == 0)
            idem_consume_stop(b->consumer);
    }
    return IDEM_OK;
}

static void
close_broker(struct source *source)
{
    (void)source;
}

static const struct source_type broker_type = {.scheme = "test",
                                               .connect = connect_broker,
                                               .take = take,
                                               .conclude = conclude,
                                               .close = close_broker};

static enum idem_handled
handle(void *arg, const struct idem_message *message, struct idem_error *err)
{
    struct broker *b = arg;
    int number = (int)strtol((const char *)message->id.data + 1, NULL, 10);
    int *last = &b->last_of_key[number % b->keys];

    (void)err;
    if (number == 0 && b->fault != FAULT_NONE)
        faulty_plan(b->store, b->fault, 0, b->fault_count);
    if (__atomic_exchange_n(last, number, __ATOMIC_RELAXED) > number)
        __atomic_fetch_add(&b->out_of_order, 1, __ATOMIC_RELAXED);
    __atomic_fetch_add(&b->handled[number], 1, __ATOMIC_RELAXED);
    if (number == b->stop_at) {
        __atomic_store_n(&b->gate, 1, __ATOMIC_RELEASE);
        idem_consume_stop(b->consumer);
    }
    return IDEM_HANDLED;
}

static void
wait_at_the_gate(void *arg, struct faulty_store *store)
{
    struct broker *b = arg;

    (void)store;
    while (__atomic_load_n(&b->gate, __ATOMIC_ACQUIRE))
        usleep(1000);
}

static void
no_log(void *arg, enum idem_log_level level, const char *text)
{
    (void)arg;
    (void)level;
    (void)text;
}

static void
open_broker(struct broker *b, int count, int keys, int concurrency,
            int64_t lease_ms, enum idem_mode mode)
{
    const struct idem_consume_options options = {
        .source = "redis-stream://h?stream=orders&group=g",
        .order_by = "header:key",
        .mode = mode,
        .lease_ms = lease_ms,
        .concurrency = concurrency,
        .backoff_ms = 5,
        .handle = handle,
        .arg = b,
        .log = no_log};
    const struct idem_options quiet = {.log = no_log};
    struct idem__engine_inner inner = {.hasty = true};
    struct idem_store *memory;

    memset(b, 0, sizeof(*b));
    b->base.type = &broker_type;
    b->count = b->open = b->last = count;
    b->keys = keys;
    b->stop_at = -1;
    for (int i = 0; i < count; i++) {
        b->waiting[i] = i;
        b->last_of_key[i] = -1;
    }
    assert_int_equal(idem__store_open("memory:", NULL, &memory, NULL), IDEM_OK);
    b->store = faulty_open(FAULTY_LOCAL, memory, NULL);
    b->store->before_swap_arg = b;
    b->store->before_swap = wait_at_the_gate;
    inner.store = &b->store->base;
    assert_int_equal(idem__engine_open(NULL, &quiet, &inner, &b->engine, NULL),
                     IDEM_OK);
    assert_int_equal(idem_consume_open(b->engine, &options, &b->consumer, NULL),
                     IDEM_OK);
    /* idem_consume_open has made a source but not connected it, so it can still
     * be replaced. */
    idem__source_close(b->consumer->source);
    b->consumer->source = &b->base;
}

static void
close_broker_and_all(struct broker *b)
{
    b->consumer->source = NULL; /* it is not on the heap */
    idem_consume_close(b->consumer);
    idem_close(b->engine);
    assert_int_equal(b->unrecorded, 0);
}

static void
run(struct broker *b)
{
    assert_int_equal(idem_consume_run(b->consumer, NULL), IDEM_OK);
}

static void
messages_of_one_key_are_handled_in_order(void **state)
{
    struct broker b;
    struct idem_consume_stats stats;

    (void)state;
    open_broker(&b, MESSAGES_MAX, 7, 3, 0, IDEM_STRICT);
    run(&b);
    for (int i = 0; i < b.count; i++) {
        assert_int_equal(b.handled[i], 1);
        assert_int_equal(b.fates[i][FATE_ACKNOWLEDGE], 1);
    }
    assert_int_equal(b.out_of_order, 0);
    idem_consume_stats(b.consumer, &stats);
    assert_int_equal(stats.handled, b.count);
    assert_int_equal(stats.in_flight, 0);
    close_broker_and_all(&b);
}

/* The FINISH of message 0 fails in some way and is sent again. */
static void
a_record_that_cannot_be_written_at_once_is_written_later(void **state)
{
    (void)state;
    for (int fault = FAULT_UNAVAILABLE; fault < FAULT_COUNT; fault++) {
        struct broker b;

        open_broker(&b, 20, 20, 1, 20000, IDEM_STRICT);
        b.fault = (enum fault)fault;
        b.fault_count = fault == FAULT_LOCKED ? 16 : 7;
        run(&b);
        for (int i = 0; i < b.count; i++)
            assert_int_equal(b.handled[i], 1);
        assert_int_equal(b.fates[0][FATE_ACKNOWLEDGE], 1);
        assert_int_equal(b.fates[0][FATE_PUT_BACK], 0);
        close_broker_and_all(&b);
    }
}

/* The store is unavailable for longer than the lease: in strict mode the
 * outcome is unknown, which is reported. */
static void
a_record_that_cannot_be_written_at_all_is_a_doubt(void **state)
{
    struct broker b;

    (void)state;
    open_broker(&b, 1, 1, 1, 200, IDEM_STRICT);
    b.fault = FAULT_UNAVAILABLE;
    b.fault_count = 1 << 30; /* a small number ends early if it is slow */
    b.heals = true;
    run(&b);
    assert_int_equal(b.handled[0], 1);
    assert_true(b.fates[0][FATE_PUT_BACK] > 0);
    assert_int_equal(b.fates[0][FATE_DOUBT], 1);
    assert_int_equal(b.fates[0][FATE_ACKNOWLEDGE], 0);
    close_broker_and_all(&b);
}

static void *
run_thread(void *arg)
{
    struct broker *b = arg;

    run(b);
    __atomic_store_n(&b->returned, 1, __ATOMIC_RELEASE);
    return NULL;
}

/* While the record is being written, nothing is acknowledged and a stop does
 * not end. */
static void
a_stop_waits_for_what_is_being_recorded(void **state)
{
    struct broker b;
    pthread_t thread;
    struct idem_consume_stats stats;

    (void)state;
    open_broker(&b, 2, 1, 1, 0, IDEM_STRICT);
    b.stop_at = 0;
    assert_int_equal(pthread_create(&thread, NULL, run_thread, &b), 0);
    while (!__atomic_load_n(&b.gate, __ATOMIC_ACQUIRE))
        usleep(1000);
    usleep(200000);
    assert_int_equal(__atomic_load_n(&b.returned, __ATOMIC_ACQUIRE), 0);
    idem_consume_stats(b.consumer, &stats);
    assert_int_equal(stats.handled, 0);
    assert_true(stats.in_flight > 0);
    __atomic_store_n(&b.gate, 0, __ATOMIC_RELEASE);
    pthread_join(thread, NULL);
    assert_int_equal(b.fates[0][FATE_ACKNOWLEDGE], 1);
    assert_int_equal(b.fates[1][FATE_ACKNOWLEDGE], 0);
    assert_int_equal(b.handled[1], 0);
    close_broker_and_all(&b);
}

/* One of four swaps fails, in some way. */
static void
a_store_in_chaos_repeats_nothing_and_forgets_nothing(void **state)
{
    struct broker b;

    (void)state;
    open_broker(&b, 200, 200, 8, 300, IDEM_STRICT);
    faulty_chaos(b.store, 4);
    run(&b);
    for (int i = 0; i < b.count; i++) {
        assert_true(b.handled[i] <= 1);
        assert_int_equal(b.fates[i][FATE_ACKNOWLEDGE] + b.fates[i][FATE_DOUBT],
                         1);
        assert_true(b.handled[i] == 1 || b.fates[i][FATE_DOUBT] == 1);
    }
    close_broker_and_all(&b);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(messages_of_one_key_are_handled_in_order),
        cmocka_unit_test(
            a_record_that_cannot_be_written_at_once_is_written_later),
        cmocka_unit_test(a_record_that_cannot_be_written_at_all_is_a_doubt),
        cmocka_unit_test(a_stop_waits_for_what_is_being_recorded),
        cmocka_unit_test(a_store_in_chaos_repeats_nothing_and_forgets_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
