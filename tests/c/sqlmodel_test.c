/*
 * sqlmodel_test.c - idem/sql.h and the SQL functions decide as the engine does.
 *
 * Every row of the table that step_test.c uses, on a record that is written
 * into the database for it. Then random operations, and the same on a record in
 * memory through step(): every verdict and every record must agree.
 *
 * Leases and TTLs are either over by the next operation or last for an hour, so
 * that the time it takes does not matter.
 *
 *   IDEM_TEST_SQL=postgres://... IDEM_TEST_OPS=20000
 * build/tests/c/sqlmodel_test
 */
#include "../../src/store/columns.h"
#include "../support/sqldb.h"
#include "../support/stores.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "../support/step_table.h"

#define KEYS 6
#define FENCES 3
#define GENERATION 60
#define LONG_MS 3600000
#define PAUSE_US 2500

struct model {
    bool there;
    struct idem_record record;
    char result[16];
    uint64_t fences[FENCES]; /* that were given out */
};

static struct sqldb s;
static struct model models[KEYS];
static struct dice dice;
static char scope_text[64];
static struct idem_error err;

static struct idem_now
time_now(void)
{
    struct timespec t;
    int64_t us;

    clock_gettime(CLOCK_REALTIME, &t);
    us = (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
    return (struct idem_now){us / 1000,    us / 1000, INT64_MAX,
                             (uint64_t)us, 0,         0};
}

/* ---- one random operation ---------------------------------------------- */

struct request {
    struct idem_op op;
    char id[48], result[16];
    uint8_t print[IDEM_FINGERPRINT_LEN];
};

static int64_t
short_or_long(void)
{
    return dice_roll(&dice, 3) == 0 ? 1 : LONG_MS;
}

static void
roll(struct request *r, size_t generation, size_t *key)
{
    static const enum idem_verb verbs[] = {
        IDEM_BEGIN, IDEM_BEGIN,  IDEM_BEGIN, IDEM_FINISH,  IDEM_FINISH,
        IDEM_RENEW, IDEM_SETTLE, IDEM_GET,   IDEM_RELEASE,
    };
    struct idem_op *op = &r->op;

    memset(r, 0, sizeof(*r));
    *key = dice_roll(&dice, KEYS);
    op->verb = verbs[dice_roll(&dice, sizeof(verbs) / sizeof(verbs[0]))];
    snprintf(r->id, sizeof(r->id), "k%zu-%zu", *key, generation);
    op->scope = idem_text(scope_text);
    op->id = idem_text(r->id);
    op->mode = dice_roll(&dice, 2) ? IDEM_LOOSE : IDEM_STRICT;
    op->lease_ms = short_or_long();
    op->ttl_ms = short_or_long();
    op->fence = models[*key].fences[dice_roll(&dice, FENCES)];
    if (op->fence == 0 || dice_roll(&dice, 8) == 0)
        op->fence = 12345;
    if (op->verb == IDEM_SETTLE) /* SQL functions take none */
        op->fence = 0;
    if (op->verb == IDEM_BEGIN && dice_roll(&dice, 2)) {
        memset(r->print, (int)dice_roll(&dice, 2) + 1, sizeof(r->print));
        op->fingerprint = r->print;
    }
    if (op->verb == IDEM_FINISH || op->verb == IDEM_SETTLE) {
        op->outcome =
            dice_roll(&dice, 2) ? IDEM_STATE_SUCCEEDED : IDEM_STATE_FAILED;
        if (op->verb == IDEM_SETTLE && dice_roll(&dice, 2))
            op->outcome = 0;
        snprintf(r->result, sizeof(r->result), "r%d", (int)dice_roll(&dice, 2));
        op->result = idem_text(r->result);
    }
    if (op->verb == IDEM_SETTLE)
        op->mode = IDEM_STRICT; /* the SQL functions have no other */
    if (op->verb == IDEM_FINISH && dice_roll(&dice, 2))
        op->ttl_ms = 0;
}

/* ---- the three ways ---------------------------------------------------- */

static const char *
model_step(struct request *r, size_t key, struct idem_record *next,
           bool *writes)
{
    static uint64_t calls;
    uint8_t nonce[IDEM_NONCE_LEN];
    struct model *m = &models[key];
    struct idem_now now = time_now();
    struct idem_op op = r->op;
    enum idem_verdict verdict;

    /* Counted, not thrown: the same nonce twice would be the same caller. */
    calls++;
    memcpy(nonce, &calls, sizeof(nonce));
    op.nonce = nonce;
    assert_int_equal(idem__op_check(&op, &err), IDEM_OK);
    verdict = idem__step(m->there ? &m->record : NULL, &op, &now, next);
    *writes = next->state != IDEM_STATE_ABSENT;
    return idem_verdict_name(verdict);
}

static const char *
through_c(struct request *r)
{
    struct idem_answer answer;
    const char *verdict;

    sqldb_begin(&s);
    if (idem_sql_do(s.db, &r->op, &answer, &err) != IDEM_OK)
        fail_msg("%s", err.text);
    verdict = idem_verdict_name(answer.verdict);
    idem_answer_clear(&answer);
    sqldb_try(&s, "commit");
    return verdict;
}

static const char *
table_name(void)
{
    return s.postgres ? "idem.idem_record" : "idem_record";
}

/* Bytes as the database writes them; the text lives until the next but one. */
static const char *
literal(struct idem_bytes bytes)
{
    static char texts[2][600];
    static int next;
    char *out = texts[next++ % 2];
    size_t n =
        (size_t)snprintf(out, sizeof(texts[0]), s.postgres ? "'\\x" : "x'");

    for (size_t i = 0; i < bytes.len; i++)
        n += (size_t)snprintf(out + n, sizeof(texts[0]) - n, "%02x",
                              ((const uint8_t *)bytes.data)[i]);
    snprintf(out + n, sizeof(texts[0]) - n, "'");
    return out;
}

static const char *
print_literal(const struct request *r)
{
    return r->op.fingerprint
               ? literal((struct idem_bytes){r->print, sizeof(r->print)})
               : "null";
}

static const char *
through_postgres(struct request *r)
{
    const struct idem_op *op = &r->op;
    const char *state = op->outcome ? idem_state_name(op->outcome) : NULL;
    long long fence = (long long)op->fence;
    char ttl[24] = "null";

    if (op->ttl_ms)
        snprintf(ttl, sizeof(ttl), "%lld", (long long)op->ttl_ms);
    switch (op->verb) {
    case IDEM_BEGIN:
        return sqldb_text(&s,
                          "select verdict from idem.begin('%s', '%s', %s, "
                          "'%s', %lld, %s)",
                          scope_text, r->id, print_literal(r),
                          idem_mode_name(op->mode), (long long)op->lease_ms,
                          ttl);
    case IDEM_FINISH:
        return sqldb_text(&s,
                          "select idem.try_finish('%s', '%s', %lld, '%s', "
                          "'%s', %s)",
                          scope_text, r->id, fence, state, r->result, ttl);
    case IDEM_RELEASE:
        return sqldb_text(&s, "select idem.release('%s', '%s', %lld)",
                          scope_text, r->id, fence);
    case IDEM_RENEW:
        return sqldb_text(&s, "select idem.renew('%s', '%s', %lld, %lld)",
                          scope_text, r->id, fence, (long long)op->lease_ms);
    case IDEM_SETTLE:
        return sqldb_text(&s,
                          "select verdict from idem.settle('%s', '%s', %s%s%s, "
                          "'%s', %s)",
                          scope_text, r->id, state ? "'" : "",
                          state ? state : "null", state ? "'" : "", r->result,
                          ttl);
    default:
        return sqldb_number(&s, "select count(*) from idem.get('%s', '%s')",
                            scope_text, r->id)
                   ? "record"
                   : "absent";
    }
}

static const char *
through_mysql(struct request *r)
{
    const struct idem_op *op = &r->op;
    const char *state = op->outcome ? idem_state_name(op->outcome) : NULL;
    long long fence = (long long)op->fence;
    char ttl[24] = "null";

    if (op->ttl_ms)
        snprintf(ttl, sizeof(ttl), "%lld", (long long)op->ttl_ms);
    switch (op->verb) {
    case IDEM_BEGIN:
        sqldb_run(&s,
                  "call idem_begin('%s', '%s', %s, '%s', %lld, %s, @v, @f, @k, "
                  "@r)",
                  scope_text, r->id, print_literal(r), idem_mode_name(op->mode),
                  (long long)op->lease_ms, ttl);
        break;
    case IDEM_FINISH:
        sqldb_run(&s,
                  "call idem_try_finish('%s', '%s', %lld, '%s', '%s', %s, "
                  "'raw', @v)",
                  scope_text, r->id, fence, state, r->result, ttl);
        break;
    case IDEM_RELEASE:
        sqldb_run(&s, "call idem_release('%s', '%s', %lld, @v)", scope_text,
                  r->id, fence);
        break;
    case IDEM_RENEW:
        sqldb_run(&s, "call idem_renew('%s', '%s', %lld, %lld, @v)", scope_text,
                  r->id, fence, (long long)op->lease_ms);
        break;
    case IDEM_SETTLE:
        sqldb_run(&s,
                  "call idem_settle('%s', '%s', %s%s%s, '%s', %s, @v, @s, @k, "
                  "@r)",
                  scope_text, r->id, state ? "'" : "", state ? state : "null",
                  state ? "'" : "", r->result, ttl);
        break;
    default:
        sqldb_run(&s, "call idem_get('%s', '%s', @v, @s, @f, @k, @r)",
                  scope_text, r->id);
    }
    return sqldb_text(&s, "select @v");
}

static const char *
through_functions(struct request *r)
{
    static char verdict[32];

    sqldb_begin(&s);
    snprintf(verdict, sizeof(verdict), "%s",
             s.postgres ? through_postgres(r) : through_mysql(r));
    sqldb_run(&s, "commit");
    return verdict;
}

/* ---- comparing --------------------------------------------------------- */

static void
compare_records(size_t key, const struct request *r,
                const struct idem_record *next)
{
    struct model *m = &models[key];
    struct idem_answer answer;
    const struct idem_record *is;

    /* The record itself, expired or not: the model has it too. */
    assert_int_equal(idem_sql_do(s.db,
                                 &(struct idem_op){.verb = IDEM_GET,
                                                   .scope = r->op.scope,
                                                   .id = r->op.id},
                                 &answer, &err),
                     IDEM_OK);
    is = answer.record;
    if (answer.verdict == IDEM_V_RECORD) {
        if (m->there && is->fence < m->record.fence)
            fail_msg("the fence went back");
        assert_int_equal(is->state, next->state);
        assert_int_equal(is->mode, next->mode);
        assert_int_equal(is->flags, next->flags);
        assert_int_equal(is->attempt, next->attempt);
        assert_memory_equal(is->fingerprint, next->fingerprint,
                            IDEM_FINGERPRINT_LEN);
        assert_int_equal(is->result.len, next->result.len);
        assert_int_equal(is->expires - is->created > 1000,
                         next->expires - next->created > 1000);
        assert_int_equal(is->lease_until - is->updated > 1000,
                         next->lease_until - next->updated > 1000);
    }
    idem_answer_clear(&answer);
}

static struct idem_bytes
key_of(const struct idem_op *op)
{
    static uint8_t key[IDEM_KEY_LEN];

    idem__key(IDEM_TYPE_REQUEST, op->scope, op->id, key);
    return (struct idem_bytes){key, sizeof(key)};
}

static uint64_t
fence_in_table(const struct request *r)
{
    return (uint64_t)sqldb_number(&s,
                                  "select fence from %s where key_hash = %s",
                                  table_name(), literal(key_of(&r->op)));
}

static void
keep(size_t key, const struct request *r, const struct idem_record *next)
{
    struct model *m = &models[key];

    compare_records(key, r, next);
    snprintf(m->result, sizeof(m->result), "%.*s", (int)next->result.len,
             next->result.len ? (const char *)next->result.data : "");
    m->record = *next;
    m->record.result = idem_text(m->result);
    m->record.scope = m->record.id = (struct idem_bytes){NULL, 0};
    m->record.rev = 1;
    m->record.fence = fence_in_table(r);
    if (m->record.fence != m->fences[0]) {
        memmove(m->fences + 1, m->fences, sizeof(m->fences[0]) * (FENCES - 1));
        m->fences[0] = m->record.fence;
    }
    m->there = true;
}

static void
agree(bool functions)
{
    size_t ops = number_from_env(
        "IDEM_TEST_OPS",
        getenv("IDEM_SANITIZED") && *getenv("IDEM_SANITIZED") ? 300 : 1500);
    size_t seen[IDEM__VERDICT_COUNT] = {0};
    char expected[32], got[32];

    dice.state = number_from_env("IDEM_TEST_SEED", (uint64_t)time(NULL));
    printf("IDEM_TEST_SEED=%llu, %zu operations, %s\n",
           (unsigned long long)dice.state, ops,
           functions ? "SQL functions" : "idem/sql.h");
    memset(models, 0, sizeof(models));
    snprintf(scope_text, sizeof(scope_text), "model-%d-%d-%lld", functions,
             (int)getpid(), (long long)time(NULL));
    for (size_t i = 0; i < ops; i++) {
        struct idem_record next;
        struct request r;
        size_t key;
        bool writes;

        /* Sooner or later every record is finished for good: fresh ones. */
        if (i % GENERATION == 0)
            memset(models, 0, sizeof(models));
        roll(&r, i / GENERATION, &key);
        usleep(PAUSE_US);
        snprintf(expected, sizeof(expected), "%s",
                 model_step(&r, key, &next, &writes));
        snprintf(got, sizeof(got), "%s",
                 functions ? through_functions(&r) : through_c(&r));
        if (strcmp(expected, got) != 0)
            fail_msg("operation %zu, %s: the model says %s, the database %s", i,
                     idem_verb_name(r.op.verb), expected, got);
        for (int v = 0; v < IDEM__VERDICT_COUNT; v++)
            seen[v] += strcmp(idem_verdict_name(v), got) == 0;
        if (writes)
            keep(key, &r, &next);
    }
    /* The dice must have thrown everything that can happen. */
    assert_true(ops < 1000 || (seen[IDEM_V_STARTED] && seen[IDEM_V_REPLAY] &&
                               seen[IDEM_V_BUSY] && seen[IDEM_V_DOUBT] &&
                               seen[IDEM_V_MISMATCH] && seen[IDEM_V_OK] &&
                               seen[IDEM_V_STALE] && seen[IDEM_V_SETTLED] &&
                               seen[IDEM_V_RECORD] && seen[IDEM_V_ABSENT]));
}

/* ---- row by row -------------------------------------------------------- */

#define NEEDS_OTHER_RECORDS (TOKEN | NONCE | REDEEMED | OWNER | ELSE)

/* A record in the table, as it stands there between two requests. */
struct place {
    enum idem_state state; /* ABSENT: none is there */
    bool loose, over, expired, print;
};

static void
write_place(const struct place *p, const struct request *r, uint64_t fence)
{
    struct idem_now now = time_now();
    int64_t later = now.late_ms + LONG_MS, before = now.early_ms - 1000;
    bool executing = p->state == IDEM_STATE_EXECUTING;
    struct idem_record record = {
        .type = IDEM_TYPE_REQUEST,
        .state = (uint8_t)p->state,
        .mode = p->loose ? IDEM_LOOSE : IDEM_STRICT,
        .flags = p->print ? IDEM_FLAG_FINGERPRINT : 0,
        .attempt = 1,
        .fence = fence,
        .rev = 9,
        .created = before - 1000,
        .updated = before - 1000,
        .lease_until = !executing ? 0
                       : p->over  ? before
                                  : later,
        .expires = p->expired ? before : later,
        .nonce = {1},
        .scope = r->op.scope,
        .id = r->op.id,
        .result = executing || p->state == IDEM_STATE_FREE
                      ? (struct idem_bytes){NULL, 0}
                      : idem_text("stored"),
    };
    struct idem_cell cells[IDEM_COLUMN_COUNT];
    char values[3000];
    size_t n = 0;

    if (p->print)
        memset(record.fingerprint, 1, sizeof(record.fingerprint));
    sqldb_run(&s, "delete from %s where key_hash = %s", table_name(),
              literal(key_of(&r->op)));
    if (p->state == IDEM_STATE_ABSENT)
        return;
    idem__record_to_cells(key_of(&r->op).data, &record, cells);
    for (int i = 0; i < IDEM_COLUMN_COUNT; i++) {
        const char *comma = i ? ", " : "";

        if (cells[i].null)
            n += (size_t)snprintf(values + n, sizeof(values) - n, "%snull",
                                  comma);
        else if (idem__column_types[i] == IDEM_COLUMN_BYTES)
            n += (size_t)snprintf(values + n, sizeof(values) - n, "%s%s", comma,
                                  literal(cells[i].bytes));
        else
            n += (size_t)snprintf(values + n, sizeof(values) - n, "%s%lld",
                                  comma, (long long)cells[i].number);
    }
    sqldb_run(&s, "insert into %s (%s) values (%s)", table_name(),
              idem__columns_all, values);
}

static bool reached[ROWS];
static size_t cases;

/* One operation on one place: the row that applies says what is answered. */
static void
try_case(const struct place *p, struct request *r, bool mine, bool functions)
{
    uint64_t fence = time_now().late_us - 5000000;
    enum idem_state state = p->expired ? IDEM_STATE_ABSENT : p->state;
    bool same = r->op.outcome == p->state && strcmp(r->result, "stored") == 0;
    int facts = (p->over ? OVER : 0) | (p->loose ? LOOSE : 0) |
                (mine ? MINE : 0) | (same ? SAME : 0) |
                (r->op.outcome ? AS : 0) |
                (r->op.outcome == IDEM_STATE_FAILED ? FAIL : 0) |
                (p->print && r->op.fingerprint && r->print[0] == 2 ? OTHER : 0);
    const struct row *row = find_row(r->op.verb, state, facts);
    const char *got;

    r->op.fence = mine ? fence : r->op.verb == IDEM_SETTLE ? 0 : 12345;
    r->op.lease_ms = LONG_MS;
    r->op.scope = idem_text(scope_text);
    snprintf(r->id, sizeof(r->id), "row");
    r->op.id = idem_text(r->id);
    write_place(p, r, fence);
    got = functions ? through_functions(r) : through_c(r);
    if (strcmp(got, idem_verdict_name(row->verdict)) != 0)
        fail_msg(
            "row %zu, %s on %s (facts %x): the table says %s, the database "
            "%s",
            (size_t)(row - table), idem_verb_name(r->op.verb),
            idem_state_name(state), (unsigned)facts,
            idem_verdict_name(row->verdict), got);
    reached[row - table] = true;
    cases++;
}

/* Every request that can come, on one place. */
static void
try_place(const struct place *p, bool functions)
{
    static const enum idem_state outcomes[] = {
        IDEM_STATE_SUCCEEDED, IDEM_STATE_FAILED, IDEM_STATE_ABSENT};
    static const char *const results[] = {"stored", "new"};
    int fences = p->state == IDEM_STATE_ABSENT ? 1 : 2;

    for (int print = 0; print < 3; print++) {
        struct request r = {.op.verb = IDEM_BEGIN};

        memset(r.print, print, sizeof(r.print));
        r.op.fingerprint = print ? r.print : NULL;
        try_case(p, &r, false, functions);
    }
    for (int mine = 0; mine < fences; mine++) {
        for (int i = 0; i < 4; i++) {
            struct request r = {.op.verb = IDEM_FINISH};

            r.op.outcome = outcomes[i % 2];
            snprintf(r.result, sizeof(r.result), "%s", results[i / 2]);
            r.op.result = idem_text(r.result);
            try_case(p, &r, mine, functions);
        }
        try_case(p, &(struct request){.op.verb = IDEM_RELEASE}, mine,
                 functions);
        try_case(p, &(struct request){.op.verb = IDEM_RENEW}, mine, functions);
    }
    for (int i = 0; i < 3; i++)
        try_case(p,
                 &(struct request){.op.verb = IDEM_SETTLE,
                                   .op.outcome = outcomes[i]},
                 false, functions);
    try_case(p, &(struct request){.op.verb = IDEM_GET}, false, functions);
}

static void
agree_with_the_table(bool functions)
{
    memset(reached, 0, sizeof(reached));
    cases = 0;
    snprintf(scope_text, sizeof(scope_text), "table-%d-%d-%lld", functions,
             (int)getpid(), (long long)time(NULL));
    for (int i = 0; i < 6 * 16; i++) {
        struct place p = {.state = (enum idem_state)(i / 16),
                          .loose = i & 1,
                          .over = i & 2,
                          .expired = i & 4,
                          .print = i & 8};
        bool executing = p.state == IDEM_STATE_EXECUTING;
        bool sense = !(p.over && !executing) && !(p.expired && executing) &&
                     !(p.print && p.state == IDEM_STATE_FREE) &&
                     p.state != IDEM_STATE_ISSUED;

        if (p.state == IDEM_STATE_ABSENT ? i == 0 : sense)
            try_place(&p, functions);
    }
    printf("%zu cases, %s\n", cases,
           functions ? "SQL functions" : "idem/sql.h");
    for (size_t i = 0; i < ROWS; i++) {
        if (table[i].verb <= IDEM_GET &&
            !(table[i].when & NEEDS_OTHER_RECORDS) && !reached[i])
            fail_msg("row %zu of the table was not tried", i);
    }
}

static void
the_c_functions_decide_as_the_table_says(void **state)
{
    (void)state;
    agree_with_the_table(false);
}

static void
the_sql_functions_decide_as_the_table_says(void **state)
{
    (void)state;
    agree_with_the_table(true);
}

static void
the_c_functions_decide_as_step_does(void **state)
{
    (void)state;
    agree(false);
}

static void
the_sql_functions_decide_as_step_does(void **state)
{
    (void)state;
    agree(true);
}

int
main(void)
{
    const struct CMUnitTest c_test[] = {
        cmocka_unit_test(the_c_functions_decide_as_the_table_says),
        cmocka_unit_test(the_c_functions_decide_as_step_does)};
    const struct CMUnitTest sql_test[] = {
        cmocka_unit_test(the_sql_functions_decide_as_the_table_says),
        cmocka_unit_test(the_sql_functions_decide_as_step_does)};
    int failed;

    sqldb_open(&s);
    failed = cmocka_run_group_tests(c_test, NULL, NULL);
    if (!s.sqlite)
        failed += cmocka_run_group_tests(sql_test, NULL, NULL);
    sqldb_close(&s);
    sqldb_done();
    return failed;
}
