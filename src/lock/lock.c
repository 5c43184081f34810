/*
 * lock.c - a lock with a watchdog.
 *
 * The watchdog asks for a renewal every third of the lease and does not wait
 * for the answer longer than the lease lasts. It counts the lease from before
 * the question was sent, on a clock that nobody sets; when that runs out
 * without a renewal, however long the store hangs, or the store says that
 * somebody else holds the lock, it is lost, and the holder is told before
 * anything else happens.
 */
#include "../store/store.h"

#include <idem/lock.h>
#include <pthread.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define RETRY_US 100000
#define NAP_MAX_US 1000000 /* a machine that slept notices soon */

struct idem_lock {
    struct idem_engine *engine;
    struct idem_lock_options options;
    char name[IDEM_ID_MAX + 1];
    char owner[IDEM_SUBJECT_MAX + 1];
    uint64_t fence;
    pthread_t watchdog;

    pthread_mutex_t mutex; /* guards all below */
    pthread_cond_t wake;
    int64_t deadline_us; /* on the boot clock */
    int64_t asked_at_us; /* the renewal that is under way */
    bool asking, over, held, giving;
};

static int64_t
boot_us(void)
{
    return idem__system_clocks.boot_us(NULL);
}

static struct idem_op
op_on(const struct idem_lock *lock, enum idem_verb verb)
{
    return (struct idem_op){.verb = verb,
                            .type = IDEM_TYPE_LOCK,
                            .scope = idem_text(IDEM_LOCK_SCOPE),
                            .id = idem_text(lock->name),
                            .fence = lock->fence,
                            .lease_ms = lock->options.lease_ms};
}

static void
answered(void *arg, enum idem_status status, const struct idem_answer *answer,
         const struct idem_error *err)
{
    struct idem_lock *lock = arg;

    (void)err;
    pthread_mutex_lock(&lock->mutex);
    if (status == IDEM_OK && answer->verdict == IDEM_V_OK)
        lock->deadline_us = lock->asked_at_us + lock->options.lease_ms * 1000;
    /* Anything but "stale" (an error, a row that is locked for a moment) says
     * nothing about who holds it. */
    else if (status == IDEM_OK && answer->verdict == IDEM_V_STALE)
        lock->over = true;
    lock->asking = false;
    pthread_cond_signal(&lock->wake);
    pthread_mutex_unlock(&lock->mutex);
}

/* Send a renewal; called, and returns, with the mutex held. */
static void
ask(struct idem_lock *lock)
{
    struct idem_op op = op_on(lock, IDEM_RENEW);
    bool sent;

    lock->asking = true;
    lock->asked_at_us = boot_us();
    pthread_mutex_unlock(&lock->mutex);
    sent =
        idem_submit(lock->engine, &op, answered, lock, NULL, NULL) == IDEM_OK;
    pthread_mutex_lock(&lock->mutex);
    if (!sent)
        lock->asking = false;
}

static void
wait_for_answer(struct idem_lock *lock)
{
    while (lock->asking)
        pthread_cond_wait(&lock->wake, &lock->mutex);
}

/* Until a moment on the boot clock, or somebody signals. */
static void
sleep_until(struct idem_lock *lock, int64_t until_us)
{
    int64_t us = until_us - boot_us();
    struct timespec until;

    if (us <= 0)
        return;
    until = idem__deadline(us < NAP_MAX_US ? us : NAP_MAX_US);
    pthread_cond_timedwait(&lock->wake, &lock->mutex, &until);
}

static int64_t
earlier(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static void *
watch(void *arg)
{
    struct idem_lock *lock = arg;
    int64_t lease_us = lock->options.lease_ms * 1000, ask_at_us;
    bool lost;

    pthread_mutex_lock(&lock->mutex);
    while (!lock->giving && !lock->over) {
        /* A third of the lease after the last success, soon after a failure. */
        ask_at_us = lock->deadline_us - lease_us + lease_us / 3;
        if (ask_at_us < lock->asked_at_us + earlier(RETRY_US, lease_us / 3))
            ask_at_us = lock->asked_at_us + earlier(RETRY_US, lease_us / 3);
        if (boot_us() >= lock->deadline_us)
            lock->over = true;
        else if (lock->asking)
            sleep_until(lock, lock->deadline_us);
        else if (boot_us() < ask_at_us)
            sleep_until(lock, earlier(ask_at_us, lock->deadline_us));
        else
            ask(lock);
    }
    lost = lock->over && !lock->giving;
    lock->held = lock->held && !lock->over;
    pthread_mutex_unlock(&lock->mutex);
    if (lost && lock->options.lost)
        lock->options.lost(lock->options.lost_arg, lock);
    return NULL;
}

static void
name_owner(struct idem_lock *lock)
{
    uint8_t random[16];

    if (lock->options.owner) {
        memcpy(lock->owner, lock->options.owner, strlen(lock->options.owner));
        return;
    }
    randombytes_buf(random, sizeof(random));
    sodium_bin2hex(lock->owner, sizeof(lock->owner), random, sizeof(random));
}

static enum idem_status
make(struct idem_engine *engine, const char *name,
     const struct idem_lock_options *options, struct idem_lock **out,
     struct idem_error *err)
{
    struct idem_lock *lock;
    pthread_condattr_t monotonic;

    if (options && IDEM__ROOM_CHECK(options, err) != IDEM_OK)
        return IDEM_ERR_UNSUPPORTED;
    if (strlen(name) > IDEM_ID_MAX)
        return idem__fail(err, IDEM_ERR_INVALID,
                          "a lock's name has at most %d bytes", IDEM_ID_MAX);
    if (options && options->owner && strlen(options->owner) > IDEM_SUBJECT_MAX)
        return idem__fail(err, IDEM_ERR_INVALID,
                          "a lock's owner has at most %d bytes",
                          IDEM_SUBJECT_MAX);
    lock = calloc(1, sizeof(*lock));
    if (!lock)
        return idem__fail(err, IDEM_ERR_MEMORY, "lock: out of memory");
    lock->engine = engine;
    if (options)
        lock->options = *options;
    if (!lock->options.lease_ms)
        lock->options.lease_ms = IDEM_LEASE_DEFAULT_MS;
    memcpy(lock->name, name, strlen(name));
    name_owner(lock);
    pthread_mutex_init(&lock->mutex, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&lock->wake, &monotonic);
    pthread_condattr_destroy(&monotonic);
    *out = lock;
    return IDEM_OK;
}

static void
drop(struct idem_lock *lock)
{
    pthread_cond_destroy(&lock->wake);
    pthread_mutex_destroy(&lock->mutex);
    free(lock);
}

/* The lease counts from before the question, which errs on the safe side. After
 * a long wait little or nothing is left of it, so it is renewed at once. */
static enum idem_status
begin_lease(struct idem_lock *lock, int64_t asked_at_us, struct idem_error *err)
{
    int64_t lease_us = lock->options.lease_ms * 1000;
    bool over, late;

    pthread_mutex_lock(&lock->mutex);
    lock->asked_at_us = asked_at_us;
    lock->deadline_us = asked_at_us + lease_us;
    if (boot_us() - asked_at_us >= lease_us / 3) {
        ask(lock);
        wait_for_answer(lock);
    }
    over = lock->over;
    late = boot_us() >= lock->deadline_us;
    lock->held = !over && !late;
    pthread_mutex_unlock(&lock->mutex);
    if (!over && !late)
        return IDEM_OK;
    return idem__fail(err, over ? IDEM_ERR_TIMEOUT : IDEM_ERR_LOST,
                      "lock \"%s\" was taken and lost again at once",
                      lock->name);
}

static enum idem_status
acquire(struct idem_lock *lock, struct idem_error *err)
{
    struct idem_op op = op_on(lock, IDEM_LOCK);
    struct idem_answer answer = {0};
    int64_t asked_at_us = boot_us();
    enum idem_status status;

    op.fence = 0;
    op.subject = idem_text(lock->owner);
    op.wait_ms = lock->options.wait_ms;
    status = idem_do(lock->engine, &op, &answer, err);
    if (status != IDEM_OK)
        return status;
    if (answer.verdict == IDEM_V_STARTED)
        lock->fence = answer.record->fence;
    else
        status =
            idem__fail(err, IDEM_ERR_TIMEOUT,
                       "lock \"%s\" is held by another; it is free in %lld "
                       "ms at the earliest unless given back",
                       lock->name, (long long)answer.retry_after_ms);
    idem_answer_clear(&answer);
    return status == IDEM_OK ? begin_lease(lock, asked_at_us, err) : status;
}

enum idem_status
idem_lock_take(struct idem_engine *engine, const char *name,
               const struct idem_lock_options *options, struct idem_lock **out,
               struct idem_error *err)
{
    struct idem_lock *lock = NULL;
    enum idem_status status = make(engine, name, options, &lock, err);

    if (status != IDEM_OK)
        return status;
    status = acquire(lock, err);
    if (status != IDEM_OK) {
        drop(lock);
        return status;
    }
    if (pthread_create(&lock->watchdog, NULL, watch, lock) != 0) {
        struct idem_op op = op_on(lock, IDEM_UNLOCK);
        struct idem_answer answer = {0};

        if (idem_do(engine, &op, &answer, NULL) == IDEM_OK)
            idem_answer_clear(&answer);
        drop(lock);
        return idem__fail(err, IDEM_ERR_MEMORY, "lock: cannot start a thread");
    }
    *out = lock;
    return IDEM_OK;
}

uint64_t
idem_lock_fence(const struct idem_lock *lock)
{
    return lock->fence;
}

bool
idem_lock_held(struct idem_lock *lock)
{
    bool held;

    pthread_mutex_lock(&lock->mutex);
    held = lock->held && boot_us() < lock->deadline_us;
    pthread_mutex_unlock(&lock->mutex);
    return held;
}

/* A row that somebody's transaction holds is free again in a moment. */
static enum idem_status
unlock(struct idem_lock *lock, struct idem_answer *answer,
       struct idem_error *err)
{
    struct idem_op op = op_on(lock, IDEM_UNLOCK);
    enum idem_status status = idem_do(lock->engine, &op, answer, err);

    while (status == IDEM_OK && answer->verdict == IDEM_V_BUSY &&
           boot_us() < lock->deadline_us) {
        idem_answer_clear(answer);
        usleep(RETRY_US);
        status = idem_do(lock->engine, &op, answer, err);
    }
    return status;
}

enum idem_status
idem_lock_give(struct idem_lock *lock, bool *lost, struct idem_error *err)
{
    struct idem_answer answer = {0};
    enum idem_status status;

    if (lost)
        *lost = false;
    if (!lock)
        return IDEM_OK;
    pthread_mutex_lock(&lock->mutex);
    lock->giving = true;
    pthread_cond_signal(&lock->wake);
    pthread_mutex_unlock(&lock->mutex);
    pthread_join(lock->watchdog, NULL);
    pthread_mutex_lock(&lock->mutex);
    wait_for_answer(lock);
    pthread_mutex_unlock(&lock->mutex);

    status = unlock(lock, &answer, err);
    if (lost)
        *lost = status == IDEM_OK && answer.verdict != IDEM_V_OK;
    idem_answer_clear(&answer);
    drop(lock);
    return status;
}
