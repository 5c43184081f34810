/*
 * key.c - the 32 bytes under which every store finds a record.
 */
#include "record.h"
#include "sha256.h"

#include <assert.h>
#include <sodium.h>
#include <string.h>

#define SHORT_MAX (1 + 2 + IDEM_SCOPE_MAX + 2 + IDEM_ID_MAX)

static uint8_t *
put_prefixed(uint8_t *at, struct idem_bytes bytes)
{
    *at++ = (uint8_t)(bytes.len >> 8);
    *at++ = (uint8_t)bytes.len;
    if (bytes.len > 0)
        memcpy(at, bytes.data, bytes.len);
    return at + bytes.len;
}

static void
add_prefixed(crypto_hash_sha256_state *hash, struct idem_bytes bytes)
{
    uint8_t len[2] = {(uint8_t)(bytes.len >> 8), (uint8_t)bytes.len};

    crypto_hash_sha256_update(hash, len, sizeof(len));
    crypto_hash_sha256_update(hash, bytes.data, bytes.len);
}

/* Longer than any record's key may be; a caller's own mistake still has one. */
static void
long_key(enum idem_type type, struct idem_bytes scope, struct idem_bytes id,
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

void
idem__key(enum idem_type type, struct idem_bytes scope, struct idem_bytes id,
          uint8_t key[IDEM_KEY_LEN])
{
    uint8_t text[SHORT_MAX], *end = text;

    assert(scope.len <= UINT16_MAX && id.len <= UINT16_MAX);
    if (scope.len > IDEM_SCOPE_MAX || id.len > IDEM_ID_MAX) {
        long_key(type, scope, id, key);
        return;
    }
    *end++ = (uint8_t)type;
    end = put_prefixed(end, scope);
    end = put_prefixed(end, id);
    idem__sha256(text, (size_t)(end - text), key);
}
