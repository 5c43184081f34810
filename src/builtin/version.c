/*
 * version.c - part of every module: which idem it was built with.
 */
#include "../base/module.h"

#include <idem/idem.h>

extern IDEM__MODULE const char *const idem__module_version;
const char *const idem__module_version = IDEM_VERSION;
