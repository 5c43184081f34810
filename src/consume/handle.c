/*
 * handle.c - a handler's thread: claim, handle and finish one delivery after
 * another.
 *
 * The engine's run (idem__run) makes the claim, renews the lease and finishes;
 * this file turns its verdicts into the fate of the delivery. A handler waits
 * for its claim, but for its FINISH only if the message was not handled
 * successfully. A handled delivery is returned on the engine's thread when its
 * record is durable, while the handler works on the next one.
 *
 *   handled                   acknowledge
 *   failed                    strict, poison or too often: dead letter;
 *                             else retry after a pause
 *   handler unreachable       retry after a pause
 *   replay                    acknowledge (a recorded failure: dead letter)
 *   doubt                     to the doubt place, never handled again
 *   outcome unclear           strict: as a doubt; loose: as a failure
 *   mismatch                  dead letter: one id, two contents
 *   busy, store unavailable   put back
 */
#include "consume.h"

#include <sodium.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define BACKOFF_MAX_MS 30000
#define AWAY_MAX_MS 5000
#define STORE_TRIES 4
#define BUSY_WAIT_MS 1000
#define COMPLAIN_EVERY_US 5000000

bool
idem__consumer_stopping(const struct idem_consumer *consumer)
{
    return __atomic_load_n(&consumer->stop, __ATOMIC_ACQUIRE);
}

bool
idem__consumer_pause(const struct idem_consumer *consumer, int64_t ms)
{
    while (ms > 0 && !idem__consumer_stopping(consumer)) {
        int64_t nap = ms < 50 ? ms : 50;

        usleep((useconds_t)nap * 1000);
        ms -= nap;
    }
    return !idem__consumer_stopping(consumer);
}

/* The pause after so many tries. */
static int64_t
backoff_ms(const struct idem_consumer *consumer, int tries, int64_t max_ms)
{
    int64_t ms = consumer->options.backoff_ms;

    while (--tries > 0 && ms < max_ms)
        ms *= 2;
    return ms < max_ms ? ms : max_ms;
}

static enum fate
decide(struct delivery *d, enum fate fate, const char *reason)
{
    snprintf(d->reason, sizeof(d->reason), "%s", reason);
    d->fate = fate;
    return fate;
}

/* Log a problem, but not for every message. */
static void
complain_of(struct idem_consumer *consumer, const char *what, const char *text)
{
    int64_t now_us = idem__system_clocks.boot_us(NULL);
    int64_t last_us =
        __atomic_load_n(&consumer->complained_us, __ATOMIC_RELAXED);

    if ((last_us && now_us - last_us < COMPLAIN_EVERY_US) ||
        !__atomic_compare_exchange_n(&consumer->complained_us, &last_us, now_us,
                                     false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        return;
    idem__log(&consumer->log, IDEM_LOG_WARNING, "%s: %s", what, text);
}

static void
complain(struct idem_consumer *consumer, const char *text)
{
    complain_of(consumer, "messages are put back, the store is in trouble",
                text);
}

/* One message on its way through a handler. */
struct work {
    struct idem_consumer *consumer;
    struct idem_message message;
    enum idem_handled handled;
    int tries; /* tries in which the handler was reachable */
    int away;  /* tries in which it was not */
    bool ran;
    struct idem_error why;
};

static enum idem_state
do_work(struct work *work, uint64_t fence, uint32_t attempt)
{
    const struct idem_consume_options *o = &work->consumer->options;

    work->ran = true;
    work->message.fence = fence;
    work->message.attempt = attempt;
    work->why.text[0] = 0;
    work->handled = o->handle(o->arg, &work->message, &work->why);
    if (work->handled == IDEM_AWAY)
        work->away++;
    else
        work->tries++;
    switch (work->handled) {
    case IDEM_HANDLED:
        return IDEM_STATE_SUCCEEDED;
    case IDEM_NOT_HANDLED:
    case IDEM_AWAY:
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

/* The handler did not succeed: was this the last try? */
static bool
is_final(const struct idem_consumer *consumer, const struct work *work)
{
    if (work->handled == IDEM_POISON)
        return true;
    if (work->handled == IDEM_AWAY)
        return false;
    if (work->handled == IDEM_FAILED_ONCE &&
        consumer->options.mode == IDEM_STRICT && !consumer->options.own_record)
        return true;
    return work->tries >= consumer->options.max_attempts;
}

/* Return a delivery with its fate to the source's thread. The mutex is held. */
static void
hand_back(struct handler *handler, struct delivery *d)
{
    struct idem_consumer *consumer = handler->consumer;

    if (d->fate == FATE_DEAD_LETTER)
        CONSUMER_COUNT(consumer, dead_letters);
    else if (d->fate == FATE_DOUBT)
        CONSUMER_COUNT(consumer, doubts);
    else if (d->fate == FATE_PUT_BACK)
        CONSUMER_COUNT(consumer, put_back);
    d->next = consumer->done;
    consumer->done = d;
    consumer->done_count++;
    if (consumer->done_count == 1 ||
        consumer->done_count == consumer->worth_concluding)
        pthread_cond_signal(&consumer->concluded);
    if (--handler->taken == 0 && consumer->no_more)
        pthread_cond_signal(&handler->wake);
}

/* Put a delivery at the front of its handler's queue. The mutex is held. */
static void
take_back(struct handler *handler, struct delivery *d)
{
    d->next = handler->first;
    if (!handler->first)
        handler->last = &d->next;
    handler->first = d;
    handler->taken--;
    pthread_cond_signal(&handler->wake);
}

/* The FINISH of a handled message was answered. */
static enum fate
was_recorded(struct idem_consumer *consumer, struct delivery *d,
             const struct idem_answer *answer)
{
    d->run = NULL;
    if (answer->verdict == IDEM_V_STALE)
        return decide(d, FATE_PUT_BACK, "in progress elsewhere");
    CONSUMER_COUNT(consumer, handled);
    return decide(d, FATE_ACKNOWLEDGE, "");
}

/* The message was handled: store that in its record, and wait until this
 * succeeded or failed. */
static enum fate
record(struct idem_consumer *consumer, struct delivery *d)
{
    struct idem_answer answer = {0};
    struct idem_error err;
    enum fate fate;

    if (idem__run_end(d->run, IDEM_STATE_SUCCEEDED, idem_text(d->reason),
                      &answer, &err) == IDEM_OK) {
        fate = was_recorded(consumer, d, &answer);
    } else {
        d->run = NULL;
        complain(consumer, err.text);
        fate = decide(d, FATE_PUT_BACK, err.text);
    }
    idem_answer_clear(&answer);
    return fate;
}

/* Called on the engine's thread. After an error the handler's thread tries
 * again and waits for the outcome. */
static void
recorded(void *arg, enum idem_status status, const struct idem_answer *answer,
         const struct idem_error *err)
{
    struct delivery *d = arg;
    struct handler *handler = d->handler;
    struct idem_consumer *consumer = handler->consumer;
    bool known = status == IDEM_OK && answer->verdict != IDEM_V_BUSY;

    (void)err;
    if (known)
        was_recorded(consumer, d, answer);
    pthread_mutex_lock(&consumer->mutex);
    if (known)
        hand_back(handler, d);
    else
        take_back(handler, d);
    pthread_mutex_unlock(&consumer->mutex);
}

/* End a run after the handler. *again: pause, then retry. */
static enum fate
end_run(struct idem_consumer *consumer, struct delivery *d, struct work *work,
        struct idem__run *run, enum idem_state outcome, bool *again)
{
    struct idem_answer answer = {0};
    struct idem_error err;
    enum idem_status status;
    bool stale;

    if (outcome == IDEM_STATE_SUCCEEDED) {
        /* This thread's next claim is after this FINISH in the engine's queue.
         * So a handler has at most two operations in flight, and a duplicate of
         * this message finds its record. */
        d->run = run;
        decide(d, FATE_RECORDING, work->why.text);
        status = idem__run_submit_end(run, outcome, idem_text(d->reason),
                                      recorded, d, NULL);
        return status == IDEM_OK ? FATE_RECORDING : record(consumer, d);
    }
    status =
        idem__run_end(run, outcome, idem_text(work->why.text), &answer, &err);
    stale = answer.verdict == IDEM_V_STALE;
    idem_answer_clear(&answer);
    if (status != IDEM_OK) {
        complain(consumer, err.text);
        return decide(d, FATE_PUT_BACK, err.text);
    }
    if (stale)
        return decide(d, FATE_PUT_BACK, "in progress elsewhere");
    if (outcome == IDEM_STATE_EXECUTING)
        return decide(d, FATE_DOUBT, work->why.text);
    if (is_final(consumer, work))
        return decide(d, FATE_DEAD_LETTER, work->why.text);
    *again = true;
    return FATE_PUT_BACK;
}

/* One try with a record of the consumer. *again: pause, then retry. */
static enum fate
run_once(struct idem_consumer *consumer, struct delivery *d, struct work *work,
         const struct idem_op *op, bool *again)
{
    struct idem_answer answer = {0};
    struct idem_error err = {0};
    struct idem__run *run;
    enum fate fate = FATE_PUT_BACK;

    *again = false;
    work->ran = false;
    if (idem__run_begin(consumer->engine, op, &run, &answer, &err) != IDEM_OK) {
        *again = true;
        complain(consumer, err.text);
        return decide(d, FATE_PUT_BACK, err.text);
    }
    switch (answer.verdict) {
    case IDEM_V_STARTED:
        fate = end_run(
            consumer, d, work, run,
            do_work(work, answer.record->fence, answer.record->attempt), again);
        break;
    case IDEM_V_REPLAY:
        if (answer.record->state == IDEM_STATE_FAILED) {
            snprintf(d->reason, sizeof(d->reason), "%.*s",
                     (int)answer.record->result.len,
                     answer.record->result.data
                         ? (const char *)answer.record->result.data
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
    default:
        fate = decide(d, FATE_PUT_BACK, "in progress elsewhere");
        break;
    }
    idem_answer_clear(&answer);
    return fate;
}

/* One try if the handler keeps the record itself. */
static enum fate
call_handler(struct idem_consumer *consumer, struct delivery *d,
             struct work *work, bool *again)
{
    do_work(work, 0, (uint32_t)(work->tries + work->away) + 1);
    *again = work->handled != IDEM_HANDLED && !is_final(consumer, work);
    if (work->handled == IDEM_HANDLED) {
        CONSUMER_COUNT(consumer, handled);
        return decide(d, FATE_ACKNOWLEDGE, "");
    }
    return decide(d, *again ? FATE_PUT_BACK : FATE_DEAD_LETTER, work->why.text);
}

/* Wait before the next try. False: the consumer is stopping. */
static bool
wait_to_try(struct idem_consumer *consumer, const struct work *work)
{
    if (work->handled != IDEM_AWAY)
        return idem__consumer_pause(
            consumer, backoff_ms(consumer, work->tries, BACKOFF_MAX_MS));
    complain_of(consumer, "messages wait, they cannot be handled now",
                work->why.text);
    return idem__consumer_pause(consumer,
                                backoff_ms(consumer, work->away, AWAY_MAX_MS));
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

    if (d->unfit)
        return decide(d, FATE_DEAD_LETTER, d->unfit);
    if (!idem__identity_of(&consumer->identity, d, id, &op.id.len, &err)) {
        if (err.status == IDEM_ERR_MEMORY) {
            complain_of(consumer, "messages are put back", err.text);
            (void)idem__consumer_pause(consumer,
                                       backoff_ms(consumer, 1, BACKOFF_MAX_MS));
        }
        return decide(
            d, err.status == IDEM_ERR_MEMORY ? FATE_PUT_BACK : FATE_DEAD_LETTER,
            err.text);
    }
    crypto_generichash(fingerprint, sizeof(fingerprint), d->body.data,
                       d->body.len, NULL, 0);
    op.scope = idem_text(consumer->scope);
    op.id.data = id;
    work.message = (struct idem_message){.scope = op.scope,
                                         .id = op.id,
                                         .body = d->body,
                                         .headers = d->headers,
                                         .header_count = d->header_count};
    for (;;) {
        fate = consumer->options.own_record
                   ? call_handler(consumer, d, &work, &again)
                   : run_once(consumer, d, &work, &op, &again);
        if (!again)
            return fate;
        if (work.ran) {
            if (!wait_to_try(consumer, &work))
                return decide(d, FATE_PUT_BACK, "stopping");
            CONSUMER_COUNT(consumer, retries);
        } else if (++store_tries >= STORE_TRIES ||
                   !idem__consumer_pause(
                       consumer,
                       backoff_ms(consumer, store_tries, BACKOFF_MAX_MS))) {
            return fate;
        }
    }
}

static struct delivery *
next_delivery(struct handler *handler)
{
    struct idem_consumer *consumer = handler->consumer;
    struct delivery *d;

    while (!handler->first && (!consumer->no_more || handler->taken > 0))
        pthread_cond_wait(&handler->wake, &consumer->mutex);
    d = handler->first;
    if (!d)
        return NULL;
    handler->first = d->next;
    if (!handler->first)
        handler->last = &handler->first;
    handler->taken++;
    return d;
}

void *
idem__consumer_handle(void *arg)
{
    struct handler *handler = arg;
    struct idem_consumer *consumer = handler->consumer;
    struct delivery *d;

    pthread_mutex_lock(&consumer->mutex);
    while ((d = next_delivery(handler))) {
        bool putting_back = consumer->no_more;
        enum fate fate;

        pthread_mutex_unlock(&consumer->mutex);
        if (d->run)
            fate = record(consumer, d);
        else if (putting_back || idem__consumer_stopping(consumer))
            fate = decide(d, FATE_PUT_BACK, "stopping");
        else
            fate = process(consumer, d);
        pthread_mutex_lock(&consumer->mutex);
        if (fate != FATE_RECORDING)
            hand_back(handler, d);
    }
    pthread_mutex_unlock(&consumer->mutex);
    return NULL;
}

void
idem__consumer_put_back_waiting(struct idem_consumer *consumer)
{
    pthread_mutex_lock(&consumer->mutex);
    for (int i = 0; i < consumer->handler_count; i++) {
        struct handler *handler = &consumer->handlers[i];
        struct delivery **at = &handler->first;

        while (*at) {
            struct delivery *d = *at;

            if (d->run) { /* handled, but not recorded yet */
                at = &d->next;
                continue;
            }
            *at = d->next;
            handler->taken++;
            decide(d, FATE_PUT_BACK, "stopping");
            hand_back(handler, d);
        }
        handler->last = at;
    }
    pthread_mutex_unlock(&consumer->mutex);
}
