/*
 * second.h - with second-person, what an operator decides is done when another
 * operator asks for the same.
 *
 * The first to ask is noted here and refused; the same operation by another
 * name within an hour is let through, once. The operation names the record's
 * fence, so it cannot be done to what came later under the same key. A proposal
 * goes with its proposer's credential. At most SECOND_MAX wait, SECOND_EACH of
 * one credential, in memory: a restart forgets them, and they are asked for
 * again. Threads: any.
 */
#ifndef SERVER_SECOND_H
#define SERVER_SECOND_H

#include "audit.h"
#include "credentials.h"

#define SECOND_MAX 64
#define SECOND_EACH 16
#define SECOND_RESULT_MAX 65536

struct second;

struct second *second_open(void);         /* NULL: out of memory */
void second_close(struct second *second); /* NULL is fine */

/* Has another operator asked for this? `first` has their name then. If not, it
 * is noted; err says so. */
bool second_agrees(struct second *second, struct principal *principal,
                   const struct idem_op *op, char first[AUDIT_WHO_MAX],
                   struct idem_error *err);

/* Those that wait, oldest first; a new reference, NULL: out of memory. */
json_t *second_list(struct second *second);

#endif
