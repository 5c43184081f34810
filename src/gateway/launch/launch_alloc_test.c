/*
 * launch_alloc_test.c - lets each allocation fail once while a gateway's file
 * becomes nginx.conf and the console's list of routes, and gives nginx.conf
 * less room than it needs. Each time there is an error, or all of the text.
 */
#include "../../../tests/support/alloc_countdown.h"
#include "launch.h"

#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* A certificate and its key, for the connection to an engine. */
static const char pem[] =
    "-----BEGIN CERTIFICATE-----\n"
    "MIIBfjCCASWgAwIBAgIUIgZCYBC2YmaDtCIJ69AXoxnfuUAwCgYIKoZIzj0EAwIw\n"
    "FDESMBAGA1UEAwwJaC5leGFtcGxlMCAXDTI2MTExODIwMDkzNFoYDzIxMjYxMDI1\n"
    "MjAwOTM0WjAUMRIwEAYDVQQDDAloLmV4YW1wbGUwWTATBgcqhkjOPQIBBggqhkjO\n"
    "PQMBBwNCAATHIYPF1RunJlije26bcb/r4jcypKd7YKMZPP/dhwTcwKxbw79d9eI7\n"
    "Rr6XwSZD7JMHqMRIsT55rSDnydc6Y0vno1MwUTAdBgNVHQ4EFgQUidauAYObEmUw\n"
    "X44kjmLtbSbrN4cwHwYDVR0jBBgwFoAUidauAYObEmUwX44kjmLtbSbrN4cwDwYD\n"
    "VR0TAQH/BAUwAwEB/zAKBggqhkjOPQQDAgNHADBEAiA1Pst7fuBZArSYCtsAoAn6\n"
    "mt6mxC697hd5THJDvkSfJgIgMcWu165gPMBdzhSk5fQ2FHz950h7PQ/9iBBmpR/Q\n"
    "EPY=\n"
    "-----END CERTIFICATE-----\n"
    "-----BEGIN PRIVATE KEY-----\n"
    "MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgcdX4ssnrlpJpzxob\n"
    "KbQFlr7ss1a4ZqkSZlllHsARUGChRANCAATHIYPF1RunJlije26bcb/r4jcypKd7\n"
    "YKMZPP/dhwTcwKxbw79d9eI7Rr6XwSZD7JMHqMRIsT55rSDnydc6Y0vn\n"
    "-----END PRIVATE KEY-----\n";

#define SERVICE "upstream = https://a.example/base/\n"
#define OPTIONS                                                                \
    "mode = loose\nwait = 5s\nkey = \"$http_a $http_b\" json:id\n"             \
    "scope = $http_x_user\nprofile = stripe\nreplayed-header = X-Again\n"      \
    "release = 425 500-599\ndocs = https://docs.example\nkey-quoted = on\n"    \
    "fail-open = on\nfingerprint = off\nverify = on\nca = /ca.pem\n"
#define PATHS                                                                  \
    "token-path = /token\nstatus-path = /status\npage-script = /idem.js\n"     \
    "policy-path = /policy\nproblem-base = https://docs.example/p/\n"

/* Together these have everything that nginx.conf can have. */
static const char *const files[] = {
    SERVICE OPTIONS PATHS
    "listen = 127.0.0.1:1,[::1]:1\ntls-cert = c.pem\ntls-key = k.pem\n"
    "access-log = log\nlog-keys = on\nforwarded = on\ntoken-rate = 5r/s\n"
    "auth-request = http://auth.example/check\nstore = memory:\n"
    "[route /x]\nttl = 1h\n[route = /y]\nhost = b.example\n"
    "upstream = http://localhost:3\nmethods = POST\n"
    "auth-request = https://auth.example\n"
    "[route /'\\z\"]\nhost = b.example\nupstream = http://unix:/s\n"
    "auth-request = off\nkey = $http_c'\\\"\n",
    SERVICE OPTIONS
    "engine = idems://ops:pw@h.example:1?timeout_ms=100&ca=pem&cert=pem&"
    "key=pem\nauth-request = http://auth.example/check\n",
    SERVICE PATHS "engine = idem+unix:s\n[route /x]\ngated = off\n",
    SERVICE "status-path = /s\ntoken = $http_t\n[route /x]\nkey = off\n"
            "host = b.example\n[route /y]\nhost = c.example\n",
};
#define FILES (sizeof(files) / sizeof(files[0]))

static struct gateway_config config;
static char folder[] = "/tmp/idem-launch-XXXXXX";

static enum idem_status
read_config(const char *file, struct idem_error *err)
{
    enum idem_status status;

    gateway_config_init(&config);
    status = gateway_config_text(&config, "f", idem_text(file), err);
    return status == IDEM_OK ? gateway_config_check(&config, err) : status;
}

static enum idem_status
write_conf(size_t cap, bool secret, struct idem_buf *out,
           struct idem_error *err)
{
    const struct gateway_place place = {.folder = "/f",
                                        .socket = "/f/s",
                                        .module = "/m.so",
                                        .script = "/f/idem.js",
                                        .user = "nobody",
                                        .secret = secret};

    idem_buf_init(out, cap);
    return gateway_nginx_conf(&config, &place, out, err);
}

static enum idem_status
write_engine(size_t cap, bool secret, struct idem_buf *out,
             struct idem_error *err)
{
    idem_buf_init(out, cap);
    return gateway_engine_conf(&config, secret, out, err);
}

static void
needs_room(enum idem_status (*write)(size_t, bool, struct idem_buf *,
                                     struct idem_error *),
           bool secret)
{
    struct idem_error err;
    struct idem_buf out;
    size_t len;

    assert_int_equal(write(1 << 20, secret, &out, &err), IDEM_OK);
    len = out.len;
    idem_buf_clear(&out);
    for (size_t cap = 0; cap < len; cap += getenv("IDEM_SANITIZED") ? 7 : 1) {
        assert_int_equal(write(cap, secret, &out, &err), IDEM_ERR_MEMORY);
        assert_string_equal(err.text, "out of memory");
        idem_buf_clear(&out);
    }
    assert_int_equal(write(len, secret, &out, &err), IDEM_OK);
    assert_int_equal(out.len, len);
    idem_buf_clear(&out);
}

static void
an_nginx_conf_without_room_is_an_error(void **state)
{
    struct idem_error err;

    (void)state;
    for (size_t i = 0; i < FILES; i++) {
        if (read_config(files[i], &err) != IDEM_OK)
            fail_msg("%s", err.text);
        if (config.engine)
            needs_room(write_engine, false); /* it reads the certificates */
        needs_room(config.engine ? write_engine : write_conf, true);
        gateway_config_clear(&config);
    }
}

static void
without_memory_a_file_is_refused_or_becomes_the_same(void **state)
{
    (void)state;
    for (size_t i = 0; i < FILES; i++) {
        char *whole = NULL;

        for (long n = 0; n <= 1 || failed; n++) {
            struct idem_error err = {0};
            struct idem_buf out = {0};
            enum idem_status status;

            countdown = n;
            failed = false;
            status = read_config(files[i], &err);
            if (status == IDEM_OK)
                status = write_conf(1 << 20, true, &out, &err);
            countdown = 0;
            if (status == IDEM_OK && n == 0)
                whole = strndup((char *)out.data, out.len);
            assert_true(status == IDEM_OK || failed);
            if (status != IDEM_OK)
                assert_true(err.text[0]);
            else
                assert_memory_equal(out.data, whole, strlen(whole));
            idem_buf_clear(&out);
            gateway_config_clear(&config);
        }
        free(whole);
    }
}

static char *
read_routes(void)
{
    json_t *got = json_load_file(GATEWAY_ROUTES, 0, NULL);
    char *text = got ? json_dumps(got, JSON_COMPACT) : NULL;

    json_decref(got);
    (void)unlink(GATEWAY_ROUTES);
    return text;
}

/* The console would show a list that lacks a route or a warning as the whole
 * list. */
static void
without_memory_the_console_has_all_routes_or_there_is_an_error(void **state)
{
    struct launch launch = {.config = &config};
    struct idem_error err = {0};
    char *whole = NULL;

    (void)state;
    if (read_config(files[0], &err) != IDEM_OK)
        fail_msg("%s", err.text);
    snprintf(launch.folder, sizeof(launch.folder), "%s", folder);
    json_set_alloc_funcs(__wrap_malloc, free);
    for (long n = 0; n <= 1 || failed; n++) {
        enum idem_status status;
        char *got;

        countdown = n;
        failed = false;
        status = launch_routes_write(&launch, &err);
        countdown = 0;
        got = read_routes();
        if (n == 0) {
            assert_non_null(got);
            assert_non_null(strstr(got, "fail-open"));
            whole = strdup(got);
        } else if (status == IDEM_OK) {
            assert_non_null(got);
            assert_string_equal(got, whole);
        } else {
            assert_true(failed);
        }
        free(got);
    }
    free(whole);
    gateway_config_clear(&config);
}

static int
make_folder(void **state)
{
    FILE *out;

    (void)state;
    if (!mkdtemp(folder) || chdir(folder) != 0 || !(out = fopen("pem", "w")))
        return -1;
    fputs(pem, out);
    return fclose(out);
}

static int
remove_folder(void **state)
{
    (void)state;
    (void)unlink(GATEWAY_ROUTES ".new");
    (void)unlink("pem");
    return chdir("/") == 0 ? rmdir(folder) : -1;
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_nginx_conf_without_room_is_an_error),
        cmocka_unit_test(without_memory_a_file_is_refused_or_becomes_the_same),
        cmocka_unit_test(
            without_memory_the_console_has_all_routes_or_there_is_an_error),
    };

    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
