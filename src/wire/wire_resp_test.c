/*
 * wire_resp_test.c - tests the parser of requests with input cut at every
 * place, and numbers.
 */
#include "wire.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static enum idem__wire_got
parse(const char *text, size_t len, struct idem__wire_request *command,
      size_t *used, struct idem_error *error)
{
    return idem__wire_request((struct idem_bytes){text, len}, 1000, command,
                              used, error);
}

static bool
arg_is(const struct idem__wire_request *command, size_t i, const char *text)
{
    return i < command->count &&
           idem__bytes_equal(command->args[i], idem_text(text));
}

static void
a_command_is_found_at_every_cut(void **state)
{
    static const char text[] = "*3\r\n$5\r\nBEGIN\r\n$4\r\nshop\r\n$2\r\n\r\n"
                               "\r\n*1\r\n$4\r\nPING\r\n";
    size_t first = strlen(text) - strlen("*1\r\n$4\r\nPING\r\n");
    struct idem__wire_request command;
    struct idem_error error;
    size_t used;

    (void)state;
    for (size_t len = 0; len < first; len++) {
        /* A copy of exactly this length, so that the sanitizer detects a read
         * beyond it. */
        char *copy = malloc(len + 1);

        memcpy(copy, text, len);
        assert_int_equal(idem__wire_request((struct idem_bytes){copy, len},
                                            1000, &command, &used, &error),
                         IDEM__WIRE_MORE);
        assert_true(used > len && used <= first);
        free(copy);
    }
    assert_int_equal(parse(text, sizeof(text) - 1, &command, &used, &error),
                     IDEM__WIRE_DONE);
    assert_int_equal(used, first);
    assert_int_equal(command.count, 3);
    assert_true(arg_is(&command, 0, "BEGIN") && arg_is(&command, 1, "shop") &&
                arg_is(&command, 2, "\r\n"));
}

static void
inline_commands_are_words(void **state)
{
    static const char text[] = " BEGIN\tshop  \"order 7\" \"\" x\r\nPING\n";
    struct idem__wire_request command;
    struct idem_error error;
    size_t used;

    (void)state;
    assert_int_equal(parse(text, sizeof(text) - 1, &command, &used, &error),
                     IDEM__WIRE_DONE);
    assert_int_equal(command.count, 5);
    assert_true(arg_is(&command, 0, "BEGIN") && arg_is(&command, 1, "shop") &&
                arg_is(&command, 2, "order 7") && arg_is(&command, 3, "") &&
                arg_is(&command, 4, "x"));
    assert_int_equal(used, sizeof(text) - 1 - strlen("PING\n"));
}

static void
a_long_bulk_is_refused_by_its_length_alone(void **state)
{
    struct idem__wire_request command;
    struct idem_error error;
    size_t used;

    (void)state;
    assert_int_equal(parse("*1\r\n$980\r\n", 10, &command, &used, &error),
                     IDEM__WIRE_MORE);
    assert_int_equal(used, 10 + 980 + 2);
    assert_int_equal(parse("*1\r\n$990\r\n", 10, &command, &used, &error),
                     IDEM__WIRE_BAD);
    assert_non_null(strstr(error.text, "limit"));
}

static void
what_is_wrong_is_named(void **state)
{
    static const char *const cases[][2] = {
        {"*1\r\n:1\r\n", "expected '$', got ':'"},
        {"*1\r\n\x01", "expected '$', got ' '"},
        {"*1\r\n$-1\r\n", "invalid bulk length"},
        {"*1\r\n$-7\r\n", "invalid bulk length"},
        {"*1\r\n$x\r\n", "invalid bulk length"},
        {"*1\r\n$9999999999999999999\r\n", "invalid bulk length"},
        {"*1\r\n$999999999999999999\r\n", "longer than the limit"},
        {"*1\r\n$2\r\nabcd", "does not end in CRLF"},
        {"*x\r\n", "invalid multibulk length"},
        {"*99999999\r\n", "invalid multibulk length"},
        {"*65\r\n", "more than 64 arguments"},
        {"a \"b\n", "unbalanced quotes"},
        {"a \"b\"c\n", "unbalanced quotes"},
        {"1 2 3 4 5 6 7 8 9 1 2 3 4 5 6 7 8 9 1 2 3 4 5 6 7 8 9 1 2 3 4 5 6 7 "
         "8 "
         "9 1 2 3 4 5 6 7 8 9 1 2 3 4 5 6 7 8 9 1 2 3 4 5 6 7 8 9 1 2 3\n",
         "more than 64 arguments"},
        {"GET / HTTP/1.1\r\n", "this is HTTP"},
    };
    struct idem__wire_request command;
    struct idem_error error;
    size_t used;

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        assert_int_equal(
            parse(cases[i][0], strlen(cases[i][0]), &command, &used, &error),
            IDEM__WIRE_BAD);
        if (!strstr(error.text, cases[i][1]))
            fail_msg("%s: %s", cases[i][1], error.text);
    }
    assert_int_equal(parse("*-1\r\n", 5, &command, &used, &error),
                     IDEM__WIRE_DONE);
    assert_true(command.count == 0 && used == 5);
}

static void
writes_as_printf(int64_t number)
{
    char digits[IDEM__WIRE_DIGITS_MAX + 1], expected[24];

    snprintf(expected, sizeof(expected), "%lld", (long long)number);
    digits[idem__wire_digits(number, digits)] = '\0';
    assert_string_equal(digits, expected);
}

static void
numbers_are_whole_and_bounded(void **state)
{
    static const char *const wrong[] = {
        "", "-", "+1", " 1", "1 ", "1.0", "0x1", "9999999999999999999", "--1"};
    int64_t number;
    char digits[IDEM__WIRE_DIGITS_MAX + 1];

    (void)state;
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
        assert_false(idem__wire_number(idem_text(wrong[i]), &number));
    assert_true(idem__wire_number(idem_text("-120"), &number));
    assert_int_equal(number, -120);
    digits[idem__wire_digits(INT64_MIN, digits)] = '\0';
    assert_string_equal(digits, "-9223372036854775808");
    digits[idem__wire_digits(0, digits)] = '\0';
    assert_string_equal(digits, "0");
    for (int64_t n = 1, i = 0; i < 18; n = n * 10 + i % 10, i++) {
        writes_as_printf(n);
        writes_as_printf(-n - 1);
    }
    for (int64_t power = 1;; power *= 10) {
        writes_as_printf(power - 1);
        writes_as_printf(power);
        writes_as_printf(-power);
        if (power > INT64_MAX / 10)
            break;
    }
    writes_as_printf(INT64_MAX);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_command_is_found_at_every_cut),
        cmocka_unit_test(inline_commands_are_words),
        cmocka_unit_test(a_long_bulk_is_refused_by_its_length_alone),
        cmocka_unit_test(what_is_wrong_is_named),
        cmocka_unit_test(numbers_are_whole_and_bounded),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
