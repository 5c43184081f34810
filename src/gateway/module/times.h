/*
 * times.h - the ranges of a route's times, for nginx.conf and for the options
 * of `idem gateway`.
 */
#ifndef IDEM__GATEWAY_TIMES_H
#define IDEM__GATEWAY_TIMES_H

#include <idem/record.h>

enum gateway_time {
    GATEWAY_LEASE,
    GATEWAY_TTL,
    GATEWAY_DEDUPE,
    GATEWAY_WAIT,
    GATEWAY_TOKEN_TTL,
    GATEWAY_TIMES
};

static const struct {
    const char *directive;
    int64_t min, max;
    const char *range;
} gateway_times[GATEWAY_TIMES] = {
    [GATEWAY_LEASE] = {"idem_lease", 100, IDEM_LEASE_MAX_MS, "100ms to 7d"},
    [GATEWAY_TTL] = {"idem_ttl", 1, IDEM_TTL_MAX_MS, "1ms to 3660d"},
    [GATEWAY_DEDUPE] = {"idem_dedupe_content", 0, IDEM_TTL_MAX_MS,
                        "0 to 3660d"},
    [GATEWAY_WAIT] = {"idem_wait", 0, IDEM_WAIT_MAX_MS, "0 to 1h"},
    [GATEWAY_TOKEN_TTL] = {"idem_token_ttl", 1, IDEM_TTL_MAX_MS,
                           "1ms to 3660d"},
};

#endif
