/*
 * stores.h - which stores a test runs on.
 *
 * IDEM_TEST_STORE holds URLs, separated by spaces. Without it a test runs on
 * every store that needs nothing but this machine: memory:, and the others in
 * folders of their own that are removed in the end.
 */
#ifndef TESTS_STORES_H
#define TESTS_STORES_H

#include "../../src/store/store.h"

/* Call `each` for every URL; the sum of what it returned. */
int for_each_store(int (*each)(const char *url));

/* Do the records outlive a close? */
bool store_is_durable(const char *url);

/* A folder of this process, and how to be rid of it. */
void make_folder(char *path, size_t len);
void remove_folder(const char *path);

/* A number from the environment, or the default; "IDEM_TEST_OPS" ... */
uint64_t number_from_env(const char *name, uint64_t otherwise);

/* Small, seedable random numbers: the same on every machine. */
struct dice {
    uint64_t state;
};
uint64_t dice_roll(struct dice *dice, uint64_t sides); /* 0 .. sides - 1 */

#endif
