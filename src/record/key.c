/*
 * key.c - the 32 bytes under which every store finds a record.
 *
 * Every request hashes its key, so this is OpenSSL's function for one block,
 * without its layers for exchangeable providers, which take longer than the
 * hash. It uses the processor's SHA or vector instructions if there are any.
 */
#define OPENSSL_API_COMPAT 0x10101000L

#include "record.h"

#include <assert.h>
#include <openssl/sha.h>

static void
add_prefixed(SHA256_CTX *hash, struct idem_bytes bytes)
{
    uint8_t len[2] = {(uint8_t)(bytes.len >> 8), (uint8_t)bytes.len};

    assert(bytes.len <= UINT16_MAX);
    SHA256_Update(hash, len, sizeof(len));
    SHA256_Update(hash, bytes.data, bytes.len);
}

void
idem__key(enum idem_type type, struct idem_bytes scope, struct idem_bytes id,
          uint8_t key[IDEM_KEY_LEN])
{
    SHA256_CTX hash;
    uint8_t type_byte = (uint8_t)type;

    SHA256_Init(&hash);
    SHA256_Update(&hash, &type_byte, 1);
    add_prefixed(&hash, scope);
    add_prefixed(&hash, id);
    SHA256_Final(key, &hash);
}
