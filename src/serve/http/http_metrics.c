/*
 * http_metrics.c - figures for Prometheus (text format 0.0.4).
 *
 * Counters end in _total and only grow. Whether all of the text found room is
 * checked once, in the end.
 */
#include "../../engine/engine.h"
#include "../../id/id.h"
#include "../core/doubts.h"
#include "http_inner.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* How long a reader waits for a scan that it started. */
#define PATIENCE_MS 300
#define NAP_NS (5 * 1000000L)

void
http_put_head(struct idem_buf *out, const char *name, const char *type,
              const char *help)
{
    idem_buf_printf(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name,
                    type);
}

static void
single(struct idem_buf *out, const char *name, const char *type,
       const char *help, double value)
{
    http_put_head(out, name, type, help);
    if (isnan(value))
        idem_buf_printf(out, "%s NaN\n", name);
    else
        idem_buf_printf(out, "%s %.17g\n", name, value);
}

static void
add_verdicts(struct idem_buf *out, const struct idem__stats *stats)
{
    http_put_head(out, "idem_verdicts_total", "counter",
                  "Operations, by verdict.");
    for (int i = 0; i < IDEM__VERDICT_COUNT; i++)
        idem_buf_printf(
            out, "idem_verdicts_total{verdict=\"%s\"} %" PRIu64 "\n",
            idem_verdict_name((enum idem_verdict)i), stats->verdicts[i]);
    http_put_head(out, "idem_errors_total", "counter",
                  "Operations that ended in an error, by kind.");
    for (int i = 1; i < IDEM__STATUS_COUNT; i++)
        idem_buf_printf(out, "idem_errors_total{error=\"%s\"} %" PRIu64 "\n",
                        idem_status_name((enum idem_status)i),
                        stats->errors[i]);
}

void
http_put_histogram(struct idem_buf *out, const char *name, const char *label,
                   const uint64_t *bucket, size_t buckets, double first_s,
                   double sum_s)
{
    uint64_t count = 0;

    for (size_t i = 0; i < buckets; i++) {
        count += bucket[i];
        if (i < buckets - 1)
            idem_buf_printf(out, "%s_bucket{%s,le=\"%.6g\"} %" PRIu64 "\n",
                            name, label, first_s * (double)(UINT64_C(1) << i),
                            count);
    }
    idem_buf_printf(out,
                    "%s_bucket{%s,le=\"+Inf\"} %" PRIu64
                    "\n%s_sum{%s} %.17g\n%s_count{%s} %" PRIu64 "\n",
                    name, label, count, name, label, sum_s, name, label, count);
}

static void
add_verb(struct idem_buf *out, const char *verb,
         const struct metrics_histogram *histogram)
{
    uint64_t bucket[METRICS_BUCKETS];
    char label[32];

    snprintf(label, sizeof(label), "verb=\"%s\"", verb);
    for (size_t i = 0; i < METRICS_BUCKETS; i++)
        bucket[i] = metrics_read(&histogram->bucket[i]);
    http_put_histogram(out, "idem_operation_seconds", label, bucket,
                       METRICS_BUCKETS, METRICS_BUCKET_US(0) / 1e6,
                       (double)metrics_read(&histogram->sum_us) / 1e6);
}

static void
add_latency(struct idem_buf *out, const struct server_metrics *metrics)
{
    http_put_head(out, "idem_operation_seconds", "histogram",
                  "From the arrival of an operation to its reply, by verb.");
    for (int i = 0; i < IDEM__VERB_COUNT; i++)
        add_verb(out, idem_verb_name((enum idem_verb)i), &metrics->latency[i]);
}

static void
add_batches(struct idem_buf *out, const struct idem__stats *stats)
{
    static const char name[] = "idem_batch_writes";
    uint64_t count = 0;

    http_put_head(out, name, "histogram", "Commits to the store, by writes.");
    for (size_t i = 0; i < IDEM__BATCH_SIZES; i++) {
        count += stats->batch_sizes[i];
        if (i < IDEM__BATCH_SIZES - 1)
            idem_buf_printf(out, "%s_bucket{le=\"%d\"} %" PRIu64 "\n", name,
                            1 << i, count);
    }
    idem_buf_printf(out,
                    "%s_bucket{le=\"+Inf\"} %" PRIu64 "\n%s_sum %" PRIu64
                    "\n%s_count %" PRIu64 "\n",
                    name, count, name, stats->batched, name, count);
}

static void
add_engine(struct idem_buf *out, const struct idem__stats *stats)
{
    add_batches(out, stats);
    single(out, "idem_store_errors_total", "counter",
           "Commits that the store refused.", (double)stats->store_errors);
    single(out, "idem_queued", "gauge", "Operations that wait for a batch.",
           (double)stats->queued);
    single(out, "idem_parked", "gauge",
           "Waiting duplicates and callers that wait for a lock.",
           (double)stats->parked);
    single(out, "idem_locks_waiting", "gauge",
           "Callers that wait for a lock; idem_parked counts them too.",
           (double)stats->locks_waiting);
    single(out, "idem_records_vanished_total", "counter",
           "Live claims of this engine that the store has lost.",
           (double)stats->vanished);
    single(out, "idem_store_rolled_back", "gauge",
           "1 while strict requests are refused because the store went back.",
           stats->rolled_back);
    single(out, "idem_store_rollbacks_total", "counter",
           "How often the store went back to an older state.",
           (double)stats->rollbacks);
    single(out, "idem_over_quota_total", "counter",
           "Claims that scope-records or scope-bytes refused.",
           (double)stats->over_quota);
    single(out, "idem_clock_alarm", "gauge",
           "1 after a clock jumped: nothing expires early or is swept.",
           stats->clock_alarm);
}

static void
add_gateway(struct idem_buf *out, const struct server_config *config)
{
    const char *restarts = getenv("IDEM_GATEWAY_RESTARTS");

    single(out, "idem_gateway_engine_restarts_total", "counter",
           "Times that idem gateway has started its engine again.",
           restarts ? strtod(restarts, NULL) : 0);
    http_put_gateway(out, config->gateway_figures);
}

static void
add_surfaces(struct idem_buf *out, struct http *http)
{
    const struct server_metrics *m = http->server->metrics;

    http_put_head(out, "idem_operations_total", "counter",
                  "Operations accepted, by surface.");
    idem_buf_printf(out,
                    "idem_operations_total{surface=\"resp\"} %" PRIu64
                    "\nidem_operations_total{surface=\"http\"} %" PRIu64 "\n",
                    metrics_read(&m->operations[METRICS_RESP]),
                    metrics_read(&m->operations[METRICS_HTTP]));
    http_put_head(out, "idem_clients", "gauge",
                  "Open connections, by surface.");
    idem_buf_printf(out,
                    "idem_clients{surface=\"resp\"} "
                    "%lld\nidem_clients{surface=\"http\"} %zu\n",
                    (long long)atomic_load(&m->clients),
                    atomic_load(&http->client_count));
    http_put_head(out, "idem_buffered_bytes", "gauge",
                  "Bytes waiting for all clients, by surface.");
    idem_buf_printf(out,
                    "idem_buffered_bytes{surface=\"resp\"} "
                    "%lld\nidem_buffered_bytes{surface=\"http\"} %zu\n",
                    (long long)atomic_load(&m->buffered),
                    atomic_load(&http->buffered));
    single(out, "idem_connections_total", "counter", "Connections accepted.",
           (double)metrics_read(&m->accepted));
    single(out, "idem_connections_refused_total", "counter",
           "Connections refused at a limit.",
           (double)metrics_read(&m->refused));
    single(out, "idem_connections_cut_total", "counter",
           "Connections closed at a limit.",
           (double)metrics_read(&m->closed_by_limit));
    single(out, "idem_auth_failures_total", "counter",
           "Wrong names or secrets.", (double)metrics_read(&m->auth_failures));
    single(out, "idem_operators_refused_total", "counter",
           "Operator actions and lists refused because a right, a credential "
           "or a reason was missing.",
           (double)metrics_read(&m->refused_operators));
    single(out, "idem_protocol_errors_total", "counter",
           "Commands that could not be read.",
           (double)metrics_read(&m->protocol_errors));
    single(out, "idem_starts_returned_total", "counter",
           "Claims released because their client had disconnected.",
           (double)metrics_read(&m->returned));
}

/* One number for each kind of id that has it, snowflake first. */
static void
by_kind(struct idem_buf *out, const char *name, const char *type,
        const char *help, const double *values, int kinds)
{
    http_put_head(out, name, type, help);
    for (int i = 0; i < kinds; i++)
        idem_buf_printf(out, "%s{kind=\"%s\"} %.17g\n", name,
                        idem_id_kind_name((enum idem_id_kind)i), values[i]);
}

static void
add_ids(struct idem_buf *out, struct idem_ids *ids)
{
    struct idem__ids_figures f;
    double given[3], reserved[3], worker[2], ahead[2];

    idem__ids_figures(ids, &f);
    for (int i = 0; i < 3; i++) {
        given[i] = (double)f.given[i];
        reserved[i] = (double)f.reserved[i];
    }
    for (int i = 0; i < 2; i++) {
        worker[i] = (double)f.worker[i];
        ahead[i] = (double)f.ahead_ms[i] / 1000;
    }
    by_kind(out, "idem_ids_given_total", "counter", "Ids given out, by kind.",
            given, 3);
    by_kind(out, "idem_ids_reserved", "gauge",
            "Ids that can be given out without asking the store, by kind.",
            reserved, 3);
    by_kind(out, "idem_ids_worker", "gauge",
            "Leased worker number, by kind; -1: none.", worker, 2);
    by_kind(out, "idem_ids_clock_ahead_seconds", "gauge",
            "How far the time in ids is ahead of the clock, by kind.", ahead,
            2);
    single(out, "idem_ids_segment_names", "gauge",
           "Names of segments in memory.", (double)f.names);
    single(out, "idem_ids_segment_step", "gauge",
           "Ids in the longest range of a segment.", (double)f.step);
    single(out, "idem_ids_segment_ranges_total", "counter",
           "Ranges of segments fetched from the store.", (double)f.ranges);
}

static void
add_process(struct idem_buf *out, const struct server_metrics *metrics)
{
    struct http_process p;

    http_process_figures(metrics->start_us, &p);
    single(out, "process_cpu_seconds_total", "counter",
           "CPU time of this process.", p.cpu_s);
    single(out, "process_start_time_seconds", "gauge",
           "When this process started, in seconds since 1970.", p.start_s);
    single(out, "process_resident_memory_bytes", "gauge",
           "Memory of this process.", p.resident);
    single(out, "process_open_fds", "gauge", "Open files and connections.",
           p.open_files);
    single(out, "process_max_fds", "gauge",
           "How many open files and connections are allowed.", p.max_files);
}

/* The store's own figures, under the names that the store gave them. */
static void
add_figure(void *arg, const char *name, double value)
{
    struct idem_buf *out = arg;
    char full[128];
    size_t len;

    len = (size_t)snprintf(full, sizeof(full), "idem_%s", name);
    for (size_t i = 0; i < len && i < sizeof(full) - 1; i++)
        if (!strchr("abcdefghijklmnopqrstuvwxyz0123456789_", full[i]))
            full[i] = '_';
    len = strlen(name);
    single(out, full,
           len > 6 && strcmp(name + len - 6, "_total") == 0 ? "counter"
                                                            : "gauge",
           http_figure_help(name), value);
}

/* A scan of a small store ends at once, so the reader sees the current doubts.
 * The reader does not wait long for the scan of a large store, nor while other
 * requests wait for this thread. */
bool
http_doubts_look(struct http *http, uint64_t *count, double *oldest_s)
{
    const struct timespec nap = {0, NAP_NS};
    struct doubts *doubts = http->server->doubts;
    uint64_t wanted = doubts_want(doubts, true);
    int64_t until = idem__mono_ms() + PATIENCE_MS;
    bool waits = true;

    while (waits && doubts_read(doubts, count, oldest_s) < wanted) {
        nanosleep(&nap, NULL);
        pthread_mutex_lock(&http->lock);
        waits =
            idem__mono_ms() < until && !http->lanes[0].first && !http->draining;
        pthread_mutex_unlock(&http->lock);
    }
    return doubts_read(doubts, count, oldest_s) > 0;
}

static void
add_doubt(struct idem_buf *out, struct http *http)
{
    double age_s = 0;
    uint64_t count = 0;
    bool looked = http_doubts_look(http, &count, &age_s);

    if (!looked)
        age_s = NAN;
    single(out, "idem_doubts", "gauge", "Records in doubt at the last scan.",
           looked ? (double)count : NAN);
    single(out, "idem_oldest_doubt_seconds", "gauge",
           "How long the oldest doubt has lasted; 0: there is none.", age_s);
}

bool
http_metrics(struct http *http, struct idem_buf *out)
{
    struct server *server = http->server;
    struct idem__stats stats = {0};

    idem__stats(server->engine, &stats);
    http_put_head(out, "idem_build_info", "gauge",
                  "The version of idem that is running.");
    idem_buf_printf(out, "idem_build_info{version=\"%s\"} 1\n", IDEM_VERSION);
    add_process(out, server->metrics);
    add_verdicts(out, &stats);
    add_latency(out, server->metrics);
    add_engine(out, &stats);
    add_surfaces(out, http);
    add_gateway(out, server->config);
    add_ids(out, server->ids);
    add_doubt(out, http);
    idem__store_figures(server->engine, add_figure, out);
    return !out->lacks;
}
