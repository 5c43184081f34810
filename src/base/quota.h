/*
 * quota.h - the names of the limits of one scope. If the text of an OVERLOADED
 * error begins with one of these names and a colon, a quota of that scope is
 * used up, and HTTP answers 429.
 */
#ifndef IDEM__QUOTA_H
#define IDEM__QUOTA_H

#include <string.h>

#define IDEM__QUOTA_RATE "scope-rate"
#define IDEM__QUOTA_TOKENS "token-rate"
#define IDEM__QUOTA_RECORDS "scope-records"
#define IDEM__QUOTA_BYTES "scope-bytes"

/* Room for records and bytes returns when records expire; the store is scanned
 * again this many seconds after a refusal. The rates recover within a
 * second. */
#define IDEM__QUOTA_LOOK_S 5

/* Seconds after which to retry; 0: the text does not name a quota. */
static inline int
idem__quota_retry_s(const char *text)
{
    static const struct {
        const char *name;
        int retry_s;
    } quotas[] = {
        {IDEM__QUOTA_RATE ":", 1},
        {IDEM__QUOTA_TOKENS ":", 1},
        {IDEM__QUOTA_RECORDS ":", IDEM__QUOTA_LOOK_S},
        {IDEM__QUOTA_BYTES ":", IDEM__QUOTA_LOOK_S},
    };

    for (size_t i = 0; i < sizeof(quotas) / sizeof(quotas[0]); i++) {
        if (strncmp(text, quotas[i].name, strlen(quotas[i].name)) == 0)
            return quotas[i].retry_s;
    }
    return 0;
}

#endif
