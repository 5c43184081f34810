/*
 * problem.h - one table of all problems that idem sends over HTTP: the name of
 * the type, the status, the class, and whether a retry makes sense. The server
 * and the gateway both use this table. docs/problems.md describes each row, and
 * tests/system/test_problems.py compares the two.
 *
 * The class says what happened to the request (see docs/problems.md). A request
 * that was settled as failed has its own class, so that a client that treats
 * every "done" as a success does not book it as paid.
 */
#ifndef IDEM__PROBLEM_H
#define IDEM__PROBLEM_H

/* The beginning of a type: the path where the server, or the gateway, serves a
 * page about it. The gateway's path must not be a path of the service behind
 * it. */
#define IDEM_PROBLEM_BASE "/problems/"
#define IDEM_GATEWAY_PROBLEM_BASE "/.idem/problems/"

#define IDEM_CLASS_MAP(X)                                                      \
    X(NOT_EXECUTED, "not executed")                                            \
    X(IN_PROGRESS, "in progress")                                              \
    X(UNKNOWN, "outcome unknown")                                              \
    X(DONE, "done")                                                            \
    X(FAILED, "failed for good")

/* The server's problems. A problem caused by a store has the name of its status
 * (idem_status_name). */
#define IDEM_SERVER_PROBLEM_MAP(X)                                             \
    X(INVALID, "invalid", 400, NOT_EXECUTED, 0, "The request is wrong")        \
    X(UNAUTHORIZED, "unauthorized", 401, NOT_EXECUTED, 0,                      \
      "Credentials are needed")                                                \
    X(FORBIDDEN, "forbidden", 403, NOT_EXECUTED, 0,                            \
      "These credentials may not do this")                                     \
    X(ORIGIN, "foreign-origin", 403, NOT_EXECUTED, 0,                          \
      "A page of another site sent this")                                      \
    X(HOST, "wrong-host", 421, NOT_EXECUTED, 0,                                \
      "The Host header names another server")                                  \
    X(NOT_FOUND, "not-found", 404, NOT_EXECUTED, 0,                            \
      "There is no such resource")                                             \
    X(METHOD, "method-not-allowed", 405, NOT_EXECUTED, 0,                      \
      "The resource does not take this method")                                \
    X(TOO_LARGE, "too-large", 413, NOT_EXECUTED, 0,                            \
      "The body is over the limit")                                            \
    X(MEDIA_TYPE, "unsupported-media-type", 415, NOT_EXECUTED, 0,              \
      "A body must be application/json")                                       \
    X(UNAVAILABLE, "unavailable", 503, NOT_EXECUTED, 1,                        \
      "The store does not respond")                                            \
    X(LOST, "lost", 504, UNKNOWN, 0, "The store's reply was lost")             \
    X(OVERLOADED, "overloaded", 503, NOT_EXECUTED, 1,                          \
      "A limit of the server is reached")                                      \
    X(QUOTA, "over-quota", 429, NOT_EXECUTED, 1,                               \
      "A quota of this scope is used up for now")                              \
    X(FULL, "full", 507, NOT_EXECUTED, 0, "The store is full")                 \
    X(CLOSED, "closed", 503, NOT_EXECUTED, 1, "The server is shutting down")   \
    X(CORRUPT, "corrupt", 500, UNKNOWN, 0, "Stored data is damaged")           \
    X(UNSUPPORTED, "unsupported", 501, NOT_EXECUTED, 0, "Not supported here")  \
    X(MEMORY, "memory", 503, NOT_EXECUTED, 1, "Out of memory")                 \
    X(TIMEOUT, "timeout", 504, NOT_EXECUTED, 1, "It took too long")            \
    X(INTERNAL, "internal", 500, UNKNOWN, 0, "A defect in idem")

/* The problems that the gateway answers instead of the service. */
#define IDEM_GATEWAY_PROBLEM_MAP(X)                                            \
    X(KEY_MISSING, "key-missing", 400, NOT_EXECUTED, 0,                        \
      "An idempotency key is needed")                                          \
    X(KEY_MALFORMED, "key-malformed", 400, NOT_EXECUTED, 0,                    \
      "The idempotency key is malformed")                                      \
    X(KEY_UNUSED, "key-unused", 404, NOT_EXECUTED, 1,                          \
      "No request with this key is known")                                     \
    X(TOO_MANY_QUESTIONS, "too-many-questions", 429, NOT_EXECUTED, 1,          \
      "Too many questions")                                                    \
    X(IN_PROGRESS, "in-progress", 409, IN_PROGRESS, 1,                         \
      "The first request with this key is still running")                      \
    X(MISMATCH, "mismatch", 422, NOT_EXECUTED, 0,                              \
      "This key was used for a different request")                             \
    X(FIRST_SENT_EXPIRED, "first-sent-expired", 412, NOT_EXECUTED, 0,          \
      "The request was first sent too long ago")                               \
    X(NOT_REPEATABLE, "not-repeatable", 501, NOT_EXECUTED, 0,                  \
      "Requests of this method are not repeatable here")                       \
    X(SAME_CONTENT, "same-content", 409, NOT_EXECUTED, 0,                      \
      "The same content was sent a moment ago with another key")               \
    X(OUTCOME_UNKNOWN, "outcome-unknown", 409, UNKNOWN, 0,                     \
      "It is not known whether this request was done")                         \
    X(DUPLICATE, "duplicate", 409, DONE, 0, "This was done before")            \
    X(SETTLED, "settled", 409, FAILED, 0,                                      \
      "This request was settled as failed")                                    \
    X(FAILED, "failed", 409, FAILED, 0,                                        \
      "This request failed before and will not be run again")                  \
    X(TOKEN_UNKNOWN, "token-unknown", 403, NOT_EXECUTED, 0,                    \
      "There is no such token")                                                \
    X(TOO_MANY_TOKENS, "too-many-tokens", 429, NOT_EXECUTED, 1,                \
      "Too many tokens")                                                       \
    X(NOT_REPLAYABLE, "not-replayable", 410, DONE, 0,                          \
      "It was done, but its response was not kept")                            \
    X(NOT_EXECUTED, "not-executed", 503, NOT_EXECUTED, 1,                      \
      "This attempt was not executed")                                         \
    X(BODY_TOO_LARGE, "body-too-large", 413, NOT_EXECUTED, 0,                  \
      "The request's body is too large")                                       \
    X(UNREACHABLE, "service-unreachable", 502, NOT_EXECUTED, 1,                \
      "The service could not be reached")                                      \
    X(CALLER_UNKNOWN, "caller-unknown", 403, NOT_EXECUTED, 0,                  \
      "This route requires the caller's identity")                             \
    X(SCOPE_REFUSED, "scope-refused", 403, NOT_EXECUTED, 0,                    \
      "The caller's name cannot be used")                                      \
    X(SCOPE_MISSING, "scope-missing", 400, NOT_EXECUTED, 0,                    \
      "The request does not say who sends it")

enum idem__class {
#define X(name, text) IDEM_CLASS_##name,
    IDEM_CLASS_MAP(X)
#undef X
        IDEM_CLASS_COUNT
};

/* The server's problems come first, so that they can be counted separately. */
enum idem__problem {
#define X(name, word, status, class, retryable, title) IDEM_PROBLEM_##name,
    IDEM_SERVER_PROBLEM_MAP(X) IDEM_PROBLEM_SERVER_COUNT,
    IDEM_PROBLEM_BEFORE_GATEWAY = IDEM_PROBLEM_SERVER_COUNT - 1,
    IDEM_GATEWAY_PROBLEM_MAP(X)
#undef X
        IDEM_PROBLEM_COUNT
};

struct idem__problem_type {
    const char *name; /* the last part of its type */
    unsigned status;
    enum idem__class class;
    int retryable;
    const char *title;
};

static inline const struct idem__problem_type *
idem__problem_type(enum idem__problem problem)
{
    static const struct idem__problem_type types[IDEM_PROBLEM_COUNT] = {
#define X(name, word, status, class, retryable, title)                         \
    {word, status, IDEM_CLASS_##class, retryable, title},
        IDEM_SERVER_PROBLEM_MAP(X) IDEM_GATEWAY_PROBLEM_MAP(X)
#undef X
    };

    return &types[problem];
}

static inline const char *idem__class_name(enum idem__class class)
{
    static const char *const names[IDEM_CLASS_COUNT] = {
#define X(name, text) text,
        IDEM_CLASS_MAP(X)
#undef X
    };

    return names[class];
}

#endif
