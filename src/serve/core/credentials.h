/*
 * credentials.h - who may do what; rights.h says what each right covers.
 *
 * A file with one credential a line:
 *
 *   # name   secret                      right     scopes it may touch
 *   shop     s3cret-of-the-shop          use       shop  shop-refunds
 *   ops      {blake2b}4ad3...64 digits   operate
 *   grafana  s3cret-of-the-graphs        monitor
 *   billing  cert:billing.example        use       billing
 *
 * A right is monitor, view, use or operate. Without a list of scopes a
 * credential may touch every scope. Only hashes are kept in memory; secrets are
 * compared in constant time and never logged. The file must not be readable by
 * everybody. Who shows a client certificate with the common name behind `cert:`
 * needs no secret, and none logs in under that name.
 *
 * Without a file everybody is `anyone`, who may use every scope and operate
 * none; the config allows that on a unix socket and on loopback only. Who
 * connects by the unix socket as the server's own user or as root is its
 * `owner`, and may operate.
 *
 * Threads: any. A principal is immutable but for being revoked, which a reread
 * does to each whose line changed or went away.
 */
#ifndef SERVER_CREDENTIALS_H
#define SERVER_CREDENTIALS_H

#include <idem/idem.h>

/* What a right allows, as bits. */
enum {
    SERVER_MAY_MEASURE = 1 << 0, /* figures */
    SERVER_MAY_LOOK = 1 << 1,    /* at a record, by its name */
    SERVER_MAY_LIST = 1 << 2,    /* records, and the audit trail */
    SERVER_MAY_USE = 1 << 3,     /* everything else, and see results */
    SERVER_MAY_OPERATE = 1 << 4, /* decide over what others did */
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

/* Read the file again; after an error the old ones stay. */
enum idem_status credentials_reread(struct credentials *credentials,
                                    struct idem_error *err);

/* Must a caller prove who it is? */
bool credentials_needed(const struct credentials *credentials);

/* Who this is; NULL: wrong. An empty name means "default". Give it back with
 * principal_put. Tell wrong ones late. */
struct principal *credentials_login(struct credentials *credentials,
                                    struct idem_bytes name,
                                    struct idem_bytes secret);

/* How late to answer the wrong secret that came now: the more of them came of
 * late, from whomever, the later. Right ones wait for nobody, so guessing many
 * at a time, on many connections, locks nobody out. */
int64_t credentials_late_ms(struct credentials *credentials, int64_t now_ms,
                            int64_t least_ms);

/* Whom a certificate of this common name stands for; NULL: nobody. */
struct principal *credentials_certificate(struct credentials *credentials,
                                          const char *common_name);

/* `anyone` (SERVER_USE) or the `owner` (SERVER_OPERATE), where no credentials
 * are needed or where the socket is trusted. */
struct principal *credentials_anyone(struct credentials *credentials,
                                     enum server_right right);

struct principal *principal_ref(struct principal *principal);
void principal_put(struct principal *principal); /* NULL is fine */
const char *principal_name(const struct principal *principal);

/* Count bytes that wait for it to be read; false: it would have more than this
 * share, and has some. NULL is fine. */
bool principal_hold(struct principal *principal, size_t len, size_t share);
void principal_unhold(struct principal *principal, size_t len);

/* Still in the file? One that is not may do nothing. */
bool principal_valid(const struct principal *principal);

/* May it do this (SERVER_MAY_...), in any scope at all? */
bool principal_has(const struct principal *principal, unsigned act);
/* And in this scope? An empty scope stands for all scopes at once (a SCAN
 * without SCOPE). */
bool principal_may(const struct principal *principal, unsigned act,
                   struct idem_bytes scope);

/* For tests and the fuzzer: read a file's text. */
enum idem_status credentials_text(struct credentials *credentials,
                                  const char *file, struct idem_bytes text,
                                  struct idem_error *err);

#endif
