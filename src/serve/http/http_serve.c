/*
 * http_serve.c - handle one request, from its first line to its response.
 *
 * All of this runs on libmicrohttpd's thread.
 */
#include "http_inner.h"

#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A refused body is read up to this limit, so that the client gets the response
 * and not a broken connection. */
#define DISCARD_MAX (8 * 1024 * 1024)

bool
http_fail(struct http_request *request, enum idem__problem problem,
          const char *format, ...)
{
    va_list args;

    request->failed = true;
    request->problem = problem;
    va_start(args, format);
    vsnprintf(request->error.text, sizeof(request->error.text), format, args);
    va_end(args);
    return false;
}

static void
set_stage(struct http_request *request, int stage)
{
    pthread_mutex_lock(&request->http->lock);
    request->client->stage = stage;
    request->client->since_ms = idem__mono_ms();
    pthread_mutex_unlock(&request->http->lock);
}

/* libmicrohttpd calls this with the first line; the return value is the
 * handler's context. */
void *
http_request_new(void *arg, const char *uri, struct MHD_Connection *connection)
{
    const struct http_daemon *daemon = arg;
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    struct http_request *request = calloc(1, sizeof(*request));

    if (!request || !info || !info->socket_context ||
        !(request->target = strdup(uri))) {
        free(request);
        return NULL;
    }
    request->http = daemon->http;
    request->daemon = daemon;
    request->connection = connection;
    request->client = info->socket_context;
    request->started_us = idem__mono_us();
    atomic_init(&request->refs, 1);
    idem_buf_init(&request->body, request->http->max_body);
    set_stage(request, CLIENT_SENDING);
    return request;
}

void
http_request_done(void *arg, struct MHD_Connection *connection, void **context,
                  enum MHD_RequestTerminationCode code)
{
    struct http_request *request = *context;

    (void)arg;
    (void)connection;
    if (!request)
        return;
    *context = NULL;
    if (code != MHD_REQUEST_TERMINATED_COMPLETED_OK)
        http_release_undelivered(request);
    http_count(request->http, request->body.len + request->held, 0);
    principal_unhold(request->principal, request->text_held);
    set_stage(request, CLIENT_IDLE);
    http_request_put(request);
}

/* ---- reading --------------------------------------------------------- */

static bool
find_route(struct http_request *request, const char *method)
{
    struct idem_bytes raw = {request->target, strcspn(request->target, "?")};
    struct idem_error err = {0};
    enum idem_status status =
        http_path_read(raw, &request->path_memory, &request->path, &err);

    if (status != IDEM_OK)
        return http_fail(request, http_problem_of(status), "%s", err.text);
    request->route = http_route_find(method, &request->path, request->allow,
                                     sizeof(request->allow));
    if (request->route)
        request->allow[0] = 0;
    if (request->route && http_of_console(request->route->action) &&
        !request->http->sessions)
        request->route = NULL; /* there is no console */
    return true;
}

/* An unknown route is reported only to callers that passed the guard. */
static bool
check_route(struct http_request *request)
{
    if (request->route)
        return true;
    if (request->allow[0])
        return http_fail(request, IDEM_PROBLEM_METHOD,
                         "this resource takes: %s", request->allow);
    return http_fail(request, IDEM_PROBLEM_NOT_FOUND,
                     "/openapi.json lists all resources");
}

static bool
check_draining(struct http_request *request)
{
    return !request->http->draining || http_fail(request, IDEM_PROBLEM_CLOSED,
                                                 "the server is shutting down");
}

static void
take_body(struct http_request *request, const char *data, size_t len)
{
    struct http *http = request->http;

    if (request->failed) {
        request->discarded += len;
        return;
    }
    if (!results_room(&http->server->results, len)) {
        http_fail(request, IDEM_PROBLEM_OVERLOADED,
                  "too many bytes wait in the server's buffers");
    } else if (request->body.len + len > http->max_body) {
        http_fail(request, IDEM_PROBLEM_TOO_LARGE,
                  "the body has more than %zu bytes", request->http->max_body);
    } else if (!idem_buf_add(&request->body, data, len)) {
        http_fail(request, IDEM_PROBLEM_MEMORY, "out of memory");
    } else {
        http_count(request->http, 0, len);
    }
}

/* ---- running --------------------------------------------------------- */

/* What the request asks for. False: it needs no right. */
static bool
make_wish(const struct http_request *request, struct server_wish *wish)
{
    const struct http_call *call = &request->call;

    wish->what = ASKS_OP;
    wish->op = &call->op;
    wish->tokens = call->count;
    switch (request->route->action) {
    case HTTP_OP:
    case HTTP_ISSUE:
        break;
    case HTTP_ROUTES:
    case HTTP_SCAN:
    case HTTP_AUDIT:
        wish->what = ASKS_LIST;
        wish->list = request->route->name;
        wish->scope = call->filter.scope;
        break;
    case HTTP_ID:
        wish->what = ASKS_IDS;
        wish->scope = server_ids_scope(call->id_kind);
        break;
    case HTTP_METRICS:
    case HTTP_STATS:
    case HTTP_EVENTS:
    case HTTP_EXPLAIN:
    case HTTP_SCHEMES:
    case HTTP_PLAY:
        wish->what = ASKS_FIGURES;
        break;
    case HTTP_DOUBTS:
    case HTTP_PROPOSALS:
    case HTTP_CONSUMERS:
    case HTTP_WAITERS:
    case HTTP_SEGMENTS:
        wish->what = ASKS_SOME; /* lists only the caller's scopes */
        wish->list = request->route->name;
        break;
    case HTTP_ROLLBACK:
        wish->what = ASKS_ROLLBACK;
        wish->reason = call->op.subject;
        break;
    case HTTP_HEALTH:
    case HTTP_READY:
    case HTTP_OPENAPI:
    case HTTP_PROBLEM:
    case HTTP_SESSION:
    case HTTP_LOGIN:
    case HTTP_LOGOUT:
    case HTTP_PAGE:
        return false;
    }
    return true;
}

static bool
check_right(struct http_request *request)
{
    static const enum idem__problem problems[] = {
        [PERMIT_NEEDS_LOGIN] = IDEM_PROBLEM_UNAUTHORIZED,
        [PERMIT_NEEDS_RIGHT] = IDEM_PROBLEM_FORBIDDEN,
        [PERMIT_NEEDS_MORE] = IDEM_PROBLEM_INVALID,
        [PERMIT_OVER_QUOTA] = IDEM_PROBLEM_QUOTA,
        [PERMIT_NEEDS_SECOND] = IDEM_PROBLEM_FORBIDDEN,
        [PERMIT_NO_MEMORY] = IDEM_PROBLEM_MEMORY,
    };
    const struct http_call *call = &request->call;
    char first[AUDIT_WHO_MAX] = "";
    struct server_wish wish = {.first = first};
    struct audit_source source;
    struct idem_error err;
    enum server_permit permit;

    if (!make_wish(request, &wish))
        return true;
    if ((wish.what == ASKS_ROLLBACK ||
         (wish.what == ASKS_OP && server_op_operates(&call->op))) &&
        !http_session_confirm(request))
        return false;
    permit =
        server_permit(request->http->server, request->principal, &wish, &err);
    if (permit != PERMIT_GIVEN) {
        http_source(request, &source);
        if (permit != PERMIT_OVER_QUOTA)
            server_log_refusal(request->http->server, &wish, &source, "http",
                               err.text);
        return http_fail(request, problems[permit], "%s", err.text);
    }
    if (wish.what != ASKS_OP)
        return true;
    if (server_op_operates(&call->op) || http_reveals(request->route))
        http_source(request, &request->audit);
    memcpy(request->audit.first, first, strlen(first) + 1);
    return true;
}

static bool
read_call(struct http_request *request)
{
    const char *mark = strchr(request->target, '?');
    struct idem_error err = {0};
    enum idem_status status = http_call_read(
        &request->call, request->route, &request->path,
        idem_text(mark ? mark + 1 : ""),
        (struct idem_bytes){request->body.data, request->body.len}, &err);

    if (status == IDEM_OK)
        return true;
    return http_fail(request, http_problem_of(status), "%s", err.text);
}

static bool
check_login(struct http_request *request)
{
    if (request->route->action == HTTP_LOGIN)
        return http_session_login(request);
    if (request->route->action == HTTP_LOGOUT)
        http_session_end(request);
    return true;
}

static bool
is_gone(const struct http_request *request)
{
    struct pollfd fd = {request->client->fd, POLLRDHUP, 0};

    return poll(&fd, 1, 0) > 0 && fd.revents != 0;
}

/* The engine has answered, or did not have to be asked. */
static enum MHD_Result
answer(struct http_request *request)
{
    if (request->call.op.wait_ms > 0 && is_gone(request)) {
        http_release_undelivered(request);
        return MHD_NO;
    }
    return http_respond(request);
}

static enum MHD_Result
run(struct http_request *request)
{
    bool ready;

    set_stage(request, CLIENT_SERVED);
    ready = !request->failed && check_draining(request) && read_call(request) &&
            check_login(request) && check_right(request);
    if (request->failed && request->problem == IDEM_PROBLEM_UNAUTHORIZED) {
        http_suspend(request,
                     credentials_late_ms(request->http->server->credentials,
                                         idem__mono_ms(), HTTP_AUTH_DELAY_MS));
        return MHD_YES;
    }
    if (!ready || http_run(request))
        return answer(request);
    return MHD_YES;
}

static enum MHD_Result
look_at_head(struct http_request *request, const char *method,
             const char *version)
{
    const char *expect = MHD_lookup_connection_value(request->connection,
                                                     MHD_HEADER_KIND, "Expect");

    request->seen = true;
    if (find_route(request, method) && http_guard(request, version) &&
        check_route(request))
        return MHD_YES;
    if (expect || request->refuse_at_once)
        return http_respond(request);
    return MHD_YES; /* once the body has arrived */
}

enum MHD_Result
http_handle(void *arg, struct MHD_Connection *connection, const char *url,
            const char *method, const char *version, const char *upload,
            size_t *upload_len, void **context)
{
    struct http_request *request = *context;

    (void)arg;
    (void)connection;
    (void)url;
    if (!request)
        return MHD_NO;
    if (!request->seen)
        return look_at_head(request, method, version);
    if (*upload_len > 0) {
        take_body(request, upload, *upload_len);
        *upload_len = 0;
        return request->discarded > DISCARD_MAX ? MHD_NO : MHD_YES;
    }
    /* libmicrohttpd calls again after the resume; now the response is ready. */
    if (request->client->stage == CLIENT_SERVED)
        return answer(request);
    return run(request);
}
