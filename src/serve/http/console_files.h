/*
 * console_files.h - the files of the console, which the build puts into this
 * program: build/console/files.c, made by console/build.mjs. A build without
 * npm has none of them.
 */
#ifndef IDEM__CONSOLE_FILES_H
#define IDEM__CONSOLE_FILES_H

#include <stddef.h>

struct console_file {
    const char *name; /* "app.js"; "": the page itself */
    const char *type;
    const unsigned char *gzip;
    size_t len;
};

extern const struct console_file console_files[]; /* the last has no type */

#endif
