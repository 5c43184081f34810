/*
 * gateway_file.c - read a gateway's options from a file: `name = value` lines,
 * and a section for each route.
 */
#include "gateway.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FILE_MAX (1024 * 1024)

static char *
strip(char *text)
{
    char *end = text + strlen(text);

    while (end > text && (end[-1] == ' ' || end[-1] == '\t' || end[-1] == '\r'))
        *--end = '\0';
    while (*text == ' ' || *text == '\t')
        text++;
    return text;
}

static enum idem_status
open_route(struct gateway_config *config, char *line,
           struct gateway_route **route, struct idem_error *err)
{
    size_t len = strlen(line);
    const char *bare;
    char *path;

    if (strncmp(line, "[route ", 7) != 0 || line[len - 1] != ']')
        return idem__fail(err, IDEM_ERR_INVALID,
                          "unknown section: only [route PATH] is allowed");
    line[len - 1] = '\0';
    path = strip(line + 7);
    bare = strncmp(path, "= ", 2) == 0 ? path + 2 : path;
    if (bare[0] != '/')
        return idem__fail(err, IDEM_ERR_INVALID,
                          "the route \"%s\" does not begin with a /", bare);
    if (config->route_count == GATEWAY_ROUTES_MAX)
        return idem__fail(err, IDEM_ERR_INVALID, "more than %d routes",
                          GATEWAY_ROUTES_MAX);
    *route = &config->routes[config->route_count++];
    return idem__text_set(&(*route)->path, path, err);
}

static enum idem_status
read_line(struct gateway_config *config, char *line,
          struct gateway_route **route, struct idem_error *err)
{
    char *equals;

    line = strip(line);
    if (*line == '\0' || *line == '#')
        return IDEM_OK;
    if (*line == '[')
        return open_route(config, line, route, err);
    equals = strchr(line, '=');
    if (!equals)
        return idem__fail(err, IDEM_ERR_INVALID,
                          "the line is not `name = value`");
    *equals = '\0';
    return gateway_config_set(config, *route, strip(line), strip(equals + 1),
                              err);
}

/* Called when the section of this route is over, because its host may be on
 * any of its lines. */
static enum idem_status
check_repeated(const struct gateway_config *config,
               const struct gateway_route *route, struct idem_error *err)
{
    const struct gateway_route *other = config->routes;
    const char *host = route && route->host ? route->host : "";

    for (; route && other < route; other++) {
        if (strcmp(other->path, route->path) == 0 &&
            strcmp(other->host ? other->host : "", host) == 0)
            return idem__fail(err, IDEM_ERR_INVALID,
                              "the route %s is given twice; remove one of them",
                              route->path);
    }
    return IDEM_OK;
}

enum idem_status
gateway_config_text(struct gateway_config *config, const char *file,
                    struct idem_bytes text, struct idem_error *err)
{
    struct gateway_route *route = NULL, *before;
    enum idem_status status = IDEM_OK;
    struct idem_error inner = {0};
    size_t number = 1, at = 0; /* lines: the next one, and that of the error */
    size_t begun = 0;          /* ... and where this route begins */
    char *copy = strndup(text.len ? text.data : "", text.len);
    char *rest = copy;
    char *line;

    if (!copy)
        return idem__fail(err, IDEM_ERR_MEMORY, "out of memory");
    for (; status == IDEM_OK && (line = strsep(&rest, "\n")); number++) {
        before = route;
        at = number;
        status = read_line(config, line, &route, &inner);
        if (status == IDEM_OK && route != before) {
            at = begun;
            begun = number;
            status = check_repeated(config, before, &inner);
        }
    }
    if (status == IDEM_OK) {
        at = begun;
        status = check_repeated(config, route, &inner);
    }
    if (status != IDEM_OK)
        (void)idem__fail(err, status, "%s:%zu: %s", file, at, inner.text);
    free(copy);
    return status;
}

enum idem_status
gateway_config_file(struct gateway_config *config, const char *file,
                    struct idem_error *err)
{
    struct idem_buf text;
    enum idem_status status = IDEM_OK;
    int fd = open(file, O_RDONLY | O_CLOEXEC);
    uint8_t *room;
    ssize_t n = 0;

    if (fd < 0)
        return idem__fail(err, IDEM_ERR_INVALID,
                          "cannot read the configuration file %s: %s; correct "
                          "--config",
                          file, strerror(errno));
    idem_buf_init(&text, FILE_MAX);
    while ((room = idem_buf_room(&text, 4096)) &&
           (n = read(fd, room, 4096)) > 0)
        text.len += (size_t)n;
    if (n != 0 || !room)
        status = idem__fail(err, IDEM_ERR_INVALID, "%s: %s", file,
                            room ? strerror(errno) : "longer than 1 MiB");
    close(fd);
    if (status == IDEM_OK)
        status = gateway_config_text(
            config, file, (struct idem_bytes){text.data, text.len}, err);
    idem_buf_clear(&text);
    return status;
}
