/*
 * engine.h - open a store, run operations on records.
 *
 * Many threads can submit operations to one engine. The engine collects them
 * into batches and commits each batch to its store with one durable write. It
 * gives an answer only after the change is durable.
 *
 * The rules on ownership, errors, threads, fork and structs are at the head of
 * record.h. The engine calls your callbacks on its own thread. A callback must
 * return quickly, and it must not call idem_do, idem_run, idem_scan or
 * idem_close, which would wait for that same thread.
 */
#ifndef IDEM_ENGINE_H
#define IDEM_ENGINE_H

#include <idem/record.h>

#ifdef __cplusplus
extern "C" {
#endif

struct idem_engine;

/* Details of an error. The caller provides the struct and the function fills
 * it. Every function accepts NULL instead. `text` is a sentence in English that
 * says what is wrong with which thing. */
struct idem_error {
    enum idem_status status;
    char text[256];
};

enum idem_log_level { IDEM_LOG_INFO, IDEM_LOG_WARNING, IDEM_LOG_ALARM };

/* Called from threads of the library, from several at the same time. `text` is
 * valid during the call only. An alarm needs an operator: docs/events.md lists
 * every alarm. */
typedef void idem_log_fn(void *arg, enum idem_log_level level,
                         const char *text);

/* Options of an engine. 0 or NULL in a member means its default. */
struct idem_options {
    size_t max_queue;        /* operations that may wait (default 65536) */
    size_t max_batch;        /* operations in one commit (default 1024) */
    size_t max_parked;       /* duplicates that may wait (default 65536) */
    size_t max_parked_key;   /* ... for one key (default 1024) */
    size_t max_parked_scope; /* ... in one scope (default 16384) */
    size_t max_result;       /* bytes of one stored result (default 1 MiB) */
    int64_t poll_ms; /* poll interval for waiting duplicates on a shared store,
                        in ms (default 50); up to 20 times as long while the
                        store itself reports changes, from 5 ms on for a young
                        wait on a store that cannot */
    /* In these scopes a BEGIN without a fingerprint is IDEM_ERR_INVALID. Names
     * with commas between them; a name that ends in * means all scopes that
     * begin with it. The text must live as long as the engine. NULL: none. */
    const char *require_fingerprint;
    idem_log_fn *log; /* NULL: warnings and alarms go to standard error */
    void *log_arg;    /* first argument of `log` */
    /* A file of keys: results and subjects are sealed in the store, see
     * docs/sealing.md. Not for a server, which seals by itself. NULL: they are
     * stored as they are. */
    const char *seal_key;
    uint64_t room[7];
};

/*
 * Open a store by its URL and start an engine on it, or connect to a server.
 *
 *   memory:           in this process only; lost when the process ends
 *   journal:DIR       a folder on this machine (the usual choice)
 *   redis:// postgres:// mysql:// sqlite: zookeeper:// etcd://
 *   idem://[NAME:SECRET@]HOST[:PORT], idem+unix:PATH,
 *   idems://HOST[:PORT]?ca=FILE (TLS)
 *                     a running `idem serve`, whose engine does the work
 *
 * IDEM_ERR_INVALID: no store has such a URL, or an option is out of range.
 * IDEM_ERR_UNAVAILABLE: the store or the server cannot be reached.
 *
 * `options` may be NULL. Close the engine with idem_close. Before that, close
 * every lock, id generator and consumer that uses it.
 */
IDEM_API enum idem_status idem_open(const char *url,
                                    const struct idem_options *options,
                                    struct idem_engine **engine,
                                    struct idem_error *err);

/* Close the engine and its store, and free the handle. Operations that were
 * accepted are committed first. Operations that still wait (wait_ms) end with
 * IDEM_ERR_CLOSED. NULL does nothing. */
IDEM_API void idem_close(struct idem_engine *engine);

/*
 * Run one operation and wait for its answer.
 *
 * IDEM_OK: answer->verdict is set, and the change is as durable as the store
 *     promises. Call idem_answer_clear when you no longer need the answer.
 * IDEM_ERR_UNAVAILABLE, _FULL, _OVERLOADED, _CLOSED, _MEMORY: nothing was
 *     stored. You may send the same operation again.
 * IDEM_ERR_LOST: the change may or may not have been stored. Send the same
 *     operation with the same nonce again, or look with GET, before you act.
 * IDEM_ERR_INVALID: the operation is wrong; err->text says what.
 */
IDEM_API enum idem_status idem_do(struct idem_engine *engine,
                                  const struct idem_op *op,
                                  struct idem_answer *answer,
                                  struct idem_error *err);

/* Free the memory that an answer holds; answer->record is no longer valid
 * afterwards. An answer that is all zero, or was cleared before, is allowed. */
IDEM_API void idem_answer_clear(struct idem_answer *answer);

/* The callback of idem_submit. `answer` and `err` are valid during the call
 * only. `answer` is NULL unless status is IDEM_OK. Do not clear the answer. */
typedef void idem_done_fn(void *arg, enum idem_status status,
                          const struct idem_answer *answer,
                          const struct idem_error *err);

/*
 * Run one operation without waiting for it. If this returns IDEM_OK, the engine
 * calls `done` exactly once, on its own thread, perhaps before this function
 * returns. With any other status the operation was not accepted, and `done` is
 * never called. The op and its bytes are copied; `arg` must stay valid until
 * `done` was called. *ticket identifies the operation for idem_cancel; `ticket`
 * may be NULL.
 */
IDEM_API enum idem_status idem_submit(struct idem_engine *engine,
                                      const struct idem_op *op,
                                      idem_done_fn *done, void *arg,
                                      uint64_t *ticket, struct idem_error *err);

/* Stop waiting, for instance because the client has disconnected. If the
 * operation still waits for another one (wait_ms), it ends soon with
 * IDEM_ERR_CLOSED. Otherwise nothing happens, and it ends as usual. */
IDEM_API void idem_cancel(struct idem_engine *engine, uint64_t ticket);

/* The records that idem_scan shows: those that match every member that is not
 * zero. */
struct idem_filter {
    enum idem_type type;
    enum idem_state state;
    struct idem_bytes scope;
    int64_t updated_before; /* in ms since 1970, by the store's clock */
    bool doubt;             /* strict, executing, and the lease is over */
    struct idem_bytes id;   /* in any scope, if `scope` is empty */
    uint64_t room[2];
};

/* The position of a scan. "0" is both the start and the end; the other values
 * have no meaning for the caller. */
struct idem_cursor {
    char text[128];
};

/* Called once for each record, in the thread that called idem_scan. The record
 * is valid during the call only. Return false to stop the scan. */
typedef bool idem_each_fn(void *arg, const struct idem_record *record);

/*
 * List records, about `count` in one call; a call may also show none. Start
 * with the cursor "0" and repeat the call until the cursor is "0" again. A
 * record that exists during the whole scan is shown at least once. The records
 * come without their result bytes. After an error, and if `each` stopped the
 * scan, the cursor is unchanged. `filter` may be NULL.
 */
IDEM_API enum idem_status idem_scan(struct idem_engine *engine,
                                    const struct idem_filter *filter,
                                    struct idem_cursor *cursor, size_t count,
                                    idem_each_fn *each, void *arg,
                                    struct idem_error *err);

/* The work of idem_run. It sets *result to the bytes to store, which must stay
 * valid until fn is called again or idem_run returns, and returns how the work
 * went. idem_run calls it in the thread of its own caller. */
typedef enum idem_state idem_work_fn(void *arg, uint64_t fence,
                                     struct idem_bytes *result);

/*
 * Run `fn` at most once for the scope and id of this op: claim the record,
 * renew the lease while fn works, and store the outcome. Every later caller
 * gets the first result.
 *
 * `op` describes the BEGIN; its verb and fence are ignored. fn returns
 *   IDEM_STATE_SUCCEEDED: the result is stored.
 *   IDEM_STATE_FAILED: strict mode stores the failure; loose mode releases the
 *       record, so that a retry may run.
 *   IDEM_STATE_FREE: nothing happened. The record is released in both modes.
 *   IDEM_STATE_EXECUTING: fn does not know. The claim stays. When its lease is
 *       over, the record is in doubt (strict) or may be started again (loose).
 *
 * IDEM_OK with answer->verdict:
 *   STARTED: fn ran here, and answer->record has its outcome and result.
 *   REPLAY: fn ran before, and answer->record has that outcome and result.
 *   BUSY, DOUBT, MISMATCH: fn did not run here.
 *   STALE: fn ran, but another caller started it again meanwhile (loose only).
 * IDEM_ERR_LOST after fn ran: the outcome may not be stored. Then the record
 * comes into doubt, and later callers get DOUBT.
 */
IDEM_API enum idem_status idem_run(struct idem_engine *engine,
                                   const struct idem_op *op, idem_work_fn *fn,
                                   void *arg, struct idem_answer *answer,
                                   struct idem_error *err);

/* Called once for each figure; `name` is valid during the call only. */
typedef void idem_figure_fn(void *arg, const char *name, double value);

/*
 * Counters and gauges of the engine and its store, by name: "verdict_started",
 * "error_lost", "batches", "queued", "parked", "locks_waiting",
 * "journal_bytes" and others. A later version may add names; a name keeps its
 * meaning. `each` is called in this thread, before this function returns.
 */
IDEM_API void idem_figures(struct idem_engine *engine, idem_figure_fn *each,
                           void *arg);

/* The version of the library that is loaded, as text and as a number: 0.9.1 is
 * 901, 1.2.3 is 10203. IDEM_VERSION in idem.h is the version of the header. */
IDEM_API const char *idem_version(void);
IDEM_API int idem_version_number(void);

#ifdef __cplusplus
}
#endif

#endif
