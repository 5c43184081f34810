/*
 * listen_test.c - addresses as people write them, and sockets that cannot be
 * opened.
 */
#include "listen.h"

#include <grp.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static char folder[] = "/tmp/idem-listen-XXXXXX";

static void
must_say(enum idem_status status, enum idem_status wanted,
         const struct idem_error *err, const char *text)
{
    assert_int_equal(status, wanted);
    if (!strstr(err->text, text))
        fail_msg("\"%s\" is not in: %s", text, err->text);
}

static void
a_list_of_addresses_may_have_spaces(void **state)
{
    const char *list = " localhost:1 ,, [::1]:65535  ,10.0.0.1:2 , ";
    struct server_address address;
    struct idem_error err = {0};

    (void)state;
    assert_true(server_address_next(&list, &address, &err));
    assert_string_equal(address.host, "localhost");
    assert_true(address.loopback);
    assert_true(server_address_next(&list, &address, &err));
    assert_string_equal(address.host, "::1");
    assert_string_equal(address.port, "65535");
    assert_true(address.loopback);
    assert_true(server_address_next(&list, &address, &err));
    assert_false(address.loopback);
    assert_false(server_address_next(&list, &address, &err));
    assert_int_equal(err.status, IDEM_OK);
}

static void
what_is_no_address_is_shown(void **state)
{
    char long_host[600], text[700];
    const char *bad[] = {"a b:1", "::ffff:1", text};

    (void)state;
    memset(long_host, 'h', sizeof(long_host));
    long_host[sizeof(long_host) - 1] = 0;
    snprintf(text, sizeof(text), "%s:1", long_host);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct server_address address;
        struct idem_error err = {0};
        const char *list = bad[i];
        char start[16];

        assert_false(server_address_next(&list, &address, &err));
        snprintf(start, sizeof(start), "\"%.8s", bad[i]);
        must_say(err.status, IDEM_ERR_INVALID, &err, start);
    }
}

static void
loopback_is_every_address_of_127_and_one_of_ipv6(void **state)
{
    (void)state;
    assert_true(server_is_loopback("127.255.0.1"));
    assert_true(server_is_loopback("::1"));
    assert_true(server_is_loopback("localhost"));
    assert_false(server_is_loopback("128.0.0.1"));
    assert_false(server_is_loopback("::2"));
    assert_false(server_is_loopback("1::1"));
    assert_false(server_is_loopback("0:1::1"));
    assert_false(server_is_loopback("0:0:1::1"));
    assert_false(server_is_loopback("::1:0:1"));
}

static void
a_port_that_cannot_be_had_says_why(void **state)
{
    struct server_address address = {.host = "127.0.0.1", .port = "0"};
    struct sockaddr_in bound;
    socklen_t len = sizeof(bound);
    struct idem_error err;
    int fds[SERVER_LISTEN_MAX];
    size_t count = 0;

    (void)state;
    assert_int_equal(server_listen_tcp(&address, fds, &count, &err), IDEM_OK);
    assert_int_equal(count, 1);
    assert_int_equal(getsockname(fds[0], (struct sockaddr *)&bound, &len), 0);
    snprintf(address.port, sizeof(address.port), "%u", ntohs(bound.sin_port));
    must_say(server_listen_tcp(&address, fds, &count, &err),
             IDEM_ERR_UNAVAILABLE, &err, "stop the program that listens there");
    snprintf(address.host, sizeof(address.host), "192.0.2.1");
    must_say(server_listen_tcp(&address, fds, &count, &err),
             IDEM_ERR_UNAVAILABLE, &err, "does not have that address");
    snprintf(address.host, sizeof(address.host), "no-such-host.invalid");
    must_say(server_listen_tcp(&address, fds, &count, &err),
             IDEM_ERR_UNAVAILABLE, &err, "cannot listen on no-such-host");
    assert_int_equal(count, 1);
    close(fds[0]);
}

static void
all_addresses_of_this_machine_share_a_port(void **state)
{
    struct server_address address = {.host = "*", .port = "0"};
    struct idem_error err;
    int fds[SERVER_LISTEN_MAX];
    size_t count = 0;

    (void)state;
    assert_int_equal(server_listen_tcp(&address, fds, &count, &err), IDEM_OK);
    assert_true(count == 1 || count == 2); /* without or with IPv6 */
    while (count > 0)
        close(fds[--count]);
}

static void
more_addresses_than_fit_are_refused(void **state)
{
    struct server_address address = {.host = "127.0.0.1", .port = "0"};
    struct idem_error err;
    int fds[SERVER_LISTEN_MAX];
    size_t count = 0;

    (void)state;
    while (count < SERVER_LISTEN_MAX)
        assert_int_equal(server_listen_tcp(&address, fds, &count, &err),
                         IDEM_OK);
    must_say(server_listen_tcp(&address, fds, &count, &err), IDEM_ERR_INVALID,
             &err, "cannot listen on 127.0.0.1:0: more than 16 addresses");
    assert_int_equal(count, SERVER_LISTEN_MAX);
    while (count > 0)
        close(fds[--count]);
}

static void
only_a_socket_without_a_server_is_replaced(void **state)
{
    char path[128], other[160], text[120];
    struct idem_error err;
    struct stat stat;
    bool made;
    int fd, again;
    FILE *file;

    (void)state;
    snprintf(path, sizeof(path), "%s/s", folder);
    assert_int_equal(server_listen_unix(path, 0660, "root", &fd, &made, &err),
                     IDEM_OK);
    assert_true(made);
    assert_int_equal(lstat(path, &stat), 0);
    assert_int_equal(stat.st_mode & 0777, 0660);
    assert_false(server_socket_is_abandoned(path));
    assert_true(server_socket_is_taken(path));
    must_say(server_listen_unix(path, 0600, NULL, &again, &made, &err),
             IDEM_ERR_UNAVAILABLE, &err, "another server listens");
    close(fd);
    assert_true(server_socket_is_abandoned(path));
    assert_false(server_socket_is_taken(path));
    assert_int_equal(server_listen_unix(path, 0600, NULL, &fd, &made, &err),
                     IDEM_OK);
    close(fd);
    unlink(path);

    must_say(server_listen_unix(path, 0600, "no-such-group", &fd, &made, &err),
             IDEM_ERR_UNAVAILABLE, &err, "cannot listen on");
    assert_int_not_equal(lstat(path, &stat), 0); /* nothing stays behind */

    snprintf(other, sizeof(other), "%s/nowhere", path);
    must_say(server_listen_unix(other, 0600, NULL, &fd, &made, &err),
             IDEM_ERR_UNAVAILABLE, &err, "cannot listen on");
    assert_int_equal(symlink("gone", path), 0); /* it leads nowhere */
    assert_int_equal(server_listen_unix(path, 0600, NULL, &fd, &made, &err),
                     IDEM_OK);
    close(fd);
    unlink(path);
    file = fopen(path, "we");
    fclose(file);
    must_say(server_listen_unix(path, 0600, NULL, &fd, &made, &err),
             IDEM_ERR_INVALID, &err, "is not a socket");
    assert_int_equal(lstat(path, &stat), 0);
    unlink(path);
    memset(text, 'x', sizeof(text));
    text[sizeof(text) - 1] = 0;
    must_say(server_listen_unix(text, 0600, NULL, &fd, &made, &err),
             IDEM_ERR_INVALID, &err, "longer than 107 bytes");
}

static int
make_folder(void **state)
{
    (void)state;
    return mkdtemp(folder) ? 0 : -1;
}

static int
remove_folder(void **state)
{
    (void)state;
    return rmdir(folder);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_list_of_addresses_may_have_spaces),
        cmocka_unit_test(what_is_no_address_is_shown),
        cmocka_unit_test(loopback_is_every_address_of_127_and_one_of_ipv6),
        cmocka_unit_test(a_port_that_cannot_be_had_says_why),
        cmocka_unit_test(all_addresses_of_this_machine_share_a_port),
        cmocka_unit_test(more_addresses_than_fit_are_refused),
        cmocka_unit_test(only_a_socket_without_a_server_is_replaced),
    };

    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
