/*
 * form_tag.h - find the forms of an HTML page while it streams by.
 *
 * Meant are forms that a browser sends with POST to the page's own site: the
 * start tag says method="post", its action names no host, and it does not say
 * data-idem-token (then the page script fetches a token of its own). What looks
 * like a form inside of a comment, a script, a style, a title or a text area is
 * none.
 *
 * Nothing is buffered: all that is kept between two pieces of a page is here.
 */
#ifndef IDEM__GATEWAY_FORM_TAG_H
#define IDEM__GATEWAY_FORM_TAG_H

#include <idem/record.h>

/* Of a page; what comes after is not looked at. */
#define GATEWAY_FORMS_MAX 64

/* Zeroed at the start of a page. */
struct gateway_form_scan {
    uint8_t state;
    uint8_t quote, count;
    bool form, post, method, skip;
    unsigned forms;
    const char *raw; /* the element whose end is looked for */
    size_t name_len, value_len;
    char name[16], value[8]; /* lower case; lengths may be larger */
};

/*
 * Look through the next piece of a page. True: something may be inserted before
 * byte `*at`, right behind the start tag of a form; go on with what begins
 * there. False: all of it was looked at.
 */
bool gateway_form_next(struct gateway_form_scan *scan, struct idem_bytes in,
                       size_t *at);

#endif
