/*
 * tail_test.c - tests how batches are written past the page cache, what is read
 * from memory, and file systems on which that is not possible.
 */
#define TEST_ADVICE
#include "testing.h"

#include <errno.h>
#include <fcntl.h>

#define STRETCH (UINT64_C(128) << 10) /* of tail.c */
#define FDS 1024

/* What the file system thinks of O_DIRECT. */
enum direct { DIRECT_FINE, DIRECT_NOT_OPENED, DIRECT_NOT_WRITTEN };

struct world {
    char *dir;
    struct idem_io io;
    struct journal_tuning tuning;
    enum direct direct;
    bool is_direct[FDS];
    size_t reads, direct_writes, other_writes;
    size_t files;   /* that are open in this process */
    bool replacing; /* the file, before it is opened for direct writes */
    size_t fail_at; /* this direct write stops after `partial` bytes ... */
    size_t partial;
    int fault; /* ... and the next one fails so; 0: none fails */
};

/* The real file is opened without O_DIRECT, so the test runs on any file
 * system. */
static int
w_open(void *arg, int at, const char *name, int flags, mode_t mode)
{
    struct world *world = arg;
    int fd;

    if ((flags & O_DIRECT) && world->direct == DIRECT_NOT_OPENED) {
        errno = EINVAL;
        return -1;
    }
    if ((flags & O_DIRECT) && world->replacing) {
        assert_int_equal(renameat(at, name, at, "moved"), 0);
        close(openat(at, name, O_CREAT | O_WRONLY, 0600));
    }
    fd = openat(at, name, flags & ~O_DIRECT, mode);
    if (fd >= 0) {
        assert_true(fd < FDS);
        world->is_direct[fd] = flags & O_DIRECT;
    }
    return fd;
}

static int
w_fallocate(void *arg, int fd, off_t len)
{
    (void)arg;
    return ftruncate(fd, len);
}

static ssize_t
w_pread(void *arg, int fd, void *data, size_t len, off_t at)
{
    ((struct world *)arg)->reads++;
    return pread(fd, data, len, at);
}

static ssize_t
w_pwrite(void *arg, int fd, const void *data, size_t len, off_t at)
{
    struct world *world = arg;

    if (!world->is_direct[fd]) {
        world->other_writes++;
        return pwrite(fd, data, len, at);
    }
    if (world->direct == DIRECT_NOT_WRITTEN) {
        errno = EINVAL;
        return -1;
    }
    if (world->fault && ++world->direct_writes >= world->fail_at) {
        if (world->direct_writes == world->fail_at && world->partial > 0)
            return pwrite(fd, data, len < world->partial ? len : world->partial,
                          at);
        errno = world->fault;
        return -1;
    }
    assert_int_equal((uintptr_t)data % JOURNAL_BLOCK, 0);
    assert_int_equal(len % JOURNAL_BLOCK, 0);
    assert_int_equal(at % (off_t)JOURNAL_BLOCK, 0);
    world->direct_writes += !world->fault;
    return pwrite(fd, data, len, at);
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

    assert_non_null(world);
    world->files = test_open_files();
    world->dir = test_fast_folder();
    world->io = idem__system_io;
    world->io.open = w_open;
    world->io.fallocate = w_fallocate;
    world->io.pread = w_pread;
    world->io.pwrite = w_pwrite;
    world->io.fsync = world->io.fdatasync = w_sync;
    world->io.arg = world;
    world->tuning = (struct journal_tuning){.io = &world->io,
                                            .segment_len = 256 << 10,
                                            .tail_len = 16384,
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
    free(world);
    return 0;
}

static void
put(struct idem_store *store, uint64_t id, size_t len)
{
    struct test_record t;

    test_make(&t, id, IDEM_STATE_SUCCEEDED, id + 1, len);
    assert_int_equal(test_swap(store, &t, 0, false), IDEM_SWAP_STORED);
}

static void
check_all(struct idem_store *store, uint64_t count)
{
    for (uint64_t id = 0; id < count; id++)
        assert_int_equal(test_rev(store, id), id + 1);
}

/* Write records, look at them, and look at them again after opening it. */
static void
use(struct world *world, uint64_t count, size_t len)
{
    struct idem_store *store = test_open(world->dir, &world->tuning);

    for (uint64_t id = 0; id < count; id++)
        put(store, id, (id * 37) % (len + 1));
    check_all(store, count);
    test_close(store);
    store = test_open(world->dir, &world->tuning);
    check_all(store, count);
    test_close(store);
}

static void
a_record_just_written_is_read_from_memory(void **state)
{
    struct world *world = *state;
    struct idem_store *store = test_open(world->dir, &world->tuning);

    for (uint64_t id = 0; id < 600; id++) {
        put(store, id, 300);
        world->reads = 0;
        for (uint64_t back = 0; back < 10 && back <= id; back++)
            assert_int_equal(test_rev(store, id - back), id - back + 1);
        /* A new segment begins with nothing in memory. */
        if (((struct journal *)store)->segment_count == 1)
            assert_int_equal(world->reads, 0);
    }
    assert_true(((struct journal *)store)->segment_count > 1);
    world->reads = 0;
    check_all(store, 600); /* most are no longer in memory */
    assert_true(world->reads > 450);
    test_close(store);
}

static void
batches_are_written_past_the_page_cache(void **state)
{
    struct world *world = *state;
    struct idem_store *store = test_open(world->dir, &world->tuning);

    world->direct_writes = world->other_writes = 0;
    for (uint64_t id = 0; id < 100; id++)
        put(store, id, 100);
    assert_int_equal(world->other_writes, 0);
    assert_true(world->direct_writes >= 100);
    test_close(store);
}

/* Records of all lengths, through many blocks, slides and segments. */
static void
every_length_comes_back(void **state)
{
    use(*state, 1000, 4096);
}

/* Put 12 records at once. */
static enum idem_outcome
put_many(struct idem_store *store, uint64_t first, size_t len)
{
    struct idem_arena arena = {NULL, 0};
    struct test_record records[12];
    struct idem_swap swaps[12];

    for (uint64_t i = 0; i < 12; i++) {
        test_make(&records[i], first + i, IDEM_STATE_SUCCEEDED, first + i + 1,
                  len);
        swaps[i] = (struct idem_swap){.record = &records[i].record};
        memcpy(swaps[i].key, records[i].key, IDEM_KEY_LEN);
    }
    (void)store->type->swap(store, swaps, 12, &arena, NULL);
    idem_arena_clear(&arena);
    for (uint64_t i = 0; i < 12; i++)
        assert_int_equal(swaps[i].outcome, swaps[0].outcome);
    return swaps[0].outcome;
}

static void
a_batch_is_longer_than_the_tail(void **state)
{
    struct world *world = *state;
    struct idem_store *store;

    world->tuning.tail_len = 8192;
    store = test_open(world->dir, &world->tuning);
    assert_int_equal(put_many(store, 0, 4000), IDEM_SWAP_STORED);
    check_all(store, 12);
    test_close(store);
    store = test_open(world->dir, &world->tuning);
    check_all(store, 12);
    test_close(store);
}

/* The last block of such a file is not whole: it is written in the ordinary
 * way, and the file does not grow. */
static void
a_file_may_end_within_a_block(void **state)
{
    struct world *world = *state;
    struct idem_store *store;
    struct journal *journal;
    struct stat info;

    world->tuning.segment_len = 10000;
    store = test_open(world->dir, &world->tuning);
    journal = (struct journal *)store;
    journal->segments[0].file_len = 10000;
    assert_int_equal(ftruncate(journal->segments[0].fd, 10000), 0);
    for (uint64_t id = 0; journal->segment_count == 1; id++) {
        assert_int_equal(fstat(journal->segments[0].fd, &info), 0);
        assert_int_equal(info.st_size, 10000);
        put(store, id, 200);
        check_all(store, id + 1);
    }
    /* The next file is written directly again. */
    assert_false(journal->buffered);
    assert_non_null(journal->tail.bytes);
    test_close(store);
}

static void
a_file_system_may_refuse_direct_files(void **state)
{
    struct world *world = *state;

    world->direct = DIRECT_NOT_OPENED;
    use(world, 300, 1000);
    assert_int_equal(world->direct_writes, 0);
}

static void
a_file_system_may_refuse_direct_writes(void **state)
{
    struct world *world = *state;

    world->direct = DIRECT_NOT_WRITTEN;
    use(world, 300, 1000);
    assert_int_equal(world->direct_writes, 0);
}

/* Direct writes that stop in the middle of a batch, within a block or a sector,
 * and then fail: the batch is written in the ordinary way (EINVAL), or it is
 * lost and not there. What was written before is always there. */
static void
a_direct_write_may_stop_halfway(void **state)
{
    static const size_t parts[] = {0, 100, 512, 4096, 4608, 8192};
    static const int faults[] = {EINVAL, ENOSPC, EIO};
    struct world *world = *state;

    world->tuning.tail_len = 8192;
    for (size_t i = 0; i < 6 * 3 * 5 * 4; i++) {
        uint64_t before = i / 90 * 5;
        struct idem_store *store;

        world->fault = 0;
        test_folder_empty(world->dir);
        store = test_open(world->dir, &world->tuning);
        for (uint64_t id = 0; id < before; id++)
            put(store, id, id * 977 % 3000);
        world->direct_writes = 0;
        world->partial = parts[i % 6];
        world->fail_at = 1 + i / 18 % 5;
        world->fault = faults[i / 6 % 3];
        if (put_many(store, before, 2500) != IDEM_SWAP_STORED) {
            assert_int_not_equal(world->fault, EINVAL);
            world->fault = 0;
            check_all(store, before);
            for (uint64_t id = before; id < before + 12; id++)
                assert_int_equal(test_rev(store, id), 0);
            assert_int_equal(put_many(store, before, 2500), IDEM_SWAP_STORED);
        }
        world->fault = 0;
        put(store, before + 12, 700);
        check_all(store, before + 13);
        test_close(store);
        store = test_open(world->dir, &world->tuning);
        check_all(store, before + 13);
        test_close(store);
    }
}

/* Behind a batch there are zeros up to the end of its block, in a file that was
 * another segment before, too. */
static void
an_older_file_is_zeroed_up_to_the_end_of_the_block(void **state)
{
    struct world *world = *state;
    struct test_path path = test_path(world->dir, "spare");
    struct idem_store *store;
    struct segment *segment;
    uint8_t bytes[8192];
    int fd = open(path.text, O_CREAT | O_WRONLY, 0600);

    memset(bytes, 0xa5, sizeof(bytes));
    for (int i = 0; i < 32; i++)
        assert_int_equal(write(fd, bytes, sizeof(bytes)), sizeof(bytes));
    close(fd);
    world->tuning.no_thread = false;
    store = test_open(world->dir, &world->tuning);
    put(store, 0, 100);
    segment = &((struct journal *)store)->segments[0];
    assert_int_equal(pread(segment->fd, bytes, sizeof(bytes), 0), 8192);
    for (uint64_t at = segment->end; at < JOURNAL_BLOCK; at++)
        assert_int_equal(bytes[at], 0);
    assert_int_equal(bytes[JOURNAL_BLOCK], 0xa5);
    check_all(store, 1);
    test_close(store);
}

/* ---- what is kept in memory ---- */

/* At least the newer half of the room, from the start of a block on, and all of
 * it is read without the disk. */
static void
the_newer_half_stays_in_memory(void **state)
{
    struct world *world = *state;
    uint64_t places[700], slides = 0, from = 0;
    struct idem_store *store;
    struct journal *journal;

    world->tuning.tail_len = 65536;
    store = test_open(world->dir, &world->tuning);
    journal = (struct journal *)store;
    assert_int_equal(journal->tail.room, 65536);
    assert_int_equal(journal->tail.from, 0);
    for (uint64_t id = 0; journal->segment_count == 1; id++) {
        uint64_t end;

        assert_true(id < 700);
        places[id] = journal->segments[0].end;
        put(store, id, 200 + id % 3 * 100);
        end = journal->segments[0].end;
        if (journal->segment_count > 1)
            break;
        assert_int_equal(journal->tail.from % JOURNAL_BLOCK, 0);
        assert_in_range(end - journal->tail.from, end < 32768 ? end : 32768,
                        65536);
        slides += journal->tail.from != from;
        from = journal->tail.from;
        world->reads = 0;
        for (uint64_t i = id + 1; i > 0 && places[i - 1] >= from; i--)
            assert_int_equal(test_rev(store, i - 1), i);
        assert_int_equal(world->reads, 0);
    }
    /* It slides by a half of the room, so that it slides rarely. */
    assert_in_range(slides, 5, 6);
    test_close(store);
}

/* Also a record that begins where the memory does. */
static void
a_record_at_the_start_of_a_block_is_in_memory(void **state)
{
    struct world *world = *state;
    struct idem_store *store = test_open(world->dir, &world->tuning);
    struct journal *journal = (struct journal *)store;
    struct test_record t;
    uint64_t id = 0, len;

    test_make(&t, 100, IDEM_STATE_SUCCEEDED, 101, 0);
    len = entry_len((uint32_t)idem__encoded_len(&t.record));
    assert_true(len < 512 - SEGMENT_HEAD_LEN);
    /* The first entry ends at 512, the others have 512 bytes. */
    for (id = 100; id < 200; id++) {
        size_t size = (size_t)(512 - len);
        uint64_t at = journal->segments[0].end;

        if (id == 100)
            size -= SEGMENT_HEAD_LEN;
        put(store, id, size);
        assert_int_equal(journal->segments[0].end % 512, 0);
        if (at > 0 && at == journal->tail.from) {
            world->reads = 0;
            assert_int_equal(test_rev(store, id), id + 1);
            assert_int_equal(world->reads, 0);
        }
    }
    assert_true(journal->tail.from > 0);
    id = 100 + journal->tail.from / 512;
    world->reads = 0;
    assert_int_equal(test_rev(store, id), id + 1);
    assert_int_equal(world->reads, 0);
    assert_int_equal(test_rev(store, id - 1), id);
    assert_int_equal(world->reads, 1); /* the one before it is not */
    test_close(store);
}

/* No more is read than there is. */
static void
what_is_read_ends_with_the_log(void **state)
{
    struct world *world = *state;
    struct idem_store *store = test_open(world->dir, &world->tuning);
    struct journal *journal = (struct journal *)store;
    struct segment *segment = &journal->segments[0];
    uint8_t bytes[4096];
    uint64_t at;
    size_t got = 0;

    for (uint64_t id = 0; id < 12; id++)
        put(store, id, 100);
    at = segment->end;
    assert_true(at > 2048 && at < 4000);
    put(store, 12, 100);
    world->reads = 0;
    assert_int_equal(idem__tail_read(journal, segment, bytes, 4096, at, &got),
                     0);
    assert_int_equal(got, segment->end - at);
    assert_int_equal(idem__tail_read(journal, segment, bytes, 50, at, &got), 0);
    assert_int_equal(got, 50);
    assert_int_equal(idem__tail_read(journal, segment, bytes, 4096, 64, &got),
                     0);
    assert_int_equal(got, segment->end - 64);
    assert_int_equal(world->reads, 0);
    test_close(store);
}

static void
opening_again_and_again_needs_no_more_memory(void **state)
{
    struct world *world = *state;
    size_t before = 0;

    for (int i = 0; i < 30; i++) {
        struct idem_store *store;

        if (i == 10)
            before = test_allocated();
        world->direct = (enum direct)(i % 3);
        store = test_open(world->dir, &world->tuning);
        put(store, (uint64_t)i, 100);
        test_close(store);
    }
    assert_in_range(test_allocated(), 0, before + 30000);
}

/* A short segment needs less memory. */
static void
no_more_memory_is_used_than_the_segment_is_long(void **state)
{
    struct world *world = *state;
    struct idem_store *store;
    struct journal *journal;

    world->tuning.tail_len = 0; /* 2 MiB */
    world->tuning.segment_len = 12288;
    store = test_open(world->dir, &world->tuning);
    journal = (struct journal *)store;
    assert_int_equal(journal->tail.room, 12288);
    test_close(store);
    world->tuning.segment_len = UINT64_C(4) << 20;
    test_folder_empty(world->dir);
    store = test_open(world->dir, &world->tuning);
    journal = (struct journal *)store;
    assert_int_equal(journal->tail.room, UINT64_C(2) << 20);
    assert_true(malloc_usable_size(journal->tail.memory) >=
                (size_t)(journal->tail.bytes - journal->tail.memory) +
                    journal->tail.room);
    test_close(store);
}

/* Up to the last block of the file. */
static void
the_last_block_is_written_past_the_page_cache(void **state)
{
    struct world *world = *state;
    struct idem_store *store;
    struct journal *journal;

    world->tuning.segment_len = 16384;
    store = test_open(world->dir, &world->tuning);
    journal = (struct journal *)store;
    world->other_writes = 0;
    for (uint64_t id = 0; journal->segments[0].end < 16384 - 500; id++) {
        put(store, id, 100);
        assert_int_equal(world->other_writes, 0);
    }
    assert_int_equal(journal->segment_count, 1);
    assert_true(journal->segments[0].end > 12288 + 64);
    test_close(store);
}

/* ---- stretches that are not in the page cache ---- */

static bool
is_cold(const struct segment *segment, uint64_t stretch)
{
    return segment->cold[stretch / 8] >> stretch % 8 & 1;
}

struct asked {
    size_t count;
    uint64_t at, len;
};

static void
see_advice(void *arg, int fd, uint64_t at, uint64_t len, int advice)
{
    (void)fd;
    if (advice == POSIX_FADV_WILLNEED)
        *(struct asked *)arg =
            (struct asked){((struct asked *)arg)->count + 1, at, len};
}

/* What was written past the page cache is asked for once. */
static void
a_stretch_is_cold_until_it_is_read(void **state)
{
    static const uint64_t order[] = {7, 0, 8, 1, 9};
    struct world *world = *state;
    struct idem_store *store;
    struct segment *segment;
    uint64_t id = 0, firsts[12] = {0}; /* the first that begins there */
    struct asked asked = {0};
    bool cold[12];

    test_advice = (struct test_advice){see_advice, &asked};
    world->tuning.segment_len = 12 * STRETCH;
    store = test_open(world->dir, &world->tuning);
    segment = &((struct journal *)store)->segments[0];
    for (uint64_t n = 0; n < 12; n++)
        assert_false(is_cold(segment, n));
    for (; segment->end < 10 * STRETCH + 5000; id++) {
        uint64_t stretch = segment->end / STRETCH;

        if (firsts[stretch] == 0)
            firsts[stretch] = id;
        put(store, id, 4000);
        for (uint64_t n = 0; n < 12; n++)
            assert_int_equal(is_cold(segment, n), n * STRETCH < segment->end);
    }
    for (uint64_t n = 0; n < 12; n++)
        cold[n] = n < 11;
    for (size_t i = 0; i < 5; i++) {
        uint64_t first = firsts[order[i]];

        assert_int_equal(test_rev(store, first), first + 1);
        assert_int_equal(test_rev(store, first), first + 1);
        cold[order[i]] = false;
        assert_int_equal(asked.count, i + 1);
        assert_int_equal(asked.at, order[i] * STRETCH);
        assert_int_equal(asked.len, STRETCH);
        for (uint64_t n = 0; n < 12; n++)
            assert_int_equal(is_cold(segment, n), cold[n]);
    }
    assert_int_equal(test_rev(store, id - 1), id); /* it is in memory */
    assert_true(is_cold(segment, 10));
    test_advice.seen = NULL;
    test_close(store);
}

static void
every_stretch_has_its_bit(void **state)
{
    struct world *world = *state;
    struct idem_store *store;

    /* 8 * 24 stretches and a block: 25 bytes. */
    world->tuning.segment_len = 8 * 24 * STRETCH + JOURNAL_BLOCK;
    store = test_open(world->dir, &world->tuning);
    assert_true(
        malloc_usable_size(((struct journal *)store)->segments[0].cold) >= 25);
    test_close(store);
}

/* Written in the ordinary way, everything is in the page cache. */
static void
without_direct_writes_no_stretch_is_cold(void **state)
{
    struct world *world = *state;
    struct idem_store *store;
    struct journal *journal;

    world->direct = DIRECT_NOT_OPENED;
    store = test_open(world->dir, &world->tuning);
    journal = (struct journal *)store;
    put(store, 0, 100);
    assert_null(journal->segments[0].cold);
    assert_null(journal->tail.bytes);
    assert_null(journal->tail.memory);
    assert_false(journal->buffered);
    test_close(store);

    test_folder_empty(world->dir);
    world->direct = DIRECT_NOT_WRITTEN;
    store = test_open(world->dir, &world->tuning);
    journal = (struct journal *)store;
    put(store, 0, 100);
    assert_true(journal->buffered);
    assert_null(journal->tail.bytes);
    assert_false(is_cold(&journal->segments[0], 0));
    world->direct = DIRECT_FINE; /* it is not tried again */
    for (uint64_t id = 1; journal->segment_count < 3; id++)
        put(store, id, 4000);
    assert_null(journal->tail.bytes);
    assert_null(journal->segments[2].cold);
    assert_int_equal(world->direct_writes, 0);
    test_close(store);
}

/* If another file has the segment's name by now, nothing is written to it. */
static void
another_file_of_the_same_name_is_not_written(void **state)
{
    struct world *world = *state;
    struct idem_store *store;
    struct stat info;

    world->replacing = true;
    store = test_open(world->dir, &world->tuning);
    world->replacing = false;
    assert_null(((struct journal *)store)->tail.bytes);
    put(store, 0, 100);
    check_all(store, 1);
    assert_int_equal(world->direct_writes, 0);
    assert_int_equal(stat(test_segment_path(world->dir, 1, "seg").text, &info),
                     0);
    assert_int_equal(info.st_size, 0);
    test_close(store);
}

#define T(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int
main(void)
{
    const struct CMUnitTest tests[] = {
        T(a_record_just_written_is_read_from_memory),
        T(batches_are_written_past_the_page_cache),
        T(every_length_comes_back),
        T(a_batch_is_longer_than_the_tail),
        T(a_file_may_end_within_a_block),
        T(a_file_system_may_refuse_direct_files),
        T(a_file_system_may_refuse_direct_writes),
        T(a_direct_write_may_stop_halfway),
        T(an_older_file_is_zeroed_up_to_the_end_of_the_block),
        T(the_newer_half_stays_in_memory),
        T(a_record_at_the_start_of_a_block_is_in_memory),
        T(what_is_read_ends_with_the_log),
        T(opening_again_and_again_needs_no_more_memory),
        T(no_more_memory_is_used_than_the_segment_is_long),
        T(the_last_block_is_written_past_the_page_cache),
        T(a_stretch_is_cold_until_it_is_read),
        T(every_stretch_has_its_bit),
        T(without_direct_writes_no_stretch_is_cold),
        T(another_file_of_the_same_name_is_not_written),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
