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
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
