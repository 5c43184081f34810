/*
 * io.h - every system call that the journal makes on its files.
 *
 * A table, so that tests can record what would be on the disk after a power
 * cut, and can make any call fail. Each call returns as the system call of the
 * same name does: -1 and errno on failure. EINTR and short transfers are for
 * the helpers below to deal with, not for the rest of the journal.
 *
 * Files are named relative to `at`, the journal's open folder: whatever is
 * renamed, linked or put in its place later, the journal stays where it is.
 */
#ifndef IDEM__JOURNAL_IO_H
#define IDEM__JOURNAL_IO_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct idem_io {
    int (*open)(void *arg, int at, const char *name, int flags, mode_t mode);
    int (*close)(void *arg, int fd);
    ssize_t (*pread)(void *arg, int fd, void *data, size_t len, off_t at);
    ssize_t (*pwrite)(void *arg, int fd, const void *data, size_t len,
                      off_t at);
    int (*fdatasync)(void *arg, int fd);
    int (*fsync)(void *arg, int fd); /* folders, and files made or cut */
    int (*fallocate)(void *arg, int fd, off_t len);
    int (*ftruncate)(void *arg, int fd, off_t len);
    int (*rename)(void *arg, int at, const char *from, const char *to);
    int (*unlink)(void *arg, int at, const char *name);
    void *arg;
};

extern const struct idem_io idem__system_io;

/* These go on after EINTR and short transfers. 0, or an errno. */

/*
 * Open a regular file of this user (root may read anybody's), or a folder with
 * O_DIRECTORY. Nothing is created through a link, followed or cut before that
 * is certain. ELOOP: it is a link; ENXIO: it is no regular file; EPERM: it
 * belongs to another user.
 */
int idem__io_open(const struct idem_io *io, int at, const char *name, int flags,
                  int *fd);
/* What idem__io_open and the other calls report, in words. */
const char *idem__io_text(int error);
void idem__io_close(const struct idem_io *io, int fd); /* -1 is fine */
int idem__io_write(const struct idem_io *io, int fd, const void *data,
                   size_t len, uint64_t at);
/* Reads up to len bytes; *got is less only at the end of the file. */
int idem__io_read(const struct idem_io *io, int fd, void *data, size_t len,
                  uint64_t at, size_t *got);
int idem__io_datasync(const struct idem_io *io, int fd);
int idem__io_sync(const struct idem_io *io, int fd);
int idem__io_allocate(const struct idem_io *io, int fd, uint64_t len);
int idem__io_truncate(const struct idem_io *io, int fd, uint64_t len);
int idem__io_rename(const struct idem_io *io, int at, const char *from,
                    const char *to);
int idem__io_unlink(const struct idem_io *io, int at, const char *name);

#endif
