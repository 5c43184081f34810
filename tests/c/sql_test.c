/*
 * sql_test.c - the schemes in the caller's own transaction: each verdict, each
 * error, one caller at a time.
 *
 *   build/tests/c/sql_test                                    on SQLite
 *   IDEM_TEST_SQL=postgres://... build/tests/c/sql_test       or mysql://
 */
#include "../support/sqldb.h"
#include "../support/stores.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <pthread.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static struct sqldb one, two;
static struct idem_error err;
static int run_number;

/* Each test has scopes of its own. */
static struct idem_bytes
scope(void)
{
    static char text[64];

    snprintf(text, sizeof(text), "sql-%d-%d", (int)getpid(), run_number);
    return idem_text(text);
}

static int
set_up(void **state)
{
    (void)state;
    run_number++;
    sqldb_open(&one);
    sqldb_open(&two);
    sqldb_try(&one, "drop table if exists t_account");
    sqldb_run(&one,
              "create table t_account (id integer not null primary key, "
              "balance bigint not null, version bigint not null, "
              "name varchar(40)%s not null, note varchar(40))",
              one.sqlite ? " collate nocase" : "");
    sqldb_run(&one, "insert into t_account values (1, 100, 1, 'ann', 'x'), "
                    "(2, 0, 1, 'bob', 'x')");
    return 0;
}

static int
tear_down(void **state)
{
    (void)state;
    sqldb_close(&two);
    sqldb_try(&one, "rollback");
    sqldb_run(&one, "drop table t_account");
    sqldb_close(&one);
    return 0;
}

static struct idem_op
op_of(const char *id)
{
    return (struct idem_op){.scope = scope(), .id = idem_text(id)};
}

static enum idem_verdict
claim(struct sqldb *s, const struct idem_op *op, struct idem_answer *answer)
{
    enum idem_status status = idem_sql_claim(s->db, op, answer, &err);

    if (status != IDEM_OK)
        fail_msg("%s", err.text);
    return answer->verdict;
}

static enum idem_verdict
finish(struct sqldb *s, const char *id, uint64_t fence, const char *result)
{
    struct idem_answer answer;
    enum idem_verdict verdict;
    struct idem_op op = {.scope = scope(),
                         .id = idem_text(id),
                         .fence = fence,
                         .outcome = IDEM_STATE_SUCCEEDED,
                         .result = idem_text(result)};
    enum idem_status status = idem_sql_finish(s->db, &op, &answer, &err);

    if (status != IDEM_OK)
        fail_msg("%s", err.text);
    verdict = answer.verdict;
    idem_answer_clear(&answer);
    return verdict;
}

static enum idem_verdict
ask(struct sqldb *s, enum idem_verb verb, const char *id, uint64_t fence,
    struct idem_answer *answer)
{
    struct idem_op op = {
        .verb = verb, .scope = scope(), .id = idem_text(id), .fence = fence};

    assert_int_equal(idem_sql_do(s->db, &op, answer, &err), IDEM_OK);
    return answer->verdict;
}

static enum idem_verdict
get(struct sqldb *s, const char *id, struct idem_answer *answer)
{
    return ask(s, IDEM_GET, id, 0, answer);
}

/* ---- records ----------------------------------------------------------- */

static void
a_second_claim_gets_the_first_result(void **state)
{
    struct idem_op op = op_of("a");
    struct idem_answer answer;
    uint64_t fence;

    (void)state;
    sqldb_begin(&one);
    assert_int_equal(claim(&one, &op, &answer), IDEM_V_STARTED);
    fence = answer.record->fence;
    assert_true(fence > 0);
    idem_answer_clear(&answer);
    assert_int_equal(finish(&one, "a", fence, "42"), IDEM_V_OK);
    sqldb_run(&one, "commit");

    sqldb_begin(&two);
    assert_int_equal(claim(&two, &op, &answer), IDEM_V_REPLAY);
    assert_int_equal(answer.record->result.len, 2);
    assert_memory_equal(answer.record->result.data, "42", 2);
    idem_answer_clear(&answer);
    sqldb_run(&two, "commit");
}

static void
a_claim_that_is_rolled_back_never_was(void **state)
{
    struct idem_op op = op_of("b");
    struct idem_answer answer;

    (void)state;
    sqldb_begin(&one);
    assert_int_equal(claim(&one, &op, &answer), IDEM_V_STARTED);
    idem_answer_clear(&answer);
    sqldb_run(&one, "rollback");
    assert_int_equal(get(&two, "b", &answer), IDEM_V_ABSENT);
    sqldb_begin(&two);
    assert_int_equal(claim(&two, &op, &answer), IDEM_V_STARTED);
    idem_answer_clear(&answer);
    sqldb_run(&two, "rollback");
}

static void
a_claim_that_is_not_committed_is_busy_at_once(void **state)
{
    struct idem_op op = op_of("c");
    struct idem_answer answer;
    time_t before = time(NULL);

    (void)state;
    sqldb_patience(&two, 50);
    sqldb_begin(&one);
    assert_int_equal(claim(&one, &op, &answer), IDEM_V_STARTED);
    idem_answer_clear(&answer);
    sqldb_run(&two, two.sqlite ? "begin" : "start transaction");
    assert_int_equal(claim(&two, &op, &answer), IDEM_V_BUSY);
    assert_true(answer.retry_after_ms > 0);
    idem_answer_clear(&answer);
    assert_true(time(NULL) - before < 20);
    sqldb_run(&two, "rollback");
    sqldb_run(&one, "rollback");
}

static void
a_committed_claim_is_busy_then_in_doubt(void **state)
{
    struct idem_op op = op_of("d");
    struct idem_answer answer;

    (void)state;
    op.lease_ms = 4000;
    sqldb_begin(&one);
    assert_int_equal(claim(&one, &op, &answer), IDEM_V_STARTED);
    idem_answer_clear(&answer);
    sqldb_run(&one, "commit");
    sqldb_begin(&two);
    assert_int_equal(claim(&two, &op, &answer), IDEM_V_BUSY);
    idem_answer_clear(&answer);
    sqldb_run(&two, "rollback");
    usleep(4300000);
    sqldb_begin(&two);
    assert_int_equal(claim(&two, &op, &answer), IDEM_V_DOUBT);
    idem_answer_clear(&answer);
    sqldb_run(&two, "rollback");
}

static void
loose_is_taken_over_with_a_larger_fence(void **state)
{
    struct idem_op op = op_of("e");
    struct idem_answer answer;
    uint64_t first;

    (void)state;
    op.mode = IDEM_LOOSE;
    op.lease_ms = 200;
    sqldb_begin(&one);
    assert_int_equal(claim(&one, &op, &answer), IDEM_V_STARTED);
    first = answer.record->fence;
    idem_answer_clear(&answer);
    sqldb_run(&one, "commit");
    usleep(400000);
    sqldb_begin(&two);
    assert_int_equal(claim(&two, &op, &answer), IDEM_V_STARTED);
    assert_true(answer.record->fence > first);
    assert_int_equal(answer.record->attempt, 2);
    idem_answer_clear(&answer);
    sqldb_run(&two, "commit");

    /* The first one's business must not be committed any more. */
    sqldb_begin(&one);
    sqldb_run(&one, "update t_account set balance = 0 where id = 1");
    assert_int_equal(finish(&one, "e", first, "late"), IDEM_V_STALE);
    sqldb_try(&one, "commit");
    assert_int_equal(
        sqldb_number(&two, "select balance from t_account where id = 1"), 100);
}

static void
another_request_under_the_same_id_is_a_mismatch(void **state)
{
    uint8_t print_a[IDEM_FINGERPRINT_LEN] = {1}, print_b[32] = {2};
    struct idem_op op = op_of("f");
    struct idem_answer answer;

    (void)state;
    op.fingerprint = print_a;
    sqldb_begin(&one);
    assert_int_equal(claim(&one, &op, &answer), IDEM_V_STARTED);
    idem_answer_clear(&answer);
    sqldb_run(&one, "commit");
    op.fingerprint = print_b;
    sqldb_begin(&one);
    assert_int_equal(claim(&one, &op, &answer), IDEM_V_MISMATCH);
    sqldb_run(&one, "rollback");
}

static void
join_holds_the_claim_of_another_connection(void **state)
{
    struct idem_op op = op_of("g");
    struct idem_answer answer;
    uint64_t fence;

    (void)state;
    sqldb_begin(&one);
    assert_int_equal(claim(&one, &op, &answer), IDEM_V_STARTED);
    fence = answer.record->fence;
    idem_answer_clear(&answer);
    sqldb_run(&one, "commit");

    sqldb_begin(&two);
    assert_int_equal(idem_sql_join(two.db, scope(), idem_text("g"), fence + 1,
                                   0, &answer, &err),
                     IDEM_OK);
    assert_int_equal(answer.verdict, IDEM_V_STALE);
    assert_int_equal(
        idem_sql_join(two.db, scope(), idem_text("g"), fence, 0, &answer, &err),
        IDEM_OK);
    assert_int_equal(answer.verdict, IDEM_V_STARTED);
    idem_answer_clear(&answer);
    assert_int_equal(finish(&two, "g", fence, "done"), IDEM_V_OK);
    sqldb_run(&two, "commit");

    sqldb_begin(&one);
    assert_int_equal(
        idem_sql_join(one.db, scope(), idem_text("g"), fence, 0, &answer, &err),
        IDEM_OK);
    assert_int_equal(answer.verdict, IDEM_V_REPLAY);
    idem_answer_clear(&answer);
    sqldb_run(&one, "rollback");
}

static void
settle_keeps_a_late_request_out(void **state)
{
    struct idem_op op = op_of("h");
    struct idem_answer answer;

    (void)state;
    sqldb_begin(&one);
    assert_int_equal(ask(&one, IDEM_SETTLE, "h", 0, &answer), IDEM_V_SETTLED);
    idem_answer_clear(&answer);
    sqldb_run(&one, "commit");
    sqldb_begin(&two);
    assert_int_equal(claim(&two, &op, &answer), IDEM_V_REPLAY);
    assert_int_equal(answer.record->state, IDEM_STATE_FAILED);
    idem_answer_clear(&answer);
    sqldb_run(&two, "rollback");
}

static void
a_released_claim_may_run_again(void **state)
{
    struct idem_op op = op_of("i");
    struct idem_answer answer;
    uint64_t fence;

    (void)state;
    sqldb_begin(&one);
    assert_int_equal(claim(&one, &op, &answer), IDEM_V_STARTED);
    fence = answer.record->fence;
    idem_answer_clear(&answer);
    assert_int_equal(ask(&one, IDEM_RELEASE, "i", fence, &answer), IDEM_V_OK);
    idem_answer_clear(&answer);
    sqldb_run(&one, "commit");
    sqldb_begin(&two);
    assert_int_equal(claim(&two, &op, &answer), IDEM_V_STARTED);
    assert_true(answer.record->fence > fence);
    idem_answer_clear(&answer);
    sqldb_run(&two, "commit");
}

static void
outside_a_transaction_nothing_is_claimed(void **state)
{
    struct idem_op op = op_of("j");
    struct idem_answer answer;
    enum idem_sql_verdict verdict;
    struct idem_sql_row row;
    struct idem_sql_pair key = {"id", idem_sql_int(1)};
    struct idem_sql_place place = {"t_account", &key, 1};

    (void)state;
    memset(&answer, 0x5a, sizeof(answer));
    assert_int_equal(idem_sql_claim(one.db, &op, &answer, &err),
                     IDEM_ERR_INVALID);
    assert_int_equal(answer.record->state, IDEM_STATE_ABSENT);
    idem_answer_clear(&answer); /* an error leaves it empty */
    assert_non_null(strstr(err.text, "transaction"));
    assert_int_equal(
        idem_sql_deduct(one.db, &place, "balance", 1, &verdict, &row, &err),
        IDEM_ERR_INVALID);
    assert_int_equal(get(&one, "j", &answer), IDEM_V_ABSENT);
    assert_int_equal(
        sqldb_number(&one, "select balance from t_account where id = 1"), 100);
}

static void
a_missing_table_says_how_to_make_it(void **state)
{
    struct idem_op op = op_of("k");
    struct idem_answer answer;
    const char *table = one.postgres ? "idem.idem_record" : "idem_record";
    const char *back = one.postgres ? "idem.idem_aside" : "idem_aside";

    (void)state;
    sqldb_run(&one, "alter table %s rename to idem_aside", table);
    sqldb_begin(&two);
    assert_int_equal(idem_sql_claim(two.db, &op, &answer, &err),
                     IDEM_ERR_INVALID);
    assert_non_null(strstr(err.text, "idem store init"));
    assert_int_equal(idem_sql_fault(two.db)->cause, IDEM_SQL_MISSING_TABLE);
    sqldb_run(&two, "rollback");
    sqldb_run(&one, "alter table %s rename to idem_record", back);
}

static void
a_snapshot_that_cannot_see_is_refused(void **state)
{
    struct idem_op op = op_of("l");
    struct idem_answer answer;

    (void)state;
    if (one.mysql) { /* reads what is committed, or locks, but for one level */
        sqldb_begin(&two);
        assert_int_equal(claim(&two, &op, &answer), IDEM_V_STARTED);
        idem_answer_clear(&answer);
        sqldb_run(&one, "set session transaction isolation level read "
                        "uncommitted");
        sqldb_begin(&one);
        assert_int_equal(idem_sql_claim(one.db, &op, &answer, &err),
                         IDEM_ERR_INVALID);
        assert_non_null(strstr(err.text, "read committed"));
        sqldb_run(&one, "rollback");
        op.verb = IDEM_GET;
        assert_int_equal(idem_sql_do(one.db, &op, &answer, &err),
                         IDEM_ERR_INVALID);
        sqldb_run(&two, "rollback");
        sqldb_run(&one, "set session transaction isolation level repeatable "
                        "read");
        return;
    }
    if (!one.postgres) { /* sqlite: one writer at a time */
        assert_null(one.postgres);
        return;
    }
    sqldb_run(&one, "begin isolation level repeatable read");
    assert_int_equal(idem_sql_claim(one.db, &op, &answer, &err),
                     IDEM_ERR_INVALID);
    assert_non_null(strstr(err.text, "read committed"));
    sqldb_run(&one, "rollback");
    assert_int_equal(get(&one, "l", &answer), IDEM_V_ABSENT);
}

/* ---- run --------------------------------------------------------------- */

struct work {
    struct sqldb *s;
    enum idem_state outcome;
    int ran;
    bool ends_transaction;
};

static enum idem_state
withdraw(void *arg, struct idem_sql *db, uint64_t fence,
         struct idem_bytes *result)
{
    struct work *work = arg;

    (void)db;
    assert_true(fence > 0);
    work->ran++;
    sqldb_run(work->s, "update t_account set balance = balance - 10 "
                       "where id = 1");
    if (work->ends_transaction)
        sqldb_run(work->s, "rollback");
    *result = idem_text(work->outcome == IDEM_STATE_FAILED ? "no" : "yes");
    return work->outcome;
}

static enum idem_status
run_work(struct work *work, const char *id, enum idem_mode mode,
         struct idem_answer *answer)
{
    struct idem_op op = op_of(id);

    op.mode = mode;
    return idem_sql_run(work->s->db, &op, withdraw, work, answer, &err);
}

static long long
balance(struct sqldb *s)
{
    return sqldb_number(s, "select balance from t_account where id = 1");
}

static void
run_does_it_once_and_replays(void **state)
{
    struct work work = {&one, IDEM_STATE_SUCCEEDED, 0, false};
    struct idem_answer answer;

    (void)state;
    for (int i = 0; i < 3; i++) {
        assert_int_equal(run_work(&work, "r1", IDEM_STRICT, &answer), IDEM_OK);
        assert_int_equal(answer.verdict,
                         i == 0 ? IDEM_V_STARTED : IDEM_V_REPLAY);
        assert_int_equal(answer.record->state, IDEM_STATE_SUCCEEDED);
        assert_memory_equal(answer.record->result.data, "yes", 3);
        idem_answer_clear(&answer);
    }
    assert_int_equal(work.ran, 1);
    assert_int_equal(balance(&two), 90);
}

static void
strict_records_a_failure_and_undoes_the_business(void **state)
{
    struct work work = {&one, IDEM_STATE_FAILED, 0, false};
    struct idem_answer answer;

    (void)state;
    for (int i = 0; i < 2; i++) {
        assert_int_equal(run_work(&work, "r2", IDEM_STRICT, &answer), IDEM_OK);
        assert_int_equal(answer.verdict,
                         i == 0 ? IDEM_V_STARTED : IDEM_V_REPLAY);
        assert_int_equal(answer.record->state, IDEM_STATE_FAILED);
        assert_memory_equal(answer.record->result.data, "no", 2);
        idem_answer_clear(&answer);
    }
    assert_int_equal(work.ran, 1);
    assert_int_equal(balance(&two), 100);
}

static void
loose_forgets_a_failure_and_tries_again(void **state)
{
    struct work work = {&one, IDEM_STATE_FAILED, 0, false};
    struct idem_answer answer;

    (void)state;
    assert_int_equal(run_work(&work, "r3", IDEM_LOOSE, &answer), IDEM_OK);
    assert_int_equal(answer.verdict, IDEM_V_STARTED);
    assert_int_equal(answer.record->state, IDEM_STATE_FAILED);
    idem_answer_clear(&answer);
    assert_int_equal(balance(&two), 100);
    work.outcome = IDEM_STATE_SUCCEEDED;
    assert_int_equal(run_work(&work, "r3", IDEM_LOOSE, &answer), IDEM_OK);
    assert_int_equal(answer.verdict, IDEM_V_STARTED);
    assert_int_equal(answer.record->state, IDEM_STATE_SUCCEEDED);
    idem_answer_clear(&answer);
    assert_int_equal(work.ran, 2);
    assert_int_equal(balance(&two), 90);
}

static void
what_could_not_be_tried_leaves_nothing(void **state)
{
    struct work work = {&one, IDEM_STATE_ABSENT, 0, false};
    struct idem_answer answer;

    (void)state;
    assert_int_equal(run_work(&work, "r4", IDEM_STRICT, &answer),
                     IDEM_ERR_UNAVAILABLE);
    assert_int_equal(balance(&two), 100);
    assert_int_equal(get(&two, "r4", &answer), IDEM_V_ABSENT);
}

static void
work_that_ends_the_transaction_is_found_out(void **state)
{
    struct work work = {&one, IDEM_STATE_SUCCEEDED, 0, true};
    struct idem_answer answer;

    (void)state;
    assert_int_not_equal(run_work(&work, "r5", IDEM_STRICT, &answer), IDEM_OK);
    assert_int_equal(balance(&two), 100);
    assert_int_equal(get(&two, "r5", &answer), IDEM_V_ABSENT);
}

static void
run_goes_on_when_the_table_was_altered(void **state)
{
    struct work work = {&one, IDEM_STATE_SUCCEEDED, 0, false};
    struct idem_answer answer;

    (void)state;
    for (int i = 0; i < 3; i++) {
        const char *id = i == 0 ? "r6" : i == 1 ? "r7" : "r8";

        assert_int_equal(run_work(&work, id, IDEM_STRICT, &answer), IDEM_OK);
        assert_int_equal(answer.verdict, IDEM_V_STARTED);
        idem_answer_clear(&answer);
        if (two.postgres)
            sqldb_run(&two,
                      "alter table idem.idem_record set (fillfactor = %d)",
                      90 + i);
        else if (two.mysql)
            sqldb_run(&two, "alter table idem_record force");
    }
    assert_int_equal(balance(&two), 70);
}

/* A service may have other defaults. */
static void
run_needs_no_isolation_of_the_session(void **state)
{
    static const char *const levels[] = {"read committed", "repeatable read",
                                         "serializable"};
    struct work work = {&one, IDEM_STATE_SUCCEEDED, 0, false};
    struct idem_answer answer;

    (void)state;
    for (int i = 0; i < 6; i++) {
        char id[8];

        if (one.postgres)
            sqldb_run(&one, "set default_transaction_isolation to '%s'",
                      levels[i / 2]);
        else if (one.mysql)
            sqldb_run(&one, "set session transaction isolation level %s",
                      levels[i / 2]);
        snprintf(id, sizeof(id), "level%d", i / 2);
        assert_int_equal(run_work(&work, id, IDEM_STRICT, &answer), IDEM_OK);
        assert_int_equal(answer.verdict,
                         i % 2 == 0 ? IDEM_V_STARTED : IDEM_V_REPLAY);
        idem_answer_clear(&answer);
    }
    assert_int_equal(balance(&two), 70);
}

struct first {
    struct idem_op op;
    uint64_t fence;
};

static void *
finish_a_little_later(void *arg)
{
    const struct first *first = arg;
    struct idem_op op = first->op;
    struct idem_answer answer;
    struct idem_error own;

    usleep(200000);
    op.fence = first->fence;
    op.outcome = IDEM_STATE_SUCCEEDED;
    op.result = idem_text("mine");
    if (idem_sql_finish(two.db, &op, &answer, &own) != IDEM_OK)
        abort();
    idem_answer_clear(&answer);
    sqldb_run(&two, "commit");
    return NULL;
}

static void
a_duplicate_that_waits_gets_the_first_result(void **state)
{
    struct work work = {&one, IDEM_STATE_SUCCEEDED, 0, false};
    struct idem_answer answer;
    pthread_t thread;

    (void)state;
    for (int i = 0; i < 2 && !one.sqlite; i++) {
        struct first first = {op_of(i == 0 ? "wait-run" : "wait-claim"), 0};

        first.op.wait_ms = 60000;
        sqldb_begin(&two);
        assert_int_equal(claim(&two, &first.op, &answer), IDEM_V_STARTED);
        first.fence = answer.record->fence;
        idem_answer_clear(&answer);
        assert_int_equal(
            pthread_create(&thread, NULL, finish_a_little_later, &first), 0);
        if (i == 0) {
            assert_int_equal(
                idem_sql_run(one.db, &first.op, withdraw, &work, &answer, &err),
                IDEM_OK);
        } else {
            sqldb_begin(&one);
            assert_int_equal(balance(&one), 100); /* a snapshot */
            assert_int_equal(idem_sql_claim(one.db, &first.op, &answer, &err),
                             IDEM_OK);
            sqldb_run(&one, "rollback");
        }
        pthread_join(thread, NULL);
        assert_int_equal(answer.verdict, IDEM_V_REPLAY);
        assert_memory_equal(answer.record->result.data, "mine", 4);
        idem_answer_clear(&answer);
    }
    assert_int_equal(work.ran, 0);
}

/* ---- statements that are known beforehand ------------------------------ */

#define DEDUCT "update t_account set balance = balance - ?, note = ? "

static enum idem_status
run_two(struct sqldb *s, const char *id, const char *second,
        struct idem_answer *answer)
{
    struct idem_op op = op_of(id);
    struct idem_sql_value version = idem_sql_int(1);
    struct idem_sql_value values[] = {
        idem_sql_int(10),
        {.type = IDEM_SQL_TEXT, .bytes = {"left over", 4}}}; /* no NUL */
    struct idem_sql_statement statements[] = {
        {"update t_account set version = version + ? where id = 2", &version,
         1},
        {second, values, 2}};

    return idem_sql_run_statements(s->db, &op, statements, 2, idem_text("yes"),
                                   answer, &err);
}

static void
statements_run_once_and_are_replayed(void **state)
{
    struct idem_answer answer;

    (void)state;
    for (int i = 0; i < 3; i++) {
        assert_int_equal(run_two(&one, "known", DEDUCT "where id = 1", &answer),
                         IDEM_OK);
        assert_int_equal(answer.verdict,
                         i == 0 ? IDEM_V_STARTED : IDEM_V_REPLAY);
        assert_int_equal(answer.record->state, IDEM_STATE_SUCCEEDED);
        assert_memory_equal(answer.record->result.data, "yes", 3);
        idem_answer_clear(&answer);
    }
    assert_int_equal(balance(&two), 90);
    assert_string_equal(
        sqldb_text(&two, "select note from t_account where id = 1"), "left");
    assert_int_equal(
        sqldb_number(&two, "select version from t_account where id = 2"), 2);
    /* A comment at its end hides nothing of what follows. */
    assert_int_equal(
        run_two(&one, "known-2", DEDUCT "where id = 1 -- one", &answer),
        IDEM_OK);
    idem_answer_clear(&answer);
    assert_int_equal(balance(&two), 80);
    /* What the contract leaves out does not hurt the connection. */
    if (run_two(&one, "known-3",
                "insert into t_account (id, version, name, balance, note) "
                "values (5, 1, 'eve', ?, ?) returning id",
                &answer) == IDEM_OK)
        idem_answer_clear(&answer);
    if (run_two(&one, "known-4", DEDUCT "where id = 1;", &answer) == IDEM_OK)
        idem_answer_clear(&answer);
    assert_int_equal(run_two(&one, "known-5", DEDUCT "where id = 1", &answer),
                     IDEM_OK);
    assert_int_equal(answer.verdict, IDEM_V_STARTED);
    idem_answer_clear(&answer);
    assert_int_equal(
        sqldb_number(&two, "select count(*) from t_account where id = 5"),
        get(&two, "known-3", &answer) == IDEM_V_ABSENT ? 0 : 1);
    idem_answer_clear(&answer);
}

static void
statements_take_over_what_was_released(void **state)
{
    struct idem_op op = op_of("over");
    struct idem_answer answer;
    uint64_t fence;

    (void)state;
    sqldb_begin(&two);
    assert_int_equal(claim(&two, &op, &answer), IDEM_V_STARTED);
    idem_answer_clear(&answer);
    if (!one.sqlite) { /* which has one writer at a time */
        assert_int_equal(run_two(&one, "over", DEDUCT "where id = 1", &answer),
                         IDEM_OK);
        assert_int_equal(answer.verdict, IDEM_V_BUSY);
    }
    sqldb_run(&two, "rollback");
    sqldb_begin(&two);
    assert_int_equal(claim(&two, &op, &answer), IDEM_V_STARTED);
    fence = answer.record->fence;
    idem_answer_clear(&answer);
    op.verb = IDEM_RELEASE;
    op.fence = fence;
    assert_int_equal(idem_sql_do(two.db, &op, &answer, &err), IDEM_OK);
    idem_answer_clear(&answer);
    sqldb_run(&two, "commit");
    assert_int_equal(run_two(&one, "over", DEDUCT "where id = 9", &answer),
                     IDEM_ERR_UNAVAILABLE);
    assert_non_null(strstr(err.text, "one row"));
    assert_int_equal(run_two(&one, "over", DEDUCT "where id = 1", &answer),
                     IDEM_OK);
    assert_int_equal(answer.verdict, IDEM_V_STARTED);
    idem_answer_clear(&answer);
    assert_int_equal(balance(&two), 90);
    assert_int_equal(
        sqldb_number(&two, "select version from t_account where id = 2"), 2);
}

static void
a_statement_that_fails_undoes_everything(void **state)
{
    static const struct {
        const char *sql, *text;
        enum idem_sql_cause cause;
    } bad[] = {
        {DEDUCT "where id = 7", "one row", IDEM_SQL_OTHER},
        {DEDUCT "where id < 3", "one row", IDEM_SQL_OTHER},
        {"insert into t_account (id, version, name, balance, note) values (2, "
         "1, 'c', ?, ?)",
         "", IDEM_SQL_DUPLICATE_KEY},
        {"update t_account sett balance = ?, note = ?", "", IDEM_SQL_OTHER},
        {"update t_nothing set balance = ?, note = ?", "",
         IDEM_SQL_MISSING_TABLE},
    };
    struct idem_answer answer;

    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        assert_int_equal(run_two(&one, "bad", bad[i].sql, &answer),
                         IDEM_ERR_UNAVAILABLE);
        assert_non_null(strstr(err.text, bad[i].text));
        assert_int_equal(idem_sql_fault(one.db)->cause, bad[i].cause);
        assert_int_equal(get(&two, "bad", &answer), IDEM_V_ABSENT);
        assert_int_equal(balance(&two), 100);
        assert_int_equal(
            sqldb_number(&two, "select version from t_account where id = 2"),
            1);
    }
    assert_int_equal(run_two(&one, "bad", DEDUCT "where id = 1", &answer),
                     IDEM_OK);
    assert_int_equal(answer.verdict, IDEM_V_STARTED);
    idem_answer_clear(&answer);
    assert_int_equal(balance(&two), 90);
}

static void
statements_that_cannot_be_are_refused(void **state)
{
    static const char *const bad[] = {"create table t_x (id int)", "commit", "",
                                      "select 1", "truncate t_account"};
    struct idem_sql_value values[41] = {{0}};
    struct idem_sql_statement many[9];
    struct idem_op op = op_of("refused");
    struct idem_answer answer;

    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        assert_int_equal(run_two(&one, "refused", bad[i], &answer),
                         IDEM_ERR_INVALID);
    for (size_t i = 0; i < 9; i++)
        many[i] =
            (struct idem_sql_statement){"delete from t_account", values, 0};
    assert_int_equal(idem_sql_run_statements(one.db, &op, many, 9,
                                             idem_text(""), &answer, &err),
                     IDEM_ERR_INVALID);
    assert_int_equal(idem_sql_run_statements(one.db, &op, many, 0,
                                             idem_text(""), &answer, &err),
                     IDEM_ERR_INVALID);
    many[0].count = 41;
    assert_int_equal(idem_sql_run_statements(one.db, &op, many, 1,
                                             idem_text(""), &answer, &err),
                     IDEM_ERR_INVALID);
    sqldb_begin(&one);
    assert_int_equal(run_two(&one, "refused", DEDUCT "where id = 1", &answer),
                     IDEM_ERR_INVALID);
    sqldb_run(&one, "rollback");
    assert_int_equal(balance(&two), 100);
    assert_int_equal(get(&two, "refused", &answer), IDEM_V_ABSENT);
}

/* ---- schemes ----------------------------------------------------------- */

static const struct idem_sql_pair ann = {"id",
                                         {.type = IDEM_SQL_INT, .number = 1}};
static const struct idem_sql_place account = {"t_account", &ann, 1};

static void
insert_once_returns_the_row_that_is_there(void **state)
{
    struct idem_sql_pair key = {"id", idem_sql_int(7)};
    struct idem_sql_place place = {"t_account", &key, 1};
    struct idem_sql_pair values[] = {
        {"balance", idem_sql_int(5)},
        {"version", idem_sql_int(1)},
        {"name", idem_sql_text("it's \"quoted\"")}};
    enum idem_sql_verdict verdict;
    struct idem_sql_row row;

    (void)state;
    sqldb_begin(&one);
    assert_int_equal(
        idem_sql_insert_once(one.db, &place, values, 3, &verdict, &row, &err),
        IDEM_OK);
    assert_int_equal(verdict, IDEM_SQL_IS_FIRST);
    sqldb_run(&one, "commit");
    sqldb_begin(&two);
    values[0].value = idem_sql_int(6);
    assert_int_equal(
        idem_sql_insert_once(two.db, &place, values, 3, &verdict, &row, &err),
        IDEM_OK);
    assert_int_equal(verdict, IDEM_SQL_IS_DUPLICATE);
    assert_int_equal(idem_sql_column(&row, "balance").number, 5);
    assert_string_equal(idem_sql_column(&row, "name").bytes.data,
                        "it's \"quoted\"");
    assert_int_equal(
        idem_sql_select_insert(two.db, &place, values, 3, &verdict, &row, &err),
        IDEM_OK);
    assert_int_equal(verdict, IDEM_SQL_IS_DUPLICATE);
    key.value = idem_sql_int(8);
    assert_int_equal(
        idem_sql_select_insert(two.db, &place, values, 3, &verdict, &row, &err),
        IDEM_OK);
    assert_int_equal(verdict, IDEM_SQL_IS_FIRST);
    sqldb_run(&two, "commit");
}

/* MariaDB: a snapshot that is older than the row does not make it a conflict.
 */
static void
insert_once_sees_what_is_there_now(void **state)
{
    struct idem_sql_pair key = {"id", idem_sql_int(7)};
    struct idem_sql_place place = {"t_account", &key, 1};
    struct idem_sql_pair values[] = {{"balance", idem_sql_int(5)},
                                     {"version", idem_sql_int(1)},
                                     {"name", idem_sql_text("n")}};
    enum idem_sql_verdict verdict;
    struct idem_sql_row row;

    (void)state;
    if (!one.mysql)
        return; /* PostgreSQL reports a serialization failure, SQLite a lock */
    sqldb_run(&two, "set transaction isolation level repeatable read");
    sqldb_begin(&two);
    sqldb_number(&two, "select count(*) from t_account");
    sqldb_run(&one, "insert into t_account values (7, 6, 1, 'm', 'x')");
    if (idem_sql_insert_once(two.db, &place, values, 3, &verdict, &row, &err) !=
        IDEM_OK)
        fail_msg("%s", err.text);
    assert_int_equal(verdict, IDEM_SQL_IS_DUPLICATE);
    assert_int_equal(idem_sql_column(&row, "balance").number, 6);
    sqldb_run(&two, "rollback");
}

static void
upsert_updates_what_is_there(void **state)
{
    struct idem_sql_pair key = {"id", idem_sql_int(9)};
    struct idem_sql_place place = {"t_account", &key, 1};
    struct idem_sql_pair values[] = {{"balance", idem_sql_int(5)},
                                     {"version", idem_sql_int(1)},
                                     {"name", idem_sql_text("n")}};
    enum idem_sql_verdict verdict;
    struct idem_sql_row row;

    (void)state;
    sqldb_begin(&one);
    assert_int_equal(
        idem_sql_upsert(one.db, &place, values, 3, &verdict, &row, &err),
        IDEM_OK);
    assert_int_equal(verdict, IDEM_SQL_IS_FIRST);
    values[0].value = idem_sql_int(50);
    assert_int_equal(
        idem_sql_upsert(one.db, &place, values, 3, &verdict, &row, &err),
        IDEM_OK);
    assert_int_equal(verdict, IDEM_SQL_IS_DUPLICATE);
    assert_int_equal(idem_sql_column(&row, "balance").number, 5);
    sqldb_run(&one, "commit");
    assert_int_equal(
        sqldb_number(&two, "select balance from t_account where id = 9"), 50);
}

static void
a_row_of_a_table_that_was_altered_has_its_new_column(void **state)
{
    struct idem_sql_pair value = {"balance", idem_sql_int(5)};
    enum idem_sql_verdict verdict;
    struct idem_sql_row row;

    (void)state;
    for (int i = 0; i < 3; i++) {
        sqldb_begin(&one);
        if (idem_sql_select_insert(one.db, &account, &value, 1, &verdict, &row,
                                   &err) != IDEM_OK)
            fail_msg("%s", err.text);
        assert_int_equal(verdict, IDEM_SQL_IS_DUPLICATE);
        assert_int_equal(idem_sql_column(&row, "added").number, i ? 7 : 0);
        sqldb_run(&one, "commit");
        if (i == 0)
            sqldb_run(&two, "alter table t_account add column added bigint "
                            "not null default 7");
    }
}

static enum idem_sql_verdict
set_versioned(int64_t id, int64_t version, const char *name)
{
    struct idem_sql_pair key = {"id", idem_sql_int(id)};
    struct idem_sql_place place = {"t_account", &key, 1};
    struct idem_sql_pair value = {"name", idem_sql_text(name)};
    enum idem_sql_verdict verdict;
    struct idem_sql_row row;

    sqldb_begin(&one);
    assert_int_equal(idem_sql_update_versioned(one.db, &place, "version",
                                               version, &value, 1, &verdict,
                                               &row, &err),
                     IDEM_OK);
    sqldb_run(&one, "commit");
    return verdict;
}

static void
a_versioned_update_tells_duplicate_from_conflict(void **state)
{
    (void)state;
    assert_int_equal(set_versioned(1, 1, "anna"), IDEM_SQL_IS_FIRST);
    assert_int_equal(set_versioned(1, 1, "anna"), IDEM_SQL_IS_DUPLICATE);
    assert_int_equal(set_versioned(1, 1, "other"), IDEM_SQL_IS_CONFLICT);
    /* Equal for a collation, but not what was written. */
    assert_int_equal(set_versioned(1, 1, "Anna"), IDEM_SQL_IS_CONFLICT);
    assert_int_equal(set_versioned(1, 2, "other"), IDEM_SQL_IS_FIRST);
    assert_int_equal(set_versioned(1, 1, "anna"), IDEM_SQL_IS_CONFLICT);
    assert_int_equal(set_versioned(77, 1, "anna"), IDEM_SQL_IS_REFUSED);
    assert_int_equal(
        sqldb_number(&two, "select version from t_account where id = 1"), 3);
}

static enum idem_sql_verdict
set_item(const char *price, struct idem_sql_value code, int64_t version)
{
    struct idem_sql_pair key = {"id", idem_sql_int(1)};
    struct idem_sql_place place = {"t_item", &key, 1};
    struct idem_sql_pair values[] = {{"price", idem_sql_text(price)},
                                     {"code", code},
                                     {"extra", idem_sql_text("{}")}};
    enum idem_sql_verdict verdict;
    struct idem_sql_row row;

    sqldb_begin(&one);
    if (idem_sql_update_versioned(one.db, &place, "version", version, values, 3,
                                  &verdict, &row, &err) != IDEM_OK)
        fail_msg("%s", err.text);
    sqldb_run(&one, "commit");
    return verdict;
}

/* 10.5 comes back as 10.50, "ab" perhaps padded; json cannot be compared on
 * PostgreSQL, which must not spoil the transaction. */
static void
a_versioned_update_is_recognised_whatever_its_types(void **state)
{
    struct idem_sql_value none = {.type = IDEM_SQL_NULL};

    (void)state;
    sqldb_try(&one, "drop table if exists t_item");
    sqldb_run(&one,
              "create table t_item (id integer not null primary key, price "
              "decimal(10,2), code char(8), version decimal(9,0), extra %s)",
              one.postgres ? "json" : "text");
    sqldb_run(&one, "insert into t_item values (1, 1, 'x', 1, '{}')");
    assert_int_equal(set_item("10.5", none, 1), IDEM_SQL_IS_FIRST);
    assert_int_equal(set_item("10.5", none, 1), one.postgres
                                                    ? IDEM_SQL_IS_CONFLICT
                                                    : IDEM_SQL_IS_DUPLICATE);
    if (one.postgres)
        sqldb_run(&one, "alter table t_item alter extra type jsonb");
    assert_int_equal(set_item("10.5", none, 1), IDEM_SQL_IS_DUPLICATE);
    assert_int_equal(set_item("10.5", idem_sql_text("ab"), 1),
                     IDEM_SQL_IS_CONFLICT);
    assert_int_equal(set_item("10.5", idem_sql_text("ab"), 2),
                     IDEM_SQL_IS_FIRST);
    assert_int_equal(set_item("10.500", idem_sql_text("ab"), 2),
                     IDEM_SQL_IS_DUPLICATE);
    assert_int_equal(set_item("10.51", idem_sql_text("ab"), 2),
                     IDEM_SQL_IS_CONFLICT);
    assert_int_equal(set_item("10.5", none, 2), IDEM_SQL_IS_CONFLICT);
    sqldb_run(&one, "drop table t_item");
}

static void
deduct_never_goes_below_zero(void **state)
{
    enum idem_sql_verdict verdict;
    struct idem_sql_row row;

    (void)state;
    sqldb_begin(&one);
    assert_int_equal(
        idem_sql_deduct(one.db, &account, "balance", 70, &verdict, &row, &err),
        IDEM_OK);
    assert_int_equal(verdict, IDEM_SQL_IS_FIRST);
    assert_int_equal(
        idem_sql_deduct(one.db, &account, "balance", 70, &verdict, &row, &err),
        IDEM_OK);
    assert_int_equal(verdict, IDEM_SQL_IS_REFUSED);
    assert_int_equal(idem_sql_column(&row, "balance").number, 30);
    assert_int_equal(
        idem_sql_deduct(one.db, &account, "balance", -1, &verdict, &row, &err),
        IDEM_ERR_INVALID);
    sqldb_run(&one, "commit");
    assert_int_equal(balance(&two), 30);
}

static void
a_row_lock_ends_in_time_and_needs_an_index(void **state)
{
    struct idem_sql_pair loose = {"note", idem_sql_text("x")};
    struct idem_sql_place unindexed = {"t_account", &loose, 1};
    struct idem_sql_pair gone = {"id", idem_sql_int(99)};
    struct idem_sql_place missing = {"t_account", &gone, 1};
    struct idem_sql_place nowhere = {"no_such_table", &ann, 1};
    enum idem_sql_verdict verdict;
    struct idem_sql_row row;

    (void)state;
    sqldb_begin(&one);
    assert_int_equal(
        idem_sql_lock_row(one.db, &account, 0, &verdict, &row, &err), IDEM_OK);
    assert_int_equal(verdict, IDEM_SQL_IS_FIRST);
    assert_int_equal(idem_sql_column(&row, "balance").number, 100);
    assert_int_equal(
        idem_sql_lock_row(one.db, &missing, 0, &verdict, &row, &err), IDEM_OK);
    assert_int_equal(verdict, IDEM_SQL_IS_REFUSED);
    assert_int_equal(
        idem_sql_lock_row(one.db, &unindexed, 0, &verdict, &row, &err),
        IDEM_ERR_INVALID);
    sqldb_patience(&two, 50);
    sqldb_run(&two, two.sqlite ? "begin" : "start transaction");
    assert_int_equal(
        idem_sql_lock_row(two.db, &account, 100, &verdict, &row, &err),
        IDEM_OK);
    assert_int_equal(verdict, IDEM_SQL_IS_CONFLICT);
    sqldb_run(&two, "rollback");
    sqldb_run(&one, "commit");
    sqldb_begin(&one);
    assert_int_equal(
        idem_sql_lock_row(one.db, &nowhere, 0, &verdict, &row, &err),
        IDEM_ERR_INVALID);
    assert_int_equal(idem_sql_fault(one.db)->cause, IDEM_SQL_MISSING_TABLE);
    sqldb_run(&one, "rollback");
}

static void
expect_refused(enum idem_status status, const char *table)
{
    assert_int_equal(status, IDEM_ERR_INVALID);
    if (!strstr(err.text, "unique") || !strstr(err.text, table))
        fail_msg("%s", err.text);
}

/* Without it the same key would be FIRST twice, or change several rows. */
static void
every_scheme_needs_its_unique_key(void **state)
{
    struct idem_sql_pair loose[] = {{"a", idem_sql_int(1)},
                                    {"b", idem_sql_int(1)}};
    struct idem_sql_place place = {"t_keyless", loose, 2};
    struct idem_sql_pair value = {"c", idem_sql_int(5)};
    struct idem_sql_move moves[] = {{idem_sql_int(5), idem_sql_int(6)}};
    struct idem_sql_machine machine = {"t_keyless", "a", "c", moves, 1};
    enum idem_sql_verdict verdict;
    struct idem_sql_row row;

    (void)state;
    sqldb_try(&one, "drop table if exists t_keyless");
    sqldb_run(&one, "create table t_keyless (a bigint, b bigint, c bigint, "
                    "v bigint default 1)");
    for (int i = 0; i < 2; i++) {
        sqldb_begin(&one);
        expect_refused(idem_sql_insert_once(one.db, &place, &value, 1, &verdict,
                                            &row, &err),
                       "t_keyless");
        expect_refused(idem_sql_select_insert(one.db, &place, &value, 1,
                                              &verdict, &row, &err),
                       "t_keyless");
        expect_refused(
            idem_sql_upsert(one.db, &place, &value, 1, &verdict, &row, &err),
            "t_keyless");
        expect_refused(idem_sql_update_versioned(one.db, &place, "v", 1, &value,
                                                 1, &verdict, &row, &err),
                       "t_keyless");
        expect_refused(
            idem_sql_deduct(one.db, &place, "c", 1, &verdict, &row, &err),
            "t_keyless");
        expect_refused(idem_sql_move(one.db, &machine, idem_sql_int(1),
                                     moves[0].from, moves[0].to, &verdict, &row,
                                     &err),
                       "t_keyless");
        sqldb_run(&one, "commit");
        /* An index on more than the columns given does not help. */
        sqldb_run(&one, "create unique index t_keyless_%d on t_keyless (%s)", i,
                  i == 0 ? "a, b, c" : "a, b");
    }
    assert_int_equal(sqldb_number(&two, "select count(*) from t_keyless"), 0);
    for (int i = 0; i < 2; i++) {
        sqldb_begin(&one);
        if (idem_sql_insert_once(one.db, &place, &value, 1, &verdict, &row,
                                 &err) != IDEM_OK)
            fail_msg("%s", err.text);
        assert_int_equal(verdict,
                         i == 0 ? IDEM_SQL_IS_FIRST : IDEM_SQL_IS_DUPLICATE);
        sqldb_run(&one, "commit");
    }
    /* Nulls are never the same in a unique index. */
    loose[1].value = (struct idem_sql_value){.type = IDEM_SQL_NULL};
    sqldb_begin(&one);
    assert_int_equal(
        idem_sql_insert_once(one.db, &place, &value, 1, &verdict, &row, &err),
        IDEM_ERR_INVALID);
    sqldb_run(&one, "rollback");
    sqldb_run(&one, "drop table t_keyless");
}

static int
count_catalog(unsigned event, void *arg, void *statement, void *text)
{
    (void)event;
    (void)statement;
    *(int *)arg += strstr(text, "pragma_table_info") != NULL;
    return 0;
}

/* What is asked of the catalog is the same on every database; SQLite tells. */
static void
the_unique_key_is_looked_up_once_a_table(void **state)
{
    struct idem_sql_pair other = {"id", idem_sql_int(1)};
    struct idem_sql_place item = {"t_item", &other, 1};
    enum idem_sql_verdict verdict;
    struct idem_sql_row row;
    int asked = 0;

    (void)state;
    sqldb_try(&one, "drop table if exists t_item");
    sqldb_run(&one, "create table t_item (id integer not null primary key, "
                    "balance bigint)");
    if (one.sqlite)
        sqlite3_trace_v2(one.sqlite, SQLITE_TRACE_STMT, count_catalog, &asked);
    for (int i = 0; i < 10; i++) {
        sqldb_begin(&one);
        assert_int_equal(idem_sql_deduct(one.db, &account, "balance", 1,
                                         &verdict, &row, &err),
                         IDEM_OK);
        assert_int_equal(
            idem_sql_deduct(one.db, &item, "balance", 1, &verdict, &row, &err),
            IDEM_OK);
        sqldb_run(&one, "commit");
    }
    assert_int_equal(balance(&two), 90);
    assert_int_equal(asked, one.sqlite ? 2 : 0);
    if (one.sqlite)
        sqlite3_trace_v2(one.sqlite, 0, NULL, NULL);
    sqldb_run(&one, "drop table t_item");
}

/* Columns that an index only carries, or that it checks later. */
static void
what_postgres_adds_to_an_index_is_understood(void **state)
{
    struct idem_sql_pair key = {"a", idem_sql_int(1)};
    struct idem_sql_place place = {"t_item", &key, 1};
    struct idem_sql_pair value = {"b", idem_sql_int(5)};
    enum idem_sql_verdict verdict;
    struct idem_sql_row row;

    (void)state;
    if (!one.postgres)
        return;
    sqldb_run(&one, "drop table if exists t_item; create table t_item (a int "
                    "unique deferrable, b int)");
    sqldb_begin(&one);
    expect_refused(
        idem_sql_insert_once(one.db, &place, &value, 1, &verdict, &row, &err),
        "t_item");
    sqldb_run(&one, "rollback; create unique index on t_item (a) include (b)");
    sqldb_begin(&one);
    if (idem_sql_lock_row(one.db, &place, 0, &verdict, &row, &err) != IDEM_OK)
        fail_msg("%s", err.text);
    sqldb_run(&one, "rollback; drop table t_item");
}

static enum idem_sql_verdict
move(const char *from, const char *to)
{
    struct idem_sql_move moves[] = {
        {idem_sql_text("ann"), idem_sql_text("paid")},
        {idem_sql_text("paid"), idem_sql_text("done")},
        {idem_sql_text("ann"), idem_sql_text("off")}};
    struct idem_sql_machine machine = {"t_account", "id", "name", moves, 3};
    enum idem_sql_verdict verdict;
    struct idem_sql_row row;

    sqldb_begin(&one);
    assert_int_equal(idem_sql_move(one.db, &machine, idem_sql_int(1),
                                   idem_sql_text(from), idem_sql_text(to),
                                   &verdict, &row, &err),
                     IDEM_OK);
    sqldb_run(&one, "commit");
    return verdict;
}

static void
a_state_moves_once_and_never_back(void **state)
{
    (void)state;
    assert_int_equal(move("paid", "done"), IDEM_SQL_IS_REFUSED);
    assert_int_equal(move("ann", "paid"), IDEM_SQL_IS_FIRST);
    assert_int_equal(move("ann", "paid"), IDEM_SQL_IS_DUPLICATE);
    assert_int_equal(move("paid", "ann"), IDEM_SQL_IS_REFUSED);
    assert_int_equal(move("paid", "done"), IDEM_SQL_IS_FIRST);
    assert_int_equal(move("ann", "paid"), IDEM_SQL_IS_DUPLICATE);
    assert_int_equal(move("ann", "off"), IDEM_SQL_IS_REFUSED);
}

/* A char(8) is padded on PostgreSQL; a number may be given as text. */
static void
a_repeated_move_is_a_duplicate_whatever_the_columns_type(void **state)
{
    static const char *const columns[] = {"word", "number"};
    struct idem_sql_move moves[] = {{idem_sql_text("1"), idem_sql_text("2")}};
    enum idem_sql_verdict verdict;
    struct idem_sql_row row;

    (void)state;
    sqldb_try(&one, "drop table if exists t_item");
    sqldb_run(&one, "create table t_item (id integer not null primary key, "
                    "word char(8), number integer)");
    sqldb_run(&one, "insert into t_item values (1, '1', 1)");
    for (int i = 0; i < 4; i++) {
        struct idem_sql_machine machine = {"t_item", "id", columns[i % 2],
                                           moves, 1};

        sqldb_begin(&one);
        if (idem_sql_move(one.db, &machine, idem_sql_int(1), moves[0].from,
                          moves[0].to, &verdict, &row, &err) != IDEM_OK)
            fail_msg("%s", err.text);
        sqldb_run(&one, "commit");
        assert_int_equal(verdict,
                         i < 2 ? IDEM_SQL_IS_FIRST : IDEM_SQL_IS_DUPLICATE);
    }
    sqldb_run(&one, "drop table t_item");
}

static enum idem_sql_verdict
phase(const char *branch, enum idem_sql_phase which)
{
    enum idem_sql_verdict verdict = IDEM_SQL_IS_CONFLICT;

    sqldb_begin(&one);
    if (idem_sql_barrier(one.db, scope(), idem_text(branch), which, &verdict,
                         &err) != IDEM_OK)
        fail_msg("%s", err.text);
    sqldb_run(&one, "commit");
    return verdict;
}

static void
the_barrier_orders_try_confirm_and_cancel(void **state)
{
    (void)state;
    assert_int_equal(phase("b1", IDEM_SQL_CONFIRM), IDEM_SQL_IS_REFUSED);
    assert_int_equal(phase("b1", IDEM_SQL_TRY), IDEM_SQL_IS_FIRST);
    assert_int_equal(phase("b1", IDEM_SQL_TRY), IDEM_SQL_IS_DUPLICATE);
    assert_int_equal(phase("b1", IDEM_SQL_CONFIRM), IDEM_SQL_IS_FIRST);
    assert_int_equal(phase("b1", IDEM_SQL_CONFIRM), IDEM_SQL_IS_DUPLICATE);
    assert_int_equal(phase("b1", IDEM_SQL_CANCEL), IDEM_SQL_IS_REFUSED);

    assert_int_equal(phase("b2", IDEM_SQL_TRY), IDEM_SQL_IS_FIRST);
    assert_int_equal(phase("b2", IDEM_SQL_CANCEL), IDEM_SQL_IS_FIRST);
    assert_int_equal(phase("b2", IDEM_SQL_CANCEL), IDEM_SQL_IS_DUPLICATE);
    assert_int_equal(phase("b2", IDEM_SQL_CONFIRM), IDEM_SQL_IS_REFUSED);

    assert_int_equal(phase("b3", IDEM_SQL_CANCEL), IDEM_SQL_IS_EMPTY);
    assert_int_equal(phase("b3", IDEM_SQL_CANCEL), IDEM_SQL_IS_EMPTY);
    assert_int_equal(phase("b3", IDEM_SQL_TRY), IDEM_SQL_IS_REFUSED);
    assert_int_equal(phase("b3", IDEM_SQL_CONFIRM), IDEM_SQL_IS_REFUSED);
}

static void
a_branch_with_a_nul_is_nobody_elses(void **state)
{
    enum idem_sql_verdict verdict;

    (void)state;
    assert_int_equal(phase("b4", IDEM_SQL_TRY), IDEM_SQL_IS_FIRST);
    for (int i = IDEM_SQL_TRY; i <= IDEM_SQL_CANCEL; i++) {
        sqldb_begin(&one);
        assert_int_equal(
            idem_sql_barrier(one.db, scope(), (struct idem_bytes){"b4\0x", 4},
                             (enum idem_sql_phase)i, &verdict, &err),
            IDEM_ERR_INVALID);
        sqldb_run(&one, "rollback");
    }
    assert_int_equal(phase("b4", IDEM_SQL_CANCEL), IDEM_SQL_IS_FIRST);
}

static void
names_are_quoted_and_bad_ones_refused(void **state)
{
    struct idem_sql_pair key = {"id; drop table t_account; --",
                                idem_sql_int(1)};
    struct idem_sql_place place = {"t_account", &key, 1};
    struct idem_sql_place empty = {"", &ann, 1};
    enum idem_sql_verdict verdict;
    struct idem_sql_row row;

    (void)state;
    sqldb_begin(&one);
    assert_int_not_equal(
        idem_sql_deduct(one.db, &place, "balance", 1, &verdict, &row, &err),
        IDEM_OK);
    sqldb_try(&one, "rollback");
    sqldb_begin(&one);
    assert_int_equal(
        idem_sql_deduct(one.db, &empty, "balance", 1, &verdict, &row, &err),
        IDEM_ERR_INVALID);
    sqldb_try(&one, "rollback");
    assert_int_equal(balance(&two), 100);
}

static void
names_of_any_kind_are_found(void **state)
{
    char q = one.postgres ? '"' : '`';
    struct idem_sql_pair key = {"the \"key\" `of` it", idem_sql_int(1)};
    struct idem_sql_place place = {NULL, &key, 1};
    enum idem_sql_verdict verdict;
    struct idem_sql_row row;
    char table[100], odd[] = "odd? \"table\" `name`; --";

    (void)state;
    snprintf(table, sizeof(table), "%s.%s",
             one.sqlite     ? "main"
             : one.postgres ? sqldb_text(&one, "select current_schema()")
                            : sqldb_text(&one, "select database()"),
             odd);
    place.table = table;
    if (one.postgres) {
        sqldb_run(&one,
                  "drop table if exists \"odd? \"\"table\"\" `name`; --\"");
        sqldb_run(&one,
                  "create table \"odd? \"\"table\"\" `name`; --\" "
                  "(\"the \"\"key\"\" `of` it\" integer primary key, "
                  "%cselect%c bigint)",
                  q, q);
    } else {
        sqldb_run(&one, "drop table if exists `odd? \"table\" ``name``; --`");
        sqldb_run(&one,
                  "create table `odd? \"table\" ``name``; --` "
                  "(`the \"key\" ``of`` it` integer primary key, "
                  "%cselect%c bigint)",
                  q, q);
    }
    for (int i = 0; i < 2; i++) {
        struct idem_sql_pair ten = {"select", idem_sql_int(10)};

        sqldb_begin(&one);
        if (idem_sql_insert_once(one.db, &place, &ten, 1, &verdict, &row,
                                 &err) != IDEM_OK)
            fail_msg("%s", err.text);
        assert_int_equal(verdict,
                         i == 0 ? IDEM_SQL_IS_FIRST : IDEM_SQL_IS_DUPLICATE);
        sqldb_run(&one, "commit");
    }
    sqldb_begin(&one);
    if (idem_sql_lock_row(one.db, &place, 0, &verdict, &row, &err) != IDEM_OK)
        fail_msg("%s", err.text);
    assert_int_equal(verdict, IDEM_SQL_IS_FIRST);
    assert_int_equal(idem_sql_column(&row, "select").number, 10);
    sqldb_run(&one, one.postgres
                        ? "drop table \"odd? \"\"table\"\" `name`; --\""
                        : "drop table `odd? \"table\" ``name``; --`");
    sqldb_run(&one, "commit");
}

static void
what_cannot_be_is_an_error_and_changes_nothing(void **state)
{
    struct idem_sql_pair word = {"id", idem_sql_text("no number")};
    struct idem_sql_place odd = {"t_account", &word, 1};
    struct idem_sql_place nowhere = {"no_such_table", &ann, 1};
    struct idem_sql_place keyless = {"t_account", &ann, 0};
    enum idem_sql_verdict verdict = IDEM_SQL_IS_FIRST;
    struct idem_sql_row row;
    enum idem_status status;

    (void)state;
    /* A value of the wrong type: an error, or a row that is not there. */
    sqldb_begin(&one);
    status = idem_sql_deduct(one.db, &odd, "balance", 1, &verdict, &row, &err);
    assert_true(status == IDEM_ERR_INVALID ||
                (status == IDEM_OK && verdict == IDEM_SQL_IS_REFUSED));
    sqldb_try(&one, "rollback");
    sqldb_begin(&one);
    assert_int_equal(idem_sql_deduct(one.db, &account, "no_such_column", 1,
                                     &verdict, &row, &err),
                     IDEM_ERR_INVALID);
    assert_int_equal(idem_sql_fault(one.db)->cause, IDEM_SQL_OTHER);
    sqldb_try(&one, "rollback");
    sqldb_begin(&one);
    assert_int_equal(
        idem_sql_deduct(one.db, &nowhere, "balance", 1, &verdict, &row, &err),
        IDEM_ERR_INVALID);
    assert_int_equal(idem_sql_fault(one.db)->cause, IDEM_SQL_MISSING_TABLE);
    sqldb_try(&one, "rollback");
    sqldb_begin(&one);
    assert_int_equal(
        idem_sql_deduct(one.db, &keyless, "balance", 1, &verdict, &row, &err),
        IDEM_ERR_INVALID);
    sqldb_try(&one, "rollback");
    assert_int_equal(balance(&two), 100);
}

static void
a_table_that_cannot_roll_back_is_refused(void **state)
{
    struct idem_sql_place place = {"t_plain", &ann, 1};
    enum idem_sql_verdict verdict;
    struct idem_sql_row row;

    (void)state;
    sqldb_run(&one, "drop table if exists t_plain");
    sqldb_run(&one,
              "create table t_plain (id integer not null primary key, balance "
              "bigint not null)%s",
              one.mysql ? " engine = MyISAM" : "");
    sqldb_run(&one, "insert into t_plain values (1, 100)");
    sqldb_begin(&one);
    assert_int_equal(
        idem_sql_deduct(one.db, &place, "balance", 1, &verdict, &row, &err),
        one.mysql ? IDEM_ERR_INVALID : IDEM_OK);
    assert_true(!one.mysql || strstr(err.text, "InnoDB"));
    sqldb_run(&one, "rollback");
    assert_int_equal(sqldb_number(&two, "select balance from t_plain"), 100);
    sqldb_run(&one, "drop table t_plain");
}

/* ---- beside a server that seals -------------------------------------- */

static struct idem_engine *
open_sealed(char *folder, size_t len)
{
    struct idem_engine *engine = NULL;
    struct idem_options options = {0};
    char file[300];
    FILE *out;

    make_folder(folder, len);
    snprintf(file, sizeof(file), "%s/key", folder);
    umask(077);
    out = fopen(file, "we");
    assert_non_null(out);
    fprintf(out, "%064d\n", 7);
    fclose(out);
    options.seal_key = file;
    if (idem_open(sqldb_url(), &options, &engine, &err) != IDEM_OK)
        fail_msg("%s", err.text);
    return engine;
}

static uint64_t
begin_sealed(struct idem_engine *engine, const char *id)
{
    struct idem_op op = op_of(id);
    struct idem_answer answer;
    uint64_t fence;

    op.subject = idem_text("ann");
    assert_int_equal(idem_do(engine, &op, &answer, &err), IDEM_OK);
    assert_int_equal(answer.verdict, IDEM_V_STARTED);
    fence = answer.record->fence;
    idem_answer_clear(&answer);
    return fence;
}

/* The service finishes what the gateway's engine began: its result is stored
 * as it is, and the subject stays sealed. */
static void
a_sealed_claim_can_be_joined_and_finished(void **state)
{
    char folder[256];
    struct idem_engine *engine = open_sealed(folder, sizeof(folder));
    uint64_t fence = begin_sealed(engine, "g");
    struct idem_op get = op_of("g");
    struct idem_answer answer;

    (void)state;
    sqldb_begin(&one);
    assert_int_equal(
        idem_sql_join(one.db, scope(), idem_text("g"), fence, 0, &answer, &err),
        IDEM_OK);
    assert_int_equal(answer.verdict, IDEM_V_STARTED);
    assert_int_equal(answer.record->subject.len, 0);
    assert_int_equal(answer.record->flags, 0);
    idem_answer_clear(&answer);
    assert_int_equal(finish(&one, "g", fence, "plain"), IDEM_V_OK);
    sqldb_run(&one, "commit");

    get.verb = IDEM_GET;
    assert_int_equal(idem_do(engine, &get, &answer, &err), IDEM_OK);
    assert_int_equal(answer.record->result.len, 5);
    assert_int_equal(answer.record->subject.len, 3);
    assert_memory_equal(answer.record->subject.data, "ann", 3);
    idem_answer_clear(&answer);
    idem_close(engine);
    remove_folder(folder);
}

static void
a_sealed_result_is_refused_and_not_shown(void **state)
{
    char folder[256];
    struct idem_engine *engine = open_sealed(folder, sizeof(folder));
    uint64_t fence = begin_sealed(engine, "h");
    struct idem_op op = op_of("h");
    struct idem_answer answer;

    (void)state;
    op.verb = IDEM_FINISH;
    op.fence = fence;
    op.outcome = IDEM_STATE_SUCCEEDED;
    op.result = idem_text("secret");
    assert_int_equal(idem_do(engine, &op, &answer, &err), IDEM_OK);
    idem_answer_clear(&answer);

    sqldb_begin(&one);
    assert_int_equal(
        idem_sql_join(one.db, scope(), idem_text("h"), fence, 0, &answer, &err),
        IDEM_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "sealed"));
    assert_int_equal(idem_sql_do(one.db, &op, &answer, &err),
                     IDEM_ERR_UNSUPPORTED);
    op = op_of("h");
    assert_int_equal(idem_sql_claim(one.db, &op, &answer, &err),
                     IDEM_ERR_UNSUPPORTED);
    op.verb = IDEM_GET;
    assert_int_equal(idem_sql_do(one.db, &op, &answer, &err),
                     IDEM_ERR_UNSUPPORTED);
    op.verb = IDEM_SETTLE;
    assert_int_equal(idem_sql_do(one.db, &op, &answer, &err),
                     IDEM_ERR_UNSUPPORTED);
    sqldb_run(&one, "rollback");
    idem_close(engine);
    remove_folder(folder);
}

int
main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        T(a_second_claim_gets_the_first_result),
        T(a_claim_that_is_rolled_back_never_was),
        T(a_claim_that_is_not_committed_is_busy_at_once),
        T(a_committed_claim_is_busy_then_in_doubt),
        T(loose_is_taken_over_with_a_larger_fence),
        T(another_request_under_the_same_id_is_a_mismatch),
        T(join_holds_the_claim_of_another_connection),
        T(settle_keeps_a_late_request_out),
        T(a_released_claim_may_run_again),
        T(outside_a_transaction_nothing_is_claimed),
        T(a_missing_table_says_how_to_make_it),
        T(a_snapshot_that_cannot_see_is_refused),
        T(run_does_it_once_and_replays),
        T(strict_records_a_failure_and_undoes_the_business),
        T(loose_forgets_a_failure_and_tries_again),
        T(what_could_not_be_tried_leaves_nothing),
        T(work_that_ends_the_transaction_is_found_out),
        T(run_goes_on_when_the_table_was_altered),
        T(run_needs_no_isolation_of_the_session),
        T(a_duplicate_that_waits_gets_the_first_result),
        T(statements_run_once_and_are_replayed),
        T(statements_take_over_what_was_released),
        T(a_statement_that_fails_undoes_everything),
        T(statements_that_cannot_be_are_refused),
        T(insert_once_returns_the_row_that_is_there),
        T(insert_once_sees_what_is_there_now),
        T(upsert_updates_what_is_there),
        T(a_row_of_a_table_that_was_altered_has_its_new_column),
        T(a_versioned_update_tells_duplicate_from_conflict),
        T(a_versioned_update_is_recognised_whatever_its_types),
        T(deduct_never_goes_below_zero),
        T(a_row_lock_ends_in_time_and_needs_an_index),
        T(every_scheme_needs_its_unique_key),
        T(the_unique_key_is_looked_up_once_a_table),
        T(what_postgres_adds_to_an_index_is_understood),
        T(a_state_moves_once_and_never_back),
        T(a_repeated_move_is_a_duplicate_whatever_the_columns_type),
        T(the_barrier_orders_try_confirm_and_cancel),
        T(a_branch_with_a_nul_is_nobody_elses),
        T(names_are_quoted_and_bad_ones_refused),
        T(names_of_any_kind_are_found),
        T(what_cannot_be_is_an_error_and_changes_nothing),
        T(a_table_that_cannot_roll_back_is_refused),
        T(a_sealed_claim_can_be_joined_and_finished),
        T(a_sealed_result_is_refused_and_not_shown),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);

    sqldb_done();
    return failed;
}
