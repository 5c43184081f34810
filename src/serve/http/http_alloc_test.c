/*
 * http_alloc_test.c - lets each allocation fail once while a request is read,
 * while a reply is written, and while an operator's action is written to the
 * audit trail. The request and the reply are right, or the failure is "out of
 * memory": never another request, never half a reply.
 */
#include "../../../tests/support/failing_alloc.h"
#include "../core/audit.h"
#include "../core/json_record.h"
#include "http.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static long countdown; /* 0: no failure; 1: the next allocation fails */

static bool
alloc_fails(size_t calloc_len)
{
    (void)calloc_len;
    return countdown > 0 && --countdown == 0;
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
        idem__json_begin();
        json = json_object();
        if (json &&
            !server_json_put_bytes(json, "result",
                                   idem_text("r\xc3\xa9sultat 7, long enough "
                                             "to need more room"),
                                   true)) {
            json_decref(json);
            json = NULL;
        }
        text = idem__json_text(json);
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

/* ---- the audit trail --------------------------------------------------- */

static const char *const fields[] = {"time",  "who",     "from",    "surface",
                                     "verb",  "outcome", "verdict", "before",
                                     "after", "scope",   "id",      "reason"};
#define FIELDS (sizeof(fields) / sizeof(fields[0]))

static void
must_be_whole(const json_t *entry)
{
    assert_int_equal(json_object_size(entry), FIELDS);
    for (size_t i = 0; i < FIELDS; i++)
        if (!json_object_get(entry, fields[i]))
            fail_msg("%s is missing", fields[i]);
}

struct listed {
    int of_shop, of_others;
};

static void
count_entry(void *arg, const json_t *entry)
{
    struct listed *listed = arg;
    const char *scope = json_string_value(json_object_get(entry, "scope"));

    must_be_whole(entry);
    listed->of_shop += strcmp(scope, "shop") == 0;
    listed->of_others += strcmp(scope, "shop") != 0;
}

static void
forget(struct audit *audit, const char *scope)
{
    const struct audit_source source = {.who = "ann", .from = "uid=1 pid=2"};
    const struct idem_op op = {.verb = IDEM_FORGET,
                               .scope = idem_text(scope),
                               .id = idem_text("order-7"),
                               .subject = idem_text(long_subject)};
    const struct idem_record record = {.state = IDEM_STATE_FREE};
    const struct idem_answer answer = {.verdict = IDEM_V_OK, .record = &record};

    audit_add(audit, NULL,
              &(struct audit_event){&source, "resp", &op, IDEM_OK, &answer});
}

/* The number of lines; each must be whole. */
static int
read_lines(const char *path)
{
    FILE *in = fopen(path, "re");
    char line[1024];
    int count = 0;

    assert_non_null(in);
    for (; fgets(line, sizeof(line), in); count++) {
        json_t *entry = json_loads(line, 0, NULL);

        must_be_whole(entry);
        json_decref(entry);
    }
    fclose(in);
    return count;
}

static void
an_audit_line_is_whole_or_not_there(void **state)
{
    char path[] = "/tmp/idem-audit-XXXXXX";
    struct audit *audit;
    struct listed listed = {0, 0};
    bool all = false;
    int written = 0, tries = 0;

    (void)state;
    close(mkstemp(path));
    assert_int_equal(audit_open(path, 1 << 20, &audit, NULL), IDEM_OK);
    for (long n = 1; !all; n++, tries++) {
        countdown = n;
        forget(audit, "shop");
        all = countdown > 0;
        countdown = 0;
    }
    written = read_lines(path);
    assert_true(written > 0 && written < tries);
    assert_true(audit_list(audit, &(struct audit_filter){.count = 1000},
                           count_entry, &listed));
    assert_true(listed.of_shop >= written && listed.of_shop < tries);
    audit_close(audit);
    unlink(path);
}

static void
a_list_without_memory_shows_no_other_scope(void **state)
{
    const struct audit_filter filter = {.scope = idem_text("shop"),
                                        .count = 10};
    struct audit *audit;
    bool all = false;
    int failures = 0;

    (void)state;
    assert_int_equal(audit_open(NULL, 0, &audit, NULL), IDEM_OK);
    forget(audit, "shop");
    forget(audit, "bank");
    for (long n = 1; !all; n++) {
        struct listed listed = {0, 0};
        bool whole;

        countdown = n;
        whole = audit_list(audit, &filter, count_entry, &listed);
        all = countdown > 0;
        countdown = 0;
        failures += !whole;
        assert_int_equal(listed.of_others, 0);
        if (whole)
            assert_int_equal(listed.of_shop, 1);
    }
    assert_true(failures > 0);
    audit_close(audit);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_request_is_read_right_or_there_is_no_memory),
        cmocka_unit_test(a_reply_is_whole_or_there_is_no_memory),
        cmocka_unit_test(an_audit_line_is_whole_or_not_there),
        cmocka_unit_test(a_list_without_memory_shows_no_other_scope),
    };

    idem__json_watch();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
