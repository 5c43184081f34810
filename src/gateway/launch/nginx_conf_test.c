/*
 * nginx_conf_test.c - what nginx.conf a gateway's configuration file becomes.
 */
#include "gateway.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static char *
conf(const char *file)
{
    static struct gateway_config config;
    struct gateway_place place = {
        .folder = "/f", .socket = "/f/s", .module = "/m.so"};
    struct idem_error err;
    struct idem_buf out;
    char *copy = NULL;

    gateway_config_init(&config);
    idem_buf_init(&out, 1 << 20);
    if (gateway_config_text(&config, "f", idem_text(file), &err) == IDEM_OK &&
        gateway_config_check(&config, &err) == IDEM_OK &&
        gateway_nginx_conf(&config, &place, &out, &err) == IDEM_OK)
        copy = strndup((char *)out.data, out.len);
    idem_buf_clear(&out);
    gateway_config_clear(&config);
    return copy;
}

static void
a_file_becomes_routes(void **state)
{
    char *got = conf("upstream = http://a:1\nmode = loose\n"
                     "# nothing\n[route /x]\nwait = 5s\n"
                     "[route = /y]\nhost = b.example\nupstream = https://b\n"
                     "key = \"$http_a $http_b\" json:id\n");

    (void)state;
    assert_non_null(got);
    assert_non_null(strstr(got, "idem_wait \"5000ms\";"));
    assert_non_null(strstr(got, "location = \"/y\""));
    assert_non_null(strstr(got, "server_name \"b.example\";"));
    assert_non_null(strstr(got, "server \"b:443\""));
    assert_non_null(strstr(got, "idem_key \"$http_a $http_b\" \"json:id\";"));
    free(got);
}

static void
a_services_path_stands_before_the_requests(void **state)
{
    char *got = conf("upstream = http://a/base/\n[route /x]\nwait = 5s\n"
                     "[route = /y]\n[route /z/]\nupstream = http://b/\n"
                     "[route /]\n");

    (void)state;
    assert_non_null(got);
    assert_non_null(strstr(got, "proxy_pass http://idem_0/base/x;"));
    assert_non_null(strstr(got, "proxy_pass http://idem_1/base/y;"));
    assert_non_null(strstr(got, "proxy_pass http://idem_2;"));
    assert_non_null(strstr(got, "proxy_pass http://idem_3/base/;"));
    free(got);
    assert_null(conf("upstream = http://a/base\n[route /x$y]\n"));
}

static void
a_value_never_becomes_a_directive(void **state)
{
    char *got = conf("upstream = http://a\nscope = $x\"; evil on; #\n");

    (void)state;
    assert_non_null(got);
    assert_non_null(strstr(got, "idem_scope \"$x\\\"; evil on; #\";"));
    free(got);
    assert_null(conf("upstream = http://a;evil\n"));
    assert_null(conf("upstream = ftp://a\n"));
    assert_null(conf("upstream = http://\n"));
    assert_null(conf("upstream = http://a/x;y\n"));
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_file_becomes_routes),
        cmocka_unit_test(a_services_path_stands_before_the_requests),
        cmocka_unit_test(a_value_never_becomes_a_directive),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
