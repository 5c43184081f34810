/*
 * sqlstorm_test.c - many callers at once do the same thing, some of them die in
 * the middle: what happened is counted in the database.
 *
 * 16 connections over 100 keys (IDEM_TEST_CALLERS, IDEM_TEST_KEYS);
 * IDEM_SOAK=1: 64 over 1,000.
 */
#include "../support/sqldb.h"
#include "../support/stores.h"

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static size_t callers = 16, keys = 100;
static char run_id[40];
static atomic_size_t firsts, repeats, refusals;

static struct idem_bytes
scope(void)
{
    return idem_text(run_id);
}

static void
fresh_tables(struct sqldb *s)
{
    static int number;

    snprintf(run_id, sizeof(run_id), "storm-%d-%lld-%d", (int)getpid(),
             (long long)time(NULL), ++number);
    sqldb_try(s, "drop table if exists t_effect");
    sqldb_try(s, "drop table if exists t_item");
    sqldb_run(s, "create table t_effect (id integer not null primary key, "
                 "times bigint not null)");
    sqldb_run(s, "create table t_item (id integer not null primary key, "
                 "stock bigint not null, version bigint not null, "
                 "state varchar(20) not null)");
    for (size_t i = 0; i < keys; i++) {
        sqldb_run(s, "insert into t_effect values (%zu, 0)", i);
        sqldb_run(s, "insert into t_item values (%zu, 5, 0, 'new')", i);
    }
    firsts = repeats = refusals = 0;
}

/* A transaction that the database undid for its own reasons is tried again; the
 * test counts effects, not attempts. */
static bool
again(struct sqldb *s)
{
    enum idem_sql_cause cause = idem_sql_fault(s->db)->cause;

    sqldb_try(s, "rollback");
    return cause == IDEM_SQL_DEADLOCK || cause == IDEM_SQL_LOCK_TIMEOUT ||
           cause == IDEM_SQL_SERIALIZATION;
}

static void
pause_a_little(void)
{
    usleep((useconds_t)(1000 + rand() % 3000));
}

/* ---- who does what ----------------------------------------------------- */

typedef void scheme_fn(struct sqldb *s, size_t key);

static enum idem_state
count_effect(void *arg, struct idem_sql *db, uint64_t fence,
             struct idem_bytes *result)
{
    void **args = arg;

    (void)db;
    (void)fence;
    if (!sqldb_try(args[0],
                   "update t_effect set times = times + 1 where id = %zu",
                   *(size_t *)args[1]))
        return IDEM_STATE_ABSENT;
    *result = idem_text("done");
    return IDEM_STATE_SUCCEEDED;
}

/* The same, known beforehand. */
static enum idem_status
run_statement(struct sqldb *s, const struct idem_op *op, size_t key,
              struct idem_answer *answer, struct idem_error *err)
{
    struct idem_sql_value value = idem_sql_int((int64_t)key);
    struct idem_sql_statement update = {
        "update t_effect set times = times + 1 where id = ?", &value, 1};

    return idem_sql_run_statements(s->db, op, &update, 1, idem_text("done"),
                                   answer, err);
}

static void
run_once(struct sqldb *s, size_t key, bool statement)
{
    char id[32];
    struct idem_op op = {.scope = scope(), .wait_ms = 100};
    void *args[] = {s, &key};
    struct idem_answer answer;
    struct idem_error err;

    snprintf(id, sizeof(id), "%zu", key);
    op.id = idem_text(id);
    for (;;) {
        enum idem_status status =
            statement
                ? run_statement(s, &op, key, &answer, &err)
                : idem_sql_run(s->db, &op, count_effect, args, &answer, &err);

        if (status != IDEM_OK && again(s)) {
            pause_a_little();
            continue;
        }
        if (status != IDEM_OK && status != IDEM_ERR_UNAVAILABLE) {
            fprintf(stderr, "%s\n", err.text);
            abort();
        }
        if (status == IDEM_OK && answer.verdict != IDEM_V_BUSY)
            break;
        if (status == IDEM_OK)
            idem_answer_clear(&answer);
        pause_a_little();
    }
    if (answer.verdict == IDEM_V_STARTED)
        firsts++;
    else if (answer.verdict == IDEM_V_REPLAY &&
             answer.record->result.len == 4 &&
             memcmp(answer.record->result.data, "done", 4) == 0)
        repeats++;
    idem_answer_clear(&answer);
}

static void
by_run(struct sqldb *s, size_t key)
{
    run_once(s, key, false);
}

/* Some this way, some the other, on the same key. */
static void
by_statements(struct sqldb *s, size_t key)
{
    run_once(s, key, rand() % 2);
}

/* Run one scheme in a transaction until the database lets it through. */
typedef enum idem_status one_fn(struct sqldb *s, size_t key,
                                enum idem_sql_verdict *verdict,
                                struct idem_sql_row *row,
                                struct idem_error *err);

static void
in_transaction(struct sqldb *s, size_t key, one_fn *fn)
{
    for (;;) {
        enum idem_sql_verdict verdict = IDEM_SQL_IS_REFUSED;
        struct idem_error err = {0};
        struct idem_sql_row row;
        bool good;

        sqldb_begin(s);
        if (fn(s, key, &verdict, &row, &err) != IDEM_OK) {
            if (again(s))
                continue;
            fprintf(stderr, "%s\n", err.text);
            abort();
        }
        good = verdict != IDEM_SQL_IS_FIRST ||
               sqldb_try(s,
                         "update t_effect set times = times + 1 "
                         "where id = %zu",
                         key);
        if (!good || !sqldb_try(s, "commit")) {
            sqldb_try(s, "rollback");
            continue;
        }
        if (verdict == IDEM_SQL_IS_FIRST)
            firsts++;
        else if (verdict == IDEM_SQL_IS_REFUSED)
            refusals++;
        else
            repeats++;
        return;
    }
}

static enum idem_status
insert_once(struct sqldb *s, size_t key, enum idem_sql_verdict *verdict,
            struct idem_sql_row *row, struct idem_error *err)
{
    struct idem_sql_pair id = {"id", idem_sql_int((int64_t)(1000000 + key))};
    struct idem_sql_place place = {"t_item", &id, 1};
    struct idem_sql_pair values[] = {{"stock", idem_sql_int(1)},
                                     {"version", idem_sql_int(1)},
                                     {"state", idem_sql_text("x")}};

    return key % 2 ? idem_sql_insert_once(s->db, &place, values, 3, verdict,
                                          row, err)
                   : idem_sql_select_insert(s->db, &place, values, 3, verdict,
                                            row, err);
}

static enum idem_status
deduct(struct sqldb *s, size_t key, enum idem_sql_verdict *verdict,
       struct idem_sql_row *row, struct idem_error *err)
{
    struct idem_sql_pair id = {"id", idem_sql_int((int64_t)key)};
    struct idem_sql_place place = {"t_item", &id, 1};

    return idem_sql_deduct(s->db, &place, "stock", 2, verdict, row, err);
}

static enum idem_status
versioned(struct sqldb *s, size_t key, enum idem_sql_verdict *verdict,
          struct idem_sql_row *row, struct idem_error *err)
{
    struct idem_sql_pair id = {"id", idem_sql_int((int64_t)key)};
    struct idem_sql_place place = {"t_item", &id, 1};
    struct idem_sql_pair value = {"state", idem_sql_text("priced")};

    return idem_sql_update_versioned(s->db, &place, "version", 0, &value, 1,
                                     verdict, row, err);
}

static enum idem_status
pay(struct sqldb *s, size_t key, enum idem_sql_verdict *verdict,
    struct idem_sql_row *row, struct idem_error *err)
{
    struct idem_sql_move moves[] = {
        {idem_sql_text("new"), idem_sql_text("paid")}};
    struct idem_sql_machine machine = {"t_item", "id", "state", moves, 1};

    return idem_sql_move(s->db, &machine, idem_sql_int((int64_t)key),
                         idem_sql_text("new"), idem_sql_text("paid"), verdict,
                         row, err);
}

/* Hold the row, look, act: the pessimistic way. */
static enum idem_status
locked(struct sqldb *s, size_t key, enum idem_sql_verdict *verdict,
       struct idem_sql_row *row, struct idem_error *err)
{
    struct idem_sql_pair id = {"id", idem_sql_int((int64_t)key)};
    struct idem_sql_place place = {"t_item", &id, 1};
    enum idem_status status =
        idem_sql_lock_row(s->db, &place, 20000, verdict, row, err);

    if (status != IDEM_OK || *verdict != IDEM_SQL_IS_FIRST)
        return status;
    if (idem_sql_column(row, "stock").number < 5) {
        *verdict = IDEM_SQL_IS_DUPLICATE;
        return IDEM_OK;
    }
    sqldb_run(s, "update t_item set stock = stock - 1 where id = %zu", key);
    return IDEM_OK;
}

static enum idem_status
try_phase(struct sqldb *s, size_t key, enum idem_sql_verdict *verdict,
          struct idem_sql_row *row, struct idem_error *err)
{
    char branch[32];
    enum idem_status status;

    (void)row;
    snprintf(branch, sizeof(branch), "%zu", key);
    do { /* another caller may be deciding the same branch */
        status = idem_sql_barrier(s->db, scope(), idem_text(branch),
                                  IDEM_SQL_TRY, verdict, err);
        if (status == IDEM_ERR_UNAVAILABLE) {
            sqldb_try(s, "rollback");
            sqldb_begin(s);
        }
    } while (status == IDEM_ERR_UNAVAILABLE);
    return status;
}

#define SCHEME(name, fn)                                                       \
    static void name(struct sqldb *s, size_t key)                              \
    {                                                                          \
        in_transaction(s, key, fn);                                            \
    }

SCHEME(by_insert, insert_once)
SCHEME(by_deduct, deduct)
SCHEME(by_version, versioned)
SCHEME(by_state, pay)
SCHEME(by_lock, locked)
SCHEME(by_barrier, try_phase)

/* ---- the storm --------------------------------------------------------- */

static pthread_barrier_t line;
static scheme_fn *scheme;

static void *
caller(void *arg)
{
    size_t offset = (size_t)arg;
    struct sqldb s;

    sqldb_open(&s);
    pthread_barrier_wait(&line);
    /* In twos and threes on the same key, and everybody on every key. */
    for (size_t i = 0; i < keys; i++)
        scheme(&s, (i + offset / 4) % keys);
    sqldb_close(&s);
    return NULL;
}

static void
storm(scheme_fn *with)
{
    pthread_t *threads = calloc(callers, sizeof(*threads));

    assert_non_null(threads);
    scheme = with;
    pthread_barrier_init(&line, NULL, (unsigned)callers);
    for (size_t i = 0; i < callers; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, caller, (void *)i),
                         0);
    for (size_t i = 0; i < callers; i++)
        pthread_join(threads[i], NULL);
    pthread_barrier_destroy(&line);
    free(threads);
}

static void
once_each(scheme_fn *with)
{
    struct sqldb s;

    sqldb_open(&s);
    fresh_tables(&s);
    storm(with);
    assert_int_equal(firsts, keys);
    assert_int_equal(repeats, keys * (callers - 1));
    assert_int_equal(
        sqldb_number(&s, "select count(*) from t_effect where times = 1"),
        (long long)keys);
    sqldb_close(&s);
}

static void
a_storm_of_runs_has_one_effect_a_key(void **state)
{
    (void)state;
    once_each(by_run);
}

static void
a_storm_of_statements_has_one_effect_a_key(void **state)
{
    (void)state;
    once_each(by_statements);
}

static void
a_storm_of_inserts_has_one_effect_a_key(void **state)
{
    (void)state;
    once_each(by_insert);
}

static void
a_storm_of_versioned_updates_has_one_effect_a_key(void **state)
{
    (void)state;
    once_each(by_version);
}

static void
a_storm_of_moves_has_one_effect_a_key(void **state)
{
    (void)state;
    once_each(by_state);
}

static void
a_storm_of_locks_has_one_effect_a_key(void **state)
{
    (void)state;
    once_each(by_lock);
}

static void
a_storm_of_tries_has_one_effect_a_key(void **state)
{
    (void)state;
    once_each(by_barrier);
}

static void
a_storm_of_deductions_stops_at_what_is_there(void **state)
{
    struct sqldb s;

    (void)state;
    sqldb_open(&s);
    fresh_tables(&s);
    storm(by_deduct);
    /* 5 suffices for 2 twice. */
    assert_int_equal(firsts, keys * 2);
    assert_int_equal(refusals, keys * (callers - 2));
    assert_int_equal(
        sqldb_number(&s, "select count(*) from t_item where stock = 1"),
        (long long)keys);
    assert_int_equal(
        sqldb_number(&s, "select count(*) from t_effect where times = 2"),
        (long long)keys);
    sqldb_close(&s);
}

/* ---- deadlocks ----------------------------------------------------------- */

/* Two rows, in an order of the caller's own: some of them must deadlock. */
static enum idem_state
two_rows(void *arg, struct idem_sql *db, uint64_t fence,
         struct idem_bytes *result)
{
    void **args = arg;
    size_t a = *(size_t *)args[1], b = *(size_t *)args[2];

    (void)db;
    (void)fence;
    if (!sqldb_try(args[0],
                   "update t_effect set times = times + 1 where id = %zu", a))
        return IDEM_STATE_ABSENT;
    usleep(2000);
    if (!sqldb_try(args[0],
                   "update t_effect set times = times + 1 where id = %zu", b))
        return IDEM_STATE_ABSENT;
    *result = idem_text("done");
    return IDEM_STATE_SUCCEEDED;
}

static void *
crosser(void *arg)
{
    size_t number = (size_t)arg;
    struct sqldb s;

    sqldb_open(&s);
    if (s.postgres)
        sqldb_run(&s, "set deadlock_timeout = '20ms'");
    pthread_barrier_wait(&line);
    for (size_t i = 0; i < 20; i++) {
        size_t a = number % 2, b = 1 - a;
        void *args[] = {&s, &a, &b};
        struct idem_op op = {.scope = scope()};
        struct idem_answer answer;
        struct idem_error err;
        char id[32];

        snprintf(id, sizeof(id), "cross-%zu", i);
        op.id = idem_text(id);
        op.wait_ms = 50;
        for (;;) {
            enum idem_status status =
                idem_sql_run(s.db, &op, two_rows, args, &answer, &err);
            bool done = status == IDEM_OK && answer.verdict != IDEM_V_BUSY;

            if (status != IDEM_OK && status != IDEM_ERR_UNAVAILABLE)
                abort();
            if (done)
                (answer.verdict == IDEM_V_STARTED) ? firsts++ : repeats++;
            else
                refusals++;
            if (status == IDEM_OK)
                idem_answer_clear(&answer);
            if (done)
                break;
            pause_a_little();
        }
    }
    sqldb_close(&s);
    return NULL;
}

static void
deadlocks_are_tried_again_and_count_once(void **state)
{
    pthread_t threads[4];
    struct sqldb s;

    (void)state;
    sqldb_open(&s);
    fresh_tables(&s);
    pthread_barrier_init(&line, NULL, 4);
    for (size_t i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, crosser, (void *)i),
                         0);
    for (size_t i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    pthread_barrier_destroy(&line);
    assert_int_equal(firsts, 20);
    assert_int_equal(repeats, 60);
    assert_int_equal(
        sqldb_number(&s, "select times from t_effect where id = 0"), 20);
    assert_int_equal(
        sqldb_number(&s, "select times from t_effect where id = 1"), 20);
    sqldb_close(&s);
}

/* ---- the server ends the connection ---------------------------------------
 */

static enum idem_state
lose_connection(void *arg, struct idem_sql *db, uint64_t fence,
                struct idem_bytes *result)
{
    struct sqldb **both = arg;

    (void)db;
    (void)fence;
    sqldb_run(both[0], "update t_effect set times = times + 1 where id = 0");
    sqldb_kill(both[1], both[0]);
    usleep(50000);
    *result = idem_text("done");
    return IDEM_STATE_SUCCEEDED;
}

static void
a_connection_that_is_ended_leaves_nothing_behind(void **state)
{
    struct sqldb one, two, *both[] = {&one, &two};
    struct idem_op op = {.id = idem_text("ended")};
    struct idem_answer answer;
    struct idem_error err;

    (void)state;
    sqldb_open(&one);
    sqldb_open(&two);
    fresh_tables(&one);
    op.scope = scope();
    assert_int_not_equal(
        idem_sql_run(one.db, &op, lose_connection, both, &answer, &err),
        IDEM_OK);
    if (!one.sqlite)
        assert_int_equal(idem_sql_fault(one.db)->cause,
                         IDEM_SQL_CONNECTION_LOST);
    assert_int_equal(
        sqldb_number(&two, "select times from t_effect where id = 0"), 0);
    op.verb = IDEM_GET;
    assert_int_equal(idem_sql_do(two.db, &op, &answer, &err), IDEM_OK);
    assert_int_equal(answer.verdict, IDEM_V_ABSENT);
    sqldb_close(&one);
    sqldb_close(&two);
}

/* ---- death between statements ------------------------------------------ */

struct victim {
    struct sqldb *s;
    int dies_at; /* which point, 1 to 3 */
};

static void
die_at(const struct victim *v, int point)
{
    if (v->dies_at == point)
        kill(getpid(), SIGKILL);
}

static enum idem_state
two_steps(void *arg, struct idem_sql *db, uint64_t fence,
          struct idem_bytes *result)
{
    struct victim *v = arg;

    (void)db;
    (void)fence;
    die_at(v, 1);
    sqldb_run(v->s, "update t_effect set times = times + 1 where id = 0");
    die_at(v, 2);
    sqldb_run(v->s, "update t_effect set times = times + 1 where id = 1");
    die_at(v, 3);
    *result = idem_text("done");
    return IDEM_STATE_SUCCEEDED;
}

static enum idem_verdict
run_two_steps(struct sqldb *s, const char *id, enum idem_mode mode, int dies_at)
{
    struct victim victim = {s, dies_at};
    struct idem_op op = {.scope = scope(), .id = idem_text(id), .mode = mode};
    struct idem_answer answer;
    struct idem_error err;
    enum idem_verdict verdict;

    op.wait_ms = 60000;
    if (idem_sql_run(s->db, &op, two_steps, &victim, &answer, &err) !=
        IDEM_OK) {
        fprintf(stderr, "%s\n", err.text);
        abort();
    }
    verdict = answer.verdict;
    idem_answer_clear(&answer);
    return verdict;
}

static void
who_dies_in_the_middle_leaves_nothing_behind(void **state)
{
    struct sqldb s;

    (void)state;
    sqldb_open(&s);
    fresh_tables(&s);
    sqldb_close(&s);
    for (int point = 1; point <= 4; point++) {
        char id[32];
        int how;
        pid_t child;

        snprintf(id, sizeof(id), "death-%d", point);
        fflush(NULL);
        child = fork();
        if (child == 0) {
            struct sqldb own;

            sqldb_open(&own);
            run_two_steps(&own, id, point % 2 ? IDEM_STRICT : IDEM_LOOSE,
                          point);
            kill(getpid(), SIGKILL); /* after the commit */
        }
        waitpid(child, &how, 0);
        assert_true(WIFSIGNALED(how));
        sqldb_open(&s);
        /* Record and effect agree: both, or none. */
        assert_int_equal(
            sqldb_number(&s, "select times from t_effect where id = 0"),
            point == 4 ? 4 : point - 1);
        assert_int_equal(run_two_steps(&s, id, IDEM_STRICT, 0),
                         point == 4 ? IDEM_V_REPLAY : IDEM_V_STARTED);
        assert_int_equal(
            sqldb_number(&s, "select times from t_effect where id = 0"),
            point == 4 ? 4 : point);
        assert_int_equal(
            sqldb_number(&s, "select times from t_effect where id = 1"),
            point == 4 ? 4 : point);
        sqldb_close(&s);
    }
}

/* One round trip has no points to die at: the moment moves on key by key, from
 * before the first byte to after the commit. */
static void
who_dies_in_the_one_round_trip_is_run_or_replayed(void **state)
{
    struct sqldb s;

    (void)state;
    sqldb_open(&s);
    fresh_tables(&s);
    sqldb_close(&s);
    for (size_t key = 0; key < keys; key++) {
        int ready[2], how;
        pid_t child;
        char byte;

        assert_int_equal(pipe(ready), 0);
        fflush(NULL);
        child = fork();
        if (child == 0) {
            struct sqldb own;

            sqldb_open(&own);
            if (write(ready[1], "x", 1) == 1)
                run_once(&own, key, true);
            pause();
        }
        assert_int_equal(read(ready[0], &byte, 1), 1);
        usleep((useconds_t)(key * 5000 / keys));
        kill(child, SIGKILL);
        waitpid(child, &how, 0);
        close(ready[0]);
        close(ready[1]);
        sqldb_open(&s);
        run_once(&s, key, true);
        assert_int_equal(
            sqldb_number(&s, "select times from t_effect where id = %zu", key),
            1);
        sqldb_close(&s);
    }
    printf("%zu of %zu died before their work was committed\n", (size_t)firsts,
           keys);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_storm_of_runs_has_one_effect_a_key),
        cmocka_unit_test(a_storm_of_statements_has_one_effect_a_key),
        cmocka_unit_test(a_storm_of_inserts_has_one_effect_a_key),
        cmocka_unit_test(a_storm_of_versioned_updates_has_one_effect_a_key),
        cmocka_unit_test(a_storm_of_moves_has_one_effect_a_key),
        cmocka_unit_test(a_storm_of_locks_has_one_effect_a_key),
        cmocka_unit_test(a_storm_of_tries_has_one_effect_a_key),
        cmocka_unit_test(a_storm_of_deductions_stops_at_what_is_there),
        cmocka_unit_test(deadlocks_are_tried_again_and_count_once),
        cmocka_unit_test(a_connection_that_is_ended_leaves_nothing_behind),
        cmocka_unit_test(who_dies_in_the_middle_leaves_nothing_behind),
        cmocka_unit_test(who_dies_in_the_one_round_trip_is_run_or_replayed),
    };
    bool small = getenv("IDEM_SANITIZED") && *getenv("IDEM_SANITIZED");
    bool soak = getenv("IDEM_SOAK") && *getenv("IDEM_SOAK");
    int failed;

    callers = soak ? 64 : small ? 4 : 16;
    keys = soak ? 1000 : small ? 10 : 100;
    callers = number_from_env("IDEM_TEST_CALLERS", callers);
    keys = number_from_env("IDEM_TEST_KEYS", keys);
    failed = cmocka_run_group_tests(tests, NULL, NULL);
    sqldb_done();
    return failed;
}
