/*
 * history_load.c - sixteen clients that begin, finish, release, settle and
 * look, and note what they were told.
 */
#include "history.h"
#include "stores.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct client {
    struct history_load *load;
    struct idem_engine *engine;
    struct dice dice;
    struct event *at, *end;
    uint64_t results;
};

static uint64_t
now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static uint64_t
number_of(struct idem_bytes bytes)
{
    uint64_t number = 0;

    memcpy(&number, bytes.data ? bytes.data : &number,
           bytes.len < sizeof(number) ? bytes.len : sizeof(number));
    return number;
}

/* Run one op on a key and note it. NULL: the history is full. */
static struct event *
run_once(struct client *client, uint32_t key, struct idem_op op, uint64_t nonce)
{
    struct event *e = client->at;
    struct idem_answer answer = {.verdict = IDEM_V_BUSY};
    char id[24];

    if (e == client->end)
        return NULL;
    client->at++;
    snprintf(id, sizeof(id), "key-%u", key);
    op.scope = idem_text("history");
    op.id = idem_text(id);
    op.mode = key % 3 == 0 ? IDEM_LOOSE : IDEM_STRICT;
    if (op.verb == IDEM_BEGIN)
        op.nonce = (uint8_t *)&nonce;
    *e = (struct event){.key = key,
                        .verb = (uint8_t)op.verb,
                        .mode = (uint8_t)op.mode,
                        .outcome = (uint8_t)op.outcome,
                        .given = op.fence,
                        .nonce = nonce,
                        .sent = number_of(op.result)};
    e->start_ns = now_ns();
    e->status = (uint8_t)idem_do(client->engine, &op, &answer, NULL);
    e->end_ns = now_ns();
    if (e->status == IDEM_ERR_UNAVAILABLE)
        usleep(1000); /* it is away for a moment */
    e->verdict = (uint8_t)answer.verdict;
    e->state = answer.record->state;
    e->fence = answer.record->fence;
    e->got = number_of(answer.record->result);
    idem_answer_clear(&answer);
    return e;
}

/* What is lost is sent again, with the same nonce. */
static struct event *
run(struct client *client, uint32_t key, struct idem_op op)
{
    uint64_t nonce = dice_roll(&client->dice, UINT64_MAX) + 1;
    struct event *e = run_once(client, key, op, nonce);

    for (int i = 0; i < 3 && e && e->status == IDEM_ERR_LOST; i++)
        e = run_once(client, key, op, nonce);
    return e;
}

static void
end_it(struct client *client, uint32_t key, uint64_t fence)
{
    struct idem_op op = {.verb = IDEM_FINISH, .fence = fence};
    uint64_t result = ++client->results;
    unsigned roll = (unsigned)dice_roll(&client->dice, 20);

    op.outcome = roll < 3 ? IDEM_STATE_FAILED : IDEM_STATE_SUCCEEDED;
    op.result = (struct idem_bytes){&result, sizeof(result)};
    if (roll < 6 && roll >= 3)
        op.verb = IDEM_RELEASE;
    if (roll == 19)
        run(client, key, (struct idem_op){.verb = IDEM_RENEW, .fence = fence});
    if (op.verb == IDEM_RELEASE)
        op.result.len = 0, op.outcome = 0;
    run(client, key, op);
    if (roll == 18) { /* again, and then with another result */
        run(client, key, op);
        result = ++client->results;
        run(client, key, op);
    }
}

static void *
be_client(void *arg)
{
    struct client *client = arg;
    struct history_load *load = client->load;

    while (client->at != client->end) {
        unsigned roll = (unsigned)dice_roll(&client->dice, 100);
        uint32_t front = atomic_load(&load->front);
        uint32_t key = front + (uint32_t)dice_roll(&client->dice, 16);
        struct event *e;

        if (dice_roll(&client->dice, 20) == 0)
            atomic_fetch_add(&load->front, 1);
        if (roll < 70) {
            e = run(client, key,
                    (struct idem_op){.verb = IDEM_BEGIN,
                                     .wait_ms = roll < 10 ? 20 : 0});
            if (e && e->status == IDEM_OK && e->verdict == IDEM_V_STARTED)
                end_it(client, key, e->fence);
        } else if (roll < 90) {
            run(client, key, (struct idem_op){.verb = IDEM_GET});
        } else if (roll < 93) {
            run(client, key, (struct idem_op){.verb = IDEM_SETTLE});
        } else if (roll < 94) {
            run(client, key, (struct idem_op){.verb = IDEM_FORGET});
        } else {
            /* Old keys and old fences. */
            key = (uint32_t)dice_roll(&client->dice, front + 1);
            e = run(client, key, (struct idem_op){.verb = IDEM_GET});
            if (e && e->fence > 1)
                run(client, key,
                    (struct idem_op){.verb = IDEM_FINISH,
                                     .fence = e->fence - 1,
                                     .outcome = IDEM_STATE_SUCCEEDED});
        }
    }
    return NULL;
}

unsigned
history_load(struct history_load *load, char *text, size_t len)
{
    struct client clients[HISTORY_THREADS];
    pthread_t threads[HISTORY_THREADS];
    size_t count = HISTORY_THREADS * load->ops;

    load->events = calloc(count, sizeof(*load->events));
    if (!load->events)
        abort();
    for (int i = 0; i < HISTORY_THREADS; i++) {
        clients[i] = (struct client){
            .load = load,
            .engine = i % 2 && load->second ? load->second : load->engine,
            .dice = {(uint64_t)i * 7919 + 1},
            .at = load->events + (size_t)i * load->ops,
            .end = load->events + (size_t)(i + 1) * load->ops,
            .results = (uint64_t)(i + 1) << 40,
        };
        if (pthread_create(&threads[i], NULL, be_client, &clients[i]) != 0)
            abort();
    }
    for (int i = 0; i < HISTORY_THREADS; i++)
        pthread_join(threads[i], NULL);
    return history_check(load->events, count, text, len);
}
