/*
 * figures.h - the gateway's counters, by route. They are in a file that nginx's
 * workers map and add to, and that a server reads for its /metrics.
 *
 * The numbers only grow. Writer and reader must be of the same build: the
 * server ignores a file with another header, and nginx replaces it by a new
 * one.
 */
#ifndef IDEM__FIGURES_H
#define IDEM__FIGURES_H

#include <stdint.h>

#define IDEM__FIGURES_MAGIC "idem-figures" /* begins every such file */
#define IDEM__FIGURES_ROUTES 64            /* the first is "other" */
#define IDEM__FIGURES_NAME_MAX 127
#define IDEM__FIGURES_BUCKETS 19 /* 1 ms, 2 ms ... 131 s, all others */

/* How a request ended at the gateway: the verdicts of the access log, and two
 * for requests that did not reach the engine. */
static const char *const idem__figures_verdicts[] = {
    "started",      "released",   "outcome-unknown", "replay",  "busy",
    "doubt",        "mismatch",   "duplicate",       "unknown", "away",
    "same-content", "open",       "no-scope",        "issued",  "settled",
    "absent",       "over-quota", "refused",         "passed",
};

#define IDEM__FIGURES_VERDICTS                                                 \
    (sizeof(idem__figures_verdicts) / sizeof(idem__figures_verdicts[0]))
#define IDEM__FIGURES_REFUSED (IDEM__FIGURES_VERDICTS - 2)
#define IDEM__FIGURES_PASSED (IDEM__FIGURES_VERDICTS - 1)

enum idem__figures_time {
    IDEM__FIGURES_UPSTREAM, /* the service's time */
    IDEM__FIGURES_HOLD,     /* time of a duplicate until it had its verdict */
    IDEM__FIGURES_CLAIM,    /* from BEGIN to FINISH */
    IDEM__FIGURES_TIMES
};

struct idem__figures_route {
    char name[IDEM__FIGURES_NAME_MAX + 1]; /* 0x21 to 0x7e, but not " or \ */
    uint64_t verdicts[IDEM__FIGURES_VERDICTS];
    struct {
        uint64_t bucket[IDEM__FIGURES_BUCKETS];
        uint64_t sum_ms;
    } times[IDEM__FIGURES_TIMES];
};

struct idem__figures {
    char magic[24]; /* IDEM__FIGURES_MAGIC */
    uint64_t size;  /* size of the whole file */
    uint64_t used;  /* routes that have a name */
    struct idem__figures_route routes[IDEM__FIGURES_ROUTES];
};

#endif
