/*
 * auth.c - name and secret for the server, from a file that others cannot read.
 */
#include "client.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* One line, "name secret" or "name:secret"; made into the latter. */
static bool
parse_auth(char *text, char **auth)
{
    char *at = text, *gap;

    while (*at == '#' || *at == '\n')
        at += strcspn(at, "\n") + (strchr(at, '\n') != NULL);
    at[strcspn(at, "\r\n")] = 0;
    gap = at + strcspn(at, ": \t");
    if (*gap == 0 || gap == at)
        return false;
    *gap++ = ':';
    memmove(gap, gap + strspn(gap, " \t"),
            strlen(gap + strspn(gap, " \t")) + 1);
    gap[strcspn(gap, " \t")] = 0;
    *auth = strdup(at);
    return *gap && *auth;
}

enum idem_status
cli_read_auth(const char *file, char **auth, struct idem_error *err)
{
    int fd = open(file, O_RDONLY | O_CLOEXEC);
    struct stat about;
    char text[4096];
    ssize_t len;
    bool ok;

    if (fd < 0 || fstat(fd, &about) != 0) {
        if (fd >= 0)
            close(fd);
        return idem__fail(err, IDEM_ERR_INVALID, "cannot read %s: %s", file,
                          strerror(errno));
    }
    len = read(fd, text, sizeof(text) - 1);
    close(fd);
    if (about.st_mode & (S_IROTH | S_IWOTH))
        return idem__fail(err, IDEM_ERR_INVALID,
                          "%s can be read by everybody: chmod 600 it", file);
    text[len > 0 ? len : 0] = 0;
    ok = parse_auth(text, auth);
    explicit_bzero(text, sizeof(text));
    if (ok)
        return IDEM_OK;
    return idem__fail(err, IDEM_ERR_INVALID, "%s has no line \"name secret\"",
                      file);
}
