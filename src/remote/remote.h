/*
 * remote.h - inside the engine behind idem:// and idem+unix:.
 *
 *   idem_submit ──▶ queue ──▶ remote.c: one thread ──▶ remote_link.c ──▶ server
 *     callers         │         tags, deadlines,         connect, log in
 *                     ▼         sends again
 *   the same as on a store (../engine)
 */
#ifndef IDEM__REMOTE_H
#define IDEM__REMOTE_H

#include "../engine/inner.h"
#include "../wire/wire.h"

/* Where a server is, and who asks. */
struct idem__remote_address {
    char *host; /* NULL: a unix socket */
    int port;
    char *path;
    char *name, *secret; /* NULL: none; a secret may have no name */
    char shown[160];     /* for messages */
    int64_t timeout_ms;  /* for connecting, and for a reply */
};

/* idem://[name:secret@]HOST[:PORT] or idem+unix:PATH, then ?timeout_ms= and
 * ?auth-file=. Without a secret of its own: the variable IDEM_AUTH. */
enum idem_status idem__remote_address_open(const char *url,
                                           struct idem__remote_address *address,
                                           struct idem_error *err);
void idem__remote_address_clear(struct idem__remote_address *address);

/* What a server tells about itself. */
struct idem__remote_hello {
    size_t max_result;
    int64_t now_ms;
};

/*
 * Connect, log in and greet, waiting as long as the address allows. `stop`, a
 * descriptor or -1, ends it when it becomes readable and *stopped is true.
 */
enum idem_status idem__remote_dial(const struct idem__remote_address *address,
                                   int stop, const bool *stopped, int *fd,
                                   struct idem__remote_hello *hello,
                                   struct idem_error *err);

#endif
