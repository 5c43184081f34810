/*
 * play_tables.c - the schemes that live in the service's own tables.
 *
 * SQLite locks whole databases, so "begin immediate" takes the place of a row
 * lock in other databases. When a worker dies, its connection is closed, which
 * rolls back what was not committed.
 */
#include "play_inner.h"

#include <stdlib.h>
#include <string.h>

/* ---- unique key -------------------------------------------------------- */

const char *
play_order_numbered(struct play_call *call)
{
    play_meet(call);
    play_sql(call, "insert into orders (code) values ('%s')", call->id);
    return "first";
}

const char *
play_order_inserted_once(struct play_call *call)
{
    const struct idem_sql_pair key = {"code", idem_sql_text(call->id)};
    const struct idem_sql_place place = {"orders", &key, 1};
    struct play_asked asked = {0};
    enum idem_status status;
    const char *reply;

    play_sql(call, "begin immediate");
    play_asks(call, "idem_sql_insert_once orders code='%s'", call->id);
    status = idem_sql_insert_once(call->sql, &place, NULL, 0, &asked.verdict,
                                  &asked.row, &asked.err);
    reply = play_verdict(call, status, &asked);
    play_sql(call, "commit");
    return reply;
}

/* ---- optimistic lock --------------------------------------------------- */

/* Both read version 10. With "double", the second request is another person who
 * wants another price; a retry wants the same price. */
static int
price_of(const struct play_call *call)
{
    return call->number == 1 && call->play->action == PLAY_DOUBLE ? 1200 : 1050;
}

const char *
play_price_swallowed(struct play_call *call)
{
    if (call->play->action != PLAY_LOSE)
        play_sql(call, "select version from item where id = 1");
    play_meet(call);
    play_sql(call,
             "update item set price = %d, version = version + 1 where id = 1 "
             "and version = 10",
             price_of(call));
    return "first"; /* 0 rows are taken for "done before, so success" */
}

const char *
play_price_versioned(struct play_call *call)
{
    const struct idem_sql_pair key = {"id", idem_sql_int(1)};
    const struct idem_sql_place place = {"item", &key, 1};
    const struct idem_sql_pair price = {"price", idem_sql_int(price_of(call))};
    struct play_asked asked = {0};
    enum idem_status status;
    const char *reply;

    if (call->play->action != PLAY_LOSE)
        play_sql(call, "select version from item where id = 1");
    play_meet(call);
    play_sql(call, "begin immediate");
    play_asks(call, "idem_sql_update_versioned item id=1 version=10 price=%d",
              price_of(call));
    status =
        idem_sql_update_versioned(call->sql, &place, "version", 10, &price, 1,
                                  &asked.verdict, &asked.row, &asked.err);
    reply = play_verdict(call, status, &asked);
    play_sql(call, "commit");
    return reply;
}

/* ---- pessimistic lock -------------------------------------------------- */

static const char *
pay_out(struct play_call *call, long balance)
{
    if (balance < 100)
        return "refused";
    play_sql(call, "update account set amount = %ld where id = 123",
             balance - 100);
    play_sql(call, "insert into payouts (amount) values (100)");
    return "first";
}

const char *
play_balance_read(struct play_call *call)
{
    long balance;

    play_sql(call, "select amount from account where id = 123");
    balance = strtol(call->value, NULL, 10);
    play_meet(call);
    return pay_out(call, balance);
}

const char *
play_balance_locked(struct play_call *call)
{
    const struct idem_sql_pair key = {"id", idem_sql_int(123)};
    const struct idem_sql_place place = {"account", &key, 1};
    struct play_asked asked = {0};
    enum idem_status status;
    const char *reply;

    play_sql(call, "begin immediate");
    play_asks(call, "idem_sql_lock_row account id=123");
    status = idem_sql_lock_row(call->sql, &place, PLAY_MEET_MS, &asked.verdict,
                               &asked.row, &asked.err);
    if (!play_verdict(call, status, &asked))
        return NULL;
    reply = pay_out(call, (long)idem_sql_column(&asked.row, "amount").number);
    play_sql(call, "commit");
    return reply;
}

/* ---- dedup table ------------------------------------------------------- */

/* The payment and the row that records it are two transactions. */
const char *
play_dedup_apart(struct play_call *call)
{
    if (play_sql(call, "select id from dedup where id = '%s'", call->id) > 0)
        return "duplicate";
    play_meet(call);
    play_sql(call, "insert into payments (code) values ('%s')", call->id);
    if (call->dies)
        return NULL;
    play_sql(call, "insert or ignore into dedup values ('%s')", call->id);
    return "first";
}

static struct idem_op
dedup_op(struct play_call *call, enum idem_verb verb)
{
    return (struct idem_op){.verb = verb,
                            .scope = idem_text("shop"),
                            .id = idem_text(call->id),
                            .wait_ms = PLAY_MEET_MS};
}

static const char *
dedup_work(struct play_call *call, uint64_t fence)
{
    struct idem_op op = dedup_op(call, IDEM_FINISH);
    struct idem_answer answer = {0};
    struct idem_error err = {0};

    play_sql(call, "insert into payments (code) values ('%s')", call->id);
    if (call->dies)
        return NULL;
    op.fence = fence;
    op.wait_ms = 0;
    op.outcome = IDEM_STATE_SUCCEEDED;
    op.result = idem_text("paid");
    play_asks(call, "idem_sql_finish shop %s: paid", call->id);
    if (idem_sql_finish(call->sql, &op, &answer, &err) != IDEM_OK)
        return play_broke(call->play, "finish", err.text);
    idem_answer_clear(&answer);
    play_sql(call, "commit");
    return "first";
}

const char *
play_dedup_together(struct play_call *call)
{
    const struct idem_op op = dedup_op(call, IDEM_BEGIN);
    struct idem_answer answer = {0};
    struct idem_error err = {0};
    enum idem_verdict verdict;
    uint64_t fence;

    play_sql(call, "begin immediate");
    play_asks(call, "idem_sql_claim shop %s", call->id);
    if (idem_sql_claim(call->sql, &op, &answer, &err) != IDEM_OK)
        return play_broke(call->play, "claim", err.text);
    verdict = answer.verdict;
    fence = answer.record->fence;
    idem_answer_clear(&answer);
    if (call->number < PLAY_SHOWN)
        play_tell(call->play, PLAY_TABLE, play_worker(call), "answer", "%s",
                  idem_verdict_name(verdict));
    if (verdict == IDEM_V_STARTED)
        return dedup_work(call, fence);
    play_sql(call, "commit");
    return verdict == IDEM_V_REPLAY ? "replay" : "busy";
}

/* ---- state machine ----------------------------------------------------- */

/* The second call is an old message, "created", that arrives late, or the same
 * payment again. */
static const char *
state_of(const struct play_call *call)
{
    return call->number == 1 && call->play->action == PLAY_LATE ? "created"
                                                                : "paid";
}

const char *
play_state_set(struct play_call *call)
{
    play_sql(call, "update orders set state = '%s' where code = '%s'",
             state_of(call), call->id);
    play_sql(call, "insert into changes (state) values ('%s')", state_of(call));
    return "first";
}

const char *
play_state_moved(struct play_call *call)
{
    const struct idem_sql_move moves[] = {
        {idem_sql_text("created"), idem_sql_text("paid")},
        {idem_sql_text("paid"), idem_sql_text("done")},
    };
    const struct idem_sql_machine machine = {"orders", "code", "state", moves,
                                             2};
    const char *to = state_of(call);
    const char *from = strcmp(to, "paid") == 0 ? "created" : "paid";
    struct play_asked asked = {0};
    enum idem_status status;
    const char *reply;

    play_sql(call, "begin immediate");
    play_asks(call, "idem_sql_move orders %s: %s -> %s", call->id, from, to);
    status = idem_sql_move(call->sql, &machine, idem_sql_text(call->id),
                           idem_sql_text(from), idem_sql_text(to),
                           &asked.verdict, &asked.row, &asked.err);
    reply = play_verdict(call, status, &asked);
    if (asked.verdict == IDEM_SQL_IS_FIRST)
        play_sql(call, "insert into changes (state) values ('%s')", to);
    play_sql(call, "commit");
    return reply;
}
