/*
 * form_tag_test.c - which forms of a page get a hidden field, however the page
 * is cut into pieces.
 */
#include "form_tag.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* The page with a + where a field is inserted, read in pieces of so many
 * bytes. */
static const char *
marked(const char *page, size_t piece)
{
    static char out[2048];
    struct gateway_form_scan scan = {.host = idem_text("own.example:8443")};
    size_t len = strlen(page), used = 0, done = 0, next;
    ptrdiff_t at;

    for (size_t from = 0, end; from < len; from = end) {
        end = len - from < piece ? len : from + piece;
        while (gateway_form_next(
            &scan, (struct idem_bytes){page + from, end - from}, &at, &next)) {
            size_t place = (size_t)((ptrdiff_t)from + at);

            memcpy(out + used, page + done, place - done);
            used += place - done;
            out[used++] = '+';
            done = place;
            from += next;
        }
        assert_true(gateway_form_held(&scan) <= sizeof(scan.begun));
    }
    memcpy(out + used, page + done, len - done + 1);
    return out;
}

/* + marks the places; a page without + stays as it is */
static const char *const pages[] = {
    "<form method=\"post\">+</form>",
    "<form method=post>a+</form>x",
    "<FORM action='/a' METHOD = 'Post' >a+</form><b>",
    "<p><form\n method=post action=a/b?c=/>a+</form> <form "
    "method=post>a+</form> ",
    "a < b <form method=post class=\"a>b\">a+</form>x",
    "<form method=post/>x</form>",
    "<form action=/x method>x</form>",
    "<form>x</form>",
    "<form method=get>x</form>",
    "<form method=posts>x</form>",
    "<form method=get method=post>x</form>",
    "<form data-method=post>x</form>",
    "<formula method=post>x</form>",
    "</form method=post>x</form>",
    "<form method=post action=https://other.example/>x</form>",
    "<form method=post action=\"//other.example\">x</form>",
    "<form action=HTTP://a method=post>x</form>",
    "<form method=post action=\" \n https://other.example/\">x</form>",
    "<form method=post action='ht\ttps://other.example/'>x</form>",
    "<form method=post action=/\\other.example>x</form>",
    "<form method=post action='\t/a'>a+</form>x",
    "<form method=post action='/a?x=1&amp;y=2&copy=3'>a+</form>x",
    "<form method=post action='#x'>a+</form>x",
    "<form method=post action=https://Own.Example:8443/a>a+</form>x",
    "<form method=post action='//own.example:8443?a'>a+</form>x",
    "<form method=post action=https://own.example/a>x</form>",
    "<form method=post action=https://own.example:8443.evil/>x</form>",
    "<form method=post action=https://own.example:8443@evil/>x</form>",
    "<form method=post action=http:evil>x</form>",
    "<form method=post action=ftp://own.example:8443/>x</form>",
    "<form method=post action=javascript:a()>x</form>",
    "<form method=post action='&#47;&#x2F;evil'>x</form>",
    "<form method=post action='&#47pay'>a+</form>x",
    "<form method=post action='https&colon;&sol;&sol;evil'>x</form>",
    "<form method=post action='&Tab;/&NewLine;/evil'>x</form>",
    "<form method=post action='/&bsol;evil'>x</form>",
    "<form method=post action='&unheard;/evil'>x</form>",
    "<form method=post action='/&unheard;evil'>x</form>",
    "<form method=post action='\x02//evil'>x</form>",
    "<form method=post action='&#2;//evil'>x</form>",
    "<form method=post action=a:b>x</form>",
    "<form method=post action=./a:b>a+</form>x",
    "<form method=post action=/a action=//evil>a+</form>x",
    "<base href=//evil><form method=post action=/a>x</form>",
    "<base href=//evil><form method=post>a+</form>x<form method=post "
    "action=''>a+</form>x",
    "<base href=//evil><form method=post "
    "action=//own.example:8443/a>a+</form>x",
    "<base target=x><base href=/a/><base href=//evil><form method=post "
    "action=b>a+</form>x",
    "<!--<base href=//evil>--><form method=post action=b>a+</form>x",
    "<form method=post><button formaction=/own>+</form>",
    "<form method=post><button formaction=//evil></form>",
    "<form method=post><input formaction='https&colon;//evil'></form><form "
    "method=post>+</form>",
    "<base href=//evil><form method=post><input formaction=/own></form>",
    "<form "
    "method=post><script>'</form>'</script><b></formula></for<</</f>+</"
    "FORM >x",
    "<form method=post><form method=post action=//evil>+</form></form>",
    "<form action=//evil method=post><form method=post></form>",
    "<form method=post></form",
    "<form method=' post'>x</form>",
    "<form method=post data-idem-token=\"/token\">x</form>",
    "<form method=post data-idem-field=\"token\">a+</form>x",
    "<!-- <form method=post> --><form method=post>a+</form>x",
    "<!--> <form method=post>a+</form>x",
    "<!-- -- > <form method=post> -->x</form>",
    "<!DOCTYPE html><form method=post>a+</form>x",
    "<script>'<form method=post>'</script><form method=post>a+</form>x",
    "<script>a</scrip></<</script ><form method=post>a+</form>x",
    "<textarea><form method=post></textarea>x</form>",
    "<TITLE><form method=post></Title><form method=post>a+</form>x",
    "<form method=post>",
};

static void
a_field_goes_into_forms_that_are_posted_to_the_page_s_own_site(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(pages) / sizeof(pages[0]); i++) {
        char page[256];
        size_t len = 0;

        for (const char *c = pages[i]; *c; c++) {
            if (*c != '+')
                page[len++] = *c;
        }
        page[len] = '\0';
        for (size_t piece = 1; piece <= len; piece++)
            assert_string_equal(marked(page, piece), pages[i]);
    }
}

static void
a_page_has_only_so_many_forms(void **state)
{
    struct gateway_form_scan scan = {0};
    unsigned found = 0;
    ptrdiff_t at;
    size_t next;

    (void)state;
    for (unsigned i = 0; i < 2 * GATEWAY_FORMS_MAX; i++)
        found += gateway_form_next(
            &scan, idem_text("<form method=post></form>"), &at, &next);
    assert_int_equal(found, GATEWAY_FORMS_MAX);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(
            a_field_goes_into_forms_that_are_posted_to_the_page_s_own_site),
        cmocka_unit_test(a_page_has_only_so_many_forms),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
