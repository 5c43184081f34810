/*
 * trouble.c - recovers after a failed write or sync.
 *
 * The kernel may have written all, some or none of the batch, and a second
 * fdatasync that succeeds proves nothing about the pages of the first. So the
 * journal answers nothing from memory until it has read the disk again:
 *
 *   1. the swaps of that batch are LOST, the journal is poisoned, an alarm is
 *      raised; every call gets UNAVAILABLE until
 *   2. the segment that was being written has been read again up to the last
 *      batch that was durable, from the disk as far as the kernel allows, and
 *   3. a new segment is durable whose head says that the old one ends right
 *      there. From then on the lost batch is certainly not stored, neither in
 *      memory nor after a crash, and the identical swaps may be sent again.
 *
 * Every call tries 2 and 3 once, so no restart is needed.
 */
#include "journal.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>

void
idem__journal_poison(struct journal *self, const char *what, int error)
{
    if (!self->poisoned)
        idem__log(
            &self->base.options, IDEM_LOG_ALARM,
            "journal: %s: %s failed: %s; the data of this write may or "
            "may not be on the disk. The journal refuses all operations until "
            "it has read its folder again",
            self->dir, what, strerror(error));
    self->poisoned = true;
    idem__tail_drop(self);
}

/* Does the disk have everything that was acknowledged? */
static int
read_again(struct journal *self)
{
    struct segment *segment = &self->segments[self->segment_count - 1];
    struct segment_walk walk;
    struct entry_head head;
    const uint8_t *bytes;
    enum walk_found found;
    int error = 0;

    (void)posix_fadvise(segment->fd, 0, 0, POSIX_FADV_DONTNEED);
    idem__walk_init(&walk, self->io, segment->fd, &segment->head, segment->end);
    do {
        found = idem__walk_next(&walk, &head, &bytes);
    } while (found == WALK_ENTRY);
    if (found == WALK_ERROR)
        error = errno;
    else if (walk.at != segment->end)
        error = EIO;
    idem__walk_clear(&walk);
    return error;
}

enum idem_status
idem__journal_heal(struct journal *self, struct idem_error *err)
{
    struct idem_error why;
    int error;

    if (!self->poisoned)
        return IDEM_OK;
    error = read_again(self);
    if (error)
        return idem__fail(err, IDEM_ERR_UNAVAILABLE,
                          "journal: %.100s: a write failed, and the folder "
                          "cannot be read again: %s",
                          self->dir, strerror(error));
    if (idem__segment_add(self, 0, true, &why) != IDEM_OK)
        return idem__fail(err, IDEM_ERR_UNAVAILABLE,
                          "a write failed before, and: %.200s", why.text);
    self->poisoned = false;
    self->heals++;
    idem__log(&self->base.options, IDEM_LOG_WARNING,
              "journal: %s: read again; it goes on in segment %016" PRIx64,
              self->dir, self->segments[self->segment_count - 1].head.id);
    return IDEM_OK;
}
