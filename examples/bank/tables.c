/*
 * tables.c - the schemes on the bank's own tables: unique keys, select and
 * insert, versions, conditions, row locks, states, barriers.
 *
 *   POST /orders                    unique key: one number is one order
 *   POST /flows                     the same, looking first (select + insert)
 *   POST /votes                     unique key: a person has one vote
 *   POST /stock/ITEM/deduct         only while the stock covers it
 *   PUT  /items/ITEM                optimistic lock on a version
 *   POST /accounts/A/withdraw       row lock: never below zero
 *   POST /orders/NO/process         row lock, then a look at the state
 *   POST /orders/NO/pay|finish|cancel   a state machine
 *   POST /branches/XID/BRANCH/try|confirm|cancel   barrier
 *   GET  /accounts/A, /orders/NO, /items/ITEM, /votes/PERSON
 */
#include "bank.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One row, by its key. */
#define PLACE(name, table_name, column_name, value)                            \
    struct idem_sql_pair name##_key = {column_name, value};                    \
    struct idem_sql_place name = {table_name, &name##_key, 1}

/* A scheme that runs: its open transaction and the result so far. */
struct scheme {
    struct db *db;
    enum idem_status status;
    enum idem_sql_verdict verdict;
    struct idem_sql_row row;
    struct idem_error err;
};

static bool
begin(struct scheme *s, struct db *db, struct reply *reply)
{
    *s = (struct scheme){.db = db, .verdict = IDEM_SQL_IS_REFUSED};
    if (db_begin(db))
        return true;
    s->err.status = IDEM_ERR_UNAVAILABLE;
    say_error(reply, &s->err);
    return false;
}

/* Word the answer while the row is there; commit what was done. */
static void
end(struct scheme *s, struct reply *reply)
{
    if (s->status != IDEM_OK) {
        db_rollback(s->db);
        say_error(reply, &s->err);
        return;
    }
    say_verdict(reply, s->verdict, &s->row);
    if (reply->status >= 400)
        db_rollback(s->db);
    else if (!db_commit(s->db))
        say(reply, 504, "{\"error\":\"lost\",\"retryable\":false}");
}

/* ---- unique keys --------------------------------------------------------- */

/* A client that may repeat its request gets the order number first, and sends
 * it back as text, exactly as it got it. */
static void
post_orders(struct bank *bank, struct db *db, const struct request *request,
            struct reply *reply)
{
    json_t *given = json_object_get(request->body, "no");
    const char *text = json_string_value(given);
    uint64_t no =
        text ? strtoull(text, NULL, 10) : (uint64_t)json_integer_value(given);
    const char *item;
    struct scheme s;

    if (!read_text(request, "item", &item, reply))
        return;
    if (given && (no == 0 || no > INT64_MAX)) {
        say(reply, 400,
            "{\"error\":\"no: an order number is needed\","
            "\"retryable\":false}");
        return;
    }
    if (!given && idem_ids_next(bank->ids, IDEM_ID_SNOWFLAKE, idem_text(""),
                                &no, 1, &s.err) != IDEM_OK) {
        say_error(reply, &s.err);
        return;
    }
    if (!begin(&s, db, reply))
        return;
    PLACE(order, "bank_order", "no", idem_sql_int((int64_t)no));
    struct idem_sql_pair values[] = {{"item", idem_sql_text(item)},
                                     {"state", idem_sql_text("created")}};
    s.status = idem_sql_insert_once(db->idem, &order, values, 2, &s.verdict,
                                    &s.row, &s.err);
    end(&s, reply);
    if (reply->status == 200)
        say(reply, s.verdict == IDEM_SQL_IS_FIRST ? 201 : 200,
            "{\"verdict\":\"%s\",\"no\":\"%llu\"}",
            idem_sql_verdict_name(s.verdict), (unsigned long long)no);
}

static void
post_flows(struct db *db, const struct request *request, struct reply *reply)
{
    const char *seq;
    int64_t amount;
    struct scheme s;

    if (!read_text(request, "seq", &seq, reply) ||
        !read_number(request, "amount", &amount, reply) ||
        !begin(&s, db, reply))
        return;
    PLACE(flow, "flow", "seq", idem_sql_text(seq));
    struct idem_sql_pair value = {"amount", idem_sql_int(amount)};
    s.status = idem_sql_select_insert(db->idem, &flow, &value, 1, &s.verdict,
                                      &s.row, &s.err);
    end(&s, reply);
}

/* The first vote counts. The response to a later vote shows the first one. */
static void
post_votes(struct db *db, const struct request *request, struct reply *reply)
{
    const char *choice;
    struct scheme s;

    if (!read_text(request, "choice", &choice, reply) || !begin(&s, db, reply))
        return;
    PLACE(vote, "vote", "person", idem_sql_text(request->person));
    struct idem_sql_pair value = {"choice", idem_sql_text(choice)};
    s.status = idem_sql_insert_once(db->idem, &vote, &value, 1, &s.verdict,
                                    &s.row, &s.err);
    end(&s, reply);
}

/* ---- conditions and versions --------------------------------------------- */

/* Without a key: the stock never goes below zero, but a repeat deducts again.
 */
static void
post_deduct(struct db *db, const struct request *request, struct reply *reply)
{
    struct scheme s;
    int64_t n;

    if (!read_number(request, "n", &n, reply) || !begin(&s, db, reply))
        return;
    PLACE(item, "item", "id", idem_sql_text(request->parts[1]));
    s.status = idem_sql_deduct(db->idem, &item, "stock", n, &s.verdict, &s.row,
                               &s.err);
    end(&s, reply);
}

static void
put_item(struct db *db, const struct request *request, struct reply *reply)
{
    struct scheme s;
    int64_t price, version;

    if (!read_number(request, "price", &price, reply) ||
        !read_number(request, "version", &version, reply) ||
        !begin(&s, db, reply))
        return;
    PLACE(item, "item", "id", idem_sql_text(request->parts[1]));
    struct idem_sql_pair value = {"price", idem_sql_int(price)};
    s.status = idem_sql_update_versioned(db->idem, &item, "version", version,
                                         &value, 1, &s.verdict, &s.row, &s.err);
    end(&s, reply);
}

/* ---- row locks -------------------------------------------------------------
 */

enum idem_status
add_balance(struct idem_sql *idem, const char *account, int64_t amount,
            enum idem_sql_verdict *verdict, struct idem_error *err)
{
    struct idem_sql_row row;
    struct idem_sql_pair balance = {"balance", {0}};
    enum idem_status status;

    PLACE(place, "account", "id", idem_sql_text(account));
    status = idem_sql_lock_row(idem, &place, 2000, verdict, &row, err);
    if (status != IDEM_OK || *verdict != IDEM_SQL_IS_FIRST)
        return status;
    balance.value =
        idem_sql_int(idem_sql_column(&row, "balance").number + amount);
    return idem_sql_upsert(idem, &place, &balance, 1, verdict, &row, err);
}

/* Lock the row, look at the balance, change it. A repeat withdraws again: that
 * is what tickets are for. */
static void
post_withdraw(struct db *db, const struct request *request, struct reply *reply)
{
    struct scheme s;
    int64_t amount, balance;

    if (!read_number(request, "amount", &amount, reply) ||
        !begin(&s, db, reply))
        return;
    PLACE(account, "account", "id", idem_sql_text(request->parts[1]));
    s.status =
        idem_sql_lock_row(db->idem, &account, 2000, &s.verdict, &s.row, &s.err);
    if (s.status == IDEM_OK && s.verdict == IDEM_SQL_IS_FIRST) {
        balance = idem_sql_column(&s.row, "balance").number - amount;
        if (balance < 0)
            s.verdict = IDEM_SQL_IS_REFUSED;
        else
            s.status = add_balance(db->idem, request->parts[1], -amount,
                                   &s.verdict, &s.err);
        s.row.count = 0;
        if (balance >= 0)
            s.verdict = IDEM_SQL_IS_FIRST;
    }
    end(&s, reply);
}

/* The first request that locks the row finds the order in state "created"; the
 * others find it "finished". */
static void
post_process(struct db *db, const struct request *request, struct reply *reply)
{
    struct idem_sql_pair state = {"state", idem_sql_text("finished")};
    struct idem_sql_value was;
    struct scheme s;

    if (!begin(&s, db, reply))
        return;
    PLACE(order, "bank_order", "no",
          idem_sql_int(strtoll(request->parts[1], NULL, 10)));
    s.status =
        idem_sql_lock_row(db->idem, &order, 2000, &s.verdict, &s.row, &s.err);
    was = idem_sql_column(&s.row, "state");
    if (s.status == IDEM_OK && s.verdict == IDEM_SQL_IS_FIRST &&
        was.bytes.len == 7 && memcmp(was.bytes.data, "created", 7) == 0) {
        s.status = idem_sql_upsert(db->idem, &order, &state, 1, &s.verdict,
                                   &s.row, &s.err);
        s.verdict = IDEM_SQL_IS_FIRST;
    } else if (s.status == IDEM_OK && s.verdict == IDEM_SQL_IS_FIRST) {
        s.verdict = IDEM_SQL_IS_DUPLICATE;
    }
    end(&s, reply);
}

/* ---- states ----------------------------------------------------------------
 */

static void
post_move(struct db *db, const struct request *request, struct reply *reply)
{
    static const char *const words[][3] = {{"pay", "created", "paid"},
                                           {"finish", "paid", "finished"},
                                           {"cancel", "created", "cancelled"}};
    struct idem_sql_move moves[3];
    struct idem_sql_machine machine = {"bank_order", "no", "state", moves, 3};
    struct scheme s;
    int which = -1;

    for (int i = 0; i < 3; i++) {
        moves[i] = (struct idem_sql_move){idem_sql_text(words[i][1]),
                                          idem_sql_text(words[i][2])};
        if (strcmp(words[i][0], request->parts[2]) == 0)
            which = i;
    }
    if (which < 0) {
        say(reply, 404, "{\"error\":\"process, pay, finish or cancel\"}");
        return;
    }
    if (!begin(&s, db, reply))
        return;
    s.status = idem_sql_move(
        db->idem, &machine, idem_sql_text(request->parts[1]), moves[which].from,
        moves[which].to, &s.verdict, &s.row, &s.err);
    end(&s, reply);
}

/* ---- barrier ---------------------------------------------------------------
 */

/* try takes the money, cancel gives it back, confirm has nothing left to do. */
static void
post_branch(struct db *db, const struct request *request, struct reply *reply)
{
    static const char *const words[] = {"try", "confirm", "cancel"};
    const char *account;
    int64_t amount;
    struct scheme s;
    int phase = 0;

    while (phase < 3 && strcmp(words[phase], request->parts[3]) != 0)
        phase++;
    if (phase == 3) {
        say(reply, 404, "{\"error\":\"try, confirm or cancel\"}");
        return;
    }
    if (!read_text(request, "account", &account, reply) ||
        !read_number(request, "amount", &amount, reply) ||
        !begin(&s, db, reply))
        return;
    s.status = idem_sql_barrier(db->idem, idem_text(request->parts[1]),
                                idem_text(request->parts[2]),
                                (enum idem_sql_phase)phase, &s.verdict, &s.err);
    if (s.status == IDEM_OK && s.verdict == IDEM_SQL_IS_FIRST) {
        PLACE(place, "account", "id", idem_sql_text(account));
        if (phase == IDEM_SQL_TRY)
            s.status = idem_sql_deduct(db->idem, &place, "balance", amount,
                                       &s.verdict, &s.row, &s.err);
        if (phase == IDEM_SQL_CANCEL) {
            s.status =
                add_balance(db->idem, account, amount, &s.verdict, &s.err);
            if (s.verdict == IDEM_SQL_IS_DUPLICATE)
                s.verdict = IDEM_SQL_IS_FIRST; /* the upsert found its row */
        }
    }
    end(&s, reply);
}

/* ---- looking ----------------------------------------------------------------
 */

static void
get_row(struct db *db, const char *table, const char *column,
        struct idem_sql_value key, struct reply *reply)
{
    struct scheme s;

    if (!begin(&s, db, reply))
        return;
    PLACE(place, table, column, key);
    s.status =
        idem_sql_lock_row(db->idem, &place, 2000, &s.verdict, &s.row, &s.err);
    if (s.status != IDEM_OK)
        say_error(reply, &s.err);
    else
        say_row(reply, &s.row);
    db_rollback(db);
}

static bool
handle_get(struct db *db, const struct request *request, struct reply *reply)
{
    const char *id = request->parts[1];

    if (is(request, "GET", "accounts", 2))
        get_row(db, "account", "id", idem_sql_text(id), reply);
    else if (is(request, "GET", "items", 2))
        get_row(db, "item", "id", idem_sql_text(id), reply);
    else if (is(request, "GET", "votes", 2))
        get_row(db, "vote", "person", idem_sql_text(id), reply);
    else if (is(request, "GET", "orders", 2))
        get_row(db, "bank_order", "no", idem_sql_int(strtoll(id, NULL, 10)),
                reply);
    else
        return false;
    return true;
}

bool
handle_table(struct bank *bank, struct db *db, const struct request *request,
             struct reply *reply)
{
    bool process =
        request->part_count == 3 && strcmp(request->parts[2], "process") == 0;

    if (is(request, "POST", "orders", 1))
        post_orders(bank, db, request, reply);
    else if (is(request, "POST", "orders", 3) && process)
        post_process(db, request, reply);
    else if (is(request, "POST", "orders", 3))
        post_move(db, request, reply);
    else if (is(request, "POST", "flows", 1))
        post_flows(db, request, reply);
    else if (is(request, "POST", "votes", 1))
        post_votes(db, request, reply);
    else if (is(request, "POST", "stock", 3))
        post_deduct(db, request, reply);
    else if (is(request, "PUT", "items", 2))
        put_item(db, request, reply);
    else if (is(request, "POST", "accounts", 3))
        post_withdraw(db, request, reply);
    else if (is(request, "POST", "branches", 4))
        post_branch(db, request, reply);
    else
        return handle_get(db, request, reply);
    return true;
}
