/*
 * io.h - every system call that the journal makes on its files.
 *
 * A table, so that tests can record what would be on the disk after a power
 * cut, and can make any call fail. Each call returns as the system call of the
 * same name does: -1 and errno on failure. EINTR and short transfers are for
 * the helpers below to deal with, not for the rest of the journal.
 */
#ifndef IDEM__JOURNAL_IO_H
#define IDEM__JOURNAL_IO_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct idem_io {
    int (*open)(void *arg, const char *path, int flags, mode_t mode);
    int (*close)(void *arg, int fd);
    ssize_t (*pread)(void *arg, int fd, void *data, size_t len, off_t at);
    ssize_t (*pwrite)(void *arg, int fd, const void *data, size_t len,
                      off_t at);
    int (*fdatasync)(void *arg, int fd);
    int (*fsync)(void *arg, int fd); /* folders, and files made or cut */
    int (*fallocate)(void *arg, int fd, off_t len);
    int (*ftruncate)(void *arg, int fd, off_t len);
    int (*rename)(void *arg, const char *from, const char *to);
    int (*unlink)(void *arg, const char *path);
    void *arg;
};

extern const struct idem_io idem__system_io;

/* These go on after EINTR and short transfers. 0, or an errno. */
int idem__io_open(const struct idem_io *io, const char *path, int flags,
                  int *fd);
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
int idem__io_rename(const struct idem_io *io, const char *from, const char *to);
int idem__io_unlink(const struct idem_io *io, const char *path);

#endif
