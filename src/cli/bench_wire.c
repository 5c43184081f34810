/*
 * bench_wire.c - see bench.h.
 *
 * Each connection sends `pipeline` commands at once, waits for all their
 * answers, and goes on: with FINISH for the fences it got, or with fresh keys.
 */
#include "bench.h"

#include "../base/peer.h"

#include "../serve/resp/resp.h"
#include "where.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

struct connection {
    int fd;
    struct idem_buf in;
    struct resp_out out;
    size_t sent, answers; /* answers: still to come */
    size_t parsed;        /* bytes of `in` */
    int64_t sent_us;
    bool finishing;
    uint64_t keys[BENCH_PIPELINE_MAX], fences[BENCH_PIPELINE_MAX];
};

struct state {
    struct bench *bench;
    struct connection *connections;
    uint64_t next_key;
    char salt[20];
    char *result;
    int64_t end_us, now_us; /* now: when the last bytes came */
    int epoll;
    size_t busy;
};

static int64_t
now_us(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

/* ---- connecting ------------------------------------------------------ */

static int
connect_unix(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd;

    if (strlen(path) >= sizeof(address.sun_path))
        return -1;
    memcpy(address.sun_path, path, strlen(path));
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 &&
        connect(fd, (struct sockaddr *)&address, sizeof(address)) != 0) {
        close(fd);
        return -1;
    }
    return fd;
}

static int
connect_tcp(const char *text)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found;
    const char *colon = strrchr(text, ':');
    char host[256];
    int one = 1, fd;

    if (!colon || (size_t)(colon - text) >= sizeof(host))
        return -1;
    snprintf(host, sizeof(host), "%.*s", (int)(colon - text), text);
    if (getaddrinfo(host[0] ? host : "127.0.0.1", colon + 1, &hints, &found) !=
        0)
        return -1;
    fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, found->ai_addr, found->ai_addrlen) != 0) {
        close(fd);
        fd = -1;
    }
    freeaddrinfo(found);
    if (fd >= 0)
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    return fd;
}

static int
connect_to(const char *address)
{
    if (strncmp(address, "unix:", 5) == 0)
        return connect_unix(address + 5);
    return address[0] == '/' ? connect_unix(address) : connect_tcp(address);
}

/* ---- replies --------------------------------------------------------- */

/* Skip one reply; returns its length, 0 if it is not whole. *fence is its
 * first integer; *error is set if it is one. */
static size_t
skip_reply(const char *at, size_t len, uint64_t *fence, const char **error)
{
    const char *line = memchr(at, '\n', len);
    size_t used = line ? (size_t)(line + 1 - at) : 0;
    long long number;

    if (!line)
        return 0;
    number = strtoll(at + 1, NULL, 10);
    switch (at[0]) {
    case '-':
        *error = at;
        return used;
    case ':':
        if (*fence == 0)
            *fence = (uint64_t)number;
        return used;
    case '$':
        if (number >= 0)
            used += (size_t)number + 2;
        return used <= len ? used : 0;
    case '*':
        for (long long i = 0; i < number; i++) {
            size_t part = skip_reply(at + used, len - used, fence, error);

            if (part == 0)
                return 0;
            used += part;
        }
        return used;
    default:
        return used;
    }
}

/* ---- commands -------------------------------------------------------- */

static void
add(struct connection *c, const char *text)
{
    resp_add_text(&c->out, text);
}

static void
add_number(struct connection *c, uint64_t number)
{
    char text[RESP_DIGITS_MAX];
    size_t len = resp_digits((int64_t)number, text);

    resp_add_bytes(&c->out, (struct idem_bytes){text, len});
}

/* Keys of this run: its salt, then a number. */
static void
add_key(struct state *state, struct connection *c, uint64_t key)
{
    char text[sizeof(state->salt) + RESP_DIGITS_MAX];
    size_t len = strlen(state->salt);

    memcpy(text, state->salt, len);
    len += resp_digits((int64_t)key, text + len);
    resp_add_bytes(&c->out, (struct idem_bytes){text, len});
}

static void
add_head(struct connection *c, size_t count, const char *name)
{
    resp_add_array(&c->out, count);
    add(c, name);
}

static void
add_first(struct state *state, struct connection *c, uint64_t key)
{
    bool replay = state->bench->what == BENCH_REPLAY;

    if (state->bench->what == BENCH_PING) {
        add_head(c, 1, "PING");
    } else if (!state->bench->redis) {
        add_head(c, 3, "BEGIN");
        add(c, "bench");
        add_key(state, c, key);
    } else if (replay) {
        add_head(c, 2, "GET");
        add_key(state, c, key);
    } else {
        add_head(c, 6, "SET");
        add_key(state, c, key);
        add(c, "x");
        add(c, "NX");
        add(c, "PX");
        add(c, "86400000");
    }
}

static void
add_second(struct state *state, struct connection *c, size_t i)
{
    if (!state->bench->redis) {
        add_head(c, 6, "FINISH");
        add(c, "bench");
        add_key(state, c, c->keys[i]);
        add_number(c, c->fences[i]);
        add(c, "SUCCEEDED");
        add(c, state->result);
    } else {
        add_head(c, 5, "SET");
        add_key(state, c, c->keys[i]);
        add(c, state->result);
        add(c, "PX");
        add(c, "86400000");
    }
}

static void
fill(struct state *state, struct connection *c)
{
    struct bench *bench = state->bench;

    idem_buf_reset(&c->out.buf);
    for (size_t i = 0; i < bench->pipeline; i++) {
        if (c->finishing) {
            add_second(state, c, i);
            continue;
        }
        c->keys[i] = bench->what == BENCH_REPLAY ? 0 : state->next_key++;
        c->fences[i] = 0;
        add_first(state, c, c->keys[i]);
    }
    c->sent = 0;
    c->answers = bench->pipeline;
    c->sent_us = state->now_us;
}

/* ---- the run --------------------------------------------------------- */

static bool
send_some(struct connection *c)
{
    while (c->sent < c->out.buf.len) {
        ssize_t n = send(c->fd, c->out.buf.data + c->sent,
                         c->out.buf.len - c->sent, MSG_NOSIGNAL | MSG_DONTWAIT);

        if (n < 0)
            return errno == EAGAIN || errno == EINTR;
        c->sent += (size_t)n;
    }
    return true;
}

static void
count_answer(struct state *state, struct connection *c, const char *error)
{
    struct bench *bench = state->bench;
    int64_t took = state->now_us - c->sent_us;

    if (error && bench->errors++ == 0)
        snprintf(bench->error, sizeof(bench->error), "%.*s",
                 (int)strcspn(error, "\r\n"), error);
    bench->latency[took < BENCH_LATENCY_US ? took : BENCH_LATENCY_US - 1]++;
    bench->commands++;
    if (bench->what != BENCH_PAIR || c->finishing)
        bench->operations++;
    c->answers--;
}

/* What came is counted; true if all answers are here. */
static bool
take_answers(struct state *state, struct connection *c)
{
    while (c->answers > 0) {
        size_t i = state->bench->pipeline - c->answers;
        const char *error = NULL;
        uint64_t number = 0;
        size_t used = skip_reply((const char *)c->in.data + c->parsed,
                                 c->in.len - c->parsed, &number, &error);

        if (used == 0)
            break;
        c->parsed += used;
        if (!c->finishing)
            c->fences[i] = number ? number : 1;
        count_answer(state, c, error);
    }
    if (c->parsed == c->in.len) {
        idem_buf_reset(&c->in);
        c->parsed = 0;
    }
    return c->answers == 0;
}

static bool
go_on(struct state *state, struct connection *c)
{
    c->finishing = state->bench->what == BENCH_PAIR && !c->finishing;
    if (state->now_us >= state->end_us && !c->finishing) {
        state->busy--;
        return true;
    }
    fill(state, c);
    return send_some(c);
}

static bool
serve(struct state *state, struct connection *c)
{
    uint8_t *at = idem_buf_room(&c->in, 16384);
    ssize_t n = at ? recv(c->fd, at, 16384, MSG_DONTWAIT) : -1;

    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return send_some(c);
    if (n <= 0)
        return false;
    c->in.len += (size_t)n;
    state->now_us = now_us();
    if (!take_answers(state, c))
        return send_some(c);
    return go_on(state, c);
}

/* Send one command and wait for its answer; the text of it, to be freed. */
static char *
ask(struct connection *c)
{
    size_t used = 0;
    const char *error = NULL;
    uint64_t number = 0;
    char *text;

    idem_buf_reset(&c->in);
    while (c->sent < c->out.buf.len) {
        ssize_t n = send(c->fd, c->out.buf.data + c->sent,
                         c->out.buf.len - c->sent, MSG_NOSIGNAL);

        if (n <= 0)
            return NULL;
        c->sent += (size_t)n;
    }
    while (used == 0) {
        uint8_t *at = idem_buf_room(&c->in, 4096);
        ssize_t n = at ? recv(c->fd, at, 4096, 0) : -1;

        if (n <= 0)
            return NULL;
        c->in.len += (size_t)n;
        used = skip_reply((const char *)c->in.data, c->in.len, &number, &error);
    }
    text = strndup((const char *)c->in.data, c->in.len);
    if (c->fences[0] == 0)
        c->fences[0] = number;
    idem_buf_reset(&c->in);
    idem_buf_reset(&c->out.buf);
    c->sent = 0;
    return text;
}

static bool
log_in(struct state *state, struct connection *c)
{
    const char *secret = state->bench->secret;
    const char *colon = secret ? strchr(secret, ':') : NULL;
    char name[128];
    char *text;
    bool ok;

    if (!secret)
        return true;
    add_head(c, colon ? 3 : 2, "AUTH");
    if (colon) {
        snprintf(name, sizeof(name), "%.*s", (int)(colon - secret), secret);
        add(c, name);
    }
    add(c, colon ? colon + 1 : secret);
    text = ask(c);
    ok = text && text[0] == '+';
    free(text);
    return ok;
}

/* The one key that everybody replays. */
static bool
plant(struct state *state, struct connection *c)
{
    char *text;

    if (state->bench->what != BENCH_REPLAY)
        return true;
    c->keys[0] = 0;
    c->fences[0] = 0;
    if (!state->bench->redis) {
        add_first(state, c, 0);
        text = ask(c);
        free(text);
    }
    add_second(state, c, 0);
    text = ask(c);
    free(text);
    return text != NULL;
}

/* CPU time of the server's process so far, by the process_id of INFO. */
static double
server_cpu_us(struct connection *c)
{
    unsigned long long user = 0, kernel = 0;
    char path[64], *text, *at;
    long pid = 0;
    FILE *in;
    int got;

    add_head(c, 1, "INFO");
    text = ask(c);
    at = text ? strstr(text, "process_id:") : NULL;
    if (at)
        pid = strtol(at + strlen("process_id:"), NULL, 10);
    free(text);
    snprintf(path, sizeof(path), "/proc/%ld/stat", pid);
    in = pid > 0 ? fopen(path, "re") : NULL;
    if (!in)
        return -1;
    got = fscanf(in,
                 "%*d (%*[^)]) %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u "
                 "%llu %llu",
                 &user, &kernel);
    fclose(in);
    if (got != 2)
        return -1;
    return (double)(user + kernel) * 1e6 / (double)sysconf(_SC_CLK_TCK);
}

static enum idem_status
open_all(struct state *state, struct idem_error *err)
{
    struct bench *bench = state->bench;

    for (size_t i = 0; i < bench->clients; i++) {
        struct connection *c = &state->connections[i];
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};

        idem_buf_init(&c->in, 64 * 1024 * 1024);
        idem_buf_init(&c->out.buf, 256 * 1024 * 1024);
        c->fd = connect_to(bench->address);
        if (c->fd < 0)
            return idem__fail(err, IDEM_ERR_UNAVAILABLE,
                              "no server at %s: %s (idem serve starts one)",
                              bench->address, strerror(errno));
        if (bench->secret &&
            idem__peer_trusted(c->fd, bench->address, err) != IDEM_OK)
            return err->status;
        if (!log_in(state, c))
            return idem__fail(err, IDEM_ERR_UNAVAILABLE,
                              "the server does not accept the credentials");
        epoll_ctl(state->epoll, EPOLL_CTL_ADD, c->fd, &event);
    }
    return IDEM_OK;
}

static enum idem_status
run_all(struct state *state, struct idem_error *err)
{
    struct bench *bench = state->bench;
    struct epoll_event events[256];
    int64_t start = now_us();
    bool ok = true;

    state->now_us = start;
    state->end_us = start + bench->run_ms * 1000;
    state->busy = bench->clients;
    for (size_t i = 0; i < bench->clients && ok; i++) {
        fill(state, &state->connections[i]);
        ok = send_some(&state->connections[i]);
    }
    while (state->busy > 0 && ok) {
        int count = epoll_wait(state->epoll, events, 256, 10000);

        ok = count > 0;
        for (int i = 0; i < count && ok; i++)
            ok = serve(state, events[i].data.ptr);
    }
    bench->took_us = now_us() - start;
    return ok ? IDEM_OK
              : idem__fail(err, IDEM_ERR_UNAVAILABLE,
                           "the server closed a connection, or was silent "
                           "for 10 seconds");
}

static void
clear(struct state *state)
{
    for (size_t i = 0; state->connections && i < state->bench->clients; i++) {
        struct connection *c = &state->connections[i];

        if (c->fd > 0)
            close(c->fd);
        idem_buf_clear(&c->in);
        idem_buf_clear(&c->out.buf);
    }
    free(state->connections);
    free(state->result);
    close(state->epoll);
}

enum idem_status
bench_run(struct bench *bench, struct idem_error *err)
{
    struct state state = {.bench = bench,
                          .epoll = epoll_create1(EPOLL_CLOEXEC)};
    enum idem_status status = IDEM_OK;
    double before = -1, after;
    uint64_t salt;

    randombytes_buf(&salt, sizeof(salt));
    snprintf(state.salt, sizeof(state.salt), "%llx-", (unsigned long long)salt);
    state.connections = calloc(bench->clients, sizeof(*state.connections));
    state.result = calloc(1, bench->result_len + 1);
    if (!state.connections || !state.result || state.epoll < 0)
        status = idem__fail(err, IDEM_ERR_MEMORY, "out of memory");
    if (status == IDEM_OK) {
        memset(state.result, 'r', bench->result_len);
        status = open_all(&state, err);
    }
    if (status == IDEM_OK && !plant(&state, &state.connections[0]))
        status = idem__fail(err, IDEM_ERR_UNAVAILABLE, "no answer");
    if (status == IDEM_OK) {
        before = server_cpu_us(&state.connections[0]);
        status = run_all(&state, err);
    }
    if (status == IDEM_OK) {
        after = server_cpu_us(&state.connections[0]);
        bench->server_cpu_us = before < 0 || after < 0 ? -1 : after - before;
    }
    clear(&state);
    return status;
}

double
bench_quantile(const struct bench *bench, double part)
{
    uint64_t wanted = (uint64_t)((double)bench->commands * part), seen = 0;

    for (size_t i = 0; i < BENCH_LATENCY_US; i++) {
        seen += bench->latency[i];
        if (seen > wanted)
            return (double)i / 1000;
    }
    return (double)BENCH_LATENCY_US / 1000;
}
