/*
 * second.h - with second-person, an operator's action is executed only after
 * another operator has asked for the same.
 *
 * The first request is recorded here and refused. If another operator asks for
 * the same operation within an hour, it is executed, once. The operation names
 * the record's fence, so it cannot apply to a later record under the same key.
 * A proposal ends when its proposer's credential is changed or removed. At most
 * SECOND_MAX proposals wait, SECOND_EACH per credential, in memory only: after
 * a restart the operators have to ask again. Threads: any.
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

/* Has another operator asked for this? If so, `first` gets the name. If not,
 * the proposal is recorded, and err says so. */
bool second_agrees(struct second *second, struct principal *principal,
                   const struct idem_op *op, char first[AUDIT_WHO_MAX],
                   struct idem_error *err);

/* The waiting proposals, oldest first. Returns a new reference; NULL: out of
 * memory. */
json_t *second_list(struct second *second);

#endif
