/*
 * columns_test.c - tests a record in the columns of a table: back and forth,
 * what makes a row damaged, and the helpers of the stores with columns.
 */
#include "columns.h"

#include "../../tests/support/faulty_store.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static const struct idem_record sample = {
    .type = IDEM_TYPE_REQUEST,
    .state = IDEM_STATE_SUCCEEDED,
    .flags = IDEM_FLAG_FINGERPRINT,
    .attempt = 3,
    .fence = 9,
    .rev = UINT64_C(0x1122334455667788),
    .created = 1700000000000,
    .updated = 1700000000001,
    .expires = 1800000000000,
    .fingerprint = {1, 2, 3},
    .scope = {"shop", 4},
    .id = {"order-7", 7},
    .result = {"paid", 4},
};

static void
fill(uint8_t key[IDEM_KEY_LEN], struct idem_cell cells[IDEM_COLUMN_COUNT])
{
    idem__key(sample.type, sample.scope, sample.id, key);
    idem__record_to_cells(key, &sample, cells);
}

static void
a_record_in_columns_is_the_same_record(void **state)
{
    struct idem_cell cells[IDEM_COLUMN_COUNT];
    uint8_t key[IDEM_KEY_LEN];
    struct idem_record record;

    (void)state;
    fill(key, cells);
    assert_int_equal(idem__cells_to_record(cells, &record, NULL), IDEM_OK);
    assert_int_equal(record.state, sample.state);
    assert_int_equal(record.attempt, 3);
    assert_true(record.rev == sample.rev && record.fence == sample.fence);
    assert_true(record.expires == sample.expires);
    assert_memory_equal(record.fingerprint, sample.fingerprint,
                        sizeof(record.fingerprint));
    assert_int_equal(record.result.len, 4);
    assert_null(record.subject.data);
    cells[IDEM_COLUMN_SUBJECT].null = true; /* the same as empty */
    assert_int_equal(idem__cells_to_record(cells, &record, NULL), IDEM_OK);
    assert_null(record.subject.data);
}

static void
a_damaged_row_is_refused_with_its_key(void **state)
{
    static const struct {
        enum idem_column column;
        bool null;
        int64_t number;
        const char *text;
    } cases[] = {
        {IDEM_COLUMN_STATE, false, 256, "a number is out of range"},
        {IDEM_COLUMN_STATE, false, -1, "a number is out of range"},
        {IDEM_COLUMN_FLAGS, true, 0, "a number is out of range"},
        {IDEM_COLUMN_ATTEMPT, false, -1, "a number is out of range"},
        {IDEM_COLUMN_ATTEMPT, false, INT64_C(1) << 32,
         "a number is out of range"},
        {IDEM_COLUMN_NONCE, true, 0, "the nonce is not 8 bytes"},
        {IDEM_COLUMN_NONCE, false, 0, "the nonce is not 8 bytes"},
        {IDEM_COLUMN_FINGERPRINT, true, 0, "the fingerprint is not 32 bytes"},
        {IDEM_COLUMN_FINGERPRINT, false, 0, "the fingerprint is not 32 bytes"},
        {IDEM_COLUMN_STATE, false, 99, "; key_hash "},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct idem_cell cells[IDEM_COLUMN_COUNT];
        uint8_t key[IDEM_KEY_LEN];
        struct idem_record record = {.attempt = 77};
        struct idem_error err = {IDEM_OK, ""};
        struct idem_cell *cell = &cells[cases[i].column];
        char hex[8];

        fill(key, cells);
        snprintf(hex, sizeof(hex), "%02x%02x%02x", key[0], key[1], key[2]);
        cell->null = cases[i].null;
        cell->number = cases[i].number;
        cell->bytes.len = 5;
        assert_int_equal(idem__cells_to_record(cells, &record, &err),
                         IDEM_ERR_CORRUPT);
        if (!strstr(err.text, cases[i].text) || !strstr(err.text, hex))
            fail_msg("%zu: %s", i, err.text);
        assert_int_equal(record.attempt, 77); /* nothing was written */
        cells[IDEM_COLUMN_KEY].null = true;
        assert_int_equal(idem__cells_to_record(cells, &record, &err),
                         IDEM_ERR_CORRUPT);
        assert_null(strstr(err.text, hex));
    }
}

static void
a_swap_is_found_by_its_key(void **state)
{
    struct idem_swap swaps[7] = {0};
    uint8_t key[IDEM_KEY_LEN] = {0};

    (void)state;
    for (int i = 0; i < 7; i++)
        swaps[i].key[0] = (uint8_t)(10 * i);
    for (int i = 0; i < 70; i++) {
        key[0] = (uint8_t)i;
        assert_int_equal(idem__swap_find(swaps, 7, key),
                         i % 10 == 0 ? i / 10 : 7);
    }
    assert_int_equal(idem__swap_find(swaps, 0, key), 0);
}

/* At least one, even if it is too large. */
static void
a_chunk_has_limited_rows_and_bytes(void **state)
{
    struct idem_swap swaps[6] = {0};
    size_t len = idem__encoded_len(&sample);

    (void)state;
    for (int i = 0; i < 6; i++)
        swaps[i].record = i == 1 ? NULL : &sample;
    assert_int_equal(idem__swap_chunk(swaps, 6, 4, 100 * len), 4);
    assert_int_equal(idem__swap_chunk(swaps, 6, 9, 100 * len), 6);
    assert_int_equal(idem__swap_chunk(swaps, 6, 9, 2 * len), 3);
    assert_int_equal(idem__swap_chunk(swaps, 6, 9, 1), 1);
    assert_int_equal(idem__swap_chunk(swaps + 2, 4, 9, 1), 1);
}

static void
a_word_is_found_in_a_list(void **state)
{
    (void)state;
    assert_true(idem__word_in("one", "one"));
    assert_true(idem__word_in("one,two,three", "one"));
    assert_true(idem__word_in("one,two,three", "two"));
    assert_true(idem__word_in("one,two,three", "three"));
    assert_false(idem__word_in("one,two,three", "thre"));
    assert_false(idem__word_in("one,twofold", "two"));
    assert_false(idem__word_in("one", "on"));
    assert_false(idem__word_in("", "one"));
}

static void
newer_tables_are_refused(void **state)
{
    struct idem_error err = {IDEM_OK, ""};

    (void)state;
    assert_int_equal(idem__schema_judge("store", IDEM_SCHEMA_VERSION, &err),
                     IDEM_OK);
    assert_int_equal(idem__schema_judge("store", IDEM_SCHEMA_VERSION + 1, &err),
                     IDEM_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "use a newer idem"));
}

/* ---- connecting again ------------------------------------------------------
 */

static int tries;
static enum idem_status outcome;

static enum idem_status
connect_or_not(struct idem_store *store, struct idem_error *err)
{
    (void)store;
    tries++;
    return outcome == IDEM_OK ? IDEM_OK
                              : idem__fail(err, outcome, "try %d", tries);
}

static void
a_server_that_is_away_is_asked_less_and_less_often(void **state)
{
    struct test_clocks clocks;
    struct idem_store store = {0};
    struct idem_retry retry = {0};
    struct idem_error err;

    (void)state;
    test_clocks_init(&clocks);
    store.clocks = &clocks.clocks;
    tries = 0;
    outcome = IDEM_ERR_UNAVAILABLE;
    for (int ms = 0; ms < 60000; ms++) {
        assert_int_equal(
            idem__retry_connect(&retry, &store, connect_or_not, &err),
            IDEM_ERR_UNAVAILABLE);
        assert_non_null(strstr(err.text, "try "));
        test_clocks_pass(&clocks, 1);
    }
    /* Neither every time nor hardly ever. */
    assert_in_range(tries, 10, 1000);
    outcome = IDEM_OK;
    test_clocks_pass(&clocks, 60000);
    assert_int_equal(idem__retry_connect(&retry, &store, connect_or_not, NULL),
                     IDEM_OK);
    tries = 0; /* afterwards it is asked at once again */
    outcome = IDEM_ERR_UNAVAILABLE;
    assert_int_equal(idem__retry_connect(&retry, &store, connect_or_not, NULL),
                     IDEM_ERR_UNAVAILABLE);
    assert_int_equal(tries, 1);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_record_in_columns_is_the_same_record),
        cmocka_unit_test(a_damaged_row_is_refused_with_its_key),
        cmocka_unit_test(a_swap_is_found_by_its_key),
        cmocka_unit_test(a_chunk_has_limited_rows_and_bytes),
        cmocka_unit_test(a_word_is_found_in_a_list),
        cmocka_unit_test(newer_tables_are_refused),
        cmocka_unit_test(a_server_that_is_away_is_asked_less_and_less_often),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
