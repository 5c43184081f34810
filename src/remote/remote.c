/*
 * remote.c - executes operations on a server.
 *
 * There is one thread and one connection. Every command has a tag, so that
 * answers may come in any order and a waiting duplicate does not delay others.
 * Until it is answered, an operation is a flight:
 *
 *   queue ──▶ flight ──▶ sent ──▶ answered
 *               ▲         │
 *               └─────────┘ the connection broke: sent again, if that is safe
 *
 * What a broken connection means for a command:
 *
 *   - No byte of it was sent: it did not happen. If the client cannot connect,
 *     the answer is UNAVAILABLE.
 *   - It was sent: it may have been done. BEGIN and REDEEM carry a nonce, LOCK
 *     an owner, the others a fence or a name, so sending a command again
 *     executes it only once. All commands except FORGET are sent again. After
 *     that an answer counts only if it shows what the first command did;
 *     everything else is LOST.
 *   - It was sent, and no answer came in time: LOST.
 *
 * The deadline of a flight is the timeout of the address plus the time that the
 * operation may wait. If an answer is due and the server sends nothing for a
 * third of the timeout, the client closes the connection, so that there is time
 * to ask again on a new one.
 */
#include "flight.h"

#include <errno.h>
#include <poll.h>
#include <sodium.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#define READ_LEN (64 * 1024)
#define FIRST_PAUSE_US 50000
#define LONGEST_PAUSE_US 2000000
#define LOOK_US 100000  /* how often to check for a silent connection */
#define CANCEL_US 10000 /* until a CANCEL that needs memory is tried again */
#define LAST_MS 5000    /* wait for answers when the engine is closed */

/* ---- the connection ---------------------------------------------------- */

/* Double the pause each time, with a random part, so that clients do not
 * reconnect at the same time. */
static void
plan_next_try(struct idem__remote *remote)
{
    int64_t pause = remote->pause_us ? remote->pause_us * 2 : FIRST_PAUSE_US;

    remote->pause_us = pause < LONGEST_PAUSE_US ? pause : LONGEST_PAUSE_US;
    remote->again_us = idem__system_clocks.boot_us(NULL) +
                       remote->pause_us * 3 / 4 +
                       randombytes_uniform((uint32_t)(remote->pause_us / 2));
}

static void
hang_up(struct idem_engine *engine, const char *why)
{
    struct idem__remote *remote = engine->remote;
    struct flight *next;

    idem__remote_hang_up(&remote->link);
    remote->again_us = engine->boot_now_us; /* at once the first time */
    if (remote->broken++ > 0)
        plan_next_try(remote);
    idem__fail(&remote->trouble, IDEM_ERR_UNAVAILABLE, "%s: %s",
               remote->address.shown, why);
    for (struct flight *flight = remote->first; flight; flight = next) {
        const struct idem__job *job = idem__flight_job(flight);

        next = flight->next;
        flight->resent = idem__flight_was_sent(remote, flight);
        flight->sent_us = 0;
        flight->cancel_due = flight->cancelled;
        remote->cancels_due = remote->cancels_due || flight->cancelled;
        if (flight->resent && job && job->op.verb == IDEM_FORGET)
            idem__flight_lose(engine, flight, why);
    }
    idem_buf_reset(&remote->in);
    idem_buf_reset(&remote->out);
    remote->sent = remote->needed = 0;
}

static void
fail_unsent(struct idem_engine *engine)
{
    struct idem__remote *remote = engine->remote;
    struct flight *next;

    for (struct flight *flight = remote->first; flight; flight = next) {
        struct idem_error err = remote->trouble;

        next = flight->next;
        if (!flight->resent)
            idem__flight_fail(engine, flight, IDEM_ERR_UNAVAILABLE, &err);
    }
}

static void
tell_time(struct idem_engine *engine)
{
    const struct idem__remote *remote = engine->remote;

    if (remote->hello.now_ms)
        atomic_store_explicit(&engine->ahead_ms,
                              remote->hello.now_ms - remote->hello_us / 1000,
                              memory_order_relaxed);
}

static void
greeted(struct idem_engine *engine)
{
    struct idem__remote *remote = engine->remote;

    remote->hello_us = remote->heard_us = engine->boot_now_us;
    atomic_store_explicit(&remote->max_result, remote->hello.max_result,
                          memory_order_relaxed);
    tell_time(engine);
}

static void
reconnect(struct idem_engine *engine)
{
    struct idem__remote *remote = engine->remote;
    struct flight *next;
    enum idem_status status;

    if (remote->link.fd >= 0 || !remote->first || idem__remote_refuses(engine))
        return;
    status = idem__remote_dial(&remote->address, remote->wake, &remote->closing,
                               &remote->link, &remote->hello, &remote->trouble);
    engine->boot_now_us = idem__boot_us(engine);
    if (status != IDEM_OK) {
        plan_next_try(remote);
        fail_unsent(engine);
        return;
    }
    greeted(engine);
    for (struct flight *f = remote->first; f; f = next) {
        next = f->next;
        idem__flight_send(engine, f);
    }
}

static void
write_out(struct idem_engine *engine)
{
    struct idem__remote *remote = engine->remote;

    while (remote->link.fd >= 0 && remote->sent < remote->out.len) {
        ssize_t n =
            idem__remote_send(&remote->link, remote->out.data + remote->sent,
                              remote->out.len - remote->sent);

        if (n < 0 && errno == EAGAIN)
            return;
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            hang_up(engine, idem__remote_flaw(&remote->link));
            return;
        }
        remote->sent += (size_t)n;
        remote->written += (uint64_t)n;
        atomic_fetch_add_explicit(&engine->batches, 1, memory_order_relaxed);
    }
    idem_buf_reset(&remote->out);
    remote->sent = 0;
}

static void
read_in(struct idem_engine *engine)
{
    struct idem__remote *remote = engine->remote;
    struct idem_buf *in = &remote->in;

    while (remote->link.fd >= 0) {
        size_t len = remote->needed > in->len + READ_LEN
                         ? remote->needed - in->len
                         : READ_LEN;
        uint8_t *room = idem_buf_room(in, len);
        ssize_t n = room ? idem__remote_recv(&remote->link, room, len) : -1;

        if (!room) {
            hang_up(engine, in->len + len > in->cap ? "a reply is too large"
                                                    : "out of memory");
        } else if (n > 0) {
            in->len += (size_t)n;
            remote->heard_us = engine->boot_now_us;
            if (in->len >= remote->needed && !idem__flights_answer(engine))
                hang_up(engine, "unexpected reply: is this an idem server?");
            else if ((size_t)n < len)
                return;
        } else if (n == 0) {
            hang_up(engine, "the server closed the connection");
        } else if (errno != EINTR) {
            if (errno != EAGAIN)
                hang_up(engine, idem__remote_flaw(&remote->link));
            return;
        }
    }
}

/* ---- time -------------------------------------------------------------- */

static void
fire(struct idem_engine *engine)
{
    struct idem__remote *remote = engine->remote;
    struct idem__timer *timer;

    while ((timer = idem__timer_first(&engine->timers)) &&
           timer->due_us <= engine->boot_now_us) {
        struct flight *flight = IDEM__OF(timer, struct flight, timer);
        struct idem_error err;

        idem__timer_stop(&engine->timers, timer);
        if (timer->kind == IDEM__TIMER_RENEW) {
            idem__keeper_due(IDEM__OF(timer, struct idem__keeper, timer));
        } else if (flight->resent || flight->sent_us) {
            /* Its bytes may still be in `out` and be sent later. */
            idem__flight_lose(engine, flight, "no reply in time");
        } else {
            idem__fail(&err, IDEM_ERR_UNAVAILABLE,
                       "%s: could not be sent in time", remote->address.shown);
            idem__flight_fail(engine, flight, IDEM_ERR_UNAVAILABLE, &err);
        }
    }
}

/* Hang up if the server should have answered a flight by now. */
static void
look_for_silence(struct idem_engine *engine)
{
    struct idem__remote *remote = engine->remote;
    int64_t now = engine->boot_now_us,
            patience = remote->address.timeout_ms * 1000 / 3;

    if (remote->link.fd < 0 || now - remote->looked_us < LOOK_US)
        return;
    remote->looked_us = now;
    if (now - remote->heard_us < patience)
        return;
    for (struct flight *f = remote->first; f; f = f->next) {
        const struct idem__job *job = idem__flight_job(f);
        bool waits = job && job->wait_end_us > now;

        if (f->sent_us && !waits && now - f->sent_us >= patience) {
            hang_up(engine, "it does not reply");
            return;
        }
    }
}

/* ---- the carrier ------------------------------------------------------- */

static bool
turn_server(struct idem_engine *engine)
{
    struct idem__remote *remote = engine->remote;
    size_t done, bytes;
    bool more;

    idem__queue_take(&engine->queue);
    idem__flights_take(engine);
    reconnect(engine);
    idem__flights_cancel(remote);
    write_out(engine);
    read_in(engine);
    fire(engine);
    look_for_silence(engine);
    tell_time(engine);
    done = remote->done;
    bytes = remote->done_bytes;
    remote->done = remote->done_bytes = 0;
    more = idem__queue_done(&engine->queue, done, bytes);
    return more || (remote->link.fd < 0 && remote->first &&
                    !idem__remote_refuses(engine));
}

static int64_t
server_due_us(struct idem_engine *engine)
{
    const struct idem__remote *remote = engine->remote;
    struct idem__timer *timer = idem__timer_first(&engine->timers);
    int64_t due = timer ? timer->due_us : INT64_MAX;

    if (remote->link.fd < 0 && remote->first && remote->again_us < due)
        due = remote->again_us;
    if (remote->link.fd >= 0 && remote->cancels_due &&
        engine->boot_now_us + CANCEL_US < due)
        due = engine->boot_now_us + CANCEL_US;
    return due;
}

static void
sleep_server(struct idem_engine *engine, int64_t ms)
{
    struct idem__remote *remote = engine->remote;
    struct idem__queue *queue = &engine->queue;
    bool unsent = remote->sent < remote->out.len;
    struct pollfd fds[2] = {
        {remote->wake, POLLIN, 0},
        {remote->link.fd, (short)(POLLIN | (unsent ? POLLOUT : 0)), 0}};
    uint64_t count;
    bool idle;

    pthread_mutex_lock(&queue->lock);
    idle = !queue->first && !queue->closing;
    queue->asleep = idle;
    pthread_mutex_unlock(&queue->lock);
    if (!idle)
        return;
    (void)poll(fds, remote->link.fd >= 0 ? 2 : 1, (int)ms);
    pthread_mutex_lock(&queue->lock);
    queue->asleep = false;
    pthread_mutex_unlock(&queue->lock);
    if (fds[0].revents)
        (void)!read(remote->wake, &count, sizeof(count));
}

/* Called with the queue's lock held. */
static void
wake_server(struct idem_engine *engine)
{
    const uint64_t one = 1;

    if (engine->queue.closing)
        __atomic_store_n(&engine->remote->closing, true, __ATOMIC_RELEASE);
    engine->queue.asleep = false; /* one wake-up is enough */
    (void)!write(engine->remote->wake, &one, sizeof(one));
}

static enum idem_status
open_server(struct idem_engine *engine, const char *url, struct idem_error *err)
{
    struct idem__remote *remote = calloc(1, sizeof(*remote));
    enum idem_status status;

    if (!remote)
        return idem__fail(err, IDEM_ERR_MEMORY, "out of memory");
    engine->remote = remote;
    remote->link = IDEM__REMOTE_NO_LINK;
    remote->last = &remote->first;
    idem_buf_init(&remote->out, SIZE_MAX / 4);
    remote->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (remote->wake < 0)
        return idem__fail(err, IDEM_ERR_MEMORY, "eventfd: %s", strerror(errno));
    status = idem__remote_address_open(url, &remote->address, err);
    if (status == IDEM_OK)
        status = idem__remote_dial(&remote->address, -1, NULL, &remote->link,
                                   &remote->hello, err);
    if (status != IDEM_OK)
        return status;
    /* A listing of many records is longer than any single record. */
    idem_buf_init(&remote->in, idem__encoded_max(IDEM_RESULT_MAX) +
                                   IDEM__WIRE_COUNT_MAX * 1024);
    engine->boot_now_us = idem__boot_us(engine);
    greeted(engine);
    return IDEM_OK;
}

static size_t
server_max_result(const struct idem_engine *engine)
{
    return atomic_load_explicit(&engine->remote->max_result,
                                memory_order_relaxed);
}

static void
server_figures(struct idem_engine *engine, idem_figure_fn *each, void *arg)
{
    (void)engine;
    (void)each;
    (void)arg;
}

/* End all waits now; sent operations get a short time to be answered. */
static void
finish_server(struct idem_engine *engine)
{
    struct idem__remote *remote = engine->remote;
    int64_t until_us = idem__boot_us(engine) + LAST_MS * 1000;
    struct idem_error err;

    __atomic_store_n(&remote->closing, false, __ATOMIC_RELEASE);
    for (struct flight *f = remote->first; f; f = f->next) {
        if (idem__flight_job(f) && idem__flight_job(f)->wait_end_us &&
            f->sent_us)
            idem__flight_cancel(remote, f);
    }
    while (remote->first && idem__boot_us(engine) < until_us) {
        struct pollfd fd = {remote->link.fd, POLLIN, 0};

        idem__engine_turn(engine);
        if (remote->first)
            (void)poll(&fd, remote->link.fd >= 0 ? 1 : 0, 20);
    }
    while (remote->first) {
        struct flight *flight = remote->first;

        idem__fail(&err, IDEM_ERR_CLOSED, "the engine is shutting down");
        if (idem__flight_was_sent(remote, flight))
            idem__flight_lose(engine, flight, "closed before the reply came");
        else
            idem__flight_fail(engine, flight, IDEM_ERR_CLOSED, &err);
    }
}

static void
close_server(struct idem_engine *engine)
{
    struct idem__remote *remote = engine->remote;

    if (!remote)
        return;
    idem__remote_hang_up(&remote->link);
    if (remote->wake >= 0)
        close(remote->wake);
    while (remote->spare) {
        struct flight *flight = remote->spare;

        remote->spare = flight->next;
        free(flight);
    }
    idem__map_clear(&remote->tags);
    idem_buf_clear(&remote->in);
    idem_buf_clear(&remote->out);
    idem__remote_address_clear(&remote->address);
    free(remote);
}

const struct idem__carrier idem__server_carrier = {
    .open = open_server,
    .turn = turn_server,
    .due_us = server_due_us,
    .sleep = sleep_server,
    .wake = wake_server,
    .max_result = server_max_result,
    .figures = server_figures,
    .finish = finish_server,
    .close = close_server,
};
