/*
 * sink_http_alloc_test.c - lets each allocation of a POST fail once: in idem's
 * code, in libcurl and in jansson. No request goes out without its key, and a
 * response that says "unknown" never becomes "nothing happened".
 */
#include "../../tests/support/failing_alloc.h"
#include "../base/json_memory.h"
#include "sink.h"

#include <curl/curl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#define LEAST 20 /* allocations of a POST */

static _Thread_local bool counting;
static size_t allocations, fail_at;

static bool
alloc_fails(size_t calloc_len)
{
    (void)calloc_len;
    return counting && ++allocations == fail_at;
}

/* ---- the service: executes the request, and does not know the outcome ---- */

struct service {
    int listener;
    const char *response;
    char url[64];
    int requests, without_key; /* atomic */
};

static void
answer(struct service *service, int fd)
{
    char request[8192];
    size_t len = 0;
    ssize_t n;

    while ((n = read(fd, request + len, sizeof(request) - 1 - len)) > 0) {
        len += (size_t)n;
        request[len] = 0;
        if (strstr(request, "\r\n\r\nbody"))
            break;
    }
    if (n <= 0)
        return;
    __atomic_fetch_add(&service->requests, 1, __ATOMIC_SEQ_CST);
    if (!strstr(request, "\r\nIdempotency-Key: \"order-7\"\r\n") ||
        !strstr(request, "\r\nIdem-Fence: 5\r\n"))
        __atomic_fetch_add(&service->without_key, 1, __ATOMIC_SEQ_CST);
    assert_int_equal(write(fd, service->response, strlen(service->response)),
                     strlen(service->response));
}

static void *
serve(void *arg)
{
    struct service *service = arg;
    int fd;

    while ((fd = accept(service->listener, NULL, NULL)) >= 0) {
        answer(service, fd);
        close(fd);
    }
    return NULL;
}

static pthread_t
start(struct service *service, const char *response)
{
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(address);
    pthread_t thread;

    memset(service, 0, sizeof(*service));
    service->response = response;
    service->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(service->listener, (struct sockaddr *)&address, len),
                     0);
    assert_int_equal(listen(service->listener, 16), 0);
    assert_int_equal(
        getsockname(service->listener, (struct sockaddr *)&address, &len), 0);
    snprintf(service->url, sizeof(service->url), "http://127.0.0.1:%d/",
             ntohs(address.sin_port));
    assert_int_equal(pthread_create(&thread, NULL, serve, service), 0);
    return thread;
}

static void
stop(struct service *service, pthread_t thread)
{
    shutdown(service->listener, SHUT_RDWR);
    pthread_join(thread, NULL);
    close(service->listener);
}

/* ---- the tests ------------------------------------------------------------
 */

/* One POST in which the n-th allocation fails. */
static enum idem_handled
post(const struct service *service, size_t n)
{
    const struct idem_header type = {idem_text("content-type"),
                                     idem_text("text/plain")};
    const struct idem_message message = {.scope = idem_text("s"),
                                         .id = idem_text("order-7"),
                                         .body = idem_text("body"),
                                         .headers = &type,
                                         .header_count = 1,
                                         .fence = 5,
                                         .attempt = 1};
    struct http_sink *sink;
    struct idem_error err = {0};
    enum idem_handled handled;

    assert_int_equal(http_sink_open(service->url, 10000, &sink, &err), IDEM_OK);
    allocations = 0;
    fail_at = n;
    counting = true;
    handled = http_sink_handle(sink, &message, &err);
    counting = false;
    http_sink_close(sink);
    return handled;
}

static void
post_with_each_failure(const char *response, enum idem_handled wanted)
{
    struct service service;
    pthread_t thread = start(&service, response);
    size_t all;

    assert_int_equal(post(&service, 0), wanted);
    all = allocations;
    assert_true(all >= LEAST);
    for (size_t n = 1; n <= all; n++) {
        int before = __atomic_load_n(&service.requests, __ATOMIC_SEQ_CST);
        enum idem_handled handled = post(&service, n);
        bool came =
            __atomic_load_n(&service.requests, __ATOMIC_SEQ_CST) > before;

        if (came && handled != wanted && handled != IDEM_UNCLEAR)
            fail_msg("allocation %zu: the request came, and it counts as %d", n,
                     handled);
        if (!came && handled != IDEM_AWAY && handled != IDEM_NOT_HANDLED &&
            handled != IDEM_UNCLEAR)
            fail_msg("allocation %zu: no request came, and it counts as %d", n,
                     handled);
    }
    stop(&service, thread);
    assert_int_equal(service.without_key, 0);
    print_message("%zu allocations failed\n", all);
}

#define PROBLEM(class)                                                         \
    "HTTP/1.1 503 Service Unavailable\r\n"                                     \
    "Content-Type: application/problem+json\r\n"                               \
    "Connection: close\r\n\r\n"                                                \
    "{\"class\": \"" class "\", \"retryable\": false}"

static void
an_unknown_outcome_stays_unknown_without_memory(void **state)
{
    (void)state;
    post_with_each_failure(PROBLEM("outcome unknown"), IDEM_UNCLEAR);
}

static void
a_failed_request_never_counts_as_not_begun_without_memory(void **state)
{
    (void)state;
    post_with_each_failure(PROBLEM("failed for good"), IDEM_POISON);
}

static void
a_handled_message_is_never_retried_without_memory(void **state)
{
    (void)state;
    post_with_each_failure("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n"
                           "Connection: close\r\n\r\nok",
                           IDEM_HANDLED);
}

static void *
take(size_t len)
{
    return malloc(len);
}

static void *
take_zeroed(size_t count, size_t len)
{
    return calloc(count, len);
}

static void *
resize(void *old, size_t len)
{
    return realloc(old, len);
}

static char *
copy(const char *text)
{
    return strdup(text);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_unknown_outcome_stays_unknown_without_memory),
        cmocka_unit_test(
            a_failed_request_never_counts_as_not_begun_without_memory),
        cmocka_unit_test(a_handled_message_is_never_retried_without_memory),
    };

    /* Their allocations are ours, too. */
    if (curl_global_init_mem(CURL_GLOBAL_DEFAULT, take, free, resize, copy,
                             take_zeroed) != 0)
        return 1;
    idem__json_watch();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
