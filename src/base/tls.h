/*
 * tls.h - encrypts connections with OpenSSL (TLS 1.2 and newer), for the Redis
 * store, for idems:// and for `idem serve`.
 *
 * A client trusts a server only if a trusted authority signed its certificate,
 * for the host that the client connects to; this check cannot be switched off.
 * The caller owns the descriptor, which is non-blocking.
 *
 * Threads: a context may be shared if no thread calls reread; a connection
 * belongs to one thread at a time.
 */
#ifndef IDEM__TLS_H
#define IDEM__TLS_H

#include "url.h"

#include <stdbool.h>
#include <sys/types.h>

/* After a recv with room for this many bytes, no bytes are left inside OpenSSL
 * that poll would not report. */
#define IDEM__TLS_RECORD 16384

struct idem__tls;     /* certificates, keys and trusted authorities */
struct idem__tls_end; /* one connection */

/* PEM files; NULL: none. A server needs cert and key; with a ca it also
 * requires certificates from its clients. A client without a ca uses the
 * authorities that this machine trusts. */
struct idem__tls_files {
    const char *ca, *cert, *key;
};

/* A client's files are the options ca, cert and key of its URL. The text of an
 * error begins with `what`. */
enum idem_status idem__tls_open_client(const char *what,
                                       const struct idem__url *url,
                                       struct idem__tls **tls,
                                       struct idem_error *err);
enum idem_status idem__tls_open_server(const char *what,
                                       const struct idem__tls_files *files,
                                       struct idem__tls **tls,
                                       struct idem_error *err);
void idem__tls_close(struct idem__tls *tls); /* NULL is fine */

/* Read a server's files again, for new connections; after an error the old ones
 * stay in use. */
enum idem_status idem__tls_reread(struct idem__tls *tls, const char *what,
                                  const struct idem__tls_files *files,
                                  struct idem_error *err);

/* `host` is the server that a client connects to; NULL on the server side.
 * Returns NULL if out of memory. */
struct idem__tls_end *idem__tls_start(const struct idem__tls *tls, int fd,
                                      const char *host);
/* Send close_notify, if there was a handshake, and free the connection; NULL is
 * fine. */
void idem__tls_end(struct idem__tls_end *end);
void idem__tls_goodbye(struct idem__tls_end *end);

/* One round of the handshake. Returns POLLIN or POLLOUT to wait for, 0 when it
 * is done, -1 when it failed; idem__tls_why then says why. */
int idem__tls_shake(struct idem__tls_end *end);
void idem__tls_why(struct idem__tls_end *end, char *why, size_t why_len);

/* The whole handshake, until that time of idem__mono_us; NULL is fine. False:
 * it failed, `why` says why. */
bool idem__tls_finish(struct idem__tls_end *end, int64_t deadline_us, char *why,
                      size_t why_len);

/* Like send and recv of a non-blocking socket. If one fails, call
 * idem__tls_flaw before anything else to learn why. */
ssize_t idem__tls_send(struct idem__tls_end *end, const void *data, size_t len);
ssize_t idem__tls_recv(struct idem__tls_end *end, void *room, size_t len);
const char *idem__tls_flaw(void);

/* The common name in the other side's certificate. False: there is not exactly
 * one, or it does not fit. */
bool idem__tls_peer(struct idem__tls_end *end, char *name, size_t name_len);

#endif
