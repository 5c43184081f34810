/*
 * host.c - what stores need of the machine: clocks, randomness, a log.
 */
#include "store.h"

#include <sodium.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

static int64_t
read_us(clockid_t clock)
{
    struct timespec t;

    clock_gettime(clock, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

static int64_t
wall_us(void *arg)
{
    (void)arg;
    return read_us(CLOCK_REALTIME);
}

static int64_t
boot_us(void *arg)
{
    (void)arg;
    return read_us(CLOCK_BOOTTIME);
}

const struct idem_clocks idem__system_clocks = {wall_us, boot_us, NULL};

void
idem__log(const struct idem_store_options *options, enum idem_log_level level,
          const char *format, ...)
{
    static const char *const names[] = {"info", "warning", "alarm"};
    char text[512];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    if (options && options->log)
        options->log(options->log_arg, level, text);
    else if (level != IDEM_LOG_INFO)
        fprintf(stderr, "idem: %s: %s\n", names[level], text);
}

void
idem__url_redact(const char *url, char *out, size_t out_len)
{
    const char *host = strstr(url, "://");
    const char *at = host ? strrchr(host, '@') : NULL;
    const char *colon =
        at ? memchr(host + 3, ':', (size_t)(at - host - 3)) : NULL;

    if (colon)
        snprintf(out, out_len, "%.*s***%s", (int)(colon + 1 - url), url, at);
    else
        snprintf(out, out_len, "%s", url);
}

uint64_t
idem__new_rev(void)
{
    uint64_t rev;

    do {
        randombytes_buf(&rev, sizeof(rev));
    } while (rev == 0);
    return rev;
}
