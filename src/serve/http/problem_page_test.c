/*
 * problem_page_test.c - the language of a problem's page, and the base of its
 * address.
 */
#include "problem_page.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static void
a_page_is_in_the_language_that_weighs_most(void **state)
{
    static const char *const cases[][2] = {
        {"", "en"},
        {"zh", "zh"},
        {"fr, ZH-cn;q=0.1", "zh"},
        {"en,zh", "en"},
        {"zh,en", "zh"},
        {"zh;q=0.3,en;q=0.3", "zh"},
        {"en;q=0.3,zh;q=0.4", "zh"},
        {"zh;q=0", "en"},
        {"zh;q=-1", "en"},
        {"zh;q=2", "en"},
        {"zh;q=heavy", "en"},
        {"xzh", "en"},
        {"zhx", "en"},
        {"xzh,\tzh", "zh"},
        {"zh,fr;q=0.2", "zh"},
        {"en;q=0.5,zh", "zh"},
    };
    char page[PROBLEM_PAGE_MAX];

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const char *list = cases[i][0];
        size_t len = problem_page(
            IDEM_PROBLEM_QUOTA, (struct idem_bytes){list, strlen(list)}, page);
        char wanted[32];

        assert_true(len > 500 && len < PROBLEM_PAGE_MAX);
        snprintf(wanted, sizeof(wanted), "<html lang=\"%s", cases[i][1]);
        if (!memmem(page, len, wanted, strlen(wanted)))
            fail_msg("%s is not in %s", list, cases[i][1]);
    }
}

static void
every_problem_has_a_page_that_ends(void **state)
{
    static const char end[] = "</body></html>\n";
    char page[PROBLEM_PAGE_MAX];

    (void)state;
    for (int i = 0; i < IDEM_PROBLEM_COUNT; i++) {
        for (int k = 0; k < 2; k++) {
            struct idem_bytes language = {k ? "zh" : "en", 2};
            size_t len = problem_page((enum idem__problem)i, language, page);

            assert_true(len > sizeof(end));
            assert_memory_equal(page + len - strlen(end), end, strlen(end));
            assert_null(memmem(page, len, "](", 2)); /* links are HTML */
        }
    }
}

static void
a_base_is_printable_and_ends_with_a_slash_or_hash(void **state)
{
    static const struct {
        const char *text;
        bool fine;
    } cases[] = {
        {"https://docs.example/p/", true},
        {"/problems#", true},
        {"", false},
        {"/problems", false},
        {"a b/", false},
        {"a\x7f/", false},
        {"a\xc3\xa9/", false},
        {"a\"/", false},
        {"a;b/", false},
        {"a<b/", false},
    };
    char text[1001];

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        if (problem_base_ok((struct idem_bytes){
                cases[i].text, strlen(cases[i].text)}) != cases[i].fine)
            fail_msg("%s", cases[i].text);
    memset(text, '/', sizeof(text));
    assert_true(problem_base_ok((struct idem_bytes){text, 1000}));
    assert_false(problem_base_ok((struct idem_bytes){text, 1001}));
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_page_is_in_the_language_that_weighs_most),
        cmocka_unit_test(every_problem_has_a_page_that_ends),
        cmocka_unit_test(a_base_is_printable_and_ends_with_a_slash_or_hash),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
