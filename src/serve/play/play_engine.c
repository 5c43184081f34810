/*
 * play_engine.c - the schemes whose records are in idem: the engine decides,
 * and the effect is in the service's tables.
 */
#include "play_inner.h"

#include "../../base/wait.h"

#define SUBJECT "mydlq"
#define SCOPE "unionpay"
#define MINUTE_MS 60000

/* ---- one-time token ---------------------------------------------------- */

/* Check whether the token exists, then delete it: two calls. */
const char *
play_token_checked(struct play_call *call)
{
    if (play_sql(call, "select token from tokens where token = '%s'",
                 call->id) == 0)
        return "duplicate";
    play_meet(call);
    play_sql(call, "delete from tokens where token = '%s'", call->id);
    play_sql(call, "insert into orders (token) values ('%s')", call->id);
    return "first";
}

const char *
play_token_redeemed(struct play_call *call)
{
    const struct idem_op op = {.verb = IDEM_REDEEM,
                               .scope = idem_text(SUBJECT),
                               .id = idem_text(call->id)};
    struct idem_answer answer = {0};
    bool redeemed;

    if (!play_do(call, &op, &answer))
        return NULL;
    redeemed = answer.verdict == IDEM_V_REDEEMED;
    idem_answer_clear(&answer);
    if (!redeemed)
        return "duplicate";
    play_hold(call);
    play_sql(call, "insert into orders (token) values ('%s')", call->id);
    return "first";
}

void
play_token_issue(struct play *play)
{
    const struct idem_op op = {.verb = IDEM_ISSUE,
                               .scope = idem_text(SUBJECT),
                               .id = idem_text(PLAY_ID),
                               .ttl_ms = MINUTE_MS};
    struct idem_answer answer = {0};

    if (play->protect && play_do_as(play, PLAY_CLIENT, &op, &answer))
        idem_answer_clear(&answer);
}

/* ---- a request that runs once: begin, work, finish --------------------- */

static bool
begin(struct play_call *call, const char *scope, enum idem_mode mode,
      int64_t lease_ms, int64_t wait_ms, struct idem_answer *answer)
{
    const struct idem_op op = {.verb = IDEM_BEGIN,
                               .scope = idem_text(scope),
                               .id = idem_text(call->id),
                               .mode = mode,
                               .lease_ms = lease_ms,
                               .wait_ms = wait_ms};

    *answer = (struct idem_answer){0};
    return play_do(call, &op, answer);
}

/* True: the result is recorded. */
static bool
finish(struct play_call *call, const char *scope, uint64_t fence,
       enum idem_state outcome, const char *result)
{
    const struct idem_op op = {.verb = IDEM_FINISH,
                               .scope = idem_text(scope),
                               .id = idem_text(call->id),
                               .fence = fence,
                               .outcome = outcome,
                               .result = idem_text(result)};
    struct idem_answer answer = {0};
    bool done = play_do(call, &op, &answer);

    idem_answer_clear(&answer);
    return done;
}

/* The client's reply if this call must not do the work; NULL: it does the work,
 * under this fence. Clears the answer. */
static const char *
other_reply(struct idem_answer *answer, uint64_t *fence)
{
    bool failed = answer->record->state == IDEM_STATE_FAILED;
    enum idem_verdict verdict = answer->verdict;

    *fence = answer->record->fence;
    idem_answer_clear(answer);
    switch (verdict) {
    case IDEM_V_STARTED:
        return NULL;
    case IDEM_V_REPLAY:
        return failed ? "failed" : "replay";
    case IDEM_V_DOUBT:
        return "doubt";
    default:
        return "busy";
    }
}

/* Begin. True: this call does the work, under this fence; false: it replies
 * `reply`. */
static bool
claim(struct play_call *call, const char *scope, enum idem_mode mode,
      uint64_t *fence, const char **reply)
{
    struct idem_answer answer;
    bool asked = begin(call, scope, mode, MINUTE_MS, 0, &answer);

    *reply = asked ? other_reply(&answer, fence) : NULL;
    return asked && !*reply;
}

/* ---- source + seq ------------------------------------------------------ */

const char *
play_seq_looked_up(struct play_call *call)
{
    if (play_sql(call, "select seq from payments where seq = '%s'", call->id) >
        0)
        return "duplicate";
    play_meet(call); /* the payment takes some time */
    play_sql(call, "insert into payments (seq) values ('%s')", call->id);
    return "first";
}

const char *
play_seq_begun(struct play_call *call)
{
    struct idem_answer answer;
    const char *reply;
    uint64_t fence;

    if (!begin(call, SCOPE, IDEM_STRICT, MINUTE_MS, 0, &answer))
        return NULL;
    if (answer.verdict == IDEM_V_BUSY) {
        idem_answer_clear(&answer);
        play_note(call, "busy");
        play_answered(call->play);
        if (!begin(call, SCOPE, IDEM_STRICT, MINUTE_MS, PLAY_MEET_MS, &answer))
            return NULL;
    }
    reply = other_reply(&answer, &fence);
    if (reply)
        return reply;
    play_hold(call);
    play_sql(call, "insert into payments (seq) values ('%s')", call->id);
    return finish(call, SCOPE, fence, IDEM_STATE_SUCCEEDED, "paid") ? "first"
                                                                    : NULL;
}

/* ---- unknown outcome --------------------------------------------------- */

/* There is no record of the first try, so the bank is asked again. In "query"
 * the client has asked, got "not found", and paid another way; its first
 * request was only late. */
const char *
play_bank_retried(struct play_call *call)
{
    if (call->play->action == PLAY_QUERY && call->number == 0) {
        play_sql(call, "select id from payments where code = '%s'", call->id);
        play_note(call, "otherway");
        play_sql(call, "insert into payments (code) values ('%s')",
                 PLAY_OTHER_ID);
        return "absent";
    }
    play_sql(call, "insert into payments (code) values ('%s')", call->id);
    return call->dies ? NULL : "first";
}

/* The compensation query: make sure that the request cannot happen any more. */
static const char *
give_up(struct play_call *call)
{
    const struct idem_op op = {.verb = IDEM_SETTLE,
                               .scope = idem_text("bank"),
                               .id = idem_text(call->id),
                               .result = idem_text("the client gave up")};
    struct idem_answer answer = {0};
    bool settled =
        play_do(call, &op, &answer) && answer.verdict == IDEM_V_SETTLED;

    idem_answer_clear(&answer);
    if (!settled)
        return play_broke(call->play, "settle", "unexpected verdict");
    play_note(call, "otherway");
    play_sql(call, "insert into payments (code) values ('%s')", PLAY_OTHER_ID);
    return "settled";
}

const char *
play_bank_strict(struct play_call *call)
{
    struct idem_answer answer;
    const char *reply;
    uint64_t fence;

    if (call->play->action == PLAY_QUERY && call->number == 0)
        return give_up(call);
    if (!begin(call, "bank", IDEM_STRICT, PLAY_LEASE_MS, 0, &answer))
        return NULL;
    if (answer.verdict == IDEM_V_BUSY) { /* the lease of the dead worker */
        play_note(call, "busy");
        while (answer.verdict == IDEM_V_BUSY) {
            idem_answer_clear(&answer);
            play_sleep_ms(PLAY_LEASE_MS);
            if (!begin(call, "bank", IDEM_STRICT, PLAY_LEASE_MS, 0, &answer))
                return NULL;
        }
    }
    reply = other_reply(&answer, &fence);
    if (reply)
        return reply;
    play_sql(call, "insert into payments (code) values ('%s')", call->id);
    if (call->dies)
        return NULL;
    return finish(call, "bank", fence, IDEM_STATE_SUCCEEDED, "paid") ? "first"
                                                                     : NULL;
}

/* An operator finds the payment and settles the doubt; or the late request
 * arrives. Then the client sends the request again. */
void
play_bank_after(struct play *play)
{
    const struct idem_op op = {.verb = IDEM_SETTLE,
                               .scope = idem_text("bank"),
                               .id = idem_text(PLAY_ID),
                               .outcome = IDEM_STATE_SUCCEEDED,
                               .result = idem_text("paid")};
    struct idem_answer answer = {0};

    if (play->action == PLAY_QUERY) {
        play_tell(play, PLAY_CLIENT, PLAY_CLIENT, "note", "arrives");
        play_send(play, 1, PLAY_ID);
    } else if (play->action == PLAY_KILL && play->protect) {
        play_tell(play, PLAY_OPERATOR, PLAY_OPERATOR, "note", "looks");
        if (play_do_as(play, PLAY_OPERATOR, &op, &answer))
            idem_answer_clear(&answer);
        play_send(play, 1, PLAY_ID);
    }
}

/* ---- message redelivered ----------------------------------------------- */

const char *
play_message_handled(struct play_call *call)
{
    play_meet(call);
    play_sql(call, "insert into mails (message) values ('%s')", call->id);
    return "first";
}

/* What `idem consume` does around a handler. */
const char *
play_message_consumed(struct play_call *call)
{
    const char *reply;
    uint64_t fence;

    if (!claim(call, "mailer", IDEM_STRICT, &fence, &reply))
        return reply;
    play_hold(call);
    play_sql(call, "insert into mails (message) values ('%s')", call->id);
    return finish(call, "mailer", fence, IDEM_STATE_SUCCEEDED, "") ? "first"
                                                                   : NULL;
}

/* ---- strict and loose --------------------------------------------------- */

/* The first try fails. Strict: the failure is the final answer. Loose: a retry
 * may run. */
static const char *
try_once(struct play_call *call, enum idem_mode mode)
{
    bool fails = call->number == 0;
    struct idem_answer answer = {0};
    struct idem_op op;
    const char *reply;
    uint64_t fence;
    bool done;

    if (!claim(call, "shop", mode, &fence, &reply))
        return reply;
    play_sql(call, "insert into attempts (result) values ('%s')",
             fails ? "out of stock" : "ordered");
    if (mode == IDEM_STRICT || !fails)
        return !finish(call, "shop", fence,
                       fails ? IDEM_STATE_FAILED : IDEM_STATE_SUCCEEDED,
                       fails ? "out of stock" : "ordered")
                   ? NULL
               : fails ? "failed"
                       : "first";
    op = (struct idem_op){.verb = IDEM_RELEASE,
                          .scope = idem_text("shop"),
                          .id = idem_text(call->id),
                          .fence = fence};
    done = play_do(call, &op, &answer);
    idem_answer_clear(&answer);
    return done ? "failed" : NULL;
}

const char *
play_loose(struct play_call *call)
{
    return try_once(call, IDEM_LOOSE);
}

const char *
play_strict(struct play_call *call)
{
    return try_once(call, IDEM_STRICT);
}

/* ---- distributed lock --------------------------------------------------- */

static bool
is_paused(const struct play_call *call)
{
    return call->play->action == PLAY_PAUSE && call->number == 0;
}

/* The first holder sleeps (a long garbage collection) until the second one has
 * written. */
static void
sleep_too_long(struct play_call *call)
{
    if (!is_paused(call))
        return;
    play_note(call, "sleeps");
    play_arrived(call);
    play_wait_answered(call);
    play_note(call, "wakes");
}

/* SET name owner NX PX: a lock with an expiry but without a fence. */
static bool
take_expiring(struct play_call *call, const char *me)
{
    long long now = idem__mono_ms();

    return play_sql(call,
                    "update locks set owner = '%s', until = %lld where until "
                    "< %lld",
                    me, now + PLAY_LEASE_MS, now) > 0;
}

const char *
play_lock_expiring(struct play_call *call)
{
    const char *me = call->number == 0 ? "A" : "B";

    while (!take_expiring(call, me) && !play_is_over(call->play))
        play_sleep_ms(PLAY_LEASE_MS);
    sleep_too_long(call);
    play_sql(call, "update report set body = 'by %s'", me);
    play_sql(call, "insert into writes (body) values ('by %s')", me);
    return "first";
}

const char *
play_lock_fenced(struct play_call *call)
{
    const char *me = call->number == 0 ? "A" : "B";
    const struct idem_op op = {.verb = IDEM_LOCK,
                               .scope = idem_text("locks"),
                               .id = idem_text("report"),
                               .subject = idem_text(me),
                               .lease_ms = PLAY_LEASE_MS,
                               .wait_ms = call->number ? PLAY_MEET_MS : 0};
    struct idem_answer answer = {0};
    const char *reply;
    uint64_t fence;

    if (!play_do(call, &op, &answer))
        return NULL;
    reply = other_reply(&answer, &fence);
    if (reply)
        return reply;
    sleep_too_long(call);
    if (play_sql(call,
                 "update report set body = 'by %s', fence = %llu where fence "
                 "<= %llu",
                 me, (unsigned long long)fence, (unsigned long long)fence) == 0)
        return "refused";
    play_sql(call, "insert into writes (body) values ('by %s')", me);
    return "first";
}
