/*
 * check_effect.c - measure the effects of the requests with --effect-url.
 */
#include "check.h"

#include "../base/wait.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SETTLE_MS 5000
#define EFFECT_MS 50 /* at least, of one effect */

void
check_pause_ms(int64_t ms)
{
    struct timespec t = {ms / 1000, ms % 1000 * 1000000};

    nanosleep(&t, NULL);
}

static bool
number_in_text(const char *text, double *value)
{
    const char *digit = text ? strpbrk(text, "0123456789") : NULL;

    if (digit)
        *value =
            strtod(digit > text && digit[-1] == '-' ? digit - 1 : digit, NULL);
    return digit;
}

/* The named member, else the first one that is a number or an array. */
static json_t *
find_member(const struct check *check, json_t *object)
{
    const char *name;
    json_t *member;

    if (check->effect_field)
        return json_object_get(object, check->effect_field);
    json_object_foreach(object, name, member)
    {
        if (json_is_number(member) || json_is_array(member))
            return member;
    }
    return NULL;
}

/* The value is a number, the length of an array, a member of an object that is
 * one of these, or else the first number in a text. */
static bool
read_number(const struct check *check, const char *text, double *value)
{
    json_t *json = json_loads(text, JSON_DECODE_ANY, NULL);
    json_t *found = json_is_object(json) ? find_member(check, json) : json;
    bool fine = true;

    if (json_is_number(found))
        *value = json_number_value(found);
    else if (json_is_array(found))
        *value = (double)json_array_size(found);
    else
        fine = number_in_text(json ? json_string_value(found) : text, value);
    json_decref(json);
    return fine;
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
        idem__fail(
            &check->err, IDEM_ERR_INVALID,
            "%s: the response is not a number; give an --effect-url that "
            "returns the number of effects, and --effect-field if it is "
            "a field of JSON",
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

/* The value after all effects of the round have become visible. A service may
 * do one after the other, so many requests may take as many times longer. */
bool
check_read_change(struct check *check, double before, struct check_round *round)
{
    int64_t each_ms =
        check->visible_ms > EFFECT_MS ? check->visible_ms : EFFECT_MS;
    int64_t until = idem__mono_ms() + SETTLE_MS + check->parallel * each_ms;
    double now, last;
    bool again = false;

    if (!check->effect_url)
        return true;
    check_pause_ms(check->visible_ms);
    if (!check_read_effect(check, &now))
        return false;
    do {
        if (again && idem__mono_ms() > until) {
            idem__fail(&check->err, IDEM_ERR_INVALID,
                       "%.120s: the number changes all the time: use a test "
                       "system that nobody else uses, and an --effect-url that "
                       "returns the number of effects",
                       check->effect_url);
            return false;
        }
        again = true;
        last = now;
        check_pause_ms(20 + check->visible_ms);
        if (!check_read_effect(check, &now))
            return false;
    } while (!check_same(now, last));
    round->change = now - before;
    return true;
}
