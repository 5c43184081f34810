/*
 * token_test.c - tests that a token is redeemed once, by the subject it was
 * issued to.
 */
#include "../../tests/support/rig.h"

#include <idem/token.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define ANN idem_text("ann")
#define BOB idem_text("bob")

static struct idem_engine *
open_engine(void)
{
    struct idem_engine *engine = NULL;

    assert_int_equal(idem_open("memory:", NULL, &engine, NULL), IDEM_OK);
    return engine;
}

static enum idem_verdict
redeem(struct idem_engine *engine, struct idem_bytes subject, const char *token)
{
    enum idem_verdict verdict;

    assert_int_equal(idem_token_redeem(engine, subject, token, &verdict, NULL),
                     IDEM_OK);
    return verdict;
}

static void
the_right_word_every_time(void **state)
{
    struct idem_engine *engine = open_engine();
    char token[IDEM_TOKEN_LEN + 1], brief[IDEM_TOKEN_LEN + 1];
    char never[IDEM_TOKEN_LEN + 1];

    (void)state;
    idem_token_make(never);
    assert_int_equal(idem_token_issue(engine, ANN, 0, token, NULL), IDEM_OK);
    assert_int_equal(idem_token_issue(engine, ANN, 20, brief, NULL), IDEM_OK);
    usleep(60000);
    assert_int_equal(redeem(engine, BOB, token), IDEM_V_UNKNOWN);
    assert_int_equal(redeem(engine, ANN, never), IDEM_V_UNKNOWN);
    assert_int_equal(redeem(engine, ANN, brief), IDEM_V_UNKNOWN);
    assert_int_equal(redeem(engine, ANN, token), IDEM_V_REDEEMED);
    assert_int_equal(redeem(engine, ANN, token), IDEM_V_DUPLICATE);
    assert_int_equal(redeem(engine, BOB, token), IDEM_V_UNKNOWN);
    idem_close(engine);
}

static void
tokens_look_random(void **state)
{
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopq"
                                  "rstuvwxyz0123456789-_";
    enum { COUNT = 20000 };
    size_t seen[256] = {0};
    double expected = (double)COUNT * (IDEM_TOKEN_LEN - 1) / 64, chi = 0;
    char token[IDEM_TOKEN_LEN + 1];

    (void)state;
    for (int i = 0; i < COUNT; i++) {
        idem_token_make(token);
        assert_int_equal(strlen(token), IDEM_TOKEN_LEN);
        assert_int_not_equal(token[0], '-'); /* must not look like an option */
        for (int j = 1; j < IDEM_TOKEN_LEN; j++)
            seen[(unsigned char)token[j]]++;
    }
    for (const char *c = letters; *c; c++) {
        double off = (double)seen[(unsigned char)*c] - expected;

        chi += off * off / expected;
        seen[(unsigned char)*c] = 0;
    }
    for (int c = 0; c < 256; c++)
        assert_int_equal(seen[c], 0); /* no character that is not URL-safe */
    /* 63 degrees of freedom: above 200 happens once in 10^15 runs */
    assert_true(chi < 200);
}

static void
a_subject_that_asks_too_much_is_told_when_to_come_back(void **state)
{
    struct idem_token_limit *limit = idem_token_limit_open(1, 5);
    int64_t retry_after_ms = 0;
    int allowed = 0;

    (void)state;
    assert_non_null(limit);
    /* One more for every second that this loop takes. */
    while (idem_token_allowed(limit, ANN, 1, &retry_after_ms))
        assert_true(++allowed < 100);
    assert_true(allowed >= 5);
    assert_in_range(retry_after_ms, 1, 1001);
    assert_true(idem_token_allowed(limit, BOB, 5, &retry_after_ms));
    usleep((useconds_t)(retry_after_ms + 20) * 1000);
    assert_true(idem_token_allowed(limit, ANN, 1, &retry_after_ms));
    assert_true(idem_token_allowed(NULL, ANN, 1000000, &retry_after_ms));
    idem_token_limit_close(limit);
}

/* A request for more than the burst becomes a debt; it is not refused
 * forever. */
static void
a_batch_beyond_the_burst_is_had_once_and_paid_for_later(void **state)
{
    struct idem_token_limit *slow = idem_token_limit_open(1, 5);
    struct idem_token_limit *quick = idem_token_limit_open(100, 5);
    int64_t retry_after_ms = 0;

    (void)state;
    assert_true(idem_token_allowed(slow, ANN, 25, &retry_after_ms));
    assert_false(idem_token_allowed(slow, ANN, 1, &retry_after_ms));
    assert_in_range(retry_after_ms, 10000, 21200);
    assert_false(idem_token_allowed(slow, ANN, 25, &retry_after_ms));
    assert_in_range(retry_after_ms, 14000, 25200);
    idem_token_limit_close(slow);

    assert_true(idem_token_allowed(quick, ANN, 25, &retry_after_ms));
    if (!idem_token_allowed(quick, ANN, 25, &retry_after_ms)) {
        usleep((useconds_t)(retry_after_ms + 20) * 1000);
        assert_true(idem_token_allowed(quick, ANN, 25, &retry_after_ms));
    }
    idem_token_limit_close(quick);
}

static void
a_begun_token_gives_a_repeat_the_first_answer(void **state)
{
    struct idem_engine *engine = open_engine();
    char token[IDEM_TOKEN_LEN + 1];
    struct idem_answer answer;
    struct idem_op op = {.verb = IDEM_BEGIN,
                         .type = IDEM_TYPE_TOKEN,
                         .scope = ANN,
                         .id = idem_text(token)};

    (void)state;
    assert_int_equal(idem_token_issue(engine, ANN, 0, token, NULL), IDEM_OK);
    op.id = idem_text(token);
    assert_int_equal(idem_do(engine, &op, &answer, NULL), IDEM_OK);
    assert_int_equal(answer.verdict, IDEM_V_STARTED);
    op.fence = answer.record->fence;
    idem_answer_clear(&answer);

    op.verb = IDEM_FINISH;
    op.outcome = IDEM_STATE_SUCCEEDED;
    op.result = idem_text("done");
    assert_int_equal(idem_do(engine, &op, &answer, NULL), IDEM_OK);
    assert_int_equal(answer.verdict, IDEM_V_OK);
    idem_answer_clear(&answer);

    op.verb = IDEM_BEGIN;
    op.result = (struct idem_bytes){NULL, 0};
    assert_int_equal(idem_do(engine, &op, &answer, NULL), IDEM_OK);
    assert_int_equal(answer.verdict, IDEM_V_REPLAY);
    assert_memory_equal(answer.record->result.data, "done", 4);
    idem_answer_clear(&answer);
    assert_int_equal(redeem(engine, ANN, token), IDEM_V_DUPLICATE);
    idem_close(engine);
}

static void
a_redemption_whose_reply_was_lost_is_known_by_its_nonce(void **state)
{
    char token[IDEM_TOKEN_LEN + 1];
    struct rig rig;

    (void)state;
    rig_open(&rig, FAULTY_LOCAL, NULL);
    turn(rig.engine);
    assert_int_equal(idem_token_issue(rig.engine, ANN, 0, token, NULL),
                     IDEM_OK);
    faulty_plan(rig.store, FAULT_LOST_APPLIED, 0, 6); /* all that it tries */
    assert_int_equal(redeem(rig.engine, ANN, token), IDEM_V_REDEEMED);
    assert_int_equal(redeem(rig.engine, ANN, token), IDEM_V_DUPLICATE);
    rig_close(&rig);
}

static void
a_store_that_fails_issues_and_redeems_nothing(void **state)
{
    char token[IDEM_TOKEN_LEN + 1];
    enum idem_verdict verdict = IDEM_V_BUSY;
    struct idem_error err;
    struct rig rig;

    (void)state;
    rig_open(&rig, FAULTY_LOCAL, NULL);
    turn(rig.engine);
    faulty_plan(rig.store, FAULT_FULL, 0, 1);
    assert_int_equal(idem_token_issue(rig.engine, ANN, 0, token, &err),
                     IDEM_ERR_FULL);
    assert_int_equal(redeem(rig.engine, ANN, token), IDEM_V_UNKNOWN);
    assert_int_equal(idem_token_issue(rig.engine, ANN, 0, token, NULL),
                     IDEM_OK);
    faulty_plan(rig.store, FAULT_FULL, 0, 1);
    assert_int_equal(idem_token_redeem(rig.engine, ANN, token, &verdict, &err),
                     IDEM_ERR_FULL);
    assert_int_equal(verdict, IDEM_V_BUSY); /* not set */
    assert_int_equal(redeem(rig.engine, ANN, token), IDEM_V_REDEEMED);
    rig_close(&rig);
}

static void
who_asks_for_too_many_is_remembered_among_all_others(void **state)
{
    struct idem_token_limit *limit = idem_token_limit_open(0.001, 5);
    int64_t retry_after_ms = 0;

    (void)state;
    assert_non_null(limit);
    for (int i = 0; i < 5; i++)
        assert_true(idem_token_allowed(limit, ANN, 1, &retry_after_ms));
    assert_false(idem_token_allowed(limit, ANN, 1, &retry_after_ms));
    /* More than the table has places for. */
    for (int i = 0; i < 300000; i++) {
        char name[24];

        snprintf(name, sizeof(name), "stranger-%d", i);
        assert_true(
            idem_token_allowed(limit, idem_text(name), 1, &retry_after_ms));
    }
    assert_false(idem_token_allowed(limit, ANN, 1, &retry_after_ms));
    assert_in_range(retry_after_ms, 900000, 1000001);
    idem_token_limit_close(limit);
    assert_true(idem_token_allowed(NULL, ANN, 1000, &retry_after_ms));
    idem_token_limit_close(NULL);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_right_word_every_time),
        cmocka_unit_test(tokens_look_random),
        cmocka_unit_test(
            a_subject_that_asks_too_much_is_told_when_to_come_back),
        cmocka_unit_test(
            a_batch_beyond_the_burst_is_had_once_and_paid_for_later),
        cmocka_unit_test(a_begun_token_gives_a_repeat_the_first_answer),
        cmocka_unit_test(
            a_redemption_whose_reply_was_lost_is_known_by_its_nonce),
        cmocka_unit_test(a_store_that_fails_issues_and_redeems_nothing),
        cmocka_unit_test(who_asks_for_too_many_is_remembered_among_all_others),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
