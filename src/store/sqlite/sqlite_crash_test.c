/*
 * sqlite_crash_test.c - tests that a power cut at any write or sync of SQLite
 * leaves what was acknowledged.
 *
 * SQLite's own system calls go through tests/support/disk.h, which knows what
 * is durable. Before each call that changes a file or syncs, and after each
 * answer, there are three images of what a power cut would leave: nothing
 * of what was not synced, all of it, and a part. The store is opened on each
 * image. The database must be whole, with everything that was acknowledged.
 *
 * In the counter-tests the disk ignores syncs of files, or of the folder; the
 * same program must then find losses.
 */
#include "../journal/model.h"

#include "../../../tests/support/disk.h"
#include "sqlite_calls.h"

#define BATCHES 5

struct run {
    struct model model;
    uint64_t seed;
    const char *mode; /* of the URL */
    char *dir, *image;
    struct idem_clocks clocks;
    size_t images, boundaries, flaws;
    char first_flaw[300];
};

static struct run run;
static struct disk *disk;

/* ---- an image -------------------------------------------------------- */

static void
note(const char *what)
{
    if (run.flaws++ == 0)
        snprintf(run.first_flaw, sizeof(run.first_flaw), "boundary %zu: %s",
                 run.boundaries, what);
}

static enum idem_status
open_in(const char *dir, struct idem_store **store, struct idem_error *err)
{
    struct idem_store_options options = {.log = test_log,
                                         .clocks = &run.clocks};
    char url[4200];

    snprintf(url, sizeof(url), "sqlite:%s/records.db?mode=%s", dir, run.mode);
    return idem__store_open(url, &options, store, err);
}

static int
is_ok(void *arg, int count, char **values, char **names)
{
    (void)names;
    *(bool *)arg = count == 1 && strcmp(values[0], "ok") == 0;
    return 0;
}

static bool
is_whole(void)
{
    struct test_path path = test_path(run.image, "records.db");
    sqlite3 *db = NULL;
    bool whole = false;

    assert_int_equal(sqlite3_open(path.text, &db), SQLITE_OK);
    (void)sqlite3_exec(db, "pragma integrity_check", is_ok, &whole, NULL);
    sqlite3_close(db);
    return whole;
}

static void
check_image(void)
{
    struct idem_store *store = NULL;
    struct idem_error err;
    const char *flaw;

    if (open_in(run.image, &store, &err) != IDEM_OK) {
        note(err.text);
        return;
    }
    test_close(store);
    if (!is_whole()) {
        note("the database is damaged");
        return;
    }
    if (open_in(run.image, &store, &err) != IDEM_OK) {
        note(err.text);
        return;
    }
    flaw = model_flaw(&run.model, store);
    if (flaw)
        note(flaw);
    test_close(store);
}

static void
cut_power_here(void)
{
    static const enum disk_tear tears[] = {DISK_NONE_WRITTEN, DISK_ALL_WRITTEN,
                                           DISK_TORN};

    if (calls_aside)
        return;
    calls_aside = true;
    run.boundaries++;
    for (int i = 0; i < 3; i++) {
        disk_image(disk, run.image, tears[i]);
        check_image();
        run.images++;
    }
    calls_aside = false;
}

/* ---- a run ----------------------------------------------------------- */

static int
before_call(struct disk *of, enum disk_call call)
{
    (void)of;
    if (call != DISK_READ && call != DISK_OPEN)
        cut_power_here();
    return 0;
}

static uint64_t
roll(struct disk *of)
{
    (void)of;
    return test_random(&run.seed);
}

/* Batches, expiry, closing and opening. */
static void
work(void)
{
    struct idem_arena arena = {0};
    struct idem_store *store = NULL;
    struct idem_error err;
    struct model_swaps s;

    for (size_t i = 0; i < BATCHES && run.flaws == 0; i++) {
        if (!store && open_in(run.dir, &store, &err) != IDEM_OK)
            fail_msg("open: %s", err.text);
        model_batch(&run.model, &s);
        store->type->swap(store, s.swaps, s.count, &arena, NULL);
        model_learn(&run.model, &s);
        cut_power_here();
        run.model.now_ms += 9000;
        test_tend(store);
        if (i % 3 == 2) {
            test_close(store);
            store = NULL;
        }
    }
    if (store)
        test_close(store);
    idem_arena_clear(&arena);
}

static void
cut_power_everywhere(const char *mode, size_t seeds, bool deaf_data,
                     bool deaf_folder)
{
    const struct disk_hooks hooks = {.before = before_call, .random = roll};

    memset(&run, 0, sizeof(run));
    run.mode = mode;
    run.image = test_fast_folder();
    take_over_calls();
    for (size_t seed = 1; seed <= seeds && run.flaws == 0; seed++) {
        disk = disk_new(&hooks);
        calls_io = disk_io(disk);
        calls_dir = run.dir = test_fast_folder();
        run.seed = seed;
        model_init(&run.model, seed);
        run.model.expiring = true;
        run.clocks = model_clocks(&run.model);
        disk_deaf(disk, deaf_data, deaf_folder);
        work();
        disk_clear(disk);
        test_folder_drop(run.dir);
        calls_dir = run.dir = NULL;
    }
    test_folder_drop(run.image);
    print_message("%s: %zu images at %zu boundaries, %zu swaps stored\n", mode,
                  run.images, run.boundaries, run.model.stored);
}

static void
no_power_cut_loses_or_damages(const char *mode)
{
    cut_power_everywhere(mode, test_size(1, 1, 200), false, false);
    if (run.flaws > 0)
        fail_msg("%s: %s", mode, run.first_flaw);
    assert_true(run.boundaries > 50 && run.model.stored > 20);
}

static void
a_rollback_journal_survives_a_power_cut_at_every_boundary(void **state)
{
    (void)state;
    no_power_cut_loses_or_damages("rollback");
}

static void
a_write_ahead_log_survives_a_power_cut_at_every_boundary(void **state)
{
    (void)state;
    no_power_cut_loses_or_damages("wal");
}

static void
without_syncs_the_same_test_finds_losses(void **state)
{
    (void)state;
    cut_power_everywhere("rollback", 20, true, false);
    assert_true(run.flaws > 0);
    cut_power_everywhere("wal", 20, true, false);
    assert_true(run.flaws > 0);
}

static void
without_the_folders_sync_the_same_test_finds_losses(void **state)
{
    (void)state;
    cut_power_everywhere("rollback", 20, false, true);
    assert_true(run.flaws > 0);
    cut_power_everywhere("wal", 20, false, true);
    assert_true(run.flaws > 0);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(
            a_rollback_journal_survives_a_power_cut_at_every_boundary),
        cmocka_unit_test(
            a_write_ahead_log_survives_a_power_cut_at_every_boundary),
        cmocka_unit_test(without_syncs_the_same_test_finds_losses),
        cmocka_unit_test(without_the_folders_sync_the_same_test_finds_losses),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
