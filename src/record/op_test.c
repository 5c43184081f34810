/*
 * op_test.c - tests which operations are valid, and that every error message
 * says what is wrong and what to do.
 */
#include "record.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define NAME idem_text("name")
#define LONG(n)                                                                \
    (struct idem_bytes)                                                        \
    {                                                                          \
        long_name, n                                                           \
    }

static char long_name[300];
static const uint8_t zero_nonce[IDEM_NONCE_LEN];

static struct idem_op
valid(enum idem_verb verb)
{
    return (struct idem_op){.verb = verb,
                            .scope = NAME,
                            .id = NAME,
                            .fence = 1,
                            .outcome = IDEM_STATE_FAILED,
                            .subject = NAME};
}

/* The op is refused, and the message contains both words. */
static void
refused(struct idem_op op, const char *what, const char *advice)
{
    struct idem_error err = {0};
    enum idem_status status = idem__op_check(&op, &err);

    if (status != IDEM_ERR_INVALID)
        fail_msg("%s: not refused", what);
    if (!strstr(err.text, what) || !strstr(err.text, advice))
        fail_msg("\"%s\" does not say \"%s\" and \"%s\"", err.text, what,
                 advice);
    assert_int_equal(err.status, IDEM_ERR_INVALID);
    assert_int_equal(idem__op_check(&op, NULL), IDEM_ERR_INVALID);
}

static void
every_verb_is_fine_with_the_least(void **state)
{
    (void)state;
    for (int verb = 0; verb < IDEM__VERB_COUNT; verb++) {
        struct idem_op op = valid((enum idem_verb)verb);

        assert_int_equal(idem__op_check(&op, NULL), IDEM_OK);
        assert_int_equal(op.lease_ms, IDEM_LEASE_DEFAULT_MS);
        assert_true(op.type != 0);
    }
}

static void
defaults_are_filled_in(void **state)
{
    struct idem_op op = valid(IDEM_BEGIN);

    (void)state;
    assert_int_equal(idem__op_check(&op, NULL), IDEM_OK);
    assert_int_equal(op.type, IDEM_TYPE_REQUEST);
    assert_int_equal(op.ttl_ms, IDEM_TTL_DEFAULT_MS);
    assert_int_equal(op.mode, IDEM_STRICT);
    assert_int_equal(op.wait_ms, 0);
    op = valid(IDEM_ISSUE);
    assert_int_equal(idem__op_check(&op, NULL), IDEM_OK);
    assert_int_equal(op.type, IDEM_TYPE_TOKEN);
    assert_int_equal(op.ttl_ms, IDEM_TOKEN_TTL_DEFAULT_MS);
    op = valid(IDEM_LOCK);
    assert_int_equal(idem__op_check(&op, NULL), IDEM_OK);
    assert_int_equal(op.type, IDEM_TYPE_LOCK);
    op = valid(IDEM_FINISH); /* keeps the TTL of BEGIN */
    assert_int_equal(idem__op_check(&op, NULL), IDEM_OK);
    assert_int_equal(op.ttl_ms, 0);
}

static void
empty_long_and_nul_names_are_refused(void **state)
{
    struct idem_op op;

    (void)state;
    for (int verb = 0; verb < IDEM__VERB_COUNT; verb++) {
        op = valid((enum idem_verb)verb);
        op.scope.len = 0;
        refused(op, "the scope is empty", "1 to 200");
        op.scope = LONG(IDEM_SCOPE_MAX + 1);
        refused(op, "the scope has 201 bytes", "hash it or shorten it");
        op.scope = (struct idem_bytes){"a\0b", 3};
        refused(op, "the scope contains a NUL", "any other byte is fine");
        op = valid((enum idem_verb)verb);
        op.id.len = 0;
        refused(op, "the id (key) is empty", "1 to 255");
        op.id = LONG(IDEM_ID_MAX + 1);
        refused(op, "the id (key) has 256 bytes", "hash it or shorten it");
        op.id = (struct idem_bytes){"\0", 1};
        refused(op, "the id (key) contains a NUL", "any other byte is fine");
    }
    op = valid(IDEM_LOCK);
    op.subject.len = 0;
    refused(op, "the owner is empty", "1 to 255");
    op = valid(IDEM_BEGIN);
    op.subject = LONG(IDEM_SUBJECT_MAX + 1);
    refused(op, "the subject has 256 bytes", "shorten");

    op = valid(IDEM_BEGIN); /* the limits themselves are valid */
    op.scope = LONG(IDEM_SCOPE_MAX);
    op.id = LONG(IDEM_ID_MAX);
    assert_int_equal(idem__op_check(&op, NULL), IDEM_OK);
    op.scope = (struct idem_bytes){"\x01\xff\n", 3};
    assert_int_equal(idem__op_check(&op, NULL), IDEM_OK);
}

static void
absurd_times_are_refused(void **state)
{
    struct idem_op op = valid(IDEM_BEGIN);

    (void)state;
    op.lease_ms = -1;
    refused(op, "a lease of -1 ms", "1 to 604800000");
    op.lease_ms = IDEM_LEASE_MAX_MS + 1;
    refused(op, "a lease of 604800001 ms", "out of range");
    op.lease_ms = INT64_MAX;
    refused(op, "a lease of 9223372036854775807 ms", "out of range");
    op.lease_ms = IDEM_LEASE_MAX_MS;
    op.ttl_ms = INT64_MIN;
    refused(op, "a TTL of -9223372036854775808 ms", "out of range");
    op.ttl_ms = IDEM_TTL_MAX_MS + 1;
    refused(op, "a TTL of", "out of range");
    op.ttl_ms = IDEM_TTL_MAX_MS;
    op.wait_ms = IDEM_WAIT_MAX_MS + 1;
    refused(op, "a wait of 3600001 ms", "out of range");
    op.wait_ms = IDEM_WAIT_MAX_MS;
    assert_int_equal(idem__op_check(&op, NULL), IDEM_OK);
}

static void
fences_outcomes_and_results_are_checked(void **state)
{
    static const enum idem_verb fenced[] = {IDEM_FINISH, IDEM_RELEASE,
                                            IDEM_RENEW, IDEM_UNLOCK};
    struct idem_op op;

    (void)state;
    for (size_t i = 0; i < 4; i++) {
        op = valid(fenced[i]);
        op.fence = 0;
        refused(op, "needs the fence", "1 to 2^53 - 1");
        op.fence = IDEM_FENCE_MAX + 1;
        refused(op, "needs the fence", "1 to 2^53 - 1");
    }
    op = valid(IDEM_FORGET); /* may name a fence, and then a possible one */
    op.fence = IDEM_FENCE_MAX + 1;
    refused(op, "a fence is a number", "1 to 2^53 - 1");
    op = valid(IDEM_FINISH);
    op.outcome = 0;
    refused(op, "finish needs an outcome", "succeeded or failed");
    op.outcome = IDEM_STATE_EXECUTING;
    refused(op, "finish needs an outcome", "succeeded or failed");
    op = valid(IDEM_SETTLE);
    op.outcome = IDEM_STATE_FREE;
    refused(op, "settle takes the outcome", "or none");
    op = valid(IDEM_FINISH);
    op.result = (struct idem_bytes){long_name, IDEM_RESULT_MAX + (size_t)1};
    refused(op, "over the limit", "keep a pointer");
    op = valid(IDEM_BEGIN);
    op.nonce = zero_nonce;
    refused(op, "nonce of zeros", "random");
}

static void
numbers_that_are_no_verb_type_mode_or_kind_are_refused(void **state)
{
    struct idem_op op = valid(IDEM_BEGIN);

    (void)state;
    op.verb = (enum idem_verb)IDEM__VERB_COUNT;
    refused(op, "no verb number", "11");
    op = valid(IDEM_BEGIN);
    op.type = (enum idem_type)5;
    refused(op, "no record type", "5");
    op.type = (enum idem_type)UINT32_MAX;
    refused(op, "no record type", "4294967295");
    op = valid(IDEM_BEGIN);
    op.mode = (enum idem_mode)2;
    refused(op, "strict or loose", "2");
    op = valid(IDEM_FINISH);
    op.kind = (enum idem_kind)3;
    refused(op, "raw, http or exec", "3");
}

/* The note of a lock must never become an outcome, nor the other way round. */
static void
verbs_that_do_not_fit_the_type_are_refused(void **state)
{
    static const enum idem_verb outcome_verbs[] = {IDEM_BEGIN, IDEM_FINISH,
                                                   IDEM_SETTLE};
    struct idem_op op;

    (void)state;
    for (size_t i = 0; i < 3; i++) {
        op = valid(outcome_verbs[i]);
        op.type = IDEM_TYPE_WORKER;
        refused(op, "does not work on", "worker");
        op.type = IDEM_TYPE_LOCK;
        refused(op, "does not work on", "lock");
        op.type = IDEM_TYPE_TOKEN;
        assert_int_equal(idem__op_check(&op, NULL), IDEM_OK);
    }
    op = valid(IDEM_LOCK);
    op.type = IDEM_TYPE_REQUEST;
    refused(op, "lock does not work", "request");
    op = valid(IDEM_ISSUE);
    op.type = IDEM_TYPE_LOCK;
    refused(op, "issue does not work", "lock");
    op = valid(IDEM_LOCK);
    op.type = IDEM_TYPE_WORKER;
    assert_int_equal(idem__op_check(&op, NULL), IDEM_OK);
}

static void
every_name_reads_back_in_any_case(void **state)
{
    enum idem_state st;
    enum idem_verb verb;
    enum idem_kind kind;
    enum idem_mode mode;
    enum idem_type type;
    enum idem_verdict verdict;
    enum idem_status status;

    (void)state;
    for (int i = 0; i < IDEM__VERDICT_COUNT; i++) {
        assert_true(
            idem__verdict_parse(idem_text(idem_verdict_name(i)), &verdict));
        assert_int_equal(verdict, i);
    }
    for (int i = 0; i < IDEM__STATUS_COUNT; i++) {
        assert_true(
            idem__status_parse(idem_text(idem_status_name(i)), &status));
        assert_int_equal(status, i);
    }
    for (int i = 0; i < IDEM__VERB_COUNT; i++) {
        assert_true(idem__verb_parse(idem_text(idem_verb_name(i)), &verb));
        assert_int_equal(verb, i);
    }
    for (int i = 0; i <= IDEM_STATE_FREE; i++) {
        assert_true(idem__state_parse(idem_text(idem_state_name(i)), &st));
        assert_int_equal(st, i);
    }
    for (int i = 1; i <= IDEM_TYPE_WORKER; i++) {
        assert_true(idem__type_parse(idem_text(idem_type_name(i)), &type));
        assert_int_equal(type, i);
    }
    assert_true(idem__kind_parse(idem_text("HTTP"), &kind));
    assert_int_equal(kind, IDEM_KIND_HTTP);
    assert_true(idem__mode_parse(idem_text("Loose"), &mode));
    assert_int_equal(mode, IDEM_LOOSE);
    assert_false(idem__verb_parse(idem_text("beginn"), &verb));
    assert_false(idem__verb_parse(idem_text(""), &verb));
    assert_false(idem__type_parse(idem_text("?"), &type));
    assert_false(idem__state_parse(idem_text("done"), &st));
    assert_false(idem__kind_parse(idem_text("json"), &kind));
    assert_false(idem__mode_parse(idem_text("lax"), &mode));
    assert_false(idem__verdict_parse(idem_text("started!"), &verdict));
    assert_false(idem__status_parse(idem_text("okay"), &status));
    assert_string_equal(idem_type_name(0), "?");
    assert_string_equal(idem_verdict_name(99), "?");
    assert_string_equal(idem_status_text(IDEM_OK), "success");
    assert_int_equal(idem_text(NULL).len, 0);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_verb_is_fine_with_the_least),
        cmocka_unit_test(defaults_are_filled_in),
        cmocka_unit_test(empty_long_and_nul_names_are_refused),
        cmocka_unit_test(absurd_times_are_refused),
        cmocka_unit_test(fences_outcomes_and_results_are_checked),
        cmocka_unit_test(
            numbers_that_are_no_verb_type_mode_or_kind_are_refused),
        cmocka_unit_test(verbs_that_do_not_fit_the_type_are_refused),
        cmocka_unit_test(every_name_reads_back_in_any_case),
    };

    memset(long_name, 'n', sizeof(long_name));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
