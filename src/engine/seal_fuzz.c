/*
 * seal_fuzz.c - fuzzes the opening of a sealed field, which must be refused
 * unless the key sealed it, and the reading of a file of keys.
 *
 * A fuzzer cannot find a valid tag. So the input is tried as it is, with a
 * correct header, and as plain bytes that are sealed and opened again.
 */
#include "seal.h"

#include <sodium.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

static struct idem__seal *
one_key(void)
{
    static const char text[] =
        "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";
    struct idem__seal *seal = NULL;

    if (sodium_init() < 0 ||
        idem__seal_parse("fuzz", idem_text(text), &seal, NULL) != IDEM_OK)
        abort();
    return seal;
}

static void
must_not_open(const struct idem__seal *seal, struct idem_bytes bytes,
              struct idem_arena *arena)
{
    const uint8_t key[IDEM_KEY_LEN] = {1};
    struct idem_record record = {
        .flags = IDEM__SEALED, .subject = bytes, .result = bytes};

    if (idem__seal_open(seal, key, &record, arena, NULL) == IDEM_OK ||
        record.subject.len != 0 || record.result.len != 0)
        abort();
}

static void
must_come_back(const struct idem__seal *seal, struct idem_bytes bytes,
               struct idem_arena *arena)
{
    const uint8_t key[IDEM_KEY_LEN] = {1};
    struct idem_record record = {.subject = bytes, .result = bytes}, sealed;

    if (!idem__seal_record(seal, key, &record, arena, &sealed))
        return;
    if (idem__seal_open(seal, key, &sealed, arena, NULL) != IDEM_OK ||
        !idem__bytes_equal(sealed.subject, bytes) ||
        !idem__bytes_equal(sealed.result, bytes))
        abort();
    /* Any bytes behind the header of a sealed field. */
    if (!idem__seal_record(seal, key, &record, arena, &sealed) ||
        bytes.len < IDEM__SEAL_LEN)
        return;
    memcpy((uint8_t *)sealed.result.data + 29, bytes.data, 16);
    must_not_open(seal, sealed.result, arena);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    static struct idem__seal *seal;
    struct idem__seal *parsed = NULL;
    struct idem_arena arena = {NULL, 0};
    struct idem_bytes bytes = {data, len};

    if (!seal)
        seal = one_key();
    if (idem__seal_parse("fuzz", bytes, &parsed, NULL) == IDEM_OK)
        idem__seal_close(parsed);
    must_not_open(seal, bytes, &arena);
    must_come_back(seal, bytes, &arena);
    idem_arena_clear(&arena);
    return 0;
}
