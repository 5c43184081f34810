/*
 * http_alloc_test.c - lets each allocation fail once while a request is read
 * and while a reply is written. The request and the reply are right, or the
 * failure is "out of memory": never another request, never half a reply.
 */
#include "http.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* The linker calls these instead of the real functions (see the Makefile). */
void *__real_malloc(size_t len);
void *__real_calloc(size_t count, size_t len);
void *__real_realloc(void *old, size_t len);
void *__wrap_malloc(size_t len);
void *__wrap_calloc(size_t count, size_t len);
void *__wrap_realloc(void *old, size_t len);

static long countdown; /* 0: no failure; 1: the next allocation fails */

static bool
fails_now(void)
{
    return countdown > 0 && --countdown == 0;
}

void *
__wrap_malloc(size_t len)
{
    return fails_now() ? NULL : __real_malloc(len);
}

void *
__wrap_calloc(size_t count, size_t len)
{
    return fails_now() ? NULL : __real_calloc(count, len);
}

void *
__wrap_realloc(void *old, size_t len)
{
    return fails_now() ? NULL : __real_realloc(old, len);
}

static const char long_subject[] =
    "0123456789abcdefghijklmnopqrstuvwxyz0123456789abcdefghijklmnopqrstuvwxyz";

static enum idem_status
read_one(const char *query, const char *body, struct http_call *call,
         struct idem_arena *memory)
{
    const char *verb = *body ? "/begin" : "";
    struct idem_error err = {0};
    struct http_path path;
    char allow[128], target[64];
    enum idem_status status;

    snprintf(target, sizeof(target), "/v1/records/sh%%6fp/7%s", verb);
    status = http_path_read(idem_text(target), memory, &path, &err);
    if (status == IDEM_OK)
        status = http_call_read(call,
                                http_route_find(*body ? "POST" : "DELETE",
                                                &path, allow, sizeof(allow)),
                                &path, idem_text(query), idem_text(body), &err);
    if (status != IDEM_OK)
        if (status != IDEM_ERR_MEMORY)
            fail_msg("%s", err.text);
    return status;
}

/* Returns after a call that needed no more allocations than were granted. */
static void
read_with_failures(const char *query, const char *body)
{
    enum idem_status status;
    int failures = 0;
    bool all = false;

    for (long n = 1; !all; n++) {
        struct idem_arena memory = {0};
        struct http_call call = {0};

        countdown = n;
        status = read_one(query, body, &call, &memory);
        all = countdown > 0;
        countdown = 0;
        failures += status != IDEM_OK;
        if (status == IDEM_OK) {
            assert_true(idem__bytes_is(call.op.scope, "shop"));
            assert_true(idem__bytes_is(call.op.id, "7"));
        }
        if (status == IDEM_OK && *body) {
            assert_int_equal(call.op.lease_ms, 500);
            assert_int_equal(call.op.nonce[7], 8);
            assert_true(idem__bytes_is(call.op.subject, long_subject));
        }
        http_call_clear(&call);
        idem_arena_clear(&memory);
    }
    assert_int_equal(status, IDEM_OK);
    assert_true(failures > 0);
}

static void
a_request_is_read_right_or_there_is_no_memory(void **state)
{
    char body[256];

    (void)state;
    snprintf(body, sizeof(body),
             "{\"lease_ms\": 500, \"nonce\": \"0102030405060708\","
             " \"subject\": \"%s\"}",
             long_subject);
    read_with_failures("", body);
    read_with_failures("reason=requ%65st", "");
}

static void
a_reply_is_whole_or_there_is_no_memory(void **state)
{
    const char *wanted = "{\"result\":\"r\xc3\xa9sultat 7, long enough to need "
                         "more room\",\"result_base64\":\"csOpc3VsdGF0IDcsIGxv"
                         "bmcgZW5vdWdoIHRvIG5lZWQgbW9yZSByb29t\"}";
    int failures = 0;
    bool all = false;
    char *text = NULL;

    (void)state;
    for (long n = 1; !all; n++) {
        json_t *json;

        countdown = n;
        server_json_begin();
        json = json_object();
        if (json && !http_put_bytes(json, "result",
                                    idem_text("r\xc3\xa9sultat 7, long enough "
                                              "to need more room"),
                                    true)) {
            json_decref(json);
            json = NULL;
        }
        text = server_json_text(json);
        all = countdown > 0;
        countdown = 0;
        failures += !text;
        if (text)
            assert_string_equal(text, wanted);
        assert_true(text || !all);
        free(text);
    }
    assert_true(failures > 0);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_request_is_read_right_or_there_is_no_memory),
        cmocka_unit_test(a_reply_is_whole_or_there_is_no_memory),
    };

    server_json_watch();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
