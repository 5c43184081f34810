/*
 * timers.c - a binary heap of timers, to find the wait, lease or renewal that
 * is due first. A timer is part of the struct that it belongs to, so stopping
 * one is cheap.
 */
#include "inner.h"

#include <stdlib.h>

static void
put(struct idem__timers *timers, size_t place, struct idem__timer *timer)
{
    timers->heap[place] = timer;
    timer->place = place;
}

static void
rise(struct idem__timers *timers, struct idem__timer *timer)
{
    size_t place = timer->place;

    while (place > 1 && timers->heap[place / 2]->due_us > timer->due_us) {
        put(timers, place, timers->heap[place / 2]);
        place /= 2;
    }
    put(timers, place, timer);
}

static void
sink(struct idem__timers *timers, struct idem__timer *timer)
{
    size_t place = timer->place;

    for (;;) {
        size_t child = place * 2;

        if (child < timers->count &&
            timers->heap[child + 1]->due_us < timers->heap[child]->due_us)
            child++;
        if (child > timers->count ||
            timers->heap[child]->due_us >= timer->due_us)
            break;
        put(timers, place, timers->heap[child]);
        place = child;
    }
    put(timers, place, timer);
}

bool
idem__timer_set(struct idem__timers *timers, struct idem__timer *timer,
                int64_t due_us)
{
    if (timer->place == 0) {
        void *heap = idem__grow(timers->heap, timers->count + 1, &timers->room,
                                sizeof(*timers->heap));

        if (!heap)
            return false;
        timers->heap = heap;
        put(timers, ++timers->count, timer);
    }
    timer->due_us = due_us;
    rise(timers, timer);
    sink(timers, timer);
    return true;
}

void
idem__timer_stop(struct idem__timers *timers, struct idem__timer *timer)
{
    struct idem__timer *last;

    if (timer->place == 0)
        return;
    last = timers->heap[timers->count--];
    if (last != timer) {
        put(timers, timer->place, last);
        rise(timers, last);
        sink(timers, last);
    }
    timer->place = 0;
}

struct idem__timer *
idem__timer_first(const struct idem__timers *timers)
{
    return timers->count > 0 ? timers->heap[1] : NULL;
}

void
idem__timers_clear(struct idem__timers *timers)
{
    free(timers->heap);
    *timers = (struct idem__timers){NULL, 0, 0};
}
