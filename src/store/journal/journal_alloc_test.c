/*
 * journal_alloc_test.c - lets each allocation of the journal fail, in turn.
 *
 * In run n the n-th allocation fails, once or from there on, until a run makes
 * fewer than that.
 */
#include "../../../tests/support/failing_alloc.h"
#include "model.h"

static size_t allocations, fail_at;
static bool for_good, watching;

static bool
alloc_fails(size_t calloc_len)
{
    (void)calloc_len;
    if (!watching)
        return false;
    allocations++;
    return allocations == fail_at || (for_good && allocations > fail_at);
}

static int
no_sync(void *arg, int fd)
{
    (void)arg;
    (void)fd;
    return 0;
}

static bool
count_records(void *arg, const struct idem_record *record)
{
    (void)record;
    ++*(size_t *)arg;
    return true;
}

#define ROUNDS 25

static void
work(struct model *model, struct idem_store *store)
{
    struct idem_arena arena = {NULL, 0};
    struct idem_now now = {model->now_ms, model->now_ms, 0, 0, 0, 0};
    struct idem_cursor cursor = {"0"};
    struct idem_filter filter = {0};
    struct model_swaps s;
    size_t seen = 0;

    model_batch(model, &s);
    watching = true;
    (void)store->type->swap(store, s.swaps, s.count, &arena, NULL);
    test_tend(store);
    (void)store->type->scan(store,
                            &(struct idem_query){&filter, &now, &cursor, 5,
                                                 count_records, &seen, false},
                            NULL);
    watching = false;
    model_learn(model, &s);
    assert_int_equal(model->lost, 0);
    model->now_ms += 700;
    idem_arena_clear(&arena);
}

/* Returns false if there were fewer allocations. */
static bool
run(const char *dir, size_t n, bool good, bool lazy)
{
    struct idem_io io = idem__system_io;
    struct journal_tuning tuning = {
        .io = &io,
        .segment_len = 8192,
        .tag_mask = UINT64_MAX >> 8, /* few shards, so fewer allocations */
        .no_thread = true,
        .lazy = lazy};
    struct idem_store *store = NULL;
    struct idem_error err;
    struct model model;
    struct idem_clocks clocks;
    const char *flaw;
    bool hit;

    io.fsync = io.fdatasync = no_sync;
    model_init(&model, 11);
    clocks = model_clocks(&model);
    test_folder_empty(dir);
    allocations = 0;
    fail_at = n;
    for_good = good;
    for (int i = 0; i < ROUNDS; i++) {
        if (!store) {
            watching = true;
            if (test_try_open(dir, &tuning, &clocks, NULL, &store, &err) !=
                IDEM_OK) {
                watching = false;
                assert_int_equal(err.status, IDEM_ERR_MEMORY);
                continue;
            }
            watching = false;
        }
        work(&model, store);
        if (i % 10 == 9) {
            watching = true;
            test_close(store);
            watching = false;
            store = NULL;
        }
    }
    hit = allocations >= n;
    if (store)
        test_close(store);
    if (test_try_open(dir, &tuning, &clocks, NULL, &store, &err) != IDEM_OK)
        fail_msg("allocation %zu: %s", n, err.text);
    flaw = model_flaw(&model, store);
    if (flaw)
        fail_msg("allocation %zu: %s", n, flaw);
    test_close(store);
    return hit;
}

static void
each_in_turn(bool good, bool lazy)
{
    char *dir = test_fast_folder();
    size_t n = 1, step = test_size(3, 1, 1);

    while (run(dir, n, good, lazy))
        n += step;
    print_message("%zu allocations failed in turn\n", n / step);
    assert_true(n > 100);
    test_folder_drop(dir);
}

static void
an_allocation_that_fails_loses_nothing(void **state)
{
    (void)state;
    each_in_turn(false, false);
    each_in_turn(false, true);
}

static void
no_memory_at_all_loses_nothing(void **state)
{
    (void)state;
    each_in_turn(true, false);
    each_in_turn(true, true);
}

#define KILLED_IDS 60

/* Look up every record: it is there, or there is not enough memory. */
static void
look_up(struct idem_store *store)
{
    for (uint64_t id = 0; id < KILLED_IDS; id++) {
        struct idem_arena arena = {NULL, 0};
        struct idem_load load = {0};
        struct test_record t;
        struct idem_error err;
        enum idem_status status;

        test_make(&t, id, IDEM_STATE_SUCCEEDED, 1, 0);
        memcpy(load.key, t.key, IDEM_KEY_LEN);
        watching = true;
        status = store->type->load(store, &load, 1, &arena, &err);
        watching = false;
        if (status == IDEM_OK)
            assert_int_equal(load.record.rev, id + 1);
        else
            assert_int_equal(err.status, IDEM_ERR_MEMORY);
        idem_arena_clear(&arena);
    }
    for (uint32_t i = 0; i < INDEX_SHARDS; i++) /* no room is promised */
        assert_int_equal(((struct journal *)store)->index.shards[i].promised,
                         0);
}

/* Open a copy of a killed journal. Returns false if there were fewer
 * allocations. */
static bool
open_killed(const char *dir, const char *copy, size_t n, bool lazy)
{
    struct idem_io io = idem__system_io;
    struct journal_tuning tuning = {.io = &io,
                                    .segment_len = 8192,
                                    .tag_mask = UINT64_MAX >> 8,
                                    .no_thread = true,
                                    .lazy = lazy};
    struct idem_store *store = NULL;
    struct idem_error err;
    enum idem_status status;
    size_t files;

    io.fsync = io.fdatasync = no_sync;
    test_folder_copy(dir, copy);
    files = test_open_files();
    allocations = 0;
    fail_at = n;
    for_good = false;
    watching = true;
    status = test_try_open(copy, &tuning, NULL, NULL, &store, &err);
    watching = false;
    if (status == IDEM_OK) {
        look_up(store);
        test_close(store);
    } else {
        assert_int_equal(err.status, IDEM_ERR_MEMORY);
    }
    if (test_open_files() != files)
        fail_msg("allocation %zu: a file stays open", n);
    n = allocations >= n;
    store = test_open(copy, &tuning);
    for (uint64_t id = 0; id < KILLED_IDS; id++)
        assert_int_equal(test_rev(store, id), id + 1);
    test_close(store);
    return n;
}

/* Its newest segment has no saved index, and one more is missing. */
static void
opening_a_killed_journal_without_memory_loses_nothing(void **state)
{
    char *dir = test_fast_folder(), *copy = test_fast_folder(),
         *killed = test_fast_folder();
    struct journal_tuning tuning = {.segment_len = 8192, .no_thread = true};
    struct idem_store *store = test_open(dir, &tuning);
    struct test_record t;

    (void)state;
    for (uint64_t id = 0; id < KILLED_IDS; id++) {
        test_make(&t, id, IDEM_STATE_SUCCEEDED, id + 1, 250);
        assert_int_equal(test_swap(store, &t, 0, false), IDEM_SWAP_STORED);
    }
    assert_true(((struct journal *)store)->segment_count > 2);
    test_folder_copy(dir, killed);
    test_close(store);
    assert_int_equal(unlink(test_segment_path(killed, 1, "idx").text), 0);
    for (int lazy = 0; lazy < 2; lazy++)
        for (size_t n = 1; open_killed(killed, copy, n, lazy); n++)
            ;
    test_folder_drop(dir);
    test_folder_drop(copy);
    test_folder_drop(killed);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(opening_a_killed_journal_without_memory_loses_nothing),
        cmocka_unit_test(an_allocation_that_fails_loses_nothing),
        cmocka_unit_test(no_memory_at_all_loses_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
