/*
 * recover_test.c - tests what is found in the files of a journal when it is
 * opened: torn batches, damage and where it is reported, segments that are too
 * short or missing, the indexes that are made again, and reads and syncs that
 * fail.
 *
 * "Killed" means that the files are copied while the journal is open, so the
 * newest segment has no saved index and room behind its end.
 */
#define TEST_ADVICE
#include "model.h"

#include "journal_check.h"

#include <errno.h>
#include <sys/stat.h>

#define DAY_MS (INT64_C(24) * 3600 * 1000)
#define RESULT_LEN 200

struct world {
    char *dir, *copy;
    size_t files;       /* that are open in this process */
    struct model clock; /* only its time is used */
    struct idem_clocks clocks;
    struct test_log log;
    struct idem_io io;
    struct journal_tuning tuning;
    struct idem_store *store;
    size_t reads, fail_read; /* this read fails; 0: none */
    size_t syncs, fail_sync;
    ino_t synced; /* the last file or folder that was synced */
    ino_t synced_file;
    size_t dropped; /* files that the page cache was to drop */
    bool full;      /* the disk has no room for more */
    uint64_t cut;   /* the length of segment 1 when the next one is made */
};

static ssize_t
w_pread(void *arg, int fd, void *data, size_t len, off_t at)
{
    struct world *world = arg;

    if (++world->reads == world->fail_read) {
        errno = EIO;
        return -1;
    }
    return pread(fd, data, len, at);
}

static int
w_fsync(void *arg, int fd)
{
    struct world *world = arg;
    struct stat info;

    if (fstat(fd, &info) == 0)
        world->synced = info.st_ino;
    if (fstat(fd, &info) == 0 && S_ISREG(info.st_mode))
        world->synced_file = info.st_ino;
    if (++world->syncs == world->fail_sync) {
        errno = EIO;
        return -1;
    }
    return 0;
}

static int
w_fdatasync(void *arg, int fd)
{
    (void)arg;
    (void)fd;
    return 0;
}

static uint64_t file_len(const char *dir, uint64_t id, const char *ending);

static int
w_fallocate(void *arg, int fd, off_t len)
{
    struct world *world = arg;

    world->cut = file_len(world->copy, 1, "seg");
    if (world->full) {
        errno = ENOSPC;
        return -1;
    }
    return ftruncate(fd, len);
}

static int
setup(void **state)
{
    struct world *world = calloc(1, sizeof(*world));

    world->files = test_open_files();
    world->dir = test_fast_folder();
    world->copy = test_fast_folder();
    model_init(&world->clock, 1);
    world->clocks = model_clocks(&world->clock);
    world->io = idem__system_io;
    world->io.pread = w_pread;
    world->io.fsync = w_fsync;
    world->io.fdatasync = w_fdatasync;
    world->io.fallocate = w_fallocate;
    world->io.arg = world;
    world->tuning = (struct journal_tuning){.io = &world->io,
                                            .segment_len = 65536,
                                            .tail_len = 8192,
                                            .no_thread = true};
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

/* ---- helpers ---- */

static enum idem_status
try_open(struct world *world, const char *dir, const char *options,
         struct idem_error *err)
{
    char url[600];

    snprintf(url, sizeof(url), "%s%s", dir, options);
    return test_try_open(url, &world->tuning, &world->clocks, &world->log,
                         &world->store, err);
}

static struct journal *
open_dir(struct world *world, const char *dir, const char *options)
{
    struct idem_error err;

    if (try_open(world, dir, options, &err) != IDEM_OK)
        fail_msg("open: %s", err.text);
    return (struct journal *)world->store;
}

/* Opening fails, and the error says why. */
static void
assert_refused(struct world *world, enum idem_status wanted, const char *why)
{
    struct idem_error err = {IDEM_OK, ""};

    assert_int_equal(try_open(world, world->copy, "", &err), wanted);
    if (!strstr(err.text, why))
        fail_msg("it says: %s", err.text);
}

static void
shut(struct world *world)
{
    test_close(world->store);
    world->store = NULL;
}

static struct segment *
newest(struct world *world)
{
    struct journal *journal = (struct journal *)world->store;

    return &journal->segments[journal->segment_count - 1];
}

/* Put `count` records into one batch; the rev of id n is n + 1. */
static void
put(struct world *world, uint64_t first, size_t count)
{
    struct idem_arena arena = {NULL, 0};
    struct test_record *records = calloc(count, sizeof(*records));
    struct idem_swap *swaps = calloc(count, sizeof(*swaps));

    for (size_t i = 0; i < count; i++) {
        test_make(&records[i], first + i, IDEM_STATE_SUCCEEDED, first + i + 1,
                  RESULT_LEN);
        swaps[i].record = &records[i].record;
        memcpy(swaps[i].key, records[i].key, IDEM_KEY_LEN);
    }
    assert_int_equal(
        world->store->type->swap(world->store, swaps, count, &arena, NULL),
        IDEM_OK);
    for (size_t i = 0; i < count; i++)
        assert_int_equal(swaps[i].outcome, IDEM_SWAP_STORED);
    idem_arena_clear(&arena);
    free(records);
    free(swaps);
}

static void
swap(struct world *world, uint64_t id, uint64_t rev, uint64_t expected,
     bool delete)
{
    struct test_record t;

    test_make(&t, id, IDEM_STATE_SUCCEEDED, rev, RESULT_LEN);
    assert_int_equal(test_swap(world->store, &t, expected, delete),
                     IDEM_SWAP_STORED);
}

/* The length of the entry of such a record. */
static uint64_t
len_of(uint64_t id)
{
    struct test_record t;

    test_make(&t, id, IDEM_STATE_SUCCEEDED, id + 1, RESULT_LEN);
    return entry_len((uint32_t)idem__encoded_len(&t.record));
}

static void
flip(const char *dir, uint64_t id, uint64_t at, size_t len)
{
    int fd = open(test_segment_path(dir, id, "seg").text, O_RDWR);
    uint8_t *bytes = malloc(len);

    assert_int_equal(pread(fd, bytes, len, (off_t)at), len);
    for (size_t i = 0; i < len; i++)
        bytes[i] ^= 0xA5;
    assert_int_equal(pwrite(fd, bytes, len, (off_t)at), len);
    free(bytes);
    close(fd);
}

static void
drop_indexes(const char *dir)
{
    for (uint64_t id = 1; id < 20; id++)
        (void)unlink(test_segment_path(dir, id, "idx").text);
}

static uint64_t
file_len(const char *dir, uint64_t id, const char *ending)
{
    struct stat info;

    return stat(test_segment_path(dir, id, ending).text, &info) == 0
               ? (uint64_t)info.st_size
               : 0;
}

/* Ids from `first` on are there, or absent. */
static void
assert_there(struct world *world, uint64_t first, uint64_t count, bool there)
{
    for (uint64_t id = first; id < first + count; id++)
        assert_int_equal(test_rev(world->store, id), there ? id + 1 : 0);
}

/* The head of a segment's saved index, which must be valid and have this
 * end. */
static struct saved_head
saved_head(struct world *world, const char *dir, uint64_t id, uint64_t end)
{
    struct segment segment = {.head = {.id = id}};
    struct saved_head head;
    uint8_t bytes[65536];
    int fd = open(test_segment_path(dir, id, "seg").text, O_RDONLY);
    ssize_t len;

    (void)world;
    assert_int_equal(pread(fd, bytes, SEGMENT_HEAD_LEN, 0), SEGMENT_HEAD_LEN);
    close(fd);
    assert_int_equal(idem__segment_head_get(bytes, &segment.head, NULL),
                     IDEM_OK);
    segment.file_len = end;
    fd = open(test_segment_path(dir, id, "idx").text, O_RDONLY);
    assert_true(fd >= 0);
    len = read(fd, bytes, sizeof(bytes));
    close(fd);
    assert_true(len > 0 && len < (ssize_t)sizeof(bytes));
    assert_true(idem__saved_check(bytes, (size_t)len, &segment, &head));
    assert_int_equal(head.end, end);
    return head;
}

/* Open a killed copy of what is in world->store; that is closed. */
static void
kill_world(struct world *world)
{
    test_folder_copy(world->dir, world->copy);
    shut(world);
}

/* ---- the newest segment ---- */

static void
the_room_behind_the_end_is_cut_off(void **state)
{
    struct world *world = *state;
    struct journal *journal;
    uint64_t end;

    open_dir(world, world->dir, "");
    put(world, 0, 3);
    end = newest(world)->end;
    kill_world(world);
    assert_true(file_len(world->copy, 1, "seg") > end);
    journal = open_dir(world, world->copy, "");
    assert_int_equal(journal->segments[0].end, end);
    assert_int_equal(journal->segments[0].file_len, end);
    assert_int_equal(file_len(world->copy, 1, "seg"), end);
    assert_int_equal(journal->segments[1].head.prev_end, end);
    assert_int_equal(world->cut, end); /* before the disk has to give more */
    assert_there(world, 0, 3, true);
    assert_int_equal(world->log.count[IDEM_LOG_ALARM], 0);
    shut(world);
}

/* The entries of a torn batch before the tear stay, those behind it do not.
 * Nobody got an answer about any of them. The next batch has a number of its
 * own. */
static void
a_torn_batch_is_no_damage(void **state)
{
    struct world *world = *state;

    for (uint64_t id = 1; id <= 2; id++) { /* the torn batch is in segment id */
        struct journal *journal;
        uint64_t end, batch;

        test_folder_empty(world->dir);
        open_dir(world, world->dir, "");
        put(world, 0, 1);
        if (id == 2) { /* it is the first one of that segment */
            shut(world);
            open_dir(world, world->dir, "");
        }
        end = newest(world)->end;
        batch = ((struct journal *)world->store)->next_batch;
        put(world, 1, 3);
        kill_world(world);
        flip(world->copy, id, end + len_of(1) + 40,
             4); /* the second of three */
        journal = open_dir(world, world->copy, "");
        assert_there(world, 0, 2, true);
        assert_there(world, 2, 2, false);
        assert_int_equal(journal->segments[id - 1].end, end + len_of(1));
        assert_int_equal(file_len(world->copy, id, "seg"), end + len_of(1));
        assert_true(journal->segments[id].head.first_batch > batch);
        assert_int_equal(world->log.count[IDEM_LOG_ALARM], 0);
        put(world, 2, 2);
        shut(world);
        drop_indexes(world->copy);
        open_dir(world, world->copy, "");
        assert_there(world, 0, 4, true);
        shut(world);
    }
}

/* A later batch proves that this one was acknowledged. */
static void
damage_before_a_later_batch_is_reported(void **state)
{
    struct world *world = *state;
    struct journal *journal;
    char place[64];
    uint64_t at, end;

    open_dir(world, world->dir, "");
    put(world, 0, 2);
    at = newest(world)->end + len_of(2);
    put(world, 2, 4);
    put(world, 6, 2);
    end = newest(world)->end;
    kill_world(world);
    flip(world->copy, 1, at + 100, 1);
    snprintf(place, sizeof(place),
             "segment 0000000000000001 is damaged at offset %llu",
             (unsigned long long)at);
    assert_refused(world, IDEM_ERR_CORRUPT, place);
    assert_int_equal(world->log.count[IDEM_LOG_ALARM], 0);

    /* Only the damaged entry is lost, also of its own batch. */
    journal = open_dir(world, world->copy, "?damage=accept");
    assert_int_equal(world->log.count[IDEM_LOG_ALARM], 1);
    assert_non_null(strstr(world->log.last, place));
    assert_there(world, 0, 3, true);
    assert_there(world, 3, 1, false);
    assert_there(world, 4, 4, true);
    assert_int_equal(journal->index.count, 7);
    assert_int_equal(journal->segments[0].end, end);
    shut(world);
    open_dir(world, world->copy, ""); /* the saved index has no such entry */
    assert_there(world, 4, 4, true);
    shut(world);
}

/* ---- segments that are complete ---- */

/* Three segments, each with two batches of three records; then the copy has no
 * saved indexes. Returns the place of the second batch of each. */
static void
make_segments(struct world *world, uint64_t second[3], uint64_t end[3])
{
    for (uint64_t i = 0; i < 3; i++) {
        struct journal *journal = open_dir(world, world->dir, "");

        put(world, i * 6, 3);
        second[i] = newest(world)->end;
        put(world, i * 6 + 3, 3);
        end[i] = newest(world)->end;
        assert_int_equal(journal->segment_count, i + 1);
        shut(world);
    }
    test_folder_copy(world->dir, world->copy);
    drop_indexes(world->copy);
}

static void
without_indexes_the_entries_are_read(void **state)
{
    struct world *world = *state;
    uint64_t second[3], end[3];
    struct journal *journal;

    make_segments(world, second, end);
    journal = open_dir(world, world->copy, "");
    assert_there(world, 0, 18, true);
    assert_int_equal(journal->index.count, 18);
    for (uint64_t i = 0; i < 3; i++) {
        uint64_t with_mark = end[i] + ENTRY_HEAD_LEN, live = 0;
        struct saved_head head =
            saved_head(world, world->copy, i + 1, with_mark);

        assert_int_equal(journal->segments[i].end, with_mark);
        for (uint64_t id = i * 6; id < i * 6 + 6; id++)
            live += len_of(id);
        assert_int_equal(journal->segments[i].live, live);
        assert_int_equal(head.rows, 6);
        assert_int_equal(head.salt, journal->segments[i].head.salt);
        assert_int_equal(journal->segments[i].saved_len,
                         file_len(world->copy, i + 1, "idx"));
    }
    assert_int_equal(world->log.count[IDEM_LOG_ALARM], 0);
    shut(world);
}

/* In the middle, at the start and at the end of a segment; the place is that of
 * the first damaged entry. */
static void
each_damaged_place_is_reported_and_skipped(void **state)
{
    struct world *world = *state;
    uint64_t second[3], end[3];

    make_segments(world, second, end);
    for (int where = 0; where < 4; where++) {
        uint64_t at[] = {SEGMENT_HEAD_LEN, SEGMENT_HEAD_LEN + len_of(6),
                         second[1], end[1]};
        struct journal *journal;
        char place[64];

        test_folder_copy(world->dir, world->copy);
        drop_indexes(world->copy);
        flip(world->copy, 2, at[where] + 24, 1);
        snprintf(place, sizeof(place),
                 "segment 0000000000000002 is damaged at offset %llu",
                 (unsigned long long)at[where]);
        assert_refused(world, IDEM_ERR_CORRUPT, place);
        memset(&world->log, 0, sizeof(world->log));
        journal = open_dir(world, world->copy, "?damage=accept");
        assert_int_equal(world->log.count[IDEM_LOG_ALARM], 1);
        assert_non_null(strstr(world->log.last, place));
        for (uint64_t id = 0; id < 18; id++)
            assert_there(world, id, 1,
                         id != (uint64_t)(where == 0   ? 6
                                          : where == 1 ? 7
                                          : where == 2 ? 9
                                                       : 100));
        assert_int_equal(journal->segments[1].end, end[1] + ENTRY_HEAD_LEN);
        assert_int_equal(journal->segment_count, 4);
        shut(world);
    }
}

static void
two_damaged_places_are_two_alarms(void **state)
{
    struct world *world = *state;
    uint64_t second[3], end[3];

    make_segments(world, second, end);
    flip(world->copy, 1, SEGMENT_HEAD_LEN + 30, 1);
    flip(world->copy, 1, second[0] + 30, 1);
    open_dir(world, world->copy, "?damage=accept");
    assert_int_equal(world->log.count[IDEM_LOG_ALARM], 2);
    assert_int_equal(((struct journal *)world->store)->index.count, 16);
    shut(world);
}

/* Nothing valid follows up to the end that the next segment names. */
static void
a_segment_may_be_damaged_up_to_its_end(void **state)
{
    struct world *world = *state;
    uint64_t second[3], end[3];
    struct journal *journal;
    char place[64];

    make_segments(world, second, end);
    flip(world->copy, 2, second[1],
         (size_t)(end[1] + ENTRY_HEAD_LEN - second[1]));
    snprintf(place, sizeof(place), "damaged at offset %llu",
             (unsigned long long)second[1]);
    assert_refused(world, IDEM_ERR_CORRUPT, place);
    journal = open_dir(world, world->copy, "?damage=accept");
    assert_int_equal(world->log.count[IDEM_LOG_ALARM], 1);
    assert_there(world, 0, 9, true);
    assert_there(world, 9, 3, false);
    assert_there(world, 12, 6, true);
    assert_int_equal(journal->segments[1].end, end[1] + ENTRY_HEAD_LEN);
    shut(world);
}

/* Entries behind the end that the next segment names were never acknowledged.
 */
static void
what_is_behind_the_named_end_is_not_read(void **state)
{
    struct world *world = *state;
    uint64_t second[3], end[3];
    struct segment_head head;
    uint8_t bytes[SEGMENT_HEAD_LEN];
    int fd;

    make_segments(world, second, end);
    fd = open(test_segment_path(world->copy, 2, "seg").text, O_RDWR);
    assert_int_equal(pread(fd, bytes, sizeof(bytes), 0), sizeof(bytes));
    assert_int_equal(idem__segment_head_get(bytes, &head, NULL), IDEM_OK);
    head.prev_end = second[0];
    idem__segment_head_put(&head, bytes);
    assert_int_equal(pwrite(fd, bytes, sizeof(bytes), 0), sizeof(bytes));
    close(fd);
    open_dir(world, world->copy, "");
    assert_there(world, 0, 3, true);
    assert_there(world, 3, 3, false);
    assert_there(world, 6, 12, true);
    shut(world);
}

/* An end before the first entry cannot be: the head of the next segment is
 * wrong, although its checksum is right. */
static void
an_impossible_end_is_damage(void **state)
{
    struct world *world = *state;
    uint64_t second[3], end[3];
    struct segment_head head;
    struct journal *journal;
    uint8_t bytes[SEGMENT_HEAD_LEN];
    int fd;

    make_segments(world, second, end);
    fd = open(test_segment_path(world->copy, 2, "seg").text, O_RDWR);
    assert_int_equal(pread(fd, bytes, sizeof(bytes), 0), sizeof(bytes));
    assert_int_equal(idem__segment_head_get(bytes, &head, NULL), IDEM_OK);
    head.prev_end = SEGMENT_HEAD_LEN - 8;
    idem__segment_head_put(&head, bytes);
    assert_int_equal(pwrite(fd, bytes, sizeof(bytes), 0), sizeof(bytes));
    assert_refused(world, IDEM_ERR_CORRUPT,
                   "segment 0000000000000001 is damaged at offset 0:");
    journal = open_dir(world, world->copy, "?damage=accept");
    assert_there(world, 0, 18, true); /* all of it is read */
    assert_int_equal(world->log.count[IDEM_LOG_ALARM], 1);
    assert_int_equal(journal->segments[0].end, end[0] + ENTRY_HEAD_LEN);
    shut(world);

    /* A segment may be empty. */
    test_folder_copy(world->dir, world->copy);
    drop_indexes(world->copy);
    head.prev_end = SEGMENT_HEAD_LEN;
    idem__segment_head_put(&head, bytes);
    close(fd);
    fd = open(test_segment_path(world->copy, 2, "seg").text, O_RDWR);
    assert_int_equal(pwrite(fd, bytes, sizeof(bytes), 0), sizeof(bytes));
    close(fd);
    journal = open_dir(world, world->copy, "");
    assert_there(world, 0, 6, false);
    assert_there(world, 6, 12, true);
    assert_int_equal(journal->segments[0].end, SEGMENT_HEAD_LEN);
    shut(world);
}

static void
a_segment_that_is_too_short_is_damaged_at_its_end(void **state)
{
    struct world *world = *state;
    uint64_t second[3], end[3];
    struct journal *journal;
    struct test_path path;
    char place[64];

    make_segments(world, second, end);
    path = test_segment_path(world->copy, 1, "seg");
    assert_int_equal(truncate(path.text, (off_t)second[0]), 0);
    snprintf(place, sizeof(place),
             "damaged at offset %llu:", (unsigned long long)second[0]);
    assert_refused(world, IDEM_ERR_CORRUPT, place);
    journal = open_dir(world, world->copy, "?damage=accept");
    assert_int_equal(world->log.count[IDEM_LOG_ALARM], 1);
    assert_int_equal(journal->segments[0].end, second[0]);
    assert_there(world, 0, 3, true);
    assert_there(world, 3, 3, false);
    assert_there(world, 6, 12, true);
    shut(world);
}

/* All of the segment before a missing one is read, for nobody says where it
 * ends. */
static void
a_missing_segment_is_named(void **state)
{
    struct world *world = *state;
    uint64_t second[3], end[3];
    struct journal *journal;

    make_segments(world, second, end);
    assert_int_equal(unlink(test_segment_path(world->copy, 2, "seg").text), 0);
    assert_refused(world, IDEM_ERR_CORRUPT,
                   "segment 0000000000000002 is missing");
    journal = open_dir(world, world->copy, "?damage=accept");
    assert_int_equal(world->log.count[IDEM_LOG_ALARM], 0);
    assert_int_equal(journal->segments[0].end, end[0] + ENTRY_HEAD_LEN);
    assert_int_equal(journal->segments[1].head.id, 3);
    assert_there(world, 0, 6, true);
    assert_there(world, 6, 6, false);
    assert_there(world, 12, 6, true);
    shut(world);
    /* The first ones may be missing: the cleaner removes them. */
    test_folder_copy(world->dir, world->copy);
    assert_int_equal(unlink(test_segment_path(world->copy, 1, "seg").text), 0);
    open_dir(world, world->copy, "");
    assert_true(file_len(world->copy, 1, "idx") == 0);
    assert_true(file_len(world->copy, 2, "idx") > 0);
    assert_true(file_len(world->copy, 3, "idx") > 0);
    assert_there(world, 0, 6, false);
    assert_there(world, 6, 12, true);
    shut(world);
}

/* ---- the indexes that are made ---- */

/* The saved indexes of a closed journal are read, not made again. */
static void
saved_indexes_are_used(void **state)
{
    struct world *world = *state;
    uint64_t second[3], end[3];
    struct stat before[3], after;
    struct test_path stray = test_segment_path(world->copy, 9999, "idx");
    struct journal *journal;

    make_segments(world, second, end);
    test_folder_copy(world->dir, world->copy);
    for (uint64_t i = 0; i < 3; i++)
        assert_int_equal(
            stat(test_segment_path(world->copy, i + 1, "idx").text, &before[i]),
            0);
    close(open(stray.text, O_CREAT | O_WRONLY, 0600));
    world->reads = 0;
    journal = open_dir(world, world->copy, "");
    assert_int_equal(access(stray.text, F_OK), -1); /* it has no segment */
    assert_int_equal(world->reads, 3 + 3 * 3); /* heads; head, table, rows */
    assert_there(world, 0, 18, true);
    for (uint64_t i = 0; i < 3; i++) {
        assert_int_equal(
            stat(test_segment_path(world->copy, i + 1, "idx").text, &after), 0);
        assert_int_equal(after.st_ino, before[i].st_ino);
        assert_int_equal(journal->segments[i].saved_len, after.st_size);
        assert_int_equal(journal->segments[i].end, end[i] + ENTRY_HEAD_LEN);
    }
    shut(world);
}

/* A record that was replaced in the same segment has no row. */
static void
a_made_index_has_one_row_for_each_key(void **state)
{
    enum { IDS = 1500 };
    struct world *world = *state;
    struct journal *journal;
    struct saved_head head;

    world->tuning.segment_len = UINT64_C(4) << 20;
    open_dir(world, world->dir, "");
    for (uint64_t id = 0; id < IDS; id++)
        swap(world, id, 100000 + id, 0, false);
    for (uint64_t id = 0; id < IDS; id++) /* the first 500 only once */
        if (id >= 500)
            swap(world, id, id + 1, 100000 + id, id < 600);
    kill_world(world);
    journal = open_dir(world, world->copy, "");
    head = saved_head(world, world->copy, 1, journal->segments[0].end);
    assert_int_equal(head.rows, IDS); /* a delete has a row, too */
    assert_int_equal(journal->index.count, IDS - 100);
    for (uint64_t id = 0; id < IDS; id++)
        assert_int_equal(test_rev(world->store, id), id < 500   ? 100000 + id
                                                     : id < 600 ? 0
                                                                : id + 1);
    shut(world);
}

/* Revs are random, but a row is taken for replaced only if its tag fits too. */
static void
two_keys_may_have_the_same_rev(void **state)
{
    struct world *world = *state;

    open_dir(world, world->dir, "");
    swap(world, 1, 77, 0, false);
    swap(world, 2, 77, 0, false);
    swap(world, 1, 78, 77, false);
    swap(world, 3, 79, 0, false);
    swap(world, 4, 79, 0, false);
    swap(world, 4, 80, 79, true);
    kill_world(world);
    open_dir(world, world->copy, "");
    assert_int_equal(test_rev(world->store, 1), 78);
    assert_int_equal(test_rev(world->store, 2), 77);
    assert_int_equal(test_rev(world->store, 3), 79);
    assert_int_equal(test_rev(world->store, 4), 0);
    assert_int_equal(((struct journal *)world->store)->index.count, 3);
    shut(world);
}

/* Time and batch numbers go on from the last entry, with a saved index or
 * without. */
static void
time_and_batches_go_on_from_the_last_entry(void **state)
{
    struct world *world = *state;

    for (int saved = 0; saved < 2; saved++) {
        struct journal *journal;
        struct saved_head head;
        int64_t then;
        uint64_t batch;

        test_folder_empty(world->dir);
        open_dir(world, world->dir, "");
        put(world, 0, 1);
        world->clock.now_ms += 5000;
        put(world, 1, 1);
        then = world->clock.now_ms;
        batch = ((struct journal *)world->store)->next_batch;
        if (saved) {
            shut(world);
            test_folder_copy(world->dir, world->copy);
            batch++; /* the mark */
        } else {
            kill_world(world);
        }
        world->clock.now_ms -= 3000; /* the clock is wrong */
        journal = open_dir(world, world->copy, "");
        assert_int_equal(journal->segments[1].head.time_us, then * 1000);
        assert_int_equal(idem__journal_now_us(journal), then * 1000);
        assert_in_range(journal->next_batch, batch, batch + 1);
        assert_int_equal(journal->segments[1].head.first_batch,
                         journal->next_batch);
        head = saved_head(world, world->copy, 1, journal->segments[0].end);
        assert_int_equal(head.time_us, then * 1000);
        assert_in_range(head.next_batch, batch, batch + 1);
        shut(world);
        world->clock.now_ms = then;
    }
}

/* ---- an empty segment ---- */

static void
a_new_journal_begins_with_number_one(void **state)
{
    struct world *world = *state;
    struct test_path stray = test_segment_path(world->dir, 1, "idx");
    struct journal *journal;

    close(open(stray.text, O_CREAT | O_WRONLY, 0600));
    for (int again = 0; again < 2; again++) { /* and so while it is empty */
        journal = open_dir(world, again ? world->copy : world->dir, "");
        assert_int_equal(journal->segment_count, 1);
        assert_int_equal(journal->segments[0].head.id, 1);
        assert_int_equal(journal->segments[0].head.prev_end, 0);
        assert_int_equal(journal->next_batch, again + 1);
        assert_int_equal(access(stray.text, F_OK), -1);
        assert_int_equal(journal->segments[0].head.first_batch, again + 1);
        kill_world(world);
    }
}

static void
an_empty_segment_is_replaced_and_has_no_index(void **state)
{
    struct world *world = *state;
    struct journal *journal;

    open_dir(world, world->dir, "");
    put(world, 0, 1);
    shut(world);
    open_dir(world, world->dir, "");
    kill_world(world); /* segment 2 has no entry */
    journal = open_dir(world, world->copy, "");
    assert_int_equal(journal->segment_count, 2);
    assert_int_equal(journal->segments[1].head.id, 2);
    assert_int_equal(journal->segments[1].head.prev_end,
                     journal->segments[0].end);
    assert_int_equal(file_len(world->copy, 2, "idx"), 0);
    assert_int_equal(
        access(test_segment_path(world->copy, 2, "idx").text, F_OK), -1);
    assert_there(world, 0, 1, true);
    put(world, 1, 1);
    shut(world);
    open_dir(world, world->copy, "");
    assert_there(world, 0, 2, true);
    shut(world);
}

/* ---- what fails ---- */

/* A killed writer's entries may not be on the disk. So the file and the folder
 * are synced before an entry is read. */
static void
the_newest_segment_is_synced_before_it_is_read(void **state)
{
    struct world *world = *state;
    struct stat file, folder;

    open_dir(world, world->dir, "");
    put(world, 0, 1);
    shut(world);
    open_dir(world, world->dir, "");
    put(world, 1, 2);
    kill_world(world);
    assert_int_equal(stat(test_segment_path(world->copy, 2, "seg").text, &file),
                     0);
    assert_int_equal(stat(world->copy, &folder), 0);
    for (size_t n = 1; n <= 2; n++) { /* the file, then the folder */
        world->syncs = world->reads = 0;
        world->fail_sync = n;
        assert_refused(world, IDEM_ERR_UNAVAILABLE, "cannot be read");
        assert_int_equal(world->syncs, n);
        assert_int_equal(world->synced, n == 1 ? file.st_ino : folder.st_ino);
        assert_int_equal(world->reads, 2); /* the heads */
    }
    world->fail_sync = 0;
    open_dir(world, world->copy, "");
    assert_there(world, 0, 3, true);
    shut(world);
}

static void
see_advice(void *arg, int fd, uint64_t at, uint64_t len, int advice)
{
    struct world *world = arg;
    struct stat info;

    if (advice != POSIX_FADV_DONTNEED)
        return;
    assert_true(at == 0 && len == 0); /* all of it */
    assert_int_equal(fstat(fd, &info), 0);
    assert_int_equal(world->synced_file, info.st_ino);
    assert_int_equal(world->reads, 2); /* the heads */
    world->dropped++;
}

/* After a sync that failed, the page cache may have what the disk lacks. */
static void
the_newest_segment_is_read_from_the_disk(void **state)
{
    struct world *world = *state;

    open_dir(world, world->dir, "");
    put(world, 0, 1);
    shut(world);
    open_dir(world, world->dir, "");
    put(world, 1, 2);
    kill_world(world);
    test_advice = (struct test_advice){see_advice, world};
    world->reads = world->syncs = 0;
    open_dir(world, world->copy, "");
    test_advice.seen = NULL;
    assert_int_equal(world->dropped, 1);
    assert_there(world, 0, 3, true);
    shut(world);
}

/* A journal opens on a full disk: the reserve becomes its next segment. */
static void
a_full_disk_is_no_reason_not_to_open(void **state)
{
    struct world *world = *state;
    struct journal *journal;

    open_dir(world, world->dir, "");
    put(world, 0, 3);
    test_tend(world->store); /* makes the reserve */
    kill_world(world);
    assert_int_equal(unlink(test_path(world->copy, "spare").text), 0);
    world->full = true;
    journal = open_dir(world, world->copy, "");
    assert_true(journal->full);
    assert_int_equal(journal->segment_count, 2);
    assert_there(world, 0, 3, true);
    swap(world, 0, 50, 1, false);
    assert_int_equal(test_rev(world->store, 0), 50);
    shut(world);
    world->full = false;
}

/* Each read fails once: then the journal does not open, and says so, or nothing
 * is missing. */
static void
a_read_that_fails_loses_nothing(void **state)
{
    struct world *world = *state;
    uint64_t second[3], end[3];
    size_t refused = 0;
    bool failed = true;

    make_segments(world, second, end);
    for (size_t n = 1; failed; n++) {
        enum idem_status status;
        struct idem_error err;

        test_folder_copy(world->dir, world->copy);
        drop_indexes(world->copy);
        world->reads = 0;
        world->fail_read = n;
        status =
            try_open(world, world->copy, n % 2 ? "?damage=accept" : "", &err);
        failed = world->reads >= n; /* else there were fewer reads */
        world->fail_read = 0;
        if (status != IDEM_OK) {
            assert_int_equal(status, IDEM_ERR_UNAVAILABLE);
            refused++;
            continue;
        }
        assert_there(world, 0, 18, true);
        shut(world);
    }
    assert_true(refused >= 6);
    assert_int_equal(world->log.count[IDEM_LOG_ALARM], 0);
}

/* An entry may be longer than the window through which a segment is read, and
 * damage may be searched across it. */
static void
damage_is_searched_across_windows(void **state)
{
    enum { IDS = 900 };
    struct world *world = *state;
    struct journal_report report;
    struct idem_error err;
    uint64_t at = 0, found;

    world->tuning.segment_len = UINT64_C(6) << 20;
    open_dir(world, world->dir, "");
    for (uint64_t id = 0; id < IDS; id++) {
        struct test_record t;

        if (id == 10)
            at = newest(world)->end;
        test_make(&t, id, IDEM_STATE_SUCCEEDED, id + 1, 4000);
        assert_int_equal(test_swap(world->store, &t, 0, false),
                         IDEM_SWAP_STORED);
    }
    assert_true(newest(world)->end > UINT64_C(3) << 20);
    kill_world(world);
    flip(world->copy, 1, at, UINT64_C(5) << 18); /* more than a window */
    for (size_t n = 2; n <= 4; n++) { /* while the damage is searched, too */
        world->reads = 0;
        world->fail_read = n;
        assert_refused(world, IDEM_ERR_UNAVAILABLE, "cannot be read");
    }
    world->fail_read = 0;
    assert_refused(world, IDEM_ERR_CORRUPT, "damaged at offset");
    assert_int_equal(
        idem__journal_check(world->copy, NULL, NULL, NULL, NULL, &report, &err),
        IDEM_OK);
    assert_int_equal(report.damaged, 1);
    open_dir(world, world->copy, "?damage=accept");
    assert_int_equal(world->log.count[IDEM_LOG_ALARM], 1);
    found = ((struct journal *)world->store)->index.count;
    assert_int_equal(found, report.live);
    assert_in_range(found, IDS - 320, IDS - 300);
    assert_there(world, 0, 10, true);
    assert_there(world, IDS - found + 10, found - 10, true);
    shut(world);
}

/* `idem journal check` and an open that accepts the damage agree on what is
 * left. */
static void
a_check_counts_what_is_left(void **state)
{
    struct world *world = *state;
    struct journal_report report;
    struct idem_error err;
    uint64_t at;

    open_dir(world, world->dir, "");
    put(world, 0, 2);
    at = newest(world)->end;
    put(world, 2, 4);
    put(world, 6, 2);
    kill_world(world);
    flip(world->copy, 1, at + 100, 1);
    assert_int_equal(
        idem__journal_check(world->copy, NULL, NULL, NULL, NULL, &report, &err),
        IDEM_OK);
    assert_int_equal(report.damaged, 1);
    assert_int_equal(report.live, 7);
    open_dir(world, world->copy, "?damage=accept");
    assert_int_equal(((struct journal *)world->store)->index.count, 7);
    shut(world);
}

static void
opening_again_and_again_needs_no_more_memory(void **state)
{
    struct world *world = *state;
    uint64_t second[3], end[3];
    size_t before = 0;

    make_segments(world, second, end);
    for (int i = 0; i < 20; i++) {
        if (i == 4)
            before = test_allocated();
        test_folder_copy(world->dir, world->copy);
        if (i % 2)
            drop_indexes(world->copy);
        open_dir(world, world->copy, "");
        shut(world);
    }
    assert_in_range(test_allocated(), 0, before + 1000);
}

/* What an errno says to the caller. */
static void
errors_say_what_to_do(void **state)
{
    struct journal journal = {.dir = "/a/folder"};
    struct idem_error err;

    (void)state;
    assert_int_equal(idem__recover_error(&journal, EBADMSG, &err),
                     IDEM_ERR_CORRUPT);
    assert_non_null(strstr(err.text, "/a/folder is damaged: run idem journal"));
    assert_non_null(strstr(err.text, "?damage=accept"));
    assert_int_equal(idem__recover_error(&journal, EIO, &err),
                     IDEM_ERR_UNAVAILABLE);
    assert_non_null(strstr(err.text, "/a/folder: cannot be read"));
    assert_int_equal(idem__recover_error(&journal, ENOMEM, &err),
                     IDEM_ERR_MEMORY);
    assert_int_equal(idem__recover_error(&journal, ENOSPC, &err),
                     IDEM_ERR_FULL);
}

#define T(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int
main(void)
{
    const struct CMUnitTest tests[] = {
        T(the_room_behind_the_end_is_cut_off),
        T(a_torn_batch_is_no_damage),
        T(damage_before_a_later_batch_is_reported),
        T(without_indexes_the_entries_are_read),
        T(each_damaged_place_is_reported_and_skipped),
        T(two_damaged_places_are_two_alarms),
        T(a_segment_may_be_damaged_up_to_its_end),
        T(what_is_behind_the_named_end_is_not_read),
        T(an_impossible_end_is_damage),
        T(a_segment_that_is_too_short_is_damaged_at_its_end),
        T(a_missing_segment_is_named),
        T(saved_indexes_are_used),
        T(a_made_index_has_one_row_for_each_key),
        T(two_keys_may_have_the_same_rev),
        T(time_and_batches_go_on_from_the_last_entry),
        T(a_new_journal_begins_with_number_one),
        T(an_empty_segment_is_replaced_and_has_no_index),
        T(the_newest_segment_is_synced_before_it_is_read),
        T(the_newest_segment_is_read_from_the_disk),
        T(a_full_disk_is_no_reason_not_to_open),
        T(a_read_that_fails_loses_nothing),
        T(damage_is_searched_across_windows),
        T(a_check_counts_what_is_left),
        T(opening_again_and_again_needs_no_more_memory),
        cmocka_unit_test(errors_say_what_to_do),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
