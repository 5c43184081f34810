/*
 * http_stats.c - an hour of figures for the console: a row of numbers every
 * second, in a ring.
 *
 *   sampler: once a second reads counters, which never blocks, and makes a row
 *       of the differences; listeners get it at once (http_events.c)
 *   asker:   every few seconds asks the store for its own figures, which may
 *       block if the store hangs; the sampler uses the latest figures, and
 *       their age shows whether the store answers
 */
#include "../../base/url.h"
#include "../../base/wait.h"
#include "../../engine/engine.h"
#include "../../id/id.h"
#include "../../store/store.h"
#include "../core/doubts.h"
#include "http_inner.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define KEPT 3600
#define ROW_MS 1000
#define ASK_MS 5000
#define LOOK_MS 5000    /* between two scans, if somebody listens */
#define PATIENCE_MS 300 /* at shutdown, for the store to answer */
#define STORE_SILENT_MS (3 * ASK_MS)
#define ROW_ROOM 4096

/* The columns of a row, after its time; then come p50 and p99 of each verb, in
 * ms. Rates are per second. */
#define COLUMN_MAP(X)                                                          \
    X(FIRST, "first")                                                          \
    X(REPLAYED, "replayed")                                                    \
    X(BUSY, "busy")                                                            \
    X(MISMATCH, "mismatch")                                                    \
    X(REFUSED, "refused")                                                      \
    X(DOUBT, "doubt")                                                          \
    X(ERRORS, "errors")                                                        \
    X(COMMITS, "commits")                                                      \
    X(WRITES, "writes")                                                        \
    X(STORE_ERRORS, "store_errors")                                            \
    X(QUEUED, "queued")                                                        \
    X(PARKED, "parked")                                                        \
    X(CLIENTS, "clients")                                                      \
    X(DOUBTS, "doubts")                                                        \
    X(OLDEST, "oldest_doubt_s")                                                \
    X(CLOCK, "clock_alarm")                                                    \
    X(STORE, "store_answers")                                                  \
    X(RECORDS, "records")                                                      \
    X(LIVE, "live_bytes")                                                      \
    X(USED, "used_bytes")

enum stats_column {
#define X(name, text) COLUMN_##name,
    COLUMN_MAP(X)
#undef X
        COLUMN_P50,
    COLUMN_P99 = COLUMN_P50 + IDEM__VERB_COUNT,
    COLUMN_COUNT = COLUMN_P99 + IDEM__VERB_COUNT
};

static const char *const column_names[] = {
#define X(name, text) text,
    COLUMN_MAP(X)
#undef X
};

struct stats_row {
    int64_t time_ms; /* since 1970 */
    float values[COLUMN_COUNT];
};

/* Counters as of the last row. */
struct before {
    struct idem__stats stats;
    uint64_t buckets[IDEM__VERB_COUNT][METRICS_BUCKETS];
    int64_t at_ms;
};

struct http_stats {
    struct http *http;
    pthread_t sampler, asker;
    bool sampling, asking;
    pthread_mutex_t lock;
    pthread_cond_t stir;
    bool over, hangs; /* hangs: the asker waits for the store */
    int64_t answered_ms;
    float records, live, used; /* of the store */
    struct before before;      /* this and what follows: sampler only */
    uint64_t look;             /* the scan that was asked for; 0: none */
    int64_t look_next_ms;
    uint64_t count;
    struct stats_row rows[KEPT]; /* the next goes to count % KEPT */
};

/* ---- a row ----------------------------------------------------------- */

/* The time within which this share of the answers came, in ms. */
static float
quantile(const uint64_t buckets[METRICS_BUCKETS], double share)
{
    uint64_t all = 0, seen = 0;

    for (size_t i = 0; i < METRICS_BUCKETS; i++)
        all += buckets[i];
    for (size_t i = 0; i < METRICS_BUCKETS && all > 0; i++) {
        double low = i > 0 ? (double)METRICS_BUCKET_US(i - 1) : 0;
        double high = (double)METRICS_BUCKET_US(i);

        if ((double)(seen + buckets[i]) >= share * (double)all)
            return (float)((low + (high - low) *
                                      (share * (double)all - (double)seen) /
                                      (double)buckets[i]) /
                           1000);
        seen += buckets[i];
    }
    return NAN;
}

static void
add_latency(struct http_stats *self, struct stats_row *row)
{
    const struct server_metrics *metrics = self->http->server->metrics;

    for (size_t v = 0; v < IDEM__VERB_COUNT; v++) {
        uint64_t *before = self->before.buckets[v], grew[METRICS_BUCKETS];

        for (size_t i = 0; i < METRICS_BUCKETS; i++) {
            uint64_t now = metrics_read(&metrics->latency[v].bucket[i]);

            grew[i] = now - before[i];
            before[i] = now;
        }
        row->values[COLUMN_P50 + v] = quantile(grew, 0.5);
        row->values[COLUMN_P99 + v] = quantile(grew, 0.99);
    }
}

/* The line of the chart that a verdict belongs to; COLUMN_COUNT: none. */
static enum stats_column
column_of(enum idem_verdict verdict)
{
    switch (verdict) {
    case IDEM_V_STARTED:
    case IDEM_V_REDEEMED:
        return COLUMN_FIRST;
    case IDEM_V_REPLAY:
        return COLUMN_REPLAYED;
    case IDEM_V_BUSY:
        return COLUMN_BUSY;
    case IDEM_V_MISMATCH:
        return COLUMN_MISMATCH;
    case IDEM_V_DOUBT:
        return COLUMN_DOUBT;
    case IDEM_V_STALE:
    case IDEM_V_FINISHED:
    case IDEM_V_DUPLICATE:
    case IDEM_V_UNKNOWN:
        return COLUMN_REFUSED;
    default:
        return COLUMN_COUNT;
    }
}

static void
add_rates(struct http_stats *self, const struct idem__stats *now,
          struct stats_row *row)
{
    const struct idem__stats *then = &self->before.stats;
    int64_t at_ms = idem__mono_ms();
    double took = (double)(at_ms - self->before.at_ms) / 1000;
    double rates[COLUMN_COUNT] = {0};

    for (int i = 0; i < IDEM__VERDICT_COUNT; i++) {
        enum stats_column column = column_of((enum idem_verdict)i);

        if (column < COLUMN_COUNT)
            rates[column] += (double)(now->verdicts[i] - then->verdicts[i]);
    }
    for (int i = 1; i < IDEM__STATUS_COUNT; i++)
        rates[COLUMN_ERRORS] += (double)(now->errors[i] - then->errors[i]);
    rates[COLUMN_COMMITS] = (double)(now->batches - then->batches);
    rates[COLUMN_WRITES] = (double)(now->batched - then->batched);
    rates[COLUMN_STORE_ERRORS] =
        (double)(now->store_errors - then->store_errors);
    for (int i = 0; i <= COLUMN_STORE_ERRORS; i++)
        row->values[i] = (float)(took > 0 ? rates[i] / took : 0);
    self->before.stats = *now;
    self->before.at_ms = at_ms;
}

static void
add_levels(struct http_stats *self, const struct idem__stats *now,
           struct stats_row *row)
{
    struct server *server = self->http->server;
    float *values = row->values;
    uint64_t doubts = 0;
    double oldest = 0;
    bool looked = doubts_read(server->doubts, &doubts, &oldest) > 0;

    values[COLUMN_QUEUED] = (float)now->queued;
    values[COLUMN_PARKED] = (float)now->parked;
    values[COLUMN_CLIENTS] = (float)atomic_load(&server->metrics->clients) +
                             (float)atomic_load(&self->http->client_count);
    values[COLUMN_DOUBTS] = looked ? (float)doubts : NAN;
    values[COLUMN_OLDEST] = looked ? (float)oldest : NAN;
    values[COLUMN_CLOCK] = now->clock_alarm;
    pthread_mutex_lock(&self->lock);
    values[COLUMN_STORE] =
        idem__mono_ms() - self->answered_ms < STORE_SILENT_MS;
    values[COLUMN_RECORDS] = self->records;
    values[COLUMN_LIVE] = self->live;
    values[COLUMN_USED] = self->used;
    pthread_mutex_unlock(&self->lock);
}

static void
put_row(struct idem_buf *out, const struct stats_row *row)
{
    idem_buf_printf(out, "[%" PRId64, row->time_ms);
    for (size_t i = 0; i < COLUMN_COUNT; i++) {
        if (isnan(row->values[i]))
            idem_buf_add_text(out, ",null");
        else
            idem_buf_printf(out, ",%.6g", (double)row->values[i]);
    }
    idem_buf_add_text(out, "]");
}

static void
look_for_doubts(struct http_stats *self)
{
    struct doubts *doubts = self->http->server->doubts;
    int64_t now = idem__mono_ms();

    if (self->look > 0 && !doubts_pending(doubts, self->look)) {
        self->look_next_ms = now + LOOK_MS;
        self->look = 0;
    }
    if (self->look == 0 && now >= self->look_next_ms)
        self->look = doubts_want(doubts, false);
}

static void
sample(struct http_stats *self)
{
    struct idem__stats now = {0};
    struct stats_row row = {.time_ms = 0};
    struct timespec time;
    struct idem_buf text;

    idem__stats(self->http->server->engine, &now);
    clock_gettime(CLOCK_REALTIME, &time);
    row.time_ms = (int64_t)time.tv_sec * 1000 + time.tv_nsec / 1000000;
    add_rates(self, &now, &row);
    add_levels(self, &now, &row);
    add_latency(self, &row);
    pthread_mutex_lock(&self->lock);
    self->rows[self->count++ % KEPT] = row;
    pthread_mutex_unlock(&self->lock);
    if (http_events_wanted(self->http)) {
        look_for_doubts(self);
        idem_buf_init(&text, ROW_ROOM);
        idem_buf_add_text(&text, "data: ");
        put_row(&text, &row);
        idem_buf_add_text(&text, "\n\n");
        if (!text.lacks)
            http_events_send(self->http, (const char *)text.data, text.len);
        idem_buf_clear(&text);
    }
}

static void *
run_sampler(void *arg)
{
    struct http_stats *self = arg;
    struct timespec until = idem__deadline(ROW_MS * 1000);

    pthread_mutex_lock(&self->lock);
    while (!self->over) {
        if (pthread_cond_timedwait(&self->stir, &self->lock, &until) == 0)
            continue;
        pthread_mutex_unlock(&self->lock);
        sample(self);
        pthread_mutex_lock(&self->lock);
        until = idem__deadline(ROW_MS * 1000);
    }
    pthread_mutex_unlock(&self->lock);
    return NULL;
}

/* ---- the store's own figures ----------------------------------------- */

static void
take_figure(void *arg, const char *name, double value)
{
    float *figures = arg;
    size_t len = strlen(name);

    if (len >= 8 && strcmp(name + len - 8, "_records") == 0)
        figures[0] = (float)value;
    else if (strcmp(name, "journal_live_bytes") == 0)
        figures[1] = (float)value;
    else if (strcmp(name, "journal_used_bytes") == 0)
        figures[2] = (float)value;
}

static void *
run_asker(void *arg)
{
    struct http_stats *self = arg;

    pthread_mutex_lock(&self->lock);
    while (!self->over) {
        float figures[3] = {NAN, NAN, NAN};
        struct timespec until;

        self->hangs = true;
        pthread_mutex_unlock(&self->lock);
        idem__store_figures(self->http->server->engine, take_figure, figures);
        pthread_mutex_lock(&self->lock);
        self->hangs = false;
        self->records = figures[0];
        self->live = figures[1];
        self->used = figures[2];
        self->answered_ms = idem__mono_ms();
        pthread_cond_broadcast(&self->stir);
        until = idem__deadline(ASK_MS * 1000);
        while (!self->over &&
               pthread_cond_timedwait(&self->stir, &self->lock, &until) == 0)
            ;
    }
    pthread_mutex_unlock(&self->lock);
    return NULL;
}

/* ---- opening, reading, closing --------------------------------------- */

struct http_stats *
http_stats_open(struct http *http)
{
    struct http_stats *self = calloc(1, sizeof(*self));

    if (!self)
        return NULL;
    self->http = http;
    self->records = self->live = self->used = NAN;
    self->answered_ms = self->before.at_ms = idem__mono_ms();
    idem__stats(http->server->engine, &self->before.stats);
    pthread_mutex_init(&self->lock, NULL);
    idem__cond_init(&self->stir);
    self->sampling =
        pthread_create(&self->sampler, NULL, run_sampler, self) == 0;
    self->asking = pthread_create(&self->asker, NULL, run_asker, self) == 0;
    if (self->sampling && self->asking)
        return self;
    http_stats_close(self);
    return NULL;
}

void
http_stats_close(struct http_stats *self)
{
    struct timespec until = idem__deadline(PATIENCE_MS * 1000);
    bool hangs;

    if (!self)
        return;
    pthread_mutex_lock(&self->lock);
    self->over = true;
    pthread_cond_broadcast(&self->stir);
    while (self->hangs &&
           pthread_cond_timedwait(&self->stir, &self->lock, &until) == 0)
        ;
    hangs = self->hangs;
    pthread_mutex_unlock(&self->lock);
    if (self->sampling)
        pthread_join(self->sampler, NULL);
    if (self->asking && hangs) {
        /* The thread is left running with the memory it may still use, because
         * the process exits anyway. */
        pthread_detach(self->asker);
        return;
    }
    if (self->asking)
        pthread_join(self->asker, NULL);
    pthread_cond_destroy(&self->stir);
    pthread_mutex_destroy(&self->lock);
    free(self);
}

static void
put_names(struct idem_buf *out)
{
    idem_buf_add_text(out, "\"names\":[\"time\"");
    for (size_t i = 0; i < COLUMN_P50; i++)
        idem_buf_printf(out, ",\"%s\"", column_names[i]);
    for (int i = 0; i < 2 * IDEM__VERB_COUNT; i++)
        idem_buf_printf(out, ",\"%s_%s\"", i < IDEM__VERB_COUNT ? "p50" : "p99",
                        idem_verb_name((enum idem_verb)(i % IDEM__VERB_COUNT)));
    idem_buf_add_text(out, "]");
}

static json_t *
ids_facts(struct server *server)
{
    struct idem__ids_figures f;
    json_t *all = json_array();

    idem__ids_figures(server->ids, &f);
    for (int i = 0; i < 3; i++)
        json_array_append_new(
            all, json_pack("{s:s, s:I, s:I, s:I, s:I}", "kind",
                           idem_id_kind_name((enum idem_id_kind)i), "given",
                           (json_int_t)f.given[i], "reserved",
                           (json_int_t)f.reserved[i], "worker",
                           i < 2 ? (json_int_t)f.worker[i] : -1, "ahead_ms",
                           i < 2 ? (json_int_t)f.ahead_ms[i] : 0));
    return json_pack("{s:o, s:I, s:I, s:I}", "kinds", all, "segments",
                     (json_int_t)f.names, "step", (json_int_t)f.step, "ranges",
                     (json_int_t)f.ranges);
}

static void
put_facts(struct idem_buf *out, struct http *http)
{
    struct server *server = http->server;
    struct http_process process;
    char store[512], *text;

    idem__json_begin();
    idem__url_redact(server->config->store, store, sizeof(store));
    http_process_figures(server->metrics->start_us, &process);
    text = idem__json_text(json_pack(
        "{s:s, s:s, s:f, s:f, s:I, s:b, s:o}", "version", IDEM_VERSION, "store",
        store, "start_s", process.start_s, "resident", process.resident,
        "max_result", (json_int_t)server->config->max_result, "gateway",
        server->config->gateway_routes != NULL, "ids", ids_facts(server)));
    if (text)
        idem_buf_printf(out, ",\"facts\":%s", text);
    out->lacks |= !text;
    free(text);
}

bool
http_stats_put(struct http *http, size_t seconds, struct idem_buf *out)
{
    struct http_stats *self = http->stats;
    uint64_t from;

    idem_buf_add_text(out, "{\"verdict\":\"stats\",");
    put_names(out);
    put_facts(out, http);
    idem_buf_add_text(out, ",\"samples\":[");
    assert(seconds <= KEPT); /* the limit of the field */
    pthread_mutex_lock(&self->lock);
    from = self->count > seconds ? self->count - seconds : 0;
    for (uint64_t i = from; i < self->count; i++) {
        if (i > from)
            idem_buf_add_text(out, ",");
        put_row(out, &self->rows[i % KEPT]);
    }
    pthread_mutex_unlock(&self->lock);
    idem_buf_add_text(out, "]}");
    return !out->lacks;
}
