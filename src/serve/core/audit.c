/*
 * audit.c - record the name of an operator and the address of its connection.
 */
#include "audit.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>

static void
note_user(struct audit_source *source, int fd)
{
    struct ucred user;
    socklen_t len = sizeof(user);

    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &user, &len) == 0)
        snprintf(source->from, sizeof(source->from), "uid=%u pid=%d",
                 (unsigned)user.uid, (int)user.pid);
}

void
audit_note_address(struct audit_source *source, const char *who,
                   const struct sockaddr *address)
{
    const void *host = NULL;

    snprintf(source->who, sizeof(source->who), "%s", who);
    source->first[0] = '\0';
    snprintf(source->from, sizeof(source->from), "unknown");
    if (address && address->sa_family == AF_INET)
        host = &((const struct sockaddr_in *)(const void *)address)->sin_addr;
    else if (address && address->sa_family == AF_INET6)
        host = &((const struct sockaddr_in6 *)(const void *)address)->sin6_addr;
    if (host)
        inet_ntop(address->sa_family, host, source->from, sizeof(source->from));
}

void
audit_note(struct audit_source *source, const char *who, int fd)
{
    struct sockaddr_storage address;
    socklen_t len = sizeof(address);
    const struct sockaddr *found = (const struct sockaddr *)&address;

    if (getpeername(fd, (struct sockaddr *)&address, &len) != 0)
        found = NULL;
    audit_note_address(source, who, found);
    if (found && address.ss_family == AF_UNIX)
        note_user(source, fd);
}
