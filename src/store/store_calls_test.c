/*
 * store_calls_test.c - lets each system call and allocation fail while the
 * records of one store are copied into another (idem store copy).
 */
#include "../../tests/support/failing_calls.h"

#include "journal/testing.h"
#include "store.h"

#define IDS 150

struct world {
    char *from, *to;
};

/* A database of one file is quicker to open than a journal. */
static struct idem_store *
open_store(const char *folder)
{
    struct idem_store *store = NULL;
    struct idem_error err;
    char url[400];

    snprintf(url, sizeof(url), "sqlite:%s/records", folder);
    if (idem__store_open(url, NULL, &store, &err) != IDEM_OK)
        fail_msg("%s: %s", url, err.text);
    return store;
}

static int
setup(void **state)
{
    struct world *world = calloc(1, sizeof(*world));
    struct idem_store *store;
    struct test_record t;

    world->from = test_fast_folder();
    world->to = test_fast_folder();
    store = open_store(world->from);
    for (uint64_t id = 0; id < IDS; id++) {
        test_make(&t, id, IDEM_STATE_SUCCEEDED, id + 1, id % 7 * 50);
        t.record.expires = 0;
        assert_int_equal(test_swap(store, &t, 0, false), IDEM_SWAP_STORED);
    }
    test_close(store);
    *state = world;
    return 0;
}

static int
teardown(void **state)
{
    struct world *world = *state;

    test_folder_drop(world->from);
    test_folder_drop(world->to);
    free(world);
    return 0;
}

static enum idem_status
copy(const struct world *world, struct idem_store_copied *copied,
     struct idem_error *err)
{
    char from[400], to[400];

    snprintf(from, sizeof(from), "sqlite:%s/records", world->from);
    snprintf(to, sizeof(to), "sqlite:%s/records", world->to);
    return idem__store_copy(from, to, NULL, NULL, copied, err);
}

static void
assert_all_there(const struct world *world)
{
    struct idem_store *store = open_store(world->to);

    for (uint64_t id = 0; id < IDS; id++)
        assert_int_equal(test_rev(store, id), id + 1);
    test_close(store);
}

/* Returns false if there were fewer calls. */
static bool
copy_with_fault(const struct world *world, size_t n)
{
    size_t files = test_open_files();
    struct idem_store_copied copied;
    struct idem_error err = {IDEM_OK, ""};
    enum idem_status status;

    test_folder_empty(world->to);
    arm(NULL, n, 0);
    status = copy(world, &copied, &err);
    disarm();
    if (test_open_files() != files)
        fail_msg("call %zu (%s): a file stays open", n, fault.fired);
    if (status != IDEM_OK) {
        if (!fault.fired ||
            (status != IDEM_ERR_MEMORY && status != IDEM_ERR_UNAVAILABLE &&
             status != IDEM_ERR_LOST))
            fail_msg("call %zu (%s): %s", n, fault.fired, err.text);
        assert_true(err.text[0] != 0);
        if (copy(world, &copied, &err) != IDEM_OK) /* goes on where it was */
            fail_msg("call %zu (%s), again: %s", n, fault.fired, err.text);
    }
    assert_int_equal(copied.records, IDS);
    assert_int_equal(copied.others, 0);
    assert_all_there(world);
    return fault.fired != NULL;
}

static void
a_copy_whose_call_fails_has_every_record_or_says_so(void **state)
{
    size_t n = 0;

    while (copy_with_fault(*state, ++n))
        ;
    print_message("%zu calls failed in turn\n", n);
    assert_true(n > 10);
}

static void
what_another_store_has_is_not_overwritten(void **state)
{
    struct world *world = *state;
    struct idem_store *store = open_store(world->to);
    struct idem_store_copied copied;
    struct idem_error err = {IDEM_OK, ""};
    struct test_record t;

    test_make(&t, 7, IDEM_STATE_SUCCEEDED, 777, 10);
    t.record.expires = 0;
    assert_int_equal(test_swap(store, &t, 0, false), IDEM_SWAP_STORED);
    test_close(store);
    assert_int_equal(copy(world, &copied, &err), IDEM_OK);
    assert_int_equal(copied.records, IDS - 1);
    assert_int_equal(copied.others, 1);
    store = open_store(world->to);
    assert_int_equal(test_rev(store, 7), 777);
    assert_int_equal(test_rev(store, 8), 9);
    test_close(store);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        T(a_copy_whose_call_fails_has_every_record_or_says_so),
        T(what_another_store_has_is_not_overwritten),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
