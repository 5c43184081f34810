/*
 * identity_alloc_test.c - lets each allocation fail once while the identity of
 * a message is read. No message gets the identity of another one, and none is
 * said to have no identity.
 */
#include "../../tests/support/failing_alloc.h"
#include "../base/json_memory.h"
#include "consume.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#define LEAST 8 /* allocations of a body */

static bool counting;
static size_t allocations, fail_at;

static bool
alloc_fails(size_t calloc_len)
{
    (void)calloc_len;
    return counting && ++allocations == fail_at;
}

static void
a_field_of_the_body_is_read_completely_or_not_at_all(void **state)
{
    static const char body[] =
        "{\"order\":{\"number\":\"2026-11-19-0000000000000000000047-11\"},"
        "\"item\":\"a pen of another colour than the last one\"}";
    struct delivery d = {.body = {body, sizeof(body) - 1}};
    struct identity identity;
    char id[IDEM_ID_MAX + 1];
    struct idem_error err = {0};
    bool found = false;
    size_t len;

    (void)state;
    assert_int_equal(idem__identity_parse("json:order.number", &identity, &err),
                     IDEM_OK);
    for (fail_at = 1; !found || allocations >= fail_at; fail_at++) {
        allocations = 0;
        err = (struct idem_error){0};
        counting = true;
        found = idem__identity_of(&identity, &d, id, &len, &err);
        counting = false;
        if (found)
            assert_string_equal(id, "2026-11-19-0000000000000000000047-11");
        else
            assert_int_equal(err.status, IDEM_ERR_MEMORY);
    }
    assert_true(fail_at > LEAST);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_field_of_the_body_is_read_completely_or_not_at_all),
    };

    idem__json_watch();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
