/*
 * lock.c - a lock with a watchdog.
 *
 * The watchdog renews every third of the lease. It counts the lease from before
 * the renewal was sent, on a clock that nobody sets; when that runs out without
 * a renewal, or the store says that somebody else holds the lock, it is lost,
 * and the holder is told before anything else happens.
 */
#include "../store/store.h"

#include <idem/lock.h>
#include <pthread.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define RETRY_US 100000

struct idem_lock {
    struct idem_engine *engine;
    struct idem_lock_options options;
    char name[IDEM_ID_MAX + 1];
    char owner[IDEM_SUBJECT_MAX + 1];
    uint64_t fence;
    int64_t deadline_us; /* on the boot clock */
    pthread_mutex_t mutex;
    pthread_cond_t wake;
    pthread_t watchdog;
    bool held, giving;
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

/* True: renewed, until the new deadline. Otherwise *over says whether somebody
 * else has it already. */
static bool
renew(struct idem_lock *lock, bool *over)
{
    struct idem_op op = op_on(lock, IDEM_RENEW);
    struct idem_answer answer = {0};
    int64_t asked_at_us = boot_us();
    bool renewed;

    *over = false;
    if (idem_do(lock->engine, &op, &answer, NULL) != IDEM_OK)
        return false;
    renewed = answer.verdict == IDEM_V_OK_DONE;
    *over = !renewed;
    idem_answer_clear(&answer);
    pthread_mutex_lock(&lock->mutex);
    if (renewed)
        lock->deadline_us = asked_at_us + lock->options.lease_ms * 1000;
    pthread_mutex_unlock(&lock->mutex);
    return renewed;
}

/* Sleep on the condition; true if the lock is being given back. */
static bool
sleep_us(struct idem_lock *lock, int64_t us)
{
    struct timespec until = idem__deadline(us);

    while (!lock->giving &&
           pthread_cond_timedwait(&lock->wake, &lock->mutex, &until) == 0)
        continue;
    return lock->giving;
}

static void *
watch(void *arg)
{
    struct idem_lock *lock = arg;
    int64_t third_us = lock->options.lease_ms * 1000 / 3;
    int64_t nap_us = third_us;
    bool over = false;

    pthread_mutex_lock(&lock->mutex);
    while (!over) {
        int64_t left_us = lock->deadline_us - boot_us();

        if (sleep_us(lock, nap_us < left_us ? nap_us : left_us))
            break;
        pthread_mutex_unlock(&lock->mutex);
        nap_us = renew(lock, &over) ? third_us : RETRY_US;
        pthread_mutex_lock(&lock->mutex);
        over = over || boot_us() >= lock->deadline_us;
    }
    lock->held = lock->held && !over;
    pthread_mutex_unlock(&lock->mutex);
    if (over && lock->options.lost)
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

/* Take it in the store. The lease counts from the moment it was written; with
 * waiting in between that moment is only known to the store, so the first
 * renewal comes at once. */
static enum idem_status
acquire(struct idem_lock *lock, struct idem_error *err)
{
    struct idem_op op = op_on(lock, IDEM_LOCK);
    struct idem_answer answer = {0};
    enum idem_status status;
    bool over;

    op.fence = 0;
    op.subject = idem_text(lock->owner);
    op.wait_ms = lock->options.wait_ms;
    status = idem_do(lock->engine, &op, &answer, err);
    if (status != IDEM_OK)
        return status;
    if (answer.verdict == IDEM_V_STARTED)
        lock->fence = answer.record.fence;
    else
        status =
            idem__fail(err, IDEM_ERR_TIMEOUT,
                       "lock \"%s\" is held by another; it is free in %lld "
                       "ms at the earliest unless given back",
                       lock->name, (long long)answer.retry_after_ms);
    idem_answer_clear(&answer);
    if (status != IDEM_OK || renew(lock, &over))
        return status;
    return idem__fail(err, over ? IDEM_ERR_TIMEOUT : IDEM_ERR_LOST,
                      "lock \"%s\" was taken and lost again at once",
                      lock->name);
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
    lock->held = true;
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

enum idem_status
idem_lock_give(struct idem_lock *lock, struct idem_error *err)
{
    struct idem_answer answer = {0};
    enum idem_status status;
    struct idem_op op;

    if (!lock)
        return IDEM_OK;
    pthread_mutex_lock(&lock->mutex);
    lock->giving = true;
    pthread_cond_signal(&lock->wake);
    pthread_mutex_unlock(&lock->mutex);
    pthread_join(lock->watchdog, NULL);

    op = op_on(lock, IDEM_UNLOCK);
    status = idem_do(lock->engine, &op, &answer, err);
    if (status == IDEM_OK && answer.verdict != IDEM_V_OK_DONE)
        status = idem__fail(err, IDEM_ERR_TIMEOUT,
                            "lock \"%s\" had been lost before it was given "
                            "back",
                            lock->name);
    if (answer.memory)
        idem_answer_clear(&answer);
    drop(lock);
    return status;
}
