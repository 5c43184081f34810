/*
 * files.c - the files that idem was started with, and those that it opened.
 */
#include "cli.h"

#include <fcntl.h>
#include <unistd.h>

#define NOTED 256 /* what idem opens has the lowest numbers that are free */

static bool given[NOTED];

/* A closed standard stream is closed for who reads or writes it, but its number
 * is taken: a connection that got it would be sent whatever is printed. */
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
