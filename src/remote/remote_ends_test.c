/*
 * remote_ends_test.c - how operations of a client end that get no reply, and
 * how connecting ends: listings, waits, an engine that is closed, servers that
 * stop, that are silent or that take no connections.
 * Waits more than it works.
 */
#include "../../tests/support/served.h"
#include "remote.h"

#include <netinet/in.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cmocka.h>

#define WAITING 1100 /* more than a client keeps structs for */

struct told {
    atomic_int count;
    enum idem_status status;
    enum idem_verdict verdict;
    char text[sizeof(((struct idem_error *)0)->text)];
};

static void
tell(void *arg, enum idem_status status, const struct idem_answer *answer,
     const struct idem_error *err)
{
    struct told *told = arg;

    told->status = status;
    if (answer)
        told->verdict = answer->verdict;
    snprintf(told->text, sizeof(told->text), "%s", err ? err->text : "");
    atomic_fetch_add(&told->count, 1);
}

static void
wait_for(struct told *told, int count)
{
    for (int i = 0; i < 6000 && atomic_load(&told->count) < count; i++)
        usleep(5000);
    assert_int_equal(atomic_load(&told->count), count);
}

static uint64_t
submit(struct idem_engine *engine, struct idem_op op, struct told *told)
{
    uint64_t ticket = 0;

    op.scope = idem_text("shop");
    assert_int_equal(idem_submit(engine, &op, tell, told, &ticket, NULL),
                     IDEM_OK);
    return ticket;
}

static uint64_t
begin(struct idem_engine *engine, const char *id)
{
    struct idem_answer answer;
    uint64_t fence;

    assert_int_equal(served_do(engine, served_begin(id), &answer), IDEM_OK);
    assert_int_equal(answer.verdict, IDEM_V_STARTED);
    fence = answer.record->fence;
    idem_answer_clear(&answer);
    return fence;
}

static struct idem_op
finish(const char *id, uint64_t fence, struct idem_bytes result)
{
    return (struct idem_op){.verb = IDEM_FINISH,
                            .id = idem_text(id),
                            .fence = fence,
                            .outcome = IDEM_STATE_SUCCEEDED,
                            .result = result};
}

/* ---- operations ------------------------------------------------------------
 */

static bool
no_record(void *arg, const struct idem_record *record)
{
    (void)arg;
    (void)record;
    return true;
}

static void
a_listing_that_gets_no_reply_changed_nothing(void **state)
{
    struct idem_cursor cursor = {"0"};
    struct idem_error err = {0};
    struct served served;
    struct proxy proxy;
    struct idem_engine *engine;
    char url[400];

    (void)state;
    served_start(&served, "memory:", NULL);
    proxy_start(&proxy, &served);
    snprintf(url, sizeof(url), "%s?timeout_ms=600", proxy.url);
    engine = served_open(url);
    atomic_store(&proxy.swallow, true);
    assert_int_equal(
        idem_scan(engine, NULL, &cursor, 10, no_record, NULL, &err),
        IDEM_ERR_UNAVAILABLE);
    assert_int_equal(err.status, IDEM_ERR_UNAVAILABLE);
    assert_string_equal(cursor.text, "0"); /* unchanged */
    if (!strstr(err.text, "nothing was changed"))
        fail_msg("%s", err.text);
    idem_close(engine);
    proxy_stop(&proxy);
    served_stop(&served);
}

static void
each_of_many_that_wait_gets_the_result(void **state)
{
    static struct told told;
    struct idem_op op = served_begin("held");
    struct served served;
    struct idem_engine *engine;
    struct idem_answer answer;
    uint64_t fence;

    (void)state;
    served_start(&served, "memory:", NULL);
    engine = served_open(served.url);
    fence = begin(engine, "held");
    op.wait_ms = 120000;
    for (int i = 0; i < WAITING; i++)
        submit(engine, op, &told);
    assert_int_equal(
        served_do(engine, finish("held", fence, idem_text("x")), &answer),
        IDEM_OK);
    idem_answer_clear(&answer);
    wait_for(&told, WAITING);
    assert_int_equal(told.status, IDEM_OK);
    assert_int_equal(told.verdict, IDEM_V_REPLAY);
    begin(engine, "afterwards");
    idem_close(engine);
    served_stop(&served);
}

static void
only_a_wait_is_cancelled(void **state)
{
    struct idem_op op = served_begin("held");
    struct told waits = {0}, plain = {0};
    struct served served;
    struct idem_engine *engine;
    uint64_t ticket, other;

    (void)state;
    served_start(&served, "memory:", NULL);
    engine = served_open(served.url);
    begin(engine, "held");
    op.wait_ms = 120000;
    ticket = submit(engine, op, &waits);
    served_signal(&served, SIGSTOP); /* so that nothing is answered yet */
    other = submit(engine, served_begin("plain"), &plain);
    idem_cancel(engine, other);
    idem_cancel(engine, 12345678); /* nobody's */
    idem_cancel(engine, ticket);
    served_signal(&served, SIGCONT);
    wait_for(&waits, 1);
    wait_for(&plain, 1);
    assert_int_equal(waits.status, IDEM_ERR_CLOSED);
    assert_int_equal(plain.status, IDEM_OK);
    assert_int_equal(plain.verdict, IDEM_V_STARTED);
    idem_cancel(engine, ticket); /* it is over */
    begin(engine, "afterwards");
    idem_close(engine);
    served_stop(&served);
}

static void
who_waits_at_a_server_that_stops_is_told(void **state)
{
    struct idem_op op = served_begin("held");
    struct told told = {0};
    struct served served;
    struct idem_engine *engine;

    (void)state;
    served_start(&served, "memory:", NULL);
    engine = served_open_quick(served.url);
    begin(engine, "held");
    op.wait_ms = 120000;
    submit(engine, op, &told);
    begin(engine, "other"); /* so the wait is at the server, too */
    served_signal(&served, SIGTERM);
    wait_for(&told, 1);
    assert_int_equal(told.status, IDEM_ERR_UNAVAILABLE);
    assert_string_equal(told.text, "the server is shutting down");
    idem_close(engine);
    served_stop(&served);
}

/* Closing takes as long as a server may take to answer, and no longer. */
static void
what_was_sent_before_the_engine_closed_may_have_been_stored(void **state)
{
    struct told told = {0};
    struct served served;
    struct proxy proxy;
    struct idem_engine *engine, *direct;
    struct idem_answer answer;
    uint64_t fence;
    int64_t start;

    (void)state;
    served_start(&served, "memory:", NULL);
    proxy_start(&proxy, &served);
    engine = served_open(proxy.url);
    direct = served_open(served.url);
    fence = begin(engine, "held");
    atomic_store(&proxy.swallow, true);
    submit(engine, finish("held", fence, idem_text("paid")), &told);
    start = served_now_ms();
    idem_close(engine);
    assert_true(served_now_ms() - start < 20000);
    assert_int_equal(atomic_load(&told.count), 1);
    assert_int_equal(told.status, IDEM_ERR_LOST);
    assert_non_null(strstr(told.text, "closed before the reply came"));
    assert_non_null(strstr(told.text, "it may have been stored"));
    assert_int_equal(served_do(direct, served_begin("held"), &answer), IDEM_OK);
    assert_int_equal(answer.verdict, IDEM_V_REPLAY); /* it had been */
    idem_answer_clear(&answer);
    idem_close(direct);
    proxy_stop(&proxy);
    served_stop(&served);
}

static void
a_settler_gets_the_large_result_that_it_decided(void **state)
{
    static char result[5000];
    struct idem_op op = {.verb = IDEM_SETTLE,
                         .id = idem_text("never"),
                         .outcome = IDEM_STATE_SUCCEEDED,
                         .result = {result, sizeof(result)}};
    struct served served;
    struct idem_engine *engine;
    struct idem_answer answer;

    (void)state;
    memset(result, 'r', sizeof(result));
    served_start(&served, "memory:", NULL);
    engine = served_open(served.url);
    assert_int_equal(served_do(engine, op, &answer), IDEM_OK);
    assert_int_equal(answer.verdict, IDEM_V_SETTLED);
    assert_int_equal(answer.record->result.len, sizeof(result));
    assert_memory_equal(answer.record->result.data, result, sizeof(result));
    idem_answer_clear(&answer);
    idem_close(engine);
    served_stop(&served);
}

static void
no_figure(void *arg, const char *name, double value)
{
    (void)arg;
    fail_msg("%s %f", name, value);
}

static void
a_server_has_no_store_whose_figures_a_client_knows(void **state)
{
    struct served served;
    struct idem_engine *engine;

    (void)state;
    served_start(&served, "journal:", NULL);
    engine = served_open(served.url);
    for (int i = 0; i < 2; i++) {
        idem__store_figures(engine, no_figure, NULL);
        idem__store_figures_kept(engine, no_figure, NULL);
    }
    begin(engine, "afterwards");
    idem_close(engine);
    served_stop(&served);
}

/* ---- connecting ------------------------------------------------------------
 */

static void
must_be_away(const char *url, const char *text)
{
    struct idem_engine *engine = NULL;
    struct idem_error err = {0};
    int64_t start = served_now_ms();

    assert_int_equal(idem_open(url, NULL, &engine, &err), IDEM_ERR_UNAVAILABLE);
    assert_null(engine);
    if (!strstr(err.text, "no server at") || !strstr(err.text, text))
        fail_msg("%s: %s", url, err.text);
    assert_true(served_now_ms() - start < 20000);
}

/* A listener whose queue is full of this many connections. */
static void
fill_queue(const struct sockaddr *at, socklen_t len, int *fds, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        fds[i] = socket(at->sa_family,
                        SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        assert_true(fds[i] >= 0);
        (void)connect(fds[i], at, len);
    }
}

static void
close_all(const int *fds, size_t count)
{
    for (size_t i = 0; i < count; i++)
        close(fds[i]);
}

static void
a_server_that_takes_no_connections_is_away(void **state)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    char folder[200], url[400];
    int fds[4], listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    (void)state;
    make_folder(folder, sizeof(folder));
    snprintf(at.sun_path, sizeof(at.sun_path), "%.90s/s", folder);
    assert_int_equal(bind(listener, (struct sockaddr *)&at, sizeof(at)), 0);
    assert_int_equal(listen(listener, 0), 0);
    fill_queue((struct sockaddr *)&at, sizeof(at), fds, 4);
    snprintf(url, sizeof(url), "idem+unix:%s?timeout_ms=100", at.sun_path);
    must_be_away(url, "Resource temporarily unavailable");
    close_all(fds, 4);
    close(listener);
    remove_folder(folder);
}

/* On TCP: the connection is not taken, or it is, and nothing is said on it. */
static void
a_silent_server_is_away(void **state)
{
    struct sockaddr_in at = {.sin_family = AF_INET,
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(at);
    int fds[4], listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    char url[100];

    (void)state;
    assert_int_equal(bind(listener, (struct sockaddr *)&at, len), 0);
    assert_int_equal(listen(listener, 8), 0);
    assert_int_equal(getsockname(listener, (struct sockaddr *)&at, &len), 0);
    snprintf(url, sizeof(url), "idem://127.0.0.1:%d?timeout_ms=100",
             ntohs(at.sin_port));
    must_be_away(url, ": no reply in time");
    snprintf(url, sizeof(url), "idems://127.0.0.1:%d?timeout_ms=100",
             ntohs(at.sin_port));
    must_be_away(url, "TLS: no reply in time");
    assert_int_equal(listen(listener, 0), 0);
    fill_queue((struct sockaddr *)&at, len, fds, 4);
    snprintf(url, sizeof(url), "idem://127.0.0.1:%d?timeout_ms=100",
             ntohs(at.sin_port));
    must_be_away(url, "Connection timed out");
    close_all(fds, 4);
    close(listener);
}

static void
a_host_without_an_address_is_away(void **state)
{
    (void)state;
    must_be_away("idem://[fe80::1%no-such-link]:1", "not known");
}

static void
an_address_is_wrong_before_anything_is_sent(void **state)
{
    char url[1200];
    struct idem_engine *engine = NULL;
    struct idem_error err = {0};
    int len = snprintf(url, sizeof(url), "idem+unix:/x?auth-file=/");

    (void)state;
    memset(url + len, 'f', sizeof(url) - 1 - (size_t)len);
    url[sizeof(url) - 1] = 0;
    assert_int_equal(idem_open(url, NULL, &engine, &err), IDEM_ERR_INVALID);
    assert_string_equal(err.text, "\"idem+unix:/x\": is too long");
    url[sizeof("idem+unix:") - 1 + 108] = 0;
    memset(url + sizeof("idem+unix:") - 1, 'f', 108);
    assert_int_equal(idem_open(url, NULL, &engine, &err), IDEM_ERR_INVALID);
    assert_non_null(strstr(err.text, "a socket's path has 1 to 107 bytes"));
    assert_int_equal(
        idem_open("idem+unix:/x?timeout_ms=99", NULL, &engine, &err),
        IDEM_ERR_INVALID);
    assert_non_null(strstr(err.text, "give a number from 100 to 3600000"));
    assert_null(engine);
    assert_false(idem__remote_url(NULL));
    assert_false(idem__remote_url("idem:x"));
    assert_true(idem__remote_url("idems://h"));
}

/* ---- a line for other commands ---------------------------------------------
 */

static enum idem_status
ask(struct idem__remote_line *line, const char *word, struct idem_error *err)
{
    struct idem__wire_args args = {.count = 0};
    struct idem__wire_reply reply;

    idem__wire_add(&args, idem_text(word));
    return idem__remote_line_ask(line, &args, &reply, err);
}

static void
a_line_connects_again_when_its_server_is_back(void **state)
{
    struct idem__remote_line line;
    struct idem_error err = {0};
    struct served served;

    (void)state;
    served_start(&served, "memory:", NULL);
    assert_int_equal(idem__remote_line_open(served.url, &line, &err), IDEM_OK);
    assert_int_equal(ask(&line, "PING", &err), IDEM_OK);
    assert_int_equal(ask(&line, "NONSENSE", &err), IDEM_ERR_INVALID);
    assert_non_null(strstr(err.text, "NONSENSE"));
    served_signal(&served, SIGKILL);
    assert_int_equal(ask(&line, "PING", &err), IDEM_ERR_UNAVAILABLE);
    assert_non_null(strstr(err.text, "no server at"));
    served_again(&served);
    assert_int_equal(ask(&line, "PING", &err), IDEM_OK);
    idem__remote_line_close(&line);
    served_signal(&served, SIGKILL);
    assert_int_equal(idem__remote_line_open(served.url, &line, &err),
                     IDEM_ERR_UNAVAILABLE);
    assert_int_equal(line.link.fd, -1);
    assert_int_equal(idem__remote_line_open("idem+unix:", &line, &err),
                     IDEM_ERR_INVALID);
    served_stop(&served);
}

int
main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_listing_that_gets_no_reply_changed_nothing),
        cmocka_unit_test(each_of_many_that_wait_gets_the_result),
        cmocka_unit_test(only_a_wait_is_cancelled),
        cmocka_unit_test(who_waits_at_a_server_that_stops_is_told),
        cmocka_unit_test(
            what_was_sent_before_the_engine_closed_may_have_been_stored),
        cmocka_unit_test(a_settler_gets_the_large_result_that_it_decided),
        cmocka_unit_test(a_server_has_no_store_whose_figures_a_client_knows),
        cmocka_unit_test(a_server_that_takes_no_connections_is_away),
        cmocka_unit_test(a_silent_server_is_away),
        cmocka_unit_test(a_host_without_an_address_is_away),
        cmocka_unit_test(an_address_is_wrong_before_anything_is_sent),
        cmocka_unit_test(a_line_connects_again_when_its_server_is_back),
    };
    int code;

    if (served_main(argc, argv, &code))
        return code;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
