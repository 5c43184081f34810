/*
 * form_tag.c - forms and their end tags; see form_tag.h.
 *
 *   TEXT --<--> OPEN --letter--> TAG --space--> SPACE --> ATTR --=--> BEFORE
 *    ^  ^                         |               ^                     |
 *    |  +---- COMMENT, OTHER      |               +--- QUOTED, VALUE <--+
 *    +--- RAW <--script ...-- > --+
 *    +--- CLOSE <--/-- OPEN        </form: insert before it
 */
#include "form_tag.h"

#include <ctype.h>
#include <string.h>
#include <strings.h>

enum {
    TEXT = 0,
    OPEN,    /* after < */
    TAG,     /* name of the tag */
    SPACE,   /* before an attribute or the end */
    ATTR,    /* name of the attribute */
    AFTER,   /* spaces after it */
    BEFORE,  /* spaces after = */
    VALUE,   /* without quotes */
    QUOTED,  /* up to the same quote */
    BANG,    /* after <! */
    OTHER,   /* <!DOCTYPE and similar, up to > */
    COMMENT, /* up to --> */
    RAW,     /* up to the end tag of `raw` */
    CLOSE,   /* after </ */
};

static bool
is_space(int c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

static void
add_name(struct gateway_form_scan *scan, int c)
{
    if (scan->name_len < sizeof(scan->name))
        scan->name[scan->name_len] = (char)tolower(c);
    scan->name_len++;
}

static bool
name_is(const struct gateway_form_scan *scan, const char *name)
{
    size_t len = strlen(name);

    return scan->name_len == len && memcmp(scan->name, name, len) == 0;
}

static void
add_value(struct gateway_form_scan *scan, int c)
{
    if (scan->value_len < GATEWAY_FORM_VALUE_MAX)
        scan->value[scan->value_len] = c ? (char)c : ' ';
    scan->value_len++;
}

static bool
is_own(struct gateway_form_scan *scan)
{
    bool cut = scan->value_len > GATEWAY_FORM_VALUE_MAX;

    scan->value[cut ? GATEWAY_FORM_VALUE_MAX : scan->value_len] = 0;
    return gateway_form_url_is_own(scan->value, cut, scan->host,
                                   scan->foreign_base);
}

/* The name of a tag is complete. */
static void
end_name(struct gateway_form_scan *scan)
{
    static const char *const raw[] = {"script", "style", "textarea", "title"};

    scan->form = name_is(scan, "form");
    scan->base = name_is(scan, "base");
    scan->post = scan->method = scan->action = scan->skip = false;
    scan->raw = NULL;
    for (size_t i = 0; i < sizeof(raw) / sizeof(raw[0]); i++) {
        if (name_is(scan, raw[i]))
            scan->raw = raw[i];
    }
}

/* An attribute is complete. If a name is repeated, the first one counts. */
static void
end_attr(struct gateway_form_scan *scan)
{
    if (name_is(scan, "method") && !scan->method) {
        scan->method = true;
        scan->post =
            scan->value_len == 4 && strncasecmp(scan->value, "post", 4) == 0;
    }
    if (scan->form && name_is(scan, "action") && !scan->action) {
        scan->action = true;
        scan->skip = scan->skip || !is_own(scan);
    }
    if (!scan->form && name_is(scan, "formaction") && !is_own(scan))
        scan->wanted = false;
    if (scan->base && name_is(scan, "href") && !scan->based) {
        scan->based = true;
        scan->foreign_base = !is_own(scan);
    }
    if (name_is(scan, "data-idem-token"))
        scan->skip = true;
}

static uint8_t
end_tag(struct gateway_form_scan *scan)
{
    scan->count = 0;
    if (scan->raw)
        return RAW;
    /* A form inside of a form does not count. */
    if (scan->form && !scan->open) {
        scan->open = true;
        scan->wanted =
            scan->post && !scan->skip && scan->forms < GATEWAY_FORMS_MAX;
    }
    return TEXT;
}

static uint8_t
begin_attr(struct gateway_form_scan *scan, int c)
{
    scan->name_len = scan->value_len = 0;
    add_name(scan, c);
    return ATTR;
}

/* Inside of a tag. */
static uint8_t
in_tag(struct gateway_form_scan *scan, int c)
{
    bool space = is_space(c);

    switch (scan->state) {
    case TAG:
        if (!space && c != '/' && c != '>') {
            add_name(scan, c);
            return TAG;
        }
        end_name(scan);
        return c == '>' ? end_tag(scan) : SPACE;
    case SPACE:
        if (c == '>')
            return end_tag(scan);
        return space || c == '/' ? SPACE : begin_attr(scan, c);
    case ATTR:
    case AFTER:
        if (c == '=')
            return BEFORE;
        if (space)
            return AFTER;
        if (c != '>' && c != '/' && scan->state == ATTR) {
            add_name(scan, c);
            return ATTR;
        }
        end_attr(scan);
        return c == '>'   ? end_tag(scan)
               : c == '/' ? SPACE
                          : begin_attr(scan, c);
    case BEFORE:
        if (space)
            return BEFORE;
        if (c == '"' || c == '\'') {
            scan->quote = (uint8_t)c;
            return QUOTED;
        }
        break;
    default:
        break;
    }

    /* BEFORE, VALUE: without quotes */
    if (c != '>' && !space) {
        add_value(scan, c);
        return VALUE;
    }
    end_attr(scan);
    return c == '>' ? end_tag(scan) : SPACE;
}

/* The end tag of a script or similar element, from its < on. */
static uint8_t
in_raw(struct gateway_form_scan *scan, int c)
{
    char wanted = scan->count == 0   ? '<'
                  : scan->count == 1 ? '/'
                                     : scan->raw[scan->count - 2];

    if (tolower(c) != wanted) {
        scan->count = c == '<';
        return RAW;
    }
    scan->count++;
    return scan->count > 2 && scan->raw[scan->count - 2] == '\0' ? TEXT : RAW;
}

/* In text: does a tag begin here? */
static uint8_t
begin_tag(struct gateway_form_scan *scan, int c)
{
    scan->begun_len = c == '<';
    scan->begun[0] = '<';
    return c == '<' ? OPEN : TEXT;
}

static uint8_t
in_close(struct gateway_form_scan *scan, int c)
{
    static const char name[] = "form";

    if (scan->begun_len == sizeof(scan->begun) ||
        tolower(c) != name[scan->begun_len - 2])
        return begin_tag(scan, c);
    scan->begun[scan->begun_len++] = (char)c;
    return CLOSE;
}

static uint8_t
next_state(struct gateway_form_scan *scan, int c)
{
    switch (scan->state) {
    case TEXT:
        return begin_tag(scan, c);
    case CLOSE:
        return in_close(scan, c);
    case OPEN:
        scan->name_len = 0;
        scan->count = 0;
        if (c == '/') {
            scan->begun[scan->begun_len++] = '/';
            return CLOSE;
        }
        if (c != '!' && !isalpha(c))
            return begin_tag(scan, c);
        scan->begun_len = 0;
        if (c == '!')
            return BANG;
        add_name(scan, c);
        return TAG;
    case QUOTED:
        if (c != scan->quote) {
            add_value(scan, c);
            return QUOTED;
        }
        end_attr(scan);
        return SPACE;
    case BANG:
        if (c == '-')
            return ++scan->count == 2 ? COMMENT : BANG;
        return c == '>' ? TEXT : OTHER;
    case OTHER:
        return c == '>' ? TEXT : OTHER;
    case COMMENT: /* count: dashes so far, two of them at the start */
        if (c == '>' && scan->count >= 2)
            return TEXT;
        scan->count = c != '-' ? 0 : scan->count < 2 ? scan->count + 1 : 2;
        return COMMENT;
    case RAW:
        return in_raw(scan, c);
    default:
        return in_tag(scan, c);
    }
}

/* Is this the first byte after </form? */
static bool
is_end(const struct gateway_form_scan *scan, int c)
{
    return scan->state == CLOSE && scan->begun_len == sizeof(scan->begun) &&
           (c == '>' || c == '/' || is_space(c));
}

bool
gateway_form_next(struct gateway_form_scan *scan, struct idem_bytes in,
                  ptrdiff_t *at, size_t *next)
{
    const uint8_t *bytes = in.data;

    for (size_t i = 0; i < in.len; i++) {
        bool end = is_end(scan, bytes[i]), hit = end && gateway_form_held(scan);

        if (hit) {
            *at = (ptrdiff_t)i - scan->begun_len;
            *next = i;
            scan->forms++;
        }
        if (end) {
            scan->open = scan->wanted = false;
            scan->begun_len = 0;
            scan->state = TEXT;
        }
        if (hit)
            return true;
        scan->state = next_state(scan, bytes[i]);
    }
    return false;
}

size_t
gateway_form_held(const struct gateway_form_scan *scan)
{
    return scan->wanted ? scan->begun_len : 0;
}
