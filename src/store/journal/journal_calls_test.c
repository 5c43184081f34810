/*
 * journal_calls_test.c - lets each system call fail once, in turn, and each
 * allocation, while a journal is copied, checked or opened.
 *
 * journal_fault_test.c does this for the calls of an open journal. Here the
 * calls of libc fail, so those on the folder are among them (mkdir, flock,
 * fstat and others).
 */
#include "../../../tests/support/failing_calls.h"

#include "copy.h"
#include "journal_check.h"
#include "testing.h"

#define IDS 60
#define NEW 40

static const struct journal_tuning small = {.segment_len = 8192,
                                            .no_thread = true};

/* An error of a failing call, with a text that names the folder. */
static void
assert_trouble(const struct idem_error *err, const char *dir)
{
    if (err->status != IDEM_ERR_UNAVAILABLE && err->status != IDEM_ERR_MEMORY)
        fail_msg("call %zu (%s): %d, %s", fault.fail_at, fault.fired,
                 err->status, err->text);
    if (err->status == IDEM_ERR_UNAVAILABLE && !strstr(err->text, dir))
        fail_msg("call %zu (%s): %s", fault.fail_at, fault.fired, err->text);
}

/* ---- journals --------------------------------------------------------------
 */

static uint64_t
rev_of(uint64_t id, uint64_t round)
{
    return round * 1000 + id + 1;
}

/* Write every record, so there are several segments. Those of the round before
 * are replaced, and the cleaner removes their segments. */
static void
write_round(struct idem_store *store, uint64_t round)
{
    struct test_record t;

    for (uint64_t id = 0; id < IDS; id++) {
        test_make(&t, id, IDEM_STATE_SUCCEEDED, rev_of(id, round), 250);
        t.record.expires = 0;
        assert_int_equal(
            test_swap(store, &t, round ? rev_of(id, round - 1) : 0, false),
            IDEM_SWAP_STORED);
        test_tend(store);
    }
}

static void
assert_has_round(const char *dir, uint64_t round)
{
    struct idem_store *store = test_open(dir, &small);

    for (uint64_t id = 0; id < IDS; id++)
        assert_int_equal(test_rev(store, id), rev_of(id, round));
    test_close(store);
}

struct world {
    char *from, *to, *earlier, *parent;
};

static int
setup(void **state)
{
    struct world *world = calloc(1, sizeof(*world));
    struct journal_copied copied;
    struct idem_store *store;

    world->from = test_fast_folder();
    world->to = test_fast_folder();
    world->earlier = test_fast_folder();
    store = test_open(world->from, &small);
    write_round(store, 0);
    test_close(store);
    assert_int_equal(idem__journal_copy(world->from, world->earlier, false,
                                        NULL, NULL, &copied, NULL),
                     IDEM_OK);
    store = test_open(world->from, &small);
    write_round(store, 1);
    assert_true(((struct journal *)store)->segments[0].head.id > 1);
    test_close(store);
    *state = world;
    return 0;
}

static int
teardown(void **state)
{
    struct world *world = *state;

    test_folder_drop(world->from);
    test_folder_drop(world->to);
    test_folder_drop(world->earlier);
    free(world);
    return 0;
}

/* ---- copies ----------------------------------------------------------------
 */

/* Copy while the n-th call fails. Returns false if there were fewer. */
static bool
copy_with_fault(struct world *world, size_t n, bool fresh)
{
    size_t files = test_open_files();
    struct journal_copied copied;
    struct idem_error err = {IDEM_OK, ""};
    enum idem_status status;

    test_folder_empty(world->to);
    if (!fresh)
        test_folder_copy(world->earlier, world->to);
    arm(NULL, n, 0);
    status = idem__journal_copy(world->from, world->to, fresh, NULL, NULL,
                                &copied, &err);
    disarm();
    if (test_open_files() != files)
        fail_msg("call %zu (%s): a file stays open", n, fault.fired);
    if (status == IDEM_OK) {
        assert_has_round(world->to, 1);
        return fault.fired != NULL;
    }
    assert_int_equal(err.status, status);
    if (!strstr(err.text, world->to))
        assert_trouble(&err, world->from);
    else
        assert_trouble(&err, world->to);
    /* The next copy completes it. */
    if (idem__journal_copy(world->from, world->to, fresh, NULL, NULL, &copied,
                           &err) != IDEM_OK &&
        !(fresh && strstr(err.text, "already holds a journal")))
        fail_msg("call %zu (%s), again: %s", n, fault.fired, err.text);
    assert_has_round(world->to, 1);
    return true;
}

static void
a_copy_whose_call_fails_has_everything_or_says_so(void **state)
{
    size_t n = 1;

    while (copy_with_fault(*state, n, true))
        n++;
    print_message("%zu calls failed in turn\n", n - 1);
    assert_true(n > 100);
}

static void
a_later_copy_whose_call_fails_has_everything_or_says_so(void **state)
{
    size_t n = 1;

    while (copy_with_fault(*state, n, false))
        n++;
    print_message("%zu calls failed in turn\n", n - 1);
    assert_true(n > 100);
}

/* Signals that interrupt a copy are not noticed. */
static void
an_interrupted_call_does_not_end_a_copy(void **state)
{
    static const char *names[] = {"openat64", "readdir64", "pread64",
                                  "pwrite64", "fsync",     "ftruncate64",
                                  "flock",    "renameat",  "unlinkat"};
    struct world *world = *state;

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        struct journal_copied copied;
        struct idem_error err = {IDEM_OK, ""};

        for (size_t n = 1; n < 3; n++) {
            test_folder_copy(world->earlier, world->to);
            arm(names[i], n, EINTR);
            if (idem__journal_copy(world->from, world->to, false, NULL, NULL,
                                   &copied, &err) != IDEM_OK)
                fail_msg("%s %zu: %s", names[i], n, err.text);
            disarm();
            assert_non_null(fault.fired);
            assert_has_round(world->to, 1);
        }
    }
}

/* A copy without its last segments would open, and look like an old one. */
static void
a_copy_does_not_end_where_a_segment_is_missing_or_damaged(void **state)
{
    struct world *world = *state;
    struct idem_store *store = test_open(world->from, &small);
    struct journal *journal = (struct journal *)store;
    size_t count = journal->segment_count;
    uint64_t first = journal->segments[0].head.id;

    assert_true(count > 3);
    test_close(store);
    for (size_t i = 1; i + 1 < count; i++) {
        struct test_path path =
            test_segment_path(world->from, first + i, "seg");
        struct test_path aside = test_path(world->from, "aside");
        struct journal_copied copied;
        struct idem_error err = {IDEM_OK, ""};
        int fd = open(path.text, O_RDWR);
        uint8_t byte;

        test_folder_empty(world->to);
        assert_int_equal(pread(fd, &byte, 1, 20), 1);
        byte ^= 1;
        assert_int_equal(pwrite(fd, &byte, 1, 20), 1);
        assert_int_equal(idem__journal_copy(world->from, world->to, true, NULL,
                                            NULL, &copied, &err),
                         IDEM_ERR_CORRUPT);
        assert_non_null(
            strstr(err.text, idem__segment_name(first + i, "seg").text));
        byte ^= 1;
        assert_int_equal(pwrite(fd, &byte, 1, 20), 1);
        close(fd);

        assert_int_equal(rename(path.text, aside.text), 0);
        assert_int_equal(idem__journal_copy(world->from, world->to, true, NULL,
                                            NULL, &copied, &err),
                         IDEM_ERR_CORRUPT);
        assert_non_null(strstr(err.text, "is missing: run idem journal check"));
        assert_int_equal(rename(aside.text, path.text), 0);
    }
}

/* What another process does after the first segment was copied. */
struct remover {
    const char *dir;
    uint64_t from, to; /* these segments are removed */
    size_t calls;
};

static void
remove_some(void *arg, const struct journal_copied *now)
{
    struct remover *remover = arg;

    assert_true(now->segments <= remover->calls + 1);
    if (remover->calls++ == 0) {
        for (uint64_t id = remover->from; id <= remover->to; id++)
            (void)unlink(test_segment_path(remover->dir, id, "seg").text);
    }
}

static uint64_t
first_segment(const char *dir)
{
    struct journal_report report;

    assert_int_equal(
        idem__journal_check(dir, NULL, NULL, NULL, NULL, &report, NULL),
        IDEM_OK);
    return report.first_segment;
}

/* The cleaner removes the oldest ones, after it has moved what lives there. */
static void
segments_that_are_removed_meanwhile_are_left_out(void **state)
{
    struct world *world = *state;
    uint64_t first = first_segment(world->from);
    struct remover remover = {world->from, first, first + 1, 0};
    struct journal_copied copied;
    struct idem_error err = {IDEM_OK, ""};

    if (idem__journal_copy(world->from, world->to, true, remove_some, &remover,
                           &copied, &err) != IDEM_OK)
        fail_msg("%s", err.text);
    assert_int_equal(first_segment(world->to), first + 2);
    assert_int_equal(copied.segments, remover.calls - 2);
    test_close(test_open(world->to, &small));
}

/* Only the oldest one can be removed, so one behind it is lost. */
static void
a_segment_that_gets_lost_meanwhile_ends_the_copy(void **state)
{
    struct world *world = *state;
    uint64_t first = first_segment(world->from);
    struct remover remover = {world->from, first + 1, first + 1, 0};
    struct journal_copied copied;
    struct idem_error err = {IDEM_OK, ""};

    assert_int_equal(idem__journal_copy(world->from, world->to, true,
                                        remove_some, &remover, &copied, &err),
                     IDEM_ERR_CORRUPT);
    assert_non_null(strstr(err.text, "is missing"));
    test_folder_empty(world->from);
    assert_int_equal(idem__journal_copy(world->from, world->to, true, NULL,
                                        NULL, &copied, &err),
                     IDEM_ERR_INVALID);
    assert_non_null(strstr(err.text, "there is no journal in"));
}

static struct {
    const char *dir;
    uint64_t oldest, newest;
} reuse;

/* What a running journal does: its oldest segment becomes the spare, and then
 * the newest. */
static void
reuse_oldest(void)
{
    struct test_path from = test_segment_path(reuse.dir, reuse.oldest, "seg");
    struct test_path last = test_segment_path(reuse.dir, reuse.newest, "seg");
    struct test_path to = test_segment_path(reuse.dir, reuse.newest + 1, "seg");
    struct segment_head head = {.id = reuse.newest + 1, .salt = 7};
    uint8_t bytes[SEGMENT_HEAD_LEN];
    struct stat info;
    int fd = open(from.text, O_RDWR);

    assert_int_equal(stat(last.text, &info), 0);
    head.prev_end = (uint64_t)info.st_size;
    head.first_batch = 1000000;
    idem__segment_head_put(&head, bytes);
    assert_int_equal(pwrite(fd, bytes, sizeof(bytes), 0), sizeof(bytes));
    close(fd);
    assert_int_equal(rename(from.text, to.text), 0);
}

/* A copy has the head of the segment that was opened, not the one that is in
 * its file meanwhile. */
static void
a_segment_that_is_used_again_meanwhile_does_not_spoil_the_copy(void **state)
{
    struct world *world = *state;
    struct journal_report report;

    assert_int_equal(
        idem__journal_check(world->from, NULL, NULL, NULL, NULL, &report, NULL),
        IDEM_OK);
    test_folder_copy(world->from, world->earlier);
    reuse.dir = world->from;
    reuse.oldest = report.first_segment;
    reuse.newest = report.last_segment;
    for (size_t n = 1, fired = 1; fired; n++) {
        struct journal_copied copied;
        struct idem_error err = {IDEM_OK, ""};

        test_folder_empty(world->to);
        arm("openat64", n, 0);
        fault.meanwhile = reuse_oldest;
        if (idem__journal_copy(world->from, world->to, true, NULL, NULL,
                               &copied, &err) != IDEM_OK)
            fail_msg("call %zu: %s", n, err.text);
        disarm();
        fired = fault.fired != NULL;
        test_close(test_open(world->to, &small));
        test_folder_copy(world->earlier, world->from);
    }
}

/* ---- checks ----------------------------------------------------------------
 */

struct seen {
    size_t all, live, damaged;
};

static bool
see(void *arg, const struct journal_sight *sight)
{
    struct seen *seen = arg;

    seen->all++;
    seen->live += sight->live;
    return true;
}

static void
see_damage(void *arg, uint64_t segment, uint64_t at, const char *what)
{
    (void)segment;
    (void)at;
    (void)what;
    ((struct seen *)arg)->damaged++;
}

/* A check while the n-th call fails. Returns false if there were fewer. */
static bool
check_with_fault(const char *dir, size_t n, const struct journal_report *right)
{
    size_t files = test_open_files();
    struct journal_report report;
    struct seen seen = {0};
    struct idem_error err = {IDEM_OK, ""};
    enum idem_status status;

    arm(NULL, n, 0);
    status =
        idem__journal_check(dir, NULL, see, see_damage, &seen, &report, &err);
    disarm();
    if (test_open_files() != files)
        fail_msg("call %zu (%s): a file stays open", n, fault.fired);
    if (status != IDEM_OK) {
        assert_trouble(&err, dir);
        return true;
    }
    if (report.entries != right->entries || report.live != right->live ||
        report.live_bytes != right->live_bytes || report.damaged != 0 ||
        seen.all != right->entries || seen.live != right->live)
        fail_msg("call %zu (%s): %zu of %zu entries", n, fault.fired, seen.all,
                 (size_t)right->entries);
    return fault.fired != NULL;
}

static void
a_check_whose_call_fails_sees_everything_or_says_so(void **state)
{
    struct world *world = *state;
    struct journal_report right;
    size_t n = 1;

    assert_int_equal(
        idem__journal_check(world->from, NULL, NULL, NULL, NULL, &right, NULL),
        IDEM_OK);
    assert_int_equal(right.live, IDS);
    while (check_with_fault(world->from, n, &right))
        n++;
    print_message("%zu calls failed in turn\n", n - 1);
    assert_true(n > 50);
}

/* A check of a damaged journal while the n-th call fails. Damage is
 * found, or the check fails. Returns false if there were fewer. */
static bool
check_damaged(const char *dir, size_t n, const struct journal_report *right)
{
    struct journal_report report;
    struct idem_error err = {IDEM_OK, ""};
    struct seen seen = {0};
    enum idem_status status;

    arm(NULL, n, 0);
    status =
        idem__journal_check(dir, NULL, see, see_damage, &seen, &report, &err);
    disarm();
    if (status != IDEM_OK) {
        assert_trouble(&err, dir);
        return true;
    }
    if (report.damaged != 1)
        fail_msg("call %zu (%s): %d damaged", n, fault.fired,
                 (int)report.damaged);
    assert_int_equal(seen.damaged, 1);
    assert_int_equal(report.entries, right->entries - 1);
    assert_int_equal(seen.all, right->entries - 1);
    return fault.fired != NULL;
}

static void
a_check_whose_call_fails_does_not_miss_damage(void **state)
{
    struct world *world = *state;
    struct journal_report right;
    struct test_path path;
    size_t n = 0;
    uint8_t byte;
    int fd;

    assert_int_equal(
        idem__journal_check(world->from, NULL, NULL, NULL, NULL, &right, NULL),
        IDEM_OK);
    path = test_segment_path(world->from, right.first_segment + 1, "seg");
    fd = open(path.text, O_RDWR);
    assert_int_equal(pread(fd, &byte, 1, 2000), 1);
    byte ^= 1;
    assert_int_equal(pwrite(fd, &byte, 1, 2000), 1);
    close(fd);
    while (check_damaged(world->from, ++n, &right))
        ;
    assert_true(n > 10);
}

/* ---- opening ---------------------------------------------------------------
 */

/* Write new records. Those before *stored are stored, unless this returns
 * false: then the one after them may be. */
static bool
write_new(struct idem_store *store, uint64_t *stored)
{
    struct test_record t;
    enum idem_outcome outcome = IDEM_SWAP_STORED;

    for (*stored = 0; *stored < NEW; ++*stored) {
        test_make(&t, IDS + *stored, IDEM_STATE_SUCCEEDED, *stored + 1, 250);
        t.record.expires = 0;
        outcome = test_swap(store, &t, 0, false);
        if (outcome != IDEM_SWAP_STORED)
            break;
        test_tend(store);
    }
    return outcome != IDEM_SWAP_LOST;
}

/* Write to a journal while the n-th call fails. Returns false if there were
 * fewer. */
static bool
write_with_fault(const char *dir, size_t n)
{
    size_t files = test_open_files();
    struct idem_store *store = test_open(dir, &small);
    uint64_t stored, rev;
    bool known;

    arm(NULL, n, 0);
    known = write_new(store, &stored);
    test_tend(store);
    test_close(store);
    disarm();
    if (test_open_files() != files)
        fail_msg("call %zu (%s): a file stays open", n, fault.fired);
    store = test_open(dir, &small);
    for (uint64_t i = 0; i < NEW; i++) {
        rev = test_rev(store, IDS + i);
        if (rev != (i < stored ? i + 1 : 0) && (known || i != stored))
            fail_msg("call %zu (%s): record %d of %d", n, fault.fired, (int)i,
                     (int)stored);
    }
    test_close(store);
    assert_has_round(dir, 1);
    return fault.fired != NULL;
}

/* Open a journal, or make one, while the n-th call fails. Returns false if
 * there were fewer. */
static bool
open_with_fault(const char *dir, size_t n, bool made)
{
    size_t files = test_open_files();
    struct idem_store *store = NULL;
    struct idem_error err = {IDEM_OK, ""};
    struct test_record t;

    arm(NULL, n, 0);
    (void)test_try_open(dir, &small, NULL, NULL, &store, &err);
    disarm();
    if (store) {
        if (!made) { /* a new one works */
            test_make(&t, 1, IDEM_STATE_SUCCEEDED, 1, 100);
            assert_int_equal(test_swap(store, &t, 0, false), IDEM_SWAP_STORED);
        }
        test_close(store);
    } else {
        assert_trouble(&err, dir);
    }
    if (test_open_files() != files)
        fail_msg("call %zu (%s): a file stays open", n, fault.fired);
    if (made)
        assert_has_round(dir, 1);
    return fault.fired != NULL;
}

static void
a_journal_whose_call_fails_while_it_is_opened_loses_nothing(void **state)
{
    struct world *world = *state;
    size_t n = 0;

    do
        test_folder_copy(world->from, world->to);
    while (open_with_fault(world->to, ++n, true));
    print_message("%zu calls failed in turn\n", n);
    assert_true(n > 30);
}

static void
a_journal_whose_call_fails_while_it_works_keeps_its_word(void **state)
{
    struct world *world = *state;
    size_t n = 0;

    do
        test_folder_copy(world->from, world->to);
    while (write_with_fault(world->to, ++n));
    print_message("%zu calls failed in turn\n", n);
    assert_true(n > 100);
}

static void
a_journal_whose_call_fails_while_it_is_made_can_be_made_again(void **state)
{
    struct world *world = *state;
    struct test_path path = test_path(world->to, "new");
    size_t n = 0;

    do {
        test_folder_empty(path.text);
        (void)rmdir(path.text);
    } while (open_with_fault(path.text, ++n, false));
    assert_int_equal(open_with_fault(path.text, SIZE_MAX, false), false);
    test_folder_empty(path.text);
    assert_int_equal(rmdir(path.text), 0);
    print_message("%zu calls failed in turn\n", n);
    assert_true(n > 15);
}

/* It may be a copy that was interrupted. */
static void
a_folder_that_cannot_be_looked_at_is_not_opened(void **state)
{
    struct world *world = *state;
    struct test_path mark = test_path(world->from, "incomplete");
    struct idem_store *store = NULL;
    struct idem_error err = {IDEM_OK, ""};

    close(open(mark.text, O_CREAT | O_WRONLY, 0600));
    arm("faccessat", 1, 0);
    assert_int_equal(
        test_try_open(world->from, &small, NULL, NULL, &store, &err),
        IDEM_ERR_UNAVAILABLE);
    disarm();
    assert_non_null(fault.fired);
    assert_trouble(&err, world->from);
}

/* What is said about a folder that cannot be used. */
static void
the_reason_says_what_to_do(void **state)
{
    static const struct {
        const char *name;
        size_t n;
        int error;
        enum idem_status status;
        const char *text;
    } cases[] = {
        {"mkdir", 1, ENOSPC, IDEM_ERR_FULL, "make room on that disk"},
        {"mkdir", 1, EDQUOT, IDEM_ERR_FULL, "make room on that disk"},
        {"mkdir", 1, EACCES, IDEM_ERR_UNAVAILABLE, "be able to write there"},
        {"mkdir", 1, EPERM, IDEM_ERR_UNAVAILABLE, "be able to write there"},
        {"mkdir", 1, EROFS, IDEM_ERR_UNAVAILABLE, "be able to write there"},
        {"mkdir", 1, EIO, IDEM_ERR_UNAVAILABLE, ": Input/output error"},
        {"openat64", 1, ENOTDIR, IDEM_ERR_UNAVAILABLE, "not a file"},
        {"flock", 1, ENOLCK, IDEM_ERR_UNAVAILABLE, "No locks available"},
        {"flock", 2, ENOLCK, IDEM_ERR_UNAVAILABLE, "No locks available"},
        {"geteuid", 1, 1, IDEM_ERR_UNAVAILABLE, "chown the folder"},
        {"geteuid", 2, 1, IDEM_ERR_UNAVAILABLE, "/lock: it belongs to another"},
        {"geteuid", 3, 1, IDEM_ERR_UNAVAILABLE, ".seg: it belongs to another"},
    };
    struct world *world = *state;

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct idem_store *store = NULL;
        struct idem_error err = {IDEM_OK, ""};

        arm(cases[i].name, cases[i].n, cases[i].error);
        (void)test_try_open(world->from, &small, NULL, NULL, &store, &err);
        disarm();
        if (err.status != cases[i].status || !strstr(err.text, cases[i].text))
            fail_msg("%s: %d, %s", cases[i].text, err.status, err.text);
        assert_null(store);
    }
    assert_has_round(world->from, 1);
}

/* The owner of the link could make it point to another folder. */
static void
a_link_of_another_user_is_not_followed(void **state)
{
    struct world *world = *state;
    struct test_path link = test_path(world->to, "link");
    struct idem_store *store = NULL;
    struct idem_error err = {IDEM_OK, ""};

    assert_int_equal(symlink(world->from, link.text), 0);
    assert_has_round(link.text, 1);
    if (geteuid() == 0) /* root's links are followed, so give it away */
        assert_int_equal(lchown(link.text, 4242, 4242), 0);
    else
        arm("geteuid", 1, 1);
    assert_int_equal(test_try_open(link.text, &small, NULL, NULL, &store, &err),
                     IDEM_ERR_UNAVAILABLE);
    disarm();
    assert_non_null(strstr(err.text, "symbolic link that belongs to user"));
}

static void
a_signal_does_not_end_opening(void **state)
{
    struct world *world = *state;
    struct idem_store *store;

    for (size_t n = 1; n <= 2; n++) {
        arm("flock", n, EINTR);
        store = test_open(world->from, &small);
        disarm();
        assert_non_null(fault.fired);
        test_close(store);
    }
}

static void
a_folder_in_use_is_refused_even_if_nobody_knows_by_whom(void **state)
{
    struct world *world = *state;
    struct idem_store *store = test_open(world->from, &small), *second;
    struct idem_error err = {IDEM_OK, ""};

    arm("openat64", 2, 0); /* of the file that has the number */
    assert_int_equal(
        test_try_open(world->from, &small, NULL, NULL, &second, &err),
        IDEM_ERR_UNAVAILABLE);
    disarm();
    assert_non_null(fault.fired);
    assert_non_null(strstr(err.text, "unknown"));
    test_close(store);
}

/* Then the room is taken when it is written. */
static void
a_file_system_that_reserves_no_room_is_fine(void **state)
{
    struct world *world = *state;
    struct idem_store *store;

    for (int threads = 0; threads < 2; threads++) {
        struct journal_tuning tuning = {.segment_len = 8192,
                                        .no_thread = threads == 0};

        test_folder_empty(world->to);
        arm("fallocate64", 1, EOPNOTSUPP);
        fault.for_good = true;
        store = test_open(world->to, &tuning);
        write_round(store, 0);
        write_round(store, 1);
        test_close(store);
        disarm();
        assert_true(fault.seen > 3);
        assert_has_round(world->to, 1);
    }
}

/* Some file systems open a file for writes past the page cache, and refuse the
 * writes. */
static void
a_refused_direct_write_is_done_through_the_cache(void **state)
{
    char *dir = test_folder(); /* on a disk, which can write so */
    struct journal_tuning tuning = {.segment_len = 65536, .no_thread = true};
    size_t works = 0;

    (void)state;
    for (size_t n = 1; n < 30; n++) {
        struct idem_store *store = NULL;
        struct idem_error err;
        uint64_t stored = 0;
        bool known = true;

        test_folder_empty(dir);
        arm("pwrite64", n, EINVAL);
        if (test_try_open(dir, &tuning, NULL, NULL, &store, &err) == IDEM_OK)
            known = write_new(store, &stored);
        idem__store_close(store);
        disarm();
        works += stored == NEW && fault.fired;
        store = test_open(dir, &tuning);
        for (uint64_t i = 0; i < NEW; i++) {
            if (known || i != stored)
                assert_int_equal(test_rev(store, IDS + i),
                                 i < stored ? i + 1 : 0);
        }
        test_close(store);
    }
    assert_true(works > 0);
    test_folder_drop(dir);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        T(a_copy_whose_call_fails_has_everything_or_says_so),
        T(a_later_copy_whose_call_fails_has_everything_or_says_so),
        T(an_interrupted_call_does_not_end_a_copy),
        T(a_copy_does_not_end_where_a_segment_is_missing_or_damaged),
        T(segments_that_are_removed_meanwhile_are_left_out),
        T(a_segment_that_gets_lost_meanwhile_ends_the_copy),
        T(a_segment_that_is_used_again_meanwhile_does_not_spoil_the_copy),
        T(a_check_whose_call_fails_does_not_miss_damage),
        T(a_check_whose_call_fails_sees_everything_or_says_so),
        T(a_journal_whose_call_fails_while_it_is_opened_loses_nothing),
        T(a_journal_whose_call_fails_while_it_is_made_can_be_made_again),
        T(a_journal_whose_call_fails_while_it_works_keeps_its_word),
        T(a_folder_that_cannot_be_looked_at_is_not_opened),
        T(the_reason_says_what_to_do),
        T(a_link_of_another_user_is_not_followed),
        T(a_signal_does_not_end_opening),
        T(a_folder_in_use_is_refused_even_if_nobody_knows_by_whom),
        T(a_file_system_that_reserves_no_room_is_fine),
        T(a_refused_direct_write_is_done_through_the_cache),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
