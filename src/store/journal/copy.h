/*
 * copy.h - copies a journal, running or not, to another folder.
 *
 * The log only grows at its end, and only its oldest segment is ever removed,
 * after its live entries were written again at the end. So if segments are
 * copied from the oldest to the newest, the copy is the log up to some moment,
 * with the state at that moment; nothing that was acknowledged before the copy
 * began is missing. If the running journal removes a segment during the copy,
 * that segment and all older ones are left out.
 */
#ifndef IDEM__JOURNAL_COPY_H
#define IDEM__JOURNAL_COPY_H

#include "../../record/record.h"

struct journal_copied {
    uint64_t segments;     /* segments in the copy */
    uint64_t copied_bytes; /* without what was there from an earlier copy */
    int64_t time_us;       /* of the newest batch in the copy */
};

/* Called after each segment. */
typedef void journal_progress_fn(void *arg, const struct journal_copied *now);

/*
 * Copy `from` into `to`, which is created if it is missing. `fresh`: `to` must
 * not hold a journal. Otherwise it may hold an older copy of the same journal,
 * and whole segments are not copied again. Until the copy is finished, `to`
 * contains a file "incomplete", and no engine opens it.
 */
enum idem_status idem__journal_copy(const char *from, const char *to,
                                    bool fresh, journal_progress_fn *progress,
                                    void *arg, struct journal_copied *copied,
                                    struct idem_error *err);

#endif
