/*
 * journal_check.h - checks a journal, running or not, without changing
 * anything.
 *
 * It takes no lock. Entries that are written meanwhile may or may not be seen,
 * and segments that the running journal removes meanwhile are left out.
 */
#ifndef IDEM__JOURNAL_CHECK_H
#define IDEM__JOURNAL_CHECK_H

#include "format.h"
#include "io.h"

struct journal_report {
    uint64_t segments, first_segment, last_segment;
    uint64_t entries, records, deletes, marks;
    uint64_t live, executing; /* current records, expired or not */
    uint64_t used_bytes, live_bytes;
    bool torn;                   /* the last batch was not completely written */
    uint64_t saved, saved_wrong; /* valid and ignored saved indexes */
    uint64_t damaged;            /* number of damaged places */
    int64_t time_us;             /* the latest time in the log */
};

struct journal_sight {
    uint64_t segment, at;
    const struct entry_head *head;
    const struct idem_record *record; /* NULL: a delete or a mark */
    bool live;                        /* no later entry replaced it */
};

/* Called for every entry in order; returning false stops. */
typedef bool journal_sight_fn(void *arg, const struct journal_sight *sight);
/* Called for every damaged place. */
typedef void journal_damage_fn(void *arg, uint64_t segment, uint64_t at,
                               const char *what);

/* Returns IDEM_OK also if there is damage; the report says so. `sight` and
 * `damage` may be NULL. */
enum idem_status idem__journal_check(const char *dir, const struct idem_io *io,
                                     journal_sight_fn *sight,
                                     journal_damage_fn *damage, void *arg,
                                     struct journal_report *report,
                                     struct idem_error *err);

#endif
