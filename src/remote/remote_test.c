/*
 * remote_test.c - the engine behind idem:// with real servers: the same answers
 * as an engine on a store, waits, limits, addresses and secrets.
 * Waits more than it works.
 */
#include "../../tests/support/history.h"
#include "../../tests/support/served.h"
#include "remote.h"

#include <idem/lock.h>
#include <inttypes.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

/* ---- the same as an engine on a store ----------------------------------- */

#define KEYS 12

struct side {
    struct idem_engine *engine;
    uint64_t fences[4][KEYS][2]; /* by type: the last one, and the one before */
};

/* An answer as text, without the values that differ between two clocks and two
 * engines. */
static void
describe(enum idem_status status, const struct idem_answer *answer, char *text,
         size_t len)
{
    const struct idem_record *r = answer->record;
    size_t n = (size_t)snprintf(
        text, len,
        "%s %s type %d state %d mode %d kind %d flags %d attempt %u ",
        idem_status_name(status), idem_verdict_name(answer->verdict), r->type,
        r->state, r->mode, r->kind, r->flags, r->attempt);

    snprintf(text + n, len - n,
             "lease %d expires %d scope %.*s id %.*s subject %.*s result %.*s",
             r->lease_until != 0, r->expires != 0, (int)r->scope.len,
             (const char *)r->scope.data, (int)r->id.len,
             (const char *)r->id.data, (int)r->subject.len,
             (const char *)r->subject.data, (int)r->result.len,
             (const char *)r->result.data);
}

struct choice {
    struct idem_op op;
    unsigned key, old;
};

static void
run_choice(struct side *side, const struct choice *choice, char *text,
           size_t len)
{
    struct idem_op op = choice->op;
    uint64_t *fences = side->fences[op.type - 1][choice->key];
    struct idem_answer answer;
    enum idem_status status;

    op.fence = fences[choice->old] ? fences[choice->old] : 1;
    status = served_do(side->engine, op, &answer);
    describe(status, &answer, text, len);
    if (status == IDEM_OK && answer.record->fence > fences[0]) {
        fences[1] = fences[0];
        fences[0] = answer.record->fence;
    }
    idem_answer_clear(&answer);
}

static struct choice
choose(struct dice *dice, unsigned i)
{
    static const char *const owners[] = {"ann", "bob"};
    static char id[16], result[32];
    static uint8_t nonce[IDEM_NONCE_LEN], fingerprint[IDEM_FINGERPRINT_LEN];
    struct choice c = {.key = (unsigned)dice_roll(dice, KEYS),
                       .old = dice_roll(dice, 8) == 0};
    struct idem_op *op = &c.op;

    snprintf(id, sizeof(id), "key-%u", c.key);
    snprintf(result, sizeof(result), "%u", (unsigned)dice_roll(dice, 3) * i);
    memset(nonce, 1 + (int)dice_roll(dice, 3), sizeof(nonce));
    memset(fingerprint, (int)dice_roll(dice, 2), sizeof(fingerprint));
    op->verb = (enum idem_verb)dice_roll(dice, IDEM__VERB_COUNT);
    if (dice_roll(dice, 3) == 0)
        op->verb = IDEM_BEGIN;
    op->scope = idem_text(dice_roll(dice, 2) ? "shop" : "locks");
    op->id = idem_text(id);
    do
        op->type = (enum idem_type)(1 + dice_roll(dice, 4));
    while ((op->type == IDEM_TYPE_LOCK || op->type == IDEM_TYPE_WORKER)
               ? op->verb <= IDEM_FINISH || op->verb == IDEM_SETTLE ||
                     op->verb == IDEM_ISSUE || op->verb == IDEM_REDEEM
               : op->verb >= IDEM_LOCK ||
                     (op->type == IDEM_TYPE_REQUEST &&
                      (op->verb == IDEM_ISSUE || op->verb == IDEM_REDEEM)));
    op->mode = (enum idem_mode)dice_roll(dice, 2);
    op->kind = (enum idem_kind)dice_roll(dice, 3);
    op->nonce = dice_roll(dice, 2) ? nonce : NULL;
    op->fingerprint = dice_roll(dice, 2) ? fingerprint : NULL;
    op->outcome = dice_roll(dice, 2) ? IDEM_STATE_SUCCEEDED : IDEM_STATE_FAILED;
    if (op->verb == IDEM_SETTLE && dice_roll(dice, 2))
        op->outcome = 0;
    op->not_replayable = dice_roll(dice, 8) == 0;
    op->subject = dice_roll(dice, 2) || op->verb == IDEM_LOCK
                      ? idem_text(owners[dice_roll(dice, 2)])
                      : (struct idem_bytes){NULL, 0};
    if (dice_roll(dice, 2))
        op->result = dice_roll(dice, 8) ? idem_text(result) : idem_text("");
    op->ttl_ms = dice_roll(dice, 2) ? 3600000 : 0;
    op->lease_ms = dice_roll(dice, 2) ? 1800000 : 0;
    return c;
}

static void
random_operations_are_answered_as_on_a_store(const char *store)
{
    struct dice dice = {number_from_env("IDEM_TEST_SEED", 1)};
    unsigned ops = getenv("IDEM_SANITIZED") ? 4000 : 30000;
    static struct side here, there;
    struct served served;

    print_message("seed %" PRIu64 "\n", dice.state);
    served_start(&served, store, NULL);
    memset(&here, 0, sizeof(here));
    memset(&there, 0, sizeof(there));
    here.engine = served_open("memory:");
    there.engine = served_open(served.url);
    for (unsigned i = 0; i < ops; i++) {
        struct choice choice = choose(&dice, i);
        char wanted[600], got[600];

        run_choice(&here, &choice, wanted, sizeof(wanted));
        run_choice(&there, &choice, got, sizeof(got));
        if (strcmp(wanted, got) != 0)
            fail_msg("op %u, %s of %.*s:\n  here  %s\n  there %s", i,
                     idem_verb_name(choice.op.verb), (int)choice.op.id.len,
                     (const char *)choice.op.id.data, wanted, got);
    }
    idem_close(here.engine);
    idem_close(there.engine);
    served_stop(&served);
}

static void
random_operations_are_answered_as_on_memory(void **state)
{
    (void)state;
    random_operations_are_answered_as_on_a_store("memory:");
}

static void
random_operations_are_answered_as_on_a_journal(void **state)
{
    (void)state;
    random_operations_are_answered_as_on_a_store("journal:");
}

static bool
count_record(void *arg, const struct idem_record *record)
{
    unsigned *found = arg;
    int number = -1;
    char id[32] = "";

    assert_int_equal(record->type, IDEM_TYPE_REQUEST);
    assert_true(record->id.len < sizeof(id));
    memcpy(id, record->id.data, record->id.len);
    assert_int_equal(sscanf(id, "listed-%d", &number), 1);
    assert_true(number >= 0 && number < 3000);
    found[number]++;
    return true;
}

static void
a_listing_finds_every_record(void **state)
{
    struct served served;
    struct idem_engine *engine;
    struct idem_filter filter = {.type = IDEM_TYPE_REQUEST,
                                 .scope = idem_text("shop")};
    struct idem_cursor cursor = {"0"};
    struct idem_error err = {0};
    static unsigned found[3000];

    (void)state;
    served_start(&served, "memory:", NULL);
    engine = served_open(served.url);
    for (int i = 0; i < 3000; i++) {
        struct idem_answer answer;
        char id[16];

        snprintf(id, sizeof(id), "listed-%d", i);
        assert_int_equal(served_do(engine, served_begin(id), &answer), IDEM_OK);
        idem_answer_clear(&answer);
    }
    do {
        if (idem_scan(engine, &filter, &cursor, 2000, count_record, found,
                      &err) != IDEM_OK)
            fail_msg("%s", err.text);
    } while (strcmp(cursor.text, "0") != 0);
    for (int i = 0; i < 3000; i++)
        assert_true(found[i] > 0);
    idem_close(engine);
    served_stop(&served);
}

static void
a_large_result_comes_back_whole(void **state)
{
    const char *const options[] = {"--max-result", "8m", NULL};
    const struct idem_options large = {.max_result = 8 * 1024 * 1024};
    struct served served;
    struct idem_engine *engine;
    struct idem_answer answer;
    size_t len = 7 * 1024 * 1024;
    char *result = malloc(len);
    uint64_t fence;

    (void)state;
    for (size_t i = 0; i < len; i++)
        result[i] = (char)(i * 31 >> 3);
    served_start(&served, "memory:", options);
    assert_int_equal(idem_open(served.url, &large, &engine, NULL), IDEM_OK);
    assert_int_equal(served_do(engine, served_begin("big"), &answer), IDEM_OK);
    fence = answer.record->fence;
    idem_answer_clear(&answer);
    assert_int_equal(served_do(engine,
                               (struct idem_op){.verb = IDEM_FINISH,
                                                .id = idem_text("big"),
                                                .fence = fence,
                                                .outcome = IDEM_STATE_SUCCEEDED,
                                                .result = {result, len}},
                               &answer),
                     IDEM_OK);
    assert_int_equal(answer.record->result.len, len);
    assert_memory_equal(answer.record->result.data, result, len);
    idem_answer_clear(&answer);
    assert_int_equal(served_do(engine, served_begin("big"), &answer), IDEM_OK);
    assert_int_equal(answer.verdict, IDEM_V_REPLAY);
    assert_int_equal(answer.record->result.len, len);
    assert_memory_equal(answer.record->result.data, result, len);
    idem_answer_clear(&answer);
    idem_close(engine);
    served_stop(&served);
    free(result);
}

/* ---- waits --------------------------------------------------------------- */

struct told {
    atomic_int done;
    enum idem_status status;
    enum idem_verdict verdict;
};

static void
tell(void *arg, enum idem_status status, const struct idem_answer *answer,
     const struct idem_error *err)
{
    struct told *told = arg;

    (void)err;
    told->status = status;
    if (answer)
        told->verdict = answer->verdict;
    atomic_store(&told->done, 1);
}

static void
wait_until(atomic_int *word)
{
    for (int i = 0; i < 6000 && !atomic_load(word); i++)
        usleep(5000);
    assert_int_equal(atomic_load(word), 1);
}

static void
a_wait_can_be_cancelled_and_holds_up_nobody(void **state)
{
    struct served served;
    struct idem_engine *engine;
    struct idem_answer answer;
    struct idem_op waits = served_begin("held");
    struct told told = {0};
    uint64_t ticket, fence;

    (void)state;
    served_start(&served, "memory:", NULL);
    engine = served_open(served.url);
    assert_int_equal(served_do(engine, served_begin("held"), &answer), IDEM_OK);
    fence = answer.record->fence;
    idem_answer_clear(&answer);
    waits.scope = idem_text("shop");
    waits.wait_ms = 600000;
    assert_int_equal(idem_submit(engine, &waits, tell, &told, &ticket, NULL),
                     IDEM_OK);
    for (int i = 0; i < 100; i++) { /* other operations go on */
        char id[16];

        snprintf(id, sizeof(id), "free-%d", i);
        assert_int_equal(served_do(engine, served_begin(id), &answer), IDEM_OK);
        idem_answer_clear(&answer);
    }
    assert_int_equal(atomic_load(&told.done), 0);
    idem_cancel(engine, ticket);
    wait_until(&told.done);
    assert_int_equal(told.status, IDEM_ERR_CLOSED);

    /* A wait that is not cancelled gets the result. */
    memset(&told, 0, sizeof(told));
    assert_int_equal(idem_submit(engine, &waits, tell, &told, NULL, NULL),
                     IDEM_OK);
    assert_int_equal(
        served_do(engine,
                  (struct idem_op){.verb = IDEM_FINISH,
                                   .id = idem_text("held"),
                                   .fence = fence,
                                   .outcome = IDEM_STATE_SUCCEEDED},
                  &answer),
        IDEM_OK);
    idem_answer_clear(&answer);
    wait_until(&told.done);
    assert_int_equal(told.status, IDEM_OK);
    assert_int_equal(told.verdict, IDEM_V_REPLAY);
    idem_close(engine);
    served_stop(&served);
}

static void
closing_answers_who_waits(void **state)
{
    struct served served;
    struct idem_engine *engine;
    struct idem_answer answer;
    struct idem_op waits = served_begin("held");
    struct told told = {0};
    int64_t start;

    (void)state;
    served_start(&served, "memory:", NULL);
    engine = served_open(served.url);
    assert_int_equal(served_do(engine, served_begin("held"), &answer), IDEM_OK);
    idem_answer_clear(&answer);
    waits.scope = idem_text("shop");
    waits.wait_ms = 600000;
    assert_int_equal(idem_submit(engine, &waits, tell, &told, NULL, NULL),
                     IDEM_OK);
    start = served_now_ms();
    idem_close(engine);
    assert_true(served_now_ms() - start < 20000);
    assert_int_equal(atomic_load(&told.done), 1);
    assert_int_equal(told.status, IDEM_ERR_CLOSED);
    served_stop(&served);
}

/* ---- limits, addresses, secrets ---------------------------------------------
 */

static void
more_than_the_queue_holds_is_refused(void **state)
{
    const struct idem_options small = {.max_queue = 8};
    struct served served;
    struct idem_engine *engine;
    struct told told[32] = {0};
    struct idem_op op = served_begin("x");
    int accepted = 0;

    (void)state;
    served_start(&served, "memory:", NULL);
    assert_int_equal(idem_open(served.url, &small, &engine, NULL), IDEM_OK);
    served_signal(&served, SIGSTOP);
    op.scope = idem_text("shop");
    for (int i = 0; i < 32; i++) {
        enum idem_status status =
            idem_submit(engine, &op, tell, &told[i], NULL, NULL);

        assert_true(status == IDEM_OK || status == IDEM_ERR_OVERLOADED);
        accepted += status == IDEM_OK;
    }
    assert_int_equal(accepted, 8);
    served_signal(&served, SIGCONT);
    for (int i = 0; i < 8; i++)
        wait_until(&told[i].done);
    idem_close(engine);
    served_stop(&served);
}

static void
wrong_addresses_are_told(void **state)
{
    static const char *const wrong[][2] = {
        {"idem://", "host name is missing"},
        {"idem://h:99999", "port"},
        {"idem://h?tiemout_ms=1", "no option"},
        {"idem://a,b", "one host"},
        {"idem://name@h", "name:secret"},
        {"idem+unix:", "path"},
        {"idem+unix://tmp/x", "one slash"},
        {"idem+unix:/nowhere/x", "no server at"},
        {"idem+unix:/x?auth-file=/nowhere", "cannot read /nowhere"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        struct idem_engine *engine;
        struct idem_error err = {0};

        assert_int_not_equal(idem_open(wrong[i][0], NULL, &engine, &err),
                             IDEM_OK);
        if (!strstr(err.text, wrong[i][1]))
            fail_msg("%s: %s", wrong[i][0], err.text);
    }
}

static void
write_file(const char *path, const char *text, mode_t mode)
{
    FILE *file = fopen(path, "w");

    assert_non_null(file);
    fputs(text, file);
    fclose(file);
    assert_int_equal(chmod(path, mode), 0);
}

static enum idem_status
open_and_close(const char *url, struct idem_error *err)
{
    struct idem_engine *engine = NULL;
    enum idem_status status = idem_open(url, NULL, &engine, err);

    idem_close(engine);
    return status;
}

static void
a_secret_opens_the_door_and_is_shown_to_nobody(void **state)
{
    char folder[200], credentials[260], file[260], url[600];
    const char *const options[] = {"--credentials", credentials, NULL};
    struct served served;
    struct idem_error err = {0};

    (void)state;
    make_folder(folder, sizeof(folder));
    snprintf(credentials, sizeof(credentials), "%s/credentials", folder);
    snprintf(file, sizeof(file), "%s/auth", folder);
    write_file(credentials, "ann s3cr3t-of-ann-1234 use\n", 0600);
    served_start(&served, "memory:", options);

    /* Wrong, right, from a file, from the environment. */
    write_file(file, "ann wrong-s3cr3t-000\n", 0600);
    snprintf(url, sizeof(url), "%s?auth-file=%s", served.url, file);
    if (open_and_close(url, &err) == IDEM_OK)
        fail_msg("a wrong secret was taken");
    assert_null(strstr(err.text, "s3cr3t"));
    write_file(file, "ann s3cr3t-of-ann-1234\n", 0600);
    assert_int_equal(open_and_close(url, &err), IDEM_OK);
    assert_int_equal(chmod(file, 0644), 0);
    assert_int_equal(open_and_close(url, &err), IDEM_ERR_INVALID);
    setenv("IDEM_AUTH", "ann:s3cr3t-of-ann-1234", 1);
    assert_int_equal(open_and_close(served.url, &err), IDEM_OK);
    unsetenv("IDEM_AUTH");

    /* In a URL of TCP, with a port where nothing listens. */
    assert_int_equal(
        open_and_close("idem://ann:s3cr3t@127.0.0.1:1/?timeout_ms=500", &err),
        IDEM_ERR_UNAVAILABLE);
    assert_null(strstr(err.text, "s3cr3t"));
    served_stop(&served);
    remove_folder(folder);
}

int
main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_operations_are_answered_as_on_memory),
        cmocka_unit_test(random_operations_are_answered_as_on_a_journal),
        cmocka_unit_test(a_listing_finds_every_record),
        cmocka_unit_test(a_large_result_comes_back_whole),
        cmocka_unit_test(a_wait_can_be_cancelled_and_holds_up_nobody),
        cmocka_unit_test(closing_answers_who_waits),
        cmocka_unit_test(more_than_the_queue_holds_is_refused),
        cmocka_unit_test(wrong_addresses_are_told),
        cmocka_unit_test(a_secret_opens_the_door_and_is_shown_to_nobody),
    };
    int code;

    if (served_main(argc, argv, &code))
        return code;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
