/*
 * top.h - what the parts of idem top share: a look is the text of INFO.
 */
#ifndef IDEM__CLI_TOP_H
#define IDEM__CLI_TOP_H

#include "cli.h"

struct top_look {
    char *text;
    int64_t at_us;
};

/* The value behind "name:"; NULL if there is none. */
const char *top_find(const struct top_look *look, const char *name);

/* top_sections.c: what a gateway's routes did between two looks, and the
 * figures of the store. Without a gateway, or without figures, nothing. */
void top_show_routes(const struct top_look *then, const struct top_look *now);
void top_show_store(const struct top_look *now);
json_t *top_routes_json(const struct top_look *then,
                        const struct top_look *now);
json_t *top_store_json(const struct top_look *now);

#endif
