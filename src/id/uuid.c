/*
 * uuid.c - UUIDs, version 4 (random) and version 7 (time-ordered).
 *
 * Version 7 here: 48 bits of milliseconds, 12 bits that count up within one
 * millisecond from a random start, 62 random bits. The millisecond never goes
 * back in this process, and a full counter moves on to the next millisecond, so
 * the texts of one process increase strictly.
 */
#include "id.h"

#include "../base/hex.h"

#include <ctype.h>
#include <pthread.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>

static void
write_text(const uint8_t b[16], char out[IDEM_UUID_LEN + 1])
{
    char *at = out;

    for (int i = 0; i < 16; i++, at += 2) {
        if (i == 4 || i == 6 || i == 8 || i == 10)
            *at++ = '-';
        idem__hex_write(&b[i], 1, at);
    }
    *at = 0;
}

static void
mark(uint8_t b[16], int version)
{
    b[6] = (uint8_t)((b[6] & 0x0f) | version << 4);
    b[8] = (uint8_t)((b[8] & 0x3f) | 0x80);
}

void
idem_uuid4(char out[IDEM_UUID_LEN + 1])
{
    uint8_t b[16];

    randombytes_buf(b, sizeof(b));
    mark(b, 4);
    write_text(b, out);
}

/* Milliseconds << 12 | counter, strictly increasing in this process. */
static uint64_t
next_tick(uint16_t random)
{
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    static uint64_t last;
    int64_t now_ms = idem__system_clocks.wall_us(NULL) / 1000;
    uint64_t tick = (uint64_t)now_ms << 12 | (random & 0x7ff);

    pthread_mutex_lock(&mutex);
    if (tick <= last)
        tick = last + 1;
    last = tick;
    pthread_mutex_unlock(&mutex);
    return tick;
}

void
idem_uuid7(char out[IDEM_UUID_LEN + 1])
{
    uint8_t b[16];
    uint64_t tick;

    randombytes_buf(b, sizeof(b));
    tick = next_tick((uint16_t)(b[6] << 8 | b[7]));
    for (int i = 0; i < 6; i++)
        b[i] = (uint8_t)(tick >> (12 + 8 * (5 - i)));
    b[6] = (uint8_t)((tick >> 8) & 0x0f);
    b[7] = (uint8_t)tick;
    mark(b, 7);
    write_text(b, out);
}

static bool
read_text(const char *text, uint8_t b[16])
{
    int digits = 0;

    for (int i = 0; i < IDEM_UUID_LEN; i++) {
        bool dash = i == 8 || i == 13 || i == 18 || i == 23;
        int value = idem__hex_digit(text[i]);

        if (text[i] == 0 || (dash && text[i] != '-') || (!dash && value < 0))
            return false;
        if (dash)
            continue;
        b[digits / 2] =
            (uint8_t)(digits % 2 ? b[digits / 2] | value : value << 4);
        digits++;
    }
    return text[IDEM_UUID_LEN] == 0;
}

enum idem_status
idem_uuid_explain(const char *text, int *version, int64_t *time_ms,
                  struct idem_error *err)
{
    uint8_t b[16];
    int64_t ms = 0;

    if (!read_text(text, b) || (b[8] & 0xc0) != 0x80)
        return idem__fail(err, IDEM_ERR_INVALID,
                          "that is not a UUID: expected 32 hex digits as "
                          "8-4-4-4-12");
    for (int i = 0; i < 6; i++)
        ms = ms << 8 | b[i];
    *version = b[6] >> 4;
    *time_ms = *version == 7 ? ms : -1;
    return IDEM_OK;
}
