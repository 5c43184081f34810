/*
 * redis_link.c - a connection to one Redis server: pipelines with a deadline.
 *
 * hiredis connects and parses replies. This file sends and receives the bytes
 * without blocking, so that several servers work at the same time, everything
 * has a deadline, and for each command it is known whether it can have been
 * sent.
 */
#include "redis.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define CHECK_US (10 * 1000000)
#define PAUSE_FIRST_US 10000
#define PAUSE_MAX_US 1000000
#define OUT_MAX ((size_t)1 << 30)
#define READ_LEN (64 * 1024)
#define REWRITE_US 50000

enum handshake {
    ASK_AUTH,
    ASK_SELECT,
    ASK_INFO,
    ASK_CALLS,
    ASK_FSYNC,
    ASK_SCRIPT,
    ASK_TIME
};

struct redis_link *
idem__redis_link_new(const struct redis_settings *settings, const char *host,
                     int port)
{
    struct redis_link *link = calloc(1, sizeof(*link));

    if (!link)
        return NULL;
    link->settings = settings;
    snprintf(link->host, sizeof(link->host), "%s", host);
    link->port = port;
    idem_buf_init(&link->out, OUT_MAX);
    return link;
}

void
idem__redis_link_delete(struct redis_link *link)
{
    if (!link)
        return;
    idem__redis_link_drop(link, NULL);
    idem_buf_clear(&link->out);
    free(link->calls);
    free(link);
}

/* Do not use the link for a while, longer each time. A link that worked until
 * now is tried again at once, because an idle connection may just have been
 * closed. */
static void
pause_link(struct redis_link *link)
{
    int64_t pause_us = link->failures ? PAUSE_FIRST_US << link->failures : 0;

    link->failures = link->failures < 7 ? link->failures + 1 : 8;
    link->judged = false;
    link->try_after_us =
        idem__mono_us() + (pause_us < PAUSE_MAX_US ? pause_us : PAUSE_MAX_US);
}

void
idem__redis_link_drop(struct redis_link *link, const char *why)
{
    idem__tls_end(link->tls);
    link->tls = NULL;
    if (link->context)
        redisFree(link->context);
    link->context = NULL;
    link->judged = false;
    if (!why)
        return;
    link->unfit = false;
    pause_link(link);
    idem__fail(&link->why, IDEM_ERR_UNAVAILABLE, "redis %s:%d: %s", link->host,
               link->port, why);
}

/* ---- commands -------------------------------------------------------- */

static bool
note_call(struct redis_link *link, uint32_t tag)
{
    struct redis_call *calls = idem__grow(link->calls, link->call_count,
                                          &link->call_room, sizeof(*calls));

    if (!calls)
        return false;
    link->calls = calls;
    link->calls[link->call_count++] =
        (struct redis_call){.end = link->out.len, .tag = tag};
    return true;
}

/* A line such as "$12". Every word of every command has one, so this is not
 * done by printf. */
static bool
add_count(struct idem_buf *out, char kind, size_t count)
{
    char line[24], *at = line + sizeof(line);

    *--at = '\n';
    *--at = '\r';
    do {
        *--at = (char)('0' + count % 10);
        count /= 10;
    } while (count > 0);
    *--at = kind;
    return idem_buf_add(out, at, (size_t)(line + sizeof(line) - at));
}

bool
idem__redis_link_add(struct redis_link *link, uint32_t tag, int argc,
                     const struct idem_bytes *argv)
{
    size_t start = link->out.len;
    bool ok = add_count(&link->out, '*', (size_t)argc);

    for (int i = 0; i < argc && ok; i++)
        ok = add_count(&link->out, '$', argv[i].len) &&
             idem_buf_add(&link->out, argv[i].data, argv[i].len) &&
             idem_buf_add(&link->out, "\r\n", 2);
    if (ok && note_call(link, tag))
        return true;
    link->out.len = start;
    return false;
}

bool
idem__redis_link_add_text(struct redis_link *link, uint32_t tag,
                          const char *words)
{
    struct idem_bytes argv[8];
    int argc = 0;

    while (*words && argc < 8) {
        size_t len = strcspn(words, " ");

        argv[argc++] = (struct idem_bytes){words, len};
        words += len + (words[len] == ' ');
    }
    return idem__redis_link_add(link, tag, argc, argv);
}

/* ---- sending and receiving ------------------------------------------- */

static bool
send_some(struct redis_link *link)
{
    const uint8_t *data = link->out.data + link->written;
    size_t len = link->out.len - link->written;
    ssize_t n = link->tls ? idem__tls_send(link->tls, data, len)
                          : send(link->context->fd, data, len, MSG_NOSIGNAL);

    if (n > 0)
        link->written += (size_t)n;
    return n >= 0 || errno == EAGAIN || errno == EINTR;
}

static bool
read_some(struct redis_link *link)
{
    static _Thread_local char room[READ_LEN];
    ssize_t n = link->tls ? idem__tls_recv(link->tls, room, sizeof(room))
                          : recv(link->context->fd, room, sizeof(room), 0);

    if (n > 0)
        return redisReaderFeed(link->context->reader, room, (size_t)n) ==
               REDIS_OK;
    return n < 0 && (errno == EAGAIN || errno == EINTR);
}

static bool
hand_out(struct redis_link *link, redis_answer_fn *answer, void *arg)
{
    while (link->answered < link->call_count) {
        void *reply = NULL;

        if (redisReaderGetReply(link->context->reader, &reply) != REDIS_OK)
            return false;
        if (!reply)
            return true;
        answer(arg, link, link->calls[link->answered++].tag, reply, true);
        freeReplyObject(reply);
        if (!link->context)
            return false; /* the callback closed the link */
    }
    return true;
}

/* Report to all commands without an answer that none will come. */
static void
give_up(struct redis_link *link, redis_answer_fn *answer, void *arg)
{
    while (link->answered < link->call_count) {
        struct redis_call *call = &link->calls[link->answered++];

        answer(arg, link, call->tag, NULL, call->end <= link->written);
    }
}

static void
say_broken(struct redis_link *link)
{
    idem__redis_link_drop(link, link->tls ? idem__tls_flaw()
                                          : "the connection broke");
}

static void
run_one(struct redis_link *link, short ready, redis_answer_fn *answer,
        void *arg)
{
    bool ok = true;

    if (ready & POLLOUT)
        ok = send_some(link);
    if (ok && (ready & (POLLIN | POLLHUP | POLLERR)))
        ok = read_some(link) && hand_out(link, answer, arg);
    if (!ok)
        say_broken(link);
    if (!link->context)
        give_up(link, answer, arg);
}

static bool
is_open(const struct redis_link *link)
{
    return link->answered < link->call_count;
}

static void
reset(struct redis_link *link)
{
    idem_buf_reset(&link->out);
    if (link->out.room > (size_t)16 << 20)
        idem_buf_clear(&link->out);
    link->written = link->call_count = link->answered = 0;
}

void
idem__redis_link_move(struct redis_link *link, short ready)
{
    bool ok = !(ready & POLLOUT) || send_some(link);

    if (ok && (ready & (POLLIN | POLLHUP | POLLERR)))
        ok = read_some(link);
    if (!ok)
        say_broken(link);
    if (!ok || link->written == link->out.len)
        reset(link);
}

static void
poll_links(struct redis_link **links, size_t count, struct pollfd *polls,
           int64_t deadline_us)
{
    int64_t left_us = deadline_us - idem__mono_us();

    for (size_t i = 0; i < count; i++) {
        bool unsent = links[i]->written < links[i]->out.len;

        polls[i].revents = 0;
        polls[i].fd = is_open(links[i]) ? links[i]->context->fd : -1;
        polls[i].events = (short)(POLLIN | (unsent ? POLLOUT : 0));
    }
    if (left_us > 0)
        (void)poll(polls, count, (int)(left_us / 1000) + 1);
}

void
idem__redis_links_run(struct redis_link **links, size_t count,
                      int64_t deadline_us, redis_answer_fn *answer, void *arg)
{
    struct pollfd polls[REDIS_NODES_MAX];
    bool open = false;

    for (size_t i = 0; i < count; i++) {
        if (!links[i]->context)
            give_up(links[i], answer, arg);
        open |= is_open(links[i]);
    }
    while (open) {
        bool late = idem__mono_us() >= deadline_us;

        open = false;
        poll_links(links, count, polls, deadline_us);
        for (size_t i = 0; i < count; i++) {
            if (!is_open(links[i]))
                continue;
            if (polls[i].revents != 0) {
                run_one(links[i], polls[i].revents, answer, arg);
            } else if (late) {
                links[i]->failures += 5; /* it hangs: try again later */
                idem__redis_link_drop(links[i], "no reply in time");
                give_up(links[i], answer, arg);
            }
            open |= is_open(links[i]);
        }
    }
    for (size_t i = 0; i < count; i++)
        reset(links[i]);
}

/* ---- the handshake --------------------------------------------------- */

struct greeting {
    struct redis_link *link;
    char error[160]; /* the first error */
    bool broken;     /* dropped: the link says why */
};

static void
note_time(struct redis_facts *facts, const redisReply *reply)
{
    if (reply->type == REDIS_REPLY_ARRAY && reply->elements == 2 &&
        reply->element[0]->str && reply->element[1]->str)
        facts->ahead_us = strtoll(reply->element[0]->str, NULL, 10) * 1000000 +
                          strtoll(reply->element[1]->str, NULL, 10) -
                          idem__mono_us();
}

static void
note_fsync(struct redis_facts *facts, const redisReply *reply)
{
    for (size_t i = 0;
         reply->type == REDIS_REPLY_ARRAY && i + 1 < reply->elements; i += 2) {
        const char *name = reply->element[i]->str;
        const char *value = reply->element[i + 1]->str;

        if (!name || !value)
            continue;
        if (strcmp(name, "appendfsync") == 0) {
            snprintf(facts->fsync, sizeof(facts->fsync), "%s", value);
            facts->fsync_seen = true;
        } else if (strcmp(name, "no-appendfsync-on-rewrite") == 0) {
            facts->fsync_pauses = strcmp(value, "no") != 0;
        } else if (strcmp(name, "cluster-allow-replica-migration") == 0) {
            facts->moves = strcmp(value, "no") != 0;
        }
    }
}

static void
on_greeting(void *arg, struct redis_link *link, uint32_t tag,
            const redisReply *reply, bool sent)
{
    struct greeting *greeting = arg;

    (void)sent;
    if (!reply) {
        greeting->broken = true;
        return;
    }
    if (reply->type == REDIS_REPLY_ERROR && tag != ASK_FSYNC &&
        tag != ASK_CALLS && !greeting->error[0])
        snprintf(greeting->error, sizeof(greeting->error), "%s", reply->str);
    if (tag == ASK_INFO && reply->type == REDIS_REPLY_STRING)
        idem__redis_facts_read(reply->str, reply->len, &link->facts);
    else if (tag == ASK_CALLS && reply->type == REDIS_REPLY_STRING)
        idem__redis_facts_read_calls(reply->str, reply->len, &link->facts);
    else if (tag == ASK_FSYNC)
        note_fsync(&link->facts, reply);
    else if (tag == ASK_TIME)
        note_time(&link->facts, reply);
}

static bool
add_handshake(struct redis_link *link)
{
    const struct redis_settings *settings = link->settings;
    struct idem_bytes auth[3] = {{"AUTH", 4}};
    struct idem_bytes load[3] = {
        {"SCRIPT", 6}, {"LOAD", 4}, idem_text(idem__redis_script)};
    int argc = 1;
    char select[32];

    if (settings->url.user)
        auth[argc++] = idem_text(settings->url.user);
    if (settings->url.password)
        auth[argc++] = idem_text(settings->url.password);
    if (argc > 1 && !idem__redis_link_add(link, ASK_AUTH, argc, auth))
        return false;
    snprintf(select, sizeof(select), "SELECT %d", settings->db);
    if (settings->db != 0 &&
        !idem__redis_link_add_text(link, ASK_SELECT, select))
        return false;
    return idem__redis_link_add(link, ASK_SCRIPT, 3, load);
}

/* The handshake with a Sentinel: its password, if it has one. */
static bool
greet_sentinel(struct redis_link *link, int64_t deadline_us)
{
    const char *password =
        idem__url_option(&link->settings->url, "sentinel_password");
    struct idem_bytes auth[2] = {{"AUTH", 4}, idem_text(password)};
    struct greeting greeting = {.link = link};

    if (password && idem__redis_link_add(link, ASK_AUTH, 2, auth))
        idem__redis_links_run(&link, 1, deadline_us, on_greeting, &greeting);
    if (greeting.error[0])
        idem__redis_link_drop(link, greeting.error);
    link->judged = link->context != NULL;
    link->failures = link->judged ? 0 : link->failures;
    return link->judged;
}

/* A replica that need not confirm a write can be promoted without it. This is
 * not refused, because a replica may be there for other reasons (a backup), but
 * said once for each number of replicas. */
void
idem__redis_link_warn(struct redis_link *link)
{
    int has = link->facts.replicas, must = link->settings->replicas;

    if (link->sentinel || link->listens || must < 0)
        return;
    if (has > must && has != link->said_replicas)
        idem__log(link->settings->options, IDEM_LOG_WARNING,
                  "redis %s:%d: %d %s connected and %d must confirm a write: "
                  "if %s is promoted, the last strict requests can run again; "
                  "use replicas=%d%s",
                  link->host, link->port, has,
                  has == 1 ? "replica is" : "replicas are", must,
                  must == 0  ? has == 1 ? "it" : "one of them"
                  : has == 2 ? "the other one"
                             : "another one",
                  has, must == 1 ? ", or keep one replica" : "");
    link->said_replicas = has;
}

/* A Redis that was started with an empty append-only file counts no beginning
 * of it until the first rewrite is over, but the file has everything. If CONFIG
 * SET was called since, the file may have been off meanwhile. */
static void
remember_file(struct redis_link *link)
{
    struct redis_facts *facts = &link->facts;

    if (facts->aof_unwritten && facts->run_id[0] &&
        strcmp(link->filed, facts->run_id) == 0 && facts->config_sets >= 0 &&
        facts->config_sets == link->filed_sets)
        facts->aof_unwritten = false;
    link->filed_sets = facts->config_sets;
    snprintf(link->filed, sizeof(link->filed), "%s",
             facts->aof && !facts->aof_unwritten ? facts->run_id : "");
}

/* Ask the server about itself; the first time also log in. */
static bool
greet(struct redis_link *link, bool first, int64_t deadline_us)
{
    struct greeting greeting = {.link = link};
    struct idem_error flaw = {0};

    memset(&link->facts, 0, sizeof(link->facts));
    link->facts.config_sets = -1;
    link->judged = link->unfit = false;
    if ((first && !add_handshake(link)) ||
        !idem__redis_link_add_text(link, ASK_INFO, "INFO") ||
        !idem__redis_link_add_text(link, ASK_CALLS, "INFO commandstats") ||
        !idem__redis_link_add_text(link, ASK_FSYNC,
                                   "CONFIG GET appendfsync "
                                   "no-appendfsync-on-rewrite "
                                   "cluster-allow-replica-migration") ||
        !idem__redis_link_add_text(link, ASK_TIME, "TIME")) {
        idem__redis_link_drop(link, "out of memory");
        return false;
    }
    idem__redis_links_run(&link, 1, deadline_us, on_greeting, &greeting);
    if (link->facts.sentinel) {
        idem__redis_link_drop(link,
                              "this is a Sentinel: use redis+sentinel://HOST:"
                              "PORT/NAME, with the name of the primary that it "
                              "monitors");
        link->why.status = IDEM_ERR_UNSUPPORTED;
        return false;
    }
    if (greeting.error[0]) {
        idem__redis_link_drop(link, greeting.error);
        return false;
    }
    if (greeting.broken)
        return false;
    link->checked_us = idem__mono_us();
    remember_file(link);
    if (link->facts.aof_unwritten && !link->settings->accept_forget &&
        link->settings->opening &&
        link->checked_us + 2 * REWRITE_US < deadline_us) {
        usleep(REWRITE_US); /* usually a small file, and soon written */
        return greet(link, false, deadline_us);
    }
    if (idem__redis_facts_judge(link->settings, &link->facts, &flaw) !=
        IDEM_OK) {
        idem__fail(&link->why, flaw.status, "redis %s:%d: %s", link->host,
                   link->port, flaw.text + strlen("redis: "));
        link->unfit = link->facts.master;
        /* A replica of a cluster stays connected, because it knows the slot
         * map. */
        if (!link->settings->cluster || link->facts.master)
            idem__redis_link_drop(link, NULL);
        pause_link(link);
        return false;
    }
    link->judged = true;
    link->failures = 0;
    idem__redis_link_warn(link);
    return true;
}

static bool
connect_link(struct redis_link *link, int64_t deadline_us)
{
    int64_t left_us = deadline_us - idem__mono_us();
    int64_t limit_us = link->settings->connect_ms * 1000;
    struct timeval tv;
    redisContext *context;
    char why[160];

    if (left_us < limit_us)
        limit_us = left_us > 1000 ? left_us : 1000;
    tv.tv_sec = limit_us / 1000000;
    tv.tv_usec = limit_us % 1000000;
    context = redisConnectWithTimeout(link->host, link->port, tv);
    if (!context || context->err) {
        idem__redis_link_drop(link,
                              context ? context->errstr : "out of memory");
        if (context)
            redisFree(context);
        return false;
    }
    if (link->settings->link && !link->listens)
        *link->settings->link = idem__new_rev();
    (void)redisEnableKeepAlive(context);
    (void)fcntl(context->fd, F_SETFL, fcntl(context->fd, F_GETFL) | O_NONBLOCK);
    link->context = context;
    limit_us = idem__mono_us() + link->settings->connect_ms * 1000;
    if (deadline_us < limit_us || link->settings->opening)
        limit_us = deadline_us;
    if (link->settings->tls)
        link->tls =
            idem__tls_start(link->settings->tls, context->fd, link->host);
    if (link->settings->tls &&
        !idem__tls_finish(link->tls, limit_us, why, sizeof(why))) {
        idem__redis_link_drop(link, why);
        return false;
    }
    return link->sentinel ? greet_sentinel(link, limit_us)
                          : greet(link, true, limit_us);
}

bool
idem__redis_link_ready(struct redis_link *link, int64_t deadline_us)
{
    int64_t now_us = idem__mono_us(), took_us;
    bool ok;

    if (link->context && link->judged &&
        (link->sentinel || now_us - link->checked_us < CHECK_US))
        return true;
    if (!link->judged && now_us < link->try_after_us)
        return false;
    ok = link->context ? greet(link, false, deadline_us)
                       : connect_link(link, deadline_us);
    /* A server that hangs must not delay the others: at most a third of the
     * time is spent on it. */
    took_us = idem__mono_us() - now_us;
    if (!ok && link->try_after_us < now_us + 3 * took_us)
        link->try_after_us = now_us + 3 * took_us;
    return ok;
}
