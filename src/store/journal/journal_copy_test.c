/*
 * journal_copy_test.c - tests copies of a journal: while it is written and
 * cleaned, repeated, interrupted, and of a damaged one.
 */
#include "model.h"

#include "copy.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>

#define IDS 300

struct world {
    char *from, *to, *again;
    struct idem_io io;
    struct journal_tuning tuning;
    struct test_log log;
    struct idem_store *store;
    atomic_ullong told[IDS]; /* the rev that was acknowledged last */
    atomic_bool stop;
    atomic_ullong writes;
    pthread_t writer;
    bool writing;
};

static int
no_sync(void *arg, int fd)
{
    (void)arg;
    (void)fd;
    return 0;
}

static struct idem_store *
open_journal(struct world *world, const char *dir, struct idem_error *err)
{
    struct idem_store *store = NULL;

    (void)test_try_open(dir, &world->tuning, NULL, &world->log, &store, err);
    return store;
}

static int
setup(void **state)
{
    struct world *world = calloc(1, sizeof(*world));
    struct idem_error err;

    world->from = test_fast_folder();
    world->to = test_fast_folder();
    world->again = test_fast_folder();
    world->io = idem__system_io;
    world->io.fsync = world->io.fdatasync = no_sync;
    world->tuning =
        (struct journal_tuning){.io = &world->io, .segment_len = 16384};
    world->store = open_journal(world, world->from, &err);
    assert_non_null(world->store);
    *state = world;
    return 0;
}

static int
teardown(void **state)
{
    struct world *world = *state;

    world->stop = true;
    if (world->writing)
        pthread_join(world->writer, NULL);
    idem__store_close(world->store);
    test_folder_drop(world->from);
    test_folder_drop(world->to);
    test_folder_drop(world->again);
    free(world);
    return 0;
}

static void
write_one(struct world *world, uint64_t id)
{
    uint64_t rev = world->told[id];
    struct test_record t;

    test_make(&t, id, IDEM_STATE_SUCCEEDED, rev + 1, 200);
    t.record.expires = INT64_C(4000000000000);
    assert_int_equal(test_swap(world->store, &t, rev, false), IDEM_SWAP_STORED);
    world->told[id] = rev + 1;
    world->writes++;
}

static void *
write_on(void *arg)
{
    struct world *world = arg;
    uint64_t seed = 7;

    while (!world->stop) {
        write_one(world, test_random(&seed) % IDS);
        if (world->writes % 16 == 0)
            test_tend(world->store);
    }
    return NULL;
}

static enum idem_status
copy(const char *from, const char *to, bool fresh, struct journal_copied *told,
     struct idem_error *err)
{
    return idem__journal_copy(from, to, fresh, NULL, NULL, told, err);
}

static void
what_was_told_before_a_copy_is_in_it(void **state)
{
    struct world *world = *state;
    size_t rounds = test_size(10, 40, 2000);
    uint64_t before[IDS], removed = 0;
    struct journal_copied told;
    struct idem_error err = {0};

    write_one(world, 0);
    world->writing = pthread_create(&world->writer, NULL, write_on, world) == 0;
    for (size_t round = 0; round < rounds; round++) {
        struct idem_store *restored;
        uint64_t until = world->writes + 150;

        while (world->writes < until)
            usleep(100);
        for (size_t i = 0; i < IDS; i++)
            before[i] = world->told[i];
        if (copy(world->from, world->to, false, &told, &err) != IDEM_OK)
            fail_msg("round %zu: %s", round, err.text);
        test_folder_empty(world->again);
        if (copy(world->to, world->again, true, &told, &err) != IDEM_OK)
            fail_msg("restore %zu: %s", round, err.text);
        restored = open_journal(world, world->again, &err);
        if (!restored)
            fail_msg("open %zu: %s", round, err.text);
        for (size_t i = 0; i < IDS; i++)
            assert_true(test_rev(restored, i) >= before[i]);
        idem__store_close(restored);
        removed = told.segments;
    }
    world->stop = true;
    pthread_join(world->writer, NULL);
    world->writing = false;
    /* The cleaner must have worked meanwhile, otherwise this tested nothing. */
    assert_true(((struct journal *)world->store)->segments[0].head.id > 1);
    assert_true(removed > 1);
}

static void
the_second_copy_takes_only_what_is_new(void **state)
{
    struct world *world = *state;
    struct journal_copied first, second;
    struct idem_error err = {0};

    for (uint64_t i = 0; i < IDS; i++)
        write_one(world, i);
    assert_int_equal(copy(world->from, world->to, false, &first, &err),
                     IDEM_OK);
    write_one(world, 1);
    assert_int_equal(copy(world->from, world->to, false, &second, &err),
                     IDEM_OK);
    assert_true(first.segments > 3);
    assert_true(second.segments >= first.segments);
    assert_true(second.copied_bytes <= 2 * 16384);
    assert_true(second.time_us >= first.time_us && first.time_us > 0);
}

static void
an_interrupted_copy_is_not_opened_and_can_be_finished(void **state)
{
    struct world *world = *state;
    struct test_path mark = test_path(world->to, "incomplete");
    struct journal_copied told;
    struct idem_error err = {0};
    struct idem_store *store;

    for (uint64_t i = 0; i < IDS; i++)
        write_one(world, i);
    assert_int_equal(copy(world->from, world->to, false, &told, &err), IDEM_OK);
    close(open(mark.text, O_CREAT | O_WRONLY, 0600));
    unlink(test_segment_path(world->to, 2, "seg").text);
    assert_null(open_journal(world, world->to, &err));
    assert_non_null(strstr(err.text, "interrupted"));
    assert_int_equal(copy(world->to, world->again, true, &told, &err),
                     IDEM_ERR_CORRUPT);
    assert_int_equal(copy(world->from, world->to, true, &told, &err), IDEM_OK);
    store = open_journal(world, world->to, &err);
    assert_non_null(store);
    for (uint64_t i = 0; i < IDS; i++)
        assert_int_equal(test_rev(store, i), 1);
    idem__store_close(store);
}

static void
another_journal_is_not_overwritten(void **state)
{
    struct world *world = *state;
    struct journal_copied told;
    struct idem_error err = {0};
    struct idem_store *other = open_journal(world, world->again, &err);

    write_one(world, 1);
    idem__store_close(other);
    assert_int_equal(copy(world->from, world->to, false, &told, &err), IDEM_OK);
    assert_int_equal(copy(world->again, world->to, false, &told, &err),
                     IDEM_ERR_INVALID);
    assert_int_equal(copy(world->from, world->again, true, &told, &err),
                     IDEM_ERR_INVALID);
    assert_non_null(strstr(err.text, "already holds a journal"));
    assert_int_equal(copy(world->from, world->from, false, &told, &err),
                     IDEM_ERR_UNAVAILABLE); /* it is in use */
}

static void
damage_is_told_and_not_copied(void **state)
{
    struct world *world = *state;
    struct test_path path = test_segment_path(world->from, 2, "seg");
    struct journal_copied told;
    struct idem_error err = {0};
    uint8_t byte = 0;
    int fd;

    for (uint64_t i = 0; i < IDS; i++)
        write_one(world, i);
    fd = open(path.text, O_RDWR);
    assert_int_equal(pread(fd, &byte, 1, 1000), 1);
    byte ^= 1;
    assert_int_equal(pwrite(fd, &byte, 1, 1000), 1);
    close(fd);
    assert_int_equal(copy(world->from, world->to, false, &told, &err),
                     IDEM_ERR_CORRUPT);
    assert_non_null(strstr(err.text, "0000000000000002 is damaged"));
    assert_null(open_journal(world, world->to, &err));
}

/* A running journal makes its oldest segment the next spare, which may be
 * shorter. That is no error of the disk. */
static void
a_segment_that_became_shorter_is_damaged_or_gone(void **state)
{
    struct world *world = *state;
    struct test_path path = test_segment_path(world->from, 2, "seg");
    struct journal_copied told;
    struct idem_error err = {0};

    for (uint64_t i = 0; i < IDS; i++)
        write_one(world, i);
    assert_int_equal(truncate(path.text, 4096), 0);
    assert_int_equal(copy(world->from, world->to, false, &told, &err),
                     IDEM_ERR_CORRUPT);
    assert_non_null(strstr(err.text, "0000000000000002 is damaged"));
}

/* ---- a source that was restarted, damaged or made again -------------------
 */

/* Change a byte of a segment of the journal that is copied. */
static void
flip(struct world *world, uint64_t id, uint64_t at)
{
    struct test_path path = test_segment_path(world->from, id, "seg");
    int fd = open(path.text, O_RDWR);
    uint8_t byte = 0;

    assert_int_equal(pread(fd, &byte, 1, (off_t)at), 1);
    byte ^= 1;
    assert_int_equal(pwrite(fd, &byte, 1, (off_t)at), 1);
    close(fd);
}

static void
close_journal(struct world *world)
{
    idem__store_close(world->store);
    world->store = NULL;
}

static void
kill_journal(struct world *world)
{
    test_folder_copy(world->from, world->again);
    close_journal(world);
    test_folder_copy(world->again, world->from);
    test_folder_empty(world->again);
}

static void
start_journal(struct world *world)
{
    struct idem_error err;

    world->store = open_journal(world, world->from, &err);
    if (!world->store)
        fail_msg("open: %s", err.text);
}

/* Write two records in one batch. */
static void
write_two(struct world *world, uint64_t id)
{
    struct idem_arena arena = {NULL, 0};
    struct idem_swap swaps[2] = {0};
    struct test_record t[2];

    for (size_t i = 0; i < 2; i++) {
        test_make(&t[i], id + i, IDEM_STATE_SUCCEEDED, 1, 200);
        memcpy(swaps[i].key, t[i].key, IDEM_KEY_LEN);
        swaps[i].record = &t[i].record;
    }
    assert_int_equal(
        world->store->type->swap(world->store, swaps, 2, &arena, NULL),
        IDEM_OK);
    idem_arena_clear(&arena);
}

static const struct segment *
newest(const struct world *world)
{
    const struct journal *journal = (const struct journal *)world->store;

    return &journal->segments[journal->segment_count - 1];
}

/* The copy can be opened, and has the first `count` ids. */
static void
assert_has(struct world *world, size_t count)
{
    struct idem_error err = {0};
    struct idem_store *store;

    test_folder_copy(world->to, world->again);
    store = open_journal(world, world->again, &err);
    if (!store)
        fail_msg("open: %s", err.text);
    for (size_t i = 0; i < count; i++)
        assert_true(test_rev(store, i) > 0);
    idem__store_close(store);
}

static void
assert_copied(struct world *world, size_t count)
{
    struct journal_copied told;
    struct idem_error err = {0};

    if (copy(world->from, world->to, false, &told, &err) != IDEM_OK)
        fail_msg("copy: %s", err.text);
    assert_has(world, count);
}

/* The complete entries of a torn batch stay, so its segment ends in the middle
 * of a batch. */
static void
a_segment_that_ends_with_a_torn_batch_is_copied(void **state)
{
    struct world *world = *state;
    uint64_t id, end;

    write_one(world, 0);
    write_two(world, 1);
    id = newest(world)->head.id;
    end = newest(world)->end;
    kill_journal(world);
    flip(world, id, end - 8);
    start_journal(world);
    assert_int_equal(test_rev(world->store, 1), 1);
    assert_int_equal(test_rev(world->store, 2), 0);
    write_one(world, 3);
    assert_copied(world, 2);
}

/* Even if the copy already has everything before the damage. It keeps what it
 * has behind the damage. */
static void
damage_after_an_earlier_copy_is_told(void **state)
{
    struct world *world = *state;
    struct test_path path;
    struct stat info;
    uint64_t id, end;

    write_one(world, 0);
    write_one(world, 1);
    assert_copied(world, 2);
    id = newest(world)->head.id;
    end = newest(world)->end;
    path = test_segment_path(world->to, id, "seg");
    write_one(world, 2);
    write_one(world, 3);
    for (uint64_t at = end + 20; at > end / 2; at -= end / 2) {
        struct journal_copied told;
        struct idem_error err = {0};

        flip(world, id, at);
        assert_int_equal(copy(world->from, world->to, false, &told, &err),
                         IDEM_ERR_CORRUPT);
        assert_non_null(strstr(err.text, "is damaged"));
        assert_int_equal(stat(path.text, &info), 0);
        assert_int_equal(info.st_size, end);
    }
}

/* A start replaces a newest segment without entries. */
static void
a_segment_that_was_copied_empty_may_be_replaced(void **state)
{
    struct world *world = *state;

    for (size_t i = 0; i < 3; i++) {
        assert_copied(world, i);
        kill_journal(world);
        start_journal(world);
        assert_copied(world, i);
        write_one(world, i);
        kill_journal(world);
        start_journal(world);
    }
}

/* A disk that is not mounted, a folder that was deleted: then there is a new
 * journal in the same place. Its segments must not be mixed with the old. */
static void
a_new_journal_in_the_same_folder_does_not_spoil_the_copy(void **state)
{
    struct world *world = *state;
    struct journal_copied told;
    struct idem_error err = {0};

    for (uint64_t round = 0; round < 3; round++) {
        for (uint64_t i = 0; i < IDS; i++) {
            write_one(world, i);
            test_tend(world->store);
        }
    }
    assert_true(((struct journal *)world->store)->segments[0].head.id > 2);
    assert_copied(world, IDS);
    close_journal(world);
    test_folder_empty(world->from);
    start_journal(world);
    world->told[0] = 0;
    write_one(world, 0);
    assert_int_equal(copy(world->from, world->to, false, &told, &err),
                     IDEM_ERR_INVALID);
    assert_non_null(strstr(err.text, "holds another journal"));
    assert_has(world, IDS);
}

/* An engine that opens the copy, if only to read, adds a segment, which says
 * where the one before it ends. What is copied later would be behind that. */
static void
a_copy_that_was_opened_is_refused(void **state)
{
    struct world *world = *state;
    struct journal_copied told;
    struct idem_error err = {0};

    write_one(world, 0);
    assert_copied(world, 1);
    idem__store_close(open_journal(world, world->to, &err));
    write_one(world, 1);
    assert_int_equal(copy(world->from, world->to, false, &told, &err),
                     IDEM_ERR_INVALID);
    assert_non_null(strstr(err.text, "or a copy that was opened since"));
    assert_has(world, 1);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(what_was_told_before_a_copy_is_in_it,
                                        setup, teardown),
        cmocka_unit_test_setup_teardown(the_second_copy_takes_only_what_is_new,
                                        setup, teardown),
        cmocka_unit_test_setup_teardown(
            an_interrupted_copy_is_not_opened_and_can_be_finished, setup,
            teardown),
        cmocka_unit_test_setup_teardown(another_journal_is_not_overwritten,
                                        setup, teardown),
        cmocka_unit_test_setup_teardown(damage_is_told_and_not_copied, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(
            a_segment_that_became_shorter_is_damaged_or_gone, setup, teardown),
        cmocka_unit_test_setup_teardown(
            a_segment_that_ends_with_a_torn_batch_is_copied, setup, teardown),
        cmocka_unit_test_setup_teardown(damage_after_an_earlier_copy_is_told,
                                        setup, teardown),
        cmocka_unit_test_setup_teardown(
            a_segment_that_was_copied_empty_may_be_replaced, setup, teardown),
        cmocka_unit_test_setup_teardown(
            a_new_journal_in_the_same_folder_does_not_spoil_the_copy, setup,
            teardown),
        cmocka_unit_test_setup_teardown(a_copy_that_was_opened_is_refused,
                                        setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
