/*
 * sweeper.c - removes expired records in the background (sweeper.h).
 *
 * The engine decides what may be removed (I9). The thread uses the time that
 * the engine gave last, and stops as soon as the engine takes it back.
 */
#include "sweeper.h"

#define SWEEP_ROWS 500
#define SWEEP_EVERY_US 500000
#define REST_SHARE 2 /* of what a batch took, after it, at least */
#define MORE 1.1     /* is removed, of what is made */
#define PACE_US 100000
#define FASTER_EVERY_US 60000000
#define MANY_PER_SECOND 5000 /* are made: the database is busy with them */
#define REST_US 10000000

void
idem__sweeper_open(struct idem__sweeper *sweeper,
                   const struct idem_store_type *type, const char *url,
                   const struct idem_store_options *options,
                   struct idem_store *first)
{
    sweeper->type = type;
    sweeper->url = url;
    sweeper->options = options;
    sweeper->first = first;
    pthread_mutex_init(&sweeper->lock, NULL);
    idem__cond_init(&sweeper->turn);
}

/* ---- the thread --------------------------------------------------------- */

/* Remove one batch. Returns false if it was not full, or failed. */
static bool
sweep(struct idem__sweeper *sweeper, int64_t drop_ms)
{
    size_t gone = 0;

    if (!sweeper->store &&
        idem__store_open_as(sweeper->type, sweeper->url, sweeper->options,
                            &sweeper->store, NULL) != IDEM_OK)
        return false;
    if (sweeper->type->sweep(sweeper->store, drop_ms, SWEEP_ROWS, &gone))
        return gone == SWEEP_ROWS;
    idem__store_close(sweeper->store);
    sweeper->store = NULL;
    return false;
}

int64_t
idem__sweeper_rest_us(int64_t took_us, double per_second, int64_t busy_us)
{
    int64_t least_us = took_us * REST_SHARE, faster = busy_us / FASTER_EVERY_US;
    int64_t rest_us = 0;

    if (per_second > MANY_PER_SECOND)
        rest_us = (int64_t)(SWEEP_ROWS * 1e6 / (per_second * MORE)) - took_us;
    rest_us = faster < 32 ? rest_us / (INT64_C(1) << faster) : 0;
    return rest_us > least_us ? rest_us : least_us;
}

/* How fast the owner makes records; the thread's own. */
struct pace {
    int64_t busy_from_us; /* 0: the thread does not work */
    int64_t since_us;
    uint64_t made;
    double per_second;
};

/* Records come in batches, so a short time says nothing. */
static void
note_pace(struct pace *pace, uint64_t made, int64_t now_us)
{
    int64_t span_us = now_us - pace->since_us;

    if (pace->busy_from_us == 0)
        *pace = (struct pace){now_us, now_us, made, 0};
    if (span_us < PACE_US || pace->since_us == now_us)
        return;
    pace->per_second = (double)(made - pace->made) * 1e6 / (double)span_us;
    pace->since_us = now_us;
    pace->made = made;
}

static void *
run(void *arg)
{
    struct idem__sweeper *sweeper = arg;
    struct pace pace = {0};

    pthread_mutex_lock(&sweeper->lock);
    while (!sweeper->closing) {
        int64_t drop_ms = sweeper->drop_ms, start_us = idem__mono_us();
        struct timespec rest;
        bool more;

        if (drop_ms == 0) {
            pace.busy_from_us = 0;
            pthread_cond_wait(&sweeper->turn, &sweeper->lock);
            continue;
        }
        pthread_mutex_unlock(&sweeper->lock);
        note_pace(&pace, atomic_load(&sweeper->made), start_us);
        more = sweep(sweeper, drop_ms);
        rest = idem__deadline(
            idem__sweeper_rest_us(idem__mono_us() - start_us, pace.per_second,
                                  start_us - pace.busy_from_us));
        pthread_mutex_lock(&sweeper->lock);
        if (!sweeper->store)
            sweeper->rest_end_us = idem__mono_us() + REST_US;
        if (!more)
            sweeper->drop_ms = 0;
        while (more && !sweeper->closing &&
               pthread_cond_timedwait(&sweeper->turn, &sweeper->lock, &rest) ==
                   0)
            ;
    }
    pthread_mutex_unlock(&sweeper->lock);
    return NULL;
}

/* ---- on the engine's thread --------------------------------------------- */

static void
wake(struct idem__sweeper *sweeper, int64_t drop_ms)
{
    if (!sweeper->running)
        sweeper->running =
            idem__thread_start(&sweeper->thread, "idem-sweep", run, sweeper);
    if (!sweeper->running)
        return;
    pthread_mutex_lock(&sweeper->lock);
    if (idem__mono_us() >= sweeper->rest_end_us)
        sweeper->drop_ms = drop_ms;
    pthread_cond_signal(&sweeper->turn);
    pthread_mutex_unlock(&sweeper->lock);
}

void
idem__sweeper_tend(struct idem__sweeper *sweeper, int64_t drop_ms, bool alone)
{
    int64_t now_us = idem__mono_us();
    size_t gone = 0;
    bool works;

    if (drop_ms < 0)
        drop_ms = 0;
    pthread_mutex_lock(&sweeper->lock);
    works = sweeper->drop_ms != 0;
    if (works)
        sweeper->drop_ms = drop_ms;
    pthread_mutex_unlock(&sweeper->lock);
    if (works || drop_ms == 0 || now_us - sweeper->swept_at_us < SWEEP_EVERY_US)
        return;
    sweeper->swept_at_us = now_us;
    if (sweeper->type->sweep(sweeper->first, drop_ms, SWEEP_ROWS, &gone) &&
        gone == SWEEP_ROWS && !alone)
        wake(sweeper, drop_ms);
}

void
idem__sweeper_close(struct idem__sweeper *sweeper)
{
    if (!sweeper->type)
        return;
    pthread_mutex_lock(&sweeper->lock);
    sweeper->closing = true;
    pthread_cond_signal(&sweeper->turn);
    pthread_mutex_unlock(&sweeper->lock);
    if (sweeper->running)
        pthread_join(sweeper->thread, NULL);
    idem__store_close(sweeper->store);
    pthread_cond_destroy(&sweeper->turn);
    pthread_mutex_destroy(&sweeper->lock);
}
