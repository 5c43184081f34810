/*
 * resp_test.c - the RESP parser at every cut, the writer, the commands.
 */
#include "../core/rights.h"
#include "answer.h"
#include "command.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static enum resp_result
parse(const char *text, size_t len, struct resp_command *command, size_t *used,
      const char **error)
{
    return resp_parse((struct idem_bytes){text, len}, 1000, command, used,
                      error);
}

static bool
arg_is(const struct resp_command *command, size_t i, const char *text)
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
    struct resp_command command;
    const char *error;
    size_t used;

    (void)state;
    for (size_t len = 0; len < first; len++) {
        /* A copy of exactly this length: the sanitizer sees a read beyond. */
        char *copy = malloc(len + 1);

        memcpy(copy, text, len);
        assert_int_equal(resp_parse((struct idem_bytes){copy, len}, 1000,
                                    &command, &used, &error),
                         RESP_MORE);
        assert_true(used > len && used <= first);
        free(copy);
    }
    assert_int_equal(parse(text, sizeof(text) - 1, &command, &used, &error),
                     RESP_COMMAND);
    assert_int_equal(used, first);
    assert_int_equal(command.count, 3);
    assert_true(arg_is(&command, 0, "BEGIN") && arg_is(&command, 1, "shop") &&
                arg_is(&command, 2, "\r\n"));
}

static void
inline_commands_are_words(void **state)
{
    static const char text[] = " BEGIN\tshop  \"order 7\" \"\" x\r\nPING\n";
    struct resp_command command;
    const char *error;
    size_t used;

    (void)state;
    assert_int_equal(parse(text, sizeof(text) - 1, &command, &used, &error),
                     RESP_COMMAND);
    assert_int_equal(command.count, 5);
    assert_true(arg_is(&command, 0, "BEGIN") && arg_is(&command, 1, "shop") &&
                arg_is(&command, 2, "order 7") && arg_is(&command, 3, "") &&
                arg_is(&command, 4, "x"));
    assert_int_equal(used, sizeof(text) - 1 - strlen("PING\n"));
}

static void
a_long_bulk_is_refused_by_its_length_alone(void **state)
{
    struct resp_command command;
    const char *error;
    size_t used;

    (void)state;
    assert_int_equal(parse("*1\r\n$980\r\n", 10, &command, &used, &error),
                     RESP_MORE);
    assert_int_equal(used, 10 + 980 + 2);
    assert_int_equal(parse("*1\r\n$990\r\n", 10, &command, &used, &error),
                     RESP_WRONG);
    assert_non_null(strstr(error, "limit"));
}

static void
numbers_are_whole_and_bounded(void **state)
{
    static const char *const wrong[] = {
        "", "-", "+1", " 1", "1 ", "1.0", "0x1", "9999999999999999999", "--1"};
    int64_t number;
    char digits[RESP_DIGITS_MAX + 1];

    (void)state;
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
        assert_false(resp_read_number(idem_text(wrong[i]), &number));
    assert_true(resp_read_number(idem_text("-120"), &number));
    assert_int_equal(number, -120);
    digits[resp_digits(INT64_MIN, digits)] = '\0';
    assert_string_equal(digits, "-9223372036854775808");
    digits[resp_digits(0, digits)] = '\0';
    assert_string_equal(digits, "0");
    for (int64_t n = 1, i = 0; i < 18; n = n * 10 + i % 10, i++) {
        char expected[24];

        snprintf(expected, sizeof(expected), "%lld", (long long)n);
        digits[resp_digits(n, digits)] = '\0';
        assert_string_equal(digits, expected);
        snprintf(expected, sizeof(expected), "%lld", (long long)-n - 1);
        digits[resp_digits(-n - 1, digits)] = '\0';
        assert_string_equal(digits, expected);
    }
}

static void
replies_stop_at_their_cap(void **state)
{
    struct resp_out out = {.buf = {NULL, 0, 0, 40}};

    (void)state;
    resp_add_text(&out, "twelve bytes");
    assert_false(out.failed);
    resp_add_text(&out, "and another twenty-eight of them");
    assert_true(out.failed);
    resp_add_null(&out);
    assert_true(out.buf.len <= 40);
    idem_buf_clear(&out.buf);
}

static void
an_error_is_one_line_whatever_its_text(void **state)
{
    struct resp_out out = {.buf = {NULL, 0, 0, 1000}};

    (void)state;
    resp_add_error(&out, "ERR", "a\r\nb\x01");
    assert_memory_equal(out.buf.data, "-ERR a??b?\r\n", out.buf.len);
    idem_buf_clear(&out.buf);
}

/* ---- commands -------------------------------------------------------- */

static enum idem_status
command(const char *line, struct command *into, struct idem_error *err)
{
    static char text[512];
    struct resp_command in;
    const char *error;
    size_t used;

    snprintf(text, sizeof(text), "%s\n", line);
    assert_int_equal(resp_parse(idem_text(text), 512, &in, &used, &error),
                     RESP_COMMAND);
    return command_parse(&in, into, err);
}

static void
begin_takes_its_options_in_any_order(void **state)
{
    struct command c;
    struct idem_error err;

    (void)state;
    assert_int_equal(command("begin shop 7 wait 5 loose nonce 0102030405060708 "
                             "TTL 9 token LEASE 4 subject me TAG 3",
                             &c, &err),
                     IDEM_OK);
    assert_int_equal(c.wire.op.verb, IDEM_BEGIN);
    assert_int_equal(c.wire.op.type, IDEM_TYPE_TOKEN);
    assert_int_equal(c.wire.op.mode, IDEM_LOOSE);
    assert_int_equal(c.wire.op.wait_ms, 5);
    assert_int_equal(c.wire.op.ttl_ms, 9);
    assert_int_equal(c.wire.op.lease_ms, 4);
    assert_memory_equal(c.wire.op.nonce, "\1\2\3\4\5\6\7\10", 8);
    assert_true(idem__bytes_is(c.wire.op.subject, "me"));
    assert_true(c.wire.tagged);
    assert_int_equal(c.wire.tag, 3);
}

static void
a_tag_stands_behind_the_places_only(void **state)
{
    struct command c;
    struct idem_error err;

    (void)state;
    assert_int_equal(command("GET TAG 5", &c, &err), IDEM_OK);
    assert_false(c.wire.tagged);
    assert_true(idem__bytes_is(c.wire.op.scope, "TAG"));
    assert_int_equal(command("AUTH TAG 5", &c, &err), IDEM_OK);
    assert_false(c.wire.tagged);
    assert_int_equal(c.word_count, 2);
    assert_int_equal(command("PING TAG 5", &c, &err), IDEM_OK);
    assert_true(c.wire.tagged && c.wire.tag == 5 && c.word_count == 0);
}

static void
settle_as_needs_the_right_to_operate(void **state)
{
    struct command c;
    struct idem_error err;

    (void)state;
    assert_int_equal(command("SETTLE s i REASON because", &c, &err), IDEM_OK);
    assert_false(server_op_operates(&c.wire.op));
    assert_true(idem__bytes_is(c.wire.op.result, "because"));
    assert_int_equal(
        command("SETTLE s i REASON because AS FAILED text", &c, &err), IDEM_OK);
    assert_true(server_op_operates(&c.wire.op));
    assert_true(idem__bytes_is(c.wire.op.result, "text"));
    assert_true(idem__bytes_is(c.wire.op.subject, "because"));
    assert_int_equal(command("FORGET s i", &c, &err), IDEM_OK);
    assert_true(server_op_operates(&c.wire.op));
}

static void
every_listed_name_is_a_command(void **state)
{
    const char *const *names;
    size_t count = command_names(&names);
    struct command c;
    struct idem_error err;

    (void)state;
    for (size_t i = 0; i < count; i++) {
        if (command(names[i], &c, &err) != IDEM_OK)
            assert_null(strstr(err.text, "unknown command"));
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_command_is_found_at_every_cut),
        cmocka_unit_test(inline_commands_are_words),
        cmocka_unit_test(a_long_bulk_is_refused_by_its_length_alone),
        cmocka_unit_test(numbers_are_whole_and_bounded),
        cmocka_unit_test(replies_stop_at_their_cap),
        cmocka_unit_test(an_error_is_one_line_whatever_its_text),
        cmocka_unit_test(begin_takes_its_options_in_any_order),
        cmocka_unit_test(a_tag_stands_behind_the_places_only),
        cmocka_unit_test(settle_as_needs_the_right_to_operate),
        cmocka_unit_test(every_listed_name_is_a_command),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
