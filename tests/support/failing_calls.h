/*
 * failing_calls.h - system calls on files, and allocations, which fail when the
 * test wants.
 *
 * For tests whose name ends in _calls_test.c: the linker calls these functions
 * instead of the real ones (see the Makefile).
 * A call that fails does nothing. Names end in 64 where libc has them so
 * because of _FILE_OFFSET_BITS=64, which the libraries ask for.
 */
#ifndef IDEM_TESTS_FAILING_CALLS_H
#define IDEM_TESTS_FAILING_CALLS_H

#include "failing_alloc.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sodium.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/pidfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

static struct {
    atomic_bool watching;
    size_t seen, fail_at;
    bool for_good;           /* all from there on */
    int error;               /* 0: the usual one of the call */
    const char *only;        /* calls of this name; NULL: all */
    const char *fired;       /* the call that failed */
    void (*meanwhile)(void); /* instead, this happens before the call */
} fault;

/* Returns the errno with which this call fails; 0: it is done. `usual` is the
 * one that a broken disk, or a kernel without memory, would give. */
static int
call_fails_locked(const char *name, int usual)
{
    if (!fault.watching || (fault.only && strcmp(fault.only, name) != 0) ||
        ++fault.seen < fault.fail_at ||
        (fault.seen > fault.fail_at && !fault.for_good))
        return 0;
    fault.fired = name;
    if (fault.meanwhile) {
        fault.watching = false;
        fault.meanwhile();
        return 0;
    }
    return fault.error ? fault.error : usual;
}

/* Other threads make calls, too. */
static int
call_fails(const char *name, int usual)
{
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    int error;

    if (!fault.watching)
        return 0;
    pthread_mutex_lock(&mutex);
    error = call_fails_locked(name, usual);
    pthread_mutex_unlock(&mutex);
    return error;
}

/* From now on the n-th call fails, of those with this name. */
static void
arm(const char *only, size_t n, int error)
{
    fault.only = only;
    fault.seen = 0;
    fault.fail_at = n;
    fault.error = error;
    fault.fired = NULL;
    fault.for_good = false;
    fault.meanwhile = NULL;
    fault.watching = true;
}

static void
disarm(void)
{
    fault.watching = false;
}

static bool
alloc_fails(size_t calloc_len)
{
    (void)calloc_len;
    return call_fails("alloc", ENOMEM) != 0;
}

#define FAILING(type, name, usual, failure, parameters, arguments)             \
    type __real_##name parameters;                                             \
    type __wrap_##name parameters;                                             \
    type __wrap_##name parameters                                              \
    {                                                                          \
        int error = call_fails(#name, usual);                                  \
                                                                               \
        if (!error)                                                            \
            return __real_##name arguments;                                    \
        errno = error;                                                         \
        return failure;                                                        \
    }

FAILING(ssize_t, pread64, EIO, -1, (int fd, void *to, size_t len, off_t at),
        (fd, to, len, at))
FAILING(ssize_t, pwrite64, EIO, -1,
        (int fd, const void *from, size_t len, off_t at), (fd, from, len, at))
FAILING(ssize_t, read, EIO, -1, (int fd, void *to, size_t len), (fd, to, len))
FAILING(int, fsync, EIO, -1, (int fd), (fd))
FAILING(int, fdatasync, EIO, -1, (int fd), (fd))
FAILING(int, ftruncate64, EIO, -1, (int fd, off_t len), (fd, len))
FAILING(int, fallocate64, EIO, -1, (int fd, int mode, off_t at, off_t len),
        (fd, mode, at, len))
FAILING(int, renameat, EIO, -1,
        (int from, const char *old, int to, const char *name),
        (from, old, to, name))
FAILING(int, unlinkat, EIO, -1, (int at, const char *name, int flags),
        (at, name, flags))
FAILING(int, faccessat, EIO, -1,
        (int at, const char *name, int mode, int flags),
        (at, name, mode, flags))
FAILING(int, fstat64, EIO, -1, (int fd, struct stat *info), (fd, info))
FAILING(int, lstat64, EIO, -1, (const char *name, struct stat *info),
        (name, info))
FAILING(int, mkdir, EIO, -1, (const char *name, mode_t mode), (name, mode))
FAILING(int, flock, ENOLCK, -1, (int fd, int operation), (fd, operation))
FAILING(DIR *, fdopendir, ENOMEM, NULL, (int fd), (fd))
FAILING(struct dirent64 *, readdir64, EIO, NULL, (DIR * folder), (folder))
FAILING(char *, realpath, EIO, NULL, (const char *name, char *to), (name, to))
FAILING(void *, mmap64, ENOMEM, MAP_FAILED,
        (void *where, size_t len, int may, int flags, int fd, off_t at),
        (where, len, may, flags, fd, at))

FAILING(int, pipe2, EMFILE, -1, (int ends[2], int flags), (ends, flags))
FAILING(int, pidfd_open, ENOSYS, -1, (pid_t pid, unsigned flags), (pid, flags))
FAILING(int, getsockopt, ENOTSOCK, -1,
        (int fd, int level, int name, void *to, socklen_t *len),
        (fd, level, name, to, len))
FAILING(FILE *, fopen64, EMFILE, NULL, (const char *name, const char *mode),
        (name, mode))
FAILING(void *, sodium_malloc, ENOMEM, NULL, (size_t len), (len))
FAILING(int, sodium_init, ENOMEM, -1, (void), ())

int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
                          void *(*run)(void *), void *arg);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
                          void *(*run)(void *), void *arg);
int
__wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
                      void *(*run)(void *), void *arg)
{
    int error = call_fails("pthread_create", EAGAIN);

    return error ? error : __real_pthread_create(thread, attributes, run, arg);
}

/* Instead of an error: the number that is added to the user's. */
uid_t __real_geteuid(void);
uid_t __wrap_geteuid(void);
uid_t
__wrap_geteuid(void)
{
    return __real_geteuid() + (uid_t)call_fails("geteuid", 0);
}

int __real_openat64(int at, const char *name, int flags, mode_t mode);
int __wrap_openat64(int at, const char *name, int flags, mode_t mode);
int
__wrap_openat64(int at, const char *name, int flags, mode_t mode)
{
    int error = call_fails("openat64", EIO);

    if (!error)
        return __real_openat64(at, name, flags, mode);
    errno = error;
    return -1;
}

#endif
