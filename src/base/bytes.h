/*
 * bytes.h - compares views of bytes.
 */
#ifndef IDEM__BYTES_H
#define IDEM__BYTES_H

#include <idem/record.h>

#include <string.h>
#include <strings.h>

static inline bool
idem__bytes_equal(struct idem_bytes a, struct idem_bytes b)
{
    return a.len == b.len && (a.len == 0 || memcmp(a.data, b.data, a.len) == 0);
}

/* In any case: "BEGIN" is "begin". */
static inline bool
idem__bytes_is(struct idem_bytes a, const char *word)
{
    return a.len == strlen(word) && strncasecmp(a.data, word, a.len) == 0;
}

#endif
