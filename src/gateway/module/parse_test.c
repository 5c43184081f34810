/*
 * parse_test.c - the gateway's parsers: keys, sources, stored answers, fields
 * of bodies, canonical JSON.
 */
#include "../../record/record.h"
#include "fields.h"
#include "json.h"
#include "key_header.h"
#include "result.h"
#include "source.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct idem_bytes
text(const char *s)
{
    return (struct idem_bytes){s, strlen(s)};
}

/* ---- sources ------------------------------------------------------------ */

static const char *
flaw_of(const char *word, bool scope)
{
    static char flaw[GATEWAY_SOURCE_FLAW_MAX];

    return gateway_source_check(
               text(word), scope ? GATEWAY_FOR_SCOPE : GATEWAY_FOR_KEY, flaw)
               ? NULL
               : flaw;
}

static void
a_source_varies_from_request_to_request(void **state)
{
    static const char *const good[] = {"$http_x_seq", "${arg_a}-$arg_b",
                                       "json:a.b",    "form:seq",
                                       "xml:Id",      "$1"};
    static const char *const bad[] = {
        "",      "word", "json:", "form:",  "xml:",    "JSON:seq",
        "X-Seq", "a b",  "const", "const:", "$1:$a_b", "$a$2"};

    (void)state;
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        assert_null(flaw_of(good[i], false));
        assert_null(flaw_of(good[i], true));
    }
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        assert_non_null(flaw_of(bad[i], false));
        assert_non_null(flaw_of(bad[i], true));
    }
    assert_null(flaw_of("const:shop", true));
    assert_non_null(flaw_of("const:shop", false));
    assert_non_null(flaw_of("const:$http_x", true));
}

static void
a_plain_word_is_answered_with_what_was_meant(void **state)
{
    (void)state;
    assert_non_null(
        strstr(flaw_of("X-Request-Id", false), "$http_x_request_id"));
    assert_non_null(strstr(flaw_of("http_x_a", true), "\"$http_x_a\""));
    assert_non_null(strstr(flaw_of("source", true), "json:source"));
    assert_null(strstr(flaw_of("source", false), "const:"));
}

static void
a_name_that_nginx_would_cut_at_a_dash_is_refused(void **state)
{
    static const char *const good[] = {
        "$http_a-$http_b", "${http_a}-b", "$http_a-",  "$remote_user-b",
        "$http_a:b-c",     "json:a-b",    "$http_a--b"};

    (void)state;
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++)
        assert_null(flaw_of(good[i], true));
    assert_string_equal(
        flaw_of("$http_x-request-id", false),
        "\"$http_x-request-id\": nginx ends the name of a variable at \"-\"; "
        "did you mean \"$http_x_request_id\"? (if the text after it is meant, "
        "write ${http_x})");
    assert_non_null(
        strstr(flaw_of("$http_a:$http_b-c:d", true), "mean \"$http_b_c\"? "));
    assert_string_equal(flaw_of("$cookie_a-b", true),
                        "\"$cookie_a-b\": nginx ends the name of a variable at "
                        "\"-\" (if the text after it is meant, write "
                        "${cookie_a})");
    assert_non_null(flaw_of("$arg_a-b", false));
    assert_non_null(
        flaw_of("$http_a-0123456789012345678901234567890123456789", false));
}

/* ---- keys -------------------------------------------------------------- */

static const char *
key(const char *in, bool quoted_only, bool loose)
{
    static char out[IDEM_ID_MAX + 1];
    size_t len;

    if (gateway_key_parse(text(in), quoted_only, loose, (uint8_t *)out, &len))
        return NULL;
    assert_true(len > 0 && len <= IDEM_ID_MAX);
    out[len] = '\0';
    return out;
}

static void
quoted_and_bare_keys_are_one(void **state)
{
    (void)state;
    assert_string_equal(key("abc", false, false), "abc");
    assert_string_equal(key("\"abc\"", false, false), "abc");
    assert_string_equal(key("  \"a b\"\t", false, false), "a b");
    assert_string_equal(key("\"a\\\"b\\\\\"", true, false), "a\"b\\");
    assert_string_equal(key("8e03978e-40d5", false, false), "8e03978e-40d5");
    assert_string_equal(key("a b\xc3\xa9", false, true), "a b\xc3\xa9");
    assert_string_equal(key("\"a,b\"", false, false), "a,b");
    assert_string_equal(key("a,b", false, true), "a,b");
}

static void
what_is_no_key_is_refused(void **state)
{
    static const char *const bad[] = {
        "",         " ",       "\"",          "\"\"",   "\"a",    "\"a\"b",
        "\"\\a\"",  "\"a\\",   "a b",         "a\"b",   "\x7f",   "\xff",
        "\"\xff\"", "\"a\";q", "\"a\",\"b\"", "\" a\"", "\"a \"", "a\nb",
        "a,b",      "a, b",    "\"a\", b"};

    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        assert_null(key(bad[i], false, false));
    assert_null(key("abc", true, false));
    assert_null(key("a\x01", false, true));
}

static void
a_key_has_at_most_255_bytes(void **state)
{
    char in[300];

    (void)state;
    memset(in, 'x', sizeof(in));
    in[255] = '\0';
    assert_non_null(key(in, false, false));
    in[255] = 'x';
    in[256] = '\0';
    assert_null(key(in, false, false));
    in[0] = '"';
    in[256] = '"';
    in[257] = '\0';
    assert_non_null(key(in, false, false));
    in[256] = 'x';
    in[257] = '"';
    in[258] = '\0';
    assert_null(key(in, false, false));
}

/* ---- stored answers ---------------------------------------------------- */

static void
a_stored_answer_comes_back_as_it_was(void **state)
{
    struct gateway_result in = {.status = 201, .header_count = 2}, out;
    uint8_t bytes[200];
    size_t len;

    (void)state;
    in.headers[0] = (struct gateway_header){text("Location"), text("/o/7")};
    in.headers[1] = (struct gateway_header){text("X-Empty"), text("")};
    len = gateway_result_head_len(&in);
    assert_int_equal(len, strlen("201\nLocation: /o/7\nX-Empty: \n\n"));
    gateway_result_head(&in, bytes);
    memcpy(bytes + len, "body", 4);
    assert_null(gateway_result_read((struct idem_bytes){bytes, len + 4}, &out));
    assert_int_equal(out.status, 201);
    assert_int_equal(out.header_count, 2);
    assert_true(idem__bytes_equal(out.headers[0].value, text("/o/7")));
    assert_int_equal(out.headers[1].value.len, 0);
    assert_true(idem__bytes_equal(out.body, text("body")));
}

static void
nothing_is_injected_through_a_stored_answer(void **state)
{
    static const char *const bad[] = {"",
                                      "201",
                                      "20\n\n",
                                      "199\n\n",
                                      "600\n\n",
                                      "2x1\n\n",
                                      "200\nA: b\n",
                                      "200\nA b\n\n",
                                      "200\nA:b\n\n",
                                      "200\n: b\n\n",
                                      "200\nA b: c\n\n",
                                      "200\nA: b\r\nC: d\n\n",
                                      "200\r\n\r\n"};
    struct gateway_result out;
    struct gateway_result in = {.status = 200, .header_count = 1};

    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        assert_non_null(gateway_result_read(text(bad[i]), &out));
    assert_non_null(
        gateway_result_read((struct idem_bytes){"200\nA: b\0c\n\n", 12}, &out));

    in.headers[0] =
        (struct gateway_header){text("A"), text("b\nSet-Cookie: x")};
    assert_int_equal(gateway_result_head_len(&in), 0);
    in.headers[0] = (struct gateway_header){text("A: b\nX"), text("c")};
    assert_int_equal(gateway_result_head_len(&in), 0);
    in.status = 101;
    assert_int_equal(gateway_result_head_len(&in), 0);
}

static void
hop_by_hop_headers_do_not_come_back(void **state)
{
    struct gateway_result out;

    (void)state;
    assert_null(gateway_result_read(
        text("200\nConnection: close\nTRANSFER-ENCODING: chunked\n"
             "Content-Length: 5\nX-A: 1\n\nhello"),
        &out));
    assert_int_equal(out.header_count, 1);
    assert_true(idem__bytes_equal(out.headers[0].name, text("X-A")));
}

static void
header_names_are_tokens_and_nothing_else(void **state)
{
    (void)state;
    for (int c = 0; c < 256; c++) {
        char byte = (char)c;
        bool token = c > 0x20 && c < 0x7f && !strchr("()<>@,;:\\\"/[]?={}", c);

        assert_int_equal(gateway_header_name_ok((struct idem_bytes){&byte, 1}),
                         token);
    }
    assert_false(gateway_header_name_ok(text("")));
    assert_true(gateway_header_is_hop(text("Keep-Alive")));
    assert_true(gateway_header_is_hop(text("TE")));
    assert_true(gateway_header_is_hop(text("Proxy-Authenticate")));
    assert_false(gateway_header_is_hop(text("Content-Type")));
    assert_false(gateway_header_is_hop(text("X-Trail")));
}

static void
headers_have_a_limit(void **state)
{
    struct gateway_result out;
    char in[2048] = "200\n";
    char *at = in + 4;

    (void)state;
    for (int i = 0; i < 101; i++) {
        memcpy(at, "A: b\n", 5);
        at += 5;
    }
    memcpy(at, "\n", 2);
    assert_non_null(gateway_result_read(text(in), &out));
    memcpy(at - 5, "\n", 2);
    assert_null(gateway_result_read(text(in), &out));
}

/* ---- fields ------------------------------------------------------------ */

typedef enum gateway_field field_fn(struct idem_bytes, struct idem_bytes,
                                    uint8_t *, size_t *);

/* The value, "-" for none, "!" for bad, "?" for lack of memory. */
static const char *
field(field_fn *fn, const char *in, const char *name)
{
    static char out[GATEWAY_FIELD_MAX + 1];
    size_t len = 0;

    switch (fn(text(in), text(name), (uint8_t *)out, &len)) {
    case GATEWAY_FIELD_NONE:
        return "-";
    case GATEWAY_FIELD_BAD:
        return "!";
    case GATEWAY_FIELD_MEMORY:
        return "?";
    case GATEWAY_FIELD_FOUND:
        break;
    }
    out[len] = '\0';
    return out;
}

static void
a_form_field(void **state)
{
    (void)state;
    assert_string_equal(field(gateway_form_field, "a=1&b=2", "b"), "2");
    assert_string_equal(field(gateway_form_field, "a=1&b=x%20y+z%2", "b"),
                        "x y z%2");
    assert_string_equal(field(gateway_form_field, "%61=1", "a"), "1");
    assert_string_equal(field(gateway_form_field, "a=1&a=2", "a"), "!");
    assert_string_equal(field(gateway_form_field, "a=&b", "a"), "-");
    assert_string_equal(field(gateway_form_field, "", "a"), "-");
    assert_string_equal(field(gateway_form_field, "ab=1", "a"), "-");
}

#define PART "--b\r\nContent-Disposition: form-data; "

static void
a_field_of_a_form_with_files(void **state)
{
    field_fn *form = gateway_form_field;

    (void)state;
    assert_string_equal(field(form,
                              PART "name=\"x\"; filename=\"id\"\r\n"
                                   "Content-Type: text/plain\r\n\r\n"
                                   "name=\"id\"\r\n" PART
                                   "name=\"id\"\r\n\r\n7\r\n8\r\n--b--\r\n",
                              "id"),
                        "7\r\n8");
    assert_string_equal(field(form, PART "name=id\r\n\r\n7\r\n--b--", "id"),
                        "7");
    assert_string_equal(
        field(form,
              "--b\r\nX: y\r\ncontent-disposition:form-data;NAME=\"id\"\r\n"
              "\r\n7\r\n--b--",
              "id"),
        "7");
    assert_string_equal(
        field(form, PART "name=\"id\"\r\n\r\n\r\n--b--\r\n", "id"), "-");
    assert_string_equal(
        field(form, PART "name=\"ids\"\r\n\r\n7\r\n--b--\r\n", "id"), "-");
    assert_string_equal(
        field(form, PART "x=\"; name=id\"\r\n\r\n7\r\n--b--\r\n", "id"), "-");
    assert_string_equal(field(form, "--b\r\n\r\n7\r\n--b--\r\n", "id"), "-");
    assert_string_equal(field(form,
                              PART "name=\"id\"\r\n\r\n7\r\n" PART
                                   "name=\"id\"\r\n\r\n7\r\n--b--\r\n",
                              "id"),
                        "!");
    assert_string_equal(field(form,
                              PART "name=\"id\"; filename=\"f\"\r\n\r\n7"
                                   "\r\n--b--\r\n",
                              "id"),
                        "!");
    assert_string_equal(field(form, PART "name=\"id\"\r\n\r\n7\r\n", "id"),
                        "!");
    assert_string_equal(field(form, PART "name=\"id\"\r\n", "id"), "!");
    assert_string_equal(field(form, "--b", "id"), "!");
}

static void
an_xml_element(void **state)
{
    field_fn *xml = gateway_xml_field;

    (void)state;
    assert_string_equal(field(xml, "<a><id>7</id></a>", "id"), "7");
    assert_string_equal(field(xml,
                              "<?xml v='1'?><!-- <id>1</id> --><s:e>"
                              "<w:id x='>'> urn:7 </w:id></s:e>",
                              "id"),
                        "urn:7");
    assert_string_equal(
        field(xml, "<id>a&amp;b&#65;&#x42;<![CDATA[<c>]]></id>", "id"),
        "a&bAB<c>");
    assert_string_equal(field(xml, "<id><b>7</b></id>", "id"), "!");
    assert_string_equal(field(xml, "<id>7", "id"), "!");
    assert_string_equal(field(xml, "<id>&evil;</id>", "id"), "!");
    assert_string_equal(field(xml, "<id/>", "id"), "-");
    assert_string_equal(field(xml, "<ids>7</ids>", "id"), "-");
    assert_string_equal(field(xml, "<!DOCTYPE x><id>7</id>", "id"), "!");
    assert_string_equal(field(xml, "<![CDATA[<id>7</id>]]>", "id"), "-");
    assert_string_equal(field(xml, "not xml", "id"), "-");
    assert_string_equal(field(xml, "", "id"), "-");
    assert_string_equal(field(xml, "{\"a\":\"<!x><id>7</id>\"}", "id"), "-");
    assert_string_equal(field(xml, "\xef\xbb\xbf\n<id>7</id>", "id"), "7");
}

static void
a_json_member(void **state)
{
    field_fn *json = gateway_json_field;

    (void)state;
    assert_string_equal(field(json, "{\"a\":{\"b\":\"x\"}}", "a.b"), "x");
    assert_string_equal(field(json, "{\"a\":[1,{\"b\":2}]}", "a.1.b"), "2");
    assert_string_equal(field(json, "{\"a\":-1.5e+3}", "a"), "-1.5e+3");
    assert_string_equal(field(json, "{\"a\":true}", "a"), "true");
    assert_string_equal(field(json, "{\"a\":null}", "a"), "-");
    assert_string_equal(field(json, "{\"a\":\"\"}", "a"), "-");
    assert_string_equal(field(json, "{\"a\":{}}", "a"), "!");
    assert_string_equal(field(json, "{\"a\":\"x\\ny\"}", "a"), "!");
    assert_string_equal(field(json, "{\"a\":1,\"a\":2}", "a"), "!");
    assert_string_equal(field(json, "{\"a\":1,\"b\":2,\"b\":2}", "a"), "!");
    assert_string_equal(field(json, " {\"a\":1", "a"), "!");
    assert_string_equal(field(json, "{\"a\":1} x", "a"), "!");
    assert_string_equal(field(json, "\xef\xbb\xbf{\"a\":1}", "a"), "1");
    assert_string_equal(field(json, "\xef\xbb\xbf{\"a\":1", "a"), "!");
    assert_string_equal(field(json, "a=1&b=2", "a"), "-");
    assert_string_equal(field(json, "", "a"), "-");
    assert_string_equal(field(json, "{\"b\":1}", "a"), "-");
    assert_string_equal(field(json, "[5]", "0"), "5");
    assert_string_equal(field(json, "[5]", "1"), "-");
    assert_string_equal(field(json, "[5]", "x"), "-");
}

/* ---- canonical JSON ---------------------------------------------------- */

static const char *
canonical(const char *in)
{
    static char out[4096];
    size_t len;

    assert_true(gateway_json_canonical_max(strlen(in)) < sizeof(out));
    if (gateway_json_canonical(text(in), text(""), (uint8_t *)out, &len) !=
        GATEWAY_FIELD_FOUND)
        return NULL;
    out[len] = '\0';
    return out;
}

static void
canonical_json_sorts_and_shrinks(void **state)
{
    (void)state;
    assert_string_equal(canonical(" { \"b\" : 1 , \"a\" : [ 1 , 2 ] } "),
                        "{\"a\":[1,2],\"b\":1}");
    assert_string_equal(canonical("{\"b\":{\"d\":1,\"c\":2},\"a\":{}}"),
                        "{\"a\":{},\"b\":{\"c\":2,\"d\":1}}");
    assert_string_equal(canonical("\"\\u0041\\/\\n\\u00e9\\ud83d\\ude00\""),
                        "\"A/\\u000a\xc3\xa9\xf0\x9f\x98\x80\"");
    assert_string_equal(canonical("[]"), "[]");
    assert_string_equal(canonical("1E5"), "1e5");
    assert_string_equal(canonical("{\"ab\":1,\"a\":2}"), "{\"a\":2,\"ab\":1}");
}

static void
what_is_no_json_has_no_canonical_form(void **state)
{
    static const char *const bad[] = {
        "",      "{",     "{\"a\"}", "{\"a\":}",    "{a:1}",
        "[1,]",  "[1 2]", "01",      "1.",          ".5",
        "+1",    "\"a",   "\"\\x\"", "\"\\ud800\"", "\"\\udc00x\"",
        "tru",   "nullx", "1 2",     "{\"a\":1,}",  "{\"a\":1,\"a\":1}",
        "\"\t\""};
    char deep[400];

    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        assert_null(canonical(bad[i]));
    memset(deep, '[', 100);
    memset(deep + 100, ']', 100);
    deep[200] = '\0';
    assert_null(canonical(deep));
    assert_non_null(canonical("[[[[[[[[[[]]]]]]]]]]"));
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_source_varies_from_request_to_request),
        cmocka_unit_test(a_plain_word_is_answered_with_what_was_meant),
        cmocka_unit_test(a_name_that_nginx_would_cut_at_a_dash_is_refused),
        cmocka_unit_test(quoted_and_bare_keys_are_one),
        cmocka_unit_test(what_is_no_key_is_refused),
        cmocka_unit_test(a_key_has_at_most_255_bytes),
        cmocka_unit_test(a_stored_answer_comes_back_as_it_was),
        cmocka_unit_test(nothing_is_injected_through_a_stored_answer),
        cmocka_unit_test(hop_by_hop_headers_do_not_come_back),
        cmocka_unit_test(header_names_are_tokens_and_nothing_else),
        cmocka_unit_test(headers_have_a_limit),
        cmocka_unit_test(a_form_field),
        cmocka_unit_test(a_field_of_a_form_with_files),
        cmocka_unit_test(an_xml_element),
        cmocka_unit_test(a_json_member),
        cmocka_unit_test(canonical_json_sorts_and_shrinks),
        cmocka_unit_test(what_is_no_json_has_no_canonical_form),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
