/*
 * top.h - shared by the parts of idem top; a look is one sample of INFO's text.
 */
#ifndef IDEM__CLI_TOP_H
#define IDEM__CLI_TOP_H

#include "cli.h"

struct top_look {
    char *text;
    int64_t at_us;
};

/* The value after "name:"; NULL if there is none. */
const char *top_find(const struct top_look *look, const char *name);

/* top_sections.c: print the activity of a gateway's routes between two samples,
 * and the figures of the store. Prints nothing without a gateway or without
 * figures. */
void top_show_routes(const struct top_look *then, const struct top_look *now);
void top_show_store(const struct top_look *now);
json_t *top_routes_json(const struct top_look *then,
                        const struct top_look *now);
json_t *top_store_json(const struct top_look *now);

#endif
