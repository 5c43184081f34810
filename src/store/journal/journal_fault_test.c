/*
 * journal_fault_test.c - lets each system call of the journal fail once, in
 * turn.
 *
 * The same small program (open, batches, cleaning, close) runs again and again;
 * in run n the n-th call fails, until a run has fewer calls than that. EINTR
 * and short transfers must have no effect. After EIO and ENOSPC an acknowledged
 * record is there, one that was not stored is not, a lost one is complete or
 * absent, and the journal works again without being reopened.
 */
#include "model.h"

#include <errno.h>
#include <fcntl.h>

enum fault { FAULT_EIO, FAULT_ENOSPC, FAULT_EINTR, FAULT_SHORT };

struct faulty {
    size_t calls, fail_at;
    bool for_good; /* from that call on */
    enum fault fault;
    bool hit;
    char what[16];
};

/* Must this call fail? Then errno is set. */
static bool
fails(struct faulty *faulty, const char *what)
{
    bool now = ++faulty->calls == faulty->fail_at ||
               (faulty->for_good && faulty->calls > faulty->fail_at);

    if (!now)
        return false;
    faulty->hit = true;
    snprintf(faulty->what, sizeof(faulty->what), "%s", what);
    errno = faulty->fault == FAULT_EIO      ? EIO
            : faulty->fault == FAULT_ENOSPC ? ENOSPC
                                            : EINTR;
    return faulty->fault != FAULT_SHORT;
}

static int
f_open(void *arg, int at, const char *name, int flags, mode_t mode)
{
    return fails(arg, "open") ? -1 : openat(at, name, flags, mode);
}

static int
f_close(void *arg, int fd)
{
    (void)arg;
    return close(fd);
}

static ssize_t
f_pread(void *arg, int fd, void *data, size_t len, off_t at)
{
    struct faulty *faulty = arg;

    if (fails(arg, "pread"))
        return -1;
    if (faulty->calls == faulty->fail_at && faulty->fault == FAULT_SHORT)
        len = (len + 1) / 2;
    return pread(fd, data, len, at);
}

/* A failed write may have written a part before. */
static ssize_t
f_pwrite(void *arg, int fd, const void *data, size_t len, off_t at)
{
    struct faulty *faulty = arg;

    if (fails(arg, "pwrite")) {
        int error = errno;

        if (error != EINTR && pwrite(fd, data, len / 2, at) < 0)
            return -1;
        errno = error;
        return -1;
    }
    if (faulty->calls == faulty->fail_at && faulty->fault == FAULT_SHORT)
        len = (len + 1) / 2;
    return pwrite(fd, data, len, at);
}

static int
f_sync(void *arg, int fd)
{
    (void)fd;
    return fails(arg, "sync") ? -1 : 0;
}

static int
f_fallocate(void *arg, int fd, off_t len)
{
    return fails(arg, "fallocate") ? -1 : ftruncate(fd, len);
}

static int
f_ftruncate(void *arg, int fd, off_t len)
{
    return fails(arg, "ftruncate") ? -1 : ftruncate(fd, len);
}

/* A failed rename or unlink may have happened. */
static int
f_rename(void *arg, int at, const char *from, const char *to)
{
    struct faulty *faulty = arg;
    int error;

    if (!fails(arg, "rename"))
        return renameat(at, from, at, to);
    error = errno;
    if (error != EINTR && faulty->fail_at % 2 &&
        renameat(at, from, at, to) != 0)
        return -1;
    errno = error;
    return -1;
}

static int
f_unlink(void *arg, int at, const char *name)
{
    return fails(arg, "unlink") ? -1 : unlinkat(at, name, 0);
}

static struct idem_io
faulty_io(struct faulty *faulty)
{
    return (struct idem_io){
        .open = f_open,
        .close = f_close,
        .pread = f_pread,
        .pwrite = f_pwrite,
        .fdatasync = f_sync,
        .fsync = f_sync,
        .fallocate = f_fallocate,
        .ftruncate = f_ftruncate,
        .rename = f_rename,
        .unlink = f_unlink,
        .arg = faulty,
    };
}

#define ROUNDS 40

static void
swap_and_learn(struct model *model, struct idem_store *store)
{
    struct idem_arena arena = {NULL, 0};
    struct model_swaps s;

    model_batch(model, &s);
    (void)store->type->swap(store, s.swaps, s.count, &arena, NULL);
    model_learn(model, &s);
    /* Send the identical swaps again, as the engine does; then each outcome is
     * known. */
    for (size_t i = 0; i < s.count; i++) {
        struct idem_swap *swap = &s.swaps[i];

        for (int again = 0; swap->outcome == IDEM_SWAP_LOST && again < 3;
             again++) {
            (void)store->type->swap(store, swap, 1, &arena, NULL);
            if (swap->outcome == IDEM_SWAP_STORED)
                model_is(model, model_key_of(&s, swap), true);
            else /* the second was not stored; the first is still unknown */
                swap->outcome = IDEM_SWAP_LOST;
        }
    }
    idem_arena_clear(&arena);
}

/* One run. Returns false if there were fewer calls. */
static bool
run(const char *dir, enum fault fault, size_t fail_at, bool for_good, bool lazy)
{
    struct faulty faulty = {
        .fail_at = fail_at, .fault = fault, .for_good = for_good};
    struct idem_io io = faulty_io(&faulty);
    struct journal_tuning tuning = {.io = &io,
                                    .segment_len = 8192,
                                    .tail_len = 8192,
                                    .no_thread = true,
                                    .lazy = lazy};
    struct idem_store *store = NULL;
    struct idem_error err;
    struct model model;
    struct idem_clocks clocks;
    bool quiet = fault == FAULT_EINTR || fault == FAULT_SHORT;
    const char *flaw;
    bool hit;

    model_init(&model, 7);
    model.expiring = true;
    clocks = model_clocks(&model);
    test_folder_empty(dir);
    for (int tries = 0; tries < 2 && !store; tries++) {
        if (test_try_open(dir, &tuning, &clocks, NULL, &store, &err) != IDEM_OK)
            assert_false(quiet);
    }
    for (int i = 0; store && i < ROUNDS; i++) {
        swap_and_learn(&model, store);
        model.now_ms += 700;
        test_tend(store);
        if (i == ROUNDS / 2) {
            test_close(store);
            store = NULL;
            for (int tries = 0; tries < 2 && !store; tries++)
                (void)test_try_open(dir, &tuning, &clocks, NULL, &store, &err);
        }
    }
    hit = faulty.hit;
    if (quiet)
        assert_int_equal(model.lost + model.not_stored, 0);
    if (!for_good) {
        /* After one failure the journal works again. */
        assert_non_null(store);
        faulty.fail_at = 0;
        flaw = model_flaw(&model, store);
        if (flaw)
            fail_msg("call %zu (%s): %s", fail_at, faulty.what, flaw);
        model_resolve(&model, store);
        for (int i = 0; i < 3; i++) {
            test_tend(store);
            swap_and_learn(&model, store);
        }
        assert_true(model.stored > 0);
        flaw = model_flaw(&model, store);
        if (flaw)
            fail_msg("later, call %zu (%s): %s", fail_at, faulty.what, flaw);
    }
    if (store)
        test_close(store);

    /* With a good disk everything acknowledged is there. */
    faulty.fail_at = 0;
    faulty.for_good = false;
    if (test_try_open(dir, &tuning, &clocks, NULL, &store, &err) != IDEM_OK)
        fail_msg("call %zu (%s): %s", fail_at, faulty.what, err.text);
    flaw = model_flaw(&model, store);
    if (flaw)
        fail_msg("reopened, call %zu (%s): %s", fail_at, faulty.what, flaw);
    test_close(store);
    return hit;
}

static void
each_call_in_turn(enum fault fault, bool for_good, bool lazy)
{
    char *dir = test_fast_folder();
    size_t n = 1, step = lazy ? test_size(211, 17, 1) : test_size(11, 1, 1);

    while (run(dir, fault, n, for_good, lazy))
        n += step;
    print_message("%zu calls failed in turn\n", n / step);
    assert_true(n > 300);
    test_folder_drop(dir);
}

static void
an_io_error_loses_nothing_that_was_acknowledged(void **state)
{
    (void)state;
    each_call_in_turn(FAULT_EIO, false, false);
}

static void
a_disk_that_dies_loses_nothing_that_was_acknowledged(void **state)
{
    (void)state;
    each_call_in_turn(FAULT_EIO, true, false);
}

static void
want_of_space_loses_nothing_that_was_acknowledged(void **state)
{
    (void)state;
    each_call_in_turn(FAULT_ENOSPC, false, false);
}

static void
a_disk_that_stays_full_loses_nothing(void **state)
{
    (void)state;
    each_call_in_turn(FAULT_ENOSPC, true, false);
}

static void
an_interrupted_call_is_not_noticed(void **state)
{
    (void)state;
    each_call_in_turn(FAULT_EINTR, false, false);
}

static void
a_short_transfer_is_not_noticed(void **state)
{
    (void)state;
    each_call_in_turn(FAULT_SHORT, false, false);
}

static void
an_io_error_while_the_index_is_loaded_loses_nothing(void **state)
{
    (void)state;
    each_call_in_turn(FAULT_EIO, false, true);
    each_call_in_turn(FAULT_SHORT, false, true);
}

static void
a_disk_that_fails_for_good_while_the_index_is_loaded_loses_nothing(void **state)
{
    (void)state;
    each_call_in_turn(FAULT_EIO, true, true);
    each_call_in_turn(FAULT_ENOSPC, true, true);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_io_error_loses_nothing_that_was_acknowledged),
        cmocka_unit_test(a_disk_that_dies_loses_nothing_that_was_acknowledged),
        cmocka_unit_test(want_of_space_loses_nothing_that_was_acknowledged),
        cmocka_unit_test(a_disk_that_stays_full_loses_nothing),
        cmocka_unit_test(an_interrupted_call_is_not_noticed),
        cmocka_unit_test(a_short_transfer_is_not_noticed),
        cmocka_unit_test(an_io_error_while_the_index_is_loaded_loses_nothing),
        cmocka_unit_test(
            a_disk_that_fails_for_good_while_the_index_is_loaded_loses_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
