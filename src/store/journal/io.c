/*
 * io.c - the journal's system calls, with the handling of EINTR and short
 * transfers.
 */
#include "io.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int
sys_open(void *arg, int at, const char *name, int flags, mode_t mode)
{
    (void)arg;
    return openat(at, name, flags, mode);
}

static int
sys_close(void *arg, int fd)
{
    (void)arg;
    return close(fd);
}

static ssize_t
sys_pread(void *arg, int fd, void *data, size_t len, off_t at)
{
    (void)arg;
    return pread(fd, data, len, at);
}

static ssize_t
sys_pwrite(void *arg, int fd, const void *data, size_t len, off_t at)
{
    (void)arg;
    return pwrite(fd, data, len, at);
}

static int
sys_fdatasync(void *arg, int fd)
{
    (void)arg;
    return fdatasync(fd);
}

static int
sys_fsync(void *arg, int fd)
{
    (void)arg;
    return fsync(fd);
}

static int
sys_fallocate(void *arg, int fd, off_t len)
{
    (void)arg;
    return fallocate(fd, 0, 0, len);
}

static int
sys_ftruncate(void *arg, int fd, off_t len)
{
    (void)arg;
    return ftruncate(fd, len);
}

static int
sys_rename(void *arg, int at, const char *from, const char *to)
{
    (void)arg;
    return renameat(at, from, at, to);
}

static int
sys_unlink(void *arg, int at, const char *name)
{
    (void)arg;
    return unlinkat(at, name, 0);
}

const struct idem_io idem__system_io = {
    .open = sys_open,
    .close = sys_close,
    .pread = sys_pread,
    .pwrite = sys_pwrite,
    .fdatasync = sys_fdatasync,
    .fsync = sys_fsync,
    .fallocate = sys_fallocate,
    .ftruncate = sys_ftruncate,
    .rename = sys_rename,
    .unlink = sys_unlink,
};

/* Repeat the call while it is interrupted; 0 or the errno. */
#define AGAIN(call)                                                            \
    for (;;) {                                                                 \
        if ((call) == 0)                                                       \
            return 0;                                                          \
        if (errno != EINTR)                                                    \
            return errno ? errno : EIO;                                        \
    }

/* Returns 0, or why a file that was just opened must not be used. */
static int
check_file(int fd, int flags)
{
    bool reads_only = (flags & O_ACCMODE) == O_RDONLY;
    uid_t self = geteuid();
    struct stat info;

    if (fstat(fd, &info) != 0)
        return errno;
    if (!S_ISREG(info.st_mode))
        return ENXIO;
    return info.st_uid == self || (self == 0 && reads_only) ? 0 : EPERM;
}

/* O_NONBLOCK: if somebody put a pipe there, opening must not block. It has no
 * effect on regular files. */
int
idem__io_open(const struct idem_io *io, int at, const char *name, int flags,
              int *fd)
{
    bool folder = flags & O_DIRECTORY;
    int with = (flags & ~O_TRUNC) | O_CLOEXEC, got, error;

    if (!folder)
        with |= O_NOFOLLOW | O_NONBLOCK | O_NOCTTY;
    do
        got = io->open(io->arg, at, name, with, 0600);
    while (got < 0 && errno == EINTR);
    if (got < 0)
        return errno;
    error = folder ? 0 : check_file(got, flags);
    if (!error && (flags & O_TRUNC))
        error = idem__io_truncate(io, got, 0);
    if (error) {
        idem__io_close(io, got);
        return error;
    }
    *fd = got;
    return 0;
}

const char *
idem__io_text(int error)
{
    switch (error) {
    case ELOOP:
        return "it is a symbolic link, which a journal never follows; "
               "remove it";
    case ENXIO:
        return "it is not a regular file; remove it";
    case EPERM:
        return "it belongs to another user; run idem as that user, or chown "
               "the file";
    default:
        return strerror(error);
    }
}

void
idem__io_close(const struct idem_io *io, int fd)
{
    if (fd >= 0)
        (void)io->close(io->arg, fd);
}

int
idem__io_write(const struct idem_io *io, int fd, const void *data, size_t len,
               uint64_t at)
{
    const uint8_t *from = data;

    while (len > 0) {
        ssize_t n = io->pwrite(io->arg, fd, from, len, (off_t)at);

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? errno : ENOSPC;
        from += n;
        at += (size_t)n;
        len -= (size_t)n;
    }
    return 0;
}

int
idem__io_read(const struct idem_io *io, int fd, void *data, size_t len,
              uint64_t at, size_t *got)
{
    uint8_t *to = data;
    size_t done = 0;

    while (done < len) {
        ssize_t n =
            io->pread(io->arg, fd, to + done, len - done, (off_t)(at + done));

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return errno;
        if (n == 0)
            break;
        done += (size_t)n;
    }
    *got = done;
    return 0;
}

int
idem__io_datasync(const struct idem_io *io, int fd)
{
    AGAIN(io->fdatasync(io->arg, fd));
}

int
idem__io_sync(const struct idem_io *io, int fd)
{
    AGAIN(io->fsync(io->arg, fd));
}

int
idem__io_allocate(const struct idem_io *io, int fd, uint64_t len)
{
    AGAIN(io->fallocate(io->arg, fd, (off_t)len));
}

int
idem__io_truncate(const struct idem_io *io, int fd, uint64_t len)
{
    AGAIN(io->ftruncate(io->arg, fd, (off_t)len));
}

int
idem__io_rename(const struct idem_io *io, int at, const char *from,
                const char *to)
{
    AGAIN(io->rename(io->arg, at, from, to));
}

int
idem__io_unlink(const struct idem_io *io, int at, const char *name)
{
    AGAIN(io->unlink(io->arg, at, name));
}
