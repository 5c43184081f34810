/*
 * life_test.c - tests a journal over time: expiry, cleaning, saved indexes,
 * damage, clocks, a full disk.
 */
#include "model.h"

#include <errno.h>
#include <fcntl.h>
#include <time.h>

#define DAY_MS (INT64_C(24) * 3600 * 1000)

struct world {
    char *dir;
    struct model clock; /* only its time is used */
    struct idem_clocks clocks;
    struct test_log log;
    struct idem_io io;
    struct journal_tuning tuning;
    uint64_t room; /* free space on the disk, for fallocate */
    bool small;    /* the space is limited */
    size_t fail_syncs, fail_renames;
};

static int
w_sync(void *arg, int fd)
{
    struct world *world = arg;

    (void)fd;
    if (world->fail_syncs > 0) {
        world->fail_syncs--;
        errno = EIO;
        return -1;
    }
    return 0;
}

static int
w_fallocate(void *arg, int fd, off_t len)
{
    struct world *world = arg;
    struct stat info;

    if (fstat(fd, &info) != 0)
        return -1;
    if (world->small && (uint64_t)(len - info.st_size) > world->room) {
        errno = ENOSPC;
        return -1;
    }
    if (world->small)
        world->room -= (uint64_t)(len - info.st_size);
    return ftruncate(fd, len);
}

/* A rename that happens but is reported as failed. */
static int
w_rename(void *arg, int at, const char *from, const char *to)
{
    struct world *world = arg;
    int done = renameat(at, from, at, to);

    if (world->fail_renames == 0)
        return done;
    world->fail_renames--;
    errno = EIO;
    return -1;
}

/* The system's calls ignore their arg, so the table can pass the test's. */
static int
setup(void **state)
{
    struct world *world = calloc(1, sizeof(*world));

    world->dir = test_fast_folder();
    model_init(&world->clock, 1);
    world->clocks = model_clocks(&world->clock);
    world->io = idem__system_io;
    world->io.fsync = world->io.fdatasync = w_sync;
    world->io.fallocate = w_fallocate;
    world->io.rename = w_rename;
    world->io.arg = world;
    world->tuning = (struct journal_tuning){.io = &world->io,
                                            .segment_len = 16384,
                                            .tail_len = 8192,
                                            .no_thread = true};
    *state = world;
    return 0;
}

static int
teardown(void **state)
{
    struct world *world = *state;

    test_folder_drop(world->dir);
    free(world);
    return 0;
}

static enum idem_status
try_open(struct world *world, const char *options, struct idem_store **store,
         struct idem_error *err)
{
    char dir[600];

    snprintf(dir, sizeof(dir), "%s%s", world->dir, options);
    return test_try_open(dir, &world->tuning, &world->clocks, &world->log,
                         store, err);
}

static struct idem_store *
open_world(struct world *world)
{
    struct idem_store *store = NULL;
    struct idem_error err;

    if (try_open(world, "", &store, &err) != IDEM_OK)
        fail_msg("%s", err.text);
    return store;
}

/* Store one record that lives ttl_ms. */
static enum idem_outcome
put(struct world *world, struct idem_store *store, uint64_t id, uint64_t rev,
    uint64_t expected, enum idem_state state, int64_t ttl_ms)
{
    struct test_record t;

    test_make(&t, id, state, rev, 200);
    t.record.created = t.record.updated = world->clock.now_ms;
    t.record.expires = world->clock.now_ms + ttl_ms;
    return test_swap(store, &t, expected, false);
}

static uint64_t
folder_bytes(const char *dir)
{
    DIR *folder = opendir(dir);
    struct dirent *file;
    uint64_t sum = 0;

    while ((file = readdir(folder))) {
        struct test_path path = test_path(dir, file->d_name);
        struct stat info;

        if (file->d_name[0] != '.' && stat(path.text, &info) == 0)
            sum += (uint64_t)info.st_size;
    }
    closedir(folder);
    return sum;
}

static void
remove_files(const char *dir, const char *ending)
{
    DIR *folder = opendir(dir);
    struct dirent *file;

    while ((file = readdir(folder))) {
        struct test_path path = test_path(dir, file->d_name);

        if (strstr(file->d_name, ending))
            unlink(path.text);
    }
    closedir(folder);
}

/* ---- expiry and cleaning ---- */

/* Steady load: records live 60 s and are updated once; a few live long. The
 * folder stays below twice the live bytes plus a constant. */
static void
under_steady_load_the_folder_stays_within_twice_the_live_data(void **state)
{
    struct world *world = *state;
    struct idem_store *store = open_world(world);
    struct journal *journal = (struct journal *)store;
    uint64_t rounds = test_size(6000, 20000, 200000), worst = 0;

    for (uint64_t i = 1; i <= rounds; i++) {
        int64_t ttl = i % 10 == 0 ? 3600000 : 60000;
        uint64_t used, live;

        assert_int_equal(
            put(world, store, i, 2 * i, 0, IDEM_STATE_EXECUTING, ttl),
            IDEM_SWAP_STORED);
        assert_int_equal(
            put(world, store, i, 2 * i + 1, 2 * i, IDEM_STATE_SUCCEEDED, ttl),
            IDEM_SWAP_STORED);
        world->clock.now_ms += 30;
        if (i % 5 == 0)
            test_tend(store);
        if (i % 500 != 0)
            continue;
        idem__segment_totals(journal, &used, &live);
        used = folder_bytes(world->dir);
        /* The constant: the segment that is written, the next one, the reserve,
         * and the steps that the sweep is behind. */
        if (used > 2 * live + 6 * 16384)
            fail_msg("round %llu: %llu bytes for %llu live",
                     (unsigned long long)i, (unsigned long long)used,
                     (unsigned long long)live);
        if (used * 100 / (live + 1) > worst && i > rounds / 2)
            worst = used * 100 / (live + 1);
    }
    print_message("worst: %llu %%; %llu bytes moved\n",
                  (unsigned long long)worst,
                  (unsigned long long)journal->moved_bytes);
    assert_true(journal->moved_bytes > 0);
    test_close(store);
}

static void
expired_records_go_and_executing_ones_stay(void **state)
{
    struct world *world = *state;
    struct idem_store *store = open_world(world);
    struct journal *journal = (struct journal *)store;

    assert_int_equal(put(world, store, 0, 1000, 0, IDEM_STATE_EXECUTING, 1000),
                     IDEM_SWAP_STORED);
    for (uint64_t i = 1; i <= 300; i++)
        put(world, store, i, i, 0, IDEM_STATE_SUCCEEDED, 1000);
    assert_true(journal->segment_count > 5);
    world->clock.now_ms += 3 * DAY_MS;
    for (int i = 0; i < 100; i++)
        test_tend(store);
    assert_int_equal(journal->index.count, 1);
    assert_true(journal->segment_count <= 2);
    assert_int_equal(test_rev(store, 0), 1000);
    assert_int_equal(test_rev(store, 1), 0);
    test_close(store);

    store = open_world(world);
    assert_int_equal(test_rev(store, 0), 1000);
    assert_int_equal(test_rev(store, 1), 0);
    test_close(store);
}

/* An executing record that was finished and expired must not come back when the
 * segment of the finish is removed: the older entry is removed before it. */
static void
an_older_life_never_comes_back(void **state)
{
    struct world *world = *state;
    struct idem_store *store = open_world(world);

    for (uint64_t id = 0; id < 50; id++)
        put(world, store, id, 10 + id, 0, IDEM_STATE_EXECUTING, 1000);
    for (uint64_t i = 100; i < 200; i++) /* other segments in between */
        put(world, store, i, i, 0, IDEM_STATE_SUCCEEDED, 30 * DAY_MS);
    for (uint64_t id = 0; id < 50; id++)
        put(world, store, id, 500 + id, 10 + id, IDEM_STATE_SUCCEEDED, 1000);
    world->clock.now_ms += DAY_MS;
    for (int round = 0; round < 60; round++) {
        test_tend(store);
        put(world, store, 1000, 10000 + (uint64_t)round,
            round ? 9999 + (uint64_t)round : 0, IDEM_STATE_SUCCEEDED, DAY_MS);
        test_close(store);
        if (round % 2)
            remove_files(world->dir, ".idx");
        store = open_world(world);
        for (uint64_t id = 0; id < 50; id++) {
            uint64_t rev = test_rev(store, id);

            assert_true(rev == 0 || rev == 500 + id);
        }
    }
    test_close(store);
}

/* ---- saved indexes ---- */

static void
state_of(struct idem_store *store, uint64_t revs[600])
{
    for (uint64_t id = 0; id < 600; id++)
        revs[id] = test_rev(store, id);
}

/* Open the journal with and without its saved indexes, and compare. */
static void
compare_saved(struct world *world)
{
    struct idem_store *store = open_world(world);
    struct journal *journal = (struct journal *)store;
    uint64_t with[600], without[600], live, used, live2;
    size_t executing = journal->index.executing, count = journal->index.count;

    state_of(store, with);
    idem__segment_totals(journal, &used, &live);
    test_close(store);
    remove_files(world->dir, ".idx");
    store = open_world(world);
    journal = (struct journal *)store;
    state_of(store, without);
    assert_memory_equal(with, without, sizeof(with));
    idem__segment_totals(journal, &used, &live2);
    assert_int_equal(live, live2);
    assert_int_equal(executing, journal->index.executing);
    assert_int_equal(count, journal->index.count);
    test_close(store);
}

static void
change_at_random(struct world *world, uint64_t from, uint64_t seed)
{
    struct idem_store *store = open_world(world);
    struct test_record t;

    for (uint64_t i = from; i < from + 3000; i++) {
        uint64_t id = test_random(&seed) % 500, rev = test_rev(store, id);

        test_make(&t, id, i % 2 ? IDEM_STATE_EXECUTING : IDEM_STATE_FAILED, i,
                  i % 50 == 0 ? 3000 : i % 300);
        assert_int_equal(test_swap(store, &t, rev, rev && i % 13 == 0),
                         IDEM_SWAP_STORED);
        if (i % 100 == 0)
            test_tend(store);
    }
    test_close(store);
}

/* Also with tags that collide, and with positions that go round. */
static void
with_and_without_saved_indexes_the_state_is_the_same(void **state)
{
    static const uint64_t masks[] = {0, UINT64_C(255) << 56, 1};
    struct world *world = *state;

    for (size_t i = 0; i < 3; i++) {
        test_folder_empty(world->dir);
        world->tuning.tag_mask = masks[i];
        world->tuning.first_base = i == 0 ? INDEX_AT_END - 5000 : 0;
        change_at_random(world, 1, 5 + i);
        compare_saved(world);
        change_at_random(world, 5000, 50 + i);
        compare_saved(world);
    }
}

/* More rows than are kept in memory: the replaced ones are in the file. */
static void
a_saved_index_may_have_rows_that_were_replaced(void **state)
{
    enum { IDS = 20000 };
    struct world *world = *state;
    struct idem_store *store;
    struct test_record t;

    world->tuning.segment_len = UINT64_C(64) << 20;
    store = open_world(world);
    for (uint64_t id = 0; id < IDS; id++) {
        test_make(&t, id, IDEM_STATE_EXECUTING, id + 1, 0);
        assert_int_equal(test_swap(store, &t, 0, false), IDEM_SWAP_STORED);
    }
    for (uint64_t id = 0; id < IDS; id++) {
        test_make(&t, id, IDEM_STATE_SUCCEEDED, id + 50001, 9);
        assert_int_equal(test_swap(store, &t, id + 1, id % 7 == 0),
                         IDEM_SWAP_STORED);
    }
    assert_int_equal(((struct journal *)store)->segment_count, 1);
    test_close(store);
    compare_saved(world);
    store = open_world(world);
    for (uint64_t id = 0; id < IDS; id++)
        assert_int_equal(test_rev(store, id), id % 7 ? id + 50001 : 0);
    test_close(store);
}

/* Flip single bytes at regular places of every saved index. */
static void
a_damaged_saved_index_is_not_used(void **state)
{
    struct world *world = *state;
    struct idem_store *store = open_world(world);
    struct test_path path = test_segment_path(world->dir, 1, "idx");
    struct stat info;

    for (uint64_t i = 1; i < 40; i++)
        put(world, store, i, i, 0, IDEM_STATE_SUCCEEDED, DAY_MS);
    test_close(store);
    assert_int_equal(stat(path.text, &info), 0);
    for (off_t at = 0; at < info.st_size; at += 37) {
        int fd = open(path.text, O_RDWR);
        uint8_t byte;

        assert_int_equal(pread(fd, &byte, 1, at), 1);
        byte ^= 0x41;
        assert_int_equal(pwrite(fd, &byte, 1, at), 1);
        close(fd);
        store = open_world(world);
        for (uint64_t i = 1; i < 40; i++)
            assert_int_equal(test_rev(store, i), i);
        test_close(store);
    }
}

/* ---- damage ---- */

static void
damage_in_the_middle_is_reported_with_its_place(void **state)
{
    struct world *world = *state;
    struct test_path path = test_segment_path(world->dir, 1, "seg");
    struct idem_store *store = open_world(world);
    struct journal *journal;
    struct test_record t;
    struct spot spot;
    struct idem_error err;
    char place[64];
    uint64_t at;
    int fd;

    for (uint64_t i = 1; i < 10; i++)
        put(world, store, i, i, 0, IDEM_STATE_SUCCEEDED, DAY_MS);
    test_make(&t, 5, IDEM_STATE_FAILED, 1, 0);
    journal = (struct journal *)store;
    assert_true(idem__index_first(
        &journal->index, idem__index_tag(&journal->index, t.key), &spot));
    at = idem__journal_offset(journal, &spot.slot);
    test_close(store);
    remove_files(world->dir, ".idx");
    fd = open(path.text, O_RDWR);
    assert_int_equal(pwrite(fd, "damage", 6, (off_t)at + 100), 6);
    close(fd);

    assert_int_equal(try_open(world, "", &store, &err), IDEM_ERR_CORRUPT);
    snprintf(place, sizeof(place), "0000000000000001 is damaged at offset %llu",
             (unsigned long long)at);
    assert_non_null(strstr(err.text, place));

    /* Only with this option it opens, without that record, and logs it. */
    assert_int_equal(try_open(world, "?damage=accept", &store, &err), IDEM_OK);
    assert_int_equal(world->log.count[IDEM_LOG_ALARM], 1);
    for (uint64_t i = 1; i < 10; i++)
        assert_int_equal(test_rev(store, i), i == 5 ? 0 : i);
    test_close(store);
}

/* All tags are the same, so only the keys show whose record a row is. */
static void
a_damaged_key_does_not_bring_an_older_record_back(void **state)
{
    struct world *world = *state;
    struct test_path path = test_segment_path(world->dir, 2, "seg");
    struct idem_store *store;
    struct idem_error err;
    uint64_t at;
    uint8_t byte;
    int fd;

    world->tuning.tag_mask = 1;
    store = open_world(world);
    put(world, store, 1, 1, 0, IDEM_STATE_EXECUTING, DAY_MS);
    put(world, store, 2, 9, 0, IDEM_STATE_SUCCEEDED, DAY_MS);
    test_close(store);
    store = open_world(world);
    put(world, store, 1, 2, 1, IDEM_STATE_EXECUTING, DAY_MS);
    at = ((struct journal *)store)->segments[1].end + ENTRY_KEY_AT;
    put(world, store, 3, 3, 0, IDEM_STATE_SUCCEEDED, DAY_MS);
    test_close(store);

    fd = open(path.text, O_RDWR);
    assert_int_equal(pread(fd, &byte, 1, (off_t)at), 1);
    byte ^= 1;
    assert_int_equal(pwrite(fd, &byte, 1, (off_t)at), 1);
    close(fd);
    assert_int_equal(try_open(world, "", &store, &err), IDEM_ERR_CORRUPT);
}

static void
the_last_batch_is_torn_or_damaged_by_what_follows_it(void **state)
{
    struct world *world = *state;
    struct test_path path = test_segment_path(world->dir, 1, "seg");
    struct idem_store *store = open_world(world);
    struct idem_error err;
    uint64_t end;
    int fd;

    put(world, store, 1, 1, 0, IDEM_STATE_SUCCEEDED, DAY_MS);
    end = ((struct journal *)store)->segments[0].end;
    test_close(store); /* writes a mark after the last batch */
    remove_files(world->dir, ".idx");
    fd = open(path.text, O_RDWR);
    assert_int_equal(pwrite(fd, "damage", 6, (off_t)end - 20), 6);
    assert_int_equal(try_open(world, "", &store, &err), IDEM_ERR_CORRUPT);
    /* Without the mark the same bytes are a batch that was being written. */
    assert_int_equal(ftruncate(fd, (off_t)end), 0);
    close(fd);
    store = open_world(world);
    assert_int_equal(test_rev(store, 1), 0);
    test_close(store);
}

static void
a_missing_segment_and_a_newer_version_are_refused(void **state)
{
    struct world *world = *state;
    struct test_path second = test_segment_path(world->dir, 2, "seg");
    struct test_path first = test_segment_path(world->dir, 1, "seg");
    struct idem_store *store = open_world(world);
    struct idem_error err;
    int fd;

    for (uint64_t i = 1; i < 200; i++)
        put(world, store, i, i, 0, IDEM_STATE_SUCCEEDED, DAY_MS);
    test_close(store);
    assert_int_equal(unlink(second.text), 0);
    assert_int_equal(try_open(world, "", &store, &err), IDEM_ERR_CORRUPT);
    assert_non_null(strstr(err.text, "0000000000000002 is missing"));

    fd = open(first.text, O_RDWR);
    assert_int_equal(pwrite(fd, "\2", 1, 8), 1);
    close(fd);
    assert_int_equal(try_open(world, "?damage=accept", &store, &err),
                     IDEM_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "newer idem"));
}

/* ---- clocks ---- */

static int64_t
now_ms(struct idem_store *store)
{
    int64_t now_us;

    assert_int_equal(store->type->now(store, &now_us, NULL), IDEM_OK);
    return now_us / 1000;
}

static int64_t far_wall_us;

static int64_t
wall_us(void *arg)
{
    (void)arg;
    return far_wall_us;
}

static void
time_goes_on_whatever_the_wall_clock_does(void **state)
{
    struct world *world = *state;
    struct idem_store *store = open_world(world);
    struct idem_error err;
    int64_t then = world->clock.now_ms;

    put(world, store, 1, 1, 0, IDEM_STATE_SUCCEEDED, DAY_MS);
    world->clock.now_ms += 5000;
    assert_int_equal(now_ms(store), then + 5000);
    put(world, store, 2, 2, 0, IDEM_STATE_SUCCEEDED, DAY_MS);
    test_close(store);

    world->clocks.wall_us = wall_us; /* an hour back */
    far_wall_us = (then - 3600000) * 1000;
    store = open_world(world);
    assert_int_equal(now_ms(store), then + 5000);
    test_close(store);

    far_wall_us = (then + 3 * DAY_MS) * 1000; /* a weekend later */
    store = open_world(world);
    assert_int_equal(now_ms(store), then + 3 * DAY_MS);
    assert_int_equal(world->log.count[IDEM_LOG_ALARM], 0);
    test_close(store);

    far_wall_us = (then + 300 * DAY_MS) * 1000; /* not plausible */
    store = open_world(world);
    assert_int_equal(world->log.count[IDEM_LOG_ALARM], 1);
    assert_non_null(strstr(world->log.last, "clock=trust"));
    assert_int_equal(now_ms(store), then + 3 * DAY_MS);
    for (int i = 0; i < 20; i++)
        test_tend(store);
    test_close(store);

    assert_int_equal(try_open(world, "?clock=trust", &store, &err), IDEM_OK);
    assert_int_equal(now_ms(store), then + 300 * DAY_MS);
    test_close(store);
}

/* ---- a full disk, a failing disk ---- */

static void
a_full_disk_refuses_claims_and_lets_them_finish(void **state)
{
    struct world *world = *state;
    struct idem_store *store;
    struct journal *journal;
    uint64_t id = 0, claimed;

    world->small = true;
    world->room = 40 * 16384;
    store = open_world(world);
    journal = (struct journal *)store;
    for (; id < 10000; id++) {
        test_tend(store);
        if (put(world, store, id, 2 * id + 2, 0, IDEM_STATE_EXECUTING,
                DAY_MS) != IDEM_SWAP_STORED)
            break;
    }
    claimed = id;
    assert_true(claimed > 100 && claimed < 10000);
    assert_true(journal->full);
    assert_int_equal(world->log.count[IDEM_LOG_ALARM], 1);
    /* Reads work, a new claim is refused, and the oldest forty can be
     * finished. */
    assert_int_equal(test_rev(store, 3), 8);
    for (id = 0; id < 40; id++)
        assert_int_equal(put(world, store, id, 2 * id + 3, 2 * id + 2,
                             IDEM_STATE_SUCCEEDED, DAY_MS),
                         IDEM_SWAP_STORED);
    assert_int_equal(
        put(world, store, 99999, 77, 0, IDEM_STATE_EXECUTING, DAY_MS),
        IDEM_SWAP_NOT_STORED);

    /* There is space again: no restart is needed. */
    world->room = 100 * 16384;
    for (int i = 0; i < 3; i++)
        test_tend(store);
    assert_false(journal->full);
    assert_int_equal(
        put(world, store, 99999, 77, 0, IDEM_STATE_EXECUTING, DAY_MS),
        IDEM_SWAP_STORED);
    test_close(store);
    store = open_world(world);
    assert_int_equal(test_rev(store, 99999), 77);
    assert_int_equal(test_rev(store, 39), 81);
    assert_int_equal(test_rev(store, claimed - 1), 2 * claimed);
    test_close(store);
}

static void
a_failed_sync_stops_it_until_it_has_been_read_again(void **state)
{
    struct world *world = *state;
    struct idem_store *store = open_world(world);
    struct journal *journal = (struct journal *)store;
    uint64_t id;

    put(world, store, 1, 1, 0, IDEM_STATE_SUCCEEDED, DAY_MS);
    id = journal->segments[journal->segment_count - 1].head.id;
    world->fail_syncs = 3;
    assert_int_equal(put(world, store, 2, 2, 0, IDEM_STATE_SUCCEEDED, DAY_MS),
                     IDEM_SWAP_LOST);
    assert_int_equal(world->log.count[IDEM_LOG_ALARM], 1);
    /* The new segment cannot be synced either, twice. */
    assert_int_equal(put(world, store, 3, 3, 0, IDEM_STATE_SUCCEEDED, DAY_MS),
                     IDEM_SWAP_NOT_STORED);
    assert_int_equal(put(world, store, 3, 3, 0, IDEM_STATE_SUCCEEDED, DAY_MS),
                     IDEM_SWAP_NOT_STORED);
    /* Now it can. The lost batch is certainly not there, and can be sent
     * again. */
    assert_int_equal(test_rev(store, 2), 0);
    assert_true(journal->segments[journal->segment_count - 1].head.id > id);
    assert_int_equal(put(world, store, 2, 2, 0, IDEM_STATE_SUCCEEDED, DAY_MS),
                     IDEM_SWAP_STORED);
    test_close(store);
    store = open_world(world);
    assert_int_equal(test_rev(store, 1), 1);
    assert_int_equal(test_rev(store, 2), 2);
    assert_int_equal(test_rev(store, 3), 0);
    test_close(store);
}

/* The name of the next segment fixes the end of this one. If the name may have
 * been given, nothing more may be added to this one, however small. */
static void
after_a_failed_rename_the_old_segment_is_closed(void **state)
{
    struct world *world = *state;
    struct idem_store *store = open_world(world);
    struct journal *journal = (struct journal *)store;
    struct test_record t;
    uint64_t id = 0;

    test_make(&t, 1000, IDEM_STATE_SUCCEEDED, 1000, 4000);
    world->fail_renames = 1;
    while (world->fail_renames > 0) { /* until a large batch does not fit */
        struct segment *last = &journal->segments[journal->segment_count - 1];

        if (last->file_len - last->end < 4000)
            (void)test_swap(store, &t, 0, false);
        else
            put(world, store, id + 1, id + 1, 0, IDEM_STATE_SUCCEEDED, DAY_MS);
        assert_true(++id < 1000);
    }
    assert_int_equal(
        put(world, store, 2000, 2000, 0, IDEM_STATE_SUCCEEDED, DAY_MS),
        IDEM_SWAP_STORED);
    test_close(store);
    store = open_world(world);
    assert_int_equal(test_rev(store, 2000), 2000);
    test_close(store);
}

/* Only when the batch needs a segment, the disk is found to be full. */
static void
claims_never_use_the_reserve(void **state)
{
    struct world *world = *state;
    struct idem_store *store = open_world(world);
    struct journal *journal = (struct journal *)store;
    uint64_t id = 0;

    test_tend(store); /* creates the reserve and the next segment */
    world->small = true;
    while (put(world, store, id, 2 * id + 2, 0, IDEM_STATE_EXECUTING, DAY_MS) ==
           IDEM_SWAP_STORED)
        assert_true(++id < 1000);
    assert_int_equal(journal->reserve_len, 16384);
    for (id = 0; id < 35; id++)
        assert_int_equal(put(world, store, id, 2 * id + 3, 2 * id + 2,
                             IDEM_STATE_SUCCEEDED, DAY_MS),
                         IDEM_SWAP_STORED);
    assert_int_equal(journal->reserve_len, 0);
    test_close(store);
}

/* The room reserved for a claim is released after two weeks without activity;
 * the claim itself stays, and can be finished. */
static void
an_old_doubt_keeps_its_record_and_not_its_reserve(void **state)
{
    enum { CLAIMS = 40 };
    struct world *world = *state;
    struct idem_store *store = open_world(world);
    struct journal *journal = (struct journal *)store;
    uint64_t id = 0, reserved = (uint64_t)CLAIMS * IDEM__CLAIM_RESERVE;

    for (; id < CLAIMS; id++)
        assert_int_equal(
            put(world, store, id, 2 * id + 2, 0, IDEM_STATE_EXECUTING, DAY_MS),
            IDEM_SWAP_STORED);
    test_tend(store);
    assert_true(journal->reserve_len >= reserved);
    for (int day = 0; day < 16; day++) {
        assert_int_equal(journal->index.idle, 0);
        for (int n = 0; n < 200; n++, id++)
            assert_int_equal(put(world, store, id, 2 * id + 2, 0,
                                 IDEM_STATE_SUCCEEDED, DAY_MS / 2),
                             IDEM_SWAP_STORED);
        world->clock.now_ms += DAY_MS;
        if (day < 13)
            test_tend(store);
    }
    for (int n = 0; n < 500 && journal->index.idle < CLAIMS; n++, id++) {
        assert_int_equal(put(world, store, id, 2 * id + 2, 0,
                             IDEM_STATE_SUCCEEDED, DAY_MS / 2),
                         IDEM_SWAP_STORED);
        test_tend(store);
    }
    assert_int_equal(journal->index.executing, CLAIMS);
    assert_int_equal(journal->index.idle, CLAIMS);
    test_tend(store);
    assert_true(journal->reserve_len < reserved);
    for (id = 0; id < CLAIMS; id++)
        assert_int_equal(put(world, store, id, 2 * id + 3, 2 * id + 2,
                             IDEM_STATE_SUCCEEDED, DAY_MS),
                         IDEM_SWAP_STORED);
    assert_int_equal(journal->index.executing, 0);
    assert_int_equal(journal->index.idle, 0);
    test_close(store);
}

/* ---- many restarts ---- */

static void
many_restarts_leave_few_files(void **state)
{
    struct world *world = *state;
    struct idem_store *store;

    for (uint64_t i = 1; i <= 400; i++) {
        store = open_world(world);
        assert_int_equal(
            put(world, store, i, i, 0, IDEM_STATE_SUCCEEDED, DAY_MS),
            IDEM_SWAP_STORED);
        test_tend(store);
        test_close(store);
    }
    store = open_world(world);
    assert_true(((struct journal *)store)->segment_count < 100);
    for (uint64_t i = 1; i <= 400; i++)
        assert_int_equal(test_rev(store, i), i);
    test_close(store);
}

/* A journal whose records have all expired has one segment, and that is empty.
 * The next segment must not get a lower number: the empty file is still there,
 * and what it says of the segment before it would end the new one. */
static void
a_journal_of_one_empty_segment_keeps_what_follows(void **state)
{
    struct world *world = *state;

    for (uint64_t segments = 1; segments < 4; segments++) {
        struct idem_store *store;
        struct journal *journal;

        test_folder_empty(world->dir);
        for (uint64_t i = 1; i <= segments; i++) {
            store = open_world(world);
            assert_int_equal(
                put(world, store, i, i, 0, IDEM_STATE_SUCCEEDED, 1000),
                IDEM_SWAP_STORED);
            test_close(store);
        }
        world->clock.now_ms += DAY_MS;
        store = open_world(world);
        journal = (struct journal *)store;
        for (int i = 0; i < 100; i++)
            test_tend(store);
        assert_int_equal(journal->segment_count, 1);
        assert_int_equal(journal->segments[0].end, SEGMENT_HEAD_LEN);
        test_close(store);

        store = open_world(world);
        journal = (struct journal *)store;
        assert_int_equal(journal->segments[0].head.id, segments + 1);
        for (uint64_t i = 4; i < 10; i++) {
            assert_int_equal(
                put(world, store, i, i, 0, IDEM_STATE_SUCCEEDED, DAY_MS),
                IDEM_SWAP_STORED);
            world->clock.now_ms += 2000;
            test_tend(store); /* writes a mark, as closing does */
        }
        test_close(store);
        store = open_world(world);
        for (uint64_t i = 4; i < 10; i++)
            assert_int_equal(test_rev(store, i), i);
        test_close(store);
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        T(under_steady_load_the_folder_stays_within_twice_the_live_data),
        T(expired_records_go_and_executing_ones_stay),
        T(an_older_life_never_comes_back),
        T(with_and_without_saved_indexes_the_state_is_the_same),
        T(a_saved_index_may_have_rows_that_were_replaced),
        T(a_damaged_saved_index_is_not_used),
        T(damage_in_the_middle_is_reported_with_its_place),
        T(a_damaged_key_does_not_bring_an_older_record_back),
        T(the_last_batch_is_torn_or_damaged_by_what_follows_it),
        T(a_missing_segment_and_a_newer_version_are_refused),
        T(time_goes_on_whatever_the_wall_clock_does),
        T(a_full_disk_refuses_claims_and_lets_them_finish),
        T(a_failed_sync_stops_it_until_it_has_been_read_again),
        T(after_a_failed_rename_the_old_segment_is_closed),
        T(claims_never_use_the_reserve),
        T(an_old_doubt_keeps_its_record_and_not_its_reserve),
        T(many_restarts_leave_few_files),
        T(a_journal_of_one_empty_segment_keeps_what_follows),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
