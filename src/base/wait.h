/*
 * wait.h - the monotonic clock, conditions that wait by it, and threads.
 */
#ifndef IDEM__WAIT_H
#define IDEM__WAIT_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

/* CLOCK_MONOTONIC in microseconds, in milliseconds. */
int64_t idem__mono_us(void);
int64_t idem__mono_ms(void);

/* A condition for pthread_cond_timedwait on that clock, and the deadline that
 * is this many microseconds from now. */
void idem__cond_init(pthread_cond_t *cond);
struct timespec idem__deadline(int64_t us);

/* Start a thread that gets no signals: they are for the program's own
 * threads. */
bool idem__thread_start(pthread_t *thread, const char *name,
                        void *(*run)(void *arg), void *arg);

#endif
