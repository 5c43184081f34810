/*
 * bench.h - the client of idem bench: many pipelined RESP connections in one
 * thread, to idem or to Redis.
 */
#ifndef IDEM__CLI_BENCH_H
#define IDEM__CLI_BENCH_H

#include "../base/buf.h"

#define BENCH_CLIENTS_MAX 4096
#define BENCH_PIPELINE_MAX 256
#define BENCH_LATENCY_US 1000000 /* longer latencies count as this */

enum bench_what {
    BENCH_BEGIN,  /* BEGIN of a new key; Redis: SET NX PX */
    BENCH_PAIR,   /* the same, then FINISH; Redis: then SET PX */
    BENCH_REPLAY, /* BEGIN of a finished key; Redis: GET */
    BENCH_PING,
};

struct bench {
    const char *url; /* idem://..., also for Redis */
    bool redis;      /* send the commands of Redis, not of idem */
    enum bench_what what;
    size_t clients, pipeline, result_len;
    int64_t run_ms;

    /* Results. */
    bool connected;      /* all clients are connected */
    uint64_t operations; /* a pair counts once */
    uint64_t errors;
    char error[128]; /* the first error */
    int64_t took_us;
    double server_cpu_us; /* of the server's process; < 0: unknown */
    uint32_t *latency;    /* number of commands by microseconds */
    uint64_t commands;
};

enum idem_status bench_run(struct bench *bench, struct idem_error *err);

/* The time within which this part of the commands was answered, in ms. */
double bench_quantile(const struct bench *bench, double part);

#endif
