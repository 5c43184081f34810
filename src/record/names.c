/*
 * names.c - the names of states, verbs, verdicts and so on as text.
 */
#include "record.h"

#include <string.h>
#include <strings.h>

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static const char *const status_names[] = {
    [IDEM_OK] = "ok",
    [IDEM_ERR_INVALID] = "invalid",
    [IDEM_ERR_UNAVAILABLE] = "unavailable",
    [IDEM_ERR_LOST] = "lost",
    [IDEM_ERR_OVERLOADED] = "overloaded",
    [IDEM_ERR_FULL] = "full",
    [IDEM_ERR_CLOSED] = "closed",
    [IDEM_ERR_CORRUPT] = "corrupt",
    [IDEM_ERR_UNSUPPORTED] = "unsupported",
    [IDEM_ERR_MEMORY] = "memory",
    [IDEM_ERR_TIMEOUT] = "timeout",
    [IDEM_ERR_INTERNAL] = "internal",
};

static const char *const status_texts[] = {
    [IDEM_OK] = "success",
    [IDEM_ERR_INVALID] = "the operation or an option is wrong",
    [IDEM_ERR_UNAVAILABLE] = "the store is unreachable; nothing was stored",
    [IDEM_ERR_LOST] =
        ("the store's reply was lost; the change may or may not have been "
         "stored"),
    [IDEM_ERR_OVERLOADED] = "a limit is reached; nothing was stored",
    [IDEM_ERR_FULL] = "the store is full; nothing was stored",
    [IDEM_ERR_CLOSED] = "shutting down; nothing was stored",
    [IDEM_ERR_CORRUPT] = "stored data is damaged",
    [IDEM_ERR_UNSUPPORTED] = "not supported here",
    [IDEM_ERR_MEMORY] = "out of memory; nothing was stored",
    [IDEM_ERR_TIMEOUT] = "it took too long",
    [IDEM_ERR_INTERNAL] = "an internal error",
};

static const char *const verdict_names[] = {
    [IDEM_V_STARTED] = "started",   [IDEM_V_REPLAY] = "replay",
    [IDEM_V_BUSY] = "busy",         [IDEM_V_DOUBT] = "doubt",
    [IDEM_V_MISMATCH] = "mismatch", [IDEM_V_OK] = "ok",
    [IDEM_V_FINISHED] = "finished", [IDEM_V_STALE] = "stale",
    [IDEM_V_SETTLED] = "settled",   [IDEM_V_RECORD] = "record",
    [IDEM_V_ABSENT] = "absent",     [IDEM_V_ISSUED] = "issued",
    [IDEM_V_REDEEMED] = "redeemed", [IDEM_V_DUPLICATE] = "duplicate",
    [IDEM_V_UNKNOWN] = "unknown",
};

static const char *const verb_names[] = {
    [IDEM_BEGIN] = "begin",     [IDEM_FINISH] = "finish",
    [IDEM_RELEASE] = "release", [IDEM_RENEW] = "renew",
    [IDEM_SETTLE] = "settle",   [IDEM_GET] = "get",
    [IDEM_FORGET] = "forget",   [IDEM_ISSUE] = "issue",
    [IDEM_REDEEM] = "redeem",   [IDEM_LOCK] = "lock",
    [IDEM_UNLOCK] = "unlock",
};

static const char *const type_names[] = {
    [IDEM_TYPE_REQUEST] = "request",
    [IDEM_TYPE_TOKEN] = "token",
    [IDEM_TYPE_LOCK] = "lock",
    [IDEM_TYPE_WORKER] = "worker",
};

static const char *const state_names[] = {
    [IDEM_STATE_ABSENT] = "absent",       [IDEM_STATE_ISSUED] = "issued",
    [IDEM_STATE_EXECUTING] = "executing", [IDEM_STATE_SUCCEEDED] = "succeeded",
    [IDEM_STATE_FAILED] = "failed",       [IDEM_STATE_FREE] = "free",
};

static const char *const kind_names[] = {
    [IDEM_KIND_RAW] = "raw",
    [IDEM_KIND_HTTP] = "http",
    [IDEM_KIND_EXEC] = "exec",
};

static const char *const mode_names[] = {"strict", "loose"};

_Static_assert(COUNT(status_names) == IDEM__STATUS_COUNT, "a status");
_Static_assert(COUNT(verdict_names) == IDEM__VERDICT_COUNT, "a verdict");
_Static_assert(COUNT(verb_names) == IDEM__VERB_COUNT, "a verb");

static const char *
name_of(const char *const *names, size_t count, size_t number)
{
    return number < count && names[number] ? names[number] : "?";
}

static bool
number_of(const char *const *names, size_t count, struct idem_bytes word,
          size_t *number)
{
    for (size_t i = 0; i < count; i++) {
        if (names[i] && idem__bytes_is(word, names[i])) {
            *number = i;
            return true;
        }
    }
    return false;
}

#define NAMED(thing, table)                                                    \
    const char *idem_##thing##_name(enum idem_##thing thing)                   \
    {                                                                          \
        return name_of(table, COUNT(table), (size_t)thing);                    \
    }

NAMED(status, status_names)
NAMED(verdict, verdict_names)
NAMED(verb, verb_names)
NAMED(type, type_names)
NAMED(state, state_names)
NAMED(kind, kind_names)
NAMED(mode, mode_names)

const char *
idem_status_text(enum idem_status status)
{
    return name_of(status_texts, COUNT(status_texts), (size_t)status);
}

#define PARSED(thing, table)                                                   \
    bool idem__##thing##_parse(struct idem_bytes word,                         \
                               enum idem_##thing *thing)                       \
    {                                                                          \
        size_t number;                                                         \
                                                                               \
        if (!number_of(table, COUNT(table), word, &number))                    \
            return false;                                                      \
        *thing = (enum idem_##thing)number;                                    \
        return true;                                                           \
    }

PARSED(status, status_names)
PARSED(verdict, verdict_names)
PARSED(verb, verb_names)
PARSED(type, type_names)
PARSED(state, state_names)
PARSED(kind, kind_names)
PARSED(mode, mode_names)

struct idem_bytes
idem_text(const char *text)
{
    return (struct idem_bytes){text, text ? strlen(text) : 0};
}
