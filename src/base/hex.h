/*
 * hex.h - converts bytes to hex digits and back, and %xx in URLs. The functions
 * are inline, so that the nginx module can use them too.
 */
#ifndef IDEM__HEX_H
#define IDEM__HEX_H

#include "le.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The value of a hex digit; -1 if the character is not one. */
static inline int
idem__hex_digit(int c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* The byte of two hex digits; -1 if one of them is not a hex digit. */
static inline int
idem__hex_byte(const void *digits)
{
    const uint8_t *in = digits;
    int high = idem__hex_digit(in[0]);
    int low = high < 0 ? -1 : idem__hex_digit(in[1]);

    return low < 0 ? -1 : high << 4 | low;
}

/* Read exactly `len` bytes from 2 * len digits. False: the text is not that. */
static inline bool
idem__hex_read(const void *text, size_t text_len, uint8_t *out, size_t len)
{
    if (text_len != 2 * len)
        return false;
    for (size_t i = 0; i < len; i++) {
        int byte = idem__hex_byte((const uint8_t *)text + 2 * i);

        if (byte < 0)
            return false;
        out[i] = (uint8_t)byte;
    }
    return true;
}

/* Write the eight digits of four bytes: each half byte gets a byte of its own,
 * and then all eight become characters together. */
static inline void
idem__hex_write_four(const uint8_t *in, uint8_t *out)
{
    uint64_t wide = idem__get32(in), each = UINT64_C(0x0101010101010101);
    uint64_t halves, letters;

    wide = (wide | wide << 16) & UINT64_C(0x0000ffff0000ffff);
    wide = (wide | wide << 8) & UINT64_C(0x00ff00ff00ff00ff);
    halves = (wide >> 4 | wide << 8) & 15 * each;
    letters = (halves + 6 * each) >> 4 & each; /* 1 for a to f */
    idem__put64(out, halves + '0' * each + ('a' - '0' - 10) * letters);
}

/* Write 2 * len digits, without a NUL. */
static inline void
idem__hex_write(const void *data, size_t len, void *out)
{
    static const char digits[] = "0123456789abcdef";
    const uint8_t *in = data;
    uint8_t *to = out;

    for (; len >= 4; len -= 4, in += 4, to += 8)
        idem__hex_write_four(in, to);
    for (; len > 0; len--, in++) {
        *to++ = (uint8_t)digits[*in >> 4];
        *to++ = (uint8_t)digits[*in & 15];
    }
}

/* Replace each %xx by its byte; `out` may be `text`. plus: "+" is a space, as
 * in a query. Returns the length, or -1: two hex digits do not follow a %. */
static inline ptrdiff_t
idem__percent_read(const void *text, size_t len, bool plus, void *out)
{
    const uint8_t *at = text, *end = at + len;
    uint8_t *to = out;

    for (; at < end; at++) {
        int byte = *at == '+' && plus ? ' ' : *at;

        if (byte == '%') {
            byte = end - at > 2 ? idem__hex_byte(at + 1) : -1;
            if (byte < 0)
                return -1;
            at += 2;
        }
        *to++ = (uint8_t)byte;
    }
    return to - (uint8_t *)out;
}

/* Write a byte as %xx, without a NUL. */
static inline char *
idem__percent_write(char byte, char *out)
{
    *out = '%';
    idem__hex_write(&byte, 1, out + 1);
    return out + 3;
}

#endif
