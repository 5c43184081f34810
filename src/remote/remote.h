/*
 * remote.h - the internals of the engine that uses a server (idem:// and
 * idem+unix:).
 *
 *   idem_submit ──▶ queue ──▶ remote.c: one thread ──▶ remote_link.c ──▶ server
 *     callers         │         tags, deadlines,         connect, log in
 *                     ▼         sends again
 *   the same as on a store (../engine)
 */
#ifndef IDEM__REMOTE_H
#define IDEM__REMOTE_H

#include "../base/tls.h"
#include "../engine/inner.h"
#include "../wire/wire.h"

/* The address of a server, and the client's credentials. */
struct idem__remote_address {
    char *host; /* NULL: a unix socket */
    int port;
    char *path;
    char *name, *secret;   /* NULL: none; a secret may have no name */
    struct idem__tls *tls; /* NULL: idem:// or a unix socket */
    char shown[160];       /* for messages */
    int64_t timeout_ms;    /* for connecting, and for a reply */
    bool plain;            /* do not send idem's greeting, so that any RESP
                            * server works */
};

/* idem://[name:secret@]HOST[:PORT] or idem+unix:PATH, then ?timeout_ms= and
 * ?auth-file=. Without a secret in the URL, the environment variable IDEM_AUTH
 * is used. idems:// is encrypted and also has ?ca=, ?cert= and ?key=. */
enum idem_status idem__remote_address_open(const char *url,
                                           struct idem__remote_address *address,
                                           struct idem_error *err);
void idem__remote_address_clear(struct idem__remote_address *address);

/* An error of the server's store begins with this. */
#define IDEM__REMOTE_STORE_FAILED "the server's store failed: "

/* Information that a server sends about itself. */
struct idem__remote_hello {
    size_t max_result;
    int64_t now_ms;
};

/* A connection to a server. */
struct idem__remote_link {
    int fd;                    /* -1: none */
    struct idem__tls_end *tls; /* NULL: not encrypted */
};

#define IDEM__REMOTE_NO_LINK ((struct idem__remote_link){-1, NULL})

/* Like send and recv, and why the last failed one failed. */
ssize_t idem__remote_send(struct idem__remote_link *link, const void *data,
                          size_t len);
ssize_t idem__remote_recv(struct idem__remote_link *link, void *room,
                          size_t len);
const char *idem__remote_flaw(const struct idem__remote_link *link);
void idem__remote_hang_up(struct idem__remote_link *link); /* does nothing if
                                                            * there is no
                                                            * connection */

/*
 * Connect, log in and greet, waiting as long as the address allows. If `stop`,
 * a descriptor or -1, becomes readable and *stopped is true, the call ends.
 */
enum idem_status idem__remote_dial(const struct idem__remote_address *address,
                                   int stop, const bool *stopped,
                                   struct idem__remote_link *link,
                                   struct idem__remote_hello *hello,
                                   struct idem_error *err);

/*
 * A connection for commands that are not operations (INFO, ID). It sends one
 * command at a time and waits for the reply; after a failure it connects again.
 */
struct idem__remote_line {
    struct idem__remote_address address;
    struct idem__remote_link link;
    struct idem_buf in;
};

enum idem_status idem__remote_line_open(const char *url,
                                        struct idem__remote_line *line,
                                        struct idem_error *err);
/* The reply is valid until the next call. An error reply is returned as an
 * error. */
enum idem_status idem__remote_line_ask(struct idem__remote_line *line,
                                       const struct idem__wire_args *args,
                                       struct idem__wire_reply *reply,
                                       struct idem_error *err);
void idem__remote_line_close(struct idem__remote_line *line);

#endif
