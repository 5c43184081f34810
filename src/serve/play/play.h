/*
 * play.h - the playground: every scheme, first without protection, then with.
 *
 *   a wish {scheme, action, protect}
 *     --> a sandbox of its own: a memory: engine and tables in memory
 *     --> requests on threads of their own, each a client's call of a service
 *     --> what happened: messages with their times, tables, records, effects
 *
 * A run begins with an empty sandbox and leaves nothing behind. It never sees
 * the server's own store. Where the unprotected half is a race, the requests
 * wait for each other between their check and what they do next, so that the
 * race is lost every time and not once in a thousand.
 */
#ifndef SERVER_PLAY_H
#define SERVER_PLAY_H

#include <idem/engine.h>

#include <jansson.h>

/* Which schemes there are, what a client can do, and where the unprotected one
 * goes wrong. A new reference. */
json_t *play_list(void);

/*
 * Run one; takes up to a few seconds.
 *
 * IDEM_ERR_INVALID: there is no such scheme, or no such action in it.
 * IDEM_ERR_UNSUPPORTED: this idem has no SQLite.
 */
enum idem_status play_run(struct idem_bytes scheme, struct idem_bytes action,
                          bool protect, json_t **told, struct idem_error *err);

#endif
