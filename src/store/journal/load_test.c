/*
 * load_test.c - tests that a journal gives the same answers while its index is
 * loaded as afterwards.
 *
 * Most tests open a journal whose loader is held: it loads only what a call
 * needs. So most keys are looked up before their slices are loaded.
 */
#define TEST_ADVICE
#include "model.h"

#include "../../base/le.h"
#include "journal_check.h"

#include <errno.h>
#include <fcntl.h>

#define IDS 600
#define FIRST_SHARDS 8

struct world {
    char *dir, *copy;
    size_t files; /* that are open in this process */
    struct journal_tuning tuning;
    struct idem_io io;
    struct test_log log;
    struct model model; /* its clock */
    struct idem_clocks clocks;
    uint64_t revs[IDS]; /* 0: absent */
    bool executing[IDS];
    uint64_t seed, last_rev;
    size_t reads_until_failure; /* 0: no read fails */
    bool failing;               /* every read fails */
    struct ahead *ahead;        /* what the kernel was asked for */
    bool spoiling; /* saved indexes, before the journal is opened */
};

static int
no_sync(void *arg, int fd)
{
    (void)arg;
    (void)fd;
    return 0;
}

static ssize_t
failing_read(void *arg, int fd, void *data, size_t len, off_t at)
{
    struct world *world = arg;

    if (world->failing ||
        (world->reads_until_failure > 0 && --world->reads_until_failure == 0)) {
        errno = EIO;
        return -1;
    }
    return pread(fd, data, len, at);
}

static int
setup(void **state)
{
    struct world *world = calloc(1, sizeof(*world));

    world->files = test_open_files();
    world->dir = test_fast_folder();
    world->copy = test_fast_folder();
    world->io = idem__system_io;
    world->io.fsync = world->io.fdatasync = no_sync;
    world->tuning = (struct journal_tuning){
        .io = &world->io, .segment_len = 16384, .no_thread = true};
    model_init(&world->model, 1);
    world->clocks = model_clocks(&world->model);
    world->seed = test_seed();
    *state = world;
    return 0;
}

static int
teardown(void **state)
{
    struct world *world = *state;

    assert_int_equal(test_open_files(), world->files);
    test_folder_drop(world->dir);
    test_folder_drop(world->copy);
    free(world);
    return 0;
}

static struct idem_store *
open_at(struct world *world, const char *dir, bool lazy, bool hold)
{
    struct idem_store *store = NULL;
    struct idem_error err;

    world->tuning.lazy = lazy;
    world->tuning.hold = hold;
    if (test_try_open(dir, &world->tuning, &world->clocks, &world->log, &store,
                      &err) != IDEM_OK)
        fail_msg("open: %s", err.text);
    return store;
}

/* Claim, finish or delete a random key, as the model says it is. */
static void
change(struct world *world, struct idem_store *store)
{
    uint64_t dice = test_random(&world->seed), id = dice % IDS;
    bool delete = world->revs[id] && (dice >> 20) % 5 == 0;
    bool executing = (dice >> 30) % 3 == 0;
    struct test_record t;

    test_make(&t, id, executing ? IDEM_STATE_EXECUTING : IDEM_STATE_SUCCEEDED,
              ++world->last_rev, executing ? 0 : (dice >> 40) % 500);
    assert_int_equal(test_swap(store, &t, world->revs[id], delete),
                     IDEM_SWAP_STORED);
    world->revs[id] = delete ? 0 : t.record.rev;
    world->executing[id] = !delete &&executing;
}

/* Swaps that expect something else are refused. */
static void
refuse(struct world *world, struct idem_store *store)
{
    uint64_t id = test_random(&world->seed) % IDS;
    struct test_record t;

    test_make(&t, id, IDEM_STATE_EXECUTING, UINT64_MAX - id, 0);
    assert_int_equal(
        test_swap(store, &t, world->revs[id] ? 0 : UINT64_MAX, false),
        IDEM_SWAP_REFUSED);
}

static void
check_some(struct world *world, struct idem_store *store, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        uint64_t id = test_random(&world->seed) % IDS;

        assert_int_equal(test_rev(store, id), world->revs[id]);
    }
}

static bool
see(void *arg, const struct idem_record *record)
{
    uint64_t *revs = arg;
    char id[32];

    snprintf(id, sizeof(id), "%.*s", (int)record->id.len,
             (const char *)record->id.data);
    revs[strtoull(id + 3, NULL, 10)] = record->rev;
    return true;
}

/* List all records, a few at a time. */
static void
check_scan(struct world *world, struct idem_store *store)
{
    uint64_t revs[IDS] = {0};
    struct idem_cursor cursor = {.text = "0"};
    struct idem_filter filter = {0};
    struct idem_now now = {.early_ms = world->model.now_ms,
                           .late_ms = world->model.now_ms};
    struct idem_query query = {.filter = &filter,
                               .now = &now,
                               .cursor = &cursor,
                               .count = 7,
                               .each = see,
                               .arg = revs};

    do {
        struct idem_error err;

        if (store->type->scan(store, &query, &err) != IDEM_OK)
            fail_msg("scan: %s", err.text);
    } while (strcmp(cursor.text, "0") != 0);
    assert_memory_equal(revs, world->revs, sizeof(revs));
}

static void
check_all(struct world *world, struct idem_store *store)
{
    struct journal *journal = (struct journal *)store;
    size_t count = 0, executing = 0;

    for (uint64_t id = 0; id < IDS; id++) {
        assert_int_equal(test_rev(store, id), world->revs[id]);
        count += world->revs[id] != 0;
        executing += world->executing[id];
    }
    while (journal->loader) {
        journal->tuning.hold = false;
        test_tend(store);
    }
    assert_int_equal(journal->index.count, count);
    assert_int_equal(journal->index.executing, executing);
}

/* Live bytes of each segment must be those of a journal that loaded everything
 * at once. Both journals are copies of the same files. */
static void
check_live(struct world *world)
{
    struct idem_store *store;
    struct journal *journal;
    uint64_t live[1000], used[2], total[2];
    size_t count;

    test_folder_copy(world->dir, world->copy);
    store = open_at(world, world->copy, false, false);
    journal = (struct journal *)store;
    assert_null(journal->loader);
    count = journal->segment_count;
    assert_true(count <= 1000);
    for (size_t i = 0; i < count; i++)
        live[i] = journal->segments[i].live;
    idem__segment_totals(journal, &used[0], &total[0]);
    test_close(store);

    test_folder_copy(world->dir, world->copy);
    store = open_at(world, world->copy, true, false);
    journal = (struct journal *)store;
    assert_non_null(journal->loader);
    for (size_t i = 0; journal->loader; i++)
        idem__load_some(journal, 1);
    assert_int_equal(journal->segment_count, count);
    for (size_t i = 0; i < count; i++)
        assert_int_equal(journal->segments[i].live, live[i]);
    idem__segment_totals(journal, &used[1], &total[1]);
    assert_int_equal(total[0], total[1]);
    test_close(store);
}

/* Flip a bit of a file, or leave out a part that did not reach the disk, or cut
 * it, or remove it, or put the bytes of another one there. */
static void
spoil_file(const char *path, uint64_t dice, struct idem_buf *other)
{
    static const uint8_t zeros[200];
    struct stat info;
    int fd = open(path, O_RDWR);
    uint8_t bytes[16384];
    ssize_t len = pread(fd, bytes, sizeof(bytes), 0);
    off_t at = len > 0 ? (off_t)((dice >> 8) % (uint64_t)len) : 0;

    assert_true(fstat(fd, &info) == 0 && len == info.st_size);
    if (len == 0)
        dice = 9;
    switch (dice % 10) {
    case 0:
    case 1:
        bytes[at] ^= (uint8_t)(1u << (dice >> 60) % 8);
        assert_int_equal(pwrite(fd, bytes + at, 1, at), 1);
        break;
    case 2:
        assert_true(pwrite(fd, zeros, sizeof(zeros), at) > 0);
        assert_int_equal(ftruncate(fd, len), 0);
        break;
    case 3:
        assert_int_equal(ftruncate(fd, at), 0);
        break;
    case 4:
        assert_int_equal(unlink(path), 0);
        break;
    case 5:
        assert_int_equal(ftruncate(fd, 0), 0);
        assert_int_equal(pwrite(fd, other->data, other->len, 0), other->len);
        break;
    default:
        break;
    }
    close(fd);
    idem_buf_reset(other);
    assert_true(idem_buf_add(other, bytes, (size_t)len));
}

static void
spoil(struct world *world)
{
    DIR *folder = opendir(world->dir);
    struct dirent *file;
    struct idem_buf other;

    idem_buf_init(&other, 65536);
    while ((file = readdir(folder))) {
        struct test_path path = test_path(world->dir, file->d_name);

        if (strstr(file->d_name, ".idx"))
            spoil_file(path.text, test_random(&world->seed), &other);
    }
    closedir(folder);
    idem_buf_clear(&other);
}

/* Every entry can be read, and the records that count are the right ones. */
static void
check_entries(struct world *world)
{
    struct journal_report report;
    struct idem_error err;
    size_t count = 0;

    for (uint64_t id = 0; id < IDS; id++)
        count += world->revs[id] != 0;
    if (idem__journal_check(world->dir, NULL, NULL, NULL, NULL, &report,
                            &err) != IDEM_OK)
        fail_msg("check: %s", err.text);
    assert_int_equal(report.damaged, 0);
    assert_int_equal(report.live, count);
}

static void
run(struct world *world, size_t rounds)
{
    for (size_t round = 0; round < rounds; round++) {
        uint64_t dice = test_random(&world->seed);
        bool killed = dice % 2, lazy = (dice >> 1) % 4, hold = (dice >> 3) % 2;
        struct idem_store *store = open_at(world, world->dir, lazy, hold);
        struct journal *journal = (struct journal *)store;
        size_t turns = (dice >> 8) % 200;

        for (size_t i = 0; i < turns; i++) {
            switch (test_random(&world->seed) % 8) {
            case 0:
                check_some(world, store, 5);
                break;
            case 1:
                refuse(world, store);
                break;
            case 2:
                test_tend(store); /* cleans when everything is loaded */
                break;
            case 3:
                if (i % 50 == 0)
                    check_scan(world, store);
                break;
            case 4:
                if (i % 40 == 0)
                    journal->tuning.hold = !journal->tuning.hold;
                break;
            default:
                change(world, store);
                break;
            }
        }
        if (killed)
            test_folder_copy(world->dir, world->copy);
        if ((dice >> 20) % 3 == 0)
            check_all(world, store);
        test_close(store);
        if (killed) {
            char *dir = world->dir;

            world->dir = world->copy;
            world->copy = dir;
        }
        check_entries(world);
        if (world->spoiling)
            spoil(world);
        if (round % 10 == 9)
            check_live(world);
    }
}

/* Keys that are only in segments that are not loaded, that were replaced or
 * deleted later, moved by the cleaner, or share their tags. The process is
 * often killed, also while it loads. */
static void
answers_while_loading_are_right(void **state)
{
    static const uint64_t masks[] = {0, UINT64_C(255) << 56,
                                     UINT64_C(1) << 63 | UINT64_C(7) << 40, 1};
    struct world *world = *state;

    for (size_t i = 0; i < 4; i++) {
        test_folder_empty(world->dir);
        memset(world->revs, 0, sizeof(world->revs));
        memset(world->executing, 0, sizeof(world->executing));
        world->tuning.tag_mask = masks[i];
        world->tuning.first_base = i == 1 ? INDEX_AT_END - 5000 : 0;
        run(world, i == 3 ? test_size(10, 40, 200) : test_size(30, 150, 3000));
    }
}

/* ---- the same files, with something wrong ---- */

static void
no_answer_depends_on_what_saved_indexes_say(void **state)
{
    struct world *world = *state;

    world->spoiling = true;
    run(world, test_size(30, 150, 3000));
    assert_true(world->log.count[IDEM_LOG_WARNING] > 0);
    world->tuning.tag_mask = UINT64_C(255) << 56;
    test_folder_empty(world->dir);
    memset(world->revs, 0, sizeof(world->revs));
    memset(world->executing, 0, sizeof(world->executing));
    run(world, test_size(20, 50, 1000));
}

/* Fill a journal so that its oldest segment has few live records. */
static void
fill(struct world *world, size_t changes)
{
    struct idem_store *store = open_at(world, world->dir, false, false);

    for (size_t i = 0; i < changes; i++)
        change(world, store);
    test_close(store);
}

static void
no_segment_is_removed_before_everything_is_loaded(void **state)
{
    struct world *world = *state;
    struct idem_store *store;
    struct journal *journal;
    size_t before;

    fill(world, 2000);
    store = open_at(world, world->dir, true, true);
    journal = (struct journal *)store;
    before = journal->segment_count;
    assert_true(before > 4);
    for (size_t i = 0; i < 2000; i++) { /* the same keys again and again */
        world->seed = i % 20;
        change(world, store);
        test_tend(store);
    }
    assert_non_null(journal->loader);
    assert_true(idem__load_left(journal) > 0);
    assert_true(journal->segment_count > before);
    before = journal->segment_count;
    check_all(world, store);
    assert_null(journal->loader);
    assert_true(idem__load_left(journal) == 0);
    for (size_t i = 0; i < 50; i++)
        test_tend(store);
    assert_true(journal->segment_count < before);
    check_all(world, store);
    test_close(store);
}

/* The number of a segment that is neither the oldest nor the newest. */
static uint64_t
middle_segment(struct world *world)
{
    struct idem_store *store = open_at(world, world->dir, false, false);
    struct journal *journal = (struct journal *)store;
    uint64_t id = journal->segments[journal->segment_count / 2].head.id;

    assert_true(journal->segment_count > 3);
    test_close(store);
    return id;
}

/* Flip a byte in every part of a saved index in turn. */
static void
a_damaged_slice_is_made_again_from_the_segment(void **state)
{
    struct world *world = *state;
    size_t made = 0, step = test_size(371, 53, 7);
    struct stat info;
    struct test_path path;

    fill(world, 900);
    path = test_segment_path(world->copy, middle_segment(world), "idx");
    test_folder_copy(world->dir, world->copy);
    assert_int_equal(stat(path.text, &info), 0);
    for (off_t at = 0; at < info.st_size; at += (off_t)step) {
        struct idem_store *store;
        uint8_t byte;
        int fd;

        test_folder_copy(world->dir, world->copy);
        fd = open(path.text, O_RDWR);
        assert_int_equal(pread(fd, &byte, 1, at), 1);
        byte ^= 0x10;
        assert_int_equal(pwrite(fd, &byte, 1, at), 1);
        close(fd);
        world->log.count[IDEM_LOG_WARNING] = 0;
        store = open_at(world, world->copy, true, true);
        check_all(world, store);
        made += (size_t)world->log.count[IDEM_LOG_WARNING];
        test_close(store);
        store = open_at(world, world->copy, true, true);
        world->log.count[IDEM_LOG_WARNING] = 0;
        check_all(world, store); /* the file was written again */
        assert_int_equal(world->log.count[IDEM_LOG_WARNING], 0);
        test_close(store);
    }
    assert_true(made > 0);
}

/* The last segment before the new one is read again before anything was written
 * to the new one. The numbers of its batches must still fit its head. */
static void
a_new_segment_is_valid_after_its_predecessor_was_read_again(void **state)
{
    struct world *world = *state;
    struct idem_store *store;
    struct journal *journal;
    struct test_path path;
    struct stat info;
    uint64_t id;
    uint8_t byte;
    int fd;

    fill(world, 900);
    store = open_at(world, world->dir, false, false);
    change(world, store);
    journal = (struct journal *)store;
    id = journal->segments[journal->segment_count - 1].head.id;
    test_close(store);
    path = test_segment_path(world->dir, id, "idx");
    fd = open(path.text, O_RDWR);
    assert_int_equal(fstat(fd, &info), 0);
    assert_int_equal(pread(fd, &byte, 1, info.st_size - 1), 1);
    byte ^= 0x10;
    assert_int_equal(pwrite(fd, &byte, 1, info.st_size - 1), 1);
    close(fd);
    world->log.count[IDEM_LOG_WARNING] = 0;
    store = open_at(world, world->dir, true, true);
    check_all(world, store); /* loads every slice */
    assert_int_equal(world->log.count[IDEM_LOG_WARNING], 1);
    change(world, store);
    test_folder_copy(world->dir, world->copy);
    test_close(store);
    store = open_at(world, world->copy, false, false);
    check_all(world, store);
    test_close(store);
}

/* If the segment is damaged too, no answer is guessed. */
static void
without_rows_and_entries_nobody_is_told_that_a_key_is_absent(void **state)
{
    struct world *world = *state;
    struct idem_arena arena = {NULL, 0};
    struct idem_store *store;
    struct test_path path;
    size_t refused = 0;
    uint8_t bytes[64];
    uint64_t id;
    int fd;

    fill(world, 900);
    id = middle_segment(world);
    for (int i = 0; i < 2; i++) { /* in the middle of both files */
        struct stat info;

        path = test_segment_path(world->dir, id, i ? "idx" : "seg");
        fd = open(path.text, O_RDWR);
        assert_int_equal(fstat(fd, &info), 0);
        assert_int_equal(pread(fd, bytes, sizeof(bytes), info.st_size / 2),
                         sizeof(bytes));
        for (size_t b = 0; b < sizeof(bytes); b++)
            bytes[b] ^= 0xFF;
        assert_int_equal(pwrite(fd, bytes, sizeof(bytes), info.st_size / 2),
                         sizeof(bytes));
        close(fd);
    }
    store = open_at(world, world->dir, true, true);
    for (id = 0; id < IDS; id++) {
        struct idem_load load = {.with_result = true};
        struct test_record t;
        struct idem_error err;

        test_make(&t, id, IDEM_STATE_SUCCEEDED, 1, 0);
        memcpy(load.key, t.key, IDEM_KEY_LEN);
        if (store->type->load(store, &load, 1, &arena, &err) != IDEM_OK) {
            assert_int_equal(err.status, IDEM_ERR_CORRUPT);
            assert_int_equal(test_swap(store, &t, 0, false),
                             IDEM_SWAP_NOT_STORED);
            refused++;
            continue;
        }
        assert_int_equal(
            load.record.state == IDEM_STATE_ABSENT ? 0 : load.record.rev,
            world->revs[id]);
    }
    assert_true(refused > 0);
    ((struct journal *)store)->tuning.hold = false;
    for (size_t i = 0; i < 2000; i++)
        test_tend(store);
    assert_non_null(((struct journal *)store)->loader);
    assert_true(world->log.count[IDEM_LOG_ALARM] > 0);
    idem_arena_clear(&arena);
    test_close(store);
}

/* Each read of loading fails once: an error, or the right answer. */
static void
a_read_that_fails_gives_no_wrong_answer(void **state)
{
    struct world *world = *state;
    size_t failed = 0;

    fill(world, 400);
    world->io.pread = failing_read;
    world->io.arg = world;
    for (size_t n = 1; n < test_size(150, 400, 3000); n++) {
        struct idem_arena arena = {NULL, 0};
        struct idem_store *store;

        test_folder_copy(world->dir, world->copy);
        store = open_at(world, world->copy, true, true);
        world->reads_until_failure = n;
        for (uint64_t i = 0; i < 40; i++) {
            uint64_t id = (n * 40 + i) % IDS;
            struct idem_load load = {.with_result = true};
            struct test_record t;

            test_make(&t, id, IDEM_STATE_SUCCEEDED, 1, 0);
            memcpy(load.key, t.key, IDEM_KEY_LEN);
            if (store->type->load(store, &load, 1, &arena, NULL) != IDEM_OK)
                failed++;
            else
                assert_int_equal(load.record.state == IDEM_STATE_ABSENT
                                     ? 0
                                     : load.record.rev,
                                 world->revs[id]);
        }
        world->reads_until_failure = 0;
        check_all(world, store);
        idem_arena_clear(&arena);
        test_close(store);
    }
    assert_true(failed > 0);
}

/* Saved indexes of earlier versions are not used. */
static void
saved_indexes_of_another_version_are_made_again(void **state)
{
    struct world *world = *state;
    struct test_path path;
    struct idem_store *store;
    uint8_t bytes[4];
    int fd;

    fill(world, 900);
    path = test_segment_path(world->dir, middle_segment(world), "idx");
    fd = open(path.text, O_RDWR);
    assert_int_equal(pwrite(fd, "\2\0\0\0", 4, 8), 4);
    close(fd);
    store = open_at(world, world->dir, true, true);
    check_all(world, store);
    test_close(store);
    fd = open(path.text, O_RDONLY);
    assert_int_equal(pread(fd, bytes, 4, 8), 4);
    close(fd);
    assert_int_equal(idem__get32(bytes), SAVED_VERSION);
}

/* ---- how it is loaded ---- */

/* Rows of all saved indexes of a journal that was closed. */
static uint64_t
rows_of(struct world *world)
{
    uint64_t rows = 0;

    for (uint64_t id = 1; id < 1000; id++) {
        int fd = open(test_segment_path(world->dir, id, "idx").text, O_RDONLY);
        uint8_t bytes[SAVED_HEAD_LEN];

        if (fd < 0)
            continue;
        assert_int_equal(pread(fd, bytes, sizeof(bytes), 0), sizeof(bytes));
        rows += idem__get64(bytes + 56);
        close(fd);
    }
    return rows;
}

/* The index is loaded by slices of four rows on average (in tests), one with
 * each call, and the log says when that began and when it was complete. */
static void
each_call_loads_a_slice(void **state)
{
    struct world *world = *state;
    struct idem_store *store;
    struct journal *journal;
    uint64_t rows, slices = 1;
    char text[100];

    fill(world, 900);
    rows = rows_of(world);
    while (rows / slices > 4)
        slices *= 2;
    assert_true(slices > 64);
    memset(&world->log, 0, sizeof(world->log));
    store = open_at(world, world->dir, true, false);
    journal = (struct journal *)store;
    assert_int_equal(idem__load_left(journal), slices);
    snprintf(text, sizeof(text), "the index of about %llu records is loaded",
             (unsigned long long)rows);
    assert_non_null(strstr(world->log.last, text));
    assert_int_equal(world->log.count[IDEM_LOG_INFO], 1);
    world->model.now_ms += 1234;
    for (uint64_t left = slices; left > 0; left--) {
        assert_int_equal(idem__load_left(journal), left);
        if (left % 3 == 0)
            test_tend(store);
        else
            idem__load_some(journal, 100);
    }
    assert_null(journal->loader);
    assert_non_null(
        strstr(world->log.last, "the index is complete after 1234 ms"));
    assert_int_equal(world->log.count[IDEM_LOG_INFO], 2);
    idem__load_some(journal, 100); /* nothing is left */
    check_all(world, store);
    test_close(store);

    /* With few rows all of it is loaded before the journal serves. */
    memset(&world->log, 0, sizeof(world->log));
    store = open_at(world, world->dir, false, false);
    assert_null(((struct journal *)store)->loader);
    assert_int_equal(idem__load_left((struct journal *)store), 0);
    assert_int_equal(world->log.count[IDEM_LOG_INFO], 0);
    test_close(store);
}

/* Outside of tests, a call loads about as many rows as it is told. */
static void
a_call_loads_about_so_many_rows(void **state)
{
    struct world *world = *state;
    struct idem_store *store;
    struct journal *journal;
    uint64_t before;

    fill(world, 900);
    store = open_at(world, world->dir, true, false);
    journal = (struct journal *)store;
    journal->tuning.lazy = false;
    before = idem__load_left(journal);
    idem__load_some(journal, 1);
    assert_int_equal(idem__load_left(journal), before - 1);
    /* A slice here is a part of a slice of each saved index, of up to 16 rows
     * or more, and all of these are looked at. */
    idem__load_some(journal, 1000);
    assert_in_range(before - 1 - idem__load_left(journal), 3, 12);
    idem__load_some(journal, 1000000);
    assert_null(journal->loader);
    check_all(world, store);
    test_close(store);
}

/* A slice that a request has loaded is not loaded again. */
static void
a_slice_is_loaded_once(void **state)
{
    struct world *world = *state;
    struct idem_store *store;
    struct journal *journal;
    uint64_t left;

    fill(world, 900);
    world->io.pread = failing_read;
    world->io.arg = world;
    store = open_at(world, world->dir, true, true);
    journal = (struct journal *)store;
    left = idem__load_left(journal);
    assert_int_equal(test_rev(store, 5), world->revs[5]);
    assert_int_equal(idem__load_left(journal), left - 1);
    world->reads_until_failure = 1000; /* counts down */
    assert_int_equal(idem__load_tag(journal, 0, NULL), IDEM_OK);
    assert_int_equal(idem__load_left(journal), left - 2);
    assert_true(world->reads_until_failure < 1000);
    world->reads_until_failure = 1000;
    assert_int_equal(idem__load_tag(journal, 0, NULL), IDEM_OK);
    assert_int_equal(idem__load_left(journal), left - 2);
    assert_int_equal(world->reads_until_failure, 1000);
    /* A shard has the slices of its tags: here it is a part of one. */
    assert_int_equal(idem__load_shard(journal, 0, NULL), IDEM_OK);
    assert_int_equal(idem__load_left(journal), left - 2);
    assert_int_equal(idem__load_shard(journal, INDEX_SHARDS - 1, NULL),
                     IDEM_OK);
    assert_int_equal(idem__load_left(journal), left - 3);
    assert_int_equal(idem__load_tag(journal, UINT64_MAX, NULL), IDEM_OK);
    assert_int_equal(idem__load_left(journal), left - 3);
    world->reads_until_failure = 0;
    journal->tuning.hold = false;
    idem__load_some(journal, 1); /* the first one, which is loaded */
    assert_int_equal(idem__load_left(journal), left - 3);
    journal->tuning.hold = true;
    /* When requests have loaded all of them, nothing is left to do. */
    for (uint64_t n = 0; n < left; n++)
        assert_int_equal(
            idem__load_tag(journal, n * (UINT64_MAX / left + 1), NULL),
            IDEM_OK);
    assert_null(journal->loader);
    check_all(world, store);
    test_close(store);
}

/* After an error it is tried again, but not all the time. */
static void
after_an_error_loading_rests_ten_seconds(void **state)
{
    struct world *world = *state;
    struct idem_store *store;
    struct journal *journal;
    uint64_t left;

    fill(world, 900);
    store = open_at(world, world->dir, true, false);
    journal = (struct journal *)store;
    idem__load_some(journal, 1);
    left = idem__load_left(journal);
    /* Neither the saved indexes nor the segments can be read. */
    world->io.pread = failing_read;
    world->io.arg = world;
    world->failing = true;
    memset(&world->log, 0, sizeof(world->log));
    idem__load_some(journal, 1);
    assert_int_equal(world->log.count[IDEM_LOG_ALARM], 1);
    assert_non_null(strstr(world->log.last, "trying again: journal: "));
    assert_int_equal(idem__load_left(journal), left);
    world->failing = false;
    world->model.now_ms += 9999;
    idem__load_some(journal, 1);
    assert_int_equal(idem__load_left(journal), left);
    world->model.now_ms += 1;
    idem__load_some(journal, 1);
    assert_int_equal(idem__load_left(journal), left - 1);
    assert_int_equal(world->log.count[IDEM_LOG_ALARM], 1);
    check_all(world, store);
    test_close(store);
}

/* Put `few` records into the first shards and `many` into any. Returns the id
 * to go on with. */
static uint64_t
put_into(struct idem_store *store, uint64_t id, size_t few, size_t many,
         size_t rows[FIRST_SHARDS])
{
    while (few + many > 0) {
        struct test_record t;
        uint64_t shard;

        id++;
        test_make(&t, id, IDEM_STATE_EXECUTING, id, 0);
        shard = idem__index_full_tag(t.key) >> (64 - INDEX_SHARD_BITS);
        if (shard < FIRST_SHARDS ? few == 0 : many == 0)
            continue;
        assert_int_equal(test_swap(store, &t, 0, false), IDEM_SWAP_STORED);
        if (shard >= FIRST_SHARDS) {
            many--;
            continue;
        }
        rows[shard]++;
        few--;
    }
    return id;
}

/* A shard gets room for three quarters of its rows when the first of them are
 * loaded, and in the end it is no larger than one that has grown. */
static void
a_shard_gets_its_room_at_once(void **state)
{
    enum { USUAL = 51 /* of index.c */ };
    struct world *world = *state;
    struct idem_store *store;
    struct journal *journal;
    size_t grown, rows[FIRST_SHARDS] = {0}, others[FIRST_SHARDS] = {0};
    uint64_t id;

    world->tuning.segment_len = UINT64_C(32) << 20;
    store = open_at(world, world->dir, false, false);
    id = put_into(store, 0, 300 * FIRST_SHARDS, 41000, rows);
    test_close(store);
    store = open_at(world, world->dir, false, false);
    put_into(store, id, 2000, 0, others);
    grown = ((struct journal *)store)->index.bytes;
    test_close(store);

    store = open_at(world, world->dir, true, true);
    journal = (struct journal *)store;
    for (uint32_t shard = 0; shard < FIRST_SHARDS; shard++) {
        /* The first saved index knows the rows of each shard. The second has a
         * slice for 16 shards. */
        uint64_t about = rows[shard] + 2000 / 16;

        assert_int_equal(idem__index_room(&journal->index, shard), 0);
        assert_int_equal(
            idem__load_tag(journal, (uint64_t)shard << (64 - INDEX_SHARD_BITS),
                           NULL),
            IDEM_OK);
        assert_in_range(journal->index.shards[shard].used, 1, about / 3);
        assert_int_equal(idem__index_room(&journal->index, shard),
                         about / 4 * 3 / USUAL * INDEX_BLOCK);
    }
    journal->tuning.hold = journal->tuning.lazy = false;
    idem__load_some(journal, UINT64_MAX);
    assert_int_equal(journal->index.count, 300 * FIRST_SHARDS + 43000);
    assert_in_range(journal->index.bytes, grown / 10 * 9, grown / 10 * 11);
    test_close(store);
}

/* Rows that the kernel was asked to read ahead, by file. */
struct ahead {
    struct world *world;
    uint64_t from[1024], to[1024]; /* by fd */
    uint64_t asked, calls;
    size_t reads;
    bool watching;
};

static void
see_advice(void *arg, int fd, uint64_t at, uint64_t len, int advice)
{
    struct ahead *ahead = arg;

    if (advice != POSIX_FADV_WILLNEED)
        return;
    assert_true(fd >= 0 && fd < 1024);
    if (ahead->to[fd] < at) /* nothing is left out between two calls */
        assert_int_equal(ahead->to[fd], 0);
    if (ahead->to[fd] == 0)
        ahead->from[fd] = at;
    if (ahead->to[fd] < at + len)
        ahead->to[fd] = at + len;
    ahead->asked += len;
    ahead->calls++;
}

static ssize_t
watched_read(void *arg, int fd, void *data, size_t len, off_t at)
{
    struct ahead *ahead = ((struct world *)arg)->ahead;

    if (ahead && ahead->watching) {
        ahead->reads++;
        assert_true((uint64_t)at >= ahead->from[fd]);
        assert_true((uint64_t)at + len <= ahead->to[fd]);
    }
    return pread(fd, data, len, at);
}

/* Every row is asked for before it is read, twice at most, and not all of them
 * at the start. */
static void
rows_are_asked_for_before_they_are_read(void **state)
{
    enum { MANY = 6000 };
    struct world *world = *state;
    struct ahead ahead = {.world = world};
    struct idem_store *store;
    struct journal *journal;
    uint64_t bytes = 0, slices;

    world->tuning.segment_len = UINT64_C(512) << 10;
    store = open_at(world, world->dir, false, false);
    for (uint64_t id = 0; id < MANY; id++) {
        struct test_record t;

        test_make(&t, id, IDEM_STATE_EXECUTING, id + 1, 0);
        assert_int_equal(test_swap(store, &t, 0, false), IDEM_SWAP_STORED);
    }
    test_close(store);
    bytes = rows_of(world) * SAVED_ROW_LEN;
    world->io.pread = watched_read;
    world->io.arg = world;
    store = open_at(world, world->dir, true, false);
    journal = (struct journal *)store;
    assert_true(journal->segment_count > 3);
    slices = idem__load_left(journal);
    assert_true(slices >= 2048);
    test_advice = (struct test_advice){see_advice, &ahead};
    world->ahead = &ahead;
    ahead.watching = true;
    idem__load_some(journal, 1);
    assert_int_equal(ahead.calls, journal->segment_count - 1);
    /* 512 of the slices; a saved index may have larger ones. */
    assert_in_range(ahead.asked, bytes * 512 / slices * 8 / 10,
                    bytes * 512 / slices * 13 / 10);
    while (journal->loader)
        idem__load_some(journal, 1);
    ahead.watching = false;
    test_advice.seen = NULL;
    world->ahead = NULL;
    assert_true(ahead.reads > slices / 2);
    assert_int_equal(ahead.calls,
                     (journal->segment_count - 1) * (slices / 256));
    assert_in_range(ahead.asked, bytes, bytes * 22 / 10);
    test_close(store);
}

/* Also if it is closed before everything is loaded. */
static void
opening_again_and_again_needs_no_more_memory(void **state)
{
    struct world *world = *state;
    size_t before = 0;

    fill(world, 900);
    for (int i = 0; i < 36; i++) {
        struct idem_store *store;

        if (i == 6)
            before = test_allocated();
        store = open_at(world, world->dir, i % 3 != 0, i % 3 == 1);
        for (uint64_t id = 0; id < 20; id++)
            assert_int_equal(test_rev(store, id), world->revs[id]);
        test_close(store);
    }
    assert_in_range(test_allocated(), 0, before + 3000);
}

/* With damage accepted, an entry whose key cannot be read is lost, and no other
 * record. All tags are the same, so keys are compared. */
static void
an_entry_without_a_key_is_lost_if_damage_is_accepted(void **state)
{
    struct world *world = *state;
    struct idem_store *store;
    struct idem_error err;
    struct test_record t;
    char where[300];
    uint64_t at = 0;
    int fd;

    world->tuning.tag_mask = 1;
    for (uint64_t i = 0; i < 2; i++) {
        store = open_at(world, world->dir, false, false);
        for (uint64_t id = 0; id < 4; id++) {
            if (i == 1 && id == 2)
                at = ((struct journal *)store)->segments[1].end;
            test_make(&t, i * 4 + id, IDEM_STATE_SUCCEEDED, i * 4 + id + 1, 50);
            assert_int_equal(test_swap(store, &t, 0, false), IDEM_SWAP_STORED);
        }
        test_close(store);
    }
    fd = open(test_segment_path(world->dir, 2, "seg").text, O_RDWR);
    assert_int_equal(pwrite(fd, "damage", 6, (off_t)at + ENTRY_KEY_AT), 6);
    close(fd);
    for (int lazy = 0; lazy < 2; lazy++) {
        enum idem_status status;

        world->tuning.lazy = world->tuning.hold = lazy;
        status = test_try_open(world->dir, &world->tuning, &world->clocks,
                               &world->log, &store, &err);
        if (lazy) { /* then it is found when a key of the slice is asked for */
            struct idem_load load = {0};
            struct idem_arena arena = {NULL, 0};

            assert_int_equal(status, IDEM_OK);
            memcpy(load.key, t.key, IDEM_KEY_LEN);
            status = store->type->load(store, &load, 1, &arena, &err);
            idem_arena_clear(&arena);
            test_close(store);
        }
        assert_int_equal(status, IDEM_ERR_CORRUPT);
        assert_non_null(strstr(err.text, "is damaged"));
        snprintf(where, sizeof(where), "%s?damage=accept", world->dir);
        store = open_at(world, where, lazy, lazy);
        if (!lazy) /* it is not taken for the record of another key */
            assert_int_equal(((struct journal *)store)->index.count, 8);
        for (uint64_t id = 0; id < 8; id++) {
            struct idem_load load = {0};
            struct idem_arena arena = {NULL, 0};

            test_make(&t, id, IDEM_STATE_SUCCEEDED, 1, 0);
            memcpy(load.key, t.key, IDEM_KEY_LEN);
            status = store->type->load(store, &load, 1, &arena, &err);
            /* Its place is read while others are looked up: no guess. */
            assert_int_equal(status == IDEM_OK ? load.record.rev : id + 1,
                             id + 1);
            assert_true(status == IDEM_OK || status == IDEM_ERR_CORRUPT);
            idem_arena_clear(&arena);
        }
        test_close(store);
    }
}

#define T(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int
main(void)
{
    const struct CMUnitTest tests[] = {
        T(answers_while_loading_are_right),
        T(no_answer_depends_on_what_saved_indexes_say),
        T(no_segment_is_removed_before_everything_is_loaded),
        T(a_damaged_slice_is_made_again_from_the_segment),
        T(a_new_segment_is_valid_after_its_predecessor_was_read_again),
        T(without_rows_and_entries_nobody_is_told_that_a_key_is_absent),
        T(a_read_that_fails_gives_no_wrong_answer),
        T(saved_indexes_of_another_version_are_made_again),
        T(each_call_loads_a_slice),
        T(a_call_loads_about_so_many_rows),
        T(a_slice_is_loaded_once),
        T(after_an_error_loading_rests_ten_seconds),
        T(a_shard_gets_its_room_at_once),
        T(rows_are_asked_for_before_they_are_read),
        T(opening_again_and_again_needs_no_more_memory),
        T(an_entry_without_a_key_is_lost_if_damage_is_accepted),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
