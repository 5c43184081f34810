/*
 * load.c - see load.h.
 */
#include "load.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t next_result = 1;

void
load_init(struct sim_load *load, int key_count, int64_t length)
{
    static const int64_t ttls[] = {10 * SIM_S, 30 * SIM_S, 3600 * SIM_S};

    memset(load, 0, sizeof(*load));
    load->key_count = key_count;
    load->lease_ms = 200 << sim_roll(5);
    load->until = sim_now() + length;
    for (int i = 0; i < key_count; i++) {
        load->keys[i].strict = i % 3 != 0;
        load->keys[i].ttl_ns = ttls[sim_roll(3)];
    }
}

struct call {
    struct idem_op op;
    struct truth_key *key;
    char id[16], text[512];
    uint8_t nonce[IDEM_NONCE_LEN];
    struct idem_answer answer;
    struct idem_error err;
    bool maybe_stored; /* a try ended in LOST */
};

static void
call_init(struct call *call, struct sim_load *load, int key,
          enum idem_verb verb)
{
    memset(call, 0, sizeof(*call));
    call->key = &load->keys[key];
    snprintf(call->id, sizeof(call->id), "key-%d", key);
    call->op.verb = verb;
    call->op.scope = idem_text("sim");
    call->op.id = idem_text(call->id);
    call->op.mode = call->key->strict ? IDEM_STRICT : IDEM_LOOSE;
    call->op.ttl_ms = call->key->ttl_ns / SIM_MS;
    call->op.lease_ms = load->lease_ms;
}

/* The same op until it is known what became of it; false: given up. */
static bool
insist(struct idem_engine *engine, struct call *call, int tries)
{
    for (int i = 0; i < tries; i++) {
        enum idem_status status;

        idem_answer_clear(&call->answer);
        status = idem_do(engine, &call->op, &call->answer, &call->err);
        if (status == IDEM_OK)
            return true;
        sim_tell("%s %s: %s", idem_verb_name(call->op.verb), call->id,
                 idem_status_name(status));
        call->maybe_stored |= status == IDEM_ERR_LOST;
        if (status == IDEM_ERR_CLOSED)
            return false;
        sim_sleep(sim_delay(20 * SIM_MS));
    }
    return false;
}

static uint64_t
result_of(const struct idem_answer *answer)
{
    char text[24] = "";
    struct idem_bytes bytes = answer->record->result;
    const char *from = bytes.data;
    size_t digits = 0;

    while (digits < bytes.len && digits < sizeof(text) - 1 &&
           from[digits] != '#') {
        text[digits] = from[digits];
        digits++;
    }
    for (size_t i = digits; i < bytes.len; i++) {
        if (from[i] != '#')
            sim_fail("a result is told that nobody stored: %.*s",
                     (int)bytes.len, from);
    }
    return strtoull(text, NULL, 10);
}

static void
set_result(struct call *call, uint64_t result)
{
    int digits = snprintf(call->text, sizeof(call->text), "%llu",
                          (unsigned long long)result);

    memset(call->text + digits, '#', sizeof(call->text) - (size_t)digits);
    call->op.result = (struct idem_bytes){
        call->text, (size_t)digits + (size_t)(result * 67 % 450)};
    call->op.outcome = IDEM_STATE_SUCCEEDED;
}

/* Work under a lease: shorter than it, longer with renewals, or too long. */
static void
work(struct sim_load *load, struct idem_engine *engine, int key, uint64_t fence)
{
    int64_t lease = load->lease_ms * SIM_MS;
    int pieces = (int)sim_roll(4);

    for (int i = 0; i < pieces; i++) {
        struct call renew;

        sim_sleep(sim_delay(lease / 4));
        if (sim_once_in(3))
            continue;
        call_init(&renew, load, key, IDEM_RENEW);
        renew.op.fence = fence;
        insist(engine, &renew, 1);
        idem_answer_clear(&renew.answer);
    }
    if (sim_once_in(20))
        sim_sleep(2 * lease);
}

static void
finish(struct sim_load *load, struct idem_engine *engine, int key,
       uint64_t fence)
{
    struct call call;
    uint64_t result = next_result++;
    int64_t asked = sim_now();

    call_init(&call, load, key, IDEM_FINISH);
    call.op.fence = fence;
    set_result(&call, result);
    truth_tries(call.key);
    truth_leaves(call.key, fence);
    if (insist(engine, &call, sim_once_in(3) ? 1 : 6)) {
        sim_tell("finish key-%d fence %llu result %llu: %s", key,
                 (unsigned long long)fence, (unsigned long long)result,
                 idem_verdict_name(call.answer.verdict));
        if (call.answer.verdict == IDEM_V_OK)
            truth_finished(call.key, asked, fence, result);
    } else if (!call.maybe_stored) {
        truth_not_stored(call.key, result);
    }
    idem_answer_clear(&call.answer);
}

static void
started(struct sim_load *load, struct idem_engine *engine, int key,
        int64_t asked, uint64_t fence)
{
    if (sim_once_in(10)) { /* changed its mind before it did anything */
        struct call call;

        call_init(&call, load, key, IDEM_RELEASE);
        call.op.fence = fence;
        truth_leaves(call.key, fence);
        insist(engine, &call, 3);
        idem_answer_clear(&call.answer);
        return;
    }
    sim_yield();
    truth_executed(&load->keys[key], asked);
    work(load, engine, key, fence);
    if (!sim_once_in(10)) /* otherwise: it dies without a word */
        finish(load, engine, key, fence);
}

static void
settle(struct sim_load *load, struct idem_engine *engine, int key)
{
    struct call call;
    uint64_t result = next_result++;
    int64_t asked = sim_now();

    call_init(&call, load, key, IDEM_SETTLE);
    set_result(&call, result);
    truth_tries(call.key);
    if (insist(engine, &call, 4)) {
        sim_tell("settle key-%d: %s", key,
                 idem_verdict_name(call.answer.verdict));
        if (call.answer.verdict == IDEM_V_SETTLED)
            truth_settled(call.key, asked, result_of(&call.answer));
        else if (call.answer.verdict == IDEM_V_REPLAY)
            truth_replayed(call.key, asked, result_of(&call.answer));
    }
    idem_answer_clear(&call.answer);
}

/* One request, with retries, as an honest client sends it. */
static void
request(struct sim_load *load, struct idem_engine *engine, int key)
{
    struct call call;
    int64_t asked = sim_now();
    uint64_t words = sim_random();

    call_init(&call, load, key, IDEM_BEGIN);
    memcpy(call.nonce, &words, sizeof(call.nonce));
    call.op.nonce = call.nonce;
    call.op.wait_ms = sim_once_in(2) ? (int64_t)sim_roll(1500) : 0;
    truth_asks(call.key);
    if (insist(engine, &call, 5)) {
        enum idem_verdict verdict = call.answer.verdict;
        uint64_t fence = call.answer.record->fence;

        sim_tell("begin key-%d: %s fence %llu", key, idem_verdict_name(verdict),
                 (unsigned long long)fence);
        truth_answered(call.key);
        if (verdict == IDEM_V_STARTED) {
            truth_started(call.key, asked, load->lease_ms * SIM_MS, fence);
            started(load, engine, key, asked, fence);
        } else if (verdict == IDEM_V_REPLAY) {
            truth_replayed(call.key, asked, result_of(&call.answer));
        } else if (verdict == IDEM_V_BUSY || verdict == IDEM_V_DOUBT) {
            truth_busy(call.key, asked, idem_verdict_name(verdict));
            truth_held(call.key, fence);
            if (sim_once_in(verdict == IDEM_V_DOUBT ? 3 : 10))
                settle(load, engine, key);
        } else {
            sim_fail("BEGIN answered %s", idem_verdict_name(verdict));
        }
    }
    idem_answer_clear(&call.answer);
}

/* What is there? */
static void
ask(struct sim_load *load, struct idem_engine *engine, int key)
{
    struct call call;
    int64_t asked = sim_now();

    call_init(&call, load, key, IDEM_GET);
    if (insist(engine, &call, 3)) {
        enum idem_state state = call.answer.record->state;

        sim_tell("get key-%d: %s", key, idem_state_name(state));
        if (state == IDEM_STATE_SUCCEEDED)
            truth_replayed(call.key, asked, result_of(&call.answer));
        else
            truth_busy(call.key, asked, idem_state_name(state));
    }
    idem_answer_clear(&call.answer);
}

/* The work of a program that leaves leases to idem_run. */
struct job {
    struct sim_load *load;
    struct call *call;
    int key;
    int64_t asked, finished;
    uint64_t fence;
};

static enum idem_state
run_job(void *arg, uint64_t fence, struct idem_bytes *result)
{
    struct job *job = arg;

    sim_tell("run key-%d: fence %llu", job->key, (unsigned long long)fence);
    job->fence = fence;
    truth_answered(job->call->key);
    truth_started(job->call->key, job->asked, job->load->lease_ms * SIM_MS,
                  fence);
    truth_executed(job->call->key, job->asked);
    sim_sleep((int64_t)sim_roll(4) * job->load->lease_ms * SIM_MS / 2);
    *result = job->call->op.result;
    job->finished = sim_now();
    truth_tries(job->call->key);
    truth_leaves(job->call->key, fence);
    return IDEM_STATE_SUCCEEDED;
}

static void
run(struct sim_load *load, struct idem_engine *engine, int key)
{
    struct call call;
    struct job job = {load, &call, key, sim_now(), 0, 0};
    uint64_t result = next_result++;
    enum idem_status status;

    call_init(&call, load, key, IDEM_BEGIN);
    set_result(&call, result);
    call.op.outcome = 0;
    truth_asks(call.key);
    status = idem_run(engine, &call.op, run_job, &job, &call.answer, &call.err);
    sim_tell("run key-%d result %llu: %s %s", key, (unsigned long long)result,
             idem_status_name(status),
             status == IDEM_OK ? idem_verdict_name(call.answer.verdict) : "");
    if (status == IDEM_OK && job.fence == 0)
        truth_answered(call.key);
    if (status == IDEM_OK && call.answer.verdict == IDEM_V_STARTED)
        truth_finished(call.key, job.finished, job.fence, result);
    else if (status == IDEM_OK && call.answer.verdict == IDEM_V_REPLAY)
        truth_replayed(call.key, job.asked, result_of(&call.answer));
    idem_answer_clear(&call.answer);
}

void
load_client(struct sim_load *load, struct idem_engine *engine)
{
    while (sim_now() < load->until) {
        int key = (int)sim_roll((uint64_t)load->key_count);

        if (sim_once_in(4))
            ask(load, engine, key);
        else if (sim_once_in(4))
            run(load, engine, key);
        else
            request(load, engine, key);
        sim_sleep(sim_delay(30 * SIM_MS));
    }
}

void
load_look(struct sim_load *load, struct idem_engine *engine)
{
    sim_sleep(2 * load->lease_ms * SIM_MS + 5 * SIM_S);
    for (int key = 0; key < load->key_count; key++) {
        struct call call;
        int64_t asked = sim_now();

        call_init(&call, load, key, IDEM_BEGIN);
        call.op.wait_ms = 2 * load->lease_ms + 2000;
        if (!insist(engine, &call, 20))
            sim_fail("key-%d does not answer although everything is repaired",
                     key);
        switch (call.answer.verdict) {
        case IDEM_V_STARTED:
            truth_started(call.key, asked, load->lease_ms * SIM_MS,
                          call.answer.record->fence);
            if (call.key->strict)
                truth_executed(call.key, asked);
            break;
        case IDEM_V_REPLAY:
            truth_replayed(call.key, asked, result_of(&call.answer));
            break;
        case IDEM_V_DOUBT:
            truth_busy(call.key, asked, "doubt");
            break;
        case IDEM_V_BUSY:
            truth_busy(call.key, asked, "busy");
            if (load->clock_was_ahead)
                break;
            /* fall through */
        default:
            sim_fail("key-%d is stuck: %s", key,
                     idem_verdict_name(call.answer.verdict));
        }
        idem_answer_clear(&call.answer);
    }
}
