/*
 * address.c - reads and writes HOST:PORT.
 */
#include "address.h"

#include <stdio.h>
#include <string.h>

int
idem__port_read(const char *text, size_t len)
{
    int port = 0;

    if (len > 5)
        return 0;
    for (size_t i = 0; i < len; i++) {
        if (text[i] < '0' || text[i] > '9')
            return 0;
        port = port * 10 + (text[i] - '0');
    }
    return port <= 65535 ? port : 0;
}

const char *
idem__address_read(const char *text, size_t len, struct idem__address *address)
{
    bool brackets = len > 0 && text[0] == '[';
    const char *end = text + len, *host = brackets ? text + 1 : text;
    const char *host_end = memchr(text, brackets ? ']' : ':', len);
    const char *rest = host_end && brackets ? host_end + 1 : host_end;

    *address = (struct idem__address){{"", 0}, 0};
    if (brackets && (!host_end || (rest < end && *rest != ':')))
        return "an IPv6 address ends with \"]\"";
    address->host.data = host;
    address->host.len = (size_t)((host_end ? host_end : end) - host);
    if (brackets && address->host.len == 0)
        return "a host name is missing";
    if (!rest || rest == end)
        return NULL;
    address->port = idem__port_read(rest + 1, (size_t)(end - rest - 1));
    return address->port ? NULL : "a port is a number from 1 to 65535";
}

const char *
idem__address_write(const char *host, int port, char out[IDEM__ADDRESS_LEN])
{
    snprintf(out, IDEM__ADDRESS_LEN,
             strchr(host, ':') ? "[%.280s]:%d" : "%.280s:%d", host, port);
    return out;
}
