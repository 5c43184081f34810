/*
 * error.c - errors told in the caller's own struct.
 */
#include "error.h"

#include <stdarg.h>
#include <stdio.h>

enum idem_status
idem__fail(struct idem_error *err, enum idem_status status, const char *format,
           ...)
{
    va_list args;

    if (!err)
        return status;
    err->status = status;
    va_start(args, format);
    vsnprintf(err->text, sizeof(err->text), format, args);
    va_end(args);
    return status;
}
