/*
 * http_aside.c - what may have to wait for the store without a callback:
 * figures, ids and doubts.
 *
 * They are done by a thread of their own, so that a store that hangs holds up
 * neither /healthz nor anybody else. A request whose time is up is answered
 * without them, and what comes later is thrown away.
 */
#include "../core/doubts.h"
#include "../core/second.h"
#include "http_inner.h"

#include <stdlib.h>

struct outcome {
    enum idem_status status;
    struct idem_error err;
    struct idem_buf text; /* figures */
    json_t *json;
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

/* The oldest first. Who may list some scopes only gets those of them. */
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

/* Who may not see results does not see them here either. */
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

/* Without the lock. Of the request only what no other thread changes. */
static void
work(struct http_request *request, struct outcome *outcome)
{
    struct http_call *call = &request->call;

    bool made = true;

    idem_buf_init(&outcome->text, HTTP_METRICS_MAX);
    switch (request->route->action) {
    case HTTP_METRICS:
        made = http_metrics(request->http, &outcome->text);
        break;
    case HTTP_STATS:
        made = http_stats_put(request->http, call->count, &outcome->text);
        break;
    case HTTP_DOUBTS:
        outcome->json = list_doubts(request);
        made = outcome->json != NULL;
        break;
    case HTTP_PROPOSALS:
        outcome->json = list_proposals(request);
        made = outcome->json != NULL;
        break;
    case HTTP_ROUTES:
        outcome->json = http_gateway_routes(request->http->server->config);
        made = outcome->json != NULL;
        break;
    default:
        outcome->json = json_array();
        outcome->status =
            server_ids(request->http->server, call->id_kind, call->count, true,
                       add_id, outcome->json, &outcome->err);
    }
    if (!made)
        outcome->status =
            idem__fail(&outcome->err, IDEM_ERR_MEMORY, "out of memory");
}

/* Under the lock. */
static void
hand_over(struct http_request *request, struct outcome *outcome)
{
    request->outstanding--;
    request->http->in_flight--;
    if (request->abandoned)
        return;
    if (outcome->status != IDEM_OK)
        http_fail_with(request, outcome->status, &outcome->err);
    request->text = outcome->text;
    idem_buf_init(&outcome->text, 0);
    request->json = outcome->json;
    outcome->json = NULL;
    http_resume(request);
}

static void *
run(void *arg)
{
    struct http *http = arg;

    pthread_mutex_lock(&http->lock);
    for (;;) {
        struct http_request *request = http->aside;
        struct outcome outcome = {.status = IDEM_OK};

        if (!request && http->aside_over)
            break;
        if (!request) {
            pthread_cond_wait(&http->aside_wanted, &http->lock);
            continue;
        }
        http->aside = request->aside_next;
        if (!request->abandoned) {
            pthread_mutex_unlock(&http->lock);
            work(request, &outcome);
            pthread_mutex_lock(&http->lock);
        }
        hand_over(request, &outcome);
        pthread_mutex_unlock(&http->lock);
        http_request_put(request);
        idem_buf_clear(&outcome.text);
        json_decref(outcome.json);
        pthread_mutex_lock(&http->lock);
    }
    pthread_mutex_unlock(&http->lock);
    return NULL;
}

bool
http_aside(struct http_request *request)
{
    struct http *http = request->http;
    struct http_request **last;

    http_suspend(request, HTTP_ASIDE_MS);
    pthread_mutex_lock(&http->lock);
    atomic_fetch_add(&request->refs, 1);
    request->outstanding++;
    http->in_flight++;
    for (last = &http->aside; *last; last = &(*last)->aside_next)
        ;
    *last = request;
    pthread_cond_signal(&http->aside_wanted);
    pthread_mutex_unlock(&http->lock);
    return false;
}

bool
http_aside_start(struct http *http)
{
    pthread_cond_init(&http->aside_wanted, NULL);
    http->aside_started =
        pthread_create(&http->aside_thread, NULL, run, http) == 0;
    return http->aside_started;
}

/* One that hangs in the store is left behind: the process ends anyway. */
void
http_aside_stop(struct http *http)
{
    bool hangs;

    pthread_mutex_lock(&http->lock);
    hangs = http->in_flight > 0;
    http->aside_over = true;
    pthread_cond_signal(&http->aside_wanted);
    pthread_mutex_unlock(&http->lock);
    if (hangs)
        pthread_detach(http->aside_thread);
    else
        pthread_join(http->aside_thread, NULL);
}
