/*
 * bench_wire.c - see bench.h.
 *
 * Each connection sends `pipeline` commands at once and waits for all their
 * replies. Then it sends the next batch: FINISH with the fences it got, or
 * commands with new keys.
 */
#include "bench.h"
#include "cli.h"

#include "../remote/remote.h"

#include <errno.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#define TTL_MS "86400000"
#define TELL_EVERY 100 /* rounds between two progress reports */
#define REPLY_MAX (64 * 1024 * 1024)

struct connection {
    struct idem__remote_link link;
    struct idem_buf in, out;
    size_t sent, answers; /* answers: still to come */
    size_t parsed;        /* bytes of `in` that are parsed */
    int64_t sent_us;
    bool finishing;
    uint64_t keys[BENCH_PIPELINE_MAX], fences[BENCH_PIPELINE_MAX];
};

struct state {
    struct bench *bench;
    struct idem__remote_line line; /* for commands that are not measured */
    struct connection *connections;
    uint64_t next_key;
    char salt[20];
    char *result;
    int64_t end_us, now_us; /* now: when the last bytes arrived */
    int epoll;
    size_t busy;
};

/* A command: one of idem, or other words. It may point into itself. */
struct bench_command {
    bool ours;
    struct idem__wire_command command;
    struct idem__wire_args args;
    char key[sizeof(((struct state *)0)->salt) + IDEM__WIRE_DIGITS_MAX];
};

static int64_t
now_us(void)
{
    return idem__system_clocks.boot_us(NULL);
}

/* ---- commands -------------------------------------------------------- */

/* Keys of this run: its salt, then a number. */
static struct idem_bytes
make_key(const struct state *state, struct bench_command *command, uint64_t key)
{
    size_t len = strlen(state->salt);

    memcpy(command->key, state->salt, len);
    len += idem__wire_digits((int64_t)key, command->key + len);
    return (struct idem_bytes){command->key, len};
}

static void
add(struct bench_command *command, const char *word)
{
    idem__wire_add(&command->args, idem_text(word));
}

static void
make_set(struct bench_command *command, struct idem_bytes key,
         const char *value)
{
    add(command, "SET");
    idem__wire_add(&command->args, key);
    add(command, value);
    add(command, "PX");
    add(command, TTL_MS);
}

static void
make_ours(struct bench_command *command, struct idem_op op)
{
    command->ours = true;
    memset(&command->command, 0, sizeof(command->command));
    command->command.op = op;
}

static void
make_first(const struct state *state, struct bench_command *command,
           uint64_t number)
{
    struct idem_bytes key = make_key(state, command, number);

    command->ours = false;
    command->args.count = command->args.used = 0;
    if (state->bench->what == BENCH_PING) {
        add(command, "PING");
    } else if (!state->bench->redis) {
        make_ours(command, (struct idem_op){.verb = IDEM_BEGIN,
                                            .type = IDEM_TYPE_REQUEST,
                                            .scope = idem_text("bench"),
                                            .id = key});
    } else if (state->bench->what == BENCH_REPLAY) {
        add(command, "GET");
        idem__wire_add(&command->args, key);
    } else {
        make_set(command, key, "x");
        add(command, "NX");
    }
}

static void
make_second(const struct state *state, struct bench_command *command,
            uint64_t number, uint64_t fence)
{
    struct idem_bytes key = make_key(state, command, number);

    command->ours = false;
    command->args.count = command->args.used = 0;
    if (state->bench->redis)
        make_set(command, key, state->result);
    else
        make_ours(command,
                  (struct idem_op){
                      .verb = IDEM_FINISH,
                      .scope = idem_text("bench"),
                      .id = key,
                      .fence = fence,
                      .outcome = IDEM_STATE_SUCCEEDED,
                      .result = {state->result, state->bench->result_len}});
}

static bool
put_command(const struct bench_command *command, struct idem_buf *out)
{
    struct idem__wire_plan plan;
    size_t most = command->ours ? idem__wire_plan(&command->command, &plan)
                                : idem__wire_len(&command->args);
    char *at = (char *)idem_buf_room(out, most), *end = at + most, *room;

    if (!at)
        return false;
    if (command->ours)
        end = idem__wire_put_command(at, &command->command, &plan, &room);
    else
        idem__wire_put(&command->args, at);
    out->len += (size_t)(end - at);
    return true;
}

static bool
fill(struct state *state, struct connection *c)
{
    struct bench *bench = state->bench;
    struct bench_command command;

    idem_buf_reset(&c->out);
    for (size_t i = 0; i < bench->pipeline; i++) {
        if (c->finishing) {
            make_second(state, &command, c->keys[i], c->fences[i]);
        } else {
            c->keys[i] = bench->what == BENCH_REPLAY ? 0 : state->next_key++;
            make_first(state, &command, c->keys[i]);
        }
        if (!put_command(&command, &c->out))
            return false;
    }
    c->sent = 0;
    c->answers = bench->pipeline;
    c->sent_us = state->now_us;
    return true;
}

/* ---- the run --------------------------------------------------------- */

static bool
send_some(struct connection *c)
{
    while (c->sent < c->out.len) {
        ssize_t n = idem__remote_send(&c->link, c->out.data + c->sent,
                                      c->out.len - c->sent);

        if (n < 0)
            return errno == EAGAIN || errno == EINTR;
        c->sent += (size_t)n;
    }
    return true;
}

/* The fence of a start, else 1, because FINISH needs a fence. */
static uint64_t
fence_of(struct idem__wire_reply *reply)
{
    struct idem__wire_brief brief;

    return idem__wire_brief(reply, &brief, NULL) == IDEM_OK && brief.fence > 0
               ? (uint64_t)brief.fence
               : 1;
}

static void
count_answer(struct state *state, struct connection *c,
             const struct idem__wire_reply *reply)
{
    struct bench *bench = state->bench;
    int64_t took = state->now_us - c->sent_us;

    if (reply->error && bench->errors++ == 0)
        snprintf(bench->error, sizeof(bench->error), "%.*s %.*s",
                 (int)reply->word.len, (const char *)reply->word.data,
                 (int)reply->text.len, (const char *)reply->text.data);
    bench->latency[took < BENCH_LATENCY_US ? took : BENCH_LATENCY_US - 1]++;
    bench->commands++;
    if (bench->what != BENCH_PAIR || c->finishing)
        bench->operations++;
    c->answers--;
}

/* Count the replies that arrived; true if all of them are here. */
static bool
take_answers(struct state *state, struct connection *c)
{
    bool pairs = state->bench->what == BENCH_PAIR && !state->bench->redis;

    while (c->answers > 0) {
        size_t i = state->bench->pipeline - c->answers, used;
        struct idem__wire_reply reply;

        if (idem__wire_reply((struct idem_bytes){c->in.data + c->parsed,
                                                 c->in.len - c->parsed},
                             REPLY_MAX, &reply, &used) != IDEM__WIRE_DONE)
            break;
        c->parsed += used;
        count_answer(state, c, &reply);
        if (pairs && !c->finishing)
            c->fences[i] = fence_of(&reply);
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
    return fill(state, c) && send_some(c);
}

static bool
serve(struct state *state, struct connection *c)
{
    uint8_t *at = idem_buf_room(&c->in, 16384);
    ssize_t n = at ? idem__remote_recv(&c->link, at, 16384) : -1;

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

/* ---- before and after the run ---------------------------------------- */

/* The one key that all connections replay. */
static enum idem_status
plant(struct state *state, struct idem_error *err)
{
    struct idem__wire_reply reply;
    enum idem_status status;
    struct bench_command command = {.ours = false};
    struct idem_bytes key = make_key(state, &command, 0);

    if (state->bench->what != BENCH_REPLAY)
        return IDEM_OK;
    if (state->bench->redis) {
        make_set(&command, key, state->result);
        return idem__remote_line_ask(&state->line, &command.args, &reply, err);
    }
    add(&command, "BEGIN");
    add(&command, "bench");
    idem__wire_add(&command.args, key);
    status = idem__remote_line_ask(&state->line, &command.args, &reply, err);
    if (status != IDEM_OK)
        return status;
    command.args.count = command.args.used = 0;
    add(&command, "FINISH");
    add(&command, "bench");
    idem__wire_add(&command.args, key);
    idem__wire_add_number(&command.args, (int64_t)fence_of(&reply));
    add(&command, "SUCCEEDED");
    idem__wire_add(&command.args, (struct idem_bytes){
                                      state->result, state->bench->result_len});
    return idem__remote_line_ask(&state->line, &command.args, &reply, err);
}

/* CPU time of the server's process so far, by the process_id of INFO. */
static double
server_cpu_us(struct state *state)
{
    static const char name[] = "process_id:";
    struct idem__wire_args args = {.count = 0};
    struct idem__wire_value info = {.number = 0};
    struct idem__wire_reply reply;
    unsigned long long user = 0, kernel = 0;
    const char *at = NULL;
    char path[64];
    FILE *in;
    int got;

    idem__wire_add(&args, idem_text("INFO"));
    if (idem__remote_line_ask(&state->line, &args, &reply, NULL) == IDEM_OK &&
        idem__wire_take(&reply, IDEM__WIRE_BYTES, &info))
        at = memmem(info.bytes.data, info.bytes.len, name, strlen(name));
    if (!at)
        return -1;
    snprintf(path, sizeof(path), "/proc/%ld/stat",
             strtol(at + strlen(name), NULL, 10)); /* strtol stops at CR LF */
    in = fopen(path, "re");
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
    struct idem__remote_hello hello;
    enum idem_status status;

    state->line.link = IDEM__REMOTE_NO_LINK;
    idem_buf_init(&state->line.in, REPLY_MAX);
    status = idem__remote_address_open(bench->url, &state->line.address, err);
    state->line.address.plain = true;
    for (size_t i = 0; i < bench->clients; i++) {
        struct connection *c = &state->connections[i];

        c->link = IDEM__REMOTE_NO_LINK;
        idem_buf_init(&c->in, REPLY_MAX);
        idem_buf_init(&c->out, 4 * (size_t)REPLY_MAX);
    }
    for (size_t i = 0; i < bench->clients && status == IDEM_OK; i++) {
        struct connection *c = &state->connections[i];
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};

        status = idem__remote_dial(&state->line.address, -1, NULL, &c->link,
                                   &hello, err);
        epoll_ctl(state->epoll, EPOLL_CTL_ADD, c->link.fd, &event);
    }
    return status;
}

static enum idem_status
run_all(struct state *state, struct idem_error *err)
{
    struct bench *bench = state->bench;
    struct epoll_event events[256];
    int64_t start = now_us();
    int until_told = TELL_EVERY;
    bool ok = true;

    state->now_us = start;
    state->end_us = start + bench->run_ms * 1000;
    state->busy = bench->clients;
    for (size_t i = 0; i < bench->clients && ok; i++) {
        ok = fill(state, &state->connections[i]) &&
             send_some(&state->connections[i]);
    }
    while (state->busy > 0 && ok) {
        int count = epoll_wait(state->epoll, events, 256, 10000);

        if (--until_told == 0) { /* reading the clock every time is too slow */
            until_told = TELL_EVERY;
            cli_progress("%lld of %lld ms",
                         (long long)(now_us() - start) / 1000,
                         (long long)bench->run_ms);
        }

        ok = count > 0;
        for (int i = 0; i < count && ok; i++)
            ok = serve(state, events[i].data.ptr);
    }
    bench->took_us = now_us() - start;
    cli_progress(NULL);
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

        idem__remote_hang_up(&c->link);
        idem_buf_clear(&c->in);
        idem_buf_clear(&c->out);
    }
    idem__remote_line_close(&state->line);
    free(state->connections);
    free(state->result);
    close(state->epoll);
}

enum idem_status
bench_run(struct bench *bench, struct idem_error *err)
{
    struct state state = {.bench = bench,
                          .line = {.link = IDEM__REMOTE_NO_LINK},
                          .epoll = epoll_create1(EPOLL_CLOEXEC)};
    enum idem_status status;
    double before = -1, after;
    uint64_t salt;

    randombytes_buf(&salt, sizeof(salt));
    snprintf(state.salt, sizeof(state.salt), "%llx-", (unsigned long long)salt);
    state.connections = calloc(bench->clients, sizeof(*state.connections));
    state.result = calloc(1, bench->result_len + 1);
    if (!state.connections || !state.result || state.epoll < 0) {
        free(state.connections);
        state.connections = NULL;
        status = idem__fail(err, IDEM_ERR_MEMORY, "out of memory");
    } else {
        memset(state.result, 'r', bench->result_len);
        status = open_all(&state, err);
    }
    bench->connected = status == IDEM_OK;
    if (status == IDEM_OK)
        status = plant(&state, err);
    if (status == IDEM_OK) {
        before = server_cpu_us(&state);
        status = run_all(&state, err);
    }
    if (status == IDEM_OK) {
        after = server_cpu_us(&state);
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
