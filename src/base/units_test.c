/*
 * units_test.c - tests numbers with units, and the guess what a mistyped word
 * was meant to be.
 */
#include "guess.h"
#include "units.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

struct value {
    enum idem__unit unit;
    const char *text;
    int64_t value;
};

static void
a_number_counts_in_its_unit(void **state)
{
    static const struct value good[] = {
        {IDEM__UNIT_NONE, "17", 17},
        {IDEM__UNIT_NONE, "9223372036854775807", INT64_MAX},
        {IDEM__UNIT_TIME, "0", 0},
        {IDEM__UNIT_TIME, "0s", 0},
        {IDEM__UNIT_TIME, "1500ms", 1500},
        {IDEM__UNIT_TIME, "30S", 30000},
        {IDEM__UNIT_TIME, "5m", 300000},
        {IDEM__UNIT_TIME, "24h", 86400000},
        {IDEM__UNIT_TIME, "7d", 604800000},
        {IDEM__UNIT_SIZE, "100", 100},
        {IDEM__UNIT_SIZE, "2k", 2048},
        {IDEM__UNIT_SIZE, "3M", 3145728},
        {IDEM__UNIT_SIZE, "1GiB", 1073741824},
    };
    int64_t value;

    (void)state;
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        if (!idem__units_parse(good[i].unit, good[i].text, &value))
            fail_msg("refused: %s", good[i].text);
        assert_true(value == good[i].value);
    }
}

static void
a_number_without_sense_is_refused(void **state)
{
    static const struct value bad[] = {
        {IDEM__UNIT_NONE, "", 0},
        {IDEM__UNIT_NONE, "-1", 0},
        {IDEM__UNIT_NONE, "+1", 0},
        {IDEM__UNIT_NONE, " 1", 0},
        {IDEM__UNIT_NONE, "1s", 0},
        {IDEM__UNIT_NONE, "9223372036854775808", 0},
        {IDEM__UNIT_TIME, "5", 0}, /* five of what? */
        {IDEM__UNIT_TIME, "5k", 0},
        {IDEM__UNIT_TIME, "1h30m", 0},
        {IDEM__UNIT_TIME, "9223372036854775807d", 0},
        {IDEM__UNIT_SIZE, "5s", 0},
        {IDEM__UNIT_SIZE, "9007199254740993g", 0},
    };
    int64_t value;

    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        if (idem__units_parse(bad[i].unit, bad[i].text, &value))
            fail_msg("taken: %s", bad[i].text);
    }
}

static void
a_time_without_a_unit_is_told_which_it_could_have(void **state)
{
    char flaw[IDEM__TIME_FLAW_LEN];

    (void)state;
    assert_string_equal(idem__time_flaw("lease", "30", flaw),
                        "has no unit: 30s or 30ms?");
    assert_string_equal(idem__time_flaw("token-ttl", "7", flaw),
                        "has no unit: 7h or 7d?");
    assert_non_null(
        strstr(idem__time_flaw("lease", "soon", flaw), "is not a time"));
    assert_non_null(
        strstr(idem__time_flaw("lease", "30x", flaw), "is not a time"));
    /* Nobody means a time with so many digits. */
    assert_non_null(
        strstr(idem__time_flaw("lease", "12345678901234567890", flaw),
               "is not a time"));
}

/* The name among these that is nearest to the word; "" if none is near. */
static const char *
nearest(const char *word)
{
    static const char *const names[] = {
        "timeout", "connections", "share", "ca",
        "a-name-that-is-longer-than-any-word-somebody-types"};
    struct idem__guess guess = {word, strlen(word), NULL, 0};

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        idem__guess(&guess, names[i]);
    return guess.name ? guess.name : "";
}

static void
a_mistyped_word_finds_its_name(void **state)
{
    (void)state;
    assert_string_equal(nearest("timeuot"), "timeout");
    assert_string_equal(nearest("tmeout"), "timeout");
    assert_string_equal(nearest("conn"), "connections");
    assert_string_equal(nearest("sharee"), "share");
    assert_string_equal(nearest("cs"), "ca");
    assert_string_equal(nearest("a-name"),
                        "a-name-that-is-longer-than-any-word-somebody-types");
    assert_string_equal(nearest("zzz"), "");
    assert_string_equal(nearest("db"), "");
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_number_counts_in_its_unit),
        cmocka_unit_test(a_number_without_sense_is_refused),
        cmocka_unit_test(a_time_without_a_unit_is_told_which_it_could_have),
        cmocka_unit_test(a_mistyped_word_finds_its_name),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
