/*
 * guess.c - finds the name that is nearest to a mistyped word.
 */
#include "guess.h"

#include <string.h>

/* The number of letters to insert, drop or change to get from one word to the
 * other. */
static size_t
distance(const char *a, size_t a_len, const char *b)
{
    size_t row[32];
    size_t len = strlen(b);

    if (len >= 32)
        return 32;
    for (size_t j = 0; j <= len; j++)
        row[j] = j;
    for (size_t i = 1; i <= a_len; i++) {
        size_t diagonal = row[0];

        row[0] = i;
        for (size_t j = 1; j <= len; j++) {
            size_t change = diagonal + (a[i - 1] != b[j - 1]);
            size_t least = row[j] < row[j - 1] ? row[j] + 1 : row[j - 1] + 1;

            diagonal = row[j];
            row[j] = change < least ? change : least;
        }
    }
    return row[len];
}

/* A name fits if at most a third of its letters, and at most two, are wrong, or
 * if the word is the beginning of the name. */
void
idem__guess(struct idem__guess *guess, const char *name)
{
    size_t d = distance(guess->word, guess->len, name);
    size_t most = guess->len < 4 ? 1 : 2;

    if (guess->len >= 3 && strncmp(name, guess->word, guess->len) == 0)
        d = 1;
    if (d <= most && (!guess->name || d < guess->distance)) {
        guess->name = name;
        guess->distance = d;
    }
}
