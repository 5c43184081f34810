/*
 * fields_test.c - bodies that were cut off or are nearly right: a key in them
 * is the right one, or none, and never another one.
 */
#include "json.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

typedef enum gateway_field field_fn(struct idem_bytes, struct idem_bytes,
                                    uint8_t *, size_t *);

/* The value of "k" in a copy that ends where its memory ends; "-" for none, "!"
 * for bad. */
static const char *
value_of(field_fn *read, const char *in, size_t in_len)
{
    static char out[GATEWAY_FIELD_MAX + 1];
    struct idem_bytes copy = {memcpy(malloc(in_len + 1), in, in_len), in_len};
    size_t len = 0;
    enum gateway_field got = read(copy, idem_text("k"), (uint8_t *)out, &len);

    free((void *)copy.data);
    if (got != GATEWAY_FIELD_FOUND)
        return got == GATEWAY_FIELD_BAD ? "!" : "-";
    out[len] = '\0';
    return out;
}

#define PART                                                                   \
    "--b\r\nContent-Disposition: form-data; name=\"x\"\r\n\r\n1\r\n--b\r\n"    \
    "content-disposition:form-data ;\tname=k\r\nX: y\r\n\r\nv7\r\n--b--\r\n"

static const struct {
    field_fn *read;
    const char *body;
    bool strict; /* no part of it has a value */
} bodies[] = {
    {gateway_json_field,
     " {\"a\" : [ 1.5E+3 , -0.5 , true, false, null, \"\\u00e9\\ud83d\\ude00"
     "\\uDBFF\\uDFFF\\b\\\"\" ],\r\n\t\"o\":{},\"k\":\"v7\"} ",
     true},
    {gateway_json_field, "{\"k\":\"v7\",\"z\":[[],{\"y\":\"\\u00C9\"}]}", true},
    {gateway_multipart_field, PART, true},
    {gateway_form_field, "a=1&%6B=v%37&b=+%zz", false},
    {gateway_xml_field,
     "\xef\xbb\xbf<?xml version='1.0'?><!-- <k>no</k> --><a:b x='>' "
     "y=\">\"><c/><a:k\tz='1' > v<![CDATA[7]]> </a:k></a:b>",
     false},
    {gateway_xml_field, "<a><K>1</K><kk>2</kk><k>&#118;&#x37;</k></a>", false},
};

/* Longer values begin like the right one: "v7" may be cut to "v". */
static void
a_body_that_was_cut_off_has_no_other_key(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(bodies) / sizeof(bodies[0]); i++) {
        const char *body = bodies[i].body;
        size_t whole = strlen(body), end = whole;

        assert_string_equal(value_of(bodies[i].read, body, whole), "v7");
        while (strchr(" \r\n-", body[end - 1]))
            end--;
        for (size_t len = 0; len < whole; len++) {
            const char *got = value_of(bodies[i].read, body, len);
            bool none = *got == '-' || *got == '!';

            if (!none && (len < end && bodies[i].strict))
                fail_msg("%.*s: %s", (int)len, body, got);
            if (!none && strncmp(got, "v7", strlen(got)) != 0 &&
                strcmp(got, "v%") != 0 && strcmp(got, "v%3") != 0)
                fail_msg("%.*s: %s", (int)len, body, got);
        }
    }
}

/* Each byte becomes each of these. */
static void
a_changed_byte_of_json_makes_it_bad_or_another_value(void **state)
{
    static const char marks[] = "{}[]\",:\\0a \x01\x7f\xff";
    char copy[200];

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        size_t len = strlen(bodies[i].body);

        assert_true(len < sizeof(copy));
        for (size_t at = 0; at < len; at++) {
            for (size_t m = 0; m < sizeof(marks) - 1; m++) {
                uint8_t out[sizeof(copy) * 6 + 16], again[sizeof(out)];
                size_t out_len, again_len;

                memcpy(copy, bodies[i].body, len);
                copy[at] = marks[m];
                if (gateway_json_canonical((struct idem_bytes){copy, len},
                                           idem_text(""), out,
                                           &out_len) != GATEWAY_FIELD_FOUND)
                    continue;
                /* The canonical form of JSON is JSON, and its own one. */
                assert_int_equal(
                    gateway_json_canonical((struct idem_bytes){out, out_len},
                                           idem_text(""), again, &again_len),
                    GATEWAY_FIELD_FOUND);
                assert_int_equal(again_len, out_len);
                assert_memory_equal(again, out, out_len);
            }
        }
    }
}

static const struct {
    field_fn *read;
    const char *body, *value;
} odd[] = {
    {gateway_json_field, "{\"k\":\"\\u12g4\"}", "!"},
    {gateway_json_field, "{\"k\":\"\\u12\"}", "!"},
    {gateway_json_field, "{\"k\":\"\\ud83dx\"}", "!"},
    {gateway_json_field, "{\"k\":\"\\ud83d\\n\"}", "!"},
    {gateway_json_field, "{\"k\":\"\\ud83d\\u0041\"}", "!"},
    {gateway_json_field, "{\"k\":\"\\ud83d\\ue000\"}", "!"},
    {gateway_json_field, "{\"k\":\"\\udc00\"}", "!"},
    {gateway_json_field, "{\"k\":\"\\ue000\"}", "\xee\x80\x80"},
    {gateway_json_field, "{\"k\":1e}", "!"},
    {gateway_json_field, "{\"k\":1e-5}", "1e-5"},
    {gateway_json_field, "{\"k\":-}", "!"},
    {gateway_json_field, "{\"k\":[1}", "!"},
    {gateway_json_field, "{\"k\" 1}", "!"},
    {gateway_json_field, "{\"\\u006b\":1}", "1"},
    {gateway_json_field, "[1]", "-"},
    {gateway_json_field, "7", "-"},
    {gateway_form_field, "k", "-"},
    {gateway_form_field, "k=a%", "a%"},
    {gateway_form_field, "k=a%4", "a%4"},
    {gateway_form_field, "&&k=v&", "v"},
    {gateway_xml_field, "<k>&lt;&gt;&amp;&quot;&apos;</k>", "<>&\"'"},
    {gateway_xml_field, "<k>&nbsp;</k>", "!"},
    {gateway_xml_field, "<k>&#0;</k>", "!"},
    {gateway_xml_field, "<k>&#x110000;</k>", "!"},
    {gateway_xml_field, "<k>&#xg;</k>", "!"},
    {gateway_xml_field, "<k>&#1a;</k>", "!"},
    {gateway_xml_field, "<k>&#;</k>", "!"},
    {gateway_xml_field, "<k>&#x20AC;&#xe9;</k>", "\xe2\x82\xac\xc3\xa9"},
    {gateway_xml_field, "<k>&#x1F600;</k>", "\xf0\x9f\x98\x80"},
    {gateway_xml_field, "<k>a<b/></k>", "!"},
    {gateway_xml_field, "<k>a<!-- b -->c</k>", "ac"},
    {gateway_xml_field, "<k/>", "-"},
    {gateway_xml_field, "<k />", "-"},
    {gateway_xml_field, "<k> \n </k>", "-"},
    {gateway_xml_field, "<k", "-"},
    {gateway_xml_field, "<k>v<![CDATA[w", "!"},
    {gateway_xml_field, "<!DOCTYPE a><k>v</k>", "!"},
    {gateway_xml_field, "<?k x?><k>v</k>", "v"},
};

static void
odd_bodies(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(odd) / sizeof(odd[0]); i++) {
        const char *got =
            value_of(odd[i].read, odd[i].body, strlen(odd[i].body));

        if (strcmp(got, odd[i].value) != 0)
            fail_msg("%s: %s, not %s", odd[i].body, got, odd[i].value);
    }
}

static void
a_value_has_a_limit(void **state)
{
    static field_fn *const read[] = {gateway_json_field, gateway_form_field,
                                     gateway_xml_field,
                                     gateway_multipart_field};
    static const char *const around[][2] = {
        {"{\"k\":\"", "\"}"},
        {"k=", ""},
        {"<k>", "</k>"},
        {"--b\r\nContent-Disposition: form-data; name=\"k\"\r\n\r\n",
         "\r\n--b--\r\n"}};
    char body[GATEWAY_FIELD_MAX + 200], text[GATEWAY_FIELD_MAX + 2];

    (void)state;
    for (size_t i = 0; i < 4; i++) {
        for (size_t len = GATEWAY_FIELD_MAX; len <= GATEWAY_FIELD_MAX + 1;
             len++) {
            memset(text, 'x', len);
            text[len] = '\0';
            snprintf(body, sizeof(body), "%s%s%s", around[i][0], text,
                     around[i][1]);
            assert_string_equal(value_of(read[i], body, strlen(body)),
                                len > GATEWAY_FIELD_MAX ? "!" : text);
        }
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_body_that_was_cut_off_has_no_other_key),
        cmocka_unit_test(a_changed_byte_of_json_makes_it_bad_or_another_value),
        cmocka_unit_test(odd_bodies),
        cmocka_unit_test(a_value_has_a_limit),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
