/*
 * sha256_test.c - our SHA-256 and libsodium's agree, at every length.
 */
#include "sha256.h"

#include "record.h"

#include <setjmp.h>
#include <sodium.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void
it_agrees_with_libsodium_at_every_length(void **state)
{
    uint8_t ours[32], theirs[32];

    (void)state;
    for (size_t len = 0; len < 700; len++) {
        /* Of exactly this length: the sanitizer sees a read beyond it. */
        uint8_t *message = malloc(len + 1);

        randombytes_buf(message, len);
        message = realloc(message, len ? len : 1);
        idem__sha256(message, len, ours);
        crypto_hash_sha256(theirs, message, len);
        assert_memory_equal(ours, theirs, 32);
        free(message);
    }
}

/* NIST's "abc": whatever both implementations do, this is the standard. */
static void
it_is_sha_256(void **state)
{
    static const uint8_t expected[4] = {0xba, 0x78, 0x16, 0xbf};
    uint8_t digest[32];

    (void)state;
    idem__sha256((const uint8_t *)"abc", 3, digest);
    assert_memory_equal(digest, expected, 4);
}

static void
a_key_is_the_hash_of_type_scope_and_id(void **state)
{
    uint8_t text[2000], key[32], expected[32];
    static uint8_t bytes[900];

    (void)state;
    randombytes_buf(bytes, sizeof(bytes));
    for (size_t len = 0; len < 900; len += 7) {
        struct idem_bytes scope = {bytes, len / 3}, id = {bytes, len};
        size_t at = 0;

        text[at++] = IDEM_TYPE_LOCK;
        text[at++] = (uint8_t)(scope.len >> 8);
        text[at++] = (uint8_t)scope.len;
        memcpy(text + at, bytes, scope.len);
        at += scope.len;
        text[at++] = (uint8_t)(id.len >> 8);
        text[at++] = (uint8_t)id.len;
        memcpy(text + at, bytes, id.len);
        at += id.len;
        crypto_hash_sha256(expected, text, at);
        idem__key(IDEM_TYPE_LOCK, scope, id, key);
        assert_memory_equal(key, expected, 32);
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_agrees_with_libsodium_at_every_length),
        cmocka_unit_test(it_is_sha_256),
        cmocka_unit_test(a_key_is_the_hash_of_type_scope_and_id),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
