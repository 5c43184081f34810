/*
 * http_events.c - send new rows of figures to listeners (server-sent events).
 *
 * A listener has room for one row. If it has not read the last row, it misses
 * the next one, so a slow listener costs no memory. libmicrohttpd's thread
 * reads the row and suspends the connection; the sampler puts the next row in
 * and resumes the connection. Everything here is under http->lock.
 */
#include "http_inner.h"

#include <stdlib.h>
#include <string.h>

#define LISTENERS_MAX 32
#define LISTENERS_EACH 8 /* of one credential */
#define BLOCK 4096
#define HELLO ": rows of /v1/stats\n\n"

struct http_listener {
    LIST_ENTRY(http_listener) link;
    struct http *http;
    struct MHD_Connection *connection;
    struct principal *principal;
    bool by_session;
    uint8_t session[HTTP_SESSION_LEN];
    char *row;
    size_t len, at;
    bool suspended, over;
};

static ssize_t
read_row(void *arg, uint64_t position, char *out, size_t room)
{
    struct http_listener *self = arg;
    ssize_t n = 0;

    (void)position;
    pthread_mutex_lock(&self->http->lock);
    if (self->at < self->len) {
        size_t left = self->len - self->at;

        n = (ssize_t)(left < room ? left : room);
        memcpy(out, self->row + self->at, (size_t)n);
        self->at += (size_t)n;
    } else if (self->over || self->http->draining) {
        n = MHD_CONTENT_READER_END_OF_STREAM;
    } else {
        self->suspended = true;
        MHD_suspend_connection(self->connection);
    }
    pthread_mutex_unlock(&self->http->lock);
    return n;
}

static void
forget_listener(void *arg)
{
    struct http_listener *self = arg;

    pthread_mutex_lock(&self->http->lock);
    LIST_REMOVE(self, link);
    self->http->listener_count--;
    pthread_mutex_unlock(&self->http->lock);
    principal_put(self->principal);
    free(self->row);
    free(self);
}

/* Under the lock. */
static bool
has_room(const struct http *http, const struct principal *principal)
{
    size_t count = 0;

    for (const struct http_listener *l = LIST_FIRST(&http->listeners); l;
         l = LIST_NEXT(l, link))
        count += l->principal == principal;
    return http->listener_count < LISTENERS_MAX && count < LISTENERS_EACH;
}

static struct http_listener *
new_listener(struct http_request *request)
{
    struct http *http = request->http;
    struct http_listener *self = calloc(1, sizeof(*self));
    bool listens = false;

    if (!self || !(self->row = strdup(HELLO))) {
        free(self);
        return NULL;
    }
    self->http = http;
    self->connection = request->connection;
    self->principal = principal_ref(request->principal);
    self->by_session = request->by_session;
    memcpy(self->session, request->session, HTTP_SESSION_LEN);
    self->len = strlen(self->row);
    pthread_mutex_lock(&http->lock);
    if (has_room(http, self->principal)) {
        http->listener_count++;
        LIST_INSERT_HEAD(&http->listeners, self, link);
        listens = true;
    }
    pthread_mutex_unlock(&http->lock);
    if (listens)
        return self;
    principal_put(self->principal);
    free(self->row);
    free(self);
    return NULL;
}

struct MHD_Response *
http_events(struct http_request *request)
{
    struct http_listener *self = new_listener(request);
    struct MHD_Response *response;

    if (!self) {
        http_fail(request, IDEM_PROBLEM_OVERLOADED,
                  "%d pages of this credential or %d in total receive the "
                  "figures already: close one of them",
                  LISTENERS_EACH, LISTENERS_MAX);
        return NULL;
    }
    response = MHD_create_response_from_callback(
        MHD_SIZE_UNKNOWN, BLOCK, read_row, self, forget_listener);
    if (!response) {
        forget_listener(self);
        http_fail(request, IDEM_PROBLEM_MEMORY, "out of memory");
    }
    return response;
}

/* Under the lock. */
static void
wake(struct http_listener *self)
{
    if (!self->suspended)
        return;
    self->suspended = false;
    MHD_resume_connection(self->connection);
}

/* May it still listen? Its session may have ended, or its credential may have
 * been removed. */
static bool
is_welcome(const struct http_listener *self)
{
    return principal_valid(self->principal) &&
           (!self->by_session || http_session_lives(self->http, self->session));
}

bool
http_events_wanted(struct http *http)
{
    bool wanted;

    pthread_mutex_lock(&http->lock);
    wanted = http->listener_count > 0;
    pthread_mutex_unlock(&http->lock);
    return wanted;
}

void
http_events_send(struct http *http, const char *row, size_t len)
{
    pthread_mutex_lock(&http->lock);
    for (struct http_listener *l = LIST_FIRST(&http->listeners); l;
         l = LIST_NEXT(l, link)) {
        char *copy = NULL;

        if (!l->suspended)
            continue; /* it has not read the last one */
        l->over = !is_welcome(l);
        if (!l->over)
            copy = malloc(len);
        if (copy) {
            memcpy(copy, row, len);
            free(l->row);
            l->row = copy;
            l->len = len;
            l->at = 0;
        }
        wake(l);
    }
    pthread_mutex_unlock(&http->lock);
}

void
http_events_end(struct http *http)
{
    pthread_mutex_lock(&http->lock);
    for (struct http_listener *l = LIST_FIRST(&http->listeners); l;
         l = LIST_NEXT(l, link)) {
        l->over = true;
        wake(l);
    }
    pthread_mutex_unlock(&http->lock);
}
