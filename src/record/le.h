/*
 * le.h - numbers as little-endian bytes, whatever the machine.
 */
#ifndef IDEM__LE_H
#define IDEM__LE_H

#include <stdint.h>

static inline void
idem__put32(uint8_t *at, uint32_t value)
{
    for (int i = 0; i < 4; i++)
        at[i] = (uint8_t)(value >> (8 * i));
}

static inline void
idem__put64(uint8_t *at, uint64_t value)
{
    for (int i = 0; i < 8; i++)
        at[i] = (uint8_t)(value >> (8 * i));
}

static inline uint32_t
idem__get32(const uint8_t *at)
{
    uint32_t value = 0;

    for (int i = 0; i < 4; i++)
        value |= (uint32_t)at[i] << (8 * i);
    return value;
}

static inline uint64_t
idem__get64(const uint8_t *at)
{
    return idem__get32(at) | (uint64_t)idem__get32(at + 4) << 32;
}

#endif
