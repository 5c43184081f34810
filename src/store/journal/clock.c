/*
 * clock.c - the journal's own time, which never goes back.
 *
 * While the machine is up, the time advances with CLOCK_BOOTTIME, which cannot
 * be set. The file `clock` has the id of the boot and the offset to add, so a
 * journal that is opened again in the same boot needs no wall clock. The file
 * is not synced, because a power cut also ends that boot.
 *
 * After a reboot only the wall clock shows how long the machine was off. A wall
 * clock that is too far ahead would expire records that clients still rely on;
 * one that is behind only keeps them longer. So it is trusted up to a limit:
 * AHEAD_SYNCED_US if the kernel says that the clock is synchronised, otherwise
 * about the duration of a reboot. If it is further ahead, the journal's time
 * continues from the last known time, with an alarm, and the next open checks
 * again: the time is not sure yet. A later open may then set the time forward,
 * so records that are written meanwhile are kept that much longer.
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

enum remembers { NOTHING, HELD, SURE };

static const char *const words[] = {"", " held\n", " settled\n"};

/* The offset to add to the boot clock, if the file is of this boot. */
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
    if (strcmp(end, words[SURE]) == 0)
        return SURE;
    return strcmp(end, words[HELD]) == 0 ? HELD : NOTHING;
}

/* If the file cannot be written, the next open uses the wall clock. */
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

/* Advance from start_us, which has certainly passed, to the wall clock's time,
 * if that is trusted. */
static enum remembers
ask_wall(struct journal *self, int64_t wall_us)
{
    const struct idem_clocks *clocks = self->base.clocks;
    bool synced = clocks->synced && clocks->synced(clocks->arg);
    int64_t ahead_us = wall_us - self->start_us;

    /* The wall clock is behind, so the journal's time is late enough. If the
     * clock is right, or the machine was off only for a moment, no later open
     * sets the time forward. */
    if (ahead_us < 0 && (synced || -ahead_us <= AHEAD_US))
        return SURE;
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
        return SURE;
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
    if (what != SURE || self->trust_clock)
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
