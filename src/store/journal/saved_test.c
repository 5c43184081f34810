/*
 * saved_test.c - tests saved index files: how rows are sorted into slices, what
 * is not accepted although its checksums are right, and the rows of the segment
 * that is being written.
 */
#include "testing.h"

#include "../../base/le.h"

#include <errno.h>
#include <xxhash.h>

#define SALT 99
#define SUM_AT 80 /* of the head's checksum */

struct world {
    char *dir;
    size_t files; /* that are open in this process */
    struct idem_io io;
    struct journal_tuning tuning;
    bool is_index[1024];       /* by fd */
    size_t writes, fail_write; /* to saved indexes; this one fails */
    size_t reads, fail_read;
    uint64_t longest; /* bytes of one write */
    bool short_read;  /* instead of an error: nothing is there */
    size_t segment_reads;
    bool deny; /* saved indexes cannot be opened */
    size_t
        change_after; /* so many reads, all rows have the last tag; 0: none */
};

static bool
names_index(const char *name)
{
    size_t len = strlen(name);

    return len > 4 && strcmp(name + len - 4, ".idx") == 0;
}

static int
w_open(void *arg, int at, const char *name, int flags, mode_t mode)
{
    struct world *world = arg;
    int fd;

    if (world->deny && names_index(name)) {
        errno = EACCES;
        return -1;
    }
    fd = openat(at, name, flags, mode);
    if (fd >= 0)
        world->is_index[fd % 1024] = names_index(name);
    return fd;
}

/* No file is closed twice: another one may have its number by then. */
static int
w_close(void *arg, int fd)
{
    (void)arg;
    assert_int_equal(close(fd), 0);
    return 0;
}

static ssize_t
w_pwrite(void *arg, int fd, const void *data, size_t len, off_t at)
{
    struct world *world = arg;

    if (world->is_index[fd % 1024]) {
        if (world->longest < len)
            world->longest = len;
        if (++world->writes == world->fail_write) {
            errno = ENOSPC;
            return -1;
        }
    }
    /* Nothing is written to a file that is not open. */
    assert_int_equal(pwrite(fd, data, len, at), len);
    return (ssize_t)len;
}

static ssize_t
w_pread(void *arg, int fd, void *data, size_t len, off_t at)
{
    struct world *world = arg;

    world->segment_reads += !world->is_index[fd % 1024];
    if (world->is_index[fd % 1024] && ++world->reads == world->fail_read) {
        errno = EIO;
        return world->short_read ? 0 : -1;
    }
    if (world->change_after && world->reads > world->change_after) {
        memset(data, 0xFF, len);
        return (ssize_t)len;
    }
    return pread(fd, data, len, at);
}

static int
w_sync(void *arg, int fd)
{
    (void)arg;
    (void)fd;
    return 0;
}

static int
setup(void **state)
{
    struct world *world = calloc(1, sizeof(*world));

    world->files = test_open_files();
    world->dir = test_fast_folder();
    world->io = idem__system_io;
    world->io.open = w_open;
    world->io.close = w_close;
    world->io.pread = w_pread;
    world->io.pwrite = w_pwrite;
    world->io.fsync = world->io.fdatasync = w_sync;
    world->io.arg = world;
    world->tuning = (struct journal_tuning){
        .io = &world->io, .segment_len = UINT64_C(16) << 20, .no_thread = true};
    *state = world;
    return 0;
}

static int
teardown(void **state)
{
    struct world *world = *state;

    assert_int_equal(test_open_files(), world->files);
    test_folder_drop(world->dir);
    free(world);
    return 0;
}

/* ---- the file ---- */

/* A row whose tag is spread over all slices. */
static struct row
row_of(uint64_t n)
{
    return (struct row){.tag = n * UINT64_C(0x9E3779B97F4A7C15),
                        .place = (uint32_t)(8 + n * 20),
                        .size = 11 + (uint32_t)(n % 9),
                        .drop_s = (uint32_t)n + 5,
                        .old_back = (uint32_t)n % 3,
                        .old_place = (uint32_t)n + 70};
}

/* A saved index of `count` rows in memory, owned by the caller. */
static uint8_t *
make(uint64_t count, struct saved_head *head, size_t *len)
{
    uint8_t *rows = malloc((size_t)(count + 1) * SAVED_ROW_LEN);
    uint8_t *bytes;

    for (uint64_t n = 0; n < count; n++) {
        struct row row = row_of(n);

        idem__saved_put_row(&row, rows + n * SAVED_ROW_LEN);
    }
    *head = (struct saved_head){.id = 4,
                                .salt = SALT,
                                .end = SEGMENT_HEAD_LEN + (count + 2) * 160,
                                .next_batch = 55,
                                .time_us = 66,
                                .rows = count};
    *len = idem__saved_plan(head);
    bytes = malloc(*len);
    assert_int_equal(idem__saved_make(&idem__system_io, head, rows, -1, bytes),
                     0);
    free(rows);
    return bytes;
}

static struct segment
segment_of(const struct saved_head *head)
{
    return (struct segment){.head = {.id = head->id, .salt = head->salt},
                            .file_len = head->end};
}

static bool
is_right(const uint8_t *bytes, size_t len, const struct segment *segment)
{
    struct saved_head head;

    return idem__saved_check(bytes, len, segment, &head);
}

/* A slice has 16 rows or fewer on average, in the order of their entries. */
static void
rows_are_sorted_into_slices(void **state)
{
    static const uint64_t counts[] = {0,  1,   15,   16,    17,    32,    34,
                                      64, 513, 5000, 12288, 20000, 300000};
    static const uint32_t bits[] = {0, 0, 0, 0, 1, 1, 2, 2, 5, 9, 10, 11, 14};

    (void)state;
    for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
        struct saved_head head, again;
        struct segment segment;
        size_t len;
        uint8_t *bytes = make(counts[i], &head, &len);
        uint64_t seen = 0;

        segment = segment_of(&head);
        assert_int_equal(head.bits, bits[i]);
        assert_int_equal(len, SAVED_HEAD_LEN + (SAVED_SLICE_LEN << bits[i]) +
                                  SAVED_ROW_LEN * counts[i]);
        assert_true(idem__saved_check(bytes, len, &segment, &again));
        assert_true(again.id == 4 && again.salt == SALT);
        assert_true(again.next_batch == 55 && again.time_us == 66);
        assert_true(again.end == head.end && again.rows == counts[i]);
        assert_true(again.sum == head.sum && again.bits == head.bits);
        assert_int_equal(idem__saved_first(bytes, &head, 0), 0);
        assert_int_equal(
            idem__saved_first(bytes, &head, UINT64_C(1) << head.bits),
            counts[i]);
        for (uint64_t slice = 0; slice < UINT64_C(1) << head.bits; slice++) {
            uint64_t first = idem__saved_first(bytes, &head, slice);
            uint64_t next = idem__saved_first(bytes, &head, slice + 1);
            uint32_t last = 0;

            assert_int_equal(first, seen);
            for (uint64_t n = first; n < next; n++, seen++) {
                const uint8_t *at =
                    bytes + saved_rows_at(&head) + n * SAVED_ROW_LEN;
                uint8_t same[SAVED_ROW_LEN];
                struct row row, wanted;

                assert_true(idem__saved_row(at, &head, &row));
                wanted = row_of((row.place - 8) / 20);
                idem__saved_put_row(&wanted, same);
                assert_memory_equal(at, same, sizeof(same));
                idem__saved_put_row(&row, same);
                assert_memory_equal(at, same, sizeof(same));
                assert_int_equal(tag_slice(row.tag, head.bits), slice);
                assert_true(row.place > last);
                last = row.place;
            }
        }
        assert_int_equal(seen, counts[i]);
        free(bytes);
    }
}

/* Rows in a file give the same bytes as rows in memory. The file is read in
 * parts; each of these reads fails once. */
static void
rows_in_a_file_are_sorted_likewise(void **state)
{
    struct world *world = *state;

    for (uint64_t count = 4095; count <= 12289; count += 4097) {
        struct saved_head head, other;
        size_t len;
        uint8_t *bytes = make(count, &head, &len), *out = calloc(1, len);
        struct test_path path = test_path(world->dir, "rows.idx");
        int fd = world->io.open(world, AT_FDCWD, path.text,
                                O_CREAT | O_RDWR | O_TRUNC, 0600);
        uint64_t parts = (count + 4095) / 4096;

        for (uint64_t n = 0; n < count; n++) {
            struct row row = row_of(n);
            uint8_t one[SAVED_ROW_LEN];

            idem__saved_put_row(&row, one);
            assert_int_equal(
                pwrite(fd, one, sizeof(one),
                       (off_t)(SAVED_HEAD_LEN + n * SAVED_ROW_LEN)),
                sizeof(one));
        }
        other = head;
        other.sum = 0;
        world->reads = 0;
        assert_int_equal(idem__saved_make(&world->io, &other, NULL, fd, out),
                         0);
        assert_int_equal(world->reads, 2 * parts); /* counted, then copied */
        assert_memory_equal(out, bytes, len);
        assert_int_equal(other.sum, head.sum);
        for (size_t n = 1; n <= 2 * parts; n++) {
            for (int is_short = 0; is_short < 2; is_short++) {
                world->reads = 0;
                world->fail_read = n;
                world->short_read = is_short;
                other = head;
                assert_int_equal(
                    idem__saved_make(&world->io, &other, NULL, fd, out), EIO);
            }
        }
        world->fail_read = 0;
        close(fd);
        free(out);
        free(bytes);
    }
}

/* A file that changes while it is sorted: no more rows are copied than there is
 * room for. */
static void
a_file_that_changes_is_not_sorted(void **state)
{
    struct world *world = *state;
    struct saved_head head;
    size_t len;
    uint8_t *bytes = make(100, &head, &len), *out = malloc(len + 100);
    struct test_path path = test_path(world->dir, "rows.idx");
    int fd = world->io.open(world, AT_FDCWD, path.text, O_CREAT | O_RDWR, 0600);

    assert_int_equal(pwrite(fd, bytes + saved_rows_at(&head),
                            100 * SAVED_ROW_LEN, SAVED_HEAD_LEN),
                     100 * SAVED_ROW_LEN);
    memset(out, 0x5a, len + 100);
    world->change_after = 1; /* the first one counts the rows */
    assert_int_equal(idem__saved_make(&world->io, &head, NULL, fd, out), EIO);
    world->change_after = 0;
    for (size_t i = 0; i < 100; i++)
        assert_int_equal(out[len + i], 0x5a);
    close(fd);
    free(out);
    free(bytes);
}

/* ---- what is not accepted ---- */

static void
seal(uint8_t *bytes)
{
    idem__put64(bytes + SUM_AT, XXH3_64bits_withSeed(bytes, SUM_AT, SALT));
}

/* With right checksums: every field is looked at. */
static void
a_head_that_cannot_be_is_not_accepted(void **state)
{
    struct saved_head head;
    struct segment segment, other;
    size_t len;
    uint8_t *bytes = make(40, &head, &len), *copy = malloc(len + 8);

    (void)state;
    segment = segment_of(&head);
    assert_true(is_right(bytes, len, &segment));
    for (size_t at = 0; at < SAVED_HEAD_LEN; at++) { /* any flipped bit */
        memcpy(copy, bytes, len);
        copy[at] ^= 1;
        assert_false(is_right(copy, len, &segment));
        seal(copy);
        /* Only the numbers that nothing can be compared with may differ. */
        assert_int_equal(is_right(copy, len, &segment),
                         (at >= 40 && at < 56) || at >= SUM_AT);
    }
    memcpy(copy, bytes, len);
    for (size_t less = 1; less <= len; less += 27)
        assert_false(is_right(copy, len - less, &segment));
    copy[len] = 0;
    assert_false(is_right(copy, len + 1, &segment));

    /* So many rows that their length wraps around. */
    idem__put64(copy + 56, head.rows + (UINT64_C(1) << 62));
    seal(copy);
    assert_false(is_right(copy, len, &segment));

    other = segment;
    other.head.id++;
    assert_false(is_right(bytes, len, &other));
    other = segment;
    other.head.salt++;
    assert_false(is_right(bytes, len, &other));
    other = segment;
    other.file_len = head.end - 1; /* the segment is shorter */
    assert_false(is_right(bytes, len, &other));
    other.file_len = head.end + 1;
    assert_true(is_right(bytes, len, &other));
    free(copy);

    /* An empty segment ends behind its head, and not before. */
    free(bytes);
    bytes = make(0, &head, &len);
    idem__put64(bytes + 32, SEGMENT_HEAD_LEN);
    seal(bytes);
    assert_true(is_right(bytes, len, &segment));
    idem__put64(bytes + 32, SEGMENT_HEAD_LEN - 1);
    seal(bytes);
    assert_false(is_right(bytes, len, &segment));
    free(bytes);
}

/* Give the file the right checksums, whatever is in it. */
static void
seal_all(uint8_t *bytes, const struct saved_head *head)
{
    uint8_t *table = bytes + SAVED_HEAD_LEN;
    uint64_t slices = UINT64_C(1) << head->bits;

    for (uint64_t n = 0; n < slices; n++) {
        uint64_t first = idem__saved_first(bytes, head, n);
        uint64_t next = idem__saved_first(bytes, head, n + 1);

        if (next >= first && next <= head->rows)
            idem__put64(table + n * SAVED_SLICE_LEN + 8,
                        XXH3_64bits_withSeed(
                            bytes + saved_rows_at(head) + first * SAVED_ROW_LEN,
                            (next - first) * SAVED_ROW_LEN, SALT));
    }
    idem__put64(bytes + 64,
                XXH3_64bits_withSeed(table, slices * SAVED_SLICE_LEN, SALT));
    seal(bytes);
}

static void
a_table_that_cannot_be_is_not_accepted(void **state)
{
    struct saved_head head, other;
    struct segment segment;
    size_t len;
    uint8_t *bytes = make(100, &head, &len), *copy = malloc(len);

    (void)state;
    assert_int_equal(head.bits, 3);
    segment = segment_of(&head);
    memcpy(copy, bytes, len);
    seal_all(copy, &head);
    assert_memory_equal(copy, bytes, len);
    for (uint64_t n = 0; n < 8; n++) {
        static const int by[] = {1, -1, 100};

        for (int i = 0; i < 3; i++) { /* the first row of a slice */
            uint8_t *at = copy + SAVED_HEAD_LEN + n * SAVED_SLICE_LEN;

            memcpy(copy, bytes, len);
            idem__put64(at, idem__get64(at) + (uint64_t)by[i]);
            assert_false(is_right(copy, len, &segment));
            seal_all(copy, &head);
            assert_false(is_right(copy, len, &segment));
            other = head;
            other.sum = idem__get64(copy + 64);
            if (by[i] == 100) /* behind the next one */
                assert_false(idem__saved_table(copy, &other));
        }
        memcpy(copy, bytes, len); /* one row behind the next slice's first */
        idem__put64(copy + SAVED_HEAD_LEN + n * SAVED_SLICE_LEN,
                    idem__saved_first(bytes, &head, n + 1) + 1);
        seal_all(copy, &head);
        other.sum = idem__get64(copy + 64);
        assert_false(idem__saved_table(copy, &other));
        memcpy(copy, bytes, len); /* the checksum of a slice */
        copy[SAVED_HEAD_LEN + n * SAVED_SLICE_LEN + 8] ^= 1;
        idem__put64(copy + 64, XXH3_64bits_withSeed(copy + SAVED_HEAD_LEN,
                                                    8 * SAVED_SLICE_LEN, SALT));
        seal(copy);
        assert_false(is_right(copy, len, &segment));
    }
    free(copy);
    free(bytes);
}

static void
a_row_that_cannot_be_is_not_accepted(void **state)
{
    struct saved_head head = {.end = 1000};
    struct row row = {.tag = 1, .place = 8, .size = 11}, got;
    struct {
        uint64_t at, size;
        bool right;
    } cases[] = {
        {64, 88, true},   {56, 88, false}, /* in the head of the segment */
        {64, 80, false},                   /* no entry is so short */
        {912, 88, true},                   /* up to the end */
        {920, 88, false}, {64, 936, true}, {64, 944, false},
    };
    uint8_t bytes[SAVED_ROW_LEN];

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        row.place = (uint32_t)(cases[i].at / 8);
        row.size = (uint32_t)(cases[i].size / 8);
        idem__saved_put_row(&row, bytes);
        assert_int_equal(idem__saved_row(bytes, &head, &got), cases[i].right);
        row.size |= ROW_EXECUTING;
        idem__saved_put_row(&row, bytes);
        assert_int_equal(idem__saved_row(bytes, &head, &got), cases[i].right);
        row.size = (row.size & ~ROW_FLAGS) | ROW_DELETE;
        idem__saved_put_row(&row, bytes);
        assert_int_equal(idem__saved_row(bytes, &head, &got), cases[i].right);
        row.size |= ROW_EXECUTING; /* a delete does not execute */
        idem__saved_put_row(&row, bytes);
        assert_false(idem__saved_row(bytes, &head, &got));
    }
}

/* ---- the rows of the segment that is being written ---- */

static void
put(struct idem_store *store, uint64_t id, uint64_t rev, uint64_t expected,
    bool delete)
{
    struct test_record t;

    test_make(&t, id, IDEM_STATE_SUCCEEDED, rev, 0);
    assert_int_equal(test_swap(store, &t, expected, delete), IDEM_SWAP_STORED);
}

/* The rows of segment 1; -1: it has no valid saved index. */
static int64_t
rows_saved(struct world *world)
{
    struct segment segment = {.file_len = UINT64_C(16) << 20};
    uint8_t first[SEGMENT_HEAD_LEN], *bytes;
    struct saved_head head;
    struct stat info;
    int64_t rows = -1;
    int fd = open(test_segment_path(world->dir, 1, "seg").text, O_RDONLY);

    assert_int_equal(pread(fd, first, sizeof(first), 0), sizeof(first));
    close(fd);
    assert_int_equal(idem__segment_head_get(first, &segment.head, NULL),
                     IDEM_OK);
    fd = open(test_segment_path(world->dir, 1, "idx").text, O_RDONLY);
    if (fd < 0)
        return -1;
    assert_int_equal(fstat(fd, &info), 0);
    bytes = malloc((size_t)info.st_size + 1);
    assert_int_equal(pread(fd, bytes, (size_t)info.st_size, 0), info.st_size);
    if (idem__saved_check(bytes, (size_t)info.st_size, &segment, &head))
        rows = (int64_t)head.rows;
    free(bytes);
    close(fd);
    return rows;
}

/* A row that a later one of the same segment replaces is left out, as long as
 * it is in memory: the last 8192 to 16384. */
static void
replaced_rows_are_left_out(void **state)
{
    enum { IDS = 17000 };
    struct world *world = *state;
    struct idem_store *store = test_open(world->dir, &world->tuning);

    for (uint64_t id = 0; id < 100; id++) {
        put(store, id, id + 1, 0, false);
        put(store, id, id + 1001, id + 1, id % 10 == 0);
    }
    test_close(store);
    assert_int_equal(rows_saved(world), 100);

    test_folder_empty(world->dir);
    world->writes = world->longest = 0;
    store = test_open(world->dir, &world->tuning);
    for (uint64_t id = 0; id < 16384; id++)
        put(store, id, id + 1, 0, false);
    assert_int_equal(world->writes, 0);
    put(store, 16384, 16385, 0, false); /* the older half is written */
    assert_int_equal(world->writes, 1);
    assert_int_equal(world->longest, 8192 * SAVED_ROW_LEN);
    for (uint64_t id = 16385; id < IDS; id++)
        put(store, id, id + 1, 0, false);
    assert_int_equal(world->writes, 1);
    put(store, 8191, 100001, 8192, false);  /* its row is in the file */
    put(store, 8192, 100002, 8193, false);  /* and this in memory */
    put(store, IDS - 1, 100003, IDS, true); /* the last one */
    test_close(store);
    assert_int_equal(rows_saved(world), IDS + 1);
    store = test_open(world->dir, &world->tuning);
    for (uint64_t id = 0; id < IDS; id++)
        assert_int_equal(test_rev(store, id), id == 8191      ? 100001
                                              : id == 8192    ? 100002
                                              : id == IDS - 1 ? 0
                                                              : id + 1);
    assert_int_equal(((struct journal *)store)->index.count, IDS - 1);
    test_close(store);
}

/* A row names the entry that it replaces, also if a record of the same segment
 * was in between. So no key is read when the index is loaded. */
static void
rows_name_what_they_replace(void **state)
{
    struct world *world = *state;
    struct idem_store *store;
    struct journal *journal;

    for (uint64_t i = 0; i < 3; i++) {
        store = test_open(world->dir, &world->tuning);
        for (uint64_t id = 0; id < 50; id++)
            put(store, id, 1000 * i + id + 1, i ? 1000 * (i - 1) + id + 501 : 0,
                false);
        for (uint64_t id = 0; id < 50; id++)
            put(store, id, 1000 * i + id + 501, 1000 * i + id + 1, false);
        for (uint64_t id = 100 * i + 100; id < 100 * i + 200; id++)
            put(store, id, 5000 + id, 0, false); /* these stay */
        test_close(store);
        assert_int_equal(rows_saved(world), 150);
    }
    world->segment_reads = 0;
    store = test_open(world->dir, &world->tuning);
    journal = (struct journal *)store;
    assert_int_equal(world->segment_reads, 3); /* the heads */
    assert_int_equal(journal->index.count, 350);
    for (size_t i = 0; i < 3; i++) {
        struct stat info;

        assert_int_equal(
            stat(test_segment_path(world->dir, i + 1, "idx").text, &info), 0);
        assert_int_equal(journal->segments[i].saved_len, info.st_size);
    }
    for (uint64_t id = 0; id < 50; id++)
        assert_int_equal(test_rev(store, id), 2000 + id + 501);
    test_close(store);
}

/* The length counts from the moment that the segment is complete. */
static void
a_saved_index_counts_as_used_room(void **state)
{
    struct world *world = *state;
    struct idem_store *store;
    struct journal *journal;
    struct stat info;

    world->tuning.segment_len = 65536;
    store = test_open(world->dir, &world->tuning);
    journal = (struct journal *)store;
    for (uint64_t id = 0; journal->segment_count < 2; id++)
        put(store, id, id + 1, 0, false);
    assert_int_equal(stat(test_segment_path(world->dir, 1, "idx").text, &info),
                     0);
    assert_int_equal(journal->segments[0].saved_len, info.st_size);
    assert_int_equal(journal->segments[1].saved_len, 0);
    test_close(store);
}

/* Pages of memory that this process has, mapped or allocated. */
static unsigned long
pages(void)
{
    FILE *file = fopen("/proc/self/statm", "r");
    char text[100] = "";

    assert_non_null(fgets(text, sizeof(text), file));
    fclose(file);
    return strtoul(text, NULL, 10);
}

static void
saving_again_and_again_needs_no_more_memory(void **state)
{
    struct world *world = *state;
    struct saved_head head;
    size_t before = 0, len;
    unsigned long mapped = 0;

    for (int i = 0; i < 60; i++) {
        struct idem_store *store;

        if (i == 20) {
            before = test_allocated();
            mapped = pages();
        }
        free(make(500, &head, &len));
        test_folder_empty(world->dir);
        store = test_open(world->dir, &world->tuning);
        for (uint64_t id = 0; id < 20; id++)
            put(store, id, id + 1, 0, false);
        test_close(store);
    }
    assert_in_range(test_allocated(), 0, before + 2000);
    if (before) /* no sanitizer has memory of its own */
        assert_in_range(pages(), 0, mapped + 30);
}

/* One row is left in memory when the others are written. */
static void
the_last_row_in_memory_stays(void **state)
{
    enum { IDS = 8193 };
    struct world *world = *state;
    struct idem_store *store = test_open(world->dir, &world->tuning);
    uint64_t rev = IDS;

    for (uint64_t id = 0; id < IDS; id++)
        put(store, id, id + 1, 0, false);
    for (int i = IDS; i < 16384; i++, rev++)
        put(store, IDS - 1, rev + 1, rev, false);
    assert_int_equal(world->writes, 0);
    put(store, IDS, 50000, 0, false);
    assert_int_equal(world->writes, 1);
    test_close(store);
    assert_int_equal(rows_saved(world), IDS + 1);
    store = test_open(world->dir, &world->tuning);
    assert_int_equal(((struct journal *)store)->index.count, IDS + 1);
    for (uint64_t id = 0; id < IDS - 1; id++)
        assert_int_equal(test_rev(store, id), id + 1);
    assert_int_equal(test_rev(store, IDS - 1), rev);
    assert_int_equal(test_rev(store, IDS), 50000);
    test_close(store);
}

/* If the index of one segment cannot be saved, that of the next one can. */
static void
each_segment_is_tried(void **state)
{
    struct world *world = *state;
    struct idem_store *store;
    struct journal *journal;

    for (int deny = 0; deny < 2; deny++) {
        uint64_t id = 0;

        test_folder_empty(world->dir);
        world->tuning.segment_len = 65536;
        store = test_open(world->dir, &world->tuning);
        journal = (struct journal *)store;
        world->writes = 0;
        world->fail_write = !deny;
        world->deny = deny;
        for (; journal->segment_count < 2; id++)
            put(store, id, id + 1, 0, false);
        assert_int_equal(journal->segments[0].saved_len, 0);
        world->deny = false;
        for (; journal->segment_count < 4; id++)
            put(store, id, id + 1, 0, false);
        test_close(store);
        assert_int_equal(rows_saved(world), -1);
        for (uint64_t n = 2; n < 4; n++)
            assert_int_equal(
                access(test_segment_path(world->dir, n, "idx").text, F_OK), 0);
    }
}

/* A journal that is closed while it cannot write leaves no half of a file. */
static void
an_index_that_is_not_complete_is_removed(void **state)
{
    struct world *world = *state;
    struct idem_store *store = test_open(world->dir, &world->tuning);
    struct test_path path = test_segment_path(world->dir, 1, "idx");

    for (uint64_t id = 0; id < 16385; id++)
        put(store, id, id + 1, 0, false);
    assert_int_equal(access(path.text, F_OK), 0);
    ((struct journal *)store)->poisoned = true;
    test_close(store);
    assert_int_equal(access(path.text, F_OK), -1);
}

/* If half of the rows in memory were replaced, nothing is written. */
static void
many_replaced_rows_need_no_write(void **state)
{
    struct world *world = *state;

    for (uint64_t ids = 100; ids <= 7000; ids += 6900) {
        struct idem_store *store;
        uint64_t rev = 1;

        test_folder_empty(world->dir);
        world->writes = 0;
        store = test_open(world->dir, &world->tuning);
        for (uint64_t n = 0; n < 6 * ids || n < 20000; n++, rev++)
            put(store, n % ids, rev, n < ids ? 0 : rev - ids, false);
        assert_int_equal(world->writes, 0);
        test_close(store);
        assert_int_equal(rows_saved(world), ids);
        store = test_open(world->dir, &world->tuning);
        assert_int_equal(((struct journal *)store)->index.count, ids);
        for (uint64_t n = 0; n < ids; n++) {
            uint64_t last = rev - ids + n; /* the last revs, in their order */

            assert_int_equal(test_rev(store, (last - 1) % ids), last);
        }
        test_close(store);
    }
}

/* Each write of a saved index fails once. Then there is no file, and nothing is
 * missing. */
static void
a_saved_index_that_cannot_be_written_is_removed(void **state)
{
    struct world *world = *state;
    struct test_path path = test_segment_path(world->dir, 1, "idx");
    size_t failed = 0;

    for (size_t n = 1; n < 6; n++) {
        struct idem_store *store;

        test_folder_empty(world->dir);
        world->writes = 0;
        world->fail_write = n;
        store = test_open(world->dir, &world->tuning);
        for (uint64_t id = 0; id < 16500; id++)
            put(store, id, id + 1, 0, false);
        put(store, 3, 50000, 4, true);
        test_close(store);
        if (world->writes >= n) {
            assert_int_equal(access(path.text, F_OK), -1);
            failed++;
        } else {
            assert_int_equal(rows_saved(world), 16501);
        }
        world->fail_write = 0;
        store = test_open(world->dir, &world->tuning);
        for (uint64_t id = 0; id < 16500; id += 11)
            assert_int_equal(test_rev(store, id), id + 1);
        assert_int_equal(test_rev(store, 3), 0);
        assert_int_equal(((struct journal *)store)->index.count, 16499);
        test_close(store);
        assert_in_range(rows_saved(world), 16500, 16501);
    }
    assert_int_equal(failed, 4); /* twice rows, then rows and head */
}

#define T(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int
main(void)
{
    const struct CMUnitTest tests[] = {
        T(rows_are_sorted_into_slices),
        T(rows_in_a_file_are_sorted_likewise),
        T(a_file_that_changes_is_not_sorted),
        T(a_head_that_cannot_be_is_not_accepted),
        T(a_table_that_cannot_be_is_not_accepted),
        T(a_row_that_cannot_be_is_not_accepted),
        T(replaced_rows_are_left_out),
        T(rows_name_what_they_replace),
        T(a_saved_index_counts_as_used_room),
        T(saving_again_and_again_needs_no_more_memory),
        T(the_last_row_in_memory_stays),
        T(each_segment_is_tried),
        T(an_index_that_is_not_complete_is_removed),
        T(many_replaced_rows_need_no_write),
        T(a_saved_index_that_cannot_be_written_is_removed),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
