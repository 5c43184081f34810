/*
 * http_respond.c - turn the outcome of a request into an HTTP response.
 */
#include "../../base/quota.h"
#include "../play/play.h"
#include "console_files.h"
#include "http_inner.h"
#include "problem_page.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define JSON_TYPE "application/json"
#define EVENTS_TYPE "text/event-stream"
#define PROBLEM_TYPE "application/problem+json"
#define METRICS_TYPE "text/plain; version=0.0.4; charset=utf-8"

#define KEEP_THE_KEY                                                           \
    "; this attempt was not executed; an earlier one with the same key may "   \
    "have been executed: keep the key, and retry with it"

/* Copies of a result while it is rendered: text, base64, and the JSON body. */
#define RENDERED_PARTS 3

struct reply {
    unsigned status;
    const char *type;
    char *body; /* malloc'ed */
    size_t len;
    bool gzip, kept;        /* kept: not ours to free */
    int64_t retry_after_ms; /* 0: no header */
};

static const struct idem__problem_type *
problem_type(const struct http_request *request)
{
    return idem__problem_type(request->problem);
}

/* If a reply was lost, sending the same request again finds out its outcome,
 * except for a claim without a nonce, which cannot prove that it is the
 * same. */
static bool
is_retryable(const struct http_request *request)
{
    enum idem_verb verb = request->route ? request->route->verb : IDEM_GET;

    if (request->problem != IDEM_PROBLEM_LOST)
        return problem_type(request)->retryable;
    if (verb == IDEM_BEGIN || verb == IDEM_REDEEM)
        return request->call.op.nonce != NULL;
    return verb == IDEM_FINISH || verb == IDEM_RELEASE || verb == IDEM_RENEW ||
           verb == IDEM_LOCK || verb == IDEM_UNLOCK;
}

static json_t *
issued(const struct http_request *request)
{
    json_t *tokens = json_array();

    for (size_t i = 0; i < request->call.count; i++)
        json_array_append_new(
            tokens, json_string(server_issue_token(request->issue, i)));
    return json_pack("{s:s, s:s, s:o, s:I}", "verdict", "issued", "token",
                     server_issue_token(request->issue, 0), "tokens", tokens,
                     "expires", (json_int_t)request->answer.record->expires);
}

/* Show the length of the result instead of the result. */
static void
hide_result(const struct http_request *request, json_t *json)
{
    json_t *record = json_object_get(json, "record");
    json_t *holder = record ? record : json;

    if (json_object_del(holder, "result_base64") != 0)
        return; /* this verdict has no result */
    json_object_del(holder, "result");
    json_object_set_new(holder, "masked_bytes",
                        json_integer((json_int_t)request->masked_len));
}

static json_t *
answered(const struct http_request *request)
{
    const struct idem_answer *answer = &request->answer;
    json_t *json = http_answer(answer, request->route->verb);

    if (json && request->masked)
        hide_result(request, json);
    if (json && request->call.next && answer->verdict == IDEM_V_REDEEMED &&
        answer->record->id.len > 0)
        json_object_set_new(json, "token", http_text(answer->record->id));
    return json;
}

/* A claim that was refused does not say what became of an earlier one with the
 * same key. */
static json_t *
make_problem(const struct http_request *request)
{
    const struct http_route *route = request->route;
    bool retryable = is_retryable(request);
    bool claim = route && route->action == HTTP_OP &&
                 (route->verb == IDEM_BEGIN || route->verb == IDEM_REDEEM) &&
                 problem_type(request)->class == IDEM_CLASS_NOT_EXECUTED;
    char detail[sizeof(request->error.text) + sizeof(KEEP_THE_KEY)];

    snprintf(detail, sizeof(detail), "%s%s", request->error.text,
             claim && retryable ? KEEP_THE_KEY : "");
    return http_problem(request->http->server->config->problem_base,
                        request->problem, detail, retryable);
}

static json_t *
make_json(const struct http_request *request)
{
    if (request->failed)
        return make_problem(request);
    switch (request->route->action) {
    case HTTP_OP:
        return answered(request);
    case HTTP_ISSUE:
        return issued(request);
    case HTTP_EXPLAIN:
        return json_incref(request->json);
    case HTTP_ROLLBACK:
        return json_pack("{s:s}", "verdict", idem_verdict_name(IDEM_V_OK));
    case HTTP_SCHEMES:
        return play_list();
    case HTTP_SESSION:
    case HTTP_LOGIN:
    case HTTP_LOGOUT:
        return http_session_json(request);
    case HTTP_HEALTH:
        return json_pack("{s:s, s:s}", "status", "ok", "version", IDEM_VERSION);
    case HTTP_READY:
        return json_pack("{s:s}", "status", "ready");
    default:
        return NULL; /* not JSON, or text already */
    }
}

static char *
problem_body(const struct http_request *request, size_t *len)
{
    const char *languages = MHD_lookup_connection_value(
        request->connection, MHD_HEADER_KIND, "Accept-Language");
    char *page = malloc(PROBLEM_PAGE_MAX);
    enum idem__problem problem;

    if (page && problem_page_find(request->call.file, &problem))
        *len =
            problem_page(problem, idem_text(languages ? languages : ""), page);
    return page;
}

static bool
make_body(struct http_request *request, struct reply *reply)
{
    enum http_action action =
        request->route ? request->route->action : HTTP_HEALTH;

    if (!request->failed && action == HTTP_OPENAPI) {
        reply->body = request->http->openapi;
        reply->len = strlen(request->http->openapi);
        reply->kept = true;
        return true;
    }
    if (!request->failed && action == HTTP_PROBLEM) {
        reply->type = PROBLEM_PAGE_TYPE;
        reply->body = problem_body(request, &reply->len);
        return reply->body != NULL;
    }
    if (!request->failed && action == HTTP_PAGE) {
        const struct console_file *file = http_console_file(request->call.file);

        reply->type = file->type;
        reply->body = (char *)(uintptr_t)file->gzip;
        reply->len = file->len;
        reply->gzip = reply->kept = true;
        return true;
    }
    if (!request->failed && request->text.data) {
        if (action == HTTP_METRICS)
            reply->type = METRICS_TYPE;
        reply->body = (char *)request->text.data;
        reply->len = request->text.len;
        request->text = (struct idem_buf){0};
        return true;
    }
    idem__json_begin();
    reply->body = idem__json_text(make_json(request));
    reply->len = reply->body ? strlen(reply->body) : 0;
    return reply->body != NULL;
}

static void
add_headers(const struct http_request *request, const struct reply *reply,
            struct MHD_Response *response)
{
    char seconds[32];

    MHD_add_response_header(response, "Content-Type", reply->type);
    MHD_add_response_header(response, "Cache-Control", "no-store");
    MHD_add_response_header(response, "X-Content-Type-Options", "nosniff");
    if (request->http->sessions)
        http_console_headers(response);
    if (reply->gzip)
        MHD_add_response_header(response, "Content-Encoding", "gzip");
    if (request->cookie[0])
        MHD_add_response_header(response, "Set-Cookie", request->cookie);
    if (reply->retry_after_ms > 0) {
        snprintf(seconds, sizeof(seconds), "%lld",
                 (long long)(reply->retry_after_ms + 999) / 1000);
        MHD_add_response_header(response, "Retry-After", seconds);
    }
    if (!request->failed)
        return;
    if (request->allow[0])
        MHD_add_response_header(response, "Allow", request->allow);
    if (request->problem == IDEM_PROBLEM_UNAUTHORIZED)
        MHD_add_response_header(
            response, "WWW-Authenticate",
            request->from_page /* it has its own login form */
                ? "Session realm=\"idem\""
                : "Basic realm=\"idem\", charset=\"UTF-8\"");
    if (request->http->draining)
        MHD_add_response_header(response, "Connection", "close");
}

static void
log_request(const struct http_request *request, unsigned status)
{
    const struct idem_op *op = &request->call.op;
    bool verdict = !request->failed && request->route->action == HTTP_OP;

    server_log(
        request->http->server->log, LOG_DEBUG, "http",
        LOG_TEXT("operation", request->route ? request->route->name : "none"),
        LOG_NUMBER("status", status),
        LOG_TEXT("verdict",
                 verdict ? idem_verdict_name(request->answer.verdict) : "none"),
        LOG_NUMBER("us", idem__mono_us() - request->started_us),
        LOG_KEY(op->scope, op->id));
}

static void
log_defect(const struct http_request *request)
{
    if (problem_type(request)->status < 500 ||
        request->problem == IDEM_PROBLEM_CLOSED)
        return;
    server_log(
        request->http->server->log, LOG_WARNING, "http-problem",
        LOG_TEXT("problem", problem_type(request)->name),
        LOG_TEXT("operation", request->route ? request->route->name : "none"),
        LOG_TEXT("text", request->error.text));
}

/* ---- room for long replies ------------------------------------------- */

static size_t
rendered_len(const struct http_request *request)
{
    return RENDERED_PARTS * request->result->len;
}

/* If nothing else is buffered, the limit does not apply; the request's own body
 * and what it holds already do not count. */
bool
http_hold(struct http_request *request, size_t len)
{
    struct http *http = request->http;

    if (atomic_load(&http->buffered) > request->body.len + request->held &&
        !results_room(&http->server->results, len))
        return false;
    http_count(http, 0, len);
    request->held += len;
    return true;
}

void
http_fail_full(struct http_request *request)
{
    http_fail_with(
        request, IDEM_ERR_OVERLOADED,
        &(struct idem_error){.text = "too many large replies wait to be read"});
}

/* Under the lock: resume the requests that fit now. */
static void
resume_some(struct http *http)
{
    struct http_request *next;

    for (struct http_request *r = LIST_FIRST(&http->pending); r; r = next) {
        next = LIST_NEXT(r, link);
        if (!r->wants_room)
            continue;
        if (!http_hold(r, rendered_len(r)))
            return;
        r->wants_room = false;
        http_resume(r);
    }
}

void
http_count(struct http *http, size_t before, size_t now)
{
    atomic_fetch_add(&http->buffered, now - before);
    results_count(&http->server->results, before, now);
    if (now >= before)
        return;
    pthread_mutex_lock(&http->lock);
    resume_some(http);
    pthread_mutex_unlock(&http->lock);
}

static bool
waits_for_room(struct http_request *request)
{
    struct http *http = request->http;
    bool fits;

    if (request->failed || !request->result || request->held > 0)
        return false;
    pthread_mutex_lock(&http->lock);
    fits = http_hold(request, rendered_len(request));
    pthread_mutex_unlock(&http->lock);
    if (fits)
        return false;
    http_suspend(request, HTTP_STORE_MS);
    pthread_mutex_lock(&http->lock);
    request->wants_room = true;
    resume_some(http); /* there may be room by now */
    pthread_mutex_unlock(&http->lock);
    return true;
}

static struct MHD_Response *
make_response(struct http_request *request, struct reply *reply)
{
    struct MHD_Response *response;

    if (!make_body(request, reply))
        return NULL; /* out of memory, even for an error */
    if (request->result) {
        size_t held = request->held;

        request->held = reply->len;
        http_count(request->http, held, reply->len);
        result_put(request->result);
        request->result = NULL;
        request->record.result = (struct idem_bytes){NULL, 0};
    }
    response = MHD_create_response_from_buffer(
        reply->len, reply->body,
        reply->kept ? MHD_RESPMEM_PERSISTENT : MHD_RESPMEM_MUST_FREE);
    if (!response && !reply->kept)
        free(reply->body);
    return response;
}

enum MHD_Result
http_respond(struct http_request *request)
{
    struct reply reply = {.status = 200, .type = JSON_TYPE};
    struct MHD_Response *response = NULL;
    enum MHD_Result queued;

    if (waits_for_room(request))
        return MHD_YES;
    if (!request->failed && request->route->action == HTTP_EVENTS) {
        reply.type = EVENTS_TYPE;
        response = http_events(request);
    }
    if (request->failed) {
        reply.status = problem_type(request)->status;
        reply.type = PROBLEM_TYPE;
        if (request->problem == IDEM_PROBLEM_QUOTA)
            reply.retry_after_ms =
                idem__quota_retry_s(request->error.text) * INT64_C(1000);
        else if (problem_type(request)->retryable)
            reply.retry_after_ms = 1000;
        log_defect(request);
    } else if (request->answer.verdict == IDEM_V_BUSY &&
               request->route->action == HTTP_OP) {
        reply.retry_after_ms = request->answer.retry_after_ms;
    }
    log_request(request, reply.status);
    if (!response)
        response = make_response(request, &reply);
    if (!response)
        return MHD_NO;
    add_headers(request, &reply, response);
    queued = MHD_queue_response(request->connection, reply.status, response);
    MHD_destroy_response(response);
    return queued;
}
