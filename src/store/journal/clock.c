/*
 * clock.c - the journal's own time, which never goes back.
 *
 * The larger of what the log remembers and the wall clock at start, counted on
 * by CLOCK_BOOTTIME, which nobody sets. A wall clock that is far ahead of the
 * log is more often wrong than right, and would expire records that callers
 * still rely on: then the log's time goes on and an alarm is raised.
 */
#include "journal.h"

#include <inttypes.h>

#define AHEAD_MAX_US (INT64_C(7) * 24 * 3600 * 1000000)

void
idem__journal_clock_start(struct journal *self)
{
    int64_t wall_us = self->clocks->wall_us(self->clocks->arg);
    int64_t ahead_us = wall_us - self->persisted_us;

    self->boot_at_start_us = self->clocks->boot_us(self->clocks->arg);
    self->start_us = wall_us;
    if (self->persisted_us == 0)
        return;
    if (ahead_us < 0) {
        self->start_us = self->persisted_us;
        idem__log(&self->options, IDEM_LOG_WARNING,
                  "journal: %s: the wall clock is %" PRId64
                  " ms behind the journal, whose time goes on",
                  self->dir, -ahead_us / 1000);
    } else if (ahead_us > AHEAD_MAX_US && !self->trust_clock) {
        self->start_us = self->persisted_us;
        idem__log(&self->options, IDEM_LOG_ALARM,
                  "journal: %s: the wall clock is %" PRId64
                  " days ahead of the journal; nothing expires early: the "
                  "journal's own time goes on. If the wall clock is right, "
                  "open journal:%s?clock=trust once",
                  self->dir, ahead_us / 1000000 / 86400, self->dir);
    }
}

int64_t
idem__journal_now_us(const struct journal *self)
{
    return self->start_us + self->clocks->boot_us(self->clocks->arg) -
           self->boot_at_start_us;
}
