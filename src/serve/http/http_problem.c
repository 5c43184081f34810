/*
 * http_problem.c - errors as problem+json; docs/problems.md has a heading for
 * each of them.
 */
#include "http.h"

#include <string.h>

const struct http_problem_type http_problems[HTTP_PROBLEM_COUNT] = {
#define X(name, word, status, retryable, title)                                \
    {word, status, retryable, title},
    HTTP_PROBLEM_MAP(X)
#undef X
};

enum http_problem
http_problem_of(enum idem_status status)
{
    const char *word = idem_status_name(status);

    for (int i = 0; i < HTTP_PROBLEM_COUNT; i++)
        if (strcmp(http_problems[i].name, word) == 0)
            return (enum http_problem)i;
    return HTTP_P_INTERNAL;
}

json_t *
http_problem(enum http_problem problem, const char *detail, bool retryable)
{
    const struct http_problem_type *type = &http_problems[problem];
    json_t *object = json_object();
    int bad = 0;

    bad |= json_object_set_new(
        object, "type", json_sprintf(HTTP_PROBLEM_BASE "%s", type->name));
    bad |= json_object_set_new(object, "title", json_string(type->title));
    bad |= json_object_set_new(object, "status",
                               json_integer((json_int_t)type->status));
    if (detail && *detail)
        bad |=
            json_object_set_new(object, "detail", http_text(idem_text(detail)));
    bad |= json_object_set_new(object, "retryable", json_boolean(retryable));
    if (!bad)
        return object;
    json_decref(object);
    return NULL;
}
