/*
 * faults.c - loaded into a program with LD_PRELOAD, lets one allocation or one
 * system call of it fail: the n-th from the moment at which a test says so.
 *
 * IDEM_FAULTS names a file with struct faults, which the test and the program
 * share. A test writes `kind` last. When the call has failed, `fired` has its
 * name, and no other one fails.
 *
 *   1  an allocation fails
 *   2  a call fails with the error that it has when a disk, a line or the
 *      system gives up
 *   3  a call is interrupted (EINTR)
 *   4  a call reads or writes one byte only
 *   5  and 6 are for a program that asks idem_fault() itself (module.c)
 *   7  a call fails that sets something up: a file's name and mode, a socket,
 *      a signal, a look-up
 *   8  an allocation by the program or one of idem's modules fails
 *
 * With IDEM_FAULTS_ALONE the programs that this one starts have no faults.
 *
 * Only what the kernel can do happens:
 * - A read or write of a non-blocking eventfd moves 8 bytes or fails with
 *   EAGAIN. libmicrohttpd relies on it: it does not write again, and a
 *   connection that it was to resume would wait for the next event.
 * - recv and send move fewer bytes than asked for only if the socket has no
 *   more bytes or no more room. libmicrohttpd relies on it: it waits for
 *   epoll's next edge (EPOLLET) after such a call, as epoll(7) describes it.
 *   For a byte that we held back there would be no edge.
 *
 * `own` limits this to calls that the program itself makes, without those of
 * its libraries. They are few enough to let each of them fail.
 *
 * While glibc looks up a user, nothing fails: without memory it dereferences
 * NULL or ends the program with an assertion (2.36, nss_database.c). Under
 * scripts/coverage nothing fails after main: gcov writes its counters then.
 */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <link.h>
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <pwd.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum kind { NONE, ALLOC, HARD, INTERRUPTED, SHORT, SETUP = 7, OWN_ALLOC };

struct faults {
    _Atomic int32_t kind;
    _Atomic int32_t left; /* 1: the next one */
    _Atomic int64_t seen; /* calls of that kind so far */
    char fired[32];
    _Atomic int32_t own;
};

static struct faults nobody, *faults = &nobody;
static char own_name[4096];

__attribute__((constructor)) static void
open_file(void)
{
    const char *path = getenv("IDEM_FAULTS");
    int fd = path ? (int)syscall(SYS_openat, AT_FDCWD, path, O_RDWR) : -1;
    void *at;

    if (getenv("IDEM_FAULTS_ALONE")) /* not in what this program runs */
        unsetenv("LD_PRELOAD");
    if (fd < 0 ||
        readlink("/proc/self/exe", own_name, sizeof(own_name) - 1) < 0)
        return;
    at = mmap(NULL, sizeof(*faults), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    syscall(SYS_close, fd);
    if (at != MAP_FAILED)
        faults = at;
    if (getenv("IDEM_FAULTS_ALONE")) {
        unsetenv("LD_PRELOAD");
        unsetenv("IDEM_FAULTS");
    }
}

static uintptr_t program_from, program_to;

/* The first object is the program. */
static int
find_program(struct dl_phdr_info *info, size_t len, void *arg)
{
    (void)len;
    (void)arg;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[i];

        if (part->p_type == PT_LOAD && part->p_flags & PF_X) {
            program_from = info->dlpi_addr + part->p_vaddr;
            program_to = program_from + part->p_memsz;
        }
    }
    return 1;
}

__attribute__((constructor)) static void
note_program(void)
{
    dl_iterate_phdr(find_program, NULL);
}

#define CALLER ((uintptr_t)__builtin_return_address(0))

/* Is this call one of a library, while only the program's calls fail? */
static bool
is_spared(uintptr_t caller)
{
    return atomic_load(&faults->own) &&
           (caller < program_from || caller >= program_to);
}

static int (*real_main)(int, char **, char **);

static int
main_then_no_faults(int argc, char **argv, char **env)
{
    int code = real_main(argc, argv, env);

    faults = &nobody;
    return code;
}

int __libc_start_main(int (*main)(int, char **, char **), int argc, char **argv,
                      void (*init)(void), void (*fini)(void),
                      void (*loader_fini)(void), void *stack_end);

/* The C library's start code calls this, and this calls main. */
int
__libc_start_main(int (*main)(int, char **, char **), int argc, char **argv,
                  void (*init)(void), void (*fini)(void),
                  void (*loader_fini)(void), void *stack_end)
{
    __typeof__(&__libc_start_main) real;

    *(void **)&real = dlsym(RTLD_NEXT, "__libc_start_main");
    real_main = main;
    if (getenv("IDEM_COVERAGE"))
        main = main_then_no_faults;
    return real(main, argc, argv, init, fini, loader_fini, stack_end);
}

static bool
is_armed(void)
{
    return atomic_load(&faults->kind) != NONE;
}

static _Thread_local bool spared;

bool idem_fault(int kind, const char *name);

static bool
now(enum kind kind, const char *name)
{
    if (spared || atomic_load(&faults->kind) != (int32_t)kind)
        return false;
    atomic_fetch_add(&faults->seen, 1);
    if (atomic_fetch_sub(&faults->left, 1) != 1)
        return false;
    atomic_store(&faults->kind, NONE);
    strncpy(faults->fired, name, sizeof(faults->fired) - 1);
    return true;
}

bool
idem_fault(int kind, const char *name)
{
    return now((enum kind)kind, name);
}

/* ---- allocations ------------------------------------------------------- */

void *__libc_malloc(size_t len);
void *__libc_calloc(size_t count, size_t len);
void *__libc_realloc(void *old, size_t len);

static bool
is_own(uintptr_t caller)
{
    Dl_info in;

    return dladdr((const void *)caller, &in) &&
           (strstr(in.dli_fname, "/modules/") ||
            strcmp(in.dli_fname, own_name) == 0);
}

static bool
no_memory(const char *name, uintptr_t caller)
{
    if ((is_spared(caller) || !now(ALLOC, name)) &&
        !(atomic_load(&faults->kind) == OWN_ALLOC && is_own(caller) &&
          now(OWN_ALLOC, name)))
        return false;
    errno = ENOMEM;
    return true;
}

void *
malloc(size_t len)
{
    return no_memory("malloc", CALLER) ? NULL : __libc_malloc(len);
}

void *
calloc(size_t count, size_t len)
{
    return no_memory("calloc", CALLER) ? NULL : __libc_calloc(count, len);
}

void *
realloc(void *old, size_t len)
{
    return no_memory("realloc", CALLER) ? NULL : __libc_realloc(old, len);
}

char *
strndup(const char *text, size_t most)
{
    size_t len = strnlen(text, most);
    char *copy = no_memory("strndup", CALLER) ? NULL : __libc_malloc(len + 1);

    if (copy) {
        memcpy(copy, text, len);
        copy[len] = '\0';
    }
    return copy;
}

char *
strdup(const char *text)
{
    size_t len = strlen(text) + 1;
    char *copy = no_memory("strdup", CALLER) ? NULL : __libc_malloc(len);

    return copy ? memcpy(copy, text, len) : NULL;
}

#define REAL(name)                                                             \
    static __typeof__(&name) real;                                             \
    if (!real)                                                                 \
    real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

/* The one that nginx's pools use. */
int
posix_memalign(void **at, size_t align, size_t len)
{
    REAL(posix_memalign);
    return no_memory("posix_memalign", CALLER) ? ENOMEM : real(at, align, len);
}

/* ---- calls ------------------------------------------------------------- */

static bool
fails(const char *name, int error)
{
    if (error && now(HARD, name)) {
        errno = error;
        return true;
    }
    return false;
}

static bool
is_interrupted(const char *name)
{
    if (!now(INTERRUPTED, name))
        return false;
    errno = EINTR;
    return true;
}

static size_t
part(const char *name, size_t len)
{
    return len > 1 && now(SHORT, name) ? 1 : len;
}

static bool
is_eventfd(int fd)
{
    static const char kind[] = "anon_inode:[eventfd]";
    char path[32], target[sizeof(kind)] = "";

    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    return readlink(path, target, sizeof(target)) == sizeof(kind) - 1 &&
           memcmp(target, kind, sizeof(kind) - 1) == 0;
}

/* Does the caller wait for an edge after a call that moved less? */
static bool
wants_edges(const void *caller)
{
    Dl_info in;

    return dladdr(caller, &in) && strstr(in.dli_fname, "libmicrohttpd");
}

/* A call that moves bytes; `error` is that of a disk or of a line. */
#define MOVES(name, error, params, len, args)                                  \
    ssize_t name params                                                        \
    {                                                                          \
        REAL(name);                                                            \
        if (!is_armed() || is_spared(CALLER) || is_eventfd(fd))                \
            return real args;                                                  \
        if (fails(#name, error) || is_interrupted(#name))                      \
            return -1;                                                         \
        if (!wants_edges(__builtin_return_address(0)))                         \
            len = part(#name, len);                                            \
        return real args;                                                      \
    }

MOVES(read, EIO, (int fd, void *data, size_t len), len, (fd, data, len))
MOVES(write, EIO, (int fd, const void *data, size_t len), len, (fd, data, len))
MOVES(recv, ECONNRESET, (int fd, void *data, size_t len, int flags), len,
      (fd, data, len, flags))
MOVES(send, ECONNRESET, (int fd, const void *data, size_t len, int flags), len,
      (fd, data, len, flags))
MOVES(pread, EIO, (int fd, void *data, size_t len, off_t at), len,
      (fd, data, len, at))
MOVES(pwrite, EIO, (int fd, const void *data, size_t len, off_t at), len,
      (fd, data, len, at))
MOVES(pread64, EIO, (int fd, void *data, size_t len, off64_t at), len,
      (fd, data, len, at))
MOVES(pwrite64, EIO, (int fd, const void *data, size_t len, off64_t at), len,
      (fd, data, len, at))

ssize_t
sendmsg(int fd, const struct msghdr *message, int flags)
{
    REAL(sendmsg);
    if (is_spared(CALLER))
        return real(fd, message, flags);
    if (fails("sendmsg", ECONNRESET) || is_interrupted("sendmsg"))
        return -1;
    if (message->msg_iovlen > 0 && !wants_edges(__builtin_return_address(0)) &&
        part("sendmsg", message->msg_iov[0].iov_len) !=
            message->msg_iov[0].iov_len) {
        struct iovec one = {message->msg_iov[0].iov_base, 1};
        struct msghdr less = *message;

        less.msg_iov = &one;
        less.msg_iovlen = 1;
        return real(fd, &less, flags);
    }
    return real(fd, message, flags);
}

/* A call that does something or does not; `again` if it may be interrupted. */
#define DOES(type, name, error, again, params, args)                           \
    type name params                                                           \
    {                                                                          \
        REAL(name);                                                            \
        if (!is_spared(CALLER) &&                                              \
            (fails(#name, error) || (again && is_interrupted(#name))))         \
            return (type)-1;                                                   \
        return real args;                                                      \
    }

DOES(ssize_t, recvmsg, ECONNRESET, true,
     (int fd, struct msghdr *message, int flags), (fd, message, flags))
DOES(int, accept4, EMFILE, true,
     (int fd, struct sockaddr *address, socklen_t *len, int flags),
     (fd, address, len, flags))
DOES(int, socket, EMFILE, false, (int domain, int type, int protocol),
     (domain, type, protocol))
DOES(int, connect, ECONNREFUSED, true,
     (int fd, const struct sockaddr *address, socklen_t len),
     (fd, address, len))
DOES(int, setsockopt, ENOBUFS, false,
     (int fd, int level, int name, const void *value, socklen_t len),
     (fd, level, name, value, len))
DOES(int, eventfd, EMFILE, false, (unsigned int count, int flags),
     (count, flags))
DOES(int, epoll_wait, 0, true,
     (int fd, struct epoll_event *events, int most, int ms),
     (fd, events, most, ms))
DOES(int, epoll_pwait2, 0, true,
     (int fd, struct epoll_event *events, int most, const struct timespec *wait,
      const sigset_t *mask),
     (fd, events, most, wait, mask))
DOES(int, poll, 0, true, (struct pollfd * fds, nfds_t count, int ms),
     (fds, count, ms))
DOES(int, fsync, EIO, true, (int fd), (fd))
DOES(int, fdatasync, EIO, true, (int fd), (fd))
DOES(int, ftruncate, ENOSPC, true, (int fd, off_t len), (fd, len))
DOES(int, ftruncate64, ENOSPC, true, (int fd, off64_t len), (fd, len))
DOES(int, fallocate, ENOSPC, true, (int fd, int mode, off_t at, off_t len),
     (fd, mode, at, len))
DOES(int, fallocate64, ENOSPC, true,
     (int fd, int mode, off64_t at, off64_t len), (fd, mode, at, len))
DOES(int, unlinkat, EIO, false, (int at, const char *path, int flags),
     (at, path, flags))
DOES(int, renameat, EIO, false,
     (int from_at, const char *from, int to_at, const char *to),
     (from_at, from, to_at, to))

#define OPENS(name, params, args)                                              \
    int name params                                                            \
    {                                                                          \
        mode_t mode;                                                           \
        va_list more;                                                          \
                                                                               \
        va_start(more, flags);                                                 \
        mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(more, mode_t) : 0;     \
        va_end(more);                                                          \
        REAL(name);                                                            \
        if (!is_spared(CALLER) &&                                              \
            (fails(#name, EMFILE) || is_interrupted(#name)))                   \
            return -1;                                                         \
        return real args;                                                      \
    }

OPENS(open, (const char *path, int flags, ...), (path, flags, mode))
OPENS(open64, (const char *path, int flags, ...), (path, flags, mode))
OPENS(openat, (int at, const char *path, int flags, ...),
      (at, path, flags, mode))
OPENS(openat64, (int at, const char *path, int flags, ...),
      (at, path, flags, mode))

/* Calls that fail only in some programmes: with `own`, as SETUP, or both. */
enum { IN_OWN = 1, IN_SETUP = 2, IN_BOTH = 3 };

static bool
fails_there(int where, const char *name, int error, uintptr_t caller)
{
    if (where & IN_OWN && atomic_load(&faults->own) && !is_spared(caller))
        return fails(name, error);
    if (!(where & IN_SETUP) || !now(SETUP, name))
        return false;
    errno = error;
    return true;
}

#define THERE(where, type, name, failed, error, params, args)                  \
    type name params                                                           \
    {                                                                          \
        REAL(name);                                                            \
        if (fails_there(where, #name, error, CALLER))                          \
            return failed;                                                     \
        return real args;                                                      \
    }

THERE(IN_BOTH, int, rename, -1, ENOSPC, (const char *from, const char *to),
      (from, to))
THERE(IN_BOTH, int, chmod, -1, EPERM, (const char *path, mode_t mode),
      (path, mode))
THERE(IN_BOTH, int, bind, -1, EADDRINUSE,
      (int fd, const struct sockaddr *address, socklen_t len),
      (fd, address, len))
THERE(IN_BOTH, int, getsockname, -1, ENOBUFS,
      (int fd, struct sockaddr *address, socklen_t *len), (fd, address, len))
THERE(IN_BOTH, int, signalfd, -1, EMFILE,
      (int fd, const sigset_t *set, int flags), (fd, set, flags))
THERE(IN_BOTH, int, pipe2, -1, EMFILE, (int ends[2], int flags), (ends, flags))
THERE(IN_OWN, FILE *, fopen, NULL, EMFILE, (const char *path, const char *mode),
      (path, mode))
THERE(IN_OWN, DIR *, opendir, NULL, EMFILE, (const char *path), (path))
THERE(IN_OWN, int, fstat, -1, EIO, (int fd, struct stat *into), (fd, into))
THERE(IN_OWN, int, unlink, -1, EACCES, (const char *path), (path))
THERE(IN_OWN, int, chown, -1, EPERM,
      (const char *path, uid_t user, gid_t group), (path, user, group))
THERE(IN_OWN, off_t, lseek, -1, EIO, (int fd, off_t to, int whence),
      (fd, to, whence))
THERE(IN_OWN, int, listen, -1, EADDRINUSE, (int fd, int backlog), (fd, backlog))
THERE(IN_OWN, int, epoll_create1, -1, EMFILE, (int flags), (flags))
THERE(IN_SETUP, int, getaddrinfo, EAI_MEMORY, ENOMEM,
      (const char *host, const char *port, const struct addrinfo *hints,
       struct addrinfo **found),
      (host, port, hints, found))
THERE(IN_SETUP, int, sigprocmask, -1, EINVAL,
      (int how, const sigset_t *set, sigset_t *old), (how, set, old))
THERE(IN_SETUP, char *, mkdtemp, NULL, ENOSPC, (char *path), (path))
THERE(IN_SETUP, char *, realpath, NULL, ENAMETOOLONG,
      (const char *path, char *real_one), (path, real_one))
THERE(IN_SETUP, char *, getcwd, NULL, ENOENT, (char *path, size_t len),
      (path, len))
THERE(IN_SETUP, int, access, -1, EACCES, (const char *path, int mode),
      (path, mode))
THERE(IN_SETUP, int, fchmod, -1, EPERM, (int fd, mode_t mode), (fd, mode))
THERE(IN_SETUP, int, symlink, -1, ENOSPC, (const char *to, const char *at),
      (to, at))
THERE(IN_SETUP, int, getrlimit, -1, EPERM,
      (__rlimit_resource_t what, struct rlimit *to), (what, to))
THERE(IN_SETUP, struct group *, getgrgid, NULL, ENOENT, (gid_t id), (id))

/* Only adding needs memory. */
int
epoll_ctl(int fd, int op, int other, struct epoll_event *event)
{
    REAL(epoll_ctl);
    if (op == EPOLL_CTL_ADD && !is_spared(CALLER) && fails("epoll_ctl", ENOMEM))
        return -1;
    return real(fd, op, other, event);
}

int
pthread_create(pthread_t *thread, const pthread_attr_t *attr,
               void *(*start)(void *), void *arg)
{
    REAL(pthread_create);
    return !is_spared(CALLER) && now(HARD, "pthread_create")
               ? EAGAIN
               : real(thread, attr, start, arg);
}

struct passwd *
getpwuid(uid_t uid)
{
    static struct passwd *(*real)(uid_t);
    struct passwd *user;

    spared = true;
    if (!real)
        *(void **)&real = dlsym(RTLD_NEXT, "getpwuid");
    user = real(uid);
    spared = false;
    return user;
}
