/*
 * connection_in.c - read commands from a client, after its TLS handshake.
 */
#include "loop.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#define UNKNOWN_CLIENT_MAX 16384 /* limit of a command before AUTH */
#define PROGRESS (64 * 1024)     /* restarts a long command's timeout */
#define READS_MAX 16             /* per client and round: a megabyte */
#define TLS_HANDSHAKE 0x16       /* the first byte of a TLS client */
#define SHAKES_MAX 32            /* steps of TLS handshakes in a round */

static bool
may_parse(const struct client *client)
{
    return !client->held && !client->closing && !client->dead &&
           !client->out.failed && !client_is_full(client) &&
           !client->loop->draining;
}

static size_t
command_limit(const struct client *client)
{
    return client->principal ? (size_t)client->loop->config->max_command
                             : UNKNOWN_CLIENT_MAX;
}

static void
note_protocol_error(struct client *client, const char *text)
{
    struct loop *loop = client->loop;

    metrics_add(&loop->server->metrics->protocol_errors, 1);
    server_log(loop->log, LOG_INFO, "protocol-error",
               LOG_NUMBER("client", client->id), LOG_TEXT("text", text));
}

void
client_protocol_error(struct client *client, const char *text)
{
    note_protocol_error(client, text);
    client_error(client, (struct answer_tag){false, 0}, "ERR", text, true);
}

/* A browser or curl shows this reply; it would not show an error in RESP. A
 * client that has sent a command before speaks RESP. */
static void
refuse_http(struct client *client)
{
    static const char text[] = IDEM__WIRE_IS_HTTP "\n";
    char reply[256];
    int len =
        snprintf(reply, sizeof(reply),
                 "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\n"
                 "Content-Length: %zu\r\nConnection: close\r\n\r\n%s",
                 sizeof(text) - 1, text);

    note_protocol_error(client, IDEM__WIRE_IS_HTTP);
    resp_add_raw(&client->out, reply, (size_t)len);
    client_touch(client);
    client->closing = true;
}

static bool
has_spoken(const struct client *client)
{
    return client->out_before > 0 || client->out.buf.len > 0 ||
           client->call_count > 0 || client->first || client->ordered_ready > 0;
}

/* Run the complete commands in `bytes`; returns how many bytes were
 * consumed. */
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
            if (strcmp(err.text, IDEM__WIRE_IS_HTTP) == 0 &&
                !has_spoken(client))
                refuse_http(client);
            else
                client_protocol_error(client, err.text);
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
    if (client_over_limits(client))
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
    client_trim(client);
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

/* Read more of an incomplete command. */
static ssize_t
read_on(struct client *client)
{
    size_t want = client->needed > client->in.len + READ_LEN
                      ? client->needed - client->in.len
                      : READ_LEN;
    size_t free_room;
    uint8_t *at;
    ssize_t n;

    /* Make room for the whole command, but for no more than what has
     * arrived and READ_LEN bytes, so that a length alone costs no memory. */
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
        if (client_over_limits(client)) {
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
           !client_is_full(client);
}

/* Read all that a client has sent by now, so that it goes into one commit. */
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

/* A client that does not speak TLS gets a plain-text error. */
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
        client_protocol_error(client,
                              "this port speaks TLS: connect with idems://");
    } else if (n == 0 || errno != EAGAIN) {
        client_close(client, NULL); /* nothing was sent at all */
    }
    return false;
}

/* The TLS alert with the reason is on its way; closing now could reset the
 * connection before the client reads it. */
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
    client_end(client);
    client_watch(client);
}

/* True: the handshake is complete, and there may be commands to read. */
static bool
shake(struct client *client)
{
    int wants;

    if (client->loop->shakes++ >= SHAKES_MAX)
        return false; /* let others proceed; epoll reports it again */
    if (!client->shook && !speaks_tls(client))
        return false;
    client->shook = true;
    wants = idem__tls_shake(client->tls);
    if (wants < 0) {
        refuse_handshake(client);
    } else if (wants == 0) {
        client->shaking = false;
        admin_greet(client);
        client_watch(client);
    } else {
        client_watch_for(client, wants == POLLOUT ? EPOLLOUT : EPOLLIN);
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
    /* The client hung up. epoll would report this again and again, whatever
     * events we ask for. */
    if ((events & EPOLLERR) || ((events & EPOLLHUP) && !reads)) {
        client_close(client, NULL);
        return;
    }
    if (reads)
        read_some(client);
    if (!client->dead &&
        ((events & EPOLLOUT) || client->held || client_is_full(client)))
        client_touch(client);
}
