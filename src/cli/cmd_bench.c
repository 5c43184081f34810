/*
 * cmd_bench.c - idem bench: measure how fast a server replies, idem or Redis,
 * with the same client.
 */
#include "bench.h"
#include "where.h"

#include "cli.h"

#include <stdlib.h>
#include <string.h>

struct given {
    struct cli_where where;
    const char *what;
    bool redis;
    int64_t clients, pipeline, run_ms, result_len;
};

static bool
read_what(const char *word, enum bench_what *what)
{
    static const char *const words[] = {"begin", "pair", "replay", "ping"};

    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        if (strcmp(word, words[i]) == 0) {
            *what = (enum bench_what)i;
            return true;
        }
    }
    return false;
}

static void
report_json(const struct bench *bench, double rate, double cpu)
{
    json_t *object = json_object();

    json_object_set_new(object, "per_second", json_real(rate));
    json_object_set_new(object, "operations",
                        json_integer((json_int_t)bench->operations));
    json_object_set_new(object, "errors",
                        json_integer((json_int_t)bench->errors));
    json_object_set_new(object, "p50_ms",
                        json_real(bench_quantile(bench, 0.5)));
    json_object_set_new(object, "p99_ms",
                        json_real(bench_quantile(bench, 0.99)));
    if (cpu >= 0)
        json_object_set_new(object, "server_cpu_us", json_real(cpu));
    cli_json_print(object);
}

static int
report(const struct bench *bench, const char *what)
{
    double rate =
        (double)bench->operations * 1e6 / (double)(bench->took_us + 1);
    double cpu = bench->server_cpu_us < 0 || bench->operations == 0
                     ? -1
                     : bench->server_cpu_us / (double)bench->operations;

    if (cli_json) {
        report_json(bench, rate, cpu);
    } else {
        printf("%s: %.0f/s, p50 %.3f ms, p99 %.3f ms", what, rate,
               bench_quantile(bench, 0.5), bench_quantile(bench, 0.99));
        if (cpu >= 0)
            printf(", server CPU %.2f us each", cpu);
        printf("\n");
    }
    if (bench->errors == 0)
        return CLI_OK;
    fprintf(stderr, "idem: %llu errors, the first: %s\n",
            (unsigned long long)bench->errors, bench->error);
    return CLI_FAILED;
}

static int
run(const struct given *given)
{
    char url[CLI_URL_MAX];
    struct bench bench = {.url = url,
                          .redis = given->redis,
                          .clients = (size_t)given->clients,
                          .pipeline = (size_t)given->pipeline,
                          .result_len = (size_t)given->result_len,
                          .run_ms = given->run_ms};
    struct idem_error err;
    int code;

    if (!read_what(given->what, &bench.what))
        return cli_usage_error("--what must be begin, pair, replay or ping");
    if (given->clients < 1 || given->clients > BENCH_CLIENTS_MAX ||
        given->pipeline < 1 || given->pipeline > BENCH_PIPELINE_MAX ||
        given->result_len > 1024 * 1024)
        return cli_usage_error("1 to %d clients, a pipeline of 1 to %d, "
                               "results of up to 1m",
                               BENCH_CLIENTS_MAX, BENCH_PIPELINE_MAX);
    err.status = cli_server_url(&given->where, url, sizeof(url), &err);
    if (err.status != IDEM_OK)
        return cli_fail(&err);
    bench.latency = calloc(BENCH_LATENCY_US, sizeof(*bench.latency));
    if (!bench.latency)
        return cli_error(IDEM_ERR_MEMORY, "out of memory");
    err.status = bench_run(&bench, &err);
    if (err.status == IDEM_ERR_UNAVAILABLE && !given->redis && !bench.connected)
        cli_advise_to_start(&given->where, false, &err);
    code = err.status == IDEM_OK ? report(&bench, given->what) : cli_fail(&err);
    free(bench.latency);
    return code;
}

int
cli_bench(int argc, char **argv)
{
    struct given given = {.what = "pair",
                          .clients = 64,
                          .pipeline = 1,
                          .run_ms = 3000,
                          .result_len = 64};
    const struct cli_option options[] = {
        CLI_SERVER_OPTIONS(&given.where),
        {"what", 'w', CLI_TEXT, &given.what, "WHAT",
         "begin, pair (BEGIN and FINISH), replay or ping"},
        {"redis", 0, CLI_FLAG, &given.redis, NULL,
         "the server is a Redis: send SET NX for BEGIN, SET for "
         "FINISH, GET for a replay"},
        {"clients", 'c', CLI_NUMBER, &given.clients, "N", "connections (64)"},
        {"pipeline", 'P', CLI_NUMBER, &given.pipeline, "N",
         "commands that each client sends at once (1)"},
        {"time", 't', CLI_MS, &given.run_ms, "TIME", "how long (3s)"},
        {"size", 0, CLI_SIZE, &given.result_len, "SIZE", "of each result (64)"},
        {0},
    };
    const struct cli_syntax syntax = {
        .usage = "bench [options]",
        .about = "Measure a server: operations per second, the time of a "
                 "command and, if the server runs on this machine, its CPU "
                 "time for each operation. The records stay in the scope "
                 "`bench` and expire after a day.",
        .options = options,
    };
    int code = cli_parse(&syntax, argc, argv, NULL, NULL);

    return code >= 0 ? code : run(&given);
}
