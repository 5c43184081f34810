/*
 * http_run.c - submit a call to the engine, and keep the answer until
 * libmicrohttpd's thread fetches it.
 */
#include "../../base/quota.h"
#include "../../engine/engine.h"
#include "http_inner.h"
#include "problem_page.h"

#include <stdlib.h>
#include <string.h>

#define READY_SCOPE "idem"
#define READY_ID "readyz"
#define ISSUED_ROOM 256 /* memory for one token in a reply */

void
http_request_put(struct http_request *request)
{
    if (atomic_fetch_sub(&request->refs, 1) > 1)
        return;
    idem_buf_clear(&request->body);
    idem_buf_clear(&request->text);
    idem_arena_clear(&request->path_memory);
    idem_arena_clear(&request->memory);
    result_put(request->result);
    http_call_clear(&request->call);
    principal_put(request->principal);
    json_decref(request->json);
    free(request->issue);
    free(request->records);
    free(request->target);
    free(request);
}

void
http_suspend(struct http_request *request, int64_t limit_ms)
{
    struct http *http = request->http;

    MHD_suspend_connection(request->connection);
    pthread_mutex_lock(&http->lock);
    request->due_ms = idem__mono_ms() + limit_ms;
    request->suspended = true;
    LIST_INSERT_HEAD(&http->pending, request, link);
    pthread_mutex_unlock(&http->lock);
}

void
http_resume(struct http_request *request)
{
    if (!request->suspended)
        return;
    request->suspended = false;
    request->waits = false;
    LIST_REMOVE(request, link);
    MHD_resume_connection(request->connection);
}

/* ---- releasing a start whose client is gone -------------------------- */

static void
release(struct http *http, const struct idem_record *record)
{
    const struct idem_op start = {
        .type = record->type, .scope = record->scope, .id = record->id};

    (void)server_give_back(http->server, &start, record->fence);
}

/* A client can send a BEGIN with a nonce again and get its claim back, perhaps
 * on another connection already, so that claim must not be released. Without a
 * nonce nobody else can know of the claim. The owner of a lock can ask again in
 * the same way, and the lock's lease ends anyway. */
static bool
nobody_else_knows(const struct http_request *request,
                  const struct idem_answer *answer)
{
    return request->route->verb == IDEM_BEGIN && !request->call.op.nonce &&
           answer->verdict == IDEM_V_STARTED;
}

/* A client may leave before its body is complete. Then there is no answer yet,
 * and the verdict is only zero. */
void
http_release_undelivered(struct http_request *request)
{
    if (!request->failed && request->route && request->answer.record &&
        request->route->action == HTTP_OP &&
        nobody_else_knows(request, &request->answer))
        release(request->http, request->answer.record);
}

/* ---- the engine's answers -------------------------------------------- */

void
http_fail_with(struct http_request *request, enum idem_status status,
               const struct idem_error *err)
{
    if (request->failed)
        return;
    request->failed = true;
    request->problem = http_problem_of(status);
    if (status == IDEM_ERR_OVERLOADED && err && idem__quota_retry_s(err->text))
        request->problem = IDEM_PROBLEM_QUOTA;
    idem__fail(&request->error, status, "%s",
               err && err->text[0] ? err->text : idem_status_text(status));
}

/* Verdicts that return a result write nothing, so after a refusal the client
 * can ask again. */
static void
share_result(struct http_request *request, const struct idem_record *record)
{
    struct server *server = request->http->server;

    request->result = results_take(&server->results,
                                   idem__engine_turns(server->engine), record);
    if (request->result)
        request->record.result =
            (struct idem_bytes){request->result->bytes, request->result->len};
    else
        http_fail_full(request);
}

static bool
tells_result(enum idem_verdict verdict)
{
    return verdict == IDEM_V_REPLAY || verdict == IDEM_V_FINISHED ||
           verdict == IDEM_V_RECORD;
}

/* The console shows a result only when somebody asks for it, and the audit
 * trail records who asked. */
static void
mask(struct http_request *request, struct idem_record *record)
{
    if (!request->from_page || http_reveals(request->route) ||
        record->result.len == 0)
        return;
    request->masked = true;
    request->masked_len = record->result.len;
    record->result = (struct idem_bytes){NULL, 0};
}

/* The engine has carried out the operation, and there is no memory for its
 * answer. MEMORY says that nothing was stored, so it fits only a verdict that
 * writes nothing. */
static void
fail_to_keep(struct http_request *request, const struct idem_answer *answer)
{
    struct idem_error err;

    if (request->route->action != HTTP_OP || request->route->verb == IDEM_GET ||
        tells_result(answer->verdict) || answer->verdict == IDEM_V_BUSY) {
        http_fail_with(request, IDEM_ERR_MEMORY, NULL);
        return;
    }
    if (nobody_else_knows(request, answer))
        release(request->http, answer->record);
    idem__fail(&err, IDEM_ERR_LOST,
               "out of memory for the reply; the change may have been stored: "
               "ask with GET");
    http_fail_with(request, IDEM_ERR_LOST, &err);
}

static void
keep(struct http_request *request, const struct idem_answer *answer)
{
    struct idem_record shown, record;
    struct idem_answer copy;
    bool is_long;

    if (request->principal &&
        !principal_has(request->principal, SERVER_MAY_USE))
        answer = server_without_result(answer, &copy, &shown);
    record = *answer->record;
    mask(request, &record);
    is_long = record.result.len >= RESULT_LONG;
    request->answer = *answer;
    request->answer.record = &request->record;
    request->answer.memory = NULL;
    if (is_long)
        record.result = (struct idem_bytes){NULL, 0};
    if (!idem_arena_record(&request->memory, &record, &request->record))
        fail_to_keep(request, answer);
    else if (is_long && !request->masked && tells_result(answer->verdict))
        share_result(request, answer->record);
}

/* Under the lock. The engine holds a reference until it has called back. */
static void
owe(struct http_request *request, size_t count)
{
    request->outstanding += count;
    request->http->in_flight += count;
    atomic_fetch_add(&request->refs, (int)count);
}

/* Under the lock; the caller keeps the request alive. */
static void
owe_less(struct http_request *request)
{
    request->outstanding--;
    request->http->in_flight--;
    atomic_fetch_sub(&request->refs, 1);
}

static void
observe(const struct http_request *request)
{
    int64_t took_us = idem__mono_us() - request->started_us;

    if (request->route->action == HTTP_OP ||
        request->route->action == HTTP_ISSUE)
        metrics_observe(request->http->server->metrics, request->route->verb,
                        took_us);
}

/* Called by the engine: under the lock from here to end_callback. */
static void
start_callback(struct http_request *request)
{
    pthread_mutex_lock(&request->http->lock);
    request->outstanding--;
    request->http->in_flight--;
}

static void
end_callback(struct http_request *request)
{
    if (request->outstanding == 0 && !request->abandoned) {
        observe(request);
        if (request->records && !request->failed)
            http_aside_add(request);
        else
            http_resume(request);
    }
    pthread_mutex_unlock(&request->http->lock);
    http_request_put(request);
}

static void
audit_request(const struct http_request *request, enum idem_status status,
              const struct idem_answer *answer)
{
    struct server *server = request->http->server;

    audit_add(server->audit, server->log,
              &(struct audit_event){&request->audit, "http", &request->call.op,
                                    status, answer});
}

/* Does the reply include a result? */
static bool
is_shown(const struct http_request *request)
{
    return !request->abandoned && !request->failed &&
           request->record.result.len > 0;
}

/* On the engine's thread. */
static void
done(void *arg, enum idem_status status, const struct idem_answer *answer,
     const struct idem_error *err)
{
    struct http_request *request = arg;

    start_callback(request);
    if (request->abandoned) {
        if (status == IDEM_OK && nobody_else_knows(request, answer))
            release(request->http, answer->record);
    } else if (status != IDEM_OK) {
        http_fail_with(request, status, err);
    } else {
        keep(request, answer);
    }
    if (request->audit.who[0] && request->outstanding == 0 &&
        (!http_reveals(request->route) || is_shown(request)))
        audit_request(request, status, answer);
    end_callback(request);
}

/* Copy records without their results, as lists show them. */
static bool
keep_listed(struct http_request *request, const struct idem_record *records,
            size_t count)
{
    size_t len = (count + 1) * sizeof(*records);

    for (size_t i = 0; i < count; i++)
        len +=
            records[i].scope.len + records[i].id.len + records[i].subject.len;
    if (!http_hold(request, len)) {
        http_fail_full(request);
        return false;
    }
    request->records = calloc(count + 1, sizeof(*records));
    for (size_t i = 0; request->records && i < count; i++) {
        struct idem_record listed = records[i];

        listed.result = (struct idem_bytes){NULL, 0};
        if (!idem_arena_record(&request->memory, &listed,
                               &request->records[request->record_count]))
            break;
        request->record_count++;
    }
    return request->records && request->record_count == count;
}

static void
scanned(void *arg, enum idem_status status, const struct idem_record *records,
        size_t count, const struct idem_cursor *next,
        const struct idem_error *err)
{
    struct http_request *request = arg;

    start_callback(request);
    if (status != IDEM_OK) {
        http_fail_with(request, status, err);
    } else if (!request->abandoned) {
        request->call.cursor = *next;
        if (!keep_listed(request, records, count))
            http_fail_with(request, IDEM_ERR_MEMORY, NULL);
    }
    end_callback(request);
}

/* ---- starting -------------------------------------------------------- */

/* `status` is the result of the last submission. */
static void
submitted(struct http_request *request, enum idem_status status, size_t missing,
          const struct idem_error *err)
{
    pthread_mutex_lock(&request->http->lock);
    for (size_t i = 0; i < missing; i++)
        owe_less(request);
    if (status != IDEM_OK)
        http_fail_with(request, status, err);
    if (request->outstanding == 0)
        http_resume(request); /* no callback has resumed it */
    else
        request->waits = request->suspended && request->call.op.wait_ms > 0;
    pthread_mutex_unlock(&request->http->lock);
}

static void
prepare(struct http_request *request, size_t count, int64_t limit_ms)
{
    metrics_add(&request->http->server->metrics->operations[METRICS_HTTP],
                count);
    http_suspend(request, limit_ms);
    pthread_mutex_lock(&request->http->lock);
    owe(request, count);
    pthread_mutex_unlock(&request->http->lock);
}

static bool
run_op(struct http_request *request, const struct idem_op *op, int64_t limit_ms)
{
    struct idem_error err = {0};
    enum idem_status status;

    prepare(request, 1, op->wait_ms + limit_ms);
    status =
        idem__submit_verb(request->http->server->engine, op, request->call.next,
                          done, request, &request->ticket, &err);
    submitted(request, status, status == IDEM_OK ? 0 : 1, &err);
    return false;
}

static bool
run_issue(struct http_request *request)
{
    struct http_call *call = &request->call;
    bool fits;

    pthread_mutex_lock(&request->http->lock);
    fits = http_hold(request, call->count * ISSUED_ROOM);
    pthread_mutex_unlock(&request->http->lock);
    if (!fits) {
        http_fail_full(request);
        return true;
    }
    request->issue = server_issue_new(call->count);
    if (!request->issue)
        return !http_fail(request, IDEM_PROBLEM_MEMORY, "out of memory");
    prepare(request, 1, HTTP_STORE_MS);
    server_issue_submit(request->issue, request->http->server->engine,
                        &call->op, done, request);
    submitted(request, IDEM_OK, 0, NULL);
    return false;
}

static bool
run_scan(struct http_request *request)
{
    struct http_call *call = &request->call;
    struct idem_error err = {0};
    enum idem_status status;

    prepare(request, 1, HTTP_STORE_MS);
    status =
        idem__scan_submit(request->http->server->engine, &call->filter,
                          &call->cursor, call->count, scanned, request, &err);
    submitted(request, status, status == IDEM_OK ? 0 : 1, &err);
    return false;
}

static bool
run_waiters(struct http_request *request)
{
    struct idem_error err = {0};
    enum idem_status status;

    prepare(request, 1, HTTP_STORE_MS);
    status = idem__waiters_submit(request->http->server->engine,
                                  SERVER_COUNT_MAX, scanned, request, &err);
    submitted(request, status, status == IDEM_OK ? 0 : 1, &err);
    return false;
}

static bool
run_ready(struct http_request *request)
{
    const struct idem_op op = {
        .verb = IDEM_GET,
        .type = IDEM_TYPE_REQUEST,
        .scope = idem_text(READY_SCOPE),
        .id = idem_text(READY_ID),
    };

    return run_op(request, &op, HTTP_READY_MS);
}

static bool
run_explain(struct http_request *request)
{
    struct idem_error err = {0};

    request->json = http_explain(request->http->server, request->call.id_kind,
                                 request->call.op.id, &err);
    if (!request->json)
        http_fail_with(request,
                       err.text[0] ? IDEM_ERR_INVALID : IDEM_ERR_MEMORY, &err);
    return true;
}

static bool
run_page(struct http_request *request)
{
    return http_console_file(request->call.file) ||
           !http_fail(request, IDEM_PROBLEM_NOT_FOUND,
                      "the console has no such file: open /console");
}

static bool
run_rollback(struct http_request *request)
{
    struct audit_source source;
    const struct audit_rollback event = {.source = &source,
                                         .surface = "http",
                                         .reason = request->call.op.subject};
    struct idem_error err;

    http_source(request, &source);
    return server_accept_rollback(request->http->server, &event, &err) ==
               IDEM_OK ||
           !http_fail(request, IDEM_PROBLEM_INVALID, "%s", err.text);
}

static bool
run_problem(struct http_request *request)
{
    enum idem__problem problem;

    return problem_page_find(request->call.file, &problem) ||
           !http_fail(request, IDEM_PROBLEM_NOT_FOUND,
                      "there is no problem of this name: docs/problems.md "
                      "lists them");
}

bool
http_run(struct http_request *request)
{
    switch (request->route->action) {
    case HTTP_OP:
        return run_op(request, &request->call.op, HTTP_STORE_MS);
    case HTTP_ISSUE:
        return run_issue(request);
    case HTTP_SCAN:
        return run_scan(request);
    case HTTP_WAITERS:
        return run_waiters(request);
    case HTTP_ID:
    case HTTP_AUDIT:
    case HTTP_METRICS:
    case HTTP_STATS:
    case HTTP_DOUBTS:
    case HTTP_PROPOSALS:
    case HTTP_ROUTES:
    case HTTP_PLAY:
    case HTTP_CONSUMERS:
    case HTTP_SEGMENTS:
        return http_aside(request);
    case HTTP_EXPLAIN:
        return run_explain(request);
    case HTTP_PAGE:
        return run_page(request);
    case HTTP_ROLLBACK:
        return run_rollback(request);
    case HTTP_PROBLEM:
        return run_problem(request);
    case HTTP_READY:
        return run_ready(request);
    case HTTP_HEALTH:
    case HTTP_OPENAPI:
    case HTTP_EVENTS:
    case HTTP_SESSION:
    case HTTP_LOGIN:
    case HTTP_LOGOUT:
    case HTTP_SCHEMES:
        break;
    }
    return true;
}
