/*
 * connection.c - open, watch and close one connection. connection_in.c reads
 * from it, connection_out.c writes to it.
 *
 * Bytes are read into the loop's scratch buffer and parsed there. Only an
 * incomplete command, or one that may not be run yet, is copied into the
 * client's own buffer. An idle client therefore costs only its struct.
 *
 * The server does not read from a client that has too many unanswered commands
 * or unread replies, but never closes a client for that while it reads. Memory
 * is limited per client (max-command, max-output) and in total (max-buffered).
 */
#include "loop.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#define LINGER_MS 2000
#define LINGER_DRAIN_MS 200
#define OWN_SHARE (64 * 1024) /* less is never closed for max-buffered */
#define KEPT_ROOM 4096        /* an idle client keeps buffers up to this size */

/* ---- memory ---------------------------------------------------------- */

void
client_account(struct client *client)
{
    struct loop *loop = client->loop;
    size_t now = client->in.room + client->out.buf.room + client->reply_room;

    if (now == client->accounted)
        return;
    results_count(&loop->server->results, client->accounted, now);
    loop->buffered += now - client->accounted;
    client->accounted = now;
    atomic_store_explicit(&loop->server->metrics->buffered,
                          (int64_t)loop->buffered, memory_order_relaxed);
}

bool
client_over_limits(const struct client *client)
{
    return client->accounted > OWN_SHARE &&
           !results_room(&client->loop->server->results, 0);
}

void
client_trim(struct client *client)
{
    if (client->in.len == 0 && client->in.room > KEPT_ROOM)
        idem_buf_clear(&client->in);
    if (client->out.buf.len == 0 && client->out.buf.room > KEPT_ROOM)
        idem_buf_clear(&client->out.buf);
    client_account(client);
}

/* ---- events ---------------------------------------------------------- */

size_t
client_unsent(const struct client *client)
{
    size_t len = client->out.buf.len - client->sent;

    if (client->long_call)
        len += client->long_call->result->len - client->long_sent;
    return len;
}

bool
client_all_sent(const struct client *client)
{
    return client_unsent(client) == 0 && !client->quick.first &&
           !client->ready.first;
}

bool
client_has_room(const struct client *client)
{
    return client->out.buf.len - client->sent < CLIENT_UNSENT_PAUSE;
}

bool
client_is_full(const struct client *client)
{
    return client->call_count - client->wait_count >= CLIENT_CALLS_MAX ||
           !client_has_room(client) ||
           client->reply_room + client->owed >=
               (size_t)client->loop->config->max_output;
}

bool
client_waits_to_write(const struct client *client)
{
    return client->events & EPOLLOUT;
}

void
client_watch_for(struct client *client, uint32_t events)
{
    struct epoll_event event = {events, {.ptr = &client->source}};

    if (events == client->events)
        return;
    client->events = events; /* epoll always reports errors */
    epoll_ctl(client->loop->epoll, EPOLL_CTL_MOD, client->source.fd, &event);
}

void
client_watch(struct client *client)
{
    bool reads = client->ended
                     ? true
                     : !client->held && !client->closing &&
                           !client_is_full(client) && !client->loop->draining;

    client_watch_for(client, (reads ? EPOLLIN : 0) |
                                 (client_all_sent(client) ? 0 : EPOLLOUT));
}

void
client_touch(struct client *client)
{
    if (client->dirty || client->dead)
        return;
    client->dirty = true;
    client->next_dirty = client->loop->dirty;
    client->loop->dirty = client;
}

/* ---- open and close -------------------------------------------------- */

static void
set_options(int fd, bool local)
{
    int one = 1, idle = 60, interval = 20;

    if (local)
        return;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof(one));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof(idle));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof(interval));
}

static void
start_client(struct client *client, struct loop *loop, int fd, bool local)
{
    struct server *server = loop->server;

    client->source.what = SOURCE_CLIENT;
    client->source.fd = fd;
    client->loop = loop;
    client->local = local;
    client->id = ++loop->next_id;
    client->since_ms = client->read_ms = loop->now_ms;
    client->in_since_ms = client->write_ms = loop->now_ms;
    client->events = EPOLLIN;
    idem_buf_init(&client->in,
                  (size_t)loop->config->max_command + 2 * READ_LEN);
    idem_buf_init(&client->out.buf,
                  (size_t)loop->config->max_output + CLIENT_UNSENT_PAUSE);
    client->shaking = client->tls != NULL;
    if (!client->shaking)
        admin_greet(client);
    LIST_INSERT_HEAD(&loop->clients, client, in_loop);
    loop->client_count++;
    atomic_store_explicit(&server->metrics->clients,
                          (int64_t)loop->client_count, memory_order_relaxed);
}

static void
turn_away(struct loop *loop, int fd, bool encrypted)
{
    static const char text[] = "-ERR max number of clients reached\r\n";

    metrics_add(&loop->server->metrics->refused, 1);
    if (!encrypted)
        (void)!send(fd, text, sizeof(text) - 1, MSG_DONTWAIT | MSG_NOSIGNAL);
    close(fd);
}

void
client_accept(struct loop *loop, int fd, bool local)
{
    const struct idem__tls *tls = local ? NULL : loop->server->tls;
    struct epoll_event event = {.events = EPOLLIN};
    struct client *client;

    if (loop->client_count >= (size_t)loop->config->max_clients) {
        turn_away(loop, fd, tls != NULL);
        return;
    }
    client = calloc(1, sizeof(*client));
    if (client && tls)
        client->tls = idem__tls_start(tls, fd, NULL);
    event.data.ptr = client ? &client->source : NULL;
    if (!client || (tls && !client->tls) ||
        epoll_ctl(loop->epoll, EPOLL_CTL_ADD, fd, &event) != 0) {
        if (client)
            idem__tls_end(client->tls);
        free(client);
        turn_away(loop, fd, tls != NULL);
        return;
    }
    metrics_add(&loop->server->metrics->accepted, 1);
    set_options(fd, local);
    start_client(client, loop, fd, local);
}

void
client_close(struct client *client, const char *why)
{
    struct loop *loop = client->loop;

    if (client->dead)
        return;
    client->dead = true;
    if (why) {
        metrics_add(&loop->server->metrics->closed_by_limit, 1);
        server_log(loop->log, LOG_WARNING, "client-closed",
                   LOG_NUMBER("client", client->id), LOG_TEXT("why", why));
    }
    calls_leave(client);
    idem__tls_end(client->tls);
    client->tls = NULL;
    close(client->source.fd);
    LIST_REMOVE(client, in_loop);
    loop->client_count--;
    atomic_store_explicit(&loop->server->metrics->clients,
                          (int64_t)loop->client_count, memory_order_relaxed);
    idem_buf_clear(&client->in);
    idem_buf_clear(&client->out.buf);
    client->sent = 0;
    client_account(client);
    principal_put(client->principal);
    client->principal = NULL;
    /* Events and lists may still point to it, so it is freed at the end of the
     * round. */
    client->next_dead = loop->dead;
    loop->dead = client;
}

/* All replies were sent. Read and drop what the client still sends for a while,
 * because closing a socket with unread bytes could destroy our last reply. */
void
client_end(struct client *client)
{
    if (client->ended)
        return;
    client->ended = true;
    client->linger_until_ms =
        client->loop->now_ms +
        (client->loop->draining ? LINGER_DRAIN_MS : LINGER_MS);
    idem_buf_clear(&client->in);
    if (client->tls)
        idem__tls_goodbye(client->tls);
    shutdown(client->source.fd, SHUT_WR);
}

/* ---- time limits ----------------------------------------------------- */

void
client_check_limits(struct client *client)
{
    const struct server_config *config = client->loop->config;
    int64_t now = client->loop->seen_ms;
    int64_t heard = client->read_ms, said = client->write_ms;
    bool waits = client->call_count > 0 || client->held;

    if (client->ended) {
        if (now >= client->linger_until_ms)
            client_close(client, NULL);
    } else if (client_waits_to_write(client) &&
               now - client->write_ms > config->stall_ms) {
        client_close(client, "its replies were not read");
    } else if (client->loop->pressed && client_waits_to_write(client) &&
               now - client->write_ms > PRESSED_MS &&
               (client->long_call || client->accounted > OWN_SHARE)) {
        client_close(client, "max-buffered is reached");
    } else if (client->in.len > 0 && !waits && !client_is_full(client) &&
               now - client->in_since_ms > config->stall_ms) {
        client_protocol_error(client, "the rest of the command did not come");
    } else if (client->shaking && now - client->since_ms > config->stall_ms) {
        client_close(client, "its TLS handshake was not finished");
    } else if (!client->principal && !waits &&
               now - client->since_ms > config->stall_ms) {
        client_close(client, "it did not authenticate");
    } else if (config->idle_ms > 0 && !waits &&
               now - (heard > said ? heard : said) > config->idle_ms) {
        client_close(client, NULL);
    }
}

/* Accept no more commands; answer those in flight. */
void
client_drain(struct client *client)
{
    for (struct call *call = LIST_FIRST(&client->calls), *next; call;
         call = next) {
        next = LIST_NEXT(call, in_client);
        if (call->waits && call->ticket && !call->done)
            idem_cancel(client->loop->engine, call->ticket);
    }
    if (client->call_count == 0 && client_all_sent(client))
        client_close(client, NULL);
    else
        client->closing = true;
}
