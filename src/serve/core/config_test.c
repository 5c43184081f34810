/*
 * config_test.c - options, credentials, addresses, log lines, histograms.
 */
#include "server.h"

#include "../../record/record.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static enum idem_status
read_config(struct server_config *config, const char *text,
            struct idem_error *err)
{
    server_config_init(config);
    return server_config_text(config, "file", idem_text(text), err);
}

static void
a_file_sets_every_kind_of_option(void **state)
{
    struct server_config config;
    struct idem_error err;

    (void)state;
    assert_int_equal(
        read_config(&config,
                    "# comment\n"
                    "store = journal:/h/0#x  # behind a space\r\n"
                    "MAX_CLIENTS=12\n"
                    "  max-result =  2m\n"
                    "stall-timeout = 5m\n"
                    "socket-mode = 0660\n"
                    "log-keys = on\nlog-format = JSON\nlog-level = error",
                    &err),
        IDEM_OK);
    assert_string_equal(config.store, "journal:/h/0#x");
    assert_int_equal(config.max_clients, 12);
    assert_int_equal(config.max_result, 2 * 1024 * 1024);
    assert_int_equal(config.stall_ms, 300000);
    assert_int_equal(config.socket_mode, 0660);
    assert_true(config.log_keys);
    assert_int_equal(config.log_format, LOG_FORMAT_JSON);
    assert_int_equal(config.log_level, LOG_ERROR);
    assert_int_equal(server_config_check(&config, &err), IDEM_OK);
    assert_int_equal(config.max_command, 2 * 1024 * 1024 + 65536);
    server_config_clear(&config);
}

static void
an_error_names_the_line(void **state)
{
    struct server_config config;
    struct idem_error err;

    (void)state;
    assert_int_equal(
        read_config(&config, "\n\nmax-clients = 99999999999999999", &err),
        IDEM_ERR_INVALID);
    assert_non_null(strstr(err.text, "file: line 3: max-clients"));
    server_config_clear(&config);
}

static void
a_wrong_line_is_refused(void **state)
{
    static const char *const bad[][2] = {
        {"store =", "store has no value"},
        {"store = # nothing", "store has no value"},
        {"socket-mode = 9", "socket-mode is an octal mode"},
        {"socket-mode = +7", "socket-mode is an octal mode"},
        {"socket-mode = 1000", "out of range: 0 to 777"},
        {"console = maybe", "console is no or yes"},
        {"log-format = xml", "log-format is logfmt or json"},
        {"uid-bits = 1", "uid-bits"},
        {"max-clients\t =\t0\t", "max-clients of 0 is out of range"},
        {"a-name-that-is-longer-than-any-option = 1", "there is no option"},
        {"stall-timeout = soon", "stall-timeout \"soon\""},
        {"\t", NULL},
        {" # only a comment", NULL},
        {"console = on\t# a tab before it", NULL},
    };
    char long_line[5000];
    struct server_config config;
    struct idem_error err;

    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        enum idem_status status = read_config(&config, bad[i][0], &err);

        assert_int_equal(status, bad[i][1] ? IDEM_ERR_INVALID : IDEM_OK);
        if (bad[i][1] && !strstr(err.text, bad[i][1]))
            fail_msg("%s gave: %s", bad[i][0], err.text);
        server_config_clear(&config);
    }
    memset(long_line, 'x', sizeof(long_line));
    long_line[sizeof(long_line) - 1] = 0;
    assert_int_equal(read_config(&config, long_line, &err), IDEM_ERR_INVALID);
    assert_non_null(strstr(err.text, "too long"));
    server_config_clear(&config);
    server_config_init(&config);
    assert_int_equal(server_config_text(&config, "file",
                                        (struct idem_bytes){"store\0=x", 8},
                                        &err),
                     IDEM_ERR_INVALID);
    assert_non_null(strstr(err.text, "holds a NUL"));
    server_config_clear(&config);
}

static void
a_file_or_a_variable_that_cannot_be_used_is_named(void **state)
{
    char path[] = "/tmp/idem-config-XXXXXX";
    struct server_config config;
    struct idem_error err;
    int fd = mkstemp(path);

    (void)state;
    server_config_init(&config);
    assert_int_equal(server_config_file(&config, "/nonexistent", &err),
                     IDEM_ERR_INVALID);
    assert_non_null(strstr(err.text, "correct --config"));
    assert_int_equal(server_config_file(&config, "/tmp", &err),
                     IDEM_ERR_INVALID);
    assert_non_null(strstr(err.text, "/tmp: "));
    assert_int_equal(ftruncate(fd, 1024 * 1024 + 1), 0);
    assert_int_equal(server_config_file(&config, path, &err), IDEM_ERR_INVALID);
    assert_non_null(strstr(err.text, "over 1 MiB"));
    close(fd);
    unlink(path);
    setenv("IDEM_LOG_LEVEL", "loud", 1);
    assert_int_equal(server_config_environment(&config, &err),
                     IDEM_ERR_INVALID);
    assert_non_null(strstr(err.text, "variable IDEM_LOG_LEVEL: log-level"));
    unsetenv("IDEM_LOG_LEVEL");
    server_config_clear(&config);
}

static void
listening_wider_needs_credentials(void **state)
{
    static const struct {
        const char *address;
        bool fine;
    } cases[] = {
        {"127.0.0.1:1", true},
        {"[::1]:1", true},
        {"localhost:1", true},
        {":1", true},
        {"127.9.9.9:65535", true},
        {"0.0.0.0:1", false},
        {"*:1", false},
        {"[::]:1", false},
        {"10.0.0.1:1", false},
        {"example.org:1", false},
        {"127.0.0.1:1,10.0.0.1:1", false},
        {"127.0.0.1:0", false},
        {"127.0.0.1:65536", false},
        {"::1:1", false},
        {"[::1:1", false},
        {"127.0.0.1", false},
        {"1.2.3.4:x", false},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct server_config config;
        struct idem_error err;

        server_config_init(&config);
        assert_int_equal(
            server_config_set(&config, "listen", cases[i].address, &err),
            IDEM_OK);
        if ((server_config_check(&config, &err) == IDEM_OK) != cases[i].fine)
            fail_msg("%s: %s", cases[i].address, err.text);
        server_config_clear(&config);
    }
}

static void
a_changed_credential_is_revoked_and_an_unchanged_one_is_not(void **state)
{
    struct credentials *credentials;
    struct principal *a, *b;
    struct idem_error err;

    (void)state;
    assert_int_equal(credentials_open(NULL, &credentials, &err), IDEM_OK);
    assert_int_equal(credentials_text(credentials, "f",
                                      idem_text("a s use x y\nb t operate"),
                                      &err),
                     IDEM_OK);
    assert_null(credentials_login(credentials, idem_text("a"), idem_text("t")));
    assert_null(credentials_login(credentials, idem_text("c"), idem_text("s")));
    a = credentials_login(credentials, idem_text("a"), idem_text("s"));
    b = credentials_login(credentials, idem_text("b"), idem_text("t"));
    assert_true(principal_may(a, SERVER_MAY_USE, idem_text("y")));
    assert_false(principal_may(a, SERVER_MAY_USE, idem_text("z")));
    assert_false(principal_may(a, SERVER_MAY_USE, idem_text("")));
    assert_false(principal_may(a, SERVER_MAY_OPERATE, idem_text("x")));
    assert_true(principal_may(b, SERVER_MAY_OPERATE, idem_text("")));

    assert_int_equal(credentials_text(credentials, "f",
                                      idem_text("b t operate\na s use x"),
                                      &err),
                     IDEM_OK);
    assert_false(principal_valid(a));
    assert_false(principal_may(a, SERVER_MAY_USE, idem_text("x")));
    assert_true(principal_may(b, SERVER_MAY_OPERATE, idem_text("x")));
    principal_put(a);
    principal_put(b);
    credentials_close(credentials);
}

/* Each pair of lines differs in one word, so who logged in with the first one
 * has to log in again. */
static void
every_change_of_a_line_revokes(void **state)
{
    static const char *const pairs[][2] = {
        {"a s use x y", "a s use x z"},
        {"a s use x y", "a s use x"},
        {"a s use x", "a s view x"},
        {"a s use", "a t use"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(pairs) / sizeof(pairs[0]); i++) {
        struct credentials *all;
        struct principal *a;
        struct idem_error err;

        assert_int_equal(credentials_open(NULL, &all, &err), IDEM_OK);
        assert_int_equal(
            credentials_text(all, "f", idem_text(pairs[i][0]), &err), IDEM_OK);
        a = credentials_login(all, idem_text("a"), idem_text("s"));
        assert_non_null(a);
        assert_int_equal(
            credentials_text(all, "f", idem_text(pairs[i][1]), &err), IDEM_OK);
        assert_false(principal_valid(a));
        principal_put(a);
        credentials_close(all);
    }
}

static void
a_certificate_that_changed_revokes_and_a_secret_is_none(void **state)
{
    struct credentials *all;
    struct principal *a;
    struct idem_error err;

    (void)state;
    assert_int_equal(credentials_open(NULL, &all, &err), IDEM_OK);
    assert_int_equal(credentials_text(all, "f",
                                      idem_text("\r\n\ta\tcert:one\tuse\r\n"),
                                      &err),
                     IDEM_OK);
    assert_null(credentials_login(all, idem_text("a"), idem_text("cert:one")));
    assert_null(credentials_certificate(all, "two"));
    a = credentials_certificate(all, "one");
    assert_non_null(a);
    assert_int_equal(
        credentials_text(all, "f", idem_text("a cert:two use"), &err), IDEM_OK);
    assert_false(principal_valid(a));
    principal_put(a);
    credentials_close(all);
    assert_int_equal(credentials_open("/tmp", &all, &err), IDEM_ERR_INVALID);
    assert_non_null(strstr(err.text, "not a file"));
    credentials_close(NULL);
}

static void
a_log_line_is_one_line_whatever_it_holds(void **state)
{
    struct server_log log = {LOG_FORMAT_JSON, LOG_INFO, true, -1};
    char long_text[5000], line[4096];
    int pipe_fds[2];
    ssize_t len;

    (void)state;
    memset(long_text, '\n', sizeof(long_text));
    long_text[sizeof(long_text) - 1] = '\0';
    assert_int_equal(pipe(pipe_fds), 0);
    log.fd = pipe_fds[1];
    server_log(&log, LOG_INFO, "e", LOG_TEXT("long", long_text),
               LOG_KEY(idem_text("a\nb"), idem_text("\"")),
               LOG_NUMBER("n", -5));
    len = read(pipe_fds[0], line, sizeof(line));
    assert_true(len > 100 && len <= 2048);
    assert_true(memchr(line, '\n', (size_t)len) == line + len - 1);
    assert_true(line[0] == '{' && line[len - 2] == '}');
    close(pipe_fds[0]);
    close(pipe_fds[1]);
}

static void
a_histogram_counts_each_time_in_its_bucket(void **state)
{
    static struct server_metrics metrics;

    (void)state;
    metrics_observe(&metrics, IDEM_BEGIN, -3);
    metrics_observe(&metrics, IDEM_BEGIN, 16);
    metrics_observe(&metrics, IDEM_BEGIN, 17);
    metrics_observe(&metrics, IDEM_BEGIN, 32);
    metrics_observe(&metrics, IDEM_BEGIN, 33);
    metrics_observe(&metrics, IDEM_BEGIN, INT64_C(1) << 40);
    assert_int_equal(metrics_read(&metrics.latency[IDEM_BEGIN].bucket[0]), 2);
    assert_int_equal(metrics_read(&metrics.latency[IDEM_BEGIN].bucket[1]), 2);
    assert_int_equal(metrics_read(&metrics.latency[IDEM_BEGIN].bucket[2]), 1);
    assert_int_equal(
        metrics_read(&metrics.latency[IDEM_BEGIN].bucket[METRICS_BUCKETS - 1]),
        1);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_file_sets_every_kind_of_option),
        cmocka_unit_test(an_error_names_the_line),
        cmocka_unit_test(a_wrong_line_is_refused),
        cmocka_unit_test(a_file_or_a_variable_that_cannot_be_used_is_named),
        cmocka_unit_test(every_change_of_a_line_revokes),
        cmocka_unit_test(
            a_certificate_that_changed_revokes_and_a_secret_is_none),
        cmocka_unit_test(listening_wider_needs_credentials),
        cmocka_unit_test(
            a_changed_credential_is_revoked_and_an_unchanged_one_is_not),
        cmocka_unit_test(a_log_line_is_one_line_whatever_it_holds),
        cmocka_unit_test(a_histogram_counts_each_time_in_its_bucket),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
