/*
 * guess.h - what somebody meant who mistyped a name.
 */
#ifndef IDEM__GUESS_H
#define IDEM__GUESS_H

#include <stddef.h>

/* The name that is nearest to a mistyped word: start with {word, len}, look at
 * every name, then `name` is it, or NULL. */
struct idem__guess {
    const char *word;
    size_t len;
    const char *name;
    size_t distance;
};

void idem__guess(struct idem__guess *guess, const char *name);

#endif
