/*
 * http.h - types and functions of the server's HTTP part.
 *
 *   bytes ─▶ http.c (libmicrohttpd) ─▶ http_route.c: which resource
 *                                      http_guard.c: who, from where
 *                                      http_call.c:  path, query, body ─▶ op
 *            engine ─▶ http_answer.c: verdict ─▶ JSON
 *                      http_problem.c: error ─▶ problem+json
 *
 *   --console: http_console.c (files, headers), http_session.c (logins),
 *              http_stats.c (an hour of figures), http_events.c (live
 *              figures), and ../play (the playground)
 *
 * One table of routes and one of fields (http_route.c) drive the routing, the
 * parsing of bodies and /openapi.json, so that they cannot drift apart.
 */
#ifndef IDEM__HTTP_H
#define IDEM__HTTP_H

#include "../../base/buf.h"
#include "../../base/json_memory.h"
#include "../../base/problem.h"
#include "../../record/record.h"

#include <jansson.h>

/* ---- fields: what a body or a query may hold ------------------------- */

enum http_form {
    HTTP_TEXT,    /* a string of min to max bytes */
    HTTP_BASE64,  /* a string, base64 of min to max bytes */
    HTTP_INTEGER, /* a whole number from min to max */
    HTTP_HEX,     /* a string, exactly max bytes in hex */
    HTTP_FLAG,    /* true or false */
    HTTP_WORD,    /* one of `words` */
};

/* clang-format off */
#define HTTP_FIELD_MAP(X)                                                      \
    X(FENCE, "fence", HTTP_INTEGER, 1, (int64_t)IDEM_FENCE_MAX, NULL,          \
      "the fence that `started` gave")                                         \
    X(SEEN, "fence", HTTP_INTEGER, 1, (int64_t)IDEM_FENCE_MAX, NULL,           \
      "only the execution with this fence (default: whichever is there)")      \
    X(OUTCOME, "outcome", HTTP_WORD, 0, 0, "succeeded failed",                 \
      "how the work went")                                                     \
    X(RESULT, "result", HTTP_TEXT, 0, IDEM_RESULT_MAX, NULL,                   \
      "the result as text; use this or result_base64")                         \
    X(RESULT_BASE64, "result_base64", HTTP_BASE64, 0, IDEM_RESULT_MAX, NULL,   \
      "the result as base64; any bytes")                                       \
    X(KIND, "kind", HTTP_WORD, 0, 0, "raw http exec",                          \
      "how to read the result")                                                \
    X(REPLAYABLE, "replayable", HTTP_FLAG, 0, 0, NULL,                         \
      "false: done, but its result is not kept (default true)")                \
    X(LEASE, "lease_ms", HTTP_INTEGER, 1, IDEM_LEASE_MAX_MS, NULL,             \
      "how long the claim holds without a renew (default 30000)")              \
    X(TTL, "ttl_ms", HTTP_INTEGER, 1, IDEM_TTL_MAX_MS, NULL,                   \
      "how long it is remembered")                                             \
    X(WAIT, "wait_ms", HTTP_INTEGER, 0, IDEM_WAIT_MAX_MS, NULL,                \
      "wait this long while another caller is working on it (default 0)")      \
    X(MODE, "mode", HTTP_WORD, 0, 0, "strict loose",                           \
      "strict: at most one execution; loose: a failure may be tried again")    \
    X(TOKEN, "token", HTTP_FLAG, 0, 0, NULL,                                   \
      "the id is a token that was issued to the scope")                        \
    X(NONCE, "nonce", HTTP_HEX, 0, IDEM_NONCE_LEN, NULL,                       \
      "chosen by the caller, the same when the same request is sent again")    \
    X(FINGERPRINT, "fingerprint", HTTP_HEX, 0, IDEM_FINGERPRINT_LEN, NULL,     \
      "a digest of what is asked; another one is a mismatch")                  \
    X(LABEL, "subject", HTTP_TEXT, 1, IDEM_SUBJECT_MAX, NULL,                  \
      "a label of the caller")                                                 \
    X(SUBJECT, "subject", HTTP_TEXT, 1, IDEM_SCOPE_MAX, NULL,                  \
      "to whom the token belongs")                                             \
    X(REASON, "reason", HTTP_TEXT, 1, IDEM_SUBJECT_MAX, NULL,                  \
      "why it is settled: the tombstone's result or, with an "                 \
      "outcome, the record's subject")                       \
    X(WHY, "reason", HTTP_TEXT, 1, IDEM_SUBJECT_MAX, NULL,                     \
      "why an operator does this, for the audit trail")                        \
    X(OWNER, "owner", HTTP_TEXT, 1, IDEM_SUBJECT_MAX, NULL,                    \
      "who holds the lock")                                                    \
    X(NEXT, "next", HTTP_FLAG, 0, 0, NULL,                                     \
      "also return a fresh token")                                             \
    X(TOKENS, "count", HTTP_INTEGER, 1, 1000, NULL, "how many tokens")         \
    X(IDS, "count", HTTP_INTEGER, 1, 1000, NULL, "how many ids")               \
    X(COUNT, "count", HTTP_INTEGER, 1, 1000, NULL,                             \
      "about how many records (default 100)")                                  \
    X(CURSOR, "cursor", HTTP_TEXT, 1, 120, NULL,                               \
      "where to continue: 0, or the cursor of the last response")              \
    X(IN_SCOPE, "scope", HTTP_TEXT, 1, IDEM_SCOPE_MAX, NULL,                   \
      "only this scope")                                                       \
    X(WITH_ID, "id", HTTP_TEXT, 1, IDEM_ID_MAX, NULL,                          \
      "only this id")                                                          \
    X(IN_STATE, "state", HTTP_WORD, 0, 0,                                      \
      "issued executing succeeded failed free", "only this state")             \
    X(OF_TYPE, "type", HTTP_WORD, 0, 0, "request token lock worker",           \
      "only this type")                                                        \
    X(DOUBT, "doubt", HTTP_FLAG, 0, 0, NULL,                                   \
      "only what is in doubt")                                                 \
    X(BEFORE, "updated_before", HTTP_INTEGER, 1, INT64_MAX, NULL,              \
      "only what did not change since, in ms since 1970")                      \
    X(NAME, "name", HTTP_TEXT, 1, 64, NULL, "the name of a credential")        \
    X(SECRET, "secret", HTTP_TEXT, 1, 1024, NULL, "its secret")                \
    X(PROTECTED, "protected", HTTP_FLAG, 0, 0, NULL,                           \
      "true: as idem does it; false: as it often goes wrong")                  \
    X(SECONDS, "seconds", HTTP_INTEGER, 1, 3600, NULL,                         \
      "how much of the past (default 3600)")
/* clang-format on */

enum http_field {
#define X(name, word, form, min, max, words, about) HTTP_##name##_FIELD,
    HTTP_FIELD_MAP(X)
#undef X
        HTTP_FIELD_COUNT
};

#define HTTP_HAS(name) (UINT64_C(1) << HTTP_##name##_FIELD)

struct http_field_type {
    const char *name;
    enum http_form form;
    int64_t min, max;
    const char *words;
    const char *about;
};

extern const struct http_field_type http_fields[HTTP_FIELD_COUNT];

/* ---- routes ---------------------------------------------------------- */

enum http_action {
    HTTP_OP,    /* one op of the engine, route->verb */
    HTTP_ISSUE, /* as many tokens as the request asks for */
    HTTP_SCAN,
    HTTP_AUDIT,
    HTTP_ID,
    HTTP_EXPLAIN, /* the parts of an id */
    HTTP_DOUBTS,  /* the oldest ones */
    HTTP_PROPOSALS,
    HTTP_ROLLBACK, /* accept that the store was rolled back */
    HTTP_METRICS,
    HTTP_HEALTH,
    HTTP_READY,
    HTTP_OPENAPI,
    HTTP_PROBLEM, /* the page about a problem */
    /* Only with --console. */
    HTTP_STATS,
    HTTP_EVENTS,
    HTTP_ROUTES, /* of a gateway */
    HTTP_CONSUMERS,
    HTTP_WAITERS,  /* for locks */
    HTTP_SEGMENTS, /* of ids */
    HTTP_SESSION,
    HTTP_LOGIN,
    HTTP_LOGOUT,
    HTTP_SCHEMES, /* of the playground */
    HTTP_PLAY,    /* one of them */
    HTTP_PAGE,    /* a file of the console */
};

/* These need no credentials, because they show nothing about records. */
static inline bool
http_is_open(enum http_action action)
{
    return action == HTTP_HEALTH || action == HTTP_READY ||
           action == HTTP_OPENAPI || action == HTTP_PROBLEM ||
           action == HTTP_PAGE || action == HTTP_SESSION ||
           action == HTTP_LOGIN || action == HTTP_LOGOUT;
}

/* Lists need a right of their own, and refusals are logged. */
static inline bool
http_lists(enum http_action action)
{
    return action == HTTP_SCAN || action == HTTP_AUDIT ||
           action == HTTP_DOUBTS || action == HTTP_PROPOSALS ||
           (action >= HTTP_ROUTES && action <= HTTP_SEGMENTS);
}

static inline bool
http_of_console(enum http_action action)
{
    return action >= HTTP_STATS;
}

struct http_route {
    const char *method;
    const char *path; /* a segment in braces is a parameter */
    const char *name; /* operationId */
    enum http_action action;
    enum idem_verb verb;
    enum idem_type type;   /* 0: the verb implies it */
    uint64_t takes, needs; /* fields, in the body or in the query */
    bool body;             /* fields come in a JSON body, else the query */
    const char *answers;   /* verdicts, or a media type */
    const char *about;
};

/* A GET that shows a result which the console masks by default; it is
 * audited. */
static inline bool
http_reveals(const struct http_route *route)
{
    return route->action == HTTP_OP && route->verb == IDEM_GET && route->body;
}

extern const struct http_route http_routes[];
extern const size_t http_route_count;

#define HTTP_PARTS_MAX 8

/* A path, split and percent-decoded. Views into `memory`. */
struct http_path {
    struct idem_bytes parts[HTTP_PARTS_MAX];
    size_t count;
};

/*
 * Split a raw path. Every byte but NUL may be percent-encoded; an encoded slash
 * does not end a part. IDEM_ERR_INVALID: a bad escape, a NUL, an empty part or
 * too many parts.
 */
enum idem_status http_path_read(struct idem_bytes raw,
                                struct idem_arena *memory,
                                struct http_path *path, struct idem_error *err);

/* Percent-decode (and, in a query, read + as a space). IDEM_ERR_INVALID: bad
 * escape. */
enum idem_status http_decode(struct idem_bytes raw, bool query,
                             struct idem_arena *memory, struct idem_bytes *out,
                             struct idem_error *err);

/* The route of a method and path. NULL: there is none; then `allow` has the
 * methods of that path, or is empty if there is no such path. */
const struct http_route *http_route_find(const char *method,
                                         const struct http_path *path,
                                         char *allow, size_t allow_len);

/* ---- a call: a parsed request ---------------------------------------- */

struct http_call {
    const struct http_route *route;
    struct idem_op op;
    bool next;    /* REDEEM: issue a new token afterwards */
    bool protect; /* the playground */
    size_t count;
    struct idem_filter filter;
    struct idem_cursor cursor;
    struct idem_bytes id_kind;
    struct idem_bytes name, secret; /* of a login */
    struct idem_bytes file;         /* of the console; a problem's name */
    uint8_t nonce[IDEM_NONCE_LEN];
    uint8_t fingerprint[IDEM_FINGERPRINT_LEN];
    uint64_t given; /* fields that were present */
    struct idem_arena memory;
    json_t *body;
};

/*
 * Parse a request into a call: path parameters, query (raw, after the ?) and
 * body. An unknown field, a wrong type or a number out of range is
 * IDEM_ERR_INVALID, and err names the field. Clear the call in any case.
 */
enum idem_status http_call_read(struct http_call *call,
                                const struct http_route *route,
                                const struct http_path *path,
                                struct idem_bytes query, struct idem_bytes body,
                                struct idem_error *err);
void http_call_clear(struct http_call *call);

/* ---- answers --------------------------------------------------------- */

/* Each returns a new reference; NULL: out of memory. */
json_t *http_answer(const struct idem_answer *answer, enum idem_verb verb);
json_t *http_text(struct idem_bytes text); /* invalid UTF-8 becomes ? */

struct server;
/* The parts of an id; NULL: err says why not. */
json_t *http_explain(const struct server *server, struct idem_bytes kind,
                     struct idem_bytes id, struct idem_error *err);

/* ---- problems -------------------------------------------------------- */

/* IDEM_PROBLEM_INTERNAL if the status has no problem of its own. */
enum idem__problem http_problem_of(enum idem_status status);

/* The body of a problem, whose type begins with `base`; NULL: out of memory. */
json_t *http_problem(const char *base, enum idem__problem problem,
                     const char *detail, bool retryable);

/* The description of all routes, with or without the console's; problem types
 * begin with `base`. NULL: out of memory. */
json_t *http_openapi(const char *base, bool console);

#endif
