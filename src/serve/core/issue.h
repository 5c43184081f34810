/*
 * issue.h - issue several tokens in one reply, for RESP and HTTP.
 */
#ifndef SERVER_ISSUE_H
#define SERVER_ISSUE_H

#include <idem/idem.h>

struct server_issue;

/* Makes `count` tokens. NULL: out of memory. Free the result after `done`. */
struct server_issue *server_issue_new(size_t count);
const char *server_issue_token(const struct server_issue *issue, size_t i);

/*
 * Issue the tokens, each as `op` says, which names their subject. `done` is
 * called once: with an answer that has the verdict "issued" and the expiry, or
 * with the first error. After an error some tokens may have been issued, but no
 * client learns them. `done` is called on the engine's thread or before this
 * function returns.
 */
void server_issue_submit(struct server_issue *issue, struct idem_engine *engine,
                         const struct idem_op *op, idem_done_fn *done,
                         void *arg);

#endif
