/*
 * error.c - writes errors into the caller's struct.
 */
#include "error.h"

#include <idem/idem.h>
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

enum idem_status
idem__room_used(struct idem_error *err)
{
    return idem__fail(err, IDEM_ERR_UNSUPPORTED,
                      "a struct has a member set that libidem " IDEM_VERSION
                      " does not know: the program was built with the "
                      "headers of a newer version, or it did not start "
                      "the struct from zero");
}
