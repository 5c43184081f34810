/*
 * journal_test.c - tests what a journal keeps, and that it refuses a bad
 * folder.
 */
#include "testing.h"

#include <fcntl.h>

static void
a_record_survives_close_and_open(void **state)
{
    struct idem_store *store = test_open(*state, NULL);
    struct test_record t;

    test_make(&t, 1, IDEM_STATE_EXECUTING, 11, 0);
    assert_int_equal(test_swap(store, &t, 0, false), IDEM_SWAP_STORED);
    test_make(&t, 1, IDEM_STATE_SUCCEEDED, 12, 300);
    assert_int_equal(test_swap(store, &t, 11, false), IDEM_SWAP_STORED);
    test_close(store);

    store = test_open(*state, NULL);
    assert_int_equal(test_rev(store, 1), 12);
    assert_int_equal(test_rev(store, 2), 0);
    test_close(store);
}

static void
a_deleted_record_stays_deleted(void **state)
{
    struct idem_store *store = test_open(*state, NULL);
    struct test_record t;

    test_make(&t, 1, IDEM_STATE_SUCCEEDED, 11, 10);
    assert_int_equal(test_swap(store, &t, 0, false), IDEM_SWAP_STORED);
    assert_int_equal(test_swap(store, &t, 12, true), IDEM_SWAP_REFUSED);
    assert_int_equal(test_swap(store, &t, 11, true), IDEM_SWAP_STORED);
    assert_int_equal(test_rev(store, 1), 0);
    test_close(store);

    store = test_open(*state, NULL);
    assert_int_equal(test_rev(store, 1), 0);
    test_close(store);
}

static void
the_identical_swap_again_is_stored(void **state)
{
    struct idem_store *store = test_open(*state, NULL);
    struct test_record t;

    test_make(&t, 1, IDEM_STATE_SUCCEEDED, 11, 10);
    assert_int_equal(test_swap(store, &t, 0, false), IDEM_SWAP_STORED);
    assert_int_equal(test_swap(store, &t, 0, false), IDEM_SWAP_STORED);
    test_make(&t, 1, IDEM_STATE_SUCCEEDED, 12, 10);
    assert_int_equal(test_swap(store, &t, 0, false), IDEM_SWAP_REFUSED);
    test_close(store);
}

static void
many_records_survive_many_segments(void **state)
{
    struct journal_tuning tuning = {.segment_len = 16384};
    struct idem_store *store = test_open(*state, &tuning);
    struct test_record t;

    for (uint64_t id = 0; id < 500; id++) {
        test_make(&t, id, IDEM_STATE_SUCCEEDED, id + 1, id % 700);
        assert_int_equal(test_swap(store, &t, 0, false), IDEM_SWAP_STORED);
    }
    assert_true(((struct journal *)store)->segment_count > 10);
    for (int round = 0; round < 2; round++) {
        for (uint64_t id = 0; id < 500; id++)
            assert_int_equal(test_rev(store, id), id + 1);
        test_close(store);
        store = test_open(*state, &tuning);
    }
    test_close(store);
}

/* With tags of 4 bits nearly every key collides with others. */
static void
keys_with_the_same_tag_are_told_apart(void **state)
{
    struct journal_tuning tuning = {.tag_mask = UINT64_C(15) << 60};
    struct idem_store *store = test_open(*state, &tuning);
    struct test_record t;

    for (uint64_t id = 0; id < 200; id++) {
        test_make(&t, id, IDEM_STATE_EXECUTING, id + 1, 0);
        assert_int_equal(test_swap(store, &t, 0, false), IDEM_SWAP_STORED);
    }
    for (uint64_t id = 0; id < 200; id += 2) {
        test_make(&t, id, IDEM_STATE_SUCCEEDED, id + 1001, 20);
        assert_int_equal(test_swap(store, &t, id + 1, id % 3 == 0),
                         IDEM_SWAP_STORED);
    }
    for (int round = 0; round < 2; round++) {
        for (uint64_t id = 0; id < 200; id++)
            assert_int_equal(test_rev(store, id), id % 2        ? id + 1
                                                  : id % 3 == 0 ? 0
                                                                : id + 1001);
        test_close(store);
        store = test_open(*state, &tuning);
    }
    test_close(store);
}

static void
a_second_process_is_told_who_holds_the_folder(void **state)
{
    struct idem_store *store = test_open(*state, NULL), *second;
    struct idem_error err;
    char pid[32];

    snprintf(pid, sizeof(pid), "process %ld", (long)getpid());
    assert_int_equal(test_try_open(*state, NULL, NULL, NULL, &second, &err),
                     IDEM_ERR_UNAVAILABLE);
    assert_non_null(strstr(err.text, pid));
    test_close(store);
    store = test_open(*state, NULL);
    test_close(store);
}

static void
a_folder_that_cannot_be_one_is_refused(void **state)
{
    struct test_path file = test_path(*state, "file");
    struct test_path deep = test_path(*state, "a/b/c");
    struct idem_store *store;
    struct idem_error err;

    close(open(file.text, O_CREAT | O_WRONLY, 0600));
    assert_int_equal(test_try_open(file.text, NULL, NULL, NULL, &store, &err),
                     IDEM_ERR_UNAVAILABLE);
    assert_non_null(strstr(err.text, "not a file"));
    assert_int_equal(test_try_open(deep.text, NULL, NULL, NULL, &store, &err),
                     IDEM_ERR_UNAVAILABLE);
    assert_non_null(strstr(err.text, "folder above"));
    assert_int_equal(test_try_open("", NULL, NULL, NULL, &store, &err),
                     IDEM_ERR_INVALID);
    assert_int_equal(
        test_try_open("x?colour=red", NULL, NULL, NULL, &store, &err),
        IDEM_ERR_INVALID);
    assert_non_null(strstr(err.text, "clock=trust"));
}

static void
a_record_may_be_larger_than_a_segment(void **state)
{
    struct journal_tuning tuning = {.segment_len = 16384};
    struct idem_store *store = test_open(*state, &tuning);
    struct idem_arena arena = {NULL, 0};
    struct idem_load load = {.with_result = true};
    size_t len = 3 << 20;
    char *result = malloc(len);
    struct test_record t;

    memset(result, 'x', len);
    for (uint64_t id = 0; id < 3; id++) {
        test_make(&t, id, IDEM_STATE_SUCCEEDED, id + 1, 0);
        t.record.result = (struct idem_bytes){result, len};
        assert_int_equal(test_swap(store, &t, 0, false), IDEM_SWAP_STORED);
    }
    test_close(store);
    store = test_open(*state, &tuning);
    memcpy(load.key, t.key, IDEM_KEY_LEN);
    assert_int_equal(store->type->load(store, &load, 1, &arena, NULL), IDEM_OK);
    assert_int_equal(load.record.result.len, len);
    assert_memory_equal(load.record.result.data, result, len);
    idem_arena_clear(&arena);
    test_close(store);
    free(result);
}

static void
a_folder_that_is_not_writable_is_refused(void **state)
{
    struct idem_store *store;
    struct idem_error err;
    enum idem_status status;
    uid_t me = geteuid();

    assert_int_equal(chmod(*state, 0555), 0);
    if (me == 0) { /* root may write anywhere: be another user meanwhile */
        assert_int_equal(chown(*state, 65534, 65534), 0);
        assert_int_equal(seteuid(65534), 0);
    }
    status = test_try_open(*state, NULL, NULL, NULL, &store, &err);
    assert_int_equal(seteuid(me), 0);
    assert_int_equal(chown(*state, me, (gid_t)-1), 0);
    assert_int_equal(chmod(*state, 0700), 0);
    assert_int_equal(status, IDEM_ERR_UNAVAILABLE);
    assert_non_null(strstr(err.text, "must be able to write"));
}

static bool
see(void *arg, const struct idem_record *record)
{
    char id[32] = "";

    memcpy(id, record->id.data, record->id.len);
    ((uint8_t *)arg)[strtoull(id + 3, NULL, 10)]++;
    return true;
}

/* Also while the table grows and records are added and removed. */
static void
a_scan_sees_every_record_that_was_there_all_the_time(void **state)
{
    struct idem_store *store = test_open(*state, NULL);
    struct idem_now now = {1700000000000, 1700000000000, 0, 0, 0, 0};
    struct idem_filter filter = {0};
    struct idem_cursor cursor = {"0"};
    static uint8_t seen[20000];
    struct test_record t;
    uint64_t next = 1000;
    size_t calls = 0;

    for (uint64_t id = 0; id < next; id++) {
        test_make(&t, id, IDEM_STATE_FAILED, id + 1, 5);
        assert_int_equal(test_swap(store, &t, 0, false), IDEM_SWAP_STORED);
    }
    do {
        assert_int_equal(
            store->type->scan(store,
                              &(struct idem_query){&filter, &now, &cursor, 10,
                                                   see, seen, false},
                              NULL),
            IDEM_OK);
        for (int i = 0; i < 5; i++, next++) {
            test_make(&t, next, IDEM_STATE_FAILED, next + 1, 5);
            assert_int_equal(test_swap(store, &t, 0, false), IDEM_SWAP_STORED);
        }
    } while (strcmp(cursor.text, "0") != 0 && ++calls < 1000);
    assert_true(calls > 50 && calls < 1000);
    for (uint64_t id = 0; id < 1000; id++)
        assert_int_equal(seen[id], 1);
    test_close(store);
}

static size_t reads;

static ssize_t
count_read(void *arg, int fd, void *data, size_t len, off_t at)
{
    reads++;
    return idem__system_io.pread(arg, fd, data, len, at);
}

/* The server looks for doubts all the time. */
static void
a_scan_for_executing_records_reads_no_others(void **state)
{
    struct idem_io io = idem__system_io;
    struct journal_tuning tuning = {.io = &io, .tail_len = 8192};
    struct idem_store *store = test_open(*state, &tuning);
    struct idem_now now = {1700000000000, 1700000000000, 0, 0, 0, 0};
    static uint8_t seen[1000];
    struct test_record t;

    for (uint64_t id = 0; id < 1000; id++) {
        test_make(&t, id,
                  id % 100 == 7 ? IDEM_STATE_EXECUTING : IDEM_STATE_FAILED,
                  id + 1, 5);
        assert_int_equal(test_swap(store, &t, 0, false), IDEM_SWAP_STORED);
    }
    io.pread = count_read;
    for (int by = 0; by < 2; by++) {
        struct idem_filter filter = {0};
        struct idem_cursor cursor = {"0"};
        struct idem_query query = {&filter, &now, &cursor, 3, see, seen, false};
        size_t calls = 0;

        if (by == 0)
            filter.state = IDEM_STATE_EXECUTING;
        else /* the leases are over */
            filter.doubt = true, now.early_ms = now.late_ms = 1700000040000,
            now.up_ms = 3600000;
        reads = 0;
        memset(seen, 0, sizeof(seen));
        do
            assert_int_equal(store->type->scan(store, &query, NULL), IDEM_OK);
        while (strcmp(cursor.text, "0") != 0 && ++calls < 1000);
        for (uint64_t id = 0; id < 1000; id++)
            assert_int_equal(seen[id], id % 100 == 7);
        assert_true(reads <= 10);
    }
    test_close(store);
}

static void
a_url_that_names_no_journal_is_refused(void **state)
{
    static const struct {
        const char *after, *said;
    } cases[] = {
        {"?clock=trusty", "unknown option \"clock=trusty\""},
        {"?clock=never", "unknown option \"clock=never\""},
        {"?damage=ignore", "unknown option \"damage=ignore\""},
        {"?damage=accepts", "unknown option \"damage=accepts\""},
        {"?damage=accept&x", "unknown option \"x\""},
        /* Of a long one, its beginning. */
        {"?0123456789012345678901234567890123456789012345678901234567890123",
         "option \"012345678901234567890123456789012345678901234567890123456789"
         "\""},
    };
    struct idem_store_options options = {0};
    struct journal_tuning tuning = {0};
    struct idem_store *store;
    struct idem_error err;
    char url[5000];

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        snprintf(url, sizeof(url), "journal:%s%s", (char *)*state,
                 cases[i].after);
        assert_int_equal(idem__store_open(url, NULL, &store, &err),
                         IDEM_ERR_INVALID);
        if (!strstr(err.text, cases[i].said))
            fail_msg("%s: %s", url, err.text);
    }
    assert_int_equal(idem__store_open("journal:", NULL, &store, &err),
                     IDEM_ERR_INVALID);
    assert_non_null(strstr(err.text, "names no folder"));
    assert_int_equal(
        idem__journal_open("memory:x", &options, &tuning, &store, &err),
        IDEM_ERR_INVALID);
    assert_non_null(strstr(err.text, "names no folder"));
    memset(url, 'a', sizeof(url) - 1);
    memcpy(url, "journal:", 8);
    url[8 + 3901] = 0;
    assert_int_equal(idem__store_open(url, NULL, &store, &err),
                     IDEM_ERR_INVALID);
    assert_non_null(strstr(err.text, "too long"));
}

static void
a_delete_of_an_absent_record_is_done(void **state)
{
    struct idem_store *store = test_open(*state, NULL);
    struct test_record t;

    test_make(&t, 1, IDEM_STATE_SUCCEEDED, 11, 10);
    assert_int_equal(test_swap(store, &t, 0, true), IDEM_SWAP_STORED);
    assert_int_equal(test_rev(store, 1), 0);
    assert_int_equal(test_swap(store, &t, 0, false), IDEM_SWAP_STORED);
    assert_int_equal(test_swap(store, &t, 0, true), IDEM_SWAP_REFUSED);
    assert_int_equal(test_rev(store, 1), 11);
    test_close(store);
}

static bool
no_record(void *arg, const struct idem_record *record)
{
    (void)arg;
    (void)record;
    return true;
}

static void
a_cursor_that_no_scan_gave_is_refused(void **state)
{
    static const char *texts[] = {"", "-5", "12x", "x"};
    struct idem_store *store = test_open(*state, NULL);
    struct idem_filter filter = {0};
    struct idem_now now = {0};

    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        struct idem_cursor cursor = {""};
        struct idem_query query = {&filter,   &now, &cursor, 10,
                                   no_record, NULL, false};
        struct idem_error err;

        snprintf(cursor.text, sizeof(cursor.text), "%s", texts[i]);
        assert_int_equal(store->type->scan(store, &query, &err),
                         IDEM_ERR_INVALID);
    }
    test_close(store);
}

/* It is written in parts of a few MiB, each with a sync of its own. */
static void
a_batch_of_many_large_results_is_stored(void **state)
{
    enum { COUNT = 12 };
    size_t len = IDEM_RESULT_MAX < 1000000 ? IDEM_RESULT_MAX : 1000000;
    struct idem_store *store = test_open(*state, NULL);
    struct idem_arena arena = {NULL, 0};
    static struct test_record records[COUNT];
    struct idem_swap swaps[COUNT];
    char *result = malloc(len);

    memset(swaps, 0, sizeof(swaps));
    memset(result, 'r', len);
    for (uint64_t id = 0; id < COUNT; id++) {
        test_make(&records[id], id, IDEM_STATE_SUCCEEDED, id + 1, 0);
        records[id].record.result = (struct idem_bytes){result, len};
        swaps[id].record = &records[id].record;
        memcpy(swaps[id].key, records[id].key, IDEM_KEY_LEN);
    }
    assert_int_equal(store->type->swap(store, swaps, COUNT, &arena, NULL),
                     IDEM_OK);
    idem_arena_clear(&arena);
    for (int round = 0; round < 2; round++) {
        for (uint64_t id = 0; id < COUNT; id++) {
            struct idem_load load = {.with_result = true};

            assert_int_equal(swaps[id].outcome, IDEM_SWAP_STORED);
            memcpy(load.key, records[id].key, IDEM_KEY_LEN);
            assert_int_equal(store->type->load(store, &load, 1, &arena, NULL),
                             IDEM_OK);
            assert_int_equal(load.record.rev, id + 1);
            assert_int_equal(load.record.result.len, len);
            assert_memory_equal(load.record.result.data, result, len);
            idem_arena_clear(&arena);
        }
        test_close(store);
        store = test_open(*state, NULL);
    }
    test_close(store);
    free(result);
}

static void
a_record_over_the_limit_is_refused_and_the_journal_goes_on(void **state)
{
    struct idem_store *store = test_open(*state, NULL);
    struct idem_arena arena = {NULL, 0};
    struct idem_error err = {IDEM_OK, ""};
    struct test_record t;
    struct idem_swap swap = {.record = &t.record};

    store->max_record = 200;
    test_make(&t, 1, IDEM_STATE_SUCCEEDED, 7, 500);
    memcpy(swap.key, t.key, IDEM_KEY_LEN);
    assert_int_equal(store->type->swap(store, &swap, 1, &arena, &err),
                     IDEM_ERR_INVALID);
    assert_int_equal(swap.outcome, IDEM_SWAP_NOT_STORED);
    assert_non_null(strstr(err.text, "too large"));
    idem_arena_clear(&arena);
    assert_int_equal(test_rev(store, 1), 0);
    test_make(&t, 1, IDEM_STATE_SUCCEEDED, 8, 20);
    assert_int_equal(test_swap(store, &t, 0, false), IDEM_SWAP_STORED);
    assert_int_equal(test_rev(store, 1), 8);
    test_close(store);
}

static void
the_memory_of_a_very_large_result_is_given_back(void **state)
{
    size_t len = (size_t)17 << 20;
    char *result = calloc(1, len);
    struct idem_store *store;
    struct test_record t;

    assert_non_null(result);
    store = test_open(*state, NULL);
    test_make(&t, 1, IDEM_STATE_SUCCEEDED, 7, 0);
    t.record.result = (struct idem_bytes){result, len};
    assert_int_equal(test_swap(store, &t, 0, false), IDEM_SWAP_STORED);
    assert_true(((struct journal *)store)->batch.room < len);
    assert_int_equal(test_swap(store, &t, 0, false), IDEM_SWAP_STORED);
    test_close(store);
    free(result);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
#define T(name)                                                                \
    cmocka_unit_test_setup_teardown(name, test_folder_setup,                   \
                                    test_folder_teardown)
        T(a_record_survives_close_and_open),
        T(a_deleted_record_stays_deleted),
        T(the_identical_swap_again_is_stored),
        T(many_records_survive_many_segments),
        T(keys_with_the_same_tag_are_told_apart),
        T(a_second_process_is_told_who_holds_the_folder),
        T(a_folder_that_cannot_be_one_is_refused),
        T(a_record_may_be_larger_than_a_segment),
        T(a_folder_that_is_not_writable_is_refused),
        T(a_scan_sees_every_record_that_was_there_all_the_time),
        T(a_scan_for_executing_records_reads_no_others),
        T(a_url_that_names_no_journal_is_refused),
        T(a_delete_of_an_absent_record_is_done),
        T(a_cursor_that_no_scan_gave_is_refused),
        T(a_batch_of_many_large_results_is_stored),
        T(a_record_over_the_limit_is_refused_and_the_journal_goes_on),
        T(the_memory_of_a_very_large_result_is_given_back),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
