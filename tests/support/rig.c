/*
 * rig.c - see rig.h.
 */
#include "rig.h"

#include "../../src/engine/inner.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void
note_log(void *arg, enum idem_log_level level, const char *text)
{
    struct rig *rig = arg;

    if (level == IDEM_LOG_INFO)
        return;
    rig->logged++;
    snprintf(rig->said, sizeof(rig->said), "%s", text);
}

struct idem_engine *
rig_engine(struct rig *rig, enum faulty_kind kind,
           const struct idem_options *options, struct faulty_store **store)
{
    struct faulty_store *faulty = faulty_open(kind, rig->memory, &rig->lock);
    struct idem_options filled = {.log = note_log, .log_arg = rig};
    struct idem__engine_inner inner = {.store = &faulty->base,
                                       .clocks = &rig->clocks.clocks,
                                       .driven = true,
                                       .hasty = true};
    struct idem_engine *engine;
    struct idem_error err;

    if (options) {
        filled = *options;
        filled.log = note_log;
        filled.log_arg = rig;
    }
    if (idem__engine_open(NULL, &filled, &inner, &engine, &err) != IDEM_OK) {
        fprintf(stderr, "rig: %s\n", err.text);
        abort();
    }
    if (store)
        *store = faulty;
    return engine;
}

void
rig_open(struct rig *rig, enum faulty_kind kind,
         const struct idem_options *options)
{
    struct idem_store_options store_options = {0};

    memset(rig, 0, sizeof(*rig));
    test_clocks_init(&rig->clocks);
    pthread_mutex_init(&rig->lock, NULL);
    store_options.clocks = &rig->clocks.clocks;
    if (idem__store_open("memory:", &store_options, &rig->memory, NULL) !=
        IDEM_OK)
        abort();
    rig->engine = rig_engine(rig, kind, options, &rig->store);
}

void
rig_close(struct rig *rig)
{
    idem_close(rig->engine);
    idem__store_close(rig->memory);
    pthread_mutex_destroy(&rig->lock);
}

int
rig_setup(void **state)
{
    struct rig *rig = malloc(sizeof(*rig));

    if (!rig)
        return -1;
    rig_open(rig, (enum faulty_kind)(uintptr_t)*state, NULL);
    *state = rig;
    return 0;
}

int
rig_teardown(void **state)
{
    struct rig *rig = *state;
    struct idem__stats stats;

    idem__stats(rig->engine, &stats);
    if (stats.parked > 0 || stats.queued > 0) {
        fprintf(stderr,
                "rig: an op waits for its answer at the end of the test\n");
        return -1;
    }
    rig_close(rig);
    free(rig);
    return 0;
}

static atomic_int replies;

static void
note_reply(void *arg, enum idem_status status, const struct idem_answer *answer,
           const struct idem_error *err)
{
    struct reply *reply = arg;

    reply->done = true;
    reply->times++;
    reply->order = atomic_fetch_add(&replies, 1) + 1;
    reply->status = status;
    if (status != IDEM_OK) {
        snprintf(reply->text, sizeof(reply->text), "%s", err->text);
        return;
    }
    reply->verdict = answer->verdict;
    reply->state = (enum idem_state)answer->record->state;
    reply->fence = answer->record->fence;
    reply->retry_after_ms = answer->retry_after_ms;
    /* Of a long one, its beginning. */
    snprintf(reply->result, sizeof(reply->result), "%.*s",
             (int)answer->record->result.len,
             (const char *)answer->record->result.data);
}

void
put(struct idem_engine *engine, const struct idem_op *op, struct reply *reply)
{
    struct idem_error err = {IDEM_OK, ""};
    enum idem_status status;

    memset(reply, 0, sizeof(*reply));
    status = idem_submit(engine, op, note_reply, reply, &reply->ticket, &err);
    if (status != IDEM_OK) {
        reply->done = true;
        reply->status = status;
        snprintf(reply->text, sizeof(reply->text), "%s", err.text);
    }
}

void
turn(struct idem_engine *engine)
{
    while (idem__engine_turn(engine))
        ;
}

struct reply
ask(struct idem_engine *engine, const struct idem_op *op)
{
    struct reply reply;

    put(engine, op, &reply);
    turn(engine);
    /* a locked row is looked at again for a moment */
    for (int i = 0; i < 10 && !reply.done; i++) {
        test_clocks_pass(engine->inner.clocks->arg, 5);
        turn(engine);
    }
    if (!reply.done)
        abort(); /* its reply would be gone before it is answered */
    return reply;
}

struct idem_op
op_begin(const char *id)
{
    return (struct idem_op){
        .verb = IDEM_BEGIN, .scope = idem_text("test"), .id = idem_text(id)};
}

struct idem_op
op_wait(const char *id, int64_t wait_ms)
{
    struct idem_op op = op_begin(id);

    op.wait_ms = wait_ms;
    return op;
}

struct idem_op
op_finish(const char *id, uint64_t fence, const char *result)
{
    struct idem_op op = op_begin(id);

    op.verb = IDEM_FINISH;
    op.fence = fence;
    op.outcome = IDEM_STATE_SUCCEEDED;
    op.result = idem_text(result);
    return op;
}

struct idem_op
op_fail(const char *id, uint64_t fence, const char *result)
{
    struct idem_op op = op_finish(id, fence, result);

    op.outcome = IDEM_STATE_FAILED;
    return op;
}

struct idem_op
op_release(const char *id, uint64_t fence)
{
    struct idem_op op = op_begin(id);

    op.verb = IDEM_RELEASE;
    op.fence = fence;
    return op;
}

struct idem_op
op_renew(const char *id, uint64_t fence, int64_t lease_ms)
{
    struct idem_op op = op_release(id, fence);

    op.verb = IDEM_RENEW;
    op.lease_ms = lease_ms;
    return op;
}

struct idem_op
op_get(const char *id)
{
    struct idem_op op = op_begin(id);

    op.verb = IDEM_GET;
    return op;
}

struct idem_op
op_lock(const char *name, const char *owner, int64_t wait_ms)
{
    struct idem_op op = op_wait(name, wait_ms);

    op.verb = IDEM_LOCK;
    op.subject = idem_text(owner);
    return op;
}

struct idem_op
op_unlock(const char *name, uint64_t fence)
{
    struct idem_op op = op_release(name, fence);

    op.verb = IDEM_UNLOCK;
    return op;
}
