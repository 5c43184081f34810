/*
 * postgres.c - postgres://: records in table idem.idem_record of PostgreSQL.
 *
 * The connection is in postgres_connect.c, swap in postgres_batch.c, the
 * statements in statements.c; this file has all other functions of the store.
 */
#include "postgres.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TIMEOUT_MS 2000
#define TIMEOUT_MAX_MS 600000
#define CHECK_EVERY_US 10000000
#define PLAN_FIRST_US 250000
#define PLAN_MOST_US 10000000
#define PLAN_ROWS 256
#define WATCHED_MAX 128 /* each uses one of the server's locks */

/* ---- one statement --------------------------------------------------- */

bool
idem__postgres_send_confirm(struct postgres_store *self)
{
    return PQsendQueryPrepared(self->conn,
                               idem__postgres_names[POSTGRES_CONFIRM], 0, NULL,
                               NULL, NULL, 1) == 1;
}

enum idem_status
idem__postgres_one(struct postgres_store *self, bool sent, PGresult **rows,
                   struct idem_error *err)
{
    int64_t deadline = idem__postgres_deadline(self);
    enum idem_status status = IDEM_OK;
    bool lost = false;

    *rows = NULL;
    self->warned = false;
    if (!sent || !PQpipelineSync(self->conn) ||
        !idem__postgres_flush(self, deadline))
        lost = true;
    while (!lost) {
        PGresult *result = idem__postgres_result(self, deadline, &lost);
        ExecStatusType is = PQresultStatus(result);

        if (!result || lost) {
            PQclear(result);
            continue;
        }
        if (is == PGRES_FATAL_ERROR && status == IDEM_OK)
            status = idem__postgres_fail(self, result, err);
        if (is == PGRES_TUPLES_OK && !*rows)
            *rows = result;
        else
            PQclear(result);
        if (is == PGRES_PIPELINE_SYNC)
            break;
    }
    if (!lost && !(status == IDEM_OK && self->warned))
        return status;
    PQclear(*rows);
    *rows = NULL;
    if (!lost)
        return idem__fail(err, IDEM_ERR_UNAVAILABLE,
                          "postgres: the server no longer waits for its "
                          "synchronous standby: the wait was cancelled");
    idem__postgres_abandon(self);
    return idem__fail(err, IDEM_ERR_UNAVAILABLE,
                      "postgres: the connection was lost, or the server "
                      "gave no reply in time");
}

static bool
send_plain(struct postgres_store *self, enum postgres_statement statement,
           int count, const char *const *values, const int *lengths)
{
    static const int binary[3] = {1, 1, 1};

    return PQsendQueryPrepared(self->conn, idem__postgres_names[statement],
                               count, values, lengths, binary, 1) == 1;
}

static void
put_count(uint8_t out[8], uint64_t value)
{
    for (int i = 0; i < 8; i++)
        out[i] = (uint8_t)(value >> (56 - 8 * i));
}

/* ---- load, scan, clock ----------------------------------------------- */

static enum idem_status
load_batch(struct idem_store *store, struct idem_load *loads, size_t count,
           struct idem_arena *arena, struct idem_error *err)
{
    struct postgres_store *self = (struct postgres_store *)store;
    enum idem_status status = idem__postgres_connect(self, err);
    struct postgres_params params = {0};
    struct idem_cell cells[IDEM_COLUMN_COUNT];
    PGresult *rows = NULL;

    if (status != IDEM_OK || count == 0)
        return status;
    idem__postgres_params_start(&params, 2);
    for (size_t i = 0; i < count; i++) {
        idem__postgres_add_key(&params, 0, loads[i].key);
        idem__postgres_add_number(&params, 1, POSTGRES_INT2,
                                  loads[i].with_result);
        params.rows++;
    }
    status =
        idem__postgres_one(self,
                           idem__postgres_send(self, POSTGRES_LOAD, &params) &&
                               idem__postgres_send_confirm(self),
                           &rows, err);
    idem__postgres_params_clear(&params);
    if (status == IDEM_OK) {
        for (size_t i = 0; i < count; i++)
            loads[i].record.state = IDEM_STATE_ABSENT;
    }
    for (int row = 0; status == IDEM_OK && row < PQntuples(rows); row++) {
        size_t at = (size_t)idem__postgres_number(rows, row, 0) - 1;
        struct idem_record r;

        idem__postgres_cells(rows, row, 1, IDEM_COLUMN_COUNT, cells);
        status = idem__cells_to_record(cells, &r, err);
        if (status == IDEM_OK &&
            !idem_arena_record(arena, &r, &loads[at].record))
            status =
                idem__fail(err, IDEM_ERR_MEMORY, "postgres: out of memory");
    }
    PQclear(rows);
    return status;
}

static enum idem_status
give_rows(const PGresult *result, struct idem_rows *rows,
          struct idem_error *err)
{
    struct idem_cell cells[IDEM_COLUMN_COUNT];
    enum idem_status status = IDEM_OK;

    for (int row = 0;
         row < PQntuples(result) && status == IDEM_OK && !rows->over; row++) {
        idem__postgres_cells(result, row, 0, IDEM_COLUMN_RESULT, cells);
        status = idem__rows_give(
            rows, cells,
            PQnfields(result) > IDEM_COLUMN_RESULT
                ? idem__postgres_number(result, row, IDEM_COLUMN_RESULT)
                : 0,
            err);
    }
    if (status == IDEM_OK)
        idem__rows_end(rows);
    return status;
}

static enum idem_status
scan_records(struct idem_store *store, const struct idem_query *query,
             struct idem_error *err)
{
    struct postgres_store *self = (struct postgres_store *)store;
    struct idem_bytes id = query->filter->id;
    struct idem_rows rows;
    uint8_t limit[8];
    const char *values[3] = {(const char *)rows.last, (const char *)limit,
                             id.data};
    int lengths[3] = {0, sizeof(limit), (int)id.len};
    enum idem_status status = idem__rows_start(&rows, query, err);
    PGresult *result = NULL;
    bool sent;

    if (status == IDEM_OK)
        status = idem__postgres_connect(self, err);
    if (status != IDEM_OK)
        return status;
    lengths[0] = (int)rows.last_len;
    put_count(limit, rows.limit);
    sent = send_plain(self,
                      id.len > 0       ? POSTGRES_SCAN_ID
                      : rows.executing ? POSTGRES_SCAN_EXECUTING
                                       : POSTGRES_SCAN,
                      id.len > 0 ? 3 : 2, values, lengths) &&
           idem__postgres_send_confirm(self);
    status = idem__postgres_one(self, sent, &result, err);
    if (status == IDEM_OK)
        status = give_rows(result, &rows, err);
    PQclear(result);
    return status;
}

static enum idem_status
read_clock(struct idem_store *store, int64_t *now_us, struct idem_error *err)
{
    struct postgres_store *self = (struct postgres_store *)store;
    enum idem_status status = idem__postgres_connect(self, err);
    PGresult *rows = NULL;

    if (status != IDEM_OK)
        return status;
    status = idem__postgres_one(
        self, send_plain(self, POSTGRES_CLOCK, 0, NULL, NULL), &rows, err);
    if (status == IDEM_OK)
        *now_us = idem__postgres_number(rows, 0, 0);
    PQclear(rows);
    return status;
}

/* ---- tend ------------------------------------------------------------ */

/* A deletion that a crash undoes is done again, so the commit does not wait for
 * the disk or a standby. The next batch begins where this one ended, because
 * the index still has what was deleted until the server vacuums it. */
static bool
sweep(struct idem_store *store, int64_t drop_ms, size_t most, size_t *gone)
{
    struct postgres_store *self = (struct postgres_store *)store;
    uint8_t numbers[3][8];
    const char *values[3] = {(const char *)numbers[0], (const char *)numbers[1],
                             (const char *)numbers[2]};
    int lengths[3] = {8, 8, 8};
    PGresult *rows = NULL;

    if (!self->conn)
        return false;
    put_count(numbers[0], most);
    put_count(numbers[1], (uint64_t)drop_ms);
    put_count(numbers[2], (uint64_t)self->sweep_from);
    if (idem__postgres_one(self,
                           send_plain(self, POSTGRES_SWEEP, 3, values, lengths),
                           &rows, NULL) != IDEM_OK) {
        self->sweep_from = 0;
        return self->conn != NULL;
    }
    *gone = (size_t)idem__postgres_number(rows, 0, 0);
    self->sweep_from = *gone == most ? idem__postgres_number(rows, 0, 1) : 0;
    PQclear(rows);
    return true;
}

/* Say what a commit waits for, if `opening`, and warn if it is not there.
 * Returns 0, or the number of missing standbys as a negative number. */
static int
say_needed(const struct postgres_store *self, const PGresult *rows,
           bool opening)
{
    const char *names = PQgetvalue(rows, 0, 0);
    int has = (int)strtol(PQgetvalue(rows, 0, 2), NULL, 10);
    int needs = (int)strtol(PQgetvalue(rows, 0, 3), NULL, 10);

    if (opening)
        idem__log(&self->base.options, IDEM_LOG_INFO,
                  "postgres: a commit waits for %s (synchronous_standby_names)",
                  names);
    if (has >= needs)
        return 0;
    if (has - needs == self->said_standbys)
        return self->said_standbys;
    if (has == 0)
        idem__log(&self->base.options, IDEM_LOG_WARNING,
                  "postgres: no standby that synchronous_standby_names "
                  "(%.200s) names is connected and streaming: every request "
                  "fails until %d %s",
                  names, needs, needs == 1 ? "is" : "are");
    else
        idem__log(&self->base.options, IDEM_LOG_WARNING,
                  "postgres: only %d of the standbys that "
                  "synchronous_standby_names (%.200s) names %s connected and "
                  "streaming: every request fails until %d are",
                  has, names, has == 1 ? "is" : "are", needs);
    return has - needs;
}

/* Warn once for each number of standbys that no commit waits for, or that are
 * missing; `opening`: also say what a commit waits for. A role that may not
 * look is not told. */
static void
say_standbys(struct postgres_store *self, bool opening)
{
    const char *statement = idem__postgres_names[POSTGRES_STANDBYS];
    PGresult *rows = NULL;
    int has;

    if (idem__word_in(self->unsafe, "synchronous_commit") ||
        idem__postgres_one(self,
                           PQsendQueryPrepared(self->conn, statement, 0, NULL,
                                               NULL, NULL, 0) == 1,
                           &rows, NULL) != IDEM_OK ||
        PQntuples(rows) != 1) {
        PQclear(rows);
        return;
    }
    if (*PQgetvalue(rows, 0, 0))
        has = say_needed(self, rows, opening);
    else
        has = (int)strtol(PQgetvalue(rows, 0, 1), NULL, 10);
    if (has > 0 && has != self->said_standbys)
        idem__log(&self->base.options, IDEM_LOG_WARNING,
                  "postgres: %d %s connected and synchronous_standby_names is "
                  "empty: a failover to %s loses the last claims, and their "
                  "requests run again (docs/stores.md)",
                  has, has == 1 ? "standby is" : "standbys are",
                  has == 1 ? "it" : "one of them");
    self->said_standbys = has;
    PQclear(rows);
}

/* A server can be reconfigured, or become a standby, while idem is running. */
static void
check(struct postgres_store *self, int64_t now_us)
{
    struct idem_error err;
    PGresult *rows;

    if (now_us - self->checked_at_us < CHECK_EVERY_US)
        return;
    self->checked_at_us = now_us;
    if (idem__postgres_one(self, idem__postgres_send_check(self), &rows,
                           NULL) == IDEM_OK &&
        idem__postgres_judge(self, rows, &err) != IDEM_OK) {
        idem__log(&self->base.options, IDEM_LOG_ALARM, "%s", err.text);
        idem__postgres_disconnect(self);
    }
    PQclear(rows);
    if (self->conn)
        say_standbys(self, false);
}

/* The server plans a statement once. If the table was nearly empty then, and
 * was vacuumed, the plan reads the whole table, and stays as the table grows,
 * until the server analyzes it. So plan again soon after rows were written, and
 * then ever more seldom. */
static void
plan_again(struct postgres_store *self, int64_t now_us)
{
    PGresult *rows = NULL;

    if (self->plan_after_us == 0) {
        self->plan_after_us = PLAN_FIRST_US;
        self->planned_at_us = now_us;
    }
    if (self->written < PLAN_ROWS ||
        now_us - self->planned_at_us < self->plan_after_us)
        return;
    (void)idem__postgres_one(
        self, send_plain(self, POSTGRES_PLANS, 0, NULL, NULL), &rows, NULL);
    PQclear(rows);
    self->written = 0;
    self->planned_at_us = now_us;
    if (self->plan_after_us < PLAN_MOST_US)
        self->plan_after_us *= 2;
}

static void
tend(struct idem_store *store, int64_t drop_ms)
{
    struct postgres_store *self = (struct postgres_store *)store;
    int64_t now_us = idem__store_boot_us(&self->base);

    (void)drop_ms;
    if (self->conn)
        check(self, now_us);
    if (self->conn)
        plan_again(self, now_us);
}

static void
figures(struct idem_store *store, idem_figure_fn *each, void *arg)
{
    struct postgres_store *self = (struct postgres_store *)store;

    each(arg, "postgres_connected", self->conn ? 1 : 0);
    each(arg, "postgres_connects_total", (double)self->connects);
    each(arg, "postgres_splits_total", (double)self->splits);
}

/* ---- open and close -------------------------------------------------- */

static void
close_store(struct idem_store *store)
{
    struct postgres_store *self = (struct postgres_store *)store;

    idem__watcher_close(&self->watcher);
    idem__postgres_disconnect(self);
    free(self->url);
}

static enum idem_status
parse_store(struct idem_store *store, const char *url, struct idem_error *err)
{
    struct postgres_store *self = (struct postgres_store *)store;
    int64_t timeout_ms = TIMEOUT_MS;
    PQconninfoOption *parsed;
    char shown[200], *why = NULL;
    bool timed, taken;

    idem__watcher_open(&self->watcher, &self->base, WATCHED_MAX,
                       idem__postgres_listen);
    self->url = idem__url_escape(url);
    if (!self->url)
        return idem__fail(err, IDEM_ERR_MEMORY, "postgres: out of memory");
    idem__url_take(self->url, "unsafe", self->unsafe, sizeof(self->unsafe));
    timed = idem__url_take_number(self->url, "timeout_ms", 10, TIMEOUT_MAX_MS,
                                  &timeout_ms);
    self->timeout_us = timeout_ms * 1000;
    parsed = PQconninfoParse(self->url, &why);
    taken = parsed != NULL;
    /* libpq's own message may contain the password. */
    PQfreemem(why);
    PQconninfoFree(parsed);
    idem__url_redact(url, shown, sizeof(shown));
    if (!timed)
        return idem__fail(err, IDEM_ERR_INVALID,
                          "\"%s\": timeout_ms is a number from 10 to %d", shown,
                          TIMEOUT_MAX_MS);
    if (!taken)
        return idem__fail(err, IDEM_ERR_INVALID,
                          "\"%s\" is not a URL that PostgreSQL takes: write "
                          "postgres://user:password@host:5432/database",
                          shown);
    return IDEM_OK;
}

static enum idem_status
open_store(struct idem_store *store, const char *url, struct idem_error *err)
{
    struct postgres_store *self = (struct postgres_store *)store;
    enum idem_status status = parse_store(store, url, err);

    if (status == IDEM_OK)
        status = idem__postgres_connect(self, err);
    if (status == IDEM_OK && self->unsafe[0])
        idem__log(
            &store->options, IDEM_LOG_WARNING,
            "postgres: unsafe=%s: a power cut may lose acknowledged records",
            self->unsafe);
    if (status == IDEM_OK)
        say_standbys(self, true);
    return status;
}

static enum idem_status
init_store(struct idem_store *store, const char *url, struct idem_error *err)
{
    struct postgres_store *self = (struct postgres_store *)store;
    enum idem_status status = parse_store(store, url, err);
    PGresult *result;

    if (status == IDEM_OK)
        status = idem__postgres_connect_bare(self, err);
    if (status != IDEM_OK)
        return status;
    result = PQexec(self->conn, idem__postgres_script);
    if (PQresultStatus(result) == PGRES_FATAL_ERROR)
        status = idem__postgres_fail(self, result, err);
    PQclear(result);
    return status;
}

const struct idem_store_type idem__postgres_store = {
    .scheme = "postgres",
    .size = sizeof(struct postgres_store),
    .share = 32, /* bench/notes.md: from here on two connections are faster */
    .parse = parse_store,
    .open = open_store,
    .swap = idem__postgres_swap,
    .load = load_batch,
    .scan = scan_records,
    .now = read_clock,
    .tend = tend,
    .sweep = sweep,
    .watch = idem__postgres_watch,
    .figures = figures,
    .close = close_store,
    .init = init_store,
};
