/*
 * consumers.h - what `idem consume --metrics FILE` on this machine wrote, for
 * the console.
 */
#ifndef SERVER_CONSUMERS_H
#define SERVER_CONSUMERS_H

#include <jansson.h>

/* At most CONSUMERS_MAX files of the folder that end in .prom; a new reference,
 * NULL: out of memory. `dir` NULL: none. */
#define CONSUMERS_MAX 100

json_t *consumers_list(const char *dir);

#endif
