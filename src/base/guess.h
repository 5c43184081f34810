/*
 * guess.h - finds the name that is nearest to a mistyped word.
 */
#ifndef IDEM__GUESS_H
#define IDEM__GUESS_H

#include <stddef.h>

/* Start with {word, len} and pass every name to it. Afterwards `name` is the
 * nearest one, or NULL. */
struct idem__guess {
    const char *word;
    size_t len;
    const char *name;
    size_t distance;
};

void idem__guess(struct idem__guess *guess, const char *name);

#endif
