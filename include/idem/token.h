/*
 * token.h - one-time tokens: issued to a subject, redeemed once.
 *
 * Two uses. Dedup: redeem it, and a repeat is refused (duplicate). Idempotent:
 * BEGIN a record of type token with it, and a repeat gets the first answer. A
 * token belongs to its subject: under any other it does not exist.
 *
 * The rules on ownership, errors, threads and fork stand at the head of
 * record.h.
 */
#ifndef IDEM_TOKEN_H
#define IDEM_TOKEN_H

#include <idem/engine.h>

#ifdef __cplusplus
extern "C" {
#endif

#define IDEM_TOKEN_LEN 32 /* characters, URL-safe: 192 random bits */

/* A fresh token's text; it does not exist until it is issued. */
IDEM_API void idem_token_make(char token[IDEM_TOKEN_LEN + 1]);

/* Issue one token to a subject; ttl_ms 0: 5 minutes. After an error nobody may
 * use what `token` has in it. */
IDEM_API enum idem_status idem_token_issue(struct idem_engine *engine,
                                           struct idem_bytes subject,
                                           int64_t ttl_ms,
                                           char token[IDEM_TOKEN_LEN + 1],
                                           struct idem_error *err);

/*
 * Redeem a token. IDEM_OK with *verdict REDEEMED (yours, this once), DUPLICATE
 * (used before) or UNKNOWN (never issued to this subject, or expired).
 */
IDEM_API enum idem_status idem_token_redeem(struct idem_engine *engine,
                                            struct idem_bytes subject,
                                            const char *token,
                                            enum idem_verdict *verdict,
                                            struct idem_error *err);

/* How many tokens a subject may ask for: a bucket a subject, kept in this
 * process, bounded in number. */
struct idem_token_limit;

/* rate: tokens a second; burst: how many at once. NULL: out of memory. */
IDEM_API struct idem_token_limit *idem_token_limit_open(double rate,
                                                        double burst);
/* NULL is fine. */
IDEM_API void idem_token_limit_close(struct idem_token_limit *limit);

/* May this subject have `count` more now? Otherwise *retry_after_ms says when.
 * Threads may share a limit. A NULL limit allows everything. */
IDEM_API bool idem_token_allowed(struct idem_token_limit *limit,
                                 struct idem_bytes subject, size_t count,
                                 int64_t *retry_after_ms);

#ifdef __cplusplus
}
#endif

#endif
