/*
 * files.c - tell the files that idem was started with from those that it
 * opened.
 */
#include "cli.h"

#include <fcntl.h>
#include <unistd.h>

#define NOTED 256 /* enough, as new files get the lowest free numbers */

static bool given[NOTED];

/* If a standard stream is closed, occupy its number with a descriptor that can
 * be neither read nor written. Otherwise a connection could get that number and
 * would be sent whatever is printed. */
void
cli_files_hold(void)
{
    int fd;

    do
        fd = open("/dev/null", O_PATH);
    while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd > STDERR_FILENO)
        close(fd);
}

void
cli_files_note(void)
{
    for (int fd = 0; fd < NOTED; fd++)
        given[fd] = fcntl(fd, F_GETFD) >= 0;
}

void
cli_files_leave(void)
{
    for (int fd = 0; fd < NOTED; fd++)
        if (!given[fd])
            (void)fcntl(fd, F_SETFD, FD_CLOEXEC);
}
