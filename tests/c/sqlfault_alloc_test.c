/*
 * sqlfault_alloc_test.c - every function of idem/sql.h while the database or
 * the memory fails once, in turn.
 *
 *   IDEM_TEST_SQL=postgres://... build/tests/c/sqlfault_alloc_test
 *
 * In run n of a call the n-th allocation fails, or the n-th call of the
 * database's library gets into trouble: the statement is refused, or the
 * connection breaks before it or before its reply, or the server ends the
 * session. The answer must be the right one or an error. Then the caller's
 * transaction must be as idem/sql.h says, the row and the records must be as
 * they were before the call or as it leaves them, as it said, and the same call
 * again must get the answer that it should.
 *
 * At most IDEM_TEST_RUNS=3 runs for each call and each kind, spread over all;
 * with IDEM_SOAK=1 all. IDEM_TEST_LOUD=1 names each run.
 */
#include "../support/failing_alloc.h"
#include "../support/failing_library.h"
#include "../support/failing_sql.h"
#include "../support/sqlcalls.h"
#include "../support/stores.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum kind { IN_ALLOC, IN_ARENA, IN_LIBRARY_ALLOC, IN_SQL, KINDS };

static const char *const trouble_names[] = {"none", "refused", "broken",
                                            "unheard", "killed"};
static const struct refusal refusals[] = {
    {"40P01", 1213, SQLITE_INTERRUPT}, {"40001", 1020, SQLITE_BUSY},
    {"55P03", 1205, SQLITE_LOCKED},    {"53200", 1041, SQLITE_NOMEM},
    {"42P01", 1146, SQLITE_FULL},
};

static struct sqlcall_stage stage;
static enum kind armed = KINDS;
static enum trouble armed_with;
static size_t fail_at, seen;
static bool fired;

static bool
is_now(enum kind kind)
{
    if (armed != kind || ++seen != fail_at)
        return false;
    fired = true;
    return true;
}

static bool
alloc_fails(size_t calloc_len)
{
    (void)calloc_len;
    return is_now(IN_ALLOC);
}

static bool
library_alloc_fails(void)
{
    return is_now(IN_LIBRARY_ALLOC);
}

static enum trouble
sql_trouble(void)
{
    return is_now(IN_SQL) ? armed_with : FINE;
}

/* Arenas and buffers have memory in reserve, so they fail here. */
#define MAY_FAIL(type, name, failure, params, args)                            \
    type __real_##name params;                                                 \
    type __wrap_##name params;                                                 \
    type __wrap_##name params                                                  \
    {                                                                          \
        return is_now(IN_ARENA) ? failure : __real_##name args;                \
    }

MAY_FAIL(void *, idem_arena_take, NULL, (struct idem_arena * arena, size_t len),
         (arena, len))
MAY_FAIL(bool, idem_arena_record, false,
         (struct idem_arena * arena, const struct idem_record *from,
          struct idem_record *to),
         (arena, from, to))
MAY_FAIL(bool, idem_buf_add_text, false,
         (struct idem_buf * buf, const char *text), (buf, text))
MAY_FAIL(bool, idem_buf_add, false,
         (struct idem_buf * buf, const void *data, size_t len),
         (buf, data, len))
MAY_FAIL(unsigned char *, PQunescapeBytea, NULL,
         (const unsigned char *text, size_t *len), (text, len))
MAY_FAIL(MYSQL_STMT *, mysql_stmt_init, NULL, (MYSQL * conn), (conn))
MAY_FAIL(MYSQL_RES *, mysql_stmt_result_metadata, NULL, (MYSQL_STMT * s), (s))

/* ---- one run ----------------------------------------------------------- */

/* What a call leaves: before it, after it, and after it was made again. */
struct views {
    char none[200], once[200], twice[200];
};

struct outcome {
    enum idem_status status;
    const char *said;
    bool done, maybe; /* committed; perhaps */
};

/* A new adapter has prepared nothing and checked nothing. */
static void
renew_adapter(void)
{
    struct sqldb *s = &stage.one;
    enum idem_status status;

    idem_sql_close(s->db);
    status = s->postgres ? idem_sql_postgres(s->postgres, &s->db, &stage.err)
             : s->mysql  ? idem_sql_mysql(s->mysql, &s->db, &stage.err)
                         : idem_sql_sqlite(s->sqlite, &s->db, &stage.err);
    assert_int_equal(status, IDEM_OK);
}

/* A lock that is not free in time is an answer. */
static bool
is_locked(const struct outcome *out)
{
    return fired && armed_with == REFUSED &&
           (refusal->code == 1205 || refusal->rc == SQLITE_BUSY ||
            refusal->rc == SQLITE_LOCKED) &&
           out->status == IDEM_OK &&
           (strcmp(out->said, "busy") == 0 ||
            strcmp(out->said, "conflict") == 0);
}

/* In the caller's transaction: commit after an answer, roll back after an
 * error. */
static void
end_transaction(struct outcome *out)
{
    if (out->status != IDEM_OK) {
        sqldb_try(&stage.one, "rollback");
        return;
    }
    if (sqldb_inside(&stage.one) == SQLDB_OUTSIDE && !sql_is_broken) {
        if (!is_locked(out)) /* a FINISH that failed rolls back */
            assert_string_equal(out->said, "stale");
        return;
    }
    out->done = sqldb_try(&stage.one, "commit");
    out->maybe = !out->done;
}

static struct outcome
attempt(const struct sqlcall *call, enum kind kind, size_t n)
{
    struct outcome out = {.said = "nothing"};

    memset(&stage.err, 0, sizeof(stage.err));
    if (call->in_transaction)
        sqldb_begin(&stage.one);
    fired = sql_is_broken = false;
    seen = 0;
    fail_at = n;
    armed = kind;
    out.status = call->make(&stage, &out.said);
    armed = KINDS;
    mysql_refused = NULL;
    sqlite_refused = 0;
    if (call->in_transaction) {
        if (out.status == IDEM_OK)
            assert_int_not_equal(sqldb_inside(&stage.one), SQLDB_FAILED);
        end_transaction(&out);
    } else {
        out.done = out.status == IDEM_OK;
        out.maybe = out.status == IDEM_ERR_LOST;
    }
    if (!sql_is_broken)
        assert_int_equal(sqldb_inside(&stage.one), SQLDB_OUTSIDE);
    return out;
}

static void
must_be_true(const struct outcome *out)
{
    if (out->status == IDEM_OK)
        return;
    assert_true(fired);
    assert_true(stage.err.text[0] != 0);
    assert_true(
        out->status == IDEM_ERR_MEMORY || out->status == IDEM_ERR_UNAVAILABLE ||
        out->status == IDEM_ERR_LOST || out->status == IDEM_ERR_INVALID);
}

/* Returns how many points there were at which something could fail. *failed
 * counts what failed. */
static size_t
run(const struct sqlcall *call, const struct views *views, enum kind kind,
    size_t n, size_t *failed)
{
    struct outcome out;
    char view[200];
    size_t points;
    bool once;

    sqlcalls_prepare(&stage, call);
    renew_adapter();
    refusal = &refusals[n % (sizeof(refusals) / sizeof(refusals[0]))];
    out = attempt(call, kind, n);
    points = seen;
    *failed += fired;
    must_be_true(&out);
    if (sql_is_broken)
        sqldb_reopen(&stage.one, &stage.two);
    sqlcalls_look(&stage, view, sizeof(view));
    if (is_locked(&out))
        out.done = false;
    else if (out.status == IDEM_OK)
        assert_string_equal(out.said, call->first);
    once = out.done || (out.maybe && strcmp(view, views->once) == 0);
    assert_string_equal(view, once ? views->once : views->none);
    out = attempt(call, KINDS, 0);
    if (out.status != IDEM_OK)
        fail_msg("again: %s", stage.err.text);
    assert_string_equal(out.said, once ? call->again : call->first);
    sqlcalls_look(&stage, view, sizeof(view));
    assert_string_equal(view, once ? views->twice : views->once);
    return points;
}

/* ---- all runs ---------------------------------------------------------- */

/* Without a fault. */
static void
see(const struct sqlcall *call, struct views *views)
{
    struct outcome out;

    sqlcalls_prepare(&stage, call);
    sqlcalls_look(&stage, views->none, sizeof(views->none));
    out = attempt(call, KINDS, 0);
    if (out.status != IDEM_OK)
        fail_msg("%s: %s", call->name, stage.err.text);
    assert_string_equal(out.said, call->first);
    sqlcalls_look(&stage, views->once, sizeof(views->once));
    out = attempt(call, KINDS, 0);
    assert_int_equal(out.status, IDEM_OK);
    assert_string_equal(out.said, call->again);
    sqlcalls_look(&stage, views->twice, sizeof(views->twice));
}

static size_t
fail_each(enum kind kind, enum trouble trouble)
{
    const char *soak = getenv("IDEM_SOAK");
    size_t most = number_from_env("IDEM_TEST_RUNS", soak && *soak ? 1000 : 3);
    size_t failed = 0;

    sqlcalls_open(&stage);
    armed_with = trouble;
    for (size_t i = 0; i < sqlcall_count; i++) {
        const struct sqlcall *call = &sqlcalls[i];
        struct views views;
        size_t all, step;

        see(call, &views);
        all = run(call, &views, kind, 0, &failed);
        step = all / most + 1;
        for (size_t n = 1 + i % step; n <= all; n += step) {
            if (getenv("IDEM_TEST_LOUD"))
                print_message("%s, %s %zu of %zu\n", call->name,
                              trouble_names[trouble], n, all);
            (void)run(call, &views, kind, n, &failed);
        }
    }
    sqlcalls_close(&stage);
    return failed;
}

static bool
is_sqlite(void)
{
    return strncmp(sqldb_url(), "sqlite:", 7) == 0;
}

static void
an_allocation_that_fails_is_an_error_or_nothing(void **state)
{
    size_t failed = fail_each(IN_ALLOC, FINE);
    size_t parts = fail_each(IN_ARENA, FINE);

    (void)state;
    print_message("%zu allocations and %zu parts of them failed\n", failed,
                  parts);
    assert_true(failed >= sqlcall_count && parts >= sqlcall_count);
    if (is_sqlite())
        assert_true(fail_each(IN_LIBRARY_ALLOC, FINE) >= sqlcall_count);
}

static void
a_statement_that_fails_is_an_error_or_nothing(void **state)
{
    (void)state;
    for (enum trouble t = REFUSED; t < (is_sqlite() ? BROKEN : TROUBLES); t++) {
        size_t failed = fail_each(IN_SQL, t);

        print_message("%zu statements were %s\n", failed, trouble_names[t]);
        assert_true(failed >= sqlcall_count);
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_allocation_that_fails_is_an_error_or_nothing),
        cmocka_unit_test(a_statement_that_fails_is_an_error_or_nothing),
    };
    int failed;

    fail_in_libraries();
    failed = cmocka_run_group_tests(tests, NULL, NULL);
    sqldb_done();
    return failed;
}
