/*
 * handle.c - claim, handle, finish: one delivery after another, on a thread.
 *
 * idem_run does the claim, keeps the lease alive and finishes; this file turns
 * its verdicts into what becomes of the delivery:
 *
 *   ran here, handled         acknowledge
 *   ran here, failed          strict, poison or too often: dead letter;
 *                             else try again after a pause
 *   replay                    acknowledge (a recorded failure: dead letter)
 *   doubt, outcome unclear    to the doubt place, never handled again
 *   mismatch                  dead letter: one id, two contents
 *   busy, store away          put back
 */
#include "consume.h"

#include <sodium.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define BACKOFF_MAX_MS 30000
#define STORE_TRIES 4
#define BUSY_WAIT_MS 1000
#define COMPLAIN_EVERY_US 5000000

bool
consumer_stopping(const struct idem_consumer *consumer)
{
    return __atomic_load_n(&consumer->stop, __ATOMIC_ACQUIRE);
}

/* False: the consumer is stopping. */
static bool
pause_ms(struct idem_consumer *consumer, int64_t ms)
{
    while (ms > 0 && !consumer_stopping(consumer)) {
        int64_t nap = ms < 50 ? ms : 50;

        usleep((useconds_t)nap * 1000);
        ms -= nap;
    }
    return !consumer_stopping(consumer);
}

static int64_t
backoff_ms(const struct idem_consumer *consumer, int attempt)
{
    int64_t ms = consumer->options.backoff_ms;

    while (--attempt > 0 && ms < BACKOFF_MAX_MS)
        ms *= 2;
    return ms < BACKOFF_MAX_MS ? ms : BACKOFF_MAX_MS;
}

static enum fate
decide(struct delivery *d, enum fate fate, const char *reason)
{
    snprintf(d->reason, sizeof(d->reason), "%s", reason);
    d->fate = fate;
    return fate;
}

/* The store is in trouble: say so, but not for every message. */
static void
complain(struct idem_consumer *consumer, const char *text)
{
    int64_t now_us = idem__system_clocks.boot_us(NULL);
    int64_t last_us =
        __atomic_load_n(&consumer->complained_us, __ATOMIC_RELAXED);

    if ((last_us && now_us - last_us < COMPLAIN_EVERY_US) ||
        !__atomic_compare_exchange_n(&consumer->complained_us, &last_us, now_us,
                                     false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        return;
    idem__log(&consumer->log, IDEM_LOG_WARNING,
              "messages are put back, the store is in trouble: %s", text);
}

/* What the handler's work carries through idem_run. */
struct work {
    struct idem_consumer *consumer;
    struct idem_message message;
    enum idem_handled handled;
    bool ran;
    struct idem_error why;
};

static enum idem_state
do_work(void *arg, uint64_t fence, struct idem_bytes *result)
{
    struct work *work = arg;
    const struct idem_consume_options *o = &work->consumer->options;

    work->ran = true;
    work->message.fence = fence;
    work->why.text[0] = 0;
    work->handled = o->handle(o->arg, &work->message, &work->why);
    *result = idem_text(work->why.text);
    switch (work->handled) {
    case IDEM_HANDLED:
        return IDEM_STATE_SUCCEEDED;
    case IDEM_NOT_HANDLED:
        return IDEM_STATE_FREE;
    case IDEM_UNCLEAR:
        return work->consumer->options.mode == IDEM_STRICT
                   ? IDEM_STATE_EXECUTING
                   : IDEM_STATE_FREE;
    case IDEM_FAILED_ONCE:
    case IDEM_POISON:
        break;
    }
    return IDEM_STATE_FAILED;
}

/* After a handler that did not succeed: is this the end of it? */
static bool
is_final(const struct idem_consumer *consumer, const struct work *work)
{
    if (work->handled == IDEM_POISON)
        return true;
    if (work->handled == IDEM_FAILED_ONCE &&
        consumer->options.mode == IDEM_STRICT && !consumer->options.own_record)
        return true;
    return work->message.attempt >= (uint32_t)consumer->options.max_attempts;
}

/* One try with a record of ours. *again: pause, then try once more. */
static enum fate
run_once(struct idem_consumer *consumer, struct delivery *d, struct work *work,
         const struct idem_op *op, bool *again)
{
    struct idem_answer answer = {0};
    struct idem_error err = {0};
    enum idem_status status;
    enum fate fate = FATE_PUT_BACK;

    *again = false;
    work->ran = false;
    status = idem_run(consumer->engine, op, do_work, work, &answer, &err);
    if (status != IDEM_OK) {
        *again = !work->ran;
        complain(consumer, err.text);
        return decide(d, FATE_PUT_BACK, err.text);
    }
    switch (answer.verdict) {
    case IDEM_V_STARTED:
        if (work->handled == IDEM_HANDLED) {
            CONSUMER_COUNT(consumer, handled);
            fate = decide(d, FATE_ACKNOWLEDGE, "");
        } else if (answer.record.state == IDEM_STATE_EXECUTING)
            fate = decide(d, FATE_DOUBT, work->why.text);
        else if (is_final(consumer, work))
            fate = decide(d, FATE_DEAD_LETTER, work->why.text);
        else
            *again = true;
        break;
    case IDEM_V_REPLAY:
        if (answer.record.state == IDEM_STATE_FAILED) {
            snprintf(d->reason, sizeof(d->reason), "%.*s",
                     (int)answer.record.result.len,
                     answer.record.result.data
                         ? (const char *)answer.record.result.data
                         : "");
            d->fate = fate = FATE_DEAD_LETTER;
        } else {
            CONSUMER_COUNT(consumer, duplicates);
            fate = decide(d, FATE_ACKNOWLEDGE, "");
        }
        break;
    case IDEM_V_DOUBT:
        fate = decide(d, FATE_DOUBT,
                      "the consumer that claimed it is gone: nobody knows "
                      "whether it was handled");
        break;
    case IDEM_V_MISMATCH:
        fate = decide(d, FATE_DEAD_LETTER,
                      "another message with this identity was handled before, "
                      "and its content was different");
        break;
    default: /* busy; or taken over meanwhile, then its new holder decides */
        fate = decide(d, FATE_PUT_BACK, "in progress elsewhere");
        break;
    }
    idem_answer_clear(&answer);
    return fate;
}

/* One try where the handler keeps the record itself. */
static enum fate
call_once(struct idem_consumer *consumer, struct delivery *d, struct work *work,
          bool *again)
{
    struct idem_bytes ignored;

    do_work(work, 0, &ignored);
    *again = work->handled != IDEM_HANDLED && !is_final(consumer, work);
    if (work->handled == IDEM_HANDLED) {
        CONSUMER_COUNT(consumer, handled);
        return decide(d, FATE_ACKNOWLEDGE, "");
    }
    return decide(d, *again ? FATE_PUT_BACK : FATE_DEAD_LETTER, work->why.text);
}

static enum fate
process(struct idem_consumer *consumer, struct delivery *d)
{
    char id[IDEM_ID_MAX + 1];
    uint8_t fingerprint[IDEM_FINGERPRINT_LEN];
    struct work work = {.consumer = consumer};
    struct idem_op op = {.verb = IDEM_BEGIN,
                         .fingerprint = fingerprint,
                         .mode = consumer->options.mode,
                         .lease_ms = consumer->options.lease_ms,
                         .ttl_ms = consumer->options.ttl_ms,
                         .wait_ms = BUSY_WAIT_MS};
    struct idem_error err;
    bool again = true;
    enum fate fate = FATE_PUT_BACK;
    int store_tries = 0;

    if (!identity_of(&consumer->identity, d, id, &op.id.len, &err))
        return decide(d, FATE_DEAD_LETTER, err.text);
    crypto_generichash(fingerprint, sizeof(fingerprint), d->body.data,
                       d->body.len, NULL, 0);
    op.scope = idem_text(consumer->scope);
    op.id.data = id;
    work.message = (struct idem_message){.scope = op.scope,
                                         .id = op.id,
                                         .body = d->body,
                                         .headers = d->headers,
                                         .header_count = d->header_count,
                                         .attempt = 1};
    for (;;) {
        fate = consumer->options.own_record
                   ? call_once(consumer, d, &work, &again)
                   : run_once(consumer, d, &work, &op, &again);
        if (!again)
            return fate;
        if (work.ran) {
            if (!pause_ms(consumer,
                          backoff_ms(consumer, (int)work.message.attempt)))
                return decide(d, FATE_PUT_BACK, "stopping");
            work.message.attempt++;
            CONSUMER_COUNT(consumer, retries);
        } else if (++store_tries >= STORE_TRIES ||
                   !pause_ms(consumer, backoff_ms(consumer, store_tries))) {
            return fate;
        }
    }
}

static void
count(struct idem_consumer *consumer, const struct delivery *d)
{
    if (d->fate == FATE_DEAD_LETTER)
        CONSUMER_COUNT(consumer, dead_letters);
    else if (d->fate == FATE_DOUBT)
        CONSUMER_COUNT(consumer, doubts);
    else if (d->fate == FATE_PUT_BACK)
        CONSUMER_COUNT(consumer, put_back);
}

static struct delivery *
next_delivery(struct handler *handler)
{
    struct idem_consumer *consumer = handler->consumer;
    struct delivery *d;

    while (!handler->first && !consumer->no_more)
        pthread_cond_wait(&handler->wake, &consumer->mutex);
    d = handler->first;
    if (!d)
        return NULL;
    handler->first = d->next;
    if (!handler->first)
        handler->last = &handler->first;
    return d;
}

void *
consumer_handle(void *arg)
{
    struct handler *handler = arg;
    struct idem_consumer *consumer = handler->consumer;
    struct delivery *d;

    pthread_mutex_lock(&consumer->mutex);
    while ((d = next_delivery(handler))) {
        bool putting_back = consumer->no_more;

        pthread_mutex_unlock(&consumer->mutex);
        if (putting_back || consumer_stopping(consumer))
            decide(d, FATE_PUT_BACK, "stopping");
        else
            process(consumer, d);
        count(consumer, d);
        pthread_mutex_lock(&consumer->mutex);
        d->next = consumer->done;
        consumer->done = d;
        consumer->done_count++;
        pthread_cond_signal(&consumer->concluded);
    }
    pthread_mutex_unlock(&consumer->mutex);
    return NULL;
}
