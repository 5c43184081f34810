/*
 * id_options.c - parses the generators' options from text, for the server's
 * configuration file, its flags and `idem id`.
 */
#include "id.h"

#include "../base/units.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Parse `count` numbers of at most `most`, separated by a character. */
static bool
read_numbers(const char *text, char sign, uint64_t most, uint64_t *numbers,
             size_t count)
{
    for (size_t i = 0; i < count; i++) {
        char *end;

        if (*text < '0' || *text > '9')
            return false;
        numbers[i] = strtoull(text, &end, 10);
        if (numbers[i] > most || *end != (i + 1 < count ? sign : 0))
            return false;
        text = end + 1;
    }
    return true;
}

/* Parse a date; the day begins at midnight UTC. */
static bool
read_day(const char *text, int64_t *seconds)
{
    struct tm tm = {0};
    const char *end = strptime(text, "%Y-%m-%d", &tm);

    *seconds = end ? (int64_t)timegm(&tm) : 0;
    return end && *end == 0 && *seconds != 0;
}

static bool
read_step(const char *text, uint64_t *step)
{
    int64_t number;

    if (!idem__units_parse(IDEM__UNIT_NONE, text, &number) || number < 1)
        return false;
    *step = (uint64_t)number;
    return true;
}

bool
idem__ids_option_known(const char *name)
{
    static const char *const names[] = {"uid-bits",        "uid-epoch",
                                        "snowflake-epoch", "worker-numbers",
                                        "segment-step",    "segment-step-max"};

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (strcmp(names[i], name) == 0)
            return true;
    }
    return false;
}

enum idem_status
idem__ids_option_set(struct idem_ids_options *options, const char *name,
                     const char *value, struct idem_error *err)
{
    const char *shape = NULL;
    uint64_t numbers[3];
    int64_t seconds;

    if (strcmp(name, "uid-bits") == 0) {
        shape = "three numbers like 28,22,13";
        if (read_numbers(value, ',', 63, numbers, 3)) {
            options->uid_seconds_bits = (int)numbers[0];
            options->uid_worker_bits = (int)numbers[1];
            options->uid_sequence_bits = (int)numbers[2];
            return IDEM_OK;
        }
    } else if (strcmp(name, "worker-numbers") == 0) {
        shape = "a range like 0-511";
        if (read_numbers(value, '-', INT64_MAX, numbers, 2) &&
            numbers[0] <= numbers[1]) {
            options->worker_first = numbers[0];
            options->worker_count = numbers[1] - numbers[0] + 1;
            return IDEM_OK;
        }
    } else if (strstr(name, "-epoch")) {
        shape = "a day like 2026-01-01";
        if (read_day(value, &seconds)) {
            if (name[0] == 'u')
                options->uid_epoch_s = seconds;
            else
                options->snowflake_epoch_ms = seconds * 1000;
            return IDEM_OK;
        }
    } else {
        shape = "a number, 1 or more";
        if (read_step(value, strstr(name, "-max") ? &options->segment_step_max
                                                  : &options->segment_step))
            return IDEM_OK;
    }
    return idem__fail(err, IDEM_ERR_INVALID, "%s is %s, not \"%.60s\"", name,
                      shape, value);
}

void
idem__id_layout_text(const struct layout *layout, char text[IDEM__LAYOUT_LEN])
{
    snprintf(text, IDEM__LAYOUT_LEN, "%d,%d,%d from %lld s", layout->time_bits,
             layout->worker_bits, layout->sequence_bits,
             (long long)(layout->epoch_ms / 1000));
}
