/*
 * play_schemes.c - the schemes of the playground, each in two versions: as it
 * is often written, and with idem.
 */
#include "play_inner.h"

/* The update should have happened once for each client whose reply was
 * "first". */
static int
as_told(const struct play *play)
{
    if (play->action != PLAY_DOUBLE)
        return 1;
    return (play->told & 1) + (play->told >> 1 & 1);
}

/* A failed try has no effect; in loose mode a retry runs. */
static int
tries(const struct play *play)
{
    return play->protect ? 1 : 2;
}

#define ONCE DOES(SEND) | DOES(DOUBLE) | DOES(RETRY) | DOES(LOSE) | DOES(STORM)
#define RACES DOES(DOUBLE) | DOES(RETRY) | DOES(STORM)
#define COUNT "select count(*) from "

/* clang-format off */
const struct play_scheme play_schemes[] = {
    {.name = "token",
     .actions = ONCE | DOES(RELOAD), .breaks = RACES | DOES(RELOAD),
     .request = "POST /test token:",
     .tables = "create table tokens (token text primary key);"
               "create table orders (id integer primary key, token text);"
               "insert into tokens values ('" PLAY_ID "'), ('" PLAY_OTHER_ID "')",
     .shown = "orders", .effects = COUNT "orders",
     .before = play_token_issue,
     .serve = {play_token_checked, play_token_redeemed}},
    {.name = "unique",
     .actions = ONCE, .breaks = RACES | DOES(LOSE),
     .request = "POST /orders",
     .tables = "create table orders (id integer primary key autoincrement, code text)",
     .guard = "create unique index un_code on orders (code)",
     .shown = "orders", .effects = COUNT "orders",
     .serve = {play_order_numbered, play_order_inserted_once}},
    {.name = "optimistic",
     .actions = DOES(SEND) | DOES(DOUBLE) | DOES(LOSE), .breaks = DOES(DOUBLE),
     .request = "PUT /items/1",
     .tables = "create table item (id integer primary key, name text, price integer, version integer);"
               "insert into item values (1, '小米手机', 1000, 10)",
     .shown = "item", .effects = "select version - 10 from item",
     .serve = {play_price_swallowed, play_price_versioned}, .wanted = as_told},
    {.name = "pessimistic",
     .actions = DOES(SEND) | DOES(DOUBLE) | DOES(STORM), .breaks = DOES(DOUBLE) | DOES(STORM),
     .request = "POST /accounts/123/withdraw 100",
     .tables = "create table account (id integer primary key, amount integer);"
               "create table payouts (id integer primary key, amount integer);"
               "insert into account values (123, 150)",
     .shown = "account payouts", .effects = COUNT "payouts",
     .serve = {play_balance_read, play_balance_locked}},
    {.name = "dedup",
     .actions = ONCE | DOES(KILL), .breaks = RACES | DOES(KILL),
     .request = "POST /payments",
     .tables = "create table dedup (id text primary key);"
               "create table payments (id integer primary key, code text)",
     .guard = "create view record as select cast(scope as text) scope, cast(id as text) id,"
              " case state when 3 then 'succeeded' else state end state, cast(result as text) result from idem_record",
     .shown = "payments dedup", .safe_shown = "payments record", .effects = COUNT "payments",
     .serve = {play_dedup_apart, play_dedup_together}},
    {.name = "state",
     .actions = DOES(SEND) | DOES(LOSE) | DOES(LATE), .breaks = DOES(LOSE) | DOES(LATE),
     .request = "POST /orders/state",
     .tables = "create table orders (code text primary key, state text);"
               "create table changes (id integer primary key, state text);"
               "insert into orders values ('" PLAY_ID "', 'created')",
     .shown = "orders changes", .effects = COUNT "changes",
     .serve = {play_state_set, play_state_moved}},
    {.name = "lock",
     .actions = DOES(SEND) | DOES(PAUSE), .breaks = DOES(PAUSE),
     .request = "POST /report",
     .tables = "create table locks (name text primary key, owner text, until integer);"
               "create table report (body text, fence integer);"
               "create table writes (id integer primary key, body text);"
               "insert into locks values ('report', '', 0); insert into report values ('', 0)",
     .shown = "report writes", .effects = COUNT "writes",
     .serve = {play_lock_expiring, play_lock_fenced}},
    {.name = "seq",
     .actions = ONCE, .breaks = RACES,
     .request = "POST /pay source=unionpay seq=",
     .tables = "create table payments (id integer primary key, seq text)",
     .shown = "payments", .effects = COUNT "payments",
     .serve = {play_seq_looked_up, play_seq_begun}},
    {.name = "doubt",
     .actions = DOES(SEND) | DOES(KILL) | DOES(QUERY), .breaks = DOES(KILL) | DOES(QUERY),
     .request = "POST /pay",
     .tables = "create table payments (id integer primary key, code text)",
     .shown = "payments", .effects = COUNT "payments",
     .serve = {play_bank_retried, play_bank_strict}, .after = play_bank_after},
    {.name = "message",
     .actions = DOES(SEND) | DOES(LOSE) | DOES(DOUBLE), .breaks = DOES(LOSE) | DOES(DOUBLE),
     .request = "deliver",
     .tables = "create table mails (id integer primary key, message text)",
     .shown = "mails", .effects = COUNT "mails",
     .serve = {play_message_handled, play_message_consumed}},
    {.name = "strict",
     .actions = DOES(FAIL), .breaks = 0,
     .request = "POST /orders",
     .tables = "create table attempts (id integer primary key, result text)",
     .shown = "attempts", .effects = COUNT "attempts",
     .serve = {play_loose, play_strict}, .wanted = tries},
};
/* clang-format on */

const size_t play_scheme_count = sizeof(play_schemes) / sizeof(play_schemes[0]);
