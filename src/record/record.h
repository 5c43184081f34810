/*
 * record.h - keys, the state machine and the codec: the part of idem without
 * side effects.
 *
 * Nothing here does I/O, reads a clock or allocates memory, except
 * idem__answer_keep and idem_arena_record.
 */
#ifndef IDEM__RECORD_H
#define IDEM__RECORD_H

#include "../base/bytes.h"
#include "../base/error.h"

/* The number of values of each enum, from its last one. */
#define IDEM__STATUS_COUNT (IDEM_ERR_INTERNAL + 1)
#define IDEM__VERDICT_COUNT (IDEM_V_UNKNOWN + 1)
#define IDEM__VERB_COUNT (IDEM_UNLOCK + 1)

/* ---- answers ---------------------------------------------------------- */

/* The record of an answer that has none. */
extern const struct idem_record idem__no_record;

/* How many bytes a record's scope, id, subject and result have. */
size_t idem__record_bytes(const struct idem_record *record);
/* Copy `from`, and its bytes to `room`. */
void idem__record_copy(struct idem_record *to, const struct idem_record *from,
                       void *room);

struct idem_arena;
/* Copy a record's bytes into the arena. False: out of memory. */
bool idem_arena_record(struct idem_arena *arena, const struct idem_record *from,
                       struct idem_record *to);

/* Give the answer its own copy of the record, and free the old one. False: out
 * of memory, the answer is unchanged. */
bool idem__answer_keep(struct idem_answer *answer,
                       const struct idem_record *record);

/* ---- keys ------------------------------------------------------------ */

/*
 * The lookup key: SHA-256 over the type (one byte), then scope and id, each
 * behind its length as two bytes, big-endian. SQL can compute the same.
 */
void idem__key(enum idem_type type, struct idem_bytes scope,
               struct idem_bytes id, uint8_t key[IDEM_KEY_LEN]);

/* ---- operations ------------------------------------------------------ */

/* Check an op and fill in its defaults (type, lease, TTL). */
enum idem_status idem__op_check(struct idem_op *op, struct idem_error *err);

/* ---- the state machine ----------------------------------------------- */

/*
 * The time that is passed to step(). A lease or an expiry has passed only if it
 * has passed by `early_ms`; written times count from `late_ms`; and no lease is
 * over before the engine has been running for as long as that lease.
 */
struct idem_now {
    int64_t early_ms; /* the store's time is at least this */
    int64_t late_ms;  /* and at most this */
    int64_t up_ms;    /* how long this engine has been running */
    uint64_t late_us; /* fences start here */
    /* If the store's clock was set back while this engine ran, the right time
     * may be later than late_ms by this much. Expiry counts from there. */
    int64_t behind_ms;
    /* The latest time by which this engine ever judged, advanced by the boot
     * clock. Leases count from here if it is later than late_ms: another engine
     * that has not yet read a clock that was set back judges by that time. */
    int64_t steady_ms;
};

/*
 * Decide what `op` does to `current` (NULL: there is none).
 *
 * The op has passed idem__op_check and, for BEGIN and REDEEM, has a nonce.
 * next->state is IDEM_STATE_ABSENT when nothing is to be written; otherwise
 * *next is the record to write, with rev 0 for the engine to fill in. Its bytes
 * are views into `current` and `op`.
 */
enum idem_verdict idem__step(const struct idem_record *current,
                             const struct idem_op *op,
                             const struct idem_now *now,
                             struct idem_record *next);

/* True if this record counts as absent now. Executing records never do. */
bool idem__record_expired(const struct idem_record *record,
                          const struct idem_now *now);

/* Is the lease of an executing record over? Doubt or takeover follows. */
bool idem__lease_over(const struct idem_record *record,
                      const struct idem_now *now);

/* True if somebody must settle this record when its lease is over. A loose
 * request, a lock and a worker number are simply taken by the next client. */
bool idem__may_come_into_doubt(const struct idem_record *record);

/* When the store may drop the record: after it expired, and after the store's
 * time has passed its fence. 0: never (also while executing). */
int64_t idem__record_drop_at(const struct idem_record *record);

/* Does a record pass a scan's filter? */
bool idem__filter_match(const struct idem_filter *filter,
                        const struct idem_record *record,
                        const struct idem_now *now);

/* The bytes that sealing adds to a subject and to a result (engine/seal.h), and
 * the longest subject that can therefore be sealed. */
#define IDEM__SEAL_LEN 45
#define IDEM__SEALED_SUBJECT_MAX (IDEM_SUBJECT_MAX - IDEM__SEAL_LEN)

/* ---- the codec ------------------------------------------------------- */

/* The size of an encoded record, and the maximum size of any record with a
 * result of result_max bytes. */
size_t idem__encoded_len(const struct idem_record *record);
size_t idem__encoded_max(size_t result_max);

/* Write a valid record; `out` has room for idem__encoded_len(record). */
void idem__encode(const struct idem_record *record, uint8_t *out);

/*
 * Read a record; its byte fields are views into `in`. IDEM_ERR_CORRUPT for
 * anything that idem__encode could not have written, IDEM_ERR_UNSUPPORTED for
 * a newer version. *record is written only on success.
 */
enum idem_status idem__decode(struct idem_bytes in, struct idem_record *record,
                              struct idem_error *err);

/* Checks all rules about a record's fields; used by both ends of the codec and
 * by the SQL stores. Returns NULL, or what is wrong. */
const char *idem__record_flaw(const struct idem_record *record);

/* ---- parsing names --------------------------------------------------- */

/* Case does not matter; false if the word is unknown. */
bool idem__status_parse(struct idem_bytes word, enum idem_status *status);
bool idem__verdict_parse(struct idem_bytes word, enum idem_verdict *verdict);
bool idem__state_parse(struct idem_bytes word, enum idem_state *state);
bool idem__type_parse(struct idem_bytes word, enum idem_type *type);
bool idem__kind_parse(struct idem_bytes word, enum idem_kind *kind);
bool idem__mode_parse(struct idem_bytes word, enum idem_mode *mode);
bool idem__verb_parse(struct idem_bytes word, enum idem_verb *verb);

#endif
