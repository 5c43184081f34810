/*
 * sqllimits_test.c - arguments at and beyond the limits of idem/sql.h, and
 * records that are not as they should be.
 *
 *   IDEM_TEST_SQL=postgres://... build/tests/c/sqllimits_test
 */
#include "../support/sqldb.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static struct sqldb one, two;
static struct idem_error err;
static char scope_text[60];

static int
set_up(void **state)
{
    static int number;

    (void)state;
    snprintf(scope_text, sizeof(scope_text), "limits-%d-%lld-%d", (int)getpid(),
             (long long)time(NULL), ++number);
    sqldb_open(&one);
    sqldb_open(&two);
    sqldb_try(&one, "drop table if exists t_limit");
    sqldb_run(&one, "create table t_limit (id integer not null primary key, "
                    "n bigint, version bigint, state varchar(9))");
    sqldb_run(&one, "insert into t_limit values (1, 5, 1, 's70')");
    sqldb_begin(&one);
    return 0;
}

static int
tear_down(void **state)
{
    (void)state;
    sqldb_close(&two);
    sqldb_try(&one, "rollback");
    sqldb_run(&one, "drop table t_limit");
    sqldb_close(&one);
    return 0;
}

static void
told(enum idem_status status, const char *text)
{
    assert_int_equal(status, IDEM_ERR_INVALID);
    if (!strstr(err.text, text))
        fail_msg("\"%s\" does not say \"%s\"", err.text, text);
}

/* ---- the schemes ------------------------------------------------------- */

static void
a_call_with_too_many_columns_is_refused(void **state)
{
    struct idem_sql_pair key = {"id", idem_sql_int(1)}, values[64];
    struct idem_sql_place place = {"t_limit", &key, 1};
    enum idem_sql_verdict verdict;
    struct idem_sql_row row;

    (void)state;
    for (size_t i = 0; i < 64; i++)
        values[i] = (struct idem_sql_pair){"n", idem_sql_int(1)};
    told(idem_sql_insert_once(one.db, &place, values, 60, &verdict, &row, &err),
         "more than 60 columns");
    assert_int_equal(sqldb_number(&one, "select n from t_limit"), 5);
}

static void
an_update_of_nothing_but_the_version_counts_it(void **state)
{
    struct idem_sql_pair key = {"id", idem_sql_int(1)};
    struct idem_sql_place place = {"t_limit", &key, 1};
    enum idem_sql_verdict verdict;
    struct idem_sql_row row;

    (void)state;
    assert_int_equal(idem_sql_update_versioned(one.db, &place, "version", 1,
                                               NULL, 0, &verdict, &row, &err),
                     IDEM_OK);
    assert_int_equal(verdict, IDEM_SQL_IS_FIRST);
    assert_int_equal(sqldb_number(&one, "select version from t_limit"), 2);
    assert_int_equal(
        idem_sql_upsert(one.db, &place, NULL, 0, &verdict, &row, &err),
        IDEM_OK);
    assert_int_equal(verdict, IDEM_SQL_IS_DUPLICATE);
    assert_int_equal(idem_sql_column(&row, "version").number, 2);
}

/* More states than fit into one question to the database. */
static void
a_machine_may_have_many_states(void **state)
{
    enum { STATES = 140 };
    struct idem_sql_move moves[STATES];
    struct idem_sql_machine machine = {"t_limit", "id", "state", moves, 0};
    char names[STATES + 1][8];
    enum idem_sql_verdict verdict;
    struct idem_sql_row row;

    (void)state;
    for (size_t i = 0; i <= STATES; i++)
        snprintf(names[i], sizeof(names[i]), "s%zu", i);
    for (size_t i = 0; i < STATES; i++)
        moves[i] = (struct idem_sql_move){idem_sql_text(names[i]),
                                          idem_sql_text(names[i + 1])};
    machine.move_count = STATES;
    /* The row is in state 70: it came by 3 and 69, and not by 100. */
    for (size_t at = 3; at < STATES; at += 97) {
        assert_int_equal(idem_sql_move(one.db, &machine, idem_sql_int(1),
                                       moves[at].from, moves[at].to, &verdict,
                                       &row, &err),
                         IDEM_OK);
        assert_int_equal(verdict,
                         at < 70 ? IDEM_SQL_IS_DUPLICATE : IDEM_SQL_IS_REFUSED);
    }
    assert_int_equal(idem_sql_move(one.db, &machine, idem_sql_int(2),
                                   moves[3].from, moves[3].to, &verdict, &row,
                                   &err),
                     IDEM_OK);
    assert_int_equal(verdict, IDEM_SQL_IS_REFUSED);
    assert_int_equal(row.count, 0);
}

static void
a_name_of_a_table_or_column_is_checked(void **state)
{
    static char endless[200];
    const char *const wrong[] = {"", ".n", "n.", endless, NULL};
    struct idem_sql_pair key = {"id", idem_sql_int(1)};
    struct idem_sql_place place = {"t_limit", &key, 1};
    enum idem_sql_verdict verdict;
    struct idem_sql_row row;

    (void)state;
    memset(endless, 'n', sizeof(endless) - 1);
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
        told(idem_sql_deduct(one.db, &place, wrong[i], 1, &verdict, &row, &err),
             "a name of a table or column is empty, too long");
    assert_int_equal(sqldb_number(&one, "select n from t_limit"), 5);
}

static void
a_branch_has_a_name_that_fits(void **state)
{
    static char endless[IDEM_ID_MAX];
    const struct idem_bytes wrong[] = {{"", 0}, {endless, IDEM_ID_MAX - 9}};
    enum idem_sql_verdict verdict;

    (void)state;
    memset(endless, 'b', sizeof(endless));
    for (size_t i = 0; i < 2; i++) {
        for (int phase = IDEM_SQL_TRY; phase <= IDEM_SQL_CANCEL; phase++)
            told(idem_sql_barrier(one.db, idem_text(scope_text), wrong[i],
                                  phase, &verdict, &err),
                 "a branch has 1 to ");
    }
    assert_int_equal(
        idem_sql_barrier(one.db, idem_text(scope_text),
                         (struct idem_bytes){endless, IDEM_ID_MAX - 10},
                         IDEM_SQL_TRY, &verdict, &err),
        IDEM_OK);
    assert_int_equal(verdict, IDEM_SQL_IS_FIRST);
}

static void
an_adapter_needs_a_connection(void **state)
{
    struct idem_sql *db = NULL;

    (void)state;
    told(idem_sql_postgres(NULL, &db, &err), "the connection is not open");
    told(idem_sql_mysql(NULL, &db, &err), "the connection is not open");
    told(idem_sql_sqlite(NULL, &db, &err), "the connection is not open");
    assert_null(db);
    idem_sql_close(NULL);
    assert_string_equal(idem_sql_cause_name(99), "?");
    assert_string_equal(idem_sql_verdict_name(99), "?");
}

/* PostgreSQL allows nothing more in such a transaction; the others go on. */
static void
after_a_statement_that_failed_the_database_decides(void **state)
{
    struct idem_op op = {.scope = idem_text(scope_text), .id = idem_text("a")};
    struct idem_answer answer;

    (void)state;
    assert_false(sqldb_try(&one, "select 1 from t_nowhere"));
    if (one.postgres) {
        told(idem_sql_claim(one.db, &op, &answer, &err),
             "the transaction has failed already");
        return;
    }
    assert_int_equal(idem_sql_claim(one.db, &op, &answer, &err), IDEM_OK);
    assert_int_equal(answer.verdict, IDEM_V_STARTED);
    idem_answer_clear(&answer);
}

/* ---- joining ----------------------------------------------------------- */

static uint64_t
claim(struct sqldb *s, const char *id)
{
    struct idem_op op = {.scope = idem_text(scope_text), .id = idem_text(id)};
    struct idem_answer answer;
    uint64_t fence;

    assert_int_equal(idem_sql_claim(s->db, &op, &answer, &err), IDEM_OK);
    assert_int_equal(answer.verdict, IDEM_V_STARTED);
    fence = answer.record->fence;
    idem_answer_clear(&answer);
    return fence;
}

static enum idem_verdict
join(struct sqldb *s, const char *id, uint64_t fence, int64_t wait_ms)
{
    struct idem_answer answer;
    enum idem_verdict verdict;

    assert_int_equal(idem_sql_join(s->db, idem_text(scope_text), idem_text(id),
                                   fence, wait_ms, &answer, &err),
                     IDEM_OK);
    verdict = answer.verdict;
    idem_answer_clear(&answer);
    return verdict;
}

static void
what_is_not_there_or_held_or_free_is_not_joined(void **state)
{
    struct idem_op op = {.verb = IDEM_RELEASE,
                         .scope = idem_text(scope_text),
                         .id = idem_text("a")};
    struct idem_answer answer;

    (void)state;
    assert_int_equal(join(&one, "nothing", 7, 0), IDEM_V_STALE);
    op.fence = claim(&one, "a");
    sqldb_run(&one, "commit");
    sqldb_begin(&one);
    assert_int_equal(join(&one, "a", op.fence, 0), IDEM_V_STARTED);
    if (!one.sqlite) { /* which has no locks of rows */
        sqldb_begin(&two);
        assert_int_equal(join(&two, "a", op.fence, 0), IDEM_V_BUSY);
        assert_int_equal(join(&two, "a", op.fence, 30), IDEM_V_BUSY);
        sqldb_run(&two, "rollback");
    }
    assert_int_equal(idem_sql_do(one.db, &op, &answer, &err), IDEM_OK);
    idem_answer_clear(&answer);
    assert_int_equal(join(&one, "a", op.fence, 0), IDEM_V_STALE);
}

static void
a_record_that_makes_no_sense_is_an_error(void **state)
{
    struct idem_op get = {
        .verb = IDEM_GET, .scope = idem_text(scope_text), .id = idem_text("a")};
    struct idem_answer answer;
    uint64_t fence = claim(&one, "a");

    (void)state;
    (void)fence;
    sqldb_run(&one, "update %s set state = 99 where scope = %s%s%s",
              one.postgres ? "idem.idem_record" : "idem_record",
              one.sqlite ? "cast('" : "'", scope_text,
              one.sqlite ? "' as blob)" : "'");
    assert_int_not_equal(idem_sql_do(one.db, &get, &answer, &err), IDEM_OK);
    assert_int_not_equal(err.text[0], 0);
}

int
main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        T(a_call_with_too_many_columns_is_refused),
        T(an_update_of_nothing_but_the_version_counts_it),
        T(a_machine_may_have_many_states),
        T(a_name_of_a_table_or_column_is_checked),
        T(a_branch_has_a_name_that_fits),
        T(an_adapter_needs_a_connection),
        T(after_a_statement_that_failed_the_database_decides),
        T(what_is_not_there_or_held_or_free_is_not_joined),
        T(a_record_that_makes_no_sense_is_an_error),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);

    sqldb_done();
    return failed;
}
