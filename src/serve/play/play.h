/*
 * play.h - the playground: runs every scheme without protection and with it.
 *
 *   a wish {scheme, action, protect}
 *     --> a sandbox of its own: a memory: engine and tables in memory
 *     --> requests on threads of their own, each a client's call of a service
 *     --> what happened: messages with their times, tables, records, effects
 *
 * A run begins with an empty sandbox, leaves nothing behind, and never uses the
 * server's own store. Where the unprotected version has a race, the requests
 * wait for each other between their check and their write, so that the race
 * shows every time and not once in a thousand runs.
 */
#ifndef SERVER_PLAY_H
#define SERVER_PLAY_H

#include <idem/engine.h>

#include <jansson.h>

/* The schemes, their actions, and the actions that break the unprotected
 * version. Returns a new reference. */
json_t *play_list(void);

/*
 * Run one scheme; takes up to a few seconds.
 *
 * IDEM_ERR_INVALID: there is no such scheme, or no such action in it.
 * IDEM_ERR_UNSUPPORTED: this idem is built without SQLite.
 */
enum idem_status play_run(struct idem_bytes scheme, struct idem_bytes action,
                          bool protect, json_t **told, struct idem_error *err);

#endif
