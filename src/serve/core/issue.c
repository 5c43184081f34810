/*
 * issue.c - several tokens in one reply; see issue.h.
 *
 * Each token is an operation of its own. A counter covers these operations and
 * the function that submits them; whichever ends last gives the reply.
 */
#include "issue.h"

#include "../../base/error.h"

#include <idem/token.h>

#include <stdatomic.h>
#include <stdlib.h>

struct server_issue {
    size_t count;
    atomic_size_t left;
    atomic_int failed; /* the first status that is an error, or IDEM_OK */
    struct idem_error err;
    atomic_int_fast64_t expires;
    idem_done_fn *done;
    void *arg;
    char tokens[][IDEM_TOKEN_LEN + 1];
};

struct server_issue *
server_issue_new(size_t count)
{
    struct server_issue *issue =
        calloc(1, sizeof(*issue) + count * sizeof(issue->tokens[0]));

    if (!issue)
        return NULL;
    issue->count = count;
    for (size_t i = 0; i < count; i++)
        idem_token_make(issue->tokens[i]);
    return issue;
}

const char *
server_issue_token(const struct server_issue *issue, size_t i)
{
    return issue->tokens[i];
}

static void
count_down(struct server_issue *issue)
{
    struct idem_record record = {.type = IDEM_TYPE_TOKEN};
    const struct idem_answer answer = {.verdict = IDEM_V_ISSUED,
                                       .record = &record};
    enum idem_status failed;

    if (atomic_fetch_sub(&issue->left, 1) > 1)
        return;
    failed = (enum idem_status)atomic_load(&issue->failed);
    record.expires = atomic_load(&issue->expires);
    issue->done(issue->arg, failed, failed == IDEM_OK ? &answer : NULL,
                &issue->err);
}

/* An idem_done_fn. */
static void
answered(void *arg, enum idem_status status, const struct idem_answer *answer,
         const struct idem_error *err)
{
    struct server_issue *issue = arg;
    int none = IDEM_OK;

    if (status == IDEM_OK && answer->verdict != IDEM_V_ISSUED)
        status = IDEM_ERR_INTERNAL;
    if (status == IDEM_OK)
        atomic_store(&issue->expires, answer->record->expires);
    else if (atomic_compare_exchange_strong(&issue->failed, &none, (int)status))
        idem__fail(&issue->err, status, "%s",
                   err && err->text[0] ? err->text : idem_status_text(status));
    count_down(issue);
}

void
server_issue_submit(struct server_issue *issue, struct idem_engine *engine,
                    const struct idem_op *op, idem_done_fn *done, void *arg)
{
    size_t count = issue->count;

    issue->done = done;
    issue->arg = arg;
    atomic_store(&issue->left, count + 1);
    for (size_t i = 0; i < count; i++) {
        struct idem_op one = *op;
        struct idem_error err = {0};
        enum idem_status status;

        one.id = idem_text(issue->tokens[i]);
        status = idem_submit(engine, &one, answered, issue, NULL, &err);
        if (status != IDEM_OK)
            answered(issue, status, NULL, &err);
    }
    count_down(issue);
}
