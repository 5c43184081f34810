/*
 * output_test.c - tests what is printed: ages, times, and bytes that others
 * wrote and that must not control a terminal.
 */
#include "cli.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void
an_age_has_the_unit_that_is_at_least_two(void **state)
{
    static const struct {
        int64_t ms;
        const char *age;
    } cases[] = {
        {-5000, "0s"},        {0, "0s"},          {999, "0s"},
        {119999, "119s"},     {120000, "2m"},     {7199999, "119m"},
        {7200000, "2h"},      {172799999, "47h"}, {172800000, "2d"},
        {8640000000, "100d"},
    };
    char age[CLI_AGE_LEN];

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        assert_string_equal(cli_age(cases[i].ms, age), cases[i].age);
}

static void
a_time_that_cannot_be_told_is_a_dash(void **state)
{
    char time[CLI_TIME_LEN];

    (void)state;
    assert_string_equal(cli_time(1, time), "1970-01-01T00:00:00.001Z");
    assert_string_equal(cli_time(1700000000123, time),
                        "2023-11-14T22:13:20.123Z");
    assert_string_equal(cli_time(0, time), "-");
    assert_string_equal(cli_time(INT64_MAX, time),
                        "292278994-08-17T07:12:55.807Z");
}

/* What is printed of these bytes; the caller frees it. */
static char *
printed(const char *bytes, size_t len)
{
    char *text = NULL;
    size_t text_len;
    FILE *out = open_memstream(&text, &text_len);

    assert_non_null(out);
    cli_print_safe(out, (struct idem_bytes){bytes, len});
    fclose(out);
    return text;
}

static void
no_bytes_control_a_terminal(void **state)
{
    static const struct {
        const char *bytes, *text; /* text NULL: the bytes themselves */
    } cases[] = {
        {"plain ~", NULL},
        {"gr\xc3\xbcn \xe4\xbd\xa0 \xf0\x9f\x98\x80", NULL},
        {"back\\slash", "back\\\\slash"},
        {"\x1b[2J\x7f\n", "\\x1b[2J\\x7f\\x0a"},
        {"\xc2\x9b", "\\xc2\\x9b"},          /* a control character */
        {"\xc2\xa0", NULL},                  /* a blank is not */
        {"\xe2\x80\x8b", "\\xe2\\x80\\x8b"}, /* of no width */
        {"\xe2\x80\xae", "\\xe2\\x80\\xae"}, /* right to left */
        {"\xe2\x81\xa6", "\\xe2\\x81\\xa6"}, /* isolates a direction */
        {"\xe2\x80\x93 \xe2\x80\x9cquoted\xe2\x80\x9d \xe2\x80\xa6", NULL},
        {"\xe2\x80\xa8", "\\xe2\\x80\\xa8"}, /* ends a line */
        {"\xe2\x80\x8f", "\\xe2\\x80\\x8f"}, /* right to left */
        {"\xe2\x80\xa7", NULL},
        {"\xe2\x80\x90", NULL},
        {"\xe2\x80\xb0 \xe2\x81\x84 \xe2\x82\xac", NULL}, /* others near them */
        {"\x80", "\\x80"},                                /* not a beginning */
        {"\xc1\x81", "\\xc1\\x81"}, /* too long for its value */
        {"\xe0\x80\x80", "\\xe0\\x80\\x80"},
        {"\xf0\x80\x80\x80", "\\xf0\\x80\\x80\\x80"},
        {"\xed\xa0\x80", "\\xed\\xa0\\x80"}, /* half of a pair */
        {"\xee\x80\x80", NULL},
        {"\xf4\x90\x80\x80", "\\xf4\\x90\\x80\\x80"}, /* beyond the last one */
        {"\xf5\x80\x80\x80", "\\xf5\\x80\\x80\\x80"},
        {"\xe4\xbd", "\\xe4\\xbd"}, /* cut off */
        {"\xe4\xbdx", "\\xe4\\xbdx"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char *text = printed(cases[i].bytes, strlen(cases[i].bytes));

        assert_string_equal(text,
                            cases[i].text ? cases[i].text : cases[i].bytes);
        free(text);
    }
}

static void
bytes_are_text_in_json_or_are_named_base64(void **state)
{
    json_t *object = json_object();

    (void)state;
    cli_json_bytes(object, "text", idem_text("a\"b"));
    cli_json_bytes(object, "none", (struct idem_bytes){NULL, 0});
    cli_json_bytes(object, "bytes", (struct idem_bytes){"\xff\0x", 3});
    assert_string_equal(json_string_value(json_object_get(object, "text")),
                        "a\"b");
    assert_string_equal(json_string_value(json_object_get(object, "none")), "");
    assert_null(json_object_get(object, "bytes"));
    assert_string_equal(
        json_string_value(json_object_get(object, "bytes_base64")), "/wB4");
    json_decref(object);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_age_has_the_unit_that_is_at_least_two),
        cmocka_unit_test(a_time_that_cannot_be_told_is_a_dash),
        cmocka_unit_test(no_bytes_control_a_terminal),
        cmocka_unit_test(bytes_are_text_in_json_or_are_named_base64),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
