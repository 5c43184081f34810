/*
 * net.c - see net.h.
 */
#include "net.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

#define FIRST_FD 100000 /* below are the system's */
#define SOCKETS 65536
#define TRIP (200 * SIM_US)
#define WINDOW (256 * 1024)
#define HOLDS 16
#define WATCHES 64

enum kind { NEW, STREAM, LISTENER, EVENT, EPOLL, SIGNALS };

struct watch {
    int fd;
    struct epoll_event event;
};

struct sock {
    enum kind kind;
    bool closed; /* by its owner */
    struct sim_process *owner;
    char name[32]; /* of a listener */
    struct sock *queue[64];
    size_t queued;
    struct sock *peer;
    uint8_t *in;
    size_t in_len;
    bool ended;  /* nothing comes any more */
    int error;   /* the connection is broken */
    bool dead;   /* half-open: what is sent from here is lost */
    size_t sent; /* on its way */
    int64_t last_arrival;
    uint64_t count; /* of an eventfd */
    struct watch watches[WATCHES];
    size_t watch_count;
};

static struct sock *socks[SOCKETS];
static int sock_count;

static struct {
    const struct sim_process *process;
    int64_t until;
} holds[HOLDS];

ssize_t __real_read(int fd, void *data, size_t len);
ssize_t __real_write(int fd, const void *data, size_t len);
int __real_close(int fd);

static struct sock *
sock_of(int fd)
{
    return fd >= FIRST_FD && fd < FIRST_FD + sock_count ? socks[fd - FIRST_FD]
                                                        : NULL;
}

static int
new_sock(enum kind kind, struct sim_process *owner)
{
    struct sock *sock = calloc(1, sizeof(*sock));

    if (!sock || sock_count == SOCKETS)
        sim_fail("the simulated network has %d sockets", sock_count);
    sock->kind = kind;
    sock->owner = owner;
    socks[sock_count] = sock;
    return FIRST_FD + sock_count++;
}

/* Who waits in poll or epoll_wait looks again. */
static void
changed(const struct sock *sock)
{
    sim_wake(sock->owner);
}

/* ---- the line ------------------------------------------------------------ */

static int64_t
held_until(const struct sim_process *a, const struct sim_process *b)
{
    int64_t until = 0;

    for (int i = 0; i < HOLDS; i++) {
        if ((holds[i].process == a || holds[i].process == b) &&
            holds[i].until > until)
            until = holds[i].until;
    }
    return until;
}

struct packet {
    struct sock *from, *to;
    bool end;
    int error;
    size_t len;
    uint8_t bytes[];
};

static void
arrive(void *arg)
{
    struct packet *packet = arg;
    struct sock *to = packet->to;
    int64_t until = held_until(packet->from->owner, to->owner);

    if (until > sim_now()) { /* it is sent again, until it gets through */
        sim_after(until - sim_now(), arrive, packet);
        return;
    }
    packet->from->sent -= packet->len;
    changed(packet->from);
    if (!to->closed && !to->error && !packet->from->dead &&
        sim_alive(to->owner)) {
        if (packet->len > 0 && !to->ended) {
            to->in = realloc(to->in, to->in_len + packet->len);
            if (!to->in)
                abort();
            memcpy(to->in + to->in_len, packet->bytes, packet->len);
            to->in_len += packet->len;
        }
        to->ended |= packet->end;
        to->error = packet->error;
        changed(to);
    } else if (to->closed && packet->len > 0 && !packet->from->dead &&
               !packet->from->closed) {
        packet->from->error = ECONNRESET; /* nobody is there any more */
        changed(packet->from);
    }
    free(packet);
}

static void
send_packet(struct sock *from, const void *bytes, size_t len, bool end,
            int error)
{
    struct packet *packet = malloc(sizeof(*packet) + len);
    int64_t at = sim_now() + sim_delay(TRIP);

    if (!packet)
        abort();
    *packet = (struct packet){from, from->peer, end, error, len};
    if (len > 0)
        memcpy(packet->bytes, bytes, len);
    if (at <= from->last_arrival)
        at = from->last_arrival + 1;
    from->last_arrival = at;
    from->sent += len;
    sim_after(at - sim_now(), arrive, packet);
}

static void
close_sock(struct sock *sock, bool silently)
{
    if (sock->closed)
        return;
    sock->closed = true;
    if (sock->peer && !sock->error && !silently)
        send_packet(sock, NULL, 0, true, 0);
    for (size_t i = 0; i < sock->queued; i++)
        close_sock(sock->queue[i], silently);
    sock->queued = 0;
}

void
net_killed(struct sim_process *process, bool silently)
{
    for (int i = 0; i < sock_count; i++) {
        if (socks[i]->owner == process)
            close_sock(socks[i], silently);
    }
}

void
net_hold(struct sim_process *process, int64_t ns)
{
    sim_tell("nothing passes to or from %s for %lld ms", sim_name(process),
             (long long)(ns / SIM_MS));
    for (int i = 0; i < HOLDS; i++) {
        if (holds[i].until <= sim_now()) {
            holds[i].process = process;
            holds[i].until = sim_now() + ns;
            return;
        }
    }
}

void
net_reset(struct sim_process *process)
{
    sim_tell("the connections of %s break", sim_name(process));
    for (int i = 0; i < sock_count; i++) {
        struct sock *sock = socks[i];

        if (sock->owner != process || sock->closed || !sock->peer)
            continue;
        sock->error = sock->peer->error = ECONNRESET;
        changed(sock);
        changed(sock->peer);
    }
}

void
net_lose(struct sim_process *process)
{
    sim_tell("the connections of %s are half-open", sim_name(process));
    for (int i = 0; i < sock_count; i++) {
        if (socks[i]->owner == process && socks[i]->peer) {
            /* One way, the other, or both. */
            socks[i]->dead |= !sim_once_in(3);
            socks[i]->peer->dead |= !socks[i]->dead || sim_once_in(2);
        }
    }
}

void
net_repair(void)
{
    memset(holds, 0, sizeof(holds));
}

/* ---- connecting ---------------------------------------------------------- */

int
net_listen(const char *name)
{
    int fd = new_sock(LISTENER, sim_self());

    snprintf(socks[fd - FIRST_FD]->name, sizeof(socks[0]->name), "%.30s", name);
    return fd;
}

static struct sock *
listener_of(const char *name)
{
    for (int i = sock_count - 1; i >= 0; i--) {
        if (socks[i]->kind == LISTENER && !socks[i]->closed &&
            strcmp(socks[i]->name, name) == 0)
            return socks[i];
    }
    return NULL;
}

/* The listener's kernel answers. */
static void
connect_arrives(void *arg)
{
    struct sock *sock = arg, *listener = listener_of(sock->name), *other;
    int64_t until =
        held_until(sock->owner, listener ? listener->owner : sock->owner);

    if (sock->closed)
        return;
    if (until > sim_now()) {
        sim_after(until - sim_now(), connect_arrives, sock);
        return;
    }
    if (!listener || !sim_alive(listener->owner) || listener->queued == 64) {
        sock->error = ECONNREFUSED;
    } else {
        other = socks[new_sock(STREAM, listener->owner) - FIRST_FD];
        other->peer = sock;
        sock->peer = other;
        sock->kind = STREAM;
        listener->queue[listener->queued++] = other;
        changed(listener);
    }
    changed(sock);
}

#pragma GCC diagnostic ignored "-Wmissing-prototypes" /* of the __wrap_… */

int
__wrap_socket(int domain, int type, int protocol)
{
    (void)domain;
    (void)type;
    (void)protocol;
    return new_sock(NEW, sim_self());
}

int
__wrap_connect(int fd, const struct sockaddr *to, socklen_t len)
{
    struct sock *sock = sock_of(fd);

    (void)len;
    snprintf(sock->name, sizeof(sock->name), "%.30s",
             ((const struct sockaddr_un *)(const void *)to)->sun_path);
    sim_after(sim_delay(2 * TRIP), connect_arrives, sock);
    errno = EINPROGRESS;
    return -1;
}

int
__wrap_accept4(int fd, struct sockaddr *address, socklen_t *len, int flags)
{
    struct sock *sock = sock_of(fd);
    struct sock *first;

    (void)address;
    (void)len;
    (void)flags;
    if (sock->queued == 0) {
        errno = EAGAIN;
        return -1;
    }
    first = sock->queue[0];
    sock->queued--;
    memmove(sock->queue, sock->queue + 1,
            sock->queued * sizeof(sock->queue[0]));
    for (int i = 0; i < sock_count; i++) {
        if (socks[i] == first)
            return FIRST_FD + i;
    }
    abort();
}

int
__wrap_setsockopt(int fd, int level, int name, const void *value, socklen_t len)
{
    (void)fd;
    (void)level;
    (void)name;
    (void)value;
    (void)len;
    return 0;
}

/* SO_ERROR, or who is at the other end: a process of the same user. */
int
__wrap_getsockopt(int fd, int level, int name, void *value, socklen_t *len)
{
    struct sock *sock = sock_of(fd);

    (void)level;
    (void)len;
    if (name == SO_PEERCRED)
        *(struct ucred *)value =
            (struct ucred){.pid = getpid(), .uid = geteuid(), .gid = getegid()};
    else
        *(int *)value = name == SO_ERROR ? sock->error : AF_UNIX;
    return 0;
}

int
__wrap_getpeername(int fd, struct sockaddr *address, socklen_t *len)
{
    (void)fd;
    (void)address;
    (void)len;
    errno = ENOTCONN;
    return -1;
}

/* ---- bytes --------------------------------------------------------------- */

ssize_t
__wrap_send(int fd, const void *data, size_t len, int flags)
{
    struct sock *sock = sock_of(fd);

    (void)flags;
    sim_yield();
    if (sock->error) {
        errno = sock->error;
        return -1;
    }
    if (sock->sent >= WINDOW) {
        errno = EAGAIN;
        return -1;
    }
    if (len > 1 && sim_once_in(10))
        len = 1 + sim_roll(len - 1);
    send_packet(sock, data, len, false, 0);
    return (ssize_t)len;
}

ssize_t
__wrap_sendmsg(int fd, const struct msghdr *message, int flags)
{
    ssize_t sent = 0;

    for (size_t i = 0; i < message->msg_iovlen; i++) {
        const struct iovec *part = &message->msg_iov[i];
        ssize_t n = part->iov_len > 0
                        ? __wrap_send(fd, part->iov_base, part->iov_len, flags)
                        : 0;

        if (n < 0)
            return sent > 0 ? sent : -1;
        sent += n;
        if ((size_t)n < part->iov_len)
            break;
    }
    return sent;
}

ssize_t
__wrap_recv(int fd, void *room, size_t len, int flags)
{
    struct sock *sock = sock_of(fd);

    sim_yield();
    if (sock->error) {
        errno = sock->error;
        return -1;
    }
    if (sock->in_len == 0) {
        errno = EAGAIN;
        return sock->ended ? 0 : -1;
    }
    if (len > sock->in_len)
        len = sock->in_len;
    if (len > 1 && sim_once_in(10))
        len = 1 + sim_roll(len - 1);
    memcpy(room, sock->in, len);
    if (!(flags & MSG_PEEK)) {
        sock->in_len -= len;
        memmove(sock->in, sock->in + len, sock->in_len);
    }
    return (ssize_t)len;
}

int
__wrap_shutdown(int fd, int how)
{
    struct sock *sock = sock_of(fd);

    (void)how;
    if (sock->peer && !sock->error)
        send_packet(sock, NULL, 0, true, 0);
    return 0;
}

int
__wrap_close(int fd)
{
    struct sock *sock = sock_of(fd);

    if (!sock)
        return __real_close(fd);
    close_sock(sock, false);
    return 0;
}

/* ---- eventfd, signalfd --------------------------------------------------- */

int
__wrap_eventfd(unsigned count, int flags)
{
    (void)count;
    (void)flags;
    return new_sock(EVENT, sim_self());
}

int
__wrap_signalfd(int fd, const void *mask, int flags)
{
    (void)fd;
    (void)mask;
    (void)flags;
    return new_sock(SIGNALS, sim_self());
}

ssize_t
__wrap_read(int fd, void *data, size_t len)
{
    struct sock *sock = sock_of(fd);

    if (!sock)
        return __real_read(fd, data, len);
    if (sock->count == 0) {
        errno = EAGAIN;
        return -1;
    }
    memcpy(data, &sock->count, sizeof(sock->count));
    sock->count = 0;
    return sizeof(sock->count);
}

ssize_t
__wrap_write(int fd, const void *data, size_t len)
{
    struct sock *sock = sock_of(fd);

    if (!sock && fd == STDERR_FILENO) { /* a server's log */
        sim_tell("%.*s", (int)len - 1, (const char *)data);
        return (ssize_t)len;
    }
    if (!sock)
        return __real_write(fd, data, len);
    sock->count++;
    changed(sock);
    sim_yield();
    return sizeof(uint64_t);
}

/* ---- waiting ------------------------------------------------------------- */

/* As poll and epoll name them: both have the same bits. */
static uint32_t
ready(const struct sock *sock, uint32_t wanted)
{
    uint32_t is = 0;

    switch (sock->kind) {
    case STREAM:
        if (sock->in_len > 0 || sock->ended)
            is |= POLLIN;
        if (sock->sent < WINDOW)
            is |= POLLOUT;
        break;
    case LISTENER:
        is = sock->queued > 0 ? POLLIN : 0;
        break;
    case EVENT:
        is = POLLOUT | (sock->count > 0 ? POLLIN : 0);
        break;
    case NEW:
    case EPOLL:
    case SIGNALS:
        break;
    }
    if (sock->error)
        return (is & wanted) | POLLERR | POLLHUP | (wanted & POLLIN) |
               (wanted & POLLOUT);
    return is & wanted;
}

int
__wrap_poll(struct pollfd *fds, nfds_t count, int ms)
{
    int64_t until = ms < 0 ? SIM_NEVER : sim_now() + ms * SIM_MS;

    for (;;) {
        int found = 0;

        sim_yield();
        for (nfds_t i = 0; i < count; i++) {
            const struct sock *sock = sock_of(fds[i].fd);

            fds[i].revents =
                sock ? (short)ready(sock, (uint32_t)fds[i].events) : 0;
            found += fds[i].revents != 0;
        }
        if (found > 0 || sim_now() >= until)
            return found;
        sim_wait(sim_self(), until);
    }
}

int
__wrap_epoll_create1(int flags)
{
    (void)flags;
    return new_sock(EPOLL, sim_self());
}

int
__wrap_epoll_ctl(int epoll, int what, int fd, struct epoll_event *event)
{
    struct sock *sock = sock_of(epoll);

    (void)what;
    for (size_t i = 0; i < sock->watch_count; i++) {
        if (sock->watches[i].fd == fd) {
            sock->watches[i].event = *event;
            return 0;
        }
    }
    if (sock->watch_count == WATCHES) {
        errno = ENOSPC;
        return -1;
    }
    sock->watches[sock->watch_count++] = (struct watch){fd, *event};
    return 0;
}

static int
epoll_until(struct sock *sock, struct epoll_event *events, int room,
            int64_t until)
{
    for (;;) {
        int found = 0;

        sim_yield();
        for (size_t i = 0; i < sock->watch_count && found < room;) {
            struct watch *watch = &sock->watches[i];
            const struct sock *at = sock_of(watch->fd);
            uint32_t is;

            if (at->closed) { /* a closed one is watched no longer */
                *watch = sock->watches[--sock->watch_count];
                continue;
            }
            is = ready(at, watch->event.events);
            if (is)
                events[found++] = (struct epoll_event){is, watch->event.data};
            i++;
        }
        if (found > 0 || sim_now() >= until)
            return found;
        sim_wait(sim_self(), until);
    }
}

int
__wrap_epoll_wait(int epoll, struct epoll_event *events, int room, int ms)
{
    return epoll_until(sock_of(epoll), events, room,
                       ms < 0 ? SIM_NEVER : sim_now() + ms * SIM_MS);
}

int
__wrap_epoll_pwait2(int epoll, struct epoll_event *events, int room,
                    const struct timespec *wait, const void *mask)
{
    (void)mask;
    return epoll_until(sock_of(epoll), events, room,
                       sim_now() + wait->tv_sec * SIM_S + wait->tv_nsec);
}
