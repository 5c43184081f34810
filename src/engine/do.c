/*
 * do.c - submits one operation or verb and waits for its answer.
 *
 * The engine's thread copies the answer into the caller's memory and then wakes
 * the caller. After that it does not touch the caller's memory.
 */
#include "inner.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define STOP_LOOK_MS 100

void
idem__word_wait(atomic_int *word)
{
    while (atomic_load_explicit(word, memory_order_acquire) == 0)
        syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, 0, NULL, NULL, 0);
}

/* The same with a timeout; false: *word is still 0. */
static bool
word_wait_for(atomic_int *word, int64_t ms)
{
    struct timespec span = {ms / 1000, ms % 1000 * 1000000};

    if (atomic_load_explicit(word, memory_order_acquire) == 0)
        syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, 0, &span, NULL, 0);
    return atomic_load_explicit(word, memory_order_acquire) != 0;
}

/* The memory of the word may be freed before the wake-up; the system call then
 * wakes nobody. */
void
idem__word_set(atomic_int *word)
{
    atomic_store_explicit(word, 1, memory_order_release);
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

struct do_waiter {
    atomic_int done;
    enum idem_status status;
    struct idem__keeper *keeper; /* keeps the claim of this op; or NULL */
    struct idem_answer *answer;
    struct idem_error *err;
};

static void
done(void *arg, enum idem_status status, const struct idem_answer *answer,
     const struct idem_error *err)
{
    struct do_waiter *waiter = arg;

    waiter->status = status;
    if (status != IDEM_OK && waiter->err)
        *waiter->err = *err;
    if (status == IDEM_OK) {
        *waiter->answer = *answer;
        waiter->answer->memory = NULL;
        if (!idem__answer_keep(waiter->answer, answer->record))
            waiter->status = idem__fail(
                waiter->err, IDEM_ERR_LOST,
                "out of memory for the reply; it may have been stored");
    }
    if (waiter->keeper && waiter->status == IDEM_OK &&
        answer->verdict == IDEM_V_STARTED)
        idem__keeper_start(waiter->keeper, answer->record->fence);
    idem__word_set(&waiter->done);
}

/* The thread that drives an engine takes the turns itself while it waits. */
static void
drive(struct idem_engine *engine, struct do_waiter *waiter)
{
    struct timespec moment = {0, 1000000};

    while (!atomic_load_explicit(&waiter->done, memory_order_acquire)) {
        if (!idem__engine_turn(engine) && !atomic_load(&waiter->done) &&
            idem__engine_due_ms(engine) != 0)
            nanosleep(&moment, NULL);
    }
}

/* A signal ends the sleep. A signal that arrives just before the sleep is
 * noticed at the next check, STOP_LOOK_MS later. */
static void
wait_or_stop(struct idem_engine *engine, struct do_waiter *waiter,
             uint64_t ticket, const volatile sig_atomic_t *stop)
{
    while (!idem__is_set(stop)) {
        if (word_wait_for(&waiter->done, STOP_LOOK_MS))
            return;
    }
    do { /* idem_cancel may do nothing when out of memory, so repeat it */
        idem_cancel(engine, ticket);
    } while (!word_wait_for(&waiter->done, STOP_LOOK_MS));
}

static enum idem_status
do_part(struct idem_engine *engine, const struct idem_op *op,
        enum idem__part part, struct idem__keeper *keeper,
        const volatile sig_atomic_t *stop, struct idem_answer *answer,
        struct idem_error *err)
{
    struct do_waiter waiter = {.keeper = keeper, .answer = answer, .err = err};
    bool own = idem__on_own_thread(engine);
    uint64_t ticket = 0;
    enum idem_status status;

    *answer = (struct idem_answer){.record = &idem__no_record};
    if (own && (!engine->inner.driven || atomic_load(&engine->in_turn)))
        return idem__fail(err, IDEM_ERR_INVALID,
                          "a callback must not wait: use idem_submit");
    if (keeper)
        keeper->lease.asked_us = idem__boot_us(engine);
    status = idem__submit(engine, op, part, done, &waiter,
                          stop ? &ticket : NULL, err);
    if (status != IDEM_OK)
        return status;
    if (own)
        drive(engine, &waiter);
    else if (stop)
        wait_or_stop(engine, &waiter, ticket, stop);
    else
        idem__word_wait(&waiter.done);
    return waiter.status;
}

enum idem_status
idem__do_kept(struct idem_engine *engine, const struct idem_op *op,
              struct idem__keeper *keeper, struct idem_answer *answer,
              struct idem_error *err)
{
    return do_part(engine, op, IDEM__PART_LAST, keeper, NULL, answer, err);
}

enum idem_status
idem__do_until(struct idem_engine *engine, const struct idem_op *op,
               struct idem__keeper *keeper, const volatile sig_atomic_t *stop,
               struct idem_answer *answer, struct idem_error *err)
{
    return do_part(engine, op, IDEM__PART_LAST, keeper, stop, answer, err);
}

enum idem_status
idem_do(struct idem_engine *engine, const struct idem_op *op,
        struct idem_answer *answer, struct idem_error *err)
{
    return do_part(engine, op, IDEM__PART_LAST, NULL, NULL, answer, err);
}

enum idem_status
idem__do_verb(struct idem_engine *engine, const struct idem_op *op, bool next,
              struct idem_answer *answer, struct idem_error *err)
{
    return do_part(engine, op, idem__verb_part(op, next), NULL, NULL, answer,
                   err);
}
