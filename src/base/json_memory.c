/*
 * json_memory.c - counts the failed allocations of jansson, on each thread.
 */
#include "json_memory.h"

#include <stdlib.h>

static _Thread_local bool starved;

static void *
take(size_t len)
{
    void *data = malloc(len);

    if (!data)
        starved = true;
    return data;
}

void
idem__json_watch(void)
{
    json_set_alloc_funcs(take, free);
}

void
idem__json_begin(void)
{
    starved = false;
}

bool
idem__json_starved(void)
{
    return starved;
}

char *
idem__json_text(json_t *json)
{
    char *text = json ? json_dumps(json, JSON_COMPACT) : NULL;

    json_decref(json);
    if (!starved)
        return text;
    free(text);
    return NULL;
}
