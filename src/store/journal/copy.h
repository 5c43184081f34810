/*
 * copy.h - copy a journal, running or not, to another folder.
 *
 * The log only grows at its end, and only its oldest segment is ever taken
 * away, after what lived in it was written again at the end. So segments that
 * are copied from the oldest to the newest are the log up to some moment, and
 * the state at that moment: nothing that was acknowledged before the copy began
 * is missing. A segment that the running journal takes away meanwhile is left
 * out, with everything older.
 */
#ifndef IDEM__JOURNAL_COPY_H
#define IDEM__JOURNAL_COPY_H

#include "../../record/record.h"

struct journal_copied {
    uint64_t segments;     /* that the copy has */
    uint64_t copied_bytes; /* the rest was there from the last time */
    int64_t time_us;       /* the journal's time at the end of the copy */
};

/* Called after each segment. */
typedef void journal_progress_fn(void *arg, const struct journal_copied *now);

/*
 * Copy `from` into `to`, which is made if it is missing. `fresh`: `to` must not
 * hold a journal. Otherwise it may hold an older copy of the same journal, and
 * whole segments are not copied again. While the copy is not finished, `to`
 * holds a file "incomplete", and no engine opens it.
 */
enum idem_status idem__journal_copy(const char *from, const char *to,
                                    bool fresh, journal_progress_fn *progress,
                                    void *arg, struct journal_copied *copied,
                                    struct idem_error *err);

#endif
