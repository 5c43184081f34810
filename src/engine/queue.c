/*
 * queue.c - checks and copies operations and puts them in the queue, on the
 * caller's thread.
 *
 * A job is one allocation: the struct, then the bytes of scope, id, subject and
 * result. Its key is hashed here too, so that the engine's thread does not. If
 * the same thread submits and takes the turns, as in the server, small jobs are
 * kept and reused.
 */
#include "inner.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* The number of waiting operations is limited, and so are their bytes. */
#define MAX_QUEUE_BYTES ((size_t)256 * 1024 * 1024)

#define SMALL_JOB 1024
#ifdef __SANITIZE_ADDRESS__
#define SPARE_MAX 0 /* so that tools can detect the use of a freed job */
#else
#define SPARE_MAX 4096
#endif

static enum idem_status
refuse(struct idem_engine *engine, enum idem_status status,
       struct idem_error *err, const char *text)
{
    atomic_fetch_add_explicit(&engine->errors[status], 1, memory_order_relaxed);
    return idem__fail(err, status, "%s", text);
}

size_t
idem__max_result(const struct idem_engine *engine)
{
    size_t max = engine->options.max_result;
    size_t room = engine->carrier->max_result(engine);

    return max < room ? max : room;
}

/* A result that is too large is dropped, since the work is done already. A note
 * that is too large is an error. */
static enum idem_status
fit_result(struct idem_engine *engine, struct idem_op *op,
           struct idem_error *err)
{
    size_t max;

    if (op->verb == IDEM_BEGIN || op->verb == IDEM_GET ||
        op->verb == IDEM_FORGET || op->verb == IDEM_ISSUE)
        op->result = (struct idem_bytes){NULL, 0};
    if (op->result.len == 0)
        return IDEM_OK;
    max = idem__max_result(engine);
    if (op->result.len <= max)
        return IDEM_OK;
    if (op->verb != IDEM_FINISH && op->verb != IDEM_SETTLE)
        return idem__fail(err, IDEM_ERR_INVALID,
                          "a note of %zu bytes is too large: keep it below "
                          "%zu bytes",
                          op->result.len, max);
    op->not_replayable = true;
    op->result = (struct idem_bytes){NULL, 0};
    return IDEM_OK;
}

static uint8_t *
copy_bytes(uint8_t *at, struct idem_bytes *bytes)
{
    if (bytes->len == 0) {
        /* An empty note is not the same as none. */
        bytes->data = bytes->data ? at : NULL;
        return at;
    }
    memcpy(at, bytes->data, bytes->len);
    bytes->data = at;
    return at + bytes->len;
}

/* True if only this thread uses the spare jobs. */
static bool
keeps_spares(const struct idem_engine *engine)
{
    return engine->inner.driven && idem__on_own_thread(engine);
}

static struct idem__job *
new_job(struct idem_engine *engine, size_t len)
{
    struct idem__item *spare;

    if (len > SMALL_JOB)
        return malloc(len);
    if (!keeps_spares(engine) || !engine->spare_jobs)
        return malloc(SMALL_JOB);
    spare = engine->spare_jobs;
    engine->spare_jobs = spare->next;
    engine->spare_count--;
    return (struct idem__job *)spare;
}

void
idem__job_drop(struct idem_engine *engine, struct idem__job *job)
{
    if (job->item.bytes > SMALL_JOB || !keeps_spares(engine) ||
        engine->spare_count + 1 > SPARE_MAX) {
        free(job);
        return;
    }
    job->item.next = engine->spare_jobs;
    engine->spare_jobs = &job->item;
    engine->spare_count++;
}

void
idem__jobs_close(struct idem_engine *engine)
{
    while (engine->spare_jobs) {
        struct idem__item *spare = engine->spare_jobs;

        engine->spare_jobs = spare->next;
        free(spare);
    }
}

static struct idem__job *
make_job(struct idem_engine *engine, const struct idem_op *op)
{
    size_t bytes =
        op->scope.len + op->id.len + op->subject.len + op->result.len;
    struct idem__job *job = new_job(engine, sizeof(*job) + bytes);
    uint8_t *at = (uint8_t *)(job + 1);

    if (!job)
        return NULL;
    memset(job, 0, offsetof(struct idem__job, answer));
    job->item.kind = IDEM__ITEM_JOB;
    job->item.bytes = sizeof(*job) + bytes;
    job->timer.kind = IDEM__TIMER_WAIT;
    job->op = *op;
    at = copy_bytes(at, &job->op.scope);
    at = copy_bytes(at, &job->op.id);
    at = copy_bytes(at, &job->op.subject);
    copy_bytes(at, &job->op.result);
    if (op->fingerprint) {
        memcpy(job->fingerprint, op->fingerprint, IDEM_FINGERPRINT_LEN);
        job->op.fingerprint = job->fingerprint;
    }
    if (op->nonce) {
        memcpy(job->nonce, op->nonce, IDEM_NONCE_LEN);
        job->op.nonce = job->nonce;
    } else if (op->verb == IDEM_BEGIN || op->verb == IDEM_REDEEM) {
        uint64_t random = idem__new_rev();

        memcpy(job->nonce, &random, IDEM_NONCE_LEN);
        job->op.nonce = job->nonce;
    }
    if (engine->store)
        idem__key(op->type, op->scope, op->id, job->key);
    return job;
}

bool
idem__on_own_thread(const struct idem_engine *engine)
{
    return atomic_load_explicit(&engine->has_turner, memory_order_acquire) &&
           pthread_equal(
               atomic_load_explicit(&engine->turner, memory_order_relaxed),
               pthread_self());
}

/* The caller holds the lock during the whole call. After it is unlocked, the
 * item may already be answered and the engine closed. */
static void
append(struct idem_engine *engine, struct idem__item *item)
{
    struct idem__queue *queue = &engine->queue;
    bool first = queue->first == NULL;

    item->next = NULL;
    *queue->last = item;
    queue->last = &item->next;
    if (queue->asleep)
        engine->carrier->wake(engine);
    else if (first && engine->inner.driven && engine->inner.wake &&
             !idem__on_own_thread(engine))
        engine->inner.wake(engine->inner.wake_arg);
}

bool
idem__queue_put(struct idem_engine *engine, struct idem__item *item)
{
    bool open;

    pthread_mutex_lock(&engine->queue.lock);
    open = !engine->queue.closing;
    if (open)
        append(engine, item);
    pthread_mutex_unlock(&engine->queue.lock);
    return open;
}

void
idem__take_news(void *arg, enum idem_news news, const uint8_t *key)
{
    struct idem_engine *engine = arg;
    struct idem__queue *queue = &engine->queue;
    struct idem__news *item = calloc(1, sizeof(*item));
    bool taken;

    if (!item)
        return;
    item->item.kind = IDEM__ITEM_NEWS;
    item->news = news;
    item->of_all = !key;
    if (key)
        memcpy(item->key, key, IDEM_KEY_LEN);
    pthread_mutex_lock(&queue->lock);
    /* If the news is dropped, the waiting operations look a little later. */
    taken = !queue->closing && queue->news < engine->options.max_parked;
    if (taken) {
        queue->news++;
        append(engine, &item->item);
    }
    pthread_mutex_unlock(&queue->lock);
    if (!taken)
        free(item);
}

void
idem__queue_take(struct idem__queue *queue)
{
    struct idem__item **end = &queue->inbox;

    if (queue->inbox)
        return;
    pthread_mutex_lock(&queue->lock);
    *end = queue->first;
    queue->first = NULL;
    queue->last = &queue->first;
    queue->news = 0;
    pthread_mutex_unlock(&queue->lock);
}

bool
idem__queue_done(struct idem__queue *queue, size_t count, size_t bytes)
{
    bool more;

    pthread_mutex_lock(&queue->lock);
    queue->count -= count;
    queue->bytes -= bytes;
    more = queue->inbox || queue->first;
    pthread_mutex_unlock(&queue->lock);
    return more;
}

static enum idem_status
put_job(struct idem_engine *engine, struct idem__job *job, uint64_t *ticket)
{
    struct idem__queue *queue = &engine->queue;
    enum idem_status status = IDEM_OK;

    pthread_mutex_lock(&queue->lock);
    if (queue->closing) {
        status = IDEM_ERR_CLOSED;
    } else if (queue->count >= engine->options.max_queue ||
               queue->bytes > MAX_QUEUE_BYTES) {
        status = IDEM_ERR_OVERLOADED;
    } else {
        if (ticket)
            *ticket = job->ticket = ++queue->tickets;
        queue->count++;
        queue->bytes += job->item.bytes;
        append(engine, &job->item);
    }
    pthread_mutex_unlock(&queue->lock);
    return status;
}

/* Is the scope in the list "a, b, c-*"? */
static bool
is_among(struct idem_bytes scope, const char *list)
{
    while (*list) {
        size_t len;
        bool prefix;

        list += strspn(list, ", ");
        len = strcspn(list, ", ");
        prefix = len > 0 && list[len - 1] == '*';
        if (len > 0 && (prefix ? scope.len >= len - 1 : scope.len == len) &&
            memcmp(scope.data, list, len - prefix) == 0)
            return true;
        list += len;
    }
    return false;
}

/* Without a fingerprint another request could be mistaken for a duplicate. */
static enum idem_status
need_fingerprint(const struct idem_engine *engine, const struct idem_op *op,
                 struct idem_error *err)
{
    const char *scopes = engine->options.require_fingerprint;

    if (!scopes || op->verb != IDEM_BEGIN || op->fingerprint ||
        !is_among(op->scope, scopes))
        return IDEM_OK;
    return idem__fail(
        err, IDEM_ERR_INVALID,
        "scope \"%.*s\" requires a fingerprint: send a hash of the request",
        (int)op->scope.len, (const char *)op->scope.data);
}

/* A store that may lose records cannot promise that a request never runs
 * twice. */
static enum idem_status
need_memory(const struct idem_engine *engine, const struct idem_op *op,
            struct idem_error *err)
{
    bool ids = op->type == IDEM_TYPE_WORKER && op->verb == IDEM_LOCK;
    bool strict = op->verb == IDEM_BEGIN && op->mode == IDEM_STRICT;

    if (!engine->store || !engine->store->forgets ||
        !(strict || ids || op->verb == IDEM_SETTLE))
        return IDEM_OK;
    return idem__fail(err, IDEM_ERR_UNSUPPORTED,
                      "this store may forget records (unsafe=forget), so it "
                      "refuses %s: %suse a store that keeps records",
                      strict ? "strict requests"
                      : ids  ? "ids"
                             : "SETTLE",
                      strict ? "make them loose, or " : "");
}

enum idem_status
idem_submit(struct idem_engine *engine, const struct idem_op *op,
            idem_done_fn *done, void *arg, uint64_t *ticket,
            struct idem_error *err)
{
    return idem__submit(engine, op, IDEM__PART_LAST, done, arg, ticket, err);
}

enum idem_status
idem__submit(struct idem_engine *engine, const struct idem_op *op,
             enum idem__part part, idem_done_fn *done, void *arg,
             uint64_t *ticket, struct idem_error *err)
{
    struct idem_op checked = *op;
    struct idem__job *job;
    enum idem_status status;

    status = idem__op_check(&checked, err);
    if (status == IDEM_OK)
        status = need_fingerprint(engine, &checked, err);
    if (status == IDEM_OK)
        status = need_memory(engine, &checked, err);
    if (status == IDEM_OK)
        status = idem__sealed_fits(engine, &checked, err);
    if (status == IDEM_OK)
        status = fit_result(engine, &checked, err);
    if (status != IDEM_OK) {
        atomic_fetch_add_explicit(&engine->errors[status], 1,
                                  memory_order_relaxed);
        return status;
    }
    job = make_job(engine, &checked);
    if (!job)
        return refuse(engine, IDEM_ERR_MEMORY, err, "out of memory");
    job->done = done;
    job->arg = arg;
    job->part = part;
    if (part == IDEM__PART_LOOK)
        job->op.verb = IDEM_GET;
    if (checked.wait_ms > 0 &&
        (checked.verb == IDEM_BEGIN || checked.verb == IDEM_LOCK))
        job->wait_end_us = idem__boot_us(engine) + checked.wait_ms * 1000;

    status = put_job(engine, job, ticket);
    if (status == IDEM_OK)
        return IDEM_OK;
    idem__job_drop(engine, job);
    return refuse(engine, status, err,
                  status == IDEM_ERR_CLOSED
                      ? "the engine is shutting down"
                      : "too many operations are waiting: try again later");
}

/* NULL if memory has run out and all spare ones are waiting. */
static struct idem__cancel *
make_cancel(struct idem__queue *queue)
{
    struct idem__cancel *cancel = calloc(1, sizeof(*cancel));

    if (cancel)
        return cancel;
    pthread_mutex_lock(&queue->lock);
    for (size_t i = 0; !cancel && i < IDEM__SPARE_CANCELS; i++) {
        if (queue->spares_used >> i & 1)
            continue;
        queue->spares_used |= UINT64_C(1) << i;
        cancel = &queue->spares[i];
    }
    pthread_mutex_unlock(&queue->lock);
    return cancel;
}

void
idem__cancel_drop(struct idem__queue *queue, struct idem__cancel *cancel)
{
    if (cancel < queue->spares ||
        cancel >= queue->spares + IDEM__SPARE_CANCELS) {
        free(cancel);
        return;
    }
    pthread_mutex_lock(&queue->lock);
    queue->spares_used &= ~(UINT64_C(1) << (cancel - queue->spares));
    pthread_mutex_unlock(&queue->lock);
}

void
idem_cancel(struct idem_engine *engine, uint64_t ticket)
{
    struct idem__cancel *cancel = make_cancel(&engine->queue);

    /* Without one, the operation stays parked until its wait ends. */
    if (!cancel)
        return;
    cancel->item.kind = IDEM__ITEM_CANCEL;
    cancel->ticket = ticket;
    if (!idem__queue_put(engine, &cancel->item))
        idem__cancel_drop(&engine->queue, cancel);
}

void
idem__job_answer(struct idem_engine *engine, struct idem__job *job,
                 enum idem_status status, const struct idem_error *err)
{
    _Atomic uint64_t *counter = status == IDEM_OK
                                    ? &engine->verdicts[job->answer.verdict]
                                    : &engine->errors[status];

    /* The error counters are also incremented on the callers' threads. */
    atomic_fetch_add_explicit(counter, 1, memory_order_relaxed);
    if (job->part != IDEM__PART_LAST)
        idem__verb_answer(engine, job, status, err);
    else
        job->done(job->arg, status, status == IDEM_OK ? &job->answer : NULL,
                  status == IDEM_OK ? NULL : err);
}

void
idem__job_fail(struct idem_engine *engine, struct idem__job *job,
               enum idem_status status, const struct idem_error *err)
{
    idem__job_answer(engine, job, status, err);
    idem__job_drop(engine, job);
}
