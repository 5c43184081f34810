/*
 * module.h - loads the parts of idem that need another library.
 *
 * A store, a database's SQL adapter or a broker is one constant. Programs that
 * use only the journal must not load libpq, so these constants live in modules
 * (postgres.so, redis.so, ...), loaded when a URL or a call first needs one.
 *
 *   libidem.so, idem   module.c loads the module
 *   libidem.a, tests   builtin/builtin.c has them linked in
 *
 * A module brings its own copy of the idem functions that it calls; those keep
 * no state. It is never unloaded.
 */
#ifndef IDEM__MODULE_H
#define IDEM__MODULE_H

#include <idem/engine.h>

/* Marks the declaration of a constant that a module provides. */
#define IDEM__MODULE __attribute__((visibility("default")))

/*
 * Find a module's constant.
 *
 * IDEM_ERR_UNSUPPORTED: the module is not installed, or idem was built without
 * it; err says which, and what to do.
 */
enum idem_status idem__module_symbol(const char *module, const char *symbol,
                                     const void **found,
                                     struct idem_error *err);

#endif
