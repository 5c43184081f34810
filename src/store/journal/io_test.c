/*
 * io_test.c - tests what the journal makes of a system call that is
 * interrupted, fails without a reason or writes nothing; and of heads of
 * segments and entries that are not for it.
 */
#include "io.h"
#include "testing.h"

#include <errno.h>
#include <string.h>
#include <xxhash.h>

#define SEGMENT_SUM_AT (SEGMENT_HEAD_LEN - 8)

/* Each call is interrupted so often; then it returns `result` with this errno.
 */
struct calls {
    int interrupted, result, error, seen;
};

static int
answer(struct calls *calls)
{
    calls->seen++;
    errno = calls->interrupted-- > 0 ? EINTR : calls->error;
    return calls->interrupted >= 0 ? -1 : calls->result;
}

static int
on_file(void *arg, int fd)
{
    (void)fd;
    return answer(arg);
}

static int
on_len(void *arg, int fd, off_t len)
{
    (void)fd;
    (void)len;
    return answer(arg);
}

static int
on_names(void *arg, int at, const char *from, const char *to)
{
    (void)at;
    (void)from;
    (void)to;
    return answer(arg);
}

static int
on_name(void *arg, int at, const char *name)
{
    (void)at;
    (void)name;
    return answer(arg);
}

static ssize_t
on_write(void *arg, int fd, const void *data, size_t len, off_t at)
{
    (void)fd;
    (void)data;
    (void)len;
    (void)at;
    return answer(arg);
}

static struct idem_io
io_of(struct calls *calls)
{
    return (struct idem_io){.pwrite = on_write,
                            .fdatasync = on_file,
                            .fsync = on_file,
                            .fallocate = on_len,
                            .ftruncate = on_len,
                            .rename = on_names,
                            .unlink = on_name,
                            .arg = calls};
}

enum { CALLS = 6 };

static int
call(const struct idem_io *io, int number)
{
    switch (number) {
    case 0:
        return idem__io_datasync(io, 3);
    case 1:
        return idem__io_sync(io, 3);
    case 2:
        return idem__io_allocate(io, 3, 100);
    case 3:
        return idem__io_truncate(io, 3, 100);
    case 4:
        return idem__io_rename(io, 3, "from", "to");
    default:
        return idem__io_unlink(io, 3, "name");
    }
}

static void
an_interrupted_call_is_made_again(void **state)
{
    (void)state;
    for (int i = 0; i < CALLS; i++) {
        struct calls calls = {.interrupted = 3, .result = 0};
        struct idem_io io = io_of(&calls);

        assert_int_equal(call(&io, i), 0);
        assert_int_equal(calls.seen, 4);
    }
}

static void
a_call_that_fails_is_never_taken_for_done(void **state)
{
    static const int errors[][2] = {
        {EIO, EIO}, {ENOSPC, ENOSPC}, {0, EIO} /* it did not say why */
    };

    (void)state;
    for (int i = 0; i < CALLS; i++) {
        for (int k = 0; k < 3; k++) {
            struct calls calls = {.result = -1, .error = errors[k][0]};
            struct idem_io io = io_of(&calls);

            assert_int_equal(call(&io, i), errors[k][1]);
            assert_int_equal(calls.seen, 1);
        }
    }
}

static void
a_write_that_writes_nothing_ends_as_on_a_full_disk(void **state)
{
    struct calls calls = {.interrupted = 1, .result = 0};
    struct idem_io io = io_of(&calls);

    (void)state;
    assert_int_equal(idem__io_write(&io, 3, "text", 4, 0), ENOSPC);
    assert_int_equal(calls.seen, 2);
}

/* ---- heads ----------------------------------------------------------------
 */

static void
put32(uint8_t *out, uint32_t n)
{
    for (int i = 0; i < 4; i++)
        out[i] = (uint8_t)(n >> 8 * i);
}

static void
put64(uint8_t *out, uint64_t n)
{
    put32(out, (uint32_t)n);
    put32(out + 4, (uint32_t)(n >> 32));
}

/* The checksum is right, but the head has another version or length. */
static void
a_segment_of_another_format_is_refused(void **state)
{
    static const struct {
        uint32_t version, len;
        enum idem_status status;
    } cases[] = {
        {JOURNAL_VERSION, SEGMENT_HEAD_LEN, IDEM_OK},
        {JOURNAL_VERSION, SEGMENT_HEAD_LEN + 8, IDEM_ERR_CORRUPT},
        {JOURNAL_VERSION - 1, SEGMENT_HEAD_LEN, IDEM_ERR_CORRUPT},
        {JOURNAL_VERSION + 1, SEGMENT_HEAD_LEN, IDEM_ERR_UNSUPPORTED},
        {5000, SEGMENT_HEAD_LEN, IDEM_ERR_CORRUPT},
    };
    struct segment_head head = {.id = 7, .salt = 9}, got;
    uint8_t bytes[SEGMENT_HEAD_LEN];

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        idem__segment_head_put(&head, bytes);
        put32(bytes + 8, cases[i].version);
        put32(bytes + 12, cases[i].len);
        put64(bytes + SEGMENT_SUM_AT, XXH3_64bits(bytes, SEGMENT_SUM_AT));
        assert_int_equal(idem__segment_head_get(bytes, &got, NULL),
                         cases[i].status);
    }
}

static void
the_beginning_of_an_entry_asks_for_more(void **state)
{
    struct entry_head head = {.kind = ENTRY_DELETE, .prev = 3}, got;
    uint8_t bytes[ENTRY_HEAD_LEN];
    uint64_t need;

    (void)state;
    idem__entry_put(&head, 9, bytes);
    for (uint64_t len = 0; len < sizeof(bytes); len++) {
        assert_int_equal(idem__entry_get(bytes, len, 9, &got, &need),
                         ENTRY_MORE);
        assert_int_equal(need, ENTRY_HEAD_LEN);
    }
    assert_int_equal(idem__entry_get(bytes, sizeof(bytes), 9, &got, &need),
                     ENTRY_FINE);
    assert_int_equal(got.prev, 3);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_interrupted_call_is_made_again),
        cmocka_unit_test(a_call_that_fails_is_never_taken_for_done),
        cmocka_unit_test(a_write_that_writes_nothing_ends_as_on_a_full_disk),
        cmocka_unit_test(a_segment_of_another_format_is_refused),
        cmocka_unit_test(the_beginning_of_an_entry_asks_for_more),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
