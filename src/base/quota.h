/*
 * quota.h - the limits of one scope, by name. An OVERLOADED whose text begins
 * with one of these and a colon is a quota of that scope: HTTP says 429.
 */
#ifndef IDEM__QUOTA_H
#define IDEM__QUOTA_H

#include <string.h>

#define IDEM__QUOTA_RATE "scope-rate"
#define IDEM__QUOTA_TOKENS "token-rate"
#define IDEM__QUOTA_RECORDS "scope-records"
#define IDEM__QUOTA_BYTES "scope-bytes"

/* Records and bytes come back as records expire, for which the store is looked
 * through again so soon after a refusal; the rates within a second. */
#define IDEM__QUOTA_LOOK_S 5

/* Seconds after which to try again; 0: the text names no quota. */
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
