/*
 * connection.c - one connection: read, parse, send, close.
 *
 * Bytes are read into the loop's scratch buffer and parsed there; only what is
 * not a whole command yet, or may not be run yet, is copied into the client's
 * own buffer. An idle client therefore costs its struct and nothing else.
 *
 * A client is not read from while it has too much unanswered or unread; one
 * that reads is never closed for it. Memory is bounded for one client
 * (max-command, max-output) and for all (max-buffered).
 */
#include "loop.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#define UNKNOWN_CLIENT_MAX 16384 /* a command of a client before AUTH */
#define LINGER_MS 2000
#define LINGER_DRAIN_MS 200
#define OWN_SHARE (64 * 1024)   /* below this nobody is closed for all */
#define PROGRESS (64 * 1024)    /* resets the clock of a long command */
#define KEPT_ROOM 4096          /* an idle client keeps buffers up to this */
#define READS_MAX 16            /* of one client in a round: a megabyte */
#define FLUSH_MAX (1024 * 1024) /* so much of one client is sent in a round */
#define SHIFT_MIN (64 * 1024)   /* sent bytes that are worth moving the rest */
#define TLS_HANDSHAKE 0x16      /* the first byte of a client that speaks it */
#define SHAKES_MAX 32           /* steps of TLS handshakes in a round */
#define PRESSED_MS 1000 /* without room for all, so long without reading */

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

static bool
over_all_limits(const struct client *client)
{
    return client->accounted > OWN_SHARE &&
           !results_room(&client->loop->server->results, 0);
}

static void
trim(struct client *client)
{
    if (client->in.len == 0 && client->in.room > KEPT_ROOM)
        idem_buf_clear(&client->in);
    if (client->out.buf.len == 0 && client->out.buf.room > KEPT_ROOM)
        idem_buf_clear(&client->out.buf);
    client_account(client);
}

/* ---- events ---------------------------------------------------------- */

static size_t
unsent(const struct client *client)
{
    size_t len = client->out.buf.len - client->sent;

    if (client->long_call)
        len += client->long_call->result->len - client->long_sent;
    return len;
}

/* Nothing is left that is to be sent. */
static bool
all_sent(const struct client *client)
{
    return unsent(client) == 0 && !client->quick.first && !client->ready.first;
}

bool
client_has_room(const struct client *client)
{
    return client->out.buf.len - client->sent < CLIENT_UNSENT_PAUSE;
}

static bool
is_full(const struct client *client)
{
    return client->call_count - client->wait_count >= CLIENT_CALLS_MAX ||
           !client_has_room(client) ||
           client->reply_room + client->owed >=
               (size_t)client->loop->config->max_output;
}

/* The last flush left replies over, which the client has yet to read. */
static bool
waits_to_write(const struct client *client)
{
    return client->events & EPOLLOUT;
}

static void
watch_for(struct client *client, uint32_t events)
{
    struct epoll_event event = {events, {.ptr = &client->source}};

    if (events == client->events)
        return;
    client->events = events; /* errors are always told */
    epoll_ctl(client->loop->epoll, EPOLL_CTL_MOD, client->source.fd, &event);
}

/* Watch for what is wanted now. */
static void
watch(struct client *client)
{
    bool reads = client->ended
                     ? true
                     : !client->held && !client->closing && !is_full(client) &&
                           !client->loop->draining;

    watch_for(client,
              (reads ? EPOLLIN : 0) | (all_sent(client) ? 0 : EPOLLOUT));
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
    client->next = loop->clients;
    if (client->next)
        client->next->prev = client;
    loop->clients = client;
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
    if (client->prev)
        client->prev->next = client->next;
    else
        loop->clients = client->next;
    if (client->next)
        client->next->prev = client->prev;
    loop->client_count--;
    atomic_store_explicit(&loop->server->metrics->clients,
                          (int64_t)loop->client_count, memory_order_relaxed);
    idem_buf_clear(&client->in);
    idem_buf_clear(&client->out.buf);
    client->sent = 0;
    client_account(client);
    principal_put(client->principal);
    client->principal = NULL;
    /* Events and lists may still name it: it goes at the end of the round. */
    client->next = loop->dead;
    loop->dead = client;
}

/* All is said. What the client still sends is read and dropped for a while,
 * for closing over unread bytes could destroy our last words on their way. */
static void
end_client(struct client *client)
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

/* ---- out ------------------------------------------------------------- */

/* The output, a long result at its place in it, the rest of the output. */
static ssize_t
send_parts(struct client *client)
{
    struct iovec parts[3];
    struct msghdr message = {.msg_iov = parts};
    uint8_t *out = client->out.buf.data;
    struct result *result = client->long_call->result;

    if (client->sent < client->long_at)
        parts[message.msg_iovlen++] =
            (struct iovec){out + client->sent, client->long_at - client->sent};
    parts[message.msg_iovlen++] = (struct iovec){
        result->bytes + client->long_sent, result->len - client->long_sent};
    parts[message.msg_iovlen++] = (struct iovec){
        out + client->long_at, client->out.buf.len - client->long_at};
    return sendmsg(client->source.fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* The same bytes in the same order, one stretch at a time. */
static ssize_t
send_encrypted(struct client *client)
{
    uint8_t *at = client->out.buf.data + client->sent;
    size_t len = client->out.buf.len - client->sent;

    if (client->long_call && client->sent < client->long_at) {
        len = client->long_at - client->sent;
    } else if (client->long_call) {
        at = client->long_call->result->bytes + client->long_sent;
        len = client->long_call->result->len - client->long_sent;
    }
    return idem__tls_send(client->tls, at, len);
}

static ssize_t
send_next(struct client *client)
{
    if (client->tls)
        return send_encrypted(client);
    if (client->long_call)
        return send_parts(client);
    return send(client->source.fd, client->out.buf.data + client->sent,
                unsent(client), MSG_NOSIGNAL | MSG_DONTWAIT);
}

static size_t
least(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* So many bytes are on their way. */
static void
count_sent(struct client *client, size_t n)
{
    if (client->long_call) {
        size_t len = client->long_call->result->len;
        size_t before = least(n, client->long_at - client->sent);

        client->sent += before;
        n -= before;
        before = least(n, len - client->long_sent);
        client->long_sent += before;
        n -= before;
        if (client->long_sent == len)
            calls_long_sent(client);
    }
    client->sent += n;
}

static bool
send_some(struct client *client, size_t *total)
{
    while (unsent(client) > 0 && *total < FLUSH_MAX) {
        ssize_t n = send_next(client);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return errno == EAGAIN || errno == EWOULDBLOCK;
        count_sent(client, (size_t)n);
        *total += (size_t)n;
        client->write_ms = client->loop->now_ms;
    }
    return true;
}

/* What was sent makes room. */
static void
drop_sent(struct client *client)
{
    size_t sent = client->sent;

    if (sent < client->out.buf.len && sent < SHIFT_MIN)
        return;
    client->out_before += sent;
    client->sent = 0;
    if (client->long_call)
        client->long_at -= sent;
    if (sent == client->out.buf.len)
        idem_buf_reset(&client->out.buf);
    else
        idem_buf_shift(&client->out.buf, sent);
}

/* False: the connection is broken. */
static bool
send_all(struct client *client)
{
    size_t total = 0;

    do {
        calls_fill(client);
        if (!send_some(client, &total))
            return false;
        calls_sent(client);
        drop_sent(client);
    } while (unsent(client) == 0 && !all_sent(client) && total < FLUSH_MAX);
    return true;
}

/* It has read something lately, and does not hold more than its share. */
static bool
was_heard(const struct client *client)
{
    return client->loop->now_ms - client->write_ms < PRESSED_MS &&
           client->accounted <= (size_t)client->loop->config->max_output;
}

void
client_flush(struct client *client)
{
    bool was_full;

    if (client->dead)
        return;
    was_full = is_full(client) || client->in.len > 0;
    client_account(client);
    if (!waits_to_write(client))
        client->write_ms = client->loop->now_ms;
    if (!client->out.failed && !send_all(client)) {
        client_close(client, NULL);
        return;
    }
    if (client->out.failed) {
        client_close(client, "a reply longer than max-output, or no memory");
        return;
    }
    if (client->round == client->loop->round && client->call_count == 0)
        client->loop->answered++;
    if (all_sent(client)) {
        trim(client);
        if (client->closing && !client->first &&
            (!client->loop->draining || client->call_count == 0))
            end_client(client);
    } else {
        client_account(client);
        if (over_all_limits(client) && !was_heard(client)) {
            client_close(client, "max-buffered is reached");
            return;
        }
    }
    if (was_full && !client->closing)
        client_go_on(client);
    if (!client->dead)
        watch(client);
}

/* ---- in -------------------------------------------------------------- */

static bool
may_parse(const struct client *client)
{
    return !client->held && !client->closing && !client->dead &&
           !client->out.failed && !is_full(client) && !client->loop->draining;
}

static size_t
command_limit(const struct client *client)
{
    return client->principal ? (size_t)client->loop->config->max_command
                             : UNKNOWN_CLIENT_MAX;
}

static void
protocol_error(struct client *client, const char *text)
{
    struct loop *loop = client->loop;

    metrics_add(&loop->server->metrics->protocol_errors, 1);
    server_log(loop->log, LOG_INFO, "protocol-error",
               LOG_NUMBER("client", client->id), LOG_TEXT("text", text));
    client_error(client, (struct answer_tag){false, 0}, "ERR", text, true);
}

/* Run the whole commands in `bytes`; returns how many bytes are done with. */
static size_t
feed(struct client *client, const uint8_t *bytes, size_t len)
{
    struct idem__wire_request request;
    size_t at = 0;

    client->needed = 0;
    while (at < len && may_parse(client)) {
        struct idem_bytes rest = {bytes + at, len - at};
        struct idem_error err;
        size_t used;

        switch (idem__wire_request(rest, command_limit(client), &request, &used,
                                   &err)) {
        case IDEM__WIRE_DONE:
            at += used;
            if (request.count > 0)
                client_command(client, &request);
            break;
        case IDEM__WIRE_MORE:
            client->needed = used;
            return at;
        case IDEM__WIRE_BAD:
            protocol_error(client, err.text);
            return len;
        }
    }
    return client->closing || client->dead ? len : at;
}

static void
keep_rest(struct client *client, const uint8_t *rest, size_t len)
{
    if (len > 0 && !idem_buf_add(&client->in, rest, len)) {
        client_close(client, "out of memory");
        return;
    }
    client->in_since_ms = client->loop->now_ms;
    client->in_mark = client->in.len;
    client_account(client);
    if (over_all_limits(client))
        client_close(client, "max-buffered is reached");
}

void
client_go_on(struct client *client)
{
    size_t used;

    if (client->in.len == 0 || !may_parse(client) ||
        client->in.len < client->needed)
        return;
    used = feed(client, client->in.data, client->in.len);
    if (client->dead || used == 0)
        return;
    idem_buf_shift(&client->in, used);
    client->in_since_ms = client->loop->now_ms;
    client->in_mark = client->in.len;
    trim(client);
}

static ssize_t
receive(struct client *client, void *into, size_t len)
{
    ssize_t n;

    if (client->tls)
        return idem__tls_recv(client->tls, into, len);
    do {
        n = recv(client->source.fd, into, len, MSG_DONTWAIT);
    } while (n < 0 && errno == EINTR);
    return n;
}

/* Read more of a command of which a part is here. */
static ssize_t
read_on(struct client *client)
{
    size_t want = client->needed > client->in.len + READ_LEN
                      ? client->needed - client->in.len
                      : READ_LEN;
    size_t free_room;
    uint8_t *at;
    ssize_t n;

    /* Room for the whole command at once, but memory follows what came. */
    if (want > client->in.len + READ_LEN)
        want = client->in.len + READ_LEN;
    free_room = client->in.cap - client->in.len;
    want = want < free_room ? want : free_room;
    at = idem_buf_room(&client->in, want);
    if (!at) {
        client_close(client, "out of memory");
        return -2;
    }
    n = receive(client, at, want);
    if (n > 0) {
        client->in.len += (size_t)n;
        if (client->in.len - client->in_mark >= PROGRESS) {
            client->in_mark = client->in.len;
            client->in_since_ms = client->loop->now_ms;
        }
        client_account(client);
        if (over_all_limits(client)) {
            client_close(client, "max-buffered is reached");
            return -2;
        }
        client_go_on(client);
    }
    return n;
}

static ssize_t
read_fresh(struct client *client)
{
    uint8_t *scratch = (uint8_t *)client->loop->scratch;
    ssize_t n = receive(client, scratch, READ_LEN);
    size_t used;

    if (n > 0) {
        used = feed(client, scratch, (size_t)n);
        if (used < (size_t)n && !client->dead)
            keep_rest(client, scratch + used, (size_t)n - used);
    }
    return n;
}

static void
read_and_drop(struct client *client)
{
    ssize_t n = receive(client, client->loop->scratch, READ_LEN);

    if (n == 0 || (n < 0 && errno != EAGAIN))
        client_close(client, NULL);
}

static bool
may_read(const struct client *client)
{
    return !client->dead && !client->held && !client->closing &&
           !is_full(client);
}

/* What one client has sent by now goes into one commit, also if it is long. */
static void
read_some(struct client *client)
{
    ssize_t n = READ_LEN;

    client->read_ms = client->loop->now_ms;
    for (int i = 0; i < READS_MAX && n >= READ_LEN && may_read(client); i++) {
        n = client->in.len > 0 ? read_on(client) : read_fresh(client);
        if (n == 0 || (n == -1 && errno != EAGAIN))
            client_close(client, NULL);
    }
}

/* ---- the TLS handshake -------------------------------------------------- */

/* One that does not speak TLS is told so in its own words. */
static bool
speaks_tls(struct client *client)
{
    uint8_t first;
    ssize_t n = recv(client->source.fd, &first, 1, MSG_PEEK | MSG_DONTWAIT);

    if (n == 1 && first == TLS_HANDSHAKE)
        return true;
    if (n == 1) {
        idem__tls_end(client->tls);
        client->tls = NULL;
        client->shaking = false;
        protocol_error(client, "this port speaks TLS: connect with idems://");
    } else if (n == 0 || errno != EAGAIN) {
        client_close(client, NULL); /* it has said nothing at all */
    }
    return false;
}

/* The alert that says why is on its way; it must not be overtaken by a reset.
 */
static void
refuse_handshake(struct client *client)
{
    struct loop *loop = client->loop;
    char why[160];

    idem__tls_why(client->tls, why, sizeof(why));
    metrics_add(&loop->server->metrics->protocol_errors, 1);
    server_log(loop->log, LOG_INFO, "tls-refused",
               LOG_NUMBER("client", client->id), LOG_TEXT("why", why));
    idem__tls_end(client->tls);
    client->tls = NULL;
    end_client(client);
    watch(client);
}

/* True: it is over, and there may be commands to read. */
static bool
shake(struct client *client)
{
    int wants;

    if (client->loop->shakes++ >= SHAKES_MAX)
        return false; /* others are waiting; epoll tells of it again */
    if (!client->shook && !speaks_tls(client))
        return false;
    client->shook = true;
    wants = idem__tls_shake(client->tls);
    if (wants < 0) {
        refuse_handshake(client);
    } else if (wants == 0) {
        client->shaking = false;
        admin_greet(client);
        watch(client);
    } else {
        watch_for(client, wants == POLLOUT ? EPOLLOUT : EPOLLIN);
    }
    return wants == 0;
}

void
client_event(struct client *client, uint32_t events)
{
    bool reads = (events & EPOLLIN) && may_read(client);

    if (client->dead)
        return;
    if (client->ended) {
        read_and_drop(client);
        return;
    }
    if (client->shaking && !(events & EPOLLERR) && !shake(client))
        return;
    /* Hung up: epoll says so again and again, whatever is asked of it. */
    if ((events & EPOLLERR) || ((events & EPOLLHUP) && !reads)) {
        client_close(client, NULL);
        return;
    }
    if (reads)
        read_some(client);
    if (!client->dead &&
        ((events & EPOLLOUT) || client->held || is_full(client)))
        client_touch(client);
}

/* ---- time ------------------------------------------------------------ */

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
    } else if (waits_to_write(client) &&
               now - client->write_ms > config->stall_ms) {
        client_close(client, "its replies were not read");
    } else if (client->loop->pressed && waits_to_write(client) &&
               now - client->write_ms > PRESSED_MS &&
               (client->long_call || client->accounted > OWN_SHARE)) {
        client_close(client, "max-buffered is reached");
    } else if (client->in.len > 0 && !waits && !is_full(client) &&
               now - client->in_since_ms > config->stall_ms) {
        protocol_error(client, "the rest of the command did not come");
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

/* No more commands; what is in flight is answered. */
void
client_drain(struct client *client)
{
    for (struct call *call = client->calls, *next; call; call = next) {
        next = call->next;
        if (call->waits && call->ticket && !call->done)
            idem_cancel(client->loop->engine, call->ticket);
    }
    if (client->call_count == 0 && all_sent(client))
        client_close(client, NULL);
    else
        client->closing = true;
}
