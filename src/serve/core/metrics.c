/*
 * metrics.c - see metrics.h.
 */
#include "metrics.h"

void
metrics_observe(struct server_metrics *metrics, enum idem_verb verb,
                int64_t took_us)
{
    struct metrics_histogram *histogram = &metrics->latency[verb];
    uint64_t us = took_us > 0 ? (uint64_t)took_us : 0;
    size_t i = 0;

    /* The smallest i with us <= 16 << i. */
    if (us > METRICS_BUCKET_US(0))
        i = 64 - (size_t)__builtin_clzll((us - 1) >> 4);
    if (i >= METRICS_BUCKETS)
        i = METRICS_BUCKETS - 1;
    metrics_add(&histogram->bucket[i], 1);
    metrics_add(&histogram->sum_us, us);
}
