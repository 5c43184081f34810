/*
 * gateway_figures.c - see gateway_figures.h.
 */
#include "gateway_figures.h"

#include <fcntl.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

/* nginx never uses a name that could break a line of the output. */
static bool
is_name(const char *name)
{
    size_t len = strnlen(name, IDEM__FIGURES_NAME_MAX + 1);

    for (size_t i = 0; i < len; i++) {
        if (name[i] <= ' ' || name[i] > '~' || name[i] == '"' ||
            name[i] == '\\')
            return false;
    }
    return len > 0 && len <= IDEM__FIGURES_NAME_MAX;
}

size_t
gateway_figures_read(const char *path, struct idem__figures *figures)
{
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    ssize_t got = fd >= 0 ? pread(fd, figures, sizeof(*figures), 0) : -1;
    size_t used;

    if (fd >= 0)
        close(fd);
    if (got != (ssize_t)sizeof(*figures) ||
        strncmp(figures->magic, IDEM__FIGURES_MAGIC, sizeof(figures->magic)) !=
            0 ||
        figures->size != sizeof(*figures) ||
        figures->used > IDEM__FIGURES_ROUTES)
        return 0;
    used = (size_t)figures->used;
    for (size_t i = 0; i < used; i++)
        if (!is_name(figures->routes[i].name))
            return 0;
    return used;
}
