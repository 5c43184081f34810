/*
 * le.h - reads and writes numbers as little-endian bytes on any machine.
 */
#ifndef IDEM__LE_H
#define IDEM__LE_H

#include <endian.h>
#include <stdint.h>
#include <string.h>

static inline void
idem__put32(uint8_t *at, uint32_t value)
{
    value = htole32(value);
    memcpy(at, &value, sizeof(value));
}

static inline void
idem__put64(uint8_t *at, uint64_t value)
{
    value = htole64(value);
    memcpy(at, &value, sizeof(value));
}

static inline uint32_t
idem__get32(const uint8_t *at)
{
    uint32_t value;

    memcpy(&value, at, sizeof(value));
    return le32toh(value);
}

static inline uint64_t
idem__get64(const uint8_t *at)
{
    uint64_t value;

    memcpy(&value, at, sizeof(value));
    return le64toh(value);
}

#endif
