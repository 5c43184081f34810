/*
 * key.c - the 32 bytes under which every store finds a record.
 *
 * Every request hashes its key. Nettle's SHA-256 uses the processor's SHA
 * instructions if it has them; libsodium's takes four times as long.
 */
#include "record.h"

#include <assert.h>
#include <nettle/sha2.h>

static void
add_prefixed(struct sha256_ctx *hash, struct idem_bytes bytes)
{
    uint8_t len[2] = {(uint8_t)(bytes.len >> 8), (uint8_t)bytes.len};

    assert(bytes.len <= UINT16_MAX);
    sha256_update(hash, sizeof(len), len);
    sha256_update(hash, bytes.len, bytes.data);
}

void
idem__key(enum idem_type type, struct idem_bytes scope, struct idem_bytes id,
          uint8_t key[IDEM_KEY_LEN])
{
    struct sha256_ctx hash;
    uint8_t type_byte = (uint8_t)type;

    sha256_init(&hash);
    sha256_update(&hash, 1, &type_byte);
    add_prefixed(&hash, scope);
    add_prefixed(&hash, id);
    sha256_digest(&hash, IDEM_KEY_LEN, key);
}
