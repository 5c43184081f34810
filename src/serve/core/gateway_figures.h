/*
 * gateway_figures.h - the counters of a gateway on this machine, by route, for
 * /metrics and INFO.
 */
#ifndef SERVER_GATEWAY_FIGURES_H
#define SERVER_GATEWAY_FIGURES_H

#include "../../base/figures.h"

#include <stddef.h>

/* Returns the number of routes; 0: `path` is NULL, the file does not exist,
 * nginx has not yet written to it, or it has another version. */
size_t gateway_figures_read(const char *path, struct idem__figures *figures);

#endif
