/*
 * http_watch.c - time limits, and clients that disconnect while they wait.
 *
 * libmicrohttpd does not look at a suspended connection, so it would not notice
 * that a client whose BEGIN waits has disconnected. Five times a second this
 * thread asks the kernel about all of them at once.
 */
#include "http_inner.h"

#include "../../store/store.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>

#define AWAY_MS (2 * HTTP_TICK_MS) /* then the process was stopped */

/* Under the lock. A half-closed connection counts as gone: a client that still
 * wants a response must keep its side open. */
static void
drop_gone(struct http *http)
{
    struct pollfd *fds;
    size_t count = 0, room = 0;

    for (struct http_request *r = LIST_FIRST(&http->pending); r;
         r = LIST_NEXT(r, link))
        room += r->waits && !r->gone;
    fds = room > 0 ? calloc(room, sizeof(*fds)) : NULL;
    if (!fds)
        return;
    for (struct http_request *r = LIST_FIRST(&http->pending); r;
         r = LIST_NEXT(r, link))
        if (r->waits && !r->gone)
            fds[count++] = (struct pollfd){r->client->fd, POLLRDHUP, 0};
    if (poll(fds, count, 0) > 0) {
        count = 0;
        for (struct http_request *r = LIST_FIRST(&http->pending); r;
             r = LIST_NEXT(r, link)) {
            if (!r->waits || r->gone || !fds[count++].revents)
                continue;
            r->gone = true;
            idem_cancel(http->server->engine, r->ticket);
        }
    }
    free(fds);
}

/* Under the lock. A write that was submitted and not answered in time may or
 * may not have been stored (LOST); a read is a simple TIMEOUT. */
static void
answer_overdue(struct http_request *request)
{
    bool reads = !request->route || request->route->action != HTTP_OP ||
                 request->route->verb == IDEM_GET;

    if (request->wants_room) {
        /* Its answer is known and wrote nothing. */
        http_fail_full(request);
    } else if (!request->failed) {
        request->failed = true;
        request->problem = reads ? IDEM_PROBLEM_TIMEOUT : IDEM_PROBLEM_LOST;
        idem__fail(&request->error, IDEM_ERR_TIMEOUT,
                   "the store did not respond in time");
    }
    request->abandoned = true;
    http_resume(request);
}

static void
check_due(struct http *http, int64_t now)
{
    struct http_request *next;

    for (struct http_request *r = LIST_FIRST(&http->pending); r; r = next) {
        next = LIST_NEXT(r, link);
        if (r->due_ms <= now || http->stopping)
            answer_overdue(r);
    }
}

/* A request must arrive completely within stall_ms; libmicrohttpd only limits
 * the pause between two pieces of it. */
static void
drop_dawdlers(struct http *http, int64_t now)
{
    int64_t stall_ms = http->server->config->stall_ms;

    if (stall_ms <= 0)
        stall_ms = 30000;
    for (struct http_client *c = LIST_FIRST(&http->clients); c;
         c = LIST_NEXT(c, link)) {
        int64_t limit = c->stage == CLIENT_SENDING
                            ? stall_ms
                            : HTTP_IDLE_S * 1000 + stall_ms;

        if (c->stage == CLIENT_SERVED || now - c->since_ms < limit)
            continue;
        shutdown(c->fd, SHUT_RDWR);
        c->since_ms = now;
        metrics_add(&http->server->metrics->closed_by_limit, 1);
    }
}

static void *
watch(void *arg)
{
    struct http *http = arg;

    pthread_mutex_lock(&http->lock);
    while (http->watching) {
        struct timespec until = idem__deadline(HTTP_TICK_MS * 1000);
        int64_t before = idem__mono_ms(), now;

        pthread_cond_timedwait(&http->stir, &http->lock, &until);
        now = idem__mono_ms();
        drop_gone(http);
        if (now - before > AWAY_MS)
            continue; /* data that arrived meanwhile must be read first */
        check_due(http, now);
        drop_dawdlers(http, now);
    }
    pthread_mutex_unlock(&http->lock);
    return NULL;
}

bool
http_watch_start(struct http *http)
{
    pthread_mutex_init(&http->lock, NULL);
    idem__cond_init(&http->stir);
    http->watching = true;
    if (pthread_create(&http->watcher, NULL, watch, http) != 0)
        http->watching = false;
    return http->watching;
}

void
http_watch_stop(struct http *http)
{
    pthread_mutex_lock(&http->lock);
    http->watching = false;
    pthread_cond_signal(&http->stir);
    pthread_mutex_unlock(&http->lock);
    pthread_join(http->watcher, NULL);
}
