/*
 * record.h - what idem stores about one request, token or lock; and the rules
 * that apply to all functions.
 *
 *   absent --BEGIN--> executing --FINISH--> succeeded or failed
 *     ^                   |                          |
 *     +-- free <-RELEASE--+--------- expires --------+
 *
 * Type, scope and id together name one record. While a record is executing, a
 * lease protects it. When the lease ends before a FINISH arrives, nobody knows
 * whether the work was done. Then a loose record may be started again. A strict
 * record is in doubt until its own FINISH or a SETTLE arrives. A record that is
 * executing never expires; all other records do.
 *
 * These rules apply to every function of every header, unless the comment of a
 * function says something else.
 *
 * Ownership: the memory that you pass in stays yours, and you may free it after
 * the call. Exceptions are the argument of a callback, and options whose
 * comment says so. The memory that you get belongs to the handle or to the
 * answer that you got it from, and is valid as long as that one.
 *
 * Errors: a call succeeds if and only if it returns IDEM_OK. Read outputs only
 * after IDEM_OK. Read `err`, which may be NULL, only after another status.
 * After an error, the pointer that would get a new handle is unchanged, and an
 * answer is empty: it holds no memory, and you may clear it.
 *
 * Threads: you may call every function from any thread, and several threads may
 * share one handle. Do not close a handle while another thread uses it. A
 * signal handler may call idem_consume_stop and nothing else.
 *
 * Fork: a child process must not use a handle that its parent opened, not even
 * to close it, because the handle's threads and connections belong to the
 * parent. The child may open handles of its own.
 *
 * Structs that you fill: set all members to zero first (`= {0}`, or by naming
 * members). Zero means the default. `room` is reserved for members of later
 * versions; leave it zero. A program then works with every later libidem.so of
 * the same number without being compiled again. If a newer header has a member
 * that the library does not know, and you set it, the call returns
 * IDEM_ERR_UNSUPPORTED; the library never ignores it. A struct without `room`
 * either never changes, or the library makes it and may add members at its end:
 * do not copy such a struct and do not rely on its size. New enumerators are
 * added at the end, so your code must accept values that it does not know.
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

/* Limits and defaults. Lengths are in bytes, times in milliseconds. */
#define IDEM_SCOPE_MAX 200
#define IDEM_ID_MAX 255
#define IDEM_SUBJECT_MAX 255
#define IDEM_NONCE_LEN 8
#define IDEM_FINGERPRINT_LEN 32
#define IDEM_KEY_LEN 32
#define IDEM_FENCE_MAX ((UINT64_C(1) << 53) - 1)
#define IDEM_TIME_MAX_MS ((INT64_C(1) << 53) - 1) /* in a record */
#define IDEM_RESULT_DEFAULT_MAX (1024 * 1024)
#define IDEM_RESULT_MAX (64 * 1024 * 1024)
#define IDEM_LEASE_DEFAULT_MS INT64_C(30000)
#define IDEM_LEASE_MAX_MS (INT64_C(7) * 24 * 3600 * 1000)
#define IDEM_TTL_DEFAULT_MS (INT64_C(24) * 3600 * 1000)
#define IDEM_TTL_MAX_MS (INT64_C(3660) * 24 * 3600 * 1000)
#define IDEM_TOKEN_TTL_DEFAULT_MS (INT64_C(5) * 60 * 1000)
#define IDEM_WAIT_MAX_MS (INT64_C(3600) * 1000)

/* A view of bytes that another object owns; they may contain NUL. */
struct idem_bytes {
    const void *data;
    size_t len;
};

/* The result of a call. Only with IDEM_OK is there an answer. */
enum idem_status {
    IDEM_OK,
    IDEM_ERR_INVALID,     /* the operation or an option is wrong */
    IDEM_ERR_UNAVAILABLE, /* the store is unreachable; nothing was stored */
    IDEM_ERR_LOST,        /* the store's reply was lost; the change may or may
                             not have been stored */
    IDEM_ERR_OVERLOADED,  /* a limit is reached; nothing was stored */
    IDEM_ERR_FULL,        /* the store is full; nothing was stored */
    IDEM_ERR_CLOSED,      /* shutting down; nothing was stored */
    IDEM_ERR_CORRUPT,     /* stored data is damaged */
    IDEM_ERR_UNSUPPORTED, /* this store or version cannot do it */
    IDEM_ERR_MEMORY,      /* out of memory; nothing was stored */
    IDEM_ERR_TIMEOUT,     /* it took too long */
    IDEM_ERR_INTERNAL,    /* a defect in idem */
};

/* The decision about a record. None of these is an error. */
enum idem_verdict {
    IDEM_V_STARTED,   /* do the work now, then FINISH with this fence */
    IDEM_V_REPLAY,    /* done before; the record has the stored result */
    IDEM_V_BUSY,      /* another caller is working on it; try again later */
    IDEM_V_DOUBT,     /* the lease is over, and the outcome is unknown */
    IDEM_V_MISMATCH,  /* this id was used for a different request */
    IDEM_V_OK,        /* finished, released, renewed or forgotten */
    IDEM_V_FINISHED,  /* this fence finished it before, with another outcome */
    IDEM_V_STALE,     /* the record is not held under this fence */
    IDEM_V_SETTLED,   /* the outcome is decided now */
    IDEM_V_RECORD,    /* GET: the record exists */
    IDEM_V_ABSENT,    /* there is no such record */
    IDEM_V_ISSUED,    /* ISSUE: the token exists now */
    IDEM_V_REDEEMED,  /* REDEEM: this call used the token */
    IDEM_V_DUPLICATE, /* the token was used before */
    IDEM_V_UNKNOWN,   /* there is no such token */
};

/* The type is part of a record's key: a lock and a request with the same scope
 * and id are two records. */
enum idem_type {
    IDEM_TYPE_REQUEST = 1,
    IDEM_TYPE_TOKEN = 2,
    IDEM_TYPE_LOCK = 3,
    IDEM_TYPE_WORKER = 4, /* a leased worker number, or a range of ids */
};

enum idem_state {
    IDEM_STATE_ABSENT = 0, /* there is no record */
    IDEM_STATE_ISSUED = 1, /* a token that was not used yet */
    IDEM_STATE_EXECUTING = 2,
    IDEM_STATE_SUCCEEDED = 3,
    IDEM_STATE_FAILED = 4,
    IDEM_STATE_FREE = 5, /* released; kept so that the next fence is larger */
};

enum idem_mode {
    IDEM_STRICT = 0, /* at most one execution, also if it fails */
    IDEM_LOOSE = 1,  /* at most one success; a failure may be retried */
};

/* How to read a result. docs/results.md describes HTTP and EXEC. */
enum idem_kind {
    IDEM_KIND_RAW = 0,
    IDEM_KIND_HTTP = 1, /* status, headers and body of an HTTP response */
    IDEM_KIND_EXEC = 2, /* exit status and output of a command */
};

/* The operations; docs/protocol.md describes each one. */
enum idem_verb {
    IDEM_BEGIN,
    IDEM_FINISH,
    IDEM_RELEASE,
    IDEM_RENEW,
    IDEM_SETTLE,
    IDEM_GET,
    IDEM_FORGET,
    IDEM_ISSUE,
    IDEM_REDEEM,
    IDEM_LOCK,
    IDEM_UNLOCK,
};

/* Flags of a record. */
enum {
    IDEM_FLAG_FINGERPRINT = 1,    /* fingerprint[] is set */
    IDEM_FLAG_NOT_REPLAYABLE = 2, /* done, but its result was not kept */
    IDEM_FLAG_REDEEMED = 4,       /* a token that REDEEM has used */
    IDEM_FLAG_SETTLED = 8,        /* a SETTLE decided the outcome */
    /* In a store only, never in an answer: sealed by an engine with a key. */
    IDEM_FLAG_SEALED_SUBJECT = 16,
    IDEM_FLAG_SEALED_RESULT = 32,
};

/* A record. scope, id, subject and result are views of memory that belongs to
 * the answer or the callback that the record came with. */
struct idem_record {
    uint8_t type;  /* enum idem_type */
    uint8_t state; /* enum idem_state */
    uint8_t mode;  /* enum idem_mode */
    uint8_t kind;  /* enum idem_kind */
    uint8_t flags;
    uint32_t attempt; /* how often it has been started */
    uint64_t fence;   /* strictly increasing for one key */
    uint64_t rev;     /* new on every write; never 0 in a store */
    int64_t created;  /* in ms since 1970, by the store's clock; a record that
                         expired and came back is created again */
    int64_t updated;  /* the last write, by the same clock */
    int64_t lease_until; /* 0 unless executing */
    int64_t expires;     /* 0: never; while executing: created + TTL */
    uint8_t nonce[IDEM_NONCE_LEN];
    uint8_t fingerprint[IDEM_FINGERPRINT_LEN];
    struct idem_bytes scope, id, subject, result;
};

/*
 * One operation. A member that is zero has its default, so start with
 * `struct idem_op op = {.verb = IDEM_BEGIN, ...}`. The comment of a member
 * names the verbs that use it; the other verbs ignore it.
 */
struct idem_op {
    enum idem_verb verb;
    enum idem_type type;     /* 0: by the verb (LOCK: lock, ...) */
    struct idem_bytes scope; /* the caller; for a token its subject */
    struct idem_bytes id;    /* of the request, token or lock */
    uint64_t fence; /* FINISH RELEASE RENEW UNLOCK; SETTLE FORGET: 0, or the
                       fence that the record must have, else it is STALE */
    const uint8_t *nonce; /* BEGIN REDEEM: IDEM_NONCE_LEN bytes, or NULL */
    const uint8_t *fingerprint; /* BEGIN: IDEM_FINGERPRINT_LEN bytes or NULL */
    enum idem_mode mode;        /* BEGIN */
    int64_t lease_ms;           /* BEGIN RENEW LOCK */
    int64_t ttl_ms;             /* BEGIN FINISH SETTLE ISSUE REDEEM */
    int64_t wait_ms;            /* BEGIN LOCK: how long to wait while busy */
    enum idem_state outcome;    /* FINISH, SETTLE AS: SUCCEEDED or FAILED */
    enum idem_kind kind;
    struct idem_bytes result; /* FINISH SETTLE; LOCK RENEW UNLOCK: a note */
    bool not_replayable;      /* FINISH: done, but do not keep a result */
    bool lost;                /* RENEW: the outcome is unknown; end the lease */
    struct idem_bytes subject; /* LOCK: the owner; else a label for people */
    uint64_t room[4];
};

/*
 * The answer to an operation. `record` is the record after the operation, with
 * its fence, state, kind, result, expires and lease_until. For mismatch,
 * absent, unknown and duplicate, and after an error, the record is empty (its
 * state is ABSENT). It is valid until idem_answer_clear. A call overwrites the
 * answer without clearing it, so clear an answer before you use it again. Only
 * one thread may use an answer at a time.
 */
struct idem_answer {
    enum idem_verdict verdict;
    /* The state before the operation (an enum idem_state; ABSENT if there was
     * no record) and whether the record was in doubt. An engine that is
     * connected to a server does not know it: ABSENT and false. */
    uint8_t was;
    bool was_in_doubt;
    int64_t retry_after_ms; /* BUSY: try again after this time */
    const struct idem_record *record;
    void *memory; /* the library's own */
};

/* The names that all interfaces use: "started", "executing", "begin" and so on;
 * idem_status_text is a sentence for people. The texts are constants. "?" for a
 * value that does not exist. */
IDEM_API const char *idem_status_name(enum idem_status status);
IDEM_API const char *idem_status_text(enum idem_status status);
IDEM_API const char *idem_verdict_name(enum idem_verdict verdict);
IDEM_API const char *idem_type_name(enum idem_type type);
IDEM_API const char *idem_state_name(enum idem_state state);
IDEM_API const char *idem_mode_name(enum idem_mode mode);
IDEM_API const char *idem_kind_name(enum idem_kind kind);
IDEM_API const char *idem_verb_name(enum idem_verb verb);

/* A view of a C string. It is valid as long as the string. NULL gives an empty
 * view. */
IDEM_API struct idem_bytes idem_text(const char *text);

#ifdef __cplusplus
}
#endif

#endif
