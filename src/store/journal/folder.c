/*
 * folder.c - the journal's folder: its lock, the names of its files, and
 * listing them.
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

struct journal_name
idem__segment_name(uint64_t id, const char *ending)
{
    struct journal_name name;

    snprintf(name.text, sizeof(name.text), "%016" PRIx64 ".%s", id, ending);
    return name;
}

uint64_t
idem__folder_file_len(const struct journal *self, const char *name)
{
    struct stat info;

    return fstatat(self->dir_fd, name, &info, AT_SYMLINK_NOFOLLOW) == 0 &&
                   S_ISREG(info.st_mode)
               ? (uint64_t)info.st_size
               : 0;
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

/* Say why a folder cannot be used, and what to do about it. */
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
in_use(struct journal *self, struct idem_error *err)
{
    char pid[32] = "";
    size_t got = 0;
    int fd = -1;

    if (!idem__io_open(self->io, self->dir_fd, "lock", O_RDONLY, &fd))
        (void)idem__io_read(self->io, fd, pid, sizeof(pid) - 1, 0, &got);
    idem__io_close(self->io, fd);
    pid[strspn(pid, "0123456789")] = 0;
    return idem__fail(err, IDEM_ERR_UNAVAILABLE,
                      "journal: %.120s" IDEM__JOURNAL_IN_USE
                      "%s" IDEM__JOURNAL_STOP_IT,
                      self->dir, pid[0] ? pid : "unknown");
}

static enum idem_status
lock_fd(struct journal *self, int fd, struct idem_error *err)
{
    while (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        if (errno == EWOULDBLOCK)
            return in_use(self, err);
        if (errno != EINTR)
            return folder_error(self->dir, errno, err);
    }
    return IDEM_OK;
}

/* The lock is on the folder, which cannot be removed while it contains files.
 * The file `lock` says which process holds the lock. It is locked too, because
 * idem 0.1 checks only that file. */
static enum idem_status
lock(struct journal *self, struct idem_error *err)
{
    enum idem_status status = lock_fd(self, self->dir_fd, err);
    char pid[32];
    int error;

    if (status != IDEM_OK)
        return status;
    error = idem__io_open(self->io, self->dir_fd, "lock", O_RDWR | O_CREAT,
                          &self->lock_fd);
    if (error == ELOOP || error == ENXIO || error == EPERM)
        return idem__fail(err, IDEM_ERR_UNAVAILABLE, "journal: %.120s/lock: %s",
                          self->dir, idem__io_text(error));
    if (error)
        return folder_error(self->dir, error, err);
    status = lock_fd(self, self->lock_fd, err);
    if (status != IDEM_OK)
        return status;
    snprintf(pid, sizeof(pid), "%ld\n", (long)getpid());
    error = idem__io_truncate(self->io, self->lock_fd, 0);
    if (!error)
        error = idem__io_write(self->io, self->lock_fd, pid, strlen(pid), 0);
    /* The pid is only for people, so a full disk must not prevent opening. */
    if (error && idem__journal_status(error) != IDEM_ERR_FULL)
        return folder_error(self->dir, error, err);
    return IDEM_OK;
}

/* Create the folder if only its last part is missing, durably. */
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
    error = idem__io_open(self->io, AT_FDCWD, slash ? above : ".",
                          O_RDONLY | O_DIRECTORY, &fd);
    free(above);
    if (!error)
        error = idem__io_sync(self->io, fd);
    idem__io_close(self->io, fd);
    return error;
}

/* Check that only this user can change the folder. Other users who can write
 * there could replace files, and the owner of a link to it could redirect it to
 * another folder. */
static enum idem_status
check_owner(struct journal *self, struct idem_error *err)
{
    uid_t self_id = geteuid();
    struct stat info;

    if (lstat(self->dir, &info) == 0 && S_ISLNK(info.st_mode) &&
        info.st_uid != self_id && info.st_uid != 0)
        return idem__fail(err, IDEM_ERR_UNAVAILABLE,
                          "journal: %.120s is a symbolic link that belongs to "
                          "user %u, not to you (user %u): name the folder "
                          "itself, or another folder",
                          self->dir, (unsigned)info.st_uid, (unsigned)self_id);
    if (fstat(self->dir_fd, &info) != 0)
        return folder_error(self->dir, errno, err);
    if (info.st_uid != self_id)
        return idem__fail(err, IDEM_ERR_UNAVAILABLE,
                          "journal: %.120s belongs to user %u, not to you "
                          "(user %u): run idem as that user, chown the folder "
                          "and its files, or name another folder",
                          self->dir, (unsigned)info.st_uid, (unsigned)self_id);
    if (info.st_mode & (S_IWGRP | S_IWOTH))
        return idem__fail(err, IDEM_ERR_UNAVAILABLE,
                          "journal: other users can write in %.120s (mode "
                          "%04o): run chmod go-w on it, or name another folder",
                          self->dir, (unsigned)info.st_mode & 07777);
    return IDEM_OK;
}

enum idem_status
idem__folder_look(struct journal *self, struct idem_error *err)
{
    int error = idem__io_open(self->io, AT_FDCWD, self->dir,
                              O_RDONLY | O_DIRECTORY, &self->dir_fd);

    if (error == ENOENT)
        return idem__fail(err, IDEM_ERR_INVALID,
                          "journal: there is no folder %.120s: name the folder "
                          "of a journal, as --store journal:DIR does",
                          self->dir);
    return error ? folder_error(self->dir, error, err) : IDEM_OK;
}

enum idem_status
idem__folder_complete(struct journal *self, struct idem_error *err)
{
    if (faccessat(self->dir_fd, JOURNAL_INCOMPLETE, F_OK, 0) != 0)
        return errno == ENOENT ? IDEM_OK : folder_error(self->dir, errno, err);
    return idem__fail(
        err, IDEM_ERR_CORRUPT,
        "journal: %.120s is a copy that was interrupted: run idem "
        "backup or idem restore again, whichever began it",
        self->dir);
}

enum idem_status
idem__folder_open(struct journal *self, struct idem_error *err)
{
    int error = make(self);
    enum idem_status status = error ? folder_error(self->dir, error, err)
                                    : idem__folder_look(self, err);

    if (status == IDEM_OK)
        status = check_owner(self, err);
    if (status == IDEM_OK)
        status = lock(self, err);
    return status == IDEM_OK && !self->copying
               ? idem__folder_complete(self, err)
               : status;
}

void
idem__folder_close(struct journal *self)
{
    idem__io_close(self->io, self->lock_fd);
    idem__io_close(self->io, self->dir_fd); /* this also unlocks it */
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

static DIR *
list_open(const struct journal *self)
{
    DIR *folder;
    int fd;

    do
        fd = openat(self->dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    while (fd < 0 && errno == EINTR);
    folder = fd < 0 ? NULL : fdopendir(fd);
    if (!folder && fd >= 0)
        close(fd);
    return folder;
}

/* The next file; NULL: there is no other, or *error says why it is not known. A
 * list that ends early would hide segments. */
static const struct dirent *
list_next(DIR *folder, int *error)
{
    const struct dirent *file;

    do {
        errno = 0;
        file = readdir(folder);
        *error = file ? 0 : errno;
    } while (*error == EINTR);
    return file;
}

enum idem_status
idem__folder_list(const struct journal *self, uint64_t **ids, size_t *count,
                  struct idem_error *err)
{
    DIR *folder = list_open(self);
    const struct dirent *file;
    uint64_t *found = NULL;
    size_t n = 0, room = 0;
    int error = 0;

    if (!folder)
        return folder_error(self->dir, errno, err);
    while (!error && (file = list_next(folder, &error))) {
        uint64_t id, *more;

        if (!segment_name(file->d_name, ".seg", &id))
            continue;
        more = idem__grow(found, n, &room, sizeof(*found));
        if (more) {
            found = more;
            found[n++] = id;
        } else {
            error = ENOMEM;
        }
    }
    closedir(folder);
    if (error) {
        free(found);
        return error == ENOMEM
                   ? idem__fail(err, IDEM_ERR_MEMORY, "journal: out of memory")
                   : folder_error(self->dir, error, err);
    }
    if (n > 0)
        qsort(found, n, sizeof(*found), ascending);
    *ids = found;
    *count = n;
    return IDEM_OK;
}

void
idem__folder_tidy(struct journal *self, uint64_t first, uint64_t last)
{
    DIR *folder = list_open(self);
    struct dirent *file;
    uint64_t id;

    while (folder && (file = readdir(folder))) {
        if (segment_name(file->d_name, ".idx", &id) &&
            (id < first || id > last))
            (void)idem__io_unlink(self->io, self->dir_fd, file->d_name);
    }
    if (folder)
        closedir(folder);
}
