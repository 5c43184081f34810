/*
 * folder_test.c - tests the folder of a journal: what is refused because
 * somebody else could change it, segments that are missing or too short, and
 * saved indexes that cannot be written.
 */
#include "testing.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#define IDS 40

static const struct journal_tuning small = {.segment_len = 8192,
                                            .no_thread = true};

/* Write enough for several segments. */
static void
fill(const char *dir, const struct journal_tuning *tuning)
{
    struct idem_store *store = test_open(dir, tuning);
    struct test_record t;

    for (uint64_t id = 0; id < IDS; id++) {
        test_make(&t, id, IDEM_STATE_SUCCEEDED, id + 1, 500);
        t.record.expires = 0; /* never */
        assert_int_equal(test_swap(store, &t, 0, false), IDEM_SWAP_STORED);
    }
    test_close(store);
}

static size_t
count_found(struct idem_store *store)
{
    size_t found = 0;

    for (uint64_t id = 0; id < IDS; id++) {
        uint64_t rev = test_rev(store, id);

        assert_true(rev == 0 || rev == id + 1);
        found += rev != 0;
    }
    return found;
}

/* Opening fails, and the error says why. */
static void
assert_refused(const char *dir, enum idem_status wanted, const char *why)
{
    struct idem_store *store = NULL;
    struct idem_error err = {IDEM_OK, ""};

    assert_int_equal(test_try_open(dir, &small, NULL, NULL, &store, &err),
                     wanted);
    if (!strstr(err.text, why))
        fail_msg("it says: %s", err.text);
}

/* A mistyped path gives an empty journal, so that is said, once. */
static void
a_new_journal_is_said_to_be_new_and_empty(void **state)
{
    struct test_log log = {0};
    char *dir = test_fast_folder();

    (void)state;
    for (int i = 0; i < 3; i++) {
        struct idem_store *store = NULL;
        struct test_record t;

        assert_int_equal(test_try_open(dir, &small, NULL, &log, &store, NULL),
                         IDEM_OK);
        if (i == 1) { /* it is still empty, but no longer new */
            test_make(&t, 1, IDEM_STATE_SUCCEEDED, 2, 10);
            assert_int_equal(test_swap(store, &t, 0, false), IDEM_SWAP_STORED);
        }
        test_close(store);
        assert_int_equal(log.count[IDEM_LOG_WARNING], 1);
    }
    assert_non_null(strstr(log.last, dir));
    assert_non_null(strstr(log.last, "a new, empty journal was created"));
    test_folder_drop(dir);
}

/* ---- who may change it ----------------------------------------------------
 */

static void
a_folder_that_others_can_write_in_is_refused(void **state)
{
    const char *dir = *state;

    fill(dir, &small);
    assert_int_equal(chmod(dir, 0720), 0);
    assert_refused(dir, IDEM_ERR_UNAVAILABLE, "(mode 0720): run chmod go-w");
    assert_int_equal(chmod(dir, 0702), 0);
    assert_refused(dir, IDEM_ERR_UNAVAILABLE, "(mode 0702): run chmod go-w");
    assert_int_equal(chmod(dir, 0755), 0); /* they may read it */
    test_close(test_open(dir, &small));
}

static void
a_lock_file_that_is_not_a_file_is_refused(void **state)
{
    const char *dir = *state;
    struct test_path lock = test_path(dir, "lock");

    assert_int_equal(symlink("/dev/null", lock.text), 0);
    assert_refused(dir, IDEM_ERR_UNAVAILABLE, "it is a symbolic link");
    assert_int_equal(unlink(lock.text), 0);
    assert_int_equal(mkfifo(lock.text, 0600), 0);
    assert_refused(dir, IDEM_ERR_UNAVAILABLE, "it is not a regular file");
    assert_int_equal(unlink(lock.text), 0);
    test_close(test_open(dir, &small));
}

static void
a_segment_behind_a_link_is_not_followed(void **state)
{
    const char *dir = *state;
    struct test_path segment = test_segment_path(dir, 1, "seg");
    struct test_path moved = test_path(dir, "moved");

    fill(dir, &small);
    assert_int_equal(rename(segment.text, moved.text), 0);
    assert_int_equal(symlink(moved.text, segment.text), 0);
    assert_refused(dir, IDEM_ERR_UNAVAILABLE, "it is a symbolic link");
}

static void
a_file_in_the_place_of_the_folder_is_refused(void **state)
{
    struct test_path path = test_path(*state, "file");
    struct test_path below = test_path(*state, "file/below");
    int fd = open(path.text, O_CREAT | O_WRONLY, 0600);

    assert_true(fd >= 0);
    close(fd);
    assert_refused(path.text, IDEM_ERR_UNAVAILABLE, "not a file");
    assert_refused(below.text, IDEM_ERR_UNAVAILABLE, "not a file");
    assert_refused(test_path(*state, "none/below").text, IDEM_ERR_UNAVAILABLE,
                   "create the folder above it first");
}

/* Names that only look like those of segments are left alone. */
static void
other_files_in_the_folder_are_ignored(void **state)
{
    static const char *names[] = {
        "0000000000000000.seg", "000000000000000G.seg", "00000000000000001.seg",
        "0000000000000001.txt", "000000000000000g.idx"};
    const char *dir = *state;
    struct idem_store *store;

    fill(dir, &small);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        int fd = open(test_path(dir, names[i]).text, O_CREAT | O_WRONLY, 0600);

        assert_true(fd >= 0);
        close(fd);
    }
    store = test_open(dir, &small);
    assert_int_equal(count_found(store), IDS);
    test_close(store);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        assert_int_equal(access(test_path(dir, names[i]).text, F_OK), 0);
}

/* ---- segments --------------------------------------------------------------
 */

static struct idem_store *
open_accepting(const char *dir, struct test_log *log)
{
    struct idem_store *store = NULL;
    struct idem_error err;
    char where[300];

    snprintf(where, sizeof(where), "%s?damage=accept", dir);
    if (test_try_open(where, &small, NULL, log, &store, &err) != IDEM_OK)
        fail_msg("open: %s", err.text);
    return store;
}

/* With a segment gone, its records are lost, and only those. */
static void
a_missing_segment_is_reported_and_may_be_accepted(void **state)
{
    const char *dir = *state;
    struct test_log log = {0};
    struct idem_store *store;
    size_t found;

    fill(dir, &small);
    assert_int_equal(unlink(test_segment_path(dir, 2, "seg").text), 0);
    assert_refused(dir, IDEM_ERR_CORRUPT,
                   "segment 0000000000000002 is missing");
    store = open_accepting(dir, &log);
    found = count_found(store);
    assert_in_range(found, IDS / 2, IDS - 1);
    test_close(store);
}

static void
a_segment_that_is_too_short_is_reported_and_may_be_accepted(void **state)
{
    const char *dir = *state;
    struct test_path path = test_segment_path(dir, 1, "seg");
    struct test_log log = {0};
    struct idem_store *store;
    struct stat info;
    size_t found;

    fill(dir, &small);
    assert_int_equal(stat(path.text, &info), 0);
    assert_int_equal(truncate(path.text, info.st_size / 2), 0);
    assert_refused(dir, IDEM_ERR_CORRUPT,
                   "segment 0000000000000001 is damaged at offset");
    store = open_accepting(dir, &log);
    found = count_found(store);
    assert_in_range(found, IDS / 2, IDS - 1);
    test_close(store);
    /* The loss is accepted once: from now on the journal opens. */
    store = open_accepting(dir, &log);
    assert_int_equal(count_found(store), found);
    test_close(store);
}

static void
a_segment_with_the_number_of_another_is_damaged(void **state)
{
    const char *dir = *state;

    fill(dir, &small);
    assert_int_equal(unlink(test_segment_path(dir, 2, "seg").text), 0);
    assert_int_equal(link(test_segment_path(dir, 1, "seg").text,
                          test_segment_path(dir, 2, "seg").text),
                     0);
    assert_refused(dir, IDEM_ERR_CORRUPT, "0000000000000002");
}

static void
a_segment_with_a_damaged_head_is_refused(void **state)
{
    const char *dir = *state;
    int fd;

    fill(dir, &small);
    fd = open(test_segment_path(dir, 1, "seg").text, O_RDWR);
    assert_int_equal(pwrite(fd, "\xff", 1, 24), 1);
    close(fd);
    assert_refused(dir, IDEM_ERR_CORRUPT, "its head is damaged");
}

/* ---- saved indexes ---------------------------------------------------------
 */

struct no_index {
    int denied;          /* calls that failed */
    bool only_write;     /* they can be opened, but not written */
    bool is_index[1024]; /* by fd */
};

static bool
names_index(const char *name)
{
    size_t len = strlen(name);

    return len > 4 && strcmp(name + len - 4, ".idx") == 0;
}

static int
open_no_index(void *arg, int at, const char *name, int flags, mode_t mode)
{
    struct no_index *self = arg;
    int fd;

    if (names_index(name) && (flags & O_CREAT) && !self->only_write) {
        self->denied++;
        errno = EACCES;
        return -1;
    }
    fd = openat(at, name, flags, mode);
    if (fd >= 0)
        self->is_index[fd % 1024] = names_index(name);
    return fd;
}

static ssize_t
write_no_index(void *arg, int fd, const void *data, size_t len, off_t at)
{
    struct no_index *self = arg;

    if (!self->only_write || !self->is_index[fd % 1024])
        return pwrite(fd, data, len, at);
    self->denied++;
    errno = ENOSPC;
    return -1;
}

/* A saved index only saves time: without one, everything is there. */
static void
without_saved_indexes_nothing_is_missing(void **state)
{
    const char *dir = *state;

    for (int only_write = 0; only_write < 2; only_write++) {
        struct no_index no_index = {.only_write = only_write};
        struct idem_io io = idem__system_io;
        struct journal_tuning tuning = small;
        struct idem_store *store;

        test_folder_empty(dir);
        fill(dir, &small);
        for (uint64_t id = 1; id < 10; id++)
            (void)unlink(test_segment_path(dir, id, "idx").text);
        io.arg = &no_index;
        io.open = open_no_index;
        io.pwrite = write_no_index;
        tuning.io = &io;
        for (int lazy = 0; lazy < 2; lazy++) {
            tuning.lazy = lazy;
            store = test_open(dir, &tuning);
            assert_true(no_index.denied > 0);
            assert_int_equal(((struct journal *)store)->segments[0].saved_len,
                             0);
            assert_int_equal(
                access(test_segment_path(dir, 1, "idx").text, F_OK), -1);
            assert_int_equal(count_found(store), IDS);
            for (int i = 0; i < 100; i++)
                test_tend(store);
            assert_int_equal(count_found(store), IDS);
            test_close(store);
            no_index.denied = 0;
        }
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_new_journal_is_said_to_be_new_and_empty),
#define T(name)                                                                \
    cmocka_unit_test_setup_teardown(name, test_folder_setup,                   \
                                    test_folder_teardown)
        T(a_folder_that_others_can_write_in_is_refused),
        T(a_lock_file_that_is_not_a_file_is_refused),
        T(a_segment_behind_a_link_is_not_followed),
        T(a_file_in_the_place_of_the_folder_is_refused),
        T(other_files_in_the_folder_are_ignored),
        T(a_missing_segment_is_reported_and_may_be_accepted),
        T(a_segment_that_is_too_short_is_reported_and_may_be_accepted),
        T(a_segment_with_the_number_of_another_is_damaged),
        T(a_segment_with_a_damaged_head_is_refused),
        T(without_saved_indexes_nothing_is_missing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
