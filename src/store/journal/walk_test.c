/*
 * walk_test.c - tests how a segment is read entry by entry: where it stops,
 * what it finds behind a damaged place, and errors while it reads.
 *
 * The segment is in memory: no file, only a table of calls that reads from it.
 */
#include "walk.h"

#include "testing.h"

#include <errno.h>

#define SALT UINT64_C(0x1234567)
#define FIRST_BATCH 7
#define WINDOW (UINT64_C(1) << 20)

struct file {
    struct idem_io io;
    uint8_t *bytes;
    uint64_t len, room;
    size_t reads, fail_at; /* this read fails; 0: none */
    uint64_t longest;      /* bytes of one read */
    uint64_t read_to;      /* the highest offset that was asked for */
    size_t allocated;      /* before the test */
};

static ssize_t
f_pread(void *arg, int fd, void *data, size_t len, off_t at)
{
    struct file *file = arg;
    uint64_t from = (uint64_t)at;

    (void)fd;
    if (++file->reads == file->fail_at) {
        errno = EIO;
        return -1;
    }
    if (file->longest < len)
        file->longest = len;
    if (file->read_to < from + len)
        file->read_to = from + len;
    if (from >= file->len)
        return 0;
    if (len > file->len - from)
        len = (size_t)(file->len - from);
    memcpy(data, file->bytes + from, len);
    return (ssize_t)len;
}

static int
setup(void **state)
{
    size_t before = test_allocated();
    struct file *file = calloc(1, sizeof(*file));

    file->allocated = before;
    file->io = idem__system_io;
    file->io.pread = f_pread;
    file->io.arg = file;
    file->room = UINT64_C(8) << 20;
    file->bytes = calloc(1, file->room);
    file->len = SEGMENT_HEAD_LEN;
    *state = file;
    return 0;
}

static int
teardown(void **state)
{
    struct file *file = *state;
    size_t before = file->allocated;

    free(file->bytes);
    free(file);
    assert_in_range(test_allocated(), 0, before + 16384);
    return 0;
}

/* Add an entry with a body of this length; 0: a mark. Returns its place. */
static uint64_t
add(struct file *file, uint64_t batch, bool last, uint32_t body_len)
{
    struct entry_head head = {.body_len = body_len,
                              .kind = body_len ? ENTRY_RECORD : ENTRY_MARK,
                              .flags = last ? ENTRY_LAST : 0,
                              .batch = batch,
                              .time_us = (int64_t)batch * 1000,
                              .rev = body_len ? batch : 0};
    uint64_t at = file->len;

    assert_true(at + entry_len(body_len) <= file->room);
    memset(file->bytes + at + ENTRY_HEAD_LEN, (int)batch, body_len);
    idem__entry_put(&head, SALT, file->bytes + at);
    file->len += entry_len(body_len);
    return at;
}

static void
start(struct file *file, struct segment_walk *walk, uint64_t limit)
{
    const struct segment_head head = {
        .salt = SALT, .first_batch = FIRST_BATCH, .time_us = 5};

    file->reads = 0;
    file->longest = file->read_to = 0;
    idem__walk_init(walk, &file->io, 3, &head, limit);
    assert_int_equal(walk->at, SEGMENT_HEAD_LEN);
    assert_int_equal(walk->time_us, 5);
}

/* Read until it stops; the number of entries. */
static size_t
count(struct segment_walk *walk, enum walk_found *why)
{
    struct entry_head head;
    const uint8_t *bytes;
    size_t n = 0;

    while ((*why = idem__walk_next(walk, &head, &bytes)) == WALK_ENTRY) {
        n++;
        for (uint32_t i = 0; i < head.body_len; i++)
            if (bytes[ENTRY_HEAD_LEN + i] != (uint8_t)head.batch)
                fail_msg("entry %zu is wrong", n);
    }
    return n;
}

static void
all_entries_up_to_the_limit_are_read(void **state)
{
    struct file *file = *state;
    struct segment_walk walk;
    enum walk_found why;
    uint64_t last;

    add(file, 7, false, 100);
    add(file, 7, true, 200);
    add(file, 8, true, 300);
    last = add(file, 9, true, 0); /* a mark: only a head */
    start(file, &walk, file->len);
    assert_int_equal(count(&walk, &why), 4);
    assert_int_equal(why, WALK_STOP);
    assert_int_equal(walk.at, file->len);
    assert_int_equal(walk.batch, 10);
    assert_int_equal(walk.time_us, 9000);
    assert_int_equal(file->reads, 1); /* one window has it all */
    assert_int_equal(file->read_to, file->len);
    idem__walk_clear(&walk);
    assert_null(walk.window);
    assert_true(walk.room == 0 && walk.filled == 0);

    /* An entry that goes beyond the limit does not count, although it is in the
     * file. */
    for (uint64_t less = 1; less <= ENTRY_HEAD_LEN; less += 29) {
        start(file, &walk, file->len - less);
        assert_int_equal(count(&walk, &why), 3);
        assert_int_equal(why, WALK_STOP);
        assert_int_equal(walk.at, last);
        assert_int_equal(walk.batch, 9);
        assert_int_equal(walk.time_us, 8000);
        assert_true(file->read_to <= file->len - less);
        idem__walk_clear(&walk);
    }
    start(file, &walk, 20); /* before the first entry */
    assert_int_equal(count(&walk, &why), 0);
    assert_int_equal(why, WALK_STOP);
    idem__walk_clear(&walk);
}

static void
a_file_may_be_shorter_than_its_segment(void **state)
{
    struct file *file = *state;
    struct segment_walk walk;
    enum walk_found why;
    uint64_t at;
    bool found = true;

    add(file, 7, true, 100);
    at = add(file, 8, true, 500);
    for (uint64_t cut = 1; cut < file->len - at; cut += 83) {
        file->len -= cut;
        start(file, &walk, UINT64_C(1) << 16);
        assert_int_equal(count(&walk, &why), 1);
        assert_int_equal(why, WALK_STOP);
        assert_int_equal(walk.at, at);
        assert_int_equal(idem__walk_find(&walk, 0, &found), 0);
        assert_false(found);
        assert_int_equal(walk.at, at);
        idem__walk_clear(&walk);
        file->len += cut;
    }
}

/* Batches count up by one, after the entry that says it is the last. */
static void
a_batch_with_another_number_stops_it(void **state)
{
    static const uint64_t wrong[] = {6, 7, 9};
    struct file *file = *state;
    struct segment_walk walk;
    enum walk_found why;

    for (size_t i = 0; i < 3; i++) {
        uint64_t at;

        file->len = SEGMENT_HEAD_LEN;
        add(file, 7, false, 100);
        add(file, 7, true, 100);
        at = add(file, wrong[i], true, 100);
        start(file, &walk, file->len);
        assert_int_equal(count(&walk, &why), 2);
        assert_int_equal(why, WALK_STOP);
        assert_int_equal(walk.at, at);
        assert_int_equal(walk.batch, 8);
        assert_int_equal(walk.time_us, 7000);
        idem__walk_clear(&walk);
    }
    file->len = SEGMENT_HEAD_LEN;
    add(file, 7, false, 100);
    add(file, 8, true, 100); /* 7 is not over */
    start(file, &walk, file->len);
    assert_int_equal(count(&walk, &why), 1);
    idem__walk_clear(&walk);
}

static void
the_latest_time_counts(void **state)
{
    struct file *file = *state;
    const struct segment_head head = {
        .salt = SALT, .first_batch = FIRST_BATCH, .time_us = 7500};
    struct segment_walk walk;
    enum walk_found why;

    add(file, 7, true, 100); /* at 7000 */
    idem__walk_init(&walk, &file->io, 3, &head, file->len);
    assert_int_equal(count(&walk, &why), 1);
    assert_int_equal(walk.time_us, 7500);
    idem__walk_clear(&walk);
}

/* ---- windows ---- */

/* Entries that cross the end of a window, and one that is longer than it. */
static void
a_long_segment_is_read_in_windows(void **state)
{
    struct file *file = *state;
    struct segment_walk walk;
    enum walk_found why;
    uint64_t batch = FIRST_BATCH;

    for (; file->len < UINT64_C(3) << 20; batch++)
        add(file, batch, true, 1000 + (uint32_t)(batch * 97 % 5000));
    start(file, &walk, file->len);
    assert_int_equal(count(&walk, &why), batch - FIRST_BATCH);
    assert_int_equal(why, WALK_STOP);
    assert_int_equal(walk.at, file->len);
    assert_in_range(file->reads, 3, 4);
    assert_int_equal(file->longest, WINDOW);
    assert_int_equal(walk.room, WINDOW);
    assert_int_equal(file->read_to, file->len);
    idem__walk_clear(&walk);

    add(file, batch++, true, (uint32_t)WINDOW + 100);
    add(file, batch++, true, 50);
    start(file, &walk, file->len);
    assert_int_equal(count(&walk, &why), batch - FIRST_BATCH);
    assert_int_equal(walk.at, file->len);
    assert_in_range(file->reads, 4, 7);
    idem__walk_clear(&walk);
}

/* A short segment needs a small window. */
static void
a_window_is_no_longer_than_the_segment(void **state)
{
    struct file *file = *state;
    struct segment_walk walk;
    enum walk_found why;

    add(file, 7, true, 100);
    start(file, &walk, file->len);
    assert_int_equal(count(&walk, &why), 1);
    assert_int_equal(walk.room, file->len);
    assert_int_equal(file->longest, file->len - SEGMENT_HEAD_LEN);
    idem__walk_clear(&walk);
}

/* ---- what follows a damaged place ---- */

static void
the_next_valid_entry_is_found(void **state)
{
    struct file *file = *state;
    struct segment_walk walk;
    enum walk_found why;
    uint64_t damaged, same, later;
    bool found = false;

    add(file, 7, true, 100);
    damaged = add(file, 8, false, 100);
    same = add(file, 8, true, 100);
    later = add(file, 9, true, 0);
    file->bytes[damaged + 90] ^= 1;
    start(file, &walk, file->len);
    assert_int_equal(count(&walk, &why), 1);
    assert_int_equal(walk.at, damaged);

    assert_int_equal(idem__walk_find(&walk, 10, &found), 0);
    assert_false(found);
    assert_int_equal(walk.at, damaged);
    assert_int_equal(walk.batch, 8);

    assert_int_equal(idem__walk_find(&walk, 9, &found), 0);
    assert_true(found);
    assert_int_equal(walk.at, later);
    assert_int_equal(walk.batch, 9);
    assert_int_equal(count(&walk, &why), 1);

    walk.at = damaged;
    walk.batch = 8;
    assert_int_equal(idem__walk_find(&walk, 0, &found), 0);
    assert_true(found);
    assert_int_equal(walk.at, same);
    assert_int_equal(walk.batch, 8);
    assert_int_equal(count(&walk, &why), 2);
    assert_int_equal(walk.at, file->len);
    assert_int_equal(file->reads, 1);

    walk.at = file->len; /* nothing is left */
    assert_int_equal(idem__walk_find(&walk, 0, &found), 0);
    assert_false(found);
    idem__walk_clear(&walk);
}

/* The head looks right, the body does not; and an entry that goes beyond the
 * limit. */
static void
a_head_alone_is_not_found(void **state)
{
    struct file *file = *state;
    struct segment_walk walk;
    uint64_t head_only, whole;
    bool found;

    head_only = add(file, 8, true, 100);
    whole = add(file, 9, true, 100);
    file->bytes[head_only + ENTRY_HEAD_LEN + 3] ^= 1;
    start(file, &walk, file->len);
    assert_int_equal(idem__walk_find(&walk, 0, &found), 0);
    assert_true(found);
    assert_int_equal(walk.at, whole);
    assert_int_equal(file->reads, 1);
    idem__walk_clear(&walk);

    start(file, &walk, file->len - 8);
    assert_int_equal(idem__walk_find(&walk, 0, &found), 0);
    assert_false(found);
    assert_true(file->read_to <= file->len - 8);
    idem__walk_clear(&walk);
}

/* Most of the room behind the last batch is zeros. They are skipped, up to
 * each place where an entry may begin. */
static void
it_is_found_behind_zeros(void **state)
{
    struct file *file = *state;

    for (uint64_t back = 0; back < 2 * ENTRY_HEAD_LEN; back += ENTRY_ALIGN) {
        struct segment_walk walk;
        uint64_t at;
        bool found;

        memset(file->bytes + SEGMENT_HEAD_LEN, 0, 2 * WINDOW);
        file->len = SEGMENT_HEAD_LEN + WINDOW - back;
        at = add(file, 8, true, 300);
        start(file, &walk, file->len);
        assert_int_equal(idem__walk_find(&walk, 0, &found), 0);
        assert_true(found);
        assert_int_equal(walk.at, at);
        idem__walk_clear(&walk);
    }
}

static void
it_is_found_far_away(void **state)
{
    struct file *file = *state;
    struct segment_walk walk;
    uint64_t at;
    bool found;

    memset(file->bytes + SEGMENT_HEAD_LEN, 2, UINT64_C(5) << 19);
    file->len = (UINT64_C(5) << 19) - 24; /* no multiple of the window */
    at = add(file, 8, true, 300);
    start(file, &walk, file->len);
    assert_int_equal(idem__walk_find(&walk, 0, &found), 0);
    assert_true(found);
    assert_int_equal(walk.at, at);
    assert_in_range(file->reads, 3, 4);
    idem__walk_clear(&walk);
}

/* ---- errors ---- */

/* Each read fails once. The walk says so, and goes on when it is asked again:
 * no entry is skipped. */
static void
a_failed_read_is_an_error_and_no_end(void **state)
{
    struct file *file = *state;
    struct segment_walk walk;
    enum walk_found why;
    uint64_t batch = FIRST_BATCH;

    while (file->len < UINT64_C(5) << 19)
        add(file, batch++, true, 3000);
    add(file, batch++, true, (uint32_t)WINDOW + 5000);
    for (size_t n = 1; n <= 4; n++) {
        size_t before;

        start(file, &walk, file->len);
        file->fail_at = n;
        errno = 0;
        before = count(&walk, &why);
        assert_int_equal(why, WALK_ERROR);
        assert_int_equal(errno, EIO);
        assert_true(before < batch - FIRST_BATCH);
        assert_int_equal(walk.batch, FIRST_BATCH + before);
        assert_int_equal(before + count(&walk, &why), batch - FIRST_BATCH);
        assert_int_equal(why, WALK_STOP);
        assert_int_equal(walk.at, file->len);
        idem__walk_clear(&walk);
    }
}

static void
a_failed_read_of_a_search_is_an_error(void **state)
{
    struct file *file = *state;
    struct segment_walk walk;
    bool found = true;

    memset(file->bytes + SEGMENT_HEAD_LEN, 2, UINT64_C(3) << 19);
    file->len = UINT64_C(3) << 19;
    add(file, 8, true, (uint32_t)WINDOW + 5000);
    for (size_t n = 1; n <= 3; n++) { /* the last one reads the long entry */
        start(file, &walk, file->len);
        file->fail_at = n;
        assert_int_equal(idem__walk_find(&walk, 0, &found), EIO);
        assert_false(found);
        assert_int_equal(walk.at, SEGMENT_HEAD_LEN);
        idem__walk_clear(&walk);
    }
    file->fail_at = 0;
    start(file, &walk, file->len);
    assert_int_equal(idem__walk_find(&walk, 0, &found), 0);
    assert_true(found);
    idem__walk_clear(&walk);
}

#define T(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int
main(void)
{
    const struct CMUnitTest tests[] = {
        T(all_entries_up_to_the_limit_are_read),
        T(a_file_may_be_shorter_than_its_segment),
        T(a_batch_with_another_number_stops_it),
        T(the_latest_time_counts),
        T(a_long_segment_is_read_in_windows),
        T(a_window_is_no_longer_than_the_segment),
        T(the_next_valid_entry_is_found),
        T(a_head_alone_is_not_found),
        T(it_is_found_behind_zeros),
        T(it_is_found_far_away),
        T(a_failed_read_is_an_error_and_no_end),
        T(a_failed_read_of_a_search_is_an_error),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
