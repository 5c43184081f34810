/*
 * clock.c - the journal's own time, which never goes back.
 *
 * While the machine is up, CLOCK_BOOTTIME counts it, which nobody sets. The
 * file `clock` remembers which boot that was and what to add, so a journal that
 * is opened again in the same boot needs no wall clock. It is not synced: a
 * power cut ends the boot that it speaks of.
 *
 * After a reboot nobody but the wall clock knows how long the machine was off.
 * A wall clock that is too far ahead would expire records that callers still
 * rely on, one that is behind only keeps them longer. So it is believed as far
 * as it deserves: up to AHEAD_SYNCED_US if the kernel says that its clock is
 * synchronised, else for about as long as a reboot takes. Where it is not, the
 * journal's time goes on from what is known, with an alarm, and the next open
 * asks again: the time is not settled. It may be set forward then by what a
 * later open believes, so what is written meanwhile is kept that much longer.
 */
#include "journal.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MINUTE_US INT64_C(60000000)
#define AHEAD_SYNCED_US (7 * 24 * 60 * MINUTE_US)
#define AHEAD_US (30 * MINUTE_US)
#define OFFSET_MOST_US INT64_C(7258118400000000) /* the year 2200 */
#define FILE_NAME "clock"
#define FILE_LEN (IDEM__BOOT_ID_LEN + 32)

enum remembers { NOTHING, HELD, SETTLED };

static const char *const words[] = {"", " held\n", " settled\n"};

/* What to add to the boot clock, if the file is of this boot. */
static enum remembers
read_offset(const struct journal *self, const char *boot_id, int64_t *offset_us)
{
    ssize_t got = -1;
    int fd;
    char text[FILE_LEN], *end;
    size_t id_len = strlen(boot_id);

    if (!idem__io_open(self->io, self->dir_fd, FILE_NAME, O_RDONLY, &fd)) {
        got = read(fd, text, sizeof(text) - 1);
        close(fd);
    }
    if (got < 0)
        return NOTHING;
    text[got] = 0;
    if (strncmp(text, boot_id, id_len) != 0 || text[id_len] != ' ')
        return NOTHING;
    *offset_us = strtoll(text + id_len + 1, &end, 10);
    if (*offset_us <= 0 || *offset_us > OFFSET_MOST_US)
        return NOTHING;
    if (strcmp(end, words[SETTLED]) == 0)
        return SETTLED;
    return strcmp(end, words[HELD]) == 0 ? HELD : NOTHING;
}

/* A file that cannot be written costs what it is for, and nothing else. */
static void
write_offset(const struct journal *self, const char *boot_id,
             enum remembers what)
{
    char text[FILE_LEN];
    int len = snprintf(text, sizeof(text), "%s %" PRId64 "%s", boot_id,
                       self->start_us - self->boot_at_start_us, words[what]);
    int fd;

    if (idem__io_open(self->io, self->dir_fd, FILE_NAME, O_WRONLY | O_CREAT,
                      &fd))
        return;
    if (pwrite(fd, text, (size_t)len, 0) != len || ftruncate(fd, len) != 0)
        (void)unlinkat(self->dir_fd, FILE_NAME, 0);
    close(fd);
}

/* From start_us, which is known to have passed, to what the wall clock says, if
 * that is believed. */
static enum remembers
ask_wall(struct journal *self, int64_t wall_us)
{
    const struct idem_clocks *clocks = self->base.clocks;
    bool synced = clocks->synced && clocks->synced(clocks->arg);
    int64_t ahead_us = wall_us - self->start_us;

    /* Behind: the journal's time is at least as late, and nothing sets it
     * forward if the clock is right or the machine was off for a moment. */
    if (ahead_us < 0 && (synced || -ahead_us <= AHEAD_US))
        return SETTLED;
    if (ahead_us < 0) {
        idem__log(&self->base.options, IDEM_LOG_WARNING,
                  "journal: %s: the wall clock is %" PRId64
                  " ms behind the journal, whose time goes on",
                  self->dir, -ahead_us / 1000);
        return HELD;
    }
    if (self->start_us == 0 || self->trust_clock ||
        ahead_us <= (synced ? AHEAD_SYNCED_US : AHEAD_US)) {
        self->start_us = wall_us;
        return SETTLED;
    }
    idem__log(
        &self->base.options, IDEM_LOG_ALARM,
        "journal: %s: the wall clock is %.1f hours ahead of the journal%s; "
        "nothing expires early: the journal's own time goes on. If the "
        "wall clock is right, open journal:%s?clock=trust once",
        self->dir, (double)ahead_us / 3.6e9,
        synced ? "" : ", and the kernel does not say that it is synchronised",
        self->dir);
    return HELD;
}

void
idem__journal_clock_start(struct journal *self)
{
    const struct idem_clocks *clocks = self->base.clocks;
    int64_t wall_us = clocks->wall_us(clocks->arg), offset_us;
    char boot_id[IDEM__BOOT_ID_LEN];
    bool known = clocks->boot_id && clocks->boot_id(clocks->arg, boot_id);
    enum remembers what =
        known ? read_offset(self, boot_id, &offset_us) : NOTHING;

    self->boot_at_start_us = clocks->boot_us(clocks->arg);
    self->start_us = self->persisted_us;
    if (what != NOTHING && offset_us + self->boot_at_start_us > self->start_us)
        self->start_us = offset_us + self->boot_at_start_us;
    if (what != SETTLED || self->trust_clock)
        what = ask_wall(self, wall_us);
    self->base.behind_us = what == HELD ? AHEAD_SYNCED_US : 0;
    if (known)
        write_offset(self, boot_id, what);
}

int64_t
idem__journal_now_us(const struct journal *self)
{
    return self->start_us + idem__store_boot_us(&self->base) -
           self->boot_at_start_us;
}
