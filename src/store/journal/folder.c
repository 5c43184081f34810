/*
 * folder.c - the journal's folder: its lock, its names, what is in it.
 */
#include "journal.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

struct journal_path
idem__folder_path(const char *dir, const char *name)
{
    struct journal_path path;

    snprintf(path.text, sizeof(path.text), "%s/%s", dir, name);
    return path;
}

struct journal_path
idem__segment_path(const char *dir, uint64_t id, const char *ending)
{
    struct journal_path path;

    snprintf(path.text, sizeof(path.text), "%s/%016" PRIx64 ".%s", dir, id,
             ending);
    return path;
}

enum idem_status
idem__journal_status(int error)
{
    switch (error) {
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
        return IDEM_ERR_FULL;
    case ENOMEM:
        return IDEM_ERR_MEMORY;
    default:
        return IDEM_ERR_UNAVAILABLE;
    }
}

/* Say what stands in the way of a folder, and what to do about it. */
static enum idem_status
folder_error(const char *dir, int error, struct idem_error *err)
{
    const char *advice = "";

    if (error == ENOTDIR || error == EEXIST)
        advice = ": name a folder, not a file";
    else if (error == EACCES || error == EPERM || error == EROFS)
        advice = ": this user must be able to write there";
    else if (error == ENOENT)
        advice = ": create the folder above it first";
    else if (error == ENOSPC || error == EDQUOT)
        advice = ": make room on that disk";
    return idem__fail(err,
                      error == ENOSPC || error == EDQUOT ? IDEM_ERR_FULL
                                                         : IDEM_ERR_UNAVAILABLE,
                      "journal: %.120s: %s%s", dir, strerror(error), advice);
}

static enum idem_status
lock(struct journal *self, struct idem_error *err)
{
    struct journal_path path = idem__folder_path(self->dir, "lock");
    char pid[32] = "";
    size_t got = 0;
    int error =
        idem__io_open(self->io, path.text, O_RDWR | O_CREAT, &self->lock_fd);

    if (error)
        return folder_error(self->dir, error, err);
    while (flock(self->lock_fd, LOCK_EX | LOCK_NB) != 0) {
        if (errno == EINTR)
            continue;
        if (errno != EWOULDBLOCK)
            return folder_error(self->dir, errno, err);
        (void)idem__io_read(self->io, self->lock_fd, pid, sizeof(pid) - 1, 0,
                            &got);
        pid[strspn(pid, "0123456789")] = 0;
        return idem__fail(err, IDEM_ERR_UNAVAILABLE,
                          "journal: %.120s is in use by process %s: stop it, "
                          "or name another folder",
                          self->dir, pid[0] ? pid : "unknown");
    }
    snprintf(pid, sizeof(pid), "%ld\n", (long)getpid());
    error = idem__io_truncate(self->io, self->lock_fd, 0);
    if (!error)
        error = idem__io_write(self->io, self->lock_fd, pid, strlen(pid), 0);
    /* The pid is for people; a full disk must not keep a journal shut. */
    if (error && idem__journal_status(error) != IDEM_ERR_FULL)
        return folder_error(self->dir, error, err);
    return IDEM_OK;
}

/* Make the folder if only its last part is missing, durably. */
static int
make(struct journal *self)
{
    char *above;
    char *slash;
    int fd = -1, error;

    if (mkdir(self->dir, 0700) != 0)
        return errno == EEXIST ? 0 : errno;
    above = strdup(self->dir);
    if (!above)
        return ENOMEM;
    slash = strrchr(above, '/');
    if (slash)
        slash[slash == above] = 0;
    error = idem__io_open(self->io, slash ? above : ".", O_RDONLY | O_DIRECTORY,
                          &fd);
    free(above);
    if (!error)
        error = idem__io_sync(self->io, fd);
    idem__io_close(self->io, fd);
    return error;
}

enum idem_status
idem__folder_open(struct journal *self, struct idem_error *err)
{
    int error = make(self);

    if (!error)
        error = idem__io_open(self->io, self->dir, O_RDONLY | O_DIRECTORY,
                              &self->dir_fd);
    if (error)
        return folder_error(self->dir, error, err);
    return lock(self, err);
}

void
idem__folder_close(struct journal *self)
{
    idem__io_close(self->io, self->dir_fd);
    idem__io_close(self->io, self->lock_fd); /* which unlocks it */
}

static bool
segment_name(const char *name, const char *ending, uint64_t *id)
{
    char *end;

    if (strlen(name) != 20 || strcmp(name + 16, ending) != 0 ||
        strspn(name, "0123456789abcdef") != 16)
        return false;
    *id = strtoull(name, &end, 16);
    return *id != 0;
}

static int
ascending(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return (x > y) - (x < y);
}

enum idem_status
idem__folder_list(const char *dir, uint64_t **ids, size_t *count,
                  struct idem_error *err)
{
    DIR *folder = opendir(dir);
    struct dirent *file;
    uint64_t *found = NULL;
    size_t n = 0, room = 0;

    if (!folder)
        return folder_error(dir, errno, err);
    while ((file = readdir(folder))) {
        uint64_t id;

        if (!segment_name(file->d_name, ".seg", &id))
            continue;
        if (n == room) {
            uint64_t *more;

            room = room ? room * 2 : 64;
            more = realloc(found, room * sizeof(*found));
            if (!more) {
                free(found);
                closedir(folder);
                return idem__fail(err, IDEM_ERR_MEMORY,
                                  "journal: out of memory");
            }
            found = more;
        }
        found[n++] = id;
    }
    closedir(folder);
    if (n > 0)
        qsort(found, n, sizeof(*found), ascending);
    *ids = found;
    *count = n;
    return IDEM_OK;
}

void
idem__folder_tidy(struct journal *self, uint64_t first, uint64_t last)
{
    DIR *folder = opendir(self->dir);
    struct dirent *file;
    uint64_t id;

    while (folder && (file = readdir(folder))) {
        struct journal_path path = idem__folder_path(self->dir, file->d_name);

        if (segment_name(file->d_name, ".idx", &id) &&
            (id < first || id > last))
            (void)idem__io_unlink(self->io, path.text);
    }
    if (folder)
        closedir(folder);
}
