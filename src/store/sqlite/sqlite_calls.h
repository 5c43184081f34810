/*
 * sqlite_calls.h - for tests: SQLite's own system calls on the files of one
 * folder go to a table of calls, which records them.
 *
 * Include it in one file of a program: it replaces fsync and fdatasync in the
 * whole program.
 */
#ifndef IDEM__SQLITE_CALLS_H
#define IDEM__SQLITE_CALLS_H

#include "../journal/io.h"

#include <fcntl.h>
#include <sqlite3.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

#define CALLS_FDS 1024

static struct idem_io calls_io; /* what is called instead */
static const char *calls_dir;   /* for the files of this folder; NULL: none */
static bool calls_aside;        /* an image is checked: nothing is recorded */
static bool calls_ours[CALLS_FDS];

static bool
is_ours(int fd)
{
    return fd >= 0 && fd < CALLS_FDS && calls_ours[fd];
}

static int
sys_open(const char *path, int flags, int mode)
{
    size_t len = calls_dir ? strlen(calls_dir) : 0;
    int fd;

    if (calls_aside || len == 0 || strncmp(path, calls_dir, len) != 0)
        return open(path, flags, mode);
    if (path[len] == 0) /* SQLite opens the folder to sync it */
        flags |= O_DIRECTORY;
    fd = calls_io.open(calls_io.arg, AT_FDCWD, path, flags, (mode_t)mode);
    assert_true(fd < CALLS_FDS);
    if (fd >= 0)
        calls_ours[fd] = true;
    return fd;
}

static int
sys_close(int fd)
{
    if (!is_ours(fd))
        return close(fd);
    calls_ours[fd] = false;
    return calls_io.close(calls_io.arg, fd);
}

static ssize_t
sys_pwrite(int fd, const void *data, size_t len, off_t at)
{
    return is_ours(fd) ? calls_io.pwrite(calls_io.arg, fd, data, len, at)
                       : pwrite(fd, data, len, at);
}

static ssize_t
sys_write(int fd, const void *data, size_t len)
{
    off_t at = lseek(fd, 0, SEEK_CUR);
    ssize_t done = sys_pwrite(fd, data, len, at);

    if (done > 0)
        lseek(fd, at + done, SEEK_SET);
    return done;
}

static int
sys_ftruncate(int fd, off_t len)
{
    return is_ours(fd) ? calls_io.ftruncate(calls_io.arg, fd, len)
                       : ftruncate(fd, len);
}

static int
sys_unlink(const char *path)
{
    return calls_aside ? unlink(path)
                       : calls_io.unlink(calls_io.arg, AT_FDCWD, path);
}

/* SQLite calls these two by their names, so they are replaced by their
 * names. An image needs no sync. */
__attribute__((visibility("default"))) int
fdatasync(int fd)
{
    return is_ours(fd) ? calls_io.fdatasync(calls_io.arg, fd) : 0;
}

__attribute__((visibility("default"))) int
fsync(int fd)
{
    return is_ours(fd) ? calls_io.fsync(calls_io.arg, fd) : 0;
}

static void
take_over_calls(void)
{
    static const struct {
        const char *name;
        sqlite3_syscall_ptr call;
    } calls[] = {
        {"open", (sqlite3_syscall_ptr)sys_open},
        {"close", (sqlite3_syscall_ptr)sys_close},
        {"write", (sqlite3_syscall_ptr)sys_write},
        {"pwrite", (sqlite3_syscall_ptr)sys_pwrite},
        {"pwrite64", (sqlite3_syscall_ptr)sys_pwrite},
        {"ftruncate", (sqlite3_syscall_ptr)sys_ftruncate},
        {"unlink", (sqlite3_syscall_ptr)sys_unlink},
    };
    sqlite3_vfs *vfs = sqlite3_vfs_find("unix");

    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++)
        (void)vfs->xSetSystemCall(vfs, calls[i].name, calls[i].call);
    assert_ptr_equal(vfs->xGetSystemCall(vfs, "open"), calls[0].call);
}

#endif
