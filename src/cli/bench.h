/*
 * bench.h - the wire under idem bench: many pipelined RESP connections in one
 * thread, to idem and to Redis alike.
 */
#ifndef IDEM__CLI_BENCH_H
#define IDEM__CLI_BENCH_H

#include "../base/buf.h"

#define BENCH_CLIENTS_MAX 4096
#define BENCH_PIPELINE_MAX 256
#define BENCH_LATENCY_US 1000000 /* longer ones count as this */

enum bench_what {
    BENCH_BEGIN,  /* BEGIN of a fresh key; Redis: SET NX PX */
    BENCH_PAIR,   /* and then its FINISH; Redis: and then SET PX */
    BENCH_REPLAY, /* BEGIN of a finished key; Redis: GET */
    BENCH_PING,
};

struct bench {
    const char *url; /* idem://..., also of a Redis */
    bool redis;      /* the commands of Redis, not of idem */
    enum bench_what what;
    size_t clients, pipeline, result_len;
    int64_t run_ms;

    /* What came of it. */
    uint64_t operations; /* pairs count once */
    uint64_t errors;
    char error[128]; /* the first of them */
    int64_t took_us;
    double server_cpu_us; /* of the server's process; < 0: not known */
    uint32_t *latency;    /* commands that took so many microseconds */
    uint64_t commands;
};

enum idem_status bench_run(struct bench *bench, struct idem_error *err);

/* The time within which this part of the commands was answered, in ms. */
double bench_quantile(const struct bench *bench, double part);

#endif
