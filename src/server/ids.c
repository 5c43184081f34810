/*
 * ids.c - tokens and ids for both surfaces.
 */
#include "../record/record.h"
#include "server.h"

#include <idem/token.h>

void
server_new_token(char token[SERVER_TOKEN_LEN + 1])
{
    idem_token_make(token);
}

enum idem_status
server_ids(struct server *server, struct idem_bytes kind, size_t count,
           void (*each)(void *arg, struct idem_bytes id), void *arg,
           struct idem_error *err)
{
    (void)server;
    (void)count;
    (void)each;
    (void)arg;
    return idem__fail(err, IDEM_ERR_UNSUPPORTED, "no ids of the kind \"%.*s\"",
                      (int)(kind.len > 40 ? 40 : kind.len),
                      (const char *)kind.data);
}
