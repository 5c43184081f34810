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
    bool heals;  /* the fault ends when a message is put back */
    int stop_at; /* handling this shuts the gate and stops all; -1: none */
    /* Instead of the usual handler. */
    enum idem_handled (*handler)(struct broker *b, int number,
                                 const struct idem_message *message,
                                 struct idem_error *err);
    const char *message_id;   /* of each message; NULL: it has a header */
    bool fails, fails_to_end; /* take, and what comes after a stop */
    bool pushes;              /* it delivers although nothing is wanted */
    char said[512];           /* the last warning */
    int gate;                 /* swaps wait while it is 1 (atomic) */
    int returned;             /* idem_consume_run has returned (atomic) */
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

    *delivery = NULL;
    if (b->fails || (!more && b->fails_to_end))
        return idem__fail(err, IDEM_ERR_UNAVAILABLE, "the broker is gone");
    if ((!more && !b->pushes) || b->first == b->last) {
        usleep(wait_ms > 0 ? 1000 : 0);
        return IDEM_OK;
    }
    number = b->waiting[b->first++ % (MESSAGES_MAX * 2)];
    *delivery = idem__delivery_make();
    assert_non_null(*delivery);
    (*delivery)->tag = (uint64_t)number;
    snprintf(text, sizeof(text), "m%d", number);
    if (b->message_id)
        idem__delivery_copy(*delivery, b->message_id, strlen(b->message_id),
                            &(*delivery)->message_id);
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
    int number = (int)strtol((const char *)message->body.data + 1, NULL, 10);
    int *last = &b->last_of_key[number % b->keys];

    if (number == 0 && b->fault != FAULT_NONE)
        faulty_plan(b->store, b->fault, 0, b->fault_count);
    if (__atomic_exchange_n(last, number, __ATOMIC_RELAXED) > number)
        __atomic_fetch_add(&b->out_of_order, 1, __ATOMIC_RELAXED);
    __atomic_fetch_add(&b->handled[number], 1, __ATOMIC_RELAXED);
    if (b->handler)
        return b->handler(b, number, message, err);
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
note_warning(void *arg, enum idem_log_level level, const char *text)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    struct broker *b = arg;

    pthread_mutex_lock(&lock);
    if (level != IDEM_LOG_INFO)
        snprintf(b->said, sizeof(b->said), "%s", text);
    pthread_mutex_unlock(&lock);
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
        .log = note_warning,
        .log_arg = b};
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

/* ---- what a handler says --------------------------------------------------
 */

static int
all_fates(const struct broker *b, int number)
{
    int sum = 0;

    for (int fate = 0; fate <= FATE_DOUBT; fate++)
        sum += b->fates[number][fate];
    return sum;
}

static enum idem_handled
fail_some(struct broker *b, int number, const struct idem_message *message,
          struct idem_error *err)
{
    idem__fail(err, IDEM_ERR_INVALID, "number %d", number);
    assert_int_equal(message->attempt, b->handled[number]);
    switch (number) {
    case 0:
        return IDEM_HANDLED;
    case 1:
        return b->handled[1] < 3 ? IDEM_NOT_HANDLED : IDEM_HANDLED;
    case 2:
        return IDEM_POISON;
    case 3:
        return IDEM_FAILED_ONCE;
    default:
        return b->handled[4] < 7 ? IDEM_AWAY : IDEM_HANDLED;
    }
}

/* It finds duplicates itself, so it may be called again after any failure. */
static void
a_handler_with_its_own_record_is_called_until_it_is_done(void **state)
{
    static const int calls[] = {1, 3, 1, 5, 7};
    struct idem_consume_stats stats;
    struct broker b;

    (void)state;
    open_broker(&b, 5, 5, 1, 0, IDEM_STRICT);
    b.consumer->options.own_record = true;
    b.handler = fail_some;
    run(&b);
    for (int i = 0; i < 5; i++) {
        bool letter = i == 2 || i == 3;

        assert_int_equal(b.handled[i], calls[i]);
        assert_int_equal(all_fates(&b, i), 1);
        assert_int_equal(b.fates[i][FATE_DEAD_LETTER], letter);
        assert_int_equal(b.fates[i][FATE_ACKNOWLEDGE], !letter);
    }
    idem_consume_stats(b.consumer, &stats);
    assert_int_equal(stats.handled, 3);
    assert_int_equal(stats.dead_letters, 2);
    assert_int_equal(stats.retries, 2 + 4 + 6);
    b.unrecorded = 0; /* the records are the handler's own */
    close_broker_and_all(&b);
}

static enum idem_handled
be_unclear(struct broker *b, int number, const struct idem_message *message,
           struct idem_error *err)
{
    (void)message;
    idem__fail(err, IDEM_ERR_LOST, "no reply");
    return b->handled[number] < 3 ? IDEM_UNCLEAR : IDEM_HANDLED;
}

static void
an_unclear_outcome_is_a_doubt_only_where_a_second_try_could_repeat_it(
    void **state)
{
    (void)state;
    for (int loose = 0; loose < 2; loose++) {
        struct broker b;

        open_broker(&b, 1, 1, 1, 0, loose ? IDEM_LOOSE : IDEM_STRICT);
        b.handler = be_unclear;
        run(&b);
        assert_int_equal(b.handled[0], loose ? 3 : 1);
        assert_int_equal(b.fates[0][FATE_DOUBT], !loose);
        assert_int_equal(b.fates[0][FATE_ACKNOWLEDGE], loose);
        close_broker_and_all(&b);
    }
}

/* Give the claim up, start it again and finish it, as another consumer does
 * after an operator's RELEASE. */
static void
take_over(struct broker *b, const struct idem_message *message)
{
    struct idem_op op = {.verb = IDEM_RELEASE,
                         .scope = message->scope,
                         .id = message->id,
                         .fence = message->fence};
    struct idem_answer answer = {0};

    assert_int_equal(idem_do(b->engine, &op, &answer, NULL), IDEM_OK);
    assert_int_equal(answer.verdict, IDEM_V_OK);
    idem_answer_clear(&answer);
    op.verb = IDEM_BEGIN;
    assert_int_equal(idem_do(b->engine, &op, &answer, NULL), IDEM_OK);
    assert_int_equal(answer.verdict, IDEM_V_STARTED);
    op.verb = IDEM_FINISH;
    op.fence = answer.record->fence;
    op.outcome = IDEM_STATE_SUCCEEDED;
    idem_answer_clear(&answer);
    assert_int_equal(idem_do(b->engine, &op, &answer, NULL), IDEM_OK);
    assert_int_equal(answer.verdict, IDEM_V_OK);
    idem_answer_clear(&answer);
}

static enum idem_handled
lose_the_claim(struct broker *b, int number, const struct idem_message *message,
               struct idem_error *err)
{
    take_over(b, message);
    idem__fail(err, IDEM_ERR_INVALID, "no");
    return number == 0 ? IDEM_HANDLED : IDEM_NOT_HANDLED;
}

static void
who_lost_its_claim_puts_the_message_back(void **state)
{
    struct idem_consume_stats stats;
    struct broker b;

    (void)state;
    open_broker(&b, 2, 2, 1, 0, IDEM_STRICT);
    b.handler = lose_the_claim;
    run(&b);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(b.handled[i], 1);
        assert_int_equal(b.fates[i][FATE_PUT_BACK], 1);
        assert_int_equal(b.fates[i][FATE_ACKNOWLEDGE], 1);
    }
    idem_consume_stats(b.consumer, &stats);
    assert_int_equal(stats.handled, 0);
    assert_int_equal(stats.duplicates, 2);
    close_broker_and_all(&b);
}

static enum idem_handled
fail_without_a_store(struct broker *b, int number,
                     const struct idem_message *message, struct idem_error *err)
{
    (void)message;
    idem__fail(err, IDEM_ERR_INVALID, "no");
    if (b->handled[number] > 1)
        return IDEM_HANDLED;
    faulty_plan(b->store, FAULT_UNAVAILABLE, 0, 1 << 30);
    return IDEM_NOT_HANDLED;
}

static void
a_claim_that_cannot_be_given_up_is_put_back(void **state)
{
    struct broker b;

    (void)state;
    open_broker(&b, 1, 1, 1, 200, IDEM_LOOSE);
    b.handler = fail_without_a_store;
    b.heals = true;
    run(&b);
    assert_int_equal(b.handled[0], 2);
    assert_true(b.fates[0][FATE_PUT_BACK] > 0);
    assert_int_equal(b.fates[0][FATE_ACKNOWLEDGE], 1);
    close_broker_and_all(&b);
}

static enum idem_handled
stop_and_fail(struct broker *b, int number, const struct idem_message *message,
              struct idem_error *err)
{
    (void)number;
    (void)message;
    idem__fail(err, IDEM_ERR_INVALID, "no");
    idem_consume_stop(b->consumer);
    return IDEM_NOT_HANDLED;
}

static void
no_second_try_is_begun_after_a_stop(void **state)
{
    struct broker b;

    (void)state;
    open_broker(&b, 1, 1, 1, 0, IDEM_STRICT);
    b.handler = stop_and_fail;
    run(&b);
    assert_int_equal(b.handled[0], 1);
    assert_int_equal(b.fates[0][FATE_PUT_BACK], 1);
    assert_int_equal(all_fates(&b, 0), 1);
    close_broker_and_all(&b);
}

/* ---- letters ---------------------------------------------------------------
 */

static enum idem_handled
poison(struct broker *b, int number, const struct idem_message *message,
       struct idem_error *err)
{
    (void)b;
    (void)number;
    (void)message;
    idem__fail(err, IDEM_ERR_INVALID,
               "a\nb\x7f"
               "c\033d");
    return IDEM_POISON;
}

static void
the_log_shows_a_letter_without_bytes_that_a_terminal_obeys(void **state)
{
    struct broker b;

    (void)state;
    open_broker(&b, 1, 1, 1, 0, IDEM_STRICT);
    b.handler = poison;
    b.message_id = "m\033[2J\xc3\xa4-0123456789012345678901234567890123456789"
                   "0123456789012345678901234567890123456789";
    run(&b);
    assert_int_equal(b.fates[0][FATE_DEAD_LETTER], 1);
    assert_non_null(strstr(b.said, "the id \"m?[2J?"
                                   "?-0123"));
    assert_non_null(strstr(b.said, "a?b?c?d"));
    assert_null(strstr(b.said, "01234567890123456789012345678901234567890123456"
                               "78901234567890123456789"));
    close_broker_and_all(&b);
}

static void
a_message_that_failed_without_a_reason_is_a_letter_without_one(void **state)
{
    struct idem_op op = {.verb = IDEM_BEGIN, .id = idem_text("m0")};
    struct idem_answer answer = {0};
    struct broker b;

    (void)state;
    open_broker(&b, 1, 1, 1, 0, IDEM_STRICT);
    op.scope = idem_text(b.consumer->scope);
    assert_int_equal(idem_do(b.engine, &op, &answer, NULL), IDEM_OK);
    op.verb = IDEM_FINISH;
    op.fence = answer.record->fence;
    op.outcome = IDEM_STATE_FAILED;
    idem_answer_clear(&answer);
    assert_int_equal(idem_do(b.engine, &op, &answer, NULL), IDEM_OK);
    idem_answer_clear(&answer);
    run(&b);
    assert_int_equal(b.handled[0], 0);
    assert_int_equal(b.fates[0][FATE_DEAD_LETTER], 1);
    close_broker_and_all(&b);
}

static void
only_a_letter_has_a_place(void **state)
{
    static const enum fate fates[] = {FATE_ACKNOWLEDGE, FATE_PUT_BACK,
                                      FATE_DEAD_LETTER, FATE_DOUBT};
    static const char *const places[] = {NULL, NULL, "dead", "doubt"};
    struct source source = {.dead_letter = "dead", .doubt = "doubt"};

    (void)state;
    for (int i = 0; i < 4; i++) {
        struct delivery d = {.fate = fates[i]};
        const char *place = idem__delivery_place(&d, &source);

        if (places[i])
            assert_string_equal(place, places[i]);
        else
            assert_null(place);
    }
}

/* ---- a broker in trouble ---------------------------------------------------
 */

static void
a_broker_that_is_gone_for_too_long_ends_the_consumer_with_an_error(void **state)
{
    struct idem_consume_stats stats;
    struct idem_error err;
    struct broker b;

    (void)state;
    open_broker(&b, 1, 1, 1, 0, IDEM_STRICT);
    b.consumer->options.stop_when_idle_ms = 100;
    b.fails = true;
    assert_int_equal(idem_consume_run(b.consumer, &err), IDEM_ERR_UNAVAILABLE);
    assert_non_null(strstr(err.text, "the broker is gone"));
    idem_consume_stats(b.consumer, &stats);
    assert_true(stats.reconnects > 0);
    assert_int_equal(b.handled[0], 0);
    close_broker_and_all(&b);
}

static enum idem_status
stop_broker(struct source *source, struct idem_error *err)
{
    struct broker *b = (struct broker *)source;

    return b->fails_to_end
               ? idem__fail(err, IDEM_ERR_UNAVAILABLE, "the broker is gone")
               : IDEM_OK;
}

static void
stop_while_recording(struct broker *b, const struct source_type *type)
{
    pthread_t thread;

    b->base.type = type;
    b->stop_at = 0;
    assert_int_equal(pthread_create(&thread, NULL, run_thread, b), 0);
    while (!__atomic_load_n(&b->gate, __ATOMIC_ACQUIRE))
        usleep(1000);
    usleep(100000);
    __atomic_store_n(&b->gate, 0, __ATOMIC_RELEASE);
    pthread_join(thread, NULL);
}

/* Their records say so when the broker delivers them again. */
static void
a_broker_that_goes_during_a_stop_gets_no_acknowledgements(void **state)
{
    struct source_type with_stop = broker_type;

    (void)state;
    with_stop.stop = stop_broker;
    for (int i = 0; i < 2; i++) {
        struct broker b;

        open_broker(&b, 1, 1, 1, 0, IDEM_STRICT);
        b.fails_to_end = true;
        stop_while_recording(&b, i == 0 ? &broker_type : &with_stop);
        assert_int_equal(b.handled[0], 1);
        assert_int_equal(all_fates(&b, 0), 0);
        assert_non_null(strstr(b.said, "the broker is gone; messages"));
        close_broker_and_all(&b);
    }
}

static void
what_comes_after_a_stop_is_put_back(void **state)
{
    struct idem_consume_stats stats;
    struct broker b;
    int back = 0;

    (void)state;
    open_broker(&b, 50, 1, 1, 0, IDEM_STRICT);
    b.pushes = true;
    b.consumer->prefetch = 1;
    stop_while_recording(&b, &broker_type);
    assert_int_equal(b.handled[0], 1);
    assert_int_equal(b.fates[0][FATE_ACKNOWLEDGE], 1);
    for (int i = 1; i < b.count; i++) {
        assert_int_equal(b.handled[i], 0);
        assert_int_equal(all_fates(&b, i), b.fates[i][FATE_PUT_BACK]);
        back += b.fates[i][FATE_PUT_BACK];
    }
    idem_consume_stats(b.consumer, &stats);
    assert_true(back > 0);
    assert_int_equal(stats.put_back, back);
    assert_int_equal(stats.received, back + 1);
    assert_int_equal(stats.in_flight, 0);
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
        cmocka_unit_test(
            a_handler_with_its_own_record_is_called_until_it_is_done),
        cmocka_unit_test(
            an_unclear_outcome_is_a_doubt_only_where_a_second_try_could_repeat_it),
        cmocka_unit_test(who_lost_its_claim_puts_the_message_back),
        cmocka_unit_test(a_claim_that_cannot_be_given_up_is_put_back),
        cmocka_unit_test(no_second_try_is_begun_after_a_stop),
        cmocka_unit_test(
            the_log_shows_a_letter_without_bytes_that_a_terminal_obeys),
        cmocka_unit_test(
            a_message_that_failed_without_a_reason_is_a_letter_without_one),
        cmocka_unit_test(only_a_letter_has_a_place),
        cmocka_unit_test(
            a_broker_that_is_gone_for_too_long_ends_the_consumer_with_an_error),
        cmocka_unit_test(
            a_broker_that_goes_during_a_stop_gets_no_acknowledgements),
        cmocka_unit_test(what_comes_after_a_stop_is_put_back),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
