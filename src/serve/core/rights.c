/*
 * rights.c - may this caller do this? See rights.h.
 */
#include "rights.h"

#include "second.h"

#include "../../base/quota.h"
#include "../../engine/engine.h"

bool
server_op_operates(const struct idem_op *op)
{
    return op->verb == IDEM_FORGET ||
           (op->verb == IDEM_SETTLE && op->outcome != 0) ||
           (op->verb == IDEM_UNLOCK && op->subject.len > 0);
}

static unsigned
act_of(const struct server_wish *wish)
{
    switch (wish->what) {
    case ASKS_FIGURES:
        return SERVER_MAY_MEASURE;
    case ASKS_LIST:
    case ASKS_SOME:
        return SERVER_MAY_LIST;
    case ASKS_OP:
        if (server_op_operates(wish->op))
            return SERVER_MAY_OPERATE;
        return wish->op->verb == IDEM_GET ? SERVER_MAY_LOOK : SERVER_MAY_USE;
    case ASKS_ROLLBACK:
        return SERVER_MAY_OPERATE;
    case ASKS_IDS:
        break;
    }
    return SERVER_MAY_USE;
}

static const char *
missing_right(unsigned act)
{
    switch (act) {
    case SERVER_MAY_LOOK:
        return "this needs the right to view or to use";
    case SERVER_MAY_LIST:
        return "this needs the right to view or to operate";
    case SERVER_MAY_USE:
        return "this needs the right to use";
    default:
        return "this needs the right to operate";
    }
}

static enum server_permit
refuse(const struct server *server, const struct principal *principal,
       unsigned act, struct idem_error *err)
{
    if (principal_has(principal, act))
        idem__fail(err, IDEM_ERR_INVALID,
                   "this credential may not use that scope: use one of its "
                   "scopes, or add the scope to its line in the credentials "
                   "file");
    else if (credentials_needed(server->credentials))
        idem__fail(err, IDEM_ERR_INVALID,
                   "%s: use a credential that has this right, or change the "
                   "credentials file",
                   missing_right(act));
    else
        idem__fail(err, IDEM_ERR_INVALID, "%s: " SERVER_HOW_TO_OPERATE,
                   missing_right(act));
    return PERMIT_NEEDS_RIGHT;
}

/* Operations that end a claim are never refused for a quota, because that would
 * leave a doubt. */
static bool
is_limited(const struct idem_op *op)
{
    switch (op->verb) {
    case IDEM_BEGIN:
    case IDEM_LOCK:
    case IDEM_ISSUE:
    case IDEM_REDEEM:
    case IDEM_GET:
        return true;
    case IDEM_SETTLE:
        return op->outcome == 0;
    default:
        return false;
    }
}

static enum server_permit
check_quotas(const struct server *server, const struct server_wish *wish,
             struct idem_error *err)
{
    int64_t retry_after_ms = 0;

    if (is_limited(wish->op) &&
        !idem_token_allowed(server->scope_limit, wish->op->scope, 1,
                            &retry_after_ms)) {
        idem__fail(
            err, IDEM_ERR_OVERLOADED,
            IDEM__QUOTA_RATE ": this scope may ask %lld times a second: try "
                             "again in %lld ms",
            (long long)server->config->scope_rate, (long long)retry_after_ms);
        return PERMIT_OVER_QUOTA;
    }
    if (wish->op->verb == IDEM_ISSUE &&
        !idem_token_allowed(server->token_limit, wish->op->scope, wish->tokens,
                            &retry_after_ms)) {
        idem__fail(err, IDEM_ERR_OVERLOADED,
                   IDEM__QUOTA_TOKENS
                   ": this subject may ask for %lld tokens a second: "
                   "try again in %lld ms",
                   (long long)server->config->token_rate,
                   (long long)retry_after_ms);
        return PERMIT_OVER_QUOTA;
    }
    return PERMIT_GIVEN;
}

static struct idem_bytes
reason_of(const struct server_wish *wish)
{
    return wish->what == ASKS_OP ? wish->op->subject : wish->reason;
}

/* The rules that this server sets for operators. */
static enum server_permit
check_rules(const struct server *server, struct principal *principal,
            const struct server_wish *wish, struct idem_error *err)
{
    const struct idem_op *op = wish->what == ASKS_OP ? wish->op : NULL;

    if (server->config->require_reason && reason_of(wish).len == 0) {
        idem__fail(err, IDEM_ERR_INVALID,
                   "this server requires a reason for operators' actions: give "
                   "REASON (--reason on the command line, `reason` in HTTP)");
        return PERMIT_NEEDS_MORE;
    }
    if (!server->second || !op)
        return PERMIT_GIVEN;
    if (op->fence == 0) {
        idem__fail(
            err, IDEM_ERR_INVALID,
            "second-person: say which execution is meant by the record's "
            "fence, which GET shows: give FENCE (--fence on the command "
            "line, `fence` in HTTP)");
        return PERMIT_NEEDS_MORE;
    }
    if (second_agrees(server->second, principal, op, wish->first, err))
        return PERMIT_GIVEN;
    return err->status == IDEM_ERR_MEMORY ? PERMIT_NO_MEMORY
                                          : PERMIT_NEEDS_SECOND;
}

enum server_permit
server_permit(const struct server *server, struct principal *principal,
              const struct server_wish *wish, struct idem_error *err)
{
    unsigned act = act_of(wish);
    bool everywhere = wish->what == ASKS_FIGURES || wish->what == ASKS_SOME ||
                      (wish->what == ASKS_IDS && wish->scope.len == 0);
    struct idem_bytes scope =
        wish->what == ASKS_OP ? wish->op->scope : wish->scope;

    if (!principal || !principal_valid(principal)) {
        idem__fail(err, IDEM_ERR_INVALID,
                   "credentials are needed: send AUTH name secret (for idem "
                   "and libidem: IDEM_AUTH=name:secret, or "
                   "idem://name:secret@HOST)");
        return PERMIT_NEEDS_LOGIN;
    }
    if (everywhere ? !principal_has(principal, act)
                   : !principal_may(principal, act, scope))
        return refuse(server, principal, act, err);
    if (act == SERVER_MAY_OPERATE)
        return check_rules(server, principal, wish, err);
    return wish->what == ASKS_OP ? check_quotas(server, wish, err)
                                 : PERMIT_GIVEN;
}

enum idem_status
server_accept_rollback(struct server *server,
                       const struct audit_rollback *event,
                       struct idem_error *err)
{
    if (event->reason.len > IDEM_SUBJECT_MAX)
        return idem__fail(err, IDEM_ERR_INVALID,
                          "a reason has at most %d bytes", IDEM_SUBJECT_MAX);
    if (!idem__accept_rollback(server->engine))
        return idem__fail(
            err, IDEM_ERR_INVALID,
            "the store did not go back: there is nothing to accept");
    audit_add_rollback(server->audit, server->log, event);
    return IDEM_OK;
}

/* ---- logging refusals -------------------------------------------------- */

void
server_log_refusal(struct server *server, const struct server_wish *wish,
                   const struct audit_source *source, const char *surface,
                   const char *why)
{
    const struct idem_op *op = wish->what == ASKS_OP ? wish->op : NULL;
    bool lists = wish->what == ASKS_LIST || wish->what == ASKS_SOME ||
                 wish->what == ASKS_ROLLBACK;
    int64_t left_out;

    if (!lists && !(op && server_op_operates(op)))
        return;
    metrics_add(&server->metrics->refused_operators, 1);
    if (!server_log_may(&server->refused_operators, idem__mono_ms(), &left_out))
        return;
    server_log(server->log, LOG_ALWAYS, "operator-refused",
               LOG_TEXT("verb", op ? idem_verb_name(op->verb)
                                : wish->what != ASKS_ROLLBACK ? wish->list
                                                              : "rollback"),
               LOG_TEXT("who", *source->who ? source->who : "-"),
               op && op->id.len > 0 ? LOG_KEY(op->scope, op->id)
                                    : LOG_TEXT("key", "-"),
               LOG_TEXT("surface", surface), LOG_TEXT("from", source->from),
               LOG_TEXT("why", why), LOG_NUMBER("more", left_out));
}

void
server_log_wrong_secret(struct server *server,
                        const struct audit_source *source, const char *surface)
{
    int64_t left_out;

    metrics_add(&server->metrics->auth_failures, 1);
    if (server_log_may(&server->refused_secrets, idem__mono_ms(), &left_out))
        server_log(server->log, LOG_WARNING, "auth-failed",
                   LOG_TEXT("surface", surface), LOG_TEXT("from", source->from),
                   LOG_NUMBER("more", left_out));
}

const struct idem_answer *
server_without_result(const struct idem_answer *answer,
                      struct idem_answer *copy, struct idem_record *record)
{
    *record = *answer->record;
    record->result = (struct idem_bytes){NULL, 0};
    if (record->state == IDEM_STATE_SUCCEEDED ||
        record->state == IDEM_STATE_FAILED)
        record->flags |= IDEM_FLAG_NOT_REPLAYABLE;
    *copy = *answer;
    copy->record = record;
    return copy;
}
