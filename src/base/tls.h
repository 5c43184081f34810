/*
 * tls.h - the bytes of a connection, encrypted by OpenSSL: TLS 1.2 and newer,
 * for the links of the Redis store, for idems:// and for `idem serve`.
 *
 * A client trusts a server only if one of the authorities signed its
 * certificate, for the host that was connected to; there is no switch for less.
 * The descriptor stays the caller's, and is non-blocking.
 *
 * Threads: a context may be shared if nobody rereads it; a connection belongs
 * to one thread at a time.
 */
#ifndef IDEM__TLS_H
#define IDEM__TLS_H

#include "url.h"

#include <stdbool.h>
#include <sys/types.h>

/* A recv with so much room leaves no bytes inside that poll knows nothing of.
 */
#define IDEM__TLS_RECORD 16384

struct idem__tls;     /* whom to trust, who we are */
struct idem__tls_end; /* one connection */

/* Files in PEM; NULL: none. A server needs cert and key, and with a ca also the
 * certificates of its clients; a client without a ca trusts whom this machine
 * trusts. */
struct idem__tls_files {
    const char *ca, *cert, *key;
};

/* A client's files are the options ca, cert and key of its URL. `what` begins
 * the text of an error. */
enum idem_status idem__tls_open_client(const char *what,
                                       const struct idem__url *url,
                                       struct idem__tls **tls,
                                       struct idem_error *err);
enum idem_status idem__tls_open_server(const char *what,
                                       const struct idem__tls_files *files,
                                       struct idem__tls **tls,
                                       struct idem_error *err);
void idem__tls_close(struct idem__tls *tls); /* NULL is fine */

/* A server's files once more, for connections to come; after an error the old
 * ones stay. */
enum idem_status idem__tls_reread(struct idem__tls *tls, const char *what,
                                  const struct idem__tls_files *files,
                                  struct idem_error *err);

/* `host`: whom a client wants to talk to; NULL: we are the server. NULL: no
 * memory. */
struct idem__tls_end *idem__tls_start(const struct idem__tls *tls, int fd,
                                      const char *host);
/* Say goodbye, if there was a handshake, and forget it; NULL is fine. */
void idem__tls_end(struct idem__tls_end *end);
void idem__tls_goodbye(struct idem__tls_end *end);

/* The handshake: POLLIN or POLLOUT to wait for, 0 when it is over, -1 when it
 * failed; idem__tls_why then says why. */
int idem__tls_shake(struct idem__tls_end *end);
void idem__tls_why(struct idem__tls_end *end, char *why, size_t why_len);

/* All of it, by that time of idem__mono_us; NULL is none. False: `why`. */
bool idem__tls_finish(struct idem__tls_end *end, int64_t deadline_us, char *why,
                      size_t why_len);

/* As send and recv of a non-blocking socket; after one that failed, and before
 * anything else, idem__tls_flaw says why. */
ssize_t idem__tls_send(struct idem__tls_end *end, const void *data, size_t len);
ssize_t idem__tls_recv(struct idem__tls_end *end, void *room, size_t len);
const char *idem__tls_flaw(void);

/* The common name in the certificate of the other side; false: it has none, or
 * not exactly one that fits. */
bool idem__tls_peer(struct idem__tls_end *end, char *name, size_t name_len);

#endif
