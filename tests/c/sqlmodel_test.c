/*
 * sqlmodel_test.c - random operations through idem/sql.h and through the SQL
 * functions, and the same on a record in memory through step(): every verdict
 * and every record must agree.
 *
 * Leases and TTLs are either over by the next operation or last for an hour, so
 * that the time it takes does not matter.
 *
 *   IDEM_TEST_SQL=postgres://... IDEM_TEST_OPS=20000
 * build/tests/c/sqlmodel_test
 */
#include "../../src/record/record.h"
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
    return (struct idem_now){us / 1000, us / 1000, INT64_MAX, (uint64_t)us};
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
print_literal(const struct request *r, char *out, size_t len)
{
    size_t n = 0;

    if (!r->op.fingerprint)
        return "null";
    n += (size_t)snprintf(out, len, s.postgres ? "'\\x" : "x'");
    for (int i = 0; i < IDEM_FINGERPRINT_LEN; i++)
        n += (size_t)snprintf(out + n, len - n, "%02x", r->print[i]);
    snprintf(out + n, len - n, "'");
    return out;
}

static const char *
through_postgres(struct request *r)
{
    const struct idem_op *op = &r->op;
    const char *state = op->outcome ? idem_state_name(op->outcome) : NULL;
    long long fence = (long long)op->fence;
    char print[80], ttl[24] = "null";

    if (op->ttl_ms)
        snprintf(ttl, sizeof(ttl), "%lld", (long long)op->ttl_ms);
    switch (op->verb) {
    case IDEM_BEGIN:
        return sqldb_text(
            &s,
            "select verdict from idem.begin('%s', '%s', %s, "
            "'%s', %lld, %s)",
            scope_text, r->id, print_literal(r, print, sizeof(print)),
            idem_mode_name(op->mode), (long long)op->lease_ms, ttl);
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
    char print[80], ttl[24] = "null";

    if (op->ttl_ms)
        snprintf(ttl, sizeof(ttl), "%lld", (long long)op->ttl_ms);
    switch (op->verb) {
    case IDEM_BEGIN:
        sqldb_run(&s,
                  "call idem_begin('%s', '%s', %s, '%s', %lld, %s, @v, @f, @k, "
                  "@r)",
                  scope_text, r->id, print_literal(r, print, sizeof(print)),
                  idem_mode_name(op->mode), (long long)op->lease_ms, ttl);
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

static uint64_t
fence_in_table(const struct request *r)
{
    uint8_t key[IDEM_KEY_LEN];
    char hex[2 * IDEM_KEY_LEN + 1];

    idem__key(IDEM_TYPE_REQUEST, r->op.scope, r->op.id, key);
    for (int i = 0; i < IDEM_KEY_LEN; i++)
        snprintf(hex + 2 * i, 3, "%02x", key[i]);
    return (uint64_t)sqldb_number(
        &s,
        s.postgres ? "select fence from idem.idem_record where key_hash = "
                     "'\\x%s'"
                   : "select fence from idem_record where key_hash = x'%s'",
        hex);
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
        cmocka_unit_test(the_c_functions_decide_as_step_does)};
    const struct CMUnitTest sql_test[] = {
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
