/*
 * url_test.c - tests the parser of the URLs of stores.
 */
#include "url.h"

#include "buf.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char *const known[] = {"replicas", "ca", NULL};

static void
all_parts_are_found_and_decoded(void **state)
{
    struct idem__url url;

    (void)state;
    assert_int_equal(
        idem__url_parse("redis://jo%65:p%40ss%3A%2F@a.example:7001,[::1]:7002,"
                        "c/3?replicas=2&ca=%2Fetc%2Fca.pem",
                        6379, known, &url, NULL),
        IDEM_OK);
    assert_string_equal(url.user, "joe");
    assert_string_equal(url.password, "p@ss:/");
    assert_int_equal(url.host_count, 3);
    assert_string_equal(url.hosts[0].name, "a.example");
    assert_int_equal(url.hosts[0].port, 7001);
    assert_string_equal(url.hosts[1].name, "::1");
    assert_int_equal(url.hosts[1].port, 7002);
    assert_string_equal(url.hosts[2].name, "c");
    assert_int_equal(url.hosts[2].port, 6379);
    assert_string_equal(url.path, "3");
    assert_string_equal(idem__url_option(&url, "ca"), "/etc/ca.pem");
    assert_null(idem__url_option(&url, "cert"));
    idem__url_clear(&url);
}

static void
what_is_not_there_is_null(void **state)
{
    struct idem__url url;

    (void)state;
    assert_int_equal(idem__url_parse("etcd://h/", 1, known, &url, NULL),
                     IDEM_OK);
    assert_null(url.user);
    assert_null(url.password);
    assert_null(url.path);
    assert_int_equal(url.option_count, 0);
    idem__url_clear(&url);
    assert_int_equal(idem__url_parse("redis://:word@h", 1, known, &url, NULL),
                     IDEM_OK);
    assert_null(url.user);
    assert_string_equal(url.password, "word");
    idem__url_clear(&url);
}

static void
what_is_wrong_is_said_without_the_password(void **state)
{
    static const char *const wrong[] = {
        "redis:h",
        "redis://joe:hunter2@",
        "redis://joe:hunter2@h:0",
        "redis://joe:hunter2@h:65536",
        "redis://joe:hunter2@h:1x",
        "redis://joe:hunter2@h,,g",
        "redis://joe:hunter2%zz@h",
        "redis://joe:hunter2%00@h",
        "redis://joe:hunter2@[::1",
        "redis://joe:hunter2@[::1]x",
        "redis://joe:hunter2@h?nonsense=1",
        "redis://joe:hunter2@h?replicas",
        "redis://joe:hunter2@h?replicas=",
        "redis://joe:hunter2@h/%",
    };

    (void)state;
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        struct idem_error err = {IDEM_OK, ""};
        struct idem__url url;

        if (idem__url_parse(wrong[i], 1, known, &url, &err) != IDEM_ERR_INVALID)
            fail_msg("%s was taken", wrong[i]);
        assert_true(strlen(err.text) > 10);
        assert_null(strstr(err.text, "hunter2"));
        assert_null(url.memory);
    }
}

static void
an_unknown_option_is_told_with_all_that_exist(void **state)
{
    static const char *const redis[] = {
        "replicas", "wait_ms", "prefix", "connect_ms", "timeout_ms",
        "unsafe",   "ca",      "cert",   "key",        "sentinel_password",
        NULL};
    struct idem_error err = {IDEM_OK, ""};
    struct idem__url url;

    (void)state;
    assert_int_equal(
        idem__url_parse("redis://joe:hunter2@a.host.with.a.long.name.example,"
                        "another.host.with.a.long.name.example:6379/0"
                        "?nonsense=1",
                        1, redis, &url, &err),
        IDEM_ERR_INVALID);
    assert_non_null(
        strstr(err.text,
               "\": there is no option \"nonsense\", only replicas, wait_ms, "
               "prefix, connect_ms, timeout_ms, unsafe, ca, cert, key, "
               "sentinel_password"));
    assert_int_equal(
        idem__url_parse("redis://h?replcas=1", 1, redis, &url, &err),
        IDEM_ERR_INVALID);
    assert_non_null(strstr(err.text, "did you mean \"replicas\"?"));
}

static void
too_many_hosts_or_options_are_an_error(void **state)
{
    struct idem_buf text;
    struct idem__url url;

    (void)state;
    idem_buf_init(&text, 4096);
    assert_true(idem_buf_add_text(&text, "redis://h"));
    for (int i = 0; i < IDEM__URL_HOSTS_MAX; i++)
        assert_true(idem_buf_printf(&text, ",h"));
    assert_int_equal(
        idem__url_parse((const char *)text.data, 1, known, &url, NULL),
        IDEM_ERR_INVALID);
    idem_buf_reset(&text);
    assert_true(idem_buf_add_text(&text, "redis://h?replicas=1"));
    for (int i = 0; i < IDEM__URL_OPTIONS_MAX; i++)
        assert_true(idem_buf_printf(&text, "&replicas=1"));
    assert_int_equal(
        idem__url_parse((const char *)text.data, 1, known, &url, NULL),
        IDEM_ERR_INVALID);
    idem_buf_clear(&text);
}

static void
numbers_have_limits(void **state)
{
    static const char *const wrong[] = {"11", "-1", "x", "1x",
                                        "99999999999999999999"};
    struct idem__url url;
    int64_t value = 7;

    (void)state;
    assert_int_equal(
        idem__url_parse("redis://h?replicas=10", 1, known, &url, NULL),
        IDEM_OK);
    assert_int_equal(idem__url_number(&url, "replicas", 0, 10, 3, &value, NULL),
                     IDEM_OK);
    assert_int_equal(value, 10);
    assert_int_equal(idem__url_number(&url, "ca", 0, 10, 3, &value, NULL),
                     IDEM_OK);
    assert_int_equal(value, 3);
    idem__url_clear(&url);
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        char text[100];

        snprintf(text, sizeof(text), "redis://h?replicas=%s", wrong[i]);
        assert_int_equal(idem__url_parse(text, 1, known, &url, NULL), IDEM_OK);
        assert_int_equal(
            idem__url_number(&url, "replicas", 0, 10, 3, &value, NULL),
            IDEM_ERR_INVALID);
        idem__url_clear(&url);
    }
}

static void
a_password_may_have_a_slash_and_an_at_sign(void **state)
{
    static const char *const texts[][2] = {
        {"postgres://me:a/b@c@host/db", "postgres://me:a%2fb%40c@host/db"},
        {"postgres://host/db", "postgres://host/db"},
        {"postgres://host/db?options=a@b", "postgres://host/db?options=a@b"},
        {"postgres://me@host:1/db?x=/", "postgres://me@host:1/db?x=/"},
    };
    struct idem__url url;

    (void)state;
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        char *copy = idem__url_escape(texts[i][0]);

        assert_string_equal(copy, texts[i][1]);
        free(copy);
    }
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(idem__url_parse(texts[0][i], 1, known, &url, NULL),
                         IDEM_OK);
        assert_string_equal(url.password, "a/b@c");
        assert_string_equal(url.hosts[0].name, "host");
        assert_string_equal(url.path, "db");
        idem__url_clear(&url);
    }
}

/* Some settings are taken out before a library gets the URL. */
static void
a_setting_is_taken_out_of_the_options(void **state)
{
    static const struct {
        const char *url, *value, *rest; /* value NULL: it is not there */
    } cases[] = {
        {"s://h/d?wait=5", "5", "s://h/d"},
        {"s://h/d?wait=5&x=1", "5", "s://h/d?x=1"},
        {"s://h/d?x=1&wait=5", "5", "s://h/d?x=1"},
        {"s://h/d?x=1&wait=5&y=2", "5", "s://h/d?x=1&y=2"},
        {"s://h/d?waiting=5", NULL, "s://h/d?waiting=5"},
        {"s://h/d?wait", NULL, "s://h/d?wait"},
        {"s://h/d?x=wait=5", NULL, "s://h/d?x=wait=5"},
        {"s://h/d", NULL, "s://h/d"},
    };
    char url[100], value[20];
    int64_t number = 0;

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        snprintf(url, sizeof(url), "%s", cases[i].url);
        assert_int_equal(idem__url_take(url, "wait", value, sizeof(value)),
                         cases[i].value != NULL);
        assert_string_equal(url, cases[i].rest);
        if (cases[i].value)
            assert_string_equal(value, cases[i].value);
    }
    snprintf(url, sizeof(url), "s://h?wait=5&x=1");
    assert_true(idem__url_take_number(url, "wait", 1, 9, &number));
    assert_int_equal(number, 5);
    assert_true(idem__url_take_number(url, "wait", 1, 9, &number)); /* none */
    assert_int_equal(number, 5);
    snprintf(url, sizeof(url), "s://h?wait=10");
    assert_false(idem__url_take_number(url, "wait", 1, 9, &number));
}

static void
no_password_is_shown(void **state)
{
    static const char *const cases[][2] = {
        {"s://u:pw@h/d", "s://u:***@h/d"},
        {"s://u:p?w@h/d", "s://u:***@h/d"},
        {"s://u:@h/d", "s://u:@h/d"},
        {"s://u@h:5/d", "s://u@h:5/d"},
        {"s://h/d?password=pw&x=1", "s://h/d?password=***&x=1"},
        {"s://u:pw@h/d?sslpassword=pq", "s://u:***@h/d?sslpassword=***"},
        {"s://h/d?password=a@b", "s://h/d?password=***"},
        {"journal:/a:b@c", "journal:/a:b@c"},
        {"idem://u:pw@h", "idem://u:***@h"},
    };
    char out[100];

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        idem__url_redact(cases[i][0], out, sizeof(out));
        assert_string_equal(out, cases[i][1]);
    }
    idem__url_redact("s://user:secret@host", out, 10);
    assert_null(strstr(out, "sec"));
}

/* It may be a secret that was given without a name. */
static void
no_user_without_a_password_is_shown(void **state)
{
    static const char *const schemes[] = {
        "idem",         "idems",          "nats",
        "redis",        "redis+cluster",  "redis+sentinel",
        "rediss",       "rediss+cluster", "rediss+sentinel",
        "redis-stream", "rediss-stream",  "--server=idem"};
    static const char *const cases[][2] = {
        {"pw@h:5/d", "***@h:5/d"},
        {"p?w@h", "***@h"},
        {"pw:@h", "***:@h"},
        {"@h", "@h"},
        {"h:5?foo=1", "h:5?foo=1"},
        {"h?ca=/a@b", "h?ca=/a@b"},
        {"pw@h?password=pq", "***@h?password=***"},
        {"pw@h?ca=/a@b", "***@h?ca=/a@b"},
    };
    struct idem__url url;
    struct idem_error err;
    char given[100], wanted[100], out[100];

    (void)state;
    for (size_t i = 0; i < sizeof(schemes) / sizeof(schemes[0]); i++) {
        for (size_t j = 0; j < sizeof(cases) / sizeof(cases[0]); j++) {
            snprintf(given, sizeof(given), "%s://%s", schemes[i], cases[j][0]);
            snprintf(wanted, sizeof(wanted), "%s://%s", schemes[i],
                     cases[j][1]);
            idem__url_redact(given, out, sizeof(out));
            assert_string_equal(out, wanted);
        }
        snprintf(given, sizeof(given), "%s://pw@h?no=1", schemes[i]);
        assert_int_equal(idem__url_parse(given, 1, known, &url, &err),
                         IDEM_ERR_INVALID);
        assert_null(strstr(err.text, "pw"));
    }
    assert_int_equal(idem__url_parse("s://u:p?secret@h", 1, known, &url, &err),
                     IDEM_ERR_INVALID);
    assert_null(strstr(err.text, "secret"));
    assert_int_equal(idem__url_parse("redis:/u:pw@h", 1, known, &url, &err),
                     IDEM_ERR_INVALID);
    assert_null(strstr(err.text, "pw"));
}

static void
nothing_before_the_host_is_shown(void **state)
{
    static const char *const cases[][2] = {
        {"s://u:p@w@h/d", "s://***@h/d"},
        {"s://u@h:5", "s://***@h:5"},
        {"s://h:5/d", "s://h:5/d"},
        {"u:pw@h:5", "***@h:5"},
        {"u:p?w@h", "***@h"},
        {"h:5", "h:5"},
    };
    char out[100];

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        idem__url_redact_user(cases[i][0], out, sizeof(out));
        assert_string_equal(out, cases[i][1]);
    }
}

static void
an_option_without_a_value_is_refused(void **state)
{
    static const char *const wrong[] = {
        "redis://h?ca", "redis://h?ca=", "redis://h?ca=%zz", "redis://h?ca=%2"};
    struct idem__url url;
    struct idem_error err;

    (void)state;
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        assert_int_equal(idem__url_parse(wrong[i], 1, known, &url, &err),
                         IDEM_ERR_INVALID);
        assert_non_null(strstr(err.text, "\"ca\" needs a value"));
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_parts_are_found_and_decoded),
        cmocka_unit_test(what_is_not_there_is_null),
        cmocka_unit_test(what_is_wrong_is_said_without_the_password),
        cmocka_unit_test(an_unknown_option_is_told_with_all_that_exist),
        cmocka_unit_test(too_many_hosts_or_options_are_an_error),
        cmocka_unit_test(numbers_have_limits),
        cmocka_unit_test(a_setting_is_taken_out_of_the_options),
        cmocka_unit_test(no_password_is_shown),
        cmocka_unit_test(no_user_without_a_password_is_shown),
        cmocka_unit_test(nothing_before_the_host_is_shown),
        cmocka_unit_test(an_option_without_a_value_is_refused),
        cmocka_unit_test(a_password_may_have_a_slash_and_an_at_sign),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
