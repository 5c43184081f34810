/*
 * lock.c - one lock whose lease is kept alive, with an optional watchdog thread
 * that reports its loss.
 *
 * The engine renews it (engine/keep.c). The lock is lost when the store says
 * that somebody else holds it, or when its lease ends without a renewal. The
 * store may hang during that time, so the watchdog is a thread of its own. A
 * lost lock stays lost.
 */
#include "turn.h"

#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define RETRY_US 100000
#define NAP_MAX_US 1000000 /* notice soon that the machine was suspended */

struct idem_lock {
    struct idem_lock *next; /* locks with named owners; owned_mutex ... */
    int takes;              /* ... guards this too; 0: it is being taken */
    struct idem__keeper keeper;
    struct idem_lock_options options;
    char name[IDEM_ID_MAX + 1];
    char owner[IDEM_SUBJECT_MAX + 1];
    uint64_t fence;
    pthread_t watchdog; /* if options.lost is set */

    pthread_mutex_t mutex; /* guards everything below */
    pthread_cond_t wake;
    int64_t until_us; /* on the boot clock */
    bool renewed;     /* a renewal was answered, with or without success */
    bool held, over, giving;
};

/* If an owner takes a lock that it already holds in this process, it gets the
 * same handle. The lock is given back when every take was given back. */
static pthread_mutex_t owned_mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t owned_changed = PTHREAD_COND_INITIALIZER;
static struct idem_lock *owned;

static int64_t
boot_us(const struct idem_lock *lock)
{
    return idem__boot_us(lock->keeper.engine);
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

/* Called with the mutex held. A renewal that comes too late does not make the
 * lock held again. */
static bool
still_held(struct idem_lock *lock)
{
    lock->over = lock->over || (lock->held && boot_us(lock) >= lock->until_us);
    return lock->held && !lock->over;
}

static bool
note_renewal(struct idem__keeper *keeper, enum idem__kept kept,
             const struct idem_error *err)
{
    struct idem_lock *lock = IDEM__OF(keeper, struct idem_lock, keeper);
    bool over;

    (void)err;
    pthread_mutex_lock(&lock->mutex);
    (void)still_held(lock);
    lock->over = lock->over || kept == IDEM__KEPT_LOST;
    lock->until_us = keeper->lease.until_us;
    lock->renewed = true;
    over = lock->over;
    pthread_cond_broadcast(&lock->wake);
    pthread_mutex_unlock(&lock->mutex);
    return !over;
}

/* Sleep until the lease ends, as known now, or until a signal. */
static void
sleep_until_end(struct idem_lock *lock)
{
    int64_t us = lock->until_us - boot_us(lock);
    struct timespec until = idem__deadline(us < NAP_MAX_US ? us : NAP_MAX_US);

    pthread_cond_timedwait(&lock->wake, &lock->mutex, &until);
}

static void *
watch(void *arg)
{
    struct idem_lock *lock = arg;
    bool lost;

    pthread_mutex_lock(&lock->mutex);
    while (!lock->giving && still_held(lock))
        sleep_until_end(lock);
    lost = !lock->giving;
    pthread_mutex_unlock(&lock->mutex);
    if (lost)
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

static void
drop(struct idem__keeper *keeper)
{
    struct idem_lock *lock = IDEM__OF(keeper, struct idem_lock, keeper);

    pthread_cond_destroy(&lock->wake);
    pthread_mutex_destroy(&lock->mutex);
    free(lock);
}

static enum idem_status
make(struct idem_engine *engine, const char *name,
     const struct idem_lock_options *options, struct idem_lock **out,
     struct idem_error *err)
{
    struct idem_lock *lock;
    struct idem_op renew;

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
    if (options)
        lock->options = *options;
    if (!lock->options.lease_ms)
        lock->options.lease_ms = IDEM_LEASE_DEFAULT_MS;
    memcpy(lock->name, name, strlen(name));
    name_owner(lock);
    renew = op_on(lock, IDEM_RENEW);
    idem__keeper_init(&lock->keeper, engine, &renew, note_renewal, drop);
    pthread_mutex_init(&lock->mutex, NULL);
    idem__cond_init(&lock->wake);
    *out = lock;
    return IDEM_OK;
}

/* The lease counts from before the request, which is the safe side. After a
 * long wait little of it is left, and the engine renews it at once. */
static enum idem_status
begin_lease(struct idem_lock *lock, int64_t asked_at_us, struct idem_error *err)
{
    int64_t lease_us = lock->options.lease_ms * 1000;
    bool held, over;

    pthread_mutex_lock(&lock->mutex);
    if (!lock->renewed)
        lock->until_us = asked_at_us + lease_us;
    if (boot_us(lock) - asked_at_us >= idem__lease_third(lease_us))
        while (!lock->renewed)
            pthread_cond_wait(&lock->wake, &lock->mutex);
    over = lock->over;
    lock->held = !over;
    held = still_held(lock);
    pthread_mutex_unlock(&lock->mutex);
    if (held)
        return IDEM_OK;
    return idem__fail(err, over ? IDEM_ERR_TIMEOUT : IDEM_ERR_LOST,
                      "lock \"%s\" was taken and lost again at once",
                      lock->name);
}

/* Sets lock->fence if the lock was taken; the engine keeps it from then on. */
static enum idem_status
acquire(struct idem_lock *lock, int64_t wait_ms, struct idem_error *err)
{
    struct idem_op op = op_on(lock, IDEM_LOCK);
    struct idem_answer answer = {0};
    int64_t asked_at_us = boot_us(lock);
    enum idem_status status;

    op.subject = idem_text(lock->owner);
    op.wait_ms = wait_ms;
    status = idem__do_until(lock->keeper.engine, &op, &lock->keeper,
                            lock->options.stop, &answer, err);
    if (status != IDEM_OK)
        return status;
    if (answer.verdict == IDEM_V_STARTED)
        lock->fence = answer.record->fence;
    else
        status = idem__fail(
            err, IDEM_ERR_TIMEOUT,
            "lock \"%s\" is held by another owner; unless it is released "
            "before, its lease ends in %lld ms at the earliest",
            lock->name, (long long)answer.retry_after_ms);
    idem_answer_clear(&answer);
    return status == IDEM_OK ? begin_lease(lock, asked_at_us, err) : status;
}

static enum idem_status
acquire_in_turn(struct idem_lock *lock, struct idem_error *err)
{
    int64_t wait_ms = lock->options.wait_ms;
    int64_t end_us = boot_us(lock) + wait_ms * 1000;
    struct idem__turn *turn = NULL;
    enum idem_status status = IDEM_OK;

    if (lock->options.fair) {
        status = idem__turn_take(lock->keeper.engine, lock->name, lock->name,
                                 &lock->options, end_us, &turn, err);
        wait_ms = (end_us - boot_us(lock)) / 1000;
    }
    if (status == IDEM_OK)
        status = acquire(lock, wait_ms > 0 ? wait_ms : 0, err);
    idem__turn_give(turn);
    return status;
}

enum idem_status
idem__unlock(struct idem_engine *engine, const struct idem_op *op,
             int64_t lease_ms, struct idem_answer *answer,
             struct idem_error *err)
{
    int64_t end_us = idem__boot_us(engine) + lease_ms * 1000;
    enum idem_status status = idem_do(engine, op, answer, err);

    while (status == IDEM_OK && answer->verdict == IDEM_V_BUSY &&
           idem__boot_us(engine) < end_us) {
        idem_answer_clear(answer);
        usleep(RETRY_US);
        status = idem_do(engine, op, answer, err);
    }
    return status;
}

static enum idem_status
unlock(struct idem_lock *lock, struct idem_answer *answer,
       struct idem_error *err)
{
    const struct idem_op op = op_on(lock, IDEM_UNLOCK);

    return idem__unlock(lock->keeper.engine, &op, lock->options.lease_ms,
                        answer, err);
}

static struct idem_lock *
find_owned(const struct idem_lock *like)
{
    struct idem_lock *lock = owned;

    while (lock && (lock->keeper.engine != like->keeper.engine ||
                    strcmp(lock->name, like->name) != 0 ||
                    strcmp(lock->owner, like->owner) != 0))
        lock = lock->next;
    return lock;
}

/* Returns the handle that this owner already has, with one more take. Otherwise
 * returns NULL and lists `lock` as being taken. A lost handle is not shared. */
static struct idem_lock *
share(struct idem_lock *lock)
{
    struct idem_lock *mine;

    if (!lock->options.owner)
        return NULL;
    pthread_mutex_lock(&owned_mutex);
    while ((mine = find_owned(lock)) && mine->takes == 0)
        pthread_cond_wait(&owned_changed, &owned_mutex);
    if (mine && idem_lock_held(mine)) {
        mine->takes++;
    } else {
        mine = NULL;
        lock->next = owned;
        owned = lock;
    }
    pthread_mutex_unlock(&owned_mutex);
    return mine;
}

/* Change the number of takes. If none is left, remove the lock from the list
 * and return true. */
static bool
count_takes(struct idem_lock *lock, int change)
{
    struct idem_lock **at = &owned;
    bool last;

    if (!lock->options.owner)
        return true;
    pthread_mutex_lock(&owned_mutex);
    lock->takes += change;
    last = lock->takes == 0;
    while (last && *at && *at != lock)
        at = &(*at)->next;
    if (last && *at)
        *at = lock->next;
    pthread_cond_broadcast(&owned_changed);
    pthread_mutex_unlock(&owned_mutex);
    return last;
}

enum idem_status
idem_lock_take(struct idem_engine *engine, const char *name,
               const struct idem_lock_options *options, struct idem_lock **out,
               struct idem_error *err)
{
    struct idem_lock *lock = NULL, *mine;
    struct idem_answer answer = {0};
    enum idem_status status = make(engine, name, options, &lock, err);

    if (status != IDEM_OK)
        return status;
    mine = share(lock);
    if (mine) {
        drop(&lock->keeper);
        *out = mine;
        return IDEM_OK;
    }
    status = acquire_in_turn(lock, err);
    if (status == IDEM_OK && lock->options.lost &&
        pthread_create(&lock->watchdog, NULL, watch, lock) != 0) {
        (void)unlock(lock, &answer, NULL);
        idem_answer_clear(&answer);
        status =
            idem__fail(err, IDEM_ERR_MEMORY, "lock: cannot start a thread");
    }
    (void)count_takes(lock, status == IDEM_OK ? 1 : 0);
    if (status == IDEM_OK)
        *out = lock;
    else if (lock->fence)
        idem__keeper_end(&lock->keeper);
    else
        drop(&lock->keeper);
    return status;
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
    held = still_held(lock);
    pthread_mutex_unlock(&lock->mutex);
    return held;
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
    if (!count_takes(lock, -1)) {
        if (lost)
            *lost = !idem_lock_held(lock);
        return IDEM_OK;
    }
    if (lock->options.lost) {
        pthread_mutex_lock(&lock->mutex);
        lock->giving = true;
        pthread_cond_broadcast(&lock->wake);
        pthread_mutex_unlock(&lock->mutex);
        pthread_join(lock->watchdog, NULL);
    }
    status = unlock(lock, &answer, err);
    if (lost)
        *lost = status == IDEM_OK && answer.verdict != IDEM_V_OK;
    idem_answer_clear(&answer);
    idem__keeper_end(&lock->keeper);
    return status;
}
