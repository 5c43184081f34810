/*
 * rights.h - may this caller do this? RESP and HTTP both use these functions,
 * so that their rules cannot differ.
 *
 *   what is asked                                    monitor view use operate
 *   figures: INFO, /metrics                             x     x    x     x
 *   read one record: GET                                      *    x     x
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
    char *first;              /* ASKS_OP: room of AUDIT_WHO_MAX for the name
                               * of the first of two operators */
    size_t tokens;            /* of an ISSUE */
    struct idem_bytes reason; /* ASKS_ROLLBACK */
    const char *list;         /* ASKS_LIST: "scan", "audit" */
    struct idem_bytes scope;  /* ASKS_LIST: empty for all; ASKS_IDS: empty if
                                 the ids belong to no scope; ASKS_SOME lists
                                 what the caller may see */
};

enum server_permit {
    PERMIT_GIVEN,
    PERMIT_NEEDS_LOGIN,  /* not logged in, or the credential was revoked */
    PERMIT_NEEDS_RIGHT,  /* the caller lacks this right or this scope */
    PERMIT_NEEDS_MORE,   /* the settings require a reason or a fence */
    PERMIT_OVER_QUOTA,   /* not yet: err names the limit */
    PERMIT_NEEDS_SECOND, /* second-person is set: one more must agree */
    PERMIT_NO_MEMORY,    /* the proposal for a second person was not kept */
};

/* Does this op override what others did? If so, it is audited. */
bool server_op_operates(const struct idem_op *op);

/* `principal` may be NULL. If the permit is not given, `err` says what is
 * missing. */
enum server_permit server_permit(const struct server *server,
                                 struct principal *principal,
                                 const struct server_wish *wish,
                                 struct idem_error *err);

/* Accept that the store was rolled back, and audit it. It takes effect with the
 * next batch. IDEM_ERR_INVALID: the store was not rolled back. */
enum idem_status server_accept_rollback(struct server *server,
                                        const struct audit_rollback *event,
                                        struct idem_error *err);

/* Log that an operator's request was refused: an action that would be audited,
 * or a list. It is logged at every log level, but not too often. */
void server_log_refusal(struct server *server, const struct server_wish *wish,
                        const struct audit_source *source, const char *surface,
                        const char *why);
/* Log a wrong name or secret, and count it. */
void server_log_wrong_secret(struct server *server,
                             const struct audit_source *source,
                             const char *surface);

/* The answer for a caller that may not see results. It is built in `copy` and
 * `record` and looks as if the result had not been kept. */
const struct idem_answer *
server_without_result(const struct idem_answer *answer,
                      struct idem_answer *copy, struct idem_record *record);

#endif
