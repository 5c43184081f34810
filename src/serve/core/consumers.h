/*
 * consumers.h - read the metrics that `idem consume --metrics FILE` wrote on
 * this machine, for the console.
 */
#ifndef SERVER_CONSUMERS_H
#define SERVER_CONSUMERS_H

#include <jansson.h>

/* Reads at most CONSUMERS_MAX files of the folder that end in .prom; none if
 * `dir` is NULL. Returns a new reference; NULL: out of memory. */
#define CONSUMERS_MAX 100

json_t *consumers_list(const char *dir);

#endif
