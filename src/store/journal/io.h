/*
 * io.h - a table of all system calls that the journal makes on its files.
 *
 * With the table tests can record what would be on the disk after a power cut,
 * and can make any call fail. Each call returns like the system call of the
 * same name: -1 and errno on failure. The functions below handle EINTR and
 * short transfers, so the rest of the journal does not need to.
 *
 * Files are named relative to `at`, the journal's open folder. So the journal
 * stays in that folder, even if its path is later renamed or replaced.
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
    int (*fsync)(void *arg, int fd); /* folders, new or truncated files */
    int (*fallocate)(void *arg, int fd, off_t len);
    int (*ftruncate)(void *arg, int fd, off_t len);
    int (*rename)(void *arg, int at, const char *from, const char *to);
    int (*unlink)(void *arg, int at, const char *name);
    void *arg;
};

extern const struct idem_io idem__system_io;

/* These continue after EINTR and short transfers. They return 0 or an errno. */

/*
 * Open a regular file of this user (root may read anybody's), or a folder with
 * O_DIRECTORY. Links are not followed, and nothing is truncated before these
 * checks. ELOOP: it is a link; ENXIO: it is not a regular file; EPERM: it
 * belongs to another user.
 */
int idem__io_open(const struct idem_io *io, int at, const char *name, int flags,
                  int *fd);
/* The text of an error of idem__io_open and the other calls. */
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
