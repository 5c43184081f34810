/*
 * remote_greet_test.c - tests the client of idem:// with servers that are not
 * idem servers, and with replies that an idem server never sends.
 */
#include "../../tests/support/served.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cmocka.h>

#define INFO "$36\r\nidem_version:1\r\nmax_result:1000000\r\n\r\n"
#define FIRST_INFO "$14\r\nidem_version:1\r\n"
#define HANG_UP NULL
#define PATIENCE_MS 20000 /* a busy machine is slow */

/* A server that gives these replies, one to each message, and then hangs up on
 * the client, or says nothing more. */
struct fake {
    char folder[200], url[300];
    const char *const *replies;
    bool holds;
    int listener;
    pthread_t thread;
};

static void
talk(const struct fake *fake, int fd)
{
    char heard[4096];
    size_t i = 0;

    while (recv(fd, heard, sizeof(heard), 0) > 0) {
        const char *reply = fake->replies[i];

        if (!reply && !fake->holds)
            return;
        if (!reply)
            continue;
        if (send(fd, reply, strlen(reply), MSG_NOSIGNAL) < 0)
            return;
        i++;
    }
}

static void *
serve(void *arg)
{
    struct fake *fake = arg;

    for (;;) {
        int fd = accept(fake->listener, NULL, NULL);

        if (fd < 0)
            return NULL;
        talk(fake, fd);
        close(fd);
    }
}

static void
fake_start(struct fake *fake, const char *const *replies, bool holds,
           int timeout_ms)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};

    make_folder(fake->folder, sizeof(fake->folder));
    snprintf(at.sun_path, sizeof(at.sun_path), "%.90s/s", fake->folder);
    snprintf(fake->url, sizeof(fake->url), "idem+unix:%s?timeout_ms=%d",
             at.sun_path, timeout_ms);
    fake->replies = replies;
    fake->holds = holds;
    fake->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fake->listener, (struct sockaddr *)&at, sizeof(at)),
                     0);
    assert_int_equal(listen(fake->listener, 16), 0);
    assert_int_equal(pthread_create(&fake->thread, NULL, serve, fake), 0);
}

static void
fake_stop(struct fake *fake)
{
    shutdown(fake->listener, SHUT_RDWR);
    pthread_join(fake->thread, NULL);
    close(fake->listener);
    remove_folder(fake->folder);
}

static void
greeted(const char *const *replies, bool holds, enum idem_status want,
        const char *text)
{
    struct idem_engine *engine = NULL;
    struct idem_error err = {0};
    struct fake fake;
    enum idem_status status;

    fake_start(&fake, replies, holds,
               strstr(text, "in time") ? 300 : PATIENCE_MS);
    status = idem_open(fake.url, NULL, &engine, &err);
    if (status != want || !strstr(err.text, text))
        fail_msg("%s: %s: %s", replies[0] ? replies[0] : "(nothing)",
                 idem_status_name(status), err.text);
    assert_true((status == IDEM_OK) == (engine != NULL));
    idem_close(engine);
    fake_stop(&fake);
}

static void
who_does_not_greet_as_idem_does_is_told(void **state)
{
    static const struct {
        const char *replies[3];
        bool holds;
        enum idem_status want;
        const char *text;
    } cases[] = {
        {{INFO}, true, IDEM_OK, ""},
        {{FIRST_INFO}, true, IDEM_OK, ""}, /* limits are not said */
        {{"-NOPERM no INFO for you\r\n"}, true, IDEM_OK, ""},
        {{"-ERR what\r\n"}, true, IDEM_ERR_INVALID, "what"},
        {{"-UNAVAILABLE later\r\n"}, true, IDEM_ERR_UNAVAILABLE, "later"},
        {{":7\r\n"}, true, IDEM_ERR_UNSUPPORTED, "is this an idem server?"},
        {{"*1\r\n:7\r\n"}, true, IDEM_ERR_UNSUPPORTED, "is this an idem"},
        {{"$5\r\nhello\r\n"}, true, IDEM_ERR_UNSUPPORTED, "is this an idem"},
        {{"$999999999\r\n"}, true, IDEM_ERR_UNSUPPORTED, "is this an idem"},
        {{"HTTP/1.1 400 Bad\r\n\r\n"}, true, IDEM_ERR_UNSUPPORTED, "is this"},
        {{HANG_UP}, false, IDEM_ERR_UNAVAILABLE, "it closed the connection"},
        {{"$14\r\nidem"}, true, IDEM_ERR_UNAVAILABLE, "no reply in time"},
        {{NULL}, true, IDEM_ERR_UNAVAILABLE, "no reply in time"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        greeted(cases[i].replies, cases[i].holds, cases[i].want, cases[i].text);
}

static void
who_does_not_log_in_as_idem_does_is_told(void **state)
{
    static const char *const no[] = {"-WRONGPASS no\r\n", NULL};
    static const char *const yes[] = {"+OK\r\n", INFO, NULL};
    static const char *const nothing[] = {NULL};

    (void)state;
    setenv("IDEM_AUTH", ":s3cret", 1); /* a secret without a name */
    greeted(no, true, IDEM_ERR_INVALID, "WRONGPASS no");
    greeted(yes, true, IDEM_OK, "");
    greeted(nothing, false, IDEM_ERR_UNAVAILABLE, "it closed the connection");
    setenv("IDEM_AUTH", "", 1);
    greeted(yes + 1, true, IDEM_OK, "");
    unsetenv("IDEM_AUTH");
}

/* A reply that is none: the operation may have been done. */
static void
an_unexpected_reply_is_no_answer(void **state)
{
    static const char *const wrong[] = {
        ":7\r\n",
        "+what\r\n",
        "*0\r\n",
        "*2\r\n:7\r\n:8\r\n",
        "?\r\n",
        "$999999999\r\n",
        "*1\r\n$7\r\nnothing\r\n",
        "-ERR no\r\n",
        "-LOST maybe\r\n",
    };

    (void)state;
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        const char *replies[] = {INFO, wrong[i], NULL};
        struct idem_engine *engine = NULL;
        struct idem_answer answer;
        struct idem_error err = {0};
        struct fake fake;
        enum idem_status status;

        fake_start(&fake, replies, false, 300); /* it is sent until then */
        for (int tries = 0; tries < 50 && !engine; tries++)
            (void)idem_open(fake.url, NULL, &engine, &err);
        if (!engine)
            fail_msg("%s", err.text);
        status = served_do(engine, served_begin("one"), &answer);
        if (status != IDEM_ERR_LOST)
            fail_msg("%s: %s", wrong[i], idem_status_name(status));
        idem_answer_clear(&answer);
        idem_close(engine);
        fake_stop(&fake);
    }
}

/* ---- the file with the secret ------------------------------------------ */

static void
a_file_without_a_name_and_a_secret_is_refused(void **state)
{
    static const struct {
        const char *text;
        bool good;
    } files[] = {
        {"ann s3cret\n", true},
        {"# a comment\n\nann:s3cret\n", true},
        {"ann  \ts3cret  # who\n", true},
        {"", false},
        {"\n\n", false},
        {"# a comment", false},
        {"ann\n", false},
        {":s3cret\n", false},
        {"ann   \n", false},
    };
    static const char *const replies[] = {"+OK\r\n", INFO, NULL};

    (void)state;
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        struct idem_engine *engine = NULL;
        struct idem_error err = {0};
        char path[300], url[700];
        struct fake fake;
        FILE *file;

        fake_start(&fake, replies, true, PATIENCE_MS);
        snprintf(path, sizeof(path), "%s/auth", fake.folder);
        file = fopen(path, "w");
        assert_non_null(file);
        fputs(files[i].text, file);
        fclose(file);
        assert_int_equal(chmod(path, 0600), 0);
        snprintf(url, sizeof(url), "%s&auth-file=%s", fake.url, path);
        if ((idem_open(url, NULL, &engine, &err) == IDEM_OK) != files[i].good)
            fail_msg("\"%s\": %s", files[i].text, err.text);
        if (!files[i].good)
            assert_non_null(strstr(err.text, "no line \"name secret\""));
        assert_null(strstr(err.text, "s3cret"));
        idem_close(engine);
        fake_stop(&fake);
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(who_does_not_greet_as_idem_does_is_told),
        cmocka_unit_test(who_does_not_log_in_as_idem_does_is_told),
        cmocka_unit_test(an_unexpected_reply_is_no_answer),
        cmocka_unit_test(a_file_without_a_name_and_a_secret_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
