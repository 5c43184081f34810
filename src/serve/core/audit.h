/*
 * audit.h - the audit log: what operators changed, and who did it.
 */
#ifndef SERVER_AUDIT_H
#define SERVER_AUDIT_H

#include "log.h"

#include <jansson.h>
#include <sys/socket.h>

#define AUDIT_WHO_MAX 64
#define AUDIT_FROM_MAX 64

/* The caller, noted when the request arrives, because the connection may be
 * closed before the response is ready. `who` is empty if the caller does not
 * act as an operator. */
struct audit_source {
    char who[AUDIT_WHO_MAX];
    char first[AUDIT_WHO_MAX]; /* the proposer, of two; else empty */
    char from[AUDIT_FROM_MAX];
};

/* `from` becomes "uid=1000 pid=4711" for a unix socket, else an address. */
void audit_note(struct audit_source *source, const char *who, int fd);
void audit_note_address(struct audit_source *source, const char *who,
                        const struct sockaddr *address);

/* An action of an operator, and its outcome. */
struct audit_event {
    const struct audit_source *source;
    const char *surface; /* "resp", "http", "cli" */
    const struct idem_op *op;
    enum idem_status status;
    const struct idem_answer *answer; /* if status is IDEM_OK */
};

/* An operator accepted that the store was rolled back. */
struct audit_rollback {
    const struct audit_source *source;
    const char *surface;
    struct idem_bytes reason;
};

/* ---- the trail: trail.c ------------------------------------------------ */

/*
 * The trail keeps the last AUDIT_KEPT changes and the last AUDIT_KEPT reveals
 * (results that somebody read) in memory, for listing. If a file is set, it
 * also writes all of them as lines of JSON: changes to FILE, reveals to
 * FILE.reveals. A file that grows over `max_bytes` is renamed to FILE.1, which
 * overwrites the previous FILE.1. Threads: any.
 */
#define AUDIT_KEPT 1000

struct audit;

/* `file` NULL: in memory only. Entries already in the file are listed, too. */
enum idem_status audit_open(const char *file, int64_t max_bytes,
                            struct audit **audit, struct idem_error *err);
void audit_close(struct audit *audit); /* NULL is fine */

/* Log the event at every log level, and keep it. If the file cannot be written
 * or memory runs out, the log says so; a line is never written in part. */
void audit_add(struct audit *audit, const struct server_log *log,
               const struct audit_event *event);

void audit_add_rollback(struct audit *audit, const struct server_log *log,
                        const struct audit_rollback *event);

struct audit_filter {
    struct idem_bytes scope, id; /* empty: all */
    size_t count;                /* how many of each, the newest */
};

/* Oldest first. The object is valid during the call only. Returns false if
 * memory ran out; then the list is not complete. */
typedef void audit_each_fn(void *arg, const json_t *entry);
bool audit_list(struct audit *audit, const struct audit_filter *filter,
                audit_each_fn *each, void *arg);

/* The default audit file, next to a journal's file; empty if the store is not a
 * journal. */
void audit_default_file(const char *store, char *file, size_t len);

#endif
