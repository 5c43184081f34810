/*
 * wait.c - the monotonic clock, conditions that wait by it, and threads.
 */
#include "wait.h"

#include <signal.h>

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

bool
idem__thread_start(pthread_t *thread, const char *name, void *(*run)(void *arg),
                   void *arg)
{
    sigset_t all, before;
    bool started;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    started = pthread_create(thread, NULL, run, arg) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (started)
        pthread_setname_np(*thread, name);
    return started;
}
