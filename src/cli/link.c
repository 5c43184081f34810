/*
 * link.c - choosing the way to the records, and the engine of this process as
 * one of them.
 */
#include "link.h"

#include <stdlib.h>

struct engine_link {
    struct cli_link base;
    struct idem_engine *engine;
};

static bool
is_nothing(const struct idem_answer *answer)
{
    return answer->record.state == IDEM_STATE_ABSENT &&
           (answer->verdict == IDEM_V_STALE ||
            answer->verdict == IDEM_V_ABSENT_NOW);
}

/* Among requests and, where there is none, among tokens. */
static enum idem_status
look_up(struct engine_link *self, struct idem_op *op,
        struct idem_answer *answer, struct idem_error *err)
{
    enum idem_status status = idem_do(self->engine, op, answer, err);

    if (status != IDEM_OK || !is_nothing(answer))
        return status;
    idem_answer_clear(answer);
    op->type = IDEM_TYPE_TOKEN;
    return idem_do(self->engine, op, answer, err);
}

/* SETTLE writes where nothing is, so it looks first. */
static enum idem_status
settle(struct engine_link *self, struct idem_op *op, struct idem_answer *answer,
       struct idem_error *err)
{
    struct idem_op get = {.verb = IDEM_GET, .scope = op->scope, .id = op->id};
    enum idem_status status = look_up(self, &get, answer, err);

    if (status != IDEM_OK)
        return status;
    if (!is_nothing(answer))
        op->type = get.type;
    idem_answer_clear(answer);
    return idem_do(self->engine, op, answer, err);
}

/* As a server does: a scope and id find a token too, unless a type is named. */
static enum idem_status
run_op(struct cli_link *link, const struct idem_op *op,
       struct idem_answer *answer, struct idem_error *err)
{
    struct engine_link *self = (struct engine_link *)link;
    struct idem_op copy = *op;

    if (op->type != 0)
        return idem_do(self->engine, op, answer, err);
    switch (op->verb) {
    case IDEM_SETTLE:
        return settle(self, &copy, answer, err);
    case IDEM_FINISH:
    case IDEM_RELEASE:
    case IDEM_RENEW:
    case IDEM_GET:
    case IDEM_FORGET:
        return look_up(self, &copy, answer, err);
    default:
        return idem_do(self->engine, op, answer, err);
    }
}

/* An engine that has just started takes no lease for over before it has
 * watched that long. For a listing, the store's clock is good enough. */
struct doubts {
    int64_t now_ms;
    idem_each_fn *each;
    void *arg;
};

static bool
each_doubt(void *arg, const struct idem_record *record)
{
    struct doubts *doubts = arg;

    return record->lease_until > doubts->now_ms ||
           doubts->each(doubts->arg, record);
}

static enum idem_status
scan_records(struct cli_link *link, const struct idem_filter *filter,
             struct idem_cursor *cursor, size_t count, idem_each_fn *each,
             void *arg, struct idem_error *err)
{
    struct engine_link *self = (struct engine_link *)link;
    struct idem_filter executing = *filter;
    struct doubts doubts = {.each = each, .arg = arg};
    struct idem_stats stats;

    if (!filter->doubt)
        return idem_scan(self->engine, filter, cursor, count, each, arg, err);
    if (filter->state != 0 && filter->state != IDEM_STATE_EXECUTING)
        return idem__fail(err, IDEM_ERR_INVALID,
                          "only what is executing can be in doubt");
    idem_stats(self->engine, &stats);
    doubts.now_ms = stats.now_ms;
    executing.doubt = false;
    executing.state = IDEM_STATE_EXECUTING;
    return idem_scan(self->engine, &executing, cursor, count, each_doubt,
                     &doubts, err);
}

static size_t
max_result(struct cli_link *link)
{
    struct engine_link *self = (struct engine_link *)link;
    struct idem_stats stats;

    idem_stats(self->engine, &stats);
    return stats.max_result;
}

static void
close_link(struct cli_link *link)
{
    struct engine_link *self = (struct engine_link *)link;

    idem_close(self->engine);
    free(self);
}

enum idem_status
cli_engine_link_open(const char *url, struct cli_link **link,
                     struct idem_error *err)
{
    struct idem_options options = {.max_result = IDEM_RESULT_MAX};
    struct engine_link *self = calloc(1, sizeof(*self));
    enum idem_status status;

    if (!self)
        return idem__fail(err, IDEM_ERR_MEMORY, "out of memory");
    self->base.run = run_op;
    self->base.scan = scan_records;
    self->base.max_result = max_result;
    self->base.close = close_link;
    status = idem_open(url, &options, &self->engine, err);
    if (status != IDEM_OK) {
        free(self);
        return status;
    }
    *link = &self->base;
    return IDEM_OK;
}

const char *
cli_store_url(const struct cli_where *where)
{
    const char *server = getenv("IDEM_SERVER");
    const char *url = where->store;

    if (!url && !where->server && !(server && *server))
        url = getenv("IDEM_STORE");
    return url && *url ? url : NULL;
}

enum idem_status
cli_link_open(const struct cli_where *where, struct cli_link **link,
              struct idem_error *err)
{
    const char *url = cli_store_url(where);

    if (where->store && where->server)
        return idem__fail(err, IDEM_ERR_INVALID,
                          "give --server or --store, not both");
    return url ? cli_engine_link_open(url, link, err)
               : cli_server_link_open(where, link, err);
}

void
cli_link_close(struct cli_link *link)
{
    if (link)
        link->close(link);
}
