/*
 * tape.h - records every change that a program makes to the files of one
 * folder, in order, and makes the files that a power cut leaves.
 *
 * disk.h knows only what is durable now. A tape is played after the run, to any
 * moment of it, so one run gives the images of every moment.
 *
 *   write, truncate of a file   durable after the next sync of that file
 *   a new name, a deleted name  durable after the next sync of the folder
 *
 * Of what is not durable, a power cut leaves the first calls, none or all of
 * them; or each 512-byte sector as it was at a moment of its own.
 */
#ifndef IDEM_TEST_TAPE_H
#define IDEM_TEST_TAPE_H

#include "../../src/store/journal/io.h"

#include <stdbool.h>

enum tape_kind {
    TAPE_WRITE,
    TAPE_TRUNCATE,
    TAPE_SYNC,
    TAPE_MAKE,
    TAPE_DELETE,
    TAPE_SYNC_NAMES,
    TAPE_KINDS,
};

struct tape;

struct tape *tape_new(void);
void tape_clear(struct tape *tape);

/* System calls that are executed and recorded. */
struct idem_io tape_io(struct tape *tape);

/* The number of calls on the tape, or of one kind. A position between 0 and
 * this number is a moment of the run. */
size_t tape_len(const struct tape *tape);
size_t tape_count(const struct tape *tape, enum tape_kind kind);

/* Syncs of files, or of the folder, are ignored when the tape is played. Set
 * this before the first tape_play. */
void tape_deaf(struct tape *tape, bool data, bool folder);

/* Play on to this position, which only grows. */
void tape_play(struct tape *tape, size_t position);
/* The next call on the tape; TAPE_KINDS: there is none. */
enum tape_kind tape_next(const struct tape *tape);
/* The number of calls before this position that are not durable. */
size_t tape_pending(const struct tape *tape);

/* Put what a power cut leaves into this folder, which is emptied: what is
 * durable, and the first `count` calls of what is not. */
void tape_image(const struct tape *tape, const char *dir, size_t count);
/* The same with a random part of what is not. */
void tape_torn_image(const struct tape *tape, const char *dir,
                     uint64_t (*random)(void *arg), void *arg);

#endif
