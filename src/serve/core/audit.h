/*
 * audit.h - what operators changed, and who did it.
 */
#ifndef SERVER_AUDIT_H
#define SERVER_AUDIT_H

#include "log.h"

#include <jansson.h>
#include <sys/socket.h>

#define AUDIT_WHO_MAX 64
#define AUDIT_FROM_MAX 64

/* Who asks, noted when the question comes: the connection may be gone when the
 * answer does. `who` is empty for everybody who does not act as operator. */
struct audit_source {
    char who[AUDIT_WHO_MAX];
    char first[AUDIT_WHO_MAX]; /* who proposed it, of two; else empty */
    char from[AUDIT_FROM_MAX];
};

/* "uid=1000 pid=4711" of a unix socket, else an address. */
void audit_note(struct audit_source *source, const char *who, int fd);
void audit_note_address(struct audit_source *source, const char *who,
                        const struct sockaddr *address);

/* What an operator did, and what became of it. */
struct audit_event {
    const struct audit_source *source;
    const char *surface; /* "resp", "http", "cli" */
    const struct idem_op *op;
    enum idem_status status;
    const struct idem_answer *answer; /* if status is IDEM_OK */
};

/* It was accepted that the store went back. */
struct audit_rollback {
    const struct audit_source *source;
    const char *surface;
    struct idem_bytes reason;
};

/* ---- the trail: trail.c ------------------------------------------------ */

/*
 * The last AUDIT_KEPT changes and the last AUDIT_KEPT results that somebody
 * looked at, in memory, to be listed; and all of them in two files, if there is
 * one: a line of JSON each, changes in FILE, looks in FILE.reveals. A file over
 * `max_bytes` becomes FILE.1, whose predecessor is dropped. Threads: any.
 */
#define AUDIT_KEPT 1000

struct audit;

/* `file` NULL: in memory only. What the file has is listed, too. */
enum idem_status audit_open(const char *file, int64_t max_bytes,
                            struct audit **audit, struct idem_error *err);
void audit_close(struct audit *audit); /* NULL is fine */

/* Log the event, whatever the level of the log is, and keep it. A file that
 * cannot be written is told in the log. */
void audit_add(struct audit *audit, const struct server_log *log,
               const struct audit_event *event);

void audit_add_rollback(struct audit *audit, const struct server_log *log,
                        const struct audit_rollback *event);

struct audit_filter {
    struct idem_bytes scope, id; /* empty: all */
    size_t count;                /* the last ones, of each of the two */
};

/* Oldest first. The object is valid during the call only. */
typedef void audit_each_fn(void *arg, const json_t *entry);
void audit_list(struct audit *audit, const struct audit_filter *filter,
                audit_each_fn *each, void *arg);

/* The file beside a journal's own; empty: the store is none. */
void audit_default_file(const char *store, char *file, size_t len);

#endif
