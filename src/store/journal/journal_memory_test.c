/*
 * journal_memory_test.c - tests what a record takes in memory while a journal
 * grows, and when it is opened again.
 */
#include "testing.h"

#define BATCH 1000
#define EACH 20 /* bytes */
/* Buffers, whatever the number of records, and the rows of one segment (16 MiB
 * here) while they are sorted. */
#define FIXED (6 << 20)

static int
no_sync(void *arg, int fd)
{
    (void)arg;
    (void)fd;
    return 0;
}

/* Private memory of this process. */
static size_t
anonymous_bytes(void)
{
    FILE *file = fopen("/proc/self/status", "r");
    char line[200];
    size_t kib = 0;

    assert_non_null(file);
    while (kib == 0 && fgets(line, sizeof(line), file))
        (void)sscanf(line, "RssAnon: %zu", &kib);
    fclose(file);
    assert_true(kib > 0);
    return kib * 1024;
}

static void
add_batch(struct idem_store *store, uint64_t from)
{
    static struct test_record records[BATCH];
    static struct idem_swap swaps[BATCH];
    struct idem_arena arena = {NULL, 0};

    for (size_t i = 0; i < BATCH; i++) {
        test_make(&records[i], from + i, IDEM_STATE_EXECUTING, from + i + 1, 0);
        swaps[i] = (struct idem_swap){.record = &records[i].record};
        memcpy(swaps[i].key, records[i].key, IDEM_KEY_LEN);
    }
    assert_int_equal(store->type->swap(store, swaps, BATCH, &arena, NULL),
                     IDEM_OK);
    idem_arena_clear(&arena);
}

static void
check_memory(const struct idem_store *store, size_t before)
{
    const struct journal *journal = (const struct journal *)store;
    size_t count = journal->index.count, grown = anonymous_bytes() - before;
    const char *sanitized = getenv("IDEM_SANITIZED");

    print_message("%zu records: %.1f bytes of index each, %.1f of memory\n",
                  count, (double)journal->index.bytes / (double)count,
                  (double)grown / (double)count);
    if (count >= 600000)
        assert_true(journal->index.bytes <= count * EACH);
    if (!sanitized || !*sanitized) /* a sanitizer needs memory of its own */
        assert_true(grown <= count * EACH + FIXED);
}

static void
the_memory_of_a_record_is_bounded(void **state)
{
    struct idem_io io = idem__system_io;
    struct journal_tuning tuning = {.io = &io};
    size_t until = test_size(700000, 1000000, 5000000), before;
    char *dir = test_folder();
    struct idem_store *store;

    (void)state;
    io.fsync = io.fdatasync = no_sync;
    store = test_open(dir, &tuning);
    add_batch(store,
              UINT64_MAX / 2); /* so that the test's own memory is used */
    before = anonymous_bytes();
    for (uint64_t n = 0; n < until; n += BATCH) {
        add_batch(store, n);
        if (n % 50000 == 0 && n >= 600000)
            check_memory(store, before);
    }
    test_close(store);
    before = anonymous_bytes();
    store = test_open(dir, &tuning);
    check_memory(store, before);
    assert_int_equal(((struct journal *)store)->index.count, until + BATCH);
    test_close(store);
    test_folder_drop(dir);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_memory_of_a_record_is_bounded),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
