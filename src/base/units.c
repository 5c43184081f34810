/*
 * units.c - parses numbers with units.
 */
#include "units.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define MIB (INT64_C(1024) * 1024)
#define HOUR_MS INT64_C(3600000)

static const struct {
    enum idem__unit unit;
    const char *name;
    int64_t factor;
} names[] = {
    {IDEM__UNIT_NONE, "", 1},
    {IDEM__UNIT_TIME, "ms", 1},
    {IDEM__UNIT_TIME, "s", 1000},
    {IDEM__UNIT_TIME, "m", 60000},
    {IDEM__UNIT_TIME, "h", HOUR_MS},
    {IDEM__UNIT_TIME, "d", 24 * HOUR_MS},
    {IDEM__UNIT_SIZE, "", 1},
    {IDEM__UNIT_SIZE, "k", 1024},
    {IDEM__UNIT_SIZE, "m", MIB},
    {IDEM__UNIT_SIZE, "g", 1024 * MIB},
    {IDEM__UNIT_SIZE, "kib", 1024},
    {IDEM__UNIT_SIZE, "mib", MIB},
    {IDEM__UNIT_SIZE, "gib", 1024 * MIB},
};

bool
idem__units_parse(enum idem__unit unit, const char *text, int64_t *value)
{
    long long number;
    int64_t factor = 0;
    char *end;

    if (text[0] < '0' || text[0] > '9')
        return false;
    errno = 0;
    number = strtoll(text, &end, 10);
    if (unit == IDEM__UNIT_TIME && number == 0 && *end == '\0')
        factor = 1;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (names[i].unit == unit && strcasecmp(end, names[i].name) == 0)
            factor = names[i].factor;
    }
    return errno == 0 && factor > 0 &&
           !__builtin_mul_overflow(number, factor, value);
}

const char *
idem__time_flaw(const char *name, const char *text,
                char flaw[IDEM__TIME_FLAW_LEN])
{
    size_t digits = strspn(text, "0123456789");
    bool is_long = strstr(name, "ttl") != NULL;

    if (digits > 0 && digits < 20 && text[digits] == '\0')
        snprintf(flaw, IDEM__TIME_FLAW_LEN, "has no unit: %s%s or %s%s?", text,
                 is_long ? "h" : "s", text, is_long ? "d" : "ms");
    else
        snprintf(flaw, IDEM__TIME_FLAW_LEN,
                 "is not a time: give 1500ms, 30s, 5m, 24h, 7d");
    return flaw;
}
