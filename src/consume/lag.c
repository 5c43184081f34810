/*
 * lag.c - how many messages a consumer is behind. The broker is asked on a
 * separate connection, so that no message waits for the question or its answer.
 */
#include "consume.h"

enum idem_status
idem_consume_lag(struct idem_consumer *c, int64_t *messages,
                 struct idem_error *err)
{
    enum idem_status status = IDEM_OK;
    struct idem_error own;

    err = err ? err : &own;
    if (!c->lag_source)
        status = idem__source_open(c, &c->lag_source, err);
    if (status != IDEM_OK)
        return status;
    status = c->lag_source->type->lag(c->lag_source, messages, err);
    if (status != IDEM_OK && status != IDEM_ERR_UNSUPPORTED) {
        idem__source_close(c->lag_source);
        c->lag_source = NULL;
    }
    return status;
}

struct idem_bytes
idem_consume_scope(const struct idem_consumer *c)
{
    return idem_text(c->scope);
}
