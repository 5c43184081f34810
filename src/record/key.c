/*
 * key.c - the 32 bytes under which every store finds a record.
 */
#include "record.h"

#include <assert.h>
#include <sodium.h>

static void
add_prefixed(crypto_hash_sha256_state *hash, struct idem_bytes bytes)
{
    uint8_t len[2] = {(uint8_t)(bytes.len >> 8), (uint8_t)bytes.len};

    assert(bytes.len <= UINT16_MAX);
    crypto_hash_sha256_update(hash, len, sizeof(len));
    crypto_hash_sha256_update(hash, bytes.data, bytes.len);
}

void
idem__key(enum idem_type type, struct idem_bytes scope, struct idem_bytes id,
          uint8_t key[IDEM_KEY_LEN])
{
    crypto_hash_sha256_state hash;
    uint8_t type_byte = (uint8_t)type;

    crypto_hash_sha256_init(&hash);
    crypto_hash_sha256_update(&hash, &type_byte, 1);
    add_prefixed(&hash, scope);
    add_prefixed(&hash, id);
    crypto_hash_sha256_final(&hash, key);
}
