/*
 * doubts.h - how many records are in doubt and since when, and reports of new
 * ones (--on-doubt).
 *
 * The numbers can only be found by a scan of the store. A thread does it at a
 * few thousand records a second, so that a large store is not disturbed. It
 * scans once whenever somebody reads the figures, or all the time if --on-doubt
 * is set. The figures are those of the last complete scan.
 */
#ifndef SERVER_DOUBTS_H
#define SERVER_DOUBTS_H

#include "server.h"

#include <jansson.h>

struct doubts;

enum idem_status doubts_open(struct server *server, struct doubts **doubts,
                             struct idem_error *err);
/* Begin no further scan, and end a command that runs. NULL is fine. */
void doubts_stop(struct doubts *doubts);
/* Call it after the engine is closed, which ends a scan that waits for the
 * store. */
void doubts_close(struct doubts *doubts);

/* Ask for a scan and return its number. With hurry, a small store is scanned
 * without pauses; without it, a large store is scanned at a tenth of the pace,
 * which a busy server hardly notices. */
uint64_t doubts_want(struct doubts *doubts, bool hurry);
/* Is that scan still to come, or running? False: it has ended or failed. */
bool doubts_pending(struct doubts *doubts, uint64_t look);

/* The oldest doubts of the last complete scan, at most DOUBTS_LISTED, as JSON
 * records. Returns a new reference; NULL: out of memory. */
#define DOUBTS_LISTED 200
json_t *doubts_oldest(struct doubts *doubts);

/* Figures of the last complete scan. Returns its number; 0: no scan is complete
 * yet. */
uint64_t doubts_read(struct doubts *doubts, uint64_t *count, double *oldest_s);

/* ---- on_doubt.c: reporting -------------------------------------------- */

/* Pass this text to a command as its standard input, or POST it to a URL.
 * False: `why` says what went wrong. `over` ends a command early. */
bool on_doubt_tell(const char *target, const char *text,
                   const atomic_bool *over, char *why, size_t why_len);

#endif
