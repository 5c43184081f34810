/*
 * journal_copy.c - copies a journal segment by segment, oldest first.
 */
#include "copy.h"

#include "journal.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PART (UINT64_C(1) << 20)
#define LOOKS 3 /* tries where a running journal may be writing */

struct copier {
    struct journal from, to; /* only their folders are used */
    uint64_t first, newest;  /* segments of `from` when the copy began */
    uint64_t *there;         /* segments that `to` already had */
    size_t there_count;
    struct journal_copied *copied;
    struct idem_error *err;
    uint8_t *part;
    char source[PATH_MAX]; /* the folder that is copied */
};

static enum idem_status
failed(struct copier *self, const struct journal *where, int error)
{
    return idem__fail(self->err, idem__journal_status(error),
                      "journal: %.150s: %s", where->dir, idem__io_text(error));
}

/* Open a segment of the journal that is copied; the descriptor is -1 if there
 * is none with this number. Any other error must end the copy, because a copy
 * without the segment would look complete. The running journal may make or
 * remove the segment meanwhile, so try several times. */
static enum idem_status
open_source(struct copier *self, uint64_t id, struct segment *segment)
{
    struct journal_name name = idem__segment_name(id, "seg");
    enum idem_status status = IDEM_OK;

    for (int look = 0; look < LOOKS; look++) {
        status =
            idem__segment_open(&self->from, id, O_RDONLY, segment, self->err);
        if (status == IDEM_OK)
            return IDEM_OK;
        segment->fd = -1;
        if (faccessat(self->from.dir_fd, name.text, F_OK, 0) != 0 &&
            errno == ENOENT)
            return IDEM_OK;
    }
    return status;
}

/* Was this segment removed since it was opened? */
static enum idem_status
is_gone(struct copier *self, const struct segment *source, bool *gone)
{
    struct segment now;
    enum idem_status status = open_source(self, source->head.id, &now);

    if (status != IDEM_OK)
        return status;
    *gone = now.fd < 0 || now.head.salt != source->head.salt;
    idem__io_close(self->from.io, now.fd);
    return IDEM_OK;
}

/* The numbers of the oldest and the newest segment; 0: there is none. */
static enum idem_status
find_ends(struct copier *self, uint64_t *oldest, uint64_t *newest)
{
    uint64_t *ids = NULL;
    size_t count = 0;
    enum idem_status status =
        idem__folder_list(&self->from, &ids, &count, self->err);

    *oldest = count > 0 ? ids[0] : 0;
    *newest = count > 0 ? ids[count - 1] : 0;
    free(ids);
    return status;
}

/* Where a segment ends, according to the next one; 0: there is no next one. */
static enum idem_status
sealed_end(struct copier *self, uint64_t id, uint64_t *end)
{
    struct segment next;
    enum idem_status status = open_source(self, id + 1, &next);

    if (status != IDEM_OK)
        return status;
    *end = next.fd < 0 ? 0 : next.head.prev_end;
    idem__io_close(self->from.io, next.fd);
    return IDEM_OK;
}

/*
 * Walk the entries up to `limit`; *end is where the last whole batch ends, or
 * the limit if they fill everything before it: a segment with a torn batch ends
 * after the batch's complete entries. A running journal may be writing there,
 * so try several times.
 */
static enum idem_status
walk_entries(struct copier *self, const struct journal *where,
             const struct segment *segment, uint64_t limit, uint64_t *end,
             bool *damaged)
{
    struct segment_walk walk;
    bool later = true;
    int error = 0;

    *end = SEGMENT_HEAD_LEN;
    idem__walk_init(&walk, where->io, segment->fd, &segment->head, limit);
    for (int look = 0; look < LOOKS && later && !error; look++) {
        struct entry_head head;
        const uint8_t *bytes;
        enum walk_found found;
        uint64_t at, batch;

        walk.filled = 0; /* read the file again */
        while ((found = idem__walk_next(&walk, &head, &bytes)) == WALK_ENTRY) {
            if (head.flags & ENTRY_LAST)
                *end = walk.at;
        }
        at = walk.at;
        batch = walk.batch;
        if (at == limit)
            *end = limit;
        error = found == WALK_ERROR ? errno
                                    : idem__walk_find(&walk, batch + 1, &later);
        walk.at = at;
        walk.batch = batch;
    }
    if (walk.time_us > self->copied->time_us)
        self->copied->time_us = walk.time_us;
    idem__walk_clear(&walk);
    *damaged = later;
    return error ? failed(self, where, error) : IDEM_OK;
}

/* The running journal may have removed this segment and made its file the next
 * spare. So there are fewer bytes if that is shorter, and the head is not read
 * again, because it may be the one of a newer segment. */
static enum idem_status
copy_bytes(struct copier *self, const struct segment *source, int to,
           uint64_t len)
{
    uint8_t head[SEGMENT_HEAD_LEN];
    int error;

    idem__segment_head_put(&source->head, head);
    error = idem__io_write(self->to.io, to, head, sizeof(head), 0);
    if (error)
        return failed(self, &self->to, error);
    for (uint64_t at = sizeof(head); at < len;) {
        size_t want = (size_t)(len - at < PART ? len - at : PART), got = 0;

        error = idem__io_read(self->from.io, source->fd, self->part, want, at,
                              &got);
        if (error)
            return failed(self, &self->from, error);
        if (got == 0)
            break;
        error = idem__io_write(self->to.io, to, self->part, got, at);
        if (error)
            return failed(self, &self->to, error);
        at += got;
    }
    return IDEM_OK;
}

/* Read the copy back, so that a file with a segment's name in `to` is
 * complete. */
static enum idem_status
copy_file(struct copier *self, const struct segment *source, uint64_t end,
          bool *whole)
{
    const struct idem_io *io = self->to.io;
    struct journal_name name = idem__segment_name(source->head.id, "seg");
    struct segment copy = {.head = source->head, .fd = -1};
    uint64_t reached = 0;
    bool damaged = false;
    int error = idem__io_open(io, self->to.dir_fd, "incoming",
                              O_RDWR | O_CREAT | O_TRUNC, &copy.fd);
    enum idem_status status = error ? failed(self, &self->to, error)
                                    : copy_bytes(self, source, copy.fd, end);

    if (status == IDEM_OK)
        status = walk_entries(self, &self->to, &copy, end, &reached, &damaged);
    *whole = status == IDEM_OK && reached == end && !damaged;
    if (*whole) {
        error = idem__io_sync(io, copy.fd);
        if (!error)
            error = idem__io_rename(io, self->to.dir_fd, "incoming", name.text);
        if (error)
            status = failed(self, &self->to, error);
    }
    idem__io_close(io, copy.fd);
    return status;
}

/* Does `to` have this segment, up to `end`? */
static bool
have(struct copier *self, const struct segment *source, uint64_t end)
{
    struct segment mine;

    if (idem__segment_open(&self->to, source->head.id, O_RDONLY, &mine, NULL) !=
        IDEM_OK)
        return false;
    idem__io_close(self->to.io, mine.fd);
    return mine.head.salt == source->head.salt && mine.file_len == end;
}

enum found {
    SEALED, /* copied completely; there is a next one */
    NEWEST, /* copied up to its last complete batch */
    TAKEN,  /* the running journal removed it, and all older ones */
};

/* Copy the open segment up to *end; 0: up to the end of its last batch. */
static enum idem_status
copy_open(struct copier *self, const struct segment *source, uint64_t *end,
          enum found *found)
{
    enum idem_status status = IDEM_OK;
    bool whole = false, damaged = false, gone = false;

    *found = *end ? SEALED : NEWEST;
    if (*found == NEWEST)
        status = walk_entries(self, &self->from, source, source->file_len, end,
                              &damaged);
    if (status == IDEM_OK && !damaged) {
        if (have(self, source, *end))
            return IDEM_OK;
        /* An earlier copy may have more than what is before the damage. */
        status = copy_file(self, source, *end, &whole);
    }
    if (status != IDEM_OK)
        return status;
    if (whole) {
        self->copied->copied_bytes += *end;
        return IDEM_OK;
    }
    status = is_gone(self, source, &gone);
    if (gone)
        *found = TAKEN;
    return status != IDEM_OK || gone
               ? status
               : idem__fail(self->err, IDEM_ERR_CORRUPT,
                            "journal: %.100s: segment %016" PRIx64
                            " is damaged: run idem journal check",
                            self->from.dir, source->head.id);
}

static enum idem_status
missing(struct copier *self, uint64_t id)
{
    return idem__fail(self->err, IDEM_ERR_CORRUPT,
                      "journal: %.100s: segment %016" PRIx64
                      " is missing: run idem journal check",
                      self->from.dir, id);
}

/* There was no next segment. It may be there now, both may be removed, or only
 * the next one is missing. The folder is listed first: a segment of the list
 * was made after the next one, which is removed after this one. */
static enum idem_status
look_again(struct copier *self, const struct segment *source, uint64_t *end,
           enum found *found)
{
    uint64_t oldest, newest, id = source->head.id;
    enum idem_status status = find_ends(self, &oldest, &newest);
    bool gone = false;

    if (status == IDEM_OK)
        status = sealed_end(self, id, end);
    if (status == IDEM_OK && *end == 0)
        status = is_gone(self, source, &gone);
    if (gone)
        *found = TAKEN;
    else if (status == IDEM_OK && *end == 0 && newest > id)
        status = missing(self, id + 1);
    return status;
}

static enum idem_status
copy_segment(struct copier *self, uint64_t id, enum found *found)
{
    uint64_t oldest, newest, end = 0;
    struct segment source;
    enum idem_status status = open_source(self, id, &source);

    *found = TAKEN;
    if (status == IDEM_OK && source.fd < 0) {
        status = find_ends(self, &oldest, &newest);
        return status == IDEM_OK && id >= oldest ? missing(self, id) : status;
    }
    if (status == IDEM_OK)
        status = sealed_end(self, id, &end);
    while (status == IDEM_OK) {
        status = copy_open(self, &source, &end, found);
        if (status != IDEM_OK || *found != NEWEST)
            break;
        status = look_again(self, &source, &end, found);
        if (*found != NEWEST || end == 0)
            break; /* otherwise it was completed during the copy */
    }
    idem__io_close(self->from.io, source.fd);
    return status;
}

/* Delete segments that the copied journal no longer has. Nothing is missing
 * then, because the end of the copy is newer. */
static enum idem_status
drop_older(struct copier *self, uint64_t first)
{
    uint64_t *ids = NULL;
    size_t count = 0;
    enum idem_status status =
        idem__folder_list(&self->to, &ids, &count, self->err);

    for (size_t i = 0; status == IDEM_OK && i < count && ids[i] < first; i++) {
        struct journal_name name = idem__segment_name(ids[i], "seg");
        int error = idem__io_unlink(self->to.io, self->to.dir_fd, name.text);

        if (error)
            status = failed(self, &self->to, error);
    }
    free(ids);
    return status;
}

/* The file "copy-of" names the folder that was copied. If the two have no
 * common segment any more, it distinguishes an old copy from another
 * journal. */
static enum idem_status
same_source(struct copier *self, bool *same)
{
    char text[sizeof(self->source)] = "";
    size_t got = 0;
    int fd = -1;
    int error =
        idem__io_open(self->to.io, self->to.dir_fd, "copy-of", O_RDONLY, &fd);

    if (!error)
        error = idem__io_read(self->to.io, fd, text, sizeof(text) - 1, 0, &got);
    idem__io_close(self->to.io, fd);
    *same = strcmp(text, self->source) == 0;
    return error && error != ENOENT ? failed(self, &self->to, error) : IDEM_OK;
}

/* Does `to` have this segment of `from`? *told: this says whether `to` is a
 * copy of `from`. It does not if `from` has no such segment, or if the copied
 * one is empty, because a start replaces a newest segment without entries. */
static enum idem_status
same_segment(struct copier *self, uint64_t id, bool *told, bool *same)
{
    struct segment mine, source;
    enum idem_status status = open_source(self, id, &source);

    if (status != IDEM_OK || source.fd < 0)
        return status;
    idem__io_close(self->from.io, source.fd);
    status = idem__segment_open(&self->to, id, O_RDONLY, &mine, self->err);
    if (status != IDEM_OK)
        return status;
    idem__io_close(self->to.io, mine.fd);
    *same = mine.head.salt == source.head.salt;
    *told = *same || mine.file_len > SEGMENT_HEAD_LEN;
    return IDEM_OK;
}

/* Is `to` empty, or an earlier copy of `from`? `to` has newer segments if the
 * journal was lost and made again in the same folder, and if an engine opened
 * the copy: then the new one says where the one before it ends, and what is
 * copied behind that would be cut off. */
static enum idem_status
same_journal(struct copier *self, bool *same)
{
    enum idem_status status = IDEM_OK;
    size_t i = self->there_count;
    bool told = i == 0 || self->there[i - 1] > self->newest;

    *same = i == 0;
    while (i > 0 && !told && status == IDEM_OK)
        status = same_segment(self, self->there[--i], &told, same);
    return status == IDEM_OK && !told ? same_source(self, same) : status;
}

/* Under another name first, so that the file is never there without its
 * text. */
static int
put_file(struct copier *self, const char *name, const char *text)
{
    int fd = -1;
    int error = idem__io_open(self->to.io, self->to.dir_fd, "incoming",
                              O_RDWR | O_CREAT | O_TRUNC, &fd);

    if (!error)
        error = idem__io_write(self->to.io, fd, text, strlen(text), 0);
    if (!error)
        error = idem__io_sync(self->to.io, fd);
    if (!error)
        error = idem__io_rename(self->to.io, self->to.dir_fd, "incoming", name);
    idem__io_close(self->to.io, fd);
    return error;
}

static enum idem_status
mark_incomplete(struct copier *self, bool fresh)
{
    int error = put_file(self, JOURNAL_INCOMPLETE, "");

    if (!error && !fresh)
        error = put_file(self, "copy-of", self->source);
    if (!error)
        error = idem__io_sync(self->to.io, self->to.dir_fd);
    return error ? failed(self, &self->to, error) : IDEM_OK;
}

static enum idem_status
mark_complete(struct copier *self)
{
    const struct idem_io *io = self->to.io;
    int error = idem__io_sync(io, self->to.dir_fd);

    if (!error)
        error = idem__io_unlink(io, self->to.dir_fd, JOURNAL_INCOMPLETE);
    if (!error)
        error = idem__io_sync(io, self->to.dir_fd);
    return error ? failed(self, &self->to, error) : IDEM_OK;
}

static enum idem_status
copy_all(struct copier *self, bool fresh, journal_progress_fn *progress,
         void *arg)
{
    uint64_t first = self->first;
    enum found found = SEALED;
    bool same;
    enum idem_status status = same_journal(self, &same);

    if (status != IDEM_OK)
        return status;
    if (!same)
        return idem__fail(self->err, IDEM_ERR_INVALID,
                          "%.120s holds another journal, or a copy that was "
                          "opened since: name an empty folder",
                          self->to.dir);
    status = mark_incomplete(self, fresh);
    for (uint64_t id = first; status == IDEM_OK && found != NEWEST; id++) {
        status = copy_segment(self, id, &found);
        if (status == IDEM_OK && found == TAKEN)
            first = id + 1;
        self->copied->segments = id + 1 - first;
        if (status == IDEM_OK && progress)
            progress(arg, self->copied);
    }
    if (status == IDEM_OK)
        status = drop_older(self, first);
    return status == IDEM_OK ? mark_complete(self) : status;
}

static enum idem_status
open_folders(struct copier *self, bool fresh)
{
    enum idem_status status = idem__folder_look(&self->from, self->err);

    if (status == IDEM_OK)
        status = idem__folder_complete(&self->from, self->err);
    if (status == IDEM_OK)
        status = find_ends(self, &self->first, &self->newest);
    if (status == IDEM_OK && self->first == 0)
        status = idem__fail(self->err, IDEM_ERR_INVALID,
                            "journal: there is no journal in %.120s: name the "
                            "folder of one, as --store journal:DIR does",
                            self->from.dir);
    if (status == IDEM_OK && !realpath(self->from.dir, self->source))
        status = failed(self, &self->from, errno);
    if (status == IDEM_OK)
        status = idem__folder_open(&self->to, self->err);
    if (status == IDEM_OK)
        status = idem__folder_list(&self->to, &self->there, &self->there_count,
                                   self->err);
    if (status == IDEM_OK && fresh && self->there_count > 0 &&
        faccessat(self->to.dir_fd, JOURNAL_INCOMPLETE, F_OK, 0) != 0)
        status = idem__fail(self->err, IDEM_ERR_INVALID,
                            "%.120s already holds a journal: name an empty "
                            "folder",
                            self->to.dir);
    return status;
}

enum idem_status
idem__journal_copy(const char *from, const char *to, bool fresh,
                   journal_progress_fn *progress, void *arg,
                   struct journal_copied *copied, struct idem_error *err)
{
    struct copier *self = calloc(1, sizeof(*self));
    struct idem_error ignored;
    enum idem_status status;

    memset(copied, 0, sizeof(*copied));
    if (!self || !(self->part = malloc(PART))) {
        free(self);
        return idem__fail(err, IDEM_ERR_MEMORY, "journal: out of memory");
    }
    self->copied = copied;
    self->err = err ? err : &ignored;
    self->from.dir = (char *)from;
    self->to.dir = (char *)to;
    self->from.io = self->to.io = &idem__system_io;
    self->from.dir_fd = self->from.lock_fd = -1;
    self->to.dir_fd = self->to.lock_fd = -1;
    self->to.copying = true;
    status = open_folders(self, fresh);
    if (status == IDEM_OK)
        status = copy_all(self, fresh, progress, arg);
    idem__folder_close(&self->from);
    idem__folder_close(&self->to);
    free(self->there);
    free(self->part);
    free(self);
    return status;
}
