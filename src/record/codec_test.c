/*
 * codec_test.c - tests the encoding of records: what goes in comes out, and
 * damaged, truncated or invented bytes are never taken for a record.
 */
#include "../base/buf.h"
#include "../base/le.h"
#include "record.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include <cmocka.h>

static struct idem_record
sample(void)
{
    struct idem_record r = {
        .type = IDEM_TYPE_REQUEST,
        .state = IDEM_STATE_SUCCEEDED,
        .mode = IDEM_LOOSE,
        .kind = IDEM_KIND_HTTP,
        .flags = IDEM_FLAG_FINGERPRINT,
        .attempt = 3,
        .fence = IDEM_FENCE_MAX,
        .rev = UINT64_MAX,
        .created = 1,
        .updated = IDEM_TIME_MAX_MS,
        .lease_until = 0,
        .expires = 77,
        .scope = {"shop\xff", 5},
        .id = {"order-7", 7},
        .subject = {"label", 5},
        .result = {"a\0b", 3},
    };

    memset(r.nonce, 0xab, sizeof(r.nonce));
    memset(r.fingerprint, 0xcd, sizeof(r.fingerprint));
    return r;
}

static struct idem_bytes
encode(const struct idem_record *r)
{
    size_t len = idem__encoded_len(r);
    uint8_t *bytes = malloc(len);

    assert_non_null(bytes);
    idem__encode(r, bytes);
    return (struct idem_bytes){bytes, len};
}

static void
assert_same(const struct idem_record *a, const struct idem_record *b)
{
    struct idem_record left = *a, right = *b;
    struct idem_bytes none = {NULL, 0};

    assert_true(idem__bytes_equal(a->scope, b->scope));
    assert_true(idem__bytes_equal(a->id, b->id));
    assert_true(idem__bytes_equal(a->subject, b->subject));
    assert_true(idem__bytes_equal(a->result, b->result));
    left.scope = left.id = left.subject = left.result = none;
    right.scope = right.id = right.subject = right.result = none;
    assert_memory_equal(&left, &right, sizeof(left));
}

static void
round_trip(const struct idem_record *r)
{
    struct idem_bytes bytes = encode(r);
    struct idem_record back;

    assert_null(idem__record_flaw(r));
    assert_int_equal(idem__decode(bytes, &back, NULL), IDEM_OK);
    assert_same(r, &back);
    free((void *)bytes.data);
}

static void
every_type_state_mode_kind_and_flag_comes_back(void **state)
{
    struct idem_record r = sample();

    (void)state;
    for (int type = 1; type <= IDEM_TYPE_WORKER; type++)
        for (int s = 1; s <= IDEM_STATE_FREE; s++)
            for (int mode = 0; mode <= 1; mode++)
                for (int kind = 0; kind <= IDEM_KIND_EXEC; kind++)
                    for (int flags = 0; flags < 64; flags++) {
                        r.type = (uint8_t)type;
                        r.state = (uint8_t)s;
                        r.mode = (uint8_t)mode;
                        r.kind = (uint8_t)kind;
                        r.flags = (uint8_t)flags;
                        if (!(flags & IDEM_FLAG_FINGERPRINT))
                            memset(r.fingerprint, 0, sizeof(r.fingerprint));
                        else
                            memset(r.fingerprint, 7, sizeof(r.fingerprint));
                        round_trip(&r);
                    }
}

static void
the_shortest_and_the_longest_record_come_back(void **state)
{
    static uint8_t long_bytes[IDEM_ID_MAX];
    struct idem_record r = {.type = IDEM_TYPE_LOCK,
                            .state = IDEM_STATE_FREE,
                            .fence = 1,
                            .rev = 1,
                            .scope = {"s", 1},
                            .id = {"i", 1}};
    uint8_t *big = calloc(1, IDEM_RESULT_DEFAULT_MAX);

    (void)state;
    assert_non_null(big);
    round_trip(&r);
    memset(long_bytes, 0xee, sizeof(long_bytes));
    r = sample();
    r.scope = (struct idem_bytes){long_bytes, IDEM_SCOPE_MAX};
    r.id = (struct idem_bytes){long_bytes, IDEM_ID_MAX};
    r.subject = (struct idem_bytes){long_bytes, IDEM_SUBJECT_MAX};
    r.result = (struct idem_bytes){big, IDEM_RESULT_DEFAULT_MAX};
    assert_int_equal(idem__encoded_len(&r),
                     idem__encoded_max(IDEM_RESULT_DEFAULT_MAX));
    round_trip(&r);
    free(big);
}

static void
every_bit_flip_is_detected(void **state)
{
    struct idem_record r = sample(), back = {.rev = 4711};
    struct idem_bytes bytes = encode(&r);
    uint8_t *at = (uint8_t *)bytes.data;

    (void)state;
    for (size_t bit = 0; bit < bytes.len * 8; bit++) {
        at[bit / 8] ^= (uint8_t)(1 << bit % 8);
        if (idem__decode(bytes, &back, NULL) == IDEM_OK)
            fail_msg("bit %zu flipped and nobody noticed", bit);
        at[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
    assert_int_equal(back.rev, 4711); /* written only on success */
    assert_int_equal(idem__decode(bytes, &back, NULL), IDEM_OK);
    free(at);
}

static void
every_truncation_and_every_extra_byte_is_detected(void **state)
{
    struct idem_record r = sample(), back;
    struct idem_bytes bytes = encode(&r);

    (void)state;
    for (size_t len = 0; len < bytes.len; len++) {
        /* In its own allocation, so that the sanitizer detects a read beyond
         * its end. */
        uint8_t *cut = malloc(len + 1);
        struct idem_bytes part = {cut, len};

        assert_non_null(cut);
        memcpy(cut, bytes.data, len);
        assert_int_equal(idem__decode(part, &back, NULL), IDEM_ERR_CORRUPT);
        cut[len] = 0;
        free(cut);
    }
    {
        uint8_t *more = calloc(1, bytes.len + 1);
        struct idem_bytes part = {more, bytes.len + 1};

        assert_non_null(more);
        memcpy(more, bytes.data, bytes.len);
        assert_int_equal(idem__decode(part, &back, NULL), IDEM_ERR_CORRUPT);
        free(more);
    }
    free((void *)bytes.data);
}

/* Change one byte of the head and correct the checksum. */
static enum idem_status
forge(size_t at, uint8_t value, struct idem_error *err)
{
    struct idem_record r = sample(), back;
    struct idem_bytes bytes = encode(&r);
    uint8_t *out = (uint8_t *)bytes.data;
    enum idem_status status;

    out[at] = value;
    idem__put64(out + bytes.len - 8, XXH3_64bits(out, bytes.len - 8));
    status = idem__decode(bytes, &back, err);
    free(out);
    return status;
}

static void
a_forged_head_with_a_right_checksum_is_refused(void **state)
{
    static const struct {
        size_t at;
        uint8_t value;
        const char *text;
    } forgeries[] = {
        {0, 0, "version"},      {1, 0, "type"},      {1, 5, "type"},
        {2, 0, "state"},        {2, 6, "state"},     {3, 2, "mode"},
        {4, 3, "kind"},         {5, 0x41, "flag"},   {6, 0, "scope"},
        {6, 201, "scope"},      {7, 0, "id"},        {8, 9, "add up"},
        {9, 1, "reserved"},     {11, 1, "reserved"}, {16, 4, "add up"},
        {19, 0xff, "too long"}, {20, 1, "reserved"}, {30, 0x20, "fence"},
        {31, 1, "fence"},       {47, 0x80, "time"},  {71, 0x80, "time"},
    };
    struct idem_error err;

    (void)state;
    for (size_t i = 0; i < sizeof(forgeries) / sizeof(forgeries[0]); i++) {
        memset(&err, 0, sizeof(err));
        assert_int_equal(forge(forgeries[i].at, forgeries[i].value, &err),
                         IDEM_ERR_CORRUPT);
        if (!strstr(err.text, forgeries[i].text))
            fail_msg("byte %zu: \"%s\" does not speak of %s", forgeries[i].at,
                     err.text, forgeries[i].text);
    }
}

static void
a_newer_version_is_told_from_damage(void **state)
{
    struct idem_error err = {0};

    (void)state;
    assert_int_equal(forge(0, 2, &err), IDEM_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "newer"));
    assert_non_null(strstr(err.text, "version 2"));
}

static void
a_record_without_a_rev_or_fence_is_flawed(void **state)
{
    struct idem_record r = sample();

    (void)state;
    r.rev = 0;
    assert_non_null(idem__record_flaw(&r));
    r = sample();
    r.fence = IDEM_FENCE_MAX + 1;
    assert_non_null(idem__record_flaw(&r));
    r = sample();
    r.fence = 0;
    assert_string_equal(idem__record_flaw(&r), "fence out of range");
    r = sample();
    r.result.len = IDEM_RESULT_MAX + (size_t)1;
    assert_non_null(idem__record_flaw(&r));
}

static void
a_name_that_is_empty_or_too_long_is_flawed(void **state)
{
    struct idem_record r = sample();

    (void)state;
    r.scope.len = 0;
    assert_string_equal(idem__record_flaw(&r), "scope length out of range");
    r.scope.len = IDEM_SCOPE_MAX + 1;
    assert_string_equal(idem__record_flaw(&r), "scope length out of range");
    r = sample();
    r.id.len = 0;
    assert_string_equal(idem__record_flaw(&r), "id length out of range");
    r.id.len = IDEM_ID_MAX + 1;
    assert_string_equal(idem__record_flaw(&r), "id length out of range");
    r = sample();
    r.subject.len = IDEM_SUBJECT_MAX + 1;
    assert_string_equal(idem__record_flaw(&r), "subject too long");
    r.subject.len = IDEM_SUBJECT_MAX;
    assert_null(idem__record_flaw(&r));
}

static void
a_time_out_of_range_is_flawed(void **state)
{
    static const int64_t bad[] = {-1, IDEM_TIME_MAX_MS + 1, INT64_MAX};
    struct idem_record r = sample();
    int64_t *times[] = {&r.created, &r.updated, &r.lease_until, &r.expires};

    (void)state;
    for (size_t t = 0; t < 4; t++) {
        for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
            *times[t] = bad[i];
            assert_non_null(idem__record_flaw(&r));
        }
        *times[t] = IDEM_TIME_MAX_MS;
        assert_null(idem__record_flaw(&r));
    }
}

/* Other programs compute the same key, for example PostgreSQL with
 * sha256('\x01' || '\x0004' || 'shop' || '\x0007' || 'order-7'). */
static void
the_key_is_the_documented_hash(void **state)
{
    static const uint8_t want[4] = {0x5a, 0xbe, 0xac, 0xd1};
    uint8_t key[IDEM_KEY_LEN], other[IDEM_KEY_LEN];

    (void)state;
    idem__key(IDEM_TYPE_REQUEST, idem_text("shop"), idem_text("order-7"), key);
    assert_memory_equal(key, want, sizeof(want));
    idem__key(IDEM_TYPE_TOKEN, idem_text("shop"), idem_text("order-7"), other);
    assert_memory_not_equal(key, other, sizeof(key));
    /* Moving a letter from scope to id makes another key. */
    idem__key(IDEM_TYPE_REQUEST, idem_text("sho"), idem_text("porder-7"),
              other);
    assert_memory_not_equal(key, other, sizeof(key));
}

static void
an_answer_keeps_its_own_copy_of_a_record(void **state)
{
    char result[] = "first";
    struct idem_answer answer = {.record = &idem__no_record};
    struct idem_record r = sample();

    (void)state;
    r.result = idem_text(result);
    assert_true(idem__answer_keep(&answer, &r));
    memcpy(result, "other", 5);
    assert_memory_equal(answer.record->result.data, "first", 5);
    assert_int_equal(answer.record->fence, r.fence);
    /* Its own record, changed: what it has now is read before it is freed. */
    r = *answer.record;
    r.state = IDEM_STATE_FAILED;
    assert_true(idem__answer_keep(&answer, &r));
    assert_int_equal(answer.record->state, IDEM_STATE_FAILED);
    assert_memory_equal(answer.record->result.data, "first", 5);
    assert_memory_equal(answer.record->id.data, "order-7", 7);
    /* An absent record that has bytes is copied with them. */
    r = (struct idem_record){.subject = idem_text(result)};
    assert_true(idem__answer_keep(&answer, &r));
    memcpy(result, "third", 5);
    assert_int_equal(answer.record->state, IDEM_STATE_ABSENT);
    assert_memory_equal(answer.record->subject.data, "other", 5);
    /* One without needs no memory. */
    r = idem__no_record;
    assert_true(idem__answer_keep(&answer, &r));
    assert_null(answer.memory);
    assert_ptr_equal(answer.record, &idem__no_record);
    idem_answer_clear(&answer);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_type_state_mode_kind_and_flag_comes_back),
        cmocka_unit_test(the_shortest_and_the_longest_record_come_back),
        cmocka_unit_test(every_bit_flip_is_detected),
        cmocka_unit_test(every_truncation_and_every_extra_byte_is_detected),
        cmocka_unit_test(a_forged_head_with_a_right_checksum_is_refused),
        cmocka_unit_test(a_newer_version_is_told_from_damage),
        cmocka_unit_test(a_record_without_a_rev_or_fence_is_flawed),
        cmocka_unit_test(a_name_that_is_empty_or_too_long_is_flawed),
        cmocka_unit_test(a_time_out_of_range_is_flawed),
        cmocka_unit_test(the_key_is_the_documented_hash),
        cmocka_unit_test(an_answer_keeps_its_own_copy_of_a_record),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
