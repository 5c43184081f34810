/*
 * token.h - one-time tokens: issued to a subject, redeemed once.
 *
 * There are two ways to use a token. If you redeem it, a repeated request is
 * refused (DUPLICATE). If you BEGIN a record of type token with it, a repeated
 * request gets the first answer. A token belongs to its subject; for every
 * other subject it is UNKNOWN.
 *
 * The rules on ownership, errors, threads and fork are at the head of record.h.
 */
#ifndef IDEM_TOKEN_H
#define IDEM_TOKEN_H

#include <idem/engine.h>

#ifdef __cplusplus
extern "C" {
#endif

#define IDEM_TOKEN_LEN 32 /* characters, URL-safe: 192 random bits */

/* Write the text of a new random token, with a NUL at the end. The token exists
 * only after an ISSUE of it. */
IDEM_API void idem_token_make(char token[IDEM_TOKEN_LEN + 1]);

/* Make one token and issue it to a subject. ttl_ms is how long it can be used
 * (0: 5 minutes). After an error do not use what is in `token`. */
IDEM_API enum idem_status idem_token_issue(struct idem_engine *engine,
                                           struct idem_bytes subject,
                                           int64_t ttl_ms,
                                           char token[IDEM_TOKEN_LEN + 1],
                                           struct idem_error *err);

/*
 * Use a token. IDEM_OK with *verdict IDEM_V_REDEEMED (this call used it),
 * IDEM_V_DUPLICATE (it was used before) or IDEM_V_UNKNOWN (it was never issued
 * to this subject, or it has expired). After IDEM_ERR_LOST it may have been
 * used.
 */
IDEM_API enum idem_status idem_token_redeem(struct idem_engine *engine,
                                            struct idem_bytes subject,
                                            const char *token,
                                            enum idem_verdict *verdict,
                                            struct idem_error *err);

/* A rate limit for tokens, with a bucket for each subject. It exists in this
 * process only, and the number of buckets is limited. */
struct idem_token_limit;

/* Make a limit: `rate` tokens per second for each subject, and at most `burst`
 * at once. Close it with idem_token_limit_close. NULL: out of memory. */
IDEM_API struct idem_token_limit *idem_token_limit_open(double rate,
                                                        double burst);
/* Free a limit. NULL does nothing. */
IDEM_API void idem_token_limit_close(struct idem_token_limit *limit);

/* True: this subject may have `count` more tokens now, and they are counted.
 * False: *retry_after_ms says when to ask again. Several threads may share a
 * limit. A NULL limit allows everything. */
IDEM_API bool idem_token_allowed(struct idem_token_limit *limit,
                                 struct idem_bytes subject, size_t count,
                                 int64_t *retry_after_ms);

#ifdef __cplusplus
}
#endif

#endif
