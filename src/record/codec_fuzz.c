/*
 * codec_fuzz.c - fuzzes the record codec. Any bytes must be refused, or be a
 * record that encodes to exactly the same bytes.
 *
 * A fuzzer cannot guess a valid checksum, so the input is tried twice: as it
 * is, and with the checksum corrected.
 */
#include "record.h"

#include "../base/le.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

static void
try_bytes(const uint8_t *data, size_t len)
{
    struct idem_record record;
    struct idem_error err;
    uint8_t *again;

    if (idem__decode((struct idem_bytes){data, len}, &record, &err) != IDEM_OK)
        return;
    if (idem__record_flaw(&record) || idem__encoded_len(&record) != len)
        abort();
    again = malloc(len);
    if (!again)
        return;
    idem__encode(&record, again);
    if (memcmp(again, data, len) != 0)
        abort();
    free(again);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    uint8_t *copy;

    try_bytes(data, len);
    if (len < 9)
        return 0;
    copy = malloc(len);
    if (!copy)
        return 0;
    memcpy(copy, data, len);
    idem__put64(copy + len - 8, XXH3_64bits(copy, len - 8));
    try_bytes(copy, len);
    free(copy);
    return 0;
}
