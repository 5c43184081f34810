/*
 * names.c - the words of the domain, made from the lists in idem/record.h.
 */
#include "record.h"

#include <string.h>
#include <strings.h>

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static const char *const status_names[] = {
#define X(name, word, text) word,
    IDEM_STATUS_MAP(X)
#undef X
};

static const char *const status_texts[] = {
#define X(name, word, text) text,
    IDEM_STATUS_MAP(X)
#undef X
};

static const char *const verdict_names[] = {
#define X(name, word) word,
    IDEM_VERDICT_MAP(X)
#undef X
};

static const char *const verb_names[] = {
#define X(name, word) word,
    IDEM_VERB_MAP(X)
#undef X
};

static const char *const type_names[] = {NULL,
#define X(name, word, number) word,
                                         IDEM_TYPE_MAP(X)
#undef X
};

static const char *const state_names[] = {
#define X(name, word, number) word,
    IDEM_STATE_MAP(X)
#undef X
};

static const char *const kind_names[] = {
#define X(name, word, number) word,
    IDEM_KIND_MAP(X)
#undef X
};

static const char *const mode_names[] = {"strict", "loose"};

static const char *
name_of(const char *const *names, size_t count, size_t number)
{
    return number < count && names[number] ? names[number] : "?";
}

static bool
number_of(const char *const *names, size_t count, struct idem_bytes word,
          size_t *number)
{
    for (size_t i = 0; i < count; i++) {
        if (names[i] && idem__bytes_is(word, names[i])) {
            *number = i;
            return true;
        }
    }
    return false;
}

#define NAMED(thing, table)                                                    \
    const char *idem_##thing##_name(enum idem_##thing thing)                   \
    {                                                                          \
        return name_of(table, COUNT(table), (size_t)thing);                    \
    }

NAMED(status, status_names)
NAMED(verdict, verdict_names)
NAMED(verb, verb_names)
NAMED(type, type_names)
NAMED(state, state_names)
NAMED(kind, kind_names)
NAMED(mode, mode_names)

const char *
idem_status_text(enum idem_status status)
{
    return name_of(status_texts, COUNT(status_texts), (size_t)status);
}

#define PARSED(thing, table)                                                   \
    bool idem__##thing##_parse(struct idem_bytes word,                         \
                               enum idem_##thing *thing)                       \
    {                                                                          \
        size_t number;                                                         \
                                                                               \
        if (!number_of(table, COUNT(table), word, &number))                    \
            return false;                                                      \
        *thing = (enum idem_##thing)number;                                    \
        return true;                                                           \
    }

PARSED(verb, verb_names)
PARSED(type, type_names)
PARSED(state, state_names)
PARSED(kind, kind_names)
PARSED(mode, mode_names)

struct idem_bytes
idem_text(const char *text)
{
    return (struct idem_bytes){text, text ? strlen(text) : 0};
}

bool
idem__bytes_equal(struct idem_bytes a, struct idem_bytes b)
{
    return a.len == b.len && (a.len == 0 || memcmp(a.data, b.data, a.len) == 0);
}

bool
idem__bytes_is(struct idem_bytes a, const char *word)
{
    return a.len == strlen(word) && strncasecmp(a.data, word, a.len) == 0;
}
