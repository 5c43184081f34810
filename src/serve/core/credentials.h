/*
 * credentials.h - who may do what.
 *
 * A file with one credential a line:
 *
 *   # name   secret                      rights    scopes it may touch
 *   shop     s3cret-of-the-shop          use       shop  shop-refunds
 *   ops      {blake2b}4ad3...64 digits   operate
 *
 * `use` may do everything but FORGET, SCAN and SETTLE ... AS; `operate` may do
 * these too. Without a list of scopes a credential may touch every scope. Only
 * hashes are kept in memory; secrets are compared in constant time and never
 * logged. The file must not be readable by everybody.
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

enum server_right { SERVER_USE = 1, SERVER_OPERATE = 2 };

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

/* `anyone` (SERVER_USE) or the `owner` (SERVER_OPERATE), where no credentials
 * are needed or where the socket is trusted. */
struct principal *credentials_anyone(struct credentials *credentials,
                                     enum server_right right);

struct principal *principal_ref(struct principal *principal);
void principal_put(struct principal *principal); /* NULL is fine */
const char *principal_name(const struct principal *principal);

/* Still in the file? One that is not may do nothing. */
bool principal_valid(const struct principal *principal);

/* May it use this right on this scope? An empty scope stands for all scopes
 * at once (a SCAN without SCOPE). */
bool principal_may(const struct principal *principal, enum server_right right,
                   struct idem_bytes scope);

/* For tests and the fuzzer: read a file's text. */
enum idem_status credentials_text(struct credentials *credentials,
                                  const char *file, struct idem_bytes text,
                                  struct idem_error *err);

#endif
