/*
 * check_effect.c - how much happened, as --effect-url tells it.
 */
#include "check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

void
check_pause_ms(int64_t ms)
{
    struct timespec t = {ms / 1000, ms % 1000 * 1000000};

    nanosleep(&t, NULL);
}

/* A number, the length of an array, the named or first such member of an
 * object, else the first number in a text. */
static bool
read_number(const struct check *check, const char *text, double *value)
{
    json_t *json = json_loads(text, JSON_DECODE_ANY, NULL), *found = json;
    const char *name;
    json_t *member;

    if (json_is_object(json)) {
        found = json_object_get(json,
                                check->effect_field ? check->effect_field : "");
        json_object_foreach(json, name, member)
        {
            if (!found && !check->effect_field &&
                (json_is_number(member) || json_is_array(member)))
                found = member;
        }
    }
    if (json_is_number(found))
        *value = json_number_value(found);
    else if (json_is_array(found))
        *value = (double)json_array_size(found);
    else if (json_is_string(found))
        text = json_string_value(found);
    if (!json || json_is_string(found)) {
        const char *digit = strpbrk(text, "0123456789");

        if (digit)
            *value = strtod(
                digit > text && digit[-1] == '-' ? digit - 1 : digit, NULL);
        json_decref(json);
        return digit;
    }
    json_decref(json);
    return found && !json_is_object(found);
}

bool
check_read_effect(struct check *check, double *value)
{
    struct idem_buf body;
    bool fine;

    *value = 0;
    if (!check->effect_url)
        return true;
    fine = check_fetch(check->effect_url, &check->headers,
                       check->target.timeout_ms, &body, &check->err) == IDEM_OK;
    if (fine && !read_number(check, (const char *)body.data, value)) {
        idem__fail(&check->err, IDEM_ERR_INVALID,
                   "%s answers no number: give a URL that tells how much "
                   "happened, and --effect-field if it is a field of JSON",
                   check->effect_url);
        fine = false;
    }
    idem_buf_clear(&body);
    return fine;
}

bool
check_same(double a, double b)
{
    return fabs(a - b) <= 1e-9 * (fabs(a) + fabs(b)) + 1e-9;
}

/* The number when all effects of the round have come in. */
bool
check_read_settled(struct check *check, double before,
                   struct check_round *round)
{
    double now, last;

    if (!check->effect_url)
        return true;
    check_pause_ms(check->settle_ms);
    if (!check_read_effect(check, &now))
        return false;
    do {
        last = now;
        check_pause_ms(20 + check->settle_ms);
        if (!check_read_effect(check, &now))
            return false;
    } while (!check_same(now, last));
    round->change = now - before;
    return true;
}
