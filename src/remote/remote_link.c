/*
 * remote_link.c - parses the address of a server, connects and logs in.
 *
 * A secret is sent only to a trusted server. With idems:// the certificate is
 * checked first; on a unix socket the kernel says which user listens; with
 * plain TCP only the address can be trusted.
 */
#include "remote.h"

#include "../base/peer.h"
#include "../base/url.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define DEFAULT_PORT 6390
#define TIMEOUT_MS 30000
#define CONNECT_MS 5000
#define REPLY_LEN 4096 /* bytes to read at once before the engine starts */
#define UNIX_SCHEME "idem+unix:"

static bool
is_encrypted(const char *url)
{
    return strncmp(url, "idems://", 8) == 0;
}

bool
idem__remote_url(const char *url)
{
    return url && (strncmp(url, "idem://", 7) == 0 || is_encrypted(url) ||
                   strncmp(url, UNIX_SCHEME, sizeof(UNIX_SCHEME) - 1) == 0);
}

/* ---- the address ------------------------------------------------------- */

/* Copy both; the name may be NULL. */
static enum idem_status
set_auth(struct idem__remote_address *address, const char *name,
         size_t name_len, const char *secret, struct idem_error *err)
{
    address->name = name ? strndup(name, name_len) : NULL;
    address->secret = strdup(secret);
    if (!address->secret || (name && !address->name))
        return idem__fail(err, IDEM_ERR_MEMORY, "out of memory");
    return IDEM_OK;
}

/* Find the first line that is not a comment: "name secret" or "name:secret".
 * Name and secret are parts of the text. */
static bool
parse_auth(char *text, char **name, char **secret)
{
    char *at = text, *gap;

    while (*at == '#' || *at == '\n')
        at += strcspn(at, "\n") + (strchr(at, '\n') != NULL);
    at[strcspn(at, "\r\n")] = 0;
    gap = at + strcspn(at, ": \t");
    if (*gap == 0 || gap == at)
        return false;
    *gap++ = 0;
    gap += strspn(gap, " \t");
    gap[strcspn(gap, " \t")] = 0;
    if (*gap == 0)
        return false;
    *name = at;
    *secret = gap;
    return true;
}

/* Name and secret from the first line, "name secret". */
static enum idem_status
read_auth_file(const char *file, struct idem__remote_address *address,
               struct idem_error *err)
{
    int fd = open(file, O_RDONLY | O_CLOEXEC);
    struct stat about;
    char text[4096];
    char *name, *secret;
    enum idem_status status;
    ssize_t len;

    if (fd < 0 || fstat(fd, &about) != 0) {
        if (fd >= 0)
            close(fd);
        return idem__fail(err, IDEM_ERR_INVALID, "cannot read %s: %s", file,
                          strerror(errno));
    }
    len = read(fd, text, sizeof(text) - 1);
    close(fd);
    if (about.st_mode & (S_IROTH | S_IWOTH))
        return idem__fail(err, IDEM_ERR_INVALID,
                          "%s can be read by everybody: chmod 600 it", file);
    text[len > 0 ? len : 0] = 0;
    status = parse_auth(text, &name, &secret)
                 ? set_auth(address, name, strlen(name), secret, err)
                 : idem__fail(err, IDEM_ERR_INVALID,
                              "%s has no line \"name secret\"", file);
    explicit_bzero(text, sizeof(text));
    return status;
}

/* IDEM_AUTH is name:secret, or a secret alone. */
static enum idem_status
read_auth_variable(struct idem__remote_address *address, struct idem_error *err)
{
    const char *given = getenv("IDEM_AUTH");
    const char *colon = given ? strchr(given, ':') : NULL;

    if (!given || !*given)
        return IDEM_OK;
    return set_auth(address, colon && colon > given ? given : NULL,
                    colon ? (size_t)(colon - given) : 0,
                    colon ? colon + 1 : given, err);
}

static enum idem_status
read_auth(const struct idem__url *url, struct idem__remote_address *address,
          struct idem_error *err)
{
    const char *file = idem__url_option(url, "auth-file");

    if (url->password) {
        return set_auth(address, url->user, url->user ? strlen(url->user) : 0,
                        url->password, err);
    } else if (url->user) {
        return idem__fail(err, IDEM_ERR_INVALID,
                          "\"%s\": a name comes with a secret: "
                          "idem://name:secret@host",
                          address->shown);
    } else if (file) {
        return read_auth_file(file, address, err);
    }
    return read_auth_variable(address, err);
}

static enum idem_status
read_url(const char *text, const char *path,
         struct idem__remote_address *address, struct idem_error *err)
{
    static const char *const known[] = {"timeout_ms", "auth-file", NULL};
    static const char *const encrypted[] = {"timeout_ms", "auth-file", "ca",
                                            "cert",       "key",       NULL};
    struct idem__url url;
    enum idem_status status = idem__url_parse(
        text, DEFAULT_PORT, is_encrypted(text) ? encrypted : known, &url, err);

    if (status != IDEM_OK)
        return status;
    status = idem__url_number(&url, "timeout_ms", 100, 3600000, TIMEOUT_MS,
                              &address->timeout_ms, err);
    if (status == IDEM_OK && url.host_count > 1)
        status = idem__fail(err, IDEM_ERR_INVALID,
                            "idem:// takes one host; put an address that moves "
                            "in front of several servers");
    if (status == IDEM_OK && !path)
        address->host = strdup(url.hosts[0].name);
    address->port = url.hosts[0].port;
    if (status == IDEM_OK)
        status = read_auth(&url, address, err);
    if (status == IDEM_OK && is_encrypted(text))
        status = idem__tls_open_client("idems: ", &url, &address->tls, err);
    if (url.memory)
        sodium_memzero(url.memory, strlen(text));
    idem__url_clear(&url);
    return status;
}

/* idem+unix:PATH?options; the options are parsed like those of a host's URL. */
static enum idem_status
read_unix_url(const char *text, struct idem__remote_address *address,
              struct idem_error *err)
{
    const char *path = text + sizeof(UNIX_SCHEME) - 1;
    size_t len = strcspn(path, "?");
    char options[1024];

    if (strncmp(path, "//", 2) == 0)
        return idem__fail(err, IDEM_ERR_INVALID,
                          "\"%s\": write idem+unix:/PATH, with one slash",
                          address->shown);
    if (len == 0 || len >= sizeof(((struct sockaddr_un *)0)->sun_path))
        return idem__fail(err, IDEM_ERR_INVALID,
                          "\"%s\": a socket's path has 1 to 107 bytes",
                          address->shown);
    address->path = strndup(path, len);
    if (snprintf(options, sizeof(options), "idem://unix%s", path + len) >=
        (int)sizeof(options))
        return idem__fail(err, IDEM_ERR_INVALID, "\"%s\": is too long",
                          address->shown);
    return read_url(options, path, address, err);
}

enum idem_status
idem__remote_address_open(const char *url, struct idem__remote_address *address,
                          struct idem_error *err)
{
    bool local = strncmp(url, UNIX_SCHEME, sizeof(UNIX_SCHEME) - 1) == 0;
    enum idem_status status;

    memset(address, 0, sizeof(*address));
    idem__url_redact(url, address->shown, sizeof(address->shown));
    address->shown[strcspn(address->shown, "?")] = 0;
    status = local ? read_unix_url(url, address, err)
                   : read_url(url, NULL, address, err);
    if (status == IDEM_OK && !address->host && !address->path)
        status = idem__fail(err, IDEM_ERR_MEMORY, "out of memory");
    if (status != IDEM_OK)
        idem__remote_address_clear(address);
    return status;
}

void
idem__remote_address_clear(struct idem__remote_address *address)
{
    if (address->secret)
        sodium_memzero(address->secret, strlen(address->secret));
    idem__tls_close(address->tls);
    free(address->secret);
    free(address->name);
    free(address->host);
    free(address->path);
    memset(address, 0, sizeof(*address));
}

/* ---- a connection's bytes ----------------------------------------------- */

ssize_t
idem__remote_send(struct idem__remote_link *link, const void *data, size_t len)
{
    return link->tls ? idem__tls_send(link->tls, data, len)
                     : send(link->fd, data, len, MSG_NOSIGNAL);
}

ssize_t
idem__remote_recv(struct idem__remote_link *link, void *room, size_t len)
{
    return link->tls ? idem__tls_recv(link->tls, room, len)
                     : recv(link->fd, room, len, 0);
}

const char *
idem__remote_flaw(const struct idem__remote_link *link)
{
    return link->tls ? idem__tls_flaw() : strerror(errno);
}

void
idem__remote_hang_up(struct idem__remote_link *link)
{
    idem__tls_end(link->tls);
    if (link->fd >= 0)
        close(link->fd);
    *link = IDEM__REMOTE_NO_LINK;
}

/* ---- connecting -------------------------------------------------------- */

struct dial {
    const struct idem__remote_address *address;
    int stop;
    struct idem__remote_link link;
    const bool *stopped;
    int64_t until_us;
};

static bool
stopping(const struct dial *d)
{
    return d->stopped && __atomic_load_n(d->stopped, __ATOMIC_ACQUIRE);
}

/* False: the time is over, or the caller stopped it. */
static bool
wait_for(const struct dial *d, short events)
{
    for (;;) {
        struct pollfd fds[2] = {{d->link.fd, events, 0}, {d->stop, POLLIN, 0}};
        int64_t left_ms = (d->until_us - idem__system_boot_us()) / 1000;
        bool watch = d->stop >= 0 && !stopping(d);

        if (left_ms <= 0 || stopping(d))
            return false;
        /* `stop` also becomes readable when an operation is submitted, so check
         * again soon. */
        if (poll(fds, watch ? 2 : 1, (int)(left_ms < 50 ? left_ms : 50)) < 0 &&
            errno != EINTR)
            return false;
        if (fds[0].revents)
            return true;
    }
}

static enum idem_status
away(const struct dial *d, const char *what, struct idem_error *err)
{
    return idem__fail(err, IDEM_ERR_UNAVAILABLE, "no server at %s: %s",
                      d->address->shown, what);
}

/* Returns 0, or an errno that says what is wrong. */
static int
finish_connect(struct dial *d)
{
    int flaw = 0;
    socklen_t len = sizeof(flaw);

    if (!wait_for(d, POLLOUT))
        return ETIMEDOUT;
    if (getsockopt(d->link.fd, SOL_SOCKET, SO_ERROR, &flaw, &len) != 0)
        return errno;
    return flaw;
}

static int
connect_to(struct dial *d, const struct sockaddr *to, socklen_t len)
{
    int flaw;

    d->link.fd =
        socket(to->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (d->link.fd < 0)
        return errno;
    for (;;) {
        flaw = connect(d->link.fd, to, len) == 0 ? 0 : errno;
        if (flaw != EAGAIN || stopping(d) ||
            idem__system_boot_us() >= d->until_us)
            break;
        usleep(2000); /* a unix socket with a full backlog */
    }
    if (flaw == EINPROGRESS)
        flaw = finish_connect(d);
    if (flaw != 0) {
        close(d->link.fd);
        d->link.fd = -1;
    }
    return flaw;
}

static enum idem_status
dial_tcp(struct dial *d, struct idem_error *err)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    const int on = 1, silent_ms = (int)d->address->timeout_ms;
    struct addrinfo *list = NULL;
    char port[16];
    int failed, flaw = 0;

    snprintf(port, sizeof(port), "%d", d->address->port);
    failed = getaddrinfo(d->address->host, port, &hints, &list);
    if (failed)
        return away(d, gai_strerror(failed), err);
    for (struct addrinfo *at = list; at && d->link.fd < 0; at = at->ai_next)
        flaw = connect_to(d, at->ai_addr, at->ai_addrlen);
    freeaddrinfo(list);
    if (d->link.fd < 0)
        return away(d, strerror(flaw), err);
    setsockopt(d->link.fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    setsockopt(d->link.fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
    setsockopt(d->link.fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &silent_ms,
               sizeof(silent_ms));
    return IDEM_OK;
}

static enum idem_status
dial_unix(struct dial *d, struct idem_error *err)
{
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    int flaw;

    memcpy(to.sun_path, d->address->path, strlen(d->address->path));
    flaw = connect_to(d, (struct sockaddr *)&to, sizeof(to));
    if (flaw)
        return away(d, strerror(flaw), err);
    return d->address->secret
               ? idem__peer_trusted(d->link.fd, d->address->shown, err)
               : IDEM_OK;
}

/* The certificate is checked here, before any command is sent. */
static enum idem_status
encrypt(struct dial *d, struct idem_error *err)
{
    char why[200] = "TLS: no reply in time";
    int wants = -1;

    d->link.tls =
        idem__tls_start(d->address->tls, d->link.fd, d->address->host);
    while (d->link.tls && (wants = idem__tls_shake(d->link.tls)) > 0) {
        if (!wait_for(d, (short)wants))
            return away(d, why, err);
    }
    if (wants == 0)
        return IDEM_OK;
    idem__tls_why(d->link.tls, why, sizeof(why));
    return away(d, why, err);
}

/* ---- greeting ---------------------------------------------------------- */

/* Send a command and wait for its reply, which is in `in`. */
static enum idem_status
ask(struct dial *d, const struct idem__wire_args *args, struct idem_buf *in,
    struct idem__wire_reply *reply, struct idem_error *err)
{
    struct idem_buf out = {.cap = 65536};
    size_t len = idem__wire_len(args), sent = 0, used;
    uint8_t *room = idem_buf_room(&out, len);
    enum idem_status status = IDEM_OK;

    if (!room)
        return idem__fail(err, IDEM_ERR_MEMORY, "out of memory");
    idem__wire_put(args, room);
    while (sent < len && status == IDEM_OK) {
        ssize_t n = idem__remote_send(&d->link, room + sent, len - sent);

        if (n > 0)
            sent += (size_t)n;
        else if (errno != EAGAIN && errno != EINTR)
            status = away(d, idem__remote_flaw(&d->link), err);
        else if (!wait_for(d, POLLOUT))
            status = away(d, "no reply in time", err);
    }
    sodium_memzero(room, len); /* it may hold a secret */
    idem_buf_clear(&out);
    idem_buf_reset(in);
    while (status == IDEM_OK) {
        enum idem__wire_got got = idem__wire_reply(
            (struct idem_bytes){in->data, in->len}, in->cap, reply, &used);
        ssize_t n;

        if (got == IDEM__WIRE_DONE)
            return IDEM_OK;
        room = got == IDEM__WIRE_MORE ? idem_buf_room(in, REPLY_LEN) : NULL;
        if (!room && got == IDEM__WIRE_MORE && in->len + REPLY_LEN <= in->cap)
            return idem__fail(err, IDEM_ERR_MEMORY, "out of memory");
        if (!room)
            return idem__fail(
                err, IDEM_ERR_UNSUPPORTED,
                "%s: unexpected reply: is this an idem server? Give "
                "the address of its --socket or --listen",
                d->address->shown);
        n = idem__remote_recv(&d->link, room, REPLY_LEN);
        if (n > 0)
            in->len += (size_t)n;
        else if (n == 0)
            status = away(d,
                          "it closed the connection (is this the address of "
                          "--listen or --socket?)",
                          err);
        else if (errno != EAGAIN && errno != EINTR)
            status = away(d, idem__remote_flaw(&d->link), err);
        else if (!wait_for(d, POLLIN))
            status = away(d, "no reply in time", err);
    }
    return status;
}

static enum idem_status
log_in(struct dial *d, struct idem_buf *in, struct idem_error *err)
{
    const struct idem__remote_address *address = d->address;
    struct idem__wire_args args = {.count = 0};
    struct idem__wire_reply reply;
    enum idem_status status;

    if (!address->secret)
        return IDEM_OK;
    idem__wire_add(&args, idem_text("AUTH"));
    if (address->name)
        idem__wire_add(&args, idem_text(address->name));
    idem__wire_add(&args, idem_text(address->secret));
    status = ask(d, &args, in, &reply, err);
    return status == IDEM_OK && reply.error ? idem__wire_error(&reply, err)
                                            : status;
}

/* The number after "name:" in the reply to INFO. */
static int64_t
figure(struct idem_bytes info, const char *name, int64_t otherwise)
{
    const char *at = memmem(info.data, info.len, name, strlen(name));
    const char *end = (const char *)info.data + info.len;
    int64_t number = 0;

    if (!at)
        return otherwise;
    for (at += strlen(name); at < end && *at >= '0' && *at <= '9'; at++)
        number = number * 10 + (*at - '0');
    return number;
}

static enum idem_status
greet(struct dial *d, struct idem_buf *in, struct idem__remote_hello *hello,
      struct idem_error *err)
{
    struct idem__wire_args args = {.count = 0};
    struct idem__wire_reply reply;
    struct idem__wire_value info;
    enum idem_status status;

    hello->max_result = IDEM_RESULT_DEFAULT_MAX;
    hello->now_ms = 0;
    idem__wire_add(&args, idem_text("INFO"));
    status = ask(d, &args, in, &reply, err);
    if (status != IDEM_OK)
        return status;
    if (reply.error) /* a client that may not use INFO may still use the rest */
        return idem__bytes_is(reply.word, "NOPERM")
                   ? IDEM_OK
                   : idem__wire_error(&reply, err);
    if (idem__wire_read(&reply.reader, &info) != IDEM__WIRE_DONE ||
        info.kind != IDEM__WIRE_BYTES ||
        !memmem(info.bytes.data, info.bytes.len, "idem_version:", 13))
        return idem__fail(err, IDEM_ERR_UNSUPPORTED,
                          "%s: unexpected reply: is this an idem server? Give "
                          "the address of its --socket or --listen",
                          d->address->shown);
    hello->max_result =
        (size_t)figure(info.bytes, "\nmax_result:", IDEM_RESULT_DEFAULT_MAX);
    hello->now_ms = figure(info.bytes, "\nnow_ms:", 0);
    return IDEM_OK;
}

enum idem_status
idem__remote_dial(const struct idem__remote_address *address, int stop,
                  const bool *stopped, struct idem__remote_link *link,
                  struct idem__remote_hello *hello, struct idem_error *err)
{
    int64_t ms =
        address->timeout_ms < CONNECT_MS ? address->timeout_ms : CONNECT_MS;
    struct dial d = {.address = address,
                     .stop = stop,
                     .stopped = stopped,
                     .link = IDEM__REMOTE_NO_LINK,
                     .until_us = idem__system_boot_us() + ms * 1000};
    struct idem_buf in = {.cap = 256 * 1024};
    enum idem_status status =
        address->path ? dial_unix(&d, err) : dial_tcp(&d, err);

    if (status == IDEM_OK && address->tls)
        status = encrypt(&d, err);
    if (status == IDEM_OK)
        status = log_in(&d, &in, err);
    if (status == IDEM_OK && !address->plain)
        status = greet(&d, &in, hello, err);
    idem_buf_clear(&in);
    if (status == IDEM_OK)
        *link = d.link;
    else
        idem__remote_hang_up(&d.link);
    return status;
}

/* ---- a line for other commands ----------------------------------------- */

enum idem_status
idem__remote_line_open(const char *url, struct idem__remote_line *line,
                       struct idem_error *err)
{
    struct idem__remote_hello hello;
    enum idem_status status;

    memset(line, 0, sizeof(*line));
    line->link = IDEM__REMOTE_NO_LINK;
    idem_buf_init(&line->in, 1024 * 1024);
    status = idem__remote_address_open(url, &line->address, err);
    if (status == IDEM_OK)
        status = idem__remote_dial(&line->address, -1, NULL, &line->link,
                                   &hello, err);
    if (status != IDEM_OK)
        idem__remote_line_close(line);
    return status;
}

enum idem_status
idem__remote_line_ask(struct idem__remote_line *line,
                      const struct idem__wire_args *args,
                      struct idem__wire_reply *reply, struct idem_error *err)
{
    struct dial d = {.address = &line->address, .stop = -1};
    enum idem_status status = IDEM_OK;

    for (int tries = 0; tries < 2; tries++) {
        struct idem__remote_hello hello;

        status = IDEM_OK;
        if (line->link.fd < 0)
            status = idem__remote_dial(&line->address, -1, NULL, &line->link,
                                       &hello, err);
        if (status != IDEM_OK)
            return status;
        d.link = line->link;
        d.until_us = idem__system_boot_us() + line->address.timeout_ms * 1000;
        status = ask(&d, args, &line->in, reply, err);
        if (status == IDEM_OK)
            return reply->error ? idem__wire_error(reply, err) : IDEM_OK;
        idem__remote_hang_up(&line->link);
    }
    return status;
}

void
idem__remote_line_close(struct idem__remote_line *line)
{
    idem__remote_hang_up(&line->link);
    idem_buf_clear(&line->in);
    idem__remote_address_clear(&line->address);
}
