/*
 * sqlcalls.c - every function of idem/sql.h as a call that can be made twice.
 */
#include "sqlcalls.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* ---- the stage --------------------------------------------------------- */

void
sqlcalls_open(struct sqlcall_stage *s)
{
    memset(s, 0, sizeof(*s));
    sqldb_open(&s->one);
    sqldb_open(&s->two);
    sqldb_try(&s->two, "drop table if exists t_thing");
    sqldb_run(&s->two, "create table t_thing (id integer not null primary key, "
                       "n bigint not null, version bigint not null, "
                       "state varchar(9), note varchar(40))");
}

void
sqlcalls_close(struct sqlcall_stage *s)
{
    sqldb_close(&s->one);
    sqldb_run(&s->two, "drop table t_thing");
    sqldb_close(&s->two);
}

void
sqlcalls_prepare(struct sqlcall_stage *s, const struct sqlcall *call)
{
    static int number;

    snprintf(s->scope, sizeof(s->scope), "calls-%d-%lld-%d", (int)getpid(),
             (long long)time(NULL), ++number);
    s->id = number;
    s->fence = 0;
    if (call->before)
        call->before(s);
}

void
sqlcalls_look(struct sqlcall_stage *s, char *text, size_t len)
{
    char scope[100];
    int at;

    snprintf(scope, sizeof(scope),
             s->two.sqlite ? "cast('%s' as blob)" : "'%s'", s->scope);
    at = snprintf(text, len, "row %s",
                  sqldb_text(&s->two,
                             s->two.mysql
                                 ? "select concat(n, ' ', version, ' ', state, "
                                   "' ', coalesce(note, '-')) from t_thing "
                                   "where id = %lld"
                                 : "select n || ' ' || version || ' ' || state "
                                   "|| ' ' || coalesce(note, '-') from t_thing "
                                   "where id = %lld",
                             (long long)s->id));
    snprintf(text + at, len - (size_t)at, ", records %lld",
             sqldb_number(&s->two,
                          "select coalesce(sum(1000 + 100 * state + "
                          "length(result)), 0) from %s where scope = %s",
                          s->two.postgres ? "idem.idem_record" : "idem_record",
                          scope));
}

static void
row(struct sqlcall_stage *s)
{
    sqldb_run(&s->two, "insert into t_thing values (%lld, 10, 1, 'new', 'x')",
              (long long)s->id);
}

static void
newer_row(struct sqlcall_stage *s)
{
    sqldb_run(&s->two, "insert into t_thing values (%lld, 12, 2, 'paid', 'x')",
              (long long)s->id);
}

static void
done_row(struct sqlcall_stage *s)
{
    sqldb_run(&s->two, "insert into t_thing values (%lld, 12, 2, 'done', 'x')",
              (long long)s->id);
}

static struct idem_op
op_of(struct sqlcall_stage *s, const char *id)
{
    return (struct idem_op){.scope = idem_text(s->scope), .id = idem_text(id)};
}

/* ---- records ----------------------------------------------------------- */

static enum idem_status
tell(enum idem_status status, struct idem_answer *answer, const char **said)
{
    if (status != IDEM_OK)
        return status;
    *said = answer->verdict == IDEM_V_STARTED &&
                    answer->record->state == IDEM_STATE_FAILED
                ? "started and failed"
                : idem_verdict_name(answer->verdict);
    idem_answer_clear(answer);
    return IDEM_OK;
}

static bool
work_on(struct sqlcall_stage *s, struct sqldb *db)
{
    return sqldb_try(db, "update t_thing set n = n + 1 where id = %lld",
                     (long long)s->id);
}

/* Claim, work, finish. */
static enum idem_status
claim_on(struct sqlcall_stage *s, struct sqldb *db, const char *id, bool ends,
         const char **said)
{
    struct idem_op op = op_of(s, id);
    struct idem_answer answer;
    enum idem_status status = idem_sql_claim(db->db, &op, &answer, &s->err);

    if (status != IDEM_OK)
        return status;
    op.fence = s->fence = answer.record->fence;
    if (answer.verdict != IDEM_V_STARTED || !ends)
        return tell(status, &answer, said);
    idem_answer_clear(&answer);
    if (!work_on(s, db)) {
        snprintf(s->err.text, sizeof(s->err.text), "the work failed");
        return IDEM_ERR_UNAVAILABLE;
    }
    op.outcome = IDEM_STATE_SUCCEEDED;
    op.result = idem_text("paid");
    status = idem_sql_finish(db->db, &op, &answer, &s->err);
    return tell(status, &answer, said);
}

static void
given(struct sqlcall_stage *s, bool ends)
{
    const char *said;

    row(s);
    sqldb_begin(&s->two);
    if (claim_on(s, &s->two, "given", ends, &said) != IDEM_OK)
        abort();
    sqldb_run(&s->two, "commit");
}

static void
begun(struct sqlcall_stage *s)
{
    given(s, false);
}

static void
finished(struct sqlcall_stage *s)
{
    given(s, true);
}

static enum idem_status
claim_new(struct sqlcall_stage *s, const char **said)
{
    return claim_on(s, &s->one, "new", true, said);
}

static enum idem_status
claim_given(struct sqlcall_stage *s, const char **said)
{
    return claim_on(s, &s->one, "given", true, said);
}

static enum idem_status
do_given(struct sqlcall_stage *s, enum idem_verb verb, uint64_t fence,
         const char **said)
{
    struct idem_op op = op_of(s, "given");
    struct idem_answer answer;

    op.verb = verb;
    op.fence = fence;
    if (verb == IDEM_FINISH || verb == IDEM_SETTLE) {
        op.outcome = IDEM_STATE_SUCCEEDED;
        op.result = idem_text("so be it");
    }
    return tell(idem_sql_do(s->one.db, &op, &answer, &s->err), &answer, said);
}

static enum idem_status
finish(struct sqlcall_stage *s, const char **said)
{
    return do_given(s, IDEM_FINISH, s->fence, said);
}

static enum idem_status
finish_stale(struct sqlcall_stage *s, const char **said)
{
    return do_given(s, IDEM_FINISH, s->fence + 1, said);
}

static enum idem_status
renew(struct sqlcall_stage *s, const char **said)
{
    return do_given(s, IDEM_RENEW, s->fence, said);
}

static enum idem_status
release(struct sqlcall_stage *s, const char **said)
{
    return do_given(s, IDEM_RELEASE, s->fence, said);
}

static enum idem_status
settle(struct sqlcall_stage *s, const char **said)
{
    return do_given(s, IDEM_SETTLE, 0, said);
}

static enum idem_status
get(struct sqlcall_stage *s, const char **said)
{
    return do_given(s, IDEM_GET, 0, said);
}

static enum idem_status
join(struct sqlcall_stage *s, const char **said)
{
    struct idem_answer answer;

    return tell(idem_sql_join(s->one.db, idem_text(s->scope),
                              idem_text("given"), s->fence, 0, &answer,
                              &s->err),
                &answer, said);
}

/* ---- idem_sql_run ------------------------------------------------------ */

struct work {
    struct sqlcall_stage *s;
    enum idem_state outcome;
};

static enum idem_state
work(void *arg, struct idem_sql *db, uint64_t fence, struct idem_bytes *result)
{
    struct work *w = arg;

    (void)db;
    (void)fence;
    *result = idem_text("paid");
    return work_on(w->s, &w->s->one) ? w->outcome : IDEM_STATE_ABSENT;
}

static enum idem_status
run_it(struct sqlcall_stage *s, const char *id, enum idem_mode mode,
       enum idem_state outcome, const char **said)
{
    struct work w = {s, outcome};
    struct idem_op op = op_of(s, id);
    struct idem_answer answer;

    op.mode = mode;
    return tell(idem_sql_run(s->one.db, &op, work, &w, &answer, &s->err),
                &answer, said);
}

static enum idem_status
run_new(struct sqlcall_stage *s, const char **said)
{
    return run_it(s, "new", IDEM_STRICT, IDEM_STATE_SUCCEEDED, said);
}

static enum idem_status
run_given(struct sqlcall_stage *s, const char **said)
{
    return run_it(s, "given", IDEM_STRICT, IDEM_STATE_SUCCEEDED, said);
}

static enum idem_status
run_failing(struct sqlcall_stage *s, const char **said)
{
    return run_it(s, "new", IDEM_STRICT, IDEM_STATE_FAILED, said);
}

static enum idem_status
run_loose(struct sqlcall_stage *s, const char **said)
{
    return run_it(s, "new", IDEM_LOOSE, IDEM_STATE_FAILED, said);
}

static enum idem_status
statements_for(struct sqlcall_stage *s, const char *id, const char **said)
{
    struct idem_sql_value values[] = {idem_sql_text("y"), idem_sql_int(s->id)};
    struct idem_sql_statement list[] = {
        {"update t_thing set note = ? where id = ?", values, 2},
        {"update t_thing set n = n + 1 where id = ?", values + 1, 1},
    };
    struct idem_op op = op_of(s, id);
    struct idem_answer answer;

    return tell(idem_sql_run_statements(s->one.db, &op, list, 2,
                                        idem_text("paid"), &answer, &s->err),
                &answer, said);
}

static enum idem_status
statements_new(struct sqlcall_stage *s, const char **said)
{
    return statements_for(s, "new", said);
}

static enum idem_status
statements_given(struct sqlcall_stage *s, const char **said)
{
    return statements_for(s, "given", said);
}

/* ---- the schemes ------------------------------------------------------- */

#define PLACE                                                                  \
    struct idem_sql_pair key = {"id", idem_sql_int(s->id)};                    \
    struct idem_sql_place place = {"t_thing", &key, 1};                        \
    struct idem_sql_row found;                                                 \
    enum idem_sql_verdict verdict = IDEM_SQL_IS_EMPTY;                         \
    enum idem_status status

static enum idem_status
decided(enum idem_status status, enum idem_sql_verdict verdict,
        const char **said)
{
    *said = idem_sql_verdict_name(verdict);
    return status;
}

typedef enum idem_status insert_fn(struct idem_sql *,
                                   const struct idem_sql_place *,
                                   const struct idem_sql_pair *, size_t,
                                   enum idem_sql_verdict *,
                                   struct idem_sql_row *, struct idem_error *);

static enum idem_status
insert_by(struct sqlcall_stage *s, insert_fn *fn, const char **said)
{
    struct idem_sql_pair values[] = {{"n", idem_sql_int(7)},
                                     {"version", idem_sql_int(1)},
                                     {"state", idem_sql_text("new")}};
    PLACE;

    status = fn(s->one.db, &place, values, 3, &verdict, &found, &s->err);
    return decided(status, verdict, said);
}

static enum idem_status
insert_once(struct sqlcall_stage *s, const char **said)
{
    return insert_by(s, idem_sql_insert_once, said);
}

static enum idem_status
select_insert(struct sqlcall_stage *s, const char **said)
{
    return insert_by(s, idem_sql_select_insert, said);
}

static enum idem_status
upsert(struct sqlcall_stage *s, const char **said)
{
    return insert_by(s, idem_sql_upsert, said);
}

/* `n` as a text: the database has to compare it. */
static enum idem_status
update(struct sqlcall_stage *s, const char **said)
{
    struct idem_sql_pair values[] = {{"n", idem_sql_text("12")},
                                     {"state", idem_sql_text("paid")}};
    PLACE;

    status = idem_sql_update_versioned(s->one.db, &place, "version", 1, values,
                                       2, &verdict, &found, &s->err);
    return decided(status, verdict, said);
}

static enum idem_status
update_other(struct sqlcall_stage *s, const char **said)
{
    struct idem_sql_pair value = {"state", idem_sql_text("sent")};
    PLACE;

    status = idem_sql_update_versioned(s->one.db, &place, "version", 1, &value,
                                       1, &verdict, &found, &s->err);
    return decided(status, verdict, said);
}

static enum idem_status
deduct_by(struct sqlcall_stage *s, int64_t amount, const char **said)
{
    PLACE;

    status = idem_sql_deduct(s->one.db, &place, "n", amount, &verdict, &found,
                             &s->err);
    return decided(status, verdict, said);
}

static enum idem_status
deduct(struct sqlcall_stage *s, const char **said)
{
    return deduct_by(s, 6, said);
}

static enum idem_status
deduct_much(struct sqlcall_stage *s, const char **said)
{
    return deduct_by(s, 60, said);
}

static enum idem_status
lock_row(struct sqlcall_stage *s, const char **said)
{
    PLACE;

    status = idem_sql_lock_row(s->one.db, &place, 0, &verdict, &found, &s->err);
    return decided(status, verdict, said);
}

static enum idem_status
move(struct sqlcall_stage *s, const char **said)
{
    struct idem_sql_value a = idem_sql_text("new"), b = idem_sql_text("paid"),
                          c = idem_sql_text("done");
    struct idem_sql_move moves[] = {{a, b}, {b, c}};
    struct idem_sql_machine machine = {"t_thing", "id", "state", moves, 2};
    struct idem_sql_row found;
    enum idem_sql_verdict verdict = IDEM_SQL_IS_EMPTY;
    enum idem_status status =
        idem_sql_move(s->one.db, &machine, idem_sql_int(s->id), a, b, &verdict,
                      &found, &s->err);

    return decided(status, verdict, said);
}

/* ---- the barrier ------------------------------------------------------- */

static enum idem_status
barrier_on(struct sqlcall_stage *s, struct sqldb *db, enum idem_sql_phase phase,
           const char **said)
{
    enum idem_sql_verdict verdict = IDEM_SQL_IS_CONFLICT;
    enum idem_status status =
        idem_sql_barrier(db->db, idem_text(s->scope), idem_text("branch"),
                         phase, &verdict, &s->err);

    return decided(status, verdict, said);
}

static void
tried(struct sqlcall_stage *s)
{
    const char *said;

    sqldb_begin(&s->two);
    if (barrier_on(s, &s->two, IDEM_SQL_TRY, &said) != IDEM_OK)
        abort();
    sqldb_run(&s->two, "commit");
}

static enum idem_status
try(struct sqlcall_stage *s, const char **said)
{
    return barrier_on(s, &s->one, IDEM_SQL_TRY, said);
}

static enum idem_status
confirm(struct sqlcall_stage *s, const char **said)
{
    return barrier_on(s, &s->one, IDEM_SQL_CONFIRM, said);
}

static enum idem_status
cancel(struct sqlcall_stage *s, const char **said)
{
    return barrier_on(s, &s->one, IDEM_SQL_CANCEL, said);
}

const struct sqlcall sqlcalls[] = {
    {"claim", true, row, claim_new, "ok", "replay"},
    {"claim what is finished", true, finished, claim_given, "replay", "replay"},
    {"finish", true, begun, finish, "ok", "ok"},
    {"finish with a wrong fence", true, begun, finish_stale, "stale", "stale"},
    {"renew", true, begun, renew, "ok", "ok"},
    {"release", true, begun, release, "ok", "stale"},
    {"settle", true, NULL, settle, "settled", "replay"},
    {"get", true, finished, get, "record", "record"},
    {"join", true, begun, join, "started", "started"},
    {"join what is finished", true, finished, join, "replay", "replay"},
    {"run", false, row, run_new, "started", "replay"},
    {"run what is finished", false, finished, run_given, "replay", "replay"},
    {"run and fail", false, row, run_failing, "started and failed", "replay"},
    {"run and give up", false, row, run_loose, "started and failed",
     "started and failed"},
    {"statements", false, row, statements_new, "started", "replay"},
    {"statements again", false, finished, statements_given, "replay", "replay"},
    {"insert", true, NULL, insert_once, "first", "duplicate"},
    {"select and insert", true, NULL, select_insert, "first", "duplicate"},
    {"upsert", true, NULL, upsert, "first", "duplicate"},
    {"upsert what is there", true, row, upsert, "duplicate", "duplicate"},
    {"update", true, row, update, "first", "duplicate"},
    {"update again", true, newer_row, update, "duplicate", "duplicate"},
    {"update what has changed", true, newer_row, update_other, "conflict",
     "conflict"},
    {"deduct", true, row, deduct, "first", "refused"},
    {"deduct too much", true, row, deduct_much, "refused", "refused"},
    {"lock", true, row, lock_row, "first", "first"},
    {"lock nothing", true, NULL, lock_row, "refused", "refused"},
    {"move", true, row, move, "first", "duplicate"},
    {"move what has moved on", true, done_row, move, "duplicate", "duplicate"},
    {"try", true, NULL, try, "first", "duplicate"},
    {"confirm", true, tried, confirm, "first", "duplicate"},
    {"cancel", true, tried, cancel, "first", "duplicate"},
    {"cancel before the try", true, NULL, cancel, "empty", "empty"},
};
const size_t sqlcall_count = sizeof(sqlcalls) / sizeof(sqlcalls[0]);
