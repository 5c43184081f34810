/*
 * http_call_test.c - parse requests into calls, without a socket.
 */
#include "http.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static struct http_call call;
static struct idem_arena memory;
static struct idem_error err;

static enum idem_status
ask(const char *method, const char *target, const char *body)
{
    const char *mark = strchr(target, '?');
    struct idem_bytes raw = {target,
                             mark ? (size_t)(mark - target) : strlen(target)};
    const struct http_route *route;
    struct http_path path;
    enum idem_status status;
    char allow[128];

    http_call_clear(&call);
    idem_arena_clear(&memory);
    status = http_path_read(raw, &memory, &path, &err);
    if (status != IDEM_OK)
        return status;
    route = http_route_find(method, &path, allow, sizeof(allow));
    assert_non_null(route);
    return http_call_read(&call, route, &path, idem_text(mark ? mark + 1 : ""),
                          idem_text(body), &err);
}

static void
a_begin_takes_every_field(void **state)
{
    (void)state;
    assert_int_equal(
        ask("POST", "/v1/records/shop/order-7/begin",
            "{\"lease_ms\": 500, \"ttl_ms\": 1000, \"wait_ms\": 10,"
            " \"mode\": \"loose\", \"token\": true, \"subject\": \"me\","
            " \"nonce\": \"0102030405060708\"}"),
        IDEM_OK);
    assert_int_equal(call.op.verb, IDEM_BEGIN);
    assert_int_equal(call.op.lease_ms, 500);
    assert_int_equal(call.op.ttl_ms, 1000);
    assert_int_equal(call.op.wait_ms, 10);
    assert_int_equal(call.op.mode, IDEM_LOOSE);
    assert_int_equal(call.op.type, IDEM_TYPE_TOKEN);
    assert_int_equal(call.op.nonce[7], 8);
    assert_true(idem__bytes_is(call.op.id, "order-7"));
}

static void
names_in_a_path_may_hold_any_byte_but_nul(void **state)
{
    char target[1024] = "/v1/records/";
    uint8_t scope[IDEM_SCOPE_MAX];

    (void)state;
    for (size_t i = 0; i < sizeof(scope); i++) {
        scope[i] = (uint8_t)(i + 56); /* wraps around to 255, skips 0 */
        snprintf(target + strlen(target), 4, "%%%02x", scope[i]);
    }
    snprintf(target + strlen(target), 16, "/a%%2Fb%%2fc");
    assert_int_equal(ask("GET", target, ""), IDEM_OK);
    assert_int_equal(call.op.scope.len, sizeof(scope));
    assert_memory_equal(call.op.scope.data, scope, sizeof(scope));
    assert_true(idem__bytes_is(call.op.id, "a/b/c"));

    assert_int_equal(ask("GET", "/v1/records/a/b%00", ""), IDEM_ERR_INVALID);
    assert_non_null(strstr(err.text, "NUL"));
    assert_int_equal(ask("GET", "/v1/records/a/b%4", ""), IDEM_ERR_INVALID);
    assert_int_equal(ask("GET", "/v1/records/a/b%zz", ""), IDEM_ERR_INVALID);
    assert_int_equal(ask("GET", "/v1/records//b", ""), IDEM_ERR_INVALID);
}

static void
a_wrong_field_is_named(void **state)
{
    static const char *const bad[][2] = {
        {"{\"lease\": 5}", "lease: "},
        {"{\"lease_ms\": \"5\"}", "lease_ms: "},
        {"{\"lease_ms\": 5.0}", "lease_ms: "},
        {"{\"lease_ms\": 0}", "lease_ms: "},
        {"{\"lease_ms\": -1}", "lease_ms: "},
        {"{\"lease_ms\": 99999999999999}", "lease_ms: "},
        {"{\"lease_ms\": null}", "lease_ms: "},
        {"{\"mode\": \"STRICT\"}", "mode: "},
        {"{\"token\": 1}", "token: "},
        {"{\"nonce\": \"01\"}", "nonce: "},
        {"{\"nonce\": \"0102030405060708090a\"}", "nonce: "},
        {"{\"nonce\": \"010203040506070g\"}", "nonce: "},
        {"{\"fingerprint\": \"\"}", "fingerprint: "},
        {"{\"subject\": \"\"}", "subject: "},
        {"{\"fence\": 1}", "fence: "},
        {"[]", "object"},
        {"{}x", "JSON"},
        {"{\"mode\": \"loose\", \"mode\": \"strict\"}", "JSON"},
        {"\xff", "JSON"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        assert_int_equal(ask("POST", "/v1/records/a/b/begin", bad[i][0]),
                         IDEM_ERR_INVALID);
        if (!strstr(err.text, bad[i][1]))
            fail_msg("%s gave: %s", bad[i][0], err.text);
    }
}

static void
a_result_comes_as_text_or_base64_but_not_both(void **state)
{
    (void)state;
    assert_int_equal(ask("POST", "/v1/records/a/b/finish",
                         "{\"fence\": 1, \"outcome\": \"succeeded\","
                         " \"result\": \"h\\u0000i\"}"),
                     IDEM_OK);
    assert_int_equal(call.op.result.len, 3);
    assert_int_equal(ask("POST", "/v1/records/a/b/finish",
                         "{\"fence\": 1, \"outcome\": \"succeeded\","
                         " \"result_base64\": \"AP8B\"}"),
                     IDEM_OK);
    assert_memory_equal(call.op.result.data, "\0\xff\1", 3);
    assert_int_equal(ask("POST", "/v1/records/a/b/finish",
                         "{\"fence\": 1, \"outcome\": \"succeeded\","
                         " \"result\": \"\", \"result_base64\": \"\"}"),
                     IDEM_ERR_INVALID);
    assert_int_equal(ask("POST", "/v1/records/a/b/finish",
                         "{\"fence\": 1, \"outcome\": \"succeeded\","
                         " \"result_base64\": \"A\"}"),
                     IDEM_ERR_INVALID);
    assert_int_equal(
        ask("POST", "/v1/records/a/b/finish", "{\"outcome\": \"succeeded\"}"),
        IDEM_ERR_INVALID);
    assert_non_null(strstr(err.text, "fence: is missing"));
}

static void
a_query_is_as_strict_as_a_body(void **state)
{
    (void)state;
    assert_int_equal(
        ask("GET", "/v1/records?scope=a+%2b&count=7&doubt=true", ""), IDEM_OK);
    assert_true(idem__bytes_is(call.filter.scope, "a +"));
    assert_int_equal(call.count, 7);
    assert_true(call.filter.doubt);
    assert_int_equal(ask("GET", "/v1/records?count=7&count=8", ""),
                     IDEM_ERR_INVALID);
    assert_int_equal(ask("GET", "/v1/records?count=+7", ""), IDEM_ERR_INVALID);
    assert_int_equal(ask("GET", "/v1/records?count=7x", ""), IDEM_ERR_INVALID);
    assert_int_equal(ask("GET", "/v1/records?count=", ""), IDEM_ERR_INVALID);
    assert_int_equal(ask("GET", "/v1/records?wat", ""), IDEM_ERR_INVALID);
    assert_int_equal(ask("GET", "/v1/records/a/b?x=1", ""), IDEM_ERR_INVALID);
    assert_int_equal(ask("DELETE", "/v1/locks/a", ""), IDEM_ERR_INVALID);
    assert_int_equal(ask("DELETE", "/v1/locks/a?fence=9", ""), IDEM_OK);
    assert_int_equal(call.op.fence, 9);
}

static void
bytes_that_are_no_text_come_as_base64(void **state)
{
    struct idem_record record = {.state = IDEM_STATE_SUCCEEDED};
    struct idem_answer answer = {.verdict = IDEM_V_REPLAY, .record = &record};
    json_t *json;

    (void)state;
    record.result = (struct idem_bytes){"\xff\xfe", 2};
    json = http_answer(&answer, IDEM_BEGIN);
    assert_null(json_object_get(json, "result"));
    assert_string_equal(
        json_string_value(json_object_get(json, "result_base64")), "//4=");
    json_decref(json);

    record.result = idem_text("h\xc3\xa9");
    json = http_answer(&answer, IDEM_BEGIN);
    assert_string_equal(json_string_value(json_object_get(json, "result")),
                        "h\xc3\xa9");
    json_decref(json);
}

static void
the_description_has_every_route(void **state)
{
    json_t *openapi = http_openapi(IDEM_PROBLEM_BASE, true);

    (void)state;
    assert_non_null(openapi);
    for (size_t i = 0; i < http_route_count; i++) {
        json_t *item = json_object_get(json_object_get(openapi, "paths"),
                                       http_routes[i].path);
        bool found = false;
        const char *method;
        json_t *operation;

        json_object_foreach(item, method, operation) found |=
            strcasecmp(method, http_routes[i].method) == 0;
        assert_true(found);
    }
    json_decref(openapi);
}

static int
clear(void **state)
{
    (void)state;
    http_call_clear(&call);
    idem_arena_clear(&memory);
    return 0;
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_begin_takes_every_field),
        cmocka_unit_test(names_in_a_path_may_hold_any_byte_but_nul),
        cmocka_unit_test(a_wrong_field_is_named),
        cmocka_unit_test(a_result_comes_as_text_or_base64_but_not_both),
        cmocka_unit_test(a_query_is_as_strict_as_a_body),
        cmocka_unit_test(bytes_that_are_no_text_come_as_base64),
        cmocka_unit_test(the_description_has_every_route),
    };

    return cmocka_run_group_tests(tests, NULL, clear);
}
