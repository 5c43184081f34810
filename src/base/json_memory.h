/*
 * json_memory.h - notices when jansson ran out of memory.
 *
 * jansson does not always say so: json_loadb takes a shorter string or reports
 * a syntax error, json_dumps leaves a key out. idem must not take such a
 * request for the client's, nor send such a reply.
 */
#ifndef IDEM__JSON_MEMORY_H
#define IDEM__JSON_MEMORY_H

#include <jansson.h>
#include <stdbool.h>

/* Once, before other threads use jansson; a library does not do this, because
 * jansson is the program's. Otherwise nothing is noticed. */
void idem__json_watch(void);

/* Forget earlier failures on this thread. */
void idem__json_begin(void);

/* Has an allocation of jansson failed on this thread since then? */
bool idem__json_starved(void);

/* The text of a value that was made since then, to be freed; takes the value,
 * which may be NULL. NULL: out of memory. */
char *idem__json_text(json_t *json);

#endif
