/*
 * walk.h - reads a segment from its head to its end, entry by entry.
 *
 * An entry counts only if its checksum, seeded with this segment's salt, is
 * right and its batch number is the expected one. This is used at start-up, by
 * the cleaner and by `idem journal`.
 */
#ifndef IDEM__JOURNAL_WALK_H
#define IDEM__JOURNAL_WALK_H

#include "format.h"
#include "io.h"

struct segment_walk {
    const struct idem_io *io;
    int fd;
    uint64_t salt;
    uint64_t at;     /* offset of the next entry */
    uint64_t limit;  /* nothing at or after this offset is read */
    uint64_t batch;  /* the batch number that the next entry must have */
    int64_t time_us; /* the latest time seen */
    uint8_t *window; /* owned; bytes [from, from + filled) of the file */
    uint64_t from, filled, room;
};

enum walk_found {
    WALK_ENTRY, /* *head and *bytes are set; valid until the next call */
    WALK_STOP,  /* no valid entry starts at walk->at */
    WALK_ERROR, /* could not read, or out of memory; see errno */
};

/* Start after the head. */
void idem__walk_init(struct segment_walk *walk, const struct idem_io *io,
                     int fd, const struct segment_head *head, uint64_t limit);
void idem__walk_clear(struct segment_walk *walk);

enum walk_found idem__walk_next(struct segment_walk *walk,
                                struct entry_head *head, const uint8_t **bytes);

/*
 * After the walk stopped, search the rest for a valid entry of a batch with
 * number min_batch or higher; if there is one, the walk continues there. A
 * batch is written only after the one before it was durable. So if a valid
 * entry of a later batch (walk->batch + 1 or higher) follows in the newest
 * segment, the place is damaged; if none follows, the writer died during a
 * batch. Returns 0 or an errno.
 */
int idem__walk_find(struct segment_walk *walk, uint64_t min_batch, bool *found);

#endif
