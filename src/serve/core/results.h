/*
 * results.h - long results on their way to clients: kept once, however many
 * clients wait for the same one, and bounded in bytes for all of them.
 *
 * The engine's answer is valid during its callback only. A client that has not
 * read what it was sent before must not cost a copy of the next reply, so the
 * bytes of a long result are shared, and a reply is put together when there is
 * room to send it.
 *
 * Threads: results_take is called in the engine's callbacks, which run on one
 * thread; results may be put from any thread.
 */
#ifndef SERVER_RESULTS_H
#define SERVER_RESULTS_H

#include <idem/record.h>

#include <pthread.h>
#include <stdatomic.h>

/* A result that is shorter is copied into its reply. */
#define RESULT_LONG 1024

struct result {
    struct results *of;
    size_t refs; /* under the lock */
    size_t len;
    uint8_t bytes[];
};

struct results {
    pthread_mutex_t lock;
    size_t max;           /* bytes of all, with other buffers */
    atomic_size_t bytes;  /* of results: at most half of it */
    atomic_size_t others; /* bytes that clients' own buffers hold */
    uint64_t refused;     /* under the lock: how often there was no room */
    struct result *last; /* what the last callback took: the next may want it */
    const void *last_data;
    uint64_t last_rev, last_turn;
};

void results_open(struct results *results, size_t max);
/* When all results were put back. */
void results_close(struct results *results);

/* The record's result, to be put back; the turn is the engine's. NULL: the
 * limit is reached, or out of memory. One is given out however low the limit
 * is. */
struct result *results_take(struct results *results, uint64_t turn,
                            const struct idem_record *record);
void result_put(struct result *result); /* NULL is fine */

/* Let the last one go if nobody else has it. Another thread may be in the
 * middle of its callbacks: while somebody has it, the next may want it, too. */
void results_rest(struct results *results);

/* Clients' own buffers have grown or shrunk. */
void results_count(struct results *results, size_t before, size_t now);
/* Is there room for so many bytes more in clients' own buffers? */
bool results_room(const struct results *results, size_t more);

uint64_t results_refused(struct results *results);

#endif
