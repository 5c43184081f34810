/*
 * engine_socket.c - the socket by which idem's commands reach the gateway's
 * engine.
 *
 * The engine listens in the gateway's own folder, where nginx finds it. A link
 * at the commands' default socket points to it, unless another server uses that
 * path.
 */
#include "engine_socket.h"

#include "../../serve/core/listen.h"
#include "../../serve/core/server.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Replaces a socket that a dead server or gateway left there. */
static enum idem_status
take(const char *path, const char *engine, struct idem_error *err)
{
    enum idem_status status = server_socket_make_way(path, err);

    if (status != IDEM_OK)
        return status;
    if (symlink(engine, path) != 0)
        return idem__fail(err, IDEM_ERR_UNAVAILABLE, "%s: %s", path,
                          strerror(errno));
    return IDEM_OK;
}

enum idem_status
gateway_socket_take(const char *wanted, const char *engine, char *path,
                    size_t path_len, struct idem_error *err)
{
    enum idem_status status;

    path[0] = '\0';
    if (wanted && strcmp(wanted, "off") == 0)
        return IDEM_OK;
    if (wanted) {
        status = take(wanted, engine, err);
        if (status == IDEM_OK)
            snprintf(path, path_len, "%s", wanted);
        return status;
    }
    server_default_socket(path, path_len);
    if (server_default_folder(NULL) != IDEM_OK ||
        take(path, engine, NULL) != IDEM_OK)
        path[0] = '\0';
    return IDEM_OK;
}

enum idem_status
gateway_socket_check(const char *wanted, struct idem_error *err)
{
    const char *slash = wanted ? strrchr(wanted, '/') : NULL;
    char folder[PATH_MAX] = ".";
    struct stat info;

    if (!wanted || strcmp(wanted, "off") == 0)
        return IDEM_OK;
    if (slash)
        snprintf(folder, sizeof(folder), "%.*s",
                 slash == wanted ? 1 : (int)(slash - wanted), wanted);
    if (access(folder, W_OK | X_OK) != 0)
        return idem__fail(err, IDEM_ERR_INVALID,
                          "socket %s: %s: %s; make this folder, or give "
                          "another path",
                          wanted, folder, strerror(errno));
    if (lstat(wanted, &info) == 0 && !S_ISSOCK(info.st_mode) &&
        !S_ISLNK(info.st_mode))
        return idem__fail(
            err, IDEM_ERR_INVALID,
            "%s exists and is not a socket; remove it, or give another path",
            wanted);
    return IDEM_OK;
}

void
gateway_socket_drop(const char *path, const char *engine)
{
    char target[PATH_MAX];
    ssize_t n = path[0] ? readlink(path, target, sizeof(target)) : -1;

    /* By now the link may belong to another gateway. */
    if (n > 0 && (size_t)n == strlen(engine) &&
        memcmp(target, engine, (size_t)n) == 0)
        (void)unlink(path);
}
