/*
 * http_console.c - the files of the console, and the headers that protect it
 * from other pages.
 *
 * The headers allow scripts and requests of this server only, forbid other
 * pages to show the console in a frame, and keep text from becoming HTML
 * (Trusted Types).
 */
#include "console_files.h"
#include "http_inner.h"

#include <string.h>

static const char *const headers[][2] = {
    {"Content-Security-Policy",
     "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
     "connect-src 'self'; base-uri 'none'; form-action 'none'; "
     "frame-ancestors 'none'; require-trusted-types-for 'script'; "
     "trusted-types 'none'"},
    {"X-Frame-Options", "DENY"},
    {"Referrer-Policy", "no-referrer"},
    {"Cross-Origin-Opener-Policy", "same-origin"},
    {"Cross-Origin-Resource-Policy", "same-origin"},
};

void
http_console_headers(struct MHD_Response *response)
{
    for (size_t i = 0; i < sizeof(headers) / sizeof(headers[0]); i++)
        MHD_add_response_header(response, headers[i][0], headers[i][1]);
}

bool
http_console_built(void)
{
    return console_files[0].type != NULL;
}

const struct console_file *
http_console_file(struct idem_bytes name)
{
    const struct console_file *file = console_files;

    while (file->type && !idem__bytes_is(name, file->name))
        file++;
    return file->type ? file : NULL;
}
