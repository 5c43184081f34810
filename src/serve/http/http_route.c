/*
 * http_route.c - the table of routes, and splitting of paths.
 */
#include "http.h"

#include "../../base/hex.h"

#include <stdio.h>
#include <string.h>

const struct http_field_type http_fields[HTTP_FIELD_COUNT] = {
#define X(name, word, form, min, max, words, about)                            \
    {word, form, min, max, words, about},
    HTTP_FIELD_MAP(X)
#undef X
};

#define H(name) HTTP_HAS(name)
#define RECORD "/v1/records/{scope}/{id}"
#define RESULT_FIELDS (H(RESULT) | H(RESULT_BASE64) | H(KIND))
#define ISSUE_FIELDS (H(SUBJECT) | H(TTL) | H(TOKENS))
#define LOCK_FIELDS (H(OWNER) | H(LEASE) | H(WAIT))

/* clang-format off */
const struct http_route http_routes[] = {
    {"GET", "/v1/records", "scan", HTTP_SCAN, 0, 0,
     H(IN_SCOPE) | H(WITH_ID) | H(IN_STATE) | H(OF_TYPE) | H(DOUBT) | H(BEFORE) |
         H(CURSOR) | H(COUNT), 0, false, "records",
     "list records (the right to view or to operate); go on until the cursor "
     "is 0 again"},
    {"GET", RECORD, "get", HTTP_OP, IDEM_GET, 0, 0, 0, false,
     "record absent", "look at a record; changes nothing"},
    {"DELETE", RECORD, "forget", HTTP_OP, IDEM_FORGET, 0, H(WHY) | H(SEEN), 0, false,
     "ok absent stale", "forget a record (an operator's right)"},
    {"POST", RECORD "/forget", "forgetByPost", HTTP_OP, IDEM_FORGET, 0,
     H(WHY) | H(SEEN), 0, true, "ok absent stale", "the same as DELETE"},
    {"POST", RECORD "/begin", "begin", HTTP_OP, IDEM_BEGIN, 0,
     H(FINGERPRINT) | H(LEASE) | H(TTL) | H(WAIT) | H(MODE) | H(TOKEN) |
         H(NONCE) | H(LABEL), 0, true,
     "started replay busy doubt mismatch stale duplicate unknown",
     "claim a request, or get the outcome of the first one"},
    {"POST", RECORD "/finish", "finish", HTTP_OP, IDEM_FINISH, 0,
     H(FENCE) | H(OUTCOME) | RESULT_FIELDS | H(TTL) | H(REPLAYABLE),
     H(FENCE) | H(OUTCOME), true, "ok finished stale",
     "store the outcome; duplicates will get it"},
    {"POST", RECORD "/release", "release", HTTP_OP, IDEM_RELEASE, 0, H(FENCE),
     H(FENCE), true, "ok stale", "give up a claim whose work was not done"},
    {"POST", RECORD "/renew", "renew", HTTP_OP, IDEM_RENEW, 0,
     H(FENCE) | H(LEASE), H(FENCE), true, "ok stale",
     "extend the lease of a claim"},
    {"POST", RECORD "/settle", "settle", HTTP_OP, IDEM_SETTLE, 0,
     H(REASON) | H(OUTCOME) | RESULT_FIELDS | H(TTL) | H(SEEN), 0, true,
     "settled replay busy doubt stale",
     "make sure that the request will not run any more; with an outcome (the "
     "right to operate), decide a doubt"},
    {"POST", RECORD "/reveal", "reveal", HTTP_OP, IDEM_GET, 0, H(WHY), 0, true,
     "record absent",
     "the same as GET, written to the audit trail: the console asks this way "
     "for a result"},
    {"GET", "/v1/doubts", "doubts", HTTP_DOUBTS, 0, 0, H(COUNT), 0, false,
     "doubts",
     "records in doubt, the oldest first (the right to view or to operate)"},
    {"GET", "/v1/proposals", "proposals", HTTP_PROPOSALS, 0, 0, 0, 0, false,
     "proposals",
     "actions that wait for a second operator (the right to view or to "
     "operate)"},
    {"GET", "/v1/audit", "audit", HTTP_AUDIT, 0, 0,
     H(IN_SCOPE) | H(WITH_ID) | H(COUNT), 0, false, "entries",
     "the last actions of operators (the right to view or to operate)"},
    {"POST", "/v1/rollback/accept", "acceptRollback", HTTP_ROLLBACK, 0, 0,
     H(WHY), 0, true, "ok",
     "go on although the store went back to an older state (the right to "
     "operate, in all scopes)"},
    {"POST", "/v1/tokens", "issue", HTTP_ISSUE, IDEM_ISSUE, 0, ISSUE_FIELDS,
     H(SUBJECT), true, "issued", "issue tokens to a subject"},
    {"POST", "/v1/tickets", "issueTickets", HTTP_ISSUE, IDEM_ISSUE, 0,
     ISSUE_FIELDS, H(SUBJECT), true, "issued",
     "another name for /v1/tokens"},
    {"POST", "/v1/tokens/{token}/redeem", "redeem", HTTP_OP, IDEM_REDEEM, 0,
     H(SUBJECT) | H(NEXT) | H(NONCE), H(SUBJECT), true,
     "redeemed duplicate unknown", "use a token"},
    {"POST", "/v1/tickets/{token}/redeem", "redeemTicket", HTTP_OP,
     IDEM_REDEEM, 0, H(SUBJECT) | H(NEXT) | H(NONCE), H(SUBJECT), true,
     "redeemed duplicate unknown", "another name for /v1/tokens"},
    {"GET", "/v1/locks/{name}", "getLock", HTTP_OP, IDEM_GET, IDEM_TYPE_LOCK,
     0, 0, false, "record absent", "look at a lock"},
    {"PUT", "/v1/locks/{name}", "lock", HTTP_OP, IDEM_LOCK, 0, LOCK_FIELDS,
     H(OWNER), true, "started busy", "take a lock, or extend it as its owner"},
    {"POST", "/v1/locks/{name}", "lockByPost", HTTP_OP, IDEM_LOCK, 0,
     LOCK_FIELDS, H(OWNER), true, "started busy", "the same as PUT"},
    {"DELETE", "/v1/locks/{name}", "unlock", HTTP_OP, IDEM_UNLOCK, 0,
     H(FENCE) | H(WHY), H(FENCE), false, "ok stale",
     "release a lock; with a reason (the right to operate), the lock of "
     "another owner"},
    {"GET", "/v1/ids/{kind}", "ids", HTTP_ID, 0, 0, H(IDS), 0, false, "ids",
     "new ids of a kind: snowflake, uuid7 and others"},
    {"GET", "/v1/ids/{kind}/{id}", "explain", HTTP_EXPLAIN, 0, 0, 0, 0, false,
     "explained", "the parts of an id"},
    {"GET", "/metrics", "metrics", HTTP_METRICS, 0, 0, 0, 0, false,
     "text/plain", "figures for Prometheus"},
    {"GET", "/healthz", "health", HTTP_HEALTH, 0, 0, 0, 0, false,
     "application/json", "the process responds"},
    {"GET", "/readyz", "ready", HTTP_READY, 0, 0, 0, 0, false,
     "application/json", "the store responds, too"},
    {"GET", "/openapi.json", "openapi", HTTP_OPENAPI, 0, 0, 0, 0, false,
     "application/json", "this description"},
    {"GET", "/problems/{problem}", "problem", HTTP_PROBLEM, 0, 0, 0, 0, false,
     "text/html",
     "the page that the type of a problem leads to, in English or Chinese"},
    {"GET", "/v1/stats", "stats", HTTP_STATS, 0, 0, H(SECONDS), 0, false,
     "stats", "figures of the last hour, a row a second"},
    {"GET", "/v1/events", "events", HTTP_EVENTS, 0, 0, 0, 0, false,
     "text/event-stream", "the next rows of /v1/stats as they come"},
    {"GET", "/v1/routes", "routes", HTTP_ROUTES, 0, 0, 0, 0, false, "routes",
     "the policy of the gateway's routes, and its counters (the right to view "
     "or to operate)"},
    {"GET", "/v1/consumers", "consumers", HTTP_CONSUMERS, 0, 0, 0, 0, false,
     "consumers",
     "the last reports of the message consumers on this machine (the right to "
     "view or to operate)"},
    {"GET", "/v1/waiters", "waiters", HTTP_WAITERS, 0, 0, H(COUNT), 0, false,
     "waiters",
     "the callers that wait for a lock at this server (the right to view or "
     "to operate)"},
    {"GET", "/v1/segments", "segments", HTTP_SEGMENTS, 0, 0, 0, 0, false,
     "segments",
     "the segments of ids that this server has in memory (the right to view or "
     "to operate)"},
    {"GET", "/v1/session", "session", HTTP_SESSION, 0, 0, 0, 0, false,
     "session", "the user that is logged in, and its rights"},
    {"POST", "/v1/session", "login", HTTP_LOGIN, 0, 0, H(NAME) | H(SECRET),
     H(NAME) | H(SECRET), true, "session",
     "turn a credential into a session: a cookie"},
    {"DELETE", "/v1/session", "logout", HTTP_LOGOUT, 0, 0, 0, 0, false,
     "session", "end the session"},
    {"GET", "/v1/play", "schemes", HTTP_SCHEMES, 0, 0, 0, 0, false, "schemes",
     "the schemes of the playground and their actions"},
    {"POST", "/v1/play/{scheme}/{action}", "play", HTTP_PLAY, 0, 0,
     H(PROTECTED), H(PROTECTED), true, "played",
     "run a scheme in a sandbox of its own, and report the events"},
    {"GET", "/console", "console", HTTP_PAGE, 0, 0, 0, 0, false, "text/html",
     "the console"},
    {"GET", "/console/{file}", "consoleFile", HTTP_PAGE, 0, 0, 0, 0, false,
     "text/html", "a file of the console"},
};
/* clang-format on */

const size_t http_route_count = sizeof(http_routes) / sizeof(http_routes[0]);

enum idem_status
http_decode(struct idem_bytes raw, bool query, struct idem_arena *memory,
            struct idem_bytes *out, struct idem_error *err)
{
    uint8_t *to = idem_arena_take(memory, raw.len + 1);
    ptrdiff_t len;

    if (!to)
        return idem__fail(err, IDEM_ERR_MEMORY, "out of memory");
    len = idem__percent_read(raw.data, raw.len, query, to);
    if (len < 0)
        return idem__fail(err, IDEM_ERR_INVALID,
                          "the %s has a %% that two hex digits do not follow",
                          query ? "query" : "path");
    to[len] = 0;
    *out = (struct idem_bytes){to, (size_t)len};
    return IDEM_OK;
}

enum idem_status
http_path_read(struct idem_bytes raw, struct idem_arena *memory,
               struct http_path *path, struct idem_error *err)
{
    const char *at = raw.data, *end = at + raw.len;

    path->count = 0;
    if (raw.len == 0 || *at != '/')
        return idem__fail(err, IDEM_ERR_INVALID,
                          "the path does not begin with /");
    while (at < end) {
        const char *from = at + 1;
        const char *slash = memchr(from, '/', (size_t)(end - from));
        struct idem_bytes part = {from, (size_t)((slash ? slash : end) - from)};
        enum idem_status status;

        if (path->count == HTTP_PARTS_MAX)
            return idem__fail(err, IDEM_ERR_INVALID,
                              "the path has more than %d parts",
                              HTTP_PARTS_MAX);
        if (part.len == 0 && raw.len > 1)
            return idem__fail(err, IDEM_ERR_INVALID,
                              "the path has an empty part: a scope and an id "
                              "have at least one byte");
        status = http_decode(part, false, memory, &part, err);
        if (status != IDEM_OK)
            return status;
        if (memchr(part.data, 0, part.len))
            return idem__fail(err, IDEM_ERR_INVALID,
                              "the path has a NUL byte: any other byte is "
                              "fine");
        path->parts[path->count++] = part;
        at = slash ? slash : end;
    }
    return IDEM_OK;
}

/* Does a path match a pattern? */
static bool
matches(const char *pattern, const struct http_path *path)
{
    for (size_t i = 0; i < path->count; i++) {
        struct idem_bytes part = path->parts[i];
        size_t len;

        if (*pattern++ != '/')
            return false;
        len = strcspn(pattern, "/");
        if (*pattern != '{' &&
            !idem__bytes_equal(part, (struct idem_bytes){pattern, len}))
            return false;
        pattern += len;
    }
    return *pattern == 0;
}

/* HEAD is handled like GET; libmicrohttpd leaves the body out. */
static bool
same_method(const char *method, const char *wanted)
{
    return strcmp(method, wanted) == 0 ||
           (strcmp(method, "HEAD") == 0 && strcmp(wanted, "GET") == 0);
}

const struct http_route *
http_route_find(const char *method, const struct http_path *path, char *allow,
                size_t allow_len)
{
    size_t len = 0;

    allow[0] = 0;
    for (size_t i = 0; i < http_route_count; i++) {
        const struct http_route *route = &http_routes[i];

        if (!matches(route->path, path))
            continue;
        if (same_method(method, route->method))
            return route;
        if (len < allow_len)
            len += (size_t)snprintf(allow + len, allow_len - len, "%s%s%s",
                                    len > 0 ? ", " : "", route->method,
                                    strcmp(route->method, "GET") == 0 ? ", HEAD"
                                                                      : "");
    }
    return NULL;
}
