/*
 * segment_test.c - tests the lengths of new segments.
 */
#include "testing.h"

#include "../../base/le.h"

#include <stdatomic.h>

#define MIB (UINT64_C(1) << 20)
#define LARGE (1024 * MIB) /* of one segment, nearly all of it a hole */

struct world {
    char *dir;
    struct idem_io io;
    struct journal_tuning tuning;
    _Atomic uint64_t written;
};

static int
no_sync(void *arg, int fd)
{
    (void)arg;
    (void)fd;
    return 0;
}

/* Zeros are counted only: the room that they fill is allocated already. */
static ssize_t
count_write(void *arg, int fd, const void *data, size_t len, off_t at)
{
    struct world *world = arg;
    const uint8_t *bytes = data;

    atomic_fetch_add(&world->written, len);
    if (len > 65536 && bytes[0] == 0 && memcmp(bytes, bytes + 1, len - 1) == 0)
        return (ssize_t)len;
    return pwrite(fd, data, len, at);
}

static int
setup(void **state)
{
    struct world *world = calloc(1, sizeof(*world));

    world->dir = test_fast_folder();
    world->io = idem__system_io;
    world->io.fsync = world->io.fdatasync = no_sync;
    world->io.pwrite = count_write;
    world->io.arg = world;
    world->tuning =
        (struct journal_tuning){.io = &world->io, .lazy = true, .hold = true};
    *state = world;
    return 0;
}

static int
teardown(void **state)
{
    struct world *world = *state;

    test_folder_drop(world->dir);
    free(world);
    return 0;
}

/* Make the only segment of a closed journal large, and its saved index one of
 * such a segment. */
static void
enlarge(struct world *world)
{
    struct test_path path = test_segment_path(world->dir, 1, "idx");
    struct saved_head head;
    struct segment segment = {.head.id = 1, .file_len = LARGE};
    uint8_t bytes[4096], *out;
    int fd = open(path.text, O_RDWR);
    ssize_t len = read(fd, bytes, sizeof(bytes));

    segment.head.salt = idem__get64(bytes + 24);
    assert_true(idem__saved_head(bytes, (uint64_t)len, &segment, &head));
    head.end = LARGE;
    out = malloc(idem__saved_plan(&head));
    assert_int_equal(idem__saved_make(&world->io, &head,
                                      bytes + saved_rows_at(&head), -1, out),
                     0);
    assert_int_equal(idem__saved_write(&world->io, fd, &head, out), 0);
    free(out);
    close(fd);
    assert_int_equal(
        truncate(test_segment_path(world->dir, 1, "seg").text, LARGE), 0);
}

static uint64_t
last_len(const struct journal *self)
{
    return self->segments[self->segment_count - 1].file_len;
}

/* Nothing is answered before a journal is open. A large one once filled
 * hundreds of megabytes with zeros first. */
static void
a_large_journal_begins_with_a_small_segment(void **state)
{
    struct world *world = *state;
    struct idem_store *store = test_open(world->dir, &world->tuning);
    struct journal *self;
    struct test_record t;
    struct idem_error err;

    test_make(&t, 1, IDEM_STATE_SUCCEEDED, 7, 20);
    assert_int_equal(test_swap(store, &t, 0, false), IDEM_SWAP_STORED);
    test_close(store);
    enlarge(world);

    atomic_store(&world->written, 0);
    store = test_open(world->dir, &world->tuning);
    self = (struct journal *)store;
    assert_int_equal(self->segment_count, 2);
    assert_int_equal(self->segments[0].end, LARGE);
    assert_int_equal(last_len(self), 8 * MIB);
    assert_in_range(atomic_load(&world->written), 7 * MIB, 9 * MIB);
    /* The ones after it grow up to their part of the journal. */
    for (uint64_t len = 16; len <= 32; len *= 2) {
        assert_int_equal(idem__segment_add(self, 0, false, &err), IDEM_OK);
        assert_int_equal(last_len(self), len * MIB);
    }
    assert_int_equal(idem__segment_add(self, 0, false, &err), IDEM_OK);
    assert_in_range(last_len(self), 32 * MIB, 33 * MIB);
    assert_int_equal(test_rev(store, 1), 7);
    test_close(store);
}

/* The newest segment of a killed process is read completely at the next
 * start. */
static void
a_large_journal_has_many_segments(void **state)
{
    static const struct {
        uint64_t used, len; /* in MiB */
    } cases[] = {{1, 8},       {1024, 32},   {2048, 64},     {8192, 64},
                 {16384, 128}, {65536, 512}, {1048576, 512}, {104857600, 512}};
    struct world *world = *state;
    struct idem_store *store = test_open(world->dir, &world->tuning);
    struct journal *self;
    struct test_record t;
    uint64_t end;

    test_make(&t, 1, IDEM_STATE_SUCCEEDED, 7, 20);
    assert_int_equal(test_swap(store, &t, 0, false), IDEM_SWAP_STORED);
    test_close(store);
    store = test_open(world->dir, &world->tuning);
    self = (struct journal *)store;
    assert_non_null(self->loader); /* so half of what is used counts as live */
    end = self->segments[0].end;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        self->segments[0].end = cases[i].used * MIB;
        assert_int_equal(idem__segment_usual_len(self) / MIB, cases[i].len);
    }
    self->segments[0].end = end;
    test_close(store);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(
            a_large_journal_begins_with_a_small_segment, setup, teardown),
        cmocka_unit_test_setup_teardown(a_large_journal_has_many_segments,
                                        setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
