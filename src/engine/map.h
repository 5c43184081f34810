/*
 * map.h - timers, and a hash table whose elements embed their link.
 */
#ifndef IDEM__ENGINE_MAP_H
#define IDEM__ENGINE_MAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* ---- timers ---------------------------------------------------------- */

enum idem__timer_kind {
    IDEM__TIMER_WAIT,  /* in a job: its wait ends */
    IDEM__TIMER_LOOK,  /* in a crowd: look at the record again */
    IDEM__TIMER_RENEW, /* in a keeper: renew its lease */
};

struct idem__timer {
    int64_t due_us; /* on the boot clock */
    size_t place;   /* in the heap, from 1; 0: not set */
    enum idem__timer_kind kind;
};

struct idem__timers {
    struct idem__timer **heap; /* heap[1] is due first */
    size_t count, room;
};

/* Set or change the timer. False: out of memory, the timer is unchanged. */
bool idem__timer_set(struct idem__timers *timers, struct idem__timer *timer,
                     int64_t due_us);
void idem__timer_stop(struct idem__timers *timers, struct idem__timer *timer);
struct idem__timer *idem__timer_first(const struct idem__timers *timers);
void idem__timers_clear(struct idem__timers *timers);

/* ---- a hash table of structs that embed a link ----------------------- */

struct idem__link {
    struct idem__link *next;
    uint64_t hash;
};

struct idem__map {
    struct idem__link **chains;
    size_t room; /* 0 or a power of two */
    size_t count;
};

bool idem__map_add(struct idem__map *map, struct idem__link *link,
                   uint64_t hash);
void idem__map_remove(struct idem__map *map, struct idem__link *link);
/* The things with this hash, one after the other; NULL: no more. */
struct idem__link *idem__map_find(const struct idem__map *map, uint64_t hash);
struct idem__link *idem__map_next(const struct idem__link *link);
void idem__map_clear(struct idem__map *map);

/* Keys are hashes already. */
static inline uint64_t
idem__key_hash(const uint8_t *key)
{
    uint64_t hash;

    memcpy(&hash, key, sizeof(hash));
    return hash;
}

#endif
