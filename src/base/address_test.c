/*
 * address_test.c - tests reading and writing HOST:PORT.
 */
#include "address.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static void
an_address_is_a_host_and_a_port(void **state)
{
    static const struct {
        const char *text, *host;
        int port;
    } good[] = {
        {"db1:6379", "db1", 6379},
        {"db1", "db1", 0},
        {":6390", "", 6390},
        {"*:1", "*", 1},
        {"[::1]:65535", "::1", 65535},
        {"[::1]", "::1", 0},
        {"127.0.0.1:80", "127.0.0.1", 80},
        {"", "", 0},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        struct idem__address address;

        assert_null(
            idem__address_read(good[i].text, strlen(good[i].text), &address));
        assert_int_equal(address.host.len, strlen(good[i].host));
        assert_memory_equal(address.host.data, good[i].host, address.host.len);
        assert_int_equal(address.port, good[i].port);
    }
}

static void
a_wrong_address_is_refused(void **state)
{
    static const char *const bad[] = {
        "db1:",    "db1:0",   "db1:65536", "db1:080000", "db1:80x",
        "db1:-1",  "db1:+80", "db1: 80",   "::1:80",     "[::1",
        "[::1]80", "[]:80",   "[]",        "[::1]:0"};

    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct idem__address address;

        assert_non_null(idem__address_read(bad[i], strlen(bad[i]), &address));
    }
}

static void
only_the_given_bytes_are_read(void **state)
{
    struct idem__address address;

    (void)state;
    assert_null(idem__address_read("a:6379,b:1", 6, &address));
    assert_int_equal(address.port, 6379);
    assert_null(idem__address_read("[::1]:80", 5, &address));
    assert_int_equal(address.port, 0);
    assert_int_equal(idem__port_read("80", 1), 8);
}

static void
an_ipv6_address_is_written_in_brackets(void **state)
{
    char out[IDEM__ADDRESS_LEN], host[400];

    (void)state;
    assert_string_equal(idem__address_write("::1", 80, out), "[::1]:80");
    assert_string_equal(idem__address_write("db1", 6379, out), "db1:6379");
    memset(host, 'h', sizeof(host));
    host[sizeof(host) - 1] = 0;
    assert_true(strlen(idem__address_write(host, 65535, out)) < sizeof(out));
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_address_is_a_host_and_a_port),
        cmocka_unit_test(a_wrong_address_is_refused),
        cmocka_unit_test(only_the_given_bytes_are_read),
        cmocka_unit_test(an_ipv6_address_is_written_in_brackets),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
