/*
 * audit.h - what operators changed, and who did it.
 */
#ifndef SERVER_AUDIT_H
#define SERVER_AUDIT_H

#include "log.h"

#include <sys/socket.h>

#define AUDIT_WHO_MAX 64
#define AUDIT_FROM_MAX 64

/* Who asks, noted when the question comes: the connection may be gone when the
 * answer does. `who` is empty for everybody who does not act as operator. */
struct audit_source {
    char who[AUDIT_WHO_MAX];
    char from[AUDIT_FROM_MAX];
};

/* "uid=1000 pid=4711" of a unix socket, else an address. */
void audit_note(struct audit_source *source, const char *who, int fd);
void audit_note_address(struct audit_source *source, const char *who,
                        const struct sockaddr *address);

/*
 * Log what became of it, whatever the level of the log is: verb, who, from
 * where, the verdict or the error, the outcome and the reason that were given,
 * the record.
 */
void audit_log(const struct server_log *log, const struct audit_source *source,
               const char *surface, const struct idem_op *op,
               enum idem_status status, const struct idem_answer *answer);

#endif
