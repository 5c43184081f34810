/*
 * json_alloc_test.c - lets each allocation fail once while JSON is read. It
 * must never be taken for text that is not JSON, or that lacks the member: then
 * two equal requests would have different keys, and both would run.
 */
#include "../../../tests/support/alloc_countdown.h"
#include "json.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char text[] =
    "{\"b\":{\"c\":[1,{\"d\":\"x\"}]},\"a01\":1,\"a02\":2,\"a03\":3,"
    "\"a04\":4,\"a05\":5,\"a06\":6,\"a07\":7,\"a08\":8,\"a09\":9,"
    "\"a10\":1,\"a11\":2,\"a12\":3,\"a13\":4,\"a14\":5,\"a15\":6,"
    "\"a16\":7,\"a17\":8,\"a18\":9}";

/* Read the member at this path while the n-th allocation fails. */
static enum gateway_field
read_member(const char *path, bool canonical, long n, uint8_t *out, size_t *len)
{
    enum gateway_field got;

    countdown = n;
    failed = false;
    got = (canonical ? gateway_json_canonical : gateway_json_field)(
        idem_text(text), idem_text(path), out, len);
    countdown = 0;
    return got;
}

static void
without_memory_json_stays_json(void **state)
{
    static const char *const paths[] = {"b.c.1.d", "a18", "missing", "b.c.9"};
    uint8_t want[sizeof(text) * 6 + 16], out[sizeof(want)];
    size_t want_len = 0, len = 0;

    (void)state;
    for (size_t i = 0; i < 2 * sizeof(paths) / sizeof(paths[0]); i++) {
        const char *path = paths[i / 2];
        enum gateway_field right = read_member(path, i % 2, 0, want, &want_len);
        long n = 1;

        assert_int_equal(right,
                         i / 2 < 2 ? GATEWAY_FIELD_FOUND : GATEWAY_FIELD_NONE);
        for (;; n++) {
            enum gateway_field got = read_member(path, i % 2, n, out, &len);

            if (!failed)
                break;
            assert_int_equal(got, GATEWAY_FIELD_MEMORY);
        }
        assert_true(n > 4);
        if (right == GATEWAY_FIELD_FOUND) {
            assert_int_equal(len, want_len);
            assert_memory_equal(out, want, len);
        }
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_memory_json_stays_json),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
