/*
 * loop.c - the thread that serves RESP: epoll, accepting, signals, timers and
 * shutdown.
 *
 * In each round it waits for events, reads and submits everything that arrived,
 * lets the engine commit it in one turn, and sends each client its replies with
 * one call. The longer a commit takes, the more requests arrive meanwhile and
 * the larger the next batch is, so the loop needs no tuning for load.
 */
#include "loop.h"

#include "../../base/address.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

#define EVENTS 1024
#define ACCEPTS 128         /* per round and listener */
#define ACCEPT_PAUSE_MS 100 /* when no file descriptors are left */
#define TICK_MS 100
#define GATHER_PART 4 /* fraction of a commit's time */
#define GATHER_MAX_US 1000
#define GATHER_PAUSE_MAX 63
#define LOOK_US 200     /* longest time without sleep */
#define LOOK_STEPS 1000 /* and most looks in that time */
#define LOOK_CALLS 4
#define GAP_MAX_US 2000      /* a longer gap counts like this */
#define YIELD_US 300         /* others use this processor */
#define LOOK_AGAIN_US 100000 /* and may until then */

/* ---- waking ---------------------------------------------------------- */

void
loop_wake(void *arg)
{
    struct loop *loop = arg;
    uint64_t one = 1;

    if (!atomic_exchange(&loop->woken, true))
        (void)!write(loop->wake.fd, &one, sizeof(one));
}

static void
wake_event(struct loop *loop)
{
    uint64_t count;

    (void)!read(loop->wake.fd, &count, sizeof(count));
    atomic_store(&loop->woken, false);
    loop->submitted = true;
}

/* ---- opening --------------------------------------------------------- */

static bool
add_source(struct loop *loop, struct watched *source)
{
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = source};

    return source->fd >= 0 &&
           epoll_ctl(loop->epoll, EPOLL_CTL_ADD, source->fd, &event) == 0;
}

enum idem_status
loop_open(struct loop *loop, struct server *server, struct idem_error *err)
{
    sigset_t signals;

    loop->server = server;
    loop->config = server->config;
    loop->log = server->log;
    loop->thread = pthread_self();
    pthread_mutex_init(&loop->mutex, NULL);
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGHUP);
    /* Block signals before any thread starts, so that no other thread takes
     * one. */
    pthread_sigmask(SIG_BLOCK, &signals, NULL);
    loop->epoll = epoll_create1(EPOLL_CLOEXEC);
    loop->wake =
        (struct watched){SOURCE_WAKE, eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
    loop->signals = (struct watched){
        SOURCE_SIGNAL, signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK)};
    loop->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    loop->scratch = malloc(READ_LEN);
    if (loop->epoll < 0 || !loop->scratch || !add_source(loop, &loop->wake) ||
        !add_source(loop, &loop->signals))
        return idem__fail(err, IDEM_ERR_INTERNAL, "cannot start a loop: %s",
                          strerror(errno));
    return IDEM_OK;
}

/* The loop closes all of them, also after an error. */
static enum idem_status
add_listeners(struct loop *loop, const int *fds, size_t count,
              struct idem_error *err)
{
    enum idem_status status = IDEM_OK;

    for (size_t i = 0; i < count; i++) {
        struct watched *source = &loop->listeners[loop->listener_count++];

        *source = (struct watched){SOURCE_LISTENER, fds[i]};
        if (!add_source(loop, source) && status == IDEM_OK)
            status = idem__fail(err, IDEM_ERR_UNAVAILABLE,
                                "cannot watch a socket: %s", strerror(errno));
    }
    return status;
}

static void
log_no_socket(const struct loop *loop)
{
    const struct server_config *config = loop->config;
    const char *list = config->listen;
    struct server_address address;
    char text[512], at[IDEM__ADDRESS_LEN];

    if (list && server_address_next(&list, &address, NULL)) {
        idem__address_write(
            strcmp(address.host, "*") == 0 ? "127.0.0.1" : address.host,
            idem__port_read(address.port, strlen(address.port)), at);
        snprintf(text, sizeof(text),
                 "another server listens on this socket, and idem's commands "
                 "reach that one; reach this one with --server %s%s, or give "
                 "it a socket of its own with --socket PATH",
                 config->tls_cert ? "idems://" : "", at);
    } else {
        snprintf(text, sizeof(text),
                 "another server listens on this socket, and idem's commands "
                 "reach that one; this one has HTTP only: give it a socket of "
                 "its own with --socket PATH to reach it with commands");
    }
    server_log(loop->log, LOG_WARNING, "socket-in-use",
               LOG_TEXT("socket", config->socket), LOG_TEXT("text", text));
}

/* Without --socket, a gateway or another server of this user may have the
 * default socket. That stops a server only if it has no other address. */
static enum idem_status
listen_unix(struct loop *loop, struct idem_error *err)
{
    const struct server_config *config = loop->config;
    int fd;
    enum idem_status status =
        server_listen_unix(config->socket, (unsigned)config->socket_mode,
                           config->socket_group, &fd, &loop->own_socket, err);

    if (status == IDEM_OK) {
        loop->has_socket = true;
        return add_listeners(loop, &fd, 1, err);
    }
    loop->own_socket = false;
    if (status != IDEM_ERR_UNAVAILABLE || !config->default_socket ||
        (!config->listen && !config->http) ||
        !server_socket_is_taken(config->socket))
        return status;
    log_no_socket(loop);
    return IDEM_OK;
}

enum idem_status
loop_listen(struct loop *loop, struct idem_error *err)
{
    const struct server_config *config = loop->config;
    const char *list = config->listen;
    struct server_address address;
    int fds[SERVER_LISTEN_MAX];
    enum idem_status status = IDEM_OK, added;
    size_t count = 0;

    /* The unix socket is always the first listener. */
    if (config->socket) {
        status = listen_unix(loop, err);
        if (status != IDEM_OK)
            return status;
    }
    while (list && status == IDEM_OK &&
           server_address_next(&list, &address, err))
        status = server_listen_tcp(&address, fds, &count, err);
    added = add_listeners(loop, fds, count, status == IDEM_OK ? err : NULL);
    return status == IDEM_OK ? added : status;
}

/* ---- accepting ------------------------------------------------------- */

/* No file descriptor is left: accept one connection with the spare descriptor
 * and close it, so that the client gets an error and the listener does not
 * spin. */
static void
accept_without(struct loop *loop, int listener)
{
    int fd;

    close(loop->spare_fd);
    fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    if (fd >= 0)
        close(fd);
    loop->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    metrics_add(&loop->server->metrics->refused, 1);
}

static void
pause_accepting(struct loop *loop, bool pause)
{
    for (size_t i = 0; i < loop->listener_count; i++) {
        struct epoll_event event = {.events = pause ? 0 : EPOLLIN,
                                    .data.ptr = &loop->listeners[i]};

        epoll_ctl(loop->epoll, EPOLL_CTL_MOD, loop->listeners[i].fd, &event);
    }
    loop->accept_again_ms = pause ? loop->now_ms + ACCEPT_PAUSE_MS : 0;
}

static void
accept_some(struct loop *loop, struct watched *listener)
{
    bool local = loop->has_socket && listener == &loop->listeners[0];

    for (int i = 0; i < ACCEPTS; i++) {
        int fd =
            accept4(listener->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);

        if (fd >= 0) {
            client_accept(loop, fd, local);
            continue;
        }
        if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS ||
            errno == ENOMEM) {
            if (!loop->accept_again_ms)
                server_log(loop->log, LOG_WARNING, "cannot-accept",
                           LOG_TEXT("why", strerror(errno)));
            accept_without(loop, listener->fd);
            pause_accepting(loop, true);
            return;
        }
        if (errno != EINTR && errno != ECONNABORTED)
            return;
    }
}

static void
close_listeners(struct loop *loop)
{
    for (size_t i = 0; i < loop->listener_count; i++)
        close(loop->listeners[i].fd);
    if (loop->listener_count > 0 && loop->own_socket)
        unlink(loop->config->socket);
    loop->listener_count = 0;
    loop->accept_again_ms = 0;
}

/* ---- signals and shutdown -------------------------------------------- */

static void *
stop_threads(void *arg)
{
    struct loop *loop = arg;

    http_stop(loop->http, loop->config->drain_ms);
    idem_ids_close(loop->server->ids); /* frees the worker numbers */
    loop->server->ids = NULL;
    atomic_store(&loop->stopped, true);
    loop_wake(loop);
    return NULL;
}

static void
start_draining(struct loop *loop)
{
    if (loop->draining) {
        loop->drain_until = loop->now_ms; /* second signal: exit now */
        return;
    }
    loop->draining = true;
    loop->drain_until = loop->now_ms + loop->config->drain_ms;
    server_log(loop->log, LOG_INFO, "draining",
               LOG_NUMBER("clients", loop->client_count));
    close_listeners(loop);
    loop->stopping =
        pthread_create(&loop->stopper, NULL, stop_threads, loop) == 0;
    for (struct client *client = LIST_FIRST(&loop->clients), *next; client;
         client = next) {
        next = LIST_NEXT(client, in_loop);
        client_drain(client);
    }
    loop->submitted = true;
}

/* Existing connections keep the old certificate. */
static void
reread_tls(struct loop *loop)
{
    struct idem__tls_files files = server_tls_files(loop->config);
    struct idem_error err;

    if (idem__tls_reread(loop->server->tls, SERVER_TLS, &files, &err) ==
            IDEM_OK &&
        (!loop->http || http_tls_read(loop->config, &err) == IDEM_OK))
        server_log(loop->log, LOG_INFO, "reread",
                   LOG_TEXT("tls", loop->config->tls_cert));
    else
        server_log(loop->log, LOG_ERROR, "reread-failed",
                   LOG_TEXT("text", err.text));
}

static void
reread(struct loop *loop)
{
    struct idem_error err;

    systemd_notify_reloading();
    if (loop->server->tls)
        reread_tls(loop);
    if (credentials_reread(loop->server->credentials, &err) == IDEM_OK)
        server_log(loop->log, LOG_INFO, "reread",
                   LOG_TEXT("credentials", loop->config->credentials
                                               ? loop->config->credentials
                                               : "none"));
    else
        server_log(loop->log, LOG_ERROR, "reread-failed",
                   LOG_TEXT("text", err.text));
    systemd_notify("READY=1");
}

static void
signal_event(struct loop *loop)
{
    struct signalfd_siginfo info;

    while (read(loop->signals.fd, &info, sizeof(info)) == sizeof(info)) {
        if (info.ssi_signo == SIGHUP)
            reread(loop);
        else
            start_draining(loop);
    }
}

/* ---- rounds ---------------------------------------------------------- */

static void
read_clocks(struct loop *loop)
{
    loop->now_us = idem__mono_us();
    loop->now_ms = loop->now_us / 1000;
}

static void
flush_dirty(struct loop *loop)
{
    while (loop->dirty) {
        struct client *client = loop->dirty;

        loop->dirty = client->next_dirty;
        client->dirty = false;
        client_flush(client);
    }
}

static void
bury(struct loop *loop)
{
    while (loop->dead) {
        struct client *client = loop->dead;

        loop->dead = client->next_dead;
        free(client);
    }
}

static bool
take_turn(struct loop *loop)
{
    int64_t start_us = idem__mono_us();
    bool more = idem__engine_turn(loop->engine);

    read_clocks(loop); /* a slow disk may have taken seconds */
    loop->commit_us += (loop->now_us - start_us - loop->commit_us) / 8;
    return more;
}

/* Let the engine work until it has nothing left to do now. */
static void
work(struct loop *loop)
{
    bool more = loop->submitted;

    for (;;) {
        loop->submitted = false;
        loop->answered_us = 0;
        if (!loop->driven)
            calls_collect(loop);
        else if (more)
            more = take_turn(loop);
        results_rest(&loop->server->results);
        flush_dirty(loop);
        if (!loop->submitted && !(loop->driven && more))
            return;
        more = true;
        if (!loop->driven)
            return;
    }
}

static int
patience(struct loop *loop)
{
    int64_t due = TICK_MS;

    if (loop->driven) {
        int64_t engine_due = idem__engine_due_ms(loop->engine);

        if (engine_due >= 0 && engine_due < due)
            due = engine_due;
    }
    for (struct call *call = loop->delayed; call; call = call->link) {
        if (call->due_ms - loop->now_ms < due)
            due = call->due_ms - loop->now_ms;
    }
    return due < 0 ? 0 : (int)due;
}

static void
tick(struct loop *loop)
{
    if (loop->delayed)
        admin_delayed(loop);
    if (loop->id_waits)
        admin_ids(loop);
    if (loop->now_ms < loop->tick_ms)
        return;
    loop->tick_ms = loop->now_ms + TICK_MS;
    if (loop->accept_again_ms && loop->now_ms >= loop->accept_again_ms)
        pause_accepting(loop, false);
    if (server_give_back_again(loop->server))
        loop->submitted = true;
    if (systemd_watchdog_tick(&loop->watchdog, loop->engine, loop->now_ms))
        loop->submitted = true;
}

/* Time limits of clients. The reference time is when the events of this round
 * were read, because nothing that a client did later was seen. The check runs
 * after the work on the events, because only then the replies that they made
 * room for were sent. */
static void
check_limits(struct loop *loop)
{
    struct results *results = &loop->server->results;
    uint64_t refused;

    if (loop->seen_ms < loop->limits_ms)
        return;
    loop->limits_ms = loop->seen_ms + TICK_MS;
    refused = results_refused(results);
    loop->pressed = refused != loop->refused || !results_room(results, 0);
    loop->refused = refused;
    for (struct client *client = LIST_FIRST(&loop->clients), *next; client;
         client = next) {
        next = LIST_NEXT(client, in_loop);
        client_check_limits(client);
    }
    flush_dirty(loop);
}

static void
handle(struct loop *loop, const struct epoll_event *event)
{
    struct watched *source = event->data.ptr;

    switch (source->what) {
    case SOURCE_CLIENT:
        client_event((struct client *)source, event->events);
        break;
    case SOURCE_LISTENER:
        if (!loop->draining)
            accept_some(loop, source);
        break;
    case SOURCE_WAKE:
        wake_event(loop);
        break;
    case SOURCE_SIGNAL:
        signal_event(loop);
        break;
    }
}

/*
 * Clients that were just answered often send the next request at once. If
 * commits are slow, waiting for these clients for a fraction of a commit's time
 * makes one commit instead of two. Otherwise the clients fall into two groups
 * that wait for each other's commits. The wait ends as soon as all of them have
 * sent something. If they do not, it is skipped for some rounds.
 */
static void
gather(struct loop *loop, struct epoll_event *events)
{
    size_t expected = loop->missing;
    int64_t budget_us = loop->commit_us / GATHER_PART;
    int64_t start_us = idem__mono_us();

    if (!loop->driven || !loop->submitted || loop->draining)
        return;
    if (loop->no_gather > 0) {
        loop->no_gather--;
        return;
    }
    if (budget_us > GATHER_MAX_US)
        budget_us = GATHER_MAX_US;
    while (loop->missing > 0) {
        int64_t left_us = budget_us - (idem__mono_us() - start_us);
        struct timespec wait = {0, left_us > 0 ? left_us * 1000 : 0};
        int count = epoll_pwait2(loop->epoll, events, EVENTS, &wait, NULL);

        for (int i = 0; i < count; i++)
            handle(loop, &events[i]);
        if (count <= 0 || left_us <= 0)
            break; /* epoll repeats events of clients that may not be read */
    }
    if (loop->missing * 2 <= expected) {
        loop->gather_pause = 0;
    } else {
        loop->gather_pause = loop->gather_pause * 2 + 1;
        if (loop->gather_pause > GATHER_PAUSE_MAX)
            loop->gather_pause = GATHER_PAUSE_MAX;
        loop->no_gather = loop->gather_pause;
    }
}

static int
processors(void)
{
    cpu_set_t set;

    return sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
}

/*
 * A process that sleeps is woken some microseconds after its event, which is
 * much beside a commit of one command. If the next event mostly comes within
 * LOOK_US, look for it for that long before sleeping. After a batch of many
 * commands sleep at once: their clients need time to send the next ones. Nobody
 * is kept from working meanwhile: if another process wants this processor, it
 * gets it, and for a while there is no looking.
 */
static int
look(struct loop *loop, struct epoll_event *events, int64_t start_us)
{
    int64_t now_us = start_us;

    if (!loop->may_look || loop->many || loop->gap_us > LOOK_US ||
        start_us < loop->look_us)
        return 0;
    for (int i = 0; i < LOOK_STEPS && now_us - start_us < LOOK_US; i++) {
        int count = epoll_wait(loop->epoll, events, EVENTS, 0);
        int64_t yielded_us;

        if (count != 0)
            return count;
        yielded_us = idem__mono_us();
        sched_yield();
        now_us = idem__mono_us();
        if (now_us - yielded_us > YIELD_US) {
            loop->look_us = now_us + LOOK_AGAIN_US;
            return 0;
        }
    }
    return 0;
}

/* Wait for events. If there is work left, only look whether there are any. */
static int
wait_for_events(struct loop *loop, struct epoll_event *events)
{
    int64_t start_us, gap_us;
    int count;

    if (loop->submitted)
        return epoll_wait(loop->epoll, events, EVENTS, 0);
    start_us = idem__mono_us();
    count = look(loop, events, start_us);
    if (count == 0)
        count = epoll_wait(loop->epoll, events, EVENTS, patience(loop));
    gap_us = idem__mono_us() - start_us;
    if (gap_us > GAP_MAX_US)
        gap_us = GAP_MAX_US;
    loop->gap_us += (gap_us - loop->gap_us) / 4;
    return count;
}

static bool
is_over(const struct loop *loop)
{
    if (!loop->draining)
        return false;
    if (loop->stopping && !atomic_load(&loop->stopped))
        return false; /* the stopper's threads may still need the engine */
    return LIST_EMPTY(&loop->clients) || loop->now_ms >= loop->drain_until;
}

void
loop_run(struct loop *loop)
{
    struct epoll_event *events = malloc(EVENTS * sizeof(*events));

    if (!events)
        return;
    loop->submitted = true; /* the first turn sets the engine's driver thread */
    loop->gap_us = GAP_MAX_US;
    loop->may_look = loop->driven && processors() > 1;
    do {
        int64_t before_ms = loop->now_ms;
        int count = wait_for_events(loop, events);

        read_clocks(loop);
        /* If epoll_wait was interrupted, it has seen nothing. Otherwise it has
         * seen everything up to before_ms; the process may have been stopped
         * since. */
        if (count >= 0)
            loop->seen_ms = before_ms;
        loop->round++;
        loop->shakes = 0;
        loop->missing = loop->answered;
        loop->answered = 0;
        for (int i = 0; i < count; i++)
            handle(loop, &events[i]);
        gather(loop, events);
        tick(loop);
        if (loop->driven && idem__engine_due_ms(loop->engine) == 0)
            loop->submitted = true;
        loop->many = loop->calls > LOOK_CALLS;
        work(loop);
        check_limits(loop);
        bury(loop);
    } while (!is_over(loop));
    free(events);
}

/* The engine is closed before this, so every call was answered. */
void
loop_close(struct loop *loop)
{
    if (loop->stopping)
        pthread_join(loop->stopper, NULL);
    close_listeners(loop);
    if (loop->engine && !loop->driven)
        calls_collect(loop);
    flush_dirty(loop);
    loop->engine = NULL;
    while (loop->id_waits) {
        struct call *call = loop->id_waits;

        loop->id_waits = call->link;
        call_done(call);
    }
    while (loop->delayed) {
        struct call *call = loop->delayed;

        loop->delayed = call->link;
        call_done(call);
    }
    while (!LIST_EMPTY(&loop->clients))
        client_close(LIST_FIRST(&loop->clients), NULL);
    bury(loop);
    calls_clear_pool(loop);
    close(loop->epoll);
    close(loop->wake.fd);
    close(loop->signals.fd);
    close(loop->spare_fd);
    free(loop->scratch);
    pthread_mutex_destroy(&loop->mutex);
}
