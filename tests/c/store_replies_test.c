/*
 * store_replies_test.c - a store behind a server that sometimes gives a wrong
 * reply instead of doing what it was asked (tests/support/liar.py).
 *
 *   IDEM_TEST_STORE=redis://127.0.0.1:6380 IDEM_TEST_TRUTH=redis://... \
 *   build/tests/c/store_replies_test
 *
 * The second URL is that of the server itself. A wrong reply must become an
 * error, and never an answer that is not true. Without the second URL the turns
 * run on the store itself. With IDEM_TEST_NO_LIES=1 no wrong reply looks like
 * "no records", so a scan must not leave one out.
 */
#include "../support/rounds.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define TURNS_OPEN 12

static const char *store_url;

static struct idem_store *
open_at(const char *url)
{
    struct idem_store *store = NULL;
    struct idem_error err = {IDEM_OK, ""};
    enum idem_status status = idem__store_open(url, NULL, &store, &err);

    assert_true((status == IDEM_OK) == (store != NULL));
    assert_true(status == IDEM_OK || err.text[0] != 0);
    return store;
}

static void
a_wrong_reply_is_an_error_and_never_an_answer(void **state)
{
    const char *other = getenv("IDEM_TEST_TRUTH");
    struct idem_store *truth = open_at(other ? other : store_url);
    struct idem_store *store = NULL;
    size_t turns = number_from_env("IDEM_TEST_TURNS", 24), errors = 0;
    struct rounds rounds;

    (void)state;
    assert_non_null(truth);
    for (size_t i = 0; i < turns; i++) {
        if (i % TURNS_OPEN == 0) {
            rounds_init(&rounds, i);
            rounds.also = IDEM_ERR_CORRUPT; /* a value that is not a record */
            rounds.lies = !getenv("IDEM_TEST_NO_LIES");
        }
        if (!store)
            store = open_at(store_url);
        if (!store)
            errors++;
        else if (!rounds_turn(&rounds, store))
            usleep(25000); /* some stores rest after an error */
        if (i % TURNS_OPEN == TURNS_OPEN - 1) {
            errors += rounds.errors;
            idem__store_close(store);
            store = NULL;
            rounds_check(&rounds, truth);
        }
    }
    idem__store_close(store);
    idem__store_close(truth);
    print_message("%zu turns, %zu errors\n", turns, errors);
    assert_true(errors > 0 || !other);
}

static int
run_on(const char *url)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_wrong_reply_is_an_error_and_never_an_answer),
    };

    if (strncmp(url, "memory:", 7) == 0 || strncmp(url, "journal:", 8) == 0)
        return 0; /* no second one can look at it */
    store_url = url;
    print_message("%s\n", url);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

int
main(void)
{
    return for_each_store(run_on) ? 1 : 0;
}
