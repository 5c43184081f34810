/*
 * play_test.c - run every scheme of the playground with every action,
 * unprotected and protected.
 */
#include "play_inner.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static const char *
text_of(const json_t *object, const char *name)
{
    return json_string_value(json_object_get(object, name));
}

static bool
has(const json_t *words, const char *wanted)
{
    const json_t *word;
    size_t i;

    json_array_foreach(words, i, word)
    {
        if (strcmp(json_string_value(word), wanted) == 0)
            return true;
    }
    return false;
}

static void
run_one(const char *scheme, const char *action, bool protect, bool breaks)
{
    struct idem_error err = {0};
    json_t *told = NULL;
    enum idem_status status =
        play_run(idem_text(scheme), idem_text(action), protect, &told, &err);
    json_int_t effects;

    if (status != IDEM_OK)
        fail_msg("%s %s: %s", scheme, action, err.text);
    effects = json_integer_value(json_object_get(told, "effects"));
    if (json_is_true(json_object_get(told, "wrong")) != breaks)
        fail_msg("%s %s %d: done %d times", scheme, action, protect,
                 (int)effects);
    if (protect)
        assert_int_equal(effects, 1);
    assert_true(json_array_size(json_object_get(told, "messages")) >= 4);
    json_decref(told);
}

static void
a_scheme_goes_wrong_where_it_says_so_and_never_when_protected(void **state)
{
    json_t *list = play_list(), *scheme, *action;
    size_t i, k;

    (void)state;
    json_array_foreach(json_object_get(list, "schemes"), i, scheme)
    {
        json_array_foreach(json_object_get(scheme, "actions"), k, action)
        {
            const char *word = json_string_value(action);

            run_one(text_of(scheme, "name"), word, false,
                    has(json_object_get(scheme, "breaks"), word));
            run_one(text_of(scheme, "name"), word, true, false);
        }
    }
    assert_int_equal(i, 11);
    json_decref(list);
}

static void
what_is_not_there_is_refused(void **state)
{
    struct idem_error err = {0};
    json_t *told = NULL;

    (void)state;
    assert_int_equal(
        play_run(idem_text("nothing"), idem_text("send"), true, &told, &err),
        IDEM_ERR_INVALID);
    assert_int_equal(
        play_run(idem_text("token"), idem_text("kill"), true, &told, &err),
        IDEM_ERR_INVALID);
    assert_null(told);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(
            a_scheme_goes_wrong_where_it_says_so_and_never_when_protected),
        cmocka_unit_test(what_is_not_there_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
