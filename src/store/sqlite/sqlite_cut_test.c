/*
 * sqlite_cut_test.c - tests that an engine on SQLite keeps what it answered
 * through a power cut at any moment.
 *
 * An engine executes random operations on a sqlite: store. Every system call of
 * SQLite and every answer of the engine is recorded in its order. Then the
 * recording is played. At each write, sync, truncation and deletion there are
 * images with what a power cut leaves (tests/support/tape.h): nothing of what
 * was not synced, all of it, each first part of it, and random parts with torn
 * sectors. A new engine on the image must show every record as it was answered
 * last, or as an operation on its way would leave it; must not start again what
 * is finished; and must give larger fences than before.
 *
 * sqlite_crash_test.c does the same with batches of the store, while they are
 * written. In the counter-tests here the syncs of files, or of the folder, are
 * dropped from the recording; the same program must then find losses.
 */
#include "../journal/testing.h"

#include "../../../tests/support/rig.h"
#include "../../../tests/support/tape.h"
#include "sqlite_calls.h"

#define THINGS 14
#define VERSIONS 32
#define RESULT_MAX 6000
#define ROUNDS 9
#define TORN_IMAGES 2
#define LEASE_MS 20000

/* An answer, with the record that it showed. */
struct heard {
    bool done;
    enum idem_status status;
    enum idem_verdict verdict;
    size_t told; /* the position on the tape */
    enum idem_state state;
    uint32_t attempt;
    uint64_t fence;
    int64_t lease_until, expires;
    size_t result_len;
    uint8_t result[RESULT_MAX];
    char text[256];
};

/* What an operation left in a record. */
struct version {
    size_t asked, told; /* positions on the tape */
    struct heard heard; /* to a GET after it */
};

struct thing { /* a request, a lock or a token */
    char id[16];
    enum idem_type type;
    enum idem_mode mode;
    struct version versions[VERSIONS];
    size_t count;
};

struct run {
    uint64_t seed;
    const char *mode; /* of the URL */
    struct tape *tape;
    char *image;
    struct test_clocks clocks;
    struct thing things[THINGS];
    struct { /* the time from this position on */
        size_t position;
        int64_t wall_us;
    } times[ROUNDS + 1];
    size_t time_count;
    size_t images, boundaries, answers, counts[TAPE_KINDS], flaws;
    char first_flaw[700];
};

static struct run run;

static uint64_t
roll(void *arg)
{
    (void)arg;
    return test_random(&run.seed);
}

static void
note(const char *what, size_t position, const char *image)
{
    if (run.flaws++ == 0)
        snprintf(run.first_flaw, sizeof(run.first_flaw),
                 "mode=%s, after %zu calls, %s: %s", run.mode, position, image,
                 what);
}

/* ---- operations --------------------------------------------------------- */

static void
hear(void *arg, enum idem_status status, const struct idem_answer *answer,
     const struct idem_error *err)
{
    struct heard *heard = arg;
    const struct idem_record *record;

    heard->done = true;
    heard->status = status;
    heard->told = run.tape ? tape_len(run.tape) : 0;
    if (status != IDEM_OK) {
        snprintf(heard->text, sizeof(heard->text), "%s", err->text);
        return;
    }
    record = answer->record;
    heard->verdict = answer->verdict;
    heard->state = (enum idem_state)record->state;
    heard->attempt = record->attempt;
    heard->fence = record->fence;
    heard->lease_until = record->lease_until;
    heard->expires = record->expires;
    assert_true(record->result.len <= RESULT_MAX);
    heard->result_len = record->result.len;
    if (record->result.len > 0)
        memcpy(heard->result, record->result.data, record->result.len);
}

static void
submit(struct idem_engine *engine, const struct idem_op *op,
       struct heard *heard)
{
    struct idem_error err;

    memset(heard, 0, offsetof(struct heard, result));
    heard->text[0] = 0;
    if (idem_submit(engine, op, hear, heard, NULL, &err) != IDEM_OK)
        fail_msg("%s: %s", idem_verb_name(op->verb), err.text);
}

static struct idem_op
op_on(const struct thing *thing, enum idem_verb verb)
{
    return (struct idem_op){.verb = verb,
                            .type = thing->type,
                            .scope = idem_text("shop"),
                            .id = idem_text(thing->id),
                            .mode = thing->mode};
}

/* The operation with which a caller wants to start this thing. */
static struct idem_op
op_start(const struct thing *thing, const uint8_t *nonce, const char *owner)
{
    struct idem_op op =
        op_on(thing, thing->type == IDEM_TYPE_LOCK    ? IDEM_LOCK
                     : thing->type == IDEM_TYPE_TOKEN ? IDEM_REDEEM
                                                      : IDEM_BEGIN);

    if (op.verb == IDEM_LOCK)
        op.subject = idem_text(owner);
    else
        op.nonce = nonce;
    if (op.verb != IDEM_REDEEM)
        op.lease_ms = LEASE_MS;
    if (op.verb == IDEM_BEGIN)
        op.ttl_ms = 3600000;
    return op;
}

/* An operation of the one that holds the thing. */
static struct idem_op
op_held(const struct thing *thing, const struct heard *now, uint8_t *result)
{
    uint64_t dice = roll(NULL);
    bool lock = thing->type == IDEM_TYPE_LOCK;
    struct idem_op op = op_on(thing, IDEM_FINISH);

    if (dice % 5 == 0)
        op.verb = IDEM_RENEW;
    else if (lock)
        op.verb = IDEM_UNLOCK;
    else if (dice % 5 == 1)
        op.verb = IDEM_RELEASE;
    else if (dice % 5 == 2 && thing->mode == IDEM_STRICT)
        op.verb = IDEM_SETTLE;
    if (op.verb != IDEM_SETTLE)
        op.fence = now->fence;
    if (op.verb == IDEM_RENEW)
        op.lease_ms = 2 * LEASE_MS;
    if (op.verb == IDEM_FINISH || op.verb == IDEM_SETTLE) {
        op.outcome = dice % 7 ? IDEM_STATE_SUCCEEDED : IDEM_STATE_FAILED;
        op.ttl_ms = dice % 3 ? 3600000 : 15000;
        op.result.len =
            (dice >> 8) % 4 ? (dice >> 16) % 300 : (dice >> 16) % RESULT_MAX;
        for (size_t i = 0; i < op.result.len; i++)
            result[i] = (uint8_t)(dice + i * 7);
        op.result.data = result;
    }
    return op;
}

static struct idem_op
op_next(const struct thing *thing, uint8_t *nonce, uint8_t *result)
{
    static const struct heard nothing;
    const struct heard *now =
        thing->count ? &thing->versions[thing->count - 1].heard : &nothing;
    bool over =
        now->state == IDEM_STATE_ABSENT || now->state == IDEM_STATE_FREE;
    struct idem_op op;

    if (now->state == IDEM_STATE_EXECUTING)
        return op_held(thing, now, result);
    if (!over && now->state != IDEM_STATE_ISSUED && roll(NULL) % 4 == 0)
        return op_on(thing, IDEM_FORGET);
    if (over && thing->type == IDEM_TYPE_TOKEN) {
        op = op_on(thing, IDEM_ISSUE);
        op.ttl_ms = 3600000;
        return op;
    }
    for (size_t i = 0; i < IDEM_NONCE_LEN; i++)
        nonce[i] = (uint8_t)roll(NULL);
    return op_start(thing, nonce, "me");
}

/* ---- the run that is recorded -------------------------------------------- */

static enum idem_status
open_engine(const char *dir, const struct test_clocks *clocks,
            struct idem_engine **engine, struct idem_error *err)
{
    struct idem_options options = {.log = test_log};
    struct idem__engine_inner inner = {
        .driven = true, .hasty = true, .clocks = &clocks->clocks};
    char url[4200];

    snprintf(url, sizeof(url), "sqlite:%s/records.db?mode=%s", dir, run.mode);
    return idem__engine_open(url, &options, &inner, engine, err);
}

static void
look(struct idem_engine *engine, struct thing *thing, struct heard *heard)
{
    struct idem_op op = op_on(thing, IDEM_GET);

    submit(engine, &op, heard);
    turn(engine);
    if (!heard->done || heard->status != IDEM_OK)
        fail_msg("GET %s: %s", thing->id, heard->text);
}

/* Some things at a time, so that a batch has several records. */
static void
work_round(struct idem_engine *engine)
{
    static struct heard answers[THINGS];
    bool chosen[THINGS] = {false};

    for (size_t i = 0; i < THINGS; i++) {
        struct thing *thing = &run.things[i];
        uint8_t nonce[IDEM_NONCE_LEN], result[RESULT_MAX];
        struct idem_op op;

        chosen[i] = roll(NULL) % 4 == 0;
        if (!chosen[i])
            continue;
        assert_true(thing->count < VERSIONS);
        op = op_next(thing, nonce, result);
        thing->versions[thing->count].asked = tape_len(run.tape);
        submit(engine, &op, &answers[i]);
    }
    turn(engine);
    for (size_t i = 0; i < THINGS; i++) {
        struct thing *thing = &run.things[i];
        struct version *version = &thing->versions[thing->count];

        if (!chosen[i])
            continue;
        if (!answers[i].done || answers[i].status != IDEM_OK)
            fail_msg("%s: %s", thing->id, answers[i].text);
        version->told = answers[i].told;
        look(engine, thing, &version->heard);
        thing->count++;
        run.answers++;
    }
}

static void
note_time(void)
{
    run.times[run.time_count].position = tape_len(run.tape);
    run.times[run.time_count++].wall_us = atomic_load(&run.clocks.wall_us);
}

/* Rounds, expiry, sweeping, closing and opening. */
static void
work(const char *dir)
{
    struct idem_engine *engine = NULL;
    struct idem_error err;

    note_time();
    for (int i = 0; i < ROUNDS; i++) {
        if (!engine && open_engine(dir, &run.clocks, &engine, &err) != IDEM_OK)
            fail_msg("open: %s", err.text);
        work_round(engine);
        test_clocks_pass(&run.clocks, 4000);
        note_time();
        turn(engine);
        if (i % 5 == 4) {
            idem_close(engine);
            engine = NULL;
        }
    }
    idem_close(engine);
}

/* ---- an image ------------------------------------------------------------ */

static bool
same(const struct heard *a, const struct heard *b)
{
    return a->state == b->state && a->fence == b->fence &&
           a->attempt == b->attempt && a->lease_until == b->lease_until &&
           a->expires == b->expires && a->result_len == b->result_len &&
           memcmp(a->result, b->result, a->result_len) == 0;
}

/* May this version be there as `found`? NULL: there was none. */
static bool
explains(const struct version *version, const struct heard *found,
         int64_t now_ms)
{
    const struct heard *was = version ? &version->heard : NULL;

    if (!was || was->state == IDEM_STATE_ABSENT)
        return found->state == IDEM_STATE_ABSENT;
    return same(was, found) || (found->state == IDEM_STATE_ABSENT &&
                                was->state != IDEM_STATE_EXECUTING &&
                                was->expires != 0 && was->expires <= now_ms);
}

/* Is this the right answer to a caller that wants to start the thing? `top` is
 * the largest fence that it ever had. */
static bool
is_right(const struct thing *thing, const struct heard *found,
         const struct heard *got, uint64_t top, int64_t now_ms)
{
    bool lease_over = found->lease_until <= now_ms;
    bool started = got->verdict == IDEM_V_STARTED && got->fence > top;

    switch (found->state) {
    case IDEM_STATE_ISSUED:
        return got->verdict == IDEM_V_REDEEMED && got->fence > top;
    case IDEM_STATE_SUCCEEDED:
    case IDEM_STATE_FAILED:
        if (thing->type == IDEM_TYPE_TOKEN)
            return got->verdict == IDEM_V_DUPLICATE;
        return got->verdict == IDEM_V_REPLAY && same(found, got);
    case IDEM_STATE_EXECUTING:
        if (!lease_over)
            return got->verdict == IDEM_V_BUSY && got->fence == found->fence;
        if (thing->type == IDEM_TYPE_LOCK || thing->mode == IDEM_LOOSE)
            return started || got->verdict == IDEM_V_BUSY;
        return got->verdict == IDEM_V_BUSY || got->verdict == IDEM_V_DOUBT;
    default:
        return thing->type == IDEM_TYPE_TOKEN ? got->verdict == IDEM_V_UNKNOWN
                                              : started;
    }
}

static const char *
thing_flaw(const struct thing *thing, const struct heard *found,
           const struct heard *got, size_t position, int64_t now_ms)
{
    static char text[600];
    const struct version *told = NULL, *on_its_way = NULL;
    uint64_t top = found->fence;

    for (size_t i = 0; i < thing->count; i++) {
        const struct version *version = &thing->versions[i];

        if (version->told <= position) {
            told = version;
            top = version->heard.fence > top ? version->heard.fence : top;
        } else if (version->asked <= position) {
            on_its_way = version;
        }
    }
    if (found->status != IDEM_OK || got->status != IDEM_OK)
        snprintf(text, sizeof(text), "%s: %s%s", thing->id, found->text,
                 got->text);
    else if (!explains(told, found, now_ms) &&
             !(on_its_way && explains(on_its_way, found, now_ms)))
        snprintf(text, sizeof(text),
                 "%s: %s, fence %llu was answered; %s, fence %llu is there",
                 thing->id,
                 idem_state_name(told ? told->heard.state : IDEM_STATE_ABSENT),
                 told ? (unsigned long long)told->heard.fence : 0,
                 idem_state_name(found->state),
                 (unsigned long long)found->fence);
    else if (!is_right(thing, found, got, top, now_ms))
        snprintf(text, sizeof(text),
                 "%s: it is %s, and who wants to start it gets %s, fence %llu "
                 "after %llu",
                 thing->id, idem_state_name(found->state),
                 idem_verdict_name(got->verdict),
                 (unsigned long long)got->fence, (unsigned long long)top);
    else
        return NULL;
    return text;
}

static const char *
engine_flaw(struct idem_engine *engine, size_t position, int64_t now_ms)
{
    static const uint8_t nonce[IDEM_NONCE_LEN] = {"another"};
    static struct heard found[THINGS], got[THINGS];
    const char *flaw = NULL;

    for (size_t i = 0; i < THINGS; i++) {
        struct idem_op op = op_on(&run.things[i], IDEM_GET);

        submit(engine, &op, &found[i]);
    }
    turn(engine);
    for (size_t i = 0; i < THINGS; i++) {
        struct idem_op op = op_start(&run.things[i], nonce, "you");

        submit(engine, &op, &got[i]);
    }
    turn(engine);
    for (size_t i = 0; i < THINGS && !flaw; i++) {
        assert_true(found[i].done && got[i].done);
        flaw = thing_flaw(&run.things[i], &found[i], &got[i], position, now_ms);
    }
    return flaw;
}

static int
is_ok(void *arg, int count, char **values, char **names)
{
    (void)names;
    *(bool *)arg = count == 1 && strcmp(values[0], "ok") == 0;
    return 0;
}

static bool
is_whole(void)
{
    struct test_path path = test_path(run.image, "records.db");
    sqlite3 *db = NULL;
    bool whole = false;

    assert_int_equal(sqlite3_open(path.text, &db), SQLITE_OK);
    (void)sqlite3_exec(db, "pragma integrity_check", is_ok, &whole, NULL);
    sqlite3_close(db);
    return whole;
}

static int64_t
wall_us_at(size_t position)
{
    size_t i = run.time_count;

    while (i > 1 && run.times[i - 1].position > position)
        i--;
    return run.times[i - 1].wall_us;
}

/* The machine starts again one second later. */
static void
check_image(size_t position, const char *image)
{
    struct idem_engine *engine = NULL;
    struct test_clocks clocks;
    struct idem_error err;
    const char *flaw;

    run.images++;
    test_clocks_init(&clocks);
    atomic_store(&clocks.wall_us, wall_us_at(position) + 1000000);
    atomic_store(&clocks.boot_us, 1000000);
    if (open_engine(run.image, &clocks, &engine, &err) != IDEM_OK) {
        note(err.text, position, image);
        return;
    }
    flaw = engine_flaw(engine, position, clocks.wall_us / 1000);
    idem_close(engine);
    if (flaw)
        note(flaw, position, image);
    else if (!is_whole())
        note("the database is damaged", position, image);
}

/* ---- playing the recording ------------------------------------------------
 */

static bool
is_answer(size_t position)
{
    for (size_t i = 0; i < THINGS; i++) {
        for (size_t v = 0; v < run.things[i].count; v++) {
            if (run.things[i].versions[v].told == position)
                return true;
        }
    }
    return false;
}

/* A first part of what is not durable is the same image as "all" at an earlier
 * position. It is made again where the most is asked of it: after an answer,
 * and before a sync. */
static void
cut_power_at(size_t position)
{
    enum tape_kind next;
    size_t pending;

    tape_play(run.tape, position);
    run.boundaries++;
    next = tape_next(run.tape);
    pending = tape_pending(run.tape);
    tape_image(run.tape, run.image, 0);
    check_image(position, "nothing unsynced");
    if (pending == 0)
        return;
    tape_image(run.tape, run.image, pending);
    check_image(position, "all unsynced");
    if (next == TAPE_SYNC || next == TAPE_SYNC_NAMES || is_answer(position)) {
        for (size_t i = 1; i < pending && run.flaws == 0; i++) {
            tape_image(run.tape, run.image, i);
            check_image(position, "the first unsynced");
        }
    }
    for (int i = 0; i < TORN_IMAGES; i++) {
        tape_torn_image(run.tape, run.image, roll, NULL);
        check_image(position, "some unsynced");
    }
}

static void
make_things(void)
{
    memset(run.things, 0, sizeof(run.things));
    for (size_t i = 0; i < THINGS; i++) {
        struct thing *thing = &run.things[i];

        thing->type = i % 7 == 5   ? IDEM_TYPE_LOCK
                      : i % 7 == 6 ? IDEM_TYPE_TOKEN
                                   : IDEM_TYPE_REQUEST;
        thing->mode = i % 7 == 4 ? IDEM_LOOSE : IDEM_STRICT;
        snprintf(thing->id, sizeof(thing->id), "thing-%zu", i);
    }
}

static void
cut_power_in_one_run(bool deaf_data, bool deaf_folder)
{
    char *dir = test_fast_folder();

    make_things();
    run.time_count = 0;
    test_clocks_init(&run.clocks);
    run.tape = tape_new();
    calls_io = tape_io(run.tape);
    calls_dir = dir;
    calls_aside = false;
    work(dir);
    calls_aside = true;
    calls_dir = NULL;
    tape_deaf(run.tape, deaf_data, deaf_folder);
    for (size_t i = 0; i <= tape_len(run.tape) && run.flaws == 0; i++)
        cut_power_at(i);
    for (int kind = 0; kind < TAPE_KINDS; kind++)
        run.counts[kind] += tape_count(run.tape, (enum tape_kind)kind);
    tape_clear(run.tape);
    run.tape = NULL;
    test_folder_drop(dir);
}

static void
cut_power(const char *mode, size_t images, bool deaf_data, bool deaf_folder)
{
    uint64_t seed = test_seed();

    memset(&run, 0, sizeof(run));
    run.mode = mode;
    run.seed = seed;
    run.image = test_fast_folder();
    take_over_calls();
    while (run.images < images && run.flaws == 0)
        cut_power_in_one_run(deaf_data, deaf_folder);
    test_folder_drop(run.image);
    print_message("mode=%s: %zu images at %zu boundaries (%zu writes, %zu "
                  "truncations, %zu deletions, %zu syncs), %zu answers\n",
                  mode, run.images, run.boundaries, run.counts[TAPE_WRITE],
                  run.counts[TAPE_TRUNCATE], run.counts[TAPE_DELETE],
                  run.counts[TAPE_SYNC] + run.counts[TAPE_SYNC_NAMES],
                  run.answers);
    if (run.flaws > 0)
        print_message("%s\n", run.first_flaw);
}

static void
no_power_cut_loses_an_answer(const char *mode)
{
    cut_power(mode, test_size(200, 1000, 50000), false, false);
    if (run.flaws > 0)
        fail_msg("%s", run.first_flaw);
    assert_true(run.answers > 5 && run.counts[TAPE_WRITE] > 50 &&
                run.counts[TAPE_SYNC] > 10);
}

static void
an_engine_on_a_rollback_journal_keeps_its_answers(void **state)
{
    (void)state;
    no_power_cut_loses_an_answer("rollback");
}

static void
an_engine_on_a_write_ahead_log_keeps_its_answers(void **state)
{
    (void)state;
    no_power_cut_loses_an_answer("wal");
}

static void
without_syncs_of_files_answers_are_lost(void **state)
{
    (void)state;
    cut_power("rollback", 5000, true, false);
    assert_true(run.flaws > 0);
    cut_power("wal", 5000, true, false);
    assert_true(run.flaws > 0);
}

static void
without_syncs_of_the_folder_answers_are_lost(void **state)
{
    (void)state;
    cut_power("rollback", 5000, false, true);
    assert_true(run.flaws > 0);
    cut_power("wal", 5000, false, true);
    assert_true(run.flaws > 0);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_engine_on_a_rollback_journal_keeps_its_answers),
        cmocka_unit_test(an_engine_on_a_write_ahead_log_keeps_its_answers),
        cmocka_unit_test(without_syncs_of_files_answers_are_lost),
        cmocka_unit_test(without_syncs_of_the_folder_answers_are_lost),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
