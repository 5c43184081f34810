/*
 * walk.c - reads a segment entry by entry.
 */
#include "walk.h"

#include "../../base/le.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define WINDOW_LEN (UINT64_C(1) << 20)

void
idem__walk_init(struct segment_walk *walk, const struct idem_io *io, int fd,
                const struct segment_head *head, uint64_t limit)
{
    memset(walk, 0, sizeof(*walk));
    walk->io = io;
    walk->fd = fd;
    walk->salt = head->salt;
    walk->at = SEGMENT_HEAD_LEN;
    walk->limit = limit;
    walk->batch = head->first_batch;
    walk->time_us = head->time_us;
}

void
idem__walk_clear(struct segment_walk *walk)
{
    free(walk->window);
    walk->window = NULL;
    walk->room = walk->filled = 0;
}

/* Load `len` bytes from `at` into the window, as far as the file has them. */
static int
fill(struct segment_walk *walk, uint64_t at, uint64_t len)
{
    uint64_t room = walk->limit < WINDOW_LEN ? walk->limit : WINDOW_LEN;
    size_t got;
    int error;

    if (room < len)
        room = len;
    if (at >= walk->from && at + len <= walk->from + walk->filled)
        return 0;
    if (walk->room < room) {
        uint8_t *window = realloc(walk->window, room);

        if (!window)
            return ENOMEM;
        walk->window = window;
        walk->room = room;
    }
    room = at < walk->limit ? walk->limit - at : 0;
    if (room > walk->room)
        room = walk->room;
    walk->from = at;
    walk->filled = 0;
    error = idem__io_read(walk->io, walk->fd, walk->window, room, at, &got);
    if (error == 0)
        walk->filled = got;
    return error;
}

/* Read the entry at `at`, of any batch. */
static enum walk_found
look(struct segment_walk *walk, uint64_t at, struct entry_head *head,
     const uint8_t **bytes)
{
    uint64_t need = ENTRY_HEAD_LEN;

    for (;;) {
        uint64_t have;
        enum entry_look seen;
        int error;

        if (need > walk->limit || at > walk->limit - need)
            return WALK_STOP;
        error = fill(walk, at, need);
        if (error) {
            errno = error;
            return WALK_ERROR;
        }
        have = walk->from + walk->filled - at;
        if (have < need)
            return WALK_STOP; /* the file is shorter than its segment */
        *bytes = walk->window + (at - walk->from);
        seen = idem__entry_get(*bytes, have, walk->salt, head, &need);
        if (seen != ENTRY_MORE)
            return seen == ENTRY_FINE ? WALK_ENTRY : WALK_STOP;
    }
}

enum walk_found
idem__walk_next(struct segment_walk *walk, struct entry_head *head,
                const uint8_t **bytes)
{
    enum walk_found found = look(walk, walk->at, head, bytes);

    if (found != WALK_ENTRY)
        return found;
    if (head->batch != walk->batch)
        return WALK_STOP;
    walk->batch += (head->flags & ENTRY_LAST) != 0;
    walk->at += entry_len(head->body_len);
    if (head->time_us > walk->time_us)
        walk->time_us = head->time_us;
    return WALK_ENTRY;
}

/* How many bytes from `at` on cannot begin an entry, because the word with the
 * entry's kind is zero. Only the window is looked at. */
static uint64_t
zeros(const struct segment_walk *walk, uint64_t at)
{
    const uint8_t *words = walk->window + (at - walk->from) + ENTRY_ALIGN;
    uint64_t len = walk->from + walk->filled - at - ENTRY_ALIGN, n = 0;

    while (n + ENTRY_ALIGN <= len && idem__get64(words + n) == 0)
        n += ENTRY_ALIGN;
    return n;
}

int
idem__walk_find(struct segment_walk *walk, uint64_t min_batch, bool *found)
{
    uint64_t skip;

    *found = false;
    for (uint64_t at = walk->at; at + ENTRY_HEAD_LEN <= walk->limit;
         at += skip) {
        struct entry_head head;
        const uint8_t *bytes;
        int error = fill(walk, at, ENTRY_HEAD_LEN);

        if (error)
            return error;
        if (walk->from + walk->filled < at + ENTRY_HEAD_LEN)
            return 0;
        bytes = walk->window + (at - walk->from);
        skip = zeros(walk, at);
        if (skip > 0)
            continue;
        skip = ENTRY_ALIGN;
        if (bytes[12] == 0 || !idem__entry_plausible(bytes, walk->salt) ||
            idem__get64(bytes + 16) < min_batch)
            continue;
        switch (look(walk, at, &head, &bytes)) {
        case WALK_ENTRY:
            walk->at = at;
            walk->batch = head.batch;
            *found = true;
            return 0;
        case WALK_ERROR:
            return errno;
        case WALK_STOP:
            break;
        }
    }
    return 0;
}
