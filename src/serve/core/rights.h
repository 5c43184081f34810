/*
 * rights.h - may this caller ask this? RESP and HTTP both ask here, so that
 * they cannot differ.
 *
 *   what is asked                                    monitor view use operate
 *   figures: INFO, /metrics                             x     x    x     x
 *   a look at a record: GET                                   *    x     x
 *   lists: SCAN, AUDIT                                        x          x
 *   BEGIN, FINISH, LOCK, UNLOCK, ISSUE, ids ...                    x     x
 *   FORGET, SETTLE ... AS, UNLOCK ... REASON, ROLLBACK                   x
 *
 *   * without the result
 */
#ifndef SERVER_RIGHTS_H
#define SERVER_RIGHTS_H

#include "audit.h"
#include "server.h"

struct server_wish {
    enum {
        ASKS_FIGURES,
        ASKS_OP,
        ASKS_LIST,
        ASKS_SOME,
        ASKS_IDS,
        ASKS_ROLLBACK
    } what;
    const struct idem_op *op; /* ASKS_OP */
    char *first;              /* ASKS_OP: room of AUDIT_WHO_MAX for the name of
                                 the first operator, of two */
    size_t tokens;            /* of an ISSUE */
    struct idem_bytes reason; /* ASKS_ROLLBACK */
    const char *list;         /* ASKS_LIST: "scan", "audit" */
    struct idem_bytes scope;  /* ASKS_LIST: empty for all; ASKS_IDS: empty if
                                 the ids belong to no scope; ASKS_SOME lists
                                 what the caller may see */
};

enum server_permit {
    PERMIT_GIVEN,
    PERMIT_NEEDS_LOGIN,  /* nobody, or a credential that was taken away */
    PERMIT_NEEDS_RIGHT,  /* this right, or this scope, is not the caller's */
    PERMIT_NEEDS_MORE,   /* a reason, or a fence: the settings want it */
    PERMIT_OVER_QUOTA,   /* not yet: err names the limit */
    PERMIT_NEEDS_SECOND, /* second-person is set, and this is the first */
};

/* Does this op decide over what others did? Then it is audited. */
bool server_op_operates(const struct idem_op *op);

/* `principal` may be NULL. `err` says what is missing, unless it is given. */
enum server_permit server_permit(const struct server *server,
                                 struct principal *principal,
                                 const struct server_wish *wish,
                                 struct idem_error *err);

/* Go on although the store went back, and audit it. The next batch does it.
 * IDEM_ERR_INVALID: it did not go back. */
enum idem_status server_accept_rollback(struct server *server,
                                        const struct audit_rollback *event,
                                        struct idem_error *err);

/* Log that a wish was refused, if it was an operator's: an action that would
 * be audited, or a list. However low the log's level, and not too often. */
void server_log_refusal(struct server *server, const struct server_wish *wish,
                        const struct audit_source *source, const char *surface,
                        const char *why);
/* Log a wrong name or secret, and count it. */
void server_log_wrong_secret(struct server *server,
                             const struct audit_source *source,
                             const char *surface);

/* The answer for a caller who may not see results: `copy`, showing `record`,
 * as if the result had not been kept. */
const struct idem_answer *
server_without_result(const struct idem_answer *answer,
                      struct idem_answer *copy, struct idem_record *record);

#endif
