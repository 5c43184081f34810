/*
 * crash_test.c - tests that a power cut always leaves a valid journal.
 *
 * Every call of the journal goes through tests/support/disk.h, which knows what
 * is durable. At random calls it makes a crash image, and in one test at every
 * call that writes or syncs. A journal is opened on it and must have everything
 * that was acknowledged, and nothing that was not written.
 *
 * Now and then the process dies instead (a batch is written, not synced, and no
 * call works any more), and the journal is opened again on the same disk. What
 * the new process has read then must survive the next power cut.
 *
 * In the counter-tests the disk ignores fdatasync, or the folder's fsync; the
 * same program must then find losses.
 */
#include "model.h"

#include "../../../tests/support/disk.h"

#include <errno.h>

#define FILES 4000 /* the maximum number of files on a disk */

/* ---- a run ---- */

struct run {
    struct model model;
    uint64_t seed;
    bool dead;    /* the process is dead: no call has an effect */
    bool may_die; /* it may die after one of the next writes */
    char *image;
    struct idem_clocks clocks;
    size_t images, wanted, every, flaws, deaths;
    uint64_t moved_bytes, segments; /* to check that the cleaner has worked */
    bool until_flaw, everywhere;
    char first_flaw[300];
};

static int
no_sync(void *arg, int fd)
{
    (void)arg;
    (void)fd;
    return 0;
}

static void
note(struct run *run, const char *what)
{
    if (run->flaws++ == 0)
        snprintf(run->first_flaw, sizeof(run->first_flaw), "%s", what);
}

static void
swap_all(struct idem_store *store, struct model_swaps *s)
{
    struct idem_arena arena = {NULL, 0};

    (void)store->type->swap(store, s->swaps, s->count, &arena, NULL);
    idem_arena_clear(&arena);
}

/* Open what the crash left, check it, write more, check it again. */
static void
check_image(struct run *run, uint64_t dice)
{
    struct idem_io io = idem__system_io;
    struct journal_tuning tuning = {
        .io = &io,
        .segment_len = dice % 5 ? 8192 : 32768,
        .tail_len = 8192,
        .tag_mask = dice % 3 ? 0 : UINT64_C(15) << 60, /* tags collide */
        .no_thread = true,
        .lazy = dice % 5 < 3,
        .hold = dice % 5 == 0};
    struct model model = run->model;
    struct idem_clocks clocks = model_clocks(&model);
    struct idem_store *store;
    struct model_swaps s;
    struct idem_error err;
    const char *flaw;

    io.fsync = io.fdatasync = no_sync;
    if (test_try_open(run->image, &tuning, &clocks, NULL, &store, &err) !=
        IDEM_OK) {
        note(run, err.text);
        return;
    }
    flaw = model_flaw(&model, store);
    if (flaw)
        note(run, flaw);
    if (!flaw && dice % 4 == 0) {
        model_resolve(&model, store);
        for (int i = 0; i < 3; i++) {
            model_batch(&model, &s);
            swap_all(store, &s);
            model_learn(&model, &s);
            test_tend(store);
        }
        test_close(store);
        store = NULL;
        if (test_try_open(run->image, &tuning, &clocks, NULL, &store, &err))
            note(run, err.text);
        else if ((flaw = model_flaw(&model, store)))
            note(run, flaw);
    }
    if (store)
        test_close(store);
}

static uint64_t
roll(struct disk *disk)
{
    return test_random(&((struct run *)disk_arg(disk))->seed);
}

/* Three images at every write and sync. */
static void
crash_here(struct disk *disk)
{
    static const enum disk_tear tears[] = {DISK_NONE_WRITTEN, DISK_ALL_WRITTEN,
                                           DISK_TORN};
    struct run *run = disk_arg(disk);

    for (int i = 0; i < 3 && run->images < run->wanted; i++) {
        run->images++;
        disk_image(disk, run->image, tears[i]);
        check_image(run, roll(disk));
    }
}

static void
maybe_crash(struct disk *disk)
{
    struct run *run = disk_arg(disk);
    uint64_t dice = roll(disk);

    if (run->everywhere) {
        crash_here(disk);
        return;
    }
    if (run->images >= run->wanted || dice % run->every != 0)
        return;
    run->images++;
    disk_image(disk, run->image,
               (dice >> 20) % 8 == 0   ? DISK_NONE_WRITTEN
               : (dice >> 20) % 8 == 1 ? DISK_ALL_WRITTEN
                                       : DISK_TORN);
    check_image(run, dice >> 32);
}

static int
before_call(struct disk *disk, enum disk_call call)
{
    struct run *run = disk_arg(disk);

    if (call == DISK_READ)
        return 0;
    if (run->dead)
        return ENODEV;
    if (call != DISK_WRITE)
        maybe_crash(disk);
    return 0;
}

static void
written(struct disk *disk)
{
    struct run *run = disk_arg(disk);

    maybe_crash(disk); /* written, not synced */
    if (run->may_die && roll(disk) % 2)
        run->dead = true;
}

static void
leave(struct run *run, struct idem_store *store)
{
    struct journal *journal = (struct journal *)store;

    run->moved_bytes += journal->moved_bytes;
    run->segments = journal->segments[0].head.id;
    test_close(store);
}

static struct idem_store *
live_again(struct run *run, const char *dir,
           const struct journal_tuning *tuning)
{
    struct idem_store *store = NULL;
    struct idem_error err;

    run->dead = run->may_die = false;
    if (test_try_open(dir, tuning, &run->clocks, NULL, &store, &err))
        fail_msg("open: %s", err.text);
    return store;
}

/* Batches, cleaning, expiry, closing and opening, until there are enough
 * images. */
static void
work(struct run *run, struct disk *disk, const char *dir)
{
    struct idem_io io = disk_io(disk);
    struct journal_tuning tuning = {
        .io = &io, .tail_len = 8192, .no_thread = true};
    struct idem_store *store = NULL;
    struct model_swaps s;

    for (size_t round = 0; run->images < run->wanted && round < 100000;
         round++) {
        tuning.segment_len = round % 3 ? 8192 : 24576;
        tuning.lazy = roll(disk) % 2;
        if (!store)
            store = live_again(run, dir, &tuning);
        model_batch(&run->model, &s);
        swap_all(store, &s);
        model_learn(&run->model, &s);
        run->model.now_ms += 100;
        run->may_die = roll(disk) % 16 == 0;
        if (run->dead) {
            test_close(store); /* changes nothing */
            store = live_again(run, dir, &tuning);
            model_resolve(&run->model, store); /* a process has read this now */
            run->deaths++;
        }
        if (roll(disk) % 3 == 0)
            test_tend(store);
        if (roll(disk) % 100 == 0) {
            leave(run, store);
            store = NULL;
        }
        if (disk_files(disk) > FILES || (run->until_flaw && run->flaws))
            break;
    }
    if (store)
        leave(run, store);
}

static void
crash_often(struct run *run, size_t wanted, bool deaf_data, bool deaf_folder)
{
    size_t seed = 1;

    run->wanted = wanted;
    run->every = 10;
    run->until_flaw = deaf_data || deaf_folder;
    run->image = test_fast_folder();
    for (; run->images < wanted && seed < 1000; seed++) {
        const struct disk_hooks hooks = {.before = before_call,
                                         .written = written,
                                         .random = roll,
                                         .arg = run};
        struct disk *disk = disk_new(&hooks);
        char *dir = test_fast_folder();

        model_init(&run->model, seed);
        run->model.expiring = true;
        run->clocks = model_clocks(&run->model);
        run->seed = seed;
        run->dead = run->may_die = false;
        disk_deaf(disk, deaf_data, deaf_folder);
        work(run, disk, dir);
        disk_clear(disk);
        test_folder_drop(dir);
        if (run->until_flaw && run->flaws > 0)
            break;
    }
    test_folder_drop(run->image);
    assert_true(run->images > 0);
}

static void
no_crash_loses_or_invents_a_record(void **state)
{
    struct run run = {0};

    (void)state;
    crash_often(&run, test_size(500, 2000, 25000), false, false);
    print_message("%zu images, %zu swaps stored, %zu deaths, %llu bytes "
                  "moved\n",
                  run.images, run.model.stored, run.deaths,
                  (unsigned long long)run.moved_bytes);
    if (run.flaws > 0)
        fail_msg("%zu of %zu images: %s", run.flaws, run.images,
                 run.first_flaw);
    assert_true(run.moved_bytes > 0 && run.segments > 10 && run.deaths > 5);
}

static void
no_crash_at_any_write_or_sync_loses_or_invents_a_record(void **state)
{
    struct run run = {.everywhere = true};

    (void)state;
    crash_often(&run, test_size(300, 1500, 15000), false, false);
    if (run.flaws > 0)
        fail_msg("%zu of %zu images: %s", run.flaws, run.images,
                 run.first_flaw);
    assert_true(run.model.stored > 50);
}

static void
without_fdatasync_the_same_test_finds_losses(void **state)
{
    struct run run = {0};

    (void)state;
    crash_often(&run, 2000, true, false);
    assert_true(run.flaws > 0);
}

static void
without_the_folders_fsync_the_same_test_finds_losses(void **state)
{
    struct run run = {0};

    (void)state;
    crash_often(&run, 2000, false, true);
    assert_true(run.flaws > 0);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_crash_loses_or_invents_a_record),
        cmocka_unit_test(
            no_crash_at_any_write_or_sync_loses_or_invents_a_record),
        cmocka_unit_test(without_fdatasync_the_same_test_finds_losses),
        cmocka_unit_test(without_the_folders_fsync_the_same_test_finds_losses),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
