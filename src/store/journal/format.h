/*
 * format.h - the file format of a journal: segments, entries, saved indexes.
 *
 * docs/journal-format.md describes it byte by byte. The functions here only
 * convert between bytes and numbers, and trust nothing before its checksum is
 * verified.
 *
 *   segment:  head (64 bytes), entry, entry, ... up to its end; the bytes
 *             after the end are zeros or those of an older file
 *   entry:    head (88 bytes), the record as codec.c writes it, zeros up to a
 *             multiple of 8
 */
#ifndef IDEM__JOURNAL_FORMAT_H
#define IDEM__JOURNAL_FORMAT_H

#include "../../record/record.h"

#define JOURNAL_VERSION 1
#define SEGMENT_HEAD_LEN 64
#define ENTRY_HEAD_LEN 88
#define ENTRY_KEY_AT 56
#define ENTRY_ALIGN 8
#define SEGMENT_MAX_LEN (UINT64_C(1) << 34) /* places are 32 bits, times 8 */

struct segment_head {
    uint64_t id;          /* 1, 2, 3 ...: also the file's name */
    uint64_t salt;        /* random: seeds the checksum of every entry */
    uint64_t prev_end;    /* where segment id - 1 ends; 0: there is none */
    int64_t time_us;      /* the journal's time when it was created */
    uint64_t first_batch; /* number of its first batch */
};

enum entry_kind {
    ENTRY_RECORD = 1, /* a record follows */
    ENTRY_DELETE = 2, /* the key is absent from here on */
    ENTRY_MARK = 3,   /* no key: has the time; the log before it is complete */
};

enum {
    ENTRY_LAST = 1,      /* the last of its batch */
    ENTRY_EXECUTING = 2, /* the record is executing: it never expires */
    ENTRY_ALL_FLAGS = 3,
};

struct entry_head {
    uint32_t body_len;
    uint8_t kind; /* enum entry_kind */
    uint8_t flags;
    uint64_t batch;  /* number of the batch in the whole journal */
    int64_t time_us; /* the journal's time when it was written */
    uint64_t rev;    /* of the record; 0 for a delete and a mark */
    uint64_t prev;   /* the rev it replaced; 0: the key was absent */
    int64_t drop_at; /* ms; 0: never */
    uint8_t key[IDEM_KEY_LEN];
};

/* The size of a whole entry in bytes. */
static inline uint64_t
entry_len(uint32_t body_len)
{
    return (ENTRY_HEAD_LEN + (uint64_t)body_len + ENTRY_ALIGN - 1) &
           ~(uint64_t)(ENTRY_ALIGN - 1);
}

void idem__segment_head_put(const struct segment_head *head, uint8_t *out);

/* IDEM_ERR_CORRUPT, or IDEM_ERR_UNSUPPORTED for a newer version. */
enum idem_status idem__segment_head_get(const uint8_t *in,
                                        struct segment_head *head,
                                        struct idem_error *err);

/* Could an entry of this segment start here? Checks only the head, which has a
 * small checksum of its own, so that the length can be trusted before the body
 * is read. */
bool idem__entry_plausible(const uint8_t *in, uint64_t salt);

/* The body is already in place behind the head. This writes the head, the zeros
 * at the end and the checksum of everything. */
void idem__entry_put(const struct entry_head *head, uint64_t salt,
                     uint8_t *out);

/*
 * Read the entry that starts at `in`, of which `len` bytes are available.
 * ENTRY_FINE: *head is set. ENTRY_MORE: the entry has *need bytes, call again
 * with that many. ENTRY_BAD: no entry of this segment starts here.
 */
enum entry_look { ENTRY_FINE, ENTRY_MORE, ENTRY_BAD };

enum entry_look idem__entry_get(const uint8_t *in, uint64_t len, uint64_t salt,
                                struct entry_head *head, uint64_t *need);

#endif
