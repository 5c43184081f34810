/*
 * units.h - parses numbers with units: 1500ms, 30s, 5m, 64k, 1GiB.
 */
#ifndef IDEM__UNITS_H
#define IDEM__UNITS_H

#include <stdbool.h>
#include <stdint.h>

enum idem__unit { IDEM__UNIT_NONE, IDEM__UNIT_TIME, IDEM__UNIT_SIZE };

/*
 * A whole number, 0 or more, in milliseconds or bytes. A time needs a unit,
 * because 30 alone could mean seconds or milliseconds; only 0 needs none.
 * False: it is not a number, or too large.
 */
bool idem__units_parse(enum idem__unit unit, const char *text, int64_t *value);

/* What is wrong with a time that could not be parsed, as the end of a message:
 * `has no unit: 30s or 30ms?`. The name of a TTL gets `7h or 7d?`. */
#define IDEM__TIME_FLAW_LEN 96
const char *idem__time_flaw(const char *name, const char *text,
                            char flaw[IDEM__TIME_FLAW_LEN]);

#endif
