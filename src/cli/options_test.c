/*
 * options_test.c - parse a command line, times, sizes and hex digits; and print
 * bytes to a terminal.
 */
#include "cli.h"

#include "../base/hex.h"
#include "../base/units.h"
#include "../record/record.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

struct values {
    bool flag;
    const char *text;
    int64_t number, ms, size;
    struct cli_list list;
};

static char **left;
static size_t left_count;

/* Parse a line of words, which must be writable. */
static int
parse(struct values *v, const char *line, bool stop_at_first)
{
    static char copy[1000];
    static char *argv[64];
    const struct cli_option options[] = {
        {"flag", 'f', CLI_FLAG, &v->flag, NULL, "a flag"},
        {"text", 't', CLI_TEXT, &v->text, "TEXT", "a text"},
        {"number", 0, CLI_NUMBER, &v->number, "N", "a number"},
        {"ms", 0, CLI_MS, &v->ms, "TIME", "a time"},
        {"size", 0, CLI_SIZE, &v->size, "SIZE", "a size"},
        {"list", 'l', CLI_LIST, &v->list, "ITEM", "many"},
        {0},
    };
    const struct cli_syntax syntax = {.usage = "test",
                                      .about = "A test.",
                                      .options = options,
                                      .min_args = stop_at_first ? 1 : 0,
                                      .max_args = 50,
                                      .stop_at = stop_at_first ? 1 : 0};
    char *rest;
    int argc = 0;

    memset(v, 0, sizeof(*v));
    snprintf(copy, sizeof(copy), "%s", line);
    argv[argc++] = (char *)"test";
    for (char *word = strtok_r(copy, " ", &rest); word;
         word = strtok_r(NULL, " ", &rest))
        argv[argc++] = word;
    argv[argc] = NULL;
    return cli_parse(&syntax, argc, argv, &left, &left_count);
}

static void
options_stand_anywhere_and_the_rest_stays_in_order(void **state)
{
    struct values v;

    (void)state;
    assert_int_equal(parse(&v, "a --flag b -t x --ms=2s c --json", false), -1);
    assert_true(v.flag && cli_json);
    assert_string_equal(v.text, "x");
    assert_int_equal(v.ms, 2000);
    assert_int_equal(left_count, 3);
    assert_string_equal(left[0], "a");
    assert_string_equal(left[1], "b");
    assert_string_equal(left[2], "c");
    cli_json = false;

    assert_int_equal(parse(&v, "-l 1 --list 2 -- -l --flag - x", false), -1);
    assert_int_equal(v.list.count, 2);
    assert_false(v.flag);
    assert_int_equal(left_count, 4);
    assert_string_equal(left[0], "-l");
    assert_string_equal(left[2], "-");

    assert_int_equal(parse(&v, "--flag key -t mine --flag", true), -1);
    assert_null(v.text); /* it belongs to the command after the key */
    assert_int_equal(left_count, 4);
    assert_int_equal(parse(&v, "-", false),
                     -1); /* an argument, not an option */
    assert_int_equal(left_count, 1);
}

static void
wrong_lines_are_usage_errors(void **state)
{
    static const char *const lines[] = {
        "--nope",     "-x",          "-ft",       "--flag=1", "--text",
        "--number x", "--number -1", "--number=", "--ms 1y",  "--size 1.5m",
        "--fla",      "--ms",        "---flag",   "--=x",
    };
    struct values v;

    (void)state;
    for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++) {
        if (parse(&v, lines[i], false) != CLI_USAGE)
            fail_msg("\"%s\" was taken", lines[i]);
    }
    assert_int_equal(parse(&v, "--flag", true), CLI_USAGE); /* too few */
}

static void
too_many_of_a_list_are_refused(void **state)
{
    char *argv[2 * CLI_LIST_MAX + 4] = {(char *)"test"};
    struct cli_list list = {.count = 0};
    const struct cli_option options[] = {
        {"list", 'l', CLI_LIST, &list, "ITEM", "many"}, {0}};
    const struct cli_syntax syntax = {
        .usage = "test", .about = "", .options = options};
    int argc = 1;

    (void)state;
    for (int i = 0; i < CLI_LIST_MAX; i++) {
        argv[argc++] = (char *)"-l";
        argv[argc++] = (char *)"x";
    }
    assert_int_equal(cli_parse(&syntax, argc, argv, &left, &left_count), -1);
    assert_int_equal(list.count, CLI_LIST_MAX);
    assert_int_equal(cli_parse(&syntax, 3, argv, &left, &left_count),
                     CLI_USAGE);
    assert_int_equal(list.count, CLI_LIST_MAX);
}

static void
times_and_sizes_have_units(void **state)
{
    int64_t n;

    (void)state;
    assert_true(idem__units_parse(IDEM__UNIT_TIME, "0", &n) && n == 0);
    assert_false(idem__units_parse(IDEM__UNIT_TIME, "1500",
                                   &n)); /* the unit is missing */
    assert_true(idem__units_parse(IDEM__UNIT_TIME, "1500ms", &n) && n == 1500);
    assert_true(idem__units_parse(IDEM__UNIT_TIME, "30s", &n) && n == 30000);
    assert_true(idem__units_parse(IDEM__UNIT_TIME, "5M", &n) && n == 300000);
    assert_true(idem__units_parse(IDEM__UNIT_TIME, "24h", &n) && n == 86400000);
    assert_true(idem__units_parse(IDEM__UNIT_TIME, "7d", &n) && n == 604800000);
    assert_true(idem__units_parse(IDEM__UNIT_SIZE, "64k", &n) && n == 65536);
    assert_true(idem__units_parse(IDEM__UNIT_SIZE, "2g", &n) &&
                n == INT64_C(2147483648));
    assert_false(idem__units_parse(IDEM__UNIT_TIME, "", &n));
    assert_false(idem__units_parse(IDEM__UNIT_TIME, " 5s", &n));
    assert_false(idem__units_parse(IDEM__UNIT_TIME, "5 s", &n));
    assert_false(idem__units_parse(IDEM__UNIT_TIME, "+5s", &n));
    assert_false(idem__units_parse(IDEM__UNIT_TIME, "-5s", &n));
    assert_false(idem__units_parse(IDEM__UNIT_TIME, "5sec", &n));
    assert_false(idem__units_parse(IDEM__UNIT_TIME, "0x10", &n));
    assert_false(idem__units_parse(IDEM__UNIT_TIME, "9223372036854775808", &n));
    assert_false(
        idem__units_parse(IDEM__UNIT_TIME, "9223372036854775807d", &n));
    assert_false(idem__units_parse(IDEM__UNIT_SIZE, "9999999999999g", &n));
}

static void
hex_is_exactly_as_long_as_asked(void **state)
{
    uint8_t out[4] = {0};

    (void)state;
    assert_true(idem__hex_read("00ffAb10", 8, out, 4));
    assert_memory_equal(out, "\x00\xff\xab\x10", 4);
    assert_false(idem__hex_read("00ffAb1", 7, out, 4));
    assert_false(idem__hex_read("00ffAb1012", 10, out, 4));
    assert_false(idem__hex_read("00ffAbg0", 8, out, 4));
}

static const char *
printed(const char *bytes, size_t len)
{
    static char out[4096];
    FILE *file = fmemopen(out, sizeof(out), "w");

    assert_non_null(file);
    cli_print_safe(file, (struct idem_bytes){bytes, len});
    fclose(file);
    return out;
}

static void
only_harmless_text_reaches_a_terminal(void **state)
{
    (void)state;
    assert_string_equal(printed("plain text", 10), "plain text");
    assert_string_equal(printed("\xe4\xbd\xa0\xc3\xbc\xf0\x9f\x98\x80", 9),
                        "\xe4\xbd\xa0\xc3\xbc\xf0\x9f\x98\x80");
    assert_string_equal(printed("\x1b[2J\n\r\t\x7f", 8),
                        "\\x1b[2J\\x0a\\x0d\\x09\\x7f");
    assert_string_equal(printed("a\0b", 3), "a\\x00b");
    assert_string_equal(printed("back\\slash", 10), "back\\\\slash");
    /* Invalid UTF-8: cut, overlong, a surrogate, beyond the last, a lone
     * tail. */
    assert_string_equal(printed("\xe4\xbd", 2), "\\xe4\\xbd");
    assert_string_equal(printed("\xc0\xaf", 2), "\\xc0\\xaf");
    assert_string_equal(printed("\xe0\x80\xaf", 3), "\\xe0\\x80\\xaf");
    assert_string_equal(printed("\xed\xa0\x80", 3), "\\xed\\xa0\\x80");
    assert_string_equal(printed("\xf4\x90\x80\x80", 4), "\\xf4\\x90\\x80\\x80");
    assert_string_equal(printed("\x80", 1), "\\x80");
    /* Valid UTF-8, but a control character (C1) or a mark that changes the
     * direction of text. */
    assert_string_equal(printed("\xc2\x9b", 2), "\\xc2\\x9b");
    assert_string_equal(printed("\xe2\x80\xae", 3), "\\xe2\\x80\\xae");
    assert_string_equal(printed("\xe2\x81\xa6", 3), "\\xe2\\x81\\xa6");
}

static void
times_are_printed_in_utc(void **state)
{
    char out[CLI_TIME_LEN];

    (void)state;
    assert_string_equal(cli_time(0, out), "-");
    assert_string_equal(cli_time(1, out), "1970-01-01T00:00:00.001Z");
    assert_string_equal(cli_time(INT64_C(1794730940195), out),
                        "2026-11-15T08:22:20.195Z");
    assert_true(strlen(cli_time(INT64_MAX, out)) < CLI_TIME_LEN);
}

static void
json_bytes_are_text_or_base64(void **state)
{
    json_t *object = json_object();

    (void)state;
    cli_json_bytes(object, "text", idem_text("\xc3\xbc\0x"));
    cli_json_bytes(object, "bin", (struct idem_bytes){"\xff\x00", 2});
    cli_json_bytes(object, "none", (struct idem_bytes){NULL, 0});
    assert_string_equal(json_string_value(json_object_get(object, "text")),
                        "\xc3\xbc");
    assert_string_equal(
        json_string_value(json_object_get(object, "bin_base64")), "/wA=");
    assert_null(json_object_get(object, "bin"));
    assert_string_equal(json_string_value(json_object_get(object, "none")), "");
    json_decref(object);
}

static void
exit_codes_are_one_a_verdict_and_one_an_error(void **state)
{
    int seen[64] = {0};

    (void)state;
    for (int i = 0; i < IDEM__VERDICT_COUNT; i++) {
        int code = cli_exit_verdict((enum idem_verdict)i);

        assert_in_range(code, 0, 19);
        assert_true(code == 0 || seen[code]++ == 0);
    }
    for (int i = 1; i < IDEM__STATUS_COUNT; i++) {
        int code = cli_exit_status((enum idem_status)i);

        assert_in_range(code, 2, 29);
        assert_int_equal(seen[code]++, 0);
    }
    assert_int_equal(cli_exit_status(IDEM_OK), 0);
    assert_int_equal(cli_exit_verdict(IDEM_V_STARTED), 0);
    assert_int_equal(cli_exit_verdict(IDEM_V_REPLAY), 10);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(options_stand_anywhere_and_the_rest_stays_in_order),
        cmocka_unit_test(wrong_lines_are_usage_errors),
        cmocka_unit_test(too_many_of_a_list_are_refused),
        cmocka_unit_test(times_and_sizes_have_units),
        cmocka_unit_test(hex_is_exactly_as_long_as_asked),
        cmocka_unit_test(only_harmless_text_reaches_a_terminal),
        cmocka_unit_test(times_are_printed_in_utc),
        cmocka_unit_test(json_bytes_are_text_or_base64),
        cmocka_unit_test(exit_codes_are_one_a_verdict_and_one_an_error),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
