/*
 * buf_test.c - tests that buffers keep to their cap and that an arena frees
 * everything at once.
 */
#include "buf.h"

#include "../record/record.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static void
a_buf_grows_up_to_its_cap_and_not_beyond(void **state)
{
    struct idem_buf buf;

    (void)state;
    idem_buf_init(&buf, 1000);
    for (int i = 0; i < 100; i++)
        assert_true(idem_buf_add(&buf, "0123456789", 10));
    assert_int_equal(buf.len, 1000);
    assert_false(buf.lacks);
    assert_false(idem_buf_add(&buf, "x", 1));
    assert_true(buf.lacks);
    assert_null(idem_buf_room(&buf, 1));
    assert_int_equal(buf.len, 1000); /* unchanged */
    assert_memory_equal(buf.data + 990, "0123456789", 10);
    assert_true(idem_buf_add(&buf, NULL, 0));
    assert_true(buf.lacks); /* still */
    idem_buf_reset(&buf);
    assert_false(buf.lacks);
    idem_buf_clear(&buf);
    assert_int_equal(buf.cap, 1000);
}

static void
absurd_lengths_are_refused_not_wrapped(void **state)
{
    struct idem_arena arena = {0};
    struct idem_buf buf;

    (void)state;
    idem_buf_init(&buf, SIZE_MAX);
    assert_true(idem_buf_add(&buf, "x", 1));
    assert_null(idem_buf_room(&buf, SIZE_MAX));
    assert_null(idem_buf_room(&buf, SIZE_MAX / 2));
    assert_int_equal(buf.len, 1);
    idem_buf_clear(&buf);
    assert_null(idem_arena_take(&arena, SIZE_MAX));
    assert_null(idem_arena_take(&arena, SIZE_MAX - 8));
    idem_arena_clear(&arena);
}

static void
reset_keeps_memory_and_shift_drops_the_front(void **state)
{
    struct idem_buf buf;
    uint8_t *before;

    (void)state;
    idem_buf_init(&buf, 4096);
    assert_true(idem_buf_add_text(&buf, "hello world"));
    idem_buf_shift(&buf, 6);
    assert_int_equal(buf.len, 5);
    assert_memory_equal(buf.data, "world", 5);
    idem_buf_shift(&buf, 99);
    assert_int_equal(buf.len, 0);
    before = buf.data;
    idem_buf_reset(&buf);
    assert_true(idem_buf_add_text(&buf, "again"));
    assert_ptr_equal(buf.data, before);
    idem_buf_clear(&buf);
}

static void
printf_needs_room_for_all_or_adds_nothing(void **state)
{
    struct idem_buf buf;

    (void)state;
    idem_buf_init(&buf, 8);
    assert_true(idem_buf_printf(&buf, "%d", 1234567));
    assert_int_equal(buf.len, 7);
    assert_false(idem_buf_printf(&buf, "%d", 8));
    assert_int_equal(buf.len, 7);
    assert_memory_equal(buf.data, "1234567", 7);
    idem_buf_clear(&buf);
}

static void
an_arena_hands_out_aligned_pieces_that_do_not_overlap(void **state)
{
    struct idem_arena arena = {0};
    uint8_t *pieces[500];

    (void)state;
    for (int round = 0; round < 3; round++) {
        for (size_t i = 0; i < 500; i++) {
            size_t len = i * i % 3000;

            pieces[i] = idem_arena_take(&arena, len);
            assert_non_null(pieces[i]);
            assert_int_equal((uintptr_t)pieces[i] % 16, 0);
            memset(pieces[i], (int)i, len);
        }
        for (size_t i = 0; i < 500; i++) {
            size_t len = i * i % 3000;

            if (len > 0) {
                assert_int_equal(pieces[i][0], i & 0xff);
                assert_int_equal(pieces[i][len - 1], i & 0xff);
            }
        }
        assert_non_null(idem_arena_take(&arena, 1000000));
        idem_arena_reset(&arena);
    }
    idem_arena_clear(&arena);
    idem_arena_clear(&arena);
}

static void
a_record_in_an_arena_owns_its_bytes(void **state)
{
    struct idem_arena arena = {0};
    char scope[] = "scope", result[] = "result";
    struct idem_record from = {
        .scope = {scope, 5}, .id = {"id", 2}, .result = {result, 6}};
    struct idem_record to;

    (void)state;
    assert_true(idem_arena_record(&arena, &from, &to));
    memset(scope, 'x', 5);
    memset(result, 'x', 6);
    assert_true(idem__bytes_is(to.scope, "scope"));
    assert_true(idem__bytes_is(to.id, "id"));
    assert_true(idem__bytes_is(to.result, "result"));
    assert_int_equal(to.subject.len, 0);
    assert_null(to.subject.data);
    idem_arena_clear(&arena);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_buf_grows_up_to_its_cap_and_not_beyond),
        cmocka_unit_test(absurd_lengths_are_refused_not_wrapped),
        cmocka_unit_test(reset_keeps_memory_and_shift_drops_the_front),
        cmocka_unit_test(printf_needs_room_for_all_or_adds_nothing),
        cmocka_unit_test(an_arena_hands_out_aligned_pieces_that_do_not_overlap),
        cmocka_unit_test(a_record_in_an_arena_owns_its_bytes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
