/*
 * metrics.h - what RESP and HTTP count; the engine counts the rest itself.
 *
 * Every number only grows, except `clients` and `buffered`. Threads: any.
 */
#ifndef SERVER_METRICS_H
#define SERVER_METRICS_H

#include "../../base/wait.h"
#include "../../record/record.h"

#include <idem/idem.h>
#include <stdatomic.h>

/* Bucket i counts answers that took up to 2^i * 16 microseconds; the last one
 * counts all others. 16 us ... 4.2 s. */
#define METRICS_BUCKETS 20
#define METRICS_BUCKET_US(i) (UINT64_C(16) << (i))

/* Where operations come from. */
enum metrics_surface { METRICS_RESP, METRICS_HTTP, METRICS_SURFACES };

struct metrics_histogram {
    atomic_uint_fast64_t bucket[METRICS_BUCKETS];
    atomic_uint_fast64_t sum_us;
};

struct server_metrics {
    int64_t start_us; /* idem__mono_us */
    /* Time from the arrival of an operation at RESP or HTTP until its reply is
     * ready. */
    struct metrics_histogram latency[IDEM__VERB_COUNT];
    atomic_uint_fast64_t operations[METRICS_SURFACES];
    atomic_uint_fast64_t commands; /* RESP commands of every kind */
    atomic_uint_fast64_t accepted, refused, closed_by_limit;
    atomic_uint_fast64_t auth_failures, refused_operators, protocol_errors;
    atomic_uint_fast64_t returned; /* starts released: the client was gone */
    atomic_int_fast64_t clients, buffered;
};

void metrics_observe(struct server_metrics *metrics, enum idem_verb verb,
                     int64_t took_us);

static inline void
metrics_add(atomic_uint_fast64_t *counter, uint64_t n)
{
    atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
}

static inline uint64_t
metrics_read(const atomic_uint_fast64_t *counter)
{
    return atomic_load_explicit(counter, memory_order_relaxed);
}

#endif
