/*
 * module.c - finds modules on the disk and loads them.
 *
 * A module is looked for in $IDEM_MODULES, then near this library or program (a
 * build folder, or an installation that was moved), then where `make install`
 * puts it. A module of another version of idem is refused, because its structs
 * may differ.
 */
#include "module.h"

#include "error.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifndef IDEM_MODULE_DIR
#define IDEM_MODULE_DIR "/usr/local/lib/idem"
#endif

/* Places near the file that this code is in. */
static const char *const nearby[] = {"modules", "idem", "../lib/idem"};

/* The folder of the library or program that this code is in; "": unknown. A
 * program that the shell found on its path has a name without a slash, which
 * realpath would look for in the current folder. */
static void
own_folder(char folder[PATH_MAX])
{
    Dl_info info;
    char *slash;

    folder[0] = '\0';
    if (dladdr((void *)(uintptr_t)&idem__module_symbol, &info) == 0 ||
        !info.dli_fname || !strchr(info.dli_fname, '/') ||
        !realpath(info.dli_fname, folder)) {
        ssize_t len = readlink("/proc/self/exe", folder, PATH_MAX - 1);

        folder[len > 0 ? len : 0] = '\0';
    }
    slash = strrchr(folder, '/');
    if (slash)
        *slash = '\0';
}

static bool
is_there(const char *folder, const char *name, const char *module,
         char path[PATH_MAX])
{
    int len = snprintf(path, PATH_MAX, "%s%s%s/%s.so", folder, *name ? "/" : "",
                       name, module);

    return len > 0 && len < PATH_MAX && access(path, R_OK) == 0;
}

static bool
find_file(const char *module, char path[PATH_MAX])
{
    const char *named = secure_getenv("IDEM_MODULES");
    char folder[PATH_MAX];

    if (named && *named)
        return is_there(named, "", module, path);
    own_folder(folder);
    for (size_t i = 0; *folder && i < sizeof(nearby) / sizeof(nearby[0]); i++) {
        if (is_there(folder, nearby[i], module, path))
            return true;
    }
    return is_there(IDEM_MODULE_DIR, "", module, path);
}

enum idem_status
idem__module_symbol(const char *module, const char *symbol, const void **found,
                    struct idem_error *err)
{
    char path[PATH_MAX];
    const char *const *version;
    void *handle;

    if (!find_file(module, path))
        return idem__fail(err, IDEM_ERR_UNSUPPORTED,
                          "%s: this part of idem is not installed: %s.so is "
                          "neither in $IDEM_MODULES nor in " IDEM_MODULE_DIR
                          "; install the package idem-%s-%s, or build idem "
                          "with it",
                          module, module,
                          strcmp(module, "rabbitmq") == 0 ||
                                  strcmp(module, "kafka") == 0 ||
                                  strcmp(module, "nats") == 0
                              ? "broker"
                              : "store",
                          module);
    handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!handle) {
        const char *text = dlerror();

        return idem__fail(err, IDEM_ERR_UNSUPPORTED, "%s", text ? text : path);
    }
    version = dlsym(handle, "idem__module_version");
    if (!version || strcmp(*version, idem_version()) != 0)
        return idem__fail(err, IDEM_ERR_UNSUPPORTED,
                          "%s: is of idem %s, and this is idem %s: install "
                          "both from the same version",
                          path, version ? *version : "(unknown)",
                          idem_version());
    *found = dlsym(handle, symbol);
    return *found
               ? IDEM_OK
               : idem__fail(err, IDEM_ERR_UNSUPPORTED,
                            "%s: has no %s: the file is damaged", path, symbol);
}
