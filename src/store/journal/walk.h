/*
 * walk.h - read a segment from its head to its end, entry by entry.
 *
 * Nothing in the file is believed: an entry counts when its checksum, seeded
 * with this segment's salt, holds and its batch number is the one that must
 * come next. Used at start-up, by the cleaner and by `idem journal`.
 */
#ifndef IDEM__JOURNAL_WALK_H
#define IDEM__JOURNAL_WALK_H

#include "format.h"
#include "io.h"

struct segment_walk {
    const struct idem_io *io;
    int fd;
    uint64_t salt;
    uint64_t at;     /* of the next entry */
    uint64_t limit;  /* nothing is read from here on */
    uint64_t batch;  /* number that the next entry must have */
    int64_t time_us; /* the latest seen */
    uint8_t *window; /* owned; bytes [from, from + filled) of the file */
    uint64_t from, filled, room;
};

enum walk_step {
    WALK_ENTRY, /* *head and *bytes are set; valid until the next call */
    WALK_STOP,  /* no valid entry starts at walk->at */
    WALK_ERROR, /* could not read, or no memory; errno */
};

/* Start behind the head. */
void idem__walk_init(struct segment_walk *walk, const struct idem_io *io,
                     int fd, const struct segment_head *head, uint64_t limit);
void idem__walk_clear(struct segment_walk *walk);

enum walk_step idem__walk_next(struct segment_walk *walk,
                               struct entry_head *head, const uint8_t **bytes);

/*
 * Look behind a place where the walk stopped for a valid entry of a batch from
 * min_batch on; if there is one, the walk stands there. A batch is written only
 * after the one before it was durable. So where the newest segment stops, a
 * valid entry of a later batch (walk->batch + 1 on) means damage, and none
 * means a batch whose writer died. 0, or an errno.
 */
int idem__walk_find(struct segment_walk *walk, uint64_t min_batch, bool *found);

#endif
