/*
 * flight.c - the operations that are on their way to a server: takes them from
 * the queue, sends, cancels and fails them.
 */
#include "flight.h"

#include <stdlib.h>

#define SPARE_MAX 1024

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

void
idem__flight_drop(struct idem_engine *engine, struct flight *flight)
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

void
idem__flight_fail_scan(struct idem__scan *scan, enum idem_status status,
                       const struct idem_error *err)
{
    scan->done(scan->arg, status, NULL, 0, NULL, err);
    free(scan);
}

static void
fail_item(struct idem_engine *engine, struct idem__item *item,
          enum idem_status status, struct idem_error *err)
{
    struct idem__remote *remote = engine->remote;

    err->status = status;
    if (item->kind == IDEM__ITEM_SCAN) {
        idem__flight_fail_scan((struct idem__scan *)item, status, err);
        return;
    }
    remote->done++;
    remote->done_bytes += item->bytes;
    idem__job_fail(engine, (struct idem__job *)item, status, err);
}

void
idem__flight_fail(struct idem_engine *engine, struct flight *flight,
                  enum idem_status status, struct idem_error *err)
{
    struct idem__item *item = flight->item;

    idem__flight_drop(engine, flight);
    fail_item(engine, item, status, err);
}

/* A listing and a GET change nothing, so a lost one is reported as
 * UNAVAILABLE. */
void
idem__flight_lose(struct idem_engine *engine, struct flight *flight,
                  const char *why)
{
    struct idem_error err;
    const struct idem__job *job = idem__flight_job(flight);
    bool asks = !job || job->op.verb == IDEM_GET;

    idem__fail(&err, IDEM_ERR_LOST, "%s: %s; %s", engine->remote->address.shown,
               why, asks ? "nothing was changed" : "it may have been stored");
    idem__flight_fail(engine, flight,
                      asks ? IDEM_ERR_UNAVAILABLE : IDEM_ERR_LOST, &err);
}

bool
idem__flight_was_sent(const struct idem__remote *remote,
                      const struct flight *flight)
{
    return flight->resent ||
           (flight->sent_us && flight->starts_at < remote->written);
}

/* ---- sending ----------------------------------------------------------- */

static bool
put_command(struct idem__remote *remote,
            const struct idem__wire_command *command)
{
    struct idem__wire_plan plan;
    size_t most = idem__wire_plan(command, &plan);
    char *at = (char *)idem_buf_room(&remote->out, most), *end, *result;

    if (!at)
        return false;
    end = idem__wire_put_command(at, command, &plan, &result);
    remote->out.len += (size_t)(end - at);
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

/* If a job is sent again, only the rest of its wait is sent. */
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
fail_without_memory(struct idem_engine *engine, struct flight *flight)
{
    struct idem_error err;

    if (idem__flight_was_sent(engine->remote, flight)) {
        idem__flight_lose(engine, flight, "out of memory to send it again");
        return;
    }
    idem__fail(&err, IDEM_ERR_MEMORY, "out of memory");
    idem__flight_fail(engine, flight, IDEM_ERR_MEMORY, &err);
}

void
idem__flight_send(struct idem_engine *engine, struct flight *flight)
{
    struct idem__remote *remote = engine->remote;
    struct idem__wire_command command = {
        .full = true, .tagged = true, .tag = (int64_t)flight->tag};
    uint64_t at = remote->written + remote->out.len - remote->sent;

    if (idem__flight_job(flight))
        write_job(engine, &command, idem__flight_job(flight));
    else
        write_scan(&command, (struct idem__scan *)flight->item);
    if (!put_command(remote, &command)) {
        fail_without_memory(engine, flight);
        return;
    }
    flight->starts_at = at;
    flight->sent_us = engine->boot_now_us;
}

void
idem__flight_cancel(struct idem__remote *remote, struct flight *flight)
{
    struct idem__wire_args args = {.count = 0};
    uint8_t *room;

    flight->cancelled = flight->cancel_due = remote->cancels_due = true;
    if (!flight->sent_us)
        return;
    idem__wire_add(&args, idem_text("CANCEL"));
    idem__wire_add_number(&args, (int64_t)flight->tag);
    room = idem_buf_room(&remote->out, idem__wire_len(&args));
    if (!room)
        return;
    idem__wire_put(&args, room);
    remote->out.len += idem__wire_len(&args);
    flight->cancel_due = false;
}

void
idem__flights_cancel(struct idem__remote *remote)
{
    bool due = false;

    if (!remote->cancels_due || remote->link.fd < 0)
        return;
    for (struct flight *flight = remote->first; flight; flight = flight->next) {
        if (flight->cancel_due)
            idem__flight_cancel(remote, flight);
        due = due || flight->cancel_due;
    }
    remote->cancels_due = due;
}

static void
cancel(struct idem_engine *engine, uint64_t ticket)
{
    struct idem__remote *remote = engine->remote;
    struct flight *flight = remote->first;
    struct idem_error err;

    while (flight && (!idem__flight_job(flight) ||
                      idem__flight_job(flight)->ticket != ticket))
        flight = flight->next;
    if (!flight || !idem__flight_job(flight)->wait_end_us)
        return;
    if (flight->sent_us || flight->resent) {
        idem__flight_cancel(remote, flight);
    } else {
        idem__fail(&err, IDEM_ERR_CLOSED, "cancelled");
        idem__flight_fail(engine, flight, IDEM_ERR_CLOSED, &err);
    }
}

bool
idem__remote_refuses(const struct idem_engine *engine)
{
    const struct idem__remote *remote = engine->remote;

    return remote->link.fd < 0 && engine->boot_now_us < remote->again_us;
}

/* Give the item a tag and a deadline. False: out of memory. */
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

    if (idem__remote_refuses(engine)) {
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
        idem__flight_send(engine, flight);
}

void
idem__flights_take(struct idem_engine *engine)
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
            idem__cancel_drop(&engine->queue, (struct idem__cancel *)item);
            break;
        case IDEM__ITEM_FIGURES:
            if (((struct idem__asked_figures *)item)->woken)
                idem__word_set(((struct idem__asked_figures *)item)->woken);
            break;
        case IDEM__ITEM_NEWS: /* only a store sends news, and there is none */
            free(item);
            break;
        case IDEM__ITEM_KEPT:
            idem__keeper_over(IDEM__OF(item, struct idem__keeper, end));
            break;
        }
    }
}
