/*
 * doubts.h - how many records are in doubt, since when, and telling somebody
 * about new ones (--on-doubt).
 *
 * Only a look through the store can tell. A thread of its own looks, a few
 * thousand records a second, so that a large store is not disturbed: once
 * whenever somebody reads the figures, or always if somebody is to be told. The
 * figures are those of the last whole look.
 */
#ifndef SERVER_DOUBTS_H
#define SERVER_DOUBTS_H

#include "server.h"

#include <jansson.h>

struct doubts;

enum idem_status doubts_open(struct server *server, struct doubts **doubts,
                             struct idem_error *err);
/* Begin no further look; a command that runs is ended. NULL is fine. */
void doubts_stop(struct doubts *doubts);
/* When the engine is closed, which ends a look that waits for the store. */
void doubts_close(struct doubts *doubts);

/* Look now, through a small store without pauses; the number of that look.
 * Without hurry, a large store is looked through at a tenth of the pace, which
 * a busy server hardly notices. */
uint64_t doubts_want(struct doubts *doubts, bool hurry);
/* Is that look still to come, or at work? It may have ended or failed. */
bool doubts_pending(struct doubts *doubts, uint64_t look);

/* The oldest ones that the last whole look found, DOUBTS_LISTED at most, as
 * JSON records; a new reference, NULL: out of memory. */
#define DOUBTS_LISTED 200
json_t *doubts_oldest(struct doubts *doubts);

/* Figures of the last whole look, whose number is returned; 0: there is none.
 */
uint64_t doubts_read(struct doubts *doubts, uint64_t *count, double *oldest_s);

/* ---- on_doubt.c: telling somebody ------------------------------------- */

/* Give this text to a command, as its standard input, or POST it to a URL.
 * False: `why` says what went wrong. `over` ends a command early. */
bool on_doubt_tell(const char *target, const char *text,
                   const atomic_bool *over, char *why, size_t why_len);

#endif
