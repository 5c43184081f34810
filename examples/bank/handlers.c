/*
 * handlers.c - one handler a scheme. Each is short enough to copy.
 *
 *   GET  /token, POST /test                a token is good for one call
 *   POST /tickets, PUT /accounts/A/TICKET  withdraw once, the same answer
 * always POST /orders                           unique key: an order number is
 * one order POST /votes                            unique key: a person has one
 * vote POST /stock/ITEM/deduct                only while the stock covers it
 *   PUT  /items/ITEM                       optimistic lock on a version
 *   POST /transfers                        source + seq, strict or loose
 *   POST /transfers/SOURCE/SEQ/settle      query for compensation
 *   POST /orders/NO/pay|finish|cancel      a state machine
 */
#include "bank.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* ---- answering --------------------------------------------------------- */

static void say(struct reply *reply, unsigned status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static void
say(struct reply *reply, unsigned status, const char *format, ...)
{
    va_list args;

    reply->status = status;
    va_start(args, format);
    vsnprintf(reply->text, sizeof(reply->text), format, args);
    va_end(args);
    reply->json = reply->text[0] == '{';
}

/* Nothing was done, and the client may try again. */
static void
say_error(struct reply *reply, const struct idem_error *err)
{
    fprintf(stderr, "bank: %s\n", err->text);
    say(reply, err->status == IDEM_ERR_LOST ? 504 : 503,
        "{\"error\":\"%s\",\"retryable\":%s}", idem_status_name(err->status),
        err->status == IDEM_ERR_LOST ? "false" : "true");
}

static int64_t
number(const struct request *request, const char *name)
{
    return json_integer_value(json_object_get(request->body, name));
}

static const char *
text(const struct request *request, const char *name)
{
    const char *value = json_string_value(json_object_get(request->body, name));

    return value ? value : "";
}

/* The verdicts of a record, as HTTP. */
static void
say_answer(struct reply *reply, const struct idem_answer *answer)
{
    switch (answer->verdict) {
    case IDEM_V_STARTED:
    case IDEM_V_REPLAY:
        say(reply, answer->record.state == IDEM_STATE_SUCCEEDED ? 200 : 409,
            "%.*s", (int)answer->record.result.len,
            answer->record.result.len ? (const char *)answer->record.result.data
                                      : "");
        break;
    case IDEM_V_SETTLED:
        say(reply, 200, "{\"settled\":\"%s\"}",
            idem_state_name(answer->record.state));
        break;
    case IDEM_V_UNKNOWN:
        say(reply, 403, "{\"error\":\"no such ticket\"}");
        break;
    default: /* busy, doubt, mismatch */
        say(reply, 409, "{\"error\":\"%s\"}",
            idem_verdict_name(answer->verdict));
    }
}

/* The verdicts of a scheme on our own tables, as HTTP. */
static void
say_verdict(struct reply *reply, enum idem_sql_verdict verdict)
{
    bool good =
        verdict == IDEM_SQL_IS_FIRST || verdict == IDEM_SQL_IS_DUPLICATE;

    say(reply, good ? 200 : 409, "{\"verdict\":\"%s\"}",
        idem_sql_verdict_name(verdict));
}

/* ---- GET /token, POST /test -------------------------------------------- */

static void
get_token(struct bank *bank, const struct request *request, struct reply *reply)
{
    char token[IDEM_TOKEN_LEN + 1];
    struct idem_error err;

    if (idem_token_issue(bank->engine, idem_text(request->person), 0, token,
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

    if (idem_token_redeem(bank->engine, idem_text(request->person),
                          request->token, &verdict, &err) != IDEM_OK)
        say_error(reply, &err);
    else
        say(reply, 200, "%s",
            verdict == IDEM_V_REDEEMED ? "正常调用" : "重复调用");
}

/* ---- POST /tickets, PUT /accounts/{account}/{ticket} -------------------- */

static void
post_tickets(struct bank *bank, const struct request *request,
             struct reply *reply)
{
    char ticket[IDEM_TOKEN_LEN + 1];
    struct idem_error err;

    (void)request;
    if (idem_token_issue(bank->engine, idem_text("withdraw"), 0, ticket,
                         &err) != IDEM_OK)
        say_error(reply, &err);
    else
        say(reply, 201, "{\"ticket\":\"%s\"}", ticket);
}

struct withdrawal {
    const char *account;
    int64_t amount;
    char answer[128];
};

static enum idem_state
withdraw(void *arg, struct idem_sql *idem, uint64_t fence,
         struct idem_bytes *result)
{
    struct withdrawal *w = arg;
    struct idem_sql_pair key = {"id", idem_sql_text(w->account)};
    struct idem_sql_place account = {"account", &key, 1};
    enum idem_sql_verdict verdict;
    struct idem_sql_row row;

    (void)fence;
    if (idem_sql_deduct(idem, &account, "balance", w->amount, &verdict, &row,
                        NULL) != IDEM_OK)
        return IDEM_STATE_ABSENT; /* the database said no: try again */
    snprintf(w->answer, sizeof(w->answer), "{\"withdrawn\":%lld}",
             verdict == IDEM_SQL_IS_FIRST ? (long long)w->amount : 0);
    *result = idem_text(w->answer);
    return verdict == IDEM_SQL_IS_FIRST ? IDEM_STATE_SUCCEEDED
                                        : IDEM_STATE_FAILED;
}

static void
put_account(struct db *db, const struct request *request, struct reply *reply)
{
    struct withdrawal w = {.account = request->parts[1],
                           .amount = number(request, "amount")};
    struct idem_op op = {.type = IDEM_TYPE_TOKEN,
                         .scope = idem_text("withdraw"),
                         .id = idem_text(request->parts[2]),
                         .wait_ms = 2000};
    struct idem_answer answer;
    struct idem_error err;

    if (idem_sql_run(db->idem, &op, withdraw, &w, &answer, &err) != IDEM_OK) {
        say_error(reply, &err);
        return;
    }
    say_answer(reply, &answer);
    idem_answer_clear(&answer);
}

/* ---- POST /orders, POST /votes ------------------------------------------ */

/* Commit what a scheme did, or answer its error. */
static void
end(struct db *db, enum idem_status status, enum idem_sql_verdict verdict,
    const struct idem_error *err, struct reply *reply)
{
    if (status != IDEM_OK) {
        db_rollback(db);
        say_error(reply, err);
    } else if (!db_commit(db)) {
        say(reply, 504, "{\"error\":\"lost\",\"retryable\":false}");
    } else {
        say_verdict(reply, verdict);
    }
}

static void
post_orders(struct bank *bank, struct db *db, const struct request *request,
            struct reply *reply)
{
    uint64_t fresh = (uint64_t)number(request, "no");
    struct idem_sql_pair key = {"no", {0}};
    struct idem_sql_pair values[] = {
        {"item", idem_sql_text(text(request, "item"))},
        {"state", idem_sql_text("created")}};
    struct idem_sql_place place = {"bank_order", &key, 1};
    enum idem_sql_verdict verdict = IDEM_SQL_IS_REFUSED;
    struct idem_sql_row row;
    struct idem_error err = {0};
    enum idem_status status = IDEM_OK;

    /* A client that may repeat itself asks for the number first. */
    if (fresh == 0)
        status = idem_ids_next(bank->ids, IDEM_ID_SNOWFLAKE, idem_text(""),
                               &fresh, 1, &err);
    if (status != IDEM_OK || !db_begin(db)) {
        say_error(reply, &err);
        return;
    }
    key.value = idem_sql_int((int64_t)fresh);
    status =
        idem_sql_insert_once(db->idem, &place, values, 2, &verdict, &row, &err);
    end(db, status, verdict, &err, reply);
    if (reply->status == 200)
        say(reply, verdict == IDEM_SQL_IS_FIRST ? 201 : 200,
            "{\"verdict\":\"%s\",\"no\":\"%llu\"}",
            idem_sql_verdict_name(verdict), (unsigned long long)fresh);
}

static void
post_votes(struct db *db, const struct request *request, struct reply *reply)
{
    struct idem_sql_pair key = {"person", idem_sql_text(request->person)};
    struct idem_sql_pair choice = {"choice",
                                   idem_sql_text(text(request, "choice"))};
    struct idem_sql_place place = {"vote", &key, 1};
    enum idem_sql_verdict verdict = IDEM_SQL_IS_REFUSED;
    enum idem_status status;
    struct idem_sql_row row;
    struct idem_error err = {0};

    if (!db_begin(db)) {
        say_error(reply, &err);
        return;
    }
    status = idem_sql_insert_once(db->idem, &place, &choice, 1, &verdict, &row,
                                  &err);
    end(db, status, verdict, &err, reply);
}

/* ---- POST /stock/{item}/deduct, PUT /items/{id} -------------------------- */

static void
post_deduct(struct db *db, const struct request *request, struct reply *reply)
{
    struct idem_sql_pair key = {"id", idem_sql_text(request->parts[1])};
    struct idem_sql_place item = {"item", &key, 1};
    enum idem_sql_verdict verdict = IDEM_SQL_IS_REFUSED;
    enum idem_status status;
    struct idem_sql_row row;
    struct idem_error err = {0};

    if (!db_begin(db)) {
        say_error(reply, &err);
        return;
    }
    status = idem_sql_deduct(db->idem, &item, "stock", number(request, "n"),
                             &verdict, &row, &err);
    end(db, status, verdict, &err, reply);
}

static void
put_item(struct db *db, const struct request *request, struct reply *reply)
{
    struct idem_sql_pair key = {"id", idem_sql_text(request->parts[1])};
    struct idem_sql_pair price = {"price",
                                  idem_sql_int(number(request, "price"))};
    struct idem_sql_place item = {"item", &key, 1};
    enum idem_sql_verdict verdict = IDEM_SQL_IS_REFUSED;
    enum idem_status status;
    struct idem_sql_row row;
    struct idem_error err = {0};

    if (!db_begin(db)) {
        say_error(reply, &err);
        return;
    }
    status = idem_sql_update_versioned(db->idem, &item, "version",
                                       number(request, "version"), &price, 1,
                                       &verdict, &row, &err);
    end(db, status, verdict, &err, reply);
}

/* ---- POST /transfers ----------------------------------------------------- */

struct transfer {
    const char *from, *to;
    int64_t amount;
    char answer[128];
};

/* The other side gets what the first one had. */
static enum idem_state
move_money(void *arg, struct idem_sql *idem, uint64_t fence,
           struct idem_bytes *result)
{
    struct transfer *t = arg;
    struct idem_sql_pair from_key = {"id", idem_sql_text(t->from)};
    struct idem_sql_pair to_key = {"id", idem_sql_text(t->to)};
    struct idem_sql_place from = {"account", &from_key, 1};
    struct idem_sql_place to = {"account", &to_key, 1};
    enum idem_sql_verdict verdict;
    struct idem_sql_row row;
    int64_t balance;

    (void)fence;
    *result = idem_text("{\"error\":\"refused\"}");
    if (idem_sql_deduct(idem, &from, "balance", t->amount, &verdict, &row,
                        NULL) != IDEM_OK)
        return IDEM_STATE_ABSENT;
    if (verdict != IDEM_SQL_IS_FIRST)
        return IDEM_STATE_FAILED;
    if (idem_sql_lock_row(idem, &to, 2000, &verdict, &row, NULL) != IDEM_OK ||
        verdict == IDEM_SQL_IS_CONFLICT)
        return IDEM_STATE_ABSENT;
    if (verdict != IDEM_SQL_IS_FIRST)
        return IDEM_STATE_FAILED; /* no such account: undo the deduction */
    balance = idem_sql_column(&row, "balance").number + t->amount;
    if (idem_sql_upsert(
            idem, &to,
            &(struct idem_sql_pair){"balance", idem_sql_int(balance)}, 1,
            &verdict, &row, NULL) != IDEM_OK)
        return IDEM_STATE_ABSENT;
    snprintf(t->answer, sizeof(t->answer), "{\"moved\":%lld}",
             (long long)t->amount);
    *result = idem_text(t->answer);
    return IDEM_STATE_SUCCEEDED;
}

static void
post_transfers(struct db *db, const struct request *request,
               struct reply *reply)
{
    struct transfer t = {.from = text(request, "from"),
                         .to = text(request, "to"),
                         .amount = number(request, "amount")};
    struct idem_op op = {.scope = idem_text(text(request, "source")),
                         .id = idem_text(text(request, "seq")),
                         .mode = strcmp(text(request, "mode"), "loose") == 0
                                     ? IDEM_LOOSE
                                     : IDEM_STRICT,
                         .wait_ms = 2000};
    struct idem_answer answer;
    struct idem_error err;

    if (idem_sql_run(db->idem, &op, move_money, &t, &answer, &err) != IDEM_OK) {
        say_error(reply, &err);
        return;
    }
    say_answer(reply, &answer);
    idem_answer_clear(&answer);
}

/* What became of it? If nothing did, nothing will. */
static void
post_settle(struct db *db, const struct request *request, struct reply *reply)
{
    struct idem_answer answer;
    struct idem_error err = {0};

    if (!db_begin(db) || idem_sql_settle(db->idem, idem_text(request->parts[1]),
                                         idem_text(request->parts[2]), &answer,
                                         &err) != IDEM_OK) {
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

/* ---- POST /orders/{no}/pay ------------------------------------------------
 */

static void
post_move(struct db *db, const struct request *request, struct reply *reply)
{
    static const char *const words[][3] = {{"pay", "created", "paid"},
                                           {"finish", "paid", "finished"},
                                           {"cancel", "created", "cancelled"}};
    struct idem_sql_move moves[3];
    struct idem_sql_machine machine = {"bank_order", "no", "state", moves, 3};
    enum idem_sql_verdict verdict = IDEM_SQL_IS_REFUSED;
    struct idem_error err = {0};
    enum idem_status status;
    struct idem_sql_row row;
    int which = -1;

    for (int i = 0; i < 3; i++) {
        moves[i] = (struct idem_sql_move){idem_sql_text(words[i][1]),
                                          idem_sql_text(words[i][2])};
        if (strcmp(words[i][0], request->parts[2]) == 0)
            which = i;
    }
    if (which < 0 || !db_begin(db)) {
        say(reply, 404, "{\"error\":\"pay, finish or cancel\"}");
        return;
    }
    status =
        idem_sql_move(db->idem, &machine, idem_sql_text(request->parts[1]),
                      moves[which].from, moves[which].to, &verdict, &row, &err);
    end(db, status, verdict, &err, reply);
}

/* ---- who handles what ------------------------------------------------------
 */

static bool
is(const struct request *request, const char *method, const char *first,
   size_t parts)
{
    return request->part_count == parts &&
           strcmp(request->method, method) == 0 &&
           strcmp(request->parts[0], first) == 0;
}

void
handle(struct bank *bank, const struct request *request, struct reply *reply)
{
    struct db *db;

    if (is(request, "GET", "token", 1)) {
        get_token(bank, request, reply);
        return;
    }
    if (is(request, "POST", "test", 1)) {
        post_test(bank, request, reply);
        return;
    }
    if (is(request, "POST", "tickets", 1)) {
        post_tickets(bank, request, reply);
        return;
    }
    db = db_take();
    if (is(request, "PUT", "accounts", 3))
        put_account(db, request, reply);
    else if (is(request, "POST", "orders", 1))
        post_orders(bank, db, request, reply);
    else if (is(request, "POST", "orders", 3))
        post_move(db, request, reply);
    else if (is(request, "POST", "votes", 1))
        post_votes(db, request, reply);
    else if (is(request, "POST", "stock", 3))
        post_deduct(db, request, reply);
    else if (is(request, "PUT", "items", 2))
        put_item(db, request, reply);
    else if (is(request, "POST", "transfers", 1))
        post_transfers(db, request, reply);
    else if (is(request, "POST", "transfers", 4))
        post_settle(db, request, reply);
    else
        say(reply, 404, "{\"error\":\"no such thing\"}");
    db_give_back(db);
}
