/*
 * stall_log.c - a disk that hangs: loaded into mariadbd (LD_PRELOAD), it lets
 * no write to InnoDB's redo log and no sync of it begin as long as the file
 * $STALL_LOG exists.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

static int
is_log(int fd)
{
    char link[64], name[512];
    ssize_t len;

    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    len = readlink(link, name, sizeof(name) - 1);
    name[len < 0 ? 0 : len] = 0;
    return strstr(name, "ib_logfile0") != NULL;
}

static void
hold(int fd)
{
    const char *flag = getenv("STALL_LOG");

    while (flag && access(flag, F_OK) == 0 && is_log(fd))
        usleep(5000);
}

#define HOLD(type, name, params, args)                                         \
    type name params                                                           \
    {                                                                          \
        static type(*real) params;                                             \
                                                                               \
        if (!real)                                                             \
            *(void **)&real = dlsym(RTLD_NEXT, #name);                         \
        hold(fd);                                                              \
        return real args;                                                      \
    }

HOLD(ssize_t, pwrite, (int fd, const void *data, size_t len, off_t at),
     (fd, data, len, at))
HOLD(ssize_t, pwrite64, (int fd, const void *data, size_t len, off64_t at),
     (fd, data, len, at))
HOLD(int, fdatasync, (int fd), (fd))
HOLD(int, fsync, (int fd), (fd))
