/*
 * connection_out.c - send replies to a client.
 */
#include "loop.h"

#include <errno.h>
#include <sys/socket.h>
#include <sys/uio.h>

#define FLUSH_MAX (1024 * 1024) /* most bytes for one client in a round */
#define SHIFT_MIN (64 * 1024)   /* fewer sent bytes are not freed yet */

/* Send the output up to the long result, the result, and the rest of the
 * output. */
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

/* The same bytes in the same order, one part at a time. */
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
                client_unsent(client), MSG_NOSIGNAL | MSG_DONTWAIT);
}

static size_t
least(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Count n bytes as sent. */
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
    while (client_unsent(client) > 0 && *total < FLUSH_MAX) {
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

/* Free the space of sent bytes. */
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
    } while (client_unsent(client) == 0 && !client_all_sent(client) &&
             total < FLUSH_MAX);
    return true;
}

/* Has the client read something lately, and does it hold no more than its
 * share? */
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
    was_full = client_is_full(client) || client->in.len > 0;
    client_account(client);
    if (!client_waits_to_write(client))
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
    if (client_all_sent(client)) {
        client_trim(client);
        if (client->closing && !client->first &&
            (!client->loop->draining || client->call_count == 0))
            client_end(client);
    } else {
        client_account(client);
        if (client_over_limits(client) && !was_heard(client)) {
            client_close(client, "max-buffered is reached");
            return;
        }
    }
    if (was_full && !client->closing)
        client_go_on(client);
    if (!client->dead)
        client_watch(client);
}
