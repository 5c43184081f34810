/*
 * wire_digits.h - reads the digits of a RESP value; inline, because answers
 * consist mostly of numbers.
 */
#ifndef IDEM__WIRE_DIGITS_H
#define IDEM__WIRE_DIGITS_H

#include "wire.h"

/* Read a number up to CR LF, and skip those. */
static inline enum idem__wire_got
idem__wire_read_digits(struct idem__wire_reader *in, int64_t *number)
{
    bool minus = in->at < in->end && *in->at == '-';
    const uint8_t *at = in->at + minus, *first = at;
    const uint8_t *last = in->end - at > 18 ? at + 18 : in->end;
    uint64_t sum = 0;
    unsigned digit;

    while (at < last && (digit = *at - (unsigned)'0') < 10) {
        sum = sum * 10 + digit;
        at++;
    }
    if (at == in->end)
        return IDEM__WIRE_MORE;
    if (at == first || *at != '\r')
        return IDEM__WIRE_BAD;
    if (at + 1 == in->end)
        return IDEM__WIRE_MORE;
    if (at[1] != '\n')
        return IDEM__WIRE_BAD;
    *number = minus ? -(int64_t)sum : (int64_t)sum;
    in->at = at + 2;
    return IDEM__WIRE_DONE;
}

#endif
