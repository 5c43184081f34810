/*
 * wait.h - the monotonic clock, and conditions that wait by it.
 */
#ifndef IDEM__WAIT_H
#define IDEM__WAIT_H

#include <pthread.h>
#include <stdint.h>
#include <time.h>

/* CLOCK_MONOTONIC in microseconds, in milliseconds. */
int64_t idem__mono_us(void);
int64_t idem__mono_ms(void);

/* A condition for pthread_cond_timedwait on that clock, and the deadline that
 * is this many microseconds from now. */
void idem__cond_init(pthread_cond_t *cond);
struct timespec idem__deadline(int64_t us);

#endif
