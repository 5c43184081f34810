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

/* ---- the schemes ------------------------------------------------------- */

/* The row with id 1 is (1, stock 100, version 1, name 'ann', code 'x'), and
 * code is unique. Each call finds what the calls before it have left. Numbers
 * that are not used are 0. */
enum scheme { INSERT, LOOK, UPSERT, VERSION, ADD, DEDUCT, LOCK };

static const struct {
    enum scheme scheme;
    int id;
    const char *name, *code;
    long long number, version;
    const char *verdict;
    const char *row; /* that is there afterwards: stock, version, name */
} calls[] = {
    {INSERT, 7, "eve", "e", 5, 1, "first", "5,1,eve"},
    {INSERT, 7, "eva", "e", 6, 1, "duplicate", "5,1,eve"},
    {INSERT, 8, "sam", "e", 6, 1, "conflict", ""}, /* code is taken */
    {LOOK, 7, "eva", "e", 6, 1, "duplicate", "5,1,eve"},
    {LOOK, 9, "it's \\ `\" 已付", "i", 6, 1, "first", "6,1,it's \\ `\" 已付"},
    {LOOK, 10, "sam", "e", 6, 1, "conflict", ""},
    {UPSERT, 11, "kim", "k", 1, 1, "first", "1,1,kim"},
    {UPSERT, 11, "tim", "k", 2, 3, "duplicate", "2,3,tim"},
    {UPSERT, 11, "tim", "k", 2, 3, "duplicate", "2,3,tim"},
    {UPSERT, 12, "kim", "k", 1, 1, "conflict", ""},
    {VERSION, 1, "anna", "x", 90, 1, "first", "90,2,anna"},
    {VERSION, 1, "anna", "x", 90, 1, "duplicate", "90,2,anna"},
    {VERSION, 1, "Anna", "x", 90, 1, "conflict", "90,2,anna"},
    {VERSION, 1, "anna", "x", 91, 1, "conflict", "90,2,anna"},
    {VERSION, 1, "anna", NULL, 90, 1, "conflict", "90,2,anna"},
    {VERSION, 1, "ann", NULL, 90, 2, "first", "90,3,ann"},
    {VERSION, 1, "ann", NULL, 90, 2, "duplicate", "90,3,ann"},
    {VERSION, 1, "anna", "x", 90, 1, "conflict", "90,3,ann"},
    {VERSION, 99, "anna", "x", 90, 1, "refused", ""},
    {ADD, 1, "bea", NULL, 50, 3, "first", "140,4,bea"},
    {ADD, 1, "bea", NULL, 50, 3, "conflict", "140,4,bea"},
    {ADD, 1, "bea", NULL, -40, 4, "first", "100,5,bea"},
    {ADD, 99, "bea", NULL, 50, 3, "refused", ""},
    {DEDUCT, 1, NULL, NULL, 70, 0, "first", "30,5,bea"},
    {DEDUCT, 1, NULL, NULL, 70, 0, "refused", "30,5,bea"},
    {DEDUCT, 1, NULL, NULL, 30, 0, "first", "0,5,bea"},
    {DEDUCT, 1, NULL, NULL, 0, 0, "first", "0,5,bea"},
    {DEDUCT, 99, NULL, NULL, 0, 0, "refused", ""},
    {LOCK, 1, NULL, NULL, 0, 0, "first", "0,5,bea"},
    {LOCK, 99, NULL, NULL, 0, 0, "refused", ""},
};

#define CALLS (sizeof(calls) / sizeof(calls[0]))

static const char *
call_in_c(size_t i)
{
    struct idem_sql_pair key = {"id", idem_sql_int(calls[i].id)};
    struct idem_sql_place place = {"t_item", &key, 1};
    struct idem_sql_pair values[] = {
        {"stock", idem_sql_int(calls[i].number)},
        {"name", idem_sql_text(calls[i].name ? calls[i].name : "")},
        {"code", {.type = IDEM_SQL_NULL}},
        {"version", idem_sql_int(calls[i].version)}};
    enum idem_sql_verdict verdict = IDEM_SQL_IS_EMPTY;
    enum idem_status status = IDEM_ERR_INVALID;
    int64_t version = calls[i].version;
    struct idem_sql_row row;

    if (calls[i].code)
        values[2].value = idem_sql_text(calls[i].code);
    if (calls[i].scheme == ADD)
        values[0].value = idem_sql_add(calls[i].number);
    switch (calls[i].scheme) {
    case INSERT:
        status =
            idem_sql_insert_once(s.db, &place, values, 4, &verdict, &row, &err);
        break;
    case LOOK:
        status = idem_sql_select_insert(s.db, &place, values, 4, &verdict, &row,
                                        &err);
        break;
    case UPSERT:
        status = idem_sql_upsert(s.db, &place, values, 4, &verdict, &row, &err);
        break;
    case VERSION:
    case ADD:
        status = idem_sql_update_versioned(s.db, &place, "version", version,
                                           values, 3, &verdict, &row, &err);
        break;
    case DEDUCT:
        status = idem_sql_deduct(s.db, &place, "stock", calls[i].number,
                                 &verdict, &row, &err);
        break;
    case LOCK:
        status = idem_sql_lock_row(s.db, &place, 0, &verdict, &row, &err);
        break;
    }
    if (status != IDEM_OK)
        fail_msg("call %zu: %s", i, err.text);
    return idem_sql_verdict_name(verdict);
}

/* A JSON object as a literal of SQL. */
static void
write_json(size_t i, char *out, size_t len, bool version, bool stock)
{
    char name[100], code[20] = "null", number[40] = "", counted[40] = "";
    size_t n = 0;

    for (const char *c = calls[i].name; c && *c; c++) {
        if (*c == '\'')
            name[n++] = '\''; /* doubled for SQL */
        if (*c == '"' || *c == '\\')
            name[n++] = '\\'; /* for JSON */
        if ((*c == '"' || *c == '\\') && s.mysql)
            name[n++] = '\\'; /* for a literal of MariaDB */
        if (*c == '\\' && s.mysql)
            name[n++] = '\\';
        name[n++] = *c;
    }
    name[n] = 0;
    if (calls[i].code)
        snprintf(code, sizeof(code), "\"%s\"", calls[i].code);
    if (stock)
        snprintf(number, sizeof(number), "\"stock\": %lld, ", calls[i].number);
    if (version)
        snprintf(counted, sizeof(counted), "\"version\": %lld, ",
                 calls[i].version);
    snprintf(out, len, "'{%s%s\"name\": \"%s\", \"code\": %s}'", number,
             counted, name, code);
}

static const char *
call_in_sql(size_t i)
{
    static const char *const names[] = {
        "insert_once",      "select_insert", "upsert",  "update_versioned",
        "update_versioned", "deduct",        "lock_row"};
    enum scheme scheme = calls[i].scheme;
    char arguments[400], json[300];

    write_json(i, json, sizeof(json), scheme <= UPSERT, scheme != ADD);
    if (scheme <= UPSERT)
        snprintf(arguments, sizeof(arguments), "'t_item', '{\"id\": %d}', %s",
                 calls[i].id, json);
    else if (scheme == VERSION || scheme == ADD)
        snprintf(arguments, sizeof(arguments),
                 "'t_item', '{\"id\": %d}', 'version', %lld, %s, "
                 "'{%s%.0lld}'",
                 calls[i].id, calls[i].version, json,
                 scheme == ADD ? "\"stock\": " : "",
                 scheme == ADD ? calls[i].number : 0);
    else if (scheme == DEDUCT)
        snprintf(arguments, sizeof(arguments),
                 "'t_item', '{\"id\": %d}', 'stock', %lld", calls[i].id,
                 calls[i].number);
    else
        snprintf(arguments, sizeof(arguments), "'t_item', '{\"id\": %d}', 0",
                 calls[i].id);
    return ask(names[scheme], arguments);
}

static const char *
row_of(int id)
{
    return sqldb_text(&s,
                      s.mysql ? "select concat(stock, ',', version, ',', name) "
                                "from t_item where id = %d"
                              : "select stock || ',' || version || ',' || name "
                                "from t_item where id = %d",
                      id);
}

static void
every_scheme_answers_alike(void **state)
{
    (void)state;
    for (int sql = 0; sql <= !s.sqlite; sql++) {
        sqldb_run(&s, "drop table if exists t_item");
        sqldb_run(&s,
                  "create table t_item (id bigint not null primary key, "
                  "stock bigint not null, version bigint not null, "
                  "name varchar(40) not null, code char(4) unique)%s",
                  s.mysql ? " character set utf8mb4" : "");
        if (s.mysql)
            sqldb_run(&s, "set names utf8mb4");
        sqldb_run(&s, "insert into t_item values (1, 100, 1, 'ann', 'x')");
        for (size_t i = 0; i < CALLS; i++) {
            char got[20];

            sqldb_begin(&s);
            snprintf(got, sizeof(got), "%s",
                     sql ? call_in_sql(i) : call_in_c(i));
            sqldb_run(&s, "commit");
            if (strcmp(got, calls[i].verdict) != 0)
                fail_msg("%s, call %zu: %s, not %s", sql ? "SQL" : "C", i, got,
                         calls[i].verdict);
            if (strcmp(row_of(calls[i].id), calls[i].row) != 0)
                fail_msg("%s, call %zu: the row is %s, not %s",
                         sql ? "SQL" : "C", i, row_of(calls[i].id),
                         calls[i].row);
        }
    }
}

static void
a_relative_value_is_for_the_versioned_update_alone(void **state)
{
    struct idem_sql_pair key = {"id", idem_sql_int(1)};
    struct idem_sql_place place = {"t_item", &key, 1};
    struct idem_sql_pair value = {"stock", idem_sql_add(1)};
    struct idem_sql_statement statement = {
        "update t_item set stock = ? where id = 1", &value.value, 1};
    struct idem_op op = {.scope = idem_text("add"), .id = idem_text("add")};
    struct idem_answer answer;
    enum idem_sql_verdict verdict;
    struct idem_sql_row row;

    (void)state;
    sqldb_run(&s, "create table t_item (id bigint not null primary key, "
                  "stock bigint)");
    sqldb_run(&s, "insert into t_item values (1, 100)");
    sqldb_begin(&s);
    assert_int_equal(
        idem_sql_upsert(s.db, &place, &value, 1, &verdict, &row, &err),
        IDEM_ERR_INVALID);
    assert_non_null(strstr(err.text, "idem_sql_add"));
    key.value = idem_sql_int(2);
    assert_int_equal(
        idem_sql_insert_once(s.db, &place, &value, 1, &verdict, &row, &err),
        IDEM_ERR_INVALID);
    sqldb_run(&s, "rollback");
    assert_int_equal(idem_sql_run_statements(s.db, &op, &statement, 1,
                                             idem_text(""), &answer, &err),
                     IDEM_ERR_INVALID);
    assert_int_equal(sqldb_number(&s, "select sum(stock) from t_item"), 100);
}

/* ---- the barrier ------------------------------------------------------- */

static const struct {
    const char *branch, *phase, *verdict;
} phases[] = {
    {"b1", "confirm", "refused"}, {"b1", "try", "first"},
    {"b1", "try", "duplicate"},   {"b1", "confirm", "first"},
    {"b1", "try", "duplicate"},   {"b1", "confirm", "duplicate"},
    {"b1", "cancel", "refused"},  {"b2", "try", "first"},
    {"b2", "cancel", "first"},    {"b2", "cancel", "duplicate"},
    {"b2", "confirm", "refused"}, {"b3", "cancel", "empty"},
    {"b3", "cancel", "empty"},    {"b3", "try", "refused"},
    {"b3", "confirm", "refused"},
};

static const char *
phase_in_c(const char *transaction, const char *branch, const char *phase)
{
    enum idem_sql_phase which = strcmp(phase, "try") == 0 ? IDEM_SQL_TRY
                                : strcmp(phase, "confirm") == 0
                                    ? IDEM_SQL_CONFIRM
                                    : IDEM_SQL_CANCEL;
    enum idem_sql_verdict verdict;

    if (idem_sql_barrier(s.db, idem_text(transaction), idem_text(branch), which,
                         &verdict, &err) != IDEM_OK)
        fail_msg("%s", err.text);
    return idem_sql_verdict_name(verdict);
}

/* By C, by SQL, and by both in turn: they write the same records. */
static void
the_barrier_answers_alike(void **state)
{
    (void)state;
    for (int way = 0; way <= (s.sqlite ? 0 : 3); way++) {
        char transaction[60], arguments[150], got[20];

        snprintf(transaction, sizeof(transaction), "t%d-%d-%lld", way,
                 (int)getpid(), (long long)time(NULL));
        for (size_t i = 0; i < sizeof(phases) / sizeof(phases[0]); i++) {
            bool sql = way == 1 || (way > 1 && (i + (size_t)way) % 2);

            snprintf(arguments, sizeof(arguments), "'%s', '%s', '%s'",
                     transaction, phases[i].branch, phases[i].phase);
            sqldb_begin(&s);
            snprintf(got, sizeof(got), "%s",
                     sql ? ask("barrier", arguments)
                         : phase_in_c(transaction, phases[i].branch,
                                      phases[i].phase));
            sqldb_run(&s, "commit");
            if (strcmp(got, phases[i].verdict) != 0)
                fail_msg("way %d, %s: %s, not %s", way, arguments, got,
                         phases[i].verdict);
        }
    }
}

static int
set_up(void **state)
{
    (void)state;
    sqldb_open(&s);
    sqldb_try(&s, "drop table if exists t_order");
    sqldb_try(&s, "drop table if exists t_item");
    return 0;
}

static int
tear_down(void **state)
{
    (void)state;
    sqldb_try(&s, "rollback");
    sqldb_try(&s, "drop table if exists t_order");
    sqldb_try(&s, "drop table if exists t_item");
    sqldb_close(&s);
    return 0;
}

int
main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        T(a_move_that_must_have_happened_is_a_duplicate),
        T(every_scheme_answers_alike),
        T(a_relative_value_is_for_the_versioned_update_alone),
        T(the_barrier_answers_alike),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);

    sqldb_done();
    return failed;
}
