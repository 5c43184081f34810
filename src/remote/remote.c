/*
 * remote.c - operations carried out by a server.
 *
 * One thread, one connection. Every command has a tag, so that answers may come
 * in any order and a duplicate that waits holds up nobody. Until it is answered
 * an operation is a flight:
 *
 *   queue ──▶ flight ──▶ sent ──▶ answered
 *               ▲         │
 *               └─────────┘ the connection broke: sent again, if that is safe
 *
 * What a broken connection means for a command:
 *
 *   - no byte of it was sent: nothing happened. If no connection can be made it
 *     is UNAVAILABLE.
 *   - it was sent: it may have been done. BEGIN and REDEEM carry a nonce, LOCK
 *     an owner, the others a fence or a name, so sending it again does it once;
 *     all but FORGET are. From then on an answer counts only if it tells what
 *     the first one did; everything else is LOST.
 *   - it was sent, and no answer came in time: LOST.
 *
 * Every flight has a deadline: the address's timeout, and what it may wait. A
 * connection that says nothing for a third of the timeout though it owes an
 * answer is given up, so that there is time to ask again on another one.
 */
#include "remote.h"

#include <errno.h>
#include <poll.h>
#include <sodium.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#define READ_LEN (64 * 1024)
#define FIRST_PAUSE_US 50000
#define LONGEST_PAUSE_US 2000000
#define LOOK_US 100000 /* how often deadlines of the connection are judged */
#define LAST_MS 5000   /* for answers when the engine is closed */
#define SPARE_MAX 1024

struct flight {
    struct idem__link link; /* by tag */
    struct flight *next, **prev;
    struct idem__timer timer; /* its deadline */
    struct idem__item *item;  /* a job or a scan */
    uint64_t tag;
    uint64_t starts_at;     /* in all that was ever written; see `written` */
    int64_t sent_us;        /* 0: not on this connection */
    bool resent, cancelled; /* resent: an earlier connection had it */
};

struct idem__remote {
    struct idem__remote_address address;
    struct idem__remote_hello hello; /* and when it was said */
    int64_t hello_us;
    _Atomic size_t max_result; /* of it, for any thread */
    struct idem__remote_link link;
    int wake;
    bool closing;
    struct idem_buf in, out;
    size_t needed;    /* bytes in `in` before a look is worth it */
    size_t sent;      /* of out */
    uint64_t written; /* bytes of commands, of all connections */
    struct idem__map tags;
    struct flight *first, **last; /* oldest first */
    struct flight *spare;
    size_t spares;
    uint64_t tag;
    int64_t heard_us, looked_us;
    int64_t again_us, pause_us; /* no connection is tried before; how long */
    unsigned broken;            /* connections since the last answer */
    struct idem_error trouble;  /* why there is no connection */
    size_t done, done_bytes;    /* since the queue was told */
};

static struct idem__job *
job_of(const struct flight *flight)
{
    return flight->item->kind == IDEM__ITEM_JOB
               ? (struct idem__job *)flight->item
               : NULL;
}

/* ---- flights ----------------------------------------------------------- */

static struct flight *
new_flight(struct idem__remote *remote)
{
    struct flight *flight = remote->spare;

    if (!flight)
        return calloc(1, sizeof(*flight));
    remote->spare = flight->next;
    remote->spares--;
    memset(flight, 0, sizeof(*flight));
    return flight;
}

static void
drop_flight(struct idem_engine *engine, struct flight *flight)
{
    struct idem__remote *remote = engine->remote;

    idem__timer_stop(&engine->timers, &flight->timer);
    idem__map_remove(&remote->tags, &flight->link);
    *flight->prev = flight->next;
    if (flight->next)
        flight->next->prev = flight->prev;
    else
        remote->last = flight->prev;
    if (remote->spares == SPARE_MAX) {
        free(flight);
        return;
    }
    flight->next = remote->spare;
    remote->spare = flight;
    remote->spares++;
}

static void
fail_scan(struct idem__scan *scan, enum idem_status status,
          const struct idem_error *err)
{
    scan->done(scan->arg, status, NULL, 0, NULL, err);
    free(scan);
}

/* A listing changes nothing: what is lost may as well be asked again. */
static void
fail_item(struct idem_engine *engine, struct idem__item *item,
          enum idem_status status, struct idem_error *err)
{
    struct idem__remote *remote = engine->remote;

    err->status = status;
    if (item->kind == IDEM__ITEM_SCAN) {
        if (status == IDEM_ERR_LOST)
            err->status = status = IDEM_ERR_UNAVAILABLE;
        fail_scan((struct idem__scan *)item, status, err);
        return;
    }
    remote->done++;
    remote->done_bytes += item->bytes;
    idem__job_fail(engine, (struct idem__job *)item, status, err);
}

static void
fail_flight(struct idem_engine *engine, struct flight *flight,
            enum idem_status status, struct idem_error *err)
{
    struct idem__item *item = flight->item;

    drop_flight(engine, flight);
    fail_item(engine, item, status, err);
}

static void
lose_flight(struct idem_engine *engine, struct flight *flight, const char *why)
{
    struct idem_error err;
    const struct idem__job *job = job_of(flight);
    bool asks = job && job->op.verb == IDEM_GET;

    idem__fail(&err, IDEM_ERR_LOST, "%s: %s; %s", engine->remote->address.shown,
               why, asks ? "nothing was changed" : "it may have been stored");
    fail_flight(engine, flight, asks ? IDEM_ERR_UNAVAILABLE : IDEM_ERR_LOST,
                &err);
}

/* Was a byte of it sent, on this connection or an earlier one? */
static bool
was_sent(const struct idem__remote *remote, const struct flight *flight)
{
    return flight->resent ||
           (flight->sent_us && flight->starts_at < remote->written);
}

/* ---- sending ----------------------------------------------------------- */

static bool
put_command(struct idem__remote *remote,
            const struct idem__wire_command *command)
{
    struct idem__wire_args args;
    uint8_t *room;
    size_t len;

    idem__wire_write(command, &args);
    len = idem__wire_len(&args);
    room = idem_buf_room(&remote->out, len);
    if (!room)
        return false;
    idem__wire_put(&args, room);
    remote->out.len += len;
    return true;
}

static void
write_scan(struct idem__wire_command *command, const struct idem__scan *scan)
{
    command->scan = true;
    command->filter = scan->filter;
    command->cursor = scan->cursor;
    command->count =
        (int64_t)(scan->count < IDEM__WIRE_COUNT_MAX ? scan->count
                                                     : IDEM__WIRE_COUNT_MAX);
}

/* What is left of a wait, if it is sent again. */
static void
write_job(struct idem_engine *engine, struct idem__wire_command *command,
          const struct idem__job *job)
{
    int64_t left_us = job->wait_end_us - engine->boot_now_us;

    command->op = job->op;
    if (job->wait_end_us)
        command->op.wait_ms = left_us > 0 ? (left_us + 999) / 1000 : 0;
}

static void
send_flight(struct idem_engine *engine, struct flight *flight)
{
    struct idem__remote *remote = engine->remote;
    struct idem__wire_command command = {
        .full = true, .tagged = true, .tag = (int64_t)flight->tag};
    uint64_t at = remote->written + remote->out.len - remote->sent;

    if (job_of(flight))
        write_job(engine, &command, job_of(flight));
    else
        write_scan(&command, (struct idem__scan *)flight->item);
    if (!put_command(remote, &command))
        return; /* out of memory: it fails when its time is over */
    flight->starts_at = at;
    flight->sent_us = engine->boot_now_us;
}

static void
send_cancel(struct idem__remote *remote, struct flight *flight)
{
    struct idem__wire_args args = {.count = 0};
    uint8_t *room;

    flight->cancelled = true;
    idem__wire_add(&args, idem_text("CANCEL"));
    idem__wire_add_number(&args, (int64_t)flight->tag);
    room = idem_buf_room(&remote->out, idem__wire_len(&args));
    if (!room)
        return;
    idem__wire_put(&args, room);
    remote->out.len += idem__wire_len(&args);
}

static void
cancel(struct idem_engine *engine, uint64_t ticket)
{
    struct idem__remote *remote = engine->remote;
    struct flight *flight = remote->first;
    struct idem_error err;

    while (flight && (!job_of(flight) || job_of(flight)->ticket != ticket))
        flight = flight->next;
    if (!flight || !job_of(flight)->wait_end_us)
        return;
    if (flight->sent_us) {
        send_cancel(remote, flight);
    } else if (!flight->resent) {
        idem__fail(&err, IDEM_ERR_CLOSED, "cancelled");
        fail_flight(engine, flight, IDEM_ERR_CLOSED, &err);
    } else {
        flight->cancelled = true;
    }
}

/* While there is no connection, and it is too early to try again. */
static bool
refuses(const struct idem_engine *engine)
{
    const struct idem__remote *remote = engine->remote;

    return remote->link.fd < 0 && engine->boot_now_us < remote->again_us;
}

/* Give it a tag and a deadline. False: out of memory. */
static bool
follow(struct idem_engine *engine, struct flight *flight,
       struct idem__item *item, int64_t wait_ms)
{
    struct idem__remote *remote = engine->remote;
    int64_t ms = remote->address.timeout_ms + wait_ms;

    flight->item = item;
    flight->tag = ++remote->tag;
    flight->timer.kind = IDEM__TIMER_WAIT;
    if (!idem__map_add(&remote->tags, &flight->link, flight->tag))
        return false;
    if (idem__timer_set(&engine->timers, &flight->timer,
                        engine->boot_now_us + ms * 1000))
        return true;
    idem__map_remove(&remote->tags, &flight->link);
    return false;
}

static void
take_off(struct idem_engine *engine, struct idem__item *item)
{
    struct idem__remote *remote = engine->remote;
    struct idem__job *job =
        item->kind == IDEM__ITEM_JOB ? (struct idem__job *)item : NULL;
    int64_t wait_ms = job && job->wait_end_us ? job->op.wait_ms : 0;
    struct idem_error err = remote->trouble;
    struct flight *flight;

    if (refuses(engine)) {
        fail_item(engine, item, IDEM_ERR_UNAVAILABLE, &err);
        return;
    }
    flight = new_flight(remote);
    if (!flight || !follow(engine, flight, item, wait_ms)) {
        free(flight);
        idem__fail(&err, IDEM_ERR_MEMORY, "out of memory");
        fail_item(engine, item, IDEM_ERR_MEMORY, &err);
        return;
    }
    flight->prev = remote->last;
    *remote->last = flight;
    remote->last = &flight->next;
    if (remote->link.fd >= 0)
        send_flight(engine, flight);
}

static void
take_items(struct idem_engine *engine)
{
    while (engine->queue.inbox) {
        struct idem__item *item = engine->queue.inbox;

        engine->queue.inbox = item->next;
        switch (item->kind) {
        case IDEM__ITEM_JOB:
        case IDEM__ITEM_SCAN:
            take_off(engine, item);
            break;
        case IDEM__ITEM_CANCEL:
            cancel(engine, ((struct idem__cancel *)item)->ticket);
            free(item);
            break;
        case IDEM__ITEM_FIGURES:
            idem__word_set(((struct idem__figures *)item)->woken);
            break;
        case IDEM__ITEM_NEWS: /* of a store, and there is none */
            free(item);
            break;
        case IDEM__ITEM_KEPT:
            idem__keeper_over(IDEM__OF(item, struct idem__keeper, end));
            break;
        }
    }
}

/* ---- the connection ---------------------------------------------------- */

/* Twice as long each time, and not all clients at once. */
static void
plan_next_try(struct idem__remote *remote)
{
    int64_t pause = remote->pause_us ? remote->pause_us * 2 : FIRST_PAUSE_US;

    remote->pause_us = pause < LONGEST_PAUSE_US ? pause : LONGEST_PAUSE_US;
    remote->again_us = idem__system_clocks.boot_us(NULL) +
                       remote->pause_us * 3 / 4 +
                       randombytes_uniform((uint32_t)(remote->pause_us / 2));
}

static void
hang_up(struct idem_engine *engine, const char *why)
{
    struct idem__remote *remote = engine->remote;
    struct flight *next;

    idem__remote_hang_up(&remote->link);
    remote->again_us = engine->boot_now_us; /* at once, the first time */
    if (remote->broken++ > 0)
        plan_next_try(remote);
    idem__fail(&remote->trouble, IDEM_ERR_UNAVAILABLE, "%s: %s",
               remote->address.shown, why);
    for (struct flight *flight = remote->first; flight; flight = next) {
        const struct idem__job *job = job_of(flight);

        next = flight->next;
        flight->resent = was_sent(remote, flight);
        flight->sent_us = 0;
        if (flight->resent && job && job->op.verb == IDEM_FORGET)
            lose_flight(engine, flight, why);
    }
    idem_buf_reset(&remote->in);
    idem_buf_reset(&remote->out);
    remote->sent = remote->needed = 0;
}

static void
fail_unsent(struct idem_engine *engine)
{
    struct idem__remote *remote = engine->remote;
    struct flight *next;

    for (struct flight *flight = remote->first; flight; flight = next) {
        struct idem_error err = remote->trouble;

        next = flight->next;
        if (!flight->resent)
            fail_flight(engine, flight, IDEM_ERR_UNAVAILABLE, &err);
    }
}

static void
tell_time(struct idem_engine *engine)
{
    const struct idem__remote *remote = engine->remote;
    int64_t since_ms = (engine->boot_now_us - remote->hello_us) / 1000;

    if (remote->hello.now_ms)
        atomic_store_explicit(&engine->stats_now_ms,
                              remote->hello.now_ms + since_ms,
                              memory_order_relaxed);
}

static void
greeted(struct idem_engine *engine)
{
    struct idem__remote *remote = engine->remote;

    remote->hello_us = remote->heard_us = engine->boot_now_us;
    atomic_store_explicit(&remote->max_result, remote->hello.max_result,
                          memory_order_relaxed);
    tell_time(engine);
}

static void
reconnect(struct idem_engine *engine)
{
    struct idem__remote *remote = engine->remote;
    enum idem_status status;

    if (remote->link.fd >= 0 || !remote->first || refuses(engine))
        return;
    status = idem__remote_dial(&remote->address, remote->wake, &remote->closing,
                               &remote->link, &remote->hello, &remote->trouble);
    engine->boot_now_us = idem__boot_us(engine);
    if (status != IDEM_OK) {
        plan_next_try(remote);
        fail_unsent(engine);
        return;
    }
    greeted(engine);
    for (struct flight *f = remote->first; f; f = f->next)
        send_flight(engine, f);
}

static void
write_out(struct idem_engine *engine)
{
    struct idem__remote *remote = engine->remote;

    while (remote->link.fd >= 0 && remote->sent < remote->out.len) {
        ssize_t n =
            idem__remote_send(&remote->link, remote->out.data + remote->sent,
                              remote->out.len - remote->sent);

        if (n < 0 && errno == EAGAIN)
            return;
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            hang_up(engine, idem__remote_flaw(&remote->link));
            return;
        }
        remote->sent += (size_t)n;
        remote->written += (uint64_t)n;
        atomic_fetch_add_explicit(&engine->batches, 1, memory_order_relaxed);
    }
    idem_buf_reset(&remote->out);
    remote->sent = 0;
}

/* ---- answers ----------------------------------------------------------- */

static bool
frees(enum idem_verb verb)
{
    return verb == IDEM_RELEASE || verb == IDEM_UNLOCK;
}

/* The operation was sent twice: does this answer tell what the first one did?
 * If so, say it as the first would have. */
static bool
tells_both(const struct idem_op *op, struct idem_answer *answer)
{
    const struct idem_record *record = answer->record;

    if (answer->verdict == IDEM_V_STALE && frees(op->verb) &&
        record->state == IDEM_STATE_FREE && record->fence == op->fence)
        answer->verdict = IDEM_V_OK;
    if (answer->verdict == IDEM_V_REPLAY && op->verb == IDEM_SETTLE &&
        (record->flags & IDEM_FLAG_SETTLED) &&
        record->state == (op->outcome ? op->outcome : IDEM_STATE_FAILED))
        answer->verdict = IDEM_V_SETTLED;
    if (answer->verdict == IDEM_V_STALE)
        return op->verb == IDEM_RENEW;
    /* The server may read the first one later, when the key is free. */
    if (op->verb == IDEM_SETTLE && (answer->verdict == IDEM_V_BUSY ||
                                    answer->verdict == IDEM_V_DOUBT))
        return false;
    return answer->verdict != IDEM_V_DUPLICATE || op->verb != IDEM_ISSUE;
}

/* What the caller is told. */
static enum idem_status
judge(const struct flight *flight, enum idem_status status,
      struct idem_answer *answer, struct idem_error *err)
{
    const struct idem_op *op = &job_of(flight)->op;

    if (flight->resent && op->verb != IDEM_GET &&
        (status == IDEM_OK ? !tells_both(op, answer) : true))
        return idem__fail(err, IDEM_ERR_LOST,
                          "the connection broke before the answer came, and "
                          "the second one does not tell: ask with get");
    if (status == IDEM_ERR_CLOSED && !flight->cancelled)
        return idem__fail(err, IDEM_ERR_UNAVAILABLE,
                          "the server is shutting down");
    return status;
}

/* A server does not send a large result back to who wrote it. */
static void
add_own_result(struct idem__job *job)
{
    const struct idem_op *op = &job->op;
    const struct idem_answer *answer = &job->answer;
    struct idem_record *record = &job->told;

    if (!record->result.data && !(record->flags & IDEM_FLAG_NOT_REPLAYABLE) &&
        (record->state == IDEM_STATE_SUCCEEDED ||
         record->state == IDEM_STATE_FAILED) &&
        (answer->verdict == IDEM_V_OK || answer->verdict == IDEM_V_SETTLED))
        record->result = op->result;
}

static void
answer_job(struct idem_engine *engine, struct flight *flight,
           struct idem__wire_reply *reply)
{
    struct idem__remote *remote = engine->remote;
    struct idem__job *job = job_of(flight);
    struct idem_error err = {IDEM_OK, ""};
    enum idem_status status =
        judge(flight, idem__wire_answer(reply, &job->answer, &job->told, &err),
              &job->answer, &err);

    if (status == IDEM_OK)
        add_own_result(job);
    drop_flight(engine, flight);
    remote->done++;
    remote->done_bytes += job->item.bytes;
    err.status = status;
    idem__job_answer(engine, job, status, &err);
    idem__job_drop(engine, job);
}

static void
answer_scan(struct idem_engine *engine, struct flight *flight,
            struct idem__wire_reply *reply)
{
    struct idem__scan *scan = (struct idem__scan *)flight->item;
    struct idem_error err = {IDEM_OK, ""};
    struct idem_cursor next;
    enum idem_status status = idem__wire_scanned(reply, &next, &err);
    size_t count = status == IDEM_OK ? reply->values : 0;
    struct idem_record *records = calloc(count + 1, sizeof(*records));

    drop_flight(engine, flight);
    if (!records)
        status = idem__fail(&err, IDEM_ERR_MEMORY, "out of memory");
    for (size_t i = 0; i < count && status == IDEM_OK; i++)
        status = idem__wire_record(reply, &records[i], &err);
    if (status == IDEM_OK) {
        scan->done(scan->arg, IDEM_OK, records, count, &next, NULL);
        free(scan);
    } else {
        err.status = status;
        fail_scan(scan, status, &err);
    }
    free(records);
}

static void
take_reply(struct idem_engine *engine, struct idem__wire_reply *reply)
{
    struct idem__remote *remote = engine->remote;
    struct idem__link *link =
        reply->tagged ? idem__map_find(&remote->tags, (uint64_t)reply->tag)
                      : NULL;
    struct flight *flight = link ? IDEM__OF(link, struct flight, link) : NULL;

    remote->pause_us = 0;
    remote->broken = 0;
    if (!flight)
        return; /* to a CANCEL, or to one who waits no more */
    if (job_of(flight))
        answer_job(engine, flight, reply);
    else
        answer_scan(engine, flight, reply);
}

/* Answer what is whole. False: what came is not an answer. */
static bool
take_replies(struct idem_engine *engine)
{
    struct idem__remote *remote = engine->remote;
    struct idem_buf *in = &remote->in;
    size_t at = 0;

    while (at < in->len) {
        struct idem_bytes rest = {in->data + at, in->len - at};
        struct idem__wire_reply reply;
        size_t used;
        enum idem__wire_got got =
            idem__wire_reply(rest, in->cap, &reply, &used);

        if (got == IDEM__WIRE_BAD)
            return false;
        remote->needed = used;
        if (got == IDEM__WIRE_MORE)
            break;
        at += used;
        remote->needed = 0;
        take_reply(engine, &reply);
    }
    idem_buf_shift(in, at);
    return true;
}

static void
read_in(struct idem_engine *engine)
{
    struct idem__remote *remote = engine->remote;
    struct idem_buf *in = &remote->in;

    while (remote->link.fd >= 0) {
        size_t len = remote->needed > in->len + READ_LEN
                         ? remote->needed - in->len
                         : READ_LEN;
        uint8_t *room = idem_buf_room(in, len);
        ssize_t n = room ? idem__remote_recv(&remote->link, room, len) : -1;

        if (!room) {
            hang_up(engine, "a reply is too large");
        } else if (n > 0) {
            in->len += (size_t)n;
            remote->heard_us = engine->boot_now_us;
            if (in->len >= remote->needed && !take_replies(engine))
                hang_up(engine, "unexpected reply: is this an idem server?");
            else if ((size_t)n < len)
                return;
        } else if (n == 0) {
            hang_up(engine, "the server closed the connection");
        } else if (errno != EINTR) {
            if (errno != EAGAIN)
                hang_up(engine, idem__remote_flaw(&remote->link));
            return;
        }
    }
}

/* ---- time -------------------------------------------------------------- */

static void
fire(struct idem_engine *engine)
{
    struct idem__remote *remote = engine->remote;
    struct idem__timer *timer;

    while ((timer = idem__timer_first(&engine->timers)) &&
           timer->due_us <= engine->boot_now_us) {
        struct flight *flight = IDEM__OF(timer, struct flight, timer);
        struct idem_error err;

        idem__timer_stop(&engine->timers, timer);
        if (timer->kind == IDEM__TIMER_RENEW) {
            idem__keeper_due(IDEM__OF(timer, struct idem__keeper, timer));
        } else if (flight->resent || flight->sent_us) {
            /* Its bytes may still be in `out`, and go on their way later. */
            lose_flight(engine, flight, "no answer in time");
        } else {
            idem__fail(&err, IDEM_ERR_UNAVAILABLE,
                       "%s: could not be sent in time", remote->address.shown);
            fail_flight(engine, flight, IDEM_ERR_UNAVAILABLE, &err);
        }
    }
}

/* The oldest one that the server should have answered by now. */
static void
look_for_silence(struct idem_engine *engine)
{
    struct idem__remote *remote = engine->remote;
    int64_t now = engine->boot_now_us,
            patience = remote->address.timeout_ms * 1000 / 3;

    if (remote->link.fd < 0 || now - remote->looked_us < LOOK_US)
        return;
    remote->looked_us = now;
    if (now - remote->heard_us < patience)
        return;
    for (struct flight *f = remote->first; f; f = f->next) {
        const struct idem__job *job = job_of(f);
        bool waits = job && job->wait_end_us > now;

        if (f->sent_us && !waits && now - f->sent_us >= patience) {
            hang_up(engine, "it does not answer");
            return;
        }
    }
}

/* ---- the carrier ------------------------------------------------------- */

static bool
turn_server(struct idem_engine *engine)
{
    struct idem__remote *remote = engine->remote;
    size_t done, bytes;
    bool more;

    idem__queue_take(&engine->queue);
    take_items(engine);
    reconnect(engine);
    write_out(engine);
    read_in(engine);
    fire(engine);
    look_for_silence(engine);
    tell_time(engine);
    done = remote->done;
    bytes = remote->done_bytes;
    remote->done = remote->done_bytes = 0;
    more = idem__queue_done(&engine->queue, done, bytes);
    return more || (remote->link.fd < 0 && remote->first && !refuses(engine));
}

static int64_t
server_due_us(struct idem_engine *engine)
{
    const struct idem__remote *remote = engine->remote;
    struct idem__timer *timer = idem__timer_first(&engine->timers);
    int64_t due = timer ? timer->due_us : INT64_MAX;

    if (remote->link.fd < 0 && remote->first && remote->again_us < due)
        due = remote->again_us;
    return due;
}

static void
sleep_server(struct idem_engine *engine, int64_t ms)
{
    struct idem__remote *remote = engine->remote;
    struct idem__queue *queue = &engine->queue;
    bool unsent = remote->sent < remote->out.len;
    struct pollfd fds[2] = {
        {remote->wake, POLLIN, 0},
        {remote->link.fd, (short)(POLLIN | (unsent ? POLLOUT : 0)), 0}};
    uint64_t count;
    bool idle;

    pthread_mutex_lock(&queue->lock);
    idle = !queue->first && !queue->closing;
    queue->asleep = idle;
    pthread_mutex_unlock(&queue->lock);
    if (!idle)
        return;
    (void)poll(fds, remote->link.fd >= 0 ? 2 : 1, (int)ms);
    pthread_mutex_lock(&queue->lock);
    queue->asleep = false;
    pthread_mutex_unlock(&queue->lock);
    if (fds[0].revents)
        (void)!read(remote->wake, &count, sizeof(count));
}

/* Under the queue's lock. */
static void
wake_server(struct idem_engine *engine)
{
    const uint64_t one = 1;

    if (engine->queue.closing)
        __atomic_store_n(&engine->remote->closing, true, __ATOMIC_RELEASE);
    engine->queue.asleep = false; /* one call is enough */
    (void)!write(engine->remote->wake, &one, sizeof(one));
}

static enum idem_status
open_server(struct idem_engine *engine, const char *url, struct idem_error *err)
{
    struct idem__remote *remote = calloc(1, sizeof(*remote));
    enum idem_status status;

    if (!remote)
        return idem__fail(err, IDEM_ERR_MEMORY, "out of memory");
    engine->remote = remote;
    remote->link = IDEM__REMOTE_NO_LINK;
    remote->last = &remote->first;
    idem_buf_init(&remote->out, SIZE_MAX / 4);
    remote->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (remote->wake < 0)
        return idem__fail(err, IDEM_ERR_MEMORY, "eventfd: %s", strerror(errno));
    status = idem__remote_address_open(url, &remote->address, err);
    if (status == IDEM_OK)
        status = idem__remote_dial(&remote->address, -1, NULL, &remote->link,
                                   &remote->hello, err);
    if (status != IDEM_OK)
        return status;
    /* A listing of many records is longer than any one of them. */
    idem_buf_init(&remote->in, idem__encoded_max(IDEM_RESULT_MAX) +
                                   IDEM__WIRE_COUNT_MAX * 1024);
    engine->boot_now_us = idem__boot_us(engine);
    greeted(engine);
    return IDEM_OK;
}

static size_t
server_max_result(const struct idem_engine *engine)
{
    return atomic_load_explicit(&engine->remote->max_result,
                                memory_order_relaxed);
}

static void
server_figures(struct idem_engine *engine, idem_figure_fn *each, void *arg)
{
    (void)engine;
    (void)each;
    (void)arg;
}

/* Waits end now; what was sent has a moment to be answered. */
static void
finish_server(struct idem_engine *engine)
{
    struct idem__remote *remote = engine->remote;
    int64_t until_us = idem__boot_us(engine) + LAST_MS * 1000;
    struct idem_error err;

    __atomic_store_n(&remote->closing, false, __ATOMIC_RELEASE);
    for (struct flight *f = remote->first; f; f = f->next) {
        if (job_of(f) && job_of(f)->wait_end_us && f->sent_us)
            send_cancel(remote, f);
    }
    while (remote->first && idem__boot_us(engine) < until_us) {
        struct pollfd fd = {remote->link.fd, POLLIN, 0};

        idem__engine_turn(engine);
        if (remote->first)
            (void)poll(&fd, remote->link.fd >= 0 ? 1 : 0, 20);
    }
    while (remote->first) {
        struct flight *flight = remote->first;

        idem__fail(&err, IDEM_ERR_CLOSED, "the engine is shutting down");
        if (was_sent(remote, flight))
            lose_flight(engine, flight, "closed before the answer came");
        else
            fail_flight(engine, flight, IDEM_ERR_CLOSED, &err);
    }
}

static void
close_server(struct idem_engine *engine)
{
    struct idem__remote *remote = engine->remote;

    if (!remote)
        return;
    idem__remote_hang_up(&remote->link);
    if (remote->wake >= 0)
        close(remote->wake);
    while (remote->spare) {
        struct flight *flight = remote->spare;

        remote->spare = flight->next;
        free(flight);
    }
    idem__map_clear(&remote->tags);
    idem_buf_clear(&remote->in);
    idem_buf_clear(&remote->out);
    idem__remote_address_clear(&remote->address);
    free(remote);
}

const struct idem__carrier idem__server_carrier = {
    .open = open_server,
    .turn = turn_server,
    .due_us = server_due_us,
    .sleep = sleep_server,
    .wake = wake_server,
    .max_result = server_max_result,
    .figures = server_figures,
    .finish = finish_server,
    .close = close_server,
};
