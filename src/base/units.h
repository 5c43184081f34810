/*
 * units.h - numbers as people write them: 1500ms, 30s, 5m, 64k, 1GiB.
 */
#ifndef IDEM__UNITS_H
#define IDEM__UNITS_H

#include <stdbool.h>
#include <stdint.h>

enum idem__unit { IDEM__UNIT_NONE, IDEM__UNIT_TIME, IDEM__UNIT_SIZE };

/*
 * A whole number of at least 0 in milliseconds or bytes. A time needs a unit,
 * for some would take 30 for seconds and others for milliseconds; only 0 needs
 * none. False: it is not one, or is too large.
 */
bool idem__units_parse(enum idem__unit unit, const char *text, int64_t *value);

/* What is wrong with a time that could not be read, as the end of a message:
 * `has no unit: 30s or 30ms?`. */
#define IDEM__TIME_FLAW_LEN 96
const char *idem__time_flaw(const char *text, char flaw[IDEM__TIME_FLAW_LEN]);

#endif
