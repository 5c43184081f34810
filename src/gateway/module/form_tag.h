/*
 * form_tag.h - find the forms of an HTML page while it streams by.
 *
 * Meant are forms that a browser sends with POST to the page's own site: the
 * start tag says method="post", its action (as <base href> completes it) leads
 * to no other host, and it does not say data-idem-token (then the page script
 * fetches a token of its own). What looks
 * like a form inside of a comment, a script, a style, a title or a text area is
 * none. A form has to be read to its end tag: a button in it may say
 * formaction, and send all fields elsewhere.
 *
 * All that is kept between two pieces of a page is here.
 */
#ifndef IDEM__GATEWAY_FORM_TAG_H
#define IDEM__GATEWAY_FORM_TAG_H

#include <idem/record.h>
#include <stddef.h>

/* Of a page; what comes after is not looked at. */
#define GATEWAY_FORMS_MAX 64

/* So much of an action is looked at; that is more than any host's name. */
#define GATEWAY_FORM_VALUE_MAX 300

/* Zeroed at the start of a page, but for the host. */
struct gateway_form_scan {
    struct idem_bytes host; /* of the page, as the client names it */
    uint8_t state;
    uint8_t quote, count;
    bool form, post, method, action, skip;
    bool base;                /* in a tag <base> */
    bool based, foreign_base; /* the first one with a href counts */
    bool open, wanted;        /* in a form; it gets a field */
    unsigned forms;
    const char *raw; /* the element whose end is looked for */
    size_t name_len, value_len;
    char name[16]; /* lower case; lengths may be larger */
    char value[GATEWAY_FORM_VALUE_MAX + 1];
    uint8_t begun_len, held; /* held: the caller's, 0 at first */
    char begun[6];           /* the end tag that may begin here */
};

/*
 * Look through the next piece of a page. True: something may be inserted at
 * byte `*at`, right before the end tag of a form; go on with byte `*next`. If
 * the end tag began in an earlier piece, `*at` is less than 0. False: all of it
 * was looked at.
 */
bool gateway_form_next(struct gateway_form_scan *scan, struct idem_bytes in,
                       ptrdiff_t *at, size_t *next);

/* So many bytes at the end of a piece, scan->begun, may be the beginning of
 * such an end tag: keep them back until the next piece came. */
size_t gateway_form_held(const struct gateway_form_scan *scan);

/* Does an action lead to this host? cut: it is longer than what is here;
 * foreign_base: what names no host leads elsewhere. */
bool gateway_form_url_is_own(const char *value, bool cut,
                             struct idem_bytes host, bool foreign_base);

#endif
