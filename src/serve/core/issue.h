/*
 * issue.h - several tokens in one answer, for RESP and HTTP.
 */
#ifndef SERVER_ISSUE_H
#define SERVER_ISSUE_H

#include <idem/idem.h>

struct server_issue;

/* Makes `count` tokens. NULL: out of memory. Free it after `done`. */
struct server_issue *server_issue_new(size_t count);
const char *server_issue_token(const struct server_issue *issue, size_t i);

/*
 * Issue them, each as `op` says, which names their subject. `done` is called
 * once: with an answer that says "issued" and when they expire, or with the
 * first error; some may have been issued then, and nobody knows them. It is
 * called on the engine's thread, or from here.
 */
void server_issue_submit(struct server_issue *issue, struct idem_engine *engine,
                         const struct idem_op *op, idem_done_fn *done,
                         void *arg);

#endif
