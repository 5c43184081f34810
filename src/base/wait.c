/*
 * wait.c - the monotonic clock, and conditions that wait by it.
 */
#include "wait.h"

int64_t
idem__mono_us(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

int64_t
idem__mono_ms(void)
{
    return idem__mono_us() / 1000;
}

void
idem__cond_init(pthread_cond_t *cond)
{
    pthread_condattr_t attr;

    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(cond, &attr);
    pthread_condattr_destroy(&attr);
}

struct timespec
idem__deadline(int64_t us)
{
    int64_t until = idem__mono_us() + us;

    return (struct timespec){until / 1000000, until % 1000000 * 1000};
}
