/*
 * gateway_figures.h - what a gateway on this machine has counted, by route, for
 * /metrics and INFO.
 */
#ifndef SERVER_GATEWAY_FIGURES_H
#define SERVER_GATEWAY_FIGURES_H

#include "../../base/figures.h"

#include <stddef.h>

/* How many routes it has; 0: `path` is NULL, there is no such file, nginx has
 * not begun it, or it is of another version. */
size_t gateway_figures_read(const char *path, struct idem__figures *figures);

#endif
