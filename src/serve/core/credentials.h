/*
 * credentials.h - names, secrets and rights of callers; rights.h says what each
 * right covers.
 *
 * A file with one credential a line:
 *
 *   # name   secret                      right     scopes it may touch
 *   shop     s3cret-of-the-shop          use       shop  shop-refunds
 *   ops      {blake2b}4ad3...64 digits   operate
 *   grafana  s3cret-of-the-graphs        monitor
 *   billing  cert:billing.example        use       billing
 *
 * A right is monitor, view, use or operate. A credential without a list of
 * scopes may touch every scope. Only hashes are kept in memory; secrets are
 * compared in constant time and never logged. The file must not be readable by
 * everybody. A client with a certificate whose common name is the one after
 * `cert:` needs no secret, and nobody can log in under that name with a secret.
 *
 * Without a file every caller is `anyone`, who may use every scope but has no
 * right to operate. The config allows this only on a unix socket and on
 * loopback. A client that connects by the unix socket as the server's own user
 * or as root is the `owner`, and may operate.
 *
 * Threads: any. A principal is immutable, except that it can be revoked: a
 * reread revokes each principal whose line was changed or removed.
 */
#ifndef SERVER_CREDENTIALS_H
#define SERVER_CREDENTIALS_H

#include <idem/idem.h>

/* The operations that a right allows, as bits. */
enum {
    SERVER_MAY_MEASURE = 1 << 0, /* figures */
    SERVER_MAY_LOOK = 1 << 1,    /* read one record, by its name */
    SERVER_MAY_LIST = 1 << 2,    /* records, and the audit trail */
    SERVER_MAY_USE = 1 << 3,     /* everything else, and see results */
    SERVER_MAY_OPERATE = 1 << 4, /* override what others did */
};

#define SERVER_RIGHT_MAP(X)                                                    \
    X(MONITOR, "monitor", SERVER_MAY_MEASURE)                                  \
    X(VIEW, "view", SERVER_MAY_MEASURE | SERVER_MAY_LOOK | SERVER_MAY_LIST)    \
    X(USE, "use", SERVER_MAY_MEASURE | SERVER_MAY_LOOK | SERVER_MAY_USE)       \
    X(OPERATE, "operate", (1 << 5) - 1)

enum server_right {
#define X(name, word, acts) SERVER_##name = (acts),
    SERVER_RIGHT_MAP(X)
#undef X
};

struct credentials;
struct principal;

/* `file` NULL: no credentials are needed. */
enum idem_status credentials_open(const char *file,
                                  struct credentials **credentials,
                                  struct idem_error *err);
void credentials_close(struct credentials *credentials);

/* Read the file again; after an error the old credentials stay. */
enum idem_status credentials_reread(struct credentials *credentials,
                                    struct idem_error *err);

/* Do callers have to log in? */
bool credentials_needed(const struct credentials *credentials);

/* Returns the principal; NULL: the name or secret is wrong, and the caller must
 * delay its reply (credentials_late_ms). An empty name means "default". Give
 * the principal back with principal_put. */
struct principal *credentials_login(struct credentials *credentials,
                                    struct idem_bytes name,
                                    struct idem_bytes secret);

/* How long to delay the reply to a wrong secret that came now. The delay grows
 * with the number of wrong secrets that came lately from all clients. Correct
 * secrets are never delayed, so an attacker who guesses on many connections
 * does not lock anybody out. */
int64_t credentials_late_ms(struct credentials *credentials, int64_t now_ms,
                            int64_t least_ms);

/* The principal that a certificate with this common name belongs to; NULL:
 * none. */
struct principal *credentials_certificate(struct credentials *credentials,
                                          const char *common_name);

/* `anyone` (SERVER_USE) or the `owner` (SERVER_OPERATE), for servers without
 * credentials and for trusted sockets. */
struct principal *credentials_anyone(struct credentials *credentials,
                                     enum server_right right);

struct principal *principal_ref(struct principal *principal);
void principal_put(struct principal *principal); /* NULL is fine */
const char *principal_name(const struct principal *principal);

/* Count bytes of replies that this principal has yet to read. False: with
 * them it would hold more than its share, and it holds some already. NULL is
 * fine. */
bool principal_hold(struct principal *principal, size_t len, size_t share);
void principal_unhold(struct principal *principal, size_t len);

/* Is it still in the file? A principal that was removed may do nothing. */
bool principal_valid(const struct principal *principal);

/* May it do this (SERVER_MAY_...) in at least one scope? */
bool principal_has(const struct principal *principal, unsigned act);
/* May it do this in this scope? An empty scope means all scopes at once (a SCAN
 * without SCOPE). */
bool principal_may(const struct principal *principal, unsigned act,
                   struct idem_bytes scope);

/* For tests and the fuzzer: parse the text of a file. */
enum idem_status credentials_text(struct credentials *credentials,
                                  const char *file, struct idem_bytes text,
                                  struct idem_error *err);

#endif
