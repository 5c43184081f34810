/*
 * value_test.c - tests records as one value: their names in hex, and that a
 * record belongs to its key.
 */
#include "value.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static const struct idem_record sample = {
    .type = IDEM_TYPE_REQUEST,
    .state = IDEM_STATE_SUCCEEDED,
    .fence = 9,
    .rev = UINT64_C(0x1122334455667788),
    .scope = {"shop", 4},
    .id = {"order-7", 7},
    .result = {"paid", 4},
};

static void
a_name_is_the_key_in_hex_and_back(void **state)
{
    uint8_t key[IDEM_KEY_LEN], back[IDEM_KEY_LEN];
    char hex[IDEM__HEX_LEN];

    (void)state;
    for (int i = 0; i < IDEM_KEY_LEN; i++)
        key[i] = (uint8_t)(i * 37 + 5);
    idem__key_hex(key, hex);
    assert_true(idem__key_from_hex(hex, sizeof(hex), back));
    assert_memory_equal(key, back, IDEM_KEY_LEN);
    assert_false(idem__key_from_hex(hex, sizeof(hex) - 1, back));
    hex[10] = 'G';
    assert_false(idem__key_from_hex(hex, sizeof(hex), back));
    hex[10] = 'A'; /* names are lower case, so that a key has only one */
    assert_false(idem__key_from_hex(hex, sizeof(hex), back));
}

static void
the_rev_stands_where_servers_look_for_it(void **state)
{
    static const uint8_t rev[8] = {0x88, 0x77, 0x66, 0x55,
                                   0x44, 0x33, 0x22, 0x11};
    uint8_t value[200];

    (void)state;
    idem__encode(&sample, value);
    assert_memory_equal(value + IDEM__VALUE_REV_AT, rev, 8);
}

static void
a_record_under_another_key_is_damage(void **state)
{
    size_t len = idem__encoded_len(&sample);
    struct idem_arena arena = {NULL, 0};
    struct idem_record read;
    uint8_t key[IDEM_KEY_LEN], value[200];

    (void)state;
    idem__encode(&sample, value);
    idem__key(IDEM_TYPE_REQUEST, sample.scope, sample.id, key);
    assert_int_equal(idem__value_read(key, (struct idem_bytes){value, len},
                                      &arena, &read, NULL),
                     IDEM_OK);
    memset(value, 0, sizeof(value)); /* it was copied */
    assert_true(idem__bytes_is(read.result, "paid"));
    idem__encode(&sample, value);
    key[31] ^= 1;
    assert_int_equal(idem__value_read(key, (struct idem_bytes){value, len},
                                      &arena, &read, NULL),
                     IDEM_ERR_CORRUPT);
    idem_arena_clear(&arena);
}

static void
every_flipped_bit_is_noticed(void **state)
{
    size_t len = idem__encoded_len(&sample);
    struct idem_record read;
    uint8_t key[IDEM_KEY_LEN], value[200];

    (void)state;
    idem__encode(&sample, value);
    idem__key(IDEM_TYPE_REQUEST, sample.scope, sample.id, key);
    for (size_t bit = 0; bit < len * 8; bit++) {
        value[bit / 8] ^= (uint8_t)(1 << bit % 8);
        assert_int_not_equal(idem__value_read(key,
                                              (struct idem_bytes){value, len},
                                              NULL, &read, NULL),
                             IDEM_OK);
        value[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_name_is_the_key_in_hex_and_back),
        cmocka_unit_test(the_rev_stands_where_servers_look_for_it),
        cmocka_unit_test(a_record_under_another_key_is_damage),
        cmocka_unit_test(every_flipped_bit_is_noticed),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
