/*
 * failing_alloc.h - malloc and the like, which fail when the test wants.
 *
 * For tests whose name ends in _alloc_test.c: the linker calls these functions
 * instead of the real ones (see the Makefile). The test defines alloc_fails.
 */
#ifndef IDEM_TESTS_FAILING_ALLOC_H
#define IDEM_TESTS_FAILING_ALLOC_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

/* Must this allocation fail? `calloc_len` is the size of an element of calloc,
 * 0 in the other calls. */
static bool alloc_fails(size_t calloc_len);

void *__real_malloc(size_t len);
void *__real_calloc(size_t count, size_t len);
void *__real_realloc(void *old, size_t len);
char *__real_strdup(const char *text);
char *__real_strndup(const char *text, size_t len);
void *__wrap_malloc(size_t len);
void *__wrap_calloc(size_t count, size_t len);
void *__wrap_realloc(void *old, size_t len);
char *__wrap_strdup(const char *text);
char *__wrap_strndup(const char *text, size_t len);
int __wrap_asprintf(char **out, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

void *
__wrap_malloc(size_t len)
{
    return alloc_fails(0) ? NULL : __real_malloc(len);
}

void *
__wrap_calloc(size_t count, size_t len)
{
    return alloc_fails(len) ? NULL : __real_calloc(count, len);
}

void *
__wrap_realloc(void *old, size_t len)
{
    return alloc_fails(0) ? NULL : __real_realloc(old, len);
}

char *
__wrap_strdup(const char *text)
{
    return alloc_fails(0) ? NULL : __real_strdup(text);
}

char *
__wrap_strndup(const char *text, size_t len)
{
    return alloc_fails(0) ? NULL : __real_strndup(text, len);
}

int
__wrap_asprintf(char **out, const char *format, ...)
{
    va_list args;
    int len;

    if (alloc_fails(0))
        return -1;
    va_start(args, format);
    len = vasprintf(out, format, args);
    va_end(args);
    return len;
}

#endif
