/*
 * form_tag.h - find the forms of an HTML page while it is streamed.
 *
 * It finds forms that a browser sends with POST to the page's own site: the
 * start tag has method="post", its action (completed by <base href>) leads to
 * no other host, and it does not have data-idem-token (then the page script
 * fetches a token itself). Text that looks like a form inside of a comment, a
 * script, a style, a title or a text area does not count. A form must be read
 * up to its end tag, because a button in it may have a formaction and send all
 * fields elsewhere.
 *
 * All state between two pieces of a page is in the struct below.
 */
#ifndef IDEM__GATEWAY_FORM_TAG_H
#define IDEM__GATEWAY_FORM_TAG_H

#include <idem/record.h>
#include <stddef.h>

/* Forms per page; later ones are ignored. */
#define GATEWAY_FORMS_MAX 64

/* This much of an action is checked; it is more than any host's name. */
#define GATEWAY_FORM_VALUE_MAX 300

/* Zeroed at the start of a page, except for the host. */
struct gateway_form_scan {
    struct idem_bytes host; /* of the page, as the client names it */
    uint8_t state;
    uint8_t quote, count;
    bool form, post, method, action, skip;
    bool base;                /* in a tag <base> */
    bool based, foreign_base; /* only the first one with a href counts */
    bool open, wanted;        /* in a form; it gets a field */
    unsigned forms;
    const char *raw; /* the element whose end tag is next */
    size_t name_len, value_len;
    char name[16]; /* lower case; lengths may be larger */
    char value[GATEWAY_FORM_VALUE_MAX + 1];
    uint8_t begun_len, held; /* held: the caller's, initially 0 */
    char begun[6];           /* the end tag that may begin here */
};

/*
 * Scan the next piece of a page. True: something may be inserted at byte `*at`,
 * right before the end tag of a form; continue with byte `*next`. If the end
 * tag began in an earlier piece, `*at` is negative. False: the piece is done.
 */
bool gateway_form_next(struct gateway_form_scan *scan, struct idem_bytes in,
                       ptrdiff_t *at, size_t *next);

/* This many bytes at the end of a piece, scan->begun, may be the beginning of
 * such an end tag; keep them until the next piece arrives. */
size_t gateway_form_held(const struct gateway_form_scan *scan);

/* Does an action lead to this host? cut: the value is incomplete; foreign_base:
 * an action without a host leads elsewhere. */
bool gateway_form_url_is_own(const char *value, bool cut,
                             struct idem_bytes host, bool foreign_base);

#endif
