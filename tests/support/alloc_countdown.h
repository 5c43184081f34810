/*
 * alloc_countdown.h - failing_alloc.h for tests with one thread, in which the
 * n-th allocation from now on fails.
 */
#ifndef IDEM_TESTS_ALLOC_COUNTDOWN_H
#define IDEM_TESTS_ALLOC_COUNTDOWN_H

#include "failing_alloc.h"

static long countdown; /* 1: the next allocation fails; 0: none does */
static bool failed;

static bool
alloc_fails(size_t calloc_len)
{
    (void)calloc_len;
    if (countdown == 0 || --countdown > 0)
        return false;
    failed = true;
    return true;
}

#endif
