/*
 * utf8.h - writes a code point as UTF-8. The function is inline, so that the
 * nginx module can use it too.
 */
#ifndef IDEM__UTF8_H
#define IDEM__UTF8_H

#include <stddef.h>
#include <stdint.h>

/* Returns how many bytes it wrote. */
static inline size_t
idem__utf8_write(uint32_t c, uint8_t out[4])
{
    size_t more = c < 0x80 ? 0 : c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;
    static const uint8_t first[] = {0, 0xc0, 0xe0, 0xf0};

    out[0] = (uint8_t)(first[more] | c >> 6 * more);
    for (size_t i = 1; i <= more; i++)
        out[i] = (uint8_t)(0x80 | (c >> 6 * (more - i) & 0x3f));
    return more + 1;
}

#endif
