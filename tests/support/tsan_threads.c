/*
 * tsan_threads.c - C11 threads for ThreadSanitizer.
 *
 * gcc's ThreadSanitizer knows POSIX threads only, and a library that starts its
 * threads with thrd_create (librdkafka does) crashes in it. In a build for it,
 * these take their place.
 */
#ifdef __SANITIZE_THREAD__

#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <threads.h>

struct start {
    thrd_start_t run;
    void *arg;
};

static void *
run_start(void *arg)
{
    struct start start = *(struct start *)arg;

    free(arg);
    return (void *)(intptr_t)start.run(start.arg);
}

__attribute__((visibility("default"))) int
thrd_create(thrd_t *thread, thrd_start_t run, void *arg)
{
    struct start *start = malloc(sizeof(*start));

    if (!start)
        return thrd_nomem;
    *start = (struct start){run, arg};
    if (pthread_create(thread, NULL, run_start, start) == 0)
        return thrd_success;
    free(start);
    return thrd_error;
}

__attribute__((visibility("default"))) int
thrd_join(thrd_t thread, int *result)
{
    void *value;

    if (pthread_join(thread, &value) != 0)
        return thrd_error;
    if (result)
        *result = (int)(intptr_t)value;
    return thrd_success;
}

__attribute__((visibility("default"))) int
thrd_detach(thrd_t thread)
{
    return pthread_detach(thread) == 0 ? thrd_success : thrd_error;
}

#else

typedef int nothing_to_replace;

#endif
