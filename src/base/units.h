/*
 * units.h - numbers as people write them: 1500ms, 30s, 5m, 64k, 1GiB.
 */
#ifndef IDEM__UNITS_H
#define IDEM__UNITS_H

#include <stdbool.h>
#include <stdint.h>

enum idem__unit { IDEM__UNIT_NONE, IDEM__UNIT_TIME, IDEM__UNIT_SIZE };

/*
 * A whole number of at least 0 in milliseconds or bytes. False: it is not one,
 * or is too large.
 */
bool idem__units_parse(enum idem__unit unit, const char *text, int64_t *value);

#endif
