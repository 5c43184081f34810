/*
 * address.h - HOST:PORT as people write it: db1:6379, [::1]:6390, :6390.
 *
 * The brackets around an IPv6 address are not part of the host.
 */
#ifndef IDEM__ADDRESS_H
#define IDEM__ADDRESS_H

#include <idem/record.h>

struct idem__address {
    struct idem_bytes host; /* a view of the text; empty: not given */
    int port;               /* 0: not given */
};

/* Returns NULL, or what is wrong with the text. */
const char *idem__address_read(const char *text, size_t len,
                               struct idem__address *address);

/* The port that the text is, from 1 to 65535; 0: it is not a port. */
int idem__port_read(const char *text, size_t len);

/* Write HOST:PORT. A host that is too long is cut. */
#define IDEM__ADDRESS_LEN 300
const char *idem__address_write(const char *host, int port,
                                char out[IDEM__ADDRESS_LEN]);

#endif
