/*
 * record.h - what idem remembers of one request, token or lock.
 *
 *   absent --BEGIN--> executing --FINISH--> succeeded or failed
 *     ^                   |                          |
 *     +-- free <-RELEASE--+--------- expires --------+
 *
 * A record is found by its type, scope and id. A lease guards executing. When
 * it is over, a loose record may be started again; a strict one is in doubt
 * until its own FINISH or a SETTLE arrives, for nobody knows whether the work
 * was done. Executing never expires; everything else does.
 *
 * Ownership: what you pass in stays yours; bytes you receive are valid as long
 * as the struct that brought them says.
 */
#ifndef IDEM_RECORD_H
#define IDEM_RECORD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define IDEM_API __attribute__((visibility("default")))
#else
#define IDEM_API
#endif

/* Limits and defaults; all times are milliseconds. */
#define IDEM_SCOPE_MAX 200
#define IDEM_ID_MAX 255
#define IDEM_SUBJECT_MAX 255
#define IDEM_NONCE_LEN 8
#define IDEM_FINGERPRINT_LEN 32
#define IDEM_KEY_LEN 32
#define IDEM_FENCE_MAX ((UINT64_C(1) << 53) - 1)
#define IDEM_TIME_MAX_MS ((INT64_C(1) << 53) - 1) /* of a record's times */
#define IDEM_RESULT_DEFAULT_MAX (1024 * 1024)
#define IDEM_RESULT_MAX (64 * 1024 * 1024)
#define IDEM_LEASE_DEFAULT_MS INT64_C(30000)
#define IDEM_LEASE_MAX_MS (INT64_C(7) * 24 * 3600 * 1000)
#define IDEM_TTL_DEFAULT_MS (INT64_C(24) * 3600 * 1000)
#define IDEM_TTL_MAX_MS (INT64_C(3660) * 24 * 3600 * 1000)
#define IDEM_TOKEN_TTL_DEFAULT_MS (INT64_C(5) * 60 * 1000)
#define IDEM_WAIT_MAX_MS (INT64_C(3600) * 1000)

/* Bytes that somebody else owns. */
struct idem_bytes {
    const void *data;
    size_t len;
};

/* One list makes each enum, its names and its texts (see names.c). */
#define IDEM_STATUS_MAP(X)                                                     \
    X(OK, "ok", "success")                                                     \
    X(ERR_INVALID, "invalid", "the request itself is wrong")                   \
    X(ERR_UNAVAILABLE, "unavailable", "store unavailable, nothing was stored") \
    X(ERR_LOST, "lost", "answer lost, it may have been stored")                \
    X(ERR_OVERLOADED, "overloaded", "a limit is reached, nothing was stored")  \
    X(ERR_FULL, "full", "the store is full, nothing was stored")               \
    X(ERR_CLOSED, "closed", "shutting down, nothing was stored")               \
    X(ERR_CORRUPT, "corrupt", "stored data is damaged")                        \
    X(ERR_UNSUPPORTED, "unsupported", "not supported here")                    \
    X(ERR_MEMORY, "memory", "out of memory, nothing was stored")               \
    X(ERR_TIMEOUT, "timeout", "it took too long")                              \
    X(ERR_INTERNAL, "internal", "an internal error")

enum idem_status {
#define X(name, word, text) IDEM_##name,
    IDEM_STATUS_MAP(X)
#undef X
        IDEM_STATUS_COUNT
};

/* What step() decided. None of these is an error. */
#define IDEM_VERDICT_MAP(X)                                                    \
    X(STARTED, "started")     /* yours to do: finish it with this fence */     \
    X(REPLAY, "replay")       /* done before: here is the stored result */     \
    X(BUSY, "busy")           /* another is at work: try again later */        \
    X(DOUBT, "doubt")         /* the lease is over, the outcome unknown */     \
    X(MISMATCH, "mismatch")   /* this id was used for a different request */   \
    X(OK_DONE, "ok")          /* finished, released, renewed, forgotten */     \
    X(FINISHED, "finished")   /* this fence already finished differently */    \
    X(STALE, "stale")         /* this fence does not hold the record */        \
    X(SETTLED, "settled")     /* the outcome is fixed now */                   \
    X(RECORD, "record")       /* GET: here it is */                            \
    X(ABSENT_NOW, "absent")   /* there is no such record */                    \
    X(ISSUED_NOW, "issued")   /* ISSUE: the token exists now */                \
    X(REDEEMED, "redeemed")   /* REDEEM: the token was yours, once */          \
    X(DUPLICATE, "duplicate") /* redeemed before */                            \
    X(UNKNOWN, "unknown")     /* no such token */

enum idem_verdict {
#define X(name, word) IDEM_V_##name,
    IDEM_VERDICT_MAP(X)
#undef X
        IDEM_VERDICT_COUNT
};

#define IDEM_TYPE_MAP(X)                                                       \
    X(REQUEST, "request", 1)                                                   \
    X(TOKEN, "token", 2)                                                       \
    X(LOCK, "lock", 3)                                                         \
    X(WORKER, "worker", 4)

enum idem_type {
#define X(name, word, number) IDEM_TYPE_##name = number,
    IDEM_TYPE_MAP(X)
#undef X
};

#define IDEM_STATE_MAP(X)                                                      \
    X(ABSENT, "absent", 0)                                                     \
    X(ISSUED, "issued", 1)                                                     \
    X(EXECUTING, "executing", 2)                                               \
    X(SUCCEEDED, "succeeded", 3)                                               \
    X(FAILED, "failed", 4)                                                     \
    X(FREE, "free", 5)

enum idem_state {
#define X(name, word, number) IDEM_STATE_##name = number,
    IDEM_STATE_MAP(X)
#undef X
};

enum idem_mode { IDEM_STRICT = 0, IDEM_LOOSE = 1 };

/* How to read a result; docs/results.md has the two encodings. */
#define IDEM_KIND_MAP(X)                                                       \
    X(RAW, "raw", 0)                                                           \
    X(HTTP, "http", 1)                                                         \
    X(EXEC, "exec", 2)

enum idem_kind {
#define X(name, word, number) IDEM_KIND_##name = number,
    IDEM_KIND_MAP(X)
#undef X
};

#define IDEM_VERB_MAP(X)                                                       \
    X(BEGIN, "begin")                                                          \
    X(FINISH, "finish")                                                        \
    X(RELEASE, "release")                                                      \
    X(RENEW, "renew")                                                          \
    X(SETTLE, "settle")                                                        \
    X(GET, "get")                                                              \
    X(FORGET, "forget")                                                        \
    X(ISSUE, "issue")                                                          \
    X(REDEEM, "redeem")                                                        \
    X(LOCK, "lock")                                                            \
    X(UNLOCK, "unlock")

enum idem_verb {
#define X(name, word) IDEM_##name,
    IDEM_VERB_MAP(X)
#undef X
        IDEM_VERB_COUNT
};

/* Flags of a record. */
enum {
    IDEM_FLAG_FINGERPRINT = 1,    /* fingerprint[] is set */
    IDEM_FLAG_NOT_REPLAYABLE = 2, /* done, but the result was too large */
    IDEM_FLAG_REDEEMED = 4,       /* a token that REDEEM used up */
    IDEM_FLAG_SETTLED = 8,        /* the outcome came from SETTLE */
};

/* The record. Byte fields are views; who hands out a record owns the bytes. */
struct idem_record {
    uint8_t type;  /* enum idem_type */
    uint8_t state; /* enum idem_state */
    uint8_t mode;  /* enum idem_mode */
    uint8_t kind;  /* enum idem_kind */
    uint8_t flags;
    uint32_t attempt; /* how often it has been started */
    uint64_t fence;   /* strictly increasing for one key */
    uint64_t rev;     /* new on every write; never 0 in a store */
    int64_t created;  /* this life began, in the store's milliseconds */
    int64_t updated;
    int64_t lease_until; /* 0 unless executing */
    int64_t expires;     /* 0: never; while executing: created + TTL */
    uint8_t nonce[IDEM_NONCE_LEN];
    uint8_t fingerprint[IDEM_FINGERPRINT_LEN];
    struct idem_bytes scope, id, subject, result;
};

/*
 * One request to the engine. Zero means "the default" everywhere, so start
 * from `struct idem_op op = {.verb = IDEM_BEGIN, ...}`.
 */
struct idem_op {
    enum idem_verb verb;
    enum idem_type type;     /* 0: what the verb implies (LOCK: lock, ...) */
    struct idem_bytes scope; /* who asks; a token's subject */
    struct idem_bytes id;    /* which request, token or lock */
    uint64_t fence;          /* FINISH RELEASE RENEW UNLOCK */
    const uint8_t *nonce;    /* BEGIN REDEEM: IDEM_NONCE_LEN bytes, or NULL */
    const uint8_t *fingerprint; /* BEGIN: IDEM_FINGERPRINT_LEN bytes or NULL */
    enum idem_mode mode;        /* BEGIN */
    int64_t lease_ms;           /* BEGIN RENEW LOCK */
    int64_t ttl_ms;             /* BEGIN FINISH SETTLE ISSUE REDEEM */
    int64_t wait_ms;            /* BEGIN LOCK: how long to wait while busy */
    enum idem_state outcome;    /* FINISH, SETTLE AS: SUCCEEDED or FAILED */
    enum idem_kind kind;
    struct idem_bytes result;  /* FINISH SETTLE; LOCK RENEW UNLOCK: a note */
    bool not_replayable;       /* FINISH: done, but without its result */
    bool lost;                 /* RENEW: the outcome is lost, end the lease */
    struct idem_bytes subject; /* LOCK: the owner; else a caller's label */
};

/*
 * What the caller is told. `record` is the record as it is now (zeroed for
 * mismatch, absent, unknown and duplicate): fence, state, kind, result,
 * expires and lease_until are read from it.
 */
struct idem_answer {
    enum idem_verdict verdict;
    int64_t retry_after_ms; /* busy: when asking again makes sense */
    struct idem_record record;
    void *memory; /* what the record's bytes live in; see idem_answer_clear */
};

/* Names as they stand in every surface: "started", "executing", "begin" ... */
IDEM_API const char *idem_status_name(enum idem_status status);
IDEM_API const char *idem_status_text(enum idem_status status);
IDEM_API const char *idem_verdict_name(enum idem_verdict verdict);
IDEM_API const char *idem_type_name(enum idem_type type);
IDEM_API const char *idem_state_name(enum idem_state state);
IDEM_API const char *idem_mode_name(enum idem_mode mode);
IDEM_API const char *idem_kind_name(enum idem_kind kind);
IDEM_API const char *idem_verb_name(enum idem_verb verb);

/* A view of a C string. */
IDEM_API struct idem_bytes idem_text(const char *text);

#ifdef __cplusplus
}
#endif

#endif
