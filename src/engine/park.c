/*
 * park.c - parks the operations that wait for a busy record.
 *
 * A crowd is the list of all operations that wait for one key, in order of
 * arrival. When an operation of this engine changes the record, the whole crowd
 * looks at it in the same batch; when the lease ends, a timer lets the crowd
 * look. A store that other engines write too is asked to notify changes. While
 * it does not notify, the crowd polls at a short interval, with one read per
 * key, however many operations wait. While it does, the crowd polls less and
 * less often, because a notification may get lost.
 */
#include "inner.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* A timer may fire too early if a clock moved; the crowd then looks again after
 * at least this time. */
#define SHORTEST_LOOK_US 1000
#define LOCKED_LOOK_US 4000
#define SOON_US 5000      /* the shortest poll interval of a young wait ... */
#define SOON_CROWDS 64    /* ... unless there are more keys to poll */
#define MAX_LOOK_TIMES 20 /* poll_ms times this is the longest interval */

static struct idem__crowd *
crowd_at(struct idem__link *link)
{
    return (struct idem__crowd *)((char *)link -
                                  offsetof(struct idem__crowd, link));
}

static struct idem__job *
job_at(struct idem__link *link)
{
    return (struct idem__job *)((char *)link -
                                offsetof(struct idem__job, ticket_link));
}

struct idem__crowd *
idem__crowd_find(struct idem_engine *engine, const uint8_t *key)
{
    struct idem__link *link =
        idem__map_find(&engine->parked.crowds, idem__key_hash(key));

    while (link && memcmp(crowd_at(link)->key, key, IDEM_KEY_LEN) != 0)
        link = idem__map_next(link);
    return link ? crowd_at(link) : NULL;
}

static struct idem__parked_scope *
scope_at(struct idem__link *link)
{
    return (
        struct idem__parked_scope *)((char *)link -
                                     offsetof(struct idem__parked_scope, link));
}

/* The scope's count, for one more crowd. NULL: out of memory. */
static struct idem__parked_scope *
take_scope(struct idem_engine *engine, struct idem_bytes name)
{
    struct idem__map *scopes = &engine->parked.scopes;
    struct idem__parked_scope *scope;
    struct idem__link *link;
    uint8_t key[IDEM_KEY_LEN];

    idem__key(0, name, (struct idem_bytes){NULL, 0}, key);
    link = idem__map_find(scopes, idem__key_hash(key));
    while (link && memcmp(scope_at(link)->key, key, IDEM_KEY_LEN) != 0)
        link = idem__map_next(link);
    if (link) {
        scope_at(link)->crowds++;
        return scope_at(link);
    }
    scope = calloc(1, sizeof(*scope));
    if (!scope)
        return NULL;
    memcpy(scope->key, key, IDEM_KEY_LEN);
    scope->crowds = 1;
    if (!idem__map_add(scopes, &scope->link, idem__key_hash(key))) {
        free(scope);
        return NULL;
    }
    return scope;
}

static void
put_scope(struct idem_engine *engine, struct idem__parked_scope *scope)
{
    if (--scope->crowds > 0)
        return;
    assert(scope->count == 0);
    idem__map_remove(&engine->parked.scopes, &scope->link);
    free(scope);
}

static struct idem__crowd *
make_crowd(struct idem_engine *engine, const struct idem__job *job)
{
    struct idem__crowd *crowd = calloc(1, sizeof(*crowd));

    if (!crowd)
        return NULL;
    memcpy(crowd->key, job->key, IDEM_KEY_LEN);
    crowd->timer.kind = IDEM__TIMER_LOOK;
    crowd->since_us = engine->boot_now_us;
    crowd->scope = take_scope(engine, job->op.scope);
    if (!crowd->scope || !idem__map_add(&engine->parked.crowds, &crowd->link,
                                        idem__key_hash(job->key))) {
        if (crowd->scope)
            put_scope(engine, crowd->scope);
        free(crowd);
        return NULL;
    }
    return crowd;
}

static void
watch(struct idem_engine *engine, struct idem__crowd *crowd)
{
    struct idem_store *store = engine->store;

    if (!crowd->watched && !store->type->local && store->type->watch)
        crowd->watched = store->type->watch(store, crowd->key, true);
}

static void
unwatch(struct idem_engine *engine, struct idem__crowd *crowd)
{
    if (crowd->watched)
        (void)engine->store->type->watch(engine->store, crowd->key, false);
    crowd->watched = crowd->told = false;
}

static void
drop_crowd(struct idem_engine *engine, struct idem__crowd *crowd)
{
    unwatch(engine, crowd);
    idem__timer_stop(&engine->timers, &crowd->timer);
    idem__map_remove(&engine->parked.crowds, &crowd->link);
    put_scope(engine, crowd->scope);
    free(crowd);
}

/* The limits of one key and one scope are for callers that asked to wait. A
 * FINISH that meets a locked row is parked for a moment, and is not refused
 * because of them. */
static bool
is_crowded(const struct idem_engine *engine, const struct idem__crowd *crowd,
           const struct idem__job *job)
{
    const struct idem_options *options = &engine->options;

    return job->op.wait_ms > 0 &&
           (crowd->count >= options->max_parked_key ||
            crowd->scope->count >= options->max_parked_scope);
}

struct idem__crowd *
idem__crowd_add(struct idem_engine *engine, struct idem__job *job)
{
    struct idem__crowd *crowd;
    bool is_new;

    if (engine->parked.count >= engine->options.max_parked)
        return NULL;
    crowd = idem__crowd_find(engine, job->key);
    is_new = !crowd;
    if (is_new)
        crowd = make_crowd(engine, job);
    if (!crowd)
        return NULL;
    if (is_crowded(engine, crowd, job)) {
        if (is_new)
            drop_crowd(engine, crowd);
        return NULL;
    }
    job->crowd = crowd;
    job->next = NULL;
    job->prev = crowd->last;
    if (crowd->last)
        crowd->last->next = job;
    else
        crowd->first = job;
    crowd->last = job;
    crowd->count++;
    crowd->scope->count++;
    engine->parked.count++;
    engine->parked.locks += job->op.verb == IDEM_LOCK;
    return crowd;
}

bool
idem__crowd_keep(struct idem_engine *engine, struct idem__job *job)
{
    if (!idem__timer_set(&engine->timers, &job->timer, job->wait_end_us))
        return false;
    if (job->ticket != 0 && job->ticket_link.hash == 0 &&
        !idem__map_add(&engine->parked.tickets, &job->ticket_link,
                       job->ticket)) {
        idem__timer_stop(&engine->timers, &job->timer);
        return false;
    }
    return true;
}

void
idem__crowd_take(struct idem_engine *engine, struct idem__job *job)
{
    struct idem__crowd *crowd = job->crowd;

    idem__timer_stop(&engine->timers, &job->timer);
    if (job->ticket_link.hash != 0) {
        idem__map_remove(&engine->parked.tickets, &job->ticket_link);
        job->ticket_link.hash = 0;
    }
    if (job->prev)
        job->prev->next = job->next;
    else
        crowd->first = job->next;
    if (job->next)
        job->next->prev = job->prev;
    else
        crowd->last = job->prev;
    job->next = job->prev = NULL;
    job->crowd = NULL;
    crowd->count--;
    crowd->scope->count--;
    engine->parked.count--;
    engine->parked.locks -= job->op.verb == IDEM_LOCK;
}

/* If the store cannot notify, look sooner while the wait is young, because most
 * requests are short. So a caller waits at most an eighth longer than it
 * has to, or one poll interval. */
static int64_t
poll_us(const struct idem_engine *engine, const struct idem__crowd *crowd)
{
    int64_t most_us = engine->options.poll_ms * 1000;
    int64_t soon_us = (engine->boot_now_us - crowd->since_us) / 8;

    if (engine->store->type->local || crowd->watched ||
        engine->parked.crowds.count > SOON_CROWDS)
        return most_us;
    if (soon_us < SOON_US)
        soon_us = SOON_US;
    return soon_us < most_us ? soon_us : most_us;
}

/* The time until the next look. It doubles each time while the store notifies
 * changes. */
static int64_t
look_us(const struct idem_engine *engine, struct idem__crowd *crowd)
{
    if (!crowd->told)
        crowd->look_times = 1;
    else if (crowd->look_times < MAX_LOOK_TIMES / 2)
        crowd->look_times *= 2;
    else
        crowd->look_times = MAX_LOOK_TIMES;
    return poll_us(engine, crowd) * crowd->look_times;
}

void
idem__crowd_plan(struct idem_engine *engine, struct idem__crowd *crowd,
                 const struct idem_record *record)
{
    int64_t now_us = engine->boot_now_us;
    int64_t due_us;

    if (crowd->count == 0) {
        assert(crowd->group == NULL);
        drop_crowd(engine, crowd);
        return;
    }
    if (!crowd->locked)
        watch(engine, crowd);
    due_us = now_us + look_us(engine, crowd);
    if (record && record->state == IDEM_STATE_EXECUTING) {
        int64_t end_us = idem__time_lease_end_us(engine, record);

        if (engine->store->type->local || end_us < due_us)
            due_us = end_us;
    }
    if (crowd->locked)
        due_us = now_us + LOCKED_LOOK_US;
    crowd->locked = false;
    if (due_us < now_us + SHORTEST_LOOK_US)
        due_us = now_us + SHORTEST_LOOK_US;
    /* The heap has room, since the crowd's jobs have timers. Only for the first
     * crowd setting the timer can fail; its waits then end by their own
     * timeouts. */
    (void)idem__timer_set(&engine->timers, &crowd->timer, due_us);
}

/* If the store stops to notify changes, the crowd polls as before. The first
 * poll is one interval later, so that a store which keeps dropping its watches
 * is not read all the time. */
static void
hear(struct idem_engine *engine, struct idem__crowd *crowd, enum idem_news news)
{
    int64_t due_us = engine->boot_now_us;

    if (news == IDEM_NEWS_UNWATCHED) {
        unwatch(engine, crowd);
        due_us += engine->options.poll_ms * 1000;
    } else if (news == IDEM_NEWS_WATCHED) {
        crowd->told = crowd->watched;
    }
    if (crowd->timer.place == 0 || due_us < crowd->timer.due_us)
        (void)idem__timer_set(&engine->timers, &crowd->timer, due_us);
}

void
idem__park_news(struct idem_engine *engine, const struct idem__news *news)
{
    struct idem__map *crowds = &engine->parked.crowds;
    struct idem__crowd *crowd =
        news->of_all ? NULL : idem__crowd_find(engine, news->key);

    if (crowd)
        hear(engine, crowd, news->news);
    for (size_t i = 0; news->of_all && i < crowds->room; i++) {
        for (struct idem__link *link = crowds->chains[i]; link;
             link = link->next)
            hear(engine, crowd_at(link), news->news);
    }
}

static void
closed(struct idem_engine *engine, struct idem__job *job, const char *text)
{
    struct idem_error err;

    idem__fail(&err, IDEM_ERR_CLOSED, "%s", text);
    idem__job_fail(engine, job, IDEM_ERR_CLOSED, &err);
}

/* Describe a waiting operation as a record of the lock that it waits for. */
static struct idem_record
waiter(const struct idem_engine *engine, const struct idem__job *job)
{
    int64_t until =
        engine->now.late_ms + (job->wait_end_us - engine->boot_now_us) / 1000;

    return (struct idem_record){.type = (uint8_t)job->op.type,
                                .scope = job->op.scope,
                                .id = job->op.id,
                                .subject = job->op.subject,
                                .created = until - job->op.wait_ms,
                                .expires = until};
}

void
idem__park_list(struct idem_engine *engine, size_t most,
                bool (*each)(void *arg, const struct idem_record *waiter),
                void *arg)
{
    const struct idem__map *crowds = &engine->parked.crowds;
    size_t left = engine->parked.locks < most ? engine->parked.locks : most;

    for (size_t i = 0; i < crowds->room && left > 0; i++) {
        for (struct idem__link *link = crowds->chains[i]; link && left > 0;
             link = link->next) {
            const struct idem__job *job = crowd_at(link)->first;

            for (; job && job->op.verb == IDEM_LOCK && left > 0;
                 job = job->next, left--) {
                struct idem_record record = waiter(engine, job);

                if (!each(arg, &record))
                    return;
            }
        }
    }
}

void
idem__park_cancel(struct idem_engine *engine, uint64_t ticket)
{
    struct idem__link *link = idem__map_find(&engine->parked.tickets, ticket);
    struct idem__crowd *crowd;
    struct idem__job *job;

    if (!link)
        return;
    job = job_at(link);
    crowd = job->crowd;
    idem__crowd_take(engine, job);
    if (crowd->count == 0)
        drop_crowd(engine, crowd);
    closed(engine, job, "the wait was cancelled");
}

void
idem__park_close(struct idem_engine *engine)
{
    struct idem__map *crowds = &engine->parked.crowds;

    for (size_t i = 0; i < crowds->room; i++) {
        while (crowds->chains[i]) {
            struct idem__crowd *crowd = crowd_at(crowds->chains[i]);

            while (crowd->first) {
                struct idem__job *job = crowd->first;

                idem__crowd_take(engine, job);
                closed(engine, job, "the engine is shutting down");
            }
            drop_crowd(engine, crowd);
        }
    }
}
