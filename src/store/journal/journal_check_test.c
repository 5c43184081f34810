/*
 * journal_check_test.c - tests `idem journal check` and `dump`: on a running
 * journal and on a damaged one, without changing anything.
 */
#include "model.h"

#include "journal_check.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <xxhash.h>

static void
put(struct idem_store *store, uint64_t id, uint64_t rev, uint64_t expected,
    enum idem_state to)
{
    struct test_record t;

    test_make(&t, id, to, rev, 100);
    t.record.expires = INT64_C(4000000000000);
    assert_int_equal(test_swap(store, &t, expected, false), IDEM_SWAP_STORED);
}

/* Names, lengths and bytes of everything in a folder. */
static uint64_t
fingerprint(const char *dir)
{
    DIR *folder = opendir(dir);
    struct dirent *file;
    uint64_t sum = 0;
    static uint8_t bytes[1 << 20];

    while ((file = readdir(folder))) {
        struct test_path path = test_path(dir, file->d_name);
        int fd = open(path.text, O_RDONLY);
        ssize_t n, total = 0;
        uint64_t one = XXH3_64bits(file->d_name, strlen(file->d_name));

        while (file->d_name[0] != '.' &&
               (n = read(fd, bytes, sizeof(bytes))) > 0) {
            one = XXH3_64bits_withSeed(bytes, (size_t)n, one);
            total += n;
        }
        sum += one * 31 + (uint64_t)total;
        close(fd);
    }
    closedir(folder);
    return sum;
}

struct seen {
    size_t live, all, damaged;
    uint64_t segment, at;
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
    struct seen *seen = arg;

    (void)what;
    seen->damaged++;
    seen->segment = segment;
    seen->at = at;
}

static void
it_counts_what_is_there_and_changes_nothing(void **state)
{
    struct idem_store *store = test_open(*state, NULL);
    struct journal_report report;
    struct seen seen = {0};
    uint64_t before;

    for (uint64_t id = 0; id < 50; id++)
        put(store, id, id + 1, 0, IDEM_STATE_EXECUTING);
    for (uint64_t id = 0; id < 30; id++)
        put(store, id, id + 101, id + 1, IDEM_STATE_SUCCEEDED);
    before = fingerprint(*state); /* while it is open */
    assert_int_equal(idem__journal_check(*state, NULL, see, see_damage, &seen,
                                         &report, NULL),
                     IDEM_OK);
    assert_true(before == fingerprint(*state));
    assert_int_equal(report.damaged, 0);
    assert_int_equal(report.live, 50);
    assert_int_equal(report.executing, 20);
    assert_int_equal(report.records, 80);
    assert_int_equal(seen.live, 50);
    assert_int_equal(seen.all, 80);
    test_close(store);
    before = fingerprint(*state); /* and after */
    assert_int_equal(
        idem__journal_check(*state, NULL, NULL, NULL, NULL, &report, NULL),
        IDEM_OK);
    assert_int_equal(report.live, 50);
    assert_true(before == fingerprint(*state));
}

static void
it_finds_each_damaged_place(void **state)
{
    struct idem_store *store = test_open(*state, NULL);
    struct test_path path = test_segment_path(*state, 1, "seg");
    struct journal_report report;
    struct idem_error err;
    uint64_t end;
    int fd;

    for (uint64_t id = 0; id < 20; id++)
        put(store, id, id + 1, 0, IDEM_STATE_SUCCEEDED);
    end = ((struct journal *)store)->segments[0].end;
    test_close(store);
    fd = open(path.text, O_RDWR);
    for (uint64_t at = SEGMENT_HEAD_LEN; at < end; at += 61) {
        struct seen seen = {0};
        uint8_t byte, bad;

        assert_int_equal(pread(fd, &byte, 1, (off_t)at), 1);
        bad = byte ^ 0x80;
        assert_int_equal(pwrite(fd, &bad, 1, (off_t)at), 1);
        assert_int_equal(idem__journal_check(*state, NULL, see, see_damage,
                                             &seen, &report, &err),
                         IDEM_OK);
        assert_int_equal(report.damaged, 1);
        assert_int_equal(seen.segment, 1);
        assert_true(seen.at <= at && at - seen.at < 400);
        assert_int_equal(seen.live, 19);
        assert_int_equal(pwrite(fd, &byte, 1, (off_t)at), 1);
    }
    close(fd);
    assert_int_equal(
        idem__journal_check("/", NULL, NULL, NULL, NULL, &report, &err),
        IDEM_ERR_INVALID);
}

/* ---- entries whose checksum is right, but not what they say ---------------
 */

enum lie {
    LIE_NONE,
    LIE_REV,
    LIE_DROP,
    LIE_OLD_DROP,
    LIE_FLAGS,
    LIE_KEY,
    LIE_BODY,
};

/* Write the entry of this id again, with a right checksum. */
static void
write_lie(const char *dir, const struct segment_head *segment, uint64_t id,
          enum lie lie)
{
    struct test_path path = test_segment_path(dir, 1, "seg");
    static uint8_t bytes[65536];
    int fd = open(path.text, O_RDWR);
    ssize_t len = pread(fd, bytes, sizeof(bytes), 0);
    uint64_t at = SEGMENT_HEAD_LEN, need;
    struct entry_head head;

    for (;; at += entry_len(head.body_len)) {
        assert_int_equal(idem__entry_get(bytes + at, (uint64_t)len - at,
                                         segment->salt, &head, &need),
                         ENTRY_FINE);
        if (head.rev == id + 1)
            break;
    }
    head.rev += lie == LIE_REV;
    head.drop_at += lie == LIE_DROP;
    if (lie == LIE_OLD_DROP)
        head.drop_at = INT64_C(4000000000000); /* it expires then */
    head.flags ^= lie == LIE_FLAGS ? ENTRY_EXECUTING : 0;
    head.key[5] ^= lie == LIE_KEY;
    bytes[at + ENTRY_HEAD_LEN] ^= lie == LIE_BODY ? 0xff : 0;
    idem__entry_put(&head, segment->salt, bytes + at);
    assert_int_equal(pwrite(fd, bytes, (size_t)len, 0), len);
    close(fd);
}

static void
see_what(void *arg, uint64_t segment, uint64_t at, const char *what)
{
    (void)segment;
    (void)at;
    snprintf(arg, 100, "%s", what);
}

static void
an_entry_that_is_not_of_its_record_is_reported(void **state)
{
    static const struct {
        enum lie lie;
        const char *said;
    } cases[] = {
        {LIE_NONE, ""},
        {LIE_OLD_DROP, ""}, /* idem before 0.9 wrote it so */
        {LIE_REV, "the record and its entry disagree"},
        {LIE_DROP, "the record and its entry disagree"},
        {LIE_FLAGS, "the record and its entry disagree"},
        {LIE_KEY, "the record is not of its key"},
        {LIE_BODY, "the record cannot be read"},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct idem_store *store;
        struct journal_report report;
        struct segment_head segment;
        char said[100] = "";

        test_folder_empty(*state);
        store = test_open(*state, NULL);
        for (uint64_t id = 0; id < 5; id++)
            put(store, id, id + 1, 0, IDEM_STATE_SUCCEEDED);
        segment = ((struct journal *)store)->segments[0].head;
        test_close(store);
        write_lie(*state, &segment, 3, cases[i].lie);
        assert_int_equal(idem__journal_check(*state, NULL, NULL, see_what, said,
                                             &report, NULL),
                         IDEM_OK);
        assert_string_equal(said, cases[i].said);
        assert_int_equal(report.damaged, said[0] != 0);
        assert_int_equal(report.records, 5);
    }
}

static bool
see_one(void *arg, const struct journal_sight *sight)
{
    (void)sight;
    return ++*(int *)arg < 3;
}

static void
a_missing_segment_is_reported_and_the_others_are_read(void **state)
{
    static const struct journal_tuning small = {.segment_len = 8192,
                                                .no_thread = true};
    struct idem_store *store = test_open(*state, &small);
    struct test_path path = test_segment_path(*state, 2, "seg");
    struct journal_report report;
    char said[100] = "";
    int seen = 0, fd;

    for (uint64_t id = 0; id < 80; id++)
        put(store, id, id + 1, 0, IDEM_STATE_SUCCEEDED);
    assert_true(((struct journal *)store)->segment_count > 2);
    test_close(store);
    assert_int_equal(
        idem__journal_check(*state, NULL, see_one, NULL, &seen, &report, NULL),
        IDEM_OK);
    assert_int_equal(seen, 3); /* it was told to stop */
    assert_int_equal(report.live, 80);

    fd = open(path.text, O_RDWR);
    assert_int_equal(pwrite(fd, "x", 1, 9), 1);
    close(fd);
    assert_int_equal(
        idem__journal_check(*state, NULL, NULL, see_what, said, &report, NULL),
        IDEM_OK);
    assert_true(report.damaged >= 1 && report.live < 80 && report.live > 20);
    assert_int_equal(unlink(path.text), 0);
    assert_int_equal(
        idem__journal_check(*state, NULL, NULL, see_what, said, &report, NULL),
        IDEM_OK);
    assert_string_equal(said, "the segment is missing");
    assert_int_equal(report.damaged, 1);
    assert_true(report.live < 80 && report.live > 20);
}

/* A child writes, cleans and changes segments as fast as it can; a check
 * meanwhile must never report damage. */
static void
a_running_journal_never_looks_damaged(void **state)
{
    struct journal_tuning tuning = {.segment_len = 32768};
    size_t looks = test_size(40, 150, 2000);
    struct model model;
    pid_t pid;
    int ends[2];
    char byte;

    model_init(&model, 3);
    model.now_ms = (int64_t)time(NULL) * 1000;
    assert_int_equal(pipe(ends), 0);
    fflush(stdout);
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        struct idem_store *store = test_open(*state, &tuning);
        struct idem_arena arena = {NULL, 0};
        struct model_swaps s;

        for (size_t i = 0;; i++) {
            model_batch(&model, &s);
            (void)store->type->swap(store, s.swaps, s.count, &arena, NULL);
            model_learn(&model, &s);
            test_tend(store);
            if (i == 20 && write(ends[1], "x", 1) != 1)
                _exit(1);
        }
    }
    assert_int_equal(read(ends[0], &byte, 1), 1);
    for (size_t i = 0; i < looks; i++) {
        struct journal_report report;
        struct idem_error err = {0};
        struct seen seen = {0};
        enum idem_status status = idem__journal_check(
            *state, NULL, see, see_damage, &seen, &report, &err);

        if (status != IDEM_OK || report.damaged > 0) {
            kill(pid, SIGKILL);
            fail_msg("look %zu: %s, %zu damaged, segment %llu at %llu", i,
                     err.text, (size_t)report.damaged,
                     (unsigned long long)seen.segment,
                     (unsigned long long)seen.at);
        }
    }
    kill(pid, SIGKILL);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    close(ends[0]);
    close(ends[1]);
}

/* The time at which a record may be dropped, where it may not: idem never
 * writes that. */
static void
a_claim_with_a_time_to_drop_it_is_reported(void **state)
{
    struct idem_store *store = test_open(*state, NULL);
    struct journal_report report;
    struct segment_head segment;
    char said[100] = "";

    for (uint64_t id = 0; id < 5; id++)
        put(store, id, id + 1, 0, IDEM_STATE_EXECUTING);
    segment = ((struct journal *)store)->segments[0].head;
    test_close(store);
    write_lie(*state, &segment, 3, LIE_DROP);
    assert_int_equal(
        idem__journal_check(*state, NULL, NULL, see_what, said, &report, NULL),
        IDEM_OK);
    assert_string_equal(said, "the record and its entry disagree");
    assert_int_equal(report.damaged, 1);
}

/* ---- system calls during a check ------------------------------------------
 */

struct hooks {
    struct idem_io io;
    const char *dir;
    int opens, reads; /* calls until then; they count down */
    int error;        /* of the call at 0, and of opens after that */
    bool removes;     /* at 0, the first segment goes */
    uint8_t repairs;  /* at 0, this byte is written at `at` */
    uint64_t at;
};

static void
happen(struct hooks *hooks)
{
    struct test_path path = test_segment_path(hooks->dir, 1, "seg");

    if (hooks->removes)
        (void)unlink(path.text);
    if (hooks->repairs) {
        int fd = open(path.text, O_WRONLY);

        assert_int_equal(pwrite(fd, &hooks->repairs, 1, (off_t)hooks->at), 1);
        close(fd);
    }
}

static int
hooked_open(void *arg, int at, const char *name, int flags, mode_t mode)
{
    struct hooks *hooks = arg;
    bool segment = strstr(name, ".seg") != NULL;

    if (segment && --hooks->opens == 0)
        happen(hooks);
    if (segment && hooks->opens < 0 && hooks->error) {
        errno = hooks->error;
        return -1;
    }
    return idem__system_io.open(NULL, at, name, flags, mode);
}

static ssize_t
hooked_pread(void *arg, int fd, void *data, size_t len, off_t at)
{
    struct hooks *hooks = arg;

    if (--hooks->reads == 0) {
        happen(hooks);
        if (hooks->error) {
            errno = hooks->error;
            return -1;
        }
    }
    return idem__system_io.pread(NULL, fd, data, len, at);
}

static enum idem_status
check_with(struct hooks *hooks, const char *dir, struct journal_report *report,
           struct idem_error *err)
{
    hooks->io = idem__system_io;
    hooks->io.open = hooked_open;
    hooks->io.pread = hooked_pread;
    hooks->io.arg = hooks;
    hooks->dir = dir;
    return idem__journal_check(dir, &hooks->io, NULL, NULL, NULL, report, err);
}

/* Several segments; there is damage in the first. Returns where, and the byte
 * that belongs there. */
static uint64_t
make_damaged(const char *dir, uint8_t *right)
{
    static const struct journal_tuning small = {.segment_len = 8192,
                                                .no_thread = true};
    struct test_path path = test_segment_path(dir, 1, "seg");
    struct idem_store *store;
    uint64_t at = SEGMENT_HEAD_LEN + 700;
    uint8_t wrong;
    int fd;

    store = test_open(dir, &small);
    for (uint64_t id = 0; id < 80; id++)
        put(store, id, id + 1, 0, IDEM_STATE_SUCCEEDED);
    assert_true(((struct journal *)store)->segment_count > 2);
    test_close(store);
    fd = open(path.text, O_RDWR);
    do
        assert_int_equal(pread(fd, right, 1, (off_t)++at), 1);
    while (*right == 0);
    wrong = *right ^ 0x80;
    assert_int_equal(pwrite(fd, &wrong, 1, (off_t)at), 1);
    close(fd);
    return at;
}

static void
a_segment_that_goes_before_it_is_opened_is_not_missed(void **state)
{
    struct hooks hooks = {.opens = 1, .removes = true};
    struct journal_report report;
    uint8_t right;

    (void)make_damaged(*state, &right);
    assert_int_equal(check_with(&hooks, *state, &report, NULL), IDEM_OK);
    assert_int_equal(report.damaged, 0);
    assert_int_equal(report.first_segment, 2);
    assert_true(report.live > 20 && report.live < 80);
}

static void
what_is_wrong_in_a_segment_that_is_removed_meanwhile_is_no_damage(void **state)
{
    char *original = test_fast_folder(), *dir = test_fast_folder();
    struct journal_report report;
    int removed = 0, reported = 0;
    uint8_t right;

    (void)state;
    (void)make_damaged(original, &right);
    for (int n = 1; n < 60; n++) {
        struct hooks hooks = {.reads = n, .removes = true};

        test_folder_copy(original, dir);
        assert_int_equal(check_with(&hooks, dir, &report, NULL), IDEM_OK);
        assert_in_range(report.damaged, 0, 1);
        removed += report.damaged == 0;
        reported += report.damaged == 1;
        if (hooks.reads > 0)
            break; /* there were fewer */
    }
    assert_true(removed > 1 && reported > 0);
    test_folder_drop(original);
    test_folder_drop(dir);
}

static void
an_entry_that_becomes_whole_during_the_check_is_no_damage(void **state)
{
    char *original = test_fast_folder(), *dir = test_fast_folder();
    struct journal_report report;
    int whole = 0, reported = 0;
    uint8_t right;
    uint64_t at = make_damaged(original, &right);

    (void)state;
    for (int n = 1; n < 60; n++) {
        struct hooks hooks = {.reads = n, .repairs = right, .at = at};

        test_folder_copy(original, dir);
        assert_int_equal(check_with(&hooks, dir, &report, NULL), IDEM_OK);
        assert_in_range(report.damaged, 0, 1);
        whole += report.damaged == 0 && report.live == 80;
        reported += report.damaged == 1;
        if (hooks.reads > 0)
            break;
    }
    assert_true(whole > 1 && reported > 0);
    test_folder_drop(original);
    test_folder_drop(dir);
}

static void
a_call_that_fails_during_the_check_is_not_called_damage(void **state)
{
    struct journal_report report;
    char *original = test_fast_folder(), *dir = test_fast_folder();
    struct idem_error err;
    uint8_t right;
    int n;

    (void)state;
    (void)make_damaged(original, &right);
    for (n = 1; n < 100; n++) {
        struct hooks hooks = {.reads = n, .error = EIO};

        test_folder_copy(original, dir);
        if (check_with(&hooks, dir, &report, &err) == IDEM_OK)
            break; /* the files of saved indexes are read last */
        assert_int_equal(err.status, IDEM_ERR_UNAVAILABLE);
        assert_non_null(strstr(err.text, strerror(EIO)));
        assert_int_equal(report.damaged, 0);
    }
    assert_true(n > 5);
    for (n = 1; n < 100; n++) {
        struct hooks hooks = {.opens = n, .error = EMFILE};

        test_folder_copy(original, dir);
        if (check_with(&hooks, dir, &report, &err) == IDEM_OK)
            break;
        assert_int_equal(err.status, IDEM_ERR_UNAVAILABLE);
        assert_int_equal(report.damaged, 0);
    }
    assert_true(n > 3);
    test_folder_drop(original);
    test_folder_drop(dir);
}

/* ---- keys that are alike --------------------------------------------------
 */

/* As if the digests of all keys began with the same eight bytes. */
static void
records_whose_keys_begin_alike_are_counted_apart(void **state)
{
    enum { COUNT = 8 };
    struct idem_store *store = test_open(*state, NULL);
    struct journal_report report;
    struct seen seen = {0};

    for (uint64_t round = 0; round < 3; round++) {
        for (uint64_t id = 0; id < COUNT; id++) {
            struct test_record t;

            test_make(&t, id, IDEM_STATE_SUCCEEDED, round * 100 + id + 1, 50);
            memset(t.key, 7, 8);
            assert_int_equal(test_swap(store, &t,
                                       round ? (round - 1) * 100 + id + 1 : 0,
                                       round == 2 && id < 3),
                             IDEM_SWAP_STORED);
        }
    }
    test_close(store);
    assert_int_equal(idem__journal_check(*state, NULL, see, see_damage, &seen,
                                         &report, NULL),
                     IDEM_OK);
    assert_int_equal(report.live, COUNT - 3);
    assert_int_equal(seen.live, COUNT - 3);
    assert_int_equal(report.deletes, 3);
    /* No key of a record begins so. */
    assert_int_equal(report.damaged, 3 * COUNT - 3);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
#define T(name)                                                                \
    cmocka_unit_test_setup_teardown(name, test_folder_setup,                   \
                                    test_folder_teardown)
        T(it_counts_what_is_there_and_changes_nothing),
        T(it_finds_each_damaged_place),
        T(an_entry_that_is_not_of_its_record_is_reported),
        T(a_missing_segment_is_reported_and_the_others_are_read),
        T(a_running_journal_never_looks_damaged),
        T(a_claim_with_a_time_to_drop_it_is_reported),
        T(a_segment_that_goes_before_it_is_opened_is_not_missed),
        T(what_is_wrong_in_a_segment_that_is_removed_meanwhile_is_no_damage),
        T(an_entry_that_becomes_whole_during_the_check_is_no_damage),
        T(a_call_that_fails_during_the_check_is_not_called_damage),
        T(records_whose_keys_begin_alike_are_counted_apart),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
