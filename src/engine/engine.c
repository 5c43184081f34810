/*
 * engine.c - opens, runs and closes an engine.
 *
 * A turn takes the waiting operations as one batch, commits and answers them,
 * and then handles cancelled waits, scans and the store's background work.
 * While the store commits, new operations queue up for the next batch. An
 * engine's own thread takes turns until it is closed; a driven engine's turns
 * are taken by its driver.
 */
#include "inner.h"

#include <idem/idem.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define TEND_EVERY_US 100000

/* ---- a turn ------------------------------------------------------------ */

static void
wait_over(struct idem_engine *engine, struct idem__job *job)
{
    struct idem__crowd *crowd = job->crowd;

    idem__crowd_take(engine, job);
    /* If the crowd looks in this turn, its group drops it. */
    if (crowd->count == 0 && !crowd->looks)
        idem__crowd_plan(engine, crowd, NULL);
    idem__job_answer(engine, job, IDEM_OK, NULL);
    idem__job_drop(engine, job);
}

/* Returns true if crowds fill half the batch and more timers are due. */
static bool
fire_timers(struct idem_engine *engine)
{
    for (;;) {
        struct idem__timer *timer = idem__timer_first(&engine->timers);

        if (!timer || timer->due_us > engine->boot_now_us)
            return false;
        if (timer->kind == IDEM__TIMER_LOOK &&
            !idem__batch_add_crowd(engine,
                                   IDEM__OF(timer, struct idem__crowd, timer)))
            return true;
        idem__timer_stop(&engine->timers, timer);
        if (timer->kind == IDEM__TIMER_WAIT)
            wait_over(engine, IDEM__OF(timer, struct idem__job, timer));
        else if (timer->kind == IDEM__TIMER_RENEW)
            idem__keeper_due(IDEM__OF(timer, struct idem__keeper, timer));
    }
}

static void
keep_figure(void *arg, const char *name, double value)
{
    struct idem__kept_figures *kept = arg;

    if (kept->count == IDEM__FIGURES_KEPT)
        return;
    snprintf(kept->all[kept->count].name, sizeof(kept->all[0].name), "%s",
             name);
    kept->all[kept->count++].value = value;
}

static void
keep_figures(struct idem_engine *engine)
{
    struct idem__kept_figures *kept = &engine->figures;

    pthread_mutex_lock(&kept->lock);
    kept->count = 0;
    engine->carrier->figures(engine, keep_figure, kept);
    kept->asked = false;
    pthread_mutex_unlock(&kept->lock);
}

static void
run_item(struct idem_engine *engine, struct idem__item *item)
{
    switch (item->kind) {
    case IDEM__ITEM_JOB:
        break;
    case IDEM__ITEM_CANCEL:
        idem__park_cancel(engine, ((struct idem__cancel *)item)->ticket);
        idem__cancel_drop(&engine->queue, (struct idem__cancel *)item);
        break;
    case IDEM__ITEM_SCAN:
        idem__scan_run(engine, (struct idem__scan *)item);
        break;
    case IDEM__ITEM_FIGURES: {
        struct idem__asked_figures *figures =
            (struct idem__asked_figures *)item;

        if (!figures->woken) {
            keep_figures(engine);
            break;
        }
        engine->carrier->figures(engine, figures->each, figures->arg);
        idem__word_set(figures->woken);
        break;
    }
    case IDEM__ITEM_NEWS:
        idem__park_news(engine, (struct idem__news *)item);
        free(item);
        break;
    case IDEM__ITEM_KEPT:
        idem__keeper_over(IDEM__OF(item, struct idem__keeper, end));
        break;
    }
}

/* Put jobs into the batch. Other items are handled after it, in order. */
static struct idem__item *
fill_batch(struct idem_engine *engine, size_t *taken, size_t *bytes)
{
    struct idem__queue *queue = &engine->queue;
    struct idem__item *after = NULL, **last = &after;

    while (queue->inbox) {
        struct idem__item *item = queue->inbox;

        if (item->kind != IDEM__ITEM_JOB) {
            queue->inbox = item->next;
            *last = item;
            last = &item->next;
            continue;
        }
        if (!idem__batch_add_job(engine, (struct idem__job *)item))
            break;
        queue->inbox = item->next;
        (*taken)++;
        *bytes += item->bytes;
    }
    *last = NULL;
    return after;
}

static void
tend(struct idem_engine *engine)
{
    int64_t drop_ms;

    if (!engine->store->type->tend ||
        engine->boot_now_us - engine->tended_us < TEND_EVERY_US)
        return;
    drop_ms = idem__time_drop_ms(engine);
    if (drop_ms > engine->recents.swept_ms)
        engine->recents.swept_ms = drop_ms;
    engine->store->type->tend(engine->store, drop_ms);
    engine->tended_us = idem__boot_us(engine);
}

static bool
turn_store(struct idem_engine *engine)
{
    struct idem__item *after;
    size_t taken = 0, bytes = 0;
    bool more;

    idem__queue_take(&engine->queue);
    more = fire_timers(engine);
    after = fill_batch(engine, &taken, &bytes);
    idem__batch_run(engine);
    while (after) {
        struct idem__item *next = after->next;

        run_item(engine, after);
        after = next;
    }
    tend(engine);
    idem__quota_tend(engine);
    idem__epoch_tend(engine);
    atomic_store_explicit(&engine->parked_now, engine->parked.count,
                          memory_order_relaxed);
    atomic_store_explicit(&engine->locks_waiting, engine->parked.locks,
                          memory_order_relaxed);
    return idem__queue_done(&engine->queue, taken, bytes) || more;
}

bool
idem__engine_turn(struct idem_engine *engine)
{
    pthread_t self = pthread_self();
    bool more;

    if (!idem__on_own_thread(engine)) {
        atomic_store_explicit(&engine->turner, self, memory_order_relaxed);
        atomic_store_explicit(&engine->has_turner, true, memory_order_release);
    }
    atomic_store_explicit(&engine->in_turn, true, memory_order_relaxed);
    engine->turns++;
    engine->boot_now_us = idem__boot_us(engine);
    more = engine->carrier->turn(engine);
    atomic_store_explicit(&engine->in_turn, false, memory_order_relaxed);
    return more;
}

uint64_t
idem__engine_turns(const struct idem_engine *engine)
{
    return engine->turns;
}

static int64_t
store_due_us(struct idem_engine *engine)
{
    struct idem__timer *timer = idem__timer_first(&engine->timers);
    int64_t due = timer ? timer->due_us : INT64_MAX;

    if (engine->store->type->tend && due > engine->tended_us + TEND_EVERY_US)
        due = engine->tended_us + TEND_EVERY_US;
    if (engine->quota.uses && due > engine->quota.due_us)
        due = engine->quota.due_us;
    if (due > idem__epoch_due_us(engine))
        due = idem__epoch_due_us(engine);
    return due;
}

int64_t
idem__engine_due_ms(struct idem_engine *engine)
{
    int64_t due = engine->carrier->due_us(engine);
    int64_t left_us;

    if (due == INT64_MAX)
        return -1;
    left_us = due - idem__boot_us(engine);
    return left_us <= 0 ? 0 : (left_us + 999) / 1000;
}

bool
idem__engine_is_local(const struct idem_engine *engine)
{
    return engine->store && engine->store->type->local;
}

/* ---- the engine's own thread ------------------------------------------ */

static void
sleep_store(struct idem_engine *engine, int64_t ms)
{
    struct idem__queue *queue = &engine->queue;
    struct timespec until = idem__deadline(ms * 1000);

    pthread_mutex_lock(&queue->lock);
    queue->asleep = true;
    while (!queue->first && !queue->closing && ms > 0) {
        if (pthread_cond_timedwait(&queue->wake, &queue->lock, &until) != 0)
            break;
    }
    queue->asleep = false;
    pthread_mutex_unlock(&queue->lock);
}

static void
wake_store(struct idem_engine *engine)
{
    pthread_cond_signal(&engine->queue.wake);
}

/* Returns false if the engine is closing and the queue is empty. */
static bool
wait_for_work(struct idem_engine *engine)
{
    struct idem__queue *queue = &engine->queue;
    int64_t due_ms = idem__engine_due_ms(engine);
    bool go_on;

    /* Wake up at least every 100 ms: a test may supply the boot clock, and the
     * monotonic clock may stop while the machine is suspended. */
    if (due_ms < 0 || due_ms > 100)
        due_ms = 100;
    engine->carrier->sleep(engine, due_ms);
    pthread_mutex_lock(&queue->lock);
    go_on = queue->first || !queue->closing;
    pthread_mutex_unlock(&queue->lock);
    return go_on;
}

static void *
run_thread(void *arg)
{
    struct idem_engine *engine = arg;

    do {
        while (idem__engine_turn(engine))
            ;
    } while (wait_for_work(engine));
    return NULL;
}

/* ---- opening and closing ---------------------------------------------- */

static enum idem_status
take_options(struct idem_options *options, const struct idem_options *given,
             struct idem_error *err)
{
    if (given)
        *options = *given;
    if (IDEM__ROOM_CHECK(options, err) != IDEM_OK)
        return IDEM_ERR_UNSUPPORTED;
    if (options->max_queue == 0)
        options->max_queue = 65536;
    if (options->max_batch == 0)
        options->max_batch = 1024;
    if (options->max_parked == 0)
        options->max_parked = 65536;
    if (options->max_parked_key == 0)
        options->max_parked_key = 1024;
    if (options->max_parked_scope == 0)
        options->max_parked_scope = 16384;
    if (options->max_result == 0)
        options->max_result = IDEM_RESULT_DEFAULT_MAX;
    if (options->poll_ms == 0)
        options->poll_ms = 50;
    if (options->max_batch > 65536)
        return idem__fail(err, IDEM_ERR_INVALID,
                          "max_batch of %zu is out of range: give 1 to 65536, "
                          "or 0 for the default",
                          options->max_batch);
    if (options->max_result > IDEM_RESULT_MAX)
        return idem__fail(err, IDEM_ERR_INVALID,
                          "max_result of %zu is out of range: give 1 to %d, "
                          "or 0 for the default",
                          options->max_result, IDEM_RESULT_MAX);
    if (options->poll_ms < 0 || options->poll_ms > 60000)
        return idem__fail(err, IDEM_ERR_INVALID,
                          "poll_ms of %lld is out of range: give 1 to 60000, "
                          "or 0 for the default",
                          (long long)options->poll_ms);
    return IDEM_OK;
}

static void
open_queue(struct idem__queue *queue)
{
    pthread_mutex_init(&queue->lock, NULL);
    idem__cond_init(&queue->wake);
    queue->last = &queue->first;
}

static void
close_store(struct idem_engine *engine)
{
    idem__store_close(engine->store);
    idem__batch_close(engine);
    idem__seal_close(engine->seal);
    idem__recents_close(&engine->recents);
    idem__claims_close(&engine->claims);
    idem__quota_close(&engine->quota);
    idem__epoch_close(&engine->epoch);
    idem__map_clear(&engine->parked.crowds);
    idem__map_clear(&engine->parked.tickets);
    idem__map_clear(&engine->parked.scopes);
    free(engine->time.seen);
}

static void
drop_engine(struct idem_engine *engine)
{
    engine->carrier->close(engine);
    idem__timers_clear(&engine->timers);
    idem__jobs_close(engine);
    pthread_cond_destroy(&engine->queue.wake);
    pthread_mutex_destroy(&engine->queue.lock);
    pthread_mutex_destroy(&engine->figures.lock);
    free(engine);
}

static enum idem_status
open_store(struct idem_engine *engine, const char *url, struct idem_error *err)
{
    struct idem_store_options *options = &engine->store_options;
    enum idem_status status = IDEM_OK;

    options->clocks = engine->time.clocks;
    options->max_result = engine->options.max_result;
    if (!engine->store)
        status = idem__store_open(url, options, &engine->store, err);
    if (status != IDEM_OK)
        return status;
    engine->store->news = idem__take_news;
    engine->store->news_arg = engine;
    if (!idem__batch_open(engine))
        return idem__fail(err, IDEM_ERR_MEMORY, "out of memory");
    engine->tended_us = idem__boot_us(engine);
    status = idem__time_open(engine, err);
    if (status == IDEM_OK)
        status = idem__quota_open(engine, err);
    return status == IDEM_OK ? idem__epoch_open(engine, err) : status;
}

static size_t
store_max_result(const struct idem_engine *engine)
{
    size_t rest = idem__encoded_max(engine->seal ? IDEM__SEAL_LEN : 0);
    size_t record = engine->store->max_record;

    return record > rest ? record - rest : 0;
}

static void
store_figures(struct idem_engine *engine, idem_figure_fn *each, void *arg)
{
    if (engine->store->type->figures)
        engine->store->type->figures(engine->store, each, arg);
}

static void
finish_store(struct idem_engine *engine)
{
    idem__park_close(engine);
    if (engine->store->type->tend)
        engine->store->type->tend(engine->store, idem__time_drop_ms(engine));
}

static const struct idem__carrier store_carrier = {
    .open = open_store,
    .turn = turn_store,
    .due_us = store_due_us,
    .sleep = sleep_store,
    .wake = wake_store,
    .max_result = store_max_result,
    .figures = store_figures,
    .finish = finish_store,
    .close = close_store,
};

static enum idem_status
start(struct idem_engine *engine, const char *url, struct idem_error *err)
{
    enum idem_status status;

    engine->store_options.log = engine->options.log;
    engine->store_options.log_arg = engine->options.log_arg;
    status = idem__sealed_start(engine, engine->carrier == &store_carrier, err);
    if (status == IDEM_OK)
        status = engine->carrier->open(engine, url, err);
    if (status != IDEM_OK)
        return status;
    if (!engine->inner.driven &&
        !idem__thread_start(&engine->thread, "idem-engine", run_thread, engine))
        return idem__fail(err, IDEM_ERR_MEMORY, "cannot start a thread");
    return IDEM_OK;
}

enum idem_status
idem__engine_open(const char *url, const struct idem_options *options,
                  const struct idem__engine_inner *inner,
                  struct idem_engine **out, struct idem_error *err)
{
    struct idem_engine *engine = calloc(1, sizeof(*engine));
    enum idem_status status;

    if (!engine || sodium_init() < 0) {
        free(engine);
        idem__store_close(inner ? inner->store : NULL);
        return idem__fail(err, IDEM_ERR_MEMORY, "out of memory");
    }
    if (inner)
        engine->inner = *inner;
    engine->store = engine->inner.store;
    engine->carrier = !engine->store && idem__remote_url(url)
                          ? &idem__server_carrier
                          : &store_carrier;
    engine->time.clocks =
        engine->inner.clocks ? engine->inner.clocks : &idem__system_clocks;
    open_queue(&engine->queue);
    pthread_mutex_init(&engine->figures.lock, NULL);
    engine->figures.asks.item.kind = IDEM__ITEM_FIGURES;
    status = take_options(&engine->options, options, err);
    if (status == IDEM_OK && engine->inner.driven &&
        engine->carrier != &store_carrier)
        status = idem__fail(err, IDEM_ERR_INVALID,
                            "a server behind idem:// cannot be driven");
    if (status == IDEM_OK)
        status = start(engine, url, err);
    if (status != IDEM_OK) {
        drop_engine(engine);
        return status;
    }
    *out = engine;
    return IDEM_OK;
}

enum idem_status
idem_open(const char *url, const struct idem_options *options,
          struct idem_engine **engine, struct idem_error *err)
{
    return idem__engine_open(url, options, NULL, engine, err);
}

void
idem_close(struct idem_engine *engine)
{
    if (!engine)
        return;
    pthread_mutex_lock(&engine->queue.lock);
    engine->queue.closing = true;
    engine->carrier->wake(engine);
    pthread_mutex_unlock(&engine->queue.lock);
    if (!engine->inner.driven)
        pthread_join(engine->thread, NULL);
    /* Commit everything that was accepted; no other thread takes turns now. */
    while (idem__engine_turn(engine))
        ;
    engine->carrier->finish(engine);
    idem__keepers_close(engine);
    drop_engine(engine);
}

/* ---- figures ----------------------------------------------------------- */

void
idem__stats(struct idem_engine *engine, struct idem__stats *stats)
{
    memset(stats, 0, sizeof(*stats));
    for (size_t i = 0; i < IDEM__VERDICT_COUNT; i++)
        stats->verdicts[i] =
            atomic_load_explicit(&engine->verdicts[i], memory_order_relaxed);
    for (size_t i = 0; i < IDEM__STATUS_COUNT; i++)
        stats->errors[i] =
            atomic_load_explicit(&engine->errors[i], memory_order_relaxed);
    for (size_t i = 0; i < IDEM__BATCH_SIZES; i++)
        stats->batch_sizes[i] =
            atomic_load_explicit(&engine->batch_sizes[i], memory_order_relaxed);
    stats->batches = atomic_load(&engine->batches);
    stats->batched = atomic_load(&engine->batched);
    stats->store_errors = atomic_load(&engine->store_errors);
    stats->parked = atomic_load(&engine->parked_now);
    stats->locks_waiting = atomic_load(&engine->locks_waiting);
    stats->vanished = atomic_load(&engine->vanished);
    stats->over_quota = atomic_load(&engine->over_quota);
    stats->rolled_back = atomic_load(&engine->rolled_back);
    stats->rollbacks = atomic_load(&engine->rollbacks);
    stats->max_result = idem__max_result(engine);
    stats->now_ms = atomic_load(&engine->ahead_ms);
    if (stats->now_ms != 0)
        stats->now_ms += idem__boot_us(engine) / 1000;
    stats->clock_alarm = atomic_load(&engine->time.alarm);
    pthread_mutex_lock(&engine->queue.lock);
    stats->queued = engine->queue.count;
    pthread_mutex_unlock(&engine->queue.lock);
}

static void
tell_named(idem_figure_fn *each, void *arg, const char *what, const char *name,
           uint64_t value)
{
    char text[64];

    snprintf(text, sizeof(text), "%s_%s", what, name);
    each(arg, text, (double)value);
}

void
idem_figures(struct idem_engine *engine, idem_figure_fn *each, void *arg)
{
    struct idem__stats s;

    idem__stats(engine, &s);
    for (int i = 0; i < IDEM__VERDICT_COUNT; i++)
        tell_named(each, arg, "verdict", idem_verdict_name(i), s.verdicts[i]);
    for (int i = IDEM_OK + 1; i < IDEM__STATUS_COUNT; i++)
        tell_named(each, arg, "error", idem_status_name(i), s.errors[i]);
    each(arg, "batches", (double)s.batches);
    each(arg, "batched_writes", (double)s.batched);
    each(arg, "store_errors", (double)s.store_errors);
    each(arg, "queued", (double)s.queued);
    each(arg, "parked", (double)s.parked);
    each(arg, "locks_waiting", (double)s.locks_waiting);
    each(arg, "vanished", (double)s.vanished);
    each(arg, "max_result_bytes", (double)s.max_result);
    each(arg, "now_ms", (double)s.now_ms);
    each(arg, "clock_alarm", s.clock_alarm);
    idem__store_figures(engine, each, arg);
}

void
idem__store_figures(struct idem_engine *engine, idem_figure_fn *each, void *arg)
{
    atomic_int woken = 0;
    struct idem__asked_figures item = {.item.kind = IDEM__ITEM_FIGURES,
                                       .each = each,
                                       .arg = arg,
                                       .woken = &woken};

    if (idem__on_own_thread(engine))
        engine->carrier->figures(engine, each, arg);
    else if (idem__queue_put(engine, &item.item))
        idem__word_wait(&woken);
}

void
idem__store_figures_kept(struct idem_engine *engine, idem_figure_fn *each,
                         void *arg)
{
    struct idem__kept_figures *kept = &engine->figures;
    bool ask;

    pthread_mutex_lock(&kept->lock);
    for (size_t i = 0; i < kept->count; i++)
        each(arg, kept->all[i].name, kept->all[i].value);
    ask = !kept->asked;
    kept->asked = true;
    pthread_mutex_unlock(&kept->lock);
    if (ask)
        (void)idem__queue_put(engine, &kept->asks.item);
}

const char *
idem_version(void)
{
    return IDEM_VERSION;
}

int
idem_version_number(void)
{
    return IDEM_VERSION_NUMBER;
}
