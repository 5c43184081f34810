/*
 * results.h - long results on their way to clients. A result is kept once, even
 * if many clients wait for it, and the bytes of all results are bounded.
 *
 * The engine's answer is valid only during its callback. A client that has not
 * read its last reply must not cost a copy of the next one, so clients share
 * the bytes of a long result, and a reply is built when there is room to send
 * it.
 *
 * Threads: results_take is called in the engine's callbacks, which run on one
 * thread; results may be put from any thread.
 */
#ifndef SERVER_RESULTS_H
#define SERVER_RESULTS_H

#include <idem/record.h>

#include <pthread.h>
#include <stdatomic.h>

/* Shorter results are copied into their reply. */
#define RESULT_LONG 1024

struct result {
    struct results *of;
    size_t refs; /* under the lock */
    size_t len;
    uint8_t bytes[];
};

struct results {
    pthread_mutex_t lock;
    size_t max;           /* limit for all bytes: results and buffers */
    atomic_size_t bytes;  /* of results; at most half of max */
    atomic_size_t others; /* bytes that clients' own buffers hold */
    uint64_t refused;     /* under the lock: how often there was no room */
    struct result *last;  /* of the last callback: the next may need it */
    const void *last_data;
    uint64_t last_rev, last_turn;
};

void results_open(struct results *results, size_t max);
/* Call it after all results were put back. */
void results_close(struct results *results);

/* Returns the record's result, to be put back; the turn is the engine's. NULL:
 * the limit is reached, or out of memory. If no other result is held, the limit
 * does not apply. */
struct result *results_take(struct results *results, uint64_t turn,
                            const struct idem_record *record);
void result_put(struct result *result); /* NULL is fine */

/* Free the last result if nobody else uses it. If somebody does, another thread
 * may be in the middle of its callbacks, and the next callback may need it. */
void results_rest(struct results *results);

/* Count that clients' own buffers have grown or shrunk. */
void results_count(struct results *results, size_t before, size_t now);
/* Is there room for this many more bytes in clients' own buffers? */
bool results_room(const struct results *results, size_t more);

uint64_t results_refused(struct results *results);

#endif
