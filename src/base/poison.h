/*
 * poison.h - forbids some functions of the C library. The build includes it
 * before everything else, so that using one of them is an error.
 *
 * They have no bound (strcpy, sprintf), hidden state that threads share
 * (strtok, gmtime), or errors that look like values (atoi).
 */
#ifndef IDEM__POISON_H
#define IDEM__POISON_H

#ifndef __cplusplus

#include <stdarg.h>
#include <stddef.h>
#include <sys/types.h>

struct tm;

#define IDEM__POISONED(advice) __attribute__((deprecated(advice)))

char *strcpy(char *, const char *) IDEM__POISONED("use snprintf or memcpy");
char *strcat(char *, const char *) IDEM__POISONED("use snprintf or idem_buf");
char *strncpy(char *, const char *, size_t) IDEM__POISONED("use snprintf");
char *strncat(char *, const char *, size_t) IDEM__POISONED("use snprintf");
char *strtok(char *, const char *) IDEM__POISONED("use strtok_r");
int sprintf(char *, const char *, ...) IDEM__POISONED("use snprintf");
int vsprintf(char *, const char *, va_list) IDEM__POISONED("use vsnprintf");
int atoi(const char *) IDEM__POISONED("use strtol and look at its end");
long atol(const char *) IDEM__POISONED("use strtol and look at its end");
long long atoll(const char *) IDEM__POISONED("use strtoll and look at its end");
double atof(const char *) IDEM__POISONED("use strtod and look at its end");
struct tm *gmtime(const time_t *) IDEM__POISONED("use gmtime_r");
struct tm *localtime(const time_t *) IDEM__POISONED("use localtime_r");
char *ctime(const time_t *) IDEM__POISONED("use strftime");
char *asctime(const struct tm *) IDEM__POISONED("use strftime");
char *mktemp(char *) IDEM__POISONED("use mkstemp or mkdtemp");

#endif

#endif
