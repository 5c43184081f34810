/*
 * sqlscheme_test.c - the schemes on a service's own tables, from one table of
 * calls: through idem/sql.h, and the same calls through the functions and
 * procedures of sql/postgres.sql and sql/mysql.sql. Every verdict and every row
 * that is left must be the one in the table.
 *
 *   IDEM_TEST_SQL=postgres://... build/tests/c/sqlscheme_test
 */
#include "../support/sqldb.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static struct sqldb s;
static struct idem_error err;

/* What a function or procedure answers; the arguments are written as SQL. */
static const char *
ask(const char *name, const char *arguments)
{
    if (s.postgres)
        return sqldb_text(&s, "select idem.%s(%s)", name, arguments);
    sqldb_run(&s, "set names utf8mb4; set @v = null; call idem_%s(%s, @v)",
              name, arguments);
    return sqldb_text(&s, "select @v");
}

/* ---- state machines ---------------------------------------------------- */

/* Moves are pairs of letters; the row is in state `is`, and the move `move` is
 * asked for. */
static const struct {
    const char *moves, *is, *move, *verdict;
} machines[] = {
    /* a line: new, paid, done */
    {"np pd", "n", "np", "first"},
    {"np pd", "p", "np", "duplicate"},
    {"np pd", "d", "np", "duplicate"}, /* pay, finish, pay again */
    {"np pd", "d", "pd", "duplicate"},
    {"np pd", "n", "pd", "refused"},
    {"np pd", "p", "pn", "refused"}, /* not declared */
    {"np pd", "x", "np", "refused"}, /* a state that no move knows */
    {"np pd de ef", "f", "np", "duplicate"},
    {"np pd de ef", "p", "de", "refused"},
    /* a way off: done came by paid, off did not */
    {"np pd no", "o", "np", "refused"},
    {"np pd no", "d", "np", "duplicate"},
    {"np pd no", "p", "no", "refused"},
    {"np pd no", "d", "no", "refused"},
    /* two ways to the same end prove neither */
    {"np pd nq qd", "d", "np", "refused"},
    {"np pd nq qd", "d", "nq", "refused"},
    {"np pd nd", "d", "np", "refused"},
    {"np pd nd", "d", "nd", "duplicate"}, /* it is where it should be */
    /* two ways that part after the move, and meet again */
    {"np pa pb ad bd", "d", "np", "duplicate"},
    {"np pa pb ad bd", "d", "pa", "refused"},
    /* another start leads there: it may never have been new */
    {"np pd xd", "d", "np", "refused"},
    {"np pd xp", "p", "np", "duplicate"},
    {"np pd xp", "d", "np", "refused"},
    {"np pd xy yx yd", "d", "np", "refused"}, /* a start that is a circle */
    {"np pd dx", "x", "np", "duplicate"},
    /* back and again: a row may start anywhere on such a circle */
    {"np pd dn", "d", "np", "refused"},
    {"np pd dn", "n", "np", "first"},
    {"np pd dn", "n", "pd", "refused"},
    {"sn np pd dn", "d", "np", "duplicate"}, /* but here at s */
    {"sn np pd dn", "n", "pd", "refused"},
    {"np pd dp", "d", "np", "duplicate"},
    {"np pd dp", "p", "pd", "first"},
    {"np pd dp de", "e", "pd", "duplicate"},
    {"np pd dp pe", "e", "pd", "refused"}, /* done was perhaps left out */
};

static struct idem_sql_value
letter(char c, char text[2])
{
    text[0] = c;
    text[1] = 0;
    return idem_sql_text(text);
}

static const char *
move_in_c(const char *declared, const char *asked)
{
    struct idem_sql_move moves[8];
    struct idem_sql_machine machine = {"t_order", "id", "state", moves, 0};
    char names[8][2][2], from[2], to[2];
    enum idem_sql_verdict verdict;
    struct idem_sql_row row;

    for (const char *m = declared; *m; m += m[2] ? 3 : 2) {
        size_t i = machine.move_count++;

        moves[i].from = letter(m[0], names[i][0]);
        moves[i].to = letter(m[1], names[i][1]);
    }
    if (idem_sql_move(s.db, &machine, idem_sql_int(1), letter(asked[0], from),
                      letter(asked[1], to), &verdict, &row, &err) != IDEM_OK)
        fail_msg("%s", err.text);
    return idem_sql_verdict_name(verdict);
}

static const char *
move_in_sql(const char *declared, const char *asked)
{
    char arguments[200];

    for (const char *m = declared; *m; m += m[2] ? 3 : 2)
        sqldb_run(&s,
                  s.postgres ? "select idem.declare_move('%s', '%c', '%c')"
                             : "call idem_declare_move('%s', '%c', '%c')",
                  declared, m[0], m[1]);
    snprintf(arguments, sizeof(arguments),
             "'%s', 't_order', 'id', '1', 'state', '%c', '%c'", declared,
             asked[0], asked[1]);
    return ask("transition", arguments);
}

static void
a_move_that_must_have_happened_is_a_duplicate(void **state)
{
    (void)state;
    sqldb_run(&s, "create table t_order (id integer not null primary key, "
                  "state char(4))");
    for (size_t i = 0; i < sizeof(machines) / sizeof(machines[0]); i++) {
        for (int sql = 0; sql <= !s.sqlite; sql++) {
            char is[2] = {machines[i].is[0], 0}, got[20];

            sqldb_run(&s, "delete from t_order");
            sqldb_run(&s, "insert into t_order values (1, '%s')", is);
            sqldb_begin(&s);
            snprintf(got, sizeof(got), "%s",
                     sql ? move_in_sql(machines[i].moves, machines[i].move)
                         : move_in_c(machines[i].moves, machines[i].move));
            sqldb_run(&s, "commit");
            if (strcmp(got, machines[i].verdict) != 0)
                fail_msg("%s: %s in state %s, moves %s: %s, not %s",
                         sql ? "SQL" : "C", machines[i].move, is,
                         machines[i].moves, got, machines[i].verdict);
            if (strcmp(got, "first") == 0)
                is[0] = machines[i].move[1];
            assert_int_equal(
                sqldb_number(
                    &s, "select count(*) from t_order where state = '%s'", is),
                1);
        }
    }
}

static int
set_up(void **state)
{
    (void)state;
    sqldb_open(&s);
    sqldb_try(&s, "drop table if exists t_order");
    return 0;
}

static int
tear_down(void **state)
{
    (void)state;
    sqldb_try(&s, "rollback");
    sqldb_try(&s, "drop table if exists t_order");
    sqldb_close(&s);
    return 0;
}

int
main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        T(a_move_that_must_have_happened_is_a_duplicate),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);

    sqldb_done();
    return failed;
}
