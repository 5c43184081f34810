/*
 * journal_check.h - look at a journal, running or dead, without changing anything.
 *
 * No lock is taken. What is written meanwhile may or may not be seen; a segment
 * that the running journal takes away meanwhile is left out.
 */
#ifndef IDEM__JOURNAL_CHECK_H
#define IDEM__JOURNAL_CHECK_H

#include "format.h"
#include "io.h"

struct journal_report {
    uint64_t segments, first_segment, last_segment;
    uint64_t entries, records, deletes, marks;
    uint64_t live, executing; /* records that count now, expired or not */
    uint64_t used_bytes, live_bytes;
    bool torn;                   /* a batch at the end was not written whole */
    uint64_t saved, saved_wrong; /* saved indexes: used as they are, ignored */
    uint64_t damaged;            /* places */
    int64_t time_us;             /* the latest that is remembered */
};

struct journal_sight {
    uint64_t segment, at;
    const struct entry_head *head;
    const struct idem_record *record; /* NULL: a delete or a mark */
    bool live;                        /* no later entry replaced it */
};

/* Every entry in order; false stops. */
typedef bool journal_sight_fn(void *arg, const struct journal_sight *sight);
/* Every damaged place. */
typedef void journal_damage_fn(void *arg, uint64_t segment, uint64_t at,
                               const char *what);

/* IDEM_OK also when damage was found: the report says so. `sight` and `damage`
 * may be NULL. */
enum idem_status idem__journal_check(const char *dir, const struct idem_io *io,
                                     journal_sight_fn *sight,
                                     journal_damage_fn *damage, void *arg,
                                     struct journal_report *report,
                                     struct idem_error *err);

#endif
