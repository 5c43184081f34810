/*
 * info.c - the text of INFO: sections of name:value lines, as in Redis.
 */
#include "../core/doubts.h"
#include "../core/gateway_figures.h"
#include "loop.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void
add_figure(void *arg, const char *name, double value)
{
    struct resp_out *out = arg;

    idem_buf_printf(&out->buf, "%s:%.0f\r\n", name, value);
}

static void
add_server(struct loop *loop, struct resp_out *out)
{
    struct server_metrics *metrics = loop->server->metrics;
    int64_t up_us = idem__mono_us() - metrics->start_us;
    char store[512];

    idem__url_redact(loop->config->store, store, sizeof(store));
    idem_buf_printf(&out->buf,
                    "# Server\r\nidem_version:%s\r\nprocess_id:%ld\r\n"
                    "redis_mode:standalone\r\nloading:0\r\nstore:%s\r\n"
                    "uptime_in_seconds:%lld\r\n\r\n",
                    IDEM_VERSION, (long)getpid(), store,
                    (long long)(up_us / 1000000));
}

static void
add_clients(struct loop *loop, struct resp_out *out)
{
    struct server_metrics *metrics = loop->server->metrics;

    idem_buf_printf(
        &out->buf,
        "# Clients\r\nconnected_clients:%zu\r\nmaxclients:%lld\r\n"
        "buffered_bytes:%zu\r\ntotal_connections_received:%llu\r\n"
        "rejected_connections:%llu\r\nclosed_by_limit:%llu\r\n"
        "auth_failures:%llu\r\nprotocol_errors:%llu\r\n"
        "total_commands_processed:%llu\r\nreturned_starts:%llu\r\n\r\n",
        loop->client_count, (long long)loop->config->max_clients,
        loop->buffered, (unsigned long long)metrics_read(&metrics->accepted),
        (unsigned long long)metrics_read(&metrics->refused),
        (unsigned long long)metrics_read(&metrics->closed_by_limit),
        (unsigned long long)metrics_read(&metrics->auth_failures),
        (unsigned long long)metrics_read(&metrics->protocol_errors),
        (unsigned long long)metrics_read(&metrics->commands),
        (unsigned long long)metrics_read(&metrics->returned));
}

/* The most bytes of a result that a client may store. */
static size_t
max_result(struct loop *loop, const struct idem__stats *stats)
{
    size_t room = (size_t)loop->config->max_command - SERVER_COMMAND_MIN;

    return stats->max_result < room ? stats->max_result : room;
}

static void
add_engine(struct loop *loop, struct resp_out *out)
{
    struct idem__stats stats;

    idem__stats(loop->engine, &stats);
    idem_buf_printf(
        &out->buf,
        "# Engine\r\nbatches:%llu\r\nbatched:%llu\r\n"
        "store_errors:%llu\r\nqueued:%llu\r\nparked:%llu\r\n"
        "locks_waiting:%llu\r\n"
        "max_result:%zu\r\nnow_ms:%lld\r\nclock_alarm:%d\r\n"
        "vanished:%llu\r\nover_quota:%llu\r\nrolled_back:%d\r\n",
        (unsigned long long)stats.batches, (unsigned long long)stats.batched,
        (unsigned long long)stats.store_errors,
        (unsigned long long)stats.queued, (unsigned long long)stats.parked,
        (unsigned long long)stats.locks_waiting, max_result(loop, &stats),
        (long long)stats.now_ms, stats.clock_alarm,
        (unsigned long long)stats.vanished,
        (unsigned long long)stats.over_quota, stats.rolled_back);
    for (size_t i = 0; i < IDEM__VERDICT_COUNT; i++)
        idem_buf_printf(&out->buf, "verdict_%s:%llu\r\n",
                        idem_verdict_name((enum idem_verdict)i),
                        (unsigned long long)stats.verdicts[i]);
    for (size_t i = 1; i < IDEM__STATUS_COUNT; i++)
        idem_buf_printf(&out->buf, "error_%s:%llu\r\n",
                        idem_status_name((enum idem_status)i),
                        (unsigned long long)stats.errors[i]);
}

/* As of the last complete scan of the store; nothing before the first one. */
static void
add_doubts(struct loop *loop, struct resp_out *out)
{
    uint64_t count;
    double oldest_s;

    (void)doubts_want(loop->server->doubts, true);
    if (doubts_read(loop->server->doubts, &count, &oldest_s) > 0)
        idem_buf_printf(&out->buf,
                        "doubts:%llu\r\noldest_doubt_seconds:%.0f\r\n",
                        (unsigned long long)count, oldest_s);
}

/* How many answers took up to 16, 32, 64 ... microseconds, by verb. */
static void
add_latency(struct loop *loop, struct resp_out *out)
{
    idem_buf_add_text(&out->buf, "\r\n# Latency\r\n");
    for (int verb = 0; verb < IDEM__VERB_COUNT; verb++) {
        const struct metrics_histogram *histogram =
            &loop->server->metrics->latency[verb];

        idem_buf_printf(&out->buf,
                        "latency_%s:", idem_verb_name((enum idem_verb)verb));
        for (int i = 0; i < METRICS_BUCKETS; i++)
            idem_buf_printf(
                &out->buf, "%s%llu", i > 0 ? "," : "",
                (unsigned long long)metrics_read(&histogram->bucket[i]));
        idem_buf_add_text(&out->buf, "\r\n");
    }
}

/* One line per route: its name, the number of requests by verdict, the number
 * of the service's responses and their total time. */
static void
add_routes(struct loop *loop, struct resp_out *out)
{
    const char *path = loop->config->gateway_figures;
    struct idem__figures *figures = path ? malloc(sizeof(*figures)) : NULL;
    size_t used = figures ? gateway_figures_read(path, figures) : 0;

    out->buf.lacks |= path && !figures;
    if (used > 0)
        idem_buf_add_text(&out->buf, "\r\n# Gateway\r\n");
    for (size_t i = 0; i < used; i++) {
        const struct idem__figures_route *route = &figures->routes[i];
        unsigned long long answers = 0;

        idem_buf_printf(&out->buf, "route_%zu:%s", i, route->name);
        for (size_t v = 0; v < IDEM__FIGURES_VERDICTS; v++)
            idem_buf_printf(&out->buf, " %s=%llu", idem__figures_verdicts[v],
                            (unsigned long long)route->verdicts[v]);
        for (size_t b = 0; b < IDEM__FIGURES_BUCKETS; b++)
            answers += route->times[IDEM__FIGURES_UPSTREAM].bucket[b];
        idem_buf_printf(
            &out->buf, " upstream=%llu upstream_ms=%llu\r\n", answers,
            (unsigned long long)route->times[IDEM__FIGURES_UPSTREAM].sum_ms);
    }
    free(figures);
}

void
info_add(struct loop *loop, struct resp_out *out)
{
    add_server(loop, out);
    add_clients(loop, out);
    add_engine(loop, out);
    add_doubts(loop, out);
    add_latency(loop, out);
    add_routes(loop, out);
    idem_buf_add_text(&out->buf, "\r\n# Store\r\n");
    if (loop->driven)
        idem__store_figures(loop->engine, add_figure, out);
    else /* must not block on another thread */
        idem__store_figures_kept(loop->engine, add_figure, out);
}
