/*
 * sha256.h - SHA-256 of a message in one piece, with the processor's own
 * instructions where it has them.
 */
#ifndef IDEM__SHA256_H
#define IDEM__SHA256_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define IDEM__SHA256_LEN 32

void idem__sha256(const uint8_t *message, size_t len,
                  uint8_t digest[IDEM__SHA256_LEN]);

/* Does this processor have the instructions? For tests. */
bool idem__sha256_is_fast(void);

#endif
