/*
 * second_test.c - what a second operator has to agree with: the same operation,
 * by somebody else; and how much may wait.
 */
#include "second.h"

#include "../../record/record.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define PEOPLE 5

static struct credentials *credentials;
static struct principal *people[PEOPLE];
static struct second *second;
static struct idem_error err;

static struct idem_op
settle(uint64_t fence)
{
    return (struct idem_op){.verb = IDEM_SETTLE,
                            .outcome = IDEM_STATE_SUCCEEDED,
                            .kind = IDEM_KIND_RAW,
                            .fence = fence,
                            .scope = idem_text("shop"),
                            .id = idem_text("7"),
                            .subject = idem_text("because"),
                            .result = idem_text("paid")};
}

static bool
asks(int who, const struct idem_op *op, char first[AUDIT_WHO_MAX])
{
    return second_agrees(second, people[who], op, first, &err);
}

static size_t
waiting(void)
{
    json_t *list = second_list(second);
    size_t count = json_array_size(list);

    json_decref(list);
    return count;
}

static void
somebody_else_has_to_ask_for_the_same(void **state)
{
    struct idem_op op = settle(5), other;
    char first[AUDIT_WHO_MAX] = "";

    (void)state;
    assert_false(asks(0, &op, first));
    assert_false(asks(0, &op, first)); /* the same person again */
    assert_non_null(strstr(err.text, "another operator"));
    assert_int_equal(waiting(), 1);
    op.subject = idem_text("another reason");
    assert_true(asks(1, &op, first));
    assert_string_equal(first, "p0");
    assert_int_equal(waiting(), 0);

    op = settle(6);
    assert_false(asks(0, &op, first));
    other = settle(7);
    assert_false(asks(1, &other, first));
    other = settle(6);
    other.result = idem_text("not paid");
    assert_false(asks(2, &other, first));
    other = settle(6);
    other.id = idem_text("8");
    assert_false(asks(3, &other, first));
    other = settle(6);
    other.outcome = IDEM_STATE_FAILED;
    assert_false(asks(4, &other, first));
    assert_int_equal(waiting(), 5);
    assert_true(asks(1, &op, first));
}

static void
so_much_may_wait_and_no_more(void **state)
{
    static const char large[SECOND_RESULT_MAX + 1];
    char first[AUDIT_WHO_MAX];
    struct idem_op op;

    (void)state;
    for (int i = 0; i < SECOND_MAX; i++) {
        op = settle((uint64_t)i + 100);
        assert_false(asks(i / SECOND_EACH, &op, first));
        assert_non_null(strstr(err.text, "another operator"));
    }
    assert_int_equal(waiting(), SECOND_MAX);
    op = settle(1000);
    for (int who = 0; who < PEOPLE; who++) {
        assert_false(asks(who, &op, first));
        assert_int_equal(err.status, IDEM_ERR_OVERLOADED);
    }
    op = settle(100); /* what waits can be agreed with, and makes room */
    assert_true(asks(4, &op, first));
    op = settle(1000);
    assert_false(asks(1, &op, first)); /* has its share */
    assert_int_equal(err.status, IDEM_ERR_OVERLOADED);
    op.result = (struct idem_bytes){large, sizeof(large)};
    assert_false(asks(4, &op, first));
    assert_int_equal(err.status, IDEM_ERR_OVERLOADED);
    op.result.len--;
    assert_false(asks(4, &op, first));
    assert_non_null(strstr(err.text, "another operator"));
    assert_int_equal(waiting(), SECOND_MAX);
}

static void
what_a_changed_credential_proposed_is_forgotten(void **state)
{
    char first[AUDIT_WHO_MAX];
    struct idem_op op = settle(5);

    (void)state;
    assert_false(asks(0, &op, first));
    assert_int_equal(
        credentials_text(credentials, "file",
                         idem_text("p0 new operate\np1 s1 operate"), &err),
        IDEM_OK);
    assert_int_equal(waiting(), 0);
    assert_false(asks(1, &op, first)); /* it is the first one now */
    assert_int_equal(waiting(), 1);
}

static int
open_all(void **state)
{
    char text[PEOPLE * 32] = "";

    (void)state;
    for (int i = 0; i < PEOPLE; i++)
        snprintf(text + strlen(text), 32, "p%d s%d operate\n", i, i);
    if (credentials_open(NULL, &credentials, &err) != IDEM_OK ||
        credentials_text(credentials, "file", idem_text(text), &err) != IDEM_OK)
        return -1;
    for (int i = 0; i < PEOPLE; i++) {
        char name[8], secret[8];

        snprintf(name, sizeof(name), "p%d", i);
        snprintf(secret, sizeof(secret), "s%d", i);
        people[i] =
            credentials_login(credentials, idem_text(name), idem_text(secret));
    }
    second = second_open();
    return people[PEOPLE - 1] && second ? 0 : -1;
}

static int
close_all(void **state)
{
    (void)state;
    second_close(second);
    for (int i = 0; i < PEOPLE; i++)
        principal_put(people[i]);
    credentials_close(credentials);
    return 0;
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(somebody_else_has_to_ask_for_the_same,
                                        open_all, close_all),
        cmocka_unit_test_setup_teardown(so_much_may_wait_and_no_more, open_all,
                                        close_all),
        cmocka_unit_test_setup_teardown(
            what_a_changed_credential_proposed_is_forgotten, open_all,
            close_all),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
