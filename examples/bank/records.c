/*
 * records.c - the schemes that keep a record of a request: tokens, tickets,
 * serial numbers. A repeat gets the first answer.
 *
 *   GET  /token, POST /test                a token is good for one call
 *   POST /tickets, PUT /accounts/A/TICKET  withdraw once
 *   POST /transfers                        source + seq, strict or loose
 *   POST /transfers/SOURCE/SEQ/settle      query for compensation
 *   POST /stock/ITEM/deduct                with an Idempotency-Key: once
 */
#include "bank.h"

#include <stdio.h>
#include <string.h>

/* ---- GET /token, POST /test -------------------------------------------- */

static void
get_token(struct bank *bank, const struct request *request, struct reply *reply)
{
    char token[IDEM_TOKEN_LEN + 1];
    struct idem_error err;

    if (idem_token_issue(bank->tokens, idem_text(request->person), 0, token,
                         &err) != IDEM_OK)
        say_error(reply, &err);
    else
        say(reply, 200, "%s", token);
}

static void
post_test(struct bank *bank, const struct request *request, struct reply *reply)
{
    enum idem_verdict verdict;
    struct idem_error err;

    if (idem_token_redeem(bank->tokens, idem_text(request->person),
                          request->token, &verdict, &err) != IDEM_OK)
        say_error(reply, &err);
    else
        say(reply, 200, "%s",
            verdict == IDEM_V_REDEEMED ? "正常调用" : "重复调用");
}

/* ---- POST /tickets, PUT /accounts/{account}/{ticket} -------------------- */

static void
post_tickets(struct bank *bank, struct reply *reply)
{
    char ticket[IDEM_TOKEN_LEN + 1];
    struct idem_error err;

    if (idem_token_issue(bank->engine, idem_text("withdraw"), 0, ticket,
                         &err) != IDEM_OK)
        say_error(reply, &err);
    else
        say(reply, 201, "{\"ticket\":\"%s\"}", ticket);
}

/* Run `work` once for this op, and answer. */
static void
run_once(struct db *db, struct idem_op *op, idem_sql_work_fn *work, void *arg,
         struct reply *reply)
{
    struct idem_answer answer;
    struct idem_error err;

    op->wait_ms = 2000;
    if (idem_sql_run(db->idem, op, work, arg, &answer, &err) != IDEM_OK) {
        say_error(reply, &err);
        return;
    }
    say_answer(reply, &answer);
    idem_answer_clear(&answer);
}

/* Take from a column of a row, while it suffices. */
struct deduction {
    const char *table, *id, *column, *said;
    int64_t amount;
    char answer[128];
};

static enum idem_state
deduct(void *arg, struct idem_sql *idem, uint64_t fence,
       struct idem_bytes *result)
{
    struct deduction *d = arg;
    struct idem_sql_pair key = {"id", idem_sql_text(d->id)};
    struct idem_sql_place place = {d->table, &key, 1};
    enum idem_sql_verdict verdict;
    struct idem_sql_row row;
    bool good;

    (void)fence;
    if (idem_sql_deduct(idem, &place, d->column, d->amount, &verdict, &row,
                        NULL) != IDEM_OK)
        return IDEM_STATE_ABSENT; /* the database said no: try again */
    good = verdict == IDEM_SQL_IS_FIRST;
    snprintf(d->answer, sizeof(d->answer), "{\"%s\":%lld}", d->said,
             good ? (long long)d->amount : 0);
    *result = idem_text(d->answer);
    return good ? IDEM_STATE_SUCCEEDED : IDEM_STATE_FAILED;
}

static void
put_account(struct db *db, const struct request *request, struct reply *reply)
{
    struct deduction d = {.table = "account",
                          .id = request->parts[1],
                          .column = "balance",
                          .said = "withdrawn"};
    uint8_t content[IDEM_FINGERPRINT_LEN];
    struct idem_op op = {.type = IDEM_TYPE_TOKEN,
                         .scope = idem_text("withdraw"),
                         .id = idem_text(request->parts[2]),
                         .fingerprint = content};

    if (!read_number(request, "amount", &d.amount, reply))
        return;
    fingerprint(content, "%s %lld", d.id, (long long)d.amount);
    run_once(db, &op, deduct, &d, reply);
}

/* The stock goes down once for one key, however often the call is repeated. */
static void
post_deduct(struct db *db, const struct request *request, struct reply *reply)
{
    struct deduction d = {.table = "item",
                          .id = request->parts[1],
                          .column = "stock",
                          .said = "deducted"};
    uint8_t content[IDEM_FINGERPRINT_LEN];
    struct idem_op op = {.scope = idem_text("stock"),
                         .id = idem_text(request->key),
                         .fingerprint = content};

    if (!read_number(request, "n", &d.amount, reply))
        return;
    fingerprint(content, "%s %lld", d.id, (long long)d.amount);
    run_once(db, &op, deduct, &d, reply);
}

/* ---- POST /transfers ----------------------------------------------------- */

struct transfer {
    const char *from, *to;
    int64_t amount;
    char answer[128];
};

static enum idem_state
move_money(void *arg, struct idem_sql *idem, uint64_t fence,
           struct idem_bytes *result)
{
    struct transfer *t = arg;
    struct idem_sql_pair key = {"id", idem_sql_text(t->from)};
    struct idem_sql_place from = {"account", &key, 1};
    enum idem_sql_verdict verdict;
    struct idem_sql_row row;

    (void)fence;
    *result = idem_text("{\"error\":\"refused\"}");
    if (idem_sql_deduct(idem, &from, "balance", t->amount, &verdict, &row,
                        NULL) != IDEM_OK)
        return IDEM_STATE_ABSENT;
    if (verdict != IDEM_SQL_IS_FIRST)
        return IDEM_STATE_FAILED;
    if (add_balance(idem, t->to, t->amount, &verdict, NULL) != IDEM_OK ||
        verdict == IDEM_SQL_IS_CONFLICT)
        return IDEM_STATE_ABSENT;
    if (verdict == IDEM_SQL_IS_REFUSED)
        return IDEM_STATE_FAILED; /* no such account: undo the deduction */
    snprintf(t->answer, sizeof(t->answer), "{\"moved\":%lld}",
             (long long)t->amount);
    *result = idem_text(t->answer);
    return IDEM_STATE_SUCCEEDED;
}

static void
post_transfers(struct db *db, const struct request *request,
               struct reply *reply)
{
    struct transfer t;
    const char *source, *seq;
    uint8_t content[IDEM_FINGERPRINT_LEN];
    struct idem_op op = {.fingerprint = content};

    if (!read_text(request, "source", &source, reply) ||
        !read_text(request, "seq", &seq, reply) ||
        !read_text(request, "from", &t.from, reply) ||
        !read_text(request, "to", &t.to, reply) ||
        !read_number(request, "amount", &t.amount, reply))
        return;
    op.scope = idem_text(source);
    op.id = idem_text(seq);
    if (strcmp(text_or(request, "mode", "strict"), "loose") == 0)
        op.mode = IDEM_LOOSE;
    fingerprint(content, "%s %s %lld", t.from, t.to, (long long)t.amount);
    run_once(db, &op, move_money, &t, reply);
}

/* The outcome of a transfer. If it was never executed, it never will be. */
static void
post_settle(struct db *db, const struct request *request, struct reply *reply)
{
    struct idem_op op = {.verb = IDEM_SETTLE,
                         .scope = idem_text(request->parts[1]),
                         .id = idem_text(request->parts[2])};
    struct idem_answer answer;
    struct idem_error err = {0};

    if (!db_begin(db) ||
        idem_sql_do(db->idem, &op, &answer, &err) != IDEM_OK) {
        db_rollback(db);
        say_error(reply, &err);
        return;
    }
    if (db_commit(db))
        say_answer(reply, &answer);
    else
        say(reply, 504, "{\"error\":\"lost\",\"retryable\":false}");
    idem_answer_clear(&answer);
}

bool
handle_record(struct bank *bank, struct db *db, const struct request *request,
              struct reply *reply)
{
    if (is(request, "GET", "token", 1))
        get_token(bank, request, reply);
    else if (is(request, "POST", "test", 1))
        post_test(bank, request, reply);
    else if (is(request, "POST", "tickets", 1))
        post_tickets(bank, reply);
    else if (is(request, "PUT", "accounts", 3))
        put_account(db, request, reply);
    else if (is(request, "POST", "stock", 3) && request->key)
        post_deduct(db, request, reply);
    else if (is(request, "POST", "transfers", 1))
        post_transfers(db, request, reply);
    else if (is(request, "POST", "transfers", 4))
        post_settle(db, request, reply);
    else
        return false;
    return true;
}
