/*
 * value.c - stores a record as one value of a key-value store.
 */
#include "value.h"

#include "../base/hex.h"

#include <string.h>

void
idem__key_hex(const uint8_t key[IDEM_KEY_LEN], char hex[IDEM__HEX_LEN])
{
    idem__hex_write(key, IDEM_KEY_LEN, hex);
}

bool
idem__key_from_hex(const char *hex, size_t len, uint8_t key[IDEM_KEY_LEN])
{
    /* Refuse capital letters, so that every key has exactly one name. */
    for (size_t i = 0; i < len; i++) {
        if (hex[i] >= 'A' && hex[i] <= 'F')
            return false;
    }
    return idem__hex_read(hex, len, key, IDEM_KEY_LEN);
}

enum idem_status
idem__value_read(const uint8_t key[IDEM_KEY_LEN], struct idem_bytes value,
                 struct idem_arena *arena, struct idem_record *record,
                 struct idem_error *err)
{
    struct idem_record read;
    uint8_t belongs[IDEM_KEY_LEN];
    enum idem_status status = idem__decode(value, &read, err);

    if (status != IDEM_OK)
        return status;
    idem__key((enum idem_type)read.type, read.scope, read.id, belongs);
    if (memcmp(key, belongs, IDEM_KEY_LEN) != 0)
        return idem__fail(err, IDEM_ERR_CORRUPT,
                          "a record lies under a key that is not its own");
    if (!arena)
        *record = read;
    else if (!idem_arena_record(arena, &read, record))
        return idem__fail(err, IDEM_ERR_MEMORY, "out of memory");
    return IDEM_OK;
}
