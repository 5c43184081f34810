/*
 * returns.c - release starts whose client will never receive the reply.
 *
 * A BEGIN whose `started` could not be delivered is released; otherwise its key
 * would come into doubt although nothing was done. While the engine's queue is
 * full or the store is unavailable, the release waits here, and the loop's tick
 * tries again. A release can safely be sent twice, because it names the fence.
 */
#include "server.h"

#include <stdlib.h>
#include <string.h>

#define WAITING_MAX 65536 /* beyond this, a start ends with its lease */

struct returned {
    struct returned *next;
    struct server *server;
    struct idem_op op;
    uint8_t names[IDEM_SCOPE_MAX + IDEM_ID_MAX];
};

void
server_returns_open(struct server_returns *returns)
{
    *returns = (struct server_returns){.waiting = NULL};
    pthread_mutex_init(&returns->lock, NULL);
}

void
server_returns_close(struct server_returns *returns)
{
    while (returns->waiting) {
        struct returned *one = returns->waiting;

        returns->waiting = one->next;
        free(one);
    }
    pthread_mutex_destroy(&returns->lock);
}

static void
wait_for_tick(struct returned *one)
{
    struct server_returns *returns = &one->server->returns;
    bool room;

    pthread_mutex_lock(&returns->lock);
    room = returns->count < WAITING_MAX;
    if (room) {
        one->next = returns->waiting;
        returns->waiting = one;
        returns->count++;
    }
    pthread_mutex_unlock(&returns->lock);
    if (room)
        return;
    server_log(one->server->log, LOG_WARNING, "not-returned",
               LOG_KEY(one->op.scope, one->op.id),
               LOG_NUMBER("fence", one->op.fence));
    free(one);
}

static void
answered(void *arg, enum idem_status status, const struct idem_answer *answer,
         const struct idem_error *err)
{
    struct returned *one = arg;

    (void)answer;
    (void)err;
    if (status != IDEM_OK && status != IDEM_ERR_CLOSED) {
        wait_for_tick(one);
        return;
    }
    if (status == IDEM_OK)
        metrics_add(&one->server->metrics->returned, 1);
    free(one);
}

static bool
submit(struct returned *one)
{
    if (idem_submit(one->server->engine, &one->op, answered, one, NULL, NULL) ==
        IDEM_OK)
        return true;
    wait_for_tick(one);
    return false;
}

bool
server_give_back(struct server *server, const struct idem_op *start,
                 uint64_t fence)
{
    struct returned *one = malloc(sizeof(*one));

    server_log(server->log, LOG_INFO, "returned",
               LOG_KEY(start->scope, start->id), LOG_NUMBER("fence", fence));
    if (!one)
        return false;
    memcpy(one->names, start->scope.data, start->scope.len);
    memcpy(one->names + start->scope.len, start->id.data, start->id.len);
    one->server = server;
    one->op = (struct idem_op){
        .verb = IDEM_RELEASE,
        .type = start->type,
        .scope = {one->names, start->scope.len},
        .id = {one->names + start->scope.len, start->id.len},
        .fence = fence,
    };
    return submit(one);
}

bool
server_give_back_again(struct server *server)
{
    struct server_returns *returns = &server->returns;
    struct returned *one, *next;
    bool any = false;

    pthread_mutex_lock(&returns->lock);
    one = returns->waiting;
    returns->waiting = NULL;
    returns->count = 0;
    pthread_mutex_unlock(&returns->lock);
    for (; one; one = next) {
        next = one->next;
        any |= submit(one);
    }
    return any;
}
