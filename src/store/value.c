/*
 * value.c - a record as one value of a key-value store.
 */
#include "value.h"

#include <string.h>

void
idem__key_hex(const uint8_t key[IDEM_KEY_LEN], char hex[IDEM__HEX_LEN])
{
    static const char digits[] = "0123456789abcdef";

    for (size_t i = 0; i < IDEM_KEY_LEN; i++) {
        hex[2 * i] = digits[key[i] >> 4];
        hex[2 * i + 1] = digits[key[i] & 15];
    }
}

static int
digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

bool
idem__key_from_hex(const char *hex, size_t len, uint8_t key[IDEM_KEY_LEN])
{
    if (len != IDEM__HEX_LEN)
        return false;
    for (size_t i = 0; i < IDEM_KEY_LEN; i++) {
        int high = digit(hex[2 * i]), low = digit(hex[2 * i + 1]);

        if (high < 0 || low < 0)
            return false;
        key[i] = (uint8_t)(high * 16 + low);
    }
    return true;
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
