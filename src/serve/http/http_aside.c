/*
 * http_aside.c - requests that run on a thread of their own: figures, ids and
 * lists, which may block on the store or take long to write, and the runs of
 * the playground.
 *
 * There are two such threads, one for the playground and one for the rest, so
 * that a store that hangs blocks neither /healthz nor other requests. A request
 * that times out is answered without the thread, and its late result is
 * discarded. A thread builds one reply at a time. The reply then counts towards
 * max-buffered, and is discarded if it does not fit.
 */
#include "../../base/wait.h"
#include "../../engine/engine.h"
#include "../../id/id.h"
#include "../core/consumers.h"
#include "../core/doubts.h"
#include "../core/json_record.h"
#include "../core/second.h"
#include "../play/play.h"
#include "http_inner.h"

#include <string.h>

#define LISTS_SHARE 4 /* part of max-buffered for one credential */
#define STOP_MS 2000  /* at shutdown, for the reply being built */

struct outcome {
    enum idem_status status;
    struct idem_error err;
    struct idem_buf text;
};

static void
add_id(void *arg, struct idem_bytes id)
{
    json_array_append_new(arg, http_text(id));
}

static bool
may_list(const struct principal *principal, const json_t *record)
{
    const json_t *scope = json_object_get(record, "scope");

    return principal_may(principal, SERVER_MAY_LIST,
                         (struct idem_bytes){json_string_value(scope),
                                             json_string_length(scope)});
}

/* Oldest first. A caller that may list only some scopes gets only their
 * doubts. */
static json_t *
list_doubts(struct http_request *request)
{
    const struct idem_bytes all = {NULL, 0};
    uint64_t count = 0;
    double oldest_s;
    bool looked = http_doubts_look(request->http, &count, &oldest_s);
    json_t *found = doubts_oldest(request->http->server->doubts);
    json_t *records = json_array(), *record;
    size_t i;

    json_array_foreach(found, i, record)
    {
        if (json_array_size(records) < request->call.count &&
            may_list(request->principal, record))
            json_array_append(records, record);
    }
    json_decref(found);
    if (!principal_may(request->principal, SERVER_MAY_LIST, all))
        count = json_array_size(records);
    return json_pack("{s:s, s:I, s:b, s:o}", "verdict", "doubts", "count",
                     (json_int_t)count, "looked", looked, "records", records);
}

/* A caller that may not see results does not see them here either. */
static json_t *
list_proposals(struct http_request *request)
{
    struct second *second = request->http->server->second;
    json_t *found = second ? second_list(second) : json_array();
    json_t *proposals = json_array(), *one;
    size_t i;

    json_array_foreach(found, i, one)
    {
        if (!principal_has(request->principal, SERVER_MAY_USE)) {
            json_object_del(one, "result");
            json_object_del(one, "result_base64");
        }
        if (may_list(request->principal, one))
            json_array_append(proposals, one);
    }
    json_decref(found);
    return json_pack("{s:s, s:o}", "verdict", "proposals", "proposals",
                     proposals);
}

static json_t *
list_records(const struct http_request *request)
{
    json_t *records = json_array();

    for (size_t i = 0; i < request->record_count; i++)
        json_array_append_new(records,
                              server_json_record(&request->records[i]));
    return json_pack("{s:s, s:s, s:o}", "verdict", "records", "cursor",
                     request->call.cursor.text, "records", records);
}

static void
add_entry(void *arg, const json_t *entry)
{
    json_array_append_new(arg, json_deep_copy(entry));
}

static json_t *
list_audit(const struct http_request *request)
{
    const struct http_call *call = &request->call;
    const struct audit_filter filter = {call->filter.scope, call->filter.id,
                                        call->count};
    json_t *entries = json_array();

    if (!audit_list(request->http->server->audit, &filter, add_entry,
                    entries)) {
        json_decref(entries);
        return NULL;
    }
    return json_pack("{s:s, s:o}", "verdict", "entries", "entries", entries);
}

static json_t *
list_ids(const struct http_request *request, struct outcome *outcome)
{
    json_t *ids = json_array();

    outcome->status =
        server_ids(request->http->server, request->call.id_kind,
                   request->call.count, true, add_id, ids, &outcome->err);
    return json_pack("{s:s, s:o}", "verdict", "ids", "ids", ids);
}

/* A caller that may list only some scopes sees only who waits for their
 * locks. */
static json_t *
list_waiters(const struct http_request *request)
{
    const struct idem_bytes all = {NULL, 0};
    json_t *waiters = json_array();
    struct idem__stats stats = {0};

    for (size_t i = 0; i < request->record_count; i++) {
        const struct idem_record *r = &request->records[i];
        json_t *one;

        if (json_array_size(waiters) == request->call.count ||
            !principal_may(request->principal, SERVER_MAY_LIST, r->scope))
            continue;
        one = json_pack("{s:I, s:I}", "since", (json_int_t)r->created, "until",
                        (json_int_t)r->expires);
        server_json_put_bytes(one, "scope", r->scope, false);
        server_json_put_bytes(one, "id", r->id, false);
        server_json_put_bytes(one, "owner", r->subject, false);
        json_array_append_new(waiters, one);
    }
    idem__stats(request->http->server->engine, &stats);
    return json_pack("{s:s, s:I, s:o}", "verdict", "waiters", "count",
                     principal_may(request->principal, SERVER_MAY_LIST, all)
                         ? (json_int_t)stats.locks_waiting
                         : (json_int_t)json_array_size(waiters),
                     "waiters", waiters);
}

struct segments {
    const struct principal *principal;
    json_t *all;
};

static void
add_segment(void *arg, const struct idem__segment_figures *s)
{
    struct segments *segments = arg;
    json_t *one;

    if (!principal_may(segments->principal, SERVER_MAY_LIST, s->name))
        return;
    one = json_pack("{s:I, s:I, s:I, s:I, s:I}", "given", (json_int_t)s->given,
                    "next", (json_int_t)s->next, "step", (json_int_t)s->step,
                    "left", (json_int_t)s->left, "spare", (json_int_t)s->spare);
    server_json_put_bytes(one, "name", s->name, false);
    json_array_append_new(segments->all, one);
}

static json_t *
list_segments(const struct http_request *request)
{
    struct segments segments = {request->principal, json_array()};

    idem__ids_segments(request->http->server->ids, add_segment, &segments);
    return json_pack("{s:s, s:o}", "verdict", "segments", "segments",
                     segments.all);
}

static json_t *
list_consumers(const struct http_request *request)
{
    const char *dir = request->http->server->config->consumers;
    json_t *found = consumers_list(dir), *all = json_array(), *one;
    size_t i;

    json_array_foreach(found, i, one)
    {
        if (may_list(request->principal, one))
            json_array_append(all, one);
    }
    json_decref(found);
    return json_pack("{s:s, s:b, s:o}", "verdict", "consumers", "watched",
                     dir != NULL, "consumers", all);
}

static json_t *
run_playground(const struct http_request *request, struct outcome *outcome)
{
    const struct http_call *call = &request->call;
    json_t *told = NULL;

    outcome->status = play_run(call->id_kind, call->op.id, call->protect, &told,
                               &outcome->err);
    return told;
}

static json_t *
make_list(struct http_request *request, struct outcome *outcome)
{
    switch (request->route->action) {
    case HTTP_SCAN:
        return list_records(request);
    case HTTP_AUDIT:
        return list_audit(request);
    case HTTP_DOUBTS:
        return list_doubts(request);
    case HTTP_PROPOSALS:
        return list_proposals(request);
    case HTTP_PLAY:
        return run_playground(request, outcome);
    case HTTP_CONSUMERS:
        return list_consumers(request);
    case HTTP_WAITERS:
        return list_waiters(request);
    case HTTP_SEGMENTS:
        return list_segments(request);
    case HTTP_ROUTES:
        return http_gateway_routes(request->http->server->config);
    default:
        return list_ids(request, outcome);
    }
}

static bool
put_list(struct http_request *request, struct outcome *outcome)
{
    char *text;

    idem__json_begin();
    text = idem__json_text(make_list(request, outcome));
    outcome->text.data = (uint8_t *)text;
    outcome->text.len = outcome->text.room = text ? strlen(text) : 0;
    return text != NULL;
}

/* Without the lock: uses only the parts of the request that no other thread
 * changes. */
static void
work(struct http_request *request, struct outcome *outcome)
{
    bool made;

    idem_buf_init(&outcome->text, HTTP_METRICS_MAX);
    if (request->route->action == HTTP_METRICS)
        made = http_metrics(request->http, &outcome->text);
    else if (request->route->action == HTTP_STATS)
        made =
            http_stats_put(request->http, request->call.count, &outcome->text);
    else
        made = put_list(request, outcome);
    if (!made && outcome->status == IDEM_OK)
        outcome->status =
            idem__fail(&outcome->err, IDEM_ERR_MEMORY, "out of memory");
}

/* Under the lock. One credential must leave room for the lists of others. */
static bool
hold_text(struct http_request *request, size_t len)
{
    size_t share = request->http->server->results.max / LISTS_SHARE;

    if (!principal_hold(request->principal, len, share))
        return false;
    request->text_held = len;
    return http_hold(request, len);
}

/* Under the lock. */
static void
hand_over(struct http_request *request, struct outcome *outcome)
{
    request->outstanding--;
    request->http->in_flight--;
    if (request->abandoned)
        return;
    if (outcome->status != IDEM_OK) {
        http_fail_with(request, outcome->status, &outcome->err);
    } else if (!hold_text(request, outcome->text.room)) {
        http_fail_full(request);
    } else {
        request->text = outcome->text;
        idem_buf_init(&outcome->text, 0);
    }
    http_resume(request);
}

/* Under the lock: the next request. It prefers a credential other than the last
 * one, so that one caller's long queue does not delay the others. */
static struct http_request *
take_next(struct http_lane *lane)
{
    struct http_request **at = &lane->first, *request;

    while (*at && (*at)->principal == lane->last)
        at = &(*at)->aside_next;
    if (!*at)
        at = &lane->first;
    request = *at;
    if (request) {
        *at = request->aside_next;
        lane->last = request->principal; /* never dereferenced */
    }
    return request;
}

static void *
run(void *arg)
{
    struct http_lane *lane = arg;
    struct http *http = lane->http;

    pthread_mutex_lock(&http->lock);
    for (;;) {
        struct http_request *request = take_next(lane);
        struct outcome outcome = {.status = IDEM_OK};

        if (!request && http->aside_over)
            break;
        if (!request) {
            pthread_cond_wait(&lane->wanted, &http->lock);
            continue;
        }
        lane->busy = true;
        if (!request->abandoned && !http->aside_over) {
            pthread_mutex_unlock(&http->lock);
            work(request, &outcome);
            pthread_mutex_lock(&http->lock);
        }
        hand_over(request, &outcome);
        pthread_mutex_unlock(&http->lock);
        http_request_put(request);
        idem_buf_clear(&outcome.text);
        pthread_mutex_lock(&http->lock);
        lane->busy = false;
        pthread_cond_signal(&lane->rest);
    }
    pthread_mutex_unlock(&http->lock);
    return NULL;
}

void
http_aside_add(struct http_request *request)
{
    struct http *http = request->http;
    bool play = request->route->action == HTTP_PLAY;
    struct http_lane *lane = &http->lanes[play ? HTTP_LANE_PLAY : 0];
    struct http_request **last;

    atomic_fetch_add(&request->refs, 1);
    request->outstanding++;
    http->in_flight++;
    for (last = &lane->first; *last; last = &(*last)->aside_next)
        ;
    *last = request;
    pthread_cond_signal(&lane->wanted);
}

bool
http_aside(struct http_request *request)
{
    http_suspend(request, HTTP_ASIDE_MS);
    pthread_mutex_lock(&request->http->lock);
    http_aside_add(request);
    pthread_mutex_unlock(&request->http->lock);
    return false;
}

bool
http_aside_start(struct http *http)
{
    size_t count = http->server->config->console ? HTTP_LANES : 1;

    for (size_t i = 0; i < count; i++) {
        struct http_lane *lane = &http->lanes[i];

        lane->http = http;
        pthread_cond_init(&lane->wanted, NULL);
        idem__cond_init(&lane->rest);
        lane->started = pthread_create(&lane->thread, NULL, run, lane) == 0;
        if (!lane->started)
            return false;
    }
    return true;
}

/* A lane finishes its request, because what it reads is closed next. A lane
 * that hangs in the store is left running, because the process exits anyway. */
static void
stop_lane(struct http_lane *lane)
{
    struct timespec until = idem__deadline(STOP_MS * 1000);
    bool hangs;

    pthread_mutex_lock(&lane->http->lock);
    pthread_cond_signal(&lane->wanted);
    while ((lane->first || lane->busy) &&
           pthread_cond_timedwait(&lane->rest, &lane->http->lock, &until) == 0)
        ;
    hangs = lane->first || lane->busy;
    pthread_mutex_unlock(&lane->http->lock);
    if (hangs)
        pthread_detach(lane->thread);
    else
        pthread_join(lane->thread, NULL);
}

void
http_aside_stop(struct http *http)
{
    pthread_mutex_lock(&http->lock);
    http->aside_over = true;
    pthread_mutex_unlock(&http->lock);
    for (size_t i = 0; i < HTTP_LANES; i++)
        if (http->lanes[i].started)
            stop_lane(&http->lanes[i]);
}

static void
clear_lane(struct http_lane *lane)
{
    pthread_cond_destroy(&lane->wanted);
    pthread_cond_destroy(&lane->rest);
}

void
http_aside_clear(struct http *http)
{
    for (size_t i = 0; i < HTTP_LANES; i++)
        if (http->lanes[i].started)
            clear_lane(&http->lanes[i]);
}
