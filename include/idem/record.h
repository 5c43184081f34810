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
 * Rules for every function of every header; a function says where it differs.
 *
 * Ownership: what you pass in stays yours and is not needed after the call
 * (a callback's argument is, and what an option says so about). What you get
 * belongs to the handle or the answer that brought it and lives as long.
 *
 * Errors: IDEM_OK or not. Read outputs only after IDEM_OK, and `err`, which may
 * be NULL, only after anything else. After an error a handle's pointer is as it
 * was before, and an answer is empty: it holds no memory, and may be cleared.
 *
 * Threads: every function may be called from any thread, and a handle may be
 * shared by several. Nobody closes a handle that another thread still uses. A
 * signal handler may call nothing but idem_consume_stop.
 *
 * Fork: a child may use no handle that its parent opened, not even to close it:
 * their threads and connections are the parent's. It may open its own.
 *
 * Structs that you fill: start them from zero (`= {0}`, or by naming members);
 * zero is the default everywhere. `room` is for members of later versions and
 * stays zero. So a program runs with every later libidem.so of the same number
 * without being compiled again. A member that a newer header has and the
 * library does not know is IDEM_ERR_UNSUPPORTED, never ignored. A struct
 * without `room` never changes, or is made by the library, which may add
 * members at its end: do not copy those, and do not depend on their size. New
 * enumerators come at the end: expect values that you do not know.
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

/* How a call went. Only IDEM_OK brings an answer. */
enum idem_status {
    IDEM_OK,
    IDEM_ERR_INVALID,     /* the request itself is wrong */
    IDEM_ERR_UNAVAILABLE, /* store unavailable, nothing was stored */
    IDEM_ERR_LOST,        /* answer lost, it may have been stored */
    IDEM_ERR_OVERLOADED,  /* a limit is reached, nothing was stored */
    IDEM_ERR_FULL,        /* the store is full, nothing was stored */
    IDEM_ERR_CLOSED,      /* shutting down, nothing was stored */
    IDEM_ERR_CORRUPT,     /* stored data is damaged */
    IDEM_ERR_UNSUPPORTED, /* not supported here */
    IDEM_ERR_MEMORY,      /* out of memory, nothing was stored */
    IDEM_ERR_TIMEOUT,     /* it took too long */
    IDEM_ERR_INTERNAL,    /* an internal error */
};

/* What was decided about a record. None of these is an error. */
enum idem_verdict {
    IDEM_V_STARTED,   /* the work is yours: finish it with this fence */
    IDEM_V_REPLAY,    /* done before: here is the stored result */
    IDEM_V_BUSY,      /* another caller is at work: try again later */
    IDEM_V_DOUBT,     /* the lease is over, the outcome is unknown */
    IDEM_V_MISMATCH,  /* this id was used for a different request */
    IDEM_V_OK,        /* finished, released, renewed or forgotten */
    IDEM_V_FINISHED,  /* this fence already finished it differently */
    IDEM_V_STALE,     /* this fence does not hold the record */
    IDEM_V_SETTLED,   /* the outcome is fixed now */
    IDEM_V_RECORD,    /* GET: here it is */
    IDEM_V_ABSENT,    /* there is no such record */
    IDEM_V_ISSUED,    /* ISSUE: the token exists now */
    IDEM_V_REDEEMED,  /* REDEEM: the token was yours, once */
    IDEM_V_DUPLICATE, /* the token was redeemed before */
    IDEM_V_UNKNOWN,   /* there is no such token */
};

/* Part of a record's key: a lock and a request of the same name never meet. */
enum idem_type {
    IDEM_TYPE_REQUEST = 1,
    IDEM_TYPE_TOKEN = 2,
    IDEM_TYPE_LOCK = 3,
    IDEM_TYPE_WORKER = 4, /* a leased worker number, or a range of ids */
};

enum idem_state {
    IDEM_STATE_ABSENT = 0, /* there is none */
    IDEM_STATE_ISSUED = 1, /* a token that nobody used */
    IDEM_STATE_EXECUTING = 2,
    IDEM_STATE_SUCCEEDED = 3,
    IDEM_STATE_FAILED = 4,
    IDEM_STATE_FREE = 5, /* released: its fence stays, so that it grows */
};

enum idem_mode {
    IDEM_STRICT = 0, /* at most one execution, whatever its outcome */
    IDEM_LOOSE = 1,  /* only success counts: a failure may be tried again */
};

/* How to read a result; docs/results.md has the two encodings. */
enum idem_kind {
    IDEM_KIND_RAW = 0,
    IDEM_KIND_HTTP = 1, /* status, headers and body of an HTTP response */
    IDEM_KIND_EXEC = 2, /* exit status and output of a command */
};

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
    uint64_t fence;       /* FINISH RELEASE RENEW UNLOCK; SETTLE FORGET: 0, or
                           * the record's, else the verdict is stale */
    const uint8_t *nonce; /* BEGIN REDEEM: IDEM_NONCE_LEN bytes, or NULL */
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
    uint64_t room[4];
};

/*
 * What the caller is told. `record` is the record as it is now: fence, state,
 * kind, result, expires and lease_until are read from it. For mismatch, absent,
 * unknown and duplicate, and after an error, it is empty (state ABSENT). It
 * lives until idem_answer_clear. A call overwrites the answer that it is given:
 * clear it before you use it again. It belongs to one thread at a time.
 */
struct idem_answer {
    enum idem_verdict verdict;
    /* What the op found: an enum idem_state, ABSENT if there was no record, and
     * whether it was in doubt. ABSENT behind a server, which does not say. */
    uint8_t was;
    bool was_in_doubt;
    int64_t retry_after_ms; /* busy: when asking again makes sense */
    const struct idem_record *record;
    void *memory; /* the library's own */
};

/* Names as they stand in every surface: "started", "executing", "begin" ...
 * They are constants; "?" for a value that does not exist. */
IDEM_API const char *idem_status_name(enum idem_status status);
IDEM_API const char *idem_status_text(enum idem_status status);
IDEM_API const char *idem_verdict_name(enum idem_verdict verdict);
IDEM_API const char *idem_type_name(enum idem_type type);
IDEM_API const char *idem_state_name(enum idem_state state);
IDEM_API const char *idem_mode_name(enum idem_mode mode);
IDEM_API const char *idem_kind_name(enum idem_kind kind);
IDEM_API const char *idem_verb_name(enum idem_verb verb);

/* A view of a C string, as long as that lives; NULL is empty. */
IDEM_API struct idem_bytes idem_text(const char *text);

#ifdef __cplusplus
}
#endif

#endif
