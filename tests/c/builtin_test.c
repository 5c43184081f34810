/*
 * builtin_test.c - how a module that is linked in is found by its name.
 */
#include "../../src/base/module.h"
#include "../../src/store/store.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static void
missing(const char *module, const char *symbol, const char *text)
{
    struct idem_error err = {0};
    const void *found = NULL;

    assert_int_equal(idem__module_symbol(module, symbol, &found, &err),
                     IDEM_ERR_UNSUPPORTED);
    assert_null(found);
    if (!strstr(err.text, text))
        fail_msg("\"%s\" does not say \"%s\"", err.text, text);
}

static void
what_is_not_in_this_build_is_told_with_its_variable(void **state)
{
    (void)state;
    missing("oracle", "idem__oracle_store", "build idem with WITH_ORACLE=1");
    missing("", "", "was left out of this build");
    /* A name that is too long is cut. */
    missing("a-name-of-more-than-thirty-one-bytes", "no",
            "WITH_A-NAME-OF-MORE-THAN-THIRTY-ONE-=1");
}

#ifdef IDEM_WITH_SQLITE
static void
what_is_in_this_build_is_found(void **state)
{
    struct idem_error err = {0};
    const void *found = NULL;

    (void)state;
    assert_int_equal(
        idem__module_symbol("sqlite", "idem__sqlite_store", &found, &err),
        IDEM_OK);
    assert_string_equal(((const struct idem_store_type *)found)->scheme,
                        "sqlite");
}
#endif

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_not_in_this_build_is_told_with_its_variable),
#ifdef IDEM_WITH_SQLITE
        cmocka_unit_test(what_is_in_this_build_is_found),
#endif
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
