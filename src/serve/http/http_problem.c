/*
 * http_problem.c - write errors as problem+json; docs/problems.md has a heading
 * for each of them.
 */
#include "http.h"

#include <string.h>

enum idem__problem
http_problem_of(enum idem_status status)
{
    const char *word = idem_status_name(status);

    for (int i = 0; i < IDEM_PROBLEM_SERVER_COUNT; i++)
        if (strcmp(idem__problem_type(i)->name, word) == 0)
            return (enum idem__problem)i;
    return IDEM_PROBLEM_INTERNAL;
}

json_t *
http_problem(const char *base, enum idem__problem problem, const char *detail,
             bool retryable)
{
    const struct idem__problem_type *type = idem__problem_type(problem);
    json_t *object = json_object();
    int bad = 0;

    bad |= json_object_set_new(object, "type",
                               json_sprintf("%s%s", base, type->name));
    bad |= json_object_set_new(object, "title", json_string(type->title));
    bad |= json_object_set_new(object, "status",
                               json_integer((json_int_t)type->status));
    if (detail && *detail)
        bad |=
            json_object_set_new(object, "detail", http_text(idem_text(detail)));
    bad |= json_object_set_new(object, "retryable", json_boolean(retryable));
    bad |= json_object_set_new(object, "class",
                               json_string(idem__class_name(type->class)));
    if (!bad)
        return object;
    json_decref(object);
    return NULL;
}
