/*
 * systemd.c - sockets from systemd, readiness, and watchdog messages;
 * sd_listen_fds(3) and sd_notify(3) describe the protocol.
 */
#include "systemd.h"

#include "../../engine/engine.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define FIRST_FD 3
#define SOCKETS_MAX 16
#define SIGNS 4 /* messages per watchdog timeout */
#define PROBE_SCOPE "idem"
#define PROBE_ID "watchdog"

/* A number from the environment that is meant for this process; else 0. */
static int64_t
number_for_us(const char *name, const char *pid_name)
{
    const char *text = getenv(name), *pid = getenv(pid_name);

    if (!text || (pid && strtol(pid, NULL, 10) != (long)getpid()))
        return 0;
    return strtoll(text, NULL, 10);
}

/* ---- sockets --------------------------------------------------------- */

/* Static, because file descriptors belong to the whole process. */
static bool waiting[SOCKETS_MAX];

enum idem_status
systemd_sockets_note(struct idem_error *err)
{
    int64_t count =
        getenv("LISTEN_PID") ? number_for_us("LISTEN_FDS", "LISTEN_PID") : 0;

    for (int i = 0; i < count && i < SOCKETS_MAX; i++) {
        int flags = fcntl(FIRST_FD + i, F_GETFL);

        waiting[i] = flags >= 0;
        fcntl(FIRST_FD + i, F_SETFD, FD_CLOEXEC);
        fcntl(FIRST_FD + i, F_SETFL, flags | O_NONBLOCK);
    }
    /* Commands that the server starts must not see these variables. */
    unsetenv("LISTEN_PID");
    unsetenv("LISTEN_FDS");
    unsetenv("LISTEN_FDNAMES");
    if (count > SOCKETS_MAX)
        return idem__fail(err, IDEM_ERR_INVALID,
                          "systemd handed over %lld sockets, and idem takes at "
                          "most %d: remove ListenStream= lines of idem.socket",
                          (long long)count, SOCKETS_MAX);
    return IDEM_OK;
}

union any_address {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
    struct sockaddr_un local;
    struct sockaddr_storage room;
};

static bool
same_address(const union any_address *a, const union any_address *b)
{
    if (a->any.sa_family != b->any.sa_family)
        return false;
    switch (a->any.sa_family) {
    case AF_UNIX:
        return strncmp(a->local.sun_path, b->local.sun_path,
                       sizeof(a->local.sun_path)) == 0;
    case AF_INET:
        return a->v4.sin_port == b->v4.sin_port &&
               a->v4.sin_addr.s_addr == b->v4.sin_addr.s_addr;
    case AF_INET6:
        return a->v6.sin6_port == b->v6.sin6_port &&
               memcmp(&a->v6.sin6_addr, &b->v6.sin6_addr,
                      sizeof(a->v6.sin6_addr)) == 0;
    default:
        return false;
    }
}

static int
find_socket(const struct sockaddr *address)
{
    for (int i = 0; i < SOCKETS_MAX; i++) {
        union any_address bound = {.room = {0}};
        socklen_t len = sizeof(bound);
        int listens = 0;
        socklen_t listens_len = sizeof(listens);

        if (waiting[i] && getsockname(FIRST_FD + i, &bound.any, &len) == 0 &&
            getsockopt(FIRST_FD + i, SOL_SOCKET, SO_ACCEPTCONN, &listens,
                       &listens_len) == 0 &&
            listens && same_address(&bound, (const void *)address))
            return i;
    }
    return -1;
}

int
systemd_socket_take(const struct sockaddr *address)
{
    int i = find_socket(address);

    if (i < 0)
        return -1;
    waiting[i] = false;
    return FIRST_FD + i;
}

bool
systemd_socket_waits(const struct sockaddr *address)
{
    return find_socket(address) >= 0;
}

enum idem_status
systemd_sockets_taken(struct idem_error *err)
{
    for (int i = 0; i < SOCKETS_MAX; i++) {
        if (waiting[i])
            return idem__fail(
                err, IDEM_ERR_INVALID,
                "descriptor %d, from systemd, listens on no address of socket, "
                "listen or http: give the same addresses there and in "
                "ListenStream= of idem.socket",
                FIRST_FD + i);
    }
    return IDEM_OK;
}

/* ---- notifying ------------------------------------------------------- */

void
systemd_notify(const char *state)
{
    const char *path = getenv("NOTIFY_SOCKET");
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd;

    if (!path || strlen(path) >= sizeof(address.sun_path))
        return;
    fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return;
    memcpy(address.sun_path, path, strlen(path) + 1);
    if (address.sun_path[0] == '@')
        address.sun_path[0] = '\0';
    (void)!sendto(
        fd, state, strlen(state), MSG_NOSIGNAL, (struct sockaddr *)&address,
        (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(path)));
    close(fd);
}

void
systemd_notify_reloading(void)
{
    struct timespec now;
    char text[64];

    clock_gettime(CLOCK_MONOTONIC, &now);
    snprintf(text, sizeof(text), "RELOADING=1\nMONOTONIC_USEC=%lld",
             (long long)now.tv_sec * 1000000 + now.tv_nsec / 1000);
    systemd_notify(text);
}

/* ---- watchdog -------------------------------------------------------- */

void
systemd_watchdog_init(struct systemd_watchdog *watchdog)
{
    int64_t limit_us = number_for_us("WATCHDOG_USEC", "WATCHDOG_PID");

    watchdog->every_ms = limit_us > 0 ? limit_us / 1000 / SIGNS + 1 : 0;
    unsetenv("WATCHDOG_USEC");
    unsetenv("WATCHDOG_PID");
}

/* Counts answers to our own probes with any status: each shows that the engine
 * works. */
static atomic_uint probes_answered;

static void
answered(void *arg, enum idem_status status, const struct idem_answer *answer,
         const struct idem_error *err)
{
    (void)arg;
    (void)status;
    (void)answer;
    (void)err;
    atomic_fetch_add(&probes_answered, 1);
}

static uint64_t
count_answers(struct idem_engine *engine)
{
    struct idem__stats stats;
    uint64_t count = atomic_load(&probes_answered);

    idem__stats(engine, &stats);
    for (size_t i = 0; i < IDEM__VERDICT_COUNT; i++)
        count += stats.verdicts[i];
    /* Other errors do not count, because idem_submit also counts them when a
     * stuck engine refuses operations. */
    return count + stats.errors[IDEM_ERR_UNAVAILABLE] +
           stats.errors[IDEM_ERR_LOST];
}

bool
systemd_watchdog_tick(struct systemd_watchdog *watchdog,
                      struct idem_engine *engine, int64_t now_ms)
{
    const struct idem_op question = {
        .verb = IDEM_GET,
        .type = IDEM_TYPE_REQUEST,
        .scope = idem_text(PROBE_SCOPE),
        .id = idem_text(PROBE_ID),
    };
    uint64_t answers;

    if (!watchdog->every_ms || now_ms < watchdog->next_ms)
        return false;
    answers = count_answers(engine);
    if (answers != watchdog->answers) {
        systemd_notify("WATCHDOG=1");
        *watchdog = (struct systemd_watchdog){
            .every_ms = watchdog->every_ms,
            .next_ms = now_ms + watchdog->every_ms,
            .answers = answers,
        };
        return false;
    }
    /* A full queue takes no probe, but then other operations are waiting for
     * answers. */
    if (!watchdog->asked)
        watchdog->asked = idem_submit(engine, &question, answered, NULL, NULL,
                                      NULL) == IDEM_OK;
    return watchdog->asked;
}
