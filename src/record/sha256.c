/*
 * sha256.c - see sha256.h.
 *
 * A key is a hash of one or two blocks, made for every operation; with the SHA
 * instructions of x86 it takes a fifth of the time. Elsewhere libsodium does
 * it.
 */
#include "sha256.h"

#include <sodium.h>
#include <string.h>

#if defined(__x86_64__) && defined(__GNUC__)

#include <cpuid.h>
#include <immintrin.h>

#define BLOCK 64

static const uint32_t round_words[64] __attribute__((aligned(16))) = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1,
    0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3,
    0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786,
    0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147,
    0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13,
    0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b,
    0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a,
    0x5b9cca4f, 0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208,
    0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

/* The two halves of the state as the instructions want them: the words a, b,
 * e, f and the words c, d, g, h. */
struct halves {
    __m128i abef, cdgh;
};

__attribute__((target("sha,sse4.1,ssse3"))) static void
mix_block(struct halves *state, const uint8_t *block)
{
    const __m128i swap =
        _mm_set_epi64x(0x0c0d0e0f08090a0bLL, 0x0405060700010203LL);
    __m128i abef = state->abef, cdgh = state->cdgh, w[4];

    for (int i = 0; i < 16; i++) {
        __m128i words, next;

        if (i < 4) {
            words = _mm_shuffle_epi8(
                _mm_loadu_si128((const __m128i *)(block + 16 * i)), swap);
        } else {
            next = _mm_sha256msg1_epu32(w[i & 3], w[(i + 1) & 3]);
            next = _mm_add_epi32(
                next, _mm_alignr_epi8(w[(i + 3) & 3], w[(i + 2) & 3], 4));
            words = _mm_sha256msg2_epu32(next, w[(i + 3) & 3]);
        }
        w[i & 3] = words;
        words = _mm_add_epi32(
            words, _mm_load_si128((const __m128i *)(round_words + 4 * i)));
        cdgh = _mm_sha256rnds2_epu32(cdgh, abef, words);
        abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(words, 14));
    }
    state->abef = _mm_add_epi32(state->abef, abef);
    state->cdgh = _mm_add_epi32(state->cdgh, cdgh);
}

static void
put_digest(const struct halves *state, uint8_t digest[IDEM__SHA256_LEN])
{
    uint32_t abef[4], cdgh[4], words[8];

    _mm_storeu_si128((__m128i *)abef, state->abef);
    _mm_storeu_si128((__m128i *)cdgh, state->cdgh);
    memcpy(words,
           (uint32_t[]){abef[3], abef[2], cdgh[3], cdgh[2], abef[1], abef[0],
                        cdgh[1], cdgh[0]},
           sizeof(words));
    for (int i = 0; i < 8; i++) {
        uint32_t big_endian = __builtin_bswap32(words[i]);

        memcpy(digest + 4 * i, &big_endian, 4);
    }
}

static void
hash_fast(const uint8_t *message, size_t len, uint8_t digest[IDEM__SHA256_LEN])
{
    struct halves state = {
        _mm_set_epi32(0x6a09e667, (int)0xbb67ae85, 0x510e527f, (int)0x9b05688c),
        _mm_set_epi32(0x3c6ef372, (int)0xa54ff53a, 0x1f83d9ab, 0x5be0cd19)};
    size_t rest = len % BLOCK, tail_len;
    uint8_t tail[2 * BLOCK] = {0};
    uint64_t bits = __builtin_bswap64((uint64_t)len * 8);

    for (size_t at = 0; at + BLOCK <= len; at += BLOCK)
        mix_block(&state, message + at);
    if (rest > 0)
        memcpy(tail, message + len - rest, rest);
    tail[rest] = 0x80;
    tail_len = rest + 9 <= BLOCK ? BLOCK : 2 * BLOCK;
    memcpy(tail + tail_len - 8, &bits, 8);
    for (size_t at = 0; at < tail_len; at += BLOCK)
        mix_block(&state, tail + at);
    put_digest(&state, digest);
}

/* 1: has them, 2: has them not, 0: not asked yet. Asking twice does no harm. */
static int answer;

bool
idem__sha256_is_fast(void)
{
    int known = __atomic_load_n(&answer, __ATOMIC_RELAXED);

    if (known == 0) {
        unsigned a, b, c, d, c1, d1;
        bool has = __get_cpuid_count(7, 0, &a, &b, &c, &d) &&
                   (b & (1u << 29)) && __get_cpuid(1, &a, &b, &c1, &d1) &&
                   (c1 & (1u << 19)) && (c1 & (1u << 9));

        known = has ? 1 : 2;
        __atomic_store_n(&answer, known, __ATOMIC_RELAXED);
    }
    return known == 1;
}

#else

bool
idem__sha256_is_fast(void)
{
    return false;
}

static void
hash_fast(const uint8_t *message, size_t len, uint8_t digest[IDEM__SHA256_LEN])
{
    crypto_hash_sha256(digest, message, len);
}

#endif

void
idem__sha256(const uint8_t *message, size_t len,
             uint8_t digest[IDEM__SHA256_LEN])
{
    if (idem__sha256_is_fast())
        hash_fast(message, len, digest);
    else
        crypto_hash_sha256(digest, message, len);
}
