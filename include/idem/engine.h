/*
 * engine.h - open a store, run operations on records.
 *
 * An engine gathers the operations that many threads submit into batches and
 * commits each batch to its store with one durable write. An answer is given
 * only after what it says is durable.
 *
 * The rules on ownership, errors, threads, fork and structs stand at the head
 * of record.h. Callbacks run on the engine's own thread: they must be quick and
 * must not call idem_do, idem_run, idem_scan or idem_close.
 */
#ifndef IDEM_ENGINE_H
#define IDEM_ENGINE_H

#include <idem/record.h>

#ifdef __cplusplus
extern "C" {
#endif

struct idem_engine;

/* Detail of an error, written where the caller wants it. May be NULL. */
struct idem_error {
    enum idem_status status;
    char text[256];
};

enum idem_log_level { IDEM_LOG_INFO, IDEM_LOG_WARNING, IDEM_LOG_ALARM };

typedef void idem_log_fn(void *arg, enum idem_log_level level,
                         const char *text);

/* All zero is a sane engine. */
struct idem_options {
    size_t max_queue;        /* operations waiting; 0: 65536 */
    size_t max_batch;        /* operations in one commit; 0: 1024 */
    size_t max_parked;       /* waiting duplicates, all keys; 0: 65536 */
    size_t max_parked_key;   /* of one key; 0: 1024 */
    size_t max_parked_scope; /* of one scope; 0: 16384 */
    size_t max_result;       /* bytes of one result kept; 0: 1 MiB */
    int64_t poll_ms; /* parked ones look again on a shared store; 0: 50. Up
                        to 20 times as long while the store tells of changes */
    /* Scopes where a BEGIN without a fingerprint is IDEM_ERR_INVALID: names
     * with commas between them; one that ends in * stands for all that begin
     * so. It must live as long as the engine. NULL: none. */
    const char *require_fingerprint;
    idem_log_fn *log; /* NULL: warnings and alarms go to standard error */
    void *log_arg;
    uint64_t room[8];
};

/*
 * Open a store by its URL and start an engine on it, or connect to a server.
 *
 *   memory:           this process only, gone with it
 *   journal:DIR       a folder on this machine (the default choice)
 *   redis:// postgres:// mysql:// sqlite: zookeeper:// etcd://
 *   idem://[NAME:SECRET@]HOST[:PORT], idem+unix:PATH,
 *   idems://HOST[:PORT]?ca=FILE (TLS)
 *                     an `idem serve`: the engine that it has does the work
 *
 * IDEM_ERR_INVALID: the URL names no store, or an option is absurd.
 * IDEM_ERR_UNAVAILABLE: the store or the server cannot be reached.
 *
 * Options may be NULL. Close the engine with idem_close, after every lock, id
 * generator and consumer that uses it.
 */
IDEM_API enum idem_status idem_open(const char *url,
                                    const struct idem_options *options,
                                    struct idem_engine **engine,
                                    struct idem_error *err);

/* Answer everybody who still waits with IDEM_ERR_CLOSED, commit what was
 * accepted, and close the store. NULL is fine. */
IDEM_API void idem_close(struct idem_engine *engine);

/*
 * Run one op and wait for its answer.
 *
 * IDEM_OK: answer->verdict is set, and durable as the store promises; clear
 *     the answer when done with it.
 * IDEM_ERR_UNAVAILABLE, _FULL, _OVERLOADED, _CLOSED, _MEMORY: nothing was
 *     stored; the same op may be sent again.
 * IDEM_ERR_LOST: it may have been stored; send the same op (with the same
 *     nonce) again, or ask with GET before acting.
 * IDEM_ERR_INVALID: the op is wrong; err says what.
 */
IDEM_API enum idem_status idem_do(struct idem_engine *engine,
                                  const struct idem_op *op,
                                  struct idem_answer *answer,
                                  struct idem_error *err);

/* Give back what an answer of idem_do holds. A zeroed answer is fine. */
IDEM_API void idem_answer_clear(struct idem_answer *answer);

/* The answer is valid during the call only; NULL unless status is IDEM_OK. */
typedef void idem_done_fn(void *arg, enum idem_status status,
                          const struct idem_answer *answer,
                          const struct idem_error *err);

/*
 * Run one op and be called back, exactly once, if this returns IDEM_OK. Any
 * other status means that it was not accepted and `done` is never called. The
 * op and its bytes are copied. `ticket`, which may be NULL, names it for
 * idem_cancel.
 */
IDEM_API enum idem_status idem_submit(struct idem_engine *engine,
                                      const struct idem_op *op,
                                      idem_done_fn *done, void *arg,
                                      uint64_t *ticket, struct idem_error *err);

/* A waiter's client is gone: if the op is still parked it is answered with
 * IDEM_ERR_CLOSED soon; otherwise nothing happens. */
IDEM_API void idem_cancel(struct idem_engine *engine, uint64_t ticket);

/* What a scan looks for; zero fields match everything. */
struct idem_filter {
    enum idem_type type;
    enum idem_state state;
    struct idem_bytes scope;
    int64_t updated_before; /* ms, the store's time */
    bool doubt;             /* strict, executing, its lease is over */
    struct idem_bytes id;   /* in whatever scope */
    uint64_t room[2];
};

/* An opaque place in a scan; "0" is both the start and the end. */
struct idem_cursor {
    char text[128];
};

/* Return false to stop early. The record is valid during the call only. */
typedef bool idem_each_fn(void *arg, const struct idem_record *record);

/*
 * List records, about `count` a call (some calls may give none): start with
 * cursor "0", go on until it is "0" again. Records that live through the whole
 * scan are seen at least once; the result bytes are left out.
 */
IDEM_API enum idem_status idem_scan(struct idem_engine *engine,
                                    const struct idem_filter *filter,
                                    struct idem_cursor *cursor, size_t count,
                                    idem_each_fn *each, void *arg,
                                    struct idem_error *err);

/* Work for idem_run: put the answer's bytes into *result (they must stay valid
 * until fn is called again or idem_run returns) and say how it went. */
typedef enum idem_state idem_work_fn(void *arg, uint64_t fence,
                                     struct idem_bytes *result);

/*
 * Run `fn` at most once for this op's scope and id: begin, keep the lease alive
 * while fn works, finish. Every later caller gets the first result.
 *
 * `op` is a BEGIN (verb and fence are ignored). fn returns IDEM_STATE_SUCCEEDED
 * or IDEM_STATE_FAILED; a failure is recorded in strict mode and releases the
 * record in loose mode. IDEM_STATE_FREE says that nothing happened: the record
 * is released in both. IDEM_STATE_EXECUTING says that fn does not know: the
 * claim stays and comes into doubt (strict) or may be taken over (loose) when
 * its lease is over. IDEM_OK with answer->verdict:
 *   STARTED: fn ran here, the record has its outcome and result;
 *   REPLAY: it ran before; BUSY, DOUBT, MISMATCH: it did not run here;
 *   STALE: fn ran, but somebody took over meanwhile (loose only).
 * IDEM_ERR_LOST after fn ran: the outcome may not be recorded; the record comes
 *     into doubt and says so.
 */
IDEM_API enum idem_status idem_run(struct idem_engine *engine,
                                   const struct idem_op *op, idem_work_fn *fn,
                                   void *arg, struct idem_answer *answer,
                                   struct idem_error *err);

typedef void idem_figure_fn(void *arg, const char *name, double value);

/*
 * What the engine and its store have done and have to do now, as named numbers:
 * "verdict_started", "error_lost", "batches", "queued", "parked",
 * "locks_waiting", "journal_bytes" and so on. Names are added over time and keep their meaning.
 * `each` runs before this returns.
 */
IDEM_API void idem_figures(struct idem_engine *engine, idem_figure_fn *each,
                           void *arg);

/* The version of the library as text, and as a number: 0.9.1 is 901, 1.2.3 is
 * 10203. */
IDEM_API const char *idem_version(void);
IDEM_API int idem_version_number(void);

#ifdef __cplusplus
}
#endif

#endif
