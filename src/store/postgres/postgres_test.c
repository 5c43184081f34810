/*
 * postgres_test.c - tests which server of a URL is tried, without a server, and
 * how a number of a reply is read.
 */
#include "postgres.h"

#include <arpa/inet.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

/* A port of this machine where nobody listens. */
static int
closed_port(void)
{
    struct sockaddr_in at = {.sin_family = AF_INET,
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(at);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    assert_int_equal(bind(fd, (struct sockaddr *)&at, len), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&at, &len), 0);
    close(fd);
    return ntohs(at.sin_port);
}

/* Each host is tried by itself, unless the lists of the URL do not match: then
 * libpq says so. */
static void
the_hosts_of_a_url_are_tried_one_by_one_if_their_lists_match(void **state)
{
    static const struct {
        const char *hosts; /* of the URL, %P stands for the port */
        const char *said;
    } cases[] = {
        {"127.0.0.1:%P/db", "refused"},
        {"127.0.0.1:%P,127.0.0.1:%P/db", "refused"},
        {"/db?host=127.0.0.1,127.0.0.1&port=%P", "refused"},
        {"/db?hostaddr=127.0.0.1,127.0.0.1&port=%P", "refused"},
        {"/db?hostaddr=127.0.0.1,127.0.0.1&host=a,b&port=%P", "refused"},
        {"/db?hostaddr=127.0.0.1,127.0.0.1&host=a&port=%P",
         "could not match 1 host names to 2 hostaddr values"},
        {"/db?hostaddr=127.0.0.1&host=a,b&port=%P",
         "could not match 2 host names to 1 hostaddr values"},
        {"/db?host=127.0.0.1,127.0.0.1&port=%P,%P,%P",
         "could not match 3 port numbers to 2 hosts"},
    };
    struct idem_store *store;
    struct idem_error err;
    char url[240];

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        int port = closed_port();
        size_t n = (size_t)snprintf(url, sizeof(url), "postgres://");

        for (const char *at = cases[i].hosts; *at && n < sizeof(url) - 8;) {
            if (strncmp(at, "%P", 2) == 0) {
                n += (size_t)snprintf(url + n, 8, "%d", port);
                at += 2;
            } else {
                url[n++] = *at++;
            }
        }
        url[n] = 0;
        assert_int_equal(idem__store_open(url, NULL, &store, &err),
                         IDEM_ERR_UNAVAILABLE);
        if (!strstr(err.text, cases[i].said))
            fail_msg("%s: %s", url, err.text);
    }
}

static void
a_number_of_a_reply_has_the_width_of_its_column(void **state)
{
    static const struct {
        const char *bytes;
        int len;
        int64_t number;
    } cases[] = {
        {"\x00\x07", 2, 7},
        {"\xff\xfe", 2, -2},
        {"\x00\x00\x01\x00", 4, 256},
        {"\xff\xff\xff\xff\xff\xff\xff\xfd", 8, -3},
        {"\x00\x00\x00\x00\x00\x00\x00\x09tail", 12, 9}, /* not of idem's */
    };
    PGresAttDesc column = {.name = (char *)"n", .format = 1};

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        PGresult *result = PQmakeEmptyPGresult(NULL, PGRES_TUPLES_OK);

        assert_non_null(result);
        assert_int_equal(PQsetResultAttrs(result, 1, &column), 1);
        assert_int_equal(
            PQsetvalue(result, 0, 0, (char *)cases[i].bytes, cases[i].len), 1);
        assert_true(idem__postgres_number(result, 0, 0) == cases[i].number);
        PQclear(result);
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(
            the_hosts_of_a_url_are_tried_one_by_one_if_their_lists_match),
        cmocka_unit_test(a_number_of_a_reply_has_the_width_of_its_column),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
