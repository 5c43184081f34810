/*
 * http.c - HTTP/JSON: start to listen, and stop without dropping requests in
 * flight.
 */
#include "../core/listen.h"
#include "http_inner.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define HEAD_MAX (32 * 1024) /* request line and headers, per connection */
#define BODY_EXTRA (64 * 1024)
#define TLS_VERSIONS "NORMAL:-VERS-ALL:+VERS-TLS1.3:+VERS-TLS1.2"

/* http_route.c decodes paths and queries, because it must tell an encoded slash
 * from a plain one. */
static size_t
leave_escapes(void *arg, struct MHD_Connection *connection, char *text)
{
    (void)arg;
    (void)connection;
    return strlen(text);
}

/* libmicrohttpd's own messages are about clients' mistakes, and the client gets
 * an error for those anyway. */
__attribute__((format(printf, 2, 0))) static void
hush(void *arg, const char *format, va_list args)
{
    (void)arg;
    (void)format;
    (void)args;
}

static void
connection_changed(void *arg, struct MHD_Connection *connection,
                   void **socket_context,
                   enum MHD_ConnectionNotificationCode code)
{
    struct http_daemon *daemon = arg;
    struct http *http = daemon->http;
    struct http_client *client = *socket_context;

    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
        const union MHD_ConnectionInfo *info = MHD_get_connection_info(
            connection, MHD_CONNECTION_INFO_CONNECTION_FD);

        client = info ? calloc(1, sizeof(*client)) : NULL;
        *socket_context = client;
        if (!client)
            return;
        client->fd = info->connect_fd;
        client->since_ms = idem__mono_ms();
        if (http->server->tls)
            client->stage = CLIENT_SENDING; /* its handshake */
        pthread_mutex_lock(&http->lock);
        LIST_INSERT_HEAD(&http->clients, client, link);
        pthread_mutex_unlock(&http->lock);
        metrics_add(&http->server->metrics->accepted, 1);
        atomic_fetch_add(&http->client_count, 1);
    } else if (client) {
        pthread_mutex_lock(&http->lock);
        LIST_REMOVE(client, link);
        pthread_mutex_unlock(&http->lock);
        *socket_context = NULL;
        free(client);
        atomic_fetch_sub(&http->client_count, 1);
    }
}

static int
port_of(int fd)
{
    struct sockaddr_storage address;
    socklen_t len = sizeof(address);

    if (getsockname(fd, (struct sockaddr *)&address, &len) != 0)
        return 0;
    return address.ss_family == AF_INET6
               ? ntohs(((struct sockaddr_in6 *)&address)->sin6_port)
               : ntohs(((struct sockaddr_in *)&address)->sin_port);
}

static enum idem_status
start_daemon(struct http *http, int fd, bool loopback, struct idem_error *err)
{
    struct http_daemon *daemon = &http->daemons[http->daemon_count];
    int64_t clients = http->server->config->max_clients;
    bool tls = http->server->tls != NULL;

    *daemon = (struct http_daemon){
        .http = http, .loopback = loopback, .port = port_of(fd)};
    daemon->mhd = MHD_start_daemon(
        MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME |
            MHD_USE_ERROR_LOG | (tls ? MHD_USE_TLS : 0),
        0, NULL, NULL, http_handle, daemon, MHD_OPTION_EXTERNAL_LOGGER, hush,
        NULL, MHD_OPTION_LISTEN_SOCKET, fd, MHD_OPTION_URI_LOG_CALLBACK,
        http_request_new, daemon, MHD_OPTION_NOTIFY_COMPLETED,
        http_request_done, daemon, MHD_OPTION_NOTIFY_CONNECTION,
        connection_changed, daemon, MHD_OPTION_UNESCAPE_CALLBACK, leave_escapes,
        NULL, MHD_OPTION_CONNECTION_LIMIT,
        (unsigned)(clients > 0 && clients < 10000 ? clients : 10000),
        MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)HTTP_IDLE_S,
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)HEAD_MAX,
        MHD_OPTION_STRICT_FOR_CLIENT, 1,
        tls ? MHD_OPTION_HTTPS_CERT_CALLBACK2 : MHD_OPTION_END, http_tls_show,
        MHD_OPTION_HTTPS_PRIORITIES, TLS_VERSIONS,
        http_tls_trust() ? MHD_OPTION_HTTPS_MEM_TRUST : MHD_OPTION_END,
        http_tls_trust(), MHD_OPTION_END);
    if (!daemon->mhd) {
        close(fd);
        return idem__fail(err, IDEM_ERR_UNAVAILABLE,
                          "http: cannot start serving");
    }
    http->daemon_count++;
    return IDEM_OK;
}

static enum idem_status
listen_all(struct http *http, struct idem_error *err)
{
    const char *list = http->server->config->http;
    enum idem_status status = IDEM_OK;
    struct server_address address;
    struct idem_error wrong = {0};

    while (status == IDEM_OK && server_address_next(&list, &address, &wrong)) {
        int fds[SERVER_LISTEN_MAX];
        size_t count = 0;

        status = server_listen_tcp(&address, fds, &count, err);
        for (size_t i = 0; i < count; i++) {
            if (status == IDEM_OK && http->daemon_count == HTTP_DAEMONS_MAX)
                status = idem__fail(err, IDEM_ERR_INVALID,
                                    "http: more than %d addresses",
                                    HTTP_DAEMONS_MAX);
            if (status == IDEM_OK)
                status = start_daemon(http, fds[i], address.loopback, err);
            else
                close(fds[i]);
        }
        if (status == IDEM_OK)
            server_log(http->server->log, LOG_INFO, "listening",
                       LOG_TEXT("protocol", "http"),
                       LOG_TEXT("host", address.host),
                       LOG_TEXT("port", address.port));
    }
    if (status == IDEM_OK && wrong.status != IDEM_OK)
        return idem__fail(err, wrong.status, "%s", wrong.text);
    return status;
}

static void
clear(struct http *http)
{
    bool owed;

    for (size_t i = 0; i < http->daemon_count; i++)
        MHD_stop_daemon(http->daemons[i].mhd);
    if (http->watching)
        http_watch_stop(http);
    http_aside_stop(http);
    http_stats_close(http->stats);
    pthread_mutex_lock(&http->lock);
    owed = http->in_flight > 0;
    pthread_mutex_unlock(&http->lock);
    if (owed)
        return; /* the engine still owes callbacks, which use this */
    pthread_cond_destroy(&http->stir);
    http_aside_clear(http);
    pthread_mutex_destroy(&http->lock);
    http_tls_forget();
    http_sessions_close(http->sessions);
    free(http->openapi);
    free(http);
}

static enum idem_status
open_console(struct http *http, struct idem_error *err)
{
    if (!http_console_built())
        return idem__fail(err, IDEM_ERR_INVALID,
                          "console: this idem was built without the console, "
                          "because npm was missing: run scripts/deps build, "
                          "then make");
    http->sessions = http_sessions_open(http->server->config->console_idle_ms);
    http->stats = http->sessions ? http_stats_open(http) : NULL;
    return http->stats ? IDEM_OK
                       : idem__fail(err, IDEM_ERR_MEMORY, "out of memory");
}

enum idem_status
http_start(struct server *server, struct http **http, struct idem_error *err)
{
    struct http *self = calloc(1, sizeof(*self));
    int64_t max_result = server->config->max_result;
    enum idem_status status;

    if (max_result <= 0)
        max_result = IDEM_RESULT_DEFAULT_MAX;
    idem__json_begin();
    if (self)
        self->openapi = idem__json_text(http_openapi(
            server->config->problem_base, server->config->console));
    if (!self || !self->openapi) {
        free(self);
        return idem__fail(err, IDEM_ERR_MEMORY, "http: out of memory");
    }
    self->server = server;
    self->max_body = (size_t)max_result / 3 * 4 + BODY_EXTRA;
    if (!http_watch_start(self) || !http_aside_start(self)) {
        clear(self);
        return idem__fail(err, IDEM_ERR_MEMORY, "http: no thread");
    }
    status = server->config->console ? open_console(self, err) : IDEM_OK;
    if (status == IDEM_OK && server->tls)
        status = http_tls_read(server->config, err);
    if (status == IDEM_OK)
        status = listen_all(self, err);
    if (status != IDEM_OK) {
        clear(self);
        return status;
    }
    *http = self;
    return IDEM_OK;
}

/* Under the lock: is any request still being served? */
static bool
is_busy(const struct http *http)
{
    if (!LIST_EMPTY(&http->pending))
        return true;
    for (const struct http_client *c = LIST_FIRST(&http->clients); c;
         c = LIST_NEXT(c, link))
        if (c->stage == CLIENT_SERVED)
            return true;
    return false;
}

static void
wait_idle(struct http *http, int64_t limit_ms)
{
    const struct timespec pause = {0, 10 * 1000000L};
    int64_t until = idem__mono_ms() + limit_ms;

    pthread_mutex_lock(&http->lock);
    while (is_busy(http) && idem__mono_ms() < until) {
        pthread_mutex_unlock(&http->lock);
        nanosleep(&pause, NULL);
        pthread_mutex_lock(&http->lock);
    }
    pthread_mutex_unlock(&http->lock);
}

void
http_stop(struct http *http, int64_t drain_ms)
{
    if (!http)
        return;
    for (size_t i = 0; i < http->daemon_count; i++) {
        int fd = MHD_quiesce_daemon(http->daemons[i].mhd);

        if (fd >= 0)
            close(fd);
    }
    pthread_mutex_lock(&http->lock);
    http->draining = true;
    for (struct http_request *r = LIST_FIRST(&http->pending); r;
         r = LIST_NEXT(r, link))
        if (r->waits)
            idem_cancel(http->server->engine, r->ticket);
    pthread_mutex_unlock(&http->lock);
    http_events_end(http);
    wait_idle(http, drain_ms);

    /* No connection may be suspended when libmicrohttpd stops. */
    pthread_mutex_lock(&http->lock);
    http->stopping = true;
    pthread_cond_signal(&http->stir);
    pthread_mutex_unlock(&http->lock);
    wait_idle(http, 1000);
    clear(http);
}
